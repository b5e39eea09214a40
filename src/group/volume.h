// Volume: a block device and the logical unit on it, together on their home executor.
//
// Its functions are called on executor 0 and cross to the home by themselves; what they say about
// the device is true when they end. A volume whose device never lets go of a request cannot be
// destroyed: close() then says so, and the rest of it is kept until the process ends.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "block/block_device.h"
#include "cache/stream_detector.h"
#include "group/records.h"
#include "runtime/executor.h"
#include "scsi/counters.h"
#include "scsi/logical_unit.h"

namespace sandbay {
class FileDevice;
class MemoryDevice;
class Slice;
namespace cache {
class Cache;
class ReadAhead;
struct StreamBudget;
}  // namespace cache
namespace fault {
class FaultEngine;
}
namespace pool {
class PoolVolume;
}
}  // namespace sandbay

namespace sandbay::group {

class Door;
class UnitBook;
class UnitFaults;
class VolumeFront;

// What a volume on a pool stands on; everything outlives it.
struct PoolGround {
  std::unique_ptr<pool::PoolVolume> volume;
  std::vector<cache::Cache*> caches;       // Of the members.
  cache::StreamBudget* streams = nullptr;  // Null: nothing is read ahead.
};

// The volume's number in requests, the same for its whole life: never 0, which means no volume.
std::uint64_t number_of(const Uuid& uuid);

// The identifier that hosts see.
NaaIdentifier naa_of(const VolumeRecord& record);

// What units say of the array that they are of.
struct ArrayFacts {
  std::string vendor;  // These three: of volumes that have none of their own.
  std::string product;
  std::string revision;
  const scsi::Personality* personality = nullptr;  // Null: there are no vendor pages.
  std::string label;
  std::array<std::uint8_t, 16> id{};
  fault::FaultEngine* faults = nullptr;     // Null: its units do not break on command.
  UnitBook* book = nullptr;                 // Null: nothing of its units outlives the daemon.
  std::vector<std::uint16_t> target_ports;  // Relative identifiers, each with its access state.
  std::vector<scsi::AccessState> access_states;
};

// Why a volume's device could not be opened.
struct OpenFailure {
  std::string reason;               // Half a sentence.
  Health health = Health::kFailed;  // kMissing: what it stands on is not there.
  // The fault is not this volume's alone (another daemon serves the image, the metadata cannot be
  // written): the group does not start with it.
  bool stops_start = false;
  bool comes_back = false;  // It is tried again while the group runs, and not only at a start.
};

// A volume without a device stands for one that could not be opened: it has its record and its
// health, and it can be deleted. One on a pool has a unit all the same, which is not ready; to any
// other nothing leads. The next start tries again.
class Volume {
 public:
  enum class Opening : std::uint8_t {
    kCreate,    // It has never been there: make its file if it needs one.
    kExisting,  // It has been there: what it stands on must be there and large enough.
  };

  using Opened = std::expected<std::shared_ptr<Volume>, OpenFailure>;

  // Opens the device on `home` and sets the record's size, if what is below decides it. A volume
  // on a RAID set stands on `set`, whose home is `home` and which outlives it.
  static Task<Opened> open(VolumeRecord record, std::filesystem::path state, Executor& home,
                           Opening opening, ArrayFacts array, Door* set = nullptr);
  // One on a pool, of the size that it has there.
  static std::shared_ptr<Volume> open_on_pool(VolumeRecord record, PoolGround ground,
                                              ArrayFacts array);
  static std::shared_ptr<Volume> without_device(VolumeRecord record,
                                                const std::filesystem::path& state, Executor& home,
                                                ArrayFacts array, OpenFailure failure,
                                                cache::StreamBudget* streams = nullptr);
  ~Volume();

  const Uuid& uuid() const noexcept { return record_.uuid; }
  const std::string& name() const noexcept { return record_.specification.name; }
  const VolumeRecord& record() const noexcept { return record_; }
  VolumeRecord& record() noexcept { return record_; }
  // Where its blocks are; empty for memory and a RAID set.
  const std::filesystem::path& path() const noexcept { return path_; }
  Executor& home() const noexcept { return *home_; }
  bool has_device() const noexcept { return !failure_.has_value(); }
  // What kept it from being opened; empty if it is open.
  std::string reason() const { return failure_ ? failure_->reason : std::string(); }
  // One on a pool that has no device: it is to be tried again; here it is, as the record is now; or
  // why it is still not there. On its home.
  bool comes_back() const noexcept { return failure_ && failure_->comes_back; }
  void come_back(VolumeRecord record, PoolGround ground);
  void stay_away(OpenFailure failure) { failure_ = std::move(failure); }
  // False: no target leads to it.
  bool has_unit() const noexcept { return unit_ != nullptr; }
  scsi::LogicalUnit& unit() noexcept { return *unit_; }  // With has_unit().

  struct State {
    scsi::LogicalUnitCounters counters;
    Health health = Health::kGood;
    cache::StreamCounters streams;
    std::optional<scsi::SanitizeProgress> sanitize;
  };
  Task<State> state();
  State state_at_home() const;  // The same, on its home.
  // Makes device and unit larger; initiators are told. One on a pool has its new size already,
  // which may be smaller.
  Task<Error> grow(std::uint64_t byte_count);
  // What initiators may do now, as the record says it. Whoever is attached stays.
  Task<void> apply_access();
  // The same of what they may do in a second. Of one on a pool, on its home.
  void apply_rates();
  // Its content has been replaced all at once: commands that were sent for the old content end with
  // ABORTED COMMAND, and every initiator gets a unit attention. On its home, for a volume on a
  // pool.
  void content_replaced();
  // An operator sets the access state of a target port group.
  Task<void> set_access_state(std::uint16_t port_group, scsi::AccessState state);
  // A thin volume has taken as much as was to be told: initiators are told.
  Task<void> warn_of_space();
  // Its record has another name.
  Task<void> take_name();
  // Of one on a pool; null otherwise. On its home.
  pool::PoolVolume* pool_volume() const noexcept { return pool_volume_.get(); }
  // At its end. The flush's error; kTimedOut if it did not end by the deadline.
  Task<Error> flush(TimePoint deadline);
  // Flushes and lets go of the device; the flush's error. kTimedOut if something in the device
  // did not end by the deadline; it may be asked again. No target leads to the unit any more.
  Task<Error> close(TimePoint deadline);

 private:
  Volume() = default;

  static Task<Opened> open_here(VolumeRecord record, std::filesystem::path state, Executor* home,
                                Opening opening, ArrayFacts array, Door* set);
  void stand_on(Door& set, const Extent& extent);
  void stand_on(PoolGround ground);
  // Puts front and unit on what lies below.
  void finish_opening(cache::StreamBudget* streams);
  Task<void> apply_access_here();
  Task<void> warn_of_space_here();
  Task<void> set_access_state_here(std::uint16_t port_group, scsi::AccessState state);
  Task<void> take_name_here();
  static Task<std::expected<void, OpenFailure>> open_file(Volume* volume, Opening opening);
  Task<State> state_here();
  Task<Error> grow_here(std::uint64_t byte_count);
  struct Flush;
  static Task<void> run_flush(std::shared_ptr<Flush> state, BlockDevice* device);
  Task<Error> flush_here(TimePoint deadline);
  Task<Error> close_here(TimePoint deadline);

  VolumeRecord record_;
  ArrayFacts array_;
  std::filesystem::path path_;
  Executor* home_ = nullptr;
  std::optional<OpenFailure> failure_;
  BlockDevice* device_ = nullptr;                  // What the unit stands on.
  std::unique_ptr<BlockDevice> storage_;           // Other than a part of a set.
  FileDevice* file_ = nullptr;                     // The device, if it is one.
  MemoryDevice* memory_ = nullptr;                 // Likewise.
  std::unique_ptr<Slice> slice_;                   // The part of a RAID set that it is,
  std::unique_ptr<pool::PoolVolume> pool_volume_;  // The part of a pool that it is.
  std::unique_ptr<Door> door_;                     // On that, if it was not there at first.
  std::unique_ptr<VolumeFront> front_;             // On all of these.
  std::unique_ptr<cache::ReadAhead> read_ahead_;   // What stands on that, if anything.
  std::unique_ptr<UnitFaults> faults_;             // Null: rules do not strike the unit.
  std::unique_ptr<scsi::UnitStore> kept_;
  std::unique_ptr<scsi::LogicalUnit> unit_;
  std::shared_ptr<Flush> flush_;  // Of flush() or close(): one in its life.
};

// Why `byte_count` bytes cannot be reserved on top of what a file has; empty if they can. Half a
// sentence. Reserving them would take what there is before it fails.
std::string lack_of_space(const std::filesystem::path& file, std::uint64_t byte_count);

// Where a volume's file is, given the state directory; empty for memory and a RAID set.
std::filesystem::path path_of(const VolumeRecord& record, const std::filesystem::path& state);

}  // namespace sandbay::group
