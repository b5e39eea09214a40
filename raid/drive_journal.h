// DriveJournal: the stripe-update journal on the set's own drives.
//
// One logical ring stands at the same place on every drive. Its unit is the drives' physical block;
// every record (journal_record.h) is a header, padded to a unit, and the payload, padded as well,
// so that no torn write damages another record. No record is split over the ring's end. Sequences
// grow by one; positions count units since the ring began, so a record tells where it belongs.
//
// What always holds:
//  * All appends that wait form one batch: one write with FUA to each of `copies` live drives of
//    one group, in rotation. A batch is written only when the one before it is durable. So a record
//    that is missing between the tail and the newest batch was durable once and has been lost.
//  * Every record carries the tail: all older ones are released. Space is used again only when a
//    record that says so is durable; where none does, one is written that says nothing else, for
//    which a unit is kept free.
//  * After a batch could be stored on no drive, nothing is appended any more until recover().
//  * recover() brings what it returns, and the newest tail, back to `copies` live drives before it
//    ends, and reset() continues behind every sequence that an absent drive may have seen.
//  * Nothing older than a record of which nothing is known comes back: it may be older than what
//    that one wrote.
//
// Up to copies - 1 drives of each group may be missing, and records damaged on as many, at every
// recovery. Memory that appends take in the steady state: the lists of slices of a batch; headers
// stand in a block that is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "raid/journal.h"
#include "raid/journal_record.h"
#include "raid/journal_scan.h"
#include "runtime/executor.h"
#include "runtime/sync.h"

namespace sandbay::raid {

class DriveJournal final : public Journal {
 public:
  // The ring begins and ends at a physical block and has at least kLeastUnits of them.
  static constexpr std::uint64_t kLeastUnits = 24;

  // Borrows the drives and the executor on which all of them live. Nothing is read or written
  // before recover().
  DriveJournal(JournalDrives& drives, JournalRing ring, Executor& home);
  ~DriveJournal() override;

  std::size_t largest_payload_bytes() const noexcept override;
  Task<Result<std::uint64_t>> append(StripeUpdate update) override;
  void release(std::uint64_t ticket) override;
  void refuse_waiting(Error error) override;
  // May be called again when nothing is in flight: the drives are read anew.
  Task<Result<JournalRecovery>> recover() override;
  Task<Error> reset() override;
  Task<Error> renew() override;

  std::uint64_t used_bytes() const noexcept override;
  std::uint64_t size_bytes() const noexcept override { return ring_.byte_count(); }
  std::uint64_t written_bytes() const noexcept override { return written_bytes_; }
  bool under_pressure() const noexcept override;
  // Why nothing can be appended any more; kNone while it can.
  Error failure() const noexcept { return failure_; }

 private:
  static constexpr std::size_t kMostBatchRecords = 64;
  struct Waiter;
  struct Round;
  // Records that are written together.
  struct Batch {
    Waiter* first = nullptr;  // Whose they are; none for a record that only tells the tail.
    Waiter* last = nullptr;
    std::size_t record_count = 0;
    std::uint64_t first_sequence = 0;
    std::uint64_t position = 0;
    std::uint64_t units = 0;
    std::uint64_t tail = 0;
    std::uint64_t tail_position = 0;
    std::size_t header_bytes = 0;  // Taken of headers_.
    BufferList data;
  };
  // A record from its append until the tail has passed it.
  struct Entry {
    std::uint64_t position = 0;
    bool released = false;
  };

  Task<void> wait_for_commit(Waiter* waiter);
  void start_commit();
  Task<void> commit();
  bool take_batch(Batch& batch);
  bool take_tail_only(Batch& batch);
  void add_record(Batch& batch, std::uint64_t position, const Waiter* waiter);
  // True if a record of so many units can stand at or behind `head` when everything before
  // `tail_position` is free; `start` is where.
  bool fits(std::uint64_t head, std::uint64_t tail_position, std::uint64_t units,
            std::uint64_t& start) const noexcept;
  Task<void> prepare_headers();
  std::uint64_t largest_record_units() const noexcept { return (ring_.unit_count() - 1) / 2; }
  // These two refer to their parameters; the caller awaits them at once.
  Task<Error> store(Batch& batch);
  Task<Error> write_copies(std::uint64_t position, const BufferList* data, std::uint64_t good);
  // Of a group with such roles, the next one after `rotor`.
  std::uint64_t candidates_in_turn(std::uint64_t untried, std::uint64_t good) const noexcept;
  Task<void> write_copy(Round* round, unsigned role, Request request);
  void finish(Batch& batch, Error error);
  void fail_appends(Error error);

  Task<Result<JournalRecovery>> recover_once();
  Task<Error> restore_copies(const FoundRecord* record, const std::vector<std::byte>* payload,
                             std::uint64_t good);
  void adopt(const JournalScan& scan);

  Entry& entry(std::uint64_t sequence);
  void add_entry(std::uint64_t position);
  void advance_tail();
  std::uint64_t units_for(std::uint64_t byte_count) const noexcept {
    return (byte_count + ring_.unit_bytes - 1) / ring_.unit_bytes;
  }

  JournalDrives& drives_;
  const JournalRing ring_;
  Executor& home_;

  // The records from the tail to the newest, a ring of a power of two.
  std::vector<Entry> entries_;
  std::uint64_t tail_sequence_ = 1;  // Of the oldest entry, or next_sequence_.
  std::uint64_t next_sequence_ = 1;
  std::uint64_t first_sequence_ = 1;  // Since the last reset(); older tickets mean nothing.
  std::uint64_t head_ = 0;            // Position of the next record.
  std::uint64_t tail_position_ = 0;
  std::uint64_t durable_tail_position_ = 0;  // As a durable record has it: all before it is free.
  std::uint64_t written_bytes_ = 0;
  std::uint64_t life_ = 0;  // Its key; since reset().
  Error failure_ = Error::kNone;
  Error refusal_ = Error::kNone;  // Of who waits for room.
  bool ready_ = false;            // Between reset() and recover() or the end.
  bool committing_ = false;       // commit() runs.
  unsigned next_group_ = 0;  // That is considered first for the next write, and by group the role.
  std::vector<unsigned> rotors_;
  Waiter* first_waiter_ = nullptr;
  Waiter* last_waiter_ = nullptr;
  Buffer headers_;  // Of one batch.
  Buffer padding_;  // One unit of zeros.
};

}  // namespace sandbay::raid
