// RecordLog: a ring of checksummed records of any size in a region, or in a part of one.
//
// A record is {descriptor, payload}. The descriptor says in the owner's words what the payload is
// about (a stripe, a range of a volume); it has a checksum apart from the payload's, so that a
// damaged or lost record can still be reported by range. A record is live from the end of append()
// to release(); killed at any instruction, the log recovers every live record, and of those whose
// append had not ended it has all or nothing. A seal apart from the log (log_seal.h) says which
// records are live, too, so that content that has gone back to an earlier one is not believed.
//
// Order of release: a record that was released does not come back after the process was killed.
// After a crash of the host with Durability::kHost, releases that no commit followed may be undone,
// but only the latest ones: if a record comes back, so does every record that was released in a
// later commit. Release records about the same place oldest first, and none can be replayed over a
// newer one. Before writing such a place without a record, await flush_releases().
//
// Used on the memory's home executor. A region has one log at most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nvram/log_seal.h"
#include "nvram/nvram.h"
#include "runtime/buffer.h"
#include "runtime/error.h"
#include "runtime/sync.h"
#include "runtime/task.h"

namespace sandbay::nvram {

struct RecordHeader;

struct RecordId {
  std::uint64_t sequence = 0;  // Grows by one with every record of a log.
  auto operator<=>(const RecordId&) const = default;
};

// A record that survived, verified. The spans point into the image until it is released.
struct Record {
  RecordId id;
  std::span<const std::byte> descriptor;
  std::span<const std::byte> payload;
  // As in LostRecord: false only after a crash of the host, and then its append may not have ended.
  bool acknowledged = true;
};

// A record that cannot be had back, and what is known of it.
struct LostRecord {
  std::uint64_t first_sequence = 0;
  std::uint64_t record_count = 1;  // More than one: a run of which nothing is known.
  // False only after a crash of the host: its append may never have ended. Such a record is no
  // loss, unless what was appended last is also damaged.
  bool acknowledged = true;
  bool described = false;             // The descriptor below is right.
  std::vector<std::byte> descriptor;  // Empty unless described.
  std::uint64_t payload_bytes = 0;    // 0 unless described.
};

struct Recovery {
  // The log's; 0 if it is new or its control blocks are damaged.
  std::uint64_t log_id = 0;
  Loss region_loss = Loss::kNone;  // If not kNone: records is empty, and lost has all there were.
  // Both control blocks of the log are damaged, or both copies of its seal, or they tell of
  // different times: records is empty, lost has those that were found, released ones perhaps among
  // them, and there may have been more.
  bool control_lost = false;
  std::vector<Record> records;   // In order of sequence.
  std::vector<LostRecord> lost;  // In order of sequence.
  // Nothing that was acknowledged is known to be lost.
  bool whole() const {
    for (const LostRecord& record : lost) {
      if (record.acknowledged) return false;
    }
    return region_loss == Loss::kNone && !control_lost;
  }
};

struct RecordLogOptions {
  // The part of the region: multiples of kPageBytes; byte_count 0 means to the region's end. At
  // least kLeastLogBytes. Two pages of it hold the control blocks.
  std::uint64_t offset = 0;
  std::uint64_t byte_count = 0;
};

inline constexpr std::uint64_t kLeastLogBytes = 4 * kPageBytes;

class RecordLog {
 public:
  static constexpr std::size_t kMostDescriptorBytes = 4096;

  // `region` outlives the log. Nothing is read or written before recover().
  RecordLog(Region& region, RecordLogOptions options);
  ~RecordLog();  // No append is in flight.
  RecordLog(const RecordLog&) = delete;
  RecordLog& operator=(const RecordLog&) = delete;

  // Once, first. What is there; changes nothing in the image, so it can be repeated after a kill
  // any number of times with the same result. In a new region: nothing.
  Recovery recover();
  // Between the two: a record that recover() has found is of no use and not live after accept().
  void forget(RecordId id);
  // Once, after recover(): what it listed as lost is forgotten, the recovered records stay live
  // until each is released, and the log is ready. Durable when it ends with kNone. The region is
  // settled after it (Region::settle()), and only then append() may be called.
  Task<Error> accept();
  // The same, but nothing that was found is kept: the log is empty, and its id is this one, which
  // was never used before, or drawn if it is 0. Until it has the new id it has all that was found.
  Task<Error> accept_nothing(std::uint64_t log_id);
  // Drawn by chance when the log was made or emptied. Whoever remembers it elsewhere knows whether
  // a log is the one that was used last.
  std::uint64_t log_id() const noexcept { return log_id_; }

  // Adds a record: one copy into the image. Waits, first come first served, while there is no room.
  // When it ends without error the record is live, as durable as the image is. The spans and what
  // they name stay valid until the task ends. kInvalid: larger than largest_payload_bytes().
  // kClosed after close(), kHardware after a power cut, else the failure of the commit.
  Task<Result<RecordId>> append(std::span<const std::byte> descriptor,
                                std::span<const IoSlice> payload);
  // The record is of no use any more: what it protects is on flushed drives. In any order, once;
  // never waits. Its space is free again when all older records are released as well.
  void release(RecordId id);
  // No record that was released before the call comes back, not even after a crash of the host.
  // At once with Durability::kProcess; with kHost two shared syncs, unless it holds already.
  Task<Error> flush_releases();

  // Of the ring; records take their descriptor and payload, and up to 127 bytes.
  std::uint64_t capacity_bytes() const noexcept { return capacity_; }
  std::uint64_t used_bytes() const noexcept;
  std::uint64_t free_bytes() const noexcept { return capacity_ - used_bytes(); }
  std::uint64_t largest_payload_bytes(std::size_t descriptor_bytes) const noexcept;
  std::size_t live_records() const noexcept { return live_count_; }
  std::size_t waiting_appends() const noexcept { return waiting_; }
  // Nothing is released any more: who finds no room, now or later, ends with the error.
  void refuse_waiting(Error error);

  // Appends that wait and later ones fail with kClosed; ends when none is in flight. The content
  // stays as it is.
  Task<void> close();

 private:
  friend class Nvram;
  struct Scan;    // What recover() found, for accept().
  struct Entry {  // A record from its append until the tail has passed it.
    std::uint64_t position = 0;
    std::uint64_t byte_count = 0;  // 0: it was lost, and nobody knows where it stood.
    bool live = false;
  };

  // record_recovery.cc
  void distrust_all(Recovery& recovery);
  void scan_ring();
  bool give_record(std::uint64_t position, bool acknowledged, bool trusted,
                   Recovery& recovery) const;
  void judge_by_marks(Recovery& recovery);
  void list_missing(std::uint64_t first, std::uint64_t end, Recovery& recovery) const;
  bool seal_fits() const;
  void judge_by_seal(Recovery& recovery);
  void ask_seal(std::size_t bucket, std::uint64_t first, std::uint64_t head);
  void list_unreleased(Recovery& recovery) const;

  // record_accept.cc
  void format();
  void restore();
  void restore_entries();
  void restore_marks();

  // record_log.cc
  Entry& entry(std::uint64_t sequence) { return entries_[sequence % entries_.size()]; }
  void make_room_for_entry();
  std::uint64_t place_for(std::uint64_t byte_count) const;  // kNowhere if there is no room.
  RecordId put(std::uint64_t position, std::span<const std::byte> descriptor,
               std::span<const IoSlice> payload, std::uint64_t payload_bytes);
  std::uint32_t put_payload(std::byte* target, std::span<const IoSlice> payload);
  Task<Error> wait_for_room(std::uint64_t byte_count);
  bool to_host() const noexcept { return nvram_.durability() == Durability::kHost; }
  void mark_released(std::uint64_t position);
  void advance_tail();
  void write_control();
  void begin_round();  // A sync of the image is about to begin, has ended well.
  void end_round();
  void wake_all();

  Region& region_;
  Nvram& nvram_;
  std::span<std::byte> controls_;
  std::span<std::byte> ring_;
  std::uint64_t capacity_ = 0;
  bool ready_ = false;
  bool closed_ = false;
  std::unique_ptr<Scan> scan_;  // Between recover() and accept().

  LogSeal seal_;
  std::uint64_t log_id_ = 0;
  std::uint64_t generation_ = 0;
  std::size_t slot_ = 0;  // Of the newest control block.
  std::uint64_t forgiven_first_ = 0;
  std::uint64_t forgiven_end_ = 0;
  std::uint64_t head_sequence_ = 1;
  std::uint64_t head_position_ = 0;
  std::uint64_t tail_sequence_ = 1;
  std::uint64_t tail_position_ = 0;
  // The tail that the image says for certain: only before it may be overwritten.
  std::uint64_t durable_tail_position_ = 0;
  // Releases: the epoch they are marked with, the latest used, the latest that is durable, and the
  // latest that a durable control block calls so.
  std::uint64_t epoch_ = 1;
  std::uint64_t released_epoch_ = 0;
  std::uint64_t durable_epoch_ = 0;
  std::uint64_t confirmed_epoch_ = 0;
  std::uint64_t durable_head_ = 1;
  struct Round {  // What the control block of the running round says.
    std::uint64_t head_sequence = 0;
    std::uint64_t tail_position = 0;
    std::uint64_t epoch = 0;
    std::uint64_t durable_epoch = 0;
    bool wrote = false;
  } round_;
  bool changed_ = false;  // Since the control block was written.

  std::vector<Entry> entries_;  // A ring by sequence: tail_sequence_ to head_sequence_.
  std::size_t live_count_ = 0;
  std::size_t waiting_ = 0;
  Error refusal_ = Error::kNone;  // Of who waits for room.
  Mutex turn_;                    // Of those who wait for room: first come, first served.
  Condition room_;                // There may be room.
  Gate appends_;
};

}  // namespace sandbay::nvram
