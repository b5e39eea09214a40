// What a logical unit counts: plain integers on its home executor, copied out as one value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/latency_histogram.h"

namespace sandbay::scsi {

enum class CommandKind : std::uint8_t { kRead, kWrite, kVerify, kFlush, kUnmap, kOther };
inline constexpr std::size_t kCommandKindCount = 6;

struct CommandCounters {
  std::uint64_t commands = 0;  // Completed, whatever the outcome.
  std::uint64_t errors = 0;    // Of these with CHECK CONDITION.
  std::uint64_t bytes = 0;     // Moved.
  LatencyHistogram latency;    // From arrival in the task set to completion.
};

struct LogicalUnitCounters {
  std::array<CommandCounters, kCommandKindCount> by_kind;
  std::uint64_t busy = 0;
  std::uint64_t task_set_full = 0;
  std::uint64_t reservation_conflicts = 0;
  std::uint64_t unit_attentions = 0;  // Reported.
  std::uint64_t aborted = 0;          // Commands.
  std::uint64_t resets = 0;
  std::uint32_t in_flight = 0;  // The task set now: waiting and running.
  std::uint32_t in_flight_most = 0;
  std::uint32_t held = 0;  // Aborted and answered, but still in a device below.
  std::uint32_t nexuses = 0;
  std::uint32_t registrations = 0;  // For persistent reservations,
  bool reserved = false;            // one of which is held, or one of RESERVE.

  CommandCounters& of(CommandKind kind) { return by_kind[static_cast<std::size_t>(kind)]; }
  const CommandCounters& of(CommandKind kind) const {
    return by_kind[static_cast<std::size_t>(kind)];
  }
};

}  // namespace sandbay::scsi
