// RunFolder: where a daemon of `sandbay run` has its files, for its user alone.
//
// While it is in use its lock is held by every process that has inherited it. A folder that nobody
// holds is left of a run whose processes were all killed at once; the next run removes it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace sandbay::cli {

class RunFolder {
 public:
  // In $TMPDIR, or else in memory (/dev/shm) if `room_bytes` are free there, or else in /tmp. A
  // folder to be `kept` is in $TMPDIR or /tmp. Throws Failure.
  RunFolder(std::uint64_t room_bytes, bool kept);

  const std::filesystem::path& path() const { return path_; }
  // The descriptor that holds the lock, closed for programs; -1 for a folder to be kept.
  int lock() const { return lock_; }
  // With all that is in it, unless it is to be kept.
  void remove() const;

 private:
  std::filesystem::path path_;
  bool kept_;
  int lock_ = -1;
};

}  // namespace sandbay::cli
