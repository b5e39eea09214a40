// In the steady state no read or write of a set allocates from the heap: operator new is counted.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>

#include "block/memory_device.h"
#include "nvram/nvram.h"
#include "nvram/simulated_board.h"
#include "raid/assembly.h"
#include "raid/drive_journal.h"
#include "raid/nvram_journal.h"
#include "raid/raid_set.h"
#include "runtime/simulation.h"

#if !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)

static std::size_t allocations = 0;

void* operator new(std::size_t byte_count) {
  ++allocations;
  void* const memory = std::malloc(byte_count);
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace sandbay::raidtest::raid_allocation_test {
namespace {

using namespace raid;

enum class JournalPlace : std::uint8_t { kNone, kNvram, kDrives };

struct Case {
  const char* name;
  Level level;
  unsigned drives;
  JournalPlace journal = JournalPlace::kNone;
  bool integrity = false;
  unsigned away = 0;
};

constexpr std::uint64_t kDriveBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kJournalBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kBlocks = 8;  // 4 KiB.

// A set on drives in memory, which allocate nothing themselves.
struct Stack {
  std::vector<std::unique_ptr<MemoryDevice>> devices;
  std::unique_ptr<SetDrives> drives;
  nvram::SimulatedBoard board{kJournalBytes * 2};
  std::unique_ptr<nvram::Nvram> memory;
  std::unique_ptr<nvram::Region> region;
  std::unique_ptr<Journal> journal;
  std::unique_ptr<RaidSet> set;

  Task<void> make(Executor* home, const Case* which) {
    std::vector<NamedDevice> named;
    for (unsigned i = 0; i < which->drives; ++i) {
      auto device = MemoryDevice::create(*home, {.byte_count = kDriveBytes});
      REQUIRE(device.has_value());
      devices.push_back(std::move(*device));
      named.push_back({"d" + std::to_string(i), devices.back().get()});
    }
    const std::vector<Candidate> candidates = co_await gather_candidates(named);
    NewSet wanted{.name = "set", .level = which->level, .integrity = which->integrity};
    wanted.strip_bytes = 16384;
    wanted.journal_bytes = which->journal == JournalPlace::kDrives ? kJournalBytes : 0;
    const auto planned = plan_new_set(wanted, candidates, home->random());
    REQUIRE(planned.has_value());
    const Superblock& superblock = planned->superblocks[0];
    RegionMap regions = planned->regions;
    regions.set_all_dirty(false);  // Drives of zeros match.
    drives = std::make_unique<SetDrives>(*home, *superblock.layout(), superblock, regions,
                                         planned->lost);
    for (unsigned role = 0; role < which->drives; ++role) {
      drives->set_drive(role, *devices[role], named[role].name, {});
    }
    const Error settled = co_await drives->save_clean(false);
    REQUIRE(settled == Error::kNone);
    co_await make_journal(home, which);
    set = std::make_unique<RaidSet>(*home, *drives, journal.get(), RaidSetOptions{.name = "set"});
    const Error replayed = co_await set->replay_journal();
    REQUIRE(replayed == Error::kNone);
    for (unsigned role = 0; role < which->away; ++role) {
      const bool gone = drives->drop(role, DropReason::kFailed, "the test says so");
      REQUIRE(gone);
    }
    const Error known = co_await drives->settled();
    REQUIRE(known == Error::kNone);
  }

  Task<void> make_journal(Executor* home, const Case* which) {
    const Superblock& superblock = drives->superblock();
    if (which->journal == JournalPlace::kDrives) {
      const JournalRing ring{
          .set = superblock.set_uuid,
          .first_block = superblock.journal_offset_bytes / superblock.block_bytes,
          .block_count = superblock.journal_bytes / superblock.block_bytes,
          .copies = drives->layout().redundancy() + 1,
          .role_count = which->drives,
      };
      journal = std::make_unique<DriveJournal>(*drives, ring, *home);
    }
    if (which->journal != JournalPlace::kNvram) co_return;
    const nvram::NvramOptions how{.path = "board",
                                  .byte_count = board.byte_count(),
                                  .boot_id = "one",
                                  .power_loss_only_emulated = true};
    auto opened = co_await nvram::Nvram::open(*home, board, how);
    REQUIRE(opened.has_value());
    memory = std::move(*opened);
    auto claimed = co_await memory->claim("journal", kJournalBytes);
    REQUIRE(claimed.has_value());
    region = std::move(*claimed);
    journal = std::make_unique<NvramJournal>(*region, superblock.set_uuid, 512);
  }

  Task<void> end() {
    const Error closed = co_await set->close(kNever);
    REQUIRE(closed == Error::kNone);
    set.reset();
    journal.reset();
    region.reset();
    memory.reset();
    drives.reset();
  }
};

Task<void> one(RaidSet* set, Operation operation, Lba lba, std::uint64_t blocks) {
  Request request{.operation = operation,
                  .extent = {lba, blocks},
                  .data = set->home().buffers().try_allocate(blocks * 512)};
  const Completion completion = co_await set->submit(std::move(request));
  assert(completion.error == Error::kNone);
}

// Of `count` operations at random places, in the last of three runs.
Task<std::size_t> measure(RaidSet* set, Operation operation, std::uint64_t blocks, int count) {
  Random random(1);
  const std::uint64_t places = set->geometry().block_count / blocks;
  std::size_t before = 0;
  for (int i = 0; i < 3 * count; ++i) {
    if (i == 2 * count) before = allocations;
    co_await one(set, operation, random.below(places) * blocks, blocks);
  }
  co_return allocations - before;
}

Task<void> allocate_nothing(Executor* home, const Case* which) {
  Stack stack;
  co_await stack.make(home, which);
  RaidSet* const set = stack.set.get();
  constexpr int kCount = 2000;
  const std::size_t small = co_await measure(set, Operation::kWrite, kBlocks, kCount);
  CHECK(small == 0);
  const std::size_t across = co_await measure(set, Operation::kWrite, 5 * kBlocks, kCount);
  CHECK(across == 0);
  const std::size_t whole =
      co_await measure(set, Operation::kWrite, set->geometry().optimal_io_blocks, kCount / 4);
  CHECK(whole == 0);
  const std::size_t reads = co_await measure(set, Operation::kRead, kBlocks, kCount);
  CHECK(reads == 0);
  const std::size_t wide = co_await measure(set, Operation::kRead, 20 * kBlocks, kCount);
  CHECK(wide == 0);
  co_await stack.end();
}

}  // namespace

TEST_CASE("Reads and writes of a set allocate nothing in the steady state", "[raid]") {
  constexpr auto kNvram = JournalPlace::kNvram;
  constexpr auto kDrives = JournalPlace::kDrives;
  for (const Case& which : {Case{"RAID 0", Level::kRaid0, 4}, Case{"RAID 1", Level::kRaid1, 3},
                            Case{"RAID 10", Level::kRaid10, 4}, Case{"RAID 5", Level::kRaid5, 5},
                            Case{"RAID 5, NVRAM", Level::kRaid5, 5, kNvram},
                            Case{"RAID 6, NVRAM", Level::kRaid6, 6, kNvram},
                            Case{"RAID 50, NVRAM", Level::kRaid50, 6, kNvram},
                            Case{"RAID 5, one away", Level::kRaid5, 5, kNvram, false, 1},
                            Case{"RAID 6, two away", Level::kRaid6, 6, kNvram, false, 2},
                            Case{"RAID 5, journal on drives", Level::kRaid5, 5, kDrives},
                            Case{"RAID 1, integrity", Level::kRaid1, 2, kNvram, true},
                            Case{"RAID 6, integrity", Level::kRaid6, 5, kNvram, true}}) {
    CAPTURE(which.name);
    const auto world = sim::World::create({.seed = 1});
    Executor& home = *world->executors()[0];
    const bool ended = world->run([&] { return allocate_nothing(&home, &which); });
    REQUIRE(ended);
  }
}

}  // namespace sandbay::raidtest::raid_allocation_test

#endif
