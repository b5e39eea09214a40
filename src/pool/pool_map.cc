// PoolMap: what records do to it, and what of it goes into a checkpoint.
#include "pool/pool_map.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <utility>

#include "pool/sealed.h"
#include "runtime/byte_order.h"

namespace sandbay::pool {

namespace {

void append_number(std::string& key, std::uint64_t number, std::size_t byte_count) {
  std::array<std::byte, 8> bytes{};
  put_big_endian(std::span(bytes), 0, number);
  key.append(reinterpret_cast<const char*>(bytes.data()) + bytes.size() - byte_count, byte_count);
}

}  // namespace

void Branch::find_living() {
  ++living_changes;
  living.clear();
  for (const auto& [generation, snapshot] : snapshots) living.push_back(generation);
  for (const auto& [generation, child] : children) living.push_back(generation);
  std::ranges::sort(living);
  const auto [first, last] = std::ranges::unique(living);
  living.erase(first, last);
}

void Branch::note_living(Generation generation) {
  ++living_changes;
  const auto child = std::ranges::lower_bound(children, std::pair(generation, BranchId{0}));
  const bool lives =
      snapshots.contains(generation) || (child != children.end() && child->first == generation);
  const auto at = std::ranges::lower_bound(living, generation);
  const bool lived = at != living.end() && *at == generation;
  if (lives && !lived) living.insert(at, generation);
  if (lived && !lives) living.erase(at);
}

std::uint64_t Branch::slots_of(Generation generation) const noexcept {
  const auto next = std::ranges::upper_bound(living, generation);
  return kept_for.between(generation, next == living.end() ? kLive : *next - 1);
}

PoolMap::PoolMap(metadata::Store& store, MapOptions options)
    : store_(store),
      options_(std::move(options)),
      checkpoint_{.page_chunks = options_.page_chunks},
      slots_(options_.page_chunks),
      chunk_maps_(options_.chunk_map_bytes),
      kept_maps_(options_.kept_bytes),
      slot_maps_(options_.slot_map_bytes) {
  assert(page_chunks() >= kLeastPageChunks && page_chunks() <= kMostPageChunks);
}

// Keys ------------------------------------------------------------------------------------------

std::string PoolMap::group_key(std::uint64_t sequence) const { return key_of('l', sequence); }

std::string PoolMap::key_of(char kind, std::uint64_t first, std::uint32_t second) const {
  std::string text = key(kind);
  append_number(text, first, kind == 'd' || kind == 'r' ? 2 : 8);
  if (kind == 's' || kind == 'm' || kind == 'v' || kind == 'r') append_number(text, second, 4);
  return text;
}

std::string PoolMap::key_of(PageKey page, Generation generation) const {
  std::string text = key('k');
  append_number(text, page.branch, 8);
  append_number(text, page.page, 4);
  append_number(text, generation, 4);
  return text;
}

// Claims ----------------------------------------------------------------------------------------

std::optional<FreePages::Run> PoolMap::claim_pages(StoreIndex store, std::uint32_t most) {
  const auto found = stores_.find(store);
  return found == stores_.end() ? std::nullopt : found->second.pages.take(most);
}

void PoolMap::unclaim_page(Place place) {
  if (doubt_) {
    doubtful_pages_.push_back(place);
  } else {
    free_page(place);
  }
}

std::optional<Place> PoolMap::claim_stale(StoreIndex store) {
  const auto found = stores_.find(store);
  if (found == stores_.end()) return std::nullopt;
  const std::optional<PageNumber> page = found->second.pages.take_stale();
  if (!page.has_value()) return std::nullopt;
  return Place{.store = store, .page = *page};
}

void PoolMap::unclaim_clean(Place place) {
  stores_.at(place.store).pages.give_back(place.page, false);
}

Result<Slots::Run> PoolMap::claim_slots(std::uint32_t most) {
  const std::optional<Slots::Run> run = slots_.claim(most);
  if (!run.has_value()) return std::unexpected(Error::kNotFound);
  return *run;
}

void PoolMap::open_slot_page(Place place) {
  const SlotMaps::Pin pin = slot_maps_.find(place);
  assert(pin);
  slots_.open(place, *pin);
}

void PoolMap::unclaim_slots(Slots::Run run) {
  if (doubt_) {
    doubtful_slots_.push_back(run);
    return;
  }
  for (std::uint32_t i = 0; i < run.count; ++i) {
    Slot slot = run.first;
    slot.chunk = static_cast<std::uint16_t>(slot.chunk + i);
    if (slots_.unclaim(slot)) free_page(slot.place);
  }
}

void PoolMap::end_doubt() {
  doubt_ = false;
  for (const Place place : std::exchange(doubtful_pages_, {})) unclaim_page(place);
  for (const Slots::Run run : std::exchange(doubtful_slots_, {})) unclaim_slots(run);
}

// Records ---------------------------------------------------------------------------------------

void PoolMap::apply(const RecordGroup& group) {
  assert(group.sequence > checkpoint_.sequence);
  checkpoint_.sequence = group.sequence;
  for (const MapRecord& record : group.records) {
    std::visit([this](const auto& value) { apply(value); }, record);
  }
}

void PoolMap::note_changed(char kind, std::uint64_t first, std::uint32_t second) {
  changed_[{.kind = kind, .first = first, .second = second}] = sequence();
}

void PoolMap::set_entry(Branch& branch, PageNumber page, const PageEntry& entry) {
  branch.pages.set(page, entry);
  note_changed('m', branch.id(), page / PageMap::kLeafPages);
}

BranchId PoolMap::takes_from(const MapRecord& record) const {
  if (const auto* const places = std::get_if<PlacePages>(&record)) {
    const Branch* const branch = find(places->branch);
    if (branch == nullptr) return 0;
    const PageNumber end = places->page + places->count;
    for (PageNumber page = branch->pages.next(places->page, end); page < end;
         page = branch->pages.next(page + 1, end)) {
      if (!branch->pages.at(page).place().none()) return places->branch;
    }
  }
  if (const auto* const chunks = std::get_if<SetChunks>(&record)) {
    return chunks->state != ChunkState::kData ? chunks->branch : 0;
  }
  // A snapshot, and what hangs on the live end as it is, show what would be overwritten.
  if (const auto* const snapshot = std::get_if<SnapshotRecord>(&record)) return snapshot->branch;
  if (const auto* const next = std::get_if<BranchRecord>(&record)) {
    const Branch* const branch = find(next->id);
    const Branch* const parent = find(next->parent);
    if (branch == nullptr && parent != nullptr) {
      return next->parent_generation > parent->record.last_generation ? next->parent : 0;
    }
    const bool takes =
        branch != nullptr && (next->dead || next->byte_count < branch->record.byte_count);
    return takes ? next->id : 0;
  }
  return 0;
}

bool PoolMap::takes_place(const MapRecord& record) const {
  return std::holds_alternative<ForgetChunk>(record) ||
         std::holds_alternative<EraseStore>(record) ||
         (std::holds_alternative<PlacePages>(record) && takes_from(record) != 0);
}

void PoolMap::free_page(Place place) { stores_.at(place.store).pages.give_back(place.page); }

void PoolMap::apply(const PlacePages& record) {
  Branch& branch = *branches_.at(record.branch);
  for (std::uint32_t i = 0; i < record.count; ++i) {
    const PageNumber page = record.page + i;
    const bool new_leaf = i == 0 || page % PageMap::kLeafPages == 0;
    PageEntry entry = branch.pages.at(page);
    const Place old = entry.place();
    Place place = record.place;
    if (!place.none()) {
      place.page += i;
      stores_.at(place.store).pages.own(place.page);
    }
    entry.set_place(place);
    branch.pages.set(page, entry);
    if (new_leaf) note_changed('m', branch.id(), page / PageMap::kLeafPages);
    if (watcher_ != nullptr) watcher_->placed({branch.id(), page}, old, place);
    if (!old.none() && old != place && !slots_.is_reserve(old)) free_page(old);
    if (branch.move != nullptr && branch.move->page == page) branch.move->cancelled = true;
  }
}

void PoolMap::apply(const SetChunks& record) {
  Branch& branch = *branches_.at(record.branch);
  const PageKey key{.branch = record.branch, .page = record.page};
  ChunkMap& chunks = chunk_maps_.change(key, sequence());
  chunks.set(record.first, record.count, record.state);
  // Whoever gave it data: it is copied again.
  PageMove* const move = branch.move;
  if (move != nullptr && move->page == record.page && record.state == ChunkState::kData) {
    move->dirty.assign(record.first, record.count, true);
  }
  const std::optional<ChunkState> uniform = chunks.uniform();
  PageEntry entry = branch.pages.at(record.page);
  entry.state = uniform ? static_cast<PageState>(*uniform) : PageState::kMixed;
  set_entry(branch, record.page, entry);
}

void PoolMap::use_slot(Slot slot) {
  slots_.use(slot);
  stores_.at(slot.place.store).pages.own(slot.place.page);
  SlotMap& used = slot_maps_.change(slot.place, sequence());
  assert(!used.test(slot.chunk));
  used.set(slot.chunk);
}

void PoolMap::free_slot(Slot slot) {
  SlotMap& used = slot_maps_.change(slot.place, sequence());
  assert(used.test(slot.chunk));
  used.reset(slot.chunk);
  if (slots_.give_back(slot)) free_page(slot.place);
}

void PoolMap::apply(const KeepChunks& record) {
  const PageKey key{.branch = record.branch, .page = record.page};
  KeptChunks& kept = kept_maps_.change(key, sequence());
  for (std::uint16_t i = 0; i < record.count; ++i) {
    Kept one{.chunk = static_cast<std::uint16_t>(record.first + i), .state = record.state};
    if (record.state == ChunkState::kData) {
      one.slot = record.slot;
      one.slot.chunk = static_cast<std::uint16_t>(one.slot.chunk + i);
      use_slot(one.slot);
    }
    kept.keep(record.generation, one, sequence());
    if (watcher_ != nullptr) watcher_->kept(key, record.generation, one, true);
  }
  kept_maps_.resized(key);
  if (record.state != ChunkState::kData) return;
  Branch& branch = *branches_.at(record.branch);
  branch.record.kept.add(record.slot.place.store, record.count);
  branch.kept_for.add(record.generation, record.count);
  note_changed('b', record.branch);
  note_changed('g', record.branch);
}

void PoolMap::apply(const ForgetChunk& record) {
  const PageKey key{.branch = record.branch, .page = record.page};
  const Kept kept =
      kept_maps_.change(key, sequence()).forget(record.generation, record.chunk, sequence());
  if (watcher_ != nullptr) watcher_->kept(key, record.generation, kept, false);
  if (kept.state != ChunkState::kData) return;
  free_slot(kept.slot);
  Branch& branch = *branches_.at(record.branch);
  branch.record.kept.remove(kept.slot.place.store);
  branch.kept_for.remove(record.generation);
  note_changed('b', record.branch);
  note_changed('g', record.branch);
}

void PoolMap::link_child(const BranchRecord& child, bool there) {
  if (child.parent == 0) return;
  Branch& parent = *branches_.at(child.parent);
  const std::pair<Generation, BranchId> link{child.parent_generation, child.id};
  if (there) {
    parent.children.insert(std::ranges::lower_bound(parent.children, link), link);
  } else {
    const std::size_t erased = std::erase(parent.children, link);
    assert(erased == 1);
  }
  parent.note_living(child.parent_generation);
}

void PoolMap::apply(const BranchRecord& record) {
  checkpoint_.last_branch = std::max(checkpoint_.last_branch, record.id);
  note_changed('b', record.id);
  std::unique_ptr<Branch>& branch = branches_[record.id];
  if (branch == nullptr) {
    branch = std::make_unique<Branch>(record);
    link_child(record, true);
    return;
  }
  BranchRecord next = record;
  // These two are the map's own.
  next.kept = branch->record.kept;
  next.last_generation = std::max(next.last_generation, branch->record.last_generation);
  if (next.dead != branch->record.dead) ++branch->living_changes;
  const bool stays = next.parent == branch->record.parent &&
                     next.parent_generation == branch->record.parent_generation;
  if (!stays) link_child(branch->record, false);
  branch->record = std::move(next);
  if (!stays) link_child(branch->record, true);
}

void PoolMap::apply(const EraseBranch& record) {
  const auto found = branches_.find(record.branch);
  assert(found != branches_.end());
  const Branch& branch = *found->second;
  assert(branch.pages.placed_count() == 0 && branch.record.kept.total() == 0);
  assert(branch.snapshots.empty() && branch.children.empty() && branch.users == 0);
  link_child(branch.record, false);
  branches_.erase(found);
  erased_[record.branch] = sequence();
}

void PoolMap::apply(const SnapshotRecord& record) {
  Branch& branch = *branches_.at(record.branch);
  branch.snapshots[record.generation] = record;
  branch.record.last_generation = std::max(branch.record.last_generation, record.generation);
  branch.note_living(record.generation);
  note_changed('s', record.branch, record.generation);
  note_changed('b', record.branch);
}

void PoolMap::apply(const EraseSnapshot& record) {
  Branch& branch = *branches_.at(record.branch);
  branch.snapshots.erase(record.generation);
  branch.note_living(record.generation);
  note_changed('s', record.branch, record.generation);
}

void PoolMap::apply(const StoreRecord& record) {
  StoreSpace& space = stores_[record.index];
  space.record = record;
  space.pages.grow(record.page_count);
  note_changed('d', record.index);
}

void PoolMap::apply(const EraseStore& record) {
  stores_.erase(record.index);
  note_changed('d', record.index);
}

// The checkpoint ----------------------------------------------------------------------------------

metadata::Batch PoolMap::changes() {
  metadata::Batch batch;
  for (const auto& [branch, sequence] : erased_) {
    for (const char kind : {'b', 's', 'g', 'm', 'v', 'k'}) {
      std::string prefix = key(kind);
      append_number(prefix, branch, 8);
      batch.erase_prefix(std::move(prefix));
    }
  }
  const auto put = [&batch](std::string at, std::string value) {
    if (value.empty()) {
      batch.erase(std::move(at));
    } else {
      std::string stored = sealed(at, std::move(value));
      batch.put(std::move(at), std::move(stored));
    }
  };
  for (const auto& [changed, sequence] : changed_) {
    std::string value;
    if (changed.kind == 'd') {
      const auto store = stores_.find(static_cast<StoreIndex>(changed.first));
      if (store != stores_.end()) value = pack(MapRecord(store->second.record));
    } else {
      const Branch* const branch = find(changed.first);
      if (branch == nullptr) continue;
      if (changed.kind == 'b') value = pack(MapRecord(branch->record));
      if (changed.kind == 'g') value = pack(branch->kept_for);
      if (changed.kind == 'm') value = branch->pages.pack_leaf(changed.second);
      if (changed.kind == 's') {
        const auto snapshot = branch->snapshots.find(changed.second);
        if (snapshot != branch->snapshots.end()) value = pack(MapRecord(snapshot->second));
      }
    }
    put(key_of(changed.kind, changed.first, changed.second), std::move(value));
  }
  chunk_maps_.for_changed([&](const PageKey& page, const ChunkMap& chunks) {
    if (find(page.branch) == nullptr) return;
    put(key_of('v', page.branch, page.page), chunks.uniform() ? std::string() : chunks.pack());
  });
  kept_maps_.for_changed([&](const PageKey& page, const KeptChunks& kept) {
    if (find(page.branch) == nullptr) return;
    for (const KeptChunks::Generations& entry : kept.generations()) {
      if (entry.changed != 0) put(key_of(page, entry.generation), entry.leaf.pack());
    }
  });
  slot_maps_.for_changed([&](const Place& place, const SlotMap& used) {
    std::string value;
    if (used.count() > 0) {
      value.assign(reinterpret_cast<const char*>(used.words().data()), 8 * used.words().size());
    }
    put(key_of('r', place.store, place.page), std::move(value));
  });
  put(key('c'), pack(checkpoint_));
  return batch;
}

void PoolMap::changes_stored(std::uint64_t sequence) {
  std::erase_if(erased_, [sequence](const auto& entry) { return entry.second <= sequence; });
  std::erase_if(changed_, [sequence](const auto& entry) { return entry.second <= sequence; });
  kept_maps_.for_changed([sequence](const PageKey&, KeptChunks& kept) { kept.stored(sequence); });
  chunk_maps_.stored(sequence);
  kept_maps_.stored(sequence);
  slot_maps_.stored(sequence);
}

std::size_t PoolMap::changed_count() const noexcept {
  return changed_.size() + chunk_maps_.changed_count() + kept_maps_.changed_count() +
         slot_maps_.changed_count();
}

std::size_t PoolMap::byte_count() const noexcept {
  std::size_t bytes = chunk_maps_.bytes() + kept_maps_.bytes() + slot_maps_.bytes();
  for (const auto& [id, branch] : branches_) bytes += sizeof(Branch) + branch->pages.byte_count();
  for (const auto& [index, space] : stores_) bytes += space.pages.page_count() / 8;
  return bytes;
}

}  // namespace sandbay::pool
