// The parameter list of SANITIZE, and the operation from its claim to its end.
#include "scsi/sanitize.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/buffer.h"
#include "runtime/byte_order.h"
#include "runtime/executor.h"
#include "runtime/known.h"
#include "scsi/unit_store.h"
#include "scsi/waking.h"

namespace sandbay::scsi {
namespace {

constexpr std::uint64_t kOverwriteBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kEraseBytes = std::uint64_t{64} << 20;
// How much a crash makes it do again.
constexpr Duration kBetweenKeeping = std::chrono::seconds(10);

}  // namespace

std::string_view describe(SanitizeOperation::Method method) {
  return method == SanitizeOperation::Method::kOverwrite ? "overwrite" : "block erase";
}

// SBC-4 5.24.3.2.
std::expected<SanitizeOperation, ListError> decode_overwrite_list(std::span<const std::byte> list,
                                                                  std::uint32_t block_bytes) {
  const auto flags = std::to_integer<unsigned>(list[0]);
  const std::size_t pattern_bytes = big_endian<std::uint16_t>(list, 2);
  SanitizeOperation operation;
  operation.inverts = (flags & 0x80U) != 0;
  operation.passes = flags & 0x1FU;
  const bool tests = (flags & 0x60U) != 0;  // TEST is vendor specific: nothing here.
  if (tests || operation.passes == 0) return std::unexpected(ListError{.byte = 0});
  if (list[1] != std::byte{0}) return std::unexpected(ListError{.byte = 1});
  if (pattern_bytes == 0 || pattern_bytes > block_bytes ||
      pattern_bytes > list.size() - kOverwriteListHeader) {
    return std::unexpected(ListError{.byte = 2});
  }
  const auto pattern = list.subspan(kOverwriteListHeader, pattern_bytes);
  operation.pattern.assign(pattern.begin(), pattern.end());
  return operation;
}

Sanitizer::Sanitizer(BlockDevice& device) : device_(device) {}

void Sanitizer::restore(UnitStore& store, std::optional<SanitizeOperation> kept) {
  store_ = &store;
  now_ = std::move(kept);
}

Task<void> Sanitizer::resume() {
  if (!works_.enter()) co_return;
  flushed_ = known(now_).at;
  kept_at_ = device_.home().now();
  co_await work();
}

std::uint16_t Sanitizer::progress() const {
  const auto blocks = static_cast<double>(device_.geometry().block_count);
  const double done = known(now_).at.pass * blocks + static_cast<double>(known(now_).at.next);
  return static_cast<std::uint16_t>(
      std::min(65535.0, done / (known(now_).passes * blocks) * 65536.0));
}

std::optional<SanitizeProgress> Sanitizer::overview() const {
  if (!now_) return std::nullopt;
  return SanitizeProgress{.method = known(now_).method,
                          .progress = progress(),
                          .failed = known(now_).failed,
                          .waits = waits_};
}

Sense Sanitizer::sense() const {
  if (!works()) {
    return {.key = SenseKey::kMediumError, .additional = Additional::kSanitizeCommandFailed};
  }
  return {.key = SenseKey::kNotReady,
          .additional = Additional::kSanitizeInProgress,
          .progress = progress()};
}

void Sanitizer::claim(SanitizeOperation operation) {
  assert(!works());
  before_ = std::exchange(now_, std::move(operation));
}

void Sanitizer::give_up() {
  now_ = std::exchange(before_, std::nullopt);
  changed_.notify_all();
}

Task<Error> Sanitizer::begin() {
  Error error = works_.enter() ? Error::kNone : Error::kClosed;
  if (error != Error::kNone) {
    give_up();
    co_return error;
  }
  error = co_await keep(now_);
  if (error != Error::kNone) {
    // A later start must not find it, over what hosts write now.
    Error undone = error == Error::kTimedOut ? error : Error::kNone;
    while (undone != Error::kNone && !cancellation_.cancelled()) {
      co_await pause(device_.home(), cancellation_, changed_);
      undone = co_await keep(before_);
    }
    works_.leave();
    give_up();
    co_return error;
  }
  flushed_ = {};
  before_.reset();
  kept_at_ = device_.home().now();
  spawn(work());
  co_return Error::kNone;
}

Task<void> Sanitizer::wait(Cancellation& cancellation) {
  const Waking waking(&cancellation, changed_);
  while (works() && !cancellation.cancelled() && !works_.closed()) co_await changed_.wait();
}

Task<Error> Sanitizer::exit_failure() {
  if (idle()) co_return Error::kNone;
  const Error error = co_await keep(std::nullopt);
  if (error == Error::kNone && !works()) now_.reset();
  co_return error;
}

void Sanitizer::content_replaced() {
  if (!works()) return;
  known(now_).at = flushed_ = {};
  ++contents_;
}

void Sanitizer::cancel() {
  cancellation_.cancel();
  changed_.notify_all();
}

Task<Error> Sanitizer::keep(std::optional<SanitizeOperation> operation) {
  if (store_ == nullptr) co_return Error::kNone;
  co_return co_await store_->keep_sanitize(std::move(operation));
}

// Entered before. Hosts hear of a failure even if the store cannot keep it, and of the end only
// when no later start can do it again, over what they write now.
Task<void> Sanitizer::work() {
  const GateHold hold(works_);
  Error error = co_await go_through();
  while (comes_back(error) && !cancellation_.cancelled()) {
    // The device may have lost what it has not flushed.
    known(now_).at = flushed_;
    waits_ = error;
    co_await pause(device_.home(), cancellation_, changed_);
    error = co_await go_through();
  }
  std::optional<SanitizeOperation> after;
  if (error != Error::kNone) {
    after = now_;
    after->failed = true;
  }
  while (!cancellation_.cancelled()) {
    const Error kept = co_await keep(after);
    if (kept == Error::kNone || after) break;
    co_await pause(device_.home(), cancellation_, changed_);
  }
  if (cancellation_.cancelled()) co_return;
  now_ = std::move(after);
  changed_.notify_all();
}

// On from where it is. A pass is on stable storage before the next begins.
Task<Error> Sanitizer::go_through() {
  SanitizeOperation& operation = known(now_);
  while (operation.at.pass < operation.passes) {
    const std::uint64_t blocks = device_.geometry().block_count;
    const bool pass_ended = operation.at.next >= blocks;
    if (pass_ended || device_.home().now() >= kept_at_ + kBetweenKeeping) {
      const Error error = co_await flush();
      if (error != Error::kNone) co_return error;
    }
    if (pass_ended && operation.at.next >= blocks) {
      if (operation.at.pass + 1 == operation.passes) co_return Error::kNone;
      operation.at = {.pass = operation.at.pass + 1, .next = 0};
    }
    const unsigned content = contents_;
    const Extent extent{operation.at.next, std::min(most_blocks(), blocks - operation.at.next)};
    const Completion completion = co_await change(extent);
    if (cancellation_.cancelled()) co_return Error::kCancelled;
    // Behind the end of a device that has just become smaller nothing is left to do.
    const bool fits = extent.end() <= device_.geometry().block_count;
    if (content == contents_ && fits) {
      if (completion.error != Error::kNone) co_return completion.error;
      waits_ = Error::kNone;
      operation.at.next = extent.end();
    }
    co_await device_.home().yield();
  }
  co_return Error::kNone;
}

// A store that fails costs time at the next start only.
Task<Error> Sanitizer::flush() {
  const SanitizeOperation::Place at = known(now_).at;
  const unsigned content = contents_;
  const Completion completion =
      co_await device_.submit({.operation = Operation::kFlush,
                               .extent = {0, device_.geometry().block_count},
                               .cancellation = &cancellation_});
  if (completion.error != Error::kNone) co_return completion.error;
  if (content != contents_) co_return Error::kNone;
  flushed_ = at;
  (void)co_await keep(now_);
  kept_at_ = device_.home().now();
  co_return Error::kNone;
}

std::uint64_t Sanitizer::most_blocks() const noexcept {
  const Geometry& geometry = device_.geometry();
  const bool overwrites = known(now_).method == SanitizeOperation::Method::kOverwrite;
  const std::uint64_t most = (overwrites ? kOverwriteBytes : kEraseBytes) / geometry.block_bytes;
  if (geometry.maximum_io_blocks == 0) return most;
  return std::min<std::uint64_t>(most, geometry.maximum_io_blocks);
}

BufferList Sanitizer::content(std::uint64_t block_count, BufferList room) const {
  const bool inverted = known(now_).inverts && (known(now_).passes - known(now_).at.pass) % 2 == 0;
  std::vector<std::byte> block(device_.geometry().block_bytes);
  for (std::size_t i = 0; i < block.size(); ++i) {
    const std::byte each = known(now_).pattern[i % known(now_).pattern.size()];
    block[i] = inverted ? ~each : each;
  }
  for (std::uint64_t i = 0; i < block_count; ++i) room.copy_from(block, i * block.size());
  return room;
}

Task<Completion> Sanitizer::change(Extent extent) {
  const Geometry& geometry = device_.geometry();
  Request request{.extent = extent, .cancellation = &cancellation_};
  if (known(now_).method == SanitizeOperation::Method::kOverwrite) {
    BufferList room =
        co_await device_.home().buffers().allocate(extent.byte_count(geometry.block_bytes));
    request.operation = Operation::kWrite;
    request.data = content(extent.block_count, std::move(room));
  } else {
    request.operation = geometry.unmap_zeroes ? Operation::kUnmap : Operation::kWriteZeroes;
  }
  co_return co_await device_.submit(std::move(request));
}

}  // namespace sandbay::scsi
