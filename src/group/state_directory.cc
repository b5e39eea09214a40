// The lock is flock(2): it belongs to the open file and goes with the process. Its file also
// holds the process's number, for the message that the second daemon gives.
#include "group/state_directory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

namespace sandbay::group {

namespace {

constexpr std::chrono::milliseconds kTriesLockAgain{20};

// mkdir -p with mode 0700 for what is new.
Started make_directory(const std::filesystem::path& path) {
  std::filesystem::path so_far;
  for (const auto& part : path) {
    so_far /= part;
    if (::mkdir(so_far.c_str(), 0700) == 0 || errno == EEXIST) continue;
    if (std::error_code error; std::filesystem::is_directory(so_far, error)) continue;
    return std::unexpected(fmt::format("state directory {}: {} cannot be made: {}", path.string(),
                                       so_far.string(), std::strerror(errno)));
  }
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    return std::unexpected(
        fmt::format("state directory {}: not a directory; name another with group.state or --state",
                    path.string()));
  }
  return {};
}

// Secrets stand in the metadata. The directory above stays as its owner made it.
void close_to_others(const std::filesystem::path& folder) {
  std::error_code error;  // Files that cannot be changed are behind a directory that was.
  ::chmod(folder.c_str(), 0700);
  std::filesystem::directory_iterator entry(folder, error);
  for (const std::filesystem::directory_iterator end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unknown;
    if (entry->is_regular_file(unknown) && !entry->is_symlink(unknown)) {
      ::chmod(entry->path().c_str(), 0600);
    }
  }
}

std::string holder_of(const std::filesystem::path& lock) {
  std::ifstream file(lock);
  long process = 0;
  if (file >> process && process > 0) return fmt::format("process {}", process);
  return "another daemon";
}

}  // namespace

std::expected<StateDirectory, StartRefusal> StateDirectory::open(
    const std::filesystem::path& path, std::chrono::milliseconds patience) {
  for (const auto& folder : {path, path / "volumes", path / "metadata", path / "drives"}) {
    const auto made = make_directory(folder);
    if (!made) return std::unexpected(made.error());
  }
  for (const char* const folder : {"volumes", "metadata", "drives"}) close_to_others(path / folder);
  const auto lock_path = path / "lock";
  const int lock = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) {
    return std::unexpected(fmt::format("state directory {}: {} cannot be opened: {}", path.string(),
                                       lock_path.string(), std::strerror(errno)));
  }
  const auto give_up = std::chrono::steady_clock::now() + patience;
  int locked = ::flock(lock, LOCK_EX | LOCK_NB);
  while (locked != 0 && errno == EWOULDBLOCK && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(kTriesLockAgain);
    locked = ::flock(lock, LOCK_EX | LOCK_NB);
  }
  if (locked != 0) {
    const bool taken = errno == EWOULDBLOCK;
    const std::string reason = taken ? fmt::format("is in use by {}", holder_of(lock_path))
                                     : fmt::format("cannot be locked: {}", std::strerror(errno));
    ::close(lock);
    return std::unexpected(
        fmt::format("state directory {}: {}; stop it, or name another with group.state or --state",
                    path.string(), reason));
  }
  const std::string text = fmt::format("{}\n", ::getpid());
  // Only a courtesy to a daemon that comes second.
  if (::ftruncate(lock, 0) == 0) {
    [[maybe_unused]] const auto written = ::pwrite(lock, text.data(), text.size(), 0);
  }
  return StateDirectory(path, lock);
}

StateDirectory::~StateDirectory() {
  if (lock_ >= 0) ::close(lock_);
}

Started StateDirectory::make_member(const std::string& name) const {
  const auto folder = path_ / "members" / name;
  for (const auto& one : {folder, folder / "drives"}) {
    auto made = make_directory(one);
    if (!made) return made;
    close_to_others(one);
  }
  return {};
}

}  // namespace sandbay::group
