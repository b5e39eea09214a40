// The verify pattern. Block: magic, seed, LBA, generation, CRC32C of the whole block with the CRC
// field zero, then words of a sequence that the identity starts (SplitMix64, Steele 2014).
#include "lab/pattern.h"

#include <fmt/core.h>

#include <cassert>

#include "runtime/byte_order.h"
#include "runtime/crc32c.h"

namespace sandbay::lab {
namespace {

constexpr std::uint32_t kMagic = 0x53424C44;
constexpr std::size_t kCrcOffset = 24;

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31U);
}

// Over everything but the CRC field itself.
std::uint32_t block_crc(std::span<const std::byte> block) {
  Crc32c crc;
  crc.update(block.first(kCrcOffset));
  crc.update(block.subspan(kCrcOffset + 4));
  return crc.value();
}

}  // namespace

void fill_pattern(std::span<std::byte> block, const PatternIdentity& identity) {
  assert(block.size() >= 512 && block.size() % 8 == 0);
  put_big_endian<std::uint32_t>(block, 0, kMagic);
  put_big_endian<std::uint32_t>(block, 4, identity.generation);
  put_big_endian<std::uint64_t>(block, 8, identity.seed);
  put_big_endian<std::uint64_t>(block, 16, identity.lba);
  put_big_endian<std::uint32_t>(block, kCrcOffset, 0);
  put_big_endian<std::uint32_t>(block, kCrcOffset + 4, 0);
  std::uint64_t state =
      mix(identity.seed + mix(identity.lba) + std::uint64_t{identity.generation} * 0x9E3779B9U);
  for (std::size_t at = kPatternHeaderBytes; at < block.size(); at += 8) {
    state += 0x9E3779B97F4A7C15U;
    const std::uint64_t word = mix(state);
    std::memcpy(block.data() + at, &word, sizeof word);
  }
  put_big_endian<std::uint32_t>(block, kCrcOffset, block_crc(block));
}

PatternCheck check_pattern(std::span<const std::byte> block) {
  assert(block.size() >= 512);
  PatternCheck check;
  check.identity = {.seed = big_endian<std::uint64_t>(block, 8),
                    .lba = big_endian<std::uint64_t>(block, 16),
                    .generation = big_endian<std::uint32_t>(block, 4)};
  check.intact = big_endian<std::uint32_t>(block, 0) == kMagic &&
                 big_endian<std::uint32_t>(block, kCrcOffset) == block_crc(block);
  return check;
}

void fill_unit(const BufferList& data, std::uint32_t block_bytes, const PatternIdentity& first) {
  PatternIdentity identity = first;
  for (std::size_t index = 0; index < data.slice_count(); ++index) {
    const std::span<std::byte> slice = data[index].bytes();
    assert(slice.size() % block_bytes == 0);
    for (std::size_t at = 0; at < slice.size(); at += block_bytes, ++identity.lba) {
      fill_pattern(slice.subspan(at, block_bytes), identity);
    }
  }
}

std::string check_unit(const BufferList& data, std::uint32_t block_bytes, std::uint64_t seed,
                       std::uint64_t first_lba, const UnitMap& map, std::uint64_t unit) {
  if (!map.content_known(unit)) return {};
  std::uint64_t lba = first_lba;
  for (std::size_t index = 0; index < data.slice_count(); ++index) {
    const std::span<std::byte> slice = data[index].bytes();
    for (std::size_t at = 0; at < slice.size(); at += block_bytes, ++lba) {
      const PatternCheck check = check_pattern(slice.subspan(at, block_bytes));
      const PatternIdentity& found = check.identity;
      if (!check.intact) return fmt::format("LBA {}: content is not what was written", lba);
      if (found.lba != lba) return fmt::format("LBA {}: holds what belongs to {}", lba, found.lba);
      if (found.seed != seed) {
        return fmt::format("LBA {}: written with seed {}, not {}", lba, found.seed, seed);
      }
      if (!map.allows(unit, found.generation)) {
        return fmt::format("LBA {}: generation {}, expected {} to {}", lba, found.generation,
                           map.acknowledged(unit), map.sent(unit));
      }
    }
  }
  return {};
}

}  // namespace sandbay::lab
