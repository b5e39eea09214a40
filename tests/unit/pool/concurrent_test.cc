// Writers, readers, snapshots, moves and sweeps at once.
//
// Every writer owns cells of each volume and writes growing numbers to them, one after the other,
// first to one volume and then to the other. So a snapshot of both volumes at one moment shows of
// each writer exactly the writes up to some number, and that number lies between what was
// acknowledged when the snapshot was asked for and what was begun when it was there.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/block/test_devices.h"
#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool::concurrent_test {
namespace {

constexpr std::uint64_t kCells = 3 * kTestPageBytes / kCellBytes;
constexpr std::size_t kWriters = 6;
constexpr std::size_t kVolumes = 2;

struct Write {
  std::uint64_t cell = 0;
  std::uint64_t count = 0;
  std::size_t volume = 0;
};

struct Writer {
  std::vector<Write> writes;  // Number n + 1 is writes[n].
  std::size_t acknowledged = 0;
};

struct Taken {
  std::vector<SnapshotKey> keys;
  std::vector<std::size_t> least;  // By writer.
  std::vector<std::size_t> most;
  std::vector<Cells> contents;  // As they were at once.
};

struct Shared {
  Rig rig;
  Random random;
  std::vector<std::unique_ptr<testing::DelayDevice>> delays;
  std::vector<std::unique_ptr<PoolVolume>> volumes;
  std::vector<Writer> writers;
  std::vector<Taken> taken;
  int running = 0;

  Shared(Executor& home, RigOptions options, std::uint64_t seed)
      : rig(home, options), random(seed), writers(kWriters) {}

  // Numbers of writers do not meet.
  static std::uint32_t number(std::size_t writer, std::size_t index) {
    return static_cast<std::uint32_t>((writer + 1) << 24U | (index + 1));
  }
};

Task<void> run_writer(Shared* shared, std::size_t index, std::size_t writes) {
  Writer& writer = shared->writers[index];
  // Its cells: groups of four that are its turn. Chunks of eight cells are shared with another.
  for (std::size_t i = 0; i < writes; ++i) {
    const std::uint64_t groups = kCells / 4;
    const std::uint64_t mine = groups / kWriters;
    const std::uint64_t group = shared->random.below(mine) * kWriters + index;
    const std::uint64_t skip = shared->random.below(4);
    const Write write{.cell = group * 4 + skip,
                      .count = shared->random.between(1, 4 - skip),
                      .volume = i % kVolumes};
    writer.writes.push_back(write);
    const Error error = co_await write_cells(*shared->volumes[write.volume], write.cell,
                                             write.count, Shared::number(index, i), shared->random);
    REQUIRE(error == Error::kNone);
    writer.acknowledged = i + 1;
  }
  --shared->running;
}

Task<std::vector<Cells>> read_snapshots(Shared* shared, std::vector<SnapshotKey> keys) {
  std::vector<Cells> contents;
  for (const SnapshotKey& key : keys) {
    const auto volume = shared->rig.pool->attach(key.branch, key.generation);
    REQUIRE(volume != nullptr);
    const auto read = co_await read_cells(*volume, 0, kCells, shared->random);
    REQUIRE(read.has_value());
    contents.push_back(*read);
  }
  co_return contents;
}

Task<void> run_snapshots(Shared* shared) {
  while (shared->running > 0) {
    co_await shared->rig.home.sleep_for(std::chrono::milliseconds(shared->random.below(20)));
    Taken taken;
    for (const Writer& writer : shared->writers) taken.least.push_back(writer.acknowledged);
    std::vector<Pool::SnapshotOrder> orders;
    for (const auto& volume : shared->volumes) orders.push_back({.branch = volume->branch().id()});
    std::vector<BranchId> branches;
    for (const auto& order : orders) branches.push_back(order.branch);
    const auto made = co_await shared->rig.pool->snapshot(std::move(orders), {});
    REQUIRE(made.has_value());
    for (const Writer& writer : shared->writers) taken.most.push_back(writer.writes.size());
    for (std::size_t i = 0; i < kVolumes; ++i) {
      taken.keys.push_back({.branch = branches[i], .generation = (*made)[i]});
    }
    taken.contents = co_await read_snapshots(shared, taken.keys);
    shared->taken.push_back(std::move(taken));
  }
}

Task<void> run_background(Shared* shared) {
  while (shared->running > 0) {
    co_await shared->rig.home.sleep_for(std::chrono::milliseconds(1));
    Pool& pool = *shared->rig.pool;
    const BranchId id = shared->volumes[shared->random.below(kVolumes)]->branch().id();
    const auto page = static_cast<PageNumber>(shared->random.below(3));
    const Error moved =
        co_await pool.move_page(id, page, static_cast<StoreIndex>(shared->random.below(2)));
    REQUIRE((moved == Error::kNone || moved == Error::kNotFound));
    // The oldest snapshot goes now and then.
    if (shared->taken.size() > 8 && shared->random.chance(0.2)) {
      const Taken oldest = shared->taken.front();
      shared->taken.erase(shared->taken.begin());
      for (const SnapshotKey& key : oldest.keys) {
        const Error removed = co_await pool.remove_snapshot(key, {});
        REQUIRE(removed == Error::kNone);
      }
    }
    const auto swept = co_await pool.sweep(3);
    REQUIRE(swept.has_value());
  }
}

// What a cell holds after each writer's first `counts` writes.
Cells expected(const Shared& shared, std::size_t volume, const std::vector<std::size_t>& counts) {
  Cells cells(kCells);
  for (std::size_t writer = 0; writer < kWriters; ++writer) {
    for (std::size_t i = 0; i < counts[writer]; ++i) {
      const Write& write = shared.writers[writer].writes[i];
      if (write.volume != volume) continue;
      for (std::uint64_t j = 0; j < write.count; ++j) {
        cells[write.cell + j] = Shared::number(writer, i);
      }
    }
  }
  return cells;
}

// How many writes of each writer the snapshot shows: the highest number in it.
std::vector<std::size_t> counts_of(const std::vector<Cells>& contents,
                                   const std::vector<std::size_t>& least) {
  std::vector<std::size_t> counts = least;
  for (const Cells& cells : contents) {
    for (const std::uint32_t number : cells) {
      if (number == 0 || number == ~0U) continue;
      std::size_t& count = counts[(number >> 24U) - 1];
      count = std::max<std::size_t>(count, number & 0xffffffU);
    }
  }
  return counts;
}

Task<void> verify(Shared* shared, const Taken* taken) {
  const std::vector<Cells> contents = co_await read_snapshots(shared, taken->keys);
  CHECK((contents == taken->contents));
  const std::vector<std::size_t> counts = counts_of(contents, taken->least);
  for (std::size_t writer = 0; writer < kWriters; ++writer) {
    CHECK(counts[writer] <= taken->most[writer]);
  }
  for (std::size_t volume = 0; volume < kVolumes; ++volume) {
    const bool right = contents[volume] == expected(*shared, volume, counts);
    CHECK(right);
  }
}

Task<void> run_all(Executor& home, std::uint64_t seed) {
  RigOptions options{.store_pages = 200, .nvram = seed % 2 == 0};
  options.pool.log.store_groups = 16;
  options.pool.map.chunk_map_bytes = 1;  // Everything is loaded again and again.
  options.pool.map.kept_bytes = 1;
  options.pool.map.slot_map_bytes = 1;
  Shared shared(home, options, seed);
  const std::string wrong = co_await shared.rig.start();
  REQUIRE(wrong == "");
  for (StoreIndex store = 0; store < 2; ++store) {
    shared.delays.push_back(std::make_unique<testing::DelayDevice>(
        *shared.rig.devices[store], std::chrono::microseconds(50), std::chrono::milliseconds(2)));
    shared.rig.pool->set_device(store, shared.delays.back().get());
  }
  for (std::size_t i = 0; i < kVolumes; ++i) {
    const auto made = co_await shared.rig.pool->create({.byte_count = kCells * kCellBytes}, {});
    REQUIRE(made.has_value());
    shared.volumes.push_back(shared.rig.pool->attach(*made));
  }
  shared.running = kWriters;
  for (std::size_t i = 0; i < kWriters; ++i) spawn(run_writer(&shared, i, 80));
  spawn(run_background(&shared));
  co_await run_snapshots(&shared);
  // The background may be at its last work.
  co_await home.sleep_for(std::chrono::seconds(30));
  CHECK(shared.taken.size() > 3);
  for (const Taken& taken : shared.taken) co_await verify(&shared, &taken);
  std::vector<std::size_t> all;
  for (const Writer& writer : shared.writers) all.push_back(writer.writes.size());
  for (std::size_t i = 0; i < kVolumes; ++i) {
    const auto read = co_await read_cells(*shared.volumes[i], 0, kCells, shared.random);
    REQUIRE(read.has_value());
    const bool right = *read == expected(shared, i, all);
    CHECK(right);
  }
  co_await shared.rig.sweep_all();
  const std::string unsound = co_await shared.rig.check();
  CHECK(unsound == "");
  shared.volumes.clear();
  const Error closed = co_await shared.rig.close();
  CHECK(closed == Error::kNone);
}

// Both things that give a page of a branch another place and new data, at once.
Task<void> fill_and_move(Rig* rig, BranchId id, unsigned* running) {
  PageNumber next = 0;
  bool more = true;
  while (more) {
    const auto left = co_await rig->pool->make_independent(id, &next, 1);
    REQUIRE(left.has_value());
    more = *left;
  }
  --*running;
}

Task<void> run_fill_and_move(Executor& home, std::uint64_t seed) {
  Rig rig(home, {.store_pages = 100});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  std::vector<std::unique_ptr<testing::DelayDevice>> delays;
  for (StoreIndex store = 0; store < 2; ++store) {
    delays.push_back(std::make_unique<testing::DelayDevice>(
        *rig.devices[store], std::chrono::microseconds(50), std::chrono::milliseconds(2)));
    rig.pool->set_device(store, delays.back().get());
  }
  Random random(seed);
  const auto source = co_await rig.pool->create({.byte_count = kCells * kCellBytes}, {});
  REQUIRE(source.has_value());
  auto volume = rig.pool->attach(*source);
  Error error = co_await write_cells(*volume, 0, kCells, 1, random);
  REQUIRE(error == Error::kNone);
  const auto made = co_await rig.pool->clone({.branch = *source, .generation = kLive}, {}, {});
  REQUIRE(made.has_value());
  auto clone = rig.pool->attach(*made);
  // Each page has a place and little in it.
  for (std::uint64_t cell = 0; cell < kCells; cell += kTestPageBytes / kCellBytes) {
    error = co_await write_cells(*clone, cell, 1, 2, random);
    REQUIRE(error == Error::kNone);
  }
  unsigned running = 1;
  spawn(fill_and_move(&rig, *made, &running));
  PageNumber at = 0;
  while (running > 0) {
    ++at;
    const Place place = clone->branch().pages.at(at % 3).place();
    error = co_await rig.pool->move_page(*made, at % 3, place.store == 0 ? 1 : 0);
    REQUIRE((error == Error::kNone || error == Error::kNotFound));
  }
  const auto read = co_await read_cells(*clone, 0, kCells, random);
  REQUIRE(read.has_value());
  for (std::uint64_t cell = 0; cell < kCells; ++cell) {
    REQUIRE((*read)[cell] == (cell % (kTestPageBytes / kCellBytes) == 0 ? 2 : 1));
  }
  clone.reset();
  volume.reset();
  co_await rig.stop();
}

Task<void> write_first(PoolVolume* volume, std::uint32_t number, Random* random,
                       unsigned* running) {
  const Error error = co_await write_cells(*volume, 0, 1, number, *random);
  CHECK(error == Error::kNone);
  --*running;
}

// Versions are loaded again and again, while the snapshot that they are loaded for goes.
Task<void> run_vanishing(Executor& home, std::uint64_t seed) {
  RigOptions options{.nvram = false};
  options.pool.map.chunk_map_bytes = 1;
  options.pool.map.kept_bytes = 1;
  options.pool.log.store_groups = 1;
  Rig rig(home, options);
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  Random random(seed);
  const auto made = co_await rig.pool->create({.byte_count = kTestPageBytes}, {});
  REQUIRE(made.has_value());
  auto volume = rig.pool->attach(*made);
  std::vector<Generation> taken;
  unsigned running = 0;
  for (std::uint32_t i = 1; i <= 40; ++i) {
    const auto one = co_await rig.pool->snapshot({{.branch = *made, .label = {}}}, {});
    REQUIRE(one.has_value());
    taken.push_back((*one)[0]);
    ++running;
    spawn(write_first(volume.get(), i, &random, &running));
    co_await home.sleep_for(std::chrono::microseconds(random.below(400)));
    if (i % 2 == 0) continue;
    const Error removed =
        co_await rig.pool->remove_snapshot({.branch = *made, .generation = taken.back()}, {});
    REQUIRE(removed == Error::kNone);
  }
  while (running > 0) co_await home.sleep_for(std::chrono::milliseconds(1));
  co_await rig.sweep_all();
  const std::string unsound = co_await rig.check();
  CHECK(unsound == "");
  volume.reset();
  co_await rig.stop();
}

std::uint64_t seed_count() {
  const char* const text = std::getenv("SANDBAY_LONG");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 6;
}

}  // namespace

TEST_CASE("a snapshot is one moment of its volumes under full load", "[pool]") {
  const auto seed = GENERATE_COPY(range<std::uint64_t>(1, seed_count() + 1));
  CAPTURE(seed);
  testing::run_in_world(seed, [&](Executor& home) { return run_all(home, seed); });
}

TEST_CASE("a page that is filled while it moves loses nothing", "[pool]") {
  const auto seed = GENERATE_COPY(range<std::uint64_t>(1, seed_count() + 1));
  CAPTURE(seed);
  testing::run_in_world(seed, [&](Executor& home) { return run_fill_and_move(home, seed); });
}

TEST_CASE("writes go on while snapshots that they look at vanish", "[pool]") {
  const auto seed = GENERATE_COPY(range<std::uint64_t>(1, 2 * seed_count() + 1));
  CAPTURE(seed);
  testing::run_in_world(seed, [&](Executor& home) { return run_vanishing(home, seed); });
}

}  // namespace sandbay::pool::concurrent_test
