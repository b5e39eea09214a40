// Maintenance: what a set does in the background. Makes stale regions fresh (rebuild), copies a
// drive to its replacement, verifies what is not known to match, verifies everything on request or
// on schedule, and takes back marks that are no longer needed.
//
// Rebuild, a short absence, a resumed rebuild and a copy to a replacement are one thing: regions of
// a drive are stale, and are made fresh one after another; each is recorded when it is done. While
// hosts are at work, all of it keeps to a rate.
//
// One coroutine; used on the set's home executor.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "raid/raid_set.h"

namespace sandbay::raid {

struct MaintenancePolicy {
  // Bytes a second, of each drive that is written or read, while hosts have asked for something
  // lately; 0: as much as when nobody does.
  std::uint64_t rate_under_load = std::uint64_t{30} << 20;
  Duration host_is_quiet_after = std::chrono::milliseconds(200);
  Duration verify_every = Duration::zero();  // Zero: only on request.
  Duration look_every = std::chrono::seconds(1);
  // While something is written, so often comes an event.
  Duration event_every = std::chrono::minutes(1);
  unsigned stripes_at_once = 8;
};

struct MaintenanceProgress {
  enum class Kind : std::uint8_t { kNothing, kRebuild, kCopy, kVerify };
  Kind kind = Kind::kNothing;
  unsigned role = kNoRole;
  std::uint64_t done_stripes = 0;
  std::uint64_t all_stripes = 0;
  std::uint64_t mismatches = 0;  // kVerify
  std::uint64_t left = 0;        // Mismatches that were not repaired.
  TimePoint started;
};
std::string_view describe(MaintenanceProgress::Kind kind);  // "nothing", "rebuild", …

class Maintenance {
 public:
  Maintenance(RaidSet& set, MaintenancePolicy policy);
  ~Maintenance();  // After stop().
  Maintenance(const Maintenance&) = delete;
  Maintenance& operator=(const Maintenance&) = delete;

  void start();
  // Ends after the stripes at work; what is not recorded is done again next time.
  Task<void> stop();
  // There is something to do: a drive has come, regions have become stale.
  void wake();
  // Verifies all of the set, from its beginning, after what is under way.
  void request_verify();
  // At once, also for work under way. Another `verify_every` counts from now.
  void set_policy(MaintenancePolicy policy);
  const MaintenancePolicy& policy() const noexcept { return policy_; }

  const MaintenanceProgress& progress() const noexcept { return progress_; }
  std::uint64_t verifies_ended() const noexcept { return verifies_ended_; }
  // Nothing is stale, unverified or asked for.
  bool idle() const noexcept;
  Task<void> wait_idle();

 private:
  struct Work {
    MaintenanceProgress::Kind kind = MaintenanceProgress::Kind::kNothing;
    unsigned role = kNoRole;
    bool operator==(const Work&) const = default;
  };
  struct Batch;

  Task<void> run();
  Work next_work() const;
  bool verify_can_begin() const;
  bool is_target(const Drive* drive) const;
  Drive* target_of(const Work& work) const;
  Task<bool> make_fresh(Work work);  // False: something failed; look again later.
  Task<bool> freshen_region(Work work, std::uint64_t region);
  Task<bool> end_fresh(Work work);
  Task<bool> verify_regions();
  Task<bool> verify_all();
  Task<bool> verify_range(std::uint64_t first, std::uint64_t end);
  static Task<void> rebuild_one(Batch* batch, std::uint64_t stripe, unsigned member, Drive* target);
  static Task<void> verify_one(Batch* batch, std::uint64_t stripe);
  Task<void> pace(std::uint64_t bytes);
  Task<void> bring_event_forward();
  TimePoint next_verify_after_now() const;

  RaidSet& set_;
  SetDrives& drives_;
  Executor& home_;
  MaintenancePolicy policy_;
  MaintenanceProgress progress_;
  Work failed_;  // The last time.
  // What is rebuilt or copied to, as an event has told, and the region to go on with.
  std::map<const Drive*, std::uint64_t> begun_;
  bool running_ = false;
  bool stopping_ = false;
  bool verify_requested_ = false;
  std::uint64_t verifies_ended_ = 0;
  TimePoint next_verify_ = kNever;
  TimePoint next_retire_{};
  TimePoint next_event_{};
  TimePoint paced_until_{};
  Condition changed_;
  Gate gate_;
};

}  // namespace sandbay::raid
