// PoolVolume: a branch of a pool, or one of its snapshots, as a block device.
//
// Reads look up where each chunk is, through the branch's parents if need be, and
// read the runs at once. Writes (pool_volume_write.cc) whose chunks are all there and kept already
// go in place; others are a PageChange (page_change.h): what is old is kept, what is new is
// written, the map is changed, and only then they are acknowledged. Unmapping and zeroing
// (pool_volume_unmap.cc) only change the map,
// but for chunks that they concern in part.
//
// Every I/O enters the volume's door, so that snapshot() and restore() happen between two writes.
// A change is meant for the content that the volume had at submit(): a change that still waits when
// the volume is restored ends with kCancelled and changes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "block/block_device.h"
#include "pool/branch.h"
#include "pool/pool.h"
#include "pool/rate_limit.h"
#include "runtime/sync.h"

namespace sandbay::pool {

class PageChange;

class PoolVolume final : public BlockDevice {
 public:
  // Pool::attach() makes it.
  PoolVolume(Pool& pool, Branch& branch, Generation generation);
  ~PoolVolume() override;  // No request is in flight.

  Executor& home() const noexcept override { return pool_.home(); }
  const Geometry& geometry() const noexcept override;
  // The worst of the stores that it reads from: with pages of it or of its parents, or with what
  // is kept for the generations that it reads. kMissing: one of them is missing.
  Health health() const noexcept override;
  // False: of the stores that it reads from, one does not.
  bool serves() const noexcept override;
  std::string description() const override;
  Task<Completion> submit(Request request) override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;

  // What hosts may do with it, reads, writes and unmapping together. Whoever waits keeps the order
  // in which he came; an unmapping counts as an operation without bytes.
  void set_rate_limits(const RateLimits& limits);
  const RateLimit& rate_limit() const noexcept { return rate_; }

  Pool& pool() const noexcept { return pool_; }
  Branch& branch() const noexcept { return *branch_; }
  Generation generation() const noexcept { return generation_; }
  bool read_only() const noexcept { return generation_ != kLive; }

 private:
  friend class Pool;
  // Pages that are only looked at between two turns of the executor.
  static constexpr std::uint32_t kSlicePages = 1024;
  // Pages that are deallocated at once. Their records share a group, and one turn applies it.
  static constexpr std::uint32_t kPagesAtOnce = 512;
  static_assert(kPagesAtOnce <= MapLog::kMostGroupRecords);
  // A part of a request within one page, in bytes.
  struct Piece {
    PageNumber page = 0;
    std::uint64_t offset = 0;
    std::uint64_t byte_count = 0;

    ChunkRange chunks() const noexcept {
      const auto first = static_cast<ChunkIndex>(offset / kChunkBytes);
      const auto last = static_cast<ChunkIndex>((offset + byte_count - 1) / kChunkBytes);
      return {.page = page, .first = first, .count = last - first + 1};
    }
  };

  Piece first_piece(std::uint64_t byte, std::uint64_t end) const noexcept;
  Lba lba_of(const Piece& piece) const noexcept;
  bool reads_from(StoreIndex store) const noexcept;
  // Its flags and limits, without extent and data.
  static Request request_like(const Request& request);
  void settle_geometry() const;
  Task<Completion> submit_in_place(Request request, Place place, Piece piece);

  // Sizes change between a host's question and its turn.
  bool behind_the_end(const Extent& extent) const noexcept;
  static Task<Completion> refuse(Request request, Error error);
  Task<Completion> perform(Request request, std::uint64_t content);
  Task<Completion> perform_later(Request request, std::uint64_t content);
  // kNone: the change may go on, inside the doors.
  Error hindrance(const Request& request, std::uint64_t content) const noexcept;
  // pool_volume.cc. Pointers are into the frame of the caller, who awaits at once.
  using PieceOperation = Task<Completion> (PoolVolume::*)(Request request, Piece piece);
  Task<Completion> in_pieces(Request request, PieceOperation operation);
  Task<Completion> read(Request request);
  Task<Completion> read_piece(Request request, Piece piece);
  Task<Completion> flush(Request request);
  Task<Error> secure_map();
  Task<Completion> advise(Request request);
  // pool_volume_write.cc
  Task<Completion> write(Request request, std::uint64_t content);
  Task<Completion> write_piece(Request request, Piece piece);
  std::optional<bool> may_write_in_place(const ChunkRange& range);
  Task<Completion> write_in_place(Request request, Piece piece);
  Task<Error> load_for_write(PageNumber page, PoolMap::ChunkMaps::Pin* chunks,
                             PoolMap::KeptMaps::Pin* kept);
  Task<Completion> change_piece(Request request, Piece piece);
  Task<Completion> try_change(const Request* request, Piece piece, bool* lacks_page);
  Task<Completion> change_locked(PageChange* change, const Request* request, Piece piece);
  static Piece part_of(const Piece& piece, ChunkIndex first, ChunkIndex end);
  Task<Completion> write_fresh(PageChange* change, const Request* request, Piece piece);
  Task<Completion> write_rest(PageChange* change, const Request* request, Piece piece);
  Task<Result<BufferList>> fill(PageNumber page, Piece part, std::uint64_t head,
                                std::uint64_t tail);
  void note_written(const ChunkRange& range);
  // pool_volume_unmap.cc
  Task<Completion> deallocate(Request request, std::uint64_t content);
  // Inside the doors, or when they are closed.
  Task<Error> deallocate_inside(const Request* request);
  // Pieces that are deallocated at once. An error ends those that have not begun.
  struct Deallocation {
    Gate pieces;
    Error error = Error::kNone;
  };
  Task<void> deallocate_beside(const Request* request, Piece piece, Deallocation* all);
  Task<Error> deallocate_piece(const Request* request, Piece piece);
  Task<Error> deallocate_chunks(const Request* request, ChunkRange range, bool* lacks_page);
  Task<Error> write_zeros(const Request* request, Piece piece);
  bool is_without_data(PageNumber page) const;
  bool is_settled(PageNumber page) const;
  bool reads_as_zeros(PageNumber page) const;

  Pool& pool_;
  Branch* branch_;             // Another one after a restore.
  std::uint64_t content_ = 0;  // How often it has been restored.
  Generation generation_;
  RateLimit rate_;
  WriteDoor door_;  // All I/O, for restores; the branch's own door is that of writes.
  mutable Geometry geometry_;
};

}  // namespace sandbay::pool
