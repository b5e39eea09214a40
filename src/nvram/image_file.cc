// The mapped file. The executor's File opens, locks, makes and syncs it; the mapping is made once,
// at start-up, and populated, so that no store on the data path reads from a disk. The file has no
// holes: a store into a hole on a full filesystem would end the process.
//
// A crash while the file is made leaves it no longer than the header copies, which is how the next
// start recognises a leftover: it gets its full length in one step, after they are durable.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "nvram/image.h"

namespace sandbay::nvram {
namespace {

class MappedImage final : public Image {
 public:
  MappedImage(std::unique_ptr<File> file, std::span<std::byte> memory)
      : file_(std::move(file)), memory_(memory) {}
  ~MappedImage() override { ::munmap(memory_.data(), memory_.size()); }

  std::span<std::byte> memory() noexcept override { return memory_; }
  Task<Error> sync() override { return file_->sync(nullptr); }

 private:
  std::unique_ptr<File> file_;
  std::span<std::byte> memory_;
};

// Beyond what is written explicitly, a file that the filesystem cannot reserve is written out.
Task<Error> fill_holes(File& file, std::uint64_t from, std::uint64_t to) {
  const Error reserved = co_await file.allocate(from, to - from);
  if (reserved != Error::kUnsupported) co_return reserved;
  std::vector<std::byte> zeros(std::size_t{1} << 20);
  for (std::uint64_t at = from; at < to; at += zeros.size()) {
    const IoSlice slice{zeros.data(),
                        static_cast<std::size_t>(std::min<std::uint64_t>(zeros.size(), to - at))};
    const Error written = co_await file.write(at, std::span(&slice, 1), nullptr);
    if (written != Error::kNone) co_return written;
  }
  co_return Error::kNone;
}

Task<Error> make(Executor& home, File& file, std::string path, std::uint64_t byte_count,
                 std::span<const std::byte> first_bytes) {
  std::vector<std::byte> copy(first_bytes.begin(), first_bytes.end());
  const IoSlice slice{copy.data(), copy.size()};
  Error error = co_await file.write(0, std::span(&slice, 1), nullptr);
  if (error == Error::kNone) error = co_await file.sync(nullptr);
  if (error == Error::kNone) error = co_await file.resize(byte_count);
  if (error == Error::kNone) error = co_await fill_holes(file, copy.size(), byte_count);
  if (error == Error::kNone) error = co_await file.sync(nullptr);
  if (error != Error::kNone) co_return error;
  const auto slash = path.rfind('/');
  error =
      co_await home.sync_directory(slash == std::string::npos ? "." : path.substr(0, slash + 1));
  co_return error;
}

// The kernel lets go of the files of a killed process a moment after its death: who restarts it at
// once waits for that.
constexpr int kLockAttempts = 20;
constexpr Duration kLockPause = std::chrono::milliseconds(50);

Task<Result<std::unique_ptr<File>>> open_locked(Executor& home, std::string path) {
  for (int attempt = 1;; ++attempt) {
    auto opened = co_await home.open_file(path, {.create = true, .lock = true});
    const bool busy = !opened.has_value() && opened.error() == Error::kNotReady;
    if (!busy || attempt == kLockAttempts) co_return opened;
    co_await home.sleep_for(kLockPause);
  }
}

std::expected<std::span<std::byte>, Error> map(const std::string& path, std::uint64_t byte_count) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return std::unexpected(error_from_errno(errno));
  void* const memory =
      ::mmap(nullptr, byte_count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  const int failed = errno;
  ::close(descriptor);
  if (memory == MAP_FAILED) return std::unexpected(error_from_errno(failed));
  return std::span(static_cast<std::byte*>(memory), byte_count);
}

}  // namespace

Task<std::expected<std::unique_ptr<Image>, std::string>> map_image(
    Executor& home, std::string path, std::uint64_t byte_count,
    std::span<const std::byte> first_bytes) {
  auto opened = co_await open_locked(home, path);
  if (!opened.has_value()) {
    if (opened.error() == Error::kNotReady) {
      co_return std::unexpected("is in use by another process");
    }
    co_return std::unexpected(fmt::format("cannot be opened: {}", describe(opened.error())));
  }
  File& file = **opened;
  if (file.is_block_device()) co_return std::unexpected("is a block device; a file is accepted");
  const Result<std::uint64_t> size = co_await file.size();
  if (!size.has_value()) {
    co_return std::unexpected(fmt::format("cannot be read: {}", describe(size.error())));
  }
  Error error = Error::kNone;
  if (*size <= first_bytes.size()) {
    error = co_await make(home, file, path, byte_count, first_bytes);
  } else if (*size != byte_count) {
    co_return std::unexpected(
        fmt::format("has {} bytes; the configured {} are accepted", *size, byte_count));
  } else {
    error = co_await file.allocate(0, byte_count);
    if (error == Error::kUnsupported) error = Error::kNone;
  }
  if (error != Error::kNone) {
    co_return std::unexpected(
        fmt::format("cannot be made {} bytes long: {}", byte_count, describe(error)));
  }
  const auto memory = map(path, byte_count);
  if (!memory.has_value()) {
    co_return std::unexpected(fmt::format("cannot be mapped: {}", describe(memory.error())));
  }
  co_return std::make_unique<MappedImage>(std::move(*opened), *memory);
}

}  // namespace sandbay::nvram
