// The inside of a reactor, shared by its three source files and included by nothing else.
#pragma once

#include <liburing.h>

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
#include "runtime/kernel_room.h"
#include "runtime/reactor.h"
#include "runtime/turn_watch.h"

namespace sandbay::detail {

static_assert(sizeof(IoSlice) == sizeof(iovec) &&
              offsetof(IoSlice, data) == offsetof(iovec, iov_base) &&
              offsetof(IoSlice, byte_count) == offsetof(iovec, iov_len));

// One request to the kernel. It stands in the frame of the coroutine that awaits it, which cannot
// go away before the kernel has answered.
struct Operation {
  std::coroutine_handle<> handle;
  int result = 0;
  unsigned flags = 0;

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiting) noexcept { handle = waiting; }
  int await_resume() const noexcept { return result; }
};

// A ring buffer of coroutines to resume; grows, never shrinks.
class ReadyQueue {
 public:
  ReadyQueue() : slots_(1024) {}
  bool empty() const noexcept { return first_ == last_; }
  std::size_t size() const noexcept { return last_ - first_; }
  void push(std::coroutine_handle<> handle);
  std::coroutine_handle<> pop() noexcept { return slots_[first_++ & (slots_.size() - 1)]; }

 private:
  std::vector<std::coroutine_handle<>> slots_;  // A power of two.
  std::size_t first_ = 0;
  std::size_t last_ = 0;
};

class Reactor final : public Executor {
 public:
  Reactor(unsigned index, std::size_t memory_limit_bytes, std::uint64_t seed);
  ~Reactor() override;

  // Makes the ring; a negated errno on failure.
  int open_ring();
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

  // A free submission entry for `operation`; the caller fills it in, with prep functions that
  // leave user data alone, and then awaits the operation.
  io_uring_sqe* prepare(Operation& operation);
  // Asks the kernel to end an operation early; it still completes.
  void cancel(Operation& operation);
  BlockingPool& blocking() noexcept { return *blocking_; }
  // The room that the files of a filesystem that blocks (st_dev) share, inside the room of all.
  std::shared_ptr<KernelRoom> room_on(dev_t filesystem);

 private:
  static constexpr unsigned kSubmissionEntries = 1024;
  static constexpr unsigned kCompletionEntries = 16384;
  // Threads of the kernel for requests that block there. Its own limit is four a processor: as many
  // requests to a filesystem that hangs would stop the syncs of all other files of this ring.
  static constexpr unsigned kMostKernelThreads = 256;
  // The limits for requests to one filesystem that blocks, and to all such: three that hang stop
  // the others that block. Transfers count too, though Linux 6.18 runs those that are sent to
  // threads at once on further threads.
  static constexpr unsigned kMostOnFilesystem = kMostKernelThreads / 4;
  static constexpr unsigned kMostOnBlocking = kMostKernelThreads * 3 / 4;
  static constexpr std::size_t kResumesPerTurn = 8192;
  static constexpr std::size_t kResumesPerLook = 16;  // At the clock.
  static constexpr Duration kTurn = std::chrono::milliseconds(1);
  // How long a reactor looks for work before it sleeps, while waits have been that short.
  static constexpr Duration kSpin = std::chrono::microseconds(50);
  static constexpr unsigned kLooksPerClock = 16;

  io_uring_sqe* free_entry();
  void arm_wake_poll();
  static TimePoint clock() noexcept;
  void run_ready();
  void run_turn_end();
  void fire_timers();
  void take_messages();
  void send_gathered() noexcept;
  void deliver(Message& first, Message& last) noexcept;
  void submit_and_wait();
  bool spin(TimePoint started);
  void sleep();
  void reap();
  void wake() noexcept;

  unsigned index_;
  Random random_;
  std::unique_ptr<BufferPool> buffers_;
  std::vector<Executor*> peers_;
  io_uring ring_{};
  bool ring_open_ = false;
  bool stopping_ = false;
  bool quick_ = false;  // The last wait was shorter than kSpin.
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
  std::shared_ptr<KernelRoom> blocking_room_ =
      std::make_shared<KernelRoom>(kMostOnBlocking, nullptr);
  std::map<dev_t, std::weak_ptr<KernelRoom>> rooms_;  // By filesystem.
  // Written by other threads: a stack of messages, newest first, and whether we sleep.
  alignas(64) std::atomic<Message*> inbox_{nullptr};
  std::atomic<bool> sleeping_{false};
};

}  // namespace sandbay::detail
