// LiveWorker: a worker of an experiment against a logical unit, in real time: a session of our own
// initiator that it keeps busy with the requests of its access specification, in a closed loop.
//
// Everything is on the executor on which log_in() was called.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "iscsi/initiator.h"
#include "iscsi/initiator_url.h"
#include "lab/access.h"
#include "lab/experiment.h"
#include "lab/virtual_run.h"
#include "runtime/executor.h"
#include "runtime/sync.h"

namespace sandbay::lab {

// What the workers of a case share. Times are the executors'.
struct LiveWindow {
  TimePoint from{};
  TimePoint until{};
  double time_scale = 1;  // Real seconds in one of the models'.
  const std::atomic<bool>* stop = nullptr;
  bool failed = false;  // One of them has: the others end.
};

class LiveWorker {
 public:
  struct Place {
    const VolumeGroup& group;
    iscsi::InitiatorUrl url;
    std::string shown;                        // The URL without a password, for what is said of it.
    std::map<std::string, std::string> keys;  // To be offered at login.
    std::size_t group_number = 0;             // And which volume of the group.
    unsigned volume = 0;
    // Of the volume on the logical unit: where the workers' parts begin and where they end; 0: with
    // the unit.
    std::uint64_t first_byte = 0;
    std::uint64_t end_byte = 0;
    unsigned part = 0;  // Which of the volume's workers it is.
    std::uint64_t seed = 1;
  };
  explicit LiveWorker(Place place) : place_(std::move(place)) {}

  // The string is one line that says what is wrong, and names the logical unit.
  Task<std::string> log_in();
  // Ends with the last request. Once it is stopped, a target that does not answer is left.
  Task<void> drive(LiveWindow* window);
  Task<void> log_out();

  // log_in() ended so because the experiment asks for what the logical unit has not; another may
  // not.
  bool refused() const noexcept { return refused_; }
  const std::string& wrong() const noexcept { return wrong_; }  // With what request it failed.
  std::uint64_t requests() const noexcept { return requests_; }
  VolumeResult& result() noexcept { return result_; }

 private:
  std::string lay_out(std::uint64_t bytes, std::uint32_t block_bytes,
                      std::uint64_t most_transfer_bytes);
  std::string check_line(const AccessLine& line, std::uint64_t most_transfer_bytes) const;
  Task<void> keep_busy();
  Task<iscsi::ScsiResult> transfer(Access access, const BufferList* written);
  void account(const Access& access, TimePoint start, const iscsi::ScsiResult& result);
  std::string describe_failure(TimePoint start, const iscsi::ScsiResult& result) const;
  Task<void> leave_when_stopped(Event* ended, Gate* watch);
  bool stopped() const;
  bool over() const;

  Place place_;
  std::unique_ptr<iscsi::InitiatorSession> session_;
  std::uint32_t block_bytes_ = kAccessSectorBytes;
  std::unique_ptr<AccessPattern> pattern_;
  LiveWindow* window_ = nullptr;
  Gate gate_;
  bool refused_ = false;
  bool left_ = false;  // The target did not answer when it was stopped; the session is closed.
  std::string wrong_;
  TimePoint last_answer_{};
  std::uint64_t requests_ = 0;
  VolumeResult result_;
};

}  // namespace sandbay::lab
