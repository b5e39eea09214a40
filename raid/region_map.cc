// The region map's bitmaps and their bytes:
//
//   48  8  regions       56  2  drives       58  6  zeros       64  …  one byte for each bitmap:
//   0 all clear, 1 all set, 2 written out; dirty first, then of each role its drive's and its
//   replacement's. Then, from a multiple of 8 on, the bitmaps that are written out, in 64-bit
//   words, bit r of the bitmap being region r.
#include "raid/region_map.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include <fmt/core.h>

#include "raid/metadata_image.h"

namespace sandbay::raid {
namespace {

constexpr std::size_t kRegionCountAt = 48;
constexpr std::size_t kMapDriveCountAt = 56;
constexpr std::size_t kZerosAt = 58;
constexpr std::size_t kFormsAt = 64;

enum class Form : std::uint8_t { kClear, kSet, kWords };

constexpr std::size_t bitmap_count(unsigned drive_count) {
  return 1 + std::size_t{2} * drive_count;
}
constexpr std::size_t words_at(unsigned drive_count) {
  return (kFormsAt + bitmap_count(drive_count) + 7) / 8 * 8;
}
constexpr std::size_t word_count(std::uint64_t region_count) {
  return static_cast<std::size_t>((region_count + 63) / 64);
}
// Of the last word, the bits that are regions.
constexpr std::uint64_t last_word_mask(std::uint64_t region_count) {
  return region_count % 64 == 0 ? ~std::uint64_t{0} : (std::uint64_t{1} << region_count % 64) - 1;
}

}  // namespace

std::uint64_t most_regions(unsigned drive_count) {
  assert(drive_count >= 1 && drive_count <= kMostDrives);
  const std::size_t words = (kRegionMapBytes - words_at(drive_count)) / sizeof(std::uint64_t);
  return std::min<std::uint64_t>(kMostRegions, words / bitmap_count(drive_count) * 64);
}

std::uint64_t choose_region_stripes(std::uint64_t stripe_count, std::uint64_t stripe_bytes,
                                    unsigned drive_count) {
  constexpr std::uint64_t kLeastRegionBytes = 4u << 20;
  constexpr std::uint64_t kEnoughRegions = 128;
  std::uint64_t stripes = 1;
  const auto regions = [&] { return stripe_count / stripes + (stripe_count % stripes != 0); };
  while (regions() > most_regions(drive_count)) stripes *= 2;
  while (stripes * stripe_bytes < kLeastRegionBytes && regions() >= 2 * kEnoughRegions) {
    stripes *= 2;
  }
  return stripes;
}

RegionMap::RegionMap(const Uuid& set_uuid, std::uint64_t region_count, unsigned drive_count)
    : set_uuid_(set_uuid),
      region_count_(region_count),
      drive_count_(drive_count),
      bitmaps_(bitmap_count(drive_count)) {
  assert(region_count >= 1);
  assert(region_count <= most_regions(drive_count));
}

bool RegionMap::test(std::size_t bitmap, std::uint64_t region) const {
  assert(region < region_count_);
  const Bitmap& map = bitmaps_.at(bitmap);
  if (map.count == 0 || map.count == region_count_) return map.count != 0;
  return (map.words[region / 64] >> region % 64 & 1U) != 0;
}

void RegionMap::set(std::size_t bitmap, std::uint64_t region, bool value) {
  assert(region < region_count_);
  Bitmap& map = bitmaps_.at(bitmap);
  if (test(bitmap, region) == value) return;
  if (map.words.empty()) map.words.resize(word_count(region_count_));
  map.words[region / 64] ^= std::uint64_t{1} << region % 64;
  map.count = value ? map.count + 1 : map.count - 1;
  changed_ = true;
}

void RegionMap::set_all(std::size_t bitmap, bool value) {
  Bitmap& map = bitmaps_.at(bitmap);
  const std::uint64_t count = value ? region_count_ : 0;
  if (map.count == count) return;
  map.count = count;
  map.words.assign(word_count(region_count_), value ? ~std::uint64_t{0} : 0);
  map.words.back() &= last_word_mask(region_count_);
  changed_ = true;
}

std::optional<std::uint64_t> RegionMap::first(std::size_t bitmap, std::uint64_t from) const {
  const Bitmap& map = bitmaps_.at(bitmap);
  if (map.count == 0 || from >= region_count_) return std::nullopt;
  std::uint64_t word = map.words[from / 64] & ~std::uint64_t{0} << from % 64;
  for (std::size_t at = from / 64;; word = map.words[at]) {
    if (word != 0) return at * 64 + static_cast<unsigned>(std::countr_zero(word));
    if (++at == map.words.size()) return std::nullopt;
  }
}

void RegionMap::promote_replacement(unsigned role) {
  Bitmap& own = bitmaps_.at(index(role, false));
  Bitmap& replacement = bitmaps_.at(index(role, true));
  if (own.count == 0 && replacement.count == 0) return;
  own = std::move(replacement);
  replacement = Bitmap{};
  changed_ = true;
}

bool RegionMap::same_content(const RegionMap& other) const {
  if (set_uuid_ != other.set_uuid_ || region_count_ != other.region_count_ ||
      drive_count_ != other.drive_count_) {
    return false;
  }
  return std::ranges::equal(bitmaps_, other.bitmaps_, [](const Bitmap& one, const Bitmap& two) {
    return one.count == two.count && (one.count == 0 || one.words == two.words);
  });
}

std::vector<std::byte> RegionMap::encode_next() {
  ++sequence_;
  changed_ = false;
  std::vector<std::byte> image(words_at(drive_count_));
  put_little_endian(std::span(image), kRegionCountAt, region_count_);
  put_little_endian(std::span(image), kMapDriveCountAt, static_cast<std::uint16_t>(drive_count_));
  for (std::size_t at = 0; at < bitmaps_.size(); ++at) {
    const Bitmap& map = bitmaps_[at];
    const bool written_out = map.count != 0 && map.count != region_count_;
    const Form form = written_out ? Form::kWords : map.count == 0 ? Form::kClear : Form::kSet;
    image[kFormsAt + at] = static_cast<std::byte>(form);
    if (!written_out) continue;
    const std::size_t begin = image.size();
    image.resize(begin + map.words.size() * sizeof(std::uint64_t));
    for (std::size_t word = 0; word < map.words.size(); ++word) {
      put_little_endian(std::span(image), begin + word * sizeof(std::uint64_t), map.words[word]);
    }
  }
  assert(image.size() <= kRegionMapBytes);
  seal_image(image, {.magic = kRegionMapMagic, .sequence = sequence_, .uuid = set_uuid_});
  return image;
}

std::expected<RegionMap, std::string> RegionMap::decode(std::span<const std::byte> bytes) {
  const auto opened =
      open_image(bytes.first(std::min(bytes.size(), kRegionMapBytes)), kRegionMapMagic);
  if (!opened.has_value()) return std::unexpected(opened.error());
  const std::span<const std::byte> image = opened->bytes;
  if (image.size() < kFormsAt) return std::unexpected("it is too short");
  const auto region_count = little_endian<std::uint64_t>(image, kRegionCountAt);
  const auto drive_count = little_endian<std::uint16_t>(image, kMapDriveCountAt);
  if (drive_count == 0 || drive_count > kMostDrives) {
    return std::unexpected(fmt::format("{} drives are impossible", drive_count));
  }
  if (region_count == 0 || region_count > most_regions(drive_count)) {
    return std::unexpected(fmt::format("{} regions are impossible", region_count));
  }
  const std::size_t maps = bitmap_count(drive_count);
  const std::size_t words = word_count(region_count);
  std::size_t at = words_at(drive_count);
  if (image.size() < at || !all_zeros(image.subspan(kZerosAt, kFormsAt - kZerosAt)) ||
      !all_zeros(image.subspan(kFormsAt + maps, at - kFormsAt - maps))) {
    return std::unexpected("its header is inconsistent");
  }
  RegionMap map(opened->uuid, region_count, drive_count);
  for (std::size_t index = 0; index < maps; ++index) {
    const auto form = static_cast<Form>(image[kFormsAt + index]);
    if (form > Form::kWords) return std::unexpected("a bitmap has an unknown form");
    if (form == Form::kSet) map.set_all(index, true);
    if (form != Form::kWords) continue;
    if (image.size() - at < words * sizeof(std::uint64_t)) {
      return std::unexpected("it ends within a bitmap");
    }
    Bitmap& bitmap = map.bitmaps_[index];
    for (std::size_t word = 0; word < words; ++word, at += sizeof(std::uint64_t)) {
      bitmap.words.push_back(little_endian<std::uint64_t>(image, at));
      bitmap.count += static_cast<unsigned>(std::popcount(bitmap.words.back()));
    }
    if ((bitmap.words.back() & ~last_word_mask(region_count)) != 0) {
      return std::unexpected("a bitmap marks regions that are not there");
    }
  }
  if (at != image.size()) return std::unexpected("it goes on behind its bitmaps");
  map.sequence_ = opened->sequence;
  map.changed_ = false;
  return map;
}

}  // namespace sandbay::raid
