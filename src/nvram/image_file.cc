// The mapped file. The executor's File opens, locks, makes and syncs it; the mapping is made once,
// at start-up, and populated, so that no store on the data path reads from a disk. The file has no
// holes: a store into a hole on a full filesystem would end the process.
//
// A crash while the file is made leaves it no longer than the header copies, which is how the next
// start recognises a leftover: it gets its full length in one step, after they are durable. What
// cannot be made, for want of space, leaves nothing.
#include <fmt/core.h>

#include <utility>
#include <vector>

#include "nvram/image.h"
#include "nvram/mapped_memory.h"

namespace sandbay::nvram {
namespace {

class MappedImage final : public Image {
 public:
  MappedImage(std::unique_ptr<File> file, std::unique_ptr<MappedMemory> memory, Found found)
      : file_(std::move(file)), memory_(std::move(memory)), found_(found) {}

  std::span<std::byte> memory() noexcept override { return memory_->bytes(); }
  Task<Error> sync() override { return file_->sync(nullptr); }
  Found found() const noexcept override { return found_; }
  bool broken() const noexcept override { return memory_->broken(); }
  bool cut_short() const noexcept override { return memory_->cut_short(); }
  Task<void> check() override {
    const Result<std::uint64_t> size = co_await file_->size();
    if (size.has_value() && *size < memory_->bytes().size()) memory_->replace_gone();
  }

 private:
  std::unique_ptr<File> file_;
  std::unique_ptr<MappedMemory> memory_;
  Found found_;
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

std::string wrong_size(std::uint64_t bytes, std::uint64_t wanted) {
  return fmt::format(
      "has {} bytes; the configured {} are accepted (for another size: write the one that it has, "
      "stop the daemon when everything is on the drives, and remove the file)",
      bytes, wanted);
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
// once waits for that, at least so long.
constexpr Duration kLockPatience = std::chrono::seconds(2);
constexpr Duration kLockPause = std::chrono::milliseconds(50);

Task<Result<std::unique_ptr<File>>> open_locked(Executor& home, std::string path, bool create) {
  const TimePoint give_up = home.now() + kLockPatience;
  for (;;) {
    auto opened = co_await home.open_file(path, {.create = create, .lock = true});
    const bool busy = !opened.has_value() && opened.error() == Error::kNotReady;
    if (!busy || home.now() >= give_up) co_return opened;
    co_await home.sleep_for(kLockPause);
  }
}

struct OpenedFile {
  std::unique_ptr<File> file;
  Found found = Found::kImage;
};

std::string why_not_opened(Error error) {
  if (error == Error::kNotReady) return "is in use by another process";
  if (error == Error::kInvalid) return "is neither a file nor nothing yet; these are accepted";
  return fmt::format("cannot be opened: {}", describe(error));
}

Task<std::expected<OpenedFile, std::string>> open_or_create(Executor& home, std::string path,
                                                            Error* cause) {
  OpenedFile result;
  auto opened = co_await open_locked(home, path, false);
  if (!opened.has_value() && opened.error() == Error::kNotFound) {
    result.found = Found::kNothing;
    opened = co_await open_locked(home, path, true);
  }
  if (!opened.has_value()) {
    if (cause != nullptr) *cause = opened.error();
    co_return std::unexpected(why_not_opened(opened.error()));
  }
  if ((*opened)->is_block_device()) {
    co_return std::unexpected("is a block device; a file is accepted");
  }
  result.file = std::move(*opened);
  co_return result;
}

// Gives back what was taken for an image that cannot be made.
Task<void> leave_nothing(Executor& home, std::string path, OpenedFile opened) {
  (void)co_await opened.file->resize(0);
  if (opened.found == Found::kNothing) (void)co_await home.remove_file(path);
}

}  // namespace

Task<std::expected<std::unique_ptr<Image>, std::string>> map_image(
    Executor& home, std::string path, std::uint64_t byte_count,
    std::span<const std::byte> first_bytes, Error* cause) {
  auto opened = co_await open_or_create(home, path, cause);
  if (!opened.has_value()) co_return std::unexpected(opened.error());
  File& file = *opened->file;
  const Result<std::uint64_t> size = co_await file.size();
  if (!size.has_value()) {
    co_return std::unexpected(fmt::format("cannot be read: {}", describe(size.error())));
  }
  Error error = Error::kNone;
  const bool blank = *size <= first_bytes.size();
  if (blank) {
    if (opened->found == Found::kImage) opened->found = Found::kShortFile;
    error = co_await make(home, file, path, byte_count, first_bytes);
  } else if (*size != byte_count) {
    co_return std::unexpected(wrong_size(*size, byte_count));
  } else {
    error = co_await file.allocate(0, byte_count);
    if (error == Error::kUnsupported) error = Error::kNone;
  }
  if (error != Error::kNone) {
    if (blank) co_await leave_nothing(home, path, std::move(*opened));
    if (cause != nullptr) *cause = error;
    co_return std::unexpected(
        fmt::format("cannot be made {} bytes long: {}", byte_count, describe(error)));
  }
  auto memory = MappedMemory::map(path, byte_count);
  if (!memory.has_value()) {
    if (cause != nullptr) *cause = memory.error();
    co_return std::unexpected(fmt::format("cannot be mapped: {}", describe(memory.error())));
  }
  co_return std::make_unique<MappedImage>(std::move(opened->file), std::move(*memory),
                                          opened->found);
}

}  // namespace sandbay::nvram
