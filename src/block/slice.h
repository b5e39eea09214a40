// Slice: a run of blocks of the device below as a device of its own. Several slices that do not
// overlap share one device, as volumes share a RAID set.
//
// Block n is block first + n of the device below, on the way down and, in first_bad_lba, on the way
// up. The extent of a flush is a hint and may be anything: one that is not the slice's becomes the
// whole slice. A request that names no volume gets the slice's. Everything else of it stays as it
// is. The geometry is that of the device below, also as its caches change, but for the size.
#pragma once

#include "block/layer.h"

namespace sandbay {

class Slice final : public Layer {
 public:
  // The extent lies within the device below and is not empty. `volume` numbers whose I/O it is, for
  // the layers below; 0: nobody's in particular.
  Slice(BlockDevice& below, Extent extent, std::uint64_t volume = 0);

  const Geometry& geometry() const noexcept override;
  Task<Completion> submit(Request request) override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;

  const Extent& extent() const noexcept { return extent_; }
  // Makes it longer; the blocks behind it belong to nobody else. Home executor.
  void grow(std::uint64_t block_count);

 private:
  Extent extent_;
  std::uint64_t volume_;
  mutable Geometry geometry_;
};

}  // namespace sandbay
