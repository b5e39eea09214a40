// A small fast generator (xoshiro256**, Blackman and Vigna 2018) for everything that must be
// repeatable from a seed. Secrets (CHAP challenges) come from OpenSSL instead.
#pragma once

#include <array>
#include <cstdint>

namespace sandbay {

class Random {
 public:
  using result_type = std::uint64_t;
  explicit Random(std::uint64_t seed);

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return ~result_type{0}; }
  std::uint64_t operator()() { return next(); }

  std::uint64_t next();
  // Uniform in [0, bound); `bound` is positive.
  std::uint64_t below(std::uint64_t bound);
  // Uniform in [first, last].
  std::uint64_t between(std::uint64_t first, std::uint64_t last) {
    return first + below(last - first + 1);
  }
  bool chance(double probability);
  double unit();  // [0, 1)
  // An independent stream for a part of the program, so that its draws do not shift others'.
  Random fork();

 private:
  std::array<std::uint64_t, 4> state_;
};

}  // namespace sandbay
