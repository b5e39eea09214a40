// ReadAhead: a layer at a volume that finds streams among its reads and sends advice down, where a
// cache fetches what will be asked for.
//
// It stands above everything that maps the volume's blocks, so that a stream does not end where the
// mapping does. Reads pass unchanged and never wait for it: the advice follows the read that gave
// rise to it. Only the host's own reads count, and none with FUA.
#pragma once

#include "block/layer.h"
#include "cache/stream_detector.h"
#include "runtime/sync.h"

namespace sandbay::cache {

class ReadAhead final : public Layer {
 public:
  // Borrows both; the budget belongs to the same executor. Stripes are those of the device below.
  ReadAhead(BlockDevice& below, StreamBudget& budget);

  // The volume has become larger.
  void grow() { detector_.grow(geometry().block_count); }
  // Ends when no advice is on its way. No read is in flight, and none comes.
  Task<void> close() { return gate_.close(); }

  const StreamCounters& counters() const noexcept { return detector_.counters(); }
  std::size_t stream_count() const noexcept { return detector_.stream_count(); }

 protected:
  Task<Completion> read(Request request) override;

 private:
  Task<void> send(Extent extent, std::uint64_t volume);

  StreamDetector detector_;
  Gate gate_;
};

}  // namespace sandbay::cache
