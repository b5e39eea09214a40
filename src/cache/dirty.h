// Dirty records: writes that were acknowledged before they were below, and the order in which they
// may be forgotten.
//
// A record is one write of at most 1 MiB; with NVRAM it has a record there. It has a part in every
// line that it touches. A dirty block is always the block of the newest write to it, and each part
// counts how many of its blocks still are dirty.
//
// A crash replays every record that was not released, in order. So a record may be released only
// when that cannot bring back old content: each of its parts is settled, that is, no block of it is
// dirty any more and
//   - newer records, all of them live at that moment, have overwritten all of it; or
//   - no older live record overlaps it: replayed without this one, that one would hide what this
//     one has brought to the drives.
#pragma once

#include <cstdint>

#include "block/block_device.h"
#include "cache/line.h"

namespace sandbay::cache {

enum class WriteId : std::uint32_t;
struct DirtyRecord;

struct DirtyPart {
  DirtyRecord* record = nullptr;
  Line* line = nullptr;
  DirtyPart* newer = nullptr;  // In the line.
  Range range;                 // Within the line.
  unsigned dirty_blocks = 0;
  unsigned overwritten_blocks = 0;
  bool settled = false;
};

struct DirtyRecord {
  // Grows with every record of the cache, in the order in which writes take effect.
  std::uint64_t sequence = 0;
  CachedDevice* device = nullptr;
  std::uint64_t volume = 0;
  Extent extent;
  std::uint64_t bytes = 0;
  std::uint64_t room = 0;  // What it takes of the room for dirty data.
  WriteId id{};            // In the write memory, if there is one.
  unsigned part_count = 0;
  unsigned unsettled = 0;
  DirtyRecord* next_released = nullptr;

  DirtyPart* parts() noexcept { return reinterpret_cast<DirtyPart*>(this + 1); }
  // In pooled memory, with its parts; they are in no line yet.
  static DirtyRecord* make(unsigned part_count);
  static void destroy(DirtyRecord* record) noexcept;

 private:
  DirtyRecord() = default;
  ~DirtyRecord() = default;
};

// The part is the newest of its line from then on.
void append_part(Line& line, DirtyPart& part);

// A record that overlaps the range and is not released; the oldest, or null.
DirtyPart* oldest_overlapping(const Line& line, Range range) noexcept;

// A part with dirty blocks that keeps `part`'s record from being released. The record is live.
DirtyPart& what_holds(DirtyPart& part) noexcept;

// Finds the records that may be released after blocks have ceased to be dirty.
class Releases {
 public:
  // `count` blocks of the part are not dirty any more; check() follows for its line.
  static void overwritten(DirtyPart& part, unsigned count) noexcept;
  static void cleaned(DirtyPart& part, unsigned count) noexcept;

  // Calls on_release(record) for every record that may go now, directly or because another went,
  // oldest first for any one place. The record is in no line any more; on_release owns it.
  template <class OnRelease>
  void check(Line& line, OnRelease on_release) {
    settle_parts(line);
    while (DirtyRecord* const record = take()) {
      for (unsigned i = 0; i < record->part_count; ++i) remove_part(record->parts()[i]);
      for (unsigned i = 0; i < record->part_count; ++i) settle_parts(*record->parts()[i].line);
      on_release(record);
    }
  }

 private:
  void settle_parts(Line& line);
  static void remove_part(DirtyPart& part);
  DirtyRecord* take() noexcept;

  DirtyRecord* first_ = nullptr;
  DirtyRecord* last_ = nullptr;
};

}  // namespace sandbay::cache
