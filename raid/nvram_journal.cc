// Records in NVRAM.

#include "raid/nvram_journal.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <span>
#include <utility>

#include "raid/journal_newest.h"
#include "runtime/buffer.h"

namespace sandbay::raid {

// An operation of the log and its result, in the frame of the caller who waits for it. The
// operation runs in a frame of its own; a caller that stops waiting clears `*link` there.
struct NvramJournal::Work {
  Work** link = nullptr;
  Error error = Error::kNone;
  std::uint64_t ticket = 0;
  sandbay::Event ended;
};

NvramJournal::NvramJournal(nvram::Region& region, Uuid set, std::uint32_t block_bytes)
    : region_(region), log_(region, {}), set_(set), block_bytes_(block_bytes) {
  static_assert(kMostJournalHeaderBytes <= nvram::RecordLog::kMostDescriptorBytes);
}

std::size_t NvramJournal::largest_payload_bytes() const noexcept {
  return log_.largest_payload_bytes(kMostJournalHeaderBytes);
}

Task<Result<std::uint64_t>> NvramJournal::append(StripeUpdate update) {
  assert(ready_);
  if (left_behind_ > 0) co_return std::unexpected(Error::kTimedOut);
  if (!gate_.enter()) co_return std::unexpected(Error::kClosed);
  Work work;
  spawn(run_append(update, &work));
  if (!work.ended.is_set()) {
    // Perhaps it waits for room.
    if (log_.waiting_appends() > 0) relieve();
    const bool ended = co_await wait_in_time(&work);
    if (!ended) co_return std::unexpected(Error::kTimedOut);
  }
  if (work.error != Error::kNone) co_return std::unexpected(work.error);
  relieve();
  co_return work.ticket;
}

// The caller may stop waiting, so `update` is used only before the first suspension.
Task<void> NvramJournal::run_append(StripeUpdate update, Work* work) {
  const GateHold hold(gate_);
  work->link = &work;
  const auto payload_bytes = journal_payload_bytes(update.writes, block_bytes_);
  assert(payload_bytes.has_value());
  assert(*payload_bytes == (update.payload == nullptr ? 0 : update.payload->byte_count()));
  JournalHeader header{.set = set_,
                       .write_count = static_cast<std::uint16_t>(update.writes.size()),
                       .sequence = 1,  // The log has sequences of its own.
                       .stripe = update.stripe,
                       .payload_bytes = *payload_bytes};
  // The log checks the payload by itself.
  std::array<std::byte, kMostJournalHeaderBytes> descriptor;
  const std::span<std::byte> used = std::span(descriptor).first(header.byte_count());
  encode_journal_header(header, update.writes, used);

  BufferList payload;
  if (*payload_bytes > 0) payload = update.payload->share();
  constexpr std::size_t kSlicesInFrame = 16;
  const std::size_t slice_count = payload.slice_count();
  std::array<IoSlice, kSlicesInFrame> few;
  std::vector<IoSlice> many(slice_count > kSlicesInFrame ? slice_count : 0);
  const std::span<IoSlice> slices = many.empty() ? std::span(few).first(slice_count) : many;
  for (std::size_t i = 0; i < slice_count; ++i) {
    slices[i] = {.data = payload[i].data(), .byte_count = payload[i].byte_count()};
  }
  const Result<nvram::RecordId> id = co_await log_.append(used, slices);
  if (id.has_value()) written_bytes_ += used.size() + *payload_bytes;
  if (work != nullptr) {
    if (id.has_value()) work->ticket = id->sequence;
    if (!id.has_value()) work->error = id.error();
    work->ended.set();
    co_return;
  }
  // Nothing of it has been written in place, and nothing that overlaps it has been appended.
  if (id.has_value()) log_.release(*id);
  (void)co_await log_.flush_releases();  // Once the memory has failed no append gets further.
  --left_behind_;
}

// False: the image hangs, and the operation is left behind. Waiting for room has no bound here:
// room comes with flushes of drives, which end.
Task<bool> NvramJournal::wait_in_time(Work* work) {
  const nvram::Nvram& memory = region_.nvram();
  for (;;) {
    const bool syncing = memory.syncing();
    const std::uint64_t syncs = memory.sync_count();
    const bool ended = co_await work->ended.wait_until(memory.home().now() + kSyncPatience);
    if (ended) co_return true;
    if (syncing && memory.syncing() && memory.sync_count() == syncs) break;
  }
  *work->link = nullptr;
  ++left_behind_;
  co_return false;
}

Task<Error> NvramJournal::renew() {
  if (left_behind_ > 0) co_return Error::kTimedOut;
  if (!gate_.enter()) co_return Error::kClosed;
  Work work;
  spawn(run_renewal(&work));
  const bool ended = co_await wait_in_time(&work);
  co_return ended ? work.error : Error::kTimedOut;
}

Task<void> NvramJournal::run_renewal(Work* work) {
  const GateHold hold(gate_);
  work->link = &work;
  const Error error = co_await log_.flush_releases();
  if (work == nullptr) {
    --left_behind_;
    co_return;
  }
  work->error = error;
  work->ended.set();
}

Task<bool> NvramJournal::close_until(TimePoint deadline) {
  co_return co_await gate_.close_until(deadline);
}

void NvramJournal::release(std::uint64_t ticket) {
  log_.release(nvram::RecordId{.sequence = ticket});
}

Task<Result<JournalRecovery>> NvramJournal::recover() {
  assert(!ready_);
  const nvram::Recovery found = log_.recover();
  JournalRecovery recovery;
  const bool known_life = keys_.last == 0 || found.log_id == 0 || found.log_id == keys_.last ||
                          (keys_.next != 0 && found.log_id == keys_.next);
  if (!known_life) {
    recovery.all_lost = true;
    co_return recovery;
  }
  // After an emulated power cut the list of what was lost is complete; after the others the image
  // says nothing certain.
  const bool uncertain =
      found.region_loss != nvram::Loss::kNone && found.region_loss != nvram::Loss::kPowerCut;
  recovery.all_lost = uncertain || found.control_lost;
  for (const nvram::Record& record : found.records) {
    const auto header = decode_journal_header(record.descriptor, block_bytes_);
    if (!header.has_value() || header->tail_only ||
        (header->set == set_ && header->payload_bytes != record.payload.size())) {
      recovery.all_lost = true;
      continue;
    }
    if (header->set != set_) continue;
    recovery.updates.push_back({.sequence = record.id.sequence,
                                .stripe = header->stripe,
                                .writes = decode_journal_writes(*header, record.descriptor),
                                .payload = {record.payload.begin(), record.payload.end()}});
  }
  std::uint64_t unknown_end = 0;  // Behind the last of which nothing is known.
  for (const nvram::LostRecord& lost : found.lost) {
    if (!lost.acknowledged) continue;  // Nothing of it has been written in place.
    const auto header = decode_journal_header(lost.descriptor, block_bytes_);
    if (!lost.described || !header.has_value()) {
      recovery.all_lost = true;
      unknown_end = lost.first_sequence + lost.record_count;
    } else if (header->set == set_) {
      recovery.lost.push_back({.sequence = lost.first_sequence,
                               .stripe = header->stripe,
                               .writes = decode_journal_writes(*header, lost.descriptor)});
    }
  }
  give_up_before(unknown_end, recovery);
  keep_newest(recovery.updates, recovery.lost, block_bytes_);
  co_return recovery;
}

Task<Error> NvramJournal::reset() {
  assert(!ready_);
  const Error accepted = co_await log_.accept_nothing(keys_.next);
  if (accepted != Error::kNone) co_return accepted;
  if (!region_.settled()) {
    const Error settled = co_await region_.settle();
    if (settled != Error::kNone) co_return settled;
  }
  ready_ = true;
  co_return Error::kNone;
}

}  // namespace sandbay::raid
