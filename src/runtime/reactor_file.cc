// Files on a reactor. Reads, writes, syncs and hole punching are io_uring requests; the few calls
// without an asynchronous form (opening, sizes, seeking for holes) run on the reactor's blocking
// thread and belong to management, not to the data path.

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "runtime/reactor_internal.h"

namespace sandbay::detail {
namespace {

constexpr std::size_t kMostSlices = 1024;  // IOV_MAX
constexpr std::size_t kDirectAlignment = 4096;

// Asks the kernel to end the operation when the request's Cancellation fires.
struct CancelOperation final : Cancellation::Hook {
  CancelOperation(Cancellation* cancellation, Reactor& reactor, Operation& operation)
      : Hook(cancellation,
             [](Hook& hook) {
               auto& self = static_cast<CancelOperation&>(hook);
               self.reactor_.cancel(self.operation_);
             }),
        reactor_(reactor),
        operation_(operation) {}

 private:
  Reactor& reactor_;
  Operation& operation_;
};

class ReactorFile final : public File {
 public:
  ReactorFile(Reactor& reactor, int descriptor, bool direct, std::size_t alignment,
              bool block_device)
      : reactor_(reactor),
        descriptor_(descriptor),
        alignment_(alignment),
        direct_(direct),
        block_device_(block_device) {}
  // The kernel may hold the file a little longer for a request that it has answered already, and
  // with it the lock: that is given back by name.
  ~ReactorFile() override {
    if (!block_device_) ::flock(descriptor_, LOCK_UN);
    ::close(descriptor_);
  }

  Executor& home() const noexcept override { return reactor_; }
  bool direct() const noexcept override { return direct_; }
  std::size_t alignment() const noexcept override { return alignment_; }
  bool is_block_device() const noexcept override { return block_device_; }

  Task<Error> read(std::uint64_t offset, std::span<const IoSlice> target,
                   Cancellation* cancellation) override {
    return transfer(false, offset, target, cancellation);
  }
  Task<Error> write(std::uint64_t offset, std::span<const IoSlice> source,
                    Cancellation* cancellation) override {
    return transfer(true, offset, source, cancellation);
  }
  Task<Error> sync(Cancellation* cancellation) override;
  Task<Result<std::uint64_t>> size() override;
  Task<Error> resize(std::uint64_t byte_count) override;
  Task<Error> allocate(std::uint64_t offset, std::uint64_t byte_count) override {
    return fallocate(0, offset, byte_count);
  }
  Task<Error> punch_hole(std::uint64_t offset, std::uint64_t byte_count) override {
    return fallocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, byte_count);
  }
  Task<Error> write_zeroes(std::uint64_t offset, std::uint64_t byte_count) override {
    return fallocate(FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, offset, byte_count);
  }
  Task<Result<Run>> run_at(std::uint64_t offset) override;

 private:
  Task<Error> transfer(bool write, std::uint64_t offset, std::span<const IoSlice> slices,
                       Cancellation* cancellation);
  Task<int> transfer_once(bool write, std::uint64_t offset, std::span<const IoSlice> slices,
                          Cancellation* cancellation);
  Task<Error> transfer_rest(bool write, std::uint64_t offset, std::span<const IoSlice> slices,
                            std::size_t done, Cancellation* cancellation);
  Task<Error> fallocate(int mode, std::uint64_t offset, std::uint64_t byte_count);

  Reactor& reactor_;
  int descriptor_;
  std::size_t alignment_;
  bool direct_;
  bool block_device_;
};

namespace {

// The memory may be a mapping whose file is not as long any more. The kernel then says only that it
// cannot have it, which is no fault of the drive; whoever mapped it makes it good when it is
// touched.
void touch(std::span<const IoSlice> slices, bool only_read) {
  constexpr std::size_t kPage = 4096;
  for (const IoSlice& slice : slices) {
    for (std::size_t at = 0; at < slice.byte_count;) {
      volatile std::byte& place = slice.data[at];
      const std::byte value = place;
      if (!only_read) place = value;
      const auto address = reinterpret_cast<std::uintptr_t>(slice.data + at);
      at += kPage - address % kPage;
    }
  }
}

}  // namespace

Task<int> ReactorFile::transfer_once(bool write, std::uint64_t offset,
                                     std::span<const IoSlice> slices, Cancellation* cancellation) {
  const auto* const vectors = reinterpret_cast<const iovec*>(slices.data());
  const auto count = static_cast<unsigned>(std::min(slices.size(), kMostSlices));
  bool touched = false;
  for (;;) {
    if (cancellation != nullptr && cancellation->cancelled()) co_return -ECANCELED;
    Operation operation;
    io_uring_sqe* const entry = reactor_.prepare(operation);
    if (write) {
      io_uring_prep_writev(entry, descriptor_, vectors, count, offset);
    } else {
      io_uring_prep_readv(entry, descriptor_, vectors, count, offset);
    }
    const CancelOperation hook(cancellation, reactor_, operation);
    const int result = co_await operation;
    if (result == -EFAULT && !touched) {
      touched = true;
      touch(slices, write);
      continue;
    }
    if (result != -EINTR) co_return result;  // A signal that was not for it ended it.
  }
}

Task<Error> ReactorFile::transfer(bool write, std::uint64_t offset, std::span<const IoSlice> slices,
                                  Cancellation* cancellation) {
  std::size_t byte_count = 0;
  for (const IoSlice& slice : slices) byte_count += slice.byte_count;
  const int result = co_await transfer_once(write, offset, slices, cancellation);
  if (result < 0) co_return error_from_errno(result);
  if (static_cast<std::size_t>(result) == byte_count) co_return Error::kNone;
  const Error error =
      co_await transfer_rest(write, offset, slices, static_cast<std::size_t>(result), cancellation);
  co_return error;
}

// A transfer that the kernel cut short goes on where it stopped.
Task<Error> ReactorFile::transfer_rest(bool write, std::uint64_t offset,
                                       std::span<const IoSlice> slices, std::size_t done,
                                       Cancellation* cancellation) {
  std::vector<IoSlice> rest(slices.begin(), slices.end());
  std::size_t first = 0;
  offset += done;
  if (done == 0) co_return write ? Error::kNoSpace : Error::kOutOfRange;
  for (;;) {
    while (first < rest.size() && done >= rest[first].byte_count) {
      done -= rest[first].byte_count;
      ++first;
    }
    if (first == rest.size()) co_return Error::kNone;
    rest[first].data += done;
    rest[first].byte_count -= done;
    const std::span<const IoSlice> remaining(rest.begin() + static_cast<std::ptrdiff_t>(first),
                                             rest.end());
    const int result = co_await transfer_once(write, offset, remaining, cancellation);
    if (result < 0) co_return error_from_errno(result);
    if (result == 0) co_return write ? Error::kNoSpace : Error::kOutOfRange;
    done = static_cast<std::size_t>(result);
    offset += done;
  }
}

Task<Error> ReactorFile::sync(Cancellation* cancellation) {
  for (;;) {
    if (cancellation != nullptr && cancellation->cancelled()) co_return Error::kCancelled;
    Operation operation;
    io_uring_prep_fsync(reactor_.prepare(operation), descriptor_, IORING_FSYNC_DATASYNC);
    const CancelOperation hook(cancellation, reactor_, operation);
    const int result = co_await operation;
    if (result != -EINTR) co_return error_from_errno(result);
  }
}

Task<Error> ReactorFile::fallocate(int mode, std::uint64_t offset, std::uint64_t byte_count) {
  for (;;) {
    Operation operation;
    io_uring_prep_fallocate(reactor_.prepare(operation), descriptor_, mode,
                            static_cast<off_t>(offset), static_cast<off_t>(byte_count));
    const int result = co_await operation;
    if (result != -EINTR) co_return error_from_errno(result);
  }
}

Task<Result<std::uint64_t>> ReactorFile::size() {
  struct Call {
    int descriptor;
    bool block_device;
    std::uint64_t byte_count;
  } call{descriptor_, block_device_, 0};
  const int result = co_await reactor_.run_blocking(
      [](void* argument) {
        auto& self = *static_cast<Call*>(argument);
        if (self.block_device) {
          return ::ioctl(self.descriptor, BLKGETSIZE64, &self.byte_count) == 0 ? 0 : -errno;
        }
        struct stat status{};
        if (::fstat(self.descriptor, &status) != 0) return -errno;
        self.byte_count = static_cast<std::uint64_t>(status.st_size);
        return 0;
      },
      &call);
  if (result < 0) co_return std::unexpected(error_from_errno(result));
  co_return call.byte_count;
}

Task<Error> ReactorFile::resize(std::uint64_t byte_count) {
  struct Call {
    int descriptor;
    std::uint64_t byte_count;
  } call{descriptor_, byte_count};
  const int result = co_await reactor_.run_blocking(
      [](void* argument) {
        const auto& self = *static_cast<Call*>(argument);
        return ::ftruncate(self.descriptor, static_cast<off_t>(self.byte_count)) == 0 ? 0 : -errno;
      },
      &call);
  co_return error_from_errno(result);
}

Task<Result<File::Run>> ReactorFile::run_at(std::uint64_t offset) {
  struct Call {
    int descriptor;
    std::uint64_t offset;
    Run run;
  } call{descriptor_, offset, {}};
  const int result = co_await reactor_.run_blocking(
      [](void* argument) {
        auto& self = *static_cast<Call*>(argument);
        const auto start = static_cast<off_t>(self.offset);
        const off_t end = ::lseek(self.descriptor, 0, SEEK_END);
        if (end < 0) return -errno;
        if (start >= end) return -ERANGE;
        const off_t data = ::lseek(self.descriptor, start, SEEK_DATA);
        if (data < 0 && errno != ENXIO) return -errno;
        self.run.hole = data != start;
        off_t next = end;
        if (data == start) {
          next = ::lseek(self.descriptor, start, SEEK_HOLE);
          if (next < 0) return -errno;
        } else if (data > start) {
          next = data;
        }
        self.run.byte_count = static_cast<std::uint64_t>(next - start);
        return 0;
      },
      &call);
  if (result < 0) co_return std::unexpected(error_from_errno(result));
  co_return call.run;
}

struct OpenCall {
  std::string path;
  FileOptions options;
  int descriptor = -1;
  bool direct = false;
  bool block_device = false;
  std::size_t alignment = 1;
};

// What direct I/O on this file must be aligned to; 0 if the filesystem does not say.
std::size_t direct_alignment(int descriptor, bool block_device) {
  if (block_device) {
    int sector_bytes = 0;
    if (::ioctl(descriptor, BLKSSZGET, &sector_bytes) == 0 && sector_bytes > 0) {
      return static_cast<std::size_t>(sector_bytes);
    }
    return kDirectAlignment;
  }
#ifdef STATX_DIOALIGN
  struct statx status{};
  if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    return std::max<std::size_t>(status.stx_dio_mem_align, status.stx_dio_offset_align);
  }
#endif
  // The C library of Debian 12 does not know the question: ask by trying.
  for (const std::size_t candidate : {std::size_t{512}, kDirectAlignment}) {
    alignas(kDirectAlignment) std::byte probe[kDirectAlignment];
    const ssize_t got = ::pread(descriptor, probe, candidate, static_cast<off_t>(candidate));
    if (got >= 0) return candidate;
    if (errno != EINVAL) break;
  }
  return 0;
}

// A device is claimed, which also keeps mounts and other claimants away; a file is locked. Both end
// with the descriptor. A filesystem without locks is taken as it is.
int try_to_lock(OpenCall& call, int flags) {
  if (call.block_device) {
    const int claimed = ::open(call.path.c_str(), (flags & ~O_CREAT) | O_EXCL);
    if (claimed < 0) return -errno;
    ::close(call.descriptor);
    call.descriptor = claimed;
    return 0;
  }
  if (::flock(call.descriptor, LOCK_EX | LOCK_NB) == 0) return 0;
  return errno == EOPNOTSUPP || errno == ENOSYS ? 0 : -errno;
}

// What a process that was just killed held, and what was just closed here, may be held for a few
// milliseconds more by requests that the kernel has answered but not yet put away.
int lock_opened(OpenCall& call, int flags) {
  constexpr int kAttempts = 100;
  constexpr useconds_t kPauseUs = 2000;
  for (int attempt = 1;; ++attempt) {
    const int locked = try_to_lock(call, flags);
    const bool in_use = locked == -EWOULDBLOCK || locked == -EBUSY;
    if (!in_use || attempt == kAttempts) return locked;
    ::usleep(kPauseUs);
  }
}

int open_blocking(void* argument) {
  auto& call = *static_cast<OpenCall*>(argument);
  int flags = O_CLOEXEC | (call.options.writable ? O_RDWR : O_RDONLY);
  if (call.options.create) flags |= O_CREAT;
  if (call.options.create && call.options.exclusive) flags |= O_EXCL;
  const char* const path = call.path.c_str();
  struct stat status{};
  // Opening anything else could wait for ever (a pipe) or do something (a terminal).
  if (::stat(path, &status) == 0 && !S_ISBLK(status.st_mode) && !S_ISREG(status.st_mode)) {
    return -EINVAL;
  }
  call.descriptor = ::open(path, flags, 0600);
  if (call.descriptor < 0) return -errno;
  if (::fstat(call.descriptor, &status) != 0) return -errno;
  call.block_device = S_ISBLK(status.st_mode);
  if (!call.block_device && !S_ISREG(status.st_mode)) return -EINVAL;
  if (call.options.lock) {
    const int locked = lock_opened(call, flags);
    if (locked != 0) return locked;
  }
  if (!call.options.direct) return 0;
  if (::fcntl(call.descriptor, F_SETFL, ::fcntl(call.descriptor, F_GETFL) | O_DIRECT) != 0)
    return 0;
  call.alignment = direct_alignment(call.descriptor, call.block_device);
  call.direct = call.alignment != 0;
  if (!call.direct) {
    call.alignment = 1;
    ::fcntl(call.descriptor, F_SETFL, ::fcntl(call.descriptor, F_GETFL) & ~O_DIRECT);
  }
  return 0;
}

int sync_directory_blocking(void* argument) {
  const auto& path = *static_cast<const std::string*>(argument);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return -errno;
  const int result = ::fsync(descriptor) == 0 ? 0 : -errno;
  ::close(descriptor);
  return result;
}

int remove_blocking(void* argument) {
  auto& path = *static_cast<std::string*>(argument);
  if (::unlink(path.c_str()) != 0) return -errno;
  const auto slash = path.rfind('/');
  std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  return sync_directory_blocking(&folder);
}

}  // namespace

Task<Error> Reactor::remove_file(std::string path) {
  const int result = co_await run_blocking(remove_blocking, &path);
  co_return error_from_errno(result);
}

Task<Error> Reactor::sync_directory(std::string path) {
  const int result = co_await run_blocking(sync_directory_blocking, &path);
  co_return error_from_errno(result);
}

Task<Result<std::unique_ptr<File>>> Reactor::open_file(std::string path, FileOptions options) {
  OpenCall call{.path = std::move(path), .options = options};
  const int result = co_await run_blocking(open_blocking, &call);
  if (result < 0) {
    if (call.descriptor >= 0) ::close(call.descriptor);
    co_return std::unexpected(error_from_errno(result));
  }
  co_return std::make_unique<ReactorFile>(*this, call.descriptor, call.direct, call.alignment,
                                          call.block_device);
}

}  // namespace sandbay::detail
