// EventLog: what happened to the hardware of the group, for operators: every change of state of a
// drive or a set, every fault that began, every disagreement between file and drives.
//
// Bounded: the oldest go. Numbers begin at 1 and go up by one for as long as the group runs, so
// that a reader that says which was its last misses none unnoticed. Executor 0.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/clock.h"

namespace sandbay::group {

enum class Severity : std::uint8_t { kInformation, kWarning, kError };
std::string_view describe(Severity severity);  // "information", "warning", "error"

struct EventInfo {
  std::uint64_t number = 0;
  TimePoint time{};  // Of executor 0.
  Duration age{};    // When it was listed.
  Severity severity = Severity::kInformation;
  std::string kind;   // A word: "drive failed", "rebuild started" …
  std::string set;    // Empty where none is concerned.
  std::string drive;  // Likewise.
  std::string text;   // A sentence.
};

class EventLog {
 public:
  static constexpr std::size_t kMostEvents = 4096;

  // Also writes it to the log. Number and time are set here.
  void add(EventInfo event);
  // Those with a greater number, oldest first.
  std::vector<EventInfo> since(std::uint64_t number) const;
  std::uint64_t total() const noexcept { return total_; }

 private:
  std::deque<EventInfo> events_;
  std::uint64_t total_ = 0;
};

}  // namespace sandbay::group
