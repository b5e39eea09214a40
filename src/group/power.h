// Power: what a power cut by a fault rule takes away from everything at one instant. Once it is
// off, nothing that passes here is answered any more, also nothing that was asked before. The
// process ends soon after.
#pragma once

#include "block/block_device.h"
#include "runtime/sync.h"

namespace sandbay::group {

class Power {
 public:
  bool off() const noexcept { return off_; }
  void turn_off() noexcept { off_ = true; }

  // `below` answers as long as there is power.
  Task<Completion> pass(BlockDevice* below, Request request) {
    if (off_) co_await never_.wait();
    Completion completion = co_await below->submit(std::move(request));
    if (off_) co_await never_.wait();
    co_return completion;
  }

 private:
  bool off_ = false;
  Event never_;
};

}  // namespace sandbay::group
