// Guessing a CHAP secret is slow, and it does not keep other hosts out (RFC 7143 section 9.2.1).
//
// The first half drives the brake alone, in steps of a millisecond; the second half logs in.
#include "iscsi/login_brake.h"

#include <catch2/catch.hpp>
#include <memory>

#include "iscsi/initiator.h"
#include "target_bench.h"

namespace sandbay::iscsi::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr const char* kGuarded = "iqn.2026-11.org.sandbay:guarded";

Endpoint braked_host(std::uint32_t number) { return Endpoint::ipv4(0x0A000000U + number, 1); }

// In 2001:db8:0:NETWORK::/64.
Endpoint braked_six(std::uint8_t network, std::uint32_t number) {
  std::array<std::uint8_t, 16> bytes{0x20, 0x01, 0x0D, 0xB8};
  bytes[7] = network;
  for (unsigned i = 0; i < 4; ++i) {
    bytes[15 - i] = static_cast<std::uint8_t>(number >> (8 * i));
  }
  return Endpoint::ipv6(bytes, 1);
}

using AddressOfGuess = Endpoint (*)(std::uint32_t connection, std::uint32_t attempt);
Endpoint one_address(std::uint32_t, std::uint32_t) { return braked_host(1); }
Endpoint own_address(std::uint32_t connection, std::uint32_t) { return braked_host(connection); }
Endpoint new_address(std::uint32_t, std::uint32_t attempt) { return braked_six(1, attempt); }

// Connections that guess as fast as they can, each with one wrong response after the other. A
// connection sends at most one response in ten milliseconds.
class Guessers {
 public:
  Guessers(std::uint32_t connections, AddressOfGuess address)
      : address_(address), turns_(connections) {}

  void pass(Duration duration) {
    for (const TimePoint until = now_ + duration; now_ < until; now_ += milliseconds(1)) step();
  }
  // Until a right response from there has been checked, while the guessers go on.
  Duration time_to_log_in(const Endpoint& peer) {
    const TimePoint start = now_;
    for (;; pass(milliseconds(1))) {
      LoginBrake::Turn turn(brake_, peer, now_);
      while (!turn.refused() && turn.due(now_) > now_) pass(milliseconds(1));
      if (turn.refused()) continue;
      turn.proved(now_);
      return now_ - start;
    }
  }
  std::uint32_t guesses() const { return guesses_; }
  const LoginBrake& brake() const { return brake_; }

 private:
  void step() {
    ++steps_;
    for (std::uint32_t i = 0; i < turns_.size(); ++i) {
      auto& turn = turns_[i];
      if (turn == nullptr) {
        if ((steps_ + i) % 10 != 0) continue;
        turn = std::make_unique<LoginBrake::Turn>(brake_, address_(i, ++attempts_), now_);
      }
      const bool refused = turn->refused();
      if (!refused && turn->due(now_) > now_) continue;
      if (!refused) turn->failed(now_);
      guesses_ += refused ? 0 : 1;
      turn.reset();
    }
  }

  LoginBrake brake_;
  AddressOfGuess address_;
  std::vector<std::unique_ptr<LoginBrake::Turn>> turns_;
  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  std::uint32_t steps_ = 0;
  std::uint32_t attempts_ = 0;
  std::uint32_t guesses_ = 0;
};

void fail_once(LoginBrake& brake, const Endpoint& peer, TimePoint now) {
  LoginBrake::Turn turn(brake, peer, now);
  REQUIRE_FALSE(turn.refused());
  turn.failed(now);
}

Duration wait_of(LoginBrake& brake, const Endpoint& peer, TimePoint now) {
  LoginBrake::Turn turn(brake, peer, now);
  REQUIRE_FALSE(turn.refused());
  return std::max(turn.due(now) - now, Duration::zero());
}

}  // namespace

TEST_CASE("An address makes 66 guesses in a minute on any number of connections", "[X6]") {
  const std::uint32_t connections = GENERATE(1U, 10U, 100U);
  CAPTURE(connections);
  Guessers guessers(connections, one_address);
  guessers.pass(minutes(1));
  CHECK(guessers.guesses() >= 50);
  CHECK(guessers.guesses() <= 66);
  // Another host of its network.
  CHECK(guessers.time_to_log_in(braked_host(2)) <= LoginBrake::kFirstDelay);
  CHECK(guessers.time_to_log_in(braked_host(2)) == Duration::zero());
}

TEST_CASE("The other addresses of a network that guess do not keep a host out", "[X6]") {
  Guessers guessers(253, own_address);
  guessers.pass(minutes(1));
  CHECK(guessers.guesses() <= 1600);
  CHECK(guessers.time_to_log_in(braked_host(254)) <= LoginBrake::kLongestDelay);
  CHECK(guessers.time_to_log_in(braked_host(254)) == Duration::zero());
}

TEST_CASE("A host that guesses from a new address each time does not keep others out", "[X6]") {
  const std::uint32_t connections = GENERATE(1U, 10U, 100U);
  CAPTURE(connections);
  Guessers guessers(connections, new_address);
  const Endpoint proven = braked_six(1, 0xFFFFFFFF);
  CHECK(guessers.time_to_log_in(proven) == Duration::zero());
  guessers.pass(minutes(1));
  CHECK(guessers.guesses() <= 2200);
  CHECK(guessers.time_to_log_in(proven) == Duration::zero());
  CHECK(guessers.time_to_log_in(braked_six(1, 0xFFFFFFFE)) <= LoginBrake::kLongestDelay);
  CHECK(guessers.time_to_log_in(braked_six(2, 1)) == Duration::zero());
}

TEST_CASE("A flood from new addresses is bounded, and proven hosts do not wait for it", "[X6]") {
  Guessers guessers(400, new_address);
  const Endpoint proven = braked_six(1, 0xFFFFFFFF);
  CHECK(guessers.time_to_log_in(proven) == Duration::zero());
  guessers.pass(minutes(1));
  CHECK(guessers.guesses() <= 2700);
  CHECK(guessers.time_to_log_in(proven) == Duration::zero());
  CHECK(guessers.time_to_log_in(braked_six(2, 1)) == Duration::zero());
}

TEST_CASE("A right response ends the delay of its address, not a pause", "[X6]") {
  LoginBrake brake;
  const TimePoint now = TimePoint() + std::chrono::hours(1);
  {
    LoginBrake::Turn turn(brake, braked_host(1), now);
    turn.proved(now);
  }
  for (int i = 0; i < 3; ++i) fail_once(brake, braked_host(1), now);
  CHECK(wait_of(brake, braked_host(1), now) == milliseconds(200));
  CHECK(wait_of(brake, braked_host(2), now) == LoginBrake::kFirstDelay);
}

TEST_CASE("A tenant who proves a secret from each address guesses no faster for it", "[X6]") {
  LoginBrake brake;
  TimePoint now = TimePoint() + std::chrono::hours(1);
  for (std::uint32_t i = 1; i < 20; ++i) {
    LoginBrake::Turn(brake, braked_six(1, i), now).proved(now);
    fail_once(brake, braked_six(1, i), now);
  }
  CHECK(wait_of(brake, braked_six(1, 100), now) == LoginBrake::kLongestDelay);
  brake.note_proof(braked_six(1, 101), now);  // A host whose session has ended.
  CHECK(wait_of(brake, braked_six(1, 101), now) == Duration::zero());
}

TEST_CASE("Responses of one address are checked in their order, four at most wait", "[X6]") {
  LoginBrake brake;
  const TimePoint now = TimePoint() + std::chrono::hours(1);
  std::vector<std::unique_ptr<LoginBrake::Turn>> turns;
  for (std::size_t i = 0; i < LoginBrake::kMostOfAddress; ++i) {
    turns.push_back(std::make_unique<LoginBrake::Turn>(brake, braked_host(1), now));
    CHECK_FALSE(turns.back()->refused());
    CHECK((turns.back()->due(now) <= now) == (i == 0));
  }
  CHECK(LoginBrake::Turn(brake, braked_host(1), now).refused());
  CHECK_FALSE(LoginBrake::Turn(brake, braked_host(2), now).refused());
  turns.front()->failed(now);
  turns.erase(turns.begin());
  CHECK(turns[0]->due(now) == now + LoginBrake::kFirstPause);
  CHECK(turns[1]->due(now) == kNever);
  turns.erase(turns.begin() + 1);  // Gives up; the first stays the first.
  CHECK(turns[0]->due(now) == now + LoginBrake::kFirstPause);
  CHECK(turns[1]->due(now) == kNever);
}

TEST_CASE("An IPv4-mapped IPv6 address is braked as its IPv4 address", "[X6]") {
  LoginBrake brake;
  const TimePoint now = TimePoint() + std::chrono::hours(1);
  fail_once(brake, Endpoint::parse("[::ffff:10.0.0.1]:1").value(), now);
  CHECK(wait_of(brake, braked_host(1), now) == LoginBrake::kFirstPause);
  CHECK(wait_of(brake, Endpoint::parse("[::ffff:10.0.0.1]:2").value(), now) ==
        LoginBrake::kFirstPause);
  CHECK(wait_of(brake, Endpoint::parse("[::ffff:10.0.1.1]:1").value(), now) == Duration::zero());
}

TEST_CASE("The brake forgets failures after a minute and a proof after an hour", "[X6]") {
  LoginBrake brake;
  TimePoint now = TimePoint() + std::chrono::hours(1);
  {
    LoginBrake::Turn turn(brake, braked_six(1, 0), now);
    turn.proved(now);
  }
  now += LoginBrake::kProvenFor - milliseconds(1);
  for (std::uint32_t i = 1; i < 20; ++i) fail_once(brake, braked_six(1, i), now);
  CHECK(wait_of(brake, braked_six(1, 0), now) == Duration::zero());
  now += milliseconds(1);
  CHECK(wait_of(brake, braked_six(1, 0), now) == LoginBrake::kLongestDelay);
  now += LoginBrake::kForgetAfter - milliseconds(2);
  CHECK(wait_of(brake, braked_six(1, 0), now) == LoginBrake::kLongestDelay);
  now += milliseconds(1);
  CHECK(wait_of(brake, braked_six(1, 0), now) == Duration::zero());
}

TEST_CASE("A million addresses leave the brake's tables bounded and proofs in them", "[X6]") {
  LoginBrake brake;
  const TimePoint now = TimePoint() + std::chrono::hours(1);
  const Endpoint proven = braked_six(7, 0xFFFFFFFF);
  {
    LoginBrake::Turn turn(brake, proven, now);
    turn.proved(now);
  }
  for (std::uint32_t i = 0; i < 1'000'000; ++i) {
    LoginBrake::Turn turn(brake, i % 2 == 0 ? braked_six(7, i) : braked_host(256 * i), now);
    if (!turn.refused()) turn.failed(now);
  }
  CHECK(brake.remembered() <= 2 * LoginBrake::kMostRemembered + 1);
  CHECK(wait_of(brake, proven, now) == Duration::zero());
  CHECK(wait_of(brake, braked_six(7, 1'000'000), now) == LoginBrake::kLongestDelay);
}

// Logins -------------------------------------------------------------------------------------

namespace {

struct GuardedLogin {
  const char* secret = "the-right-secret";
  std::uint32_t address = 0x7F000001;
  Duration timeout = seconds(15);
};

// The status of its answer: 0 if it is let in, 0xFFFF if the initiator hangs up before.
Task<unsigned> log_in_guarded(GuardedLogin login) {
  InitiatorOptions options{.endpoint = Endpoint::ipv4(login.address, 3260),
                           .target_name = kGuarded,
                           .login_timeout = login.timeout};
  options.chap = ChapIdentity{.user = "host", .secret = login.secret};
  auto session = co_await InitiatorSession::login(std::move(options));
  if (session) co_await (*session)->close();
  if (session) co_return 0;
  const unsigned status = session.error().status_class * 256U + session.error().status_detail;
  co_return status == 0 ? 0xFFFFU : status;
}

Task<void> guard(Bench& bench) {
  const ChapCredential credential{.user = "host", .secret = "the-right-secret"};
  TargetOptions guarded{.name = kGuarded, .access = {AccessRecord{.chap = credential}}};
  guarded.device = &bench.router();
  const Error added = co_await bench.server().add_target(std::move(guarded), nullptr);
  CHECK(added == Error::kNone);
  for (const std::uint32_t address : {0x7F000002U, 0x7F000003U}) {
    const auto portal = bench.server().add_portal({.listen = Endpoint::ipv4(address, 3260)});
    CHECK(portal.has_value());
  }
}

Task<void> guess(Bench& bench) {
  co_await guard(bench);
  for (const int least : {0, 50, 100, 200, 400, 800, 1000, 1000}) {
    const TimePoint start = bench.now();
    const unsigned status = co_await log_in_guarded({.secret = "the-wrong-secret"});
    CHECK(status == 0x0201);
    CHECK(bench.now() - start >= milliseconds(least - 10));
    CHECK(bench.now() - start < milliseconds(least + 50));
  }
  TimePoint start = bench.now();
  const unsigned status = co_await log_in_guarded({});
  CHECK(status == 0);
  CHECK(bench.now() - start < milliseconds(1050));
  start = bench.now();
  const unsigned again = co_await log_in_guarded({});
  CHECK(again == 0);
  CHECK(bench.now() - start < milliseconds(50));
}

// The initiator leaves before its wrong response is checked.
Task<void> hang_up(Bench& bench) {
  co_await guard(bench);
  for (int failures = 0; failures < 4; ++failures) {
    const unsigned wrong = co_await log_in_guarded({.secret = "the-wrong-secret"});
    CHECK(wrong == 0x0201);
  }
  const TimePoint start = bench.now();
  const unsigned wrong =
      co_await log_in_guarded({.secret = "the-wrong-secret", .timeout = milliseconds(20)});
  CHECK(wrong == 0xFFFF);
  CHECK(bench.now() - start < milliseconds(100));
  const unsigned status = co_await log_in_guarded({});
  CHECK(status == 0);
  CHECK(bench.now() - start >= milliseconds(400 + 800 - 50));
  CHECK(bench.now() - start < milliseconds(400 + 800 + 100));
}

struct ParallelGuesses {
  unsigned checked = 0;
  unsigned refused = 0;
  unsigned running = 0;
};

Task<void> keep_guessing(Bench& bench, TimePoint until, ParallelGuesses* guesses) {
  ++guesses->running;
  while (bench.now() < until) {
    const unsigned status = co_await log_in_guarded({.secret = "the-wrong-secret"});
    guesses->checked += status == 0x0201 ? 1 : 0;
    guesses->refused += status == 0x0301 ? 1 : 0;
    if (status != 0x0201) co_await bench.sleep(milliseconds(100));
  }
  --guesses->running;
}

Task<void> guess_side_by_side(Bench& bench) {
  co_await guard(bench);
  ParallelGuesses guesses;
  const TimePoint until = bench.now() + seconds(60);
  for (int i = 0; i < 10; ++i) spawn(keep_guessing(bench, until, &guesses));
  co_await bench.sleep(seconds(30));
  for (const std::uint32_t address : {0x7F000002U, 0x7F000003U}) {
    const TimePoint start = bench.now();
    const unsigned status = co_await log_in_guarded({.address = address});
    CHECK(status == 0);
    CHECK(bench.now() - start < milliseconds(50));
  }
  while (guesses.running > 0) co_await bench.sleep(seconds(1));
  CHECK(guesses.checked >= 50);
  CHECK(guesses.checked <= 66 + LoginBrake::kMostOfAddress);
  CHECK(guesses.refused > 0);
}

Task<void> log_in_in_background(unsigned* ended) {
  const unsigned status = co_await log_in_guarded({});
  CHECK(status != 0);
  ++*ended;
}

Task<void> shut_down_meanwhile(Bench& bench) {
  co_await guess(bench);
  const unsigned wrong = co_await log_in_guarded({.secret = "the-wrong-secret"});
  CHECK(wrong == 0x0201);
  unsigned ended = 0;
  spawn(log_in_in_background(&ended));
  spawn(log_in_in_background(&ended));
  co_await bench.sleep(milliseconds(500));
  CHECK(ended == 0);
  const TimePoint start = bench.now();
  co_await bench.end_server();
  CHECK(bench.now() - start < milliseconds(100));
  co_await bench.sleep(seconds(30));
  CHECK(ended == 2);
}

}  // namespace

TEST_CASE("A CHAP response waits longer after each wrong one of its address", "[X6]") {
  on_bench({}, guess);
}

TEST_CASE("Hanging up does not release the brake", "[X6]") { on_bench({}, hang_up); }

TEST_CASE("Ten connections that guess get one guess a second and do not slow others", "[X6]") {
  on_bench({}, guess_side_by_side);
}

TEST_CASE("CHAP responses that wait do not hold up shutdown") { on_bench({}, shut_down_meanwhile); }

}  // namespace sandbay::iscsi::test
