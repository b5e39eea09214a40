// Goal: with a cache above a RAID set, a kill, a power cut or a crash of the host at any moment
// loses nothing that was promised; what battery, durability and mirror do not cover is reported by
// range, and never comes back over what is newer on the drives.
// Method: a run is one cached set under load. At writes of drives and at stores to the memory all
// of it is forked; each fork meets an end, a new world starts set, memory and cache from what is
// left, and everything is read and compared. That world is cut, too, while it replays, reads or
// goes on writing. After the last one the cache is closed and every member of every stripe is
// compared with what was read. SANDBAY_CUTS=n says how many cuts a seed makes at most.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "cache_lab.h"
#include "nvram/damage.h"
#include "nvram/image_layout.h"
#include "runtime/simulation.h"
#include "seeds.h"

namespace sandbay::cachetest {
namespace {

using nvram::BatteryState;
using raid::Level;
using raidtest::kModelBlockBytes;
using raidtest::LabDrive;
using raidtest::put_version;

using Bytes = std::vector<std::byte>;

enum class End : unsigned { kKill, kPowerGood, kPowerDead, kHostCrash, kCount };
constexpr const char* kEndNames[] = {"kill", "power cut, battery good", "power cut, battery dead",
                                     "host crash"};
enum class Damage : unsigned { kNone, kPage, kBits, kContents, kStalePage, kStale, kCount };
constexpr const char* kDamageNames[] = {"none",     "pages",       "bits",
                                        "contents", "stale pages", "all stale"};

struct Cut {
  CacheState state;
  BlockModel model;
  BlockModel on_drives;
  std::uint64_t doubtful = 0;  // Roles that may not be counted on.
  std::uint64_t boundary = 0;
  std::uint64_t live_writes = 0;
  // What the memory was some time before, if it was kept.
  std::shared_ptr<const Bytes> earlier;
  bool battery_died = false;  // At some time, and writes went through.
  bool mirror_failed = false;
  bool stalled = false;    // No sync of the memory's image ends, and writes go through.
  bool was_read = false;   // All of it, after an earlier cut: what was read must stay.
  std::optional<End> end;  // Unset: drawn by chance.
};

struct Totals {
  std::uint64_t cuts = 0;
  std::uint64_t later_cuts = 0;
  std::uint64_t boundaries = 0;
  std::uint64_t replayed = 0;
  std::uint64_t from_mirror = 0;
  std::map<std::string, std::uint64_t> by_end;
  std::map<std::string, std::uint64_t> by_state;
  std::map<std::string, std::uint64_t> damaged;
  std::uint64_t reported = 0;       // Starts that reported losses.
  std::uint64_t broken_blocks = 0;  // Reported blocks that were older than promised.
  double seconds = 0;
};
Totals totals;

std::vector<CacheShape> shapes() {
  const std::vector<raidtest::LabShape> sets = {
      {.level = Level::kRaid5, .drives = 3, .strip_bytes = 4096, .strips = 32},
      {.level = Level::kRaid10, .drives = 4, .strip_bytes = 4096, .strips = 32},
      {.level = Level::kRaid5, .drives = 4, .strip_bytes = 16384, .strips = 12},
      {.level = Level::kRaid10, .drives = 4, .strip_bytes = 16384, .strips = 12},
      {.level = Level::kRaid1, .drives = 2, .strip_bytes = 4096, .strips = 32},
      {.level = Level::kRaid6, .drives = 4, .strip_bytes = 4096, .strips = 32},
  };
  std::vector<CacheShape> all;
  for (unsigned i = 0; i < 30; ++i) {
    CacheShape shape{.set = sets[i % sets.size()]};
    const unsigned kind = i / 6;
    shape.host_durable = kind == 1 || kind == 3;
    shape.mirror = kind == 2 || kind == 3;
    shape.only_emulated = i % 5 != 2;
    shape.patient = i % 3 == 0;
    if (i % 7 == 3) shape.log_bytes = std::uint64_t{24} << 10;
    shape.memory = i != 12 && i != 17;
    shape.journal_too = shape.memory && shape.set.parity() && i % 4 != 0;
    shape.set.nvram = shape.journal_too;
    all.push_back(shape);
  }
  return all;
}

std::uint64_t bit(unsigned role) { return std::uint64_t{1} << role; }

// ---- the run ------------------------------------------------------------------------------------

struct Run {
  CacheShape shape;
  std::size_t most_cuts = 0;
  Random random;
  bool degraded = false;
  bool battery_dies = false;
  bool hangs = false;                 // The disk of the memory's image does, for a while.
  bool weakens = false;               // The device below fails, is full or holds requests.
  bool flickers = false;              // The battery's state changes while writes wait.
  bool damages = false;               // The memory is damaged at work, beside slow reads.
  TimePoint fault_end = kNever;       // Operations that began by then may fail.
  std::uint64_t mirror_fails_at = 0;  // Of the boundaries; 0: it does not.
  std::shared_ptr<const Bytes> earlier;
  bool battery_died = false;
  std::vector<Cut> cuts;
  std::uint64_t boundaries = 0;
  std::uint64_t missed = 0;  // Roles whose drive does not answer, whether the set knows or not.
  std::string wrong;
};

Cut fork_of(const CacheLab& lab, std::uint64_t doubtful, std::uint64_t boundary) {
  return {.state = lab.fork(),
          .model = lab.raid.model,
          .on_drives = *lab.raid.on_drives,
          .doubtful = lab.raid.doubtful_roles() | doubtful,
          .boundary = boundary,
          .live_writes = lab.live_writes(),
          .earlier = nullptr,
          .mirror_failed = lab.mirror_failed(),
          .stalled = lab.stalled()};
}

void note_boundary(Run* run, CacheLab* lab) {
  ++run->boundaries;
  if (run->boundaries == run->mirror_fails_at) lab->fail_mirror();
  // Older by nothing up to the whole run.
  if (run->shape.memory && run->random.chance(0.005)) {
    const std::span<const std::byte> memory = std::as_const(*lab).board()->memory();
    run->earlier = std::make_shared<const Bytes>(memory.begin(), memory.end());
  }
  // Cuts spread over a run whose length is not known: of all so far, any with the same chance.
  std::size_t place = run->cuts.size();
  if (place >= run->most_cuts) {
    place = run->random.below(run->boundaries);
    if (place >= run->most_cuts) return;
  }
  Cut cut = fork_of(*lab, run->missed, run->boundaries);
  cut.earlier = run->earlier;
  cut.battery_died = run->battery_died;
  if (place == run->cuts.size()) {
    run->cuts.push_back(std::move(cut));
  } else {
    run->cuts[place] = std::move(cut);
  }
}

std::string all_wrong(const CacheLab& lab) {
  std::string text;
  for (const std::string& wrong : lab.raid.wrong) text += wrong + "; ";
  return text;
}

// The cache is closed, and drives hold all of `expected` (if anything is), in every member.
Task<std::string> close_and_compare(CacheLab* lab, const std::vector<std::byte>* expected) {
  const Error closed = co_await lab->close_cache();
  if (closed != Error::kNone) {
    co_return fmt::format("closing the cache ended with: {}", describe(closed));
  }
  co_await lab->raid.wait_idle();
  std::vector<std::byte> bytes;
  const Error error = co_await lab->raid.read_all(&bytes);
  if (error != Error::kNone) co_return "after closing the cache the set cannot be read";
  if (expected != nullptr && bytes != *expected) {
    co_return "after closing the cache the set has something else than the cache said";
  }
  std::string problem = lab->raid.check_members(bytes);
  co_return problem;
}

// Writes to blocks whose last one could come back time out.
Task<void> load_while_syncs_hang(Run* run, CacheLab* lab) {
  const bool mirror = run->random.chance(0.5);
  lab->set_sync_time(std::chrono::seconds(10), mirror);
  lab->raid.errors_expected = true;
  for (int i = 0; i < 6; ++i) {
    co_await lab->raid.load(6, 4);
    // Little is stored meanwhile, so few of the others are here.
    if (lab->stalled()) run->cuts.push_back(fork_of(*lab, run->missed, run->boundaries));
  }
  lab->set_sync_time(kSyncTime, mirror);
  co_await lab->raid.home.sleep_for(std::chrono::seconds(30));
  lab->raid.errors_expected = false;
}

// An operation that begins this long after a fault may still fail.
constexpr Duration kGrace = std::chrono::seconds(2);

Task<void> end_weakness(Run* run, CacheLab* lab) {
  co_await lab->raid.home.sleep_for(std::chrono::milliseconds(run->random.below(400)));
  lab->set_weakness({});
  run->fault_end = lab->raid.home.now();
}

// Write errors, a full device, flush errors or requests that are held whatever is cancelled, with
// cuts beside them.
Task<void> load_while_weak(Run* run, CacheLab* lab) {
  run->fault_end = kNever;
  lab->raid.excuses = [run](Extent, Error, TimePoint began) {
    return run->fault_end == kNever || began <= run->fault_end + kGrace;
  };
  const Weakness kinds[] = {{.error = Error::kHardware},
                            {.error = Error::kNoSpace},
                            {.error = Error::kNoSpace, .flushes = true},
                            {.error = Error::kHardware, .flushes = true},
                            {.holding = true}};
  lab->set_weakness(kinds[run->random.below(std::size(kinds))]);
  spawn(end_weakness(run, lab));
  while (run->fault_end == kNever) co_await lab->raid.load(4, 4);
  co_await lab->raid.load(12, 4);
  // The destager tries again after half a minute at most; from then on nothing may fail.
  co_await lab->raid.home.sleep_for(std::chrono::minutes(1));
  lab->raid.excuses = nullptr;
  co_await lab->raid.load(8, 4);
}

Task<void> flicker(Run* run, CacheLab* lab, bool* stop, Event* stopped) {
  while (!*stop) {
    const bool good = run->random.chance(0.5);
    lab->set_battery(good ? BatteryState::kGood : BatteryState::kLow);
    co_await lab->raid.home.sleep_for(std::chrono::microseconds(run->random.below(6000)));
  }
  lab->set_battery(BatteryState::kGood);
  stopped->set();
}

// The battery changes while writes wait for the log or for syncs. A FUA write that is acknowledged
// while it is low survives a power cut at that moment.
Task<void> load_while_battery_flickers(Run* run, CacheLab* lab) {
  constexpr unsigned kMostCuts = 12;
  unsigned cuts = 0;
  lab->expect_battery_changes();
  lab->raid.acknowledged = [run, lab, &cuts] {
    if (run->shape.journal_too || cuts == kMostCuts) return;
    ++cuts;
    Cut cut = fork_of(*lab, run->missed, run->boundaries);
    cut.end = End::kPowerDead;
    run->cuts.push_back(std::move(cut));
  };
  lab->set_sync_time(std::chrono::milliseconds(3), false);
  bool stop = false;
  Event stopped;
  spawn(flicker(run, lab, &stop, &stopped));
  co_await lab->raid.load(120, 6);
  stop = true;
  co_await stopped.wait();
  lab->set_sync_time(kSyncTime, false);
  lab->raid.acknowledged = nullptr;
}

Task<void> read_slowly(CacheLab* lab, Extent extent, Gate* reads) {
  const Error error = co_await lab->raid.read(extent);
  const bool overlaps = std::ranges::any_of(
      lab->damaged, [&](const Extent& damaged) { return damaged.overlaps(extent); });
  if (error != Error::kNone && !(error == Error::kMediumError && overlaps)) {
    lab->raid.wrong.push_back(fmt::format("a slow read ended with: {}", describe(error)));
  }
  reads->leave();
}

constexpr std::uint64_t kPartBlocks = 80;

// Reads take their time; meanwhile their blocks are written and destaged, and then another write is
// damaged in the memory. Nothing older is read from then on.
Task<void> damage_beside_slow_reads(Run* run, CacheLab* lab, Lba part) {
  const Duration most = std::chrono::milliseconds(400);
  Random& random = run->random;
  lab->set_weakness({.read_delay = most});
  Gate reads;
  for (int i = 0; i < 4; ++i) {
    const bool entered = reads.enter();
    assert(entered);
    spawn(read_slowly(lab, {part + random.below(48), 1 + random.below(16)}, &reads));
  }
  for (int i = 0; i < 8; ++i) {
    const Extent extent{part + random.below(56), 1 + random.below(8)};
    const Error error = co_await lab->raid.write(extent, false);
    if (error != Error::kNone) lab->raid.wrong.push_back("a write beside slow reads fails");
  }
  const TimePoint deadline = lab->raid.home.now() + most;
  while (lab->live_writes() > 0 && lab->raid.home.now() < deadline) {
    co_await lab->raid.home.sleep_for(std::chrono::milliseconds(1));
  }
  // Elsewhere, and nothing but the reads is under way.
  const Extent victim{part + 64 + random.below(8), 1};
  const bool quiet = lab->live_writes() == 0;
  const Error error = co_await lab->raid.write(victim, false);
  if (error != Error::kNone) lab->raid.wrong.push_back("a write beside slow reads fails");
  if (quiet) {
    Bytes content(kModelBlockBytes);
    put_version(content, victim.first, lab->raid.last_version);
    const bool spoiled = lab->damage(content) > 0;
    if (spoiled) ++totals.by_state["damage of the memory beside slow reads"];
    const TimePoint patience = lab->raid.home.now() + std::chrono::seconds(5);
    while (spoiled && lab->damaged.empty() && lab->raid.home.now() < patience) {
      co_await lab->raid.home.sleep_for(std::chrono::milliseconds(1));
    }
  }
  co_await reads.close();
  lab->set_weakness({});
  // Lost blocks are written again before everything is read.
  for (const Extent& extent : std::exchange(lab->damaged, {})) {
    (void)co_await lab->raid.write(extent, false);
  }
  const Error checked = co_await lab->raid.read({part, kPartBlocks});
  if (checked != Error::kNone) {
    lab->raid.wrong.push_back("what was rewritten after damage cannot be read");
  }
}

Task<void> play(Run* run, CacheLab* lab) {
  run->wrong = co_await lab->raid.format();
  if (run->wrong.empty()) run->wrong = co_await lab->boot();
  if (!run->wrong.empty()) co_return;
  for (const auto& device : lab->raid.devices) device->set_latency(std::chrono::microseconds(200));
  if (run->degraded) {
    const auto role = static_cast<unsigned>(run->random.below(run->shape.set.drives));
    run->missed |= bit(role);
    lab->raid.devices[role]->fail_with(Error::kHardware);
  }
  co_await lab->raid.load(15, 3);
  lab->observe([run, lab] { note_boundary(run, lab); });
  co_await lab->raid.load(50, 4);
  if (run->battery_dies) {
    run->battery_died = true;
    lab->set_battery(run->random.chance(0.5) ? BatteryState::kDead : BatteryState::kLow);
    co_await lab->raid.load(20, 3);
    if (run->random.chance(0.5)) lab->set_battery(BatteryState::kGood);
  }
  if (run->hangs) co_await load_while_syncs_hang(run, lab);
  if (run->weakens) co_await load_while_weak(run, lab);
  if (run->flickers) co_await load_while_battery_flickers(run, lab);
  co_await lab->raid.load(20, 3);
  if (run->damages) {
    run->most_cuts = 0;  // A start does not report damage that was found before.
    for (int i = 0; i < 4; ++i) {
      const Lba part = run->random.below(lab->raid.model.block_count() - kPartBlocks);
      co_await damage_beside_slow_reads(run, lab, part);
    }
  }
  std::vector<std::byte> bytes;
  const Error error = co_await lab->raid.read_all(&bytes);
  if (error != Error::kNone) run->wrong = "it cannot be read";
  if (run->wrong.empty()) run->wrong = co_await close_and_compare(lab, &bytes);
  lab->raid.errors_expected = true;
  co_await lab->stop();
  run->wrong += all_wrong(*lab);
}

// ---- after the cut ------------------------------------------------------------------------------

struct Recovery {
  CacheShape shape;
  Cut cut;
  Random random;
  End end = End::kKill;
  Damage damage = Damage::kNone;
  bool complete = true;      // Nothing may be missing, and nothing be reported.
  bool go_on = false;        // Write again, too.
  std::uint64_t cut_at = 0;  // Of the boundaries here; 0: no further cut.
  std::uint64_t boundaries = 0;
  std::uint64_t away = 0;    // Roles that are not there.
  std::uint64_t broken = 0;  // Blocks that are older than was promised, and reported.
  std::optional<Cut> again;
  bool was_read = false;
  std::string wrong;
};

void lose_drives(Recovery* recovery) {
  Random& random = recovery->random;
  std::uint64_t away = recovery->cut.doubtful;
  const double share = random.chance(0.5) ? 0.3 : 0.0;
  for (LabDrive& drive : recovery->cut.state.set.drives) {
    drive.present = true;
    if (recovery->end != End::kKill) drive.state = after_power_cut(drive.state, random);
    if (drive.role < 0 || !random.chance(share)) continue;
    const auto role = static_cast<unsigned>(drive.role);
    if (!recovery->shape.set.survives(away | bit(role))) continue;
    away |= bit(role);
    drive.present = false;
  }
  recovery->away = away;
}

// One fault in the log, or several in the data.
void damage_board(Recovery* recovery, nvram::SimulatedBoard* board) {
  Random& random = recovery->random;
  const bool log = random.chance(0.5);
  const std::uint64_t log_bytes = recovery->shape.log_bytes;
  const auto region = board->memory().subspan(nvram::kHeaderBytes, region_bytes(recovery->shape));
  const auto target = log ? region.first(log_bytes) : region.subspan(log_bytes);
  const std::uint64_t count = log ? 1 : 1 + random.below(10);
  if (recovery->damage == Damage::kContents) nvram::lose_contents(board->memory());
  if (recovery->damage == Damage::kBits) nvram::flip_bits(target, count, random);
  for (std::uint64_t i = 0; recovery->damage == Damage::kPage && i < count; ++i) {
    nvram::damage_page(target, random.below(target.size() / nvram::kPageBytes), random);
  }
  if (recovery->cut.earlier == nullptr) return;
  const auto earlier =
      std::span(*recovery->cut.earlier).subspan(nvram::kHeaderBytes, region_bytes(recovery->shape));
  if (recovery->damage == Damage::kStale) std::ranges::copy(earlier, region.begin());
  for (std::uint64_t i = 0; recovery->damage == Damage::kStalePage && i < count; ++i) {
    const std::uint64_t page = random.below(target.size() / nvram::kPageBytes);
    nvram::restore_page(region, earlier, page + (log ? 0 : log_bytes / nvram::kPageBytes));
  }
}

// What drives and memory still hold.
void meet_the_end(Recovery* recovery) {
  Random& random = recovery->random;
  CacheState& state = recovery->cut.state;
  lose_drives(recovery);
  if (!state.board) return;
  const bool mirrored = state.mirror.has_value() && !state.mirror_is_stale;
  switch (recovery->end) {
    case End::kKill:
    case End::kCount:
      break;
    case End::kPowerGood:
      state.board->cut_power(BatteryState::kGood);
      if (state.mirror) state.mirror->cut_power(BatteryState::kGood);
      break;
    case End::kPowerDead:
      state.board->cut_power(BatteryState::kDead);
      if (state.mirror) state.mirror->cut_power(BatteryState::kGood);
      recovery->complete = mirrored;
      break;
    case End::kHostCrash:
      state.board->crash_host(random);
      ++state.boots;
      state.host_crashed = true;
      recovery->complete = mirrored || recovery->shape.host_durable;
      break;
  }
  if (recovery->damage != Damage::kNone) {
    damage_board(recovery, &*state.board);
    state.damaged = true;
    recovery->complete = recovery->complete && mirrored;
  }
  state.to_report = state.to_report || !recovery->complete;
  recovery->complete = !state.to_report;
}

Task<void> come_up(Recovery* recovery, CacheLab* lab) {
  if (recovery->cut_at != 0) {
    lab->observe([recovery, lab] {
      if (++recovery->boundaries != recovery->cut_at) return;
      Cut& again = recovery->again.emplace(fork_of(*lab, recovery->away, recovery->boundaries));
      again.earlier = recovery->cut.earlier;
      again.was_read = recovery->was_read;
    });
  }
  recovery->wrong = co_await lab->boot();
  if (!recovery->wrong.empty()) co_return;
  totals.replayed += lab->replayed;
  totals.from_mirror += lab->from_mirror;
  totals.reported += lab->lost.empty() ? 0 : 1;
  if (recovery->complete && !lab->lost.empty()) {
    recovery->wrong =
        fmt::format("{} writes are said to be lost: {}", lab->lost.size(), lab->lost.front().why);
    co_return;
  }
  std::vector<std::byte> bytes;
  const Error error = co_await lab->raid.read_all(&bytes);
  recovery->wrong = error == Error::kNone ? lab->raid.model.check_after_crash(0, bytes)
                                          : fmt::format("reading ended with: {}", describe(error));
  if (!recovery->wrong.empty()) co_return;
  recovery->broken = lab->broken_promises(bytes);
  totals.broken_blocks += recovery->broken;
  if (recovery->shape.memory) lab->raid.model.settle(bytes);  // What was read once stays.
  recovery->was_read = recovery->shape.memory;
  if (recovery->go_on) {
    co_await lab->raid.load(10, 3);
    const Error again = co_await lab->raid.read_all(&bytes);
    if (again != Error::kNone) recovery->wrong = "it cannot be read again";
  }
  if (recovery->wrong.empty()) recovery->wrong = co_await close_and_compare(lab, &bytes);
}

Task<void> recover(Recovery* recovery, CacheLab* lab) {
  co_await come_up(recovery, lab);
  recovery->wrong += all_wrong(*lab);
  if (!recovery->wrong.empty() && std::getenv("SANDBAY_EVENTS") != nullptr) {
    for (const std::string& event : lab->raid.events) fmt::print("  {}\n", event);
  }
  lab->raid.errors_expected = true;
  co_await lab->stop();
}

// What hangs cannot be taken apart; it stays until the process ends.
void abandon(std::unique_ptr<CacheLab> lab, std::unique_ptr<sim::World> world) {
  for (const std::string& event : lab->raid.events) fmt::print("  {}\n", event);
  static_cast<void>(lab.release());
  static_cast<void>(world.release());
}

// In a world of its own; whether that ended.
bool run_recovery(Recovery* recovery, Random& random) {
  recovery->cut.model.crash();
  recovery->cut.on_drives.crash();
  auto world = sim::World::create({.seed = random.next()});
  auto lab = std::make_unique<CacheLab>(
      *world->executors()[0], recovery->shape, std::move(recovery->cut.state),
      std::move(recovery->cut.model), std::move(recovery->cut.on_drives));
  const bool ended = world->run([&] { return recover(recovery, lab.get()); });
  if (!ended) abandon(std::move(lab), std::move(world));
  return ended;
}

void count_states(const Recovery& recovery, const CacheShape& shape) {
  const std::string level(raid::describe(shape.set.level));
  ++totals.by_state[level + (recovery.away == 0 ? ", all drives there" : ", degraded")];
  if (recovery.cut.battery_died) ++totals.by_state["after the battery had gone, written through"];
  if (recovery.cut.mirror_failed) ++totals.by_state["after the mirror had failed"];
  if (recovery.cut.stalled) ++totals.by_state["while the memory's image did not get synced"];
  if (recovery.cut.was_read) ++totals.by_state["after all had been read, which must stay"];
  if (recovery.cut.end) ++totals.by_state["when something was acknowledged on a low battery"];
  if (shape.journal_too) ++totals.by_state["with the set's journal in the same NVRAM"];
  if (!shape.memory) ++totals.by_state["without NVRAM"];
}

std::string verify_cut(const CacheShape& shape, Cut cut, Random random, unsigned depth,
                       std::string where) {
  const std::uint64_t boundary = cut.boundary;
  Recovery recovery{.shape = shape, .cut = std::move(cut), .random = random.fork()};
  recovery.go_on = random.chance(0.3);
  constexpr End kEnds[] = {End::kKill, End::kPowerGood, End::kPowerGood, End::kPowerDead,
                           End::kHostCrash};
  recovery.end = kEnds[random.below(std::size(kEnds))];
  if (recovery.cut.end) recovery.end = *recovery.cut.end;
  // Without its journal a set promises less than the model says.
  if (shape.journal_too && recovery.end == End::kPowerDead) recovery.end = End::kPowerGood;
  if (shape.journal_too && recovery.end == End::kHostCrash && !shape.host_durable) {
    recovery.end = End::kKill;
  }
  // What a crash of the host has undone and what was damaged besides cannot be told apart.
  if (shape.host_durable && recovery.cut.state.damaged && recovery.end == End::kHostCrash) {
    recovery.end = End::kKill;
  }
  const bool crashed = recovery.end == End::kHostCrash || recovery.cut.state.host_crashed;
  const bool may_be_damaged = !crashed || !shape.host_durable;
  if (shape.memory && may_be_damaged && random.chance(0.15)) {
    const bool may_be_stale = recovery.cut.earlier != nullptr;
    const Damage end = may_be_stale ? Damage::kCount : Damage::kStalePage;
    recovery.damage = static_cast<Damage>(1 + random.below(std::to_underlying(end) - 1));
    const bool of_all = recovery.damage == Damage::kContents || recovery.damage == Damage::kStale;
    if (shape.journal_too && of_all) recovery.damage = Damage::kPage;
  }
  if (depth < 3 && random.chance(0.4)) recovery.cut_at = 1 + random.below(150);
  meet_the_end(&recovery);
  const bool ended = run_recovery(&recovery, random);
  where += fmt::format("boundary {}, {}, damage {}; ", boundary,
                       kEndNames[std::to_underlying(recovery.end)],
                       kDamageNames[std::to_underlying(recovery.damage)]);
  if (!ended) return where + "it hangs";
  ++totals.cuts;
  if (depth > 0) ++totals.later_cuts;
  count_states(recovery, shape);
  ++totals.by_end[fmt::format("{}, {}", raid::describe(shape.set.level),
                              kEndNames[std::to_underlying(recovery.end)])];
  if (recovery.damage != Damage::kNone) {
    ++totals.damaged[kDamageNames[std::to_underlying(recovery.damage)]];
  }
  if (!recovery.wrong.empty()) return where + recovery.wrong;
  if (!recovery.again) return {};
  return verify_cut(shape, std::move(*recovery.again), random.fork(), depth + 1, std::move(where));
}

std::size_t most_cuts() {
  const char* given = std::getenv("SANDBAY_CUTS");
  return given == nullptr ? 60 : static_cast<std::size_t>(std::atoi(given));
}

using Story = Task<void> (*)(Run* run, CacheLab* lab);

// Plays it in a world of its own; whether all is well.
bool in_world(Run* run, std::uint64_t seed, Story story) {
  auto world = sim::World::create({.seed = seed});
  auto lab = std::make_unique<CacheLab>(*world->executors()[0], run->shape, blank_state(run->shape),
                                        new_promises(run->shape), new_drives_model(run->shape));
  const TimePoint began = world->now();
  const bool ended = world->run([&] { return story(run, lab.get()); });
  if (!ended) {
    run->wrong = "the run hangs";
    abandon(std::move(lab), std::move(world));
  } else if (run->wrong.empty() && world->now() - began > std::chrono::minutes(5)) {
    run->wrong = "writers waited until what is dirty was old";
  }
  totals.boundaries += run->boundaries;
  return run->wrong.empty();
}

std::string one_seed(std::uint64_t seed) {
  static const std::vector<CacheShape> kShapes = shapes();
  const auto began = std::chrono::steady_clock::now();
  Run run{
      .shape = kShapes[seed % kShapes.size()], .most_cuts = most_cuts(), .random = Random(seed)};
  run.degraded = run.random.chance(0.5);
  run.battery_dies = run.shape.memory && run.random.chance(0.3);
  run.hangs = run.shape.memory && run.shape.host_durable && run.random.chance(0.4);
  run.weakens = run.random.chance(0.4);
  run.flickers = run.shape.memory && run.random.chance(0.4);
  run.damages = run.shape.memory && !run.shape.mirror && !run.shape.patient;
  if (run.shape.mirror && run.random.chance(0.5)) run.mirror_fails_at = 1 + run.random.below(1500);
  if (in_world(&run, seed, play)) {
    for (Cut& cut : run.cuts) {
      run.wrong = verify_cut(run.shape, std::move(cut), run.random.fork(), 0, {});
      if (!run.wrong.empty()) break;
    }
  }
  totals.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (run.wrong.empty()) return {};
  return fmt::format("{}{}: {}", run.shape.name(), run.degraded ? ", degraded" : "", run.wrong);
}

// ---- what battery, mirror and durability are for ------------------------------------------------

Task<void> play_once(Run* run, CacheLab* lab) {
  run->wrong = co_await lab->raid.format();
  if (run->wrong.empty()) run->wrong = co_await lab->boot();
  if (!run->wrong.empty()) co_return;
  co_await lab->raid.load(20, 4);
  for (unsigned i = 0; i < 30; ++i) {
    const Extent extent{.first = run->random.below(lab->raid.model.block_count() - 8),
                        .block_count = 1 + run->random.below(8)};
    const Error error = co_await lab->raid.write(extent, false);
    if (error != Error::kNone) run->wrong = "a write fails";
  }
  run->cuts.push_back(fork_of(*lab, 0, 0));
  lab->raid.errors_expected = true;
  co_await lab->stop();
  run->wrong += all_wrong(*lab);
}

// Of a block each, every other one from `lba` on.
Task<void> write_some(Run* run, CacheLab* lab, Lba lba, unsigned count) {
  for (unsigned i = 0; i < count && run->wrong.empty(); ++i) {
    const Error error = co_await lab->raid.write({.first = lba + 2 * i, .block_count = 1}, false);
    if (error != Error::kNone) run->wrong = fmt::format("a write fails: {}", describe(error));
  }
}

Task<void> write_small(Run* run, CacheLab* lab) {
  run->wrong = co_await lab->raid.format();
  if (run->wrong.empty()) run->wrong = co_await lab->boot();
  const TimePoint began = lab->raid.home.now();
  co_await write_some(run, lab, 0, 300);
  const Duration taken = lab->raid.home.now() - began;
  if (taken > std::chrono::seconds(20)) {
    run->wrong += fmt::format("it took {} ms", taken / std::chrono::milliseconds(1));
  }
  if (run->wrong.empty()) run->wrong = co_await close_and_compare(lab, nullptr);
  co_await lab->stop();
}

// Where nothing was written before, nothing fails, and but for the first nothing waits.
Task<void> write_while_syncs_hang(Run* run, CacheLab* lab) {
  run->wrong = co_await lab->raid.format();
  if (run->wrong.empty()) run->wrong = co_await lab->boot();
  co_await write_some(run, lab, 0, 20);
  const TimePoint began = lab->raid.home.now();
  lab->set_sync_time(std::chrono::seconds(30), run->shape.mirror);
  co_await write_some(run, lab, 100, 200);
  const Duration taken = lab->raid.home.now() - began;
  if (taken > std::chrono::seconds(20) || !lab->stalled()) {
    run->wrong += fmt::format("it took {} ms", taken / std::chrono::milliseconds(1));
  }
  lab->set_sync_time(kSyncTime, run->shape.mirror);
  co_await lab->raid.home.sleep_for(std::chrono::minutes(2));
  if (run->wrong.empty()) run->wrong = co_await close_and_compare(lab, nullptr);
  co_await lab->stop();
}

Cut cut_after_load(const CacheShape& shape, std::uint64_t seed) {
  Run run{.shape = shape, .random = Random(seed)};
  REQUIRE(in_world(&run, seed, play_once));
  REQUIRE(run.wrong.empty());
  REQUIRE(run.cuts.front().live_writes > 0);
  return std::move(run.cuts.front());
}

// How many blocks are older than was promised. A shape without a mirror ignores the cut's.
std::uint64_t cost_of(const CacheShape& shape, const Cut& cut, End end) {
  Random random(cut.live_writes);
  Recovery recovery{.shape = shape, .cut = cut, .random = random.fork(), .end = end};
  if (!shape.mirror) recovery.cut.state.mirror.reset();
  meet_the_end(&recovery);
  REQUIRE(run_recovery(&recovery, random));
  CHECK(recovery.wrong == "");
  return recovery.broken;
}

}  // namespace

TEST_CASE("battery, mirror and durability each decide what the same cut costs") {
  std::uint64_t cost[4] = {};
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CacheShape mirrored = shapes()[seed % 4];
    // A set whose journal shares the NVRAM may refuse to start after it was lost.
    mirrored.journal_too = false;
    mirrored.set.nvram = false;
    mirrored.patient = true;
    mirrored.mirror = true;
    CacheShape plain = mirrored;
    plain.mirror = false;
    const Cut cut = cut_after_load(mirrored, seed);
    CHECK(cost_of(plain, cut, End::kPowerGood) == 0);
    CHECK(cost_of(mirrored, cut, End::kPowerDead) == 0);
    CHECK(cost_of(mirrored, cut, End::kHostCrash) == 0);
    cost[0] += cost_of(plain, cut, End::kPowerDead);
    cost[1] += cost_of(plain, cut, End::kHostCrash);
    CacheShape durable = plain;
    durable.host_durable = true;
    const Cut durable_cut = cut_after_load(durable, seed);
    CHECK(cost_of(durable, durable_cut, End::kHostCrash) == 0);
    cost[2] += cost_of(durable, durable_cut, End::kPowerDead);
  }
  fmt::print("  without battery {} blocks, without durability {}, durable without battery {}\n",
             cost[0], cost[1], cost[2]);
  for (unsigned i = 0; i < 3; ++i) CHECK(cost[i] > 0);
}

TEST_CASE("small writes fill the log long before the data area, and wait for nobody's old age") {
  CacheShape shape{.set = shapes()[2].set, .patient = true, .log_bytes = std::uint64_t{24} << 10};
  Run run{.shape = shape, .random = Random(1)};
  CHECK(in_world(&run, 1, write_small));
  CHECK(run.wrong == "");
}

TEST_CASE("while the disk of the memory's image hangs, what goes through to the drives succeeds") {
  CacheShape shape{.set = shapes()[2].set, .patient = true};
  shape.host_durable = true;
  shape.mirror = GENERATE(false, true);
  Run run{.shape = shape, .random = Random(1)};
  CHECK(in_world(&run, 1, write_while_syncs_hang));
  CHECK(run.wrong == "");
}

TEST_CASE("whatever ends a cached set at whatever moment, nothing is lost that was promised") {
  const std::uint64_t failures = simtest::run_seeds("sim-cache-power", 100, one_seed);
  for (const auto& [end, cuts] : totals.by_end) fmt::print("  {}: {} cuts\n", end, cuts);
  for (const auto& [state, cuts] : totals.by_state) fmt::print("  {}: {} cuts\n", state, cuts);
  for (const auto& [damage, cuts] : totals.damaged) {
    fmt::print("  memory damaged, {}: {} cuts\n", damage, cuts);
  }
  fmt::print(
      "  {} writes replayed, {} of them from the mirror; {} starts reported losses, of {} "
      "blocks\n",
      totals.replayed, totals.from_mirror, totals.reported, totals.broken_blocks);
  fmt::print("sim-cache-power: {} cuts, {} of them later ones, at {} boundaries, {:.0f} a second\n",
             totals.cuts, totals.later_cuts, totals.boundaries,
             static_cast<double>(totals.cuts) / std::max(totals.seconds, 0.001));
  CHECK(failures == 0);
}

}  // namespace sandbay::cachetest
