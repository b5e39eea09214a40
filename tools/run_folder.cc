// The lock is a file in the folder, so that nobody needs a place for locks.
#include "tools/run_folder.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "tools/client.h"

namespace sandbay::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = "sandbay-run-";
constexpr std::string_view kKept = "sandbay-kept-";
constexpr const char* kLock = "run.lock";
constexpr int kAttempts = 100;

fs::path place_for(std::uint64_t room_bytes, bool kept) {
  const char* const chosen = std::getenv("TMPDIR");
  if (chosen != nullptr && *chosen != '\0') return chosen;
  struct statvfs memory{};
  const bool fits = ::access("/dev/shm", W_OK | X_OK) == 0 && ::statvfs("/dev/shm", &memory) == 0 &&
                    std::uint64_t{memory.f_bavail} * memory.f_frsize >= room_bytes;
  return !kept && fits ? "/dev/shm" : "/tmp";
}

// Whether nobody else holds the lock of this folder, which is still there; `*lock` has it then.
bool take_lock(const fs::path& folder, int flags, int* lock) {
  *lock = ::open((folder / kLock).c_str(), flags | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (*lock < 0) return false;
  struct stat held{};
  struct stat there{};
  if (::flock(*lock, LOCK_EX | LOCK_NB) == 0 && ::fstat(*lock, &held) == 0 &&
      ::stat((folder / kLock).c_str(), &there) == 0 && held.st_ino == there.st_ino) {
    return true;
  }
  const int error = errno;
  ::close(*lock);
  errno = error;
  return false;
}

// Removes the lock last, so that a run that is killed meanwhile leaves a folder that the next one
// finds.
void remove_folder(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename() != kLock) fs::remove_all(entry.path(), error);
  }
  fs::remove_all(folder, error);
}

void remove_what_is_left(const fs::path& place) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(place, error)) {
    if (!entry.path().filename().string().starts_with(kTemporary)) continue;
    struct stat folder{};
    if (::lstat(entry.path().c_str(), &folder) != 0 || !S_ISDIR(folder.st_mode) ||
        folder.st_uid != ::geteuid()) {
      continue;
    }
    int lock = -1;
    if (!take_lock(entry.path(), 0, &lock)) {
      ::rmdir(entry.path().c_str());  // Its run was killed before it had a lock.
      continue;
    }
    remove_folder(entry.path());
    ::close(lock);
  }
}

}  // namespace

RunFolder::RunFolder(std::uint64_t room_bytes, bool kept) : kept_(kept) {
  const fs::path place = place_for(room_bytes, kept);
  for (const fs::path& each : {place, fs::path("/dev/shm"), fs::path("/tmp")}) {
    remove_what_is_left(each);
  }
  int problem = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::string form = (place / (kept ? kKept : kTemporary)).string() + "XXXXXX";
    if (::mkdtemp(form.data()) == nullptr) {
      throw Failure(fmt::format("no folder can be made in {}: {}; name another with TMPDIR",
                                place.string(), std::strerror(errno)),
                    Exit::kNotRun);
    }
    path_ = form;
    if (kept || take_lock(path_, O_CREAT | O_EXCL, &lock_)) return;
    problem = errno;
    remove_folder(path_);
    if (problem != ENOENT && problem != EWOULDBLOCK) break;  // Another run had taken it for left.
  }
  throw Failure(fmt::format("no file can be locked in {}: {}; name another folder with TMPDIR",
                            place.string(), std::strerror(problem)),
                Exit::kNotRun);
}

void RunFolder::remove() const {
  if (!kept_) remove_folder(path_);
}

}  // namespace sandbay::cli
