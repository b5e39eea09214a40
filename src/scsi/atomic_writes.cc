// The writes, their undoing, and the places of a unit.
#include "scsi/atomic_writes.h"

#include <utility>

#include "runtime/buffer.h"
#include "runtime/executor.h"
#include "scsi/sense.h"
#include "scsi/waking.h"

namespace sandbay::scsi {

void AtomicWrites::restore(UnitStore& store, std::vector<BlocksBefore> kept) {
  store_ = &store;
  unfinished_ = std::move(kept);
  unsettled_ = unfinished_.size();
}

Task<void> AtomicWrites::resume() {
  if (!gate_.enter()) co_return;
  const GateHold hold(gate_);
  while (!unfinished_.empty() && !closing_.cancelled()) {
    co_await put_back(unfinished_.back());
    const bool dropped = co_await drop(unfinished_.back().first);
    if (!dropped) co_return;
    unfinished_.pop_back();
    --unsettled_;
  }
}

AtomicWrites::Place::~Place() {
  if (!has_come_) return;
  --writes_.places_;
  writes_.gate_.leave();
  writes_.left_.notify_all();
}

Task<bool> AtomicWrites::Place::come(Cancellation& cancellation) {
  if (writes_.waiting_ >= kMostWaiting || !writes_.gate_.enter()) co_return false;
  GateHold hold(writes_.gate_);
  const auto has_ended = [&] { return cancellation.cancelled() || writes_.closing_.cancelled(); };
  {
    const Waking waking(&cancellation, writes_.left_);
    ++writes_.waiting_;
    while (writes_.places_ >= kMostAtOnce && !has_ended()) co_await writes_.left_.wait();
    --writes_.waiting_;
  }
  if (has_ended() || !writes_.gate_.enter()) co_return false;
  ++writes_.places_;
  has_come_ = true;
  co_return true;
}

Task<Error> AtomicWrites::keep(BlocksBefore before) {
  co_return co_await store_->keep_blocks(std::move(before));
}

Task<bool> AtomicWrites::drop(Lba first) {
  while (!closing_.cancelled()) {
    const Error error = co_await store_->drop_blocks(first);
    if (error == Error::kNone) co_return true;
    co_await pause(device_.home(), closing_, left_);
  }
  co_return false;
}

Task<Completion> AtomicWrites::put(Extent extent, BufferList data) {
  Cancellation cancellation;
  under_way_.push_back(&cancellation);
  Completion completion = co_await device_.submit({.operation = Operation::kWrite,
                                                   .force_unit_access = true,
                                                   .extent = extent,
                                                   .data = std::move(data),
                                                   .cancellation = &cancellation});
  std::erase(under_way_, &cancellation);
  co_return completion;
}

// A device that has failed for good has no blocks that could be whole.
Task<void> AtomicWrites::put_back(BlocksBefore before) {
  const unsigned content = contents_;
  const std::uint64_t block_bytes = device_.geometry().block_bytes;
  const Extent extent{before.first, before.data.size() / block_bytes};
  while (!closing_.cancelled() && content == contents_) {
    BufferList data = co_await device_.home().buffers().allocate(before.data.size());
    data.copy_from(before.data);
    const Completion completion = co_await put(extent, std::move(data));
    const bool may_come = comes_back(completion.error) || completion.error == Error::kNoSpace;
    if (!may_come) co_return;
    co_await pause(device_.home(), closing_, left_);
  }
}

Task<Completion> AtomicWrites::write(Extent extent, BufferList data, BlocksBefore before) {
  const unsigned content = contents_;
  Completion completion = co_await put(extent, std::move(data));
  if (completion.error != Error::kNone && content == contents_) {
    ++unsettled_;
    co_await put_back(std::move(before));
    --unsettled_;
  }
  co_return completion;
}

void AtomicWrites::content_replaced() {
  ++contents_;
  const std::vector<Cancellation*> under_way = under_way_;
  for (Cancellation* const each : under_way) each->cancel();
  left_.notify_all();
}

Task<bool> AtomicWrites::drain(TimePoint deadline) {
  bool in_time = true;
  while (places_ != 0 && in_time) in_time = co_await left_.wait_until(deadline);
  co_return places_ == 0;
}

void AtomicWrites::cancel() {
  closing_.cancel();
  left_.notify_all();
}

Task<bool> AtomicWrites::close(TimePoint deadline) {
  co_return co_await gate_.close_until(deadline);
}

}  // namespace sandbay::scsi
