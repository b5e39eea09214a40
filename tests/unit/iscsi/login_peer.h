// An initiator's end of a login, for tests: makes requests, reads responses, and a policy whose
// answer the test sets.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "iscsi/login.h"

namespace sandbay::iscsi {

class TestPolicy final : public LoginPolicy {
 public:
  Admission admit(const LoginIdentity&) override {
    ++asked;
    return admission;
  }
  void require_chap() {
    admission.chap_required = true;
    admission.credentials = {{.user = "user", .secret = "the secret"}};
  }

  Admission admission{.target_alias = "a disk", .portal_group_tag = 3};
  int asked = 0;
};

struct LoginPeer {
  struct Header {
    std::uint8_t stage = 0;
    std::uint8_t next = 0;
    bool transit = true;
    bool continues = false;
    std::uint8_t version_minimum = 0;
    std::uint16_t tsih = 0;
  };

  static Isid isid() {
    return {
        {std::byte{0x80}, std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5}}};
  }

  static LoginRequest request(const Header& header) {
    return {.transit = header.transit,
            .continues = header.continues,
            .current_stage = header.stage,
            .next_stage = header.next,
            .version_minimum = header.version_minimum,
            .isid = isid(),
            .tsih = header.tsih,
            .initiator_task_tag = 0x55,
            .cid = 1,
            .cmd_sn = 42};
  }

  // The names of RFC 7143's appendix B, and more keys.
  static std::vector<KeyValue> names(std::vector<KeyValue> more = {}) {
    std::vector<KeyValue> pairs{{"InitiatorName", "iqn.1999-07.com.os:hostid.77"},
                                {"TargetName", "iqn.1999-07.com.example:diskarray.sn.88"}};
    pairs.insert(pairs.end(), more.begin(), more.end());
    return pairs;
  }

  LoginOutcome send_text(const Header& header, const std::string& text) {
    return login.receive(request(header), std::as_bytes(std::span(text)));
  }
  LoginOutcome send(const Header& header, const std::vector<KeyValue>& pairs) {
    return send_text(header, format_text(pairs));
  }

  std::vector<KeyValue> received() const { return parse_text(login.response_text()).value(); }
  // Of a key in the last response; empty if it is not there.
  std::string value(std::string_view key) const {
    for (const KeyValue& pair : received()) {
      if (pair.key == key) return pair.value;
    }
    return {};
  }
  // CHAP_N and CHAP_R to the challenge in the last response.
  std::vector<KeyValue> chap_answer(std::string_view secret = "the secret") const {
    const auto algorithm = chap_algorithm_from(value("CHAP_A")).value();
    const auto identifier = static_cast<std::uint8_t>(parse_number(value("CHAP_I")).value());
    const auto challenge = parse_binary(value("CHAP_C"), kMaximumChapBytes).value();
    return {
        {"CHAP_N", "user"},
        {"CHAP_R", format_hexadecimal(chap_response(algorithm, identifier, secret, challenge))}};
  }

  TestPolicy policy;
  ChallengeRegistry challenges;
  TargetLogin login{policy, challenges, openssl_random(), 1000};
};

}  // namespace sandbay::iscsi
