// How fast the models compute. Printed, not asserted: machines differ.
#include <catch2/catch.hpp>
#include <cstdio>
#include <ctime>

#include "block/block_device.h"
#include "model/disk_model.h"
#include "model/flash_model.h"
#include "model/modelled_drive.h"
#include "runtime/simulation.h"
#include "runtime/sync.h"
#include "tests/unit/model/closed_loop.h"
#include "tests/unit/model/profile_files.h"

namespace sandbay::testing {
namespace {

using model::ModelledDrive;

// Does nothing at once.
class Nothing final : public BlockDevice {
 public:
  Nothing(Executor& home, std::uint64_t sectors) : home_(home) { geometry_.block_count = sectors; }
  Executor& home() const noexcept override { return home_; }
  const Geometry& geometry() const noexcept override { return geometry_; }
  Health health() const noexcept override { return Health::kGood; }
  std::string description() const override { return "nothing"; }
  Task<Completion> submit(Request request) override {
    co_return Completion{.data = std::move(request.data)};
  }
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    co_return ProvisioningRun{.block_count = limit - first};
  }

 private:
  Executor& home_;
  Geometry geometry_;
};

Task<void> keep_busy(ModelledDrive& drive, std::uint64_t seed, std::uint64_t count, Gate& gate) {
  const GateHold hold(gate);
  Random random(seed);
  const std::uint64_t places = drive.geometry().block_count / 16;
  for (std::uint64_t i = 0; i < count; ++i) {
    // Zeros travel without buffers.
    Request request{.operation = Operation::kWriteZeroes,
                    .extent = {random.below(places) * 16, 16}};
    const Completion done = co_await drive.submit(std::move(request));
    if (done.error != Error::kNone) FAIL("a write of zeros failed");
  }
}

Task<void> run_drives(Executor& home, std::shared_ptr<const model::DiskMechanism> mechanism,
                      std::uint64_t drives, std::uint64_t depth, std::uint64_t count) {
  const model::ModelClock clock;
  std::vector<std::unique_ptr<Nothing>> below;
  std::vector<std::unique_ptr<ModelledDrive>> modelled;
  Gate gate;
  for (std::uint64_t i = 0; i < drives; ++i) {
    below.push_back(std::make_unique<Nothing>(home, mechanism->profile.sector_count));
    modelled.push_back(std::make_unique<ModelledDrive>(
        *below.back(), clock,
        std::make_unique<model::DiskModel>(mechanism,
                                           model::DiskOptions{.seed = i, .background = {}})));
    modelled.back()->begin_time();
    for (std::uint64_t j = 0; j < depth; ++j) {
      REQUIRE(gate.enter());
      spawn(keep_busy(*modelled.back(), i * depth + j, count / drives / depth, gate));
    }
  }
  co_await gate.close();
}

}  // namespace

TEST_CASE("commands a second of a processor's time", "[model][speed]") {
  const auto print = [](const char* what, auto run) {
    const std::clock_t begin = std::clock();
    const std::uint64_t commands = run();
    const double took = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    std::printf("%-40s %.2f million commands a second\n", what,
                static_cast<double>(commands) / took / 1e6);
    CHECK(commands > 0);
  };
  const auto mechanism =
      std::make_shared<const model::DiskMechanism>(disk_profile("seagate-cheetah-15k5-146"));
  for (const std::uint64_t depth : {1U, 8U, 32U}) {
    const std::string what = "disk, random reads, depth " + std::to_string(depth);
    print(what.c_str(), [&] {
      model::DiskModel drive(mechanism, {});
      RandomPlaces places(1, Operation::kRead, 8192, drive.sector_count());
      return run_loop(drive, depth, 100'000, places).commands;
    });
  }
  print("disk, sequential reads, depth 2", [&] {
    model::DiskModel drive(mechanism, {});
    return run_loop(drive, 2, 100'000, Sequence(Operation::kRead, 65536, 0)).commands;
  });
  for (const std::uint64_t depth : {1U, 16U}) {
    const std::string what = "16 drives in a world, depth " + std::to_string(depth);
    print(what.c_str(), [&] {
      const auto world = sim::World::create({.seed = 1});
      const bool ended = world->run(
          [&] { return run_drives(*world->executors()[0], mechanism, 16, depth, 160'000); },
          std::chrono::hours(10));
      REQUIRE(ended);
      return std::uint64_t{160'000};
    });
  }
  print("solid-state drive, random reads, depth 32", [] {
    model::FlashModel drive(flash_profile("intel-p3700-800"));
    RandomPlaces places(1, Operation::kRead, 4096, drive.sector_count());
    return run_loop(drive, 32, 200'000, places).commands;
  });
}

}  // namespace sandbay::testing
