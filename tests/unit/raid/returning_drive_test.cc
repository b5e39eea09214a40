// A drive that comes back to a set that runs: from its superblocks on it may be the only drive of
// the next start, so all that the set knows of it is on it by then.
#include "set_rig.h"

namespace sandbay::raidtest {
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

}  // namespace sandbay::raidtest
