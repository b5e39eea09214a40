// Everything that changes a pool's map, as records: what the log holds, and what replay applies.
// And the values that the checkpoint keeps of branches, snapshots, stores and of itself.
//
// A group of records is one change: all of it happened or nothing. Groups have consecutive
// sequence numbers. Records name states, not differences, as far as they can; that none is applied
// twice is the business of the sequence numbers.
//
// Whatever is read back is checked; a decoder's error is half a sentence, such as "a record that is
// too short".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pool/chunk_map.h"
#include "pool/kept_counts.h"
#include "pool/place.h"
#include "runtime/error.h"
#include "runtime/uuid.h"

namespace sandbay::pool {

inline constexpr std::size_t kLongestLabel = 255;
inline constexpr std::uint64_t kMostBranchBytes = std::uint64_t{1} << 50U;  // 1 PiB.

// `count` pages of a branch from `page` on are at `place` and behind it; or, without a store, at no
// place. Their chunks stay what they are. A place that they had is free, unless it has become a
// reserve page.
struct PlacePages {
  BranchId branch = 0;
  PageNumber page = 0;
  std::uint32_t count = 1;
  Place place;
  bool operator==(const PlacePages&) const = default;
};

struct SetChunks {
  BranchId branch = 0;
  PageNumber page = 0;
  std::uint16_t first = 0;
  std::uint16_t count = 0;
  ChunkState state = ChunkState::kThrough;
  bool operator==(const SetChunks&) const = default;
};

// Versions of `count` chunks for the snapshots up to `generation`; kData: in slots side by side.
struct KeepChunks {
  BranchId branch = 0;
  PageNumber page = 0;
  Generation generation = 0;
  std::uint16_t first = 0;
  std::uint16_t count = 0;
  ChunkState state = ChunkState::kThrough;
  Slot slot;
  bool operator==(const KeepChunks&) const = default;
};

// That version is not needed any more.
struct ForgetChunk {
  BranchId branch = 0;
  PageNumber page = 0;
  Generation generation = 0;
  std::uint16_t chunk = 0;
  bool operator==(const ForgetChunk&) const = default;
};

// A branch is made, or is another from now on.
struct BranchRecord {
  BranchId id = 0;
  std::uint64_t byte_count = 0;
  BranchId parent = 0;  // 0: none.
  Generation parent_generation = 0;
  // Pages from this one on are zeros unless the branch itself has them: the parent's generation
  // ended before. Shrinking and expanding leave it; kNoPage: a map of version 2 does not say.
  PageNumber through_pages = 0;
  Generation last_generation = 0;     // Of the last snapshot that was taken; 0: none yet.
  bool thick = false;                 // Its pages are allocated when it is made, and stay.
  bool dead = false;                  // Its live end is nobody's.
  bool sweeping = false;              // Something of it may be of no use any more.
  std::uint8_t placement = 0;         // A class of stores; 0: any.
  StoreIndex fixed_store = kNoStore;  // All its pages are in that store.
  std::uint64_t page_limit = 0;       // Thin: at most so many pages; 0: no limit.
  std::uint64_t page_warning = 0;     // Thin: told when it has so many; 0: never.
  KeptCounts kept;                    // Slots that its snapshots use. Kept by the map alone.
  std::string label;                  // The owner's words, at most kLongestLabel bytes.
  bool operator==(const BranchRecord&) const = default;
};

struct EraseBranch {
  BranchId branch = 0;
  bool operator==(const EraseBranch&) const = default;
};

struct SnapshotRecord {
  BranchId branch = 0;
  Generation generation = 0;
  std::uint64_t byte_count = 0;  // Of the branch at that moment.
  std::string label;             // The owner's words, at most kLongestLabel bytes.
  bool operator==(const SnapshotRecord&) const = default;
};

struct EraseSnapshot {
  BranchId branch = 0;
  Generation generation = 0;
  bool operator==(const EraseSnapshot&) const = default;
};

enum class StoreState : std::uint8_t { kActive = 0, kVacating = 1 };

// A store is there, or is another from now on; it only grows.
struct StoreRecord {
  StoreIndex index = 0;
  Uuid uuid{};
  std::uint32_t page_count = 0;
  std::uint32_t member = 0;
  std::uint8_t placement = 0;  // Its class.
  StoreState state = StoreState::kActive;
  bool operator==(const StoreRecord&) const = default;
};

// No page of it is owned.
struct EraseStore {
  StoreIndex index = 0;
  bool operator==(const EraseStore&) const = default;
};

using MapRecord = std::variant<PlacePages, SetChunks, KeepChunks, ForgetChunk, BranchRecord,
                               EraseBranch, SnapshotRecord, EraseSnapshot, StoreRecord, EraseStore>;

struct RecordGroup {
  std::uint64_t sequence = 0;
  std::vector<MapRecord> records;
  bool operator==(const RecordGroup&) const = default;
};

std::string pack(const RecordGroup& group);
// Appends records to a text that pack() began.
void append(std::string& text, const MapRecord& record);
Result<RecordGroup, std::string_view> unpack_group(std::string_view text);

// The checkpoint itself: which groups it contains, and what never changes.
struct CheckpointRecord {
  std::uint32_t version = 3;  // 1 was without seals, 2 without BranchRecord::through_pages.
  std::uint32_t page_chunks = kDefaultPageChunks;
  std::uint64_t sequence = 0;  // Of the last group that it contains.
  BranchId last_branch = 0;    // The highest number given to a branch so far.
  Uuid log{};                  // Whose log it belongs to.
  bool operator==(const CheckpointRecord&) const = default;
};

// Values of the checkpoint.
std::string pack(const CheckpointRecord& record);
Result<CheckpointRecord, std::string_view> unpack_checkpoint(std::string_view text);
std::string pack(const MapRecord& record);  // Of one branch, snapshot or store.
Result<MapRecord, std::string_view> unpack_record(std::string_view text);
std::string pack(const GenerationCounts& counts);
Result<GenerationCounts, std::string_view> unpack_generations(std::string_view text);

}  // namespace sandbay::pool
