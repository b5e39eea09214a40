// Parity through ISA-L. Three of its families are used:
//
//  * xor_gen, pq_gen: the fastest; pointers and lengths have to be aligned.
//  * ec_encode_data: sums of constants times arrays, of any alignment and of 64 bytes or more, by
//    tables of 32 bytes a constant. Recovery is such a sum, too: see recover_one() and
//    recover_two().
//  * gf_vect_mad: adds a constant times one array.
//
// What they do not take goes to the plain twin, and so does everything in builds with a memory
// sanitizer. ISA-L's field is the one of the header: polynomial 0x11d.
#include "raid/parity.h"

#include <isa-l.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <limits>

namespace sandbay::raid {
namespace {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
constexpr bool kPlain = true;
#else
constexpr bool kPlain = false;
#endif
#else
constexpr bool kPlain = false;
#endif

// What ISA-L's aligned functions ask for at most, and a cache line.
constexpr std::size_t kAlignment = 64;
// Below, its other functions do not work or do not pay.
constexpr std::size_t kLeastBytes = 64;
constexpr std::size_t kMostBytes = std::numeric_limits<int>::max();

constexpr std::size_t kTableBytes = 32;  // ISA-L's multiplication table of one constant.
using Table = std::array<std::uint8_t, kTableBytes>;

// The tables of all 256 constants, and the powers of g.
struct Field {
  std::array<Table, 256> tables{};
  std::array<std::uint8_t, 255> powers{};

  Field() {
    for (unsigned i = 0; i < tables.size(); ++i) {
      gf_vect_mul_init(static_cast<unsigned char>(i), tables[i].data());
    }
    powers[0] = 1;
    for (unsigned i = 1; i < powers.size(); ++i) powers[i] = gf_mul(powers[i - 1], 2);
  }
};

const Field& field() {
  static const Field kField;
  return kField;
}

std::uint8_t power_of_g(unsigned exponent) { return field().powers[exponent % 255]; }

// Up to two sums over up to 64 members, as ISA-L wants them. Only the ones that are used are
// touched: a table each is much for the stack to be cleared.
class Sums {
 public:
  explicit Sums(unsigned rows) : rows_{rows} {}

  void add(const std::byte* source, std::uint8_t first, std::uint8_t second = 0) {
    assert(count_ < kMostMembers);
    sources_[count_] = to_unsigned(source);
    constants_[0][count_] = first;
    constants_[1][count_] = second;
    ++count_;
  }

  void write(std::byte* first, std::byte* second, std::size_t n) {
    for (unsigned row = 0; row < rows_; ++row) {
      for (unsigned i = 0; i < count_; ++i) {
        tables_[row * count_ + i] = field().tables[constants_[row][i]];
      }
    }
    std::array<unsigned char*, 2> outputs{to_unsigned(first), to_unsigned(second)};
    ec_encode_data(static_cast<int>(n), static_cast<int>(count_), static_cast<int>(rows_),
                   tables_.front().data(), sources_.data(), outputs.data());
  }

 private:
  static constexpr unsigned kMostMembers = kMostDataChunks + 2;

  static unsigned char* to_unsigned(const std::byte* bytes) {
    // ISA-L does not say const of its sources.
    return reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes));
  }

  unsigned rows_;
  unsigned count_ = 0;
  std::array<unsigned char*, kMostMembers> sources_;
  std::array<std::array<std::uint8_t, kMostMembers>, 2> constants_;
  std::array<Table, 2 * kMostMembers> tables_;
};

bool aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

bool aligned(std::span<const std::byte* const> data, const std::byte* p, const std::byte* q,
             std::size_t n) {
  return n % kAlignment == 0 && aligned(p) && aligned(q) &&
         std::ranges::all_of(data, [](const std::byte* chunk) { return aligned(chunk); });
}

using Vectors = std::array<void*, kMostDataChunks + 2>;

void fill(Vectors& vectors, std::span<const std::byte* const> data) {
  assert(!data.empty() && data.size() <= kMostDataChunks);
  for (std::size_t i = 0; i < data.size(); ++i) vectors[i] = const_cast<std::byte*>(data[i]);
}

// to += constant * from.
void add_multiple(std::uint8_t constant, const std::byte* from, std::byte* to, std::size_t n) {
  Table table = field().tables[constant];
  gf_vect_mad(static_cast<int>(n), 1, 0, table.data(),
              reinterpret_cast<unsigned char*>(const_cast<std::byte*>(from)),
              reinterpret_cast<unsigned char*>(to));
}

}  // namespace

void generate_p(std::span<const std::byte* const> data, std::byte* p, std::size_t n) {
  assert(n <= kMostBytes);
  if (kPlain || n < kLeastBytes) return plain::generate_p(data, p, n);

  if (data.size() > 1 && aligned(data, p, nullptr, n)) {
    Vectors vectors;
    fill(vectors, data);
    vectors[data.size()] = p;
    const int wrong =
        xor_gen(static_cast<int>(data.size()) + 1, static_cast<int>(n), vectors.data());
    assert(wrong == 0);
    return;
  }
  Sums sums{1};
  for (const std::byte* chunk : data) sums.add(chunk, 1);
  sums.write(p, nullptr, n);
}

void generate_q(std::span<const std::byte* const> data, std::byte* q, std::size_t n) {
  assert(n <= kMostBytes);
  if (kPlain || n < kLeastBytes) return plain::generate_q(data, q, n);

  Sums sums{1};
  for (unsigned i = 0; i < data.size(); ++i) sums.add(data[i], power_of_g(i));
  sums.write(q, nullptr, n);
}

void generate_pq(std::span<const std::byte* const> data, std::byte* p, std::byte* q,
                 std::size_t n) {
  assert(n <= kMostBytes);
  if (kPlain || n < kLeastBytes) return plain::generate_pq(data, p, q, n);

  if (data.size() > 1 && aligned(data, p, q, n)) {
    Vectors vectors;
    fill(vectors, data);
    vectors[data.size()] = p;
    vectors[data.size() + 1] = q;
    const int wrong =
        pq_gen(static_cast<int>(data.size()) + 2, static_cast<int>(n), vectors.data());
    assert(wrong == 0);
    return;
  }
  Sums sums{2};
  for (unsigned i = 0; i < data.size(); ++i) sums.add(data[i], 1, power_of_g(i));
  sums.write(p, q, n);
}

void add_to_p(const std::byte* delta, std::byte* p, std::size_t n) {
  assert(n <= kMostBytes);
  if (kPlain || n < kLeastBytes) return plain::add_to_p(delta, p, n);
  add_multiple(1, delta, p, n);
}

void add_to_q(unsigned data_index, const std::byte* delta, std::byte* q, std::size_t n) {
  assert(data_index < kMostDataChunks);
  assert(n <= kMostBytes);
  if (kPlain || n < kLeastBytes) return plain::add_to_q(data_index, delta, q, n);
  add_multiple(power_of_g(data_index), delta, q, n);
}

// ISA-L does the end of an uneven length by a vector that overlaps the one before it; where `out`
// is a source, it would read there what it has just written. So the end goes to the plain twin.
void xor_of(const std::byte* a, const std::byte* b, std::byte* out, std::size_t n) {
  assert(n <= kMostBytes);
  const std::size_t even = kPlain ? 0 : n - n % kAlignment;
  if (even > 0) {
    Sums sums{1};
    sums.add(a, 1);
    sums.add(b, 1);
    sums.write(out, nullptr, even);
  }
  plain::xor_of(a + even, b + even, out + even, n - even);
}

bool all_zero(std::span<const std::byte> bytes) {
  if (kPlain) return plain::all_zero(bytes);
  return isal_zero_detect(const_cast<std::byte*>(bytes.data()), bytes.size()) == 0;
}

namespace {

using Members = std::span<std::byte* const>;

// One data chunk. Through P: dx = P + the others. Through Q: dx = g^-x Q + g^(i-x) Di of each
// other i.
void recover_one(Members members, unsigned data_chunks, unsigned x, bool through_p, std::size_t n) {
  if (through_p) {
    std::array<const std::byte*, kMostDataChunks> sources;
    std::ranges::copy(members.first(data_chunks), sources.begin());
    sources[x] = members[data_chunks];
    return generate_p({sources.data(), data_chunks}, members[x], n);
  }
  Sums sums{1};
  for (unsigned i = 0; i < data_chunks; ++i) {
    if (i != x) sums.add(members[i], power_of_g(255 + i - x));
  }
  sums.add(members[data_chunks + 1], power_of_g(255 - x));
  sums.write(members[x], nullptr, n);
}

// Two data chunks. With d = 1 / (g^x + g^y), solving P and Q for dx and dy gives
//   dx = d g^y P + d Q + d (g^y + g^i) Di of each other i, and dy the same with g^x for g^y.
void recover_two(Members members, unsigned data_chunks, unsigned x, unsigned y, std::size_t n) {
  const std::uint8_t gx = power_of_g(x);
  const std::uint8_t gy = power_of_g(y);
  const std::uint8_t d = gf_inv(gx ^ gy);
  Sums sums{2};
  for (unsigned i = 0; i < data_chunks; ++i) {
    if (i == x || i == y) continue;
    const std::uint8_t gi = power_of_g(i);
    sums.add(members[i], gf_mul(d, gy ^ gi), gf_mul(d, gx ^ gi));
  }
  sums.add(members[data_chunks], gf_mul(d, gy), gf_mul(d, gx));
  sums.add(members[data_chunks + 1], d, d);
  sums.write(members[x], members[y], n);
}

}  // namespace

void recover(unsigned data_chunks, unsigned parity_chunks, std::span<std::byte* const> members,
             MemberSet missing, std::size_t n) {
  assert(data_chunks > 0 && parity_chunks <= 2);
  assert(members.size() == data_chunks + parity_chunks && members.size() <= 64);
  assert(static_cast<unsigned>(std::popcount(missing)) <= parity_chunks);
  assert(members.size() == 64 || missing >> members.size() == 0);
  assert(n <= kMostBytes);
  if (missing == 0) return;
  if (kPlain || n < kLeastBytes) {
    return plain::recover(data_chunks, parity_chunks, members, missing, n);
  }

  const MemberSet p = MemberSet{1} << data_chunks;
  const MemberSet q = p << 1;
  const MemberSet data = missing & (p - 1);
  const auto x = static_cast<unsigned>(std::countr_zero(data));
  if (std::popcount(data) == 2) {
    const auto y = static_cast<unsigned>(std::countr_zero(data & (data - 1)));
    return recover_two(members, data_chunks, x, y, n);
  }
  if (data != 0) {
    const bool through_p = (missing & p) == 0 && members[data_chunks] != nullptr;
    recover_one(members, data_chunks, x, through_p, n);
  }

  std::array<const std::byte*, kMostDataChunks> chunks;
  std::ranges::copy(members.first(data_chunks), chunks.begin());
  const std::span<const std::byte* const> all{chunks.data(), data_chunks};
  if ((missing & (p | q)) == (p | q)) {
    generate_pq(all, members[data_chunks], members[data_chunks + 1], n);
  } else if ((missing & p) != 0) {
    generate_p(all, members[data_chunks], n);
  } else if ((missing & q) != 0) {
    generate_q(all, members[data_chunks + 1], n);
  }
}

}  // namespace sandbay::raid
