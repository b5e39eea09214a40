// RaidSet: a RAID set as a block device. Reads and writes go to the drives as the layout says; what
// cannot be read is computed from redundancy; what several drives must agree on is written through
// the journal, one update of a stripe at a time.
//
// Errors to the host: kMediumError for exactly the blocks that are lost beyond redundancy, until
// they are rewritten; kNotReady while more drives are away than the set survives; what the drive
// said where there is no redundancy. Never bytes that were not written.
//
// A write for which there is no room on the drives ends with kNoSpace, and no drive goes for it as
// long as it has room for what is reserved on it. What it was to change is old or new, and
// redundancy of its region is verified.
//
// When a write to a parity set fails beyond what it survives, drives disagree about a stripe and
// only the journal knows better: the set is then offline() for good, and its owner assembles it
// anew (managed_set.h) when the drives are back. So it is, at every level, when a drive is missing
// that the set does not survive without: what answers next may be another disk.
//
// The functions stand in eight files: raid_set.cc (what is asked of it), raid_read.cc,
// raid_write.cc (host writes into stripe updates), stripe_update.cc (one update), refused_write.cc
// (bad places met by one without redundancy left), raid_recover.cc (computing what cannot be read),
// raid_verify.cc and integrity_set.cc (with integrity: what is read is what was written last, or it
// is as good as unreadable). Everything runs on the home executor.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "block/block_device.h"
#include "raid/byte_budget.h"
#include "raid/integrity.h"
#include "raid/journal.h"
#include "raid/lanes.h"
#include "raid/layout.h"
#include "raid/set_drives.h"
#include "raid/stripe_plan.h"
#include "raid/stripe_table.h"
#include "runtime/frame_vector.h"
#include "runtime/sync.h"

namespace sandbay::raid {

struct SetCounters {
  std::uint64_t host_reads = 0;
  std::uint64_t host_writes = 0;
  std::uint64_t host_read_bytes = 0;
  std::uint64_t host_written_bytes = 0;
  std::uint64_t full_stripe_writes = 0;  // Bands, see stripe_plan.h.
  std::uint64_t read_modify_writes = 0;
  std::uint64_t reconstruct_writes = 0;
  std::uint64_t recover_writes = 0;
  std::uint64_t merged_writes = 0;    // Pieces of host writes that shared an update with others.
  std::uint64_t reconstructions = 0;  // Reads answered from redundancy.
  std::uint64_t reads_around = 0;     // ... because the drive was slow.
  std::uint64_t corrections = 0;      // Blocks rewritten after a medium error or a mismatch.
  std::uint64_t lost_blocks = 0;
  std::uint64_t mismatches = 0;  // Stripes whose redundancy did not match.
  // With integrity, in cells: the drive gave something else than was written last; only the entry
  // was wrong. Members of a stripe of whose entries one copy was damaged, lost or old.
  std::uint64_t corruptions = 0;
  std::uint64_t false_entries = 0;
  std::uint64_t entries_mended = 0;
  std::uint64_t flushes = 0;
};

struct RaidSetOptions {
  std::string name;
  // What one update of a stripe may hold in memory, all members together. Larger ones go in slices
  // of rows.
  std::size_t largest_update_bytes = std::size_t{8} << 20;
  // For parity and old data; at least four times the above.
  std::size_t scratch_bytes = std::size_t{64} << 20;
  // Data-less: the drives keep nothing of what is written here. Not with integrity, a journal, or
  // maintenance: they would take what they read for content.
  Content content = Content::kBytes;
  // Reads go to the mirror whose head is nearest, of those with equally much to do; else to one by
  // the number of the stripe.
  bool nearest_mirror = true;
  IntegrityOptions integrity;
};

struct OldRun;

class RaidSet final : public BlockDevice {
 public:
  // `journal` may be null: then a crash in the middle of a write can leave parity wrong until the
  // next verify. Both are borrowed.
  RaidSet(Executor& home, SetDrives& drives, Journal* journal, RaidSetOptions options);
  ~RaidSet() override;

  Executor& home() const noexcept override { return home_; }
  const Geometry& geometry() const noexcept override { return geometry_; }
  Health health() const noexcept override;
  bool serves() const noexcept override { return !offline_; }
  std::string description() const override;
  Task<Completion> submit(Request request) override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;

  const RaidSetOptions& options() const noexcept { return options_; }
  const Layout& layout() const noexcept { return layout_; }
  const SetCounters& counters() const noexcept { return counters_; }
  SetDrives& drives() noexcept { return drives_; }
  const Journal* journal() const noexcept { return journal_; }
  const Integrity* integrity() const noexcept { return integrity_.get(); }  // Null: none.
  bool offline() const noexcept { return offline_; }
  TimePoint last_host_io() const noexcept { return last_host_io_; }
  // Something was to be written since this was last asked.
  bool take_written() noexcept { return std::exchange(written_, false); }
  // Something was acknowledged that no flush has covered.
  bool unflushed() const noexcept { return acknowledged_ > flushed_; }

  // The drive that lacked room last, in words; empty: none.
  const std::string& no_room_on() const noexcept { return no_room_on_; }
  // What the journal has to have room for, so that the smallest update fits.
  std::size_t least_journal_payload() const;
  // Writes what the journal holds to the drives; before the first request. kDataCorrupt: the
  // journal is lost while drives are away, so what was on them cannot be told. Of a set that was
  // stopped in order (`clean`) nothing that counts can be lost. With `accept_loss` the
  // set goes on without a journal that is lost: no data is computed from parity before a verify.
  Task<Error> replay_journal(bool clean = false, bool accept_loss = false);
  // No request is accepted any more; ends when none is left and everything is flushed. kTimedOut
  // if that takes too long: something in a drive does not end, and the set must be kept.
  Task<Error> close(TimePoint deadline);
  Task<Error> flush_drives();
  // What was to be written there is gone, above: these blocks, which lie within the set, read as
  // medium errors until they are rewritten. Durable when it ends with kNone.
  Task<Error> lose(std::vector<Extent> extents);
  // Everything written is on flushed drives, no update of before comes back from the journal, and
  // the journal is on as many drives as it should be; before a role that has come back counts.
  Task<Error> renew_journal();

  // For maintenance. Each takes the stripe for itself. ------------------------------------------
  // Writes a member of a stripe anew on `target`, the role's drive or its replacement; kNotFound if
  // it is neither any more.
  Task<Error> rebuild_member(std::uint64_t stripe, unsigned member, Drive* target);
  struct Verified {
    Error error = Error::kNone;
    bool mismatch = false;
    bool left = false;  // The mismatch was not repaired: members are missing.
  };
  // Reads all of a stripe, repairs what cannot be read and what does not match.
  Task<Verified> verify_stripe(std::uint64_t stripe);

 private:
  struct ReadPiece;
  struct ReadRun;
  struct Update;
  // What is written of a stripe whose members that are away nothing makes up for if another fails:
  // parities come first.
  struct Unprotected {
    std::span<const Segment> segments;
    std::span<WritePiece* const> pieces;
    std::span<const OldRun> old;  // What was read for it.
  };
  // One write of one drive on its way.
  struct Target {
    unsigned role = 0;
    Drive* drive = nullptr;
    Extent extent;
    DriveIo io;
    Error error = Error::kNone;  // Unless the drive has gone for it.
  };

  // An update from its record in the journal until it is in place.
  class Storing {
   public:
    explicit Storing(RaidSet& set) : set_(set), turn_(set.storing_turn_) { ++set_.storing_[turn_]; }
    Storing(const Storing&) = delete;
    Storing& operator=(const Storing&) = delete;
    ~Storing() {
      if (--set_.storing_[turn_] == 0) set_.storing_ended_.notify_all();
    }

   private:
    RaidSet& set_;
    unsigned turn_;
  };

  // A write that goes to its drive past the stripes.
  class DirectWrite {
   public:
    explicit DirectWrite(RaidSet& set) : set_(set) { ++set_.direct_writes_; }
    DirectWrite(const DirectWrite&) = delete;
    DirectWrite& operator=(const DirectWrite&) = delete;
    ~DirectWrite() {
      if (--set_.direct_writes_ == 0) set_.direct_writes_ended_.notify_all();
    }

   private:
    RaidSet& set_;
  };

  // raid_set.cc
  Task<Completion> dispatch(Request request);
  Task<Completion> flush(Request request);
  Task<Completion> zero(Request request);
  Task<Completion> zero_direct(Request request);
  Task<Error> zero_stripes(std::uint64_t first, std::uint64_t count, Operation operation,
                           Origin origin);
  Task<Error> zero_held(std::uint64_t first, std::uint64_t count, Operation operation,
                        Origin origin);
  Task<Error> end_zeros(std::uint64_t first, std::uint64_t count, std::uint64_t drops,
                        std::uint64_t absent);
  Task<Error> zero_once(std::uint64_t first, std::uint64_t count, Operation operation,
                        Origin origin);
  std::uint64_t zero_batch() const;
  Task<Completion> advise(Request request);
  Task<Result<ProvisioningRun>> provisioning_of_strip(Lba lba, std::uint64_t most);
  // Whether it lies in a role's integrity area.
  bool of_entries(const JournalWrite& entry) const;
  Task<Error> prepare_replay(std::uint64_t stripe, JournalWrite entry, Prepared* prepared);
  void doubt_replayed(std::uint64_t stripe, const JournalWrite& entry);
  Task<Error> replay_write(std::uint64_t stripe, JournalWrite entry,
                           std::span<const std::byte> payload);
  Task<Error> replay_on(Drive* drive, JournalWrite entry, std::span<const std::byte> payload);
  std::set<std::uint64_t> stripes_of(std::span<const LostUpdate> updates) const;
  void go_offline(const std::string& why);
  void begin_relief();
  void release(std::vector<std::uint64_t>& tickets);
  Task<void> relieve_journal();
  Lba on_drive(std::uint64_t stripe, std::uint32_t row) const {
    return drives_.data_offset() + layout_.drive_lba(stripe) + row;
  }
  std::size_t bytes_of(std::uint64_t blocks) const { return blocks * geometry_.block_bytes; }
  // Nothing has to agree with anything. A drive that is copied has to agree with its replacement.
  bool writes_directly() const {
    return layout_.redundancy() == 0 && journal_ == nullptr && integrity_ == nullptr &&
           !drives_.replacing();
  }
  // Regions are marked before they are written: mirrors without a journal may differ after a crash.
  bool intent() const { return layout_.mirrored() && journal_ == nullptr; }
  // What an error means for the drive that gave it: takes the drive out where it has to go. False
  // if the set does not survive that, or if it is not the drive's fault; then nothing has changed.
  // `reserved`: it was done where a drive has its room from the beginning.
  bool judge(unsigned role, Drive* drive, Error error, const char* doing, bool reserved = false);
  // Without redundancy an error is the host's; but no room is reported, and a missing drive judged.
  void judge_direct(unsigned role, Drive* drive, Error error, const char* doing);
  void note_no_room(unsigned role, const Drive& drive);

  // raid_read.cc
  Task<Completion> read(Request request);
  Task<Completion> read_one(Request request, Layout::Position position);
  // `asked`: what the host wants of it.
  Task<Completion> read_many(Request request, Extent asked);
  bool add_gap(ReadPiece* piece, std::uint64_t blocks) const;
  Task<void> read_runs(FrameVector<ReadPiece>* pieces, bool disable_page_out, Origin origin);
  void fail_run(const ReadRun& run, const Completion& done, FrameVector<ReadPiece>& pieces,
                const FrameVector<std::size_t>& next);
  void note_failed_read(ReadPiece& piece, Drive* drive, const Completion& done);
  Task<void> read_again(ReadPiece* piece);
  Task<void> read_alone(ReadPiece* piece);
  Task<void> read_slices(ReadPiece* piece);
  Task<void> read_held(ReadPiece* piece);
  unsigned choose_member(std::uint64_t stripe, MemberSet unreadable) const;
  Lba distance_to(const Drive& drive, std::uint64_t stripe, unsigned member, Lba at) const;
  MemberSet limping(std::uint64_t stripe) const;
  bool around(Drive* drive, std::uint64_t stripe, unsigned member, Lba lba) const;
  bool may_differ(std::uint64_t stripe) const;  // Of mirrors.
  Task<void> make_alike(std::uint64_t stripe);
  void repair_later(std::uint64_t stripe, unsigned member, std::uint32_t row, std::uint32_t count);
  Task<void> repair(std::uint64_t stripe, unsigned member, std::uint32_t row, std::uint32_t count);

  // raid_write.cc
  Task<Completion> write(Request request);
  Task<Completion> write_queued(Request request);
  Task<Completion> write_direct(Request request);
  Task<Error> end_direct(Extent extent);
  Task<Error> write_extent(Extent extent, BufferList data, bool force_unit_access, Origin origin);
  void start_writer(StripeEntry& entry);
  Task<void> write_stripe(StripeEntry* entry);
  Task<Error> write_pieces(std::uint64_t stripe, std::span<WritePiece* const> pieces);
  [[gnu::noinline]] Task<Error> forget_lost_pieces(std::span<WritePiece* const> pieces);
  // These blocks have been rewritten.
  Task<Error> forget_lost(Extent extent);

  // stripe_update.cc; the stripe is held exclusively, spans and pointers stay. A write needs a
  // noinline one seldom, or in some sets only: the compiler would put its frame into each write's,
  // which would grow beyond kLargestPooledFrame.
  [[gnu::noinline]] Task<Error> update_mirrors(std::uint64_t stripe,
                                               std::span<WritePiece* const> pieces);
  [[gnu::noinline]] Task<Error> update_parity(std::uint64_t stripe,
                                              std::span<WritePiece* const> pieces);
  bool lost_within(std::span<WritePiece* const> pieces) const;
  // Nothing: some of the rows are doubted now and others are not, so they are divided anew.
  Task<std::optional<Error>> update_rows(Update* update);
  void plan(Update* update, std::span<const Fragment> fragments, bool doubted, bool keeps);
  Task<std::optional<Error>> update_planned(Update* update, std::span<const Fragment> fragments);
  [[gnu::noinline]] Task<Error> end_suspect(Update* update);
  Error refuse_in_doubt(std::uint64_t stripe);
  Task<bool> read_old(Update* update);  // False: plan again.
  Task<void> compute(Update* update);
  void modify_parity(const Update& update, const Band& band, Lanes& lanes);
  Task<void> construct_parity(Update* update, const Band* band, Lanes* lanes);
  // Writes segments of a stripe, through the journal where there is one. What finds no room does
  // not come back from there.
  Task<Error> store(std::uint64_t stripe, std::span<Segment> segments, bool force_unit_access,
                    Origin origin);
  Task<Error> store_once(std::uint64_t stripe, std::span<Segment> segments, bool force_unit_access,
                         Origin origin, const Unprotected* unprotected = nullptr);
  void start_targets(std::uint64_t stripe, std::span<const Segment> segments,
                     bool force_unit_access, Origin origin, FrameVector<Target>* targets);
  [[gnu::noinline]] Task<Error> take_back(Error why);
  Task<Error> forget_failed(Error why);
  Task<Result<std::uint64_t>> append_to_journal(StripeUpdate update);
  struct Stripes {
    std::uint64_t first = 0;
    std::uint64_t count = 1;
  };
  Task<Error> end_store(Stripes stripes, FrameVector<Target>* targets, Integrity::Update* sums,
                        std::uint64_t ticket, const Unprotected* unprotected = nullptr);
  Task<Error> end_written(Error error, std::uint64_t ticket);
  Task<Error> write_targets(Stripes stripes, FrameVector<Target>* targets, Integrity::Update* sums,
                            const Unprotected* unprotected);
  [[gnu::noinline]] Task<Error> lose_refused(const FrameVector<Target>* targets);
  // Whether drives lack room that are to be kept: those that lack even what is reserved go.
  [[gnu::noinline]] Task<bool> lack_room(const FrameVector<Target>* targets);
  [[gnu::noinline]] Task<void> follow_sole(const FrameVector<Target>* targets);
  [[gnu::noinline]] Task<Error> leave_unequal(Stripes stripes, Error why);

  // refused_write.cc; as above, of a parity stripe that has no redundancy left, without integrity.
  [[gnu::noinline]] Task<Error> store_unprotected(Update* update);
  Task<bool> parities_taken(FrameVector<Target>* targets);
  struct WrittenRow {
    MemberSet changed = 0;
    MemberSet written = 0;
    MemberSet refused = 0;
    bool operator==(const WrittenRow&) const = default;
  };
  WrittenRow written_at(std::uint64_t stripe, const Unprotected& write,
                        const FrameVector<Target>& targets, std::uint32_t row) const;
  Task<Error> settle_refused(std::uint64_t stripe, const Unprotected* write,
                             const FrameVector<Target>* targets);
  struct LostRows {
    MemberSet members = 0;
    std::uint32_t row = 0;
    std::uint32_t row_count = 0;
  };
  // What has become of rows that were refused: of parity if it was that, else of data.
  enum class Refused : std::uint8_t { kOld, kNew, kDivided, kUnreadable };
  Task<Error> settle_refused_rows(std::uint64_t stripe, const Unprotected* write, WrittenRow here,
                                  std::uint32_t row, std::uint32_t rows,
                                  FrameVector<LostRows>* lost);
  Task<Error> end_refused_rows(std::uint64_t stripe, const Unprotected* write, WrittenRow here,
                               std::uint32_t row, std::uint32_t rows, Refused is, Lanes* lanes,
                               FrameVector<LostRows>* lost);
  static void lose_rows(MemberSet members, std::uint32_t row, std::uint32_t rows,
                        FrameVector<LostRows>* lost);
  void note_refused(std::uint64_t stripe, unsigned role);
  std::uint32_t taken_of(const Unprotected& write, MemberSet members, std::uint32_t row,
                         std::uint32_t rows, Lanes* lanes) const;
  Task<bool> parities_old(const Unprotected* write, WrittenRow here, MemberSet away,
                          std::uint32_t row, std::uint32_t rows, Lanes* lanes);
  Task<void> follow_drives(std::uint64_t stripe, MemberSet members, std::uint32_t row,
                           Lanes* lanes);
  Task<void> compute_replacements(std::uint64_t stripe, MemberSet members, std::uint32_t row,
                                  std::uint32_t rows);
  static const OldRun* old_run(const Unprotected& write, unsigned member, std::uint32_t row,
                               std::uint32_t rows);
  BufferList fresh_rows(const Unprotected& write, unsigned member, std::uint32_t row,
                        std::uint32_t rows) const;
  bool restore_parities(const Unprotected& write, MemberSet parities, std::uint32_t row,
                        std::uint32_t rows) const;
  void fit_parities(const Unprotected& write, MemberSet parities, MemberSet members,
                    std::uint32_t row, std::uint32_t rows, Lanes* lanes) const;
  Task<Error> put_rows(std::uint64_t stripe, const Unprotected* write, MemberSet members,
                       std::uint32_t row, std::uint32_t rows, FrameVector<LostRows>* lost);

  // raid_recover.cc; the stripe is held, exclusively where something is written.
  // Those that cannot be read are added to `failed`, and to `medium` if it is for a medium error:
  // what is corrupt counts as such; its bytes go to `suspects`, or its repair is begun.
  Task<void> read_members(std::uint64_t stripe, MemberSet members, std::uint32_t row,
                          std::uint32_t row_count, Lanes* lanes, MemberSet* failed,
                          MemberSet* medium, Lanes* suspects = nullptr);
  // Brings the `wanted` members of these rows into lanes, from redundancy or (those that are not in
  // `avoid`) from their drives. kMediumError: `bad_row` is the first that cannot be had; the others
  // are there, and zeros stand for what cannot. kNotReady: too many drives are away.
  Task<Error> recover_rows(std::uint64_t stripe, MemberSet wanted, std::uint32_t row,
                           std::uint32_t row_count, MemberSet avoid, Lanes* lanes,
                           std::uint32_t* bad_row);
  Task<Error> recover_by_granule(std::uint64_t stripe, MemberSet wanted, std::uint32_t row,
                                 std::uint32_t row_count, Lanes* lanes, std::uint32_t* bad_row);
  MemberSet lacking(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows) const;
  bool incomputable(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows,
                    MemberSet wanted) const;
  // Data of the stripe is missing that may come back, and counts in doubted rows then.
  bool keeps_away(std::uint64_t stripe) const {
    return (drives_.keeping(stripe) & drives_.returning(stripe) &
            first_members(layout_.data_chunks())) != 0;
  }
  bool in_one_granule(std::uint32_t row, std::uint32_t rows) const {
    return row / granule_ == (row + rows - 1) / granule_;
  }
  // Missing members that are computed from the others.
  MemberSet computed_away(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows) const {
    return drives_.doubted(stripe, row, rows) ? 0 : drives_.unreadable(stripe);
  }
  bool entry_tells(std::uint64_t stripe, unsigned member) const;  // In integrity_set.cc.
  // The parities of a stripe that say nothing: where redundancy is not verified, as many are
  // believed, the first that can be read, as there are data members among the `missing`. Those are
  // what the believed ones say they are, and the other parity is not told of it yet.
  MemberSet unbelieved(std::uint64_t stripe, MemberSet missing) const;
  Task<void> recover_from(MemberSet there, MemberSet wanted, std::uint32_t row_count, Lanes* lanes);
  Task<void> compute_parities(Lanes* lanes, std::size_t lane_bytes);
  // These rows are beyond redundancy somewhere: finds out which blocks, makes them zeros with
  // parity that fits, and remembers them as lost.
  Task<Error> declare_lost(std::uint64_t stripe, std::uint32_t row, std::uint32_t row_count);
  Task<Error> settle_granules(std::uint64_t stripe, std::uint32_t row, std::uint32_t row_count,
                              MemberSet looked_at);
  Task<Error> settle_granule(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows,
                             MemberSet looked_at);
  Task<Error> settle_bad(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows,
                         MemberSet failed, MemberSet medium, Lanes* lanes, Lanes* suspects);
  Task<void> recover_missing(MemberSet missing, std::uint32_t rows, Lanes* lanes);
  void tell_lost(Extent extent);
  // Not durable yet.
  void note_lost(std::uint64_t stripe, MemberSet members, std::uint32_t row, std::uint32_t rows);
  Task<Error> add_lost(std::uint64_t stripe, MemberSet members, std::uint32_t row,
                       std::uint32_t rows);
  // These blocks of a role's drive could not be written, and there is no redundancy to go on
  // without the drive: they are lost, with what is away and would be computed from them.
  Task<Error> lose_written(unsigned role, Extent extent);
  // Rows that are worked on at once: all members together are within largest_update_bytes, and one
  // update fits the journal.
  std::uint32_t slice_rows() const;
  Task<Error> rebuild_held(std::uint64_t stripe, unsigned member, Drive* target, std::uint32_t row,
                           std::uint32_t rows);
  Integrity::Change kept_entries(std::uint64_t stripe, unsigned member, std::uint32_t row,
                                 std::uint32_t rows) const;
  // Nothing: the member is to be rebuilt.
  Task<std::optional<Error>> keep_doubted(std::uint64_t stripe, unsigned member, Drive* target,
                                          std::uint32_t row, std::uint32_t rows);
  Task<Error> rebuild_pieces(std::uint64_t stripe, unsigned member, Drive* target,
                             std::uint32_t row, std::uint32_t rows, std::uint32_t most);
  Task<bool> have_zeros(std::uint64_t stripe, unsigned member, std::uint32_t row,
                        std::uint32_t rows, Lanes* lanes);

  // raid_verify.cc; the stripe is held exclusively.
  Task<Verified> verify_held(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows);
  Task<Error> mend_located(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows,
                           Lanes* given, Lanes* lanes, bool* found);
  void tell_located(std::uint64_t stripe, unsigned member, std::uint32_t row);
  Task<MemberSet> locate(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows, Lanes* part,
                         Lanes* fitting);
  Task<MemberSet> locate_by_parities(std::uint32_t rows, Lanes* part, Lanes* fitting);
  Task<Verified> store_verified(std::uint64_t stripe, MemberSet there, MemberSet wrong,
                                std::uint32_t row, std::uint32_t rows, Lanes* lanes,
                                Verified verified);
  // The outcome for members that do not match: nothing; the others were made like the majority;
  // parity, or every copy but the first, was written anew.
  enum class Mismatch : std::uint8_t { kLeft, kOutvoted, kUndecided };
  void report_mismatch(std::uint64_t stripe, std::uint32_t row, MemberSet wrong, Mismatch outcome);
  MemberSet different_mirrors(Lanes* lanes, MemberSet there, std::uint32_t row, std::uint32_t rows,
                              bool* tied) const;
  Task<MemberSet> wrong_parities(Lanes* lanes, MemberSet there, std::size_t lane_bytes);

  // integrity_set.cc
  void open_integrity();
  bool whole_cells(const Extent& extent) const {
    return (extent.first | extent.block_count) % cell_rows_ == 0;
  }
  Task<Completion> read_widened(Request request);
  Task<bool> piece_good(ReadPiece* piece);
  Task<void> read_sole(ReadPiece* piece);
  Task<void> settle_and_read(ReadPiece* piece);
  [[gnu::noinline]] Task<Error> complete_cells(std::uint64_t stripe,
                                               std::span<WritePiece* const> pieces);
  Task<Error> complete_piece(std::uint64_t stripe, WritePiece* piece);
  Task<Error> read_cell(std::uint64_t stripe, unsigned member, std::uint32_t row, BufferList* cell);
  [[gnu::noinline]] Task<Error> begin_sums(std::uint64_t stripe, std::span<const Segment> segments,
                                           Integrity::Update* sums);
  // Only entries, cells stay as they are.
  Task<Error> store_entries(std::uint64_t stripe, FrameVector<Integrity::Change> changes);
  Task<Error> store_entries_once(std::uint64_t stripe, FrameVector<Integrity::Change> changes);
  Task<Error> verify_entries(std::uint64_t stripe, MemberSet there, std::uint32_t row,
                             std::uint32_t rows, Lanes* lanes);
  struct Proof {
    bool proven = false;
    MemberSet trusted = 0;  // Suspects whose entries were wrong.
  };
  // Brings the missing members into lanes, if there is a way to that their entries confirm.
  Task<Proof> prove(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows, MemberSet missing,
                    MemberSet failed, Lanes* lanes, Lanes* suspects);
  // Whether the members' lanes are what their entries say or, if `strictly`, are known to be. Not
  // strictly, those that equal their suspects are right as well, and so is parity.
  Task<bool> confirmed(std::uint64_t stripe, std::uint32_t row, std::uint32_t rows,
                       MemberSet members, bool strictly, Lanes* lanes, Lanes* suspects);
  void tell_corruption(std::uint64_t stripe, std::uint32_t row, MemberSet members,
                       const char* outcome);

  Executor& home_;
  SetDrives& drives_;
  Journal* journal_;
  RaidSetOptions options_;
  const Layout& layout_;
  Geometry geometry_;
  std::uint32_t granule_ = 1;    // Rows of a physical block: what medium errors are judged by.
  std::uint32_t cell_rows_ = 1;  // Rows of a cell of integrity; 1 without.
  SetCounters counters_;
  StripeTable table_;
  // Every operation takes what it may need at most before it starts, so that none waits for memory
  // while it holds some; the pool itself is larger than the budget.
  ByteBudget budget_;
  BufferPool scratch_;
  Buffer zeroes_;                         // A strip of zeros; never written.
  std::unique_ptr<Integrity> integrity_;  // Null: none.
  // By unverified region, its stripes whose mirrors have been made alike. To forget costs reads
  // only.
  std::unordered_map<std::uint64_t, std::vector<bool>> alike_;
  bool offline_ = false;
  std::string no_room_on_;                // The drive that lacked room last.
  std::vector<TimePoint> no_room_until_;  // By role: it is told again after that.
  std::vector<TimePoint> refused_until_;  // By role, likewise of writes that it refused.
  TimePoint doubt_told_until_{};          // Likewise of writes in doubted rows.
  bool lacking_told_ = false;             // That more drives fail than it survives.
  bool relieving_ = false;
  TimePoint last_host_io_{};
  bool written_ = false;
  std::uint64_t acknowledged_ = 0;  // Changes by hosts that they did not ask to be durable.
  std::uint64_t flushed_ = 0;       // The part of these that a flush covers.
  std::vector<std::uint64_t> written_tickets_;   // In place, not yet covered by a flush.
  FrameSet<std::uint64_t> storing_tickets_;      // In the journal, on their way into place.
  std::vector<std::uint64_t> flushing_tickets_;  // Covered by the flush that is under way.
  std::vector<std::uint64_t> flushed_tickets_;   // Covered; an older one is not.
  Mutex flush_lock_;
  Mutex renew_lock_;
  unsigned storing_turn_ = 0;
  std::array<std::size_t, 2> storing_{};  // By turn.
  // Mirrors without a journal that were made alike, and how many of these a flush has covered.
  std::uint64_t mirror_repairs_ = 0;
  std::uint64_t flushed_mirror_repairs_ = 0;
  std::size_t direct_writes_ = 0;
  Condition direct_writes_ended_;
  Condition storing_ended_;
  std::uint64_t flushes_asked_ = 0;
  std::uint64_t flushes_done_ = 0;
  std::uint64_t renewals_asked_ = 0;
  std::uint64_t renewals_done_ = 0;
  Gate gate_;        // Host requests.
  Gate background_;  // Repairs.
  Gate relief_;      // Journal relief. Repairs may wait for it, so it closes after them.
  std::set<std::tuple<std::uint64_t, unsigned, std::uint32_t>> repairing_;  // Stripe, member, row.
};

}  // namespace sandbay::raid
