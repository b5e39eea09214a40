// The scheduler of a world and its executors.
//
// One ready set serves all executors: each step runs an item that is drawn from it by seed. What
// may not be shuffled is kept in order: messages from one executor to another run first in, first
// out. Time stands still while anything is ready, and then jumps to the next timer; timers due at
// the same instant on several executors fire in a drawn order. Everything is on one thread.
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/executor.h"
#include "runtime/random.h"
#include "runtime/timer.h"

namespace sandbay::sim {

class Disks;
class Network;
class SimulatedExecutor;

class Scheduler {
 public:
  explicit Scheduler(Random random) : random_(random) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Once, before anything else.
  void attach(std::vector<SimulatedExecutor*> executors);

  TimePoint now() const noexcept { return now_; }
  std::uint64_t steps() const noexcept { return steps_; }
  std::uint64_t trace_hash() const noexcept { return hash_; }

  // From anywhere in the world, unlike Executor::post().
  void make_ready(unsigned executor, std::coroutine_handle<> handle);
  void make_ready_at_turn_end(unsigned executor, std::coroutine_handle<> handle);
  void send(unsigned executor, Message& message);
  void arm(unsigned executor, Timer& timer) { lanes_[executor].timers.insert(timer); }
  void disarm(unsigned executor, Timer& timer) { lanes_[executor].timers.remove(timer); }
  // Timers of the hardware: disks and wires. They fire while no executor is current.
  void arm_hardware(Timer& timer) { lanes_.back().timers.insert(timer); }
  void disarm_hardware(Timer& timer) noexcept { lanes_.back().timers.remove(timer); }

  // Runs one ready item or, if there is none, the earliest timer that is due by `horizon`. False
  // if there is neither, or if items have kept each other ready for longer than can be meant.
  bool step(TimePoint horizon);
  // A new run may take its own number of steps at this instant.
  void start_run() noexcept { steps_at_this_instant_ = 0; }
  // After the last step: it is no executor's turn any more.
  static void end_run() noexcept;
  void advance_to(TimePoint time) {
    if (time > now_) now_ = time;
  }

 private:
  // An executor's part of the state; the last lane is the hardware's and has only timers.
  struct Lane {
    SimulatedExecutor* executor = nullptr;
    std::size_t ready = 0;  // Its items in the ready set, without its turn end.
    bool turn_end_listed = false;
    std::vector<std::coroutine_handle<>> turn_end;
    TimerHeap timers;
  };
  // Messages from one executor, or from outside, to another.
  struct Channel {
    Scheduler* scheduler = nullptr;
    unsigned receiver = 0;
    Message* first = nullptr;
    Message* last = nullptr;
    Timer delay;
  };
  struct Item {
    enum class Kind : std::uint8_t { kResume, kMessage, kTurnEnd };
    Kind kind = Kind::kResume;
    unsigned lane = 0;
    void* object = nullptr;  // A coroutine's address or a channel.
  };

  void run_item();
  bool run_timer(TimePoint horizon);
  void run_message(Channel& channel);
  void list_turn_end(unsigned lane);
  void push(Item item);
  void push_channel(Channel& channel);
  void note(std::uint64_t decision) noexcept;

  Random random_;
  TimePoint now_{std::chrono::seconds(1)};
  std::uint64_t steps_ = 0;
  std::uint64_t steps_at_this_instant_ = 0;
  std::uint64_t hash_ = 0;
  std::vector<Item> ready_;
  std::vector<Lane> lanes_;
  std::vector<Channel> channels_;  // By sender (the outside last) and receiver.
};

class SimulatedExecutor final : public Executor {
 public:
  SimulatedExecutor(Scheduler& scheduler, Disks& disks, Network& network, unsigned index,
                    Random random, std::size_t memory_limit_bytes);
  ~SimulatedExecutor() override;

  void set_peers(std::span<Executor* const> peers) noexcept { peers_ = peers; }
  static void enter(Executor* executor) noexcept { set_current(executor); }

  unsigned index() const noexcept override { return index_; }
  std::span<Executor* const> peers() const noexcept override { return peers_; }
  TimePoint now() const noexcept override { return scheduler_.now(); }
  WallTime wall_time() const noexcept override;
  Random& random() noexcept override { return random_; }
  BufferPool& buffers() noexcept override { return *pool_; }
  void post(std::coroutine_handle<> handle) override;
  void post_at_turn_end(std::coroutine_handle<> handle) override;
  void arm(Timer& timer) override;
  void disarm(Timer& timer) noexcept override;
  void send(Message& message) noexcept override { scheduler_.send(index_, message); }
  Task<Result<std::unique_ptr<File>>> open_file(std::string path, FileOptions options) override;
  Task<Error> remove_file(std::string path) override;
  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint) override;
  Task<Result<std::unique_ptr<Stream>>> connect(Endpoint endpoint) override;

 private:
  // What belongs to an executor is used only on it, or by a test between two runs.
  void check_thread() const { assert(current_or_null() == this || current_or_null() == nullptr); }

  Scheduler& scheduler_;
  Disks& disks_;
  Network& network_;
  unsigned index_;
  std::span<Executor* const> peers_;
  Random random_;
  std::unique_ptr<BufferPool> pool_;
};

}  // namespace sandbay::sim
