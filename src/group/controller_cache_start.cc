// What a start finds: in the metadata, in the NVRAM, and in its mirror.
//
// A mirror counts for what it holds only if the metadata say that it is the mirror of the NVRAM in
// which the writes are, and not stale. Then it may stand in for an NVRAM that is gone: a blank one
// in its place takes over everything.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "group/controller_cache.h"
#include "group/units.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

constexpr std::size_t kEntriesAtOnce = 256;
constexpr std::string_view kRegion = "cache";
// Of one set: more are put together, to what certainly has them all.
constexpr std::size_t kMostLostRanges = 4096;
constexpr std::size_t kMostLostEvents = 64;
constexpr Duration kEventPatience = std::chrono::seconds(2);

Task<std::expected<std::vector<metadata::Entry>, Error>> load_all(metadata::Store* store,
                                                                  std::string prefix) {
  std::vector<metadata::Entry> all;
  for (;;) {
    const std::string after = all.empty() ? std::string() : all.back().first;
    auto part = co_await store->list(prefix, after, kEntriesAtOnce);
    if (!part) co_return std::unexpected(part.error());
    const bool last = part->size() < kEntriesAtOnce;
    std::ranges::move(*part, std::back_inserter(all));
    if (last) co_return all;
  }
}

// Neighbours become one, in order of volume and place.
void tidy(std::vector<LostRange>& ranges) {
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

bool has_region(const nvram::Nvram& nvram) {
  return std::ranges::any_of(nvram.regions(),
                             [](const nvram::RegionState& each) { return each.name == kRegion; });
}

ControllerCache::Outcome damaged(const std::string& key, const std::string& error) {
  return std::unexpected(fmt::format("metadata {} {}", key, error));
}

}  // namespace

Task<ControllerCache::Outcome> ControllerCache::load() {
  const auto unreadable = [](Error error) {
    return std::unexpected(fmt::format("the metadata cannot be read: {}", describe(error)));
  };
  const auto dirty = co_await load_all(&store_, std::string(kDirtyPrefix));
  if (!dirty) co_return unreadable(dirty.error());
  for (const auto& [key, value] : *dirty) {
    const auto set = parse_uuid(std::string_view(key).substr(kDirtyPrefix.size()));
    const auto nvram = decode_dirty(value);
    if (!set || !nvram) co_return damaged(key, nvram ? "has no UUID" : nvram.error());
    marks_[*set] = *nvram;
  }
  const auto lost = co_await load_all(&store_, std::string(kLostPrefix));
  if (!lost) co_return unreadable(lost.error());
  for (const auto& [key, value] : *lost) {
    const auto set = parse_uuid(std::string_view(key).substr(kLostPrefix.size()));
    const auto ranges = decode_lost(value);
    if (!set || !ranges) co_return damaged(key, ranges ? "has no UUID" : ranges.error());
    lost_[*set] = *ranges;
  }
  const auto stored = co_await store_.get(std::string(kMirrorKey));
  if (!stored) co_return unreadable(stored.error());
  if (const std::optional<std::string>& text = *stored) {
    const auto record = decode_mirror(*text);
    if (!record) co_return damaged(std::string(kMirrorKey), record.error());
    mirror_record_ = *record;
  }
  co_return Outcome{};
}

Task<ControllerCache::Outcome> ControllerCache::start(nvram::Nvram* nvram) {
  Outcome outcome = co_await load();
  if (!outcome) co_return outcome;
  const auto& wanted = configuration_.hardware.cache;
  if (wanted && wanted->nvram_bytes != 0 && nvram != nullptr) {
    outcome = co_await open_memory(nvram);
    if (!outcome) co_return outcome;
  }
  if (wanted) {
    cache_ = std::make_unique<cache::Cache>(home_, wanted->options, memory_.get());
    if (wanted->read_ahead) {
      streams_.emplace();
      streams_->memory_bytes = wanted->options.memory_bytes / 4;
    }
  }
  for (const auto& [set, mark] : marks_) {
    if (!is_here(mark)) barred_.insert(set);
  }
  if (memory_ != nullptr) {
    outcome = co_await recover();
    if (!outcome) co_return outcome;
  }
  started_ = true;
  for (const Uuid& set : barred_) {
    events_.add({.severity = Severity::kError,
                 .kind = "set barred",
                 .set = name_of_set_(set),
                 .text = fmt::format("{}: is not served: {}", set_words(set), bar(set))});
  }
  co_return Outcome{};
}

Task<ControllerCache::Outcome> ControllerCache::open_memory(nvram::Nvram* nvram) {
  nvram_ = nvram;
  nvram_was_blank_ = !has_region(*nvram);
  Outcome mirror = co_await open_mirror(nvram);
  if (!mirror) co_return mirror;
  const CacheConfiguration& wanted = known(configuration_.hardware.cache);
  const NvramConfiguration& image = known(configuration_.hardware.nvram);
  const NvramShares shares = shares_of(wanted.nvram_bytes);
  cache::WriteMemoryOptions options;
  options.region = kRegion;
  options.data_bytes = shares.data_bytes;
  options.log_bytes = shares.log_bytes;
  options.mirror_is_stale = mirror_stale_;
  options.mirror_required = image.mirror_required;
  auto memory = co_await cache::WriteMemory::open(nvram, mirror_.get(), options);
  if (!memory) {
    co_return std::unexpected(
        fmt::format("{}:{}: cache.nvram: {}", configuration_.file, wanted.line, memory.error()));
  }
  memory_ = std::move(*memory);
  memory_->on_mirror_lost = [this] { mirror_lost(); };
  co_return Outcome{};
}

// Opens the mirror, if there is to be one, and judges what it holds.
Task<ControllerCache::Outcome> ControllerCache::open_mirror(nvram::Nvram* nvram) {
  const NvramConfiguration& wanted = known(configuration_.hardware.nvram);
  if (wanted.mirror_path.empty()) co_return Outcome{};
  // It has the writes of another NVRAM, which somebody may bring back, and this one has its own.
  const bool of_another = mirror_record_ && !mirror_record_->stale &&
                          mirror_record_->nvram != nvram->uuid() && !nvram_was_blank_ &&
                          std::ranges::any_of(marks_, [&](const auto& mark) {
                            return mark.second == mirror_record_->nvram;
                          });
  std::string why = "it holds writes of another NVRAM that are not on the drives";
  if (!of_another) {
    nvram::NvramOptions options;
    options.path = (configuration_.state / wanted.mirror_path).string();
    options.byte_count = wanted.size_bytes;
    options.durability = wanted.durability;
    options.battery = wanted.battery;
    options.boot_id = nvram::host_boot_id();
    options.power_loss_only_emulated = wanted.power_loss_only_emulated;
    if (mirror_record_) options.least_open_count = mirror_record_->open_count;
    auto opened = co_await nvram::Nvram::open(home_, std::move(options));
    if (opened) mirror_ = std::move(*opened);
    if (!opened) why = opened.error();
  }
  if (mirror_ == nullptr) {
    events_.add({.severity = Severity::kError,
                 .kind = "mirror lost",
                 .text = fmt::format("NVRAM: the mirror is not used: {}", why)});
    co_return Outcome{};
  }
  const bool lost = std::ranges::any_of(mirror_->regions(), [](const nvram::RegionState& each) {
    return each.loss != nvram::Loss::kNone;
  });
  mirror_stale_ = lost || !mirror_record_ || mirror_record_->stale ||
                  mirror_record_->image != mirror_->uuid() ||
                  (mirror_record_->nvram != nvram->uuid() && !nvram_was_blank_);
  MirrorRecord record =
      mirror_record_.value_or(MirrorRecord{.image = mirror_->uuid(), .nvram = nvram->uuid()});
  if (mirror_stale_) {
    record.image = mirror_->uuid();
    record.nvram = nvram->uuid();
  }
  record.stale = mirror_stale_;
  record.open_count = mirror_->open_count();
  auto kept = co_await commit_mirror(record);
  co_return kept;
}

Task<ControllerCache::Outcome> ControllerCache::commit_mirror(MirrorRecord record) {
  metadata::Batch batch;
  batch.put(std::string(kMirrorKey), encode(record));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return std::unexpected(unwritten(error));
  mirror_record_ = record;
  co_return Outcome{};
}

// Whether what was in that NVRAM is found now.
bool ControllerCache::is_here(const ImageUuid& nvram) const {
  if (memory_ == nullptr) return false;
  if (!nvram_was_blank_) return nvram == nvram_->uuid();
  return mirror_ != nullptr && !mirror_stale_ && mirror_record_->nvram == nvram;
}

Task<ControllerCache::Outcome> ControllerCache::recover() {
  cache::WriteRecovery found = memory_->recover();
  Outcome outcome = co_await keep_lost(&found.lost);
  if (!outcome) co_return outcome;
  const Error accepted = co_await memory_->accept();
  if (accepted != Error::kNone) {
    co_return std::unexpected(
        fmt::format("{}:{}: cache.nvram: cannot be written: {}", configuration_.file,
                    known(configuration_.hardware.cache).line, describe(accepted)));
  }
  std::vector<cache::RecoveredWrite> taken;
  std::uint64_t bytes = 0;
  std::size_t useless = 0;
  for (cache::RecoveredWrite& write : found.writes) {
    if (takes_from_here(write.subject.device)) {
      bytes += write.subject.extent.byte_count(write.subject.block_bytes);
      taken.push_back(std::move(write));
      continue;
    }
    ++useless;
    write.data.clear();
    memory_->release(write.id);
  }
  if (!taken.empty()) {
    events_.add({.kind = "cache recovered",
                 .text = fmt::format(
                     "cache: {} acknowledged write{} of {} in NVRAM go to the "
                     "drives{}",
                     taken.size(), taken.size() == 1 ? "" : "s", format_size_rounded(bytes),
                     found.from_mirror == 0
                         ? ""
                         : fmt::format("; {} of them only the mirror had", found.from_mirror))});
  }
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

std::string ControllerCache::words_of(const LostRange& range) const {
  if (range.extent.block_count == 0) return "acknowledged writes are lost, nobody knows which";
  const auto place = places_.find(range.volume);
  const bool placed = place != places_.end() && range.extent.first >= place->second.first;
  const Lba first = range.extent.first - (placed ? place->second.first : 0);
  return fmt::format("acknowledged writes to blocks {} to {} of {} are lost", first,
                     first + range.extent.block_count - 1,
                     placed ? fmt::format("volume {}", place->second.name)
                            : std::string("the set, of a volume that is not there any more,"));
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
  metadata::Batch batch;
  for (auto& [set, mark] : marks_) {
    if (barred_.contains(set) || mark == nvram_->uuid()) continue;
    mark = nvram_->uuid();
    batch.put(dirty_key(set), encode_dirty(mark));
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
