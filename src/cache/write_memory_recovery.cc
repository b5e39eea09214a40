// What a WriteMemory finds when it starts.
//
// Every record of both logs is read; a write is there if its descriptor and the bytes it names are
// right in the primary or in the mirror. That the two logs are put together is sound, also where a
// crash of the host has undone the latest releases of one of them: what comes back there comes back
// with everything that was released later, and nothing is written without a record before releases
// are final.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "cache/write_memory.h"
#include "cache/write_record.h"
#include "runtime/crc32c.h"

namespace sandbay::cache {

// A write as the logs have it.
struct WriteMemory::Found {
  WriteHeader header;
  std::vector<WriteSlice> slices;
  // The record in each log that stays; 0: there is none.
  std::uint64_t primary = 0;
  std::uint64_t mirror = 0;
  bool in_primary = false;  // With its bytes.
  bool in_mirror = false;
  bool acknowledged = false;
  std::uint32_t slot = 0;  // Its entry, if it came back.
};

struct WriteMemory::Search {
  std::map<std::uint64_t, Found> found;  // By order.
  // Records that are of no use. They go before the others count as acknowledged: one that was not
  // is never reported by a later start.
  std::vector<std::uint64_t> useless_primary;
  std::vector<std::uint64_t> useless_mirror;
  std::string primary_unknown;  // Something was lost there, and nobody knows what; why.
  bool mirror_whole = false;
  std::string why_lost = "damaged";
  // Bytes of the data area that writes of the primary have, sorted: first and end.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> claimed;
  bool is_claimed(const WriteSlice& slice) const {
    const auto after = std::ranges::upper_bound(claimed, slice.offset, {},
                                                [](const auto& range) { return range.second; });
    return after != claimed.end() && after->first < slice.offset + slice.byte_count;
  }
};

namespace {

bool read_descriptor(std::span<const std::byte> descriptor, std::uint64_t data_bytes,
                     WriteHeader& header, std::vector<WriteSlice>& slices) {
  if (descriptor.size() < sizeof header) return false;
  std::memcpy(&header, descriptor.data(), sizeof header);
  if (header.version != kWriteVersion || header.slice_count == 0 || header.order == 0) return false;
  if (descriptor.size() != descriptor_bytes(header.slice_count)) return false;
  if (header.block_bytes != 512 && header.block_bytes != 4096) return false;
  slices.resize(header.slice_count);
  std::memcpy(slices.data(), descriptor.data() + sizeof header, slices.size() * sizeof(WriteSlice));
  std::uint64_t bytes = 0;
  for (const WriteSlice& slice : slices) {
    if (slice.byte_count == 0 || slice.offset > data_bytes) return false;
    if (slice.byte_count > data_bytes - slice.offset) return false;
    bytes += slice.byte_count;
  }
  return bytes % header.block_bytes == 0 && bytes / header.block_bytes == header.block_count;
}

WriteSubject subject_of(const WriteHeader& header) {
  return {.device = header.device,
          .volume = header.volume,
          .block_bytes = header.block_bytes,
          .extent = {.first = header.first_block, .block_count = header.block_count}};
}

}  // namespace

WriteMemory::WriteMemory(Half primary, Half mirror, WriteMemoryOptions options)
    : primary_(std::move(primary)),
      mirror_(std::move(mirror)),
      options_(std::move(options)),
      pool_(primary_.nvram->home(), primary_.data, options_.slab_bytes),
      entries_(1) {}

WriteMemory::~WriteMemory() {
  // Buffers of writes that stay go back to the pool, which is all that ends: the image keeps them.
  entries_.clear();
  released_.clear();
  leaving_.clear();
}

bool WriteMemory::intact(const Half& half, const Found& found) const {
  return std::ranges::all_of(found.slices, [&](const WriteSlice& slice) {
    // Two slabs never share a piece: whoever wrote this had slabs of another size.
    if (slice.offset / options_.slab_bytes !=
        (slice.offset + slice.byte_count - 1) / options_.slab_bytes) {
      return false;
    }
    return crc32c(half.data.subspan(slice.offset, slice.byte_count)) == slice.checksum;
  });
}

// A record of a log. `whole`: the log has it; otherwise it is one that was lost.
void WriteMemory::note(const Half& half, std::span<const std::byte> descriptor,
                       std::uint64_t sequence, bool acknowledged, bool whole) {
  const bool is_mirror = &half == &mirror_;
  auto& useless = is_mirror ? search_->useless_mirror : search_->useless_primary;
  Found read;
  if (!read_descriptor(descriptor, half.data.size(), read.header, read.slices)) {
    if (whole) useless.push_back(sequence);
    if (!acknowledged) return;
    if (is_mirror) {
      search_->mirror_whole = false;
    } else if (search_->primary_unknown.empty()) {
      search_->primary_unknown = search_->why_lost;
    }
    return;
  }
  Found& found = search_->found.try_emplace(read.header.order, read).first->second;
  found.acknowledged = found.acknowledged || acknowledged;
  if (!whole) return;
  std::uint64_t& kept = is_mirror ? found.mirror : found.primary;
  bool& there = is_mirror ? found.in_mirror : found.in_primary;
  if (!there && intact(half, read)) {
    if (kept != 0) useless.push_back(kept);
    kept = sequence;
    there = true;
    if (!is_mirror || !found.in_primary) {
      found.header = read.header;
      found.slices = read.slices;
    }
  } else {
    useless.push_back(sequence);
  }
}

void WriteMemory::look_at(Half& half, bool is_mirror) {
  const nvram::Recovery recovery = half.log->recover();
  if (is_mirror && options_.mirror_is_stale) {
    for (const nvram::Record& record : recovery.records) {
      search_->useless_mirror.push_back(record.id.sequence);
    }
    return;
  }
  search_->why_lost = recovery.region_loss == nvram::Loss::kNone
                          ? "damaged"
                          : std::string(nvram::describe(recovery.region_loss));
  // After an emulated power cut alone the list of what was lost is complete; after the others the
  // image says nothing certain.
  const bool listed =
      recovery.region_loss == nvram::Loss::kPowerCut && !half.region->after_host_crash();
  const bool uncertain =
      recovery.control_lost || (recovery.region_loss != nvram::Loss::kNone && !listed);
  if (is_mirror) {
    search_->mirror_whole = !uncertain && recovery.region_loss == nvram::Loss::kNone;
  } else if (uncertain) {
    search_->primary_unknown = search_->why_lost;
  }
  for (const nvram::Record& record : recovery.records) {
    note(half, record.descriptor, record.id.sequence, record.acknowledged, true);
  }
  for (const nvram::LostRecord& lost : recovery.lost) {
    // With a damaged control block the newest record does not count as acknowledged, and was.
    note(half, lost.descriptor, lost.first_sequence, lost.acknowledged || listed, false);
  }
}

WriteRecovery WriteMemory::recover() {
  assert(!ready_ && search_ == nullptr);
  search_ = std::make_unique<Search>();
  if (mirrored()) look_at(mirror_, true);
  look_at(primary_, false);
  // Orders of one opening are above those of all before.
  next_order_ = primary_.nvram->open_count() << 40U;
  for (const auto& [order, found] : search_->found) {
    if (!found.in_primary) continue;
    for (const WriteSlice& slice : found.slices) {
      search_->claimed.emplace_back(slice.offset, slice.offset + slice.byte_count);
    }
  }
  std::ranges::sort(search_->claimed);
  WriteRecovery recovery;
  for (auto& [order, found] : search_->found) {
    next_order_ = std::max(next_order_, order + 1);
    settle_found(found, recovery);
  }
  if (!search_->primary_unknown.empty() && !search_->mirror_whole) {
    recovery.lost.push_back({.known = false, .subject = {}, .why = search_->primary_unknown});
  }
  return recovery;
}

void WriteMemory::settle_found(Found& found, WriteRecovery& recovery) {
  if (!found.in_primary && !found.in_mirror) {
    // What a whole mirror does not have was not acknowledged yet, or released.
    if (!found.acknowledged || search_->mirror_whole) return;
    recovery.lost.push_back(
        {.known = true, .subject = subject_of(found.header), .why = search_->why_lost});
    return;
  }
  if (!found.in_primary) {
    // Where its memory has been used again, it was released: the mirror had failed before, and
    // nobody had time to note that.
    if (std::ranges::any_of(found.slices,
                            [&](const WriteSlice& slice) { return search_->is_claimed(slice); })) {
      search_->useless_mirror.push_back(found.mirror);
      if (found.primary != 0) search_->useless_primary.push_back(found.primary);
      return;
    }
    ++recovery.from_mirror;
    for (const WriteSlice& slice : found.slices) {
      std::memcpy(primary_.data.data() + slice.offset, mirror_.data.data() + slice.offset,
                  slice.byte_count);
    }
  }
  found.slot = new_entry();
  Entry& entry = entries_[found.slot];
  entry.order = found.header.order;
  entry.subject = subject_of(found.header);
  for (const WriteSlice& slice : found.slices) {
    entry.data.append(pool_.adopt(slice.offset, slice.byte_count));
    entry.checksums.push_back(slice.checksum);
  }
  held_bytes_ += entry.data.byte_count();
  recovery.writes.push_back(
      {.id = WriteId{found.slot}, .subject = entry.subject, .data = entry.data.share()});
}

Task<Error> WriteMemory::accept_half(Half* half) {
  const Error accepted = co_await half->log->accept();
  if (accepted != Error::kNone || half->region->settled()) co_return accepted;
  co_return co_await half->region->settle();
}

// What only one of the two has comes into the other again. The newest first: where a crash of the
// host has undone releases, an older write is never in the mirror without those that replaced it.
Task<Error> WriteMemory::complete_halves(Search* search) {
  for (auto at = search->found.rbegin(); at != search->found.rend(); ++at) {
    const std::uint32_t slot = at->second.slot;
    if (slot == 0) continue;
    const std::uint64_t bytes = 2 * log_bytes_of(entries_[slot]);
    if (entries_[slot].primary == 0 && primary_.log->free_bytes() > bytes) {
      const auto again = co_await append_to(&primary_, slot);
      if (!again) co_return again.error();
      entries_[slot].primary = *again;
    }
    if (!mirrored() || entries_[slot].mirror != 0) continue;
    if (mirror_.log->free_bytes() > bytes) {
      co_await append_to_mirror(slot);
    } else {
      drop_mirror();  // With a part of the writes it is none.
    }
  }
  co_return Error::kNone;
}

Task<Error> WriteMemory::accept() {
  assert(!ready_ && search_ != nullptr);
  for (const std::uint64_t sequence : search_->useless_primary) primary_.log->forget({sequence});
  for (const std::uint64_t sequence : search_->useless_mirror) mirror_.log->forget({sequence});
  const Error error = co_await accept_half(&primary_);
  if (error != Error::kNone) co_return error;
  if (mirrored()) {
    const Error mirror_error = co_await accept_half(&mirror_);
    if (mirror_error != Error::kNone) drop_mirror();
  }
  ready_ = true;
  const std::unique_ptr<Search> search = std::move(search_);
  for (auto& [order, found] : search->found) {
    if (found.slot == 0) continue;
    entries_[found.slot].primary = found.primary;
    entries_[found.slot].mirror = mirrored() ? found.mirror : 0;
    link_newest(found.slot);
    ++live_count_;
    live_log_bytes_ += log_bytes_of(entries_[found.slot]);
  }
  const Error completed = co_await complete_halves(search.get());
  if (completed != Error::kNone) co_return completed;
  co_return co_await flush_releases();
}

}  // namespace sandbay::cache
