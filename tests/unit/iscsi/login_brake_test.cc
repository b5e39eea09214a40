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

Task<bool> lets_in(Bench& bench, std::string secret, Duration timeout = std::chrono::seconds(10)) {
  InitiatorOptions options{.endpoint = bench.endpoint(), .target_name = kGuarded};
  options.login_timeout = timeout;
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

// The peer hangs up before the answer to its wrong response, which the target holds for 200 ms.
Task<void> hang_up(Bench& bench) {
  const ChapCredential credential{.user = "host", .secret = "the-right-secret"};
  TargetOptions guarded{.name = kGuarded, .access = {AccessRecord{.chap = credential}}};
  guarded.device = &bench.router();
  const Error added = co_await bench.server().add_target(std::move(guarded), nullptr);
  CHECK(added == Error::kNone);
  for (int failures = 0; failures < 3; ++failures) {
    const bool in = co_await lets_in(bench, "the-wrong-secret");
    CHECK_FALSE(in);
  }
  const TimePoint start = bench.now();
  const bool wrong = co_await lets_in(bench, "the-wrong-secret", milliseconds(20));
  CHECK_FALSE(wrong);
  CHECK(bench.now() - start < milliseconds(50));
  const bool in = co_await lets_in(bench, "the-right-secret");
  CHECK(in);
  CHECK(bench.now() - start >= milliseconds(200));
  CHECK(bench.now() - start < milliseconds(300));
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

TEST_CASE("Hanging up does not release the brake", "[X6]") { on_bench({}, hang_up); }

TEST_CASE("A /64 of IPv6 has one brake", "[X6]") {
  LoginBrake brake;
  const TimePoint now = TimePoint() + std::chrono::hours(1);
  const auto peer = [](std::string_view address) { return Endpoint::parse(address, 1).value(); };
  CHECK(brake.failed(peer("[2001:db8::1]"), now) == Duration::zero());
  CHECK(brake.free_at(peer("[2001:db8::2]")) <= now);
  CHECK(brake.failed(peer("[2001:db8::2]"), now) == milliseconds(50));
  CHECK(brake.free_at(peer("[2001:db8::3]")) == now + milliseconds(50));
  CHECK(brake.free_at(peer("[2001:db8:0:1::3]")) <= now);
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
  for (std::uint32_t address = 10; address < 10 + 2 * LoginBrake::kMostNetworks; ++address) {
    brake.failed(peer_of(address), now);
  }
  CHECK(brake.networks() == LoginBrake::kMostNetworks);
}

}  // namespace sandbay::iscsi::test
