// Layer: a block device that stands on another and forwards everything. A layer overrides the one
// or two operations in which it differs, and always passes on the rest of the request unchanged:
// its flags, origin and cancellation.
#pragma once

#include <string>

#include "block/block_device.h"

namespace sandbay {

class Layer : public BlockDevice {
 public:
  // Borrows the device below, which outlives this one.
  explicit Layer(BlockDevice& below) : below_(below) {}

  Executor& home() const noexcept override { return below_.home(); }
  const Geometry& geometry() const noexcept override { return below_.geometry(); }
  Health health() const noexcept override { return below_.health(); }
  bool serves() const noexcept override { return below_.serves(); }
  TimePoint busy_since() const noexcept override { return below_.busy_since(); }
  std::string description() const override { return below_.description(); }
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    return below_.provisioning(first, limit);
  }
  BufferList write_buffers(std::size_t byte_count) override {
    return below_.write_buffers(byte_count);
  }

  // Sorts by operation. Not a coroutine: a layer costs nothing for what it does not touch.
  Task<Completion> submit(Request request) override;

 protected:
  BlockDevice& below() const noexcept { return below_; }

  virtual Task<Completion> read(Request request) { return below_.submit(std::move(request)); }
  virtual Task<Completion> write(Request request) { return below_.submit(std::move(request)); }
  virtual Task<Completion> flush(Request request) { return below_.submit(std::move(request)); }
  virtual Task<Completion> unmap(Request request) { return below_.submit(std::move(request)); }
  virtual Task<Completion> write_zeroes(Request request) {
    return below_.submit(std::move(request));
  }
  virtual Task<Completion> advise(Request request) { return below_.submit(std::move(request)); }

 private:
  BlockDevice& below_;
};

}  // namespace sandbay
