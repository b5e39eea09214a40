// WriteMemory and the room in its log.
//
// The log is a ring: room comes back at its tail, and a write that stays for long (its drives are
// gone) would keep the tail and in the end all of the room. Its record is then appended anew with
// the same order, and the old one released: what counts in recovery is the order, not the place in
// the log.
//
// A part of the log is reserved for that. Appends leave it free and wait here, not in the log, so
// that records can be moved while others wait; whoever waits has records moved and his owner bring
// writes to the drives. Many records are moved at once, for one sync of the image.
#include <algorithm>
#include <array>
#include <cassert>

#include "cache/write_memory.h"
#include "cache/write_record.h"
#include "nvram/record_layout.h"

namespace sandbay::cache {
namespace {

constexpr std::size_t kMovesAtOnce = 64;
constexpr unsigned kBatchesAtOnce = 8;
// The reserve: an eighth of the log, but where that is little for the largest records, a quarter.
constexpr std::uint64_t kLeastReserve = 16 * 1024;
constexpr Duration kLogPatience = std::chrono::seconds(1);

}  // namespace

// The new record of a write that is moved, in both logs; 0: there is none.
struct WriteMemory::Move {
  std::uint32_t slot = 0;
  std::uint64_t primary = 0;
  std::uint64_t mirror = 0;
};

struct WriteMemory::Batch {
  std::array<Move, kMovesAtOnce> moves{};
  std::size_t count = 0;
  std::size_t pending = 0;
  Condition arrived;
};

std::uint64_t WriteMemory::log_bytes(std::size_t slice_count) {
  return nvram::record_bytes(descriptor_bytes(slice_count), 0);
}

std::uint64_t WriteMemory::log_bytes_of(const Entry& entry) {
  return log_bytes(entry.data.slice_count());
}

std::uint64_t WriteMemory::free_log_bytes() const noexcept {
  const std::uint64_t free = primary_.log->free_bytes();
  if (!mirrored()) return free;
  const std::uint64_t there = mirror_.log->free_bytes();
  return std::min(free, there - std::min(promised_, there));
}

std::uint64_t WriteMemory::reserved_log_bytes() const noexcept {
  const std::uint64_t capacity = primary_.log->capacity_bytes();
  return std::max(capacity / 8, std::min(capacity / 4, kLeastReserve));
}

// Twice its size: at the ring's end a record begins the next lap.
bool WriteMemory::has_log_room(std::uint64_t byte_count) const noexcept {
  return free_log_bytes() >= reserved_log_bytes() + 2 * byte_count;
}

// Ends, with room for the record, in the turn in which the caller goes on and takes it.
Task<Error> WriteMemory::wait_for_log(std::uint64_t byte_count, Patience patience) {
  LogWaiter waiter{.turn = {}};
  const bool first = first_log_waiter_ == nullptr;
  (first ? first_log_waiter_ : last_log_waiter_->next) = &waiter;
  last_log_waiter_ = &waiter;
  if (first && on_short_of_log) on_short_of_log();
  Executor& home = primary_.nvram->home();
  const TimePoint deadline = home.now() + kLogPatience;
  Error error = Error::kNone;
  for (;;) {
    make_log_room();
    error = stopping_ ? Error::kClosed : failure();
    if (error == Error::kNone) error = patience.end();
    if (error != Error::kNone) break;
    if (first_log_waiter_ == &waiter && has_log_room(byte_count)) break;
    if (home.now() >= deadline) {
      error = Error::kTimedOut;
      break;
    }
    co_await patience.wait(&waiter.turn, deadline);
  }
  leave_log_queue(waiter);
  co_return error;
}

void WriteMemory::leave_log_queue(LogWaiter& waiter) {
  LogWaiter** link = &first_log_waiter_;
  LogWaiter* before = nullptr;
  while (*link != &waiter) {
    before = *link;
    link = &before->next;
  }
  *link = waiter.next;
  if (last_log_waiter_ == &waiter) last_log_waiter_ = before;
  wake_log_waiter();
}

void WriteMemory::wake_log_waiter() {
  if (first_log_waiter_ != nullptr) first_log_waiter_->turn.notify_all();
}

// Moving --------------------------------------------------------------------------------------

// Appends may soon come to the reserve, and not all that is taken is live.
bool WriteMemory::moving_helps() const noexcept {
  const std::uint64_t capacity = primary_.log->capacity_bytes();
  const std::uint64_t free = free_log_bytes();
  return free <= 2 * reserved_log_bytes() && free + live_log_bytes_ + capacity / 32 <= capacity;
}

void WriteMemory::make_log_room() {
  if (!moving_ && oldest_ != 0 && moving_helps()) spawn(move_records());
}

// Each at most once: what does not help then does not help at all.
Task<void> WriteMemory::move_records() {
  if (!gate_.enter()) co_return;
  const GateHold hold(gate_);
  moving_ = true;
  std::size_t left = live_count_;
  unsigned batches = 0;
  while (left > 0 && moving_helps() && failure() == Error::kNone && !stopping_) {
    const std::size_t moved = co_await move_batch(left);
    if (moved == 0) break;
    left -= moved;
    co_await commit_moves();
    wake_log_waiter();
    // It may be a long way to the first that is dead.
    if (++batches % kBatchesAtOnce == 0) co_await primary_.nvram->home().yield();
  }
  moving_ = false;
}

// The oldest records, as many as fit. How many.
Task<std::size_t> WriteMemory::move_batch(std::size_t most) {
  Batch batch;
  std::uint64_t room = free_log_bytes();
  while (batch.count < std::min(most, kMovesAtOnce) && oldest_ != 0) {
    const std::uint32_t slot = oldest_;
    Entry& entry = entries_[slot];
    const std::uint64_t bytes = 2 * log_bytes_of(entry);
    if (entry.moving || bytes > room) break;
    room -= bytes;
    entry.moving = true;
    unlink(slot);
    link_newest(slot);
    batch.moves[batch.count++].slot = slot;
  }
  batch.pending = batch.count;
  for (std::size_t i = 0; i < batch.count; ++i) spawn(move_record(&batch.moves[i], &batch));
  while (batch.pending > 0) co_await batch.arrived.wait();
  // The old records first, then what was released meanwhile, in its order.
  for (std::size_t i = 0; i < batch.count; ++i) end_move(batch.moves[i]);
  for (const std::uint32_t slot : held_releases_) release_now(slot);
  held_releases_.clear();
  releases_made_.notify_all();
  final_changed_.notify_all();
  co_return batch.count;
}

Task<void> WriteMemory::move_record(Move* move, Batch* batch) {
  const std::uint64_t byte_count = log_bytes_of(entries_[move->slot]);
  promised_ += byte_count;
  const Result<std::uint64_t> first = co_await append_to(&primary_, move->slot);
  if (first) move->primary = *first;
  if (first && mirrored()) {
    const Result<std::uint64_t> second = co_await append_to(&mirror_, move->slot);
    if (second) move->mirror = *second;
    if (!second && mirrored()) drop_mirror();
  }
  promised_ -= byte_count;
  if (--batch->pending == 0) batch->arrived.notify_all();
}

// The mirror's record goes first, as in every release.
void WriteMemory::end_move(const Move& move) {
  Entry& entry = entries_[move.slot];
  entry.moving = false;
  if (move.mirror != 0 && mirrored()) {
    if (entry.mirror != 0) mirror_.log->release({entry.mirror});
    entry.mirror = move.mirror;
  }
  if (move.primary == 0) return;
  if (entry.primary != 0) primary_.log->release({entry.primary});
  entry.primary = move.primary;
}

// Only then the room of the old records is free.
Task<void> WriteMemory::commit_moves() {
  if (mirrored()) {
    const Error error = co_await mirror_.nvram->commit();
    if (error != Error::kNone && mirrored()) drop_mirror();
  }
  (void)co_await primary_.nvram->commit();  // An error is failure().
}

}  // namespace sandbay::cache
