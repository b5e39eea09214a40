// Rules at LUNs: sites decide by themselves, on any executor, and the engine hears of it. The same
// seed and the same commands give the same journal, whichever executors the LUNs are on.
#include "fault/site.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "../block/on_executor.h"
#include "fault/engine.h"
#include "fault/traits.h"
#include "runtime/simulation.h"

namespace sandbay::fault {
namespace {

using sandbay::testing::run_in_world;
using std::chrono::microseconds;
using std::chrono::milliseconds;

Occasion read_of(Lba first, std::uint64_t count = 8) {
  return {.opcode = 0x28,
          .operation = bit(Operation::kRead),
          .extent = {.first = first, .block_count = count},
          .initiator = "iqn.1993-08.org.debian:01:host",
          .depth = 1,
          .name = "READ(10)"};
}

Occasion write_of(Lba first, std::uint64_t count = 8) {
  Occasion occasion = read_of(first, count);
  occasion.opcode = 0x2a;
  occasion.operation = bit(Operation::kWrite);
  occasion.name = "WRITE(10)";
  return occasion;
}

std::vector<Place> lun(std::string name) {
  return {{.kind = Place::Kind::kLun, .name = std::move(name)}};
}

std::string add(FaultEngine& engine, const std::string& text) {
  const auto id = engine.add(text);
  INFO(text);
  if (!id.has_value()) FAIL(id.error());
  return *id;
}

const Rule* judge(Site& site, const Occasion& occasion) {
  const std::uint8_t code = occasion.pdu ? *occasion.pdu : occasion.opcode.value_or(0);
  for (const Stage stage : {Stage::kArrival, Stage::kAttention, Stage::kStart}) {
    if (!site.looks_at(stage, code, occasion.operation)) continue;
    const Rule* const rule = site.judge(occasion, stage, kEveryFault);
    if (rule != nullptr) return rule;
  }
  return nullptr;
}

// The id of the rule that strikes, or nothing.
std::string struck(Site& site, const Occasion& occasion) {
  const Rule* const rule = judge(site, occasion);
  return rule == nullptr ? "" : rule->id;
}

// Commands of one LUN at times of its own.
Task<void> work(std::shared_ptr<Post> post, std::uint64_t seed, std::string name, TimePoint begin,
                std::size_t* struck_count) {
  const std::shared_ptr<Site> site = post->make_site(lun(name));
  Random random(seed);
  TimePoint time = begin;
  for (int i = 0; i < 200; ++i) {
    time += microseconds(1 + random.below(300));
    co_await Executor::current().sleep_until(time);
    const Lba first = random.below(1000);
    const Occasion occasion = random.chance(0.5) ? read_of(first) : write_of(first);
    if (judge(*site, occasion) != nullptr) ++*struck_count;
  }
}

struct Told {
  std::string journal;
  std::string counters;
  std::size_t struck = 0;
};

Task<void> tell(std::span<Executor* const> executors, std::uint64_t seed, Told* told) {
  Executor& home = *executors[0];
  const TimePoint begin = home.now() + milliseconds(2);
  FaultEngine engine(home, {.seed = seed, .journal_entries = 100'000});
  const std::vector<std::string> rules{
      "id=p at=lun p=0.1 op=write do=aborted",
      "id=one at=lun:b after=5 every=3 count=9 do=busy",
      "id=pattern at=lun:*c opcode=0x28 p=0.3 for=1ms do=check key=3 code=11/00",
      "id=area at=lun:a lba=100+200 do=check key=3 code=11/00",
      "id=window at=lun from=5ms until=9ms p=0.5 do=notready",
      "id=count at=lun op=read do=nothing"};
  REQUIRE(engine.add_all(rules).has_value());
  co_await engine.settle();
  CHECK(home.now() < begin);
  constexpr std::array kNames{"a", "b", "c", "cc"};
  std::array<std::size_t, kNames.size()> struck_count{};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    Executor& executor = *executors[i % executors.size()];
    spawn(invoke_on(executor,
                    work(engine.post(executor), seed + i, kNames[i], begin, &struck_count[i])));
  }
  co_await home.sleep_until(begin + milliseconds(100));
  std::vector<std::string> lines;
  for (const Firing& firing : engine.journal().entries()) {
    lines.push_back(fmt::format("{:012} {}", (firing.time - begin).count(), describe(firing)));
  }
  std::ranges::sort(lines);
  told->journal = fmt::format("{}", fmt::join(lines, "\n"));
  for (const RuleView& view : engine.list()) {
    told->counters += fmt::format("{} {} {} {}\n", view.id, view.counters.matched,
                                  view.counters.fired, view.counters.struck);
  }
  for (const std::size_t count : struck_count) told->struck += count;
}

Told run(std::uint64_t seed, unsigned executors) {
  const auto world = sim::World::create({.seed = seed, .executors = executors});
  Told told;
  const bool ended = world->run([&] { return tell(world->executors(), seed, &told); });
  REQUIRE(ended);
  return told;
}

Task<void> match(Executor& home) {
  FaultEngine engine(home, {});
  const auto site = engine.post(home)->make_site(lun("db1"));
  CHECK(site->quiet());
  add(engine, "id=code at=lun:db1 opcode=0x2a,0x8a do=busy count=1");
  add(engine, "id=other at=lun:db2 do=busy");
  add(engine, "id=host at=lun:db? initiator=*:host op=read lba=10+10 length=8 depth=2.. do=busy");
  add(engine, "id=fua at=lun fua=yes do=busy");
  co_await engine.settle();
  CHECK_FALSE(site->quiet());
  CHECK(struck(*site, write_of(0)) == "code");
  CHECK(struck(*site, write_of(0)).empty());  // Once.
  Occasion occasion = read_of(18);
  occasion.depth = 2;
  CHECK(struck(*site, occasion) == "host");
  CHECK(struck(*site, read_of(18)).empty());  // Alone in the task set.
  occasion.initiator = "iqn.1993-08.org.debian:01:hosts";
  CHECK(struck(*site, occasion).empty());
  occasion = read_of(20);
  occasion.depth = 2;
  CHECK(struck(*site, occasion).empty());
  occasion = read_of(0);
  occasion.force_unit_access = true;
  CHECK(struck(*site, occasion) == "fua");
  occasion.always_served = true;
  CHECK(struck(*site, occasion).empty());
  site->rename("db2");
  CHECK(struck(*site, read_of(0)) == "other");
  engine.clear_all();
  co_await engine.settle();
  CHECK(site->quiet());
}

// A strike that lasts ends with its time, with clearing and with disabling; and begins again.
Task<void> last(Executor& home) {
  FaultEngine engine(home, {});
  const auto site = engine.post(home)->make_site(lun("a"));
  add(engine, "id=b at=lun after=1 count=1 do=busy for=10ms");
  co_await engine.settle();
  CHECK(struck(*site, read_of(0)).empty());
  CHECK(struck(*site, read_of(0)) == "b");
  co_await home.sleep_for(milliseconds(9));
  CHECK(struck(*site, read_of(0)) == "b");
  CHECK(engine.view("b")->active);
  co_await home.sleep_for(milliseconds(1));
  CHECK(struck(*site, read_of(0)).empty());
  CHECK_FALSE(engine.view("b")->active);
  CHECK(engine.view("b")->counters == Counters{.matched = 4, .fired = 1, .struck = 2});
  CHECK(engine.journal().total() == 2);
  add(engine, "id=c at=lun matches=1 do=busy for=10ms");
  co_await engine.settle();
  CHECK(struck(*site, read_of(0)) == "c");
  engine.enable("c", false);
  CHECK(struck(*site, read_of(0)).empty());
  engine.enable("c", true);
  CHECK(struck(*site, read_of(0)).empty());
}

// Events, states, followers and timers of the engine reach the sites, and firings reach the engine.
Task<void> follow(Executor& home) {
  FaultEngine engine(home, {});
  const auto site = engine.post(home)->make_site(lun("a"));
  add(engine, "id=after at=lun event=rebuild.start count=1 do=busy then=rule:then set=broken");
  add(engine, "id=then at=lun event=then count=1 do=aborted for=2ms then=rule:last");
  add(engine, "id=last at=lun event=then count=1 do=notready");
  add(engine, "id=state at=lun state=broken op=write do=taskfull");
  add(engine, "id=heard at=lun event=rule:last do=reservation.conflict");
  co_await engine.settle();
  CHECK(struck(*site, write_of(0)).empty());
  engine.notify("rebuild.start");
  CHECK(struck(*site, read_of(0)) == "after");
  co_await home.sleep_for(microseconds(100));
  CHECK(struck(*site, read_of(0)) == "then");
  CHECK(struck(*site, read_of(0)) == "then");
  co_await home.sleep_for(milliseconds(3));
  CHECK(struck(*site, read_of(0)) == "last");
  CHECK(struck(*site, write_of(0)) == "state");
  CHECK(struck(*site, write_of(0)) == "state");
  co_await home.sleep_for(microseconds(100));
  CHECK(struck(*site, read_of(0)) == "heard");
  engine.set_state("broken", 0);
  CHECK(struck(*site, write_of(0)) == "heard");
}

// Every rule counts and draws what fits, whichever answers; one more does not shift the others.
Task<void> independent(Executor& home) {
  std::string alone;
  std::string beside;
  for (std::string* const fired : {&alone, &beside}) {
    FaultEngine engine(home, {});
    const auto site = engine.post(home)->make_site(lun("a"));
    if (fired == &beside) add(engine, "id=other at=lun p=0.5 do=notready");
    add(engine, "id=p at=lun after=3 p=0.3 do=aborted");
    co_await engine.settle();
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t before =
          engine.view("p")->counters.fired + engine.view("p")->counters.spared;
      (void)judge(*site, read_of(0));
      const Counters after = engine.view("p")->counters;
      *fired += after.fired + after.spared > before ? 'x' : '.';
    }
  }
  CHECK(alone == beside);
}

// count= is for all sites together; after= is for each.
Task<void> shared_count(Executor& home) {
  FaultEngine engine(home, {});
  const auto one = engine.post(home)->make_site(lun("a"));
  const auto two = engine.post(home)->make_site(lun("b"));
  add(engine, "id=n at=lun after=1 count=2 do=busy");
  co_await engine.settle();
  std::string fired;
  for (int i = 0; i < 4; ++i) {
    for (Site* const site : {one.get(), two.get()}) {
      fired += struck(*site, read_of(0)).empty() ? '.' : 'x';
    }
  }
  CHECK(fired == "..xx....");
}

// A fault that lasts at several places: the follower comes with the end of the first.
Task<void> last_at_two(Executor& home) {
  FaultEngine engine(home, {});
  const auto one = engine.post(home)->make_site(lun("a"));
  const auto two = engine.post(home)->make_site(lun("b"));
  add(engine, "id=b at=lun do=busy for=10ms then=rule:t");
  add(engine, "id=t at=lun:a event=then do=nothing set=over");
  co_await engine.settle();
  for (int i = 0; i < 5; ++i) {
    CHECK(struck(*(i % 2 == 0 ? one : two), read_of(0)) == "b");
    co_await home.sleep_for(milliseconds(3));
  }
  CHECK(struck(*one, read_of(0)) == "b");
  co_await home.sleep_for(microseconds(100));
  CHECK(engine.state("over") == 1);
}

// It was cleared or disabled while firings were on their way: the journal has them, and they begin
// nothing.
Task<void> late(Executor& home) {
  FaultEngine engine(home, {});
  const auto site = engine.post(home)->make_site(lun("a"));
  add(engine, "id=a at=lun count=1 do=busy set=seen for=1s");
  add(engine, "id=b at=lun count=1 do=busy set=seen for=1s");
  co_await engine.settle();
  CHECK(struck(*site, read_of(0)) == "a");
  engine.enable("a", false);
  CHECK(struck(*site, read_of(0)) == "b");
  engine.clear("b");
  co_await home.sleep_for(milliseconds(1));
  CHECK(engine.journal().total() == 2);
  CHECK(engine.state("seen") == 0);
  CHECK_FALSE(engine.view("a")->active);
  CHECK_FALSE(engine.replay().complete);
}

// A connection is at three places, and its rules look at PDUs.
Task<void> connections(Executor& home) {
  FaultEngine engine(home, {});
  const auto site = engine.post(home)->make_site(
      {{.kind = Place::Kind::kConnection, .name = "3.1"},
       {.kind = Place::Kind::kSession, .name = "iqn.2026-11.org.example:one"},
       {.kind = Place::Kind::kLink, .name = "[::1]:3260"}});
  const auto pdu = [](std::uint8_t opcode) {
    Occasion occasion{.pdu = opcode, .initiator = "iqn.2026-11.org.example:one", .name = "pdu"};
    if (opcode == 0x01) occasion.opcode = 0x2a;
    if (opcode == 0x01 || opcode == 0x31) occasion.lun = 7;
    return occasion;
  };
  const std::vector<std::pair<std::string, std::vector<std::uint8_t>>> cases{
      {"at=conn:3.1 do=drop", {0x00, 0x01, 0x05, 0x20, 0x25, 0x31, 0x3f}},
      {"at=conn:3.2 do=drop", {}},
      {"at=conn:3.* pdu=data-in,r2t do=drop", {0x25, 0x31}},
      {"at=session:*:one dir=out do=pdu.drop", {0x20, 0x25, 0x31, 0x3f}},
      {"at=session:*:two do=pdu.drop", {}},
      {"at=link:[::1]:3260 dir=in do=pdu.drop", {0x00, 0x01, 0x05}},
      {"at=link opcode=0x2a do=pdu.drop", {0x01}},
      {"at=link opcode=0x28 do=pdu.drop", {}},
      {"at=link lun=7 do=pdu.drop", {0x01, 0x31}},
      {"at=link lun=7 dir=out do=pdu.drop", {0x31}},
      {"at=link initiator=*:two do=pdu.drop", {}}};
  for (const auto& [text, expected] : cases) {
    engine.clear_all();
    add(engine, text);
    co_await engine.settle();
    std::vector<std::uint8_t> seen;
    for (const std::uint8_t opcode : {0x00, 0x01, 0x05, 0x20, 0x25, 0x31, 0x3f}) {
      if (judge(*site, pdu(opcode)) != nullptr) seen.push_back(opcode);
    }
    INFO(text);
    CHECK(seen == expected);
    CHECK(site->quiet() == (text.find(":3.2") != std::string::npos ||
                            text.find("session:*:two") != std::string::npos));
  }
  // In the order of adding, wherever they name it.
  engine.clear_all();
  add(engine, "id=x at=link p=0.5 do=nothing");
  add(engine, "id=a at=session:iqn.2026-11.org.example:one do=pdu.delay latency=1ms..9ms");
  add(engine, "id=b at=conn:3.1 do=drop");
  co_await engine.settle();
  for (int i = 0; i < 20; ++i) {
    CHECK(site->judge(pdu(0x25), Stage::kArrival, kEveryFault)->id == "a");
    const Duration time = site->draw({.least = milliseconds(1), .most = milliseconds(9)});
    CHECK(time >= milliseconds(1));
    CHECK(time <= milliseconds(9));
  }
  CHECK(engine.view("b")->counters.spared == 20);
  CHECK(site->judge(pdu(0x25), Stage::kArrival, FaultSet{Fault::kDrop})->id == "b");
}

// Ten thousand rules that concern every LUN.
Task<void> many_everywhere(Executor& home) {
  FaultEngine engine(home, {});
  std::vector<std::shared_ptr<Site>> sites;
  for (int i = 0; i < 1000; ++i) {
    sites.push_back(engine.post(home)->make_site(lun(fmt::format("v{}", i))));
  }
  const std::vector<std::string> rules(kMostRules, "at=lun opcode=0x2a do=busy");
  REQUIRE(engine.add_all(rules).has_value());
  co_await engine.settle();
  CHECK(struck(*sites[7], read_of(0)).empty());
  CHECK(struck(*sites[7], write_of(0)) == "r1");
  CHECK(engine.view("r2")->counters.spared == 1);
  engine.clear_all();
  co_await engine.settle();
  CHECK(sites[7]->quiet());
}

// The engine goes while rules and firings are on their way.
Task<void> end(std::span<Executor* const> executors) {
  Executor& home = *executors[0];
  std::shared_ptr<Site> far;
  {
    FaultEngine engine(home, {});
    add(engine, "at=lun do=busy");
    co_await engine.settle();
    struct Make {
      static Task<std::shared_ptr<Site>> run(std::shared_ptr<Post> post) {
        co_return post->make_site(lun("a"));
      }
      static Task<void> strike(std::shared_ptr<Site> site) {
        for (int i = 0; i < 300; ++i) (void)judge(*site, read_of(0));
        co_return;
      }
    };
    far = co_await invoke_on(*executors[1], Make::run(engine.post(*executors[1])));
    spawn(invoke_on(*executors[1], Make::strike(far)));
    co_await home.yield();
    add(engine, "at=lun do=aborted");
  }
  co_await home.sleep_for(milliseconds(1));
}

// More fires than the journal takes: the counters have it all, and the journal says that it has
// not.
Task<void> flood(Executor& home) {
  FaultEngine engine(home, {.journal_entries = 100});
  const auto site = engine.post(home)->make_site(lun("a"));
  add(engine, "id=b at=lun do=busy");
  co_await engine.settle();
  CHECK(engine.replay().complete);
  for (int i = 0; i < 5000; ++i) CHECK(struck(*site, read_of(0)) == "b");
  co_await home.sleep_for(milliseconds(1));
  CHECK(engine.view("b")->counters.struck == 5000);
  CHECK(engine.journal().total() == 257);
  CHECK(engine.journal().entries().size() == 100);
  CHECK_FALSE(engine.replay().complete);
}

// A draw of chance becomes a rule without chance.
Task<void> replay(Executor& home) {
  std::string fired;
  Replay said;
  {
    FaultEngine engine(home, {});
    const auto site = engine.post(home)->make_site(lun("a"));
    add(engine, "id=p at=lun:* op=read p=0.2 do=busy");
    co_await engine.settle();
    for (int i = 0; i < 100; ++i) fired += struck(*site, read_of(0)).empty() ? '.' : 'x';
    co_await home.sleep_for(milliseconds(1));
    said = engine.replay();
  }
  CHECK(said.complete);
  REQUIRE(said.rules.size() == 1);
  CHECK(said.rules[0].find(" at=lun:a ") != std::string::npos);
  FaultEngine engine(home, {.seed = 2});
  const auto site = engine.post(home)->make_site(lun("a"));
  add(engine, said.rules[0]);
  co_await engine.settle();
  std::string again;
  for (int i = 0; i < 100; ++i) again += struck(*site, read_of(0)).empty() ? '.' : 'x';
  CHECK(again == fired);
}

Task<void> many(Executor& home) {
  FaultEngine engine(home, {});
  std::vector<std::shared_ptr<Site>> sites;
  for (int i = 0; i < 100; ++i) {
    sites.push_back(engine.post(home)->make_site(lun(fmt::format("v{}", i))));
  }
  std::vector<std::string> rules;
  for (std::size_t i = 0; i < kMostRules; ++i) {
    rules.push_back(fmt::format("id=x{} at=lun:{} lba={}+8 do=busy", i,
                                i % 2 == 0 ? fmt::format("v{}", i % 100) : "w*", i * 8));
  }
  REQUIRE(engine.add_all(rules).has_value());
  co_await engine.settle();
  CHECK(struck(*sites[4], read_of(8 * 5004)) == "x5004");
  CHECK(struck(*sites[4], read_of(8 * 5005)).empty());
  CHECK(struck(*sites[5], read_of(8 * 5004)).empty());
  const auto more = engine.add("at=lun do=busy");
  REQUIRE_FALSE(more.has_value());
  CHECK(more.error() == "up to 10000 rules are possible; clear others first");
  CHECK(engine.list().size() == kMostRules);
  sites.clear();
  engine.clear_all();
  co_await engine.settle();
}

// A set with a wrong rule leaves nothing behind.
Task<void> refuse(Executor& home) {
  FaultEngine engine(home, {});
  const auto site = engine.post(home)->make_site(lun("a"));
  REQUIRE_FALSE(
      engine.add_all(std::vector<std::string>{"id=a at=lun do=busy", "id=a at=lun do=aborted"})
          .has_value());
  co_await engine.settle();
  CHECK(site->quiet());
  CHECK(engine.list().empty());
}

}  // namespace

TEST_CASE("sites decide the same on one executor and on two", "[fault]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Told one = run(seed, 1);
    const Told two = run(seed, 2);
    INFO("seed " << seed);
    CHECK(one.journal == two.journal);
    CHECK(one.counters == two.counters);
    CHECK(one.struck == two.struck);
    CHECK(one.struck > 100);
    CHECK(one.journal == run(seed, 3).journal);
  }
}

TEST_CASE("rules match commands of LUNs", "[fault]") { run_in_world(1, match); }
TEST_CASE("strikes at LUNs last and end", "[fault]") { run_in_world(1, last); }
TEST_CASE("rules at LUNs follow others", "[fault]") { run_in_world(1, follow); }
TEST_CASE("rules at LUNs do not shift one another", "[fault]") { run_in_world(1, independent); }
TEST_CASE("rules count at all LUNs together", "[fault]") { run_in_world(1, shared_count); }
TEST_CASE("a fault that lasts at two LUNs is followed once", "[fault]") {
  run_in_world(1, last_at_two);
}
TEST_CASE("firings that come late begin nothing", "[fault]") { run_in_world(1, late); }
TEST_CASE("rules match PDUs of connections", "[fault]") { run_in_world(1, connections); }
TEST_CASE("ten thousand rules for a thousand LUNs", "[fault]") { run_in_world(1, many_everywhere); }
TEST_CASE("an engine ends before its sites", "[fault]") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const auto world = sim::World::create({.seed = seed, .executors = 2});
    CHECK(world->run([&] { return end(world->executors()); }));
  }
}
TEST_CASE("a flood of firings is counted", "[fault]") { run_in_world(1, flood); }
TEST_CASE("firings at LUNs are said again as rules", "[fault]") { run_in_world(1, replay); }
TEST_CASE("ten thousand rules at LUNs", "[fault]") { run_in_world(1, many); }
TEST_CASE("a wrong set leaves nothing at LUNs", "[fault]") { run_in_world(1, refuse); }

}  // namespace sandbay::fault
