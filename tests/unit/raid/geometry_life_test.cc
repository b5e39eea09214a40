// Sets on drives of other block sizes, with small and large strips, through what happens to drives:
// unreadable and corrupt blocks, a drive that fails and its spare, power cuts, a verification.
#include <algorithm>

#include "controller_rig.h"

namespace sandbay::raidtest::geometry_life_test {
namespace {

using namespace std::chrono_literals;
using raid::Level;

struct Shape {
  Level level = Level::kRaid5;
  unsigned drives = 4;
  std::uint32_t block_bytes = 512;
  std::uint32_t physical_bytes = 512;
  std::uint32_t strip_bytes = 64 << 10;
  bool integrity = false;
};

constexpr Shape kShapes[] = {
    {.level = Level::kRaid5, .physical_bytes = 4096, .strip_bytes = 4 << 10},
    {.level = Level::kRaid6, .physical_bytes = 4096, .strip_bytes = 64 << 10, .integrity = true},
    {.level = Level::kRaid5, .block_bytes = 4096, .physical_bytes = 4096, .strip_bytes = 32 << 10},
    {.level = Level::kRaid1,
     .drives = 2,
     .block_bytes = 4096,
     .physical_bytes = 4096,
     .strip_bytes = 128 << 10,
     .integrity = true},
    {.level = Level::kRaid5,
     .block_bytes = 4096,
     .physical_bytes = 4096,
     .strip_bytes = 256 << 10,
     .integrity = true},
    {.level = Level::kRaid6,
     .drives = 5,
     .block_bytes = 4096,
     .physical_bytes = 4096,
     .strip_bytes = 4 << 10,
     .integrity = true},
    {.level = Level::kRaid5, .strip_bytes = 1 << 20, .integrity = true},
    {.level = Level::kRaid6, .strip_bytes = 1 << 20},
};

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

TestDrive& add(ControllerRig* rig, const std::string& name, const Shape& shape) {
  TestDrive& drive = rig->add(name, ControllerRig::kDriveBytes, shape.block_bytes);
  drive.mutable_geometry().physical_block_bytes = shape.physical_bytes;
  return drive;
}

Task<void> make(ControllerRig* rig, Shape shape) {
  std::vector<std::string> names;
  for (unsigned i = 0; i < shape.drives; ++i) {
    names.push_back("d" + std::to_string(i));
    add(rig, names.back(), shape);
  }
  add(rig, "spare", shape);
  co_await rig->start();
  const std::string error = co_await rig->create(shape.level, names, [&shape](NewSet& wanted) {
    wanted.strip_bytes = shape.strip_bytes;
    wanted.integrity = shape.integrity;
    if (shape.level != Level::kRaid1 || shape.integrity) wanted.journal_bytes = 2 << 20;
  });
  REQUIRE(error == "");
  co_await expect_good(rig->fill());
  co_await expect_whole(rig);
}

// One physical block of a member of every stripe, never two in one stripe.
Task<void> damage(ControllerRig* rig, Shape shape, bool silently) {
  const raid::SetDrives& drives = *rig->set->drives();
  const raid::Layout& layout = drives.layout();
  Random random(7);
  const std::uint32_t rows = shape.physical_bytes / shape.block_bytes;
  for (std::uint64_t stripe = 0; stripe < layout.stripe_count(); ++stripe) {
    const auto member = static_cast<unsigned>(random.below(layout.width()));
    TestDrive& drive = *rig->drives[layout.role(stripe, member)];
    const Lba row = random.below(layout.strip_blocks() / rows) * rows;
    const Lba at = drives.data_offset() + layout.drive_lba(stripe) + row;
    if (silently) {
      const std::vector<std::byte> bytes(shape.block_bytes, std::byte{0x5a});
      drive.state().visible.write(at * shape.block_bytes, bytes);
      drive.state().durable.write(at * shape.block_bytes, bytes);
    } else {
      drive.make_unreadable(at);
    }
  }
  co_await expect_good(rig->check());
  // What no host reads is found, too.
  const unsigned before = rig->told(SetEvent::Kind::kVerifyEnded);
  const Controller::Outcome asked = rig->controller->verify_set("set");
  CHECK(asked.has_value());
  const bool verified = co_await rig->wait_for(
      [rig, before] { return rig->told(SetEvent::Kind::kVerifyEnded) > before; });
  CHECK(verified);
}

Task<void> cut_power(ControllerRig* rig) {
  co_await rig->kill();
  Random random(rig->set == nullptr ? 1 : 2);
  for (const auto& drive : rig->drives) drive->state() = after_power_cut(drive->state(), random);
  co_await rig->start();
  REQUIRE(rig->set->running());
}

Task<void> live(Executor* home, Shape shape) {
  ControllerRig rig(*home);
  co_await make(&rig, shape);
  CHECK(rig.set->geometry().block_bytes == shape.block_bytes);
  CHECK(rig.set->geometry().physical_block_bytes == shape.physical_bytes);
  co_await expect_good(rig.write_some(30));
  co_await expect_good(rig.check());
  co_await damage(&rig, shape, false);
  if (shape.integrity) co_await damage(&rig, shape, true);
  co_await expect_good(rig.write_some(10));
  const bool journaled = shape.level != Level::kRaid1 || shape.integrity;
  REQUIRE(journaled);
  co_await cut_power(&rig);
  co_await expect_good(rig.check());

  const Controller::Outcome spared = co_await rig.controller->add_spare("spare", "set");
  CHECK(spared.has_value());
  rig.drive("d1").fail_with(Error::kHardware);
  co_await expect_good(rig.write_some(20));
  co_await cut_power(&rig);
  co_await expect_whole(&rig);
  CHECK(rig.info("spare").role == 1U);
  co_await expect_good(rig.check());
  co_await damage(&rig, shape, false);

  CHECK(rig.told(SetEvent::Kind::kMismatch) == 0);
  CHECK(rig.told(SetEvent::Kind::kSectorsLost) == 0);
  CHECK(rig.set_info().counters.false_entries == 0);
  // Every other drive is as good as what was lost.
  rig.drive("d0").fail_with(Error::kHardware);
  co_await expect_good(rig.check());
  co_await expect_stopped(&rig);
}

}  // namespace

TEST_CASE("Drives of every block size and strips of every length make sets that lose nothing",
          "[raid][geometry]") {
  for (const Shape& shape : kShapes) {
    CAPTURE(raid::describe(shape.level), shape.block_bytes, shape.physical_bytes, shape.strip_bytes,
            shape.integrity);
    for_worlds(1, [](Executor* home, Shape which) { return live(home, which); }, shape);
  }
}

}  // namespace sandbay::raidtest::geometry_life_test
