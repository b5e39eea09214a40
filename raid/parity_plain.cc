// The plain C++ twin of parity.cc: the definitions, eight bytes at a time.
//
// Multiplying by g is a shift and a conditional XOR with 0x1d in each byte; Q is Horner's rule.
// Recovery solves the two equations of P and Q (H. Peter Anvin, "The mathematics of RAID-6",
// section 4). Nothing is read or written outside the given arrays, so that a sanitizer sees it.
#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>

#include "raid/parity.h"

namespace sandbay::raid::plain {
namespace {

constexpr std::uint64_t kEachByte = 0x0101010101010101;

// g times each of the eight bytes.
constexpr std::uint64_t times_g(std::uint64_t value) {
  const std::uint64_t carries = (value >> 7) & kEachByte;
  return ((value & ~(kEachByte << 7)) << 1) ^ (carries * 0x1d);
}

constexpr std::uint8_t multiply(std::uint8_t a, std::uint8_t b) {
  std::uint64_t product = 0;
  std::uint64_t term = b;
  for (; a != 0; a = static_cast<std::uint8_t>(a >> 1)) {
    if ((a & 1) != 0) product ^= term;
    term = times_g(term);
  }
  return static_cast<std::uint8_t>(product);
}

constexpr std::uint8_t power_of_g(unsigned exponent) {
  std::uint64_t value = 1;
  for (unsigned i = 0; i < exponent % 255; ++i) value = times_g(value);
  return static_cast<std::uint8_t>(value);
}

// a^254, since a^255 = 1.
constexpr std::uint8_t inverse(std::uint8_t a) {
  std::uint8_t result = 1;
  for (unsigned i = 0; i < 254; ++i) result = multiply(result, a);
  return result;
}

// The products of a constant with every byte.
struct Multiplier {
  std::array<std::uint8_t, 256> products;

  explicit Multiplier(std::uint8_t constant) : products{} {
    for (unsigned i = 0; i < products.size(); ++i) {
      products[i] = multiply(constant, static_cast<std::uint8_t>(i));
    }
  }
  std::byte operator()(std::byte value) const {
    return std::byte{products[std::to_integer<std::uint8_t>(value)]};
  }
};

std::uint64_t load(const std::byte* from, std::size_t bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, bytes);
  return value;
}

void store(std::uint64_t value, std::byte* to, std::size_t bytes) {
  std::memcpy(to, &value, bytes);
}

// Calls `word(at, bytes)` for each run of up to eight bytes.
template <typename Word>
void each_word(std::size_t n, Word word) {
  std::size_t at = 0;
  for (; at + 8 <= n; at += 8) word(at, 8);
  if (at < n) word(at, n - at);
}

}  // namespace

void generate_p(std::span<const std::byte* const> data, std::byte* p, std::size_t n) {
  assert(!data.empty() && data.size() <= kMostDataChunks);
  each_word(n, [&](std::size_t at, std::size_t bytes) {
    std::uint64_t sum = 0;
    for (const std::byte* chunk : data) sum ^= load(chunk + at, bytes);
    store(sum, p + at, bytes);
  });
}

void generate_q(std::span<const std::byte* const> data, std::byte* q, std::size_t n) {
  assert(!data.empty() && data.size() <= kMostDataChunks);
  each_word(n, [&](std::size_t at, std::size_t bytes) {
    std::uint64_t sum = 0;
    for (std::size_t i = data.size(); i-- > 0;) sum = times_g(sum) ^ load(data[i] + at, bytes);
    store(sum, q + at, bytes);
  });
}

void generate_pq(std::span<const std::byte* const> data, std::byte* p, std::byte* q,
                 std::size_t n) {
  generate_p(data, p, n);
  generate_q(data, q, n);
}

void add_to_p(const std::byte* delta, std::byte* p, std::size_t n) { xor_of(delta, p, p, n); }

void add_to_q(unsigned data_index, const std::byte* delta, std::byte* q, std::size_t n) {
  assert(data_index < kMostDataChunks);
  const Multiplier times{power_of_g(data_index)};
  for (std::size_t i = 0; i < n; ++i) q[i] ^= times(delta[i]);
}

void xor_of(const std::byte* a, const std::byte* b, std::byte* out, std::size_t n) {
  each_word(n, [&](std::size_t at, std::size_t bytes) {
    store(load(a + at, bytes) ^ load(b + at, bytes), out + at, bytes);
  });
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte value) { return value == std::byte{0}; });
}

namespace {

using Members = std::span<std::byte* const>;

// dx := what all the other data chunks and P leave over.
void recover_through_p(Members members, unsigned data_chunks, unsigned x, std::size_t n) {
  std::memcpy(members[x], members[data_chunks], n);
  for (unsigned i = 0; i < data_chunks; ++i) {
    if (i != x) add_to_p(members[i], members[x], n);
  }
}

// dx := (Q + the other data chunks' part of Q) / g^x.
void recover_through_q(Members members, unsigned data_chunks, unsigned x, std::size_t n) {
  std::memcpy(members[x], members[data_chunks + 1], n);
  for (unsigned i = 0; i < data_chunks; ++i) {
    if (i != x) add_to_q(i, members[i], members[x], n);
  }
  const Multiplier divide{inverse(power_of_g(x))};
  std::transform(members[x], members[x] + n, members[x], divide);
}

// With P' = dx + dy and Q' = g^x dx + g^y dy: dy = (Q' + g^x P') / (g^x + g^y), dx = P' + dy.
void recover_two(Members members, unsigned data_chunks, unsigned x, unsigned y, std::size_t n) {
  std::byte* const dx = members[x];
  std::byte* const dy = members[y];
  std::memcpy(dx, members[data_chunks], n);
  std::memcpy(dy, members[data_chunks + 1], n);
  for (unsigned i = 0; i < data_chunks; ++i) {
    if (i == x || i == y) continue;
    add_to_p(members[i], dx, n);
    add_to_q(i, members[i], dy, n);
  }
  const std::uint8_t gx = power_of_g(x);
  const Multiplier times_gx{gx};
  const Multiplier divide{inverse(gx ^ power_of_g(y))};
  for (std::size_t i = 0; i < n; ++i) {
    dy[i] = divide(dy[i] ^ times_gx(dx[i]));
    dx[i] ^= dy[i];
  }
}

}  // namespace

void recover(unsigned data_chunks, unsigned parity_chunks, std::span<std::byte* const> members,
             MemberSet missing, std::size_t n) {
  assert(data_chunks > 0 && parity_chunks <= 2);
  assert(members.size() == data_chunks + parity_chunks && members.size() <= 64);
  assert(static_cast<unsigned>(std::popcount(missing)) <= parity_chunks);
  assert(members.size() == 64 || missing >> members.size() == 0);
  if (missing == 0) return;
  const MemberSet p = MemberSet{1} << data_chunks;
  const MemberSet q = p << 1;
  const MemberSet data = missing & (p - 1);
  const auto x = static_cast<unsigned>(std::countr_zero(data));

  if (std::popcount(data) == 2) {
    const auto y = static_cast<unsigned>(std::countr_zero(data & (data - 1)));
    recover_two(members, data_chunks, x, y, n);
  } else if (data != 0) {
    const bool through_p = (missing & p) == 0 && members[data_chunks] != nullptr;
    if (through_p) {
      recover_through_p(members, data_chunks, x, n);
    } else {
      recover_through_q(members, data_chunks, x, n);
    }
  }
  std::array<const std::byte*, kMostDataChunks> chunks{};
  std::ranges::copy(members.first(data_chunks), chunks.begin());
  const std::span<const std::byte* const> all{chunks.data(), data_chunks};
  if ((missing & p) != 0) generate_p(all, members[data_chunks], n);
  if ((missing & q) != 0) generate_q(all, members[data_chunks + 1], n);
}

}  // namespace sandbay::raid::plain
