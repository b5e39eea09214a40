// The journal on drives: what it promises through power cuts, failing drives and damage, against a
// naive model; and its limits, one by one.

#include "raid/drive_journal.h"

#include <bit>
#include <cstdlib>
#include <string>

#include <catch2/catch.hpp>

#include "crash_drives.h"
#include "journal_model.h"
#include "runtime/simulation.h"
#include "test_drive.h"

namespace sandbay::raid::testing::drive_journal_test {
namespace {

constexpr Uuid kSet = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

constexpr std::uint64_t kStripes = 12;

// A run of several lives; each ends with a power cut and the next starts from what it left.
struct Run {
  Executor& home;
  JournalRing ring;
  Random random;
  JournalModel model;
  std::uint64_t cuts = 0;
  std::uint64_t second_cuts = 0;  // During recovery.
  std::uint64_t laps = 0;
  std::string failure = {};

  unsigned roles() const { return ring.role_count; }
  void fail(const std::string& what, const std::string& where) {
    if (failure.empty() && !what.empty()) failure = where + ": " + what;
  }
};

enum class Phase : std::uint8_t { kWorking, kRecovering, kResetting };

struct Snapshot {
  CrashDrives::Image image;
  JournalModel::States states;
  Phase phase = Phase::kWorking;
};

unsigned bits(std::uint64_t mask) { return static_cast<unsigned>(std::popcount(mask)); }

// Takes roles of `allowed` out of `live` at random, at most `most`.
std::uint64_t without_some(std::uint64_t live, std::uint64_t allowed, unsigned most,
                           Random& random) {
  for (unsigned left = static_cast<unsigned>(random.below(most + 1)); left > 0; --left) {
    const std::uint64_t role = random.below(64);
    for (std::uint64_t i = 0; i < 64; ++i) {
      const std::uint64_t bit = std::uint64_t{1} << (role + i) % 64;
      if ((live & allowed & bit) == 0) continue;
      live &= ~bit;
      break;
    }
  }
  return live;
}

// Rots or makes unreadable some sectors of the ring on a drive.
void damage(CrashDrives::Drive& drive, const JournalRing& ring, Random& random) {
  const bool rot = random.chance(0.5);
  const Extent extent{.first = ring.first_block, .block_count = ring.block_count};
  for (Lba sector = extent.first; sector < extent.end(); ++sector) {
    if (!random.chance(0.2)) continue;
    if (rot) {
      drive.durable[sector * kSectorBytes + random.below(kSectorBytes)] ^= std::byte{0x40};
    } else {
      drive.unreadable.insert(sector);
    }
  }
}

std::string complaint(const Result<JournalRecovery>& found) {
  if (!found.has_value()) return "recovery fails: " + std::string(describe(found.error()));
  if (found->all_lost) return "all is said to be lost";
  if (!found->lost.empty()) return "a stripe is said to be lost";
  return {};
}

// A cut during recovery: the drives that are there then are others, and what had been returned must
// be there again unless reset() has emptied the journal.
Task<void> check_second_cut(Run* run, Snapshot snapshot, std::size_t first, std::uint64_t possible,
                            std::uint64_t damaged, const JournalRecovery* earlier) {
  ++run->second_cuts;
  const std::uint64_t live_before = snapshot.image.live;
  CrashDrives::Image image = cut(std::move(snapshot.image), run->random);
  const unsigned failed = run->roles() - bits(possible);
  const unsigned spare = run->ring.copies - 1 - failed - bits(damaged);
  image.live = without_some(possible, ~damaged, spare, run->random);
  if ((image.live & live_before) == 0) image.live |= live_before & possible;
  CrashDrives drives(run->home, std::move(image));
  DriveJournal journal(drives, run->ring, run->home);
  const Result<JournalRecovery> found = co_await journal.recover();
  run->fail(complaint(found), "second cut");
  if (!found.has_value()) co_return;
  const bool emptied = snapshot.phase == Phase::kResetting && found->updates.empty();
  if (emptied) co_return;
  run->fail(run->model.judge(*found, snapshot.states, first), "second cut");
  if (snapshot.phase == Phase::kResetting) {
    run->fail(run->model.judge_again(*found, *earlier, snapshot.states), "second cut");
  }
}

Task<void> check_cut(Run* run, const Snapshot* snapshot, std::size_t first) {
  ++run->cuts;
  CrashDrives::Image image = cut(snapshot->image, run->random);
  const std::uint64_t possible = image.live;  // Others are out of the set.
  const unsigned spare = run->ring.copies - 1 - (run->roles() - bits(possible));
  image.live = without_some(possible, possible, spare, run->random);
  const unsigned damageable = spare - bits(possible & ~image.live);
  const std::uint64_t damaged =
      image.live & ~without_some(image.live, image.live, damageable, run->random);
  for (unsigned role = 0; role < run->roles(); ++role) {
    if ((damaged >> role & 1U) != 0) damage(image.drives[role], run->ring, run->random);
  }

  std::vector<Snapshot> seconds;
  Phase phase = Phase::kRecovering;
  CrashDrives drives(run->home, std::move(image));
  drives.observe = [&] {
    seconds.push_back({.image = drives.image(), .states = snapshot->states, .phase = phase});
  };
  DriveJournal journal(drives, run->ring, run->home);
  const Result<JournalRecovery> found = co_await journal.recover();
  run->fail(complaint(found), "cut");
  if (!found.has_value()) co_return;
  run->fail(run->model.judge(*found, snapshot->states, first), "cut");
  phase = Phase::kResetting;
  const Error reset = co_await journal.reset();
  run->fail(reset == Error::kNone ? "" : "reset fails", "cut");
  if (journal.used_bytes() != 0) run->fail("something is used after reset", "cut");

  const std::size_t chosen = run->random.below(seconds.size());
  co_await check_second_cut(run, std::move(seconds[chosen]), first, possible, damaged, &*found);
  // After reset() there is nothing, whoever is missing.
  CrashDrives::Image emptied = drives.image();
  emptied.live = without_some(emptied.live, ~damaged, damageable - bits(damaged), run->random);
  CrashDrives later_drives(run->home, std::move(emptied));
  DriveJournal later(later_drives, run->ring, run->home);
  const Result<JournalRecovery> nothing = co_await later.recover();
  run->fail(complaint(nothing), "after reset");
  if (nothing.has_value() && !nothing->updates.empty()) {
    run->fail("updates come back after reset", "after reset");
  }
}

// ---- the owner of a journal, as a RAID set is --------------------------------------------------

struct Owner {
  Run& run;
  CrashDrives& drives;
  DriveJournal& journal;
  Gate busy = {};
  bool stripe_busy[kStripes] = {};
  std::vector<std::pair<std::uint64_t, std::size_t>> written = {};  // Tickets and numbers.
  bool release_late = false;

  // A flush of the drives: all or some of what has been written in place is released, in any order.
  void release_some(bool all) {
    std::vector<std::pair<std::uint64_t, std::size_t>> kept;
    std::vector<std::pair<std::uint64_t, std::size_t>> released = std::exchange(written, {});
    for (std::size_t i = released.size(); i > 1; --i) {
      std::swap(released[i - 1], released[run.random.below(i)]);
    }
    for (const auto& [ticket, number] : released) {
      if (!all && run.random.chance(0.5)) {
        kept.emplace_back(ticket, number);
        continue;
      }
      run.model.set(number, UpdateState::kReleased);
      journal.release(ticket);
    }
    written.insert(written.end(), kept.begin(), kept.end());
  }

  Task<void> pause() {
    const auto nanoseconds = static_cast<std::int64_t>(run.random.below(60'000));
    co_await run.home.sleep_for(Duration(nanoseconds));
  }

  Task<void> relieve() {
    co_await pause();
    release_some(true);
    busy.leave();
  }

  void on_pressure() {
    if (!release_late) {
      release_some(true);
    } else if (busy.enter()) {
      spawn(relieve());
    }
  }

  Task<void> work(unsigned updates) {
    for (unsigned i = 0; i < updates; ++i) {
      if (run.random.chance(0.5)) co_await pause();
      std::uint64_t stripe = run.random.below(kStripes);
      while (stripe_busy[stripe]) stripe = (stripe + 1) % kStripes;
      stripe_busy[stripe] = true;
      const std::size_t number = run.model.begin(stripe, run.roles(), run.random);
      const JournalModel::Update update = run.model.update(number);
      const BufferList payload = pool_payload(run.home, update.payload);
      const Result<std::uint64_t> ticket = co_await journal.append(
          {.stripe = update.stripe, .writes = update.writes, .payload = &payload});
      if (!ticket.has_value()) {
        run.fail("an append fails", "work");
        break;
      }
      run.model.set(number, UpdateState::kAcknowledged);
      co_await pause();  // It is written in place.
      stripe_busy[stripe] = false;
      written.emplace_back(*ticket, number);
      if (journal.under_pressure() || run.random.chance(0.1)) {
        release_some(run.random.chance(0.7));
      }
      if (journal.under_pressure()) on_pressure();
    }
    busy.leave();
  }
};

// One life on `drives`; returns the state in which the next one starts.
Task<CrashDrives::Image> live_once(Run* run, CrashDrives::Image image) {
  const std::size_t first = run->model.count();
  CrashDrives drives(run->home, std::move(image));
  DriveJournal journal(drives, run->ring, run->home);
  const Result<JournalRecovery> found = co_await journal.recover();
  run->fail(complaint(found), "start");
  const Error reset = co_await journal.reset();
  run->fail(reset == Error::kNone ? "" : "reset fails", "start");
  // Drives that were absent are back and healed; their rings are as they left.
  if (run->random.chance(0.5)) {
    for (unsigned role = 0; role < run->roles(); ++role) drives.set_live(role, true);
    const Error renewed = co_await journal.renew();
    run->fail(renewed == Error::kNone ? "" : "renew fails", "start");
  }
  drives.failures_left = run->ring.copies - 1 - (run->roles() - bits(drives.live_roles()));
  drives.failure_chance = run->random.chance(0.5) ? 0.02 : 0;

  std::vector<Snapshot> snapshots;
  drives.observe = [&] {
    snapshots.push_back({.image = drives.image(), .states = run->model.states()});
  };
  Owner owner{.run = *run, .drives = drives, .journal = journal};
  owner.release_late = run->random.chance(0.5);
  journal.on_pressure = [&] { owner.on_pressure(); };
  const std::uint64_t workers = run->random.between(1, 6);
  for (std::uint64_t i = 0; i < workers; ++i) {
    const bool entered = owner.busy.enter();
    assert(entered);
    spawn(owner.work(static_cast<unsigned>(run->random.between(5, 25))));
  }
  co_await owner.busy.drain();
  run->laps += journal.written_bytes() / run->ring.copies / run->ring.byte_count();
  drives.observe = {};
  for (const Snapshot& snapshot : snapshots) {
    if (!run->failure.empty()) break;
    co_await check_cut(run, &snapshot, first);
  }
  const Snapshot& last = snapshots[run->random.below(snapshots.size())];
  CrashDrives::Image next = cut(last.image, run->random);
  const unsigned spare = run->ring.copies - 1 - (run->roles() - bits(next.live));
  next.live = without_some(next.live, next.live, spare, run->random);
  co_return next;
}

Task<void> live(Run* run) {
  CrashDrives::Image image = CrashDrives(run->home, run->roles(), 64 * 1024).image();
  for (int lives = 0; lives < 3 && run->failure.empty(); ++lives) {
    image = co_await live_once(run, std::move(image));
  }
}

JournalRing random_ring(Random& random) {
  JournalRing ring{.set = kSet, .first_block = 8};
  ring.copies = static_cast<unsigned>(random.between(1, 3));
  ring.role_count = static_cast<unsigned>(random.between(ring.copies + 1, 5));
  ring.unit_bytes = random.chance(0.5) ? 512 : 1024;
  // Just enough for the largest update, so that there are many laps.
  const std::uint64_t least_units = ring.unit_bytes == 512 ? 57 : 29;
  ring.block_count = ring.unit_bytes / 512 * random.between(least_units, least_units + 15);
  return ring;
}

std::uint64_t cuts_wanted() {
  const char* const text = std::getenv("SANDBAY_JOURNAL_CUTS");
  return text == nullptr ? (raidtest::kSanitized ? 5'000 : 20'000)
                         : std::strtoull(text, nullptr, 10);
}

TEST_CASE("A journal on drives keeps its promise through every power cut", "[raid][sim]") {
  const std::uint64_t wanted = cuts_wanted();
  std::uint64_t cuts = 0;
  std::uint64_t second_cuts = 0;
  std::uint64_t laps = 0;
  for (std::uint64_t seed = 1; cuts < wanted; ++seed) {
    CAPTURE(seed);
    const auto world = sim::World::create({.seed = seed});
    Executor& home = *world->executors()[0];
    Random random(seed);
    Run run{.home = home, .ring = random_ring(random), .random = random.fork(), .model = {}};
    const bool ended = world->run([&] { return live(&run); });
    REQUIRE(run.failure == "");
    REQUIRE(ended);
    REQUIRE(home.buffers().used_bytes() == 0);
    cuts += run.cuts;
    second_cuts += run.second_cuts;
    laps += run.laps;
  }
  CHECK(second_cuts >= cuts * 9 / 10);
  CHECK(laps > cuts / 1000);
  WARN(cuts << " cuts, " << second_cuts << " of them again during recovery, " << laps << " laps");
}

}  // namespace
}  // namespace sandbay::raid::testing::drive_journal_test
