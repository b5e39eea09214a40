// cache_bench: what the controller cache costs and gains.
//
// Cost, on one reactor and one core: processor time of a read hit and of a write hit of 8 KiB in
// the layer, without NVRAM and with it, beside one memory copy of 8 KiB and a request to the device
// in memory below, measured in the same run. Gain, in virtual time: a RAID 5 of four drives of 60
// MB/s that take 8 ms to begin anywhere else, with the cache against without, for 1, 4 and 16
// streams of reads and of writes, and for random writes of 8 KiB that the cache has to spread.
//
//   cache_bench [SECONDS-A-CASE]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "nvram/image_layout.h"
#include "nvram/simulated_board.h"
#include "runtime/reactor.h"
#include "runtime/simulation.h"
#include "tests/sim/cached_set.h"

namespace sandbay::cachetest {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kHitBytes = 8192;
constexpr std::uint64_t kHitBlocks = kHitBytes / 512;

[[noreturn]] void fail(const std::string& why) {
  fmt::print(stderr, "cache_bench: {}\n", why);
  std::exit(1);
}

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Cost ---------------------------------------------------------------------------------------

// Nanoseconds of processor time for one request of 8 KiB at a random place of the first `places`.
Task<double> cost_of(BlockDevice* device, Operation operation, std::uint64_t places, double seconds,
                     bool receive_there) {
  Executor& home = device->home();
  Random random(1);
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(seconds));
  std::uint64_t count = 0;
  const double start = cpu_seconds();
  do {
    for (int i = 0; i < 512; ++i, ++count) {
      Request request{.operation = operation,
                      .extent = {random.below(places) * kHitBlocks, kHitBlocks}};
      if (receive_there) request.data = device->write_buffers(kHitBytes);
      if (request.data.empty()) request.data = home.buffers().try_allocate(kHitBytes);
      const Completion completion = co_await device->submit(std::move(request));
      if (completion.error != Error::kNone) fail("a request failed");
    }
    co_await home.yield();
  } while (Clock::now() < end);
  co_return (cpu_seconds() - start) * 1e9 / static_cast<double>(count);
}

double cost_of_copy(double seconds) {
  std::vector<std::byte> from(32 * kMiB);
  std::vector<std::byte> to(kHitBytes);
  Random random(1);
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(seconds));
  std::uint64_t count = 0;
  const double start = cpu_seconds();
  do {
    for (int i = 0; i < 512; ++i, ++count) {
      std::memcpy(to.data(), from.data() + random.below(from.size() / kHitBytes) * kHitBytes,
                  kHitBytes);
      asm volatile("" : : "r"(to.data()) : "memory");
    }
  } while (Clock::now() < end);
  return (cpu_seconds() - start) * 1e9 / static_cast<double>(count);
}

void print_cost(const char* what, double nanoseconds, double copy, double direct) {
  fmt::print("{:<44} {:7.0f} ns {:6.2f} x copy {:6.2f} x memory device\n", what, nanoseconds,
             nanoseconds / copy, nanoseconds / direct);
}

Task<void> costs_of(cache::Cache* cache, cache::CachedDevice* device, const char* memory,
                    double seconds, double copy, double direct_read, double direct_write) {
  constexpr std::uint64_t kPlaces = 1024;  // 8 MiB: less than the low watermark.
  // Everything is there.
  (void)co_await cost_of(device, Operation::kRead, kPlaces, seconds / 4, false);
  const double read = co_await cost_of(device, Operation::kRead, kPlaces, seconds, false);
  print_cost(fmt::format("read hit, {}", memory).c_str(), read, copy, direct_read);
  (void)co_await cost_of(device, Operation::kWrite, kPlaces, seconds / 4, false);
  const double write = co_await cost_of(device, Operation::kWrite, kPlaces, seconds, false);
  print_cost(fmt::format("write hit, {}", memory).c_str(), write, copy, direct_write);
  if (cache->write_memory() == nullptr) co_return;
  const double there = co_await cost_of(device, Operation::kWrite, kPlaces, seconds, true);
  print_cost(fmt::format("write hit, {}, received there", memory).c_str(), there, copy,
             direct_write);
}

Task<void> measure_cost(Executor& home, double seconds) {
  auto made = MemoryDevice::create(home, {.byte_count = 256 * kMiB});
  if (!made) fail(made.error());
  MemoryDevice& below = **made;
  const double copy = cost_of_copy(seconds);
  fmt::print("{:<44} {:7.0f} ns\n", "one copy of 8 KiB", copy);
  const double read = co_await cost_of(&below, Operation::kRead, 1024, seconds, false);
  const double write = co_await cost_of(&below, Operation::kWrite, 1024, seconds, false);
  print_cost("read of the memory device", read, copy, read);
  print_cost("write of the memory device", write, copy, write);
  cache::CacheOptions options{.memory_bytes = 128 * kMiB, .dirty_limit_bytes = 64 * kMiB};
  options.idle_flush = std::chrono::hours(1);
  options.age_limit = std::chrono::hours(1);
  {
    cache::Cache cache(home, options);
    cache::CachedDevice& device = cache.add_device(Uuid{}, below);
    co_await costs_of(&cache, &device, "no NVRAM", seconds, copy, read, write);
    const Error closed = co_await cache.close();
    if (closed != Error::kNone) fail("the cache cannot be closed");
  }
  constexpr std::uint64_t kData = 64 * kMiB;
  const std::uint64_t log_bytes = cache::default_log_bytes(kData);
  nvram::SimulatedBoard board(nvram::kHeaderBytes + kData + log_bytes);
  auto opened = co_await nvram::Nvram::open(
      home, board, {.path = "board", .boot_id = "one", .power_loss_only_emulated = true});
  if (!opened) fail(opened.error());
  auto memory = co_await cache::WriteMemory::open(opened->get(), nullptr,
                                                  {.data_bytes = kData, .log_bytes = log_bytes});
  if (!memory) fail(memory.error());
  (void)(*memory)->recover();
  const Error accepted = co_await (*memory)->accept();
  if (accepted != Error::kNone) fail("the NVRAM cannot be used");
  {
    cache::Cache cache(home, options, memory->get());
    cache::CachedDevice& device = cache.add_device(Uuid{}, below);
    co_await costs_of(&cache, &device, "NVRAM", seconds, copy, read, write);
    const Error closed = co_await cache.close();
    if (closed != Error::kNone) fail("the cache cannot be closed");
  }
  co_await (*memory)->stop();
}

// Gain ---------------------------------------------------------------------------------------

// Between a host's requests: what is answered from memory takes no time of its own here.
constexpr Duration kHostTime = std::chrono::microseconds(50);

struct Stream {
  BlockDevice* device = nullptr;
  Operation operation = Operation::kRead;
  bool random = false;
  std::uint64_t size = 65536;
  Lba first = 0;
  std::uint64_t blocks = 0;  // Of its part of the device.
  std::uint64_t bytes = 0;
  TimePoint end{};
};

Task<void> run_stream(Stream* stream, Gate* gate, std::uint64_t seed) {
  Executor& home = stream->device->home();
  Random random(seed);
  const std::uint64_t count = stream->size / 512;
  for (Lba at = 0; home.now() < stream->end; at = (at + count) % (stream->blocks - count)) {
    const Lba place = stream->random ? random.below(stream->blocks / count - 1) * count : at;
    Request request{.operation = stream->operation, .extent = {stream->first + place, count}};
    request.data = co_await home.buffers().allocate(stream->size);
    const Completion completion = co_await stream->device->submit(std::move(request));
    if (completion.error != Error::kNone) fail("a request failed");
    stream->bytes += stream->size;
    co_await home.sleep_for(kHostTime);
  }
  gate->leave();
}

struct Load {
  const char* name;
  Operation operation;
  bool random;
  std::uint64_t size;
  unsigned streams;
};

// Bytes a second that hosts get.
Task<void> measure_load(Executor& home, const Load* load, bool cached, double* rate) {
  // So large that no stream comes round in the time.
  CachedSetShape shape{.drive_bytes = 384 * kMiB,
                       .slow = testing::SlowDriveOptions{},
                       .cached = cached,
                       .cache = {.memory_bytes = 128 * kMiB, .dirty_limit_bytes = 64 * kMiB}};
  CachedSet stack(home, shape);
  const std::string problem = co_await stack.create();
  if (!problem.empty()) fail(problem);
  std::vector<std::unique_ptr<Stream>> streams;
  Gate gate;
  const Lba part = stack.top().geometry().block_count / load->streams / 4096 * 4096;
  constexpr Duration kWarm = std::chrono::seconds(2);
  constexpr Duration kLong = std::chrono::seconds(5);
  const TimePoint end = home.now() + kWarm + kLong;
  for (unsigned i = 0; i < load->streams; ++i) {
    if (!gate.enter()) fail("a gate is closed");
    streams.push_back(std::make_unique<Stream>(Stream{.device = &stack.top(),
                                                      .operation = load->operation,
                                                      .random = load->random,
                                                      .size = load->size,
                                                      .first = i * part,
                                                      .blocks = part,
                                                      .end = end}));
    spawn(run_stream(streams.back().get(), &gate, i + 1));
  }
  const auto total = [&streams] {
    std::uint64_t bytes = 0;
    for (const auto& stream : streams) bytes += stream->bytes;
    return bytes;
  };
  co_await home.sleep_for(kWarm);
  const std::uint64_t before = total();
  co_await home.sleep_for(kLong);
  *rate = static_cast<double>(total() - before) / std::chrono::duration<double>(kLong).count();
  co_await gate.close();
  const Error closed = co_await stack.close();
  if (closed != Error::kNone) fail("the set cannot be closed");
}

double rate_of(const Load& load, bool cached) {
  const auto world = sim::World::create({.seed = 1});
  double rate = 0;
  Executor& home = *world->executors()[0];
  if (!world->run([&] { return measure_load(home, &load, cached, &rate); })) fail("it hangs");
  return rate;
}

void measure_gain() {
  fmt::print("\nRAID 5, 3+1, drives of 60 MB/s and 8 ms, virtual time\n");
  fmt::print("{:<28} {:>7} {:>12} {:>12} {:>9}\n", "each one request at a time", "streams",
             "without", "with cache", "ratio");
  for (const Load& kind : {Load{"reads of 64 KiB in order", Operation::kRead, false, 65536, 1},
                           Load{"writes of 64 KiB in order", Operation::kWrite, false, 65536, 1},
                           Load{"writes of 8 KiB at random", Operation::kWrite, true, 8192, 1}}) {
    for (const unsigned streams : {1U, 4U, 16U}) {
      Load load = kind;
      load.streams = streams;
      const double without = rate_of(load, false);
      const double with = rate_of(load, true);
      fmt::print("{:<28} {:>7} {:>7.1f} MB/s {:>7.1f} MB/s {:>8.1f}x\n", load.name, streams,
                 without / 1e6, with / 1e6, with / without);
    }
  }
}

int run(double seconds) {
  auto group = ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{256} << 20});
  if (!group.has_value()) fail(group.error().text);
  Executor& home = *(*group)->executors()[0];
  (*group)->run([&] { return measure_cost(home, seconds); });
  measure_gain();
  return 0;
}

}  // namespace
}  // namespace sandbay::cachetest

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return sandbay::cachetest::run(argc > 1 ? std::atof(argv[1]) : 1.0);
}
