// What is computed from redundancy is what was written: where drives change places in the middle of
// a rebuild, where redundancy has never been verified, and where one drive ails and another cannot
// read.
#include "set_rig.h"

namespace sandbay::raidtest::redundancy_test {
namespace {

using namespace std::chrono_literals;

std::vector<Lba> some_places(const SetRig& rig) {
  std::vector<Lba> places;
  for (Lba at = 0; at < rig.set->geometry().block_count; at += 97) places.push_back(at);
  return places;
}

Task<void> write_places(SetRig* rig, const std::vector<Lba>* places) {
  for (const Lba at : *places) {
    const Error error = co_await rig->write(at, 1, at + 1);
    REQUIRE(error == Error::kNone);
  }
}

Task<unsigned> wrong_places(SetRig* rig, const std::vector<Lba>* places) {
  unsigned wrong = 0;
  for (const Lba at : *places) {
    const std::string complaint = co_await rig->read(at, 1);
    wrong += !complaint.empty();
  }
  co_return wrong;
}

Task<void> drop(SetRig* rig, unsigned role, DropReason reason) {
  CHECK(rig->drives->drop(role, reason, "the test says so"));
  const Error settled = co_await rig->drives->settled();
  CHECK(settled == Error::kNone);
}

Task<void> bring_back(SetRig* rig, unsigned role) {
  rig->drives->take_role(role, *rig->devices[role], "back", {},
                         rig->drives->superblock().roles[role].drive, true);
  const Error settled = co_await rig->drives->settled();
  CHECK(settled == Error::kNone);
}

// A spare is rebuilt in part of a region when another takes the role, or it comes back as new.
Task<void> swap_in_region(Executor* home, bool same) {
  SetRig rig(*home, {Level::kRaid5, 4});
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  TestDrive& first = rig.add_drive("first");
  TestDrive& second = rig.add_drive("second");
  co_await rig.fill_with_junk(&first);
  co_await rig.fill_with_junk(&second);
  co_await drop(&rig, 1, DropReason::kFailed);
  rig.drives->take_role(1, first, "first", {}, make_uuid(home->random()), false);
  co_await rig.drives->settled();
  Maintenance maintenance(*rig.set, {.rate_under_load = 1 << 20});
  maintenance.start();
  while (maintenance.progress().done_stripes < 8) {
    co_await rig.read(0, 1);
    co_await home->sleep_for(1ms);
  }
  co_await home->sleep_for(10ms);
  co_await drop(&rig, 1, DropReason::kFailed);
  if (same) co_await rig.fill_with_junk(&first);
  rig.drives->take_role(1, same ? first : second, "next", {}, make_uuid(home->random()), false);
  co_await rig.drives->settled();
  for (unsigned i = 0; i < 60; ++i) {
    co_await home->sleep_for(2ms);
    const std::string wrong = co_await rig.read(0, 24 * 8);
    CHECK(wrong == "");
  }
  co_await maintenance.wait_idle();
  co_await maintenance.stop();
  CHECK(rig.drives->optimal());
  co_await rig.check_everything();
  CHECK(rig.failures.empty());
  co_await rig.end();
}

// Drives as they came, of which one is away while the others are verified.
Task<void> away_while_verified(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill_all_with_junk();
  CHECK(rig.drives->unverified_count() > 0);
  co_await drop(&rig, 0, DropReason::kMissing);
  CHECK(rig.drives->stale_count(0, false) == rig.drives->unverified_count());
  co_await rig.verify_all();
  co_await bring_back(&rig, 0);
  co_await rig.verify_all();
  CHECK(rig.drives->optimal());
  const std::vector<Lba> places = some_places(rig);
  co_await write_places(&rig, &places);
  for (unsigned role = 1; role <= rig.set->layout().redundancy(); ++role) {
    co_await drop(&rig, role, DropReason::kFailed);
    const unsigned wrong = co_await wrong_places(&rig, &places);
    CHECK(wrong == 0);
  }
  co_await rig.end();
}

// All members of all stripes match after that.
Task<void> mirrors_match(Executor* home) {
  SetRig rig(*home, {Level::kRaid1, 2});
  co_await rig.create();
  co_await rig.fill_all_with_junk();
  co_await drop(&rig, 1, DropReason::kMissing);
  co_await rig.verify_all();
  co_await bring_back(&rig, 1);
  co_await rig.verify_all();
  CHECK(rig.drives->unverified_count() == 0);
  const std::uint64_t first = rig.drives->data_offset() * 512;
  const std::uint64_t end = first + rig.set->geometry().block_count * 512;
  for (std::uint64_t at = first; at < end; at += 4096) {
    std::vector<std::byte> one(4096);
    std::vector<std::byte> other(4096);
    rig.devices[0]->state().visible.read(at, one);
    rig.devices[1]->state().visible.read(at, other);
    REQUIRE(one == other);
  }
  co_await rig.end();
}

// Drives as they came; one goes before anything is verified, then small writes, then another.
Task<void> degraded_and_unverified(Executor* home, SetShape shape, unsigned first) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill_all_with_junk();
  co_await drop(&rig, first, DropReason::kFailed);
  const std::vector<Lba> places = some_places(rig);
  co_await write_places(&rig, &places);
  unsigned wrong = co_await wrong_places(&rig, &places);
  CHECK(wrong == 0);
  co_await drop(&rig, first + 1, DropReason::kFailed);
  wrong = co_await wrong_places(&rig, &places);
  CHECK(wrong == 0);
  co_await write_places(&rig, &places);
  wrong = co_await wrong_places(&rig, &places);
  CHECK(wrong == 0);
  co_await rig.end();
}

// One drive away, one block of another unreadable, and a third fails for a moment.
Task<void> ails_for_a_moment(Executor* home) {
  SetRig rig(*home, {Level::kRaid5, 4});
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  co_await drop(&rig, 2, DropReason::kFailed);
  rig.devices[1]->make_unreadable(rig.drives->data_offset());  // Chunk 1 of stripe 0.
  rig.devices[0]->fail_reads_with(Error::kHardware);
  const Error error = co_await rig.write(16, 1, 99);  // The chunk that is away.
  CHECK(error == Error::kNotReady);
  const std::string answer = co_await rig.read(16, 1);
  CHECK(answer == describe(Error::kNotReady));
  rig.devices[0]->fail_reads_with(Error::kNone);
  CHECK(rig.drives->lost().empty());
  CHECK_FALSE(rig.set->offline());
  const std::string wrong = co_await rig.read(0, 8);
  CHECK(wrong == "");
  co_await rig.end();
}

}  // namespace

TEST_CASE("A drive that takes a role in the middle of a region's rebuild is rebuilt from its start",
          "[raid][redundancy]") {
  for (const bool same : {false, true}) {
    in_world(1, [same](Executor& home) { return swap_in_region(&home, same); });
  }
}

TEST_CASE("A drive that was away while redundancy was verified is made to match",
          "[raid][redundancy]") {
  for (const SetShape& shape :
       {SetShape{Level::kRaid5, 4}, SetShape{Level::kRaid6, 5}, SetShape{Level::kRaid1, 3}}) {
    CAPTURE(describe(shape.level));
    in_world(2, [&shape](Executor& home) { return away_while_verified(&home, shape); });
  }
  in_world(3, [](Executor& home) { return mirrors_match(&home); });
}

TEST_CASE("Writes to a degraded set that was never verified survive another drive",
          "[raid][redundancy]") {
  for (unsigned first = 0; first < 6; ++first) {
    CAPTURE(first);
    const SetShape shape{Level::kRaid6, 7};
    in_world(4, [&](Executor& home) { return degraded_and_unverified(&home, shape, first); });
  }
}

TEST_CASE("What a drive holds that fails for a moment is not lost", "[raid][redundancy]") {
  in_world(5, [](Executor& home) { return ails_for_a_moment(&home); });
}

}  // namespace sandbay::raidtest::redundancy_test
