// The cache at work: marks, the mirror, and what administrators ask for.
#include "group/controller_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "group/log.h"
#include "group/units.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

// Between attempts to write the metadata, and how long a change waits for the first to succeed.
constexpr Duration kTryAgainAfter = std::chrono::seconds(1);
constexpr Duration kHoldPatience = std::chrono::seconds(5);
// At the end, for what was released to become final, when the time is over.
constexpr Duration kFinalPatience = std::chrono::seconds(2);
constexpr std::size_t kMostNotes = 16;
constexpr Duration kTellStallsEvery = std::chrono::minutes(1);
constexpr std::string_view kStallNote =
    "its image, or the mirror's, has not been written for a second; until it is, writes go through "
    "to the drives, and writes to blocks of which it held some when that began fail after a "
    "second or two";

}  // namespace

ControllerCache::ControllerCache(Executor& home, const Configuration& configuration,
                                 metadata::Store& store, MemberEvents events,
                                 std::function<std::string(const Uuid&)> name_of_set)
    : home_(home),
      configuration_(configuration),
      store_(store),
      events_(std::move(events)),
      name_of_set_(std::move(name_of_set)) {}

ControllerCache::~ControllerCache() { assert(cache_ == nullptr && mirror_ == nullptr); }

void ControllerCache::know_volumes(VolumePlaces places) {
  places_ = std::move(places);
  if (cache_ == nullptr) return;
  std::vector<std::uint64_t> gone;
  for (const auto& [number, state] : cache_->volumes()) {
    if (!places_.contains(number)) gone.push_back(number);
  }
  for (const std::uint64_t number : gone) cache_->forget_volume(number);
}

BlockDevice& ControllerCache::above(const Uuid& uuid, BlockDevice& set, std::uint64_t stripes) {
  assert(!barred_.contains(uuid));
  if (cache_ == nullptr) return set;
  std::unique_ptr<CacheGuard>& guard = guards_[uuid];
  if (guard == nullptr) {
    const Geometry& geometry = set.geometry();
    const std::uint64_t stripe =
        std::uint64_t{std::max(geometry.optimal_io_blocks, 1U)} * geometry.block_bytes;
    const std::uint64_t most = cache_->throttle().limits().most_bytes / 4 / stripe;
    stripes = std::clamp<std::uint64_t>(stripes, 1, std::max<std::uint64_t>(most, 1));
    cache::CachedDevice& device =
        cache_->add_device(uuid, set, static_cast<std::uint32_t>(stripes));
    // Volatile write-back has nothing to note: what was not flushed may be lost.
    const bool marked = memory_ == nullptr || marks_.contains(uuid);
    guard = std::make_unique<CacheGuard>(*this, device, marked);
  }
  return *guard;
}

std::string ControllerCache::bar(const Uuid& uuid) const {
  if (!barred_.contains(uuid)) return {};
  const std::string name = name_of_set_(uuid);
  const ImageUuid& nvram = marks_.at(uuid);
  const auto exported = exported_.find(uuid);
  if (may_adopt(uuid) && exported != exported_.end() && is_made_since(exported->second)) {
    return fmt::format(
        "NVRAM {} has writes of it from before an import, and NVRAM {}, which has been used since, "
        "has newer ones; {} and restart the daemon, or give the first one's up: sandbay cache "
        "discard {} --yes-lose-data",
        format_uuid(std::bit_cast<Uuid>(nvram)), format_uuid(std::bit_cast<Uuid>(exported->second)),
        way_back_to(exported->second), name);
  }
  if (may_adopt(uuid) && exported != exported_.end()) {
    return fmt::format(
        "NVRAM {} has writes of it, and the imported metadata say that its newest writes are in "
        "NVRAM {}; if the first has replaced that one, let them go to the drives: sandbay cache "
        "adopt {}; otherwise {} and restart the daemon, or give the first one's up: sandbay cache "
        "discard {} --yes-lose-data",
        format_uuid(std::bit_cast<Uuid>(nvram)), format_uuid(std::bit_cast<Uuid>(exported->second)),
        name, way_back_to(exported->second), name);
  }
  if (may_adopt(uuid)) {
    const std::string set = name.empty() ? format_uuid(uuid) : name;
    return fmt::format(
        "NVRAM {} has writes of it that the imported metadata do not know of; if nothing has been "
        "written to the set since without this NVRAM, let them go to the drives: sandbay cache "
        "adopt "
        "{}; otherwise give them up: sandbay cache discard {} --yes-lose-data",
        format_uuid(std::bit_cast<Uuid>(nvram)), set, set);
  }
  std::string why = fmt::format(
      "its newest writes are in NVRAM {} and not on its drives; {} and restart the daemon, or give "
      "them up: sandbay cache discard {} --yes-lose-data{}",
      format_uuid(std::bit_cast<Uuid>(nvram)), way_back_to(nvram),
      name.empty() ? format_uuid(uuid) : name, mirror_of(nvram));
  if (exported == exported_.end()) return why;
  return why + fmt::format(
                   "; but the imported metadata say that they are in NVRAM {}: if that comes back "
                   "instead, its writes go to the drives, and if the first one's are given up, the "
                   "set waits for it",
                   format_uuid(std::bit_cast<Uuid>(exported->second)));
}

// The guard -------------------------------------------------------------------------------------

Task<bool> CacheGuard::let_go() {
  const TimePoint deadline = home().now() + kHoldPatience;
  while (owner_.holding_) {
    const bool notified = co_await owner_.let_go_.wait_until(deadline);
    if (!notified) co_return !owner_.holding_;
  }
  co_return true;
}

Task<Completion> CacheGuard::submit_guarded(Request request) {
  const bool changes = request.operation == Operation::kWrite ||
                       request.operation == Operation::kUnmap ||
                       request.operation == Operation::kWriteZeroes;
  bool good = true;
  if (changes && owner_.holding_) good = co_await let_go();
  if (!good) co_return Completion{.error = Error::kNotReady, .data = std::move(request.data)};
  const bool due = !marked_ && !marking_ && home().now() >= mark_again_;
  if (request.operation == Operation::kWrite && due) spawn(owner_.mark(this));
  Completion completion = co_await below().submit(std::move(request));
  // Perhaps it was this very write that the mirror did not take.
  if (changes && owner_.holding_) good = co_await let_go();
  if (!good && completion.error == Error::kNone) completion.error = Error::kNotReady;
  co_return completion;
}

Task<void> ControllerCache::mark(CacheGuard* guard) {
  if (!gate_.enter()) co_return;
  const GateHold hold(gate_);
  guard->marking_ = true;
  const Uuid set = guard->device().uuid();
  metadata::Batch batch;
  batch.put(dirty_key(set), encode(DirtyRecord{.nvram = nvram_->uuid()}));
  const Error error = co_await store_.commit(std::move(batch));
  guard->marking_ = false;
  guard->mark_again_ = home_.now() + kTryAgainAfter;
  note_commit(error);
  if (error != Error::kNone) co_return;  // Writes go through, and one of them tries again.
  marks_[set] = nvram_->uuid();
  guard->set_marked(true);
}

// The mirror ------------------------------------------------------------------------------------

void ControllerCache::mirror_lost() {
  // A power cut takes both at one instant, and nobody is answered any more: the mirror has what
  // everybody was answered.
  if (abandoned_ || nvram_->power_is_cut()) return;
  events_.add({.severity = Severity::kError,
               .kind = "mirror lost",
               .text = "NVRAM: the mirror has failed; writes are in one memory alone until the "
                       "daemon is started with a good one"});
  if (!started_) return;  // The start notes it before anything is written.
  holding_ = true;
  spawn(remember_mirror_lost());
}

Task<void> ControllerCache::remember_mirror_lost() {
  if (!gate_.enter()) co_return;
  const GateHold hold(gate_);
  bool kept = co_await commit_mirror_lost();
  while (!kept && !gate_.closed()) {
    co_await home_.sleep_for(kTryAgainAfter);
    kept = co_await commit_mirror_lost();
  }
  let_go_.notify_all();
}

Task<bool> ControllerCache::commit_mirror_lost() {
  MirrorRecord record = known(mirror_record_);
  record.stale = true;
  metadata::Batch batch;
  batch.put(std::string(kMirrorKey), encode(record));
  const Error error = co_await store_.commit(std::move(batch));
  note_commit(error);
  if (error != Error::kNone) co_return false;
  mirror_record_ = record;
  careful_ = holding_ = false;
  co_return true;
}

// Whether the metadata can be written, told when it changes.
void ControllerCache::note_commit(Error error) {
  if (abandoned_ || (error == Error::kNone) == unwritable_.empty()) return;
  if (error == Error::kNone) {
    unwritable_.clear();
    events_.add({.kind = "cache metadata", .text = "cache: the metadata can be written again"});
    return;
  }
  unwritable_ = unwritten(error);
  events_.add({.severity = Severity::kError,
               .kind = "cache metadata",
               .text = fmt::format("cache: {}", unwritable_note())});
}

std::string ControllerCache::unwritable_note() const {
  return unwritable_ + (holding_ ? "; until they can, every write waits and then fails, for that "
                                   "the mirror has failed must be noted first"
                                 : "; until they can, writes of sets that have nothing in the "
                                   "NVRAM yet go through to the drives");
}

// The NVRAM -------------------------------------------------------------------------------------

void ControllerCache::nvram_failed(Error error) {
  if (abandoned_) return;
  events_.add({.severity = Severity::kError,
               .kind = "nvram failed",
               .text = fmt::format("NVRAM: {}", failure_note(error))});
}

// A disk that is slow again and again is told of once a minute.
void ControllerCache::nvram_stalled(bool stalled) {
  if (abandoned_ || stalled == stall_shown_) return;
  if (stalled && stall_told_ != TimePoint{} && home_.now() - stall_told_ < kTellStallsEvery) return;
  stall_shown_ = stalled;
  if (stalled) {
    stall_told_ = home_.now();
    events_.add({.severity = Severity::kWarning,
                 .kind = "nvram slow",
                 .text = fmt::format("NVRAM: {}", kStallNote)});
  } else {
    events_.add({.kind = "nvram slow", .text = "NVRAM: its image is written in time again"});
  }
}

std::string ControllerCache::failure_note(Error error) const {
  return fmt::format(
      "its image cannot be written any more: {}; nothing new stays in it, and what cannot do "
      "without it fails, until the daemon is started with one that works",
      describe(error));
}

// Management ------------------------------------------------------------------------------------

bool ControllerCache::knows(const Uuid& set) const {
  return guards_.contains(set) || marks_.contains(set) || lost_.contains(set) || has_waiting(set);
}

bool ControllerCache::is_failing(const Uuid& set) const {
  const auto guard = guards_.find(set);
  if (guard == guards_.end()) return has_waiting(set);
  return guard->second->device().destage_failure() != Error::kNone;
}

std::vector<std::string> ControllerCache::notes_on(const Uuid& set) const {
  std::vector<std::string> notes;
  const auto guard = guards_.find(set);
  if (guard != guards_.end() && is_failing(set) && !barred_.contains(set)) {
    const cache::CachedDevice& device = guard->second->device();
    notes.push_back(
        fmt::format("{} of acknowledged writes cannot be brought to its drives: {}; "
                    "they stay in the cache",
                    format_size_rounded(device.dirty_bytes()), describe(device.destage_failure())));
  }
  const auto lost = lost_.find(set);
  if (lost == lost_.end()) return notes;
  for (const LostRange& range : lost->second) {
    if (notes.size() >= kMostNotes) {
      notes.push_back(
          fmt::format("{} ranges of blocks in all; see sandbay cache show", lost->second.size()));
      break;
    }
    notes.push_back(fmt::format("{}: {}", words_of(range), range.why));
  }
  return notes;
}

bool ControllerCache::has_waiting(const Uuid& set) const {
  if (cache_ == nullptr) return false;
  return std::ranges::any_of(cache_->waiting_writes(), [&](const cache::RecoveredWrite& write) {
    return write.subject.device == set;
  });
}

std::map<Uuid, std::uint64_t> ControllerCache::waiting_bytes() const {
  std::map<Uuid, std::uint64_t> bytes;
  if (cache_ == nullptr) return bytes;
  for (const cache::RecoveredWrite& write : cache_->waiting_writes()) {
    bytes[write.subject.device] += write.data.byte_count();
  }
  return bytes;
}

std::string ControllerCache::set_words(const Uuid& set) const {
  const std::string name = name_of_set_(set);
  return "set " + (name.empty() ? format_uuid(set) : name);
}

std::string ControllerCache::unwritten(Error error) const {
  return fmt::format("the metadata cannot be written: {}", describe(error));
}

Task<ControllerCache::Outcome> ControllerCache::flush(std::optional<Uuid> set) {
  const auto concerns = [&](const Uuid& uuid) { return !set || *set == uuid; };
  std::vector<CacheGuard*> guards;
  for (const auto& [uuid, guard] : guards_) {
    if (concerns(uuid)) guards.push_back(guard.get());
  }
  std::vector<std::string> left;
  for (const CacheGuard* const guard : guards) {
    cache::CachedDevice& device = guard->device();
    const std::uint64_t damaged = device.counters().damaged_bytes;
    const Error error = co_await device.flush_all();
    if (abandoned_) co_return std::unexpected("the daemon stops");
    if (device.counters().damaged_bytes != damaged) {
      left.push_back(
          fmt::format("{}: {} of acknowledged writes were damaged in the NVRAM and are "
                      "lost; see sandbay cache show",
                      set_words(device.uuid()),
                      format_size_rounded(device.counters().damaged_bytes - damaged)));
    }
    if (error == Error::kNone) continue;
    left.push_back(fmt::format("{}: {} cannot be brought to its drives: {}",
                               set_words(device.uuid()), format_size_rounded(device.dirty_bytes()),
                               describe(error)));
  }
  for (const Uuid& uuid : barred_) {
    if (concerns(uuid)) left.push_back(fmt::format("{}: {}", set_words(uuid), bar(uuid)));
  }
  for (const auto& [uuid, bytes] : waiting_bytes()) {
    if (!concerns(uuid)) continue;
    left.push_back(fmt::format("{}: {} of acknowledged writes wait for it to come", set_words(uuid),
                               format_size_rounded(bytes)));
  }
  if (left.empty()) co_return Outcome{};
  co_return std::unexpected(fmt::format("{}", fmt::join(left, "; ")));
}

CacheInfo ControllerCache::show(const VolumePlaces& places) const {
  CacheInfo info{.configured = cache_ != nullptr};
  std::map<Uuid, CachedSetInfo> sets;
  for (const auto& [uuid, ranges] : lost_) {
    for (const LostRange& range : ranges) sets[uuid].lost.push_back(info_of(range, places));
  }
  for (const Uuid& uuid : barred_) sets[uuid].bar = bar(uuid);
  for (const auto& [uuid, guard] : guards_) {
    const cache::CachedDevice& device = guard->device();
    CachedSetInfo& set = sets[uuid];
    set.dirty_bytes = device.dirty_bytes();
    set.counters = device.counters();
    const Error failure = device.destage_failure();
    if (failure != Error::kNone) set.failure = describe(failure);
    if (failure != Error::kNone) set.stuck_bytes = device.dirty_bytes();
  }
  if (cache_ != nullptr) {
    for (const auto& [uuid, bytes] : waiting_bytes()) {
      CachedSetInfo& set = sets[uuid];
      set.waiting_bytes = bytes;
      set.stuck_bytes += bytes;
      if (set.failure.empty()) set.failure = "it is not there";
    }
    info.counters = cache_->counters();
    info.destage_bytes_per_second = cache_->throttle().bytes_per_second();
    for (const auto& [number, place] : places) {
      CachedVolumeInfo volume{.name = place.name};
      const auto state = cache_->volumes().find(number);
      if (state != cache_->volumes().end()) {
        volume.mode = state->second.mode;
        volume.counters = state->second.counters;
      }
      info.volumes.push_back(std::move(volume));
    }
  }
  for (auto& [uuid, set] : sets) {
    set.name = name_of_set_(uuid);
    set.uuid = format_uuid(uuid);
    info.sets.push_back(std::move(set));
  }
  if (!unwritable_.empty()) info.notes.push_back(unwritable_note());
  const Error failure = nvram_ == nullptr ? Error::kNone : nvram_->failure();
  if (failure != Error::kNone) info.notes.push_back("the NVRAM: " + failure_note(failure));
  if (mirror_ == nullptr && !mirror_unused_.empty()) {
    info.notes.push_back("the NVRAM: the mirror is not used: " + mirror_unused_);
  }
  info.mirror = "none";
  if (memory_ == nullptr) return info;
  info.non_volatile = memory_->non_volatile();
  info.nvram_bytes = memory_->data_bytes();
  info.writes = memory_->live_writes();
  info.fullness = memory_->fullness();
  info.battery = describe(memory_->battery().state());
  if (memory_->stalled()) info.notes.push_back(fmt::format("the NVRAM: {}", kStallNote));
  const bool wanted = !known(configuration_.hardware.nvram).mirror_path.empty();
  if (wanted) info.mirror = memory_->mirrored() ? "good" : "lost";
  return info;
}

// Stopping --------------------------------------------------------------------------------------

Task<bool> ControllerCache::stop(TimePoint deadline) {
  if (cache_ == nullptr) co_return true;
  closed_ = std::make_shared<Event>();
  spawn(close_all());
  const std::shared_ptr<Event> closed = closed_;
  const bool ended = co_await wait_while_destaging(closed, deadline);
  if (ended) co_return true;
  // Requests below do not end, or the image's disk hangs. Whoever waits for them may wake up later:
  // he finds everything as it was, and that nobody is there whom he could tell.
  tell_left();
  co_await forget_clean_sets(home_.now() + kFinalPatience);
  abandoned_ = true;
  co_return false;
}

Task<void> ControllerCache::close_all() {
  const std::shared_ptr<Event> closed = closed_;
  co_await gate_.close();
  if (abandoned_) co_return;
  (void)co_await cache_->close();  // What it could not do is told for each set.
  if (abandoned_) co_return;
  tell_left();
  if (memory_ != nullptr && started_) {
    co_await forget_clean_sets(kNever);
    co_await memory_->stop();
  }
  closed->set();
}

// What has nothing in the NVRAM any more does not need it at the next start; what it is not known
// of by the deadline, does.
Task<void> ControllerCache::forget_clean_sets(TimePoint deadline) {
  if (memory_ == nullptr || !started_) co_return;
  // Else a mirror that is not whole would be asked at the next start.
  if (holding_) (void)co_await commit_mirror_lost();
  const Error final = co_await memory_->flush_releases(deadline);
  if (final == Error::kNone && !abandoned_) co_await clear_marks();
}

// A drive may be slow, and there may be much: as long as it takes more nobody gives up. What it
// takes again and again, since it does not keep it, is no progress.
Task<bool> ControllerCache::wait_while_destaging(std::shared_ptr<Event> ended, TimePoint deadline) {
  const Duration patience = deadline - home_.now();
  const std::uint64_t begun = destaged_bytes();
  const std::uint64_t most = cache_ != nullptr ? 2 * cache_->counters().dirty_bytes : 0;
  for (std::uint64_t seen = begun;;) {
    const bool done = co_await ended->wait_until(deadline);
    if (done || cache_ == nullptr) co_return done;
    const std::uint64_t now = destaged_bytes();
    if (now == seen || now - begun > most) co_return false;
    seen = now;
    deadline = home_.now() + patience;
    log_info("cache: {} are still to be brought to the drives",
             format_size_rounded(cache_->counters().dirty_bytes));
  }
}

std::uint64_t ControllerCache::destaged_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [uuid, guard] : guards_) bytes += guard->device().counters().destage_bytes;
  return bytes;
}

void ControllerCache::tell_left() {
  for (const auto& [uuid, guard] : guards_) {
    const std::uint64_t left = guard->device().dirty_bytes();
    if (left == 0) continue;
    lost_at_end_ = lost_at_end_ || memory_ == nullptr;
    events_.add({.severity = memory_ != nullptr ? Severity::kWarning : Severity::kError,
                 .kind = memory_ != nullptr ? "writes left" : "writes lost",
                 .set = name_of_set_(uuid),
                 .text = fmt::format("{}: {} cannot be brought to its drives: {}", set_words(uuid),
                                     format_size_rounded(left),
                                     memory_ != nullptr
                                         ? "it stays in NVRAM, and the next start goes on with it"
                                         : "it is lost with the daemon's memory")});
  }
}

Task<void> ControllerCache::clear_marks() {
  metadata::Batch batch;
  std::vector<std::string> clean;
  for (const auto& [set, mark] : marks_) {
    if (barred_.contains(set) || has_waiting(set)) continue;
    const auto guard = guards_.find(set);
    if (guard != guards_.end() && guard->second->device().dirty_bytes() != 0) continue;
    batch.erase(dirty_key(set));
    clean.push_back(set_words(set));
  }
  if (batch.empty()) co_return;
  const Error error = co_await store_.commit(std::move(batch));
  if (error == Error::kNone || abandoned_) co_return;
  events_.add({.severity = Severity::kWarning,
               .kind = "cache metadata",
               .text = fmt::format("cache: {}; everything of {} is on the drives, and the next "
                                   "start needs this NVRAM all the same",
                                   unwritten(error), fmt::join(clean, ", "))});
}

Task<void> ControllerCache::settle(TimePoint deadline) {
  const auto ended = std::make_shared<Event>();
  spawn(settle_all(ended));
  (void)co_await wait_while_destaging(ended, deadline);
}

Task<void> ControllerCache::settle_all(std::shared_ptr<Event> ended) {
  if (gate_.enter()) {
    const GateHold hold(gate_);
    (void)co_await flush(std::nullopt);
  }
  ended->set();
}

Task<bool> ControllerCache::finish(TimePoint deadline) {
  if (nvram_ != nullptr) nvram_->on_failure = nullptr;
  guards_.clear();
  cache_.reset();
  memory_.reset();
  if (mirror_ == nullptr) co_return true;
  const Error closed = co_await mirror_->close(deadline);
  if (closed != Error::kNone) {
    events_.add({.severity = Severity::kError,
                 .kind = "nvram failed",
                 .text = fmt::format("NVRAM: the mirror cannot be closed: {}", describe(closed))});
  }
  if (closed == Error::kTimedOut) co_return false;
  mirror_.reset();
  co_return true;
}

}  // namespace sandbay::group
