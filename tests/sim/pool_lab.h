// A pool in a simulated world: members whose units are files that lose what was not synced,
// metadata in a simulated store, its log in an NVRAM or not. It ends and begins again in another
// world. Coroutines take pointers; their callers await them at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "metadata/simulated_store.h"
#include "nvram/nvram.h"
#include "nvram/simulated_board.h"
#include "pool/pool.h"
#include "pool/pool_volume.h"
#include "runtime/random.h"

namespace sandbay::simtest {

inline constexpr std::uint32_t kLabMembers = 4;  // At most.
inline constexpr std::uint32_t kLabMemberPages = 36;
inline constexpr std::uint32_t kLabPageChunks = 16;
inline constexpr std::uint64_t kLabPageBytes = kLabPageChunks * pool::kChunkBytes;
inline constexpr std::uint64_t kLabBoardBytes =
    pool::MapLog::kLeastRegionBytes + 16 * nvram::kPageBytes;

// The share of requests to units that fail, and of those that are late.
struct UnitFaults {
  double errors = 0;
  double delays = 0;
};

class PoolLab {
 public:
  // `board` may be null: then the log is in the metadata store.
  PoolLab(Executor& home, nvram::SimulatedBoard* board, const char* boot_id)
      : home_(home), board_(board), boot_id_(boot_id) {}

  // With these members; what is wrong, or an empty text.
  Task<std::string> start(std::vector<pool::StoreIndex> members);
  // Opens the member's unit, or makes it.
  Task<std::string> open_unit(pool::StoreIndex member);
  pool::StoreConfig config_of(pool::StoreIndex member, pool::StoreState state) const;

  // The whole map is right, and owns exactly what is not free. Nothing else goes on.
  Task<std::string> check();
  Task<std::string> sweep_all();
  Task<void> stop();

  pool::Pool& pool() noexcept { return *pool_; }
  bool running() const noexcept { return pool_ != nullptr; }
  void set_faults(UnitFaults faults) noexcept { faults_ = faults; }
  Executor& home() noexcept { return home_; }

 private:
  Task<std::string> open_board();

  Executor& home_;
  nvram::SimulatedBoard* board_;
  const char* boot_id_;
  std::unique_ptr<metadata::Store> store_;
  std::unique_ptr<nvram::Nvram> memory_;
  std::unique_ptr<nvram::Region> region_;
  UnitFaults faults_;
  Random chances_{1};
  std::vector<std::unique_ptr<BlockDevice>> files_;  // By member; null: not opened.
  std::vector<std::unique_ptr<BlockDevice>> units_;  // On the files.
  std::unique_ptr<pool::Pool> pool_;
};

}  // namespace sandbay::simtest
