// RegionMap: what a set remembers about its regions, runs of region_stripes stripes each.
//
// A bitmap says where redundancy is not valid (dirty), and for each role one says where its drive
// is stale and another where the role's replacement is. Serialised with a sequence, so that of two
// copies the newer counts; bitmaps that are all clear or all set cost nothing.
//
// choose_region_stripes() makes regions so large that the map always fits kRegionMapBytes,
// whatever is marked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "raid/superblock.h"
#include "runtime/uuid.h"

namespace sandbay::raid {

inline constexpr std::string_view kRegionMapMagic = "SBRAIDRM";
inline constexpr std::uint64_t kMostRegions = 16384;

// The most regions with which every bitmap of so many drives fits.
std::uint64_t most_regions(unsigned drive_count);
// A power of two. Regions are also not made smaller than 4 MiB of `stripe_bytes` each, as long as
// there are 128 of them or more: marking one costs a write on every drive.
std::uint64_t choose_region_stripes(std::uint64_t stripe_count, std::uint64_t stripe_bytes,
                                    unsigned drive_count);

class RegionMap {
 public:
  // All clear. 1 to most_regions(drive_count) regions.
  RegionMap(const Uuid& set_uuid, std::uint64_t region_count, unsigned drive_count);

  const Uuid& set_uuid() const noexcept { return set_uuid_; }
  std::uint64_t region_count() const noexcept { return region_count_; }
  unsigned drive_count() const noexcept { return drive_count_; }

  bool dirty(std::uint64_t region) const { return test(0, region); }
  void set_dirty(std::uint64_t region, bool value) { set(0, region, value); }
  void set_all_dirty(bool value) { set_all(0, value); }
  std::uint64_t dirty_count() const { return bitmaps_[0].count; }
  // The first from `from` on.
  std::optional<std::uint64_t> first_dirty(std::uint64_t from = 0) const { return first(0, from); }

  // Of the role's drive, or of its replacement.
  bool stale(unsigned role, bool replacement, std::uint64_t region) const {
    return test(index(role, replacement), region);
  }
  void set_stale(unsigned role, bool replacement, std::uint64_t region, bool value) {
    set(index(role, replacement), region, value);
  }
  void set_all_stale(unsigned role, bool replacement, bool value) {
    set_all(index(role, replacement), value);
  }
  std::uint64_t stale_count(unsigned role, bool replacement) const {
    return bitmaps_[index(role, replacement)].count;
  }
  std::optional<std::uint64_t> first_stale(unsigned role, bool replacement,
                                           std::uint64_t from = 0) const {
    return first(index(role, replacement), from);
  }
  // The replacement takes the role: its staleness becomes the role's, and it has none any more.
  void promote_replacement(unsigned role);

  // Something is marked or cleared that the last encode_next() did not have.
  bool changed() const noexcept { return changed_; }
  std::uint64_t sequence() const noexcept { return sequence_; }
  // The image, at most kRegionMapBytes, with a sequence one higher than before.
  std::vector<std::byte> encode_next();
  // Any bytes may come; the error is a half-sentence.
  static std::expected<RegionMap, std::string> decode(std::span<const std::byte> bytes);

  bool same_content(const RegionMap& other) const;

 private:
  struct Bitmap {
    std::vector<std::uint64_t> words;  // Empty while all are clear.
    std::uint64_t count = 0;
    bool operator==(const Bitmap& other) const = default;
  };

  static std::size_t index(unsigned role, bool replacement) {
    return 1 + role * std::size_t{2} + (replacement ? 1 : 0);
  }
  bool test(std::size_t bitmap, std::uint64_t region) const;
  void set(std::size_t bitmap, std::uint64_t region, bool value);
  void set_all(std::size_t bitmap, bool value);
  std::optional<std::uint64_t> first(std::size_t bitmap, std::uint64_t from) const;

  Uuid set_uuid_;
  std::uint64_t region_count_;
  unsigned drive_count_;
  std::uint64_t sequence_ = 0;
  bool changed_ = false;
  std::vector<Bitmap> bitmaps_;  // Dirty; then for each role its drive's and its replacement's.
};

}  // namespace sandbay::raid
