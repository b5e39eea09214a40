// A drive that comes back to a set that runs: from its superblocks on it may be the only drive of
// the next start, so all that the set knows of it is on it by then.
#include "set_rig.h"

namespace sandbay::raidtest::returning_drive_test {
namespace {

struct Return {
  SetShape shape;
  std::vector<unsigned> stay;  // Present at the next start, beside role 1, which came back.
};

// Assembles the set from the drives of these roles alone.
Task<AssembledSet> assembled_of(SetRig* rig, std::vector<unsigned> roles) {
  std::vector<NamedDevice> named;
  for (const unsigned role : roles) {
    named.push_back({rig->devices[role]->description(), rig->devices[role].get()});
  }
  const std::vector<Candidate> candidates = co_await gather_candidates(named);
  Assembly assembly = assemble(candidates, {});
  REQUIRE(assembly.sets.size() == 1);
  co_return std::move(assembly.sets[0]);
}

Task<void> return_stale(Executor* home, Return its) {
  SetRig rig(*home, its.shape);
  co_await rig.create();
  co_await rig.verify_all();
  co_await rig.fill();
  Error error = co_await rig.set->flush_drives();
  REQUIRE(error == Error::kNone);
  const bool dropped = rig.drives->drop(1, DropReason::kMissing, "a test says so");
  REQUIRE(dropped);
  error = co_await rig.drives->settled();
  REQUIRE(error == Error::kNone);
  error = co_await rig.write(0, 8, 99);  // The drive in role 1 misses this.
  REQUIRE(error == Error::kNone);
  error = co_await rig.set->flush_drives();
  REQUIRE(error == Error::kNone);
  const Uuid uuid = rig.drives->superblock().roles[1].drive;
  rig.drives->take_role(1, *rig.devices[1], "back", {}, uuid, true);
  REQUIRE(rig.drives->stale_count(1, false) > 0);
  error = co_await rig.drives->settled();
  REQUIRE(error == Error::kNone);
  const std::uint64_t region = rig.drives->region_of(0);
  std::vector<unsigned> alone = its.stay;
  alone.push_back(1);
  const AssembledSet found = co_await assembled_of(&rig, alone);
  CHECK_FALSE(found.startable);
  REQUIRE(found.regions.has_value());
  CHECK(found.regions->stale(1, false, region));
  co_await rig.end();
}

// A read of a bad place in a stripe of which a returned drive has parity.
struct Meanwhile {
  bool integrity;
  Duration fresh_after;  // From the read's begin until the drive counts as fresh.
  bool answered;         // Early enough for the read, else for the repair that follows it.
};

Task<void> read_for_outcome(SetRig* rig, Lba first, std::string* outcome, Condition* ended) {
  *outcome = co_await rig->read(first, 8);
  ended->notify_all();
}

// The member's drive misses a write in stripe 1, returns, and is rebuilt there; it does not count
// as fresh yet.
Task<void> return_rebuilt(SetRig* rig, unsigned member, Lba lba) {
  const unsigned role = rig->set->layout().role(1, member);
  const bool dropped = rig->drives->drop(role, DropReason::kMissing, "a test says so");
  REQUIRE(dropped);
  Error error = co_await rig->write(lba, 8, 99);
  REQUIRE(error == Error::kNone);
  const Uuid uuid = rig->drives->superblock().roles[role].drive;
  rig->drives->take_role(role, *rig->devices[role], "back", {}, uuid, true);
  error = co_await rig->drives->settled();
  REQUIRE(error == Error::kNone);
  error = co_await rig->set->rebuild_member(1, member, rig->drives->drive(role));
  REQUIRE(error == Error::kNone);
}

Task<void> become_fresh(Executor* home, Meanwhile its) {
  SetRig rig(*home, {.level = Level::kRaid5, .drives = 3, .integrity = its.integrity});
  co_await rig.create();
  co_await rig.verify_all();
  const Layout& layout = rig.set->layout();
  const Lba lba = layout.lba({.stripe = 1});
  const unsigned role = layout.role(1, layout.data_chunks());
  co_await return_rebuilt(&rig, layout.data_chunks(), lba);
  rig.devices[layout.role(1, 0)]->make_unreadable(rig.drives->data_offset() + layout.drive_lba(1));
  for (const auto& device : rig.devices) device->slow_reads(std::chrono::milliseconds(10));
  std::string outcome = "unread";
  Condition ended;
  spawn(read_for_outcome(&rig, lba, &outcome, &ended));
  co_await home->sleep_for(its.fresh_after);
  rig.drives->fresh_up_to(role, false, rig.drives->region_of(1), 2);
  while (outcome == "unread") co_await ended.wait();
  CHECK(outcome == (its.answered ? "" : describe(Error::kMediumError)));
  co_await home->sleep_for(std::chrono::seconds(1));  // The repair has ended.
  CHECK(rig.drives->lost().empty());
  outcome = co_await rig.read(lba, 8);
  CHECK(outcome == "");
  co_await rig.end();
}

Task<void> refused_write(SetRig* rig, Lba lba, Error* error, bool* ended) {
  *error = co_await rig->write(lba, 8, 100);
  *ended = true;
}

// A write to a returned drive whose parity is refused for a bad place.
// With two parities another drive is missing.
Task<void> become_fresh_in_a_refused_write(Executor* home, Level level, Duration fresh_after) {
  const bool two = level == Level::kRaid6;
  SetRig rig(*home, {.level = level, .drives = two ? 4U : 3U});
  co_await rig.create();
  co_await rig.verify_all();
  const Layout& layout = rig.set->layout();
  const Lba lba = layout.lba({.stripe = 1, .chunk = 1});
  const unsigned role = layout.role(1, 1);
  co_await return_rebuilt(&rig, 1, lba);
  const unsigned other = layout.role(1, 0);
  if (two) REQUIRE(rig.drives->drop(other, DropReason::kMissing, "a test says so"));
  TestDrive& parity = *rig.devices[layout.role(1, layout.data_chunks())];
  parity.data_from = rig.drives->data_offset();
  parity.refuse_data(true);
  for (const auto& device : rig.devices) device->slow_reads(std::chrono::milliseconds(10));
  std::vector<std::byte> old = rig.expected;
  bool ended = false;
  Error error = Error::kNone;
  spawn(refused_write(&rig, lba, &error, &ended));
  co_await home->sleep_for(fresh_after);
  rig.drives->fresh_up_to(role, false, rig.drives->region_of(1), 2);
  co_await home->sleep_for(std::chrono::seconds(1));
  REQUIRE(ended);
  CHECK(error == Error::kMediumError);
  parity.refuse_data(false);
  for (const auto& device : rig.devices) device->slow_reads(Duration::zero());
  // Old or new, and for good.
  std::string there = co_await rig.read(lba, 8);
  if (!there.empty()) std::swap(rig.expected, old);
  there = co_await rig.read(lba, 8);
  CHECK(there == "");
  if (two) {
    const Lba missing = layout.lba({.stripe = 1, .chunk = 0});
    const std::string recovered = co_await rig.read(missing, 8);
    CHECK((recovered == "" || recovered == describe(Error::kMediumError)));
    co_await rig.end();
    co_return;
  }
  co_await rig.verify_all();
  rig.devices[role]->fail_with(Error::kHardware);
  const std::string computed = co_await rig.read(lba, 8);
  CHECK(computed == "");
  co_await rig.end();
}

}  // namespace

TEST_CASE("A drive that returns to a running set holds the newest region map", "[raid][R-A1]") {
  for (const Return& its : {Return{{.level = Level::kRaid1, .drives = 2}, {}},
                            Return{{.level = Level::kRaid10, .drives = 4}, {3}},
                            Return{{.level = Level::kRaid5, .drives = 4}, {0, 2}},
                            Return{{.level = Level::kRaid6, .drives = 5}, {0, 2}}}) {
    CAPTURE(describe(its.shape.level));
    in_world(1, [its](Executor& home) { return return_stale(&home, its); });
  }
}

TEST_CASE("A drive that becomes fresh while a bad place is settled is read for it", "[raid][D-3]") {
  using namespace std::chrono_literals;
  for (const Meanwhile& its : {Meanwhile{false, 15ms, true}, Meanwhile{false, 105ms, false},
                               Meanwhile{true, 15ms, true}, Meanwhile{true, 25ms, true}}) {
    CAPTURE(its.integrity, its.fresh_after);
    in_world(1, [its](Executor& home) { return become_fresh(&home, its); });
  }
}

TEST_CASE("A drive that becomes fresh while a refused write is settled is read for it",
          "[raid][D-3]") {
  using namespace std::chrono_literals;
  for (const Duration fresh_after : {1ms, 5ms, 11ms, 15ms, 21ms, 25ms, 35ms, 45ms}) {
    for (const Level level : {Level::kRaid5, Level::kRaid6}) {
      CAPTURE(fresh_after / 1ms, describe(level));
      in_world(1, [=](Executor& home) {
        return become_fresh_in_a_refused_write(&home, level, fresh_after);
      });
    }
  }
}

}  // namespace sandbay::raidtest::returning_drive_test
