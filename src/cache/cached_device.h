// CachedDevice: a RAID set, or any device, seen through the controller's cache.
//
// Reads (read.cc): what is cached is answered with shared slices; what is not is fetched, and
// everybody who wants the same waits for the same fetch. Writes (write.cc): acknowledged when the
// cache has them, or passed through, as the volume's mode, the battery and memory allow. FUA,
// FLUSH, UNMAP and WRITE SAME as SBC says. An error of a fetch concerns only those who need its
// blocks. An error of destaging keeps the data dirty; new writes then end with that error until it
// succeeds, or until an administrator has discard()ed the data.
//
// What every change that is not a dirty record keeps to (write-through, unmap, zeroes): it locks
// its extent, has all live records there destaged and released, and only then goes below; so no
// crash brings back what was there before it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "block/layer.h"
#include "cache/cache.h"
#include "cache/damaged_blocks.h"
#include "cache/destage.h"
#include "cache/fetch.h"
#include "cache/range_locks.h"

namespace sandbay::cache {

class PinnedLines;

class CachedDevice final : public Layer {
 public:
  CachedDevice(Cache& cache, const Uuid& uuid, std::uint16_t index, BlockDevice& below,
               std::uint32_t stripes_at_once);
  ~CachedDevice() override;

  // As the device below, but for its unit, and for what is true of the cache now: volatile, or
  // non-volatile.
  const Geometry& geometry() const noexcept override;
  // kFailed or kDegraded while dirty data cannot be destaged.
  Health health() const noexcept override;
  std::string description() const override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;
  Task<Completion> submit(Request request) override;
  // In the write memory, if writes go there now.
  BufferList write_buffers(std::size_t byte_count) override;

  const Uuid& uuid() const noexcept { return uuid_; }
  std::uint32_t block_bytes() const noexcept { return block_bytes_; }
  // Not released yet.
  std::uint64_t dirty_bytes() const noexcept { return live_bytes_; }
  Error destage_failure() const noexcept { return destager_.failure(); }
  const DeviceCounters& counters() const noexcept { return destager_.counters(); }

  // Whether writes may stay in the cache; until somebody says so they may. While they may not, they
  // go through: whoever has to note durably that something is dirty here says when it is noted.
  void allow_write_back(bool allowed) noexcept { write_back_allowed_ = allowed; }
  // Everything that is dirty now is durable below when this ends with kNone, NVRAM or not.
  Task<Error> destage_all() { return destager_.destage(whole()); }
  // The same, and every change that has passed the cache.
  Task<Error> flush_all();
  // By an administrator's explicit command: forgets all dirty data. What below then has there is
  // old or new: what was on its way there when it failed may arrive. Returns the runs of blocks.
  Task<std::vector<VolumeExtent>> discard();
  // Destages everything and stops. The error of destaging: what is dirty then stays so. Requests
  // that come from then on end with kClosed; writes that came before and wait go through.
  Task<Error> close();
  Task<void> stop();  // Ends what runs in the background. No request is in flight.

 protected:
  Task<Completion> read(Request request) override;
  Task<Completion> write(Request request) override;
  Task<Completion> flush(Request request) override;
  Task<Completion> unmap(Request request) override { return change_below(std::move(request)); }
  Task<Completion> write_zeroes(Request request) override {
    return change_below(std::move(request));
  }
  Task<Completion> advise(Request request) override;

 private:
  friend class Cache;
  friend class Destager;
  friend class PinnedLines;
  // Reads and writes are worked on in pieces, cut at multiples of this.
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

  // What a read has met on its way.
  struct Seen {
    bool present = false;     // Some of it was cached.
    bool read_ahead = false;  // Some of it was on its way already.
  };
  // Blocks that a segment has (`cached`), or that none has.
  struct Run {
    Extent extent;
    Buffer cached;
  };

  Cache& cache() const noexcept { return cache_; }
  WriteMemory* write_memory() const noexcept { return cache_.write_memory(); }
  Extent whole() const noexcept {
    return {.first = 0, .block_count = below().geometry().block_count};
  }
  Extent first_piece(const Extent& extent) const noexcept {
    const std::uint64_t most = kPieceBytes / block_bytes_;
    return {.first = extent.first,
            .block_count = std::min(extent.block_count, most - extent.first % most)};
  }
  static Task<Completion> complete(Error error, BufferList data);
  static Task<Completion> end_damaged(Lba first, Request request);
  static Request part_of(const Request& request, const Extent& extent, BufferList data);

  // Lines: numbers, and ranges within them.
  std::uint64_t line_of(Lba lba) const noexcept { return lba / line_blocks_; }
  Range range_in(std::uint64_t number, const Extent& extent) const noexcept;
  Line* find_line(std::uint64_t number) const noexcept {
    return cache_.find(LineIndex::key_of(index_, number));
  }
  Line* obtain_line(std::uint64_t number, bool always) {
    return cache_.obtain(*this, LineIndex::key_of(index_, number), number, always);
  }
  Lba lba_in(const Line& line, unsigned block) const noexcept {
    return line.number * line_blocks_ + block;
  }
  // Calls visit(line) for each line of the extent that is in the index; it may remove the line.
  template <class Visit>
  void for_lines(const Extent& extent, Visit visit) {
    const std::uint64_t first = line_of(extent.first);
    const std::uint64_t last = line_of(extent.end() - 1);
    if (last - first < cache_.index().size()) {
      for (std::uint64_t number = first; number <= last; ++number) {
        if (Line* const line = find_line(number)) visit(*line);
      }
      return;
    }
    cache_.index().for_each([&](Line& line) {
      if (line.device == this && line.number >= first && line.number <= last) visit(line);
    });
  }
  // The first run of dirty blocks of one line in the extent; 0 blocks: none.
  Extent next_dirty(const Extent& extent);
  // Takes clean blocks out.
  void forget(const Extent& extent);
  Task<Completion> change_below(Request request);
  // A change of this volume has gone below other than by destaging, and is perhaps not durable.
  void note_passed(std::uint64_t volume);
  // What this volume has changed so is durable below when this ends with kNone. A flush that has
  // begun continues when patience ends.
  Task<Error> flush_passed(std::uint64_t volume, Patience patience);
  Task<void> run_flush(std::uint64_t volume, std::shared_ptr<VolumeFlush> flush, bool in_gate);

  // read.cc. Pointers are into the frame of the caller, who awaits at once.
  BufferList lend(BufferList found, Request& request) const;
  bool collect_hit(const Extent& extent, BufferList& out);
  Task<Completion> read_missing(Request request);
  Task<Result<bool>> assemble(Extent piece, const Request* request, Seen* seen, BufferList* out);
  bool start_fetches(const PinnedLines& lines, const Request& request, Joined* joined);
  bool start_fetch(const Extent& extent, const Request& request, Joined* joined);
  BufferList allocate_by_line(const Extent& extent);
  Spawned run_fetch(Fetch* fetch);
  void end_fetch(Fetch& fetch);
  void read_ahead(const Extent& piece, const Request& request);
  Run run_at(Lba at, const Extent& extent, bool only_dirty) const;
  Task<Completion> read_around(Request request, bool only_dirty);
  Task<Completion> read_medium(Request request);

  // write.cc
  bool writes_back(const Request& request, const VolumeState& volume) const;
  bool keeps(bool force_unit_access) const;
  Task<Completion> write_back(Request request);
  Task<Result<bool>> write_piece(VolumeState* volume, const Request* request, Extent piece,
                                 std::uint64_t* left);
  BufferList hold(const BufferList& data);
  void insert(DirtyRecord& record, const PinnedLines& lines, const BufferList& data);
  Task<Completion> write_through(Request request, Extent rest, TimePoint start,
                                 std::uint64_t left = 0);
  bool is_as_received(const BufferList& data) const noexcept;
  void install(const PinnedLines& lines, const BufferList& data);
  void note_released(const DirtyRecord& record);
  // What the write memory has kept over a restart.
  void restore(WriteId id, std::uint64_t volume, const Extent& extent, const BufferList& data);

  Cache& cache_;
  Uuid uuid_;
  std::uint16_t index_;
  std::uint32_t block_bytes_;
  std::uint32_t line_blocks_;
  std::uint32_t stripes_at_once_;
  mutable Geometry shown_geometry_;
  bool write_back_allowed_ = true;
  bool closing_ = false;
  std::uint64_t live_bytes_ = 0;  // Of records that are not released.
  std::uint64_t live_room_ = 0;   // What they take of the room for dirty data.
  Destager destager_;
  DamagedBlocks damaged_;
  RangeLocks locks_;
  Gate gate_;  // Fetches, and flushes below.
};

}  // namespace sandbay::cache
