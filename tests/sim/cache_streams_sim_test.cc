// Goal: sequential writes of any size reach the drives of a RAID 5 as full stripes, and nothing is
// read for them; sequential reads of any size come from the cache; streams that share drives still
// reach them in large requests.
// Method: real RAID sets over drives that count, and where time matters have that of a slow drive,
// in virtual time; hosts that keep so many requests in flight.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include <fmt/core.h>

#include "cached_set.h"
#include "runtime/simulation.h"
#include "tests/unit/block/payload.h"

namespace sandbay::cachetest {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// One stream of requests, several in flight.
struct Stream {
  BlockDevice* device = nullptr;
  Operation operation = Operation::kRead;
  std::uint64_t size = 0;  // Of a request.
  Lba first = 0;
  std::uint64_t bytes = 0;
  std::uint64_t next = 0;      // In bytes from `first`.
  Duration think{};            // Between a request and the next.
  std::uint64_t answered = 0;  // Requests.
  Gate gate;
};

Task<void> one_of(Stream* stream) {
  Executor& home = stream->device->home();
  while (stream->next < stream->bytes) {
    const std::uint64_t size = std::min(stream->size, stream->bytes - stream->next);
    Request request{.operation = stream->operation,
                    .extent = {stream->first + stream->next / 512, size / 512}};
    stream->next += size;
    request.data = co_await home.buffers().allocate(size);
    request.data.fill_zero();
    const Completion completion = co_await stream->device->submit(std::move(request));
    REQUIRE(completion.error == Error::kNone);
    ++stream->answered;
    if (stream->think > Duration::zero()) co_await home.sleep_for(stream->think);
  }
  stream->gate.leave();
}

void start(Stream& stream, unsigned depth) {
  for (unsigned i = 0; i < depth; ++i) {
    const bool entered = stream.gate.enter();
    REQUIRE(entered);
    spawn(one_of(&stream));
  }
}

void in_world(const std::function<Task<void>(Executor& home)>& body) {
  const auto world = sim::World::create({.seed = 1});
  Executor& home = *world->executors()[0];
  REQUIRE(world->run([&] { return body(home); }));
}

bool verbose() { return std::getenv("SANDBAY_LONG") != nullptr; }

constexpr std::uint64_t kSizes[] = {512,       1536,       4096,       8192,       65536,
                                    100 * 512, 128 * 1024, 256 * 1024, 512 * 1024, kMiB};

// Writes -------------------------------------------------------------------------------------

Task<void> write_stripes(Executor& home, std::uint64_t size) {
  CachedSetShape shape{.slow = testing::SlowDriveOptions{}, .cache = {}};
  shape.cache.memory_bytes = 64 * kMiB;
  shape.cache.dirty_limit_bytes = 24 * kMiB;
  CachedSet stack(home, shape);
  const std::string problem = co_await stack.create();
  REQUIRE(problem.empty());
  const std::uint64_t bytes = size == 512 ? 24 * kMiB : 96 * kMiB;
  Stream stream{.device = &stack.top(),
                .operation = Operation::kWrite,
                .size = size,
                .bytes = bytes,
                .gate = {}};
  start(stream, 8);
  co_await stream.gate.close();
  const Error error = co_await stack.device->destage_all();
  REQUIRE(error == Error::kNone);
  const std::uint64_t theory = bytes / 3 * 4;
  if (verbose()) {
    fmt::print("writes of {:7}: {:.3f} times theory, {} reads, {} KiB on average\n", size,
               static_cast<double>(stack.counts.write_bytes) / static_cast<double>(theory),
               stack.counts.reads, stack.counts.write_bytes / stack.counts.writes / 1024);
  }
  CAPTURE(size, stack.counts.write_bytes, theory, stack.counts.reads);
  CHECK(stack.counts.reads == 0);
  CHECK(stack.counts.write_bytes * 100 <= theory * 105);
  const Error closed = co_await stack.close();
  REQUIRE(closed == Error::kNone);
}

TEST_CASE("sequential writes of any size reach a 3+1 RAID 5 as full stripes") {
  for (const std::uint64_t size : kSizes) {
    in_world([size](Executor& home) { return write_stripes(home, size); });
  }
}

// Reads --------------------------------------------------------------------------------------

struct ReadCase {
  std::uint64_t size = 0;
  unsigned depth = 1;
  bool leisurely = false;  // The host asks for less than the drives can give.
};

Task<void> read_ahead_of(Executor& home, ReadCase which) {
  CachedSetShape shape{.slow = testing::SlowDriveOptions{}, .cache = {}};
  shape.cache.memory_bytes = 64 * kMiB;
  CachedSet stack(home, shape);
  const std::string problem = co_await stack.create();
  REQUIRE(problem.empty());
  Stream stream{.device = &stack.top(),
                .size = which.size,
                .bytes = std::min<std::uint64_t>(which.size * 4000, 160 * kMiB),
                .gate = {}};
  // Of three drives' 180 MB/s.
  if (which.leisurely) {
    const double seconds = static_cast<double>(which.size * which.depth) / 60e6;
    stream.think = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }
  start(stream, which.depth);
  co_await stream.gate.close();
  const cache::VolumeCounters& counters = stack.cache->volume_state(0).counters;
  // Those that were sent before the third was there could not be foreseen.
  const std::uint64_t after = stream.answered - std::max(3U, which.depth);
  const std::uint64_t late = counters.late_hits;
  if (verbose()) {
    fmt::print("reads of {:7}, {} in flight{}: {} requests, {} hits, {} late hits, {} other\n",
               which.size, which.depth, which.leisurely ? ", leisurely" : "", stream.answered,
               counters.hits, late, stream.answered - counters.hits - late);
  }
  CAPTURE(which.size, which.depth, which.leisurely, after, counters.hits, late);
  CHECK((counters.hits + late) * 100 > after * 98);
  if (which.leisurely) CHECK(counters.hits * 100 > after * 98);
  const Error closed = co_await stack.close();
  REQUIRE(closed == Error::kNone);
}

TEST_CASE("sequential reads of any size come from the cache after the first three") {
  for (const std::uint64_t size : kSizes) {
    for (const unsigned depth : {1U, 8U}) {
      for (const bool leisurely : {false, true}) {
        const ReadCase which{.size = size, .depth = depth, .leisurely = leisurely};
        in_world([which](Executor& home) { return read_ahead_of(home, which); });
      }
    }
  }
}

// Streams that share drives --------------------------------------------------------------------

constexpr std::uint64_t kShared = 512 * kMiB;  // All streams.

struct ShareCase {
  raid::Level level = raid::Level::kRaid0;
  std::uint64_t size = 0;
  unsigned streams = 4;
  unsigned depth = 1;
  std::uint64_t least_bytes = 0;  // Of a drive's request, on average.
};

Task<void> share_drives(Executor& home, ShareCase which) {
  CachedSetShape shape{.level = which.level,
                       .drives = 4,
                       .drive_bytes = 192 * kMiB,
                       .slow = testing::SlowDriveOptions{},
                       .cache = {}};
  shape.cache.memory_bytes = 256 * kMiB;
  CachedSet stack(home, shape);
  const std::string problem = co_await stack.create();
  REQUIRE(problem.empty());
  std::vector<std::unique_ptr<Stream>> streams;
  const std::uint64_t blocks = stack.top().geometry().block_count;
  for (unsigned i = 0; i < which.streams; ++i) {
    streams.push_back(std::make_unique<Stream>());
    Stream& stream = *streams.back();
    stream.device = &stack.top();
    stream.size = which.size;
    stream.first = blocks / which.streams * i / 4096 * 4096;
    stream.bytes = kShared / which.streams;
    start(*streams.back(), which.depth);
  }
  const TimePoint began = home.now();
  for (const auto& stream : streams) co_await stream->gate.close();
  const double seconds = std::chrono::duration<double>(home.now() - began).count();
  const std::uint64_t mean = stack.counts.read_bytes / stack.counts.reads;
  if (verbose()) {
    fmt::print(
        "{}, {} streams of {:7}, {} in flight: {} KiB a drive's read, {:.0f} MB/s, "
        "{:.2f} times what was asked for\n",
        raid::describe(which.level), which.streams, which.size, which.depth, mean / 1024,
        static_cast<double>(kShared) / 1e6 / seconds,
        static_cast<double>(stack.counts.read_bytes) / static_cast<double>(kShared));
  }
  CAPTURE(raid::describe(which.level), which.streams, which.size, which.depth);
  CHECK(mean >= which.least_bytes);
  const Error closed = co_await stack.close();
  REQUIRE(closed == Error::kNone);
}

Task<void> read_through_parity(Executor& home) {
  const CachedSetShape shape{.slow = testing::SlowDriveOptions{}, .cached = false, .cache = {}};
  CachedSet stack(home, shape);
  const std::string problem = co_await stack.create();
  REQUIRE(problem.empty());
  constexpr std::uint64_t kBytes = 6 * kMiB;
  Random random(1);
  const testing::Bytes content = testing::random_bytes(kBytes, random);
  Request write{.operation = Operation::kWrite, .extent = {0, kBytes / 512}};
  write.data = testing::make_payload(home, content, testing::Cut::kAligned, random);
  const Completion written = co_await stack.set->submit(std::move(write));
  REQUIRE(written.error == Error::kNone);
  for (const Extent& extent : {Extent{0, 8192}, Extent{100, 5000}, Extent{383, 1500}}) {
    stack.counts = {};
    Request request{.operation = Operation::kRead, .origin = Origin::kReadAhead, .extent = extent};
    request.data = co_await home.buffers().allocate(extent.byte_count(512));
    const Completion read = co_await stack.set->submit(std::move(request));
    REQUIRE(read.error == Error::kNone);
    const auto first = content.begin() + static_cast<std::ptrdiff_t>(extent.first * 512);
    const testing::Bytes expected(first,
                                  first + static_cast<std::ptrdiff_t>(read.data.byte_count()));
    REQUIRE(testing::content_of(read.data) == expected);
    REQUIRE(stack.counts.reads == 4);
  }
  const Error closed = co_await stack.close();
  REQUIRE(closed == Error::kNone);
}

TEST_CASE("reading ahead goes through the parity between strips, and drops it") {
  in_world(read_through_parity);
}

TEST_CASE("four interleaved streams reach their drives in large requests") {
  for (const raid::Level level : {raid::Level::kRaid0, raid::Level::kRaid5}) {
    for (const std::uint64_t size : {8192U, 65536U, 262144U}) {
      for (const unsigned depth : {1U, 4U}) {
        const ShareCase which{
            .level = level, .size = size, .depth = depth, .least_bytes = 512 * 1024};
        in_world([which](Executor& home) { return share_drives(home, which); });
      }
    }
  }
}

// Each slow for the others: its window is not to be as small as its pace for that.
TEST_CASE("sixteen interleaved streams reach their drives in larger requests than their own") {
  for (const raid::Level level : {raid::Level::kRaid0, raid::Level::kRaid5}) {
    const ShareCase which{
        .level = level, .size = 65536, .streams = 16, .depth = 1, .least_bytes = 192 * 1024};
    in_world([which](Executor& home) { return share_drives(home, which); });
  }
}

}  // namespace
}  // namespace sandbay::cachetest
