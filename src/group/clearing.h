// Clearing: a layer between a new volume and its place on a set, where another volume's data, or
// what the drives came with, may still be. The volume is there at once: what has not been cleared
// yet reads as zeros, is cleared before it is first written, and in the background chunk by chunk.
//
// What always holds: nothing of before is ever read; what was written is never cleared, also not
// after a crash at any point. For that, zeros are on flushed drives and the record of them is in
// the metadata before a write goes through (cleared_areas.h). When all is cleared the layer passes
// everything on as it is, and the record is gone.
//
// Addresses are the set's. Everything runs on the set's home.
#pragma once

#include <functional>
#include <string>

#include "block/layer.h"
#include "group/cleared_areas.h"
#include "runtime/sync.h"

namespace sandbay::group {

class Clearing final : public Layer {
 public:
  // Keeps the record of what is cleared, or forgets it if it is empty.
  using Keep = std::function<Task<Error>(std::string record)>;

  Clearing(BlockDevice& below, ClearedAreas areas, Keep keep)
      : Layer(below), areas_(std::move(areas)), keep_(std::move(keep)) {}

  Task<Completion> submit(Request request) override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;

  // Begins to clear in the background; once.
  void start();
  // Ends that; false if a drive did not let go of it by the deadline.
  Task<bool> stop(TimePoint deadline);

  // What is still to be cleared. Empty: nothing.
  std::string record() const { return areas_.empty() ? std::string() : areas_.encode(); }
  std::uint64_t left_blocks() const noexcept { return areas_.unkept_blocks(); }

  // The volume grows: `store` makes the new record durable, with whatever else belongs to it, and
  // only then there is more to clear. Its error.
  using Store = std::function<Task<Error>(std::string record)>;
  Task<Error> grow(Extent added, Store store);

 private:
  Task<Completion> read_known(Request request);
  Task<Completion> write_cleared(Request request);
  Task<Completion> zero_known(Request request);
  Task<Error> clear_for(Extent extent);
  Task<Error> zero_chunk(Extent chunk);
  Task<Error> keep_zeroed();
  Task<Error> step(bool* ended);
  Task<void> run();

  ClearedAreas areas_;
  Keep keep_;
  Mutex lock_;  // Whoever clears, keeps or grows.
  Condition wake_;
  Gate gate_;  // The run in the background.
  bool stopping_ = false;
  bool running_ = false;
  bool unmap_refused_ = false;
  std::uint64_t requests_ = 0;
  TimePoint kept_at_{};
};

}  // namespace sandbay::group
