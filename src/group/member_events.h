// MemberEvents: the group's log of events as one member tells it: where no drive and no set says
// whose an event is, its text does.
#pragma once

#include <string>
#include <utility>

#include "group/event_log.h"

namespace sandbay::group {

class MemberEvents {
 public:
  // Borrows the log. Without a name nothing is added: there is one member, or it is the first.
  MemberEvents(EventLog& log, std::string member = {})  // NOLINT: a log is one of these.
      : log_(log), member_(std::move(member)) {}

  void add(EventInfo event) {
    if (!member_.empty() && event.set.empty() && event.drive.empty()) {
      event.text = "member " + member_ + ": " + event.text;
    }
    log_.add(std::move(event));
  }
  Task<bool> kept(TimePoint deadline) { return log_.kept(deadline); }
  EventLog& log() const noexcept { return log_; }

 private:
  EventLog& log_;
  std::string member_;
};

}  // namespace sandbay::group
