// Targets as the iSCSI server and the metadata see them: putting volumes behind them, and who may
// use them. Access changes count for logins to come; sessions stay.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "group/running_group.h"
#include "model/model_clock.h"

namespace sandbay::group {

Target& RunningGroup::target_for(const std::string& name) {
  auto& slot = targets_[name];
  if (slot != nullptr) return *slot;
  slot = std::make_unique<Target>();
  slot->name = name;
  slot->record.name = name;
  slot->router = std::make_unique<scsi::TaskRouter>(Executor::current().peers());
  const auto configured =
      std::ranges::find(configuration_.targets, name, &TargetConfiguration::name);
  if (configured != configuration_.targets.end()) {
    slot->configured = *configured;
    slot->declared = true;
  }
  const auto stored = std::ranges::find(stored_targets_, name, &TargetRecord::name);
  if (stored != stored_targets_.end()) {
    slot->record = std::move(*stored);
    stored_targets_.erase(stored);
  }
  return *slot;
}

iscsi::TargetOptions RunningGroup::options_of(const Target& target) const {
  iscsi::TargetOptions options = target.configured.options;
  options.name = target.name;
  options.device = target.router.get();
  const model::ModelClock clock(configuration_.hardware.time_scale);
  options.pace = configuration_.hardware.pace;
  options.pace.turnaround = clock.real(options.pace.turnaround);
  options.pace.per_connection = clock.real(options.pace.per_connection);
  const auto& keys = configuration_.identity.keys;
  options.keys.insert(keys.begin(), keys.end());  // Its own stay.
  for (const AccessConfiguration& access : target.configured.access) {
    options.access.push_back(access.record);
  }
  if (has_own_access(target)) {
    for (const AddedAccess& added : target.record.access) options.access.push_back(added.record);
  }
  const Target* const parent = parent_of(target);
  if (parent != nullptr) {
    for (iscsi::AccessRecord& access : options_of(*parent).access) {
      options.access.push_back(std::move(access));
    }
  }
  return options;
}

// A snapshot's target has records of its own only for a volume that shares it.
bool RunningGroup::has_own_access(const Target& target) const {
  return !target.snapshot_of || stays(target.name);
}

const Target* RunningGroup::parent_of(const Target& target) const {
  const auto volume = target.snapshot_of ? find(*target.snapshot_of) : nullptr;
  if (volume == nullptr) return nullptr;
  const auto found = targets_.find(volume->record().specification.target);
  return found == targets_.end() || found->second.get() == &target ? nullptr : found->second.get();
}

// Targets whose access follows from this one's: itself, and those of its volumes' snapshots.
std::vector<const Target*> RunningGroup::followers_of(const Target& target) const {
  std::vector<const Target*> followers{&target};
  for (const auto& [lun, volume] : target.units) {
    for (const Snapshot* const one : snapshots_.of(volume->uuid())) {
      const auto found = targets_.find(one->record.target);
      if (!one->record.online || found == targets_.end()) continue;
      if (parent_of(*found->second) == &target) followers.push_back(found->second.get());
    }
  }
  return followers;
}

Task<RunningGroup::Outcome> RunningGroup::serve(std::shared_ptr<Volume> volume) {
  const VolumeSpecification s = volume->record().specification;
  const bool fresh = !targets_.contains(s.target) || targets_.at(s.target)->units.empty();
  Target& target = target_for(s.target);
  const std::uint32_t lun = s.lun.value_or(0);  // Its record always has one.
  target.units.emplace(lun, volume);
  if (!volume->has_unit()) co_return Outcome{};
  const Error routed = co_await target.router->add(lun, &volume->unit());
  if (routed != Error::kNone) {
    co_return std::unexpected(fmt::format("LUN {}: {}", lun, describe(routed)));
  }
  if (!fresh || target.declared) co_return Outcome{};
  std::string message;
  const Error added = co_await server_->add_target(options_of(target), &message);
  if (added == Error::kNone) co_return Outcome{};
  co_return std::unexpected(
      fmt::format("target {}: {}", s.target, message.empty() ? describe(added) : message));
}

std::optional<Refusal> refusal_of_size(const TargetRecord& record) {
  if (encode(record).size() <= metadata::kLongestValue) return std::nullopt;
  return Refusal{.code = Refusal::Code::kConflict,
                 .message = fmt::format("target {}: {} access records with such secrets are more "
                                        "than can be kept; use wildcards, or shorter secrets of "
                                        "plain characters",
                                        record.name, record.access.size())};
}

Task<Answer<void>> RunningGroup::change_access(Target* target, TargetRecord record) {
  if (auto refusal = refusal_of_size(record)) co_return std::unexpected(std::move(*refusal));
  metadata::Batch batch;
  batch.put(target_key(target->name), encode(record));
  const Error stored = co_await store_.commit(std::move(batch));
  if (stored != Error::kNone) {
    co_return std::unexpected(Refusal{
        .code = Refusal::Code::kFailed,
        .message = fmt::format("target {} stays as it was: {}", target->name, unwritten(stored))});
  }
  target->record = std::move(record);
  for (const Target* const each : followers_of(*target)) {
    std::string message;
    const Error told = co_await server_->update_target(options_of(*each), &message);
    if (told == Error::kNone) continue;
    co_return std::unexpected(
        Refusal{.code = Refusal::Code::kFailed,
                .message = fmt::format("target {}: the change counts after a restart only: {}",
                                       each->name, message.empty() ? describe(told) : message)});
  }
  co_return Answer<void>{};
}

namespace {

bool same(const iscsi::AccessRecord& a, const iscsi::AccessRecord& b) {
  if (a.chap.has_value() != b.chap.has_value()) return false;
  const bool chap = !a.chap || (a.chap->user == b.chap->user && a.chap->secret == b.chap->secret);
  return chap && a.initiator == b.initiator && a.address == b.address;
}

}  // namespace

// A record that is there already is the answer, so that a request can be repeated.
Task<Answer<CreatedAccess>> RunningGroup::add_access_now(std::string volume,
                                                         iscsi::AccessRecord record) {
  const auto found = find(volume);
  if (found == nullptr) co_return std::unexpected(no_such_volume(volume));
  if (const auto error = check_access(record)) {
    co_return std::unexpected(Refusal{.code = Refusal::Code::kInvalid,
                                      .message = fmt::format("volume \"{}\": {}", volume, *error)});
  }
  Target& target = *targets_.at(found->record().specification.target);
  const std::vector<AccessInfo> own = own_access_of(target);
  std::vector<iscsi::AccessRecord> known = options_of(target).access;
  known.resize(own.size());  // Those that follow are another volume's.
  const auto twin = std::ranges::find_if(
      known, [&](const iscsi::AccessRecord& other) { return same(other, record); });
  if (twin != known.end()) {
    const auto at = static_cast<std::size_t>(twin - known.begin());
    co_return CreatedAccess{.access = own.at(at), .created = false};
  }
  if (target.record.access.size() >= kMostAccessRecords) {
    co_return std::unexpected(
        Refusal{.code = Refusal::Code::kConflict,
                .message = fmt::format("target {} has {} access records already; use wildcards, or "
                                       "remove some",
                                       target.name, kMostAccessRecords)});
  }
  TargetRecord changed = target.record;
  const std::uint64_t id = changed.next_id++;
  changed.access.push_back({.id = id, .record = std::move(record)});
  const auto outcome = co_await change_access(&target, std::move(changed));
  if (!outcome) co_return std::unexpected(outcome.error());
  co_return CreatedAccess{.access = own_access_of(target).back(), .created = true};
}

Task<Answer<CreatedAccess>> RunningGroup::add_access(std::string volume,
                                                     iscsi::AccessRecord record) {
  return alone(lasting(add_access_now(std::move(volume), std::move(record))));
}

Task<Answer<void>> RunningGroup::remove_access_now(std::string volume, std::string id) {
  const auto found = find(volume);
  if (found == nullptr) co_return std::unexpected(no_such_volume(volume));
  Target& target = *targets_.at(found->record().specification.target);
  const auto known = own_access_of(target);
  const auto info = std::ranges::find(known, id, &AccessInfo::id);
  if (info == known.end()) {
    co_return std::unexpected(
        Refusal{.code = Refusal::Code::kNotFound,
                .message = fmt::format("volume \"{}\" has no access record {}; see its "
                                       "access list",
                                       volume, id)});
  }
  if (info->declared) {
    co_return std::unexpected(Refusal{
        .code = Refusal::Code::kConflict,
        .message =
            fmt::format("access record {} of volume \"{}\" is declared in {}; remove it there", id,
                        volume, configuration_.file)});
  }
  TargetRecord changed = target.record;
  std::erase_if(changed.access,
                [&](const AddedAccess& added) { return fmt::format("{}", added.id) == id; });
  co_return co_await change_access(&target, std::move(changed));
}

Task<Answer<void>> RunningGroup::remove_access(std::string volume, std::string id) {
  return alone(lasting(remove_access_now(std::move(volume), std::move(id))));
}

namespace {

Answer<void> answer_about(std::uint16_t tsih, std::optional<std::uint16_t> cid, Error error) {
  if (error == Error::kNone) return {};
  if (error == Error::kClosed) return std::unexpected(shutting_down());
  if (error != Error::kNotFound) {
    return std::unexpected(
        Refusal{.code = Refusal::Code::kFailed,
                .message = fmt::format("session {} cannot be ended: {}", tsih, describe(error))});
  }
  return std::unexpected(Refusal{
      .code = Refusal::Code::kNotFound,
      .message = cid ? fmt::format("there is no session {} with a connection {}; see the session "
                                   "list",
                                   tsih, *cid)
                     : fmt::format("there is no session {}; see the session list", tsih)});
}

}  // namespace

Task<Answer<void>> RunningGroup::drop_session(std::uint16_t tsih, iscsi::SessionDrop drop) {
  if (gate_.closed() || !dropping_.enter()) co_return std::unexpected(shutting_down());
  const GateHold hold(dropping_);
  const Error error = co_await server_->drop_session(tsih, drop);
  co_return answer_about(tsih, drop.cid, error);
}

Task<Answer<void>> RunningGroup::request_negotiation(std::uint16_t tsih, Duration within) {
  if (gate_.closed() || !dropping_.enter()) co_return std::unexpected(shutting_down());
  const GateHold hold(dropping_);
  const Error error = co_await server_->request_negotiation(tsih, within);
  co_return answer_about(tsih, std::nullopt, error);
}

}  // namespace sandbay::group
