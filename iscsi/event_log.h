// EventLog: what a server tells the log about logins, sessions and connections that it gave up.
// Peers decide how often something happens, so lines are limited: ten a second of each severity for
// each network (an address, or a /64 of IPv6), and then one line that says how many more there
// were. Networks beyond the first few of a second share one budget. The sessions of a peer that has
// proven itself have no limit, so a stranger hides none of them. What peers sent is made printable.
//
// Home: the server's executor.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "iscsi/login_room.h"
#include "iscsi/target_server.h"
#include "runtime/executor.h"
#include "runtime/printable.h"
#include "runtime/timer.h"

namespace sandbay::iscsi {

class EventLog {
 public:
  static constexpr unsigned kLinesASecond = 10;
  static constexpr std::size_t kMostNetworks = 16;  // With a budget of their own.
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

  void info(const Endpoint& peer, std::string text) {
    if (may_tell(EventSeverity::kInfo, peer)) tell(EventSeverity::kInfo, std::move(text));
  }
  void warn(const Endpoint& peer, std::string text) {
    if (may_tell(EventSeverity::kWarning, peer)) tell(EventSeverity::kWarning, std::move(text));
  }
  void info_of_proven(std::string text) { tell(EventSeverity::kInfo, std::move(text)); }

 private:
  using Counts = std::array<unsigned, 2>;  // By severity.
  struct Budget {
    Endpoint peer;
    Counts told{};
  };

  bool may_tell(EventSeverity severity, const Endpoint& peer) {
    if (!timer_.armed()) {
      timer_.deadline = home_.now() + Duration(std::chrono::seconds(1));
      home_.arm(timer_);
    }
    const auto index = static_cast<std::size_t>(severity);
    if (++counts_of(peer)[index] <= kLinesASecond) return true;
    ++left_out_[index];
    return false;
  }

  Counts& counts_of(const Endpoint& peer) {
    const auto found = std::ranges::find_if(
        budgets_, [&](const Budget& each) { return same_network(each.peer, peer); });
    if (found != budgets_.end()) return found->told;
    if (budgets_.size() == kMostNetworks) return others_;
    return budgets_.emplace_back(Budget{.peer = peer}).told;
  }

  void tell(EventSeverity severity, std::string text) {
    if (!sink_) return;
    if (text.size() > kLongestLine) text.resize(kLongestLine);
    sink_({.severity = severity, .text = printable(text)});
  }

  void end_of_second() {
    budgets_.clear();
    others_ = {};
    for (std::size_t i = 0; i < left_out_.size(); ++i) {
      const unsigned count = std::exchange(left_out_[i], 0);
      if (count == 0) continue;
      tell(static_cast<EventSeverity>(i),
           std::to_string(count) + " more such events within a second");
    }
  }

  Executor& home_;
  EventSink sink_;
  std::vector<Budget> budgets_;  // Within this second.
  Counts others_{};              // Networks without a budget of their own.
  Counts left_out_{};
  Timer timer_;  // Armed from the first limited event of a second to its end.
};

}  // namespace sandbay::iscsi
