// A RAID set over drives of a simulated world, against a plain array of bytes: every level, with
// all drives, without some, after rebuild, with unreadable blocks.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "raid/assembly.h"
#include "raid/drive_journal.h"
#include "raid/maintenance.h"
#include "raid/raid_set.h"
#include "runtime/simulation.h"
#include "test_drive.h"

namespace sandbay::raid {
namespace {

using raidtest::TestDrive;

constexpr std::uint64_t kDriveBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kJournalBytes = std::uint64_t{2} << 20;

struct SetShape {
  Level level;
  unsigned drives;
  unsigned groups = 0;
  std::uint32_t strip_bytes = 4096;
};

// One set and what it should hold.
class Rig {
 public:
  Rig(Executor& home, SetShape shape) : home_(home), shape_(shape) {}

  Task<void> create() {
    for (unsigned i = 0; i < shape_.drives; ++i) {
      devices.push_back(std::make_unique<TestDrive>(home_, "d" + std::to_string(i), kDriveBytes));
      devices.back()->set_latency(std::chrono::microseconds(100));
    }
    std::vector<NamedDevice> named;
    for (const auto& device : devices) named.push_back({device->description(), device.get()});
    const std::vector<Candidate> candidates = co_await gather_candidates(named);
    NewSet wanted;
    wanted.name = "set";
    wanted.level = shape_.level;
    wanted.group_count = shape_.groups;
    wanted.strip_bytes = shape_.strip_bytes;
    if (shape_.level >= Level::kRaid5 && shape_.level != Level::kRaid10) {
      wanted.journal_bytes = kJournalBytes;
    }
    auto planned = plan_new_set(wanted, candidates, home_.random());
    REQUIRE(planned.has_value());
    const auto layout = planned->superblocks[0].layout();
    REQUIRE(layout.has_value());
    drives = std::make_unique<SetDrives>(home_, *layout, planned->superblocks[0], planned->regions,
                                         planned->lost);
    for (unsigned role = 0; role < shape_.drives; ++role) {
      devices[role]->data_from = planned->superblocks[0].data_offset_blocks;
      drives->set_drive(role, *devices[role], devices[role]->description(), {});
    }
    drives->on_event([this](const SetEvent& event) { events.push_back(event.text); });
    const Error settled = co_await drives->save_clean(false);
    REQUIRE(settled == Error::kNone);
    const Superblock& superblock = drives->superblock();
    if (superblock.journal_bytes > 0) {
      const JournalRing ring{
          .set = superblock.set_uuid,
          .first_block = superblock.journal_offset_bytes / superblock.block_bytes,
          .block_count = superblock.journal_bytes / superblock.block_bytes,
          .copies = layout->redundancy() + 1,
          .role_count = layout->drive_count(),
      };
      journal = std::make_unique<DriveJournal>(*drives, ring, home_);
    }
    set = std::make_unique<RaidSet>(home_, *drives, journal.get(), RaidSetOptions{.name = "set"});
    const Error replayed = co_await set->replay_journal();
    REQUIRE(replayed == Error::kNone);
    expected.resize(set->geometry().block_count * set->geometry().block_bytes);
  }

  Task<void> verify_all() {
    Maintenance maintenance(*set, {});
    maintenance.start();
    co_await maintenance.wait_idle();
    co_await maintenance.stop();
  }

  Task<Error> write(Lba first, std::uint64_t blocks, std::uint64_t seed) {
    Random random(seed);
    Request request;
    request.operation = Operation::kWrite;
    request.extent = {.first = first, .block_count = blocks};
    request.data = co_await home_.buffers().allocate(blocks * 512);
    std::vector<std::byte> bytes(blocks * 512);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
    request.data.copy_from(bytes);
    std::memcpy(expected.data() + first * 512, bytes.data(), bytes.size());
    const Completion completion = co_await set->submit(std::move(request));
    co_return completion.error;
  }

  Task<std::string> read(Lba first, std::uint64_t blocks) {
    Request request;
    request.extent = {.first = first, .block_count = blocks};
    request.data = co_await home_.buffers().allocate(blocks * 512);
    Completion completion = co_await set->submit(std::move(request));
    if (completion.error != Error::kNone) co_return std::string(describe(completion.error));
    std::vector<std::byte> bytes(blocks * 512);
    completion.data.copy_to(bytes);
    if (std::memcmp(bytes.data(), expected.data() + first * 512, bytes.size()) == 0) {
      co_return "";
    }
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != expected[first * 512 + i]) {
        co_return "block " + std::to_string(first + i / 512) + " is wrong";
      }
    }
    co_return "";
  }

  Task<Error> read_raw(Lba first, std::span<std::byte> into) {
    Request request;
    request.extent = {.first = first, .block_count = into.size() / 512};
    request.data = co_await home_.buffers().allocate(into.size());
    Completion completion = co_await set->submit(std::move(request));
    completion.data.copy_to(into);
    co_return completion.error;
  }

  // Writes and reads at random places, several at once.
  Task<void> exercise(unsigned rounds) {
    const std::uint64_t blocks = set->geometry().block_count;
    for (unsigned round = 0; round < rounds; ++round) {
      unsigned running = 0;
      Condition ended;
      // Disjoint parts, so that what is expected is known.
      constexpr unsigned kParts = 6;
      const std::uint64_t part = blocks / kParts;
      for (unsigned i = 0; i < kParts; ++i) {
        const std::uint64_t length = 1 + home_.random().below(i == 0 ? 400 : 40);
        const Lba first = i * part + home_.random().below(part - length);
        ++running;
        spawn(one(this, first, length, &running, &ended));
      }
      while (running > 0) co_await ended.wait();
    }
  }
  static Task<void> one(Rig* rig, Lba first, std::uint64_t length, unsigned* running,
                        Condition* ended) {
    const Error error = co_await rig->write(first, length, rig->home_.random().next());
    if (error != Error::kNone) {
      rig->failures.push_back("write: " + std::string(describe(error)));
    }
    const std::string wrong = co_await rig->read(first, length);
    if (!wrong.empty()) rig->failures.push_back("read: " + wrong);
    if (--*running == 0) ended->notify_all();
  }

  Task<void> check_everything() {
    const std::uint64_t blocks = set->geometry().block_count;
    for (Lba first = 0; first < blocks; first += 1000) {
      const std::string wrong = co_await read(first, std::min<std::uint64_t>(1000, blocks - first));
      if (!wrong.empty()) failures.push_back("at the end: " + wrong);
    }
  }

  Task<void> end() {
    const Error error = co_await set->close(kNever);
    CHECK(error == Error::kNone);
    set.reset();
    const bool idle = co_await drives->wait_idle_until(kNever);
    CHECK(idle);
  }

  std::vector<std::unique_ptr<TestDrive>> devices;
  std::unique_ptr<SetDrives> drives;
  std::unique_ptr<Journal> journal;
  std::unique_ptr<RaidSet> set;
  std::vector<std::byte> expected;
  std::vector<std::string> failures;
  std::vector<std::string> events;

 private:
  Executor& home_;
  SetShape shape_;
};

const std::vector<SetShape> kShapes = {
    {Level::kJbod, 1},
    {Level::kConcatenation, 3},
    {Level::kRaid0, 4},
    {Level::kRaid1, 2},
    {Level::kRaid1, 3},
    {Level::kRaid5, 3},
    {Level::kRaid5, 5},
    {Level::kRaid6, 4},
    {Level::kRaid6, 7},
    {Level::kRaid10, 6},
    {Level::kRaid50, 6, 2},
    {Level::kRaid60, 8, 2},
    {Level::kRaid5, 4, 0, 65536},
};

void in_world(std::uint64_t seed, const std::function<Task<void>(Executor&)>& body) {
  const auto world = sim::World::create({.seed = seed});
  Executor& home = *world->executors()[0];
  const bool ended = world->run([&] { return body(home); });
  REQUIRE(ended);
}

Task<void> survive(Executor* home, SetShape shape) {
  Rig rig(*home, shape);
  co_await rig.create();
  co_await rig.exercise(10);
  if (rig.set->layout().redundancy() > 0) {
    co_await rig.verify_all();
    CHECK(rig.drives->unverified_count() == 0);
    co_await rig.exercise(10);
    // As many drives go as it survives, in the middle of the work.
    for (unsigned i = 0; i < rig.set->layout().redundancy(); ++i) {
      rig.devices[i * 1]->fail_with(Error::kHardware);
      co_await rig.exercise(10);
    }
    CHECK(std::popcount(rig.drives->absent_roles()) ==
          static_cast<int>(rig.set->layout().redundancy()));
    co_await rig.check_everything();
    // Fresh drives take their roles and are rebuilt under load.
    for (unsigned i = 0; i < rig.set->layout().redundancy(); ++i) {
      rig.devices.push_back(
          std::make_unique<TestDrive>(*home, "spare" + std::to_string(i), kDriveBytes));
      rig.drives->take_role(i, *rig.devices.back(), "spare", {}, make_uuid(home->random()), false);
    }
    const Error saved = co_await rig.drives->save_regions();
    CHECK(saved == Error::kNone);
    const Error settled = co_await rig.drives->settled();
    CHECK(settled == Error::kNone);
    Maintenance maintenance(*rig.set, {.rate_under_load = 0});
    maintenance.start();
    co_await rig.exercise(20);
    co_await maintenance.wait_idle();
    co_await maintenance.stop();
    CHECK(rig.drives->optimal());
  }
  co_await rig.check_everything();
  for (const std::string& failure : rig.failures) UNSCOPED_INFO(failure);
  CHECK(rig.failures.empty());
  co_await rig.end();
}

// Reads alone, and each is answered around the drive that hangs: it goes all the same.
Task<void> lose_one_that_hangs(Executor* home, SetShape shape) {
  Rig rig(*home, shape);
  co_await rig.create();
  co_await rig.exercise(5);
  co_await rig.verify_all();
  co_await rig.set->flush_drives();
  rig.devices[0]->hang();
  const TimePoint began = home->now();
  while (home->now() < began + std::chrono::seconds(12)) {
    const std::string wrong = co_await rig.read(0, 8 * shape.drives);
    CHECK(wrong.empty());
    co_await home->sleep_for(std::chrono::milliseconds(500));
  }
  CHECK(rig.drives->absent_roles() == 1);
  CHECK(rig.drives->superblock().roles[0].state == RoleState::kFailed);
  const bool told = std::ranges::any_of(rig.events, [](const std::string& text) {
    return text.find("d0 in role 0 is failed: a read that took long") != std::string::npos;
  });
  CHECK(told);
  rig.devices[0]->release();
  co_await rig.check_everything();
  CHECK(rig.failures.empty());
  co_await rig.end();
}

// Writes that may or may not meet a drive without room: each says so or is done, and what it was to
// change is old or new, block by block.
Task<void> write_without_room(Rig* rig, Executor* home) {
  unsigned refused = 0;
  for (unsigned i = 0; i < 40; ++i) {
    const std::uint64_t length = 1 + home->random().below(i % 4 == 0 ? 100 : 12);
    const Lba first = home->random().below(rig->expected.size() / 512 - length);
    const auto begin = rig->expected.begin() + static_cast<std::ptrdiff_t>(first * 512);
    const std::vector<std::byte> old(begin, begin + static_cast<std::ptrdiff_t>(length * 512));
    const Error error = co_await rig->write(first, length, home->random().next());
    CHECK((error == Error::kNone || error == Error::kNoSpace));
    if (error == Error::kNone) continue;
    ++refused;
    std::vector<std::byte> now(old.size());
    const Error read = co_await rig->read_raw(first, now);
    CHECK(read == Error::kNone);
    std::byte* wanted = rig->expected.data() + first * 512;
    for (std::size_t at = 0; at < now.size(); at += 512) {
      const bool whole = std::memcmp(now.data() + at, old.data() + at, 512) == 0 ||
                         std::memcmp(now.data() + at, wanted + at, 512) == 0;
      CHECK(whole);
    }
    std::memcpy(wanted, now.data(), now.size());
  }
  CHECK(refused > 5);
}

Task<void> run_out_of_space(Executor* home, SetShape shape, std::uint64_t seed) {
  Rig rig(*home, shape);
  co_await rig.create();
  co_await rig.exercise(10);
  co_await rig.verify_all();
  rig.devices[seed % shape.drives]->fill_up(true);
  co_await write_without_room(&rig, home);
  CHECK(rig.drives->absent_roles() == 0);
  CHECK(!rig.set->offline());
  CHECK(rig.set->health() == Health::kGood);
  co_await rig.check_everything();
  // There is room again; what differs is made whole before a drive goes.
  rig.devices[seed % shape.drives]->fill_up(false);
  co_await rig.verify_all();
  CHECK(rig.drives->unverified_count() == 0);
  if (rig.set->layout().redundancy() > 0) {
    rig.devices[(seed + 1) % shape.drives]->fail_with(Error::kHardware);
  }
  co_await rig.check_everything();
  for (const std::string& failure : rig.failures) UNSCOPED_INFO(failure);
  CHECK(rig.failures.empty());
  co_await rig.end();
}

// Beyond what it survives the set does not say that it is degraded only, and says when that is
// over.
Task<void> fail_beyond_redundancy(Executor* home, SetShape shape) {
  Rig rig(*home, shape);
  co_await rig.create();
  co_await rig.exercise(3);
  co_await rig.verify_all();
  const unsigned redundancy = rig.set->layout().redundancy();
  for (unsigned i = 0; i < redundancy; ++i) {
    const bool gone = rig.drives->drop(i, DropReason::kFailed, "an operator says so");
    CHECK(gone);
  }
  CHECK(rig.set->health() == Health::kDegraded);
  rig.devices[redundancy]->fail_with(Error::kHardware);
  const std::uint64_t blocks = 8 * shape.drives;
  std::string wrong = co_await rig.read(0, blocks);
  CHECK(!wrong.empty());
  wrong = co_await rig.read(0, blocks);
  CHECK(!wrong.empty());
  CHECK(rig.set->health() == Health::kFailed);
  const auto told = [&rig](const char* what) {
    return std::ranges::count_if(rig.events, [what](const std::string& text) {
      return text.find(what) != std::string::npos;
    });
  };
  CHECK(told("more drives fail than the set survives") == 1);
  rig.devices[redundancy]->fail_with(Error::kNone);
  wrong = co_await rig.read(0, blocks);
  CHECK(wrong.empty());
  CHECK(rig.set->health() == Health::kDegraded);
  CHECK(told("its drives answer again") == 1);
  co_await rig.end();
}

}  // namespace

TEST_CASE("a set that cannot answer because one more drive fails says that it has failed") {
  for (const SetShape& shape : kShapes) {
    if (shape.level < Level::kRaid1 || shape.groups > 1 || shape.level == Level::kRaid10) continue;
    CAPTURE(describe(shape.level), shape.drives);
    in_world(1, [&](Executor& home) { return fail_beyond_redundancy(&home, shape); });
  }
}

TEST_CASE("no drive is lost when there is no room for what is written, and no block is torn") {
  for (const SetShape& shape : kShapes) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(describe(shape.level), shape.drives, seed);
      in_world(seed, [&](Executor& home) { return run_out_of_space(&home, shape, seed); });
    }
  }
}

TEST_CASE("a drive that answers no read is lost, though every read is answered without it") {
  for (const SetShape& shape : kShapes) {
    if (shape.level < Level::kRaid1) continue;
    CAPTURE(describe(shape.level), shape.drives);
    in_world(1, [&](Executor& home) { return lose_one_that_hangs(&home, shape); });
  }
}

TEST_CASE("a set of every level keeps what is written, with drives lost and rebuilt") {
  for (const SetShape& shape : kShapes) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(describe(shape.level), shape.drives, seed);
      in_world(seed, [&](Executor& home) { return survive(&home, shape); });
    }
  }
}

}  // namespace sandbay::raid
