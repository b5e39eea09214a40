// The reactor's turn, messages between reactors, and the group.

#include "runtime/reactor.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <thread>

#include "runtime/reactor_internal.h"

namespace sandbay {
namespace detail {
namespace {

// User data that is not an Operation.
constexpr std::uint64_t kIgnore = 0;
constexpr std::uint64_t kWake = 1;

}  // namespace

void ReadyQueue::push(std::coroutine_handle<> handle) {
  if (size() == slots_.size()) {
    std::vector<std::coroutine_handle<>> larger(slots_.size() * 2);
    const std::size_t count = size();
    for (std::size_t i = 0; i < count; ++i) larger[i] = slots_[(first_ + i) & (slots_.size() - 1)];
    slots_ = std::move(larger);
    first_ = 0;
    last_ = count;
  }
  slots_[last_++ & (slots_.size() - 1)] = handle;
}

// Reactor ------------------------------------------------------------------------------------

Reactor::Reactor(unsigned index, std::size_t memory_limit_bytes, std::uint64_t seed)
    : index_(index),
      random_(seed),
      buffers_(std::make_unique<BufferPool>(*this, memory_limit_bytes)),
      watch_(index) {
  now_ = clock();
}

Reactor::~Reactor() {
  if (ring_open_) io_uring_queue_exit(&ring_);
  if (wake_fd_ >= 0) ::close(wake_fd_);
  // A device that never answered still owns buffers: the kernel may write to them until the
  // process is gone, so they stay mapped.
  if (buffers_->used_bytes() != 0) static_cast<void>(buffers_.release());
}

int Reactor::open_ring() {
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return -errno;
  io_uring_params parameters{};
  parameters.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                     IORING_SETUP_R_DISABLED | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP |
                     IORING_SETUP_TASKRUN_FLAG;
  parameters.cq_entries = kCompletionEntries;
  const int result = io_uring_queue_init_params(kSubmissionEntries, &ring_, &parameters);
  if (result < 0) return result;
  ring_open_ = true;
  io_uring_ring_dontfork(&ring_);
  return 0;
}

void Reactor::set_peers(std::vector<Executor*> peers) {
  peers_ = std::move(peers);
  outgoing_.resize(peers_.size());
}

TimePoint Reactor::clock() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return TimePoint(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

io_uring_sqe* Reactor::free_entry() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  while (entry == nullptr) {
    io_uring_submit(&ring_);
    entry = io_uring_get_sqe(&ring_);
  }
  return entry;
}

io_uring_sqe* Reactor::prepare(Operation& operation) {
  assert(current_or_null() == this);
  io_uring_sqe* const entry = free_entry();
  io_uring_sqe_set_data(entry, &operation);
  return entry;
}

void Reactor::cancel(Operation& operation) {
  io_uring_sqe* const entry = free_entry();
  io_uring_prep_cancel(entry, &operation, 0);
  io_uring_sqe_set_data64(entry, kIgnore);
}

void Reactor::arm_wake_poll() {
  io_uring_sqe* const entry = free_entry();
  io_uring_prep_poll_multishot(entry, wake_fd_, POLLIN);
  io_uring_sqe_set_data64(entry, kWake);
}

void Reactor::run() {
  // The first runs on the process's own thread, whose name is that of the process.
  if (index_ != 0)
    ::pthread_setname_np(::pthread_self(), ("reactor-" + std::to_string(index_)).c_str());
  if (processor_ >= 0) {
    cpu_set_t processors;
    CPU_ZERO(&processors);
    CPU_SET(static_cast<unsigned>(processor_), &processors);
    ::sched_setaffinity(0, sizeof processors, &processors);
  }
  set_current(this);
  // Debian 12's liburing declares io_uring_enable_rings() but does not export it.
  const int enabled = io_uring_register(static_cast<unsigned>(ring_.ring_fd),
                                        IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  assert(enabled == 0);
  unsigned kernel_threads[2] = {kMostKernelThreads, 0};  // Files and devices; sockets as they are.
  io_uring_register(static_cast<unsigned>(ring_.ring_fd), IORING_REGISTER_IOWQ_MAX_WORKERS,
                    kernel_threads, 2);  // A kernel that refuses keeps its own limit.
  io_uring_register_ring_fd(&ring_);     // Saves a look-up a turn; works without it too.
  arm_wake_poll();
  watch_.enter_thread();
  while (!stopping_) {
    now_ = clock();
    watch_.turn_starts(now_);  // And ends the last one, if that did not sleep.
    fire_timers();
    take_messages();
    run_ready();
    run_turn_end();
    send_gathered();
    if (!stopping_) submit_and_wait();
    reap();
  }
  watch_.leave_thread();
  set_current(nullptr);
}

void Reactor::run_ready() {
  // Bounded, in number and in time, so that coroutines that keep each other ready, or do much at a
  // time, shut out neither the kernel nor who waits for the turn's end.
  for (std::size_t count = 0; count < kResumesPerTurn && !ready_.empty(); ++count) {
    if (count % kResumesPerLook == kResumesPerLook - 1 && clock() - now_ > kTurn) break;
    ready_.pop().resume();
  }
}

void Reactor::run_turn_end() {
  if (turn_end_.empty()) return;
  std::swap(turn_end_, turn_end_running_);
  for (const auto handle : turn_end_running_) handle.resume();
  turn_end_running_.clear();
}

void Reactor::fire_timers() {
  while (Timer* const timer = timers_.pop_due(now_)) timer->fire(*timer);
}

void Reactor::send(Message& message) noexcept {
  message.next = nullptr;
  auto* const sender = static_cast<Reactor*>(current_or_null());
  if (sender == nullptr || sender->outgoing_.empty()) {
    deliver(message, message);
    return;
  }
  Outgoing& outgoing = sender->outgoing_[index_];
  if (outgoing.first == nullptr) {
    outgoing.first = &message;
  } else {
    outgoing.last->next = &message;
  }
  outgoing.last = &message;
  sender->any_outgoing_ = true;
}

void Reactor::send_gathered() noexcept {
  if (!any_outgoing_) return;
  any_outgoing_ = false;
  for (std::size_t i = 0; i < outgoing_.size(); ++i) {
    Outgoing& outgoing = outgoing_[i];
    if (outgoing.first == nullptr) continue;
    // The inbox is a stack: turn the batch round, so that the receiver turns it back.
    Message* reversed = nullptr;
    Message* const oldest = outgoing.first;
    for (Message* message = outgoing.first; message != nullptr;) {
      Message* const next = message->next;
      message->next = reversed;
      reversed = message;
      message = next;
    }
    outgoing = Outgoing{};
    static_cast<Reactor*>(peers_[i])->deliver(*reversed, *oldest);
  }
}

// Pushes a chain, newest first, from `first` to `last`.
void Reactor::deliver(Message& first, Message& last) noexcept {
  Message* head = inbox_.load(std::memory_order_relaxed);
  do {
    last.next = head;
  } while (!inbox_.compare_exchange_weak(head, &first, std::memory_order_seq_cst,
                                         std::memory_order_relaxed));
  if (sleeping_.load(std::memory_order_seq_cst)) wake();
}

void Reactor::take_messages() {
  if (inbox_.load(std::memory_order_relaxed) == nullptr) return;
  Message* newest = inbox_.exchange(nullptr, std::memory_order_acquire);
  Message* oldest = nullptr;
  while (newest != nullptr) {
    Message* const next = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = next;
  }
  while (oldest != nullptr) {
    Message* const next = oldest->next;  // run() may free the message.
    oldest->run(*oldest);
    oldest = next;
  }
}

void Reactor::wake() noexcept {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then a wake-up is under way.
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof one);
}

void Reactor::submit_and_wait() {
  if (!ready_.empty() || !turn_end_.empty()) {
    io_uring_submit_and_get_events(&ring_);
    return;
  }
  const TimePoint started = clock();
  watch_.turn_ends(started);
  const bool found = quick_ && spin(started);
  if (!found) sleep();
  quick_ = clock() - started <= kSpin;
}

// Looks for work for a moment instead of sleeping: where the next request follows at once, as at
// queue depth 1, waking up would cost more than the request. Done only while waits are short, so
// that an idle reactor sleeps.
bool Reactor::spin(TimePoint started) {
  io_uring_submit(&ring_);
  const TimePoint until = std::min(started + kSpin, timers_.earliest());
  do {
    for (unsigned i = 0; i < kLooksPerClock; ++i) {
      const bool work = io_uring_cq_ready(&ring_) != 0 ||
                        (io_uring_smp_load_acquire(ring_.sq.kflags) & IORING_SQ_TASKRUN) != 0 ||
                        inbox_.load(std::memory_order_relaxed) != nullptr;
      if (work) {
        io_uring_get_events(&ring_);
        return true;
      }
      __builtin_ia32_pause();
    }
  } while (clock() < until);
  return false;
}

void Reactor::sleep() {
  sleeping_.store(true, std::memory_order_seq_cst);
  if (inbox_.load(std::memory_order_seq_cst) != nullptr) {
    sleeping_.store(false, std::memory_order_relaxed);
    io_uring_submit_and_get_events(&ring_);
    return;
  }
  io_uring_cqe* completion = nullptr;
  const TimePoint deadline = timers_.earliest();
  if (deadline == kNever) {
    io_uring_submit_and_wait(&ring_, 1);
  } else {
    const Duration wait = std::max(deadline - now_, Duration{0});
    __kernel_timespec timeout{};
    timeout.tv_sec = wait.count() / 1'000'000'000;
    timeout.tv_nsec = wait.count() % 1'000'000'000;
    io_uring_submit_and_wait_timeout(&ring_, &completion, 1, &timeout, nullptr);
  }
  sleeping_.store(false, std::memory_order_relaxed);
}

void Reactor::reap() {
  io_uring_cqe* completion = nullptr;
  unsigned head = 0;
  unsigned count = 0;
  bool wake_poll_ended = false;
  io_uring_for_each_cqe(&ring_, head, completion) {
    ++count;
    if (completion->user_data == kIgnore) continue;
    if (completion->user_data == kWake) {
      if ((completion->flags & IORING_CQE_F_MORE) == 0) wake_poll_ended = true;
      continue;
    }
    if (completion->user_data == LIBURING_UDATA_TIMEOUT) continue;
    auto& operation = *reinterpret_cast<Operation*>(io_uring_cqe_get_data(completion));
    operation.result = completion->res;
    operation.flags = completion->flags;
    ready_.push(operation.handle);
  }
  io_uring_cq_advance(&ring_, count);
  if (wake_poll_ended) arm_wake_poll();
}

// ReactorGroup -------------------------------------------------------------------------------

namespace {

StartRefusal explain_ring_error(int error) {
  using enum StartRefusal::Kind;
  switch (-error) {
    case ENOSYS:
    case EPERM:
    case EACCES:
      return {kKernel,
              "io_uring is not permitted here (" + std::string(std::strerror(-error)) +
                  "): switch it on (sysctl kernel.io_uring_disabled=0) or let the container use it "
                  "(a seccomp profile that allows io_uring_setup, io_uring_enter and "
                  "io_uring_register)"};
    case EINVAL:
      return {kKernel, "this kernel's io_uring is too old: Linux 6.1 or newer is needed"};
    case ENOMEM:
      return {kNotNow,
              "no memory for an io_uring: raise the locked-memory limit (ulimit -l) or lower "
              "--reactors"};
    case EMFILE:
    case ENFILE:
      return {kNotNow,
              "no file descriptor for an io_uring: raise the limit on open files (ulimit -n)"};
    default:
      return {kNotNow, "cannot make an io_uring: " + std::string(std::strerror(-error))};
  }
}

std::vector<int> allowed_processors() {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  std::vector<int> allowed;
  if (::sched_getaffinity(0, sizeof processors, &processors) != 0) return allowed;
  for (unsigned i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &processors)) allowed.push_back(static_cast<int>(i));
  }
  return allowed;
}

class RealReactorGroup final : public ReactorGroup {
 public:
  RealReactorGroup(std::vector<std::unique_ptr<Reactor>> reactors, TurnReport report)
      : reactors_(std::move(reactors)), report_(std::move(report)) {
    for (const auto& reactor : reactors_) executors_.push_back(reactor.get());
    for (const auto& reactor : reactors_) {
      reactor->set_peers(executors_);
      reactor->set_blocking(blocking_);
    }
  }
  bool start() { return blocking_.start(); }

  std::span<Executor* const> executors() const noexcept override { return executors_; }

  void run(std::function<Task<void>()> main) override {
    const std::unique_ptr<TurnNamer> namer = watch_turns();
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < reactors_.size(); ++i) {
      threads.emplace_back([reactor = reactors_[i].get()] { reactor->run(); });
    }
    Start start;
    start.group = this;
    start.main = std::move(main);
    start.run = [](Message& message) {
      auto& self = static_cast<Start&>(message);
      spawn(run_main(self.group, std::move(self.main)));
    };
    reactors_[0]->send(start);
    reactors_[0]->run();
    for (auto& thread : threads) thread.join();
  }

 private:
  struct Start : Message {
    RealReactorGroup* group = nullptr;
    std::function<Task<void>()> main;
  };
  struct Stop : Message {
    Reactor* reactor = nullptr;
  };

  // Null if turns are not named or nobody wants to know.
  std::unique_ptr<TurnNamer> watch_turns() {
    std::unique_ptr<TurnNamer> namer;
    if (turns_are_named() && report_) {
      std::vector<TurnWatch*> watches;
      for (const auto& reactor : reactors_) watches.push_back(&reactor->watch());
      namer = std::make_unique<TurnNamer>(std::move(watches), report_);
    }
    for (const auto& reactor : reactors_) reactor->watch().set_report(report_, namer.get());
    return namer;
  }

  static Task<void> run_main(RealReactorGroup* group, std::function<Task<void>()> main) {
    co_await main();
    group->stops_.resize(group->reactors_.size());
    for (std::size_t i = 0; i < group->reactors_.size(); ++i) {
      Stop& stop = group->stops_[i];
      stop.reactor = group->reactors_[i].get();
      stop.run = [](Message& message) { static_cast<Stop&>(message).reactor->stop(); };
      stop.reactor->send(stop);
    }
  }

  std::vector<std::unique_ptr<Reactor>> reactors_;
  BlockingPool blocking_;  // Ends before the reactors do.
  TurnReport report_;
  std::vector<Executor*> executors_;
  std::vector<Stop> stops_;
};

}  // namespace
}  // namespace detail

std::expected<std::unique_ptr<ReactorGroup>, StartRefusal> ReactorGroup::create(
    ReactorGroupOptions options) {
  assert(options.count > 0);
  std::uint64_t seed = options.seed;
  if (seed == 0 && ::getrandom(&seed, sizeof seed, 0) != sizeof seed) {
    return std::unexpected("the system gives no random bytes: " +
                           std::string(std::strerror(errno)));
  }
  const std::vector<int> processors = detail::allowed_processors();
  Random seeds(seed);
  std::vector<std::unique_ptr<detail::Reactor>> reactors;
  for (unsigned i = 0; i < options.count; ++i) {
    auto reactor = std::make_unique<detail::Reactor>(i, options.memory_limit_bytes / options.count,
                                                     seeds.next());
    const int error = reactor->open_ring();
    if (error < 0) return std::unexpected(detail::explain_ring_error(error));
    if (options.pin && !processors.empty()) {
      reactor->set_processor(processors[i % processors.size()]);
    }
    reactors.push_back(std::move(reactor));
  }
  auto group = std::make_unique<detail::RealReactorGroup>(std::move(reactors),
                                                          std::move(options.on_long_turn));
  if (!group->start()) {
    return std::unexpected(
        StartRefusal("cannot start a thread: raise the limit on processes (ulimit -u, or "
                     "TasksMax in systemd)"));
  }
  return group;
}

TurnFigures turn_figures(const Executor& executor) {
  const auto* const reactor = dynamic_cast<const detail::Reactor*>(&executor);
  return reactor == nullptr ? TurnFigures{} : reactor->watch().figures();
}

void block_signals(std::span<const int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : signals) sigaddset(&set, number);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

Task<int> wait_for_signal(std::vector<int> signals) {
  auto& reactor = static_cast<detail::Reactor&>(Executor::current());
  sigset_t set;
  sigemptyset(&set);
  for (const int number : signals) sigaddset(&set, number);
  const int descriptor = ::signalfd(-1, &set, SFD_CLOEXEC);
  assert(descriptor >= 0);
  signalfd_siginfo info{};
  detail::Operation operation;
  io_uring_prep_read(reactor.prepare(operation), descriptor, &info, sizeof info, 0);
  const int result = co_await operation;
  ::close(descriptor);
  assert(result == static_cast<int>(sizeof info));
  co_return static_cast<int>(info.ssi_signo);
}

}  // namespace sandbay
