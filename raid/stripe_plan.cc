// Cuts a write's fragments into bands and picks each band's method; see the header for the rules.
#include "raid/stripe_plan.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace sandbay::raid {
namespace {

constexpr unsigned kMostMembers = 64;

constexpr MemberSet members(unsigned count) {
  assert(count <= kMostMembers);
  return count == kMostMembers ? ~MemberSet{0} : (MemberSet{1} << count) - 1;
}

unsigned size(MemberSet set) { return static_cast<unsigned>(std::popcount(set)); }

// What a stripe's state allows, worked out once for all its bands.
struct Stripe {
  MemberSet data;
  MemberSet parity;    // Parities with a drive to write to.
  MemberSet readable;  // Members whose old content is there and can be relied on.
  unsigned data_chunks;
  bool doubted;
  MemberSet missing;

  explicit Stripe(const StripeState& state)
      : data{members(state.data_chunks)},
        parity{},
        readable{},
        data_chunks{state.data_chunks},
        doubted{state.parity_doubted},
        missing{state.missing} {
    const MemberSet all = members(state.data_chunks + state.parity_chunks);
    parity = all & ~data & ~state.unwritable;
    readable = all & ~state.unreadable & ~state.unwritable;
    if (state.parity_unreliable) readable &= data;
  }
};

// Any data_chunks readable members will do: data first, because it needs no arithmetic, then P
// (member k), because it needs less than Q.
MemberSet recovery_reads(const Stripe& stripe) {
  MemberSet reads = 0;
  for (MemberSet left = stripe.readable; left != 0 && size(reads) < stripe.data_chunks;) {
    const MemberSet lowest = left & -left;
    reads |= lowest;
    left &= ~lowest;
  }
  return reads;
}

// Sets method and reads of a band with the given written members.
void choose_method(const Stripe& stripe, Band& band) {
  const MemberSet modify_reads = band.written | stripe.parity;
  const MemberSet reconstruct_reads = stripe.data & ~band.written;
  const bool can_modify = (modify_reads & ~stripe.readable) == 0;
  const bool can_reconstruct = (reconstruct_reads & ~stripe.readable) == 0;
  // Recovering takes data_chunks reads; reconstructing, where it is possible, never more.
  const bool can_recover = !stripe.doubted && size(stripe.readable) >= stripe.data_chunks;
  const unsigned other_reads = can_reconstruct ? size(reconstruct_reads)
                               : can_recover   ? stripe.data_chunks
                                               : kMostMembers;

  if (stripe.parity == 0) {
    band.method = Method::kDataOnly;
  } else if (reconstruct_reads == 0) {
    band.method = Method::kFullStripe;
  } else if (can_modify && size(modify_reads) <= other_reads) {
    band.method = Method::kReadModifyWrite;
    band.reads = modify_reads;
  } else if (can_reconstruct) {
    band.method = Method::kReconstructWrite;
    band.reads = reconstruct_reads;
  } else if (stripe.doubted && (band.written & stripe.missing) == 0) {
    band.method = Method::kDataOnly;
    band.writes &= stripe.data;
  } else {
    band.method = Method::kRecover;
    band.reads = recovery_reads(stripe);
  }
}

}  // namespace

BandList plan_write(const StripeState& state, std::span<const Fragment> fragments) {
  assert(state.data_chunks > 0);
  assert(state.data_chunks + state.parity_chunks <= kMostMembers);
  const Stripe stripe{state};
  const MemberSet writable = ~state.unwritable;

  BandList bands;
  std::uint64_t row = 0;
  while (true) {
    // From `row` to `end` the set of written members does not change.
    MemberSet written = 0;
    std::uint64_t end = std::numeric_limits<std::uint64_t>::max();
    for (const Fragment& fragment : fragments) {
      assert(fragment.member < state.data_chunks);
      assert(fragment.row_count > 0);
      const std::uint64_t fragment_end = std::uint64_t{fragment.row} + fragment.row_count;
      if (fragment_end <= row) continue;
      if (fragment.row > row) {
        end = std::min<std::uint64_t>(end, fragment.row);
      } else {
        assert((written >> fragment.member & 1) == 0);
        written |= MemberSet{1} << fragment.member;
        end = std::min(end, fragment_end);
      }
    }
    if (end == std::numeric_limits<std::uint64_t>::max()) return bands;

    const auto row_count = static_cast<std::uint32_t>(end - row);
    const bool continues = !bands.empty() && bands.back().written == written &&
                           std::uint64_t{bands.back().row} + bands.back().row_count == row;
    if (continues) {
      bands.back().row_count += row_count;
    } else if (written != 0) {
      Band band{.row = static_cast<std::uint32_t>(row), .row_count = row_count, .written = written};
      band.writes = (written & writable) | stripe.parity;
      choose_method(stripe, band);
      bands.push_back(band);
    }
    row = end;
  }
}

}  // namespace sandbay::raid
