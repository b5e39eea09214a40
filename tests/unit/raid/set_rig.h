// SetRig: a RAID set over drives of a simulated world without a controller, and an array of bytes
// that says what it should hold.
#pragma once

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
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
#include "tests/unit/random_fill.h"

namespace sandbay::raidtest {

using namespace raid;

inline constexpr std::uint64_t kSetDriveBytes = std::uint64_t{8} << 20;
inline constexpr std::uint64_t kSetJournalBytes = std::uint64_t{2} << 20;

struct SetShape {
  Level level;
  unsigned drives;
  unsigned groups = 0;
  std::uint32_t strip_bytes = 4096;
  bool integrity = false;
};

// One set and what it should hold.
class SetRig {
 public:
  SetRig(Executor& home, SetShape shape) : home_(home), shape_(shape) {}

  Task<void> create() {
    for (unsigned i = 0; i < shape_.drives; ++i) {
      devices.push_back(
          std::make_unique<TestDrive>(home_, "d" + std::to_string(i), kSetDriveBytes));
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
    wanted.region_stripes = region_stripes;
    wanted.integrity = shape_.integrity;
    if (shape_.integrity) wanted.journal_bytes = kSetJournalBytes;
    if (shape_.level >= Level::kRaid5 && shape_.level != Level::kRaid10) {
      wanted.journal_bytes = kSetJournalBytes;
    }
    auto planned = plan_new_set(wanted, candidates, home_.random());
    REQUIRE(planned.has_value());
    planned->superblocks[0].blank = blank;
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
    if (drives->superblock().journal_bytes > 0) journal = another_journal();
    set = std::make_unique<RaidSet>(home_, *drives, journal.get(), RaidSetOptions{.name = "set"});
    const Error replayed = co_await set->replay_journal();
    REQUIRE(replayed == Error::kNone);
    expected.resize(set->geometry().block_count * set->geometry().block_bytes);
  }

  std::unique_ptr<Journal> another_journal() {
    const Superblock& superblock = drives->superblock();
    const JournalRing ring{
        .set = superblock.set_uuid,
        .first_block = superblock.journal_offset_bytes / superblock.block_bytes,
        .block_count = superblock.journal_bytes / superblock.block_bytes,
        .copies = drives->layout().redundancy() + 1,
        .role_count = drives->layout().drive_count(),
    };
    return std::make_unique<DriveJournal>(*drives, ring, home_);
  }
  // As after a kill in a quiet moment.
  Task<Error> start_anew() {
    co_await home_.sleep_for(std::chrono::seconds(1));
    set.reset();
    journal = another_journal();
    co_return co_await start_again();
  }
  // Changes what a member of a stripe has on its drive, behind the set's back.
  void spoil(std::uint64_t stripe, unsigned member, std::uint32_t row, std::uint64_t byte_count) {
    const unsigned role = set->layout().role(stripe, member);
    const Lba lba = drives->data_offset() + set->layout().drive_lba(stripe) + row;
    std::vector<std::byte> junk(byte_count);
    for (std::byte& byte : junk) byte = static_cast<std::byte>(home_.random().next() | 1);
    devices[role]->state().visible.write(lba * 512, junk);
    devices[role]->state().durable.write(lba * 512, junk);
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
    sandbay::testing::fill_random(bytes, random);
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
  static Task<void> one(SetRig* rig, Lba first, std::uint64_t length, unsigned* running,
                        Condition* ended) {
    const Error error = co_await rig->write(first, length, rig->home_.random().next());
    if (error != Error::kNone) {
      rig->failures.push_back("write: " + std::string(describe(error)));
    }
    const std::string wrong = co_await rig->read(first, length);
    if (!wrong.empty()) rig->failures.push_back("read: " + wrong);
    if (--*running == 0) ended->notify_all();
  }

  Task<void> fill() {
    const std::uint64_t blocks = set->geometry().block_count;
    for (Lba at = 0; at < blocks; at += 256) {
      const Error error = co_await write(at, std::min<std::uint64_t>(256, blocks - at), at + 7);
      REQUIRE(error == Error::kNone);
    }
  }

  // A drive as it may come: with anything in its data area.
  Task<void> fill_with_junk(TestDrive* drive) {
    const Lba end = drive->geometry().block_count;
    for (Lba at = devices[0]->data_from; at < end; at += 256) {
      Request request;
      request.operation = Operation::kWrite;
      request.extent = {.first = at, .block_count = std::min<std::uint64_t>(256, end - at)};
      std::vector<std::byte> bytes(request.extent.block_count * 512);
      sandbay::testing::fill_random(bytes, home_.random());
      request.data = co_await home_.buffers().allocate(bytes.size());
      request.data.copy_from(bytes);
      const Completion done = co_await drive->submit(std::move(request));
      REQUIRE(done.error == Error::kNone);
    }
  }
  Task<void> fill_all_with_junk() {
    for (const auto& device : devices) co_await fill_with_junk(device.get());
  }
  TestDrive& add_drive(std::string name) {
    devices.push_back(std::make_unique<TestDrive>(home_, std::move(name), kSetDriveBytes));
    devices.back()->set_latency(std::chrono::microseconds(100));
    devices.back()->data_from = devices[0]->data_from;
    return *devices.back();
  }
  // Another set over the same drives and another journal, as after a restart.
  Task<Error> restart(std::unique_ptr<Journal> other) {
    const Error closed = co_await set->close(kNever);
    CHECK(closed == Error::kNone);
    set.reset();
    journal = std::move(other);
    co_return co_await start_again();
  }
  Task<Error> start_again() {
    set.reset();
    set = std::make_unique<RaidSet>(home_, *drives, journal.get(), RaidSetOptions{.name = "set"});
    co_return co_await set->replay_journal();
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

  std::uint64_t region_stripes = 64;
  bool blank = false;  // What the superblocks say.
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

inline void in_world(std::uint64_t seed, const std::function<Task<void>(Executor&)>& body) {
  const auto world = sim::World::create({.seed = seed});
  Executor& home = *world->executors()[0];
  const bool ended = world->run([&] { return body(home); });
  REQUIRE(ended);
}

}  // namespace sandbay::raidtest
