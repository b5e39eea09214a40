// Who may begin a discovery session: access records and CHAP, both ways, for sessions that name a
// target and for those that name none (RFC 7143 sections 4.3 and 12.1).
#include <catch2/catch.hpp>

#include "iscsi/initiator.h"
#include "target_bench.h"

namespace sandbay::iscsi::test {
namespace {

constexpr const char* kFinder = "iqn.2026-11.org.sandbay:finder";
constexpr const char* kOther = "iqn.2026-11.org.sandbay:other";
constexpr const char* kGuarded = "iqn.2026-11.org.sandbay:guarded";
constexpr unsigned kAuthenticationFailed = 0x0201;
constexpr unsigned kAuthorizationFailed = 0x0202;

ChapCredential credential(std::string user) { return {.user = user, .secret = user + "-secret-"}; }

// Status class and detail; 0: it went in and got the list.
Task<unsigned> discover(Bench& bench, const char* name, std::string user, std::string secret,
                        std::string proof = "") {
  InitiatorOptions options{.endpoint = bench.endpoint(), .initiator_name = name};
  if (!user.empty()) options.chap = ChapIdentity{.user = user, .secret = secret};
  if (!proof.empty()) options.mutual_chap = ChapIdentity{.user = "array", .secret = proof};
  auto session = co_await InitiatorSession::login(std::move(options));
  if (!session) {
    const LoginFailure& failure = session.error();
    if (failure.status_class == 0) co_return 1;  // It was us who went.
    co_return unsigned{failure.status_class} << 8U | failure.status_detail;
  }
  const auto list = co_await (*session)->text(text_of("SendTargets=All"));
  CHECK(list.has_value());
  if (list) CHECK(list->find(kBenchTarget) != std::string::npos);
  co_await (*session)->close();
  co_return 0;
}

Task<void> demanded(Bench& bench) {
  unsigned status = co_await discover(bench, kOther, "", "");
  CHECK(status == 0);  // Until something else is said.
  std::string message;
  const Error set = bench.server().set_discovery(
      {.access = {{.initiator = kFinder, .chap = credential("finder")}},
       .mutual_chap = credential("array"),
       .chap_digests = {"SHA-256", "MD5"}},
      &message);
  CHECK(set == Error::kNone);
  status = co_await discover(bench, kFinder, "finder", "finder-secret-");
  CHECK(status == 0);
  status = co_await discover(bench, kFinder, "finder", "finder-secret-", "array-secret-");
  CHECK(status == 0);
  status = co_await discover(bench, kFinder, "finder", "finder-secret-", "another-secret");
  CHECK(status == 1);
  status = co_await discover(bench, kFinder, "", "");
  CHECK(status == kAuthenticationFailed);
  status = co_await discover(bench, kFinder, "finder", "another-secret");
  CHECK(status == kAuthenticationFailed);
  status = co_await discover(bench, kFinder, "array", "array-secret-");
  CHECK(status == kAuthenticationFailed);
  status = co_await discover(bench, kOther, "finder", "finder-secret-");
  CHECK(status == kAuthorizationFailed);
  // Sessions with the target are not concerned.
  co_await bench.session();
  RawInitiator& skips = *co_await bench.connect();
  const RawPdu refused = co_await skips.log_in({.initiator = kFinder, .target = ""});
  CHECK(static_cast<unsigned>(refused.login().status) == kAuthenticationFailed);

  const Error back = bench.server().set_discovery({.access = {AccessRecord{}}}, nullptr);
  CHECK(back == Error::kNone);
  status = co_await discover(bench, kOther, "", "");
  CHECK(status == 0);
}

Task<RawPdu> name_target(Bench& bench, std::string target) {
  RawInitiator& peer = *co_await bench.connect();
  LoginRequest request{.transit = true, .current_stage = 1, .next_stage = 3, .cmd_sn = 100};
  request.isid.bytes = {std::byte{0x80}};
  Bhs bhs;
  write_login_request(request, bhs);
  co_await peer.send(bhs, bytes_of(text_of("InitiatorName=" + std::string(kOther) +
                                           ";SessionType=Discovery;TargetName=" + target)));
  RawPdu answer = co_await peer.next();
  co_return answer;
}

// A session that names a target: its own records first, then those of discovery.
Task<void> named(Bench& bench) {
  TargetOptions guarded{
      .name = kGuarded, .device = &bench.router(), .access = {{.chap = credential("host")}}};
  const Error added = co_await bench.server().add_target(std::move(guarded), nullptr);
  CHECK(added == Error::kNone);
  const auto status_of = [](const RawPdu& pdu) {
    return static_cast<unsigned>(pdu.login().status);
  };
  RawPdu answer = co_await name_target(bench, kBenchTarget);
  CHECK(status_of(answer) == 0);
  answer = co_await name_target(bench, kGuarded);
  CHECK(status_of(answer) == kAuthenticationFailed);
  const Error set = bench.server().set_discovery({.access = {{.initiator = kFinder}}}, nullptr);
  CHECK(set == Error::kNone);
  answer = co_await name_target(bench, kBenchTarget);
  CHECK(status_of(answer) == kAuthorizationFailed);
  answer = co_await name_target(bench, kGuarded);
  CHECK(status_of(answer) == kAuthenticationFailed);
}

Task<void> wrong_options(Bench& bench) {
  TargetServer& server = bench.server();
  std::string message;
  Error error = server.set_discovery({.access = {{.address = "here"}}}, &message);
  CHECK(error == Error::kInvalid);
  CHECK(message == "access: \"here\" is not an address or a network such as 192.0.2.0/24");
  error = server.set_discovery({.chap_digests = {"ROT13"}}, &message);
  CHECK(error == Error::kInvalid);
  CHECK(message.find("ROT13") != std::string::npos);
  const unsigned status = co_await discover(bench, kOther, "", "");
  CHECK(status == 0);
}

}  // namespace

TEST_CASE("Discovery sessions may have to prove themselves, and so may the target") {
  on_bench({}, demanded);
}
TEST_CASE("A discovery session that names a target is let in by the target or by discovery") {
  on_bench({}, named);
}
TEST_CASE("What discovery cannot demand is refused and changes nothing") {
  on_bench({}, wrong_options);
}

}  // namespace sandbay::iscsi::test
