// Buffers: reference-counted slices of aligned memory from a pool with a hard limit.
//
// A pool belongs to one executor and hands out blocks of seven sizes, 512 bytes to 1 MiB, each
// aligned to its size or 4 KiB, whichever is less. Counts are not atomic: all slices of one block
// live on one executor at a time. A slice may cross to another executor only if it is the
// block's sole one (`unique()`); wherever the last slice dies, the block goes home by message.
//
// Backing memory is taken in slabs of 2 MiB. The limit counts slabs, so what the pool holds never
// exceeds it; a slab all of whose blocks are free can serve another size.
//
// Reservations are promises of memory to transfers that have been solicited: try_reserve() counts
// against three quarters of the limit, and so does what waits in allocate(); the promise is
// redeemed by try_allocate() followed by unreserve().
//
// A data-less pool hands out slices that have a length and an address and no memory behind it: for
// long runs in virtual time in which content is nobody's concern. Copying, clearing and comparing
// pass over such slices, parity leaves them out, and whoever touches one all the same dies of it. A
// request's buffers and those of the layers that it goes through are data-less together or not.
//
// A pool can also stand over memory that was given to it, such as a part of an NVRAM image: then
// its slabs are pieces of that memory, and content that was there before can be adopted. Such
// memory is scarce: lists are made of blocks that they fill.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "runtime/huge_pages.h"
#include "runtime/message.h"
#include "runtime/task.h"

namespace sandbay {

class BufferPool;
class Executor;

// A piece of memory as the kernel takes it; laid out as struct iovec.
struct IoSlice {
  std::byte* data = nullptr;
  std::size_t byte_count = 0;
};

// The sum over all of them.
inline std::size_t byte_count_of(std::span<const IoSlice> slices) noexcept {
  std::size_t byte_count = 0;
  for (const IoSlice& slice : slices) byte_count += slice.byte_count;
  return byte_count;
}

namespace detail {
struct BufferBlock {
  BufferPool* pool = nullptr;
  std::byte* memory = nullptr;
  BufferBlock* next_free = nullptr;
  std::uint32_t references = 0;
  std::uint8_t size_class = 0;
  bool data_less = false;
  std::uint32_t slab = 0;
  Message going_home;
};
}  // namespace detail

// One slice; copying it shares the block.
class Buffer {
 public:
  Buffer() noexcept = default;
  Buffer(const Buffer& other) noexcept
      : block_(other.block_), data_(other.data_), byte_count_(other.byte_count_) {
    if (block_ != nullptr) ++block_->references;
  }
  Buffer(Buffer&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        byte_count_(std::exchange(other.byte_count_, 0)) {}
  Buffer& operator=(const Buffer& other) noexcept {
    Buffer copy(other);
    return *this = std::move(copy);
  }
  Buffer& operator=(Buffer&& other) noexcept {
    if (this == &other) return *this;
    release();
    block_ = std::exchange(other.block_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    byte_count_ = std::exchange(other.byte_count_, 0);
    return *this;
  }
  ~Buffer() { release(); }

  std::byte* data() const noexcept { return data_; }
  std::size_t byte_count() const noexcept { return byte_count_; }
  bool empty() const noexcept { return byte_count_ == 0; }
  bool unique() const noexcept { return block_ == nullptr || block_->references == 1; }
  bool data_less() const noexcept { return block_ != nullptr && block_->data_less; }
  // Asks for what counts the slices: this one will go soon.
  void prefetch() const noexcept { __builtin_prefetch(block_, 1); }
  std::span<std::byte> bytes() const noexcept { return {data_, byte_count_}; }

  // A part of this slice; offset + length lie within it.
  Buffer slice(std::size_t offset, std::size_t byte_count) const {
    assert(offset <= byte_count_ && byte_count <= byte_count_ - offset);
    Buffer part = *this;
    part.data_ += offset;
    part.byte_count_ = byte_count;
    return part;
  }
  void truncate(std::size_t byte_count) {
    assert(byte_count <= byte_count_);
    byte_count_ = byte_count;
  }

 private:
  friend class BufferPool;
  Buffer(detail::BufferBlock* block, std::byte* data, std::size_t byte_count) noexcept
      : block_(block), data_(data), byte_count_(byte_count) {}
  void release() noexcept {
    if (block_ == nullptr) return;
    assert(block_->references > 0);
    if (--block_->references == 0) recycle();
    block_ = nullptr;
  }
  void recycle() noexcept;  // The last slice has gone.

  detail::BufferBlock* block_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t byte_count_ = 0;
};

// A payload: slices in order. The first two stand inside the object, so that a transfer out of one
// or two blocks needs no further memory, and moving it, which every layer does, costs little; the
// others stand in the frame pool, so that no list costs an allocation.
class BufferList {
 public:
  BufferList() noexcept {}
  explicit BufferList(Buffer only) noexcept {
    if (only.empty()) return;
    byte_count_ = only.byte_count();
    new (&inline_[0].buffer) Buffer(std::move(only));
    count_ = 1;
  }
  BufferList(BufferList&& other) noexcept { take(other); }
  BufferList& operator=(BufferList&& other) noexcept {
    if (this == &other) return *this;
    clear();
    take(other);
    return *this;
  }
  BufferList(const BufferList&) = delete;
  BufferList& operator=(const BufferList&) = delete;
  ~BufferList() {
    if (count_ > 0) destroy_slices();
  }

  std::size_t byte_count() const noexcept { return byte_count_; }
  std::size_t slice_count() const noexcept { return count_; }
  bool empty() const noexcept { return byte_count_ == 0; }
  bool data_less() const noexcept { return count_ > 0 && inline_[0].buffer.data_less(); }
  const Buffer& operator[](std::size_t index) const {
    assert(index < count_);
    return index < kInline ? inline_[index].buffer : more_[index - kInline];
  }

  void append(Buffer slice) {
    if (slice.empty()) return;
    byte_count_ += slice.byte_count();
    if (count_ < kInline) {
      new (&inline_[count_].buffer) Buffer(std::move(slice));
    } else {
      append_more(std::move(slice));
    }
    ++count_;
  }
  void append(BufferList&& other);
  void clear() noexcept {
    if (count_ == 0) return;
    destroy_slices();
    count_ = 0;
    byte_count_ = 0;
  }
  // Another list that shares [offset, offset + byte_count).
  BufferList share(std::size_t offset, std::size_t byte_count) const {
    if (count_ == 1) return BufferList(inline_[0].buffer.slice(offset, byte_count));
    return share_several(offset, byte_count);
  }
  BufferList share() const { return share(0, byte_count_); }
  // Cuts the first byte_count bytes off into a list of their own.
  BufferList take_front(std::size_t byte_count);

  void copy_to(std::span<std::byte> target, std::size_t offset = 0) const;
  void copy_from(std::span<const std::byte> source, std::size_t offset = 0);
  void copy_from(const BufferList& source);  // All of it, to the beginning.
  void fill_zero();
  bool equals(const BufferList& other) const;
  bool unique() const noexcept;

 private:
  static constexpr std::size_t kInline = 2;

  Buffer& at(std::size_t index) {
    return index < kInline ? inline_[index].buffer : more_[index - kInline];
  }
  // This is empty.
  void take(BufferList& other) noexcept {
    if (other.count_ == 0) return;
    new (&inline_[0].buffer) Buffer(std::move(other.inline_[0].buffer));
    if (other.count_ > 1) {
      new (&inline_[1].buffer) Buffer(std::move(other.inline_[1].buffer));
      if (other.count_ > kInline) more_ = other.more_;
    }
    count_ = std::exchange(other.count_, 0);
    byte_count_ = std::exchange(other.byte_count_, 0);
  }

  BufferList share_several(std::size_t offset, std::size_t byte_count) const;
  void append_more(Buffer slice);
  void free_more() noexcept;
  void destroy_slices() noexcept {
    inline_[0].buffer.~Buffer();
    if (count_ > 1) inline_[1].buffer.~Buffer();
    if (count_ > kInline) free_more();
  }

  // Room for a slice; there is one up to count_. So an empty list costs two words, and moving one
  // slice six.
  union Place {
    Place() noexcept {}
    ~Place() {}
    Buffer buffer;
  };
  Place inline_[kInline];
  Buffer* more_;  // Beyond kInline: the others, in pooled memory for a power of two of them.
  std::size_t count_ = 0;
  std::size_t byte_count_ = 0;
};

enum class Content : std::uint8_t { kBytes, kNone };  // kNone: data-less.

class BufferPool {
 public:
  static constexpr std::size_t kSlabBytes = kHugePageBytes;
  static constexpr std::size_t kSmallBytes = std::size_t{64} << 10;
  static constexpr std::size_t kLargestBlock = std::size_t{1} << 20;
  static constexpr std::size_t kListPieceBytes = std::size_t{256} << 10;

  // `home` outlives the pool; `limit_bytes` is rounded down to slabs and at least 8 of them.
  BufferPool(Executor& home, std::size_t limit_bytes, Content content = Content::kBytes);
  // Over `memory`, which outlives the pool, is aligned to 4 KiB and at least 8 slabs long. Slabs
  // are a power of two, kSmallBytes to kSlabBytes; no block is larger than one.
  BufferPool(Executor& home, std::span<std::byte> memory, std::size_t slab_bytes);
  ~BufferPool();  // Every buffer has come home.
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // One contiguous slice of up to kLargestBlock bytes, or an empty one if the limit is reached.
  Buffer try_allocate_contiguous(std::size_t byte_count);
  // Slices of at most kListPieceBytes; an empty list if the limit is reached. byte_count is
  // positive.
  BufferList try_allocate(std::size_t byte_count);
  // Waits, first come first served, until there is room. Ask for at most limit_bytes() / 4. Small
  // ones have a queue of their own, and a part of the pool that large ones leave to them: whoever
  // moves megabytes does not keep others from a block. Both leave a sixteenth to try_allocate(),
  // for those who cannot wait.
  Task<BufferList> allocate(std::size_t byte_count);

  // What stands in the memory that the pool was given, as a slice within one slab. Until the last
  // slice of that slab has gone, nothing else is taken from it. Before the first allocation only.
  Buffer adopt(std::size_t offset, std::size_t byte_count);
  // Whether the slice is of this pool.
  bool owns(const Buffer& slice) const noexcept {
    return slice.block_ != nullptr && slice.block_->pool == this;
  }

  // A promise against the limit, and its end: redeemed by allocating, or given up.
  bool try_reserve(std::size_t byte_count);
  // For those who have next to nothing, and see to it that it stays so: past whoever waits, up to
  // the sixteenth that is for those who cannot wait.
  bool has_room_for_share(std::size_t byte_count) const noexcept {
    return used_bytes_ + reserved_bytes_ + byte_count <= limit_bytes_ / 16 * 15;
  }
  bool try_reserve_share(std::size_t byte_count);
  // Waits in the same queue as allocate(), until cancel(): then it is false, and nothing is
  // reserved. `wait` outlives the call.
  struct Waiter;
  class Wait {
    friend class BufferPool;
    Waiter* waiter_ = nullptr;
  };
  Task<bool> reserve(std::size_t byte_count, Wait& wait);
  void cancel(Wait& wait);
  void unreserve(std::size_t byte_count);

  std::size_t limit_bytes() const noexcept { return limit_bytes_; }
  std::size_t largest_block() const noexcept { return std::min(kLargestBlock, slab_bytes_); }
  std::size_t used_bytes() const noexcept { return used_bytes_; }  // In blocks handed out.
  std::size_t reserved_bytes() const noexcept { return reserved_bytes_; }
  std::size_t waiter_count() const noexcept { return waiters_.size() + small_waiters_.size(); }
  // Those who have nothing yet get the rest.
  bool nearly_full() const noexcept { return used_bytes_ > limit_bytes_ / 16 * 15; }
  // Above three quarters of the limit: refuse new work that can be refused.
  bool under_pressure() const noexcept {
    return used_bytes_ + reserved_bytes_ > limit_bytes_ / 4 * 3;
  }

 private:
  friend class Buffer;
  struct Slab;
  static constexpr std::size_t kClassCount = 7;  // Of buffer.cc's sizes.

  std::byte* take_slab_memory();
  void give_slab_memory(std::byte* memory) noexcept;
  std::uint32_t new_slab(std::byte* memory, std::size_t size_class, std::size_t block_bytes);
  void give_back(detail::BufferBlock* block) noexcept;
  void put_on_free_list(detail::BufferBlock* block) noexcept;
  bool add_slab(std::size_t size_class);
  void retire_slab(std::uint32_t index);
  void wake_waiters();
  std::size_t limit_for(std::size_t byte_count) const noexcept {
    return byte_count <= kSmallBytes ? limit_bytes_ : limit_bytes_ / 8 * 7;
  }
  // For those who can wait.
  bool is_room_for(std::size_t byte_count, std::size_t block_bytes) const noexcept {
    const std::size_t left = limit_bytes_ / 16 / slab_bytes_ * slab_bytes_;
    const std::size_t limit = std::min(limit_for(byte_count), limit_bytes_ - left);
    return used_bytes_ + reserved_bytes_ + block_bytes <= limit;
  }
  void wake(std::deque<Waiter*>& waiters);
  bool grant(Waiter& waiter);
  std::size_t piece_bytes(std::size_t byte_count) const noexcept;
  std::size_t block_bytes_for(std::size_t byte_count) const noexcept;

  Executor& home_;
  Content content_ = Content::kBytes;
  std::size_t slab_bytes_ = kSlabBytes;
  std::span<std::byte> given_;           // Empty: slabs are mapped.
  std::vector<std::byte*> free_pieces_;  // The pool was given them.
  std::size_t limit_bytes_;
  std::size_t used_bytes_ = 0;
  std::size_t reserved_bytes_ = 0;
  std::size_t slab_count_ = 0;
  std::vector<std::unique_ptr<Slab>> slabs_;
  std::vector<std::uint32_t> free_slab_indices_;
  // Slabs of a class that have a free block; the last one is used first.
  std::vector<std::uint32_t> open_slabs_[kClassCount];
  std::size_t spare_slabs_[kClassCount] = {};  // Wholly free ones among the open slabs.
  std::deque<Waiter*> waiters_;
  std::deque<Waiter*> small_waiters_;  // Of allocations up to kSmallBytes; see allocate().
  bool waking_ = false;                // Inside wake_waiters().
};

}  // namespace sandbay
