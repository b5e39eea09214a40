// MapLog: makes changes of the map durable, in groups, and then true.
//
// commit() hands in the records of one change. Whoever finds nobody writing gathers all that wait
// into one group, logs it and applies it to the map; one group is on its way at a time, everybody
// else joins the next. A group is logged in NVRAM where there is some that can be trusted now, and
// otherwise, or if it is large, in the metadata store, in one synced batch. Its sequence number
// puts it in order with the others, wherever those are.
//
// checkpoint() brings what has changed into the store's own values, with the number of the last
// group in them, and releases the groups up to that number. It happens by itself: in time, when the
// pool is idle, and each second until it succeeds while groups are in NVRAM that has lost trust. A
// checkpoint names the NVRAM only while that is trusted. Without its name the map does not need the
// NVRAM, and nothing is logged there before another checkpoint names it.
//
// A group that could not be logged has not happened: its commits end with the error. It may be in
// doubt whether a crash brings it back; so before any other is accepted, a checkpoint must succeed
// that contains its number, after which it is never replayed. Until then what it had claimed is not
// given to others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "metadata/store.h"
#include "nvram/battery.h"
#include "nvram/record_log.h"
#include "pool/map_records.h"
#include "pool/pool_map.h"
#include "pool/store_stamps.h"
#include "runtime/error.h"
#include "runtime/sync.h"
#include "runtime/task.h"

namespace sandbay::pool {

struct MapLogOptions {
  // A checkpoint begins when so many groups are in the store, so much of the NVRAM's log is used
  // (in percent), or so many parts of the map are changed.
  std::uint32_t store_groups = 256;
  std::uint32_t nvram_percent = 50;
  std::size_t changed_parts = 1024;
  // By an administrator's explicit word: opens although the NVRAM has lost changes that were
  // acknowledged. The map is then that of the last checkpoint.
  bool accept_loss = false;
  // Replays the groups that the NVRAM has, and logs new ones in the store alone.
  bool only_replay_nvram = false;
};

struct MapLogCounters {
  std::uint64_t commits = 0;
  std::uint64_t nvram_groups = 0;
  std::uint64_t store_groups = 0;
  std::uint64_t failed_groups = 0;
  std::uint64_t checkpoints = 0;
  std::uint64_t failed_checkpoints = 0;
};

class MapLog {
 public:
  // Groups larger than this go to the store.
  static constexpr std::size_t kMostNvramBytes = 32 * 1024;
  // A group gathers commits until it has so many records.
  static constexpr std::size_t kMostGroupRecords = 1024;
  // What a record of the NVRAM takes beside its payload, at most.
  static constexpr std::uint64_t kNvramSpare = 1024;
  static constexpr std::uint64_t kLeastRegionBytes = 64 * nvram::kPageBytes;

  // `region` may be null. All outlive the log.
  MapLog(Executor& home, PoolMap& map, metadata::Store& store, nvram::Region* region,
         MapLogOptions options);
  ~MapLog();

  // Changes that take places from their owners wait until these are settled. Outlives the log.
  void guard_places(StoreStamps& stamps) noexcept { stamps_ = &stamps; }
  // Once, after the map is loaded: replays what was logged since. What is wrong, or an empty text.
  Task<std::string> open();
  // Whether what was wrong is a loss that accept_loss accepts.
  static bool is_loss(std::string_view wrong) noexcept { return wrong.starts_with(kLoss); }
  // Whether acknowledged changes were lost, and accepted as lost.
  bool lost() const noexcept { return lost_; }

  // When it ends with kNone, all records are durable and the map has them, as they stand one after
  // the other; with an error, none. Everything that they change is pinned by the caller.
  Task<Error> commit(std::vector<MapRecord> records);
  // The same together with changes of other keys of the store, in one synced batch.
  Task<Error> commit(std::vector<MapRecord> records, metadata::Batch extra);
  Task<Error> checkpoint();
  // With kNone no change made before the call depends on NVRAM that is not trusted; an error is
  // that of the checkpoint that this needed.
  bool is_secure() const noexcept { return naming_ == Naming::kNone || nvram_trusted(); }
  Task<Error> secure();
  // With kNone everything is in the store, and nothing is logged until release(): what is listed
  // there meanwhile is the whole map, and needs no NVRAM. Changes wait.
  Task<Error> hold();
  void release();
  // The last checkpoint; nothing is committed any more.
  Task<Error> close();
  // Ends what runs in the background and leaves everything to the log.
  Task<void> stop();

  const MapLogCounters& counters() const noexcept { return counters_; }
  // Why nothing is accepted now; kNone if it is.
  Error failure() const noexcept { return failure_; }
  // Whether a crash may bring back a change that failed and that takes from the branch what is
  // written to it now: another place of a page, unmapping, a smaller size, the end of its life.
  bool endangers(BranchId branch) const noexcept {
    return failure_ != Error::kNone && endangered_.contains(branch);
  }

 private:
  static constexpr std::string_view kLoss = "changes of the map are ";  // What follows says why.
  struct Commit {
    std::vector<MapRecord> records;
    metadata::Batch extra;
    bool takes_places = false;
    bool done = false;
    Error error = Error::kNone;
  };

  bool may_log(const Commit& commit) const noexcept {
    return !commit.takes_places || stamps_ == nullptr || stamps_->settled();
  }
  Task<void> write_group();
  Task<Error> log_group(RecordGroup* group, metadata::Batch extra);
  Task<Error> log_in_nvram(const std::string* text, std::uint64_t sequence);
  Task<Error> make_sure();
  bool nvram_trusted() const noexcept;
  Task<void> tend();
  void start_checkpoint();
  Task<void> run_checkpoint();
  Task<Error> write_checkpoint();
  bool is_due() const noexcept;
  // map_log_open.cc
  std::string read_nvram(std::vector<RecordGroup>* groups);
  Task<std::string> read_store(std::vector<RecordGroup>* groups);
  Task<std::string> replay(std::vector<RecordGroup> groups);
  Task<std::string> start();

  Executor& home_;
  PoolMap& map_;
  metadata::Store& store_;
  nvram::Region* region_;
  std::unique_ptr<nvram::RecordLog> log_;  // Null: no region.
  StoreStamps* stamps_ = nullptr;
  MapLogOptions options_;
  MapLogCounters counters_;
  std::vector<Commit*> waiting_;
  bool writing_ = false;
  bool lost_ = false;
  bool nvram_failed_ = false;
  Error failure_ = Error::kNone;
  std::set<BranchId> endangered_;
  std::uint64_t sequence_ = 0;  // Of the last group, applied or failed.
  struct NvramGroup {
    std::uint64_t sequence = 0;
    nvram::RecordId id;
  };
  std::vector<NvramGroup> nvram_groups_;     // Not yet in a checkpoint.
  std::vector<std::uint64_t> store_groups_;  // The same.
  // Whether the store's checkpoint names the NVRAM.
  enum class Naming : std::uint8_t { kNone, kNamed, kUnsure };
  Naming naming_ = Naming::kNone;
  Uuid log_uuid_{};                     // The NVRAM's, as long as groups may be logged there.
  bool appending_ = false;              // A group is on its way to the NVRAM.
  std::uint64_t attempts_ = 0;          // Checkpoints that were begun,
  std::uint64_t failed_attempt_ = 0;    // the number of the last that failed,
  Error attempt_error_ = Error::kNone;  // and its error.
  std::uint64_t looked_at_ = 0;         // The last group when tend() looked.
  std::optional<nvram::Battery::Observer> battery_;
  bool checkpointing_ = false;  // In the background.
  Mutex checkpoint_turn_;
  Condition changed_;
  Event stop_;
  Gate gate_;
};

}  // namespace sandbay::pool
