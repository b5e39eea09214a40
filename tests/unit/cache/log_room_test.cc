// Room in the log of a write memory: with writes that stay for good at its tail and many hosts at
// once, nobody hangs; a record that is being moved is released at no moment without its older
// copy, so that what overwrote it never comes back alone; and whoever waits is patient at most a
// second, or until his request is aborted.
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "../block/on_executor.h"
#include "cache/write_memory.h"
#include "nvram/simulated_board.h"

namespace sandbay::cache::log_room_test {
namespace {

using nvram::Durability;
using nvram::SimulatedBoard;
using testing::run_in_world;

constexpr std::uint64_t kDataBytes = 8 * BufferPool::kSmallBytes;
constexpr std::uint64_t kLogBytes = 64 * 1024;
constexpr std::uint64_t kImageBytes = kDataBytes + kLogBytes + 4 * nvram::kPageBytes;
constexpr std::uint32_t kBlockBytes = 512;
constexpr Uuid kDevice{1};

struct Bench {
  std::unique_ptr<nvram::Nvram> nvram;
  std::unique_ptr<nvram::Nvram> mirror;
  std::unique_ptr<WriteMemory> memory;
  WriteRecovery recovery;
};

Task<std::unique_ptr<nvram::Nvram>> open_board(Executor& home, SimulatedBoard* board,
                                               const char* path, Durability durability) {
  auto opened = co_await nvram::Nvram::open(
      home, *board, {.path = path, .durability = durability, .boot_id = "boot"});
  if (!opened) FAIL(opened.error());
  co_return std::move(*opened);
}

Task<Bench> open_bench(Executor& home, SimulatedBoard* board, SimulatedBoard* mirror,
                       Durability durability) {
  Bench bench;
  bench.nvram = co_await open_board(home, board, "a", durability);
  if (mirror != nullptr) bench.mirror = co_await open_board(home, mirror, "b", durability);
  auto memory = co_await WriteMemory::open(
      bench.nvram.get(), bench.mirror.get(),
      {.data_bytes = kDataBytes, .log_bytes = kLogBytes, .slab_bytes = BufferPool::kSmallBytes});
  if (!memory) FAIL(memory.error());
  bench.memory = std::move(*memory);
  bench.recovery = bench.memory->recover();
  const Error accepted = co_await bench.memory->accept();
  REQUIRE(accepted == Error::kNone);
  co_return bench;
}

Task<Result<WriteId>> append(WriteMemory* memory, Lba lba, Patience patience = {}) {
  BufferList data = memory->buffers().try_allocate(kBlockBytes);
  REQUIRE_FALSE(data.empty());
  data.copy_from(std::vector<std::byte>(kBlockBytes, static_cast<std::byte>(lba)));
  const WriteSubject subject{.device = kDevice, .extent = {.first = lba, .block_count = 1}};
  auto id = co_await memory->append(subject, std::move(data), patience);
  co_return id;
}

// Many hosts ------------------------------------------------------------------------------------

struct Hosts {
  Gate gate;
  std::size_t failed = 0;
};

// Each write is on its drives soon.
Task<void> host(Executor& home, WriteMemory* memory, Hosts* hosts, Lba first) {
  for (Lba i = 0; i < 40; ++i) {
    const Result<WriteId> id = co_await append(memory, first + i % 4);
    if (!id) {
      ++hosts->failed;
      continue;
    }
    co_await home.sleep_for(std::chrono::milliseconds(3));
    memory->release(*id);
  }
  hosts->gate.leave();
}

Task<void> goes_on(Executor& home, Durability durability, bool mirrored) {
  SimulatedBoard board{kImageBytes};
  SimulatedBoard other{kImageBytes};
  const Bench bench = co_await open_bench(home, &board, mirrored ? &other : nullptr, durability);
  // Of a set that has failed: they are at the tail, and take more than a third of the log.
  std::vector<WriteId> stuck;
  for (Lba lba = 0; lba < 120; ++lba) {
    const Result<WriteId> id = co_await append(bench.memory.get(), lba);
    REQUIRE(id.has_value());
    stuck.push_back(*id);
  }
  const TimePoint start = home.now();
  Hosts hosts;
  for (Lba i = 0; i < 160; ++i) {
    const bool entered = hosts.gate.enter();
    REQUIRE(entered);
    spawn(host(home, bench.memory.get(), &hosts, 1000 + 4 * i));
  }
  const bool ended = co_await hosts.gate.close_until(start + std::chrono::minutes(1));
  REQUIRE(ended);
  REQUIRE(hosts.failed == 0);
  REQUIRE(bench.memory->live_writes() == stuck.size());
  REQUIRE(home.now() - start < std::chrono::seconds(2));
  for (Lba lba = 0; lba < stuck.size(); ++lba) {
    REQUIRE(bench.memory->subject(stuck[lba]).extent.first == lba);
  }
  if (mirrored) REQUIRE(bench.memory->mirrored());
  co_await bench.memory->stop();
}

// A record that is moved -------------------------------------------------------------------------

struct Fork {
  SimulatedBoard board{kImageBytes};
  bool released = false;  // The newer of the two, too.
};

// Which of the two writes of block 7 are there, the older and the newer.
Task<void> look(Executor& home, Fork* fork) {
  const Bench bench = co_await open_bench(home, &fork->board, nullptr, Durability::kHost);
  std::size_t there = 0;
  std::byte last{};
  for (const RecoveredWrite& write : bench.recovery.writes) {
    if (write.subject.extent.first != 7) continue;
    ++there;
    last = write.data[0].bytes()[0];
  }
  // The newer may be there alone, the older may not.
  if (there > 0) REQUIRE(last == std::byte{2});
  if (!fork->released) REQUIRE(there > 0);
  co_await bench.memory->stop();
}

Task<Result<WriteId>> append_seven(WriteMemory* memory, std::byte content) {
  BufferList data = memory->buffers().try_allocate(kBlockBytes);
  data.copy_from(std::vector<std::byte>(kBlockBytes, content));
  const WriteSubject subject{.device = kDevice, .extent = {.first = 7, .block_count = 1}};
  auto id = co_await memory->append(subject, std::move(data));
  co_return id;
}

Task<void> overwrites(Executor& home, std::vector<std::unique_ptr<Fork>>* forks) {
  SimulatedBoard board{kImageBytes};
  const Bench bench = co_await open_bench(home, &board, nullptr, Durability::kHost);
  WriteMemory* const memory = bench.memory.get();
  const Result<WriteId> older = co_await append_seven(memory, std::byte{1});
  // So many that the newer one does not move at the same time.
  constexpr Lba kBetween = 80;
  for (Lba lba = 20; lba < 20 + kBetween; ++lba) {
    const Result<WriteId> id = co_await append(memory, lba);
    REQUIRE(id.has_value());
  }
  const Result<WriteId> newer = co_await append_seven(memory, std::byte{2});
  REQUIRE((older && newer));
  // Others come and go until the older one, at the tail, begins to move.
  bool released = false;
  for (Lba lba = 100; lba < 1000 && !released; ++lba) {
    const Result<WriteId> id = co_await append(memory, lba);
    REQUIRE(id.has_value());
    memory->release(*id);
    if (memory->moving_records()) {
      memory->release(*older);
      memory->release(*newer);
      released = true;
    }
  }
  REQUIRE(released);
  for (int i = 0; i < 24; ++i) {
    auto fork = std::make_unique<Fork>();
    fork->board = board;
    fork->released = released;
    forks->push_back(std::move(fork));
    co_await home.sleep_for(board.sync_time / 4);
  }
  REQUIRE(memory->live_writes() == kBetween);
  co_await memory->stop();
}

}  // namespace

TEST_CASE("Writes go on while others stay at the tail of the log", "[write_memory]") {
  for (const Durability durability : {Durability::kProcess, Durability::kHost}) {
    for (const bool mirrored : {false, true}) {
      CAPTURE(mirrored);
      run_in_world(1, [=](Executor& home) { return goes_on(home, durability, mirrored); });
    }
  }
}

TEST_CASE("A write that is released while its record moves does not come back alone",
          "[write_memory]") {
  std::vector<std::unique_ptr<Fork>> forks;
  run_in_world(1, [&](Executor& home) { return overwrites(home, &forks); });
  for (const auto& fork : forks) {
    run_in_world(1, [&](Executor& home) { return look(home, fork.get()); });
  }
}

}  // namespace sandbay::cache::log_room_test
