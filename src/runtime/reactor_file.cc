// Files on a reactor. Its engine carries out reads, writes, syncs and hole punching; the few calls
// without an asynchronous form (opening, sizes, seeking for holes) run on the blocking threads, in
// order by path, and belong to management, not to the data path.
//
// Some filesystems (FUSE, and those of other hosts) do not honour that a request must not block:
// the reactor would wait for their server in io_uring_enter(2). Requests to them go to threads (the
// kernel's or ours) at once, as syncs and allocations of any file do anyway: few at a time for a
// file, for its filesystem and for all of these, so that servers that hang leave threads for the
// other files.

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/blocking.h"
#include "runtime/reactor_internal.h"
#include "runtime/sync.h"

namespace sandbay::detail {
namespace {

constexpr std::size_t kDirectAlignment = 4096;

// A question without an answer for this long is given up, and stays with its thread. Changes
// may take the time that a busy disk needs to make them durable.
constexpr Duration kQuestionPatience = std::chrono::seconds(15);
constexpr Duration kChangePatience = std::chrono::seconds(120);

// Requests in the kernel at a time for one file on a filesystem that blocks.
constexpr unsigned kBlockingAtOnce = 8;

// statfs(2): FUSE, NFS, SMB and CIFS, 9P, Ceph, Lustre, AFS, GFS2, OCFS2, shared folders.
constexpr std::array<std::uint32_t, 12> kBlockingFilesystems = {
    0x65735546, 0x00006969, 0x0000517b, 0xff534d42, 0xfe534d42, 0x01021997,
    0x00c36400, 0x0bd00bd0, 0x5346414f, 0x01161970, 0x7461636f, 0x786f4256};

std::atomic<Duration> lock_patience{std::chrono::milliseconds(200)};

bool may_block(int descriptor) {
  struct statfs status{};
  if (::fstatfs(descriptor, &status) != 0) return false;
  return std::ranges::find(kBlockingFilesystems, static_cast<std::uint32_t>(status.f_type)) !=
         kBlockingFilesystems.end();
}

// An open file. Calls that nobody waits for any more may still use it, and close it when they end.
struct OpenFile {
  int descriptor = -1;
  bool direct = false;
  bool block_device = false;
  bool blocks = false;   // Its filesystem may block where it must not.
  dev_t filesystem = 0;  // Or the block device.
  std::size_t alignment = 1;

  OpenFile() = default;
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  // The kernel may hold the file a little longer for a request that it has answered already, and
  // with it the lock: that is given back by name.
  ~OpenFile() {
    if (descriptor < 0) return;
    if (!block_device) ::flock(descriptor, LOCK_UN);
    ::close(descriptor);
  }
};

// Asks the kernel to end the operation when the request's Cancellation fires.
struct CancelOperation final : Cancellation::Hook {
  CancelOperation(Cancellation* cancellation, Reactor& reactor, FileOperation& operation)
      : Hook(cancellation,
             [](Hook& hook) {
               auto& self = static_cast<CancelOperation&>(hook);
               self.reactor_.engine().cancel(self.operation_);
             }),
        reactor_(reactor),
        operation_(operation) {}

 private:
  Reactor& reactor_;
  FileOperation& operation_;
};

class ReactorFile final : public File {
 public:
  ReactorFile(Reactor& reactor, std::string path, std::shared_ptr<OpenFile> file)
      : reactor_(reactor),
        path_(std::move(path)),
        file_(std::move(file)),
        limited_(file_->blocks || reactor.engine().files_take_threads()),
        room_(file_->blocks ? kBlockingAtOnce : std::numeric_limits<unsigned>::max(),
              limited_ ? reactor.room_on(file_->filesystem, file_->blocks) : nullptr) {}
  // Closing writes back what the page cache has of a device, and asks a filesystem's server.
  ~ReactorFile() override {
    if (file_->blocks || file_->block_device) {
      start_blocking(reactor_, path_, [file = std::move(file_)] {});
    }
  }

  Executor& home() const noexcept override { return reactor_; }
  bool direct() const noexcept override { return file_->direct; }
  std::size_t alignment() const noexcept override { return file_->alignment; }
  bool is_block_device() const noexcept override { return file_->block_device; }

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
  std::string path_;
  std::shared_ptr<OpenFile> file_;
  bool limited_;     // A request may keep a thread for as long as the medium takes.
  KernelRoom room_;  // Entered if so.
  bool tries_at_once_[2] = {true, true};  // Reading, writing: until the filesystem cannot.
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
  bool touched = false;
  for (;;) {
    if (cancellation != nullptr && cancellation->cancelled()) co_return -ECANCELED;
    FileOperation operation;
    operation.kind = write ? FileOperation::Kind::kWrite : FileOperation::Kind::kRead;
    operation.descriptor = file_->descriptor;
    operation.may_block = file_->blocks;
    operation.slices = reinterpret_cast<const iovec*>(slices.data());
    operation.slice_count = static_cast<unsigned>(std::min(slices.size(), kMostSlices));
    operation.offset = offset;
    if (!file_->direct && !file_->blocks) operation.tries_at_once = &tries_at_once_[write];
    reactor_.engine().start(operation);
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
  if (limited_) {
    const bool entered = co_await room_.enter(cancellation);
    if (!entered) co_return Error::kCancelled;
  }
  const int result = co_await transfer_once(write, offset, slices, cancellation);
  Error error = Error::kNone;
  if (result < 0) {
    error = error_from_errno(result);
  } else if (static_cast<std::size_t>(result) != byte_count) {
    error = co_await transfer_rest(write, offset, slices, static_cast<std::size_t>(result),
                                   cancellation);
  }
  if (limited_) room_.leave();
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
  if (limited_) {
    const bool entered = co_await room_.enter(cancellation);
    if (!entered) co_return Error::kCancelled;
  }
  int result = -EINTR;
  while (result == -EINTR) {
    if (cancellation != nullptr && cancellation->cancelled()) {
      result = -ECANCELED;
      break;
    }
    FileOperation operation;
    operation.kind = FileOperation::Kind::kSync;
    operation.descriptor = file_->descriptor;
    reactor_.engine().start(operation);
    const CancelOperation hook(cancellation, reactor_, operation);
    result = co_await operation;
  }
  if (limited_) room_.leave();
  co_return error_from_errno(result);
}

Task<Error> ReactorFile::fallocate(int mode, std::uint64_t offset, std::uint64_t byte_count) {
  if (limited_) {
    const bool entered = co_await room_.enter(nullptr);
    assert(entered);
  }
  int result = -EINTR;
  while (result == -EINTR) {
    FileOperation operation;
    operation.kind = FileOperation::Kind::kAllocate;
    operation.descriptor = file_->descriptor;
    operation.mode = mode;
    operation.offset = offset;
    operation.byte_count = byte_count;
    reactor_.engine().start(operation);
    result = co_await operation;
  }
  if (limited_) room_.leave();
  co_return error_from_errno(result);
}

Task<Result<std::uint64_t>> ReactorFile::size() {
  struct Call {
    std::shared_ptr<OpenFile> file;
    std::uint64_t byte_count = 0;
    int failed = 0;
  };
  const auto call = std::make_shared<Call>(file_);
  const auto ask = [call] {
    const int descriptor = call->file->descriptor;
    struct stat status{};
    const int asked = call->file->block_device
                          ? ::ioctl(descriptor, BLKGETSIZE64, &call->byte_count)
                          : ::fstat(descriptor, &status);
    if (asked != 0) call->failed = errno;
    if (!call->file->block_device) call->byte_count = static_cast<std::uint64_t>(status.st_size);
  };
  const Error error = co_await run_blocking(reactor_, path_, ask, kQuestionPatience);
  if (error != Error::kNone) co_return std::unexpected(error);
  if (call->failed != 0) co_return std::unexpected(error_from_errno(call->failed));
  co_return call->byte_count;
}

Task<Error> ReactorFile::resize(std::uint64_t byte_count) {
  struct Call {
    std::shared_ptr<OpenFile> file;
    int failed = 0;
  };
  const auto call = std::make_shared<Call>(file_);
  const auto change = [call, byte_count] {
    if (::ftruncate(call->file->descriptor, static_cast<off_t>(byte_count)) != 0) {
      call->failed = errno;
    }
  };
  const Error error = co_await run_blocking(reactor_, path_, change, kChangePatience);
  co_return error != Error::kNone ? error : error_from_errno(call->failed);
}

// The run at `offset`; a negated errno on failure.
int find_run(int descriptor, std::uint64_t offset, File::Run& run) {
  const auto start = static_cast<off_t>(offset);
  const off_t end = ::lseek(descriptor, 0, SEEK_END);
  if (end < 0) return -errno;
  if (start >= end) return -ERANGE;
  const off_t data = ::lseek(descriptor, start, SEEK_DATA);
  if (data < 0 && errno != ENXIO) return -errno;
  run.hole = data != start;
  off_t next = end;
  if (data == start) {
    next = ::lseek(descriptor, start, SEEK_HOLE);
    if (next < 0) return -errno;
  } else if (data > start) {
    next = data;
  }
  run.byte_count = static_cast<std::uint64_t>(next - start);
  return 0;
}

Task<Result<File::Run>> ReactorFile::run_at(std::uint64_t offset) {
  struct Call {
    std::shared_ptr<OpenFile> file;
    Run run;
    int result = 0;
  };
  const auto call = std::make_shared<Call>(file_);
  const auto ask = [call, offset] {
    call->result = find_run(call->file->descriptor, offset, call->run);
  };
  const Error error = co_await run_blocking(reactor_, path_, ask, kQuestionPatience);
  if (error != Error::kNone) co_return std::unexpected(error);
  if (call->result < 0) co_return std::unexpected(error_from_errno(call->result));
  co_return call->run;
}

struct OpenCall {
  std::string path;
  FileOptions options;
  std::shared_ptr<OpenFile> file = std::make_shared<OpenFile>();
  int result = 0;
};

// The alignment that direct I/O on this file needs; 0 if the filesystem does not say.
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
  OpenFile& file = *call.file;
  if (file.block_device) {
    const int claimed = ::open(call.path.c_str(), (flags & ~O_CREAT) | O_EXCL);
    if (claimed < 0) return -errno;
    ::close(file.descriptor);
    file.descriptor = claimed;
    return 0;
  }
  if (::flock(file.descriptor, LOCK_EX | LOCK_NB) == 0) return 0;
  return errno == EOPNOTSUPP || errno == ENOSYS ? 0 : -errno;
}

// The files of a process that was just killed, and those that were just closed here, may be held a
// little longer by requests that the kernel has not answered, or not yet put away.
int lock_opened(OpenCall& call, int flags) {
  constexpr useconds_t kPauseUs = 2000;
  const auto give_up =
      std::chrono::steady_clock::now() + lock_patience.load(std::memory_order_relaxed);
  for (;;) {
    const int locked = try_to_lock(call, flags);
    const bool in_use = locked == -EWOULDBLOCK || locked == -EBUSY;
    if (!in_use || std::chrono::steady_clock::now() >= give_up) return locked;
    ::usleep(kPauseUs);
  }
}

void make_direct(OpenFile& file) {
  if (::fcntl(file.descriptor, F_SETFL, ::fcntl(file.descriptor, F_GETFL) | O_DIRECT) != 0) return;
  file.alignment = direct_alignment(file.descriptor, file.block_device);
  file.direct = file.alignment != 0;
  if (file.direct) return;
  file.alignment = 1;
  ::fcntl(file.descriptor, F_SETFL, ::fcntl(file.descriptor, F_GETFL) & ~O_DIRECT);
}

int open_blocking(OpenCall& call) {
  int flags = O_CLOEXEC | (call.options.writable ? O_RDWR : O_RDONLY);
  if (call.options.create) flags |= O_CREAT;
  if (call.options.create && call.options.exclusive) flags |= O_EXCL;
  const char* const path = call.path.c_str();
  OpenFile& file = *call.file;
  struct stat status{};
  // Opening anything else could wait for ever (a pipe) or do something (a terminal).
  if (::stat(path, &status) == 0 && !S_ISBLK(status.st_mode) && !S_ISREG(status.st_mode)) {
    return -EINVAL;
  }
  file.descriptor = ::open(path, flags, 0600);
  if (file.descriptor < 0) return -errno;
  if (::fstat(file.descriptor, &status) != 0) return -errno;
  file.block_device = S_ISBLK(status.st_mode);
  if (!file.block_device && !S_ISREG(status.st_mode)) return -EINVAL;
  file.blocks = !file.block_device && may_block(file.descriptor);
  file.filesystem = file.block_device ? status.st_rdev : status.st_dev;
  if (call.options.lock) {
    const int locked = lock_opened(call, flags);
    if (locked != 0) return locked;
  }
  if (call.options.direct) make_direct(file);
  return 0;
}

int sync_directory_blocking(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return -errno;
  const int result = ::fsync(descriptor) == 0 ? 0 : -errno;
  ::close(descriptor);
  return result;
}

int remove_blocking(const std::string& path) {
  if (::unlink(path.c_str()) != 0) return -errno;
  const auto slash = path.rfind('/');
  return sync_directory_blocking(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

using PathChange = int (*)(const std::string& path);

Task<Error> change_by_path(Reactor* reactor, std::string path, PathChange change) {
  const auto result = std::make_shared<int>(0);
  const Error error = co_await run_blocking(
      *reactor, path, [result, path, change] { *result = change(path); }, kChangePatience);
  co_return error != Error::kNone ? error : error_from_errno(*result);
}

}  // namespace

Task<Error> Reactor::remove_file(std::string path) {
  return change_by_path(this, std::move(path), remove_blocking);
}

Task<Error> Reactor::sync_directory(std::string path) {
  return change_by_path(this, std::move(path), sync_directory_blocking);
}

std::shared_ptr<KernelRoom> Reactor::room_on(dev_t filesystem, bool blocks) {
  std::erase_if(rooms_, [](const auto& known) { return known.second.expired(); });
  std::weak_ptr<KernelRoom>& known = rooms_[filesystem];
  std::shared_ptr<KernelRoom> room = known.lock();
  if (room == nullptr) {
    room = std::make_shared<KernelRoom>(engine_->most_blocking() / 5,
                                        blocks ? blocking_room_ : other_room_);
    known = room;
  }
  return room;
}

Task<Result<std::unique_ptr<File>>> Reactor::open_file(std::string path, FileOptions options) {
  const auto call = std::make_shared<OpenCall>();
  call->path = path;
  call->options = options;
  const Duration patience = kQuestionPatience + lock_patience.load(std::memory_order_relaxed);
  const Error error =
      co_await run_blocking(*this, path, [call] { call->result = open_blocking(*call); }, patience);
  if (error != Error::kNone) co_return std::unexpected(error);
  if (call->result < 0) co_return std::unexpected(error_from_errno(call->result));
  co_return std::make_unique<ReactorFile>(*this, std::move(path), call->file);
}

}  // namespace sandbay::detail

namespace sandbay {

void set_lock_patience(Duration patience) {
  detail::lock_patience.store(patience, std::memory_order_relaxed);
}

}  // namespace sandbay
