// What a set says is mapped: never less than what reads as something else than zeros, whatever its
// drives have lost or fail at.
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "integrity_rig.h"

namespace sandbay::raidtest::provisioning_test {
namespace {

using raid::Level;

// By block, what the set says of all of it.
Task<std::vector<bool>> mapped_blocks(raid::RaidSet* set) {
  const Lba end = set->geometry().block_count;
  std::vector<bool> mapped;
  while (mapped.size() < end) {
    const Result<ProvisioningRun> run = co_await set->provisioning(mapped.size(), end);
    REQUIRE(run.has_value());
    REQUIRE(run->block_count > 0);
    mapped.insert(mapped.end(), run->block_count, run->mapped);
  }
  CHECK(mapped.size() == end);
  co_return mapped;
}

// Holes come into a drive behind the set's back; reads are put right, so nothing is to be skipped.
Task<void> entries_tell(Executor* home, Level level, unsigned drives) {
  IntegrityRig rig(*home,
                   {.level = level, .drives = drives, .drive_bytes = std::uint64_t{3} << 20});
  const bool made = co_await rig.create();
  REQUIRE(made);
  const std::uint64_t blocks = rig.set->geometry().block_count;
  const Lba end = blocks / 16 * 8;  // Whole cells; the rest was never written.
  for (Lba lba = 0; lba < end; lba += 64) {
    const Error error = co_await rig.write(lba, std::min<std::uint64_t>(64, end - lba), lba + 1);
    REQUIRE(error == Error::kNone);
  }
  const Error zeroed = co_await rig.zero(16, 16);
  REQUIRE(zeroed == Error::kNone);
  for (const auto& device : rig.devices) {
    const std::uint64_t first = device->lies_from * 512;
    const std::uint64_t all = (device->lies_to - device->lies_from) * 512;
    device->drive.state().visible.punch(first, all);
    device->drive.state().durable.punch(first, all);
    if (level != Level::kRaid0) break;  // One drive, or nothing could be put right.
  }
  const std::vector<bool> mapped = co_await mapped_blocks(rig.set.get());
  unsigned wrong = 0;
  for (Lba lba = 0; lba < blocks; ++lba) {
    const bool zeros = (lba >= 16 && lba < 32) || lba >= end;
    wrong += mapped[lba] == zeros;
  }
  // Zeros may be in blocks that a drive has, with parity that was written.
  const bool all_holes = level == Level::kRaid1 || level == Level::kRaid0;
  unsigned skipped = 0;
  for (Lba lba = 0; lba < end; ++lba) skipped += !mapped[lba] && (lba < 16 || lba >= 32);
  CHECK(skipped == 0);
  if (all_holes) CHECK(wrong == 0);
  if (level != Level::kRaid0) {
    const std::string read = co_await rig.check_everything();
    CHECK(read.empty());
  }
  co_await rig.close();
}

Task<void> failing_drive(Executor* home, Level level, unsigned drives) {
  IntegrityRig rig(*home,
                   {.level = level, .drives = drives, .drive_bytes = std::uint64_t{3} << 20});
  const bool made = co_await rig.create();
  REQUIRE(made);
  const Error written = co_await rig.write(0, 64, 1);
  CHECK(written == Error::kNone);
  co_await rig.settle();
  const raid::Drive* drive = rig.drives->drive(0);
  rig.devices[0]->drive.fail_with(Error::kHardware);
  const std::vector<bool> mapped = co_await mapped_blocks(rig.set.get());
  unsigned skipped = 0;
  for (Lba lba = 0; lba < 64; ++lba) skipped += !mapped[lba];
  CHECK(skipped == 0);
  CHECK(drive->counters().other_errors == 1);
  CHECK(rig.drives->absent_roles() == 1);
  co_await rig.close();
}

Task<void> hanging_drive(Executor* home, Level level, unsigned drives) {
  IntegrityRig rig(*home,
                   {.level = level, .drives = drives, .drive_bytes = std::uint64_t{3} << 20});
  const bool made = co_await rig.create();
  REQUIRE(made);
  rig.devices[0]->drive.hang();
  const TimePoint begin = home->now();
  const Result<ProvisioningRun> run = co_await rig.set->provisioning(0, 64);
  CHECK(home->now() - begin < std::chrono::seconds(15));
  CHECK(run.has_value() == (level != Level::kRaid0));
  CHECK(rig.drives->absent_roles() == (level == Level::kRaid0 ? 0U : 1U));
  rig.devices[0]->drive.release();
  co_await rig.close();
}

void in_world(const std::function<Task<void>(Executor&)>& body) {
  const auto world = sim::World::create({.seed = 1});
  Executor& home = *world->executors()[0];
  const bool ended = world->run([&] { return body(home); });
  REQUIRE(ended);
}

}  // namespace

TEST_CASE("with integrity a block whose entry is not of zeros is mapped, also in a hole") {
  in_world([](Executor& home) { return entries_tell(&home, Level::kRaid5, 4); });
  in_world([](Executor& home) { return entries_tell(&home, Level::kRaid1, 2); });
  in_world([](Executor& home) { return entries_tell(&home, Level::kRaid0, 2); });
}

TEST_CASE(
    "a drive that fails when asked what is mapped leaves its role, and the host is answered") {
  in_world([](Executor& home) { return failing_drive(&home, Level::kRaid1, 2); });
  in_world([](Executor& home) { return failing_drive(&home, Level::kRaid5, 3); });
}

TEST_CASE("A drive that hangs when it is asked what is mapped does not hold the host", "[N7]") {
  in_world([](Executor& home) { return hanging_drive(&home, Level::kRaid1, 2); });
  in_world([](Executor& home) { return hanging_drive(&home, Level::kRaid0, 2); });
}

}  // namespace sandbay::raidtest::provisioning_test
