// StateDirectory: the folder a group keeps everything of its own in, held by one daemon at a time.
//
//   STATE/lock        locked (flock) for as long as the object lives
//   STATE/metadata/   the metadata store; mode 0700, since secrets stand there
//   STATE/volumes/    files of volumes, UUID.img
//   STATE/drives/     where a configuration puts files of drives
//   STATE/members/    the same, and images of NVRAM, for each other member; members/NAME/drives
//
// The lock goes with the process, so a daemon that was killed leaves nothing to clean up. Used
// before the reactors start: its calls block.
#pragma once

#include <chrono>
#include <expected>
#include <filesystem>
#include <string>
#include <utility>

#include "runtime/start_refusal.h"

namespace sandbay::group {

class StateDirectory {
 public:
  // Makes missing folders, with mode 0700, and locks the directory; if another daemon has it, waits
  // for that daemon's end for `patience`. Every refusal may pass: others use or mount the path.
  static std::expected<StateDirectory, StartRefusal> open(
      const std::filesystem::path& path,
      std::chrono::milliseconds patience = std::chrono::milliseconds(0));

  StateDirectory(StateDirectory&& other) noexcept
      : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}
  StateDirectory& operator=(StateDirectory&&) = delete;
  ~StateDirectory();

  // The folder for the files of a member beside the first.
  Started make_member(const std::string& name) const;

  const std::filesystem::path& path() const noexcept { return path_; }
  std::filesystem::path metadata() const { return path_ / "metadata"; }
  std::filesystem::path volumes() const { return path_ / "volumes"; }

 private:
  StateDirectory(std::filesystem::path path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace sandbay::group
