// What the controller tells: events for operators and for fault rules, the record of each set's
// newest event, and what has to be looked after while it all runs.
#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <csignal>
#include <memory>
#include <set>
#include <utility>

#include "fault/rule.h"
#include "group/document.h"
#include "group/hardware.h"
#include "group/hardware_configuration.h"
#include "runtime/in_time.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

using Kind = raid::SetEvent::Kind;

constexpr Duration kLookAtHardware = std::chrono::seconds(1);

struct EventWords {
  Kind kind;
  Severity severity;
  std::string_view words;
  std::string_view engine_event;  // For fault rules; empty: none.
};

constexpr EventWords kWords[] = {
    {Kind::kDriveFailed, Severity::kError, "drive failed", "drive.failed"},
    {Kind::kDriveMissing, Severity::kError, "drive missing", "drive.missing"},
    {Kind::kDriveReturned, Severity::kInformation, "drive returned", "drive.returned"},
    {Kind::kDriveReplaced, Severity::kInformation, "drive replaced", "drive.replaced"},
    {Kind::kDegraded, Severity::kWarning, "set degraded", "set.degraded"},
    {Kind::kOptimal, Severity::kInformation, "set optimal", "set.optimal"},
    {Kind::kOffline, Severity::kError, "set offline", "set.offline"},
    {Kind::kOnline, Severity::kInformation, "set online", "set.online"},
    {Kind::kSpareTaken, Severity::kInformation, "spare taken", "spare.taken"},
    {Kind::kNoSpare, Severity::kWarning, "no spare", "spare.none"},
    {Kind::kRebuildStarted, Severity::kInformation, "rebuild started", "rebuild.start"},
    {Kind::kRebuildEnded, Severity::kInformation, "rebuild ended", "rebuild.end"},
    {Kind::kCopyStarted, Severity::kInformation, "copy started", "copy.start"},
    {Kind::kCopyEnded, Severity::kInformation, "copy ended", "copy.end"},
    {Kind::kVerifyStarted, Severity::kInformation, "verify started", "verify.start"},
    {Kind::kVerifyEnded, Severity::kInformation, "verify ended", "verify.end"},
    {Kind::kMediumErrorRepaired, Severity::kWarning, "medium error repaired", "medium.repaired"},
    {Kind::kSectorsLost, Severity::kError, "sectors lost", "sectors.lost"},
    {Kind::kMismatch, Severity::kWarning, "mismatch", "verify.mismatch"},
    {Kind::kCorruption, Severity::kWarning, "corruption", "corruption"},
    {Kind::kPredictedFailure, Severity::kWarning, "predicted failure", "drive.predicted"},
    {Kind::kJournalReplayed, Severity::kInformation, "journal replayed", "journal.replayed"},
    {Kind::kJournalLost, Severity::kError, "journal lost", "journal.lost"},
    {Kind::kNoRoom, Severity::kError, "no room", "drive.full"},
    {Kind::kWriteRefused, Severity::kWarning, "write refused", "write.refused"},
};

// May come with every request, and says nothing new of sets.
bool concerns_data(Kind kind) {
  return kind == Kind::kCorruption || kind == Kind::kMismatch ||
         kind == Kind::kMediumErrorRepaired || kind == Kind::kSectorsLost ||
         kind == Kind::kWriteRefused;
}

const EventWords& words_of(Kind kind) {
  const auto found = std::ranges::find(kWords, kind, &EventWords::kind);
  static constexpr EventWords kUnknown{Kind::kDegraded, Severity::kWarning, "event", ""};
  return found == std::end(kWords) ? kUnknown : *found;
}

// What passes a probe, and what the engine tells itself.
constexpr std::string_view kOtherEvents[] = {
    "power.cut",        "map.read",        "map.write",       "rebalance.claimed",
    "rebalance.copied", "rebalance.ready", "rebalance.moved", "rebalance.kept"};

}  // namespace

std::optional<std::string> event_error(const fault::Rule& rule) {
  const std::string& event = rule.event;
  if (event.empty() || event == "then" || event.starts_with("rule:")) return std::nullopt;
  std::vector<std::string> known(std::begin(kOtherEvents), std::end(kOtherEvents));
  for (const EventWords& words : kWords) known.emplace_back(words.engine_event);
  if (std::ranges::find(known, event) != known.end()) return std::nullopt;
  const std::string_view near = nearest(event, known);
  return fmt::format("event={}: there is no such event; {}", event,
                     near.empty() ? fmt::format("{} are possible", fmt::join(known, ", "))
                                  : fmt::format("did you mean {}?", near));
}

void Hardware::on_event(const raid::ControllerEvent& event) {
  const EventWords& words = words_of(event.kind);
  EventInfo told{.severity = words.severity,
                 .kind = std::string(words.words),
                 .set = event.set,
                 .drive = event.drive,
                 .text = event.text};
  const bool of_data = concerns_data(event.kind);
  if (of_data) {
    repeated_.add(std::move(told), home_.now());
  } else {
    events_.add(std::move(told));
  }
  tell_engine(event);
  if (of_data) return;
  wake_.notify_all();  // A set may have come, or come back with other maintenance.
  if (sets_changed_) sets_changed_();
}

void Hardware::tell_engine(const raid::ControllerEvent& event) {
  if (engine_ == nullptr) return;
  if (!concerns_data(event.kind)) say_states(&event);
  const std::string_view name = words_of(event.kind).engine_event;
  if (!name.empty()) engine_->notify(name);
}

void Hardware::add_states(const raid::ControllerEvent* ended, States& states) const {
  if (controller_ == nullptr) return;
  for (const raid::ManagedSet* const set : controller_->sets()) {
    states.degraded |= set->running() && set->health() == Health::kDegraded;
    if (!set->running() || set->maintenance() == nullptr) continue;
    const bool over = ended != nullptr && ended->set == set->name() &&
                      (ended->kind == Kind::kRebuildEnded || ended->kind == Kind::kCopyEnded ||
                       ended->kind == Kind::kVerifyEnded);
    if (!over) states.under_way.insert(set->maintenance()->progress().kind);
  }
}

void Hardware::say_states(const raid::ControllerEvent* ended) {
  if (engine_ == nullptr || controller_ == nullptr) return;
  using Progress = raid::MaintenanceProgress::Kind;
  States states;
  Hardware& first = part_.first != nullptr ? *part_.first : *this;
  for (const Hardware* const each : first.all_members()) each->add_states(ended, states);
  const auto say = [&](std::string_view name, bool value) {
    if (engine_->state(name) != (value ? 1 : 0)) engine_->set_state(name, value ? 1 : 0);
  };
  say("rebuilding", states.under_way.contains(Progress::kRebuild));
  say("copying", states.under_way.contains(Progress::kCopy));
  say("verifying", states.under_way.contains(Progress::kVerify));
  say("degraded", states.degraded);
}

// Within redundancy: the drive's set survives without it, and without all that is not whole now.
bool Hardware::may_fail(const std::string& drive) const {
  if (controller_ == nullptr) return true;
  const auto drives = controller_->show_drives();
  const auto found = std::ranges::find(drives, drive, &raid::DriveInfo::name);
  if (found == drives.end() || !found->role || found->set.empty()) return true;
  const raid::ManagedSet* const set = controller_->find(found->set);
  if (set == nullptr || set->drives() == nullptr || !set->running()) return false;
  const auto layout = set->superblock().layout();
  if (!layout) return false;
  const std::uint64_t missing = set->drives()->absent_roles() | set->drives()->stale_roles();
  return layout->survives(missing | std::uint64_t{1} << known(found->role));
}

// Records -----------------------------------------------------------------------------------------

namespace {

// A set waits for its record with its stripes held, so it waits for a disk that hangs only that
// long, and not at all while an earlier record is on its way. The set tries again.
constexpr Duration kRecordPatience = std::chrono::seconds(5);

using Recording = std::shared_ptr<std::set<Uuid>>;

Task<Error> commit_record(metadata::Store* store, metadata::Batch batch, Recording under_way,
                          Uuid set) {
  const Error error = co_await store->commit(std::move(batch));
  under_way->erase(set);
  co_return error;
}

}  // namespace

Task<Error> Hardware::record(Hardware* self, Uuid set, raid::Event event) {
  SetRecord& known = self->records_[set];
  known.uuid = set;
  known.event = event;
  known.imported = false;
  if (!self->recording_->insert(set).second) co_return Error::kTimedOut;
  metadata::Batch batch;
  batch.put(set_key(set), encode(known));
  co_return co_await in_time(commit_record(&self->store_, std::move(batch), self->recording_, set),
                             self->home_.now() + kRecordPatience);
}

Task<Error> Hardware::keep_record(Uuid set) {
  metadata::Batch batch;
  batch.put(set_key(set), encode(records_.at(set)));
  co_return co_await store_.commit(std::move(batch));
}

void Hardware::learn_sets() {
  for (raid::ManagedSet* const set : controller_->sets()) {
    SetRecord& known = records_[set->uuid()];
    known.uuid = set->uuid();
    known.name = set->name();
    // One that has not run yet does not know what its drives can do.
    if (set->running() || known.geometry.block_count == 0) known.geometry = set->geometry();
    learn_door(set);
    not_made_.erase(set->name());
  }
}

// Volumes on sets take over the geometry when they are opened, and keep it. Until then the set's
// own counts, also if its drives have become others since it was recorded.
void Hardware::learn_door(raid::ManagedSet* set) {
  auto& door = doors_[set->uuid()];
  const Geometry& geometry = records_.at(set->uuid()).geometry;
  if (door == nullptr || (!started_ && !door->leads())) {
    door = std::make_unique<Door>(home_, "RAID set " + set->name(), geometry, power_);
    door->share(cache_->cache(), cache_->streams());
  }
  if (door->leads() || !cache_->bar(set->uuid()).empty()) return;
  if (door->geometry().block_count != set->geometry().block_count) return;
  const auto& cache = configuration_.hardware.cache;
  const auto layout = set->superblock().layout();
  const bool whole = !cache || cache->drive_write_bytes == 0 || !layout;
  const std::uint64_t stripes = whole ? 1 : layout->stripes_with(cache->drive_write_bytes);
  BlockDevice& top = timed(set->uuid(), cache_->above(set->uuid(), *set, stripes));
  if (engine_ == nullptr) return door->lead_to(top);
  auto& faults = member_faults_[set->uuid()];
  assert(faults == nullptr);
  faults = std::make_unique<fault::FaultLayer>(
      top, *engine_,
      fault::FaultLayerOptions{.name = set->name(), .member = configuration_.member});
  door->lead_to(*faults);
}

BlockDevice& Hardware::timed(const Uuid& set, BlockDevice& below) {
  if (timing_ == nullptr) return below;
  auto& layer = timed_sets_[set];
  assert(layer == nullptr);
  layer = std::make_unique<model::ModelledController>(below, clock_, timing_);
  return *layer;
}

// The power
// -----------------------------------------------------------------------------------------

// Everything stands still at this instant. What the drives keep of their caches reaches their
// media, and the process ends as hardware does: without a word to anybody.
void Hardware::power_lost() {
  if (power_->off()) return;
  power_->turn_off();
  for (Hardware* const each : all_members()) {
    if (each->nvram_ != nullptr) each->nvram_->cut_power();
    if (each->cache_->mirror() != nullptr) each->cache_->mirror()->cut_power();
  }
  spawn(end_by_power_cut());
}

Task<void> Hardware::end_by_power_cut() {
  const std::vector<Hardware*> all = all_members();
  for (Hardware* const member : all) {
    for (const auto& each : member->bays_) {
      if (each->cache() != nullptr) co_await each->cache()->settled();
    }
  }
  events_.add({.severity = Severity::kError,
               .kind = "power cut",
               .text = "the power is cut, by a fault rule: the daemon ends; start it again"});
  co_await events_.kept(home_.now() +
                        kLookAtHardware);  // A disk that fails does not keep it alive.
  std::raise(SIGKILL);
}

// What NVRAM alone holds would be gone with the next cut: it goes to the drives at once, and from
// now on nothing is acknowledged for being there (raid asks the NVRAM).
void Hardware::battery_changed(nvram::BatteryState state) {
  const bool good = state == nvram::BatteryState::kGood;
  events_.add({.severity = good ? Severity::kInformation : Severity::kError,
               .kind = good ? "battery good" : "battery low",
               .text = fmt::format("NVRAM: the battery is {}{}", describe(state),
                                   good ? "" : "; writes go through to the drives")});
  if (!good && controller_ != nullptr && gate_.enter()) spawn(flush_sets());
}

Task<void> Hardware::flush_sets() {
  co_await home_.yield();  // Whoever changed the battery goes on first.
  for (raid::ManagedSet* const set : controller_->sets()) {
    const Completion flushed = co_await set->submit(Request{.operation = Operation::kFlush});
    if (flushed.error == Error::kNone || !set->running()) continue;
    events_.add({.severity = Severity::kError,
                 .kind = "flush failed",
                 .set = set->name(),
                 .text = fmt::format("set {}: cannot be flushed while the battery is low: {}",
                                     set->name(), describe(flushed.error))});
  }
  gate_.leave();
}

// Looking after
// -------------------------------------------------------------------------------------

void Hardware::say_policies() {
  for (const SetConfiguration& wanted : configuration_.hardware.sets) {
    raid::MaintenancePolicy policy = controller_->policy(wanted.name);
    if (wanted.rebuild_bytes) policy.rate_under_load = *wanted.rebuild_bytes;
    policy.verify_every = wanted.verify_every;
    controller_->set_policy(wanted.name, policy);
  }
}

// Drives that were not there at the start, and those whose device is gone and has been made anew.
Task<void> Hardware::look_for_drives() {
  for (const auto& each : bays_) {
    DriveBay* const bay = each.get();
    bay->look();  // On a reactor the answer is for the next round.
    if (bay->take_displaced()) {
      events_.add(
          {.severity = Severity::kError,
           .kind = "drive file gone",
           .drive = bay->configured().name,
           .text = fmt::format("drive {}: {}", bay->configured().name, bay->displacement())});
    }
    if (const auto serial = bay->take_changed_serial()) {
      events_.add({.severity = Severity::kWarning,
                   .kind = "drive identity",
                   .drive = bay->configured().name,
                   .text = fmt::format("drive {}: it says now that its serial number is \"{}\"",
                                       bay->configured().name, *serial)});
    }
    if (!bay->may_have_come()) continue;
    const auto drives = controller_->show_drives();
    const auto known = std::ranges::find(drives, bay->configured().name, &raid::DriveInfo::name);
    const bool absent = known == drives.end() || known->use == raid::DriveUse::kAbsent;
    if (absent) co_await reopen(bay);
    if (stopping_) co_return;
  }
}

Task<void> Hardware::reopen(DriveBay* bay) {
  const std::string name = bay->configured().name;
  if (bay->device() != nullptr) {
    const Outcome removed = co_await controller_->remove_drive(name);
    if (!removed) co_return;  // It holds requests that do not end.
    co_await bay->close();
  }
  const Outcome opened = co_await bay->open(home_, engine_, power_, bay->cache_bytes());
  if (!opened || bay->device() == nullptr) co_return;
  const Outcome inserted = co_await controller_->insert_drive(name, bay->device());
  events_.add({.severity = inserted ? Severity::kInformation : Severity::kWarning,
               .kind = "drive present",
               .drive = name,
               .text = inserted ? fmt::format("drive {}: is there now", name)
                                : fmt::format("drive {}: {}", name, inserted.error())});
  co_await make_spares();
}

Task<void> Hardware::watch() {
  if (!gate_.enter()) co_return;
  while (!stopping_) {
    learn_sets();
    if (sets_changed_) sets_changed_();
    say_states(nullptr);
    cache_->look_after_sets();
    repeated_.tell(home_.now());
    co_await look_for_drives();
    co_await cache_->check_images();
    // Let go of events that come in bursts, also of those that this very round caused.
    co_await wake_.wait_until(home_.now() + kLookAtHardware);
    co_await home_.yield();
  }
  gate_.leave();
}

}  // namespace sandbay::group
