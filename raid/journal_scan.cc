// Reading the rings.

#include "raid/journal_scan.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

#include "runtime/buffer.h"

namespace sandbay::raid {
namespace {

constexpr std::uint64_t kFarthest = std::uint64_t{1} << 60U;

}  // namespace

Task<Error> JournalScan::run() {
  assert(records_.empty());
  for (unsigned role = 0; role < ring_.role_count; ++role) {
    if (!live(role)) continue;
    const bool entered = scanning_.enter();
    assert(entered);
    spawn(scan_drive(role));
  }
  co_await scanning_.drain();
  const std::uint64_t live_now = drives_.live_roles();
  if (live_now == 0) co_return last_error_;
  for (auto& [sequence, record] : records_) record.roles &= live_now;
  std::erase_if(records_, [](const auto& item) { return item.second.roles == 0; });
  co_return Error::kNone;
}

Task<Completion> JournalScan::read(unsigned role, std::uint64_t unit, std::uint64_t units) const {
  Request request;
  request.operation = Operation::kRead;
  request.origin = Origin::kRebuild;
  request.extent = ring_.extent(unit, units);
  request.data = co_await home_.buffers().allocate(units * ring_.unit_bytes);
  co_return co_await drives_.journal_io(role, std::move(request));
}

Task<void> JournalScan::scan_drive(unsigned role) {
  // A piece and what a header at its end may reach into are one block of the pool.
  const std::uint64_t piece = kPieceBytes / ring_.unit_bytes - (most_header_units() - 1);
  for (std::uint64_t unit = 0; unit < ring_.unit_count() && live(role); unit += piece) {
    const std::uint64_t units = std::min(piece, ring_.unit_count() - unit);
    const Error error = co_await scan_piece(role, unit, units);
    if (error == Error::kNone) continue;
    last_error_ = error;
    if (error == Error::kMediumError) {
      co_await scan_by_unit(role, unit, units);
    } else {
      unreadable_.push_back({.role = role, .first = unit, .end = unit + units});
    }
  }
  scanning_.leave();
}

Task<Error> JournalScan::scan_piece(unsigned role, std::uint64_t unit, std::uint64_t units) {
  const std::uint64_t read_units =
      std::min(units + most_header_units() - 1, ring_.unit_count() - unit);
  const Completion completion = co_await read(role, unit, read_units);
  if (completion.error != Error::kNone) co_return completion.error;
  if (completion.data.slice_count() == 1) {
    look_for_headers(role, unit, units, completion.data[0].bytes());
  } else {
    std::vector<std::byte> joined(completion.data.byte_count());
    completion.data.copy_to(joined);
    look_for_headers(role, unit, units, joined);
  }
  co_return Error::kNone;
}

// Somewhere in the piece is a block that cannot be read: finds which, and what stands beside it.
Task<void> JournalScan::scan_by_unit(unsigned role, std::uint64_t unit, std::uint64_t units) {
  for (const std::uint64_t end = unit + units; unit < end && live(role); ++unit) {
    const Error with_next = co_await scan_piece(role, unit, 1);
    if (with_next == Error::kNone) continue;
    // Most headers are shorter than what was read for the longest.
    const Completion alone = co_await read(role, unit, 1);
    if (alone.error == Error::kNone && alone.data.slice_count() == 1) {
      look_for_headers(role, unit, 1, alone.data[0].bytes());
    } else {
      unreadable_.push_back({.role = role, .first = unit, .end = unit + 1});
    }
  }
}

void JournalScan::look_for_headers(unsigned role, std::uint64_t unit, std::uint64_t units,
                                   std::span<const std::byte> bytes) {
  for (std::uint64_t i = 0; i < units; ++i) {
    const auto from_here = bytes.subspan(i * ring_.unit_bytes);
    const auto header = decode_journal_header(from_here, ring_.block_bytes);
    if (!header.has_value() || header->set != ring_.set) continue;
    if (!of_this_life(*header)) continue;
    // No ring gets that far; what follows the newest record must still be a valid header.
    if (std::max(header->sequence, header->position) >= kFarthest) continue;
    if (header->position % ring_.unit_count() != unit + i) continue;
    if (ring_.record_units(*header) > ring_.unit_count() - (unit + i)) continue;
    note_batch(role, *header);
    note(role, *header, from_here);
  }
}

bool JournalScan::of_this_life(const JournalHeader& header) {
  const bool next = keys_.next != 0 && header.key == keys_.next;
  if (next && !std::exchange(next_begun_, true)) {
    records_.clear();
    tail_ = 0;
    batches_.clear();
    std::ranges::fill(newest_batch_, 0);
  }
  return next || (!next_begun_ && (keys_.last == 0 || header.key == keys_.last));
}

void JournalScan::note_batch(unsigned role, const JournalHeader& header) {
  batches_.try_emplace(header.batch, header.live_mark);
  newest_batch_[role] = std::max(newest_batch_[role], header.batch);
}

// Of twice as many batches as a drive can be left out of, it lacks every one. The newest batch may
// have been cut short. Where a ring cannot be read as a whole nothing is concluded.
std::uint64_t JournalScan::set_back_roles(std::uint32_t mark) const {
  if (mark == 0) return 0;
  const std::uint64_t wanted = 2 * ring_.rotation();
  std::uint64_t seen = 0;
  std::uint64_t oldest = 0;
  for (auto batch = batches_.rbegin(); batch != batches_.rend() && seen <= wanted; ++batch) {
    if (batch->second != mark) break;
    oldest = batch->first;
    ++seen;
  }
  if (seen <= wanted) return 0;
  std::uint64_t roles = 0;
  for (unsigned role = 0; role < ring_.role_count; ++role) {
    const bool whole = std::ranges::none_of(
        unreadable_, [role](const Unreadable& run) { return run.role == role; });
    if (live(role) && whole && newest_batch_[role] < oldest) roles |= std::uint64_t{1} << role;
  }
  return roles;
}

void JournalScan::note(unsigned role, const JournalHeader& header,
                       std::span<const std::byte> bytes) {
  if (header.sequence < tail_) return;
  std::vector<JournalWrite> writes = decode_journal_writes(header, bytes);
  if (std::ranges::any_of(
          writes, [&](const JournalWrite& write) { return write.role >= ring_.role_count; })) {
    return;
  }
  if (header.tail > tail_) {
    tail_ = header.tail;
    records_.erase(records_.begin(), records_.lower_bound(tail_));
  }
  const auto [found, inserted] = records_.try_emplace(
      header.sequence, FoundRecord{.header = header, .writes = std::move(writes)});
  // Copies of one record are equal to the bit.
  if (found->second.header.crc == header.crc) found->second.roles |= std::uint64_t{1} << role;
}

bool JournalScan::end_uncertain() const {
  const std::uint64_t live_now = drives_.live_roles();
  std::uint64_t troubled = 0;
  std::uint64_t next = 0;
  if (!records_.empty()) {
    const JournalHeader& newest = records_.rbegin()->second.header;
    next = (newest.position + ring_.record_units(newest)) % ring_.unit_count();
  }
  for (const Unreadable& run : unreadable_) {
    // The next batch begins right behind the newest one or, if its first record did not fit there,
    // at the ring's beginning.
    const bool may_begin_there =
        records_.empty() || run.first == 0 || (run.first <= next && next < run.end);
    if (may_begin_there) troubled |= std::uint64_t{1} << run.role;
  }
  troubled &= live_now;
  for (unsigned group = 0; group < ring_.group_count; ++group) {
    const std::uint64_t unknown = (troubled | ~live_now) & ring_.roles_of_group(group);
    const bool all_copies = static_cast<unsigned>(std::popcount(unknown)) >= ring_.copies;
    if (all_copies && (troubled & ring_.roles_of_group(group)) != 0) return true;
  }
  return false;
}

Task<bool> JournalScan::read_payload(const FoundRecord* record, unsigned role,
                                     std::vector<std::byte>* payload) const {
  const std::uint64_t byte_count = record->header.payload_bytes;
  std::uint64_t unit = record->header.position + ring_.header_units(record->header);
  Crc32c crc;
  for (std::uint64_t done = 0; done < byte_count;) {
    const std::uint64_t wanted = std::min<std::uint64_t>(byte_count - done, kPieceBytes);
    const std::uint64_t units = (wanted + ring_.unit_bytes - 1) / ring_.unit_bytes;
    const Completion completion = co_await read(role, unit, units);
    if (completion.error != Error::kNone) co_return false;
    const BufferList bytes = completion.data.share(0, wanted);
    crc.update(bytes);
    if (payload != nullptr) {
      payload->resize(done + wanted);
      bytes.copy_to(std::span(*payload).subspan(done));
    }
    done += wanted;
    unit += units;
  }
  if (payload != nullptr) payload->resize(byte_count);
  co_return crc.value() == record->header.payload_crc;
}

}  // namespace sandbay::raid
