// A pool over several members under the load of hosts, of an administrator and of a Housekeeper,
// all at once, without cuts: everything ends, and is what the model allows.
//
// The administrator lets members go and takes them back at any moment. A run that has not ended
// after ten minutes of virtual time prints its unfinished deeds; usually it takes a second.
//
// SANDBAY_SEEDS=first:count chooses the runs.
#include <fmt/core.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "pool_load.h"
#include "runtime/simulation.h"
#include "seeds.h"

namespace sandbay::simtest {
namespace {

constexpr Duration kLimit = std::chrono::minutes(10);

struct Tally {
  std::uint64_t pages_moved = 0;
  std::uint64_t chunks_kept = 0;
  std::uint64_t refusals = 0;
};

Task<void> run_load(PoolLab* lab, PoolLoad* load, Tally* tally, std::string* wrong) {
  *wrong = co_await lab->start({0, 1, 2});
  if (wrong->empty()) *wrong = co_await load->go();
  if (lab->running()) {
    tally->pages_moved += lab->pool().counters().pages_moved;
    tally->chunks_kept += lab->pool().counters().chunks_kept;
    tally->refusals += load->refusals();
  }
  if (wrong->empty()) *wrong = co_await lab->sweep_all();
  if (wrong->empty()) *wrong = co_await lab->check();
  co_await lab->stop();
}

// By seed: the log in metadata or in NVRAM; fast stores or slow ones, or such that fail now and
// then.
std::string run_seed(std::uint64_t seed, Tally* tally) {
  const auto board =
      seed % 2 == 0 ? nullptr : std::make_unique<nvram::SimulatedBoard>(kLabBoardBytes);
  sim::WorldOptions options{.seed = seed};
  if (seed % 3 == 0) options.file_latency.most = std::chrono::milliseconds(5);
  UnitFaults faults;
  if (seed % 5 < 2) faults.delays = 0.01;
  if (seed % 5 == 0) faults.errors = 0.01;
  const auto world = sim::World::create(std::move(options));
  PoolLab lab(*world->executors()[0], board.get(), "boot-1");
  PoolLoad load(lab, seed,
                {.hosts = 4,
                 .host_steps = 200,
                 .administrator_steps = 120,
                 .keeps_house = true,
                 .faults = faults});
  std::string wrong;
  const bool ended = world->run([&] { return run_load(&lab, &load, tally, &wrong); }, kLimit);
  if (ended) return wrong;
  fmt::print(stderr, "pool load: seed {} does not end: {}\n", seed,
             load.standing(std::chrono::seconds(10)));
  std::abort();  // The world keeps what has not ended, and it must go before the pool.
}

}  // namespace

TEST_CASE("A pool ends everything that is begun on it under a mixed load", "[pool][sim][P-5]") {
  Tally tally;
  const std::uint64_t failures =
      run_seeds("pool load", 30, [&](std::uint64_t seed) { return run_seed(seed, &tally); });
  fmt::print("pool load: {} pages moved, {} chunks kept, {} errors\n", tally.pages_moved,
             tally.chunks_kept, tally.refusals);
  std::fflush(stdout);
  CHECK(failures == 0);
  CHECK(tally.pages_moved > 0);
}

}  // namespace sandbay::simtest
