// What a start opens: the books in the metadata, the NVRAM, and its mirror. What it finds there:
// controller_cache_recovery.cc.
//
// What an NVRAM holds counts only for sets of which the metadata say that their writes are in it,
// or of which an import says so. Any other NVRAM is as good as blank, whatever lies in it.
//
// A mirror counts for what it holds only if the metadata say that it is the mirror of the NVRAM in
// which the writes are, and not stale. Then it may stand in for an NVRAM that is gone: one that is
// as good as blank takes over everything. It stays so until a single commit says that everything is
// in it; killed before, the next start does it all again.
//
// An image that some set waits for, or the only one that has what another had, is never opened as
// anything else: nothing is stored in it before that is known (Nvram::open).
#include <fmt/format.h>

#include <algorithm>

#include "group/controller_cache.h"
#include "group/units.h"
#include "model/model_clock.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

// NVRAMs made since an import that are remembered.
constexpr std::size_t kMostMade = 64;
constexpr std::string_view kRegion = ControllerCache::kRegion;

const nvram::RegionState* find_region(const std::vector<nvram::RegionState>& regions) {
  const auto found = std::ranges::find(regions, kRegion, &nvram::RegionState::name);
  return found == regions.end() ? nullptr : &*found;
}

ControllerCache::Outcome damaged_entry(const std::string& key, const std::string& error) {
  return std::unexpected(fmt::format("metadata {} {}", key, error));
}

}  // namespace

Task<ControllerCache::Outcome> ControllerCache::load() {
  const auto unreadable = [](Error error) {
    return std::unexpected(fmt::format("the metadata cannot be read: {}", describe(error)));
  };
  const auto dirty = co_await list_all(store_, std::string(kDirtyPrefix));
  if (!dirty) co_return unreadable(dirty.error());
  for (const auto& [key, value] : *dirty) {
    const auto set = parse_uuid(std::string_view(key).substr(kDirtyPrefix.size()));
    const auto record = decode_dirty(value);
    if (!set || !record) co_return damaged_entry(key, record ? "has no UUID" : record.error());
    marks_[*set] = record->nvram;
    if (record->unconfirmed) unconfirmed_.insert(*set);
    if (record->exported != ImageUuid{}) exported_[*set] = record->exported;
  }
  const auto lost = co_await list_all(store_, std::string(kLostPrefix));
  if (!lost) co_return unreadable(lost.error());
  for (const auto& [key, value] : *lost) {
    const auto set = parse_uuid(std::string_view(key).substr(kLostPrefix.size()));
    const auto ranges = decode_lost(value);
    if (!set || !ranges) co_return damaged_entry(key, ranges ? "has no UUID" : ranges.error());
    lost_[*set] = *ranges;
  }
  const auto counts = co_await list_all(store_, std::string(kNvramPrefix));
  if (!counts) co_return unreadable(counts.error());
  for (const auto& [key, value] : *counts) {
    const auto image = parse_uuid(std::string_view(key).substr(kNvramPrefix.size()));
    const auto count = decode_nvram(value);
    if (!image || !count) co_return damaged_entry(key, count ? "has no UUID" : count.error());
    open_counts_[std::bit_cast<ImageUuid>(*image)] = *count;
  }
  const auto unchecked = co_await store_.get(std::string(kUncheckedKey));
  if (!unchecked) co_return unreadable(unchecked.error());
  unchecked_ = unchecked->has_value();
  if (const std::optional<std::string>& text = *unchecked) {
    const auto made = decode_unchecked(*text);
    if (!made) co_return damaged_entry(std::string(kUncheckedKey), made.error());
    made_since_ = *made;
  }
  const auto stored = co_await store_.get(std::string(kMirrorKey));
  if (!stored) co_return unreadable(stored.error());
  if (const std::optional<std::string>& text = *stored) {
    const auto record = decode_mirror(*text);
    if (!record) co_return damaged_entry(std::string(kMirrorKey), record.error());
    mirror_record_ = *record;
  }
  loaded_ = true;
  co_return Outcome{};
}

// Which image is which ----------------------------------------------------------------------------

nvram::NvramOptions ControllerCache::image_options(const std::string& path) const {
  const NvramConfiguration& wanted = known(configuration_.hardware.nvram);
  nvram::NvramOptions options;
  options.path = (configuration_.state / path).string();
  options.byte_count = wanted.size_bytes;
  options.durability = wanted.durability;
  options.boot_id = nvram::host_boot_id();
  options.power_loss_only_emulated = wanted.power_loss_only_emulated;
  options.battery = wanted.battery;
  options.least_open_counts = open_counts_;
  options.owner_name = configuration_.group_name;
  return options;
}

nvram::NvramOptions ControllerCache::nvram_options() const {
  nvram::NvramOptions options = image_options(known(configuration_.hardware.nvram).path);
  if (!mirror_counts()) return options;
  const MirrorRecord& mirror = known(mirror_record_);
  if (is_needed(mirror.image)) return options;
  options.refused[mirror.image] = fmt::format(
      "is the mirror of NVRAM {}, with writes of {} that may not be on the drives; write it as "
      "mirror, and as file that NVRAM or a new path",
      format_uuid(std::bit_cast<Uuid>(mirror.nvram)), waiting_for(mirror.nvram));
  return options;
}

nvram::NvramOptions ControllerCache::mirror_options() const {
  nvram::NvramOptions options = image_options(known(configuration_.hardware.nvram).mirror_path);
  options.owner = nvram_->owner();
  options.refused[nvram_->uuid()] = "is a copy of the NVRAM itself; use its mirror or a new path";
  for (const ImageUuid& image : needed_images()) {
    if (image == nvram_->uuid()) continue;
    options.refused[image] = fmt::format(
        "is NVRAM {}, with writes of {} that may not be on the drives; write it as file, and as "
        "mirror its mirror or a new path",
        format_uuid(std::bit_cast<Uuid>(image)), waiting_for(image));
  }
  return options;
}

// The mirror has what is in an NVRAM that sets may need.
bool ControllerCache::mirror_counts() const {
  return mirror_record_ && !mirror_record_->stale && is_needed(mirror_record_->nvram);
}

std::string ControllerCache::waiting_for(const ImageUuid& nvram) const {
  std::vector<std::string> sets;
  for (const auto& [set, mark] : marks_) {
    const auto exported = exported_.find(set);
    const bool named = exported != exported_.end() && exported->second == nvram;
    if (mark == nvram || named) sets.push_back(set_words(set));
  }
  return fmt::format("{}", fmt::join(sets, " and "));
}

// What was there in place of an image that should have been; empty: an image.
std::string ControllerCache::found_words(const nvram::Nvram& image, const std::string& path) const {
  const std::string uuid = format_uuid(std::bit_cast<Uuid>(image.uuid()));
  if (const auto original = image.older_copy_of()) {
    return fmt::format("{} is an older copy of {}, and counts as another image now, {}", path,
                       format_uuid(std::bit_cast<Uuid>(*original)), uuid);
  }
  if (image.found() == nvram::Found::kImage) return {};
  return fmt::format("{} at {}, and a new image, {}, was made there",
                     image.found() == nvram::Found::kNothing ? "nothing was" : "an empty file was",
                     path, uuid);
}

// A new image where nobody misses another one is no news.
void ControllerCache::tell_found() {
  const bool missed = !marks_.empty() && !is_needed(nvram_->uuid());
  if (!missed && nvram_->found() == nvram::Found::kNothing) return;
  const std::string words = found_words(*nvram_, known(configuration_.hardware.nvram).path);
  if (words.empty()) return;
  events_.add({.severity = missed ? Severity::kError : Severity::kWarning,
               .kind = "nvram replaced",
               .text = "NVRAM: " + words});
}

// How what is in that NVRAM is found at the next start.
std::string ControllerCache::way_back_to(const ImageUuid& nvram) const {
  if (!configuration_.hardware.nvram) return "write the section [nvram] of that one again";
  if (nvram_ == nullptr || nvram_->uuid() != nvram) {
    const std::string found = nvram_ == nullptr
                                  ? std::string()
                                  : found_words(*nvram_, known(configuration_.hardware.nvram).path);
    return "bring that NVRAM back" + (found.empty() ? found : fmt::format(" ({})", found));
  }
  // It is there, and the configuration does not give it to the cache.
  std::string size = "SIZE";
  for (const nvram::RegionState& region : nvram_->regions()) {
    if (region.name == kRegion) size = format_size(region.byte_count);
  }
  return fmt::format("write nvram = \"{}\" into the section [cache] again", size);
}

// Whether a mirror has it, too, and is not used.
std::string ControllerCache::mirror_of(const ImageUuid& nvram) const {
  if (!mirror_record_ || mirror_record_->stale || mirror_record_->nvram != nvram) return {};
  const std::string image = format_uuid(std::bit_cast<Uuid>(mirror_record_->image));
  if (mirror_unused_.empty()) return fmt::format("; mirror {} has them, too", image);
  return fmt::format("; mirror {} has them, too, and is not used: {}", image, mirror_unused_);
}

Task<void> ControllerCache::check_images() {
  if (nvram_ != nullptr) co_await nvram_->check();
  if (mirror_ == nullptr) co_return;
  co_await mirror_->check();
  // Whoever writes finds out that it has failed. Perhaps nobody does.
  memory_->look_at_mirror();
}

// Opening -----------------------------------------------------------------------------------------

Task<Started> ControllerCache::start(nvram::Nvram* nvram) {
  Started outcome;
  if (!loaded_) outcome = co_await load();
  if (!outcome) co_return outcome;
  nvram_ = nvram;
  if (nvram != nullptr) {
    nvram->on_failure = [this](Error error) {
      nvram_failed(error);
      if (abandoned_ || !started_ || memory_ == nullptr) return;
      // A part of it may be zeros now. What the mirror has is as it was; what nobody has is found
      // before it is destaged, which begins at once.
      cache_->forget_clean_writes();
      memory_->mend();
      cache_->wake_destagers();
    };
    tell_found();
  }
  const auto& wanted = configuration_.hardware.cache;
  if (wanted && wanted->nvram_bytes != 0 && nvram != nullptr) {
    outcome = co_await open_memory(nvram);
    if (!outcome) co_return outcome;
  }
  if (wanted) {
    const model::ModelClock clock(configuration_.hardware.time_scale);
    cache::CacheOptions options = wanted->options;
    options.age_limit = clock.real(options.age_limit);
    options.idle_flush = clock.real(options.idle_flush);
    cache_ = std::make_unique<cache::Cache>(home_, options, memory_.get());
    if (wanted->read_ahead) {
      streams_.emplace();
      streams_->memory_bytes = wanted->options.read_ahead_limit_bytes;
      streams_->largest_window_bytes = wanted->window_bytes;
    }
  }
  if (cache_ != nullptr) {
    cache_->on_damaged = [this](Uuid set, std::vector<cache::VolumeExtent> writes) {
      return note_damaged(set, std::move(writes));
    };
    cache_->on_failing = [this](Uuid set) { tell_stuck(set); };
  }
  outcome = co_await follow_exported();
  if (!outcome) co_return outcome;
  for (const auto& [set, mark] : marks_) {
    if (!is_here(mark) || unconfirmed_.contains(set)) barred_.insert(set);
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
  co_return Started{};
}

Task<Started> ControllerCache::open_memory(nvram::Nvram* nvram) {
  const auto regions = nvram->regions();
  const nvram::RegionState* const region = find_region(regions);
  had_region_ = region != nullptr && !region->is_new;
  const bool empty = !had_region_ || region->loss != nvram::Loss::kNone;
  to_check_ = unchecked_ && !empty && !is_made_since(nvram->uuid());
  Started outcome;
  if (unchecked_ && !to_check_) outcome = co_await note_made(nvram->uuid());
  if (outcome) outcome = co_await open_mirror(nvram);
  if (!outcome) co_return outcome;
  const CacheConfiguration& wanted = known(configuration_.hardware.cache);
  const NvramConfiguration& image = known(configuration_.hardware.nvram);
  const NvramShares shares = shares_of(wanted.nvram_bytes);
  outcome = co_await clear_region(nvram, to_check_ || is_needed(nvram->uuid()), stands_in_);
  if (!outcome) co_return outcome;
  if (mirror_ != nullptr) {
    const bool counts = !mirror_stale_ && is_needed(known(mirror_record_).nvram);
    outcome = co_await clear_region(mirror_.get(), counts, false);
    if (!outcome) co_return outcome;
  }
  cache::WriteMemoryOptions options;
  options.region = kRegion;
  options.data_bytes = shares.data_bytes;
  options.log_bytes = shares.log_bytes;
  options.mirror_is_stale = mirror_stale_;
  options.mirror_required = image.mirror_required;
  auto memory = co_await cache::WriteMemory::open(nvram, mirror_.get(), options);
  if (!memory) co_return std::unexpected(at_nvram(memory.error()));
  memory_ = std::move(*memory);
  memory_->on_mirror_lost = [this] { mirror_lost(); };
  memory_->on_stalled = [this](bool stalled) { nvram_stalled(stalled); };
  co_return Started{};
}

StartRefusal ControllerCache::at_nvram(const std::string& what, StartRefusal::Kind kind) const {
  return {kind, fmt::format("{}:{}: cache.nvram: {}", configuration_.file,
                            known(configuration_.hardware.cache).nvram_line, what)};
}

// A region whose content does not count is made anew where it is of another size, or where it must
// be empty.
Task<Started> ControllerCache::clear_region(nvram::Nvram* nvram, bool counts, bool must_be_empty) {
  const auto regions = nvram->regions();
  const nvram::RegionState* const region = find_region(regions);
  if (region == nullptr) co_return Started{};
  const NvramShares shares = shares_of(known(configuration_.hardware.cache).nvram_bytes);
  const std::uint64_t byte_count = shares.data_bytes + shares.log_bytes;
  if (region->byte_count == byte_count && !must_be_empty) co_return Started{};
  if (counts) {
    co_return std::unexpected(at_nvram(fmt::format(
        "{} holds writes that may not be on the drives, in {}; write that size again, and another "
        "one after the daemon has been stopped with everything on the drives",
        nvram == nvram_ ? "the NVRAM" : "the mirror", format_size(region->byte_count))));
  }
  const auto released = co_await nvram->release(std::string(kRegion));
  if (!released) {
    co_return std::unexpected(at_nvram(released.error(), StartRefusal::Kind::kNotNow));
  }
  events_.add(
      {.kind = "nvram cleared",
       .text = fmt::format("NVRAM: nothing that {} holds for the cache is needed; it has "
                           "{} for it now",
                           nvram == nvram_ ? "it" : "its mirror", format_size(byte_count))});
  co_return Started{};
}

std::set<ImageUuid> ControllerCache::needed_images() const {
  std::set<ImageUuid> images;
  for (const auto& [set, mark] : marks_) images.insert(mark);
  for (const auto& [set, exported] : exported_) images.insert(exported);
  return images;
}

// This NVRAM has nothing from before the import, and the import's record of a mirror is not about a
// mirror that it has had since.
Task<ControllerCache::Outcome> ControllerCache::note_made(ImageUuid nvram) {
  if (is_made_since(nvram)) co_return Outcome{};
  std::vector<ImageUuid> made = made_since_;
  made.push_back(nvram);
  if (made.size() > kMostMade) made.erase(made.begin());
  metadata::Batch batch;
  batch.put(std::string(kUncheckedKey), encode_unchecked(made));
  const bool forgets = mirror_record_ && mirror_record_->stale;
  if (forgets) batch.erase(std::string(kMirrorKey));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return std::unexpected(unwritten(error));
  made_since_ = std::move(made);
  if (forgets) mirror_record_.reset();
  co_return Outcome{};
}

bool ControllerCache::is_made_since(const ImageUuid& nvram) const {
  return std::ranges::find(made_since_, nvram) != made_since_.end();
}

// A mirror from before an import, beside an NVRAM that was made since, may have what that has not.
bool ControllerCache::may_have_more(const nvram::Nvram& mirror) const {
  if (!unchecked_ || to_check_) return false;
  const bool ours = mirror_record_ && mirror_record_->image == mirror.uuid() &&
                    mirror_record_->nvram == nvram_->uuid() && is_made_since(nvram_->uuid());
  const auto regions = mirror.regions();
  const nvram::RegionState* const region = find_region(regions);
  return !ours && region != nullptr && !region->is_new;
}

// Opens the mirror, if there is to be one, and judges what it holds.
Task<ControllerCache::Outcome> ControllerCache::open_mirror(nvram::Nvram* nvram) {
  const NvramConfiguration& wanted = known(configuration_.hardware.nvram);
  if (wanted.mirror_path.empty()) co_return Outcome{};
  // Some mirror has the writes of another NVRAM, and they count.
  const bool has_others = mirror_counts() && known(mirror_record_).nvram != nvram->uuid();
  if (has_others && is_needed(nvram->uuid())) {
    mirror_unused_ =
        "it holds writes of another NVRAM that are not on the drives, and so does this NVRAM";
  } else {
    auto opened = co_await configuration_.open_image(home_, mirror_options());
    if (opened) mirror_ = std::move(*opened);
    if (!opened) mirror_unused_ = opened.error();
  }
  if (mirror_ != nullptr && may_have_more(*mirror_)) {
    mirror_unused_ = fmt::format(
        "an import has come, and {} may have writes from before it that the NVRAM, which is new, "
        "has not; to have them, write it as file; otherwise write a new path as mirror",
        wanted.mirror_path);
    (void)co_await mirror_->close();
    mirror_.reset();
  }
  if (mirror_ != nullptr && has_others && known(mirror_record_).image != mirror_->uuid()) {
    const std::string found = found_words(*mirror_, wanted.mirror_path);
    mirror_unused_ = fmt::format(
        "{}; mirror {}, which has writes that are not on the drives, must come back to its place",
        found.empty() ? fmt::format("another image is at {}", wanted.mirror_path) : found,
        format_uuid(std::bit_cast<Uuid>(known(mirror_record_).image)));
    (void)co_await mirror_->close();
    mirror_.reset();
  }
  if (mirror_ == nullptr) {
    events_.add({.severity = Severity::kError,
                 .kind = "mirror lost",
                 .text = fmt::format("NVRAM: the mirror is not used: {}", mirror_unused_)});
    co_return Outcome{};
  }
  const std::string found = found_words(*mirror_, wanted.mirror_path);
  if (mirror_record_ && !found.empty()) {
    events_.add({.severity = Severity::kWarning,
                 .kind = "mirror replaced",
                 .text = fmt::format("NVRAM: {}; it gets what the NVRAM has", found)});
  }
  const bool lost = std::ranges::any_of(mirror_->regions(), [](const nvram::RegionState& each) {
    return each.loss != nvram::Loss::kNone;
  });
  if (lost) mirror_unused_ = "its content is lost";
  mirror_stale_ = lost || !mirror_record_ || mirror_record_->stale ||
                  mirror_record_->image != mirror_->uuid() ||
                  (mirror_record_->nvram != nvram->uuid() && !has_others);
  stands_in_ = has_others && !mirror_stale_;
  MirrorRecord record =
      mirror_record_.value_or(MirrorRecord{.image = mirror_->uuid(), .nvram = nvram->uuid()});
  if (mirror_stale_) {
    record.image = mirror_->uuid();
    record.nvram = nvram->uuid();
  }
  record.stale = mirror_stale_;
  co_return co_await commit_mirror(record);
}

Task<ControllerCache::Outcome> ControllerCache::commit_mirror(MirrorRecord record) {
  metadata::Batch batch;
  batch.put(std::string(kMirrorKey), encode(record));
  if (mirror_ != nullptr) {
    batch.put(nvram_key(mirror_->uuid()), encode_nvram(mirror_->open_count()));
  }
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return std::unexpected(unwritten(error));
  mirror_record_ = record;
  co_return Outcome{};
}

// Whether what was in that NVRAM is found now.
bool ControllerCache::is_here(const ImageUuid& nvram) const {
  if (memory_ == nullptr) return false;
  return nvram == nvram_->uuid() || (stands_in_ && known(mirror_record_).nvram == nvram);
}

}  // namespace sandbay::group
