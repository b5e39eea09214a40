// The map's log: who shares a group, what fails and leaves nothing, what is refused at the start.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "nvram/battery.h"
#include "tests/unit/metadata/forwarding_store.h"
#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool::map_log_test {
namespace {

// A store of which commits fail when they are told to, before or after they have happened.
class FaultyStore final : public sandbay::testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  bool failing = false;
  bool after_effect = false;
  std::uint64_t sound_commits = ~std::uint64_t{0};  // Then it is failing.
  std::uint64_t commits = 0;

  Task<Error> commit(metadata::Batch batch) override {
    ++commits;
    if (sound_commits-- == 0) failing = true;
    if (!failing) co_return co_await below_.commit(std::move(batch));
    if (after_effect) co_await below_.commit(std::move(batch));
    co_return Error::kNoSpace;
  }
  bool in_doubt() const noexcept override { return failing; }

 private:
};

// A pool of one store over a store that fails, with or without NVRAM.
struct Bench {
  Bench(Executor& home, bool nvram) : rig(home, {.stores = 1, .nvram = nvram}) {}

  Task<void> start() {
    const std::string wrong = co_await rig.start();
    REQUIRE(wrong == "");
    co_await rig.pool->stop();
    rig.pool.reset();
    faulty = std::make_unique<FaultyStore>(*rig.store);
    co_await open();
  }
  Task<void> open() {
    std::vector<StoreConfig> stores;
    stores.push_back(rig.config_of(0));
    auto opened =
        co_await Pool::open(rig.home, *faulty, rig.region.get(), test_options(), std::move(stores));
    if (!opened.has_value()) FAIL(opened.error());
    rig.pool = std::move(*opened);
  }
  Task<std::unique_ptr<PoolVolume>> make_volume() {
    const auto made = co_await rig.pool->create({.byte_count = 2 * kTestPageBytes}, {});
    REQUIRE(made.has_value());
    co_return rig.pool->attach(*made);
  }
  Task<void> reopen() {
    co_await rig.pool->stop();
    rig.pool.reset();
    // The same memory, claimed anew.
    if (rig.memory != nullptr) {
      rig.region.reset();
      auto claimed = co_await rig.memory->claim("map", MapLog::kLeastRegionBytes);
      REQUIRE(claimed.has_value());
      rig.region = std::move(*claimed);
    }
    co_await open();
  }

  Rig rig;
  std::unique_ptr<FaultyStore> faulty;
  Random random{7};
};

Task<void> expect_cells(Bench* bench, PoolVolume* volume, std::uint64_t first, Cells cells) {
  const auto read = co_await read_cells(*volume, first, cells.size(), bench->random);
  REQUIRE(read.has_value());
  const bool same = *read == cells;
  CHECK(same);
}

Task<void> fail_changes(Executor& home, bool after_effect) {
  Bench bench(home, false);
  co_await bench.start();
  auto volume = co_await bench.make_volume();
  const Error first = co_await write_cells(*volume, 0, 8, 1, bench.random);
  CHECK(first == Error::kNone);
  const PoolSpace before = bench.rig.pool->space();
  const BranchId id = volume->branch().id();

  bench.faulty->failing = true;
  bench.faulty->after_effect = after_effect;
  const Error fresh = co_await write_cells(*volume, 130, 8, 2, bench.random);
  CHECK(fresh == Error::kNoSpace);
  // What needs no change of the map goes on.
  const Error in_place = co_await write_cells(*volume, 0, 8, 3, bench.random);
  CHECK(in_place == Error::kNone);
  const auto snapshot = co_await bench.rig.pool->snapshot({{.branch = id, .label = "s"}}, {});
  CHECK_FALSE(snapshot.has_value());
  const auto made = co_await bench.rig.pool->create({.byte_count = kTestPageBytes}, {});
  CHECK(made.error() == Error::kNoSpace);
  const Error removed = co_await bench.rig.pool->expand(id, 3 * kTestPageBytes, {});
  CHECK(removed == Error::kNoSpace);
  co_await expect_cells(&bench, volume.get(), 0, Cells(8, 3));
  co_await expect_cells(&bench, volume.get(), 130, Cells(8, 0));
  CHECK(volume->branch().snapshots.empty());
  CHECK(volume->branch().record.byte_count == 2 * kTestPageBytes);

  bench.faulty->failing = false;
  const Error healed = co_await write_cells(*volume, 140, 8, 4, bench.random);
  CHECK(healed == Error::kNone);
  // What the failed write had claimed is free again; one page more is used.
  CHECK(bench.rig.pool->space().free_pages == before.free_pages - 1);
  const std::string sound = co_await bench.rig.check();
  CHECK(sound == "");
  volume.reset();
  co_await bench.reopen();
  volume = bench.rig.pool->attach(id);
  REQUIRE(volume != nullptr);
  co_await expect_cells(&bench, volume.get(), 0, Cells(8, 3));
  co_await expect_cells(&bench, volume.get(), 130, Cells(8, 0));
  co_await expect_cells(&bench, volume.get(), 140, Cells(8, 4));
  CHECK(bench.rig.pool->map().branches().size() == 1);
  volume.reset();
  co_await bench.rig.stop();
}

// What a crash might unmap after all is not written over, until that is settled.
Task<void> fail_unmapping(Executor& home) {
  Bench bench(home, false);
  co_await bench.start();
  auto volume = co_await bench.make_volume();
  const BranchId id = volume->branch().id();
  const Error first = co_await write_cells(*volume, 0, 16, 1, bench.random);
  REQUIRE(first == Error::kNone);
  bench.faulty->failing = true;
  bench.faulty->after_effect = true;
  const Error unmapped = co_await unmap_cells(*volume, 0, 8, Operation::kUnmap);
  CHECK(unmapped == Error::kNoSpace);
  const Error over = co_await write_cells(*volume, 0, 8, 2, bench.random);
  CHECK(over == Error::kNoSpace);
  bench.faulty->failing = false;
  const Error again = co_await write_cells(*volume, 0, 8, 3, bench.random);
  CHECK(again == Error::kNone);
  volume.reset();
  co_await bench.reopen();
  volume = bench.rig.pool->attach(id);
  REQUIRE(volume != nullptr);
  co_await expect_cells(&bench, volume.get(), 0, Cells(8, 3));
  co_await expect_cells(&bench, volume.get(), 8, Cells(8, 1));
  volume.reset();
  co_await bench.rig.stop();
}

// A snapshot that was refused, or a clone, may be there after a crash all the same. Then it shows
// one moment.
Task<void> fail_a_snapshot(Executor& home, bool clone) {
  Bench bench(home, false);
  co_await bench.start();
  auto volume = co_await bench.make_volume();
  const BranchId id = volume->branch().id();
  const Error first = co_await write_cells(*volume, 0, 16, 1, bench.random);
  REQUIRE(first == Error::kNone);
  bench.faulty->failing = true;
  bench.faulty->after_effect = true;
  if (clone) {
    const auto made =
        co_await bench.rig.pool->clone({.branch = id, .generation = kLive}, {.label = "c"}, {});
    CHECK(made.error() == Error::kNoSpace);
  } else {
    const auto taken = co_await bench.rig.pool->snapshot({{.branch = id, .label = "s"}}, {});
    CHECK(taken.error() == Error::kNoSpace);
  }
  bench.faulty->after_effect = false;
  const Error over = co_await write_cells(*volume, 0, 8, 2, bench.random);
  CHECK(over == Error::kNoSpace);
  volume.reset();
  bench.faulty->failing = false;
  co_await bench.reopen();
  volume = clone ? bench.rig.pool->attach(id + 1) : bench.rig.pool->attach(id, 1);
  REQUIRE(volume != nullptr);
  co_await expect_cells(&bench, volume.get(), 0, Cells(16, 1));
  volume.reset();
  co_await bench.rig.stop();
}

Task<void> share_groups(Executor& home, bool nvram) {
  Bench bench(home, nvram);
  co_await bench.start();
  std::vector<std::unique_ptr<PoolVolume>> volumes;
  for (int i = 0; i < 8; ++i) {
    auto volume = co_await bench.make_volume();
    volumes.push_back(std::move(volume));
  }
  const MapLogCounters before = bench.rig.pool->log().counters();
  int running = 8;
  const auto write = [](PoolVolume* volume, Bench* shared, int* left) -> Task<void> {
    const Error error = co_await write_cells(*volume, 0, 8, 1, shared->random);
    CHECK(error == Error::kNone);
    --*left;
  };
  for (const auto& volume : volumes) spawn(write(volume.get(), &bench, &running));
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(running == 0);
  const MapLogCounters after = bench.rig.pool->log().counters();
  CHECK(after.commits == before.commits + 8);
  const std::uint64_t groups =
      after.nvram_groups + after.store_groups - before.nvram_groups - before.store_groups;
  CHECK(groups <= 2);
  CHECK((after.nvram_groups > before.nvram_groups) == nvram);
  volumes.clear();
  co_await bench.rig.stop();
}

// With a battery that is not good, groups go to the store; replay puts both in order.
Task<void> change_logs(Executor& home) {
  Bench bench(home, true);
  co_await bench.start();
  auto volume = co_await bench.make_volume();
  const BranchId id = volume->branch().id();
  for (std::uint32_t i = 0; i < 6; ++i) {
    bench.rig.memory->battery().set_state(i % 2 == 0 ? nvram::BatteryState::kGood
                                                     : nvram::BatteryState::kDead);
    // A checkpoint names the NVRAM again before groups are logged there.
    co_await home.sleep_for(std::chrono::milliseconds(10));
    const Error error = co_await write_cells(*volume, i * 8, 8, i + 1, bench.random);
    CHECK(error == Error::kNone);
  }
  bench.rig.memory->battery().set_state(nvram::BatteryState::kGood);
  co_await home.sleep_for(std::chrono::milliseconds(10));
  // What stands in NVRAM when the battery fails goes to the store at once.
  const Error last = co_await write_cells(*volume, 48, 8, 7, bench.random);
  CHECK(last == Error::kNone);
  const std::uint64_t checkpoints = bench.rig.pool->log().counters().checkpoints;
  bench.rig.memory->battery().set_state(nvram::BatteryState::kLow);
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(bench.rig.pool->log().counters().checkpoints == checkpoints + 1);
  bench.rig.memory->battery().set_state(nvram::BatteryState::kGood);
  const MapLogCounters counters = bench.rig.pool->log().counters();
  CHECK(counters.nvram_groups >= 3);
  CHECK(counters.store_groups >= 3);
  volume.reset();
  co_await bench.reopen();
  volume = bench.rig.pool->attach(id);
  for (std::uint32_t i = 0; i < 6; ++i) {
    co_await expect_cells(&bench, volume.get(), i * 8, Cells(8, i + 1));
  }
  volume.reset();
  co_await bench.rig.stop();
}

// Changes that were acknowledged out of an NVRAM that is gone are missed, and named.
Task<void> lose_nvram(Executor& home, bool closed) {
  Rig rig(home, {.stores = 1});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  const auto made = co_await rig.pool->create({.byte_count = kTestPageBytes}, {});
  REQUIRE(made.has_value());
  auto volume = rig.pool->attach(*made);
  Random random(1);
  const Error written = co_await write_cells(*volume, 0, 8, 1, random);
  CHECK(written == Error::kNone);
  volume.reset();
  if (closed) {
    const Error error = co_await rig.close();
    CHECK(error == Error::kNone);
  } else {
    co_await rig.stop();
  }
  rig.forget_board();
  const std::string found = co_await rig.start();
  if (closed) {
    CHECK(found == "");
    co_await rig.stop();
    co_return;
  }
  CHECK(found == "changes of the map are in another NVRAM than the one that is here");
  // By an explicit word it opens: as it was at the checkpoint.
  rig.options().pool.log.accept_loss = true;
  const std::string accepted = co_await rig.open_pool();
  CHECK(accepted == "");
  CHECK(rig.pool->log().lost());
  const std::string sound = co_await rig.check();
  CHECK(sound == "");
  co_await rig.stop();
}

Task<void> write_some(Rig* rig, BranchId id, std::uint64_t first, std::uint32_t number,
                      unsigned times) {
  Random random(1);
  auto volume = rig->pool->attach(id);
  for (unsigned i = 0; i < times; ++i) {
    const Error error = co_await write_cells(*volume, first + 8ULL * i, 8, number, random);
    CHECK(error == Error::kNone);
  }
}

Task<void> expect_some(Rig* rig, BranchId id, std::uint64_t first, std::uint32_t number) {
  Random random(1);
  auto volume = rig->pool->attach(id);
  const auto read = co_await read_cells(*volume, first, 8, random);
  const bool same = read.has_value() && *read == Cells(8, number);
  CHECK(same);
}

Task<std::string> open_without(Rig* rig) {
  rig->options().pool.log.accept_loss = true;
  std::string wrong = co_await rig->open_pool();
  rig->options().pool.log.accept_loss = false;
  co_return wrong;
}

// What was given up with an NVRAM is given up for good, whatever becomes of that NVRAM.
Task<void> bring_back_nvram(Executor& home) {
  nvram::SimulatedBoard lost(Rig::kImageBytes);
  nvram::SimulatedBoard other(Rig::kImageBytes);
  Rig rig(home, {.stores = 1, .board = &lost});
  std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  const auto made = co_await rig.pool->create({.byte_count = 2 * kTestPageBytes}, {});
  REQUIRE(made.has_value());
  const Error stored = co_await rig.pool->log().checkpoint();
  REQUIRE(stored == Error::kNone);
  co_await write_some(&rig, *made, 0, 1, 12);
  co_await rig.stop();
  rig.options().board = &other;
  wrong = co_await rig.start();
  CHECK(MapLog::is_loss(wrong));
  wrong = co_await open_without(&rig);
  REQUIRE(wrong == "");
  co_await write_some(&rig, *made, 128, 2, 1);
  co_await rig.stop();
  // Its turn comes while the other one has changes.
  rig.options().board = &lost;
  wrong = co_await rig.start();
  CHECK(MapLog::is_loss(wrong));
  co_await rig.end();
  rig.options().board = &other;
  wrong = co_await rig.start();
  REQUIRE(wrong == "");
  const Error closed = co_await rig.close();
  CHECK(closed == Error::kNone);
  // It is used again, and the daemon is killed before what it had is released.
  nvram::SimulatedBoard as_it_was = lost;
  rig.options().board = &lost;
  wrong = co_await rig.start();
  REQUIRE(wrong == "");
  co_await rig.stop();
  rig.options().board = &as_it_was;
  wrong = co_await rig.start();
  REQUIRE(wrong == "");
  const std::string sound = co_await rig.check();
  CHECK(sound == "");
  co_await expect_some(&rig, *made, 128, 2);
  co_await rig.stop();
}

// Nor does it count where the loss was accepted without any other.
Task<void> go_on_without_nvram(Executor& home) {
  nvram::SimulatedBoard lost(Rig::kImageBytes);
  Rig rig(home, {.stores = 1, .board = &lost});
  std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  const auto made = co_await rig.pool->create({.byte_count = 2 * kTestPageBytes}, {});
  REQUIRE(made.has_value());
  const Error stored = co_await rig.pool->log().checkpoint();
  REQUIRE(stored == Error::kNone);
  co_await write_some(&rig, *made, 0, 1, 12);
  co_await rig.stop();
  rig.options().nvram = false;
  wrong = co_await rig.start();
  CHECK(wrong == "changes of the map are in an NVRAM that is not here");
  wrong = co_await open_without(&rig);
  REQUIRE(wrong == "");
  co_await write_some(&rig, *made, 128, 2, 1);
  co_await rig.stop();
  wrong = co_await rig.start();
  REQUIRE(wrong == "");
  co_await rig.stop();
  rig.options().nvram = true;
  wrong = co_await rig.start();
  REQUIRE(wrong == "");
  const std::string sound = co_await rig.check();
  CHECK(sound == "");
  co_await expect_some(&rig, *made, 128, 2);
  co_await rig.stop();
}

// In the same memory, claimed anew. What kept it from being opened.
Task<std::string> open_again(Bench* bench, bool accept_loss) {
  Rig& rig = bench->rig;
  rig.region.reset();
  auto claimed = co_await rig.memory->claim("map", MapLog::kLeastRegionBytes);
  REQUIRE(claimed.has_value());
  rig.region = std::move(*claimed);
  PoolOptions options = test_options();
  options.log.accept_loss = accept_loss;
  std::vector<StoreConfig> stores;
  stores.push_back(rig.config_of(0));
  auto opened = co_await Pool::open(rig.home, *bench->faulty, rig.region.get(), std::move(options),
                                    std::move(stores));
  if (!opened.has_value()) co_return opened.error();
  rig.pool = std::move(*opened);
  co_return std::string();
}

// What an NVRAM has lost it forgets only when the store says that it is given up.
Task<void> fail_to_give_up(Executor& home) {
  Bench bench(home, true);
  co_await bench.start();
  Rig& rig = bench.rig;
  const auto made = co_await rig.pool->create({.byte_count = 2 * kTestPageBytes}, {});
  REQUIRE(made.has_value());
  const Error stored = co_await rig.pool->log().checkpoint();
  REQUIRE(stored == Error::kNone);
  co_await write_some(&rig, *made, 0, 1, 12);
  co_await rig.pool->stop();
  rig.pool.reset();
  for (std::byte& each : rig.region->bytes().subspan(2 * nvram::kPageBytes)) each ^= std::byte{1};
  std::string wrong = co_await open_again(&bench, false);
  CHECK(MapLog::is_loss(wrong));
  bench.faulty->failing = true;
  wrong = co_await open_again(&bench, true);
  CHECK(wrong == "the map cannot be written: no space left");
  bench.faulty->failing = false;
  wrong = co_await open_again(&bench, false);
  CHECK(MapLog::is_loss(wrong));
  wrong = co_await open_again(&bench, true);
  CHECK(wrong == "");
  REQUIRE(rig.pool != nullptr);
  const std::string sound = co_await rig.check();
  CHECK(sound == "");
  co_await rig.stop();
}

// The NVRAM's log is full, because the metadata take no checkpoint, and a volume is to be expanded.
Task<void> expand_with_a_full_log(Executor& home) {
  Bench bench(home, true);
  co_await bench.start();
  auto volume = co_await bench.make_volume();
  const BranchId id = volume->branch().id();
  Error error = co_await write_cells(*volume, 0, 8, 1, bench.random);
  CHECK(error == Error::kNone);
  bench.faulty->failing = true;
  std::uint32_t changes = 0;
  for (; error == Error::kNone && changes < 20'000; ++changes) {
    if (changes % 2 == 0) {
      error = co_await write_cells(*volume, 128, 8, 2, bench.random);
    } else {
      error = co_await unmap_cells(*volume, 128, 8, Operation::kUnmap);
    }
  }
  CHECK(error == Error::kNoSpace);
  CHECK(changes > 100);
  error = co_await bench.rig.pool->expand(id, 4 * kTestPageBytes, {});
  CHECK(error == Error::kNoSpace);
  CHECK(volume->branch().record.byte_count == 2 * kTestPageBytes);
  // What needs no change of the map goes on.
  error = co_await write_cells(*volume, 0, 8, 3, bench.random);
  CHECK(error == Error::kNone);
  bench.faulty->failing = false;
  error = co_await bench.rig.pool->expand(id, 4 * kTestPageBytes, {});
  CHECK(error == Error::kNone);
  error = co_await write_cells(*volume, 400, 8, 4, bench.random);
  CHECK(error == Error::kNone);
  volume.reset();
  co_await bench.reopen();
  const std::string sound = co_await bench.rig.check();
  CHECK(sound == "");
  volume = bench.rig.pool->attach(id);
  CHECK(volume->branch().record.byte_count == 4 * kTestPageBytes);
  co_await expect_cells(&bench, volume.get(), 0, Cells(8, 3));
  co_await expect_cells(&bench, volume.get(), 400, Cells(8, 4));
  volume.reset();
  co_await bench.rig.stop();
}

// The metadata fail at each commit of an expansion of a thick volume: it is done or not at all.
Task<void> fail_an_expansion_anywhere(Executor& home) {
  Bench bench(home, false);
  co_await bench.start();
  const auto made = co_await bench.rig.pool->create(
      {.byte_count = kTestPageBytes, .thick = true, .label = "v"}, {});
  REQUIRE(made.has_value());
  const PoolSpace before = bench.rig.pool->space();
  Error error = Error::kNoSpace;
  std::uint64_t sound = 0;
  for (; error != Error::kNone; ++sound) {
    REQUIRE(sound < 10);
    bench.faulty->sound_commits = sound;
    error = co_await bench.rig.pool->expand(*made, 9 * kTestPageBytes, {});
    bench.faulty->sound_commits = ~std::uint64_t{0};
    bench.faulty->failing = false;
    const bool done = error == Error::kNone;
    co_await bench.reopen();
    const std::string wrong = co_await bench.rig.check();
    CHECK(wrong == "");
    const Branch& branch = *bench.rig.pool->map().find(*made);
    CHECK(branch.record.byte_count == (done ? 9 : 1) * kTestPageBytes);
    // A sweep frees the pages of the groups before the one that failed.
    co_await bench.rig.sweep_all();
    CHECK(bench.rig.pool->space().free_pages == before.free_pages - (done ? 8 : 0));
  }
  CHECK(sound > 1);
  co_await bench.rig.stop();
}

Task<void> write_beside(PoolVolume* volume, bool* done) {
  Random random(2);
  const Error error = co_await write_cells(*volume, 64, 8, 2, random);
  CHECK(error == Error::kNone);
  *done = true;
}

// What is listed while the map is held is the whole map, whether the NVRAM is gone then or has
// changes that are newer.
Task<void> bring_back_listing(Executor& home, bool nvram_gone) {
  Rig rig(home, {.stores = 1});
  std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  const auto made = co_await rig.pool->create({.byte_count = kTestPageBytes}, {});
  REQUIRE(made.has_value());
  auto volume = rig.pool->attach(*made);
  Random random(1);
  const Error written = co_await write_cells(*volume, 0, 8, 1, random);
  CHECK(written == Error::kNone);
  const Error held = co_await rig.pool->hold();
  REQUIRE(held == Error::kNone);
  bool done = false;
  spawn(write_beside(volume.get(), &done));
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK_FALSE(done);
  auto entries = co_await rig.store->list("", "", 1000);
  REQUIRE(entries.has_value());
  rig.pool->release();
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(done);
  rig.pool->forget_log(*entries);
  volume.reset();
  co_await rig.pool->stop();
  rig.pool.reset();
  metadata::Batch batch;
  batch.erase_prefix("");
  for (const auto& [key, value] : *entries) batch.put(key, value);
  const Error put = co_await rig.store->commit(std::move(batch));
  CHECK(put == Error::kNone);
  co_await rig.end();
  if (nvram_gone) rig.forget_board();
  wrong = co_await rig.start();
  REQUIRE(wrong == "");
  const std::string sound = co_await rig.check();
  CHECK(sound == "");
  volume = rig.pool->attach(*made);
  const auto read = co_await read_cells(*volume, 0, 8, random);
  CHECK((read.has_value() && *read == Cells(8, 1)));
  volume.reset();
  co_await rig.stop();
}

Task<Error> flush_volume(PoolVolume* volume) {
  const Completion flushed = co_await volume->submit({.operation = Operation::kFlush});
  co_return flushed.error;
}

Task<Error> force_cells(Bench* bench, PoolVolume* volume, std::uint64_t first, Operation operation,
                        std::uint32_t number) {
  const std::uint64_t blocks = kCellBytes / volume->geometry().block_bytes;
  Request request{.operation = operation,
                  .force_unit_access = true,
                  .extent = {.first = first * blocks, .block_count = 8 * blocks}};
  if (operation == Operation::kWrite) {
    request.data = testing::make_payload(volume->home(), cells_of(first, 8, number),
                                         testing::Cut::kAligned, bench->random);
  }
  const Completion done = co_await volume->submit(std::move(request));
  co_return done.error;
}

// A power cut takes what the NVRAM has; the stores have all that was written.
Task<void> lose_power(Bench* bench, BranchId id, Cells cells) {
  bench->rig.memory->cut_power();
  co_await bench->rig.pool->stop();
  bench->rig.pool.reset();
  bench->rig.region.reset();
  bench->rig.memory.reset();
  co_await bench->rig.store->close();
  const std::string wrong = co_await bench->rig.start();
  REQUIRE(wrong == "");
  auto volume = bench->rig.pool->attach(id);
  REQUIRE(volume != nullptr);
  co_await expect_cells(bench, volume.get(), 0, std::move(cells));
}

Task<void> lose_trust(Executor& home, nvram::BatteryState battery) {
  Bench bench(home, true);
  co_await bench.start();
  auto volume = co_await bench.make_volume();
  const BranchId id = volume->branch().id();
  const Error first = co_await write_cells(*volume, 0, 16, 1, bench.random);
  CHECK(first == Error::kNone);
  bench.faulty->failing = true;
  bench.rig.memory->battery().set_state(battery);
  const Error flushed = co_await flush_volume(volume.get());
  CHECK(flushed == Error::kNoSpace);
  const Error forced = co_await force_cells(&bench, volume.get(), 0, Operation::kWrite, 2);
  CHECK(forced == Error::kNoSpace);
  const Error zeroed = co_await force_cells(&bench, volume.get(), 32, Operation::kUnmap, 0);
  CHECK(zeroed == Error::kNoSpace);
  // This write may be lost until a flush.
  const Error cached = co_await write_cells(*volume, 0, 8, 3, bench.random);
  CHECK(cached == Error::kNone);
  bench.faulty->failing = false;
  const Error again = co_await force_cells(&bench, volume.get(), 8, Operation::kWrite, 4);
  CHECK(again == Error::kNone);
  volume.reset();
  Cells expected(8, 3);
  expected.resize(16, 4);
  co_await lose_power(&bench, id, std::move(expected));
  co_await bench.rig.stop();
}

// Nobody asks for anything meanwhile.
Task<void> wait_for_store(Executor& home) {
  Bench bench(home, true);
  co_await bench.start();
  auto volume = co_await bench.make_volume();
  const BranchId id = volume->branch().id();
  const Error first = co_await write_cells(*volume, 0, 8, 1, bench.random);
  CHECK(first == Error::kNone);
  bench.faulty->failing = true;
  const std::uint64_t commits = bench.faulty->commits;
  bench.rig.memory->battery().set_state(nvram::BatteryState::kDead);
  co_await home.sleep_for(std::chrono::seconds(10));
  const std::uint64_t attempts = bench.faulty->commits - commits;
  CHECK(attempts >= 10);
  CHECK(attempts <= 12);
  bench.faulty->failing = false;
  co_await home.sleep_for(std::chrono::seconds(2));
  volume.reset();
  co_await lose_power(&bench, id, Cells(8, 1));
  co_await bench.rig.stop();
}

// The image fails after the last change, and the next start finds another NVRAM.
Task<void> fail_image(Executor& home) {
  nvram::SimulatedBoard board(Rig::kImageBytes);
  Bench bench(home, true);
  bench.rig.options().board = &board;
  co_await bench.start();
  auto volume = co_await bench.make_volume();
  const BranchId id = volume->branch().id();
  const Error first = co_await write_cells(*volume, 0, 8, 1, bench.random);
  CHECK(first == Error::kNone);
  board.sync_error = Error::kHardware;
  const Error lost = co_await bench.rig.memory->commit();
  CHECK(lost == Error::kHardware);
  co_await home.sleep_for(std::chrono::seconds(2));
  volume.reset();
  bench.rig.forget_board();
  co_await lose_power(&bench, id, Cells(8, 1));
  co_await bench.rig.stop();
}

Task<void> become_idle(Executor& home) {
  Bench bench(home, true);
  co_await bench.start();
  auto volume = co_await bench.make_volume();
  const MapLogCounters& counters = bench.rig.pool->log().counters();
  const std::uint64_t groups = counters.nvram_groups;
  const Error first = co_await write_cells(*volume, 0, 8, 1, bench.random);
  CHECK(first == Error::kNone);
  CHECK(counters.nvram_groups == groups + 1);
  const std::uint64_t checkpoints = counters.checkpoints;
  co_await home.sleep_for(std::chrono::seconds(10));
  CHECK(counters.checkpoints == checkpoints + 1);
  volume.reset();
  co_await bench.rig.stop();
}

}  // namespace

TEST_CASE("Flushes and FUA fail with the checkpoint while the NVRAM is not trusted",
          "[pool][N11]") {
  const auto battery = GENERATE(nvram::BatteryState::kLow, nvram::BatteryState::kDead);
  testing::run_in_world(12, [&](Executor& home) { return lose_trust(home, battery); });
}

TEST_CASE("The log repeats a failed checkpoint each second while the battery is dead",
          "[pool][N11]") {
  testing::run_in_world(13, wait_for_store);
}

TEST_CASE("The log stores the map without the NVRAM's name when the image fails", "[pool][N11]") {
  testing::run_in_world(14, fail_image);
}

TEST_CASE("The log writes one checkpoint when the pool becomes idle", "[pool][N11]") {
  testing::run_in_world(15, become_idle);
}

TEST_CASE("what a failed change might take after all is not written over", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return fail_unmapping(home); });
}
TEST_CASE("a snapshot that was refused shows one moment if it comes back", "[pool]") {
  const bool clone = GENERATE(false, true);
  testing::run_in_world(2, [&](Executor& home) { return fail_a_snapshot(home, clone); });
}
TEST_CASE("a change that cannot be logged has not happened", "[pool]") {
  const bool after_effect = GENERATE(false, true);
  testing::run_in_world(3, [&](Executor& home) { return fail_changes(home, after_effect); });
}

TEST_CASE("an expansion fails cleanly while the log is full, and is done afterwards", "[pool]") {
  testing::run_in_world(7, [](Executor& home) { return expand_with_a_full_log(home); });
}

TEST_CASE("an expansion of which any commit fails has not happened", "[pool]") {
  testing::run_in_world(8, [](Executor& home) { return fail_an_expansion_anywhere(home); });
}

TEST_CASE("changes of one turn share a group", "[pool]") {
  const bool nvram = GENERATE(false, true);
  testing::run_in_world(4, [&](Executor& home) { return share_groups(home, nvram); });
}

TEST_CASE("the log changes between NVRAM and store with the battery", "[pool]") {
  testing::run_in_world(5, [](Executor& home) { return change_logs(home); });
}

TEST_CASE("an NVRAM that is gone is missed, unless the pool was closed", "[pool]") {
  const bool closed = GENERATE(false, true);
  testing::run_in_world(6, [&](Executor& home) { return lose_nvram(home, closed); });
}

TEST_CASE("what was given up with an NVRAM does not come back with it", "[pool]") {
  testing::run_in_world(9, [](Executor& home) { return bring_back_nvram(home); });
}

TEST_CASE("what was given up without any NVRAM does not come back with one", "[pool]") {
  testing::run_in_world(10, [](Executor& home) { return go_on_without_nvram(home); });
}

TEST_CASE("a loss that could not be given up is found again", "[pool]") {
  testing::run_in_world(11, fail_to_give_up);
}

TEST_CASE("what is listed while a map is held needs no NVRAM", "[pool]") {
  const bool nvram_gone = GENERATE(false, true);
  testing::run_in_world(7, [&](Executor& home) { return bring_back_listing(home, nvram_gone); });
}

}  // namespace sandbay::pool::map_log_test
