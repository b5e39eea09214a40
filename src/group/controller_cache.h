// ControllerCache: the controller's cache between the RAID sets and what volumes stand on, with
// everything about it that has to be remembered: it opens the write memory and its mirror, finds at
// a start what was acknowledged and is not on the drives, and sees that no set is served without.
//
// What always holds:
// - Before the first write of a set stays in an NVRAM, the metadata say durably which one
//   (dirty/UUID); they say so until a stop has brought everything to the drives. At a start writes
//   are taken from an NVRAM only for sets of which the metadata say that they are in this one. A
//   set whose writes are in another one is barred until it comes back, or until an administrator
//   has discarded them. After an import, which may be older, a set is barred as well if the NVRAM
//   has writes of it without the metadata saying so; an administrator adopts or discards them.
// - What the NVRAM has lost is in the metadata (lost/UUID), and in the events, before the NVRAM
//   forgets it.
// - Before anything is acknowledged that the mirror does not have, the metadata say that it is
//   stale (mirror).
//
// Without a section [cache] it stands in nobody's way, and still bars sets. Home: executor 0.
#pragma once

#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "cache/cached_device.h"
#include "cache/stream_detector.h"
#include "cache/write_memory.h"
#include "group/cache_info.h"
#include "group/configuration.h"
#include "group/event_log.h"
#include "group/member_events.h"
#include "group/records.h"
#include "metadata/store.h"
#include "nvram/nvram.h"
#include "runtime/start_refusal.h"
#include "runtime/sync.h"

namespace sandbay::group {

class CacheGuard;

class ControllerCache {
 public:
  using Outcome = std::expected<void, std::string>;
  static constexpr std::string_view kRegion = "cache";  // Of the NVRAM, and of its mirror.
  // Of volumes by their number: for messages about what was lost.
  struct VolumePlace {
    std::string name;
    std::optional<Lba> first;  // Where on its set it begins; none: a pool's map says where it is.
  };
  using VolumePlaces = std::map<std::uint64_t, VolumePlace>;

  // All outlive it. `name_of_set` may give an empty name.
  ControllerCache(Executor& home, const Configuration& configuration, metadata::Store& store,
                  MemberEvents events, std::function<std::string(const Uuid&)> name_of_set);
  ~ControllerCache();  // After finish().
  ControllerCache(const ControllerCache&) = delete;
  ControllerCache& operator=(const ControllerCache&) = delete;

  // All that are there; what the cache counts of others is forgotten.
  void know_volumes(VolumePlaces places);
  // What the metadata say; start() does it if nobody has. Only what no daemon should start with is
  // an error, in one line.
  Task<Outcome> load();
  // After load(): how the NVRAM is opened, with the images that it must not be.
  nvram::NvramOptions nvram_options() const;
  // Before any set is there. `nvram` may be null, and outlives stop(). Errors as with load().
  Task<Started> start(nvram::Nvram* nvram);
  // Destages everything, and notes which sets have nothing in the NVRAM any more. The sets are
  // still there, nobody uses them through the cache any more. False: something did not end by the
  // deadline, which is put off as long as drives take more of it, or the disk of the NVRAM or its
  // mirror hangs; everything here must stay until the process ends, for it is still used. Events
  // and metadata are not.
  Task<bool> stop(TimePoint deadline);
  // After stop(): acknowledged writes are gone, since no NVRAM has what could not be destaged.
  bool lost_at_end() const noexcept { return lost_at_end_; }
  // After stop() with true, and before the sets and the NVRAM go. False as with stop(): the mirror
  // could not be closed by the deadline.
  Task<bool> finish(TimePoint deadline = kNever);
  // Brings to the drives what can be by the deadline, which is put off as with stop(); for those
  // who flush afterwards.
  Task<void> settle(TimePoint deadline);

  // What stands above a set that is there: the cached device, made now if it was not, or the set
  // itself. Not for a set that is barred. Destaging gives it `stripes` together, or as many as a
  // quarter of the room for what is dirty has.
  BlockDevice& above(const Uuid& uuid, BlockDevice& set, std::uint64_t stripes = 1);
  // Why the set is not served; empty: the cache is no reason.
  std::string bar(const Uuid& uuid) const;

  cache::Cache* cache() const noexcept { return cache_.get(); }  // Null: there is none.
  // For the volumes' read-ahead; null: there is none.
  cache::StreamBudget* streams() noexcept { return streams_ ? &*streams_ : nullptr; }
  nvram::Nvram* mirror() const noexcept { return mirror_.get(); }

  // Finds out whether the files of the NVRAM and its mirror are still what they were; to be called
  // now and then, between start() and stop().
  Task<void> check_images();

  // Has the set below, if it can, read these blocks as medium errors until they are rewritten; may
  // be empty.
  std::function<Task<Error>(Uuid set, std::vector<Extent> extents)> lose;
  // Tells of sets whose dirty data cannot go to their drives, without waiting until somebody wants
  // it to; to be called when sets have changed.
  void look_after_sets();

  // Management. ---------------------------------------------------------------------------------
  CacheInfo show(const VolumePlaces& places) const;
  // Destages everything of a set, or with none of all. An error, a line for each such set, if
  // something that was acknowledged is not on the drives afterwards, wherever it is.
  Task<Outcome> flush(std::optional<Uuid> set);
  // Forgets what is not on the set's drives and lifts its bar, unless an import says that there are
  // writes in another NVRAM: then the set waits for that. What was given up is shown as lost
  // from then on: what was on its way to the drives when they failed may still arrive there.
  Task<std::expected<DiscardedWrites, std::string>> discard(Uuid set);
  // After an import: writes of the set in this NVRAM, of which the metadata do not know, go to its
  // drives, and the bar is lifted. Only with may_adopt().
  bool may_adopt(const Uuid& set) const;
  Task<Outcome> adopt(Uuid set);
  // Somebody has taken notice of what was lost of the set.
  Task<Outcome> acknowledge(Uuid set);
  bool knows(const Uuid& set) const;
  bool has_lost(const Uuid& set) const { return lost_.contains(set); }
  // Its dirty data cannot be brought to its drives, or waits for it to come.
  bool is_failing(const Uuid& set) const;
  std::vector<std::string> notes_on(const Uuid& set) const;  // Sentences for operators.

 private:
  friend class CacheGuard;
  // controller_cache_start.cc
  nvram::NvramOptions image_options(const std::string& path) const;
  nvram::NvramOptions mirror_options() const;
  bool may_have_more(const nvram::Nvram& mirror) const;
  Task<Outcome> note_made(ImageUuid nvram);
  bool is_made_since(const ImageUuid& nvram) const;
  bool mirror_counts() const;
  std::string waiting_for(const ImageUuid& nvram) const;
  std::string found_words(const nvram::Nvram& image, const std::string& path) const;
  void tell_found();
  std::string way_back_to(const ImageUuid& nvram) const;
  std::string mirror_of(const ImageUuid& nvram) const;
  Task<Started> open_memory(nvram::Nvram* nvram);
  Task<Outcome> open_mirror(nvram::Nvram* nvram);
  Task<Outcome> commit_mirror(MirrorRecord record);
  Task<Started> clear_region(nvram::Nvram* nvram, bool counts, bool must_be_empty);
  // FILE:LINE: cache.nvram: …
  StartRefusal at_nvram(const std::string& what,
                        StartRefusal::Kind kind = StartRefusal::Kind::kConfiguration) const;
  // NVRAMs with writes that some set needs: by its mark, or because an import says so.
  std::set<ImageUuid> needed_images() const;
  bool is_needed(const ImageUuid& nvram) const { return needed_images().contains(nvram); }
  bool is_here(const ImageUuid& nvram) const;
  bool takes_from_here(const Uuid& set) const {
    return marks_.contains(set) && !barred_.contains(set);
  }
  // controller_cache_recovery.cc
  Task<Started> recover();
  Task<Outcome> bar_unknown(const std::vector<cache::RecoveredWrite>* writes);
  Task<Outcome> follow_exported();
  void tell_recovered(std::size_t writes, std::uint64_t bytes, std::size_t from_mirror,
                      Duration time);
  Task<Outcome> keep_lost(const std::vector<cache::LostWrite>* lost);
  void tell_lost(const Uuid& set, const std::vector<LostRange>& ranges);
  std::string words_of(const LostRange& range) const;
  static void tidy(std::vector<LostRange>& ranges);
  // Of one set, to what is known; whether it is news.
  Task<std::expected<bool, std::string>> add_lost(Uuid set, std::vector<LostRange> ranges);
  LostInfo info_of(const LostRange& range, const VolumePlaces& places) const;
  Task<Outcome> keep_marks();
  Task<Outcome> commit_marks();

  // controller_cache_losses.cc
  Task<Error> note_damaged(Uuid set, std::vector<cache::VolumeExtent> writes);
  Task<Outcome> note_given_up(Uuid set, std::vector<cache::VolumeExtent> writes,
                              DiscardedWrites* given);
  void tell_stuck(const Uuid& set);
  std::uint64_t stuck_bytes(const Uuid& set) const;
  Task<void> try_destage(Uuid set);

  // controller_cache.cc
  Task<void> mark(CacheGuard* guard);
  void mirror_lost();
  Task<void> remember_mirror_lost();
  Task<bool> commit_mirror_lost();
  void note_commit(Error error);
  std::string unwritable_note() const;
  void nvram_failed(Error error);
  void nvram_stalled(bool stalled);
  std::string failure_note(Error error) const;
  Task<void> close_all();
  Task<void> settle_all(std::shared_ptr<Event> ended);
  Task<bool> wait_while_destaging(std::shared_ptr<Event> ended, TimePoint deadline);
  std::uint64_t destaged_bytes() const;
  Task<void> forget_clean_sets(TimePoint deadline);
  void tell_left();
  Task<void> clear_marks();
  bool has_waiting(const Uuid& set) const;
  std::map<Uuid, std::uint64_t> waiting_bytes() const;
  std::string set_words(const Uuid& set) const;  // "set NAME"
  std::string unwritten(Error error) const;

  Executor& home_;
  const Configuration& configuration_;
  metadata::Store& store_;
  MemberEvents events_;
  std::function<std::string(const Uuid&)> name_of_set_;
  VolumePlaces places_;

  nvram::Nvram* nvram_ = nullptr;  // Null: the controller has none.
  std::unique_ptr<nvram::Nvram> mirror_;
  std::optional<MirrorRecord> mirror_record_;
  std::map<ImageUuid, std::uint64_t> open_counts_;
  // Of the start: the NVRAM had content; what the mirror had did not count; it had what another
  // NVRAM had, and gives it to this one; why it is not used, or not believed.
  bool had_region_ = false;
  bool to_check_ = false;  // The NVRAM may have writes from before an import.
  bool mirror_stale_ = false;
  bool stands_in_ = false;
  std::string mirror_unused_;
  bool loaded_ = false;
  bool started_ = false;
  std::unique_ptr<cache::WriteMemory> memory_;
  std::unique_ptr<cache::Cache> cache_;
  std::optional<cache::StreamBudget> streams_;
  std::map<Uuid, ImageUuid> marks_;     // dirty/
  std::set<Uuid> barred_;               // Among these: that NVRAM is not here, or
  std::set<Uuid> unconfirmed_;          // nobody has said that it counts (see adopt()).
  std::map<Uuid, ImageUuid> exported_;  // Another NVRAM that an import names.
  // An import has come, and no NVRAM from before it has been looked at since. These NVRAMs were
  // made afterwards, the newest last; so were those that have lost what they had.
  bool unchecked_ = false;
  std::vector<ImageUuid> made_since_;
  std::map<Uuid, std::vector<LostRange>> lost_;
  std::set<Uuid> lost_unsaved_;  // Of these: the metadata do not know yet.
  std::set<Uuid> stuck_told_;    // Sets with data that cannot go to their drives.
  std::set<Uuid> trying_;        // Sets of which that is being found out.
  std::map<Uuid, std::unique_ptr<CacheGuard>> guards_;
  bool careful_ = false;  // There is a mirror, which may fail.
  bool holding_ = false;  // Changes and answers, until the metadata say that it is stale.
  Condition let_go_;
  std::string unwritable_;  // Why the metadata cannot be written; empty: they can.
  TimePoint stall_told_{};
  bool stall_shown_ = false;  // The last word on it was that it does not.
  bool lost_at_end_ = false;
  bool abandoned_ = false;  // By stop(): there are no events and no metadata any more.
  std::shared_ptr<Event> closed_;
  Gate gate_;
};

// CacheGuard: what stands on a cached device: has the metadata say that the set has writes in the
// NVRAM before any stay there, and holds changes while the mirror's failure is not noted. Writes go
// through the cache until the note is durable; nobody waits for it.
class CacheGuard final : public Layer {
 public:
  CacheGuard(ControllerCache& owner, cache::CachedDevice& device, bool marked)
      : Layer(static_cast<BlockDevice&>(device)), owner_(owner), device_(device) {
    set_marked(marked);
  }

  Task<Completion> submit(Request request) override {
    if (marked_ && !owner_.careful_) return below().submit(std::move(request));
    return submit_guarded(std::move(request));
  }
  cache::CachedDevice& device() const noexcept { return device_; }
  bool marked() const noexcept { return marked_; }
  void set_marked(bool marked) {
    marked_ = marked;
    device_.allow_write_back(marked);
  }

 private:
  friend class ControllerCache;
  Task<Completion> submit_guarded(Request request);
  Task<bool> let_go();  // False: not in time.

  ControllerCache& owner_;
  cache::CachedDevice& device_;
  bool marked_ = false;
  bool marking_ = false;
  TimePoint mark_again_{};
};

}  // namespace sandbay::group
