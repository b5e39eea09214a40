// Damage: what is wrong with the stored data of one drive, kept beside the device.
//
// Defects are blocks that cannot be read; the overlay is content that differs from what the device
// below stores; flips are inverted bits. Writing a block takes its damage away, except for sticky
// flips, which are defects of the medium and stay until healed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "block/block_device.h"
#include "block/extent_set.h"

namespace sandbay::fault {

using Bytes = std::vector<std::byte>;

class Damage {
 public:
  static constexpr std::size_t kMostOverlayBytes = std::size_t{64} << 20;
  static constexpr std::size_t kMostFlips = std::size_t{1} << 20;
  static constexpr std::size_t kMostDefectRuns = std::size_t{1} << 16;

  explicit Damage(std::uint32_t block_bytes) : block_bytes_(block_bytes) {}

  bool none() const noexcept { return defects_.empty() && blocks_.empty() && flips_.empty(); }
  bool alters() const noexcept { return !blocks_.empty() || !flips_.empty(); }

  // False, and nothing done, where a limit would be passed.
  bool mark_unreadable(const Extent& extent);
  std::optional<Lba> first_unreadable(const Extent& extent) const {
    return defects_.first_in(extent);
  }
  std::uint64_t unreadable_blocks() const noexcept { return defects_.block_count(); }

  bool room_for(std::uint64_t block_count) const noexcept {
    return (blocks_.size() + block_count) * block_bytes_ <= kMostOverlayBytes;
  }
  // One block that is no longer what the device stores; it has block_bytes.
  void replace(Lba lba, std::span<const std::byte> content);
  bool flip(Lba lba, std::uint32_t bit, bool sticky);
  std::size_t overlay_blocks() const noexcept { return blocks_.size(); }
  std::size_t flip_count() const noexcept { return flip_count_; }

  // Makes what the device returned for `extent` into what the drive returns.
  void apply(const Extent& extent, BufferList& data) const;
  // Into what is on its medium: without sticky flips, which come on top whatever is stored.
  void apply_stored(const Extent& extent, std::span<std::byte> data) const;
  bool alters(const Extent& extent) const;
  // The blocks were written.
  void overwritten(const Extent& extent);
  void heal();

 private:
  struct Flip {
    std::uint32_t bit = 0;
    bool sticky = false;
  };

  std::uint32_t block_bytes_;
  ExtentSet defects_;
  std::map<Lba, Bytes> blocks_;
  std::map<Lba, std::vector<Flip>> flips_;
  std::size_t flip_count_ = 0;
};

}  // namespace sandbay::fault
