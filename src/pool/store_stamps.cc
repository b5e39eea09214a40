// StoreStamps. The value of the metadata (key `e`): the newest stamp, then for each store its UUID
// (16) and the two stamps that are accepted. A stamp is its era (8) and its token (8),
// little-endian. On a store it is sealed (sealed.h) under a key of the pool and the store, so that
// another pool's or another store's stamp is none here.
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

Request slots_request(const BlockDevice& device, std::uint64_t at, BufferList data) {
  const std::uint32_t block = device.geometry().block_bytes;
  return {.extent = {.first = at / block, .block_count = data.byte_count() / block},
          .data = std::move(data)};
}

}  // namespace

StoreStamps::StoreStamps(Executor& home, PoolMap& map, BufferPool& buffers, Owner owner)
    : home_(home), map_(map), owner_(std::move(owner)), buffers_(buffers) {}

std::string StoreStamps::pack() const {
  std::string text = text_of(newest_);
  for (const auto& [store, accepted] : accepted_) {
    text.append(reinterpret_cast<const char*>(store.data()), store.size());
    text += text_of(accepted.stored) + text_of(accepted.next);
  }
  return text;
}

bool StoreStamps::unpack(std::string_view text) {
  if (text.size() < kStampText || (text.size() - kStampText) % kAcceptedText != 0) return false;
  newest_ = stamp_of(text);
  for (text.remove_prefix(kStampText); !text.empty(); text.remove_prefix(kAcceptedText)) {
    Uuid store{};
    std::memcpy(store.data(), text.data(), store.size());
    accepted_[store] = {.stored = stamp_of(text.substr(sizeof(Uuid))),
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
  if (!stored->has_value()) co_return std::string();
  const auto whole = unsealed(key, std::move(**stored));
  if (!whole.has_value() || !unpack(*whole)) {
    co_return "the map's stamps are damaged: their checksum is wrong";
  }
  co_return std::string();
}

void StoreStamps::draw() {
  newest_ = {.era = newest_.era + 1, .token = home_.random().next()};
  drawn_ = true;
}

metadata::Batch StoreStamps::accepted_batch() const {
  std::string key = map_.key('e');
  std::string value = sealed(key, pack());
  metadata::Batch batch;
  batch.put(std::move(key), std::move(value));
  return batch;
}

Task<Error> StoreStamps::store_accepted() {
  co_return co_await map_.store().commit(accepted_batch());
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
  struct Present {
    StoreRecord record;
    BlockDevice* device = nullptr;
  };
  std::vector<Present> present;
  for (const auto& [index, store] : map_.stores()) {
    BlockDevice* const device = owner_.device(index);
    if (device == nullptr || !has_room(store.record, *device)) continue;
    present.push_back({.record = store.record, .device = device});
  }
  if (!present.empty()) {
    draw();
    for (const Present& one : present) accepted_[one.record.uuid].next = newest_;
    const Error error = co_await store_accepted();
    if (error != Error::kNone) co_return error;
  }
  for (const Present& one : present) {
    const Error error = co_await stamp(one.record, one.device);
    if (error == Error::kNone) {
      accepted_[one.record.uuid].stored = newest_;
    } else if (owner_.device(one.record.index) == one.device) {
      owner_.drop(one.record.index);
    }
  }
  settled_ = begun == eras_begun_;
  co_return Error::kNone;
}

Task<Error> StoreStamps::stamp(StoreRecord record, BlockDevice* device) {
  const auto found = co_await read(record, device);
  if (!found.has_value()) co_return found.error();
  if (!found->has_data) co_return Error::kNone;
  const Error error = co_await write(record, device, found->free_slot, newest_);
  co_return error;
}

// Stores that come --------------------------------------------------------------------------------

Task<Error> StoreStamps::admit(StoreRecord record, BlockDevice* device, OlderMap older,
                               std::function<void()> place) {
  co_await turn_.lock();
  const Error error = co_await admit_locked(record, device, older);
  if (error == Error::kNone) place();
  turn_.unlock();
  co_return error;
}

Task<Error> StoreStamps::admit_locked(StoreRecord record, BlockDevice* device, OlderMap older) {
  const auto known = map_.stores().find(record.index);
  const bool fresh = known == map_.stores().end() || known->second.record.uuid != record.uuid;
  const StoreRecord old = fresh ? record : known->second.record;
  const bool grows = old.page_count != record.page_count;
  if (has_room(old, *device)) {
    const auto found = co_await read(old, device);
    if (!found.has_value()) co_return found.error();
    if (!found->has_data) co_return Error::kNone;
    Error error = Error::kNone;
    if (fresh) {
      error = co_await welcome(old, device, found->newest);
    } else {
      error = co_await renew(old, device, *found, older);
    }
    if (error != Error::kNone) co_return error;
  }
  const auto accepted = accepted_.find(record.uuid);
  if (!grows || accepted == accepted_.end() || !has_room(record, *device)) co_return Error::kNone;
  const Stamp stamp = accepted->second.stored;
  const Error error = co_await write_both(record, device, stamp);
  co_return error;
}

// A new store. If it left this pool before, it may have a stamp of then.
Task<Error> StoreStamps::welcome(StoreRecord record, BlockDevice* device, Stamp found) {
  if (found.era > newest_.era) co_return Error::kMiscompare;
  if (newest_.era == 0) draw();
  accepted_[record.uuid] = {.stored = newest_, .next = newest_};
  Error error = co_await store_accepted();
  if (error == Error::kNone) error = co_await write_both(record, device, newest_);
  co_return error;
}

// A known store gets the stamp that it missed.
Task<Error> StoreStamps::renew(StoreRecord record, BlockDevice* device, Found found,
                               OlderMap older) {
  const auto entry = accepted_.find(record.uuid);
  const Accepted accepted = entry == accepted_.end() ? Accepted{} : entry->second;
  if (found.newest != accepted.stored && found.newest != accepted.next) {
    if (older == OlderMap::kRefuse) co_return Error::kMiscompare;
    co_return co_await insist(record, device, found);
  }
  if (settled_ && !drawn_) draw();
  const Stamp wanted = settled_ ? newest_ : accepted.next;
  if (accepted.stored == wanted && accepted.next == wanted) co_return Error::kNone;
  if (accepted.next != wanted) {
    accepted_[record.uuid] = {.stored = found.newest, .next = wanted};
    const Error stored = co_await store_accepted();
    if (stored != Error::kNone) co_return stored;
  }
  const Error error = co_await write(record, device, found.free_slot, wanted);
  if (error == Error::kNone) accepted_[record.uuid] = {.stored = wanted, .next = wanted};
  co_return error;
}

// A crash before the stamp is written leaves the store's own stamp, which is accepted from now on:
// its pages are in doubt by then.
Task<Error> StoreStamps::insist(StoreRecord record, BlockDevice* device, Found found) {
  newest_.era = std::max(newest_.era, found.newest.era);
  draw();
  const Accepted before = accepted_[record.uuid];
  accepted_[record.uuid] = {.stored = found.newest, .next = newest_};
  Error error = co_await owner_.doubt(record.index, accepted_batch());
  if (error != Error::kNone) {
    accepted_[record.uuid] = before;
    co_return error;
  }
  error = co_await write(record, device, found.free_slot, newest_);
  if (error == Error::kNone) accepted_[record.uuid] = {.stored = newest_, .next = newest_};
  co_return error;
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
  const std::uint64_t at = record.page_count * map_.page_bytes();
  BufferList data = buffers_.try_allocate(kBytes);
  if (data.empty()) co_return std::unexpected(Error::kNoMemory);
  Completion completion = co_await device->submit(slots_request(*device, at, std::move(data)));
  if (completion.error != Error::kNone) co_return std::unexpected(completion.error);
  Found found{.has_data = !completion.data.data_less()};
  if (!found.has_data) co_return found;
  for (std::uint64_t slot = 0; slot < 2; ++slot) {
    std::array<std::byte, kStampText + kSealBytes> bytes{};
    completion.data.copy_to(bytes, slot * kSlotBytes);
    const auto text = unsealed(seal_key(record.uuid),
                               {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (!text.has_value()) continue;
    const Stamp stamp = stamp_of(*text);
    if (stamp.era <= found.newest.era) continue;
    found.newest = stamp;
    found.free_slot = 1 - slot;
  }
  co_return found;
}

Task<Error> StoreStamps::write(StoreRecord record, BlockDevice* device, std::uint64_t slot,
                               Stamp stamp) {
  const std::uint64_t at = record.page_count * map_.page_bytes() + slot * kSlotBytes;
  BufferList data = buffers_.try_allocate(kSlotBytes);
  if (data.empty()) co_return Error::kNoMemory;
  data.fill_zero();
  const std::string text = sealed(seal_key(record.uuid), text_of(stamp));
  data.copy_from(std::as_bytes(std::span(text.data(), text.size())));
  Request request = slots_request(*device, at, std::move(data));
  request.operation = Operation::kWrite;
  request.origin = Origin::kCopy;
  const Completion written = co_await device->submit(std::move(request));
  if (written.error != Error::kNone) co_return written.error;
  Request flush{.operation = Operation::kFlush,
                .extent = {.first = 0, .block_count = device->geometry().block_count}};
  const Completion flushed = co_await device->submit(std::move(flush));
  co_return flushed.error;
}

Task<Error> StoreStamps::write_both(StoreRecord record, BlockDevice* device, Stamp stamp) {
  Error error = Error::kNone;
  for (std::uint64_t slot = 0; slot < 2 && error == Error::kNone; ++slot) {
    error = co_await write(record, device, slot, stamp);
  }
  co_return error;
}

}  // namespace sandbay::pool
