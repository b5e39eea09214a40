// PageIo: parts in flight, and the walk through a branch's parents.
#include "pool/page_io.h"

#include <algorithm>
#include <cassert>
#include <span>
#include <utility>

#include "pool/pool.h"
#include "runtime/frame_vector.h"

namespace sandbay::pool {

void ReadPlan::add_zeros(std::uint32_t count, bool through) {
  if (!sources.empty() && sources.back().zeros && sources.back().through == through) {
    sources.back().count += count;
  } else {
    sources.push_back({.zeros = true, .through = through, .slot = {}, .count = count});
  }
}

void ReadPlan::add(Slot slot, std::uint32_t count) {
  if (!sources.empty() && !sources.back().zeros) {
    Source& last = sources.back();
    if (last.slot.place == slot.place && last.slot.chunk + last.count == slot.chunk) {
      last.count += count;
      return;
    }
  }
  sources.push_back({.zeros = false, .slot = slot, .count = count});
}

namespace {

// Where a chunk is, as far as it is known.
struct Found {
  ChunkState state = ChunkState::kThrough;
  Slot slot;
};

using FoundChunks = FrameVector<Found>;

// What the branch itself says of chunks that are through so far. The part of the range that has
// such chunks afterwards.
Task<Result<ChunkRange>> look_in(PoolMap* map, const Branch* branch, Generation generation,
                                 ChunkRange range, std::span<Found> found) {
  const PageKey key{.branch = branch->id(), .page = range.page};
  PoolMap::KeptMaps::Pin kept;
  if (generation != kLive) {
    auto loaded = co_await map->kept(key, generation);
    if (!loaded.has_value()) co_return std::unexpected(loaded.error());
    kept = std::move(*loaded);
  }
  auto chunks = co_await map->chunk_map(key);
  if (!chunks.has_value()) co_return std::unexpected(chunks.error());
  // The lock keeps the page's place and these chunks as they are.
  const Place place = branch->pages.at(range.page).place();
  ChunkRange open{.page = range.page, .first = range.first, .count = 0};
  for (ChunkIndex chunk = range.first; chunk < range.end(); ++chunk) {
    Found& one = found[chunk - range.first];
    if (one.state != ChunkState::kThrough) continue;
    const Kept* const version = kept ? kept->seen_by(generation, chunk) : nullptr;
    if (version != nullptr) {
      one = {.state = version->state, .slot = version->slot};
    } else {
      one = {.state = (*chunks)->state(chunk),
             .slot = {.place = place, .chunk = static_cast<std::uint16_t>(chunk)}};
    }
    if (one.state != ChunkState::kThrough) continue;
    if (open.count == 0) open.first = chunk;
    open.count = chunk + 1 - open.first;
  }
  co_return open;
}

}  // namespace

// Level by level. What is open at a level is locked there with one lock that covers it all: whoever
// held one and asked for another of the same branch would wait for a change that waits for him.
Task<Error> plan_read(Pool* pool, Branch* branch, Generation generation, ChunkRange range,
                      ReadPlan* plan, std::uint32_t parents) {
  PoolMap& map = pool->map();
  FoundChunks found;
  found.resize(range.count);
  ChunkRange open = range;
  while (true) {
    const std::span<Found> part =
        std::span<Found>(found).subspan(open.first - range.first, open.count);
    const auto rest = co_await look_in(&map, branch, generation, open, part);
    if (!rest.has_value()) co_return rest.error();
    open = *rest;
    if (open.count == 0 || !branch->reads_through(range.page) || parents-- == 0) break;
    generation = branch->record.parent_generation;
    branch = map.find(branch->record.parent);
    plan->holds.push_back(
        std::make_unique<ChunkLocks::Hold>(branch->locks, ChunkLocks::Kind::kRead, open));
    if (!plan->holds.back()->ready()) co_await branch->locks.wait(*plan->holds.back());
  }
  for (const Found& one : found) {
    if (one.state == ChunkState::kData) {
      plan->add(one.slot, 1);
    } else {
      plan->add_zeros(1, one.state == ChunkState::kThrough);
    }
  }
  co_return Error::kNone;
}

bool needs_force(const BlockDevice& device) noexcept {
  const Geometry& geometry = device.geometry();
  return geometry.volatile_cache && !geometry.non_volatile_cache;
}

struct PageIo::Part : FramePooled {
  Completion completion;
  Lba first_lba = 0;     // Of the volume.
  Lba device_first = 0;  // Of the device.
  std::uint32_t device_block_bytes = 0;
  StoreIndex store = kNoStore;
};

PageIo::PageIo(Pool& pool) : pool_(pool) {}

PageIo::~PageIo() { assert(running_ == 0); }

void PageIo::start(const Request& like, Operation operation, Slot slot, std::uint64_t offset,
                   BufferList data, Lba first_lba) {
  Part& part = *parts_.emplace_back(std::make_unique<Part>());
  BlockDevice* const device = pool_.device(slot.place.store);
  if (device == nullptr) {
    part.completion = {.error = Error::kNotReady, .data = std::move(data)};
    return;
  }
  const std::uint32_t block = device->geometry().block_bytes;
  const std::uint64_t at =
      slot.place.page * pool_.map().page_bytes() + slot.chunk * kChunkBytes + offset;
  assert(at % block == 0 && data.byte_count() % block == 0);
  part.first_lba = first_lba;
  part.device_first = at / block;
  part.store = slot.place.store;
  part.device_block_bytes = block;
  Request request{.operation = operation,
                  .force_unit_access = like.force_unit_access,
                  .disable_page_out = like.disable_page_out,
                  .origin = like.origin,
                  .extent = {.first = at / block, .block_count = data.byte_count() / block},
                  .data = std::move(data),
                  .volume = like.volume,
                  .deadline = like.deadline,
                  .cancellation = like.cancellation};
  ++running_;
  spawn(run(&part, device, std::move(request)));
}

void PageIo::start_flush(const Request& like, BlockDevice* device) {
  Part& part = *parts_.emplace_back(std::make_unique<Part>());
  Request request{.operation = Operation::kFlush,
                  .origin = like.origin,
                  .extent = {.first = 0, .block_count = device->geometry().block_count},
                  .volume = like.volume,
                  .deadline = like.deadline,
                  .cancellation = like.cancellation};
  ++running_;
  spawn(run(&part, device, std::move(request)));
}

void PageIo::add_zeros(BufferList data) {
  Part& part = *parts_.emplace_back(std::make_unique<Part>());
  data.fill_zero();
  part.completion.data = std::move(data);
}

Task<void> PageIo::run(Part* part, BlockDevice* device, Request request) {
  const TimePoint begun = pool_.home().now();
  const bool counts = request.origin == Origin::kHost && part->store != kNoStore;
  const std::uint64_t byte_count = request.data.byte_count();
  if (part->store == kNoStore) {
    part->completion = co_await device->submit(std::move(request));
  } else {
    part->completion = co_await pool_.submit_to(part->store, device, std::move(request));
  }
  if (counts) pool_.note_request(part->store, begun, byte_count);
  const bool silent = part->completion.error == Error::kNotReady && part->store != kNoStore;
  if (silent) pool_.note_silence(part->store);
  if (--running_ == 0) ended_.set();
}

Task<Completion> PageIo::wait() {
  while (running_ > 0) {
    ended_.reset();
    co_await ended_.wait();
  }
  Completion whole;
  const std::uint32_t block = pool_.options().block_bytes;
  for (const std::unique_ptr<Part>& part : parts_) {
    Completion& one = part->completion;
    whole.data.append(std::move(one.data));
    if (one.error == Error::kNone || whole.error != Error::kNone) continue;
    whole.error = one.error;
    const Lba behind = one.first_bad_lba >= part->device_first
                           ? (one.first_bad_lba - part->device_first) * part->device_block_bytes
                           : 0;
    whole.first_bad_lba = part->first_lba + behind / block;
  }
  parts_.clear();
  co_return whole;
}

Task<Completion> flush_stores(Pool* pool, std::span<Branch* const> branches, const Request* like,
                              bool forced_only) {
  PageIo io(*pool);
  Error missing = Error::kNone;
  for (const auto& [index, store] : pool->map().stores()) {
    const bool concerned = std::ranges::any_of(
        branches, [index](const Branch* branch) { return branch->pages.count_on(index) > 0; });
    const bool left = !forced_only && std::ranges::any_of(branches, [index](const Branch* branch) {
      return branch->left.contains(index);
    });
    if (!concerned && !left) continue;
    BlockDevice* const device = pool->device(index);
    if (device == nullptr) {
      if (concerned) missing = Error::kNotReady;
    } else if (forced_only ? needs_force(*device) : device->geometry().volatile_cache) {
      io.start_flush(*like, device);
    }
  }
  Completion whole = co_await io.wait();
  if (whole.error == Error::kNone) whole.error = missing;
  co_return whole;
}

}  // namespace sandbay::pool
