// TransferPace: when a target asks for the data of writes, where that is not at once: the values of
// an array whose ports take a number of writes at a time, and need a while for each. They hold for
// each R2T (RFC 7143 section 11.8) and not for each write; data without an R2T do not wait.
#pragma once

#include <cassert>
#include <cstddef>

#include "runtime/clock.h"
#include "runtime/sync.h"
#include "runtime/task.h"

namespace sandbay::iscsi {

struct TransferPace {
  unsigned at_once = 0;       // R2Ts of a connection whose data have not come; 0: any number.
  Duration turnaround{};      // From an R2T's turn until it goes out,
  Duration per_connection{};  // ... and more for each connection of its session.

  bool waits() const noexcept {
    return at_once != 0 || turnaround != Duration{} || per_connection != Duration{};
  }
  Duration turnaround_with(std::size_t connections) const noexcept {
    return turnaround + static_cast<Duration::rep>(connections) * per_connection;
  }
};

// The R2Ts of one connection, first come first served. On the home of its session.
class TransferLine {
 public:
  TransferLine() = default;
  ~TransferLine() { assert(busy_ == 0 && waiting_ == 0); }
  TransferLine(const TransferLine&) = delete;
  TransferLine& operator=(const TransferLine&) = delete;

  // Ends when it is the turn of an R2T. It lasts until end(), once after each begin(): its data
  // have come, or nobody waits for them any more.
  Task<void> begin(unsigned at_once) {
    if (at_once == 0 || busy_ < at_once) {
      ++busy_;
    } else {
      ++waiting_;
      co_await handed_.wait();
    }
  }
  void end() {
    assert(busy_ > 0);
    if (waiting_ == 0) {
      --busy_;
    } else {
      --waiting_;
      handed_.notify_one();
    }
  }

 private:
  unsigned busy_ = 0;
  unsigned waiting_ = 0;  // Each is handed the turn of one that ends.
  Condition handed_;
};

}  // namespace sandbay::iscsi
