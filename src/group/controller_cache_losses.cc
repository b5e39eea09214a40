// Acknowledged writes that are lost, given up, or cannot go where they belong: what is noted of
// them, and what is told.
#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "group/controller_cache.h"
#include "group/units.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

constexpr std::size_t kMostToldRanges = 16;  // In an answer or an event.
constexpr const char* kGivenUp = "given up by an operator";

std::string words_of_info(const LostInfo& lost) {
  return fmt::format(
      "{}{} blocks {} to {}",
      lost.volume.empty() ? std::string("no volume that exists,") : "volume " + lost.volume,
      lost.of_set && !lost.volume.empty() ? ", of the set" : "", lost.first_block,
      lost.first_block + lost.block_count - 1);
}

}  // namespace

LostInfo ControllerCache::info_of(const LostRange& range, const VolumePlaces& places) const {
  LostInfo lost{
      .first_block = range.extent.first, .block_count = range.extent.block_count, .why = range.why};
  const auto found = places.find(range.volume);
  if (found == places.end() || range.extent.block_count == 0) return lost;
  const VolumePlace& place = found->second;
  if (range.extent.first < place.first.value_or(0)) return lost;
  lost.volume = place.name;
  lost.of_set = !place.first;
  lost.first_block -= place.first.value_or(0);
  return lost;
}

// Damaged while the daemon runs -----------------------------------------------------------------

// In the metadata first; then on the set, whose drives remember it from then on. The cache waits
// for it when it closes, so it needs no gate.
Task<Error> ControllerCache::note_damaged(Uuid set, std::vector<cache::VolumeExtent> writes) {
  if (abandoned_) co_return Error::kClosed;
  std::vector<LostRange> ranges;
  std::vector<Extent> extents;
  for (const cache::VolumeExtent& write : writes) {
    ranges.push_back({.volume = write.volume, .extent = write.extent, .why = "damaged"});
    extents.push_back(write.extent);
  }
  const auto news = co_await add_lost(set, ranges);
  if (!news) co_return Error::kHardware;
  if (abandoned_) co_return Error::kClosed;
  if (*news) tell_lost(set, ranges);
  if (!lose) co_return Error::kNone;
  co_return co_await lose(set, std::move(extents));
}

// Stuck -------------------------------------------------------------------------------------------

std::uint64_t ControllerCache::stuck_bytes(const Uuid& set) const {
  std::uint64_t bytes = 0;
  const auto guard = guards_.find(set);
  if (guard != guards_.end() && guard->second->device().destage_failure() != Error::kNone) {
    bytes = guard->second->device().dirty_bytes();
  }
  const auto waiting = waiting_bytes();
  const auto of_set = waiting.find(set);
  return of_set == waiting.end() ? bytes : bytes + of_set->second;
}

void ControllerCache::tell_stuck(const Uuid& set) {
  if (abandoned_ || !started_ || barred_.contains(set)) return;  // The bar says what to do.
  const std::uint64_t bytes = stuck_bytes(set);
  if ((bytes != 0) == stuck_told_.contains(set)) return;
  if (bytes == 0) {
    stuck_told_.erase(set);
    events_.add(
        {.kind = "writes go on",
         .set = name_of_set_(set),
         .text = fmt::format("{}: acknowledged writes go to its drives again", set_words(set))});
    return;
  }
  stuck_told_.insert(set);
  const auto guard = guards_.find(set);
  const Error failure =
      guard == guards_.end() ? Error::kNone : guard->second->device().destage_failure();
  const std::string name = name_of_set_(set);
  events_.add(
      {.severity = Severity::kError,
       .kind = "writes stuck",
       .set = name,
       .text = fmt::format(
           "{}: {} of acknowledged writes cannot be brought to its drives: {}; they stay in {} and "
           "go there when its drives are back, or are given up: sandbay cache discard {} "
           "--yes-lose-data",
           set_words(set), format_size_rounded(bytes),
           failure == Error::kNone ? std::string("it is not there")
                                   : std::string(describe(failure)),
           memory_ != nullptr ? "the NVRAM" : "the daemon's memory",
           name.empty() ? format_uuid(set) : name)});
}

void ControllerCache::look_after_sets() {
  if (cache_ == nullptr || !started_) return;
  for (const auto& [uuid, guard] : guards_) {
    const cache::CachedDevice& device = guard->device();
    const Health health = device.health();
    const bool gone = health == Health::kFailed || health == Health::kMissing;
    const bool unknown = device.destage_failure() == Error::kNone && device.dirty_bytes() != 0;
    if (gone && unknown && trying_.insert(uuid).second) spawn(try_destage(uuid));
  }
  std::set<Uuid> all = stuck_told_;
  for (const auto& [uuid, bytes] : waiting_bytes()) all.insert(uuid);
  for (const Uuid& uuid : all) tell_stuck(uuid);
}

// Its end says nothing that tell_stuck() does not hear of.
Task<void> ControllerCache::try_destage(Uuid set) {
  if (gate_.enter()) {
    const GateHold hold(gate_);
    (void)co_await guards_.at(set)->device().destage_all();
  }
  trying_.erase(set);
}

// Given up ----------------------------------------------------------------------------------------

Task<std::expected<DiscardedWrites, std::string>> ControllerCache::discard(Uuid set) {
  DiscardedWrites given;
  // Writes that are here and not confirmed are known to the block.
  const bool here = may_adopt(set);
  const bool barred = barred_.contains(set);
  if (barred) {
    if (!here) given.nvram = format_uuid(std::bit_cast<Uuid>(marks_.at(set)));
    // Should that NVRAM come back, nothing of it counts; but the import's NVRAM still does.
    std::optional<ImageUuid> next;
    if (exported_.contains(set)) next = exported_.at(set);
    metadata::Batch batch;
    if (next) {
      batch.put(dirty_key(set), encode(DirtyRecord{.nvram = *next}));
    } else {
      batch.erase(dirty_key(set));
    }
    const Error error = co_await store_.commit(std::move(batch));
    if (error != Error::kNone) co_return std::unexpected(unwritten(error));
    exported_.erase(set);
    unconfirmed_.erase(set);
    if (next) {
      marks_[set] = *next;
    } else {
      marks_.erase(set);
      barred_.erase(set);
    }
  }
  stuck_told_.erase(set);
  std::vector<cache::VolumeExtent> writes;
  std::uint64_t bytes = 0;
  if (cache_ != nullptr) {
    bytes = waiting_bytes()[set];
    writes = cache_->discard_waiting(set);
  }
  const auto guard = guards_.find(set);
  if (guard != guards_.end()) {
    cache::CachedDevice& device = guard->second->device();
    const auto dirty = co_await device.discard();
    for (const cache::VolumeExtent& write : dirty) {
      bytes += write.extent.byte_count(device.block_bytes());
      writes.push_back(write);
    }
  }
  if (!barred || here) given.byte_count = bytes;
  const auto noted = co_await note_given_up(set, writes, &given);
  if (!noted) co_return std::unexpected(noted.error());
  co_return given;
}

// `given` is the caller's, who awaits at once.
Task<ControllerCache::Outcome> ControllerCache::note_given_up(
    Uuid set, std::vector<cache::VolumeExtent> writes, DiscardedWrites* given) {
  std::vector<LostRange> ranges;
  for (const cache::VolumeExtent& write : writes) {
    ranges.push_back({.volume = write.volume, .extent = write.extent, .why = kGivenUp});
  }
  if (!given->byte_count) ranges.push_back({.why = kGivenUp});  // Nobody knows which.
  tidy(ranges);
  std::vector<std::string> words;
  for (const LostRange& range : ranges) {
    if (range.extent.block_count == 0) continue;
    if (given->ranges.size() < kMostToldRanges) {
      given->ranges.push_back(info_of(range, places_));
      words.push_back(words_of_info(given->ranges.back()));
    } else {
      ++given->more_ranges;
    }
  }
  if (given->more_ranges != 0) words.push_back(fmt::format("{} more", given->more_ranges));
  const std::string what =
      given->byte_count
          ? fmt::format("{} of acknowledged writes are", format_size_rounded(*given->byte_count))
          : fmt::format("acknowledged writes in NVRAM {} are", given->nvram);
  events_.add({.severity = Severity::kWarning,
               .kind = "writes discarded",
               .set = name_of_set_(set),
               .text = fmt::format("{}: {} {}{}{}", set_words(set), what, kGivenUp,
                                   words.empty() ? "" : ": ", fmt::join(words, ", "))});
  if (ranges.empty()) co_return Outcome{};
  const auto added = co_await add_lost(set, std::move(ranges));
  if (!added) co_return std::unexpected(added.error());
  co_return Outcome{};
}

bool ControllerCache::may_adopt(const Uuid& set) const {
  return unconfirmed_.contains(set) && is_here(marks_.at(set));
}

Task<ControllerCache::Outcome> ControllerCache::adopt(Uuid set) {
  assert(may_adopt(set));
  metadata::Batch batch;
  batch.put(dirty_key(set), encode(DirtyRecord{.nvram = marks_.at(set)}));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return std::unexpected(unwritten(error));
  unconfirmed_.erase(set);
  exported_.erase(set);
  barred_.erase(set);
  events_.add({.severity = Severity::kWarning,
               .kind = "writes adopted",
               .set = name_of_set_(set),
               .text = fmt::format("{}: {} of acknowledged writes in NVRAM go to its drives, as an "
                                   "operator says that they count",
                                   set_words(set), format_size_rounded(waiting_bytes()[set]))});
  co_return Outcome{};
}

Task<ControllerCache::Outcome> ControllerCache::acknowledge(Uuid set) {
  if (!lost_.contains(set)) co_return Outcome{};
  metadata::Batch batch;
  batch.erase(lost_key(set));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return std::unexpected(unwritten(error));
  lost_.erase(set);
  lost_unsaved_.erase(set);
  co_return Outcome{};
}

}  // namespace sandbay::group
