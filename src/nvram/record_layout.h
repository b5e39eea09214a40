// A log in memory, byte by byte (see docs/formats/nvram.md): two control blocks, a page each,
// written in turn, and a ring of records.
//
// Positions count bytes since the log was formatted and never go back; a record stands at its
// position modulo the ring's size, in one piece, and carries its position, so that what an earlier
// lap left there is never taken for a record of this one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "runtime/crc32c.h"

namespace sandbay::nvram {

inline constexpr std::uint32_t kControlMagic = 0x474c4253U;  // "SBLG"
inline constexpr std::uint32_t kRecordMagic = 0x43524253U;   // "SBRC"
inline constexpr std::uint64_t kRecordAlignment = 64;

struct ControlBlock {
  std::uint32_t magic;
  std::uint32_t checksum;       // CRC32C of everything behind it.
  std::uint64_t generation;     // The higher one of two right blocks counts.
  std::uint64_t log_id;         // Drawn at each format; records carry its lower half.
  std::uint64_t capacity;       // Of the ring, in bytes.
  std::uint64_t head_sequence;  // The next record's.
  std::uint64_t head_position;
  std::uint64_t tail_sequence;  // All before it are released and may be overwritten.
  std::uint64_t tail_position;
  std::uint64_t durable_head;    // All before it were appended before the last completed commit.
  std::uint64_t durable_epoch;   // Releases of this epoch and before are durable.
  std::uint64_t epoch;           // Of releases that follow.
  std::uint64_t forgiven_first;  // Missing records in [first, end) were reported already.
  std::uint64_t forgiven_end;
};
static_assert(sizeof(ControlBlock) == 104);

struct RecordHeader {
  std::uint32_t magic;
  std::uint32_t checksum;  // CRC32C of bytes 8 to 39 and the descriptor.
  std::uint64_t sequence;
  std::uint64_t position;
  std::uint32_t log_id;
  std::uint32_t descriptor_bytes;
  std::uint32_t payload_bytes;
  std::uint32_t payload_checksum;
  std::uint64_t reserved;
  // Zeros, or the mark of a release: its epoch, and then what makes it count.
  std::uint64_t release_epoch;
  std::uint64_t release_check;
};
static_assert(sizeof(RecordHeader) == kRecordAlignment);
static_assert(offsetof(RecordHeader, reserved) == 40);
static_assert(offsetof(RecordHeader, release_epoch) == 48);
static_assert(offsetof(RecordHeader, release_check) == 56);

inline std::uint64_t payload_offset(std::uint64_t descriptor_bytes) {
  return sizeof(RecordHeader) + (descriptor_bytes + 7) / 8 * 8;
}

// With header, descriptor and payload; what a record takes in the ring.
inline std::uint64_t record_bytes(std::uint64_t descriptor_bytes, std::uint64_t payload_bytes) {
  const std::uint64_t bytes = payload_offset(descriptor_bytes) + payload_bytes;
  return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

inline std::uint32_t checksum_of(const ControlBlock& block) {
  return crc32c(std::as_bytes(std::span(&block, 1)).subspan(8));
}

inline std::uint32_t checksum_of(const RecordHeader& header,
                                 std::span<const std::byte> descriptor) {
  Crc32c crc;
  crc.update(std::as_bytes(std::span(&header, 1)).subspan(8, 32));
  crc.update(descriptor);
  return crc.value();
}

// Never zero.
inline std::uint64_t release_check(const RecordHeader& header, std::uint64_t epoch) {
  const std::uint64_t words[] = {header.sequence, header.position, header.log_id, epoch};
  return std::uint64_t{kRecordMagic} << 32U | crc32c(std::as_bytes(std::span(words)));
}

// The header at `offset` of the ring if it is one and lies with its record within the ring; of
// whatever log and lap.
std::optional<RecordHeader> read_record(std::span<const std::byte> ring, std::uint64_t offset);
// The control block that counts; `slot` is its page.
struct FoundControl {
  ControlBlock block;
  std::size_t slot = 0;
};
std::optional<FoundControl> read_control(std::span<const std::byte> controls,
                                         std::uint64_t capacity);

}  // namespace sandbay::nvram
