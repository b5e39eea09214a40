// EventLog: what happened to the hardware of the group, for operators: every change of state of a
// drive or a set, every fault that began, every disagreement between file and drives.
//
// Bounded: the oldest go. Numbers begin at 1 and go up by one for as long as there is the group,
// also over restarts, so that a reader that says which was its last misses none unnoticed.
//
// Once it is open, events are also kept in the metadata (event/NUMBER), soon after they have
// happened and many at once. Nobody waits for that, and a metadata disk that fails costs the next
// start its events and nothing else. Executor 0.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "metadata/store.h"
#include "runtime/clock.h"
#include "runtime/sync.h"

namespace sandbay::group {

enum class Severity : std::uint8_t { kInformation, kWarning, kError };
std::string_view describe(Severity severity);  // "information", "warning", "error"

// What the clock on the wall said.
using WallTime = std::chrono::sys_time<std::chrono::milliseconds>;

struct EventInfo {
  std::uint64_t number = 0;
  WallTime time{};
  Severity severity = Severity::kInformation;
  std::string kind;   // A word: "drive failed", "rebuild started" …
  std::string set;    // Empty where none is concerned.
  std::string drive;  // Likewise.
  std::string text;   // A sentence.
};

class EventLog {
 public:
  static constexpr std::size_t kMostEvents = 4096;

  explicit EventLog(std::size_t most_events = kMostEvents) : most_events_(most_events) {}
  ~EventLog();  // After close(), if it was opened.
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // Goes on where the store's events end, before the first add(). What does not decode there is
  // left out and told: no start fails for a log. The store outlives close().
  Task<Error> open(metadata::Store& store);
  // Tries once more to keep what is not kept yet.
  Task<void> close();

  // Also writes it to the log of the process. Number and time are set here.
  void add(EventInfo event);
  // Those with a greater number, oldest first.
  std::vector<EventInfo> since(std::uint64_t number) const;
  std::uint64_t total() const noexcept { return total_; }
  // Everything that was added is kept; false: not before the deadline.
  Task<bool> kept(TimePoint deadline);

 private:
  Task<void> write_out();
  metadata::Batch next_batch(std::uint64_t* last, std::uint64_t* oldest) const;

  const std::size_t most_events_;
  std::deque<EventInfo> events_;
  std::uint64_t total_ = 0;
  metadata::Store* store_ = nullptr;
  std::uint64_t oldest_kept_ = 1;  // Below this number the store has none.
  std::uint64_t kept_ = 0;         // Up to this number all are in the store or too old for it.
  bool writing_ = false;
  bool failing_ = false;
  Event closing_;
  Condition moved_;
  Gate gate_;
};

}  // namespace sandbay::group
