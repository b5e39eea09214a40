// DriveMetadata on memory devices, and on simulated files whose power is cut at every write: of a
// pair of copies one is always whole and, once a write has ended, new.
#include "raid/drive_metadata.h"

#include "block/file_device.h"
#include "block/layer.h"
#include "block/memory_device.h"
#include "metadata_samples.h"
#include "tests/unit/block/on_executor.h"
#include "tests/unit/block/payload.h"

namespace sandbay::raid::testing::drive_metadata_test {
namespace {

using sandbay::testing::Bytes;
using sandbay::testing::Cut;
using sandbay::testing::run_in_world;
using sandbay::testing::run_on_reactor;

constexpr std::uint64_t kDeviceBytes = 24u << 20;

std::unique_ptr<MemoryDevice> make_memory(Executor& home, std::uint32_t block_bytes = 512,
                                          std::uint64_t bytes = kDeviceBytes) {
  auto device = MemoryDevice::create(home, {.byte_count = bytes, .block_bytes = block_bytes});
  REQUIRE(device.has_value());
  return std::move(*device);
}

// Fails operations of one kind within an extent of bytes.
class Faulty final : public Layer {
 public:
  using Layer::Layer;
  std::optional<Operation> operation;
  std::uint64_t first_byte = 0;
  std::uint64_t end_byte = ~std::uint64_t{0};
  Error error = Error::kMediumError;
  unsigned writes = 0;

 protected:
  Task<Completion> read(Request request) override { return judge(std::move(request)); }
  Task<Completion> write(Request request) override {
    ++writes;
    return judge(std::move(request));
  }

 private:
  Task<Completion> judge(Request request) {
    const std::uint64_t at = request.extent.first * geometry().block_bytes;
    if (operation == request.operation && at >= first_byte && at < end_byte) {
      co_return Completion{
          .error = error, .first_bad_lba = request.extent.first, .data = std::move(request.data)};
    }
    co_return co_await below().submit(std::move(request));
  }
};

DriveMetadata::Image image_of(std::vector<std::byte> bytes) {
  return std::make_shared<const std::vector<std::byte>>(std::move(bytes));
}

Task<void> poke(BlockDevice& device, std::uint64_t offset, std::byte value) {
  Random random(1);
  const std::uint32_t block = device.geometry().block_bytes;
  co_await sandbay::testing::write_blocks(device, offset / block, Bytes(block, value),
                                          Cut::kAligned, random);
}

Superblock some_member(Random& random) {
  return plan({.name = "data", .level = Level::kRaid6}, blank_drives(5), random).superblocks[3];
}

TEST_CASE("a superblock is kept on a drive of either block size", "[raid][drive_metadata]") {
  for (const std::uint32_t block_bytes : {512u, 4096u}) {
    run_on_reactor([block_bytes](Executor& home) -> Task<void> {
      return [](Executor& executor, std::uint32_t block) -> Task<void> {
        const auto device = make_memory(executor, block);
        Random random(1);
        Superblock written = some_member(random);
        for (int round = 0; round < 5; ++round) {
          DriveMetadata metadata(*device);
          const Error error = co_await metadata.write_superblock(written);
          CHECK(error == Error::kNone);
          written.advance(random);
          const Error again = co_await metadata.write_superblock(written);
          CHECK(again == Error::kNone);
          DriveMetadata fresh(*device);
          const auto read = (co_await fresh.read_contents()).superblock;
          CHECK(read.has_value());
          if (read.has_value()) CHECK(*read == written);
        }
      }(home, block_bytes);
    });
  }
}

TEST_CASE("either copy of a superblock is enough, and says that the other is broken",
          "[raid][drive_metadata]") {
  run_on_reactor([](Executor& home) -> Task<void> {
    return [](Executor& executor) -> Task<void> {
      Random random(2);
      const Superblock written = some_member(random);
      for (const std::uint64_t broken : kSuperblockOffset) {
        const auto device = make_memory(executor);
        Faulty faulty(*device);
        DriveMetadata writer(faulty);
        const Error error = co_await writer.write_superblock(written);
        CHECK(error == Error::kNone);
        faulty.operation = Operation::kRead;
        faulty.first_byte = broken;
        faulty.end_byte = broken + kSuperblockBytes;
        DriveMetadata reader(faulty);
        const DriveContents half = co_await reader.read_contents();
        CHECK(half.kind == DriveContents::Kind::kSuperblock);
        CHECK(half.why.find("cannot be read") != std::string::npos);
        // The next write mends it.
        faulty.operation.reset();
        co_await poke(*device, broken + 1024, std::byte{0x55});
        DriveMetadata mender(faulty);
        const DriveContents damaged = co_await mender.read_contents();
        CHECK(damaged.why.find("checksum") != std::string::npos);
        const Error mended = co_await mender.write_superblock(written);
        CHECK(mended == Error::kNone);
        DriveMetadata last(faulty);
        const DriveContents whole = co_await last.read_contents();
        CHECK(whole.why.empty());
      }
    }(home);
  });
}

TEST_CASE("what is on a drive without a superblock is told", "[raid][drive_metadata]") {
  run_on_reactor([](Executor& home) -> Task<void> {
    return [](Executor& executor) -> Task<void> {
      using Kind = DriveContents::Kind;
      for (const std::uint64_t bytes : {kDeviceBytes, std::uint64_t{1u << 20}}) {
        const auto device = make_memory(executor, 512, bytes);
        DriveMetadata metadata(*device);
        const DriveContents blank = co_await metadata.read_contents();
        CHECK(blank.kind == Kind::kBlank);
      }
      for (const std::uint64_t at : {std::uint64_t{512}, std::uint64_t{1024} << 10,
                                     kDefaultDataOffset + 4096, kDeviceBytes - 512}) {
        const auto device = make_memory(executor);
        co_await poke(*device, at, std::byte{1});
        DriveMetadata metadata(*device);
        const DriveContents foreign = co_await metadata.read_contents();
        CHECK(foreign.kind == Kind::kForeign);
      }
      const auto tiny = make_memory(executor, 512, 512u << 10);
      DriveMetadata too_small(*tiny);
      const DriveContents small = co_await too_small.read_contents();
      CHECK(small.kind == Kind::kForeign);
      Random random(1);
      const Error refused = co_await too_small.write_superblock(some_member(random));
      CHECK(refused == Error::kNoSpace);

      const auto device = make_memory(executor);
      DriveMetadata writer(*device);
      co_await writer.write_superblock(some_member(random));
      for (const std::uint64_t at : kSuperblockOffset) {
        co_await poke(*device, at + 2048, std::byte{1});
      }
      DriveMetadata reader(*device);
      const DriveContents damaged = co_await reader.read_contents();
      CHECK(damaged.kind == Kind::kDamaged);
      const Error erased = co_await reader.erase_superblock();
      CHECK(erased == Error::kNone);
      DriveMetadata after(*device);
      const DriveContents gone = co_await after.read_contents();
      CHECK(gone.kind == Kind::kBlank);

      Faulty faulty(*device);
      faulty.operation = Operation::kRead;
      faulty.error = Error::kHardware;
      DriveMetadata dead(faulty);
      const DriveContents silent = co_await dead.read_contents();
      CHECK(silent.kind == Kind::kUnreadable);
      CHECK(silent.error == Error::kHardware);
      const Error failed = co_await dead.write_superblock(some_member(random));
      CHECK(failed == Error::kHardware);
      CHECK(faulty.writes == 0);
    }(home);
  });
}

TEST_CASE("a write that fails never takes the whole copy with it", "[raid][drive_metadata]") {
  run_on_reactor([](Executor& home) -> Task<void> {
    return [](Executor& executor) -> Task<void> {
      Random random(3);
      const auto device = make_memory(executor);
      Faulty faulty(*device);
      DriveMetadata metadata(faulty);
      Superblock before = some_member(random);
      RegionMap map(before.set_uuid, 500, 5);
      const Error first = co_await metadata.write_superblock(before);
      const Error mapped = co_await metadata.write_region_map(image_of(map.encode_next()));
      CHECK(first == Error::kNone);
      CHECK(mapped == Error::kNone);
      faulty.error = Error::kHardware;
      for (int round = 0; round < 6; ++round) {
        Superblock after = before;
        after.advance(random);
        faulty.operation = Operation::kWrite;
        const Error failed = co_await metadata.write_superblock(after);
        CHECK(failed == Error::kHardware);
        map.set_dirty(static_cast<std::uint64_t>(round), true);
        const Error map_failed = co_await metadata.write_region_map(image_of(map.encode_next()));
        CHECK(map_failed == Error::kHardware);
        // Every failed write left its place half written.
        for (const std::uint64_t at : {kSuperblockOffset[0], kRegionMapOffset[1]}) {
          co_await poke(*device, at, std::byte{0x77});
        }
        faulty.operation.reset();
        DriveMetadata reader(faulty);
        const auto read = (co_await reader.read_contents()).superblock;
        CHECK(read.has_value());
        if (read.has_value()) CHECK(*read == before);
        const auto read_map = co_await reader.read_region_map(before.set_uuid);
        CHECK(read_map.has_value());
        if (read_map.has_value()) CHECK(read_map->sequence() == 1);
      }
    }(home);
  });
}

TEST_CASE("maps and lists of another set or of a past that was left do not survive a write",
          "[raid][drive_metadata]") {
  run_on_reactor([](Executor& home) -> Task<void> {
    return [](Executor& executor) -> Task<void> {
      const auto device = make_memory(executor);
      const Uuid one{1};
      const Uuid two{2};
      DriveMetadata metadata(*device);
      RegionMap left(one, 500, 5);
      LostSectors lost(one, 5000);
      for (int count = 0; count < 9; ++count) {
        co_await metadata.write_region_map(image_of(left.encode_next()));
        co_await metadata.write_lost_sectors(image_of(lost.encode_next()));
      }
      RegionMap right(one, 500, 5);
      right.set_dirty(7, true);
      co_await metadata.write_region_map(image_of(right.encode_next()));
      DriveMetadata reader(*device);
      const auto read = co_await reader.read_region_map(one);
      CHECK(read.has_value());
      if (read.has_value()) CHECK(read->sequence() == 1);
      const auto other = co_await reader.read_region_map(two);
      CHECK(!other.has_value());
      const auto list = co_await reader.read_lost_sectors(one);
      CHECK(list.has_value());
      if (list.has_value()) CHECK(list->sequence() == 9);
      LostSectors of_two(two, 100);
      of_two.add({.first = 5, .block_count = 6});
      DriveMetadata writer(*device);
      co_await writer.write_lost_sectors(image_of(of_two.encode_next()));
      const auto theirs = co_await writer.read_lost_sectors(two);
      CHECK(theirs.has_value());
      if (theirs.has_value()) CHECK(theirs->extents() == of_two.extents());
    }(home);
  });
}

// ---- power cuts ---------------------------------------------------------------------------------

// What was begun and what had ended, by sequence; 0 at first.
struct Progress {
  std::uint32_t superblock_begun = 0;
  std::uint32_t superblock_ended = 0;
  std::uint64_t map_begun = 0;
  std::uint64_t map_ended = 0;
};

Task<std::unique_ptr<FileDevice>> open_drive(Executor& home) {
  auto opened = co_await FileDevice::open(
      home, {.path = "drive", .create = true, .byte_count = kDeviceBytes});
  if (!opened.has_value()) FAIL(opened.error());
  co_return std::move(*opened);
}

Task<void> write_on(Executor& home, std::uint64_t seed, Progress* progress) {
  const auto device = co_await open_drive(home);
  DriveMetadata metadata(*device);
  Random random(seed);
  Superblock superblock = some_member(random);
  RegionMap map(superblock.set_uuid, 4000, 5);
  for (int round = 0; round < 6; ++round) {
    map.set_stale(1, false, random.below(4000), true);
    map.set_stale(2, false, random.below(4000), true);
    const auto image = image_of(map.encode_next());
    progress->map_begun = map.sequence();
    const Error mapped = co_await metadata.write_region_map(image);
    CHECK(mapped == Error::kNone);
    progress->map_ended = map.sequence();
    progress->superblock_begun = event_number(superblock.event);
    const Error written = co_await metadata.write_superblock(superblock);
    CHECK(written == Error::kNone);
    progress->superblock_ended = event_number(superblock.event);
    superblock.advance(random);
  }
}

Task<void> look(Executor& home, std::uint64_t seed, Progress progress) {
  const auto device = co_await open_drive(home);
  Random random(seed);
  const Uuid set = some_member(random).set_uuid;
  DriveMetadata metadata(*device);
  const auto superblock = (co_await metadata.read_contents()).superblock;
  if (superblock.has_value()) {
    CHECK(event_number(superblock->event) >= progress.superblock_ended);
    CHECK(event_number(superblock->event) <= progress.superblock_begun);
  } else {
    CHECK(progress.superblock_ended == 0);
  }
  const auto map = co_await metadata.read_region_map(set);
  if (map.has_value()) {
    CHECK(map->sequence() >= progress.map_ended);
    CHECK(map->sequence() <= progress.map_begun);
  } else {
    CHECK(progress.map_ended == 0);
  }
}

TEST_CASE("a power cut at any write leaves the old or the new", "[raid][drive_metadata][sim]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 9));
  CAPTURE(seed);
  struct Moment {
    std::shared_ptr<const sim::FilesSnapshot> files;
    Progress progress;
  };
  std::vector<Moment> moments;
  Progress progress;
  const auto world = sim::World::create({.seed = seed});
  world->observe_writes([&](const std::string&) {
    moments.push_back({.files = world->snapshot_files(), .progress = progress});
  });
  Executor& home = *world->executors()[0];
  REQUIRE(world->run([&] { return write_on(home, seed, &progress); }));
  world->observe_writes(nullptr);
  REQUIRE(moments.size() > 18);
  for (const Moment& moment : moments) {
    for (std::uint64_t crash = 1; crash <= 4; ++crash) {
      const auto after = sim::World::create({.seed = seed * 100 + crash, .files = moment.files});
      after->cut_power();
      Executor& executor = *after->executors()[0];
      REQUIRE(after->run([&] { return look(executor, seed, moment.progress); }));
    }
  }
}

}  // namespace
}  // namespace sandbay::raid::testing::drive_metadata_test
