// The initiator's session when things go wrong, against a scripted target: lost connections at
// ErrorRecoveryLevel 0, Reject, task management, asynchronous messages, text. RFC 7143 sections
// 4.2.3, 6.3, 7.2, 7.3, 11.5, 11.9, 11.10, 11.14.
#include <catch2/catch.hpp>

#include "scripted_target.h"

namespace sandbay::iscsi {
bool may_be_repeated(std::uint8_t operation_code, std::uint8_t service_action);
}

namespace sandbay::iscsi::test {
namespace {

ScsiRequest request_of(std::uint8_t opcode) {
  ScsiRequest request;
  request.cdb[0] = static_cast<std::byte>(opcode);
  return request;
}

Task<void> answer_logout(ScriptedConnection& connection, const ScriptedPdu& pdu,
                         LogoutResult result = LogoutResult::kClosed) {
  Bhs bhs;
  write_logout_response({.result = result,
                         .initiator_task_tag = initiator_task_tag(pdu.bhs),
                         .numbers = connection.numbers()},
                        bhs);
  co_await connection.send(bhs);
}

Task<void> answer_management(ScriptedConnection& connection, const ScriptedPdu& pdu,
                             TaskManagementResult result) {
  Bhs bhs;
  write_task_management_response({.result = result,
                                  .initiator_task_tag = initiator_task_tag(pdu.bhs),
                                  .numbers = connection.numbers()},
                                 bhs);
  co_await connection.send(bhs);
}

// Commands 1 and 3 go to the connection that dies, 2 to the other; none was acknowledged.
Task<void> one_of_two_dies() {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  options.connections = 2;
  options.keys["MaxConnections"] = "2";
  co_await scripted.log_in(options);
  ScriptedConnection& dying = *scripted.connections[0];
  ScriptedConnection& living = *scripted.connections[1];
  CHECK(scripted.session->connections_up() == 2);
  CHECK(living.first_login.tsih == 7);
  CHECK(living.first_login.cid == 1);
  auto write = PendingCommand::start(*scripted.session, write_request(512));
  auto other = PendingCommand::start(*scripted.session, request_of(0x00));
  auto once = PendingCommand::start(*scripted.session, request_of(0x89));
  ScriptedPdu first = co_await dying.next();
  ScriptedPdu third = co_await dying.next();
  ScriptedPdu second = co_await living.next();
  CHECK(cmd_sn_of(first.bhs) == 1);
  CHECK(cmd_sn_of(second.bhs) == 2);
  CHECK(cmd_sn_of(third.bhs) == 3);
  dying.reset();

  // First the target's side is cleaned up …
  ScriptedPdu pdu = co_await living.next();
  const auto logout = parse_logout_request(pdu.bhs);
  CHECK(pdu.opcode() == Opcode::kLogoutRequest);
  CHECK(logout->immediate);
  CHECK(logout->reason == LogoutReason::kCloseConnection);
  CHECK(logout->cid == 0);
  CHECK_FALSE(once->done.is_set());
  living.exp_cmd_sn = 1;
  co_await answer_logout(living, pdu);
  // … then the CmdSNs that it may not have are filled …
  for (const std::uint32_t missing : {1U, 3U}) {
    pdu = co_await living.next();
    CHECK(pdu.opcode() == Opcode::kNopOut);
    CHECK_FALSE(is_immediate(pdu.bhs));
    CHECK(cmd_sn_of(pdu.bhs) == missing);
    CHECK(initiator_task_tag(pdu.bhs) != kReservedTag);
  }
  // … and what may be repeated is a new task.
  pdu = co_await living.next();
  CHECK(pdu.opcode() == Opcode::kScsiCommand);
  CHECK(cmd_sn_of(pdu.bhs) == 4);
  CHECK(initiator_task_tag(pdu.bhs) != initiator_task_tag(first.bhs));
  CHECK(pdu.data == first.data);
  co_await once->done.wait();
  CHECK(once->reply.result.error == Error::kReset);
  living.exp_cmd_sn = 5;
  co_await living.answer_command(second);
  living.exp_cmd_sn = 5;
  co_await living.answer_command(pdu);
  co_await write->done.wait();
  co_await other->done.wait();
  CHECK(write->reply.result.good());
  CHECK(other->reply.result.good());
  CHECK(scripted.session->connections_up() == 1);
  CHECK(scripted.session->counters().commands_retried == 1);
  CHECK(scripted.session->counters().sessions_recovered == 0);
  std::swap(scripted.connections[0], scripted.connections[1]);
  co_await scripted.close();
}

// Given up after its connection was lost, or before with nobody answering: a write ends when the
// target has ended it, so that it overtakes nothing its caller does then. A read ends at once.
Task<void> given_up_while_lost(bool before_the_loss) {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  options.connections = 2;
  options.keys["MaxConnections"] = "2";
  co_await scripted.log_in(options);
  ScriptedConnection& dying = *scripted.connections[0];
  ScriptedConnection& living = *scripted.connections[1];
  ScsiRequest write = write_request(512);
  write.timeout = std::chrono::seconds(2);
  ScsiRequest read = read_request(512);
  read.timeout = std::chrono::seconds(2);
  auto writing = PendingCommand::start(*scripted.session, std::move(write));
  auto other = PendingCommand::start(*scripted.session, request_of(0x00));
  auto reading = PendingCommand::start(*scripted.session, std::move(read));
  co_await dying.next();
  co_await dying.next();
  const ScriptedPdu living_command = co_await living.next();
  living.exp_cmd_sn = 4;
  co_await living.answer_command(living_command);
  if (before_the_loss) co_await Executor::current().sleep_for(std::chrono::seconds(3));
  dying.reset();
  const ScriptedPdu logout = co_await living.next();
  CHECK(logout.opcode() == Opcode::kLogoutRequest);
  co_await Executor::current().sleep_for(std::chrono::seconds(5));
  CHECK(reading->done.is_set());
  CHECK_FALSE(writing->done.is_set());
  co_await answer_logout(living, logout);
  co_await writing->done.wait();
  co_await reading->done.wait();
  co_await other->done.wait();
  CHECK(writing->reply.result.error == Error::kTimedOut);
  CHECK(writing->reply.data_out.byte_count() == 512);
  CHECK(reading->reply.result.error == Error::kTimedOut);
  CHECK(scripted.session->counters().commands_retried == 0);
  std::swap(scripted.connections[0], scripted.connections[1]);
  co_await scripted.close();
}
Task<void> given_up_after_the_loss() { return given_up_while_lost(false); }
Task<void> given_up_before_the_loss() { return given_up_while_lost(true); }

// A logout that the target refuses leaves only a new session.
Task<void> cleanup_refused() {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  options.connections = 2;
  options.reconnect = true;
  options.keys["MaxConnections"] = "2";
  co_await scripted.log_in(options);
  auto read = PendingCommand::start(*scripted.session, request_of(0x00));
  co_await scripted.connections[0]->next();
  scripted.connections[0]->reset();
  ScriptedPdu pdu = co_await scripted.connections[1]->next();
  co_await answer_logout(*scripted.connections[1], pdu, LogoutResult::kCleanupFailed);
  pdu = co_await scripted.connections[1]->next();
  CHECK(pdu.closed);
  std::unique_ptr<ScriptedConnection> again = co_await scripted.target.accept();
  co_await again->log_in({.answers = {{"MaxConnections", "1"}}, .tsih = 8});
  CHECK(again->first_login.tsih == 0);
  CHECK(again->first_login.isid == scripted.session->isid());
  pdu = co_await again->next();
  CHECK(cmd_sn_of(pdu.bhs) == 1);
  co_await again->answer_command(pdu);
  co_await read->done.wait();
  CHECK(read->reply.result.good());
  CHECK(scripted.session->tsih() == 8);
  CHECK(scripted.session->counters().sessions_recovered == 1);
  scripted.connections.clear();
  scripted.connections.push_back(std::move(again));
  co_await scripted.close();
}

Task<void> the_only_one_dies() {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  options.reconnect = true;
  co_await scripted.log_in(options);
  auto write = PendingCommand::start(*scripted.session, write_request(512));
  const ScriptedPdu before = co_await scripted.connections[0]->next();
  scripted.connections[0]->reset();
  // Somebody who refuses twice is asked again.
  for (int count = 0; count < 2; ++count) {
    const std::unique_ptr<ScriptedConnection> refusing = co_await scripted.target.accept();
    const ScriptedPdu login = co_await refusing->next();
    co_await refusing->respond(parse_login_request(login.bhs), LoginStatus::kServiceUnavailable, "",
                               0);
  }
  std::unique_ptr<ScriptedConnection> again = co_await scripted.target.accept();
  co_await again->log_in({.tsih = 9});
  const ScriptedPdu after = co_await again->next();
  CHECK(after.data == before.data);
  co_await again->answer_command(after);
  co_await write->done.wait();
  CHECK(write->reply.result.good());
  CHECK(scripted.session->session_state() == "Q3:LOGGED_IN");
  scripted.connections[0] = std::move(again);
  co_await scripted.close();
}

Task<void> nobody_comes_back() {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  options.reconnect = true;
  options.recovery_timeout = std::chrono::seconds(4);
  options.login_timeout = std::chrono::seconds(1);
  co_await scripted.log_in(options);
  auto write = PendingCommand::start(*scripted.session, write_request(512));
  const TimePoint start = Executor::current().now();
  scripted.connections[0]->reset();
  co_await write->done.wait();
  CHECK(write->reply.result.error == Error::kReset);
  CHECK(Executor::current().now() - start < std::chrono::seconds(7));
  const InitiatorSession::Reply late = co_await scripted.session->execute(request_of(0));
  CHECK(late.result.error == Error::kClosed);
  CHECK(scripted.session->session_state() == "Q4:FAILED");
  scripted.connections.clear();
  co_await scripted.close();
}

Task<void> command_rejected() {
  ScriptedSession scripted;
  co_await scripted.log_in(ScriptedSession::defaults());
  ScriptedConnection& connection = *scripted.connections[0];
  auto pending = PendingCommand::start(*scripted.session, request_of(0x00));
  ScriptedPdu pdu = co_await connection.next();
  Bhs bhs;
  write_reject({.reason = RejectReason::kInvalidPduField,
                .data_segment_length = kBhsBytes,
                .numbers = connection.numbers()},
               bhs);
  co_await connection.send(bhs, {pdu.bhs.begin(), pdu.bhs.end()});
  co_await pending->done.wait();
  CHECK(pending->reply.result.error == Error::kInvalid);
  // Section 7.3: the gap is filled.
  pdu = co_await connection.next();
  CHECK(pdu.opcode() == Opcode::kNopOut);
  CHECK(cmd_sn_of(pdu.bhs) == 1);
  CHECK_FALSE(is_immediate(pdu.bhs));
  co_await scripted.close();
}

// A command that takes too long is aborted; what the target still sends for it is ignored.
Task<void> command_times_out() {
  ScriptedSession scripted;
  co_await scripted.log_in(ScriptedSession::defaults());
  ScriptedConnection& connection = *scripted.connections[0];
  ScsiRequest request = read_request(512);
  request.lun = 0x0005'0000'0000'0000U;
  request.timeout = std::chrono::seconds(2);
  auto pending = PendingCommand::start(*scripted.session, std::move(request));
  const ScriptedPdu command = co_await connection.next();
  connection.exp_cmd_sn = 2;
  const ScriptedPdu pdu = co_await connection.next();
  CHECK(pdu.opcode() == Opcode::kTaskManagementRequest);
  const auto management = parse_task_management_request(pdu.bhs);
  CHECK(management->immediate);
  CHECK(management->function == TaskManagementFunction::kAbortTask);
  CHECK(management->lun == 0x0005'0000'0000'0000U);
  CHECK(management->referenced_task_tag == initiator_task_tag(command.bhs));
  CHECK(management->ref_cmd_sn == 1);
  CHECK(management->cmd_sn == 2);
  co_await answer_management(connection, pdu, TaskManagementResult::kFunctionComplete);
  co_await pending->done.wait();
  CHECK(pending->reply.result.error == Error::kTimedOut);
  DataIn late{.data_segment_length = 512,
              .initiator_task_tag = initiator_task_tag(command.bhs),
              .numbers = connection.numbers_without_status()};
  Bhs bhs;
  write_data_in(late, bhs);
  co_await connection.send(bhs, std::vector<std::byte>(512));
  auto next = PendingCommand::start(*scripted.session, request_of(0x00));
  const ScriptedPdu after = co_await connection.next();
  co_await connection.answer_command(after);
  co_await next->done.wait();
  CHECK(next->reply.result.good());
  co_await scripted.close();
}

Task<void> manage_into(InitiatorSession& session, scsi::TaskManagementRequest request,
                       Result<TaskManagementResult>& answer, Event& done) {
  answer = co_await session.manage(request);
  done.set();
}

Task<void> reset_the_unit() {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  options.connections = 2;
  options.keys["MaxConnections"] = "2";
  co_await scripted.log_in(options);
  ScsiRequest elsewhere = request_of(0x00);
  elsewhere.lun = 0x0001'0000'0000'0000U;
  auto first = PendingCommand::start(*scripted.session, write_request(512));
  auto second = PendingCommand::start(*scripted.session, read_request(512));
  auto third = PendingCommand::start(*scripted.session, std::move(elsewhere));
  co_await scripted.connections[0]->next();
  const ScriptedPdu other_unit = co_await scripted.connections[0]->next();
  co_await scripted.connections[1]->next();
  Result<TaskManagementResult> answer = std::unexpected(Error::kNone);
  Event done;
  using Function = scsi::TaskManagementFunction;
  spawn(manage_into(*scripted.session, {.function = Function::kLogicalUnitReset}, answer, done));
  // Held until the reset is over.
  auto later = PendingCommand::start(*scripted.session, request_of(0x00));
  ScriptedPdu pdu = co_await scripted.connections[1]->next();
  CHECK(pdu.opcode() == Opcode::kTaskManagementRequest);
  co_await answer_management(*scripted.connections[1], pdu,
                             TaskManagementResult::kFunctionComplete);
  co_await done.wait();
  CHECK(answer == TaskManagementResult::kFunctionComplete);
  co_await first->done.wait();
  co_await second->done.wait();
  CHECK(first->reply.result.error == Error::kCancelled);
  CHECK(second->reply.result.error == Error::kCancelled);
  CHECK_FALSE(third->done.is_set());
  ScriptedConnection& carrier = *scripted.connections[0];
  pdu = co_await carrier.next();
  co_await carrier.answer_command(pdu);
  carrier.exp_cmd_sn = 5;
  co_await carrier.answer_command(other_unit);
  co_await third->done.wait();
  co_await later->done.wait();
  CHECK(third->reply.result.good());
  CHECK(later->reply.result.good());
  co_await scripted.close();
}

Task<void> logout_requested() {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  options.reconnect = true;
  std::vector<AsyncNotice> notices;
  options.on_async = [&notices](const AsyncNotice& notice) { notices.push_back(notice); };
  co_await scripted.log_in(options);
  ScriptedConnection& connection = *scripted.connections[0];
  Bhs bhs;
  write_async_message(
      {.numbers = connection.numbers(), .event = AsyncEventCode::kLogoutRequest, .parameter3 = 10},
      bhs);
  co_await connection.send(bhs);
  const ScriptedPdu pdu = co_await connection.next();
  CHECK(pdu.opcode() == Opcode::kLogoutRequest);
  CHECK(parse_logout_request(pdu.bhs)->reason == LogoutReason::kCloseConnection);
  co_await answer_logout(connection, pdu);
  std::unique_ptr<ScriptedConnection> again = co_await scripted.target.accept();
  co_await again->log_in();
  auto next = PendingCommand::start(*scripted.session, request_of(0x00));
  const ScriptedPdu command = co_await again->next();
  co_await again->answer_command(command);
  co_await next->done.wait();
  CHECK(next->reply.result.good());
  CHECK(notices.size() == 1);
  CHECK(notices.front().event == AsyncEventCode::kLogoutRequest);
  CHECK(notices.front().parameters[2] == 10);
  scripted.connections[0] = std::move(again);
  co_await scripted.close();
}

Task<void> discover_into(InitiatorSession& session, Result<std::vector<DiscoveredTarget>>& found,
                         Event& done) {
  found = co_await session.send_targets();
  done.set();
}

// The answer comes in three PDUs under one tag.
Task<void> long_discovery() {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  options.target_name.clear();
  co_await scripted.log_in(options);
  ScriptedConnection& connection = *scripted.connections[0];
  CHECK(connection.login_text.find("SessionType=Discovery") != std::string::npos);
  Result<std::vector<DiscoveredTarget>> found = std::unexpected(Error::kNone);
  Event done;
  spawn(discover_into(*scripted.session, found, done));
  const std::string pieces[] = {
      std::string("TargetName=iqn.a:one\0TargetAdd", 30),
      std::string("ress=192.0.2.1:3260,1\0TargetAddress=[2001:db8::1]:3260,2\0", 57),
      std::string("TargetName=iqn.a:two\0", 21)};
  std::uint32_t tag = 0;
  for (std::size_t index = 0; index < 3; ++index) {
    const ScriptedPdu pdu = co_await connection.next();
    const auto request = parse_text_request(pdu.bhs);
    CHECK(pdu.opcode() == Opcode::kTextRequest);
    CHECK(request->final);
    if (index == 0) {
      CHECK(pdu.text() == std::string("SendTargets=All\0", 16));
      CHECK(request->target_transfer_tag == kReservedTag);
      tag = request->initiator_task_tag;
    } else {
      CHECK(pdu.data.empty());
      CHECK(request->target_transfer_tag == 0x70 + index - 1);
      CHECK(request->initiator_task_tag == tag);
    }
    const bool last = index == 2;
    Bhs bhs;
    write_text_response(
        {.final = last,
         .continues = !last,
         .data_segment_length = static_cast<std::uint32_t>(pieces[index].size()),
         .initiator_task_tag = tag,
         .target_transfer_tag = last ? kReservedTag : static_cast<std::uint32_t>(0x70 + index),
         .numbers = connection.numbers()},
        bhs);
    const auto bytes = std::as_bytes(std::span(pieces[index]));
    co_await connection.send(bhs, {bytes.begin(), bytes.end()});
  }
  co_await done.wait();
  CHECK(found.has_value());
  if (found.has_value()) {
    CHECK(found->size() == 2);
    CHECK(found->at(0).name == "iqn.a:one");
    CHECK(found->at(0).addresses ==
          std::vector<std::string>{"192.0.2.1:3260,1", "[2001:db8::1]:3260,2"});
    CHECK(found->at(1).name == "iqn.a:two");
    CHECK(found->at(1).addresses.empty());
  }
  co_await scripted.close();
}

Task<void> close_with_commands_in_flight() {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  options.queue_depth = 2;
  co_await scripted.log_in(options);
  std::vector<std::shared_ptr<PendingCommand>> pending;
  for (int count = 0; count < 4; ++count) {
    pending.push_back(PendingCommand::start(*scripted.session, write_request(512)));
  }
  co_await scripted.connections[0]->next();
  co_await scripted.close();
  for (const auto& one : pending) {
    co_await one->done.wait();
    CHECK(one->reply.result.error == Error::kClosed);
    CHECK(one->reply.data_out.byte_count() == 512);
  }
}

}  // namespace

TEST_CASE("A lost connection: clean up, fill the CmdSNs, send again", "[initiator][recovery]") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) in_world(one_of_two_dies, seed);
}
TEST_CASE("A write that was given up ends when the target has ended it", "[initiator][recovery]") {
  in_world(given_up_after_the_loss);
  in_world(given_up_before_the_loss);
}
TEST_CASE("A target that cannot clean up gets a new session", "[initiator][recovery]") {
  in_world(cleanup_refused);
}
TEST_CASE("The only connection lost: the session is reinstated", "[initiator][recovery]") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) in_world(the_only_one_dies, seed);
}
TEST_CASE("A target that stays away: commands fail in time", "[initiator][recovery]") {
  in_world(nobody_comes_back);
}
TEST_CASE("A rejected command ends, and its CmdSN is filled", "[initiator][recovery]") {
  in_world(command_rejected);
}
TEST_CASE("A command that takes too long is aborted", "[initiator][tmf]") {
  in_world(command_times_out);
}
TEST_CASE("LOGICAL UNIT RESET ends the unit's commands on every connection", "[initiator][tmf]") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) in_world(reset_the_unit, seed);
}
TEST_CASE("The target asks for a logout: the session comes back", "[initiator][async]") {
  in_world(logout_requested);
}
TEST_CASE("SendTargets over several PDUs", "[initiator][text]") { in_world(long_discovery); }
TEST_CASE("Closing ends commands in flight and waiting", "[initiator]") {
  in_world(close_with_commands_in_flight);
}

TEST_CASE("What may be sent twice", "[initiator][recovery]") {
  for (const int opcode : {0x00, 0x12, 0x28, 0x2A, 0x35, 0x42, 0x88, 0x8A, 0x93}) {
    CHECK(may_be_repeated(static_cast<std::uint8_t>(opcode), 0));
  }
  // COMPARE AND WRITE, PERSISTENT RESERVE OUT, RESERVE, RELEASE, EXTENDED COPY, FORMAT UNIT.
  for (const int opcode : {0x89, 0x5F, 0x16, 0x17, 0x83, 0x04}) {
    CHECK_FALSE(may_be_repeated(static_cast<std::uint8_t>(opcode), 0));
  }
  CHECK(may_be_repeated(0x9E, 0x10));
  CHECK_FALSE(may_be_repeated(0x9E, 0x11));
}

}  // namespace sandbay::iscsi::test
