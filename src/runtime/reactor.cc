// The reactor's turn, messages between reactors, and the group.

#include "runtime/reactor.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <thread>

#include "runtime/epoll_engine.h"
#include "runtime/reactor_internal.h"
#include "runtime/uring_engine.h"

namespace sandbay {
namespace detail {

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
  engine_.reset();
  if (wake_fd_ >= 0) ::close(wake_fd_);
  // A device that never answered still owns buffers: the kernel may write to them until the
  // process is gone, so they stay mapped.
  if (buffers_->used_bytes() != 0) static_cast<void>(buffers_.release());
}

Started Reactor::open_engine(IoMethod method, unsigned most_threads) {
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) {
    return std::unexpected(
        StartRefusal("no file descriptor for a reactor: raise the limit on "
                     "open files (ulimit -n)"));
  }
  if (method == IoMethod::kIoUring) {
    auto made = UringEngine::make();
    if (!made) return std::unexpected(made.error());
    engine_ = std::move(*made);
  } else {
    auto made = EpollEngine::make(*this, most_threads);
    if (!made) return std::unexpected(made.error());
    engine_ = std::move(*made);
  }
  // A device has a fifth, so three that hang leave threads for the others.
  blocking_room_ = std::make_shared<KernelRoom>(engine_->most_blocking() * 3 / 4, nullptr);
  other_room_ = std::make_shared<KernelRoom>(engine_->most_blocking() * 3 / 4, nullptr);
  return {};
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
  engine_->enter_thread(wake_fd_);
  watch_.enter_thread();
  while (!stopping_) {
    now_ = clock();
    watch_.turn_starts(now_);  // And ends the last one, if that did not sleep.
    engine_->reap(ready_);
    fire_timers();
    take_messages();
    run_ready();
    run_turn_end();
    send_gathered();
    if (!stopping_) submit_and_wait();
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
  engine_->attempt();
  if (!ready_.empty() || !turn_end_.empty()) {
    engine_->look();
    return;
  }
  const TimePoint started = clock();
  watch_.turn_ends(started);
  // A timer that is due before a sleep would end is looked for as well.
  const TimePoint earliest = timers_.earliest();
  const bool soon = earliest - started <= std::max(kSpin, wake_lag_);
  const bool found = soon ? spin(earliest) : quick_ && spin(std::min(started + kSpin, earliest));
  if (!found) sleep();
  quick_ = !soon && clock() - started <= kSpin;
}

// Looks for work instead of sleeping: where the next request follows at once, as at queue depth 1,
// waking up would cost more than the request. Only while waits are short or a timer is about to
// end, so that an idle reactor sleeps.
bool Reactor::spin(TimePoint until) {
  engine_->submit();
  do {
    for (unsigned i = 0; i < kLooksPerClock; ++i) {
      if (engine_->has_work() || inbox_.load(std::memory_order_relaxed) != nullptr) {
        engine_->look();
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
    engine_->look();
    return;
  }
  const TimePoint deadline = timers_.earliest();
  if (deadline == kNever) {
    engine_->wait(Duration::max());
  } else {
    // A processor that sleeps takes a while to wake up, on virtual machines as long as a request
    // may last: the timer is asked for as much earlier as it was late lately. Much later it is for
    // other reasons.
    const TimePoint due = deadline - wake_lag_;
    const Duration left = due - clock();
    engine_->wait(std::max(left, Duration{0}));
    const Duration late = clock() - due;
    if (left > Duration{0} && late > Duration{0} && late <= kMostWakeLag) {
      wake_lag_ += (late - wake_lag_) / 8;
    }
  }
  sleeping_.store(false, std::memory_order_relaxed);
}

// ReactorGroup -------------------------------------------------------------------------------

namespace {

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

using Reactors = std::vector<std::unique_ptr<Reactor>>;

std::expected<Reactors, StartRefusal> make_reactors(const ReactorGroupOptions& options,
                                                    IoMethod method, std::uint64_t seed) {
  const std::vector<int> processors = allowed_processors();
  // Files take threads with epoll: all reactors together at most this many, or what they need.
  constexpr unsigned kMostThreads = 1024, kLeastOfReactor = 96, kMostOfReactor = 512;
  const unsigned most_threads =
      std::clamp(kMostThreads / options.count, kLeastOfReactor, kMostOfReactor);
  Random seeds(seed);
  Reactors reactors;
  for (unsigned i = 0; i < options.count; ++i) {
    auto reactor =
        std::make_unique<Reactor>(i, options.memory_limit_bytes / options.count, seeds.next());
    if (const Started opened = reactor->open_engine(method, most_threads); !opened) {
      return std::unexpected(opened.error());
    }
    if (options.pin && !processors.empty()) {
      reactor->set_processor(processors[i % processors.size()]);
    }
    reactors.push_back(std::move(reactor));
  }
  return reactors;
}

class RealReactorGroup final : public ReactorGroup {
 public:
  RealReactorGroup(Reactors reactors, TurnReport report, IoMethod io, std::string why_epoll)
      : reactors_(std::move(reactors)),
        report_(std::move(report)),
        io_(io),
        why_epoll_(std::move(why_epoll)) {
    for (const auto& reactor : reactors_) executors_.push_back(reactor.get());
    for (const auto& reactor : reactors_) {
      reactor->set_peers(executors_);
      reactor->set_blocking(blocking_);
    }
  }
  ~RealReactorGroup() override {
    for (const auto& reactor : reactors_) reactor->engine().stop();
  }
  bool start() { return blocking_.start(); }

  std::span<Executor* const> executors() const noexcept override { return executors_; }
  IoMethod io() const noexcept override { return io_; }
  const std::string& why_epoll() const noexcept override { return why_epoll_; }

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

  Reactors reactors_;
  BlockingPool blocking_;  // Ends before the reactors do.
  TurnReport report_;
  IoMethod io_;
  std::string why_epoll_;
  std::vector<Executor*> executors_;
  std::vector<Stop> stops_;
};

}  // namespace
}  // namespace detail

std::optional<IoMethod> parse_io_method(std::string_view word) {
  if (word == "auto") return IoMethod::kAuto;
  if (word == "io_uring") return IoMethod::kIoUring;
  if (word == "epoll") return IoMethod::kEpoll;
  return std::nullopt;
}

std::expected<std::unique_ptr<ReactorGroup>, StartRefusal> ReactorGroup::create(
    ReactorGroupOptions options) {
  assert(options.count > 0);
  std::uint64_t seed = options.seed;
  if (seed == 0 && ::getrandom(&seed, sizeof seed, 0) != sizeof seed) {
    return std::unexpected("the system gives no random bytes: " +
                           std::string(std::strerror(errno)));
  }
  std::string why_epoll;
  auto method = options.io == IoMethod::kEpoll ? IoMethod::kEpoll : IoMethod::kIoUring;
  auto reactors = detail::make_reactors(options, method, seed);
  if (!reactors && options.io == IoMethod::kAuto) {
    why_epoll = reactors.error().text;
    method = IoMethod::kEpoll;
    reactors = detail::make_reactors(options, method, seed);
  }
  if (!reactors) return std::unexpected(reactors.error());
  auto group = std::make_unique<detail::RealReactorGroup>(
      std::move(*reactors), std::move(options.on_long_turn), method, std::move(why_epoll));
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
  detail::Socket socket{.descriptor = descriptor};
  detail::SocketOperation operation;
  reactor.engine().wait_readable(operation, socket);
  co_await operation;
  reactor.engine().forget(socket);
  signalfd_siginfo info{};
  [[maybe_unused]] const ssize_t got = ::read(descriptor, &info, sizeof info);
  assert(got == static_cast<ssize_t>(sizeof info));
  ::close(descriptor);
  co_return static_cast<int>(info.ssi_signo);
}

}  // namespace sandbay
