// Layout and seek curve: against a walk over a small disk, sector by sector, and as properties of
// the shipped ones.
#include "model/disk_layout.h"

#include <rapidcheck.h>
#include <catch2/catch.hpp>
#include <cmath>
#include <type_traits>

#include "model/disk_model.h"
#include "model/seek_curve.h"
#include "runtime/random.h"
#include "tests/unit/model/closed_loop.h"
#include "tests/unit/model/profile_files.h"

namespace sandbay::testing {
namespace {

using model::DiskLayout;
using model::DiskProfile;
using model::Nanoseconds;
using model::SeekCurve;
using std::chrono::microseconds;

DiskProfile small_disk() {
  DiskProfile disk;
  disk.sector_count = 70'001;
  disk.rotations_per_minute = 7200;  // No whole number of nanoseconds a revolution.
  disk.heads = 3;
  disk.zones = 5;
  disk.outer_rate = 1'900'000;
  disk.inner_rate = 1'100'000;
  disk.read_seek = {microseconds(300), microseconds(2000), microseconds(4500)};
  disk.write_seek = {microseconds(400), microseconds(2300), microseconds(4800)};
  disk.head_switch = microseconds(250);
  return disk;
}

}  // namespace

TEST_CASE("every sector is where a walk over the disk finds it", "[model][layout]") {
  const DiskProfile disk = small_disk();
  const DiskLayout layout(disk);
  const Nanoseconds revolution = 60'000'000'000 / 7200;
  CHECK(layout.revolution() == revolution);

  // The walk: time passes with every sector and every switch.
  std::uint64_t sector = 0;
  Nanoseconds now = 0;
  std::uint32_t cylinder = 0;
  bool same = true;
  for (std::size_t zone = 0; zone < layout.zones().size(); ++zone) {
    const std::uint32_t per_track = layout.zones()[zone].sectors_per_track;
    const std::uint32_t end = zone + 1 < layout.zones().size()
                                  ? layout.zones()[zone + 1].first_cylinder
                                  : layout.cylinder_count();
    for (; cylinder < end; ++cylinder) {
      for (std::uint32_t head = 0; head < 3; ++head) {
        const Nanoseconds track = now;
        for (std::uint32_t i = 0; i < per_track && sector < disk.sector_count; ++i, ++sector) {
          const DiskLayout::Place place = layout.place(sector);
          const Nanoseconds begin = track + Nanoseconds{i} * revolution / per_track;
          const Nanoseconds after = track + Nanoseconds{i + 1} * revolution / per_track;
          same = same && place.cylinder == cylinder && place.head == head && place.sweep == begin &&
                 place.sector_time == after - begin;
          same = same && layout.sector_at(begin) == sector &&
                 layout.sector_at(begin + 1) == sector + 1;
        }
        now = track + revolution + (head < 2 ? 250'000 : 400'000);
      }
    }
  }
  CHECK(same);
  CHECK(sector == disk.sector_count);
  CHECK(layout.sector_at(-5) == 0);
  CHECK(layout.sector_at(now * 3) == disk.sector_count);
}

TEST_CASE("the sweep of a shipped disk and its inverse agree", "[model][layout]") {
  for (const char* name : {"maxtor-7l250s0", "seagate-cheetah-15k5-146"}) {
    const DiskProfile disk = disk_profile(name);
    const DiskLayout layout(disk);
    INFO(name);
    CHECK(layout.place(disk.sector_count - 1).cylinder + 1 == layout.cylinder_count());
    CHECK(layout.cylinder_count() > 30'000);
    CHECK(layout.cylinder_count() < 200'000);
    REQUIRE(rc::check("sweep", [&layout, &disk] {
      const auto sector = *rc::gen::inRange<std::uint64_t>(0, disk.sector_count - 1);
      const DiskLayout::Place here = layout.place(sector);
      const DiskLayout::Place next = layout.place(sector + 1);
      RC_ASSERT(layout.sector_at(here.sweep) == sector);
      RC_ASSERT(layout.sector_at(here.sweep + 1) == sector + 1);
      const Nanoseconds gap = next.sweep - here.sweep - here.sector_time;
      const Nanoseconds expected = next.cylinder != here.cylinder ? layout.cylinder_skew()
                                   : next.head != here.head       ? layout.head_skew()
                                                                  : 0;
      RC_ASSERT(gap == expected);
    }));
  }
}

TEST_CASE("the seek curve goes through the data sheet's three figures", "[model][seek]") {
  for (const std::string& name : profile_file_names()) {
    if (name.starts_with("intel")) continue;
    const DiskProfile disk = disk_profile(name);
    const model::DiskMechanism mechanism(disk);
    INFO(name);
    for (const bool read : {true, false}) {
      const SeekCurve& curve = read ? mechanism.read_seek : mechanism.write_seek;
      const auto& times = read ? disk.read_seek : disk.write_seek;
      const std::uint32_t stroke = mechanism.layout.cylinder_count() - 1;
      CHECK(curve.time(0) == 0);
      CHECK(curve.time(1) == times.track_to_track.count());
      CHECK(std::abs(curve.time(stroke) - times.full_stroke.count()) < 10);
      // 1.5 %: the spread of the mean of 20,000 draws is 0.4 %.
      Random random(5);
      double sum = 0;
      for (int i = 0; i < 20'000; ++i) {
        const std::uint32_t from = mechanism.layout.place(random.below(disk.sector_count)).cylinder;
        const std::uint32_t to = mechanism.layout.place(random.below(disk.sector_count)).cylinder;
        sum += static_cast<double>(curve.time(from > to ? from - to : to - from));
      }
      CHECK(sum / 20'000 == Approx(static_cast<double>(times.average.count())).epsilon(0.015));
      Nanoseconds before = 0;
      for (std::uint32_t distance = 0; distance <= stroke; distance += 1 + distance / 64) {
        CHECK(curve.time(distance) >= before);
        before = curve.time(distance);
      }
    }
  }
}

TEST_CASE("profiles that cannot be are refused with the field's name", "[model][profile]") {
  const DiskProfile good = disk_profile("seagate-cheetah-15k5-146");
  const auto error_of = [](const DiskProfile& disk) {
    return model::profile_error({.name = "x", .timing = disk});
  };
  CHECK(error_of(good).empty());
  CHECK_FALSE(model::profile_error({.name = "", .timing = good}).empty());
  const auto refused = [&](auto change, const std::string& word) {
    DiskProfile disk = good;
    change(disk);
    const std::string error = error_of(disk);
    INFO(error);
    CHECK(error.find(word) != std::string::npos);
  };
  refused([](DiskProfile& d) { d.sector_count = 0; }, "sectors");
  refused(
      [](DiskProfile& d) {
        d.sector_count = 66'000;
        d.heads = 64;
      },
      "cylinders");
  refused([](DiskProfile& d) { d.rotations_per_minute = 0; }, "rpm");
  refused([](DiskProfile& d) { d.heads = 65; }, "heads");
  refused([](DiskProfile& d) { d.zones = 0; }, "zones");
  refused([](DiskProfile& d) { d.zones = 1; }, "zones");
  refused([](DiskProfile& d) { d.inner_rate = d.outer_rate + 1; }, "outer_rate");
  refused([](DiskProfile& d) { d.read_seek.average = microseconds(10); }, "average_seek_read");
  refused([](DiskProfile& d) { d.read_seek.full_stroke = d.read_seek.average - microseconds(1); },
          "full_stroke_read");
  // An average that the curve cannot reach between its two ends.
  refused([](DiskProfile& d) { d.write_seek.average = microseconds(600); }, "average_seek_write");
  refused([](DiskProfile& d) { d.write_seek.average = microseconds(7800); }, "average_seek_write");
  refused([](DiskProfile& d) { d.head_switch = microseconds(-1); }, "head_switch");
  refused([](DiskProfile& d) { d.interface_rate = 0; }, "interface_rate");
  refused([](DiskProfile& d) { d.cache_segments = 0; }, "cache_segments");
  refused([](DiskProfile& d) { d.cache_bytes = 1024; }, "cache");
  refused([](DiskProfile& d) { d.queue_depth = 0; }, "queue_depth");
  refused([](DiskProfile& d) { d.age_bound = Duration(0); }, "age_bound");
  refused(
      [](DiskProfile& d) {
        d.inner_rate = 1'000'000;
        d.sector_count = std::uint64_t{1} << 38U;
      },
      "cylinders");
  model::FlashProfile flash = flash_profile("intel-s3500-480");
  flash.units = 0;
  CHECK(model::profile_error({.name = "x", .timing = flash}).find("units") != std::string::npos);
}

TEST_CASE("a profile that is not refused makes a drive that works", "[model][profile]") {
  // Wild values, some of them near enough to a drive's for the others to be looked at.
  const DiskProfile usual = disk_profile("seagate-cheetah-10k7-300");
  int accepted = 0;
  Random random(17);
  const auto vary = [&random](auto& value) {
    if (random.chance(0.6)) return;
    using Value = std::remove_reference_t<decltype(value)>;
    const auto wild = static_cast<double>(random.below(1000)) / 200;
    if constexpr (std::is_same_v<Value, Duration>) {
      value = Duration(static_cast<Nanoseconds>(static_cast<double>(value.count()) * wild));
    } else {
      value = random.chance(0.1) ? random.next() >> random.below(64)
                                 : static_cast<std::uint64_t>(static_cast<double>(value) * wild);
    }
  };
  for (int i = 0; i < 400; ++i) {
    DiskProfile disk = usual;
    for (std::uint64_t* const field :
         {&disk.sector_count, &disk.rotations_per_minute, &disk.heads, &disk.zones,
          &disk.outer_rate, &disk.inner_rate, &disk.interface_rate, &disk.cache_bytes,
          &disk.cache_segments, &disk.queue_depth}) {
      if (random.chance(0.3)) vary(*field);
    }
    for (Duration* const field :
         {&disk.read_seek.average, &disk.write_seek.full_stroke, &disk.head_switch,
          &disk.read_seek.track_to_track, &disk.age_bound, &disk.write_overhead}) {
      if (random.chance(0.3)) vary(*field);
    }
    disk.write_cache = random.chance(0.5);
    disk.look_ahead = random.chance(0.5);
    if (!model::profile_error({.name = "x", .timing = disk}).empty()) continue;
    ++accepted;
    const auto mechanism = std::make_shared<const model::DiskMechanism>(disk);
    model::DiskModel drive(mechanism, {});
    for (const std::uint64_t sector : {std::uint64_t{0}, disk.sector_count - 1}) {
      CHECK(mechanism->layout.sector_at(mechanism->layout.place(sector).sweep) == sector);
    }
    const LoopResult result = run_loop(drive, 4, 40, [&](std::uint64_t number) {
      return model::DriveCommand{
          .operation = number % 3 == 0 ? Operation::kWrite : Operation::kRead,
          .sector = number % 4 == 0 ? disk.sector_count - 8 : random.below(disk.sector_count - 8),
          .sector_count = 8};
    });
    CHECK(result.longest < 60);
  }
  CHECK(accepted > 40);
  CHECK(accepted < 360);
}

}  // namespace sandbay::testing
