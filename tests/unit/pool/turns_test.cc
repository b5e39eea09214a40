// Goal: no operation of a pool has a long turn or makes hosts wait without an end.
// Method: large pools at no cost, and a beat that counts the changes of each turn; virtual time for
// devices that hang.
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/block/test_devices.h"
#include "tests/unit/pool/large_pool.h"

namespace sandbay::pool::turns_test {
namespace {

constexpr std::uint64_t kPageCells = kTestPageBytes / kCellBytes;
// The limit of changes in a turn: some milliseconds of work.
constexpr std::uint64_t kMostInATurn = 4096;

// The growth of a figure from beat to beat.
struct Growth {
  std::uint64_t before = 0;
  std::uint64_t most = 0;

  void look(std::uint64_t now) {
    if (now > before) most = std::max(most, now - before);
    before = now;
  }
};

Task<CheckReport> check(LargePool* large) {
  const Error stored = co_await large->pool->log().checkpoint();
  REQUIRE(stored == Error::kNone);
  co_return co_await check_map(&large->pool->map());
}

Task<void> sweep_all(LargePool* large) {
  while (large->pool->needs_sweep()) {
    const auto more = co_await large->pool->sweep(64);
    REQUIRE(more.has_value());
  }
}

// Thick volumes -----------------------------------------------------------------------------------

Task<void> make_thick(Executor& home) {
  LargePool large(home, 20'000);
  co_await large.start();
  Growth claimed;
  Growth placed;
  Beat beat(home, [&] {
    claimed.look(large.used());
    const auto& branches = large.pool->map().branches();
    placed.look(branches.empty() ? 0 : branches.begin()->second->pages.placed_count());
  });
  const auto made =
      co_await large.pool->create({.byte_count = 30'000 * kTestPageBytes, .thick = true}, {});
  co_await beat.stop();
  REQUIRE(made.has_value());
  CHECK(claimed.before == 30'000);
  CHECK(placed.before == 30'000);
  CHECK(claimed.most <= kMostInATurn);
  CHECK(placed.most <= kMostInATurn);
  const CheckReport report = co_await check(&large);
  CHECK(report.wrong == std::vector<std::string>{});
  CHECK(report.pages == 30'000);
  // A volume that is too large claims no page at all.
  const auto refused =
      co_await large.pool->create({.byte_count = 10'001 * kTestPageBytes, .thick = true}, {});
  CHECK(refused.error() == Error::kNoSpace);
  CHECK(large.used() == 30'000);
  co_await large.stop();
}

enum class Cut : std::uint8_t { kNone, kCrash };

// The second group of an expansion fails.
Task<void> fail_to_expand(Executor& home, Cut cut) {
  LargePool large(home, 20'000);
  co_await large.start();
  const auto made =
      co_await large.pool->create({.byte_count = 100 * kTestPageBytes, .thick = true}, {});
  REQUIRE(made.has_value());
  const std::uint64_t size = 10'100 * kTestPageBytes;
  large.store->fail_after(1);
  const Error failed = co_await large.pool->expand(*made, size, {});
  CHECK(failed == Error::kHardware);
  const auto bytes = [&] { return large.pool->map().find(*made)->record.byte_count; };
  CHECK(bytes() == 100 * kTestPageBytes);
  if (cut == Cut::kCrash) {
    co_await large.restart();
    CHECK(bytes() == 100 * kTestPageBytes);
  }
  CheckReport report = co_await check(&large);
  CHECK(report.wrong == std::vector<std::string>{});
  CHECK(large.used() > 100);
  // The second attempt uses the pages that the first one placed.
  const Error expanded = co_await large.pool->expand(*made, size, {});
  CHECK(expanded == Error::kNone);
  CHECK(bytes() == size);
  report = co_await check(&large);
  CHECK(report.wrong == std::vector<std::string>{});
  CHECK(report.pages == 10'100);
  CHECK(large.used() == 10'100);
  co_await sweep_all(&large);
  CHECK(large.used() == 10'100);
  co_await large.stop();
}

// A sweep frees the pages of a failed expansion, and of a volume that became much smaller.
Task<void> free_what_is_behind(Executor& home) {
  LargePool large(home, 20'000);
  co_await large.start();
  const auto made =
      co_await large.pool->create({.byte_count = 100 * kTestPageBytes, .thick = true}, {});
  REQUIRE(made.has_value());
  large.store->fail_after(1);
  const Error failed = co_await large.pool->expand(*made, 10'100 * kTestPageBytes, {});
  CHECK(failed == Error::kHardware);
  CHECK(large.used() > 100);
  co_await sweep_all(&large);
  CHECK(large.used() == 100);
  const Error expanded = co_await large.pool->expand(*made, 30'000 * kTestPageBytes, {});
  REQUIRE(expanded == Error::kNone);
  Growth freed;
  freed.before = large.pool->space().free_pages;
  Beat beat(home, [&] { freed.look(large.pool->space().free_pages); });
  const Error shrunk = co_await large.pool->shrink(*made, 50 * kTestPageBytes, {});
  REQUIRE(shrunk == Error::kNone);
  CheckReport report = co_await check(&large);
  CHECK(report.wrong == std::vector<std::string>{});
  co_await sweep_all(&large);
  co_await beat.stop();
  CHECK(large.used() == 50);
  CHECK(freed.most <= kMostInATurn);
  report = co_await check(&large);
  CHECK(report.wrong == std::vector<std::string>{});
  co_await large.stop();
}

// All pages behind the new end become zeros that hide the parent's.
Task<void> shrink_below_parent(Executor& home) {
  constexpr std::uint64_t kPages = 16'000;
  LargePool large(home, 20'000);
  co_await large.start();
  const auto made = co_await large.pool->create({.byte_count = kPages * kTestPageBytes}, {});
  REQUIRE(made.has_value());
  const auto cloned = co_await large.pool->clone({.branch = *made, .generation = kLive}, {}, {});
  REQUIRE(cloned.has_value());
  const Branch* const branch = large.pool->map().find(*cloned);
  const auto zeros = [branch] {
    std::uint64_t count = 0;
    for (PageNumber page = 0; page < kPages; ++page) {
      if (branch->pages.at(page).state == PageState::kZero) ++count;
    }
    return count;
  };
  large.store->fail_after(3);
  Error error = co_await large.pool->shrink(*cloned, kTestPageBytes, {});
  CHECK(error == Error::kHardware);
  CHECK(branch->record.byte_count == kPages * kTestPageBytes);
  CHECK(zeros() > 0);
  CHECK(zeros() < kPages - 1);
  const std::uint64_t groups = large.pool->log().counters().store_groups;
  Growth changed;
  changed.before = zeros();
  Beat beat(home, [&] { changed.look(zeros()); });
  error = co_await large.pool->shrink(*cloned, kTestPageBytes, {});
  co_await beat.stop();
  CHECK(error == Error::kNone);
  CHECK(zeros() == kPages - 1);
  CHECK(changed.most <= kMostInATurn);
  CHECK(large.pool->log().counters().store_groups - groups <= kPages / 500 + 2);
  const CheckReport report = co_await check(&large);
  CHECK(report.wrong == std::vector<std::string>{});
  co_await large.stop();
}

// A new volume that does not come to be leaves nothing.
Task<void> fail_to_create(Executor& home) {
  LargePool large(home, 20'000);
  co_await large.start();
  large.store->fail_after(1);
  const auto failed =
      co_await large.pool->create({.byte_count = 10'000 * kTestPageBytes, .thick = true}, {});
  CHECK(failed.error() == Error::kHardware);
  co_await sweep_all(&large);
  CHECK(large.used() == 0);
  CHECK(large.pool->map().branches().empty());
  co_await large.stop();
}

// Checks ------------------------------------------------------------------------------------------

Task<void> check_in_slices(Executor& home) {
  LargePool large(home, 20'000);
  co_await large.start();
  const auto made =
      co_await large.pool->create({.byte_count = 40'000 * kTestPageBytes, .thick = true}, {});
  REQUIRE(made.has_value());
  Beat beat(home, {});
  const CheckReport report = co_await large.pool->check();
  co_await beat.stop();
  CHECK(report.wrong == std::vector<std::string>{});
  CHECK(report.pages == 40'000);
  CHECK(beat.turns() >= 40'000 / kMostInATurn);
  co_await large.stop();
}

struct Traffic {
  PoolVolume* volume = nullptr;
  std::uint64_t seed = 0;
  std::uint64_t pages = 0;
  bool stop = false;
  std::uint64_t changes = 0;
  Event ended;
};

Task<void> change_volume(Traffic* traffic) {
  Random random(traffic->seed);
  while (!traffic->stop) {
    const std::uint64_t first = random.below(traffic->pages * kPageCells);
    const std::uint64_t room = traffic->pages * kPageCells - first;
    const std::uint64_t count = std::min<std::uint64_t>(room, 1 + random.below(2 * kPageCells));
    Error error = Error::kNone;
    if (random.chance(0.5)) {
      const std::uint32_t number = 1 + static_cast<std::uint32_t>(random.below(1000));
      error = co_await write_cells(*traffic->volume, first, std::min<std::uint64_t>(count, 4),
                                   number, random);
    } else {
      error = co_await unmap_cells(*traffic->volume, first, count, Operation::kUnmap);
    }
    CHECK(error == Error::kNone);
    ++traffic->changes;
  }
  traffic->ended.set();
}

std::uint64_t changes_of(const std::vector<std::unique_ptr<Traffic>>& traffic) {
  std::uint64_t changes = 0;
  for (const auto& one : traffic) changes += one->changes;
  return changes;
}

// Hosts write and unmap, with snapshots to keep for, while the map is verified again and again.
Task<void> check_beside_traffic(Executor& home, std::uint64_t seed) {
  PoolOptions options = test_options();
  options.map.chunk_map_bytes = 4096;
  options.map.kept_bytes = 4096;
  options.map.slot_map_bytes = 1024;
  options.log.store_groups = 16;
  // With stamps, changes that take places are late.
  const std::uint64_t spare_bytes = seed % 4 < 2 ? 0 : StoreStamps::kBytes;
  Rig rig(home,
          {.store_pages = 96, .spare_bytes = spare_bytes, .nvram = seed % 2 == 0, .pool = options});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  constexpr std::uint64_t kPages = 12;
  std::vector<std::unique_ptr<PoolVolume>> volumes;
  for (int i = 0; i < 3; ++i) {
    const auto made = co_await rig.pool->create(
        {.byte_count = kPages * kTestPageBytes, .thick = i == 2, .label = {}}, {});
    REQUIRE(made.has_value());
    volumes.push_back(rig.pool->attach(*made));
  }
  std::vector<std::unique_ptr<Traffic>> traffic;
  for (std::uint64_t i = 0; i < 6; ++i) {
    traffic.push_back(std::make_unique<Traffic>());
    traffic.back()->volume = volumes[i % 3].get();
    traffic.back()->seed = 10 * seed + i;
    traffic.back()->pages = kPages;
    spawn(change_volume(traffic.back().get()));
  }
  std::uint64_t beside = 0;  // Changes while a check was under way.
  for (int round = 0; round < 6; ++round) {
    const std::uint64_t before = changes_of(traffic);
    const CheckReport report = co_await rig.pool->check();
    beside += changes_of(traffic) - before;
    CHECK(report.error == Error::kNone);
    CHECK(report.wrong == std::vector<std::string>{});
    const BranchId id = volumes[static_cast<std::size_t>(round % 3)]->branch().id();
    const auto taken = co_await rig.pool->snapshot({{.branch = id, .label = {}}}, {});
    REQUIRE(taken.has_value());
    if (round == 4) {
      const Error removed = co_await rig.pool->remove_snapshot({.branch = id, .generation = 1}, {});
      CHECK(removed == Error::kNone);
      co_await rig.sweep_all();
    }
  }
  CHECK(beside > 0);
  for (const auto& one : traffic) one->stop = true;
  for (const auto& one : traffic) co_await one->ended.wait();
  volumes.clear();
  const std::string found = co_await rig.check();
  CHECK(found == "");
  co_await rig.stop();
}

// A page with two owners is a finding.
Task<void> find_two_owners(Executor& home) {
  LargePool large(home, 4'000);
  co_await large.start();
  const auto one =
      co_await large.pool->create({.byte_count = 2'000 * kTestPageBytes, .thick = true}, {});
  const auto other =
      co_await large.pool->create({.byte_count = 2'000 * kTestPageBytes, .thick = true}, {});
  REQUIRE((one.has_value() && other.has_value()));
  const auto place = [&](BranchId branch, PageNumber page) {
    return large.pool->map().find(branch)->pages.at(page).place();
  };
  const Error error = co_await large.pool->log().commit(
      {PlacePages{.branch = *other, .page = 1'999, .place = place(*one, 5)}});
  REQUIRE(error == Error::kNone);
  const CheckReport report = co_await large.pool->check();
  REQUIRE(report.wrong.size() == 1);
  CHECK(report.wrong[0].ends_with("has two owners"));
  co_await large.stop();
}

// Many snapshots ----------------------------------------------------------------------------------

// Incremental changes of the living generations agree with a new search.
Task<void> keep_living(Executor& home, std::uint64_t seed) {
  LargePool large(home, 100);
  co_await large.start();
  Random random(seed);
  const auto made = co_await large.pool->create({.byte_count = 4 * kTestPageBytes}, {});
  REQUIRE(made.has_value());
  Branch* const branch = large.pool->map().find(*made);
  std::vector<BranchId> clones;
  for (int step = 0; step < 200; ++step) {
    const std::uint64_t drawn = random.below(4);
    const bool any = !branch->snapshots.empty();
    auto picked = branch->snapshots.begin();
    if (any) std::advance(picked, random.below(branch->snapshots.size()));
    Error error = Error::kNone;
    if (drawn == 0 && any) {
      error =
          co_await large.pool->remove_snapshot({.branch = *made, .generation = picked->first}, {});
    } else if (drawn == 1 && any) {
      const auto clone =
          co_await large.pool->clone({.branch = *made, .generation = picked->first}, {}, {});
      REQUIRE(clone.has_value());
      clones.push_back(*clone);
    } else if (drawn == 2 && !clones.empty()) {
      error = co_await large.pool->remove(clones.back(), {});
      clones.pop_back();
      co_await sweep_all(&large);
    } else {
      const auto taken = co_await large.pool->snapshot({{.branch = *made, .label = {}}}, {});
      error = taken.has_value() ? Error::kNone : taken.error();
    }
    REQUIRE(error == Error::kNone);
    const std::vector<Generation> living = branch->living;
    branch->find_living();
    REQUIRE(living == branch->living);
  }
  co_await large.stop();
}

// Checkpoints -------------------------------------------------------------------------------------

Task<void> change_many_parts(Executor& home) {
  LargePool large(home, 4'000);
  // Only the number of changed parts makes a checkpoint due.
  large.options.log.store_groups = 1'000'000;
  co_await large.start();
  const auto made = co_await large.pool->create({.byte_count = 6'000 * kTestPageBytes}, {});
  REQUIRE(made.has_value());
  auto volume = large.pool->attach(*made);
  Random random(1);
  for (std::uint64_t page = 0; page < 6'000; ++page) {
    const Error error = co_await write_cells(*volume, page * kPageCells, 1, 1, random);
    REQUIRE(error == Error::kNone);
  }
  // Each page has a chunk map of its own.
  CHECK(large.pool->log().counters().checkpoints > 3);
  CHECK(large.store->most_changes() <= 3 * 1024);
  volume.reset();
  co_await large.stop();
}

// Hung devices ------------------------------------------------------------------------------------

struct Written {
  bool done = false;
  Error error = Error::kNone;
};

Task<void> write_page(PoolVolume* volume, std::uint64_t page, std::uint32_t number,
                      Written* written) {
  Random random(number);
  written->error = co_await write_cells(*volume, page * kPageCells, 1, number, random);
  written->done = true;
}

struct Hang {
  explicit Hang(Executor& home, RigOptions options) : rig(home, std::move(options)) {}

  // A volume with page 0 on store 0 and page 1 on store 1, which can hang.
  Task<void> start() {
    const std::string wrong = co_await rig.start();
    REQUIRE(wrong == "");
    hung = std::make_unique<testing::HungDevice>(*rig.devices[1]);
    rig.pool->set_device(1, hung.get());
    rig.pool->observe([this](const PoolEvent& event) { events.push_back(event); });
    const auto made = co_await rig.pool->create({.byte_count = 2 * kTestPageBytes}, {});
    REQUIRE(made.has_value());
    volume = rig.pool->attach(*made);
    Random random(1);
    for (std::uint64_t page = 0; page < 2; ++page) {
      rig.pool->set_latency(static_cast<StoreIndex>(1 - page), 1e6);
      rig.pool->set_latency(static_cast<StoreIndex>(page), 1);
      const Error error = co_await write_cells(*volume, page * kPageCells, 1, 1, random);
      REQUIRE(error == Error::kNone);
      REQUIRE(volume->branch().pages.at(static_cast<PageNumber>(page)).place_store == page);
    }
  }
  bool told() const {
    return std::ranges::count(events, PoolEvent::Kind::kWritesHang, &PoolEvent::kind) == 1;
  }
  Task<void> stop() {
    volume.reset();
    rig.pool->set_device(1, rig.devices[1].get());
    const std::string wrong = co_await rig.check();
    CHECK(wrong == "");
    co_await rig.stop();
  }

  Rig rig;
  std::unique_ptr<testing::HungDevice> hung;
  std::unique_ptr<PoolVolume> volume;
  std::vector<PoolEvent> events;
};

struct Taken {
  bool done = false;
  Error error = Error::kNone;
};

Task<void> take_snapshot(Hang* hang, Taken* taken) {
  const BranchId id = hang->volume->branch().id();
  const auto made = co_await hang->rig.pool->snapshot({{.branch = id, .label = {}}}, {});
  taken->error = made.has_value() ? Error::kNone : made.error();
  taken->done = true;
}

// A write or a flush hangs below one store. Writes to the other store go on within 2 s, and a
// snapshot succeeds when the hang is over.
Task<void> snapshot_hung(Executor& home, bool flush) {
  Hang hang(home, {.files = flush});
  co_await hang.start();
  Written stuck;
  if (flush) {
    hang.hung->hang_only(Operation::kFlush);
  } else {
    hang.hung->hang();
    spawn(write_page(hang.volume.get(), 1, 2, &stuck));
    co_await home.sleep_for(std::chrono::milliseconds(1));
  }
  Taken taken;
  spawn(take_snapshot(&hang, &taken));
  for (int i = 0; i < 700 && !taken.done; ++i) {
    co_await home.sleep_for(std::chrono::milliseconds(100));
    Written other;
    const TimePoint begun = home.now();
    spawn(write_page(hang.volume.get(), 0, 3, &other));
    while (!other.done) co_await home.sleep_for(std::chrono::milliseconds(10));
    CHECK(other.error == Error::kNone);
    CHECK(home.now() - begun <= std::chrono::milliseconds(2100));
  }
  CHECK(taken.done);
  CHECK(taken.error == Error::kTimedOut);
  CHECK(hang.told());
  hang.hung->release();
  if (!flush) {
    while (!stuck.done) co_await home.sleep_for(std::chrono::milliseconds(10));
    CHECK(stuck.error == Error::kNone);
  }
  Taken again;
  spawn(take_snapshot(&hang, &again));
  while (!again.done) co_await home.sleep_for(std::chrono::milliseconds(10));
  CHECK(again.error == Error::kNone);
  co_await hang.stop();
}

// Answers late, and is not hung.
class SlowStore final : public Layer {
 public:
  SlowStore(BlockDevice& below, Operation slow, Duration late)
      : Layer(below), slow_(slow), late_(late) {}
  Task<Completion> submit(Request request) override {
    if (request.operation == slow_) co_await home().sleep_for(late_);
    co_return co_await Layer::submit(std::move(request));
  }
  void become(Duration late) { late_ = late; }

 private:
  Operation slow_;
  Duration late_;
};

struct Slowness {
  explicit Slowness(Executor& home) : rig(home, {.stores = 1, .files = true}) {}

  Task<void> start(Operation operation) {
    const std::string wrong = co_await rig.start();
    REQUIRE(wrong == "");
    slow = std::make_unique<SlowStore>(*rig.devices[0], operation, Duration::zero());
    rig.pool->set_device(0, slow.get());
    const auto made = co_await rig.pool->create({.byte_count = 4 * kTestPageBytes}, {});
    REQUIRE(made.has_value());
    volume = rig.pool->attach(*made);
    Random random(1);
    const Error error = co_await write_cells(*volume, 0, 1, 1, random);
    REQUIRE(error == Error::kNone);
  }
  Task<Result<SnapshotKey>> take() {
    const BranchId id = volume->branch().id();
    const auto taken = co_await rig.pool->snapshot({{.branch = id, .label = {}}}, {});
    if (!taken.has_value()) co_return std::unexpected(taken.error());
    co_return SnapshotKey{.branch = id, .generation = (*taken)[0]};
  }
  Task<void> stop() {
    stopping = true;
    while (running > 0) co_await rig.home.sleep_for(std::chrono::milliseconds(10));
    volume.reset();
    rig.pool->set_device(0, rig.devices[0].get());
    const std::string wrong = co_await rig.check();
    CHECK(wrong == "");
    co_await rig.stop();
  }

  Rig rig;
  std::unique_ptr<SlowStore> slow;
  std::unique_ptr<PoolVolume> volume;
  bool stopping = false;
  int running = 0;
  Duration longest{};  // The longest time of a request.
};

Task<void> send_one(Slowness* of, Operation operation) {
  ++of->running;
  const TimePoint begun = of->rig.home.now();
  Error error = Error::kNone;
  if (operation == Operation::kFlush) {
    const Completion flushed = co_await of->volume->submit({.operation = Operation::kFlush});
    error = flushed.error;
  } else {
    Random random(1);
    error = co_await write_cells(*of->volume, 0, 1, 1, random);
  }
  CHECK((error == Error::kNone || error == Error::kCancelled));
  of->longest = std::max(of->longest, of->rig.home.now() - begun);
  --of->running;
}

// A host that sends a request every 100 ms.
Task<void> send_requests(Slowness* of, Operation operation) {
  ++of->running;
  while (!of->stopping) {
    spawn(send_one(of, operation));
    co_await of->rig.home.sleep_for(std::chrono::milliseconds(100));
  }
  --of->running;
}

// Each request inside a door takes 3 s when it is closed.
Task<void> change_slow_volume(Executor& home, Operation operation) {
  Slowness slowness(home);
  co_await slowness.start(operation);
  slowness.slow->become(std::chrono::seconds(3));
  spawn(send_requests(&slowness, operation));
  co_await home.sleep_for(std::chrono::seconds(20));
  const auto taken = co_await slowness.take();
  REQUIRE(taken.has_value());
  const auto restored = co_await slowness.rig.pool->restore(*slowness.volume, *taken, {});
  CHECK(restored.has_value());
  const BranchId id = slowness.volume->branch().id();
  const Error shrunk = co_await slowness.rig.pool->shrink(id, 2 * kTestPageBytes, {});
  CHECK(shrunk == Error::kNone);
  co_await slowness.stop();
  CHECK(slowness.longest <= WriteDoor::kMostPatience);
}

// The first flush takes 30 s, and each one after it a tenth of the one before.
Task<void> snapshot_dirty_store(Executor& home) {
  Slowness slowness(home);
  co_await slowness.start(Operation::kFlush);
  slowness.slow->become(std::chrono::seconds(30));
  spawn(send_requests(&slowness, Operation::kWrite));
  Taken taken;
  const auto take = [](Slowness* of, Taken* into) -> Task<void> {
    const auto made = co_await of->take();
    into->error = made.has_value() ? Error::kNone : made.error();
    into->done = true;
  };
  spawn(take(&slowness, &taken));
  co_await home.sleep_for(std::chrono::milliseconds(1));
  slowness.slow->become(std::chrono::seconds(3));
  co_await home.sleep_for(std::chrono::seconds(30));
  slowness.slow->become(std::chrono::milliseconds(300));
  while (!taken.done) co_await home.sleep_for(std::chrono::milliseconds(10));
  CHECK(taken.error == Error::kNone);
  co_await slowness.stop();
  CHECK(slowness.longest <= std::chrono::milliseconds(400));
}

// A snapshot that cannot succeed holds up nobody.
Task<void> snapshot_too_slow(Executor& home) {
  Slowness slowness(home);
  co_await slowness.start(Operation::kFlush);
  slowness.slow->become(std::chrono::seconds(20));
  spawn(send_requests(&slowness, Operation::kWrite));
  const auto taken = co_await slowness.take();
  REQUIRE_FALSE(taken.has_value());
  CHECK(taken.error() == Error::kTimedOut);
  co_await slowness.stop();
  CHECK(slowness.longest <= std::chrono::milliseconds(10));
}

Task<void> sweep_once(Pool* pool, bool* done) {
  const auto more = co_await pool->sweep(64);
  CHECK(more.has_value());
  *done = true;
}

// A sweep waits for the write, and holds up no other; a check gives up waiting for the sweep.
Task<void> sweep_hung(Executor& home) {
  Hang hang(home, {});
  co_await hang.start();
  Taken taken;
  spawn(take_snapshot(&hang, &taken));
  while (!taken.done) co_await home.sleep_for(std::chrono::milliseconds(1));
  const BranchId id = hang.volume->branch().id();
  const Error removed =
      co_await hang.rig.pool->remove_snapshot({.branch = id, .generation = 1}, {});
  REQUIRE(removed == Error::kNone);
  hang.hung->hang();
  Written stuck;
  spawn(write_page(hang.volume.get(), 1, 2, &stuck));
  co_await home.sleep_for(std::chrono::milliseconds(1));
  bool swept = false;
  spawn(sweep_once(hang.rig.pool.get(), &swept));
  co_await home.sleep_for(std::chrono::milliseconds(1));
  CHECK(!swept);
  Written other;
  spawn(write_page(hang.volume.get(), 0, 3, &other));
  co_await home.sleep_for(std::chrono::milliseconds(1));
  CHECK(other.done);
  const CheckReport report = co_await hang.rig.pool->check();
  CHECK(report.error == Error::kTimedOut);
  CHECK(hang.told());
  hang.hung->release();
  while (!stuck.done || !swept) co_await home.sleep_for(std::chrono::milliseconds(10));
  co_await hang.rig.sweep_all();
  co_await hang.stop();
}

Task<void> move_to_hung_store(Hang* hang, Taken* moved) {
  moved->error = co_await hang->rig.pool->move_page(hang->volume->branch().id(), 0, 1);
  moved->done = true;
}

Task<void> shrink_volume(Hang* hang, Taken* shrunk) {
  const BranchId id = hang->volume->branch().id();
  shrunk->error = co_await hang->rig.pool->shrink(id, kTestPageBytes, {});
  shrunk->done = true;
}

// A shrink gives up waiting for a copy, and succeeds when the hang is over.
Task<void> shrink_beside_hung_copy(Executor& home) {
  Hang hang(home, {});
  co_await hang.start();
  hang.hung->hang();
  Taken moved;
  spawn(move_to_hung_store(&hang, &moved));
  co_await home.sleep_for(std::chrono::milliseconds(1));
  CHECK(hang.hung->held() == 1);
  Taken shrunk;
  spawn(shrink_volume(&hang, &shrunk));
  co_await home.sleep_for(std::chrono::seconds(61));
  CHECK(shrunk.done);
  CHECK(shrunk.error == Error::kTimedOut);
  CHECK(hang.told());
  CHECK(hang.volume->geometry().block_count * 512 == 2 * kTestPageBytes);
  hang.hung->release();
  while (!moved.done || !shrunk.done) co_await home.sleep_for(std::chrono::milliseconds(10));
  CHECK(moved.error == Error::kNone);
  Taken again;
  co_await shrink_volume(&hang, &again);
  CHECK(again.error == Error::kNone);
  CHECK(hang.volume->geometry().block_count * 512 == kTestPageBytes);
  co_await hang.stop();
}

// Stores that go ----------------------------------------------------------------------------------

Task<void> forget_history(Executor& home) {
  Rig rig(home, {.stores = 3});
  const std::string wrong = co_await rig.start();
  REQUIRE(wrong == "");
  const auto fixed =
      co_await rig.pool->create({.byte_count = kTestPageBytes, .fixed_store = 1}, {});
  REQUIRE(fixed.has_value());
  for (const std::uint32_t index : {1U, 2U}) {
    const auto store = static_cast<StoreIndex>(index);
    rig.pool->set_latency(store, 16);
    rig.pool->note_request(store, home.now() - std::chrono::seconds(1), 4096);
    rig.pool->note_silence(store);
    StoreConfig leaving = rig.config_of(index);
    leaving.record.state = StoreState::kVacating;
    Error error = co_await rig.pool->put_store(leaving, {});
    REQUIRE(error == Error::kNone);
    error = co_await rig.pool->remove_store(store, {});
    REQUIRE(error == Error::kNone);
    CHECK(rig.pool->latency(store) == 1);
    CHECK(rig.pool->load(store).requests == 0);
    CHECK(!rig.pool->is_silent(store));
  }
  // A volume is fixed to the old store 1, not to a new one of that number.
  CHECK(rig.pool->free_store_index() == 2);
  co_await rig.stop();
}

}  // namespace

TEST_CASE("A large thick volume gets its pages in slices", "[pool][turns][G-S1]") {
  testing::run_on_reactor(make_thick);
}

TEST_CASE("A large thick volume whose creation fails leaves no pages behind",
          "[pool][turns][G-S1]") {
  testing::run_in_world(1, fail_to_create);
}

TEST_CASE("A volume whose expansion fails keeps its size and can be expanded again",
          "[pool][turns][G-L6]") {
  testing::run_in_world(1, [](Executor& home) { return fail_to_expand(home, Cut::kNone); });
  testing::run_in_world(2, [](Executor& home) { return fail_to_expand(home, Cut::kCrash); });
}

TEST_CASE("A shrink with a parent changes many pages in one group", "[pool][turns][P-6]") {
  testing::run_in_world(1, shrink_below_parent);
}

TEST_CASE("A sweep frees places behind the end of a volume", "[pool][turns][G-L6]") {
  testing::run_on_reactor(free_what_is_behind);
}

TEST_CASE("A check visits the map in slices", "[pool][turns][G-C3]") {
  testing::run_on_reactor(check_in_slices);
}

TEST_CASE("A check beside writes finds nothing wrong in a right map", "[pool][turns][G-C3]") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    testing::run_in_world(seed,
                          [seed](Executor& home) { return check_beside_traffic(home, seed); });
  }
}

TEST_CASE("A check finds a page that two volumes have", "[pool][turns][G-C3]") {
  testing::run_in_world(1, find_two_owners);
}

TEST_CASE("The list of living generations is right after each change", "[pool][turns][G-C2]") {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    testing::run_in_world(seed, [seed](Executor& home) { return keep_living(home, seed); });
  }
}

TEST_CASE("A checkpoint has at most some thousand parts", "[pool][turns][G-L7]") {
  testing::run_in_world(1, change_many_parts);
}

TEST_CASE("A snapshot gives up when a write or a flush hangs", "[pool][turns][G-L2]") {
  testing::run_in_world(1, [](Executor& home) { return snapshot_hung(home, false); });
  testing::run_in_world(2, [](Executor& home) { return snapshot_hung(home, true); });
}

TEST_CASE("A snapshot, a restore and a shrink succeed on a slow store", "[pool][turns][N5]") {
  for (const Operation operation : {Operation::kFlush, Operation::kWrite}) {
    testing::run_in_world(
        1, [operation](Executor& home) { return change_slow_volume(home, operation); });
  }
}

TEST_CASE("A snapshot repeats its flush until hosts wait for little", "[pool][turns][N5]") {
  testing::run_in_world(1, snapshot_dirty_store);
}

TEST_CASE("A snapshot holds up no host when a flush takes too long", "[pool][turns][N5]") {
  testing::run_in_world(1, snapshot_too_slow);
}

TEST_CASE("A sweep holds up no write while another one hangs", "[pool][turns][G-L2]") {
  testing::run_in_world(1, sweep_hung);
}

TEST_CASE("A shrink gives up when a copy in the background hangs", "[pool][turns][P-5]") {
  testing::run_in_world(1, shrink_beside_hung_copy);
}

TEST_CASE("A removed store leaves neither its history nor its number to the next",
          "[pool][turns][G-C12]") {
  testing::run_in_world(1, forget_history);
}

}  // namespace sandbay::pool::turns_test
