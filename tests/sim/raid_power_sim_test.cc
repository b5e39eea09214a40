// Goal: a power cut at any moment loses nothing that was promised and mixes nothing, also with
// drives missing before, during and after, and with another cut while the set comes up.
// Method: a run is one set under load, healthy or with a drive lost, returning, being rebuilt or
// replaced. At a device write the drives are forked; each fork loses any subset of what was not
// flushed, some drives stay away, and a new world brings the set up from what is left. There
// everything is read, compared with what a host may expect, and every member with what was read.
// That world is cut, too. Sometimes more drives are missing than the set survives: then it refuses,
// or fails what it does not have, and never gives older bytes. SANDBAY_CUTS=n says how many cuts a
// seed makes at most.
#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <map>
#include <utility>

#include <fmt/core.h>

#include "raid_lab.h"
#include "runtime/simulation.h"
#include "seeds.h"

namespace sandbay::raidtest {
namespace {

using raid::Level;

// What happens to drives while the load runs.
enum class Story : unsigned {
  kHealthy,
  kDegradedBefore,
  kLostDuring,
  kRebuilding,
  kCopying,
  kShortAbsence,
  kLateReturn,
  kCount
};
constexpr const char* kStoryNames[] = {"healthy", "degraded before", "lost during", "rebuilding",
                                       "copying", "short absence",   "late return"};

struct Cut {
  LabState state;
  BlockModel model;
  std::uint64_t doubtful = 0;  // Roles that may not be counted on.
  std::uint64_t boundary = 0;
};

struct Totals {
  std::uint64_t cuts = 0;
  std::uint64_t beyond = 0;   // Cuts that left too few drives,
  std::uint64_t refused = 0;  // and sets that did not start then.
  std::uint64_t second_cuts = 0;
  std::uint64_t boundaries = 0;
  std::map<std::string, std::uint64_t> by_story;
  double seconds = 0;
};
Totals totals;

std::vector<LabShape> shapes() {
  std::vector<LabShape> all = {
      {.level = Level::kRaid5, .drives = 3, .strip_bytes = 4096},
      {.level = Level::kRaid6, .drives = 4, .strip_bytes = 4096},
      {.level = Level::kRaid5, .drives = 5, .strip_bytes = 8192, .strips = 10},
      {.level = Level::kRaid6, .drives = 6, .strip_bytes = 4096},
      {.level = Level::kRaid50, .drives = 6, .groups = 2, .strip_bytes = 4096, .strips = 8},
      {.level = Level::kRaid60, .drives = 8, .groups = 2, .strip_bytes = 4096, .strips = 8},
      {.level = Level::kRaid5, .drives = 4, .strip_bytes = 16384, .strips = 8},
      {.level = Level::kRaid1, .drives = 2, .strip_bytes = 4096},
      {.level = Level::kRaid1, .drives = 3, .strip_bytes = 8192},
      {.level = Level::kRaid10, .drives = 4, .strip_bytes = 4096},
  };
  for (std::size_t i = 0; i < 10; ++i) {
    LabShape shape = all[i];
    shape.integrity = true;
    all.push_back(shape);
  }
  const std::size_t plain = all.size();
  for (std::size_t i = 0; i < plain; ++i) {
    LabShape shape = all[i];
    if (!shape.journaled()) continue;
    shape.nvram = true;
    shape.host_durable_nvram = i % 2 == 1;
    all.push_back(shape);
  }
  all.push_back({.level = Level::kJbod, .drives = 1});
  all.push_back({.level = Level::kRaid0, .drives = 2});
  all.push_back({.level = Level::kRaid0, .drives = 3, .strip_bytes = 16384});
  return all;
}

std::uint64_t bit(unsigned role) { return std::uint64_t{1} << role; }

// ---- the run ------------------------------------------------------------------------------------

struct Run {
  LabShape shape;
  Story story = Story::kHealthy;
  std::size_t most_cuts = 0;
  Random random;
  unsigned role = 0;               // That the story is about.
  std::optional<unsigned> second;  // Another one that is lost before it.
  std::vector<Cut> cuts;
  std::uint64_t boundaries = 0;
  std::uint64_t missed = 0;  // Roles whose drive does not answer, whether the set knows or not.
  std::string wrong;
};

void note_boundary(Run* run, RaidLab* lab) {
  ++run->boundaries;
  // Cuts spread over a run whose length is not known: of all so far, any with the same chance.
  std::size_t place = run->cuts.size();
  if (place >= run->most_cuts) {
    place = run->random.below(run->boundaries);
    if (place >= run->most_cuts) return;
  }
  Cut cut{.state = lab->fork(),
          .model = lab->model,
          .doubtful = lab->doubtful_roles() | run->missed,
          .boundary = run->boundaries};
  if (place == run->cuts.size()) {
    run->cuts.push_back(std::move(cut));
  } else {
    run->cuts[place] = std::move(cut);
  }
}

Task<void> tell_story(Run* run, RaidLab* lab) {
  const unsigned role = run->role;
  const unsigned drive = role;  // As the set was made.
  TestDrive& device = *lab->devices[drive];
  switch (run->story) {
    case Story::kHealthy:
    case Story::kCount:
      break;
    case Story::kDegradedBefore:
    case Story::kLostDuring:
    case Story::kRebuilding:
      run->missed |= bit(role);
      device.fail_with(Error::kHardware);
      break;
    case Story::kShortAbsence:
    case Story::kLateReturn:
      run->missed |= bit(role);
      device.fail_with(Error::kNotReady);
      break;
    case Story::kCopying:
      co_await lab->begin_copy(role, lab->add_drive("spare"));
      co_return;
  }
  if (run->story == Story::kRebuilding || run->story == Story::kLateReturn) {
    while (lab->set_drives().drive(role) != nullptr) co_await lab->load(4, 2);
    lab->role_of[drive] = -1;
    const unsigned spare = lab->add_drive("spare");
    co_await lab->take_spare(role, spare);
    run->missed &= ~bit(role);  // From here on the set says what is whole.
    // The drive is back and has no role any more, which its superblock does not know.
    if (run->story == Story::kLateReturn) device.fail_with(Error::kNone);
  }
  if (run->story == Story::kShortAbsence) {
    while (lab->set_drives().drive(role) != nullptr) co_await lab->load(4, 2);
    co_await lab->load(6, 3);
    device.fail_with(Error::kNone);
    co_await lab->return_drive(role, drive);
    if (lab->set_drives().drive(role) != nullptr) run->missed &= ~bit(role);
  }
}

Task<void> play_beside(Run* run, RaidLab* lab, unsigned* running, Condition* ended) {
  co_await tell_story(run, lab);
  if (--*running == 0) ended->notify_all();
}

Task<void> load_beside(RaidLab* lab, unsigned operations, unsigned* running, Condition* ended) {
  co_await lab->load(operations, 4);
  if (--*running == 0) ended->notify_all();
}

Task<void> play(Run* run, RaidLab* lab) {
  run->wrong = co_await lab->format();
  if (!run->wrong.empty()) co_return;
  run->wrong = co_await lab->boot();
  if (!run->wrong.empty()) co_return;
  for (const auto& device : lab->devices) device->set_latency(std::chrono::microseconds(200));
  co_await lab->load(15, 3);
  if (run->second) {
    run->missed |= bit(*run->second);
    lab->devices[*run->second]->fail_with(Error::kHardware);
  }
  if (run->story == Story::kDegradedBefore) co_await tell_story(run, lab);
  if (run->missed != 0) co_await lab->load(5, 2);
  lab->observe([run, lab] { note_boundary(run, lab); });
  co_await lab->load(static_cast<unsigned>(run->random.below(20)), 3);
  unsigned running = 1;
  Condition ended;
  if (run->story != Story::kDegradedBefore) {
    ++running;
    spawn(play_beside(run, lab, &running, &ended));
  }
  spawn(load_beside(lab, 40, &running, &ended));
  while (running > 0) co_await ended.wait();
  if (run->random.chance(0.5)) co_await lab->wait_idle();
  co_await lab->load(10, 3);
  co_await lab->stop();
  for (const std::string& wrong : lab->wrong) run->wrong += wrong + "; ";
}

// ---- after the cut ------------------------------------------------------------------------------

struct Recovery {
  LabShape shape;
  Cut cut;
  Random random;
  bool go_on = false;        // Write again, too.
  bool fail_drives = false;  // Read everything again without each drive.
  std::uint64_t cut_at = 0;  // The boundary of a second cut; 0: none.
  std::uint64_t boundaries = 0;
  std::uint64_t away = 0;  // Roles that are not there.
  bool beyond = false;     // They are more than the set survives.
  std::optional<Cut> again;
  std::string wrong;
};

// Which drives are there, and what they still hold.
void meet_the_end(Recovery* recovery) {
  Random& random = recovery->random;
  LabState& state = recovery->cut.state;
  const bool merciless = random.chance(0.1);
  const bool killed = random.chance(0.1);  // Only the process: nothing that was written is lost.
  const bool host_crash = recovery->shape.host_durable_nvram && !killed && random.chance(0.5);
  std::uint64_t away = recovery->cut.doubtful;
  for (LabDrive& drive : state.drives) {
    drive.present = true;
    if (!killed) drive.state = after_power_cut(drive.state, random);
    if (!random.chance(0.25)) continue;
    if (drive.role < 0) {
      drive.present = false;
      continue;
    }
    const auto role = static_cast<unsigned>(drive.role);
    if (!merciless && !recovery->shape.survives(away | bit(role))) continue;
    away |= bit(role);
    drive.present = false;
  }
  recovery->away = away;
  recovery->beyond = !recovery->shape.survives(away);
  if (recovery->beyond) recovery->cut_at = 0;
  if (!state.board || killed) return;
  if (host_crash) {
    state.board->crash_host(random);
    ++state.host_boots;
  } else {
    state.board->cut_power(nvram::BatteryState::kGood);
  }
}

Task<void> check_all(Recovery* recovery, RaidLab* lab, std::vector<std::byte>* bytes,
                     const char* when) {
  const Error error = co_await lab->read_all(bytes);
  if (error != Error::kNone) {
    recovery->wrong = fmt::format("{}: reading ended with: {}", when, describe(error));
    co_return;
  }
  recovery->wrong = lab->model.check_after_crash(0, *bytes);
  if (!recovery->wrong.empty()) recovery->wrong = fmt::format("{}: {}", when, recovery->wrong);
}

// Each drive in turn is lost, until no more may be: everything reads as before.
Task<void> lose_drives(Recovery* recovery, RaidLab* lab, std::vector<std::byte> before) {
  const auto first = static_cast<unsigned>(recovery->random.below(recovery->shape.drives));
  std::uint64_t gone = 0;
  for (unsigned i = 0; i < recovery->shape.drives; ++i) {
    const unsigned role = (first + i) % recovery->shape.drives;
    const raid::Drive* drive = lab->set_drives().drive(role);
    gone |= lab->doubtful_roles();
    if (drive == nullptr || !recovery->shape.survives(gone | bit(role))) continue;
    gone |= bit(role);  // Mirrors may not notice.
    for (const auto& device : lab->devices) {
      if (device.get() == &drive->device()) device->fail_with(Error::kHardware);
    }
    std::vector<std::byte> bytes;
    const Error error = co_await lab->read_all(&bytes);
    if (error != Error::kNone || bytes != before) {
      recovery->wrong =
          fmt::format("without role {} everything reads otherwise: {}", role, describe(error));
      co_return;
    }
  }
}

// Strip by strip: what was promised, or an error that says that it is not there.
Task<void> read_what_is_left(Recovery* recovery, RaidLab* lab) {
  const std::uint64_t step = recovery->shape.strip_blocks();
  for (Lba lba = 0; lba < lab->model.block_count(); lba += step) {
    Request request;
    request.extent = {.first = lba, .block_count = step};
    request.data = co_await lab->home.buffers().allocate(step * kModelBlockBytes);
    const Completion done = co_await lab->set->submit(std::move(request));
    if (done.error == Error::kMediumError || done.error == Error::kNotReady) continue;
    std::vector<std::byte> bytes(done.data.byte_count());
    done.data.copy_to(bytes);
    recovery->wrong = done.error == Error::kNone
                          ? lab->model.check_after_crash(lba, bytes)
                          : fmt::format("a read ends with: {}", describe(done.error));
    if (!recovery->wrong.empty()) {
      recovery->wrong = "with too few drives: " + recovery->wrong;
      co_return;
    }
  }
}

Task<void> come_up(Recovery* recovery, RaidLab* lab) {
  if (recovery->beyond) {
    ++totals.beyond;
    lab->errors_expected = true;
    const std::string refusal = co_await lab->boot();
    totals.refused += !refusal.empty();
    if (refusal.empty()) co_await read_what_is_left(recovery, lab);
    co_return;
  }
  if (recovery->cut_at != 0) {
    lab->observe([recovery, lab] {
      if (++recovery->boundaries != recovery->cut_at) return;
      recovery->again.emplace(Cut{.state = lab->fork(),
                                  .model = lab->model,
                                  .doubtful = lab->doubtful_roles() | recovery->away,
                                  .boundary = recovery->boundaries});
    });
  }
  recovery->wrong = co_await lab->boot();
  if (!recovery->wrong.empty()) co_return;
  std::vector<std::byte> bytes;
  co_await check_all(recovery, lab, &bytes, "after the start");
  if (!recovery->wrong.empty()) co_return;
  if (recovery->shape.journaled()) {
    recovery->wrong = lab->check_members(bytes);
    if (!recovery->wrong.empty()) co_return;
  }
  lab->model.settle(bytes);  // Nothing that was read once may change any more.
  if (recovery->go_on) co_await lab->load(8, 3);
  co_await lab->wait_idle();
  const Error flushed = co_await lab->flush();
  if (flushed != Error::kNone) recovery->wrong = "it cannot be flushed";
  if (!recovery->wrong.empty()) co_return;
  co_await check_all(recovery, lab, &bytes, "when all is done");
  if (!recovery->wrong.empty()) co_return;
  lab->model.settle(bytes);
  recovery->wrong = lab->check_members(bytes);
  if (recovery->wrong.empty() && recovery->fail_drives) {
    co_await lose_drives(recovery, lab, bytes);
  }
}

// Nothing here was corrupted, and nothing is lost.
std::string false_alarm(const RaidLab& lab) {
  const raid::SetCounters& counters = lab.set->set()->counters();
  if (counters.mismatches > 0) return "parity did not match where it should";
  if (counters.lost_blocks > 0) return "blocks are said to be lost";
  if (counters.corruptions > 0) return "a cell is said to be corrupt";
  if (counters.false_entries > 0) return "an entry is said to be wrong";
  return {};
}

Task<void> recover(Recovery* recovery, RaidLab* lab) {
  co_await come_up(recovery, lab);
  for (const std::string& wrong : lab->wrong) recovery->wrong += wrong + "; ";
  if (recovery->wrong.empty() && !recovery->beyond) recovery->wrong = false_alarm(*lab);
  if (!recovery->wrong.empty() && std::getenv("SANDBAY_EVENTS") != nullptr) {
    for (const std::string& event : lab->events) fmt::print("  {}\n", event);
  }
  lab->errors_expected = true;
  co_await lab->stop();
}

// What hangs cannot be taken apart; it stays until the process ends.
void abandon(std::unique_ptr<RaidLab> lab, std::unique_ptr<sim::World> world) {
  for (const std::string& event : lab->events) fmt::print("  {}\n", event);
  static_cast<void>(lab.release());
  static_cast<void>(world.release());
}

std::string verify_cut(const LabShape& shape, Cut cut, Random random, unsigned depth) {
  const std::uint64_t boundary = cut.boundary;
  const std::uint64_t doubtful = cut.doubtful;
  Recovery recovery{.shape = shape, .cut = std::move(cut), .random = random.fork()};
  recovery.go_on = random.chance(0.3);
  recovery.fail_drives = random.chance(0.1);
  if (depth < 3 && random.chance(0.4)) recovery.cut_at = 1 + random.below(60);
  meet_the_end(&recovery);
  recovery.cut.model.crash();
  std::string present;
  for (const LabDrive& drive : recovery.cut.state.drives) present += drive.present ? '1' : '0';
  {
    auto world = sim::World::create({.seed = random.next()});
    auto lab =
        std::make_unique<RaidLab>(*world->executors()[0], shape, std::move(recovery.cut.state),
                                  std::move(recovery.cut.model));
    const bool ended = world->run([&] { return recover(&recovery, lab.get()); });
    if (!ended) {
      abandon(std::move(lab), std::move(world));
      return fmt::format("boundary {} depth {}: it hangs", boundary, depth);
    }
  }
  ++totals.cuts;
  if (depth > 0) ++totals.second_cuts;
  if (!recovery.wrong.empty()) {
    return fmt::format("boundary {} depth {} drives {} doubtful {:x}: {}", boundary, depth, present,
                       doubtful, recovery.wrong);
  }
  if (!recovery.again) return {};
  return verify_cut(shape, std::move(*recovery.again), random.fork(), depth + 1);
}

std::size_t most_cuts() {
  const char* given = std::getenv("SANDBAY_CUTS");
  return given == nullptr ? 60 : static_cast<std::size_t>(std::atoi(given));
}

void choose_roles(Run& run) {
  run.role = static_cast<unsigned>(run.random.below(run.shape.drives));
  const auto second = static_cast<unsigned>(run.random.below(run.shape.drives));
  const bool possible = second != run.role && run.shape.survives(bit(run.role) | bit(second));
  if (possible && run.story != Story::kHealthy && run.random.chance(0.4)) run.second = second;
}

std::string one_seed(std::uint64_t seed) {
  static const std::vector<LabShape> kShapes = shapes();
  const auto began = std::chrono::steady_clock::now();
  Run run{.shape = kShapes[seed % kShapes.size()],
          .story =
              static_cast<Story>(seed / kShapes.size() % static_cast<std::uint64_t>(Story::kCount)),
          .most_cuts = most_cuts(),
          .random = Random(seed)};
  run.shape.unverified = run.random.chance(0.25);
  if (run.shape.redundancy() == 0 && run.story != Story::kHealthy) run.story = Story::kCopying;
  choose_roles(run);
  {
    auto world = sim::World::create({.seed = seed});
    auto lab = std::make_unique<RaidLab>(*world->executors()[0], run.shape, blank_state(run.shape),
                                         new_model(run.shape));
    const bool ended = world->run([&] { return play(&run, lab.get()); });
    if (!ended) {
      run.wrong = "the run hangs";
      abandon(std::move(lab), std::move(world));
    }
  }
  totals.boundaries += run.boundaries;
  const std::string story = kStoryNames[static_cast<unsigned>(run.story)];
  for (Cut& cut : run.cuts) {
    if (!run.wrong.empty()) break;
    const std::uint64_t before = totals.cuts;
    run.wrong = verify_cut(run.shape, std::move(cut), run.random.fork(), 0);
    totals.by_story[fmt::format("{}, {}", raid::describe(run.shape.level), story)] +=
        totals.cuts - before;
  }
  totals.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (run.wrong.empty()) return {};
  return fmt::format("{}, {}: {}", run.shape.name(), story, run.wrong);
}

}  // namespace

TEST_CASE("a power cut at any device write loses nothing that was promised") {
  // About two minutes either way.
  const std::uint64_t usual = kSanitized ? 111 : 666;
  const std::uint64_t failures = simtest::run_seeds("sim-raid-power", usual, one_seed);
  for (const auto& [story, cuts] : totals.by_story) fmt::print("  {}: {} cuts\n", story, cuts);
  fmt::print("sim-raid-power: {} cuts, {} of them second ones, at {} boundaries, {:.0f} a second\n",
             totals.cuts, totals.second_cuts, totals.boundaries,
             static_cast<double>(totals.cuts) / std::max(totals.seconds, 0.001));
  fmt::print("  {} cuts left too few drives; {} sets refused to start\n", totals.beyond,
             totals.refused);
  CHECK(failures == 0);
}

}  // namespace sandbay::raidtest
