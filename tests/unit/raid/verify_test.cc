// Members that something has overwritten behind the set's back: verify finds which one it was where
// that can be told, and with integrity a blank set knows what it never wrote.
#include "set_rig.h"

namespace sandbay::raidtest::verify_test {
namespace {

Task<void> expect_clean(SetRig* rig) {
  co_await rig->check_everything();
  for (const std::string& failure : rig->failures) UNSCOPED_INFO(failure);
  CHECK(rig->failures.empty());
}

struct Spoilt {
  SetShape shape;
  bool verified = false;  // Before; else redundancy has never been.
};

Task<void> locate_one(Executor* home, Spoilt its) {
  SetRig rig(*home, its.shape);
  co_await rig.create();
  if (its.verified) co_await rig.fill_all_with_junk();
  if (its.verified) co_await rig.fill();
  co_await rig.exercise(4);
  if (its.verified) co_await rig.verify_all();
  const Layout& layout = rig.set->layout();
  for (unsigned round = 0; round < 12; ++round) {
    const std::uint64_t stripe = home->random().below(layout.stripe_count());
    const auto member = static_cast<unsigned>(home->random().below(layout.width()));
    const auto rows = static_cast<std::uint32_t>(1 + home->random().below(layout.strip_blocks()));
    const auto row =
        static_cast<std::uint32_t>(home->random().below(layout.strip_blocks() - rows + 1));
    rig.spoil(stripe, member, row, std::uint64_t{rows} * 512);
    const RaidSet::Verified verified = co_await rig.set->verify_stripe(stripe);
    CHECK(verified.error == Error::kNone);
    // A parity that does not match says nothing where none was ever verified.
    CHECK((verified.mismatch || (!its.verified && member >= layout.data_chunks())));
    const RaidSet::Verified again = co_await rig.set->verify_stripe(stripe);
    CHECK((again.error == Error::kNone && !again.mismatch));
  }
  co_await expect_clean(&rig);
  // Parity is what it was, too.
  rig.devices[1]->fail_with(Error::kHardware);
  rig.devices[4]->fail_with(Error::kHardware);
  if (its.verified) co_await expect_clean(&rig);
  co_await rig.end();
}

// Data that was there before the set pins down nothing, but parity that was computed of it does.
Task<void> locate_by_neighbours(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill_all_with_junk();
  const Layout& layout = rig.set->layout();
  const std::uint32_t rows = layout.strip_blocks();
  for (std::uint64_t stripe = 3; stripe < 11; ++stripe) {
    const auto never = static_cast<unsigned>(stripe % layout.data_chunks());
    for (unsigned chunk = 0; chunk < layout.data_chunks(); ++chunk) {
      const Lba lba = layout.lba({.stripe = stripe, .chunk = chunk, .row = 0});
      if (chunk == never) {
        const Error read = co_await rig.read_raw(
            lba, std::span(rig.expected).subspan(lba * 512, std::size_t{rows} * 512));
        CHECK(read == Error::kNone);
        continue;
      }
      const Error written = co_await rig.write(lba, rows, lba);
      CHECK(written == Error::kNone);
    }
    rig.spoil(stripe, never, 0, std::uint64_t{rows} * 512);
    const RaidSet::Verified verified = co_await rig.set->verify_stripe(stripe);
    CHECK((verified.error == Error::kNone && verified.mismatch));
    const std::string wrong = co_await rig.read(
        layout.lba({.stripe = stripe, .chunk = 0, .row = 0}), layout.stripe_blocks());
    CHECK(wrong == "");
  }
  co_await rig.end();
}

Task<void> read_never_written(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  rig.blank = true;
  co_await rig.create();
  const Error written = co_await rig.write(0, 24, 5);
  CHECK(written == Error::kNone);
  const Layout& layout = rig.set->layout();
  const std::uint64_t last = layout.stripe_count() - 1;
  for (std::uint64_t stripe = last; stripe > last - 8; --stripe) {
    const auto member = static_cast<unsigned>(home->random().below(layout.width()));
    rig.spoil(stripe, member, 0, 512);
    const std::uint64_t first = stripe * layout.stripe_blocks();
    const std::string wrong = co_await rig.read(first, layout.stripe_blocks());
    CHECK(wrong == (layout.redundancy() > 0 ? "" : std::string(describe(Error::kMediumError))));
    if (layout.redundancy() > 0) continue;
    const Error again = co_await rig.write(first, layout.stripe_blocks(), stripe);
    CHECK(again == Error::kNone);
  }
  co_await rig.verify_all();
  co_await expect_clean(&rig);
  co_await rig.end();
}

// A write that fails leaves a stripe unequal that the verify under way has passed already.
Task<void> lose_redundancy_behind_verify(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  rig.drives->redundancy_lost(0);
  Maintenance maintenance(*rig.set, {.rate_under_load = 0, .stripes_at_once = 1});
  maintenance.start();
  while (maintenance.progress().done_stripes < 8) {
    co_await home->sleep_for(std::chrono::microseconds(50));
  }
  REQUIRE(rig.drives->unverified_count() == 1);
  rig.spoil(0, rig.set->layout().width() - 1, 0, 512);
  rig.drives->redundancy_lost(0);
  co_await maintenance.wait_idle();
  co_await maintenance.stop();
  CHECK(rig.drives->unverified_count() == 0);
  const RaidSet::Verified verified = co_await rig.set->verify_stripe(0);
  CHECK(verified.error == Error::kNone);
  CHECK_FALSE(verified.mismatch);
  co_await expect_clean(&rig);
  co_await rig.end();
}

struct Incomplete {
  SetShape shape;
  unsigned spoilt;  // Members of a stripe.
  unsigned missing;
};

Task<void> verify_incomplete(Executor* home, Incomplete its) {
  SetRig rig(*home, its.shape);
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  const Error flushed = co_await rig.set->flush_drives();
  REQUIRE(flushed == Error::kNone);
  constexpr std::uint64_t kStripe = 7;
  rig.spoil(kStripe, its.spoilt, 0, 1024);
  const unsigned role = rig.set->layout().role(kStripe, its.missing);
  const bool dropped = rig.drives->drop(role, DropReason::kMissing, "a test says so");
  REQUIRE(dropped);
  Error settled = co_await rig.drives->settled();
  REQUIRE(settled == Error::kNone);
  const RaidSet::Verified degraded = co_await rig.set->verify_stripe(kStripe);
  CHECK(degraded.error == Error::kNone);
  CHECK(degraded.mismatch);
  CHECK(degraded.left);
  CHECK(rig.events.back().find("nothing was changed") != std::string::npos);
  CHECK(rig.drives->stale_count(role, false) == 0);
  const Uuid uuid = rig.drives->superblock().roles[role].drive;
  rig.drives->take_role(role, *rig.devices[role], "back", {}, uuid, true);
  settled = co_await rig.drives->settled();
  REQUIRE(settled == Error::kNone);
  const RaidSet::Verified whole = co_await rig.set->verify_stripe(kStripe);
  CHECK(whole.error == Error::kNone);
  CHECK(whole.mismatch);
  CHECK_FALSE(whole.left);
  co_await expect_clean(&rig);
  const RaidSet::Verified again = co_await rig.set->verify_stripe(kStripe);
  CHECK_FALSE(again.mismatch);
  co_await rig.end();
}

// Every copy but the last is spoilt somewhere, none in the same place as another; then each is all
// that is left.
Task<void> outvote(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  const Layout& layout = rig.set->layout();
  for (std::uint64_t stripe = 0; stripe < layout.stripe_count(); stripe += 40) {
    for (unsigned member = 0; member + 1 < layout.width(); ++member) {
      rig.spoil(stripe, member, 2 * member, 1024);
    }
    const RaidSet::Verified verified = co_await rig.set->verify_stripe(stripe);
    CHECK(verified.error == Error::kNone);
    CHECK(verified.mismatch);
  }
  CHECK(rig.events.back().find("from the majority of the copies") != std::string::npos);
  std::vector<std::byte> copy(std::size_t{layout.strip_blocks()} * 512);
  for (std::uint64_t stripe = 0; stripe < layout.stripe_count(); stripe += 40) {
    for (unsigned member = 0; member < layout.width(); ++member) {
      const TestDrive& device = *rig.devices[layout.role(stripe, member)];
      const Lba at = rig.drives->data_offset() + layout.drive_lba(stripe);
      device.state().visible.read(at * 512, copy);
      const std::byte* right = rig.expected.data() + stripe * copy.size();
      CHECK(std::memcmp(copy.data(), right, copy.size()) == 0);
    }
  }
  co_await rig.end();
}

// As many copies say one thing as say another: the first is kept, and said to be a guess.
Task<void> tie(Executor* home) {
  SetRig rig(*home, {.level = Level::kRaid1, .drives = 3});
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  rig.spoil(3, 1, 0, 512);
  rig.spoil(3, 2, 0, 512);
  const RaidSet::Verified verified = co_await rig.set->verify_stripe(3);
  CHECK((verified.error == Error::kNone && verified.mismatch));
  CHECK(rig.events.back().find("no content is in the majority") != std::string::npos);
  co_await expect_clean(&rig);
  co_await rig.end();
}

}  // namespace

TEST_CASE("A region whose redundancy is lost behind a verify is verified again",
          "[raid][verify][R-A4]") {
  for (const SetShape& shape : {SetShape{.level = Level::kRaid5, .drives = 4},
                                {.level = Level::kRaid6, .drives = 5},
                                {.level = Level::kRaid1, .drives = 2}}) {
    CAPTURE(describe(shape.level));
    in_world(1, [shape](Executor& home) { return lose_redundancy_behind_verify(&home, shape); });
  }
}

TEST_CASE("Verify changes nothing in a stripe while a member is missing", "[raid][verify][R-A5]") {
  for (const Incomplete& its :
       {Incomplete{{.level = Level::kRaid6, .drives = 6}, 0, 2},
        Incomplete{{.level = Level::kRaid6, .drives = 6}, 3, 4},  // P is missing.
        Incomplete{{.level = Level::kRaid6, .drives = 6, .strip_bytes = 16384}, 1, 0},
        Incomplete{{.level = Level::kRaid60, .drives = 8, .groups = 2}, 0, 1},
        Incomplete{{.level = Level::kRaid1, .drives = 3}, 0, 2}}) {
    CAPTURE(describe(its.shape.level), its.spoilt, its.missing);
    in_world(1, [its](Executor& home) { return verify_incomplete(&home, its); });
  }
}

TEST_CASE("Verify of three copies or more keeps what most of them have", "[raid][verify][R-A6]") {
  for (const SetShape& shape : {SetShape{.level = Level::kRaid1, .drives = 3},
                                {.level = Level::kRaid1, .drives = 4},
                                {.level = Level::kRaid10, .drives = 6, .groups = 2}}) {
    CAPTURE(describe(shape.level), shape.drives);
    in_world(1, [shape](Executor& home) { return outvote(&home, shape); });
  }
  in_world(1, [](Executor& home) { return tie(&home); });
}

TEST_CASE("Verify repairs the member that P and Q show to be wrong", "[raid][verify]") {
  for (const bool verified : {true, false}) {
    for (const std::uint32_t strip : {4096U, 16384U}) {
      const Spoilt spoilt{{.level = Level::kRaid6, .drives = 6, .strip_bytes = strip}, verified};
      for (std::uint64_t seed = 1; seed <= 2; ++seed) {
        CAPTURE(verified, strip, seed);
        in_world(seed, [spoilt](Executor& home) { return locate_one(&home, spoilt); });
      }
    }
  }
}

TEST_CASE("Verify repairs a cell that was never written by what is known of the others",
          "[raid][verify]") {
  for (const Level level : {Level::kRaid5, Level::kRaid6}) {
    CAPTURE(describe(level));
    const SetShape shape{.level = level, .drives = 5, .strip_bytes = 8192, .integrity = true};
    in_world(1, [shape](Executor& home) { return locate_by_neighbours(&home, shape); });
  }
}

TEST_CASE("With integrity, what a blank set never wrote reads as zeros whatever a drive gives",
          "[raid][verify]") {
  for (const SetShape& shape : {SetShape{.level = Level::kRaid5, .drives = 4},
                                {.level = Level::kRaid6, .drives = 5},
                                {.level = Level::kRaid1, .drives = 2},
                                {.level = Level::kRaid10, .drives = 4},
                                {.level = Level::kRaid0, .drives = 2}}) {
    CAPTURE(describe(shape.level));
    SetShape checked = shape;
    checked.integrity = true;
    in_world(2, [checked](Executor& home) { return read_never_written(&home, checked); });
  }
}

}  // namespace sandbay::raidtest::verify_test
