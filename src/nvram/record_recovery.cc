// What a log finds in the image when it starts.
//
// The ring is searched from the tail that the control block names, over one lap. A record counts if
// its header is right and carries exactly the position at which it is found, and a sequence that
// follows; after it the search goes on behind it, otherwise 64 bytes on. So a damaged record costs
// only itself: the next one is found, and the gap in the sequences tells that there was one.
//
// Three views: in a region that was lost nothing is good; after a crash of the host what lies
// beyond the durable head may be missing, and a release counts only if its epoch is durable;
// otherwise memory is exactly what the killed process left.
#include <algorithm>
#include <cassert>

#include "nvram/record_layout.h"
#include "nvram/record_log.h"
#include "nvram/record_scan.h"
#include "runtime/executor.h"

namespace sandbay::nvram {

namespace {

enum class Mark : std::uint8_t { kNone, kReleased, kDamaged };

Mark mark_of(const RecordHeader& header) {
  if (header.release_check == 0) return Mark::kNone;
  return header.release_check == release_check(header, header.release_epoch) ? Mark::kReleased
                                                                             : Mark::kDamaged;
}

std::span<const std::byte> descriptor_of(std::span<const std::byte> ring,
                                         const RecordHeader& header) {
  return ring.subspan(header.position % ring.size() + sizeof header, header.descriptor_bytes);
}

std::span<const std::byte> payload_of(std::span<const std::byte> ring, const RecordHeader& header) {
  return ring.subspan(header.position % ring.size() + payload_offset(header.descriptor_bytes),
                      header.payload_bytes);
}

LostRecord lost_record(std::span<const std::byte> ring, const RecordHeader& header,
                       bool acknowledged) {
  const auto descriptor = descriptor_of(ring, header);
  return {.first_sequence = header.sequence,
          .acknowledged = acknowledged,
          .described = true,
          .descriptor = {descriptor.begin(), descriptor.end()},
          .payload_bytes = header.payload_bytes};
}

}  // namespace

Recovery RecordLog::recover() {
  assert(!ready_);
  Recovery recovery;
  scan_ = std::make_unique<Scan>();
  recovery.region_loss = region_.loss();
  if (region_.new_) {
    scan_->reformat = true;
    return recovery;
  }
  const auto control = read_control(controls_, capacity_);
  if (!control.has_value()) {
    scan_->reformat = true;
    recovery.control_lost = true;
    list_unreleased(recovery);
    return recovery;
  }
  scan_->control = control->block;
  scan_->slot = control->slot;
  scan_->acknowledged_end =
      region_.after_host_crash() ? control->block.durable_head : control->block.head_sequence;
  scan_ring(recovery);
  if (region_.loss() != Loss::kNone) scan_->reformat = true;
  return recovery;
}

void RecordLog::scan_ring(Recovery& recovery) {
  const ControlBlock& control = scan_->control;
  const std::uint64_t end = control.tail_position + capacity_;
  const std::uint64_t sequence_end = control.tail_sequence + capacity_ / kRecordAlignment;
  std::uint64_t expected = control.tail_sequence;
  std::uint64_t position = control.tail_position;
  scan_->next_position = position;
  while (position < end) {
    const auto header = read_record(ring_, position % capacity_);
    const bool counts = header.has_value() && header->log_id == control.log_id &&
                        header->position == position && header->sequence >= expected &&
                        header->sequence < sequence_end;
    const std::uint64_t byte_count =
        counts ? record_bytes(header->descriptor_bytes, header->payload_bytes) : 0;
    if (!counts || byte_count > end - position) {
      position += kRecordAlignment;
      continue;
    }
    note_missing(expected, header->sequence, recovery);
    const bool live = judge_record(*header, recovery);
    scan_->found.push_back({header->sequence, position, byte_count, live});
    expected = header->sequence + 1;
    position += byte_count;
    scan_->next_position = position;
  }
  note_missing(expected, std::max(expected, control.head_sequence), recovery);
  scan_->next_sequence = std::max(expected, control.head_sequence);
  scan_->next_position = std::max(scan_->next_position, control.head_position);
}

// Whether the record stays live.
bool RecordLog::judge_record(const RecordHeader& header, Recovery& recovery) {
  const Mark mark = mark_of(header);
  const bool acknowledged = header.sequence < scan_->acknowledged_end;
  if (mark == Mark::kReleased) {
    scan_->newest_epoch = std::max(scan_->newest_epoch, header.release_epoch);
    if (!region_.after_host_crash() || header.release_epoch <= scan_->control.durable_epoch) {
      return false;
    }
    scan_->unmark.push_back(header.position);
  }
  const auto payload = payload_of(ring_, header);
  const bool good = mark != Mark::kDamaged && crc32c(payload) == header.payload_checksum &&
                    region_.loss() == Loss::kNone;
  if (good) {
    recovery.records.push_back(
        {RecordId{header.sequence}, descriptor_of(ring_, header), payload, acknowledged});
    return true;
  }
  recovery.lost.push_back(lost_record(ring_, header, acknowledged));
  scan_->forget.push_back(header.position);
  return false;
}

// Sequences [first, end) have no record.
void RecordLog::note_missing(std::uint64_t first, std::uint64_t end, Recovery& recovery) const {
  if (first >= end) return;
  if (scan_->missing_first == scan_->missing_end) scan_->missing_first = first;
  scan_->missing_end = end;
  const ControlBlock& control = scan_->control;
  const auto note = [&](std::uint64_t from, std::uint64_t to, bool acknowledged) {
    if (from >= to) return;
    recovery.lost.push_back(
        {.first_sequence = from, .record_count = to - from, .acknowledged = acknowledged});
  };
  // What lies beyond the head was never acknowledged: no control block counted it.
  const auto note_split = [&](std::uint64_t from, std::uint64_t to) {
    const std::uint64_t middle = std::clamp(scan_->acknowledged_end, from, std::max(from, to));
    note(from, middle, true);
    note(middle, std::min(to, control.head_sequence), false);
  };
  note_split(first, std::min(end, std::max(first, control.forgiven_first)));
  note_split(std::max(first, std::min(end, control.forgiven_end)), end);
}

// Without a control block: whatever looks like a record that was not released.
void RecordLog::list_unreleased(Recovery& recovery) const {
  for (std::uint64_t offset = 0; offset < capacity_; offset += kRecordAlignment) {
    const auto header = read_record(ring_, offset);
    if (!header.has_value() || mark_of(*header) == Mark::kReleased) continue;
    recovery.lost.push_back(lost_record(ring_, *header, true));
  }
  std::ranges::sort(recovery.lost, {}, &LostRecord::first_sequence);
}

void RecordLog::forget(RecordId id) {
  assert(scan_ != nullptr && !ready_);
  const auto found = std::ranges::find(scan_->found, id.sequence, &Scan::Found::sequence);
  assert(found != scan_->found.end() && found->live);
  found->live = false;
  scan_->forget.push_back(found->position);
}

Task<Error> RecordLog::accept() {
  assert(scan_ != nullptr && !ready_);
  if (scan_->reformat) {
    format();
  } else {
    restore();
  }
  scan_.reset();
  advance_tail();
  // Both blocks, so that damage to one finds the other of the same content; to a medium, a sync
  // stands between two.
  if (!to_host()) {
    write_control();
    write_control();
  }
  durable_tail_position_ = tail_position_;
  ready_ = true;
  changed_ = true;
  const Error error = co_await nvram_.commit();
  co_return error;
}

// The id changes, so that no record that stands in the ring belongs to the log any more.
void RecordLog::format() {
  const auto old = read_control(controls_, capacity_);
  generation_ = old.has_value() ? old->block.generation : 0;
  slot_ = old.has_value() ? old->slot : 1;
  do {
    log_id_ = static_cast<std::uint32_t>(nvram_.home().random().next());
  } while (old.has_value() && log_id_ == old->block.log_id);
}

void RecordLog::restore() {
  const ControlBlock& control = scan_->control;
  log_id_ = control.log_id;
  generation_ = control.generation;
  slot_ = scan_->slot;
  head_sequence_ = scan_->next_sequence;
  head_position_ = scan_->next_position;
  tail_sequence_ = control.tail_sequence;
  tail_position_ = control.tail_position;
  durable_head_ = control.durable_head;
  durable_epoch_ = control.durable_epoch;
  confirmed_epoch_ = control.durable_epoch;
  epoch_ = std::max(control.epoch, scan_->newest_epoch) + 1;
  released_epoch_ = epoch_;
  forgiven_first_ = scan_->missing_first;
  forgiven_end_ = scan_->missing_end;

  while (entries_.size() < head_sequence_ - tail_sequence_) entries_.resize(entries_.size() * 2);
  std::uint64_t sequence = tail_sequence_;
  std::uint64_t position = tail_position_;
  for (const Scan::Found& found : scan_->found) {
    for (; sequence < found.sequence; ++sequence) entry(sequence) = {.position = position};
    entry(sequence++) = {found.position, found.byte_count, found.live};
    position = found.position + found.byte_count;
    if (found.live) ++live_count_;
  }
  for (; sequence < head_sequence_; ++sequence) entry(sequence) = {.position = head_position_};
  for (const std::uint64_t at : scan_->forget) mark_released(at);
  for (const std::uint64_t at : scan_->unmark) {
    const bool lost = std::ranges::find(scan_->forget, at) != scan_->forget.end();
    std::byte* const target = ring_.data() + at % capacity_;
    if (!lost) nvram_.store_word(target + offsetof(RecordHeader, release_check), 0);
  }
}

}  // namespace sandbay::nvram
