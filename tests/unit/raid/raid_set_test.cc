// A RAID set over drives of a simulated world, against a plain array of bytes: every level, with
// all drives, without some, after rebuild, with unreadable blocks.
#include "raid/raid_set.h"

#include <algorithm>

#include "set_rig.h"

namespace sandbay::raidtest::raid_set_test {
namespace {

const std::vector<SetShape> kShapes = {
    {Level::kJbod, 1},
    {Level::kConcatenation, 3},
    {Level::kRaid0, 4},
    {Level::kRaid1, 2},
    {Level::kRaid1, 3},
    {Level::kRaid5, 3},
    {Level::kRaid5, 5},
    {Level::kRaid6, 4},
    {Level::kRaid6, 7},
    {Level::kRaid10, 6},
    {Level::kRaid50, 6, 2},
    {Level::kRaid60, 8, 2},
    {Level::kRaid5, 4, 0, 65536},
};

Task<void> survive(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.exercise(10);
  if (rig.set->layout().redundancy() > 0) {
    co_await rig.verify_all();
    CHECK(rig.drives->unverified_count() == 0);
    co_await rig.exercise(10);
    // As many drives go as it survives, in the middle of the work.
    for (unsigned i = 0; i < rig.set->layout().redundancy(); ++i) {
      rig.devices[i * 1]->fail_with(Error::kHardware);
      co_await rig.exercise(10);
    }
    CHECK(std::popcount(rig.drives->absent_roles()) ==
          static_cast<int>(rig.set->layout().redundancy()));
    co_await rig.check_everything();
    // Fresh drives take their roles and are rebuilt under load.
    for (unsigned i = 0; i < rig.set->layout().redundancy(); ++i) {
      TestDrive& spare = rig.add_drive("spare" + std::to_string(i));
      rig.drives->take_role(i, spare, "spare", {}, make_uuid(home->random()), false);
    }
    const Error saved = co_await rig.drives->save_regions();
    CHECK(saved == Error::kNone);
    const Error settled = co_await rig.drives->settled();
    CHECK(settled == Error::kNone);
    Maintenance maintenance(*rig.set, {.rate_under_load = 0});
    maintenance.start();
    co_await rig.exercise(20);
    co_await maintenance.wait_idle();
    co_await maintenance.stop();
    CHECK(rig.drives->optimal());
  }
  co_await rig.check_everything();
  for (const std::string& failure : rig.failures) UNSCOPED_INFO(failure);
  CHECK(rig.failures.empty());
  co_await rig.end();
}

// Reads alone, and each is answered around the drive that hangs: it goes all the same.
Task<void> lose_one_that_hangs(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.exercise(5);
  co_await rig.verify_all();
  co_await rig.set->flush_drives();
  rig.devices[0]->hang();
  const TimePoint began = home->now();
  while (home->now() < began + std::chrono::seconds(12)) {
    const std::string wrong = co_await rig.read(0, 8 * shape.drives);
    CHECK(wrong.empty());
    co_await home->sleep_for(std::chrono::milliseconds(500));
  }
  CHECK(rig.drives->absent_roles() == 1);
  CHECK(rig.drives->superblock().roles[0].state == RoleState::kFailed);
  const bool told = std::ranges::any_of(rig.events, [](const std::string& text) {
    return text.find("d0 in role 0 is failed: a read that took long") != std::string::npos;
  });
  CHECK(told);
  rig.devices[0]->release();
  co_await rig.check_everything();
  CHECK(rig.failures.empty());
  co_await rig.end();
}

// Writes that may or may not meet a drive without room: each says so or is done, and what it was to
// change is old or new, block by block.
Task<void> write_without_room(SetRig* rig, Executor* home) {
  unsigned refused = 0;
  for (unsigned i = 0; i < 40; ++i) {
    const std::uint64_t length = 1 + home->random().below(i % 4 == 0 ? 100 : 12);
    const Lba first = home->random().below(rig->expected.size() / 512 - length);
    const auto begin = rig->expected.begin() + static_cast<std::ptrdiff_t>(first * 512);
    const std::vector<std::byte> old(begin, begin + static_cast<std::ptrdiff_t>(length * 512));
    const Error error = co_await rig->write(first, length, home->random().next());
    CHECK((error == Error::kNone || error == Error::kNoSpace));
    if (error == Error::kNone) continue;
    ++refused;
    std::vector<std::byte> now(old.size());
    const Error read = co_await rig->read_raw(first, now);
    CHECK(read == Error::kNone);
    std::byte* wanted = rig->expected.data() + first * 512;
    for (std::size_t at = 0; at < now.size(); at += 512) {
      const bool whole = std::memcmp(now.data() + at, old.data() + at, 512) == 0 ||
                         std::memcmp(now.data() + at, wanted + at, 512) == 0;
      CHECK(whole);
    }
    std::memcpy(wanted, now.data(), now.size());
  }
  CHECK(refused > 5);
}

Task<void> run_out_of_space(Executor* home, SetShape shape, std::uint64_t seed) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.exercise(10);
  co_await rig.verify_all();
  rig.devices[seed % shape.drives]->fill_up(true);
  co_await write_without_room(&rig, home);
  CHECK(rig.drives->absent_roles() == 0);
  CHECK(!rig.set->offline());
  CHECK(rig.set->health() == Health::kGood);
  co_await rig.check_everything();
  // There is room again; what differs is made whole before a drive goes.
  rig.devices[seed % shape.drives]->fill_up(false);
  co_await rig.verify_all();
  CHECK(rig.drives->unverified_count() == 0);
  if (rig.set->layout().redundancy() > 0) {
    rig.devices[(seed + 1) % shape.drives]->fail_with(Error::kHardware);
  }
  co_await rig.check_everything();
  for (const std::string& failure : rig.failures) UNSCOPED_INFO(failure);
  CHECK(rig.failures.empty());
  co_await rig.end();
}

// Not even what the set has reserved on a drive finds room: it goes before anything is in doubt,
// and the host notices nothing. `last`: no redundancy is left without it.
Task<void> lose_one_without_any_room(Executor* home, SetShape shape, unsigned full, bool last) {
  SetRig rig(*home, shape);
  co_await rig.create();
  const unsigned redundancy = rig.set->layout().redundancy();
  const unsigned others = last ? redundancy - 1 : 0;
  if (last && others == 0) {  // Nobody else fails: the same as without `last`.
    co_await rig.end();
    co_return;
  }
  co_await rig.exercise(3);
  co_await rig.verify_all();
  for (unsigned i = 1; i <= others; ++i) {
    rig.devices[(full + i) % shape.drives]->fail_with(Error::kHardware);
  }
  if (others > 0) co_await rig.exercise(2);
  rig.devices[full]->fill_up(true, true);
  co_await rig.exercise(6);
  co_await rig.check_everything();
  CHECK((rig.drives->absent_roles() >> full & 1) == 1);
  CHECK(rig.drives->unverified_count() == 0);
  CHECK_FALSE(rig.drives->superblock().redundancy_suspect);
  CHECK(rig.drives->lost().empty());
  TestDrive& spare = rig.add_drive("spare");
  rig.drives->take_role(full, spare, "spare", {}, make_uuid(home->random()), false);
  const Error settled = co_await rig.drives->settled();
  CHECK(settled == Error::kNone);
  co_await rig.verify_all();
  CHECK(rig.drives->stale_roles() == 0);
  co_await rig.check_everything();
  for (const std::string& failure : rig.failures) UNSCOPED_INFO(failure);
  CHECK(rig.failures.empty());
  co_await rig.end();
}

// Beyond what it survives the set does not say that it is degraded only, and says when that is
// over.
Task<void> fail_beyond_redundancy(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.exercise(3);
  co_await rig.verify_all();
  const unsigned redundancy = rig.set->layout().redundancy();
  for (unsigned i = 0; i < redundancy; ++i) {
    const bool gone = rig.drives->drop(i, DropReason::kFailed, "an operator says so");
    CHECK(gone);
  }
  CHECK(rig.set->health() == Health::kDegraded);
  rig.devices[redundancy]->fail_with(Error::kHardware);
  const std::uint64_t blocks = 8 * shape.drives;
  std::string wrong = co_await rig.read(0, blocks);
  CHECK(!wrong.empty());
  wrong = co_await rig.read(0, blocks);
  CHECK(!wrong.empty());
  CHECK(rig.set->health() == Health::kFailed);
  const auto told = [&rig](const char* what) {
    return std::ranges::count_if(rig.events, [what](const std::string& text) {
      return text.find(what) != std::string::npos;
    });
  };
  CHECK(told("more drives fail than the set survives") == 1);
  rig.devices[redundancy]->fail_with(Error::kNone);
  wrong = co_await rig.read(0, blocks);
  CHECK(wrong.empty());
  CHECK(rig.set->health() == Health::kDegraded);
  CHECK(told("its drives answer again") == 1);
  co_await rig.end();
}

// Which mirror a read goes to.
Task<void> choose_mirrors(Executor* home) {
  SetRig rig(*home, {Level::kRaid1, 2, 0, 65536});
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  for (const auto& device : rig.devices) device->counts = {};
  const auto reads = [&rig] {
    return std::pair(rig.devices[0]->counts.reads, rig.devices[1]->counts.reads);
  };
  const auto good = [](SetRig* set_rig, Lba lba) -> Task<void> {
    const std::string wrong = co_await set_rig->read(lba, 8);
    CHECK(wrong.empty());
  };
  const Lba far = rig.set->geometry().block_count - 256;
  co_await good(&rig, 0);  // Both heads are where the set ends.
  CHECK(reads() == std::pair<std::uint64_t, std::uint64_t>(1, 0));
  co_await good(&rig, 8);
  co_await good(&rig, 128);
  CHECK(reads() == std::pair<std::uint64_t, std::uint64_t>(3, 0));
  co_await good(&rig, far);
  CHECK(reads() == std::pair<std::uint64_t, std::uint64_t>(3, 1));
  co_await good(&rig, 16);
  co_await good(&rig, far + 8);
  CHECK(reads() == std::pair<std::uint64_t, std::uint64_t>(4, 2));
  // The nearer one is busy.
  rig.devices[0]->slow_reads(std::chrono::milliseconds(20));
  unsigned running = 1;
  Condition ended;
  const auto busy = [](SetRig* set_rig, unsigned* left, Condition* all) -> Task<void> {
    const std::string wrong = co_await set_rig->read(32, 8);
    CHECK(wrong.empty());
    if (--*left == 0) all->notify_all();
  };
  spawn(busy(&rig, &running, &ended));
  co_await good(&rig, 40);
  CHECK(running == 1);
  while (running > 0) co_await ended.wait();
  CHECK(reads() == std::pair<std::uint64_t, std::uint64_t>(5, 3));
  co_await rig.end();
}

}  // namespace

TEST_CASE("of mirrors the one with less to do is read, and of equals the nearer") {
  in_world(1, [](Executor& home) { return choose_mirrors(&home); });
}

TEST_CASE("a set that cannot answer because one more drive fails says that it has failed") {
  for (const SetShape& shape : kShapes) {
    if (shape.level < Level::kRaid1 || shape.groups > 1 || shape.level == Level::kRaid10) continue;
    CAPTURE(describe(shape.level), shape.drives);
    in_world(1, [&](Executor& home) { return fail_beyond_redundancy(&home, shape); });
  }
}

TEST_CASE("no drive is lost when there is no room for what is written, and no block is torn") {
  for (const SetShape& shape : kShapes) {
    for (std::uint64_t seed = 1; seed <= (kSanitized ? 1 : 3); ++seed) {
      CAPTURE(describe(shape.level), shape.drives, seed);
      in_world(seed, [&](Executor& home) { return run_out_of_space(&home, shape, seed); });
    }
  }
}

TEST_CASE("a drive without room for what is reserved on it goes, and costs the host nothing") {
  std::vector<SetShape> shapes = kShapes;
  shapes.push_back({.level = Level::kRaid5, .drives = 4, .integrity = true});
  shapes.push_back({.level = Level::kRaid6, .drives = 5, .integrity = true});
  shapes.push_back({.level = Level::kRaid1, .drives = 2, .integrity = true});
  for (const SetShape& shape : shapes) {
    if (shape.level < Level::kRaid1) continue;
    for (const unsigned full : {0U, shape.drives - 1}) {
      if (kSanitized && full != 0) continue;
      for (const bool last : {false, true}) {
        CAPTURE(describe(shape.level), shape.drives, shape.integrity, full, last);
        in_world(full, [&](Executor& home) {
          return lose_one_without_any_room(&home, shape, full, last);
        });
      }
    }
  }
}

TEST_CASE("a drive that answers no read is lost, though every read is answered without it") {
  for (const SetShape& shape : kShapes) {
    if (shape.level < Level::kRaid1) continue;
    CAPTURE(describe(shape.level), shape.drives);
    in_world(1, [&](Executor& home) { return lose_one_that_hangs(&home, shape); });
  }
}

TEST_CASE("a set of every level keeps what is written, with drives lost and rebuilt") {
  for (const SetShape& shape : kShapes) {
    for (std::uint64_t seed = 1; seed <= (kSanitized ? 1 : 3); ++seed) {
      CAPTURE(describe(shape.level), shape.drives, seed);
      in_world(seed, [&](Executor& home) { return survive(&home, shape); });
    }
  }
}

}  // namespace sandbay::raidtest::raid_set_test
