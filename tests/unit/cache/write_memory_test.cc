// The write memory against a model: what was acknowledged comes back after a kill at any store, a
// crash of the host and power cuts, in order, and what does not is listed.
//
// One run appends, overwrites and releases writes to a small device and keeps copies of both
// memories at many stores, each with what the model says at that moment. Every copy then meets an
// end of its own and is opened in another world; recovered writes are laid over the model's drives.
#include "cache/write_memory.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "../block/on_executor.h"
#include "nvram/damage.h"
#include "nvram/simulated_board.h"
#include "runtime/random.h"

namespace sandbay::cache::write_memory_test {
namespace {

using nvram::BatteryState;
using nvram::Durability;
using nvram::SimulatedBoard;
using testing::run_in_world;

constexpr std::size_t kSlabBytes = BufferPool::kSmallBytes;
constexpr std::uint64_t kDataBytes = 8 * kSlabBytes;
constexpr std::uint64_t kLogBytes = 8 * nvram::kPageBytes;
constexpr std::uint64_t kImageBytes = kDataBytes + kLogBytes + 4 * nvram::kPageBytes;
constexpr std::uint32_t kBlockBytes = 512;
constexpr std::size_t kBlocks = 256;
constexpr Uuid kDevice{1, 2, 3};

using Content = std::array<std::uint32_t, kBlocks>;  // A block's content is its number.

struct Model {
  Content drives{};
  Content acknowledged{};  // The newest.
  Content in_flight{};     // What is being appended, where it is not 0.
};

struct Fork {
  SimulatedBoard primary{kImageBytes};
  SimulatedBoard mirror{kImageBytes};
  Model model;
};

struct Shape {
  std::uint64_t seed = 1;
  Durability durability = Durability::kProcess;
  bool mirrored = false;
  std::size_t steps = 300;
};

nvram::NvramOptions options_of(const char* path, Durability durability, const char* boot_id) {
  return {.path = path, .durability = durability, .boot_id = boot_id};
}

struct Bench {
  std::unique_ptr<nvram::Nvram> primary;
  std::unique_ptr<nvram::Nvram> mirror;
  std::unique_ptr<WriteMemory> memory;
  WriteRecovery recovery;
};

Task<std::unique_ptr<nvram::Nvram>> open_board(Executor& home, SimulatedBoard& board,
                                               nvram::NvramOptions options) {
  auto opened = co_await nvram::Nvram::open(home, board, std::move(options));
  if (!opened) FAIL(opened.error());
  co_return std::move(*opened);
}

Task<Bench> open_bench(Executor& home, SimulatedBoard& primary, SimulatedBoard* mirror,
                       Durability durability, const char* boot_id = "boot-1") {
  Bench bench;
  bench.primary = co_await open_board(home, primary, options_of("a", durability, boot_id));
  if (mirror != nullptr) {
    bench.mirror = co_await open_board(home, *mirror, options_of("b", durability, boot_id));
  }
  const WriteMemoryOptions options{
      .data_bytes = kDataBytes, .log_bytes = kLogBytes, .slab_bytes = kSlabBytes};
  auto memory = co_await WriteMemory::open(bench.primary.get(), bench.mirror.get(), options);
  if (!memory) FAIL(memory.error());
  bench.memory = std::move(*memory);
  bench.recovery = bench.memory->recover();
  co_return bench;
}

// The run ---------------------------------------------------------------------------------------

struct Written {
  WriteId id{};
  Extent extent;
  std::uint32_t number = 0;
};

class Run {
 public:
  Run(Executor& home, Shape shape, std::vector<std::unique_ptr<Fork>>& forks)
      : home_(home), shape_(shape), random_(shape.seed), forks_(forks) {}

  Task<void> go() {
    Bench bench = co_await open_bench(home_, primary_, shape_.mirrored ? &mirror_ : nullptr,
                                      shape_.durability);
    CHECK(bench.recovery.writes.empty());
    CHECK(bench.recovery.lost.empty());
    const Error accepted = co_await bench.memory->accept();
    CHECK(accepted == Error::kNone);
    bench.primary->observe_stores([this] { maybe_fork(); });
    if (bench.mirror) bench.mirror->observe_stores([this] { maybe_fork(); });
    // One that stays as long as the log lives.
    co_await write(*bench.memory, {.first = 0, .block_count = 1});
    const Written pinned = live_.front();
    live_.clear();
    for (std::size_t step = 0; step < shape_.steps; ++step) {
      if (live_.size() > 20 || (!live_.empty() && random_.chance(0.4))) {
        release_oldest(*bench.memory);
      } else {
        const std::uint64_t first = 1 + random_.below(kBlocks - 1);
        co_await write(
            *bench.memory,
            {.first = first,
             .block_count = 1 + random_.below(std::min<std::uint64_t>(40, kBlocks - first))});
      }
    }
    CHECK(bench.memory->subject(pinned.id).extent.first == 0);
    bench.primary->observe_stores(nullptr);
    if (bench.mirror) bench.mirror->observe_stores(nullptr);
    if (shape_.durability == Durability::kHost) co_await home_.sleep_for(std::chrono::seconds(1));
  }

 private:
  void maybe_fork() {
    if (!random_.chance(0.004)) return;
    auto fork = std::make_unique<Fork>();
    fork->primary = primary_;
    fork->mirror = mirror_;
    fork->model = model_;
    forks_.push_back(std::move(fork));
  }

  Task<void> write(WriteMemory& memory, Extent extent) {
    const std::uint32_t number = ++numbers_;
    BufferList data = home_.buffers().try_allocate(extent.byte_count(kBlockBytes));
    std::vector<std::uint32_t> words(data.byte_count() / sizeof number, number);
    data.copy_from(std::as_bytes(std::span(words)));
    BufferList placed = co_await memory.place(std::move(data));
    CHECK(memory.holds(placed));
    for (Lba lba = extent.first; lba < extent.end(); ++lba) model_.in_flight[lba] = number;
    const WriteSubject subject{
        .device = kDevice, .volume = 7, .block_bytes = kBlockBytes, .extent = extent};
    const auto id = co_await memory.append(subject, std::move(placed));
    REQUIRE(id.has_value());
    model_.in_flight = {};
    for (Lba lba = extent.first; lba < extent.end(); ++lba) model_.acknowledged[lba] = number;
    live_.push_back({*id, extent, number});
  }

  // Oldest first, each after its content is on the drives.
  void release_oldest(WriteMemory& memory) {
    const Written written = live_.front();
    live_.pop_front();
    for (Lba lba = written.extent.first; lba < written.extent.end(); ++lba) {
      model_.drives[lba] = written.number;
    }
    memory.release(written.id);
  }

  Executor& home_;
  Shape shape_;
  Random random_;
  std::vector<std::unique_ptr<Fork>>& forks_;
  SimulatedBoard primary_{kImageBytes};
  SimulatedBoard mirror_{kImageBytes};
  Model model_;
  std::deque<Written> live_;
  std::uint32_t numbers_ = 0;
};

Task<void> run_here(Executor& home, Shape shape, std::vector<std::unique_ptr<Fork>>* forks) {
  Run body(home, shape, *forks);
  co_await body.go();
}

std::vector<std::unique_ptr<Fork>> run(Shape shape) {
  std::vector<std::unique_ptr<Fork>> forks;
  run_in_world(shape.seed, [&](Executor& home) { return run_here(home, shape, &forks); });
  REQUIRE(forks.size() > 1);
  return forks;
}

// The checks ------------------------------------------------------------------------------------

// Blocks of acknowledged writes that are listed as lost; all of them if it is not known which.
std::array<bool, kBlocks> lost_blocks(const WriteRecovery& recovery) {
  std::array<bool, kBlocks> lost{};
  for (const LostWrite& write : recovery.lost) {
    CHECK_FALSE(write.why.empty());
    if (!write.known) {
      lost.fill(true);
      continue;
    }
    CHECK(write.subject.device == kDevice);
    CHECK(write.subject.volume == 7);
    for (Lba lba = write.subject.extent.first; lba < write.subject.extent.end(); ++lba) {
      lost.at(lba) = true;
    }
  }
  return lost;
}

// Lays the recovered writes over the drives; every block is right or listed.
void check_recovery(const WriteRecovery& recovery, const Model& model, bool may_lose) {
  Content content = model.drives;
  for (const RecoveredWrite& write : recovery.writes) {
    std::vector<std::byte> bytes(write.data.byte_count());
    write.data.copy_to(bytes);
    REQUIRE(bytes.size() == write.subject.extent.block_count * kBlockBytes);
    std::uint32_t number = 0;
    std::memcpy(&number, bytes.data(), sizeof number);
    // All of it is the same number: each word equals the next.
    REQUIRE(std::equal(bytes.begin() + sizeof number, bytes.end(), bytes.begin()));
    for (Lba lba = write.subject.extent.first; lba < write.subject.extent.end(); ++lba) {
      content.at(lba) = number;
    }
  }
  const auto lost = lost_blocks(recovery);
  for (std::size_t lba = 0; lba < kBlocks; ++lba) {
    const bool right = content[lba] == model.acknowledged[lba] ||
                       (model.in_flight[lba] != 0 && content[lba] == model.in_flight[lba]);
    if (right || (may_lose && lost[lba])) continue;
    FAIL("block " << lba << " is " << content[lba] << "; acknowledged " << model.acknowledged[lba]
                  << ", in flight " << model.in_flight[lba] << ", drives " << model.drives[lba]);
  }
  if (!may_lose) REQUIRE(recovery.lost.empty());
}

// Opens the fork twice: killed before it has accepted, and afterwards.
Task<void> check_fork(Executor& home, Fork& fork, Shape shape, const char* boot_id, bool may_lose) {
  SimulatedBoard* const mirror = shape.mirrored ? &fork.mirror : nullptr;
  std::size_t found = 0;
  {
    const Bench bench = co_await open_bench(home, fork.primary, mirror, shape.durability, boot_id);
    check_recovery(bench.recovery, fork.model, may_lose);
    found = bench.recovery.writes.size();
  }
  {
    Bench bench = co_await open_bench(home, fork.primary, mirror, shape.durability, boot_id);
    check_recovery(bench.recovery, fork.model, may_lose);
    CHECK(bench.recovery.writes.size() == found);
    const Error accepted = co_await bench.memory->accept();
    CHECK(accepted == Error::kNone);
    CHECK(bench.memory->live_writes() == found);
  }
  Bench bench = co_await open_bench(home, fork.primary, mirror, shape.durability, boot_id);
  CHECK(bench.recovery.lost.empty());  // Told once.
  CHECK(bench.recovery.writes.size() == found);
  const Error accepted = co_await bench.memory->accept();
  CHECK(accepted == Error::kNone);
  for (RecoveredWrite& write : bench.recovery.writes) {
    write.data.clear();
    bench.memory->release(write.id);
  }
  CHECK(bench.memory->live_writes() == 0);
  if (shape.durability == Durability::kHost) co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(bench.memory->buffers().used_bytes() == 0);
  co_await bench.memory->stop();
}

void check(Fork& fork, Shape shape, const char* boot_id, bool may_lose) {
  run_in_world(shape.seed,
               [&](Executor& home) { return check_fork(home, fork, shape, boot_id, may_lose); });
}

struct Counted {
  std::size_t lost = 0;
  std::size_t from_mirror = 0;
};

Task<void> count_here(Executor& home, Fork* fork, Shape shape, Counted* counted) {
  const Bench bench = co_await open_bench(
      home, fork->primary, shape.mirrored ? &fork->mirror : nullptr, shape.durability);
  *counted = {.lost = bench.recovery.lost.size(), .from_mirror = bench.recovery.from_mirror};
}

Counted count_recovered(std::uint64_t seed, Fork& fork, Shape shape) {
  Counted counted;
  run_in_world(seed, [&](Executor& home) { return count_here(home, &fork, shape, &counted); });
  return counted;
}

Task<void> go_on_without_mirror(Executor& home, Fork* fork, Shape shape) {
  Bench bench = co_await open_bench(home, fork->primary, nullptr, shape.durability);
  const Error accepted = co_await bench.memory->accept();
  CHECK(accepted == Error::kNone);
  for (RecoveredWrite& write : bench.recovery.writes) {
    write.data.clear();
    bench.memory->release(write.id);
  }
  co_await bench.memory->stop();
}

Task<void> come_back_with_stale_mirror(Executor& home, Fork* fork, Shape shape) {
  auto primary =
      co_await open_board(home, fork->primary, options_of("a", shape.durability, "boot-1"));
  auto mirror =
      co_await open_board(home, fork->mirror, options_of("b", shape.durability, "boot-1"));
  const WriteMemoryOptions options{.data_bytes = kDataBytes,
                                   .log_bytes = kLogBytes,
                                   .slab_bytes = kSlabBytes,
                                   .mirror_is_stale = true};
  auto memory = co_await WriteMemory::open(primary.get(), mirror.get(), options);
  REQUIRE(memory.has_value());
  const WriteRecovery recovery = (*memory)->recover();
  CHECK(recovery.writes.empty());
  CHECK(recovery.lost.empty());
  const Error accepted = co_await (*memory)->accept();
  CHECK(accepted == Error::kNone);
  CHECK((*memory)->mirrored());
  co_await (*memory)->stop();
}

}  // namespace

TEST_CASE("Killed at any store, every acknowledged write comes back, in order", "[write_memory]") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const Shape shape{.seed = seed,
                      .durability = seed % 2 == 0 ? Durability::kHost : Durability::kProcess,
                      .mirrored = seed % 3 == 0};
    CAPTURE(seed);
    for (const auto& fork : run(shape)) check(*fork, shape, "boot-1", false);
  }
}

TEST_CASE("After a crash of the host, durability host keeps all and process says what is lost",
          "[write_memory]") {
  for (std::uint64_t seed = 21; seed <= 26; ++seed) {
    const Shape shape{.seed = seed,
                      .durability = seed % 2 == 0 ? Durability::kHost : Durability::kProcess,
                      .mirrored = seed % 3 == 0};
    CAPTURE(seed);
    Random random(seed);
    bool lost_any = false;
    for (const auto& fork : run(shape)) {
      fork->primary.crash_host(random);
      fork->mirror.crash_host(random);
      check(*fork, shape, "boot-2", shape.durability == Durability::kProcess);
      lost_any = lost_any || shape.durability == Durability::kProcess;
    }
    CHECK(lost_any == (seed % 2 == 1));
  }
}

TEST_CASE("A power cut costs what the batteries do not hold", "[write_memory]") {
  for (std::uint64_t seed = 41; seed <= 46; ++seed) {
    const Shape shape{.seed = seed, .mirrored = seed % 2 == 0};
    CAPTURE(seed);
    std::size_t losses = 0;
    for (const auto& fork : run(shape)) {
      fork->primary.cut_power(seed % 3 == 0 ? BatteryState::kGood : BatteryState::kDead);
      fork->mirror.cut_power(BatteryState::kGood);
      const Counted counted = count_recovered(seed, *fork, shape);
      losses += counted.lost;
      CHECK((counted.from_mirror > 0) == (shape.mirrored && seed % 3 != 0));
      check(*fork, shape, "boot-1", !shape.mirrored && seed % 3 != 0);
    }
    // The battery or the mirror: each of them changes the outcome.
    CHECK((losses == 0) == (shape.mirrored || seed % 3 == 0));
  }
}

TEST_CASE("Damage is never returned: it comes from the mirror or is listed", "[write_memory]") {
  for (std::uint64_t seed = 61; seed <= 72; ++seed) {
    const Shape shape{.seed = seed, .mirrored = seed % 2 == 0, .steps = 200};
    CAPTURE(seed);
    Random random(seed);
    for (const auto& fork : run(shape)) {
      const std::span<std::byte> image = fork->primary.memory();
      const std::uint64_t page = 2 + random.below(kImageBytes / nvram::kPageBytes - 2);
      if (seed % 4 < 2) {
        nvram::damage_page(image, page, random);
      } else {
        nvram::flip_bits(image.subspan(2 * nvram::kPageBytes), 6, random);
      }
      check(*fork, shape, "boot-1", !shape.mirrored);
    }
  }
}

TEST_CASE("A stale mirror is not looked at", "[write_memory]") {
  const Shape shape{.seed = 91, .mirrored = true};
  auto forks = run(shape);
  Fork& fork = *forks.back();
  run_in_world(1, [&](Executor& home) { return go_on_without_mirror(home, &fork, shape); });
  run_in_world(1, [&](Executor& home) { return come_back_with_stale_mirror(home, &fork, shape); });
}

}  // namespace sandbay::cache::write_memory_test
