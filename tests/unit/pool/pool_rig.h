// A pool in a world: stores, metadata in a simulated store, perhaps NVRAM; small pages, so that
// everything happens soon. The coroutines take references: their callers await them at once.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "block/file_device.h"
#include "block/memory_device.h"
#include "metadata/simulated_store.h"
#include "nvram/simulated_board.h"
#include "pool/check.h"
#include "pool/pool.h"
#include "pool/pool_volume.h"
#include "tests/unit/block/on_executor.h"
#include "tests/unit/block/payload.h"

namespace sandbay::pool {

inline constexpr std::uint32_t kTestPageChunks = 16;
inline constexpr std::uint64_t kTestPageBytes = kTestPageChunks * kChunkBytes;
// The grain of tests' contents.
inline constexpr std::uint64_t kCellBytes = 8192;

inline PoolOptions test_options() {
  PoolOptions options;
  options.map = {.prefix = "pool/1/", .page_chunks = kTestPageChunks};
  options.copy_bytes = std::size_t{16} << 20;
  options.group_pages = 3;
  return options;
}

struct RigOptions {
  std::uint32_t stores = 2;
  std::uint32_t store_pages = 48;
  std::uint64_t spare_bytes = 0;  // Behind the pages of each store.
  bool nvram = true;
  bool missing = false;  // No store is present when the pool is opened.
  bool files = false;    // Stores are simulated files, volatile until synced; otherwise memory.
  nvram::SimulatedBoard* board = nullptr;  // With nvram: outlives the rig.
  const char* boot_id = "boot-1";
  nvram::Durability durability = nvram::Durability::kHost;
  PoolOptions pool = test_options();
};

// Opened with start(), ended with close() or stop().
class Rig {
 public:
  Rig(Executor& to_home, RigOptions options) : home(to_home), options_(options) {}

  Task<std::string> start() {
    auto opened = co_await metadata::open_simulated_store(home, "metadata");
    if (!opened.has_value()) co_return opened.error();
    store = std::move(*opened);
    if (options_.nvram) {
      if (options_.board == nullptr) {
        own_board_ = std::make_unique<nvram::SimulatedBoard>(kImageBytes);
        options_.board = own_board_.get();
      }
      auto nvram = co_await nvram::Nvram::open(
          home, *options_.board,
          {.path = "nvram", .durability = options_.durability, .boot_id = options_.boot_id});
      if (!nvram.has_value()) co_return nvram.error();
      memory = std::move(*nvram);
      auto claimed = co_await memory->claim("map", MapLog::kLeastRegionBytes);
      if (!claimed.has_value()) co_return claimed.error();
      region = std::move(*claimed);
    }
    for (std::uint32_t i = devices.size(); i < options_.stores; ++i) {
      const std::string wrong = co_await add_device(i);
      if (!wrong.empty()) co_return wrong;
    }
    co_return co_await open_pool();
  }

  Task<std::string> open_pool() {
    std::vector<StoreConfig> stores;
    for (std::uint32_t i = 0; i < devices.size(); ++i) stores.push_back(config_of(i));
    auto opened = co_await Pool::open(home, *store, region.get(), options_.pool, std::move(stores));
    if (!opened.has_value()) co_return opened.error();
    pool = std::move(*opened);
    co_return std::string();
  }

  Task<std::string> add_device(std::uint32_t index) {
    const std::uint64_t bytes = options_.store_pages * kTestPageBytes + options_.spare_bytes;
    if (!options_.files) {
      devices.push_back(std::move(*MemoryDevice::create(home, {.byte_count = bytes})));
      co_return std::string();
    }
    auto opened = co_await FileDevice::open(
        home, {.path = "store" + std::to_string(index), .create = true, .byte_count = bytes});
    if (!opened.has_value()) co_return opened.error();
    devices.push_back(std::move(*opened));
    co_return std::string();
  }

  StoreConfig config_of(std::uint32_t index) const {
    StoreConfig config{.record = {.index = static_cast<StoreIndex>(index),
                                  .page_count = options_.store_pages,
                                  .member = index},
                       .device = options_.missing ? nullptr : devices[index].get()};
    config.record.uuid[0] = static_cast<std::uint8_t>(index + 1);
    return config;
  }

  // The whole map is right, and owns exactly what is not free.
  Task<std::string> check() {
    const Error stored = co_await pool->log().checkpoint();
    if (stored != Error::kNone) co_return std::string(describe(stored));
    const CheckReport report = co_await check_map(&pool->map());
    if (!report.wrong.empty()) co_return report.wrong.front();
    const PoolSpace space = pool->space();
    const std::uint64_t owned = space.pages - space.free_pages;
    // The open reserve page may be without use yet.
    if (owned != report.pages + report.reserve_pages) {
      co_return "owned: " + std::to_string(owned) + ", pages: " + std::to_string(report.pages) +
          ", reserve pages: " + std::to_string(report.reserve_pages);
    }
    co_return std::string();
  }

  Task<void> sweep_all() {
    while (pool->needs_sweep()) {
      const auto more = co_await pool->sweep(7);
      if (!more.has_value()) co_return;
    }
  }

  Task<Error> close() {
    const Error error = co_await pool->close();
    pool.reset();
    co_await end();
    co_return error;
  }
  Task<void> stop() {
    co_await pool->stop();
    pool.reset();
    co_await end();
  }
  Task<void> end() {
    region.reset();
    memory.reset();
    co_await store->close();
    store.reset();
  }

  RigOptions& options() noexcept { return options_; }
  // The next start finds another NVRAM.
  void forget_board() {
    own_board_.reset();
    options_.board = nullptr;
  }

  static constexpr std::uint64_t kImageBytes = MapLog::kLeastRegionBytes + 16 * nvram::kPageBytes;

  Executor& home;
  std::unique_ptr<metadata::Store> store;
  std::unique_ptr<nvram::Nvram> memory;
  std::unique_ptr<nvram::Region> region;
  std::vector<std::unique_ptr<BlockDevice>> devices;
  std::unique_ptr<Pool> pool;

 private:
  RigOptions options_;
  std::unique_ptr<nvram::SimulatedBoard> own_board_;
};

// Contents by cell: a number, 0 for zeros.
using Cells = std::vector<std::uint32_t>;

inline void fill_cell(std::byte* cell, std::uint64_t index, std::uint32_t number) {
  for (std::size_t i = 0; i < kCellBytes; i += 8) {
    const std::uint32_t words[2] = {number, number == 0 ? 0 : static_cast<std::uint32_t>(index)};
    std::memcpy(cell + i, words, sizeof words);
  }
}

inline testing::Bytes cells_of(std::uint64_t first, std::uint64_t count, std::uint32_t number) {
  testing::Bytes bytes(count * kCellBytes);
  for (std::uint64_t i = 0; i < count; ++i) {
    fill_cell(bytes.data() + i * kCellBytes, first + i, number);
  }
  return bytes;
}

// The number in each cell; ~0 for one that is torn or is another's.
inline Cells numbers_of(std::uint64_t first, const testing::Bytes& bytes) {
  Cells numbers(bytes.size() / kCellBytes);
  testing::Bytes expected(kCellBytes);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::byte* const cell = bytes.data() + i * kCellBytes;
    std::memcpy(&numbers[i], cell, sizeof numbers[i]);
    fill_cell(expected.data(), first + i, numbers[i]);
    if (std::memcmp(cell, expected.data(), kCellBytes) != 0) numbers[i] = ~0U;
  }
  return numbers;
}

inline Task<Error> write_cells(BlockDevice& volume, std::uint64_t first, std::uint64_t count,
                               std::uint32_t number, Random& random) {
  const std::uint64_t blocks = kCellBytes / volume.geometry().block_bytes;
  const Completion completion = co_await testing::write_blocks(
      volume, first * blocks, cells_of(first, count, number), testing::Cut::kAligned, random);
  co_return completion.error;
}

inline Task<Result<Cells>> read_cells(BlockDevice& volume, std::uint64_t first, std::uint64_t count,
                                      Random& random) {
  const std::uint64_t blocks = kCellBytes / volume.geometry().block_bytes;
  const Completion completion = co_await testing::read_blocks(
      volume, {.first = first * blocks, .block_count = count * blocks}, testing::Cut::kAligned,
      random);
  if (completion.error != Error::kNone) co_return std::unexpected(completion.error);
  co_return numbers_of(first, testing::content_of(completion.data));
}

inline Task<Error> unmap_cells(BlockDevice& volume, std::uint64_t first, std::uint64_t count,
                               Operation operation) {
  const std::uint64_t blocks = kCellBytes / volume.geometry().block_bytes;
  const Completion completion = co_await testing::do_without_data(
      volume, operation, {.first = first * blocks, .block_count = count * blocks});
  co_return completion.error;
}

}  // namespace sandbay::pool
