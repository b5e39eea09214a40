// A target that does what a test says, PDU by PDU, in a simulated world: the counterpart for tests
// of the initiator. It answers logins by itself, without the product's negotiation, and keeps the
// StatSN; everything else the test sends.
#pragma once

#include <catch2/catch.hpp>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "iscsi/initiator.h"
#include "iscsi/pdu.h"
#include "runtime/simulation.h"
#include "runtime/sync.h"

namespace sandbay::iscsi::test {

struct ScriptedPdu {
  bool closed = false;  // There was none: the connection ended.
  Bhs bhs{};
  std::vector<std::byte> data;

  Opcode opcode() const { return opcode_of(bhs); }
  std::string text() const { return {reinterpret_cast<const char*>(data.data()), data.size()}; }
  bool has(std::string_view pair) const {
    return ('\0' + text()).find('\0' + std::string(pair) + '\0') != std::string::npos;
  }
};

struct ScriptedLogin {
  std::map<std::string, std::string> answers;  // Instead of the offer itself, by key.
  std::uint16_t tsih = 7;
  bool own_numbers = false;  // ExpCmdSN and MaxCmdSN are set already.
};

class ScriptedConnection {
 public:
  explicit ScriptedConnection(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}

  Task<ScriptedPdu> next() {
    ScriptedPdu pdu;
    const bool header = co_await fill(kBhsBytes);
    if (!header) {
      pdu.closed = true;
      co_return pdu;
    }
    std::memcpy(pdu.bhs.data(), received_.data(), kBhsBytes);
    const std::uint32_t length = data_segment_length(pdu.bhs);
    const std::size_t whole = kBhsBytes + padded(length);
    const bool data = co_await fill(whole);
    if (!data) {
      pdu.closed = true;
      co_return pdu;
    }
    const auto begin = received_.begin() + kBhsBytes;
    pdu.data.assign(begin, begin + length);
    received_.erase(received_.begin(), received_.begin() + static_cast<std::ptrdiff_t>(whole));
    co_return pdu;
  }

  Task<void> send(Bhs bhs, std::vector<std::byte> data = {}) {
    std::vector<std::byte> bytes(bhs.begin(), bhs.end());
    bytes.insert(bytes.end(), data.begin(), data.end());
    bytes.resize(kBhsBytes + padded(static_cast<std::uint32_t>(data.size())));
    const IoSlice slice{.data = bytes.data(), .byte_count = bytes.size()};
    co_await stream_->send(std::span(&slice, 1));
  }

  // The next StatSN, which then counts as used.
  StatusNumbers numbers() {
    return {.stat_sn = stat_sn_++, .exp_cmd_sn = exp_cmd_sn, .max_cmd_sn = max_cmd_sn};
  }
  StatusNumbers numbers_without_status() const {
    return {.stat_sn = stat_sn_, .exp_cmd_sn = exp_cmd_sn, .max_cmd_sn = max_cmd_sn};
  }

  // Both stages; negotiated keys are answered with their offer.
  Task<void> log_in(ScriptedLogin login = {}) {
    ScriptedPdu first = co_await next();
    co_await log_in_from(std::move(first), std::move(login));
  }
  // The same when the first request has been received.
  Task<void> log_in_from(ScriptedPdu request, ScriptedLogin login) {
    for (int stage = 0; stage < 2; ++stage) {
      if (stage != 0) request = co_await next();
      if (request.closed) co_return;
      const LoginRequest parsed = parse_login_request(request.bhs);
      if (stage == 0) first_login = parsed;
      login_text += request.text();
      const std::string answer = answer_keys(request.text(), login.answers);
      if (!login.own_numbers) exp_cmd_sn = parsed.cmd_sn;
      if (!login.own_numbers && max_cmd_sn == 0) max_cmd_sn = parsed.cmd_sn + 31;
      co_await respond(parsed, LoginStatus::kSuccess, answer, login.tsih);
      if (parsed.transit && parsed.next_stage == 3) co_return;
    }
  }

  Task<void> respond(LoginRequest request, LoginStatus status, std::string text, std::uint16_t tsih,
                     bool continues = false) {
    const LoginResponse response{
        .transit = request.transit && !continues && status == LoginStatus::kSuccess,
        .continues = continues,
        .current_stage = request.current_stage,
        .next_stage = request.transit && !continues ? request.next_stage : std::uint8_t{0},
        .data_segment_length = static_cast<std::uint32_t>(text.size()),
        .isid = request.isid,
        .tsih = tsih,
        .initiator_task_tag = request.initiator_task_tag,
        .numbers = numbers(),
        .status = status,
    };
    Bhs bhs;
    write_login_response(response, bhs);
    const auto bytes = std::as_bytes(std::span(text));
    co_await send(bhs, {bytes.begin(), bytes.end()});
  }

  // GOOD, or what is given; for a command that the test has received.
  Task<void> answer_command(const ScriptedPdu& command, std::uint8_t status = 0,
                            std::vector<std::byte> sense = {}) {
    if (!is_immediate(command.bhs)) exp_cmd_sn = cmd_sn_of(command.bhs) + 1;
    std::vector<std::byte> data;
    if (!sense.empty()) {
      data.resize(2);
      put_big_endian<std::uint16_t>(data, 0, static_cast<std::uint16_t>(sense.size()));
      data.insert(data.end(), sense.begin(), sense.end());
    }
    const ScsiResponse response{
        .status = status,
        .data_segment_length = static_cast<std::uint32_t>(data.size()),
        .initiator_task_tag = initiator_task_tag(command.bhs),
        .numbers = numbers(),
    };
    Bhs bhs;
    write_scsi_response(response, bhs);
    co_await send(bhs, std::move(data));
  }

  void reset() { stream_->reset(); }

  Mutex sending;  // For tests that send from several coroutines.

  std::uint32_t exp_cmd_sn = 0;
  std::uint32_t max_cmd_sn = 0;  // 0: 32 commands from the login's on.
  LoginRequest first_login;
  std::string login_text;

 private:
  static std::string answer_keys(const std::string& text,
                                 const std::map<std::string, std::string>& answers) {
    // Declarations of the initiator are not answered; our own is added.
    static const char* const kDeclared[] = {"InitiatorName", "InitiatorAlias", "TargetName",
                                            "SessionType", "MaxRecvDataSegmentLength"};
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      const std::string pair = text.substr(at).c_str();
      at += pair.size() + 1;
      const std::string key = pair.substr(0, pair.find('='));
      bool declared = false;
      for (const char* name : kDeclared) declared = declared || key == name;
      if (key == "MaxRecvDataSegmentLength") {
        const auto own = answers.find(key);
        out += key + "=" + (own != answers.end() ? own->second : "8192") + '\0';
      }
      if (declared || key.empty()) continue;
      const auto other = answers.find(key);
      // Of a list, the first choice.
      const std::string echo = pair.substr(0, pair.find(','));
      out += (other != answers.end() ? key + "=" + other->second : echo) + '\0';
    }
    return out;
  }

  Task<bool> fill(std::size_t byte_count) {
    while (received_.size() < byte_count) {
      const std::size_t old = received_.size();
      received_.resize(old + 65536);
      const IoSlice slice{.data = received_.data() + old, .byte_count = 65536};
      const Result<std::size_t> got = co_await stream_->receive(std::span(&slice, 1));
      received_.resize(old + got.value_or(0));
      if (got.value_or(0) == 0) co_return false;
    }
    co_return true;
  }

  std::unique_ptr<Stream> stream_;
  std::vector<std::byte> received_;
  std::uint32_t stat_sn_ = 1000;
};

class ScriptedTarget {
 public:
  explicit ScriptedTarget(std::uint16_t port = 3260) {
    auto listener = Executor::current().listen(Endpoint::ipv4(0x7F000001, port));
    REQUIRE(listener.has_value());
    listener_ = std::move(*listener);
  }
  Endpoint endpoint() const { return listener_->local(); }
  Task<std::unique_ptr<ScriptedConnection>> accept() {
    auto stream = co_await listener_->accept();
    if (!stream.has_value()) co_return std::unique_ptr<ScriptedConnection>();
    co_return std::make_unique<ScriptedConnection>(std::move(*stream));
  }

 private:
  std::unique_ptr<Listener> listener_;
};

using LoginResult = std::expected<std::unique_ptr<InitiatorSession>, LoginFailure>;

// A login that runs while the test plays the target.
struct PendingLogin {
  Event done;
  std::optional<LoginResult> result;

  static Task<void> run(std::shared_ptr<PendingLogin> pending, InitiatorOptions options) {
    LoginResult result = co_await InitiatorSession::login(std::move(options));
    pending->result.emplace(std::move(result));
    pending->done.set();
  }
  static std::shared_ptr<PendingLogin> start(InitiatorOptions options) {
    auto pending = std::make_shared<PendingLogin>();
    spawn(run(pending, std::move(options)));
    return pending;
  }
};

// The same for one command.
struct PendingCommand {
  Event done;
  InitiatorSession::Reply reply;

  static Task<void> run(std::shared_ptr<PendingCommand> pending, InitiatorSession& session,
                        ScsiRequest request) {
    pending->reply = co_await session.execute(std::move(request));
    pending->done.set();
  }
  static std::shared_ptr<PendingCommand> start(InitiatorSession& session, ScsiRequest request) {
    auto pending = std::make_shared<PendingCommand>();
    spawn(run(pending, session, std::move(request)));
    return pending;
  }
};

struct PendingClose {
  Event done;
  static Task<void> run(std::shared_ptr<PendingClose> pending, InitiatorSession& session) {
    co_await session.close();
    pending->done.set();
  }
  static std::shared_ptr<PendingClose> start(InitiatorSession& session) {
    auto pending = std::make_shared<PendingClose>();
    spawn(run(pending, session));
    return pending;
  }
};

// One session against one scripted target.
struct ScriptedSession {
  ScriptedTarget target;
  std::vector<std::unique_ptr<ScriptedConnection>> connections;
  std::unique_ptr<InitiatorSession> session;

  static InitiatorOptions defaults() {
    return {.target_name = "iqn.2026-11.org.sandbay:scripted",
            .nop_out_interval = Duration{},
            .reconnect = false};
  }
  Task<void> log_in(InitiatorOptions options, ScriptedLogin login = {}) {
    options.endpoint = target.endpoint();
    const std::uint32_t count = options.connections;
    auto pending = PendingLogin::start(std::move(options));
    for (std::uint32_t index = 0; index < count; ++index) {
      std::unique_ptr<ScriptedConnection> connection = co_await target.accept();
      connections.push_back(std::move(connection));
      co_await connections.back()->log_in(login);
    }
    co_await pending->done.wait();
    if (!pending->result->has_value()) FAIL_CHECK(pending->result->error().message);
    if (pending->result->has_value()) session = std::move(**pending->result);
  }
  // Answers the logout if there is still a connection to take it.
  Task<void> close() {
    if (session == nullptr) co_return;
    auto pending = PendingClose::start(*session);
    if (session->up() && !connections.empty()) co_await answer_logout(*connections.front());
    for (auto& connection : connections) {
      if (connection != nullptr) connection->reset();
    }
    co_await pending->done.wait();
    session.reset();
  }
  static Task<void> answer_logout(ScriptedConnection& connection) {
    while (true) {
      const ScriptedPdu pdu = co_await connection.next();
      if (pdu.closed) co_return;
      if (pdu.opcode() != Opcode::kLogoutRequest) continue;
      const LogoutResponse response{.initiator_task_tag = initiator_task_tag(pdu.bhs),
                                    .numbers = connection.numbers()};
      Bhs bhs;
      write_logout_response(response, bhs);
      co_await connection.send(bhs);
      co_return;
    }
  }
};

// Runs a test's coroutine to its end in a world of its own.
inline void in_world(std::function<Task<void>()> main, std::uint64_t seed = 1) {
  auto world = sim::World::create({.seed = seed});
  const bool ended = world->run(std::move(main));
  REQUIRE(ended);
}

inline BufferList buffer_of(std::size_t byte_count) {
  return Executor::current().buffers().try_allocate(byte_count);
}

inline ScsiRequest read_request(std::size_t byte_count) {
  ScsiRequest request;
  request.cdb[0] = std::byte{0x88};
  request.data_in = buffer_of(byte_count);
  request.data_in.fill_zero();
  return request;
}

inline ScsiRequest write_request(std::size_t byte_count) {
  ScsiRequest request;
  request.cdb[0] = std::byte{0x8A};
  request.data_out = buffer_of(byte_count);
  std::vector<std::byte> bytes(byte_count);
  for (std::size_t at = 0; at < byte_count; ++at) bytes[at] = static_cast<std::byte>(at * 7);
  request.data_out.copy_from(bytes);
  return request;
}

}  // namespace sandbay::iscsi::test
