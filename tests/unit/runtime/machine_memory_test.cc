// The memory that a process may use, by control groups in a folder of the test.
#include "runtime/machine_memory.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "tests/unit/block/scratch_directory.h"

namespace sandbay::machine_memory_test {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST_CASE("The least limit of a control group and those above it counts", "[runtime]") {
  const testing::ScratchDirectory scratch;
  const fs::path root = scratch.file("root");
  const std::uint64_t machine = memory_allowed(root);
  CHECK(machine > 0);
  const fs::path groups = root / "sys/fs/cgroup";
  SECTION("version 2") {
    write(root / "proc/self/cgroup", "0::/a/b\n");
    CHECK(memory_allowed(root) == machine);
    write(groups / "a/b/memory.max", "max\n");
    CHECK(memory_allowed(root) == machine);
    write(groups / "a/memory.max", "134217728\n");
    CHECK(memory_allowed(root) == 134217728);
    write(groups / "a/b/memory.max", "67108864\n");
    CHECK(memory_allowed(root) == 67108864);
  }
  SECTION("version 2, as a container sees it") {
    write(root / "proc/self/cgroup", "0::/\n");
    write(groups / "memory.max", "67108864\n");
    CHECK(memory_allowed(root) == 67108864);
  }
  SECTION("version 1") {
    write(root / "proc/self/cgroup", "5:devices:/x\n4:cpu,memory:/docker/1f\n0::/\n");
    write(groups / "memory/docker/1f/memory.limit_in_bytes", "67108864\n");
    write(groups / "memory/memory.limit_in_bytes", "9223372036854771712\n");
    CHECK(memory_allowed(root) == 67108864);
  }
  SECTION("a container sees only the top of version 1") {
    write(root / "proc/self/cgroup", "4:memory:/docker/1f\nnonsense\n");
    write(groups / "memory/memory.limit_in_bytes", "67108864\n");
    CHECK(memory_allowed(root) == 67108864);
  }
}

}  // namespace
}  // namespace sandbay::machine_memory_test
