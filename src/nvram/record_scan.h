// What RecordLog::recover() found in the image, until accept() has made use of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "nvram/record_layout.h"
#include "nvram/record_log.h"

namespace sandbay::nvram {

struct RecordLog::Scan {
  bool reformat = false;     // Nothing of what is there is kept.
  std::uint64_t new_id = 0;  // Of what is formatted; 0: one is drawn.
  std::optional<SealState> seal;
  // Memory is exactly what a killed process left, so the seal decides.
  bool by_seal = false;
  ControlBlock control{};
  std::size_t slot = 0;
  std::uint64_t acknowledged_end = 0;  // All records before it had certainly been acknowledged.
  std::uint64_t next_sequence = 0;     // Behind the last one found.
  std::uint64_t next_position = 0;
  std::uint64_t newest_epoch = 0;
  std::uint64_t missing_first = 0;  // Spans all missing records; empty if equal.
  std::uint64_t missing_end = 0;
  std::vector<std::uint64_t> unmark;  // Positions of releases that do not count.
  struct Found {
    std::uint64_t sequence = 0;
    std::uint64_t position = 0;
    std::uint64_t byte_count = 0;
    bool released = false;  // It has a mark that counts.
    bool sealed = false;    // The seal counts it as live.
    bool live = false;      // It stays.
  };
  std::vector<Found> found;                         // By sequence.
  std::vector<std::uint64_t> lost;                  // Sealed sequences that were not found.
  std::array<bool, kSealBuckets> unknown_bucket{};  // What of it is live cannot be told.

  void note_gap(std::uint64_t first, std::uint64_t end) {
    if (first >= end) return;
    if (missing_first == missing_end) missing_first = first;
    missing_end = end;
  }
};

}  // namespace sandbay::nvram
