// Journal: the stripe-update journal that closes the write hole.
//
// A stripe update that touches several drives is first appended here with every byte that it will
// write, data and parity alike. Once append() has ended the record is durable; only then may the
// drives be written. A crash at any later moment is cured by writing the record's bytes again, so
// that each block is old or new as a whole and parity matches, whichever drives are missing. A
// record is released when a flush of the drives that began after the update's writes had ended has
// succeeded.
//
// Two implementations: on the set's own drives (drive_journal.h) and in a controller's NVRAM
// (nvram_journal.h). All functions are called on the set's home.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "block/block_device.h"
#include "runtime/buffer.h"
#include "runtime/task.h"

namespace sandbay::raid {

// One write in place. Blocks are the drive's, counted from its beginning.
struct JournalWrite {
  std::uint16_t role = 0;
  bool zeroes = false;  // The blocks become zeros; no payload belongs to it.
  Extent extent;
};

// The most writes that one update may have: the record's header then fits 4 KiB.
inline constexpr std::size_t kMostJournalWrites = 250;

// What append() stores: at least one write, at most kMostJournalWrites, each of 1 to 2^32 - 1
// blocks. `payload` holds the bytes of every write that is not `zeroes`, in order.
struct StripeUpdate {
  std::uint64_t stripe = 0;
  std::span<const JournalWrite> writes;
  const BufferList* payload = nullptr;
};

// What recover() gives back.
struct RecoveredUpdate {
  std::uint64_t sequence = 0;
  std::uint64_t stripe = 0;
  std::vector<JournalWrite> writes;
  std::vector<std::byte> payload;
};

// A record that was live and cannot be read any more; of what it wrote nothing is known but where.
struct LostUpdate {
  std::uint64_t sequence = 0;
  std::uint64_t stripe = 0;
  std::vector<JournalWrite> writes;
};

struct JournalRecovery {
  std::vector<RecoveredUpdate> updates;  // In the order in which they were appended.
  std::vector<LostUpdate> lost;          // Likewise.
  // Which records were live is not known any more; those that are known are in `updates` all the
  // same.
  bool all_lost = false;
};

class Journal {
 public:
  Journal() = default;
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  virtual ~Journal() = default;  // No operation is in flight.

  // A journal begins a life with each reset(), and whoever uses it remembers the life's key: what
  // is found under another key was left by an earlier life, or is not this set's journal at all.
  struct Keys {
    std::uint64_t last = 0;  // 0: none is known, and any counts.
    std::uint64_t next = 0;  // Of the life that reset() begins; 0: drawn by chance.
  };
  // Before recover(). `next` is remembered before reset(), beside `last`, so that it is known if
  // reset() was interrupted, and alone from then on, before the first append().
  void set_keys(Keys keys) noexcept { keys_ = keys; }

  // The most bytes of payload that one update may have.
  virtual std::size_t largest_payload_bytes() const noexcept = 0;
  // Makes the update durable and gives its ticket; survives_power_loss() says against what. Waits
  // for room, first come first served. The update's memory stays valid until the task ends. Fails
  // when too few drives are left. kTimedOut: the memory does not become durable in time. The
  // update may then be replayed after a crash, and until that is over append() fails at once.
  virtual Task<Result<std::uint64_t>> append(StripeUpdate update) = 0;
  // In any order. Costs no I/O by itself.
  virtual void release(std::uint64_t ticket) = 0;
  // Nothing is released any more: who finds no room, now or later, ends with the error.
  virtual void refuse_waiting(Error error) = 0;
  // Called once, before the first append(): what a crash left. Every block stands in at most one
  // update, with its newest bytes: released updates may come back, but none over a newer one, nor
  // over one that is lost.
  // Afterwards the journal counts all of it as live until reset(). What was not released is
  // returned again by the next recover() if there is another crash before reset() has ended, also
  // when a drive is missing then.
  virtual Task<Result<JournalRecovery>> recover() = 0;
  // Everything recovered has been written and flushed: the journal is durably empty. Called after
  // every recover(), also of nothing; append() may follow.
  virtual Task<Error> reset() = 0;
  // When it ends, no update that was released before the call comes back, if all older ones were
  // released, too; not even if only drives are left that have become live again since it was
  // appended: until then those do not count as redundancy.
  virtual Task<Error> renew() = 0;

  // Nothing is appended any more. False if something of the journal still runs at the deadline;
  // then it must stay.
  virtual Task<bool> close_until(TimePoint deadline) {
    (void)deadline;
    co_return true;
  }

  // What append() stores now is there also after a loss of power.
  virtual bool survives_power_loss() const noexcept { return true; }

  virtual std::uint64_t used_bytes() const noexcept = 0;
  virtual std::uint64_t size_bytes() const noexcept = 0;
  virtual std::uint64_t written_bytes() const noexcept = 0;  // Since it was opened, all copies.
  // More than half is used, or somebody waits for room.
  virtual bool under_pressure() const noexcept = 0;
  // Called when under_pressure() after a record was written or when somebody has begun to wait: the
  // owner flushes its drives and releases what that covered. If there is nothing to release yet,
  // the owner looks at under_pressure() again when an update has been written in place. Set before
  // the first append(); must not suspend.
  std::function<void()> on_pressure;

 protected:
  Keys keys_;
};

// What a journal on drives asks of the set.
class JournalDrives {
 public:
  // Bit r: role r's drive takes writes now and its superblock is current.
  virtual std::uint64_t live_roles() const noexcept = 0;
  // Tells which drives these are: another number for others; 0: nobody asks (set_back.h).
  virtual std::uint32_t live_mark() const noexcept { return 0; }
  // I/O of the journal on a role's drive, in blocks from the drive's beginning; counted apart from
  // other I/O. A drive that fails a write is dropped from the set by the set itself before the task
  // ends, and is not live any more; append() then takes another.
  virtual Task<Completion> journal_io(unsigned role, Request request) = 0;

 protected:
  ~JournalDrives() = default;
};

}  // namespace sandbay::raid
