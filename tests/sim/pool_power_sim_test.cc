// A pool over several members under the load of hosts and of an administrator, cut at any write.
//
// At writes of one run everything is copied: files with what is not synced, the NVRAM, the model.
// Each copy meets its end: a kill; a power cut of the array, whose NVRAM has a battery; or a crash
// of the host, which loses what the NVRAM's memory had not synced. It is opened in another world,
// sometimes cut again while it opens, sometimes with a member missing at first. Then the map must
// be right to the last page; every block is what the model allows; every snapshot is one moment of
// its volumes, and the same as when it was read before; and when all is removed every page is free.
//
// SANDBAY_SEEDS=first:count chooses the runs, each of which makes up to 40 cuts.
#include <fmt/core.h>

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "pool_load.h"
#include "runtime/simulation.h"
#include "seeds.h"
#include "tests/unit/block/payload.h"

namespace sandbay::simtest {
namespace {

constexpr std::size_t kMostForks = 40;
constexpr double kForkChance = 0.12;

struct Fork {
  std::shared_ptr<const sim::FilesSnapshot> files;
  std::unique_ptr<nvram::SimulatedBoard> board;
  PoolModel model;
  std::vector<pool::StoreIndex> members;
  std::string doing;
};

struct Tally {
  std::uint64_t cuts = 0;
  std::uint64_t cuts_again = 0;  // While a pool was opened.
};

std::unique_ptr<nvram::SimulatedBoard> copy_of(const nvram::SimulatedBoard* board) {
  return board == nullptr ? nullptr : std::make_unique<nvram::SimulatedBoard>(*board);
}

// The pool after its end, in another world.
class Survivor {
 public:
  Survivor(Executor& home, Fork& fork, bool power_cut, std::uint64_t seed)
      : fork_(fork), power_cut_(power_cut), random_(seed), lab_(home, fork.board.get(), "boot-2") {}

  Task<std::string> go() {
    std::string wrong = co_await lab_.start(fork_.members);
    opened_ = true;
    if (wrong.empty()) wrong = co_await lab_.check();
    if (wrong.empty()) wrong = find_all();
    if (wrong.empty() && random_.chance(0.15)) wrong = co_await without_a_member();
    if (wrong.empty()) wrong = co_await verify();
    if (wrong.empty()) wrong = co_await lab_.sweep_all();
    if (wrong.empty()) wrong = co_await lab_.check();
    if (wrong.empty()) wrong = co_await verify();
    if (wrong.empty()) wrong = co_await remove_all();
    co_await lab_.stop();
    co_return wrong;
  }
  bool opened() const noexcept { return opened_; }

 private:
  std::string find_all() {
    for (const auto& [id, branch] : lab_.pool().map().branches()) {
      if (!branch->record.dead && !volumes_.emplace(branch->record.label, id).second) {
        return branch->record.label + " is there twice";
      }
      for (const auto& [generation, snapshot] : branch->snapshots) {
        snapshots_[snapshot.label] = {.branch = id, .generation = generation};
      }
    }
    for (const auto& [name, volume] : fork_.model.volumes) {
      if (volume.presence == Presence::kThere && !volumes_.contains(name)) return name + " is gone";
    }
    for (const auto& [name, snapshot] : fork_.model.snapshots) {
      if (snapshot.presence == Presence::kThere && !snapshots_.contains(name)) {
        return name + " is gone";
      }
    }
    for (const auto& [name, id] : volumes_) {
      if (!fork_.model.volumes.contains(name)) return name + " has come back";
    }
    for (const auto& [name, key] : snapshots_) {
      if (!fork_.model.snapshots.contains(name)) return name + " has come back";
    }
    return {};
  }

  Task<Completion> read_all(BlockDevice* volume) {
    co_return co_await testing::read_blocks(
        *volume, {.first = 0, .block_count = volume->geometry().block_count},
        testing::Cut::kAligned, random_);
  }

  // What has a page on it is not ready, and nothing else is; then it comes back.
  Task<std::string> without_a_member() {
    const pool::StoreIndex member = fork_.members[random_.below(fork_.members.size())];
    BlockDevice* const unit = lab_.pool().device(member);
    lab_.pool().set_device(member, nullptr);
    for (const auto& [name, id] : volumes_) {
      const auto volume = lab_.pool().attach(id);
      const bool missing = volume->health() == Health::kMissing;
      const Completion read = co_await read_all(volume.get());
      const bool fails = read.error == Error::kNotReady;
      if (read.error != Error::kNone && !fails) co_return std::string(describe(read.error));
      if (fails && !missing) co_return name + " is not ready, and says that it is well";
    }
    lab_.pool().set_device(member, unit);
    co_return std::string();
  }

  Task<std::string> verify() {
    std::map<std::uint64_t, Moment> moments;
    for (const auto& [name, id] : volumes_) {
      const auto volume = lab_.pool().attach(id);
      const Completion read = co_await read_all(volume.get());
      if (read.error != Error::kNone) co_return fmt::format("{}: {}", name, describe(read.error));
      const std::string wrong =
          check_volume(fork_.model.volumes.at(name), testing::content_of(read.data), power_cut_);
      if (!wrong.empty()) co_return name + ", " + wrong;
    }
    for (const auto& [name, key] : snapshots_) {
      const auto volume = lab_.pool().attach(key.branch, key.generation);
      const Completion read = co_await read_all(volume.get());
      if (read.error != Error::kNone) co_return fmt::format("{}: {}", name, describe(read.error));
      if (fork_.model.snapshots.at(name).presence == Presence::kMaking) {
        fork_.model.settle_snapshot(name);
      }
      const auto found = numbers_of_cells(testing::content_of(read.data), 0);
      const std::string wrong = fork_.model.check_snapshot(name, found, moments);
      if (!wrong.empty()) co_return wrong;
    }
    co_return std::string();
  }

  Task<std::string> remove_all() {
    pool::Pool& pool = lab_.pool();
    for (const auto& [name, key] : snapshots_) {
      const Error error = co_await pool.remove_snapshot(key, {});
      if (error != Error::kNone) co_return fmt::format("{}: {}", name, describe(error));
    }
    for (const auto& [name, id] : volumes_) {
      const Error error = co_await pool.remove(id, {});
      if (error != Error::kNone) co_return fmt::format("{}: {}", name, describe(error));
    }
    std::string wrong = co_await lab_.sweep_all();
    if (wrong.empty()) wrong = co_await lab_.check();
    if (!wrong.empty()) co_return wrong;
    if (!pool.map().branches().empty()) co_return "a branch is left";
    if (pool.space().free_pages != pool.space().pages) co_return "a page is left";
    co_return std::string();
  }

  Fork& fork_;
  bool power_cut_;
  Random random_;
  PoolLab lab_;
  bool opened_ = false;
  std::map<std::string, pool::BranchId> volumes_;
  std::map<std::string, pool::SnapshotKey> snapshots_;
};

struct Ending {
  Fork* fork;
  std::uint64_t seed;
  Tally* tally;
  bool again;      // It was cut before while it was opened.
  bool power_cut;  // It was cut by power then.
};

Task<void> survive(Survivor* survivor, std::string* wrong) { *wrong = co_await survivor->go(); }

std::string end_fork(const Ending& ending);

// What is left of a pool that was opened half is opened again.
std::string end_again(const Ending& first, Fork& fork, bool power_cut) {
  ++first.tally->cuts_again;
  return end_fork({.fork = &fork,
                   .seed = first.seed + 7919,
                   .tally = first.tally,
                   .again = true,
                   .power_cut = power_cut});
}

std::string end_fork(const Ending& ending) {
  Fork& fork = *ending.fork;
  const auto world = sim::World::create({.seed = ending.seed, .files = fork.files});
  const std::uint64_t drawn = world->random().below(4);
  const bool power_cut = drawn > 0;
  if (power_cut) world->cut_power();
  Random random(ending.seed);
  if (drawn > 1 && fork.board != nullptr) fork.board->crash_host(random);
  ++ending.tally->cuts;
  const bool any_power_cut = power_cut || (ending.again && ending.power_cut);
  Survivor survivor(*world->executors()[0], fork, any_power_cut, ending.seed);
  std::unique_ptr<Fork> second;
  if (!ending.again && world->random().chance(0.3)) {
    world->observe_writes([&](const std::string&) {
      if (second != nullptr || survivor.opened() || !random.chance(0.4)) return;
      second = std::make_unique<Fork>(Fork{.files = world->snapshot_files(),
                                           .board = copy_of(fork.board.get()),
                                           .model = fork.model,
                                           .members = fork.members,
                                           .doing = fork.doing});
    });
  }
  std::string wrong;
  const bool ended = world->run([&] { return survive(&survivor, &wrong); });
  world->observe_writes({});
  if (!ended) wrong = "does not end";
  if (wrong.empty() && second != nullptr) return end_again(ending, *second, any_power_cut);
  if (wrong.empty()) return wrong;
  const char* const how = power_cut ? "power cut" : "kill";
  return fmt::format("{} {} while \"{}\"{}: {}", how, ending.seed, fork.doing,
                     ending.again ? ", again" : "", wrong);
}

Task<void> run_load(PoolLab* lab, PoolLoad* load, std::string* wrong) {
  *wrong = co_await lab->start({0, 1, 2});
  if (wrong->empty()) *wrong = co_await load->go();
  if (wrong->empty()) *wrong = co_await lab->sweep_all();
  if (wrong->empty()) *wrong = co_await lab->check();
  co_await lab->stop();
}

std::string run_seed(std::uint64_t seed, Tally* tally) {
  std::vector<Fork> forks;
  const auto board =
      seed % 4 == 0 ? nullptr : std::make_unique<nvram::SimulatedBoard>(kLabBoardBytes);
  const auto world = sim::World::create({.seed = seed});
  PoolLab lab(*world->executors()[0], board.get(), "boot-1");
  PoolLoad load(lab, seed, {});
  Random chances(seed);
  world->observe_writes([&](const std::string&) {
    if (forks.size() >= kMostForks || !lab.running() || !chances.chance(kForkChance)) return;
    forks.push_back({.files = world->snapshot_files(),
                     .board = copy_of(board.get()),
                     .model = load.model(),
                     .members = {load.members().begin(), load.members().end()},
                     .doing = load.doing()});
  });
  std::string wrong;
  const bool ended = world->run([&] { return run_load(&lab, &load, &wrong); });
  world->observe_writes({});
  if (!ended) {
    fmt::print(stderr, "pool power: seed {} does not end: {}\n", seed, load.doing());
    std::abort();  // The world keeps what has not ended, and it must go before the pool.
  }
  if (!wrong.empty()) return wrong;
  for (std::size_t i = 0; i < forks.size() && wrong.empty(); ++i) {
    wrong = end_fork({.fork = &forks[i],
                      .seed = seed * 1000 + i,
                      .tally = tally,
                      .again = false,
                      .power_cut = false});
  }
  return wrong;
}

}  // namespace

TEST_CASE("a pool keeps what it acknowledged, whenever it is cut", "[pool][sim]") {
  Tally tally;
  const std::uint64_t failures =
      run_seeds("pool power", 8, [&](std::uint64_t seed) { return run_seed(seed, &tally); });
  fmt::print("pool power: {} cuts, {} of them while the pool was opened\n", tally.cuts,
             tally.cuts_again);
  std::fflush(stdout);
  CHECK(failures == 0);
  CHECK(tally.cuts > 0);
}

}  // namespace sandbay::simtest
