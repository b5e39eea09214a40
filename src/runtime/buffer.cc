// Buffers, buffer lists and the pool.

#include "runtime/buffer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <new>

#include "runtime/executor.h"
#include "runtime/frame_pool.h"
#include "runtime/huge_pages.h"
#include "runtime/sync.h"

namespace sandbay {
namespace {

constexpr std::array<std::size_t, 7> kClassBytes = {512,       4096,       8 * 1024,   16 * 1024,
                                                    64 * 1024, 256 * 1024, 1024 * 1024};
constexpr std::size_t kSmallestLimitSlabs = 8;
// The class of a slab whose content was adopted: one block.
constexpr std::size_t kAdopted = kClassBytes.size();
// Wholly free slabs that a size keeps, so that a load that comes and goes does not make the system
// map and clear pages each time.
constexpr std::size_t kSpareSlabs = 16;

// The slices of a list that do not stand inside it: room for this many.
std::size_t capacity_for(std::size_t slice_count) {
  constexpr std::size_t kLeast = 4;
  return std::max(kLeast, std::bit_ceil(slice_count));
}

std::size_t class_for(std::size_t byte_count) {
  for (std::size_t size_class = 0; size_class < kClassBytes.size(); ++size_class) {
    if (byte_count <= kClassBytes[size_class]) return size_class;
  }
  return kClassBytes.size();
}

}  // namespace

// Buffer -------------------------------------------------------------------------------------

void Buffer::recycle() noexcept { block_->pool->give_back(block_); }

// BufferList ---------------------------------------------------------------------------------

void BufferList::append_more(Buffer slice) {
  const std::size_t count = count_ - kInline;
  if (count == 0) {
    more_ = static_cast<Buffer*>(allocate_frame(capacity_for(1) * sizeof(Buffer)));
  } else if (count == capacity_for(count)) {
    auto* const larger =
        static_cast<Buffer*>(allocate_frame(capacity_for(count + 1) * sizeof(Buffer)));
    std::uninitialized_move_n(more_, count, larger);
    free_more();
    more_ = larger;
  }
  new (more_ + count) Buffer(std::move(slice));
}

void BufferList::free_more() noexcept {
  const std::size_t count = count_ - kInline;
  std::destroy_n(more_, count);
  free_frame(more_, capacity_for(count) * sizeof(Buffer));
}

void BufferList::append(BufferList&& other) {
  if (count_ == 0) {
    take(other);
    return;
  }
  for (std::size_t i = 0; i < other.count_; ++i) append(std::move(other.at(i)));
  other.clear();
}

BufferList BufferList::share_several(std::size_t offset, std::size_t byte_count) const {
  assert(offset <= byte_count_ && byte_count <= byte_count_ - offset);
  BufferList part;
  for (std::size_t i = 0; i < count_ && byte_count > 0; ++i) {
    const Buffer& slice = (*this)[i];
    if (offset >= slice.byte_count()) {
      offset -= slice.byte_count();
      continue;
    }
    const std::size_t taken = std::min(byte_count, slice.byte_count() - offset);
    part.append(slice.slice(offset, taken));
    byte_count -= taken;
    offset = 0;
  }
  assert(byte_count == 0);
  return part;
}

BufferList BufferList::take_front(std::size_t byte_count) {
  assert(byte_count <= byte_count_);
  if (byte_count == byte_count_) return std::move(*this);
  BufferList front = share(0, byte_count);
  BufferList rest = share(byte_count, byte_count_ - byte_count);
  *this = std::move(rest);
  return front;
}

void BufferList::copy_to(std::span<std::byte> target, std::size_t offset) const {
  assert(offset <= byte_count_ && target.size() <= byte_count_ - offset);
  if (data_less()) return;
  for (std::size_t i = 0; i < count_ && !target.empty(); ++i) {
    const Buffer& slice = (*this)[i];
    if (offset >= slice.byte_count()) {
      offset -= slice.byte_count();
      continue;
    }
    const std::size_t taken = std::min(target.size(), slice.byte_count() - offset);
    std::memcpy(target.data(), slice.data() + offset, taken);
    target = target.subspan(taken);
    offset = 0;
  }
}

void BufferList::copy_from(std::span<const std::byte> source, std::size_t offset) {
  assert(offset <= byte_count_ && source.size() <= byte_count_ - offset);
  if (data_less()) return;
  for (std::size_t i = 0; i < count_ && !source.empty(); ++i) {
    const Buffer& slice = (*this)[i];
    if (offset >= slice.byte_count()) {
      offset -= slice.byte_count();
      continue;
    }
    const std::size_t taken = std::min(source.size(), slice.byte_count() - offset);
    std::memcpy(slice.data() + offset, source.data(), taken);
    source = source.subspan(taken);
    offset = 0;
  }
}

void BufferList::copy_from(const BufferList& source) {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < source.count_; ++i) {
    copy_from(source[i].bytes(), offset);
    offset += source[i].byte_count();
  }
}

void BufferList::fill_zero() {
  if (data_less()) return;
  for (std::size_t i = 0; i < count_; ++i) {
    std::memset((*this)[i].data(), 0, (*this)[i].byte_count());
  }
}

bool BufferList::equals(const BufferList& other) const {
  if (byte_count_ != other.byte_count_) return false;
  if (data_less() || other.data_less()) return true;
  std::size_t mine = 0;
  std::size_t theirs = 0;
  std::size_t my_offset = 0;
  std::size_t their_offset = 0;
  while (mine < count_) {
    const Buffer& left = (*this)[mine];
    const Buffer& right = other[theirs];
    const std::size_t compared =
        std::min(left.byte_count() - my_offset, right.byte_count() - their_offset);
    if (std::memcmp(left.data() + my_offset, right.data() + their_offset, compared) != 0) {
      return false;
    }
    my_offset += compared;
    their_offset += compared;
    if (my_offset == left.byte_count()) {
      ++mine;
      my_offset = 0;
    }
    if (their_offset == right.byte_count()) {
      ++theirs;
      their_offset = 0;
    }
  }
  return true;
}

bool BufferList::unique() const noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    if (!(*this)[i].unique()) return false;
  }
  return true;
}

// BufferPool ---------------------------------------------------------------------------------

struct BufferPool::Slab {
  std::byte* memory = nullptr;
  std::uint8_t size_class = 0;
  bool open = false;  // Listed in open_slabs_.
  std::size_t block_count = 0;
  std::size_t free_count = 0;
  detail::BufferBlock* first_free = nullptr;
  std::unique_ptr<detail::BufferBlock[]> blocks;
};

// One who waits for memory (allocate) or for a promise of it (reserve).
struct BufferPool::Waiter {
  std::size_t byte_count = 0;
  bool reserve = false;
  bool done = false;
  BufferList granted;
  Event event;
};

// Whether those who can wait leave a sixteenth of all slabs to those who cannot: the last ones
// would otherwise all be of one size. Slabs that are wholly free serve any.
static bool leaves_slabs(bool needs_one, std::size_t slab_count, std::span<const std::size_t> spare,
                         std::size_t slabs) {
  if (!needs_one) return true;
  std::size_t in_use = slab_count;
  for (const std::size_t count : spare) in_use -= count;
  return in_use + 1 <= slabs - slabs / 16;
}

BufferPool::BufferPool(Executor& home, std::size_t limit_bytes, Content content)
    : home_(home),
      content_(content),
      limit_bytes_(std::max(limit_bytes / kSlabBytes, kSmallestLimitSlabs) * kSlabBytes) {
  static_assert(kClassBytes.size() == kClassCount);
}

BufferPool::BufferPool(Executor& home, std::span<std::byte> memory, std::size_t slab_bytes)
    : home_(home),
      slab_bytes_(slab_bytes),
      given_(memory.first(memory.size() / slab_bytes * slab_bytes)),
      limit_bytes_(given_.size()) {
  assert(std::has_single_bit(slab_bytes) && slab_bytes >= kSmallBytes && slab_bytes <= kSlabBytes);
  assert(limit_bytes_ >= kSmallestLimitSlabs * slab_bytes);
  assert(reinterpret_cast<std::uintptr_t>(given_.data()) % 4096 == 0);
  for (std::size_t offset = given_.size(); offset > 0; offset -= slab_bytes) {
    free_pieces_.push_back(given_.data() + offset - slab_bytes);
  }
}

BufferPool::~BufferPool() {
  assert(used_bytes_ == 0);
  assert(waiter_count() == 0);
  for (const auto& slab : slabs_) {
    if (slab->memory != nullptr) give_slab_memory(slab->memory);
  }
}

// The next piece of a list that still needs so many bytes.
std::size_t BufferPool::piece_bytes(std::size_t byte_count) const noexcept {
  const std::size_t most = std::min({byte_count, kListPieceBytes, slab_bytes_});
  if (given_.empty() || most <= kClassBytes[0]) return most;
  const std::size_t size_class = class_for(most);
  return kClassBytes[size_class] == most ? most : kClassBytes[size_class - 1];
}

// The bytes that a list of this many takes from the pool.
std::size_t BufferPool::block_bytes_for(std::size_t byte_count) const noexcept {
  if (!given_.empty()) return (byte_count + kClassBytes[0] - 1) / kClassBytes[0] * kClassBytes[0];
  const std::size_t whole = byte_count / kListPieceBytes * kListPieceBytes;
  const std::size_t rest = byte_count - whole;
  return whole + (rest == 0 ? 0 : kClassBytes[class_for(rest)]);
}

std::byte* BufferPool::take_slab_memory() {
  if (given_.empty()) {
    return map_huge_pages(kSlabBytes,
                          content_ == Content::kNone ? Access::kNone : Access::kReadWrite);
  }
  if (free_pieces_.empty()) return nullptr;
  std::byte* const piece = free_pieces_.back();
  free_pieces_.pop_back();
  return piece;
}

void BufferPool::give_slab_memory(std::byte* memory) noexcept {
  if (given_.empty()) {
    unmap_huge_pages(memory, kSlabBytes);
  } else {
    free_pieces_.push_back(memory);  // It was taken from there: there is room.
  }
}

std::uint32_t BufferPool::new_slab(std::byte* memory, std::size_t size_class,
                                   std::size_t block_bytes) {
  std::uint32_t index = 0;
  if (free_slab_indices_.empty()) {
    index = static_cast<std::uint32_t>(slabs_.size());
    slabs_.push_back(std::make_unique<Slab>());
  } else {
    index = free_slab_indices_.back();
    free_slab_indices_.pop_back();
  }
  Slab& slab = *slabs_[index];
  slab.memory = memory;
  slab.size_class = static_cast<std::uint8_t>(size_class);
  slab.block_count = slab_bytes_ / block_bytes;
  slab.free_count = slab.block_count;
  slab.blocks = std::make_unique<detail::BufferBlock[]>(slab.block_count);
  slab.first_free = nullptr;
  for (std::size_t i = slab.block_count; i-- > 0;) {
    detail::BufferBlock& block = slab.blocks[i];
    block.pool = this;
    block.memory = slab.memory + i * block_bytes;
    block.size_class = slab.size_class;
    block.data_less = content_ == Content::kNone;
    block.slab = index;
    block.next_free = slab.first_free;
    slab.first_free = &block;
  }
  ++slab_count_;
  return index;
}

bool BufferPool::add_slab(std::size_t size_class) {
  if ((slab_count_ + 1) * slab_bytes_ > limit_for(kClassBytes[size_class])) return false;
  std::byte* const memory = take_slab_memory();
  if (memory == nullptr) return false;
  const std::uint32_t index = new_slab(memory, size_class, kClassBytes[size_class]);
  slabs_[index]->open = true;
  open_slabs_[size_class].push_back(index);
  ++spare_slabs_[size_class];
  return true;
}

Buffer BufferPool::adopt(std::size_t offset, std::size_t byte_count) {
  const std::size_t within = offset % slab_bytes_;
  assert(offset <= given_.size() && byte_count <= slab_bytes_ - within);
  std::byte* const memory = given_.data() + (offset - within);
  const auto slab = std::ranges::find_if(
      slabs_, [&](const auto& candidate) { return candidate->memory == memory; });
  detail::BufferBlock* block = nullptr;
  if (slab == slabs_.end()) {
    std::erase(free_pieces_, memory);
    Slab& adopted = *slabs_[new_slab(memory, kAdopted, slab_bytes_)];
    block = &adopted.blocks[0];
    adopted.first_free = nullptr;
    adopted.free_count = 0;
    used_bytes_ += slab_bytes_;
  } else {
    assert((*slab)->size_class == kAdopted);
    block = &(*slab)->blocks[0];
  }
  ++block->references;
  return Buffer(block, memory + within, byte_count);
}

void BufferPool::retire_slab(std::uint32_t index) {
  Slab& slab = *slabs_[index];
  assert(slab.free_count == slab.block_count);
  assert(spare_slabs_[slab.size_class] > 0);
  --spare_slabs_[slab.size_class];
  std::erase(open_slabs_[slab.size_class], index);
  give_slab_memory(slab.memory);
  slab = Slab{};
  free_slab_indices_.push_back(index);
  --slab_count_;
}

Buffer BufferPool::try_allocate_contiguous(std::size_t byte_count) {
  assert(byte_count > 0 && byte_count <= largest_block());
  const std::size_t size_class = class_for(byte_count);
  auto& open = open_slabs_[size_class];
  if (open.empty() && !add_slab(size_class)) {
    // Other sizes may hold slabs that are wholly free.
    if (std::ranges::max(spare_slabs_) == 0) return {};
    bool added = false;
    for (std::uint32_t index = 0; index < slabs_.size() && !added; ++index) {
      const Slab& other = *slabs_[index];
      if (other.memory == nullptr || other.free_count != other.block_count) continue;
      retire_slab(index);
      added = add_slab(size_class);
    }
    if (!added) return {};
  }
  Slab& slab = *slabs_[open.back()];
  detail::BufferBlock* const block = slab.first_free;
  assert(block != nullptr && block->references == 0);
  slab.first_free = block->next_free;
  if (slab.free_count == slab.block_count) --spare_slabs_[size_class];
  if (--slab.free_count == 0) {
    slab.open = false;
    open.pop_back();
  }
  block->references = 1;
  used_bytes_ += kClassBytes[size_class];
  return Buffer(block, block->memory, byte_count);
}

BufferList BufferPool::try_allocate(std::size_t byte_count) {
  assert(byte_count > 0);
  BufferList list;
  while (list.byte_count() < byte_count) {
    Buffer slice = try_allocate_contiguous(piece_bytes(byte_count - list.byte_count()));
    if (slice.empty()) return {};
    list.append(std::move(slice));
  }
  return list;
}

Task<BufferList> BufferPool::allocate(std::size_t byte_count) {
  assert(byte_count <= limit_bytes_ / 4);
  auto& waiters = byte_count <= kSmallBytes ? small_waiters_ : waiters_;
  const bool none_open = open_slabs_[class_for(piece_bytes(byte_count))].empty();
  if (waiters.empty() && is_room_for(byte_count, block_bytes_for(byte_count)) &&
      leaves_slabs(none_open, slab_count_, spare_slabs_, limit_bytes_ / slab_bytes_)) {
    BufferList list = try_allocate(byte_count);
    if (!list.empty()) co_return list;
  }
  Waiter waiter{.byte_count = byte_count, .granted = {}, .event = {}};
  waiters.push_back(&waiter);
  co_await waiter.event.wait();
  assert(waiter.done);
  co_return std::move(waiter.granted);
}

bool BufferPool::try_reserve(std::size_t byte_count) {
  if (!waiters_.empty()) return false;
  if (used_bytes_ + reserved_bytes_ + byte_count > limit_bytes_ / 4 * 3) return false;
  reserved_bytes_ += byte_count;
  return true;
}

bool BufferPool::try_reserve_share(std::size_t byte_count) {
  if (!has_room_for_share(byte_count)) return false;
  reserved_bytes_ += byte_count;
  return true;
}

Task<bool> BufferPool::reserve(std::size_t byte_count, Wait& wait) {
  assert(byte_count <= limit_bytes_ / 4);
  if (try_reserve(byte_count)) co_return true;
  Waiter waiter{.byte_count = byte_count, .reserve = true, .granted = {}, .event = {}};
  waiters_.push_back(&waiter);
  wait.waiter_ = &waiter;
  co_await waiter.event.wait();
  wait.waiter_ = nullptr;
  co_return waiter.done;
}

void BufferPool::cancel(Wait& wait) {
  Waiter* const waiter = std::exchange(wait.waiter_, nullptr);
  if (waiter == nullptr || waiter->done) return;
  std::erase(waiters_, waiter);
  waiter->event.set();
  if (waiter_count() > 0) wake_waiters();  // Whoever stood behind it may need less.
}

void BufferPool::unreserve(std::size_t byte_count) {
  assert(byte_count <= reserved_bytes_);
  reserved_bytes_ -= byte_count;
  if (waiter_count() > 0) wake_waiters();
}

void BufferPool::give_back(detail::BufferBlock* block) noexcept {
  if (Executor::current_or_null() == &home_) {
    put_on_free_list(block);
    return;
  }
  block->going_home.run = [](Message& message) {
    auto* const returned = reinterpret_cast<detail::BufferBlock*>(
        reinterpret_cast<std::byte*>(&message) - offsetof(detail::BufferBlock, going_home));
    returned->pool->put_on_free_list(returned);
  };
  home_.send(block->going_home);
}

void BufferPool::put_on_free_list(detail::BufferBlock* block) noexcept {
  Slab& slab = *slabs_[block->slab];
  if (slab.size_class == kAdopted) {
    used_bytes_ -= slab_bytes_;
    give_slab_memory(slab.memory);
    const std::uint32_t index = block->slab;
    slab = Slab{};
    free_slab_indices_.push_back(index);
    --slab_count_;
    if (waiter_count() > 0) wake_waiters();
    return;
  }
  block->next_free = slab.first_free;
  slab.first_free = block;
  ++slab.free_count;
  used_bytes_ -= kClassBytes[block->size_class];
  auto& open = open_slabs_[block->size_class];
  if (!slab.open) {
    slab.open = true;
    open.push_back(block->slab);
  }
  if (slab.free_count == slab.block_count && ++spare_slabs_[block->size_class] > kSpareSlabs) {
    retire_slab(block->slab);
  }
  if (waiter_count() > 0) wake_waiters();
}

// Grants the queue's head as long as it fits; nobody overtakes it.
void BufferPool::wake_waiters() {
  // An attempt that finds only part of what it needs gives that part back, which must not start
  // the next attempt.
  if (std::exchange(waking_, true)) return;
  wake(small_waiters_);
  wake(waiters_);
  waking_ = false;
}

void BufferPool::wake(std::deque<Waiter*>& waiters) {
  while (!waiters.empty() && grant(*waiters.front())) {
    Waiter& waiter = *waiters.front();
    waiters.pop_front();
    waiter.done = true;
    waiter.event.set();
  }
}

bool BufferPool::grant(Waiter& waiter) {
  if (waiter.reserve) {
    if (used_bytes_ + reserved_bytes_ + waiter.byte_count > limit_bytes_ / 4 * 3) return false;
    reserved_bytes_ += waiter.byte_count;
    return true;
  }
  const std::size_t needed = block_bytes_for(waiter.byte_count);
  if (!is_room_for(waiter.byte_count, needed)) return false;
  if (!leaves_slabs(open_slabs_[class_for(piece_bytes(waiter.byte_count))].empty(), slab_count_,
                    spare_slabs_, limit_bytes_ / slab_bytes_)) {
    return false;
  }
  waiter.granted = try_allocate(waiter.byte_count);
  return !waiter.granted.empty();
}

}  // namespace sandbay
