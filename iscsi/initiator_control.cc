// Requests other than SCSI commands, and the coroutine interface of an initiator's session: RFC
// 7143 sections 11.5, 11.6, 11.9, 11.10, 11.14, 11.18 and appendix C (SendTargets).
//
// Every request here is sent for immediate delivery: the CmdSN window may be closed when it is
// needed most.
#include <algorithm>
#include <cassert>

#include "iscsi/initiator_await.h"
#include "iscsi/initiator_session.h"
#include "iscsi/text.h"
#include "runtime/known.h"

namespace sandbay::iscsi {
namespace {

// A connection on which a request stays unanswered for so long is lost.
constexpr Duration kControlTimeout = std::chrono::seconds(30);
constexpr unsigned kMaximumTextExchanges = 256;

// Drops the connection when the answer does not come in time.
struct ExchangeTimer {
  ExchangeTimer(Executor& home, InitiatorConnection& connection, TimePoint deadline)
      : home_(home), connection_(connection) {
    timer_.deadline = deadline;
    timer_.owner = this;
    timer_.fire = [](Timer& timer) {
      InitiatorConnection& late = static_cast<ExchangeTimer*>(timer.owner)->connection_;
      spawn(shut_down_on(late.executor(), late));
    };
    home_.arm(timer_);
  }
  ~ExchangeTimer() { home_.disarm(timer_); }
  ExchangeTimer(const ExchangeTimer&) = delete;
  ExchangeTimer& operator=(const ExchangeTimer&) = delete;

 private:
  static Task<void> shut_down_on(Executor& executor, InitiatorConnection& connection) {
    co_await SwitchTo(executor);
    connection.shut_down(true, "a request was not answered in time");
  }
  Executor& home_;
  InitiatorConnection& connection_;
  Timer timer_;
};

struct AwaitControl {
  InitiatorControlTask& task;
  InitiatorConnection& connection;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) {
    task.owner = handle.address();
    task.done = [](InitiatorControlTask& ended) {
      Executor::current().post(std::coroutine_handle<>::from_address(ended.owner));
    };
    connection.hand_over(task);
  }
  void await_resume() const noexcept {}
};

// Aborts a command that takes too long.
struct CommandTimer {
  CommandTimer(InitiatorSession& session, InitiatorCommand& command, Duration timeout)
      : session_(session), command_(command) {
    if (timeout.count() <= 0) return;
    timer_.deadline = session.home().now() + timeout;
    timer_.owner = this;
    timer_.fire = [](Timer& timer) {
      auto& self = *static_cast<CommandTimer*>(timer.owner);
      self.fired_ = true;
      spawn(abort_it(self.session_, self.command_, self.aborted_));
      self.aborting_ = true;
    };
    session.home().arm(timer_);
  }
  ~CommandTimer() { session_.home().disarm(timer_); }
  CommandTimer(const CommandTimer&) = delete;
  CommandTimer& operator=(const CommandTimer&) = delete;
  bool fired() const noexcept { return fired_; }
  // The abort refers to the command: it has to end first.
  Task<void> settle() {
    if (aborting_) co_await aborted_.wait();
  }

 private:
  static Task<void> abort_it(InitiatorSession& session, InitiatorCommand& command, Event& aborted) {
    co_await session.abort(command);
    aborted.set();
  }
  InitiatorSession& session_;
  InitiatorCommand& command_;
  Timer timer_;
  Event aborted_;
  bool fired_ = false;
  bool aborting_ = false;
};

}  // namespace

Task<InitiatorSession::Reply> InitiatorSessionImpl::execute(ScsiRequest request) {
  if (!gate_.enter()) {
    Reply closed;
    closed.result.error = Error::kClosed;
    closed.data_in = std::move(request.data_in);
    closed.data_out = std::move(request.data_out);
    co_return closed;
  }
  const GateHold hold(gate_);  // The timer and the end of the command still need the session.
  InitiatorCommand command;
  command.lun = request.lun;
  command.cdb = request.cdb;
  command.attribute = request.attribute;
  command.data_in = std::move(request.data_in);
  command.data_out = std::move(request.data_out);
  command.retry = request.retry;
  CommandTimer timer(*this, command, request.timeout);
  co_await AwaitCommand{*this, command};
  co_await timer.settle();
  if (timer.fired() && command.result.error == Error::kCancelled) {
    command.result.error = Error::kTimedOut;
  }
  co_return Reply{.result = command.result,
                  .data_in = std::move(command.data_in),
                  .data_out = std::move(command.data_out)};
}

// Waits for a place among the requests in flight. Each of these is answered, or ends with its
// connection when its patience does, so the wait is bounded.
Task<Error> InitiatorSessionImpl::exchange(Path& path, InitiatorControlTask& task,
                                           Duration patience) {
  co_await control_places_.take();
  const Error error = co_await exchange_in_place(path, task, patience);
  control_places_.give();
  co_return error;
}

// kReset if the connection was lost before the answer. With keep_tag the tag and the place stay the
// task's after the answer, and the next exchange with the same task uses them again.
Task<Error> InitiatorSessionImpl::exchange_in_place(Path& path, InitiatorControlTask& task,
                                                    Duration patience, bool keep_tag) {
  if (path.connection == nullptr) co_return Error::kReset;
  if (!task.keep_tag) give_tag(task);
  task.keep_tag = keep_tag;
  task.immediate = true;
  give_cmd_sn(task, path);
  ++path.in_flight;
  InitiatorConnection& connection = *path.connection;
  ++connection.tasks_here;
  const ExchangeTimer timer(home_, connection, home_.now() + patience);
  co_await AwaitControl{task, connection};
  if (task.lost) co_return Error::kReset;
  if (task.rejected) co_return Error::kInvalid;
  co_return Error::kNone;
}

// --- Task management ---------------------------------------------------------------------------

Task<Result<TaskManagementResult>> InitiatorSessionImpl::manage_on(Path& path,
                                                                   TaskManagementRequest request) {
  InitiatorControlTask task;
  request.cmd_sn = next_cmd_sn_.load(std::memory_order_relaxed);
  write_task_management_request(request, task.header);
  const Error error = co_await exchange(path, task, kControlTimeout);
  if (error != Error::kNone) co_return std::unexpected(error);
  const auto answer = parse_task_management_response(task.answer);
  if (!answer.has_value()) co_return std::unexpected(Error::kInvalid);
  co_return answer->result;
}

Task<Result<TaskManagementResult>> InitiatorSessionImpl::abort(InitiatorCommand& command) {
  command.wants_abort = true;
  if (command.queued) {
    // Waiting for the window, or for its connection's recovery.
    if (command.lost && !only_reads(command)) co_return TaskManagementResult::kTaskDoesNotExist;
    (command.lost ? lost_ : waiting_).remove(command);
    finish_later(command, Error::kCancelled);
    co_return TaskManagementResult::kFunctionComplete;
  }
  if (!gate_.enter()) co_return std::unexpected(Error::kClosed);  // It is ending already.
  const GateHold hold(gate_);
  const std::uint32_t itt = command.itt;
  co_await abort_places_.take();
  // Meanwhile it may have ended, and may even have been submitted again.
  Result<TaskManagementResult> answer = TaskManagementResult::kTaskDoesNotExist;
  if (command.itt == itt) answer = co_await abort_in_flight(&command);
  abort_places_.give();
  co_return answer;
}

Task<Result<TaskManagementResult>> InitiatorSessionImpl::abort_in_flight(
    InitiatorCommand* in_flight) {
  const InitiatorCommand& command = *in_flight;
  if (command.connection == nullptr) co_return TaskManagementResult::kTaskDoesNotExist;
  Path& path = *paths_[command.path];
  const std::uint32_t itt = command.itt;
  if (path.connection.get() != command.connection || path.connection->gone) {
    co_return TaskManagementResult::kTaskDoesNotExist;  // It comes back by itself, as lost.
  }
  InitiatorConnection& connection = *path.connection;
  // Section 11.5.1: on the connection to which the task is allegiant.
  const TaskManagementRequest request{
      .function = TaskManagementFunction::kAbortTask,
      .lun = command.lun,
      .referenced_task_tag = itt,
      .ref_cmd_sn =
          command.immediate ? next_cmd_sn_.load(std::memory_order_relaxed) : command.cmd_sn,
  };
  const Result<TaskManagementResult> answer = co_await manage_on(path, request);
  if (!answer.has_value()) co_return answer;
  // "Task does not exist" on the same connection means that its answer, if there was one, has come.
  const bool over = *answer == TaskManagementResult::kFunctionComplete ||
                    *answer == TaskManagementResult::kTaskDoesNotExist;
  if (path.connection.get() != &connection) co_return answer;
  co_await SwitchTo(connection.executor());
  if (over) {
    connection.drop_tag(itt);
  } else {
    // Its answer may never come; at ErrorRecoveryLevel 0 it ends with its connection.
    connection.shut_down(true, "the target refused to abort a command");
  }
  co_await SwitchTo(home_);
  co_return answer;
}

Task<void> InitiatorSessionImpl::drop_everywhere(std::optional<std::uint64_t> lun,
                                                 std::uint32_t before_cmd_sn) {
  for (const auto& path : paths_) {
    InitiatorConnection* connection = path->connection.get();
    if (connection == nullptr || connection->gone) continue;
    co_await SwitchTo(connection->executor());
    connection->drop_commands(lun, before_cmd_sn);
    co_await SwitchTo(home_);
  }
}

Task<Result<TaskManagementResult>> InitiatorSessionImpl::manage(
    scsi::TaskManagementRequest request) {
  if (usable_.empty() || !gate_.enter()) co_return std::unexpected(Error::kNotReady);
  const GateHold hold(gate_);
  const auto function = static_cast<TaskManagementFunction>(request.function);
  const bool one_lun = function != TaskManagementFunction::kTargetWarmReset &&
                       function != TaskManagementFunction::kTargetColdReset;
  const TaskManagementRequest pdu{
      .function = function,
      .lun = one_lun ? request.lun : 0,
      .referenced_task_tag = function == TaskManagementFunction::kAbortTask
                                 ? static_cast<std::uint32_t>(request.tag)
                                 : kReservedTag,
  };
  // A reset may reach commands that are numbered after it (section 11.5.1), and those would
  // never be answered: none is sent meanwhile.
  ++holds_;
  const std::uint32_t before = next_cmd_sn_.load(std::memory_order_relaxed);
  const Result<TaskManagementResult> answer = co_await manage_on(choose_path(), pdu);
  const bool covers_tasks = function != TaskManagementFunction::kAbortTask &&
                            function != TaskManagementFunction::kClearAca;
  if (answer.has_value() && *answer == TaskManagementResult::kFunctionComplete && covers_tasks) {
    co_await drop_everywhere(one_lun ? std::optional(request.lun) : std::nullopt, before);
  }
  --holds_;
  drain();
  co_return answer;
}

// --- NOP, text, logout -------------------------------------------------------------------------

Task<Result<std::vector<std::byte>>> InitiatorSessionImpl::ping(std::vector<std::byte> payload,
                                                                std::size_t connection) {
  if (connection >= paths_.size()) co_return std::unexpected(Error::kNotFound);
  Path& path = *paths_[connection];
  if (path.state != InitiatorConnectionState::kLoggedIn || !gate_.enter()) {
    co_return std::unexpected(Error::kNotReady);
  }
  const GateHold hold(gate_);
  if (payload.size() > path.connection->limits().send_segment_bytes) {
    co_return std::unexpected(Error::kInvalid);
  }
  InitiatorControlTask task;
  const NopOut nop{.data_segment_length = static_cast<std::uint32_t>(payload.size())};
  write_nop_out(nop, task.header);
  task.data = std::move(payload);
  const Error error = co_await exchange(path, task, options_.nop_out_timeout);
  if (error != Error::kNone) co_return std::unexpected(error);
  co_return std::move(task.answer_data);
}

Task<Result<std::string>> InitiatorSessionImpl::text_on(Path& path, std::string request) {
  InitiatorControlTask task;
  co_await control_places_.take();
  Result<std::string> answer = co_await negotiate_text(&path, &task, std::move(request));
  if (task.keep_tag) take_tag_back(task);
  control_places_.give();
  co_return answer;
}

Task<Result<std::string>> InitiatorSessionImpl::negotiate_text(Path* on, InitiatorControlTask* task,
                                                               std::string request) {
  const Path& path = *on;
  TextSplitter splitter(std::move(request));
  TextAssembler assembler;
  TextRequest pdu;
  pdu.immediate = true;
  for (unsigned count = 0; count < kMaximumTextExchanges; ++count) {
    if (path.connection == nullptr) co_return std::unexpected(Error::kReset);
    const std::string piece = splitter.take(path.connection->limits().send_segment_bytes);
    pdu.continues = !splitter.empty();
    pdu.final = !pdu.continues;
    pdu.data_segment_length = static_cast<std::uint32_t>(piece.size());
    write_text_request(pdu, task->header);
    const auto bytes = std::as_bytes(std::span(piece));
    task->data.assign(bytes.begin(), bytes.end());
    const Error error = co_await exchange_in_place(*on, *task, kControlTimeout, true);
    if (error != Error::kNone) co_return std::unexpected(error);
    const auto answer = parse_text_response(task->answer);
    const bool fits = answer.has_value() && assembler.append(task->answer_data);
    if (!fits) co_return std::unexpected(Error::kInvalid);
    if (answer->final) co_return assembler.take();
    pdu.target_transfer_tag = answer->target_transfer_tag;
    pdu.lun = answer->lun;
  }
  co_return std::unexpected(Error::kInvalid);
}

Task<Result<std::string>> InitiatorSessionImpl::text(std::string request) {
  if (usable_.empty() || !gate_.enter()) co_return std::unexpected(Error::kNotReady);
  const GateHold hold(gate_);
  co_return co_await text_on(choose_path(), std::move(request));
}

Task<Result<std::vector<DiscoveredTarget>>> InitiatorSessionImpl::send_targets(std::string which) {
  std::string request;
  append_pair(request, "SendTargets", which);
  const Result<std::string> answer = co_await text(std::move(request));
  if (!answer.has_value()) co_return std::unexpected(answer.error());
  const auto pairs = parse_text(*answer);
  if (!pairs.has_value()) co_return std::unexpected(Error::kInvalid);
  std::vector<DiscoveredTarget> targets;
  for (const KeyValue& pair : *pairs) {
    if (pair.key == "TargetName") targets.push_back({.name = pair.value});
    if (pair.key == "TargetAddress" && !targets.empty()) {
      targets.back().addresses.push_back(pair.value);
    }
  }
  co_return targets;
}

Task<Result<LogoutResult>> InitiatorSessionImpl::log_out(Path& over, LogoutReason reason,
                                                         std::uint16_t cid) {
  InitiatorControlTask task;
  const LogoutRequest request{.immediate = true, .reason = reason, .cid = cid};
  write_logout_request(request, task.header);
  const Error error = co_await exchange(over, task, options_.login_timeout);
  if (error != Error::kNone) co_return std::unexpected(error);
  const auto answer = parse_logout_response(task.answer);
  if (!answer.has_value()) co_return std::unexpected(Error::kInvalid);
  co_return answer->result;
}

// --- Keep-alive and asynchronous messages --------------------------------------------------------

Task<void> InitiatorSessionImpl::ping_path(std::uint32_t index) {
  Path& path = *paths_[index];
  path.pinging = true;
  co_await ping({}, index);
  path.pinging = false;
  gate_.leave();
}

// A connection that answered nothing since the last tick is asked whether it is there; one that
// does not answer within nop_out_timeout is lost (exchange() sees to it).
Task<void> InitiatorSessionImpl::keep_alive() {
  while (!closing_ && !dead_) {
    const bool ending = co_await closing_event_.wait_until(home_.now() + options_.nop_out_interval);
    if (ending) break;
    for (const auto& path : paths_) {
      const bool quiet = path->completions == path->completions_at_last_tick;
      path->completions_at_last_tick = path->completions;
      const bool logged_in = path->state == InitiatorConnectionState::kLoggedIn;
      if (!quiet || !logged_in || path->pinging || !gate_.enter()) continue;
      spawn(ping_path(path->index));
    }
  }
  gate_.leave();
}

void InitiatorSessionImpl::async_message(InitiatorConnection& connection, AsyncNotice notice) {
  ++counters_.async_messages;
  if (options_.on_async) options_.on_async(notice);
  Path& path = *paths_[connection.path()];
  if (closing_ || path.connection.get() != &connection) return;
  switch (notice.event) {
    case AsyncEventCode::kLogoutRequest:
      path.logout_time = std::chrono::seconds(notice.parameters[2]);
      // It may come while the login that made the connection has yet to end here.
      if (path.state == InitiatorConnectionState::kLoggedIn) begin_logout(path);
      return;
    case AsyncEventCode::kConnectionDrop:
      for (const auto& other : paths_) {
        if (other->cid == notice.parameters[0]) {
          spawn(shut_path(*other, false, "dropped by the target"));
        }
      }
      return;
    case AsyncEventCode::kSessionDrop:
      for (const auto& other : paths_) spawn(shut_path(*other, false, "dropped by the target"));
      return;
    case AsyncEventCode::kNegotiationRequest:
      if (!gate_.enter()) return;
      spawn([](InitiatorSessionImpl& self, Path& where) -> Task<void> {
        co_await self.text_on(where, {});
        self.gate_.leave();
      }(*this, path));
      return;
    default:
      return;
  }
}

void InitiatorSessionImpl::begin_logout(Path& path) {
  const Duration time = known(std::exchange(path.logout_time, std::nullopt));
  if (!gate_.enter()) return;
  set_state(path, InitiatorConnectionState::kLogoutRequested);
  spawn(answer_logout_request(path.index, time));
}

// Section 11.9.1, event 1: logs the connection out, and it is made again later. What the target has
// of it is waited for half of the time that there is, so that nothing has to be sent a second time;
// and where other connections are asked as well, they are one: the first to log out alone would
// leave a session that has no connection to use.
Task<void> InitiatorSessionImpl::answer_logout_request(std::uint32_t index, Duration time) {
  Path& path = *paths_[index];
  const TimePoint deadline = home_.now() + time / 2;
  const auto asked_and_busy = [](const auto& each) {
    return each->state == InitiatorConnectionState::kLogoutRequested && each->in_flight != 0;
  };
  bool waiting = true;
  while (waiting && !closing_ && path.state == InitiatorConnectionState::kLogoutRequested &&
         std::ranges::any_of(paths_, asked_and_busy)) {
    waiting = co_await moved_.wait_until(deadline);
  }
  co_await exclude_repair();
  if (path.state == InitiatorConnectionState::kLogoutRequested && path.connection != nullptr) {
    set_state(path, InitiatorConnectionState::kInLogout);
    co_await log_out(path, LogoutReason::kCloseConnection, path.cid);
    // Meanwhile the session may have ended, and taken it down.
    if (path.state == InitiatorConnectionState::kInLogout) {
      set_state(path, InitiatorConnectionState::kCleanupWait);
    }
    path.down_since = home_.now();
    co_await shut_path(path, false, "logged out on the target's request");
    co_await wait_until_gone(path);
  }
  repairing_ = false;
  wake_repair();
  gate_.leave();
}

}  // namespace sandbay::iscsi
