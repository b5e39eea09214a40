// BackgroundLoad: what others do with a drive meanwhile, as random commands at independent moments
// (a Poisson process), so many a second on the average.
//
// It is an open loop, so its backlog is bounded: commands that find too many of their own kind
// waiting are dropped. A drive that nobody asked for a while starts from an empty queue.
#pragma once

#include <cstdint>

#include "model/disk_layout.h"
#include "runtime/random.h"

namespace sandbay::model {

struct BackgroundOptions {
  double commands_per_second = 0;  // 0: none.
  double read_share = 0.5;         // 0 … 1
  std::uint64_t bytes = 8192;      // Of each; a multiple of a sector.
};

class BackgroundLoad {
 public:
  static constexpr std::size_t kMostOutstanding = 64;
  static constexpr Nanoseconds kLongestLookBack = 1'000'000'000;

  BackgroundLoad(BackgroundOptions options, std::uint64_t sector_count, Random random);

  struct Command {
    bool read = true;
    std::uint64_t sector = 0;
    std::uint64_t sector_count = 0;
  };
  // When the next command comes; kNeverNanoseconds without a load.
  Nanoseconds next() const noexcept { return next_; }
  Command take();
  // Nobody cares what came long before `time`.
  void skip_to(Nanoseconds time);

 private:
  void draw_gap();

  BackgroundOptions options_;
  std::uint64_t places_;
  Random random_;
  Nanoseconds next_;
};

}  // namespace sandbay::model
