// Changes are applied to the visible image at once and to the durable one at the next flush.
#include "test_drive.h"

#include <algorithm>
#include <utility>

#include "tests/unit/block/test_devices.h"

namespace sandbay::raidtest {

namespace {

constexpr std::uint64_t kSector = 512;

void apply(sim::SparseImage& image, const DriveState::Change& change, std::uint64_t from,
           std::uint64_t byte_count) {
  if (change.data.empty()) {
    image.punch(change.offset + from, byte_count);
  } else {
    image.write(change.offset + from, std::span(change.data).subspan(from, byte_count));
  }
}

using Change = DriveState::Change;

// The part of a change before or behind another place.
std::shared_ptr<const Change> part_of(const Change& change, std::uint64_t begin,
                                      std::uint64_t end) {
  auto part = std::make_shared<Change>();
  part->offset = begin;
  part->byte_count = end - begin;
  if (!change.data.empty()) {
    const auto bytes = std::span(change.data).subspan(begin - change.offset, end - begin);
    part->data.assign(bytes.begin(), bytes.end());
  }
  return part;
}

// A durable change makes nothing else durable, but earlier ones of its place are gone.
void supersede(DriveState& state, const Change& durable) {
  const std::uint64_t begin = durable.offset;
  const std::uint64_t end = begin + durable.byte_count;
  std::deque<std::shared_ptr<const Change>> left;
  for (auto& change : state.unflushed) {
    const std::uint64_t change_end = change->offset + change->byte_count;
    if (change_end <= begin || end <= change->offset) {
      left.push_back(std::move(change));
      continue;
    }
    if (change->offset < begin) left.push_back(part_of(*change, change->offset, begin));
    if (end < change_end) left.push_back(part_of(*change, end, change_end));
  }
  state.unflushed = std::move(left);
}

}  // namespace

DriveState after_power_cut(const DriveState& state, Random& random) {
  DriveState after;
  after.durable = state.durable;
  after.unreadable = state.unreadable;
  // All, nothing, whole changes, or single sectors.
  const std::uint64_t mood = random.below(5);
  for (const auto& change : state.unflushed) {
    const bool whole = random.chance(0.5);
    for (std::uint64_t at = 0; at < change->byte_count; at += kSector) {
      const bool keep = mood == 0 || (mood == 2 && whole) || (mood >= 3 && random.chance(0.5));
      if (keep) apply(after.durable, *change, at, std::min(kSector, change->byte_count - at));
    }
  }
  after.visible = after.durable;
  return after;
}

TestDrive::TestDrive(Executor& home, std::string name, std::uint64_t byte_count,
                     std::uint32_t block_bytes)
    : home_(home), name_(std::move(name)), random_(home.random().fork()) {
  geometry_.block_bytes = block_bytes;
  geometry_.physical_block_bytes = block_bytes;
  geometry_.block_count = byte_count / block_bytes;
  geometry_.unmap = true;
  geometry_.unmap_zeroes = true;
  state_.visible.resize(byte_count);
  state_.durable.resize(byte_count);
}

TestDrive::~TestDrive() = default;

void TestDrive::release() {
  hanging_ = false;
  released_.notify_all();
}

Task<Completion> TestDrive::submit(Request request) {
  assert(fits(geometry_, request));
  if (latency_ > Duration::zero()) {
    const auto most = static_cast<std::uint64_t>(latency_.count());
    co_await home_.sleep_for(Duration(static_cast<std::int64_t>(random_.below(most + 1))));
  }
  if (request.operation == Operation::kRead && read_delay_ > Duration::zero()) {
    co_await home_.sleep_for(read_delay_);
  }
  while (hanging_) co_await released_.wait();
  co_return co_await perform(std::move(request));
}

void TestDrive::become_another() {
  const std::uint64_t byte_count = state_.visible.size();
  state_ = {};
  state_.visible.resize(byte_count);
  state_.durable.resize(byte_count);
  raise_attention();
}

Task<Completion> TestDrive::perform(Request request) {
  Completion completion;
  completion.error = failure_;
  if (request.operation != Operation::kAdvise && std::exchange(attention_, false)) {
    completion.error = Error::kNotReady;
  }
  const Extent extent = request.extent;
  const std::uint64_t offset = extent.first * geometry_.block_bytes;
  const bool reads = request.operation == Operation::kRead;
  if (reads && read_failure_ != Error::kNone) completion.error = read_failure_;
  if (completion.error == Error::kNone && reads) {
    if (extent.first >= data_from) ++counts.reads;
    const auto bad = state_.unreadable.lower_bound(extent.first);
    if (bad != state_.unreadable.end() && *bad < extent.end()) {
      completion.error = Error::kMediumError;
      completion.first_bad_lba = *bad;
    }
    std::uint64_t at = offset;
    for (std::size_t i = 0; i < request.data.slice_count(); ++i) {
      state_.visible.read(at, request.data[i].bytes());
      at += request.data[i].byte_count();
    }
    if (completion.error != Error::kNone) testing::spoil(request.data);
  } else if (completion.error == Error::kNone && request.operation != Operation::kAdvise) {
    completion.error = change(request);
  }
  completion.data = std::move(request.data);
  co_return completion;
}

Error TestDrive::change(const Request& request) {
  if (before_change) before_change(*this, request);
  if (failure_ != Error::kNone) return failure_;
  if (request.operation == Operation::kFlush) {
    ++counts.flushes;
    for (const auto& change : state_.unflushed) {
      apply(state_.durable, *change, 0, change->byte_count);
    }
    state_.unflushed.clear();
    return Error::kNone;
  }
  if (write_failure_ != Error::kNone) return write_failure_;
  if (request.operation == Operation::kUnmap && !geometry_.unmap) return Error::kUnsupported;
  if (full_ && (all_full_ || request.extent.first >= data_from)) return Error::kNoSpace;
  const bool write = request.operation == Operation::kWrite;
  if (refuses_data_ && write && request.extent.first >= data_from) return Error::kMediumError;
  if (request.extent.first >= data_from) ++(write ? counts.writes : counts.zeroes);
  auto change = std::make_shared<DriveState::Change>();
  change->offset = request.extent.first * geometry_.block_bytes;
  change->byte_count = request.extent.byte_count(geometry_.block_bytes);
  if (write) {
    change->data.resize(change->byte_count);
    request.data.copy_to(change->data);
    for (Lba lba = request.extent.first; lba < request.extent.end(); ++lba) {
      state_.unreadable.erase(lba);
    }
  }
  apply(state_.visible, *change, 0, change->byte_count);
  if (request.force_unit_access) {
    supersede(state_, *change);
    apply(state_.durable, *change, 0, change->byte_count);
  } else {
    state_.unflushed.push_back(std::move(change));
  }
  return Error::kNone;
}

Task<Result<ProvisioningRun>> TestDrive::provisioning(Lba first, Lba limit) {
  while (hanging_) co_await released_.wait();
  if (failure_ != Error::kNone) co_return std::unexpected(failure_);
  if (std::exchange(attention_, false)) co_return std::unexpected(Error::kNotReady);
  const File::Run run = state_.visible.run_at(first * geometry_.block_bytes);
  const std::uint64_t blocks =
      std::clamp<std::uint64_t>(run.byte_count / geometry_.block_bytes, 1, limit - first);
  co_return ProvisioningRun{.block_count = blocks, .mapped = !run.hole};
}

}  // namespace sandbay::raidtest
