// A controller through everything that happens to drives: sets made and found again, drives that
// fail, go, come back and are strangers, spares, rebuilds, shelves that lose their power.
#include "raid/controller.h"

#include <algorithm>

#include "controller_rig.h"
#include "raid/drive_metadata.h"

namespace sandbay::raidtest::controller_test {
namespace {

using namespace std::chrono_literals;
using raid::Level;

// In macros, results have names: no co_await stands in one.
Task<void> expect_right(ControllerRig* rig) {
  const std::string wrong = co_await rig->check();
  CHECK(wrong == "");
}

Task<void> expect_filled(ControllerRig* rig) {
  const std::string wrong = co_await rig->fill();
  CHECK(wrong == "");
}

Task<void> expect_written(ControllerRig* rig, unsigned count) {
  const std::string wrong = co_await rig->write_some(count);
  CHECK(wrong == "");
}

Task<void> expect_whole(ControllerRig* rig) {
  const bool whole = co_await rig->wait_for([rig] { return rig->whole(); });
  if (!whole) {
    for (const ControllerEvent& event : rig->events) UNSCOPED_INFO(event.text);
  }
  REQUIRE(whole);
}

Task<void> expect_stopped(ControllerRig* rig) {
  const bool stopped = co_await rig->stop();
  REQUIRE(stopped);
}

Task<void> make(ControllerRig* rig, Level level, unsigned count, unsigned more = 0,
                std::function<void(NewSet&)> change = {}) {
  std::vector<std::string> names;
  for (unsigned i = 0; i < count + more; ++i) {
    rig->add("d" + std::to_string(i));
    if (i < count) names.push_back("d" + std::to_string(i));
  }
  co_await rig->start();
  const std::string error = co_await rig->create(level, names, change);
  REQUIRE(error == "");
}

Task<void> spare(ControllerRig* rig, std::string name, std::string set = "") {
  const Controller::Outcome added = co_await rig->controller->add_spare(name, set);
  REQUIRE(added.has_value());
  CHECK(rig->use(name) == DriveUse::kSpare);
}

// Thin drives may run out of space later; what a set must always be able to write has its own.
Task<void> takes_room_for_its_own(Executor* home) {
  ControllerRig rig(*home);
  std::vector<std::vector<Extent>> zeroed(4);
  for (unsigned i = 0; i < 4; ++i) {
    TestDrive& drive = rig.add("d" + std::to_string(i));
    drive.before_change = [&zeroed, i](const TestDrive&, const Request& request) {
      if (request.operation == Operation::kWriteZeroes) zeroed[i].push_back(request.extent);
    };
  }
  rig.drive("d3").mutable_geometry().unmap = false;  // It has all of its blocks anyway.
  co_await rig.start();
  const std::string error = co_await rig.create(Level::kRaid5, {"d0", "d1", "d2", "d3"},
                                                [](NewSet& wanted) { wanted.integrity = true; });
  REQUIRE(error == "");
  const raid::Superblock& superblock = rig.set->superblock();
  CHECK(superblock.blank);
  for (unsigned i = 0; i < 3; ++i) {
    const raid::RoleEntry& role = superblock.roles[i];
    const Extent metadata{.first = 0, .block_count = superblock.data_offset_blocks};
    const Extent entries{.first = role.integrity_offset_bytes / 512,
                         .block_count = role.integrity_bytes / 512};
    CHECK((zeroed[i] == std::vector<Extent>{metadata, entries}));
  }
  CHECK(zeroed[3].empty());
  co_await expect_filled(&rig);
  co_await expect_stopped(&rig);
}

TEST_CASE("A new set takes the room for its superblocks, journal and entries",
          "[raid][controller]") {
  for_worlds(1, takes_room_for_its_own);
}

TEST_CASE("A set of blank drives that are zeros needs no verification, another does",
          "[raid][controller]") {
  for_worlds(3, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 4);
    CHECK(rig.lines.empty());
    CHECK(rig.whole());
    co_await expect_right(&rig);
    co_await expect_filled(&rig);
    co_await expect_right(&rig);
    CHECK(rig.use("d3") == DriveUse::kMember);
    CHECK(rig.info("d3").role == 3U);
    CHECK(rig.info("d3").set == "set");
    const SetInfo shown = rig.set_info();
    CHECK((shown.running && shown.level == Level::kRaid5 && shown.drive_count == 4));
    CHECK(shown.journal_size_bytes == ControllerRig::kJournalBytes);
    CHECK(shown.roles[2].drive == "d2");
    co_await expect_stopped(&rig);

    // The same drives anew: what is on them is no zeros.
    rig.remembered = {};
    co_await rig.start();
    REQUIRE(rig.set != nullptr);
    std::string error = co_await rig.create(Level::kRaid6, {"d0", "d1", "d2", "d3"});
    CHECK(error.find("already") != std::string::npos);
    co_await expect_stopped(&rig);
    for (const auto& drive : rig.drives) {
      raid::DriveMetadata metadata(*drive);
      co_await metadata.erase_superblock();
    }
    co_await rig.start();
    CHECK(rig.set == nullptr);
    error = co_await rig.create(Level::kRaid6, {"d0", "d1", "d2", "d3"});
    CHECK(error.find("overwrite") != std::string::npos);
    error = co_await rig.create(Level::kRaid6, {"d0", "d1", "d2", "d3"}, [](NewSet& wanted) {
      wanted.overwrite = true;
      wanted.integrity = true;
    });
    CHECK(error == "");
    CHECK_FALSE(rig.set->superblock().blank);
    CHECK(rig.set_info().unverified_regions > 0);
    // Nothing of the old content is in the reference: write all of it, while it is verified.
    co_await expect_filled(&rig);
    co_await expect_whole(&rig);
    co_await expect_right(&rig);
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("Sets are found again in any order of drives, after a stop and after a kill",
          "[raid][controller]") {
  for (const Level level : {Level::kRaid0, Level::kRaid1, Level::kRaid5, Level::kRaid6,
                            Level::kRaid10, Level::kConcatenation}) {
    CAPTURE(raid::describe(level));
    for_worlds(
        3,
        [](Executor* home, Level level) -> Task<void> {
          ControllerRig rig(*home);
          co_await make(&rig, level, 4);
          co_await expect_filled(&rig);
          co_await expect_stopped(&rig);
          for (const bool killed : {false, true}) {
            std::vector<raid::NamedDevice> order = rig.named();
            for (std::size_t i = order.size() - 1; i > 0; --i) {
              std::swap(order[i], order[home->random().below(i + 1)]);
            }
            co_await rig.start(order);
            CHECK(rig.lines.empty());
            REQUIRE(rig.set != nullptr);
            REQUIRE(rig.set->running());
            co_await expect_right(&rig);
            co_await expect_written(&rig, 20);
            if (killed) {
              co_await rig.kill();
            } else {
              co_await expect_stopped(&rig);
            }
          }
          co_await rig.start();
          REQUIRE(rig.set != nullptr);
          co_await expect_whole(&rig);
          co_await expect_right(&rig);
          co_await expect_stopped(&rig);
        },
        level);
  }
}

TEST_CASE("A journal brings nothing back that was unmapped or made zeros since",
          "[raid][controller]") {
  for (const Level level :
       {Level::kJbod, Level::kConcatenation, Level::kRaid0, Level::kRaid1, Level::kRaid5}) {
    CAPTURE(raid::describe(level));
    for_worlds(
        2,
        [](Executor* home, Level level) -> Task<void> {
          ControllerRig rig(*home);
          const auto journaled = [](NewSet& set) {
            set.journal_bytes = ControllerRig::kJournalBytes;
          };
          co_await make(&rig, level, level == Level::kJbod ? 1 : 3, 0, journaled);
          for (const Operation operation : {Operation::kUnmap, Operation::kWriteZeroes}) {
            const std::string written = co_await rig.write(0, 1024, home->random().next());
            CHECK(written.empty());
            Request request;
            request.operation = operation;
            request.extent = {.first = 64, .block_count = 512};
            const Completion done = co_await rig.set->submit(std::move(request));
            CHECK(done.error == Error::kNone);
            std::fill_n(rig.expected.begin() + 64 * rig.block_bytes, 512 * rig.block_bytes,
                        std::byte{0});
            co_await rig.kill();
            co_await rig.start();
            REQUIRE(rig.set != nullptr);
            co_await expect_whole(&rig);
            co_await expect_right(&rig);
          }
          co_await expect_stopped(&rig);
        },
        level);
  }
}

TEST_CASE("A set starts degraded and says so, and not without what it needs",
          "[raid][controller]") {
  for_worlds(3, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 4);
    co_await expect_filled(&rig);
    co_await expect_stopped(&rig);
    std::vector<raid::NamedDevice> three = rig.named();
    three.erase(three.begin() + 1);
    co_await rig.start(three);
    REQUIRE(rig.set->running());
    CHECK(rig.told(SetEvent::Kind::kDegraded) == 1);
    CHECK(rig.set->health() == Health::kDegraded);
    CHECK(rig.set_info().roles[1].drive.empty());
    co_await expect_right(&rig);
    co_await expect_written(&rig, 30);
    co_await expect_stopped(&rig);

    std::vector<raid::NamedDevice> two(three.begin(), three.begin() + 2);
    co_await rig.start(two);
    REQUIRE(rig.set != nullptr);
    CHECK_FALSE(rig.set->running());
    CHECK(rig.set->health() == Health::kMissing);
    const SetInfo shown = rig.set_info();
    CHECK(shown.refusal.starts_with("set"));
    // What is there and what is not can be seen without it.
    const std::array<std::string, 4> names = {"d0", "", "d2", ""};
    for (unsigned role = 0; role < 4; ++role) {
      CHECK(shown.roles[role].drive == names[role]);
      CHECK((shown.roles[role].state == raid::RoleState::kActive) == !names[role].empty());
    }
    CHECK_FALSE(rig.lines.empty());
    const std::string refused = co_await rig.read(0, 1);
    CHECK(refused.find("reading block 0") == 0);
    // The third comes: it runs again. The fourth has missed writes, and gets just those.
    Controller::Outcome inserted = co_await rig.controller->insert_drive("d3", &rig.drive("d3"));
    CHECK(inserted.has_value());
    REQUIRE(rig.set->running());
    inserted = co_await rig.controller->insert_drive("d1", &rig.drive("d1"));
    CHECK(inserted.has_value());
    CHECK(rig.told(SetEvent::Kind::kDriveReturned) == 1);
    co_await expect_whole(&rig);
    co_await expect_right(&rig);
    CHECK(rig.told(SetEvent::Kind::kSpareTaken) == 0);
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("Stale drives and strangers are refused, shown and never written", "[raid][controller]") {
  for_worlds(3, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 4, 1);
    co_await spare(&rig, "d4");
    co_await expect_filled(&rig);
    rig.drive("d1").fail_with(Error::kHardware);
    co_await expect_written(&rig, 30);
    co_await expect_whole(&rig);
    CHECK(rig.info("d4").role == 1U);
    co_await expect_stopped(&rig);
    rig.drive("d1").fail_with(Error::kNone);

    TestDrive& foreign = rig.add("foreign");
    TestDrive& other = rig.add("other");
    {
      Request request;
      request.operation = Operation::kWrite;
      request.extent = {.first = 3, .block_count = 1};
      request.data = co_await home->buffers().allocate(512);
      std::vector<std::byte> bytes(512, std::byte{0x5a});
      request.data.copy_from(bytes);
      const Completion done = co_await foreign.submit(std::move(request));
      CHECK(done.error == Error::kNone);
      raid::DriveMetadata metadata(other);
      const Error error =
          co_await metadata.write_superblock(raid::make_spare({7}, Uuid{9, 9, 9}, 512));
      CHECK(error == Error::kNone);
    }
    const std::uint64_t before = foreign.counts.writes + other.counts.writes;
    rig.events.clear();
    co_await rig.start();
    REQUIRE(rig.set->running());
    CHECK(rig.whole());
    const DriveUse stale = rig.use("d1");
    CHECK((stale == DriveUse::kStranger || stale == DriveUse::kFailed));
    CHECK_FALSE(rig.info("d1").why.empty());
    CHECK(rig.use("foreign") == DriveUse::kStranger);
    CHECK(rig.use("other") == DriveUse::kStranger);
    CHECK(rig.said("foreign"));
    CHECK(rig.said("other"));
    for (const char* name : {"d1", "foreign", "other"}) {
      const Controller::Outcome spared = co_await rig.controller->add_spare(name, "");
      REQUIRE_FALSE(spared.has_value());
      CHECK(spared.error().find(name) != std::string::npos);
      const Controller::Outcome replaced = co_await rig.controller->replace_drive("d0", name);
      REQUIRE_FALSE(replaced.has_value());
      CHECK(replaced.error().find(std::string("`drive erase ") + name) != std::string::npos);
    }
    co_await expect_written(&rig, 10);
    co_await rig.sleep(10s);
    CHECK(foreign.counts.writes + other.counts.writes == before);
    co_await expect_right(&rig);
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("A drive fails under load: a spare takes its role and is rebuilt", "[raid][controller]") {
  for (const Level level : {Level::kRaid1, Level::kRaid5, Level::kRaid6, Level::kRaid10}) {
    CAPTURE(raid::describe(level));
    for_worlds(
        3,
        [](Executor* home, Level level) -> Task<void> {
          ControllerRig rig(*home);
          co_await make(&rig, level, 4, 2);
          co_await spare(&rig, "d4");
          rig.add("small", 6 << 20);
          co_await expect_filled(&rig);
          rig.drive("d2").fail_with(Error::kHardware);
          co_await expect_written(&rig, 60);
          co_await expect_whole(&rig);
          CHECK(rig.info("d4").role == 2U);
          CHECK(rig.use("d4") == DriveUse::kMember);
          CHECK(rig.use("d2") == DriveUse::kFailed);
          CHECK(rig.info("d2").why.find("d2") != std::string::npos);
          CHECK(rig.told(SetEvent::Kind::kDriveFailed) == 1);
          CHECK(rig.told(SetEvent::Kind::kSpareTaken) == 1);
          CHECK(rig.told(SetEvent::Kind::kRebuildEnded) == 1);
          co_await expect_right(&rig);
          // The failed drive is taken for nothing until it is replaced.
          rig.drive("d2").fail_with(Error::kNone);
          co_await rig.sleep(10s);
          CHECK(rig.use("d2") == DriveUse::kFailed);
          // The next has no spare: said once.
          rig.drive("d1").fail_with(Error::kHardware);
          co_await expect_written(&rig, 60);
          co_await rig.sleep(10s);
          CHECK(rig.told(SetEvent::Kind::kNoSpare) == 1);
          Controller::Outcome done = co_await rig.controller->replace_drive("d1", "d2");
          CHECK_FALSE(done.has_value());
          done = co_await rig.controller->replace_drive("d1", "d5");
          CHECK(done.has_value());
          co_await expect_whole(&rig);
          co_await expect_right(&rig);
          // What it was given survives a restart.
          co_await expect_stopped(&rig);
          co_await rig.start();
          REQUIRE(rig.set->running());
          CHECK(rig.whole());
          CHECK(rig.info("d5").role == 1U);
          co_await expect_right(&rig);
          co_await expect_stopped(&rig);
        },
        level);
  }
}

TEST_CASE("A spare that dies at once is followed by the next", "[raid][controller]") {
  for_worlds(3, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 3);
    rig.add("big", 20 << 20);
    rig.add("mine", 30 << 20);
    rig.add("close");
    co_await expect_stopped(&rig);
    co_await rig.start();
    co_await spare(&rig, "big");
    co_await spare(&rig, "mine", "set");
    co_await spare(&rig, "close");
    co_await expect_filled(&rig);
    CHECK(rig.set_info().spares == std::vector<std::string>{"mine"});
    // Dedicated first, then the smallest.
    rig.drive("mine").fail_writes_with(Error::kHardware);
    rig.drive("d0").fail_with(Error::kHardware);
    co_await expect_written(&rig, 40);
    co_await expect_whole(&rig);
    CHECK(rig.use("mine") == DriveUse::kFailed);
    CHECK(rig.info("close").role == 0U);
    CHECK(rig.use("big") == DriveUse::kSpare);
    co_await expect_right(&rig);
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("A short absence heals only what was written meanwhile", "[raid][controller]") {
  for (const Level level : {Level::kRaid1, Level::kRaid5, Level::kRaid6}) {
    CAPTURE(raid::describe(level));
    for_worlds(
        3,
        [](Executor* home, Level level) -> Task<void> {
          ControllerRig rig(*home);
          rig.options.look_every = 1s;
          for (unsigned i = 0; i < 5; ++i) rig.add("d" + std::to_string(i));
          co_await rig.start();
          const std::string error = co_await rig.create(
              level, {"d0", "d1", "d2", "d3"}, [](NewSet& wanted) { wanted.region_stripes = 8; });
          REQUIRE(error == "");
          co_await spare(&rig, "d4");
          co_await expect_filled(&rig);
          Request flush;
          flush.operation = Operation::kFlush;
          const Completion flushed = co_await rig.set->submit(std::move(flush));
          CHECK(flushed.error == Error::kNone);
          rig.drive("d1").fail_with(Error::kNotReady);
          // One region, in a few writes.
          for (Lba lba = 0; lba < 40; lba += 10) {
            const std::string wrong = co_await rig.write(lba, 10, lba + 1);
            CHECK(wrong == "");
          }
          CHECK(rig.use("d1") == DriveUse::kAbsent);
          co_await rig.sleep(5s);
          CHECK(rig.told(SetEvent::Kind::kDriveMissing) == 1);
          CHECK(rig.told(SetEvent::Kind::kSpareTaken) == 0);
          const std::uint64_t stale = rig.set->drives()->stale_count(1, false);
          CHECK((stale >= 1 && stale <= 2));
          CHECK(rig.set->drives()->region_count() > 10);
          const auto writes_before = rig.drive("d1").counts.writes;
          rig.drive("d1").fail_with(Error::kNone);
          co_await expect_whole(&rig);
          CHECK(rig.told(SetEvent::Kind::kDriveReturned) == 1);
          CHECK(rig.use("d1") == DriveUse::kMember);
          CHECK(rig.drive("d1").counts.writes - writes_before <= stale * 8 * 2);
          co_await expect_right(&rig);
          CHECK(rig.use("d4") == DriveUse::kSpare);

          // A long one does not: a spare takes the role, and the drive is no member when it is
          // back.
          rig.drive("d1").fail_with(Error::kNotReady);
          co_await expect_written(&rig, 20);
          co_await rig.sleep(70s);
          co_await expect_whole(&rig);
          CHECK(rig.info("d4").role == 1U);
          rig.drive("d1").fail_with(Error::kNone);
          co_await rig.sleep(5s);
          CHECK(rig.use("d1") == DriveUse::kFailed);
          co_await expect_right(&rig);
          co_await expect_stopped(&rig);
        },
        level);
  }
}

TEST_CASE("A drive is pulled and inserted, itself or another", "[raid][controller]") {
  for_worlds(3, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 4);
    co_await expect_filled(&rig);
    Controller::Outcome done = co_await rig.controller->remove_drive("d2");
    CHECK(done.has_value());
    CHECK(rig.use("d2") == DriveUse::kAbsent);
    co_await expect_written(&rig, 20);
    done = co_await rig.controller->remove_drive("d2");
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error() == "drive d2 is not there");
    done = co_await rig.controller->insert_drive("d2", &rig.drive("d2"));
    CHECK(done.has_value());
    co_await expect_whole(&rig);
    co_await expect_right(&rig);
    done = co_await rig.controller->insert_drive("d2", &rig.drive("d2"));
    CHECK_FALSE(done.has_value());

    // A blank one in its place is not taken by itself.
    TestDrive& fresh = rig.add("fresh");
    done = co_await rig.controller->remove_drive("d2");
    CHECK(done.has_value());
    done = co_await rig.controller->insert_drive("d2", &fresh);
    CHECK(done.has_value());
    CHECK(rig.use("d2") == DriveUse::kBlank);
    co_await rig.sleep(100s);
    CHECK(rig.use("d2") == DriveUse::kBlank);
    CHECK(rig.told(SetEvent::Kind::kNoSpare) == 1);
    done = co_await rig.controller->replace_drive("set:2", "d2");
    CHECK(done.has_value());
    co_await expect_whole(&rig);
    co_await expect_right(&rig);

    // Without two it cannot run; it does when one is back, and nothing is lost.
    done = co_await rig.controller->remove_drive("d0");
    CHECK(done.has_value());
    done = co_await rig.controller->remove_drive("d1");
    CHECK(done.has_value());
    CHECK_FALSE(rig.set->running());
    CHECK(rig.said("drive d1 was pulled, and it cannot run without it"));
    done = co_await rig.controller->insert_drive("d1", &rig.drive("d1"));
    CHECK(done.has_value());
    CHECK(rig.set->running());
    co_await expect_right(&rig);
    done = co_await rig.controller->insert_drive("d0", &rig.drive("d0"));
    CHECK(done.has_value());
    co_await expect_whole(&rig);
    co_await expect_right(&rig);
    co_await expect_stopped(&rig);
  });
}

TEST_CASE(
    "A second failure during a rebuild: RAID 6 goes on, RAID 5 loses nothing while both are "
    "away",
    "[raid][controller]") {
  for_worlds(3, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid6, 5, 2);
    co_await spare(&rig, "d5");
    co_await spare(&rig, "d6");
    co_await expect_filled(&rig);
    rig.drive("d0").fail_with(Error::kHardware);
    co_await expect_written(&rig, 10);
    const bool rebuilding =
        co_await rig.wait_for([&rig] { return rig.told(SetEvent::Kind::kRebuildStarted) > 0; });
    REQUIRE(rebuilding);
    rig.drive("d3").fail_with(Error::kHardware);
    co_await expect_written(&rig, 40);
    co_await expect_whole(&rig);
    CHECK(rig.told(SetEvent::Kind::kSpareTaken) == 2);
    co_await expect_right(&rig);
    co_await expect_stopped(&rig);
  });
  for_worlds(3, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 4, 1);
    co_await spare(&rig, "d4");
    co_await expect_filled(&rig);
    rig.drive("d0").fail_with(Error::kHardware);
    co_await expect_written(&rig, 5);
    const bool rebuilding =
        co_await rig.wait_for([&rig] { return rig.told(SetEvent::Kind::kRebuildStarted) > 0; });
    REQUIRE(rebuilding);
    rig.drive("d3").fail_with(Error::kNotReady);
    co_await rig.sleep(20s);
    CHECK_FALSE(rig.whole());
    rig.drive("d3").fail_with(Error::kNone);
    co_await expect_whole(&rig);
    co_await expect_right(&rig);
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("A drive that says that it will fail is copied to a spare", "[raid][controller]") {
  for (const Level level : {Level::kRaid1, Level::kRaid5, Level::kRaid10}) {
    CAPTURE(raid::describe(level));
    for_worlds(
        3,
        [](Executor* home, Level level) -> Task<void> {
          ControllerRig rig(*home);
          co_await make(&rig, level, 4, 1);
          co_await expect_filled(&rig);
          rig.drive("d1").set_health(Health::kPredictedFailure);
          co_await rig.sleep(10s);
          CHECK(rig.told(SetEvent::Kind::kPredictedFailure) == 1);
          CHECK(rig.told(SetEvent::Kind::kNoSpare) == 1);
          co_await spare(&rig, "d4");
          const bool begun =
              co_await rig.wait_for([&rig] { return rig.told(SetEvent::Kind::kSpareTaken) > 0; });
          REQUIRE(begun);
          co_await expect_written(&rig, 50);
          const bool replaced = co_await rig.wait_for(
              [&rig] { return rig.told(SetEvent::Kind::kDriveReplaced) > 0; });
          REQUIRE(replaced);
          co_await expect_whole(&rig);
          CHECK(rig.info("d4").role == 1U);
          CHECK(rig.use("d1") == DriveUse::kFailed);
          CHECK(rig.info("d1").why.find("d4") != std::string::npos);
          CHECK(rig.told(SetEvent::Kind::kDegraded) == 0);
          co_await expect_right(&rig);
          co_await expect_stopped(&rig);
        },
        level);
  }
}

TEST_CASE("A drive that says it has failed goes without any I/O", "[raid][controller]") {
  for_worlds(2, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 4, 1);
    co_await spare(&rig, "d4");
    co_await expect_filled(&rig);
    rig.drive("d1").set_health(Health::kFailed);
    const bool taken =
        co_await rig.wait_for([&rig] { return rig.told(SetEvent::Kind::kSpareTaken) > 0; });
    REQUIRE(taken);
    CHECK(rig.told(SetEvent::Kind::kDriveFailed) == 1);
    co_await expect_whole(&rig);
    CHECK(rig.use("d1") == DriveUse::kFailed);
    co_await expect_right(&rig);
    co_await expect_stopped(&rig);
  });
}

Task<void> lose_shelf(ControllerRig* rig, std::vector<std::string> names, Error error) {
  bool written = true;
  for (const std::string& name : names) rig->drive(name).fail_with(error);
  // Writes fail now; each leaves its blocks old or new, so read only elsewhere afterwards.
  const std::vector<std::byte> before = rig->expected;
  const std::string wrong = co_await rig->write(0, 8, 99);
  written = wrong.empty();
  if (!written) std::copy(before.begin(), before.end(), rig->expected.begin());
}

TEST_CASE("A shelf loses its power and comes back: nothing is lost", "[raid][controller]") {
  for (const Level level :
       {Level::kRaid0, Level::kRaid1, Level::kRaid5, Level::kRaid6, Level::kRaid10}) {
    CAPTURE(raid::describe(level));
    for_worlds(
        4,
        [](Executor* home, Level level) -> Task<void> {
          ControllerRig rig(*home);
          co_await make(&rig, level, 4, 1);
          if (level != Level::kRaid0) co_await spare(&rig, "d4");
          co_await expect_filled(&rig);
          const std::vector<std::vector<std::string>> shelves = {
              {"d0", "d1", "d2"}, {"d0", "d1", "d2", "d3", "d4"}, {"d2", "d3"}};
          for (const std::vector<std::string>& shelf : shelves) {
            co_await lose_shelf(&rig, shelf, Error::kNotReady);
            co_await rig.sleep(15s);
            for (const std::string& name : shelf) rig.drive(name).fail_with(Error::kNone);
            co_await expect_whole(&rig);
            // The write during the loss may be there or not.
            const std::string again = co_await rig.write(0, 8, 100);
            CHECK(again == "");
            co_await expect_right(&rig);
            co_await expect_written(&rig, 10);
          }
          CHECK(rig.told(SetEvent::Kind::kSectorsLost) == 0);
          co_await expect_stopped(&rig);
        },
        level);
  }
}

TEST_CASE("A drive that hangs is taken out after its timeout", "[raid][controller]") {
  for_worlds(3, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 4, 1);
    co_await spare(&rig, "d4");
    co_await expect_filled(&rig);
    rig.drive("d1").hang();
    const TimePoint before = home->now();
    co_await expect_written(&rig, 20);
    CHECK(home->now() - before < 20s);
    co_await expect_whole(&rig);
    CHECK(rig.info("d4").role == 1U);
    CHECK(rig.use("d1") == DriveUse::kFailed);
    co_await expect_right(&rig);
    Controller::Outcome removed = co_await rig.controller->remove_drive("d1");
    REQUIRE_FALSE(removed.has_value());
    CHECK(removed.error().find("its device must be kept") != std::string::npos);
    // It cannot be let go while requests are in it; when they end, it can.
    const bool stopped = co_await rig.controller->stop(home->now() + 10s);
    CHECK_FALSE(stopped);
    rig.drive("d1").release();
    co_await expect_stopped(&rig);
    // One that hangs from the beginning costs its timeout, once.
    rig.drive("d2").hang();
    const TimePoint began = home->now();
    co_await rig.start();
    CHECK(home->now() - began < 20s);
    REQUIRE(rig.set->running());
    CHECK(rig.use("d2") == DriveUse::kAbsent);
    co_await expect_right(&rig);
    rig.drive("d2").release();
    co_await expect_whole(&rig);
    CHECK(rig.use("d2") == DriveUse::kMember);
    co_await expect_right(&rig);
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("What an operator asks for wrongly is refused in one line that names it",
          "[raid][controller]") {
  for_worlds(1, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 3, 2);
    rig.add("wide", ControllerRig::kDriveBytes, 4096);
    rig.add("small", 4 << 20);
    co_await expect_stopped(&rig);
    co_await rig.start();
    Controller& controller = *rig.controller;
    const auto says = [](const Controller::Outcome& outcome, const char* text) {
      REQUIRE_FALSE(outcome.has_value());
      CHECK(outcome.error() == text);
    };
    Controller::Outcome done = co_await controller.fail_drive("nobody");
    says(done, "there is no drive nobody");
    done = co_await controller.replace_drive("d3", "d4");
    says(done, "drive d3 has no role in a set; a drive with a role, or SET:ROLE, is accepted");
    done = co_await controller.replace_drive("d0", "");
    says(done, "no spare fits role 0 of set set; name a blank drive");
    done = co_await controller.replace_drive("d0", "d1");
    says(done, "drive d1 is member; a spare or a blank drive is accepted");
    done = co_await controller.replace_drive("d0", "wide");
    says(done, "drive wide has blocks of 4096 bytes; set set takes 512");
    done = co_await controller.replace_drive("d0", "small");
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().starts_with("drive small has 4194304 bytes; role 0 of set set takes "));
    done = co_await controller.add_spare("d0", "");
    says(done, "drive d0 is not blank but member; it becomes a spare with 'overwrite' only");
    done = co_await controller.add_spare("d3", "nothing");
    says(done, "there is no set nothing");
    done = controller.verify_set("nothing");
    says(done, "there is no set nothing");
    done = controller.verify_set("set");
    CHECK(done.has_value());
    const bool verified =
        co_await rig.wait_for([&rig] { return rig.told(SetEvent::Kind::kVerifyEnded) > 0; });
    CHECK(verified);
    NewSet wanted;
    wanted.name = "two";
    auto made = co_await controller.create_set(wanted, {"d3", "d4", "d0"});
    REQUIRE_FALSE(made.has_value());
    CHECK(made.error() == "set 'two': drive d0 is in use by set set");
    made = co_await controller.create_set(wanted, {"d3", "d4", "d3"});
    REQUIRE_FALSE(made.has_value());
    CHECK(made.error() == "set 'two': drives: drive d3 is named twice");
    made = co_await controller.create_set(wanted, {"d3", "d4"});
    REQUIRE_FALSE(made.has_value());
    CHECK(made.error().starts_with("set 'two': "));

    done = co_await controller.fail_drive("d2");
    CHECK(done.has_value());
    CHECK(rig.use("d2") == DriveUse::kFailed);
    done = co_await controller.fail_drive("d1");
    says(done, "drive d1 cannot be failed: set set does not survive without it");
    done = co_await controller.fail_drive("d2");
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().starts_with("drive d2 has failed already: "));
    done = co_await controller.replace_drive("d2", "d3");
    CHECK(done.has_value());
    co_await expect_whole(&rig);
    done = co_await controller.replace_drive("d0", "d4");
    CHECK(done.has_value());
    const bool copied =
        co_await rig.wait_for([&rig] { return rig.told(SetEvent::Kind::kCopyEnded) > 0; });
    CHECK(copied);
    CHECK(rig.info("d4").role == 0U);
    co_await expect_stopped(&rig);
  });
}

}  // namespace
}  // namespace sandbay::raidtest::controller_test
