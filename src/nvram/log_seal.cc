// A word of the seal is 48 bits of value and 16 of check, so a store of one word is a whole change
// of it. The check depends on the log's id and on the word's place: what another log left in the
// same place is not taken for this one's.
#include "nvram/log_seal.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "nvram/image_layout.h"
#include "nvram/nvram.h"

namespace sandbay::nvram {
namespace {

constexpr unsigned kValueBits = 48;
constexpr std::uint64_t kValueMask = (std::uint64_t{1} << kValueBits) - 1;
// What solve_seal() tries at most: that a wrong answer fits by chance has then a probability of
// less than 2^-24.
constexpr std::size_t kMostMissing = 16;
constexpr std::uint64_t kMostTrials = std::uint64_t{1} << 22U;

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
constexpr std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

std::uint64_t with_check(std::uint64_t log_id, std::size_t word, std::uint64_t value) {
  assert(value <= kValueMask);
  const std::uint64_t check = mix(mix(log_id + word) ^ value) >> kValueBits;
  return check << kValueBits | value;
}

std::uint64_t sum_of(std::uint64_t log_id, std::span<const std::uint64_t> sequences) {
  std::uint64_t sum = 0;
  for (const std::uint64_t sequence : sequences) sum += seal_hash(log_id, sequence);
  return sum & kValueMask;
}

// Searches for the change that turns what is there into the sum: missing ones added, at most two of
// those that are present taken away.
class Search {
 public:
  Search(std::uint64_t log_id, std::span<const std::uint64_t> present,
         std::span<const std::uint64_t> missing) {
    for (const std::uint64_t sequence : present) {
      present_.push_back(seal_hash(log_id, sequence));
      places_[present_.back()] = present_.size() - 1;
    }
    for (const std::uint64_t sequence : missing) missing_.push_back(seal_hash(log_id, sequence));
  }

  // `lacking` is the sum less all that is present.
  std::optional<SealSolution> run(std::uint64_t lacking) const {
    const std::uint64_t subsets = std::uint64_t{1} << missing_.size();
    for (unsigned removed = 0; removed <= 2; ++removed) {
      if (removed == 2 && subsets * present_.size() > kMostTrials) break;
      std::uint64_t added = 0;
      for (std::uint64_t step = 0; step < subsets; ++step) {
        const std::uint64_t subset = step ^ (step >> 1U);  // Gray code: one changes a step.
        if (step != 0) {
          const auto at = static_cast<unsigned>(std::countr_zero(step));
          added += (subset >> at & 1U) != 0 ? missing_[at] : 0 - missing_[at];
        }
        auto found = with_removed(removed, (added - lacking) & kValueMask);
        if (!found.has_value()) continue;
        return solution(*found, subset);
      }
    }
    return std::nullopt;
  }

 private:
  // So many of the present ones whose hashes make up `excess`.
  std::optional<std::vector<std::size_t>> with_removed(unsigned count, std::uint64_t excess) const {
    if (count == 0) return excess == 0 ? std::optional(std::vector<std::size_t>{}) : std::nullopt;
    if (count == 1) {
      const auto found = places_.find(excess);
      if (found == places_.end()) return std::nullopt;
      return std::vector{found->second};
    }
    for (std::size_t first = 0; first < present_.size(); ++first) {
      const auto second = places_.find((excess - present_[first]) & kValueMask);
      if (second == places_.end() || second->second == first) continue;
      return std::vector{first, second->second};
    }
    return std::nullopt;
  }

  SealSolution solution(const std::vector<std::size_t>& removed, std::uint64_t subset) const {
    SealSolution result{.present = std::vector<bool>(present_.size(), true),
                        .missing = std::vector<bool>(missing_.size())};
    for (const std::size_t place : removed) result.present[place] = false;
    for (std::size_t i = 0; i < missing_.size(); ++i) result.missing[i] = (subset >> i & 1U) != 0;
    return result;
  }

  std::vector<std::uint64_t> present_;
  std::vector<std::uint64_t> missing_;
  std::unordered_map<std::uint64_t, std::size_t> places_;
};

}  // namespace

std::uint64_t seal_hash(std::uint64_t log_id, std::uint64_t sequence) {
  return mix(mix(log_id) ^ sequence) & kValueMask;
}

void add_to_seal(SealState& state, std::uint64_t log_id, std::uint64_t sequence) {
  std::uint64_t& sum = state.live[seal_bucket(sequence)];
  sum = (sum + seal_hash(log_id, sequence)) & kValueMask;
}

std::optional<SealSolution> solve_seal(std::uint64_t log_id, std::uint64_t sum,
                                       std::span<const std::uint64_t> present,
                                       std::span<const std::uint64_t> missing) {
  const std::uint64_t there = sum_of(log_id, present);
  for (const bool all : {true, false}) {
    if (sum != (all ? there : 0)) continue;
    return SealSolution{.present = std::vector<bool>(present.size(), all),
                        .missing = std::vector<bool>(missing.size())};
  }
  if (missing.size() > kMostMissing) return std::nullopt;
  return Search(log_id, present, missing).run((sum - there) & kValueMask);
}

// The two copies ----------------------------------------------------------------------------------

namespace {

std::size_t copy_offset(std::size_t copy, std::size_t region_index) {
  return kSealOffset + copy * kPageBytes + region_index * kSealBytes;
}

}  // namespace

// Without the log's id the words cannot be checked: damaged ones hardly look like this.
bool seal_is_empty(std::span<const std::byte> image, std::size_t region_index) {
  constexpr std::size_t kFirstSum = kSealWords - kSealBuckets;
  for (std::size_t copy = 0; copy < 2; ++copy) {
    std::array<std::uint64_t, kSealWords> words{};
    std::memcpy(words.data(), image.data() + copy_offset(copy, region_index), kSealBytes);
    const auto sums = std::span(words).subspan(kFirstSum);
    const bool sealed = std::ranges::any_of(words, [](std::uint64_t word) { return word != 0; });
    const bool live =
        std::ranges::any_of(sums, [](std::uint64_t word) { return (word & kValueMask) != 0; });
    if (!sealed || live) return false;
  }
  return true;
}

std::byte* LogSeal::copy_at(std::size_t copy) const {
  return nvram_.image().data() + copy_offset(copy, index_);
}

std::optional<SealState> LogSeal::find(std::uint64_t log_id) const {
  std::optional<SealState> best;
  for (std::size_t copy = 0; copy < 2; ++copy) {
    std::array<std::uint64_t, kSealWords> words{};
    std::memcpy(words.data(), copy_at(copy), kSealBytes);
    bool right = true;
    for (std::size_t word = 0; word < kSealWords; ++word) {
      const std::uint64_t value = words[word] & kValueMask;
      right = right && words[word] == with_check(log_id, word, value);
      words[word] = value;
    }
    if (!right || (best.has_value() && words[kChanges] <= best->changes)) continue;
    best = SealState{.changes = words[kChanges],
                     .head_sequence = words[kHead],
                     .generation = words[kGeneration]};
    std::memcpy(best->live.data(), words.data() + kLive, sizeof best->live);
  }
  return best;
}

void LogSeal::store(std::size_t copy, std::size_t word, std::uint64_t value) {
  nvram_.store_word(copy_at(copy) + word * sizeof value, with_check(log_id_, word, value));
}

// The number of changes last: until then the other copy counts, or this one says the same.
void LogSeal::store_all(std::size_t copy) {
  for (std::size_t bucket = 0; bucket < kSealBuckets; ++bucket) {
    store(copy, kLive + bucket, state_.live[bucket]);
  }
  store(copy, kGeneration, state_.generation);
  store(copy, kHead, state_.head_sequence);
  store(copy, kChanges, state_.changes);
}

void LogSeal::set(std::uint64_t log_id, const SealState& state) {
  log_id_ = log_id;
  state_ = state;
  copies_ = 2;
  store_all(0);
  store_all(1);
}

void LogSeal::begin(std::uint64_t log_id, const SealState& state) {
  log_id_ = log_id;
  state_ = state;
  copies_ = 1;
  store_all(0);
}

void LogSeal::complete() {
  if (std::exchange(copies_, 2) == 1) store_all(1);
}

void LogSeal::store_changed(std::size_t word, std::uint64_t value) {
  ++state_.changes;
  for (std::size_t copy = 0; copy < copies_; ++copy) {
    store(copy, word, value);
    store(copy, kHead, state_.head_sequence);
    store(copy, kChanges, state_.changes);
  }
}

void LogSeal::appended(std::uint64_t sequence) {
  add_to_seal(state_, log_id_, sequence);
  state_.head_sequence = sequence + 1;
  store_changed(kLive + seal_bucket(sequence), state_.live[seal_bucket(sequence)]);
}

void LogSeal::released(std::uint64_t sequence) {
  std::uint64_t& sum = state_.live[seal_bucket(sequence)];
  sum = (sum - seal_hash(log_id_, sequence)) & kValueMask;
  store_changed(kLive + seal_bucket(sequence), sum);
}

void LogSeal::empty_bucket(std::size_t bucket) {
  state_.live[bucket] = 0;
  store_changed(kLive + bucket, 0);
}

void LogSeal::set_head(std::uint64_t head_sequence) {
  state_.head_sequence = head_sequence;
  store_changed(kHead, head_sequence);
}

void LogSeal::control_written(std::uint64_t generation) {
  state_.generation = generation;
  for (std::size_t copy = 0; copy < copies_; ++copy) store(copy, kGeneration, generation);
}

}  // namespace sandbay::nvram
