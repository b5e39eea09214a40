// JournalScan: reads the journal's ring on every live drive and finds what is in it.
//
// The rings may hold anything: remains of earlier laps and of other sets, torn records, blocks that
// cannot be read. A header counts if it is valid, of this set and this life of the journal, and
// stands where it says. Rings are read in pieces, all drives at once; only headers from the newest
// tail on are remembered, and of all which batch they belong to.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "raid/journal.h"
#include "raid/journal_record.h"
#include "runtime/executor.h"
#include "runtime/sync.h"

namespace sandbay::raid {

// Where the ring is, and whose.
struct JournalRing {
  Uuid set{};
  Lba first_block = 0;            // On every drive.
  std::uint64_t block_count = 0;  // Of the ring on one drive.
  std::uint32_t block_bytes = 512;
  std::uint32_t unit_bytes = 4096;  // The largest physical block of the drives.
  unsigned copies = 1;              // On how many drives a record is durable: redundancy + 1.
  unsigned role_count = 1;          // At most 64.
  // Of as many roles each, side by side. Each group may miss copies - 1 drives, all groups at once;
  // so all copies of a record are in one of them.
  unsigned group_count = 1;

  std::uint64_t byte_count() const noexcept { return block_count * block_bytes; }
  std::uint64_t unit_count() const noexcept { return byte_count() / unit_bytes; }
  // `position` counts units since the ring began; the units do not pass its end.
  Extent extent(std::uint64_t position, std::uint64_t units) const noexcept {
    const std::uint64_t unit_blocks = unit_bytes / block_bytes;
    return {.first = first_block + position % unit_count() * unit_blocks,
            .block_count = units * unit_blocks};
  }
  unsigned group_width() const noexcept { return role_count / group_count; }
  std::uint64_t roles_of_group(unsigned group) const noexcept {
    const unsigned width = group_width();
    const std::uint64_t members = width >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1;
    return members << group * width;
  }
  // So many batches one after another are on every drive that is live all the while: they go round
  // the groups, and in each round its drives.
  std::uint64_t rotation() const noexcept {
    return std::uint64_t{group_count} * ((group_width() + copies - 1) / copies);
  }
  // The first group in which a record that is in the rings of these roles has as many copies as it
  // should, with these drives live; group_count if there is none.
  unsigned group_with_copies(std::uint64_t roles, std::uint64_t live) const noexcept {
    for (unsigned group = 0; group < group_count; ++group) {
      const std::uint64_t here = live & roles_of_group(group);
      const auto wanted = std::min(copies, static_cast<unsigned>(std::popcount(here)));
      const auto have = static_cast<unsigned>(std::popcount(roles & here));
      if (have > 0 && have >= wanted) return group;
    }
    return group_count;
  }
  std::uint64_t header_units(const JournalHeader& header) const noexcept {
    return (header.byte_count() + unit_bytes - 1) / unit_bytes;
  }
  std::uint64_t record_units(const JournalHeader& header) const noexcept {
    return header_units(header) + (header.payload_bytes + unit_bytes - 1) / unit_bytes;
  }
};

struct FoundRecord {
  JournalHeader header;
  std::vector<JournalWrite> writes;
  std::uint64_t roles = 0;  // On whose drives the header is good.
};

class JournalScan {
 public:
  static constexpr std::size_t kPieceBytes = 256 * 1024;

  JournalScan(JournalDrives& drives, const JournalRing& ring, Journal::Keys keys, Executor& home)
      : drives_(drives), ring_(ring), keys_(keys), home_(home), newest_batch_(ring.role_count) {}

  // Once. Drives that fail meanwhile are left out; fails if none is left.
  Task<Error> run();

  // The records from the newest tail on, by sequence; the last one is the newest.
  const std::map<std::uint64_t, FoundRecord>& records() const noexcept { return records_; }
  std::uint64_t tail() const noexcept { return tail_; }
  // A durable batch may have followed the newest one that was found, on drives that are absent and
  // in units that cannot be read.
  bool end_uncertain() const;
  // A life under a key that is known left something, and nothing of it is here.
  bool life_missing() const noexcept { return keys_.last != 0 && records_.empty(); }

  // The roles whose drives are live and lack all of the last records that they had to have, by what
  // the others have (set_back.h): `mark` is that of the drives that were live last.
  std::uint64_t set_back_roles(std::uint32_t mark) const;

  // Whether the record's payload on the role's drive is good; `payload` becomes a copy of it unless
  // it is null. It refers to its parameters: the caller awaits it at once.
  Task<bool> read_payload(const FoundRecord* record, unsigned role,
                          std::vector<std::byte>* payload) const;

 private:
  struct Unreadable {
    unsigned role = 0;
    std::uint64_t first = 0;
    std::uint64_t end = 0;
  };

  Task<Completion> read(unsigned role, std::uint64_t unit, std::uint64_t units) const;
  Task<void> scan_drive(unsigned role);
  // Reads `units` units from `unit` on, with what a header there may reach into behind them.
  Task<Error> scan_piece(unsigned role, std::uint64_t unit, std::uint64_t units);
  Task<void> scan_by_unit(unsigned role, std::uint64_t unit, std::uint64_t units);
  void look_for_headers(unsigned role, std::uint64_t unit, std::uint64_t units,
                        std::span<const std::byte> bytes);
  bool of_this_life(const JournalHeader& header);
  void note(unsigned role, const JournalHeader& header, std::span<const std::byte> bytes);
  void note_batch(unsigned role, const JournalHeader& header);
  std::uint64_t most_header_units() const noexcept {
    return (kMostJournalHeaderBytes + ring_.unit_bytes - 1) / ring_.unit_bytes;
  }
  bool live(unsigned role) const { return (drives_.live_roles() >> role & 1U) != 0; }

  JournalDrives& drives_;
  const JournalRing& ring_;
  const Journal::Keys keys_;
  Executor& home_;
  bool next_begun_ = false;  // A record of the next life was seen: those of the last are done with.
  std::map<std::uint64_t, FoundRecord> records_;
  std::uint64_t tail_ = 0;
  std::map<std::uint64_t, std::uint32_t> batches_;  // Of this life: by first sequence, the mark.
  std::vector<std::uint64_t> newest_batch_;         // By role; 0: it has none.
  std::vector<Unreadable> unreadable_;
  Error last_error_ = Error::kNotReady;
  Gate scanning_;
};

}  // namespace sandbay::raid
