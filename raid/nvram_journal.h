// NvramJournal: the stripe-update journal in a controller's non-volatile memory.
//
// A set has a region of its own, with one RecordLog over all of it, so that no set's records keep
// another's space. The descriptor of a record is the journal header (journal_record.h; the fields
// that concern a ring are zero), the payload is the update's. A record of another set, which a
// region of the same name may hold, is left alone until reset(). The key of a life is the log's id.
//
// What the memory lost comes back as lost stripes where the descriptor is known, and as all_lost
// where it is not or where the log is not the one that was used last: then nothing of it is given
// back. Nor is what is older than an update of which nothing is known: that may have written the
// same places, and the drives are newer then. Lives on the memory's home, which is the set's.
//
// The disk of the memory's image may hang. An append that waits for one sync of it longer than
// kSyncPatience is left behind: it fails, and so does each one after it, until the image has been
// synced and the records left behind are released for good. So stripes are not locked for longer,
// and nothing that shares blocks with a record left behind is appended or written before that.
#pragma once

#include <cstdint>
#include <vector>

#include "nvram/record_log.h"
#include "raid/journal.h"
#include "raid/journal_record.h"
#include "runtime/sync.h"

namespace sandbay::raid {

class NvramJournal final : public Journal {
 public:
  // A sync that has run for this long hangs. Waiting callers check that often.
  static constexpr Duration kSyncPatience = std::chrono::seconds(5);

  // Borrows the region, whose only user this is. Blocks are the drives'.
  NvramJournal(nvram::Region& region, Uuid set, std::uint32_t block_bytes);
  ~NvramJournal() override = default;  // After close_until(), or when nothing is in flight.

  std::size_t largest_payload_bytes() const noexcept override;
  Task<Result<std::uint64_t>> append(StripeUpdate update) override;
  void release(std::uint64_t ticket) override;
  void refuse_waiting(Error error) override { log_.refuse_waiting(error); }
  Task<Result<JournalRecovery>> recover() override;
  Task<Error> reset() override;
  Task<Error> renew() override;  // Has nothing on drives.
  Task<bool> close_until(TimePoint deadline) override;

  bool survives_power_loss() const noexcept override { return region_.nvram().non_volatile(); }

  std::uint64_t used_bytes() const noexcept override { return log_.used_bytes(); }
  std::uint64_t size_bytes() const noexcept override { return log_.capacity_bytes(); }
  std::uint64_t written_bytes() const noexcept override { return written_bytes_; }
  bool under_pressure() const noexcept override {
    return log_.waiting_appends() > 0 || used_bytes() > size_bytes() / 2;
  }

 private:
  struct Work;
  Task<void> run_append(StripeUpdate update, Work* work);
  Task<void> run_renewal(Work* work);
  Task<bool> wait_in_time(Work* work);
  void relieve() {
    if (on_pressure && under_pressure()) on_pressure();
  }

  nvram::Region& region_;
  nvram::RecordLog log_;
  const Uuid set_;
  const std::uint32_t block_bytes_;
  std::uint64_t written_bytes_ = 0;
  std::size_t left_behind_ = 0;
  bool ready_ = false;
  Gate gate_;  // Operations in frames of their own.
};

}  // namespace sandbay::raid
