// FaultLayer: a drive that breaks as its engine's rules say. It stands on any block device.
//
// While no rule and no damage concerns the drive, requests go straight to the device below, without
// a coroutine frame. Damage to stored data is kept beside the device by default, so that what is
// below stays comparable; with overlay=no it is written to the device.
//
// What the faults answer: a failed drive kHardware; one that was pulled kNotReady; an unreadable or
// unwritable block kMediumError with the first bad LBA; a full one kNoSpace; write-protected
// kReadOnly; a command that hung, was ended by clearing the rule, kTimedOut; addresses that the
// changed identity has no block for kOutOfRange, or kInvalid if its blocks do not fit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "block/layer.h"
#include "fault/damage.h"
#include "fault/engine.h"
#include "runtime/sync.h"

namespace sandbay::fault {

struct FaultLayerOptions {
  // As rules write it after drive: and unique among drives, or among the sets of its member.
  std::string name;
  // drive:N means this one, where no drive has that name; by default the least that is free, so
  // that a drive that replaces another gets its number.
  std::optional<std::uint64_t> number = std::nullopt;
  std::string enclosure;         // As rules write it after enclosure: may be empty.
  std::string member = {};       // It is no drive, but a set of that member: at=member:NAME.
  std::string owner = {};        // Of a drive: the member that has it; may be empty.
  std::string serial;            // What the drive says of itself.
  PowerTarget* power = nullptr;  // What of the drive loses its content with the power, if any.
};

// What a drive tells beside its blocks.
struct DriveStatus {
  std::string serial;
  std::uint64_t wear_percent = 0;
  std::uint64_t temperature_celsius = 30;
  std::uint64_t unreadable_blocks = 0;
  std::uint64_t recovered_errors = 0;
};

class FaultLayer final : public Layer {
 public:
  // Borrows the device and the engine, both on the same home.
  FaultLayer(BlockDevice& below, FaultEngine& engine, FaultLayerOptions options);
  ~FaultLayer() override;  // After drain().

  const Geometry& geometry() const noexcept override;
  Health health() const noexcept override;
  TimePoint busy_since() const noexcept override { return target_->busy_since(); }
  std::string description() const override { return target_->description(); }
  Task<Completion> submit(Request request) override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;

  // Waits until nothing works on behalf of faults here.
  Task<void> drain();

  const std::string& name() const noexcept { return options_.name; }
  std::uint64_t number() const noexcept { return options_.number.value_or(0); }
  const std::string& member() const noexcept { return options_.member; }
  // For the journal: "drive d3", "member two, set a".
  std::string target_name() const;
  // Nothing is held here, or works for faults.
  bool idle() const noexcept { return depth_ == 0 && parked_.empty(); }
  const std::string& enclosure() const noexcept { return options_.enclosure; }
  const std::string& owner() const noexcept { return options_.owner; }
  DriveStatus status() const;
  bool present() const noexcept { return !away(); }
  const Damage& damage() const noexcept { return damage_; }
  std::uint64_t operations() const noexcept { return operations_; }

 private:
  friend class FaultEngine;
  using RulePointer = std::shared_ptr<ActiveRule>;
  using Strikes = std::vector<RulePointer>;
  struct Parked;
  struct Pace;
  struct Growth;
  struct Watch;

  // What the engine tells. ----------------------------------------------------------------------
  void set_rules(std::vector<RulePointer> rules, const std::vector<RulePointer>& watching);
  void begin(const RulePointer& rule);         // A lasting fault.
  void finish(ActiveRule& rule, bool forget);  // Its end; forget: the rule goes, too.
  void damage_now(const RulePointer& rule);    // Damage at rest, without an operation.
  void insert_drive(BlockDevice* content);     // Null: what was there.
  void power_lost();
  void heal();
  std::size_t held_by(const ActiveRule& rule) const;
  std::size_t release_held(ActiveRule& rule);

  // The life of an operation. -------------------------------------------------------------------
  Task<Result<ProvisioningRun>> provisioning_involved(Lba first, Lba limit);
  Task<Completion> submit_involved(Request request, std::uint64_t operation);
  Task<Completion> perform(Request request, Strikes strikes, std::uint64_t operation,
                           std::uint64_t power_cycle);
  Error refusal(Operation operation) const;
  // As a drive's unit attention, told once: what it had not flushed is gone, and so may be all of
  // it, or it is another drive that answers now.
  bool take_attention();
  Error adapt(Request& request) const;  // To the blocks of the device below.
  Task<Error> delay(Request& request, Strikes strikes, std::uint64_t operation);
  Task<Error> park(RulePointer rule, Cancellation* cancellation, TimePoint until);
  TimePoint end_at_pace(const RulePointer& rule, std::uint64_t byte_count);

  Task<Completion> struck_read(Request request, Strikes strikes, std::uint64_t operation);
  // The first bad block of a write that a rule fails; nothing if none does.
  std::optional<Lba> write_error(const Strikes& strikes, std::uint64_t operation, Extent extent);
  Task<Completion> struck_write(Request request, Strikes strikes, std::uint64_t operation);
  Task<Completion> damaged_write(Request request, Strikes strikes, std::uint64_t operation);
  Task<Completion> struck_zero(Request request, Strikes strikes, std::uint64_t operation);
  Task<Completion> struck_flush(Request request);
  Task<Completion> misdirected_read(Request request, RulePointer rule, std::uint64_t operation);
  void flip_read(const Strikes& strikes, const Extent& extent, BufferList& data,
                 std::uint64_t operation);

  // Data. ---------------------------------------------------------------------------------------
  // Damage that is there afterwards, whatever the operation did.
  void strike_at_rest(const Strikes& strikes, const Extent& extent, std::uint64_t operation);
  void damage_extent(const RulePointer& rule, const Extent& extent, std::uint64_t operation);
  void flip_at_rest(const RulePointer& rule, const Extent& extent, std::uint64_t operation);
  void return_to_earlier(const RulePointer& rule, std::uint64_t operation);
  // What a write leaves on the medium instead of what was meant; the whole extent.
  struct Outcome;
  Task<Outcome> draw_outcome(Request& request, Strikes strikes, std::uint64_t operation);
  std::string draw_landing(const RulePointer& rule, const Extent& extent, Outcome& outcome);
  Task<void> land_elsewhere(Outcome& outcome);
  Task<Result<Bytes>> read_as_stored(Extent extent);
  Task<Error> write_below(Extent extent, Bytes& content);
  Task<void> save_for_stale(Extent extent);
  Task<void> write_pieces_below(std::vector<std::pair<Lba, Bytes>> pieces);
  Task<void> flip_below(Lba lba, std::vector<std::uint32_t> bits);
  Extent area(const Rule& rule, const Extent& otherwise) const;
  void record(const RulePointer& rule, std::uint64_t operation, const Extent& extent,
              std::string effect);

  bool lasts(Fault fault) const noexcept { return lasting_[static_cast<std::size_t>(fault)] > 0; }
  RulePointer lasting_rule(Fault fault) const;  // The oldest; null: none.
  void count_struck(Fault fault);
  void count_refusal();
  void unpark(const ActiveRule* rule, Random* shuffle);
  void grow_defects();
  void update();  // Whether anything concerns the drive; tells of a changed health.
  bool away() const noexcept {
    return lasts(Fault::kPull) || lasts(Fault::kShelfLoss) || lasts(Fault::kMemberLoss) ||
           lasts(Fault::kMemberReturnStale) ||
           (lasts(Fault::kMemberPartition) && home().now() >= patience_ends_);
  }
  // Of a partition, while it may still end in time.
  Task<Error> wait_out_partition(Cancellation* cancellation);
  bool dead() const noexcept { return lasts(Fault::kFail) || lasts(Fault::kFailTransient); }

  FaultEngine& engine_;
  FaultLayerOptions options_;
  BlockDevice* target_;
  bool involved_ = false;
  bool replaced_ = false;  // The device below is another than at first.
  // It was away, and nobody has been told yet: it is powered on anew, and may be another drive.
  bool attention_ = false;
  bool wearing_out_ = false;  // Defects have passed a threshold.
  std::uint64_t operations_ = 0;
  std::uint64_t depth_ = 0;
  std::uint64_t power_cycle_ = 0;
  std::uint64_t recovered_ = 0;
  TimePoint patience_ends_{};  // While a partition lasts.
  Health told_health_ = Health::kGood;
  mutable Geometry shown_geometry_;
  std::vector<RulePointer> rules_;  // That look at this drive's operations.
  std::vector<RulePointer> lasting_rules_;
  std::array<std::uint16_t, kFaultCount> lasting_{};
  Damage damage_;
  std::vector<Parked*> parked_;
  std::vector<std::unique_ptr<Pace>> paces_;
  std::vector<std::unique_ptr<Growth>> growths_;
  std::vector<std::unique_ptr<Watch>> watches_;
  Gate gate_;
};

}  // namespace sandbay::fault
