// Members that break: lost, cut off, slow, with sets that come later; and what strikes metadata.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "bench.h"
#include "runtime/probe.h"

namespace sandbay::fault::member_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Sets of two members beside the bench's drives.
struct Members {
  explicit Members(Executor& home, FaultEngineOptions options = {})
      : bench(home, std::move(options)) {
    bench.engine.add_member("one");
    bench.engine.add_member("two");
    add("one", "a");
    add("two", "b");
  }

  void add(const std::string& member, const std::string& set) {
    auto device = MemoryDevice::create(bench.home, {.byte_count = kBlocks * 512});
    REQUIRE(device.has_value());
    below.push_back(std::move(*device));
    sets.push_back(std::make_unique<FaultLayer>(*below.back(), bench.engine,
                                                FaultLayerOptions{.name = set, .member = member}));
  }

  Bench bench;
  std::vector<std::unique_ptr<MemoryDevice>> below;
  std::vector<std::unique_ptr<FaultLayer>> sets;
};

Task<void> loss(Executor& home) {
  Members members(home);
  Bench& bench = members.bench;
  Error error = co_await write_value(*members.sets[1], 7, 42);
  CHECK(error == Error::kNone);
  bench.add("id=gone at=member:two do=member.loss for=1s");
  CHECK(bench.log == std::vector<std::string>{"member two: fault gone fired: member.loss"});
  error = co_await read_error(*members.sets[1], {7, 1});
  CHECK(error == Error::kNotReady);
  CHECK(members.sets[1]->health() == Health::kMissing);
  members.add("two", "c");  // A set of it that is seen meanwhile.
  error = co_await write_value(*members.sets[2], 0, 1);
  CHECK(error == Error::kNotReady);
  // Nobody else.
  error = co_await write_value(*members.sets[0], 7, 1);
  CHECK(error == Error::kNone);
  error = co_await write_value(bench.layer(), 7, 1);
  CHECK(error == Error::kNone);
  co_await home.sleep_for(seconds(2));
  const int value = co_await read_value(*members.sets[1], 7);
  CHECK(value == 42);
  CHECK(members.sets[2]->health() == Health::kGood);
  CHECK(bench.counters("gone") == Counters{.matched = 1, .fired = 1, .struck = 2});

  // By number, at the third operation, and until it is cleared.
  bench.add("id=third at=member:0 after=2 do=member.loss");
  for (const Error expected : {Error::kNone, Error::kNone, Error::kNotReady, Error::kNotReady}) {
    error = co_await read_error(*members.sets[0], {0, 1});
    CHECK(error == expected);
  }
  bench.engine.clear("third");
  error = co_await read_error(*members.sets[0], {0, 1});
  CHECK(error == Error::kNone);
}

// Its drives are away, and return as they were when the rule was added.
Task<void> stale_return(Executor& home) {
  Members members(home);
  Bench& bench = members.bench;
  auto device = MemoryDevice::create(home, {.byte_count = kBlocks * 512});
  REQUIRE(device.has_value());
  FaultLayer drive(**device, bench.engine, {.name = "owned", .owner = "two"});
  Error error = co_await write_value(drive, 3, 1);
  CHECK(error == Error::kNone);
  bench.add("id=back at=member:two event=now do=member.return.stale for=2s");
  error = co_await write_value(drive, 3, 2);
  CHECK(error == Error::kNone);
  error = co_await write_value(drive, 4, 2);
  CHECK(error == Error::kNone);
  int value = co_await read_value(drive, 3);
  CHECK(value == 2);
  bench.engine.notify("now");
  CHECK(bench.log == std::vector<std::string>{"member two: fault back fired: member.return.stale"});
  CHECK(drive.health() == Health::kMissing);
  error = co_await write_value(drive, 5, 2);
  CHECK(error == Error::kNotReady);
  // What is above a set, and whoever else has drives, notices nothing of it.
  error = co_await write_value(*members.sets[1], 3, 7);
  CHECK(error == Error::kNone);
  error = co_await write_value(bench.layer(), 3, 7);
  CHECK(error == Error::kNone);
  co_await home.sleep_for(seconds(3));
  CHECK(drive.health() == Health::kGood);
  error = co_await read_error(drive, {0, 1});
  CHECK(error == Error::kNotReady);  // Once, as a drive that has come.
  value = co_await read_value(drive, 3);
  CHECK(value == 1);
  value = co_await read_value(drive, 4);
  CHECK(value == 0);
  // Below is what was meant.
  value = co_await read_value(**device, 3);
  CHECK(value == 2);
  co_await drive.drain();
}

Task<Error> timed_write(FaultLayer* layer, Lba lba, Duration* took) {
  const TimePoint begun = layer->home().now();
  const Error error = co_await write_value(*layer, lba, 9);
  *took = layer->home().now() - begun;
  co_return error;
}

Task<void> partition(Executor& home) {
  Members members(home);
  FaultLayer* const set = members.sets[1].get();
  Duration took{};
  // It ends in time: whoever waited goes on.
  members.bench.add("id=short at=member:two do=member.partition for=1s patience=3s");
  CHECK(set->health() == Health::kGood);
  Error error = co_await timed_write(set, 3, &took);
  CHECK(error == Error::kNone);
  CHECK(took == seconds(1));
  // It does not.
  members.bench.add("id=long at=member:two do=member.partition for=20s patience=3s");
  error = co_await timed_write(set, 4, &took);
  CHECK(error == Error::kNotReady);
  CHECK(took == seconds(3));
  CHECK(set->health() == Health::kMissing);
  error = co_await timed_write(set, 4, &took);
  CHECK(error == Error::kNotReady);
  CHECK(took == Duration::zero());
  co_await home.sleep_for(seconds(20));
  const int kept = co_await read_value(*set, 3);
  CHECK(kept == 9);
  const int refused = co_await read_value(*set, 4);
  CHECK(refused == 0);
}

Task<void> slowness(Executor& home) {
  Members members(home);
  members.bench.add("id=slow at=member:one op=write do=member.slow latency=20ms count=2");
  for (const Duration expected : {milliseconds(20), milliseconds(20), milliseconds(0)}) {
    Duration took{};
    const Error error = co_await timed_write(members.sets[0].get(), 1, &took);
    CHECK(error == Error::kNone);
    CHECK(took == expected);
  }
  CHECK(members.bench.log.front() ==
        "member one, set a: fault slow fired: member.slow, 20000 us (operation 1, blocks 1+1)");
}

Task<void> metadata(Executor& home) {
  std::vector<std::string> killed;
  Bench bench(home, {.on_kill = [&](const Rule& rule) { killed.push_back(rule.id); }});
  const Probe::Installation installation(home, bench.engine);
  bench.add("id=flip at=meta op=read after=1 count=1 do=map.corrupt");
  const auto passes = [](std::string_view name) {
    return Probe::ask({.name = name, .byte_count = 10}).action == 0;
  };
  CHECK(passes("map.read"));
  CHECK(passes("map.write"));
  CHECK_FALSE(passes("map.read"));
  CHECK(passes("map.read"));
  CHECK(bench.counters("flip") == Counters{.matched = 3, .fired = 1, .struck = 1});

  bench.add("id=any at=meta after=2 count=1 do=rebalance.kill");
  bench.add("id=one at=meta event=rebalance.ready do=rebalance.kill");
  for (const char* step : {"rebalance.claimed", "rebalance.copied", "nvram.append"}) {
    CHECK(passes(step));
  }
  CHECK(killed.empty());
  CHECK(passes("rebalance.ready"));
  CHECK(killed == std::vector<std::string>{"any", "one"});
  co_return;
}

Task<void> refusals(Executor& home) {
  Members members(home);
  const auto refused = [&](const std::string& text) {
    const auto id = members.bench.engine.add(text);
    return id.has_value() ? "" : id.error();
  };
  CHECK(refused("at=member:three do=member.loss") ==
        "at=member:three: unknown member; members are: one, two");
  CHECK(refused("at=member:2 do=member.loss").starts_with("at=member:2: unknown member"));
  CHECK(refused("at=member do=member.loss").starts_with("at=member: drive:NAME, "));
  CHECK(refused("at=drive:d0 do=member.loss") == "do=member.loss: at=member:NAME is possible");
  CHECK(refused("at=member:two do=pull") == "do=pull: at=drive and at=enclosure are possible");
  CHECK(refused("at=member:two do=member.slow") ==
        "do=member.slow: say how slow with latency= or bandwidth=");
  CHECK(refused("at=member:one do=member.return.stale for=2s") ==
        "at=member:one: do=member.return.stale is of its drives, and none are here");
  CHECK(refused("at=member:one do=member.return.stale") ==
        "do=member.return.stale: say how long it lasts with for= or until=");
  CHECK(refused("at=member:one op=write do=member.return.stale for=1s")
            .starts_with("do=member.return.stale: op, lba"));
  CHECK(refused("at=meta do=rebalance.kill") ==
        "do=rebalance.kill: there is nothing here that could be killed");
  CHECK(refused("at=meta lba=3 do=map.corrupt").starts_with("at=meta: lba, length"));
  CHECK(refused("at=meta op=flush do=map.corrupt") ==
        "op=flush: do=map.corrupt strikes read,write");
  CHECK(refused("at=meta op=read do=rebalance.kill") ==
        "op=: do=rebalance.kill is of no operation; event and after are possible");
  CHECK(refused("at=drive:b do=fail").starts_with("at=drive:b: unknown drive"));
  co_return;
}

}  // namespace

#define MEMBER_TEST(name, call)                        \
  TEST_CASE(name, "[fault][member]") {                 \
    run_bench(1, [](Executor& home) { return call; }); \
  }

MEMBER_TEST("A lost member takes all its sets, also those that come, and nobody else", loss(home))
MEMBER_TEST("A member that is cut off is waited for, and then it is lost", partition(home))
MEMBER_TEST("A member is slow", slowness(home))
MEMBER_TEST("A member's drives return as they were when the rule was added", stale_return(home))
MEMBER_TEST("Values of maps are damaged, and the daemon killed, at their probes", metadata(home))
MEMBER_TEST("What cannot strike members or metadata is refused", refusals(home))

}  // namespace sandbay::fault::member_test
