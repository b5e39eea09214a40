// Goal: a write that waits while its memory becomes unsafe is not acknowledged from there: it is
// below, and flushed, when it ends.
// Method: a log that is full, and an image whose syncs take their time; meanwhile the battery
// becomes low.
#include <catch2/catch.hpp>

#include "nvram_controller.h"

namespace sandbay::cache {
namespace {

using nvram::BatteryState;
using nvram::SimulatedBoard;
using std::chrono::milliseconds;
using testing::Bytes;
using testing::run_in_world;

Task<void> weaken(Executor& home, WriteMemory* memory, Duration after) {
  co_await home.sleep_for(after);
  memory->battery().set_state(BatteryState::kLow);
}

// Records of another device that nobody releases, until a small one would wait.
Task<std::vector<WriteId>> fill_log(Executor& home, WriteMemory* memory) {
  std::vector<WriteId> ids;
  for (const std::size_t slice : {std::size_t{128}, std::size_t{4096}}) {
    for (;;) {
      BufferList whole = memory->buffers().try_allocate(4096);
      REQUIRE_FALSE(whole.empty());
      BufferList data;
      for (std::size_t at = 0; at < 4096; at += slice) data.append(whole[0].slice(at, slice));
      Request impatient;
      impatient.deadline = home.now() + milliseconds(1);
      const WriteSubject subject{.device = uuid_of(9),
                                 .extent = {.first = 8 * ids.size(), .block_count = 8}};
      const Result<WriteId> id =
          co_await memory->append(subject, std::move(data), Patience(impatient));
      if (!id) break;
      ids.push_back(*id);
    }
  }
  co_return ids;
}

Task<void> release_later(Executor& home, WriteMemory* memory, std::vector<WriteId> ids) {
  co_await home.sleep_for(milliseconds(200));
  for (const WriteId id : ids) memory->release(id);
}

Task<void> check_below(Below* below, Lba first, Bytes content) {
  const Bytes stored = co_await read(*below->memory, {first, content.size() / 512});
  REQUIRE(stored == content);
  REQUIRE(below->recording.count(Operation::kWrite) > 0);
  const auto& seen = below->recording.seen();
  const bool forced = std::ranges::all_of(seen, [](const testing::SeenRequest& request) {
    return request.operation != Operation::kWrite || request.force_unit_access;
  });
  const bool flushed = !seen.empty() && seen.back().operation == Operation::kFlush;
  REQUIRE((forced || flushed));
}

Task<void> waits_for_log(Executor& home, bool force_unit_access) {
  SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller = co_await start(home, board);
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  WriteMemory* const memory = controller.memory.get();
  std::vector<WriteId> ids = co_await fill_log(home, memory);
  spawn(weaken(home, memory, milliseconds(100)));
  spawn(release_later(home, memory, std::move(ids)));
  const TimePoint start = home.now();
  co_await write(device, 0, pattern(4096, 1), {.force_unit_access = force_unit_access});
  REQUIRE(home.now() - start >= milliseconds(200));  // It did wait.
  co_await check_below(&below, 0, pattern(4096, 1));
  co_await close(controller);
}

// The first of two pieces is in the memory, or on its way there, when the battery becomes low.
Task<void> waits_for_sync(Executor& home, Duration after) {
  SimulatedBoard board(8 * kMiB);
  Below below(home, {});
  Controller controller =
      co_await start(home, board, ControllerOptions{.durability = nvram::Durability::kHost});
  CachedDevice& device = controller.cache->add_device(uuid_of(1), below.recording);
  board.sync_time = milliseconds(300);
  spawn(weaken(home, controller.memory.get(), after));
  const Bytes content = pattern(2 * kMiB, 1);
  co_await write(device, 0, content, {.force_unit_access = true});
  co_await check_below(&below, 0, content);
  co_await close(controller);
}

}  // namespace

TEST_CASE("A write that waited for log room is below when the battery became low meanwhile",
          "[cache][nvram][R-C3]") {
  const bool force_unit_access = GENERATE(false, true);
  CAPTURE(force_unit_access);
  run_in_world(
      1, [force_unit_access](Executor& home) { return waits_for_log(home, force_unit_access); });
}

TEST_CASE("A write in two pieces is below when the battery went low between or in them",
          "[cache][nvram][R-C3]") {
  const int after = GENERATE(100, 310, 450);
  CAPTURE(after);
  run_in_world(1, [after](Executor& home) { return waits_for_sync(home, milliseconds(after)); });
}

}  // namespace sandbay::cache
