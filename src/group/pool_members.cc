// Members that come to a pool and leave it.
//
// Leaving: the record notes it, each set is vacating from then on and is emptied by the pool's
// housekeeper; a set that is empty goes, and with the last one the member, in one commit. Who is
// added meanwhile is noted no more, and what is left of his sets takes pages again. Each step is
// tried again until it has succeeded, also by the next start.
//
// A map that has lost changes may count sets of members that have left: these leave once more.
#include <fmt/core.h>

#include <algorithm>

#include "group/pools.h"
#include "group/units.h"

namespace sandbay::group {

namespace {

std::string unwritten(Error error) {
  return fmt::format("the metadata cannot be written: {}", describe(error));
}

std::string words_of_set(const Members& members, const Uuid& set) {
  const std::string name = members.name_of(set);
  return name.empty() ? format_uuid(set) : name;
}

PoolRecord without(PoolRecord record, const std::string& member) {
  std::erase(record.members, member);
  std::erase(record.leaving, member);
  return record;
}

}  // namespace

bool Pools::is_leaving(const ServedPool& pool, const std::string& member) {
  return std::ranges::find(pool.record().leaving, member) != pool.record().leaving.end();
}

std::vector<pool::StoreIndex> Pools::stores_of(const ServedPool& pool, const Member& member) const {
  std::vector<pool::StoreIndex> list;
  if (pool.pool() == nullptr) return list;
  for (const auto& [index, store] : pool.pool()->map().stores()) {
    if (members_.with_set(store.record.uuid) == &member) list.push_back(index);
  }
  return list;
}

Task<Pools::Outcome> Pools::add_member(ServedPool* pool, std::string member) {
  co_await taking_.lock();
  PoolRecord record = pool->record();
  const bool stays = std::erase(record.leaving, member) != 0;
  if (std::ranges::find(record.members, member) == record.members.end()) {
    record.members.push_back(member);
  }
  const Error error = co_await pool->keep(std::move(record));
  const Member* const found = members_.find(member);
  // What kept its sets out may be over.
  if (found != nullptr) {
    for (const MemberSet& set : found->sets()) outside_.erase(set.uuid);
  }
  if (error == Error::kNone) co_await keep_members(pool);
  taking_.unlock();
  if (error != Error::kNone) co_return std::unexpected(unwritten(error));
  events_.add({.kind = "member",
               .text = fmt::format("member {} is {} pool {}", member,
                                   stays ? "to stay in" : "now of", pool->name())});
  co_await take_sets();
  co_return Outcome{};
}

Task<Pools::Outcome> Pools::remove_member(ServedPool* pool, std::string member) {
  co_await taking_.lock();
  PoolRecord record = pool->record();
  if (!is_leaving(*pool, member)) record.leaving.push_back(member);
  const Error error = co_await pool->keep(std::move(record));
  taking_.unlock();
  if (error != Error::kNone) co_return std::unexpected(unwritten(error));
  events_.add({.kind = "member",
               .text = fmt::format("member {} is to leave pool {}: its sets are emptied", member,
                                   pool->name())});
  co_await see_off_members();
  co_return Outcome{};
}

Task<void> Pools::see_off_members() {
  co_await taking_.lock();
  for (const auto& pool : pools_) {
    if (pool->pool() == nullptr) continue;
    const std::vector<std::string> leaving = pool->record().leaving;
    for (const std::string& member : leaving) co_await see_off_member(pool.get(), member);
    co_await keep_members(pool.get());
    co_await see_off_strangers(pool.get());
  }
  taking_.unlock();
}

// Sets of members that were to leave, and are to stay after all, take pages again. The record says
// so first; what comes between is made up for by the next round, or the next start.
Task<void> Pools::keep_members(ServedPool* pool) {
  std::vector<pool::StoreIndex> emptied;
  for (const auto& [index, store] : pool->pool()->map().stores()) {
    const Uuid& uuid = store.record.uuid;
    const Member* const member = members_.with_set(uuid);
    const bool stays =
        member != nullptr && !is_leaving(*pool, member->name()) && !is_strange(*pool, uuid);
    if (stays && store.record.state == pool::StoreState::kVacating) emptied.push_back(index);
  }
  for (const pool::StoreIndex store : emptied) {
    const Error error = co_await pool->set_state(store, pool::StoreState::kActive, {});
    if (error != Error::kNone) co_return;
  }
}

// As far as it can go now. What cannot be written is tried again by the next round; why, the pool
// tells.
Task<void> Pools::see_off_member(ServedPool* pool, std::string name) {
  const Member* const member = members_.find(name);
  if (member == nullptr) co_return;
  const std::vector<pool::StoreIndex> stores = stores_of(*pool, *member);
  std::size_t left = stores.size();
  for (const pool::StoreIndex store : stores) {
    const auto found = pool->pool()->map().stores().find(store);
    if (found->second.record.state != pool::StoreState::kVacating) {
      const Error error = co_await pool->set_state(store, pool::StoreState::kVacating, {});
      if (error != Error::kNone) co_return;
    }
    if (!pool->is_vacated(store)) continue;
    std::optional<PoolRecord> record;
    if (left == 1) record = without(pool->record(), name);
    const Error error = co_await pool->let_go(store, std::move(record));
    if (error == Error::kNone) --left;
  }
  if (left != 0) co_return;
  if (stores.empty()) {
    const Error error = co_await pool->keep(without(pool->record(), name));
    if (error != Error::kNone) co_return;
  }
  events_.add(
      {.kind = "member", .text = fmt::format("member {} has left pool {}", name, pool->name())});
}

// Sets of members that have left -----------------------------------------------------------------

// While a member of the record is not there, the set's may be that one under another name.
bool Pools::is_strange(const ServedPool& pool, const Uuid& set) const {
  const ServedPool* const owner = owner_of(set);
  if (owner != &pool) return owner == nullptr || owner->pool() != nullptr;
  const Member* const member = members_.with_set(set);
  if (member != nullptr && pool_of_member(member->name()) == &pool) return false;
  return std::ranges::all_of(pool.record().members, [this](const std::string& name) {
    return members_.find(name) != nullptr;
  });
}

Task<Error> Pools::settle_stores(ServedPool* pool, std::vector<std::string>* notes) {
  co_await taking_.lock();
  std::vector<pool::StoreIndex> active;
  for (const auto& [index, store] : pool->pool()->map().stores()) {
    const bool is_active = store.record.state == pool::StoreState::kActive;
    if (is_active && is_strange(*pool, store.record.uuid)) active.push_back(index);
  }
  Error error = Error::kNone;
  for (const pool::StoreIndex store : active) {
    if (error != Error::kNone) break;
    error = co_await pool->set_state(store, pool::StoreState::kVacating, {});
  }
  co_await see_off_strangers(pool);
  for (const auto& [index, store] : pool->pool()->map().stores()) {
    const Uuid& uuid = store.record.uuid;
    const std::string set = words_of_set(members_, uuid);
    const std::string why = refusal(*pool, uuid);
    const ServedPool* const owner = owner_of(uuid);
    if (owner != nullptr && owner->pool() == nullptr) {
      error = error == Error::kNone ? Error::kNotReady : error;
      notes->push_back(fmt::format("set {}: {}; open or discard that", set, why));
    } else if (is_strange(*pool, uuid) && !pool->is_vacated(index)) {
      notes->push_back(fmt::format("set {}: has left the pool, and the map has pages on it: {}",
                                   set,
                                   why.empty() ? "they move to other sets"
                                               : why + "; volumes that need them are not ready"));
    }
  }
  taking_.unlock();
  co_return error;
}

// Of those that are empty. What cannot be written is tried again by the next round.
Task<void> Pools::see_off_strangers(ServedPool* pool) {
  std::vector<std::pair<pool::StoreIndex, Uuid>> empty;
  for (const auto& [index, store] : pool->pool()->map().stores()) {
    const Uuid& uuid = store.record.uuid;
    if (pool->is_vacated(index) && is_strange(*pool, uuid)) empty.emplace_back(index, uuid);
  }
  for (const auto& [store, uuid] : empty) {
    const std::string set = words_of_set(members_, uuid);
    const Error error = co_await pool->let_go(store, std::nullopt);
    if (error != Error::kNone) co_return;
    events_.add({.kind = "pool",
                 .set = set,
                 .text = fmt::format("pool {}: set {} has left it", pool->name(), set)});
  }
}

}  // namespace sandbay::group
