// xoshiro256** (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2018),
// its state filled by splitmix64 as the authors advise, so that seeds 1, 2, 3 … differ widely.
#include "runtime/random.h"

#include <bit>
#include <cassert>

namespace sandbay {

namespace {

std::uint64_t split_mix(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15U;
  std::uint64_t value = state;
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31U);
}

}  // namespace

Random::Random(std::uint64_t seed) {
  for (std::uint64_t& word : state_) word = split_mix(seed);
}

std::uint64_t Random::next() {
  const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const std::uint64_t shifted = state_[1] << 17U;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

std::uint64_t Random::below(std::uint64_t bound) {
  assert(bound > 0);
  constexpr std::uint64_t kWord = std::uint64_t{1} << 32U;
  if (bound < kWord) {
    // Lemire's multiplication: the high half is the result, the low half decides about the few
    // draws that would favour small results.
    std::uint64_t product = (next() >> 32U) * bound;
    if (product % kWord < bound) {
      const std::uint64_t threshold = (kWord - bound) % bound;
      while (product % kWord < threshold) product = (next() >> 32U) * bound;
    }
    return product >> 32U;
  }
  const std::uint64_t incomplete = (max() - bound + 1) % bound;  // 2^64 mod bound
  std::uint64_t value = next();
  while (value < incomplete) value = next();
  return value % bound;
}

bool Random::chance(double probability) { return unit() < probability; }

double Random::unit() { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }

Random Random::fork() { return Random(next()); }

}  // namespace sandbay
