// What a group tells about itself. Everything is copied out; no secret is.
#include <fmt/core.h>

#include <algorithm>

#include "group/place.h"
#include "group/running_group.h"
#include "group/version.h"
#include "runtime/buffer.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

AccessInfo to_info(const iscsi::AccessRecord& record, std::string id, bool declared) {
  return {.id = std::move(id),
          .initiator = record.initiator,
          .address = record.address,
          .chap_user = record.chap ? record.chap->user : "",
          .declared = declared};
}

Task<ExecutorInfo> look_at_executor(Executor* executor) {
  const BufferPool& buffers = executor->buffers();
  co_return ExecutorInfo{.index = executor->index(),
                         .buffer_limit_bytes = buffers.limit_bytes(),
                         .buffer_used_bytes = buffers.used_bytes(),
                         .buffer_reserved_bytes = buffers.reserved_bytes(),
                         .buffer_waiters = buffers.waiter_count(),
                         .turns = turn_figures(*executor)};
}

// Volumes or targets that are looked at in one turn: some 20 us each.
constexpr std::size_t kInASlice = 32;

template <class T>
Shared<T> nothing() {
  return std::make_shared<const T>();
}

std::uint32_t count_of(const std::map<std::string, std::uint32_t>& counts,
                       const std::string& name) {
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

}  // namespace

std::string_view describe(Health health) {
  switch (health) {
    case Health::kGood:
      return "good";
    case Health::kDegraded:
      return "degraded";
    case Health::kPredictedFailure:
      return "predicted failure";
    case Health::kFailed:
      return "failed";
    case Health::kMissing:
      return "missing";
  }
  return "unknown";
}

Refusal shutting_down() {
  return {.code = Refusal::Code::kUnavailable, .message = "the group is shutting down"};
}

Refusal no_such_volume(const std::string& name) {
  return {.code = Refusal::Code::kNotFound,
          .message = fmt::format("there is no volume \"{}\"; see the volume list", name)};
}

std::shared_ptr<Volume> RunningGroup::find(const std::string& name) const {
  const auto found = volumes_.find(name);
  return found == volumes_.end() ? nullptr : found->second;
}

bool RunningGroup::declared(const std::string& volume) const {
  return std::ranges::any_of(configuration_.volumes, [&](const VolumeConfiguration& configured) {
    return configured.specification.name == volume;
  });
}

Task<std::map<std::string, std::uint32_t>> RunningGroup::sessions_by_target() {
  std::map<std::string, std::uint32_t> counts;
  const auto sessions = co_await server_->sessions();
  for (const iscsi::SessionInfo& session : sessions) ++counts[session.target_name];
  co_return counts;
}

Task<VolumeInfo> RunningGroup::info_of(std::shared_ptr<Volume> volume, std::uint32_t sessions) {
  const Volume::State state = co_await volume->state();
  co_return info_of(*volume, state, sessions);
}

VolumeInfo RunningGroup::info_of(const Volume& volume, const Volume::State& state,
                                 std::uint32_t sessions) const {
  VolumeInfo info{.name = volume.name(),
                  .uuid = format_uuid(volume.uuid()),
                  .specification = volume.record().specification,
                  .path = volume.path().string(),
                  .health = std::string(describe(state.health)),
                  .reason = volume.reason(),
                  .declared = declared(volume.name()),
                  .executor = volume.home().index(),
                  .sessions = sessions,
                  .online = volume.record().online,
                  .counters = state.counters,
                  .sanitize = state.sanitize};
  add_pool_part(volume, info);
  VolumeSpecification& s = info.specification;
  if (s.serial.empty()) s.serial = serial_of(volume.uuid());
  s.naa = naa_of(volume.record());
  const IdentityConfiguration& identity = configuration_.identity;
  if (s.vendor.empty()) s.vendor = identity.vendor;
  if (s.product.empty()) s.product = identity.product;
  if (s.revision.empty()) s.revision = identity.revision;
  if (const auto place = places_.find(volume.uuid()); place != places_.end()) {
    info.uncleared_bytes = place->second->clearing.left_blocks() * s.block_bytes;
  }
  const auto& placement = volume.record().placement;
  if (placement && info.reason.empty()) info.reason = members_->refusal(placement->set);
  return info;
}

Task<std::vector<VolumeInfo>> RunningGroup::volumes_now() {
  const auto sessions = co_await sessions_by_target();
  std::vector<Uuid> uuids;  // The table may change while we wait below.
  uuids.reserve(volumes_.size());
  for (const auto& [name, volume] : volumes_) uuids.push_back(volume->uuid());
  std::vector<VolumeInfo> list;
  list.reserve(uuids.size());
  std::size_t looked = 0;
  for (const Uuid& uuid : uuids) {
    if (++looked % kInASlice == 0) co_await Executor::current().turn_end();
    const std::shared_ptr<Volume> volume = volumes_.find(uuid);
    if (volume == nullptr) continue;  // Deleted since.
    const std::uint32_t count = count_of(sessions, volume->record().specification.target);
    // Of thousands of volumes most are on pools, which are here.
    if (&volume->home() == &Executor::current()) {
      list.push_back(info_of(*volume, volume->state_at_home(), count));
      continue;
    }
    VolumeInfo info = co_await info_of(volume, count);
    list.push_back(std::move(info));
  }
  co_return list;
}

Task<Shared<std::vector<VolumeInfo>>> RunningGroup::list_volumes() {
  return looking(volume_lists_.ask(), nothing<std::vector<VolumeInfo>>());
}

Task<Answer<VolumeInfo>> RunningGroup::volume_now(std::string name) {
  const auto sessions = co_await sessions_by_target();
  const auto volume = find(name);
  if (volume == nullptr) co_return std::unexpected(no_such_volume(name));
  const std::uint32_t count = count_of(sessions, volume->record().specification.target);
  co_return co_await info_of(volume, count);
}

Task<Answer<VolumeInfo>> RunningGroup::show_volume(std::string name) {
  return looking(volume_now(std::move(name)));
}

std::vector<AccessInfo> RunningGroup::own_access_of(const Target& target) const {
  std::vector<AccessInfo> list;
  std::size_t index = 0;
  for (const AccessConfiguration& configured : target.configured.access) {
    list.push_back(to_info(configured.record, fmt::format("file-{}", ++index), true));
  }
  if (!has_own_access(target)) return list;
  for (const AddedAccess& added : target.record.access) {
    list.push_back(to_info(added.record, fmt::format("{}", added.id), false));
  }
  return list;
}

// Those of a snapshot's volume as "VOLUME/ID": they change there.
std::vector<AccessInfo> RunningGroup::access_of(const Target& target) const {
  std::vector<AccessInfo> list = own_access_of(target);
  const Target* const parent = parent_of(target);
  if (parent == nullptr) return list;
  const std::string volume = find(known(target.snapshot_of))->name();
  for (AccessInfo& info : own_access_of(*parent)) {
    info.id = fmt::format("{}/{}", volume, info.id);
    list.push_back(std::move(info));
  }
  return list;
}

TargetInfo RunningGroup::info_of(const Target& target, std::uint32_t sessions) const {
  const iscsi::TargetOptions options = options_of(target);
  TargetInfo info{.name = target.name,
                  .alias = options.alias,
                  .units = {},
                  .access = access_of(target),
                  .portal_groups = options.portal_groups,
                  .keys = options.keys,
                  .mutual_chap_user = options.mutual_chap ? options.mutual_chap->user : "",
                  .redirect = options.redirect ? options.redirect->address : "",
                  .redirect_permanent = options.redirect && options.redirect->permanent,
                  .queue_depth = options.queue_depth,
                  .maximum_sessions = options.maximum_sessions,
                  .exclusive = options.exclusive,
                  .declared = target.declared,
                  .sessions = sessions};
  for (const auto& [lun, volume] : target.units) info.units.push_back({lun, volume->name()});
  return info;
}

Task<std::vector<TargetInfo>> RunningGroup::targets_now() {
  const auto sessions = co_await sessions_by_target();
  std::vector<TargetInfo> list;
  for (auto at = targets_.begin(); at != targets_.end();) {
    const std::string name = at->first;
    list.push_back(info_of(*at->second, count_of(sessions, name)));
    if (list.size() % kInASlice == 0) co_await Executor::current().turn_end();
    at = targets_.upper_bound(name);
  }
  co_return list;
}

Task<Shared<std::vector<TargetInfo>>> RunningGroup::list_targets() {
  return looking(target_lists_.ask(), nothing<std::vector<TargetInfo>>());
}

Task<Answer<TargetInfo>> RunningGroup::target_now(std::string name) {
  const auto sessions = co_await sessions_by_target();
  const auto found = targets_.find(name);
  if (found == targets_.end()) {
    co_return std::unexpected(
        Refusal{.code = Refusal::Code::kNotFound,
                .message = fmt::format("there is no target \"{}\"; see the target list", name)});
  }
  co_return info_of(*found->second, count_of(sessions, name));
}

Task<Answer<TargetInfo>> RunningGroup::show_target(std::string name) {
  return looking(target_now(std::move(name)));
}

Task<Answer<std::vector<AccessInfo>>> RunningGroup::list_access(std::string volume) {
  if (gate_.closed()) co_return std::unexpected(shutting_down());
  const auto found = find(volume);
  if (found == nullptr) co_return std::unexpected(no_such_volume(volume));
  co_return access_of(*targets_.at(found->record().specification.target));
}

// A coroutine, so that the server is asked for on its executor.
Task<std::vector<iscsi::SessionInfo>> RunningGroup::list_sessions() {
  co_return co_await looking(server_->sessions(), {});
}

GroupInfo RunningGroup::group_info(std::uint32_t sessions) const {
  GroupInfo info{.name = identity_.name,
                 .uuid = identity_.uuid,
                 .version = std::string(version()),
                 .state = configuration_.state.string(),
                 .portals = portals(),
                 .reactors = static_cast<unsigned>(Executor::current().peers().size()),
                 .memory_limit_bytes = configuration_.memory_limit_bytes,
                 .volumes = static_cast<std::uint32_t>(volumes_.size()),
                 .targets = static_cast<std::uint32_t>(targets_.size()),
                 .sessions = sessions,
                 .uptime = Executor::current().now() - started_};
  for (const auto& [name, volume] : volumes_) {
    info.provisioned_bytes += volume->record().specification.size_bytes;
  }
  return info;
}

Task<GroupInfo> RunningGroup::show_group() {
  const auto sessions = co_await list_sessions();
  co_return group_info(static_cast<std::uint32_t>(sessions.size()));
}

Task<Measurements> RunningGroup::measure_now() {
  Measurements all;
  all.volumes = co_await volumes_now();
  all.targets = co_await targets_now();
  all.sessions = co_await server_->sessions();
  all.server = co_await server_->counters();
  for (Executor* const executor : Executor::current().peers()) {
    const ExecutorInfo info = co_await invoke_on(*executor, look_at_executor(executor));
    all.executors.push_back(info);
  }
  all.drives = members_->show_drives();
  all.sets = co_await sets_now();
  all.cache = co_await cache_now();
  all.faults = co_await faults_now();
  all.pools = co_await pools_now();
  all.events = events_.total();
  all.audited = audit_.total();
  all.group = group_info(static_cast<std::uint32_t>(all.sessions.size()));
  co_return all;
}

Task<Shared<Measurements>> RunningGroup::measure() {
  return looking(measurements_.ask(), nothing<Measurements>());
}

}  // namespace sandbay::group
