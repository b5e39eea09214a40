// DriveBay: one drive of the configuration, from the file or device at the bottom to what RAID sees
// of it: medium → volatile cache → modelled time → fault layer → power switch. Drives without a
// profile have no modelled time; the other three exist where faults are enabled.
//
// A drive that cannot be opened is absent: the bay says why, and everything else goes on. A file
// that is not there is made, as a blank drive, at the first open() only. Home: that of the drives.
#pragma once

#include <expected>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "block/layer.h"
#include "fault/engine.h"
#include "fault/fault_layer.h"
#include "fault/volatile_cache.h"
#include "group/hardware_configuration.h"
#include "group/power.h"
#include "model/model_clock.h"
#include "model/modelled_drive.h"
#include "runtime/sync.h"

namespace sandbay::group {

class PowerSwitch final : public Layer {
 public:
  PowerSwitch(BlockDevice& below, Power& power) : Layer(below), power_(power) {}

  Task<Completion> submit(Request request) override {
    return power_.pass(&below(), std::move(request));
  }

 private:
  Power& power_;
};

class DriveBay {
 public:
  // `number` is the drive's place in its member, from 1.
  DriveBay(DriveConfiguration configured, std::uint64_t number, std::string member,
           const std::filesystem::path& state, model::ModelClock clock);
  ~DriveBay();  // After close().
  DriveBay(const DriveBay&) = delete;
  DriveBay& operator=(const DriveBay&) = delete;

  // With `engine` the drive can break, has a volatile cache of `cache_bytes`, and is silent without
  // `power`, which is there, too. An error is one that the group must not start with: another
  // daemon has the drive.
  Task<std::expected<void, std::string>> open(Executor& home, fault::FaultEngine* engine,
                                              Power* power, std::size_t cache_bytes);
  // Waits for what faults still have to do; nobody uses the drive any more.
  Task<void> close();
  // Something in the drive does not end: it stays until the process ends.
  void abandon();

  // A blank drive of the same size in memory, for a fault that puts another one in. Null: absent,
  // or there is no memory for it.
  BlockDevice* other_drive();

  // Asks what is at its path now, off the reactor. The functions below use the last answer; a
  // filesystem that hangs gives none. One question is under way at a time.
  void look();

  // It could not be opened, or its path leads to something else than was opened; and now something
  // is there. Memory never comes back.
  bool may_have_come() const;

  // A file that is open and not at its path any more, removed or renamed: it is served, but the
  // next start will not find it. What that means, in words; empty: it is there.
  std::string displacement() const;
  // Whether that has become so since this was asked last.
  bool take_displaced();
  // The serial number that it says it has, if that has changed since this was asked last.
  std::optional<std::string> take_changed_serial();

  // The drive, asked below everything that can break, has nothing mapped from this byte on, so that
  // it reads as zeros there. False if it does not tell.
  Task<bool> has_nothing_behind(std::uint64_t byte_offset);

  const DriveConfiguration& configured() const noexcept { return configured_; }
  const std::filesystem::path& path() const noexcept { return path_; }
  // See identity_of(); empty if it is not known, as that of memory.
  const std::string& identity() const noexcept {
    return drive_ == nullptr && look_->answered ? look_->identity : identity_;
  }
  BlockDevice* device() const noexcept { return top_; }  // Null: absent.
  const std::string& absence() const noexcept { return absence_; }
  // A start takes no modelled time: the drive's begins here, and with it that of every later
  // open().
  void begin_time();
  // For how long its model has been at work, and what it has to do. Nothing: it has none.
  Duration modelled_busy() const noexcept;
  std::size_t modelled_queue() const noexcept;
  // There was no such file before this process opened it.
  bool was_made() const noexcept { return was_made_; }
  std::size_t cache_bytes() const noexcept { return cache_bytes_; }
  fault::VolatileCache* cache() const noexcept { return cache_.get(); }
  fault::FaultLayer* faults() const noexcept { return faults_.get(); }

 private:
  // Shared with a question that may be under way when the bay is gone.
  struct Look {
    bool under_way = false;
    bool answered = false;
    bool exists = false;
    std::string identity;
    Event ended;
  };

  Task<std::expected<void, std::string>> open_file(Executor& home);
  // Gives the content the drive's time. Null if it is larger than the drive.
  std::unique_ptr<model::ModelledDrive> timed(BlockDevice& content) const;
  // Makes the layers above drive_; false if it is larger than the drive of its profile.
  bool add_layers(fault::FaultEngine* engine, Power* power, std::size_t cache_bytes);
  static Task<void> ask(std::shared_ptr<Look> look, std::filesystem::path path);
  // Asks anew and waits a moment for the answer.
  Task<bool> look_now(Executor& home);

  DriveConfiguration configured_;
  std::uint64_t number_;
  model::ModelClock clock_;
  std::string member_;          // Whose drive it is, for rules.
  std::filesystem::path path_;  // Empty for memory.
  std::string absence_;
  std::string identity_;  // Of what was opened last; see identity_of().
  std::shared_ptr<Look> look_ = std::make_shared<Look>();
  bool was_opened_ = false;
  std::string serial_;      // As far as take_changed_serial() has said.
  bool displaced_ = false;  // As far as take_displaced() has said.
  bool was_made_ = false;
  std::size_t cache_bytes_ = 0;
  std::unique_ptr<BlockDevice> drive_;
  std::unique_ptr<model::ModelledDrive> timed_;
  std::unique_ptr<BlockDevice> other_;
  std::unique_ptr<model::ModelledDrive> timed_other_;
  Duration busy_before_{};  // Models that were closed.
  bool time_runs_ = false;
  std::unique_ptr<fault::VolatileCache> cache_;
  std::unique_ptr<fault::FaultLayer> faults_;
  std::unique_ptr<PowerSwitch> power_;
  BlockDevice* top_ = nullptr;
};

}  // namespace sandbay::group
