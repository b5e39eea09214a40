// A mirror that fails while it is in use, and a kill before anybody has noted that: what it still
// has of writes that were released is not laid over what has been written since.
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "../block/on_executor.h"
#include "cache/write_memory.h"
#include "nvram/simulated_board.h"

namespace sandbay::cache::mirror_loss_test {
namespace {

using nvram::SimulatedBoard;
using testing::run_in_world;

constexpr std::uint64_t kDataBytes = 8 * BufferPool::kSmallBytes;
constexpr std::uint64_t kLogBytes = 64 * 1024;
constexpr std::uint64_t kImageBytes = kDataBytes + kLogBytes + 4 * nvram::kPageBytes;

struct Boards {
  SimulatedBoard primary{kImageBytes};
  SimulatedBoard mirror{kImageBytes};
};

struct Bench {
  std::unique_ptr<nvram::Nvram> primary;
  std::unique_ptr<nvram::Nvram> mirror;
  std::unique_ptr<WriteMemory> memory;
};

Task<Bench> open_bench(Executor& home, Boards* boards) {
  Bench bench;
  auto primary = co_await nvram::Nvram::open(home, boards->primary, {.path = "a", .boot_id = "x"});
  REQUIRE(primary.has_value());
  auto mirror = co_await nvram::Nvram::open(home, boards->mirror, {.path = "b", .boot_id = "x"});
  REQUIRE(mirror.has_value());
  bench.primary = std::move(*primary);
  bench.mirror = std::move(*mirror);
  auto memory = co_await WriteMemory::open(
      bench.primary.get(), bench.mirror.get(),
      {.data_bytes = kDataBytes, .log_bytes = kLogBytes, .slab_bytes = BufferPool::kSmallBytes});
  REQUIRE(memory.has_value());
  bench.memory = std::move(*memory);
  co_return bench;
}

Task<WriteId> append(WriteMemory* memory, Lba lba, const std::byte** place) {
  BufferList data = memory->buffers().try_allocate(4096);
  data.copy_from(std::vector<std::byte>(4096, static_cast<std::byte>(lba)));
  *place = data[0].data();
  const WriteSubject subject{.device = Uuid{1}, .extent = {.first = lba, .block_count = 8}};
  const auto id = co_await memory->append(subject, std::move(data));
  REQUIRE(id.has_value());
  co_return *id;
}

Task<void> loses_mirror(Executor& home, Boards* boards, Boards* killed) {
  const Bench bench = co_await open_bench(home, boards);
  REQUIRE(bench.memory->recover().lost.empty());
  const Error accepted = co_await bench.memory->accept();
  REQUIRE(accepted == Error::kNone);
  int told = 0;
  bench.memory->on_mirror_lost = [&told] { ++told; };
  const std::byte* place = nullptr;
  const std::byte* again = nullptr;
  const WriteId kept = co_await append(bench.memory.get(), 20, &place);
  const WriteId older = co_await append(bench.memory.get(), 40, &place);
  bench.mirror->cut_power();  // Its battery is good: it keeps what it has.
  const WriteId first = co_await append(bench.memory.get(), 60, &again);
  REQUIRE(told == 1);
  bench.memory->release(older);
  const WriteId newer = co_await append(bench.memory.get(), 80, &again);
  REQUIRE(again == place);
  *killed = *boards;
  for (const WriteId id : {kept, first, newer}) bench.memory->release(id);
  co_await bench.memory->stop();
}

Task<void> comes_back(Executor& home, Boards* boards) {
  for (int start = 0; start < 2; ++start) {
    const Bench bench = co_await open_bench(home, boards);
    WriteRecovery recovery = bench.memory->recover();
    REQUIRE(recovery.lost.empty());
    REQUIRE(recovery.from_mirror == 0);
    std::vector<Lba> there;
    for (RecoveredWrite& write : recovery.writes) {
      const Lba lba = write.subject.extent.first;
      there.push_back(lba);
      REQUIRE(write.data[0].bytes()[0] == static_cast<std::byte>(lba));
      write.data.clear();
    }
    REQUIRE(there == std::vector<Lba>{20, 60, 80});
    const Error accepted = co_await bench.memory->accept();
    REQUIRE(accepted == Error::kNone);
    REQUIRE(bench.memory->mirrored());
    co_await bench.memory->stop();
  }
}

}  // namespace

TEST_CASE("A mirror that failed unnoticed is not laid over memory that was used again",
          "[write_memory]") {
  Boards boards;
  Boards killed;
  run_in_world(1, [&](Executor& home) { return loses_mirror(home, &boards, &killed); });
  run_in_world(1, [&](Executor& home) { return comes_back(home, &killed); });
}

}  // namespace sandbay::cache::mirror_loss_test
