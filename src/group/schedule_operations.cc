// Schedules: snapshots that are taken every so often, of which the newest are kept. At a start a
// schedule is due when its newest snapshot is old enough, so that restarts neither lose a turn nor
// repeat one. From then on only the time that passes counts, and not what clocks are put to.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "group/running_group.h"
#include "group/units.h"

namespace sandbay::group {

namespace {

constexpr Duration kLookAtSchedules = std::chrono::seconds(1);
constexpr Duration kShortestInterval = std::chrono::seconds(1);
constexpr Duration kTryAgainAfter = std::chrono::minutes(1);
constexpr std::uint32_t kMostKept = 1024;
constexpr std::size_t kMostSchedules = 4096;
// A snapshot's name has 63 characters at most, of which 18 are the time.
constexpr std::size_t kLongestScheduleName = 45;

}  // namespace

ScheduleRecord* RunningGroup::find_schedule(const Uuid& volume, const std::string& name) {
  for (auto& [uuid, record] : schedules_) {
    if (record.volume == volume && record.name == name) return &record;
  }
  return nullptr;
}

std::vector<Snapshot*> RunningGroup::taken_by(const ScheduleRecord& record) {
  std::vector<Snapshot*> list = snapshots_of(record.volume);
  std::erase_if(list, [&](const Snapshot* one) { return one->record.schedule != record.name; });
  return list;
}

ScheduleInfo RunningGroup::info_of(const ScheduleRecord& record) {
  const auto volume = find(record.volume);
  const std::vector<Snapshot*> taken = taken_by(record);
  return {.name = record.name,
          .volume = volume == nullptr ? "" : volume->name(),
          .every = record.every,
          .keep = record.keep,
          .snapshots = static_cast<std::uint32_t>(taken.size()),
          .last = taken.empty() ? WallTime{} : taken.back()->record.time};
}

Task<Answer<std::vector<ScheduleInfo>>> RunningGroup::schedules_now(std::string volume) {
  const auto found = find(volume);
  if (found == nullptr) co_return std::unexpected(no_such_volume(volume));
  std::vector<ScheduleInfo> list;
  for (const auto& [uuid, record] : schedules_) {
    if (record.volume == found->uuid()) list.push_back(info_of(record));
  }
  std::ranges::sort(list, {}, &ScheduleInfo::name);
  co_return list;
}

Task<Answer<std::vector<ScheduleInfo>>> RunningGroup::list_schedules(std::string volume) {
  return looking(schedules_now(std::move(volume)));
}

Task<Answer<CreatedSchedule>> RunningGroup::create_schedule_now(ScheduleInfo schedule) {
  if (const auto error = check_volume_name(schedule.name)) {
    co_return refuse(Refusal::Code::kInvalid, fmt::format("name: {}", *error));
  }
  if (schedule.every < kShortestInterval || schedule.keep == 0 || schedule.keep > kMostKept) {
    co_return refuse(Refusal::Code::kInvalid,
                     fmt::format("schedule \"{}\": write an interval of {} or more, and 1 to {} "
                                 "snapshots to keep",
                                 schedule.name, format_duration(kShortestInterval), kMostKept));
  }
  const auto served = pool_of(schedule.volume);
  if (!served) co_return std::unexpected(served.error());
  const Uuid volume = find(schedule.volume)->uuid();
  if (const ScheduleRecord* const there = find_schedule(volume, schedule.name)) {
    if (there->every == schedule.every && there->keep == schedule.keep) {
      co_return CreatedSchedule{.schedule = info_of(*there), .created = false};
    }
    co_return refuse(
        Refusal::Code::kConflict,
        fmt::format("volume \"{}\" has a schedule \"{}\" already, every {}, which keeps "
                    "{}; delete it first, or choose another name",
                    schedule.volume, schedule.name, format_duration(there->every), there->keep));
  }
  if (schedule.name.size() > kLongestScheduleName) {
    co_return refuse(Refusal::Code::kInvalid,
                     fmt::format("name: has {} characters; its snapshots are called after it, so "
                                 "write {} at most",
                                 schedule.name.size(), kLongestScheduleName));
  }
  if (schedules_.size() >= kMostSchedules) {
    co_return refuse(Refusal::Code::kConflict, fmt::format("there are {} schedules already; delete "
                                                           "some first",
                                                           schedules_.size()));
  }
  const ScheduleRecord record{.uuid = make_uuid(Executor::current().random()),
                              .volume = volume,
                              .name = schedule.name,
                              .every = schedule.every,
                              .keep = schedule.keep};
  metadata::Batch batch;
  batch.put(schedule_key(record.uuid), encode(record));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed, fmt::format("schedule \"{}\" cannot be made: {}",
                                                         schedule.name, unwritten(error)));
  }
  schedules_[record.uuid] = record;
  co_return CreatedSchedule{.schedule = info_of(record), .created = true};
}

Task<Answer<CreatedSchedule>> RunningGroup::create_schedule(ScheduleInfo schedule) {
  return alone(lasting(create_schedule_now(std::move(schedule))));
}

// The snapshots that it has taken stay, and are nobody's care any more.
Task<Answer<void>> RunningGroup::delete_schedule_now(std::string volume, std::string name) {
  const auto found = find(volume);
  if (found == nullptr) co_return std::unexpected(no_such_volume(volume));
  const ScheduleRecord* const record = find_schedule(found->uuid(), name);
  if (record == nullptr) {
    co_return refuse(
        Refusal::Code::kNotFound,
        fmt::format("volume \"{}\" has no schedule \"{}\"; see its schedules", volume, name));
  }
  const Uuid uuid = record->uuid;
  metadata::Batch batch;
  batch.erase(schedule_key(uuid));
  const Error error = co_await store_.commit(std::move(batch));
  if (error != Error::kNone) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("schedule \"{}\" stays: {}", name, unwritten(error)));
  }
  schedules_.erase(uuid);
  co_return Answer<void>{};
}

Task<Answer<void>> RunningGroup::delete_schedule(std::string volume, std::string name) {
  return alone(lasting(delete_schedule_now(std::move(volume), std::move(name))));
}

// Running -----------------------------------------------------------------------------------------

Task<void> RunningGroup::run_schedules() {
  if (!schedule_gate_.enter()) co_return;
  const GateHold hold(schedule_gate_);
  Executor& home = Executor::current();
  while (!stopping_.is_set()) {
    (void)co_await stopping_.wait_until(home.now() + kLookAtSchedules);
    if (!stopping_.is_set()) co_await look_for_volumes();
    if (!stopping_.is_set()) co_await run_due();
    if (!stopping_.is_set()) co_await watch_reserves();
  }
}

// Of one that has not been looked at in this run. The newest may be of a time that is yet to come,
// by a clock that was put back since: then nobody knows its age.
Duration RunningGroup::first_wait(const ScheduleRecord& record) {
  const std::vector<Snapshot*> taken = taken_by(record);
  if (taken.empty()) return Duration::zero();
  const auto age = wall_time() - taken.back()->record.time;
  return age < age.zero() || age >= record.every ? Duration::zero() : record.every - age;
}

Task<void> RunningGroup::run_due() {
  if (import_announced_) co_return;  // The next start would forget what they take.
  std::vector<Uuid> due;
  const TimePoint now = Executor::current().now();
  const auto gone = [&](const auto& entry) { return !schedules_.contains(entry.first); };
  std::erase_if(next_turns_, gone);
  std::erase_if(overfull_schedules_, gone);
  for (const auto& [uuid, record] : schedules_) {
    if (!next_turns_.contains(uuid)) next_turns_[uuid] = now + first_wait(record);
    if (now >= next_turns_.at(uuid)) due.push_back(uuid);
  }
  for (const Uuid& uuid : due) {
    if (stopping_.is_set()) co_return;
    const auto done = co_await alone(run_schedule(uuid));
    const auto schedule = schedules_.find(uuid);
    if (done && schedule != schedules_.end()) next_turns_[uuid] = now + schedule->second.every;
    if (done) continue;
    next_turns_[uuid] = now + kTryAgainAfter;
    events_.add(
        {.severity = Severity::kWarning,
         .kind = "schedule",
         .text = fmt::format("a scheduled snapshot could not be taken: {}", done.error().message)});
  }
}

Task<Answer<void>> RunningGroup::run_schedule(Uuid uuid) {
  const auto found = schedules_.find(uuid);
  if (found == schedules_.end()) co_return Answer<void>{};
  const ScheduleRecord record = found->second;
  const auto volume = find(record.volume);
  if (volume == nullptr) co_return Answer<void>{};
  CreateSnapshotsRequest request{.volumes = {volume->name()}, .name = {}};
  const auto taken = co_await create_snapshots_now(std::move(request), record.name);
  if (!taken) co_return std::unexpected(taken.error());
  // Those that are online are in use, and go when they are not. Writes to a snapshot are
  // stored nowhere else, so only an operator deletes it.
  std::vector<Snapshot*> all = taken_by(record);
  std::size_t beyond = all.size() > record.keep ? all.size() - record.keep : 0;
  std::vector<Uuid> old;
  std::string stays;
  for (const Snapshot* const one : all) {
    if (beyond == 0) break;
    --beyond;
    const bool written = was_writable(*one);
    if (!one->record.online && !written) old.push_back(one->record.uuid);
    if (!written || !stays.empty()) continue;
    stays = fmt::format(
        "it keeps more than it should: snapshot {} has taken writes of its own; delete it if "
        "nobody needs them: sandbay snapshot delete {} {}",
        one->record.name, volume->name(), one->record.name);
  }
  // What stays is tried again at the next turn, and told once.
  for (const Uuid& one : old) {
    const auto dropped = co_await drop_snapshot(one);
    if (!dropped && stays.empty()) {
      stays = "it keeps more than it should: " + dropped.error().message;
    }
  }
  const bool news = std::exchange(overfull_schedules_[uuid], stays).empty();
  if (news && !stays.empty()) {
    events_.add(
        {.severity = Severity::kWarning,
         .kind = "schedule",
         .text = fmt::format("volume {}: schedule {}: {}", volume->name(), record.name, stays)});
  }
  co_return Answer<void>{};
}

}  // namespace sandbay::group
