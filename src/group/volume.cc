// Opening and closing of devices. Sizes: a new volume gets what its specification says; one that
// was there before may have grown below (an expansion whose record was lost in a crash, or an
// image that somebody extended), never shrunk.
#include "group/volume.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <cassert>

#include "block/file_device.h"
#include "block/memory_device.h"
#include "block/slice.h"
#include "cache/cache.h"
#include "cache/read_ahead.h"
#include "fault/engine.h"
#include "group/door.h"
#include "group/log.h"
#include "group/unit_book.h"
#include "group/unit_faults.h"
#include "group/units.h"
#include "group/volume_front.h"
#include "pool/pool_volume.h"
#include "runtime/blocking.h"
#include "runtime/known.h"
#include "runtime/sync.h"

namespace sandbay::group {

namespace {

constexpr Duration kCancelPatience = std::chrono::seconds(1);
constexpr Duration kBetweenWarnings = std::chrono::seconds(10);

std::string_view verb(Operation operation) {
  switch (operation) {
    case Operation::kRead:
      return "read";
    case Operation::kWrite:
      return "write";
    case Operation::kFlush:
      return "flush";
    case Operation::kUnmap:
      return "unmap";
    case Operation::kWriteZeroes:
      return "write of zeros";
    case Operation::kAdvise:
      return "advice";
  }
  return "request";
}

// Says that the device fails: the first time at once, then at most once in kBetweenWarnings, with
// how often it has failed since. Belongs to the device, which may outlive its volume.
struct FailureLog {
  std::string volume;  // As it was called when it was opened.
  std::string path;
  std::uint64_t unsaid = 0;
  TimePoint quiet_until{};

  void operator()(Operation operation, Error error) {
    ++unsaid;
    const TimePoint now = Executor::current().now();
    if (now < quiet_until) return;
    log_warning("volume {}: {}: {} failed: {}{}", volume, path, verb(operation), describe(error),
                unsaid > 1 ? fmt::format(" ({} failures since the last warning)", unsaid) : "");
    unsaid = 0;
    quiet_until = now + kBetweenWarnings;
  }
};

// A flush that may outlive its caller's patience.
scsi::LogicalUnitOptions unit_options(const VolumeRecord& record, const ArrayFacts& array) {
  const VolumeSpecification& s = record.specification;
  scsi::LogicalUnitOptions options;
  options.vendor = s.vendor.empty() ? array.vendor : s.vendor;
  options.product = s.product.empty() ? array.product : s.product;
  options.revision = s.revision.empty() ? array.revision : s.revision;
  options.serial = s.serial.empty() ? serial_of(record.uuid) : s.serial;
  options.uuid = record.uuid;
  options.naa = naa_of(record);
  options.name = s.name;
  options.array_label = array.label;
  options.array_id = array.id;
  options.personality = array.personality;
  options.target_ports = array.target_ports;
  options.thin = s.thin;
  options.write_cache_enabled = s.write_cache;
  options.eui64 = s.eui64;
  options.removable = s.removable;
  options.rotation_rate = static_cast<std::uint16_t>(s.rotation);
  const auto set_limit = [&s](std::uint64_t bytes, std::uint32_t& blocks) {
    if (bytes != 0) blocks = static_cast<std::uint32_t>(bytes / s.block_bytes);
  };
  set_limit(s.unmap_limit_bytes, options.maximum_unmap_blocks);
  set_limit(s.write_same_limit_bytes, options.maximum_write_same_blocks);
  // Hosts that share a volume see at once which commands another host's reset has ended. Arrays
  // whose pages are played keep their own default, and their hosts change it.
  options.task_aborted_status = array.personality == nullptr;
  return options;
}

}  // namespace

std::uint64_t number_of(const Uuid& uuid) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < sizeof number; ++i) number = number << 8U | uuid[i];
  return number == 0 ? 1 : number;
}

NaaIdentifier naa_of(const VolumeRecord& record) {
  const auto& naa = record.specification.naa;
  return naa ? *naa : naa_of(record.uuid);
}

std::filesystem::path path_of(const VolumeRecord& record, const std::filesystem::path& state) {
  switch (record.specification.backing) {
    case Backing::kState:
      return state / "volumes" / volume_file_name(record.uuid);
    case Backing::kFile:
    case Backing::kDevice:
      return state / record.specification.path;  // Absolute ones stay.
    case Backing::kMemory:
    case Backing::kRaid:
    case Backing::kPool:
      return {};
  }
  return {};
}

std::shared_ptr<Volume> Volume::without_device(VolumeRecord record,
                                               const std::filesystem::path& state, Executor& home,
                                               ArrayFacts array, OpenFailure failure,
                                               cache::StreamBudget* streams) {
  std::shared_ptr<Volume> volume(new Volume);
  volume->array_ = std::move(array);
  volume->record_ = std::move(record);
  volume->path_ = path_of(volume->record_, state);
  volume->home_ = &home;
  volume->failure_ = std::move(failure);
  const VolumeSpecification& s = volume->record_.specification;
  if (s.backing == Backing::kPool && s.block_bytes != 0) {
    volume->door_ = std::make_unique<Door>(home, "volume " + s.name,
                                           Geometry{.block_bytes = s.block_bytes,
                                                    .physical_block_bytes = s.physical_block_bytes,
                                                    .block_count = s.size_bytes / s.block_bytes,
                                                    .unmap = true,
                                                    .unmap_zeroes = true},
                                           nullptr, /*follows=*/true);
    volume->finish_opening(streams);
  }
  return volume;
}

void Volume::stand_on(Door& set, const Extent& extent) {
  const std::uint64_t number = number_of(record_.uuid);
  slice_ = std::make_unique<Slice>(set, extent, number);
  if (set.cache() != nullptr) set.cache()->set_mode(number, record_.specification.cache);
}

void Volume::apply_rates() {
  const VolumeSpecification& s = record_.specification;
  pool_volume_->set_rate_limits(
      {.operations_per_second = s.operations_limit, .bytes_per_second = s.bytes_limit});
}

void Volume::finish_opening(cache::StreamBudget* streams) {
  BlockDevice& below = storage_ != nullptr ? *storage_
                       : slice_ != nullptr ? static_cast<BlockDevice&>(*slice_)
                       : door_ != nullptr  ? static_cast<BlockDevice&>(*door_)
                                           : static_cast<BlockDevice&>(*pool_volume_);
  front_ = std::make_unique<VolumeFront>(below, number_of(record_.uuid));
  front_->allow(record_.online, !record_.specification.read_only);
  device_ = front_.get();
  if (streams != nullptr) {
    read_ahead_ = std::make_unique<cache::ReadAhead>(*front_, *streams);
    device_ = read_ahead_.get();
  }
  unit_ = std::make_unique<scsi::LogicalUnit>(*device_, unit_options(record_, array_));
  unit_->set_offline(!record_.online);
  for (std::size_t i = 0; i < array_.access_states.size(); ++i) {
    unit_->set_access_state(array_.target_ports.at(i), array_.access_states[i]);
  }
  if (array_.book != nullptr) {
    kept_ = array_.book->part(record_.uuid);
    unit_->restore(*kept_, array_.book->of(record_.uuid));
  }
  if (array_.faults == nullptr) return;
  faults_ = std::make_unique<UnitFaults>(*array_.faults->post(*home_), name());
  unit_->set_interference(faults_.get());
}

std::shared_ptr<Volume> Volume::open_on_pool(VolumeRecord record, PoolGround ground,
                                             ArrayFacts array) {
  std::shared_ptr<Volume> volume(new Volume);
  volume->array_ = std::move(array);
  volume->record_ = std::move(record);
  volume->home_ = &ground.volume->home();
  cache::StreamBudget* const streams = ground.streams;
  volume->stand_on(std::move(ground));
  volume->finish_opening(streams);
  return volume;
}

void Volume::stand_on(PoolGround ground) {
  pool_volume_ = std::move(ground.volume);
  const Geometry& geometry = pool_volume_->geometry();
  VolumeSpecification& s = record_.specification;
  s.block_bytes = geometry.block_bytes;
  s.size_bytes = geometry.block_count * geometry.block_bytes;
  apply_rates();
  for (cache::Cache* const cache : ground.caches) cache->set_mode(number_of(uuid()), s.cache);
}

void Volume::come_back(VolumeRecord record, PoolGround ground) {
  assert(failure_ && door_ != nullptr && unit_ != nullptr);
  const std::uint64_t before = door_->geometry().block_count;
  record_ = std::move(record);
  stand_on(std::move(ground));
  door_->lead_to(*pool_volume_);
  failure_.reset();
  if (door_->geometry().block_count == before) return;
  if (read_ahead_ != nullptr) read_ahead_->grow();
  unit_->capacity_changed();
}

Task<Volume::Opened> Volume::open(VolumeRecord record, std::filesystem::path state, Executor& home,
                                  Opening opening, ArrayFacts array, Door* set) {
  co_return co_await invoke_on(
      home, open_here(std::move(record), std::move(state), &home, opening, std::move(array), set));
}

Task<Volume::Opened> Volume::open_here(VolumeRecord record, std::filesystem::path state,
                                       Executor* home, Opening opening, ArrayFacts array,
                                       Door* set) {
  std::shared_ptr<Volume> volume(new Volume);
  volume->array_ = std::move(array);
  volume->record_ = std::move(record);
  volume->path_ = path_of(volume->record_, state);
  volume->home_ = home;
  VolumeSpecification& s = volume->record_.specification;
  if (s.backing == Backing::kMemory) {
    auto memory = MemoryDevice::create(*home, {.byte_count = s.size_bytes,
                                               .block_bytes = s.block_bytes,
                                               .physical_block_bytes = s.physical_block_bytes});
    if (!memory) co_return std::unexpected(OpenFailure{.reason = memory.error()});
    volume->memory_ = memory->get();
    volume->storage_ = std::move(*memory);
  } else if (s.backing == Backing::kRaid) {
    assert(set != nullptr && volume->record_.placement);
    const Extent extent = known(volume->record_.placement).extent;
    const Geometry& geometry = set->geometry();
    if (extent.end() > geometry.block_count || s.block_bytes != geometry.block_bytes) {
      co_return std::unexpected(OpenFailure{
          .reason = fmt::format("it is in blocks {} to {} of {} bytes, but {} has {} of {} bytes",
                                extent.first, extent.end(), s.block_bytes, set->description(),
                                geometry.block_count, geometry.block_bytes)});
    }
    volume->stand_on(*set, extent);
  } else {
    auto opened = co_await open_file(volume.get(), opening);
    if (!opened) {
      volume->storage_.reset();
      co_return std::unexpected(opened.error());
    }
  }
  volume->finish_opening(set != nullptr ? set->streams() : nullptr);
  co_return volume;
}

// Both block.
std::string lack_of_space(const std::filesystem::path& file, std::uint64_t byte_count) {
  // The metadata's own reserve, and a little.
  constexpr std::uint64_t kLeftFree = std::uint64_t{32} << 20;
  const std::filesystem::path folder = file.parent_path();
  std::error_code error;
  const auto space = std::filesystem::space(folder.empty() ? "." : folder, error);
  const bool unknown = error || space.capacity == 0;  // ramfs has no size.
  if (unknown || (space.available >= kLeftFree && space.available - kLeftFree >= byte_count)) {
    return {};
  }
  return fmt::format(
      "{} are to be reserved, and {} are free where {} stands, of which {} stay free; write a "
      "smaller size, leave preallocate out, or make room",
      format_size(byte_count), format_size_rounded(space.available), file.string(),
      format_size(kLeftFree));
}

namespace {

std::string lack_for_image(const std::filesystem::path& file, std::uint64_t byte_count) {
  struct stat there{};
  const bool exists = ::stat(file.c_str(), &there) == 0;
  const std::uint64_t has =
      exists ? static_cast<std::uint64_t>(there.st_blocks) * 512 : std::uint64_t{0};
  return has < byte_count ? lack_of_space(file, byte_count - has) : std::string();
}

// Why the image of a volume that is to be made cannot be reserved.
Task<std::string> cannot_reserve(Executor* home, std::filesystem::path file,
                                 std::uint64_t byte_count) {
  constexpr Duration kPatience = std::chrono::seconds(15);
  const auto lack = std::make_shared<std::string>();
  const auto look = [lack, file, byte_count] { *lack = lack_for_image(file, byte_count); };
  const Error error = co_await run_blocking(*home, file.string(), look, kPatience);
  if (error == Error::kNone) co_return *lack;
  co_return fmt::format("{} cannot be looked at: {}", file.string(), describe(error));
}

}  // namespace

Task<std::expected<void, OpenFailure>> Volume::open_file(Volume* volume, Opening opening) {
  VolumeSpecification& s = volume->record_.specification;
  if (opening == Opening::kCreate && s.preallocate) {
    const std::string lack = co_await cannot_reserve(volume->home_, volume->path_, s.size_bytes);
    if (!lack.empty()) co_return std::unexpected(OpenFailure{.reason = lack});
  }
  const bool create = opening == Opening::kCreate && s.backing != Backing::kDevice;
  FileDeviceOptions options{
      .path = volume->path_.string(),
      .create = create && s.size_bytes != 0,
      .byte_count = opening == Opening::kCreate ? s.size_bytes : 0,
      .block_bytes = s.block_bytes,
      .physical_block_bytes = s.physical_block_bytes,
      .preallocate = s.preallocate,
      .read_only = s.read_only,
      .only_device = opening == Opening::kCreate && s.backing == Backing::kDevice,
      .lock = true,
      .on_failure = FailureLog{.volume = s.name, .path = volume->path_}};
  Error cause = Error::kNone;
  auto file = co_await FileDevice::open(*volume->home_, std::move(options), &cause);
  if (!file) {
    co_return std::unexpected(
        OpenFailure{.reason = file.error(),
                    .health = cause == Error::kNotFound ? Health::kMissing : Health::kFailed,
                    .stops_start = cause == Error::kNotReady});
  }
  const Geometry& geometry = (*file)->geometry();
  const std::uint64_t byte_count = geometry.block_count * geometry.block_bytes;
  if (opening == Opening::kExisting && byte_count < s.size_bytes) {
    co_return std::unexpected(OpenFailure{
        .reason =
            fmt::format("{} has {} but the volume has {}; bring the whole image back",
                        volume->path_.string(), format_size(byte_count), format_size(s.size_bytes)),
    });
  }
  s.size_bytes = byte_count;
  volume->file_ = file->get();
  volume->storage_ = std::move(*file);
  if (create) {
    const auto folder = volume->path_.parent_path();
    const Error error =
        co_await volume->home_->sync_directory(folder.empty() ? "." : folder.string());
    if (error != Error::kNone) {
      co_return std::unexpected(OpenFailure{
          .reason = fmt::format("{} cannot be synced: {}", folder.string(), describe(error))});
    }
  }
  co_return std::expected<void, OpenFailure>{};
}

Volume::~Volume() {
  // Whatever close() left behind still has a request in it and must not be destroyed.
  (void)unit_.release();
  (void)read_ahead_.release();
  (void)front_.release();
  (void)door_.release();
  (void)pool_volume_.release();
  (void)slice_.release();
  (void)storage_.release();
}

Task<Volume::State> Volume::state() {
  if (failure_) co_return State{.counters = {}, .health = failure_->health};
  co_return co_await invoke_on(*home_, state_here());
}

Task<Volume::State> Volume::state_here() { co_return state_at_home(); }

Volume::State Volume::state_at_home() const {
  if (failure_) return {.counters = {}, .health = failure_->health};
  if (unit_ == nullptr) return {};  // Closed while the caller was on its way here.
  State state{.counters = unit_->counters(), .health = device_->health()};
  if (read_ahead_ != nullptr) state.streams = read_ahead_->counters();
  state.sanitize = unit_->sanitizer().overview();
  return state;
}

Task<Error> Volume::grow(std::uint64_t byte_count) {
  if (failure_) co_return Error::kNotReady;
  co_return co_await invoke_on(*home_, grow_here(byte_count));
}

Task<Error> Volume::grow_here(std::uint64_t byte_count) {
  Error error = Error::kUnsupported;
  if (memory_ != nullptr) error = memory_->grow(byte_count);
  if (file_ != nullptr) error = co_await file_->grow(byte_count);
  if (slice_ != nullptr) {
    slice_->grow(byte_count / slice_->geometry().block_bytes);
    error = Error::kNone;
  }
  if (pool_volume_ != nullptr) error = Error::kNone;
  if (error == Error::kNone && read_ahead_ != nullptr) read_ahead_->grow();
  if (error == Error::kNone) unit_->capacity_changed();
  co_return error;
}

Task<void> Volume::take_name() { co_await invoke_on(*home_, take_name_here()); }

Task<void> Volume::take_name_here() {
  if (faults_ != nullptr) faults_->rename(name());
  co_return;
}

Task<void> Volume::apply_access() { co_await invoke_on(*home_, apply_access_here()); }

Task<void> Volume::apply_access_here() {
  if (unit_ == nullptr) co_return;
  const bool had_writes = front_->takes_writes();
  front_->allow(record_.online, !record_.specification.read_only);
  unit_->set_offline(!record_.online);
  const bool takes_writes = front_->takes_writes();
  if (takes_writes != had_writes) {
    unit_->establish(scsi::UnitAttention::kModeParametersChanged);
  }
  // Requests that are queued below must not be written once the volume is offline or read-only.
  if (!record_.online || (had_writes && !takes_writes)) co_await unit_->clear();
}

void Volume::content_replaced() {
  if (failure_ || unit_ == nullptr) return;
  unit_->establish(scsi::UnitAttention::kMediumMayHaveChanged);
  unit_->content_replaced();
}

Task<void> Volume::warn_of_space() {
  if (!failure_) co_await invoke_on(*home_, warn_of_space_here());
}

Task<void> Volume::set_access_state(std::uint16_t port_group, scsi::AccessState state) {
  co_await invoke_on(*home_, set_access_state_here(port_group, state));
}

Task<void> Volume::set_access_state_here(std::uint16_t port_group, scsi::AccessState state) {
  if (unit_ != nullptr) unit_->set_access_state(port_group, state);
  co_return;
}

Task<void> Volume::warn_of_space_here() {
  if (unit_ != nullptr) unit_->establish(scsi::UnitAttention::kThinSoftThreshold);
  co_return;
}

struct Volume::Flush {
  Cancellation cancellation;
  Event ended;
  Error error = Error::kNone;
};

Task<void> Volume::run_flush(std::shared_ptr<Flush> state, BlockDevice* device) {
  Request request{.operation = Operation::kFlush};
  request.extent.block_count = device->geometry().block_count;
  request.cancellation = &state->cancellation;
  const Completion completion = co_await device->submit(std::move(request));
  state->error = completion.error;
  state->ended.set();
}

Task<Error> Volume::close(TimePoint deadline) {
  co_return co_await invoke_on(*home_, close_here(deadline));
}

Task<Error> Volume::flush(TimePoint deadline) {
  co_return co_await invoke_on(*home_, flush_here(deadline));
}

Task<Error> Volume::flush_here(TimePoint deadline) {
  // It is closed; or it took nothing.
  if (unit_ == nullptr || failure_) co_return Error::kNone;
  if (flush_ == nullptr) {
    flush_ = std::make_shared<Flush>();
    spawn(run_flush(flush_, device_));
  }
  const auto state = flush_;
  bool flushed = co_await state->ended.wait_until(deadline);
  if (!flushed) {
    state->cancellation.cancel();
    flushed = co_await state->ended.wait_until(home_->now() + kCancelPatience);
  }
  co_return flushed ? state->error : Error::kTimedOut;
}

Task<Error> Volume::close_here(TimePoint deadline) {
  if (unit_ == nullptr) co_return Error::kNone;  // It has been before.
  const bool quiet = co_await unit_->close(deadline);
  const Error error = co_await flush_here(deadline);
  if (!quiet || error == Error::kTimedOut) co_return Error::kTimedOut;
  if (read_ahead_ != nullptr) co_await read_ahead_->close();
  unit_.reset();
  file_ = nullptr;
  memory_ = nullptr;
  device_ = nullptr;
  read_ahead_.reset();
  front_.reset();
  door_.reset();
  pool_volume_.reset();
  slice_.reset();
  storage_.reset();
  co_return error;
}

}  // namespace sandbay::group
