// TaskRouter: the target device (SAM-5 clause 4.6.4) that the product has: routes commands by LUN
// to logical units, and task management to them. Answers for LUNs that are not there, and for the
// REPORT LUNS well known logical unit.
//
// Every executor has its own table of logical units, so routing takes no lock; add() and remove()
// rewrite them all, one after the other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/executor.h"
#include "runtime/sync.h"
#include "scsi/logical_unit.h"
#include "scsi/target_device.h"

namespace sandbay::scsi {

inline constexpr std::uint32_t kMostUnits = 16384;  // LUNs 0 … 16383: flat space addressing.

// SAM-5 clause 4.7: the number in an eight-byte LUN, in peripheral (00b) or flat space (01b)
// addressing; nothing for anything else.
std::optional<std::uint32_t> decode_lun(std::uint64_t lun);
// Peripheral addressing below 256, flat space above.
std::uint64_t encode_lun(std::uint32_t number);
inline constexpr std::uint64_t kReportLunsUnit = 0xC101'0000'0000'0000;

class TaskRouter final : public TargetDevice {
 public:
  // For commands that arrive on any of `executors` (an executor's peers()).
  explicit TaskRouter(std::span<Executor* const> executors);
  ~TaskRouter() override;  // Every nexus is detached; close() has ended.

  // On any executor. kExists, or kOutOfRange beyond kMostUnits. Borrows the unit.
  Task<Error> add(std::uint32_t lun, LogicalUnit* unit);
  // When it ends no command reaches the unit through this target any more, and what was in it has
  // been aborted (some may still be held: LogicalUnit::close()). kNotFound.
  Task<Error> remove(std::uint32_t lun);
  // Waits for what runs in the background.
  Task<void> close();

  std::unique_ptr<Nexus> attach(NexusIdentity identity) override;
  Task<void> detach(Nexus& nexus) override;
  void execute(Command& command) override;
  Task<TaskManagementResponse> manage(Nexus& nexus, TaskManagementRequest request) override;
  BufferList write_buffers(std::uint64_t lun, std::size_t byte_count) override;
  Executor& preferred_home() const noexcept override;

  // For LogicalUnit: the REPORT LUNS parameter data as the current executor knows it.
  std::vector<std::byte> reported_luns(std::uint8_t select) const;
  void luns_were_reported(std::uint64_t nexus_id);

 private:
  struct Entry {
    std::uint32_t number = 0;
    LogicalUnit* unit = nullptr;
  };
  // One executor's view.
  struct View {
    std::vector<Entry> units;  // By number.
    CommandList answering;     // What the router serves itself, here.
    Condition answered;
    Gate background;
  };

  View& view() const;
  LogicalUnit* find(std::uint32_t number) const;
  Task<void> publish(std::vector<Entry> units, LogicalUnit* leaving);
  Task<void> attend_all(std::vector<Entry> units);
  Task<void> clear_everywhere(std::uint64_t nexus_id);
  Task<void> answer(Command& command, bool well_known);
  Task<Outcome> answer_inquiry(Command& command, bool well_known);
  Task<Outcome> answer_report_luns(Command& command);
  Task<Outcome> answer_request_sense(Command& command, bool well_known);
  Task<Outcome> send_parameters(Command& command, std::vector<std::byte> bytes,
                                std::uint64_t allocation_length);
  Task<bool> abort_answering(std::uint64_t nexus_id, std::optional<std::uint64_t> tag);
  Task<TaskManagementResponse> manage_target(std::uint64_t nexus_id,
                                             TaskManagementFunction function);
  Task<TaskManagementResponse> manage_unit(std::uint64_t nexus_id, LogicalUnit& unit,
                                           TaskManagementRequest request);

  std::vector<Executor*> executors_;
  std::vector<std::unique_ptr<View>> views_;  // By executor index.
  Mutex changing_;                            // One add() or remove() at a time; on executor 0.
};

}  // namespace sandbay::scsi
