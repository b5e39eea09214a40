// Drives that keep operations for longer than their timeout, whatever is
// cancelled: what such a drive does later must not undo a newer write, and what
// it keeps must not starve others.
#include "set_rig.h"

namespace sandbay::raidtest::hung_drive_test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kBlocks = 8;

struct Later {
  Error error = Error::kNone;
  bool ended = false;
};

Task<void> write_later(SetRig* rig, std::uint64_t seed, Later* later) {
  later->error = co_await rig->write(0, kBlocks, seed);
  later->ended = true;
}

// Two writes of the same blocks; the device keeps the first for longer than
// anybody waits for it.
Task<void> overtaken_write(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill();
  TestDrive& drive = *rig.devices[0];
  drive.hang();
  const Error first = co_await rig.write(0, kBlocks, 1);
  CHECK(first == Error::kTimedOut);
  drive.hang_no_more();  // The device has the first write still, and takes
                         // others.
  Later second;
  spawn(write_later(&rig, 2, &second));
  co_await home->sleep_for(1s);
  std::string wrong = co_await rig.read(64, kBlocks);  // Others are not held up.
  CHECK(wrong == "");
  const Error other = co_await rig.write(64, kBlocks, 3);
  CHECK(other == Error::kNone);
  drive.release();
  while (!second.ended) co_await home->sleep_for(1ms);
  CHECK(second.error == Error::kNone);
  co_await home->sleep_for(1s);
  wrong = co_await rig.read(0, kBlocks);
  CHECK(wrong == "");
  co_await rig.end();
}

// The device never ends the first: the second fails, and is not sent when the
// first ends at last.
Task<void> fenced_write(Executor* home) {
  SetRig rig(*home, {.level = Level::kRaid0, .drives = 2});
  co_await rig.create();
  co_await rig.fill();
  TestDrive& drive = *rig.devices[0];
  drive.hang();
  Error error = co_await rig.write(0, kBlocks, 1);
  CHECK(error == Error::kTimedOut);
  drive.hang_no_more();
  error = co_await rig.write(0, kBlocks, 2);
  CHECK(error == Error::kTimedOut);
  const std::uint64_t before = drive.counts.writes;
  drive.release();
  co_await home->sleep_for(1s);
  CHECK(drive.counts.writes == before + 1);
  error = co_await rig.write(0, kBlocks, 3);
  CHECK(error == Error::kNone);
  const std::string wrong = co_await rig.read(0, kBlocks);
  CHECK(wrong == "");
  co_await rig.end();
}

Task<void> read_once(SetRig* rig, Lba lba, unsigned* left, Condition* ended) {
  (void)co_await rig->read(lba, kBlocks);
  if (--*left == 0) ended->notify_all();
}

// A drive that the set cannot miss ends no read, again and again; other stripes
// are read all along.
Task<void> starved(Executor* home) {
  SetRig rig(*home, {.level = Level::kRaid5, .drives = 3, .strip_bytes = 1 << 20});
  co_await rig.create();
  const bool dropped = rig.drives->drop(2, DropReason::kFailed, "a test says so");
  REQUIRE(dropped);
  const Error settled = co_await rig.drives->settled();
  REQUIRE(settled == Error::kNone);
  const Layout& layout = rig.set->layout();
  rig.devices[0]->hang();
  constexpr unsigned kAtOnce = 16;
  const std::uint64_t stripes = layout.stripe_count();
  for (unsigned wave = 0; wave < 40; ++wave) {
    unsigned left = kAtOnce;
    Condition ended;
    for (unsigned i = 0; i < kAtOnce; ++i) {
      const Lba lba = (i % stripes) * layout.stripe_blocks() + i * kBlocks;
      spawn(read_once(&rig, lba, &left, &ended));
    }
    while (left > 0) co_await ended.wait();
  }
  rig.devices[0]->release();
  co_await home->sleep_for(1s);
  const std::string wrong = co_await rig.read(0, layout.stripe_blocks() * 2);
  CHECK(wrong == "");
  co_await rig.end();
}

}  // namespace

TEST_CASE("A write that timed out does not land over a newer one", "[raid][R-C1]") {
  for (const SetShape& shape :
       {SetShape{.level = Level::kRaid0, .drives = 2}, {.level = Level::kJbod, .drives = 1}}) {
    CAPTURE(describe(shape.level));
    in_world(1, [shape](Executor& home) { return overtaken_write(&home, shape); });
  }
  in_world(1, [](Executor& home) { return fenced_write(&home); });
}

TEST_CASE("Reads that no cancel ends leave memory for others", "[raid][R-B7]") {
  in_world(1, [](Executor& home) { return starved(&home); });
}

}  // namespace sandbay::raidtest::hung_drive_test
