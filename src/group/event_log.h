// EventLog: what happened to the hardware of the group, for operators: every change of state of a
// drive or a set, every fault that began, every disagreement between file and drives.
//
// A KeptLog: bounded, numbered, and kept in the metadata (event/NUMBER). Executor 0.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "group/kept_log.h"
#include "group/log.h"
#include "metadata/store.h"
#include "runtime/clock.h"

namespace sandbay::group {

using WallTime = sandbay::WallTime;

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

  explicit EventLog(std::size_t most_events = kMostEvents);

  Task<Error> open(metadata::Store& store) { return log_.open(store); }
  Task<void> close() { return log_.close(); }

  // Also writes it to the log of the process. Number and time are set here.
  void add(EventInfo event);
  // Those with a greater number, oldest first.
  std::vector<EventInfo> since(std::uint64_t number) const { return log_.since(number); }
  std::uint64_t total() const noexcept { return log_.total(); }
  // Everything that was added is kept; false: not before the deadline.
  Task<bool> kept(TimePoint deadline) { return log_.kept(deadline); }

 private:
  KeptLog<EventInfo> log_;
};

// The time now: of the executor whose turn it is, if there is one.
WallTime wall_time();
std::string utc_text(WallTime time);  // "2026-11-21T08:15:00.250Z"

}  // namespace sandbay::group
