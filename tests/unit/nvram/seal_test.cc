// What has gone back to an earlier content, and damage at two places at once: nothing that was
// released comes back, and whatever is not returned is reported.
#include "nvram/log_seal.h"

#include <rapidcheck.h>
#include <catch2/catch.hpp>

#include "log_model.h"
#include "nvram/damage.h"
#include "nvram/image_layout.h"
#include "nvram/record_layout.h"

namespace sandbay::nvram {
namespace {

constexpr std::uint64_t kLogId = 77;
constexpr std::uint64_t kFirstSealPage = kSealOffset / kPageBytes;
constexpr std::uint64_t kPages = kImageBytes / kPageBytes;

using Sequences = std::vector<std::uint64_t>;

std::uint64_t sum_of(const Sequences& sequences) {
  std::uint64_t sum = 0;
  for (const std::uint64_t sequence : sequences) sum += seal_hash(kLogId, sequence);
  return sum % (std::uint64_t{1} << 48U);
}

// A run of a log, and what it was like before.
struct History {
  SimulatedBoard board{kImageBytes};
  std::vector<SimulatedBoard> earlier;
  std::map<std::uint64_t, RecordId> live;  // By number.
};

Task<void> work(Executor& home, History& history, Random random, int operations) {
  Bench bench = co_await start_bench(home, history.board, options_for(Durability::kProcess));
  std::uint64_t next = 1;
  for (int operation = 0; operation < operations; ++operation) {
    if (random.chance(0.15)) history.earlier.push_back(history.board);
    const bool full = bench.log->used_bytes() > bench.log->capacity_bytes() * 3 / 4;
    if (!full && random.chance(0.55)) {
      const Result<RecordId> id = co_await append(*bench.log, next);
      REQUIRE(id.has_value());
      history.live[next++] = *id;
      continue;
    }
    for (std::uint64_t count = full ? random.between(1, 8) : 1; count != 0 && !history.live.empty();
         --count) {
      // Mostly among the oldest, as journals do.
      const std::uint64_t most = random.chance(0.7) ? 1 : history.live.size();
      const auto at =
          std::next(history.live.begin(), static_cast<std::ptrdiff_t>(random.below(most)));
      bench.log->release(at->second);
      history.live.erase(at);
    }
  }
}

Task<void> append_three(Executor& home, History& history) {
  const Bench bench = co_await start_bench(home, history.board, options_for(Durability::kProcess));
  for (std::uint64_t number = 1; number <= 3; ++number) {
    const Result<RecordId> id = co_await append(*bench.log, number);
    REQUIRE(id.has_value());
    history.live[number] = *id;
  }
}

History make_history(std::uint64_t seed, int operations = 80) {
  History history;
  history.earlier.push_back(history.board);
  run_in_world(seed, [&](Executor& home) { return work(home, history, Random(seed), operations); });
  return history;
}

void go_back(std::span<std::byte> image, std::span<const std::byte> earlier,
             std::uint64_t first_page) {
  for (std::uint64_t page = first_page; page < kPages; ++page) restore_page(image, earlier, page);
}

// Returns the page of the seal that went back, or 0.
std::uint64_t strike(History& history, Random& random) {
  const std::span<std::byte> image = history.board.memory();
  SimulatedBoard& earlier = history.earlier[random.below(history.earlier.size())];
  const std::uint64_t page = random.below(kPages);
  switch (random.below(4)) {
    case 0:
      damage_page(image, page, random);
      return 0;
    case 1:
      flip_bits(image.subspan(page * kPageBytes, kPageBytes), random.between(1, 3), random);
      return 0;
    case 2:
      if (page < kFirstSealPage) return 0;  // An older header is one of this image.
      restore_page(image, earlier.memory(), page);
      return page < kHeaderBytes / kPageBytes ? page : 0;
    default:
      go_back(image, earlier.memory(), kHeaderBytes / kPageBytes);
      return 0;
  }
}

bool reported(const Recovery& recovery, std::uint64_t number, RecordId id) {
  return std::ranges::any_of(recovery.lost, [&](const LostRecord& lost) {
    if (lost.described) return number_in(lost.descriptor) == number;
    return id.sequence >= lost.first_sequence &&
           id.sequence < lost.first_sequence + lost.record_count;
  });
}

Task<void> look(Executor& home, History& history, bool& told) {
  auto opened = co_await Nvram::open(home, history.board, options_for(Durability::kProcess));
  if (!opened.has_value()) {
    CHECK_FALSE(opened.error().empty());
    told = true;
    co_return;
  }
  opened->reset();
  std::set<std::uint64_t> found;
  {
    Bench bench = co_await open_bench(home, history.board, options_for(Durability::kProcess));
    const Recovery& recovery = bench.recovery;
    found = numbers_of(recovery);
    for (const std::uint64_t number : found) REQUIRE(history.live.contains(number));
    for (const auto& [number, id] : history.live) {
      if (found.contains(number) || recovery.control_lost || bench.region->is_new()) continue;
      REQUIRE(reported(recovery, number, id));
      REQUIRE_FALSE(recovery.whole());
    }
    told = !recovery.whole();
    co_await accept(bench);
    const Result<RecordId> id = co_await append(*bench.log, 1'000'000);
    REQUIRE(id.has_value());
  }
  const Bench bench = co_await open_bench(home, history.board, options_for(Durability::kProcess));
  CHECK(bench.recovery.lost.empty());
  CHECK_FALSE(bench.recovery.control_lost);
  found.insert(1'000'000);
  CHECK(numbers_of(bench.recovery) == found);
}

bool look_at(History& history) {
  bool told = false;
  run_in_world(2, [&](Executor& home) { return look(home, history, told); });
  return told;
}

Task<void> forget_some(Executor& home, SimulatedBoard& board, std::set<std::uint64_t>& kept,
                       std::vector<SimulatedBoard>& moments) {
  Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess));
  for (const Record& record : bench.recovery.records) {
    const std::uint64_t number = number_in(record.descriptor);
    if (number % 3 == 0) {
      bench.log->forget(record.id);
    } else {
      kept.insert(number);
    }
  }
  bench.nvram->observe_stores([&] { moments.push_back(board); });
  co_await accept(bench);
  bench.nvram->observe_stores(nullptr);
  CHECK(bench.log->live_records() == kept.size());
  // Its space is free again, and what stays can be released.
  for (const Record& record : bench.recovery.records) {
    if (number_in(record.descriptor) % 3 != 0) bench.log->release(record.id);
  }
  CHECK(bench.log->used_bytes() == 0);
}

Task<void> check_forgotten(Executor& home, SimulatedBoard& board,
                           const std::set<std::uint64_t>& kept, std::size_t& forgotten) {
  const Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess));
  CHECK(bench.recovery.whole());
  const std::set<std::uint64_t> found = numbers_of(bench.recovery);
  CHECK(std::ranges::includes(found, kept));
  forgotten = found.size() - kept.size();
}

Task<void> begin_again(Executor& home, SimulatedBoard& board, std::uint64_t log_id,
                       std::vector<SimulatedBoard>& moments) {
  Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess));
  bench.nvram->observe_stores([&] { moments.push_back(board); });
  const Error error = co_await bench.log->accept_nothing(log_id);
  CHECK(error == Error::kNone);
  CHECK(bench.log->log_id() == log_id);
  CHECK(bench.log->used_bytes() == 0);
  bench.nvram->observe_stores(nullptr);
}

Task<void> old_or_empty(Executor& home, SimulatedBoard& board, const History& history) {
  const Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess));
  CHECK(bench.recovery.whole());
  const bool begun = bench.recovery.log_id == kLogId;
  CHECK(bench.recovery.records.size() == (begun ? 0 : history.live.size()));
}

}  // namespace

TEST_CASE("A seal tells which records are live, whatever is missing or has come back", "[nvram]") {
  const Sequences present = {3, 16, 29, 42, 55};
  const Sequences missing = {68, 81, 94};
  const auto with = [&](const Sequences& live) {
    return solve_seal(kLogId, sum_of(live), present, missing);
  };
  const auto check = [&](const Sequences& live) {
    const auto solution = with(live);
    REQUIRE(solution.has_value());
    for (std::size_t i = 0; i < present.size(); ++i) {
      CHECK(solution->present[i] == (std::ranges::count(live, present[i]) != 0));
    }
    for (std::size_t i = 0; i < missing.size(); ++i) {
      CHECK(solution->missing[i] == (std::ranges::count(live, missing[i]) != 0));
    }
  };
  check(present);
  check({});
  check({3, 16, 29, 42, 55, 81});
  check({3, 16, 42, 55});
  check({3, 42, 55, 68, 81, 94});
  CHECK_FALSE(with({3}).has_value());               // Four too many.
  CHECK_FALSE(with({3, 16, 29, 107}).has_value());  // One that is nowhere.
}

TEST_CASE("Two faults in one image: nothing comes back, all that is missing is reported",
          "[nvram]") {
  std::size_t told = 0;
  const bool held = rc::check("two faults are found", [&] {
    const auto seed = *rc::gen::arbitrary<std::uint32_t>();
    Random random(seed);
    History history = make_history(seed);
    const std::uint64_t first = strike(history, random);
    const std::uint64_t second = random.chance(0.8) ? strike(history, random) : 0;
    // Both copies of the seal as they were before the last append look like a kill in it.
    RC_PRE(first == 0 || second == 0 || first == second);
    if (look_at(history)) ++told;
  });
  REQUIRE(held);
  CHECK(told > 10);
}

TEST_CASE("Content of any earlier moment is not taken for what there was last", "[nvram]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    const History history = make_history(seed);
    for (const SimulatedBoard& earlier : history.earlier) {
      History back = history;
      SimulatedBoard content = earlier;
      go_back(back.board.memory(), content.memory(), kHeaderBytes / kPageBytes);
      look_at(back);
    }
  }
}

TEST_CASE("The newest record is missed without its header and the control block that counted it",
          "[nvram]") {
  History history;
  run_in_world(1, [&](Executor& home) { return append_three(home, history); });
  const auto controls = history.board.memory().subspan(kHeaderBytes, 2 * kPageBytes);
  const auto ring = history.board.memory().subspan(kHeaderBytes + 2 * kPageBytes, 4 * kPageBytes);
  const auto control = read_control(controls, ring.size());
  REQUIRE(control.has_value());
  Random random(6);
  damage_page(controls, control->slot, random);
  std::uint64_t offset = 0;
  for (; offset < ring.size(); offset += kRecordAlignment) {
    const auto header = read_record(ring, offset);
    if (header.has_value() && header->sequence == 3) break;
  }
  REQUIRE(offset < ring.size());
  ring[offset] ^= std::byte{1};
  CHECK(look_at(history));
}

TEST_CASE("What an owner forgets between recovery and accept is gone for good", "[nvram]") {
  const History history = make_history(8);
  SimulatedBoard board = history.board;
  std::set<std::uint64_t> kept;
  std::vector<SimulatedBoard> moments;
  run_in_world(2, [&](Executor& home) { return forget_some(home, board, kept, moments); });
  REQUIRE(kept.size() < history.live.size());
  std::size_t before = history.live.size() - kept.size();
  for (SimulatedBoard& moment : moments) {
    std::size_t forgotten = 0;
    run_in_world(3, [&](Executor& home) { return check_forgotten(home, moment, kept, forgotten); });
    CHECK(forgotten <= before);
    before = forgotten;
  }
  CHECK(before == 0);
}

TEST_CASE("A log that begins anew is the old one or the new one, killed anywhere", "[nvram]") {
  const History history = make_history(9);
  SimulatedBoard board = history.board;
  std::vector<SimulatedBoard> moments;
  run_in_world(2, [&](Executor& home) { return begin_again(home, board, kLogId, moments); });
  REQUIRE(moments.size() > 40);
  for (SimulatedBoard& moment : moments) {
    run_in_world(3, [&](Executor& home) { return old_or_empty(home, moment, history); });
  }
  run_in_world(3, [&](Executor& home) { return old_or_empty(home, board, history); });
}

}  // namespace sandbay::nvram
