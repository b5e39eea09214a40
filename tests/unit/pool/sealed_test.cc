// Damaged values of the map: whatever bit of whichever value is another when it is read, the pool
// is not opened, or what needs that value fails, and nothing wrong is served. Afterwards, with the
// values as they were, all is well.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch.hpp>

#include "pool/sealed.h"
#include "runtime/probe.h"
#include "tests/unit/pool/pool_rig.h"

namespace sandbay::pool::sealed_test {
namespace {

constexpr std::uint64_t kCells = 3 * kTestPageBytes / kCellBytes;
constexpr std::uint64_t kCellsAtOnce = kChunkBytes / kCellBytes;

// Inverts a bit of the n-th value that passes.
class Flipper final : public ProbeDecider {
 public:
  Flipper(std::string_view probe, std::uint64_t after, std::uint64_t bit)
      : probe_(probe), left_(after), bit_(bit) {}
  bool struck() const noexcept { return struck_; }

  ProbeVerdict decide(const ProbePoint& point) override {
    if (point.name != probe_ || struck_) return {};
    if (left_-- > 0) return {};
    struck_ = true;
    return {.action = kFlipBit, .argument = bit_};
  }

 private:
  std::string_view probe_;
  std::uint64_t left_;
  std::uint64_t bit_;
  bool struck_ = false;
};

struct Kept {
  BranchId branch = 0;
  Generation generation = 0;
  Cells live = Cells(kCells, 0);
  Cells old = Cells(kCells, 0);
};

Task<void> put(PoolVolume* volume, Cells* cells, std::uint64_t first, std::uint32_t number) {
  Random random{1};
  const Error error = co_await write_cells(*volume, first, 10, number, random);
  REQUIRE(error == Error::kNone);
  std::fill_n(cells->begin() + static_cast<std::ptrdiff_t>(first), 10, number);
}

// Mixed pages, kept chunks and slots.
Task<void> provision(Rig* rig, Kept* kept) {
  const auto made = co_await rig->pool->create({.byte_count = 3 * kTestPageBytes}, {});
  REQUIRE(made.has_value());
  kept->branch = *made;
  auto volume = rig->pool->attach(*made);
  for (const std::uint64_t first : {0, 30, 130}) co_await put(volume.get(), &kept->live, first, 1);
  const auto taken = co_await rig->pool->snapshot({{.branch = *made, .label = "s"}}, {});
  REQUIRE(taken.has_value());
  kept->generation = taken->front();
  kept->old = kept->live;
  for (const std::uint64_t first : {5, 135, 300}) co_await put(volume.get(), &kept->live, first, 2);
}

// How many reads fail; none is wrong.
Task<std::size_t> read_all(Rig* rig, BranchId branch, Generation generation, Cells expected) {
  std::size_t failed = 0;
  Random random{2};
  auto volume = rig->pool->attach(branch, generation);
  REQUIRE(volume != nullptr);
  for (std::uint64_t first = 0; first < kCells; first += kCellsAtOnce) {
    const auto read = co_await read_cells(*volume, first, kCellsAtOnce, random);
    if (!read.has_value()) {
      CHECK(read.error() == Error::kDataCorrupt);
      ++failed;
      continue;
    }
    const auto from = expected.begin() + static_cast<std::ptrdiff_t>(first);
    const bool same = *read == Cells(from, from + kCellsAtOnce);
    CHECK(same);
  }
  co_return failed;
}

// Opens it, reads everything and closes it: what was found out of the damage, or an empty text.
Task<std::string> visit(Rig* rig, const Kept* kept) {
  const std::string wrong = co_await rig->start();
  if (!wrong.empty()) {
    CHECK(wrong.find("checksum is wrong") != std::string::npos);
    co_await rig->end();
    co_return wrong;
  }
  std::vector<std::string> told;
  rig->pool->observe([&](const PoolEvent& event) {
    if (event.kind == PoolEvent::Kind::kMapDamage) told.push_back(event.key);
  });
  std::size_t failed = co_await read_all(rig, kept->branch, kept->generation, kept->old);
  failed += co_await read_all(rig, kept->branch, kLive, kept->live);
  const bool early = !told.empty();
  CHECK((failed > 0) == early);
  const std::string sound = co_await rig->check();
  if (!early) CHECK(sound.empty() == told.empty());
  co_await rig->stop();
  co_return told.empty() ? std::string() : told.front();
}

Task<void> damage_every_value(Executor& home, std::uint64_t seed) {
  Random random{seed};
  Rig rig(home, {.nvram = false});
  std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  Kept kept;
  co_await provision(&rig, &kept);
  const Error closed = co_await rig.close();
  CHECK(closed == Error::kNone);
  std::uint64_t values = 0;
  for (bool more = true; more; ++values) {
    Flipper flipper("map.read", values, random.next());
    const Probe::Installation installation(home, flipper);
    const std::string found = co_await visit(&rig, &kept);
    more = flipper.struck();
    CAPTURE(values);
    CHECK(found.empty() != more);
  }
  // Checkpoint, two stores, branch, snapshot, leaf, slots, two mixed pages, two kept leaves.
  CHECK(values > 11);
  const std::string found = co_await visit(&rig, &kept);
  CHECK(found == "");
}

// What is damaged when it is written stays damaged, and is found when it is read.
Task<void> damage_what_is_stored(Executor& home) {
  Rig rig(home, {.nvram = false});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  Kept kept;
  co_await provision(&rig, &kept);
  std::optional<Probe::Installation> installation;
  Flipper flipper("map.write", 0, 77);
  installation.emplace(home, flipper);
  const Error closed = co_await rig.close();
  CHECK(closed == Error::kNone);
  CHECK(flipper.struck());
  installation.reset();
  for (int i = 0; i < 2; ++i) {
    const std::string found = co_await visit(&rig, &kept);
    CHECK_FALSE(found.empty());
  }
}

// Kept versions that cannot be read hold up the freeing of no others.
Task<void> damage_what_is_useless(Executor& home) {
  Rig rig(home, {.nvram = false});
  std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  Kept sound;
  Kept damaged;
  co_await provision(&rig, &sound);
  co_await provision(&rig, &damaged);
  REQUIRE(damaged.branch > sound.branch);
  // Chunks are kept of two pages, of which the first is damaged.
  const std::string key =
      rig.pool->map().key_of(PageKey{.branch = damaged.branch, .page = 0}, damaged.generation);
  const Error closed = co_await rig.close();
  CHECK(closed == Error::kNone);
  wrong = co_await rig.start();
  REQUIRE(wrong == "");
  const auto there = co_await rig.store->get(key);
  REQUIRE(there.value().has_value());
  metadata::Batch batch;
  batch.put(key, "damaged");
  const Error put = co_await rig.store->commit(std::move(batch));
  CHECK(put == Error::kNone);
  for (const Kept* const kept : {&damaged, &sound}) {
    const Error removed = co_await rig.pool->remove_snapshot(
        {.branch = kept->branch, .generation = kept->generation}, {});
    CHECK(removed == Error::kNone);
  }
  const PoolMap& map = rig.pool->map();
  const std::uint64_t before = map.find(damaged.branch)->record.kept.total();
  Result<bool> more = true;
  for (int i = 0; i < 100 && more == true; ++i) more = co_await rig.pool->sweep(2);
  CHECK(more == std::unexpected(Error::kDataCorrupt));
  CHECK(rig.pool->needs_sweep());
  CHECK(map.find(sound.branch)->record.kept.total() == 0);
  CHECK_FALSE(map.find(sound.branch)->record.sweeping);
  CHECK(map.find(damaged.branch)->record.kept.total() > 0);
  CHECK(map.find(damaged.branch)->record.kept.total() < before);
  co_await rig.stop();
}

}  // namespace

TEST_CASE("a seal is of one value at one key", "[pool]") {
  const std::string stored = sealed("a", "value");
  CHECK(stored.size() == 5 + kSealBytes);
  CHECK(unsealed("a", stored) == "value");
  CHECK(unsealed("a", sealed("a", "")) == "");
  CHECK(unsealed("b", stored) == std::nullopt);
  CHECK(unsealed("a", "") == std::nullopt);
  CHECK(unsealed("a", "val") == std::nullopt);
  for (std::size_t i = 0; i < 8 * stored.size(); ++i) {
    std::string other = stored;
    other[i / 8] = static_cast<char>(other[i / 8] ^ 1 << (i % 8));
    CHECK(unsealed("a", other) == std::nullopt);
  }
}

TEST_CASE("a damaged value of the map is found and never believed", "[pool]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 9));
  CAPTURE(seed);
  testing::run_in_world(seed, [&](Executor& home) { return damage_every_value(home, seed); });
}

TEST_CASE("what is damaged holds up no sweep of anything else", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return damage_what_is_useless(home); });
}

TEST_CASE("a value of the map that was damaged when it was written is refused", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return damage_what_is_stored(home); });
}

}  // namespace sandbay::pool::sealed_test
