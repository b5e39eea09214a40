// When rules fire: matching, counting, time, events, states and followers; that the same seed gives
// the same journal, that rules do not shift one another, and that idle ones change nothing.
#include "fault/engine.h"

#include "../block/test_devices.h"
#include "bench.h"
#include "fault/active_rule.h"
#include "runtime/probe.h"

namespace sandbay::fault {
namespace {

using std::chrono::milliseconds;

Task<void> matching(Executor& home) {
  Bench bench(home);
  bench.add("id=lba at=drive:d0 op=write lba=10+4 do=nothing");
  bench.add("id=length at=drive:d0 length=4..8 do=nothing");
  bench.add("id=fua at=drive:d0 fua=yes do=nothing");
  bench.add("id=origin at=drive:d0 origin=rebuild,verify do=nothing");
  bench.add("id=depth at=drive:d0 depth=2.. do=nothing");
  bench.add("id=any at=drive:d0 op=any do=nothing");
  bench.add("id=shelf at=enclosure:front op=any do=nothing");
  bench.add("id=rear at=enclosure:rear op=any do=nothing");
  Error error = co_await write_value(bench.layer(), 8, 1, 2);   // Just before.
  error = co_await write_value(bench.layer(), 13, 1, 5);        // The last of them.
  error = co_await write_value(bench.layer(), 14, 1, 1, true);  // Just behind.
  error = co_await read_error(bench.layer(), {10, 3});          // Not a write.
  error = co_await do_plainly(bench.layer(), Operation::kFlush);
  error = co_await do_plainly(bench.layer(1), Operation::kFlush);
  Request request{.operation = Operation::kAdvise, .origin = Origin::kVerify, .extent = {0, 1}};
  const Completion done = co_await bench.layer().submit(std::move(request));
  CHECK(done.error == Error::kNone);
  CHECK(error == Error::kNone);
  CHECK(bench.counters("lba").fired == 1);
  CHECK(bench.counters("length").fired == 1);
  CHECK(bench.counters("fua").fired == 1);
  CHECK(bench.counters("origin").fired == 1);
  CHECK(bench.counters("depth").fired == 0);
  CHECK(bench.counters("any").fired == 6);
  CHECK(bench.counters("shelf").fired == 7);
  CHECK(bench.counters("rear").fired == 0);
  CHECK(bench.engine.journal().total() == 17);
  CHECK(bench.log.size() == 17);
}

Task<void> counting(Executor& home) {
  Bench bench(home);
  bench.add("id=n at=drive:d0 op=flush after=3 every=2 count=2 do=nothing");
  std::string fired;
  for (int i = 0; i < 12; ++i) {
    const std::uint64_t before = bench.counters("n").fired;
    const Error error = co_await do_plainly(bench.layer(), Operation::kFlush);
    CHECK(error == Error::kNone);
    fired += bench.counters("n").fired > before ? 'x' : '.';
  }
  CHECK(fired == "...x.x......");
  CHECK(bench.counters("n") == Counters{.matched = 12, .fired = 2});

  bench.add("id=p at=drive:d1 op=flush p=0.25 do=nothing");
  for (int i = 0; i < 1000; ++i) {
    const Error error = co_await do_plainly(bench.layer(1), Operation::kFlush);
    CHECK(error == Error::kNone);
  }
  CHECK(bench.counters("p").fired > 180);
  CHECK(bench.counters("p").fired < 320);
  const auto unknown = bench.engine.view("nobody");
  CHECK_FALSE(unknown.has_value());
}

Task<void> times(Executor& home) {
  Bench bench(home);
  bench.add("id=w at=drive:d0 op=flush from=10ms until=20ms do=nothing");
  bench.add("id=f at=drive:d1 from=10ms until=20ms do=fail");
  CHECK(bench.engine.list().size() == 2);
  for (int i = 0; i < 25; ++i) {
    const Error error = co_await do_plainly(bench.layer(), Operation::kFlush);
    CHECK(error == Error::kNone);
    const Error other = co_await do_plainly(bench.layer(1), Operation::kFlush);
    CHECK(other == (i >= 10 && i < 20 ? Error::kHardware : Error::kNone));
    co_await home.sleep_for(milliseconds(1));
  }
  CHECK(bench.counters("w").fired == 10);
  CHECK(bench.counters("f").fired == 1);

  // for= keeps a strike going: what matches until then is struck, and no longer counted.
  bench.add("id=on at=drive:d0 op=read after=2 every=100 count=1 do=flip where=read for=5ms");
  int wrong = 0;
  for (int i = 0; i < 12; ++i) {
    const int value = co_await read_value(bench.layer(), 0);
    CHECK(value >= 0);
    wrong = static_cast<int>(bench.counters("on").struck);
    co_await home.sleep_for(milliseconds(1));
  }
  CHECK(wrong == 5);
  CHECK(bench.counters("on").fired == 1);
}

Task<void> events(Executor& home) {
  Bench bench(home);
  bench.add("id=at-event at=drive:d0 event=rebuild.start after=1 count=1 do=fail");
  bench.add("id=armed at=drive:d1 event=rebuild.start op=flush after=1 do=nothing");
  Error error = co_await do_plainly(bench.layer(1), Operation::kFlush);
  CHECK(error == Error::kNone);
  bench.engine.notify("rebuild.end");
  bench.engine.notify("rebuild.start");
  CHECK(bench.layer().health() == Health::kGood);
  bench.engine.notify("rebuild.start");
  CHECK(bench.layer().health() == Health::kFailed);
  for (int i = 0; i < 3; ++i) error = co_await do_plainly(bench.layer(1), Operation::kFlush);
  CHECK(bench.counters("armed") == Counters{.matched = 3, .fired = 2});

  // A probe that is passed is an event.
  bench.add("id=probed at=drive:d2 event=nvram.append after=2 do=smart");
  const Probe::Installation installation(home, bench.engine);
  for (int i = 0; i < 3; ++i) {
    CHECK(bench.layer(2).health() == Health::kGood);
    const ProbeVerdict verdict = Probe::ask({.name = "nvram.append"});
    CHECK(verdict.proceeds());
  }
  CHECK(bench.layer(2).health() == Health::kPredictedFailure);
}

Task<void> states(Executor& home) {
  Bench bench(home);
  bench.add("id=edge at=drive:d0 state=rebuilding,!safe:1 do=fail.transient for=1ms");
  bench.engine.set_state("safe", 1);
  bench.engine.set_state("rebuilding", 1);
  CHECK(bench.layer().health() == Health::kGood);
  bench.engine.set_state("safe", 0);
  CHECK(bench.layer().health() == Health::kFailed);
  bench.engine.set_state("rebuilding", 2);  // It holds already.
  CHECK(bench.counters("edge").fired == 1);
  co_await home.sleep_for(milliseconds(2));
  CHECK(bench.layer().health() == Health::kGood);

  // Rules set variables that others test.
  bench.add("id=one at=drive:d1 op=flush state=!phase count=1 do=nothing set=phase:2");
  bench.add("id=two at=drive:d1 op=flush state=phase:2 do=nothing");
  for (int i = 0; i < 3; ++i) {
    const Error error = co_await do_plainly(bench.layer(1), Operation::kFlush);
    CHECK(error == Error::kNone);
  }
  CHECK(bench.engine.state("phase") == 2);
  CHECK(bench.counters("one").fired == 1);
  CHECK(bench.counters("two").fired == 3);
}

// Slow becomes a stall, a stall an error, an error a dead drive.
Task<void> conversions(Executor& home) {
  Bench bench(home);
  const std::vector<std::string> rules = {
      "id=dead at=drive:d0 do=fail set=dead",
      "id=errors at=drive:d0 op=write do=write.error for=10ms then=rule:dead",
      "id=stalled at=drive:d0 do=stall for=10ms then=rule:errors",
      "id=slow at=drive:d0 op=any do=slow latency=1ms for=10ms count=1 then=rule:stalled",
      "id=correlated at=drive:d1 event=rule:dead do=fail",
  };
  const auto added = bench.engine.add_all(rules);
  REQUIRE(added.has_value());
  const TimePoint start = home.now();
  Error error = co_await write_value(bench.layer(), 0, 1);
  CHECK(error == Error::kNone);
  CHECK(home.now() - start == milliseconds(1));
  co_await home.sleep_until(start + milliseconds(12));
  error = co_await do_plainly(bench.layer(), Operation::kFlush);
  CHECK(home.now() - start == milliseconds(20));
  error = co_await write_value(bench.layer(), 0, 1);
  CHECK(error == Error::kMediumError);
  CHECK(bench.layer(1).health() == Health::kGood);
  co_await home.sleep_until(start + milliseconds(31));
  CHECK(bench.layer().health() == Health::kFailed);
  CHECK(bench.layer(1).health() == Health::kFailed);
  CHECK(bench.engine.state("dead") == 1);
  bench.engine.clear_all();
  CHECK(bench.layer().health() == Health::kGood);
  CHECK(bench.engine.list().empty());

  // Rules in a circle come to an end.
  bench.add("id=ping event=rule:pong at=drive:d2 do=nothing");
  bench.add("id=pong event=rule:ping at=drive:d2 do=nothing");
  bench.add("id=go at=drive:d2 event=go do=nothing then=rule:ping");
  bench.engine.notify("go");
  CHECK(bench.counters("ping").fired > 1);
  CHECK(bench.counters("ping").fired < 20);
}

Task<void> refusals(Executor& home) {
  Bench bench(home);
  const auto refused = [&](const std::string& text) {
    const auto id = bench.engine.add(text);
    return id.has_value() ? "" : id.error();
  };
  CHECK(refused("at=drive:x do=fail") == "at=drive:x: unknown drive; drives are: d0, d1, d2");
  CHECK(refused("at=nvram do=nvram.loss") == "at=nvram: unknown NVRAM; NVRAMs are: none");
  CHECK(refused("at=drive:d0 lba=2000+100 do=lse") == "lba=0x7d0+100: drive d0 has 2048 blocks");
  CHECK(refused("at=drive:d0 do=misdirect.read to=drive:d9") == "to=drive:d9: unknown drive");
  CHECK(refused("at=drive:d0 do=insert content=other").starts_with("content=other: there is no"));
  bench.add("id=a at=drive:2 do=smart");
  CHECK(bench.layer(2).health() == Health::kPredictedFailure);
  CHECK(refused("id=a at=drive:d0 do=fail").starts_with("id=a: there is such a rule"));
  CHECK_FALSE(bench.engine.clear("b"));
  CHECK_FALSE(bench.engine.enable("b", true));
  CHECK_FALSE(bench.engine.heal("d9"));

  // All or none.
  const std::vector<std::string> rules = {"at=drive:d0 do=fail", "at=drive:d1 do=nonsense"};
  const auto added = bench.engine.add_all(rules);
  REQUIRE_FALSE(added.has_value());
  CHECK(added.error().starts_with("rule 2: do=nonsense: "));
  const auto twice =
      bench.engine.add_all(std::vector{Rule{.id = "x"}, Rule{.id = "y"}, Rule{.id = "x"}});
  REQUIRE_FALSE(twice.has_value());
  CHECK(twice.error().index == 2);
  CHECK(twice.error().text.starts_with("id=x: there is such a rule"));
  CHECK_FALSE(bench.engine.view("y").has_value());
  CHECK(bench.engine.list().size() == 1);
  CHECK(bench.layer().health() == Health::kGood);

  MemoryDevice& bare = bench.memory(0);
  FaultLayer plain(bare, bench.engine, {.name = "bare"});
  CHECK(refused("at=drive:bare do=power.cut") ==
        "do=power.cut: drive bare has no volatile cache that could lose anything");
  const std::vector<std::string> filling(kMostRules - bench.engine.list().size(),
                                         "at=drive:d0 enabled=no do=fail");
  REQUIRE(bench.engine.add_all(filling).has_value());
  CHECK(refused("at=drive:d0 do=fail") == "up to 10000 rules are possible; clear others first");
  co_return;
}

Task<void> tolerance(Executor& home) {
  std::string allowed = "d1";
  Bench bench(home, {.may_fail = [&allowed](const Rule& rule, const std::string& drive) {
                CHECK(rule.within_tolerance);
                return drive == allowed;
              }});
  bench.add("id=all at=enclosure event=now do=fail within=tolerance");
  bench.engine.notify("now");
  CHECK(bench.layer(0).health() == Health::kGood);
  CHECK(bench.layer(1).health() == Health::kFailed);
  CHECK(bench.layer(2).health() == Health::kGood);
  bench.add("id=op at=drive:d0 op=flush do=hang within=tolerance");
  const Error error = co_await do_plainly(bench.layer(), Operation::kFlush);
  CHECK(error == Error::kNone);
  CHECK(bench.counters("op") == Counters{.matched = 1, .spared = 1});
  bench.add("id=beyond at=drive:d2 do=fail beyond=tolerance");
  CHECK(bench.layer(2).health() == Health::kFailed);
}

Task<void> switched(Executor& home) {
  Bench bench(home);
  bench.add("id=off at=drive:d0 enabled=no do=fail");
  CHECK(bench.layer().health() == Health::kGood);
  CHECK(bench.engine.enable("off", true));
  CHECK(bench.layer().health() == Health::kFailed);
  const std::vector<RuleView> views = bench.engine.list();
  REQUIRE(views.size() == 1);
  CHECK(views[0].active);
  CHECK(views[0].text == "rule id=off at=drive:d0 do=fail");
  CHECK(bench.engine.enable("off", false));
  CHECK(bench.layer().health() == Health::kGood);
  CHECK_FALSE(bench.engine.list()[0].active);
  co_return;
}

// A layer that passes a request on has called the device below before anybody awaits it; one with a
// coroutine of its own has not.
Task<void> direct(Executor& home) {
  auto memory = MemoryDevice::create(home, {.byte_count = 64 * 512});
  REQUIRE(memory.has_value());
  testing::RecordingDevice recording(**memory);
  FaultEngine engine(home, {});
  FaultLayer layer(recording, engine, {.name = "d0"});
  FaultLayer other(**memory, engine, {.name = "d1"});
  REQUIRE(engine.add("id=idle at=enclosure p=0 do=fail").has_value());
  REQUIRE(engine.add("id=else at=drive:d1 do=smart").has_value());
  Request request{.operation = Operation::kFlush};
  Task<Completion> passed = layer.submit(std::move(request));
  CHECK(recording.seen().size() == 1);
  Completion done = co_await std::move(passed);
  CHECK(done.error == Error::kNone);

  REQUIRE(engine.add("id=here at=drive:d0 op=read do=hang").has_value());
  Request again{.operation = Operation::kFlush};
  Task<Completion> judged = layer.submit(std::move(again));
  CHECK(recording.seen().size() == 1);
  done = co_await std::move(judged);
  CHECK(recording.seen().size() == 2);
  CHECK(layer.operations() == 2);
  engine.clear("here");
  Request last{.operation = Operation::kFlush};
  Task<Completion> direct_again = layer.submit(std::move(last));
  CHECK(recording.seen().size() == 3);
  done = co_await std::move(direct_again);
}

Task<void> numbers(Executor& home) {
  Bench bench(home);
  bench.add("id=three at=disk:1 op=flush do=nothing");
  bench.drives[0].layer.reset();
  Error error = co_await do_plainly(bench.layer(1), Operation::kFlush);
  error = co_await do_plainly(bench.layer(2), Operation::kFlush);
  CHECK(error == Error::kNone);
  CHECK(bench.counters("three").fired == 1);
  bench.drives[0].layer = std::make_unique<FaultLayer>(*bench.drives[0].cache, bench.engine,
                                                       FaultLayerOptions{.name = "new"});
  CHECK(bench.layer(0).number() == 0);
  bench.add("id=zero at=drive:0 do=fail");
  CHECK(bench.layer(0).health() == Health::kFailed);
  error = co_await do_plainly(bench.layer(0), Operation::kFlush);
  CHECK(error == Error::kHardware);
  CHECK(bench.counters("zero").struck == 1);
}

// A load on two drives under rules; what is left of it are the journal and the clock.
Task<void> load(Executor& home, std::uint64_t seed, std::vector<std::string> rules,
                std::deque<Firing>& journal, TimePoint& ended) {
  Bench bench(home, {.seed = seed});
  const auto added = bench.engine.add_all(rules);
  REQUIRE(added.has_value());
  Random random(99);
  for (int i = 0; i < 400; ++i) {
    FaultLayer& drive = bench.layer(random.below(2));
    const Lba lba = random.below(64);
    const bool writes = random.below(2) == 0;
    Error error = Error::kNone;
    if (writes) error = co_await write_value(drive, lba, 7, 4);
    if (!writes) error = co_await read_error(drive, {lba, 4});
    CHECK((error == Error::kNone || error == Error::kMediumError));
    co_await home.sleep_for(std::chrono::microseconds(10));
  }
  journal = bench.engine.journal().entries();
  ended = home.now();
}

struct Trace {
  std::deque<Firing> journal;
  TimePoint ended{};
  std::uint64_t hash = 0;
};

Trace trace_of(std::uint64_t seed, std::vector<std::string> rules) {
  Trace trace;
  const auto world = sim::World::create({.seed = 5});
  Executor& home = *world->executors()[0];
  const bool ended =
      world->run([&] { return load(home, seed, rules, trace.journal, trace.ended); });
  REQUIRE(ended);
  trace.hash = world->trace_hash();
  return trace;
}

std::vector<Firing> of_rule(const Trace& trace, const std::string& id) {
  std::vector<Firing> firings;
  for (Firing firing : trace.journal) {
    firing.number = 0;
    if (firing.rule == id) firings.push_back(firing);
  }
  return firings;
}

const std::string kTorn = "id=torn at=drive:d0 p=0.2 do=torn";
const std::string kFlip = "id=flip at=enclosure op=read p=0.1 do=flip where=read bits=3";
const std::string kRot = "id=rot at=drive:d1 op=any p=0.05 do=flip bits=2";

}  // namespace

TEST_CASE("The same seed gives the same journal, another seed another", "[fault][engine]") {
  const Trace first = trace_of(7, {kTorn, kFlip, kRot});
  CHECK(first.journal.size() > 30);
  const Trace again = trace_of(7, {kTorn, kFlip, kRot});
  CHECK(first.journal == again.journal);
  CHECK(first.hash == again.hash);
  const Trace other = trace_of(8, {kTorn, kFlip, kRot});
  CHECK(first.journal != other.journal);
}

TEST_CASE("A rule more does not shift the others", "[fault][engine]") {
  const Trace with = trace_of(7, {kRot, kTorn, kFlip});
  const Trace without = trace_of(7, {kTorn});
  CHECK(of_rule(with, "torn").size() > 10);
  CHECK(of_rule(with, "torn") == of_rule(without, "torn"));
  CHECK(of_rule(without, "flip").empty());
}

TEST_CASE("Idle rules change nothing, not even timing", "[fault][engine]") {
  const Trace none = trace_of(7, {});
  const Trace idle = trace_of(7, {"at=enclosure p=0 do=hang", "at=drive:d0 enabled=no do=fail",
                                  "at=drive:d1 op=any p=0 do=slow latency=5ms from=1us",
                                  "at=enclosure p=0 do=power.cut", "at=drive p=0 lba=1 do=lse"});
  CHECK(idle.journal.empty());
  CHECK(none.hash == idle.hash);
  CHECK(none.ended == idle.ended);
}

#define ENGINE_TEST(name, call)                        \
  TEST_CASE(name, "[fault][engine]") {                 \
    run_bench(1, [](Executor& home) { return call; }); \
  }

ENGINE_TEST("Rules match operations by what they are", matching(home))
ENGINE_TEST("after, every, count and p", counting(home))
ENGINE_TEST("from, until and for", times(home))
ENGINE_TEST("Named events and probes", events(home))
ENGINE_TEST("State variables", states(home))
ENGINE_TEST("then: faults convert and correlate", conversions(home))
ENGINE_TEST("What does not exist is refused in one line", refusals(home))
ENGINE_TEST("within=tolerance asks who knows", tolerance(home))
ENGINE_TEST("A drive that no rule concerns is passed on without a frame", direct(home))
ENGINE_TEST("A drive keeps its number, and its successor gets it", numbers(home))
ENGINE_TEST("Rules are switched off and on", switched(home))

TEST_CASE("The journal keeps the newest", "[fault][engine]") {
  Journal journal(3);
  for (int i = 0; i < 5; ++i) journal.append({.rule = std::to_string(i)});
  CHECK(journal.total() == 5);
  REQUIRE(journal.entries().size() == 3);
  CHECK(journal.entries().front().rule == "2");
  CHECK(journal.entries().front().number == 3);
  CHECK(describe({.rule = "r7",
                  .fault = Fault::kTorn,
                  .target = "drive 3",
                  .operation = 9,
                  .extent = {16, 8},
                  .effect = "3 of 8 blocks kept"}) ==
        "drive 3: fault r7 fired: torn, 3 of 8 blocks kept (operation 9, blocks 16+8)");
}

}  // namespace sandbay::fault
