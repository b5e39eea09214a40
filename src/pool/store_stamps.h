// StoreStamps: marks on the stores that tell an older map of the pool from the newest one.
//
// A stamp is a random token and the number of its era. An era ends when the pool is opened and when
// its map is listed for an export. The first change of an era that takes a page or a slot from its
// owner waits until a new stamp is durable: in the metadata, then on every store that is present.
// So it costs one write to each store per era, and no other change waits. A store that was missing
// then gets the stamp when it comes back, before anything else is written to it.
//
// The map accepts a store only with a stamp that its own metadata name. An exported map names the
// stamps of its own era; a store with another stamp has pages that may belong to somebody else now,
// and is refused, unless the pool's owner insists. Then its owned pages are in doubt (see
// doubtful_chunks.h), and a new era above its stamp begins for it; both are in the metadata before
// the stamp is on the store.
//
// The stamp is stored behind the last page, in two slots that take turns, so that a torn write
// leaves the one before. Stores without room for them, and those whose blocks carry no data, have
// no stamp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "block/block_device.h"
#include "pool/map_records.h"
#include "pool/pool_map.h"
#include "runtime/buffer.h"
#include "runtime/error.h"
#include "runtime/sync.h"
#include "runtime/task.h"
#include "runtime/uuid.h"

namespace sandbay::pool {

struct Stamp {
  std::uint64_t era = 0;  // 0: no stamp.
  std::uint64_t token = 0;
  bool operator==(const Stamp&) const = default;
};

// Whether a map that is older than a store may be used.
enum class OlderMap : std::uint8_t { kRefuse, kAccept };

class StoreStamps {
 public:
  // Bytes behind the last page of a store.
  static constexpr std::uint64_t kSlotBytes = 4096;
  static constexpr std::uint64_t kBytes = 2 * kSlotBytes;

  // The pool's side. All are called inline.
  struct Owner {
    std::function<BlockDevice*(StoreIndex store)> device;
    // The store could not be stamped: until it comes back, it is missing.
    std::function<void(StoreIndex store)> drop;
    // The store's pages are in doubt: durably so, together with the batch.
    std::function<Task<Error>(StoreIndex store, metadata::Batch batch)> doubt;
  };

  // `map` and `buffers` outlive this object.
  StoreStamps(Executor& home, PoolMap& map, BufferPool& buffers, Owner owner);

  // Once, after the map is loaded. An error message, or an empty text.
  Task<std::string> load();

  // Whether changes that take places from their owners may be logged.
  bool settled() const noexcept { return settled_; }
  // An error is that of the metadata.
  Task<Error> settle();
  // The map is about to be listed: a new era begins.
  void begin_era() noexcept {
    settled_ = false;
    drawn_ = false;
    ++eras_begun_;
  }

  // Compares the stamp of a store with those that the map accepts, and stamps a store that is new
  // or larger than the map knows. With kNone it calls `place`, and no era is settled between the
  // comparison and that call. kMiscompare: the map is older than the store, and `older` does not
  // accept that of a known store. Another error: the stamp could not be read or written.
  Task<Error> admit(StoreRecord record, BlockDevice* device, OlderMap older,
                    std::function<void()> place);

 private:
  // Both are accepted: the second may be on its way to the store.
  struct Accepted {
    Stamp stored;
    Stamp next;
  };
  struct Found {
    Stamp newest;
    std::uint64_t free_slot = 0;
    bool has_data = true;
  };

  std::string pack() const;
  bool unpack(std::string_view text);
  std::string seal_key(const Uuid& store) const;
  bool has_room(const StoreRecord& record, const BlockDevice& device) const;
  void draw();
  metadata::Batch accepted_batch() const;
  Task<Error> store_accepted();
  Task<Error> stamp_all();
  Task<Error> stamp(StoreRecord record, BlockDevice* device);
  Task<Result<Found>> read(StoreRecord record, BlockDevice* device);
  Task<Error> write(StoreRecord record, BlockDevice* device, std::uint64_t slot, Stamp stamp);
  Task<Error> admit_locked(StoreRecord record, BlockDevice* device, OlderMap older);
  Task<Error> welcome(StoreRecord record, BlockDevice* device, Stamp found);
  Task<Error> renew(StoreRecord record, BlockDevice* device, Found found, OlderMap older);
  Task<Error> insist(StoreRecord record, BlockDevice* device, Found found);
  Task<Error> write_both(StoreRecord record, BlockDevice* device, Stamp stamp);

  Executor& home_;
  PoolMap& map_;
  Owner owner_;
  BufferPool& buffers_;
  Stamp newest_;
  std::map<Uuid, Accepted> accepted_;  // By the store's UUID.
  bool settled_ = false;
  bool drawn_ = false;  // `newest_` is of this era.
  std::uint64_t eras_begun_ = 0;
  Mutex turn_;
};

}  // namespace sandbay::pool
