// The little of FUSE that opening, reading, syncing and closing files needs; see fuse(4).
#include "tests/unit/runtime/silent_filesystem.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

namespace sandbay::testing {
namespace {

constexpr std::uint64_t kFileBytes = 1U << 20U;
constexpr std::uint64_t kFirstFile = FUSE_ROOT_ID + 1;  // The node of file 0.
constexpr std::uint64_t kValidSeconds = 3600;

template <typename T>
T body_as(const std::vector<std::byte>& body) {
  T value{};
  std::memcpy(&value, body.data(), std::min(sizeof value, body.size()));
  return value;
}

template <typename T>
iovec whole(T& value) {
  return {.iov_base = &value, .iov_len = sizeof value};
}

fuse_attr attributes(std::uint64_t node) {
  fuse_attr attr{};
  attr.ino = node;
  attr.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0700U : S_IFREG | 0600U;
  attr.size = node == FUSE_ROOT_ID ? 0 : kFileBytes;
  attr.nlink = 1;
  attr.blksize = 4096;
  return attr;
}

bool may_stay_unanswered(std::uint32_t opcode) {
  return opcode == FUSE_READ || opcode == FUSE_FSYNC || opcode == FUSE_FALLOCATE;
}

}  // namespace

std::unique_ptr<SilentFilesystem> SilentFilesystem::mount() {
  std::string folder = (std::filesystem::temp_directory_path() / "silent-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK);
  const std::string options = "fd=" + std::to_string(device) +
                              ",rootmode=40000,user_id=" + std::to_string(::getuid()) +
                              ",group_id=" + std::to_string(::getgid());
  if (device < 0 ||
      ::mount("silent", folder.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
    WARN("skipped: FUSE cannot be mounted here: " << std::strerror(errno));
    if (device >= 0) ::close(device);
    ::rmdir(folder.c_str());
    return nullptr;
  }
  return std::unique_ptr<SilentFilesystem>(new SilentFilesystem(std::move(folder), device));
}

SilentFilesystem::SilentFilesystem(std::string folder, int device)
    : folder_(std::move(folder)), device_(device), server_([this] { serve(); }) {}

SilentFilesystem::~SilentFilesystem() {
  answer();
  ::umount2(folder_.c_str(), MNT_DETACH);
  stopping_ = true;
  server_.join();
  ::close(device_);  // Ends requests that are left.
  ::rmdir(folder_.c_str());
}

std::size_t SilentFilesystem::unanswered() const {
  const std::lock_guard lock(mutex_);
  return unanswered_.size();
}

void SilentFilesystem::answer() {
  const std::lock_guard lock(mutex_);
  silent_ = false;
  for (const Request& request : std::exchange(unanswered_, {})) reply(request);
}

void SilentFilesystem::serve() {
  constexpr int kPatienceMs = 10;
  std::vector<std::byte> buffer(std::size_t{256} << 10U);
  while (!stopping_) {
    pollfd wait{.fd = device_, .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, kPatienceMs) <= 0) continue;
    const ssize_t got = ::read(device_, buffer.data(), buffer.size());
    if (got < 0 && errno == ENODEV) return;  // Unmounted.
    if (got < static_cast<ssize_t>(sizeof(fuse_in_header))) continue;
    fuse_in_header header{};
    std::memcpy(&header, buffer.data(), sizeof header);
    take({.opcode = header.opcode,
          .unique = header.unique,
          .node = header.nodeid,
          .body = {buffer.begin() + sizeof header, buffer.begin() + got}});
  }
}

void SilentFilesystem::take(Request request) {
  const std::lock_guard lock(mutex_);
  if (silent_ && may_stay_unanswered(request.opcode)) {
    unanswered_.push_back(std::move(request));
    return;
  }
  reply(request);
}

void SilentFilesystem::reply(const Request& request) {
  switch (request.opcode) {
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
      return;  // Without answers.
    case FUSE_INIT: {
      fuse_init_out init{};
      init.major = FUSE_KERNEL_VERSION;
      init.minor = FUSE_KERNEL_MINOR_VERSION;
      init.max_write = 4096;
      const iovec body = whole(init);
      return send(request, 0, {&body, 1});
    }
    case FUSE_LOOKUP: {
      const std::string_view name(reinterpret_cast<const char*>(request.body.data()));
      unsigned number = 0;
      const auto parsed = std::from_chars(name.begin(), name.end(), number);
      if (parsed.ec != std::errc{}) return send(request, ENOENT, {});
      return send_node(request, kFirstFile + number);
    }
    case FUSE_GETATTR: {
      fuse_attr_out out{};
      out.attr_valid = kValidSeconds;
      out.attr = attributes(request.node);
      const iovec body = whole(out);
      return send(request, 0, {&body, 1});
    }
    case FUSE_OPEN: {
      fuse_open_out out{};
      // Every read is a request. Closing is none, or a killed process would wait for itself.
      out.open_flags = FOPEN_DIRECT_IO | FOPEN_NOFLUSH;
      const iovec body = whole(out);
      return send(request, 0, {&body, 1});
    }
    case FUSE_STATFS: {
      fuse_statfs_out out{};
      out.st.bsize = 4096;
      const iovec body = whole(out);
      return send(request, 0, {&body, 1});
    }
    case FUSE_READ: {
      std::vector<std::byte> zeros(body_as<fuse_read_in>(request.body).size);
      const iovec body{.iov_base = zeros.data(), .iov_len = zeros.size()};
      return send(request, 0, {&body, 1});
    }
    case FUSE_FSYNC:
    case FUSE_FALLOCATE:
    case FUSE_RELEASE:
      return send(request, 0, {});
    default:
      return send(request, ENOSYS, {});
  }
}

void SilentFilesystem::send_node(const Request& request, std::uint64_t node) {
  fuse_entry_out entry{};
  entry.nodeid = node;
  entry.entry_valid = kValidSeconds;
  entry.attr_valid = kValidSeconds;
  entry.attr = attributes(node);
  const iovec body = whole(entry);
  send(request, 0, {&body, 1});
}

// The kernel refuses an answer only if it has given the request up.
void SilentFilesystem::send(const Request& request, int error, std::span<const iovec> body) {
  fuse_out_header header{};
  header.error = -error;
  header.unique = request.unique;
  std::vector<iovec> parts = {whole(header)};
  parts.insert(parts.end(), body.begin(), body.end());
  for (const iovec& part : parts) header.len += static_cast<std::uint32_t>(part.iov_len);
  static_cast<void>(::writev(device_, parts.data(), static_cast<int>(parts.size())));
}

}  // namespace sandbay::testing
