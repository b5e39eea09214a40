// Crashes of the host: with durability host, every acknowledged record survives whatever subset of
// sectors reached the medium, and no release is undone out of order; with durability process,
// nothing is trusted and everything is listed.
#include <rapidcheck.h>
#include <catch2/catch.hpp>

#include "log_model.h"

namespace sandbay::nvram::host_crash_test {
namespace {

constexpr std::uint64_t kPlaces = 4;  // A record is about place number % kPlaces.

struct Model {
  std::map<std::uint64_t, RecordId> live;  // Acknowledged, not released.
  std::set<std::uint64_t> acknowledged;    // Ever.
  std::set<std::uint64_t> released;
  std::set<std::uint64_t> gone;  // Released before a flush_releases() that ended.
  std::uint64_t next = 1;
};

struct Moment {
  SimulatedBoard board;
  Model model;
};

struct Run {
  SimulatedBoard board{kImageBytes};
  Bench bench;
  Model model;
  Random random{1};
  std::vector<Moment> moments;
  Gate gate;
};

Task<void> one_append(Run& run) {
  const std::uint64_t number = run.model.next++;
  const Result<RecordId> id = co_await append(*run.bench.log, number);
  REQUIRE(id.has_value());
  run.model.live[number] = *id;
  run.model.acknowledged.insert(number);
  run.gate.leave();
}

Task<void> one_flush(Run& run) {
  const std::set<std::uint64_t> before = run.model.released;
  const Error error = co_await run.bench.log->flush_releases();
  REQUIRE(error == Error::kNone);
  run.model.gone.insert(before.begin(), before.end());
  run.gate.leave();
}

// The oldest live record of some place.
void one_release(Run& run) {
  const std::uint64_t place = run.random.below(kPlaces);
  for (const auto& [number, id] : run.model.live) {
    if (number % kPlaces != place) continue;
    run.model.released.insert(number);
    run.bench.log->release(id);
    run.model.live.erase(number);
    return;
  }
}

Task<void> busy(Executor& home, Run& run) {
  run.bench = co_await start_bench(home, run.board, options_for(Durability::kHost));
  run.bench.nvram->observe_stores([&run] {
    if (run.random.chance(0.03)) run.board.write_back(run.random);
    if (run.random.chance(0.03)) run.moments.push_back({run.board, run.model});
  });
  for (int operation = 0; operation < 150; ++operation) {
    const std::uint64_t kind = run.random.below(10);
    if (kind < 4) {
      if (!run.gate.enter()) FAIL("closed");
      spawn(one_append(run));
    } else if (kind < 8) {
      one_release(run);
    } else if (kind == 8) {
      if (!run.gate.enter()) FAIL("closed");
      spawn(one_flush(run));
    } else {
      co_await home.sleep_for(std::chrono::microseconds(run.random.below(300)));
    }
    if (run.bench.log->waiting_appends() > 3) {
      while (!run.model.live.empty()) one_release(run);
      co_await home.sleep_for(std::chrono::milliseconds(2));
    }
  }
  // Whoever still waits for room gets it.
  while (run.gate.count() != 0) {
    while (!run.model.live.empty()) one_release(run);
    co_await home.sleep_for(std::chrono::milliseconds(1));
  }
  run.bench.nvram->observe_stores(nullptr);
  run.bench.log.reset();
  run.bench.region.reset();
  run.bench.nvram.reset();
}

void check_survivors(const Recovery& recovery, const Model& model) {
  REQUIRE(recovery.region_loss == Loss::kNone);
  REQUIRE(recovery.whole());
  const std::set<std::uint64_t> found = numbers_of(recovery);
  for (const auto& [number, id] : model.live) REQUIRE(found.contains(number));
  for (const std::uint64_t number : found) {
    REQUIRE(number < model.next);
    REQUIRE_FALSE(model.gone.contains(number));
    // A release that was undone: then so were those of all newer records about that place.
    for (const std::uint64_t newer : model.released) {
      if (newer > number && newer % kPlaces == number % kPlaces) REQUIRE(found.contains(newer));
    }
  }
}

// Two crashes in a row: the second one while the first recovery goes on.
Task<void> survive(Executor& home, SimulatedBoard& board, const Model& model, Random& random) {
  for (int crash = 0; crash < 2; ++crash) {
    board.crash_host(random);
    const std::string boot = "boot-" + std::to_string(crash + 2);
    SimulatedBoard during = board;
    {
      Bench bench = co_await open_bench(home, board, options_for(Durability::kHost, boot));
      REQUIRE(bench.region->after_host_crash());
      check_survivors(bench.recovery, model);
      bench.nvram->observe_stores([&] {
        if (random.chance(0.1)) during = board;
      });
      co_await accept(bench);
      bench.nvram->observe_stores(nullptr);
    }
    {
      const Bench again = co_await open_bench(home, board, options_for(Durability::kHost, boot));
      check_survivors(again.recovery, model);
    }
    board = during;
  }
}

Task<void> fill(Executor& home, SimulatedBoard& board) {
  Bench bench = co_await start_bench(home, board, options_for(Durability::kProcess));
  for (std::uint64_t number = 1; number <= 6; ++number) {
    const Result<RecordId> id = co_await append(*bench.log, number);
    REQUIRE(id.has_value());
    if (number == 3) bench.log->release(*id);
  }
}

Task<void> all_lost(Executor& home, SimulatedBoard& board) {
  for (int attempt = 0; attempt < 2; ++attempt) {  // Until it is settled, it says so again.
    Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess, "boot-2"));
    CHECK(bench.region->loss() == Loss::kHostCrash);
    CHECK(bench.recovery.region_loss == Loss::kHostCrash);
    CHECK_FALSE(bench.recovery.whole());
    CHECK(bench.recovery.records.empty());
    std::set<std::uint64_t> listed;
    for (const LostRecord& lost : bench.recovery.lost) {
      REQUIRE(lost.described);
      listed.insert(number_in(lost.descriptor));
      CHECK(lost.payload_bytes == content_of(number_in(lost.descriptor)).payload.size());
    }
    CHECK(listed == std::set<std::uint64_t>{1, 2, 4, 5, 6});
    if (attempt == 1) co_await accept(bench);
  }
  Bench bench = co_await start_bench(home, board, options_for(Durability::kProcess, "boot-2"));
  CHECK(bench.recovery.whole());
  CHECK(bench.recovery.records.empty());
  const Result<RecordId> id = co_await append(*bench.log, 9);
  CHECK(id.has_value());
}

Task<void> close_and_restart(Executor& home, SimulatedBoard& board) {
  {
    Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess));
    co_await accept(bench);
    co_await bench.log->close();
    const Error closed = co_await bench.nvram->close();
    CHECK(closed == Error::kNone);
  }
  Random random(4);
  board.crash_host(random);
  const Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess, "boot-2"));
  CHECK(bench.recovery.whole());
  CHECK(numbers_of(bench.recovery) == std::set<std::uint64_t>{1, 2, 4, 5, 6});
}

}  // namespace

TEST_CASE("Durability host: acknowledged records survive a crash of the host", "[nvram]") {
  const bool held = rc::check("acknowledged records survive a host crash", [] {
    const auto seed = *rc::gen::arbitrary<std::uint32_t>();
    Run run;
    run.random = Random(seed);
    run_in_world(seed, [&](Executor& home) { return busy(home, run); });
    RC_ASSERT(run.moments.size() > 10);
    for (Moment& moment : run.moments) {
      run_in_world(seed, [&](Executor& home) {
        return survive(home, moment.board, moment.model, run.random);
      });
    }
  });
  REQUIRE(held);
}

TEST_CASE("Durability process: after a crash of the host everything is listed as lost", "[nvram]") {
  SimulatedBoard board(kImageBytes);
  run_in_world(1, [&](Executor& home) { return fill(home, board); });
  run_in_world(2, [&](Executor& home) { return all_lost(home, board); });
}

TEST_CASE("An image that was closed in order survives a restart of the host", "[nvram]") {
  SimulatedBoard board(kImageBytes);
  run_in_world(1, [&](Executor& home) { return fill(home, board); });
  run_in_world(2, [&](Executor& home) { return close_and_restart(home, board); });
}

}  // namespace sandbay::nvram::host_crash_test
