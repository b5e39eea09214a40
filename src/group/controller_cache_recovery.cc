// What a start finds in the NVRAM and its mirror: writes that go on to the drives, writes that do
// not count, and what is lost.
//
// What is lost is in the metadata before the NVRAM forgets it, and that everything is in this NVRAM
// is there before anything new is written into it. Killed anywhere, the next start finds the same.
#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "group/controller_cache.h"
#include "group/units.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

// Of one set: more are put together, to what certainly has them all.
constexpr std::size_t kMostLostRanges = 4096;
constexpr std::size_t kMostLostEvents = 64;
constexpr Duration kEventPatience = std::chrono::seconds(2);

}  // namespace

// Neighbours become one, in order of volume and place.
void ControllerCache::tidy(std::vector<LostRange>& ranges) {
  std::ranges::sort(ranges, [](const LostRange& one, const LostRange& other) {
    return std::tie(one.volume, one.why, one.extent.first) <
           std::tie(other.volume, other.why, other.extent.first);
  });
  std::vector<LostRange> tidied;
  for (LostRange& range : ranges) {
    const bool unknown = range.extent.block_count == 0;
    LostRange* const last = tidied.empty() ? nullptr : &tidied.back();
    const bool same = last != nullptr && last->volume == range.volume && last->why == range.why &&
                      (last->extent.block_count == 0) == unknown;
    const bool joins = same && (unknown || range.extent.first <= last->extent.end());
    const bool too_many = same && tidied.size() >= kMostLostRanges;
    if (!joins && !too_many) {
      tidied.push_back(std::move(range));
      continue;
    }
    const Lba end = std::max(last->extent.end(), range.extent.end());
    last->extent.block_count = unknown ? 0 : end - last->extent.first;
  }
  ranges = std::move(tidied);
}

Task<Started> ControllerCache::recover() {
  const TimePoint began = home_.now();
  cache::WriteRecovery found = memory_->recover();
  // An image from before there was any of this: what it held is gone with the newer ones.
  const bool gone = !had_region_ && is_needed(nvram_->uuid());
  if (gone && (mirror_ == nullptr || mirror_stale_)) {
    found.lost.push_back({.known = false, .subject = {}, .why = "stale image"});
  }
  Started outcome = co_await bar_unknown(&found.writes);
  if (!outcome) co_return outcome;
  outcome = co_await keep_lost(&found.lost);
  if (!outcome) co_return outcome;
  const Error accepted = co_await memory_->accept();
  if (accepted != Error::kNone) {
    co_return std::unexpected(at_nvram("cannot be written: " + std::string(describe(accepted)),
                                       StartRefusal::Kind::kNotNow));
  }
  std::vector<cache::RecoveredWrite> taken;
  std::uint64_t bytes = 0;
  std::size_t useless = 0;
  std::size_t confirmed = 0;
  for (cache::RecoveredWrite& write : found.writes) {
    const bool kept = may_adopt(write.subject.device);
    if (takes_from_here(write.subject.device) || kept) {
      // Unconfirmed writes wait in the cache, since their set is barred.
      if (!kept) ++confirmed;
      if (!kept) bytes += write.subject.extent.byte_count(write.subject.block_bytes);
      taken.push_back(std::move(write));
      continue;
    }
    ++useless;
    write.data.clear();
    memory_->release(write.id);
  }
  // Sets are then marked with this NVRAM, and these must not come back under the mark.
  const Error final = co_await memory_->flush_releases();
  if (final != Error::kNone) {
    co_return std::unexpected(at_nvram("cannot be written: " + std::string(describe(final)),
                                       StartRefusal::Kind::kNotNow));
  }
  if (confirmed != 0) tell_recovered(confirmed, bytes, found.from_mirror, home_.now() - began);
  if (useless != 0) {
    events_.add({.severity = Severity::kWarning,
                 .kind = "cache stale",
                 .text = fmt::format("cache: {} write{} in NVRAM are older than what is on the "
                                     "drives, or of no set that is known; they are dropped",
                                     useless, useless == 1 ? "" : "s")});
  }
  cache_->adopt(std::move(taken));
  outcome = co_await keep_marks();
  co_return outcome;
}

// The first start after an import with an NVRAM from before it: writes there of a set without a
// mark, or with that of an NVRAM that is not here, may be newer than its drives, or older if
// another NVRAM has been used since. An NVRAM that was made since has no such writes, and the one
// from before may still come.
Task<ControllerCache::Outcome> ControllerCache::bar_unknown(
    const std::vector<cache::RecoveredWrite>* writes) {
  if (!unchecked_) co_return Outcome{};
  if (!to_check_) co_return Outcome{};
  std::map<Uuid, DirtyRecord> records;
  for (const cache::RecoveredWrite& write : *writes) {
    const Uuid& set = write.subject.device;
    const auto mark = marks_.find(set);
    if (mark != marks_.end() && is_here(mark->second)) continue;
    if (name_of_set_(set).empty()) continue;
    DirtyRecord& record = records[set];
    record = {.nvram = nvram_->uuid(), .unconfirmed = true};
    if (mark != marks_.end()) record.exported = mark->second;
  }
  metadata::Batch batch;
  for (const auto& [set, record] : records) batch.put(dirty_key(set), encode(record));
  // Whether a set waits for an NVRAM that was made since is asked again at each start.
  const bool newer =
      std::ranges::any_of(
          records, [this](const auto& each) { return is_made_since(each.second.exported); }) ||
      std::ranges::any_of(exported_,
                          [this](const auto& each) { return is_made_since(each.second); });
  if (!newer) batch.erase(std::string(kUncheckedKey));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return std::unexpected(unwritten(error));
  for (const auto& [set, record] : records) {
    marks_[set] = record.nvram;
    unconfirmed_.insert(set);
    barred_.insert(set);
    if (record.exported != ImageUuid{}) exported_[set] = record.exported;
  }
  unchecked_ = newer;
  co_return Outcome{};
}

// The NVRAM that an import named has been put back.
Task<ControllerCache::Outcome> ControllerCache::follow_exported() {
  std::map<Uuid, ImageUuid> found;
  metadata::Batch batch;
  for (const auto& [set, exported] : exported_) {
    if (is_here(marks_.at(set)) || !is_here(exported)) continue;
    found[set] = exported;
    batch.put(dirty_key(set), encode(DirtyRecord{.nvram = exported}));
  }
  if (batch.empty()) co_return Outcome{};
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return std::unexpected(unwritten(error));
  for (const auto& [set, exported] : found) {
    marks_[set] = exported;
    exported_.erase(set);
    unconfirmed_.erase(set);
  }
  co_return Outcome{};
}

void ControllerCache::tell_recovered(std::size_t writes, std::uint64_t bytes,
                                     std::size_t from_mirror, Duration time) {
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(time);
  events_.add(
      {.kind = "cache recovered",
       .text = fmt::format(
           "cache: {} acknowledged write{} of {} in NVRAM go to the drives, found "
           "and checked in {} ms{}",
           writes, writes == 1 ? "" : "s", format_size_rounded(bytes), milliseconds.count(),
           from_mirror == 0 ? "" : fmt::format("; {} of them only the mirror had", from_mirror))});
}

Task<ControllerCache::Outcome> ControllerCache::keep_lost(
    const std::vector<cache::LostWrite>* lost) {
  std::map<Uuid, std::vector<LostRange>> news;
  for (const cache::LostWrite& each : *lost) {
    for (const auto& [set, mark] : marks_) {
      if (!takes_from_here(set) || (each.known && each.subject.device != set)) continue;
      LostRange range{
          .volume = each.subject.volume, .extent = each.subject.extent, .why = each.why};
      if (!each.known) range = {.why = each.why};
      news[set].push_back(std::move(range));
    }
  }
  if (news.empty()) co_return Outcome{};
  metadata::Batch batch;
  for (auto& [set, ranges] : news) {
    tidy(ranges);
    tell_lost(set, ranges);
    std::vector<LostRange>& all = lost_[set];
    all.insert(all.end(), ranges.begin(), ranges.end());
    tidy(all);
    batch.put(lost_key(set), encode(all));
  }
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return std::unexpected(unwritten(error));
  co_await events_.kept(home_.now() + kEventPatience);
  co_return Outcome{};
}

Task<std::expected<bool, std::string>> ControllerCache::add_lost(Uuid set,
                                                                 std::vector<LostRange> ranges) {
  std::vector<LostRange>& known = lost_[set];
  std::vector<LostRange> all = known;
  all.insert(all.end(), ranges.begin(), ranges.end());
  tidy(all);
  const bool news = all != known;
  if (!news && !lost_unsaved_.contains(set)) co_return false;
  known = all;
  lost_unsaved_.insert(set);
  metadata::Batch batch;
  batch.put(lost_key(set), encode(all));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return std::unexpected(unwritten(error));
  lost_unsaved_.erase(set);
  co_return news;
}

std::string ControllerCache::words_of(const LostRange& range) const {
  if (range.extent.block_count == 0) return "acknowledged writes are lost, nobody knows which";
  const LostInfo lost = info_of(range, places_);
  const std::string of = lost.volume.empty()
                             ? std::string("the set, of a volume that is not there any more,")
                         : lost.of_set ? fmt::format("the set, of volume {},", lost.volume)
                                       : fmt::format("volume {}", lost.volume);
  return fmt::format("acknowledged writes to blocks {} to {} of {} are lost", lost.first_block,
                     lost.first_block + lost.block_count - 1, of);
}

void ControllerCache::tell_lost(const Uuid& set, const std::vector<LostRange>& ranges) {
  for (std::size_t i = 0; i < ranges.size() && i < kMostLostEvents; ++i) {
    events_.add(
        {.severity = Severity::kError,
         .kind = "writes lost",
         .set = name_of_set_(set),
         .text = fmt::format("{}: {}: {}", set_words(set), words_of(ranges[i]), ranges[i].why)});
  }
  if (ranges.size() <= kMostLostEvents) return;
  events_.add({.severity = Severity::kError,
               .kind = "writes lost",
               .set = name_of_set_(set),
               .text = fmt::format("{}: and {} more ranges of blocks; see sandbay cache show",
                                   set_words(set), ranges.size() - kMostLostEvents)});
}

// Everything is in this NVRAM now, and in its mirror if there is one.
Task<ControllerCache::Outcome> ControllerCache::keep_marks() {
  Outcome kept;
  // Again if the mirror fails meanwhile.
  for (bool settled = false; kept && !settled;) {
    careful_ = memory_->mirrored();
    kept = co_await commit_marks();
    settled = careful_ == memory_->mirrored();
  }
  co_return kept;
}

Task<ControllerCache::Outcome> ControllerCache::commit_marks() {
  metadata::Batch batch;
  for (auto& [set, mark] : marks_) {
    if (!is_here(mark) || mark == nvram_->uuid()) continue;
    mark = nvram_->uuid();
    DirtyRecord record{.nvram = mark, .unconfirmed = unconfirmed_.contains(set)};
    const auto exported = exported_.find(set);
    if (exported != exported_.end()) record.exported = exported->second;
    batch.put(dirty_key(set), encode(record));
  }
  if (mirror_record_) {
    MirrorRecord record = *mirror_record_;
    if (mirror_ != nullptr) {
      record.nvram = nvram_->uuid();
      record.stale = !memory_->mirrored();
    } else if (record.nvram == nvram_->uuid()) {
      record.stale = true;  // What is written without it, it does not have.
    }
    mirror_record_ = record;
    batch.put(std::string(kMirrorKey), encode(record));
  }
  if (batch.empty()) co_return Outcome{};
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return std::unexpected(unwritten(error));
  co_return Outcome{};
}

}  // namespace sandbay::group
