// A burst is forgotten when a whole pause has passed without another.
#include "group/hardware_repeats.h"

#include <fmt/core.h>

#include <algorithm>

namespace sandbay::group {

void RepeatedEvents::add(EventInfo event, TimePoint now, const std::string& about) {
  const auto [found, fresh] = bursts_.try_emplace(Key(event.kind, event.set, event.drive, about));
  Burst& burst = found->second;
  if (fresh) {
    burst.told = now;
    log_.add(std::move(event));
    return;
  }
  ++burst.count;
  burst.newest = std::move(event);
}

bool RepeatedEvents::count(const std::string& kind, const std::string& set,
                           const std::string& drive, const std::string& about) {
  const auto found = bursts_.find(Key(kind, set, drive, about));
  if (found == bursts_.end() || found->second.count == 0) return false;
  ++found->second.count;
  return true;
}

void RepeatedEvents::tell(Burst& burst) {
  if (burst.count > 1) {
    burst.newest.text += fmt::format("; and {} more like this one", burst.count - 1);
  }
  log_.add(std::move(burst.newest));
  burst.count = 0;
}

void RepeatedEvents::tell(TimePoint now) {
  for (auto entry = bursts_.begin(); entry != bursts_.end();) {
    Burst& burst = entry->second;
    const bool due = now >= burst.told + burst.pause;
    if (due && burst.count == 0) {
      entry = bursts_.erase(entry);
      continue;
    }
    if (due) {
      tell(burst);
      burst.told = now;
      burst.pause = std::min(burst.pause * 2, kLongestPause);
    }
    ++entry;
  }
}

void RepeatedEvents::tell_all() {
  for (auto& [key, burst] : bursts_) {
    if (burst.count > 0) tell(burst);
  }
  bursts_.clear();
}

}  // namespace sandbay::group
