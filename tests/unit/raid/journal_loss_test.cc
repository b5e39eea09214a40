// A set whose journal is lost: parity may not match data that was written long ago, so until it is
// verified nothing is computed from it. A host gets right bytes or an error, never others.
#include <algorithm>

#include "suspect_rig.h"

namespace sandbay::raidtest::journal_loss_test {

TEST_CASE("With its journal lost, what cannot be read is lost until parity is verified",
          "[raid][journal]") {
  for (const Level level : kParityLevels) {
    for (const bool integrity : {false, true}) {
      CAPTURE(raid::describe(level), integrity);
      for_worlds(
          2,
          [](Executor* home, Level level, bool integrity) -> Task<void> {
            Bench bench(*home);
            ControllerRig& rig = bench.rig;
            co_await plug_in(&bench, home, nvram::Durability::kProcess);
            co_await make(&bench, level, 5, integrity);
            co_await lose_journal(&bench, home);
            co_await rig.start();
            REQUIRE(rig.set->running());
            CHECK(rig.told(SetEvent::Kind::kJournalLost) == 1);
            CHECK(rig.set->superblock().redundancy_suspect);
            // Behind what the first turn of the verification has seen.
            const raid::SetDrives& drives = *rig.set->drives();
            const raid::Layout& layout = drives.layout();
            Seen seen;
            for (std::uint64_t stripe = layout.stripe_count() - 8; stripe < layout.stripe_count();
                 ++stripe) {
              const Lba lba = stripe * layout.stripe_blocks();
              const Lba at = drives.data_offset() + layout.drive_lba(stripe);
              rig.drives[layout.role(stripe, 0)]->make_unreadable(at);
              co_await look_at(&rig, lba, 8, &seen);
              co_await look_at(&rig, lba + 8, 8, &seen);
            }
            CHECK(seen.wrong == 0);
            CHECK(seen.other == 0);
            CHECK(seen.right + seen.medium == 128);
            CHECK(seen.right >= 64);  // What can be read is.
            if (!integrity) CHECK(seen.medium == 64);
            // Rewritten, it is good again; and so is everything when all is verified.
            Seen after;
            for (std::uint64_t stripe = layout.stripe_count() - 8; stripe < layout.stripe_count();
                 ++stripe) {
              const Lba lba = stripe * layout.stripe_blocks();
              co_await expect_good(rig.write(lba, 8, stripe));
              co_await look_at(&rig, lba, 8, &after);
            }
            CHECK(after.right == 64);
            verify(&rig);
            co_await expect_whole(&rig);
            CHECK_FALSE(rig.set->superblock().redundancy_suspect);
            CHECK(rig.set_info().lost.empty());
            rig.drives[layout.role(3, 0)]->make_unreadable(drives.data_offset() +
                                                           layout.drive_lba(3));
            co_await expect_good(rig.check());
            co_await expect_stopped(&rig);
            co_await unplug(&bench);
          },
          level, integrity);
    }
  }
}

TEST_CASE("With its journal lost, a drive that goes takes what is not verified with it",
          "[raid][journal]") {
  for (const Level level : kParityLevels) {
    for (const bool integrity : {false, true}) {
      CAPTURE(raid::describe(level), integrity);
      for_worlds(
          1,
          [](Executor* home, Level level, bool integrity) -> Task<void> {
            Bench bench(*home);
            ControllerRig& rig = bench.rig;
            co_await plug_in(&bench, home, nvram::Durability::kProcess);
            co_await make(&bench, level, 5, integrity);
            co_await lose_journal(&bench, home);
            co_await rig.start();
            REQUIRE(rig.set->running());
            rig.drive("d1").fail_with(Error::kNotReady);
            const Seen seen = co_await look_everywhere(&rig);
            CHECK(seen.wrong == 0);
            CHECK(seen.other == 0);
            CHECK(seen.medium > 0);
            CHECK(seen.right > seen.medium);
            // It comes back, and nothing was given up, but where the verification was at work.
            const Lba worked_on = 16 * rig.set->drives()->layout().stripe_blocks();
            for (const Extent& lost : rig.set_info().lost) CHECK(lost.end() <= worked_on);
            rig.drive("d1").fail_with(Error::kNone);
            const bool back =
                co_await rig.wait_for([&rig] { return rig.info("d1").use == DriveUse::kMember; });
            REQUIRE(back);
            verify(&rig);
            co_await expect_whole(&rig);
            const Seen after = co_await look_everywhere(&rig, worked_on);
            CHECK(after.right == rig.set->geometry().block_count - worked_on);
            co_await expect_stopped(&rig);
            co_await unplug(&bench);
          },
          level, integrity);
    }
  }
}

TEST_CASE("With its journal lost and a drive gone for good, the rest is served and rebuilt",
          "[raid][journal]") {
  for (const Level level : kParityLevels) {
    for (const bool integrity : {false, true}) {
      CAPTURE(raid::describe(level), integrity);
      for_worlds(
          1,
          [](Executor* home, Level level, bool integrity) -> Task<void> {
            Bench bench(*home);
            ControllerRig& rig = bench.rig;
            co_await plug_in(&bench, home, nvram::Durability::kProcess);
            co_await make(&bench, level, 5, integrity);
            rig.add("spare", std::uint64_t{4} << 20);
            co_await lose_journal(&bench, home);
            co_await rig.start();
            REQUIRE(rig.set->running());
            rig.drive("d1").fail_with(Error::kHardware);
            // Partial writes in suspect stripes with a member away: its cells are lost, and said
            // so.
            for (Lba lba = 0; lba < rig.set->geometry().block_count; lba += 333) {
              co_await expect_good(rig.write(lba, 3, lba));
            }
            const Controller::Outcome added = co_await rig.controller->add_spare("spare", "");
            CHECK(added.has_value());
            verify(&rig);
            co_await expect_whole(&rig);
            CHECK_FALSE(rig.set->superblock().redundancy_suspect);
            const Seen seen = co_await look_everywhere(&rig);
            CHECK(seen.wrong == 0);
            CHECK(seen.other == 0);
            CHECK(seen.medium > 0);
            CHECK(seen.right > seen.medium);
            CHECK_FALSE(rig.set_info().lost.empty());
            // Whatever is redundant is right from here on.
            co_await expect_good(rig.fill());
            rig.drive("d2").fail_with(Error::kHardware);
            co_await expect_good(rig.check());
            co_await expect_stopped(&rig);
            co_await unplug(&bench);
          },
          level, integrity);
    }
  }
}

TEST_CASE("Without its journal a set does not start with a drive that is away or not whole",
          "[raid][journal]") {
  for (const bool stale : {false, true}) {
    CAPTURE(stale);
    for_worlds(
        2,
        [](Executor* home, bool stale) -> Task<void> {
          Bench bench(*home);
          ControllerRig& rig = bench.rig;
          co_await plug_in(&bench, home, nvram::Durability::kProcess);
          co_await make(&bench, Level::kRaid5, 4, false);
          if (stale) {
            rig.drive("d1").fail_with(Error::kNotReady);
            co_await expect_good(rig.write_some(20));
          }
          co_await lose_journal(&bench, home);
          if (stale) {
            co_await rig.start();
          } else {
            co_await rig.start(
                {{"d0", &rig.drive("d0")}, {"d2", &rig.drive("d2")}, {"d3", &rig.drive("d3")}});
          }
          REQUIRE(rig.set != nullptr);
          CHECK_FALSE(rig.set->running());
          CHECK(rig.set->refusal().find("NVRAM") != std::string::npos);
          co_await rig.sleep(10s);
          CHECK_FALSE(rig.set->running());
          CHECK_FALSE(rig.set->superblock().clean);
          if (!stale) {
            const Controller::Outcome back =
                co_await rig.controller->insert_drive("d1", &rig.drive("d1"));
            CHECK(back.has_value());
            REQUIRE(rig.set->running());
            verify(&rig);
            co_await expect_whole(&rig);
            co_await expect_good(rig.check());
          }
          co_await expect_stopped(&rig);
          co_await unplug(&bench);
        },
        stale);
  }
}

// One drive is gone for good, with the journal: an operator takes what is left.
TEST_CASE("A degraded set that lost its journal starts when the loss is accepted",
          "[raid][journal][R-B1]") {
  for (const Level level : kParityLevels) {
    for (const bool integrity : {false, true}) {
      CAPTURE(raid::describe(level), integrity);
      for_worlds(
          1,
          [](Executor* home, Level level, bool integrity) -> Task<void> {
            Bench bench(*home);
            ControllerRig& rig = bench.rig;
            co_await plug_in(&bench, home, nvram::Durability::kProcess);
            co_await make(&bench, level, 5, integrity);
            co_await lose_journal(&bench, home);
            std::vector<raid::NamedDevice> left = rig.named();
            std::erase_if(left, [](const auto& drive) { return drive.name == "d1"; });
            co_await rig.start(left);
            REQUIRE(rig.set != nullptr);
            CHECK_FALSE(rig.set->running());
            CHECK(rig.set->refusal().find("raid start set --accept-loss") != std::string::npos);
            Controller::Outcome started = co_await rig.controller->start_set("set", false);
            CHECK_FALSE(started.has_value());
            CHECK_FALSE(rig.set->running());
            started = co_await rig.controller->start_set("set", true);
            REQUIRE(started.has_value());
            CHECK(rig.said("an operator accepts the loss"));
            started = co_await rig.controller->start_set("set", true);
            CHECK(!started.has_value());  // It runs.
            Seen seen = co_await look_everywhere(&rig);
            CHECK(seen.wrong == 0);
            CHECK(seen.other == 0);
            CHECK((seen.medium > 0 || integrity));
            CHECK(seen.right > seen.medium);
            // It starts again by itself, and a spare makes it whole.
            co_await expect_stopped(&rig);
            co_await rig.start(left);
            REQUIRE(rig.set->running());
            TestDrive& spare = rig.add("spare", std::uint64_t{4} << 20);
            const auto inserted = co_await rig.controller->insert_drive("spare", &spare);
            CHECK(inserted.has_value());
            const auto added = co_await rig.controller->add_spare("spare", "");
            CHECK(added.has_value());
            const auto replaced = co_await rig.controller->replace_drive("set:1", "spare");
            CHECK(replaced.has_value());
            verify(&rig);
            co_await expect_whole(&rig);
            seen = co_await look_everywhere(&rig);
            CHECK(seen.wrong == 0);
            CHECK(seen.other == 0);
            CHECK_FALSE(rig.set->superblock().redundancy_suspect);
            co_await expect_good(rig.fill());
            rig.drive("d2").fail_with(Error::kHardware);
            co_await expect_good(rig.check());
            co_await expect_stopped(&rig);
            co_await unplug(&bench);
          },
          level, integrity);
    }
  }
}

TEST_CASE("A drive that returns to a suspect set has its content, and the set what was written",
          "[raid][journal][N3]") {
  for (const Level level : kParityLevels) {
    for (const bool restart : {false, true}) {
      CAPTURE(raid::describe(level), restart);
      for_worlds(
          1,
          [](Executor* home, Level level, bool restart) -> Task<void> {
            Bench bench(*home);
            ControllerRig& rig = bench.rig;
            co_await plug_in(&bench, home, nvram::Durability::kProcess);
            co_await make(&bench, level, 5, false);
            co_await lose_journal(&bench, home);
            std::vector<raid::NamedDevice> left = rig.named();
            std::erase_if(left, [](const auto& drive) { return drive.name == "d1"; });
            co_await rig.start(left);
            const auto started = co_await rig.controller->start_set("set", true);
            REQUIRE(started.has_value());
            const std::vector<Extent> all{{0, rig.set->geometry().block_count}};
            CHECK(rig.set_info().suspect == all);
            const Seen before = co_await look_everywhere(&rig);
            for (Lba lba = 0; lba < rig.set->geometry().block_count; lba += 333) {
              co_await expect_good(rig.write(lba, 3, lba));
              co_await expect_good(rig.read(lba, 3));  // From parity, if d1 should have it.
            }
            CHECK(rig.set_info().lost.empty());
            if (restart) {
              co_await expect_stopped(&rig);
              co_await rig.start(left);
            }
            const Seen after = co_await look_everywhere(&rig);
            CHECK(after.wrong == 0);
            CHECK(after.right >= before.right);
            const auto back = co_await rig.controller->insert_drive("d1", &rig.drive("d1"));
            CHECK(back.has_value());
            verify(&rig);
            co_await expect_whole(&rig);
            CHECK(rig.set_info().lost.empty());
            CHECK(rig.set_info().suspect.empty());
            co_await expect_good(rig.check());
            rig.drive("d2").fail_with(Error::kHardware);
            co_await expect_good(rig.check());
            co_await expect_stopped(&rig);
            co_await unplug(&bench);
          },
          level, restart);
    }
  }
}

TEST_CASE("A suspect set refuses a write that needs data of a missing drive",
          "[raid][journal][N3]") {
  for_worlds(1, [](Executor* home) -> Task<void> {
    Bench bench(*home);
    ControllerRig& rig = bench.rig;
    rig.options.set.most_lost_bytes = 300;  // Room for a few rows that match.
    co_await plug_in(&bench, home, nvram::Durability::kProcess);
    co_await make(&bench, Level::kRaid5, 5, false);
    co_await lose_journal(&bench, home);
    std::vector<raid::NamedDevice> left = rig.named();
    std::erase_if(left, [](const auto& drive) { return drive.name == "d1"; });
    co_await rig.start(left);
    const auto started = co_await rig.controller->start_set("set", true);
    REQUIRE(started.has_value());
    const raid::SetDrives& drives = *rig.set->drives();
    const raid::Layout& layout = drives.layout();
    unsigned written = 0;
    unsigned refused = 0;
    for (std::uint64_t stripe = 0; stripe < layout.stripe_count(); ++stripe) {
      for (unsigned member = 0; member < layout.data_chunks(); ++member) {
        if (layout.role(stripe, member) != 1) continue;
        const Lba lba = layout.lba({.stripe = stripe, .chunk = member, .row = 0});
        const std::vector<std::byte> old = rig.expected;
        const std::string error = co_await rig.write(lba, 1, stripe);
        ++(error.empty() ? written : refused);
        if (!error.empty()) rig.expected = old;
        const std::string read = co_await rig.read(lba, 1);
        CHECK(read.empty() == error.empty());
      }
    }
    CHECK(written > 10);
    CHECK(refused > 10);
    CHECK(rig.said("bring the drive back"));
    unsigned refused_zeroes = 0;
    for (std::uint64_t stripe = 0; stripe < layout.stripe_count(); ++stripe) {
      const Extent whole{.first = layout.lba({.stripe = stripe}),
                         .block_count = layout.stripe_blocks()};
      const Completion zeroed =
          co_await rig.set->submit(Request{.operation = Operation::kWriteZeroes, .extent = whole});
      CHECK((zeroed.error == Error::kNone || zeroed.error == Error::kMediumError));
      refused_zeroes += zeroed.error == Error::kMediumError ? 1 : 0;
    }
    CHECK(refused_zeroes > 10);
    co_await expect_stopped(&rig);
    co_await unplug(&bench);
  });
}

TEST_CASE("A spare does not take the role of a missing drive while parity is not verified",
          "[raid][journal][N2]") {
  for (const Level level : kParityLevels) {
    CAPTURE(raid::describe(level));
    for_worlds(
        1,
        [](Executor* home, Level level) -> Task<void> {
          Bench bench(*home);
          ControllerRig& rig = bench.rig;
          co_await plug_in(&bench, home, nvram::Durability::kProcess);
          co_await make(&bench, level, 5, false);
          rig.add("spare", std::uint64_t{4} << 20);
          co_await lose_journal(&bench, home);
          std::vector<raid::NamedDevice> left = rig.named();
          std::erase_if(left, [](const auto& drive) { return drive.name == "d1"; });
          co_await rig.start(left);
          const auto started = co_await rig.controller->start_set("set", true);
          REQUIRE(started.has_value());
          const auto added = co_await rig.controller->add_spare("spare", "");
          CHECK(added.has_value());
          verify(&rig);
          const Seen before = co_await look_everywhere(&rig);
          co_await rig.sleep(300s);
          CHECK(rig.info("spare").use == DriveUse::kSpare);
          CHECK(rig.said("drive replace set:1"));
          CHECK(rig.set_info().lost.empty());
          const Seen after = co_await look_everywhere(&rig);
          CHECK(after.right == before.right);
          CHECK(after.wrong == 0);
          // It may come back.
          const auto back = co_await rig.controller->insert_drive("d1", &rig.drive("d1"));
          CHECK(back.has_value());
          co_await expect_whole(&rig);
          co_await expect_good(rig.check());
          co_await expect_stopped(&rig);
          co_await unplug(&bench);
        },
        level);
  }
}

TEST_CASE("A spare takes the role of a missing drive when an operator fails the drive",
          "[raid][journal][N2]") {
  for_worlds(1, [](Executor* home) -> Task<void> {
    Bench bench(*home);
    ControllerRig& rig = bench.rig;
    co_await plug_in(&bench, home, nvram::Durability::kProcess);
    co_await make(&bench, Level::kRaid5, 5, false);
    rig.add("spare", std::uint64_t{4} << 20);
    co_await lose_journal(&bench, home);
    co_await rig.start();
    REQUIRE(rig.set->running());
    const auto added = co_await rig.controller->add_spare("spare", "");
    CHECK(added.has_value());
    rig.drive("d1").fail_with(Error::kNotReady);
    (void)co_await look_everywhere(&rig);
    co_await rig.sleep(300s);
    CHECK(rig.info("spare").use == DriveUse::kSpare);
    const auto failed = co_await rig.controller->fail_drive("d1");
    CHECK(failed.has_value());
    const bool taken =
        co_await rig.wait_for([&rig] { return rig.info("spare").use == DriveUse::kMember; });
    CHECK(taken);
    co_await expect_stopped(&rig);
    co_await unplug(&bench);
  });
}

TEST_CASE("A set whose NVRAM fails runs on without a journal", "[raid][journal][R-B5]") {
  for (const Level level : kParityLevels) {
    CAPTURE(raid::describe(level));
    for_worlds(
        1,
        [](Executor* home, Level level) -> Task<void> {
          Bench bench(*home);
          ControllerRig& rig = bench.rig;
          co_await plug_in(&bench, home, nvram::Durability::kHost);
          co_await make(&bench, level, 5, false);
          bench.board.sync_error = Error::kNoSpace;
          const std::string failed = co_await rig.write(0, 3, 1);  // The set stops for it.
          CHECK(failed != "");
          const bool back = co_await rig.wait_for(
              [&rig] { return rig.said("it runs without a journal") && rig.set->running(); });
          REQUIRE(back);
          CHECK(rig.set->set()->journal() == nullptr);
          co_await expect_good(rig.write(0, 3, 2));
          co_await expect_whole(&rig);
          co_await expect_good(rig.fill());
          // A crash now: the next start, with an NVRAM that works, verifies everything.
          co_await expect_good(rig.write_some(20));
          for (const auto& drive : rig.drives) {
            Request flush;
            flush.operation = Operation::kFlush;
            co_await drive->submit(std::move(flush));
          }
          co_await rig.kill();
          bench.memory.reset();
          bench.board.sync_error = Error::kNone;
          co_await plug_in(&bench, home, nvram::Durability::kHost);
          rig.events.clear();
          co_await rig.start();
          REQUIRE(rig.set->running());
          CHECK(rig.told(SetEvent::Kind::kJournalLost) > 0);
          CHECK(rig.set->set()->journal() != nullptr);
          co_await expect_whole(&rig);
          co_await expect_good(rig.check());
          co_await expect_stopped(&rig);
          co_await unplug(&bench);
        },
        level);
  }
}

// The set was not running when its NVRAM failed, so updates in there may be on no drive.
TEST_CASE("A set that needs records of a failed NVRAM waits for it or for --accept-loss",
          "[raid][journal][R-B5]") {
  for (const bool accept : {false, true}) {
    CAPTURE(accept);
    for_worlds(
        1,
        [](Executor* home, bool accept) -> Task<void> {
          Bench bench(*home);
          ControllerRig& rig = bench.rig;
          co_await plug_in(&bench, home, nvram::Durability::kHost);
          co_await make(&bench, Level::kRaid5, 4, false);
          co_await expect_good(rig.write_some(20));
          co_await rig.kill();
          for (const auto& drive : rig.drives) {
            drive->state() = after_power_cut(drive->state(), home->random());
          }
          bench.memory.reset();
          co_await plug_in(&bench, home, nvram::Durability::kHost);
          bench.board.sync_error = Error::kHardware;
          const Error failed = co_await bench.memory->commit();
          REQUIRE(failed == Error::kHardware);
          co_await rig.start();
          CHECK_FALSE(rig.set->running());
          CHECK(rig.set->refusal().find("its NVRAM has failed") != std::string::npos);
          CHECK(rig.set->refusal().find("--accept-loss") != std::string::npos);
          co_await rig.sleep(10s);
          CHECK_FALSE(rig.set->running());
          if (accept) {
            const Controller::Outcome started = co_await rig.controller->start_set("set", true);
            REQUIRE(started.has_value());
            CHECK(rig.told(SetEvent::Kind::kJournalLost) > 0);
            co_await expect_whole(&rig);
            co_await expect_good(rig.fill());
            rig.drive("d2").fail_with(Error::kHardware);
            co_await expect_good(rig.check());
            co_await expect_stopped(&rig);
          } else {  // Nothing of it is lost when the NVRAM works again.
            co_await rig.kill();
            bench.memory.reset();
            bench.board.sync_error = Error::kNone;
            co_await plug_in(&bench, home, nvram::Durability::kHost);
            co_await rig.start();
            REQUIRE(rig.set->running());
            CHECK(rig.told(SetEvent::Kind::kJournalReplayed) == 1);
            co_await expect_good(rig.check());
            co_await expect_stopped(&rig);
            co_await unplug(&bench);
          }
        },
        accept);
  }
}

// What is lost with an NVRAM that was in use: each block is as it was when it was last flushed, or
// as it was written since. Never anything else, also where a drive cannot be read afterwards.
TEST_CASE("A dead battery or a crash of the host costs the last writes, and nothing before",
          "[raid][journal]") {
  for (const bool battery : {false, true}) {
    for (const bool integrity : {false, true}) {
      CAPTURE(battery, integrity);
      for_worlds(
          3,
          [](Executor* home, bool battery, bool integrity) -> Task<void> {
            Bench bench(*home);
            ControllerRig& rig = bench.rig;
            Random random(home->random().next());
            co_await plug_in(&bench, home, nvram::Durability::kProcess);
            co_await make(&bench, Level::kRaid5, 4, integrity);
            const Completion flushed =
                co_await rig.set->submit(Request{.operation = Operation::kFlush});
            CHECK(flushed.error == Error::kNone);
            const std::vector<std::byte> before = rig.expected;
            for (Lba lba = 16; lba + 40 < rig.set->geometry().block_count; lba += 64) {
              co_await expect_good(rig.write(lba, 1 + random.below(40), random.next()));
            }
            if (battery) bench.memory->battery().set_state(nvram::BatteryState::kDead);
            if (battery) bench.memory->cut_power();
            co_await rig.kill();
            for (const auto& drive : rig.drives) {
              drive->state() = after_power_cut(drive->state(), random);
            }
            bench.memory.reset();
            if (!battery) bench.board.crash_host(random);
            co_await plug_in(&bench, home, nvram::Durability::kProcess,
                             battery ? "boot" : "another boot");
            rig.options.set.maintenance.rate_under_load = 1;
            rig.options.set.maintenance.host_is_quiet_after = 1000h;
            co_await rig.start();
            REQUIRE(rig.set->running());
            CHECK(rig.told(SetEvent::Kind::kJournalLost) == 1);
            CHECK(rig.set->superblock().redundancy_suspect);
            const unsigned bad = static_cast<unsigned>(random.below(4));
            rig.drives[bad]->fail_with(random.chance(0.5) ? Error::kNotReady : Error::kHardware);
            std::uint64_t right = 0;
            std::uint64_t wrong = 0;
            for (Lba lba = 0; lba < rig.set->geometry().block_count; ++lba) {
              Request request{.extent = {.first = lba, .block_count = 1}};
              request.data = co_await home->buffers().allocate(512);
              const Completion done = co_await rig.set->submit(std::move(request));
              if (done.error != Error::kNone) continue;
              std::vector<std::byte> bytes(512);
              done.data.copy_to(bytes);
              const auto at = static_cast<std::ptrdiff_t>(lba * 512);
              const bool good = std::equal(bytes.begin(), bytes.end(), before.begin() + at) ||
                                std::equal(bytes.begin(), bytes.end(), rig.expected.begin() + at);
              ++(good ? right : wrong);
            }
            CHECK(wrong == 0);
            CHECK(right > rig.set->geometry().block_count / 2);
            co_await expect_stopped(&rig);
            co_await unplug(&bench);
          },
          battery, integrity);
    }
  }
}

TEST_CASE("A journal that is lost with a set stopped in order is not missed", "[raid][journal]") {
  for_worlds(2, [](Executor* home) -> Task<void> {
    Bench bench(*home);
    ControllerRig& rig = bench.rig;
    co_await plug_in(&bench, home, nvram::Durability::kProcess);
    co_await make(&bench, Level::kRaid5, 4, false);
    // Another NVRAM.
    co_await expect_stopped(&rig);
    bench.memory.reset();
    bench.board = nvram::SimulatedBoard(kBoardBytes);
    co_await plug_in(&bench, home, nvram::Durability::kProcess);
    co_await rig.start();
    REQUIRE(rig.set->running());
    CHECK(rig.whole());
    // The same, of a host that has crashed after the set was stopped.
    co_await expect_stopped(&rig);
    bench.memory.reset();
    bench.board.crash_host(home->random());
    co_await plug_in(&bench, home, nvram::Durability::kProcess, "another boot");
    co_await rig.start();
    REQUIRE(rig.set->running());
    CHECK(rig.whole());
    CHECK(rig.told(SetEvent::Kind::kJournalLost) == 0);
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
    co_await unplug(&bench);
  });
}

TEST_CASE("An older content of NVRAM is not replayed over what was written since",
          "[raid][journal]") {
  for (const bool without_between : {false, true}) {
    CAPTURE(without_between);
    for_worlds(
        3,
        [](Executor* home, bool between) -> Task<void> {
          Bench bench(*home);
          ControllerRig& rig = bench.rig;
          co_await plug_in(&bench, home, nvram::Durability::kProcess);
          co_await make(&bench, Level::kRaid5, 4, false);
          co_await rig.kill();
          const nvram::SimulatedBoard earlier = bench.board;
          bench.memory.reset();
          // A run after it, with that NVRAM or with none.
          if (between) {
            rig.options.set.nvram = nullptr;
          } else {
            co_await plug_in(&bench, home, nvram::Durability::kProcess);
          }
          co_await rig.start();
          REQUIRE(rig.set->running());
          const unsigned replayed = rig.told(SetEvent::Kind::kJournalReplayed);
          CHECK(replayed == (between ? 0 : 1));
          co_await expect_good(rig.fill());
          const Completion flushed =
              co_await rig.set->submit(Request{.operation = Operation::kFlush});
          CHECK(flushed.error == Error::kNone);
          const unsigned lost = rig.told(SetEvent::Kind::kJournalLost);
          co_await rig.kill();
          bench.memory.reset();
          bench.board = earlier;
          co_await plug_in(&bench, home, nvram::Durability::kProcess);
          co_await rig.start();
          REQUIRE(rig.set->running());
          CHECK(rig.told(SetEvent::Kind::kJournalLost) == lost + 1);
          CHECK(rig.told(SetEvent::Kind::kJournalReplayed) == replayed);
          CHECK(rig.set->superblock().redundancy_suspect);
          co_await expect_good(rig.check());
          co_await expect_whole(&rig);
          CHECK_FALSE(rig.set->superblock().redundancy_suspect);
          co_await expect_good(rig.check());
          co_await expect_stopped(&rig);
          co_await unplug(&bench);
        },
        without_between);
  }
}

TEST_CASE("A set that stops in order leaves an empty journal", "[raid][journal]") {
  for (const bool in_nvram : {false, true}) {
    CAPTURE(in_nvram);
    for_worlds(
        3,
        [](Executor* home, bool nvram) -> Task<void> {
          Bench bench(*home);
          ControllerRig& rig = bench.rig;
          if (nvram) co_await plug_in(&bench, home, nvram::Durability::kProcess);
          co_await make(&bench, Level::kRaid5, 4, false);
          co_await expect_good(rig.write_some(50));
          co_await expect_stopped(&rig);
          co_await rig.start();
          REQUIRE(rig.set->running());
          CHECK(rig.told(SetEvent::Kind::kJournalReplayed) == 0);
          co_await expect_good(rig.check());
          co_await expect_stopped(&rig);
          if (nvram) co_await unplug(&bench);
        },
        in_nvram);
  }
}

TEST_CASE("A journal keeps its size, whatever a new one would have", "[raid][journal]") {
  for_worlds(1, [](Executor* home) -> Task<void> {
    Bench bench(*home);
    ControllerRig& rig = bench.rig;
    co_await plug_in(&bench, home, nvram::Durability::kProcess);
    co_await make(&bench, Level::kRaid5, 4, false);
    co_await rig.kill();
    rig.options.set.nvram_journal_bytes = 2 << 20;
    co_await rig.start();
    REQUIRE(rig.set->running());
    CHECK(bench.memory->regions().at(0).byte_count == 4 << 20);
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
    co_await unplug(&bench);
  });
}

}  // namespace sandbay::raidtest::journal_loss_test
