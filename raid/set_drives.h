// SetDrives: which drive holds which role of a set, how far each is to be trusted, and the durable
// record of that on the drives themselves. Knows nothing of parity.
//
// A role without a drive is absent. A drive whose role has stale regions is written with everything
// and read only where it is not stale; rebuild() of maintenance.h makes regions fresh. A role may
// have a replacement, a second drive that is written with everything and never read, until it is
// whole and takes the role.
//
// What always holds:
//   - A write that skips a role is acknowledged only after the loss of the role is recorded in the
//     superblocks of the others and the region is recorded as stale (settled(), prepare_write()).
//   - A loss that the layout does not survive is never recorded: drop() refuses, nothing becomes
//     stale, and the set works again when the drive is back.
//
// Used on the set's home executor only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "raid/drive.h"
#include "raid/drive_metadata.h"
#include "raid/journal.h"
#include "raid/layout.h"
#include "raid/lost_sectors.h"
#include "raid/region_map.h"
#include "raid/stripe_plan.h"
#include "raid/superblock.h"
#include "runtime/frame_vector.h"

namespace sandbay::raid {

// Something an operator wants to know; `role` is kNoRole where it concerns the set.
inline constexpr unsigned kNoRole = ~0U;
struct SetEvent {
  enum class Kind : std::uint8_t {
    kDriveFailed,
    kDriveMissing,
    kDriveReturned,
    kDriveReplaced,
    kDegraded,
    kOptimal,
    kOffline,
    kOnline,
    kSpareTaken,
    kNoSpare,
    kRebuildStarted,
    kRebuildEnded,
    kCopyStarted,
    kCopyEnded,
    kVerifyStarted,
    kVerifyEnded,
    kMediumErrorRepaired,
    kSectorsLost,
    kMismatch,
    kCorruption,
    kPredictedFailure,
    kJournalReplayed,
    kJournalLost,
    kNoRoom,
    kWriteRefused,
  };
  Kind kind;
  unsigned role = kNoRole;
  std::string text;  // A sentence without the set's name.
};

enum class DropReason : std::uint8_t { kFailed, kMissing };
DropReason reason_of(Error error);  // What a drive's error says about where it is.

class SetDrives final : public JournalDrives {
 public:
  struct RoleDrive {
    Drive* drive = nullptr;        // Null: absent.
    Drive* replacement = nullptr;  // Null: none.
    // How far maintenance has come within the region it works on: stripes of it before the end are
    // as good as fresh. For the drive, then for the replacement.
    std::uint64_t fresh_region[2] = {kNoRegion, kNoRegion};
    std::uint64_t fresh_end[2] = {0, 0};
  };
  static constexpr std::uint64_t kNoRegion = ~std::uint64_t{0};
  using EventSink = std::function<void(SetEvent)>;
  // Remembers a set's event counter beside the drives; awaited before the change counts as settled.
  using Recorder = std::function<Task<Error>(Event event)>;

  // Of a set that has been assembled: its newest superblock, region map and lost sectors.
  SetDrives(Executor& home, Layout layout, Superblock newest, RegionMap regions, LostSectors lost);
  ~SetDrives();

  // What stands in for a role, before the set runs or when it has come back.
  void set_drive(unsigned role, BlockDevice& device, std::string name, DrivePolicy policy);
  void set_replacement(unsigned role, BlockDevice& device, std::string name, DrivePolicy policy);
  void on_event(EventSink sink) { event_sink_ = std::move(sink); }
  void on_record(Recorder recorder) { recorder_ = std::move(recorder); }
  // A drive is missing that the set does not survive without: the set has to be assembled anew. The
  // text is a clause that says which drive, and why.
  void on_unmissable(std::function<void(const std::string& why)> sink) {
    unmissable_sink_ = std::move(sink);
  }

  Executor& home() const noexcept { return home_; }
  const Layout& layout() const noexcept { return layout_; }
  const Superblock& superblock() const noexcept { return newest_; }
  Drive* drive(unsigned role) const noexcept { return roles_[role].drive; }
  Drive* replacement(unsigned role) const noexcept { return roles_[role].replacement; }
  bool replacing() const noexcept { return replacing_ != 0; }  // Some role has a replacement.
  const RoleDrive& role(unsigned role) const noexcept { return roles_[role]; }
  Lba data_offset() const noexcept { return newest_.data_offset_blocks; }

  // All drives are there and whole. Redundancy may still have to be verified.
  bool optimal() const noexcept { return (absent_ | stale_) == 0; }
  std::uint64_t absent_roles() const noexcept { return absent_; }
  std::uint64_t stale_roles() const noexcept { return stale_; }
  // No drive in a role is missing, not even one that the set cannot miss.
  bool all_answer() const;

  // Members of a stripe whose content cannot be taken from a drive, and those that have neither a
  // drive nor a replacement.
  MemberSet unreadable(std::uint64_t stripe) const {
    return (absent_ | stale_) == 0 ? 0 : find_unreadable(stripe);
  }
  MemberSet unwritable(std::uint64_t stripe) const;
  // Members without a drive of their own, whether they have a replacement or not.
  MemberSet absent(std::uint64_t stripe) const;
  // How many times a drive has been lost, and the members that have no drive of their own or lost
  // one since there were `drops`: what was written since may not be on a drive that is back.
  std::uint64_t drops() const noexcept { return drops_; }
  MemberSet gone_since(std::uint64_t drops, std::uint64_t stripe) const;
  // Unreadable members whose drives have not failed for good.
  MemberSet returning(std::uint64_t stripe) const;
  // Parity matches the data, mirrors match one another.
  bool redundancy_valid(std::uint64_t stripe) const {
    return unverified_count_ == 0 || !unverified_[region_of(stripe)];
  }

  // ... and may not match data that was written long ago: with the journal, the updates were lost
  // that a crash cut short. Nothing is computed from parity here before it has been verified.
  bool redundancy_suspect(std::uint64_t stripe) const {
    return newest_.redundancy_suspect && unverified_[region_of(stripe)];
  }
  // ... and in these rows, or some of them, nothing has been written since with parity that fits.
  bool doubted(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows) const {
    return redundancy_suspect(stripe) && !lost_.matched().covers(rows_of(stripe, row, rows));
  }
  // How many of these rows, from the first on, are doubted as the first is.
  std::uint32_t doubted_alike(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows) const;
  // The role's drive has missed nothing here, missing or not, but rows that match: its content
  // counts in the others.
  bool keeps(std::uint64_t stripe, unsigned role) const {
    return redundancy_suspect(stripe) && lost_.keeps(role, region_of(stripe));
  }
  MemberSet keeping(std::uint64_t stripe) const;  // The members whose roles keep.
  // The role's drive has lost writes of doubted rows here. Parity may be older than they are, so
  // that its content matches proves nothing either.
  void lose_content(unsigned role, std::uint64_t region);
  // Parity fits these rows now. False if the list has no room to remember it.
  bool add_matched(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows);
  // Doubted rows have been written that stay doubted: a drive that is lost before a flush may lose
  // them.
  void written_in_doubt(std::uint64_t stripe) { doubted_at_[region_of(stripe)] = flushes_begun_; }
  Task<Error> save_doubts();  // Durable: every row that matched before the call.

  // Regions. ------------------------------------------------------------------------------------
  std::uint64_t region_of(std::uint64_t stripe) const noexcept {
    return stripe / newest_.region_stripes;
  }
  std::uint64_t region_count() const noexcept { return unverified_.size(); }
  std::uint64_t end_of_region(std::uint64_t region) const noexcept {
    return std::min((region + 1) * newest_.region_stripes, layout_.stripe_count());
  }
  // Before a write in a region: makes durable what has to be durable before. Each success is paired
  // with end_write(). `intent`: a crash may leave the region with redundancy that does not match.
  Task<Error> prepare_write(std::uint64_t region, bool intent);
  void end_write(std::uint64_t region) noexcept;
  // Of a role's drive or its replacement.
  bool stale(unsigned role, bool replacement) const { return stale_count(role, replacement) > 0; }
  std::uint64_t stale_count(unsigned role, bool replacement) const;
  std::optional<std::uint64_t> first_stale(unsigned role, bool replacement,
                                           std::uint64_t from = 0) const;
  void fresh_up_to(unsigned role, bool replacement, std::uint64_t region, std::uint64_t stripe_end);
  void region_fresh(unsigned role, bool replacement, std::uint64_t region);
  std::uint64_t unverified_count() const noexcept { return unverified_count_; }
  // The blocks of regions whose redundancy is suspect, in order.
  std::vector<Extent> suspect_blocks() const;
  // The first that can be verified: a suspect one only with all its members.
  std::optional<std::uint64_t> first_verifiable() const;
  // Grows whenever redundancy of the region is lost.
  std::uint64_t redundancy_losses(std::uint64_t region) const { return redundancy_losses_[region]; }
  // Its redundancy is valid, unless it was lost again since `losses` was read, before the verify.
  void region_verified(std::uint64_t region, std::uint64_t losses);
  // These stripes, or all, may have redundancy that does not match: a write failed in part, or
  // journal records were lost.
  void redundancy_lost(std::uint64_t stripe) { redundancy_lost(stripe, 0, layout_.strip_blocks()); }
  // ... or these rows of the stripe.
  void redundancy_lost(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows);
  void all_redundancy_lost();
  // Takes intents back where nothing has been written for a while, or wherever nothing is being
  // written; flushes first.
  Task<void> retire_intents(bool all);
  Task<Error> save_regions();  // Durable: every change above before the call.
  // Also if nothing has changed: shows which drives still take what is reserved for it. Nothing if
  // that was just seen of the drives that are here.
  Task<Error> show_reserved_room();

  const LostSectors& lost() const noexcept { return lost_; }
  void add_lost(Extent extent) {
    ++losses_;
    lost_changed_ += lost_.add(extent);
  }
  // Grows with every block that is lost. The zeros that replace a lost block are written after
  // that, so a read that began earlier and holds no stripe compares this count before and after.
  std::uint64_t losses() const noexcept { return losses_; }
  void remove_lost(Extent extent) { lost_changed_ += lost_.remove(extent); }
  // Some are lost, or the drives do not know yet that they are not.
  bool lost_matters() const noexcept { return !lost_.empty() || lost_saved_ < lost_changed_; }
  Task<Error> save_lost();  // Durable: every change above before the call, whoever made it.

  // Changes of roles. -----------------------------------------------------------------------------
  bool survives_without(unsigned role) const;
  // Takes the drive out of its role. False if the set does not survive it, and then nothing has
  // changed. The caller awaits settled() before it acknowledges anything that skipped the role.
  // Nothing is sent any more to a drive that is missing, whether the set survives that or not:
  // another one may answer in its place, or the same one without what it had not flushed.
  bool drop(unsigned role, DropReason reason, const std::string& why);
  void drop_replacement(unsigned role, const std::string& why);
  // A drive takes an absent role; everything on it is stale, or (returning) what was noted is.
  void take_role(unsigned role, BlockDevice& device, std::string name, DrivePolicy policy,
                 const Uuid& uuid, bool returning);
  // A second drive for a role, all of it stale.
  void begin_replacement(unsigned role, BlockDevice& device, std::string name, DrivePolicy policy,
                         const Uuid& uuid);
  Task<Error> promote_replacement(unsigned role);  // It is whole and takes the role.
  // Replacements are stale again; durable.
  Task<Error> copy_anew();
  bool settled_now() const noexcept { return settled_ == changed_; }
  // Every change of roles so far is durable on the drives that are left.
  Task<Error> settled();
  // The same, however long the recorder takes: what cannot be left half done waits for it.
  Task<Error> settled_at_last();
  // An event of its own in any case: what was found may be on some drives only.
  Task<Error> save_clean(bool clean);
  // An event although nothing has changed: a drive that is set back to before it is found out.
  Task<Error> bring_event_forward();
  // A journal is about to begin a life, has begun it: durable with the next event. A life that was
  // to begin when a start was interrupted is the one that begins now.
  void begin_journal_life();
  // Among the drives that are in roles now.
  std::uint32_t largest_physical_block() const;
  // Noted with the next event if an older version has not noted it and all drives are here.
  void learn_physical_block();
  void end_last_journal_life();

  // Flushes every drive; drops those that fail it.
  Task<Error> flush();
  // Every drive that was ever in use here is idle, so that devices may go.
  Task<bool> wait_idle_until(TimePoint deadline);
  // Drives that it has, and some of those that it had.
  std::size_t kept_drives() const noexcept { return drives_.size(); }
  // Nothing that was ever asked of the device here is still in it.
  bool idle(const BlockDevice& device) const;

  void tell(SetEvent event) const {
    if (event_sink_) event_sink_(std::move(event));
  }

  // JournalDrives.
  std::uint64_t live_roles() const noexcept override;
  std::uint32_t live_mark() const noexcept override;
  Task<Completion> journal_io(unsigned role, Request request) override;

 private:
  MemberSet find_unreadable(std::uint64_t stripe) const;
  void forget_gone();
  Drive* add_drive(BlockDevice& device, std::string name, DrivePolicy policy);
  void judge_unheeded(const Drive* drive, Error error);
  void recount();
  void mark_doubtful(unsigned role);
  Task<Error> write_region_maps();  // With saving_ held.
  Task<Error> write_lost_lists();   // Likewise.
  void mark_unverified(std::uint64_t region);
  void suspect_redundancy();
  Extent rows_of(std::uint64_t stripe, std::uint32_t row, std::uint64_t rows) const {
    return {.first = stripe * layout_.strip_blocks() + row, .block_count = rows};
  }
  Extent rows_of_region(std::uint64_t region) const;
  bool unflushed(std::uint64_t region) const {
    return written_at_[region] != 0 && written_at_[region] >= flushes_covered_;
  }
  void begin_doubt(std::uint64_t region);
  void doubt_again(std::uint64_t region, Extent rows);
  struct Owned {
    Owned(BlockDevice& device, std::string name, DrivePolicy policy)
        : drive(device, std::move(name), policy), metadata(drive) {}
    Drive drive;
    DriveMetadata metadata;
  };
  using WriteOne = Task<Error> (SetDrives::*)(Owned* owned, unsigned role, bool replacement);
  struct AllDrives;

  // Does `write` on every drive and replacement, all at once; drops those that fail. Fails if a
  // drive fails that the set cannot miss, or none is left.
  Task<Error> on_all_drives(WriteOne write, const char* doing);
  static Task<void> on_one(AllDrives* all, Owned* owned, unsigned role, bool replacement);
  Owned* owner_of(const Drive* drive) const;
  Task<Error> write_regions(Owned* owned, unsigned role, bool replacement);
  Task<Error> write_lost(Owned* owned, unsigned role, bool replacement);
  Task<Error> write_superblock(Owned* owned, unsigned role, bool replacement);
  Task<Error> flush_one(Owned* owned, unsigned role, bool replacement);

  Executor& home_;
  Layout layout_;
  Superblock newest_;
  RegionMap regions_;
  LostSectors lost_;
  std::vector<RoleDrive> roles_;
  // Also those that have gone, until nobody speaks of them any more.
  std::vector<std::unique_ptr<Owned>> drives_;
  unsigned idle_awaited_ = 0;
  DriveMetadata::Image image_;  // Of the save under way.
  std::uint64_t absent_ = 0;
  std::uint64_t replacing_ = 0;  // Roles with a replacement.
  std::uint64_t stale_ = 0;
  std::uint64_t settled_roles_ = 0;  // Whose superblocks are current.
  std::vector<bool> unverified_;     // By region; a subset of the map's dirty ones.
  std::uint64_t unverified_count_ = 0;
  std::vector<std::uint64_t> redundancy_losses_;  // By region.
  std::vector<std::uint32_t> writing_;            // By region: writes between prepare and end.
  std::vector<bool> touched_;  // By region: written since intents were last looked at.
  // By region: flushes begun when it was last written, 0 if it never was; those that are covered.
  std::vector<std::uint64_t> written_at_;
  // By region: flushes begun when doubted rows were written last, 0 if they never were.
  std::vector<std::uint64_t> doubted_at_;
  std::uint64_t flushes_begun_ = 1;
  std::uint64_t flushes_covered_ = 0;
  EventSink event_sink_;
  Recorder recorder_;
  std::function<void(const std::string&)> unmissable_sink_;
  std::uint64_t changed_ = 0;  // Of roles.
  std::uint64_t settled_ = 0;
  std::uint64_t regions_changed_ = 1;  // What was found may be on some drives only.
  std::uint64_t regions_saved_ = 0;
  std::uint64_t lost_changed_ = 1;  // Likewise.
  std::uint64_t lost_saved_ = 0;
  std::uint64_t drops_ = 0;
  std::array<std::uint64_t, kMostDrives> dropped_at_{};  // By role.
  std::uint64_t doubts_changed_ = 0;                     // Rows that match and regions that keep.
  std::uint64_t doubts_saved_ = 0;
  std::uint64_t losses_ = 0;
  std::optional<TimePoint> room_shown_;
  std::uint64_t room_shown_at_ = 0;  // As changed_ was.
  Mutex saving_;                     // One save of anything at a time.
};

// Prepared stripes of one write; ends them together.
class Prepared {
 public:
  explicit Prepared(SetDrives& drives) : drives_(drives) {}
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  ~Prepared() {
    for (const std::uint64_t region : regions_) drives_.end_write(region);
  }
  Task<Error> add(std::uint64_t stripe, bool intent) {
    const std::uint64_t region = drives_.region_of(stripe);
    if (!regions_.empty() && regions_.back() == region) co_return Error::kNone;
    const Error error = co_await drives_.prepare_write(region, intent);
    if (error == Error::kNone) regions_.push_back(region);
    co_return error;
  }

 private:
  SetDrives& drives_;
  FrameVector<std::uint64_t> regions_;
};

}  // namespace sandbay::raid
