// CacheLab: a controller cache over RaidLab's set, with a write memory on a board of its own and
// perhaps a mirror of it on a partner's, in a simulated world. A CacheState is what is left when
// the world goes: drives, boards, and what the owner remembers; another world begins with it.
//
// Two models say what a host may expect: RaidLab's, of what was promised, and `on_drives` there, of
// what must be there even where the memory has lost everything. Each block is held to the first,
// unless the memory has reported its range as lost; then to the second from there on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "cache/write_memory.h"
#include "nvram/simulated_board.h"
#include "raid_lab.h"
#include "runtime/sync.h"

namespace sandbay::cachetest {

using raidtest::BlockModel;

// A board's usual sync.
inline constexpr Duration kSyncTime = std::chrono::microseconds(100);

struct CacheShape {
  raidtest::LabShape set;
  bool memory = true;         // There is NVRAM.
  bool host_durable = false;  // Its durability.
  bool only_emulated = true;  // Power is lost by emulation only; otherwise hosts must flush.
  bool mirror = false;
  bool journal_too = false;  // The set has its journal in the same NVRAM, behind the cache.
  bool patient = false;      // Nothing is destaged before it must be.
  std::uint64_t log_bytes = std::uint64_t{64} << 10;

  std::string name() const;
};

// Bytes of the cache's region on its board, behind the image's head.
std::uint64_t region_bytes(const CacheShape& shape);

// Faults of the device below the cache.
struct Weakness {
  Error error = Error::kNone;  // Some operations end with it, carried out or not,
  bool flushes = false;        // ... and these are flushes, otherwise changes.
  Duration read_delay{};       // The max; a read returns the content from when it began.
  bool holding = false;        // Some requests are held until this is false.
};

struct CacheState {
  raidtest::LabState set;
  std::optional<nvram::SimulatedBoard> board;
  std::optional<nvram::SimulatedBoard> mirror;
  bool mirror_is_stale = false;
  unsigned boots = 0;  // Of the host; the partner's has its own.
  unsigned partner_boots = 0;
  nvram::BatteryState battery = nvram::BatteryState::kGood;
  // Something was lost in the memory, and its next start has to say so.
  bool to_report = false;
  bool damaged = false;       // Other than by such an end.
  bool host_crashed = false;  // And no start since then has ended.
};

class CacheLab {
 public:
  CacheLab(Executor& home, CacheShape shape, CacheState state, BlockModel promised,
           BlockModel on_drives);
  ~CacheLab();

  // The set, the memory, the cache. An error is a sentence.
  Task<std::string> boot();
  // Destages everything; from then on the host's requests go to the set itself.
  Task<Error> close_cache();
  // What is dirty stays in the memory. Then the set is stopped, too.
  Task<void> stop();

  void set_battery(nvram::BatteryState state);
  // From now on it may change at any time, also while a write waits.
  void expect_battery_changes() { battery_changes_ = true; }
  bool non_volatile() const { return memory_ != nullptr && memory_->non_volatile(); }
  void set_weakness(Weakness weakness);
  // Flips a bit of the content wherever the memory has it. How often that was.
  unsigned damage(std::span<const std::byte> content);
  // The partner's controller stops taking anything; what its memory has stays. That the mirror is
  // stale is noted durably a while after somebody has found out; until then no change is answered.
  void fail_mirror();
  bool mirror_failed() const { return mirror_failed_; }
  // How long a sync of the memory's image, or of the mirror's, takes from now on.
  void set_sync_time(Duration time, bool mirror);
  bool stalled() const { return memory_ != nullptr && memory_->stalled(); }
  CacheState fork() const;
  const nvram::SimulatedBoard* board() const { return board_.get(); }
  // Before every change of a drive, and after every store to the memory or its mirror.
  void observe(std::function<void()> boundary);
  // After a crash: how many blocks are not what was promised, whatever was reported.
  std::uint64_t broken_promises(const std::vector<std::byte>& bytes) const;

  std::uint64_t live_writes() const { return memory_ != nullptr ? memory_->live_writes() : 0; }
  const cache::WriteMemory* memory() const { return memory_.get(); }
  cache::Cache& cache() { return *cache_; }

  const CacheShape shape;
  raidtest::RaidLab raid;
  // What the memory said when it started. The model was weakened by it.
  std::vector<cache::LostWrite> lost;
  std::size_t replayed = 0;
  std::size_t from_mirror = 0;
  std::vector<Extent> damaged;  // Reported by the cache at work.

 private:
  Task<std::string> open_memory();
  Task<std::string> open_board(nvram::SimulatedBoard* board, bool partner,
                               std::unique_ptr<nvram::Nvram>* opened);
  class Door;
  class Weak;
  Task<Error> note_damaged(std::vector<cache::VolumeExtent> found);
  bool prepare(Request& request);
  void note_lost();
  void mirror_lost();
  Task<void> remember_mirror_lost();

  CacheState state_;  // Less what the members below and the set have.
  std::unique_ptr<nvram::SimulatedBoard> board_;
  std::unique_ptr<nvram::SimulatedBoard> mirror_board_;
  std::unique_ptr<nvram::Nvram> nvram_;
  std::unique_ptr<nvram::Nvram> mirror_;
  std::unique_ptr<cache::WriteMemory> memory_;
  std::unique_ptr<Weak> weak_;
  std::unique_ptr<cache::Cache> cache_;
  std::unique_ptr<Door> door_;
  Weakness weakness_;
  Condition weakness_changed_;
  bool battery_changes_ = false;
  bool mirror_failed_ = false;
  bool holding_ = false;  // Changes and answers.
  Condition let_go_;
  Gate notes_;
  std::function<void()> boundary_;
  std::optional<BlockModel> promised_;  // Before it was weakened.
};

// Blank drives and boards, for a world's first set.
CacheState blank_state(const CacheShape& shape);
BlockModel new_promises(const CacheShape& shape);
BlockModel new_drives_model(const CacheShape& shape);

}  // namespace sandbay::cachetest
