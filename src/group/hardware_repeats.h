// RepeatedEvents: keeps events that may come with every request, such as those of a drive that
// corrupts whatever it reads, from pushing everything else out of the log.
//
// Of one kind, set and drive the first is told at once; what comes after it is counted and told in
// one line with one of them, at most once a second and ever more rarely, until a while
// passes without any. None goes uncounted.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "group/event_log.h"
#include "runtime/clock.h"

namespace sandbay::group {

class RepeatedEvents {
 public:
  static constexpr Duration kFirstPause = std::chrono::seconds(1);
  static constexpr Duration kLongestPause = std::chrono::seconds(60);

  explicit RepeatedEvents(EventLog& log) : log_(log) {}  // Borrows it.

  // `about` tells bursts apart that are alike otherwise.
  void add(EventInfo event, TimePoint now, const std::string& about = {});
  // Adds one to a burst that is being counted; false if no such burst exists.
  bool count(const std::string& kind, const std::string& set, const std::string& drive,
             const std::string& about = {});
  // Tells what was counted and is due; called every second or so.
  void tell(TimePoint now);
  void tell_all();  // Due or not.

 private:
  using Key = std::tuple<std::string, std::string, std::string, std::string>;
  struct Burst {
    TimePoint told{};
    Duration pause = kFirstPause;
    std::uint64_t count = 0;  // Since then.
    EventInfo newest;
  };

  void tell(Burst& burst);

  EventLog& log_;
  std::map<Key, Burst> bursts_;
};

}  // namespace sandbay::group
