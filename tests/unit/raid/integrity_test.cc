// Integrity of RAID sets: the bytes of entries and blocks; every kind of corruption at every level,
// found by a read or by verify; what is beyond redundancy; wrong and damaged entries; sets that
// lack a drive, are rebuilt, or lose their power.
#include <catch2/catch.hpp>
#include <ctime>
#include <functional>

#include "integrity_rig.h"
#include "tests/unit/random_fill.h"

namespace sandbay::raid::integrity_test {
namespace {

using raidtest::Corruption;
using raidtest::CorruptionRound;
using raidtest::DriveState;
using raidtest::IntegrityRig;
using raidtest::LyingDrive;
using raidtest::RigShape;
using raidtest::Tally;

const std::vector<RigShape> kShapes = {
    {.level = Level::kJbod, .drives = 1},
    {.level = Level::kConcatenation, .drives = 3},
    {.level = Level::kRaid0, .drives = 4},
    {.level = Level::kRaid1, .drives = 2},
    {.level = Level::kRaid1, .drives = 3},
    {.level = Level::kRaid5, .drives = 3},
    {.level = Level::kRaid5, .drives = 5, .strip_bytes = 4096},
    {.level = Level::kRaid6, .drives = 4},
    {.level = Level::kRaid6, .drives = 6},
    {.level = Level::kRaid10, .drives = 4},
    {.level = Level::kRaid50, .drives = 6, .groups = 2},
    {.level = Level::kRaid60, .drives = 8, .groups = 2},
};

void in_world(std::uint64_t seed, const std::function<Task<void>(Executor&)>& body) {
  const auto world = sim::World::create({.seed = seed});
  Executor& home = *world->executors()[0];
  const bool ended = world->run([&] { return body(home); });
  REQUIRE(ended);
}

// Runs `body` with a set that has been settled and written all over.
using Body = Task<void> (*)(IntegrityRig* rig);
Task<void> with_rig(Executor* home, RigShape shape, Body body) {
  IntegrityRig rig(*home, shape);
  const bool created = co_await rig.create();
  REQUIRE(created);
  co_await rig.settle();
  const std::uint64_t blocks = rig.set->geometry().block_count;
  for (Lba first = 0; first < blocks; first += 512) {
    const Error error =
        co_await rig.write(first, std::min<std::uint64_t>(512, blocks - first), first + 1);
    REQUIRE(error == Error::kNone);
  }
  co_await body(&rig);
  co_await rig.close();
}

void with_rig(RigShape shape, Body body) {
  in_world(1, [&](Executor& home) { return with_rig(&home, shape, body); });
}

Task<void> expect_everything(IntegrityRig* rig) {
  const std::string wrong = co_await rig->check_everything();
  CHECK(wrong == "");
}

BufferList list_of(BufferPool& pool, std::span<const std::byte> bytes) {
  BufferList list = pool.try_allocate(bytes.size());
  list.copy_from(bytes);
  return list;
}

}  // namespace

// ---- bytes --------------------------------------------------------------------------------------

TEST_CASE("an integrity block says whether it is whole, and where it belongs", "[raid]") {
  Random random(1);
  const Uuid set = make_uuid(random);
  const IntegrityBlockName name{.set = set, .role = 3, .index = 70000};
  std::vector<std::byte> block(kIntegrityBlockBytes);
  CHECK(examine_integrity_block(block, name) == IntegrityBlockState::kNeverWritten);
  for (std::uint32_t slot = 0; slot < kCellsPerBlock; ++slot) {
    put_entry(block, EntryCopy::kOwn, slot, {.crc = slot, .generation = slot + 1});
    put_entry(block, EntryCopy::kPartner, slot, {.crc = ~slot, .generation = slot + 7});
  }
  seal_integrity_block(block, name);
  CHECK(examine_integrity_block(block, name) == IntegrityBlockState::kWhole);
  for (std::uint32_t slot = 0; slot < kCellsPerBlock; ++slot) {
    CHECK(get_entry(block, EntryCopy::kOwn, slot) ==
          IntegrityEntry{.crc = slot, .generation = slot + 1});
    CHECK(get_entry(block, EntryCopy::kPartner, slot) ==
          IntegrityEntry{.crc = ~slot, .generation = slot + 7});
  }
  CHECK(examine_integrity_block(block, {.set = set, .role = 4, .index = 70000}) ==
        IntegrityBlockState::kDamaged);
  CHECK(examine_integrity_block(block, {.set = set, .role = 3, .index = 70001}) ==
        IntegrityBlockState::kDamaged);
  CHECK(examine_integrity_block(block, {.set = make_uuid(random), .role = 3, .index = 70000}) ==
        IntegrityBlockState::kNeverWritten);
  unsigned unseen = 0;
  for (std::size_t bit = 0; bit < kIntegrityBlockBytes * 8; ++bit) {
    block[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    unseen += examine_integrity_block(block, name) != IntegrityBlockState::kDamaged;
    block[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  }
  CHECK(unseen == 0);
}

TEST_CASE("generations wrap around, and an unknown entry is older than any", "[raid]") {
  const auto newer = [](std::uint32_t a, std::uint32_t b) {
    return IntegrityEntry{.generation = a}.newer_than({.generation = b});
  };
  CHECK(newer(2, 1));
  CHECK_FALSE(newer(1, 2));
  CHECK_FALSE(newer(5, 5));
  CHECK(newer(1, ~0U));
  CHECK_FALSE(newer(~0U, 1));
  CHECK(newer(~0U, 0));
  CHECK_FALSE(newer(0, 0));
  CHECK(generation_after(0) == 1);
  CHECK(generation_after(~0U) == 1);
}

TEST_CASE("a cell's checksum depends on its bytes, its set, its role and its number", "[raid]") {
  const auto world = sim::World::create({.seed = 1});
  BufferPool& pool = world->executors()[0]->buffers();
  Random random(1);
  const Uuid set = make_uuid(random);
  std::vector<std::byte> bytes(3 * kCellBytes);
  testing::fill_random(bytes, random);
  const BufferList whole = list_of(pool, bytes);
  // The same bytes in odd slices.
  BufferList pieces;
  for (std::size_t at = 0, length = 1; at < bytes.size(); at += length, length = length * 2 + 1) {
    length = std::min(length, bytes.size() - at);
    pieces.append(list_of(pool, std::span(bytes).subspan(at, length)));
  }
  const std::uint32_t crc = cell_crc(set, 2, 77, whole, kCellBytes);
  CHECK(cell_crc(set, 2, 77, pieces, kCellBytes) == crc);
  CHECK(cell_crc(set, 2, 77, list_of(pool, std::span(bytes).subspan(kCellBytes, kCellBytes)), 0) ==
        crc);
  CHECK(cell_crc(set, 2, 78, whole, kCellBytes) != crc);
  CHECK(cell_crc(set, 3, 77, whole, kCellBytes) != crc);
  CHECK(cell_crc(make_uuid(random), 2, 77, whole, kCellBytes) != crc);
  CHECK(cell_crc(set, 2, 77, whole, 0) != crc);
  const BufferList zeros = list_of(pool, std::vector<std::byte>(kCellBytes));
  CHECK(zero_cell_crc(set, 2, 77) == cell_crc(set, 2, 77, zeros, 0));
}

TEST_CASE("the integrity area has room for every cell's entry", "[raid]") {
  CHECK(integrity_area_bytes(1) == 4096);
  CHECK(integrity_area_bytes(240 * 4096) == 4096);
  CHECK(integrity_area_bytes(240 * 4096 + 1) == 8192);
}

// ---- every kind at every level ------------------------------------------------------------------

namespace {

Task<void> every_kind(IntegrityRig* rig) {
  Random random(rig->shape().drives);
  Tally tally;
  for (unsigned turn = 0; turn < 12 * raidtest::kCorruptions; ++turn) {
    CorruptionRound round(*rig, random, tally);
    const auto kind = static_cast<Corruption>(turn % raidtest::kCorruptions);
    const std::string wrong = co_await round.run(kind, turn / raidtest::kCorruptions % 2 == 0);
    CAPTURE(turn);
    CHECK(wrong == "");
  }
  CHECK(tally.injected > 40);
  CHECK(tally.detected == tally.injected);
  CHECK(rig->corrupt_cells() == 0);
  co_await expect_everything(rig);
}

}  // namespace

TEST_CASE("flips and lost, torn, misdirected and stale writes are found at every level", "[raid]") {
  for (const RigShape& shape : kShapes) {
    CAPTURE(describe(shape.level), shape.drives);
    with_rig(shape, every_kind);
  }
}

// ---- beyond redundancy --------------------------------------------------------------------------

namespace {

constexpr std::uint64_t kStripe = 5;

// Corrupts the first cell of these members of kStripe.
void corrupt(IntegrityRig& rig, std::initializer_list<unsigned> members) {
  for (const unsigned member : members) {
    rig.device_of(kStripe, member).flip_medium(rig.offset(kStripe, 0), 4096, 3);
  }
}

Lba lba_of(const IntegrityRig& rig, unsigned chunk) {
  return rig.set->layout().lba({.stripe = kStripe, .chunk = chunk, .row = 0});
}

// The cells of these chunks cannot be read, until they are rewritten; everything else can.
Task<void> expect_lost(IntegrityRig* rig, std::vector<unsigned> chunks) {
  for (const unsigned chunk : chunks) {
    const Lba lba = lba_of(*rig, chunk);
    const IntegrityRig::Read got = co_await rig->read(lba, 16);
    CHECK(got.error == Error::kMediumError);
    CHECK(got.bad == lba);
    const IntegrityRig::Read last = co_await rig->read(lba + 7, 1);
    CHECK(last.error == Error::kMediumError);
    CHECK(last.bad == lba + 7);
    const IntegrityRig::Read next = co_await rig->read(lba + 8, 8);
    CHECK(next.error == Error::kNone);
    CHECK(next.right);
  }
  for (const unsigned chunk : chunks) {
    const Error part = co_await rig->write(lba_of(*rig, chunk) + 2, 3, 99);
    CHECK(part == Error::kNone);
    const IntegrityRig::Read got = co_await rig->read(lba_of(*rig, chunk) + 2, 3);
    CHECK(got.error == Error::kNone);
    CHECK(got.right);
    const IntegrityRig::Read rest = co_await rig->read(lba_of(*rig, chunk), 8);
    CHECK(rest.error == Error::kMediumError);
    const Error whole = co_await rig->write(lba_of(*rig, chunk), 8, 100);
    CHECK(whole == Error::kNone);
  }
  co_await expect_everything(rig);
  const RaidSet::Verified verified = co_await rig->set->verify_stripe(kStripe);
  CHECK(verified.error == Error::kNone);
  CHECK_FALSE(verified.mismatch);
}

Task<void> data_and_parity(IntegrityRig* rig) {
  corrupt(*rig, {0, rig->set->layout().data_chunks()});
  co_await expect_lost(rig, {0});
}

Task<void> two_corrupt(IntegrityRig* rig) {
  corrupt(*rig, {0, rig->set->layout().data_chunks()});
  const IntegrityRig::Read got = co_await rig->read(lba_of(*rig, 0), 8);
  CHECK(got.error == Error::kNone);
  CHECK(got.right);
  co_await rig->set->verify_stripe(kStripe);  // Waits for the repair.
  corrupt(*rig, {0, 1});
  co_await rig->set->verify_stripe(kStripe);
  CHECK(rig->corrupt_cells() == 0);
  CHECK(rig->set->counters().corruptions == 4);
  co_await expect_everything(rig);
}

Task<void> three_corrupt(IntegrityRig* rig) {
  corrupt(*rig, {0, 1, rig->set->layout().data_chunks()});
  co_await expect_lost(rig, {0, 1});
}

Task<void> all_mirrors(IntegrityRig* rig) {
  corrupt(*rig, {0, 1});
  co_await expect_lost(rig, {0});
}

}  // namespace

TEST_CASE("RAID 5 with data and parity corrupt says which blocks are lost", "[raid]") {
  with_rig({.level = Level::kRaid5, .drives = 4}, data_and_parity);
  with_rig({.level = Level::kRaid50, .drives = 6, .groups = 2}, data_and_parity);
}

TEST_CASE("RAID 6 repairs two corrupt members of a stripe, and three are lost", "[raid]") {
  with_rig({.level = Level::kRaid6, .drives = 5}, two_corrupt);
  with_rig({.level = Level::kRaid6, .drives = 5}, three_corrupt);
}

TEST_CASE("mirrors that are all corrupt are lost", "[raid]") {
  with_rig({.level = Level::kRaid1, .drives = 2}, all_mirrors);
  with_rig({.level = Level::kRaid10, .drives = 4}, all_mirrors);
}

// ---- entries ------------------------------------------------------------------------------------

namespace {

// Makes both entries of the first cell of a member of kStripe wrong on the drives, or unknown.
Task<void> falsify_entries(IntegrityRig* rig, std::vector<unsigned> members, bool unknown = false) {
  std::vector<std::pair<unsigned, std::uint64_t>> cells;
  for (const unsigned member : members) {
    cells.emplace_back(rig->set->layout().role(kStripe, member),
                       rig->set->layout().drive_lba(kStripe) / 8);
  }
  const unsigned width = rig->set->layout().width();
  for (const auto& [role, cell] : cells) {
    const unsigned partner = role / width * width + (role % width + 1) % width;
    const std::uint64_t index = cell / kCellsPerBlock;
    for (const auto& [on, copy] :
         {std::pair(role, EntryCopy::kOwn), std::pair(partner, EntryCopy::kPartner)}) {
      LyingDrive& device = *rig->devices[on];
      const std::uint64_t at = rig->newest.roles[on].integrity_offset_bytes + index * 4096;
      std::vector<std::byte> block = device.medium(at, 4096);
      IntegrityEntry entry =
          get_entry(block, copy, static_cast<std::uint32_t>(cell % kCellsPerBlock));
      CHECK(entry.known());
      entry.crc ^= 0x1234;
      if (unknown) entry = {};
      put_entry(block, copy, static_cast<std::uint32_t>(cell % kCellsPerBlock), entry);
      seal_integrity_block(block, {.set = rig->newest.set_uuid, .role = on, .index = index});
      device.write_medium(at, block);
    }
  }
  const bool opened = co_await rig->reopen();
  REQUIRE(opened);
}

Task<void> false_entry(IntegrityRig* rig) {
  co_await falsify_entries(rig, {0});
  const IntegrityRig::Read got = co_await rig->read(lba_of(*rig, 0), 8);
  CHECK(got.error == Error::kNone);
  CHECK(got.right);
  co_await rig->set->verify_stripe(kStripe);
  CHECK(rig->set->counters().false_entries == 1);
  CHECK(rig->set->counters().corruptions == 0);
  co_await expect_everything(rig);
  const bool opened = co_await rig->reopen();
  REQUIRE(opened);
  co_await expect_everything(rig);
  CHECK(rig->set->counters().false_entries == 0);
}

// One entry too many is wrong, so redundancy alone does not tell: trials do.
Task<void> false_entry_and_corruption(IntegrityRig* rig) {
  const unsigned redundancy = rig->set->layout().redundancy();
  co_await falsify_entries(rig, {0});
  for (unsigned member = 1; member <= redundancy; ++member) corrupt(*rig, {member});
  const IntegrityRig::Read got = co_await rig->read(lba_of(*rig, 0), 8);
  CHECK(got.error == Error::kNone);
  CHECK(got.right);
  co_await rig->set->verify_stripe(kStripe);
  CHECK(rig->set->counters().corruptions == redundancy);
  CHECK(rig->set->counters().false_entries == 1);
  CHECK(rig->set->counters().lost_blocks == 0);
  CHECK(rig->corrupt_cells() == 0);
  co_await expect_everything(rig);
}

// The other chunk is corrupt and nothing is known of it: what is computed from it is wrong, and its
// own entry says so.
Task<void> unknown_neighbour(IntegrityRig* rig) {
  co_await falsify_entries(rig, {1}, true);
  corrupt(*rig, {0, 1});
  const IntegrityRig::Read got = co_await rig->read(lba_of(*rig, 0), 8);
  CHECK(got.error == Error::kMediumError);
  const Error error = co_await rig->write(lba_of(*rig, 0), 8, 50);
  CHECK(error == Error::kNone);
  const Error other = co_await rig->write(lba_of(*rig, 1), 8, 51);
  CHECK(other == Error::kNone);
  co_await expect_everything(rig);
}

// The first cell's own and partner's blocks, one after another.
Task<void> damaged_blocks(IntegrityRig* rig) {
  for (unsigned turn = 0; turn < 4; ++turn) {
    const unsigned role = turn % 2;
    LyingDrive& device = *rig->devices[role];
    const std::uint64_t at = rig->newest.roles[role].integrity_offset_bytes;
    if (turn >= 2) {  // With it in memory, and without.
      const bool opened = co_await rig->reopen();
      REQUIRE(opened);
    }
    const std::vector<std::byte> good = device.medium(at, 4096);
    device.flip_medium(at, 4096, 5);
    co_await expect_everything(rig);
    const RaidSet::Verified verified = co_await rig->set->verify_stripe(0);
    CHECK(verified.error == Error::kNone);
    CHECK_FALSE(verified.mismatch);
    CHECK(rig->set->counters().entries_mended > 0);
    CHECK(rig->set->counters().corruptions == 0);
    CHECK(device.medium(at, 4096) == good);
    CHECK(rig->integrity_areas_right());
  }
}

// A drive that goes back to an earlier state as a whole, integrity area and all, is told from one
// that is as it should be by the entries on its neighbour.
Task<void> stale_drive(IntegrityRig* rig) {
  const std::uint64_t blocks = rig->set->geometry().block_count;
  LyingDrive& device = *rig->devices[1];
  const std::uint64_t from = device.lies_from * 512;
  const std::vector<std::byte> earlier = device.medium(from, 3 << 20);
  for (Lba first = 3; first + 40 < blocks; first += 97) {
    const Error error = co_await rig->write(first, 29, first);
    CHECK(error == Error::kNone);
  }
  device.write_medium(from, earlier);
  const bool opened = co_await rig->reopen();
  REQUIRE(opened);
  const std::uint64_t corrupt_before = rig->corrupt_cells();  // The journal had the newest.
  CHECK(corrupt_before > 50);
  co_await expect_everything(rig);
  co_await rig->settle();
  CHECK(rig->set->counters().corruptions == corrupt_before);
  CHECK(rig->corrupt_cells() == 0);
  CHECK(rig->integrity_areas_right());
}

}  // namespace

TEST_CASE("an entry that is wrong is mended where redundancy shows that the cell is right") {
  with_rig({.level = Level::kRaid5, .drives = 4}, false_entry);
  with_rig({.level = Level::kRaid6, .drives = 5}, false_entry);
  with_rig({.level = Level::kRaid1, .drives = 3}, false_entry);
}

TEST_CASE("with an entry wrong and as much corrupt as redundancy repairs, trials find the truth") {
  with_rig({.level = Level::kRaid5, .drives = 4}, false_entry_and_corruption);
  with_rig({.level = Level::kRaid6, .drives = 6}, false_entry_and_corruption);
}

TEST_CASE("what is computed has to be what its entry says", "[raid]") {
  with_rig({.level = Level::kRaid5, .drives = 4}, unknown_neighbour);
}

TEST_CASE("damaged integrity blocks are restored from the other copies", "[raid]") {
  with_rig({.level = Level::kRaid5, .drives = 3}, damaged_blocks);
  with_rig({.level = Level::kRaid1, .drives = 2}, damaged_blocks);
}

TEST_CASE("a drive that is set back as a whole is found out", "[raid]") {
  with_rig({.level = Level::kRaid5, .drives = 4}, stale_drive);
  with_rig({.level = Level::kRaid1, .drives = 2}, stale_drive);
  with_rig({.level = Level::kRaid6, .drives = 5}, stale_drive);
}

// ---- drives that are away -----------------------------------------------------------------------

namespace {

Task<void> lose(IntegrityRig* rig, unsigned role) {
  rig->devices[role]->drive.fail_with(Error::kHardware);
  const std::string wrong = co_await rig->check_everything();
  CHECK(wrong == "");
  // Mirrors may not have been asked; a write is seen by all.
  for (std::uint64_t stripe = 0; rig->drives->drive(role) != nullptr && stripe < 8; ++stripe) {
    const Lba lba = rig->set->layout().lba({.stripe = stripe, .chunk = 0, .row = 0});
    const Error error = co_await rig->write(lba, 8, 5);
    CHECK(error == Error::kNone);
  }
  CHECK(rig->drives->drive(role) == nullptr);
}

// Without redundancy left corruption is an honest error, the own entry being there.
Task<void> corrupt_while_degraded(IntegrityRig* rig) {
  const unsigned away = rig->set->layout().role(kStripe, 1);
  co_await lose(rig, away);
  corrupt(*rig, {0});
  const IntegrityRig::Read got = co_await rig->read(lba_of(*rig, 0), 8);
  CHECK(got.error == Error::kMediumError);
  const Error error = co_await rig->write(lba_of(*rig, 0), 8, 77);
  CHECK(error == Error::kNone);
  const IntegrityRig::Read again = co_await rig->read(lba_of(*rig, 0), 8);
  CHECK(again.error == Error::kNone);
  CHECK(again.right);
}

Task<void> rebuilt(IntegrityRig* rig) {
  Random random(3);
  co_await lose(rig, 1);
  const std::uint64_t blocks = rig->set->geometry().block_count;
  for (unsigned i = 0; i < 60; ++i) {
    const Error error = co_await rig->write(random.below(blocks - 50), 1 + random.below(50), i);
    CHECK(error == Error::kNone);
  }
  LyingDrive& old = *rig->devices[1];
  auto fresh = std::make_unique<LyingDrive>(rig->set->home(), "spare", rig->shape().drive_bytes);
  fresh->lies_from = old.lies_from;
  fresh->lies_to = old.lies_to;
  // What was on it before must not be believed.
  for (std::uint64_t at = 0; at < rig->shape().drive_bytes; at += 65536) {
    const std::vector<std::byte> before = old.medium(at, 65536);
    fresh->write_medium(at, before);
  }
  std::swap(rig->devices[1], fresh);
  rig->drives->take_role(1, *rig->devices[1], "spare", {}, make_uuid(random), false);
  co_await rig->drives->save_regions();
  const Error settled = co_await rig->drives->settled();
  CHECK(settled == Error::kNone);
  Maintenance maintenance(*rig->set, {.rate_under_load = 0});
  maintenance.start();
  for (unsigned i = 0; i < 40; ++i) {
    const Error error = co_await rig->write(random.below(blocks - 50), 1 + random.below(50), i);
    CHECK(error == Error::kNone);
  }
  co_await maintenance.wait_idle();
  co_await maintenance.stop();
  CHECK(rig->drives->optimal());
  CHECK(rig->set->counters().corruptions == 0);
  co_await expect_everything(rig);
  const std::uint64_t mended = rig->set->counters().entries_mended;
  co_await rig->settle();
  CHECK(rig->set->counters().entries_mended == mended);  // The rebuild had written them all.
  CHECK(rig->set->counters().mismatches == 0);
  CHECK(rig->corrupt_cells() == 0);
  const bool opened = co_await rig->reopen();
  REQUIRE(opened);
  co_await expect_everything(rig);
  corrupt(*rig, {0});
  co_await expect_everything(rig);
  co_await rig->set->verify_stripe(kStripe);
  CHECK(rig->set->counters().corruptions == 1);
  CHECK(rig->corrupt_cells() == 0);
  co_await rig->close();
  std::swap(rig->devices[1], fresh);
  rig->devices[1]->drive.fail_with(Error::kNone);
  const bool last = co_await rig->open();
  CHECK(last);
}

}  // namespace

TEST_CASE("corruption without redundancy left is an honest error", "[raid]") {
  with_rig({.level = Level::kRaid5, .drives = 4}, corrupt_while_degraded);
}

TEST_CASE("a rebuilt drive has entries for all of its cells", "[raid]") {
  with_rig({.level = Level::kRaid5, .drives = 4}, rebuilt);
  with_rig({.level = Level::kRaid6, .drives = 5}, rebuilt);
  with_rig({.level = Level::kRaid1, .drives = 2}, rebuilt);
  with_rig({.level = Level::kRaid60, .drives = 8, .groups = 2}, rebuilt);
}

// ---- no false alarms ----------------------------------------------------------------------------

namespace {

struct Load {
  IntegrityRig* rig;
  unsigned running = 0;
  Condition ended;
  std::vector<std::string> failures;
};

// Writes, zeroes and reads in a part of the set that nobody else touches, while others read it.
Task<void> work(Load* load, unsigned part, unsigned parts, unsigned rounds) {
  Random random(part + 1);
  const std::uint64_t length = load->rig->set->geometry().block_count / parts;
  for (unsigned round = 0; round < rounds; ++round) {
    const std::uint64_t blocks = 1 + random.below(round % 8 == 0 ? 300 : 30);
    const Lba first = part * length + random.below(length - blocks);
    Error error = Error::kNone;
    if (random.chance(0.2)) {
      error = co_await load->rig->zero(first, blocks);
    } else {
      error = co_await load->rig->write(first, blocks, random.next());
    }
    if (error != Error::kNone) load->failures.push_back(std::string(describe(error)));
    const IntegrityRig::Read got = co_await load->rig->read(first, blocks);
    if (!got.right) load->failures.push_back("wrong bytes");
    // A stranger's place: what it reads may be old or new, but is no error.
    const Lba other = random.below(load->rig->set->geometry().block_count - blocks);
    const IntegrityRig::Read any = co_await load->rig->read(other, blocks);
    if (any.error != Error::kNone) load->failures.push_back("a racing read failed");
  }
  if (--load->running == 0) load->ended.notify_all();
}

Task<void> race(IntegrityRig* rig) {
  Load load{.rig = rig, .failures = {}};
  constexpr unsigned kParts = 6;
  Maintenance maintenance(*rig->set, {.rate_under_load = 0});
  maintenance.start();
  maintenance.request_verify();
  load.running = kParts;
  for (unsigned part = 0; part < kParts; ++part) spawn(work(&load, part, kParts, 40));
  while (load.running > 0) co_await load.ended.wait();
  co_await maintenance.wait_idle();
  co_await maintenance.stop();
  for (const std::string& failure : load.failures) UNSCOPED_INFO(failure);
  CHECK(load.failures.empty());
  CHECK(rig->set->counters().corruptions == 0);
  CHECK(rig->set->counters().false_entries == 0);
  CHECK(rig->set->counters().entries_mended == 0);
  CHECK(rig->set->counters().mismatches == 0);
  CHECK(rig->set->integrity()->counters().blocks_restored == 0);
  co_await expect_everything(rig);
  CHECK(rig->corrupt_cells() == 0);
  CHECK(rig->integrity_areas_right());
  const bool opened = co_await rig->reopen();
  REQUIRE(opened);
  co_await expect_everything(rig);
  CHECK(rig->set->counters().corruptions == 0);
}

}  // namespace

TEST_CASE("reads that race with writes are no corruption, at every level", "[raid]") {
  for (const RigShape& shape : kShapes) {
    for (const std::size_t cache : {std::size_t{32} << 10, std::size_t{16} << 20}) {
      if (raidtest::kSanitized && cache > std::size_t{1} << 20) continue;
      CAPTURE(describe(shape.level), shape.drives, cache);
      RigShape with = shape;
      with.cache_bytes = cache;
      with_rig(with, race);
    }
  }
}

// ---- power cuts ---------------------------------------------------------------------------------

namespace {

// What was on its way and what was acknowledged when the power went.
struct Cut {
  bool taken = false;
  std::vector<DriveState> drives;
  std::vector<sim::SparseImage> shadows;
  std::vector<std::byte> acknowledged;
  std::map<Lba, std::vector<std::byte>> pending;
  std::uint64_t absent = 0;
};

struct CutLoad {
  IntegrityRig* rig;
  Cut* cut;
  std::vector<std::byte> acknowledged;
  std::map<Lba, std::vector<std::byte>> pending;
  std::uint64_t changes_left = 0;
  unsigned running = 0;
  Condition ended;
};

Task<void> write_part(CutLoad* load, unsigned part, unsigned parts) {
  Random random = load->rig->set->home().random().fork();
  const std::uint64_t length = load->rig->set->geometry().block_count / parts;
  while (!load->cut->taken) {
    const std::uint64_t blocks = 1 + random.below(random.chance(0.2) ? 100 : 20);
    const Lba first = part * length + random.below(length - blocks);
    std::vector<std::byte> bytes(blocks * 512);
    const bool zero = random.chance(0.2);
    for (std::byte& byte : bytes) byte = zero ? std::byte{} : static_cast<std::byte>(random.next());
    load->pending[first] = bytes;
    Request request;
    request.operation = zero ? Operation::kWriteZeroes : Operation::kWrite;
    request.extent = {.first = first, .block_count = blocks};
    if (!zero) {
      request.data = co_await load->rig->set->home().buffers().allocate(bytes.size());
      request.data.copy_from(bytes);
    }
    const Completion done = co_await load->rig->set->submit(std::move(request));
    if (done.error != Error::kNone) break;
    std::memcpy(load->acknowledged.data() + first * 512, bytes.data(), bytes.size());
    load->pending.erase(first);
  }
  if (--load->running == 0) load->ended.notify_all();
}

Task<void> run_until_cut(IntegrityRig* rig, CutLoad* load) {
  const bool created = co_await rig->create();
  REQUIRE(created);
  co_await rig->settle();
  load->acknowledged = rig->expected;
  Random& random = rig->set->home().random();
  load->changes_left = 1 + random.below(400);
  const bool degraded = rig->set->layout().redundancy() > 0 && random.chance(0.3);
  const std::uint64_t fails_at = degraded ? load->changes_left / 2 : ~std::uint64_t{0};
  for (const auto& device : rig->devices) {
    device->drive.before_change = [=](const raidtest::TestDrive&, const Request&) {
      Cut& cut = *load->cut;
      if (cut.taken) return;
      if (load->changes_left == fails_at) rig->devices[0]->drive.fail_with(Error::kHardware);
      if (load->changes_left-- > 0) return;
      cut.taken = true;
      for (const auto& each : rig->devices) {
        cut.drives.push_back(each->drive.state());
        cut.shadows.push_back(each->shadow);
      }
      cut.acknowledged = load->acknowledged;
      cut.pending = load->pending;
      cut.absent = rig->drives->absent_roles();
      rig->newest = rig->drives->superblock();
    };
  }
  constexpr unsigned kParts = 4;
  load->running = kParts;
  for (unsigned part = 0; part < kParts; ++part) spawn(write_part(load, part, kParts));
  while (load->running > 0) co_await load->ended.wait();
  for (const auto& device : rig->devices) device->drive.before_change = {};
  co_await rig->close();
}

// Every sector as it was acknowledged or as it was on its way; nothing is called corrupt.
Task<void> look_after_cut(IntegrityRig* rig, const Cut* cut, Superblock newest, Random* random) {
  rig->newest = std::move(newest);
  const auto layout = rig->newest.layout();
  rig->regions.emplace(rig->newest.set_uuid, rig->newest.region_count(*layout),
                       rig->shape().drives);
  std::uint64_t absent = cut->absent;
  if (layout->redundancy() > 0 && absent == 0 && random->chance(0.4)) {
    absent = std::uint64_t{1} << random->below(rig->shape().drives);
  }
  for (unsigned role = 0; role < rig->shape().drives; ++role) {
    auto device = std::make_unique<LyingDrive>(rig->home(), "d" + std::to_string(role),
                                               rig->shape().drive_bytes);
    device->drive.state() = after_power_cut(cut->drives[role], *random);
    rig->devices.push_back(std::move(device));
    const bool away = (absent >> role & 1) != 0;
    if (away) rig->newest.roles[role].state = RoleState::kMissing;
    if (away) rig->regions->set_all_stale(role, false, true);
  }
  const bool opened = co_await rig->open();
  REQUIRE(opened);
  rig->expected = cut->acknowledged;
  const std::uint64_t blocks = rig->set->geometry().block_count;
  for (Lba first = 0; first < blocks; first += 256) {
    const std::uint64_t count = std::min<std::uint64_t>(256, blocks - first);
    Request request;
    request.extent = {.first = first, .block_count = count};
    request.data = co_await rig->home().buffers().allocate(count * 512);
    Completion done = co_await rig->set->submit(std::move(request));
    CHECK(done.error == Error::kNone);
    std::vector<std::byte> bytes(count * 512);
    done.data.copy_to(bytes);
    unsigned wrong = 0;
    for (Lba lba = first; lba < first + count; ++lba) {
      const auto got = std::span(bytes).subspan((lba - first) * 512, 512);
      bool good = std::memcmp(got.data(), cut->acknowledged.data() + lba * 512, 512) == 0;
      for (const auto& [at, coming] : cut->pending) {
        if (lba < at || lba >= at + coming.size() / 512) continue;
        good |= std::memcmp(got.data(), coming.data() + (lba - at) * 512, 512) == 0;
      }
      wrong += !good;
    }
    CHECK(wrong == 0);
  }
  co_await rig->settle();
  const SetCounters& counters = rig->set->counters();
  CHECK(counters.corruptions == 0);
  CHECK(counters.false_entries == 0);
  CHECK(counters.lost_blocks == 0);
  CHECK(counters.mismatches == 0);
  CHECK(counters.entries_mended == 0);
  CHECK(rig->set->integrity()->counters().blocks_restored == 0);
  co_await rig->close();
}

}  // namespace

TEST_CASE("a power cut leaves no entry that does not fit its cell", "[raid]") {
  const std::uint64_t wanted = (raidtest::kSanitized ? 2 : 8) * kShapes.size();
  unsigned cuts = 0;
  for (std::uint64_t seed = 1; seed <= wanted; ++seed) {
    RigShape shape = kShapes[seed % kShapes.size()];
    shape.drive_bytes = std::uint64_t{3} << 20;
    CAPTURE(seed, describe(shape.level), shape.drives);
    Cut cut;
    Superblock newest;
    const auto world = sim::World::create({.seed = seed});
    {
      Executor& home = *world->executors()[0];
      IntegrityRig rig(home, shape);
      CutLoad load{.rig = &rig, .cut = &cut, .acknowledged = {}, .pending = {}};
      const bool ended = world->run([&] { return run_until_cut(&rig, &load); });
      REQUIRE(ended);
      newest = rig.newest;
    }
    REQUIRE(cut.taken);
    ++cuts;
    const auto after = sim::World::create({.seed = seed + 1000});
    Executor& home = *after->executors()[0];
    Random random(seed);
    IntegrityRig rig(home, shape);
    const bool ended =
        after->run([&] { return look_after_cut(&rig, &cut, std::move(newest), &random); });
    REQUIRE(ended);
  }
  CHECK(cuts == wanted);
}

}  // namespace sandbay::raid::integrity_test
