// The log of the process gets the sentence alone: it has a time and a level of its own.
#include "group/event_log.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "runtime/executor.h"

namespace sandbay::group {

namespace {

spdlog::level::level_enum level_of(Severity severity) {
  switch (severity) {
    case Severity::kInformation:
      return spdlog::level::info;
    case Severity::kWarning:
      return spdlog::level::warn;
    case Severity::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

std::string_view describe(Severity severity) {
  switch (severity) {
    case Severity::kInformation:
      return "information";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "unknown";
}

void EventLog::add(EventInfo event) {
  event.number = ++total_;
  event.time = Executor::current().now();
  spdlog::log(level_of(event.severity), "{}", event.text);
  events_.push_back(std::move(event));
  if (events_.size() > kMostEvents) events_.pop_front();
}

std::vector<EventInfo> EventLog::since(std::uint64_t number) const {
  const auto first = std::ranges::upper_bound(events_, number, {}, &EventInfo::number);
  std::vector<EventInfo> list(first, events_.end());
  const TimePoint now = Executor::current().now();
  for (EventInfo& event : list) event.age = now - event.time;
  return list;
}

}  // namespace sandbay::group
