// WriteMemory: the part of a controller's non-volatile memory that holds acknowledged writes until
// they are on flushed drives.
//
// It is one region of an Nvram: a log of descriptors in front, and behind it the data area, which a
// buffer pool stands over. A write's bytes lie in that pool's buffers, received there or copied
// there once; the log's record says only whose they are, where they are and what their CRC32C is.
// So every acknowledged byte is in the image, and none twice. With a mirror, the same bytes stand
// at the same place of a second Nvram, whose log has the same record.
//
// Killed at any instruction, every write whose append() had ended and that was not released comes
// back from recover(); of one that was being appended all or nothing. What was damaged is never
// returned: it comes from the mirror, or it is listed as lost. Writes come back in the order in
// which they were appended, so that replaying them one over the other ends with the newest.
//
// Lives on the memory's home executor. Nothing is allocated from the heap in the steady state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "block/block_device.h"
#include "cache/patience.h"
#include "nvram/nvram.h"
#include "nvram/record_log.h"
#include "runtime/buffer.h"
#include "runtime/sync.h"
#include "runtime/uuid.h"

namespace sandbay::cache {

struct WriteMemoryOptions {
  std::string region = "cache";  // Its name, in both memories.
  std::uint64_t data_bytes = 0;  // At least 8 slabs.
  std::uint64_t log_bytes = 0;   // See default_log_bytes().
  std::size_t slab_bytes = BufferPool::kSlabBytes;
  // The mirror holds what it held before the primary went on without it: it is not looked at.
  bool mirror_is_stale = false;
  // Without a working mirror nothing here counts as non-volatile.
  bool mirror_required = false;
};

// Room for a record about every 2 KiB of data, and at least 64 KiB.
std::uint64_t default_log_bytes(std::uint64_t data_bytes);

// What a write is about.
struct WriteSubject {
  Uuid device{};
  std::uint64_t volume = 0;
  std::uint32_t block_bytes = 512;
  Extent extent;
};

// A write in the memory, from append() to release(). Never 0.
enum class WriteId : std::uint32_t {};

struct RecoveredWrite {
  WriteId id{};
  WriteSubject subject;
  BufferList data;  // Slices of the data area.
};

struct LostWrite {
  bool known = false;  // False: something was lost, and nobody knows what.
  WriteSubject subject;
  std::string why;  // "host crash", "damaged"
};

struct WriteRecovery {
  std::vector<RecoveredWrite> writes;  // In the order in which they were appended.
  std::vector<LostWrite> lost;         // Acknowledged, and gone.
  std::size_t from_mirror = 0;         // How many of `writes` only the mirror had.
};

class WriteMemory {
 public:
  // Slices of one write; place() keeps to it.
  static constexpr std::size_t kMostSlices = 250;
  static constexpr std::size_t kMostWriteBytes = std::size_t{1} << 20;

  // Both memories outlive it and share a home; `mirror` may be null. Fails with one line.
  static Task<std::expected<std::unique_ptr<WriteMemory>, std::string>> open(
      nvram::Nvram* primary, nvram::Nvram* mirror, WriteMemoryOptions options);
  ~WriteMemory();  // After stop(), or as if killed; no write is being appended.
  WriteMemory(const WriteMemory&) = delete;
  WriteMemory& operator=(const WriteMemory&) = delete;

  // Once, first: what is there. Then accept(), once: what was lost is forgotten, the writes stay
  // until each is released, and append() may be called. Killed before accept() has ended, the next
  // start sees the same.
  WriteRecovery recover();
  Task<Error> accept();

  // Where payloads of writes come from. What was recovered stays out of it until it is released.
  BufferPool& buffers() noexcept { return pool_; }
  bool holds(const BufferList& data) const noexcept;
  // The same bytes in the data area: `data` itself if it lies there, otherwise a copy. Waits, first
  // come first served, for room. At most largest_write_bytes().
  Task<BufferList> place(BufferList data);
  std::size_t largest_write_bytes() const noexcept;

  // `data` lies here (place()) and is the extent's content; it must not change any more. When this
  // ends without error the write is kept. Suspends only for the durability of the image, not longer
  // than a second, or while the log is full: first come first served, not longer than a second and
  // than patience lasts, kTimedOut or its error. kClosed after stop(), kHardware after a power cut.
  // What it was about may then come back after a crash, until it is final: `left` gets its order.
  Task<Result<WriteId>> append(WriteSubject subject, BufferList data, Patience patience = {},
                               std::uint64_t* left = nullptr);
  // The write is of no use any more: overwritten by later ones, or on flushed drives. Of two about
  // one place the older is released first. Its buffers are held until that is final.
  void release(WriteId id);
  // No write released before the call comes back, whatever happens. To be awaited before a place is
  // written without append().
  Task<Error> flush_releases();
  // The same, and kTimedOut where that is not so by the deadline; kClosed after stop().
  Task<Error> flush_releases(TimePoint deadline);
  // The same for writes that overlap the extent: where there never was one, it ends well also when
  // the memory has failed, or does not get its image synced. Otherwise it waits for that a second
  // at most, and not longer than patience lasts. One that append() has left does not count where it
  // has the content that is about to be written: `left`.
  Task<Error> flush_releases(Uuid device, Extent extent, Patience patience = {},
                             std::uint64_t left = 0);
  // Memory can be damaged while it is in use; what was appended must not go to the drives as
  // something else. Whether the write's bytes of these blocks are what they were: a slice that is
  // not comes from the mirror, where that has it right. Asked again with the same `check`, it looks
  // no second time: each check is about one extent. Numbers come from new_check().
  bool verify(WriteId id, const Extent& extent, std::uint64_t check);
  std::uint64_t new_check() noexcept { return ++checks_; }
  // What verify() has found: the write's blocks in the extent that are damaged, in order.
  std::vector<Extent> damaged(WriteId id, const Extent& extent) const;
  // A part of the memory is gone (Nvram::content_gone): takes from the mirror what that has. What
  // lay here and was not appended yet is not what was received: whoever has it must not keep it.
  void mend();
  bool content_gone() const noexcept { return primary_.nvram->content_gone(); }
  bool holds_any(const BufferList& data) const noexcept;
  // How many bytes of damage the mirror has made good.
  std::uint64_t mended_bytes() const noexcept { return mended_bytes_; }
  // How many blocks the write was about, and of what.
  const WriteSubject& subject(WriteId id) const noexcept;

  // Whether what is in here needs no flushed drives to be safe.
  bool non_volatile() const noexcept;
  // Whether a write may be acknowledged when it is in here: the battery is good, nothing has
  // failed, and the mirror works if there must be one.
  bool takes_writes() const noexcept;
  // Whether a write that is in here already may be acknowledged: the same, but for appends that do
  // not end in time.
  bool keeps_writes() const noexcept;
  bool mirrored() const noexcept { return mirror_.log != nullptr && !mirror_dropped_; }
  nvram::Battery& battery() noexcept { return primary_.nvram->battery(); }
  Error failure() const noexcept { return primary_.nvram->failure(); }
  // What a write takes of data_bytes(): at least its share of the log, so that data_bytes() of
  // writes, small or large, always have room in both.
  std::uint64_t room_for(std::uint64_t byte_count) const noexcept;
  // How full of writes it is: the greater share of data area and log, 0 to 1.
  double fullness() const noexcept;
  std::size_t live_writes() const noexcept { return live_count_; }
  std::uint64_t data_bytes() const noexcept { return pool_.limit_bytes(); }
  // In buffers of writes that are here or on their way in or out: what comes free in time. The rest
  // of what is used belongs to others.
  std::uint64_t held_bytes() const noexcept { return held_bytes_; }
  // Somebody waits in append() for room in the log.
  bool moving_records() const noexcept { return moving_; }  // To make room there.
  bool short_of_log() const noexcept { return first_log_waiter_ != nullptr; }

  // Goes on without a mirror that has failed, though nothing has tried to store something there.
  void look_at_mirror();

  // Called when the mirror has failed and the memory goes on without it, within the append(),
  // flush_releases(), look or move that has found that out, and before that ends. It must be
  // remembered, durably, that the mirror is stale; until it is, no change may be answered that ends
  // after this call: its caller sees to that.
  std::function<void()> on_mirror_lost;
  // Called when appends do not end in time, since the image does not get synced: until they do,
  // takes_writes() is false. And when they have ended.
  std::function<void(bool stalled)> on_stalled;
  bool stalled() const noexcept { return stalled_; }
  // Called when somebody begins to wait for room in the log: releases would give it.
  std::function<void()> on_short_of_log;
  // Called when buffers of released writes have come free later than release().
  std::function<void()> on_buffers_freed;

  // Appends that wait fail with kClosed; ends when nothing is in flight. The content stays.
  Task<void> stop();

 private:
  struct Half {  // One of the two memories.
    nvram::Nvram* nvram = nullptr;
    std::unique_ptr<nvram::Region> region;
    std::unique_ptr<nvram::RecordLog> log;  // Null: there is no such half, or it failed.
    std::span<std::byte> data;
  };
  struct Append {  // Of one who waits in append() for the image.
    bool ended = false;
    Error error = Error::kNone;
    Condition changed;
  };
  struct Entry {
    std::uint64_t order = 0;  // 0: free.
    WriteSubject subject;
    BufferList data;
    std::vector<std::uint32_t> checksums;  // Of its slices, when it was appended.
    std::uint64_t checked = 0;             // The last check, and what came of it.
    bool whole = true;
    std::uint64_t primary = 0;  // Sequences of the records; 0: none.
    std::uint64_t mirror = 0;
    std::uint32_t older = 0;  // By the place of the primary record in the log.
    std::uint32_t newer = 0;
    bool moving = false;
    Append* waiting = nullptr;
  };
  struct Released {
    WriteSubject subject;
    BufferList data;
    std::uint64_t order = 0;
  };
  struct Left {  // By append(), which has not ended yet.
    WriteSubject subject;
    std::uint64_t order = 0;
  };
  struct SyncCounts {
    std::uint64_t primary = 0;
    std::uint64_t mirror = 0;
  };
  struct LogWaiter {  // In append(), in order of arrival.
    LogWaiter* next = nullptr;
    Condition turn;
  };
  struct Move;
  struct Batch;
  struct Found;   // A record as recovery sees it.
  struct Search;  // What recover() keeps for accept().

  WriteMemory(Half primary, Half mirror, WriteMemoryOptions options);
  static Task<std::expected<Half, std::string>> claim(nvram::Nvram* nvram,
                                                      const WriteMemoryOptions* options);

  // write_memory_recovery.cc
  void look_at(Half& half, bool is_mirror);
  void note(const Half& half, std::span<const std::byte> descriptor, std::uint64_t sequence,
            bool acknowledged, bool whole);
  bool intact(const Half& half, const Found& found) const;
  void settle_found(Found& found, WriteRecovery& recovery);
  Task<Error> accept_half(Half* half);
  Task<Error> complete_halves(Search* search);

  // write_memory.cc
  std::uint32_t new_entry();
  void free_entry(std::uint32_t slot);
  void link_newest(std::uint32_t slot);
  void unlink(std::uint32_t slot);
  std::size_t encode(const Entry& entry, std::span<std::byte> descriptor) const;
  Task<Result<std::uint64_t>> append_to(Half* half, std::uint32_t slot);
  Task<void> append_to_mirror(std::uint32_t slot);
  Task<Error> append_entry(std::uint32_t slot, Append** waiting = nullptr);
  void copy_to_mirror(const BufferList& data);
  void drop_mirror();
  void finish(Entry& entry);
  void doubt(const Entry& entry);
  Task<void> free_released();
  Task<Error> flush_in_gate();
  void release_now(std::uint32_t slot);

  // write_memory_final.cc
  bool to_host() const noexcept;
  Task<Error> append_in_time(std::uint32_t slot);
  Task<void> append_detached(std::uint32_t slot);
  void set_stalled(bool stalled);
  SyncCounts sync_counts() const noexcept;
  bool has_gone_on(const SyncCounts& since) const noexcept;
  bool in_doubt(const Uuid& device, const Extent& extent, std::uint64_t but = 0) const;

  // write_memory_check.cc
  void seal(Entry& entry);
  bool good_slice(const Entry& entry, std::size_t index) const;
  bool mend_slice(Entry& entry, std::size_t index);
  template <class Visit>
  static void for_slices(const Entry& entry, const Extent& extent, Visit visit);

  // write_memory_room.cc
  static std::uint64_t log_bytes(std::size_t slice_count);
  static std::uint64_t log_bytes_of(const Entry& entry);
  std::uint64_t free_log_bytes() const noexcept;
  std::uint64_t reserved_log_bytes() const noexcept;
  bool has_log_room(std::uint64_t byte_count) const noexcept;
  Task<Error> wait_for_log(std::uint64_t byte_count, Patience patience);
  void leave_log_queue(LogWaiter& waiter);
  void wake_log_waiter();
  bool moving_helps() const noexcept;
  void make_log_room();
  Task<void> move_records();
  Task<std::size_t> move_batch(std::size_t most);
  Task<void> move_record(Move* move, Batch* batch);
  void end_move(const Move& move);
  Task<void> commit_moves();

  Half primary_;
  Half mirror_;
  WriteMemoryOptions options_;
  BufferPool pool_;
  std::unique_ptr<Search> search_;  // Between recover() and accept().
  std::vector<Entry> entries_;      // Slot 0 is not used.
  std::vector<std::uint32_t> free_slots_;
  std::uint32_t oldest_ = 0;
  std::uint32_t newest_ = 0;
  std::uint64_t next_order_ = 1;
  std::size_t live_count_ = 0;
  std::uint64_t live_log_bytes_ = 0;
  std::uint64_t held_bytes_ = 0;
  std::vector<Released> released_;  // Until flush_releases() has made it final.
  std::vector<Released> leaving_;   // Of these it is about to.
  struct Doubt {
    Lba end = 0;
    std::uint64_t order = 0;
  };
  // Since the memory has failed: blocks of which a write may come back, by the first.
  std::map<Uuid, std::multimap<Lba, Doubt>> doubtful_;
  std::uint64_t checks_ = 0;
  std::uint64_t mended_bytes_ = 0;
  std::vector<std::uint32_t> held_releases_;  // Until records that are being moved have arrived.
  Condition releases_made_;
  std::vector<Left> left_;
  Condition final_changed_;  // What was released or left may be final now.
  bool stalled_ = false;
  LogWaiter* first_log_waiter_ = nullptr;
  LogWaiter* last_log_waiter_ = nullptr;
  std::uint64_t promised_ = 0;  // Room in the mirror's log for what the primary's has already.
  bool mirror_dropped_ = false;
  bool stopping_ = false;
  bool freeing_ = false;
  bool moving_ = false;
  bool ready_ = false;
  Gate gate_;
};

}  // namespace sandbay::cache
