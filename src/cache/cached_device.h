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

#include <cstdint>
#include <string>
#include <vector>

#include "block/layer.h"
#include "cache/cache.h"
#include "cache/destage.h"
#include "cache/fetch.h"
#include "cache/range_locks.h"

namespace sandbay::cache {

class CachedDevice final : public Layer {
 public:
  CachedDevice(Cache& cache, const Uuid& uuid, std::uint16_t index, BlockDevice& below);
  ~CachedDevice() override;

  // As the device below, but for what is true of the cache now: volatile, or non-volatile.
  const Geometry& geometry() const noexcept override;
  // kFailed or kDegraded while dirty data cannot be destaged.
  Health health() const noexcept override;
  std::string description() const override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;
  Task<Completion> submit(Request request) override;

  const Uuid& uuid() const noexcept { return uuid_; }
  std::uint64_t dirty_bytes() const noexcept;
  Error destage_failure() const noexcept { return destager_.failure(); }
  const DeviceCounters& counters() const noexcept { return destager_.counters(); }

  // By an administrator's explicit command: forgets all dirty data. What below then has there is
  // old or new. Returns the runs of blocks.
  Task<std::vector<Extent>> discard();
  // Destages everything and ends what runs in the background.
  Task<Error> close();

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
  struct Pinned;

  // Lines. A line's number and ranges within it from blocks of the device.
  std::uint64_t line_of(Lba lba) const noexcept { return lba / line_blocks_; }
  std::uint64_t key_of(std::uint64_t number) const noexcept {
    return LineIndex::key_of(index_, number);
  }
  Range range_in(std::uint64_t number, const Extent& extent) const noexcept;
  Line* find_line(std::uint64_t number) const noexcept { return cache_.find(key_of(number)); }
  Line* obtain_line(std::uint64_t number) { return cache_.obtain(*this, key_of(number), number); }
  Lba lba_in(const Line& line, unsigned block) const noexcept {
    return line.number * line_blocks_ + block;
  }
  // Calls visit(line) for each line of the extent that is in the index.
  template <class Visit>
  void for_lines(const Extent& extent, Visit visit);
  // The first dirty block in the extent and how many follow; 0 blocks: none.
  Extent next_dirty(const Extent& extent) const;

  // read.cc
  bool collect_hit(const Extent& extent, BufferList& out);
  Task<Completion> read_missing(Request request, bool counts);
  Task<bool> assemble(Extent extent, const Request* request, BufferList* out);
  bool start_fetches(const Extent& extent, const Request& request, std::vector<Fetch*>& joined);
  Fetch* start_fetch(const Extent& extent, const Request& request);
  Task<void> run_fetch(Fetch* fetch);
  void end_fetch(Fetch& fetch);
  // Into the request's own buffers; cached blocks win, or only dirty ones.
  Task<Completion> read_around(Request request, bool only_dirty);
  Task<Completion> read_medium(Request request);

  // write.cc
  bool writes_back(const Request& request, const VolumeState& volume) const;
  Task<Completion> write_back(Request request);
  Task<Error> write_piece(VolumeState* volume, std::uint64_t number, Extent extent, BufferList data,
                          Hint hint);
  Task<Completion> write_through(Request request);
  void insert_dirty(DirtyRecord& record, const BufferList& data, bool in_write_memory);
  void install_clean(const Extent& extent, const BufferList& data, Hint hint);
  void forget(const Extent& extent);  // Clean blocks; what is being fetched is not put in.
  Task<Completion> change_below(Request request);

  Cache& cache_;
  Uuid uuid_;
  std::uint16_t index_;
  std::uint32_t block_bytes_;
  std::uint32_t line_blocks_;
  mutable Geometry shown_geometry_;
  Destager destager_;
  RangeLocks locks_;
  // Writes that are below but perhaps not durable there, and no flush has covered yet.
  bool unflushed_ = false;
  Gate gate_;  // Fetches.
};

}  // namespace sandbay::cache
