// Members as management sees them: listing them, and having them come to a pool and leave it.
#include <fmt/format.h>

#include <algorithm>

#include "group/running_group.h"
#include "group/units.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

Refusal no_such_member(const std::string& name) {
  return {.code = Refusal::Code::kNotFound,
          .message = fmt::format("there is no member \"{}\"; write a section [[member]] for it and "
                                 "restart the daemon, or see the list of members",
                                 name)};
}

// Pages that are used on these stores, and free elsewhere.
struct Room {
  std::uint64_t used = 0;
  std::uint64_t free = 0;
};

Room room_of(const ServedPool& pool, const std::vector<pool::StoreIndex>& leaving) {
  Room room;
  for (const auto& [index, store] : pool.pool()->map().stores()) {
    const pool::PoolSpace space = pool.pool()->space(index);
    const bool goes = std::ranges::find(leaving, index) != leaving.end();
    if (goes) room.used += space.pages - space.free_pages;
    if (!goes && pool.pool()->may_allocate_on(index)) room.free += space.free_pages;
  }
  return room;
}

}  // namespace

std::string health_of(const Member& member) {
  const std::vector<MemberSet> sets = member.sets();
  const auto away = [](const MemberSet& set) { return !set.reason.empty(); };
  const bool all_away = !sets.empty() && std::ranges::all_of(sets, away);
  if (!member.absence().empty() || all_away) return "missing";
  const bool worse = std::ranges::any_of(
      sets, [&](const MemberSet& set) { return away(set) || set.health != Health::kGood; });
  return worse ? "degraded" : "good";
}

void RunningGroup::add_leaving(const ServedPool& pool, const Member& member,
                               MemberInfo& info) const {
  if (pool.housekeeper() == nullptr) return;
  const std::vector<pool::StoreIndex> stores = pools_->stores_of(pool, member);
  const std::uint64_t page_bytes = pool.record().page_bytes;
  for (const pool::StoreIndex store : stores) {
    const pool::PoolSpace space = pool.pool()->space(store);
    info.left_bytes += (space.pages - space.free_pages) * page_bytes;
  }
  for (const pool::HousekeepingView& view : pool.housekeeper()->views()) {
    if (view.kind != pool::HousekeepingView::Kind::kVacate) continue;
    if (std::ranges::find(stores, view.store) == stores.end()) continue;
    info.moved_bytes += view.done_pages * page_bytes;
    if (view.time_left) info.time_left = info.time_left.value_or(Duration{}) + *view.time_left;
  }
}

MemberInfo RunningGroup::info_of(const Member& member) const {
  MemberInfo info{.name = member.name(),
                  .place = member.place(),
                  .state = "present",
                  .health = health_of(member),
                  .reason = member.absence()};
  if (const Hardware* const hardware = member.hardware()) {
    info.drives = static_cast<std::uint32_t>(hardware->show_drives().size());
    info.modelled_busy = hardware->modelled_busy();
  }
  const ServedPool* const pool = pools_->pool_of_member(member.name());
  if (pool != nullptr) {
    const bool leaving = Pools::is_leaving(*pool, member.name());
    info.pool = pool->name();
    info.state = leaving ? "leaving" : "member";
    if (leaving) add_leaving(*pool, member, info);
  }
  for (const MemberSet& set : member.sets()) {
    MemberSetInfo one{.set = set.name,
                      .level = std::string(describe(set.level)),
                      .size_bytes = set.byte_count,
                      .state = "unused",
                      .reason = set.reason};
    const auto store = pool == nullptr ? std::nullopt : pool->store_of(set.uuid);
    if (store) {
      const pool::PoolSpace space = pool->pool()->space(*store);
      const auto& record = pool->pool()->map().stores().at(*store).record;
      one.size_bytes = space.pages * pool->record().page_bytes;
      one.free_bytes = space.free_pages * pool->record().page_bytes;
      one.state = record.state == pool::StoreState::kVacating ? "vacating" : "active";
    }
    info.size_bytes += one.size_bytes;
    info.free_bytes += one.free_bytes;
    info.sets.push_back(std::move(one));
  }
  info.portals = portals_of(member.name());
  return info;
}

Task<std::vector<MemberInfo>> RunningGroup::members_now() {
  std::vector<MemberInfo> list;
  for (const auto& member : members_->all()) list.push_back(info_of(*member));
  co_return list;
}

Task<std::vector<MemberInfo>> RunningGroup::list_members() { return looking(members_now(), {}); }

Task<Answer<MemberInfo>> RunningGroup::member_now(std::string name) {
  const Member* const member = members_->find(name);
  if (member == nullptr) co_return std::unexpected(no_such_member(name));
  co_return info_of(*member);
}

Task<Answer<MemberInfo>> RunningGroup::show_member(std::string name) {
  return looking(member_now(std::move(name)));
}

// Coming ------------------------------------------------------------------------------------------

Task<Answer<MemberInfo>> RunningGroup::add_member_now(std::string name, std::string pool_name) {
  if (configuration_.lead) co_return std::unexpected(role_refusal());
  const Member* const member = members_->find(name);
  if (member == nullptr) co_return std::unexpected(no_such_member(name));
  if (pool_name.empty() && pools_->all().size() == 1) pool_name = pools_->all().front()->name();
  if (pool_name.empty()) {
    co_return refuse(Refusal::Code::kInvalid,
                     fmt::format("member \"{}\": there are {}; name the pool that it is to come to",
                                 name, pools_->all().empty() ? "no pools" : "several pools"));
  }
  ServedPool* const pool = pools_->find(pool_name);
  if (pool == nullptr) co_return std::unexpected(no_such_pool(pool_name));
  const ServedPool* const there = pools_->pool_of_member(name);
  if (there != nullptr && there != pool) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("member \"{}\" is of pool \"{}\"; a member belongs to one pool: "
                                 "remove it there first",
                                 name, there->name()));
  }
  if (pool->pool() == nullptr) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("member \"{}\": pool \"{}\" is not open: {}", name, pool_name,
                                 pool->failure()));
  }
  if (there == pool && !Pools::is_leaving(*pool, name)) co_return info_of(*member);
  const auto added = co_await pools_->add_member(pool, name);
  if (!added) {
    co_return refuse(Refusal::Code::kFailed, fmt::format("member \"{}\" does not come to pool "
                                                         "\"{}\": {}",
                                                         name, pool_name, added.error()));
  }
  co_return info_of(*member);
}

Task<Answer<MemberInfo>> RunningGroup::add_member(std::string name, std::string pool) {
  return alone(lasting(add_member_now(std::move(name), std::move(pool))));
}

// Leaving -----------------------------------------------------------------------------------------

std::optional<Refusal> RunningGroup::refusal_to_leave(const ServedPool& pool,
                                                      const Member& member) const {
  const auto about = [&](const std::string& what) {
    return Refusal{.code = Refusal::Code::kConflict,
                   .message = fmt::format("member \"{}\": {}", member.name(), what)};
  };
  const std::vector<pool::StoreIndex> stores = pools_->stores_of(pool, member);
  std::vector<std::string> fixed;
  for (const auto& [id, branch] : pool.pool()->map().branches()) {
    const pool::BranchRecord& record = branch->record;
    if (record.dead || std::ranges::find(stores, record.fixed_store) == stores.end()) continue;
    const auto uuid = parse_uuid(record.label);
    const auto volume = uuid ? find(*uuid) : nullptr;
    if (volume != nullptr) fixed.push_back(volume->name());
  }
  if (!fixed.empty()) {
    return about(fmt::format("volume{} {} {} to stay on a set of it; delete or copy {} first",
                             fixed.size() == 1 ? "" : "s", fmt::join(fixed, ", "),
                             fixed.size() == 1 ? "is" : "are", fixed.size() == 1 ? "it" : "them"));
  }
  for (const MemberSet& set : member.sets()) {
    const auto store = pool.store_of(set.uuid);
    if (!store || set.reason.empty()) continue;
    const pool::PoolSpace space = pool.pool()->space(*store);
    if (space.free_pages == space.pages) continue;
    return about(
        fmt::format("set {}, which is to be emptied, does not serve: {}", set.name, set.reason));
  }
  const Room room = room_of(pool, stores);
  if (room.used <= room.free) return std::nullopt;
  const std::uint64_t page_bytes = pool.record().page_bytes;
  return about(
      fmt::format("{} would have to move, the rest of pool \"{}\" has {} free; delete "
                  "something or add a member",
                  format_size_rounded(room.used * page_bytes), pool.name(),
                  format_size_rounded(room.free * page_bytes)));
}

Task<Answer<MemberInfo>> RunningGroup::remove_member_now(std::string name) {
  const Member* const member = members_->find(name);
  if (member == nullptr) co_return std::unexpected(no_such_member(name));
  ServedPool* const pool = pools_->pool_of_member(name);
  if (pool == nullptr) co_return info_of(*member);  // It is gone already.
  if (pool->pool() == nullptr) {
    co_return refuse(Refusal::Code::kFailed,
                     fmt::format("member \"{}\": pool \"{}\" is not open: {}", name, pool->name(),
                                 pool->failure()));
  }
  if (Pools::is_leaving(*pool, name)) co_return info_of(*member);
  if (auto refusal = refusal_to_leave(*pool, *member)) co_return std::unexpected(*refusal);
  const auto removed = co_await pools_->remove_member(pool, name);
  if (!removed) {
    co_return refuse(Refusal::Code::kFailed, fmt::format("member \"{}\" stays in pool \"{}\": {}",
                                                         name, pool->name(), removed.error()));
  }
  send_away_from(name);
  co_return info_of(*member);
}

Task<Answer<MemberInfo>> RunningGroup::remove_member(std::string name) {
  return alone(lasting(remove_member_now(std::move(name))));
}

}  // namespace sandbay::group
