// Drives that are put back as they were a while ago, and what is no such drive: one without power,
// one that has only just come, one with a bad place in its journal.
#include "raid/set_back.h"
#include "controller_rig.h"

namespace sandbay::raidtest::set_back_test {
namespace {

using namespace std::chrono_literals;
using raid::Level;

Task<void> expect_good(Task<std::string> doing) {
  const std::string wrong = co_await std::move(doing);
  CHECK(wrong == "");
}

Task<void> expect_whole(ControllerRig* rig) {
  const bool whole = co_await rig->wait_for([rig] { return rig->whole(); });
  REQUIRE(whole);
}

Task<void> expect_stopped(ControllerRig* rig) {
  const bool stopped = co_await rig->stop();
  REQUIRE(stopped);
}

Task<void> make(ControllerRig* rig, Level level, unsigned count) {
  std::vector<std::string> names;
  for (unsigned i = 0; i < count; ++i) {
    names.push_back("d" + std::to_string(i));
    rig->add(names.back());
  }
  co_await rig->start();
  const std::string error =
      co_await rig->create(level, names, [](NewSet& wanted) { wanted.region_stripes = 16; });
  REQUIRE(error == "");
  co_await expect_good(rig->fill());
}

Task<void> flush(ControllerRig* rig) {
  Request request;
  request.operation = Operation::kFlush;
  const Completion done = co_await rig->set->submit(std::move(request));
  CHECK(done.error == Error::kNone);
}

// It is left alone and said so, what it had is computed, and a spare takes its role.
Task<void> expect_aside(ControllerRig* rig, const std::string& name) {
  REQUIRE(rig->set != nullptr);
  REQUIRE(rig->set->running());
  CHECK(rig->use(name) == DriveUse::kFailed);
  CHECK(rig->info(name).why.find("stale") != std::string::npos);
  CHECK(rig->said(name));
  CHECK(rig->set->health() == Health::kDegraded);
  co_await expect_good(rig->check());
  co_await expect_good(rig->write_some(20));
  co_await rig->kill();
  co_await rig->start();
  REQUIRE(rig->set->running());
  CHECK(rig->use(name) == DriveUse::kFailed);
  co_await expect_good(rig->check());
  rig->add("spare");
  const Controller::Outcome inserted =
      co_await rig->controller->insert_drive("spare", &rig->drive("spare"));
  CHECK(inserted.has_value());
}

}  // namespace

TEST_CASE("An older copy of a drive from the same run is stale, with the journal on the drives",
          "[raid][set_back]") {
  struct Case {
    Level level;
    unsigned drives;
  };
  for (const Case& of : {Case{Level::kRaid5, 4}, {Level::kRaid6, 6}, {Level::kRaid50, 6}}) {
    CAPTURE(raid::describe(of.level));
    for_worlds(
        3,
        [](Executor* home, Case its) -> Task<void> {
          ControllerRig rig(*home);
          co_await make(&rig, its.level, its.drives);
          co_await flush(&rig);
          const DriveState older = rig.drive("d2").state();
          co_await expect_good(rig.write_some(25));
          co_await flush(&rig);  // What the journal still has would be written again.
          co_await expect_good(rig.write_some(2));
          co_await rig.kill();
          rig.drive("d2").state() = older;
          co_await rig.start();
          co_await expect_aside(&rig, "d2");
          co_await expect_stopped(&rig);
        },
        of);
  }
}

TEST_CASE("With more drives set back than a set survives it does not start, and says which",
          "[raid][set_back]") {
  for_worlds(2, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 4);
    const DriveState older1 = rig.drive("d1").state();
    const DriveState older3 = rig.drive("d3").state();
    co_await expect_good(rig.write_some(40));
    co_await rig.kill();
    const DriveState newer3 = rig.drive("d3").state();
    rig.drive("d1").state() = older1;
    rig.drive("d3").state() = older3;
    co_await rig.start();
    REQUIRE(rig.set != nullptr);
    CHECK_FALSE(rig.set->running());
    CHECK(rig.set->refusal().find("drive d1 in role 1 is stale") != std::string::npos);
    co_await expect_stopped(&rig);
    rig.drive("d3").state() = newer3;
    co_await rig.start();
    CHECK(rig.set->running());
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
  });
}

// An event comes every minute while something is written, and the next knows that it was durable.
TEST_CASE("An older copy of a drive from the same run is stale after two minutes of writes",
          "[raid][set_back]") {
  for (const Level level : {Level::kRaid1, Level::kRaid10}) {
    CAPTURE(raid::describe(level));
    for_worlds(
        2,
        [](Executor* home, Level its) -> Task<void> {
          ControllerRig rig(*home);
          co_await make(&rig, its, 4);
          co_await expect_whole(&rig);
          co_await rig.sleep(70s);  // What was written until now is known to an event.
          const raid::Event before = rig.set->superblock().event;
          const DriveState older = rig.drive("d2").state();
          co_await rig.sleep(10min);
          CHECK(rig.set->superblock().event == before);  // Nothing was written.
          for (unsigned i = 0; i < 140; ++i) {
            co_await expect_good(rig.write_some(1));
            co_await rig.sleep(1s);
          }
          const std::uint32_t events =
              raid::event_number(rig.set->superblock().event) - raid::event_number(before);
          CHECK((events >= 2 && events <= 3));
          co_await rig.kill();
          rig.drive("d2").state() = older;
          co_await rig.start();
          co_await expect_aside(&rig, "d2");
          co_await expect_stopped(&rig);
        },
        level);
  }
}

// Events are so many that a superblock does not remember all of them.
TEST_CASE("A drive that was away for many events comes back to what it has missed",
          "[raid][set_back]") {
  for_worlds(1, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    rig.options.set.maintenance.event_every = 1s;
    co_await make(&rig, Level::kRaid5, 4);
    co_await expect_whole(&rig);
    Controller::Outcome done = co_await rig.controller->remove_drive("d1");
    CHECK(done.has_value());
    for (unsigned second = 0; second < 150; ++second) {
      co_await expect_good(rig.write(0, 8, second));
      co_await rig.sleep(2s);
    }
    CHECK(rig.set->superblock().history.size() == raid::kMostHistory);
    done = co_await rig.controller->insert_drive("d1", &rig.drive("d1"));
    CHECK(done.has_value());
    CHECK(rig.info("d1").why.empty());
    CHECK(rig.set->drives()->stale_count(1, false) <= 4);  // And what was not flushed.
    co_await expect_whole(&rig);
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("A set finds its journal without its only drive with large physical blocks",
          "[raid][set-back][R-C4]") {
  for_worlds(2, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    std::vector<std::string> names;
    for (unsigned i = 0; i < 4; ++i) {
      names.push_back("d" + std::to_string(i));
      rig.add(names.back());
    }
    rig.drive("d1").mutable_geometry().physical_block_bytes = 8192;
    co_await rig.start();
    const std::string error = co_await rig.create(Level::kRaid5, names);
    REQUIRE(error == "");
    CHECK(rig.set->superblock().physical_block_bytes == 8192);
    co_await expect_good(rig.fill());
    co_await expect_whole(&rig);
    co_await flush(&rig);
    co_await expect_good(rig.write_some(20));
    co_await rig.kill();
    for (const auto& drive : rig.drives) {
      drive->state() = after_power_cut(drive->state(), home->random());
    }
    std::vector<raid::NamedDevice> left = rig.named();
    std::erase_if(left, [](const auto& drive) { return drive.name == "d1"; });
    co_await rig.start(left);
    REQUIRE(rig.set->running());
    CHECK(rig.told(SetEvent::Kind::kJournalReplayed) == 1);
    CHECK(rig.told(SetEvent::Kind::kJournalLost) == 0);
    CHECK(rig.set->set()->geometry().physical_block_bytes == 8192);
    co_await expect_good(rig.check());
    // A drive like the missing drive is accepted; a larger one is not.
    rig.add("large").mutable_geometry().physical_block_bytes = 16384;
    rig.add("same").mutable_geometry().physical_block_bytes = 8192;
    for (const char* name : {"large", "same"}) {
      const auto inserted = co_await rig.controller->insert_drive(name, &rig.drive(name));
      CHECK(inserted.has_value());
    }
    Controller::Outcome replaced = co_await rig.controller->replace_drive("set:1", "large");
    REQUIRE_FALSE(replaced.has_value());
    CHECK(replaced.error().find("accepts at most 8192") != std::string::npos);
    replaced = co_await rig.controller->replace_drive("set:1", "same");
    CHECK(replaced.has_value());
    co_await expect_whole(&rig);
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
  });
}

// As version 3 left it: the field is learned at the first start with all drives, and not before.
TEST_CASE("A set of an older version records its physical blocks when it has all its drives",
          "[raid][set-back][R-C4]") {
  for_worlds(1, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 4);
    rig.drive("d1").mutable_geometry().physical_block_bytes = 4096;
    co_await expect_stopped(&rig);
    for (const auto& drive : rig.drives) {
      for (const std::uint64_t at : raid::kSuperblockOffset) {
        std::vector<std::byte> image(raid::kSuperblockBytes);
        drive->state().durable.read(at, image);
        const auto read = raid::decode_superblock(image);
        if (!read) continue;
        raid::Superblock older = read->superblock;
        older.physical_block_bytes = 0;
        image = raid::encode(older, read->copy_sequence);
        drive->state().durable.write(at, image);
        drive->state().visible.write(at, image);
      }
    }
    std::vector<raid::NamedDevice> left = rig.named();
    std::erase_if(left, [](const auto& drive) { return drive.name == "d1"; });
    co_await rig.start(left);
    REQUIRE(rig.set->running());
    CHECK(rig.set->superblock().physical_block_bytes == 0);
    co_await expect_stopped(&rig);
    co_await rig.start();
    co_await expect_whole(&rig);
    co_await expect_stopped(&rig);
    co_await rig.start();
    REQUIRE(rig.set->running());
    CHECK(rig.set->superblock().physical_block_bytes == 4096);
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("A drive that lost its power, came late or has a bad place is not set back",
          "[raid][set_back]") {
  for_worlds(6, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 5);
    co_await expect_whole(&rig);
    Random random(home->random().next());
    for (unsigned turn = 0; turn < 4; ++turn) {
      // Away for a while, and back just before the end.
      if (turn % 2 == 1) {
        Controller::Outcome done = co_await rig.controller->remove_drive("d3");
        CHECK(done.has_value());
        co_await expect_good(rig.write_some(40));
        done = co_await rig.controller->insert_drive("d3", &rig.drive("d3"));
        CHECK(done.has_value());
        co_await expect_good(rig.write_some(turn));
      } else {
        co_await expect_good(rig.write_some(40));
      }
      co_await rig.kill();
      for (const auto& drive : rig.drives) drive->state() = after_power_cut(drive->state(), random);
      // A bad place where its newest record may be.
      const std::uint64_t journal = (std::uint64_t{1} << 20) / 512;
      for (Lba lba = 0; turn == 2 && lba < journal; lba += 8) {
        rig.drive("d0").make_unreadable(journal + lba);
      }
      co_await rig.start();
      REQUIRE(rig.set->running());
      for (unsigned i = 0; i < 5; ++i) CHECK(rig.info("d" + std::to_string(i)).why.empty());
      co_await expect_whole(&rig);
      co_await expect_good(rig.check());
    }
    co_await expect_stopped(&rig);
  });
}

}  // namespace sandbay::raidtest::set_back_test
