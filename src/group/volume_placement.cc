// Volumes on RAID sets: where they lie, and that a new one reads as zeros.
//
// What was never part of a volume is blank already if the set's drives were proven to be when it
// was made. Everything else is cleared before the new volume's record is written, so that no
// initiator sees another's data.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cassert>

#include "group/running_group.h"
#include "group/set_space.h"
#include "group/units.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

// At once: few enough that hosts are not kept waiting.
constexpr std::uint64_t kClearBytes = std::uint64_t{4} << 20;

Task<Error> write_zeroes(BlockDevice* set, Extent extent) {
  const std::uint64_t step = kClearBytes / set->geometry().block_bytes;
  while (extent.block_count > 0) {
    Request request{.operation = Operation::kWriteZeroes};
    request.extent = {.first = extent.first,
                      .block_count = std::min<std::uint64_t>(step, extent.block_count)};
    extent.first += request.extent.block_count;
    extent.block_count -= request.extent.block_count;
    const Completion done = co_await set->submit(std::move(request));
    if (done.error != Error::kNone) co_return done.error;
  }
  const Completion flushed = co_await set->submit(Request{.operation = Operation::kFlush});
  co_return flushed.error;
}

}  // namespace

std::vector<Extent> RunningGroup::taken_on(const Uuid& set) const {
  std::vector<Extent> taken;
  for (const auto& [name, volume] : volumes_) {
    const auto& placement = volume->record().placement;
    if (placement && placement->set == set) taken.push_back(placement->extent);
  }
  return taken;
}

Task<std::expected<void, std::string>> RunningGroup::clear_blocks(Uuid set, Extent extent) {
  const std::uint64_t used_end = hardware_->used_end(set);
  if (extent.first >= used_end) co_return std::expected<void, std::string>{};
  extent.block_count = std::min(extent.block_count, used_end - extent.first);
  SetDoor* const door = hardware_->door(set);
  const Error error = co_await invoke_on(door->home(), write_zeroes(door, extent));
  if (error == Error::kNone) co_return std::expected<void, std::string>{};
  co_return std::unexpected(fmt::format("set \"{}\": what was there before cannot be cleared: {}",
                                        hardware_->name_of(set), describe(error)));
}

Task<std::expected<void, std::string>> RunningGroup::place(VolumeRecord* record) {
  const VolumeSpecification& s = record->specification;
  if (s.backing != Backing::kRaid) co_return std::expected<void, std::string>{};
  const auto set = hardware_->find_set(s.raid);
  SetDoor* const door = set ? hardware_->door(known(set)) : nullptr;
  if (door == nullptr) {
    co_return std::unexpected(fmt::format("set \"{}\" is not there; see the list of sets", s.raid));
  }
  const std::string refusal = hardware_->refusal(known(set));
  if (!refusal.empty()) co_return std::unexpected(refusal);
  const Geometry& geometry = door->geometry();
  if (s.block_bytes != geometry.block_bytes) {
    co_return std::unexpected(fmt::format("block_size {} is not that of set \"{}\"; write {}",
                                          s.block_bytes, s.raid, geometry.block_bytes));
  }
  const auto taken = taken_on(known(set));
  const auto extent = first_fit(taken, geometry.block_count, s.size_bytes / s.block_bytes,
                                std::max<std::uint64_t>(1, geometry.optimal_io_blocks));
  if (!extent) {
    co_return std::unexpected(fmt::format(
        "set \"{}\" has no place for {}: {} of its {} are free, not all in one piece perhaps; "
        "write "
        "a smaller size",
        s.raid, format_size(s.size_bytes),
        format_size_rounded(free_blocks(taken, geometry.block_count) * geometry.block_bytes),
        format_size_rounded(geometry.block_count * geometry.block_bytes)));
  }
  const auto cleared = co_await clear_blocks(known(set), known(extent));
  if (!cleared) co_return cleared;
  record->placement = Placement{.set = known(set), .extent = known(extent)};
  co_return std::expected<void, std::string>{};
}

Task<Volume::Opened> RunningGroup::open_device(VolumeRecord record, Volume::Opening opening) {
  if (record.specification.backing != Backing::kRaid) {
    auto volume =
        co_await Volume::open(std::move(record), configuration_.state, next_home(), opening);
    co_return volume;
  }
  SetDoor* const door = record.placement ? hardware_->door(known(record.placement).set) : nullptr;
  if (door == nullptr) {
    co_return std::unexpected(
        OpenFailure{.reason = fmt::format("set \"{}\" is not there", record.specification.raid),
                    .health = Health::kMissing});
  }
  auto volume =
      co_await Volume::open(std::move(record), configuration_.state, door->home(), opening, door);
  co_return volume;
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
  const SetDoor* const door = hardware_->door(before.set);
  const std::uint32_t block_bytes = record.specification.block_bytes;
  record.specification.size_bytes = byte_count;
  known(record.placement).extent.block_count = byte_count / block_bytes;
  const std::uint64_t most =
      most_blocks(taken_on(before.set), door->geometry().block_count, before.extent);
  if (known(record.placement).extent.block_count > most) {
    co_return refused(Refusal::Code::kConflict,
                      fmt::format("where it lies on set \"{}\" there is room for {}; write at most "
                                  "that, or copy it to a new volume",
                                  record.specification.raid, format_size(most * block_bytes)));
  }
  const std::string refusal = hardware_->refusal(before.set);
  if (!refusal.empty()) co_return refused(Refusal::Code::kConflict, refusal);
  const Extent added{
      .first = before.extent.end(),
      .block_count = known(record.placement).extent.block_count - before.extent.block_count};
  const auto cleared = co_await clear_blocks(before.set, added);
  if (!cleared) co_return refused(Refusal::Code::kFailed, cleared.error());
  metadata::Batch batch;
  batch.put(volume_key(record.uuid), encode(record));
  hardware_->raise_used_end(before.set, known(record.placement).extent.end(), batch);
  const Error stored = co_await store_.commit(std::move(batch));
  if (stored != Error::kNone) {
    co_return refused(Refusal::Code::kFailed, unwritten(stored));
  }
  const std::uint64_t old_bytes = volume->record().specification.size_bytes;
  volume->record() = std::move(record);
  const Error grown = co_await volume->grow(byte_count);
  if (grown != Error::kNone) {
    co_return refused(Refusal::Code::kFailed, std::string(describe(grown)));
  }
  spdlog::info("volume {}: expanded from {} to {}", volume->name(), format_size(old_bytes),
               format_size(byte_count));
  co_return Answer<void>{};
}

}  // namespace sandbay::group
