// Single faults of drives under RAID sets, one test each: what the set does about it, that a host
// never notices, and that it costs no more drive operations than it must.
#include <catch2/catch.hpp>

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "raid_lab.h"
#include "runtime/simulation.h"

namespace sandbay::raidtest {
namespace {

using raid::Level;

// A world with a set that has been filled; then `body`. Everything must be right at the end.
struct Fault {
  LabShape shape;
  std::uint64_t seed = 1;
  raid::DrivePolicy policy;
  Duration latency{};
  std::string wrong;
};

Task<void> expect_right(Fault* fault, RaidLab* lab) {
  std::vector<std::byte> bytes;
  const std::uint64_t begun = lab->model.begin_read();
  const Error error = co_await lab->read_all(&bytes);
  std::string wrong = lab->model.end_read(0, bytes, begun);
  if (error != Error::kNone) wrong += fmt::format("reading ends with: {}", describe(error));
  if (wrong.empty() && lab->shape.redundancy() > 0) wrong = lab->check_members(bytes);
  fault->wrong += wrong;
}

template <class Body>
Task<void> with_filled_set(Fault* fault, RaidLab* lab, Body body) {
  lab->drive_policy = fault->policy;
  fault->wrong = co_await lab->format();
  if (fault->wrong.empty()) fault->wrong = co_await lab->boot();
  if (!fault->wrong.empty()) co_return;
  const Error written =
      co_await lab->write({.first = 0, .block_count = lab->model.block_count()}, false);
  if (written != Error::kNone) fault->wrong = "it cannot be filled";
  co_await lab->flush();
  for (const auto& device : lab->devices) {
    device->set_latency(fault->latency);
    device->counts = {};
  }
  co_await body(fault, lab);
  co_await lab->wait_idle();
  co_await expect_right(fault, lab);
  for (const std::string& wrong : lab->wrong) fault->wrong += wrong + "; ";
  for (const auto& device : lab->devices) device->release();
  co_await lab->stop();
}

template <class Body>
void with_fault(Fault fault, Body body) {
  CAPTURE(fault.shape.name(), fault.seed);
  auto world = sim::World::create({.seed = fault.seed});
  auto lab = std::make_unique<RaidLab>(*world->executors()[0], fault.shape,
                                       blank_state(fault.shape), new_model(fault.shape));
  const bool ended = world->run([&] { return with_filled_set(&fault, lab.get(), body); });
  if (!ended) {
    static_cast<void>(lab.release());
    static_cast<void>(world.release());
  }
  REQUIRE(ended);
  REQUIRE(fault.wrong == "");
}

const std::vector<LabShape>& redundant_shapes() {
  static const std::vector<LabShape> kShapes = {
      {.level = Level::kRaid1, .drives = 2},
      {.level = Level::kRaid1, .drives = 3},
      {.level = Level::kRaid5, .drives = 4},
      {.level = Level::kRaid6, .drives = 6},
      {.level = Level::kRaid10, .drives = 4},
      {.level = Level::kRaid50, .drives = 6, .groups = 2},
      {.level = Level::kRaid60, .drives = 8, .groups = 2}};
  return kShapes;
}

TestDrive::Counts all_counts(const RaidLab& lab) {
  TestDrive::Counts sum;
  for (const auto& device : lab.devices) {
    sum.reads += device->counts.reads;
    sum.writes += device->counts.writes;
  }
  return sum;
}

// ---- what an operation costs --------------------------------------------------------------------

struct Cost {
  LabShape shape;
  std::uint64_t small_reads;  // Of the drives, for a write of one block.
  std::uint64_t small_writes;
};

Task<void> count_operations(Cost cost, Fault* fault, RaidLab* lab) {
  const auto expect = [&](const char* what, std::uint64_t reads, std::uint64_t writes) {
    const TestDrive::Counts counts = all_counts(*lab);
    if (counts.reads != reads || counts.writes != writes) {
      fault->wrong += fmt::format("{}: {} reads and {} writes instead of {} and {}; ", what,
                                  counts.reads, counts.writes, reads, writes);
    }
    for (const auto& device : lab->devices) device->counts = {};
  };
  const LabShape& shape = lab->shape;
  const std::uint64_t stripe = shape.strip_blocks() * shape.data_chunks();
  co_await lab->write({.first = stripe + 3, .block_count = 1}, false);
  expect("a small write", cost.small_reads, cost.small_writes);
  co_await lab->write({.first = 2 * stripe, .block_count = stripe}, false);
  expect("a full stripe", 0, shape.width());
  co_await lab->read({.first = 5, .block_count = 2});
  expect("a small read", 1, 0);
  co_await lab->read({.first = 0, .block_count = stripe});
  expect("a read of a stripe", shape.data_chunks(), 0);
}

// ---- faults -------------------------------------------------------------------------------------

Task<void> meet_latent_errors(Fault* fault, RaidLab* lab) {
  const LabShape& shape = lab->shape;
  const Lba data = shape.data_offset_bytes() / kModelBlockBytes;
  // On mirrors either may be read; so both are made bad, in different places.
  for (unsigned member = 0; member < (shape.mirrored() ? 2U : 1U); ++member) {
    lab->devices[shape.role(0, member)]->make_unreadable(data + 2 + member);
  }
  for (unsigned i = 0; i < 4; ++i) {
    const Error error = co_await lab->read({.first = 0, .block_count = 8});
    if (error != Error::kNone) fault->wrong = "a read failed";
    co_await lab->home.sleep_for(std::chrono::milliseconds(100));
  }
  const raid::SetCounters& counters = lab->set->set()->counters();
  const bool read_all_bad = !shape.mirrored() || counters.corrections == 2;
  for (unsigned member = 0; member < (shape.mirrored() ? 2U : 1U); ++member) {
    const auto& bad = lab->devices[shape.role(0, member)]->state().unreadable;
    if (read_all_bad && !bad.empty()) fault->wrong = "an unreadable block was not rewritten";
  }
  if (counters.corrections == 0) fault->wrong = "no correction is counted";
  if (lab->set_drives().absent_roles() != 0) fault->wrong = "a drive was lost to a latent error";
  if (counters.lost_blocks != 0) fault->wrong = "blocks were lost";
}

Task<void> meet_write_errors(Fault* fault, RaidLab* lab) {
  lab->devices[1]->fail_writes_with(Error::kHardware);
  co_await lab->load(40, 4);
  if (lab->set_drives().drive(1) != nullptr) fault->wrong = "the drive is still in its role";
}

Task<void> meet_a_hang(Fault* fault, RaidLab* lab) {
  lab->devices[1]->hang();
  const TimePoint began = lab->home.now();
  co_await lab->load(40, 4);
  co_await lab->write({.first = 0, .block_count = lab->model.block_count()}, false);
  if (lab->set_drives().drive(1) != nullptr) fault->wrong = "the drive is still in its role";
  // A drive's timeout is met once by all that was in it.
  if (lab->home.now() - began > std::chrono::seconds(10)) fault->wrong = "hosts waited too long";
}

Task<void> meet_a_slow_drive(Fault* fault, RaidLab* lab) {
  for (unsigned role = 0; role < lab->shape.drives; ++role) {
    TestDrive& slow = *lab->devices[role];
    slow.slow_reads(std::chrono::seconds(3));
    const TimePoint began = lab->home.now();
    const Error error = co_await lab->read({.first = 0, .block_count = lab->model.block_count()});
    if (error != Error::kNone) fault->wrong = "a read failed";
    if (lab->home.now() - began > std::chrono::seconds(2)) fault->wrong = "a read waited for it";
    slow.slow_reads({});
    co_await lab->home.sleep_for(std::chrono::seconds(5));
  }
  if (lab->set_drives().absent_roles() != 0) fault->wrong = "a slow drive was dropped";
  if (lab->set->set()->counters().reads_around == 0) fault->wrong = "nothing was read around";
}

Task<void> be_away_for_a_while(Fault* fault, RaidLab* lab) {
  const LabShape& shape = lab->shape;
  const unsigned role = shape.role(0, 0);
  TestDrive& device = *lab->devices[role];
  device.fail_with(Error::kNotReady);
  // All of it in the first region.
  while (lab->set_drives().drive(role) != nullptr) {
    co_await lab->write({.first = 0, .block_count = shape.data_chunks() * shape.strip_blocks()},
                        false);
  }
  co_await lab->flush();
  device.fail_with(Error::kNone);
  device.counts = {};
  const std::uint64_t stale = lab->set_drives().stale_count(role, false);
  co_await lab->return_drive(role, role);
  co_await lab->wait_idle();
  if (!lab->set_drives().optimal()) fault->wrong = "it is not whole again";
  const std::uint64_t strips = lab->region_stripes / shape.group_count();
  if (stale != 1 || device.counts.writes != strips) {
    fault->wrong =
        fmt::format("{} regions were stale and {} strips were written; 1 and {} expected", stale,
                    device.counts.writes, strips);
  }
}

Task<void> verify_damage(Fault* fault, RaidLab* lab) {
  const LabShape& shape = lab->shape;
  // A member of three stripes: a parity; of three mirrors any one; of two the second, since nobody
  // can tell, and the first wins.
  for (const std::uint64_t stripe : {0U, 3U, 7U}) {
    std::vector<std::byte> damage(100, std::byte{0xA5});
    const bool any = shape.mirrored() && shape.width() > 2;
    const unsigned member = any ? static_cast<unsigned>(stripe % shape.width()) : shape.width() - 1;
    TestDrive& device = *lab->devices[shape.role(stripe, member)];
    const std::uint64_t at =
        shape.data_offset_bytes() + stripe / shape.group_count() * shape.strip_bytes + 700;
    device.state().visible.write(at, damage);
    device.state().durable.write(at, damage);
  }
  lab->set->maintenance()->request_verify();
  // Hosts would read the first mirror before it is mended.
  if (shape.mirrored() && shape.width() > 2) co_await lab->wait_idle();
  co_await lab->load(10, 2);
  co_await lab->wait_idle();
  if (lab->set->maintenance()->verifies_ended() != 1) fault->wrong = "it was not verified";
  if (lab->set->set()->counters().mismatches > 3) fault->wrong = "too many mismatches are counted";
}

Task<void> verify_quietly(Fault* fault, RaidLab* lab) {
  lab->set->maintenance()->request_verify();
  co_await lab->wait_idle();
  const raid::SetCounters& counters = lab->set->set()->counters();
  if (counters.mismatches != 0 || counters.corrections != 0) fault->wrong = "a false alarm";
  if (all_counts(*lab).writes != 0) fault->wrong = "verifying what is right wrote something";
}

// ---- copy to a spare ----------------------------------------------------------------------------

enum class Victim : unsigned { kNobody, kOld, kSpare, kOther };

struct Copying {
  Victim victim = Victim::kNobody;
  std::uint64_t at = 0;  // Which device write it does not survive.
  std::uint64_t seen = 0;
};

Task<void> copy_under_load(Copying* copying, Fault* fault, RaidLab* lab) {
  constexpr unsigned kRole = 1;
  const unsigned spare = lab->add_drive("spare");
  lab->devices[spare]->set_latency(fault->latency);
  const unsigned victim = copying->victim == Victim::kOld     ? kRole
                          : copying->victim == Victim::kSpare ? spare
                                                              : kRole - 1;
  lab->observe([copying, lab, victim] {
    if (++copying->seen != copying->at || copying->victim == Victim::kNobody) return;
    lab->devices[victim]->fail_with(Error::kHardware);
  });
  co_await lab->begin_copy(kRole, spare);
  co_await lab->load(30, 3);
  co_await lab->wait_idle();
  co_await lab->load(10, 3);
  const raid::Drive* drive = lab->set_drives().drive(kRole);
  const bool taken = drive != nullptr && &drive->device() == lab->devices[spare].get();
  if (copying->victim == Victim::kNobody && !taken) fault->wrong = "the spare has not the role";
}

}  // namespace

TEST_CASE("an operation of a host takes as many operations of drives as theory says") {
  const std::vector<Cost> costs = {{{.level = Level::kRaid0, .drives = 4}, 0, 1},
                                   {{.level = Level::kRaid1, .drives = 2}, 0, 2},
                                   {{.level = Level::kRaid1, .drives = 3}, 0, 3},
                                   {{.level = Level::kRaid10, .drives = 6}, 0, 2},
                                   {{.level = Level::kRaid5, .drives = 3},
                                    1,
                                    2},  // The other data is less than both old blocks.
                                   {{.level = Level::kRaid5, .drives = 6}, 2, 2},
                                   {{.level = Level::kRaid6, .drives = 8}, 3, 3},
                                   {{.level = Level::kRaid50, .drives = 10, .groups = 2}, 2, 2},
                                   {{.level = Level::kRaid60, .drives = 14, .groups = 2}, 3, 3}};
  for (const Cost& cost : costs) {
    with_fault({.shape = cost.shape},
               [cost](Fault* fault, RaidLab* lab) { return count_operations(cost, fault, lab); });
  }
}

TEST_CASE("latent errors are read around, rewritten and counted") {
  for (const LabShape& shape : redundant_shapes()) {
    with_fault({.shape = shape}, meet_latent_errors);
  }
}

TEST_CASE("a drive that fails writes goes, and nobody notices") {
  for (const LabShape& shape : redundant_shapes()) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      with_fault({.shape = shape, .seed = seed, .latency = std::chrono::microseconds(100)},
                 meet_write_errors);
    }
  }
}

TEST_CASE("a drive that hangs goes after its timeout") {
  for (const LabShape& shape : redundant_shapes()) {
    with_fault({.shape = shape,
                .policy = {.timeout = std::chrono::seconds(1),
                           .slow_read = std::chrono::milliseconds(100)},
                .latency = std::chrono::microseconds(100)},
               meet_a_hang);
  }
}

TEST_CASE("a drive that limps is read around and stays") {
  for (const LabShape& shape : redundant_shapes()) {
    with_fault({.shape = shape, .policy = {.slow_read = std::chrono::milliseconds(50)}},
               meet_a_slow_drive);
  }
}

TEST_CASE("a drive that was away for a while gets what was written meanwhile, and no more") {
  for (const LabShape& shape : redundant_shapes()) {
    with_fault({.shape = shape}, be_away_for_a_while);
  }
}

TEST_CASE("verify repairs damage that nobody has read, and finds none where there is none") {
  for (const LabShape& shape : redundant_shapes()) {
    with_fault({.shape = shape}, verify_damage);
    with_fault({.shape = shape}, verify_quietly);
  }
}

TEST_CASE("a drive is copied to a spare under load, with a failure at every step") {
  for (const LabShape& shape : redundant_shapes()) {
    for (const Victim victim : {Victim::kNobody, Victim::kOld, Victim::kSpare, Victim::kOther}) {
      // RAID 1 of two drives and RAID 10 have no third copy: without the other, the old one is
      // left.
      for (std::uint64_t at = 1; at < (victim == Victim::kNobody ? 2U : 160U); at += 3) {
        CAPTURE(static_cast<unsigned>(victim), at);
        Copying copying{.victim = victim, .at = at};
        with_fault({.shape = shape, .seed = at, .latency = std::chrono::microseconds(100)},
                   [&copying](Fault* fault, RaidLab* lab) {
                     return copy_under_load(&copying, fault, lab);
                   });
      }
    }
  }
}

}  // namespace sandbay::raidtest
