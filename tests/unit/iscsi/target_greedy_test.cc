// Peers that take more than their share of memory, and what others still get: data that come twice,
// data that nobody asked for, data that are announced and never come.
#include <catch2/catch.hpp>

#include "target_bench.h"

namespace sandbay::iscsi::test::target_greedy_test {
namespace {

constexpr const char* kAnyOrder =
    "DataPDUInOrder=No;DataSequenceInOrder=No;InitialR2T=No;FirstBurstLength=262144;"
    "MaxBurstLength=1048576";

sim::LinkOptions whole_receives() { return {.fragment = false}; }

std::size_t used_bytes(Bench& bench) {
  std::size_t most = 0;
  for (Executor* const executor : bench.world().executors()) {
    most = std::max(most, executor->buffers().used_bytes());
  }
  return most;
}

std::size_t reserved_bytes(Bench& bench) {
  std::size_t sum = 0;
  for (Executor* const executor : bench.world().executors()) {
    sum += executor->buffers().reserved_bytes();
  }
  return sum;
}

Task<std::uint32_t> announce(RawInitiator& peer, std::uint32_t blocks) {
  RawCommand write = writing(0, blocks);
  write.final = false;
  const std::uint32_t tag = co_await send_command(peer, std::move(write));
  co_return tag;
}

// A write's whole unsolicited data, again and again, one byte further each time.
Task<void> overlapping(Bench& bench) {
  RawInitiator& greedy = *co_await bench.session({.keys = kAnyOrder});
  RawInitiator& other = *co_await bench.session({.isid = 2});
  const std::size_t before = used_bytes(bench);
  const std::uint32_t tag = co_await announce(greedy, 512);
  constexpr std::uint32_t kPieceBytes = 200'000;
  for (std::uint32_t i = 0; i < 400; ++i) {
    co_await send_data_out(
        greedy, {.final = false, .initiator_task_tag = tag, .data_sn = i, .buffer_offset = i + 1},
        Bytes(kPieceBytes));
  }
  co_await bench.sleep(std::chrono::seconds(2));
  CHECK(used_bytes(bench) < before + (std::size_t{2} << 20));
  const RawPdu written = co_await answer_to(other, writing(0, 8, pattern_of(4096)));
  CHECK(written.status() == 0);
  co_await send_data_out(greedy, {.final = true, .initiator_task_tag = tag, .data_sn = 400}, {});
  const RawPdu answer = co_await greedy.next_of(tag);
  CHECK(answer.status() == 2);
  CHECK(answer.sense() >> 16U == 0x0B);
}

// Out of order and without a gap in the end: that is what DataPDUInOrder=No is for.
Task<void> shuffled(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = kAnyOrder});
  const Bytes data = pattern_of(65536);
  const std::uint32_t tag = co_await announce(peer, 128);
  std::uint32_t data_sn = 0;
  for (const std::uint32_t place : {3U, 1U, 6U, 0U, 7U, 2U, 5U, 4U}) {
    const auto begin = data.begin() + place * 8192;
    co_await send_data_out(peer,
                           {.final = data_sn == 7,
                            .initiator_task_tag = tag,
                            .data_sn = data_sn,
                            .buffer_offset = place * 8192},
                           Bytes(begin, begin + 8192));
    ++data_sn;
  }
  const RawPdu answer = co_await peer.next_of(tag);
  CHECK(answer.status() == 0);
  const Bytes back = co_await read_back(peer, reading(0, 128));
  CHECK(back == data);
}

// Data of no task take no room from a write that has been promised some.
Task<void> stray_data(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = kAnyOrder});
  const std::size_t before = reserved_bytes(bench);
  const std::uint32_t tag = co_await announce(peer, 128);
  co_await bench.sleep(std::chrono::milliseconds(100));
  CHECK(reserved_bytes(bench) == before + 65536);
  for (std::uint32_t i = 0; i < 4; ++i) {
    co_await send_data_out(peer, {.final = false, .initiator_task_tag = 0x4711, .data_sn = i},
                           Bytes(65536));
    co_await bench.sleep(std::chrono::milliseconds(100));
  }
  CHECK(reserved_bytes(bench) == before + 65536);
  co_await send_data_out(peer, {.final = true, .initiator_task_tag = tag}, pattern_of(65536));
  const RawPdu answer = co_await peer.next_of(tag);
  CHECK(answer.status() == 0);
  CHECK(reserved_bytes(bench) == before);
}

// All data but never the end of the sequence, or nothing after an R2T: the write does not hold its
// memory for ever.
Task<void> withheld(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = kAnyOrder});
  co_await bench.sleep(std::chrono::milliseconds(100));
  const std::size_t before = used_bytes(bench);
  const std::uint32_t unended = co_await announce(peer, 512);
  co_await send_data_out(peer, {.final = false, .initiator_task_tag = unended}, Bytes(200'000));
  const std::uint32_t unanswered = co_await send_command(peer, writing(4096, 512));
  const RawPdu r2t = co_await peer.next_of(unanswered);
  CHECK(r2t.is(Opcode::kReadyToTransfer));
  const RawPdu still = co_await peer.next_of(unended, std::chrono::seconds(90));
  CHECK(still.silent);  // Longer than initiators let a command take.
  const RawPdu first = co_await peer.next_of(unended, std::chrono::minutes(5));
  CHECK(first.status() == 2);
  const RawPdu second = co_await peer.next_of(unanswered, std::chrono::minutes(5));
  CHECK(second.status() == 2);
  CHECK(used_bytes(bench) < before + 131'072);  // Its staging memory has grown.
  CHECK(reserved_bytes(bench) == 0);
}

// Much is announced and comes in driblets, while others are refused for want of memory.
Task<void> driblets(Bench& bench) {
  RawInitiator& other = *co_await bench.session({.keys = kAnyOrder, .isid = 99});
  std::vector<RawInitiator*> crowd;
  std::vector<std::uint32_t> tags;
  // They spread over the executors, each of which has a memory of its own.
  const std::size_t count = 12 * bench.world().executors().size();
  for (std::uint8_t isid = 1; isid <= count; ++isid) {
    RawInitiator* const peer = co_await bench.session({.keys = kAnyOrder, .isid = isid});
    crowd.push_back(peer);
    for (int i = 0; i < 31; ++i) {
      const std::uint32_t tag = co_await announce(*peer, 512);
      if (i == 0) tags.push_back(tag);
    }
  }
  // Who has nothing has a share all the same, but no more than that.
  const auto much = [] { return writing(0, 256, pattern_of(131072)); };
  const RawPdu refused = co_await answer_to(other, much());
  CHECK(refused.status() == 0x28);
  for (std::uint32_t i = 0; i < 64; ++i) {
    const RawPdu little = co_await answer_to(other, writing(i, 8, pattern_of(4096)));
    CHECK(little.status() == 0);
  }
  int status = -1;
  for (std::uint32_t second = 0; second < 60 && status != 0; ++second) {
    for (std::size_t i = 0; i < crowd.size(); ++i) {
      if (crowd[i]->ended()) continue;
      co_await send_data_out(*crowd[i],
                             {.final = false,
                              .initiator_task_tag = tags[i],
                              .data_sn = second,
                              .buffer_offset = second},
                             Bytes(1));
    }
    co_await bench.sleep(std::chrono::seconds(1));
    const RawPdu again = co_await answer_to(other, much());
    status = again.status();
  }
  CHECK(status == 0);
}

// Questions without end, and nobody to read the answers.
Task<void> ask_on(RawInitiator* peer, std::uint32_t count, bool text, Event* done) {
  const TextRequest request{.immediate = true,
                            .final = false,
                            .continues = true,
                            .initiator_task_tag = 5,
                            .cmd_sn = peer->cmd_sn,
                            .exp_stat_sn = peer->exp_stat_sn};
  const NopOut nop{.immediate = true,
                   .initiator_task_tag = 5,
                   .cmd_sn = peer->cmd_sn,
                   .exp_stat_sn = peer->exp_stat_sn};
  Bhs bhs;
  if (text) {
    write_text_request(request, bhs);
  } else {
    write_nop_out(nop, bhs);
  }
  for (std::uint32_t i = 0; i < count; ++i) co_await peer->send(bhs);
  done->set();
}

Task<void> deaf_asker(Bench& bench, bool text) {
  constexpr std::uint32_t kQuestions = 20'000;
  RawInitiator& deaf = *co_await bench.connect();
  const RawPdu in = co_await deaf.log_in({.target = text ? "" : kBenchTarget});
  CHECK(in.login().status == LoginStatus::kSuccess);
  const ServerCounters before = co_await bench.server().counters();
  deaf.pause_reading();
  Event done;
  spawn(ask_on(&deaf, kQuestions, text, &done));
  co_await bench.sleep(std::chrono::seconds(5));
  const ServerCounters taken = co_await bench.server().counters();
  // What both directions of the link hold, and a batch or two.
  constexpr std::uint64_t kOnTheLink = 256 * 1024 / kBhsBytes;
  CHECK(taken.pdus_in - before.pdus_in < kOnTheLink + 2500);
  deaf.resume_reading();
  co_await done.wait();
  co_await bench.sleep(std::chrono::seconds(2));
  const ServerCounters after = co_await bench.server().counters();
  CHECK(after.pdus_in - before.pdus_in == kQuestions);
  CHECK(deaf.waiting() == kQuestions);
}
Task<void> deaf_text(Bench& bench) { co_await deaf_asker(bench, true); }
Task<void> deaf_pings(Bench& bench) { co_await deaf_asker(bench, false); }

// Discovery that goes on and on -------------------------------------------------------------------

ServerLimits few_connections() {
  ServerLimits limits = quiet_limits();
  limits.maximum_connections = 40;
  return limits;
}

Task<RawInitiator*> discover(Bench& bench, std::uint8_t isid) {
  RawInitiator* const peer = co_await bench.connect();
  const RawPdu in = co_await peer->log_in({.target = "", .isid = isid});
  CHECK(in.login().status == LoginStatus::kSuccess);
  co_return peer;
}

// More than the share of all connections: the oldest make room, and others come in.
Task<void> many_discoveries(Bench& bench) {
  std::vector<RawInitiator*> peers;
  for (std::uint8_t isid = 1; isid <= 60; ++isid) {
    RawInitiator* const peer = co_await discover(bench, isid);
    peers.push_back(peer);
    co_await bench.sleep(std::chrono::milliseconds(10));
  }
  CHECK(std::ranges::count_if(peers, [](RawInitiator* each) { return !each->ended(); }) == 16);
  CHECK_FALSE(peers.back()->ended());
  CHECK(peers.front()->ended());
  co_await bench.session();
}

// Everything is in use: who discovers goes first.
Task<void> discovery_makes_room(Bench& bench) {
  std::vector<RawInitiator*> peers;
  for (std::uint8_t isid = 1; isid <= 16; ++isid) {
    RawInitiator* const peer = co_await discover(bench, isid);
    peers.push_back(peer);
  }
  for (std::uint8_t isid = 101; isid <= 124; ++isid) {
    co_await bench.session({.isid = isid});
  }
  co_await bench.session({.isid = 200});
  co_await bench.sleep(std::chrono::milliseconds(10));
  CHECK(peers.front()->ended());
  CHECK_FALSE(peers.back()->ended());
}

Task<void> discoveries_of_one_address(Bench& bench) {
  std::vector<RawInitiator*> peers;
  for (std::uint8_t isid = 1; isid <= 70; ++isid) {
    RawInitiator* const peer = co_await discover(bench, isid);
    peers.push_back(peer);
  }
  co_await bench.sleep(std::chrono::milliseconds(10));
  CHECK(std::ranges::count_if(peers, [](RawInitiator* each) { return !each->ended(); }) == 64);
  co_await bench.sleep(std::chrono::seconds(40));
  for (const RawInitiator* const peer : peers) CHECK(peer->ended());  // They asked for nothing.
}

// A flood of half-open logins from one address ends those of this address.
Task<void> flood_of_logins(Bench& bench) {
  constexpr std::array<std::uint8_t, 16> kLoopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  const auto portal = bench.server().add_portal({.listen = Endpoint::ipv6(kLoopback, 3261)});
  CHECK(portal.has_value());
  if (!portal) co_return;
  RawInitiator& slow = *co_await bench.connect_to(*portal);
  for (int i = 0; i < 20; ++i) {
    co_await bench.connect();
    co_await bench.sleep(std::chrono::milliseconds(10));
  }
  CHECK_FALSE(slow.ended());
  const RawPdu in = co_await slow.log_in();
  CHECK(in.login().status == LoginStatus::kSuccess);
}

ServerLimits few_logins() {
  ServerLimits limits = quiet_limits();
  limits.maximum_logins_in_progress = 4;
  return limits;
}

}  // namespace

TEST_CASE("Discovery sessions have a share of the connections, and the oldest make room") {
  on_bench({.limits = few_connections()}, many_discoveries);
}
TEST_CASE("Discovery sessions make room for others when there are no more connections") {
  on_bench({.limits = few_connections()}, discovery_makes_room);
}
TEST_CASE("One address has at most 64 discovery sessions, each idle for half a minute at most") {
  on_bench({}, discoveries_of_one_address);
}
TEST_CASE("Half-open logins of a flood end before those of other addresses") {
  on_bench({.limits = few_logins()}, flood_of_logins);
}
TEST_CASE("Text whose answers nobody reads is read no further after a thousand answers") {
  on_bench({.link = whole_receives()}, deaf_text);
}
TEST_CASE("Pings whose answers nobody reads are read no further after a thousand answers") {
  on_bench({.link = whole_receives()}, deaf_pings);
}
TEST_CASE("Unsolicited data that overlap fail their write and are not kept") {
  on_bench({.link = whole_receives()}, overlapping);
}
TEST_CASE("Unsolicited data may come in any order where that was agreed") {
  on_bench({}, shuffled);
}
TEST_CASE("Data of no task take no room from the writes that were promised some") {
  on_bench({.link = whole_receives()}, stray_data);
}
TEST_CASE("A write whose data stay away fails in the end and lets its memory go") {
  on_bench({.link = whole_receives()}, withheld);
}
TEST_CASE("Who announces much and sends it in driblets goes while others are refused") {
  on_bench({.link = whole_receives()}, driblets);
}

}  // namespace sandbay::iscsi::test::target_greedy_test
