// DoubtfulChunks: chunks of the stores that may have the content of somebody else.
//
// The owner of a pool may insist on a map that is older than a store. Then every page that the map
// calls owned there is in doubt, as a whole. A doubtful chunk cannot be read, by hosts or by
// copies, nor written in part: both end with kMediumError. A write of the whole chunk is made
// durable, then the shorter list is, and only then does the write end. So a crash leaves the list
// longer than it need be, never shorter. Writes that wait together share one commit.
//
// The list knows places, not owners: it needs no change when a page moves to another owner, and a
// chunk gets data only by a write of the whole chunk. Marks on chunks without data mean nothing.
//
// The metadata have it in segments (key `q`, store, segment): the number of runs, then the runs as
// ExtentSet packs them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "block/block_device.h"
#include "block/extent_set.h"
#include "metadata/store.h"
#include "pool/place.h"
#include "pool/pool_map.h"
#include "runtime/error.h"
#include "runtime/sync.h"
#include "runtime/task.h"

namespace sandbay::pool {

class DoubtfulChunks {
 public:
  static constexpr std::uint64_t kSegmentChunks = std::uint64_t{1} << 15U;

  explicit DoubtfulChunks(PoolMap& map) : map_(map) {}  // It outlives this object.

  // Once. An error message, or an empty text.
  Task<std::string> load();
  bool empty() const noexcept { return segments_.empty(); }
  // Among the chunks side by side from the slot on.
  std::uint64_t count_in(Slot first, std::uint32_t chunk_count) const;

  // Every page of the store that is owned becomes doubtful, in one commit with `batch`. Nothing
  // else uses the store meanwhile.
  Task<Error> add(StoreIndex store, metadata::Batch batch);
  // The store leaves the pool: `batch` erases the list in the metadata.
  void erase(StoreIndex store, metadata::Batch* batch) const;
  void forget(StoreIndex store);

  // Reads from the store or writes to it, if its doubtful chunks allow that.
  Task<Completion> submit(StoreIndex store, BlockDevice* device, Request request);

 private:
  using Key = std::pair<StoreIndex, std::uint32_t>;  // Store and segment.
  using Segments = std::map<Key, ExtentSet>;
  struct Group {
    std::vector<std::pair<StoreIndex, Extent>> chunks;
    std::optional<Error> result;
  };

  std::string key_of(const Key& key) const;
  bool unpack(std::string_view key, std::string stored);
  ExtentSet* segment_in(Segments* changed, const Key& key) const;
  std::uint64_t number_of(Slot slot) const noexcept;
  std::optional<std::uint64_t> first_in(StoreIndex store, const Extent& chunks) const;
  Task<Error> clear(StoreIndex store, Extent chunks);
  Task<Error> clear_group(Group* group);
  Task<Error> commit(Segments changed, metadata::Batch batch);

  PoolMap& map_;
  Segments segments_;  // Without empty ones.
  std::shared_ptr<Group> gathering_;
  std::uint64_t added_ = 0;  // Calls of add().
  Mutex turn_;
};

}  // namespace sandbay::pool
