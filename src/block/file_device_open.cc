// Opening and growing a FileDevice: what the file must be like, and one clear line that names it
// when it is not. A file that has content keeps its size; only an empty one that is to be made is
// filled in, which also completes a creation that a crash interrupted.
#include <cassert>
#include <utility>

#include <fmt/core.h>

#include "block/file_device.h"

namespace sandbay {

struct FileDevice::OpenedFile {
  std::unique_ptr<File> file;
  std::string not_direct_because;
};

namespace {

std::unexpected<std::string> fail(const FileDeviceOptions& options, std::string_view why) {
  return std::unexpected(fmt::format("file {}: {}", options.path, why));
}

std::string open_error(const FileDeviceOptions& options, Error error) {
  if (error == Error::kNotFound && options.create && options.byte_count == 0) {
    return "not found, and no size is given to make it with";
  }
  if (error == Error::kNotFound && options.create) return "cannot be made: no such directory";
  if (error == Error::kNotReady) return "is in use by another process";
  if (error == Error::kInvalid) return "is neither a file nor a block device";
  return fmt::format("cannot be opened: {}", describe(error));
}

FileOptions file_options(const FileDeviceOptions& options, bool direct) {
  return {.writable = !options.read_only,
          .create = options.create && options.byte_count > 0 && !options.read_only,
          .direct = direct,
          .lock = options.lock};
}

}  // namespace

Task<FileDevice::OpenResult> FileDevice::open_file(Executor& home, FileDeviceOptions options,
                                                   Error* cause) {
  std::string not_direct_because;
  if (options.direct) {
    const FileOptions direct = file_options(options, true);
    Result<std::unique_ptr<File>> file = co_await home.open_file(options.path, direct);
    if (!file.has_value()) {
      *cause = file.error();
      co_return fail(options, open_error(options, file.error()));
    }
    if ((*file)->direct() && options.block_bytes % (*file)->alignment() == 0) {
      co_return OpenedFile{.file = std::move(*file)};
    }
    if ((*file)->direct()) {
      not_direct_because =
          fmt::format("direct I/O there needs multiples of {} bytes, a block has {}",
                      (*file)->alignment(), options.block_bytes);
    } else {
      not_direct_because = "the filesystem has no direct I/O";
    }
    if (!(*file)->direct()) {
      co_return OpenedFile{.file = std::move(*file), .not_direct_because = not_direct_because};
    }
  } else {
    not_direct_because = "as configured";
  }
  const FileOptions buffered = file_options(options, false);
  Result<std::unique_ptr<File>> file = co_await home.open_file(options.path, buffered);
  if (!file.has_value()) {
    *cause = file.error();
    co_return fail(options, open_error(options, file.error()));
  }
  co_return OpenedFile{.file = std::move(*file), .not_direct_because = not_direct_because};
}

Task<std::expected<std::uint64_t, std::string>> FileDevice::settle_size(File& file,
                                                                        FileDeviceOptions options) {
  const Result<std::uint64_t> found = co_await file.size();
  if (!found.has_value()) {
    co_return fail(options, fmt::format("its size is unknown: {}", describe(found.error())));
  }
  std::uint64_t size = *found;
  const bool may_change = !options.read_only && !file.is_block_device();
  if (size == 0 && options.create && options.byte_count > 0 && may_change) {
    const Error error = co_await file.resize(options.byte_count);
    if (error != Error::kNone) {
      co_return fail(options, fmt::format("cannot be made {} bytes long: {}", options.byte_count,
                                          describe(error)));
    }
    size = options.byte_count;
  }
  if (size == 0) co_return fail(options, "is empty");
  if (size % options.block_bytes != 0) {
    co_return fail(options, fmt::format("its {} bytes are not a multiple of the {}-byte block",
                                        size, options.block_bytes));
  }
  if (options.byte_count != 0 && options.byte_count != size) {
    co_return fail(options,
                   fmt::format("has {} bytes where {} are configured", size, options.byte_count));
  }
  if (options.preallocate && may_change) {
    const Error error = co_await file.allocate(0, size);
    if (error != Error::kNone) {
      co_return fail(
          options, error == Error::kUnsupported
                       ? "its filesystem reserves no space; leave out preallocate"
                       : fmt::format("its {} bytes cannot be reserved: {}", size, describe(error)));
    }
  }
  co_return size;
}

Task<std::expected<std::unique_ptr<FileDevice>, std::string>> FileDevice::open(
    Executor& home, FileDeviceOptions options, Error* cause) {
  Error ignored = Error::kNone;
  if (cause == nullptr) cause = &ignored;
  *cause = Error::kInvalid;
  const std::string wrong = block_size_error(options.block_bytes, options.physical_block_bytes);
  if (!wrong.empty()) co_return fail(options, wrong);
  if (options.byte_count % options.block_bytes != 0) {
    co_return fail(options, fmt::format("a size of {} bytes is not a multiple of the {}-byte block",
                                        options.byte_count, options.block_bytes));
  }
  OpenResult opened = co_await open_file(home, options, cause);
  if (!opened.has_value()) co_return std::unexpected(std::move(opened.error()));
  if (options.only_device && !opened->file->is_block_device()) {
    co_return fail(options, "is no block device; write file instead of device");
  }
  const Result<std::uint64_t> size_before = co_await opened->file->size();
  const std::expected<std::uint64_t, std::string> size =
      co_await settle_size(*opened->file, options);
  if (!size.has_value()) co_return std::unexpected(size.error());
  if (size_before.has_value() && *size_before != *size) {
    // What direct I/O needs shows only on a file that has content, so the new one is opened anew.
    opened->file.reset();  // Its lock stands against the next opening.
    opened = co_await open_file(home, options, cause);
    if (!opened.has_value()) co_return std::unexpected(std::move(opened.error()));
  }
  File& file = *opened->file;

  bool unmap = !options.read_only && !options.preallocate;
  if (unmap && !file.is_block_device()) {
    // Beyond the end there is nothing to free, but the filesystem says whether it could.
    const Error probe = co_await file.punch_hole(*size, options.block_bytes);
    unmap = probe != Error::kUnsupported;
  }
  std::unique_ptr<FileDevice> device(
      new FileDevice(home, std::move(options), std::move(opened->file)));
  const FileDeviceOptions& settled = device->options_;
  device->not_direct_because_ = std::move(opened->not_direct_because);
  device->geometry_ =
      Geometry{.block_bytes = settled.block_bytes,
               .physical_block_bytes = settled.physical_block_bytes,
               .block_count = *size / settled.block_bytes,
               .unmap = unmap,
               .unmap_zeroes = unmap,
               .unmap_granularity_blocks = settled.physical_block_bytes / settled.block_bytes,
               .read_only = settled.read_only,
               .volatile_cache = !settled.read_only,
               .rotational = settled.rotational};
  if (!settled.read_only) {
    // A file just made, its size and its reserved space survive a power cut from here on.
    const Error error = co_await device->sync(nullptr);
    if (error != Error::kNone) {
      co_return fail(settled, fmt::format("cannot be synced: {}", describe(error)));
    }
  }
  co_return device;
}

Task<Error> FileDevice::grow(std::uint64_t byte_count) {
  const std::uint64_t old_bytes = geometry_.block_count * geometry_.block_bytes;
  if (geometry_.read_only) co_return Error::kReadOnly;
  if (file_->is_block_device()) co_return Error::kUnsupported;
  if (byte_count < old_bytes || byte_count % geometry_.block_bytes != 0) co_return Error::kInvalid;
  if (byte_count == old_bytes) co_return Error::kNone;
  Error error = co_await file_->resize(byte_count);
  if (error != Error::kNone) co_return error;
  if (options_.preallocate) {
    error = co_await file_->allocate(old_bytes, byte_count - old_bytes);
    if (error != Error::kNone) {
      co_await file_->resize(old_bytes);  // If this fails too, the next opening tells.
      co_return error;
    }
  }
  ++changes_;
  error = co_await sync(nullptr);
  if (error != Error::kNone) co_return error;
  options_.byte_count = byte_count;
  geometry_.block_count = byte_count / geometry_.block_bytes;
  co_return Error::kNone;
}

}  // namespace sandbay
