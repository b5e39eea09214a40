// PoolVolume: geometry, reads, flushes, provisioning.
#include "pool/pool_volume.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include <fmt/core.h>

#include "pool/page_io.h"

namespace sandbay::pool {

namespace {

// From the best to the worst.
constexpr Health kWorse[] = {Health::kGood, Health::kPredictedFailure, Health::kDegraded,
                             Health::kFailed, Health::kMissing};

auto badness(Health health) { return std::ranges::find(kWorse, health) - std::begin(kWorse); }

}  // namespace

PoolVolume::PoolVolume(Pool& pool, Branch& branch, Generation generation)
    : pool_(pool), branch_(&branch), generation_(generation) {}

PoolVolume::~PoolVolume() { pool_.detach(*this); }

void PoolVolume::settle_geometry() const {
  const PoolOptions& options = pool_.options();
  std::uint64_t bytes = branch_->record.byte_count;
  const auto snapshot = branch_->snapshots.find(generation_);
  if (snapshot != branch_->snapshots.end()) bytes = snapshot->second.byte_count;
  geometry_ = {
      .block_bytes = options.block_bytes,
      .physical_block_bytes = options.physical_block_bytes,
      .block_count = bytes / options.block_bytes,
      .unmap = true,
      .unmap_zeroes = true,
      .unmap_granularity_blocks = static_cast<std::uint32_t>(kChunkBytes / options.block_bytes),
      .read_only = read_only(),
      .volatile_cache = false,
      .non_volatile_cache = true};
  bool any = false;
  for (const BlockDevice* const device : pool_.devices()) {
    if (device == nullptr) continue;
    any = true;
    const Geometry& below = device->geometry();
    geometry_.optimal_io_blocks =
        std::max(geometry_.optimal_io_blocks,
                 static_cast<std::uint32_t>(below.optimal_io_blocks * below.block_bytes /
                                            options.block_bytes));
    geometry_.volatile_cache = geometry_.volatile_cache || below.volatile_cache;
    geometry_.non_volatile_cache = geometry_.non_volatile_cache && below.non_volatile_cache;
    geometry_.rotational = geometry_.rotational || below.rotational;
  }
  geometry_.non_volatile_cache = geometry_.non_volatile_cache && any;
}

const Geometry& PoolVolume::geometry() const noexcept {
  settle_geometry();
  return geometry_;
}

// A live end reads nothing of what its own snapshots keep; whoever hangs on a generation may.
bool PoolVolume::reads_from(StoreIndex store) const noexcept {
  bool live = !read_only();
  for (const Branch* branch = branch_; branch != nullptr;
       branch = pool_.map().find(branch->record.parent)) {
    if (branch->pages.count_on(store) > 0) return true;
    if (!live && branch->record.kept.on(store) > 0) return true;
    live = false;
  }
  return false;
}

Health PoolVolume::health() const noexcept {
  Health worst = Health::kGood;
  for (const auto& [index, store] : pool_.map().stores()) {
    const BlockDevice* const device = pool_.device(index);
    const Health health = device != nullptr ? device->health() : Health::kMissing;
    if (badness(health) > badness(worst) && reads_from(index)) worst = health;
  }
  return worst;
}

bool PoolVolume::serves() const noexcept {
  return std::ranges::none_of(pool_.map().stores(), [this](const auto& store) {
    const BlockDevice* const device = pool_.device(store.first);
    return (device == nullptr || !device->serves()) && reads_from(store.first);
  });
}

std::string PoolVolume::description() const {
  if (read_only()) return fmt::format("snapshot {} of branch {}", generation_, branch_->id());
  return fmt::format("branch {} of a pool", branch_->id());
}

Task<Completion> PoolVolume::submit(Request request) {
  if (request.operation == Operation::kFlush) return flush(std::move(request));
  if (behind_the_end(request.extent)) return refuse(std::move(request), Error::kOutOfRange);
  assert(fits(geometry(), request));
  const bool counts = request.operation != Operation::kAdvise;
  if (counts && !rate_.try_pass(home().now(), request.data.byte_count())) {
    return perform_later(std::move(request), content_);
  }
  return perform(std::move(request), content_);
}

bool PoolVolume::behind_the_end(const Extent& extent) const noexcept {
  const std::uint64_t end = geometry().block_count;
  return extent.first > end || extent.block_count > end - extent.first;
}

// The volume may have been restored while the change waited, or have become smaller.
Error PoolVolume::hindrance(const Request& request, std::uint64_t content) const noexcept {
  if (content != content_) return Error::kCancelled;
  return behind_the_end(request.extent) ? Error::kOutOfRange : Error::kNone;
}

Task<Completion> PoolVolume::refuse(Request request, Error error) {
  co_return Completion{.error = error, .data = std::move(request.data)};
}

void PoolVolume::set_rate_limits(const RateLimits& limits) { rate_.set(limits, home().now()); }

// Waits its turn before it enters any door: what waits holds up nobody but those behind it.
Task<Completion> PoolVolume::perform_later(Request request, std::uint64_t content) {
  const Error error = co_await rate_.pass(home(), request.data.byte_count(), request.cancellation,
                                          request.deadline);
  if (error != Error::kNone) co_return Completion{.error = error, .data = std::move(request.data)};
  co_return co_await perform(std::move(request), content);
}

Task<Completion> PoolVolume::perform(Request request, std::uint64_t content) {
  switch (request.operation) {
    case Operation::kRead:
      return read(std::move(request));
    case Operation::kWrite:
      return write(std::move(request), content);
    case Operation::kUnmap:
    case Operation::kWriteZeroes:
      return deallocate(std::move(request), content);
    case Operation::kFlush:
    case Operation::kAdvise:
      break;
  }
  return advise(std::move(request));
}

PoolVolume::Piece PoolVolume::first_piece(std::uint64_t byte, std::uint64_t end) const noexcept {
  const std::uint64_t page_bytes = pool_.map().page_bytes();
  const std::uint64_t offset = byte % page_bytes;
  return {.page = static_cast<PageNumber>(byte / page_bytes),
          .offset = offset,
          .byte_count = std::min(end - byte, page_bytes - offset)};
}

Lba PoolVolume::lba_of(const Piece& piece) const noexcept {
  return (piece.page * pool_.map().page_bytes() + piece.offset) / pool_.options().block_bytes;
}

// A piece that lies in one run in `place`, with the request's own buffers.
Task<Completion> PoolVolume::submit_in_place(Request request, Place place, Piece piece) {
  BlockDevice* const device = pool_.device(place.store);
  if (device == nullptr) {
    co_return Completion{.error = Error::kNotReady, .data = std::move(request.data)};
  }
  const std::uint32_t block = device->geometry().block_bytes;
  const Lba first = (place.page * pool_.map().page_bytes() + piece.offset) / block;
  request.extent = {.first = first, .block_count = piece.byte_count / block};
  const TimePoint begun = home().now();
  Completion completion = co_await pool_.submit_to(place.store, device, std::move(request));
  pool_.note_request(place.store, begun, piece.byte_count);
  if (completion.error == Error::kNotReady) pool_.note_silence(place.store);
  if (completion.error != Error::kNone && completion.first_bad_lba >= first) {
    completion.first_bad_lba =
        lba_of(piece) + (completion.first_bad_lba - first) * block / pool_.options().block_bytes;
  }
  co_return completion;
}

// Reads -------------------------------------------------------------------------------------------

Task<Completion> PoolVolume::read(Request request) {
  if (!door_.try_enter()) co_await door_.enter();
  const DoorHold door(door_);
  if (behind_the_end(request.extent)) {
    co_return Completion{.error = Error::kOutOfRange, .data = std::move(request.data)};
  }
  co_return co_await in_pieces(std::move(request), &PoolVolume::read_piece);
}

// Page by page, until one fails; the payload is put together again.
Task<Completion> PoolVolume::in_pieces(Request request, PieceOperation operation) {
  const std::uint64_t block = pool_.options().block_bytes;
  const std::uint64_t end = request.extent.end() * block;
  std::uint64_t at = request.extent.first * block;
  if (at == end) co_return Completion{.data = std::move(request.data)};
  Piece piece = first_piece(at, end);
  if (piece.byte_count == end - at) {
    co_return co_await (this->*operation)(std::move(request), piece);
  }
  Completion whole;
  for (; at < end; at += piece.byte_count) {
    piece = first_piece(at, end);
    Request part = request_like(request);
    part.data = request.data.take_front(piece.byte_count);
    Completion completion = co_await (this->*operation)(std::move(part), piece);
    whole.data.append(std::move(completion.data));
    if (completion.error == Error::kNone) continue;
    whole.error = completion.error;
    whole.first_bad_lba = completion.first_bad_lba;
    whole.data.append(std::move(request.data));
    break;
  }
  co_return whole;
}

Task<Completion> PoolVolume::read_piece(Request request, Piece piece) {
  Branch& branch = *branch_;
  const ChunkRange range = piece.chunks();
  ChunkLocks::Hold hold(branch.locks, ChunkLocks::Kind::kRead, range);
  if (!hold.ready()) co_await branch.locks.wait(hold);
  branch.pages.note_use(piece.page);
  const PageEntry entry = branch.pages.at(piece.page);
  if (entry.state == PageState::kData && generation_ == kLive) {
    co_return co_await submit_in_place(std::move(request), entry.place(), piece);
  }
  ReadPlan plan;
  const Error error = co_await plan_read(&pool_, &branch, generation_, range, &plan);
  if (error != Error::kNone) {
    co_return Completion{.error = error, .data = std::move(request.data)};
  }
  PageIo io(pool_);
  // Of the first chunk, what lies before the piece is left out.
  std::uint64_t skip = piece.offset % kChunkBytes;
  std::uint64_t left = piece.byte_count;
  Lba lba = lba_of(piece);
  for (const Source& source : plan.sources) {
    const std::uint64_t bytes = std::min(source.count * kChunkBytes - skip, left);
    BufferList data = request.data.take_front(bytes);
    if (source.zeros) {
      io.add_zeros(std::move(data));
    } else {
      io.start(request, Operation::kRead, source.slot, skip, std::move(data), lba);
    }
    lba += bytes / pool_.options().block_bytes;
    left -= bytes;
    skip = 0;
  }
  assert(left == 0);
  co_return co_await io.wait();
}

// Others ------------------------------------------------------------------------------------------

Task<Completion> PoolVolume::flush(Request request) {
  if (!door_.try_enter()) co_await door_.enter();
  const DoorHold door(door_);
  auto left = branch_->left;
  std::erase_if(left, [this](const auto& one) { return pool_.device(one.first) == nullptr; });
  Completion whole = co_await flush_stores(&pool_, {&branch_, 1}, &request, false);
  for (const auto& [store, pages] : left) {
    const auto now = branch_->left.find(store);
    const bool covered = now != branch_->left.end() && now->second == pages;
    if (whole.error == Error::kNone && covered) branch_->left.erase(now);
  }
  if (whole.error == Error::kNone) whole.error = co_await secure_map();
  whole.data = std::move(request.data);
  co_return whole;
}

// What the host now calls safe must not depend on records in NVRAM that may lose them.
Task<Error> PoolVolume::secure_map() {
  if (pool_.log().is_secure()) co_return Error::kNone;
  const Error error = co_await pool_.log().secure();
  if (error != Error::kNone) {
    pool_.tell({.kind = PoolEvent::Kind::kMapFailure, .branch = branch_->id(), .error = error});
  }
  co_return error;
}

Task<Completion> PoolVolume::advise(Request request) {
  if (!door_.try_enter()) co_await door_.enter();
  const DoorHold door(door_);
  const std::uint64_t block = pool_.options().block_bytes;
  const std::uint64_t end = request.extent.end() * block;
  Piece piece;
  std::uint32_t looked = 0;
  for (std::uint64_t at = request.extent.first * block; at < end; at += piece.byte_count) {
    piece = first_piece(at, end);
    if (++looked % kSlicePages == 0) co_await home().turn_end();
    const PageEntry entry = branch_->pages.at(piece.page);
    if (entry.state != PageState::kData || generation_ != kLive) continue;
    co_await submit_in_place(request_like(request), entry.place(), piece);
  }
  co_return Completion{.data = std::move(request.data)};
}

// A run that is longer than what is looked at in one go ends there.
Task<Result<ProvisioningRun>> PoolVolume::provisioning(Lba first, Lba limit) {
  if (!door_.try_enter()) co_await door_.enter();
  const DoorHold door(door_);
  Branch& branch = *branch_;
  const std::uint64_t block = pool_.options().block_bytes;
  const std::uint64_t end = limit * block;
  std::uint64_t at = first * block;
  std::optional<bool> mapped;
  for (std::uint32_t looked = 0; at < end; ++looked) {
    if (looked == kSlicePages) {
      co_await pool_.home().yield();
      co_return ProvisioningRun{.block_count = at / block - first,
                                .mapped = mapped.value_or(false)};
    }
    const bool plain = generation_ == kLive && !branch.has_parent();
    if (plain && mapped != true) {
      // Nothing is there until the next page with an entry.
      const PageNumber pages = pool_.map().page_count_of(branch);
      const PageNumber page = first_piece(at, end).page;
      const PageNumber next = branch.pages.next(page, pages);
      if (next > page) {
        mapped = false;
        at = std::min(end, next * pool_.map().page_bytes());
        continue;
      }
    }
    const Piece piece = first_piece(at, end);
    if (generation_ == kLive && mapped == true &&
        branch.pages.at(piece.page).state == PageState::kData) {
      at += piece.byte_count;
      continue;
    }
    const ChunkRange range = piece.chunks();
    ChunkLocks::Hold hold(branch.locks, ChunkLocks::Kind::kRead, range);
    if (!hold.ready()) co_await branch.locks.wait(hold);
    ReadPlan plan;
    const Error error = co_await plan_read(&pool_, &branch, generation_, range, &plan);
    if (error != Error::kNone) co_return std::unexpected(error);
    std::uint64_t skip = at % kChunkBytes;
    const std::uint64_t piece_end = at + piece.byte_count;
    for (const Source& source : plan.sources) {
      if (!mapped.has_value()) mapped = !source.zeros;
      if (*mapped == source.zeros) {
        co_return ProvisioningRun{.block_count = at / block - first, .mapped = *mapped};
      }
      at = std::min(piece_end, at + source.count * kChunkBytes - skip);
      skip = 0;
    }
  }
  co_return ProvisioningRun{.block_count = limit - first, .mapped = mapped.value_or(false)};
}

Request PoolVolume::request_like(const Request& request) {
  return {.operation = request.operation,
          .force_unit_access = request.force_unit_access,
          .disable_page_out = request.disable_page_out,
          .origin = request.origin,
          .volume = request.volume,
          .deadline = request.deadline,
          .cancellation = request.cancellation};
}

}  // namespace sandbay::pool
