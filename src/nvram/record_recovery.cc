// What a log finds in the image when it starts.
//
// The ring is searched from the tail that the control block names, over one lap. A record counts if
// its header is right and carries exactly the position at which it is found, and a sequence that
// follows; after it the search goes on behind it, otherwise 64 bytes on. So a damaged record costs
// only itself: the next one is found, and the gap in the sequences tells that there was one.
//
// Three views: in a region that was lost nothing is good; after a crash of the host what lies
// beyond the durable head may be missing, and a release counts only if its epoch is durable;
// otherwise memory is exactly what the killed process left, and the seal decides: what was found
// and is not sealed had been released, what is sealed and was not found is lost.
#include <algorithm>
#include <cassert>

#include "nvram/record_layout.h"
#include "nvram/record_log.h"
#include "nvram/record_scan.h"
#include "runtime/executor.h"
#include "runtime/known.h"

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
    distrust_all(recovery);
    return recovery;
  }
  scan_->control = control->block;
  scan_->slot = control->slot;
  scan_->seal = seal_.find(control->block.log_id);
  recovery.log_id = control->block.log_id;
  const Loss loss = region_.loss();
  scan_->by_seal = !region_.after_host_crash() && (loss == Loss::kNone || loss == Loss::kPowerCut);
  scan_ring();
  if (!scan_->by_seal) {
    // A control block is durable before the one behind it is sealed.
    const std::optional<SealState>& seal = scan_->seal;
    const bool went_back = region_.after_host_crash() && seal.has_value() &&
                           seal->generation > control->block.generation + 1;
    if (went_back && loss == Loss::kNone) recovery.region_loss = Loss::kStale;
    judge_by_marks(recovery);
  } else if (seal_fits()) {
    judge_by_seal(recovery);
  } else {
    distrust_all(recovery);
  }
  if (recovery.region_loss != Loss::kNone) scan_->reformat = true;
  return recovery;
}

void RecordLog::scan_ring() {
  const ControlBlock& control = scan_->control;
  const std::uint64_t end = control.tail_position + capacity_;
  const std::uint64_t sequence_end = control.tail_sequence + capacity_ / kRecordAlignment;
  std::uint64_t expected = control.tail_sequence;
  std::uint64_t position = control.tail_position;
  scan_->next_position = position;
  while (position < end) {
    const auto header = read_record(ring_, position % capacity_);
    const bool counts = header.has_value() &&
                        header->log_id == static_cast<std::uint32_t>(control.log_id) &&
                        header->position == position && header->sequence >= expected &&
                        header->sequence < sequence_end;
    const std::uint64_t byte_count =
        counts ? record_bytes(header->descriptor_bytes, header->payload_bytes) : 0;
    if (!counts || byte_count > end - position) {
      position += kRecordAlignment;
      continue;
    }
    const bool released = mark_of(*header) == Mark::kReleased;
    if (released) scan_->newest_epoch = std::max(scan_->newest_epoch, header->release_epoch);
    scan_->found.push_back({.sequence = header->sequence,
                            .position = position,
                            .byte_count = byte_count,
                            .released = released});
    expected = header->sequence + 1;
    position += byte_count;
    scan_->next_position = position;
  }
  scan_->next_sequence = std::max(expected, control.head_sequence);
  scan_->next_position = std::max(scan_->next_position, control.head_position);
}

// The record, or that it is lost. Whether it stays live.
bool RecordLog::give_record(std::uint64_t position, bool acknowledged, bool trusted,
                            Recovery& recovery) const {
  const RecordHeader header = known(read_record(ring_, position % capacity_));
  const auto payload = payload_of(ring_, header);
  const bool good = trusted && recovery.region_loss == Loss::kNone &&
                    mark_of(header) != Mark::kDamaged && crc32c(payload) == header.payload_checksum;
  if (!good) {
    recovery.lost.push_back(lost_record(ring_, header, acknowledged));
    return false;
  }
  recovery.records.push_back(
      {RecordId{header.sequence}, descriptor_of(ring_, header), payload, acknowledged});
  return true;
}

// By marks ----------------------------------------------------------------------------------------

void RecordLog::judge_by_marks(Recovery& recovery) {
  const ControlBlock& control = scan_->control;
  scan_->acknowledged_end =
      region_.after_host_crash() ? control.durable_head : control.head_sequence;
  std::uint64_t expected = control.tail_sequence;
  for (Scan::Found& found : scan_->found) {
    list_missing(expected, found.sequence, recovery);
    expected = found.sequence + 1;
    if (found.released) {
      const RecordHeader header = known(read_record(ring_, found.position % capacity_));
      if (!region_.after_host_crash() || header.release_epoch <= control.durable_epoch) continue;
      scan_->unmark.push_back(found.position);
      found.released = false;
    }
    const bool acknowledged = found.sequence < scan_->acknowledged_end;
    found.live = give_record(found.position, acknowledged, true, recovery);
  }
  list_missing(expected, scan_->next_sequence, recovery);
}

// Sequences [first, end) have no record.
void RecordLog::list_missing(std::uint64_t first, std::uint64_t end, Recovery& recovery) const {
  if (first >= end) return;
  scan_->note_gap(first, end);
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

// By the seal -------------------------------------------------------------------------------------

// A seal and control blocks of different times tell nothing: one step lies between them at most.
bool RecordLog::seal_fits() const {
  const std::optional<SealState>& found = scan_->seal;
  if (!found.has_value()) return false;
  const SealState& seal = *found;
  const ControlBlock& control = scan_->control;
  return scan_->next_sequence <= seal.head_sequence + 1 &&
         control.generation <= seal.generation + 1 &&
         seal.head_sequence <= control.tail_sequence + capacity_ / kRecordAlignment;
}

void RecordLog::judge_by_seal(Recovery& recovery) {
  const std::uint64_t head = known(scan_->seal).head_sequence;
  const std::uint64_t first = scan_->control.tail_sequence;
  scan_->next_sequence = std::max(scan_->next_sequence, head);
  for (std::size_t bucket = 0; bucket < kSealBuckets; ++bucket) ask_seal(bucket, first, head);
  std::ranges::sort(scan_->lost);
  auto lost = scan_->lost.begin();
  const auto list_lost = [&](std::uint64_t end) {
    for (; lost != scan_->lost.end() && *lost < end; ++lost) {
      LostRecord* const last = recovery.lost.empty() ? nullptr : &recovery.lost.back();
      if (last != nullptr && !last->described &&
          last->first_sequence + last->record_count == *lost) {
        ++last->record_count;
      } else {
        recovery.lost.push_back({.first_sequence = *lost});
      }
    }
  };
  std::uint64_t expected = first;
  for (Scan::Found& found : scan_->found) {
    scan_->note_gap(expected, found.sequence);
    expected = found.sequence + 1;
    list_lost(found.sequence);
    if (found.released || !found.sealed) continue;
    const bool trusted = !scan_->unknown_bucket[seal_bucket(found.sequence)];
    found.live = give_record(found.position, true, trusted, recovery);
  }
  scan_->note_gap(expected, scan_->next_sequence);
  list_lost(scan_->next_sequence);
}

// Which records of a bucket, of sequences from `first` to the one at the head, are live. Where that
// cannot be told all of them are called so, and none is trusted.
void RecordLog::ask_seal(std::size_t bucket, std::uint64_t first, std::uint64_t head) {
  std::vector<std::uint64_t> present;
  std::vector<Scan::Found*> records;
  std::vector<std::uint64_t> missing;
  auto found = scan_->found.begin();
  const std::uint64_t turn = (first + kSealBuckets - 1 - bucket) / kSealBuckets;
  for (std::uint64_t sequence = turn * kSealBuckets + bucket; sequence <= head;
       sequence += kSealBuckets) {
    while (found != scan_->found.end() && found->sequence < sequence) ++found;
    if (found == scan_->found.end() || found->sequence != sequence) {
      if (sequence < head) missing.push_back(sequence);
    } else if (!found->released) {
      present.push_back(sequence);
      records.push_back(&*found);
    }
  }
  const auto solution =
      solve_seal(scan_->control.log_id, known(scan_->seal).live[bucket], present, missing);
  scan_->unknown_bucket[bucket] = !solution.has_value();
  for (std::size_t i = 0; i < present.size(); ++i) {
    records[i]->sealed = !solution.has_value() || solution->present[i];
  }
  for (std::size_t i = 0; i < missing.size(); ++i) {
    if (!solution.has_value() || solution->missing[i]) scan_->lost.push_back(missing[i]);
  }
}

// Nothing to go by --------------------------------------------------------------------------------

void RecordLog::distrust_all(Recovery& recovery) {
  scan_->reformat = true;
  recovery.control_lost = true;
  list_unreleased(recovery);
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

}  // namespace sandbay::nvram
