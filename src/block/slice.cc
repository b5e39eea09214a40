// Only addresses are translated.
#include "block/slice.h"

#include <algorithm>
#include <cassert>

namespace sandbay {

Slice::Slice(BlockDevice& below_device, Extent extent, std::uint64_t volume)
    : Layer(below_device), extent_(extent), volume_(volume), geometry_(below_device.geometry()) {
  assert(extent_.block_count > 0);
  assert(extent_.first <= geometry_.block_count);
  assert(extent_.block_count <= geometry_.block_count - extent_.first);
  geometry_.block_count = extent_.block_count;
}

const Geometry& Slice::geometry() const noexcept {
  const Geometry& now = below().geometry();
  geometry_.volatile_cache = now.volatile_cache;
  geometry_.non_volatile_cache = now.non_volatile_cache;
  return geometry_;
}

Task<Completion> Slice::submit(Request request) {
  if (request.operation == Operation::kFlush && !fits(geometry_, request)) {
    request.extent = {.first = 0, .block_count = extent_.block_count};
  }
  assert(fits(geometry_, request));
  request.extent.first += extent_.first;
  if (request.volume == 0) request.volume = volume_;
  Completion completion = co_await below().submit(std::move(request));
  // Elsewhere it says nothing and may be anything. What comes from a drive may be anything here,
  // too.
  if (completion.error == Error::kMediumError || completion.error == Error::kMiscompare) {
    const Lba bad = std::max(completion.first_bad_lba, extent_.first) - extent_.first;
    completion.first_bad_lba = std::min(bad, extent_.block_count - 1);
  }
  co_return completion;
}

Task<Result<ProvisioningRun>> Slice::provisioning(Lba first, Lba limit) {
  assert(first < extent_.block_count);
  const Lba end = std::min<Lba>(limit, extent_.block_count);
  auto run = co_await below().provisioning(extent_.first + first, extent_.first + end);
  if (run) run->block_count = std::min(run->block_count, extent_.block_count - first);
  co_return run;
}

void Slice::grow(std::uint64_t block_count) {
  assert(block_count >= extent_.block_count);
  assert(block_count <= below().geometry().block_count - extent_.first);
  extent_.block_count = block_count;
  geometry_.block_count = block_count;
}

}  // namespace sandbay
