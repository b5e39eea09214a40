// StoreStamps. The value of the metadata (key `e`): the newest stamp, then for each store its UUID
// (16) and the two stamps that are accepted. A stamp is its era (8) and its token (8),
// little-endian. On a store it is sealed (sealed.h) under a key of the pool and the store, so that
// the stamp of another pool or store does not count here.
#include "pool/store_stamps.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "pool/sealed.h"
#include "runtime/byte_order.h"

namespace sandbay::pool {

namespace {

constexpr std::size_t kStampText = 16;
constexpr std::size_t kAcceptedText = sizeof(Uuid) + 2 * kStampText;

std::string text_of(const Stamp& stamp) {
  std::array<std::byte, kStampText> bytes{};
  put_little_endian(std::span(bytes), 0, stamp.era);
  put_little_endian(std::span(bytes), 8, stamp.token);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Stamp stamp_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {.era = little_endian<std::uint64_t>(bytes, 0),
          .token = little_endian<std::uint64_t>(bytes, 8)};
}

Request slot_request(const BlockDevice& device, std::uint64_t at, BufferList data) {
  const std::uint32_t block = device.geometry().block_bytes;
  return {.extent = {.first = at / block, .block_count = data.byte_count() / block},
          .data = std::move(data)};
}

}  // namespace

StoreStamps::StoreStamps(Executor& home, PoolMap& map, BufferPool& buffers, Owner owner)
    : home_(home), map_(map), owner_(std::move(owner)), buffers_(buffers) {}

std::string StoreStamps::pack(const Names& names) {
  std::string text = text_of(names.newest);
  for (const auto& [store, accepted] : names.accepted) {
    text.append(reinterpret_cast<const char*>(store.data()), store.size());
    text += text_of(accepted.stored) + text_of(accepted.next);
  }
  return text;
}

bool StoreStamps::unpack(std::string_view text) {
  if (text.size() < kStampText || (text.size() - kStampText) % kAcceptedText != 0) return false;
  names_.newest = stamp_of(text);
  for (text.remove_prefix(kStampText); !text.empty(); text.remove_prefix(kAcceptedText)) {
    Uuid store{};
    std::memcpy(store.data(), text.data(), store.size());
    names_.accepted[store] = {.stored = stamp_of(text.substr(sizeof(Uuid))),
                              .next = stamp_of(text.substr(sizeof(Uuid) + kStampText))};
  }
  return true;
}

Task<std::string> StoreStamps::load() {
  const std::string key = map_.key('e');
  auto stored = co_await map_.store().get(key);
  if (!stored.has_value()) {
    co_return "the map's stamps cannot be read: " + std::string(describe(stored.error()));
  }
  std::optional<std::string>& value = *stored;
  if (!value.has_value()) co_return std::string();
  const auto whole = unsealed(key, std::move(*value));
  if (!whole.has_value() || !unpack(*whole)) {
    co_return "the map's stamps are damaged: their checksum is wrong";
  }
  co_return std::string();
}

Stamp StoreStamps::draw(std::uint64_t era) const {
  return {.era = std::max(names_.newest.era, era) + 1, .token = home_.random().next()};
}

metadata::Batch StoreStamps::batch_of(const Names& names) const {
  std::string key = map_.key('e');
  std::string value = sealed(key, pack(names));
  metadata::Batch batch;
  batch.put(std::move(key), std::move(value));
  return batch;
}

// Memory never names what the metadata may not: a stamp that goes to a store survives a restart.
Task<Error> StoreStamps::keep(Names names) {
  const Error error = co_await map_.store().commit(batch_of(names));
  if (error == Error::kNone) names_ = std::move(names);
  co_return error;
}

// Visits ------------------------------------------------------------------------------------------

bool StoreStamps::begin(const Visit& visit) {
  if (busy_.contains(visit.record.uuid) || !visits_.enter()) return false;
  busy_.insert(visit.record.uuid);
  return true;
}

void StoreStamps::end(Visit* visit, Error error) {
  visit->error = error;
  visit->ended.set();
  busy_.erase(visit->record.uuid);
  idle_.notify_all();
  visits_.leave();
}

// Settling ----------------------------------------------------------------------------------------

Task<Error> StoreStamps::settle() {
  co_await turn_.lock();
  Error error = Error::kNone;
  while (!settled_ && error == Error::kNone) error = co_await stamp_all();
  turn_.unlock();
  co_return error;
}

Task<Error> StoreStamps::stamp_all() {
  const std::uint64_t begun = eras_begun_;
  Names names = names_;
  names.newest = draw(0);
  std::vector<std::shared_ptr<Visit>> visits;
  for (const auto& [index, store] : map_.stores()) {
    BlockDevice* const device = owner_.device(index);
    if (device == nullptr || !has_room(store.record, *device)) continue;
    names.accepted[store.record.uuid].next = names.newest;
    visits.push_back(std::make_shared<Visit>(store.record, device));
  }
  const Stamp drawn = names.newest;
  // Also for stores that are missing: they get it when they come back.
  if (!names.accepted.empty()) {
    const Error error = co_await keep(std::move(names));
    if (error != Error::kNone) co_return error;
  }
  for (const auto& visit : visits) {
    if (begin(*visit)) {
      spawn(stamp(visit, drawn));
    } else {
      visit->ended.set();
    }
  }
  const TimePoint deadline = home_.now() + owner_.patience;
  for (const auto& visit : visits) (void)co_await visit->ended.wait_until(deadline);
  for (const auto& visit : visits) {
    const StoreRecord& record = visit->record;
    if (visit->ended.is_set() && visit->error == Error::kNone) {
      names_.accepted[record.uuid].stored = drawn;
    } else if (owner_.device(record.index) == visit->device) {
      owner_.drop(record.index);
    }
  }
  settled_ = begun == eras_begun_;
  co_return Error::kNone;
}

Task<void> StoreStamps::stamp(std::shared_ptr<Visit> visit, Stamp drawn) {
  const auto found = co_await read(visit->record, visit->device);
  Error error = found.has_value() ? Error::kNone : found.error();
  if (error == Error::kNone && found->has_data) {
    error = co_await write(visit->record, visit->device, found->free_slot, drawn);
  }
  end(visit.get(), error);
}

// Stores that come --------------------------------------------------------------------------------

Task<Error> StoreStamps::admit(StoreRecord record, BlockDevice* device, OlderMap older,
                               std::function<void()> place) {
  const auto visit = std::make_shared<Visit>(record, device);
  const TimePoint deadline = home_.now() + owner_.patience;
  bool in_time = true;
  while (in_time && busy_.contains(record.uuid)) in_time = co_await idle_.wait_until(deadline);
  if (!begin(*visit)) co_return in_time ? Error::kClosed : Error::kTimedOut;
  visit->older = older;
  visit->place = std::move(place);
  spawn(compare(visit));
  (void)co_await visit->ended.wait_until(deadline);
  if (visit->ended.is_set()) co_return visit->error;
  visit->place = nullptr;
  co_return Error::kTimedOut;
}

Task<void> StoreStamps::compare(std::shared_ptr<Visit> visit) {
  const StoreRecord& record = visit->record;
  const auto known = map_.stores().find(record.index);
  visit->fresh = known == map_.stores().end() || known->second.record.uuid != record.uuid;
  const StoreRecord old = visit->fresh ? record : known->second.record;
  Error error = Error::kNone;
  visit->found.has_data = has_room(old, *visit->device);
  if (visit->found.has_data) {
    const auto found = co_await read(old, visit->device);
    error = found.has_value() ? Error::kNone : found.error();
    if (found.has_value()) visit->found = *found;
  }
  bool grows = old.page_count != record.page_count && has_room(record, *visit->device);
  while (error == Error::kNone) {
    co_await turn_.lock();
    const auto wanted = co_await choose(visit.get());
    const bool bears = wanted.has_value() && !grows && bears_stamp(visit->found, *wanted);
    error = wanted.has_value() ? Error::kNone : wanted.error();
    // Otherwise nobody waits any more.
    if (error == Error::kNone && visit->place == nullptr) error = Error::kTimedOut;
    if (error == Error::kNone && bears) visit->place();
    turn_.unlock();
    if (error != Error::kNone || bears) break;
    error = co_await write(old, visit->device, visit->found.free_slot, *wanted);
    if (error == Error::kNone && grows) error = co_await write(record, visit->device, 0, *wanted);
    grows = false;
    visit->found = {.newest = *wanted};
  }
  end(visit.get(), error);
}

bool StoreStamps::bears_stamp(const Found& found, const Stamp& wanted) {
  if (!found.has_data || wanted.era == 0) return true;
  return found.newest == wanted && !found.unreadable;
}

// The stamp that the store is to bear now. The metadata name it, and the one that it bears.
Task<Result<Stamp>> StoreStamps::choose(Visit* visit) {
  if (!visit->found.has_data) co_return Stamp{};
  if (visit->fresh) co_return co_await welcome(visit);
  co_return co_await renew(visit);
}

// A new store. If it left this pool before, it may have a stamp of then.
Task<Result<Stamp>> StoreStamps::welcome(Visit* visit) {
  if (visit->found.newest.era > names_.newest.era) co_return std::unexpected(Error::kMiscompare);
  Names names = names_;
  if (names.newest.era == 0) names.newest = draw(0);
  const Stamp wanted = names.newest;
  Accepted& accepted = names.accepted[visit->record.uuid];
  if (accepted.stored == wanted && accepted.next == wanted) co_return wanted;
  accepted = {.stored = wanted, .next = wanted};
  const Error error = co_await keep(std::move(names));
  if (error != Error::kNone) co_return std::unexpected(error);
  co_return wanted;
}

// A known store gets the stamp that it missed. One bad place of its sets, which may be in both
// slots, must not end the use of a sound pool: then the store counts as stamped. It hides the age
// of a map only if that comes from an older export, too.
Task<Result<Stamp>> StoreStamps::renew(Visit* visit) {
  const Uuid& store = visit->record.uuid;
  const Found& found = visit->found;
  const auto entry = names_.accepted.find(store);
  const Accepted accepted = entry == names_.accepted.end() ? Accepted{} : entry->second;
  const bool lost = found.newest.era == 0 && found.unreadable;
  if (!lost && found.newest != accepted.stored && found.newest != accepted.next &&
      found.newest != names_.newest) {
    if (visit->older == OlderMap::kRefuse) co_return std::unexpected(Error::kMiscompare);
    co_return co_await insist(visit);
  }
  const Stamp wanted = names_.newest;
  if (wanted.era == 0) co_return wanted;
  if (lost) owner_.tell_lost(visit->record.index);
  const Accepted renewed{.stored = lost ? accepted.stored : found.newest, .next = wanted};
  if (accepted.next == wanted) {
    names_.accepted[store] = renewed;
    co_return wanted;
  }
  Names names = names_;
  names.accepted[store] = renewed;
  const Error error = co_await keep(std::move(names));
  if (error != Error::kNone) co_return std::unexpected(error);
  co_return wanted;
}

// A crash before the stamp is written leaves the store's own stamp, which is accepted from now on:
// its pages are in doubt by then.
Task<Result<Stamp>> StoreStamps::insist(Visit* visit) {
  Names names = names_;
  names.newest = draw(visit->found.newest.era);
  const Stamp wanted = names.newest;
  names.accepted[visit->record.uuid] = {.stored = visit->found.newest, .next = wanted};
  const Error error = co_await owner_.doubt(visit->record.index, batch_of(names));
  if (error != Error::kNone) co_return std::unexpected(error);
  names_ = std::move(names);
  co_return wanted;
}

// I/O ---------------------------------------------------------------------------------------------

std::string StoreStamps::seal_key(const Uuid& store) const {
  return map_.key('e') + format_uuid(store);
}

bool StoreStamps::has_room(const StoreRecord& record, const BlockDevice& device) const {
  const Geometry& geometry = device.geometry();
  const std::uint64_t bytes = geometry.block_count * geometry.block_bytes;
  const std::uint64_t end = record.page_count * map_.page_bytes();
  return bytes >= end && bytes - end >= kBytes;
}

Task<Result<StoreStamps::Found>> StoreStamps::read(StoreRecord record, BlockDevice* device) {
  Found found;
  for (std::uint64_t slot = 0; slot < 2; ++slot) {
    const std::uint64_t at = record.page_count * map_.page_bytes() + slot * kSlotBytes;
    BufferList data = buffers_.try_allocate(kSlotBytes);
    if (data.empty()) co_return std::unexpected(Error::kNoMemory);
    const Completion completion =
        co_await device->submit(slot_request(*device, at, std::move(data)));
    if (completion.error == Error::kMediumError || completion.error == Error::kDataCorrupt) {
      found.unreadable = true;
      found.free_slot = slot;
      continue;
    }
    if (completion.error != Error::kNone) co_return std::unexpected(completion.error);
    if (completion.data.data_less()) co_return Found{.has_data = false};
    std::array<std::byte, kStampText + kSealBytes> bytes{};
    completion.data.copy_to(bytes, 0);
    const auto text = unsealed(seal_key(record.uuid),
                               {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (!text.has_value()) continue;
    const Stamp stamp = stamp_of(*text);
    if (stamp.era <= found.newest.era) continue;
    found.newest = stamp;
    if (!found.unreadable) found.free_slot = 1 - slot;
  }
  co_return found;
}

// Into both slots, one after the other, so that one of them always has a stamp.
Task<Error> StoreStamps::write(StoreRecord record, BlockDevice* device, std::uint64_t first_slot,
                               Stamp stamp) {
  const std::string text = sealed(seal_key(record.uuid), text_of(stamp));
  for (const std::uint64_t slot : {first_slot, 1 - first_slot}) {
    const std::uint64_t at = record.page_count * map_.page_bytes() + slot * kSlotBytes;
    BufferList data = buffers_.try_allocate(kSlotBytes);
    if (data.empty()) co_return Error::kNoMemory;
    data.fill_zero();
    data.copy_from(std::as_bytes(std::span(text.data(), text.size())));
    Request request = slot_request(*device, at, std::move(data));
    request.operation = Operation::kWrite;
    request.origin = Origin::kCopy;
    // A flush would take the report of lost writes from a host that flushes.
    request.force_unit_access = true;
    const Completion written = co_await device->submit(std::move(request));
    if (written.error != Error::kNone) co_return written.error;
  }
  co_return Error::kNone;
}

}  // namespace sandbay::pool
