// Peers that ask for much or do not behave, and the end: half-open logins, memory, peers that read
// nothing, shutdown with a hung device.
#include <catch2/catch.hpp>

#include "target_bench.h"

namespace sandbay::iscsi::test::target_limits_test {
namespace {

ServerLimits few_logins() {
  ServerLimits limits = quiet_limits();
  limits.maximum_logins_in_progress = 4;
  return limits;
}

Task<void> half_open(Bench& bench) {
  std::vector<RawInitiator*> silent;
  for (int i = 0; i < 6; ++i) {
    RawInitiator* const peer = co_await bench.connect();
    silent.push_back(peer);
    co_await bench.sleep(std::chrono::milliseconds(100));
  }
  CHECK(silent[0]->ended());
  CHECK(silent[1]->ended());
  CHECK_FALSE(silent[2]->ended());
  CHECK_FALSE(silent[5]->ended());
  RawInitiator& peer = *co_await bench.session();
  CHECK(silent[2]->ended());
  co_await bench.sleep(std::chrono::seconds(16));
  CHECK(silent[3]->ended());  // The login timeout.
  CHECK(silent[5]->ended());
  const RawPdu goes_on = co_await answer_to(peer, {});
  CHECK(goes_on.status() == 0);
}

// A peer that has begun its login waits beside connections that never send anything.
Task<void> silent_beside_begun(Bench& bench) {
  RawInitiator& peer = *co_await bench.connect();
  LoginRequest request{.current_stage = 1, .initiator_task_tag = 9, .cmd_sn = 100};
  Bhs bhs;
  write_login_request(request, bhs);
  const std::string names = "InitiatorName=iqn.2026-11.org.sandbay:raw;SessionType=Normal;";
  co_await peer.send(bhs, bytes_of(text_of(names + "TargetName=" + kBenchTarget)));
  const RawPdu first = co_await peer.next();
  CHECK(first.login().status == LoginStatus::kSuccess);
  RawInitiator* const silent = co_await bench.connect();
  for (int i = 0; i < 6; ++i) {
    RawInitiator* const another = co_await bench.connect();
    CHECK(another != nullptr);
    co_await bench.sleep(std::chrono::milliseconds(100));
  }
  CHECK(silent->ended());
  CHECK_FALSE(peer.ended());
}

ServerLimits many_logins() {
  ServerLimits limits = quiet_limits();
  limits.maximum_logins_in_progress = 2000;
  return limits;
}

// Many writers, little memory -------------------------------------------------------------------

struct Crowd {
  Bench* bench = nullptr;
  Gate running;
  std::size_t ended = 0;
  std::size_t written = 0;
  std::size_t aborted = 0;
  std::size_t refused = 0;  // TASK SET FULL
  bool exceeded = false;
  std::string keys;
  std::size_t immediate_bytes = 0;
  Bytes data;  // What each of them writes.
};

void look_at_memory(Crowd& crowd) {
  for (Executor* const executor : crowd.bench->world().executors()) {
    const BufferPool& pool = executor->buffers();
    if (pool.used_bytes() > pool.limit_bytes()) crowd.exceeded = true;
  }
}

// One write of `bytes`; most writers give up in the middle of it.
Task<void> write_much(Crowd* crowd, unsigned index, std::uint32_t bytes, bool whole) {
  const GateHold hold(crowd->running);
  RawInitiator* const peer = co_await crowd->bench->connect();
  RawLogin login{.keys = crowd->keys, .isid = static_cast<std::uint8_t>(index & 0xffU)};
  login.initiator += std::to_string(index);
  const RawPdu answer = co_await peer->log_in(login);
  if (answer.login().status != LoginStatus::kSuccess || !answer.is(Opcode::kLoginResponse)) {
    ++crowd->ended;
    co_return;
  }
  co_await crowd->bench->take_attentions(*peer);
  const Bytes& data = crowd->data;
  RawCommand write = writing(0, bytes / kBlock, Bytes(crowd->immediate_bytes));
  const std::uint32_t ref = peer->cmd_sn;
  const std::uint32_t tag = co_await send_command(*peer, std::move(write));
  for (int bursts = 0;; ++bursts) {
    const RawPdu pdu = co_await peer->next_of(tag, std::chrono::minutes(20));
    look_at_memory(*crowd);
    if (!pdu.is(Opcode::kReadyToTransfer)) {
      if (pdu.status() == 0) ++crowd->written;
      if (pdu.status() == 0x28) ++crowd->refused;
      break;
    }
    if (!whole && bursts == 6) {
      const std::uint32_t abort =
          co_await send_management(*peer, {.referenced_task_tag = tag, .ref_cmd_sn = ref});
      const RawPdu aborted = co_await peer->next_of(abort);
      if (aborted.managed() == 0) ++crowd->aborted;
      break;
    }
    co_await answer_r2t(*peer, pdu.r2t(), data, 65536);
    look_at_memory(*crowd);
  }
  ++crowd->ended;
}

// A crowd that is refused nothing must all get its turn.
Task<void> crowd_of(Bench& bench, unsigned count, unsigned whole, std::size_t immediate_bytes,
                    std::string keys) {
  Crowd crowd{.bench = &bench,
              .keys = std::move(keys),
              .immediate_bytes = immediate_bytes,
              .data = Bytes(16U << 20U)};
  for (unsigned i = 0; i < count; ++i) {
    const bool entered = crowd.running.enter();
    assert(entered);
    spawn(write_much(&crowd, i, 16U << 20U, i < whole));
  }
  co_await crowd.running.close();
  CHECK_FALSE(crowd.exceeded);
  CHECK(crowd.ended == count);
  CHECK(crowd.written + crowd.aborted + crowd.refused == count);
  CHECK(crowd.written + crowd.aborted > 0);
  if (immediate_bytes == 0) CHECK(crowd.written == whole);
}

Task<void> thousand_writers(Bench& bench) {
  co_await crowd_of(bench, 1000, 10, 0, "ImmediateData=No;MaxBurstLength=262144");
}

Task<void> writers_with_immediate_data(Bench& bench) {
  co_await crowd_of(bench, 300, 10, 8192, "MaxBurstLength=262144");
}

// Reads nothing ---------------------------------------------------------------------------------

Task<void> deaf_reader(Bench& bench) {
  RawInitiator& deaf = *co_await bench.session();
  RawInitiator& other = *co_await bench.session({.isid = 2});
  deaf.pause_reading();
  for (int i = 0; i < 32; ++i) co_await send_command(deaf, reading(0, 16384));  // 8 MiB each.
  co_await bench.sleep(std::chrono::seconds(5));
  const TimePoint before = bench.now();
  const RawPdu read = co_await answer_to(other, reading(0, 8));
  CHECK(read.status() == 0);
  const RawPdu written = co_await answer_to(other, writing(0, 8, pattern_of(4096)));
  CHECK(written.status() == 0);
  CHECK(bench.now() - before < std::chrono::seconds(1));
  co_await bench.sleep(std::chrono::minutes(3));
  deaf.resume_reading();
  co_await bench.sleep(std::chrono::seconds(10));
  CHECK(deaf.ended());  // It was given up.
  const RawPdu goes_on = co_await answer_to(other, {});
  CHECK(goes_on.status() == 0);
}

Task<void> ping_much(RawInitiator* peer, Event* done) {
  for (int i = 0; i < 6000; ++i) co_await send_ping(*peer, Bytes(8192));
  done->set();
}

// Pings are outside of the command window, and their echoes must be bounded all the same.
Task<void> deaf_pinger(Bench& bench) {
  RawInitiator& deaf = *co_await bench.session();
  RawInitiator& other = *co_await bench.session({.isid = 2});
  deaf.pause_reading();
  Event done;
  spawn(ping_much(&deaf, &done));
  for (int i = 0; i < 50; ++i) {
    co_await bench.sleep(std::chrono::milliseconds(100));
    for (Executor* const executor : bench.world().executors()) {
      CHECK_FALSE(executor->buffers().under_pressure());
    }
    const RawPdu written = co_await answer_to(other, writing(0, 8, pattern_of(4096)));
    CHECK(written.status() == 0);
  }
  deaf.resume_reading();
  deaf.reset();
  co_await done.wait();
}

// Everybody's memory is gone: small reads, of which many fit into a command window.
Task<void> deaf_crowd(Bench& bench, std::uint32_t blocks) {
  RawInitiator& old = *co_await bench.session({.isid = 99});
  std::vector<RawInitiator*> crowd;
  for (std::uint8_t isid = 1; isid <= 60; ++isid) {
    RawInitiator* const peer = co_await bench.session({.isid = isid});
    crowd.push_back(peer);
  }
  for (RawInitiator* const peer : crowd) {
    peer->pause_reading();
    for (int i = 0; i < 31; ++i) co_await send_command(*peer, reading(0, blocks));
  }
  co_await bench.sleep(std::chrono::seconds(1));
  const BufferPool& pool = bench.world().executors().back()->buffers();  // The units'.
  CHECK(pool.under_pressure());
  const TimePoint before = bench.now();
  RawInitiator& late = *co_await bench.connect();
  const RawPdu answer = co_await late.log_in({.isid = 77});
  CHECK(answer.login().status == LoginStatus::kSuccess);
  CHECK(bench.now() - before < std::chrono::seconds(1));
  const std::uint32_t ping = co_await send_ping(old, {}, true);
  const RawPdu echo = co_await old.next_of(ping);
  CHECK(echo.is(Opcode::kNopIn));
  // And it reads, little and much, as long as the others stay.
  co_await bench.take_attentions(late);
  for (const std::uint32_t wanted : {8U, 128U, 1U, 16384U, 512U}) {
    const Bytes data = co_await read_back(late, reading(0, wanted));
    CHECK(data.size() == wanted * kBlock);
  }
  std::vector<std::uint32_t> tags;
  for (std::uint32_t i = 0; i < 30; ++i) {
    const std::uint32_t tag = co_await send_command(late, reading(i, 1 + i * 8));
    tags.push_back(tag);
  }
  for (const std::uint32_t tag : tags) {
    RawPdu pdu = co_await late.next_of(tag);
    while (pdu.is(Opcode::kDataIn) && !pdu.data_in().has_status) pdu = co_await late.next_of(tag);
    CHECK(pdu.status() == 0);
  }
  // And it writes: little at a time, again and again.
  for (std::uint32_t i = 0; i < 50; ++i) {
    const RawPdu written = co_await answer_to(late, writing(i, 8, pattern_of(8 * kBlock)));
    CHECK(written.status() == 0);
  }
  CHECK(bench.now() - before < std::chrono::seconds(1));
  CHECK(pool.under_pressure());
  CHECK(pool.used_bytes() <= pool.limit_bytes());
  for (RawInitiator* const peer : crowd) CHECK_FALSE(peer->ended());
  // Who takes nothing is not borne with for long.
  co_await bench.sleep(std::chrono::seconds(10));
  CHECK_FALSE(pool.under_pressure());
  for (RawInitiator* const peer : crowd) peer->resume_reading();
}
Task<void> deaf_to_much(Bench& bench) { co_await deaf_crowd(bench, 16384); }  // 8 MiB each.
Task<void> deaf_to_some(Bench& bench) { co_await deaf_crowd(bench, 128); }    // 64 KiB each.
Task<void> deaf_to_little(Bench& bench) { co_await deaf_crowd(bench, 120); }

// Who takes nothing while memory is short goes five seconds later, whatever the hour at which it
// was last looked at.
Task<void> deaf_while_short(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  co_await bench.sleep(std::chrono::milliseconds(500));
  peer.pause_reading();
  for (int i = 0; i < 31; ++i) co_await send_command(peer, reading(0, 16384));
  co_await bench.sleep(std::chrono::milliseconds(100));
  std::vector<BufferList> held;
  for (Executor* const executor : bench.world().executors()) {
    while (!executor->buffers().under_pressure()) {
      held.push_back(executor->buffers().try_allocate(65536));
      REQUIRE_FALSE(held.back().empty());
    }
  }
  co_await bench.sleep(std::chrono::milliseconds(5500));
  const auto sessions = co_await bench.server().sessions();
  CHECK(sessions.empty());
  peer.resume_reading();
}

// A ping's data find no memory: it is refused, and the connection stays.
Task<void> ping_without_memory(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  std::vector<std::pair<BufferPool*, std::size_t>> reserved;
  for (Executor* const executor : bench.world().executors()) {
    BufferPool& pool = executor->buffers();
    std::size_t byte_count = 0;
    for (std::size_t piece = std::size_t{1} << 20; piece > 256; piece /= 2) {
      while (pool.try_reserve(piece)) byte_count += piece;
    }
    reserved.emplace_back(&pool, byte_count);
  }
  // One block more on each executor, and the pools are under pressure.
  RawInitiator& other = *co_await bench.session({.isid = 2});
  co_await bench.session({.isid = 3});
  for (const bool immediate : {true, false}) {
    const std::uint32_t cmd_sn = peer.cmd_sn;
    co_await send_ping(peer, pattern_of(8000), immediate);
    const RawPdu refused = co_await peer.next();
    CHECK(refused.rejected_for() == static_cast<int>(immediate
                                                         ? RejectReason::kTooManyImmediateCommands
                                                         : RejectReason::kLongOperationReject));
    CHECK(refused.numbers().exp_cmd_sn == cmd_sn);
    peer.cmd_sn = cmd_sn;
  }
  for (const auto& [pool, byte_count] : reserved) pool->unreserve(byte_count);
  const std::uint32_t again = co_await send_ping(peer, pattern_of(8000), false);
  const RawPdu echo = co_await peer.next_of(again);
  CHECK(echo.data == pattern_of(8000));
  CHECK_FALSE(other.ended());
}

// A write waits for room for its data, which others hold for good.
Task<void> end_without_memory(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes"});
  std::vector<std::pair<BufferPool*, std::size_t>> reserved;
  for (Executor* const executor : bench.world().executors()) {
    BufferPool& pool = executor->buffers();
    std::size_t byte_count = 0;
    while (pool.try_reserve(65536)) byte_count += 65536;
    reserved.emplace_back(&pool, byte_count);
  }
  const std::uint32_t tag = co_await send_command(peer, writing(0, 1024));
  const RawPdu nothing = co_await peer.next_of(tag, std::chrono::seconds(1));
  CHECK(nothing.silent);
  const TimePoint before = bench.now();
  peer.reset();
  for (int i = 0; i < 100; ++i) {
    const auto sessions = co_await bench.server().sessions();
    if (sessions.empty()) break;
    co_await bench.sleep(std::chrono::milliseconds(100));
  }
  CHECK(bench.now() - before < std::chrono::seconds(5));
  for (const auto& [pool, byte_count] : reserved) pool->unreserve(byte_count);
}

// The end ---------------------------------------------------------------------------------------

Task<void> shutdown_while_hung(Bench& bench) {
  std::vector<RawInitiator*> peers;
  for (std::uint8_t isid = 1; isid < 6; ++isid) {
    RawInitiator* const peer = co_await bench.session({.isid = isid});
    peers.push_back(peer);
  }
  bench.device(0).hang();
  bench.device(1).hang();
  for (RawInitiator* const peer : peers) {
    for (std::uint32_t i = 0; i < 20; ++i) {
      co_await send_command(*peer, i % 2 == 0 ? reading(i, 1) : writing(i, 8, {}, kSecondUnit));
    }
  }
  co_await bench.sleep(std::chrono::milliseconds(100));
  const TimePoint before = bench.now();
  co_await bench.end_server();
  CHECK(bench.now() - before <= scsi::kTaskManagementBound + std::chrono::seconds(2));
  for (RawInitiator* const peer : peers) {
    for (;;) {
      const RawPdu pdu = co_await peer->next();
      if (!pdu.none()) continue;
      CHECK(pdu.closed);
      break;
    }
  }
}

sim::LinkOptions whole_receives() { return {.fragment = false}; }

}  // namespace

TEST_CASE("Half-open logins are bounded: the oldest makes room, and all have a deadline") {
  on_bench({.limits = few_logins()}, half_open);
}
TEST_CASE("A login that has begun keeps its place beside silent connections", "[X3]") {
  on_bench({.limits = few_logins()}, silent_beside_begun);
}
TEST_CASE("A thousand writers with little memory: the limit holds and all come to an end") {
  on_bench({.limits = many_logins(),
            .memory_limit_bytes = std::size_t{64} << 20,
            .link = whole_receives()},
           thousand_writers);
}
TEST_CASE("A crowd of writers with immediate data: some are refused, and all come to an end") {
  on_bench({.limits = many_logins(), .link = whole_receives()}, writers_with_immediate_data);
}
TEST_CASE("A peer that does not read its data stops nobody else and is given up") {
  on_bench({.link = whole_receives()}, deaf_reader);
}
TEST_CASE("A peer that pings and reads nothing takes a bounded amount of memory") {
  on_bench({.link = whole_receives()}, deaf_pinger);
}
TEST_CASE("A crowd that does not read leaves memory to who logs in and reads, and goes soon") {
  on_bench({.link = whole_receives()}, deaf_to_much);
  on_bench({.link = whole_receives()}, deaf_to_some);
  on_bench({.link = whole_receives()}, deaf_to_little);
}
TEST_CASE("A peer that does not read while memory is short goes in five seconds") {
  on_bench({.link = whole_receives()}, deaf_while_short);
}
TEST_CASE("A ping whose data find no memory is refused and the connection stays") {
  on_bench({}, ping_without_memory);
}
TEST_CASE("A session ends while a write of it waits for memory") {
  on_bench({}, end_without_memory);
}
TEST_CASE("shutdown() with hung devices is bounded") { on_bench({}, shutdown_while_hung); }

}  // namespace sandbay::iscsi::test::target_limits_test
