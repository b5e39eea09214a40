// Routing by LUN, the list of LUNs, and task management across units (SAM-5 clauses 4.7 and 7).
#include "scsi/task_router.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "runtime/buffer.h"
#include "runtime/byte_order.h"

namespace sandbay::scsi {
namespace {

std::uint64_t next_nexus_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

// Runs `work` on the unit's home and leaves the gate here when it has ended.
Task<void> run_at(LogicalUnit* unit, Task<void> work, Gate* gate) {
  co_await invoke_on(unit->home(), std::move(work));
  gate->leave();
}

void run_at_many(std::span<LogicalUnit* const> units,
                 Task<void> (*work)(LogicalUnit*, std::uint64_t, UnitAttention),
                 std::uint64_t nexus_id, UnitAttention cause, Gate& gate) {
  for (LogicalUnit* unit : units) {
    const bool entered = gate.enter();
    assert(entered);
    spawn(run_at(unit, work(unit, nexus_id, cause), &gate));
  }
}

Task<void> forget_at(LogicalUnit* unit, std::uint64_t nexus_id, UnitAttention /*unused*/) {
  co_await unit->forget_nexus(nexus_id);
}

Task<void> reset_at(LogicalUnit* unit, std::uint64_t nexus_id, UnitAttention cause) {
  co_await unit->reset(nexus_id, cause);
}

Task<void> clear_at(LogicalUnit* unit, std::uint64_t nexus_id, UnitAttention condition) {
  unit->clear_attention(condition, nexus_id);
  co_return;
}

Task<void> establish_at(LogicalUnit* unit, std::uint64_t /*unused*/, UnitAttention condition) {
  unit->establish(condition);
  co_return;
}

}  // namespace

std::optional<std::uint32_t> decode_lun(std::uint64_t lun) {
  if ((lun & 0x0000'FFFF'FFFF'FFFFU) != 0) return std::nullopt;
  const auto first = static_cast<std::uint32_t>(lun >> 48U);
  switch (first >> 14U) {
    case 0:  // Peripheral device addressing: bus 0 only.
      if ((first & 0x3F00U) != 0) return std::nullopt;
      return first & 0xFFU;
    case 1:
      return first & 0x3FFFU;
    default:
      return std::nullopt;
  }
}

std::uint64_t encode_lun(std::uint32_t number) {
  assert(number < kMostUnits);
  const std::uint64_t method = number < 256 ? 0U : 0x4000U;
  return (method | number) << 48U;
}

TaskRouter::TaskRouter(std::span<Executor* const> executors)
    : executors_(executors.begin(), executors.end()) {
  assert(!executors_.empty());
  for (std::size_t i = 0; i < executors_.size(); ++i) {
    assert(executors_[i]->index() == i);
    views_.push_back(std::make_unique<View>());
  }
}

TaskRouter::~TaskRouter() = default;

TaskRouter::View& TaskRouter::view() const { return *views_[Executor::current().index()]; }

LogicalUnit* TaskRouter::find(std::uint32_t number) const {
  const std::vector<Entry>& units = view().units;
  // Most targets have one unit, or a few.
  const auto found = std::ranges::lower_bound(units, number, {}, &Entry::number);
  return found == units.end() || found->number != number ? nullptr : found->unit;
}

// Rewrites every executor's view. A message from each executor to the home of the unit that leaves
// follows whatever that executor had sent there before.
Task<void> TaskRouter::publish(std::vector<Entry> units, LogicalUnit* leaving) {
  for (std::size_t i = 0; i < executors_.size(); ++i) {
    co_await SwitchTo(*executors_[i]);
    views_[i]->units = units;
    if (leaving != nullptr) co_await SwitchTo(leaving->home());
  }
  co_await SwitchTo(*executors_[0]);
}

// REPORTED LUNS DATA HAS CHANGED on every unit.
Task<void> TaskRouter::attend_all(std::vector<Entry> units) {
  std::vector<LogicalUnit*> all;
  for (const Entry& entry : units) all.push_back(entry.unit);
  Gate gate;
  run_at_many(all, establish_at, 0, UnitAttention::kReportedLunsChanged, gate);
  co_await gate.drain();
}

Task<Error> TaskRouter::add(std::uint32_t lun, LogicalUnit* unit) {
  if (lun >= kMostUnits) co_return Error::kOutOfRange;
  Executor& origin = Executor::current();
  co_await SwitchTo(*executors_[0]);
  co_await changing_.lock();
  std::vector<Entry> units = views_[0]->units;
  const std::vector<Entry> before = units;
  const auto place = std::ranges::lower_bound(units, lun, {}, &Entry::number);
  const bool taken = place != units.end() && place->number == lun;
  if (!taken) {
    units.insert(place, Entry{.number = lun, .unit = unit});
    co_await publish(std::move(units), nullptr);
    co_await attend_all(before);
  }
  changing_.unlock();
  co_await SwitchTo(origin);
  co_return taken ? Error::kExists : Error::kNone;
}

Task<Error> TaskRouter::remove(std::uint32_t lun) {
  Executor& origin = Executor::current();
  co_await SwitchTo(*executors_[0]);
  co_await changing_.lock();
  std::vector<Entry> units = views_[0]->units;
  const auto place = std::ranges::lower_bound(units, lun, {}, &Entry::number);
  const bool found = place != units.end() && place->number == lun;
  if (found) {
    LogicalUnit* const leaving = place->unit;
    units.erase(place);
    co_await publish(units, leaving);
    co_await invoke_on(leaving->home(), leaving->forget_router(this));
    co_await attend_all(std::move(units));
  }
  changing_.unlock();
  co_await SwitchTo(origin);
  co_return found ? Error::kNone : Error::kNotFound;
}

Task<void> TaskRouter::close() {
  Executor& origin = Executor::current();
  for (std::size_t i = 0; i < executors_.size(); ++i) {
    co_await SwitchTo(*executors_[i]);
    co_await views_[i]->background.close();
  }
  co_await SwitchTo(origin);
}

std::unique_ptr<Nexus> TaskRouter::attach(NexusIdentity identity) {
  return std::make_unique<RoutedNexus>(*this, next_nexus_id(), std::move(identity));
}

Task<void> TaskRouter::detach(Nexus& nexus) {
  const std::uint64_t nexus_id = static_cast<RoutedNexus&>(nexus).id();
  std::vector<LogicalUnit*> units;
  for (const Entry& entry : view().units) units.push_back(entry.unit);
  Gate gate;
  run_at_many(units, forget_at, nexus_id, UnitAttention::kNexusLoss, gate);
  co_await abort_answering(nexus_id, std::nullopt);
  co_await gate.drain();
}

void TaskRouter::execute(Command& command) {
  const auto number = decode_lun(command.lun);
  LogicalUnit* const unit = number ? find(*number) : nullptr;
  if (unit == nullptr) {
    // REPORT LUNS has its well known unit; LUN 0 stands in for it even where no unit is (SPC-4
    // 6.33).
    spawn(answer(command, command.lun == kReportLunsUnit));
    return;
  }
  Executor& home = unit->home();
  if (Executor::current_or_null() == &home) return unit->start(command);
  command.crossing.command = &command;
  command.crossing.unit = unit;
  command.crossing.run = [](Message& message) {
    auto& crossing = static_cast<Command::Crossing&>(message);
    crossing.unit->start(*crossing.command);
  };
  home.send(command.crossing);
}

BufferList TaskRouter::write_buffers(std::uint64_t lun, std::size_t byte_count) {
  const auto number = decode_lun(lun);
  LogicalUnit* const unit = number ? find(*number) : nullptr;
  const bool here = unit != nullptr && &unit->home() == Executor::current_or_null();
  return here ? unit->write_buffers(byte_count) : BufferList();
}

Executor& TaskRouter::preferred_home() const noexcept {
  const std::vector<Entry>& units = view().units;
  return units.empty() ? Executor::current() : units.front().unit->home();
}

std::vector<std::byte> TaskRouter::reported_luns(std::uint8_t select) const {
  std::vector<std::byte> data(8);
  const auto append = [&data](std::uint64_t lun) {
    data.resize(data.size() + 8);
    put_big_endian(std::span(data), data.size() - 8, lun);
  };
  if (select != 0) append(kReportLunsUnit);
  if (select != 1) {
    for (const Entry& entry : view().units) append(encode_lun(entry.number));
  }
  put_big_endian(std::span(data), 0, static_cast<std::uint32_t>(data.size() - 8));
  return data;
}

void TaskRouter::luns_were_reported(std::uint64_t nexus_id) {
  if (view().units.size() <= 1 || !view().background.enter()) return;
  spawn(clear_everywhere(nexus_id));
}

// The initiator has seen the list; no other unit need tell it again.
Task<void> TaskRouter::clear_everywhere(std::uint64_t nexus_id) {
  View& here = view();
  const GateHold hold(here.background);
  std::vector<LogicalUnit*> units;
  for (const Entry& entry : here.units) units.push_back(entry.unit);
  Gate gate;
  run_at_many(units, clear_at, nexus_id, UnitAttention::kReportedLunsChanged, gate);
  co_await gate.drain();
}

Task<TaskManagementResponse> TaskRouter::manage(Nexus& nexus, TaskManagementRequest request) {
  const std::uint64_t nexus_id = static_cast<RoutedNexus&>(nexus).id();
  switch (request.function) {
    case TaskManagementFunction::kClearAca:
      co_return TaskManagementResponse::kNotSupported;
    case TaskManagementFunction::kTargetWarmReset:
    case TaskManagementFunction::kTargetColdReset: {
      co_return co_await manage_target(nexus_id, request.function);
    }
    default:
      break;
  }
  const auto number = decode_lun(request.lun);
  LogicalUnit* const unit = number ? find(*number) : nullptr;
  if (unit != nullptr) {
    auto work = manage_unit(nexus_id, *unit, request);
    co_return co_await invoke_on(unit->home(), std::move(work));
  }
  if (request.function == TaskManagementFunction::kAbortTask) {
    const bool found = co_await abort_answering(nexus_id, request.tag);
    if (found) co_return TaskManagementResponse::kComplete;
  }
  if (request.lun == kReportLunsUnit) {
    if (request.function == TaskManagementFunction::kAbortTask) {
      co_return TaskManagementResponse::kTaskDoesNotExist;
    }
    co_await abort_answering(nexus_id, std::nullopt);
    co_return TaskManagementResponse::kComplete;
  }
  co_return TaskManagementResponse::kLunDoesNotExist;
}

Task<TaskManagementResponse> TaskRouter::manage_unit(std::uint64_t nexus_id, LogicalUnit& unit,
                                                     TaskManagementRequest request) {
  switch (request.function) {
    case TaskManagementFunction::kAbortTask: {
      co_return co_await unit.abort_task(nexus_id, request.tag);
    }
    case TaskManagementFunction::kAbortTaskSet:
      co_await unit.abort_task_set(nexus_id, request.before);
      co_return TaskManagementResponse::kComplete;
    case TaskManagementFunction::kClearTaskSet:
      co_await unit.clear_task_set(nexus_id, request.before);
      co_return TaskManagementResponse::kComplete;
    case TaskManagementFunction::kLogicalUnitReset:
      co_await unit.reset(nexus_id, UnitAttention::kLogicalUnitReset);
      co_return TaskManagementResponse::kComplete;
    default:
      co_return TaskManagementResponse::kNotSupported;
  }
}

Task<TaskManagementResponse> TaskRouter::manage_target(std::uint64_t nexus_id,
                                                       TaskManagementFunction function) {
  const UnitAttention cause = function == TaskManagementFunction::kTargetColdReset
                                  ? UnitAttention::kPowerOn
                                  : UnitAttention::kHardReset;
  std::vector<LogicalUnit*> units;
  for (const Entry& entry : view().units) units.push_back(entry.unit);
  Gate gate;
  run_at_many(units, reset_at, nexus_id, cause, gate);
  co_await abort_answering(nexus_id, std::nullopt);
  co_await gate.drain();
  co_return TaskManagementResponse::kComplete;
}

}  // namespace sandbay::scsi
