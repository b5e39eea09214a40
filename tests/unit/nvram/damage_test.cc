// Power cuts with each state of the battery, and damage on command: what was lost is reported, by
// descriptor where one can be read, nothing else is lost, and nothing wrong is handed out.
#include "nvram/damage.h"
#include "nvram/image_layout.h"

#include <rapidcheck.h>
#include <catch2/catch.hpp>

#include "log_model.h"

namespace sandbay::nvram {
namespace {

constexpr std::uint64_t kRecords = 9;
constexpr std::uint64_t kRingOffset = kHeaderBytes + 2 * kPageBytes;  // Behind control blocks.

Task<void> fill(Executor& home, SimulatedBoard& board) {
  Bench bench = co_await start_bench(home, board, options_for(Durability::kProcess));
  for (std::uint64_t number = 1; number <= kRecords; ++number) {
    const Result<RecordId> id = co_await append(*bench.log, number);
    REQUIRE(id.has_value());
  }
}

SimulatedBoard filled_board() {
  SimulatedBoard board(kImageBytes);
  run_in_world(1, [&](Executor& home) { return fill(home, board); });
  return board;
}

std::set<std::uint64_t> all_numbers() {
  std::set<std::uint64_t> numbers;
  for (std::uint64_t number = 1; number <= kRecords; ++number) numbers.insert(number);
  return numbers;
}

// Sequences and numbers are the same in a log that was filled once.
std::set<std::uint64_t> lost_numbers(const Recovery& recovery) {
  std::set<std::uint64_t> numbers;
  for (const LostRecord& lost : recovery.lost) {
    CHECK(lost.acknowledged);
    if (lost.described) {
      REQUIRE(number_in(lost.descriptor) == lost.first_sequence);
      CHECK(same(lost.descriptor, content_of(lost.first_sequence).descriptor));
    }
    for (std::uint64_t i = 0; i < lost.record_count; ++i) {
      REQUIRE(numbers.insert(lost.first_sequence + i).second);
    }
  }
  return numbers;
}

// Found and lost together are what there was; a second look after accept() finds no loss any more.
Task<void> check_damaged(Executor& home, SimulatedBoard& board, std::set<std::uint64_t>& lost) {
  std::set<std::uint64_t> found;
  {
    Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess));
    REQUIRE_FALSE(bench.recovery.control_lost);
    found = numbers_of(bench.recovery);
    lost = lost_numbers(bench.recovery);
    CHECK(bench.recovery.whole() == lost.empty());
    std::set<std::uint64_t> together = found;
    together.insert(lost.begin(), lost.end());
    CHECK(together == all_numbers());
    CHECK(together.size() == found.size() + lost.size());
    co_await accept(bench);
    const Result<RecordId> id = co_await append(*bench.log, kRecords + 1);
    REQUIRE(id.has_value());
    CHECK(id->sequence == kRecords + 1);
  }
  const Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess));
  CHECK(bench.recovery.lost.empty());
  found.insert(kRecords + 1);
  CHECK(numbers_of(bench.recovery) == found);
}

std::set<std::uint64_t> lost_from(SimulatedBoard& board) {
  std::set<std::uint64_t> lost;
  run_in_world(2, [&](Executor& home) { return check_damaged(home, board, lost); });
  return lost;
}

Task<void> after_cut(Executor& home, SimulatedBoard& board, BatteryState battery) {
  Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess));
  if (battery == BatteryState::kGood) {
    CHECK(bench.recovery.whole());
    CHECK(numbers_of(bench.recovery) == all_numbers());
    co_return;
  }
  CHECK(bench.region->loss() == Loss::kPowerCut);
  CHECK(bench.recovery.region_loss == Loss::kPowerCut);
  CHECK(bench.recovery.records.empty());
  CHECK(lost_numbers(bench.recovery) == all_numbers());
  co_await accept(bench);
  CHECK(bench.region->loss() == Loss::kNone);
  CHECK(bench.log->used_bytes() == 0);
}

Task<void> cut_while_running(Executor& home, SimulatedBoard& board, BatteryState battery) {
  Bench bench = co_await start_bench(home, board, options_for(Durability::kProcess));
  bench.nvram->battery().set_state(battery);
  bench.nvram->cut_power();
  CHECK(bench.nvram->failure() == Error::kHardware);
  const Result<RecordId> id = co_await append(*bench.log, 77);
  REQUIRE_FALSE(id.has_value());
  CHECK(id.error() == Error::kHardware);
  bench.log->release(bench.recovery.records[0].id);  // Reaches nothing any more.
}

Task<void> no_control(Executor& home, SimulatedBoard& board, bool described) {
  {
    Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess));
    CHECK(bench.recovery.control_lost);
    CHECK_FALSE(bench.recovery.whole());
    CHECK(bench.recovery.records.empty());
    CHECK(lost_numbers(bench.recovery) == (described ? all_numbers() : std::set<std::uint64_t>{}));
    co_await accept(bench);
  }
  const Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess));
  CHECK(bench.recovery.whole());
  CHECK(bench.recovery.records.empty());
}

Task<void> old_copy(Executor& home, SimulatedBoard& board) {
  const SimulatedBoard copy = board;
  NvramOptions options = options_for(Durability::kProcess);
  {
    const auto nvram = co_await Nvram::open(home, board, options);
    REQUIRE(nvram.has_value());
    std::array<std::byte, 16> other = (*nvram)->uuid();
    other[0] ^= std::byte{1};
    options.least_open_counts[other] = 7;  // Says nothing of this one.
    options.least_open_counts[(*nvram)->uuid()] = (*nvram)->open_count();
  }
  {
    const Bench bench = co_await open_bench(home, board, options);
    CHECK(bench.region->loss() == Loss::kNone);
  }
  board = copy;
  const Bench bench = co_await open_bench(home, board, options);
  CHECK(bench.region->loss() == Loss::kStale);
  CHECK(lost_numbers(bench.recovery) == all_numbers());
  CHECK(bench.recovery.records.empty());
}

Task<void> volatile_or_not(Executor& home, SimulatedBoard& board, NvramOptions options,
                           bool expected) {
  const auto nvram = co_await Nvram::open(home, board, std::move(options));
  REQUIRE(nvram.has_value());
  std::vector<BatteryState> told;
  Battery& battery = (*nvram)->battery();
  {
    const Battery::Observer observer(battery, [&](BatteryState state) { told.push_back(state); });
    CHECK((*nvram)->non_volatile() == expected);
    battery.set_state(BatteryState::kLow);
    CHECK_FALSE((*nvram)->non_volatile());
    battery.set_state(BatteryState::kLow);
    battery.set_state(BatteryState::kDead);
    CHECK_FALSE((*nvram)->non_volatile());
    battery.set_state(BatteryState::kGood);
    CHECK((*nvram)->non_volatile() == expected);
  }
  battery.set_state(BatteryState::kDead);
  CHECK(told == std::vector{BatteryState::kLow, BatteryState::kDead, BatteryState::kGood});
}

}  // namespace

TEST_CASE("A power cut loses the content iff the battery is not good", "[nvram]") {
  for (const auto battery : {BatteryState::kGood, BatteryState::kLow, BatteryState::kDead}) {
    SimulatedBoard board = filled_board();
    SimulatedBoard running = board;
    board.cut_power(battery);
    run_in_world(2, [&](Executor& home) { return after_cut(home, board, battery); });
    run_in_world(3, [&](Executor& home) { return cut_while_running(home, running, battery); });
    run_in_world(4, [&](Executor& home) { return after_cut(home, running, battery); });
  }
}

TEST_CASE("A damaged page costs only the records on it", "[nvram]") {
  const SimulatedBoard board = filled_board();
  Random random(3);
  for (std::uint64_t page = 0; page < kImageBytes / kPageBytes; ++page) {
    SimulatedBoard damaged = board;
    damage_page(damaged.memory(), page, random);
    const std::set<std::uint64_t> lost = lost_from(damaged);
    const bool in_ring = page * kPageBytes >= kRingOffset;
    if (!in_ring) CHECK(lost.empty());
    if (page == kRingOffset / kPageBytes) CHECK(lost.contains(1));
    CHECK(lost.size() < kRecords);
  }
}

TEST_CASE("Every record on a page of older content is missed", "[nvram]") {
  SimulatedBoard empty(kImageBytes);
  const SimulatedBoard board = filled_board();
  SimulatedBoard damaged = board;
  restore_page(damaged.memory(), empty.memory(), kRingOffset / kPageBytes);
  CHECK(lost_from(damaged).contains(1));
}

TEST_CASE("A bit that flipped costs at most one record, or nothing", "[nvram]") {
  const SimulatedBoard board = filled_board();
  const bool held = rc::check("a flipped bit is found", [&] {
    SimulatedBoard damaged = board;
    Random random(*rc::gen::arbitrary<std::uint64_t>());
    flip_bits(damaged.memory().subspan(kRingOffset, 12 * 1024), 1, random);
    RC_ASSERT(lost_from(damaged).size() <= 1);
    SimulatedBoard other = board;
    flip_bits(other.memory().first(kRingOffset), 1, random);
    RC_ASSERT(lost_from(other).empty());
  });
  REQUIRE(held);
}

TEST_CASE("A log without its control blocks returns nothing and lists what it finds", "[nvram]") {
  SimulatedBoard board = filled_board();
  Random random(8);
  damage_page(board.memory(), kHeaderBytes / kPageBytes, random);
  damage_page(board.memory(), kHeaderBytes / kPageBytes + 1, random);
  run_in_world(2, [&](Executor& home) { return no_control(home, board, true); });
  SimulatedBoard lost = filled_board();
  lose_contents(lost.memory());
  run_in_world(2, [&](Executor& home) { return no_control(home, lost, false); });
}

TEST_CASE("An image that is older than the last one used is not believed", "[nvram]") {
  SimulatedBoard board = filled_board();
  run_in_world(2, [&](Executor& home) { return old_copy(home, board); });
}

TEST_CASE("Memory is non-volatile with a good battery and nothing left that could lose it",
          "[nvram]") {
  for (const auto durability : {Durability::kProcess, Durability::kHost}) {
    for (const bool emulated : {false, true}) {
      SimulatedBoard board(kImageBytes);
      NvramOptions options = options_for(durability);
      options.power_loss_only_emulated = emulated;
      run_in_world(1, [&](Executor& home) {
        return volatile_or_not(home, board, options, emulated || durability == Durability::kHost);
      });
    }
  }
}

}  // namespace sandbay::nvram
