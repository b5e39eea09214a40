// Plans of partial stripe writes: carried out on bytes, and compared with every other choice of
// members to read.
//
// A stripe of a few bytes a row has members that cannot be read (their arrays hold nonsense) and
// members that must not be written. The plan is executed literally, with the functions of
// raid/parity.h; what comes out is compared with parity by its definition. That no plan can do with
// fewer reads is shown by trying all smaller sets of readable members: whether they determine the
// new parity is a matter of ranks of matrices over GF(2^8).
#include "raid/stripe_plan.h"

#include <rapidcheck.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <random>

#include "raid/parity.h"
#include "reference_parity.h"

namespace sandbay::raid::stripe_plan_test {
namespace {

constexpr std::uint32_t kRows = 12;
constexpr std::size_t kRowBytes = 5;

using Bytes = std::vector<std::byte>;

bool in(MemberSet set, unsigned member) { return (set >> member & 1) != 0; }
unsigned size(MemberSet set) { return static_cast<unsigned>(std::popcount(set)); }
MemberSet first_members(unsigned count) { return (MemberSet{1} << count) - 1; }

MemberSet readable_in(const StripeState& state) {
  MemberSet readable = first_members(state.data_chunks + state.parity_chunks);
  readable &= ~state.unreadable & ~state.unwritable;
  return state.parity_unreliable ? readable & first_members(state.data_chunks) : readable;
}

MemberSet parities_with_drive(const StripeState& state) {
  const MemberSet all = first_members(state.data_chunks + state.parity_chunks);
  return all & ~first_members(state.data_chunks) & ~state.unwritable;
}

// A stripe on drives: `truth` is what the members hold or would hold, `disk` what a reader gets.
struct World {
  StripeState state;
  std::vector<Bytes> truth;  // Data only.
  std::vector<Bytes> disk;   // Data and parity.
  std::vector<Bytes> fresh;  // New data by member, used where fragments say so.
  std::vector<Bytes> before;

  World(const StripeState& given, std::mt19937_64& random) : state{given} {
    const auto noise = [&] {
      Bytes bytes(kRows * kRowBytes);
      for (std::byte& value : bytes) value = static_cast<std::byte>(random());
      return bytes;
    };
    for (unsigned i = 0; i < state.data_chunks; ++i) truth.push_back(noise());
    for (unsigned i = 0; i < state.data_chunks; ++i) fresh.push_back(noise());
    disk = truth;
    for (unsigned parity = 0; parity < state.parity_chunks; ++parity) {
      disk.push_back(reference::parity_of(truth, parity));
    }
    const MemberSet readable = readable_in(state);
    for (unsigned i = 0; i < disk.size(); ++i) {
      if (!in(readable, i)) disk[i] = noise();
    }
    before = disk;
  }

  void execute(const Band& band);
  void check(const BandList& bands, std::span<const Fragment> fragments);

 private:
  Bytes rows(const Bytes& bytes, const Band& band) const {
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(band.row * kRowBytes);
    return {first, first + static_cast<std::ptrdiff_t>(band.row_count * kRowBytes)};
  }
};

// The old content of the data members, recovered where it was not read; nothing where unknown.
void recover_all(const StripeState& state, const Band& band, std::vector<Bytes>& old) {
  std::vector<std::byte*> pointers;
  for (unsigned i = 0; i < old.size(); ++i) {
    const bool given = i < state.data_chunks || in(band.reads, i);
    pointers.push_back(given ? old[i].data() : nullptr);
  }
  const MemberSet missing = first_members(state.data_chunks) & ~band.reads;
  recover(state.data_chunks, state.parity_chunks, pointers, missing, old[0].size());
}

void World::execute(const Band& band) {
  const std::size_t bytes = band.row_count * kRowBytes;
  RC_ASSERT((band.reads & ~readable_in(state)) == 0u);
  RC_ASSERT((band.writes & state.unwritable) == 0u);

  const unsigned k = state.data_chunks;
  std::vector<Bytes> old(disk.size(), Bytes(bytes, std::byte{0xee}));
  for (unsigned i = 0; i < disk.size(); ++i) {
    if (in(band.reads, i)) old[i] = rows(disk[i], band);
  }
  std::vector<Bytes> result = old;

  if (band.method == Method::kReadModifyWrite) {
    for (unsigned i = 0; i < k; ++i) {
      if (!in(band.written, i)) continue;
      Bytes delta(bytes);
      xor_of(old[i].data(), rows(fresh[i], band).data(), delta.data(), bytes);
      if (in(band.writes, k)) add_to_p(delta.data(), result[k].data(), bytes);
      if (in(band.writes, k + 1)) add_to_q(i, delta.data(), result[k + 1].data(), bytes);
      result[i] = rows(fresh[i], band);
    }
  } else {
    if (band.method == Method::kRecover) recover_all(state, band, old);
    std::vector<const std::byte*> chunks;
    for (unsigned i = 0; i < k; ++i) {
      result[i] = in(band.written, i) ? rows(fresh[i], band) : old[i];
      chunks.push_back(result[i].data());
    }
    if (in(band.writes, k)) generate_p(chunks, result[k].data(), bytes);
    if (in(band.writes, k + 1)) generate_q(chunks, result[k + 1].data(), bytes);
  }
  for (unsigned i = 0; i < disk.size(); ++i) {
    if (!in(band.writes, i)) continue;
    std::ranges::copy(result[i], disk[i].begin() + band.row * kRowBytes);
  }
}

// The bands are the rows of the fragments, and the drives hold what they must.
void World::check(const BandList& bands, std::span<const Fragment> fragments) {
  std::vector<MemberSet> written(kRows);
  for (const Fragment& each : fragments) {
    for (std::uint32_t row = each.row; row < each.row + each.row_count; ++row) {
      written[row] |= MemberSet{1} << each.member;
    }
  }
  std::vector<MemberSet> planned(kRows);
  const Band* last = nullptr;
  for (const Band& band : bands) {
    RC_ASSERT(band.row_count > 0u);
    if (last != nullptr) {
      RC_ASSERT(band.row >= last->row + last->row_count);
      const bool adjacent = band.row == last->row + last->row_count;
      RC_ASSERT(!(adjacent && band.written == last->written));
    }
    const MemberSet writable = ~state.unwritable;
    RC_ASSERT(band.writes == ((band.written & writable) | parities_with_drive(state)));
    for (std::uint32_t row = 0; row < band.row_count; ++row) {
      planned.at(band.row + row) = band.written;
    }
    last = &band;
  }
  RC_ASSERT(planned == written);

  std::vector<Bytes> after = truth;
  for (std::size_t at = 0; at < kRows * kRowBytes; ++at) {
    for (unsigned i = 0; i < state.data_chunks; ++i) {
      if (in(written[at / kRowBytes], i)) after[i][at] = fresh[i][at];
    }
  }
  const std::vector<Bytes> data = after;
  for (unsigned parity = 0; parity < state.parity_chunks; ++parity) {
    after.push_back(reference::parity_of(data, parity));
  }
  for (unsigned i = 0; i < disk.size(); ++i) {
    const bool parity = i >= state.data_chunks;
    for (std::size_t at = 0; at < kRows * kRowBytes; ++at) {
      const MemberSet here = written[at / kRowBytes];
      const bool changed = !in(state.unwritable, i) && (parity ? here != 0 : in(here, i));
      RC_ASSERT(disk[i][at] == (changed ? after[i][at] : before[i][at]));
    }
  }
}

// Fragments that cover random runs of rows of random members, in any order.
std::vector<Fragment> random_fragments(unsigned data_chunks, std::mt19937_64& random) {
  std::vector<Fragment> fragments;
  const unsigned style = static_cast<unsigned>(random() % 3);
  if (style == 0) {  // One run of blocks.
    const auto blocks = static_cast<std::uint32_t>(data_chunks * kRows);
    auto at = static_cast<std::uint32_t>(random() % blocks);
    auto left = static_cast<std::uint32_t>(1 + random() % (blocks - at));
    while (left > 0) {
      const std::uint32_t count = std::min(left, kRows - at % kRows);
      fragments.push_back({at / kRows, at % kRows, count});
      at += count;
      left -= count;
    }
  } else {
    for (unsigned member = 0; member < data_chunks; ++member) {
      if (random() % 4 == 0) continue;
      auto row = static_cast<std::uint32_t>(style == 1 ? random() % kRows : random() % 3);
      while (row < kRows) {
        const auto count = static_cast<std::uint32_t>(1 + random() % (kRows - row));
        fragments.push_back({member, row, count});
        row += count + static_cast<std::uint32_t>(random() % 4);  // Sometimes touching.
      }
    }
  }
  std::ranges::shuffle(fragments, random);
  return fragments;
}

// A state that redundancy makes up for.
StripeState random_state(std::mt19937_64& random, unsigned most_chunks) {
  StripeState state{.data_chunks = 1 + static_cast<unsigned>(random() % most_chunks),
                    .parity_chunks = static_cast<unsigned>(random() % 3)};
  state.parity_unreliable = state.parity_chunks > 0 && random() % 5 == 0;
  const unsigned members = state.data_chunks + state.parity_chunks;
  for (unsigned i = 0; i < state.parity_chunks; ++i) {
    auto lost = static_cast<unsigned>(random() % members);
    if (state.parity_unreliable) lost = state.data_chunks + lost % state.parity_chunks;
    const unsigned how = static_cast<unsigned>(random() % 4);
    if (how == 0) continue;
    if (how != 1) state.unreadable |= MemberSet{1} << lost;
    if (how != 2) state.unwritable |= MemberSet{1} << lost;
  }
  return state;
}

TEST_CASE("A plan carried out leaves data and parity right", "[raid][stripe_plan]") {
  REQUIRE(rc::check("plans on bytes", [] {
    std::mt19937_64 random{*rc::gen::arbitrary<std::uint64_t>()};
    for (unsigned round = 0; round < 50; ++round) {
      World world{random_state(random, 8), random};
      const auto fragments = random_fragments(world.state.data_chunks, random);
      const BandList bands = plan_write(world.state, fragments);
      for (const Band& band : bands) world.execute(band);
      world.check(bands, fragments);
    }
  }));
}

// Rows of coefficients over the old data of the k data members.
using Row = std::vector<unsigned>;

unsigned inverse_of(unsigned value) {
  for (unsigned candidate = 1; candidate < 256; ++candidate) {
    if (reference::multiply(value, candidate) == 1) return candidate;
  }
  return 0;
}

unsigned rank_of(std::vector<Row> rows, unsigned columns) {
  unsigned rank = 0;
  for (unsigned column = 0; column < columns && rank < rows.size(); ++column) {
    unsigned pivot = rank;
    while (pivot < rows.size() && rows[pivot][column] == 0) ++pivot;
    if (pivot == rows.size()) continue;
    std::swap(rows[pivot], rows[rank]);
    const unsigned scale = inverse_of(rows[rank][column]);
    for (unsigned row = rank + 1; row < rows.size(); ++row) {
      const unsigned factor = reference::multiply(rows[row][column], scale);
      if (factor == 0) continue;
      for (unsigned at = column; at < columns; ++at) {
        rows[row][at] ^= reference::multiply(factor, rows[rank][at]);
      }
    }
    ++rank;
  }
  return rank;
}

// Whether the old content of `reads` and the new data of `written` determine the new parity.
bool suffices(const StripeState& state, MemberSet written, MemberSet reads) {
  const unsigned k = state.data_chunks;
  std::vector<Row> rows;
  for (unsigned i = 0; i < k + state.parity_chunks; ++i) {
    if (!in(reads, i)) continue;
    Row row(k);
    for (unsigned j = 0; j < k; ++j) {
      row[j] = i < k ? (i == j ? 1 : 0) : reference::coefficient(i - k, j);
    }
    rows.push_back(row);
  }
  const unsigned known = rank_of(rows, k);
  for (unsigned parity = 0; parity < state.parity_chunks; ++parity) {
    if (!in(parities_with_drive(state), k + parity)) continue;
    Row needed(k);
    for (unsigned j = 0; j < k; ++j) {
      if (!in(written, j)) needed[j] = reference::coefficient(parity, j);
    }
    rows.push_back(needed);
  }
  return rank_of(rows, k) == known;
}

bool any_smaller_set_suffices(const StripeState& state, MemberSet written, unsigned count) {
  const MemberSet readable = readable_in(state);
  for (MemberSet reads = readable;; reads = (reads - 1) & readable) {
    if (size(reads) == count - 1 && suffices(state, written, reads)) return true;
    if (reads == 0) return false;
  }
}

// Whether the plan for these written members is possible, and minimal; or, if nothing would
// suffice, reads all that is readable.
bool best(const StripeState& state, MemberSet written) {
  std::vector<Fragment> fragments;
  for (unsigned i = 0; i < state.data_chunks; ++i) {
    if (in(written, i)) fragments.push_back({i, 3, 4});
  }
  const BandList bands = plan_write(state, fragments);
  if (bands.size() != 1 || bands[0].written != written) return false;
  if (bands[0].row != 3 || bands[0].row_count != 4) return false;

  const MemberSet reads = bands[0].reads;
  const MemberSet readable = readable_in(state);
  if ((reads & ~readable) != 0) return false;
  if (!suffices(state, written, readable)) {
    return bands[0].method == Method::kRecover && reads == readable;
  }
  return suffices(state, written, reads) &&
         (reads == 0 || !any_smaller_set_suffices(state, written, size(reads)));
}

TEST_CASE("No plan could do with fewer reads: every state of small stripes",
          "[raid][stripe_plan]") {
  for (unsigned k = 1; k <= 4; ++k) {
    for (unsigned p = 0; p <= 2; ++p) {
      const MemberSet all = first_members(k + p);
      for (MemberSet unreadable = 0; unreadable <= all; ++unreadable) {
        for (MemberSet unwritable = unreadable;; unwritable = (unwritable - 1) & unreadable) {
          for (const bool unreliable : {false, true}) {
            const StripeState state{k, p, unreadable, unwritable, unreliable};
            for (MemberSet written = 1; written <= first_members(k); ++written) {
              if (best(state, written)) continue;
              FAIL("k " << k << " p " << p << " unreadable " << unreadable << " unwritable "
                        << unwritable << " unreliable " << unreliable << " written " << written);
            }
          }
          if (unwritable == 0) break;
        }
      }
    }
  }
}

TEST_CASE("No plan could do with fewer reads: wider stripes", "[raid][stripe_plan]") {
  REQUIRE(rc::check("minimal reads", [] {
    std::mt19937_64 random{*rc::gen::arbitrary<std::uint64_t>()};
    for (unsigned round = 0; round < 20; ++round) {
      const StripeState state = random_state(random, 9);
      const MemberSet written = 1 + random() % first_members(state.data_chunks);
      RC_ASSERT(best(state, written));
    }
  }));
}

Band only_band(const StripeState& state, std::span<const Fragment> fragments) {
  const BandList bands = plan_write(state, fragments);
  REQUIRE(bands.size() == 1);
  return bands[0];
}

TEST_CASE("The small writes of the textbook", "[raid][stripe_plan]") {
  const Fragment one[] = {{2, 5, 1}};
  SECTION("RAID 5: two reads and two writes") {
    const Band band = only_band({.data_chunks = 7, .parity_chunks = 1}, one);
    REQUIRE(band == Band{5, 1, 1 << 2, Method::kReadModifyWrite, 1 << 2 | 1 << 7, 1 << 2 | 1 << 7});
  }
  SECTION("RAID 6: three and three") {
    const Band band = only_band({.data_chunks = 6, .parity_chunks = 2}, one);
    REQUIRE(band.method == Method::kReadModifyWrite);
    REQUIRE(size(band.reads) == 3);
    REQUIRE(size(band.writes) == 3);
  }
  SECTION("as many reads either way: the drives that are not written are left alone") {
    const Band band = only_band({.data_chunks = 3, .parity_chunks = 1}, one);
    REQUIRE(band.method == Method::kReadModifyWrite);
    REQUIRE(band.reads == (1 << 2 | 1 << 3));
  }
  SECTION("few drives: reconstruct-write reads less") {
    const Fragment first[] = {{0, 0, 8}};
    const Band band = only_band({.data_chunks = 2, .parity_chunks = 1}, first);
    REQUIRE(band == Band{0, 8, 1, Method::kReconstructWrite, 1 << 1, 1 | 1 << 2});
  }
  SECTION("parity that is not relied on is computed anew") {
    const Band band =
        only_band({.data_chunks = 7, .parity_chunks = 1, .parity_unreliable = true}, one);
    REQUIRE(band.method == Method::kReconstructWrite);
    REQUIRE(band.reads == (0x7f & ~(1 << 2)));
  }
  SECTION("no parity, and no drive for parity: nothing is read") {
    REQUIRE(only_band({.data_chunks = 4}, one) == Band{5, 1, 4, Method::kDataOnly, 0, 4});
    const StripeState dead{.data_chunks = 4, .parity_chunks = 1, .unwritable = 1 << 4};
    REQUIRE(only_band(dead, one) == Band{5, 1, 4, Method::kDataOnly, 0, 4});
  }
}

TEST_CASE("Small writes of a degraded stripe", "[raid][stripe_plan]") {
  const Fragment one[] = {{2, 5, 1}};
  SECTION("a full stripe reads nothing, also degraded and with parity unknown") {
    const Fragment all[] = {{0, 0, 8}, {1, 0, 8}, {2, 0, 8}};
    for (const MemberSet lost : {0, 1, 2, 8, 16, 3, 9}) {
      const StripeState state{3, 2, lost, lost, true};
      const Band band = only_band(state, all);
      REQUIRE(band.method == Method::kFullStripe);
      REQUIRE(band.reads == 0);
      REQUIRE(band.writes == (0x1f & ~lost));
    }
  }
  SECTION("degraded, the lost member not written: as ever") {
    const StripeState state{.data_chunks = 4, .parity_chunks = 1, .unwritable = 1};
    const Band band = only_band(state, one);
    REQUIRE(band.method == Method::kReadModifyWrite);
    REQUIRE(band.reads == (1 << 2 | 1 << 4));
  }
  SECTION("degraded, the lost member written: the others are read, parity keeps the data") {
    const StripeState state{.data_chunks = 4, .parity_chunks = 1, .unwritable = 1 << 2};
    const Band band = only_band(state, one);
    REQUIRE(band == Band{5, 1, 4, Method::kReconstructWrite, 0b01011, 1 << 4});
  }
  SECTION("one lost member written and one not: recovered") {
    const StripeState state{.data_chunks = 4, .parity_chunks = 2, .unwritable = 1 << 2 | 1};
    const Band band = only_band(state, one);
    REQUIRE(band == Band{5, 1, 4, Method::kRecover, 0b111010, 0b110000});
  }
  SECTION("RAID 6, one member lost, all the others written: recovering reads one less") {
    const Fragment others[] = {{1, 0, 2}, {2, 0, 2}, {3, 0, 2}};
    const StripeState state{.data_chunks = 4, .parity_chunks = 2, .unwritable = 1};
    const Band band = only_band(state, others);
    REQUIRE(band == Band{0, 2, 0b1110, Method::kRecover, 0b011110, 0b111110});
  }
  SECTION("a rebuilding P is computed, and through Q where a data member is lost") {
    const StripeState state{4, 2, 1 | 1 << 4, 1, false};
    const Band band = only_band(state, one);
    REQUIRE(band == Band{5, 1, 4, Method::kRecover, 0b101110, 0b110100});
  }
  SECTION("more is lost than parity makes up for: all that is readable") {
    const StripeState state{4, 1, 0b10001, 0, false};
    const Band band = only_band(state, one);
    REQUIRE(band == Band{5, 1, 4, Method::kRecover, 0b01110, 0b10100});
  }
}

TEST_CASE("Doubted parity changes by the difference, or not at all", "[raid][stripe_plan][N3]") {
  // Member 0 is missing, and its drive may come back.
  const StripeState state{
      .data_chunks = 4, .parity_chunks = 2, .unreadable = 1, .parity_doubted = true, .missing = 1};
  SECTION("beside missing data by the difference, whatever that reads") {
    const Fragment others[] = {{1, 0, 2}, {2, 0, 2}, {3, 0, 2}};
    REQUIRE(only_band(state, others) ==
            Band{0, 2, 0b1110, Method::kReadModifyWrite, 0b111110, 0b111110});
  }
  SECTION("a write of the missing data computes it anew") {
    const Fragment missing[] = {{0, 0, 2}, {1, 0, 2}};
    REQUIRE(only_band(state, missing) ==
            Band{0, 2, 0b0011, Method::kReconstructWrite, 0b1100, 0b110011});
  }
  SECTION("with a parity that cannot be read, only data is written") {
    StripeState worse = state;
    worse.unreadable |= 1 << 4;
    const Fragment one[] = {{2, 0, 2}};
    REQUIRE(only_band(worse, one) == Band{0, 2, 0b0100, Method::kDataOnly, 0, 0b0100});
  }
  SECTION("data that its drive cannot read is rewritten alone") {
    StripeState worse = state;
    worse.unreadable |= 4;
    const Fragment one[] = {{2, 0, 2}};
    REQUIRE(only_band(worse, one) == Band{0, 2, 0b0100, Method::kDataOnly, 0, 0b0100});
  }
  SECTION("a write of some missing data beside other missing data has to compute") {
    StripeState worse = state;
    worse.unreadable |= 2;
    worse.missing |= 2;
    const Fragment one[] = {{0, 0, 2}};
    REQUIRE(only_band(worse, one).method == Method::kRecover);
  }
}

TEST_CASE("Fragments are cut where the set of written members changes", "[raid][stripe_plan]") {
  const StripeState state{.data_chunks = 4, .parity_chunks = 1};
  SECTION("a run of blocks over two chunks makes three bands") {
    const Fragment run[] = {{1, 5, 3}, {2, 0, 7}};
    const BandList bands = plan_write(state, run);
    REQUIRE(bands.size() == 3);
    REQUIRE((bands[0].row == 0 && bands[0].row_count == 5 && bands[0].written == 0b0100));
    REQUIRE((bands[1].row == 5 && bands[1].row_count == 2 && bands[1].written == 0b0110));
    REQUIRE((bands[2].row == 7 && bands[2].row_count == 1 && bands[2].written == 0b0010));
  }
  SECTION("pieces of one member that touch are one band; a gap makes two") {
    const Fragment pieces[] = {{0, 4, 2}, {0, 0, 4}, {0, 8, 1}};
    const BandList bands = plan_write(state, pieces);
    REQUIRE(bands.size() == 2);
    REQUIRE((bands[0].row == 0 && bands[0].row_count == 6));
    REQUIRE((bands[1].row == 8 && bands[1].row_count == 1));
  }
  SECTION("nothing to write is nothing to do") { REQUIRE(plan_write(state, {}).empty()); }
  SECTION("many bands, and copies of the list") {
    std::vector<Fragment> pieces;
    for (std::uint32_t row = 0; row < 40; row += 2) pieces.push_back({row / 2 % 4, row, 1});
    const BandList bands = plan_write(state, pieces);
    const BandList copy = bands;
    REQUIRE(copy.size() == 20);
    for (std::uint32_t i = 0; i < 20; ++i) {
      REQUIRE((copy[i].row == 2 * i && copy[i].written == MemberSet{1} << i % 4));
    }
    REQUIRE(std::equal(bands.begin(), bands.end(), copy.begin(), copy.end()));
  }
  SECTION("rows at the end of the number range") {
    const Fragment last[] = {{0, 0xffffffff, 1}};
    const BandList bands = plan_write(state, last);
    REQUIRE((bands.size() == 1 && bands[0].row == 0xffffffff && bands[0].row_count == 1));
  }
  SECTION("the widest stripe") {
    const Fragment last[] = {{61, 0, 1}};
    const BandList bands = plan_write({.data_chunks = 62, .parity_chunks = 2}, last);
    REQUIRE(bands[0].reads == MemberSet{0b111} << 61);
  }
}

}  // namespace
}  // namespace sandbay::raid::stripe_plan_test
