// What was acknowledged is there after a crash at any write, nothing is owned twice or by nobody,
// and what was under way is done or undone.
//
// One run works on a pool whose stores and metadata are files that lose what was not synced, with
// its log in NVRAM. At many writes of the run everything is copied, with what the twin says before
// and after the operation that is under way. Each copy then meets its end (a kill, or a power cut
// with a crash of the host) and is opened in another world: the map must be right to the last page,
// every volume and snapshot must be the twin's; then all is removed, and every page must be free.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "runtime/simulation.h"
#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool::crash_test {
namespace {

constexpr std::uint64_t kCellsPerPage = kTestPageBytes / kCellBytes;
constexpr std::uint32_t kStores = 2;

struct Model {
  std::map<std::string, Cells> volumes;
  std::map<std::string, Cells> snapshots;
};

struct Fork {
  std::shared_ptr<const sim::FilesSnapshot> files;
  std::unique_ptr<nvram::SimulatedBoard> board;
  Model before;
  Model after;
  bool in_parts = false;  // What is under way may be done in part.
  std::string what;
};

RigOptions options_of(nvram::SimulatedBoard* board, const char* boot_id, bool nvram) {
  RigOptions options{.stores = kStores,
                     .store_pages = 24,
                     .spare_bytes = StoreStamps::kBytes,
                     .nvram = nvram,
                     .files = true,
                     .board = board};
  options.boot_id = boot_id;
  // Checkpoints happen often.
  options.pool.log.store_groups = 6;
  options.pool.log.nvram_percent = 5;
  return options;
}

Task<Error> write_durably(BlockDevice& volume, std::uint64_t first, std::uint64_t count,
                          std::uint32_t number, Random& random) {
  const Completion completion = co_await testing::write_blocks(
      volume, first * (kCellBytes / 512), cells_of(first, count, number), testing::Cut::kAligned,
      random, true);
  co_return completion.error;
}

// The run -----------------------------------------------------------------------------------------

class Worker {
 public:
  Worker(sim::World& world, std::uint64_t seed, bool nvram, std::vector<Fork>& forks)
      : world_(world), random_(seed), nvram_(nvram), forks_(forks) {}

  Task<void> go(Executor& home, int steps) {
    Rig rig(home, options_of(nvram_ ? &board_ : nullptr, "boot-1", nvram_));
    const std::string wrong = co_await rig.start();
    REQUIRE(wrong == "");
    rig_ = &rig;
    world_.observe_writes([this](const std::string&) { maybe_fork(); });
    for (int step = 0; step < steps; ++step) co_await one_step();
    world_.observe_writes({});
    volumes_.clear();
    co_await rig.stop();
  }

 private:
  void maybe_fork() {
    if (forks_.size() >= 50 || !fork_random_.chance(0.2)) return;
    Fork fork{.files = world_.snapshot_files(),
              .board = nvram_ ? std::make_unique<nvram::SimulatedBoard>(board_) : nullptr,
              .before = before_,
              .after = after_,
              .in_parts = in_parts_,
              .what = what_};
    forks_.push_back(std::move(fork));
  }

  void begin(std::string what, bool in_parts = false) {
    what_ = std::move(what);
    in_parts_ = in_parts;
  }
  void end(Error error) {
    INFO(what_);
    REQUIRE((error == Error::kNone || error == Error::kNoSpace));
    if (error == Error::kNone) {
      before_ = after_;
    } else {
      after_ = before_;
    }
    what_ = "nothing";
    in_parts_ = false;
  }

  Task<void> one_step() {
    const std::uint64_t drawn = random_.below(100);
    if (volumes_.size() < 2 || (drawn < 5 && volumes_.size() < 4)) co_return co_await create();
    if (drawn < 45) co_return co_await write();
    if (drawn < 55) co_return co_await unmap();
    if (drawn < 68) co_return co_await snapshot();
    if (drawn < 73) co_return co_await clone();
    if (drawn < 78) co_return co_await restore();
    if (drawn < 85) co_return co_await remove_snapshot();
    if (drawn < 87) co_return co_await remove_volume();
    if (drawn < 95) co_return co_await work_behind();
    co_return co_await move();
  }

  std::string pick_volume() {
    return std::next(volumes_.begin(), static_cast<long>(random_.below(volumes_.size())))->first;
  }
  std::string pick_snapshot() {
    return std::next(keys_.begin(), static_cast<long>(random_.below(keys_.size())))->first;
  }

  Task<void> create() {
    const std::string name = "v" + std::to_string(++names_);
    const std::uint64_t cells = random_.between(1, 3 * kCellsPerPage);
    after_.volumes[name] = Cells(cells);
    begin("create");
    const auto made = co_await rig_->pool->create(
        {.byte_count = cells * kCellBytes, .thick = random_.chance(0.2), .label = name}, {});
    end(made.has_value() ? Error::kNone : made.error());
    if (made.has_value()) volumes_[name] = rig_->pool->attach(*made);
  }

  Task<void> write() {
    const std::string name = pick_volume();
    Cells& cells = after_.volumes[name];
    const std::uint64_t first = random_.below(cells.size());
    const std::uint64_t in_page = kCellsPerPage - first % kCellsPerPage;
    const std::uint64_t most = std::min<std::uint64_t>({cells.size() - first, in_page, 30});
    const std::uint64_t count = random_.between(1, most);
    const std::uint32_t number = ++numbers_;
    std::fill_n(cells.begin() + static_cast<std::ptrdiff_t>(first), count, number);
    begin("write", true);
    const Error error = co_await write_durably(*volumes_[name], first, count, number, random_);
    end(error);
  }

  Task<void> unmap() {
    const std::string name = pick_volume();
    Cells& cells = after_.volumes[name];
    std::uint64_t first = random_.below(cells.size());
    if (random_.chance(0.6)) first = first / kCellsPerPage * kCellsPerPage;
    const std::uint64_t in_page = kCellsPerPage - first % kCellsPerPage;
    const std::uint64_t count = std::min<std::uint64_t>(cells.size() - first, in_page);
    std::fill_n(cells.begin() + static_cast<std::ptrdiff_t>(first), count, 0U);
    begin("unmap", true);
    const Error error = co_await unmap_cells(*volumes_[name], first, count, Operation::kUnmap);
    // Zeros that were written into parts of chunks are durable after a flush.
    const Completion flushed =
        co_await testing::do_without_data(*volumes_[name], Operation::kFlush, {});
    REQUIRE(flushed.error == Error::kNone);
    // Without room parts of it may have happened.
    if (error == Error::kNoSpace) {
      const auto read = co_await read_cells(*volumes_[name], 0, cells.size(), random_);
      REQUIRE(read.has_value());
      before_.volumes[name] = *read;
    }
    end(error);
  }

  Task<void> snapshot() {
    if (keys_.size() > 12) co_return;
    std::vector<Pool::SnapshotOrder> orders;
    std::vector<std::string> names;
    for (const auto& [name, volume] : volumes_) {
      if (!orders.empty() && random_.chance(0.5)) continue;
      names.push_back("s" + std::to_string(++names_));
      orders.push_back({.branch = volume->branch().id(), .label = names.back()});
      after_.snapshots[names.back()] = after_.volumes[name];
    }
    std::vector<SnapshotKey> keys;
    for (const auto& order : orders) keys.push_back({.branch = order.branch, .generation = 0});
    begin("snapshot");
    const auto taken = co_await rig_->pool->snapshot(std::move(orders), {});
    end(taken.has_value() ? Error::kNone : taken.error());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i].generation = (*taken)[i];
      keys_[names[i]] = keys[i];
    }
  }

  Task<void> clone() {
    if (keys_.empty() || volumes_.size() >= 4) co_return;
    const std::string of = pick_snapshot();
    const std::string name = "v" + std::to_string(++names_);
    after_.volumes[name] = after_.snapshots[of];
    begin("clone");
    const auto made = co_await rig_->pool->clone(keys_[of], {.label = name}, {});
    end(made.has_value() ? Error::kNone : made.error());
    volumes_[name] = rig_->pool->attach(*made);
  }

  Task<void> restore() {
    if (keys_.empty()) co_return;
    const std::string of = pick_snapshot();
    const std::string name = pick_volume();
    after_.volumes[name] = after_.snapshots[of];
    begin("restore");
    const auto restored = co_await rig_->pool->restore(*volumes_[name], keys_[of], {});
    end(restored.has_value() ? Error::kNone : restored.error());
  }

  Task<void> remove_snapshot() {
    if (keys_.empty()) co_return;
    const std::string name = pick_snapshot();
    after_.snapshots.erase(name);
    begin("remove snapshot");
    const Error error = co_await rig_->pool->remove_snapshot(keys_[name], {});
    end(error);
    keys_.erase(name);
  }

  Task<void> remove_volume() {
    if (volumes_.size() < 3) co_return;
    const std::string name = pick_volume();
    const BranchId id = volumes_[name]->branch().id();
    volumes_.erase(name);
    after_.volumes.erase(name);
    for (auto at = keys_.begin(); at != keys_.end();) {
      if (at->second.branch != id) {
        ++at;
        continue;
      }
      after_.snapshots.erase(at->first);
      at = keys_.erase(at);
    }
    begin("remove volume");
    const Error error = co_await rig_->pool->remove(id, {});
    end(error);
  }

  Task<void> work_behind() {
    begin("sweep");
    const auto swept = co_await rig_->pool->sweep(5);
    REQUIRE(swept.has_value());
    begin("make independent");
    PageNumber next = 0;
    const BranchId id = volumes_[pick_volume()]->branch().id();
    const auto more = co_await rig_->pool->make_independent(id, &next, 4);
    end(more.has_value() ? Error::kNone : more.error());
  }

  Task<void> move() {
    begin("move");
    const BranchId id = volumes_[pick_volume()]->branch().id();
    const auto page = static_cast<PageNumber>(random_.below(3));
    const auto target = static_cast<StoreIndex>(random_.below(kStores));
    const Error moved = co_await rig_->pool->move_page(id, page, target);
    end(moved == Error::kNotFound ? Error::kNone : moved);
    if (random_.chance(0.7)) co_return;
    begin("vacate");
    StoreConfig store = rig_->config_of(target);
    store.record.state = StoreState::kVacating;
    const Error begun = co_await rig_->pool->put_store(store, {});
    REQUIRE(begun == Error::kNone);
    const auto more = co_await rig_->pool->vacate(target, 10);
    const Error ended = co_await rig_->pool->put_store(rig_->config_of(target), {});
    REQUIRE(ended == Error::kNone);
    end(more.has_value() ? Error::kNone : more.error());
  }

  sim::World& world_;
  Random random_;
  Random fork_random_{random_.fork()};
  bool nvram_;
  std::vector<Fork>& forks_;
  nvram::SimulatedBoard board_{Rig::kImageBytes};
  Rig* rig_ = nullptr;
  int names_ = 0;
  std::uint32_t numbers_ = 0;
  Model before_;
  Model after_;
  bool in_parts_ = false;
  std::string what_ = "nothing";
  std::map<std::string, std::unique_ptr<PoolVolume>> volumes_;
  std::map<std::string, SnapshotKey> keys_;
};

// The end of each copy ----------------------------------------------------------------------------

// Every sector is the one model's or the other's.
bool between(std::uint64_t first, const testing::Bytes& found, const Cells& one,
             const Cells& other) {
  testing::Bytes expected(kCellBytes);
  for (std::size_t i = 0; i < found.size() / kCellBytes; ++i) {
    for (std::size_t at = 0; at < kCellBytes; at += 512) {
      bool right = false;
      for (const Cells* cells : {&one, &other}) {
        fill_cell(expected.data(), first + i, (*cells)[i]);
        const std::byte* const sector = found.data() + i * kCellBytes + at;
        right = right || std::memcmp(sector, expected.data() + at, 512) == 0;
      }
      if (!right) return false;
    }
  }
  return true;
}

bool is(const testing::Bytes& found, const Cells& cells) { return between(0, found, cells, cells); }

class Survivor {
 public:
  Survivor(Executor& home, Fork& fork, std::uint64_t seed)
      : fork_(fork),
        random_(seed),
        rig_(home, options_of(fork.board.get(), "boot-2", fork.board != nullptr)) {}

  Task<void> go() {
    const std::string wrong = co_await rig_.start();
    REQUIRE(wrong == "");
    co_await check();
    find_all();
    co_await verify();
    co_await rig_.sweep_all();
    co_await check();
    co_await verify();
    co_await remove_all();
    const Error closed = co_await rig_.close();
    REQUIRE(closed == Error::kNone);
  }

 private:
  Task<void> check() {
    const std::string wrong = co_await rig_.check();
    REQUIRE(wrong == "");
  }

  void find_all() {
    for (const auto& [id, branch] : rig_.pool->map().branches()) {
      if (!branch->record.dead) {
        REQUIRE(!volumes_.contains(branch->record.label));
        volumes_[branch->record.label] = id;
      }
      for (const auto& [generation, snapshot] : branch->snapshots) {
        snapshots_[snapshot.label] = {.branch = id, .generation = generation};
      }
    }
  }

  bool has_names_of(const Model& model) const {
    const auto same = [](const auto& found, const auto& expected) {
      return std::ranges::equal(found, expected,
                                [](const auto& a, const auto& b) { return a.first == b.first; });
    };
    return same(volumes_, model.volumes) && same(snapshots_, model.snapshots);
  }

  Task<testing::Bytes> content(BranchId id, Generation generation) {
    const auto volume = rig_.pool->attach(id, generation);
    REQUIRE(volume != nullptr);
    const Completion read = co_await testing::read_blocks(
        *volume, {.first = 0, .block_count = volume->geometry().block_count},
        testing::Cut::kAligned, random_);
    REQUIRE(read.error == Error::kNone);
    co_return testing::content_of(read.data);
  }

  Task<bool> is_model(const Model* model) {
    if (!has_names_of(*model)) co_return false;
    for (const auto& [name, id] : volumes_) {
      const testing::Bytes found = co_await content(id, kLive);
      const Cells& cells = model->volumes.at(name);
      if (found.size() != cells.size() * kCellBytes) co_return false;
      const bool right = fork_.in_parts ? between(0, found, cells, fork_.after.volumes.at(name))
                                        : is(found, cells);
      if (!right) co_return false;
    }
    for (const auto& [name, key] : snapshots_) {
      const testing::Bytes found = co_await content(key.branch, key.generation);
      const Cells& cells = model->snapshots.at(name);
      if (found.size() != cells.size() * kCellBytes || !is(found, cells)) co_return false;
    }
    co_return true;
  }

  Task<void> verify() {
    bool right = co_await is_model(&fork_.before);
    if (!right && !fork_.in_parts) right = co_await is_model(&fork_.after);
    INFO(fork_.what);
    REQUIRE(right);
  }

  Task<void> remove_all() {
    for (const auto& [name, key] : snapshots_) {
      const Error error = co_await rig_.pool->remove_snapshot(key, {});
      REQUIRE(error == Error::kNone);
    }
    for (const auto& [name, id] : volumes_) {
      const Error error = co_await rig_.pool->remove(id, {});
      REQUIRE(error == Error::kNone);
    }
    co_await rig_.sweep_all();
    co_await check();
    REQUIRE(rig_.pool->map().branches().empty());
    REQUIRE(rig_.pool->space().free_pages == rig_.pool->space().pages);
  }

  Fork& fork_;
  Random random_;
  Rig rig_;
  std::map<std::string, BranchId> volumes_;
  std::map<std::string, SnapshotKey> snapshots_;
};

Task<void> survive(Executor& home, Fork& fork, std::uint64_t seed) {
  Survivor survivor(home, fork, seed);
  co_await survivor.go();
}

void end_fork(Fork& fork, std::uint64_t seed) {
  const auto world = sim::World::create({.seed = seed, .files = fork.files});
  if (world->random().chance(0.8)) {
    world->cut_power();
    Random random(seed);
    if (fork.board != nullptr) fork.board->crash_host(random);
  }
  Executor& home = *world->executors()[0];
  INFO("while: " << fork.what << ", fork " << seed);
  const bool ended = world->run([&] { return survive(home, fork, seed); });
  REQUIRE(ended);
}

std::uint64_t seed_count() {
  const char* const text = std::getenv("SANDBAY_LONG");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 6;
}

}  // namespace

TEST_CASE("a pool survives a crash at any write", "[pool]") {
  const auto seed = GENERATE_COPY(range<std::uint64_t>(1, seed_count() + 1));
  CAPTURE(seed);
  std::vector<Fork> forks;
  {
    const auto world = sim::World::create({.seed = seed});
    Executor& home = *world->executors()[0];
    Worker worker(*world, seed, seed % 3 != 0, forks);
    const bool ended = world->run([&] { return worker.go(home, 150); });
    REQUIRE(ended);
  }
  REQUIRE(forks.size() > 5);
  for (std::size_t i = 0; i < forks.size(); ++i) end_fork(forks[i], seed * 1000 + i);
}

}  // namespace sandbay::pool::crash_test
