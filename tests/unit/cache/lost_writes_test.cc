// A device below that loses unflushed writes says so once to each volume that made some. A cache
// without NVRAM in between keeps that: each volume whose changes have passed it hears once, and
// one whose writes it still has hears nothing and loses nothing.
#include <catch2/catch.hpp>

#include <set>
#include <utility>

#include "cache_runs.h"

namespace sandbay::cache {
namespace {

using testing::Bytes;

// Counts like a RAID set: a flush that ends well covers all writes before it; after a loss the next
// flush of each volume that is concerned fails, and so does the next one of volume 0.
class LosingDevice final : public Layer {
 public:
  using Layer::Layer;

  void lose() {
    if (unflushed_.empty()) return;
    lost_.merge(unflushed_);
    lost_.insert(0);
    unflushed_.clear();
  }
  void lose_before_flush() { loses_before_flush_ = true; }

  Task<Completion> submit(Request request) override {
    const std::uint64_t volume = request.volume;
    const bool flush = request.operation == Operation::kFlush;
    const bool reads =
        request.operation == Operation::kRead || request.operation == Operation::kAdvise;
    if (flush && std::exchange(loses_before_flush_, false)) lose();
    if (flush && lost_.erase(volume) > 0) {
      co_return Completion{.error = Error::kHardware, .data = std::move(request.data)};
    }
    if (!flush && !reads && !request.force_unit_access) unflushed_.insert(volume);
    Completion completion = co_await Layer::submit(std::move(request));
    if (flush && completion.error == Error::kNone) unflushed_.clear();
    co_return completion;
  }

 private:
  bool loses_before_flush_ = false;
  std::set<std::uint64_t> unflushed_;
  std::set<std::uint64_t> lost_;
};

struct LosingStack {
  Cache& cache;
  CachedDevice& device;
  LosingDevice& losing;
  testing::RecordingDevice& recording;
};

using LosingBody = Task<void> (*)(LosingStack stack);

Task<void> with_losing_stack(Executor& home, LosingBody body) {
  Below below(home, {});
  LosingDevice losing(below.recording);
  Cache cache(home, quiet());
  CachedDevice& device = cache.add_device(uuid_of(1), losing);
  co_await body({cache, device, losing, below.recording});
  const Error error = co_await cache.close();
  REQUIRE(error == Error::kNone);
}

void run_losing(LosingBody body) {
  testing::run_in_world(1, [=](Executor& home) { return with_losing_stack(home, body); });
}

Task<Error> change(CachedDevice& device, Operation operation, Extent extent, std::uint64_t volume) {
  Request request{.operation = operation, .extent = extent, .volume = volume};
  const Completion completion = co_await device.submit(std::move(request));
  co_return completion.error;
}

// The next flush of the volume fails, and no other does.
Task<void> hears_once(CachedDevice& device, std::uint64_t volume) {
  CAPTURE(volume);
  const Error told = co_await change(device, Operation::kFlush, {}, volume);
  CHECK(told == Error::kHardware);
  const Error again = co_await change(device, Operation::kFlush, {}, volume);
  CHECK(again == Error::kNone);
}

Task<void> hears_nothing(CachedDevice& device, std::uint64_t volume) {
  CAPTURE(volume);
  const Error error = co_await change(device, Operation::kFlush, {}, volume);
  CHECK(error == Error::kNone);
}

}  // namespace

TEST_CASE("Each volume whose changes passed the cache hears once that they are lost",
          "[cache][P-3]") {
  run_losing([](LosingStack stack) -> Task<void> {
    CachedDevice& device = stack.device;
    for (const std::uint64_t volume : {1, 2}) {
      stack.cache.set_mode(volume, Mode::kWriteThrough);
      co_await write(device, 100 * volume, Bytes(4096), {.volume = volume});
    }
    Error error = co_await change(device, Operation::kUnmap, {300, 8}, 3);
    REQUIRE(error == Error::kNone);
    error = co_await change(device, Operation::kWriteZeroes, {400, 8}, 4);
    REQUIRE(error == Error::kNone);
    stack.losing.lose();
    // 0 has all volumes to look after, and settles none of them; 5 has changed nothing.
    for (const std::uint64_t volume : {1, 0, 2, 3, 4}) co_await hears_once(device, volume);
    co_await hears_nothing(device, 5);
  });
}

TEST_CASE("A destage leaves reports of lost writes to the volumes", "[cache][P-3]") {
  run_losing([](LosingStack stack) -> Task<void> {
    CachedDevice& device = stack.device;
    stack.cache.set_mode(1, Mode::kWriteThrough);
    co_await write(device, 100, Bytes(4096), {.volume = 1});
    co_await write(device, 200, pattern(4096, 2), {.volume = 2});
    stack.losing.lose();
    const Error error = co_await device.destage_all();
    CHECK(error == Error::kNone);
    CHECK(stack.recording.count(Operation::kFlush) == 1);
    co_await hears_nothing(device, 2);
    for (const std::uint64_t volume : {1, 0}) co_await hears_once(device, volume);
    const Bytes kept = co_await read(device, {200, 8}, {.force_unit_access = true, .volume = 2});
    CHECK(kept == pattern(4096, 2));
  });
}

TEST_CASE("Blocks that a device below loses before its flush are destaged again", "[cache][P-3]") {
  run_losing([](LosingStack stack) -> Task<void> {
    CachedDevice& device = stack.device;
    co_await write(device, 100, Bytes(4096), {.volume = 1});
    co_await write(device, 200, Bytes(4096), {.volume = 2});
    stack.losing.lose_before_flush();
    // The destage that this flush waits for has failed.
    co_await hears_once(device, 1);
    CHECK(stack.recording.count(Operation::kWrite) == 4);
    co_await hears_nothing(device, 2);
    CHECK(device.dirty_bytes() == 0);
    co_await hears_once(device, 0);  // It cannot tell whose writes were lost.
  });
}

}  // namespace sandbay::cache
