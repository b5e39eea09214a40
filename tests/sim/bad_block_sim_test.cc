// Goal: what a READ sends before a block that cannot be read is right, byte for byte.
// Method: a unit over real layers: RAID 0, 1 and 5, a cache, a pool's volume and its snapshot, a
// unit of another array. The seed chooses the layers, how much is cached, and up to three blocks
// that no drive can read. Every block holds its own number; memory is spoiled before each READ. A
// READ may succeed if the cache has all of it. Otherwise it must name the first bad block, and send
// exactly the blocks before it.
#include <catch2/catch.hpp>

#include <fmt/core.h>

#include <map>

#include "cache/cache.h"
#include "cache/cached_device.h"
#include "seeds.h"
#include "tests/unit/iscsi/far_side.h"
#include "tests/unit/pool/pool_rig.h"
#include "tests/unit/raid/set_rig.h"
#include "tests/unit/scsi/fake_transport.h"

namespace sandbay::simtest {
namespace {

using testing::Bytes;
using testing::Reply;

constexpr std::uint64_t kBlock = 512;
constexpr std::uint64_t kBlocks = 2048;  // All that a remote unit has, and enough of the others.
constexpr std::uint64_t kMostBlocks = 256;
constexpr unsigned kReads = 40;
constexpr std::uint64_t kMark = 0xB10C'B10C'B10C'B10C;

void put_word(std::span<std::byte> bytes, std::size_t at, std::uint64_t word) {
  std::memcpy(bytes.data() + at, &word, sizeof word);
}

Bytes content_of(Extent extent) {
  Bytes bytes(extent.block_count * kBlock);
  for (std::size_t at = 0; at < bytes.size(); at += 16) {
    put_word(bytes, at, kMark);
    put_word(bytes, at + 8, (extent.first + at / kBlock) * kBlock + at % kBlock);
  }
  return bytes;
}

Task<Error> fill(BlockDevice& device, Random& random) {
  for (Lba at = 0; at < kBlocks; at += kMostBlocks) {
    const Completion done = co_await testing::write_blocks(
        device, at, content_of({at, kMostBlocks}), testing::Cut::kAligned, random);
    if (done.error != Error::kNone) co_return done.error;
  }
  const Completion flushed = co_await testing::do_without_data(device, Operation::kFlush, {});
  co_return flushed.error;
}

// The places of each block on the drives of a set. A block is spoiled together with its copies, or
// with its stripe's parity.
class Places {
 public:
  explicit Places(raidtest::SetRig& rig) : rig_(rig) {
    const Lba from = rig.drives->data_offset();
    for (unsigned role = 0; role < rig.devices.size(); ++role) {
      const Lba end = rig.devices[role]->geometry().block_count;
      for (Lba lba = from; lba < end; ++lba) note(role, lba);
    }
  }

  void spoil(Lba block) {
    const auto [first, last] = found_.equal_range(block);
    REQUIRE(first != last);
    for (auto at = first; at != last; ++at) spoil_on_drive(at->second.first, at->second.second);
  }

 private:
  void note(unsigned role, Lba lba) {
    std::array<std::byte, kBlock> bytes{};
    rig_.devices[role]->state().visible.read(lba * kBlock, bytes);
    std::array<std::uint64_t, 2> words{};
    std::memcpy(words.data(), bytes.data(), sizeof words);
    if (words[0] == kMark && words[1] % kBlock == 0) {
      found_.emplace(words[1] / kBlock, std::pair(role, lba));
    }
  }
  void spoil_on_drive(unsigned role, Lba lba) {
    const raid::Layout& layout = rig_.set->layout();
    rig_.devices[role]->make_unreadable(lba);
    const auto place = layout.on_drive(role, lba - rig_.drives->data_offset());
    for (unsigned member = layout.data_chunks(); member < layout.width(); ++member) {
      rig_.devices[layout.role(place.stripe, member)]->make_unreadable(lba);
    }
  }

  raidtest::SetRig& rig_;
  std::multimap<Lba, std::pair<unsigned, Lba>> found_;
};

// As whatever was in that memory before.
Task<void> spoil_memory(Executor& home) {
  BufferList memory = co_await home.buffers().allocate(4 * kMostBlocks * kBlock);
  testing::spoil(memory);
}

std::string judge(const Reply& reply, Extent extent, const std::set<Lba>& bad) {
  const auto first_bad = bad.lower_bound(extent.first);
  const bool spoilt = first_bad != bad.end() && *first_bad < extent.end();
  if (reply.good()) {
    return reply.data == content_of(extent) ? "" : "GOOD, and the data are wrong";
  }
  if (!spoilt) return fmt::format("sense key {:x}h without a bad block", +reply.byte(2) & 0xFU);
  if (reply.key() != scsi::SenseKey::kMediumError) return "no MEDIUM ERROR";
  const auto named = reply.information();
  if (!named) return "no block is named";
  // A block that is cached can be read.
  if (!bad.contains(*named) || *named < *first_bad || *named >= extent.end()) {
    return fmt::format("block {} is named, {} is bad", *named, *first_bad);
  }
  if (reply.data != content_of({extent.first, *named - extent.first})) {
    return fmt::format("{} bytes sent before block {} are wrong", reply.data.size(), *named);
  }
  return "";
}

Task<std::string> read_all_over(BlockDevice& device, std::set<Lba> bad, Random& random) {
  testing::ServedUnit host(device);
  co_await host.start();
  std::string wrong;
  for (unsigned i = 0; i < kReads && wrong.empty(); ++i) {
    const std::uint64_t count = random.between(1, kMostBlocks);
    // Most of them over a bad block, anywhere in the request.
    const Lba aim = *std::next(bad.begin(), static_cast<std::ptrdiff_t>(random.below(bad.size())));
    const Lba least = aim < count ? 0 : aim - count + 1;
    Lba first = random.chance(0.8) ? random.between(least, aim) : random.below(kBlocks);
    first = std::min(first, kBlocks - count);
    co_await spoil_memory(device.home());
    const Reply reply = co_await host.send_to_unit(
        testing::cdb_10(0x28, static_cast<std::uint32_t>(first), static_cast<unsigned>(count)));
    wrong = judge(reply, {first, count}, bad);
    if (!wrong.empty()) wrong = fmt::format("READ {} at {}: {}", count, first, wrong);
  }
  co_await host.stop();
  co_return wrong;
}

// A set with integrity loses whole cells.
std::set<Lba> with_cells(const std::set<Lba>& blocks, bool integrity) {
  constexpr Lba kCell = 4096 / kBlock;
  std::set<Lba> lost = blocks;
  for (const Lba block : blocks) {
    for (Lba in = 0; integrity && in < kCell; ++in) lost.insert(block / kCell * kCell + in);
  }
  return lost;
}

std::set<Lba> choose_bad(Random& random) {
  std::set<Lba> bad;
  for (std::uint64_t left = random.between(1, 3); left > 0; --left)
    bad.insert(random.below(kBlocks));
  return bad;
}

Task<void> warm(BlockDevice& device, Random& random) {
  for (std::uint64_t left = random.below(12); left > 0; --left) {
    const std::uint64_t count = random.between(1, kMostBlocks);
    const Extent extent{random.below(kBlocks - count), count};
    const Completion done =
        co_await testing::read_blocks(device, extent, testing::Cut::kAligned, random);
    CHECK(done.error == Error::kNone);
  }
}

struct Shape {
  raidtest::SetShape set;
  bool pool = false;
  bool snapshot = false;  // The READs go to a snapshot of the pool's volume.
  bool cached = false;    // The set.
};

// The unit's data are on the drives, and `top` is what hosts see.
Task<std::string> spoil_and_read(raidtest::SetRig* rig, BlockDevice* top, Random* random) {
  const bool integrity = rig->drives->superblock().integrity;
  Places places(*rig);
  co_await warm(*top, *random);
  const std::set<Lba> bad = choose_bad(*random);
  for (const Lba block : bad) places.spoil(block);
  co_return co_await read_all_over(*top, with_cells(bad, integrity), *random);
}

Task<std::string> read_in_pool(raidtest::SetRig* rig, BlockDevice* below, Shape shape,
                               Random* random) {
  pool::Rig pools(below->home(), {.stores = 1, .store_pages = 6});
  pools.devices.push_back(std::make_unique<Layer>(*below));
  std::string wrong = co_await pools.start();
  if (!wrong.empty()) co_return wrong;
  const auto branch = co_await pools.pool->create({.byte_count = kBlocks * kBlock}, {});
  REQUIRE(branch.has_value());
  auto volume = pools.pool->attach(*branch);
  std::unique_ptr<pool::PoolVolume> snapshot;
  Error error = co_await fill(*volume, *random);
  CHECK(error == Error::kNone);
  if (shape.snapshot) {
    std::vector<pool::Pool::SnapshotOrder> orders{{.branch = *branch, .label = "s"}};
    const auto taken = co_await pools.pool->snapshot(std::move(orders), {});
    REQUIRE(taken.has_value());
    snapshot = pools.pool->attach(*branch, taken->front());
  }
  BlockDevice* top = volume.get();
  if (snapshot != nullptr) top = snapshot.get();
  wrong = co_await spoil_and_read(rig, top, random);
  snapshot.reset();
  volume.reset();
  error = co_await pools.close();
  CHECK(error == Error::kNone);
  co_return wrong;
}

Task<std::string> read_on(raidtest::SetRig* rig, BlockDevice* below, Shape shape, Random* random) {
  if (shape.pool) co_return co_await read_in_pool(rig, below, shape, random);
  const Error error = co_await fill(*below, *random);
  CHECK(error == Error::kNone);
  co_return co_await spoil_and_read(rig, below, random);
}

Task<std::string> read_cached(raidtest::SetRig* rig, Shape shape, Random* random) {
  const std::size_t memory_bytes = std::size_t{random->chance(0.5) ? 2U : 16U} << 20;
  cache::Cache cache(rig->set->home(),
                     {.memory_bytes = memory_bytes, .dirty_limit_bytes = memory_bytes / 4});
  cache::CachedDevice& device = cache.add_device(rig->drives->superblock().set_uuid, *rig->set);
  std::string wrong = co_await read_on(rig, &device, shape, random);
  const Error error = co_await cache.close();
  if (error != Error::kNone && wrong.empty()) wrong = "the cache cannot be closed";
  co_return wrong;
}

Task<void> read_over_set(Executor& home, Shape shape, Random* random, std::string* wrong) {
  raidtest::SetRig rig(home, shape.set);
  co_await rig.create();
  if (shape.cached) {
    *wrong = co_await read_cached(&rig, shape, random);
  } else {
    *wrong = co_await read_on(&rig, rig.set.get(), shape, random);
  }
  co_await rig.end();
}

Shape random_shape(Random& random) {
  constexpr raidtest::SetShape kSets[] = {
      {.level = raid::Level::kRaid0, .drives = 2},
      {.level = raid::Level::kJbod, .drives = 1},
      {.level = raid::Level::kRaid1, .drives = 2},
      {.level = raid::Level::kRaid10, .drives = 4},
      {.level = raid::Level::kRaid5, .drives = 4},
      {.level = raid::Level::kRaid5, .drives = 4, .integrity = true},
  };
  Shape shape{.set = kSets[random.below(std::size(kSets))]};
  shape.set.strip_bytes = 4096U << random.below(4);
  shape.pool = random.chance(0.5);
  shape.snapshot = shape.pool && random.chance(0.5);
  shape.cached = random.chance(0.5);
  return shape;
}

std::string run_seed(std::uint64_t seed) {
  Random random(seed);
  const Shape shape = random_shape(random);
  std::string wrong;
  raidtest::in_world(seed,
                     [&](Executor& home) { return read_over_set(home, shape, &random, &wrong); });
  if (wrong.empty()) return wrong;
  return fmt::format("{}{}{}{}: {}", raid::describe(shape.set.level),
                     shape.cached ? ", cached" : "", shape.pool ? ", pool" : "",
                     shape.snapshot ? ", snapshot" : "", wrong);
}

Task<void> read_remote(iscsi::test::FarSide& far, iscsi::RemoteTarget& near) {
  Random random(far.world().executors()[0]->random().next());
  iscsi::RemoteUnit* const unit = co_await iscsi::test::serving_unit(near);
  REQUIRE(unit != nullptr);
  const Error error = co_await fill(*unit, random);
  CHECK(error == Error::kNone);
  const std::set<Lba> bad = choose_bad(random);
  for (const Lba block : bad) {
    far.faults().fail(
        {.operation = Operation::kRead, .extent = {block, 1}, .error = Error::kMediumError});
  }
  const std::string wrong = co_await read_all_over(*unit, bad, random);
  CHECK(wrong == "");
}

}  // namespace

TEST_CASE("A READ sends right data before a block that its layers cannot read", "[N10]") {
  CHECK(run_seeds("bad blocks", 100, run_seed) == 0);
}

TEST_CASE("A READ of a remote unit sends right data before a bad block", "[N10]") {
  const SeedRange range = seeds(20);
  for (std::uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    CAPTURE(seed);
    iscsi::test::FarSide(seed).run(read_remote);
  }
}

}  // namespace sandbay::simtest
