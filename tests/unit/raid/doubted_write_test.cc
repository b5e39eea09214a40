// Writes of a set that lost its journal, and drives that fail and return within one: acknowledged
// data can be read, and refused data does not come back.
#include <fmt/core.h>

#include "suspect_rig.h"

namespace sandbay::raidtest::doubted_write_test {

namespace {

constexpr Lba kMetadata = (std::uint64_t{1} << 20) / 512;

void expect_zeros(ControllerRig* rig, Extent extent) {
  std::fill_n(rig->expected.begin() + static_cast<std::ptrdiff_t>(extent.first * 512),
              extent.block_count * 512, std::byte{});
}

Task<void> expect_right(ControllerRig* rig, Lba lba) {
  Seen seen;
  co_await look_at(rig, lba, 8, &seen);
  CHECK(seen.right == 8);
  CHECK(seen.wrong == 0);
}

// With the NVRAM that it has.
Task<void> restart_killed(Bench* bench, Executor* home) {
  co_await bench->rig.kill();
  bench->memory.reset();
  co_await plug_in(bench, home, nvram::Durability::kProcess);
  co_await bench->rig.start();
  REQUIRE(bench->rig.set->running());
}

// For a second at most, in steps of a millisecond.
Task<void> wait_briefly(ControllerRig* rig, std::function<bool()> holds) {
  for (int i = 0; i < 1000 && !holds(); ++i) co_await rig->sleep(1ms);
}

Task<void> zero(ControllerRig* rig, Extent extent, Error* error, bool* ended) {
  const Completion done =
      co_await rig->set->submit(Request{.operation = Operation::kWriteZeroes, .extent = extent});
  *error = done.error;
  *ended = true;
}

Task<void> write(ControllerRig* rig, Lba at, std::string* error, bool* ended) {
  *error = co_await rig->write(at, 8, 9);
  *ended = true;
}

Task<void> insert(ControllerRig* rig, std::string name, bool* ended) {
  (void)co_await rig->controller->insert_drive(name, &rig->drive(name));
  *ended = true;
}

Task<void> flush_once(ControllerRig* rig, bool* good) {
  const Error error = co_await flush(rig);
  *good = error == Error::kNone;
}

// Rows that match, in stripes before `end`, until there is no room for more.
Task<void> fill_list(ControllerRig* rig, unsigned x, std::uint64_t end) {
  const raid::Layout layout = rig->set->drives()->layout();
  unsigned refused = 0;
  for (std::uint64_t each = 0; each < end; ++each) {
    for (unsigned member = 0; member < layout.data_chunks(); ++member) {
      if (layout.role(each, member) != x) continue;
      for (std::uint32_t row = 0; row < 32; row += 8) {
        const std::vector<std::byte> old = rig->expected;
        const std::string error =
            co_await rig->write(layout.lba({.stripe = each, .chunk = member, .row = row}), 1, each);
        if (!error.empty()) {
          rig->expected = old;
          ++refused;
        }
      }
    }
  }
  CHECK(refused > 0);
}

// A drive comes back while zeros are written without it. With `no_room` no row can be remembered.
Task<void> zeros_while_returning(Executor* home, bool no_room) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  if (no_room) rig.options.set.most_lost_bytes = 300;
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await make(&bench, Level::kRaid5, 4, false);
  const raid::Layout layout = rig.set->drives()->layout();
  const std::uint64_t stripe = layout.stripe_count() - 1;
  const unsigned x = layout.role(stripe, 0);
  const std::string away = fmt::format("d{}", x);
  co_await lose_journal(&bench, home);
  co_await start_without(&bench, away);
  if (no_room) co_await fill_list(&rig, x, stripe - 15);
  TestDrive& parity = *rig.drives[layout.role(stripe, layout.data_chunks())];
  const Extent extent{.first = layout.lba({.stripe = stripe}),
                      .block_count = layout.stripe_blocks()};
  bool ended = false;
  Error zeroed = Error::kNotReady;
  bool inserted = false;
  const Lba place = rig.set->drives()->data_offset() + layout.drive_lba(stripe);
  // The region is stale for the drive before: only the zeros' own writes hang.
  co_await expect_good(
      rig.write(layout.lba({.stripe = stripe - 1}), no_room ? 1 : layout.stripe_blocks(), 7));
  TestDrive& other = *rig.drives[layout.role(stripe, 1)];
  bool begun = false;
  other.before_change = [&](const TestDrive&, const Request& request) {
    begun |= request.extent.first <= place && place < request.extent.end();
  };
  parity.hang();
  spawn(zero(&rig, extent, &zeroed, &ended));
  co_await wait_briefly(&rig, [&] { return begun; });
  CHECK(begun);
  CHECK_FALSE(ended);
  spawn(insert(&rig, away, &inserted));
  co_await wait_briefly(&rig, [&] { return rig.set->drives()->drive(x) != nullptr; });
  CHECK(rig.set->drives()->drive(x) != nullptr);
  CHECK_FALSE(ended);
  parity.release();
  const bool done = co_await rig.wait_for([&] { return ended && inserted; });
  REQUIRE(done);
  other.before_change = nullptr;
  if (no_room) {
    CHECK(zeroed == Error::kMediumError);
    co_return co_await rig.kill();
  }
  CHECK(zeroed == Error::kNone);
  expect_zeros(&rig, extent);
  const Error flushed = co_await flush(&rig);
  CHECK(flushed == Error::kNone);
  co_await expect_right(&rig, extent.first);
  co_await restart_killed(&bench, home);
  co_await expect_right(&rig, extent.first);
  verify(&rig);
  co_await expect_whole(&rig);
  co_await expect_right(&rig, extent.first);
  co_await rig.kill();
}

TEST_CASE("Zeros count for a drive that returns while they are written", "[raid][journal]") {
  for (const bool no_room : {false, true}) {
    CAPTURE(no_room);
    for_worlds(2, zeros_while_returning, no_room);
  }
}

// The only drive that an update writes fails when the journal on the drives is written.
Task<void> dies_in_append(Executor* home, Level level) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await make(&bench, level, 4, false);
  const raid::SetDrives& drives = *rig.set->drives();
  const raid::Layout layout = drives.layout();
  const Lba data = drives.data_offset();
  bool died = false;
  TestDrive& a = *rig.drives[layout.role(2, 0)];
  a.before_change = [&](const TestDrive&, const Request& request) {
    if (request.operation != Operation::kWrite) return;
    if (request.extent.first < kMetadata || request.extent.first >= data) return;
    died = true;
    a.fail_with(Error::kNotReady);
  };
  for (std::uint64_t stripe = 2; stripe < layout.stripe_count() && !died; ++stripe) {
    if (layout.role(stripe, 0) != layout.role(2, 0)) continue;
    a.make_unreadable(data + layout.drive_lba(stripe));
    co_await expect_right(&rig, layout.lba({.stripe = stripe}));
    co_await rig.sleep(100ms);
  }
  CHECK(died);
  CHECK(rig.told(SetEvent::Kind::kOffline) == 0);
  co_await expect_right(&rig, layout.lba({.stripe = 2}));
  co_await rig.kill();
}

TEST_CASE("A set survives the drive that alone takes an update", "[raid][journal]") {
  for (const Level level : kParityLevels) for_worlds(3, dies_in_append, level);
}

// A stripe of which only parity is missing is written when no row can be remembered.
Task<void> no_room_beside_parity(Executor* home, Level level) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  rig.options.set.most_lost_bytes = 600;
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await make(&bench, level, 5, false);
  const raid::Layout layout = rig.set->drives()->layout();
  const std::uint64_t first = (layout.stripe_count() - 1) / 16 * 16;
  const std::uint64_t s = first;
  const unsigned c = layout.role(s, layout.data_chunks());
  std::uint64_t t = first + 1;
  unsigned chunk = 0;
  for (;; t += 2) {
    for (chunk = 0; chunk < layout.data_chunks(); ++chunk) {
      if (layout.role(t, chunk) == c) break;
    }
    if (chunk < layout.data_chunks()) break;
  }
  REQUIRE(t < layout.stripe_count());
  const std::string away = fmt::format("d{}", c);
  co_await lose_journal(&bench, home);
  co_await start_without(&bench, away);
  co_await fill_list(&rig, c, first);
  CHECK(rig.set->drives()->keeps(s, c));
  if (level == Level::kRaid5) {
    const Extent extent{.first = layout.lba({.stripe = s}), .block_count = layout.stripe_blocks()};
    const Completion done =
        co_await rig.set->submit(Request{.operation = Operation::kWriteZeroes, .extent = extent});
    CHECK(done.error == Error::kNone);
    expect_zeros(&rig, extent);
  } else {
    co_await expect_good(rig.write(layout.lba({.stripe = s}), 8, 3));
  }
  CHECK(rig.set->drives()->keeps(s, c));
  const Error flushed = co_await flush(&rig);
  CHECK(flushed == Error::kNone);
  co_await come_back(&rig, away);
  verify(&rig);
  co_await expect_whole(&rig);
  co_await expect_right(&rig, layout.lba({.stripe = t, .chunk = chunk}));
  co_await rig.kill();
}

TEST_CASE("A write beside missing parity gives up nothing for want of room", "[raid][journal]") {
  for (const Level level : kParityLevels) for_worlds(1, no_room_beside_parity, level);
}

// A drive fails in a write of which nothing can be remembered; the write is refused.
Task<void> refused_comes_back(Executor* home) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  rig.options.set.most_lost_bytes = 300;
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await make(&bench, Level::kRaid5, 4, false);
  const raid::Layout layout = rig.set->drives()->layout();
  const std::uint64_t stripe = layout.stripe_count() - 1;
  const unsigned x = layout.role(stripe, 0);
  co_await lose_journal(&bench, home);
  co_await rig.start();
  REQUIRE(rig.set->running());
  for (std::uint64_t each = 0; each + 16 < stripe; ++each) {
    for (std::uint32_t row = 0; row < 32; row += 8) {
      co_await expect_good(
          rig.write(layout.lba({.stripe = each, .chunk = 0, .row = row}), 1, each));
    }
  }
  const Error flushed = co_await flush(&rig);
  CHECK(flushed == Error::kNone);
  const Lba at = layout.lba({.stripe = stripe});
  const Lba place = rig.set->drives()->data_offset() + layout.drive_lba(stripe);
  TestDrive& drive = *rig.drives[x];
  drive.before_change = [&](const TestDrive&, const Request& request) {
    if (request.extent.first == place) drive.fail_with(Error::kNotReady);
  };
  const std::vector<std::byte> old = rig.expected;
  const std::string error = co_await rig.write(at, 8, 77);
  CHECK(error != "");
  rig.expected = old;
  CHECK(rig.set->running());
  CHECK(rig.set->drives()->keeps(stripe, x));
  drive.before_change = nullptr;
  drive.fail_with(Error::kNone);
  const bool back = co_await rig.wait_for([&] { return rig.set->drives()->drive(x) != nullptr; });
  REQUIRE(back);
  co_await expect_right(&rig, at);
  co_await restart_killed(&bench, home);
  co_await expect_right(&rig, at);
  co_await rig.kill();
}

TEST_CASE("A write that was refused in doubt does not come back", "[raid][journal]") {
  for_worlds(1, refused_comes_back);
}

// One bad place of a drive that is copied, and another drive is missing.
Task<void> copy_waits(Executor* home, Level level) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await make(&bench, level, 4, false);
  const raid::Layout layout = rig.set->drives()->layout();
  rig.add("spare", std::uint64_t{4} << 20);
  co_await lose_journal(&bench, home);
  const unsigned y = layout.role(3, layout.data_chunks());  // Parity that says nothing.
  const unsigned c = layout.role(3, 0);
  co_await start_without(&bench, fmt::format("d{}", c));
  const auto added = co_await rig.controller->add_spare("spare", "");
  CHECK(added.has_value());
  rig.drives[y]->make_unreadable(rig.set->drives()->data_offset() + layout.drive_lba(3));
  rig.drives[y]->set_health(Health::kPredictedFailure);
  verify(&rig);
  co_await rig.sleep(100s);
  CHECK(rig.set->drives()->stale_count(y, true) <= 1);
  co_await rig.kill();
}

TEST_CASE("A bad place that must wait does not stop the copy of a drive", "[raid][journal]") {
  for (const Level level : kParityLevels) for_worlds(1, copy_waits, level);
}

// The only drive that takes a write fails in it, and is back before the write ends.
Task<void> goes_and_returns(Executor* home) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await plug_in(&bench, home, nvram::Durability::kProcess);
  co_await make(&bench, Level::kRaid6, 5, false);
  const raid::Layout layout = rig.set->drives()->layout();
  const std::uint64_t stripe = layout.stripe_count() - 1;
  const unsigned c = layout.role(stripe, 1);
  const unsigned x = layout.role(stripe, 0);
  const std::string name = fmt::format("d{}", x);
  co_await lose_journal(&bench, home);
  co_await start_without(&bench, fmt::format("d{}", c));
  const Lba at = layout.lba({.stripe = stripe});
  const Lba place = rig.set->drives()->data_offset() + layout.drive_lba(stripe);
  TestDrive& drive = *rig.drives[x];
  TestDrive& other = *rig.drives[layout.role(stripe, 2)];
  drive.make_unreadable(place);
  bool gone = false;
  drive.before_change = [&](const TestDrive&, const Request& request) {
    if (request.extent.first != place) return;
    drive.fail_with(Error::kNotReady);
    other.hang();
    gone = true;
  };
  bool ended = false;
  std::string written;
  bool inserted = false;
  spawn(write(&rig, at, &written, &ended));
  co_await wait_briefly(&rig, [&] { return gone && rig.set->drives()->drive(x) == nullptr; });
  CHECK(gone);
  CHECK(rig.set->drives()->drive(x) == nullptr);
  drive.before_change = nullptr;
  drive.fail_with(Error::kNone);
  drive.state().unreadable.clear();
  spawn(insert(&rig, name, &inserted));
  co_await wait_briefly(&rig, [&] { return rig.set->drives()->drive(x) != nullptr; });
  CHECK(rig.set->drives()->drive(x) != nullptr);
  CHECK_FALSE(ended);
  other.release();
  const bool done = co_await rig.wait_for([&] { return ended && inserted; });
  REQUIRE(done);
  CHECK(written != "");
  co_await rig.kill();
}

TEST_CASE("A write is refused that its only drive has missed", "[raid][journal]") {
  for_worlds(1, goes_and_returns);
}

// The second drive of the last stripe is missing, the first has returned and is not rebuilt.
Task<void> lose_one_and_return_another(Bench* bench, Executor* home) {
  ControllerRig& rig = bench->rig;
  co_await plug_in(bench, home, nvram::Durability::kProcess);
  co_await make(bench, Level::kRaid6, 5, false);
  const raid::Layout layout = rig.set->drives()->layout();
  const std::uint64_t stripe = layout.stripe_count() - 1;
  const std::string first = fmt::format("d{}", layout.role(stripe, 0));
  co_await lose_journal(bench, home);
  co_await start_without(bench, fmt::format("d{}", layout.role(stripe, 1)));
  const auto removed = co_await rig.controller->remove_drive(first);
  REQUIRE(removed.has_value());
  co_await expect_good(rig.write(layout.lba({.stripe = stripe - 1}), layout.stripe_blocks(), 5));
  co_await come_back(&rig, first);
  CHECK(rig.set->drives()->keeps(stripe, layout.role(stripe, 0)));
  CHECK(rig.set->drives()->stale(layout.role(stripe, 0), false));
  const Error clean = co_await flush(&rig);
  CHECK(clean == Error::kNone);
}

// As above, and a flush ends between the beginning of the write and its end on the drive.
Task<void> flush_within(Executor* home, unsigned* reached) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await lose_one_and_return_another(&bench, home);
  const raid::Layout layout = rig.set->drives()->layout();
  const std::uint64_t stripe = layout.stripe_count() - 1;
  const unsigned x = layout.role(stripe, 0);
  const Lba at = layout.lba({.stripe = stripe});
  const Lba place = rig.set->drives()->data_offset() + layout.drive_lba(stripe);
  TestDrive& drive = *rig.drives[x];
  TestDrive& other = *rig.drives[layout.role(stripe, 2)];
  bool gone = false;
  bool passed = false;
  bool flushed = false;
  drive.before_change = [&](const TestDrive&, const Request& request) {
    if (request.extent.first != place || request.operation != Operation::kWrite) return;
    if (!flushed) {
      passed = true;
      return;
    }
    drive.fail_with(Error::kNotReady);
    other.hang();
    gone = true;
  };
  bool ended = false;
  std::string written;
  bool inserted = false;
  drive.set_latency(800ms);
  spawn(write(&rig, at, &written, &ended));
  co_await rig.sleep(5ms);
  spawn(flush_once(&rig, &flushed));
  co_await wait_briefly(&rig, [&] { return gone || passed; });
  drive.set_latency(100us);
  if (!gone) {
    co_await rig.sleep(5s);
    co_return co_await rig.kill();
  }
  co_await wait_briefly(&rig, [&] { return rig.set->drives()->drive(x) == nullptr; });
  drive.before_change = nullptr;
  drive.fail_with(Error::kNone);
  spawn(insert(&rig, drive.description(), &inserted));
  co_await wait_briefly(&rig, [&] { return rig.set->drives()->drive(x) != nullptr; });
  const bool within = !ended && rig.set->drives()->drive(x) != nullptr;
  other.release();
  const bool done = co_await rig.wait_for([&] { return ended && inserted; });
  REQUIRE(done);
  if (within) ++*reached;
  Seen seen;
  co_await look_at(&rig, at, 8, &seen);
  if (within) CHECK((written != "" || seen.wrong == 0));
  co_await rig.kill();
}

TEST_CASE("A flush within a write does not cover it", "[raid][journal]") {
  unsigned reached = 0;
  for_worlds(30, flush_within, &reached);
  CHECK(reached > 0);
}

// A drive is copied to a spare and is missing; it returns before the copy ends, and leaves again.
Task<void> return_beside_a_copy(Executor* home) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await make(&bench, Level::kRaid5, 3, true);
  const raid::Layout layout = rig.set->drives()->layout();
  const unsigned role = layout.role(1, 0);
  const std::string name = fmt::format("d{}", role);
  raid::MaintenancePolicy slow = rig.options.set.maintenance;
  slow.rate_under_load = 64 << 10;
  slow.host_is_quiet_after = 1000h;
  rig.controller->set_policy("set", slow);
  rig.add("spare", std::uint64_t{4} << 20);
  const auto inserted = co_await rig.controller->insert_drive("spare", &rig.drive("spare"));
  REQUIRE(inserted.has_value());
  const auto begun = co_await rig.controller->replace_drive(fmt::format("set:{}", role), "spare");
  REQUIRE(begun.has_value());
  const raid::SetDrives& drives = *rig.set->drives();
  const std::uint64_t all = drives.region_count();
  const bool copied = co_await rig.wait_for([&] { return drives.first_stale(role, true) > 0; });
  REQUIRE(copied);
  const auto removed = co_await rig.controller->remove_drive(name);
  REQUIRE(removed.has_value());
  CHECK(drives.replacement(role) != nullptr);
  const Lba at = layout.lba({.stripe = 1});
  co_await expect_good(rig.write(at, 8, 1));
  co_await come_back(&rig, name);
  CHECK(drives.drive(role) != nullptr);
  CHECK(drives.stale_count(role, true) > 0);
  CHECK(drives.stale_count(role, true) < all);
  co_await expect_good(rig.write(at + 8, 8, 2));
  const auto again = co_await rig.controller->remove_drive(name);
  REQUIRE(again.has_value());
  verify(&rig);
  co_await expect_whole(&rig);
  const auto other = fmt::format(
      "d{}", layout.role(1, 1) == (role + 1) % 3 ? layout.role(1, 1) : layout.role(1, 2));
  const auto last = co_await rig.controller->remove_drive(other);
  REQUIRE(last.has_value());
  co_await expect_right(&rig, at);
  co_await expect_right(&rig, at + 8);
  CHECK(rig.told(SetEvent::Kind::kCorruption) == 0);
  co_await rig.kill();
}

TEST_CASE("A drive that returns beside its copy brings no old entries", "[raid][integrity]") {
  for_worlds(4, return_beside_a_copy);
}

// Data that only its drive took, with its parity unchanged; the drive loses it with its cache.
Task<void> lose_with_the_cache(Executor* home) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await lose_one_and_return_another(&bench, home);
  const raid::Layout layout = rig.set->drives()->layout();
  std::uint64_t stripe = layout.stripe_count() - 1;
  if (stripe % 2 == 1) stripe -= layout.width();  // Parity fits, and the roles are the same.
  const unsigned x = layout.role(stripe, 0);
  const std::string name = fmt::format("d{}", x);
  const std::string other = fmt::format("d{}", layout.role(stripe, 1));
  const Lba at = layout.lba({.stripe = stripe});
  const Lba place = rig.set->drives()->data_offset() + layout.drive_lba(stripe);
  // All members are what they were before, so parity fits the old data.
  std::vector<std::byte> old(4096);
  rig.drives[x]->state().visible.read(place * 512, old);
  rig.drives[x]->make_unreadable(place);
  co_await expect_good(rig.write(at, 8, 9));
  CHECK(rig.set->drives()->doubted(stripe, 0, 8));
  CHECK(rig.set->drives()->keeps(stripe, x));
  const auto removed = co_await rig.controller->remove_drive(name);
  REQUIRE(removed.has_value());
  rig.drives[x]->state().visible.write(place * 512, old);
  CHECK_FALSE(rig.set->drives()->keeps(stripe, x));
  co_await come_back(&rig, other);
  co_await come_back(&rig, name);
  verify(&rig);
  co_await expect_whole(&rig);
  Seen seen;
  co_await look_at(&rig, at, 8, &seen);
  CHECK(seen.wrong == 0);
  CHECK(seen.medium == 8);
  co_await rig.kill();
}

TEST_CASE("Old data of a drive that lost its cache is not right because it matches",
          "[raid][journal]") {
  for_worlds(4, lose_with_the_cache);
}

}  // namespace
}  // namespace sandbay::raidtest::doubted_write_test
