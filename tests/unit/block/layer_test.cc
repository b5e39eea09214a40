// Layer and the devices that tests stand on others: what they forward, hold, fail and delay.
// Other folders' tests rely on these devices, so what they promise is tested here like the
// product's own. All in virtual time.
#include "block/layer.h"

#include <catch2/catch.hpp>

#include "block/memory_device.h"
#include "on_executor.h"
#include "payload.h"
#include "tests/unit/block/test_devices.h"

namespace sandbay::testing {
namespace {

std::unique_ptr<MemoryDevice> make_memory(Executor& home) {
  auto device = MemoryDevice::create(home, {.byte_count = 1 << 20});
  REQUIRE(device.has_value());
  return std::move(*device);
}

// Overrides one operation and counts the rest that comes by.
class NoWrites final : public Layer {
 public:
  using Layer::Layer;

 protected:
  Task<Completion> write(Request request) override {
    co_return Completion{.error = Error::kReadOnly, .data = std::move(request.data)};
  }
};

Task<void> forwards(Executor& home) {
  Random random(1);
  const auto memory = make_memory(home);
  RecordingDevice recording(*memory);
  NoWrites layer(recording);
  CHECK(&layer.home() == &home);
  CHECK(&layer.geometry() == &memory->geometry());
  CHECK(layer.description() == "memory 1 MiB");
  CHECK(layer.health() == Health::kGood);
  Completion done = co_await write_blocks(layer, 3, Bytes(1024), Cut::kAligned, random);
  CHECK(done.error == Error::kReadOnly);
  CHECK(done.data.byte_count() == 1024);
  CHECK(recording.seen().empty());
  done = co_await read_blocks(layer, {3, 2}, Cut::kAligned, random);
  CHECK(done.error == Error::kNone);
  for (const Operation operation :
       {Operation::kFlush, Operation::kUnmap, Operation::kWriteZeroes, Operation::kAdvise}) {
    done = co_await do_without_data(layer, operation, {5, 7});
    CHECK(done.error == Error::kNone);
    CHECK(recording.seen().back().operation == operation);
    CHECK(recording.seen().back().extent == Extent{5, 7});
    CHECK(recording.count(operation) == 1);
  }
  CHECK(recording.seen().size() == 5);
  const auto run = co_await layer.provisioning(0, 5);
  CHECK((run.has_value() && run->mapped && run->block_count == 5));  // Zeroed above.
}

Task<void> do_into(BlockDevice& device, Operation operation, Cancellation* cancellation,
                   std::vector<Error>& results) {
  const Completion done = co_await do_without_data(device, operation, {0, 8}, cancellation);
  results.push_back(done.error);
}

Task<void> hangs(Executor& home) {
  const auto memory = make_memory(home);
  RecordingDevice recording(*memory);
  HungDevice hung(recording);
  std::vector<Error> results;
  Cancellation cancellation;
  hung.hang_only(Operation::kUnmap);
  spawn(do_into(hung, Operation::kFlush, nullptr, results));
  CHECK(results.size() == 1);
  spawn(do_into(hung, Operation::kUnmap, &cancellation, results));
  spawn(do_into(hung, Operation::kUnmap, nullptr, results));
  CHECK(hung.held() == 2);
  cancellation.cancel();  // Ignored, as told.
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(hung.held() == 2);
  hung.release_held();
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(results.size() == 3);
  CHECK(recording.count(Operation::kUnmap) == 2);

  Cancellation obeyed;
  hung.obey_cancellation(true);
  spawn(do_into(hung, Operation::kUnmap, &obeyed, results));
  CHECK(hung.held() == 1);
  obeyed.cancel();
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(results.back() == Error::kCancelled);
  CHECK(recording.count(Operation::kUnmap) == 2);
  hung.hang();
  spawn(do_into(hung, Operation::kUnmap, nullptr, results));
  hung.release();
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(results.back() == Error::kNone);
  CHECK(hung.held() == 0);
}

Task<void> fails(Executor& home) {
  Random random(1);
  const auto memory = make_memory(home);
  RecordingDevice recording(*memory);
  FaultyDevice faulty(recording);
  faulty.fail({.operation = Operation::kRead,
               .extent = {10, 2},
               .error = Error::kMediumError,
               .skip = 1,
               .times = 1});
  Completion done = co_await read_blocks(faulty, {8, 8}, Cut::kAligned, random);
  CHECK(done.error == Error::kNone);  // Skipped.
  done = co_await read_blocks(faulty, {0, 8}, Cut::kAligned, random);
  CHECK(done.error == Error::kNone);  // Elsewhere.
  done = co_await read_blocks(faulty, {8, 8}, Cut::kAligned, random);
  CHECK(done.error == Error::kMediumError);
  CHECK(done.first_bad_lba == 10);
  CHECK(done.data.byte_count() == 8 * 512);
  done = co_await read_blocks(faulty, {8, 8}, Cut::kAligned, random);
  CHECK(done.error == Error::kNone);  // Used up.
  CHECK(faulty.struck() == 1);
  recording.clear();
  faulty.fail({.error = Error::kTimedOut, .after_effect = true});
  done = co_await write_blocks(faulty, 4, Bytes(512, std::byte{7}), Cut::kAligned, random);
  CHECK(done.error == Error::kTimedOut);
  CHECK(recording.count(Operation::kWrite) == 1);
  faulty.clear();
  done = co_await read_blocks(faulty, {4, 1}, Cut::kAligned, random);
  const bool took_effect = content_of(done.data) == Bytes(512, std::byte{7});
  CHECK(took_effect);
  faulty.set_health(Health::kPredictedFailure);
  CHECK(faulty.health() == Health::kPredictedFailure);
}

Task<void> delays(Executor& home) {
  const auto memory = make_memory(home);
  DelayDevice delayed(*memory, std::chrono::milliseconds(5), std::chrono::milliseconds(9));
  for (int i = 0; i < 20; ++i) {
    const TimePoint before = home.now();
    const Completion done = co_await do_without_data(delayed, Operation::kFlush, {});
    CHECK(done.error == Error::kNone);
    const Duration took = home.now() - before;
    CHECK(took >= std::chrono::milliseconds(5));
    CHECK(took < std::chrono::milliseconds(10));
  }
}

}  // namespace

TEST_CASE("A layer forwards what it does not override", "[block]") {
  run_in_world(1, [](Executor& home) { return forwards(home); });
}

TEST_CASE("A hung device holds requests until it is released", "[block]") {
  run_in_world(1, [](Executor& home) { return hangs(home); });
}

TEST_CASE("A faulty device fails what its rules say", "[block]") {
  run_in_world(1, [](Executor& home) { return fails(home); });
}

TEST_CASE("A delaying device completes later, in virtual time", "[block]") {
  run_in_world(1, [](Executor& home) { return delays(home); });
}

}  // namespace sandbay::testing
