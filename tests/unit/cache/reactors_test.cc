// Goal: a cache serves sessions of other reactors, on threads of their own, and what they get does
// not change under them.
// Method: real reactors; the cache and what is below on the first, clients on the last, which send
// their requests over and check every byte. Run under ThreadSanitizer, too.
#include <catch2/catch.hpp>

#include <array>
#include <cstring>

#include "cache_rig.h"
#include "nvram_controller.h"
#include "runtime/reactor.h"

namespace sandbay::cache {
namespace {

constexpr std::uint64_t kBlocks = 16;   // 8 KiB a request.
constexpr std::uint64_t kPlaces = 256;  // Of each client.
constexpr unsigned kClients = 4;

void fill(BufferList& data, std::uint64_t number) {
  for (std::size_t i = 0; i < data.slice_count(); ++i) {
    const std::span<std::byte> bytes = data[i].bytes();
    for (std::size_t at = 0; at < bytes.size(); at += sizeof number) {
      std::memcpy(bytes.data() + at, &number, sizeof number);
    }
  }
}

bool holds(const BufferList& data, std::uint64_t number) {
  for (std::size_t i = 0; i < data.slice_count(); ++i) {
    const std::span<const std::byte> bytes = data[i].bytes();
    for (std::size_t at = 0; at < bytes.size(); at += sizeof number) {
      if (std::memcmp(bytes.data() + at, &number, sizeof number) != 0) return false;
    }
  }
  return true;
}

// On the cache's executor. What the cache keeps does not leave it.
Task<Completion> submit_at_home(CachedDevice* device, Request request) {
  Completion completion = co_await device->submit(std::move(request));
  if (completion.data.unique()) co_return completion;
  BufferList copy = co_await device->home().buffers().allocate(completion.data.byte_count());
  std::size_t offset = 0;
  for (std::size_t i = 0; i < completion.data.slice_count(); ++i) {
    copy.copy_from(completion.data[i].bytes(), offset);
    offset += completion.data[i].byte_count();
  }
  completion.data = std::move(copy);
  co_return completion;
}

// On its own executor; the number of a place is what was written there last. Assertions of the test
// framework are not for threads: what is wrong is counted.
Task<void> client(CachedDevice* device, unsigned number, unsigned operations, unsigned* wrong) {
  Executor& here = Executor::current();
  Executor& home = device->home();
  Random random(number + 1);
  std::vector<std::uint64_t> written(kPlaces);
  for (unsigned i = 0; i < operations; ++i) {
    const std::uint64_t place = random.below(kPlaces);
    Request request{.extent = {(place * kClients + number) * kBlocks, kBlocks}, .volume = number};
    const std::uint64_t what = random.below(100);
    if (what < 5) {
      request.operation = what < 3 ? Operation::kFlush : Operation::kAdvise;
      const Completion done = co_await invoke_on(home, submit_at_home(device, std::move(request)));
      *wrong += done.error != Error::kNone ? 1 : 0;
      continue;
    }
    request.operation = what < 50 ? Operation::kWrite : Operation::kRead;
    request.force_unit_access = random.chance(0.05);
    request.data = co_await here.buffers().allocate(kBlocks * 512);
    if (what < 50) {
      written[place] = random.next();
      fill(request.data, written[place]);
    }
    const Completion done = co_await invoke_on(home, submit_at_home(device, std::move(request)));
    *wrong += done.error != Error::kNone ? 1 : 0;
    if (what >= 50 && !holds(done.data, written[place])) ++*wrong;
  }
}

Task<void> run_client(CachedDevice* device, Executor* session, unsigned number, unsigned operations,
                      unsigned* wrong, Gate* gate) {
  co_await invoke_on(*session, client(device, number, operations, wrong));
  gate->leave();
}

Task<void> drive(Cache* cache, BlockDevice* below, Executor* session, unsigned operations,
                 unsigned* wrong) {
  CachedDevice& device = cache->add_device(uuid_of(1), *below);
  cache->set_mode(3, Mode::kWriteThrough);
  Gate gate;
  std::array<unsigned, kClients> counts{};
  for (unsigned i = 0; i < kClients; ++i) {
    const bool entered = gate.enter();
    assert(entered);
    spawn(run_client(&device, session, i, operations, &counts[i], &gate));
  }
  co_await gate.close();
  for (const unsigned count : counts) *wrong += count;
  const Error error = co_await cache->close();
  *wrong += error != Error::kNone ? 1 : 0;
}

Task<void> serve(Executor& home, Executor& session, bool nvram, nvram::Durability durability,
                 unsigned* wrong) {
  BelowOptions slow;
  slow.least = std::chrono::microseconds(20);
  slow.most = std::chrono::microseconds(200);
  Below below(home, slow);
  below.recording.be_quiet();
  CacheOptions options{.memory_bytes = 16 * kMiB, .dirty_limit_bytes = kMiB};
  options.idle_flush = std::chrono::milliseconds(5);
  if (!nvram) {
    Cache cache(home, options);
    co_await drive(&cache, &below.recording, &session, 600, wrong);
    co_return;
  }
  nvram::SimulatedBoard board(5 * kMiB);
  nvram::SimulatedBoard mirror(5 * kMiB);
  Controller controller = co_await start(
      home, board,
      ControllerOptions{.mirror = &mirror, .durability = durability, .cache = options});
  co_await drive(controller.cache.get(), &below.recording, &session, 60, wrong);
  co_await stop(controller);
}

void run_on(unsigned reactors, bool nvram = false,
            nvram::Durability durability = nvram::Durability::kProcess) {
  auto group =
      ReactorGroup::create({.count = reactors, .memory_limit_bytes = std::size_t{64} << 20});
  if (!group.has_value()) FAIL(group.error().text);
  Executor& home = *(*group)->executors().front();
  Executor& session = *(*group)->executors().back();
  unsigned wrong = 0;
  (*group)->run([&] { return serve(home, session, nvram, durability, &wrong); });
  REQUIRE(wrong == 0);
}

TEST_CASE("A cache serves clients of its own reactor and of another", "[cache][reactors]") {
  run_on(1);
  run_on(2);
}

TEST_CASE("A cache with NVRAM and mirror serves clients of its own reactor and of another",
          "[cache][nvram][reactors]") {
  for (const auto durability : {nvram::Durability::kProcess, nvram::Durability::kHost}) {
    run_on(1, true, durability);
    run_on(2, true, durability);
  }
}

}  // namespace
}  // namespace sandbay::cache
