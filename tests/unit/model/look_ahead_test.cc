// The read cache of a disk on its own: how far it has come by when, against the layout.
#include "model/look_ahead.h"

#include <rapidcheck.h>
#include <catch2/catch.hpp>

#include "tests/unit/model/profile_files.h"

namespace sandbay::testing {
namespace {

using model::DiskLayout;
using model::LookAhead;
using model::Nanoseconds;
using Finding = LookAhead::Finding;

constexpr Nanoseconds kPhase = 1'234'567;
constexpr std::uint64_t kSegment = 1024;

const DiskLayout& layout() {
  static const DiskLayout kLayout(disk_profile("seagate-cheetah-15k5-146"));
  return kLayout;
}

Nanoseconds end_of(std::uint64_t sector) {
  const DiskLayout::Place place = layout().place(sector);
  return place.sweep + place.sector_time;
}

}  // namespace

TEST_CASE("a sector is read ahead when it has passed as a whole", "[model][look-ahead]") {
  REQUIRE(rc::check("position", [] {
    const auto first = *rc::gen::inRange<std::uint64_t>(0, layout().sector_count() - 5000);
    const auto later = *rc::gen::inRange<std::uint64_t>(1, kSegment);
    // Time does not matter as such, only what has passed since.
    const Nanoseconds begin = *rc::gen::inRange<Nanoseconds>(0, 1'000'000'000);
    const std::uint64_t end = first + 8;
    const Nanoseconds passed = begin + end_of(end + later - 1) - end_of(end - 1);
    for (const Nanoseconds off : {-1, 0}) {
      LookAhead cache(layout(), kPhase, 4, kSegment);
      cache.begin(first, end, begin, end_of(end - 1));
      const bool held = cache.find(end, end + later, passed + off) == Finding::kHeld;
      RC_ASSERT(!held || off == 0);
      // At the end of a track it may take until the next one begins.
      const DiskLayout::Place next = layout().place(end + later);
      const Nanoseconds begun = begin + next.sweep - end_of(end - 1);
      if (off == 0 && begun == passed) RC_ASSERT(held);
      LookAhead other(layout(), kPhase, 4, kSegment);
      other.begin(first, end, begin, end_of(end - 1));
      RC_ASSERT(other.find(end, end + later, begun) == Finding::kHeld);
    }
  }));
}

TEST_CASE("look-ahead stops with a full segment and goes on at the right angle",
          "[model][look-ahead]") {
  LookAhead cache(layout(), kPhase, 4, kSegment);
  const std::uint64_t end = 50'008;
  const Nanoseconds revolution = layout().revolution();
  // Where the heads are is right for the phase.
  const Nanoseconds begin = 100 * revolution + (end_of(end - 1) + kPhase) % revolution;
  cache.begin(end - 8, end, begin, end_of(end - 1));
  // A second later all of the segment is there and no more.
  const Nanoseconds later = begin + 250 * revolution + 777;
  CHECK(cache.find(end + kSegment, end + kSegment + 1, later) == Finding::kNothing);
  CHECK(cache.find(end, end + 8, later) == Finding::kHeld);
  // That made room for eight more, which pass when they come round.
  const std::uint64_t next = end + kSegment;
  const Nanoseconds passes = layout().place(next).sweep + kPhase;
  const Nanoseconds wait = ((passes - later) % revolution + revolution) % revolution;
  CHECK(cache.find(next, next + 2, later + wait - 1) == Finding::kPassing);
  CHECK(cache.passed_at(end_of(next + 1)) ==
        later + wait + end_of(next + 1) - layout().place(next).sweep);
}

TEST_CASE("the segment of the stream that is longest silent goes first", "[model][look-ahead]") {
  LookAhead cache(layout(), kPhase, 3, kSegment);
  Nanoseconds now = 0;
  const auto read = [&](std::uint64_t first) {
    if (cache.active()) static_cast<void>(cache.stop(now));
    now += 1'000'000;
    cache.begin(first, first + 8, now, end_of(first + 7));
  };
  const auto held = [&](std::uint64_t first) {
    return cache.find(first, first + 8, now) == Finding::kHeld;
  };
  read(100'000);
  read(200'000);
  read(300'000);
  CHECK(held(200'000));
  CHECK(held(100'000));
  read(400'000);
  CHECK_FALSE(held(300'000));
  CHECK(held(200'000));
  CHECK(held(100'000));
  // A stream that goes on keeps its segment.
  read(200'008);
  read(500'000);
  CHECK(held(200'008));
  CHECK(held(100'000));
  CHECK_FALSE(held(400'000));
  static_cast<void>(cache.stop(now));
  cache.invalidate(100'007, 100'008);
  CHECK_FALSE(held(100'000));
  CHECK_FALSE(cache.may_find(100'000));
  CHECK(held(200'008));
}

}  // namespace sandbay::testing
