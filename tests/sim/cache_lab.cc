// Starting and stopping the cache with what is under it, its place in the host's requests, and what
// is compared.
#include "cache_lab.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "block/layer.h"
#include "cache/cached_device.h"
#include "nvram/image_layout.h"
#include "nvram/nvram.h"

namespace sandbay::cachetest {

using namespace sandbay::cache;
using raidtest::kModelBlockBytes;
using raidtest::LabState;

namespace {

constexpr std::size_t kSlabBytes = std::size_t{64} << 10;
constexpr std::uint64_t kDataBytes = 8 * kSlabBytes;
constexpr std::uint64_t kJournalBytes = std::uint64_t{256} << 10;
// Volumes by mode.
constexpr std::uint64_t kThrough = 1;
constexpr std::uint64_t kUncached = 2;

CacheOptions options_of(const CacheShape& shape) {
  using std::chrono::milliseconds;
  return {.memory_bytes = std::size_t{4} << 20,
          .dirty_limit_bytes = std::size_t{512} << 10,
          .age_limit = shape.patient ? std::chrono::minutes(10) : milliseconds(20),
          .idle_flush = shape.patient ? std::chrono::minutes(10) : milliseconds(5),
          .destage_bytes = std::size_t{64} << 10,
          .destages_in_flight = 4};
}

LabState take_set(CacheState& state) { return std::move(state.set); }

}  // namespace

// What a controller has above a cached device: while it is not noted that the mirror has failed,
// changes and their answers wait.
class CacheLab::Door final : public Layer {
 public:
  Door(CacheLab& lab, BlockDevice& below) : Layer(below), lab_(lab) {}

  Task<Completion> submit(Request request) override {
    const bool changes = request.operation == Operation::kWrite ||
                         request.operation == Operation::kUnmap ||
                         request.operation == Operation::kWriteZeroes;
    while (changes && lab_.holding_) co_await lab_.let_go_.wait();
    Completion completion = co_await below().submit(std::move(request));
    while (changes && lab_.holding_) co_await lab_.let_go_.wait();
    co_return completion;
  }

 private:
  CacheLab& lab_;
};

// The device below the cache: the set, less or slower by the weakness of now.
class CacheLab::Weak final : public Layer {
 public:
  Weak(CacheLab& lab, BlockDevice& below) : Layer(below), lab_(lab) {}

  Task<Completion> submit(Request request) override {
    Random& random = home().random();
    const Weakness weakness = lab_.weakness_;
    if (weakness.holding && random.chance(0.3)) {
      while (lab_.weakness_.holding) co_await lab_.weakness_changed_.wait();
    }
    const bool read = request.operation == Operation::kRead;
    const bool flush = request.operation == Operation::kFlush;
    const bool weak = weakness.error != Error::kNone && !read && flush == weakness.flushes;
    const bool fails = weak && random.chance(0.3);
    if (fails && random.chance(0.5)) {
      co_return Completion{.error = weakness.error, .data = std::move(request.data)};
    }
    Completion completion = co_await below().submit(std::move(request));
    if (fails) completion.error = weakness.error;
    if (read && weakness.read_delay > Duration::zero()) {
      const auto most = static_cast<std::uint64_t>(weakness.read_delay.count());
      co_await home().sleep_for(Duration(static_cast<std::int64_t>(random.below(most))));
    }
    co_return completion;
  }

 private:
  CacheLab& lab_;
};

std::uint64_t region_bytes(const CacheShape& shape) { return shape.log_bytes + kDataBytes; }

std::string CacheShape::name() const {
  if (!memory) return set.name() + ", cache without memory";
  return fmt::format("{}, cache with durability {}{}{}{}{}{}", set.name(),
                     host_durable ? "host" : "process", mirror ? ", mirror" : "",
                     journal_too ? ", journal beside it" : "",
                     only_emulated ? "" : ", power may go", patient ? ", patient" : "",
                     log_bytes < std::uint64_t{64} << 10 ? ", small log" : "");
}

CacheState blank_state(const CacheShape& shape) {
  CacheState state;
  state.set = raidtest::blank_state(shape.set);
  // Behind the image's two pages stands the region, and behind that perhaps the journal's.
  const std::uint64_t bytes =
      nvram::kHeaderBytes + region_bytes(shape) + (shape.journal_too ? kJournalBytes : 0);
  if (shape.journal_too) state.set.board.reset();
  if (shape.memory) state.board.emplace(bytes);
  if (shape.memory && shape.mirror) state.mirror.emplace(bytes);
  return state;
}

BlockModel new_promises(const CacheShape& shape) {
  return BlockModel(shape.set.block_count(), shape.memory);
}

BlockModel new_drives_model(const CacheShape& shape) {
  return BlockModel(shape.set.block_count(), false);
}

CacheLab::CacheLab(Executor& home, CacheShape its_shape, CacheState state, BlockModel promised,
                   BlockModel on_drives)
    : shape(its_shape),
      raid(home, shape.set, take_set(state), std::move(promised)),
      state_(std::move(state)) {
  raid.on_drives.emplace(std::move(on_drives));
  if (state_.board) board_ = std::make_unique<nvram::SimulatedBoard>(*std::move(state_.board));
  if (state_.mirror) {
    mirror_board_ = std::make_unique<nvram::SimulatedBoard>(*std::move(state_.mirror));
  }
  state_.board.reset();
  state_.mirror.reset();
}

CacheLab::~CacheLab() = default;

Task<std::string> CacheLab::open_board(nvram::SimulatedBoard* board, bool partner,
                                       std::unique_ptr<nvram::Nvram>* opened) {
  nvram::NvramOptions options;
  options.path = partner ? "partner's board" : "board";
  options.boot_id = fmt::format("boot {}", partner ? state_.partner_boots : state_.boots);
  options.durability = shape.host_durable ? nvram::Durability::kHost : nvram::Durability::kProcess;
  options.power_loss_only_emulated = shape.only_emulated;
  if (!partner) options.battery = state_.battery;
  auto result = co_await nvram::Nvram::open(raid.home, *board, options);
  if (!result) co_return result.error();
  *opened = std::move(*result);
  if (boundary_) (*opened)->observe_stores([this] { boundary_(); });
  co_return std::string();
}

Task<std::string> CacheLab::open_memory() {
  std::string problem = co_await open_board(board_.get(), false, &nvram_);
  if (problem.empty() && mirror_board_ != nullptr) {
    problem = co_await open_board(mirror_board_.get(), true, &mirror_);
  }
  if (!problem.empty()) co_return problem;
  auto opened = co_await WriteMemory::open(nvram_.get(), mirror_.get(),
                                           {.data_bytes = kDataBytes,
                                            .log_bytes = shape.log_bytes,
                                            .slab_bytes = kSlabBytes,
                                            .mirror_is_stale = state_.mirror_is_stale});
  if (!opened) co_return opened.error();
  memory_ = std::move(*opened);
  memory_->on_mirror_lost = [this] { mirror_lost(); };
  co_return std::string();
}

void CacheLab::note_lost() {
  if (!lost.empty()) promised_ = raid.model;
  const std::uint64_t blocks = shape.set.block_count();
  for (const LostWrite& write : lost) {
    const Extent extent = write.known ? write.subject.extent : Extent{0, blocks};
    if (extent.end() > blocks) {
      raid.wrong.push_back("a range beyond the end is said to be lost");
    } else {
      raid.model.weaken(extent, *raid.on_drives);
    }
  }
}

Task<std::string> CacheLab::boot() {
  if (board_ != nullptr) {
    const std::string unopened = co_await open_memory();
    if (!unopened.empty()) co_return unopened;
    if (shape.journal_too) raid.shared_nvram = nvram_.get();
  }
  const std::string problem = co_await raid.boot();
  if (!problem.empty()) co_return problem;
  std::vector<RecoveredWrite> writes;
  if (board_ != nullptr) {
    WriteRecovery recovery = memory_->recover();
    writes = std::move(recovery.writes);
    lost = std::move(recovery.lost);
    replayed = writes.size();
    from_mirror = recovery.from_mirror;
    note_lost();
    const Error accepted = co_await memory_->accept();
    if (accepted != Error::kNone) co_return "what was recovered is not accepted";
    state_.to_report = false;
    state_.damaged = false;
    state_.host_crashed = false;
    if (memory_->mirrored()) state_.mirror_is_stale = false;
  }
  cache_ = std::make_unique<Cache>(raid.home, options_of(shape), memory_.get());
  cache_->set_mode(kThrough, Mode::kWriteThrough);
  cache_->set_mode(kUncached, Mode::kNone);
  cache_->adopt(std::move(writes));
  cache_->on_damaged = [this](Uuid, std::vector<VolumeExtent> found) {
    return note_damaged(std::move(found));
  };
  weak_ = std::make_unique<Weak>(*this, static_cast<BlockDevice&>(*raid.set));
  door_ = std::make_unique<Door>(
      *this, static_cast<BlockDevice&>(cache_->add_device(raid.set->uuid(), *weak_)));
  raid.door = door_.get();
  raid.reached_drives = [this](bool force_unit_access) {
    return force_unit_access && memory_ != nullptr && !memory_->non_volatile();
  };
  if (!cache_->waiting_writes().empty()) co_return "what was recovered has no device";
  raid.prepare = [this](Request& request) { return prepare(request); };
  co_return std::string();
}

// Before the cache is there nothing is written yet.
void CacheLab::mirror_lost() {
  if (cache_ == nullptr) {
    state_.mirror_is_stale = true;
    return;
  }
  holding_ = true;
  spawn(remember_mirror_lost());
}

Task<void> CacheLab::remember_mirror_lost() {
  if (!notes_.enter()) co_return;
  const GateHold hold(notes_);
  co_await raid.home.sleep_for(std::chrono::microseconds(raid.home.random().below(3000)));
  state_.mirror_is_stale = true;
  holding_ = false;
  let_go_.notify_all();
}

void CacheLab::fail_mirror() {
  if (mirror_ == nullptr || mirror_failed_) return;
  mirror_failed_ = true;
  if (shape.host_durable && raid.home.random().chance(0.5)) {
    mirror_board_->sync_error = Error::kHardware;
  } else {
    mirror_->cut_power();
  }
}

void CacheLab::set_sync_time(Duration time, bool mirror) {
  (mirror && mirror_board_ != nullptr ? mirror_board_ : board_)->sync_time = time;
}

Task<Error> CacheLab::note_damaged(std::vector<VolumeExtent> found) {
  co_await raid.home.sleep_for(std::chrono::microseconds(raid.home.random().below(2000)));
  for (const VolumeExtent& each : found) damaged.push_back(each.extent);
  co_return Error::kNone;
}

void CacheLab::set_weakness(Weakness weakness) {
  weakness_ = weakness;
  weakness_changed_.notify_all();
}

unsigned CacheLab::damage(std::span<const std::byte> content) {
  const std::span<std::byte> data =
      board_->memory().subspan(nvram::kHeaderBytes + shape.log_bytes, kDataBytes);
  unsigned count = 0;
  for (std::size_t at = 0; at + content.size() <= data.size(); at += kModelBlockBytes) {
    if (!std::ranges::equal(data.subspan(at, content.size()), content)) continue;
    data[at + raid.home.random().below(content.size())] ^= std::byte{1};
    ++count;
  }
  return count;
}

bool CacheLab::prepare(Request& request) {
  Random& random = raid.home.random();
  const std::uint64_t drawn = random.below(12);
  request.volume = drawn > kUncached ? 0 : drawn;
  request.disable_page_out = random.chance(0.1);
  const bool write = request.operation == Operation::kWrite;
  const bool flush = request.operation == Operation::kFlush;
  if (memory_ == nullptr) return flush || (write && request.force_unit_access);
  if (write && random.chance(0.5)) {
    // As it is received: it is taken as it is.
    BufferList placed = memory_->buffers().try_allocate(request.data.byte_count());
    if (!placed.empty()) {
      std::vector<std::byte> bytes(request.data.byte_count());
      request.data.copy_to(bytes);
      placed.copy_from(bytes);
      request.data = std::move(placed);
    }
  }
  const bool safe = memory_->non_volatile();
  if (flush) return !safe;
  if (!write) return request.operation != Operation::kRead;
  if (battery_changes_) return request.volume != 0;
  return request.volume != 0 || !memory_->battery().good() || (request.force_unit_access && !safe);
}

Task<Error> CacheLab::close_cache() {
  const Error error = co_await cache_->close();
  raid.door = nullptr;
  raid.prepare = nullptr;
  raid.reached_drives = nullptr;
  door_.reset();
  cache_.reset();
  weak_.reset();
  if (error != Error::kNone || memory_ == nullptr) co_return error;
  // A release waits while its record is moved.
  const Error final = co_await memory_->flush_releases();
  if (final != Error::kNone) raid.wrong.push_back("the memory's releases do not become final");
  if (memory_->live_writes() != 0) {
    raid.wrong.push_back("after closing the cache the memory holds writes");
  }
  co_return error;
}

Task<void> CacheLab::stop() {
  raid.door = nullptr;
  raid.prepare = nullptr;
  if (cache_ != nullptr) co_await cache_->stop();
  co_await notes_.close();
  raid.reached_drives = nullptr;
  door_.reset();
  cache_.reset();
  weak_.reset();
  if (memory_ != nullptr) co_await memory_->stop();
  memory_.reset();
  co_await raid.stop();
  nvram_.reset();
  mirror_.reset();
}

void CacheLab::set_battery(nvram::BatteryState state) {
  state_.battery = state;
  if (memory_ != nullptr) memory_->battery().set_state(state);
}

CacheState CacheLab::fork() const {
  CacheState state = state_;
  state.set = raid.fork();
  if (board_ != nullptr) {
    state.board = *board_;
    state.board->sync_time = kSyncTime;
  }
  if (mirror_board_ != nullptr) {
    state.mirror = *mirror_board_;
    state.mirror->sync_error = Error::kNone;  // By the next start the partner works again.
    state.mirror->sync_time = kSyncTime;
  }
  return state;
}

void CacheLab::observe(std::function<void()> boundary) {
  boundary_ = std::move(boundary);
  raid.observe([this] { boundary_(); });
  if (nvram_ != nullptr) nvram_->observe_stores([this] { boundary_(); });
  if (mirror_ != nullptr) mirror_->observe_stores([this] { boundary_(); });
}

std::uint64_t CacheLab::broken_promises(const std::vector<std::byte>& bytes) const {
  const BlockModel& promised = promised_ ? *promised_ : raid.model;
  std::uint64_t broken = 0;
  for (Lba lba = 0; lba < promised.block_count(); ++lba) {
    const auto block = std::span(bytes).subspan(lba * kModelBlockBytes, kModelBlockBytes);
    broken += promised.check_after_crash(lba, block).empty() ? 0 : 1;
  }
  return broken;
}

}  // namespace sandbay::cachetest
