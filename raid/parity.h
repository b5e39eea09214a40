// Parity: P, Q and recovery for RAID 5 and 6, on byte arrays of one length each.
//
//   P = D0 + D1 + … + Dk-1          Q = g^0 D0 + g^1 D1 + … + g^(k-1) Dk-1
//
// byte by byte in GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d) and g = 2, where +
// is XOR. Any k of the k+2 members determine the others (H. Peter Anvin, "The mathematics of
// RAID-6"; k up to 255, here up to 64).
//
// Stateless; any length, any alignment; nothing is allocated. All of it runs through ISA-L, fastest
// where all pointers and the length are multiples of 64. sandbay::raid::plain has the same
// functions in plain C++: for comparison, and in their place in builds with a memory sanitizer,
// which does not see what ISA-L's assembly touches.
#pragma once

#include <cstddef>
#include <span>

#include "raid/stripe_plan.h"

namespace sandbay::raid {

inline constexpr unsigned kMostDataChunks = 64;

// P, Q or both from all the data chunks, at least one. Outputs alias nothing.
void generate_p(std::span<const std::byte* const> data, std::byte* p, std::size_t n);
void generate_q(std::span<const std::byte* const> data, std::byte* q, std::size_t n);
void generate_pq(std::span<const std::byte* const> data, std::byte* p, std::byte* q, std::size_t n);

// Parity after data chunk `data_index` has changed by `delta`, old XOR new.
void add_to_p(const std::byte* delta, std::byte* p, std::size_t n);
void add_to_q(unsigned data_index, const std::byte* delta, std::byte* q, std::size_t n);

// `out` may be `a` or `b`, but not overlap them otherwise.
void xor_of(const std::byte* a, const std::byte* b, std::byte* out, std::size_t n);

// Computes the `missing` members, at most parity_chunks of them, in place from the others.
// `members` points to data_chunks + parity_chunks arrays, data first, then P, then Q. A parity that
// is neither missing nor needed may be null: one missing data chunk is recovered through P, or
// through Q if P is missing too or null.
void recover(unsigned data_chunks, unsigned parity_chunks, std::span<std::byte* const> members,
             MemberSet missing, std::size_t n);

bool all_zero(std::span<const std::byte> bytes);

namespace plain {

void generate_p(std::span<const std::byte* const> data, std::byte* p, std::size_t n);
void generate_q(std::span<const std::byte* const> data, std::byte* q, std::size_t n);
void generate_pq(std::span<const std::byte* const> data, std::byte* p, std::byte* q, std::size_t n);
void add_to_p(const std::byte* delta, std::byte* p, std::size_t n);
void add_to_q(unsigned data_index, const std::byte* delta, std::byte* q, std::size_t n);
void xor_of(const std::byte* a, const std::byte* b, std::byte* out, std::size_t n);
void recover(unsigned data_chunks, unsigned parity_chunks, std::span<std::byte* const> members,
             MemberSet missing, std::size_t n);
bool all_zero(std::span<const std::byte> bytes);

}  // namespace plain

}  // namespace sandbay::raid
