// WriteMemory and damage while it is in use.
//
// A slice's checksum is made once, when its write is appended, and kept beside the record: records
// that are written again, into the mirror or to another place of the log, have the same. So bytes
// that change later are told from what was acknowledged, at a start and before they are destaged.
#include <algorithm>
#include <cstring>
#include <utility>

#include "cache/write_memory.h"
#include "runtime/crc32c.h"

namespace sandbay::cache {

void WriteMemory::seal(Entry& entry) {
  for (std::size_t i = 0; i < entry.data.slice_count(); ++i) {
    entry.checksums.push_back(crc32c(entry.data[i].bytes()));
  }
}

bool WriteMemory::good_slice(const Entry& entry, std::size_t index) const {
  return crc32c(entry.data[index].bytes()) == entry.checksums[index];
}

bool WriteMemory::mend_slice(Entry& entry, std::size_t index) {
  if (!mirrored() || entry.mirror == 0) return false;
  const std::span<std::byte> bytes = entry.data[index].bytes();
  const auto offset = static_cast<std::size_t>(bytes.data() - primary_.data.data());
  const auto there = mirror_.data.subspan(offset, bytes.size());
  if (crc32c(there) != entry.checksums[index]) return false;
  std::memcpy(bytes.data(), there.data(), there.size());
  mended_bytes_ += there.size();
  return true;
}

// Calls visit(index, blocks) for each slice with blocks in the extent; where it begins and ends.
template <class Visit>
void WriteMemory::for_slices(const Entry& entry, const Extent& extent, Visit visit) {
  const WriteSubject& subject = entry.subject;
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < entry.data.slice_count(); ++i) {
    const std::uint64_t end = offset + entry.data[i].byte_count();
    const Lba first = subject.extent.first + offset / subject.block_bytes;
    const Lba last = subject.extent.first + (end - 1) / subject.block_bytes;
    const Extent blocks{.first = first, .block_count = last - first + 1};
    if (blocks.overlaps(extent)) visit(i, blocks);
    offset = end;
  }
}

bool WriteMemory::verify(WriteId id, const Extent& extent, std::uint64_t check) {
  Entry& entry = entries_[std::to_underlying(id)];
  assert(entry.order != 0);
  if (entry.checked == check) return entry.whole;
  entry.checked = check;
  entry.whole = true;
  for_slices(entry, extent, [&](std::size_t index, const Extent&) {
    if (!good_slice(entry, index) && !mend_slice(entry, index)) entry.whole = false;
  });
  return entry.whole;
}

void WriteMemory::mend() {
  for (std::uint32_t slot = oldest_; slot != 0; slot = entries_[slot].newer) {
    (void)verify(WriteId{slot}, entries_[slot].subject.extent, new_check());
  }
}

std::vector<Extent> WriteMemory::damaged(WriteId id, const Extent& extent) const {
  const Entry& entry = entries_[std::to_underlying(id)];
  std::vector<Extent> found;
  for_slices(entry, extent, [&](std::size_t index, const Extent& blocks) {
    if (good_slice(entry, index)) return;
    const Lba first = std::max(blocks.first, extent.first);
    found.push_back({.first = first, .block_count = std::min(blocks.end(), extent.end()) - first});
  });
  return found;
}

}  // namespace sandbay::cache
