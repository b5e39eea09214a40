// LogSeal: which records of a log are live, said once more, in the head of the image and so apart
// from the log itself. What went back to an earlier content, a page of the log or all of it, looks
// right by itself; the seal tells.
//
// Records are dealt out by sequence to kSealBuckets buckets; of each bucket the seal has the sum of
// the hashes of its live records. solve_seal() finds which of the records that are there, and of
// those that are missing, make up that sum, so a missing record that had been released is no loss,
// and one that has come back is not live.
//
// Two copies, each in a page of its own. Every change goes to one after the other, word by word,
// and every word has a check of its own. An append is sealed when its record is complete, and a
// release before its mark: killed anywhere, what is sealed is among what the log has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace sandbay::nvram {

class Nvram;

inline constexpr std::size_t kSealBuckets = 13;
inline constexpr std::size_t kSealWords = 3 + kSealBuckets;
inline constexpr std::size_t kSealBytes = kSealWords * sizeof(std::uint64_t);

// All are below 2^48.
struct SealState {
  std::uint64_t changes = 0;        // Of two copies the one with more counts.
  std::uint64_t head_sequence = 1;  // All before it had been appended.
  std::uint64_t generation = 0;     // Of the newest control block.
  std::array<std::uint64_t, kSealBuckets> live{};
};

// What a record adds to the sum of its bucket.
std::uint64_t seal_hash(std::uint64_t log_id, std::uint64_t sequence);
void add_to_seal(SealState& state, std::uint64_t log_id, std::uint64_t sequence);
inline std::size_t seal_bucket(std::uint64_t sequence) {
  return static_cast<std::size_t>(sequence % kSealBuckets);
}

// Whose hashes make up `sum`: by index of `present` and `missing`, sequences of one bucket. None if
// too much is amiss to tell.
struct SealSolution {
  std::vector<bool> present;
  std::vector<bool> missing;
};
std::optional<SealSolution> solve_seal(std::uint64_t log_id, std::uint64_t sum,
                                       std::span<const std::uint64_t> present,
                                       std::span<const std::uint64_t> missing);

// Whether both copies of a region's seal say that its log has no live record. Not so where there is
// no seal.
bool seal_is_empty(std::span<const std::byte> image, std::size_t region_index);

class LogSeal {
 public:
  LogSeal(Nvram& nvram, std::size_t region_index) : nvram_(nvram), index_(region_index) {}

  // What the copy says that counts; none if neither is right and of this log.
  std::optional<SealState> find(std::uint64_t log_id) const;

  // From now on this is said, in both copies.
  void set(std::uint64_t log_id, const SealState& state);
  // The same for a log that begins under another id: the second copy still tells of the one before
  // until complete(), when a control block has the new id.
  void begin(std::uint64_t log_id, const SealState& state);
  void complete();

  void appended(std::uint64_t sequence);
  void released(std::uint64_t sequence);
  void empty_bucket(std::size_t bucket);
  void control_written(std::uint64_t generation);
  void set_head(std::uint64_t head_sequence);

 private:
  enum Word : std::size_t { kChanges, kHead, kGeneration, kLive };

  std::byte* copy_at(std::size_t copy) const;
  void store(std::size_t copy, std::size_t word, std::uint64_t value);
  void store_all(std::size_t copy);
  void store_changed(std::size_t word, std::uint64_t value);

  Nvram& nvram_;
  std::size_t index_;
  std::uint64_t log_id_ = 0;
  std::size_t copies_ = 2;
  SealState state_;
};

}  // namespace sandbay::nvram
