// A group's limits are those of its folder and of all above it. A container sees its own folder at
// the top.
#include "runtime/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace sandbay {
namespace {

namespace fs = std::filesystem;

// The smallest limit in `file` of `folder` and of the folders above it, up to `top`.
std::uint64_t least_limit(const fs::path& top, fs::path folder, const char* file,
                          std::uint64_t most) {
  for (;; folder = folder.parent_path()) {
    std::uint64_t limit = 0;
    if (std::ifstream(folder / file) >> limit) most = std::min(most, limit);  // "max" is no number.
    if (folder == top || !folder.has_relative_path()) return most;
  }
}

}  // namespace

std::uint64_t memory_allowed(const fs::path& root) {
  std::uint64_t most = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const fs::path groups = root / "sys/fs/cgroup";
  // Lines such as "0::/user.slice" (version 2) and "4:memory:/docker/1f".
  std::ifstream own(root / "proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path group = fs::path(line.substr(second + 1)).relative_path();
    if (controllers == ",,") {
      most = least_limit(groups, groups / group, "memory.max", most);
    } else if (controllers.find(",memory,") != std::string::npos) {
      const fs::path top = groups / "memory";
      most = least_limit(top, top / group, "memory.limit_in_bytes", most);
    }
  }
  return most;
}

}  // namespace sandbay
