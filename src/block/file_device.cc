// FileDevice: the requests of one file or device node. Opening and growing are in
// file_device_open.cc.
//
// Every path ends in the File's own operations: slices go down as they are when they are aligned;
// zeros and holes are asked of the system first and written only where it cannot make them; changes
// are counted, so that a flush with nothing to do costs nothing.
#include "block/file_device.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdlib>
#include <utility>

namespace sandbay {

namespace {

constexpr std::size_t kSlicesAtOnce = 64;  // Of one read or write of the file.
constexpr std::size_t kBounceBytes = 256 * 1024;
constexpr std::size_t kBounceAlignment = 4096;
// One fallocate() cannot be cancelled, so long ones go in pieces.
constexpr std::uint64_t kFileZeroStep = std::uint64_t{1} << 30;
constexpr std::size_t kZeroesBytes = 64 * 1024;
constexpr std::size_t kZeroSlices = 16;
constexpr Duration kDegradedFor = std::chrono::minutes(1);   // After a failure.
constexpr Duration kMeasureEvery = std::chrono::seconds(1);  // How long the file is, with a sync.

// What zeros are written from where the system cannot make them; never written to.
alignas(4096) std::array<std::byte, kZeroesBytes> zeroes;

bool cancelled(const Cancellation* cancellation) {
  return cancellation != nullptr && cancellation->cancelled();
}

// Whether a failed read may be the fault of single blocks.
bool may_be_bad_blocks(Error error) {
  return error == Error::kHardware || error == Error::kDataCorrupt;
}

// A write is refused beyond the end by limits of the process or the filesystem, not by the
// device's size, which was checked.
Error write_error(Error error) { return error == Error::kOutOfRange ? Error::kNoSpace : error; }

}  // namespace

FileDevice::FileDevice(Executor& home, FileDeviceOptions options, std::unique_ptr<File> file)
    : home_(home), options_(std::move(options)), file_(std::move(file)), shared_sync_(*file_) {}

FileDevice::~FileDevice() = default;

Health FileDevice::health() const noexcept {
  if (sync_failed_ || cut_short_) return Health::kFailed;
  return home_.now() < degraded_until_ ? Health::kDegraded : Health::kGood;
}

std::string FileDevice::description() const {
  std::string text = (file_->is_block_device() ? "device " : "file ") + options_.path;
  if (!not_direct_because_.empty()) text += ", through the page cache: " + not_direct_because_;
  if (cut_short_) text += ", which somebody has cut short";
  return text;
}

Task<Completion> FileDevice::submit(Request request) {
  assert(fits(geometry_, request));
  if (cut_short_ && request.operation != Operation::kAdvise) return refuse(std::move(request));
  switch (request.operation) {
    case Operation::kRead:
      return read(std::move(request));
    case Operation::kWrite:
      return write(std::move(request));
    case Operation::kFlush:
      return flush(std::move(request));
    case Operation::kUnmap:
      return unmap(std::move(request));
    case Operation::kWriteZeroes:
      return write_zeroes(std::move(request));
    case Operation::kAdvise:
      break;
  }
  return [](Request advice) -> Task<Completion> {
    co_return Completion{.data = std::move(advice.data)};
  }(std::move(request));
}

Task<Completion> FileDevice::refuse(Request request) {
  co_return finish(Error::kHardware, std::move(request));
}

// What the initiator cancelled, what memory was missing for and what was never asked of the file
// say nothing about it.
void FileDevice::note_failure(Operation operation, Error error) {
  if (error == Error::kCancelled || error == Error::kNoMemory || error == Error::kUnsupported)
    return;
  if (error == Error::kReadOnly && geometry_.read_only) return;
  degraded_until_ = home_.now() + kDegradedFor;
  if (options_.on_failure) options_.on_failure(operation, error);
}

Completion FileDevice::finish(Error error, Request&& request) {
  if (error == Error::kOutOfRange && request.operation == Operation::kRead) {
    cut_short_ = true;
    error = Error::kHardware;
  }
  if (error != Error::kNone) note_failure(request.operation, error);
  return Completion{.error = error, .data = std::move(request.data)};
}

Task<Completion> FileDevice::read(Request request) {
  // A FUA read may not return what a power cut could still take away.
  if (request.force_unit_access && !geometry_.read_only) {
    const Error synced = co_await sync(request.cancellation);
    if (synced != Error::kNone) co_return finish(synced, std::move(request));
  }
  const std::uint64_t offset = request.extent.first * geometry_.block_bytes;
  const Error error =
      co_await transfer(Operation::kRead, offset, request.data, request.cancellation);
  if (may_be_bad_blocks(error)) co_return co_await find_bad_block(std::move(request));
  co_return finish(error, std::move(request));
}

// The request failed as a whole. Halves until one block is left; what proves readable on the way
// has been read. A fault that has gone away meanwhile is forgiven.
Task<Completion> FileDevice::find_bad_block(Request request) {
  Lba good_until = request.extent.first;
  Lba fails_before = request.extent.end();
  while (good_until < request.extent.end()) {
    const std::uint64_t length = std::max<std::uint64_t>(1, (fails_before - good_until) / 2);
    BufferList part =
        request.data.share((good_until - request.extent.first) * geometry_.block_bytes,
                           length * geometry_.block_bytes);
    const Error error = co_await transfer(Operation::kRead, good_until * geometry_.block_bytes,
                                          part, request.cancellation);
    if (error == Error::kNone) {
      good_until += length;
      if (good_until == fails_before) fails_before = request.extent.end();
    } else if (!may_be_bad_blocks(error)) {
      co_return finish(error, std::move(request));
    } else if (length == 1) {
      Completion completion = finish(Error::kMediumError, std::move(request));
      completion.first_bad_lba = good_until;
      co_return completion;
    } else {
      fails_before = good_until + length;
    }
  }
  co_return finish(Error::kNone, std::move(request));
}

Task<Completion> FileDevice::write(Request request) {
  if (geometry_.read_only) co_return finish(Error::kReadOnly, std::move(request));
  const std::uint64_t offset = request.extent.first * geometry_.block_bytes;
  Error error = co_await transfer(Operation::kWrite, offset, request.data, request.cancellation);
  ++changes_;
  if (error == Error::kNone && request.force_unit_access) {
    error = co_await sync(request.cancellation);
  }
  co_return finish(write_error(error), std::move(request));
}

Task<Completion> FileDevice::flush(Request request) {
  if (geometry_.read_only) co_return finish(Error::kNone, std::move(request));
  const Error error = co_await sync(request.cancellation);
  co_return finish(error, std::move(request));
}

// Every change that has completed before the call is on stable storage afterwards.
Task<Error> FileDevice::sync(Cancellation* cancellation) {
  if (sync_failed_) co_return Error::kHardware;
  const std::uint64_t covered = changes_;
  if (synced_ >= covered) co_return Error::kNone;
  co_await measure();
  if (cut_short_) co_return Error::kHardware;
  const Error error = co_await shared_sync_.sync(cancellation);
  if (error == Error::kNone) synced_ = std::max(synced_, covered);
  // After a failure the kernel may forget the pages that it could not write and report the error
  // only once, and a drive the content of its cache, which direct writes end in as well; a later
  // success would be a lie.
  const bool tried = error != Error::kCancelled && error != Error::kNoMemory;
  if (error != Error::kNone && tried) sync_failed_ = true;
  co_return error;
}

// A write beyond the end of a file that was cut short makes it longer again, with zeros before it,
// so a read would not meet the end. Then its length tells.
Task<void> FileDevice::measure() {
  if (file_->is_block_device() || home_.now() < measure_next_) co_return;
  measure_next_ = home_.now() + kMeasureEvery;
  const std::uint64_t expected = geometry_.block_count * geometry_.block_bytes;
  const Result<std::uint64_t> size = co_await file_->size();
  if (size.has_value() && *size < expected) cut_short_ = true;
}

Task<Completion> FileDevice::unmap(Request request) {
  if (geometry_.read_only) co_return finish(Error::kReadOnly, std::move(request));
  if (!geometry_.unmap) co_return finish(Error::kUnsupported, std::move(request));
  std::uint64_t offset = request.extent.first * geometry_.block_bytes;
  const std::uint64_t end = request.extent.end() * geometry_.block_bytes;
  Error error = Error::kNone;
  while (offset < end && error == Error::kNone) {
    const std::uint64_t length = std::min(kFileZeroStep, end - offset);
    error = co_await punch(offset, length, request.cancellation);
    offset += length;
  }
  ++changes_;
  if (error == Error::kNone && request.force_unit_access) {
    error = co_await sync(request.cancellation);
  }
  co_return finish(write_error(error), std::move(request));
}

Task<Completion> FileDevice::write_zeroes(Request request) {
  if (geometry_.read_only) co_return finish(Error::kReadOnly, std::move(request));
  std::uint64_t offset = request.extent.first * geometry_.block_bytes;
  const std::uint64_t end = request.extent.end() * geometry_.block_bytes;
  Error error = Error::kNone;
  while (offset < end && error == Error::kNone) {
    const std::uint64_t length = std::min(kFileZeroStep, end - offset);
    error = co_await zero(offset, length, request.cancellation);
    offset += length;
  }
  ++changes_;
  if (error == Error::kNone && request.force_unit_access) {
    error = co_await sync(request.cancellation);
  }
  co_return finish(write_error(error), std::move(request));
}

// Frees the range where the system can; in any case it reads as zeros. A device node tells only
// when asked that it cannot, and refuses ranges finer than its own sectors as invalid.
Task<Error> FileDevice::punch(std::uint64_t offset, std::uint64_t byte_count,
                              Cancellation* cancellation) {
  if (cancelled(cancellation)) co_return Error::kCancelled;
  if (can_punch_) {
    const Error error = co_await file_->punch_hole(offset, byte_count);
    if (error == Error::kUnsupported) can_punch_ = false;
    if (error != Error::kUnsupported && error != Error::kInvalid) co_return error;
  }
  co_return co_await zero_by_writing(offset, byte_count, cancellation);
}

// Keeps the space where the system can, so that the blocks stay mapped.
Task<Error> FileDevice::zero(std::uint64_t offset, std::uint64_t byte_count,
                             Cancellation* cancellation) {
  if (cancelled(cancellation)) co_return Error::kCancelled;
  if (can_zero_range_) {
    const Error error = co_await file_->write_zeroes(offset, byte_count);
    if (error == Error::kUnsupported) can_zero_range_ = false;
    if (error != Error::kUnsupported && error != Error::kInvalid) co_return error;
  }
  if (!geometry_.unmap) co_return co_await zero_by_writing(offset, byte_count, cancellation);
  const Error punched = co_await punch(offset, byte_count, cancellation);
  if (punched != Error::kNone || file_->is_block_device()) co_return punched;
  const Error kept = co_await file_->allocate(offset, byte_count);
  co_return kept == Error::kUnsupported ? Error::kNone : kept;
}

Task<Error> FileDevice::zero_by_writing(std::uint64_t offset, std::uint64_t byte_count,
                                        Cancellation* cancellation) {
  while (byte_count > 0) {
    std::array<IoSlice, kZeroSlices> slices;
    std::size_t count = 0;
    std::uint64_t length = 0;
    while (count < kZeroSlices && length < byte_count) {
      const std::size_t part = std::min<std::uint64_t>(kZeroesBytes, byte_count - length);
      slices[count++] = IoSlice{.data = zeroes.data(), .byte_count = part};
      length += part;
    }
    const Error error = co_await file_->write(offset, {slices.data(), count}, cancellation);
    if (error != Error::kNone) co_return error;
    offset += length;
    byte_count -= length;
  }
  co_return Error::kNone;
}

bool FileDevice::aligned(const BufferList& data) const noexcept {
  const std::size_t mask = file_->alignment() - 1;
  std::size_t bits = 0;
  for (std::size_t i = 0; i < data.slice_count(); ++i) {
    bits |= reinterpret_cast<std::uintptr_t>(data[i].data()) | data[i].byte_count();
  }
  return (bits & mask) == 0;
}

Task<Error> FileDevice::transfer(Operation operation, std::uint64_t offset, BufferList& data,
                                 Cancellation* cancellation) {
  if (aligned(data)) return transfer_slices(operation, offset, data, cancellation);
  return transfer_bounced(operation, offset, data, cancellation);
}

Task<Error> FileDevice::transfer_slices(Operation operation, std::uint64_t offset, BufferList& data,
                                        Cancellation* cancellation) {
  std::size_t next = 0;
  while (next < data.slice_count()) {
    std::array<IoSlice, kSlicesAtOnce> slices;
    std::size_t count = 0;
    std::uint64_t length = 0;
    for (; count < kSlicesAtOnce && next < data.slice_count(); ++count, ++next) {
      slices[count] = IoSlice{.data = data[next].data(), .byte_count = data[next].byte_count()};
      length += data[next].byte_count();
    }
    const std::span<const IoSlice> part(slices.data(), count);
    Error error = Error::kNone;
    if (operation == Operation::kRead) {
      error = co_await file_->read(offset, part, cancellation);
    } else {
      error = co_await file_->write(offset, part, cancellation);
    }
    if (error != Error::kNone) co_return error;
    offset += length;
  }
  co_return Error::kNone;
}

// Direct I/O refuses slices that are not aligned, so their bytes go through a buffer that is.
// Waiting for pool memory here could wait for ever, since the payload in hand comes from that pool:
// when it has none, the device's own buffer serves one transfer after the other.
Task<Error> FileDevice::transfer_bounced(Operation operation, std::uint64_t offset,
                                         BufferList& data, Cancellation* cancellation) {
  const std::size_t total = data.byte_count();
  const std::size_t wanted =
      std::min(kBounceBytes, (total + kBounceAlignment - 1) / kBounceAlignment * kBounceAlignment);
  Buffer pooled = home_.buffers().try_allocate_contiguous(wanted);
  const bool from_pool = !pooled.empty();
  std::span<std::byte> memory = pooled.bytes();
  if (!from_pool) {
    co_await bounce_mutex_.lock();
    if (bounce_ == nullptr) {
      bounce_.reset(static_cast<std::byte*>(std::aligned_alloc(kBounceAlignment, kBounceBytes)));
    }
    if (bounce_ != nullptr) memory = {bounce_.get(), kBounceBytes};
  }
  Error error = memory.empty() ? Error::kNoMemory : Error::kNone;
  for (std::size_t done = 0; done < total && error == Error::kNone;) {
    const std::size_t part = std::min(memory.size(), total - done);
    const IoSlice slice{.data = memory.data(), .byte_count = part};
    if (operation == Operation::kWrite) {
      data.copy_to(memory.first(part), done);
      error = co_await file_->write(offset + done, {&slice, 1}, cancellation);
    } else {
      error = co_await file_->read(offset + done, {&slice, 1}, cancellation);
      if (error == Error::kNone) data.copy_from(memory.first(part), done);
    }
    done += part;
  }
  if (!from_pool) bounce_mutex_.unlock();
  co_return error;
}

Task<Result<ProvisioningRun>> FileDevice::provisioning(Lba first, Lba limit) {
  assert(first < limit && limit <= geometry_.block_count);
  if (cut_short_) co_return std::unexpected(Error::kHardware);
  const ProvisioningRun all_mapped{.block_count = limit - first, .mapped = true};
  // A device node does not tell what it has mapped.
  if (options_.preallocate || file_->is_block_device()) co_return all_mapped;
  const std::uint32_t block = geometry_.block_bytes;
  const Result<File::Run> run = co_await file_->run_at(first * block);
  if (!run.has_value()) {
    if (run.error() == Error::kUnsupported) co_return all_mapped;
    if (run.error() == Error::kOutOfRange) cut_short_ = true;
    co_return std::unexpected(run.error());
  }
  // A block that is partly a hole is mapped.
  const std::uint64_t whole_blocks = run->byte_count / block;
  const bool hole = run->hole && whole_blocks > 0;
  const std::uint64_t blocks =
      hole ? whole_blocks : std::max<std::uint64_t>(1, (run->byte_count + block - 1) / block);
  co_return ProvisioningRun{.block_count = std::min(blocks, limit - first), .mapped = !hole};
}

}  // namespace sandbay
