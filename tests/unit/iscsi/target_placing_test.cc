// Logins while other sessions come and go: between the moment when a connection is admitted to a
// session and the moment when it joins, the session may end, and TSIHs may come round to another
// one's (RFC 7143 section 6.3.1).
#include <catch2/catch.hpp>

#include "iscsi/target_logins.h"
#include "target_bench.h"

namespace sandbay::iscsi::test {
namespace {

class NoHost final : public SessionHost {
 public:
  Task<std::string> send_targets(std::string, std::string, Endpoint, Endpoint,
                                 std::string) override {
    co_return std::string();
  }
  void end_sessions_of(std::string) override {}
};

// The part of a server that logs in, with everything in reach.
struct Place {
  explicit Place(scsi::TargetDevice& device)
      : registry(Executor::current(), quiet_limits(), {}, nullptr), logins(registry, host) {
    registry.targets.emplace(
        kBenchTarget,
        std::make_unique<RegisteredTarget>(RegisteredTarget{
            .options = {.name = kBenchTarget, .device = &device, .access = {AccessRecord{}}},
            .preferences = *KeyPreferences::for_target().with({{"MaxConnections", "4"}}),
            .chap_algorithms = {}}));
  }

  Task<RawInitiator*> connect() {
    Executor& executor = Executor::current();
    auto listener = executor.listen(Endpoint::ipv4(0x7F000001, 3999));
    REQUIRE(listener.has_value());
    auto stream = co_await executor.connect((*listener)->local());
    auto accepted = co_await (*listener)->accept();
    REQUIRE(stream.has_value());
    REQUIRE(accepted.has_value());
    const bool entered = registry.serving.enter();
    REQUIRE(entered);
    spawn(serve(this, std::move(*accepted)));
    peers.push_back(std::make_unique<RawInitiator>(std::move(*stream)));
    co_return peers.back().get();
  }
  static Task<void> serve(Place* place, std::unique_ptr<Stream> stream) {
    const GateHold hold(place->registry.serving);
    co_await place->logins.serve(std::move(stream), &place->portal);
  }
  Task<void> end() {
    for (auto& peer : peers) co_await peer->close();
    co_await registry.serving.close();
    CHECK(registry.sessions.empty());
  }

  NoHost host;
  Portal portal;
  Registry registry;
  LoginService logins;
  std::vector<std::unique_ptr<RawInitiator>> peers;
};

constexpr const char* kLeader = "iqn.2026-11.org.sandbay:raw";

// The first half of a login that adds a connection: it is admitted, and stays in its stage.
Task<RawPdu> half_of_login(RawInitiator& peer, std::uint16_t tsih, bool transit) {
  LoginRequest request{.transit = transit,
                       .current_stage = 1,
                       .next_stage = 3,
                       .tsih = tsih,
                       .initiator_task_tag = 5,
                       .cid = 1,
                       .cmd_sn = 100};
  request.isid.bytes = {std::byte{0x80}, std::byte{0}, std::byte{0},
                        std::byte{0},    std::byte{0}, std::byte{1}};
  Bhs bhs;
  write_login_request(request, bhs);
  const std::string text = transit ? ""
                                   : text_of("InitiatorName=" + std::string(kLeader) +
                                             ";SessionType=Normal;TargetName=" + kBenchTarget);
  co_await peer.send(bhs, bytes_of(text));
  RawPdu answer = co_await peer.next();
  co_return answer;
}

enum class Meanwhile : std::uint8_t { kNothing, kEnded, kAnother, kSameAgain };

// Only the session that it was admitted to, or one that is the same to the initiator.
Task<void> join_late(Bench& bench, Meanwhile meanwhile) {
  Place place(bench.router());
  const RawLogin first{.initiator = kLeader, .keys = "MaxConnections=4"};
  RawInitiator& leader = *co_await place.connect();
  const RawPdu led = co_await leader.log_in(first);
  CHECK(led.login().status == LoginStatus::kSuccess);
  const std::uint16_t tsih = leader.tsih;
  RawInitiator& late = *co_await place.connect();
  const RawPdu begun = co_await half_of_login(late, tsih, false);
  CHECK(begun.login().status == LoginStatus::kSuccess);
  CHECK_FALSE(begun.login().transit);
  if (meanwhile != Meanwhile::kNothing) {
    co_await leader.close();
    co_await bench.sleep(std::chrono::seconds(1));
    CHECK(place.registry.sessions.empty());
  }
  if (meanwhile == Meanwhile::kAnother || meanwhile == Meanwhile::kSameAgain) {
    // 65,534 sessions later.
    place.registry.next_tsih = tsih;
    RawLogin login = first;
    if (meanwhile == Meanwhile::kAnother) login.initiator = "iqn.2026-11.org.sandbay:stranger";
    RawInitiator& next = *co_await place.connect();
    const RawPdu in = co_await next.log_in(login);
    CHECK(in.login().status == LoginStatus::kSuccess);
    CHECK(next.tsih == tsih);
  }
  const RawPdu answer = co_await half_of_login(late, tsih, true);
  const bool joins = meanwhile == Meanwhile::kNothing || meanwhile == Meanwhile::kSameAgain;
  CHECK(answer.login().status ==
        (joins ? LoginStatus::kSuccess : LoginStatus::kSessionDoesNotExist));
  for (const auto& [number, session] : place.registry.sessions) {
    CHECK(session->connection_count() == (joins ? 2 : 1));
  }
  co_await place.end();
}

Task<void> nothing(Bench& bench) { co_await join_late(bench, Meanwhile::kNothing); }
Task<void> ended(Bench& bench) { co_await join_late(bench, Meanwhile::kEnded); }
Task<void> another(Bench& bench) { co_await join_late(bench, Meanwhile::kAnother); }
Task<void> same_again(Bench& bench) { co_await join_late(bench, Meanwhile::kSameAgain); }

// Zero stands for a new session, and a number that is in use is passed over.
Task<void> wraps(Bench& bench) {
  Place place(bench.router());
  RawInitiator& old = *co_await place.connect();
  co_await old.log_in({.isid = 1});
  CHECK(old.tsih == 1);
  place.registry.next_tsih = 65535;
  std::vector<std::uint16_t> numbers;
  for (std::uint8_t isid = 2; isid < 5; ++isid) {
    RawInitiator& peer = *co_await place.connect();
    co_await peer.log_in({.isid = isid});
    numbers.push_back(peer.tsih);
  }
  CHECK(numbers == std::vector<std::uint16_t>{65535, 2, 3});
  co_await place.end();
}

}  // namespace

TEST_CASE("A connection joins the session that its login was admitted to") {
  on_bench({}, nothing);
}
TEST_CASE("A connection whose session ends during its login is refused") { on_bench({}, ended); }
TEST_CASE("A TSIH that comes round during a login leads to nobody else's session") {
  on_bench({}, another);
}
TEST_CASE("A TSIH that comes round during a login may lead to the initiator's own session") {
  on_bench({}, same_again);
}
TEST_CASE("TSIHs wrap past zero and past those in use") { on_bench({}, wraps); }

}  // namespace sandbay::iscsi::test
