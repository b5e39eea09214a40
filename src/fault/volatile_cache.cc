// The records of what was written and not flushed, and what becomes of them.
//
// Two structures: `records_` holds every change since the last flush, also what newer ones hide,
// because a cut may leave any of them on the medium; `pieces_` says which record has the newest
// content of each block that the device below does not have yet. Whatever goes to the device goes
// one after another under a mutex, so that an old content never overtakes a newer one.
#include "fault/volatile_cache.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "fault/damage.h"
#include "fault/owned_copy.h"

namespace sandbay::fault {

namespace {

constexpr std::size_t kStagingBytes = std::size_t{128} << 10;
constexpr std::size_t kLeastLimit = std::size_t{1} << 20;
constexpr std::size_t kRecordBytes = 256;  // What one takes beside its payload, about.
// Longer changes (of zeros) are torn at one place, not block by block.
constexpr std::uint64_t kMostTornBlocks = 65536;

}  // namespace

struct VolatileCache::Record {
  std::uint64_t sequence = 0;
  Operation kind = Operation::kWrite;
  Extent extent;
  Bytes data;      // kWrite only; the others read as zeros.
  ExtentSet open;  // The blocks of which a cut still decides.
};

VolatileCache::VolatileCache(BlockDevice& below, VolatileCacheOptions options)
    : Layer(below), options_(options) {
  options_.limit_bytes = std::max(options_.limit_bytes, kLeastLimit);
}

VolatileCache::~VolatileCache() { assert(!settling_ && !write_back_mutex_.locked()); }

const Geometry& VolatileCache::geometry() const noexcept {
  shown_geometry_ = below().geometry();
  shown_geometry_.volatile_cache = true;
  return shown_geometry_;
}

Health VolatileCache::health() const noexcept {
  return settle_error_ == Error::kNone ? below().health() : Health::kFailed;
}

Task<Result<ProvisioningRun>> VolatileCache::provisioning(Lba first, Lba limit) {
  auto piece = pieces_.upper_bound(first);
  if (piece != pieces_.begin() && std::prev(piece)->second.end > first) {
    --piece;
    const Lba end = std::min(limit, piece->second.end);
    const bool mapped = piece->second.record->kind != Operation::kUnmap;
    co_return ProvisioningRun{.block_count = end - first, .mapped = mapped};
  }
  if (piece != pieces_.end()) limit = std::min(limit, piece->first);
  co_return co_await below().provisioning(first, limit);
}

Task<Completion> VolatileCache::submit(Request request) {
  switch (request.operation) {
    case Operation::kRead:
      if (pieces_.empty() && !settling_ && settle_error_ == Error::kNone) {
        return below().submit(std::move(request));
      }
      return read_cached(std::move(request));
    case Operation::kWrite:
    case Operation::kUnmap:
    case Operation::kWriteZeroes:
      return change(std::move(request));
    case Operation::kFlush:
      return flush_cached(std::move(request));
    case Operation::kAdvise:
      return below().submit(std::move(request));
  }
  assert(false && "unknown operation");
  __builtin_unreachable();
}

Task<Error> VolatileCache::ready() {
  const std::uint64_t power_cycle = power_cycle_;
  while (settling_) co_await changed_.wait();
  if (power_cycle != power_cycle_) co_return Error::kNotReady;
  co_return settle_error_;
}

// Reading. ---------------------------------------------------------------------------------------

Task<Completion> VolatileCache::read_cached(Request request) {
  const Error not_ready = co_await ready();
  if (not_ready != Error::kNone) {
    co_return Completion{.error = not_ready, .data = std::move(request.data)};
  }
  const Extent extent = request.extent;
  // Before the device is asked: what is written back meanwhile is newer than what it answers.
  const std::vector<Run> runs = runs_in(extent);
  std::uint64_t cached = 0;
  for (const Run& run : runs) cached += run.extent.block_count;
  Completion completion;
  if (cached == extent.block_count) {
    completion.data = std::move(request.data);
  } else {
    completion = co_await below().submit(std::move(request));
    if (completion.error != Error::kNone) co_return completion;
    if (!runs.empty()) completion.data = co_await owned_copy(home(), std::move(completion.data));
  }
  const std::size_t block_bytes = below().geometry().block_bytes;
  const Bytes zeros(block_bytes);
  for (const Run& run : runs) {
    const std::size_t target = (run.extent.first - extent.first) * block_bytes;
    const std::size_t length = run.extent.block_count * block_bytes;
    if (run.record->kind == Operation::kWrite) {
      const std::size_t source = (run.extent.first - run.record->extent.first) * block_bytes;
      completion.data.copy_from({run.record->data.data() + source, length}, target);
      continue;
    }
    for (std::size_t done = 0; done < length; done += block_bytes) {
      completion.data.copy_from(zeros, target + done);
    }
  }
  co_return completion;
}

std::vector<VolatileCache::Run> VolatileCache::runs_in(const Extent& extent) const {
  std::vector<Run> runs;
  auto piece = pieces_.upper_bound(extent.first);
  if (piece != pieces_.begin()) --piece;
  for (; piece != pieces_.end() && piece->first < extent.end(); ++piece) {
    if (piece->second.end <= extent.first) continue;
    const Lba first = std::max(piece->first, extent.first);
    const Lba end = std::min(piece->second.end, extent.end());
    runs.push_back(
        {.extent = {.first = first, .block_count = end - first}, .record = piece->second.record});
  }
  return runs;
}

// Changing. --------------------------------------------------------------------------------------

Task<Completion> VolatileCache::change(Request request) {
  Error error = co_await ready();
  const std::uint64_t power_cycle = power_cycle_;
  const bool needs_room = request.operation != Operation::kUnmap && request.extent.block_count > 0;
  // Again where blocks have been unmapped meanwhile.
  while (error == Error::kNone && needs_room && !has_room(request.extent)) {
    error = co_await take_room(request.extent, power_cycle);
  }
  if (error == Error::kNone && request.extent.block_count > 0) {
    auto record = std::make_shared<Record>();
    record->sequence = ++sequence_;
    record->kind = request.operation;
    record->extent = request.extent;
    record->open.add(request.extent);
    if (request.operation == Operation::kWrite) {
      // Copied, because the caller's buffers go back to it when the write completes.
      record->data.resize(request.data.byte_count());
      request.data.copy_to(record->data);
    }
    const std::uint64_t sequence = record->sequence;
    remember(std::move(record));
    if (request.force_unit_access) {
      error = co_await make_durable(request.extent, sequence, power_cycle);
    } else if (volatile_bytes_ > options_.limit_bytes) {
      error = co_await make_room();
    }
    if (error == Error::kNone && power_cycle != power_cycle_) error = Error::kNotReady;
  }
  co_return Completion{.error = error, .data = std::move(request.data)};
}

// Under the mutex, so that nothing is unmapped meanwhile. Unmapped blocks read as zeros, so writing
// zeros there changes nothing that a reader sees, and no cut can undo it.
Task<Error> VolatileCache::take_room(Extent extent, std::uint64_t power_cycle) {
  co_await write_back_mutex_.lock();
  Error error = power_cycle == power_cycle_ ? Error::kNone : Error::kNotReady;
  Extent taken{.first = extent.first, .block_count = 0};
  while (error == Error::kNone && taken.end() < extent.end()) {
    const Lba at = taken.end();
    const Result<ProvisioningRun> run =
        co_await below().provisioning(at, below().geometry().block_count);
    // Where the device cannot say, the write itself has to.
    std::uint64_t count = run ? run->block_count : extent.end() - at;
    if (run && !run->mapped) {
      count = std::min(count, extent.end() - at);
      Request zeroes{.operation = Operation::kWriteZeroes,
                     .extent = {.first = at, .block_count = count}};
      const Completion done = co_await below().submit(std::move(zeroes));
      if (done.error != Error::kUnsupported) error = done.error;
    }
    taken.block_count += count;
  }
  if (error == Error::kNone) mapped_ = taken;
  if (error == Error::kNone && power_cycle != power_cycle_) error = Error::kNotReady;
  write_back_mutex_.unlock();
  co_return error;
}

void VolatileCache::remember(RecordPointer record) {
  cut_out(record->extent);
  volatile_bytes_ += record->data.size() + kRecordBytes;
  pieces_.emplace(record->extent.first, Piece{.end = record->extent.end(), .record = record});
  records_.push_back(std::move(record));
}

void VolatileCache::let_go(const RecordPointer& record) {
  const auto found = std::ranges::find(records_, record);
  if (found == records_.end()) return;
  volatile_bytes_ -= record->data.size() + kRecordBytes;
  records_.erase(found);
}

// No piece has a block of the extent afterwards.
void VolatileCache::cut_out(const Extent& extent) {
  auto piece = pieces_.upper_bound(extent.first);
  if (piece != pieces_.begin()) --piece;
  while (piece != pieces_.end() && piece->first < extent.end()) {
    const auto [first, old] = *piece;
    if (old.end <= extent.first) {
      ++piece;
      continue;
    }
    piece = pieces_.erase(piece);
    if (first < extent.first) pieces_.emplace(first, Piece{extent.first, old.record});
    if (old.end > extent.end()) pieces_.emplace(extent.end(), Piece{old.end, old.record});
  }
}

void VolatileCache::drop_pieces(const Run& run) {
  // Only where nothing newer has been written meanwhile.
  for (const Run& seen : runs_in(run.extent)) {
    if (seen.record == run.record) cut_out(seen.extent);
  }
}

// These blocks are on the medium as the record of that number, or a newer one, has them.
void VolatileCache::settle_blocks(const Extent& extent, std::uint64_t sequence) {
  std::vector<RecordPointer> settled;
  for (const RecordPointer& record : records_) {
    if (record->sequence > sequence) break;
    if (!record->extent.overlaps(extent)) continue;
    record->open.remove(extent);
    if (record->open.empty()) settled.push_back(record);
  }
  for (const RecordPointer& record : settled) let_go(record);
}

// To the device. ---------------------------------------------------------------------------------

Task<Completion> VolatileCache::flush_cached(Request request) {
  Error error = co_await ready();
  if (error == Error::kNone) {
    const std::uint64_t power_cycle = power_cycle_;
    error = co_await flush_all(sequence_, power_cycle);
    if (error == Error::kNone && power_cycle != power_cycle_) error = Error::kNotReady;
  }
  co_return Completion{.error = error, .data = std::move(request.data)};
}

Task<Error> VolatileCache::flush_all(std::uint64_t sequence, std::uint64_t power_cycle) {
  const Extent everything{.first = 0, .block_count = below().geometry().block_count};
  co_await write_back_mutex_.lock();
  Error error = power_cycle == power_cycle_ ? Error::kNone : Error::kNotReady;
  // Another flush may have covered it while this one waited. Even so the device is asked.
  if (error == Error::kNone) {
    error = co_await write_back(everything, false, power_cycle);
  }
  if (error == Error::kNone) {
    Request flush{.operation = Operation::kFlush, .extent = everything};
    const Completion done = co_await below().submit(std::move(flush));
    error = done.error;
  }
  if (error == Error::kNone && power_cycle == power_cycle_) {
    while (!records_.empty() && records_.front()->sequence <= sequence) {
      let_go(RecordPointer(records_.front()));
    }
  }
  write_back_mutex_.unlock();
  co_return error;
}

Task<Error> VolatileCache::make_durable(Extent extent, std::uint64_t sequence,
                                        std::uint64_t power_cycle) {
  co_await write_back_mutex_.lock();
  Error error = power_cycle == power_cycle_ ? Error::kNone : Error::kNotReady;
  if (error == Error::kNone) error = co_await write_back(extent, true, power_cycle);
  if (error == Error::kNone && power_cycle == power_cycle_) settle_blocks(extent, sequence);
  write_back_mutex_.unlock();
  co_return error;
}

// Writes the oldest back, a quarter of the room at once. What is written back without a flush is
// on the medium as far as an emulated cut is concerned.
Task<Error> VolatileCache::make_room() {
  const std::uint64_t power_cycle = power_cycle_;
  co_await write_back_mutex_.lock();
  Error error = Error::kNone;
  while (error == Error::kNone && power_cycle == power_cycle_ && !records_.empty() &&
         volatile_bytes_ > options_.limit_bytes / 4 * 3) {
    const RecordPointer oldest = records_.front();
    error = co_await write_back(oldest->extent, false, power_cycle);
    if (error == Error::kNone && power_cycle == power_cycle_) let_go(oldest);
  }
  write_back_mutex_.unlock();
  co_return error;
}

Task<Error> VolatileCache::write_back(Extent extent, bool force_unit_access,
                                      std::uint64_t power_cycle) {
  std::vector<Run> runs = runs_in(extent);
  std::ranges::sort(runs, [](const Run& left, const Run& right) {
    const std::uint64_t first = left.record->sequence;
    const std::uint64_t second = right.record->sequence;
    return first != second ? first < second : left.extent.first < right.extent.first;
  });
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Error error = co_await write_run(runs[i], force_unit_access);
    if (power_cycle != power_cycle_) co_return Error::kNotReady;
    if (error != Error::kNone) co_return error;
    drop_pieces(runs[i]);
  }
  co_return Error::kNone;
}

Task<Error> VolatileCache::write_run(Run run, bool force_unit_access) {
  if (run.record->kind == Operation::kUnmap && mapped_.overlaps(run.extent)) mapped_ = {};
  if (run.record->kind != Operation::kWrite) {
    Request request{.operation = run.record->kind,
                    .force_unit_access = force_unit_access,
                    .extent = run.extent};
    const Completion done = co_await below().submit(std::move(request));
    if (done.error != Error::kNone || !force_unit_access) co_return done.error;
    Request flush{.operation = Operation::kFlush, .extent = run.extent};
    const Completion flushed = co_await below().submit(std::move(flush));
    co_return flushed.error;
  }
  if (staging_.empty()) {
    BufferList room = co_await home().buffers().allocate(kStagingBytes);
    assert(room.slice_count() == 1);
    staging_ = room[0];
  }
  const std::size_t block_bytes = below().geometry().block_bytes;
  const std::size_t at = (run.extent.first - run.record->extent.first) * block_bytes;
  const std::size_t length = run.extent.block_count * block_bytes;
  for (std::size_t done = 0; done < length;) {
    const std::size_t step = std::min(kStagingBytes, length - done);
    Buffer slice = staging_.slice(0, step);
    const std::span<const std::byte> source(run.record->data.data() + at + done, step);
    std::ranges::copy(source, slice.data());
    Request request{.operation = Operation::kWrite,
                    .force_unit_access = force_unit_access,
                    .extent = {run.extent.first + done / block_bytes, step / block_bytes},
                    .data = BufferList(std::move(slice))};
    const Completion completion = co_await below().submit(std::move(request));
    if (completion.error != Error::kNone) co_return completion.error;
    done += step;
  }
  co_return Error::kNone;
}

// The power goes. --------------------------------------------------------------------------------

void VolatileCache::cut_power(PowerLoss loss, std::uint64_t seed) {
  ++power_cycle_;
  assert(!settling_ || records_.empty());
  // What survived an earlier cut is on the medium, even if it is still on its way below.
  const std::vector<Run> survivors = draw_survivors(loss, Random(seed));
  survivors_.insert(survivors_.end(), survivors.begin(), survivors.end());
  records_.clear();
  pieces_.clear();
  volatile_bytes_ = 0;
  changed_.notify_all();
  if (settling_) return;
  settling_ = true;
  spawn(settle());
}

Task<void> VolatileCache::settle() {
  co_await write_back_mutex_.lock();
  while (!survivors_.empty() && settle_error_ == Error::kNone) {
    const Run run = survivors_.front();
    settle_error_ = co_await write_run(run, false);
    survivors_.pop_front();
  }
  if (settle_error_ == Error::kNone) {
    Request flush{.operation = Operation::kFlush};
    const Completion done = co_await below().submit(std::move(flush));
    settle_error_ = done.error;
  }
  write_back_mutex_.unlock();
  settling_ = false;
  changed_.notify_all();
}

Task<void> VolatileCache::settled() {
  while (settling_) co_await changed_.wait();
}

std::vector<VolatileCache::Run> VolatileCache::draw_survivors(PowerLoss loss, Random random) const {
  if (reordering_) loss = PowerLoss::kAnyOrder;
  std::vector<Run> survivors;
  const auto keep = [&](const RecordPointer& record, const Extent& extent) {
    if (extent.block_count > 0) survivors.push_back({.extent = extent, .record = record});
  };
  const auto keep_whole = [&](const RecordPointer& record) {
    for (const Extent& run : record->open.runs()) keep(record, run);
  };
  // The first blocks of each run, up to a drawn one.
  const auto keep_front = [&](const RecordPointer& record) {
    for (const Extent& run : record->open.runs()) {
      keep(record, {.first = run.first, .block_count = random.below(run.block_count + 1)});
    }
  };
  const auto keep_some = [&](const RecordPointer& record) {
    for (const Extent& run : record->open.runs()) {
      for (Lba lba = run.first; lba < run.end(); ++lba) {
        if (random.below(2) == 0) keep(record, {.first = lba, .block_count = 1});
      }
    }
  };
  switch (loss) {
    case PowerLoss::kEverything:
      break;
    case PowerLoss::kNothing:
      for (const RecordPointer& record : records_) keep_whole(record);
      break;
    case PowerLoss::kInOrder: {
      const std::uint64_t whole = random.below(records_.size() + 1);
      for (std::uint64_t i = 0; i < whole; ++i) keep_whole(records_[i]);
      if (whole < records_.size()) keep_front(records_[whole]);
      break;
    }
    case PowerLoss::kAnyOrder:
      for (const RecordPointer& record : records_) {
        const std::uint64_t fate = random.below(3);  // Dropped, kept or torn.
        if (fate == 1) keep_whole(record);
        if (fate == 2 && record->open.block_count() > kMostTornBlocks) keep_front(record);
        if (fate == 2 && record->open.block_count() <= kMostTornBlocks) keep_some(record);
      }
      break;
  }
  return survivors;
}

}  // namespace sandbay::fault
