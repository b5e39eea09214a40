// Logging in, losing connections and getting them back, at ErrorRecoveryLevel 0: RFC 7143 sections
// 6.3, 7.2.1, 7.3, 11.14.
//
// The rule for commands whose connection was lost:
// 1. The target's side is cleaned up first: a Logout for the lost CID over another connection, or
//    the implicit logout of a reinstated connection or session. When that has succeeded the target
//    has ended every task of that connection: none can still take effect (section 11.14.5). A write
//    is never sent again before that, so an old copy cannot overtake what the caller does next.
// 2. Places in the CmdSN order that the target may never have received are filled with NOP-Outs
//    of the same CmdSN. The target ignores them where it had received the command
//    (section 4.2.2.1).
// 3. Commands that have the same effect however often they run (may_be_repeated) are sent again
//    as new tasks, with new tags and CmdSNs. All others, and those whose caller said so, end with
//    kReset: executed or not, nobody can tell. Between the lost task and the new one another
//    initiator may have written the same blocks; whoever shares a logical unit without
//    reservations and cannot bear that clears InitiatorCommand::retry.
// Whoever gives a command up does not shorten this: it ends after step 1, so that what its caller
// does next comes later at the target, too. Only what changes nothing wherever it still is
// (only_reads) ends at once.
#include <algorithm>
#include <cassert>
#include <vector>

#include "iscsi/initiator_crossing.h"
#include "iscsi/initiator_session.h"

namespace sandbay::iscsi {

bool may_be_repeated(std::uint8_t operation_code, std::uint8_t service_action) {
  switch (operation_code) {
    case 0x00:  // TEST UNIT READY
    case 0x03:  // REQUEST SENSE
    case 0x08:  // READ (6)
    case 0x0A:  // WRITE (6)
    case 0x12:  // INQUIRY
    case 0x1A:  // MODE SENSE (6)
    case 0x25:  // READ CAPACITY (10)
    case 0x28:  // READ (10)
    case 0x2A:  // WRITE (10)
    case 0x2E:  // WRITE AND VERIFY (10)
    case 0x2F:  // VERIFY (10)
    case 0x34:  // PRE-FETCH (10)
    case 0x35:  // SYNCHRONIZE CACHE (10)
    case 0x41:  // WRITE SAME (10)
    case 0x42:  // UNMAP
    case 0x4D:  // LOG SENSE
    case 0x5A:  // MODE SENSE (10)
    case 0x5E:  // PERSISTENT RESERVE IN
    case 0x88:  // READ (16)
    case 0x8A:  // WRITE (16)
    case 0x8E:  // WRITE AND VERIFY (16)
    case 0x8F:  // VERIFY (16)
    case 0x90:  // PRE-FETCH (16)
    case 0x91:  // SYNCHRONIZE CACHE (16)
    case 0x93:  // WRITE SAME (16)
    case 0xA0:  // REPORT LUNS
    case 0xA8:  // READ (12)
    case 0xAA:  // WRITE (12)
    case 0xAE:  // WRITE AND VERIFY (12)
    case 0xAF:  // VERIFY (12)
      return true;
    case 0x9E:  // READ CAPACITY (16), GET LBA STATUS
      return service_action == 0x10 || service_action == 0x12;
    case 0xA3:  // Reports of the MAINTENANCE IN group
      return true;
    default:
      return false;
  }
}

bool only_reads(const InitiatorCommand& command) noexcept {
  return !command.data_in.empty() || command.cdb[0] == std::byte{0x00};  // TEST UNIT READY
}

bool wants_repetition(const InitiatorCommand& command) noexcept {
  return command.retry && may_be_repeated(std::to_integer<std::uint8_t>(command.cdb[0]),
                                          std::to_integer<std::uint8_t>(command.cdb[1]) & 0x1F);
}

namespace {

InitiatorTransferLimits limits_of(const NegotiatedParameters& parameters) {
  return {
      .header_digest = parameters.connection.header_digest,
      .data_digest = parameters.connection.data_digest,
      .receive_segment_bytes = parameters.connection.initiator_max_recv_data_segment_length,
      .send_segment_bytes = parameters.connection.target_max_recv_data_segment_length,
      .burst_bytes = parameters.session.max_burst_length,
      .first_burst_bytes = parameters.session.first_burst_length,
      .initial_r2t = parameters.session.initial_r2t,
      .immediate_data = parameters.session.immediate_data,
      .data_pdu_in_order = parameters.session.data_pdu_in_order,
      .data_sequence_in_order = parameters.session.data_sequence_in_order,
  };
}

// Streams are closed where they live.
Task<void> discard(Executor& executor, std::unique_ptr<Stream> stream) {
  Executor& origin = Executor::current();
  co_await SwitchTo(executor);
  stream.reset();
  co_await SwitchTo(origin);
}

}  // namespace

Task<std::expected<InitiatorLoginResult, LoginFailure>> InitiatorSessionImpl::log_in(Path& path,
                                                                                     bool leading) {
  InitiatorLoginRequest request{
      .endpoint = path.endpoint,
      .initiator_name = options_.initiator_name,
      .initiator_alias = options_.initiator_alias,
      .target_name = options_.target_name,
      .chap = options_.chap,
      .mutual_chap = options_.mutual_chap,
      .chap_digests = options_.chap_digests,
      .isid = options_.isid,
      .tsih = leading ? std::uint16_t{0} : tsih_,
      .cid = path.cid,
      .cmd_sn = leading ? options_.first_cmd_sn : next_cmd_sn_.load(std::memory_order_relaxed),
      .exp_stat_sn = path.exp_stat_sn,
      .keys = options_.keys,
      .timeout = options_.login_timeout,
  };
  for (const auto& [key, value] : path.options.keys) request.keys[key] = value;
  if (!leading) request.current.session = parameters_.session;
  if (leading) request.keys.try_emplace("MaxConnections", std::to_string(options_.connections));
  co_return co_await invoke_on(*path.executor, initiator_login(std::move(request)));
}

// Makes a connection of a stream that has logged in. Not called while the path has one.
Task<Error> InitiatorSessionImpl::adopt(Path& path, InitiatorLoginResult result) {
  assert(path.connection == nullptr && path.in_flight == 0);
  path.parameters = result.parameters;
  path.logout_time.reset();
  path.connection = std::make_unique<InitiatorConnection>(InitiatorConnection::Place{
      .events = *this,
      .session_home = home_,
      .executor = *path.executor,
      .next_cmd_sn = next_cmd_sn_,
      .cid = path.cid,
      .path = path.index,
      .slot_mask = slot_mask_,
      .receive_buffer_bytes = options_.receive_buffer_bytes,
  });
  InitiatorConnection::Opening opening{
      .stream = std::move(result.stream),
      .limits = limits_of(result.parameters),
      .exp_stat_sn = result.numbers.stat_sn + 1,
      .rest = std::move(result.rest),
      .misbehaviour = path.options.misbehaviour,
      .pdus_before = path.pdus_before,
      .interferences = options_.interferences,
      .facts = {.tsih = tsih_,
                .cid = path.cid,
                .initiator_name = options_.initiator_name,
                .portal = options_.interferences == nullptr ? "" : path.endpoint.to_string(),
                .at_initiator = true},
  };
  window_moved(result.numbers.exp_cmd_sn, result.numbers.max_cmd_sn);
  co_await SwitchTo(*path.executor);
  const Error error = path.connection->open(std::move(opening));
  co_await SwitchTo(home_);
  if (error != Error::kNone) {
    path.connection.reset();
    co_return error;
  }
  co_return Error::kNone;
}

void InitiatorSessionImpl::begin_session(const InitiatorLoginResult& result) {
  tsih_ = result.tsih;
  parameters_ = result.parameters;
  next_cmd_sn_.store(options_.first_cmd_sn, std::memory_order_relaxed);
  exp_cmd_sn_ = options_.first_cmd_sn;
  max_cmd_sn_ = options_.first_cmd_sn - 1;
  if (state_ == InitiatorSessionState::kFailed) {
    transition(state_, InitiatorSessionState::kFree);  // N6: reinstatement cleared the old one.
  }
  if (state_ == InitiatorSessionState::kFree) transition(state_, InitiatorSessionState::kLoggedIn);
}

Task<LoginFailure> InitiatorSessionImpl::log_in_path(Path& path, bool leading) {
  set_state(path, InitiatorConnectionState::kTransportWait);
  auto result = co_await log_in(path, leading);
  LoginFailure failure;
  if (!result.has_value()) {
    failure = result.error();
  } else if (closing_) {
    co_await discard(*path.executor, std::move(result->stream));
    failure = {.error = Error::kClosed, .message = "the session was closed"};
  } else {
    if (leading) begin_session(*result);
    failure.error = co_await adopt(path, std::move(*result));
    if (failure.error != Error::kNone) failure.message = "no memory for a receive buffer";
  }
  if (failure.error != Error::kNone) {
    set_state(path, InitiatorConnectionState::kFree);
    co_return failure;
  }
  set_state(path, InitiatorConnectionState::kInLogin);
  set_state(path, InitiatorConnectionState::kLoggedIn);
  if (path.connection->gone) {
    path_lost(path);
    wake_repair();
  }
  drain();
  co_return failure;
}

// --- Repair ------------------------------------------------------------------------------------

void InitiatorSessionImpl::wake_repair() {
  moved_.notify_all();
  if (repairing_ || closing_ || dead_ || !gate_.enter()) return;
  repairing_ = true;
  spawn(repair());
}

// One coroutine at a time changes which connections there are; this waits until it is the caller.
Task<void> InitiatorSessionImpl::exclude_repair() {
  while (repairing_) co_await moved_.wait();
  repairing_ = true;
}

Task<void> InitiatorSessionImpl::repair() {
  co_await home_.yield();
  bool more = true;
  while (more && !closing_ && !dead_) more = co_await repair_step();
  repairing_ = false;
  moved_.notify_all();
  gate_.leave();
}

Task<void> InitiatorSessionImpl::shut_path(Path& path, bool reset, const char* why) {
  InitiatorConnection* connection = path.connection.get();
  if (connection == nullptr || connection->gone) co_return;
  co_await SwitchTo(connection->executor());
  connection->shut_down(reset, why);
  co_await SwitchTo(home_);
}

// Ends when the path has no connection any more. Messages to it that are under way arrive before
// the round trip through its executor ends.
Task<void> InitiatorSessionImpl::wait_until_gone(Path& path) {
  while (path.connection != nullptr &&
         (!path.connection->gone || path.connection->tasks_here != 0)) {
    co_await moved_.wait();
  }
  if (path.connection == nullptr) co_return;
  co_await SwitchTo(*path.executor);
  co_await SwitchTo(home_);
  path.connection.reset();
  path.in_flight = 0;
}

// Step 1 of the rule above for one path, and step 2. False: it has to be looked at again.
Task<bool> InitiatorSessionImpl::clean_up(Path& path) {
  assert(path.connection == nullptr && !usable_.empty());
  Path& over = *usable_.front();
  const Result<LogoutResult> answer =
      co_await log_out(over, LogoutReason::kCloseConnection, path.cid);
  if (closing_) co_return false;
  const bool clean = answer.has_value() &&
                     (*answer == LogoutResult::kClosed || *answer == LogoutResult::kCidNotFound);
  if (!clean) {
    // Refused by a living target: only a new session can tell what became of the tasks.
    if (answer.has_value() || answer.error() == Error::kInvalid) relogin_wanted_ = true;
    co_return false;
  }
  set_state(path, InitiatorConnectionState::kFree);
  plug_holes(path);
  co_return true;
}

void InitiatorSessionImpl::plug_holes(const Path& path) {
  // One that is asked to log out does, too: it is still heard, and nobody else would fill them.
  const auto asked = [](const auto& each) {
    return each->state == InitiatorConnectionState::kLogoutRequested;
  };
  const auto leaving = std::ranges::find_if(paths_, asked);
  if (usable_.empty() && leaving == paths_.end()) return;
  const Path& filling = usable_.empty() ? **leaving : *usable_.front();
  InitiatorConnection* over = filling.connection.get();
  const std::uint32_t next = next_cmd_sn_.load(std::memory_order_relaxed);
  for (std::uint32_t cmd_sn = exp_cmd_sn_; cmd_sn != next; ++cmd_sn) {
    std::uint8_t& sent_on = sequence_path_[cmd_sn % kSequenceRing];
    if (sent_on != path.index) continue;
    sent_on = static_cast<std::uint8_t>(filling.index);
    if (&over->executor() == &home_) {
      over->plug(cmd_sn);
    } else {
      call_on(over->executor(), [over, cmd_sn] { over->plug(cmd_sn); });
    }
  }
}

// Step 3, for every command whose connection has been cleaned up.
void InitiatorSessionImpl::settle_lost() {
  using enum InitiatorConnectionState;
  std::vector<InitiatorCommand*> again;
  InitiatorTaskQueue later;
  while (!lost_.empty()) {
    auto& command = static_cast<InitiatorCommand&>(*lost_.pop_front());
    const InitiatorConnectionState state = paths_[command.path]->state;
    if (closing_) {
      finish_later(command, Error::kClosed);
    } else if (state == kCleanupWait || state == kInLogout) {
      later.push_back(command);
    } else if (command.wants_abort) {
      finish_later(command, Error::kCancelled);
    } else if (!wants_repetition(command) || ++command.retries > kMaximumRetries) {
      finish_later(command, Error::kReset);
    } else {
      again.push_back(&command);
    }
  }
  lost_ = later;
  // In their old order, before what has not been sent yet.
  std::ranges::sort(again, [](const InitiatorCommand* a, const InitiatorCommand* b) {
    return serial_less(b->cmd_sn, a->cmd_sn);
  });
  for (InitiatorCommand* command : again) {
    ++counters_.commands_retried;
    command->lost = false;
    command->result.error = Error::kNone;
    command->result.sense_bytes = 0;
    waiting_.push_front(*command);
  }
  drain();
}

// True: there is more to do.
Task<bool> InitiatorSessionImpl::repair_step() {
  using enum InitiatorConnectionState;
  for (const auto& path : paths_) {
    if (path->state != kCleanupWait) continue;
    co_await shut_path(*path, true, "lost");
    co_await wait_until_gone(*path);
    if (closing_) co_return false;
  }
  // Those that are asked to log out end what they have, and wake this when they have done it.
  const auto asked = [](const auto& path) { return path->state == kLogoutRequested; };
  if (usable_.empty() && !relogin_wanted_ && std::ranges::any_of(paths_, asked)) co_return false;
  if (usable_.empty() || relogin_wanted_) co_return co_await log_in_again();
  for (const auto& path : paths_) {
    if (path->state != kCleanupWait) continue;
    if (path->connection != nullptr || usable_.empty()) co_return true;
    const bool clean = co_await clean_up(*path);
    if (!clean) co_return !closing_;
  }
  settle_lost();

  bool missing = false;
  for (const auto& path : paths_) {
    const bool room = usable_.size() < parameters_.session.max_connections;
    if (path->state != kFree || !path->wanted || !room) continue;
    if (!options_.reconnect || home_.now() - path->down_since > options_.recovery_timeout) {
      path->wanted = false;
      continue;
    }
    const LoginFailure failure = co_await log_in_path(*path, false);
    if (closing_) co_return false;
    missing = missing || failure.error != Error::kNone;
  }
  const auto needs_cleaning = [](const auto& path) { return path->state == kCleanupWait; };
  if (std::ranges::any_of(paths_, needs_cleaning) || usable_.empty()) co_return true;
  if (missing) co_await closing_event_.wait_until(home_.now() + options_.reconnect_delay);
  co_return missing || !lost_.empty();
}

// Session recovery: a new session with the same ISID, which ends the old one at the target.
Task<bool> InitiatorSessionImpl::log_in_again() {
  using enum InitiatorConnectionState;
  relogin_wanted_ = false;
  co_await take_down(true, "session recovery");
  if (state_ == InitiatorSessionState::kLoggedIn)
    transition(state_, InitiatorSessionState::kFailed);
  const TimePoint deadline = home_.now() + options_.recovery_timeout;
  while (!closing_ && options_.reconnect) {
    for (const auto& path : paths_) {
      if (!path->wanted || path->state != kFree) continue;
      const LoginFailure failure = co_await log_in_path(*path, true);
      if (closing_) co_return false;
      if (failure.error != Error::kNone) continue;
      ++counters_.sessions_recovered;
      for (const auto& other : paths_) other->down_since = home_.now();
      settle_lost();
      co_return true;
    }
    if (home_.now() >= deadline) break;
    co_await closing_event_.wait_until(home_.now() + options_.reconnect_delay);
  }
  if (!closing_) give_up(Error::kReset);
  co_return false;
}

// Ends every connection and leaves every path free.
Task<void> InitiatorSessionImpl::take_down(bool reset, const char* why) {
  using enum InitiatorConnectionState;
  for (const auto& path : paths_) {
    if (path->state == kLoggedIn || path->state == kLogoutRequested) {
      set_state(*path, kCleanupWait);
    }
    co_await shut_path(*path, reset, why);
  }
  for (const auto& path : paths_) {
    co_await wait_until_gone(*path);
    if (path->state == kCleanupWait || path->state == kInLogout) set_state(*path, kFree);
  }
}

void InitiatorSessionImpl::give_up(Error error) {
  dead_ = true;
  fail_all(error);
  moved_.notify_all();
}

void InitiatorSessionImpl::fail_all(Error error) {
  while (InitiatorTask* task = waiting_.pop_front()) {
    finish_later(static_cast<InitiatorCommand&>(*task), error);
  }
  while (InitiatorTask* task = lost_.pop_front()) {
    finish_later(static_cast<InitiatorCommand&>(*task), error);
  }
}

}  // namespace sandbay::iscsi
