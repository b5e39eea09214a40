// Sanitizer: the sanitize operation of one logical unit (SBC-4 4.11). Every block is overwritten or
// erased, whatever happens to the command that asked for it, to its nexus or to the daemon.
//
// It lives on its device's home. While it works, and after it has failed, the unit serves only the
// commands that its table lets through. It writes one request at a time, tries again while the
// device is not ready, and has ended when nobody needs to know of it any more: with a store, that
// is durable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "block/block_device.h"
#include "runtime/cancellation.h"
#include "runtime/sync.h"
#include "runtime/task.h"
#include "scsi/sense.h"

namespace sandbay::scsi {

class UnitStore;

struct SanitizeOperation {
  enum class Method : std::uint8_t { kOverwrite = 1, kBlockErase = 2 };  // Service actions.

  Method method = Method::kOverwrite;
  bool allows_exit = false;  // AUSE: after a failure EXIT FAILURE MODE is accepted.
  // kOverwrite: what each block begins with, again and again; every other pass writes its
  // inversion, the last one never.
  std::vector<std::byte> pattern;
  unsigned passes = 1;
  bool inverts = false;
  // How far it is: every block before.
  struct Place {
    unsigned pass = 0;
    Lba next = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  Place at;
  bool failed = false;

  friend bool operator==(const SanitizeOperation&, const SanitizeOperation&) = default;
};

std::string_view describe(SanitizeOperation::Method method);  // "overwrite", "block erase"

inline constexpr std::size_t kOverwriteListHeader = 4;
inline constexpr unsigned kMostOverwritePasses = 31;

// The parameter list of SANITIZE with OVERWRITE, which has at least its header. The error is the
// byte that is wrong.
std::expected<SanitizeOperation, ListError> decode_overwrite_list(std::span<const std::byte> list,
                                                                  std::uint32_t block_bytes);

// As others see it.
struct SanitizeProgress {
  SanitizeOperation::Method method = SanitizeOperation::Method::kOverwrite;
  std::uint16_t progress = 0;  // In parts of 65,536.
  bool failed = false;
  Error waits = Error::kNone;  // The device says this; it tries again.
};

class Sanitizer {
 public:
  // Borrows the device.
  explicit Sanitizer(BlockDevice& device);
  Sanitizer(const Sanitizer&) = delete;
  Sanitizer& operator=(const Sanitizer&) = delete;

  // Before it is used: with a store, which outlives it, operations outlive the daemon, and this one
  // did. On any executor; it goes on with resume().
  void restore(UnitStore& store, std::optional<SanitizeOperation> kept);
  Task<void> resume();

  // Nothing is under way and nothing has failed.
  bool idle() const noexcept { return !now_; }
  bool works() const noexcept { return now_ && !now_->failed; }
  const std::optional<SanitizeOperation>& now() const noexcept { return now_; }
  std::optional<SanitizeProgress> overview() const;
  // The answer to commands that the unit does not serve now.
  Sense sense() const;

  // Nothing else is served from here on. It begins with begin(), unless it is given up.
  void claim(SanitizeOperation operation);
  void give_up();
  // When it has ended with kNone the operation goes on by itself; otherwise it is given up, when
  // the store certainly has nothing of it.
  Task<Error> begin();
  // Until it has ended or the command is cancelled.
  Task<void> wait(Cancellation& cancellation);
  // As if what failed had not.
  Task<Error> exit_failure();

  // The device has other content: it begins again.
  void content_replaced();

  // It stops where it is. close() comes behind; false if the device has not let go by then.
  void cancel();
  Task<bool> close(TimePoint deadline) { return works_.close_until(deadline); }

 private:
  Task<void> work();
  Task<Error> go_through();
  Task<Completion> change(Extent extent);
  std::uint64_t most_blocks() const noexcept;
  BufferList content(std::uint64_t block_count, BufferList room) const;
  Task<Error> flush();
  Task<Error> keep(std::optional<SanitizeOperation> operation);
  std::uint16_t progress() const;

  BlockDevice& device_;
  UnitStore* store_ = nullptr;  // Null: an operation ends with the unit.
  std::optional<SanitizeOperation> now_;
  std::optional<SanitizeOperation> before_;  // The failed one that a claim took the place of.
  SanitizeOperation::Place flushed_;         // Blocks before it are on stable storage.
  unsigned contents_ = 0;                    // How often the device's content has been replaced.
  TimePoint kept_at_{};
  Error waits_ = Error::kNone;
  Cancellation cancellation_;
  Condition changed_;
  Gate works_;
};

}  // namespace sandbay::scsi
