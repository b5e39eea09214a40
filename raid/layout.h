// Layout: where each block of a RAID set lies. Pure arithmetic; no I/O, no state.
//
// A set has `drive_count` roles, each held by one drive. Its blocks lie in stripes, numbered from
// 0. A stripe belongs to one group of drives and has `width` members, one strip each: data chunks
// 0 to k-1, then P = k, then Q = k+1. In a mirrored stripe k = 1 and every member holds chunk 0.
// Within a strip the blocks are rows.
//
// Stripe s is number s / G of group s mod G, of G groups. In that group's stripe i of w members,
// P lies on drive (w-1) - (i mod w); data chunk j follows it (left-symmetric), after Q if there is
// one: RAID 5 on drive (P+1+j) mod w; RAID 6 Q on (P+1) mod w, data on (P+2+j) mod w. Without
// redundancy a stripe is one strip and each drive is a group of its own; a concatenation counts
// its stripes drive after drive. docs/design/raid.md draws all of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "block/block_device.h"

namespace sandbay::raid {

inline constexpr unsigned kMostDrives = 64;
inline constexpr std::uint32_t kLeastStripBytes = 4u << 10;
inline constexpr std::uint32_t kMostStripBytes = 1u << 20;
// So that byte offsets in a set of most drives stay far from 64 bits.
inline constexpr std::uint64_t kMostDriveBytes = std::uint64_t{1} << 56;

// The values are on disk.
enum class Level : std::uint8_t {
  kJbod = 1,
  kConcatenation,
  kRaid0,
  kRaid1,
  kRaid5,
  kRaid6,
  kRaid10,
  kRaid50,
  kRaid60
};

std::string_view describe(Level level);  // "jbod", "concat", "raid0" …

// What describe() gives, in any case; also "concatenation", "5", "RAID-5" and "raid 5".
std::optional<Level> parse_level(std::string_view text);

// What a set is made of.
struct Shape {
  Level level = Level::kJbod;
  unsigned drive_count = 0;
  // RAID 10, 50, 60: how many mirrors or parity sets are striped over; 0: drive_count / 2 for
  // RAID 10, 2 for RAID 50 and 60. Elsewhere 0, 1 or what Layout::group_count() said.
  unsigned group_count = 0;
  std::uint32_t block_bytes = 512;
  std::uint32_t strip_blocks = 128;
  std::vector<std::uint64_t> drive_blocks;  // By role: the data area that each drive offers.
};

class Layout {
 public:
  // The error is a clear half-sentence: what is wrong and what is accepted.
  static std::expected<Layout, std::string> make(const Shape& shape);

  Level level() const noexcept { return level_; }
  bool mirrored() const noexcept { return level_ == Level::kRaid1 || level_ == Level::kRaid10; }
  unsigned drive_count() const noexcept { return groups_ * width_; }
  unsigned group_count() const noexcept { return groups_; }
  unsigned width() const noexcept { return width_; }              // Members of a stripe.
  unsigned data_chunks() const noexcept { return data_chunks_; }  // k; 1 when mirrored.
  unsigned parity_chunks() const noexcept { return mirrored() ? 0 : width_ - data_chunks_; }
  // How many members a stripe survives losing: 0, 1, 2, or copies - 1.
  unsigned redundancy() const noexcept { return width_ - data_chunks_; }

  std::uint32_t block_bytes() const noexcept { return block_bytes_; }
  std::uint32_t strip_blocks() const noexcept { return 1u << strip_shift_; }
  std::uint32_t stripe_blocks() const noexcept { return data_chunks_ << strip_shift_; }
  // The number of stripes in a row with these bytes on each drive; at least a strip on each.
  std::uint64_t stripes_with(std::uint64_t bytes_of_drive) const noexcept {
    const std::uint64_t strips = bytes_of_drive / (std::uint64_t{block_bytes()} << strip_shift_);
    return std::max<std::uint64_t>(strips, 1) * (concatenated() ? 1 : groups_);
  }
  std::uint64_t stripe_count() const noexcept { return stripe_count_; }
  std::uint64_t block_count() const noexcept { return stripe_count_ * stripe_blocks(); }
  // The part of that role's data area that is used. The same for all but in a concatenation.
  std::uint64_t drive_blocks(unsigned role) const;

  // Where a block of the set lies, and back.
  struct Position {
    std::uint64_t stripe = 0;
    std::uint32_t chunk = 0;
    std::uint32_t row = 0;
    bool operator==(const Position&) const = default;
  };
  Position position(Lba lba) const;
  Lba lba(Position position) const;

  // Which drive holds a member of a stripe, and back: nothing if that drive has no part in it.
  unsigned role(std::uint64_t stripe, unsigned member) const;
  std::optional<unsigned> member(std::uint64_t stripe, unsigned role) const;

  // The first block of the stripe's strips within the data area: the same on each of its drives.
  Lba drive_lba(std::uint64_t stripe) const;

  // What a block of a drive's used data area is.
  struct OnDrive {
    std::uint64_t stripe = 0;
    unsigned member = 0;
    std::uint32_t row = 0;
    bool operator==(const OnDrive&) const = default;
  };
  OnDrive on_drive(unsigned role, Lba drive_lba) const;

  unsigned group(std::uint64_t stripe) const;
  unsigned group_of_role(unsigned role) const;

  // The first stripe from `from` on that has a member on `role`, and the next one after `stripe`;
  // nothing behind the last.
  std::optional<std::uint64_t> first_stripe(unsigned role, std::uint64_t from = 0) const;
  std::optional<std::uint64_t> next_stripe(unsigned role, std::uint64_t stripe) const {
    return first_stripe(role, stripe + 1);
  }
  // How many stripes have a member on `role`.
  std::uint64_t stripes_on_role(unsigned role) const;

  // Whether every group keeps enough when the roles in the mask (bit r: role r) are missing. Bits
  // of roles that do not exist count for nothing.
  bool survives(std::uint64_t missing_roles) const;

 private:
  Layout() = default;

  bool concatenated() const noexcept { return !first_of_role_.empty(); }
  unsigned role_of_stripe(std::uint64_t stripe) const;  // In a concatenation.
  unsigned first_data_drive(std::uint64_t number) const;

  Level level_ = Level::kJbod;
  unsigned groups_ = 1;
  unsigned width_ = 1;
  unsigned data_chunks_ = 1;
  unsigned strip_shift_ = 0;
  std::uint32_t block_bytes_ = 0;
  std::uint64_t stripe_count_ = 0;
  // A concatenation: the first stripe of each role, then the stripe count. Empty otherwise.
  std::vector<std::uint64_t> first_of_role_;
};

}  // namespace sandbay::raid
