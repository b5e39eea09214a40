// Which members there are, and who has a set.
#include "group/members.h"

#include <algorithm>
#include <limits>
#include <set>

#include "group/local_member.h"
#include "group/member_configuration.h"
#include "metadata/scoped_store.h"

namespace sandbay::group {

// LocalMember -------------------------------------------------------------------------------------

std::vector<MemberSet> LocalMember::sets() const {
  std::vector<MemberSet> list;
  for (SetInfo& set : hardware_->show_sets()) {
    MemberSet one{.uuid = set.raid.uuid,
                  .name = std::move(set.raid.name),
                  .level = set.raid.level,
                  .byte_count = set.raid.byte_count,
                  .health = set.raid.health};
    if (one.uuid == Uuid{}) one.reason = set.raid.refusal;
    if (one.uuid != Uuid{}) one.reason = refusal(one.uuid);
    list.push_back(std::move(one));
  }
  return list;
}

std::string LocalMember::refusal(const Uuid& set) const {
  if (hardware_->serving(set) != nullptr) return {};
  std::string why = hardware_->refusal(set);
  return why.empty() ? "it is not there" : why;
}

void LocalMember::note_use(const Uuid& set, metadata::Batch& batch) {
  const Door* const door = hardware_->door(set);
  if (door != nullptr) hardware_->raise_used_end(set, door->geometry().block_count, batch);
}

// Members -----------------------------------------------------------------------------------------

// What a local member beside the first is built from.
struct Members::Local {
  Local(metadata::Store& store, const Configuration& group, const MemberConfiguration& member)
      : configuration(configuration_of(group, member)),
        scope(store, "member/" + member.name + "/") {}

  Configuration configuration;
  metadata::ScopedStore scope;
};

Members::Members(Executor& home, const Configuration& configuration, metadata::Store& store,
                 EventLog& events, Uuid group) {
  auto first = std::make_unique<Hardware>(home, configuration, store, events, group);
  local_.push_back(first.get());
  members_.push_back(std::make_unique<LocalMember>(configuration.member, std::move(first)));
  for (const MemberConfiguration& member : configuration.members) {
    parts_.push_back(std::make_unique<Local>(store, configuration, member));
    Local& part = *parts_.back();
    auto hardware = std::make_unique<Hardware>(
        home, part.configuration, part.scope, events, group,
        Hardware::Part{
            .member = member.name, .key_prefix = part.scope.prefix(), .first = local_.front()});
    local_.push_back(hardware.get());
    members_.push_back(std::make_unique<LocalMember>(member.name, std::move(hardware)));
  }
  const Uuid lead = make_uuid(home.random());
  std::set<std::string> claimed;
  for (const RemoteMemberConfiguration& member : configuration.remotes) {
    claimed.insert(LeadLedger::key_of(member.target, member.name));
  }
  for (const RemoteMemberConfiguration& member : configuration.remotes) {
    auto remote = std::make_unique<RemoteMember>(home, member, store, events, group, lead, claimed);
    remote_.push_back(remote.get());
    members_.push_back(std::move(remote));
  }
}

Members::~Members() = default;

Task<Started> Members::start(ControllerCache::VolumePlaces places) {
  know_volumes(places);
  for (Hardware* const each : local_) {
    const Started opened = co_await each->open();
    if (!opened) co_return opened;
  }
  const Started ruled = local_.front()->add_rules();
  if (!ruled) co_return ruled;
  for (Hardware* const each : local_) {
    const Hardware::Outcome assembled = co_await each->assemble();
    if (!assembled) co_return std::unexpected(assembled.error());
  }
  for (RemoteMember* const each : remote_) {
    const std::string wrong = co_await each->start(first().faults());
    if (!wrong.empty()) co_return std::unexpected(wrong);
  }
  const TimePoint deadline = Executor::current().now() + RemoteMember::kStartPatience;
  for (RemoteMember* const each : remote_) co_await each->arrive(deadline);
  co_return Started{};
}

// The first last: others use what is its.
Task<void> Members::stop(TimePoint deadline, bool quiet) {
  if (first().faults() != nullptr) first().faults()->clear_all();  // What hangs by a rule, ends.
  for (RemoteMember* const each : remote_) co_await each->stop();
  for (std::size_t i = local_.size(); i-- > 0;) {
    co_await local_[i]->stop(deadline, quiet);
    lost_writes_ = lost_writes_ || local_[i]->lost_writes();
    const bool left = local_[i]->left_behind();
    if (left && i > 0) (void)parts_[i - 1].release();
  }
}

Task<void> Members::settle(TimePoint deadline) {
  for (Hardware* const each : local_) co_await each->settle(deadline);
}

void Members::know_volumes(const ControllerCache::VolumePlaces& places) {
  for (Hardware* const each : local_) each->know_volumes(places);
}

void Members::on_sets_changed(std::function<void()> callback) {
  for (const auto& member : members_) member->on_sets_changed(callback);
}

Member* Members::find(const std::string& name) const {
  const auto found =
      std::ranges::find_if(members_, [&](const auto& member) { return member->name() == name; });
  return found == members_.end() ? nullptr : found->get();
}

// A set whose drives were moved is known where it was, and serves where it is.
Member* Members::with_set(const Uuid& set) const {
  auto found = std::ranges::find_if(
      members_, [&](const auto& each) { return each->serving(set) != nullptr; });
  if (found != members_.end()) return found->get();
  found =
      std::ranges::find_if(members_, [&](const auto& each) { return !each->name_of(set).empty(); });
  return found == members_.end() ? nullptr : found->get();
}

Hardware* Members::hardware_of_set(const Uuid& set) const {
  const Member* const member = with_set(set);
  if (member != nullptr && member->hardware() != nullptr) return member->hardware();
  const auto found = std::ranges::find_if(local_, [&](const Hardware* each) {
    return each->door(set) != nullptr || each->cache().knows(set);
  });
  return found == local_.end() ? nullptr : *found;
}

Hardware* Members::hardware_of_set(const std::string& set) const {
  const auto found =
      std::ranges::find_if(local_, [&](const Hardware* each) { return each->has_set(set); });
  return found == local_.end() ? nullptr : *found;
}

Hardware* Members::hardware_of_drive(const std::string& drive) const {
  const auto found =
      std::ranges::find_if(local_, [&](const Hardware* each) { return each->has_drive(drive); });
  return found == local_.end() ? nullptr : *found;
}

// Sets --------------------------------------------------------------------------------------------

std::optional<Uuid> Members::find_set(const std::string& name) const {
  for (const auto& member : members_) {
    if (const auto uuid = member->find_set(name)) return uuid;
  }
  return std::nullopt;
}

std::string Members::name_of(const Uuid& set) const {
  const Member* const member = with_set(set);
  return member == nullptr ? std::string() : member->name_of(set);
}

BlockDevice* Members::serving(const Uuid& set) const {
  const Member* const member = with_set(set);
  return member == nullptr ? nullptr : member->serving(set);
}

std::string Members::refusal(const Uuid& set) const {
  const Member* const member = with_set(set);
  return member == nullptr ? "no member has it" : member->refusal(set);
}

Door* Members::door(const Uuid& set) const {
  const Hardware* const hardware = hardware_of_set(set);
  return hardware == nullptr ? nullptr : hardware->door(set);
}

void Members::list_claims(std::vector<Claim>& claims) const {
  for (const Hardware* const each : local_) each->list_claims(claims);
}

bool Members::has_cache() const { return !caches().empty(); }

std::vector<cache::Cache*> Members::caches() const {
  std::vector<cache::Cache*> list;
  for (Hardware* const each : local_) {
    if (each->cache().cache() != nullptr) list.push_back(each->cache().cache());
  }
  return list;
}

cache::StreamBudget* Members::streams() const {
  for (Hardware* const each : local_) {
    if (each->cache().streams() != nullptr) return each->cache().streams();
  }
  return nullptr;
}

std::uint64_t Members::used_end(const Uuid& set) const {
  const Hardware* const hardware = hardware_of_set(set);
  return hardware == nullptr ? std::numeric_limits<std::uint64_t>::max() : hardware->used_end(set);
}

void Members::raise_used_end(const Uuid& set, std::uint64_t end, metadata::Batch& batch) {
  Hardware* const hardware = hardware_of_set(set);
  if (hardware != nullptr) hardware->raise_used_end(set, end, batch);
}

std::vector<DriveInfo> Members::show_drives() const {
  std::vector<DriveInfo> list;
  for (const auto& member : members_) {
    if (member->hardware() == nullptr) continue;
    for (DriveInfo& drive : member->hardware()->show_drives()) {
      drive.member = member->name();
      list.push_back(std::move(drive));
    }
  }
  return list;
}

std::vector<SetInfo> Members::show_sets() const {
  std::vector<SetInfo> list;
  for (const auto& member : members_) {
    if (member->hardware() == nullptr) continue;
    for (SetInfo& set : member->hardware()->show_sets()) {
      set.member = member->name();
      list.push_back(std::move(set));
    }
  }
  return list;
}

}  // namespace sandbay::group
