// PoolMap: reading the checkpoint at the start, and single values later, through the caches.
//
// Everything that is read is checked: a value that cannot be right is refused by its key.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <ranges>
#include <span>
#include <utility>

#include <fmt/core.h>

#include "pool/pool_map.h"
#include "pool/sealed.h"
#include "runtime/byte_order.h"
#include "runtime/known.h"

namespace sandbay::pool {

namespace {

constexpr std::size_t kListEntries = 512;
constexpr std::string_view kBroken = "its checksum is wrong";

// The number of `byte_count` bytes at `offset` of what follows the prefix and the kind.
std::uint64_t number_at(std::string_view key, std::size_t offset, std::size_t byte_count) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < byte_count; ++i) {
    number = number << 8U | static_cast<unsigned char>(key[offset + i]);
  }
  return number;
}

std::string printable(std::string_view key) {
  std::string text;
  for (const char byte : key) {
    const auto value = static_cast<unsigned char>(byte);
    text += value > 0x20 && value < 0x7f ? std::string(1, byte) : fmt::format("\\{:02x}", value);
  }
  return text;
}

}  // namespace

Task<std::string> PoolMap::load() {
  const auto stored = co_await store_.get(key('c'));
  if (!stored.has_value()) {
    co_return fmt::format("the map cannot be read: {}", describe(stored.error()));
  }
  if (!stored->has_value()) {
    const auto others = co_await store_.list(options_.prefix, "", 1);
    if (!others.has_value()) {
      co_return fmt::format("the map cannot be read: {}", describe(others.error()));
    }
    if (!others->empty()) co_return "the map has no checkpoint, and is not empty";
    co_return std::string();
  }
  const auto value = unsealed(key('c'), known(*stored));
  if (!value.has_value()) {
    co_return fmt::format("the map's checkpoint: {}, or it is of another version", kBroken);
  }
  const auto checkpoint = unpack_checkpoint(*value);
  if (!checkpoint.has_value())
    co_return fmt::format("the map's checkpoint: {}", checkpoint.error());
  checkpoint_ = *checkpoint;
  checkpoint_.version = CheckpointRecord{}.version;
  slots_ = Slots(checkpoint_.page_chunks);
  struct Step {
    char kind;
    std::string (PoolMap::*take)(std::string_view key, std::string_view value);
  };
  const Step steps[] = {{'d', &PoolMap::take_store},    {'b', &PoolMap::take_branch},
                        {'s', &PoolMap::take_snapshot}, {'g', &PoolMap::take_kept_for},
                        {'m', &PoolMap::take_leaf},     {'r', &PoolMap::take_slot_map}};
  for (const Step& step : steps) {
    std::string wrong = co_await load_all(step.kind, step.take);
    if (!wrong.empty()) co_return wrong;
  }
  for (const auto& [id, branch] : branches_) {
    if (branch->kept_for.total() == branch->record.kept.total()) continue;
    co_return fmt::format("the map: branch {} does not keep what it counts", id);
  }
  co_return finish_load();
}

Task<std::string> PoolMap::load_all(char kind,
                                    std::string (PoolMap::*take)(std::string_view key,
                                                                 std::string_view value)) {
  const std::string prefix = key(kind);
  const std::size_t key_bytes = key_of(kind, 0).size() - prefix.size();
  std::string after;
  while (true) {
    const auto entries = co_await store_.list(prefix, after, kListEntries);
    if (!entries.has_value()) {
      co_return fmt::format("the map cannot be read: {}", describe(entries.error()));
    }
    for (const auto& [at, value] : *entries) {
      const std::string_view rest = std::string_view(at).substr(prefix.size());
      std::string wrong(rest.size() == key_bytes ? "" : "a key of another length");
      const auto whole = unsealed(at, value);
      if (!whole.has_value()) wrong = kBroken;
      if (wrong.empty()) wrong = (this->*take)(rest, known(whole));
      if (!wrong.empty()) co_return fmt::format("the map at {}: {}", printable(at), wrong);
    }
    if (entries->size() < kListEntries) co_return std::string();
    after = entries->back().first;
  }
}

std::string PoolMap::take_store(std::string_view at, std::string_view value) {
  auto record = unpack_record(value);
  if (!record.has_value()) return std::string(record.error());
  const auto* const store = std::get_if<StoreRecord>(&*record);
  if (store == nullptr || store->index != number_at(at, 0, 2)) return "another record";
  stores_[store->index] = {.record = *store, .pages = FreePages(store->page_count)};
  return {};
}

std::string PoolMap::take_branch(std::string_view at, std::string_view value) {
  auto record = unpack_record(value);
  if (!record.has_value()) return std::string(record.error());
  auto* const branch = std::get_if<BranchRecord>(&*record);
  if (branch == nullptr || branch->id != number_at(at, 0, 8)) return "another record";
  if (branch->id > checkpoint_.last_branch) return "a branch of the future";
  const BranchId id = branch->id;
  branches_[id] = std::make_unique<Branch>(std::move(*branch));
  return {};
}

std::string PoolMap::take_snapshot(std::string_view at, std::string_view value) {
  auto record = unpack_record(value);
  if (!record.has_value()) return std::string(record.error());
  auto* const snapshot = std::get_if<SnapshotRecord>(&*record);
  if (snapshot == nullptr || snapshot->branch != number_at(at, 0, 8) ||
      snapshot->generation != number_at(at, 8, 4)) {
    return "another record";
  }
  Branch* const branch = find(snapshot->branch);
  if (branch == nullptr) return "a snapshot of no branch";
  if (snapshot->generation > branch->record.last_generation) return "a snapshot of the future";
  const Generation generation = snapshot->generation;
  branch->snapshots[generation] = std::move(*snapshot);
  return {};
}

std::string PoolMap::take_kept_for(std::string_view at, std::string_view value) {
  Branch* const branch = find(number_at(at, 0, 8));
  if (branch == nullptr) return "slots of no branch";
  auto counts = unpack_generations(value);
  if (!counts.has_value()) return std::string(counts.error());
  branch->kept_for = std::move(*counts);
  return {};
}

std::string PoolMap::own_place(Place place) {
  const auto store = stores_.find(place.store);
  if (store == stores_.end()) return fmt::format("a page of store {}, which is none", place.store);
  if (place.page >= store->second.pages.page_count()) {
    return fmt::format("page {} behind the end of store {}", place.page, place.store);
  }
  if (!store->second.pages.own(place.page)) {
    return fmt::format("page {} of store {}, which has an owner", place.page, place.store);
  }
  return {};
}

std::string PoolMap::take_leaf(std::string_view at, std::string_view value) {
  Branch* const branch = find(number_at(at, 0, 8));
  if (branch == nullptr) return "pages of no branch";
  const auto leaf = static_cast<std::uint32_t>(number_at(at, 8, 4));
  if (leaf >= kPageEnd / PageMap::kLeafPages) return "pages behind the last";
  const auto unpacked = branch->pages.unpack_leaf(leaf, value);
  if (!unpacked.has_value()) return std::string(unpacked.error());
  const PageNumber first = leaf * PageMap::kLeafPages;
  for (std::uint32_t i = 0; i < PageMap::kLeafPages; ++i) {
    const PageEntry entry = branch->pages.at(first + i);
    if (entry.place().none()) continue;
    if (first + i >= page_count_of(*branch) && !branch->record.sweeping) {
      return "pages behind the branch's end";
    }
    std::string wrong = own_place(entry.place());
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string PoolMap::take_slot_map(std::string_view at, std::string_view value) {
  const Place place{.store = static_cast<StoreIndex>(number_at(at, 0, 2)),
                    .page = static_cast<PageNumber>(number_at(at, 2, 4))};
  SlotMap used(page_chunks());
  if (value.size() != 8 * used.words().size()) return "slots of a page of another size";
  std::memcpy(used.words().data(), value.data(), value.size());
  if (!used.proper()) return "slots behind the page's end";
  if (used.count() == 0) return "a reserve page without slots in use";
  std::string wrong = own_place(place);
  if (!wrong.empty()) return wrong;
  slots_.add_page(place, used.count());
  return {};
}

std::string PoolMap::finish_load() {
  for (const auto& [id, branch] : branches_) {
    const BranchRecord& record = branch->record;
    if (record.parent == 0) continue;
    // Older, so that nobody is his own ancestor.
    if (record.parent >= id || find(record.parent) == nullptr) {
      return fmt::format("the map: branch {} hangs on branch {}, which is none", id, record.parent);
    }
    link_child(record, true);
  }
  for (const auto& [id, branch] : branches_) branch->find_living();
  return {};
}

// Behind the end of the branch, of its snapshots and of all that hangs on it, nobody has seen
// anything yet.
void PoolMap::bound_old_branches() {
  std::map<BranchId, PageNumber> ends;
  // Children first.
  for (const auto& [id, branch] : branches_ | std::views::reverse) {
    PageNumber end = std::max(ends[id], page_count_of(*branch));
    for (const auto& [generation, snapshot] : branch->snapshots) {
      end = std::max(end, page_count(snapshot.byte_count));
    }
    BranchRecord& record = branch->record;
    PageNumber& parents_end = ends[record.parent];
    parents_end = std::max(parents_end, end);
    if (record.through_pages != kNoPage) continue;
    record.through_pages = end;
    note_changed('b', id);
  }
}

// Through the caches ------------------------------------------------------------------------------

PoolMap::ChunkMaps::Pin PoolMap::chunk_map_here(PageKey key) {
  ChunkMaps::Pin pin = chunk_maps_.find(key);
  if (pin) return pin;
  const PageState state = find(key.branch)->pages.at(key.page).state;
  if (state == PageState::kMixed) return {};
  return chunk_maps_.insert(key, ChunkMap(page_chunks(), static_cast<ChunkState>(state)));
}

Task<Result<PoolMap::ChunkMaps::Pin>> PoolMap::chunk_map(PageKey key) {
  ChunkMaps::Pin pin = chunk_map_here(key);
  if (pin) co_return std::move(pin);
  co_return co_await chunk_maps_.get(this, key, &PoolMap::load_chunk_map);
}

// One that must be there.
Task<Result<std::string>> PoolMap::load_value(std::string key) {
  auto stored = co_await store_.get(key);
  if (!stored.has_value()) co_return std::unexpected(stored.error());
  std::optional<std::string> value;
  if (stored->has_value()) value = unsealed(key, std::move(known(*stored)));
  if (!value.has_value()) co_return std::unexpected(damaged(key));
  co_return std::move(known(value));
}

Error PoolMap::damaged(std::string_view key) {
  if (on_damage) on_damage(printable(key));
  return Error::kDataCorrupt;
}

Task<Result<ChunkMap>> PoolMap::load_chunk_map(PageKey key) {
  const std::string at = key_of('v', key.branch, key.page);
  const auto value = co_await load_value(at);
  if (!value.has_value()) co_return std::unexpected(value.error());
  auto chunks = ChunkMap::unpack(*value, page_chunks());
  if (!chunks.has_value() || chunks->uniform()) co_return std::unexpected(damaged(at));
  co_return std::move(*chunks);
}

PoolMap::KeptMaps::Pin PoolMap::kept_here(PageKey key, Generation from) {
  KeptMaps::Pin pin = kept_maps_.find(key);
  if (pin && pin->from() > from) pin.release();
  return pin;
}

Task<Result<PoolMap::KeptMaps::Pin>> PoolMap::kept(PageKey key, Generation from) {
  Result<KeptMaps::Pin> pin = co_await kept_maps_.get(this, key, &PoolMap::load_kept);
  if (!pin.has_value()) co_return pin;
  while ((*pin)->from() > from) {
    const Generation end = (*pin)->from();
    auto older = co_await list_kept(key, from, end);
    if (!older.has_value()) co_return std::unexpected(older.error());
    // Somebody else may have been faster.
    if ((*pin)->from() != end) continue;
    (*pin)->extend(from, std::move(*older));
    kept_maps_.resized(key);
  }
  co_return pin;
}

Task<Result<KeptChunks>> PoolMap::load_kept(PageKey key) {
  const Branch* const branch = find(key.branch);
  KeptChunks kept(kLive);
  const Generation from = branch != nullptr ? branch->newest() : 0;
  auto leaves = co_await list_kept(key, from, kLive);
  if (!leaves.has_value()) co_return std::unexpected(leaves.error());
  kept.extend(from, std::move(*leaves));
  co_return kept;
}

Task<Result<std::vector<std::pair<Generation, KeptLeaf>>>> PoolMap::list_kept(PageKey key,
                                                                              Generation from,
                                                                              Generation end) {
  std::vector<std::pair<Generation, KeptLeaf>> leaves;
  const std::string prefix = key_of(key, 0).substr(0, key_of(key, 0).size() - 4);
  // Nothing is kept for generation 0.
  std::string after = key_of(key, from == 0 ? 0 : from - 1);
  while (true) {
    const auto entries = co_await store_.list(prefix, after, kListEntries);
    if (!entries.has_value()) co_return std::unexpected(entries.error());
    for (const auto& [at, value] : *entries) {
      if (at.size() != prefix.size() + 4) co_return std::unexpected(damaged(at));
      const auto generation = static_cast<Generation>(number_at(at, prefix.size(), 4));
      if (generation >= end) co_return leaves;
      const auto whole = unsealed(at, value);
      if (!whole.has_value()) co_return std::unexpected(damaged(at));
      auto leaf = KeptLeaf::unpack(*whole, page_chunks());
      if (!leaf.has_value()) co_return std::unexpected(damaged(at));
      leaves.emplace_back(generation, std::move(*leaf));
    }
    if (entries->size() < kListEntries) co_return leaves;
    after = entries->back().first;
  }
}

Task<Result<PoolMap::SlotMaps::Pin>> PoolMap::slot_map(Place place) {
  SlotMaps::Pin pin = slot_maps_.find(place);
  if (pin) co_return std::move(pin);
  if (!slots_.is_reserve(place)) co_return slot_maps_.insert(place, SlotMap(page_chunks()));
  co_return co_await slot_maps_.get(this, place, &PoolMap::load_slot_map);
}

Task<Result<SlotMap>> PoolMap::load_slot_map(Place place) {
  const std::string at = key_of('r', place.store, place.page);
  const auto value = co_await load_value(at);
  if (!value.has_value()) co_return std::unexpected(value.error());
  SlotMap used(page_chunks());
  if (value->size() != 8 * used.words().size()) co_return std::unexpected(damaged(at));
  std::memcpy(used.words().data(), value->data(), value->size());
  if (!used.proper() || used.count() != slots_.used(place)) {
    co_return std::unexpected(damaged(at));
  }
  co_return used;
}

}  // namespace sandbay::pool
