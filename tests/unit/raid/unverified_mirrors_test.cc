// Mirrors that may differ, because a crash caught a write or because they were never compared: what
// a host has read once it reads again, whichever mirrors go meanwhile. Where mirrors are known to
// be alike a read asks one of them, once.
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "raid/assembly.h"
#include "raid/maintenance.h"
#include "raid/raid_set.h"
#include "runtime/simulation.h"
#include "test_drive.h"
#include "tests/unit/random_fill.h"

namespace sandbay::raid::unverified_mirrors_test {
namespace {

using raidtest::TestDrive;

constexpr std::uint64_t kDriveBytes = std::uint64_t{6} << 20;

using Bytes = std::vector<std::byte>;

// A set of mirrors whose drives all hold something else.
class Mirrors {
 public:
  Mirrors(Executor& home, Level level, unsigned drives) : home_(home), level_(level) {
    for (unsigned i = 0; i < drives; ++i) {
      devices.push_back(std::make_unique<TestDrive>(home, "d" + std::to_string(i), kDriveBytes));
      devices.back()->set_latency(std::chrono::microseconds(100));
    }
  }

  Task<void> create() {
    std::vector<NamedDevice> named;
    for (const auto& device : devices) named.push_back({device->description(), device.get()});
    const std::vector<Candidate> candidates = co_await gather_candidates(named);
    NewSet wanted;
    wanted.name = "set";
    wanted.level = level_;
    wanted.strip_bytes = 16384;
    wanted.region_stripes = 16;
    auto planned = plan_new_set(wanted, candidates, home_.random());
    REQUIRE(planned.has_value());
    const auto layout = planned->superblocks[0].layout();
    REQUIRE(layout.has_value());
    drives = std::make_unique<SetDrives>(home_, *layout, planned->superblocks[0], planned->regions,
                                         planned->lost);
    for (unsigned role = 0; role < devices.size(); ++role) {
      TestDrive& device = *devices[role];
      device.data_from = planned->superblocks[0].data_offset_blocks;
      Bytes garbage(kDriveBytes - device.data_from * 512);
      testing::fill_random(garbage, home_.random());
      device.state().visible.write(device.data_from * 512, garbage);
      drives->set_drive(role, device, device.description(), {});
    }
    const Error settled = co_await drives->save_clean(false);
    REQUIRE(settled == Error::kNone);
    set = std::make_unique<RaidSet>(home_, *drives, nullptr, RaidSetOptions{.name = "set"});
  }

  Task<Bytes> read(Extent extent) {
    Request request;
    request.extent = extent;
    request.data = co_await home_.buffers().allocate(extent.block_count * 512);
    Completion completion = co_await set->submit(std::move(request));
    CHECK(completion.error == Error::kNone);
    Bytes bytes(extent.block_count * 512);
    completion.data.copy_to(bytes);
    co_return bytes;
  }

  Extent any_extent() {
    const std::uint64_t blocks = set->geometry().block_count;
    const std::uint64_t length = 1 + home_.random().below(100);
    return {.first = home_.random().below(blocks - length), .block_count = length};
  }

  std::uint64_t reads() const {
    std::uint64_t sum = 0;
    for (const auto& device : devices) sum += device->counts.reads;
    return sum;
  }

  Task<void> end() {
    const Error error = co_await set->close(kNever);
    CHECK(error == Error::kNone);
    set.reset();
    const bool idle = co_await drives->wait_idle_until(kNever);
    CHECK(idle);
  }

  std::vector<std::unique_ptr<TestDrive>> devices;
  std::unique_ptr<SetDrives> drives;
  std::unique_ptr<RaidSet> set;

 private:
  Executor& home_;
  Level level_;
};

// All that was read is read again after each loss.
Task<void> reads_stay(Executor* home, Level level, unsigned count, std::vector<unsigned> losses) {
  Mirrors mirrors(*home, level, count);
  co_await mirrors.create();
  std::vector<std::pair<Extent, Bytes>> seen;
  for (unsigned i = 0; i < 40; ++i) {
    const Extent extent = mirrors.any_extent();
    Bytes bytes = co_await mirrors.read(extent);
    seen.emplace_back(extent, std::move(bytes));
  }
  for (const unsigned role : losses) {
    const bool gone = mirrors.drives->drop(role, DropReason::kFailed, "an operator says so");
    REQUIRE(gone);
    const Error settled = co_await mirrors.drives->settled();
    CHECK(settled == Error::kNone);
    unsigned changed = 0;
    for (const auto& [extent, bytes] : seen) {
      const Bytes again = co_await mirrors.read(extent);
      changed += again != bytes;
    }
    CHECK(changed == 0);
  }
  co_await mirrors.end();
}

Task<void> reads_one_mirror_once(Executor* home) {
  Mirrors mirrors(*home, Level::kRaid1, 2);
  co_await mirrors.create();
  const Extent extent{.first = 5, .block_count = 8};
  co_await mirrors.read(extent);
  std::uint64_t before = mirrors.reads();
  co_await mirrors.read(extent);  // Of a stripe that has been made alike.
  CHECK(mirrors.reads() == before + 1);
  Maintenance maintenance(*mirrors.set, {.rate_under_load = 0});
  maintenance.start();
  co_await maintenance.wait_idle();
  co_await maintenance.stop();
  REQUIRE(mirrors.drives->unverified_count() == 0);
  for (unsigned i = 0; i < 20; ++i) {
    before = mirrors.reads();
    co_await mirrors.read({.first = i * 32, .block_count = 8});
    CHECK(mirrors.reads() == before + 1);
  }
  co_await mirrors.end();
}

void in_world(std::uint64_t seed, const std::function<Task<void>(Executor&)>& body) {
  const auto world = sim::World::create({.seed = seed});
  Executor& home = *world->executors()[0];
  const bool ended = world->run([&] { return body(home); });
  REQUIRE(ended);
}

}  // namespace

TEST_CASE("what was read of mirrors that may differ is read again, whichever mirror goes") {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    in_world(seed, [](Executor& home) { return reads_stay(&home, Level::kRaid1, 2, {0}); });
    in_world(seed, [](Executor& home) { return reads_stay(&home, Level::kRaid1, 2, {1}); });
    in_world(seed, [](Executor& home) { return reads_stay(&home, Level::kRaid1, 3, {0, 1}); });
    in_world(seed, [](Executor& home) { return reads_stay(&home, Level::kRaid10, 4, {0, 2}); });
  }
}

TEST_CASE("of mirrors that are alike one is read, once") {
  in_world(1, [](Executor& home) { return reads_one_mirror_once(&home); });
}

}  // namespace sandbay::raid::unverified_mirrors_test
