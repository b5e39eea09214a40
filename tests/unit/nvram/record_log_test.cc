// The record log at work: room, waiting, limits, marks of fullness, shared syncs.
#include "nvram/record_log.h"

#include <catch2/catch.hpp>

#include "log_model.h"
#include "nvram/record_layout.h"

namespace sandbay::nvram {
namespace {

struct Appended {
  std::vector<std::uint64_t> order;
  std::vector<RecordId> ids;
  std::vector<Error> errors;
};

Task<void> append_bytes(RecordLog& log, std::uint64_t name, std::size_t byte_count,
                        Appended& result) {
  Bytes payload = bytes_of(name, byte_count);
  const IoSlice slice{payload.data(), payload.size()};
  const Result<RecordId> id = co_await log.append({}, std::span(&slice, 1));
  if (id.has_value()) {
    result.order.push_back(name);
    result.ids.push_back(*id);
  } else {
    result.errors.push_back(id.error());
  }
}

Task<void> wait_in_order(Executor& home, SimulatedBoard& board, Durability durability) {
  Bench bench = co_await start_bench(home, board, options_for(durability));
  RecordLog& log = *bench.log;
  CHECK(log.capacity_bytes() == 16384);
  CHECK(log.free_bytes() == 16384);
  Appended appended;
  co_await append_bytes(log, 1, 7000, appended);
  co_await append_bytes(log, 2, 7000, appended);
  CHECK(log.used_bytes() == 2 * record_bytes(0, 7000));
  spawn(append_bytes(log, 3, 8000, appended));
  spawn(append_bytes(log, 4, 10, appended));  // Would fit, but does not overtake.
  spawn(append_bytes(log, 5, 8000, appended));
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(log.waiting_appends() == 3);
  CHECK(appended.order == std::vector<std::uint64_t>{1, 2});
  log.release(appended.ids[1]);  // Not the oldest: frees nothing.
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(appended.order.size() == 2);
  CHECK(log.live_records() == 1);
  log.release(appended.ids[0]);
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(appended.order == std::vector<std::uint64_t>{1, 2, 3, 4});
  log.release(appended.ids[2]);
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(appended.order == std::vector<std::uint64_t>{1, 2, 3, 4, 5});
  spawn(append_bytes(log, 6, 8100, appended));
  co_await home.sleep_for(std::chrono::seconds(1));
  co_await log.close();
  CHECK(appended.errors == std::vector{Error::kClosed});
  co_await append_bytes(log, 7, 1, appended);
  CHECK(appended.errors.back() == Error::kClosed);
}

Task<void> limits(Executor& home, SimulatedBoard& board) {
  Bench bench = co_await start_bench(home, board, options_for(Durability::kProcess));
  RecordLog& log = *bench.log;
  const std::uint64_t largest = log.largest_payload_bytes(0);
  CHECK(largest == 8192 - 64);
  Appended appended;
  co_await append_bytes(log, 1, largest + 1, appended);
  CHECK(appended.errors == std::vector{Error::kInvalid});
  // From every start in the ring the largest record fits into an empty log.
  for (std::size_t i = 0; i < 300; ++i) {
    co_await append_bytes(log, i, i * 29 % 3000, appended);
    log.release(appended.ids.back());
    co_await append_bytes(log, i, largest, appended);
    log.release(appended.ids.back());
    CHECK(log.used_bytes() == 0);
  }
  CHECK(appended.errors.size() == 1);
  co_await append_bytes(log, 1, 0, appended);  // Nothing at all is a record too.
  CHECK(log.live_records() == 1);
}

Task<void> shared_syncs(Executor& home, SimulatedBoard& board) {
  Bench bench = co_await start_bench(home, board, options_for(Durability::kHost));
  Appended appended;
  const std::uint64_t before = bench.nvram->sync_count();
  for (std::uint64_t i = 0; i < 50; ++i) spawn(append_bytes(*bench.log, i, 20, appended));
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(appended.ids.size() == 50);
  CHECK(bench.nvram->sync_count() - before <= 2);
  for (const RecordId id : appended.ids) bench.log->release(id);
  const Error flushed = co_await bench.log->flush_releases();
  CHECK(flushed == Error::kNone);
  CHECK(bench.nvram->sync_count() - before <= 4);
  const std::uint64_t then = bench.nvram->sync_count();
  const Error again = co_await bench.log->flush_releases();
  CHECK(again == Error::kNone);
  CHECK(bench.nvram->sync_count() == then);
}

}  // namespace

TEST_CASE("Appends that find no room wait in order until the oldest are released", "[nvram]") {
  for (const auto durability : {Durability::kProcess, Durability::kHost}) {
    SimulatedBoard board(kImageBytes);
    run_in_world(1, [&](Executor& home) { return wait_in_order(home, board, durability); });
  }
}

TEST_CASE("Records of every size up to the largest fit, and none beyond", "[nvram]") {
  SimulatedBoard board(kImageBytes);
  run_in_world(1, [&](Executor& home) { return limits(home, board); });
}

TEST_CASE("Appends of a turn share a sync", "[nvram]") {
  SimulatedBoard board(kImageBytes);
  run_in_world(1, [&](Executor& home) { return shared_syncs(home, board); });
}

}  // namespace sandbay::nvram
