// Drive: a block device as a RAID set uses it. Bounds every operation in time, counts what happens,
// and knows how busy the device is and where its head was last.
//
// An operation that the device has not ended within the drive's timeout, of time in which the
// executor ran and no modelled hardware was at work on it, ends with kTimedOut (the host's own
// cancellation is not passed on: what was begun is finished); the device keeps the operation's
// memory until it does end, so its submitter must not use those bytes again. A write that
// timed out may still reach the medium, so a later write of the same blocks waits until the device
// has ended the first. While much that timed out is in the device, nothing more is sent to it. What
// fails when nobody waits for it any longer, a read that was read around, is reported to the owner.
// A drive may be destroyed when it is idle().
//
// A drive whose reads are often late is limping() until enough of them are in time again, or none
// has been late for a while. Whoever reads around it meanwhile calls probe(), which asks it for a
// block now and then, or nothing would ever tell.
//
// Used on the device's home executor only.
#pragma once

#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "block/block_device.h"
#include "runtime/sync.h"
#include "runtime/timer.h"

namespace sandbay::raid {

struct DrivePolicy {
  Duration timeout = std::chrono::seconds(10);  // Of a flush three times that.
  // A read that takes longer is worth reading around, where there is redundancy; kept as a flag,
  // the read goes on.
  Duration slow_read = std::chrono::milliseconds(250);
};

struct DriveCounters {
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  std::uint64_t flushes = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t metadata_operations = 0;  // Superblocks, maps, journal; in none of the above.
  std::uint64_t metadata_bytes = 0;
  std::uint64_t medium_errors = 0;
  std::uint64_t other_errors = 0;
  std::uint64_t retries = 0;  // Of what failed with kHardware; the first failure is not counted.
  std::uint64_t timeouts = 0;
  std::uint64_t slow_reads = 0;
  std::uint64_t probes = 0;
};

class DriveIo;

// A request of the same kind for the same blocks, without data or cancellation.
Request request_like(const Request& request);

class Drive {
 public:
  // Borrows the device, which outlives every operation.
  Drive(BlockDevice& device, std::string name, DrivePolicy policy);
  ~Drive();
  Drive(const Drive&) = delete;
  Drive& operator=(const Drive&) = delete;

  BlockDevice& device() const noexcept { return device_; }
  const std::string& name() const noexcept { return name_; }
  const Geometry& geometry() const noexcept { return device_.geometry(); }
  const DriveCounters& counters() const noexcept { return counters_; }

  // Told of the failure of an operation that was let go of before its end; not of medium errors.
  std::function<void(Error)> on_unheeded;

  // Starts an operation; the device sees it before this returns.
  DriveIo start(Request request);
  // Starts one and waits for its end.
  Task<Completion> submit(Request request);
  // The same for the set's own bookkeeping, which is counted apart.
  DriveIo start_metadata(Request request);
  Task<Completion> submit_metadata(Request request);

  // What the device says; a failure counts like that of an operation, and it has as much time.
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit);

  // The drive is missing, and another one may answer in its place: from now on nothing is sent to
  // the device, and everything ends with kNotReady, also what is in the device.
  void shut();
  // It was shut, or has just answered that it is not ready.
  bool gone() const noexcept { return shut_ || away_; }

  // What ended last failed, and not for some of its blocks only.
  bool failing() const noexcept { return failing_; }
  bool limping() const noexcept { return limping_ && home_.now() < limps_until_; }
  // Reads what lies there for nobody, if the drive limps and has not been asked for a while.
  void probe(Lba lba);
  std::size_t in_flight() const noexcept { return in_flight_; }
  Lba head() const noexcept { return head_; }  // Where the last read or write ended.
  // Nothing is in the device any more, not even what timed out.
  bool idle() const noexcept { return outstanding_ == 0; }
  Task<bool> wait_idle_until(TimePoint deadline);  // False if the deadline passed first.

 private:
  friend class DriveIo;
  struct Operation;
  struct Question;
  static constexpr int kQuestionSteps = 8;
  // Unanswered ones, from which on no further one is asked.
  static constexpr std::size_t kMostLateQuestions = 16;

  static Task<void> ask(Drive* drive, std::shared_ptr<Question> question, Lba first, Lba limit);
  Operation* begin(Request&& request, bool metadata);
  void count(const Request& request, bool metadata);
  static Spawned run(Drive* drive, Operation* operation, Request request);
  void end(Operation& operation, Completion&& completion);
  Error refusal() const noexcept;  // Why nothing is sent to the device; kNone: it is.
  // Another write of these blocks has timed out and is in the device.
  bool held_up(const Operation& operation) const;
  // It answered that it is not ready: what is in flight may be another drive's word.
  void doubt_in_flight();
  void abandon(Operation& operation);
  void recall(Operation& operation);
  void tell_unheeded();
  void note_read(bool late);
  void watch();  // Ends or marks what takes too long.
  void forgive_lateness();
  void arm_watch();
  void unlink(Operation& operation);
  static void drop(Operation* operation);  // One reference less.

  BlockDevice& device_;
  Executor& home_;  // Kept, because an idle drive's device may go first.
  std::string name_;
  DrivePolicy policy_;
  DriveCounters counters_;
  std::size_t in_flight_ = 0;    // Waited for.
  std::size_t outstanding_ = 0;  // In the device.
  std::size_t late_questions_ = 0;
  Lba head_ = 0;
  Operation* oldest_ = nullptr;  // In flight, in the order in which they were started.
  Operation* newest_ = nullptr;
  bool failing_ = false;
  bool limping_ = false;
  unsigned lateness_ = 0;    // Grows with late reads, and shrinks with others.
  TimePoint limps_until_{};  // Unless another read is late.
  TimePoint next_probe_{};
  // It answered that it is not ready, and its owner has not heard it yet: what it says until then
  // may be another drive's word, and counts as that, too.
  bool away_ = false;
  bool shut_ = false;
  std::vector<Operation*> abandoned_;  // Timed out and not ended by the device.
  std::size_t abandoned_bytes_ = 0;
  Condition recalled_;             // The device has ended one of these.
  Error unheeded_ = Error::kNone;  // To be told.
  Timer watch_timer_;
  Condition became_idle_;
};

// One operation on its way. Letting go of it before its end abandons it; the device then keeps its
// memory until it is done.
class DriveIo {
 public:
  DriveIo() = default;
  DriveIo(DriveIo&& other) noexcept : operation_(std::exchange(other.operation_, nullptr)) {}
  DriveIo& operator=(DriveIo&& other) noexcept;
  DriveIo(const DriveIo&) = delete;
  DriveIo& operator=(const DriveIo&) = delete;
  ~DriveIo();

  explicit operator bool() const noexcept { return operation_ != nullptr; }
  bool ended() const noexcept;
  Error error() const noexcept;  // After its end, before it is taken.

  // Awaitable; ends when the operation has, or (if it may be slow) when it is late. One waiter.
  struct Wait {
    Drive::Operation* operation;
    bool or_slow;
    bool await_ready() const noexcept;
    void await_suspend(std::coroutine_handle<> handle) const noexcept;
    void await_resume() const noexcept {}
  };
  Wait wait() const noexcept { return Wait{operation_, false}; }
  Wait wait_or_slow() const noexcept { return Wait{operation_, true}; }
  Completion take();  // After its end, once.

 private:
  friend class Drive;
  explicit DriveIo(Drive::Operation* operation) noexcept : operation_(operation) {}
  Drive::Operation* operation_ = nullptr;
};

}  // namespace sandbay::raid
