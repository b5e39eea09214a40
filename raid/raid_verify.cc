// Verify: reads all of a stripe and makes what does not match match again. Where it can be told
// which member is wrong, that one is computed from the others, and parity only where nobody can
// tell:
//
//   - with integrity, by what is known: members whose entries say what they gave are right, and if
//   no
//     more are left than redundancy can compute, those are wrong;
//   - with P and Q, by both: one wrong member explains both differences, or none does (H. Peter
//     Anvin, "The mathematics of RAID-6", section 4);
//   - with three mirrors or more, by the majority.
//
// Where the journal was lost parity may be older than the data, so there it tells nothing. While a
// member is missing, verify only reports: the missing member, or a parity that does not match, may
// be what shows later which member is wrong.
#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/core.h>

#include "raid/parity.h"
#include "raid/raid_set.h"

namespace sandbay::raid {

namespace {

// Segments of what was found wrong that are stored together.
constexpr std::size_t kMostSegments = 64;
// Of what is looked at before all of it is.
constexpr std::size_t kSampleBytes = 64;

// Which of several copies are right: those that most of them equal; or the first.
struct MirrorVote {
  unsigned chosen = 0;
  MemberSet wrong = 0;
  bool tied = false;  // Others are as many; the first of these are chosen.
};

MirrorVote vote(Lanes& copies, MemberSet there, bool majority) {
  MirrorVote result;
  int most = 0;
  for (MemberSet left = there; left != 0;) {
    const auto candidate = static_cast<unsigned>(std::countr_zero(left));
    MemberSet equal = 0;
    for (MemberSet rest = left; rest != 0; rest &= rest - 1) {
      const auto member = static_cast<unsigned>(std::countr_zero(rest));
      if (copies[member].equals(copies[candidate])) equal |= MemberSet{1} << member;
    }
    const int count = std::popcount(equal);
    result.tied = count == most || (result.tied && count < most);
    if (count > most) {
      most = count;
      result.chosen = candidate;
      result.wrong = there & ~equal;
    }
    left &= majority ? ~equal : 0;
  }
  return result;
}

}  // namespace

Task<RaidSet::Verified> RaidSet::verify_stripe(std::uint64_t stripe) {
  StripeEntry& entry = table_.enter(stripe);
  co_await table_.lock(entry);
  Verified verified{.error = Error::kNotReady};
  if (!offline_) {
    const std::size_t taken = co_await budget_.take(bytes_of(slice_rows()) * layout_.width() * 2);
    const ByteBudget::Share share(budget_, taken);
    verified.error = Error::kNone;
    for (std::uint32_t row = 0; row < layout_.strip_blocks() && verified.error == Error::kNone;) {
      const std::uint32_t rows = std::min(slice_rows(), layout_.strip_blocks() - row);
      const Verified slice = co_await verify_held(stripe, row, rows);
      verified.error = slice.error;
      verified.mismatch |= slice.mismatch;
      verified.left |= slice.left;
      row += rows;
    }
  }
  table_.unlock(entry);
  table_.leave(entry);
  co_return verified;
}

Task<RaidSet::Verified> RaidSet::verify_held(std::uint64_t stripe, std::uint32_t row,
                                             std::uint32_t rows) {
  const unsigned width = layout_.width();
  const std::size_t lane_bytes = bytes_of(rows);
  Verified verified;
  Lanes lanes(width);
  MemberSet readable = 0;
  for (unsigned attempt = 0;; ++attempt) {
    MemberSet failed = 0;
    MemberSet medium = 0;
    lanes.clear();
    readable = first_members(width) & ~drives_.unreadable(stripe);
    // With some away, what does not match cannot be told; they may come back.
    const bool suspect = drives_.redundancy_suspect(stripe);
    if (suspect && readable != first_members(width)) co_return Verified{.error = Error::kNotReady};
    co_await read_members(stripe, readable, row, rows, &lanes, &failed, &medium);
    // A drive may have failed while the others were read.
    if (suspect && drives_.unreadable(stripe) != 0) co_return Verified{.error = Error::kNotReady};
    if (failed == 0) break;
    if (layout_.redundancy() == 0) {
      tell_corruption(stripe, row, failed, "cannot be read, or is corrupt");
      verified.mismatch = true;
      co_return verified;
    }
    if (attempt > 1) co_return Verified{.error = Error::kMediumError};
    verified.error = co_await declare_lost(stripe, row, rows);
    if (suspect && drives_.unreadable(stripe) != 0) co_return Verified{.error = Error::kNotReady};
    // Lost, and the drive cannot take what stands for it. No redundancy is left to be compared.
    if (verified.error == Error::kMediumError) co_return Verified{.mismatch = true};
    if (verified.error != Error::kNone) co_return verified;
  }
  const MemberSet there = readable & ~drives_.unreadable(stripe);
  Lanes given(width);
  for (unsigned member = 0; member < width; ++member) given[member] = lanes[member].share();
  MemberSet wrong = 0;
  bool tied = false;
  if (layout_.mirrored()) {
    const bool valid = drives_.redundancy_valid(stripe);
    wrong = different_mirrors(&lanes, there, row, rows, valid ? &tied : nullptr);
  } else {
    wrong = co_await wrong_parities(&lanes, there, lane_bytes);
  }
  const bool complete = there == first_members(width);
  if (!complete && drives_.redundancy_valid(stripe)) {
    verified.mismatch = verified.left = wrong != 0;
    if (wrong != 0) report_mismatch(stripe, row, wrong, Mismatch::kLeft);
    co_return verified;
  }
  if (wrong != 0 && !layout_.mirrored() && complete && !drives_.redundancy_suspect(stripe)) {
    verified.error = co_await mend_located(stripe, row, rows, &given, &lanes, &verified.mismatch);
    if (verified.error != Error::kNone) co_return verified;
    wrong = co_await wrong_parities(&lanes, there, lane_bytes);
  }
  if (wrong != 0 && drives_.redundancy_valid(stripe) && !std::exchange(verified.mismatch, true)) {
    const bool outvoted = layout_.mirrored() && !tied;
    report_mismatch(stripe, row, wrong, outvoted ? Mismatch::kOutvoted : Mismatch::kUndecided);
  }
  co_return co_await store_verified(stripe, there, wrong, row, rows, &lanes, verified);
}

// The wrong members, from lanes, then the entries of all.
Task<RaidSet::Verified> RaidSet::store_verified(std::uint64_t stripe, MemberSet there,
                                                MemberSet wrong, std::uint32_t row,
                                                std::uint32_t rows, Lanes* lanes,
                                                Verified verified) {
  FrameVector<Segment> segments;
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (!has(wrong, member)) continue;
    counters_.corrections += verified.mismatch ? rows : 0;
    segments.push_back(
        {.member = member, .row = row, .row_count = rows, .data = (*lanes)[member].share()});
  }
  if (!segments.empty()) {
    verified.error = co_await store(stripe, segments, false, Origin::kVerify);
    mirror_repairs_ += layout_.mirrored() && journal_ == nullptr ? 1 : 0;
  }
  if (verified.error == Error::kNone) {
    verified.error = co_await verify_entries(stripe, there, row, rows, lanes);
  }
  co_return verified;
}

void RaidSet::report_mismatch(std::uint64_t stripe, std::uint32_t row, MemberSet wrong,
                              Mismatch outcome) {
  ++counters_.mismatches;
  const auto report = [this](unsigned role, std::string text) {
    drives_.tell({SetEvent::Kind::kMismatch, role, std::move(text)});
  };
  switch (outcome) {
    case Mismatch::kLeft:
      return report(kNoRole, fmt::format("stripe {}: its members do not match, and one is missing, "
                                         "so nothing was changed; verify again when all drives "
                                         "are back",
                                         stripe));
    case Mismatch::kUndecided:
      if (!layout_.mirrored()) {
        return report(kNoRole,
                      fmt::format("stripe {}: redundancy does not match the data", stripe));
      }
      return report(kNoRole, fmt::format("stripe {}: its copies differ in rows from {} and no "
                                         "content is in the majority; the first copy was kept",
                                         stripe, row));
    case Mismatch::kOutvoted:
      break;
  }
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (!has(wrong, member)) continue;
    report(layout_.role(stripe, member),
           fmt::format("rows from {} of stripe {} differed from the majority of the copies and "
                       "have been rewritten",
                       row, stripe));
  }
}

// Granule by granule, `given` is what the drives gave, and `lanes` the same with parity that fits.
// What can be told to be wrong is written anew and stands in `lanes` then, and with it the parity
// that the drives have.
Task<Error> RaidSet::mend_located(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows,
                                  Lanes* given, Lanes* lanes, bool* found) {
  const unsigned width = layout_.width();
  Lanes right(width);
  FrameVector<Segment> segments;
  bool any = false;
  for (std::uint32_t done = 0; done < rows;) {
    const std::uint32_t count = std::min(granule_ - (row + done) % granule_, rows - done);
    Lanes part(width);
    Lanes fitting(width);
    bool differs = false;
    for (unsigned member = 0; member < width; ++member) {
      part[member] = (*given)[member].share(bytes_of(done), bytes_of(count));
      fitting[member] = (*lanes)[member].share(bytes_of(done), bytes_of(count));
      differs |= !part[member].equals(fitting[member]);
    }
    MemberSet wrong = 0;
    if (differs) wrong = co_await locate(stripe, row + done, count, &part, &fitting);
    if (wrong != 0) {
      any = true;
      Lanes computed(width);
      for (unsigned member = 0; member < width; ++member) {
        if (!has(wrong, member)) computed[member] = part[member].share();
      }
      co_await recover_from(first_members(width) & ~wrong, wrong, count, &computed);
      for (unsigned member = 0; member < width; ++member) {
        if (!has(wrong, member) || computed[member].equals(part[member])) continue;
        counters_.corrections += count;
        segments.push_back({.member = member,
                            .row = row + done,
                            .row_count = count,
                            .data = computed[member].share()});
        tell_located(stripe, member, row + done);
        part[member] = std::move(computed[member]);
      }
    }
    for (unsigned member = 0; member < width; ++member) {
      right[member].append(std::move(part[member]));
    }
    done += count;
    if (segments.empty() || (segments.size() < kMostSegments && done < rows)) continue;
    const Error error = co_await store(stripe, segments, false, Origin::kVerify);
    if (error != Error::kNone) co_return error;
    segments.clear();
  }
  for (unsigned member = 0; member < width; ++member) (*lanes)[member] = std::move(right[member]);
  *found = any;
  if (any) ++counters_.mismatches;
  co_return Error::kNone;
}

void RaidSet::tell_located(std::uint64_t stripe, unsigned member, std::uint32_t row) {
  const unsigned role = layout_.role(stripe, member);
  drives_.tell({SetEvent::Kind::kMismatch, role,
                fmt::format("what rows from {} of stripe {} gave does not match the other members, "
                            "which match one another, and has been computed from them",
                            row, stripe)});
}

// The members that are wrong, with some data among them, if that can be told; else none. `part`
// does not match, and `fitting` has parity that does.
Task<MemberSet> RaidSet::locate(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows,
                                Lanes* part, Lanes* fitting) {
  const MemberSet data = first_members(layout_.data_chunks());
  if (integrity_ != nullptr) {
    MemberSet unknown = 0;
    for (unsigned member = 0; member < layout_.width(); ++member) {
      if (static_cast<unsigned>(std::popcount(unknown)) > layout_.redundancy()) break;
      const Integrity::Checked checked =
          co_await integrity_->check(stripe, member, row, rows, &(*part)[member]);
      if (!checked.proven()) unknown |= MemberSet{1} << member;
    }
    const auto count = static_cast<unsigned>(std::popcount(unknown));
    if (count > 0 && count <= layout_.redundancy()) co_return (unknown & data) != 0 ? unknown : 0;
  }
  if (layout_.parity_chunks() < 2) co_return 0;
  co_return co_await locate_by_parities(rows, part, fitting);
}

// What P and Q lack, S and T: of a data member j alone T is g^j S.
Task<MemberSet> RaidSet::locate_by_parities(std::uint32_t rows, Lanes* part, Lanes* fitting) {
  const unsigned data = layout_.data_chunks();
  const std::size_t byte_count = bytes_of(rows);
  BufferList memory = co_await scratch_.allocate(byte_count * 3);
  Lanes lanes(7);  // P and Q as given, as they should be, and S, T and what is tried.
  lanes[0] = (*part)[data].share();
  lanes[1] = (*part)[data + 1].share();
  lanes[2] = (*fitting)[data].share();
  lanes[3] = (*fitting)[data + 1].share();
  for (unsigned lane = 4; lane < 7; ++lane) lanes[lane] = memory.take_front(byte_count);
  bool of_p = false;
  bool of_q = false;
  for (LaneWalk walk(lanes, byte_count); walk.next();) {
    xor_of(walk.at(0), walk.at(2), walk.at(4), walk.length());
    xor_of(walk.at(1), walk.at(3), walk.at(5), walk.length());
    of_p |= !all_zero(std::span(walk.at(4), walk.length()));
    of_q |= !all_zero(std::span(walk.at(5), walk.length()));
  }
  if (!of_p || !of_q) co_return 0;  // Only a parity is wrong.
  for (unsigned member = 0; member < data; ++member) {
    bool explains = true;
    LaneWalk walk(lanes, byte_count);
    while (explains && walk.next()) {
      for (std::size_t at = 0; explains && at < walk.length();) {
        // A little first: mostly it is not this one.
        const std::size_t length =
            at == 0 ? std::min(kSampleBytes, walk.length()) : walk.length() - at;
        std::byte* tried = walk.at(6) + at;
        std::copy_n(walk.at(5) + at, length, tried);
        add_to_q(member, walk.at(4) + at, tried, length);
        explains = all_zero(std::span(tried, length));
        at += length;
      }
    }
    if (explains) co_return MemberSet{1} << member;
  }
  co_return 0;
}

// The mirrors that differ from what most of them have, granule by granule; their lanes become that.
// With `tied` null the first is right: where redundancy is not valid reads go to that one as long
// as the others cannot be made like it, and what a host has read stays.
MemberSet RaidSet::different_mirrors(Lanes* lanes, MemberSet there, std::uint32_t row,
                                     std::uint32_t rows, bool* tied) const {
  if (vote(*lanes, there, false).wrong == 0) return 0;
  MemberSet wrong = 0;
  BufferList right;
  for (std::uint32_t done = 0; done < rows;) {
    const std::uint32_t count = std::min(granule_ - (row + done) % granule_, rows - done);
    Lanes part(layout_.width());
    for (unsigned member = 0; member < layout_.width(); ++member) {
      if (has(there, member))
        part[member] = (*lanes)[member].share(bytes_of(done), bytes_of(count));
    }
    const MirrorVote here = vote(part, there, tied != nullptr);
    wrong |= here.wrong;
    if (tied != nullptr) *tied |= here.tied;
    right.append(std::move(part[here.chosen]));
    done += count;
  }
  for (unsigned member = 0; member < layout_.width(); ++member) {
    if (has(wrong, member)) (*lanes)[member] = right.share();
  }
  return wrong;
}

// The parities that do not fit the data; their lanes become those that do. With data missing there
// is nothing to compare, unless a second parity tells.
Task<MemberSet> RaidSet::wrong_parities(Lanes* lanes, MemberSet there, std::size_t lane_bytes) {
  const unsigned data = layout_.data_chunks();
  const MemberSet parities = first_members(layout_.width()) & ~first_members(data);
  const auto missing =
      static_cast<unsigned>(std::popcount(first_members(layout_.width()) & ~there));
  if (missing >= layout_.parity_chunks()) co_return 0;
  if ((first_members(data) & ~there) != 0) {
    co_await recover_from(there, first_members(data) & ~there,
                          static_cast<std::uint32_t>(lane_bytes / geometry_.block_bytes), lanes);
  }
  Lanes fresh(layout_.width());
  for (unsigned member = 0; member < data; ++member) fresh[member] = (*lanes)[member].share();
  co_await compute_parities(&fresh, lane_bytes);
  MemberSet wrong = 0;
  for (unsigned member = data; member < layout_.width(); ++member) {
    if (!has(parities & there, member) || fresh[member].equals((*lanes)[member])) continue;
    wrong |= MemberSet{1} << member;
    (*lanes)[member] = std::move(fresh[member]);
  }
  co_return wrong;
}

}  // namespace sandbay::raid
