// RefusalBudget: how many requests of a token that its role forbids the audit keeps. The audit is
// bounded and its oldest entries go: without a budget whoever may only look could push out, within
// seconds, what others did. What was left out is counted in the next entry that is kept.
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
  static constexpr unsigned kMostAnHour = 16;  // Of one token.
  using Time = std::chrono::steady_clock::time_point;

  // Whether this refusal is kept: then, how many before it were not. From any thread.
  std::optional<std::uint64_t> take(const std::string& token, Time now) {
    const std::scoped_lock lock(mutex_);
    Spent& spent = spent_[token];
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
  std::map<std::string, Spent> spent_;  // As many as there are tokens.
};

}  // namespace sandbay::mgmt
