// EventLog: what a server tells the log about logins, sessions and connections that it gave up.
// Peers decide how often something happens, so lines are limited: ten a second of each severity,
// and then one line that says how many more there were. What peers sent is made printable.
//
// Home: the server's executor.
#pragma once

#include <array>
#include <cassert>
#include <chrono>
#include <string>
#include <utility>

#include "iscsi/target_server.h"
#include "runtime/executor.h"
#include "runtime/printable.h"
#include "runtime/timer.h"

namespace sandbay::iscsi {

class EventLog {
 public:
  static constexpr unsigned kLinesASecond = 10;
  static constexpr std::size_t kLongestLine = 1024;

  EventLog(Executor& home, EventSink sink) : home_(home), sink_(std::move(sink)) {
    timer_.owner = this;
    timer_.fire = [](Timer& timer) { static_cast<EventLog*>(timer.owner)->end_of_second(); };
  }
  ~EventLog() {
    if (!timer_.armed()) return;
    home_.disarm(timer_);
    end_of_second();
  }
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void info(std::string text) { tell(EventSeverity::kInfo, std::move(text)); }
  void warn(std::string text) { tell(EventSeverity::kWarning, std::move(text)); }

 private:
  void tell(EventSeverity severity, std::string text) {
    if (!sink_) return;
    if (!timer_.armed()) {
      timer_.deadline = home_.now() + Duration(std::chrono::seconds(1));
      home_.arm(timer_);
    }
    if (++told_[static_cast<std::size_t>(severity)] > kLinesASecond) return;
    if (text.size() > kLongestLine) text.resize(kLongestLine);
    sink_({.severity = severity, .text = printable(text)});
  }

  void end_of_second() {
    for (std::size_t i = 0; i < told_.size(); ++i) {
      const unsigned all = std::exchange(told_[i], 0);
      if (all <= kLinesASecond) continue;
      sink_({.severity = static_cast<EventSeverity>(i),
             .text = std::to_string(all - kLinesASecond) + " more such events within a second"});
    }
  }

  Executor& home_;
  EventSink sink_;
  std::array<unsigned, 2> told_{};  // Within this second, by severity.
  Timer timer_;                     // Armed from the first event of a second to its end.
};

}  // namespace sandbay::iscsi
