// A set that lost its journal, and what may happen to it before parity is verified: nothing is
// given up that a drive has, and nothing old is read as good.
#include <fmt/core.h>

#include "suspect_rig.h"

namespace sandbay::raidtest::suspect_set_test {

namespace {

constexpr Lba kSuperblocks = (std::uint64_t{128} << 10) / 512;
constexpr Lba kMetadata = (std::uint64_t{1} << 20) / 512;

// Without its journal, all drives there, nothing verified but what the first turn has seen.
Task<void> make_suspect(Bench* bench, Executor* home, Level level) {
  co_await plug_in(bench, home, nvram::Durability::kProcess);
  co_await make(bench, level, 5, false);
  co_await lose_journal(bench, home);
}

// The first block of the role in the last stripe in which it has data.
Lba last_block_of(const raid::Layout& layout, unsigned role) {
  for (std::uint64_t stripe = layout.stripe_count() - 1;; --stripe) {
    for (unsigned member = 0; member < layout.data_chunks(); ++member) {
      if (layout.role(stripe, member) != role) continue;
      return layout.lba({.stripe = stripe, .chunk = member, .row = 0});
    }
  }
}

// No write takes effect any more from the first on for which `now` holds.
void cut_at(ControllerRig* rig, const std::function<bool(const Request&)>& now) {
  for (const auto& each : rig->drives) {
    each->before_change = [rig, now](const TestDrive&, const Request& request) {
      if (request.operation != Operation::kWrite || !now(request)) return;
      for (const auto& drive : rig->drives) drive->fail_with(Error::kNotReady);
    };
  }
}

void end_cut(ControllerRig* rig) {
  for (const auto& each : rig->drives) each->before_change = nullptr;
}

// Rows that match, and the drives know that; then a drive of theirs has no room for new parity.
Task<void> run_out_of_room(Executor* home) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await make(&bench, Level::kRaid5, 4, false);
  co_await lose_journal(&bench, home);
  co_await rig.start();
  const raid::Layout layout = rig.set->drives()->layout();
  const Lba first = layout.lba({.stripe = 1, .chunk = 0, .row = 0});
  co_await expect_good(rig.write(first, 1, 1));
  co_await expect_stopped(&rig);
  co_await rig.start();
  TestDrive& full = *rig.drives[layout.role(1, layout.data_chunks())];
  full.data_from = rig.set->drives()->data_offset();
  full.fill_up(true);
  const std::string refused = co_await rig.write(first, 1, 2);
  CHECK(refused != "");
  full.fill_up(false);
  co_await rig.kill();
  bench.memory.reset();
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await rig.start();
  const auto removed = co_await rig.controller->remove_drive(fmt::format("d{}", layout.role(1, 1)));
  CHECK(removed.has_value());
  Seen seen;
  co_await look_at(&rig, layout.lba({.stripe = 1, .chunk = 1, .row = 0}), 1, &seen);
  CHECK(seen.medium == 1);
  CHECK(seen.wrong == 0);
  co_await expect_stopped(&rig);
  co_await unplug(&bench);
}

// A cell whose drive alone has it: its parities do not take it, and the drive of its second entry
// is missing. Then both drives return; `apart`: one only when the other is whole.
Task<void> return_with_older_entries(Executor* home, bool apart) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await make(&bench, Level::kRaid6, 4, true);
  const raid::Layout layout = rig.set->drives()->layout();
  std::uint64_t stripe = 0;
  while ((layout.role(stripe, 0) + 1) % 4 != layout.role(stripe, 1)) stripe += 2;
  const std::string first = fmt::format("d{}", layout.role(stripe, 1));
  const std::string second = fmt::format("d{}", layout.role(stripe, 0));
  const Lba at = layout.lba({.stripe = stripe, .chunk = 0, .row = 0});
  const std::uint64_t q = rig.set->drives()->data_offset() + layout.drive_lba(stripe);
  co_await lose_journal(&bench, home);
  const std::vector<std::byte> torn(4096, std::byte{0xa5});
  rig.drives[layout.role(stripe, 3)]->state().visible.write(q * 512, torn);
  co_await start_without(&bench, first);
  co_await expect_good(rig.write(at, 8, 1));
  const Error flushed = co_await flush(&rig);
  CHECK(flushed == Error::kNone);
  if (!apart) co_await come_back(&rig, first);
  const auto removed = co_await rig.controller->remove_drive(second);
  REQUIRE(removed.has_value());
  if (apart) {
    co_await come_back(&rig, first);
    verify(&rig);
    const unsigned role = layout.role(stripe, 1);
    const bool whole =
        co_await rig.wait_for([&] { return !rig.set->drives()->stale(role, false); });
    REQUIRE(whole);
    Seen seen;
    co_await look_at(&rig, at, 8, &seen);
    CHECK(seen.wrong == 0);
  }
  co_await come_back(&rig, second);
  verify(&rig);
  co_await expect_whole(&rig);
  Seen seen;
  co_await look_at(&rig, at, 8, &seen);
  CHECK(seen.right == 8);
  const Seen all = co_await look_everywhere(&rig);
  CHECK(all.wrong == 0);
  co_await expect_stopped(&rig);
  co_await unplug(&bench);
}

}  // namespace

TEST_CASE("A spare leaves a drive that has just returned to a suspect set what it has",
          "[raid][journal][N3]") {
  for_worlds(1, [](Executor* home) -> Task<void> {
    Bench bench(*home);
    ControllerRig& rig = bench.rig;
    co_await make_suspect(&bench, home, Level::kRaid6);
    rig.add("spare", std::uint64_t{4} << 20);
    co_await start_without(&bench, "d1");
    const auto added = co_await rig.controller->add_spare("spare", "");
    CHECK(added.has_value());
    const raid::Layout layout = rig.set->drives()->layout();
    rig.drive("d2").fail_with(Error::kHardware);
    for (Lba lba = 0; lba < rig.set->geometry().block_count; lba += 333) {
      const std::vector<std::byte> old = rig.expected;
      const std::string error = co_await rig.write(lba, 3, lba);
      if (!error.empty()) rig.expected = old;
    }
    co_await rig.sleep(100s);
    CHECK(rig.info("spare").use == DriveUse::kSpare);
    const std::size_t lost_before = rig.set_info().lost.size();
    const auto back = co_await rig.controller->insert_drive("d1", &rig.drive("d1"));
    CHECK(back.has_value());
    co_await rig.sleep(10s);
    CHECK(rig.info("spare").use == DriveUse::kSpare);
    const auto replaced = co_await rig.controller->replace_drive("set:2", "");
    REQUIRE_FALSE(replaced.has_value());
    CHECK(replaced.error().find("try again when it is whole") != std::string::npos);
    CHECK(rig.set_info().lost.size() == lost_before);
    verify(&rig);
    co_await expect_whole(&rig);
    CHECK(rig.info("spare").use == DriveUse::kMember);
    for (const Extent& lost : rig.set_info().lost) {
      const raid::Layout::Position at = layout.position(lost.first);
      CHECK(layout.role(at.stripe, at.chunk) == 2);
    }
    const Seen seen = co_await look_everywhere(&rig);
    CHECK(seen.wrong == 0);
    CHECK(seen.other == 0);
    co_await expect_stopped(&rig);
    co_await unplug(&bench);
  });
}

TEST_CASE("A suspect set with a drive away is not verified, and says why", "[raid][journal][N3]") {
  for_worlds(1, [](Executor* home) -> Task<void> {
    Bench bench(*home);
    ControllerRig& rig = bench.rig;
    co_await make_suspect(&bench, home, Level::kRaid5);
    co_await start_without(&bench, "d1");
    const auto refused = rig.controller->verify_set("set");
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().find("verifies itself when all are back") != std::string::npos);
    raid::MaintenancePolicy policy = rig.options.set.maintenance;
    policy.verify_every = 1min;
    rig.controller->set_policy("set", policy);
    co_await rig.sleep(5min);
    CHECK(rig.told(SetEvent::Kind::kVerifyStarted) == 0);
    const auto back = co_await rig.controller->insert_drive("d1", &rig.drive("d1"));
    CHECK(back.has_value());
    verify(&rig);
    co_await expect_whole(&rig);
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
    co_await unplug(&bench);
  });
}

TEST_CASE("A region is not verified if a drive is pulled while it is read", "[raid][journal][N3]") {
  for (const Level level : kParityLevels) {
    CAPTURE(raid::describe(level));
    for_worlds(
        1,
        [](Executor* home, Level level) -> Task<void> {
          Bench bench(*home);
          ControllerRig& rig = bench.rig;
          co_await make_suspect(&bench, home, level);
          co_await rig.start();
          REQUIRE(rig.set->running());
          co_await rig.sleep(1s);
          // The rest of the region in one turn; the set loses d1 when that has been read.
          for (const char* name : {"d0", "d2", "d3", "d4"}) rig.drive(name).slow_reads(1s);
          raid::MaintenancePolicy policy = rig.options.set.maintenance;
          policy.stripes_at_once = 16;
          policy.rate_under_load = 0;
          rig.controller->set_policy("set", policy);
          co_await rig.sleep(500ms);
          rig.drive("d1").fail_with(Error::kNotReady);
          const Lba of_d1 = last_block_of(rig.set->drives()->layout(), 1);
          Seen seen;
          co_await look_at(&rig, of_d1, 8, &seen);
          for (const char* name : {"d0", "d2", "d3", "d4"}) rig.drive(name).slow_reads(0s);
          co_await rig.sleep(2s);
          CHECK(rig.set->drives()->absent_roles() == 2);
          const Seen now = co_await look_everywhere(&rig);
          CHECK(now.wrong == 0);
          rig.drive("d1").fail_with(Error::kNone);
          co_await expect_whole(&rig);
          co_await expect_good(rig.check());
          co_await expect_stopped(&rig);
          co_await unplug(&bench);
        },
        level);
  }
}

TEST_CASE("What was replayed to a drive that is then pulled is not undone when it returns",
          "[raid][journal][N3]") {
  for (const bool away : {false, true}) {
    CAPTURE(away);
    for_worlds(
        1,
        [](Executor* home, bool away) -> Task<void> {
          Bench bench(*home);
          ControllerRig& rig = bench.rig;
          co_await make_suspect(&bench, home, Level::kRaid5);
          co_await rig.start();
          REQUIRE(rig.set->running());
          const Error flushed = co_await flush(&rig);
          CHECK(flushed == Error::kNone);
          const raid::SetDrives& drives = *rig.set->drives();
          const Lba lba = last_block_of(drives.layout(), 1);
          const Lba place = drives.data_offset() +
                            drives.layout().drive_lba(drives.layout().position(lba).stripe);
          co_await expect_good(rig.write(lba, 8, 1));
          co_await rig.kill();
          TestDrive& drive = rig.drive("d1");
          drive.state().visible = drive.state().durable;  // Its cache is lost.
          drive.state().unflushed.clear();
          if (away) {
            bool replayed = false;
            cut_at(&rig, [&](const Request& request) {
              replayed |= request.extent.first == place;
              return replayed && request.extent.first < kMetadata;
            });
            std::vector<raid::NamedDevice> left = rig.named();
            std::erase_if(left, [](const auto& each) { return each.name == "d1"; });
            co_await rig.start(left);
            CHECK(replayed);
            CHECK_FALSE(rig.set->running());
            end_cut(&rig);
            co_await rig.kill();
            co_await rig.start();
          } else {
            // It takes the replay, is pulled before the flush, and loses its cache.
            drive.before_change = [&](const TestDrive&, const Request& request) {
              if (request.operation != Operation::kWrite || request.extent.first != place) return;
              drive.fail_with(Error::kNotReady);
            };
            co_await rig.start();
            co_await rig.sleep(10s);
            drive.before_change = nullptr;
            REQUIRE(rig.set->running());
            CHECK(rig.set->drives()->drive(1) == nullptr);
            drive.state().visible = drive.state().durable;
            drive.state().unflushed.clear();
            drive.fail_with(Error::kNone);
          }
          const bool back =
              co_await rig.wait_for([&rig] { return rig.set->drives()->drive(1) != nullptr; });
          REQUIRE(back);
          verify(&rig);
          co_await expect_whole(&rig);
          Seen seen;
          co_await look_at(&rig, lba, 8, &seen);
          CHECK(seen.wrong == 0);
          co_await expect_stopped(&rig);
          co_await unplug(&bench);
        },
        away);
  }
}

TEST_CASE("The repair of a bad place gives up nothing of a drive that is pulled meanwhile",
          "[raid][journal][N3]") {
  for (const Level level : kParityLevels) {
    CAPTURE(raid::describe(level));
    for_worlds(
        1,
        [](Executor* home, Level level) -> Task<void> {
          Bench bench(*home);
          ControllerRig& rig = bench.rig;
          co_await make_suspect(&bench, home, level);
          co_await rig.start();
          REQUIRE(rig.set->running());
          const raid::SetDrives& drives = *rig.set->drives();
          const raid::Layout layout = drives.layout();
          const std::uint64_t stripe = layout.stripe_count() - 1;
          const unsigned bad = layout.role(stripe, 0);
          const unsigned other = layout.role(stripe, 1);
          rig.drives[bad]->make_unreadable(drives.data_offset() + layout.drive_lba(stripe));
          rig.drives[bad]->slow_reads(1s);
          Seen seen;
          co_await look_at(&rig, stripe * layout.stripe_blocks(), 8, &seen);
          CHECK(seen.medium == 8);
          co_await rig.sleep(500ms);  // The repair reads the bad place itself.
          rig.drives[other]->fail_with(Error::kNotReady);
          co_await rig.sleep(2s);
          rig.drives[bad]->slow_reads(0s);
          CHECK(rig.set->running());
          CHECK(rig.set->drives()->drive(other) == nullptr);
          rig.drives[other]->fail_with(Error::kNone);
          const bool back =
              co_await rig.wait_for([&] { return rig.set->drives()->drive(other) != nullptr; });
          REQUIRE(back);
          verify(&rig);
          co_await expect_whole(&rig);
          for (const Extent& lost : rig.set_info().lost) {
            const raid::Layout::Position at = layout.position(lost.first);
            CHECK(layout.role(at.stripe, at.chunk) == bad);
          }
          const Seen after = co_await look_everywhere(&rig);
          CHECK(after.wrong == 0);
          co_await expect_stopped(&rig);
          co_await unplug(&bench);
        },
        level);
  }
}

TEST_CASE("A set is not suspect for ever if a crash comes when all is verified",
          "[raid][journal][N3]") {
  for_worlds(1, [](Executor* home) -> Task<void> {
    Bench bench(*home);
    ControllerRig& rig = bench.rig;
    co_await make_suspect(&bench, home, Level::kRaid5);
    co_await rig.start();
    REQUIRE(rig.set->running());
    // Nothing is written once the last region's map is: no superblock says that it is verified.
    bool dead = false;
    cut_at(&rig, [&](const Request& request) {
      dead |= rig.set->drives()->unverified_count() == 0 && request.extent.first < kSuperblocks;
      return dead;
    });
    verify(&rig);
    const bool ended = co_await rig.wait_for([&dead] { return dead; });
    REQUIRE(ended);
    end_cut(&rig);
    co_await rig.kill();
    co_await rig.start();
    REQUIRE(rig.set->running());
    CHECK(rig.set->drives()->unverified_count() == 0);
    CHECK_FALSE(rig.set->superblock().redundancy_suspect);
    co_await expect_good(rig.check());
    co_await expect_stopped(&rig);
    co_await unplug(&bench);
  });
}

TEST_CASE("A write without room makes rows of a suspect set doubted beyond a restart",
          "[raid][journal][D-1]") {
  for_worlds(4, run_out_of_room);
}

TEST_CASE("What a drive keeps is not judged by entries that another drive has missed",
          "[raid][integrity][journal]") {
  for (const bool apart : {false, true}) {
    CAPTURE(apart);
    for_worlds(4, return_with_older_entries, apart);
  }
}

// Parity and one block of its stripe are missing; while that block is given up, another place of
// the stripe turns bad.
Task<void> lose_two_in_a_row(Executor* home, Level level) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  bench.small_strips = true;
  co_await make(&bench, level, 4, false);
  const raid::SetDrives& drives = *rig.set->drives();
  const raid::Layout layout = drives.layout();
  const unsigned data = layout.data_chunks();
  const std::uint64_t stripe = 3;
  std::vector<std::string> names;
  for (unsigned member = 0; member < layout.width(); ++member) {
    names.push_back(fmt::format("d{}", layout.role(stripe, member)));
  }
  for (unsigned member = data; member < layout.width(); ++member) {
    const auto removed = co_await rig.controller->remove_drive(names[member]);
    REQUIRE(removed.has_value());
  }
  const Lba at = layout.lba({.stripe = stripe, .chunk = 0, .row = 0});
  co_await expect_good(rig.write(at, 8, 1));
  const Lba place = drives.data_offset() + layout.drive_lba(stripe);
  rig.drive(names[1]).make_unreadable(place);
  unsigned changes = 0;
  rig.drive(names[1]).before_change = [&](const TestDrive&, const Request& request) {
    if (place < request.extent.first || place >= request.extent.end() || changes++ > 0) return;
    rig.drive(names[0]).make_unreadable(place);
  };
  for (unsigned member = data; member < layout.width(); ++member) {
    co_await come_back(&rig, names[member]);
  }
  co_await expect_whole(&rig);
  CHECK(changes > 0);
  const Seen seen = co_await look_everywhere(&rig);
  CHECK(seen.wrong == 0);
  CHECK(seen.other == 0);
  CHECK(seen.medium <= 16);
  co_await expect_stopped(&rig);
}

TEST_CASE("A place that turns bad beside lost blocks does not become zeros", "[raid][recover]") {
  for (const Level level : kParityLevels) for_worlds(4, lose_two_in_a_row, level);
}

Task<void> look(ControllerRig* rig, Lba lba, Seen* seen, bool* ended) {
  co_await look_at(rig, lba, 8, seen);
  *ended = true;
}

// A write has changed parity and finds no room for its data; meanwhile another drive of the stripe
// fails, and a host reads from that.
Task<void> read_beside_failed_write(Executor* home) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await make(&bench, Level::kRaid5, 3, false);
  const raid::Layout layout = rig.set->drives()->layout();
  const auto drive = [&](unsigned member) -> TestDrive& {
    return *rig.drives[layout.role(2, member)];
  };
  Seen seen;
  bool looked = false;
  const Lba place = rig.set->drives()->data_offset() + layout.drive_lba(2);
  drive(1).data_from = rig.set->drives()->data_offset();
  drive(1).fill_up(true);
  drive(1).set_latency(1ms);
  bool looks = false;
  drive(2).before_change = [&](const TestDrive&, const Request& change) {
    if (change.extent.first != place || std::exchange(looks, true)) return;
    drive(0).fail_with(Error::kNotReady);
    spawn(look(&rig, layout.lba({.stripe = 2}), &seen, &looked));
  };
  Request request{.operation = Operation::kWrite,
                  .extent = {.first = layout.lba({.stripe = 2, .chunk = 1}), .block_count = 8}};
  request.data = co_await home->buffers().allocate(8 * 512);
  request.data.fill_zero();
  const Completion written = co_await rig.set->submit(std::move(request));
  const bool done = co_await rig.wait_for([&] { return looked; });
  REQUIRE(done);
  CHECK(written.error == Error::kNotReady);
  CHECK(seen.wrong == 0);
  co_await rig.kill();
}

TEST_CASE("Nothing is computed beside a write that a set does not survive", "[raid][recover]") {
  for_worlds(20, read_beside_failed_write);
}

// A drive has missed writes before the journal was lost, so its content does not count. Then one
// write changes its block and another's, in rows of which entries tell that parity fits.
Task<void> prove_before_writing(Executor* home) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await make(&bench, Level::kRaid5, 3, true);
  const raid::Layout layout = rig.set->drives()->layout();
  const std::uint64_t stripe = 2;
  const std::string first = fmt::format("d{}", layout.role(stripe, 0));
  const auto removed = co_await rig.controller->remove_drive(first);
  REQUIRE(removed.has_value());
  co_await expect_good(rig.write(layout.lba({.stripe = stripe + 2}), 8, 1));
  co_await lose_journal(&bench, home);
  co_await start_without(&bench, first);
  CHECK_FALSE(rig.set->drives()->keeps(stripe, layout.role(stripe, 0)));
  const std::uint32_t rows = layout.strip_blocks();
  const Lba middle = layout.lba({.stripe = stripe, .chunk = 1, .row = 0});
  co_await expect_good(rig.write(middle - rows / 2, rows / 2 + 8, 2));
  co_await rig.kill();
  bench.memory.reset();
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await start_without(&bench, first);
  Seen seen;
  co_await look_at(&rig, middle - rows / 2, rows / 2, &seen);
  CHECK(seen.right == rows / 2);
  co_await rig.kill();
}

TEST_CASE(
    "That a missing drive's data can be computed outlives a crash, also if a settled row tells",
    "[raid][integrity][journal]") {
  for_worlds(4, prove_before_writing);
}

// Two drives are missing; one is back, and its region is not rebuilt yet.
Task<void> write_to_returned_drive(Executor* home) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await make(&bench, Level::kRaid6, 4, false);
  const raid::Layout layout = rig.set->drives()->layout();
  const std::uint64_t stripe = 1;
  const std::string first = fmt::format("d{}", layout.role(stripe, 0));
  const std::string second = fmt::format("d{}", layout.role(stripe, 1));
  co_await lose_journal(&bench, home);
  co_await start_without(&bench, second);
  const auto removed = co_await rig.controller->remove_drive(first);
  REQUIRE(removed.has_value());
  Request zeroes{
      .operation = Operation::kWriteZeroes,
      .extent = {.first = layout.lba({.stripe = 2}), .block_count = layout.stripe_blocks()}};
  std::fill_n(rig.expected.begin() + static_cast<std::ptrdiff_t>(zeroes.extent.first * 512),
              zeroes.extent.block_count * 512, std::byte{});
  const Completion zeroed = co_await rig.set->submit(std::move(zeroes));
  CHECK(zeroed.error == Error::kNone);
  co_await come_back(&rig, first);
  const raid::SetDrives& drives = *rig.set->drives();
  CHECK(drives.keeps(stripe, layout.role(stripe, 0)));
  CHECK(drives.stale(layout.role(stripe, 0), false));
  const Lba at = layout.lba({.stripe = stripe});
  Seen before;
  co_await look_at(&rig, at, 8, &before);
  CHECK(before.right == 8);
  co_await expect_good(rig.write(at + 4, 8, 1));
  Seen after;
  co_await look_at(&rig, at, 16, &after);
  CHECK(after.right == 16);
  co_await come_back(&rig, second);
  verify(&rig);
  co_await expect_whole(&rig);
  const Seen all = co_await look_everywhere(&rig);
  CHECK(all.right == rig.set->geometry().block_count / 8 * 8);
  co_await expect_stopped(&rig);
  co_await unplug(&bench);
}

TEST_CASE("What a returned drive will keep is read before its region is rebuilt",
          "[raid][journal]") {
  for_worlds(4, write_to_returned_drive);
}

// Parity of zeros, data that only its drive has, and a fresh drive full of zeros in its place.
Task<void> replace_by_zeros(Executor* home, bool restart) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await make(&bench, Level::kRaid5, 3, false);
  const raid::SetDrives& drives = *rig.set->drives();
  const raid::Layout layout = drives.layout();
  const std::uint64_t stripe = 2;
  const unsigned role = layout.role(stripe, 0);
  const std::string lost = fmt::format("d{}", role);
  const Lba place = drives.data_offset() + layout.drive_lba(stripe);
  const Lba at = layout.lba({.stripe = stripe});
  co_await lose_journal(&bench, home);
  DriveState& other = rig.drives[layout.role(stripe, 1)]->state();
  DriveState& parity = rig.drives[layout.role(stripe, 2)]->state();
  std::vector<std::byte> bytes(4096);
  other.visible.read(place * 512, bytes);
  parity.visible.write(place * 512, bytes);
  co_await start_without(&bench, lost);
  rig.add("spare", std::uint64_t{4} << 20);
  const auto inserted = co_await rig.controller->insert_drive("spare", &rig.drive("spare"));
  REQUIRE(inserted.has_value());
  const auto begun = co_await rig.controller->replace_drive(fmt::format("set:{}", role), "spare");
  REQUIRE(begun.has_value());
  if (restart) {
    co_await rig.kill();
    bench.memory.reset();
    co_await plug_in(&bench, home, nvram::Durability::kProcess);
    co_await start_without(&bench, lost);
    CHECK(rig.set->drives()->stale(role, false));
  }
  verify(&rig);
  co_await expect_whole(&rig);
  Seen seen;
  co_await look_at(&rig, at, 8, &seen);
  CHECK(seen.medium == 8);
  CHECK(rig.set->drives()->lost().blank(role) == false);
  co_await expect_stopped(&rig);
  co_await unplug(&bench);
}

TEST_CASE("Zeros of a fresh drive are no data, also if they match", "[raid][journal]") {
  for (const bool restart : {false, true}) {
    CAPTURE(restart);
    for_worlds(4, replace_by_zeros, restart);
  }
}

// A cell is found corrupt and mended, so its rows match; then its drive fails. The write beside it
// covers these rows and others, whose second parity does not take it.
Task<void> match_within_a_write(Executor* home) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await make(&bench, Level::kRaid6, 4, true);
  const raid::Layout layout = rig.set->drives()->layout();
  const std::uint64_t stripe = (layout.stripe_count() - 1) / 2 * 2;  // Verified last.
  co_await lose_journal(&bench, home);
  co_await rig.start();
  REQUIRE(rig.set->running());
  const Lba place = rig.set->drives()->data_offset() + layout.drive_lba(stripe);
  TestDrive& beside = *rig.drives[layout.role(stripe, 1)];
  const std::vector<std::byte> junk(4096, std::byte{0xa5});
  beside.state().visible.write(place * 512, junk);
  rig.drives[layout.role(stripe, 3)]->state().visible.write((place + 8) * 512, junk);
  beside.before_change = [&](const TestDrive&, const Request& request) {
    if (request.extent.first == place) beside.fail_with(Error::kNotReady);
  };
  co_await expect_good(rig.write(layout.lba({.stripe = stripe}), 16, 1));
  CHECK(rig.set->drives()->absent_roles() != 0);
  Seen seen;
  co_await look_at(&rig, layout.lba({.stripe = stripe}), 16, &seen);
  CHECK(seen.right == 16);
  Seen computed;
  co_await look_at(&rig, layout.lba({.stripe = stripe, .chunk = 1}), 8, &computed);
  CHECK(computed.right == 8);
  co_await rig.kill();
}

TEST_CASE("A write that covers rows that match and others changes parity of those that match",
          "[raid][integrity][journal]") {
  for_worlds(8, match_within_a_write);
}

// A write to a missing drive is divided, since some of its rows match. Between its parts a place of
// its physical blocks turns bad, and the whole block is lost.
Task<void> lose_within_a_write(Executor* home) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  bench.small_strips = true;
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await make(&bench, Level::kRaid5, 4, false);
  const raid::Layout layout = rig.set->drives()->layout();
  const std::uint64_t stripe = 2;
  co_await lose_journal(&bench, home);
  co_await start_without(&bench, fmt::format("d{}", layout.role(stripe, 1)));
  const Lba at = layout.lba({.stripe = stripe, .chunk = 1});
  co_await expect_good(rig.write(at + 5, 3, 1));
  const Lba place = rig.set->drives()->data_offset() + layout.drive_lba(stripe);
  TestDrive& beside = *rig.drives[layout.role(stripe, 0)];
  bool turned = false;
  rig.drives[layout.role(stripe, 3)]->before_change = [&](const TestDrive&, const Request& change) {
    if (change.extent.first == place && !std::exchange(turned, true)) {
      beside.make_unreadable(place + 5);
    }
  };
  co_await expect_good(rig.write(at, 6, 2));
  CHECK(turned);
  for (Lba lba = at; lba < at + 6; ++lba) {
    Seen seen;
    co_await look_at(&rig, lba, 1, &seen);
    CHECK(seen.right == 1);
  }
  Seen lost;
  co_await look_at(&rig, layout.lba({.stripe = stripe}), 8, &lost);
  CHECK(lost.medium == 8);
  co_await rig.kill();
}

TEST_CASE("A write that loses what it has just written writes it again", "[raid][journal]") {
  for_worlds(4, lose_within_a_write);
}

// One drive has missed a write of the region when the journal is lost; another one has not, and is
// missing for a while.
Task<void> keep_by_role(Executor* home) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await make(&bench, Level::kRaid6, 4, false);
  const raid::Layout layout = rig.set->drives()->layout();
  const std::uint64_t stripe = 1;
  const unsigned behind = layout.role(stripe, 0);
  const unsigned whole = layout.role(stripe, 1);
  const auto name = [](unsigned role) { return fmt::format("d{}", role); };
  const auto removed = co_await rig.controller->remove_drive(name(behind));
  REQUIRE(removed.has_value());
  co_await expect_good(rig.write(layout.lba({.stripe = stripe + 1}), layout.stripe_blocks(), 1));
  co_await lose_journal(&bench, home);
  co_await start_without(&bench, name(behind));
  const auto other = co_await rig.controller->remove_drive(name(whole));
  REQUIRE(other.has_value());
  const raid::SetDrives& drives = *rig.set->drives();
  CHECK_FALSE(drives.keeps(stripe, behind));
  CHECK(drives.keeps(stripe, whole));
  co_await come_back(&rig, name(behind));
  verify(&rig);
  co_await rig.sleep(20s);
  const Lba kept = layout.lba({.stripe = stripe, .chunk = 1});
  Seen missing;
  co_await look_at(&rig, kept, 8, &missing);
  CHECK(missing.medium == 8);
  co_await come_back(&rig, name(whole));
  co_await expect_whole(&rig);
  Seen seen;
  co_await look_at(&rig, kept, 8, &seen);
  CHECK(seen.right == 8);
  const Seen all = co_await look_everywhere(&rig);
  CHECK(all.wrong == 0);
  for (const Extent& lost : rig.set_info().lost) {
    const raid::Layout::Position at = layout.position(lost.first);
    CHECK(layout.role(at.stripe, at.chunk) == behind);
  }
  co_await expect_stopped(&rig);
  co_await unplug(&bench);
}

TEST_CASE("What one drive has missed costs nothing of another one", "[raid][journal][N3]") {
  for_worlds(4, keep_by_role);
}

}  // namespace sandbay::raidtest::suspect_set_test
