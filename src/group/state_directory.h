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
#include <optional>
#include <string>
#include <utility>

namespace sandbay::group {

class StateDirectory {
 public:
  // Makes what is missing, with mode 0700, and locks it; if another daemon has it, waits for that
  // one's end for `patience`. The error is one line.
  static std::expected<StateDirectory, std::string> open(
      const std::filesystem::path& path,
      std::chrono::milliseconds patience = std::chrono::milliseconds(0));

  StateDirectory(StateDirectory&& other) noexcept
      : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}
  StateDirectory& operator=(StateDirectory&&) = delete;
  ~StateDirectory();

  // Where the files of a member beside the first stand; nothing, or why it cannot be made.
  std::optional<std::string> make_member(const std::string& name) const;

  const std::filesystem::path& path() const noexcept { return path_; }
  std::filesystem::path metadata() const { return path_ / "metadata"; }
  std::filesystem::path volumes() const { return path_ / "volumes"; }

 private:
  StateDirectory(std::filesystem::path path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace sandbay::group
