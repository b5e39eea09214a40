// The writes, their undoing, and the places of a unit.
#include "scsi/atomic_writes.h"

#include <algorithm>
#include <span>
#include <utility>

#include "runtime/buffer.h"
#include "runtime/executor.h"
#include "scsi/sense.h"
#include "scsi/waking.h"

namespace sandbay::scsi {

void AtomicWrites::restore(UnitStore& store, std::vector<BlocksBefore> kept) {
  store_ = &store;
  for (BlocksBefore& each : kept) torn_.push_back({.before = std::move(each)});
  starts_ = !torn_.empty();
}

Task<void> AtomicWrites::resume() {
  if (!gate_.enter()) co_return;
  mends_ = true;
  co_await mend();
}

Extent AtomicWrites::extent_of(const BlocksBefore& before) const noexcept {
  return {before.first, before.data.size() / device_.geometry().block_bytes};
}

bool AtomicWrites::is_torn(const Extent& extent) const noexcept {
  return std::ranges::any_of(
      torn_, [&](const Torn& each) { return extent_of(each.before).overlaps(extent); });
}

AtomicWrites::Place::~Place() {
  if (!has_come_) return;
  --writes_.places_;
  writes_.gate_.leave();
  writes_.left_.notify_all();
}

Task<bool> AtomicWrites::Place::come(Cancellation& cancellation) {
  const auto is_full = [&] { return writes_.torn_.size() >= kMostAtOnce; };
  if (writes_.waiting_ >= kMostWaiting || is_full() || !writes_.gate_.enter()) co_return false;
  GateHold hold(writes_.gate_);
  const auto has_ended = [&] {
    return is_full() || cancellation.cancelled() || writes_.closing_.cancelled();
  };
  {
    const Waking waking(&cancellation, writes_.left_);
    ++writes_.waiting_;
    while (writes_.places_ + writes_.torn_.size() >= kMostAtOnce && !has_ended()) {
      co_await writes_.left_.wait();
    }
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
    co_await pause(device_.home(), closing_, again_);
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

Task<bool> AtomicWrites::put_back_run(Extent extent, std::vector<std::byte> data,
                                      unsigned content) {
  BufferList buffer = co_await device_.home().buffers().allocate(data.size());
  if (content != contents_) co_return true;
  buffer.copy_from(data);
  const Completion completion = co_await put(extent, std::move(buffer));
  co_return completion.error == Error::kNone;
}

// What the device has not changed needs neither room nor luck. False: some blocks may still be new.
Task<bool> AtomicWrites::put_back(BlocksBefore before) {
  clip(before);
  const unsigned content = contents_;
  const std::size_t block_bytes = device_.geometry().block_bytes;
  const Extent whole = extent_of(before);
  if (whole.block_count == 0) co_return true;
  Completion read = co_await device_.submit(
      {.operation = Operation::kRead,
       .extent = whole,
       .data = co_await device_.home().buffers().allocate(before.data.size())});
  std::vector<std::byte> now(before.data.size());
  if (read.error == Error::kNone) read.data.copy_to(now);
  read.data = {};
  const auto is_same = [&](std::size_t block) {
    const auto at = static_cast<std::ptrdiff_t>(block * block_bytes);
    const auto size = static_cast<std::ptrdiff_t>(block_bytes);
    return read.error == Error::kNone &&
           std::equal(now.begin() + at, now.begin() + at + size, before.data.begin() + at);
  };
  for (std::size_t begin = 0; begin < whole.block_count;) {
    std::size_t end = begin;
    while (end < whole.block_count && !is_same(end)) ++end;
    if (end == begin) {
      ++begin;
      continue;
    }
    const auto part =
        std::span(before.data).subspan(begin * block_bytes, (end - begin) * block_bytes);
    const bool done =
        co_await put_back_run({whole.first + begin, end - begin},
                              std::vector<std::byte>(part.begin(), part.end()), content);
    if (!done) co_return content != contents_;
    begin = end;
  }
  const Completion flushed =
      co_await device_.submit({.operation = Operation::kFlush, .extent = whole});
  co_return flushed.error == Error::kNone || content != contents_;
}

// Entered before.
Task<void> AtomicWrites::mend() {
  const GateHold hold(gate_);
  while (!torn_.empty() && !closing_.cancelled()) {
    for (std::size_t i = 0; i < torn_.size() && !closing_.cancelled();) {
      bool whole = torn_[i].is_void;
      if (!whole) whole = co_await put_back(torn_[i].before);
      if (!whole) {
        ++i;
        continue;
      }
      const bool dropped = co_await drop(torn_[i].before.first);
      if (!dropped) co_return;
      torn_.erase(torn_.begin() + static_cast<std::ptrdiff_t>(i));
      left_.notify_all();
    }
    starts_ = false;
    if (!torn_.empty()) co_await pause(device_.home(), closing_, again_);
  }
  starts_ = mends_ = false;
}

Task<Completion> AtomicWrites::write(Extent extent, BufferList data, BlocksBefore before) {
  const unsigned content = contents_;
  Completion completion = co_await put(extent, std::move(data));
  if (completion.error == Error::kNone || content != contents_) co_return completion;
  const bool whole = co_await put_back(before);
  if (whole) co_return completion;
  store_->note_torn(extent, completion.error);
  torn_.push_back({.before = std::move(before)});
  if (!std::exchange(mends_, true) && gate_.enter()) spawn(mend());
  co_return completion;
}

void AtomicWrites::content_replaced() {
  ++contents_;
  const std::vector<Cancellation*> under_way = under_way_;
  for (Cancellation* const each : under_way) each->cancel();
  for (Torn& each : torn_) each.is_void = true;
  again_.notify_all();
}

Task<bool> AtomicWrites::drain(TimePoint deadline) {
  bool in_time = true;
  while (places_ != 0 && in_time) in_time = co_await left_.wait_until(deadline);
  co_return places_ == 0;
}

// To what the device has of it.
void AtomicWrites::clip(BlocksBefore& before) const {
  const std::uint64_t blocks = device_.geometry().block_count;
  if (extent_of(before).end() <= blocks) return;
  const std::uint64_t left = before.first < blocks ? blocks - before.first : 0;
  before.data.resize(left * device_.geometry().block_bytes);
}

void AtomicWrites::capacity_changed() {
  for (Torn& each : torn_) clip(each.before);
}

Task<bool> AtomicWrites::settle(TimePoint deadline) {
  content_replaced();
  bool in_time = true;
  while ((places_ != 0 || !torn_.empty()) && in_time) in_time = co_await left_.wait_until(deadline);
  co_return places_ == 0 && torn_.empty();
}

void AtomicWrites::cancel() {
  closing_.cancel();
  left_.notify_all();
  again_.notify_all();
}

Task<bool> AtomicWrites::close(TimePoint deadline) {
  co_return co_await gate_.close_until(deadline);
}

}  // namespace sandbay::scsi
