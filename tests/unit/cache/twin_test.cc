// The cache against a naive twin: several clients do all that can be done to two devices at once,
// with little memory, random latency, errors below and, in some runs, NVRAM that outlives the
// cache.
//
// Clients are on the cache's executor or on another one, as sessions are.
//
// Checked: every answer to a read; what is below when a FUA write or a flush has ended (without
// NVRAM); after the cache was closed, that below is what the twin says; after it was abandoned and
// made anew over the same NVRAM, every answer again.
#include <catch2/catch.hpp>
#include <deque>

#include "cache_rig.h"
#include "cache_runs.h"
#include "nvram/simulated_board.h"
#include "tests/unit/block/on_executor.h"
#include "twin.h"

namespace sandbay::cache {
namespace {

using testing::Bytes;
using testing::Cut;

constexpr unsigned kDevices = 2;
constexpr unsigned kClients = 6;

struct Shape {
  std::uint64_t seed = 1;
  std::uint32_t block_bytes = 512;
  bool nvram = false;
  bool non_volatile = false;
  nvram::Durability durability = nvram::Durability::kProcess;
  bool errors = false;
  unsigned operations = 150;  // Of each client.
  unsigned seeds = 3;
  unsigned executors = 1;  // With two, clients are on the second.
};

struct Memory {
  std::unique_ptr<nvram::Nvram> nvram;
  std::unique_ptr<WriteMemory> writes;
};

class Run {
 public:
  Run(Executor& home, Executor& session, Shape shape)
      : home_(home), session_(session), shape_(shape), random_(shape.seed) {
    for (unsigned i = 0; i < kDevices; ++i) {
      const BelowOptions options{.byte_count = 24 * kMiB,
                                 .block_bytes = shape.block_bytes,
                                 .stripe_bytes = i == 0 ? 192 * 1024U : 0U,
                                 .least = std::chrono::microseconds(10),
                                 .most = std::chrono::milliseconds(3)};
      below_.push_back(std::make_unique<Below>(home, options));
      twins_.push_back(
          std::make_unique<Twin>(options.byte_count / shape.block_bytes, shape.block_bytes));
    }
  }

  Task<void> go() {
    for (int life = 0; life < 3; ++life) {
      co_await open();
      Gate clients;
      for (unsigned i = 0; i < kClients; ++i) {
        const bool entered = clients.enter();
        REQUIRE(entered);
        spawn(run_client(&clients));
      }
      co_await clients.close();
      kept_.clear();
      co_await shut(life == 2);
    }
    co_await check_below();
  }

 private:
  Task<void> open() {
    if (shape_.nvram) {
      auto nvram = co_await nvram::Nvram::open(home_, board_,
                                               {.path = "board",
                                                .durability = shape_.durability,
                                                .boot_id = "one",
                                                .power_loss_only_emulated = shape_.non_volatile});
      REQUIRE(nvram.has_value());
      memory_.nvram = std::move(*nvram);
      auto writes = co_await WriteMemory::open(
          memory_.nvram.get(), nullptr,
          {.data_bytes = 6 * kMiB, .log_bytes = 512 * 1024, .slab_bytes = 256 * 1024});
      REQUIRE(writes.has_value());
      memory_.writes = std::move(*writes);
    }
    cache_ = std::make_unique<Cache>(home_,
                                     CacheOptions{.memory_bytes = 16 * kMiB,
                                                  .dirty_limit_bytes = 4 * kMiB,
                                                  .age_limit = std::chrono::milliseconds(200),
                                                  .idle_flush = std::chrono::milliseconds(50),
                                                  .read_ahead_limit_bytes = 4 * kMiB},
                                     memory_.writes.get());
    if (shape_.nvram) {
      WriteRecovery recovery = memory_.writes->recover();
      REQUIRE(recovery.lost.empty());
      const Error error = co_await memory_.writes->accept();
      REQUIRE(error == Error::kNone);
      cache_->adopt(std::move(recovery.writes));
    }
    devices_.clear();
    for (unsigned i = 0; i < kDevices; ++i) {
      devices_.push_back(
          &cache_->add_device(uuid_of(static_cast<std::uint8_t>(i)), below_[i]->recording));
    }
    cache_->set_mode(3, Mode::kWriteThrough);
    cache_->set_mode(4, Mode::kNone);
    REQUIRE(cache_->waiting_writes().empty());
    if (shape_.errors) add_errors();
  }

  // An abandoned cache leaves to the NVRAM what is dirty.
  Task<void> shut(bool orderly) {
    for (const auto& below : below_) below->faulty.clear();
    if (orderly || !shape_.nvram) {
      const Error error = co_await cache_->close();
      REQUIRE(error == Error::kNone);
      REQUIRE(cache_->counters().dirty_bytes == 0);
    } else {
      co_await cache_->stop();
    }
    cache_.reset();
    if (memory_.writes) co_await memory_.writes->stop();
    memory_.writes.reset();
    memory_.nvram.reset();
  }

  void add_errors() {
    for (const auto& below : below_) {
      for (int i = 0; i < 6; ++i) {
        const Operation operation =
            i < 2 ? Operation::kRead : (i < 5 ? Operation::kWrite : Operation::kFlush);
        const Lba first = random_.below(below->memory->geometry().block_count - 512);
        below->faulty.fail(
            {.operation = operation,
             .extent = {first, random_.between(1, 512)},
             .error = operation == Operation::kRead ? Error::kMediumError : Error::kHardware,
             .skip = random_.below(20),
             .times = random_.between(1, 6),
             .after_effect = random_.chance(0.3)});
      }
    }
  }

  Extent draw_extent(unsigned device) {
    const std::uint64_t blocks = below_[device]->memory->geometry().block_count;
    static constexpr std::uint64_t kSizes[] = {512, 4096, 8192, 65536, 100 * 1024, 1 << 20};
    std::uint64_t count = kSizes[random_.below(std::size(kSizes))] / shape_.block_bytes;
    if (random_.chance(0.3)) count = random_.between(1, 256);
    count = std::clamp<std::uint64_t>(count, 1, blocks / 4);
    // Most of it happens in a small part, so that things meet.
    const std::uint64_t range = random_.chance(0.7) ? blocks / 16 : blocks;
    const Lba first = random_.below(std::max<std::uint64_t>(range, count + 1) - count);
    return {.first = first, .block_count = count};
  }

  Task<void> run_client(Gate* clients) {
    co_await invoke_on(session_, client());
    clients->leave();
  }

  // As a session does it: what the cache keeps does not leave its executor.
  static Task<Completion> submit_at_home(CachedDevice* device, Request request) {
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
  Task<Completion> submit(unsigned device, Request request) {
    if (&home_ == &session_) return devices_[device]->submit(std::move(request));
    return invoke_on(home_, submit_at_home(devices_[device], std::move(request)));
  }

  Task<void> client() {
    for (unsigned i = 0; i < shape_.operations; ++i) {
      const auto device = static_cast<unsigned>(random_.below(kDevices));
      const Extent extent = draw_extent(device);
      const std::uint64_t volume = random_.below(5);
      const std::uint64_t what = random_.below(100);
      if (what < 40) {
        co_await read(device, extent, volume, random_.chance(0.05));
      } else if (what < 80) {
        co_await write(device, extent, volume, random_.chance(0.1));
      } else if (what < 85) {
        co_await flush(device, extent);
      } else if (what < 90) {
        co_await zero(device, extent,
                      random_.chance(0.5) ? Operation::kUnmap : Operation::kWriteZeroes);
      } else {
        Request advice{.operation = Operation::kAdvise, .extent = extent, .volume = volume};
        (void)co_await submit(device, std::move(advice));
      }
      if (random_.chance(0.2))
        co_await session_.sleep_for(std::chrono::microseconds(random_.below(2000)));
    }
  }

  Task<void> read(unsigned device, Extent extent, std::uint64_t volume, bool fua) {
    const Twin::View view = twins_[device]->look(extent);
    Request request{.operation = Operation::kRead,
                    .force_unit_access = fua,
                    .disable_page_out = random_.chance(0.1),
                    .origin = random_.chance(0.05) ? Origin::kVerify : Origin::kHost,
                    .extent = extent,
                    .data = testing::make_room(session_, extent.byte_count(shape_.block_bytes),
                                               Cut::kAnywhere, random_),
                    .volume = volume};
    Completion completion = co_await submit(device, std::move(request));
    if (completion.error != Error::kNone) {
      REQUIRE(shape_.errors);
      co_return;
    }
    const Bytes bytes = testing::content_of(completion.data);
    CAPTURE(device, extent.first, extent.block_count, volume, fua);
    REQUIRE(twins_[device]->first_wrong(view, bytes) == extent.end());
    // A slow client keeps what it got.
    if (random_.chance(0.2)) kept_.push_back(std::move(completion.data));
    if (kept_.size() > 40) kept_.pop_front();
  }

  Task<void> write(unsigned device, Extent extent, std::uint64_t volume, bool fua) {
    Twin& twin = *twins_[device];
    const std::uint64_t number = ++numbers_;
    const Twin::View before = twin.look(extent);
    const Twin::Change change = twin.begin(extent, number);
    const Cut cut = random_.chance(0.5) ? Cut::kAligned : Cut::kAnywhere;
    Request request{
        .operation = Operation::kWrite,
        .force_unit_access = fua,
        .disable_page_out = random_.chance(0.1),
        .extent = extent,
        .data = testing::make_payload(session_, twin.content(extent, number), cut, random_),
        .volume = volume};
    const Completion completion = co_await submit(device, std::move(request));
    twin.end(change, completion.error == Error::kNone);
    REQUIRE((completion.error == Error::kNone || shape_.errors));
    if (fua && completion.error == Error::kNone && !shape_.non_volatile) {
      Twin::View view = before;
      view.right.assign(extent.block_count, {number});
      for (std::size_t i = 0; i < extent.block_count; ++i) {
        // Those that ran at the same time.
        view.right[i].insert(view.right[i].end(), before.running[i].begin(),
                             before.running[i].end());
      }
      co_await check_device(device, view);
    }
  }

  Task<void> zero(unsigned device, Extent extent, Operation operation) {
    const Twin::Change change = twins_[device]->begin(extent, 0);
    Request request{.operation = operation, .extent = extent};
    const Completion completion = co_await submit(device, std::move(request));
    twins_[device]->end(change, completion.error == Error::kNone);
    REQUIRE((completion.error == Error::kNone || shape_.errors));
  }

  Task<void> flush(unsigned device, Extent extent) {
    const Twin::View view = twins_[device]->look(extent);
    Request request{.operation = Operation::kFlush, .extent = extent};
    const Completion completion = co_await submit(device, std::move(request));
    REQUIRE((completion.error == Error::kNone || shape_.errors));
    if (completion.error == Error::kNone && !shape_.non_volatile) {
      co_await check_device(device, view);
    }
  }

  // What the memory below holds now, read without any suspension.
  Task<void> check_device(unsigned device, Twin::View view) {
    Request request{.operation = Operation::kRead,
                    .extent = view.extent,
                    .data = testing::make_room(home_, view.extent.byte_count(shape_.block_bytes),
                                               Cut::kAligned, random_)};
    const Completion completion = co_await below_[device]->memory->submit(std::move(request));
    const Bytes bytes = testing::content_of(completion.data);
    CAPTURE(device, view.extent.first, view.extent.block_count);
    REQUIRE(twins_[device]->first_wrong(view, bytes) == view.extent.end());
  }

  Task<void> check_below() {
    for (unsigned device = 0; device < kDevices; ++device) {
      const std::uint64_t blocks = below_[device]->memory->geometry().block_count;
      for (Lba first = 0; first < blocks; first += 1024) {
        const Extent extent{first, std::min<std::uint64_t>(1024, blocks - first)};
        co_await check_device(device, twins_[device]->look(extent));
      }
    }
  }

  Executor& home_;     // Of the cache and all below it.
  Executor& session_;  // Of the clients.
  Shape shape_;
  Random random_;
  nvram::SimulatedBoard board_{8 * kMiB};
  std::vector<std::unique_ptr<Below>> below_;
  std::vector<std::unique_ptr<Twin>> twins_;
  Memory memory_;
  std::unique_ptr<Cache> cache_;
  std::vector<CachedDevice*> devices_;
  std::deque<BufferList> kept_;
  std::uint64_t numbers_ = 0;
};

Task<void> run_one(Executor& home, Executor& session, Shape shape) {
  Run run(home, session, shape);
  co_await run.go();
}

void run_shape(Shape shape) {
  for (const std::uint32_t block_bytes : {512U, 4096U}) {
    for (std::uint64_t seed = 1; seed <= shape.seeds; ++seed) {
      CAPTURE(seed, block_bytes);
      shape.seed = seed;
      shape.block_bytes = block_bytes;
      const auto world = sim::World::create({.seed = seed, .executors = shape.executors});
      Executor& home = *world->executors().front();
      Executor& session = *world->executors().back();
      REQUIRE(world->run([&] { return run_one(home, session, shape); }));
    }
  }
}

TEST_CASE("A cache answers as its twin does", "[cache][twin]") { run_shape({}); }

TEST_CASE("A cache answers clients of another executor as its twin does", "[cache][twin]") {
  run_shape({.errors = true, .operations = 80, .seeds = 3, .executors = 2});
  run_shape({.nvram = true, .operations = 80, .seeds = 3, .executors = 2});
}

TEST_CASE("A cache answers as its twin does while the device fails now and then", "[cache][twin]") {
  run_shape({.errors = true});
}

TEST_CASE("A cache with NVRAM answers as its twin does, over restarts", "[cache][twin]") {
  run_shape({.nvram = true});
}

TEST_CASE("A cache whose NVRAM counts as the medium answers as its twin does, over restarts",
          "[cache][twin]") {
  run_shape({.nvram = true, .non_volatile = true});
}

TEST_CASE("A cache whose NVRAM takes time to be durable answers as its twin does",
          "[cache][twin]") {
  run_shape({.nvram = true,
             .non_volatile = true,
             .durability = nvram::Durability::kHost,
             .errors = true,
             .operations = 30,
             .seeds = 2});
}

TEST_CASE("A cache with NVRAM answers as its twin does while the device fails now and then",
          "[cache][twin]") {
  run_shape({.nvram = true, .errors = true});
}

}  // namespace
}  // namespace sandbay::cache
