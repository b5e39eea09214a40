// Fuzzes the target's login: the input is a policy byte and then requests, each of a flags byte (as
// byte 1 of the BHS), a length of two bytes and text. A text that starts with "@" gets the right
// CHAP response to the last challenge in front, so that the way behind CHAP is open too.
//
// Nothing reaches an assertion, every response is well formed, and nobody who has to prove himself
// gets in without.
#include <algorithm>
#include <cstdlib>

#include "iscsi/login.h"

namespace sandbay::iscsi {
namespace {

constexpr std::string_view kSecret = "the secret";

void require(bool held) {
  if (!held) std::abort();
}

class Policy final : public LoginPolicy {
 public:
  explicit Policy(unsigned choice) {
    admission_.chap_required = (choice & 1U) != 0;
    if ((choice & 3U) != 0) admission_.credentials = {{.user = "user", .secret = "the secret"}};
    if ((choice & 4U) != 0) admission_.mutual_chap = {.user = "array", .secret = "array's secret"};
    if ((choice & 8U) != 0) admission_.session = SessionParameters{.max_burst_length = 512};
    if ((choice & 16U) != 0) admission_.status = LoginStatus::kMovedTemporarily;
    if ((choice & 32U) != 0) {
      admission_.preferences = KeyPreferences::for_target()
                                   .with({{"MaxBurstLength", "4096"},
                                          {"HeaderDigest", "CRC32C"},
                                          {"ErrorRecoveryLevel", "2"}})
                                   .value();
    }
  }
  Admission admit(const LoginIdentity& identity) override {
    require(!identity.initiator_name.empty());
    require(identity.discovery || !identity.target_name.empty());
    return admission_;
  }

 private:
  Admission admission_{.redirect_address = "192.0.2.1:3260", .target_alias = "alias"};
};

std::string chap_answer(const std::string& response) {
  const auto pairs = parse_text(response);
  if (!pairs.has_value()) return {};
  std::string algorithm_text, identifier_text, challenge_text;
  for (const KeyValue& pair : *pairs) {
    if (pair.key == "CHAP_A") algorithm_text = pair.value;
    if (pair.key == "CHAP_I") identifier_text = pair.value;
    if (pair.key == "CHAP_C") challenge_text = pair.value;
  }
  const auto algorithm = chap_algorithm_from(algorithm_text);
  const auto identifier = parse_number(identifier_text);
  const auto challenge = parse_binary(challenge_text, kMaximumChapBytes);
  if (!algorithm || !identifier || !challenge) return {};
  std::string answer;
  append_pair(answer, "CHAP_N", "user");
  append_pair(answer, "CHAP_R",
              format_hexadecimal(chap_response(*algorithm, static_cast<std::uint8_t>(*identifier),
                                               kSecret, *challenge)));
  return answer;
}

void check(TargetLogin& login, LoginOutcome outcome) {
  const LoginResponse& response = login.response();
  require((outcome == LoginOutcome::kFail) == (response.status != LoginStatus::kSuccess));
  require(!(response.transit && response.continues));
  require(response.data_segment_length == login.response_text().size());
  require(login.response_text().size() <= 8192);
  Bhs bhs;
  write_login_response(response, bhs);
  require(parse_login_response(bhs).has_value());
}

void run(std::span<const std::uint8_t> input) {
  if (input.empty()) return;
  const unsigned choice = input[0];
  input = input.subspan(1);
  Policy policy(choice);
  ChallengeRegistry challenges;
  std::uint8_t next = 1;
  TargetLogin login(
      policy, challenges,
      [&next](std::span<std::byte> bytes) {
        for (std::byte& byte : bytes) byte = std::byte(next++);
      },
      7);
  while (input.size() >= 3) {
    const std::uint8_t flags = input[0];
    const std::size_t length = std::min<std::size_t>(input[1] * 256U + input[2], input.size() - 3);
    std::string text(reinterpret_cast<const char*>(input.data()) + 3, length);
    input = input.subspan(3 + length);
    if (text.starts_with('@')) text = chap_answer(login.response_text()) + text.substr(1);
    Bhs bhs{};
    bhs[1] = std::byte(flags & 0xcfU);
    if ((choice & 8U) != 0) bhs[15] = std::byte{9};
    bhs[3] = std::byte((flags & 0x30U) == 0x30U ? 1 : 0);
    const LoginRequest request = parse_login_request(bhs);
    const LoginOutcome outcome = login.receive(request, std::as_bytes(std::span(text)));
    check(login, outcome);
    if (outcome == LoginOutcome::kRespond) continue;
    require(login.receive(request, {}) == LoginOutcome::kFail || outcome == LoginOutcome::kPlace);
    if (outcome == LoginOutcome::kFail) return;
    require((choice & 1U) == 0 || login.chap_user() == "user");
    const SessionParameters& session = login.parameters().session;
    require(session.first_burst_length <= session.max_burst_length);
    return;
  }
}

}  // namespace
}  // namespace sandbay::iscsi

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sandbay::iscsi::run({data, size});
  return 0;
}
