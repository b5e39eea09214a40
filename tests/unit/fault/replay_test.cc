// Firings as rules: they do the same to the same operations, without any chance.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "bench.h"

namespace sandbay::fault {
namespace {

using std::chrono::microseconds;

// One run of operations that a seed draws. `meanwhile` acts before each of them.
Task<void> work(Bench& bench, std::uint64_t seed, std::function<void(int)> meanwhile) {
  Random random(seed);
  for (int i = 0; i < 300; ++i) {
    meanwhile(i);
    BlockDevice& drive = bench.layer(random.below(3));
    const Lba first = random.below(kBlocks - 8);
    const std::uint64_t drawn = random.below(10);
    if (drawn < 5) {
      (void)co_await write_value(drive, first, 1, 8);
    } else if (drawn < 9) {
      (void)co_await read_error(drive, {first, 8});
    } else {
      (void)co_await do_plainly(drive, Operation::kFlush);
    }
    co_await bench.home.sleep_for(microseconds(random.below(500)));
  }
}

std::string text_of(const Journal& journal) {
  std::string text;
  for (const Firing& firing : journal.entries()) {
    text += fmt::format("{} {} {}\n", firing.number, firing.time.time_since_epoch().count(),
                        describe(firing));
  }
  return text;
}

Task<void> fire_again(Executor& home, std::uint64_t seed, std::size_t* fired) {
  const FaultEngineOptions options{.seed = seed};
  std::string journal;
  Replay replay;
  const TimePoint begun = home.now();
  {
    Bench bench(home, options);
    bench.add("id=torn at=drive:d0 op=write p=0.2 do=torn");
    bench.add("id=flip at=drive op=read p=0.1 where=read do=flip bits=3");
    bench.add("id=slow at=drive:d0 op=read after=3 every=2 p=0.5 do=slow latency=1ms..5ms");
    bench.add("id=pull at=drive:d2 after=20 do=pull for=3ms");
    bench.add("id=far at=drive:d1 op=write p=0.1 count=4 do=misdirect.write");
    bench.add("id=never at=drive p=0.5 lba=0+1 length=2000 do=fail");
    co_await work(bench, seed, [&](int i) {
      if (i == 60) bench.add("id=late at=drive:d1 op=write p=0.3 do=lost");
      if (i == 61) bench.add("id=once at=drive:d1 after=30 do=smart");
      if (i == 120) bench.engine.clear("torn");
      if (i == 200) bench.engine.clear("late");
    });
    journal = text_of(bench.engine.journal());
    *fired += bench.engine.journal().total();
    replay = bench.engine.replay();
    for (const auto& drive : bench.drives) co_await drive.layer->drain();
    bench.engine.clear_all();
  }
  CHECK(replay.complete);
  Bench bench(home, options);
  const Duration shift = home.now() - begun;
  const auto added = bench.engine.add_all(replay.rules);
  INFO(fmt::format("seed {}: {}", seed, fmt::join(replay.rules, "\n")));
  REQUIRE(added.has_value());
  co_await work(bench, seed, [](int) {});
  std::string again;
  for (Firing firing : bench.engine.journal().entries()) {
    firing.time -= shift;
    again += fmt::format("{} {} {}\n", firing.number, firing.time.time_since_epoch().count(),
                         describe(firing));
  }
  CHECK(again == journal);
  for (const auto& drive : bench.drives) co_await drive.layer->drain();
  bench.engine.clear_all();
}

// Whether the replay is complete after `act`, and what it has.
Task<Replay> replay_after(Executor& home, std::function<Task<void>(Bench&)> act) {
  Bench bench(home);
  co_await act(bench);
  const Replay replay = bench.engine.replay();
  bench.engine.clear_all();
  for (const auto& drive : bench.drives) co_await drive.layer->drain();
  co_return replay;
}

Task<void> one_operation(Bench& bench) {
  (void)co_await do_plainly(bench.layer(), Operation::kFlush);
  co_await bench.home.sleep_for(microseconds(1000));
}

Task<void> say_what_is_missing(Executor& home) {
  Replay replay = co_await replay_after(home, [](Bench& bench) -> Task<void> {
    bench.add("id=a at=drive:d0 do=smart");
    co_return;
  });
  CHECK(replay.complete);
  CHECK(replay.rules == std::vector<std::string>{"rule id=a at=drive:d0 do=smart"});
  replay = co_await replay_after(home, [](Bench& bench) -> Task<void> {
    bench.add("id=a at=drive:d0 do=smart");
    bench.engine.enable("a", false);
    co_return;
  });
  CHECK(replay.complete);
  REQUIRE(replay.rules.size() == 1);
  CHECK(replay.rules[0].starts_with("rule id=a at=drive:d0 until="));
  replay = co_await replay_after(home, [](Bench& bench) -> Task<void> {
    bench.add("id=a at=drive:d0 do=smart");
    bench.engine.enable("a", false);
    bench.engine.enable("a", true);
    co_return;
  });
  CHECK_FALSE(replay.complete);
  // Enabled before it has seen anything, it counts from then on.
  replay = co_await replay_after(home, [](Bench& bench) -> Task<void> {
    bench.add("id=a enabled=no at=drive:d0 do=smart");
    co_await one_operation(bench);
    bench.engine.enable("a", true);
  });
  CHECK(replay.complete);
  REQUIRE(replay.rules.size() == 1);
  CHECK(replay.rules[0].starts_with("rule id=a at=drive:d0 from="));
  // Clearing a rule while it lasts starts no follow-up, nor does the replay.
  replay = co_await replay_after(home, [](Bench& bench) -> Task<void> {
    bench.add("id=b at=drive:d1 event=then do=smart");
    bench.add("id=a at=drive:d0 do=smart for=1s then=rule:b");
    co_await one_operation(bench);
    bench.engine.clear("a");
  });
  CHECK(replay.complete);
  REQUIRE(replay.rules.size() == 1);
  CHECK(replay.rules[0].find("then=") == std::string::npos);
  // It remembers data of its own time.
  replay = co_await replay_after(home, [](Bench& bench) -> Task<void> {
    co_await one_operation(bench);
    bench.add("id=a at=drive:d0 lba=0+8 from=1ns do=stale");
    co_await one_operation(bench);
  });
  CHECK_FALSE(replay.complete);
  // An id without a name is not used again.
  replay = co_await replay_after(home, [](Bench& bench) -> Task<void> {
    CHECK(bench.add("at=drive:d0 do=smart") == "r1");
    bench.engine.clear("r1");
    CHECK(bench.add("at=drive:d1 do=smart") == "r2");
    co_return;
  });
  CHECK(replay.complete);
  CHECK(replay.rules.size() == 2);
  replay = co_await replay_after(home, [](Bench& bench) -> Task<void> {
    bench.add("id=a at=drive:d0 do=smart");
    bench.engine.heal("d1");
    co_return;
  });
  CHECK_FALSE(replay.complete);
}

Task<void> fire_by_number(Executor& home) {
  Bench bench(home);
  bench.add("id=n at=drive:d0 op=flush matches=2,3,7 do=nothing");
  std::string fired;
  for (int i = 0; i < 8; ++i) {
    const std::uint64_t before = bench.counters("n").fired;
    (void)co_await do_plainly(bench.layer(), Operation::kFlush);
    fired += bench.counters("n").fired > before ? 'x' : '.';
  }
  CHECK(fired == ".xx...x.");
}

}  // namespace

TEST_CASE("What has fired fires again by the rules of a replay", "[fault][replay]") {
  std::size_t fired = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    run_bench(seed, [&](Executor& home) { return fire_again(home, seed, &fired); });
  }
  CHECK(fired > 40 * 30);
}

TEST_CASE("A replay says when it is not complete", "[fault][replay]") {
  run_bench(1, say_what_is_missing);
}

TEST_CASE("A rule fires at the matches that it names", "[fault][replay]") {
  run_bench(1, fire_by_number);
}

}  // namespace sandbay::fault
