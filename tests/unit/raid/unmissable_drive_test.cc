// A drive that its set cannot miss is missing for a moment: another may answer in its place, or the
// same one without what it had not flushed. The set stops, and looks at the superblocks again.
#include "controller_rig.h"

#include <algorithm>

namespace sandbay::raidtest::unmissable_drive_test {
namespace {

using namespace std::chrono_literals;
using raid::Level;

struct Used {
  Level level;
  std::vector<std::string> drives;
  std::vector<std::string> failed;  // The set survives no more.
};

const std::vector<Used> kUsed = {
    {Level::kJbod, {"d0"}, {}},
    {Level::kConcatenation, {"d0", "d1"}, {}},
    {Level::kRaid0, {"d0", "d1"}, {}},
    {Level::kRaid1, {"d0", "d1"}, {"d1"}},
    {Level::kRaid10, {"d0", "d1", "d2", "d3"}, {"d1"}},
    {Level::kRaid5, {"d0", "d1", "d2", "d3"}, {"d2"}},
    {Level::kRaid6, {"d0", "d1", "d2", "d3"}, {"d1", "d2"}},
};

Task<void> make(ControllerRig* rig, const Used* used) {
  for (const std::string& name : used->drives) rig->add(name);
  co_await rig->start();
  std::string wrong = co_await rig->create(used->level, used->drives);
  REQUIRE(wrong == "");
  wrong = co_await rig->fill();
  REQUIRE(wrong == "");
  for (const std::string& name : used->failed) {
    const auto failed = co_await rig->controller->fail_drive(name);
    REQUIRE(failed.has_value());
  }
}

Task<Error> flush_volume(ControllerRig* rig, std::uint64_t volume = 0) {
  Request request;
  request.operation = Operation::kFlush;
  request.volume = volume;
  const Completion done = co_await rig->set->submit(std::move(request));
  co_return done.error;
}

bool all_zeros(const TestDrive& drive) {
  std::vector<std::byte> bytes(1 << 20);
  for (std::uint64_t at = 0; at < ControllerRig::kDriveBytes; at += bytes.size()) {
    drive.state().visible.read(at, bytes);
    if (std::ranges::any_of(bytes, [](std::byte byte) { return byte != std::byte{0}; }))
      return false;
  }
  return true;
}

// Every read is right or fails, and the other disk keeps what it has.
Task<void> another_disk(Executor* home, Used used) {
  ControllerRig rig(*home);
  co_await make(&rig, &used);
  Error flushed = co_await flush_volume(&rig);
  REQUIRE(flushed == Error::kNone);
  TestDrive& drive = rig.drive("d0");
  const DriveState saved = drive.state();
  drive.become_another();
  for (unsigned round = 0; round < 3; ++round) {
    const std::string wrong = co_await rig.check();
    CAPTURE(wrong);
    CHECK(!wrong.empty());
    CHECK(wrong.find("is wrong") == std::string::npos);
    CHECK_FALSE(rig.set->running());
    co_await rig.sleep(5s);
  }
  CHECK(rig.said("drive d0 in role 0 is missing"));
  CHECK(rig.use("d0") == DriveUse::kBlank);
  CHECK(all_zeros(drive));
  drive.state() = saved;
  drive.raise_attention();
  const bool back = co_await rig.wait_for([&rig] { return rig.set->running(); });
  REQUIRE(back);
  const std::string wrong = co_await rig.check();
  CHECK(wrong == "");
  const bool stopped = co_await rig.stop();
  CHECK(stopped);
}

// Asked what is mapped before any I/O: its holes say nothing of the set.
Task<void> another_disk_asked(Executor* home, Used used) {
  ControllerRig rig(*home);
  co_await make(&rig, &used);
  const Error flushed = co_await flush_volume(&rig);
  REQUIRE(flushed == Error::kNone);
  rig.drive("d0").become_another();
  const std::uint64_t end = rig.set->geometry().block_count;
  for (Lba lba = 0; lba < end;) {
    const Result<ProvisioningRun> run = co_await rig.set->provisioning(lba, end);
    if (run) CHECK(run->mapped);
    lba += run ? run->block_count : 64;
  }
  const bool noticed =
      co_await rig.wait_for([&rig] { return rig.told(SetEvent::Kind::kOffline) > 0; });
  CHECK(noticed);
  CHECK_FALSE(rig.set->running());
  const bool stopped = co_await rig.stop();
  CHECK(stopped);
}

// Power of one drive: what it had not flushed is written again from the
// journal.
Task<void> same_disk(Executor* home, Used used) {
  ControllerRig rig(*home);
  co_await make(&rig, &used);
  for (unsigned round = 0; round < 3; ++round) {
    std::string wrong = co_await rig.write_some(30);
    REQUIRE(wrong == "");
    rig.drive("d0").lose_power();
    const bool noticed =
        co_await rig.wait_for([&rig] { return rig.told(SetEvent::Kind::kOffline) > 0; });
    if (!noticed) {
      wrong = co_await rig.check();  // The first reader finds out.
      CHECK(wrong.find("is wrong") == std::string::npos);
    }
    const bool back = co_await rig.wait_for([&rig] { return rig.set->running(); });
    REQUIRE(back);
    rig.events.clear();
    wrong = co_await rig.check();
    CHECK(wrong == "");
  }
  const bool stopped = co_await rig.stop();
  CHECK(stopped);
}

// With or without a loss of power, the drive says so once.
Task<void> be_away(ControllerRig* rig, bool lossy) {
  if (lossy) rig->drive("d0").lose_power();
  if (!lossy) rig->drive("d0").raise_attention();
  (void)co_await rig->check();
  const bool back = co_await rig->wait_for([rig] { return rig->set->running(); });
  REQUIRE(back);
}

// Without a journal nothing brings back writes that were not flushed, and their writer learns it.
Task<void> unflushed(Executor* home, Used used) {
  ControllerRig rig(*home);
  for (const std::string& name : used.drives) {
    rig.add(name).mutable_geometry().volatile_cache = true;
  }
  co_await rig.start();
  std::string wrong = co_await rig.create(used.level, used.drives);
  REQUIRE(wrong == "");
  for (const std::string& name : used.failed) {
    const auto failed = co_await rig.controller->fail_drive(name);
    REQUIRE(failed.has_value());
  }
  wrong = co_await rig.write(0, 64, 1);
  CHECK(wrong == "");
  co_await be_away(&rig, true);
  Error flushed = co_await flush_volume(&rig);
  CHECK(flushed == Error::kHardware);
  flushed = co_await flush_volume(&rig);
  CHECK(flushed == Error::kNone);
  wrong = co_await rig.write(0, 64, 2);
  CHECK(wrong == "");
  flushed = co_await flush_volume(&rig);
  CHECK(flushed == Error::kNone);
  co_await be_away(&rig, false);  // Nothing was owed.
  flushed = co_await flush_volume(&rig);
  CHECK(flushed == Error::kNone);
  wrong = co_await rig.read(0, 64);
  CHECK(wrong == "");
  const bool stopped = co_await rig.stop();
  CHECK(stopped);
}

Task<void> write_as(ControllerRig* rig, std::uint64_t volume, bool forced) {
  Request request;
  request.operation = Operation::kWrite;
  request.force_unit_access = forced;
  request.volume = volume;
  request.extent = {.first = volume * 64, .block_count = 8};
  request.data = co_await rig->set->home().buffers().allocate(8ULL * rig->block_bytes);
  request.data.fill_zero();
  const Completion done = co_await rig->set->submit(std::move(request));
  CHECK(done.error == Error::kNone);
}

// Volumes 1 and 2 have unflushed writes; volume 3 has forced its own, volume 4 writes later.
Task<void> several_writers(Executor* home, Used used) {
  ControllerRig rig(*home);
  for (const std::string& name : used.drives) {
    rig.add(name).mutable_geometry().volatile_cache = true;
  }
  co_await rig.start();
  const std::string wrong = co_await rig.create(used.level, used.drives);
  REQUIRE(wrong == "");
  for (const std::string& name : used.failed) {
    const auto failed = co_await rig.controller->fail_drive(name);
    REQUIRE(failed.has_value());
  }
  for (const std::uint64_t volume : {1, 2, 3}) co_await write_as(&rig, volume, volume == 3);
  co_await be_away(&rig, true);
  // The whole set's flush, as a snapshot asks for it, comes first.
  for (const std::uint64_t volume : {0, 1, 2}) {
    CAPTURE(volume);
    Error flushed = co_await flush_volume(&rig, volume);
    CHECK(flushed == Error::kHardware);
    flushed = co_await flush_volume(&rig, volume);
    CHECK(flushed == Error::kNone);
  }
  co_await write_as(&rig, 4, false);
  for (const std::uint64_t volume : {3, 4}) {
    const Error flushed = co_await flush_volume(&rig, volume);
    CHECK(flushed == Error::kNone);
  }
  // Volume 4's flush covered its write.
  co_await write_as(&rig, 1, false);
  co_await be_away(&rig, true);
  for (const std::uint64_t volume : {1, 4}) {
    const Error flushed = co_await flush_volume(&rig, volume);
    CHECK(flushed == (volume == 1 ? Error::kHardware : Error::kNone));
  }
  const bool stopped = co_await rig.stop();
  CHECK(stopped);
}

}  // namespace

TEST_CASE("A disk in place of one that its set cannot miss is not asked what is mapped",
          "[raid][controller][N8]") {
  for (const Used& used : kUsed) {
    CAPTURE(describe(used.level));
    for_worlds(2, another_disk_asked, used);
  }
}

TEST_CASE(
    "Another disk in place of a drive that the set cannot miss is never "
    "read or written",
    "[raid][controller][R-A3]") {
  for (const Used& used : kUsed) {
    CAPTURE(describe(used.level));
    for_worlds(2, another_disk, used);
  }
}

TEST_CASE("A drive that the set cannot miss loses its power: the journal is replayed",
          "[raid][controller][R-A3]") {
  for (const Used& used : kUsed) {
    if (used.level != Level::kRaid5 && used.level != Level::kRaid6) continue;
    CAPTURE(describe(used.level));
    for_worlds(4, same_disk, used);
  }
}

TEST_CASE(
    "A set without a journal that went with unflushed writes fails the "
    "next flush",
    "[raid][controller][R-A3]") {
  for (const Used& used : kUsed) {
    if (used.level == Level::kRaid5 || used.level == Level::kRaid6) continue;
    CAPTURE(describe(used.level));
    for_worlds(2, unflushed, used);
  }
}

TEST_CASE("A set that may have lost writes fails the next flush of each volume that wrote them",
          "[raid][controller][P-3]") {
  for (const Used& used : kUsed) {
    if (used.level == Level::kRaid5 || used.level == Level::kRaid6) continue;
    CAPTURE(describe(used.level));
    for_worlds(2, several_writers, used);
  }
}

}  // namespace sandbay::raidtest::unmissable_drive_test
