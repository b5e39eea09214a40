// How fast the models compute. Printed, not asserted: machines differ.
#include <catch2/catch.hpp>
#include <cstdio>
#include <ctime>

#include "model/disk_model.h"
#include "model/flash_model.h"
#include "tests/unit/model/closed_loop.h"
#include "tests/unit/model/profile_files.h"

namespace sandbay::testing {

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
  print("solid-state drive, random reads, depth 32", [] {
    model::FlashModel drive(flash_profile("intel-p3700-800"));
    RandomPlaces places(1, Operation::kRead, 4096, drive.sector_count());
    return run_loop(drive, 32, 200'000, places).commands;
  });
}

}  // namespace sandbay::testing
