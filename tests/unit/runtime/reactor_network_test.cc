// Streams and listeners on reactors, over the loopback interface.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <iterator>
#include <string_view>
#include <vector>

#include "runtime/reactor.h"
#include "runtime/sync.h"
#include "tests/unit/random_fill.h"

namespace sandbay::reactor_network_test {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kLoopback = 0x7F000001;

void run(Task<void> (*body)(std::span<Executor* const>), unsigned count = 1) {
  auto group = ReactorGroup::create(
      {.count = count, .memory_limit_bytes = std::size_t{count} * (64U << 20U), .seed = 1});
  if (!group.has_value()) FAIL(group.error().text);
  (*group)->run([&] { return body((*group)->executors()); });
}

struct Pair {
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Stream> client;
  std::unique_ptr<Stream> server;
};

Task<void> make_pair(Executor& executor, Pair& pair, Endpoint local) {
  auto listener = executor.listen(local);
  CHECK(listener.has_value());
  pair.listener = std::move(*listener);
  auto connected = co_await executor.connect(pair.listener->local());
  CHECK(connected.has_value());
  pair.client = std::move(*connected);
  auto accepted = co_await pair.listener->accept();
  CHECK(accepted.has_value());
  pair.server = std::move(*accepted);
}

Task<void> make_pair(Executor& executor, Pair& pair) {
  return make_pair(executor, pair, Endpoint::ipv4(kLoopback, 0));
}

Bytes numbered(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  Bytes bytes(count);
  testing::fill_random(bytes, random);
  return bytes;
}

Task<Error> send_bytes(Stream& stream, Bytes bytes) {
  const IoSlice slice{bytes.data(), bytes.size()};
  const Error error = co_await stream.send({&slice, 1});
  co_return error;
}

Task<Result<Bytes>> receive_all(Stream& stream) {
  Bytes received;
  Bytes memory(50'000);
  for (;;) {
    const IoSlice slices[2] = {{memory.data(), 100}, {memory.data() + 100, memory.size() - 100}};
    const auto count = co_await stream.receive(slices);
    if (!count.has_value()) co_return std::unexpected(count.error());
    if (*count == 0) co_return received;
    received.insert(received.end(), memory.begin(),
                    memory.begin() + static_cast<std::ptrdiff_t>(*count));
  }
}

Task<void> send_and_end(Stream& stream, const Bytes& bytes, Event& ended) {
  // Many slices, more bytes than the socket buffers.
  std::vector<IoSlice> slices;
  auto* const data = const_cast<std::byte*>(bytes.data());
  const std::size_t part = bytes.size() / 1000;
  for (std::size_t i = 0; i < 1000; ++i) slices.push_back({data + i * part, part});
  const Error error = co_await stream.send(slices);
  CHECK(error == Error::kNone);
  stream.shutdown();
  ended.set();
}

TEST_CASE("Reactor streams carry bytes in order and complete", "[reactor][network]") {
  run([](std::span<Executor* const> executors) -> Task<void> {
    for (const char* text : {"127.0.0.1:0", "[::1]:0"}) {
      auto probe = executors[0]->listen(*Endpoint::parse(text));
      if (!probe.has_value()) continue;  // A machine without IPv6.
      probe->reset();
      Pair pair;
      co_await make_pair(*executors[0], pair, *Endpoint::parse(text));
      CHECK(pair.client->peer() == pair.server->local());
      CHECK(pair.client->local() == pair.server->peer());
      const Bytes bytes = numbered(20'000'000, 1);
      Event ended;
      spawn(send_and_end(*pair.client, bytes, ended));
      const auto received = co_await receive_all(*pair.server);
      CHECK((received.has_value() && *received == bytes));
      co_await ended.wait();
    }
  });
}

TEST_CASE("Reactor listeners have addresses", "[reactor][network]") {
  run([](std::span<Executor* const> executors) -> Task<void> {
    Executor& executor = *executors[0];
    auto listener = executor.listen(Endpoint::ipv4(kLoopback, 0));
    CHECK((*listener)->local().port() != 0);
    const Endpoint endpoint = (*listener)->local();
    auto same = executor.listen(endpoint);
    CHECK(same.error() == Error::kAddressInUse);
    listener->reset();
    const auto refused = co_await executor.connect(endpoint);
    CHECK(refused.error() == Error::kRefused);
  });
}

Task<void> accept_one(Listener& listener, Error& error, Event& ended) {
  const auto accepted = co_await listener.accept();
  error = accepted.has_value() ? Error::kNone : accepted.error();
  ended.set();
}

TEST_CASE("Shutting a reactor listener down ends its accept", "[reactor][network]") {
  run([](std::span<Executor* const> executors) -> Task<void> {
    auto listener = executors[0]->listen(Endpoint::ipv4(kLoopback, 0));
    Event ended;
    Error error = Error::kNone;
    spawn(accept_one(**listener, error, ended));
    co_await executors[0]->sleep_for(5ms);
    (*listener)->shutdown();
    co_await ended.wait();
    CHECK(error == Error::kClosed);
    const auto again = co_await (*listener)->accept();
    CHECK(again.error() == Error::kClosed);
  });
}

Task<void> receive_until_end(Stream& stream, Result<Bytes>& result, Event& ended) {
  result = co_await receive_all(stream);
  ended.set();
}

TEST_CASE("A reactor stream that is shut down ends what is in flight", "[reactor][network]") {
  run([](std::span<Executor* const> executors) -> Task<void> {
    Pair pair;
    co_await make_pair(*executors[0], pair);
    Error error = co_await send_bytes(*pair.client, numbered(1000, 2));
    CHECK(error == Error::kNone);
    Result<Bytes> client;
    Event ended;
    spawn(receive_until_end(*pair.client, client, ended));
    co_await executors[0]->sleep_for(2ms);
    pair.client->shutdown();
    pair.client->shutdown();
    co_await ended.wait();
    CHECK((!client.has_value() || client->empty()));
    const auto rest = co_await receive_all(*pair.server);
    CHECK((rest.has_value() && *rest == numbered(1000, 2)));
    error = co_await send_bytes(*pair.client, Bytes(1));
    CHECK(error == Error::kClosed);
    const IoSlice slice{nullptr, 0};
    const auto after = co_await pair.client->receive({&slice, 1});
    CHECK(after.error() == Error::kClosed);
  });
}

Task<void> send_much(Stream& stream, Error& error, Event& ended) {
  const Bytes bytes(50'000'000);
  const IoSlice slice{const_cast<std::byte*>(bytes.data()), bytes.size()};
  error = co_await stream.send({&slice, 1});
  ended.set();
}

TEST_CASE("A blocked send ends when either side gives up", "[reactor][network]") {
  run([](std::span<Executor* const> executors) -> Task<void> {
    for (int way = 0; way < 4; ++way) {
      Pair pair;
      co_await make_pair(*executors[0], pair);
      Error error = Error::kNone;
      Event ended;
      spawn(send_much(*pair.client, error, ended));
      co_await executors[0]->sleep_for(20ms);
      CHECK_FALSE(ended.is_set());  // Back-pressure: nobody reads.
      if (way == 0) pair.client->shutdown();
      if (way == 1) pair.client->reset();
      if (way == 2) pair.server->reset();
      if (way == 3) pair.server.reset();
      co_await ended.wait();
      CHECK((error == Error::kClosed || error == Error::kReset));
    }
  });
}

TEST_CASE("The peer of a reactor stream sees a reset", "[reactor][network]") {
  run([](std::span<Executor* const> executors) -> Task<void> {
    Pair pair;
    co_await make_pair(*executors[0], pair);
    Result<Bytes> server;
    Event ended;
    spawn(receive_until_end(*pair.server, server, ended));
    Result<Bytes> client;
    Event client_ended;
    spawn(receive_until_end(*pair.client, client, client_ended));
    co_await executors[0]->sleep_for(2ms);
    pair.client->reset();
    pair.client->reset();
    co_await ended.wait();
    CHECK((!server.has_value() && server.error() == Error::kReset));
    co_await client_ended.wait();  // One way or another.
    const Error error = co_await send_bytes(*pair.server, Bytes(1));
    CHECK(error != Error::kNone);
  });
}

Task<void> echo_once(Executor& home, Stream& stream) {
  co_await SwitchTo(home);
  Bytes memory(100);
  const IoSlice slice{memory.data(), memory.size()};
  const auto count = co_await stream.receive({&slice, 1});
  CHECK(Executor::current_or_null() == &home);
  CHECK(count.value_or(0) == 5);
  const Error error = co_await send_bytes(stream, Bytes(7));
  CHECK(error == Error::kNone);
  stream.shutdown();
}

TEST_CASE("A reactor stream can move to another reactor", "[reactor][network]") {
  run(
      [](std::span<Executor* const> executors) -> Task<void> {
        for (int round = 0; round < 20; ++round) {
          Pair pair;
          co_await make_pair(*executors[0], pair);
          pair.server->move_to(*executors[1]);
          CHECK(&pair.server->home() == executors[1]);
          const Error error = co_await send_bytes(*pair.client, Bytes(5));
          CHECK(error == Error::kNone);
          co_await echo_once(*executors[1], *pair.server);
          pair.server->move_to(*executors[0]);  // Where it is destroyed.
          co_await SwitchTo(*executors[0]);
          const auto received = co_await receive_all(*pair.client);
          CHECK((received.has_value() && received->size() == 7));
        }
      },
      2);
}

// A client of system calls, connected to the listener.
class BareClient {
 public:
  explicit BareClient(const Endpoint& server) {
    sockaddr_in there{};
    there.sin_family = AF_INET;
    there.sin_addr.s_addr = htonl(kLoopback);
    there.sin_port = htons(server.port());
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(::connect(socket_, reinterpret_cast<sockaddr*>(&there), sizeof there) == 0);
  }
  ~BareClient() { ::close(socket_); }
  BareClient(const BareClient&) = delete;
  BareClient& operator=(const BareClient&) = delete;

  void send(std::string_view bytes, int flags) const {
    CHECK(::send(socket_, bytes.data(), bytes.size(), flags) == std::ssize(bytes));
  }

 private:
  int socket_ = -1;
};

TEST_CASE("Bytes behind urgent data are received without further ones", "[reactor][network]") {
  run([](std::span<Executor* const> executors) -> Task<void> {
    auto listener = executors[0]->listen(Endpoint::ipv4(kLoopback, 0));
    CHECK(listener.has_value());
    const BareClient client((*listener)->local());
    auto accepted = co_await (*listener)->accept();
    CHECK(accepted.has_value());
    Stream& stream = **accepted;
    Bytes memory(100);
    const IoSlice slice{memory.data(), memory.size()};
    client.send("x", 0);
    auto count = co_await stream.receive({&slice, 1});
    CHECK(count.value_or(0) == 1);
    client.send("abc", 0);  // A receive that asks for more ends before the urgent byte.
    client.send("U", MSG_OOB);
    client.send("def", 0);
    std::size_t received = 0;
    while (received < 6 && count.value_or(0) > 0) {
      count = co_await stream.receive({&slice, 1});
      received += count.value_or(0);
    }
    CHECK(received == 6);
  });
}

// Only in builds without sanitizers: it waits for twenty seconds and computes nothing.
#if !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)

// A listener whose queue is full answers nobody, as a host that is switched off.
struct FullListener {
  FullListener() {
    sockaddr_in local{};
    local.sin_family = AF_INET;
    local.sin_addr.s_addr = htonl(kLoopback);
    socklen_t byte_count = sizeof local;
    listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&local), sizeof local) == 0);
    REQUIRE(::listen(listener, 0) == 0);
    REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&local), &byte_count) == 0);
    port = ntohs(local.sin_port);
    for (int& client : clients) {
      client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      static_cast<void>(::connect(client, reinterpret_cast<sockaddr*>(&local), sizeof local));
    }
  }
  ~FullListener() {
    for (const int client : clients) ::close(client);
    ::close(listener);
  }
  FullListener(const FullListener&) = delete;
  FullListener& operator=(const FullListener&) = delete;

  int listener = -1;
  std::array<int, 4> clients{};
  std::uint16_t port = 0;
};

TEST_CASE("Connecting to a host that answers nothing ends after twenty seconds",
          "[reactor][network][I-11f]") {
  run([](std::span<Executor* const> executors) -> Task<void> {
    const FullListener full;
    co_await executors[0]->sleep_for(100ms);
    const TimePoint before = executors[0]->now();
    const auto connected = co_await executors[0]->connect(Endpoint::ipv4(kLoopback, full.port));
    CHECK_FALSE(connected.has_value());
    if (!connected.has_value()) CHECK(connected.error() == Error::kTimedOut);
    CHECK(executors[0]->now() - before > 15s);
    CHECK(executors[0]->now() - before < 30s);
  });
}
#endif

}  // namespace
}  // namespace sandbay::reactor_network_test
