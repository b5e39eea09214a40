// LoadWorker: one session's share of a load, on one executor: it logs in, keeps queue_depth
// commands in flight through the session's direct path, measures them, and checks what it reads in
// verify mode.
//
// A slot is one place of the queue with its command and buffer; nothing is allocated between a
// slot's commands. With verify the workers of one logical unit use disjoint parts of it, a unit is
// never in two slots at once, and a logical unit that has become another one is told apart from one
// that has lost what was written: by its designators (SPC-4 7.8.6), which are read again whenever
// the unit has had news to tell.
#pragma once

#include <atomic>
#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <vector>

#include "iscsi/initiator.h"
#include "iscsi/initiator_url.h"
#include "lab/load.h"
#include "lab/pattern.h"
#include "runtime/executor.h"
#include "runtime/random.h"
#include "runtime/sync.h"

namespace sandbay::lab {

struct LoadSchedule {
  TimePoint measure_from{};
  TimePoint until{};
  const std::atomic<bool>* stop = nullptr;  // Set: as if it was until.
};

class LoadWorker {
 public:
  struct Place {
    const LoadOptions& options;
    iscsi::InitiatorUrl url;
    Executor& executor;
    std::uint32_t number = 0;  // Of all workers.
    std::uint32_t share = 0;   // Which of its URL's sessions it is …
    std::uint32_t shares = 1;  // … of how many.
    std::uint64_t rate = 0;    // Requests a second; 0: no limit.
  };
  explicit LoadWorker(Place place);
  ~LoadWorker();

  Executor& executor() const noexcept { return place_.executor; }

  // On the worker's executor, in this order. The string says what is wrong, empty if nothing is.
  Task<std::string> set_up();
  Task<bool> drive(LoadSchedule schedule);  // Always true.
  Task<bool> read_back();                   // Verify: everything that was written. Always true.
  Task<bool> tear_down();
  Task<bool> connected() const;  // Between set_up() and tear_down().

  // On any executor.
  std::uint64_t requests_so_far() const { return requests_.load(std::memory_order_relaxed); }
  std::uint64_t bytes_so_far() const { return bytes_.load(std::memory_order_relaxed); }

  // After tear_down().
  const LoadReport& report() const noexcept { return report_; }

 private:
  struct Slot {
    iscsi::InitiatorCommand command;
    LoadWorker* worker = nullptr;
    std::uint64_t unit = 0;
    TimePoint started{};
    std::uint32_t tries = 0;
    bool writing = false;
    BufferList buffer;  // While it is not with the command.
    Slot* next_idle = nullptr;
  };

  Task<std::string> learn_geometry();
  Task<std::vector<std::byte>> ask_identity();
  Task<void> check_identity();
  Task<void> look_again();
  void doubt_identity();
  std::string lay_out(std::uint64_t block_count, std::uint32_t block_bytes);
  std::string allocate_slots();
  Task<iscsi::ScsiResult> ask(std::array<std::byte, 16> cdb, std::uint32_t in_bytes,
                              std::vector<std::byte>& data);

  Task<void> give_up();
  void start_slots();
  void next_request(Slot& slot);
  bool choose_unit(Slot& slot);
  void issue(Slot& slot);
  void completed(Slot& slot);
  void account(const Slot& slot, TimePoint now);
  void conclude(Slot& slot);
  bool try_again(Slot& slot);
  void note_error(const Slot& slot);
  void park(Slot& slot);
  void arm_timer(TimePoint when);
  void timer_fired();
  bool may_start_now();
  bool over() const;

  Place place_;
  std::unique_ptr<iscsi::InitiatorSession> session_;
  std::vector<std::unique_ptr<Slot>> slots_;
  Random random_;
  std::uint32_t block_bytes_ = 512;  // The logical unit's.
  std::uint32_t blocks_per_unit_ = 1;
  std::uint64_t first_unit_ = 0;
  std::uint64_t unit_count_ = 0;
  std::uint64_t next_unit_ = 0;
  std::unique_ptr<UnitMap> map_;

  LoadSchedule schedule_;
  bool stopping_ = false;
  bool abandoned_ = false;  // The target was gone at the end; the session is closed.
  bool reading_back_ = false;
  std::vector<std::byte> identity_;  // What VPD page 83h said at the start; empty: nothing.
  bool another_unit_ = false;        // It says something else now.
  bool looking_ = false;
  Gate looks_;
  std::uint32_t active_ = 0;  // Slots that are not done for good.
  Slot* idle_ = nullptr;      // Waiting for the timer.
  std::vector<Slot*> again_;  // Waiting for the timer, with a request to repeat.
  TimePoint next_start_{};    // With a rate: when the next request may start.
  Timer timer_;
  Event finished_;

  alignas(64) std::atomic<std::uint64_t> requests_{0};
  std::atomic<std::uint64_t> bytes_{0};
  LoadReport report_;
};

}  // namespace sandbay::lab
