// The integrity area of a drive, byte by byte. Pure.
//
// A cell is 4 KiB of a role's data area, data and parity alike, counted from the area's beginning.
// Of each cell an entry is kept: a CRC32C and a generation, which grows by one with each write of
// the cell. The entry stands twice: on the role's own drive, and on its partner's, the next role of
// its group. So block i of a drive's integrity area has, for the 240 cells from 240 * i on, the
// entries of its own cells and those of the role before it.
//
// Little-endian; a block has 4 KiB:
//
//    0  8  magic "SBINTEG1"               40  216  zeros
//    8  4  CRC32C of the whole block,    256  240 entries of the role itself
//          this field taken as 0        2176  240 entries of the role before it
//   12  2  role   14  2  zeros
//   16 16  UUID of the set              An entry: 4 CRC32C of the set's UUID, the role (4), the
//   32  8  number of the block          cell's number (8) and the cell's bytes; 4 generation
//
// Generation 0: nothing is known of the cell. Generations wrap around, leaving out 0; of two, the
// one that the other is behind of by less than 2^31 is the newer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/buffer.h"
#include "runtime/uuid.h"

namespace sandbay::raid {

inline constexpr std::size_t kCellBytes = 4096;
inline constexpr std::size_t kIntegrityBlockBytes = 4096;
inline constexpr std::uint32_t kCellsPerBlock = 240;

// The size of the integrity area for so many bytes of data area.
constexpr std::uint64_t integrity_area_bytes(std::uint64_t data_bytes) {
  const std::uint64_t cells = (data_bytes + kCellBytes - 1) / kCellBytes;
  return (cells + kCellsPerBlock - 1) / kCellsPerBlock * kIntegrityBlockBytes;
}

struct IntegrityEntry {
  std::uint32_t crc = 0;
  std::uint32_t generation = 0;

  bool known() const noexcept { return generation != 0; }
  bool never_written() const noexcept { return generation == 0 && crc == 0; }
  bool newer_than(const IntegrityEntry& other) const noexcept {
    if (!known() || !other.known()) return known();
    return static_cast<std::int32_t>(generation - other.generation) > 0;
  }
  bool operator==(const IntegrityEntry&) const = default;
};

// Stands for an entry that there may have been and that is nowhere any more.
inline constexpr IntegrityEntry kForgottenEntry{.crc = ~std::uint32_t{0}, .generation = 0};

constexpr std::uint32_t generation_after(std::uint32_t generation) {
  return generation + 1 == 0 ? 1 : generation + 1;
}

// Which of a cell's two entries: that on its own drive or that on its partner's.
enum class EntryCopy : std::uint8_t { kOwn, kPartner };

IntegrityEntry get_entry(std::span<const std::byte> block, EntryCopy copy, std::uint32_t slot);
void put_entry(std::span<std::byte> block, EntryCopy copy, std::uint32_t slot,
               IntegrityEntry entry);

struct IntegrityBlockName {
  Uuid set{};
  unsigned role = 0;
  std::uint64_t index = 0;
};
// Fills in all but the entries.
void seal_integrity_block(std::span<std::byte> block, const IntegrityBlockName& name);

// What stands where a block belongs. A block of zeros, or one of another set, has never been
// written; what is neither whole nor that is damaged.
enum class IntegrityBlockState : std::uint8_t { kWhole, kNeverWritten, kDamaged };
IntegrityBlockState examine_integrity_block(std::span<const std::byte> block,
                                            const IntegrityBlockName& name);

// The CRC of a cell whose bytes stand in `data` from `offset` on.
std::uint32_t cell_crc(const Uuid& set, unsigned role, std::uint64_t cell, const BufferList& data,
                       std::size_t offset);
std::uint32_t zero_cell_crc(const Uuid& set, unsigned role, std::uint64_t cell);

}  // namespace sandbay::raid
