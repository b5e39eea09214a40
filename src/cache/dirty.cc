// Which record holds which, and releasing them in an order that a crash cannot turn against us.
#include "cache/dirty.h"

#include <new>

#include "runtime/frame_pool.h"

namespace sandbay::cache {
namespace {

std::size_t record_bytes(unsigned part_count) {
  return sizeof(DirtyRecord) + part_count * sizeof(DirtyPart);
}

DirtyPart* oldest_overlapping_before(const Line& line, Range range,
                                     const DirtyPart* before) noexcept {
  for (DirtyPart* part = line.first_part; part != before; part = part->newer) {
    if (part->range.overlaps(range)) return part;
  }
  return nullptr;
}

}  // namespace

DirtyRecord* DirtyRecord::make(unsigned part_count) {
  static_assert(alignof(DirtyPart) <= alignof(DirtyRecord));
  void* const memory = allocate_frame(record_bytes(part_count));
  auto* const record = new (memory) DirtyRecord;
  record->part_count = part_count;
  record->unsettled = part_count;
  for (unsigned i = 0; i < part_count; ++i) {
    auto* const part = new (record->parts() + i) DirtyPart;
    part->record = record;
  }
  return record;
}

void DirtyRecord::destroy(DirtyRecord* record) noexcept {
  const unsigned part_count = record->part_count;
  record->~DirtyRecord();
  free_frame(record, record_bytes(part_count));
}

void append_part(Line& line, DirtyPart& part) {
  part.line = &line;
  (line.last_part != nullptr ? line.last_part->newer : line.first_part) = &part;
  line.last_part = &part;
}

DirtyPart* oldest_overlapping(const Line& line, Range range) noexcept {
  return oldest_overlapping_before(line, range, nullptr);
}

DirtyPart& what_holds(DirtyPart& part) noexcept {
  DirtyPart* at = &part;
  for (;;) {
    // One of the record's parts is not settled, or the record would be gone.
    DirtyRecord& record = *at->record;
    unsigned i = 0;
    while (record.parts()[i].settled) ++i;
    assert(i < record.part_count);
    DirtyPart& open = record.parts()[i];
    if (open.dirty_blocks > 0) return open;
    at = oldest_overlapping_before(*open.line, open.range, &open);
    assert(at != nullptr);
  }
}

void Releases::overwritten(DirtyPart& part, unsigned count) noexcept {
  assert(part.dirty_blocks >= count);
  part.dirty_blocks -= count;
  part.overwritten_blocks += count;
}

void Releases::cleaned(DirtyPart& part, unsigned count) noexcept {
  assert(part.dirty_blocks >= count);
  part.dirty_blocks -= count;
}

void Releases::settle_parts(Line& line) {
  for (DirtyPart* part = line.first_part; part != nullptr; part = part->newer) {
    if (part->settled || part->dirty_blocks > 0) continue;
    if (part->overwritten_blocks < part->range.count &&
        oldest_overlapping_before(line, part->range, part) != nullptr) {
      continue;
    }
    part->settled = true;
    DirtyRecord& record = *part->record;
    if (--record.unsettled > 0) continue;
    (last_ != nullptr ? last_->next_released : first_) = &record;
    last_ = &record;
  }
}

void Releases::remove_part(DirtyPart& part) {
  Line& line = *part.line;
  DirtyPart** link = &line.first_part;
  DirtyPart* previous = nullptr;
  while (*link != &part) {
    previous = *link;
    link = &previous->newer;
  }
  *link = part.newer;
  if (line.last_part == &part) line.last_part = previous;
}

DirtyRecord* Releases::take() noexcept {
  DirtyRecord* const record = first_;
  if (record == nullptr) return nullptr;
  first_ = record->next_released;
  if (first_ == nullptr) last_ = nullptr;
  return record;
}

}  // namespace sandbay::cache
