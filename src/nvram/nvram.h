// Nvram: a controller's non-volatile memory, an image of fixed size that holds named regions.
//
// The image is a file mapped shared, so that whatever was stored in it is there after the process
// was killed at any instruction; in a simulation it is a SimulatedBoard. Whether it also survives a
// crash of the host is its durability. What cannot be trusted is never handed out as good: a region
// whose content was lost says so, with the cause, until its owner has taken notice.
//
// Everything here is used on the home executor. Nothing throws; no data-path call blocks, and in
// the steady state none allocates. docs/formats/nvram.md has the layout, byte by byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nvram/battery.h"
#include "runtime/error.h"
#include "runtime/executor.h"
#include "runtime/sync.h"
#include "runtime/task.h"

namespace sandbay::nvram {

class Image;
struct ImageHeader;
class RecordLog;
class Region;
class SimulatedBoard;

inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr std::uint64_t kLeastImageBytes = 64 * 1024;
inline constexpr std::size_t kMostRegions = 32;
inline constexpr std::size_t kMostRegionNameBytes = 47;
inline constexpr std::size_t kMostOwnerNameBytes = 63;

using ImageId = std::array<std::byte, 16>;  // A UUID: of an image, of an owner.

enum class Durability : std::uint8_t {
  kProcess,  // Survives the process. A commit costs nothing; after a host crash all is lost.
  kHost,     // Survives the host too: a commit waits for a sync of the image, shared by all.
};

// Why the content of a region is not trusted.
enum class Loss : std::uint8_t {
  kNone,
  kHostCrash,  // The host went down while the image was in use, and its durability is kProcess.
  kPowerCut,   // The power was cut, emulated, while the battery was low or dead.
  kStale,      // The image is older than the one used last: least_open_counts.
};

std::string_view describe(Loss loss);  // "host crash", "power cut", …

struct NvramOptions {
  std::string path;              // Of the image; names it in messages.
  std::uint64_t byte_count = 0;  // A multiple of kPageBytes, at least kLeastImageBytes.
  Durability durability = Durability::kProcess;
  // Identifies this run of the host: host_boot_id(), or whatever a test chooses. At most 39 bytes.
  std::string boot_id;
  // The operator's word that no power is lost but by emulation: see non_volatile().
  bool power_loss_only_emulated = false;
  BatteryState battery = BatteryState::kGood;
  // An image that was opened fewer times before is an old copy: its content is stale, and from now
  // on it is an image of its own, with another uuid(), so that the right one is known when it comes
  // back. Whoever keeps open_count() elsewhere passes it here, by uuid().
  std::map<ImageId, std::uint64_t> least_open_counts;
  // Whose image it is to be, with a name for messages; zeros: whoever it belongs to. That of
  // another owner is refused. One that has none, of an older version, is this owner's if it is
  // among least_open_counts, or holds nothing.
  ImageId owner{};
  std::string owner_name;
  // Images that must not be opened as this one, and why: half a sentence with what is accepted.
  std::map<ImageId, std::string> refused;
  // open() writes there why the image cannot be opened, made or mapped: kNotReady if another
  // process has the file.
  Error* cause = nullptr;
};

struct RegionState {
  std::string name;
  std::uint64_t byte_count = 0;
  Loss loss = Loss::kNone;
  bool claimed = false;
  bool is_new = false;  // Never settled: it has no content yet.
};

// What stood at the path before open().
enum class Found : std::uint8_t {
  kImage,
  kNothing,   // The image is new.
  kShortFile  // The same; the file was no longer than an image's head, so it held nothing.
};

class Nvram {
 public:
  // Opens the image of options.path, or makes it if it is not there (or is a leftover of being
  // made). Refuses, with one line that names the path and what is accepted, an image that is in
  // use, of another size or version or owner, damaged, or none at all; it is then left as it was.
  // `home` is a reactor: it opens and syncs the file and outlives the Nvram.
  static Task<Result<std::unique_ptr<Nvram>, std::string>> open(Executor& home,
                                                                NvramOptions options);
  // The same over simulated hardware, which outlives the Nvram. byte_count 0 takes the board's.
  static Task<Result<std::unique_ptr<Nvram>, std::string>> open(Executor& home,
                                                                SimulatedBoard& board,
                                                                NvramOptions options);

  // Without close() this leaves the image as after a kill. No commit is in flight, no region
  // claimed.
  ~Nvram();
  Nvram(const Nvram&) = delete;
  Nvram& operator=(const Nvram&) = delete;

  // The region of that name, made if it is not there, of exactly `byte_count` bytes (a positive
  // multiple of kPageBytes). Refuses another size, a second owner, and what does not fit. A new
  // region is zeros. The region's owner destroys it before the Nvram goes.
  Task<Result<std::unique_ptr<Region>, std::string>> claim(std::string name,
                                                           std::uint64_t byte_count);
  std::vector<RegionState> regions() const;
  // Nobody needs the region any more: its content is gone and its space free. Refuses one that has
  // an owner; one that is not there is gone already.
  Task<Result<void, std::string>> release(std::string name);

  // Everything stored in the image before the call is durable, as the durability demands, when
  // this ends with kNone: at once with kProcess, after a shared sync with kHost. A failed sync is
  // for good: what the image holds on the medium is then unknown, failure() says so, and every
  // later commit fails with it.
  Task<Error> commit();
  // Makes everything durable and marks the image clean, so that it is trusted even after a restart
  // of the host. Logs are idle. The regions may be destroyed before or after.
  Task<Error> close();
  // The same. kTimedOut: the image's disk did not end that by the deadline; then all of this must
  // stay, for it is still used, and the image is left as after a kill.
  Task<Error> close(TimePoint deadline);

  Battery& battery() noexcept { return battery_; }
  // Whether a write that is in here needs no flushed drive to be called safe: the battery is good,
  // nothing has failed, and either the image survives the host or power loss is only emulated.
  bool non_volatile() const noexcept;
  Error failure() const noexcept { return failure_; }  // kNone while it works.
  // Called once, when a sync of the image has failed, or kHardware: a part of its file is gone,
  // with what was in it. Nothing can be kept here any more.
  std::function<void(Error)> on_failure;
  // Something that was in the image is not there any more, but zeros are.
  bool content_gone() const noexcept;
  // Of that: because the file was cut short. With durability process no record that is released
  // then comes back: where its log's seal is left, that says so, and without one no record is
  // believed.
  bool cut_short() const noexcept;
  // Finds out whether the file is still as long as it was; to be called now and then. What commits
  // finds out by itself.
  Task<void> check();
  Durability durability() const noexcept { return options_.durability; }
  const ImageId& uuid() const noexcept { return uuid_; }
  const ImageId& owner() const noexcept;                             // Zeros: it has none.
  std::uint64_t open_count() const noexcept { return open_count_; }  // This time included.
  Found found() const noexcept { return found_; }
  // The image that this one was an older copy of until this opening.
  const std::optional<ImageId>& older_copy_of() const noexcept { return older_copy_of_; }
  std::uint64_t sync_count() const noexcept { return rounds_ended_; }  // Shared syncs so far.
  bool syncing() const noexcept { return round_running_; }
  Executor& home() const noexcept { return home_; }

  // An emulated power cut: with a good battery the content stays, otherwise every region reports
  // Loss::kPowerCut when it is claimed next. This object is of no use afterwards: every operation,
  // also those that wait, fails with kHardware.
  void cut_power();
  bool power_is_cut() const noexcept { return power_cut_; }

  // The image as it is in memory: for faults (damage.h), and for tests that keep copies.
  std::span<std::byte> image() noexcept;
  // Called after every single store to the image, where a process can be killed: payload and
  // records are then written in small pieces. Null switches it off. For tests.
  void observe_stores(std::function<void()> observer) { observer_ = std::move(observer); }

 private:
  friend class Region;
  friend class RecordLog;
  friend class LogSeal;
  Nvram(Executor& home, NvramOptions options, std::unique_ptr<Image> image,
        const ImageHeader& header);
  static Task<Result<std::unique_ptr<Nvram>, std::string>> start(Executor& home,
                                                                 NvramOptions options,
                                                                 std::unique_ptr<Image> image);
  void judge_content();
  void become_another();
  std::string why_not(const std::string& name, std::uint64_t byte_count) const;
  const Region* owned_region(std::string_view name) const;
  std::optional<std::size_t> index_of(std::string_view name) const;
  // Of the first run of free bytes that is long enough; of the longest if none is wanted.
  struct Gap {
    std::uint64_t offset = 0;
    std::uint64_t byte_count = 0;
  };
  Gap free_gap(std::uint64_t wanted) const;
  std::size_t add_region(const std::string& name, std::uint64_t byte_count);
  Task<Error> save_header();
  Task<Error> settle(Region& region);
  Task<Error> join_round();
  void fail(Error error);
  void fail_if_broken();
  // The one way in which anything is stored in the image after it was opened.
  void store(std::byte* target, const void* source, std::size_t byte_count);
  void store_word(std::byte* target, std::uint64_t value);  // In one instruction, after all before.

  Executor& home_;
  NvramOptions options_;
  std::unique_ptr<Image> image_;
  std::unique_ptr<ImageHeader> header_;
  Battery battery_;
  ImageId uuid_{};
  std::uint64_t open_count_ = 0;
  Found found_ = Found::kImage;
  std::optional<ImageId> older_copy_of_;
  Error failure_ = Error::kNone;
  bool power_cut_ = false;
  bool round_running_ = false;
  std::uint64_t rounds_begun_ = 0;
  std::uint64_t rounds_ended_ = 0;
  Condition round_ended_;
  Mutex header_lock_;
  std::vector<Region*> claimed_;
  std::vector<RecordLog*> logs_;
  std::function<void()> observer_;
};

// How images are opened: Nvram::open() with the mapped file, or with the board of a simulation.
using ImageOpener =
    std::function<Task<Result<std::unique_ptr<Nvram>, std::string>>(Executor& home, NvramOptions)>;
Task<Result<std::unique_ptr<Nvram>, std::string>> open_mapped(Executor& home, NvramOptions options);

// A named part of the image with one owner. Either the owner uses the memory as it likes, or it
// puts a RecordLog over it or over a part.
class Region {
 public:
  ~Region();  // Gives the claim up; the content stays.
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const std::string& name() const noexcept { return name_; }
  Nvram& nvram() const noexcept { return nvram_; }
  // Page-aligned. After raw stores here, Nvram::commit() makes them durable.
  std::span<std::byte> bytes() const noexcept { return bytes_; }

  // Why the content may not be trusted; kNone if it may. A lost region still holds its bytes, so
  // that the owner can name what was lost; it never replays any of them.
  Loss loss() const noexcept { return loss_; }
  // The image survived a crash of the host (Durability::kHost): what was committed is there, what
  // was stored later is there in part. RecordLog knows what to do; owners of raw memory must too.
  bool after_host_crash() const noexcept { return after_host_crash_; }
  // Made by this claim, or by one that was never settled: it has no content yet.
  bool is_new() const noexcept { return new_; }
  // New, lost or after a host crash. Persistent until settle(): a restart before it says the same.
  bool settled() const noexcept { return settled_; }
  // The owner has taken notice of all of it, reported it and emptied what was lost (a RecordLog:
  // recover(), then accept()). Durable when it ends with kNone. Needed once after each claim of a
  // region that is not settled(), before anything is appended.
  Task<Error> settle();

 private:
  friend class Nvram;
  friend class RecordLog;
  Region(Nvram& nvram, std::string name, std::span<std::byte> bytes, std::size_t index);

  Nvram& nvram_;
  std::string name_;
  std::span<std::byte> bytes_;
  std::size_t index_;
  Loss loss_ = Loss::kNone;
  bool after_host_crash_ = false;
  bool new_ = false;  // Never settled: no content yet.
  bool settled_ = true;
};

// The boot id of this host, /proc/sys/kernel/random/boot_id; empty if it has none. Blocks: call it
// at start-up.
std::string host_boot_id();

}  // namespace sandbay::nvram
