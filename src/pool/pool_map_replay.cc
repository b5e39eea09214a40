// PoolMap: groups from a log. They come from a medium, so each record is held against the map
// before it is applied; what it concerns is loaded first.
#include <cassert>
#include <utility>

#include <fmt/core.h>

#include "pool/pool_map.h"

namespace sandbay::pool {

struct PoolMap::Pins {
  std::vector<ChunkMaps::Pin> chunks;
  std::vector<KeptMaps::Pin> kept;
  std::vector<SlotMaps::Pin> slots;
};

Task<std::string> PoolMap::replay(RecordGroup group) {
  assert(group.sequence > checkpoint_.sequence);
  Pins pins;
  for (std::size_t i = 0; i < group.records.size(); ++i) {
    const MapRecord& record = group.records[i];
    const std::string wrong = co_await check(record, pins);
    if (!wrong.empty()) {
      co_return fmt::format("change {} of the map, record {}: {}", group.sequence, i, wrong);
    }
    checkpoint_.sequence = group.sequence;
    std::visit([this](const auto& value) { apply(value); }, record);
  }
  checkpoint_.sequence = group.sequence;
  co_return std::string();
}

std::string PoolMap::check_page(BranchId id, PageNumber page, std::uint32_t count) const {
  const Branch* const branch = find(id);
  if (branch == nullptr) return fmt::format("branch {} is none", id);
  // An expansion in several groups places its new pages first, behind the end; a sweep frees them
  // if the last group is missing.
  const std::uint32_t pages = branch->record.sweeping ? kPageEnd : page_count_of(*branch);
  if (page >= pages || count > pages - page) {
    return fmt::format("page {} behind the end of branch {}", page + count - 1, id);
  }
  return {};
}

std::string PoolMap::check_place(Place place, std::uint32_t count) const {
  const auto store = stores_.find(place.store);
  if (store == stores_.end()) return fmt::format("store {} is none", place.store);
  const std::uint32_t pages = store->second.pages.page_count();
  if (place.page >= pages || count > pages - place.page) {
    return fmt::format("page {} behind the end of store {}", place.page, place.store);
  }
  return {};
}

Task<std::string> PoolMap::check_record(PlacePages record, Pins* pins) {
  std::string wrong = check_page(record.branch, record.page, record.count);
  if (!wrong.empty()) co_return wrong;
  const Branch& branch = *find(record.branch);
  if (!record.place.none()) {
    wrong = check_place(record.place, record.count);
    if (!wrong.empty()) co_return wrong;
    const FreePages& pages = stores_.at(record.place.store).pages;
    for (std::uint32_t i = 0; i < record.count; ++i) {
      const Place place{.store = record.place.store, .page = record.place.page + i};
      if (pages.owned(place.page) && branch.pages.at(record.page + i).place() != place) {
        co_return fmt::format("page {} of store {} has an owner", place.page, place.store);
      }
    }
    co_return wrong;
  }
  for (std::uint32_t i = 0; i < record.count; ++i) {
    auto chunks = co_await chunk_map({.branch = record.branch, .page = record.page + i});
    if (!chunks.has_value()) co_return fmt::format("chunk map: {}", describe(chunks.error()));
    if ((*chunks)->data_count() > 0) co_return "a page with data loses its place";
    pins->chunks.push_back(std::move(*chunks));
  }
  co_return wrong;
}

Task<std::string> PoolMap::check_record(SetChunks record, Pins* pins) {
  if (find(record.branch) == nullptr) co_return "a branch that is none";
  // Zeros may lie behind the end, for snapshots that go further; but not just anywhere.
  if (record.page >= kPageEnd) co_return "a page behind the last";
  if (record.first + record.count > page_chunks()) co_return "chunks behind the page's end";
  const PageEntry entry = find(record.branch)->pages.at(record.page);
  if (record.state == ChunkState::kData && entry.place().none()) {
    co_return "data for a page without a place";
  }
  auto chunks = co_await chunk_map({.branch = record.branch, .page = record.page});
  if (!chunks.has_value()) co_return fmt::format("chunk map: {}", describe(chunks.error()));
  pins->chunks.push_back(std::move(*chunks));
  co_return std::string();
}

Task<std::string> PoolMap::check_slots(Place owner, Slot slot, std::uint32_t count, bool used,
                                       Pins* pins) {
  std::string wrong = check_place(slot.place, 1);
  if (!wrong.empty()) co_return wrong;
  if (slot.chunk + count > page_chunks()) co_return "slots behind the page's end";
  // A page becomes a reserve page when it is free, or given up by the very page it was.
  const bool owned = stores_.at(slot.place.store).pages.owned(slot.place.page);
  if (owned && !slots_.is_reserve(slot.place) && slot.place != owner) {
    co_return "slots in a page of somebody else";
  }
  auto map = co_await slot_map(slot.place);
  if (!map.has_value()) co_return fmt::format("slots: {}", describe(map.error()));
  for (std::uint32_t i = 0; i < count; ++i) {
    if ((*map)->test(slot.chunk + i) != used) co_return "a slot is used twice, or not at all";
  }
  pins->slots.push_back(std::move(*map));
  co_return wrong;
}

Task<std::string> PoolMap::check_record(KeepChunks record, Pins* pins) {
  // Snapshots may have pages that the branch has not any more.
  if (find(record.branch) == nullptr) co_return "a branch that is none";
  if (record.first + record.count > page_chunks()) co_return "chunks behind the page's end";
  const Branch& branch = *find(record.branch);
  if (record.generation > branch.record.last_generation) co_return "a snapshot of the future";
  auto kept = co_await kept_of(record.branch, record.page, record.generation);
  if (!kept.has_value()) co_return fmt::format("kept chunks: {}", describe(kept.error()));
  for (std::uint32_t i = 0; i < record.count; ++i) {
    if ((*kept)->find(record.generation, record.first + i) != nullptr) {
      co_return "a chunk is kept twice";
    }
  }
  pins->kept.push_back(std::move(*kept));
  if (record.state != ChunkState::kData) co_return std::string();
  const Place owner = branch.pages.at(record.page).place();
  co_return co_await check_slots(owner, record.slot, record.count, false, pins);
}

Task<std::string> PoolMap::check_record(ForgetChunk record, Pins* pins) {
  if (find(record.branch) == nullptr) co_return "a branch that is none";
  auto kept = co_await kept_of(record.branch, record.page, record.generation);
  if (!kept.has_value()) co_return fmt::format("kept chunks: {}", describe(kept.error()));
  const Kept* const found = (*kept)->find(record.generation, record.chunk);
  if (found == nullptr) co_return "a chunk that is not kept";
  const Kept version = *found;
  pins->kept.push_back(std::move(*kept));
  if (version.state != ChunkState::kData) co_return std::string();
  if (!slots_.is_reserve(version.slot.place)) co_return "a slot of no reserve page";
  co_return co_await check_slots({}, version.slot, 1, true, pins);
}

std::string PoolMap::check_plain(const BranchRecord& record) const {
  if (record.parent == 0) return {};
  return record.parent < record.id && find(record.parent) != nullptr ? "" : "a parent that is none";
}

std::string PoolMap::check_plain(const EraseBranch& record) const {
  const Branch* const branch = find(record.branch);
  if (branch == nullptr) return "a branch that is none";
  const bool idle = branch->pages.placed_count() == 0 && branch->record.kept.total() == 0 &&
                    branch->snapshots.empty() && branch->children.empty();
  return idle ? "" : "a branch that is in use";
}

std::string PoolMap::check_plain(const SnapshotRecord& record) const {
  return find(record.branch) != nullptr ? "" : "a branch that is none";
}

std::string PoolMap::check_plain(const EraseSnapshot& record) const {
  const Branch* const branch = find(record.branch);
  if (branch == nullptr) return "a branch that is none";
  return branch->snapshots.contains(record.generation) ? "" : "a snapshot that is none";
}

std::string PoolMap::check_plain(const StoreRecord& record) const {
  const auto store = stores_.find(record.index);
  if (store == stores_.end()) return {};
  return record.page_count >= store->second.pages.page_count() ? "" : "a store that shrinks";
}

std::string PoolMap::check_plain(const EraseStore& record) const {
  const auto store = stores_.find(record.index);
  if (store == stores_.end()) return "a store that is none";
  const FreePages& pages = store->second.pages;
  return pages.free_count() == pages.page_count() ? "" : "a store that is in use";
}

Task<std::string> PoolMap::check(const MapRecord& record, Pins& pins) {
  return std::visit(
      [this, &pins](const auto& value) -> Task<std::string> {
        if constexpr (requires { check_record(value, &pins); }) {
          return check_record(value, &pins);
        } else {
          return at_once(check_plain(value));
        }
      },
      record);
}

Task<std::string> PoolMap::at_once(std::string text) { co_return text; }

Task<Result<PoolMap::KeptMaps::Pin>> PoolMap::kept_of(BranchId branch, PageNumber page,
                                                      Generation from) {
  return kept({.branch = branch, .page = page}, from);
}

}  // namespace sandbay::pool
