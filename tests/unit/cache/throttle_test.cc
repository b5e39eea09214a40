// Goal: a full cache slows its writers down to the pace of destaging, evenly, and no further, and
// whoever gives up waiting gets out at once and leaves no trace.
// Method: for the pace, writers on devices of different speed in virtual time, with a small limit
// for dirty data; what is acknowledged in each 100 ms is compared with the mean of what is
// destaged, and what is written in a second with what drives and writers could do. SANDBAY_LONG=1:
// all of them, and their numbers.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>

#include <fmt/core.h>

#include "cache_runs.h"
#include "slow_drive.h"

namespace sandbay::cache::throttle_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Bytes;

// The pace -----------------------------------------------------------------------------------

constexpr Duration kWindow = milliseconds(100);
constexpr Duration kMeasured = seconds(6);
constexpr int kWindows = 60;

enum class Speed : std::uint8_t { kDrive, kFastDrive, kParallel };
enum class Places : std::uint8_t { kSequential, kRandom };

struct Pace {
  std::string name;
  std::uint64_t least_bytes = 4096;  // Of a write.
  std::uint64_t most_bytes = 4096;
  unsigned writers = 8;
  std::uint64_t limit_bytes = 8 * kMiB;
  Speed speed = Speed::kDrive;
  Places places = Places::kSequential;
};

struct Load {
  const Pace* pace = nullptr;
  bool stop = false;
  Lba next = 0;
  TimePoint start{};
  std::vector<std::uint64_t> windows;
  Gate gate;
};

Task<void> one_writer(CachedDevice* device, Load* load, std::uint64_t seed) {
  Executor& home = device->home();
  Random random(seed);
  const std::uint64_t block_count = device->geometry().block_count;
  while (!load->stop) {
    const Pace& pace = *load->pace;
    const std::uint64_t blocks =
        random.chance(0.5) ? pace.least_bytes / 512 : pace.most_bytes / 512;
    if (load->next + blocks > block_count) load->next = 0;
    Lba first = load->next;
    load->next += blocks;
    if (pace.places == Places::kRandom) first = random.below(block_count - blocks) / 8 * 8;
    Request request{.operation = Operation::kWrite, .extent = {first, blocks}};
    request.data = co_await home.buffers().allocate(blocks * 512);
    const Completion completion = co_await device->submit(std::move(request));
    REQUIRE(completion.error == Error::kNone);
    const auto window = static_cast<std::size_t>((home.now() - load->start) / kWindow);
    if (load->windows.size() <= window) load->windows.resize(window + 1);
    load->windows[window] += blocks * 512;
  }
  load->gate.leave();
}

testing::SlowDriveOptions drive_of(Speed speed) {
  if (speed == Speed::kDrive) return {};
  return {.positioning = milliseconds(1), .bytes_per_second = 400e6};
}

Task<void> run_pace(Executor& home, const Pace* pace) {
  const auto memory = *MemoryDevice::create(home, {.byte_count = 256 * kMiB});
  StripedDevice striped(*memory, 192 * 1024 / 512);
  testing::DelayDevice parallel(striped, milliseconds(2), milliseconds(12));
  testing::SlowDrive drive(striped, drive_of(pace->speed));
  const bool is_parallel = pace->speed == Speed::kParallel;
  BlockDevice& below = is_parallel ? static_cast<BlockDevice&>(parallel) : drive;
  CacheOptions options = quiet();
  options.memory_bytes = 64 * kMiB;
  options.dirty_limit_bytes = pace->limit_bytes;
  Cache cache(home, options);
  CachedDevice& device = cache.add_device(uuid_of(1), below);
  Load load{.pace = pace, .start = home.now(), .windows = {}, .gate = {}};
  for (unsigned i = 0; i < pace->writers; ++i) {
    const bool entered = load.gate.enter();
    REQUIRE(entered);
    spawn(one_writer(&device, &load, i + 1));
  }
  co_await home.sleep_for(seconds(4));
  const std::uint64_t before = device.counters().destage_bytes;
  co_await home.sleep_for(kMeasured);
  const std::uint64_t mean = (device.counters().destage_bytes - before) / kWindows;
  load.stop = true;
  co_await load.gate.close();
  const auto first = load.windows.begin() + seconds(4) / kWindow;
  const std::uint64_t least = *std::min_element(first, first + kWindows);
  if (std::getenv("SANDBAY_LONG") != nullptr) {
    fmt::print("{:48} mean {:9} least {:9}: {:.2f}\n", pace->name, mean, least,
               static_cast<double>(least) / static_cast<double>(mean));
  }
  CAPTURE(pace->name, least, mean);
  CHECK(least * 2 >= mean);
  const Error error = co_await cache.close();
  REQUIRE(error == Error::kNone);
}

std::vector<Pace> paces() {
  struct Size {
    const char* name;
    std::uint64_t least;
    std::uint64_t most;
  };
  static constexpr Size kSizes[] = {{"4 KiB", 4096, 4096},
                                    {"64 KiB", 65536, 65536},
                                    {"1 MiB", kMiB, kMiB},
                                    {"4 KiB and 1 MiB", 4096, kMiB}};
  struct Kind {
    const char* name;
    Speed speed;
    Places places;
  };
  static constexpr Kind kKinds[] = {{"in order, drive", Speed::kDrive, Places::kSequential},
                                    {"in order, fast", Speed::kFastDrive, Places::kSequential},
                                    {"in order, parallel", Speed::kParallel, Places::kSequential},
                                    {"at random, fast", Speed::kFastDrive, Places::kRandom},
                                    {"at random, parallel", Speed::kParallel, Places::kRandom}};
  std::vector<Pace> all;
  for (const std::uint64_t limit : {8 * kMiB, 48 * kMiB}) {
    for (const unsigned writers : {8U, 32U}) {
      for (const Kind& kind : kKinds) {
        for (const Size& size : kSizes) {
          all.push_back({.name = fmt::format("{}, {}, {} MiB, {} writers", size.name, kind.name,
                                             limit / kMiB, writers),
                         .least_bytes = size.least,
                         .most_bytes = size.most,
                         .writers = writers,
                         .limit_bytes = limit,
                         .speed = kind.speed,
                         .places = kind.places});
        }
      }
    }
  }
  return all;
}

TEST_CASE("No 100 ms pass in which writers get less than half of what is destaged",
          "[cache][throttle]") {
  const bool all = std::getenv("SANDBAY_LONG") != nullptr;
  for (const Pace& pace : paces()) {
    const bool small = pace.limit_bytes == 8 * kMiB && pace.speed != Speed::kParallel;
    const bool slow = pace.speed == Speed::kDrive || pace.places == Places::kRandom;
    if (!all && !(small && slow)) continue;
    testing::run_in_world(1, [&pace](Executor& home) { return run_pace(home, &pace); });
  }
}

struct Writing {
  bool stop = false;
  std::uint64_t bytes = 0;
  Gate gate;
};

constexpr std::uint64_t kWrite = 8192;
constexpr Duration kThought = milliseconds(1);

// One write after the other, with a pause before each.
Task<void> write_with_thought(CachedDevice* device, Writing* writing, std::uint64_t seed) {
  Executor& home = device->home();
  Random random(seed);
  constexpr std::uint64_t kBlocks = kWrite / 512;
  const std::uint64_t places = device->geometry().block_count / kBlocks;
  while (!writing->stop) {
    co_await home.sleep_for(kThought);
    Request request{.operation = Operation::kWrite,
                    .extent = {random.below(places) * kBlocks, kBlocks}};
    request.data = co_await home.buffers().allocate(kWrite);
    const Completion completion = co_await device->submit(std::move(request));
    REQUIRE(completion.error == Error::kNone);
    writing->bytes += kWrite;
  }
  writing->gate.leave();
}

// What is written in the second after so long, in bytes.
Task<std::uint64_t> written_after(CachedDevice* device, unsigned writers, Duration wait) {
  Executor& home = device->home();
  Writing writing;
  for (unsigned i = 0; i < writers; ++i) {
    const bool entered = writing.gate.enter();
    REQUIRE(entered);
    spawn(write_with_thought(device, &writing, i + 1));
  }
  co_await home.sleep_for(wait);
  const std::uint64_t before = writing.bytes;
  co_await home.sleep_for(seconds(1));
  const std::uint64_t bytes = writing.bytes - before;
  writing.stop = true;
  co_await writing.gate.close();
  co_return bytes;
}

// A drive that is done in the turn in which it was asked: its pace does not show on any clock.
Task<void> write_to_memory(Executor& home) {
  const auto memory = *MemoryDevice::create(home, {.byte_count = 256 * kMiB});
  CacheOptions options = quiet();
  options.memory_bytes = 64 * kMiB;
  options.dirty_limit_bytes = 8 * kMiB;
  Cache cache(home, options);
  CachedDevice& device = cache.add_device(uuid_of(1), *memory);
  constexpr unsigned kWriters = 32;
  const std::uint64_t bytes = co_await written_after(&device, kWriters, seconds(2));
  CHECK(cache.throttle().bytes_per_second() > 1e9);
  CHECK(bytes > 0.9 * kWrite * kWriters * (seconds(1) / kThought));
  const Error error = co_await cache.close();
  REQUIRE(error == Error::kNone);
}

// Destaging is always at work, and as fast as writers are let go: until they are as fast as it
// may be, its pace is theirs.
Task<void> write_to_parallel(Executor& home) {
  const auto memory = *MemoryDevice::create(home, {.byte_count = 256 * kMiB});
  testing::DelayDevice parallel(*memory, milliseconds(2), milliseconds(2));
  CacheOptions options = quiet();
  options.memory_bytes = 64 * kMiB;
  options.dirty_limit_bytes = 32 * kMiB;
  options.destages_in_flight = 256;
  Cache cache(home, options);
  CachedDevice& device = cache.add_device(uuid_of(1), parallel);
  const std::uint64_t bytes = co_await written_after(&device, 256, seconds(4));
  CHECK(bytes > 500 * kMiB);
  const Error error = co_await cache.close();
  REQUIRE(error == Error::kNone);
}

TEST_CASE("Drives whose pace does not show hold no writer back", "[cache][throttle]") {
  testing::run_in_world(1, write_to_memory);
}

TEST_CASE("The pace of drives that take much at once is found in seconds", "[cache][throttle]") {
  testing::run_in_world(1, write_to_parallel);
}

// Giving up ----------------------------------------------------------------------------------

struct Admission {
  bool ended = false;
  bool admitted = false;
};

Task<void> ask(Throttle* throttle, Throttle::Queue* queue, Admission* admission,
               std::uint64_t byte_count, Patience patience) {
  admission->admitted = co_await throttle->admit(*queue, byte_count, false, patience);
  admission->ended = true;
}

Patience patience_of(Cancellation* cancellation, TimePoint deadline = kNever) {
  return Patience(Request{.deadline = deadline, .cancellation = cancellation});
}

Task<void> give_up_in_the_throttle(Executor& home) {
  Throttle throttle(home, {.low_bytes = 40, .high_bytes = 50, .most_bytes = 100});
  Throttle::Queue one;
  Throttle::Queue other;
  throttle.take(100);
  std::array<Cancellation, 5> cancellations;
  std::array<Admission, 5> admissions;
  const TimePoint deadline = home.now() + seconds(3);
  // The third stands alone in its queue; the last has a deadline.
  for (std::size_t i = 0; i < admissions.size(); ++i) {
    spawn(ask(&throttle, i == 2 ? &other : &one, &admissions[i], 10,
              patience_of(&cancellations[i], i == 4 ? deadline : kNever)));
  }
  co_await home.sleep_for(seconds(1));
  for (const Admission& admission : admissions) REQUIRE(!admission.ended);
  cancellations[2].cancel();
  cancellations[1].cancel();
  co_await home.sleep_for(milliseconds(1));
  REQUIRE(admissions[2].ended);
  REQUIRE(!admissions[2].admitted);
  REQUIRE(admissions[1].ended);
  REQUIRE(!admissions[1].admitted);
  REQUIRE(!admissions[0].ended);
  co_await home.sleep_for(seconds(3));
  REQUIRE(admissions[4].ended);
  REQUIRE(!admissions[4].admitted);
  REQUIRE(throttle.used_bytes() == 100);
  throttle.give_back(10);
  co_await home.sleep_for(seconds(2));
  REQUIRE(admissions[0].admitted);
  REQUIRE(!admissions[3].ended);
  throttle.give_back(10);
  co_await home.sleep_for(seconds(2));
  REQUIRE(admissions[3].admitted);
  REQUIRE(!throttle.waiting());
  REQUIRE(throttle.used_bytes() == 100);
  // Nobody waits who has no patience.
  const bool admitted = co_await throttle.admit(one, 10, false, patience_of(&cancellations[1]));
  REQUIRE(!admitted);
  REQUIRE(!throttle.waiting());
}

Task<void> sets_aside(Executor& home) {
  Throttle throttle(home, {.low_bytes = 500, .high_bytes = 750, .most_bytes = 1000});
  throttle.take(800);
  REQUIRE_FALSE(throttle.try_admit(1));
  throttle.add_stuck(800);
  // Of the 200 that are left, half and three quarters.
  REQUIRE(throttle.limits().low_bytes == 900);
  REQUIRE(throttle.limits().high_bytes == 950);
  REQUIRE(throttle.try_admit(150));
  REQUIRE_FALSE(throttle.try_admit(1));
  REQUIRE_FALSE(throttle.hopeless(200));
  REQUIRE(throttle.hopeless(201));
  // Next to nothing is left: nobody waits for a piece of it.
  throttle.add_stuck(150);
  REQUIRE(throttle.hopeless(1));
  throttle.add_stuck(-950);
  REQUIRE(throttle.limits().high_bytes == 750);
  throttle.give_back(950);
  REQUIRE(throttle.try_admit(750));
  throttle.give_back(750);
  co_return;
}

TEST_CASE("What is stuck is set aside: watermarks are those of the rest", "[cache][throttle]") {
  testing::run_in_world(1, [](Executor& home) { return sets_aside(home); });
}

TEST_CASE("Whoever gives up waiting for room leaves the others in their order",
          "[cache][throttle]") {
  testing::run_in_world(1, give_up_in_the_throttle);
}

Task<void> large_before_small(Executor& home) {
  Throttle throttle(home, {.low_bytes = 40, .high_bytes = 50, .most_bytes = 100});
  Throttle::Queue queue;
  throttle.take(80);
  Cancellation cancellation;
  Admission large;
  Admission small;
  spawn(ask(&throttle, &queue, &large, 60, patience_of(&cancellation)));
  spawn(ask(&throttle, &queue, &small, 10, {}));
  co_await home.sleep_for(seconds(2));
  REQUIRE(!small.ended);
  cancellation.cancel();
  co_await home.sleep_for(seconds(2));
  REQUIRE(large.ended);
  REQUIRE(small.admitted);
}

TEST_CASE("When one who waits for much gives up, those behind it go on", "[cache][throttle]") {
  testing::run_in_world(1, large_before_small);
}

// One after the other, each so many bytes in so long.
Task<void> destage(Executor* home, Throttle* throttle, unsigned count, std::uint64_t byte_count,
                   Duration each) {
  for (unsigned i = 0; i < count; ++i) {
    throttle->note_begun();
    co_await home->sleep_for(each);
    throttle->note_destaged(byte_count);
  }
}

Task<void> measure_the_pace(Executor& home) {
  Throttle throttle(home, {.low_bytes = 40, .high_bytes = 50, .most_bytes = 100});
  Throttle::Queue queue;
  throttle.take(60);
  Admission admission;
  spawn(ask(&throttle, &queue, &admission, 1, {}));  // From now on writers are paced.
  co_await home.sleep_for(seconds(1));
  REQUIRE(admission.admitted);
  const double megabyte = 1e6;
  co_await destage(&home, &throttle, 100, 1'000'000, milliseconds(10));
  REQUIRE(throttle.bytes_per_second() == Approx(100 * megabyte).epsilon(0.01));
  // With nothing to do it shows no pace.
  co_await home.sleep_for(seconds(60));
  co_await destage(&home, &throttle, 1, 1'000'000, milliseconds(10));
  REQUIRE(throttle.bytes_per_second() == Approx(100 * megabyte).epsilon(0.01));
  // Two at a time are one time, and what fails counts as time.
  for (unsigned i = 0; i < 300; ++i) {
    throttle.note_begun();
    throttle.note_begun();
    co_await home.sleep_for(milliseconds(20));
    throttle.note_destaged(1'000'000);
    throttle.note_destaged(0);
  }
  REQUIRE(throttle.bytes_per_second() == Approx(50 * megabyte).epsilon(0.03));
  // One that hangs is forgotten in seconds.
  co_await destage(&home, &throttle, 1, 1'000'000, seconds(100));
  co_await destage(&home, &throttle, 500, 1'000'000, milliseconds(10));
  REQUIRE(throttle.bytes_per_second() == Approx(100 * megabyte).epsilon(0.03));
  // And so are drives that were as fast as memory.
  co_await destage(&home, &throttle, 100'000, 1'000'000, Duration::zero());
  REQUIRE(throttle.bytes_per_second() == Approx(16.0 * 1024 * 1024 * 1024));
  co_await destage(&home, &throttle, 1000, 1'000'000, milliseconds(10));
  REQUIRE(throttle.bytes_per_second() == Approx(100 * megabyte).epsilon(0.05));
}

TEST_CASE("The pace of writers is that of the destager while it has something to do",
          "[cache][throttle]") {
  testing::run_in_world(1, measure_the_pace);
}

struct Ended {
  bool ended = false;
  Error error = Error::kNone;
};

Task<void> submit_to(CachedDevice* device, Request request, Ended* ended) {
  const Completion completion = co_await device->submit(std::move(request));
  ended->error = completion.error;
  ended->ended = true;
}

TEST_CASE("An aborted write ends its wait for room, and takes none", "[cache][throttle]") {
  run([](Stack stack) -> Task<void> {
    stack.below.hung.hang_only(Operation::kWrite);
    const std::uint64_t limit = stack.cache.counters().dirty_limit_bytes;
    Cancellation cancellation;
    std::array<Ended, 12> writes;
    for (std::size_t i = 0; i < writes.size(); ++i) {
      Request request{.operation = Operation::kWrite,
                      .extent = {i * 2048, 2048},
                      .data = stack.home.buffers().try_allocate(kMiB),
                      .deadline = i == 10 ? stack.home.now() + seconds(5) : kNever,
                      .cancellation = i == 11 ? &cancellation : nullptr};
      spawn(submit_to(&stack.device, std::move(request), &writes[i]));
    }
    co_await stack.home.sleep_for(seconds(4));
    REQUIRE(!writes[10].ended);
    REQUIRE(!writes[11].ended);
    cancellation.cancel();
    co_await stack.home.sleep_for(milliseconds(1));
    REQUIRE(writes[11].error == Error::kCancelled);
    co_await stack.home.sleep_for(seconds(1));
    REQUIRE(writes[10].error == Error::kTimedOut);
    REQUIRE(stack.cache.counters().dirty_bytes <= limit);
    stack.below.hung.release();
    co_await stack.home.sleep_for(seconds(5));
    for (std::size_t i = 0; i < 10; ++i) REQUIRE(writes[i].ended);
    const Error error = co_await flush(stack.device);
    REQUIRE(error == Error::kNone);
    REQUIRE(stack.cache.counters().dirty_bytes == 0);
  });
}

TEST_CASE("An aborted read ends its wait for a fetch, which others still get", "[cache]") {
  run([](Stack stack) -> Task<void> {
    stack.below.hung.hang_only(Operation::kRead);
    std::array<Cancellation, 3> cancellations;
    std::array<Ended, 3> reads;
    for (std::size_t i = 0; i < reads.size(); ++i) {
      Request request{.operation = Operation::kRead,
                      .extent = {0, 64},
                      .data = stack.home.buffers().try_allocate(64 * 512),
                      .deadline = i == 2 ? stack.home.now() + seconds(1) : kNever,
                      .cancellation = &cancellations[i]};
      spawn(submit_to(&stack.device, std::move(request), &reads[i]));
    }
    co_await stack.home.sleep_for(milliseconds(10));
    cancellations[0].cancel();
    co_await stack.home.sleep_for(seconds(2));
    REQUIRE(reads[0].error == Error::kCancelled);
    REQUIRE(reads[2].error == Error::kTimedOut);
    REQUIRE(!reads[1].ended);
    stack.below.hung.release();
    co_await stack.home.sleep_for(milliseconds(10));
    REQUIRE(reads[1].ended);
    REQUIRE(reads[1].error == Error::kNone);
    REQUIRE(stack.below.recording.count(Operation::kRead) == 1);
  });
}

TEST_CASE("Aborted flushes, FUA and zeroes end their wait for what is destaged", "[cache]") {
  run([](Stack stack) -> Task<void> {
    co_await write(stack.device, 0, pattern(4096, 1));
    stack.below.hung.hang_only(Operation::kWrite);
    Cancellation cancellation;
    std::array<Ended, 4> all;
    std::array<Request, 4> requests;
    requests[0] = {.operation = Operation::kFlush};
    requests[1] = {.operation = Operation::kWriteZeroes, .extent = {0, 8}};
    requests[2] = {.operation = Operation::kRead, .force_unit_access = true, .extent = {0, 8}};
    requests[3] = {.operation = Operation::kWrite, .force_unit_access = true, .extent = {0, 8}};
    requests[2].data = stack.home.buffers().try_allocate(4096);
    requests[3].data = stack.home.buffers().try_allocate(4096);
    for (std::size_t i = 0; i < all.size(); ++i) {
      requests[i].cancellation = &cancellation;
      spawn(submit_to(&stack.device, std::move(requests[i]), &all[i]));
    }
    co_await stack.home.sleep_for(seconds(1));
    for (const Ended& one : all) REQUIRE(!one.ended);
    cancellation.cancel();
    co_await stack.home.sleep_for(milliseconds(1));
    for (const Ended& one : all) REQUIRE(one.error == Error::kCancelled);
    stack.below.hung.release();
    const Error error = co_await flush(stack.device);
    REQUIRE(error == Error::kNone);
    const Bytes stored = co_await read(*stack.below.memory, {0, 8});
    REQUIRE(stored == pattern(4096, 1));
  });
}

}  // namespace
}  // namespace sandbay::cache::throttle_test
