// Encoding and decoding of journal records.

#include "raid/journal_record.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <limits>

#include "runtime/byte_order.h"

namespace sandbay::raid {
namespace {

constexpr std::array<char, 8> kJournalMagic = {'S', 'B', 'J', 'R', 'N', 'L', '0', '1'};
constexpr std::uint16_t kTailOnly = 1;
constexpr std::uint16_t kZeroes = 1;
constexpr std::size_t kCrcOffset = 12;
// Sequences and positions stay far below what arithmetic on them could overflow.
constexpr std::uint64_t kLargestCounter = std::uint64_t{1} << 62U;
constexpr std::uint64_t kLargestPayload = std::uint64_t{1} << 40U;

JournalWrite decode_write(std::span<const std::byte> bytes) {
  return {.role = little_endian<std::uint16_t>(bytes, 12),
          .zeroes = (little_endian<std::uint16_t>(bytes, 14) & kZeroes) != 0,
          .extent = {.first = little_endian<std::uint64_t>(bytes, 0),
                     .block_count = little_endian<std::uint32_t>(bytes, 8)}};
}

bool consistent(const JournalHeader& header, std::span<const std::byte> bytes,
                std::uint32_t block_bytes) {
  if (header.sequence == 0 || header.sequence >= kLargestCounter) return false;
  if (header.tail > header.sequence || header.batch > header.sequence) return false;
  if (header.position >= kLargestCounter) return false;
  if (header.tail_only) return header.write_count == 0 && header.payload_bytes == 0;
  std::array<JournalWrite, kMostJournalWrites> writes;
  for (std::size_t i = 0; i < header.write_count; ++i) {
    writes[i] = decode_write(
        bytes.subspan(kJournalHeaderBytes + i * kJournalWriteBytes, kJournalWriteBytes));
  }
  const auto payload =
      journal_payload_bytes(std::span(writes).first(header.write_count), block_bytes);
  return payload.has_value() && *payload == header.payload_bytes;
}

}  // namespace

std::optional<std::uint64_t> journal_payload_bytes(std::span<const JournalWrite> writes,
                                                   std::uint32_t block_bytes) {
  if (writes.empty() || writes.size() > kMostJournalWrites) return std::nullopt;
  std::uint64_t total = 0;
  for (const JournalWrite& write : writes) {
    const Extent& extent = write.extent;
    if (write.role >= kMostJournalRoles) return std::nullopt;
    if (extent.block_count == 0) return std::nullopt;
    if (extent.block_count > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
    if (extent.first >= kLargestCounter) return std::nullopt;
    if (!write.zeroes) total += extent.byte_count(block_bytes);
  }
  if (total > kLargestPayload) return std::nullopt;
  return total;
}

void encode_journal_header(const JournalHeader& header, std::span<const JournalWrite> writes,
                           std::span<std::byte> target) {
  assert(header.write_count == writes.size());
  assert(target.size() >= header.byte_count());
  std::ranges::fill(target, std::byte{0});
  std::memcpy(target.data(), kJournalMagic.data(), kJournalMagic.size());
  put_little_endian<std::uint16_t>(target, 8, header.tail_only ? kTailOnly : 0);
  put_little_endian<std::uint16_t>(target, 10, header.write_count);
  std::memcpy(target.data() + 16, header.set.data(), header.set.size());
  put_little_endian(target, 32, header.sequence);
  put_little_endian(target, 40, header.tail);
  put_little_endian(target, 48, header.batch);
  put_little_endian(target, 56, header.position);
  put_little_endian(target, 64, header.stripe);
  put_little_endian(target, 72, header.payload_bytes);
  put_little_endian(target, 80, header.payload_crc);
  put_little_endian(target, 84, header.live_mark);
  put_little_endian(target, 88, header.key);
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const auto entry =
        target.subspan(kJournalHeaderBytes + i * kJournalWriteBytes, kJournalWriteBytes);
    put_little_endian<std::uint64_t>(entry, 0, writes[i].extent.first);
    put_little_endian(entry, 8, static_cast<std::uint32_t>(writes[i].extent.block_count));
    put_little_endian<std::uint16_t>(entry, 12, writes[i].role);
    put_little_endian<std::uint16_t>(entry, 14, writes[i].zeroes ? kZeroes : 0);
  }
  put_little_endian(target, kCrcOffset,
                    crc32c_around(target.first(header.byte_count()), kCrcOffset));
}

std::optional<JournalHeader> decode_journal_header(std::span<const std::byte> bytes,
                                                   std::uint32_t block_bytes) {
  if (bytes.size() < kJournalHeaderBytes) return std::nullopt;
  if (std::memcmp(bytes.data(), kJournalMagic.data(), kJournalMagic.size()) != 0)
    return std::nullopt;
  JournalHeader header;
  header.write_count = little_endian<std::uint16_t>(bytes, 10);
  if (header.write_count > kMostJournalWrites) return std::nullopt;
  if (bytes.size() < header.byte_count()) return std::nullopt;
  header.crc = little_endian<std::uint32_t>(bytes, kCrcOffset);
  if (header.crc != crc32c_around(bytes.first(header.byte_count()), kCrcOffset))
    return std::nullopt;
  header.tail_only = (little_endian<std::uint16_t>(bytes, 8) & kTailOnly) != 0;
  std::memcpy(header.set.data(), bytes.data() + 16, header.set.size());
  header.sequence = little_endian<std::uint64_t>(bytes, 32);
  header.tail = little_endian<std::uint64_t>(bytes, 40);
  header.batch = little_endian<std::uint64_t>(bytes, 48);
  header.position = little_endian<std::uint64_t>(bytes, 56);
  header.stripe = little_endian<std::uint64_t>(bytes, 64);
  header.payload_bytes = little_endian<std::uint64_t>(bytes, 72);
  header.payload_crc = little_endian<std::uint32_t>(bytes, 80);
  header.live_mark = little_endian<std::uint32_t>(bytes, 84);
  header.key = little_endian<std::uint64_t>(bytes, 88);
  if (!consistent(header, bytes, block_bytes)) return std::nullopt;
  return header;
}

std::vector<JournalWrite> decode_journal_writes(const JournalHeader& header,
                                                std::span<const std::byte> bytes) {
  std::vector<JournalWrite> writes(header.write_count);
  for (std::size_t i = 0; i < writes.size(); ++i) {
    writes[i] = decode_write(
        bytes.subspan(kJournalHeaderBytes + i * kJournalWriteBytes, kJournalWriteBytes));
  }
  return writes;
}

}  // namespace sandbay::raid
