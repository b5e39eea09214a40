// What a controller's cache notes and tells of acknowledged writes that are damaged in its NVRAM,
// that cannot be brought to their drives, and that an operator has given up.
#include "tests/unit/block/on_executor.h"
#include "tests/unit/block/test_devices.h"
#include "tests/unit/group/controller_cache_rig.h"

namespace sandbay::group::testing {
namespace {

using Catch::Contains;
using nvram::SimulatedBoard;
using sandbay::testing::FaultyDevice;

constexpr std::uint64_t kVolume = 77;
const ControllerCache::VolumePlaces kPlaces = {{kVolume, {.name = "v", .first = 1000}}};
const ControllerCache::VolumePlaces kPoolPlaces = {{kVolume, {.name = "v", .first = {}}}};

void run_in_world(const sandbay::testing::Start& start) {
  sandbay::testing::run_in_world(1, start);
}

Task<void> write_to_volume(BlockDevice& device, Lba first, std::uint8_t byte) {
  Request request{.operation = Operation::kWrite,
                  .extent = {.first = 1000 + first, .block_count = 8},
                  .volume = kVolume};
  request.data = co_await device.home().buffers().allocate(4096);
  const std::vector<std::byte> content(4096, std::byte{byte});
  request.data.copy_from(content);
  const Completion done = co_await device.submit(std::move(request));
  REQUIRE(done.error == Error::kNone);
}

// The first write has the metadata note that the set's writes are in this NVRAM.
Task<void> open_for_writes(Run& run, BlockDevice& device) {
  const Error error = co_await write(device, 0, 1);
  REQUIRE(error == Error::kNone);
  co_await device.home().sleep_for(std::chrono::milliseconds(10));
  const auto flushed = co_await run.cache->flush(std::nullopt);
  REQUIRE(flushed.has_value());
}

// Flips a bit wherever the board has 4 KiB of this byte.
void damage(SimulatedBoard& board, std::uint8_t byte) {
  const std::vector<std::byte> content(4096, std::byte{byte});
  const auto memory = board.memory();
  unsigned count = 0;
  for (std::size_t at = 0; at + 4096 <= memory.size(); at += 4096) {
    if (!std::ranges::equal(memory.subspan(at, 4096), content)) continue;
    memory[at + 77] ^= std::byte{1};
    ++count;
  }
  REQUIRE(count == 1);
}

// Damage ----------------------------------------------------------------------------------------

struct Lost {
  Error answer = Error::kNone;
  std::vector<Extent> extents;
};

Task<Error> note_lost(Lost* lost, std::vector<Extent> extents) {
  if (lost->answer == Error::kNone) lost->extents = std::move(extents);
  co_return lost->answer;
}

Task<void> is_damaged(Executor& home) {
  SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  const auto run = co_await begin(home, books, {.nvram = &board});
  run->cache->know_volumes(kPlaces);
  Lost lost{.answer = Error::kNotReady, .extents = {}};
  run->cache->lose = [&lost](Uuid, std::vector<Extent> extents) {
    return note_lost(&lost, std::move(extents));
  };
  BlockDevice& device = run->cache->above(kSetUuid, *set);
  co_await open_for_writes(*run, device);
  co_await write_to_volume(device, 8, 5);
  co_await write_to_volume(device, 80, 6);
  damage(board, 5);
  // Neither the metadata nor the set can be written, one after the other.
  books.failing = true;
  auto flushed = co_await run->cache->flush(std::nullopt);
  REQUIRE_FALSE(flushed.has_value());
  CHECK(run->told("writes lost") == 0);
  books.failing = false;
  flushed = co_await run->cache->flush(std::nullopt);
  REQUIRE_FALSE(flushed.has_value());
  CHECK(books.entries.contains(lost_key(kSetUuid)));
  lost.answer = Error::kNone;
  flushed = co_await run->cache->flush(std::nullopt);
  REQUIRE_FALSE(flushed.has_value());
  CHECK_THAT(flushed.error(), Contains("were damaged in the NVRAM and are lost"));
  CHECK(lost.extents == std::vector<Extent>{{1008, 8}});
  const CacheInfo info = run->cache->show(kPlaces);
  REQUIRE(info.sets.at(0).lost.size() == 1);
  CHECK(info.sets[0].lost[0].volume == "v");
  CHECK_FALSE(info.sets[0].lost[0].of_set);
  CHECK(info.sets[0].lost[0].first_block == 8);
  CHECK(info.sets[0].lost[0].block_count == 8);
  CHECK(info.sets[0].counters.damaged_bytes == 4096);
  CHECK(info.sets[0].stuck_bytes == 0);
  // Everything is where it can be now.
  flushed = co_await run->cache->flush(std::nullopt);
  CHECK(flushed.has_value());
  const int other = co_await read(*set, 1080);
  CHECK(other == 6);
  const int damaged = co_await read(*set, 1008);
  CHECK(damaged == 0);
  co_await end(*run);
}

// The NVRAM's file is cut short, and the first to find that out is who releases a write of several
// lines.
Task<void> is_cut_short(Executor& home) {
  SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  const auto run =
      co_await begin(home, books, {.nvram = &board, .durability = nvram::Durability::kHost});
  BlockDevice& device = run->cache->above(kSetUuid, *set);
  co_await open_for_writes(*run, device);
  for (const std::uint64_t bytes : {256 * 1024, 4096}) {
    Request request{.operation = Operation::kWrite,
                    .extent = {.first = 1024, .block_count = bytes / 512}};
    request.data = co_await home.buffers().allocate(bytes);
    const Completion done = co_await device.submit(std::move(request));
    REQUIRE(done.error == Error::kNone);
  }
  co_await home.sleep_for(std::chrono::seconds(1));
  board.cut_short(board.byte_count() - 4096);
  (void)co_await run->cache->flush(std::nullopt);
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(run->told("nvram failed") == 1);
  co_await end(*run);
}

// Of a volume on a pool, whose map says where the blocks are.
Task<void> is_damaged_on_a_pool(Executor& home) {
  SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  const auto run = co_await begin(home, books, {.nvram = &board});
  run->cache->know_volumes(kPoolPlaces);
  BlockDevice& device = run->cache->above(kSetUuid, *set);
  co_await open_for_writes(*run, device);
  co_await write_to_volume(device, 8, 5);
  damage(board, 5);
  const auto flushed = co_await run->cache->flush(std::nullopt);
  REQUIRE_FALSE(flushed.has_value());
  CHECK_THAT(run->text("writes lost"),
             Contains("writes to blocks 1008 to 1015 of the set, of volume v, are lost"));
  const CacheInfo info = run->cache->show(kPoolPlaces);
  REQUIRE(info.sets.at(0).lost.size() == 1);
  CHECK(info.sets[0].lost[0].volume == "v");
  CHECK(info.sets[0].lost[0].of_set);
  CHECK(info.sets[0].lost[0].first_block == 1008);
  REQUIRE(info.volumes.size() == 1);
  CHECK(info.volumes[0].counters.writes == 1);
  co_await end(*run);
}

// Stuck
// ---------------------------------------------------------------------------------------------

Task<void> is_stuck(Executor& home) {
  SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto memory = memory_set(home);
  FaultyDevice set(*memory);
  const auto run = co_await begin(home, books, {.nvram = &board});
  BlockDevice& device = run->cache->above(kSetUuid, set);
  co_await open_for_writes(*run, device);
  co_await write_to_volume(device, 8, 5);
  run->cache->look_after_sets();
  CHECK(run->told("writes stuck") == 0);
  // Nobody has wanted it on the drives yet, which have gone.
  set.fail({.error = Error::kNotReady});
  set.set_health(Health::kFailed);
  run->cache->look_after_sets();
  co_await home.sleep_for(std::chrono::milliseconds(10));
  run->cache->look_after_sets();
  REQUIRE(run->told("writes stuck") == 1);
  CHECK_THAT(run->text("writes stuck"), Contains("set r: 4.00 KiB of acknowledged writes cannot"));
  CHECK(run->cache->show({}).sets.at(0).stuck_bytes == 4096);
  CHECK(run->told("writes go on") == 0);
  set.clear();
  set.set_health(Health::kGood);
  const auto flushed = co_await run->cache->flush(std::nullopt);
  CHECK(flushed.has_value());
  CHECK(run->told("writes go on") == 1);
  CHECK(run->cache->show({}).sets.at(0).stuck_bytes == 0);
  co_await end(*run);
}

Task<void> waits(Executor& home) {
  SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  const Rack rack{.nvram = &board};
  co_await leave_dirty(home, books, rack, *set);
  const auto run = co_await begin(home, books, rack);
  run->cache->look_after_sets();
  run->cache->look_after_sets();
  REQUIRE(run->told("writes stuck") == 1);
  CHECK_THAT(run->text("writes stuck"), Contains("4.00 KiB") && Contains("it is not there"));
  const CachedSetInfo info = run->cache->show({}).sets.at(0);
  CHECK(info.stuck_bytes == 4096);
  CHECK(info.failure == "it is not there");
  (void)run->cache->above(kSetUuid, *set);
  run->cache->look_after_sets();
  CHECK(run->told("writes go on") == 1);
  CHECK(run->cache->show({}).sets.at(0).stuck_bytes == 0);
  co_await end(*run);
}

// Given up --------------------------------------------------------------------------------------

Task<void> is_given_up(Executor& home) {
  SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto memory = memory_set(home);
  FaultyDevice set(*memory);
  const auto run = co_await begin(home, books, {.nvram = &board});
  run->cache->know_volumes(kPlaces);
  BlockDevice& device = run->cache->above(kSetUuid, set);
  co_await open_for_writes(*run, device);
  for (Lba i = 0; i < 20; ++i) co_await write_to_volume(device, 16 * i, 5);
  set.fail({.operation = Operation::kWrite, .error = Error::kNotReady});
  const auto flushed = co_await run->cache->flush(std::nullopt);
  REQUIRE_FALSE(flushed.has_value());
  const auto given = co_await run->cache->discard(kSetUuid);
  REQUIRE(given.has_value());
  CHECK(given->byte_count == 20 * 4096U);
  REQUIRE(given->ranges.size() == 16);
  CHECK(given->more_ranges == 4);
  CHECK(given->ranges[1].volume == "v");
  CHECK(given->ranges[1].first_block == 16);
  CHECK(given->ranges[1].block_count == 8);
  CHECK_THAT(run->text("writes discarded"),
             Contains("volume v blocks 16 to 23") && Contains("4 more"));
  CHECK(run->told("writes go on") == 0);
  const CachedSetInfo info = run->cache->show(kPlaces).sets.at(0);
  CHECK(info.lost.size() == 20);
  CHECK(info.stuck_bytes == 0);
  CHECK(books.entries.contains(lost_key(kSetUuid)));
  co_await end(*run);
}

Task<void> names_the_nvram(Executor& home) {
  SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  co_await leave_dirty(home, books, {.nvram = &board}, *set);
  const auto run = co_await begin(home, books, {.nvram = &board, .cache = ""});
  const std::string uuid = format_uuid(std::bit_cast<Uuid>(run->nvram->uuid()));
  const auto given = co_await run->cache->discard(kSetUuid);
  REQUIRE(given.has_value());
  CHECK_FALSE(given->byte_count.has_value());
  CHECK(given->nvram == uuid);
  CHECK_THAT(run->text("writes discarded"), Contains("acknowledged writes in NVRAM " + uuid));
  co_await end(*run);
}

}  // namespace

TEST_CASE("An NVRAM that is found cut short by a release fails, and not the process",
          "[group][cache]") {
  run_in_world(is_cut_short);
}

TEST_CASE("What a volume on a pool has lost is told of that volume", "[group][cache]") {
  run_in_world(is_damaged_on_a_pool);
}

TEST_CASE("What is damaged in the NVRAM is noted and told before it is forgotten",
          "[cache][group]") {
  run_in_world([](Executor& home) { return is_damaged(home); });
}

TEST_CASE("What cannot be brought to its drives is told at once", "[cache][group]") {
  run_in_world([](Executor& home) { return is_stuck(home); });
}

TEST_CASE("What waits for its set at a start is told", "[cache][group]") {
  run_in_world([](Executor& home) { return waits(home); });
}

TEST_CASE("What an operator gives up is told by volume and range", "[cache][group]") {
  run_in_world([](Executor& home) { return is_given_up(home); });
}

TEST_CASE("Giving up a barred set names the NVRAM", "[cache][group]") {
  run_in_world([](Executor& home) { return names_the_nvram(home); });
}

}  // namespace sandbay::group::testing
