// Journal records: the header that stands before an update's bytes, on drives and in NVRAM.
//
// Little-endian; the header is 96 bytes and 16 for each write, at most 4096 in all:
//
//    0  8  magic "SBJRNL01"           64  8  stripe
//    8  2  flags: 1 tail only         72  8  bytes of payload
//   10  2  number of writes           80  4  CRC32C of the payload
//   12  4  CRC32C of the header,      84  4  mark of the live drives; 0: not known
//          this field taken as 0      88  8  key of the journal; 0 in NVRAM
//   16 16  UUID of the set            96     writes: 8 first block, 4 block count, 2 role,
//   32  8  sequence                                  2 flags: 1 zeroes
//   40  8  tail: the oldest sequence that was live
//   48  8  batch: the first sequence that was written together with this one
//   56  8  position: where it stands, in units since the ring began
//
// A header that decodes is consistent in itself; whether it belongs where it was found is judged
// by who reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "raid/journal.h"
#include "runtime/crc32c.h"
#include "runtime/uuid.h"

namespace sandbay::raid {

inline constexpr std::size_t kJournalHeaderBytes = 96;
inline constexpr std::size_t kJournalWriteBytes = 16;
inline constexpr std::size_t kMostJournalHeaderBytes =
    kJournalHeaderBytes + kMostJournalWrites * kJournalWriteBytes;
static_assert(kMostJournalHeaderBytes <= 4096);
inline constexpr unsigned kMostJournalRoles = 64;

struct JournalHeader {
  Uuid set{};
  bool tail_only = false;  // No update: only says where the tail is.
  std::uint16_t write_count = 0;
  std::uint64_t sequence = 0;
  std::uint64_t tail = 0;
  std::uint64_t batch = 0;
  std::uint64_t position = 0;
  std::uint64_t stripe = 0;
  std::uint64_t payload_bytes = 0;
  std::uint32_t payload_crc = 0;
  // Tells which drives took records when this one was written (set_back.h).
  std::uint32_t live_mark = 0;
  std::uint64_t key = 0;  // Of the journal's life (Journal::Keys); 0 in NVRAM.
  std::uint32_t crc = 0;  // Of the header itself; decoded, not encoded.

  std::size_t byte_count() const noexcept {
    return kJournalHeaderBytes + write_count * kJournalWriteBytes;
  }
};

// What the writes bring along. A list that no record can hold (none or too many writes, an empty
// one, blocks or bytes beyond what can be counted) has none.
std::optional<std::uint64_t> journal_payload_bytes(std::span<const JournalWrite> writes,
                                                   std::uint32_t block_bytes);

// Fills header.byte_count() bytes of `target` and zeroes the rest.
void encode_journal_header(const JournalHeader& header, std::span<const JournalWrite> writes,
                           std::span<std::byte> target);

// The header at the beginning of `bytes`, or none if there is no valid one.
std::optional<JournalHeader> decode_journal_header(std::span<const std::byte> bytes,
                                                   std::uint32_t block_bytes);
// Its writes; `bytes` are those that the header was decoded from.
std::vector<JournalWrite> decode_journal_writes(const JournalHeader& header,
                                                std::span<const std::byte> bytes);

}  // namespace sandbay::raid
