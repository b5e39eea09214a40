// Task management of a session. RFC 7143 sections 4.2.3.3, 4.2.3.4, 11.5 and 11.6.
//
// A function applies to every command of the session with a lower CmdSN. Those that wait for their
// turn are dropped, those that have not arrived are fenced off, those that run are the device
// server's to end. Nobody waits for Data-Out of what is aborted.

#include <algorithm>

#include "iscsi/target_session.h"
#include "scsi/task_router.h"

namespace sandbay::iscsi {
namespace {

bool is_of_one_task(TaskManagementFunction function) {
  return function == TaskManagementFunction::kAbortTask ||
         function == TaskManagementFunction::kTaskReassign;
}

bool is_of_target(TaskManagementFunction function) {
  return function == TaskManagementFunction::kTargetWarmReset ||
         function == TaskManagementFunction::kTargetColdReset;
}

bool ends_tasks(TaskManagementFunction function) {
  switch (function) {
    case TaskManagementFunction::kAbortTaskSet:
    case TaskManagementFunction::kClearTaskSet:
    case TaskManagementFunction::kLogicalUnitReset:
    case TaskManagementFunction::kTargetWarmReset:
    case TaskManagementFunction::kTargetColdReset:
      return true;
    default:
      return false;
  }
}

TaskManagementResult result_of(scsi::TaskManagementResponse response) {
  switch (response) {
    case scsi::TaskManagementResponse::kComplete:
      return TaskManagementResult::kFunctionComplete;
    case scsi::TaskManagementResponse::kTaskDoesNotExist:
      return TaskManagementResult::kTaskDoesNotExist;
    case scsi::TaskManagementResponse::kLunDoesNotExist:
      return TaskManagementResult::kLunDoesNotExist;
    case scsi::TaskManagementResponse::kNotSupported:
      return TaskManagementResult::kFunctionNotSupported;
    case scsi::TaskManagementResponse::kRejected:
      return TaskManagementResult::kFunctionRejected;
  }
  return TaskManagementResult::kFunctionRejected;
}

}  // namespace

// By number: a unit can be addressed in more than one way (SAM-5 clause 4.7).
bool Session::is_same_unit(std::uint64_t one, std::uint64_t other) {
  if (one == other) return true;
  const auto number = scsi::decode_lun(one);
  return number && number == scsi::decode_lun(other);
}

void Session::process_task_management(ConnectionLink& link, const IncomingPdu& pdu) {
  const Result<TaskManagementRequest, RejectReason> request =
      parse_task_management_request(pdu.bhs);
  if (!request) return;  // Rejected before.
  ++task_management_count_;
  if (!background_.enter()) return;
  spawn(manage_tasks(&link, *request));
}

Task<void> Session::manage_tasks(ConnectionLink* link, TaskManagementRequest request) {
  const std::shared_ptr<Session> keep = shared_from_this();
  const GateHold hold(background_);
  ++link->pins;
  SessionInterference::Management rule;
  if (is_interfered_with()) [[unlikely]]
    rule = interference_->judge_management(request);
  if (rule.lie) answer_management(*link, request, TaskManagementResult::kFunctionComplete);
  TaskManagementResult result = TaskManagementResult::kFunctionRejected;
  if (rule.refuse) {
    result = *rule.refuse;
  } else {
    result = co_await carry_out(request);
  }
  if (ends_tasks(request.function) && !rule.refuse) co_await wait_for_acknowledgements(link);
  co_await wait_by_rule(link, rule.delay);
  if (!rule.lie) answer_management(*link, request, result);
  const bool cold = !rule.refuse && request.function == TaskManagementFunction::kTargetColdReset &&
                    result == TaskManagementResult::kFunctionComplete;
  if (cold) {
    co_await invoke_on(*link->home, link->connection->drain());
    host_.end_sessions_of(options_.target_name);
  }
  unpin(*link);
}

void Session::answer_management(ConnectionLink& link, const TaskManagementRequest& request,
                                TaskManagementResult result) {
  Bhs bhs;
  write_task_management_response({.result = result,
                                  .initiator_task_tag = request.initiator_task_tag,
                                  .numbers = numbers(link)},
                                 bhs);
  send(link, bhs, {}, StatSnUse::kConsume);
}

Task<void> Session::wait_by_rule(ConnectionLink* link, Duration time) {
  constexpr unsigned kMostSlowed = kMostBackground / 4;  // The others are not held up.
  if (time <= Duration::zero() || slowed_ >= kMostSlowed) co_return;
  ++slowed_;
  const TimePoint until = home_.now() + time;
  while (!link->ended && !closing_ && home_.now() < until && is_interfered_with()) {
    (void)co_await changed_.wait_until(std::min(until, home_.now() + kLookAtRules));
  }
  --slowed_;
}

Task<TaskManagementResult> Session::carry_out(TaskManagementRequest request) {
  if (request.function == TaskManagementFunction::kTaskReassign) {
    co_return TaskManagementResult::kReassignmentNotSupported;  // ErrorRecoveryLevel 2.
  }
  const auto code = static_cast<std::uint8_t>(request.function);
  if (code < 1 || code > static_cast<std::uint8_t>(TaskManagementFunction::kTargetColdReset)) {
    co_return TaskManagementResult::kFunctionNotSupported;
  }
  const ScsiTask* const found = find_task(request.referenced_task_tag);
  // Not "complete" as for others that are gone: if it is RefCmdSN that is wrong, this task goes on.
  if (found != nullptr && is_successor(*found, request)) {
    co_return TaskManagementResult::kTaskDoesNotExist;
  }
  const std::optional<TaskManagementResult> undelivered = dispose_of_undelivered(request);
  if (undelivered) co_return *undelivered;
  const scsi::TaskManagementRequest to_device{
      .function = static_cast<scsi::TaskManagementFunction>(code),
      .lun = request.lun,
      .tag = request.referenced_task_tag,
      .before = request.cmd_sn};
  const auto response = co_await options_.device->manage(*nexus_, to_device);
  const TaskManagementResult result = result_of(response);
  // Some may have ended while they were looked for, and wait to be answered.
  if (ends_tasks(request.function)) abandon_lingering_before(request);
  // It may have failed meanwhile and wait for its data; or have another LUN, and then it lives on.
  ScsiTask* const left =
      is_of_one_task(request.function) ? find_task(request.referenced_task_tag) : nullptr;
  if (left != nullptr && left->lingering() && is_same_unit(left->lun, request.lun)) {
    left->abandon();
    co_return TaskManagementResult::kFunctionComplete;
  }
  if (result != TaskManagementResult::kTaskDoesNotExist || left != nullptr) co_return result;
  co_return co_await result_for_gone(request);
}

// For a task that is not there any more.
Task<TaskManagementResult> Session::result_for_gone(TaskManagementRequest request) {
  // Section 11.6.1 wants "task does not exist" for a task that ended before its ABORT TASK came;
  // that is the answer to one that has crossed the end. ESXi aborts commands that ended long ago,
  // takes it for a failure, repeats the abort and gives the path up; the command is out of the
  // way, which is what was asked for, so that it is complete.
  if (!serial_less(request.ref_cmd_sn, exp_cmd_sn_)) {
    co_return TaskManagementResult::kTaskDoesNotExist;
  }
  const bool crossed = co_await has_just_answered(request.referenced_task_tag);
  co_return crossed ? TaskManagementResult::kTaskDoesNotExist
                    : TaskManagementResult::kFunctionComplete;
}

Task<bool> Session::ask_answered(Connection* connection, std::uint32_t initiator_task_tag) {
  co_return connection->has_answered(initiator_task_tag, connection->home().now() - kCrossingTime);
}

Task<bool> Session::has_just_answered(std::uint32_t initiator_task_tag) {
  std::vector<ConnectionLink*> asked;
  for (const auto& link : links_) {
    if (!answers(*link)) continue;
    ++link->pins;
    asked.push_back(link.get());
  }
  bool answered = false;
  for (ConnectionLink* const link : asked) {
    if (!answered && !link->ended) {
      answered =
          co_await invoke_on(*link->home, ask_answered(link->connection, initiator_task_tag));
    }
    unpin(*link);
  }
  co_return answered;
}

// Section 11.5.5: RefCmdSN is the CmdSN of the task that is meant. Where it is that of an earlier
// command, which has ended, the initiator has used the task tag again, and this task is not meant.
bool Session::is_successor(const ScsiTask& task, const TaskManagementRequest& request) const {
  const std::uint32_t later_by = task.cmd_sn() - request.ref_cmd_sn;
  return request.function == TaskManagementFunction::kAbortTask && !task.immediate() &&
         later_by > 0 && later_by <= slots_.size();
}

void Session::abandon_lingering_before(const TaskManagementRequest& request) {
  const bool every_lun = is_of_target(request.function);
  abandon_lingering([&request, every_lun](ScsiTask& task) {
    return serial_less(task.cmd_sn(), request.cmd_sn) &&
           (every_lun || is_same_unit(task.lun, request.lun));
  });
}

// What the device server has not seen. A value: that was all.
std::optional<TaskManagementResult> Session::dispose_of_undelivered(
    const TaskManagementRequest& request) {
  if (is_of_one_task(request.function)) {
    ScsiTask* const task = find_task(request.referenced_task_tag);
    // A task is one of its unit: with another LUN, this is no task of ours.
    if (task != nullptr && !is_same_unit(task->lun, request.lun)) return std::nullopt;
    if (task != nullptr && task->lingering()) {
      task->abandon();
      return TaskManagementResult::kFunctionComplete;
    }
    if (task != nullptr && task->delivered()) return std::nullopt;
    if (task != nullptr) {
      const std::uint32_t cmd_sn = task->cmd_sn();
      Slot& slot = slot_of(cmd_sn);
      assert(slot.task == task);
      empty(slot);
      slot.kind = Slot::Kind::kConsumed;
      task->discard();
      advance();
      return TaskManagementResult::kFunctionComplete;
    }
    // Section 11.5.1 b: on its way, and not to be executed when it comes.
    const bool on_its_way = !serial_less(request.ref_cmd_sn, exp_cmd_sn_) &&
                            serial_less_equal(request.ref_cmd_sn, max_cmd_sn_) &&
                            serial_less(request.ref_cmd_sn, request.cmd_sn) &&
                            slot_of(request.ref_cmd_sn).kind == Slot::Kind::kEmpty;
    if (!on_its_way) return std::nullopt;
    consume(request.ref_cmd_sn);
    return TaskManagementResult::kFunctionComplete;
  }
  if (!ends_tasks(request.function)) return std::nullopt;
  const bool every_lun = is_of_target(request.function);
  abandon_lingering_before(request);
  const bool fenced =
      !serial_less(exp_cmd_sn_, request.cmd_sn) ||
      put_up_fence({.cmd_sn = request.cmd_sn, .every_lun = every_lun, .lun = request.lun});
  // Done by half, it would be a promise that is not kept.
  if (!fenced) return TaskManagementResult::kFunctionRejected;
  return std::nullopt;
}

// One a unit is enough: the later one holds back what the earlier one does. False: there are fences
// for as many units as may be.
bool Session::put_up_fence(const Fence& fence) {
  const auto same = std::ranges::find_if(fences_, [&fence](const Fence& each) {
    return each.every_lun == fence.every_lun &&
           (fence.every_lun || is_same_unit(each.lun, fence.lun));
  });
  if (same != fences_.end()) {
    if (serial_less(same->cmd_sn, fence.cmd_sn)) same->cmd_sn = fence.cmd_sn;
    return true;
  }
  if (fences_.size() >= kMostFences) return false;
  fences_.push_back(fence);
  return true;
}

}  // namespace sandbay::iscsi
