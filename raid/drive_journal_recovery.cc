// What a crash left in the rings.
//
// Batches are written one after another, each when the one before is durable. So of the records
// from the tail to the newest batch every one was durable, and each that cannot be found any more
// is a loss; of the newest batch any part may be missing without anybody having been told that it
// was there. What was found is returned, and for that it is first made durable again: the owner is
// about to write it in place, and if it is interrupted, the next recovery must find the same
// records, whichever drives it sees. The newest record is among them and carries the newest tail.
#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

#include "raid/drive_journal.h"
#include "raid/journal_newest.h"
#include "runtime/buffer.h"

namespace sandbay::raid {

Task<Result<JournalRecovery>> DriveJournal::recover() {
  assert(first_waiter_ == nullptr && !committing_);
  ready_ = false;
  failure_ = Error::kNone;
  co_await prepare_headers();
  // What was found on a drive that fails meanwhile counts no more.
  for (unsigned attempt = 0; attempt <= kMostJournalRoles; ++attempt) {
    const std::uint64_t live = drives_.live_roles();
    Result<JournalRecovery> result = co_await recover_once();
    if (drives_.live_roles() != live) continue;
    if (!result.has_value()) failure_ = result.error();
    co_return result;
  }
  failure_ = Error::kNotReady;
  co_return std::unexpected(failure_);
}

Task<Result<JournalRecovery>> DriveJournal::recover_once() {
  JournalScan scan(drives_, ring_, keys_, home_);
  const Error scanned = co_await scan.run();
  if (scanned != Error::kNone) co_return std::unexpected(scanned);
  adopt(scan);
  JournalRecovery recovery;
  recovery.all_lost = scan.end_uncertain() || scan.life_missing();
  if (scan.records().empty()) co_return recovery;

  const std::uint64_t newest_batch =
      std::max(scan.records().rbegin()->second.header.batch, scan.tail());
  std::uint64_t durable_count = 0;
  for (const auto& [sequence, record] : scan.records()) {
    const bool was_durable = sequence < newest_batch;
    if (was_durable) ++durable_count;
    std::vector<std::byte> payload;
    std::uint64_t good = 0;
    for (unsigned role = 0; role < ring_.role_count; ++role) {
      if ((record.roles >> role & 1U) == 0) continue;
      const bool intact = co_await scan.read_payload(&record, role, good == 0 ? &payload : nullptr);
      if (intact) good |= std::uint64_t{1} << role;
    }
    if (good == 0) {
      if (was_durable && !record.header.tail_only) {
        recovery.lost.push_back(
            {.sequence = sequence, .stripe = record.header.stripe, .writes = record.writes});
      }
      continue;
    }
    const Error restored = co_await restore_copies(&record, &payload, good);
    if (restored != Error::kNone) co_return std::unexpected(restored);
    if (record.header.tail_only) continue;
    recovery.updates.push_back({.sequence = sequence,
                                .stripe = record.header.stripe,
                                .writes = record.writes,
                                .payload = std::move(payload)});
  }
  // Of which stripes the others were nobody knows.
  if (durable_count < newest_batch - scan.tail()) {
    recovery.all_lost = true;
    std::uint64_t missing = newest_batch - 1;
    while (scan.records().contains(missing)) --missing;
    give_up_before(missing, recovery);
  }
  keep_newest(recovery.updates, recovery.lost, ring_.block_bytes);
  co_return recovery;
}

// Writes the record where it stands to as many drives as a durable one is on.
Task<Error> DriveJournal::restore_copies(const FoundRecord* record,
                                         const std::vector<std::byte>* payload,
                                         std::uint64_t good) {
  const std::uint64_t live = drives_.live_roles();
  if (ring_.group_with_copies(good, live) < ring_.group_count) co_return Error::kNone;
  const std::uint64_t units = ring_.record_units(record->header);
  BufferList data = home_.buffers().try_allocate(units * ring_.unit_bytes);
  if (data.empty()) co_return Error::kNoMemory;
  data.fill_zero();
  std::vector<std::byte> header(ring_.header_units(record->header) * ring_.unit_bytes);
  encode_journal_header(record->header, record->writes, header);
  data.copy_from(header);
  data.copy_from(*payload, header.size());
  co_return co_await write_copies(record->header.position, &data, good);
}

// Where the ring goes on: behind the newest record, and with a sequence beyond any that an absent
// drive may have seen. More than one batch that is not durable it cannot have.
void DriveJournal::adopt(const JournalScan& scan) {
  head_ = 0;
  tail_position_ = 0;
  if (!scan.records().empty()) {
    const JournalHeader& oldest = scan.records().begin()->second.header;
    const JournalHeader& newest = scan.records().rbegin()->second.header;
    head_ = newest.position + ring_.record_units(newest);
    next_sequence_ = std::max(next_sequence_, newest.sequence + 1);
    // Records that contradict each other are not ours; the figure stays within the ring.
    const std::uint64_t lowest = head_ - std::min(head_, ring_.unit_count());
    tail_position_ = std::clamp(oldest.position, lowest, head_);
  }
  next_sequence_ += kMostBatchRecords;
  tail_sequence_ = next_sequence_;
  first_sequence_ = next_sequence_;
}

Task<Error> DriveJournal::reset() {
  assert(!ready_ && first_waiter_ == nullptr && !committing_);
  if (failure_ != Error::kNone) co_return failure_;
  co_await prepare_headers();
  life_ = keys_.next;
  while (life_ == 0) life_ = home_.random().next();
  tail_position_ = head_;
  durable_tail_position_ = head_;
  Batch batch;
  add_record(batch, head_, nullptr);
  const Error error = co_await store(batch);
  finish(batch, error);
  ready_ = error == Error::kNone;
  co_return error;
}

}  // namespace sandbay::raid
