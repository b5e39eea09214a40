// TestDrive: a drive of a simulated world for tests of RAID sets. Its content is a sparse image
// that forks cheaply; writes are volatile until a flush; a power cut keeps, drops or tears each of
// those that were not flushed. It fails, hangs, limps and grows unreadable blocks on command, and
// counts what is asked of it. Independent of the fault layer, which has tests of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "block/block_device.h"
#include "runtime/random.h"
#include "runtime/sparse_image.h"
#include "runtime/sync.h"

namespace sandbay::raidtest {

// Built with a sanitizer, a test is several times slower: then it repeats itself less. All cases
// are still there, and all repetitions in other builds.
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// What a drive holds when its power goes.
struct DriveState {
  struct Change {
    std::uint64_t offset = 0;
    std::uint64_t byte_count = 0;
    std::vector<std::byte> data;  // Empty: zeros.
  };
  sim::SparseImage visible;
  sim::SparseImage durable;
  std::deque<std::shared_ptr<const Change>> unflushed;
  std::set<Lba> unreadable;
};

// The same after a power cut: every 512-byte sector of an un-flushed change by itself, in the
// order of the changes, is there or not; `random` decides, in one of several moods.
DriveState after_power_cut(const DriveState& state, Random& random);

class TestDrive final : public BlockDevice {
 public:
  TestDrive(Executor& home, std::string name, std::uint64_t byte_count,
            std::uint32_t block_bytes = 512);
  ~TestDrive() override;

  Executor& home() const noexcept override { return home_; }
  const Geometry& geometry() const noexcept override { return geometry_; }
  Health health() const noexcept override { return health_; }
  std::string description() const override { return name_; }
  Task<Completion> submit(Request request) override;
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override;

  DriveState& state() noexcept { return state_; }
  const DriveState& state() const noexcept { return state_; }
  Geometry& mutable_geometry() noexcept { return geometry_; }

  // Every operation takes up to so long, drawn by chance; zero: none.
  void set_latency(Duration most) { latency_ = most; }
  // Every operation fails with it; kNone ends that.
  void fail_with(Error error) { failure_ = error; }
  void fail_writes_with(Error error) { write_failure_ = error; }
  // Writes from `data_from` on are refused for a bad place.
  void refuse_data(bool refuses) { refuses_data_ = refuses; }
  // There is no room for changes of the area from `data_from` on; if `all`, of none.
  void fill_up(bool full, bool all = false) {
    full_ = full;
    all_full_ = full && all;
  }
  void fail_reads_with(Error error) { read_failure_ = error; }
  // Operations do not end until released.
  void hang() { hanging_ = true; }
  void hang_no_more() { hanging_ = false; }  // Those that hang still do.
  void release();
  // The next operation ends with kNotReady: the drive was missing, or lost its power.
  void raise_attention() { attention_ = true; }
  void lose_power() {
    state_ = after_power_cut(state_, random_);
    raise_attention();
  }
  // Pulled, with another drive in its place that was never written.
  void become_another();
  void slow_reads(Duration delay) { read_delay_ = delay; }
  void set_health(Health health) { health_ = health; }
  // Reads of the block fail until it is rewritten.
  void make_unreadable(Lba lba) { state_.unreadable.insert(lba); }
  // Called before a write, zero, unmap or flush takes effect.
  std::function<void(const TestDrive&, const Request&)> before_change;

  struct Counts {
    std::uint64_t reads = 0;
    std::uint64_t writes = 0;
    std::uint64_t flushes = 0;
    std::uint64_t zeroes = 0;
  };
  // Of the area from `data_from` on; what lies before is metadata.
  Counts counts;
  Lba data_from = 0;

 private:
  Task<Completion> perform(Request request);
  Error change(const Request& request);

  Executor& home_;
  std::string name_;
  Geometry geometry_;
  Random random_;
  DriveState state_;
  Health health_ = Health::kGood;
  Duration latency_{};
  Duration read_delay_{};
  Error failure_ = Error::kNone;
  Error write_failure_ = Error::kNone;
  bool full_ = false;
  bool refuses_data_ = false;
  bool all_full_ = false;
  Error read_failure_ = Error::kNone;
  bool hanging_ = false;
  bool attention_ = false;
  Condition released_;
};

}  // namespace sandbay::raidtest
