// Volumes on RAID sets: where they lie, and that a new one reads as zeros.
//
// What was never part of a volume is blank already if the set's drives were proven to be when it
// was made. Everything else is cleared while the volume is used (clearing.h), so that no initiator
// sees another's data, and none waits for more of it than it writes to. What is to be cleared is
// recorded with the volume.
//
// A place is free again when nothing below can change anything there any more, not when its volume
// is gone: a drive may hold a request of it for long.
#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <set>

#include "group/log.h"
#include "group/place.h"
#include "group/running_group.h"
#include "group/set_space.h"
#include "group/units.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

// How long a drive may hold what is being cleared: when its volume goes, before the place counts as
// held by that; and when the daemon ends.
constexpr Duration kStopPatience = std::chrono::seconds(1);
constexpr Duration kEndPatience = std::chrono::seconds(5);
// How long and how often it is looked whether drives have let go of a volume that is gone.
constexpr Duration kLook = std::chrono::seconds(1);
constexpr Duration kLooksAgain = std::chrono::seconds(1);
constexpr Duration kLooksAtLeastEvery = std::chrono::seconds(64);

// The greatest string before all that are not below `key` in the tree of keys.
std::string end_of(const std::string& key) { return key + "/~"; }

}  // namespace

std::vector<Extent> RunningGroup::taken_on(const Uuid& set) const {
  std::vector<Extent> taken;
  for (const auto& [name, volume] : volumes_) {
    const auto& placement = volume->record().placement;
    if (placement && placement->set == set) taken.push_back(placement->extent);
  }
  for (const auto& leaving : leaving_) {
    if (leaving->placement.set == set) taken.push_back(leaving->placement.extent);
  }
  return taken;
}

Extent RunningGroup::used_part(const Placement& placement) const {
  const std::uint64_t used_end = members_->used_end(placement.set);
  const Lba end = std::clamp(used_end, placement.extent.first, placement.extent.end());
  return {.first = placement.extent.first, .block_count = end - placement.extent.first};
}

std::expected<void, std::string> RunningGroup::place(VolumeRecord* record) const {
  const VolumeSpecification& s = record->specification;
  if (s.backing != Backing::kRaid) return {};
  const auto set = members_->find_set(s.raid);
  Door* const door = set ? members_->door(known(set)) : nullptr;
  if (door == nullptr) {
    return std::unexpected(fmt::format("set \"{}\" is not there; see the list of sets", s.raid));
  }
  const std::string refusal = members_->refusal(known(set));
  if (!refusal.empty()) return std::unexpected(refusal);
  if (const ServedPool* const pool = pools_->owner_of(known(set))) {
    return std::unexpected(
        fmt::format("set \"{0}\" belongs to pool \"{1}\"; put the volume on the "
                    "pool: pool \"{1}\", on \"{0}\"",
                    s.raid, pool->name()));
  }
  const Geometry& geometry = door->geometry();
  if (s.block_bytes != geometry.block_bytes) {
    return std::unexpected(fmt::format("block_size {} is not that of set \"{}\"; write {}",
                                       s.block_bytes, s.raid, geometry.block_bytes));
  }
  const auto taken = taken_on(known(set));
  const auto extent = first_fit(taken, geometry.block_count, s.size_bytes / s.block_bytes,
                                std::max<std::uint64_t>(1, geometry.optimal_io_blocks));
  if (!extent) {
    return std::unexpected(fmt::format(
        "set \"{}\" has no place for {}: {} of its {} are free, not all in one piece perhaps; "
        "write a smaller size",
        s.raid, format_size(s.size_bytes),
        format_size_rounded(free_blocks(taken, geometry.block_count) * geometry.block_bytes),
        format_size_rounded(geometry.block_count * geometry.block_bytes)));
  }
  record->placement = Placement{.set = known(set), .extent = known(extent)};
  return {};
}

void RunningGroup::put_clearing(const Uuid& volume, const ClearedAreas::Record& record,
                                metadata::Batch& batch) {
  const std::string key = clearing_key(volume);
  if (record.ended) batch.erase_prefix(key);
  for (const auto& [suffix, value] : record.changes) {
    if (value) {
      batch.put(key + suffix, *value);
    } else {
      batch.erase_prefix(key + suffix);
    }
  }
}

Task<Error> RunningGroup::keep_clearing(Uuid volume, ClearedAreas::Record record) {
  metadata::Batch batch;
  put_clearing(volume, record, batch);
  const Error error = co_await store_.commit(std::move(batch));
  if (record.ended && error == Error::kNone) {
    for (const auto& [name, one] : volumes_) {
      if (one->uuid() == volume) log_info("volume {}: its place on the set is cleared", name);
    }
  }
  co_return error;
}

// A record may be left where the daemon was killed while a volume was deleted.
Task<RunningGroup::Outcome> RunningGroup::forget_clearing() {
  std::set<Uuid> there;
  for (const auto& [name, volume] : volumes_) there.insert(volume->uuid());
  std::string after;
  for (;;) {
    const auto next = co_await store_.list(std::string(kClearingPrefix), after, 1);
    if (!next) {
      co_return std::unexpected(
          fmt::format("the metadata cannot be read: {}", describe(next.error())));
    }
    if (next->empty()) co_return Outcome{};
    const std::string& key = next->front().first;
    const auto end = key.find('/', kClearingPrefix.size());
    const std::string own = key.substr(0, end);
    const auto volume = parse_uuid(std::string_view(own).substr(kClearingPrefix.size()));
    after = end_of(own);
    if (volume && there.contains(*volume)) continue;
    metadata::Batch batch;
    batch.erase_prefix(own);
    const Error error = co_await store_.commit(std::move(batch));
    if (error != Error::kNone) co_return std::unexpected(unwritten(error));
  }
}

std::shared_ptr<ClearingLane> RunningGroup::lane_of(const Uuid& set) {
  auto& lane = lanes_[set];
  if (lane == nullptr) lane = std::make_shared<ClearingLane>();
  return lane;
}

Task<std::expected<RunningGroup::Place*, std::string>> RunningGroup::open_place(
    VolumeRecord record, Volume::Opening opening) {
  const Placement placement = known(record.placement);
  Door& set = *members_->door(placement.set);
  ClearedAreas areas;
  if (opening == Volume::Opening::kCreate) {
    areas.add(used_part(placement), set.geometry().block_bytes);
  } else {
    auto stored = co_await load_all(clearing_key(record.uuid));
    if (!stored) co_return std::unexpected(stored.error());
    for (auto& [key, value] : *stored) key.erase(0, clearing_key(record.uuid).size());
    auto decoded = ClearedAreas::decode(*stored, set.geometry().block_bytes);
    if (!decoded) {
      co_return std::unexpected(
          fmt::format("the record of what is cleared of it {}", decoded.error()));
    }
    areas = std::move(*decoded);
  }
  auto place = std::make_unique<Place>(
      set, members_->name_of(placement.set), std::move(areas),
      [this, uuid = record.uuid](ClearedAreas::Record kept) {
        return keep_clearing(uuid, std::move(kept));
      },
      lane_of(placement.set));
  Place* const made = place.get();
  places_[record.uuid] = std::move(place);
  co_return made;
}

Task<void> RunningGroup::leave_place(Uuid uuid, std::shared_ptr<Volume> volume, bool idle) {
  std::erase_if(left_places_, [](const auto& left) { return left.first.expired(); });
  const auto found = places_.find(uuid);
  if (found == places_.end()) co_return;
  std::unique_ptr<Place> place = std::move(found->second);
  places_.erase(found);
  place->clearing.refuse_all();
  // Taken before anything is waited for, since the volume is in no list any more.
  leaving_.push_back(std::make_unique<Leaving>());
  Leaving* const leaving = leaving_.back().get();
  const auto remove = [this, leaving] {
    std::erase_if(leaving_, [&](const auto& one) { return one.get() == leaving; });
  };
  if (volume != nullptr) {
    leaving->name = volume->name();
    leaving->placement = known(volume->record().placement);
  }
  const bool stopped = co_await place->clearing.stop(Executor::current().now() + kStopPatience);
  if (stopped && idle) {
    if (volume != nullptr) left_places_.emplace_back(volume, std::move(place));
    remove();
    co_return;
  }
  leaving->place = std::move(place);
  leaving->volume = std::move(volume);
  log_warning(
      "volume {}: gone, but a drive still holds requests of it; until they end its place on set "
      "{} is given to nobody",
      leaving->name, members_->name_of(leaving->placement.set));
  if (see_offs_.enter()) spawn(see_off(leaving));
}

Task<void> RunningGroup::see_off(Leaving* leaving) {
  const GateHold hold(see_offs_);
  Duration pause = kLooksAgain;
  while (!ending_) {
    bool idle = true;
    if (leaving->volume != nullptr) {
      const Error closed = co_await leaving->volume->close(Executor::current().now() + kLook);
      idle = closed != Error::kTimedOut;
    }
    const bool stopped = co_await leaving->place->clearing.stop(Executor::current().now() + kLook);
    if (idle && stopped) {
      log_info("volume {}: its place on set {} is free", leaving->name,
               members_->name_of(leaving->placement.set));
      if (leaving->volume != nullptr) {
        left_places_.emplace_back(leaving->volume, std::move(leaving->place));
      }
      std::erase_if(leaving_, [&](const auto& one) { return one.get() == leaving; });
      co_return;
    }
    if (!ending_) (void)co_await leaving_ends_.wait_until(Executor::current().now() + pause);
    pause = std::min(2 * pause, kLooksAtLeastEvery);
  }
}

// Before the sets stop. Volumes may still be flushed. False: something is still in a device.
Task<bool> RunningGroup::leave_places() {
  ending_ = true;
  leaving_ends_.notify_all();
  co_await see_offs_.close();
  const TimePoint deadline = Executor::current().now() + kEndPatience;
  bool quiet = true;
  for (auto& [volume, place] : places_) {
    const bool stopped = co_await place->clearing.stop(deadline);
    if (!stopped) (void)place.release();
    quiet = quiet && stopped;
  }
  for (auto& leaving : leaving_) {
    (void)leaving.release();  // Until the process ends, like its device.
    quiet = false;
  }
  leaving_.clear();
  co_return quiet;
}

ArrayFacts RunningGroup::array_facts() {
  const IdentityConfiguration& identity = configuration_.identity;
  std::vector<std::uint16_t> ports;
  std::vector<scsi::AccessState> states;
  for (const auto& [tag, state] : access_states_) {
    ports.push_back(tag);
    states.push_back(state);
  }
  return {.vendor = identity.vendor,
          .product = identity.product,
          .revision = identity.revision,
          .personality = identity.personality,
          .label = configuration_.group_name,
          .id = identity.array,
          .faults = members_->first().faults(),
          .book = &book_,
          .target_ports = std::move(ports),
          .access_states = std::move(states)};
}

Task<Volume::Opened> RunningGroup::open_device(VolumeRecord record, Volume::Opening opening) {
  if (record.specification.backing == Backing::kPool) {
    co_return co_await reopen_on_pool(std::move(record));
  }
  if (record.specification.backing != Backing::kRaid) {
    co_return co_await Volume::open(std::move(record), configuration_.state, next_home(), opening,
                                    array_facts());
  }
  Door* const door = record.placement ? members_->door(known(record.placement).set) : nullptr;
  if (door == nullptr) {
    co_return std::unexpected(
        OpenFailure{.reason = fmt::format("set \"{}\" is not there", record.specification.raid),
                    .health = Health::kMissing});
  }
  const auto place = co_await open_place(record, opening);
  if (!place) co_return std::unexpected(OpenFailure{.reason = place.error()});
  const Uuid uuid = record.uuid;
  auto volume = co_await Volume::open(std::move(record), configuration_.state, door->home(),
                                      opening, array_facts(), &(*place)->door);
  if (!volume) co_await leave_place(uuid, nullptr, true);
  if (volume && opening == Volume::Opening::kExisting) (*place)->clearing.start();
  co_return volume;
}

Task<Error> RunningGroup::store_growth(VolumeRecord record, ClearedAreas::Record uncleared) {
  const Placement placement = known(record.placement);
  metadata::Batch batch;
  batch.put(volume_key(record.uuid), encode(record));
  put_clearing(record.uuid, uncleared, batch);
  members_->raise_used_end(placement.set, placement.extent.end(), batch);
  co_return co_await store_.commit(std::move(batch));
}

// The record first: what is acknowledged to an initiator behind the old end must be there after a
// crash.
Task<Answer<void>> RunningGroup::grow_on_set(std::shared_ptr<Volume> volume,
                                             std::uint64_t byte_count) {
  const auto refused = [&](Refusal::Code code, std::string why) {
    return std::unexpected(
        Refusal{.code = code,
                .message = fmt::format("volume \"{}\" cannot be expanded to {}: {}", volume->name(),
                                       format_size(byte_count), why)});
  };
  VolumeRecord record = volume->record();
  const Placement before = known(record.placement);
  const Door* const door = members_->door(before.set);
  const std::uint32_t block_bytes = record.specification.block_bytes;
  record.specification.size_bytes = byte_count;
  known(record.placement).extent.block_count = byte_count / block_bytes;
  const std::uint64_t most =
      most_blocks(taken_on(before.set), door->geometry().block_count, before.extent);
  if (known(record.placement).extent.block_count > most) {
    co_return refused(Refusal::Code::kConflict,
                      fmt::format("in its place on set \"{}\" there is room for {}; write at most "
                                  "that, or copy it to a new volume",
                                  record.specification.raid, format_size(most * block_bytes)));
  }
  const std::string refusal = members_->refusal(before.set);
  if (!refusal.empty()) co_return refused(Refusal::Code::kConflict, refusal);
  const Extent added{
      .first = before.extent.end(),
      .block_count = known(record.placement).extent.block_count - before.extent.block_count};
  const Extent uncleared = used_part({.set = before.set, .extent = added});
  const Error stored = co_await places_.at(record.uuid)
                           ->clearing.grow(uncleared, [this, &record](ClearedAreas::Record left) {
                             return store_growth(record, std::move(left));
                           });
  if (stored != Error::kNone) co_return refused(Refusal::Code::kFailed, unwritten(stored));
  const std::uint64_t old_bytes = volume->record().specification.size_bytes;
  volume->record() = std::move(record);
  const Error grown = co_await volume->grow(byte_count);
  if (grown != Error::kNone) {
    co_return refused(Refusal::Code::kFailed, std::string(describe(grown)));
  }
  log_info("volume {}: expanded from {} to {}", volume->name(), format_size(old_bytes),
           format_size(byte_count));
  co_return Answer<void>{};
}

}  // namespace sandbay::group
