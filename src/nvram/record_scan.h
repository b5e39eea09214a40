// What RecordLog::recover() found in the image, until accept() has made use of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nvram/record_layout.h"
#include "nvram/record_log.h"

namespace sandbay::nvram {

struct RecordLog::Scan {
  bool reformat = false;  // Nothing of what is there is kept.
  ControlBlock control{};
  std::size_t slot = 0;
  std::uint64_t acknowledged_end = 0;  // All records before it had certainly been acknowledged.
  std::uint64_t next_sequence = 0;     // Behind the last one found.
  std::uint64_t next_position = 0;
  std::uint64_t newest_epoch = 0;
  std::uint64_t missing_first = 0;  // Spans all missing records; empty if equal.
  std::uint64_t missing_end = 0;
  std::vector<std::uint64_t> unmark;  // Positions of releases that do not count.
  std::vector<std::uint64_t> forget;  // Of lost records whose headers are right.
  struct Found {
    std::uint64_t sequence = 0;
    std::uint64_t position = 0;
    std::uint64_t byte_count = 0;
    bool live = false;
  };
  std::vector<Found> found;
};

}  // namespace sandbay::nvram
