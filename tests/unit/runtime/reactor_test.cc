// Reactors: timers, the turn, messages between threads, and that idling costs nothing. Time is
// compared only in the direction that a slow machine cannot spoil.
#include "runtime/reactor.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/sync.h"

namespace sandbay::reactor_test {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<ReactorGroup> make_group(unsigned count = 1) {
  auto group = ReactorGroup::create(
      {.count = count, .memory_limit_bytes = std::size_t{count} * (64U << 20U), .seed = 1});
  if (!group.has_value()) FAIL(group.error().text);
  return std::move(*group);
}

// Timers ----------------------------------------------------------------------------------------

Task<void> sleep_and_log(Executor& executor, Duration duration, int number, std::vector<int>& order,
                         Gate& gate) {
  const GateHold hold(gate);
  const TimePoint start = executor.now();
  co_await executor.sleep_for(duration);
  CHECK(executor.now() - start >= duration);
  order.push_back(number);
}

Task<void> sleep_in_turn(Executor& executor) {
  Gate gate;
  std::vector<int> order;
  for (const int number : {3, 1, 2, 0}) {
    CHECK(gate.enter());
    spawn(sleep_and_log(executor, number * 5ms, number, order, gate));
  }
  co_await gate.close();
  CHECK(order == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE("Reactor timers fire after their deadline, in order", "[reactor]") {
  auto group = make_group();
  group->run([&] { return sleep_in_turn(*group->executors()[0]); });
}

Task<void> disarm_one(Executor& executor) {
  struct Flag {
    bool fired = false;
  } flag;
  Timer timer;
  timer.owner = &flag;
  timer.fire = [](Timer& fired) { static_cast<Flag*>(fired.owner)->fired = true; };
  timer.deadline = executor.now() + 2ms;
  executor.arm(timer);
  executor.disarm(timer);
  executor.disarm(timer);
  co_await executor.sleep_for(5ms);
  CHECK_FALSE(flag.fired);
  timer.deadline = executor.now();
  executor.arm(timer);
  co_await executor.sleep_for(1ms);
  CHECK(flag.fired);
  Event event;
  const bool woken = co_await event.wait_until(executor.now() + 1ms);
  CHECK_FALSE(woken);
}

TEST_CASE("A disarmed reactor timer does not fire", "[reactor]") {
  auto group = make_group();
  group->run([&] { return disarm_one(*group->executors()[0]); });
}

// The turn --------------------------------------------------------------------------------------

Task<void> log_after_yields(Executor& executor, int yields, std::vector<std::string>& log) {
  for (int i = 0; i < yields; ++i) co_await executor.yield();
  log.emplace_back("ready");
}

Task<void> log_at_turn_end(Executor& executor, std::vector<std::string>& log) {
  co_await executor.turn_end();
  log.emplace_back("end");
}

Task<void> order_of_a_turn(Executor& executor) {
  std::vector<std::string> log;
  spawn(log_at_turn_end(executor, log));
  spawn(log_after_yields(executor, 1, log));
  spawn(log_after_yields(executor, 3, log));
  spawn(log_at_turn_end(executor, log));
  co_await executor.sleep_for(1ms);
  CHECK(log == std::vector<std::string>{"ready", "ready", "end", "end"});
  // Somebody who asks again at the turn's end gets the next one.
  for (int i = 0; i < 100; ++i) co_await executor.turn_end();
}

TEST_CASE("A turn ends when its ready queue is empty", "[reactor]") {
  auto group = make_group();
  group->run([&] { return order_of_a_turn(*group->executors()[0]); });
}

Task<void> yield_often(Executor& executor, Gate& gate) {
  const GateHold hold(gate);
  for (int i = 0; i < 1000; ++i) co_await executor.yield();
}

Task<void> many_ready(Executor& executor) {
  Gate gate;
  for (int i = 0; i < 5000; ++i) {
    CHECK(gate.enter());
    spawn(yield_often(executor, gate));
  }
  // They keep each other ready, and yet a timer gets its turn.
  co_await executor.sleep_for(1us);
  CHECK(gate.count() > 0);
  co_await gate.close();
}

TEST_CASE("A full ready queue does not shut timers out", "[reactor]") {
  auto group = make_group();
  group->run([&] { return many_ready(*group->executors()[0]); });
}

Task<void> raise_at_turn_end(Executor& executor, bool& raised) {
  co_await executor.turn_end();
  raised = true;
}

Task<void> yield_until(Executor& executor, const bool& raised, std::uint64_t& yields) {
  for (; yields < 1'000'000 && !raised; ++yields) co_await executor.yield();
}

Task<void> busy_turns(Executor& executor) {
  bool raised = false;
  std::uint64_t yields = 0;
  spawn(raise_at_turn_end(executor, raised));
  co_await yield_until(executor, raised, yields);
  CHECK(raised);
}

TEST_CASE("A turn ends while something yields all the time", "[reactor]") {
  auto group = make_group();
  group->run([&] { return busy_turns(*group->executors()[0]); });
}

// Messages --------------------------------------------------------------------------------------

struct Numbered : Message {
  int number = 0;
  std::vector<int>* received = nullptr;
};

Task<void> flood(Executor& from, Executor& to, std::vector<Numbered>& messages) {
  co_await SwitchTo(from);
  for (Numbered& message : messages) {
    to.send(message);
    if (message.number % 7 == 0) co_await from.yield();
    if (message.number % 1000 == 0) co_await from.sleep_for(10us);
  }
}

Task<void> message_order(std::span<Executor* const> executors) {
  Executor& first = *executors[0];
  Executor& second = *executors[1];
  std::vector<int> there;
  std::vector<int> back;
  std::vector<Numbered> forth_messages(20'000);
  std::vector<Numbered> back_messages(20'000);
  for (int i = 0; i < 20'000; ++i) {
    for (auto [messages, received] :
         {std::pair(&forth_messages, &there), std::pair(&back_messages, &back)}) {
      Numbered& message = (*messages)[static_cast<std::size_t>(i)];
      message.number = i;
      message.received = received;
      message.run = [](Message& arrived) {
        auto& self = static_cast<Numbered&>(arrived);
        self.received->push_back(self.number);
      };
    }
  }
  co_await invoke_on(first, flood(first, second, forth_messages));
  co_await SwitchTo(second);
  co_await flood(second, first, back_messages);
  co_await SwitchTo(first);
  // Whatever was sent before a round trip has arrived after it.
  co_await SwitchTo(second);
  co_await SwitchTo(first);
  CHECK(there.size() == 20'000);
  CHECK(back.size() == 20'000);
  CHECK(std::ranges::is_sorted(there));
  CHECK(std::ranges::is_sorted(back));
}

TEST_CASE("Messages between two reactors keep their order", "[reactor][message]") {
  auto group = make_group(2);
  group->run([&] { return message_order(group->executors()); });
}

Task<std::thread::id> thread_here() { co_return std::this_thread::get_id(); }

Task<void> hop_around(std::span<Executor* const> executors) {
  std::vector<std::thread::id> threads;
  for (Executor* executor : executors) {
    const std::thread::id id = co_await invoke_on(*executor, thread_here());
    CHECK(std::ranges::find(threads, id) == threads.end());
    threads.push_back(id);
  }
  CHECK(threads[0] == std::this_thread::get_id());
  for (int i = 0; i < 2000; ++i) {
    Executor& target = *executors[static_cast<std::size_t>(i) % executors.size()];
    co_await SwitchTo(target);
    CHECK(&Executor::current() == &target);
  }
  co_await SwitchTo(*executors[0]);
}

TEST_CASE("Every reactor has its thread, and coroutines hop between them", "[reactor][message]") {
  auto group = make_group(3);
  REQUIRE(group->executors().size() == 3);
  for (unsigned i = 0; i < 3; ++i) {
    REQUIRE(group->executors()[i]->index() == i);
    REQUIRE(group->executors()[i]->peers().size() == 3);
  }
  group->run([&] { return hop_around(group->executors()); });
  REQUIRE(Executor::current_or_null() == nullptr);
}

Task<void> from_a_foreign_thread(Executor& executor) {
  struct Arrival : Message {
    Event* event = nullptr;
  } arrival;
  Event event;
  arrival.event = &event;
  arrival.run = [](Message& message) { static_cast<Arrival&>(message).event->set(); };
  std::thread foreign([&] {
    ::usleep(20'000);  // Likely asleep by then; right either way.
    executor.send(arrival);
  });
  co_await event.wait();
  foreign.join();
}

TEST_CASE("A foreign thread wakes a reactor that sleeps", "[reactor][message]") {
  auto group = make_group();
  group->run([&] { return from_a_foreign_thread(*group->executors()[0]); });
}

Task<void> buffers_cross(std::span<Executor* const> executors) {
  Executor& home = *executors[0];
  Executor& away = *executors[1];
  for (int i = 0; i < 500; ++i) {
    BufferList list = co_await home.buffers().allocate(1 << 20);
    CHECK_FALSE(list.empty());
    co_await SwitchTo(away);
    list.clear();
    co_await SwitchTo(home);
  }
  CHECK(home.buffers().used_bytes() == 0);
}

TEST_CASE("Buffers freed on another reactor come home", "[reactor][buffer]") {
  auto group = make_group(2);
  group->run([&] { return buffers_cross(group->executors()); });
}

// Idling ----------------------------------------------------------------------------------------

Duration processor_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto time = [](const timeval& value) {
    return std::chrono::seconds(value.tv_sec) + std::chrono::microseconds(value.tv_usec);
  };
  return time(usage.ru_utime) + time(usage.ru_stime);
}

Task<void> idle(Executor& executor) {
  co_await executor.sleep_for(50ms);
  const Duration before = processor_time();
  co_await executor.sleep_for(1s);
  // A reactor that polls would use two seconds here; waking up once takes microseconds.
  CHECK(processor_time() - before < 50ms);
}

TEST_CASE("Idle reactors use no processor time", "[reactor]") {
  auto group = make_group(2);
  group->run([&] { return idle(*group->executors()[0]); });
}

Task<void> await_signal() {
  ::kill(::getpid(), SIGUSR1);
  const int number = co_await wait_for_signal({SIGUSR1, SIGUSR2});
  CHECK(number == SIGUSR1);
}

TEST_CASE("A signal is waited for like anything else", "[reactor]") {
  const int signals[] = {SIGUSR1, SIGUSR2};
  block_signals(signals);
  auto group = make_group();
  group->run([&] { return await_signal(); });
}

Task<void> draw(Executor& executor, std::uint64_t& value) {
  value = executor.random().next();
  co_return;
}

TEST_CASE("Reactors take io_uring where it is permitted, and epoll elsewhere", "[reactor]") {
  const auto wanted = ReactorGroup::create({.io = IoMethod::kIoUring});
  const auto chosen = ReactorGroup::create({});
  REQUIRE(chosen.has_value());
  if (wanted.has_value()) {
    CHECK((*wanted)->io() == IoMethod::kIoUring);
    CHECK((*chosen)->io() == IoMethod::kIoUring);
    CHECK((*chosen)->why_epoll().empty());
  } else {
    CHECK(wanted.error().kind == StartRefusal::Kind::kKernel);
    CHECK((*chosen)->io() == IoMethod::kEpoll);
    CHECK((*chosen)->why_epoll() == wanted.error().text);
  }
  const auto epoll = ReactorGroup::create({.io = IoMethod::kEpoll});
  REQUIRE(epoll.has_value());
  CHECK((*epoll)->io() == IoMethod::kEpoll);
  CHECK((*epoll)->why_epoll().empty());
}

TEST_CASE("Reactors draw from the group's seed", "[reactor]") {
  std::uint64_t values[3] = {};
  for (std::uint64_t& value : values) {
    const std::uint64_t seed = &value == &values[2] ? 8 : 7;
    auto group = ReactorGroup::create({.count = 1, .seed = seed});
    REQUIRE(group.has_value());
    (*group)->run([&] { return draw(*(*group)->executors()[0], value); });
  }
  REQUIRE(values[0] == values[1]);
  REQUIRE(values[0] != values[2]);
}

}  // namespace
}  // namespace sandbay::reactor_test
