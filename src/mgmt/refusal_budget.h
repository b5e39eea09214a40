// RefusalBudget: how many requests of a caller that the listener itself refuses (his role forbids
// them, or they are no proper requests) the audit keeps. The audit is bounded and its oldest
// entries go: without a budget whoever may only look could push out, within seconds, what others
// did. What was left out is counted in the next entry that is kept.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace sandbay::mgmt {

class RefusalBudget {
 public:
  static constexpr unsigned kMostAnHour = 16;  // For each caller.
  using Time = std::chrono::steady_clock::time_point;

  // Whether this refusal is kept: then, how many before it were not. From any thread.
  std::optional<std::uint64_t> take(const std::string& caller, Time now) {
    const std::scoped_lock lock(mutex_);
    Spent& spent = spent_[caller];
    if (spent.count == 0 || now - spent.since >= std::chrono::hours(1)) {
      spent.since = now;
      spent.count = 0;
    }
    if (spent.count == kMostAnHour) {
      ++spent.left_out;
      return std::nullopt;
    }
    ++spent.count;
    return std::exchange(spent.left_out, 0);
  }

 private:
  struct Spent {
    Time since{};
    unsigned count = 0;
    std::uint64_t left_out = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Spent> spent_;  // As many as there are tokens, or trusted users.
};

}  // namespace sandbay::mgmt
