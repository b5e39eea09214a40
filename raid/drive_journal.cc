// Appending to the rings and releasing; recovery is in drive_journal_recovery.cc.

#include "raid/drive_journal.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <utility>

#include "runtime/buffer.h"

namespace sandbay::raid {
namespace {

constexpr std::size_t kHeaderArenaBytes = 256 * 1024;
constexpr std::uint64_t kMostBatchBytes = std::uint64_t{2} << 20;  // Unless one record is larger.
constexpr std::uint64_t kMostPayloadBytes = std::uint64_t{4} << 20;
constexpr std::size_t kFirstEntries = 256;

}  // namespace

// One append that waits, in its own frame.
struct DriveJournal::Waiter {
  const StripeUpdate* update = nullptr;  // Null: a record that only tells the tail.
  std::uint64_t payload_bytes = 0;
  std::uint32_t payload_crc = 0;
  std::uint64_t units = 0;
  Result<std::uint64_t> result{0};
  Waiter* next = nullptr;
  sandbay::Event done;
};

DriveJournal::DriveJournal(JournalDrives& drives, JournalRing ring, Executor& home)
    : drives_(drives),
      ring_(ring),
      home_(home),
      entries_(kFirstEntries),
      rotors_(ring.group_count) {
  assert(ring_.group_count >= 1 && ring_.role_count % ring_.group_count == 0);
  assert(ring_.block_bytes > 0 && ring_.unit_bytes % ring_.block_bytes == 0);
  assert(ring_.unit_bytes >= 512 && ring_.unit_bytes <= kHeaderArenaBytes / 4);
  assert(ring_.first_block % (ring_.unit_bytes / ring_.block_bytes) == 0);
  assert(ring_.byte_count() % ring_.unit_bytes == 0);
  assert(ring_.unit_count() >= kLeastUnits);
  assert(ring_.copies >= 1 && ring_.copies <= ring_.group_width());
  assert(ring_.role_count <= kMostJournalRoles);
}

DriveJournal::~DriveJournal() { assert(first_waiter_ == nullptr && !committing_); }

std::size_t DriveJournal::largest_payload_bytes() const noexcept {
  const std::uint64_t header_units = units_for(kMostJournalHeaderBytes);
  const std::uint64_t largest_units = largest_record_units();
  if (largest_units <= header_units) return 0;
  return std::min(kMostPayloadBytes, (largest_units - header_units) * ring_.unit_bytes);
}

std::uint64_t DriveJournal::used_bytes() const noexcept {
  return (head_ - tail_position_) * ring_.unit_bytes;
}

bool DriveJournal::under_pressure() const noexcept {
  const bool somebody_waits_for_room = first_waiter_ != nullptr && !committing_;
  return somebody_waits_for_room || used_bytes() > size_bytes() / 2;
}

// ---- appends ----------------------------------------------------------------------------------

Task<Result<std::uint64_t>> DriveJournal::append(StripeUpdate update) {
  assert(ready_ || failure_ != Error::kNone);
  if (failure_ != Error::kNone) co_return std::unexpected(failure_);
  const auto payload_bytes = journal_payload_bytes(update.writes, ring_.block_bytes);
  assert(payload_bytes.has_value());
  assert(*payload_bytes == (update.payload == nullptr ? 0 : update.payload->byte_count()));
  assert(*payload_bytes <= largest_payload_bytes());
  Waiter waiter{.update = &update, .payload_bytes = *payload_bytes, .done = {}};
  Crc32c crc;
  if (*payload_bytes > 0) crc.update(*update.payload);
  waiter.payload_crc = crc.value();
  waiter.units = units_for(kJournalHeaderBytes + update.writes.size() * kJournalWriteBytes) +
                 units_for(*payload_bytes);
  co_await wait_for_commit(&waiter);
  co_return waiter.result;
}

Task<Error> DriveJournal::renew() {
  assert(ready_ || failure_ != Error::kNone);
  if (failure_ != Error::kNone) co_return failure_;
  Waiter waiter{.units = 1, .done = {}};
  co_await wait_for_commit(&waiter);
  co_return waiter.result.has_value() ? Error::kNone : waiter.result.error();
}

Task<void> DriveJournal::wait_for_commit(Waiter* waiter) {
  (last_waiter_ != nullptr ? last_waiter_->next : first_waiter_) = waiter;
  last_waiter_ = waiter;
  start_commit();
  co_await waiter->done.wait();
}

void DriveJournal::start_commit() {
  if (committing_ || first_waiter_ == nullptr) return;
  committing_ = true;
  spawn(commit());
}

// Writes batch after batch until nobody waits any more, or nobody can have what he waits for.
Task<void> DriveJournal::commit() {
  for (;;) {
    // Whoever appends in the same turn shares the batch.
    co_await home_.turn_end();
    co_await prepare_headers();
    Batch batch;
    if (!take_batch(batch) && !take_tail_only(batch)) break;
    const Error error = co_await store(batch);
    finish(batch, error);
    // With the last append the journal may be destroyed.
    if (first_waiter_ == nullptr) break;
    if (on_pressure && under_pressure()) on_pressure();
  }
  committing_ = false;
  if (refusal_ != Error::kNone) fail_appends(refusal_);
  if (on_pressure && under_pressure()) on_pressure();
}

void DriveJournal::refuse_waiting(Error error) {
  refusal_ = error;
  if (!committing_) fail_appends(error);
}

// A drive that has timed out may still hold the block that it was given.
Task<void> DriveJournal::prepare_headers() {
  if (!headers_.empty() && headers_.unique()) co_return;
  headers_ = Buffer();
  BufferList arena = co_await home_.buffers().allocate(kHeaderArenaBytes);
  assert(arena.slice_count() == 1);
  headers_ = arena[0];
  if (!padding_.empty()) co_return;
  BufferList padding = co_await home_.buffers().allocate(ring_.unit_bytes);
  padding.fill_zero();
  padding_ = padding[0];
}

bool DriveJournal::fits(std::uint64_t head, std::uint64_t tail_position, std::uint64_t units,
                        std::uint64_t& start) const noexcept {
  const std::uint64_t to_end = ring_.unit_count() - head % ring_.unit_count();
  start = units <= to_end ? head : head + to_end;
  // One unit stays free for a record that only tells the tail.
  return start + units + 1 - tail_position <= ring_.unit_count();
}

bool DriveJournal::take_batch(Batch& batch) {
  while (first_waiter_ != nullptr && batch.record_count < kMostBatchRecords) {
    Waiter& waiter = *first_waiter_;
    std::uint64_t start = 0;
    if (!fits(head_, durable_tail_position_, waiter.units, start)) break;
    if (batch.record_count > 0) {
      const std::uint64_t units = batch.units + waiter.units;
      // One write a drive: a batch does not pass the ring's end.
      if (start != head_ || start % ring_.unit_count() == 0) break;
      if (units * ring_.unit_bytes > kMostBatchBytes) break;
      const std::uint64_t header_units = waiter.units - units_for(waiter.payload_bytes);
      if (batch.header_bytes + header_units * ring_.unit_bytes > headers_.byte_count()) break;
    }
    first_waiter_ = waiter.next;
    if (first_waiter_ == nullptr) last_waiter_ = nullptr;
    waiter.next = nullptr;
    (batch.last != nullptr ? batch.last->next : batch.first) = &waiter;
    batch.last = &waiter;
    add_record(batch, start, &waiter);
  }
  return batch.record_count > 0;
}

// The first in the queue finds no room, but would if a durable record said what has been released.
bool DriveJournal::take_tail_only(Batch& batch) {
  if (first_waiter_ == nullptr) return false;
  const std::uint64_t tail_position = tail_sequence_ == next_sequence_ ? head_ : tail_position_;
  if (tail_position == durable_tail_position_) return false;
  std::uint64_t start = 0;
  if (!fits(head_ + 1, tail_position, first_waiter_->units, start)) return false;
  assert(head_ + 1 - durable_tail_position_ <= ring_.unit_count());
  add_record(batch, head_, nullptr);
  return true;
}

// Puts the waiter's record, or one without an update, into the batch at `position`.
void DriveJournal::add_record(Batch& batch, std::uint64_t position, const Waiter* waiter) {
  const std::uint64_t sequence = next_sequence_;
  if (batch.record_count == 0) {
    batch.first_sequence = sequence;
    batch.position = position;
    batch.tail = tail_sequence_;  // Its own sequence if nothing is live.
  }
  const StripeUpdate* const update = waiter == nullptr ? nullptr : waiter->update;
  JournalHeader header{.set = ring_.set,
                       .tail_only = update == nullptr,
                       .sequence = sequence,
                       .tail = batch.tail,
                       .batch = batch.first_sequence,
                       .position = position,
                       .live_mark = drives_.live_mark(),
                       .key = life_};
  std::span<const JournalWrite> writes;
  if (update != nullptr) {
    writes = update->writes;
    header.write_count = static_cast<std::uint16_t>(writes.size());
    header.stripe = update->stripe;
    header.payload_bytes = waiter->payload_bytes;
    header.payload_crc = waiter->payload_crc;
  }
  const std::size_t header_bytes = ring_.header_units(header) * ring_.unit_bytes;
  Buffer slice = headers_.slice(batch.header_bytes, header_bytes);
  batch.header_bytes += header_bytes;
  encode_journal_header(header, writes, slice.bytes());
  batch.data.append(std::move(slice));
  if (header.payload_bytes > 0) {
    batch.data.append(update->payload->share());
    const std::size_t padding =
        units_for(header.payload_bytes) * ring_.unit_bytes - header.payload_bytes;
    if (padding > 0) batch.data.append(padding_.slice(0, padding));
  }
  const std::uint64_t units = ring_.record_units(header);
  batch.units += units;
  ++batch.record_count;
  add_entry(position);
  head_ = position + units;
  // Later ones of the batch carry the same tail, wherever it is by then.
  if (batch.record_count == 1) batch.tail_position = tail_position_;
  if (update != nullptr) return;
  entry(sequence).released = true;
  advance_tail();
}

void DriveJournal::finish(Batch& batch, Error error) {
  if (error == Error::kNone) {
    durable_tail_position_ = batch.tail_position;
  } else {
    failure_ = error;
  }
  std::uint64_t sequence = batch.first_sequence;
  for (Waiter* waiter = batch.first; waiter != nullptr; ++sequence) {
    Waiter* const next = waiter->next;
    waiter->result = sequence;
    if (error != Error::kNone) waiter->result = std::unexpected(error);
    waiter->done.set();
    waiter = next;
  }
  if (error != Error::kNone) fail_appends(error);
}

void DriveJournal::fail_appends(Error error) {
  while (first_waiter_ != nullptr) {
    Waiter& waiter = *first_waiter_;
    first_waiter_ = waiter.next;
    waiter.result = std::unexpected(error);
    waiter.done.set();
  }
  last_waiter_ = nullptr;
}

// ---- copies -----------------------------------------------------------------------------------

struct DriveJournal::Round {
  unsigned pending = 0;
  std::uint64_t good = 0;  // Roles.
  Error error = Error::kNone;
  sandbay::Event ended;
};

Task<Error> DriveJournal::store(Batch& batch) {
  assert(batch.data.byte_count() == batch.units * ring_.unit_bytes);
  assert(batch.position % ring_.unit_count() + batch.units <= ring_.unit_count());
  const Error error = co_await write_copies(batch.position, &batch.data, 0);
  batch.data.clear();
  co_return error;
}

// The group that has good copies already, else the next in turn that has anybody to ask.
std::uint64_t DriveJournal::candidates_in_turn(std::uint64_t untried,
                                               std::uint64_t good) const noexcept {
  std::uint64_t in_turn = 0;
  for (unsigned i = 0; i < ring_.group_count; ++i) {
    const std::uint64_t roles = ring_.roles_of_group((next_group_ + i) % ring_.group_count);
    if ((untried & roles) == 0) continue;
    if ((good & roles) != 0) return untried & roles;
    if (in_turn == 0) in_turn = untried & roles;
  }
  return in_turn;
}

// Ends when `copies` live drives of a group, or all of it where there are fewer, have the bytes
// durably; the roles in `good` have them already. Each drive is tried once.
Task<Error> DriveJournal::write_copies(std::uint64_t position, const BufferList* data,
                                       std::uint64_t good) {
  std::uint64_t tried = good;
  Error last_error = Error::kNotReady;
  for (;;) {
    const std::uint64_t live = drives_.live_roles();
    if (ring_.group_with_copies(good, live) < ring_.group_count) co_return Error::kNone;
    std::uint64_t candidates = candidates_in_turn(live & ~tried, good & live);
    if (candidates == 0) co_return (good & live) != 0 ? Error::kNone : last_error;
    const unsigned group =
        static_cast<unsigned>(std::countr_zero(candidates)) / ring_.group_width();
    const std::uint64_t here = live & ring_.roles_of_group(group);
    const auto wanted = std::min(ring_.copies, static_cast<unsigned>(std::popcount(here)));
    const auto have = static_cast<unsigned>(std::popcount(good & here));
    next_group_ = (group + 1) % ring_.group_count;

    Round round;
    round.pending = 1;  // This function's own, so that no write ends the round before all began.
    for (unsigned missing = wanted - have; missing > 0 && candidates != 0; --missing) {
      const unsigned first = group * ring_.group_width() + rotors_[group];
      const std::uint64_t from_rotor = candidates >> first << first;
      const auto role =
          static_cast<unsigned>(std::countr_zero(from_rotor != 0 ? from_rotor : candidates));
      rotors_[group] = (role + 1) % ring_.group_width();
      candidates &= ~(std::uint64_t{1} << role);
      tried |= std::uint64_t{1} << role;
      Request request;
      request.operation = Operation::kWrite;
      request.force_unit_access = true;
      request.extent = ring_.extent(position, data->byte_count() / ring_.unit_bytes);
      request.data = data->share();
      ++round.pending;
      spawn(write_copy(&round, role, std::move(request)));
    }
    if (--round.pending > 0) co_await round.ended.wait();
    good |= round.good;
    if (round.error != Error::kNone) last_error = round.error;
  }
}

Task<void> DriveJournal::write_copy(Round* round, unsigned role, Request request) {
  const std::uint64_t byte_count = request.data.byte_count();
  const Completion completion = co_await drives_.journal_io(role, std::move(request));
  if (completion.error == Error::kNone) {
    round->good |= std::uint64_t{1} << role;
    written_bytes_ += byte_count;
  } else {
    round->error = completion.error;
  }
  if (--round->pending == 0) round->ended.set();
}

// ---- releases ---------------------------------------------------------------------------------

void DriveJournal::release(std::uint64_t ticket) {
  if (ticket < first_sequence_) return;  // Of before recover(), which has taken it over.
  assert(ticket >= tail_sequence_ && ticket < next_sequence_);
  Entry& released = entry(ticket);
  assert(!released.released);
  released.released = true;
  advance_tail();
  start_commit();
}

DriveJournal::Entry& DriveJournal::entry(std::uint64_t sequence) {
  assert(sequence >= tail_sequence_ && sequence < next_sequence_);
  return entries_[sequence & (entries_.size() - 1)];
}

void DriveJournal::add_entry(std::uint64_t position) {
  const std::uint64_t count = next_sequence_ - tail_sequence_;
  if (count == entries_.size()) {
    // At most one entry a unit of the ring.
    std::vector<Entry> larger(entries_.size() * 2);
    for (std::uint64_t sequence = tail_sequence_; sequence < next_sequence_; ++sequence) {
      larger[sequence & (larger.size() - 1)] = entry(sequence);
    }
    entries_ = std::move(larger);
  }
  if (count == 0) tail_position_ = position;
  ++next_sequence_;
  entry(next_sequence_ - 1) = {.position = position, .released = false};
}

void DriveJournal::advance_tail() {
  while (tail_sequence_ < next_sequence_ && entry(tail_sequence_).released) ++tail_sequence_;
  tail_position_ = tail_sequence_ < next_sequence_ ? entry(tail_sequence_).position : head_;
}

}  // namespace sandbay::raid
