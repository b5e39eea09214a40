// Guessing a CHAP secret is slow, knowing it is not (RFC 7143 section 9.2.1).
#include "iscsi/login_brake.h"

#include <catch2/catch.hpp>

#include "iscsi/initiator.h"
#include "target_bench.h"

namespace sandbay::iscsi::test {
namespace {

using std::chrono::milliseconds;

constexpr const char* kGuarded = "iqn.2026-11.org.sandbay:guarded";

Endpoint peer_of(std::uint32_t address) { return Endpoint::ipv4(address, 1); }

Task<bool> lets_in(Bench& bench, std::string secret) {
  InitiatorOptions options{.endpoint = bench.endpoint(), .target_name = kGuarded};
  options.chap = ChapIdentity{.user = "host", .secret = std::move(secret)};
  auto session = co_await InitiatorSession::login(std::move(options));
  if (session) co_await (*session)->close();
  co_return session.has_value();
}

Task<void> guess(Bench& bench) {
  const ChapCredential credential{.user = "host", .secret = "the-right-secret"};
  TargetOptions guarded{.name = kGuarded, .access = {AccessRecord{.chap = credential}}};
  guarded.device = &bench.router();
  const Error added = co_await bench.server().add_target(std::move(guarded), nullptr);
  CHECK(added == Error::kNone);
  for (const int least : {0, 50, 100, 200, 400, 800, 1000, 1000}) {
    const TimePoint start = bench.now();
    const bool in = co_await lets_in(bench, "the-wrong-secret");
    CHECK_FALSE(in);
    CHECK(bench.now() - start >= milliseconds(least));
    CHECK(bench.now() - start < milliseconds(least + 50));
  }
  const TimePoint start = bench.now();
  const bool in = co_await lets_in(bench, "the-right-secret");
  CHECK(in);
  CHECK(bench.now() - start < milliseconds(50));
}

Task<void> guess_in_background(Bench& bench, unsigned* ended) {
  const bool in = co_await lets_in(bench, "the-wrong-secret");
  CHECK_FALSE(in);
  ++*ended;
}

// Whose answer waits does not hold up the end.
Task<void> shut_down_meanwhile(Bench& bench) {
  co_await guess(bench);
  unsigned ended = 0;
  spawn(guess_in_background(bench, &ended));
  co_await bench.sleep(milliseconds(500));
  CHECK(ended == 0);
  const TimePoint start = bench.now();
  co_await bench.end_server();
  CHECK(bench.now() - start < milliseconds(100));
  co_await bench.sleep(std::chrono::seconds(30));
  CHECK(ended == 1);
}

}  // namespace

TEST_CASE("A wrong CHAP response waits longer each time, and nobody else does") {
  on_bench({}, guess);
}

TEST_CASE("A wrong CHAP response that waits does not hold up shutdown") {
  on_bench({}, shut_down_meanwhile);
}

TEST_CASE("The brake is each address's own, forgets, and is bounded") {
  LoginBrake brake;
  TimePoint now{};
  CHECK(brake.failed(peer_of(1), now) == Duration::zero());
  CHECK(brake.failed(peer_of(1), now) == milliseconds(50));
  CHECK(brake.failed(peer_of(2), now) == Duration::zero());
  now += LoginBrake::kForgetAfter - milliseconds(1);
  CHECK(brake.failed(peer_of(1), now) == milliseconds(100));
  now += LoginBrake::kForgetAfter;
  CHECK(brake.failed(peer_of(1), now) == Duration::zero());
  for (std::uint32_t address = 10; address < 10 + 2 * LoginBrake::kMostAddresses; ++address) {
    brake.failed(peer_of(address), now);
  }
  CHECK(brake.addresses() == LoginBrake::kMostAddresses);
}

}  // namespace sandbay::iscsi::test
