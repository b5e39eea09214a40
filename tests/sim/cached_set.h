// CachedSet: a RAID set over drives in memory, with a controller cache and read-ahead above it, for
// tests and benchmarks of what the whole stack does. Each drive may have the time of a slow one,
// and counts what reaches it. Without a journal: what is measured is data and parity.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "block/memory_device.h"
#include "cache/cache.h"
#include "cache/cached_device.h"
#include "cache/read_ahead.h"
#include "raid/assembly.h"
#include "raid/raid_set.h"
#include "tests/unit/cache/slow_drive.h"

namespace sandbay::cachetest {

struct CachedSetShape {
  raid::Level level = raid::Level::kRaid5;
  unsigned drives = 4;
  std::uint32_t strip_bytes = std::uint32_t{64} << 10;
  std::uint64_t drive_bytes = std::uint64_t{96} << 20;
  std::optional<testing::SlowDriveOptions> slow;
  bool cached = true;
  cache::CacheOptions cache;
};

// Sums over the drives.
struct DriveCounts {
  std::uint64_t reads = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t writes = 0;
  std::uint64_t write_bytes = 0;
};

// A drive that counts.
class CountingDrive final : public Layer {
 public:
  CountingDrive(BlockDevice& below, DriveCounts& counts) : Layer(below), counts_(counts) {}

  Task<Completion> submit(Request request) override {
    const std::uint64_t bytes = request.data.byte_count();
    if (request.operation == Operation::kRead) {
      ++counts_.reads;
      counts_.read_bytes += bytes;
    } else if (request.operation == Operation::kWrite) {
      ++counts_.writes;
      counts_.write_bytes += bytes;
    }
    return Layer::submit(std::move(request));
  }

 private:
  DriveCounts& counts_;
};

class CachedSet {
 public:
  CachedSet(Executor& home, CachedSetShape shape) : home_(home), shape_(std::move(shape)) {}

  // Why it cannot be made, or an empty text.
  Task<std::string> create() {
    std::vector<raid::NamedDevice> named;
    for (unsigned i = 0; i < shape_.drives; ++i) {
      auto made = MemoryDevice::create(home_, {.byte_count = shape_.drive_bytes});
      if (!made) co_return made.error();
      memory_.push_back(std::move(*made));
      BlockDevice* drive = memory_.back().get();
      if (shape_.slow) {
        slow_.push_back(std::make_unique<testing::SlowDrive>(*drive, *shape_.slow));
        drive = slow_.back().get();
      }
      counting_.push_back(std::make_unique<CountingDrive>(*drive, counts));
      named.push_back({"d" + std::to_string(i), counting_.back().get()});
    }
    const std::vector<raid::Candidate> candidates = co_await raid::gather_candidates(named);
    raid::NewSet wanted;
    wanted.name = "set";
    wanted.level = shape_.level;
    wanted.strip_bytes = shape_.strip_bytes;
    wanted.journal_bytes = 0;
    const auto planned = raid::plan_new_set(wanted, candidates, home_.random());
    if (!planned) co_return planned.error();
    const raid::Superblock& superblock = planned->superblocks[0];
    raid::RegionMap regions = planned->regions;
    regions.set_all_dirty(false);  // Drives of zeros match.
    drives_ = std::make_unique<raid::SetDrives>(home_, *superblock.layout(), superblock, regions,
                                                planned->lost);
    for (unsigned role = 0; role < shape_.drives; ++role) {
      drives_->set_drive(role, *counting_[role], named[role].name, {});
    }
    const Error settled = co_await drives_->save_clean(false);
    if (settled != Error::kNone) co_return "the superblocks cannot be written";
    set = std::make_unique<raid::RaidSet>(home_, *drives_, nullptr,
                                          raid::RaidSetOptions{.name = "set"});
    const Error replayed = co_await set->replay_journal();
    if (replayed != Error::kNone) co_return "the set cannot be started";
    if (shape_.cached) {
      cache = std::make_unique<cache::Cache>(home_, shape_.cache);
      device = &cache->add_device(superblock.set_uuid, *set);
      read_ahead = std::make_unique<cache::ReadAhead>(*device, budget_);
    }
    counts = {};
    co_return "";
  }

  Task<Error> close() {
    Error error = Error::kNone;
    if (read_ahead != nullptr) {
      co_await read_ahead->close();
      error = co_await cache->close();
      read_ahead.reset();
      cache.reset();
    }
    const Error closed = co_await set->close(kNever);
    set.reset();
    drives_.reset();
    co_return error == Error::kNone ? closed : error;
  }

  // What a host sees.
  BlockDevice& top() {
    return read_ahead != nullptr ? static_cast<BlockDevice&>(*read_ahead) : *set;
  }

  DriveCounts counts;
  std::unique_ptr<raid::RaidSet> set;
  std::unique_ptr<cache::Cache> cache;
  cache::CachedDevice* device = nullptr;
  std::unique_ptr<cache::ReadAhead> read_ahead;

 private:
  Executor& home_;
  CachedSetShape shape_;
  cache::StreamBudget budget_;
  std::vector<std::unique_ptr<MemoryDevice>> memory_;
  std::vector<std::unique_ptr<testing::SlowDrive>> slow_;
  std::vector<std::unique_ptr<CountingDrive>> counting_;
  std::unique_ptr<raid::SetDrives> drives_;
};

}  // namespace sandbay::cachetest
