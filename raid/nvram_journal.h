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
  // Borrows the region, whose only user this is. Blocks are the drives'.
  NvramJournal(nvram::Region& region, Uuid set, std::uint32_t block_bytes);
  ~NvramJournal() override = default;

  std::size_t largest_payload_bytes() const noexcept override;
  Task<Result<std::uint64_t>> append(StripeUpdate update) override;
  void release(std::uint64_t ticket) override;
  void refuse_waiting(Error error) override { log_.refuse_waiting(error); }
  Task<Result<JournalRecovery>> recover() override;
  Task<Error> reset() override;
  Task<Error> renew() override { return log_.flush_releases(); }  // Has nothing on drives.

  bool survives_power_loss() const noexcept override { return region_.nvram().non_volatile(); }

  std::uint64_t used_bytes() const noexcept override { return log_.used_bytes(); }
  std::uint64_t size_bytes() const noexcept override { return log_.capacity_bytes(); }
  std::uint64_t written_bytes() const noexcept override { return written_bytes_; }
  bool under_pressure() const noexcept override {
    return log_.waiting_appends() > 0 || used_bytes() > size_bytes() / 2;
  }

 private:
  struct Append;
  Task<void> run_append(Append* append);
  void relieve() {
    if (on_pressure && under_pressure()) on_pressure();
  }

  nvram::Region& region_;
  nvram::RecordLog log_;
  const Uuid set_;
  const std::uint32_t block_bytes_;
  std::uint64_t written_bytes_ = 0;
  bool ready_ = false;
};

}  // namespace sandbay::raid
