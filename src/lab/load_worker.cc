// One session's share of a load. CDBs are those of SBC-3 and SPC-4: READ CAPACITY (16) 9Eh/10h,
// INQUIRY 12h.
#include "lab/load_worker.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>

#include "lab/scsi_transfer.h"
#include "runtime/byte_order.h"

namespace sandbay::lab {
namespace {

// Requests that are in flight at the end of the load have this long to end.
constexpr Duration kGrace = std::chrono::seconds(5);
// What the verify map may need: 8 bytes a unit.
constexpr std::uint64_t kMaximumVerifiedUnits = std::uint64_t{64} << 20;

}  // namespace

LoadWorker::LoadWorker(Place place)
    : place_(std::move(place)), random_(place_.options.seed * 0x9E3779B9U + place_.number) {
  timer_.owner = this;
  timer_.fire = [](Timer& timer) { static_cast<LoadWorker*>(timer.owner)->timer_fired(); };
}

LoadWorker::~LoadWorker() { assert(session_ == nullptr); }

// --- Before and after ----------------------------------------------------------------------------

Task<iscsi::ScsiResult> LoadWorker::ask(std::array<std::byte, 16> cdb, std::uint32_t in_bytes,
                                        std::vector<std::byte>& data) {
  iscsi::InitiatorSession::Reply reply;
  for (std::uint32_t count = 0; count < kMaximumTries; ++count) {
    iscsi::ScsiRequest request;
    request.lun = place_.url.lun;
    request.cdb = cdb;
    request.timeout = std::chrono::seconds(30);
    if (in_bytes != 0) {
      request.data_in = co_await place_.executor.buffers().allocate(in_bytes);
    }
    reply = co_await session_->execute(std::move(request));
    if (!transient(reply.result)) break;
    if (reply.result.status != scsi::Status::kCheckCondition) {
      co_await place_.executor.sleep_for(kRetryDelay);
    }
  }
  data.resize(reply.result.data_in_bytes);
  if (!data.empty()) reply.data_in.copy_to(data);
  co_return reply.result;
}

Task<std::string> LoadWorker::learn_geometry() {
  std::vector<std::byte> data;
  iscsi::ScsiResult result = co_await ask({}, 0, data);  // TEST UNIT READY
  if (!result.good()) co_return fmt::format("the unit is not ready: {}", explain(result));
  std::array<std::byte, 16> cdb{};
  cdb[0] = std::byte{0x9E};
  cdb[1] = std::byte{0x10};
  cdb[13] = std::byte{32};
  result = co_await ask(cdb, 32, data);
  if (!result.good() || data.size() < 12) {
    co_return fmt::format("READ CAPACITY (16) failed: {}", explain(result));
  }
  const std::uint64_t last = big_endian<std::uint64_t>(data, 0);
  const std::uint32_t block_bytes = big_endian<std::uint32_t>(data, 8);
  if (block_bytes < 512 || block_bytes > 65536 || last == ~std::uint64_t{0}) {
    co_return "the unit has no capacity that can be used";
  }
  co_return lay_out(last + 1, block_bytes);
}

// The unit's designators; empty if it has none to tell, or cannot be asked.
Task<std::vector<std::byte>> LoadWorker::ask_identity() {
  constexpr std::uint32_t kMost = 255;
  std::array<std::byte, 16> cdb{};
  cdb[0] = std::byte{0x12};
  cdb[1] = std::byte{1};
  cdb[2] = std::byte{0x83};
  cdb[4] = std::byte{kMost};
  std::vector<std::byte> data;
  const iscsi::ScsiResult result = co_await ask(cdb, kMost, data);
  if (!result.good()) data.clear();
  co_return data;
}

Task<void> LoadWorker::check_identity() {
  const std::vector<std::byte> now = co_await ask_identity();
  if (identity_.empty() || now.empty() || now == identity_) co_return;
  another_unit_ = true;
  stopping_ = true;
}

Task<void> LoadWorker::look_again() {
  co_await check_identity();
  looking_ = false;
  looks_.leave();
}

// A session that came back may lead to a unit that merely has the old one's name.
void LoadWorker::doubt_identity() {
  if (map_ == nullptr || looking_ || another_unit_ || !looks_.enter()) return;
  looking_ = true;
  spawn(look_again());
}

// Which part of the logical unit this worker uses.
std::string LoadWorker::lay_out(std::uint64_t block_count, std::uint32_t block_bytes) {
  const LoadOptions& options = place_.options;
  if (options.block_bytes % block_bytes != 0) {
    return fmt::format("--block-size {} is not a multiple of the unit's logical block of {} bytes",
                       options.block_bytes, block_bytes);
  }
  block_bytes_ = block_bytes;
  blocks_per_unit_ = options.block_bytes / block_bytes;
  const std::uint64_t capacity = block_count * block_bytes;
  if (options.offset_bytes >= capacity) {
    return fmt::format("--offset lies behind the end of the unit, which has {} bytes", capacity);
  }
  std::uint64_t span = capacity - options.offset_bytes;
  if (options.span_bytes > span) {
    return fmt::format("--offset and --span reach beyond the end of the unit, which has {} bytes",
                       capacity);
  }
  if (options.span_bytes != 0) span = options.span_bytes;
  std::uint64_t first = (options.offset_bytes + options.block_bytes - 1) / options.block_bytes;
  std::uint64_t count = (options.offset_bytes + span) / options.block_bytes - first;
  if (options.offset_bytes + span < first * options.block_bytes) count = 0;
  if (options.verify) {
    const std::uint64_t part = count / place_.shares;
    first += part * place_.share;
    count = part;
  }
  if (count == 0)
    return "the part of the unit to use is smaller than one request in each session; give a larger "
           "--span";
  if (options.verify && count > kMaximumVerifiedUnits) {
    return fmt::format("--verify keeps track of at most {} requests' worth; give a smaller --span",
                       kMaximumVerifiedUnits);
  }
  first_unit_ = first;
  unit_count_ = count;
  next_unit_ = options.verify ? 0 : count / place_.shares * place_.share;
  if (options.verify) map_ = std::make_unique<UnitMap>(count);
  return {};
}

std::string LoadWorker::allocate_slots() {
  const std::uint64_t depth = std::min<std::uint64_t>(place_.options.queue_depth, unit_count_);
  for (std::uint64_t index = 0; index < depth; ++index) {
    auto slot = std::make_unique<Slot>();
    slot->worker = this;
    slot->buffer = place_.executor.buffers().try_allocate(place_.options.block_bytes);
    if (slot->buffer.empty()) {
      return "not enough memory for --queue-depth and --block-size; give a larger --memory-limit";
    }
    // Something that does not compress, for writes without a pattern.
    for (std::size_t piece = 0; piece < slot->buffer.slice_count(); ++piece) {
      for (std::byte& byte : slot->buffer[piece].bytes()) {
        byte = static_cast<std::byte>(random_.next());
      }
    }
    slot->command.lun = place_.url.lun;
    slot->command.owner = slot.get();
    slot->command.done = [](iscsi::InitiatorCommand& command) {
      Slot& ended = *static_cast<Slot*>(command.owner);
      ended.worker->completed(ended);
    };
    slots_.push_back(std::move(slot));
  }
  return {};
}

Task<std::string> LoadWorker::set_up() {
  const LoadOptions& options = place_.options;
  iscsi::InitiatorOptions login{
      .endpoint = place_.url.endpoint,
      .initiator_name = options.initiator_name,
      .target_name = place_.url.target_name,
      .chap = place_.url.chap,
      .connections = options.connections,
      .connection_options = iscsi::paths_of(place_.url, options.connections),
      .path_policy = options.path == LoadPath::kRoundRobin ? iscsi::PathPolicy::kRoundRobin
                                                           : iscsi::PathPolicy::kLeastQueueDepth,
      .keys = options.keys,
      .queue_depth = options.queue_depth,
      .reconnect = options.reconnect > Duration{},
      .recovery_timeout = options.reconnect,
  };
  auto session = co_await iscsi::InitiatorSession::login(std::move(login));
  if (!session.has_value()) co_return session.error().message;
  session_ = std::move(*session);
  std::string wrong = co_await learn_geometry();
  if (wrong.empty()) wrong = allocate_slots();
  if (wrong.empty() && map_ != nullptr) identity_ = co_await ask_identity();
  co_return wrong;
}

Task<bool> LoadWorker::tear_down() {
  if (session_ != nullptr) {
    report_.sessions = 1;
    co_await looks_.close();
    if (report_.miscompares != 0 && !another_unit_ && session_->up()) co_await check_identity();
    if (another_unit_) {
      report_.errors += std::exchange(report_.miscompares, 0);
      report_.errors = std::max<std::uint64_t>(report_.errors, 1);
      report_.first_error =
          "the logical unit is not the one that the load began with: its volume was deleted and "
          "made anew, or another has its place; nothing can be verified";
    }
    const iscsi::InitiatorCounters counters = session_->counters();
    report_.commands_retried = counters.commands_retried;
    report_.connections_lost = counters.connections_lost;
    if (!abandoned_) co_await session_->close();
    session_.reset();
  }
  slots_.clear();
  co_return true;
}

// --- The load ------------------------------------------------------------------------------------

Task<bool> LoadWorker::drive(LoadSchedule schedule) {
  schedule_ = schedule;
  stopping_ = false;
  next_start_ = place_.executor.now();
  start_slots();
  const bool ended = co_await finished_.wait_until(schedule.until + kGrace);
  if (!ended) co_await give_up();
  place_.executor.disarm(timer_);
  co_return true;
}

// The target does not answer: what waits for it ends with kClosed, and counts as failed. Without
// connections there is nobody to wait for at logout.
Task<void> LoadWorker::give_up() {
  abandoned_ = true;
  for (std::size_t index = 0; index < session_->connection_count(); ++index) {
    co_await session_->break_connection(index);
  }
  co_await session_->close();
  co_await finished_.wait();
}

Task<bool> LoadWorker::connected() const { co_return session_ != nullptr && session_->up(); }

void LoadWorker::start_slots() {
  finished_.reset();
  active_ = static_cast<std::uint32_t>(slots_.size());
  for (const auto& slot : slots_) next_request(*slot);
}

Task<bool> LoadWorker::read_back() {
  if (map_ == nullptr || abandoned_ || another_unit_) co_return true;
  reading_back_ = true;
  stopping_ = false;
  next_unit_ = 0;
  start_slots();
  co_await finished_.wait();
  co_return true;
}

// Verify mode keeps two requests off one unit; a few draws find a free one.
bool LoadWorker::choose_unit(Slot& slot) {
  if (reading_back_) {
    while (next_unit_ < unit_count_ && !map_->written(next_unit_)) ++next_unit_;
    if (next_unit_ >= unit_count_) return false;
    slot.unit = next_unit_++;
    return true;
  }
  for (std::uint64_t count = 0; count < unit_count_ + 64; ++count) {
    if (place_.options.random) {
      slot.unit = random_.below(unit_count_);
    } else {
      slot.unit = next_unit_;
      next_unit_ = next_unit_ + 1 == unit_count_ ? 0 : next_unit_ + 1;
    }
    if (map_ == nullptr || !map_->busy(slot.unit)) return true;
  }
  return false;
}

bool LoadWorker::may_start_now() {
  if (place_.rate == 0 || reading_back_) return true;
  const TimePoint now = place_.executor.now();
  if (next_start_ > now) return false;
  const Duration gap = std::chrono::nanoseconds(1'000'000'000 / place_.rate);
  // What could not be started in time is not made up for in one burst.
  next_start_ = std::max(next_start_, now - std::chrono::milliseconds(100)) + gap;
  return true;
}

bool LoadWorker::over() const {
  return place_.executor.now() >= schedule_.until ||
         (schedule_.stop != nullptr && schedule_.stop->load(std::memory_order_relaxed));
}

void LoadWorker::next_request(Slot& slot) {
  if (stopping_ || (!reading_back_ && over())) {
    stopping_ = true;
    return park(slot);
  }
  if (!may_start_now()) {
    slot.next_idle = idle_;
    idle_ = &slot;
    return arm_timer(next_start_);
  }
  if (!choose_unit(slot)) return park(slot);
  slot.writing = !reading_back_ && place_.options.read_percent < 100 &&
                 random_.below(100) >= place_.options.read_percent;
  slot.tries = 0;
  if (map_ != nullptr) {
    if (slot.writing) {
      const PatternIdentity identity{
          .seed = place_.options.seed,
          .lba = (first_unit_ + slot.unit) * blocks_per_unit_,
          .generation = map_->begin_write(slot.unit),
      };
      fill_unit(slot.buffer, block_bytes_, identity);
    } else {
      map_->begin_read(slot.unit);
    }
  }
  slot.started = place_.executor.now();
  issue(slot);
}

void LoadWorker::issue(Slot& slot) {
  const std::uint64_t lba = (first_unit_ + slot.unit) * blocks_per_unit_;
  slot.command.cdb = transfer_cdb(slot.writing, lba, blocks_per_unit_);
  BufferList& wanted = slot.writing ? slot.command.data_out : slot.command.data_in;
  wanted = std::move(slot.buffer);
  session_->submit(slot.command);
}

void LoadWorker::completed(Slot& slot) {
  slot.buffer = std::move(slot.writing ? slot.command.data_out : slot.command.data_in);
  if (try_again(slot)) return;
  account(slot, place_.executor.now());
  conclude(slot);
  // The session has given its target up: whatever comes now would fail as fast as it is made.
  if (slot.command.result.error == Error::kReset && !session_->up()) stopping_ = true;
  next_request(slot);
}

// A unit attention is gone after it was told; a busy unit gets a little time.
bool LoadWorker::try_again(Slot& slot) {
  if (!transient(slot.command.result) || ++slot.tries > kMaximumTries) return false;
  if (slot.command.result.status == scsi::Status::kCheckCondition) {
    doubt_identity();
    issue(slot);
  } else {
    again_.push_back(&slot);
    arm_timer(place_.executor.now() + kRetryDelay);
  }
  return true;
}

void LoadWorker::account(const Slot& slot, TimePoint now) {
  if (reading_back_) return;
  const std::uint64_t bytes = place_.options.block_bytes;
  requests_.store(requests_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  bytes_.store(bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  if (!slot.command.result.whole()) return note_error(slot);
  if (now < schedule_.measure_from || now > schedule_.until) return;
  LoadDirection& direction = slot.writing ? report_.writes : report_.reads;
  ++direction.requests;
  direction.bytes += bytes;
  direction.latency.record(static_cast<std::uint64_t>((now - slot.started).count()));
}

void LoadWorker::note_error(const Slot& slot) {
  if (report_.errors++ != 0) return;
  report_.first_error = fmt::format(
      "{} of {} blocks at LBA {}: {}", slot.writing ? "write" : "read", blocks_per_unit_,
      (first_unit_ + slot.unit) * blocks_per_unit_, explain(slot.command.result));
}

// Verify mode's part of a completion.
void LoadWorker::conclude(Slot& slot) {
  if (map_ == nullptr) return;
  const bool good = slot.command.result.whole();
  if (reading_back_ && !good) {
    note_error(slot);
    // The target is gone: every further read would wait for it as long.
    if (slot.command.result.error != Error::kNone) stopping_ = true;
  }
  if (slot.writing) return map_->end_write(slot.unit, good);
  if (good && map_->content_known(slot.unit)) {
    const std::uint64_t lba = (first_unit_ + slot.unit) * blocks_per_unit_;
    const std::string wrong =
        check_unit(slot.buffer, block_bytes_, place_.options.seed, lba, *map_, slot.unit);
    report_.blocks_verified += blocks_per_unit_;
    if (!wrong.empty() && report_.miscompares++ == 0) report_.first_miscompare = wrong;
  }
  map_->end_read(slot.unit);
}

void LoadWorker::park(Slot& slot) {
  (void)slot;
  assert(active_ > 0);
  if (--active_ == 0) finished_.set();
}

void LoadWorker::arm_timer(TimePoint when) {
  if (timer_.armed()) {
    if (timer_.deadline <= when) return;
    place_.executor.disarm(timer_);
  }
  timer_.deadline = when;
  place_.executor.arm(timer_);
}

void LoadWorker::timer_fired() {
  std::vector<Slot*> again = std::exchange(again_, {});
  for (Slot* slot : again) issue(*slot);
  Slot* idle = std::exchange(idle_, nullptr);
  while (idle != nullptr) {
    Slot* slot = std::exchange(idle, idle->next_idle);
    next_request(*slot);
  }
}

}  // namespace sandbay::lab
