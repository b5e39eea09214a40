// The initiator's Login Phase against a scripted target: RFC 7143 sections 6.3, 11.12, 11.13.
#include <catch2/catch.hpp>

#include "scripted_target.h"

namespace sandbay::iscsi::test {
namespace {

InitiatorOptions options_for(const ScriptedTarget& target) {
  InitiatorOptions options = ScriptedSession::defaults();
  options.endpoint = target.endpoint();
  return options;
}

Task<void> log_in_and_look() {
  ScriptedSession scripted;
  InitiatorOptions options = ScriptedSession::defaults();
  options.initiator_alias = "test host";
  options.first_cmd_sn = 77;
  co_await scripted.log_in(options);
  CHECK(scripted.session != nullptr);
  if (scripted.session == nullptr) co_return;
  const ScriptedConnection& connection = *scripted.connections[0];
  const std::string text = '\0' + connection.login_text;
  for (const char* pair :
       {"InitiatorName=iqn.2026-11.org.sandbay:initiator", "InitiatorAlias=test host",
        "SessionType=Normal", "AuthMethod=None", "TargetName=iqn.2026-11.org.sandbay:scripted",
        "InitialR2T=No", "ImmediateData=Yes"}) {
    INFO(pair);
    CHECK(text.find('\0' + std::string(pair) + '\0') != std::string::npos);
  }
  CHECK(connection.first_login.tsih == 0);
  CHECK(connection.first_login.cmd_sn == 77);
  CHECK(connection.first_login.current_stage == 0);
  CHECK((std::to_integer<unsigned>(connection.first_login.isid.bytes[0]) & 0xC0U) == 0x80U);
  CHECK(scripted.session->tsih() == 7);
  CHECK(scripted.session->session_state() == "Q3:LOGGED_IN");
  CHECK(scripted.session->connection_state(0) == "S5:LOGGED_IN");
  CHECK(scripted.session->parameters().at("InitialR2T") == "No");
  co_await scripted.close();
}

Task<void> answer_in_pieces() {
  ScriptedTarget target;
  auto pending = PendingLogin::start(options_for(target));
  const std::unique_ptr<ScriptedConnection> connection = co_await target.accept();
  ScriptedPdu request = co_await connection->next();
  LoginRequest login = parse_login_request(request.bhs);
  connection->exp_cmd_sn = login.cmd_sn;
  connection->max_cmd_sn = login.cmd_sn + 3;
  co_await connection->respond(login, LoginStatus::kSuccess, "AuthMethod=", 7, true);
  request = co_await connection->next();  // Asks for the rest, with nothing in it.
  CHECK(request.data.empty());
  login = parse_login_request(request.bhs);
  login.transit = true;
  login.next_stage = 1;
  co_await connection->respond(login, LoginStatus::kSuccess, std::string("None\0", 5), 7);
  co_await connection->log_in();
  co_await pending->done.wait();
  if (!pending->result->has_value()) FAIL_CHECK(pending->result->error().message);
  if (!pending->result->has_value()) co_return;
  auto closing = PendingClose::start(***pending->result);
  co_await ScriptedSession::answer_logout(*connection);
  connection->reset();
  co_await closing->done.wait();
}

Task<void> redirect_to(ScriptedTarget& from, std::string to, LoginStatus how) {
  const std::unique_ptr<ScriptedConnection> connection = co_await from.accept();
  if (connection == nullptr) co_return;
  const ScriptedPdu request = co_await connection->next();
  co_await connection->respond(parse_login_request(request.bhs), how,
                               "TargetAddress=" + to + ",1" + '\0', 0);
  const ScriptedPdu after = co_await connection->next();
  CHECK(after.closed);
}

Task<void> follow_a_redirection(LoginStatus how) {
  ScriptedTarget first(3260);
  ScriptedTarget second(3261);
  auto pending = PendingLogin::start(options_for(first));
  co_await redirect_to(first, second.endpoint().to_string(), how);
  const std::unique_ptr<ScriptedConnection> connection = co_await second.accept();
  co_await connection->log_in();
  co_await pending->done.wait();
  if (!pending->result->has_value()) FAIL_CHECK(pending->result->error().message);
  if (!pending->result->has_value()) co_return;
  auto closing = PendingClose::start(***pending->result);
  co_await ScriptedSession::answer_logout(*connection);
  connection->reset();
  co_await closing->done.wait();
}

Task<void> redirect_in_a_circle() {
  ScriptedTarget target;
  auto pending = PendingLogin::start(options_for(target));
  for (unsigned count = 0; count <= kMaximumRedirections; ++count) {
    co_await redirect_to(target, target.endpoint().to_string(), LoginStatus::kMovedTemporarily);
  }
  co_await pending->done.wait();
  CHECK_FALSE(pending->result->has_value());
  CHECK(pending->result->error().message == "redirected too often");
}

Task<void> redirect_to_control_characters() {
  ScriptedTarget target;
  auto pending = PendingLogin::start(options_for(target));
  co_await redirect_to(target, "\x1b]0;x\x07\xc2\x9b", LoginStatus::kMovedTemporarily);
  co_await pending->done.wait();
  REQUIRE_FALSE(pending->result->has_value());
  CHECK(pending->result->error().message ==
        "redirected to \"\\x1b]0;x\\x07\\x9b\", which is not an IP address");
}

Task<void> refuse_with(LoginStatus status, Error expected) {
  ScriptedTarget target;
  auto pending = PendingLogin::start(options_for(target));
  const std::unique_ptr<ScriptedConnection> connection = co_await target.accept();
  const ScriptedPdu request = co_await connection->next();
  co_await connection->respond(parse_login_request(request.bhs), status, "", 0);
  co_await pending->done.wait();
  CHECK_FALSE(pending->result->has_value());
  if (pending->result->has_value()) co_return;
  CHECK(pending->result->error().error == expected);
  CHECK(pending->result->error().status_class == status_class(status));
  CHECK(pending->result->error().status_detail == status_detail(status));
}

Task<void> never_answer() {
  ScriptedTarget target;
  auto pending = PendingLogin::start(options_for(target));
  const TimePoint start = Executor::current().now();
  const std::unique_ptr<ScriptedConnection> connection = co_await target.accept();
  co_await pending->done.wait();
  CHECK_FALSE(pending->result->has_value());
  CHECK(pending->result->error().error == Error::kTimedOut);
  CHECK(Executor::current().now() - start < std::chrono::seconds(16));
}

// What a target may send in place of a Login Response.
Task<void> answer_badly(std::function<void(LoginResponse& response)> spoil) {
  ScriptedTarget target;
  auto pending = PendingLogin::start(options_for(target));
  const std::unique_ptr<ScriptedConnection> connection = co_await target.accept();
  const ScriptedPdu request = co_await connection->next();
  const LoginRequest login = parse_login_request(request.bhs);
  const std::string text("AuthMethod=None\0", 16);
  LoginResponse response{.transit = true,
                         .current_stage = 0,
                         .next_stage = 1,
                         .data_segment_length = static_cast<std::uint32_t>(text.size()),
                         .isid = login.isid,
                         .numbers = connection->numbers()};
  spoil(response);
  Bhs bhs;
  write_login_response(response, bhs);
  const auto bytes = std::as_bytes(std::span(text));
  co_await connection->send(bhs, {bytes.begin(), bytes.begin() + response.data_segment_length});
  co_await pending->done.wait();
  CHECK_FALSE(pending->result->has_value());
}

// A target that impersonates another one would rather not prove anything.
Task<void> evade_proof(bool late, bool mutual, const char* methods, bool accepted) {
  ScriptedTarget target;
  InitiatorOptions options = options_for(target);
  options.chap = ChapIdentity{.user = "host", .secret = "host-secret-1"};
  if (mutual) options.mutual_chap = ChapIdentity{.user = "array", .secret = "array-secret-1"};
  if (methods != nullptr) options.keys["AuthMethod"] = methods;
  auto pending = PendingLogin::start(options);
  const std::unique_ptr<ScriptedConnection> connection = co_await target.accept();
  ScriptedPdu request = co_await connection->next();
  LoginRequest login = parse_login_request(request.bhs);
  connection->exp_cmd_sn = login.cmd_sn;
  connection->max_cmd_sn = login.cmd_sn + 3;
  if (late) {
    co_await connection->respond(login, LoginStatus::kSuccess, std::string("AuthMethod=CHAP\0", 16),
                                 7);
    request = co_await connection->next();
    login = parse_login_request(request.bhs);
    co_await connection->respond(
        login, LoginStatus::kSuccess,
        std::string("CHAP_A=5\0CHAP_I=1\0CHAP_C=0x000102030405060708090a0b0c0d0e0f\0", 60), 7);
    request = co_await connection->next();
    CHECK(request.text().find("CHAP_R=") != std::string::npos);
    login = parse_login_request(request.bhs);
    login.transit = true;
    login.next_stage = 1;
  }
  co_await connection->respond(login, LoginStatus::kSuccess, std::string("AuthMethod=None\0", 16),
                               7);
  if (accepted) {
    co_await connection->log_in();
    co_await pending->done.wait();
    CHECK(pending->result->has_value());
    if (!pending->result->has_value()) co_return;
    auto closing = PendingClose::start(***pending->result);
    co_await ScriptedSession::answer_logout(*connection);
    connection->reset();
    co_await closing->done.wait();
    co_return;
  }
  const ScriptedPdu after = co_await connection->next();
  CHECK(after.closed);
  co_await pending->done.wait();
  CHECK_FALSE(pending->result->has_value());
  if (pending->result->has_value()) co_return;
  CHECK(pending->result->error().error == Error::kPermission);
}

}  // namespace

TEST_CASE("A target does not evade CHAP by an AuthMethod that was not offered",
          "[initiator][login][chap]") {
  in_world([] { return evade_proof(false, true, nullptr, false); });
  in_world([] { return evade_proof(false, false, nullptr, false); });
  in_world([] { return evade_proof(false, true, "CHAP,None", false); });
  in_world([] { return evade_proof(true, true, "CHAP,None", false); });
  in_world([] { return evade_proof(true, false, "CHAP,None", false); });
  in_world([] { return evade_proof(false, false, "CHAP,None", true); });
}

TEST_CASE("The first login request says who we are and what we offer", "[initiator][login]") {
  in_world(log_in_and_look);
}

TEST_CASE("A login response in pieces (C bit) is put together", "[initiator][login]") {
  in_world(answer_in_pieces);
}

TEST_CASE("Redirections are followed", "[initiator][login]") {
  in_world([] { return follow_a_redirection(LoginStatus::kMovedTemporarily); });
  in_world([] { return follow_a_redirection(LoginStatus::kMovedPermanently); });
}

TEST_CASE("A redirection to no address commands no terminal", "[X9][initiator][login]") {
  in_world(redirect_to_control_characters);
}

TEST_CASE("A circle of redirections ends", "[initiator][login]") { in_world(redirect_in_a_circle); }

TEST_CASE("A refused login tells the target's status", "[initiator][login]") {
  in_world([] { return refuse_with(LoginStatus::kAuthenticationFailure, Error::kPermission); });
  in_world([] { return refuse_with(LoginStatus::kTargetNotFound, Error::kNotFound); });
  in_world([] { return refuse_with(LoginStatus::kServiceUnavailable, Error::kNotReady); });
  in_world([] { return refuse_with(LoginStatus::kOutOfResources, Error::kNoMemory); });
}

TEST_CASE("A target that never answers a login is given up in time", "[initiator][login]") {
  in_world(never_answer);
}

TEST_CASE("Nonsense in place of a login response fails the login", "[initiator][login]") {
  in_world([] { return answer_badly([](LoginResponse& r) { r.isid.bytes[5] ^= std::byte{1}; }); });
  in_world([] { return answer_badly([](LoginResponse& r) { r.current_stage = 1; }); });
  in_world([] { return answer_badly([](LoginResponse& r) { r.next_stage = 0; }); });
  in_world([] { return answer_badly([](LoginResponse& r) { r.version_active = 1; }); });
  // A pair without its delimiter.
  in_world([] { return answer_badly([](LoginResponse& r) { r.data_segment_length = 12; }); });
}

TEST_CASE("Nobody listens: the login says so", "[initiator][login]") {
  in_world([]() -> Task<void> {
    InitiatorOptions options = ScriptedSession::defaults();
    options.endpoint = Endpoint::ipv4(0x7F000001, 9999);
    const LoginResult result = co_await InitiatorSession::login(std::move(options));
    CHECK_FALSE(result.has_value());
    if (!result.has_value()) CHECK(result.error().error == Error::kRefused);
  });
}

TEST_CASE("A key that cannot be offered is refused before anything is sent", "[initiator][login]") {
  in_world([]() -> Task<void> {
    InitiatorOptions options = ScriptedSession::defaults();
    options.keys["MaxBurstLength"] = "7";
    const LoginResult result = co_await InitiatorSession::login(std::move(options));
    CHECK_FALSE(result.has_value());
    if (!result.has_value()) {
      CHECK(result.error().message.find("MaxBurstLength") != std::string::npos);
    }
  });
}

}  // namespace sandbay::iscsi::test
