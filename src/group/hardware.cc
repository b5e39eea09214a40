// Starting and stopping the hardware; spares.
#include "group/hardware.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <csignal>
#include <filesystem>

#include "group/claims.h"
#include "group/member_configuration.h"
#include "group/nvram_faults.h"
#include "group/units.h"

namespace sandbay::group {

namespace {

constexpr std::size_t kMostCacheBytes = std::size_t{16} << 20;
constexpr std::size_t kLeastCacheBytes = std::size_t{1} << 20;
// As fault rules write them: the NVRAM and its mirror.
constexpr std::string_view kNvramName = "A";
constexpr std::string_view kMirrorName = "B";
// Of the time for stopping, what the sets are to have.
constexpr Duration kForSets = std::chrono::seconds(15);
// For the last sync of the NVRAM's image, which may be of all of it.
constexpr Duration kForImages = std::chrono::seconds(60);

}  // namespace

std::string not_written(Error error) {
  return fmt::format("the metadata cannot be written: {}", describe(error));
}

Hardware::Hardware(Executor& home, const Configuration& configuration, metadata::Store& store,
                   EventLog& events, Uuid group)
    : Hardware(home, configuration, store, events, group, Part()) {}

Hardware::Hardware(Executor& home, const Configuration& configuration, metadata::Store& store,
                   EventLog& events, Uuid group, Part part)
    : home_(home),
      configuration_(configuration),
      store_(store),
      events_(events, part.first != nullptr ? part.member : ""),
      group_(group),
      part_(std::move(part)),
      clock_(configuration.hardware.time_scale, home.now()),
      repeated_(events) {
  if (part_.first != nullptr) {
    part_.first->others_.push_back(this);
    power_ = part_.first->power_;
  } else if (configuration.hardware.faults.enabled) {
    own_power_ = std::make_unique<Power>();
    power_ = own_power_.get();
  }
  if (const auto& profile = configuration.hardware.controller) {
    timing_ = std::make_shared<model::Controller>(*profile);
  }
  cache_ = std::make_unique<ControllerCache>(home, configuration, store, events_,
                                             [this](const Uuid& set) { return name_of(set); });
}

Hardware::~Hardware() { assert(bays_.empty()); }

Task<Started> Hardware::start() {
  Started outcome = co_await open();
  if (!outcome) co_return outcome;
  outcome = add_rules();
  if (!outcome) co_return outcome;
  outcome = co_await assemble();
  co_return outcome;
}

Task<Started> Hardware::open() {
  Started outcome = co_await load();
  if (!outcome) co_return outcome;
  outcome = co_await cache_->load();
  if (!outcome) co_return outcome;
  outcome = co_await open_nvram();
  if (!outcome) co_return outcome;
  make_engine();
  outcome = co_await start_cache();
  if (!outcome) co_return outcome;
  outcome = co_await open_drives();
  co_return outcome;
}

Task<Hardware::Outcome> Hardware::assemble() {
  Outcome outcome = co_await erase_unfinished();
  if (!outcome) co_return outcome;
  outcome = co_await start_controller();
  if (!outcome) co_return outcome;
  outcome = co_await make_sets();
  if (!outcome) co_return outcome;
  co_await make_spares();
  tell_disagreements();
  co_await release_journals();
  started_ = true;
  for (const auto& each : bays_) each->begin_time();
  spawn(watch());
  co_return Outcome{};
}

Task<Hardware::Outcome> Hardware::load() {
  const auto damaged = [](const std::string& key, const std::string& error) {
    return std::unexpected(fmt::format("metadata {} {}", key, error));
  };
  const auto unreadable = [](Error error) {
    return std::unexpected(fmt::format("the metadata cannot be read: {}", describe(error)));
  };
  const auto sets = co_await list_all(store_, std::string(kSetPrefix));
  if (!sets) co_return unreadable(sets.error());
  for (const auto& [key, value] : *sets) {
    auto record = decode_set(value);
    if (!record) co_return damaged(key, record.error());
    if (record->geometry.block_count != 0) {
      doors_[record->uuid] =
          std::make_unique<Door>(home_, "RAID set " + record->name, record->geometry, power_);
    }
    records_.emplace(record->uuid, *record);
  }
  const auto used = co_await list_all(store_, std::string(kUsedPrefix));
  if (!used) co_return unreadable(used.error());
  for (const auto& [key, value] : *used) {
    const auto end = decode_used(value);
    const auto set = parse_uuid(std::string_view(key).substr(kUsedPrefix.size()));
    if (!end || !set) co_return damaged(key, end ? "has no UUID" : end.error());
    used_ends_[*set] = *end;
  }
  const auto making = co_await list_all(store_, std::string(kMakingPrefix));
  if (!making) co_return unreadable(making.error());
  for (const auto& [key, value] : *making) {
    const auto record = decode_making(value);
    if (!record) co_return damaged(key, record.error());
    unfinished_[key.substr(kMakingPrefix.size())] = *record;
  }
  co_return Outcome{};
}

Task<Started> Hardware::open_nvram() {
  const auto& wanted = configuration_.hardware.nvram;
  if (!wanted) co_return Started{};
  nvram::NvramOptions options = cache_->nvram_options();
  options.owner = std::bit_cast<ImageUuid>(group_);
  Error cause = Error::kNone;
  options.cause = &cause;
  auto opened = co_await configuration_.open_image(home_, std::move(options));
  if (!opened) {
    const bool may_pass =
        cause == Error::kNotReady || cause == Error::kNoSpace || cause == Error::kNoMemory;
    const auto kind = may_pass ? StartRefusal::Kind::kNotNow : StartRefusal::Kind::kConfiguration;
    co_return std::unexpected(StartRefusal(
        kind, fmt::format("{}:{}: nvram: {}", configuration_.file, wanted->line, opened.error())));
  }
  nvram_ = std::move(*opened);
  metadata::Batch batch;
  batch.put(nvram_key(nvram_->uuid()), encode_nvram(nvram_->open_count()));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) co_return std::unexpected(not_written(error));
  battery_ = std::make_unique<nvram::Battery::Observer>(
      nvram_->battery(), [this](nvram::BatteryState state) { battery_changed(state); });
  for (const nvram::RegionState& region : nvram_->regions()) {
    if (region.loss == nvram::Loss::kNone) continue;
    events_.add({.severity = Severity::kError,
                 .kind = "nvram lost",
                 .text = fmt::format("NVRAM: the content of \"{}\" is lost: {}", region.name,
                                     describe(region.loss))});
  }
  co_return Started{};
}

std::vector<Hardware*> Hardware::all_members() {
  std::vector<Hardware*> all{this};
  all.insert(all.end(), others_.begin(), others_.end());
  return all;
}

std::string Hardware::name_for_rules(std::string_view nvram) const {
  return part_.first == nullptr ? std::string(nvram) : fmt::format("{}.{}", part_.member, nvram);
}

void Hardware::make_engine() {
  const FaultsConfiguration& wanted = configuration_.hardware.faults;
  if (part_.first != nullptr) {
    engine_ = part_.first->engine_;
    if (engine_ == nullptr || nvram_ == nullptr) return;
    nvram_faults_ = std::make_unique<NvramFaults>(*nvram_);
    engine_->add_nvram(name_for_rules(kNvramName), *nvram_faults_);
    return;
  }
  if (!wanted.enabled) return;
  fault::FaultEngineOptions options;
  options.seed = wanted.seed;
  options.on_firing = [this](const fault::Firing& firing) {
    const std::string_view target = firing.target;
    const std::string drive(target.starts_with("drive ") ? target.substr(6) : "");
    if (firing.repeated && repeated_.count("fault", "", drive, firing.rule)) return;
    EventInfo told{.severity = Severity::kWarning,
                   .kind = "fault",
                   .drive = drive,
                   .text = fault::describe(firing)};
    if (firing.repeated) return repeated_.add(std::move(told), home_.now(), firing.rule);
    events_.add(std::move(told));
  };
  options.may_fail = [this](const fault::Rule&, const std::string& drive) {
    return std::ranges::all_of(all_members(), [&](Hardware* each) {
      return !each->has_drive(drive) || each->may_fail(drive);
    });
  };
  options.other_content = [this](const std::string& drive) -> BlockDevice* {
    for (Hardware* const each : all_members()) {
      if (each->has_drive(drive)) return each->bay(drive)->other_drive();
    }
    return nullptr;
  };
  options.on_power_cut = [this](const fault::Rule&) { power_lost(); };
  options.on_kill = [](const fault::Rule&) { std::raise(SIGKILL); };
  options.on_health = [this](const std::string&, Health) {
    if (sets_changed_) sets_changed_();
  };
  own_engine_ = std::make_unique<fault::FaultEngine>(home_, std::move(options));
  engine_ = own_engine_.get();
  for (std::string& member : member_names(configuration_)) engine_->add_member(std::move(member));
  probes_.emplace(home_, *engine_);
  if (nvram_ == nullptr) return;
  nvram_faults_ = std::make_unique<NvramFaults>(*nvram_);
  engine_->add_nvram(name_for_rules(kNvramName), *nvram_faults_);
}

Task<Started> Hardware::start_cache() {
  cache_->lose = [this](Uuid set, std::vector<Extent> extents) {
    return lose_blocks(set, std::move(extents));
  };
  const Started started = co_await cache_->start(nvram_.get());
  if (!started) co_return started;
  for (const auto& [uuid, door] : doors_) door->share(cache_->cache(), cache_->streams());
  if (engine_ == nullptr || cache_->mirror() == nullptr) co_return Started{};
  mirror_faults_ = std::make_unique<NvramFaults>(*cache_->mirror());
  engine_->add_nvram(name_for_rules(kMirrorName), *mirror_faults_);
  co_return Started{};
}

Task<Started> Hardware::open_drives() {
  const auto& drives = configuration_.hardware.drives;
  // Un-flushed writes stand in pool memory, of which hosts need the most.
  const std::size_t share =
      configuration_.memory_limit_bytes / (8 * std::max<std::size_t>(1, drives.size()));
  const std::size_t cache_bytes = std::clamp(share, kLeastCacheBytes, kMostCacheBytes);
  for (const DriveConfiguration& configured : drives) {
    bays_.push_back(std::make_unique<DriveBay>(configured, bays_.size() + 1, configuration_.member,
                                               configuration_.state, clock_));
    DriveBay& bay = *bays_.back();
    // Fails only if another process has the drive.
    const Outcome opened = co_await bay.open(home_, engine_, power_, cache_bytes);
    if (!opened) {
      co_return std::unexpected(fmt::format("{}:{}: drive \"{}\": {}", configuration_.file,
                                            configured.line, configured.name, opened.error()));
    }
    if (bay.device() != nullptr) continue;
    events_.add(
        {.severity = Severity::kWarning,
         .kind = "drive absent",
         .drive = configured.name,
         .text = fmt::format("drive {}: is not there: {}", configured.name, bay.absence())});
  }
  co_return Started{};
}

Started Hardware::add_rules() {
  if (engine_ == nullptr) return {};
  const FaultsConfiguration& faults = configuration_.hardware.faults;
  const auto added = engine_->add_all(faults.rules);
  if (added) return {};
  return fault_of_configuration(
      fmt::format("{}:{}: faults.rules: {}", configuration_.file, faults.line, added.error()));
}

Task<Hardware::Outcome> Hardware::start_controller() {
  raid::ControllerOptions options;
  options.group_uuid = group_;
  options.set.nvram = nvram_.get();
  options.set.nvram_journal_bytes = kNvramJournalBytes;
  // Some things are waited for that modelled drives do one after another.
  const auto modelled = [](const DriveConfiguration& drive) { return drive.type != nullptr; };
  Duration& timeout = options.set.drive_policy.timeout;
  if (std::ranges::any_of(configuration_.hardware.drives, modelled)) {
    timeout = std::max(timeout, clock_.real(timeout));
  }
  controller_ = std::make_unique<raid::Controller>(home_, std::move(options));
  controller_->on_event([this](const raid::ControllerEvent& event) { on_event(event); });
  say_policies();
  controller_->on_record([this](Uuid set, raid::Event event) { return record(this, set, event); });
  std::vector<raid::NamedDevice> devices;
  for (const auto& each : bays_) {
    if (each->device() == nullptr) continue;
    devices.push_back({.name = each->configured().name, .device = each->device()});
  }
  raid::Remembered remembered{.group_uuid = group_};
  for (const auto& [uuid, known] : records_) {
    remembered.minimum_events[uuid] = known.event;
    if (known.imported) remembered.older.insert(uuid);
  }
  const auto lines = co_await controller_->start(std::move(devices), std::move(remembered));
  for (const std::string& line : lines) {
    events_.add({.severity = Severity::kWarning, .kind = "assembly", .text = line});
  }
  learn_sets();
  for (const auto& [uuid, known] : std::map(records_)) {
    const Error error = co_await keep_record(uuid);
    if (error != Error::kNone) co_return std::unexpected(not_written(error));
  }
  co_return Outcome{};
}

// The NVRAM of sets that are gone, or have their journal on drives, is free for others. A set is
// gone if every drive that could tell of it has been read and tells of none, and others of this
// group are there: where nothing is known at all, the metadata or the drives are not the ones that
// this NVRAM has been with.
Task<void> Hardware::release_journals() {
  if (nvram_ == nullptr) co_return;
  // A file that was made anew stands where another drive may have been.
  const bool all_there = std::ranges::all_of(
      bays_, [](const auto& bay) { return bay->device() != nullptr && !bay->was_made(); });
  const bool all_read =
      std::ranges::none_of(controller_->show_drives(), [](const raid::DriveInfo& drive) {
        return drive.use == raid::DriveUse::kAbsent || drive.use == raid::DriveUse::kStranger;
      });
  const bool others = !records_.empty() || !controller_->sets().empty();
  for (const nvram::RegionState& region : nvram_->regions()) {
    const auto uuid = raid::set_of_journal_region(region.name);
    if (!uuid || region.claimed) continue;
    const auto sets = controller_->sets();
    const auto set = std::ranges::find(sets, *uuid, &raid::ManagedSet::uuid);
    const bool moved =
        set != sets.end() && (*set)->running() && (*set)->superblock().journal_bytes != 0;
    const bool gone =
        set == sets.end() && !records_.contains(*uuid) && all_there && all_read && others;
    if (!moved && !gone) continue;
    const auto released = co_await nvram_->release(region.name);
    events_.add({.severity = released ? Severity::kInformation : Severity::kWarning,
                 .kind = "nvram released",
                 .text = released ? fmt::format("NVRAM: \"{}\" is free: its set is gone or has its "
                                                "journal on drives",
                                                region.name)
                                  : released.error()});
  }
}

std::string Hardware::at(const SetConfiguration& set) const {
  return fmt::format("{}:{}: set \"{}\"", configuration_.file, set.line, set.name);
}

Task<void> Hardware::make_spares() {
  for (const DriveConfiguration& drive : configuration_.hardware.drives) {
    if (drive.spare) co_await make_spare(drive.name, "");
  }
  for (const SetConfiguration& set : configuration_.hardware.sets) {
    if (controller_->find(set.name) == nullptr) continue;
    for (const std::string& drive : set.spares) co_await make_spare(drive, set.name);
  }
}

Task<void> Hardware::make_spare(std::string drive, std::string set) {
  const auto drives = controller_->show_drives();
  const auto found = std::ranges::find(drives, drive, &raid::DriveInfo::name);
  if (found == drives.end()) co_return;
  if (found->use == raid::DriveUse::kFailed || found->use == raid::DriveUse::kStranger) {
    events_.add(
        {.severity = Severity::kWarning,
         .kind = "spare",
         .set = set,
         .drive = drive,
         .text = fmt::format("drive {0}: no spare, for it is not blank: {1}; if nobody needs "
                             "what is on it: sandbay drive erase {0}",
                             drive, found->why)});
    co_return;
  }
  if (found->use != raid::DriveUse::kBlank) co_return;
  const auto made = co_await controller_->add_spare(drive, set);
  events_.add({.severity = made ? Severity::kInformation : Severity::kWarning,
               .kind = "spare",
               .set = set,
               .drive = drive,
               .text = made ? fmt::format("drive {}: a spare of {}", drive,
                                          set.empty() ? "all sets" : "set " + set)
                            : fmt::format("drive {}: no spare: {}", drive, made.error())});
}

Task<void> Hardware::stop(TimePoint deadline, bool quiet) {
  stopping_ = true;
  wake_.notify_all();
  co_await gate_.close();
  bool ended = true;
  if (engine_ != nullptr) engine_->clear_all();  // What hangs by a rule, ends.
  // The cache goes while the sets are still there.
  ended = co_await cache_->stop(std::max(home_.now(), deadline - kForSets));
  lost_writes_ = cache_->lost_at_end();
  ended = ended && (quiet || cache_->cache() == nullptr);
  if (ended) {
    if (mirror_faults_ != nullptr) engine_->remove_nvram(name_for_rules(kMirrorName));
    mirror_faults_.reset();
    ended = co_await cache_->finish(std::max(deadline, home_.now() + kForImages));
  }
  if (controller_ != nullptr) {
    const bool stopped = co_await controller_->stop(std::max(deadline, home_.now() + kForSets));
    ended = ended && stopped;
  }
  for (const auto& [uuid, layer] : timed_sets_) {
    const bool idle = co_await layer->wait_idle_until(deadline);
    ended = ended && idle;
  }
  repeated_.tell_all();
  if (!ended) {
    lost_writes_ = lost_writes_ || (!quiet && nvram_ == nullptr);
    leave_behind();
    co_return;
  }
  doors_.clear();
  for (auto& [uuid, layer] : member_faults_) {
    co_await layer->drain();
    if (!layer->idle()) (void)layer.release();  // For the process to end with.
  }
  member_faults_.clear();
  timed_sets_.clear();
  controller_.reset();
  for (const auto& each : bays_) co_await each->close();
  bays_.clear();
  if (engine_ != nullptr && nvram_faults_ != nullptr) {
    engine_->remove_nvram(name_for_rules(kNvramName));
  }
  nvram_faults_.reset();
  probes_.reset();
  if (shared_is_left_ || (own_engine_ != nullptr && own_engine_->has_layers())) {
    (void)own_engine_.release();
    (void)own_power_.release();
  }
  own_engine_.reset();
  engine_ = nullptr;
  battery_.reset();
  co_await close_nvram(deadline);
}

// For the process to end with.
void Hardware::leave_behind() {
  events_.add({.severity = Severity::kError,
               .kind = "drive hangs",
               .text =
                   "some drive, or the disk under the NVRAM, holds requests that do not end; it "
                   "is left behind"});
  probes_.reset();
  (void)controller_.release();
  for (auto& [uuid, layer] : member_faults_) (void)layer.release();
  for (auto& [uuid, layer] : timed_sets_) (void)layer.release();
  for (const auto& each : bays_) each->abandon();
  (void)own_engine_.release();
  (void)own_power_.release();
  left_behind_ = true;
  if (part_.first != nullptr) part_.first->shared_is_left_ = true;
  (void)nvram_faults_.release();
  (void)mirror_faults_.release();
  (void)cache_.release();
  (void)battery_.release();
  (void)nvram_.release();
  for (auto& [uuid, door] : doors_) (void)door.release();
  bays_.clear();
}

Task<void> Hardware::close_nvram(TimePoint deadline) {
  if (nvram_ == nullptr) co_return;
  const Error closed = co_await nvram_->close(std::max(deadline, home_.now() + kForImages));
  if (closed != Error::kNone) {
    events_.add({.severity = Severity::kError,
                 .kind = "nvram failed",
                 .text = fmt::format("NVRAM: cannot be closed: {}", describe(closed))});
  }
  if (closed == Error::kTimedOut) {
    left_behind_ = true;
    (void)nvram_.release();
  }
  nvram_.reset();
}

}  // namespace sandbay::group
