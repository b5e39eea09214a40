// Goal: with integrity, silent corruption is always detected, repaired within redundancy, never
// repaired wrongly, and a host never gets wrong bytes.
// Method: a seed chooses a level, its drives, and a run of corruptions of every kind, each in what
// was just written, found by a read or by verify. At the end every drive holds what it was asked
// to, the host gets what it wrote, and verify finds nothing more. SANDBAY_SEEDS=1:500 makes 100,000
// corruptions.
#include <fmt/core.h>
#include <catch2/catch.hpp>

#include "../unit/raid/integrity_rig.h"
#include "seeds.h"

namespace sandbay::simtest {
namespace {

using raidtest::Corruption;
using raidtest::CorruptionRound;
using raidtest::IntegrityRig;
using raidtest::RigShape;
using raidtest::Tally;

constexpr std::uint64_t kUsualSeeds = 24;
constexpr unsigned kRounds = 220;

const std::vector<RigShape> kShapes = {
    {.level = raid::Level::kRaid5, .drives = 3},
    {.level = raid::Level::kRaid6, .drives = 5},
    {.level = raid::Level::kRaid1, .drives = 2},
    {.level = raid::Level::kRaid10, .drives = 4},
    {.level = raid::Level::kRaid50, .drives = 6, .groups = 2},
    {.level = raid::Level::kRaid60, .drives = 8, .groups = 2},
    {.level = raid::Level::kRaid5, .drives = 5, .strip_bytes = 4096},
    {.level = raid::Level::kRaid1, .drives = 3, .strip_bytes = 32768},
    {.level = raid::Level::kRaid0, .drives = 4},
    {.level = raid::Level::kJbod, .drives = 1},
    {.level = raid::Level::kConcatenation, .drives = 2},
};

Task<void> run(Executor* home, std::uint64_t seed, Tally* tally, std::string* wrong) {
  Random random(seed);
  RigShape shape = kShapes[seed % kShapes.size()];
  shape.latency = Duration::zero();
  shape.drive_bytes = std::uint64_t{3} << 20;
  if (random.chance(0.3)) shape.cache_bytes = 32 << 10;  // Blocks come and go.
  IntegrityRig rig(*home, shape);
  const bool created = co_await rig.create();
  if (!created) *wrong = "the set cannot be made";
  if (created) co_await rig.settle();
  for (unsigned round = 0; round < kRounds && wrong->empty(); ++round) {
    CorruptionRound one(rig, random, *tally);
    const auto kind = static_cast<Corruption>(random.below(raidtest::kCorruptions));
    const std::string text = co_await one.run(kind, random.chance(0.6));
    if (!text.empty()) {
      *wrong = fmt::format("{} drives {}, round {}, kind {}: {}", describe(shape.level),
                           shape.drives, round, static_cast<unsigned>(kind), text);
    }
  }
  if (wrong->empty()) {
    const std::uint64_t mismatches = rig.set->counters().mismatches;
    co_await rig.settle();
    *wrong = co_await rig.check_everything();
    if (wrong->empty() && rig.corrupt_cells() > 0) *wrong = "cells are corrupt at the end";
    if (wrong->empty() && !rig.integrity_areas_right()) *wrong = "entries differ at the end";
    if (wrong->empty() && rig.set->counters().mismatches != mismatches) {
      *wrong = "redundancy does not match at the end";
    }
    if (wrong->empty() && rig.set->counters().lost_blocks != 0) *wrong = "blocks were lost";
  }
  if (created) co_await rig.close();
}

}  // namespace

TEST_CASE("silent corruption is detected, repaired and never passed on", "[raid][sim]") {
  Tally all;
  const std::uint64_t failures = run_seeds("sim-raid-corruption", kUsualSeeds, [&](auto seed) {
    std::string wrong;
    Tally tally;
    const auto world = sim::World::create({.seed = seed});
    Executor& home = *world->executors()[0];
    const bool ended = world->run([&] { return run(&home, seed, &tally, &wrong); });
    all.injected += tally.injected;
    all.detected += tally.detected;
    all.repaired += tally.repaired;
    all.honest_errors += tally.honest_errors;
    return ended || !wrong.empty() ? wrong : std::string("it did not end");
  });
  fmt::print("{} corruptions, {} detected, {} repaired, {} honest errors without redundancy\n",
             all.injected, all.detected, all.repaired, all.honest_errors);
  CHECK(failures == 0);
  CHECK(all.injected == all.detected);
  CHECK(all.injected > 0);
}

}  // namespace sandbay::simtest
