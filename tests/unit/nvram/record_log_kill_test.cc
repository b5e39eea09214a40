// The record log against a naive model, killed at any store.
//
// The board is copied after single stores of a random run, together with what the model knows then;
// each copy is opened in a world of its own and must hold what the model says, give or take the one
// operation that was under way.
#include <rapidcheck.h>
#include <catch2/catch.hpp>

#include "log_model.h"

namespace sandbay::nvram::record_log_kill_test {
namespace {

struct Model {
  std::map<std::uint64_t, RecordId> live;  // By number.
  std::uint64_t next = 1;
  std::uint64_t appending = 0;  // 0: nothing is under way.
  std::uint64_t releasing = 0;
};

struct Moment {
  SimulatedBoard board;
  Model model;
};

void check_recovery(const Recovery& recovery, const Model& model) {
  REQUIRE(recovery.whole());
  REQUIRE(recovery.lost.empty());
  std::set<std::uint64_t> found = numbers_of(recovery);
  if (model.appending != 0) found.erase(model.appending);
  std::set<std::uint64_t> expected;
  for (const auto& [number, id] : model.live) expected.insert(number);
  if (model.releasing != 0) {
    found.erase(model.releasing);
    expected.erase(model.releasing);
  }
  REQUIRE(found == expected);
}

std::uint64_t pick(const Model& model, Random& random) {
  // Mostly among the oldest, as journals do, but in any order.
  const std::uint64_t most =
      random.chance(0.7) ? std::min<std::size_t>(3, model.live.size()) : model.live.size();
  return std::next(model.live.begin(), static_cast<std::ptrdiff_t>(random.below(most)))->first;
}

void release_one(Bench& bench, Model& model, Random& random) {
  const std::uint64_t number = pick(model, random);
  model.releasing = number;
  bench.log->release(model.live[number]);
  model.live.erase(number);
  model.releasing = 0;
}

Task<void> append_one(Bench& bench, Model& model) {
  model.appending = model.next;
  const Result<RecordId> id = co_await append(*bench.log, model.appending);
  REQUIRE(id.has_value());
  model.live[model.next++] = *id;
  model.appending = 0;
}

// An append that finds no room waits while others are released: now and then all of them, so that
// the record stands where they stood.
Task<void> random_operations(Executor& home, Bench& bench, Model& model, Random& random,
                             int count) {
  for (int operation = 0; operation < count; ++operation) {
    if (!model.live.empty() && random.chance(0.4)) {
      release_one(bench, model, random);
      continue;
    }
    spawn(append_one(bench, model));
    while (model.appending != 0) {
      std::uint64_t releases = random.chance(0.3) ? model.live.size() : 1;
      const bool waits = bench.log->waiting_appends() != 0;
      for (; waits && !model.live.empty() && releases != 0; --releases) {
        release_one(bench, model, random);
      }
      co_await home.sleep_for(std::chrono::microseconds(10));
    }
  }
}

// After a kill: what the model holds is read back and used on.
Task<void> reopen(Executor& home, SimulatedBoard& board, NvramOptions options, Bench& bench,
                  Model& model) {
  bench.log.reset();
  bench.region.reset();
  bench.nvram.reset();
  bench = co_await open_bench(home, board, std::move(options));
  check_recovery(bench.recovery, model);
  model.live.clear();
  for (const Record& record : bench.recovery.records) {
    model.live[number_in(record.descriptor)] = record.id;
  }
  co_await accept(bench);
}

Task<void> killed_run(Executor& home, std::uint64_t seed, Durability durability,
                      std::vector<Moment>& moments) {
  Random random(seed);
  SimulatedBoard board(kImageBytes);
  Model model;
  Bench bench = co_await start_bench(home, board, options_for(durability));
  for (int round = 0; round < 4; ++round) {
    bench.nvram->observe_stores([&] {
      if (random.chance(0.04)) moments.push_back({board, model});
    });
    co_await random_operations(home, bench, model, random, 40);
    bench.nvram->observe_stores(nullptr);
    co_await reopen(home, board, options_for(durability), bench, model);
  }
}

Task<void> check_moment(Executor& home, Moment& moment, Durability durability) {
  const Bench bench = co_await open_bench(home, moment.board, options_for(durability));
  check_recovery(bench.recovery, moment.model);
}

void kill_anywhere(Durability durability) {
  const bool held = rc::check("killed at any store, the log holds what it must", [&] {
    const auto seed = *rc::gen::arbitrary<std::uint32_t>();
    std::vector<Moment> moments;
    run_in_world(seed, [&](Executor& home) { return killed_run(home, seed, durability, moments); });
    RC_ASSERT(moments.size() > 10);
    for (Moment& moment : moments) {
      run_in_world(seed, [&](Executor& home) { return check_moment(home, moment, durability); });
    }
  });
  REQUIRE(held);
}

// What a recovery stores itself: killed anywhere in it, the next one finds the same.
Task<void> prepare(Executor& home, SimulatedBoard& board, Model& model) {
  Random random(5);
  Bench bench = co_await start_bench(home, board, options_for(Durability::kProcess));
  co_await random_operations(home, bench, model, random, 60);
}

Task<void> recover_watched(Executor& home, SimulatedBoard& board, std::vector<SimulatedBoard>& at) {
  Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess));
  bench.nvram->observe_stores([&] { at.push_back(board); });
  co_await accept(bench);
  bench.nvram->observe_stores(nullptr);
}

Task<void> check_board(Executor& home, SimulatedBoard& board, const Model& model) {
  const Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess));
  check_recovery(bench.recovery, model);
}

}  // namespace

TEST_CASE("Killed at any store, a log of this process holds what the model holds", "[nvram]") {
  kill_anywhere(Durability::kProcess);
}

TEST_CASE("Killed at any store, a log for the host holds what the model holds", "[nvram]") {
  kill_anywhere(Durability::kHost);
}

TEST_CASE("Killed at any store and again anywhere in the recovery", "[nvram]") {
  std::vector<Moment> moments;
  run_in_world(7,
               [&](Executor& home) { return killed_run(home, 7, Durability::kProcess, moments); });
  for (Moment& moment : moments) {
    std::vector<SimulatedBoard> boards;
    run_in_world(2, [&](Executor& home) { return recover_watched(home, moment.board, boards); });
    for (SimulatedBoard& at : boards) {
      run_in_world(3, [&](Executor& home) { return check_board(home, at, moment.model); });
    }
  }
}

TEST_CASE("Killed anywhere in a recovery, the next one finds the same", "[nvram]") {
  SimulatedBoard board(kImageBytes);
  Model model;
  run_in_world(1, [&](Executor& home) { return prepare(home, board, model); });
  std::vector<SimulatedBoard> boards;
  run_in_world(2, [&](Executor& home) { return recover_watched(home, board, boards); });
  REQUIRE(boards.size() > 10);
  for (SimulatedBoard& at : boards) {
    run_in_world(3, [&](Executor& home) { return check_board(home, at, model); });
  }
}

}  // namespace sandbay::nvram::record_log_kill_test
