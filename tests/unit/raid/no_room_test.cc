// Drives that are full, and what becomes of it later: a write that failed does not come back with a
// replay, entries have room of their own, and nobody pays twice for knowing that there is none.
#include <fmt/core.h>

#include "controller_rig.h"
#include "set_rig.h"

namespace sandbay::raidtest::no_room_test {
namespace {

// Failed writes; what reads give afterwards is what is expected.
Task<unsigned> write_and_fail(SetRig* rig, Executor* home, unsigned count) {
  unsigned refused = 0;
  for (unsigned i = 0; i < count; ++i) {
    const std::uint64_t length = 1 + home->random().below(i % 4 == 0 ? 100 : 12);
    const Lba first = home->random().below(rig->expected.size() / 512 - length);
    const Error error = co_await rig->write(first, length, home->random().next());
    CHECK((error == Error::kNone || error == Error::kNoSpace));
    if (error == Error::kNone) continue;
    ++refused;
    const auto now = std::span(rig->expected).subspan(first * 512, length * 512);
    const Error read = co_await rig->read_raw(first, now);
    CHECK(read == Error::kNone);
  }
  co_return refused;
}

Task<void> fail_and_stay_failed(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.exercise(4);
  co_await rig.verify_all();
  TestDrive& full = *rig.devices[1];
  unsigned maps = 0;
  full.before_change = [&maps](const TestDrive&, const Request& request) {
    const std::uint64_t at = request.extent.first * 512;
    const bool map = at >= kRegionMapOffset[0] && at < kLostSectorsOffset[0];
    maps += map && request.operation == Operation::kWrite;
  };
  full.fill_up(true);
  const TimePoint begun = home->now();
  const unsigned refused = co_await write_and_fail(&rig, home, 40);
  CHECK(refused > 10);
  // One map for each region that is not sure to match any more, and one a second for the room.
  const auto seconds = static_cast<std::uint64_t>((home->now() - begun) / std::chrono::seconds(1));
  CHECK(maps <= rig.drives->unverified_count() + seconds + 2);
  const auto told = std::ranges::count_if(rig.events, [](const std::string& text) {
    return text.find("there is no room for a write on drive d1") != std::string::npos;
  });
  CHECK(told == 1);
  full.before_change = {};
  full.fill_up(false);
  const Error started = co_await rig.start_anew();
  CHECK(started == Error::kNone);
  co_await rig.check_everything();
  co_await rig.verify_all();
  co_await rig.check_everything();
  for (const std::string& failure : rig.failures) UNSCOPED_INFO(failure);
  CHECK(rig.failures.empty());
  co_await rig.end();
}

// The journal has entries for a drive whose integrity area takes nothing.
Task<void> replay_entries(Executor* home) {
  SetRig rig(*home, {.level = Level::kRaid5, .drives = 4, .integrity = true});
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  co_await rig.exercise(1);
  const RoleEntry& role = rig.drives->superblock().roles[2];
  const Lba data_from = std::exchange(rig.devices[2]->data_from, role.integrity_offset_bytes / 512);
  rig.devices[2]->fill_up(true);
  const Error started = co_await rig.start_anew();
  CHECK(started == Error::kNone);
  CHECK(rig.drives->absent_roles() == std::uint64_t{1} << 2);
  rig.devices[2]->data_from = data_from;
  co_await rig.check_everything();
  for (const std::string& failure : rig.failures) UNSCOPED_INFO(failure);
  CHECK(rig.failures.empty());
  co_await rig.end();
}

// The drive is stale everywhere, holds the parity of the write, and has no room from that write on.
Task<void> lose_full_parity(Executor* home) {
  ControllerRig rig(*home);
  std::vector<std::string> names;
  for (unsigned i = 0; i < 3; ++i) names.push_back(fmt::format("d{}", i));
  for (const std::string& name : names) rig.add(name);
  co_await rig.start();
  const std::string error =
      co_await rig.create(Level::kRaid5, names, [](NewSet& wanted) { wanted.integrity = false; });
  REQUIRE(error == "");
  const auto removed = co_await rig.controller->remove_drive("d1");
  REQUIRE(removed.has_value());
  const std::string filled = co_await rig.fill();
  REQUIRE(filled == "");
  raid::MaintenancePolicy policy = rig.options.set.maintenance;
  policy.rate_under_load = 1;
  policy.host_is_quiet_after = std::chrono::hours(1000);
  rig.controller->set_policy("set", policy);
  const auto back = co_await rig.controller->insert_drive("d1", &rig.drive("d1"));
  REQUIRE(back.has_value());
  const raid::Layout layout = rig.set->drives()->layout();
  std::uint64_t stripe = layout.stripe_count() / 2;
  while (layout.role(stripe, layout.data_chunks()) != 1) ++stripe;
  CHECK(rig.set->drives()->unreadable(stripe) != 0);
  TestDrive& full = rig.drive("d1");
  const Lba data_from = rig.set->drives()->data_offset();
  full.before_change = [&full, data_from](const TestDrive&, const Request& request) {
    if (request.extent.first >= data_from) full.fill_up(true, true);
  };
  const Lba lba = layout.lba({.stripe = stripe, .chunk = 0, .row = 0});
  const std::string written = co_await rig.write(lba, 1, 7);
  CHECK(written == "");
  CHECK(rig.set->drives()->drive(1) == nullptr);
  const std::string read = co_await rig.read(lba, 1);
  CHECK(read == "");
  const bool stopped = co_await rig.stop();
  CHECK(stopped);
}

}  // namespace

TEST_CASE("A write that found no room does not come back from the journal", "[raid][no_room]") {
  for (const SetShape& shape : {SetShape{.level = Level::kRaid5, .drives = 4},
                                {.level = Level::kRaid6, .drives = 5, .strip_bytes = 16384}}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(describe(shape.level), seed);
      in_world(seed, [shape](Executor& home) { return fail_and_stay_failed(&home, shape); });
    }
  }
}

TEST_CASE("A drive without room for entries that are replayed goes, and the set starts",
          "[raid][no_room]") {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    CAPTURE(seed);
    in_world(seed, [](Executor& home) { return replay_entries(&home); });
  }
}

TEST_CASE("A write is whole when a stale drive fails for lack of room for its parity",
          "[raid][no_room][D-2]") {
  for_worlds(4, lose_full_parity);
}

}  // namespace sandbay::raidtest::no_room_test
