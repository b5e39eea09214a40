// Drives that are cleaned for another use, nodes that are made anew, and what each set is told
// about its own upkeep.
#include "controller_rig.h"
#include "raid/drive_metadata.h"

namespace sandbay::raidtest::controller_upkeep_test {
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
  const std::string error = co_await rig->create(level, names);
  REQUIRE(error == "");
}

void expect_refused(const Controller::Outcome& outcome, const std::string& text) {
  REQUIRE_FALSE(outcome.has_value());
  CHECK(outcome.error() == text);
}

// Something of another maker in every place where a drive is looked at, and a superblock of another
// group.
Task<void> litter(TestDrive* drive) {
  const std::uint64_t blocks = drive->geometry().block_count;
  for (const Lba lba : {Lba{3}, Lba{4000}, blocks - 100, blocks - 1}) {
    Request request{.operation = Operation::kWrite, .extent = {.first = lba, .block_count = 1}};
    request.data = co_await drive->home().buffers().allocate(512);
    const std::vector<std::byte> bytes(512, std::byte{0x5a});
    request.data.copy_from(bytes);
    const Completion done = co_await drive->submit(std::move(request));
    CHECK(done.error == Error::kNone);
  }
  raid::DriveMetadata metadata(*drive);
  const Error error = co_await metadata.write_superblock(raid::make_spare({7}, Uuid{9, 9, 9}, 512));
  CHECK(error == Error::kNone);
}

}  // namespace

TEST_CASE("A drive that no set counts on is erased and good for anything again",
          "[raid][controller]") {
  for_worlds(3, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 4);
    co_await expect_good(rig.fill());
    // Not a multiple of 4 KiB: the end of the drive is erased, and nothing behind it.
    co_await litter(&rig.add("foreign", ControllerRig::kDriveBytes + 512));
    co_await litter(&rig.add("foreign2"));
    co_await expect_stopped(&rig);
    co_await rig.start();
    Controller& controller = *rig.controller;
    CHECK(rig.use("foreign") == DriveUse::kStranger);

    Controller::Outcome done = co_await controller.erase_drive("nobody");
    expect_refused(done, "there is no drive nobody");
    done = co_await controller.erase_drive("d1");
    expect_refused(done, "drive d1 is in use by set set; nothing of it is erased");
    done = co_await controller.add_spare("d1", "", true);
    expect_refused(done, "drive d1 is in use by set set; it becomes no spare");

    done = co_await controller.erase_drive("foreign");
    CHECK(done.has_value());
    CHECK(rig.use("foreign") == DriveUse::kBlank);
    raid::DriveMetadata metadata(rig.drive("foreign"));
    const raid::DriveContents contents = co_await metadata.read_contents();
    CHECK(contents.kind == raid::DriveContents::Kind::kBlank);
    done = co_await controller.add_spare("foreign2", "");
    CHECK_FALSE(done.has_value());
    done = co_await controller.add_spare("foreign2", "set", true);
    CHECK(done.has_value());
    CHECK(rig.use("foreign2") == DriveUse::kSpare);

    // What failed in a set is replaced, erased, and the spare of the next.
    rig.drive("d1").fail_with(Error::kHardware);
    co_await expect_good(rig.write_some(10));
    co_await expect_whole(&rig);
    CHECK(rig.info("foreign2").role == 1U);
    done = co_await controller.erase_drive("d1");
    CHECK_FALSE(done.has_value());
    CHECK(rig.use("d1") == DriveUse::kFailed);
    rig.drive("d1").fail_with(Error::kNone);
    done = co_await controller.erase_drive("d1");
    CHECK(done.has_value());
    CHECK(rig.use("d1") == DriveUse::kBlank);
    done = co_await controller.add_spare("d1", "");
    CHECK(done.has_value());
    // The operator condemned one, and says otherwise.
    done = co_await controller.fail_drive("d2");
    CHECK(done.has_value());
    co_await expect_whole(&rig);
    CHECK(rig.info("d1").role == 2U);
    done = co_await controller.add_spare("d2", "", true);
    CHECK(done.has_value());
    CHECK(rig.use("d2") == DriveUse::kSpare);
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
    co_await rig.start();
    CHECK(rig.use("d2") == DriveUse::kSpare);
    CHECK(rig.use("foreign") == DriveUse::kBlank);
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("An erasure that is cut short leaves no part of a set behind", "[raid][controller]") {
  for_worlds(20, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 4);
    co_await expect_stopped(&rig);
    TestDrive& drive = rig.drive("d1");
    std::uint64_t left = home->random().below(10);
    drive.before_change = [&left, &drive](const TestDrive&, const Request&) {
      if (left-- == 0) drive.fail_writes_with(Error::kNotReady);
    };
    raid::DriveMetadata metadata(drive);
    const Error error = co_await metadata.erase_all();
    CHECK(error == Error::kNotReady);
    drive.before_change = nullptr;
    drive.fail_writes_with(Error::kNone);
    raid::DriveMetadata after(drive);
    const raid::DriveContents contents = co_await after.read_contents();
    const bool whole = contents.superblock && contents.superblock->set_name == "set";
    CHECK((whole || contents.kind == raid::DriveContents::Kind::kForeign));
  });
}

TEST_CASE("A drive whose node is made anew is removed and inserted, whatever it was before",
          "[raid][controller]") {
  for_worlds(3, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid5, 4);
    co_await expect_good(rig.fill());
    CHECK(rig.info("d2").attached);
    // The node goes: the device that is open answers no more. Another has the same content.
    TestDrive& old = rig.drive("d2");
    old.fail_with(Error::kNotReady);
    co_await expect_good(rig.write_some(10));
    CHECK(rig.use("d2") == DriveUse::kAbsent);
    CHECK(rig.info("d2").attached);
    TestDrive& anew = rig.add("anew");
    anew.state() = old.state();
    Controller::Outcome done = co_await rig.controller->insert_drive("d2", &anew);
    CHECK_FALSE(done.has_value());
    done = co_await rig.controller->remove_drive("d2");
    CHECK(done.has_value());
    CHECK_FALSE(rig.info("d2").attached);
    done = co_await rig.controller->insert_drive("d2", &anew);
    CHECK(done.has_value());
    CHECK(rig.use("d2") == DriveUse::kMember);
    co_await expect_whole(&rig);
    CHECK(rig.told(SetEvent::Kind::kRebuildStarted) == 1);
    CHECK(rig.told(SetEvent::Kind::kSpareTaken) == 0);
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("A drive that is to fail one day comes back when it was away for a moment",
          "[raid][controller]") {
  for_worlds(2, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    rig.options.look_every = 1s;
    co_await make(&rig, Level::kRaid5, 4);
    co_await expect_good(rig.fill());
    rig.drive("d1").set_health(Health::kPredictedFailure);
    co_await rig.sleep(5s);
    rig.drive("d1").fail_with(Error::kNotReady);
    co_await expect_good(rig.write_some(5));
    CHECK(rig.use("d1") == DriveUse::kAbsent);
    rig.drive("d1").fail_with(Error::kNone);
    co_await expect_whole(&rig);
    CHECK(rig.use("d1") == DriveUse::kMember);
    CHECK(rig.told(SetEvent::Kind::kDriveReturned) == 1);
    Controller::Outcome done = co_await rig.controller->remove_drive("d1");
    CHECK(done.has_value());
    co_await expect_good(rig.write_some(5));
    done = co_await rig.controller->insert_drive("d1", &rig.drive("d1"));
    CHECK(done.has_value());
    co_await expect_whole(&rig);
    CHECK(rig.use("d1") == DriveUse::kMember);
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("A drive with larger physical blocks than its set's gets no role",
          "[raid][controller][R-C5]") {
  for_worlds(1, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    for (const char* name : {"d0", "d1", "large", "same"}) rig.add(name);
    rig.drive("large").mutable_geometry().physical_block_bytes = 8192;
    co_await rig.start();
    const std::string wrong = co_await rig.create(Level::kRaid1, {"d0", "d1"});
    REQUIRE(wrong == "");
    Controller::Outcome done = co_await rig.controller->replace_drive("d0", "large");
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error() ==
          "drive large has physical blocks of 8192 bytes; set set accepts at most 512");
    done = co_await rig.controller->add_spare("large", "");
    CHECK(done.has_value());
    done = co_await rig.controller->fail_drive("d1");
    CHECK(done.has_value());
    co_await rig.sleep(std::chrono::seconds(10));
    CHECK(rig.use("large") == DriveUse::kSpare);
    CHECK(rig.told(SetEvent::Kind::kNoSpare) > 0);
    done = co_await rig.controller->replace_drive("set:1", "same");
    CHECK(done.has_value());
    const bool stopped = co_await rig.stop();
    CHECK(stopped);
  });
}

TEST_CASE("A spare that is failed says so if its superblock stays", "[raid][controller]") {
  for_worlds(1, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    co_await make(&rig, Level::kRaid1, 2);
    for (const char* name : {"s0", "s1"}) {
      rig.add(name);
      Controller::Outcome done = co_await rig.controller->insert_drive(name, &rig.drive(name));
      CHECK(done.has_value());
      done = co_await rig.controller->add_spare(name, {});
      CHECK(done.has_value());
    }
    Controller::Outcome done = co_await rig.controller->fail_drive("s0");
    CHECK(done.has_value());
    rig.drive("s1").fail_writes_with(Error::kHardware);
    done = co_await rig.controller->fail_drive("s1");
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().find("drive s1") != std::string::npos);
    CHECK(done.error().find("cannot be erased") != std::string::npos);
    CHECK(rig.use("s1") == DriveUse::kFailed);
    rig.drive("s1").fail_writes_with(Error::kNone);
    // Neither is taken; after a restart the one whose superblock stayed is a spare again.
    rig.drive("d0").fail_with(Error::kHardware);
    co_await expect_good(rig.fill());
    co_await rig.sleep(10s);
    CHECK(rig.told(SetEvent::Kind::kSpareTaken) == 0);
    rig.drive("d0").fail_with(Error::kNone);
    co_await expect_stopped(&rig);
    co_await rig.start();
    CHECK(rig.use("s0") == DriveUse::kBlank);
    // Perhaps one that was taken at once.
    const bool taken = rig.told(SetEvent::Kind::kSpareTaken) == 1;
    CHECK(rig.use("s1") == (taken ? DriveUse::kMember : DriveUse::kSpare));
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("Each set keeps to its own policy, also after it was away", "[raid][controller]") {
  for_worlds(2, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    rig.options.set.maintenance.verify_every = 0s;
    for (unsigned i = 0; i < 4; ++i) rig.add("e" + std::to_string(i));
    rig.add("d0");
    rig.add("d1");
    co_await rig.start();
    raid::MaintenancePolicy often = rig.options.set.maintenance;
    often.verify_every = 60s;
    rig.controller->set_policy("set", often);  // It is not there yet.
    const std::string error = co_await rig.create(Level::kRaid1, {"d0", "d1"});
    REQUIRE(error == "");
    NewSet wanted;
    wanted.name = "other";
    wanted.level = Level::kRaid1;
    const auto other = co_await rig.controller->create_set(wanted, {"e0", "e1"});
    REQUIRE(other.has_value());
    CHECK(rig.controller->policy("set").verify_every == 60s);
    CHECK(rig.controller->policy("other").verify_every == 0s);
    co_await rig.sleep(150s);
    CHECK(rig.set->maintenance()->verifies_ended() == 2);
    CHECK((*other)->maintenance()->verifies_ended() == 0);
    // Said again, nothing begins anew.
    co_await rig.sleep(20s);
    rig.controller->set_policy("set", often);
    co_await rig.sleep(15s);
    CHECK(rig.set->maintenance()->verifies_ended() == 3);

    Controller::Outcome done = co_await rig.controller->remove_drive("d0");
    CHECK(done.has_value());
    done = co_await rig.controller->remove_drive("d1");
    CHECK(done.has_value());
    CHECK_FALSE(rig.set->running());
    often.verify_every = 10s;
    rig.controller->set_policy("set", often);
    done = co_await rig.controller->insert_drive("d0", &rig.drive("d0"));
    done = co_await rig.controller->insert_drive("d1", &rig.drive("d1"));
    CHECK(done.has_value());
    co_await rig.sleep(25s);
    CHECK(rig.set->maintenance()->verifies_ended() == 2);
    co_await expect_stopped(&rig);
  });
}

TEST_CASE("Another rate counts at once, also for a pause that has begun", "[raid][controller]") {
  for_worlds(2, [](Executor* home) -> Task<void> {
    ControllerRig rig(*home);
    rig.options.set.maintenance.rate_under_load = 1;  // A byte a second: a pause without end.
    rig.options.set.maintenance.host_is_quiet_after = 1h;
    co_await make(&rig, Level::kRaid1, 2);
    co_await expect_good(rig.fill());
    const Controller::Outcome asked = rig.controller->verify_set("set");
    CHECK(asked.has_value());
    co_await rig.sleep(30s);
    CHECK(rig.set->maintenance()->verifies_ended() == 0);
    raid::MaintenancePolicy fast = rig.options.set.maintenance;
    fast.rate_under_load = 0;
    rig.controller->set_policy("set", fast);
    co_await rig.sleep(5s);
    CHECK(rig.set->maintenance()->verifies_ended() == 1);
    // What stops does not wait for a pause either.
    rig.controller->set_policy("set", rig.options.set.maintenance);
    const Controller::Outcome again = rig.controller->verify_set("set");
    CHECK(again.has_value());
    co_await rig.sleep(1s);
    co_await expect_stopped(&rig);
  });
}

}  // namespace sandbay::raidtest::controller_upkeep_test
