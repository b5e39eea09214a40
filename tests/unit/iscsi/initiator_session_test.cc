// The initiator in full feature phase against a scripted target: data transfer, numbering, what the
// target may ask, and what it must not do. RFC 7143 sections 4.2, 7 and 11.
#include <catch2/catch.hpp>

#include <set>

#include "../block/on_executor.h"
#include "iscsi/initiator_states.h"
#include "scripted_target.h"

namespace sandbay::iscsi::test {
namespace {

Task<void> send_data_in(ScriptedConnection& connection, DataIn pdu, std::byte content) {
  Bhs bhs;
  write_data_in(pdu, bhs);
  std::vector<std::byte> data(pdu.data_segment_length, content);
  co_await connection.send(bhs, std::move(data));
}

// A read is served by two Data-Ins, the second with the status, and comes out short by a residual.
Task<void> read_with_collapsed_status() {
  ScriptedSession scripted;
  co_await scripted.log_in(ScriptedSession::defaults());
  ScriptedConnection& connection = *scripted.connections[0];
  auto pending = PendingCommand::start(*scripted.session, read_request(1024));
  const ScriptedPdu pdu = co_await connection.next();
  const auto command = parse_scsi_command(pdu.bhs);
  CHECK(command.has_value());
  CHECK(command->read);
  CHECK_FALSE(command->write);
  CHECK(command->final);
  CHECK(command->expected_data_transfer_length == 1024);
  CHECK(command->cmd_sn == 1);
  connection.exp_cmd_sn = 2;
  DataIn data{.final = false,
              .data_segment_length = 512,
              .initiator_task_tag = command->initiator_task_tag,
              .numbers = connection.numbers_without_status()};
  co_await send_data_in(connection, data, std::byte{0x11});
  data.final = true;
  data.has_status = true;
  data.residual = Residual::kUnderflow;
  data.residual_count = 12;
  data.data_segment_length = 500;
  data.data_sn = 1;
  data.buffer_offset = 512;
  data.numbers = connection.numbers();
  co_await send_data_in(connection, data, std::byte{0x22});
  co_await pending->done.wait();
  const ScsiResult& result = pending->reply.result;
  CHECK(result.good());
  CHECK(result.underflow);
  CHECK(result.residual == 12);
  CHECK(result.data_in_bytes == 1012);
  std::vector<std::byte> bytes(1024);
  pending->reply.data_in.copy_to(bytes);
  CHECK(bytes[511] == std::byte{0x11});
  CHECK(bytes[512] == std::byte{0x22});
  CHECK(bytes[1011] == std::byte{0x22});
  CHECK(bytes[1012] == std::byte{0});
  co_await scripted.close();
}

Task<void> less_data_than_told() {
  ScriptedSession scripted;
  co_await scripted.log_in(ScriptedSession::defaults());
  ScriptedConnection& connection = *scripted.connections[0];
  auto pending = PendingCommand::start(*scripted.session, read_request(512));
  const ScriptedPdu pdu = co_await connection.next();
  co_await connection.answer_command(pdu);
  co_await pending->done.wait();
  CHECK(pending->reply.result.error == Error::kDataCorrupt);
  co_await scripted.close();
}

Task<void> sense_data() {
  ScriptedSession scripted;
  co_await scripted.log_in(ScriptedSession::defaults());
  ScriptedConnection& connection = *scripted.connections[0];
  auto pending = PendingCommand::start(*scripted.session, read_request(512));
  const ScriptedPdu pdu = co_await connection.next();
  std::vector<std::byte> sense(18);
  sense[0] = std::byte{0x70};
  sense[2] = std::byte{0x03};
  sense[12] = std::byte{0x11};
  co_await connection.answer_command(pdu, 0x02, sense);
  co_await pending->done.wait();
  const ScsiResult& result = pending->reply.result;
  CHECK(result.error == Error::kNone);
  CHECK(result.status == scsi::Status::kCheckCondition);
  CHECK(result.sense_bytes == 18);
  CHECK(result.sense_key() == scsi::SenseKey::kMediumError);
  CHECK(result.additional() == scsi::Additional::kUnrecoveredReadError);
  co_await scripted.close();
}

// Two R2Ts, the one for the end of the data first.
Task<void> ask_for_the_rest(ScriptedConnection& connection, std::uint32_t tag) {
  ReadyToTransfer r2t{.initiator_task_tag = tag,
                      .target_transfer_tag = 0xA1,
                      .numbers = connection.numbers_without_status(),
                      .r2t_sn = 0,
                      .buffer_offset = 4096,
                      .desired_data_transfer_length = 904};
  Bhs bhs;
  write_ready_to_transfer(r2t, bhs);
  co_await connection.send(bhs);
  r2t.target_transfer_tag = 0xA2;
  r2t.r2t_sn = 1;
  r2t.buffer_offset = 2048;
  r2t.desired_data_transfer_length = 2048;
  write_ready_to_transfer(r2t, bhs);
  co_await connection.send(bhs);
}

// Immediate, then unsolicited, then two R2Ts at once, the later one first.
Task<void> write_in_all_ways() {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  options.keys = {{"FirstBurstLength", "2048"},
                  {"MaxBurstLength", "2048"},
                  {"MaxOutstandingR2T", "2"},
                  {"DataSequenceInOrder", "No"}};
  ScriptedLogin login;
  login.answers["MaxRecvDataSegmentLength"] = "1024";
  co_await scripted.log_in(options, login);
  ScriptedConnection& connection = *scripted.connections[0];
  auto pending = PendingCommand::start(*scripted.session, write_request(5000));
  ScriptedPdu pdu = co_await connection.next();
  const auto command = parse_scsi_command(pdu.bhs);
  CHECK(command->write);
  CHECK_FALSE(command->final);
  CHECK(command->expected_data_transfer_length == 5000);
  CHECK(pdu.data.size() == 1024);
  std::vector<std::byte> whole = pdu.data;
  pdu = co_await connection.next();
  Result<DataOut, RejectReason> data = parse_data_out(pdu.bhs);
  CHECK(data->final);
  CHECK(data->data_sn == 0);
  CHECK(data->buffer_offset == 1024);
  CHECK(data->target_transfer_tag == kReservedTag);
  CHECK(data->initiator_task_tag == command->initiator_task_tag);
  whole.insert(whole.end(), pdu.data.begin(), pdu.data.end());
  CHECK(whole.size() == 2048);
  whole.resize(5000);

  connection.exp_cmd_sn = command->cmd_sn + 1;
  co_await ask_for_the_rest(connection, command->initiator_task_tag);
  struct Expected {
    std::uint32_t tag, data_sn, offset, bytes;
    bool final;
  };
  for (const Expected& expected :
       {Expected{0xA1, 0, 4096, 904, true}, Expected{0xA2, 0, 2048, 1024, false},
        Expected{0xA2, 1, 3072, 1024, true}}) {
    pdu = co_await connection.next();
    CHECK(pdu.opcode() == Opcode::kDataOut);
    data = parse_data_out(pdu.bhs);
    CHECK(data->target_transfer_tag == expected.tag);
    CHECK(data->data_sn == expected.data_sn);
    CHECK(data->buffer_offset == expected.offset);
    CHECK(pdu.data.size() == expected.bytes);
    CHECK(data->final == expected.final);
    std::ranges::copy(pdu.data, whole.begin() + expected.offset);
  }
  bool right = true;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    right = right && whole[at] == static_cast<std::byte>(at * 7);
  }
  CHECK(right);
  Bhs answered;
  write_scsi_command(*command, answered);
  ScriptedPdu original;
  original.bhs = answered;
  co_await connection.answer_command(original);
  co_await pending->done.wait();
  CHECK(pending->reply.result.good());
  co_await scripted.close();
}

Task<void> closed_window() {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  co_await scripted.log_in(options);
  ScriptedConnection& connection = *scripted.connections[0];
  // The window shrinks to one command only by being used up: 32 were granted.
  std::vector<std::shared_ptr<PendingCommand>> pending;
  for (int count = 0; count < 34; ++count) {
    pending.push_back(PendingCommand::start(*scripted.session, ScsiRequest{}));
  }
  std::vector<ScriptedPdu> received;
  for (std::uint32_t count = 0; count < 32; ++count) {
    ScriptedPdu pdu = co_await connection.next();
    CHECK(cmd_sn_of(pdu.bhs) == 1 + count);
    received.push_back(std::move(pdu));
  }
  co_await Executor::current().sleep_for(std::chrono::seconds(1));
  CHECK(scripted.session->commands_in_flight() == 32);
  // Acknowledged, but not granted: nothing more comes until a NOP-In moves MaxCmdSN.
  connection.exp_cmd_sn = 33;
  co_await connection.answer_command(received[0]);
  co_await pending[0]->done.wait();
  co_await Executor::current().sleep_for(std::chrono::seconds(1));
  CHECK(scripted.session->commands_in_flight() == 31);
  connection.exp_cmd_sn = 33;
  connection.max_cmd_sn += 2;
  Bhs bhs;
  write_nop_in({.numbers = connection.numbers_without_status()}, bhs);
  co_await connection.send(bhs);
  for (std::uint32_t count = 0; count < 2; ++count) {
    ScriptedPdu pdu = co_await connection.next();
    CHECK(cmd_sn_of(pdu.bhs) == 33 + count);
    received.push_back(std::move(pdu));
  }
  for (std::size_t index = 1; index < received.size(); ++index) {
    co_await connection.answer_command(received[index]);
  }
  for (auto& one : pending) {
    co_await one->done.wait();
    CHECK(one->reply.result.good());
  }
  co_await scripted.close();
}

Task<void> pinged_by_the_target() {
  ScriptedSession scripted;
  co_await scripted.log_in(ScriptedSession::defaults());
  ScriptedConnection& connection = *scripted.connections[0];
  const std::vector<std::byte> payload(37, std::byte{0x5C});
  const NopIn nop{.data_segment_length = 37,
                  .lun = 0x0003'0000'0000'0000U,
                  .target_transfer_tag = 0xBEEF,
                  .numbers = connection.numbers_without_status()};
  Bhs bhs;
  write_nop_in(nop, bhs);
  co_await connection.send(bhs, payload);
  const ScriptedPdu pdu = co_await connection.next();
  const auto answer = parse_nop_out(pdu.bhs);
  CHECK(answer.has_value());
  CHECK(answer->immediate);
  CHECK(answer->initiator_task_tag == kReservedTag);
  CHECK(answer->target_transfer_tag == 0xBEEF);
  CHECK(answer->lun == nop.lun);
  CHECK(answer->cmd_sn == 1);
  CHECK(pdu.data == payload);
  co_await scripted.close();
}

Task<void> ping_the_target() {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  options.nop_out_interval = std::chrono::seconds(5);
  options.nop_out_timeout = std::chrono::seconds(3);
  co_await scripted.log_in(options);
  ScriptedConnection& connection = *scripted.connections[0];
  ScriptedPdu pdu = co_await connection.next();
  CHECK(pdu.opcode() == Opcode::kNopOut);
  CHECK(is_immediate(pdu.bhs));
  Bhs bhs;
  write_nop_in({.initiator_task_tag = initiator_task_tag(pdu.bhs), .numbers = connection.numbers()},
               bhs);
  co_await connection.send(bhs);
  pdu = co_await connection.next();
  CHECK(pdu.opcode() == Opcode::kNopOut);
  // This one is not answered: the connection is given up.
  pdu = co_await connection.next();
  CHECK(pdu.closed);
  CHECK_FALSE(scripted.session->up());
  co_await scripted.close();
}

// --- What a target must not do -------------------------------------------------------------------

using Wrong = std::function<void(ScriptedConnection& connection, std::uint32_t itt, Bhs& bhs,
                                 std::vector<std::byte>& data)>;

// The connection ends, and the command with it.
Task<void> answer_wrongly(bool writing, Wrong wrong) {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  options.keys = {{"MaxBurstLength", "65536"}, {"MaxRecvDataSegmentLength", "4096"}};
  co_await scripted.log_in(options);
  ScriptedConnection& connection = *scripted.connections[0];
  auto pending = PendingCommand::start(*scripted.session,
                                       writing ? write_request(200'000) : read_request(1024));
  ScriptedPdu pdu = co_await connection.next();
  const std::uint32_t itt = initiator_task_tag(pdu.bhs);
  Bhs bhs{};
  std::vector<std::byte> data;
  wrong(connection, itt, bhs, data);
  co_await connection.send(bhs, std::move(data));
  co_await pending->done.wait();
  CHECK(pending->reply.result.error == Error::kReset);
  CHECK_FALSE(scripted.session->up());
  CHECK(scripted.session->counters().protocol_errors == 1);
  while (!pdu.closed) pdu = co_await connection.next();
  co_await scripted.close();
}

void wrong_data_in(ScriptedConnection& connection, std::uint32_t itt, Bhs& bhs,
                   std::vector<std::byte>& data, DataIn pdu) {
  pdu.initiator_task_tag = itt;
  pdu.numbers = connection.numbers_without_status();
  write_data_in(pdu, bhs);
  data.resize(pdu.data_segment_length);
}

// Where order is not agreed, data come as they like, but none twice: what comes twice would stand
// for what is missing.
Task<void> data_in_any_order(std::uint32_t second_offset, bool accepted) {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  options.keys["DataPDUInOrder"] = "No";
  options.keys["DataSequenceInOrder"] = "No";
  options.reconnect = false;
  co_await scripted.log_in(options);
  ScriptedConnection& connection = *scripted.connections[0];
  auto pending = PendingCommand::start(*scripted.session, read_request(1024));
  ScriptedPdu pdu = co_await connection.next();
  connection.exp_cmd_sn = 2;
  DataIn data{.final = false,
              .data_segment_length = 512,
              .initiator_task_tag = initiator_task_tag(pdu.bhs),
              .numbers = connection.numbers_without_status(),
              .buffer_offset = 512};
  co_await send_data_in(connection, data, std::byte{0x11});
  data.final = true;
  data.has_status = true;
  data.data_sn = 1;
  data.buffer_offset = second_offset;
  data.numbers = connection.numbers();
  co_await send_data_in(connection, data, std::byte{0x22});
  co_await pending->done.wait();
  CHECK(pending->reply.result.good() == accepted);
  CHECK(scripted.session->counters().protocol_errors == (accepted ? 0 : 1));
  if (!accepted) {
    while (!pdu.closed) pdu = co_await connection.next();
  }
  co_await scripted.close();
}

void wrong_r2t(ScriptedConnection& connection, std::uint32_t itt, Bhs& bhs, ReadyToTransfer pdu) {
  pdu.initiator_task_tag = itt;
  pdu.target_transfer_tag = 5;
  pdu.numbers = connection.numbers_without_status();
  write_ready_to_transfer(pdu, bhs);
}

Task<void> answer_and_tell(ScriptedConnection& connection, std::shared_ptr<Event> done) {
  co_await ScriptedSession::answer_logout(connection);
  while (true) {
    const ScriptedPdu pdu = co_await connection.next();
    if (pdu.closed) break;
  }
  done->set();
}

// Takes what is sent, and sorts it.
struct Received {
  std::vector<ScriptedPdu> aborts;
  std::vector<ScriptedPdu> texts;
  std::uint32_t commands = 0;

  static Task<void> collect(std::shared_ptr<Received> here, ScriptedConnection& connection) {
    while (true) {
      ScriptedPdu pdu = co_await connection.next();
      if (pdu.closed || pdu.opcode() == Opcode::kLogoutRequest) co_return;
      if (pdu.opcode() == Opcode::kScsiCommand) ++here->commands;
      if (pdu.opcode() == Opcode::kTaskManagementRequest) here->aborts.push_back(pdu);
      if (pdu.opcode() == Opcode::kTextRequest) here->texts.push_back(pdu);
    }
  }
};

Task<void> abort_it(InitiatorSession& session, InitiatorCommand& command, std::uint32_t& ended) {
  const auto answer = co_await session.abort(command);
  CHECK(answer == TaskManagementResult::kFunctionComplete);
  ++ended;
}

Task<void> ask_for_text(InitiatorSession& session, bool& answered) {
  const Result<std::string> answer = co_await session.text("X-org.sandbay=1");
  CHECK(answer.has_value());
  answered = true;
}

Task<void> answer_abort(ScriptedConnection& connection, ScriptedPdu request) {
  Bhs bhs;
  write_task_management_response({.result = TaskManagementResult::kFunctionComplete,
                                  .initiator_task_tag = initiator_task_tag(request.bhs),
                                  .numbers = connection.numbers()},
                                 bhs);
  co_await connection.send(bhs);
}

Task<void> answer_text(ScriptedConnection& connection, ScriptedPdu request) {
  Bhs bhs;
  write_text_response({.final = true,
                       .initiator_task_tag = initiator_task_tag(request.bhs),
                       .numbers = connection.numbers()},
                      bhs);
  co_await connection.send(bhs);
}

// A host with a hundred commands on a target that answers none goes away; others go on.
Task<void> abort_a_hundred_at_once() {
  constexpr std::uint32_t kCommands = 100;
  ScriptedSession scripted;
  co_await scripted.log_in(ScriptedSession::defaults());
  ScriptedConnection& connection = *scripted.connections[0];
  connection.max_cmd_sn = 1000;
  Bhs bhs;
  write_nop_in({.numbers = connection.numbers_without_status()}, bhs);
  co_await connection.send(bhs);
  auto received = std::make_shared<Received>();
  spawn(Received::collect(received, connection));
  co_await Executor::current().sleep_for(std::chrono::seconds(1));

  std::vector<std::unique_ptr<InitiatorCommand>> commands;
  std::uint32_t cancelled = 0;
  std::uint32_t aborts_ended = 0;
  for (std::uint32_t index = 0; index <= kCommands; ++index) {
    commands.push_back(std::make_unique<InitiatorCommand>());
    commands.back()->owner = &cancelled;
    commands.back()->done = [](InitiatorCommand& ended) {
      *static_cast<std::uint32_t*>(ended.owner) += ended.result.error == Error::kCancelled ? 1 : 0;
    };
    if (index == kCommands) break;
    scripted.session->submit(*commands.back());
  }
  for (std::uint32_t index = 0; index < kCommands; ++index) {
    spawn(abort_it(*scripted.session, *commands[index], aborts_ended));
  }
  scripted.session->submit(*commands.back());
  bool text_answered = false;
  spawn(ask_for_text(*scripted.session, text_answered));
  co_await Executor::current().sleep_for(std::chrono::seconds(1));
  CHECK(received->commands == kCommands + 1);
  CHECK(received->texts.size() == 1);
  CHECK_FALSE(received->aborts.empty());
  if (!received->texts.empty()) co_await answer_text(connection, received->texts.front());

  std::set<std::uint32_t> aborted;
  for (std::size_t index = 0; index < received->aborts.size(); ++index) {
    const auto request = parse_task_management_request(received->aborts[index].bhs);
    CHECK(request.has_value());
    if (request.has_value()) aborted.insert(request->referenced_task_tag);
    co_await answer_abort(connection, received->aborts[index]);
    co_await Executor::current().sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(aborted.size() == kCommands);
  CHECK(aborts_ended == kCommands);
  CHECK(cancelled == kCommands);
  CHECK(text_answered);
  CHECK(scripted.session->commands_in_flight() == 1);
  connection.reset();
  co_await scripted.session->close();
  scripted.session.reset();
}

// On a real executor, whose messages arrive at the end of a turn.
Task<void> keep_asking(InitiatorSession& session, const bool& closed, Gate& gate) {
  const GateHold hold(gate);
  unsigned asked = 0;
  while (!closed) {
    const InitiatorSession::Reply reply = co_await session.execute({});
    CHECK(reply.result.error == Error::kClosed);
    if (++asked % 3 == 0) co_await Executor::current().yield();
  }
}

Task<void> close_while_asked() {
  for (int round = 0; round < 20; ++round) {
    ScriptedTarget target(0);
    InitiatorOptions options = ScriptedSession::defaults();
    options.endpoint = target.endpoint();
    auto login = PendingLogin::start(std::move(options));
    std::unique_ptr<ScriptedConnection> connection = co_await target.accept();
    co_await connection->log_in();
    co_await login->done.wait();
    CHECK(login->result->has_value());
    if (!login->result->has_value()) co_return;
    std::unique_ptr<InitiatorSession> session = std::move(**login->result);
    bool closed = false;
    Gate gate;
    for (int count = 0; count < 4 && gate.enter(); ++count) {
      spawn(keep_asking(*session, closed, gate));
    }
    auto answering = std::make_shared<Event>();
    spawn(answer_and_tell(*connection, answering));
    co_await session->close();
    closed = true;
    session.reset();
    co_await gate.close();
    co_await answering->wait();
  }
}

// The session lives on one executor and its connection on another; its counters are read all the
// while. Thread sanitizer sees to the rest.
Task<void> count_across(Executor& other) {
  ScriptedTarget target(0);
  InitiatorOptions options = ScriptedSession::defaults();
  options.endpoint = target.endpoint();
  options.connection_options.push_back({.executor = &other});
  auto login = PendingLogin::start(std::move(options));
  std::unique_ptr<ScriptedConnection> connection = co_await target.accept();
  co_await connection->log_in();
  co_await login->done.wait();
  CHECK(login->result->has_value());
  if (!login->result->has_value()) co_return;
  std::unique_ptr<InitiatorSession> session = std::move(**login->result);
  for (std::uint64_t count = 1; count <= 50; ++count) {
    Bhs bhs;
    write_nop_in({.target_transfer_tag = 5, .numbers = connection->numbers_without_status()}, bhs);
    co_await connection->send(bhs);
    while (session->counters().nop_ins < count) co_await Executor::current().yield();
    const ScriptedPdu answer = co_await connection->next();
    CHECK(answer.opcode() == Opcode::kNopOut);
  }
  auto answering = std::make_shared<Event>();
  spawn(answer_and_tell(*connection, answering));
  co_await session->close();
  co_await answering->wait();
}

}  // namespace

TEST_CASE("A session that is closed while it is used ends after its last command",
          "[initiator][I-9]") {
  testing::run_on_reactor([](Executor&) { return close_while_asked(); });
}
TEST_CASE("Counters of a connection can be read on another executor", "[initiator][I-10]") {
  auto group = ReactorGroup::create({.count = 2, .memory_limit_bytes = std::size_t{128} << 20});
  if (!group.has_value()) FAIL(group.error().text);
  Executor& other = *(*group)->executors()[1];
  (*group)->run([&other] { return count_across(other); });
}
TEST_CASE("Every abort reaches the target when more are asked for than may be under way",
          "[initiator][window][I-1]") {
  in_world(abort_a_hundred_at_once);
}
TEST_CASE("Read data, phase-collapsed status and residual", "[initiator][data]") {
  in_world(read_with_collapsed_status);
}
TEST_CASE("Data-Ins may come in any order where that was agreed, but none twice",
          "[initiator][data]") {
  in_world([] { return data_in_any_order(0, true); });
  in_world([] { return data_in_any_order(256, false); });
  in_world([] { return data_in_any_order(512, false); });
}
TEST_CASE("GOOD without the data is not good", "[initiator][data]") {
  in_world(less_data_than_told);
}
TEST_CASE("Sense data reach the caller", "[initiator][data]") { in_world(sense_data); }
TEST_CASE("Immediate, unsolicited and solicited data, R2Ts out of order", "[initiator][data]") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) in_world(write_in_all_ways, seed);
}
TEST_CASE("Nothing is sent beyond MaxCmdSN", "[initiator][window]") { in_world(closed_window); }
TEST_CASE("A NOP-In is answered with its tag, LUN and data", "[initiator][nop]") {
  in_world(pinged_by_the_target);
}
TEST_CASE("An idle connection is pinged, a silent one is given up", "[initiator][nop]") {
  in_world(ping_the_target);
}

using Data = std::vector<std::byte>;
using Link = ScriptedConnection;
struct Case {
  const char* name;
  bool writing;
  Wrong wrong;
};

void try_all(std::span<const Case> cases) {
  for (const Case& one : cases) {
    INFO(one.name);
    in_world([&] { return answer_wrongly(one.writing, one.wrong); });
  }
}

TEST_CASE("Data-Ins that break the protocol cost the connection", "[initiator][errors]") {
  const Case cases[] = {
      {"Data-In beyond the expected length", false,
       [](Link& link, std::uint32_t itt, Bhs& bhs, Data& data) {
         wrong_data_in(link, itt, bhs, data, {.data_segment_length = 8, .buffer_offset = 1020});
       }},
      {"Data-In with a far offset", false,
       [](Link& link, std::uint32_t itt, Bhs& bhs, Data& data) {
         wrong_data_in(link, itt, bhs, data,
                       {.data_segment_length = 8, .buffer_offset = 0xFFFFFFFC});
       }},
      {"DataSN out of order", false,
       [](Link& link, std::uint32_t itt, Bhs& bhs, Data& data) {
         wrong_data_in(link, itt, bhs, data, {.data_segment_length = 8, .data_sn = 1});
       }},
      {"Data-In out of order", false,
       [](Link& link, std::uint32_t itt, Bhs& bhs, Data& data) {
         wrong_data_in(link, itt, bhs, data, {.data_segment_length = 8, .buffer_offset = 512});
       }},
      {"Data-In for a write", true,
       [](Link& link, std::uint32_t itt, Bhs& bhs, Data& data) {
         wrong_data_in(link, itt, bhs, data, {.data_segment_length = 8});
       }},
      {"a segment longer than declared", false,
       [](Link& link, std::uint32_t itt, Bhs& bhs, Data& data) {
         wrong_data_in(link, itt, bhs, data, {.data_segment_length = 4097});
       }},
  };
  try_all(cases);
}

TEST_CASE("Other PDUs that break the protocol cost the connection", "[initiator][errors]") {
  const Case cases[] = {
      {"StatSN out of order", false,
       [](Link& link, std::uint32_t itt, Bhs& bhs, Data&) {
         ScsiResponse response{.initiator_task_tag = itt, .numbers = link.numbers()};
         response.numbers.stat_sn += 1;
         write_scsi_response(response, bhs);
       }},
      {"missing Data-Ins", false,
       [](Link& link, std::uint32_t itt, Bhs& bhs, Data&) {
         write_scsi_response(
             {.initiator_task_tag = itt, .numbers = link.numbers(), .exp_data_sn = 2}, bhs);
       }},
      {"an unknown opcode", false,
       [](Link&, std::uint32_t, Bhs& bhs, Data&) { bhs[0] = std::byte{0x3A}; }},
      {"a request from the target", false,
       [](Link&, std::uint32_t, Bhs& bhs, Data&) { bhs[0] = std::byte{0x01}; }},
      {"a Login Response in full feature phase", false,
       [](Link&, std::uint32_t, Bhs& bhs, Data&) { bhs[0] = std::byte{0x23}; }},
      {"an R2T beyond the data", true,
       [](Link& link, std::uint32_t itt, Bhs& bhs, Data&) {
         wrong_r2t(link, itt, bhs, {.buffer_offset = 199'999, .desired_data_transfer_length = 2});
       }},
      {"an R2T longer than MaxBurstLength", true,
       [](Link& link, std::uint32_t itt, Bhs& bhs, Data&) {
         wrong_r2t(link, itt, bhs, {.desired_data_transfer_length = 65537});
       }},
      {"R2TSN out of order", true,
       [](Link& link, std::uint32_t itt, Bhs& bhs, Data&) {
         wrong_r2t(link, itt, bhs, {.r2t_sn = 1, .desired_data_transfer_length = 512});
       }},
      {"an R2T for a read", false,
       [](Link& link, std::uint32_t itt, Bhs& bhs, Data&) {
         wrong_r2t(link, itt, bhs, {.desired_data_transfer_length = 512});
       }},
      {"a text response to a command", false,
       [](Link& link, std::uint32_t itt, Bhs& bhs, Data&) {
         write_text_response({.initiator_task_tag = itt, .numbers = link.numbers()}, bhs);
       }},
  };
  try_all(cases);
}

TEST_CASE("State changes are those of the RFC's tables", "[initiator][states]") {
  using C = InitiatorConnectionState;
  using S = InitiatorSessionState;
  CHECK(transition_number(C::kFree, C::kTransportWait) == 1);
  CHECK(transition_number(C::kTransportWait, C::kFree) == 2);
  CHECK(transition_number(C::kTransportWait, C::kInLogin) == 4);
  CHECK(transition_number(C::kInLogin, C::kLoggedIn) == 5);
  CHECK(transition_number(C::kInLogin, C::kFree) == 7);
  CHECK(transition_number(C::kLoggedIn, C::kFree) == 8);
  CHECK(transition_number(C::kLoggedIn, C::kInLogout) == 9);
  CHECK(transition_number(C::kLogoutRequested, C::kInLogout) == 10);
  CHECK(transition_number(C::kLoggedIn, C::kLogoutRequested) == 11);
  CHECK(transition_number(C::kInLogout, C::kFree) == 13);
  CHECK(transition_number(C::kLoggedIn, C::kCleanupWait) == 15);
  CHECK(transition_number(C::kLogoutRequested, C::kCleanupWait) == 16);
  CHECK(transition_number(C::kInLogout, C::kCleanupWait) == 17);
  CHECK(transition_number(C::kLogoutRequested, C::kFree) == 18);
  CHECK(transition_number(C::kFree, C::kLoggedIn) == 0);
  CHECK(transition_number(C::kCleanupWait, C::kLoggedIn) == 0);
  CHECK(transition_number(S::kFree, S::kLoggedIn) == 1);
  CHECK(transition_number(S::kLoggedIn, S::kFree) == 3);
  CHECK(transition_number(S::kFailed, S::kLoggedIn) == 4);
  CHECK(transition_number(S::kLoggedIn, S::kFailed) == 5);
  CHECK(transition_number(S::kFailed, S::kFree) == 6);
  CHECK(transition_number(S::kFree, S::kFailed) == 0);
  CHECK(name_of(C::kCleanupWait) == "S8:CLEANUP_WAIT");
}

}  // namespace sandbay::iscsi::test
