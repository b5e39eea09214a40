// Simulated streams and listeners: bytes arrive in order and complete whatever the seed does with
// delay, fragments and back-pressure; ends, resets and partitions are seen by both sides.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "runtime/simulation.h"
#include "runtime/sync.h"
#include "tests/unit/random_fill.h"

namespace sandbay::sim {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kLoopback = 0x7F000001;

struct Pair {
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Stream> client;
  std::unique_ptr<Stream> server;
};

Task<void> connect_to(Executor& executor, Endpoint endpoint, std::unique_ptr<Stream>& stream,
                      Event& done) {
  auto connected = co_await executor.connect(endpoint);
  CHECK(connected.has_value());
  if (connected.has_value()) stream = std::move(*connected);
  done.set();
}

Task<void> make_pair(Executor& executor, Pair& pair) {
  pair.listener = std::move(*executor.listen(Endpoint::ipv4(kLoopback, 0)));
  Event done;
  spawn(connect_to(executor, pair.listener->local(), pair.client, done));
  auto accepted = co_await pair.listener->accept();
  CHECK(accepted.has_value());
  pair.server = std::move(*accepted);
  co_await done.wait();
}

Task<Error> send_bytes(Stream& stream, Bytes bytes) {
  const IoSlice slice{bytes.data(), bytes.size()};
  const Error error = co_await stream.send({&slice, 1});
  co_return error;
}

// What arrives until the peer closes, or the error.
Task<Result<Bytes>> receive_all(Stream& stream) {
  Bytes received;
  Bytes memory(5000);
  for (;;) {
    const IoSlice slices[2] = {{memory.data(), 1000}, {memory.data() + 1000, 4000}};
    const auto count = co_await stream.receive(slices);
    if (!count.has_value()) co_return std::unexpected(count.error());
    if (*count == 0) co_return received;
    received.insert(received.end(), memory.begin(),
                    memory.begin() + static_cast<std::ptrdiff_t>(*count));
  }
}

Bytes numbered(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  Bytes bytes(count);
  testing::fill_random(bytes, random);
  return bytes;
}

// In order and complete --------------------------------------------------------------------------

struct Transfer {
  Bytes sent;
  Result<Bytes> received;
  Event done;
};

Task<void> receive_into(Stream& stream, Transfer& transfer) {
  transfer.received = co_await receive_all(stream);
  transfer.done.set();
}

Task<void> transfer_bytes(Executor& executor, Transfer& transfer, std::size_t total) {
  Pair pair;
  co_await make_pair(executor, pair);
  spawn(receive_into(*pair.server, transfer));
  transfer.sent = numbered(total, 1);
  for (std::size_t at = 0; at < total;) {
    const std::size_t count =
        std::min<std::size_t>(total - at, executor.random().between(1, total / 4));
    const auto begin = transfer.sent.begin() + static_cast<std::ptrdiff_t>(at);
    const Error error =
        co_await send_bytes(*pair.client, Bytes(begin, begin + static_cast<std::ptrdiff_t>(count)));
    CHECK(error == Error::kNone);
    at += count;
  }
  pair.client->shutdown();
  co_await transfer.done.wait();
}

TEST_CASE("Bytes arrive in order and complete", "[sim][network]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    LinkOptions link;
    link.buffer_bytes = random.between(1, 40'000);
    link.fragment = random.chance(0.8);
    if (random.chance(0.5)) link.bytes_per_second = random.between(100'000, 1'000'000'000);
    auto world = World::create({.seed = seed, .link = link});
    Transfer transfer;
    REQUIRE(world->run([&] { return transfer_bytes(*world->executors()[0], transfer, 20'000); }));
    REQUIRE(transfer.received.has_value());
    REQUIRE(*transfer.received == transfer.sent);
    REQUIRE(world->stream_count() == 0);
  }
}

TEST_CASE("Bandwidth and delay take their time", "[sim][network]") {
  auto world = World::create(
      {.seed = 1, .link = {.delay_least = 1ms, .delay_most = 1ms, .bytes_per_second = 1'000'000}});
  Transfer transfer;
  const TimePoint start = world->now();
  REQUIRE(world->run([&] { return transfer_bytes(*world->executors()[0], transfer, 1'000'000); }));
  const Duration taken = world->now() - start;
  REQUIRE(taken >= 1s);
  REQUIRE(taken < 1100ms);
}

namespace {

// A megabyte a second, whoever sends it, and a millisecond on the way.
class SlowWire final : public Wire {
 public:
  TimePoint carry(TimePoint now, std::size_t byte_count) override {
    free_ = std::max(now, free_) + Duration(byte_count * 1000);
    ++carried;
    return free_ + 1ms;
  }
  int carried = 0;

 private:
  TimePoint free_{};
};

struct WireTest {
  Duration took{};        // Both transfers together,
  Duration first_took{};  // and until something of one of them had come.
  SlowWire to_server;
  SlowWire to_client;
};

Task<void> receive_first(Stream& stream, Event& first, Event& done) {
  Bytes memory(200'000);
  for (std::size_t left = memory.size(); left > 0;) {
    const IoSlice slice{memory.data(), left};
    const auto count = co_await stream.receive({&slice, 1});
    CHECK(count.value_or(0) > 0);
    left -= count.value_or(left);
    first.set();
  }
  done.set();
}

// Two connections to an endpoint with wires of its own, at which a listener for any address is.
Task<void> send_over_wires(World& world, WireTest& test) {
  Executor& executor = *world.executors()[0];
  auto listener = std::move(*executor.listen(Endpoint::ipv4(0, 3260)));
  const Endpoint server = Endpoint::ipv4(0x0A000001, 3260);
  world.set_wires(server, {.to_server = &test.to_client, .to_client = &test.to_server});
  world.set_wires(server, {.to_server = &test.to_server, .to_client = &test.to_client});
  Pair pairs[2];
  for (Pair& pair : pairs) {
    Event connected;
    spawn(connect_to(executor, server, pair.client, connected));
    auto accepted = co_await listener->accept();
    pair.server = std::move(*accepted);
    co_await connected.wait();
  }
  const TimePoint start = executor.now();
  Event first;
  Event done[2];
  for (int i = 0; i < 2; ++i) spawn(receive_first(*pairs[i].server, first, done[i]));
  for (Pair& pair : pairs) {
    const Error error = co_await send_bytes(*pair.client, Bytes(200'000));
    CHECK(error == Error::kNone);
  }
  CHECK(test.to_client.carried == 0);
  co_await first.wait();
  test.first_took = executor.now() - start;
  for (Event& each : done) co_await each.wait();
  test.took = executor.now() - start;
}

}  // namespace

TEST_CASE("Wires say when bytes arrive, also those of several connections", "[sim][network]") {
  auto world = World::create(
      {.seed = 1, .link = {.delay_least = 1s, .delay_most = 1s, .buffer_bytes = 1 << 20}});
  WireTest test;
  REQUIRE(world->run([&] { return send_over_wires(*world, test); }));
  CHECK(test.took == 400ms + 1ms);
  // The first of three pieces does not wait for the rest.
  CHECK(test.first_took == 66'666us + 1ms);
}

TEST_CASE("Receives may be cut anywhere, or never", "[sim][network]") {
  struct Counting {
    static Task<void> run(Executor& executor, std::size_t& receives) {
      Pair pair;
      co_await make_pair(executor, pair);
      const Error error = co_await send_bytes(*pair.client, Bytes(10'000));
      CHECK(error == Error::kNone);
      co_await executor.sleep_for(10ms);
      Bytes memory(10'000);
      for (std::size_t left = memory.size(); left > 0; ++receives) {
        const IoSlice slice{memory.data(), left};
        const auto count = co_await pair.server->receive({&slice, 1});
        CHECK(count.value_or(0) > 0);
        left -= count.value_or(left);
      }
    }
  };
  std::set<std::size_t> counts;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    std::size_t receives = 0;
    auto world = World::create({.seed = seed});
    REQUIRE(world->run([&] { return Counting::run(*world->executors()[0], receives); }));
    counts.insert(receives);
    receives = 0;
    auto whole = World::create({.seed = seed, .link = {.fragment = false}});
    REQUIRE(whole->run([&] { return Counting::run(*whole->executors()[0], receives); }));
    REQUIRE(receives == 1);
  }
  REQUIRE(counts.size() > 3);
}

// Back-pressure ----------------------------------------------------------------------------------

Task<void> send_and_mark(Stream& stream, std::size_t count, Error& error, Event& ended) {
  error = co_await send_bytes(stream, Bytes(count));
  ended.set();
}

Task<void> fill_up(Executor& executor) {
  Pair pair;
  co_await make_pair(executor, pair);
  Event ended;
  Error error = Error::kNone;
  spawn(send_and_mark(*pair.client, 100'000, error, ended));
  co_await executor.sleep_for(10s);
  CHECK_FALSE(ended.is_set());  // Nobody reads.
  Bytes memory(100'000);
  std::size_t received = 0;
  while (received < memory.size()) {
    const IoSlice slice{memory.data(), memory.size()};
    const auto count = co_await pair.server->receive({&slice, 1});
    CHECK(count.value_or(0) <= 10'000);
    received += count.value_or(memory.size());
  }
  CHECK(received == memory.size());
  co_await ended.wait();
  CHECK(error == Error::kNone);
}

TEST_CASE("A sender waits for a receiver that does not read", "[sim][network]") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    auto world = World::create({.seed = seed, .link = {.buffer_bytes = 10'000}});
    REQUIRE(world->run([&] { return fill_up(*world->executors()[0]); }));
  }
}

// Ends -------------------------------------------------------------------------------------------

Task<void> receive_error(Stream& stream, Error& error, Event& ended) {
  const auto received = co_await receive_all(stream);
  error = received.has_value() ? Error::kNone : received.error();
  ended.set();
}

Task<void> shut_down(Executor& executor) {
  Pair pair;
  co_await make_pair(executor, pair);
  Event client_ended;
  Error client_error = Error::kNone;
  spawn(receive_error(*pair.client, client_error, client_ended));
  Error error = co_await send_bytes(*pair.client, Bytes(1000));
  CHECK(error == Error::kNone);
  pair.client->shutdown();
  pair.client->shutdown();
  CHECK_FALSE(client_ended.is_set());  // Through the ready queue.
  co_await client_ended.wait();
  CHECK((client_error == Error::kClosed || client_error == Error::kNone));
  error = co_await send_bytes(*pair.client, Bytes(1));
  CHECK(error == Error::kClosed);
  // The peer reads the rest, then the end, and cannot send any more.
  const auto rest = co_await receive_all(*pair.server);
  CHECK(rest.has_value());
  CHECK(rest->size() == 1000);
  error = co_await send_bytes(*pair.server, Bytes(1));
  CHECK(error == Error::kReset);
}

TEST_CASE("After a shutdown the peer reads the rest and then the end", "[sim][network]") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    auto world = World::create({.seed = seed});
    REQUIRE(world->run([&] { return shut_down(*world->executors()[0]); }));
  }
}

Task<void> shut_down_while_sending(Executor& executor, bool by_peer) {
  Pair pair;
  co_await make_pair(executor, pair);
  Event ended;
  Error error = Error::kNone;
  spawn(send_and_mark(*pair.client, 1'000'000, error, ended));
  co_await executor.sleep_for(1s);
  CHECK_FALSE(ended.is_set());
  if (by_peer) {
    pair.server->shutdown();
  } else {
    pair.client->shutdown();
  }
  co_await ended.wait();
  if (!by_peer) CHECK(error == Error::kClosed);
  co_await executor.sleep_for(1s);
  const Error after = co_await send_bytes(*pair.client, Bytes(1));
  CHECK(after == (by_peer ? Error::kReset : Error::kClosed));
}

TEST_CASE("A blocked sender ends when either side shuts down", "[sim][network]") {
  for (const bool by_peer : {false, true}) {
    auto world = World::create({.seed = 5});
    REQUIRE(world->run([&] { return shut_down_while_sending(*world->executors()[0], by_peer); }));
  }
}

Task<void> reset_it(Executor& executor, World* by_world) {
  Pair pair;
  co_await make_pair(executor, pair);
  Event ended[3];
  Error errors[3] = {};
  spawn(receive_error(*pair.client, errors[0], ended[0]));
  spawn(receive_error(*pair.server, errors[1], ended[1]));
  co_await executor.sleep_for(1ms);
  if (by_world != nullptr) {
    CHECK(by_world->stream_count() == 1);
    by_world->reset_stream(0);
  } else {
    pair.client->reset();
  }
  co_await ended[0].wait();
  co_await ended[1].wait();
  CHECK(errors[0] == Error::kReset);
  CHECK(errors[1] == Error::kReset);
  const Error client = co_await send_bytes(*pair.client, Bytes(1));
  const Error server = co_await send_bytes(*pair.server, Bytes(1));
  CHECK(client == Error::kReset);
  CHECK(server == Error::kReset);
}

TEST_CASE("Both sides see a reset", "[sim][network]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto world = World::create({.seed = seed});
    REQUIRE(world->run([&] { return reset_it(*world->executors()[0], nullptr); }));
    REQUIRE(world->run([&] { return reset_it(*world->executors()[0], world.get()); }));
    REQUIRE(world->stream_count() == 0);
  }
}

Task<void> reset_by_port(Executor& executor, World& world) {
  Pair first;
  Pair second;
  co_await make_pair(executor, first);
  co_await make_pair(executor, second);
  CHECK(world.stream_count() == 2);
  world.reset_streams(second.listener->local().port());
  CHECK(world.stream_count() == 1);
  Error error = co_await send_bytes(*second.client, Bytes(1));
  CHECK(error == Error::kReset);
  error = co_await send_bytes(*first.client, Bytes(1));
  CHECK(error == Error::kNone);
  world.reset_streams(first.client->local().port());
  error = co_await send_bytes(*first.client, Bytes(1));
  CHECK(error == Error::kReset);
}

TEST_CASE("Streams are reset by either port", "[sim][network]") {
  auto world = World::create({.seed = 1});
  REQUIRE(world->run([&] { return reset_by_port(*world->executors()[0], *world); }));
}

// Listening --------------------------------------------------------------------------------------

Task<void> listen_rules(Executor& executor) {
  auto refused = co_await executor.connect(Endpoint::ipv4(kLoopback, 3260));
  CHECK(refused.error() == Error::kRefused);
  auto any = executor.listen(Endpoint::ipv4(0, 3260));
  CHECK(any.has_value());
  auto same = executor.listen(Endpoint::ipv4(kLoopback, 3260));
  CHECK(same.error() == Error::kAddressInUse);
  auto six = executor.listen(*Endpoint::parse("[::]:3260"));
  CHECK(six.has_value());
  auto chosen = executor.listen(Endpoint::ipv4(kLoopback, 0));
  CHECK((*chosen)->local().port() != 0);

  Event done;
  std::unique_ptr<Stream> client;
  spawn(connect_to(executor, Endpoint::ipv4(0x0A000001, 3260), client, done));
  auto server = co_await (*any)->accept();
  co_await done.wait();
  CHECK((*server)->local().to_string() == "10.0.0.1:3260");
  CHECK(client->peer() == (*server)->local());
  CHECK(client->local() == (*server)->peer());

  any->reset();
  refused = co_await executor.connect(Endpoint::ipv4(kLoopback, 3260));
  CHECK(refused.error() == Error::kRefused);
  // The stream outlives its listener.
  const Error error = co_await send_bytes(*client, Bytes(1));
  CHECK(error == Error::kNone);
}

TEST_CASE("Listeners have addresses, and only they are connected to", "[sim][network]") {
  auto world = World::create({.seed = 1});
  REQUIRE(world->run([&] { return listen_rules(*world->executors()[0]); }));
}

Task<void> accept_until_closed(Listener& listener, Error& error, Event& ended) {
  const auto accepted = co_await listener.accept();
  error = accepted.has_value() ? Error::kNone : accepted.error();
  ended.set();
}

Task<void> shut_listener_down(Executor& executor) {
  auto listener = executor.listen(Endpoint::ipv4(kLoopback, 0));
  Event ended;
  Error error = Error::kNone;
  spawn(accept_until_closed(**listener, error, ended));
  co_await executor.sleep_for(1ms);
  (*listener)->shutdown();
  co_await ended.wait();
  CHECK(error == Error::kClosed);
  const auto again = co_await (*listener)->accept();
  CHECK(again.error() == Error::kClosed);
}

TEST_CASE("Shutting a listener down ends its accept", "[sim][network]") {
  auto world = World::create({.seed = 1});
  REQUIRE(world->run([&] { return shut_listener_down(*world->executors()[0]); }));
}

// Partition and moving ---------------------------------------------------------------------------

Task<void> partition_and_heal(Executor& executor, World& world) {
  Pair pair;
  co_await make_pair(executor, pair);
  Transfer transfer;
  spawn(receive_into(*pair.server, transfer));
  world.set_partitioned(true);
  transfer.sent = numbered(30'000, 2);
  const Error error = co_await send_bytes(*pair.client, transfer.sent);
  CHECK(error == Error::kNone);  // It fits the buffer.
  pair.client->shutdown();
  Event connected;
  std::unique_ptr<Stream> second;
  spawn(connect_to(executor, pair.listener->local(), second, connected));
  co_await executor.sleep_for(60s);
  CHECK_FALSE(transfer.done.is_set());
  CHECK_FALSE(connected.is_set());
  world.set_partitioned(false);
  co_await transfer.done.wait();
  CHECK(transfer.received == transfer.sent);
  co_await connected.wait();
  CHECK(second != nullptr);
}

TEST_CASE("A partition holds everything and loses nothing", "[sim][network]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto world = World::create({.seed = seed});
    REQUIRE(world->run([&] { return partition_and_heal(*world->executors()[0], *world); }));
  }
}

Task<void> move_between(Executor& first, Executor& second) {
  Pair pair;
  co_await make_pair(first, pair);
  Error error = co_await send_bytes(*pair.client, Bytes(500));
  CHECK(error == Error::kNone);
  pair.server->move_to(second);
  CHECK(&pair.server->home() == &second);
  co_await SwitchTo(second);
  Bytes memory(500);
  std::size_t received = 0;
  while (received < 500) {
    const IoSlice slice{memory.data(), memory.size()};
    const auto count = co_await pair.server->receive({&slice, 1});
    CHECK(Executor::current_or_null() == &second);
    received += count.value_or(500);
  }
  error = co_await send_bytes(*pair.server, Bytes(10));
  CHECK(error == Error::kNone);
  pair.server->shutdown();
  pair.server->move_to(first);  // Where it is destroyed.
  co_await SwitchTo(first);
  const auto rest = co_await receive_all(*pair.client);
  CHECK(rest.has_value());
  CHECK(rest->size() == 10);
}

TEST_CASE("A stream can move to another executor", "[sim][network]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto world = World::create({.seed = seed, .executors = 2});
    REQUIRE(
        world->run([&] { return move_between(*world->executors()[0], *world->executors()[1]); }));
  }
}

}  // namespace
}  // namespace sandbay::sim
