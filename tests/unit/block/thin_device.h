// ThinDevice: a device on a filesystem of limited size. A block that was not written has no place
// yet; one that gets a place takes a block of the room, and without room writing it fails with
// kNoSpace. Others may take room away at any time.
#pragma once

#include <set>

#include "block/layer.h"

namespace sandbay::testing {

class ThinDevice final : public Layer {
 public:
  ThinDevice(BlockDevice& below, std::uint64_t room_blocks) : Layer(below), room_(room_blocks) {}

  void set_room(std::uint64_t blocks) { room_ = blocks; }  // Taken blocks included.
  std::uint64_t taken() const { return mapped_.size(); }

  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    const bool mapped = mapped_.contains(first);
    Lba end = first + 1;
    while (end < limit && mapped_.contains(end) == mapped) ++end;
    co_return ProvisioningRun{.block_count = end - first, .mapped = mapped};
  }

 protected:
  Task<Completion> write(Request request) override { return place(std::move(request)); }
  Task<Completion> write_zeroes(Request request) override { return place(std::move(request)); }
  Task<Completion> unmap(Request request) override {
    for (Lba lba = request.extent.first; lba < request.extent.end(); ++lba) mapped_.erase(lba);
    request.operation = Operation::kWriteZeroes;
    return below().submit(std::move(request));
  }

 private:
  Task<Completion> place(Request request) {
    for (Lba lba = request.extent.first; lba < request.extent.end(); ++lba) {
      if (mapped_.contains(lba)) continue;
      if (mapped_.size() >= room_) {
        co_return Completion{.error = Error::kNoSpace, .data = std::move(request.data)};
      }
      mapped_.insert(lba);
    }
    co_return co_await below().submit(std::move(request));
  }

  std::uint64_t room_;
  std::set<Lba> mapped_;
};

}  // namespace sandbay::testing
