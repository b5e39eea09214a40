// A drive whose reads are late again and again is read around at once, asked now and then, and
// taken for well when its answers are in time.
#include "set_rig.h"

namespace sandbay::raidtest::limping_test {
namespace {

using namespace std::chrono_literals;

// How long a read of a strip of the role takes.
Task<Duration> time_of_read(SetRig* rig, unsigned role, std::uint64_t strip) {
  const Layout& layout = rig->set->layout();
  Lba at = strip * layout.strip_blocks();
  while (!layout.mirrored() && layout.on_drive(role, at).member >= layout.data_chunks()) {
    at += layout.strip_blocks();
  }
  const Layout::OnDrive there = layout.on_drive(role, at);
  const Lba lba = layout.lba(
      {.stripe = there.stripe, .chunk = layout.mirrored() ? 0 : there.member, .row = there.row});
  Executor& home = rig->set->home();
  const TimePoint before = home.now();
  const std::string wrong = co_await rig->read(lba, 8);
  CHECK(wrong.empty());
  co_return home.now() - before;
}

Task<void> limp(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  const Duration bound = DrivePolicy{}.slow_read;
  rig.devices[1]->slow_reads(2 * bound);
  unsigned late = 0;
  for (unsigned i = 0; i < 200; ++i) {
    const Duration took = co_await time_of_read(&rig, 1, i);
    late += took >= bound / 2;
    CHECK(took < 3 * bound);
  }
  CHECK(late <= 4);
  const Drive* drive = rig.drives->drive(1);
  if (!rig.set->layout().mirrored()) {
    CHECK(drive->limping());
    CHECK(rig.set->counters().reads_around >= 196);
  }
  // It recovers while nothing but probes goes there.
  rig.devices[1]->slow_reads(Duration::zero());
  rig.devices[1]->counts = {};
  for (unsigned i = 0; i < 200 && drive->limping(); ++i) {
    co_await home->sleep_for(bound);
    const Duration took = co_await time_of_read(&rig, 1, i);
    CHECK(took < bound / 2);
  }
  CHECK_FALSE(drive->limping());
  if (!rig.set->layout().mirrored()) {
    CHECK(drive->counters().probes > 10);
    CHECK(drive->counters().probes < 100);
    const std::uint64_t before = rig.devices[1]->counts.reads;
    co_await time_of_read(&rig, 1, 3);
    CHECK(rig.devices[1]->counts.reads == before + 1);
  }
  co_await rig.end();
}

// Where drives are away and nothing makes up for a slow one any more, what it has is read once and
// waited for.
Task<void> limp_alone(Executor* home, SetShape shape) {
  SetRig rig(*home, shape);
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  const Layout& layout = rig.set->layout();
  for (unsigned role = 0; role < layout.redundancy(); ++role) {
    CHECK(rig.drives->drop(role, DropReason::kMissing, "the test says so"));
  }
  co_await rig.drives->settled();
  const unsigned slow = layout.redundancy();
  const Duration delay = 4 * DrivePolicy{}.slow_read;
  rig.devices[slow]->slow_reads(delay);
  const std::uint64_t before = rig.devices[slow]->counts.reads;
  for (unsigned i = 0; i < 20; ++i) {
    const Duration took = co_await time_of_read(&rig, slow, i);
    CHECK(took >= delay / 2);
    CHECK(took < delay + delay / 2);
  }
  const std::uint64_t probes = rig.drives->drive(slow)->counters().probes;
  CHECK(rig.devices[slow]->counts.reads <= before + 20 + probes);
  co_await rig.end();
}

// One that has been well for long, but that nobody has read, does not keep another from being read
// around.
Task<void> one_after_another(Executor* home) {
  SetRig rig(*home, {Level::kRaid5, 4});
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  for (const unsigned role : {1U, 2U}) {
    rig.devices[role]->slow_reads(10s);
    for (unsigned i = 0; i < 20; ++i) {
      const Duration took = co_await time_of_read(&rig, role, i);
      CHECK(took < 1s);
      co_await home->sleep_for(1ms);
    }
    rig.devices[role]->slow_reads({});
    co_await home->sleep_for(30s);
  }
  co_await rig.end();
}

// Reading around costs more than it gives where the others limp as well.
Task<void> all_limp(Executor* home) {
  SetRig rig(*home, {Level::kRaid5, 4});
  co_await rig.create();
  co_await rig.fill();
  co_await rig.verify_all();
  for (const auto& device : rig.devices) device->slow_reads(300ms);
  for (unsigned i = 0; i < 40; ++i) co_await time_of_read(&rig, i % 4, i);
  for (unsigned role = 0; role < 4; ++role) CHECK(rig.drives->drive(role)->limping());
  const std::uint64_t before = rig.devices[1]->counts.reads;
  co_await time_of_read(&rig, 1, 5);
  CHECK(rig.devices[1]->counts.reads > before);
  co_await rig.end();
}

}  // namespace

TEST_CASE("A drive that is known to limp is read around at once, and asked now and then",
          "[raid][limping]") {
  for (const SetShape& shape :
       {SetShape{Level::kRaid5, 4}, SetShape{Level::kRaid6, 5}, SetShape{Level::kRaid1, 2},
        SetShape{Level::kRaid5, 4, 0, 4096, true}}) {
    CAPTURE(describe(shape.level), shape.integrity);
    in_world(12, [&shape](Executor& home) { return limp(&home, shape); });
  }
}

TEST_CASE("A slow drive that nothing makes up for is asked once and waited for",
          "[raid][limping]") {
  for (const SetShape& shape :
       {SetShape{Level::kRaid5, 4}, SetShape{Level::kRaid6, 5}, SetShape{Level::kRaid1, 2},
        SetShape{Level::kRaid10, 4}, SetShape{Level::kRaid5, 4, 0, 4096, true}}) {
    CAPTURE(describe(shape.level), shape.integrity);
    in_world(15, [&shape](Executor& home) { return limp_alone(&home, shape); });
  }
}

TEST_CASE("Of two that limp one after the other both are read around", "[raid][limping]") {
  in_world(14, [](Executor& home) { return one_after_another(&home); });
}

TEST_CASE("Where all limp the drive that has it is read", "[raid][limping]") {
  in_world(13, [](Executor& home) { return all_limp(&home); });
}

}  // namespace sandbay::raidtest::limping_test
