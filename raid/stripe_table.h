// StripeTable: who works on which stripe now. Writers of a stripe exclude one another and everybody
// else; readers that need several members of a stripe to match share it. Served in the order of
// arrival, so nobody starves. A stripe that nobody works on costs nothing.
//
// Host writes wait in their stripe's queue and whoever writes the stripe next takes all of them
// together, so neighbouring small writes become one large one.
//
// Used on one executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "block/block_device.h"
#include "raid/stripe_plan.h"
#include "runtime/buffer.h"
#include "runtime/frame_pool.h"
#include "runtime/sync.h"
#include "runtime/task.h"

namespace sandbay::raid {

struct HostWrite;

// The part of a host's write that falls into one chunk of one stripe.
struct WritePiece : FramePooled {
  HostWrite* whole = nullptr;
  Fragment fragment;
  Extent extent;  // What the host wants written; the fragment may grow to whole cells.
  BufferList data;
  bool force_unit_access = false;
  Origin origin = Origin::kHost;
  WritePiece* next = nullptr;
};

struct StripeEntry : FramePooled {
  std::uint64_t stripe = 0;
  StripeEntry* next = nullptr;  // In its bucket.
  unsigned users = 0;           // Holders and waiters.
  unsigned readers = 0;         // Holders of it shared.
  bool exclusive = false;       // Held by one.
  bool writer_running = false;  // Somebody takes the queue.
  WritePiece* first_piece = nullptr;
  WritePiece* last_piece = nullptr;
  struct Waiter;
  Waiter* first_waiter = nullptr;
  Waiter* last_waiter = nullptr;
};

class StripeTable {
 public:
  StripeTable();
  ~StripeTable();
  StripeTable(const StripeTable&) = delete;
  StripeTable& operator=(const StripeTable&) = delete;

  // Finds or makes the stripe's entry; it stays until as many leave() calls.
  StripeEntry& enter(std::uint64_t stripe);
  void leave(StripeEntry& entry);

  // Whoever has entered may lock; unlock before leaving.
  Task<void> lock(StripeEntry& entry);
  void unlock(StripeEntry& entry);
  Task<void> lock_shared(StripeEntry& entry);
  void unlock_shared(StripeEntry& entry);

  // Somebody writes the stripe or waits to.
  bool being_written(std::uint64_t stripe) const noexcept {
    if (count_ == 0) return false;
    const StripeEntry* entry = find(stripe);
    return entry != nullptr && (entry->exclusive || entry->first_piece != nullptr);
  }
  std::size_t size() const noexcept { return count_; }

 private:
  static constexpr std::size_t kBuckets = 4096;

  StripeEntry* find(std::uint64_t stripe) const noexcept;
  static std::size_t bucket(std::uint64_t stripe) noexcept {
    return static_cast<std::size_t>(stripe * 0x9e3779b97f4a7c15U >> 52U);
  }
  void admit(StripeEntry& entry);

  std::unique_ptr<StripeEntry*[]> buckets_;
  std::size_t count_ = 0;
};

// Holds a stripe for one scope; locked before, unlocked and left at its end.
class StripeHold {
 public:
  StripeHold(StripeTable& table, StripeEntry& entry, bool shared) noexcept
      : table_(&table), entry_(&entry), shared_(shared) {}
  StripeHold(const StripeHold&) = delete;
  StripeHold& operator=(const StripeHold&) = delete;
  ~StripeHold() {
    if (shared_) {
      table_->unlock_shared(*entry_);
    } else {
      table_->unlock(*entry_);
    }
    table_->leave(*entry_);
  }

 private:
  StripeTable* table_;
  StripeEntry* entry_;
  bool shared_;
};

}  // namespace sandbay::raid
