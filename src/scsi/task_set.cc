// The task set of a logical unit (SAM-5 clause 8): admission, ordering, and the end of every
// command.
//
// SIMPLE commands wait for HEAD OF QUEUE commands and for older ORDERED ones; ORDERED commands wait
// for everything older and for HEAD OF QUEUE; HEAD OF QUEUE commands never wait. What waits does so
// in one queue, so nothing overtakes an ORDERED command; with SIMPLE commands alone the queue
// stays empty and all this costs three comparisons.
#include <algorithm>

#include "runtime/buffer.h"
#include "scsi/command_table.h"
#include "scsi/interference.h"
#include "scsi/logical_unit.h"
#include "scsi/waking.h"

namespace sandbay::scsi {

void finish_command(LogicalUnit& unit, Command& command, const Outcome& outcome) noexcept {
  unit.finish(command, outcome);
}

void LogicalUnit::start(Command& command) {
  assert(Executor::current_or_null() == &home_);
  assert(!command.completed);
  command.nexus_id = static_cast<const RoutedNexus*>(command.nexus)->id();
  command.row = find_command(command.cdb);
  command.started = home_.now();
  command.descriptor_sense = modes_.descriptor_sense;
  if (closed_) {
    ++counters_.busy;
    return answer_unadmitted(command, Outcome{.status = Status::kBusy});
  }
  const std::uint32_t in_set = this->in_set();
  if (interference_ != nullptr && !interference_->quiet()) [[unlikely]] {
    if (is_turned_away(command, in_set)) return;
  }
  if (in_set + held_.count() >= options_.queue_depth) {
    // SAM-5 5.3.1: TASK SET FULL needs a command in the task set; held commands have left it.
    ++(in_set == 0 ? counters_.busy : counters_.task_set_full);
    const Status full = in_set == 0 ? Status::kBusy : Status::kTaskSetFull;
    return answer_unadmitted(command, Outcome{.status = full});
  }
  if (command.attribute == TaskAttribute::kAca) {
    // There is never an ACA condition to belong to (SAM-5 8.6.5).
    return answer_unadmitted(command, illegal(Additional::kInvalidMessageError));
  }
  if (in_set >= counters_.in_flight_most) counters_.in_flight_most = in_set + 1;
  const bool head = command.attribute == TaskAttribute::kHeadOfQueue;
  if (head || (waiting_.empty() && may_run(command))) return run(command);
  command.waiting = true;
  waiting_.push_back(command);
}

bool LogicalUnit::is_turned_away(Command& command, std::uint32_t in_set) {
  constexpr std::byte kRequestSense{0x03};
  constexpr std::byte kInquiry{0x12};
  Outcome outcome;
  switch (interference_->on_arrival(command, in_set)) {
    case Interference::Arrival::kPass:
      return false;
    case Interference::Arrival::kBusy:
      ++counters_.busy;
      outcome.status = Status::kBusy;
      break;
    case Interference::Arrival::kTaskSetFull:
      ++counters_.task_set_full;
      outcome.status = Status::kTaskSetFull;
      break;
    case Interference::Arrival::kReservationConflict:
      ++counters_.reservation_conflicts;
      outcome.status = Status::kReservationConflict;
      break;
    case Interference::Arrival::kVanished:
      command.unit_vanished = command.cdb[0] == kInquiry || command.cdb[0] == kRequestSense;
      if (command.unit_vanished) return false;
      outcome = illegal(Additional::kLogicalUnitNotSupported);
      break;
  }
  answer_unadmitted(command, outcome);
  return true;
}

bool LogicalUnit::may_run(const Command& command) const noexcept {
  if (head_of_queue_ != 0) return false;
  if (command.attribute == TaskAttribute::kOrdered) return running_.empty();
  return running_ordered_ == 0;
}

void LogicalUnit::run(Command& command) {
  if (command.attribute == TaskAttribute::kOrdered) ++running_ordered_;
  if (command.attribute == TaskAttribute::kHeadOfQueue) ++head_of_queue_;
  running_.push_back(command);
  if (const auto refused = check(command)) return finish(command, *refused);
  if (command.delay > Duration::zero()) [[unlikely]]
    return spawn(handle_late(command));
  (this->*command.row->handler)(command);
}

// By a rule, unless it is aborted or the rules have gone.
Task<void> LogicalUnit::handle_late(Command& command) {
  Condition woken;
  const Waking waking(&command.cancellation, woken);
  constexpr Duration kLook = std::chrono::seconds(1);
  const TimePoint until = home_.now() + command.delay;
  const auto is_over = [&] { return command.aborted || command.cancellation.cancelled(); };
  while (!is_over() && home_.now() < until && interference_ != nullptr && !interference_->quiet()) {
    (void)co_await woken.wait_until(std::min(until, home_.now() + kLook));
  }
  if (is_over()) {
    finish(command, Outcome{.silent = true});
    co_return;
  }
  (this->*command.row->handler)(command);
}

// Commands may end while this starts others; the outermost call goes on with what became free.
void LogicalUnit::run_waiting() {
  if (starting_waiters_) return;
  starting_waiters_ = true;
  while (!waiting_.empty() && may_run(*waiting_.first())) {
    Command& command = *waiting_.first();
    waiting_.remove(command);
    command.waiting = false;
    run(command);
  }
  starting_waiters_ = false;
}

void LogicalUnit::leave_set(Command& command) noexcept {
  if (command.waiting) {
    command.waiting = false;
    waiting_.remove(command);
    return;
  }
  running_.remove(command);
  stop_ordering(command);
}

// Nothing waits for it any more.
void LogicalUnit::stop_ordering(Command& command) noexcept {
  if (command.attribute == TaskAttribute::kOrdered) --running_ordered_;
  if (command.attribute == TaskAttribute::kHeadOfQueue) --head_of_queue_;
  command.attribute = TaskAttribute::kSimple;
}

Outcome LogicalUnit::aborted_outcome(const Command& command) const noexcept {
  if (command.cleared) {
    return refuse(SenseKey::kAbortedCommand, Additional::kCommandsClearedByDeviceServer);
  }
  if (command.tell_aborted) return Outcome{.status = Status::kTaskAborted};
  return Outcome{.silent = true};
}

void LogicalUnit::finish(Command& command, const Outcome& outcome) noexcept {
  if (command.completed) {
    // It was answered long ago; now the device below has let go of it as well.
    held_.remove(command);
    held_bytes_ -= command.lent_held;
    command.release();
  } else {
    leave_set(command);
    command.completed = true;
    const Outcome final_outcome = command.aborted ? aborted_outcome(command) : outcome;
    count(command, final_outcome);
    if (command.abort_waits != nullptr) tell_aborts(command);
    command.complete(final_outcome);
    command.release();
  }
  if (end_watchers_ != 0) command_ended_.notify_all();
  if (!waiting_.empty()) run_waiting();
}

void LogicalUnit::answer_unadmitted(Command& command, const Outcome& outcome) {
  command.completed = true;
  command.complete(outcome);
  command.release();
}

void LogicalUnit::count(const Command& command, const Outcome& outcome) noexcept {
  if (command.aborted) ++counters_.aborted;
  CommandCounters& counters =
      counters_.of(command.row == nullptr ? CommandKind::kOther : command.row->kind);
  ++counters.commands;
  counters.bytes += command.moved;
  if (outcome.status == Status::kCheckCondition) ++counters.errors;
  if (outcome.status == Status::kBusy) ++counters_.busy;
  counters.latency.add(home_.now() - command.started);
}

// Held commands may keep a sixteenth of the memory, and less if other units and peers have left
// little; 1 MiB in any case.
bool LogicalUnit::holds_its_share() const noexcept {
  if (held_bytes_ == 0) return false;
  const BufferPool& pool = home_.buffers();
  const std::size_t most = pool.limit_bytes() / 4 * 3;
  const std::size_t unpromised = most - std::min(most, pool.used_bytes() + pool.reserved_bytes());
  const std::size_t share = std::min(pool.limit_bytes() / 16, unpromised / 8);
  return held_bytes_ >= std::max(kTransferPieceBytes, share);
}

bool LogicalUnit::fenced(const Extent& extent) const noexcept {
  for (const Command* held = held_.first(); held != nullptr; held = held->next_in_set) {
    if (held->writing.overlaps(extent)) return true;
  }
  return false;
}

}  // namespace sandbay::scsi
