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
// The stamp is stored behind the last page, in two slots that are written one after the other, so
// that neither a torn write nor one bad place leaves the store without a stamp. A slot that cannot
// be read is written first. Stores without room for the slots, and those whose blocks carry no
// data, have no stamp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

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
  static constexpr Duration kPatience = std::chrono::seconds(5);

  // The pool's side. All are called inline.
  struct Owner {
    std::function<BlockDevice*(StoreIndex store)> device;
    // The store could not be stamped: until it comes back, it is missing.
    std::function<void(StoreIndex store)> drop;
    // The store's pages are in doubt: durably so, together with the batch.
    std::function<Task<Error>(StoreIndex store, metadata::Batch batch)> doubt;
    // The store's stamp cannot be read; it gets another.
    std::function<void(StoreIndex store)> tell_lost;
    // A store that does not answer in this time is missing until it does.
    Duration patience = kPatience;
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
    ++eras_begun_;
  }

  // Compares the stamp of a store with those that the map accepts, and stamps a store that is new
  // or larger than the map knows. With kNone it calls `place`, and no era is settled between the
  // comparison and that call. kMiscompare: the map is older than the store, and `older` does not
  // accept that of a known store. Another error: the stamp could not be read or written; kTimedOut:
  // in time, and `place` is not called any more.
  Task<Error> admit(StoreRecord record, BlockDevice* device, OlderMap older,
                    std::function<void()> place);
  // Ends it. False: a store still holds a request at the deadline.
  Task<bool> close_until(TimePoint deadline) { return visits_.close_until(deadline); }

 private:
  // Both are accepted: the second may be on its way to the store.
  struct Accepted {
    Stamp stored;
    Stamp next;
  };
  // The value of the metadata.
  struct Names {
    Stamp newest;
    std::map<Uuid, Accepted> accepted;  // By the store's UUID.
  };
  struct Found {
    Stamp newest;
    std::uint64_t free_slot = 0;  // The one to be written first.
    bool unreadable = false;      // A slot is.
    bool has_data = true;
  };
  // A store that is stamped, or compared and perhaps stamped. It goes on after its deadline, and
  // there is only one of each store.
  struct Visit {
    Visit(StoreRecord of, BlockDevice* on) : record(of), device(on) {}
    StoreRecord record;
    BlockDevice* device;
    OlderMap older = OlderMap::kRefuse;
    std::function<void()> place;  // Null: nobody waits for the comparison.
    bool fresh = false;           // The map does not know it.
    Found found;
    Error error = Error::kNotReady;
    Event ended;
  };

  static std::string pack(const Names& names);
  bool unpack(std::string_view text);
  std::string seal_key(const Uuid& store) const;
  bool has_room(const StoreRecord& record, const BlockDevice& device) const;
  Stamp draw(std::uint64_t era) const;  // Above that one.
  metadata::Batch batch_of(const Names& names) const;
  Task<Error> keep(Names names);
  bool begin(const Visit& visit);  // False: there is one of that store.
  void end(Visit* visit, Error error);
  Task<Error> stamp_all();
  Task<void> stamp(std::shared_ptr<Visit> visit, Stamp drawn);
  Task<void> compare(std::shared_ptr<Visit> visit);
  static bool bears_stamp(const Found& found, const Stamp& wanted);
  // With the turn, and awaited at once.
  Task<Result<Stamp>> choose(Visit* visit);
  Task<Result<Stamp>> welcome(Visit* visit);
  Task<Result<Stamp>> renew(Visit* visit);
  Task<Result<Stamp>> insist(Visit* visit);
  Task<Result<Found>> read(StoreRecord record, BlockDevice* device);
  Task<Error> write(StoreRecord record, BlockDevice* device, std::uint64_t first_slot, Stamp stamp);

  Executor& home_;
  PoolMap& map_;
  Owner owner_;
  BufferPool& buffers_;
  Names names_;
  bool settled_ = false;
  std::uint64_t eras_begun_ = 0;
  Mutex turn_;  // Guards changes of `names_`.
  std::set<Uuid> busy_;
  Condition idle_;
  Gate visits_;
};

}  // namespace sandbay::pool
