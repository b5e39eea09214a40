// Assembly, case by case: every verdict, every refusal, and that each is explained by a line that
// names the drive.
#include "raid/assembly.h"

#include <fmt/core.h>

#include <functional>

#include "metadata_samples.h"

namespace sandbay::raid::testing::assembly_test {
namespace {

// A set as its drives hold it.
class Fixture {
 public:
  explicit Fixture(Level level = Level::kRaid5, unsigned count = 4, std::string name = "data",
                   std::uint64_t seed = 1)
      : random(seed) {
    auto planned = plan({.name = std::move(name), .group_uuid = group, .level = level},
                        blank_drives(count, 32u << 20), random);
    set = planned.superblocks[0];
    planned.regions.encode_next();
    planned.lost.encode_next();
    for (unsigned role = 0; role < count; ++role) {
      Candidate drive = blank_drive(role, 32u << 20);
      drive.regions = planned.regions;
      drive.lost = planned.lost;
      drives.push_back(std::move(drive));
      hold(role, set.for_role(role));
    }
    set.mark_complete();
  }

  void hold(std::size_t drive, const Superblock& superblock) {
    drives[drive].contents = {.kind = DriveContents::Kind::kSuperblock,
                              .superblock = superblock,
                              .error = Error::kNone,
                              .why = {}};
  }
  // The next event on all active drives but `without`.
  void event(const std::vector<unsigned>& without = {}) {
    set.advance(random);
    for (unsigned role = 0; role < set.drive_count(); ++role) {
      if (set.roles[role].state != RoleState::kActive) continue;
      if (std::ranges::find(without, role) == without.end()) hold(role, set.for_role(role));
    }
    if (without.empty()) set.mark_complete();
  }
  void lose(unsigned role, RoleState state = RoleState::kMissing) {
    set.roles[role].state = state;
    event();
  }
  Assembly look(Event minimum = 0) const {
    Remembered remembered{.group_uuid = group, .minimum_events = {}};
    if (minimum != 0) remembered.minimum_events.emplace(set.set_uuid, minimum);
    return assemble(drives, remembered);
  }
  void remove(std::size_t drive) {
    drives.erase(drives.begin() + static_cast<std::ptrdiff_t>(drive));
  }

  Uuid group{9};
  Random random;
  Superblock set;
  std::vector<Candidate> drives;
};

bool said(const Assembly& assembly, std::string_view text) {
  return std::ranges::any_of(assembly.lines, [&](const std::string& line) {
    return line.find(text) != std::string::npos;
  });
}

TEST_CASE("a whole set starts, its drives in any order", "[raid][assembly]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Fixture fixture(Level::kRaid6, 6);
    Random shuffle(seed);
    std::ranges::shuffle(fixture.drives, shuffle);
    const Assembly found = fixture.look(fixture.set.event);
    REQUIRE(found.sets.size() == 1);
    const AssembledSet& set = found.sets[0];
    REQUIRE(set.startable);
    REQUIRE(!set.degraded);
    REQUIRE(set.current_roles == 0x3f);
    REQUIRE(found.lines.empty());
    for (unsigned role = 0; role < 6; ++role) {
      REQUIRE(fixture.drives[*set.roles[role].drive].name == "d" + std::to_string(role));
    }
  }
}

TEST_CASE("a set starts degraded and says so, or does not and says why", "[raid][assembly]") {
  Fixture fixture;
  fixture.remove(2);
  const Assembly one = fixture.look();
  REQUIRE(one.sets[0].startable);
  REQUIRE(one.sets[0].degraded);
  REQUIRE(one.sets[0].roles[2].verdict == Verdict::kAbsent);
  REQUIRE(said(one, "set 'data', role 2: its drive ("));
  REQUIRE(said(one, "set 'data': starts degraded"));
  fixture.remove(0);
  const Assembly two = fixture.look();
  REQUIRE(!two.sets[0].startable);
  REQUIRE(two.sets[0].refusal ==
          "set 'data': roles 0, 2 are not there or not fresh, which raid5 does not survive; put "
          "their drives back");
}

// Whoever was told of an event, and remembers an older one, is a copy of himself.
TEST_CASE("a set is not started by metadata that are older than its drives", "[raid][assembly]") {
  Fixture fixture;
  const Event first = fixture.set.event;
  // What it was not told of, as after a crash, it need not remember.
  fixture.event();
  REQUIRE(fixture.look(first).sets[0].startable);
  const Event second = fixture.set.event;
  fixture.event();
  REQUIRE(fixture.look(second).sets[0].startable);
  const Assembly older = fixture.look(first);
  REQUIRE_FALSE(older.sets[0].startable);
  REQUIRE(older.sets[0].refusal ==
          fmt::format("set 'data': its drives were brought to event {}, and event {} is the newest "
                      "that is remembered: the metadata are an older copy, and it is not served "
                      "with them; bring back the newest, or import an export of the group",
                      event_number(second), event_number(first)));
  const Uuid uuid = fixture.set.set_uuid;
  const Assembly meant =
      assemble(fixture.drives,
               {.group_uuid = fixture.group, .minimum_events = {{uuid, first}}, .older = {uuid}});
  REQUIRE(meant.sets[0].startable);
  REQUIRE(fixture.look().sets[0].startable);
}

TEST_CASE("a drive that was lost returns with what it has missed", "[raid][assembly]") {
  Fixture fixture;
  fixture.lose(1);
  fixture.drives[0].regions->set_stale(1, false, 0, true);
  fixture.drives[0].regions->encode_next();
  const Assembly found = fixture.look(fixture.set.event);
  REQUIRE(found.sets[0].startable);
  REQUIRE(found.sets[0].roles[1].verdict == Verdict::kReturning);
  REQUIRE(found.sets[0].roles[1].drive == 1U);
  REQUIRE(found.sets[0].regions->stale_count(1, false) == 1);
  REQUIRE(found.sets[0].current_roles == 0b1101);
  REQUIRE(said(found, "d1 is returning: it was missing and has missed 1 of"));
}

TEST_CASE("stale drives alone are refused by the event that is remembered", "[raid][assembly]") {
  Fixture fixture(Level::kRaid1, 2);
  const Event before = fixture.set.event;
  fixture.lose(0);
  fixture.remove(1);
  const Assembly found = fixture.look(fixture.set.event);
  REQUIRE(!found.sets[0].startable);
  REQUIRE(found.sets[0].refusal.find("newer drives are away") != std::string::npos);
  REQUIRE_FALSE(found.sets[0].undecided.empty());  // They are there, and of this set.
  REQUIRE(found.sets[0].refusal.find("d0") != std::string::npos);
  REQUIRE(fixture.look(before).sets[0].startable);
}

TEST_CASE("a superblock update that was cut short loses no drive", "[raid][assembly]") {
  for (unsigned cut = 0; cut < 16; ++cut) {
    Fixture fixture;
    fixture.set.clean = !fixture.set.clean;
    std::vector<unsigned> without;
    for (unsigned role = 0; role < 4; ++role) {
      if ((cut >> role & 1U) != 0) without.push_back(role);
    }
    fixture.event(without);
    const Assembly found = fixture.look();
    CAPTURE(cut);
    REQUIRE(found.sets[0].startable);
    REQUIRE(found.sets[0].current_roles == 0b1111);
    if (cut != 15) REQUIRE(found.sets[0].superblock.event == fixture.set.event);
  }
}

TEST_CASE("a drive that was set back is found out", "[raid][assembly]") {
  Fixture fixture;
  const DriveContents old = fixture.drives[3].contents;
  fixture.event();
  fixture.event();
  fixture.drives[3].contents = old;
  const Assembly found = fixture.look();
  REQUIRE(found.sets[0].startable);
  REQUIRE(found.sets[0].roles[3].verdict == Verdict::kStale);
  REQUIRE(said(found, "d3 is stale: it holds event 1 although event 2 had been written on it"));
}

TEST_CASE("an event that only one drive saw, and that is away, does not count when it comes back",
          "[raid][assembly]") {
  Fixture fixture(Level::kRaid6, 5);
  const Superblock before = fixture.set;
  fixture.set.roles[4].state = RoleState::kFailed;
  fixture.event({0, 2, 3});  // On drive 1 alone.
  fixture.set = before;
  fixture.lose(1);
  const Assembly found = fixture.look();
  REQUIRE(found.sets[0].startable);
  REQUIRE(found.sets[0].superblock.event == fixture.set.event);
  REQUIRE(found.sets[0].current_roles == 0b11101);
  REQUIRE(found.sets[0].roles[1].verdict == Verdict::kReturning);
}

TEST_CASE("halves that went on without each other are refused, unless one is remembered",
          "[raid][assembly]") {
  Fixture fixture(Level::kRaid1, 2);
  const Superblock before = fixture.set;
  fixture.lose(1);
  const Superblock left = fixture.set;
  fixture.set = before;
  fixture.set.roles[0].state = RoleState::kMissing;
  fixture.event();
  fixture.event();
  const Assembly split = fixture.look();
  REQUIRE(!split.sets[0].startable);
  REQUIRE(split.sets[0].refusal.find("went on without each other") != std::string::npos);
  REQUIRE(split.sets[0].refusal.find("d0") != std::string::npos);
  REQUIRE(split.sets[0].refusal.find("d1") != std::string::npos);
  const Assembly decided = fixture.look(left.event);
  REQUIRE(decided.sets[0].startable);
  REQUIRE(decided.sets[0].roles[0].verdict == Verdict::kCurrent);
  REQUIRE(decided.sets[0].roles[1].verdict == Verdict::kStale);
  REQUIRE(said(decided, "d1 is stale: it went on without the others"));
}

TEST_CASE("the map of a past that came to nothing does not count", "[raid][assembly]") {
  Fixture fixture(Level::kRaid1, 3);
  fixture.lose(2);
  fixture.drives[0].regions->set_stale(2, false, 0, true);
  fixture.drives[0].regions->encode_next();
  const Superblock before = fixture.set;
  fixture.event({1});
  fixture.event({1});  // Drive 0: two events of which drive 1 has none ...
  fixture.set = before;
  for (int count = 0; count < 9; ++count) fixture.drives[1].regions->encode_next();
  fixture.event({0});  // ... and this one drive 0 has not.
  const Assembly found = fixture.look(before.event);
  REQUIRE(found.sets[0].startable);
  REQUIRE(found.sets[0].superblock.event != fixture.set.event);
  REQUIRE(found.sets[0].current_roles == 0b011);
  REQUIRE(found.sets[0].regions->stale_count(2, false) == 1);
}

TEST_CASE("copies of one drive are refused, both by name", "[raid][assembly]") {
  Fixture fixture;
  fixture.drives.push_back(fixture.drives[2]);
  fixture.drives.back().name = "copy";
  const Assembly found = fixture.look();
  REQUIRE(found.strangers.size() == 2);
  REQUIRE(said(found, "d2: it and copy are copies of one drive"));
  REQUIRE(said(found, "copy: it and d2 are copies of one drive"));
  REQUIRE(found.sets[0].roles[2].verdict == Verdict::kAbsent);
  REQUIRE(found.sets[0].startable);
}

TEST_CASE("drives that do not belong are strangers, each with its reason", "[raid][assembly]") {
  struct Case {
    std::string_view line;
    std::function<void(Fixture&)> change;
  };
  const Case cases[] = {
      {"d3: its blocks have 4096 bytes, and 512 by its superblock",
       [](Fixture& it) { it.drives[3].block_bytes = 4096; }},
      {"d3: it has 16777216 bytes, and set 'data' takes",
       [](Fixture& it) { it.drives[3].block_count = 32768; }},
      {"d3: it has no superblock, and other data",
       [](Fixture& it) {
         it.drives[3].contents = {.kind = DriveContents::Kind::kForeign,
                                  .superblock = {},
                                  .error = Error::kNone,
                                  .why = "it has no superblock, and other data near byte 0"};
       }},
      {"d3: it was in role 3 of set 'data' and is not any more",
       [](Fixture& it) {
         it.set.roles[3].drive = make_uuid(it.random);
         it.set.advance(it.random);
         for (unsigned role = 0; role < 3; ++role) it.hold(role, it.set.for_role(role));
       }},
  };
  for (const Case& one : cases) {
    Fixture fixture;
    one.change(fixture);
    const Assembly found = fixture.look();
    CAPTURE(one.line, found.lines);
    REQUIRE(said(found, one.line));
    REQUIRE(found.strangers.size() == 1);
    REQUIRE(found.strangers[0].drive == 3);
    REQUIRE(found.sets[0].roles[3].verdict == Verdict::kAbsent);
    REQUIRE(found.sets[0].startable);
  }
}

TEST_CASE("drives of another group are strangers", "[raid][assembly]") {
  Fixture fixture;
  const Assembly found = assemble(fixture.drives, {.group_uuid = {7}, .minimum_events = {}});
  REQUIRE(found.sets.empty());
  REQUIRE(found.strangers.size() == 4);
  REQUIRE(said(found, "d0: it belongs to set 'data' of another group"));
  REQUIRE(said(found, "empty state directory and this UUID as group.uuid"));
  REQUIRE(assemble(fixture.drives, {}).sets[0].startable);
}

TEST_CASE("superblocks that contradict each other are refused by name", "[raid][assembly]") {
  Fixture geometry;
  Superblock other = geometry.set;
  other.strip_blocks /= 2;
  other.advance(geometry.random);
  geometry.hold(1, other.for_role(1));
  const Assembly unequal = geometry.look();
  REQUIRE(!unequal.sets[0].startable);
  REQUIRE(unequal.sets[0].refusal ==
          "set 'data': the superblocks of d0 and d1 tell of different geometries");
  Fixture content;
  Superblock same_event = content.set.for_role(2);
  same_event.set_name = "else";
  content.hold(2, same_event);
  const Assembly differ = content.look();
  REQUIRE(!differ.sets[0].startable);
  REQUIRE(said(differ, "are both of event 1 and yet differ"));
}

TEST_CASE("a drive that two sets name is nobody's", "[raid][assembly]") {
  Fixture one;
  Fixture two(Level::kRaid5, 4, "logs", 2);
  two.set.roles[3].drive = one.set.roles[0].drive;
  two.set.advance(two.random);
  for (unsigned role = 0; role < 3; ++role) {
    two.hold(role, two.set.for_role(role));
    two.drives[role].name = "e" + std::to_string(role);
    one.drives.push_back(two.drives[role]);
  }
  const Assembly found = one.look();
  REQUIRE(found.sets.size() == 2);
  REQUIRE(found.strangers.size() == 1);
  REQUIRE(found.strangers[0].drive == 0);
  REQUIRE(found.strangers[0].why.find("d0: ") == 0);
  REQUIRE(found.strangers[0].why.find("'data'") != std::string::npos);
  REQUIRE(found.strangers[0].why.find("'logs'") != std::string::npos);
}

TEST_CASE("spares are global, dedicated, another group's or without their set",
          "[raid][assembly]") {
  Fixture fixture;
  const auto add = [&](const std::string& name, const Uuid& group, const Uuid& set) {
    fixture.drives.push_back(blank_drive(0, 32u << 20));
    fixture.drives.back().name = name;
    fixture.hold(fixture.drives.size() - 1,
                 make_spare(make_uuid(fixture.random), group, 512, set, "kept"));
  };
  add("global", fixture.group, {});
  add("dedicated", fixture.group, fixture.set.set_uuid);
  add("theirs", {5}, {});
  add("alone", fixture.group, {77});
  const Assembly found = fixture.look();
  REQUIRE(found.spares == std::vector<std::size_t>{4});
  REQUIRE(found.sets[0].spares == std::vector<std::size_t>{5});
  REQUIRE(said(found, "theirs: it is a spare of another group"));
  REQUIRE(said(found, "alone: it is a spare of set 'kept', which is not here"));
}

TEST_CASE("a spare whose superblock was still to be written has its role", "[raid][assembly]") {
  Fixture fixture;
  fixture.lose(3, RoleState::kFailed);
  const Uuid spare = make_uuid(fixture.random);
  fixture.hold(3, make_spare(spare, fixture.group, 512));
  fixture.drives[3].regions.reset();
  fixture.set.roles[3] = {
      .drive = spare, .state = RoleState::kActive, .data_blocks = fixture.set.roles[3].data_blocks};
  for (unsigned role = 0; role < 3; ++role) {
    fixture.drives[role].regions->set_all_stale(3, false, true);
    fixture.drives[role].regions->encode_next();
  }
  fixture.event({3});
  const Assembly found = fixture.look();
  REQUIRE(found.spares.empty());
  REQUIRE(found.sets[0].startable);
  REQUIRE(found.sets[0].degraded);
  REQUIRE(found.sets[0].roles[3].verdict == Verdict::kCurrent);
  // Once it had been written there, a spare is all the drive can be.
  fixture.set.mark_complete();
  fixture.event({3});
  const Assembly later = fixture.look();
  REQUIRE(later.sets[0].roles[3].verdict == Verdict::kStale);
}

TEST_CASE("what is stale on a current drive counts as not there", "[raid][assembly]") {
  Fixture fixture;
  for (Candidate& drive : fixture.drives) {
    drive.regions->set_stale(1, false, 0, true);
    drive.regions->encode_next();
  }
  REQUIRE(fixture.look().sets[0].startable);
  REQUIRE(fixture.look().sets[0].degraded);
  fixture.remove(2);
  const Assembly found = fixture.look();
  REQUIRE(!found.sets[0].startable);
  REQUIRE(said(found, "roles 1, 2 are not there or not fresh"));
}

TEST_CASE("a set without a readable map or list of lost sectors is refused", "[raid][assembly]") {
  Fixture fixture;
  for (Candidate& drive : fixture.drives) drive.regions.reset();
  REQUIRE(said(fixture.look(), "set 'data': its region map cannot be read"));
  Fixture lost;
  for (Candidate& drive : lost.drives) drive.lost.reset();
  REQUIRE(said(lost.look(), "set 'data': its list of lost sectors cannot be read"));
  Fixture plain(Level::kRaid0, 3);
  for (Candidate& drive : plain.drives) drive.regions.reset();
  REQUIRE(plain.look().sets[0].startable);
  REQUIRE(plain.look().sets[0].regions.has_value());
}

TEST_CASE("a set none of whose drives is there is told", "[raid][assembly]") {
  const Assembly found =
      assemble({}, {.group_uuid = {}, .minimum_events = {{Uuid{3}, Event{1} << 32}}});
  REQUIRE(found.lines.size() == 1);
  REQUIRE(said(found, "none of its drives is there"));
}

}  // namespace
}  // namespace sandbay::raid::testing::assembly_test
