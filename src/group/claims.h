// Claims: whose a file is. A volume may stand on a file or device only if no other volume does and
// if it is nothing that the group keeps for itself: STATE/before-import, STATE/import, STATE/lock,
// STATE/metadata, STATE/volumes.
//
// Files are told apart by device and inode, devices by their number, so that no other name for one
// (a symbolic link, a hard link, another directory on the way) passes; a file that is not there
// yet, by where it would be. A loop device that shows a whole file is that file. What keeps two
// daemons apart is the lock each volume takes besides.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/executor.h"
#include "runtime/start_refusal.h"
#include "runtime/task.h"

namespace sandbay::group {

// Blocks, as the others here that are no tasks. Equal for two paths exactly if they lead to the
// same file or device.
std::string identity_of(const std::filesystem::path& path);

// The file that a block device, by its number, shows as a whole; nothing if it is no loop device in
// use, or shows a part of a file. `system` is where the kernel tells of devices.
std::optional<std::filesystem::path> file_behind(unsigned major, unsigned minor,
                                                 const std::filesystem::path& system = "/sys");

// Why no volume may stand on `path` because of what it is to the group; half a sentence.
std::optional<std::string> claim_of_group(const std::filesystem::path& path,
                                          const std::filesystem::path& state);

// Why management may not have a volume stand on `path`, a file or device that may not exist yet;
// half a sentence. `path` must be one of `folders` or in one, once every symbolic link on the
// way is followed. Blocks.
std::optional<std::string> outside_of(const std::filesystem::path& path,
                                      const std::vector<std::filesystem::path>& folders);

// A file or device that is in use, and by what.
struct Claim {
  std::filesystem::path path;
  std::string identity;  // identity_of(path); empty if it must be found out.
  std::string reason;    // Its owner, and what to do; half a sentence.
};

// Why nothing else may use `path`: it belongs to one of `claims`, or to the group itself
// (kConfiguration), or its filesystem does not answer (kNotNow). Half a sentence. A filesystem that
// does not answer for another claim is not waited for: then names are compared, and the locks of
// files decide.
Task<std::optional<StartRefusal>> find_claim(Executor& home, std::filesystem::path path,
                                             std::vector<Claim> claims,
                                             std::filesystem::path state);

}  // namespace sandbay::group
