// What a write of part of a stripe reads and writes. Pure: fragments in, bands out; no I/O.
//
// A band is a run of rows in which the same data members are written. Rows are independent in
// parity, so each band gets the cheapest method that its own rows and the state of the drives
// allow, counted in members read:
//
//   1. kDataOnly         no parity, or no drive to write it to: nothing to compute; or parity that
//   is
//                        doubted and cannot be changed by the difference.
//   2. kFullStripe       every data member is written: parity from the new data alone.
//   3. kReadModifyWrite  reads the old data of the written members and the old parities; parity
//                        changes by the difference. Needs all of those readable, but no other
//                        member: a failed drive that is not written does not matter.
//   4. kReconstructWrite reads the data members that are not written; parity is computed anew.
//                        Needs all of those readable; what is written, and parity, may be lost.
//   5. kRecover          reads just enough members, data before P before Q, to recover the data
//                        members that are neither written nor readable; parity is computed anew.
//                        For when 3 and 4 are impossible, and when 3 would read more: RAID 6 with
//                        a lost data member, all the others written.
//
// Where 3 reads as many members as 4 or 5, 3 is taken: it leaves the drives alone that are not
// written. The number of bytes is the same then, since all members of a band have the same rows.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/frame_vector.h"

namespace sandbay::raid {

using MemberSet = std::uint64_t;  // Bit i: member i. Data 0 to k-1, P = k, Q = k+1.
constexpr bool has(MemberSet set, unsigned member) { return (set >> member & 1) != 0; }
constexpr MemberSet first_members(unsigned count) {
  return count >= 64 ? ~MemberSet{0} : (MemberSet{1} << count) - 1;
}

// New data for a run of rows of one data member.
struct Fragment {
  std::uint32_t member = 0;
  std::uint32_t row = 0;
  std::uint32_t row_count = 0;  // At least 1. Fragments of one member do not overlap.
};

enum class Method : std::uint8_t {
  kDataOnly,
  kFullStripe,
  kReadModifyWrite,
  kReconstructWrite,
  kRecover
};

struct Band {
  std::uint32_t row = 0;
  std::uint32_t row_count = 0;
  MemberSet written = 0;  // Data members with new data in every row of the band.
  Method method = Method::kDataOnly;
  MemberSet reads = 0;   // Members whose old content is needed, in every row of the band.
  MemberSet writes = 0;  // Members to write: the written ones and the parities that have a drive.
  bool operator==(const Band&) const = default;
};

struct StripeState {
  unsigned data_chunks = 1;
  unsigned parity_chunks = 0;
  MemberSet unreadable = 0;        // Failed, stale, known to be bad.
  MemberSet unwritable = 0;        // No drive to write to; never read either.
  bool parity_unreliable = false;  // Parity is not known to fit the data: it is not read.
  // Nor is it computed anew while data is unreadable that may be read again: 3 changes it, so that
  // it fits as well as before, or 2 or 4 make it fit.
  bool parity_doubted = false;
  MemberSet missing = 0;  // With that: no drive has what counts, if it is written alone.
};

// The bands of a write, in the order of their rows. The bands of one run of blocks, at most three
// in a stripe, need no allocation; more spill to the heap.
class BandList {
 public:
  const Band* begin() const noexcept { return spilled_.empty() ? few_.data() : spilled_.data(); }
  const Band* end() const noexcept { return begin() + count_; }
  std::size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }
  const Band& operator[](std::size_t index) const {
    assert(index < count_);
    return begin()[index];
  }

  void push_back(const Band& band) {
    if (count_ < few_.size()) {
      few_[count_] = band;
    } else {
      if (spilled_.empty()) spilled_.assign(few_.begin(), few_.end());
      spilled_.push_back(band);
    }
    ++count_;
  }

  // The last band, to lengthen it.
  Band& back() {
    assert(count_ > 0);
    return spilled_.empty() ? few_[count_ - 1] : spilled_.back();
  }

 private:
  std::size_t count_ = 0;
  std::array<Band, 3> few_{};
  FrameVector<Band> spilled_;  // All of them, once they are more than a few.
};

// With more members unreadable than parity makes up for, a band may end up as kRecover with all
// readable members in `reads`, fewer than data_chunks: the data members that are neither written
// nor readable are lost, and the caller decides what becomes of them. A written member without a
// drive lives on in parity; where parity has no drive either (kDataOnly), its new data goes
// nowhere, and the caller must have refused the write. Takes time in the product of fragments and
// bands.
BandList plan_write(const StripeState& state, std::span<const Fragment> fragments);

}  // namespace sandbay::raid
