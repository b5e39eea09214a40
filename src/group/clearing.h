// Clearing: a layer between a new volume and its place on a set, where another volume's data, or
// what the drives came with, may still be. The volume is there at once: what has not been cleared
// yet reads as zeros, is cleared before it is first written, and in the background chunk by chunk.
//
// What always holds: nothing of before is ever read; what was written is never cleared, also not
// after a crash at any point. For that, zeros are on flushed drives and the record of them is in
// the metadata before a write goes through (cleared_areas.h). When all is cleared the layer passes
// everything on as it is, and the record is gone.
//
// What a first write waits for is that the chunks that it touches, of 1 MiB, are made zeros, and
// one flush of the set and one commit, which it shares with all that wait at that time. It waits
// for nothing that is cleared elsewhere, neither by others nor in the background, and no longer
// than its deadline or until it is cancelled. In the background one volume at a time is cleared on
// each set, as much at once as is done in some milliseconds, and hosts of all its volumes come
// first (ClearingLane).
//
// Addresses are the set's. Everything runs on the set's home.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "block/layer.h"
#include "group/cleared_areas.h"
#include "runtime/sync.h"

namespace sandbay::group {

// What the clearing of all volumes of a set shares, on the set's home.
struct ClearingLane {
  bool taken = false;
  Condition changed;
  // Of hosts, to any of the volumes; and how many of them had been seen when it was last looked.
  std::uint64_t requests = 0;
  std::uint64_t seen = 0;
  TimePoint quiet_from{};  // When hosts will be taken for idle.
};

class Clearing final : public Layer {
 public:
  // Makes a change of the record durable.
  using Keep = std::function<Task<Error>(ClearedAreas::Record record)>;

  Clearing(BlockDevice& below, ClearedAreas areas, Keep keep, std::shared_ptr<ClearingLane> lane)
      : Layer(below), areas_(std::move(areas)), keep_(std::move(keep)), lane_(std::move(lane)) {}

  Task<Completion> submit(Request request) override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;

  // Begins to clear in the background; once.
  void start();
  // Ends that; false if a drive did not let go of it by the deadline. Can be asked again.
  Task<bool> stop(TimePoint deadline);
  // The volume goes: nothing is changed below any more but by requests that are there already, and
  // first writes that still wait end without effect.
  void refuse_changes();
  // From now on nothing goes below at all, and nothing is recorded.
  void refuse_all();

  // What is still to be cleared, for the metadata.
  ClearedAreas::Record whole_record() const { return areas_.whole_record(); }
  std::uint64_t left_blocks() const noexcept { return areas_.unkept_blocks(); }

  // The volume grows: `store` makes the new record durable, with whatever else belongs to it, and
  // only then there is more to clear. Its error.
  Task<Error> grow(Extent added, Keep store);

 private:
  enum class Passes : std::uint8_t { kAll, kNoChanges, kNothing };

  bool refuses(const Request& request) const;
  static Task<Completion> refuse(Request request);
  Task<Completion> read_known(Request request);
  Task<Completion> write_cleared(Request request);
  Task<Completion> zero_known(Request request);
  Task<Error> clear_for(const Request* request);
  Error reason_to_end(const Request& request) const;
  bool being_zeroed(const Extent& extent) const;
  Extent run_from(Extent chunk, Lba limit, std::uint64_t chunks) const;
  Task<Error> zero(Extent run, const Request* on_behalf);
  Task<Error> zero_below(Extent run, const Request* on_behalf);
  Task<Error> keep_zeroed(Origin origin);
  void end_turn(Error error);
  Task<bool> take_lane();
  Task<void> leave_lane(TimePoint began, bool worked);
  Task<Error> step();
  Task<void> run();

  ClearedAreas areas_;
  Keep keep_;
  std::shared_ptr<ClearingLane> lane_;
  std::vector<Extent> zeroing_;  // Runs of chunks that are on their way to be zeros.
  std::vector<Extent> zeroed_;   // Those that are, and wait to be kept.
  // Chunks are kept in turns: those that are zeroed when one begins. At most one is under way.
  bool turning_ = false;
  std::uint64_t turn_ = 0;
  std::uint64_t failed_turn_ = 0;
  Error failure_ = Error::kNone;
  Condition changed_;  // Any of this, and what is kept.
  Gate gate_;          // The run in the background.
  Passes passes_ = Passes::kAll;
  bool stopping_ = false;
  bool running_ = false;
  bool unmap_refused_ = false;
  std::uint64_t at_once_ = 1;  // Chunks, in the background.
  TimePoint kept_at_{};
};

}  // namespace sandbay::group
