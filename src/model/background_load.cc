// Exponential gaps and uniform places, from a stream of their own.
#include "model/background_load.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "model/drive_model.h"

namespace sandbay::model {

BackgroundLoad::BackgroundLoad(BackgroundOptions options, std::uint64_t sector_count, Random random)
    : options_(options),
      places_(std::max<std::uint64_t>(sector_count * kSectorBytes / options.bytes, 1)),
      random_(random),
      next_(options.commands_per_second > 0 ? 0 : kNeverNanoseconds) {
  assert(options.bytes >= kSectorBytes && options.bytes % kSectorBytes == 0);
  assert(options.bytes <= sector_count * kSectorBytes);
  if (next_ == 0) draw_gap();
}

void BackgroundLoad::draw_gap() {
  const double gap = -std::log1p(-random_.unit()) / options_.commands_per_second * 1e9;
  next_ += std::max(Nanoseconds{1}, static_cast<Nanoseconds>(std::min(gap, 1e15)));
}

BackgroundLoad::Command BackgroundLoad::take() {
  const std::uint64_t sectors = options_.bytes / kSectorBytes;
  const Command command{.read = random_.chance(options_.read_share),
                        .sector = random_.below(places_) * sectors,
                        .sector_count = sectors};
  draw_gap();
  return command;
}

void BackgroundLoad::skip_to(Nanoseconds time) {
  if (next_ >= time) return;  // Without memory, so that the process may as well begin here.
  next_ = time;
  draw_gap();
}

}  // namespace sandbay::model
