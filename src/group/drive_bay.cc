// Opening of drives. A file of a drive is locked like that of a volume, so that two daemons cannot
// have it at once.
#include "group/drive_bay.h"

#include <fmt/core.h>

#include "block/file_device.h"
#include "block/memory_device.h"
#include "group/claims.h"
#include "group/units.h"
#include "model/drive_type.h"
#include "runtime/blocking.h"

namespace sandbay::group {

namespace {

// Holes that stand side by side are few.
constexpr unsigned kMostRuns = 64;

// A filesystem that says nothing for so long hangs, and its drive is absent.
constexpr Duration kLookPatience = std::chrono::seconds(5);

// The size of the profile's drive from this drive's begin on.
std::uint64_t most_bytes(const DriveConfiguration& configured) {
  return model::sector_count(configured.type->profile()) * model::kSectorBytes -
         configured.begin_bytes;
}

}  // namespace

DriveBay::DriveBay(DriveConfiguration configured, std::uint64_t number, std::string member,
                   const std::filesystem::path& state, model::ModelClock clock)
    : configured_(std::move(configured)),
      number_(number),
      clock_(clock),
      member_(std::move(member)) {
  serial_ = configured_.serial;
  if (!configured_.path.empty()) path_ = state / configured_.path;  // Absolute ones stay.
}

DriveBay::~DriveBay() = default;

Task<std::expected<void, std::string>> DriveBay::open(Executor& home, fault::FaultEngine* engine,
                                                      Power* power, std::size_t cache_bytes) {
  cache_bytes_ = cache_bytes;
  if (configured_.medium == Medium::kMemory) {
    auto memory = MemoryDevice::create(
        home, {.byte_count = configured_.size_bytes, .block_bytes = configured_.block_bytes});
    if (!memory) absence_ = memory.error();
    if (memory) drive_ = std::move(*memory);
  } else {
    auto opened = co_await open_file(home);
    if (!opened) co_return opened;
  }
  if (drive_ == nullptr) co_return std::expected<void, std::string>{};
  absence_.clear();
  if (add_layers(engine, power, cache_bytes)) co_return std::expected<void, std::string>{};
  const Geometry& geometry = drive_->geometry();
  absence_ =
      fmt::format("it has {}, and a {} has {}{}; use a partition of that size, or another profile",
                  format_size(geometry.block_count * geometry.block_bytes), configured_.profile,
                  format_size(most_bytes(configured_)),
                  configured_.begin_bytes == 0 ? "" : " from where it begins");
  cache_.reset();
  drive_.reset();
  top_ = nullptr;
  co_return std::expected<void, std::string>{};
}

bool DriveBay::add_layers(fault::FaultEngine* engine, Power* power, std::size_t cache_bytes) {
  top_ = drive_.get();
  if (engine != nullptr) {
    cache_ = std::make_unique<fault::VolatileCache>(
        *top_, fault::VolatileCacheOptions{.limit_bytes = cache_bytes});
    top_ = cache_.get();
  }
  if (configured_.type != nullptr) {
    timed_ = timed(*top_);
    if (timed_ == nullptr) return false;
    top_ = timed_.get();
  }
  if (engine == nullptr) return true;
  fault::FaultLayerOptions options{.name = configured_.name,
                                   .number = std::nullopt,
                                   .enclosure = configured_.enclosure,
                                   .owner = member_,
                                   .serial = configured_.serial,
                                   .power = cache_.get()};
  faults_ = std::make_unique<fault::FaultLayer>(*top_, *engine, std::move(options));
  power_ = std::make_unique<PowerSwitch>(*faults_, *power);
  top_ = power_.get();
  return true;
}

Task<std::expected<void, std::string>> DriveBay::open_file(Executor& home) {
  const bool create =
      configured_.medium == Medium::kFile && configured_.size_bytes != 0 && !was_opened_;
  was_opened_ = true;
  bool answers = co_await look_now(home);
  if (!answers) {
    absence_ = fmt::format("{}: its filesystem does not answer", path_.string());
    co_return std::expected<void, std::string>{};
  }
  identity_ = look_->identity;
  const bool was_there = look_->exists;
  FileDeviceOptions options{
      .path = path_.string(),
      .create = create,
      // An existing file may be smaller than the profile's drive.
      .byte_count = configured_.whole && was_there ? 0 : configured_.size_bytes,
      .block_bytes = configured_.block_bytes,
      .rotational = configured_.rotational,
      .only_device = configured_.medium == Medium::kDevice,
      .lock = true};
  Error cause = Error::kNone;
  auto file = co_await FileDevice::open(home, std::move(options), &cause);
  if (!file && cause == Error::kNotReady) co_return std::unexpected(file.error());
  if (!file) {
    absence_ = file.error();
    co_return std::expected<void, std::string>{};
  }
  drive_ = std::move(*file);
  was_made_ = !was_there;
  answers = co_await look_now(home);
  if (answers) identity_ = look_->identity;
  if (!create) co_return std::expected<void, std::string>{};
  const auto folder = path_.parent_path();
  const Error error = co_await home.sync_directory(folder.empty() ? "." : folder.string());
  if (error == Error::kNone) co_return std::expected<void, std::string>{};
  absence_ = fmt::format("{} cannot be synced: {}", folder.string(), describe(error));
  drive_.reset();
  co_return std::expected<void, std::string>{};
}

std::unique_ptr<model::ModelledDrive> DriveBay::timed(BlockDevice& content) const {
  const std::uint64_t first = configured_.begin_bytes / model::kSectorBytes;
  auto model = configured_.type->make({.seed = number_, .background = {}});
  if (!model::ModelledDrive::fits_on(content.geometry(), first, model->sector_count())) {
    return nullptr;
  }
  model::ModelledDriveOptions options{.name = configured_.profile,
                                      .rotational = configured_.rotational,
                                      .losses = {},
                                      .first_sector = first};
  if (fault::VolatileCache* const cache = cache_.get()) {
    options.losses = [cache] { return cache->cuts(); };
  }
  auto drive =
      std::make_unique<model::ModelledDrive>(content, clock_, std::move(model), std::move(options));
  if (time_runs_) drive->begin_time();
  return drive;
}

void DriveBay::begin_time() {
  time_runs_ = true;
  for (auto* each : {timed_.get(), timed_other_.get()}) {
    if (each != nullptr) each->begin_time();
  }
}

Duration DriveBay::modelled_busy() const noexcept {
  Duration busy = busy_before_;
  for (const auto* each : {timed_.get(), timed_other_.get()}) {
    if (each != nullptr) busy += each->model().counters().busy();
  }
  return busy;
}

std::size_t DriveBay::modelled_queue() const noexcept {
  std::size_t queue = 0;
  for (const auto* each : {timed_.get(), timed_other_.get()}) {
    if (each != nullptr) queue += each->model().outstanding();
  }
  return queue;
}

BlockDevice* DriveBay::other_drive() {
  if (drive_ == nullptr) return nullptr;
  if (other_ == nullptr) {
    const Geometry& geometry = drive_->geometry();
    auto memory = MemoryDevice::create(drive_->home(),
                                       {.byte_count = geometry.block_count * geometry.block_bytes,
                                        .block_bytes = geometry.block_bytes});
    if (memory) other_ = std::move(*memory);
    if (memory && configured_.type != nullptr) timed_other_ = timed(*other_);
  }
  return timed_other_ != nullptr ? timed_other_.get() : other_.get();
}

Task<void> DriveBay::ask(std::shared_ptr<Look> look, std::filesystem::path path) {
  struct Found {
    bool exists = false;
    std::string identity;
  };
  const auto found = std::make_shared<Found>();
  const auto work = [found, path] {
    std::error_code error;
    found->exists = std::filesystem::exists(path, error);
    found->identity = identity_of(path);
  };
  const Error error = co_await run_blocking(Executor::current(), path.string(), work);
  if (error == Error::kNone) {
    look->exists = found->exists;
    look->identity = std::move(found->identity);
    look->answered = true;
  }
  look->under_way = false;
  look->ended.set();
}

void DriveBay::look() {
  if (path_.empty() || look_->under_way) return;
  look_->under_way = true;
  look_->ended.reset();
  spawn(ask(look_, path_));
}

// What was asked before says nothing of now.
Task<bool> DriveBay::look_now(Executor& home) {
  look_ = std::make_shared<Look>();
  look();
  const auto asked = look_;
  const bool ended = co_await asked->ended.wait_until(home.now() + kLookPatience);
  co_return ended && asked->answered;
}

bool DriveBay::may_have_come() const {
  if (path_.empty() || !look_->answered || !look_->exists) return false;
  return device() == nullptr || look_->identity != identity_;
}

std::string DriveBay::displacement() const {
  const bool serves_file = configured_.medium == Medium::kFile && drive_ != nullptr;
  if (!serves_file || !look_->answered || look_->identity == identity_) return {};
  return fmt::format(
      "its file {} has been removed or renamed: it serves only until the daemon ends; put the file "
      "back or replace the drive",
      path_.string());
}

bool DriveBay::take_displaced() {
  const bool displaced = !displacement().empty();
  return !std::exchange(displaced_, displaced) && displaced;
}

std::optional<std::string> DriveBay::take_changed_serial() {
  if (faults_ == nullptr) return std::nullopt;
  std::string now = faults_->status().serial;
  if (now == serial_) return std::nullopt;
  serial_ = now;
  return now;
}

Task<bool> DriveBay::has_nothing_behind(std::uint64_t byte_offset) {
  if (drive_ == nullptr) co_return false;
  const Geometry& geometry = drive_->geometry();
  Lba lba = byte_offset / geometry.block_bytes;
  for (unsigned runs = 0; lba < geometry.block_count; ++runs) {
    if (runs == kMostRuns) co_return false;
    const auto run = co_await drive_->provisioning(lba, geometry.block_count);
    if (!run || run->mapped || run->block_count == 0) co_return false;
    lba += run->block_count;
  }
  co_return true;
}

Task<void> DriveBay::close() {
  const auto asked = look_;
  if (asked->under_way) {
    (void)co_await asked->ended.wait_until(Executor::current().now() + kLookPatience);
  }
  if (faults_ != nullptr) co_await faults_->drain();
  if (cache_ != nullptr) co_await cache_->settled();
  top_ = nullptr;
  power_.reset();
  faults_.reset();
  busy_before_ = modelled_busy();
  timed_.reset();
  timed_other_.reset();
  cache_.reset();
  drive_.reset();
  other_.reset();
}

void DriveBay::abandon() {
  (void)power_.release();
  (void)faults_.release();
  (void)cache_.release();
  (void)timed_.release();
  (void)timed_other_.release();
  (void)drive_.release();
  (void)other_.release();
  top_ = nullptr;
}

}  // namespace sandbay::group
