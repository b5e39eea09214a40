// FaultyExecutor: an executor that is another one, except that its files fail as a test says.
//
// All files opened through it share one FileFaults, which the test changes at will: unreadable
// bytes, failing writes and syncs, syncs that hang, operations the filesystem does not know, and an
// alignment for direct I/O that is then insisted upon.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/executor.h"
#include "runtime/sync.h"

namespace sandbay::testing {

struct FileFaults {
  struct Range {
    std::uint64_t offset = 0;
    std::uint64_t byte_count = 0;
  };
  std::vector<Range> unreadable;      // Reads that touch them fail with kHardware.
  std::uint64_t fail_next_reads = 0;  // So many reads fail whatever they touch.
  Error read_error = Error::kNone;    // All reads, instead.
  Error write_error = Error::kNone;
  Error sync_error = Error::kNone;
  Error allocate_error = Error::kNone;
  Error punch_error = Error::kNone;
  Error write_zeroes_error = Error::kNone;
  Error run_error = Error::kNone;
  std::size_t direct_alignment = 0;  // Not 0: files that ask for direct I/O have it, with this.
  bool block_device = false;
  bool hold_syncs = false;  // Syncs wait until release_syncs() or their cancellation.
  Condition sync_released;

  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  std::uint64_t syncs = 0;
  std::uint64_t syncs_held = 0;
  std::uint64_t punches = 0;
  std::uint64_t allocations = 0;

  void release_syncs() {
    hold_syncs = false;
    sync_released.notify_all();
  }
};

class FaultyFile final : public File {
 public:
  FaultyFile(std::unique_ptr<File> file, FileFaults& faults, bool direct)
      : file_(std::move(file)), faults_(faults), direct_(direct) {}

  Executor& home() const noexcept override { return file_->home(); }
  bool direct() const noexcept override { return direct_; }
  std::size_t alignment() const noexcept override { return direct_ ? faults_.direct_alignment : 1; }
  bool is_block_device() const noexcept override { return faults_.block_device; }

  Task<Error> read(std::uint64_t offset, std::span<const IoSlice> target,
                   Cancellation* cancellation) override {
    check_alignment(offset, target);
    ++faults_.reads;
    const std::uint64_t end = offset + byte_count(target);
    bool bad = faults_.fail_next_reads > 0;
    if (bad) --faults_.fail_next_reads;
    for (const FileFaults::Range& range : faults_.unreadable) {
      bad = bad || (offset < range.offset + range.byte_count && range.offset < end);
    }
    if (faults_.read_error != Error::kNone) co_return faults_.read_error;
    if (bad) co_return Error::kHardware;
    co_return co_await file_->read(offset, target, cancellation);
  }

  Task<Error> write(std::uint64_t offset, std::span<const IoSlice> source,
                    Cancellation* cancellation) override {
    check_alignment(offset, source);
    ++faults_.writes;
    if (faults_.write_error != Error::kNone) co_return faults_.write_error;
    co_return co_await file_->write(offset, source, cancellation);
  }

  Task<Error> sync(Cancellation* cancellation) override {
    ++faults_.syncs;
    if (faults_.hold_syncs) {
      ++faults_.syncs_held;
      const Wake wake(cancellation, faults_.sync_released);
      while (faults_.hold_syncs && (cancellation == nullptr || !cancellation->cancelled())) {
        co_await faults_.sync_released.wait();
      }
      --faults_.syncs_held;
    }
    if (cancellation != nullptr && cancellation->cancelled()) co_return Error::kCancelled;
    if (faults_.sync_error != Error::kNone) co_return faults_.sync_error;
    co_return co_await file_->sync(cancellation);
  }

  Task<Result<std::uint64_t>> size() override { return file_->size(); }
  Task<Error> resize(std::uint64_t bytes) override { return file_->resize(bytes); }
  Task<Error> allocate(std::uint64_t offset, std::uint64_t bytes) override {
    ++faults_.allocations;
    if (faults_.allocate_error != Error::kNone) co_return faults_.allocate_error;
    co_return co_await file_->allocate(offset, bytes);
  }
  Task<Error> punch_hole(std::uint64_t offset, std::uint64_t bytes) override {
    ++faults_.punches;
    if (faults_.punch_error != Error::kNone) co_return faults_.punch_error;
    co_return co_await file_->punch_hole(offset, bytes);
  }
  Task<Error> write_zeroes(std::uint64_t offset, std::uint64_t bytes) override {
    if (faults_.write_zeroes_error != Error::kNone) co_return faults_.write_zeroes_error;
    co_return co_await file_->write_zeroes(offset, bytes);
  }
  Task<Result<Run>> run_at(std::uint64_t offset) override {
    if (faults_.run_error != Error::kNone) co_return std::unexpected(faults_.run_error);
    co_return co_await file_->run_at(offset);
  }

 private:
  struct Wake : Cancellation::Hook {
    Wake(Cancellation* cancellation, Condition& to_notify)
        : Hook(cancellation, [](Hook& hook) { static_cast<Wake&>(hook).changed.notify_all(); }),
          changed(to_notify) {}
    Condition& changed;
  };

  static std::uint64_t byte_count(std::span<const IoSlice> slices) {
    std::uint64_t sum = 0;
    for (const IoSlice& slice : slices) sum += slice.byte_count;
    return sum;
  }

  // Direct I/O on a real file would fail with EINVAL here; that is a bug of the device.
  void check_alignment(std::uint64_t offset, std::span<const IoSlice> slices) const {
    const std::size_t mask = alignment() - 1;
    assert((offset & mask) == 0);
    for (const IoSlice& slice : slices) {
      assert((reinterpret_cast<std::uintptr_t>(slice.data) & mask) == 0);
      assert((slice.byte_count & mask) == 0);
    }
  }

  std::unique_ptr<File> file_;
  FileFaults& faults_;
  bool direct_;
};

class FaultyExecutor final : public Executor {
 public:
  FaultyExecutor(Executor& real, FileFaults& faults) : real_(real), faults_(faults) {}

  unsigned index() const noexcept override { return real_.index(); }
  std::span<Executor* const> peers() const noexcept override { return real_.peers(); }
  TimePoint now() const noexcept override { return real_.now(); }
  Random& random() noexcept override { return real_.random(); }
  BufferPool& buffers() noexcept override { return real_.buffers(); }
  void post(std::coroutine_handle<> handle) override { real_.post(handle); }
  void post_at_turn_end(std::coroutine_handle<> handle) override { real_.post_at_turn_end(handle); }
  void arm(Timer& timer) override { real_.arm(timer); }
  void disarm(Timer& timer) noexcept override { real_.disarm(timer); }
  void send(Message& message) noexcept override { real_.send(message); }

  Task<Result<std::unique_ptr<File>>> open_file(std::string path, FileOptions options) override {
    const bool direct = options.direct && faults_.direct_alignment != 0;
    options.direct = false;
    Result<std::unique_ptr<File>> file = co_await real_.open_file(std::move(path), options);
    if (!file.has_value()) co_return std::unexpected(file.error());
    co_return std::make_unique<FaultyFile>(std::move(*file), faults_, direct);
  }
  Task<Error> remove_file(std::string path) override { return real_.remove_file(std::move(path)); }
  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint) override {
    return real_.listen(endpoint);
  }
  Task<Result<std::unique_ptr<Stream>>> connect(Endpoint endpoint) override {
    return real_.connect(endpoint);
  }

 private:
  Executor& real_;
  FileFaults& faults_;
};

}  // namespace sandbay::testing
