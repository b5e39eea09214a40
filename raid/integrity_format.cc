// Entries, blocks and checksums of the integrity area; see the header for the bytes.
#include "raid/integrity_format.h"

#include <array>
#include <cassert>
#include <string_view>

#include "raid/metadata_image.h"
#include "runtime/byte_order.h"
#include "runtime/crc32c.h"

namespace sandbay::raid {

namespace {

constexpr std::string_view kIntegrityMagic = "SBINTEG1";
constexpr std::size_t kCrcAt = 8;
constexpr std::size_t kRoleAt = 12;
constexpr std::size_t kSetAt = 16;
constexpr std::size_t kIndexAt = 32;
constexpr std::size_t kEntriesAt = 256;
constexpr std::size_t kEntryBytes = 8;
static_assert(kEntriesAt + 2 * kCellsPerBlock * kEntryBytes == kIntegrityBlockBytes);

constexpr std::array<std::byte, kCellBytes> kZeroCell{};

std::size_t entry_at(EntryCopy copy, std::uint32_t slot) {
  assert(slot < kCellsPerBlock);
  const std::size_t before = copy == EntryCopy::kOwn ? 0 : kCellsPerBlock;
  return kEntriesAt + (before + slot) * kEntryBytes;
}

Crc32c crc_of_address(const Uuid& set, unsigned role, std::uint64_t cell) {
  std::array<std::byte, 28> address;
  put_uuid(address, 0, set);
  put_little_endian(std::span<std::byte>(address), 16, std::uint32_t{role});
  put_little_endian(std::span<std::byte>(address), 20, cell);
  Crc32c crc;
  crc.update(address);
  return crc;
}

}  // namespace

IntegrityEntry get_entry(std::span<const std::byte> block, EntryCopy copy, std::uint32_t slot) {
  const std::size_t at = entry_at(copy, slot);
  return {.crc = little_endian<std::uint32_t>(block, at),
          .generation = little_endian<std::uint32_t>(block, at + 4)};
}

void put_entry(std::span<std::byte> block, EntryCopy copy, std::uint32_t slot,
               IntegrityEntry entry) {
  const std::size_t at = entry_at(copy, slot);
  put_little_endian(block, at, entry.crc);
  put_little_endian(block, at + 4, entry.generation);
}

void seal_integrity_block(std::span<std::byte> block, const IntegrityBlockName& name) {
  assert(block.size() == kIntegrityBlockBytes);
  std::memset(block.data(), 0, kEntriesAt);
  std::memcpy(block.data(), kIntegrityMagic.data(), kIntegrityMagic.size());
  put_little_endian(block, kRoleAt, static_cast<std::uint16_t>(name.role));
  put_uuid(block, kSetAt, name.set);
  put_little_endian(block, kIndexAt, name.index);
  put_little_endian(block, kCrcAt, crc32c_around(block, kCrcAt));
}

IntegrityBlockState examine_integrity_block(std::span<const std::byte> block,
                                            const IntegrityBlockName& name) {
  assert(block.size() == kIntegrityBlockBytes);
  if (all_zeros(block)) return IntegrityBlockState::kNeverWritten;
  if (!has_magic(block, kIntegrityMagic) ||
      little_endian<std::uint32_t>(block, kCrcAt) != crc32c_around(block, kCrcAt)) {
    return IntegrityBlockState::kDamaged;
  }
  if (get_uuid(block, kSetAt) != name.set) return IntegrityBlockState::kNeverWritten;
  const bool here = little_endian<std::uint16_t>(block, kRoleAt) == name.role &&
                    little_endian<std::uint64_t>(block, kIndexAt) == name.index;
  return here ? IntegrityBlockState::kWhole : IntegrityBlockState::kDamaged;
}

std::uint32_t cell_crc(const Uuid& set, unsigned role, std::uint64_t cell, const BufferList& data,
                       std::size_t offset) {
  Crc32c crc = crc_of_address(set, role, cell);
  std::size_t left = kCellBytes;
  for (std::size_t i = 0; i < data.slice_count() && left > 0; ++i) {
    const Buffer& slice = data[i];
    if (offset >= slice.byte_count()) {
      offset -= slice.byte_count();
      continue;
    }
    const std::size_t length = std::min(left, slice.byte_count() - offset);
    crc.update(std::span<const std::byte>(slice.bytes()).subspan(offset, length));
    left -= length;
    offset = 0;
  }
  assert(left == 0);
  return crc.value();
}

std::uint32_t zero_cell_crc(const Uuid& set, unsigned role, std::uint64_t cell) {
  Crc32c crc = crc_of_address(set, role, cell);
  crc.update(kZeroCell);
  return crc.value();
}

}  // namespace sandbay::raid
