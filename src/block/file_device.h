// FileDevice: a block device in a file or a block device node. Block n is bytes n * block_bytes to
// (n + 1) * block_bytes of the file and nothing else is ever stored in it, so that a raw disk image
// stays that image, byte for byte.
//
// I/O is direct where the filesystem can and the logical block is a multiple of what direct I/O
// needs, otherwise through the page cache; description() says which. Direct I/O wants aligned
// memory: a payload whose slices are not aligned, which a network may split at any byte, is copied
// through aligned memory; nothing else is copied.
//
// A write is volatile until a flush that began after it has completed. Flushes that wait for one
// another share one sync. A read error is narrowed down to its first bad block. A file that turns
// out to be shorter than it was is no disk with bad blocks, but another disk: nothing is read or
// written any more until it is opened anew.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <expected>
#include <functional>
#include <memory>
#include <string>

#include "block/block_device.h"
#include "block/shared_sync.h"
#include "runtime/io.h"
#include "runtime/sync.h"

namespace sandbay {

struct FileDeviceOptions {
  std::string path;
  bool create = false;                        // Make the file if it is not there; needs byte_count.
  std::uint64_t byte_count = 0;               // What the file must have; 0: whatever it has.
  std::uint32_t block_bytes = 512;            // 512 or 4096.
  std::uint32_t physical_block_bytes = 4096;  // block_bytes times a power of two.
  // Reserves the space of every block, so that no write can run out of it. Such a device does not
  // unmap, and all of it counts as mapped.
  bool preallocate = false;
  bool read_only = false;
  bool direct = true;  // Use direct I/O where possible.
  bool rotational = false;
  bool only_device = false;  // Refuse what is no block device.
  bool lock = false;         // Refuse a file that another opener has locked; see FileOptions.
  // Told, on the home executor, of every request that the file failed; may be empty. Cancelled
  // requests and those for which memory was missing are no failures of the file.
  std::function<void(Operation, Error)> on_failure = {};
};

class FileDevice final : public BlockDevice {
 public:
  // Called on `home`. Fails with one line that names the file and what is wrong with it. A file
  // that is there is never made larger or smaller; only an empty one may be filled in when
  // `create` is set. `cause`, which may be null and outlives the task, then tells the kind of the
  // failure: kNotFound, kNotReady if another opener has it locked, or any other.
  static Task<std::expected<std::unique_ptr<FileDevice>, std::string>> open(
      Executor& home, FileDeviceOptions options, Error* cause = nullptr);
  ~FileDevice() override;

  Executor& home() const noexcept override { return home_; }
  const Geometry& geometry() const noexcept override { return geometry_; }
  // kFailed once a sync has failed on the page cache: the kernel may then have dropped what it
  // could not write, so no later flush succeeds until the file is opened again; also when the file
  // has been cut short, and then every request ends with kHardware. kDegraded for a
  // minute after any other failure of the file: a full filesystem heals when there is space again.
  Health health() const noexcept override;
  std::string description() const override;

  Task<Completion> submit(Request request) override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;

  bool direct() const noexcept { return file_->direct(); }

  // Makes a regular file and the device larger; called on the home executor. kInvalid if
  // `byte_count` is less than now or no multiple of the block, kUnsupported on a device node,
  // kReadOnly, or what the filesystem says.
  Task<Error> grow(std::uint64_t byte_count);

 private:
  FileDevice(Executor& home, FileDeviceOptions options, std::unique_ptr<File> file);

  struct OpenedFile;
  using OpenResult = std::expected<OpenedFile, std::string>;
  static Task<OpenResult> open_file(Executor& home, FileDeviceOptions options, Error* cause);
  // The size, after an empty file has been filled in if it was to be made.
  static Task<std::expected<std::uint64_t, std::string>> settle_size(File& file,
                                                                     FileDeviceOptions options);

  Task<Completion> read(Request request);
  Task<Completion> write(Request request);
  Task<Completion> flush(Request request);
  Task<Completion> unmap(Request request);
  Task<Completion> write_zeroes(Request request);
  Task<Completion> find_bad_block(Request request);
  Task<Completion> refuse(Request request);
  Task<Error> sync(Cancellation* cancellation);
  Task<void> measure();

  // These take references into the frame of their caller, which awaits them at once.
  Task<Error> transfer(Operation operation, std::uint64_t offset, BufferList& data,
                       Cancellation* cancellation);
  Task<Error> transfer_slices(Operation operation, std::uint64_t offset, BufferList& data,
                              Cancellation* cancellation);
  Task<Error> transfer_bounced(Operation operation, std::uint64_t offset, BufferList& data,
                               Cancellation* cancellation);

  Task<Error> punch(std::uint64_t offset, std::uint64_t byte_count, Cancellation* cancellation);
  Task<Error> zero(std::uint64_t offset, std::uint64_t byte_count, Cancellation* cancellation);
  Task<Error> zero_by_writing(std::uint64_t offset, std::uint64_t byte_count,
                              Cancellation* cancellation);
  bool aligned(const BufferList& data) const noexcept;
  Completion finish(Error error, Request&& request);
  void note_failure(Operation operation, Error error);

  Executor& home_;
  FileDeviceOptions options_;
  Geometry geometry_;
  std::unique_ptr<File> file_;
  std::string not_direct_because_;  // Empty with direct I/O.
  SharedSync shared_sync_;
  bool sync_failed_ = false;
  bool cut_short_ = false;
  TimePoint measure_next_{};
  TimePoint degraded_until_{};

  // Changes are numbered as they complete; synced_ is the last that a sync has covered. What was
  // written before the file was opened counts as one.
  std::uint64_t changes_ = 1;
  std::uint64_t synced_ = 0;

  bool can_punch_ = true;  // Until the system says otherwise.
  bool can_zero_range_ = true;

  // For misaligned payloads when the pool has nothing left: one at a time, but always.
  Mutex bounce_mutex_;
  struct FreeAligned {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<std::byte, FreeAligned> bounce_;
};

}  // namespace sandbay
