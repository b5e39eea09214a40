// The inside of a reactor, shared by its source files and included by nothing else.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <coroutine>
#include <map>
#include <memory>
#include <vector>

#include "runtime/blocking_pool.h"
#include "runtime/buffer.h"
#include "runtime/cancellation.h"
#include "runtime/executor.h"
#include "runtime/io_engine.h"
#include "runtime/kernel_room.h"
#include "runtime/reactor.h"
#include "runtime/turn_watch.h"

namespace sandbay::detail {

class Reactor final : public Executor {
 public:
  Reactor(unsigned index, std::size_t memory_limit_bytes, std::uint64_t seed);
  ~Reactor() override;

  // Before anything else. `method` is not kAuto; `most_threads` are for files, if it needs them.
  Started open_engine(IoMethod method, unsigned most_threads);
  void set_peers(std::vector<Executor*> peers);
  void set_blocking(BlockingPool& pool) noexcept { blocking_ = &pool; }

  // Runs turns until stop() was called.
  void run();
  void stop() noexcept { stopping_ = true; }  // Own thread.
  void set_processor(int processor) { processor_ = processor; }
  TurnWatch& watch() noexcept { return watch_; }
  const TurnWatch& watch() const noexcept { return watch_; }

  unsigned index() const noexcept override { return index_; }
  std::span<Executor* const> peers() const noexcept override { return peers_; }
  TimePoint now() const noexcept override { return now_; }
  Random& random() noexcept override { return random_; }
  BufferPool& buffers() noexcept override { return *buffers_; }
  void post(std::coroutine_handle<> handle) override { ready_.push(handle); }
  void post_at_turn_end(std::coroutine_handle<> handle) override { turn_end_.push_back(handle); }
  void arm(Timer& timer) override { timers_.insert(timer); }
  void disarm(Timer& timer) noexcept override { timers_.remove(timer); }
  void send(Message& message) noexcept override;
  Task<Result<std::unique_ptr<File>>> open_file(std::string path, FileOptions options) override;
  Task<Error> remove_file(std::string path) override;
  Task<Error> sync_directory(std::string path) override;
  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint) override;
  Task<Result<std::unique_ptr<Stream>>> connect(Endpoint endpoint) override;

  IoEngine& engine() noexcept { return *engine_; }
  BlockingPool& blocking() noexcept { return *blocking_; }
  // The room that the files of a filesystem or device share, inside the room of all that block or
  // of all others.
  std::shared_ptr<KernelRoom> room_on(dev_t filesystem, bool blocks);

 private:
  static constexpr std::size_t kResumesPerTurn = 8192;
  static constexpr std::size_t kResumesPerLook = 16;  // At the clock.
  static constexpr Duration kTurn = std::chrono::milliseconds(1);
  // How long a reactor looks for work before it sleeps, while waits have been that short.
  static constexpr Duration kSpin = std::chrono::microseconds(50);
  static constexpr unsigned kLooksPerClock = 16;
  static constexpr Duration kMostWakeLag = std::chrono::microseconds(200);

  static TimePoint clock() noexcept;
  void run_ready();
  void run_turn_end();
  void fire_timers();
  void take_messages();
  void send_gathered() noexcept;
  void deliver(Message& first, Message& last) noexcept;
  void submit_and_wait();
  bool spin(TimePoint until);
  void sleep();
  void wake() noexcept;

  unsigned index_;
  Random random_;
  std::unique_ptr<BufferPool> buffers_;
  std::vector<Executor*> peers_;
  bool stopping_ = false;
  bool quick_ = false;   // The last wait was shorter than kSpin.
  Duration wake_lag_{};  // From when a timer is due until the thread runs, as it was lately.
  int wake_fd_ = -1;
  int processor_ = -1;
  TimePoint now_{};
  TurnWatch watch_;
  ReadyQueue ready_;
  std::vector<std::coroutine_handle<>> turn_end_;
  std::vector<std::coroutine_handle<>> turn_end_running_;
  TimerHeap timers_;
  // Messages for each peer, gathered during a turn.
  struct Outgoing {
    Message* first = nullptr;
    Message* last = nullptr;
  };
  std::vector<Outgoing> outgoing_;
  bool any_outgoing_ = false;
  BlockingPool* blocking_ = nullptr;  // The group's.
  // Shared, since a request that never ended keeps its file, and with it these.
  std::shared_ptr<KernelRoom> blocking_room_;
  std::shared_ptr<KernelRoom> other_room_;            // If the engine needs threads for all files.
  std::map<dev_t, std::weak_ptr<KernelRoom>> rooms_;  // By filesystem.
  // Written by other threads: a stack of messages, newest first, and whether we sleep.
  alignas(64) std::atomic<Message*> inbox_{nullptr};
  std::atomic<bool> sleeping_{false};
  std::unique_ptr<IoEngine> engine_;  // Last: its threads send messages here.
};

}  // namespace sandbay::detail
