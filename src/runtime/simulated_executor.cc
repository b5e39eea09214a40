// The scheduler's draw, and the executors as its front.
#include "runtime/simulated_executor.h"

#include <algorithm>
#include <cassert>

#include "runtime/simulated_disks.h"
#include "runtime/simulated_network.h"

namespace sandbay::sim {

namespace {

// One message in so many that find no other on its way is late, by at most so much, and with it
// those that follow.
constexpr std::uint64_t kLateMessages = 16;
constexpr std::uint64_t kMostLate = 50'000;  // ns
// So many steps at one instant are a loop that time cannot end.
constexpr std::uint64_t kMostStepsAtOneInstant = 10'000'000;
constexpr WallTime kWorldBegins = std::chrono::sys_days{std::chrono::November / 1 / 2026};

}  // namespace

void Scheduler::attach(std::vector<SimulatedExecutor*> executors) {
  assert(lanes_.empty() && !executors.empty());
  const std::size_t count = executors.size();
  lanes_.resize(count + 1);
  for (std::size_t i = 0; i < count; ++i) lanes_[i].executor = executors[i];
  channels_.resize((count + 1) * count);
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    Channel& channel = channels_[i];
    channel.scheduler = this;
    channel.receiver = static_cast<unsigned>(i % count);
    channel.delay.owner = &channel;
    channel.delay.fire = [](Timer& timer) {
      auto& late = *static_cast<Channel*>(timer.owner);
      late.scheduler->push_channel(late);
    };
  }
}

void Scheduler::note(std::uint64_t decision) noexcept {
  hash_ = (hash_ ^ decision) * 0x9E3779B97F4A7C15U;
  hash_ ^= hash_ >> 29U;
}

void Scheduler::push(Item item) {
  if (item.kind != Item::Kind::kTurnEnd) ++lanes_[item.lane].ready;
  ready_.push_back(item);
}

void Scheduler::push_channel(Channel& channel) {
  push(Item{.kind = Item::Kind::kMessage, .lane = channel.receiver, .object = &channel});
}

void Scheduler::make_ready(unsigned executor, std::coroutine_handle<> handle) {
  push(Item{.kind = Item::Kind::kResume, .lane = executor, .object = handle.address()});
}

void Scheduler::make_ready_at_turn_end(unsigned executor, std::coroutine_handle<> handle) {
  lanes_[executor].turn_end.push_back(handle);
  list_turn_end(executor);
}

void Scheduler::list_turn_end(unsigned lane) {
  Lane& state = lanes_[lane];
  if (state.turn_end.empty() || state.ready > 0 || state.turn_end_listed) return;
  state.turn_end_listed = true;
  push(Item{.kind = Item::Kind::kTurnEnd, .lane = lane});
}

void Scheduler::send(unsigned executor, Message& message) {
  const Executor* const sender = Executor::current_or_null();
  const std::size_t count = lanes_.size() - 1;
  const std::size_t from = sender != nullptr ? sender->index() : count;
  assert(sender == nullptr || lanes_[from].executor == sender);
  Channel& channel = channels_[from * count + executor];
  message.next = nullptr;
  if (channel.first != nullptr) {
    channel.last->next = &message;
    channel.last = &message;
    return;
  }
  channel.first = &message;
  channel.last = &message;
  if (random_.below(kLateMessages) != 0) {
    push_channel(channel);
    return;
  }
  channel.delay.deadline = now_ + Duration(random_.between(1, kMostLate));
  arm_hardware(channel.delay);
}

void Scheduler::run_message(Channel& channel) {
  Message& message = *channel.first;
  channel.first = message.next;
  if (channel.first != nullptr) push_channel(channel);
  message.run(message);
}

void Scheduler::end_run() noexcept { SimulatedExecutor::enter(nullptr); }

bool Scheduler::step(TimePoint horizon) {
  if (ready_.empty()) return run_timer(horizon);
  if (++steps_at_this_instant_ > kMostStepsAtOneInstant) return false;
  run_item();
  return true;
}

void Scheduler::run_item() {
  const std::size_t count = ready_.size();
  const std::size_t index = count == 1 ? 0 : random_.below(count);
  const Item item = ready_[index];
  ready_[index] = ready_.back();
  ready_.pop_back();
  ++steps_;
  note(index << 32U | count << 8U | item.lane);

  Lane& lane = lanes_[item.lane];
  SimulatedExecutor::enter(lane.executor);
  switch (item.kind) {
    case Item::Kind::kResume:
      --lane.ready;
      std::coroutine_handle<>::from_address(item.object).resume();
      break;
    case Item::Kind::kMessage:
      --lane.ready;
      run_message(*static_cast<Channel*>(item.object));
      break;
    case Item::Kind::kTurnEnd: {
      lane.turn_end_listed = false;
      if (lane.ready > 0) break;  // Something came between; the turn has not ended.
      std::swap(lane.turn_end[random_.below(lane.turn_end.size())], lane.turn_end.back());
      const std::coroutine_handle<> handle = lane.turn_end.back();
      lane.turn_end.pop_back();
      handle.resume();
      break;
    }
  }
  list_turn_end(item.lane);
}

bool Scheduler::run_timer(TimePoint horizon) {
  TimePoint earliest = kNever;
  for (const Lane& lane : lanes_) earliest = std::min(earliest, lane.timers.earliest());
  if (earliest == kNever || earliest > horizon) return false;
  if (earliest > now_) {
    now_ = earliest;
    steps_at_this_instant_ = 0;
  } else if (++steps_at_this_instant_ > kMostStepsAtOneInstant) {
    return false;
  }

  const auto due = [&](const Lane& lane) { return lane.timers.earliest() <= now_; };
  const auto count = static_cast<std::uint64_t>(std::ranges::count_if(lanes_, due));
  std::uint64_t chosen = count == 1 ? 0 : random_.below(count);
  const auto lane = std::ranges::find_if(
      lanes_, [&](const Lane& candidate) { return due(candidate) && chosen-- == 0; });
  Timer* const timer = lane->timers.pop_due(now_);
  assert(timer != nullptr);
  ++steps_;
  const auto index = static_cast<unsigned>(lane - lanes_.begin());
  note(static_cast<std::uint64_t>(now_.time_since_epoch().count()) << 8U | index);

  SimulatedExecutor::enter(lane->executor);
  timer->fire(*timer);
  if (lane->executor != nullptr) list_turn_end(index);
  return true;
}

// SimulatedExecutor --------------------------------------------------------------------------

SimulatedExecutor::SimulatedExecutor(Scheduler& scheduler, Disks& disks, Network& network,
                                     unsigned index, Random random, std::size_t memory_limit_bytes)
    : scheduler_(scheduler),
      disks_(disks),
      network_(network),
      index_(index),
      random_(random),
      pool_(std::make_unique<BufferPool>(*this, memory_limit_bytes)) {}

SimulatedExecutor::~SimulatedExecutor() {
  // Coroutines that never ended still own buffers; the test that left them so reports it better
  // than the pool could.
  if (pool_->used_bytes() != 0 || pool_->waiter_count() != 0) static_cast<void>(pool_.release());
}

WallTime SimulatedExecutor::wall_time() const noexcept {
  return kWorldBegins + std::chrono::floor<std::chrono::milliseconds>(now().time_since_epoch());
}

void SimulatedExecutor::post(std::coroutine_handle<> handle) {
  check_thread();
  scheduler_.make_ready(index_, handle);
}

void SimulatedExecutor::post_at_turn_end(std::coroutine_handle<> handle) {
  check_thread();
  scheduler_.make_ready_at_turn_end(index_, handle);
}

void SimulatedExecutor::arm(Timer& timer) {
  check_thread();
  scheduler_.arm(index_, timer);
}

void SimulatedExecutor::disarm(Timer& timer) noexcept {
  check_thread();
  scheduler_.disarm(index_, timer);
}

Task<Result<std::unique_ptr<File>>> SimulatedExecutor::open_file(std::string path,
                                                                 FileOptions options) {
  return disks_.open(*this, std::move(path), options);
}

Task<Error> SimulatedExecutor::remove_file(std::string path) {
  return disks_.remove(*this, std::move(path));
}

Result<std::unique_ptr<Listener>> SimulatedExecutor::listen(const Endpoint& endpoint) {
  return network_.listen(*this, endpoint);
}

Task<Result<std::unique_ptr<Stream>>> SimulatedExecutor::connect(Endpoint endpoint) {
  return network_.connect(*this, endpoint);
}

}  // namespace sandbay::sim
