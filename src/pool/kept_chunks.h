// KeptChunks: what the snapshots of a branch keep of one page: versions of its chunks, each with
// the generation of the snapshot for which it was kept.
//
// A version of generation g is the chunk as it was when snapshot g was taken; it is also that of
// every earlier snapshot for which there is no version of its own. So snapshot e sees the first
// version whose generation is at least e, and where there is none, the chunk as it is now.
//
// The object holds the versions of generations from() on; writers need only those since the newest
// snapshot, however many there are. Stored as one value a generation.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pool/chunk_map.h"
#include "pool/place.h"
#include "runtime/error.h"

namespace sandbay::pool {

// A version. kData: in the slot.
struct Kept {
  std::uint16_t chunk = 0;
  ChunkState state = ChunkState::kThrough;
  Slot slot;

  bool operator==(const Kept&) const = default;
};

// The versions of one generation, by chunk.
class KeptLeaf {
 public:
  const Kept* find(ChunkIndex chunk) const noexcept;
  // There is none of that chunk.
  void insert(const Kept& kept);
  void erase(ChunkIndex chunk);
  bool empty() const noexcept { return kept_.empty(); }
  std::span<const Kept> all() const noexcept { return kept_; }
  bool operator==(const KeptLeaf&) const = default;

  std::string pack() const;
  static Result<KeptLeaf, std::string_view> unpack(std::string_view text,
                                                   std::uint32_t chunk_count);

 private:
  std::vector<Kept> kept_;
};

class KeptChunks {
 public:
  explicit KeptChunks(Generation from) : from_(from) {}

  struct Generations {
    Generation generation = 0;
    KeptLeaf leaf;
    std::uint64_t changed = 0;  // As BoundedCache has it.
  };

  Generation from() const noexcept { return from_; }
  // What snapshot `generation`, at least from(), sees; null: the chunk as it is now.
  const Kept* seen_by(Generation generation, ChunkIndex chunk) const noexcept;
  void keep(Generation generation, const Kept& kept, std::uint64_t sequence);
  // The version that was there.
  Kept forget(Generation generation, ChunkIndex chunk, std::uint64_t sequence);
  const Kept* find(Generation generation, ChunkIndex chunk) const noexcept;
  // Puts stored versions of earlier generations in front, in any order; from() is `from` then.
  void extend(Generation from, std::vector<std::pair<Generation, KeptLeaf>> leaves);

  // Versions that no snapshot of `living` (ascending) sees. from() is 0.
  struct Useless {
    Generation generation = 0;
    Kept kept;
  };
  std::vector<Useless> useless(std::span<const Generation> living) const;

  const std::vector<Generations>& generations() const noexcept { return generations_; }
  // What was changed up to `sequence` is in the store; empty leaves go.
  void stored(std::uint64_t sequence);
  std::size_t byte_count() const noexcept;

 private:
  Generations& at(Generation generation);

  Generation from_;
  std::vector<Generations> generations_;  // Ascending.
};

}  // namespace sandbay::pool
