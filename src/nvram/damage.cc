// Damage on command. The header is found as at opening; where there is none, nothing is done.
#include "nvram/damage.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "nvram/image_layout.h"

namespace sandbay::nvram {
namespace {

std::span<std::byte> page_of(std::span<std::byte> image, std::uint64_t page) {
  assert(page < image.size() / kPageBytes);
  return image.subspan(page * kPageBytes, kPageBytes);
}

}  // namespace

void lose_contents(std::span<std::byte> image) {
  assert(image.size() >= kHeaderBytes);
  std::ranges::fill(image.subspan(kHeaderBytes), std::byte{0});
}

void damage_page(std::span<std::byte> image, std::uint64_t page, Random& random) {
  for (std::byte& byte : page_of(image, page)) byte = static_cast<std::byte>(random.below(256));
}

void restore_page(std::span<std::byte> image, std::span<const std::byte> earlier,
                  std::uint64_t page) {
  assert(earlier.size() == image.size());
  const auto source = earlier.subspan(page * kPageBytes, kPageBytes);
  std::ranges::copy(source, page_of(image, page).begin());
}

void flip_bits(std::span<std::byte> bytes, std::uint64_t bit_count, Random& random) {
  assert(!bytes.empty());
  for (std::uint64_t count = 0; count < bit_count; ++count) {
    const std::uint64_t bit = random.below(bytes.size() * 8);
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
}

void emulate_power_cut(std::span<std::byte> image, BatteryState battery) {
  if (battery == BatteryState::kGood) return;
  auto header = read_header(image);
  if (!header.has_value()) return;
  for (std::size_t index = 0; index < header->region_count; ++index) {
    if (!holds_content(image, *header, index)) continue;  // It has nothing to lose.
    RegionEntry& entry = header->regions[index];
    if (entry.loss == static_cast<std::uint32_t>(Loss::kNone)) {
      entry.loss = static_cast<std::uint32_t>(Loss::kPowerCut);
    }
    entry.flags &= ~kRegionSettled;
  }
  // The older copy first: at any instant one of the two is right.
  for (int turn = 0; turn < 2; ++turn) {
    ++header->generation;
    seal(*header);
    std::memcpy(image.data() + header_offset(header->generation), &*header, sizeof *header);
  }
}

}  // namespace sandbay::nvram
