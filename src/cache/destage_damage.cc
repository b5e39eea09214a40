// Destaging and damage: what is about to go below is what was acknowledged, or it does not go.
//
// Blocks whose bytes in the write memory are damaged, and that no mirror has, are lost: they read
// as medium errors from then on, and whoever owns the cache notes durably which ones they are
// (Cache::on_damaged) before their record is released. Until he has, it counts as a failed attempt.
#include <algorithm>

#include "cache/cache.h"
#include "cache/cached_device.h"
#include "cache/destage.h"
#include "cache/destage_unit.h"
#include "cache/fetch.h"

namespace sandbay::cache {

// The dirty blocks of the unit that are not what was written to them, in order.
std::vector<Destager::Damage> Destager::find_damage(const Unit& unit) {
  std::vector<Damage> found;
  WriteMemory* const memory = cache_.write_memory();
  if (memory == nullptr) return found;
  const std::uint64_t check = memory->new_check();
  device_.for_lines(unit.extent, [&](Line& line) {
    const Range range = device_.range_in(line.number, unit.extent);
    for (unsigned i = find_segment(line, range.first); i < line.segments.size(); ++i) {
      const Segment& segment = line.segments[i];
      if (segment.first >= range.end()) break;
      if (segment.dirty == nullptr) continue;
      const DirtyRecord& record = *segment.dirty->record;
      if (memory->verify(record.id, unit.extent, check)) continue;
      const unsigned first = std::max<unsigned>(segment.first, range.first);
      const Extent blocks{.first = device_.lba_in(line, first),
                          .block_count = std::min(segment.end(), range.end()) - first};
      for (const Extent& extent : memory->damaged(record.id, blocks)) {
        found.push_back({.extent = extent, .volume = record.volume, .record = record.sequence});
      }
    }
  });
  return found;
}

// Ends with kNone when all dirty blocks of the unit are what was acknowledged, because the others
// are lost and known to be.
Task<Error> Destager::check_content(Unit* unit) {
  std::vector<Damage> found = find_damage(*unit);
  while (!found.empty()) {
    // What is clean there was not checked, and is below anyway.
    cache_.forget_clean_writes();
    for (const Damage& damage : found) device_.damaged_.add(damage.extent);
    std::vector<VolumeExtent> told;
    for (const Damage& damage : found) {
      told.push_back({.volume = damage.volume, .extent = damage.extent});
    }
    Error error = Error::kNone;
    if (cache_.on_damaged) error = co_await cache_.on_damaged(device_.uuid(), std::move(told));
    if (error != Error::kNone) co_return error;
    for (const Damage& damage : found) drop_damaged(damage);
    found = find_damage(*unit);
  }
  co_return Error::kNone;
}

// They are not dirty any more, unless they have been overwritten meanwhile. Nothing replaces them:
// their record goes as if they had been destaged, so that no older one outlives it.
void Destager::drop_damaged(const Damage& damage) {
  counters_.damaged_bytes += damage.extent.byte_count(device_.block_bytes());
  device_.for_lines(damage.extent, [&](Line& line) {
    const Range range = device_.range_in(line.number, damage.extent);
    cache_.pin(line);
    split(line, range.first, device_.block_bytes());
    split(line, range.end(), device_.block_bytes());
    for (unsigned i = find_segment(line, range.first); i < line.segments.size();) {
      const Segment& segment = line.segments[i];
      if (segment.first >= range.end()) break;
      if (segment.dirty == nullptr || segment.dirty->record->sequence != damage.record) {
        ++i;
        continue;
      }
      outdate_fetches(line, {.first = segment.first, .count = segment.count});
      Releases::cleaned(*segment.dirty, segment.count);
      stripes_.remove({.first = device_.lba_in(line, segment.first), .block_count = segment.count});
      line.segments.erase(i, i + 1);
    }
    cache_.check_releases(line);
    cache_.unpin(line);
  });
}

}  // namespace sandbay::cache
