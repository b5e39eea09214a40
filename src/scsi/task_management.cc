// Task management (SAM-5 clause 7) and what follows from the loss of a nexus (SAM-5 6.3.4).
//
// An abort first asks: every command concerned is marked and its cancellation fires. Then it waits,
// at most kAbortPatience, for the handlers to end. A handler that a device below does not let go is
// given up: its command is completed without it and held until the device returns; as long as it
// may still write, its extent is fenced (commands that overlap it get BUSY).
#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/sync.h"
#include "scsi/command_table.h"
#include "scsi/logical_unit.h"

namespace sandbay::scsi {

bool LogicalUnit::matches(const Command& command, const AbortScope& scope) noexcept {
  const bool later = scope.before && command.nexus_id == scope.nexus_id &&
                     static_cast<std::int32_t>(command.order - *scope.before) >= 0;
  if (later || &command == scope.except) return false;
  switch (scope.victims) {
    case Victims::kOneTask:
      return command.nexus_id == scope.nexus_id && command.tag == scope.tag;
    case Victims::kNexus:
      return command.nexus_id == scope.nexus_id;
    case Victims::kNexuses:
      return std::ranges::binary_search(scope.nexuses, command.nexus_id);
    case Victims::kRouter:
      return &static_cast<const RoutedNexus*>(command.nexus)->router() == scope.router;
    case Victims::kEverybody:
      return true;
  }
  return false;
}

// One command that an abort waits for, in the command's list of such aborts until the command ends:
// an end costs a step for each abort that waits for it.
struct AbortWait {
  AbortInProgress* abort = nullptr;
  Command* victim = nullptr;  // Null: it has ended.
  AbortWait* next = nullptr;  // Another abort that waits for the same command.
};

struct AbortInProgress {
  std::vector<AbortWait> waits;
  std::size_t left = 0;
  Event ended;
};

void LogicalUnit::tell_aborts(Command& command) {
  for (AbortWait* wait = std::exchange(command.abort_waits, nullptr); wait != nullptr;) {
    AbortWait& each = *wait;
    wait = std::exchange(each.next, nullptr);
    each.victim = nullptr;
    assert(each.abort->left > 0);
    if (--each.abort->left == 0) each.abort->ended.set();
  }
}

// The commands that still run get no wait of this abort any more.
void LogicalUnit::stop_waiting(AbortInProgress& abort) noexcept {
  for (AbortWait& wait : abort.waits) {
    if (wait.victim == nullptr) continue;
    AbortWait** link = &wait.victim->abort_waits;
    while (*link != &wait) link = &(*link)->next;
    *link = wait.next;
    wait.victim = nullptr;
    --abort.left;
  }
  assert(abort.left == 0);
}

namespace {

// `tell`: victims of other nexuses complete with TASK ABORTED.
void mark(Command& command, bool by_device_server, bool tell) noexcept {
  command.aborted = true;
  command.cleared = by_device_server;
  command.tell_aborted = tell;
}

}  // namespace

// How many commands are concerned.
std::size_t LogicalUnit::mark_and_cancel(const AbortScope& scope, AbortInProgress& abort) {
  // Nothing new starts between the first victim and the last.
  const bool outermost = !std::exchange(starting_waiters_, true);
  const bool one = scope.victims == Victims::kOneTask;
  // Only if another nexus asked. Commands of a unit or target that is removed end silently.
  const bool tell = modes_.task_aborted_status && scope.nexus_id != 0;
  std::size_t concerned = 0;
  Command* next = nullptr;
  for (Command* each = waiting_.first(); each != nullptr; each = next) {
    next = each->next_in_set;
    if (!matches(*each, scope)) continue;
    ++concerned;
    mark(*each, scope.by_device_server, tell && each->nexus_id != scope.nexus_id);
    finish(*each, {});
    if (one) break;
  }
  for (Command* each = running_.first(); each != nullptr; each = each->next_in_set) {
    if (one && concerned != 0) break;
    if (!matches(*each, scope)) continue;
    ++concerned;
    abort.waits.push_back({.abort = &abort, .victim = each});
  }
  abort.left = abort.waits.size();
  for (AbortWait& wait : abort.waits) {
    wait.next = std::exchange(wait.victim->abort_waits, &wait);
  }
  for (AbortWait& wait : abort.waits) {
    // Another abort may have cancelled it before, and it may end while others are cancelled.
    if (wait.victim == nullptr || wait.victim->aborted) continue;
    Command& victim = *wait.victim;
    mark(victim, scope.by_device_server, tell && victim.nexus_id != scope.nexus_id);
    victim.cancellation.cancel();
  }
  if (outermost) {
    starting_waiters_ = false;
    run_waiting();
  }
  return concerned;
}

Task<std::size_t> LogicalUnit::abort(AbortScope scope) {
  const TimePoint deadline = home_.now() + kAbortPatience;
  AbortInProgress abort;
  const std::size_t concerned = mark_and_cancel(scope, abort);
  if (abort.left != 0) co_await abort.ended.wait_until(deadline);
  for (const AbortWait& wait : abort.waits) {
    if (wait.victim != nullptr) give_up(*wait.victim);
  }
  assert(abort.left == 0);
  run_waiting();
  co_return concerned;
}

void LogicalUnit::give_up(Command& command) {
  leave_set(command);
  command.completed = true;
  held_.push_back(command);
  drop_turns(command);
  command.lent_held = command.lent;
  held_bytes_ += command.lent_held;
  const Outcome outcome = aborted_outcome(command);
  count(command, outcome);
  tell_aborts(command);
  command.complete(outcome);
}

Task<TaskManagementResponse> LogicalUnit::abort_task(std::uint64_t nexus_id, std::uint64_t tag) {
  if (!operations_.enter()) co_return TaskManagementResponse::kLunDoesNotExist;
  const GateHold hold(operations_);
  const std::size_t concerned =
      co_await abort({.victims = Victims::kOneTask, .nexus_id = nexus_id, .tag = tag});
  co_return concerned == 0 ? TaskManagementResponse::kTaskDoesNotExist
                           : TaskManagementResponse::kComplete;
}

Task<void> LogicalUnit::abort_task_set(std::uint64_t nexus_id,
                                       std::optional<std::uint32_t> before) {
  if (!operations_.enter()) co_return;
  const GateHold hold(operations_);
  co_await abort({.victims = Victims::kNexus, .nexus_id = nexus_id, .before = before});
}

// Those whose commands vanish without a status learn of it this way (SAM-5 5.14.1).
void LogicalUnit::tell_cleared(const AbortScope& scope) {
  if (modes_.task_aborted_status) return;
  for (const CommandList* list : {&waiting_, &running_}) {
    for (const Command* each = list->first(); each != nullptr; each = each->next_in_set) {
      if (each->nexus_id == scope.nexus_id || !matches(*each, scope)) continue;
      const auto found = nexuses_.find(each->nexus_id);
      if (found == nexuses_.end()) continue;
      found->second.attentions.establish(UnitAttention::kCommandsCleared);
    }
  }
}

// PREEMPT AND ABORT.
Task<void> LogicalUnit::abort_preempted(std::vector<std::uint64_t> nexuses, std::uint64_t caller) {
  if (!operations_.enter()) co_return;
  const GateHold hold(operations_);
  std::ranges::sort(nexuses);
  const AbortScope scope{.victims = Victims::kNexuses, .nexus_id = caller, .nexuses = nexuses};
  tell_cleared(scope);
  co_await abort(scope);
}

Task<void> LogicalUnit::clear_task_set(std::uint64_t nexus_id,
                                       std::optional<std::uint32_t> before) {
  if (!operations_.enter()) co_return;
  const GateHold hold(operations_);
  const AbortScope scope{.victims = Victims::kEverybody, .nexus_id = nexus_id, .before = before};
  tell_cleared(scope);
  co_await abort(scope);
}

void LogicalUnit::content_replaced() {
  atomic_writes_.content_replaced();
  sanitizer_.content_replaced();
  AbortInProgress abort;
  mark_and_cancel({.victims = Victims::kEverybody, .by_device_server = true}, abort);
  stop_waiting(abort);
}

Task<void> LogicalUnit::clear() {
  if (!operations_.enter()) co_return;
  const GateHold hold(operations_);
  co_await abort({.victims = Victims::kEverybody, .by_device_server = true});
  (void)co_await atomic_writes_.drain(home_.now() + kAbortPatience);
}

void LogicalUnit::restore_defaults() {
  modes_ = default_modes_;
  reservation_.reset();
  if (power_ == PowerState::kStopped) power_ = PowerState::kActive;
  for (auto& [id, nexus] : nexuses_) nexus.prevents_removal = false;
}

Task<void> LogicalUnit::reset(std::uint64_t nexus_id, UnitAttention cause) {
  if (!operations_.enter()) co_return;
  const GateHold hold(operations_);
  ++counters_.resets;
  cancel_background();
  co_await abort({.victims = Victims::kEverybody, .nexus_id = nexus_id});
  restore_defaults();
  establish(cause);
}

Task<void> LogicalUnit::forget_nexus(std::uint64_t nexus_id) {
  if (!operations_.enter()) co_return;
  const GateHold hold(operations_);
  co_await abort({.victims = Victims::kNexus, .nexus_id = nexus_id});
  if (reservation_ == nexus_id) reservation_.reset();
  nexuses_.erase(nexus_id);
  last_nexus_state_ = nullptr;
}

Task<void> LogicalUnit::forget_router(const TaskRouter* router) {
  if (!operations_.enter()) co_return;
  const GateHold hold(operations_);
  co_await abort({.victims = Victims::kRouter, .router = router});
  if (reservation_) {
    const auto holder = nexuses_.find(*reservation_);
    if (holder != nexuses_.end() && holder->second.router == router) reservation_.reset();
  }
  std::erase_if(nexuses_, [router](const auto& nexus) { return nexus.second.router == router; });
  last_nexus_state_ = nullptr;
}

void LogicalUnit::establish(UnitAttention condition, std::optional<std::uint64_t> except) {
  for (auto& [id, nexus] : nexuses_) {
    if (id != except) nexus.attentions.establish(condition);
  }
}

void LogicalUnit::clear_attention(UnitAttention condition, std::uint64_t nexus_id) {
  const auto found = nexuses_.find(nexus_id);
  if (found != nexuses_.end()) found->second.attentions.clear(condition);
}

Task<bool> LogicalUnit::close(TimePoint deadline) {
  closed_ = true;
  cancel_background();
  sanitizer_.cancel();
  co_await abort({.victims = Victims::kEverybody});
  atomic_writes_.cancel();
  const bool operations_ended = co_await operations_.close_until(deadline);
  const bool background_ended = co_await background_.close_until(deadline);
  const bool sanitizer_ended = co_await sanitizer_.close(deadline);
  const bool writes_ended = co_await atomic_writes_.close(deadline);
  ++end_watchers_;
  while (!held_.empty()) {
    const bool ended = co_await command_ended_.wait_until(deadline);
    if (!ended) break;
  }
  --end_watchers_;
  const bool others_ended = background_ended && sanitizer_ended && writes_ended;
  co_return operations_ended&& others_ended&& held_.empty();
}

}  // namespace sandbay::scsi
