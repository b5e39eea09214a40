// Damage of the write memory while it is in use: what is damaged never reaches the drives as if it
// were good. The mirror's copy stands in; without one the blocks are lost, which is told, and read
// as medium errors until they are rewritten.
#include <algorithm>
#include <catch2/catch.hpp>

#include "nvram_controller.h"

namespace sandbay::cache {
namespace {

using nvram::SimulatedBoard;
using testing::Bytes;

constexpr std::size_t kWriteBytes = 4096;  // One piece of memory, eight blocks.

// Flips a bit wherever the board has these bytes. How often that was.
unsigned damage(SimulatedBoard& board, const Bytes& content) {
  const std::span<std::byte> memory = board.memory();
  unsigned count = 0;
  for (std::size_t at = 0; at + content.size() <= memory.size(); at += 512) {
    if (!std::ranges::equal(memory.subspan(at, content.size()), content)) continue;
    memory[at + 100] ^= std::byte{4};
    ++count;
  }
  return count;
}

// What the owner of the cache is told, and what he answers.
struct Owner {
  Error answer = Error::kNone;
  unsigned asked = 0;
  std::vector<VolumeExtent> told;
};

Task<Error> note(Owner* owner, std::vector<VolumeExtent> damaged) {
  ++owner->asked;
  if (owner->answer == Error::kNone) {
    owner->told.insert(owner->told.end(), damaged.begin(), damaged.end());
  }
  co_return owner->answer;
}

void tell(Cache& cache, Owner& owner) {
  cache.on_damaged = [&owner](Uuid, std::vector<VolumeExtent> damaged) {
    return note(&owner, std::move(damaged));
  };
}

Task<void> check_lost(CachedDevice& device, Lba first) {
  for (const bool forced : {false, true}) {
    const Completion got =
        co_await try_read(device, {first - 2, 20}, {.force_unit_access = forced});
    REQUIRE(got.error == Error::kMediumError);
    REQUIRE(got.first_bad_lba == first);
  }
}

Task<void> loses(Executor& home) {
  SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  Owner owner{.answer = Error::kNotReady};
  tell(*controller.cache, owner);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  co_await write(*below.memory, 0, pattern(64 * 512, 9));
  for (Lba lba = 0; lba < 64; lba += 8) {
    co_await write(device, lba, pattern(kWriteBytes, lba), {.volume = 5});
  }
  REQUIRE(damage(board, pattern(kWriteBytes, 24)) == 1);
  // Until it is noted, nothing of that stripe goes, and its record stays.
  Error error = co_await device.destage_all();
  REQUIRE(error == Error::kNotReady);
  REQUIRE(controller.memory->live_writes() == 8);
  REQUIRE(below.recording.count(Operation::kWrite) == 0);
  co_await check_lost(device, 24);
  owner.answer = Error::kNone;
  error = co_await device.destage_all();
  REQUIRE(error == Error::kNone);
  REQUIRE(controller.memory->live_writes() == 0);
  REQUIRE(device.dirty_bytes() == 0);
  REQUIRE(device.counters().damaged_bytes == kWriteBytes);
  REQUIRE(owner.told.size() == 1);
  REQUIRE(owner.told[0].volume == 5);
  REQUIRE(owner.told[0].extent == Extent{24, 8});
  co_await check_lost(device, 24);
  const Bytes before = co_await read(device, {0, 24});
  const Bytes stored = co_await read(*below.memory, {0, 64});
  for (Lba lba = 0; lba < 64; lba += 8) {
    const auto from = stored.begin() + static_cast<std::ptrdiff_t>(lba * 512);
    const Bytes part(from, from + kWriteBytes);
    if (lba == 24) {
      const Bytes old = pattern(64 * 512, 9);
      REQUIRE(std::equal(part.begin(), part.end(), old.begin() + 24 * 512));
    } else {
      REQUIRE(part == pattern(kWriteBytes, lba));
    }
  }
  REQUIRE(std::equal(before.begin(), before.end(), stored.begin()));
  // Rewritten, in part and then all of it.
  co_await write(device, 24, pattern(4 * 512, 1));
  co_await check_lost(device, 28);
  co_await write(device, 28, pattern(4 * 512, 2), {.force_unit_access = true});
  const Bytes again = co_await read(device, {28, 4});
  REQUIRE(again == pattern(4 * 512, 2));
  co_await close(controller);
  const Bytes rest = co_await read(*below.memory, {24, 4});
  REQUIRE(rest == pattern(4 * 512, 1));
}

Task<void> mends(Executor& home) {
  SimulatedBoard board(8 * kMiB);
  SimulatedBoard mirror(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board, {.mirror = &mirror});
  Owner owner;
  tell(*controller.cache, owner);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  co_await write(device, 0, pattern(8 * kWriteBytes, 3));
  co_await write(device, 200, pattern(kWriteBytes, 4));
  Bytes part = pattern(8 * kWriteBytes, 3);
  part.resize(kWriteBytes);
  REQUIRE(damage(board, part) == 1);
  REQUIRE(damage(board, pattern(kWriteBytes, 4)) == 1);
  REQUIRE(damage(mirror, pattern(kWriteBytes, 4)) == 1);
  const Error error = co_await device.destage_all();
  REQUIRE(error == Error::kNone);
  REQUIRE(controller.memory->mended_bytes() > 0);
  REQUIRE(owner.told.size() == 1);
  REQUIRE(owner.told[0].extent == Extent{200, 8});
  const Bytes stored = co_await read(*below.memory, {0, 64});
  REQUIRE(stored == pattern(8 * kWriteBytes, 3));
  co_await check_lost(device, 200);
  co_await close(controller);
}

// Killed before it is noted, the next start finds it, too.
Task<void> is_found_again(Executor& home) {
  SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  Owner owner{.answer = Error::kNotReady};
  tell(*controller.cache, owner);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  co_await write(device, 0, pattern(kWriteBytes, 3));
  co_await write(device, 400, pattern(kWriteBytes, 4));
  REQUIRE(damage(board, pattern(kWriteBytes, 3)) == 1);
  const Error error = co_await device.destage_all();
  REQUIRE(error == Error::kNotReady);
  co_await stop(controller);
  const auto nvram = co_await open_board(home, board, "board", {});
  auto memory = co_await WriteMemory::open(
      nvram.get(), nullptr,
      {.data_bytes = 4 * kMiB, .log_bytes = 256 * 1024, .slab_bytes = 256 * 1024});
  REQUIRE(memory.has_value());
  const WriteRecovery recovery = (*memory)->recover();
  REQUIRE(recovery.lost.size() == 1);
  REQUIRE(recovery.lost[0].subject.extent == Extent{0, 8});
}

// A write over an older one that is not released yet: damaged, it goes no sooner than that, or a
// crash would bring the older one back as if nothing had been lost.
Task<void> outlives_older(Executor& home) {
  SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  co_await write(device, 0, pattern(4 * kWriteBytes, 3));
  co_await write(device, 8, pattern(kWriteBytes, 4));
  REQUIRE(damage(board, pattern(kWriteBytes, 4)) == 1);
  below.faulty.fail({.operation = Operation::kFlush, .times = 1});
  Error error = co_await device.destage_all();
  REQUIRE(error != Error::kNone);
  REQUIRE(controller.memory->live_writes() == 2);
  co_await check_lost(device, 8);
  error = co_await device.destage_all();
  REQUIRE(error == Error::kNone);
  REQUIRE(controller.memory->live_writes() == 0);
  co_await check_lost(device, 8);
  co_await close(controller);
}

// A record that is written anew elsewhere says what the bytes were, not what they have become.
Task<void> is_moved(Executor& home) {
  SimulatedBoard board(8 * kMiB);
  SimulatedBoard mirror(8 * kMiB);
  Below failed(home, {});
  Below below(home, {});
  Controller controller = co_await start(home, board, {.mirror = &mirror});
  Owner owner;
  tell(*controller.cache, owner);
  CachedDevice& stuck = controller.cache->add_device(uuid_of(1), failed.recording);
  CachedDevice& device = controller.cache->add_device(uuid_of(2), below.recording);
  co_await write(stuck, 0, pattern(kWriteBytes, 3));
  REQUIRE(damage(board, pattern(kWriteBytes, 3)) == 1);
  REQUIRE(damage(mirror, pattern(kWriteBytes, 3)) == 1);
  bool moved = false;
  for (Lba i = 0; i < 4000; ++i) {
    co_await write(device, i % 8 * 8, Bytes(kWriteBytes));
    moved = moved || controller.memory->moving_records();
  }
  REQUIRE(controller.memory->live_writes() < 100);
  const Error error = co_await stuck.destage_all();
  REQUIRE(error == Error::kNone);
  REQUIRE(owner.told.size() == 1);
  co_await close(controller);
}

// What is clean in the write memory is no source for a stripe as a whole.
Task<void> clean_is_not_trusted(Executor& home) {
  SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  const std::size_t stripe = 192 * 1024;
  for (std::size_t at = 0; at < stripe; at += kWriteBytes) {
    co_await write(device, at / 512, pattern(kWriteBytes, at));
  }
  Error error = co_await device.destage_all();
  REQUIRE(error == Error::kNone);
  REQUIRE(damage(board, pattern(kWriteBytes, 8 * kWriteBytes)) == 1);
  co_await write(device, 0, pattern(kWriteBytes, 1));
  error = co_await device.destage_all();
  REQUIRE(error == Error::kNone);
  const Bytes stored = co_await read(*below.memory, {64, 8});
  REQUIRE(stored == pattern(kWriteBytes, 8 * kWriteBytes));
  co_await close(controller);
}

Task<void> read_late(CachedDevice* device, Extent extent, bool* ended) {
  (void)co_await read(*device, extent);
  *ended = true;
}

// A read of the drives takes its time. Meanwhile its first blocks are written, destaged and, since
// others are damaged, forgotten: the read ends with older data.
Task<void> slow_read_is_outdated(Executor& home) {
  SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  co_await write(*below.memory, 0, pattern(16 * 512, 9));
  below.late.hold();
  bool ended = false;
  spawn(read_late(&device, {0, 16}, &ended));
  co_await home.yield();
  co_await write(device, 0, pattern(kWriteBytes, 1));
  Error error = co_await device.destage_all();
  REQUIRE(error == Error::kNone);
  co_await write(device, 400, pattern(kWriteBytes, 2));
  REQUIRE(damage(board, pattern(kWriteBytes, 2)) == 1);
  error = co_await device.destage_all();
  REQUIRE(error == Error::kNone);
  REQUIRE_FALSE(ended);
  below.late.release();
  co_await home.sleep_for(std::chrono::seconds(1));
  REQUIRE(ended);
  const Bytes got = co_await read(device, {0, 8});
  REQUIRE(got == pattern(kWriteBytes, 1));
  co_await close(controller);
}

// The same for the damaged blocks: their old content must not be destaged as part of a whole
// stripe, or a restart would read it as good.
Task<void> lost_blocks_fill_no_stripe(Executor& home) {
  SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  Owner owner;
  tell(*controller.cache, owner);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  below.late.hold();
  bool ended = false;
  spawn(read_late(&device, {0, 384}, &ended));  // One stripe.
  co_await home.yield();
  co_await write(device, 8, pattern(kWriteBytes, 1));
  REQUIRE(damage(board, pattern(kWriteBytes, 1)) == 1);
  Error error = co_await device.destage_all();
  REQUIRE(error == Error::kNone);
  REQUIRE(owner.told.size() == 1);
  below.late.release();
  co_await home.sleep_for(std::chrono::seconds(1));
  REQUIRE(ended);
  // Reading ahead brings it again.
  Request advice{.operation = Operation::kAdvise, .extent = {0, 384}};
  (void)co_await device.submit(std::move(advice));
  co_await home.sleep_for(std::chrono::seconds(1));
  co_await write(device, 0, pattern(kWriteBytes, 2));
  error = co_await device.destage_all();
  REQUIRE(error == Error::kNone);
  REQUIRE(below.recording.count(Operation::kWrite) > 0);
  for (const testing::SeenRequest& seen : below.recording.seen()) {
    if (seen.operation == Operation::kWrite) REQUIRE_FALSE(seen.extent.overlaps({8, 8}));
  }
  co_await close(controller);
}

void run_it(Task<void> (*body)(Executor&)) { testing::run_in_world(1, body); }

}  // namespace

TEST_CASE("What is damaged in the NVRAM is lost, told, and read as a medium error",
          "[cache][nvram][damage]") {
  run_it(loses);
}

TEST_CASE("What is damaged in the NVRAM comes from the mirror", "[cache][nvram][damage]") {
  run_it(mends);
}

TEST_CASE("Damage that was not noted before a kill is found by the next start",
          "[cache][nvram][damage]") {
  run_it(is_found_again);
}

TEST_CASE("A damaged write stays until no older one can come back", "[cache][nvram][damage]") {
  run_it(outlives_older);
}

TEST_CASE("A record that moves does not make damage good", "[cache][nvram][damage]") {
  run_it(is_moved);
}

TEST_CASE("Clean data in the NVRAM does not fill stripes", "[cache][nvram][damage]") {
  run_it(clean_is_not_trusted);
}

TEST_CASE("A slow read does not replace what damage made the cache forget",
          "[cache][nvram][damage][R-A7]") {
  run_it(slow_read_is_outdated);
}

TEST_CASE("Lost blocks do not fill stripes with their old content",
          "[cache][nvram][damage][R-A7]") {
  run_it(lost_blocks_fill_no_stripe);
}

}  // namespace sandbay::cache
