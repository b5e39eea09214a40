// The scheduler of a world: repeatability, orders that may and may not change, time, deadlocks.
#include "runtime/simulation.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "runtime/sync.h"

namespace sandbay::sim {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<World> make_world(std::uint64_t seed, unsigned executors = 1) {
  return World::create({.seed = seed, .executors = executors});
}

Task<void> append(Executor& executor, std::vector<int>& order, int number) {
  co_await executor.yield();
  order.push_back(number);
}

Task<void> append_all(Executor& executor, std::vector<int>& order) {
  for (int i = 0; i < 6; ++i) spawn(append(executor, order, i));
  co_await executor.sleep_for(1us);
}

TEST_CASE("What is ready runs in an order drawn from the seed", "[sim]") {
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::vector<int> order;
    auto world = make_world(seed);
    REQUIRE(world->run([&] { return append_all(*world->executors()[0], order); }));
    orders.insert(order);
    std::ranges::sort(order);
    REQUIRE(order == std::vector<int>{0, 1, 2, 3, 4, 5});
  }
  REQUIRE(orders.size() > 30);
}

// A little of everything: messages, timers, files, streams, chance.
Task<void> send_bytes(Executor& executor, std::uint16_t port) {
  auto stream = co_await executor.connect(Endpoint::ipv4(0x7F000001, port));
  CHECK(stream.has_value());
  std::vector<std::byte> bytes(10'000, std::byte{7});
  const IoSlice slice{bytes.data(), bytes.size()};
  const Error error = co_await (*stream)->send({&slice, 1});
  CHECK(error == Error::kNone);
}

Task<std::uint64_t> write_and_draw(Executor& executor) {
  auto file = co_await executor.open_file("file", {.create = true});
  std::vector<std::byte> bytes(4096, std::byte{1});
  const IoSlice slice{bytes.data(), bytes.size()};
  for (std::uint64_t i = 0; i < 10; ++i) {
    const Error error = co_await (*file)->write(i * 4096, {&slice, 1}, nullptr);
    CHECK(error == Error::kNone);
  }
  const Error error = co_await (*file)->sync(nullptr);
  CHECK(error == Error::kNone);
  co_return executor.random().next();
}

Task<void> mixture(std::span<Executor* const> executors, std::uint64_t& digest) {
  Executor& home = *executors[0];
  auto listener = home.listen(Endpoint::ipv4(0x7F000001, 0));
  spawn(send_bytes(home, (*listener)->local().port()));
  auto stream = co_await (*listener)->accept();
  std::vector<std::byte> bytes(1000);
  const IoSlice slice{bytes.data(), bytes.size()};
  for (;;) {
    const auto count = co_await (*stream)->receive({&slice, 1});
    CHECK(count.has_value());
    if (*count == 0) break;
    digest = digest * 31 + *count;
  }
  for (Executor* executor : executors) {
    const std::uint64_t value = co_await invoke_on(*executor, write_and_draw(*executor));
    digest = digest * 31 + value;
  }
  digest = digest * 31 + static_cast<std::uint64_t>(home.now().time_since_epoch().count());
}

struct Trace {
  std::uint64_t hash = 0;
  std::uint64_t steps = 0;
  std::uint64_t digest = 0;
  bool operator==(const Trace&) const = default;
};

Trace run_mixture(std::uint64_t seed) {
  auto world = make_world(seed, 3);
  Trace trace;
  REQUIRE(world->run([&] { return mixture(world->executors(), trace.digest); }));
  trace.hash = world->trace_hash();
  trace.steps = world->steps();
  return trace;
}

TEST_CASE("A seed repeats a run, another seed is another run", "[sim]") {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    const Trace trace = run_mixture(seed);
    REQUIRE(trace == run_mixture(seed));
    REQUIRE(hashes.insert(trace.hash).second);
  }
}

// Messages ---------------------------------------------------------------------------------------

struct Numbered : Message {
  unsigned sender = 0;
  int number = 0;
  std::vector<std::vector<int>>* received = nullptr;
};

void receive_numbered(Message& message) {
  auto& self = static_cast<Numbered&>(message);
  (*self.received)[self.sender].push_back(self.number);
}

Task<void> send_numbered(Executor& from, Executor& to, std::vector<Numbered>& messages) {
  co_await SwitchTo(from);
  for (Numbered& message : messages) {
    to.send(message);
    const bool pause = from.random().chance(0.3);
    if (pause) co_await from.yield();
  }
}

TEST_CASE("Messages of one pair keep their order, those of several mix", "[sim][message]") {
  constexpr unsigned kExecutors = 4;
  constexpr int kMessages = 50;
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    auto world = make_world(seed, kExecutors);
    std::vector<std::vector<int>> received(kExecutors);
    std::vector<std::vector<Numbered>> messages(kExecutors);
    for (unsigned sender = 0; sender < kExecutors; ++sender) {
      for (int i = 0; i < kMessages; ++i) {
        Numbered message;
        message.run = receive_numbered;
        message.sender = sender;
        message.number = i;
        message.received = &received;
        messages[sender].push_back(message);
      }
    }
    const auto executors = world->executors();
    for (unsigned sender = 0; sender < kExecutors; ++sender) {
      REQUIRE(world->run(
          [&] { return send_numbered(*executors[sender], *executors[3], messages[sender]); }));
    }
    world->run_for(1s);
    for (const auto& numbers : received) {
      REQUIRE(numbers.size() == kMessages);
      REQUIRE(std::ranges::is_sorted(numbers));
    }
    hashes.insert(world->trace_hash());
  }
  REQUIRE(hashes.size() == 50);
}

TEST_CASE("A message is sometimes late, and time passes meanwhile", "[sim][message]") {
  auto world = make_world(1, 2);
  const TimePoint start = world->now();
  struct Probe : Message {
    int ran = 0;
  };
  std::vector<Probe> probes(200);
  for (Probe& probe : probes) {
    probe.run = [](Message& message) { ++static_cast<Probe&>(message).ran; };
    world->executors()[1]->send(probe);
  }
  while (world->now() < start + 1s) world->run_for(1s);
  REQUIRE(std::ranges::all_of(probes, [](const Probe& probe) { return probe.ran == 1; }));
}

// The end of a turn ------------------------------------------------------------------------------

Task<void> yield_times(Executor& executor, int times, std::vector<std::string>& log) {
  for (int i = 0; i < times; ++i) co_await executor.yield();
  log.emplace_back("ready");
}

Task<void> at_turn_end(Executor& executor, std::vector<std::string>& log) {
  co_await executor.turn_end();
  log.emplace_back("end");
}

Task<void> mix_turn(Executor& executor, std::vector<std::string>& log) {
  spawn(at_turn_end(executor, log));
  spawn(at_turn_end(executor, log));
  for (int i = 0; i < 3; ++i) spawn(yield_times(executor, 5, log));
  co_await executor.sleep_for(1us);
}

TEST_CASE("The end of a turn comes when nothing else is ready", "[sim]") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    auto world = make_world(seed, 2);
    std::vector<std::string> log;
    REQUIRE(world->run([&] { return mix_turn(*world->executors()[0], log); }));
    REQUIRE(log == std::vector<std::string>{"ready", "ready", "ready", "end", "end"});
  }
}

Task<void> turn_end_on_second(Executor& second, std::vector<std::string>& log) {
  co_await SwitchTo(second);
  co_await second.turn_end();
  log.emplace_back("end");
}

TEST_CASE("Another executor's work does not put off the end of a turn", "[sim]") {
  auto world = make_world(1, 2);
  std::vector<std::string> log;
  REQUIRE(world->run([&] { return turn_end_on_second(*world->executors()[1], log); }));
  REQUIRE(log.size() == 1);
}

// Time -------------------------------------------------------------------------------------------

Task<void> sleep_in_order(Executor& executor, std::vector<TimePoint>& woken) {
  const TimePoint start = executor.now();
  co_await executor.sleep_for(3ms);
  woken.push_back(executor.now());
  co_await executor.sleep_until(start + 5ms);
  woken.push_back(executor.now());
  co_await executor.sleep_until(start);  // Past: at once.
  woken.push_back(executor.now());
}

TEST_CASE("Time jumps to the next timer and stands still otherwise", "[sim]") {
  auto world = make_world(1);
  const TimePoint start = world->now();
  std::vector<TimePoint> woken;
  REQUIRE(world->run([&] { return sleep_in_order(*world->executors()[0], woken); }));
  REQUIRE(woken == std::vector<TimePoint>{start + 3ms, start + 5ms, start + 5ms});
  world->run_for(10s);
  REQUIRE(world->now() == start + 5ms + 10s);
}

Task<void> sleep_long(Executor& executor, int& stage) {
  stage = 1;
  co_await executor.sleep_for(2h);
  stage = 2;
}

TEST_CASE("A run ends at its limit of virtual time and can go on", "[sim]") {
  auto world = make_world(1);
  int stage = 0;
  REQUIRE_FALSE(world->run([&] { return sleep_long(*world->executors()[0], stage); }));
  REQUIRE(stage == 1);
  world->run_for(2h);
  REQUIRE(stage == 2);
}

TEST_CASE("A world in which nothing can happen is deadlocked", "[sim]") {
  auto world = make_world(1);
  Event event;
  REQUIRE_FALSE(world->run([&] { return event.wait(); }));
  event.set();
  world->run_for(Duration{0});  // Its coroutine ends.
}

Task<void> spin(Executor& executor, const bool& stop, bool& stopped) {
  while (!stop) co_await executor.yield();
  stopped = true;
}

TEST_CASE("A world that spins without time passing is stopped", "[sim][slow]") {
  auto world = make_world(1);
  bool stop = false;
  bool stopped = false;
  REQUIRE_FALSE(world->run([&] { return spin(*world->executors()[0], stop, stopped); }));
  stop = true;
  world->run_for(Duration{0});  // Its coroutine ends.
  REQUIRE(stopped);
  REQUIRE(world->steps() >= 1'000'000);
}

TEST_CASE("Buffers that are freed on another executor come home", "[sim][buffer]") {
  auto world = make_world(1, 2);
  BufferPool& pool = world->executors()[0]->buffers();
  struct Carry {
    static Task<void> run(Executor& home, Executor& away) {
      Buffer buffer = home.buffers().try_allocate_contiguous(4096);
      CHECK(home.buffers().used_bytes() == 4096);
      co_await SwitchTo(away);
      buffer = Buffer();
      CHECK(home.buffers().used_bytes() == 4096);
      co_await SwitchTo(home);
    }
  };
  REQUIRE(world->run([&] { return Carry::run(*world->executors()[0], *world->executors()[1]); }));
  world->run_for(1ms);
  REQUIRE(pool.used_bytes() == 0);
}

}  // namespace
}  // namespace sandbay::sim
