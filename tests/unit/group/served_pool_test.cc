// A pool of a group on sets in memory, in virtual time.
#include "group/served_pool.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "block/layer.h"
#include "block/memory_device.h"
#include "metadata/simulated_store.h"
#include "tests/unit/block/on_executor.h"

namespace sandbay::group {
namespace {

constexpr std::uint64_t kPageBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kSetBytes = 8 * kPageBytes + pool::StoreStamps::kBytes;

class SlowSet final : public Layer {
 public:
  explicit SlowSet(BlockDevice& set) : Layer(set) {}

 private:
  Task<Completion> read(Request request) override {
    co_await home().sleep_for(std::chrono::seconds(8));
    co_return co_await below().submit(std::move(request));
  }
};

struct Bench {
  explicit Bench(Executor& to_home) : home(to_home) {
    for (int i = 0; i < 2; ++i) {
      sets.push_back(std::move(*MemoryDevice::create(home, {.byte_count = kSetBytes})));
    }
  }
  Executor& home;
  std::unique_ptr<metadata::Store> store;
  EventLog events;
  std::vector<std::unique_ptr<MemoryDevice>> sets;
  std::unique_ptr<ServedPool> pool;
  std::vector<std::unique_ptr<SlowSet>> slow;
};

Task<void> open(Bench* bench, Duration stamp_patience = pool::StoreStamps::kPatience) {
  PoolRecord record{.name = "p", .members = {}, .leaving = {}, .page_bytes = kPageBytes};
  bench->pool = std::make_unique<ServedPool>(bench->home, *bench->store, bench->events,
                                             std::move(record), stamp_patience);
  bench->pool->find_devices = [bench] {
    for (const auto& [index, store] : bench->pool->pool()->map().stores()) {
      BlockDevice* const slow = bench->slow.empty() ? nullptr : bench->slow[index].get();
      bench->pool->set_device(index, slow != nullptr ? slow : bench->sets[index].get());
    }
  };
  co_await bench->pool->open(nullptr, false, {});
}

Task<void> close(Bench* bench) {
  const bool closed = co_await bench->pool->close(true, kNever);
  CHECK(closed);
  bench->pool.reset();
}

Task<void> begin(Bench* bench) {
  auto opened = co_await metadata::open_simulated_store(bench->home, "metadata");
  REQUIRE(opened.has_value());
  bench->store = std::move(*opened);
  co_await open(bench);
  for (std::size_t i = 0; i < bench->sets.size(); ++i) {
    Uuid set{};
    set[0] = static_cast<std::uint8_t>(i + 1);
    const std::string wrong = co_await bench->pool->take(set, bench->sets[i].get(), 0, {});
    REQUIRE(wrong == "");
  }
}

// Brings back a map from before pages were freed.
Task<void> age_map(Bench* bench) {
  pool::Pool& pool = *bench->pool->pool();
  const auto made = co_await pool.create({.byte_count = kPageBytes, .thick = true}, {});
  REQUIRE(made.has_value());
  Error error = co_await pool.hold();
  REQUIRE(error == Error::kNone);
  auto older = co_await bench->store->list("map/", "", std::numeric_limits<std::size_t>::max());
  pool.release();
  REQUIRE(older.has_value());
  error = co_await pool.remove(*made, {});
  REQUIRE(error == Error::kNone);
  while (pool.needs_sweep()) (void)co_await pool.sweep(8);
  co_await close(bench);
  metadata::Batch batch;
  batch.erase_prefix("map/");
  for (metadata::Entry& entry : *older) batch.put(std::move(entry.first), std::move(entry.second));
  error = co_await bench->store->commit(std::move(batch));
  REQUIRE(error == Error::kNone);
}

std::size_t refusals_in(const EventLog& events) {
  const auto all = events.since(0);
  return static_cast<std::size_t>(std::ranges::count_if(
      all, [](const EventInfo& event) { return event.text.contains(" is not used: "); }));
}

Task<void> refuse_again(Executor& home) {
  Bench bench(home);
  co_await begin(&bench);
  co_await age_map(&bench);
  co_await open(&bench);
  for (int attempt = 0; attempt < 3; ++attempt) {
    CHECK(bench.pool->pool() == nullptr);
    CHECK(refusals_in(bench.events) == bench.sets.size());
    co_await bench.pool->open(nullptr, false, {});
  }
  co_await bench.pool->open(nullptr, false, {.newer_map = true});
  CHECK(bench.pool->failure() == "");
  co_await close(&bench);
  co_await bench.store->close();
}

Task<void> wait_for_slow_sets(Executor& home) {
  Bench bench(home);
  co_await begin(&bench);
  co_await close(&bench);
  for (const auto& set : bench.sets) bench.slow.push_back(std::make_unique<SlowSet>(*set));
  for (const int seconds : {5, 60}) {
    co_await open(&bench, std::chrono::seconds(seconds));
    REQUIRE(bench.pool->failure() == "");
    for (const auto& [index, store] : bench.pool->pool()->map().stores()) {
      CHECK((bench.pool->pool()->device(index) != nullptr) == (seconds == 60));
    }
    co_await close(&bench);
  }
  co_await bench.store->close();
}

}  // namespace

TEST_CASE("A pool waits as long as it is given for the stamps of slow sets", "[pool][served]") {
  sandbay::testing::run_in_world(1, wait_for_slow_sets);
}

TEST_CASE("A pool with an older map reports each newer set once however often it is opened",
          "[group][pool][G-I7]") {
  sandbay::testing::run_in_world(1, refuse_again);
}

}  // namespace sandbay::group
