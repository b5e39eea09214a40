// Logins that go on from the group's portal to the portals of members, and connections that leave a
// member's. RFC 7143 sections 4.3, 11.9.1, 11.13.5, 13.8 and appendix C.
#include <catch2/catch.hpp>

#include "iscsi/initiator.h"
#include "target_bench.h"

namespace sandbay::iscsi::test {
namespace {

constexpr std::uint32_t kLoopback = 0x7F000001;
constexpr std::uint16_t kGroupPort = 3270;  // Of a portal group of its own, beside the bench's.
constexpr std::uint16_t kTag = 2;
constexpr int kLogoutRequest = static_cast<int>(AsyncEventCode::kLogoutRequest);
constexpr int kConnectionDrop = static_cast<int>(AsyncEventCode::kConnectionDrop);

struct Switches {
  bool one = true;
  bool two = true;
};

Endpoint at(std::uint16_t port) { return Endpoint::ipv4(kLoopback, port); }

// The group's portal on 3270, those of the members "one" and "two" on 3271 and 3272.
void open_portals(Bench& bench, Switches* takes) {
  const auto add = [&](PortalOptions options) {
    options.group_tag = kTag;
    const auto opened = bench.server().add_portal(std::move(options));
    CHECK(opened.has_value());
  };
  add({.listen = at(kGroupPort), .balances = true});
  add({.listen = at(3271), .member = "one", .takes_logins = [takes] { return takes->one; }});
  add({.listen = at(3272), .member = "two", .takes_logins = [takes] { return takes->two; }});
}

// Where a login to `port` is served: it goes where it is sent, as often as that is.
struct Served {
  RawInitiator* peer = nullptr;
  std::uint16_t port = 0;
  unsigned redirections = 0;
};

Task<Served> log_in(Bench& bench, std::uint16_t port, RawLogin login = {}) {
  Served served{.port = port};
  for (;;) {
    served.peer = co_await bench.connect_to(at(served.port));
    const RawPdu answer = co_await served.peer->log_in(login);
    if (answer.login().status == LoginStatus::kSuccess) {
      CHECK(answer.has("TargetPortalGroupTag=2"));
      co_return served;
    }
    REQUIRE(answer.login().status == LoginStatus::kMovedTemporarily);
    const std::string text = answer.text();
    const std::string prefix = "TargetAddress=127.0.0.1:";
    REQUIRE(text.starts_with(prefix));
    CHECK(text.find(',') == std::string::npos);  // Section 13.8.
    served.port = static_cast<std::uint16_t>(std::stoi(text.substr(prefix.size())));
    ++served.redirections;
    REQUIRE(served.redirections < 4);
  }
}

Task<void> least_load(Bench& bench) {
  Switches takes;
  open_portals(bench, &takes);
  std::map<std::uint16_t, int> count;
  for (std::uint8_t isid = 1; isid <= 6; ++isid) {
    const Served served = co_await log_in(bench, kGroupPort, {.isid = isid});
    CHECK(served.redirections == 1);
    ++count[served.port];
  }
  CHECK(count[3271] == 3);
  CHECK(count[3272] == 3);
  const std::vector<PortalStatus> portals = bench.server().portals();
  CHECK(portals[1].connections == 0);
  CHECK(portals[2].connections == 3);
  CHECK(portals[3].connections == 3);
  CHECK_FALSE(portals[1].takes_logins);
  const ServerCounters counters = co_await bench.server().counters();
  CHECK(counters.logins_redirected == 6);
  CHECK(counters.logins_failed == 0);
  // Who comes to a member's portal is served there, whatever its load.
  for (std::uint8_t isid = 11; isid <= 13; ++isid) {
    const Served served = co_await log_in(bench, 3271, {.isid = isid});
    CHECK(served.redirections == 0);
  }
  for (std::uint8_t isid = 21; isid <= 23; ++isid) {
    const Served served = co_await log_in(bench, kGroupPort, {.isid = isid});
    CHECK(served.port == 3272);
  }
}

// Those that were sent and have not come yet count as well; for ten seconds.
Task<void> many_at_once(Bench& bench) {
  Switches takes;
  open_portals(bench, &takes);
  std::map<std::string, int> sent;
  for (std::uint8_t isid = 1; isid <= 10; ++isid) {
    RawInitiator& peer = *co_await bench.connect_to(at(kGroupPort));
    const RawPdu answer = co_await peer.log_in({.isid = isid});
    ++sent[answer.text()];
  }
  REQUIRE(sent.size() == 2);
  CHECK(sent.begin()->second == 5);
  co_await log_in(bench, 3271, {.isid = 40});
  co_await bench.sleep(std::chrono::seconds(11));
  const Served served = co_await log_in(bench, kGroupPort, {.isid = 41});
  CHECK(served.port == 3272);
}

Task<void> recent_traffic(Bench& bench) {
  Switches takes;
  open_portals(bench, &takes);
  const Served busy = co_await log_in(bench, 3271, {.isid = 1});
  co_await log_in(bench, 3272, {.isid = 2});
  co_await bench.take_attentions(*busy.peer);
  co_await bench.sleep(std::chrono::seconds(5));
  for (std::uint32_t i = 0; i < 20; ++i) {
    const Bytes data = co_await read_back(*busy.peer, reading(i, 16));
    CHECK(data.size() == 16 * kBlock);
  }
  co_await bench.sleep(std::chrono::seconds(5));
  CHECK(bench.server().portals()[2].recent_bytes > 20 * 16 * kBlock);
  CHECK(bench.server().portals()[3].recent_bytes < 16 * kBlock);
  const Served third = co_await log_in(bench, kGroupPort, {.isid = 3});
  CHECK(third.port == 3272);
  // It is only recent traffic that counts.
  co_await log_in(bench, 3271, {.isid = 4});
  co_await bench.sleep(std::chrono::seconds(12));
  CHECK(bench.server().portals()[2].recent_bytes < 16 * kBlock);
}

Task<void> portals_that_take_none(Bench& bench) {
  Switches takes;
  open_portals(bench, &takes);
  takes.two = false;
  for (std::uint8_t isid = 1; isid <= 4; ++isid) {
    const Served served = co_await log_in(bench, kGroupPort, {.isid = isid});
    CHECK(served.port == 3271);
  }
  const Served other = co_await log_in(bench, 3272, {.isid = 5});
  CHECK(other.port == 3271);
  CHECK(other.redirections == 1);
  // With none left, the group's portal serves; nobody is sent in a circle.
  takes.one = false;
  const std::pair<std::uint8_t, std::uint16_t> rows[] = {{6, kGroupPort}, {7, 3271}, {8, 3272}};
  for (const auto& [isid, port] : rows) {
    const Served served = co_await log_in(bench, port, {.isid = isid});
    CHECK(served.port == kGroupPort);
    CHECK(served.redirections == (port == kGroupPort ? 0 : 1));
  }
  // The bench's portal has another tag: nobody comes there.
  CHECK(bench.server().portals()[0].connections == 0);
}

// Each connection finds its place through the group's portal; one of no session is refused there.
Task<void> further_connections(Bench& bench) {
  Switches takes;
  open_portals(bench, &takes);
  const Served first = co_await log_in(bench, kGroupPort, {.keys = "MaxConnections=3"});
  const std::uint32_t cmd_sn = first.peer->cmd_sn;
  std::map<std::uint16_t, int> count{{first.port, 1}};
  for (std::uint16_t cid = 1; cid <= 2; ++cid) {
    const Served more = co_await log_in(bench, kGroupPort,
                                        {.tsih = first.peer->tsih, .cid = cid, .cmd_sn = cmd_sn});
    ++count[more.port];
  }
  CHECK(count.size() == 2);
  const auto sessions = co_await bench.server().sessions();
  REQUIRE(sessions.size() == 1);
  REQUIRE(sessions[0].connections.size() == 3);
  CHECK(sessions[0].connections[0].member == (first.port == 3271 ? "one" : "two"));
  RawInitiator& stranger = *co_await bench.connect_to(at(kGroupPort));
  const RawPdu refused = co_await stranger.log_in({.tsih = 4711, .cid = 1});
  CHECK(refused.login().status == LoginStatus::kSessionDoesNotExist);
}

// The same initiator port through the group's portal or a member's: one nexus.
Task<void> reinstatement(Bench& bench) {
  Switches takes;
  open_portals(bench, &takes);
  const Served old = co_await log_in(bench, kGroupPort, {.isid = 1});
  const std::uint16_t other = old.port == 3271 ? 3272 : 3271;
  const Served fresh = co_await log_in(bench, other, {.isid = 1});
  const RawPdu end = co_await old.peer->next();
  CHECK(end.closed);
  CHECK(fresh.peer->tsih != old.peer->tsih);
  const auto sessions = co_await bench.server().sessions();
  CHECK(sessions.size() == 1);
}

Task<void> discovery(Bench& bench) {
  Switches takes;
  open_portals(bench, &takes);
  const auto alone = bench.server().add_portal(
      {.listen = at(3280), .group_tag = 3, .member = "one", .takes_logins = {}});
  CHECK(alone.has_value());
  for (const std::uint16_t port : {kGroupPort, std::uint16_t{3271}}) {
    RawInitiator& peer = *co_await bench.connect_to(at(port));
    const RawPdu answer = co_await peer.log_in({.target = ""});
    CHECK(answer.login().status == LoginStatus::kSuccess);
    const RawPdu list = co_await ask_text(peer, "SendTargets=All");
    CHECK(list.has("TargetAddress=127.0.0.1:3260,1"));
    CHECK(list.has("TargetAddress=127.0.0.1:3270,2"));
    CHECK(list.has("TargetAddress=127.0.0.1:3280,3"));  // Nothing stands for it.
    CHECK_FALSE(list.has("TargetAddress=127.0.0.1:3271,2"));
    CHECK_FALSE(list.has("TargetAddress=127.0.0.1:3272,2"));
  }
  CHECK(bench.server().portals()[1].connections == 0);
}

// A target's own redirection goes before; its address is told without a tag.
Task<void> own_redirection(Bench& bench) {
  Switches takes;
  open_portals(bench, &takes);
  const Error added =
      co_await bench.server().add_target({.name = "iqn.2026-11.org.sandbay:moved",
                                          .device = &bench.router(),
                                          .access = {AccessRecord{}},
                                          .redirect = Redirect{.address = "192.0.2.8:3260,1"}},
                                         nullptr);
  CHECK(added == Error::kNone);
  RawInitiator& peer = *co_await bench.connect_to(at(kGroupPort));
  const RawPdu answer = co_await peer.log_in({.target = "iqn.2026-11.org.sandbay:moved"});
  CHECK(answer.has("TargetAddress=192.0.2.8:3260"));
}

// Leaving -----------------------------------------------------------------------------------------

Task<void> move_away(Bench* bench, std::string member, MovedConnections* moved, Event* done) {
  *moved = co_await bench->server().move_connections(std::move(member));
  done->set();
}

Task<void> leaving(Bench& bench) {
  Switches takes;
  open_portals(bench, &takes);
  const Served good = co_await log_in(bench, 3271, {.isid = 1});
  const Served stubborn = co_await log_in(bench, 3271, {.isid = 2});
  const Served elsewhere = co_await log_in(bench, 3272, {.isid = 3});
  co_await bench.take_attentions(*good.peer);
  MovedConnections moved;
  Event done;
  const TimePoint before = bench.now();
  takes.one = false;
  spawn(move_away(&bench, "one", &moved, &done));
  for (RawInitiator* const peer : {good.peer, stubborn.peer}) {
    const RawPdu asked = co_await peer->next();
    CHECK(asked.event() == kLogoutRequest);
    CHECK(asked.async().parameter3 == 15);
  }
  const RawPdu served = co_await answer_to(*good.peer, reading(0, 1));
  CHECK(served.status() == 0);
  const std::uint32_t tag = co_await send_logout(*good.peer, LogoutReason::kCloseSession);
  const RawPdu answer = co_await good.peer->next_of(tag);
  CHECK(answer.logged_out() == static_cast<int>(LogoutResult::kClosed));
  const Served again = co_await log_in(bench, 3271, {.isid = 1});
  CHECK(again.port == 3272);
  CHECK_FALSE(done.is_set());
  co_await done.wait();
  const Duration took = bench.now() - before;
  CHECK(took >= std::chrono::seconds(15));
  CHECK(took < std::chrono::seconds(17));
  const RawPdu told = co_await stubborn.peer->next();
  CHECK(told.event() == kConnectionDrop);
  const RawPdu end = co_await stubborn.peer->next();
  CHECK(end.closed);
  CHECK(moved.asked == 2);
  CHECK(moved.dropped == 1);
  const RawPdu quiet = co_await elsewhere.peer->next(std::chrono::seconds(1));
  CHECK(quiet.silent);
  co_await bench.sleep(std::chrono::seconds(1));
  CHECK(bench.server().portals()[2].connections == 0);
  CHECK(bench.server().portals()[3].connections == 2);
}

// One that takes logins again when the time is over keeps what is there.
Task<void> staying_after_all(Bench& bench) {
  Switches takes;
  open_portals(bench, &takes);
  const Served served = co_await log_in(bench, 3271);
  MovedConnections moved;
  Event done;
  takes.one = false;
  spawn(move_away(&bench, "one", &moved, &done));
  const RawPdu asked = co_await served.peer->next();
  CHECK(asked.event() == kLogoutRequest);
  takes.one = true;
  co_await done.wait();
  const RawPdu quiet = co_await served.peer->next(std::chrono::seconds(5));
  CHECK(quiet.silent);
  CHECK(moved.asked == 1);
  CHECK(moved.dropped == 0);
}

// With nowhere to go, nobody is asked.
Task<void> nowhere_to_go(Bench& bench) {
  const auto only = bench.server().add_portal(
      {.listen = at(3271), .group_tag = 9, .member = "one", .takes_logins = [] { return false; }});
  CHECK(only.has_value());
  RawInitiator& peer = *co_await bench.connect_to(at(3271));
  const RawPdu answer = co_await peer.log_in();
  CHECK(answer.login().status == LoginStatus::kSuccess);
  const MovedConnections moved = co_await bench.server().move_connections("one");
  CHECK(moved.asked == 0);
  const RawPdu quiet = co_await peer.next(std::chrono::seconds(1));
  CHECK(quiet.silent);
}

// Our initiator ---------------------------------------------------------------------------------

struct Writer {
  InitiatorSession* session = nullptr;
  Bench* bench = nullptr;
  bool stop = false;
  unsigned good = 0;
};

// COMPARE AND WRITE and its like may not be sent twice; so these are not, either.
Task<void> keep_writing(Writer* writer, std::uint32_t lba, Gate* gate) {
  const GateHold hold(*gate);
  while (!writer->stop) {
    ScsiRequest request;
    request.cdb[0] = std::byte{0x2A};
    put_big_endian<std::uint32_t>(request.cdb, 2, lba);
    put_big_endian<std::uint16_t>(request.cdb, 7, 1);
    request.data_out = co_await Executor::current().buffers().allocate(kBlock);
    request.retry = false;
    const auto reply = co_await writer->session->execute(std::move(request));
    const bool attention = reply.result.sense_key() == scsi::SenseKey::kUnitAttention;
    if (reply.result.good()) ++writer->good;
    if (!reply.result.good() && !attention) {
      INFO(describe(reply.result.error) << ", " << static_cast<int>(reply.result.sense_key()));
      CHECK(reply.result.good());
    }
    co_await writer->bench->sleep(std::chrono::milliseconds(1));
  }
}

Task<void> initiator_moves(Bench& bench, std::uint32_t connections) {
  Switches takes;
  open_portals(bench, &takes);
  InitiatorOptions options;
  options.endpoint = at(kGroupPort);
  options.target_name = kBenchTarget;
  options.connections = connections;
  auto session = co_await InitiatorSession::login(std::move(options));
  REQUIRE(session.has_value());
  CHECK((*session)->connections_up() == connections);
  Writer writer{.session = session->get(), .bench = &bench};
  Gate gate;
  for (std::uint32_t lba = 0; lba < 8; ++lba) {
    REQUIRE(gate.enter());
    spawn(keep_writing(&writer, lba, &gate));
  }
  for (int round = 0; round < 6; ++round) {
    co_await bench.sleep(std::chrono::milliseconds(300));
    const bool first = round % 2 == 0;
    takes = {.one = !first, .two = first};
    const TimePoint before = bench.now();
    const auto moved = co_await bench.server().move_connections(first ? "one" : "two");
    CHECK(moved.dropped == 0);
    CHECK(bench.now() - before < std::chrono::seconds(2));
    co_await bench.sleep(std::chrono::milliseconds(500));
    const auto portals = bench.server().portals();
    CHECK(portals[first ? 2 : 3].connections == 0);
    CHECK(portals[first ? 3 : 2].connections == connections);
    const unsigned good = writer.good;
    co_await bench.sleep(std::chrono::milliseconds(300));
    CHECK(writer.good > good);
  }
  writer.stop = true;
  co_await gate.close();
  CHECK((*session)->counters().commands_retried == 0);
  co_await (*session)->close();
}

Task<void> one_connection_moves(Bench& bench) { co_await initiator_moves(bench, 1); }
Task<void> four_connections_move(Bench& bench) { co_await initiator_moves(bench, 4); }

BenchOptions several_connections() {
  BenchOptions options;
  options.keys = {{"MaxConnections", "4"}};
  return options;
}

}  // namespace

TEST_CASE("11.13.5 a login to the group's portal goes on to the member's with the least load") {
  on_bench({}, least_load);
}
TEST_CASE("Balancing: logins that are on their way count") { on_bench({}, many_at_once); }
TEST_CASE("Balancing: between portals of as many connections recent traffic decides") {
  on_bench({}, recent_traffic);
}
TEST_CASE("Balancing: portals that take no logins get none, and nobody goes in a circle") {
  on_bench({}, portals_that_take_none);
}
TEST_CASE("Balancing: a session's further connections find their place, too") {
  on_bench(several_connections(), further_connections);
}
TEST_CASE("6.3.5 a session is reinstated through any portal of its group") {
  on_bench({}, reinstatement);
}
TEST_CASE("Appendix C: the group's portal stands for those behind it") { on_bench({}, discovery); }
TEST_CASE("13.8 a target's own redirection is told without a portal group tag") {
  on_bench({}, own_redirection);
}
TEST_CASE("11.9.1 who is on the portals of a member that goes is asked, and dropped in the end") {
  on_bench({}, leaving);
}
TEST_CASE("Balancing: a member that stays after all keeps its connections") {
  on_bench({}, staying_after_all);
}
TEST_CASE("Balancing: with nowhere to go connections stay") { on_bench({}, nowhere_to_go); }
TEST_CASE("11.9.1 our initiator moves without a command lost or sent twice") {
  on_bench(several_connections(), one_connection_moves);
  on_bench(several_connections(), four_connections_move);
}

}  // namespace sandbay::iscsi::test
