// ManagedSet: a RAID set as its users know it, from the first time its drives are seen until the
// controller stops: the same block device while the set behind it is assembled, runs, goes offline
// because too many drives are away, and is assembled anew when they are back.
//
// While the set does not run every request ends with kNotReady and health() is kFailed or kMissing.
// Geometry, name and UUID do not change. Used on the controller's home executor only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "block/block_device.h"
#include "nvram/nvram.h"
#include "raid/assembly.h"
#include "raid/maintenance.h"
#include "raid/raid_set.h"
#include "raid/set_drives.h"
#include "runtime/sync.h"

namespace sandbay::raid {

struct ManagedSetOptions {
  DrivePolicy drive_policy;
  MaintenancePolicy maintenance;
  nvram::Nvram* nvram = nullptr;  // Where the journal is, if there is one; outlives the set.
  // Of a journal that is made; one that is there keeps its size.
  std::uint64_t nvram_journal_bytes = std::uint64_t{16} << 20;
  std::size_t most_lost_bytes = kLostSectorsBytes;  // In a list of lost sectors; tests set less.
};

// The name of the region with a set's journal, and whose it is; none if it is none.
std::string journal_region(const Uuid& set);
std::optional<Uuid> set_of_journal_region(std::string_view name);

// A drive that may take part: index r of the vector is role r; null where there is none.
struct SetMember {
  BlockDevice* device = nullptr;
  std::string name;
};

class ManagedSet final : public BlockDevice {
 public:
  using EventSink = std::function<void(const ManagedSet& set, SetEvent event)>;
  using Recorder = std::function<Task<Error>(Uuid set, Event event)>;

  ManagedSet(Executor& home, Superblock known, ManagedSetOptions options);
  ~ManagedSet() override;  // After stop().

  Executor& home() const noexcept override { return home_; }
  const Geometry& geometry() const noexcept override { return geometry_; }
  Health health() const noexcept override;
  bool serves() const noexcept override;
  std::string description() const override;
  Task<Completion> submit(Request request) override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;

  // As RaidSet's; kNotReady while it does not run.
  Task<Error> lose(std::vector<Extent> extents);

  const std::string& name() const noexcept { return known_.set_name; }
  const Uuid& uuid() const noexcept { return known_.set_uuid; }
  // Why it does not run; empty if it does.
  const std::string& refusal() const noexcept { return refusal_; }
  bool running() const noexcept { return serving_ && !set_->offline(); }
  // The newest that is known of it.
  const Superblock& superblock() const noexcept {
    return drives_ != nullptr ? drives_->superblock() : known_;
  }
  // What runs or stopped of itself and was not taken down yet; null if nothing did.
  RaidSet* set() const noexcept { return set_.get(); }
  SetDrives* drives() const noexcept { return drives_.get(); }
  Maintenance* maintenance() const noexcept { return maintenance_.get(); }

  void on_event(EventSink sink) { event_sink_ = std::move(sink); }
  void on_record(Recorder recorder) { recorder_ = std::move(recorder); }

  // From now on, also when it is started again.
  void set_policy(MaintenancePolicy policy);

  // Does not run, for this reason: one sentence.
  void refuse(std::string why) { refusal_ = std::move(why); }
  // Starts what assembly found, after stop() if something ran before: opens the journal, replays
  // it, serves requests, begins maintenance. A member whose role the superblock calls lost has come
  // back, and only what its role's map calls stale is rebuilt. A sentence if it does not work; what
  // it made until then goes with stop(). `accept_loss`: as Controller::start_set() has it.
  Task<std::expected<void, std::string>> start(AssembledSet assembled,
                                               std::vector<SetMember> members,
                                               std::vector<SetMember> replacements,
                                               bool accept_loss = false);
  // Requests end, everything is flushed and marked clean, what ran goes. kTimedOut: something in a
  // drive does not end; the object must then be kept, and stop() may be tried again. What failed
  // of itself is not marked clean, and no error.
  Task<Error> stop(TimePoint deadline);
  // Something was started and stop() has not yet ended well.
  bool assembled() const noexcept { return drives_ != nullptr; }

 private:
  void place_drives(AssembledSet assembled, const std::vector<SetMember>& members,
                    const std::vector<SetMember>& replacements);
  Task<std::string> open_journal();  // Empty if it works, or if the set needs none.
  Task<std::string> open_nvram_journal();
  std::string run_without_journal(std::string_view why);
  // The journal was needed, and is not there.
  std::string note_lost_journal(const char* why);
  // Why the set cannot start without its journal; empty if it can, or if loss is accepted.
  std::string lacks_without_journal(const char* why);
  Task<std::string> bring_up();
  void learn_geometry();
  void tell(SetEvent event) const {
    if (event_sink_) event_sink_(*this, std::move(event));
  }
  Task<Error> record(Event event);
  Task<void> stop_maintenance();

  Executor& home_;
  Superblock known_;
  ManagedSetOptions options_;
  Geometry geometry_;
  std::string refusal_ = "it has not been started";
  bool serving_ = false;
  bool has_run_ = false;
  bool accept_loss_ = false;
  // Volumes with acknowledged writes that were not flushed.
  std::set<std::uint64_t> unflushed_;
  // The set went offline with such writes, and a drive that went may have lost them. The next flush
  // of each of these volumes fails, so that every writer learns it. A flush of volume 0 covers the
  // whole set and settles no other volume's.
  std::set<std::uint64_t> unflushed_lost_;
  // When it stopped serving, every drive in a role still answered: none has lost what it had not
  // flushed, so without a journal only redundancy of updates that were under way is in doubt.
  bool drives_have_all_ = false;
  std::unique_ptr<SetDrives> drives_;
  std::unique_ptr<nvram::Region> region_;
  std::unique_ptr<Journal> journal_;
  std::unique_ptr<RaidSet> set_;
  std::unique_ptr<Maintenance> maintenance_;
  EventSink event_sink_;
  Recorder recorder_;
  bool stopping_maintenance_ = false;
  sandbay::Event maintenance_stopped_;
  std::unique_ptr<Gate> queries_;  // provisioning() under way.
};

}  // namespace sandbay::raid
