// Defects, overlay and flips of one drive.
#include "fault/damage.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace sandbay::fault {

bool Damage::mark_unreadable(const Extent& extent) {
  if (defects_.run_count() >= kMostDefectRuns) return false;
  defects_.add(extent);
  return true;
}

void Damage::replace(Lba lba, std::span<const std::byte> content) {
  assert(content.size() == block_bytes_);
  assert(room_for(1) || blocks_.contains(lba));
  blocks_[lba].assign(content.begin(), content.end());
}

bool Damage::flip(Lba lba, std::uint32_t bit, bool sticky) {
  assert(bit < block_bytes_ * 8);
  if (flip_count_ >= kMostFlips) return false;
  flips_[lba].push_back({.bit = bit, .sticky = sticky});
  ++flip_count_;
  return true;
}

void Damage::apply(const Extent& extent, BufferList& data) const {
  for (auto block = blocks_.lower_bound(extent.first);
       block != blocks_.end() && block->first < extent.end(); ++block) {
    data.copy_from(block->second, (block->first - extent.first) * block_bytes_);
  }
  for (auto block = flips_.lower_bound(extent.first);
       block != flips_.end() && block->first < extent.end(); ++block) {
    for (const Flip& flip : block->second) {
      const std::size_t at = (block->first - extent.first) * block_bytes_ + flip.bit / 8;
      std::byte byte{};
      data.copy_to({&byte, 1}, at);
      byte ^= std::byte{1} << (flip.bit % 8);
      data.copy_from({&byte, 1}, at);
    }
  }
}

void Damage::apply_stored(const Extent& extent, std::span<std::byte> data) const {
  assert(data.size() == extent.byte_count(block_bytes_));
  for (auto block = blocks_.lower_bound(extent.first);
       block != blocks_.end() && block->first < extent.end(); ++block) {
    std::memcpy(data.data() + (block->first - extent.first) * block_bytes_, block->second.data(),
                block_bytes_);
  }
  for (auto block = flips_.lower_bound(extent.first);
       block != flips_.end() && block->first < extent.end(); ++block) {
    for (const Flip& flip : block->second) {
      if (flip.sticky) continue;
      data[(block->first - extent.first) * block_bytes_ + flip.bit / 8] ^= std::byte{1}
                                                                           << (flip.bit % 8);
    }
  }
}

bool Damage::alters(const Extent& extent) const {
  const auto block = blocks_.lower_bound(extent.first);
  if (block != blocks_.end() && block->first < extent.end()) return true;
  const auto flip = flips_.lower_bound(extent.first);
  return flip != flips_.end() && flip->first < extent.end();
}

void Damage::overwritten(const Extent& extent) {
  defects_.remove(extent);
  blocks_.erase(blocks_.lower_bound(extent.first), blocks_.lower_bound(extent.end()));
  for (auto block = flips_.lower_bound(extent.first);
       block != flips_.end() && block->first < extent.end();) {
    flip_count_ -= std::erase_if(block->second, [](const Flip& flip) { return !flip.sticky; });
    block = block->second.empty() ? flips_.erase(block) : std::next(block);
  }
}

void Damage::heal() {
  defects_.clear();
  blocks_.clear();
  flips_.clear();
  flip_count_ = 0;
}

}  // namespace sandbay::fault
