// Slices: whose blocks are whose, both ways, and that nothing reaches beyond either end.
#include "block/slice.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "block/memory_device.h"
#include "on_executor.h"
#include "payload.h"
#include "tests/unit/block/test_devices.h"

namespace sandbay::testing::slice_test {
namespace {

constexpr std::uint32_t kBlock = 512;

std::unique_ptr<MemoryDevice> make_memory(Executor& home) {
  auto device = MemoryDevice::create(home, {.byte_count = 64 * kBlock});
  REQUIRE(device.has_value());
  return std::move(*device);
}

Task<void> shares(Executor& home) {
  Random random(1);
  const auto memory = make_memory(home);
  Slice low(*memory, {0, 24});
  Slice high(*memory, {24, 40});
  CHECK(low.geometry().block_count == 24);
  CHECK(high.geometry().block_count == 40);
  Completion done =
      co_await write_blocks(low, 0, Bytes(24 * kBlock, std::byte{1}), Cut::kAligned, random);
  CHECK(done.error == Error::kNone);
  done = co_await write_blocks(high, 0, Bytes(40 * kBlock, std::byte{2}), Cut::kAligned, random);
  CHECK(done.error == Error::kNone);
  done = co_await do_without_data(low, Operation::kWriteZeroes, {23, 1});
  CHECK(done.error == Error::kNone);
  done = co_await read_blocks(*memory, {22, 3}, Cut::kAligned, random);
  Bytes expected(3 * kBlock, std::byte{0});
  std::fill_n(expected.begin(), kBlock, std::byte{1});
  std::fill_n(expected.begin() + 2 * kBlock, kBlock, std::byte{2});
  const bool same = content_of(done.data) == expected;
  CHECK(same);
}

Task<void> translates(Executor& home) {
  Random random(1);
  const auto memory = make_memory(home);
  RecordingDevice recording(*memory);
  FaultyDevice faulty(recording);
  Slice slice(faulty, {10, 20});
  for (const Operation operation : {Operation::kFlush, Operation::kUnmap, Operation::kAdvise}) {
    const Completion done = co_await do_without_data(slice, operation, {3, 4});
    CHECK(done.error == Error::kNone);
    CHECK(recording.seen().back().extent == Extent{13, 4});
  }
  const Completion whole = co_await do_without_data(slice, Operation::kFlush, {0, 64});
  CHECK(whole.error == Error::kNone);
  CHECK(recording.seen().back().extent == Extent{10, 20});
  faulty.fail({.operation = Operation::kRead, .extent = {15, 1}, .error = Error::kMediumError});
  const Completion bad = co_await read_blocks(slice, {0, 20}, Cut::kAligned, random);
  CHECK(bad.error == Error::kMediumError);
  CHECK(bad.first_bad_lba == 5);
  faulty.set_health(Health::kDegraded);
  CHECK(slice.health() == Health::kDegraded);
}

Task<void> tells_provisioning(Executor& home) {
  const auto device = MemoryDevice::create(home, {.byte_count = 64 * 4096, .block_bytes = 4096});
  REQUIRE(device.has_value());
  Completion done = co_await do_without_data(**device, Operation::kWriteZeroes, {8, 16});
  CHECK(done.error == Error::kNone);
  Slice slice(**device, {12, 8});
  auto run = co_await slice.provisioning(0, 64);
  CHECK((run.has_value() && run->mapped && run->block_count == 8));
  Slice behind(**device, {20, 10});
  run = co_await behind.provisioning(4, 10);
  CHECK((run.has_value() && !run->mapped && run->block_count == 6));
}

Task<void> grows(Executor& home) {
  Random random(1);
  const auto memory = make_memory(home);
  Slice slice(*memory, {8, 8});
  slice.grow(56);
  CHECK(slice.geometry().block_count == 56);
  const Completion done =
      co_await write_blocks(slice, 55, Bytes(kBlock, std::byte{7}), Cut::kAligned, random);
  CHECK(done.error == Error::kNone);
  const Completion read = co_await read_blocks(*memory, {63, 1}, Cut::kAligned, random);
  const bool same = content_of(read.data) == Bytes(kBlock, std::byte{7});
  CHECK(same);
}

}  // namespace

// A device whose cache survives a loss of power, or not, as its battery has it.
class BatteryDevice final : public Layer {
 public:
  explicit BatteryDevice(BlockDevice& below_device)
      : Layer(below_device), geometry_(below_device.geometry()) {}
  const Geometry& geometry() const noexcept override { return geometry_; }
  void set_good(bool good) {
    geometry_.volatile_cache = !good;
    geometry_.non_volatile_cache = good;
  }

 private:
  Geometry geometry_;
};

// Fails everything for a block of which it says anything.
class AnyBlockDevice final : public Layer {
 public:
  using Layer::Layer;
  Task<Completion> submit(Request request) override {
    co_return Completion{
        .error = Error::kMediumError, .first_bad_lba = said, .data = std::move(request.data)};
  }
  Lba said = 0;
};

Task<void> keeps_blocks_within(Executor& home) {
  const auto memory = make_memory(home);
  AnyBlockDevice device(*memory);
  Slice slice(device, {8, 8});
  for (const Lba said : {Lba{0}, Lba{7}, Lba{8}, Lba{15}, Lba{16}, ~Lba{0}}) {
    device.said = said;
    const Completion done = co_await do_without_data(slice, Operation::kWriteZeroes, {0, 8});
    CHECK(done.error == Error::kMediumError);
    CHECK(done.first_bad_lba == (said < 8 ? 0 : std::min<Lba>(said - 8, 7)));
  }
}

Task<void> names_its_volume(Executor& home) {
  const auto memory = make_memory(home);
  RecordingDevice recording(*memory);
  Slice slice(recording, {10, 20}, 77);
  Completion done = co_await slice.submit({.operation = Operation::kFlush});
  CHECK(done.error == Error::kNone);
  CHECK(recording.seen().back().volume == 77);
  done = co_await slice.submit({.operation = Operation::kFlush, .volume = 5});
  CHECK(recording.seen().back().volume == 5);
}

Task<void> tells_of_caches(Executor& home) {
  const auto memory = make_memory(home);
  BatteryDevice battery(*memory);
  Slice slice(battery, {10, 20});
  for (const bool good : {true, false, true}) {
    battery.set_good(good);
    CHECK(slice.geometry().non_volatile_cache == good);
    CHECK(slice.geometry().volatile_cache != good);
    CHECK(slice.geometry().block_count == 20);
  }
  co_return;
}

TEST_CASE("A slice says whose I/O it passes on, unless it has been said", "[block]") {
  run_on_reactor([](Executor& home) { return names_its_volume(home); });
}

TEST_CASE("A slice has the caches that the device below has now", "[block]") {
  run_on_reactor([](Executor& home) { return tells_of_caches(home); });
}

TEST_CASE("Slices of one device do not touch one another", "[block]") {
  run_in_world(1, [](Executor& home) { return shares(home); });
}

TEST_CASE("A slice translates addresses down, and bad blocks up", "[block]") {
  run_in_world(1, [](Executor& home) { return translates(home); });
}

TEST_CASE("A slice says of no bad block that it is none of its own", "[block]") {
  run_in_world(1, [](Executor& home) { return keeps_blocks_within(home); });
}

TEST_CASE("A slice tells provisioning of its own blocks only", "[block]") {
  run_in_world(1, [](Executor& home) { return tells_provisioning(home); });
}

TEST_CASE("A slice grows in place", "[block]") {
  run_in_world(1, [](Executor& home) { return grows(home); });
}

}  // namespace sandbay::testing::slice_test
