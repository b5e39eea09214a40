// Firing: one effect of one rule, and the bounded record of them.
//
// The journal and the counters name every fault that had an effect, and nothing else.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "block/block_device.h"
#include "fault/rule.h"
#include "runtime/clock.h"

namespace sandbay::fault {

struct Firing {
  std::uint64_t number = 0;  // From 1, in the order in which they happened.
  std::string rule;
  Fault fault = Fault::kNothing;
  TimePoint time{};
  std::string target;           // "drive d3", "enclosure", "nvram A".
  std::uint64_t operation = 0;  // The drive's n-th; 0: no operation was struck.
  Extent extent;                // Of the operation or of the damage.
  std::string effect;           // A few words, or nothing to say beside the fault.
  bool repeated = false;        // The rule has fired before.
  bool operator==(const Firing&) const = default;
};

// "drive d3: fault r7 fired: torn, kept blocks 0-2 of 8 (operation 4711, 4096+8)".
std::string describe(const Firing& firing);

class Journal {
 public:
  explicit Journal(std::size_t most_entries) : most_entries_(most_entries) {}

  void append(Firing firing);  // The oldest goes when there are too many.
  void clear() { entries_.clear(); }
  const std::deque<Firing>& entries() const noexcept { return entries_; }
  std::uint64_t total() const noexcept { return total_; }  // Also those that have gone.

 private:
  std::size_t most_entries_;
  std::uint64_t total_ = 0;
  std::deque<Firing> entries_;
};

}  // namespace sandbay::fault
