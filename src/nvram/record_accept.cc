// What a log makes of what it found, when its owner has taken notice.
//
// Killed anywhere here, the next recovery finds the same records: what goes is taken out of the
// seal first and marked then, one record after the other, and a log that is formatted keeps a copy
// of the old seal until a control block has the new id.
#include <algorithm>
#include <cassert>

#include "nvram/record_layout.h"
#include "nvram/record_log.h"
#include "nvram/record_scan.h"
#include "runtime/executor.h"
#include "runtime/known.h"

namespace sandbay::nvram {

void RecordLog::forget(RecordId id) {
  assert(scan_ != nullptr && !ready_);
  const auto found = std::ranges::find(scan_->found, id.sequence, &Scan::Found::sequence);
  assert(found != scan_->found.end() && found->live);
  found->live = false;
}

Task<Error> RecordLog::accept_nothing(std::uint64_t log_id) {
  assert(scan_ != nullptr);
  scan_->reformat = true;
  scan_->new_id = log_id;
  co_return co_await accept();
}

Task<Error> RecordLog::accept() {
  assert(scan_ != nullptr && !ready_);
  if (scan_->reformat) {
    format();
    if (to_host()) {
      const Error sealed = co_await nvram_.commit();
      if (sealed != Error::kNone) co_return sealed;
    }
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
  seal_.complete();
  co_return error;
}

// The id changes, so that no record that stands in the ring belongs to the log any more.
void RecordLog::format() {
  const auto old = read_control(controls_, capacity_);
  generation_ = old.has_value() ? old->block.generation : 0;
  slot_ = old.has_value() ? old->slot : 1;
  log_id_ = scan_->new_id;
  while (log_id_ == 0) log_id_ = nvram_.home().random().next();
  if (const auto& seal = scan_->seal) seal_.set(scan_->control.log_id, *seal);
  seal_.begin(log_id_, {.generation = generation_});
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
  restore_entries();
  restore_marks();
}

void RecordLog::restore_entries() {
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
}

void RecordLog::restore_marks() {
  SealState seal{.head_sequence = head_sequence_, .generation = generation_};
  if (scan_->by_seal) {
    seal = known(scan_->seal);
    // The seal may be a step behind the control blocks, and the next one is one step further.
    seal.generation = generation_;
  } else {
    // Nobody looks at the seal before the region is settled.
    for (const Scan::Found& found : scan_->found) {
      if (found.live) add_to_seal(seal, log_id_, found.sequence);
    }
    if (const auto& found = scan_->seal) seal.changes = found->changes + 1;
  }
  seal_.set(log_id_, seal);
  for (std::size_t bucket = 0; bucket < kSealBuckets; ++bucket) {
    if (scan_->unknown_bucket[bucket]) seal_.empty_bucket(bucket);
  }
  const auto in_seal = [this](std::uint64_t sequence) {
    return scan_->by_seal && !scan_->unknown_bucket[seal_bucket(sequence)];
  };
  for (const std::uint64_t sequence : scan_->lost) {
    if (in_seal(sequence)) seal_.released(sequence);
  }
  for (const Scan::Found& found : scan_->found) {
    if (found.live || found.released) continue;
    if (found.sealed && in_seal(found.sequence)) seal_.released(found.sequence);
    mark_released(found.position);
  }
  for (const std::uint64_t at : scan_->unmark) {
    const auto found = std::ranges::find(scan_->found, at, &Scan::Found::position);
    if (!found->live) continue;
    nvram_.store_word(ring_.data() + at % capacity_ + offsetof(RecordHeader, release_check), 0);
  }
  seal_.set_head(head_sequence_);
}

}  // namespace sandbay::nvram
