// Assembly by brute force. Goal: a drive that has missed an acknowledged write is never taken for
// current, and a set all of whose drives are there always starts, wherever the power failed.
// Method: a model of a set's life that knows the truth (assembly_model.h); once with lives drawn
// from seeds, once with all cuts of the first events of small sets.
#include <catch2/catch.hpp>

#include "assembly_model.h"

namespace sandbay::raid::testing::assembly_life_test {
namespace {

struct Shape {
  Level level;
  unsigned drives;
};

std::string told(const Assembly& assembly) {
  std::string text;
  for (const std::string& line : assembly.lines) text += line + "\n";
  return text;
}

TEST_CASE("a drive that missed writes is never current, in random lives", "[raid][assembly]") {
  const Shape shape =
      GENERATE(Shape{Level::kRaid1, 2}, Shape{Level::kRaid1, 4}, Shape{Level::kRaid5, 3},
               Shape{Level::kRaid5, 5}, Shape{Level::kRaid6, 4}, Shape{Level::kRaid6, 6},
               Shape{Level::kRaid10, 4}, Shape{Level::kRaid50, 6});
  CAPTURE(describe(shape.level), shape.drives);
  unsigned started = 0;
  unsigned refused = 0;
  unsigned returned = 0;
  for (std::uint64_t seed = 1; seed <= 250; ++seed) {
    CAPTURE(seed);
    const bool owner = seed % 4 != 0;
    SetModel model(shape.level, shape.drives, seed, owner);
    Random choices(seed + 1000);
    for (int cycle = 0; cycle < 12; ++cycle) {
      std::uint64_t present = model.all();
      const double there = !owner || choices.chance(0.3) ? 1.0 : 0.8;
      for (std::size_t at = 0; at < model.drive_count(); ++at) {
        if (!choices.chance(there)) present &= ~(std::uint64_t{1} << at);
      }
      for (const std::uint64_t view : {model.all(), present}) {
        const Assembly assembly = model.look(view);
        CAPTURE(cycle, told(assembly));
        if (!model.truthful(assembly)) FAIL("a drive that missed writes is called current");
        if (view != model.all()) continue;
        REQUIRE(assembly.sets.size() == 1);
        if (!assembly.sets[0].startable) FAIL("all drives are there and it does not start");
      }
      const Assembly assembly = model.look(present);
      if (assembly.sets.empty() || !assembly.sets[0].startable) {
        ++refused;
        continue;
      }
      ++started;
      for (const AssembledRole& role : assembly.sets[0].roles) {
        returned += role.verdict == Verdict::kReturning ? 1 : 0;
      }
      auto fuse = static_cast<unsigned>(choices.below(choices.chance(0.4) ? 12 : 120));
      bool running = model.start(assembly.sets[0], &fuse, choices.chance(0.6));
      while (running && choices.chance(0.97)) running = model.act();
    }
  }
  CHECK(started > 1000);
  CHECK(refused > 50);
  CHECK(returned > 100);
}

// One more start with all present and cut subsets, then all of what may be there afterwards.
void all_cuts(const SetModel& before, unsigned starts, std::uint64_t* checked) {
  for (std::uint64_t present = 1; present <= before.all(); ++present) {
    const Assembly assembly = before.look(present);
    ++*checked;
    if (!before.truthful(assembly)) {
      FAIL("a drive that missed writes is called current\n" << told(assembly));
    }
    REQUIRE(assembly.sets.size() == 1);
    const AssembledSet& set = assembly.sets[0];
    if (present == before.all() && !set.startable) {
      FAIL("all drives are there and it does not start\n" << told(assembly));
    }
    if (!set.startable || starts == 0) continue;
    for (const bool readmit : {false, true}) {
      const std::uint64_t whole = before.written_by(set, readmit);
      if (readmit && whole == before.written_by(set, false)) continue;
      for (std::uint64_t cut = whole;; cut = (cut - 1) & whole) {
        SetModel after = before;
        after.start_cut(set, cut, readmit, false);
        all_cuts(after, starts - 1, checked);
        if (cut == whole) {
          SetModel ended = before;
          ended.start_cut(set, cut, readmit, true);
          all_cuts(ended, starts - 1, checked);
        }
        if (cut == 0) break;
      }
    }
  }
}

TEST_CASE("all cuts of the first events of small sets", "[raid][assembly]") {
  struct Depth {
    Shape shape;
    unsigned starts;
  };
  const Depth depth = GENERATE(Depth{{Level::kRaid1, 2}, 4}, Depth{{Level::kRaid1, 3}, 2},
                               Depth{{Level::kRaid5, 3}, 3}, Depth{{Level::kRaid10, 4}, 2},
                               Depth{{Level::kRaid6, 4}, 2});
  CAPTURE(describe(depth.shape.level), depth.shape.drives);
  std::uint64_t checked = 0;
  all_cuts(SetModel(depth.shape.level, depth.shape.drives, 1), depth.starts, &checked);
  CHECK(checked > 1000);
}

}  // namespace
}  // namespace sandbay::raid::testing::assembly_life_test
