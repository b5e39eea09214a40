// VolumeFront: what initiators meet first of a volume, whatever it stands on: whether it is online
// and takes writes, both of which may change while it is used, and whose requests these are.
//
// An offline volume answers NOT READY and keeps its initiators. Nothing is allocated, copied or
// awaited for a request that passes.
#pragma once

#include "block/layer.h"

namespace sandbay::group {

class VolumeFront final : public Layer {
 public:
  // `volume`: its number in requests.
  VolumeFront(BlockDevice& below, std::uint64_t volume) : Layer(below), volume_(volume) {}

  void allow(bool online, bool writes) noexcept {
    online_ = online;
    writes_ = writes;
  }
  bool online() const noexcept { return online_; }
  bool takes_writes() const noexcept { return writes_; }

  const Geometry& geometry() const noexcept override;
  bool serves() const noexcept override { return online_ && below().serves(); }
  Task<Completion> submit(Request request) override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;

 private:
  static Task<Completion> refuse(Request request, Error error);
  static Task<Result<ProvisioningRun>> unknown();

  std::uint64_t volume_;
  bool online_ = true;
  bool writes_ = true;
  mutable Geometry geometry_;  // While it is read-only.
};

}  // namespace sandbay::group
