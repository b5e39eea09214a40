// Parity, through ISA-L and in plain C++: against the definition, against each other, and by what
// they must not touch. In a build with a memory sanitizer both are the plain one, in arrays without
// a byte to spare.
#include "raid/parity.h"

#include <rapidcheck.h>
#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <new>
#include <random>

#include "reference_parity.h"

namespace sandbay::raid::parity_test {
namespace {

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr std::size_t kGuardBytes = 0;  // The sanitizer guards.
#else
constexpr std::size_t kGuardBytes = 64;
#endif
#endif
constexpr std::byte kGuard{0xa5};

struct Implementation {
  const char* name;
  decltype(&generate_p) p;
  decltype(&generate_q) q;
  decltype(&generate_pq) pq;
  decltype(&add_to_p) add_p;
  decltype(&add_to_q) add_q;
  decltype(&xor_of) xor_bytes;
  decltype(&recover) recover_members;
  decltype(&all_zero) zero;
};

const Implementation kImplementations[] = {
    {"fast", generate_p, generate_q, generate_pq, add_to_p, add_to_q, xor_of, recover, all_zero},
    {"plain", plain::generate_p, plain::generate_q, plain::generate_pq, plain::add_to_p,
     plain::add_to_q, plain::xor_of, plain::recover, plain::all_zero},
};

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::mt19937_64& random, std::size_t n) {
  Bytes bytes(n);
  for (std::byte& value : bytes) value = static_cast<std::byte>(random());
  return bytes;
}

// n bytes that begin `offset` behind a multiple of 64, guarded on both sides.
class Array {
 public:
  Array(std::size_t n, std::size_t offset, const Bytes& content = {})
      : n_{n},
        front_{kGuardBytes + offset},
        bytes_{static_cast<std::byte*>(
            ::operator new(front_ + n + kGuardBytes, std::align_val_t{64}))} {
    std::memset(bytes_, std::to_integer<int>(kGuard), front_ + n + kGuardBytes);
    if (!content.empty()) std::memcpy(data(), content.data(), n);
  }
  ~Array() { ::operator delete(bytes_, std::align_val_t{64}); }
  Array(Array&& other) noexcept
      : n_{other.n_}, front_{other.front_}, bytes_{std::exchange(other.bytes_, nullptr)} {}
  Array& operator=(Array&&) = delete;

  std::byte* data() const { return bytes_ + front_; }
  Bytes content() const { return {data(), data() + n_}; }
  bool intact() const {
    const auto guard = [](std::byte value) { return value == kGuard; };
    return std::all_of(bytes_, data(), guard) &&
           std::all_of(data() + n_, data() + n_ + kGuardBytes, guard);
  }

 private:
  std::size_t n_;
  std::size_t front_;
  std::byte* bytes_;
};

// A stripe's members in guarded arrays, and what they must be.
struct Stripe {
  std::vector<Bytes> data;
  std::vector<Bytes> expected;  // Data, P, Q.
  std::vector<Array> arrays;
  unsigned k;
  std::size_t n;

  Stripe(std::mt19937_64& random, unsigned chunks, std::size_t bytes, bool aligned)
      : k{chunks}, n{bytes} {
    for (unsigned i = 0; i < k; ++i) data.push_back(random_bytes(random, n));
    expected = data;
    for (const unsigned parity : {0u, 1u}) expected.push_back(reference::parity_of(data, parity));
    for (const Bytes& content : expected) {
      // Some of the others are aligned, too: one that is not makes the difference.
      const bool even = aligned || random() % 2 == 0;
      arrays.emplace_back(n, even ? 0 : random() % 64, content);
    }
  }

  std::vector<const std::byte*> sources() const {
    std::vector<const std::byte*> pointers;
    for (unsigned i = 0; i < k; ++i) pointers.push_back(arrays[i].data());
    return pointers;
  }
  std::vector<std::byte*> members(unsigned parities) const {
    std::vector<std::byte*> pointers;
    for (unsigned i = 0; i < k + parities; ++i) pointers.push_back(arrays[i].data());
    return pointers;
  }
  void spoil(unsigned member) const { std::memset(arrays[member].data(), 0x5e, n); }

  // Whether all of it is what it must be, but for the members in `open`.
  bool right(MemberSet open = 0) const {
    for (unsigned i = 0; i < arrays.size(); ++i) {
      if (!arrays[i].intact()) return false;
      const bool left_open = i < 64 && (open >> i & 1) != 0;  // P and Q of 64 chunks have no bit.
      if (!left_open && arrays[i].content() != expected[i]) return false;
    }
    return true;
  }
};

const std::size_t kLengths[] = {0,   1,   7,   8,   9,   15,  16,   31,   32,
                                33,  63,  64,  65,  96,  127, 128,  129,  191,
                                192, 200, 255, 256, 511, 512, 1000, 4096, 4100};

TEST_CASE("P and Q of a few bytes, by hand", "[raid][parity]") {
  const std::byte bytes[3] = {std::byte{0x01}, std::byte{0x02}, std::byte{0x80}};
  const std::byte* const data[3] = {&bytes[0], &bytes[1], &bytes[2]};
  for (const Implementation& tested : kImplementations) {
    INFO(tested.name);
    std::byte p{};
    std::byte q{};
    tested.pq(data, &p, &q, 1);
    REQUIRE(p == std::byte{0x83});
    REQUIRE(q == std::byte{0x3f});  // 1 + 2·2 + 4·80h; 2·80h = 1Dh, 4·80h = 3Ah.
  }
}

TEST_CASE("P and Q are what the definition says", "[raid][parity]") {
  std::mt19937_64 random{1};
  for (const unsigned k : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 13u, 30u, 62u, 64u}) {
    for (const std::size_t n : kLengths) {
      if (k > 8 && n > 300) continue;
      for (const bool aligned : {true, false}) {
        for (const Implementation& tested : kImplementations) {
          const Stripe stripe{random, k, n, aligned};
          const auto sources = stripe.sources();
          std::byte* const p = stripe.arrays[k].data();
          std::byte* const q = stripe.arrays[k + 1].data();
          bool right = true;
          const auto check = [&](auto generate) {
            stripe.spoil(k);
            stripe.spoil(k + 1);
            generate();
            right = right && stripe.right();
          };
          check([&] {
            tested.p(sources, p, n);
            tested.q(sources, q, n);
          });
          check([&] { tested.pq(sources, p, q, n); });
          if (!right) FAIL(tested.name << " k " << k << " n " << n << " aligned " << aligned);
        }
      }
    }
  }
  SECTION("a strip of the largest size") {
    for (const bool aligned : {true, false}) {
      const Stripe stripe{random, 3, (1u << 20) - (aligned ? 0 : 1), aligned};
      stripe.spoil(3);
      stripe.spoil(4);
      generate_pq(stripe.sources(), stripe.arrays[3].data(), stripe.arrays[4].data(), stripe.n);
      REQUIRE(stripe.right());
    }
  }
}

TEST_CASE("Parity follows a change of one chunk by the difference", "[raid][parity]") {
  std::mt19937_64 random{2};
  for (const unsigned k : {1u, 3u, 6u, 62u}) {
    for (const std::size_t n : kLengths) {
      if (k > 8 && n > 300) continue;
      for (const bool aligned : {true, false}) {
        for (const Implementation& tested : kImplementations) {
          Stripe stripe{random, k, n, aligned};
          const auto index = static_cast<unsigned>(random() % k);
          const Bytes changed = random_bytes(random, n);
          const Array fresh{n, aligned ? 0 : random() % 64, changed};
          const Array delta{n, aligned ? 0 : random() % 64};
          tested.xor_bytes(stripe.arrays[index].data(), fresh.data(), delta.data(), n);
          tested.add_p(delta.data(), stripe.arrays[k].data(), n);
          tested.add_q(index, delta.data(), stripe.arrays[k + 1].data(), n);

          stripe.data[index] = changed;
          stripe.expected[k] = reference::parity_of(stripe.data, 0);
          stripe.expected[k + 1] = reference::parity_of(stripe.data, 1);
          const bool right = stripe.right() && delta.intact() && fresh.content() == changed;
          if (!right) FAIL(tested.name << " k " << k << " n " << n << " index " << index);
        }
      }
    }
  }
}

TEST_CASE("XOR into a third array and into either source", "[raid][parity]") {
  std::mt19937_64 random{3};
  for (const Implementation& tested : kImplementations) {
    for (std::size_t n = 0; n < 300; ++n) {
      const Bytes a = random_bytes(random, n);
      const Bytes b = random_bytes(random, n);
      Bytes expected(n);
      for (std::size_t i = 0; i < n; ++i) expected[i] = a[i] ^ b[i];
      for (const unsigned into : {0u, 1u, 2u}) {
        const Array arrays[3] = {Array{n, random() % 64, a}, Array{n, random() % 64, b},
                                 Array{n, random() % 64}};
        tested.xor_bytes(arrays[0].data(), arrays[1].data(), arrays[into].data(), n);
        bool right = arrays[into].content() == expected;
        for (const Array& array : arrays) right = right && array.intact();
        if (into != 0) right = right && arrays[0].content() == a;
        if (into != 1) right = right && arrays[1].content() == b;
        if (!right) FAIL(tested.name << " n " << n << " into " << into);
      }
    }
  }
}

// Spoils the missing members, recovers them, and says whether all are right again. The parities in
// `null` are not given.
bool recovers(const Implementation& tested, const Stripe& stripe, unsigned parities,
              MemberSet missing, MemberSet null = 0) {
  auto members = stripe.members(parities);
  for (unsigned i = 0; i < members.size(); ++i) {
    if ((missing >> i & 1) != 0) stripe.spoil(i);
    if ((null >> i & 1) != 0) {
      stripe.spoil(i);
      members[i] = nullptr;
    }
  }
  tested.recover_members(stripe.k, parities, members, missing, stripe.n);
  const bool right = stripe.right(null);
  for (unsigned i = stripe.k; i < stripe.k + 2; ++i) {
    std::ranges::copy(stripe.expected[i], stripe.arrays[i].data());
  }
  return right;
}

TEST_CASE("Every member and every pair of members is recovered", "[raid][parity]") {
  std::mt19937_64 random{4};
  for (const unsigned k : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 14u, 62u}) {
    for (const bool aligned : {true, false}) {
      const std::size_t n = aligned ? 256 : 67 + random() % 200;
      const Stripe stripe{random, k, n, aligned};
      for (const Implementation& tested : kImplementations) {
        REQUIRE(recovers(tested, stripe, 0, 0));
        for (unsigned x = 0; x < k + 2; ++x) {
          const MemberSet one = MemberSet{1} << x;
          if (x <= k && !recovers(tested, stripe, 1, one)) FAIL("RAID 5: " << k << ", " << x);
          for (unsigned y = x; y < k + 2; ++y) {
            const MemberSet two = one | MemberSet{1} << y;
            if (!recovers(tested, stripe, 2, two)) FAIL(tested.name << k << " " << x << " " << y);
          }
        }
      }
    }
  }
}

TEST_CASE("A parity that is not needed need not be there", "[raid][parity]") {
  std::mt19937_64 random{5};
  for (const unsigned k : {1u, 2u, 5u}) {
    for (const std::size_t n : {40u, 64u, 250u}) {
      const Stripe stripe{random, k, n, n == 64};
      const MemberSet p = MemberSet{1} << k;
      const MemberSet q = p << 1;
      for (const Implementation& tested : kImplementations) {
        INFO(tested.name << " k " << k << " n " << n);
        for (unsigned x = 0; x < k; ++x) {
          const MemberSet lost = MemberSet{1} << x;
          REQUIRE(recovers(tested, stripe, 2, lost, q));
          REQUIRE(recovers(tested, stripe, 2, lost, p));
        }
        REQUIRE(recovers(tested, stripe, 2, p, q));
        REQUIRE(recovers(tested, stripe, 2, q, p));
      }
    }
  }
}

TEST_CASE("The fast and the plain one agree on anything", "[raid][parity]") {
  REQUIRE(rc::check("generate and recover", [] {
    const unsigned k = *rc::gen::inRange(1u, 63u);
    const std::size_t n = *rc::gen::inRange<std::size_t>(0, 700);
    const bool aligned = *rc::gen::arbitrary<bool>();
    std::mt19937_64 random{*rc::gen::arbitrary<std::uint64_t>()};
    const auto x = *rc::gen::inRange(0u, k + 2);
    const auto y = *rc::gen::inRange(0u, k + 2);
    const MemberSet missing = MemberSet{1} << x | MemberSet{1} << y;

    std::vector<Bytes> results;
    for (const Implementation& tested : kImplementations) {
      std::mt19937_64 same = random;
      const Stripe stripe{same, k, n, aligned};
      stripe.spoil(k);
      stripe.spoil(k + 1);
      tested.pq(stripe.sources(), stripe.arrays[k].data(), stripe.arrays[k + 1].data(), n);
      stripe.spoil(x);
      stripe.spoil(y);
      tested.recover_members(k, 2, stripe.members(2), missing, n);
      RC_ASSERT(stripe.right());
      for (const Array& array : stripe.arrays) results.push_back(array.content());
    }
    RC_ASSERT(std::equal(results.begin(), results.begin() + k + 2, results.begin() + k + 2));
  }));
}

// Pages between two that must not be touched: n bytes at their very end, or at their start.
class Fenced {
 public:
  static constexpr std::size_t kPage = 4096;

  Fenced(std::size_t n, bool at_end) : n_{n}, pages_{(n + kPage - 1) / kPage + 2} {
    void* const mapped =
        mmap(nullptr, pages_ * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(mapped != MAP_FAILED);
    base_ = static_cast<std::byte*>(mapped);
    REQUIRE(mprotect(base_ + kPage, inner_bytes(), PROT_READ | PROT_WRITE) == 0);
    data_ = base_ + kPage + (at_end ? inner_bytes() - n : 0);
  }
  ~Fenced() { munmap(base_, pages_ * kPage); }
  Fenced(Fenced&& other) noexcept
      : n_{other.n_},
        pages_{other.pages_},
        base_{std::exchange(other.base_, nullptr)},
        data_{other.data_} {}
  Fenced& operator=(Fenced&&) = delete;

  std::byte* data() const { return data_; }
  std::span<std::byte> bytes() const { return {data_, n_}; }

 private:
  std::size_t inner_bytes() const { return (pages_ - 2) * kPage; }

  std::size_t n_;
  std::size_t pages_;
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
};

TEST_CASE("Nothing next to the arrays is touched, not even read", "[raid][parity]") {
  std::mt19937_64 random{6};
  std::vector<std::size_t> lengths{4095, 4096, 4097, 8192 - 33};
  for (std::size_t n = 1; n < 200; n += 3) lengths.push_back(n);
  for (const std::size_t n : lengths) {
    for (const bool at_end : {true, false}) {
      std::vector<Fenced> arrays;
      std::vector<Bytes> expected;
      for (unsigned i = 0; i < 6; ++i) arrays.emplace_back(n, at_end);
      for (unsigned i = 0; i < 3; ++i) {
        expected.push_back(random_bytes(random, n));
        std::ranges::copy(expected[i], arrays[i].data());
      }
      std::byte* const members[5] = {arrays[0].data(), arrays[1].data(), arrays[2].data(),
                                     arrays[3].data(), arrays[4].data()};
      const std::byte* const data[3] = {members[0], members[1], members[2]};
      generate_p(data, members[3], n);
      generate_q(data, members[4], n);
      generate_pq(data, members[3], members[4], n);
      for (const MemberSet missing : {0b00011, 0b01001, 0b10001, 0b11000}) {
        recover(3, 2, members, missing, n);
      }
      xor_of(members[0], members[1], arrays[5].data(), n);
      add_to_p(arrays[5].data(), members[0], n);  // Chunk 0 becomes chunk 1 …
      add_to_q(0, arrays[5].data(), members[4], n);
      expected[0] = expected[1];  // … and Q follows.
      const Bytes q = reference::parity_of(expected, 1);
      bool right = all_zero(arrays[5].bytes()) == std::ranges::equal(arrays[5].bytes(), Bytes(n));
      for (unsigned i = 0; i < 3; ++i) {
        right = right && std::ranges::equal(arrays[i].bytes(), expected[i]);
      }
      right = right && std::ranges::equal(arrays[4].bytes(), q);
      if (!right) FAIL("n " << n << " at end " << at_end);
    }
  }
}

TEST_CASE("One byte that is not zero is seen wherever it is", "[raid][parity]") {
  for (const Implementation& tested : kImplementations) {
    for (std::size_t n = 0; n < 300; ++n) {
      for (const std::size_t offset : {0u, 1u, 33u}) {
        const Array array{n, offset, Bytes(n)};
        const std::span<std::byte> bytes{array.data(), n};
        bool right = tested.zero(bytes);
        for (std::byte& value : bytes) {
          value = std::byte{0x10};
          right = right && !tested.zero(bytes);
          value = std::byte{0};
        }
        if (!right) FAIL(tested.name << " n " << n << " offset " << offset);
      }
    }
  }
}

}  // namespace
}  // namespace sandbay::raid::parity_test
