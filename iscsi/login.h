// TargetLogin: the target's side of one connection's login (RFC 7143 sections 6.3, 11.12, 11.13)
// as a pure state machine: Login Requests go in, Login Responses come out. It knows stages, keys,
// CHAP and limits; it knows no sockets, sessions or time. The connection is in state S4:IN_LOGIN
// (section 8.1) for as long as it lives.
//
// Use: receive() every Login Request with its data segment. The outcome says what to do:
//   kRespond  send the response and its text, receive the next request
//   kPlace    both sides agree; place the connection in its session (which may take a while: a
//             session that is reinstated first ends its commands), then call accept() or refuse()
//             and send the response that they give
//   kFail     send the response, close the connection
// Nothing that a peer sends reaches an assertion; the number of exchanges and all text is bounded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "iscsi/chap.h"
#include "iscsi/negotiation.h"
#include "iscsi/pdu.h"
#include "iscsi/text.h"

namespace sandbay::iscsi {

// Who logs in and where to: known once the first request is complete.
struct LoginIdentity {
  std::string initiator_name;
  std::string initiator_alias;
  std::string target_name;  // May be empty in a discovery session.
  bool discovery = false;
  Isid isid;
  std::uint16_t tsih = 0;  // 0: a new session (or reinstatement).
  std::uint16_t cid = 0;
  std::uint32_t cmd_sn = 0;       // Of the first request.
  std::uint32_t exp_stat_sn = 0;  // Of the first request: of the connection that is reinstated.
};

// What the target thinks of it.
struct Admission {
  // kSuccess, or why not: kTargetNotFound, kTargetRemoved, kAuthorizationFailure,
  // kSessionTypeNotSupported, kSessionDoesNotExist, kTooManyConnections,
  // kCannotIncludeInSession, kOutOfResources, kServiceUnavailable, kMovedTemporarily,
  // kMovedPermanently …
  LoginStatus status = LoginStatus::kSuccess;
  std::string redirect_address;  // With kMoved…: TargetAddress without portal group tag.
  std::string target_alias;      // Told to the initiator if not empty.
  std::uint16_t portal_group_tag = 1;
  bool chap_required = false;
  std::vector<ChapCredential> credentials;  // Empty: CHAP cannot be used.
  std::optional<ChapCredential> mutual_chap;
  std::vector<ChapAlgorithm> chap_algorithms;  // Empty: all.
  std::optional<KeyPreferences> preferences;   // The target's; KeyPreferences::for_target() if not.
  // What holds in the session that a connection is to be added to.
  std::optional<SessionParameters> session;
  std::optional<std::uint32_t> first_stat_sn;      // Nothing: the login's own.
  std::size_t segment_bytes = kLoginSegmentBytes;  // Text in one response, at most.
};

// Answers the login's question. Lives as long as the login.
class LoginPolicy {
 public:
  virtual ~LoginPolicy() = default;
  // Asked once, when the first request is complete; answers at once.
  virtual Admission admit(const LoginIdentity& identity) = 0;
};

enum class LoginOutcome : std::uint8_t { kRespond, kPlace, kFail };

struct LoginLimits {
  unsigned maximum_requests = 64;                      // In one login.
  std::size_t maximum_text_bytes = kMaximumTextBytes;  // In one logical text data segment.
};

class TargetLogin {
 public:
  using Limits = LoginLimits;

  // `policy` and `challenges` outlive the login. `initial_stat_sn` is the first response's.
  TargetLogin(LoginPolicy& policy, ChallengeRegistry& challenges, RandomSource random,
              std::uint32_t initial_stat_sn, Limits limits = {});
  ~TargetLogin();
  TargetLogin(const TargetLogin&) = delete;
  TargetLogin& operator=(const TargetLogin&) = delete;

  LoginOutcome receive(const LoginRequest& request, std::span<const std::byte> data);
  // A PDU other than a Login Request came (status 020b), or one that cannot be used otherwise
  // (digest or length: kInitiatorError). The response answers `initiator_task_tag`.
  LoginOutcome fail(LoginStatus status, std::uint32_t initiator_task_tag,
                    std::string_view diagnosis);

  // After kPlace. `tsih` is the session's. The response is the login's last.
  void accept(std::uint16_t tsih);
  void refuse(LoginStatus status, std::string_view diagnosis);

  // To send. StatSN is set; ExpCmdSN and MaxCmdSN are both the first request's CmdSN, for the
  // caller to replace where it knows better (the window; a session that exists).
  LoginResponse& response() noexcept { return response_; }
  const std::string& response_text() const noexcept { return response_text_; }

  const LoginIdentity& identity() const noexcept { return identity_; }
  // Holds from kPlace on.
  const NegotiatedParameters& parameters() const noexcept { return negotiator_.result(); }
  // Refused for a wrong CHAP response.
  bool chap_failed() const noexcept {
    return chap_ != nullptr && response_.status == LoginStatus::kAuthenticationFailure;
  }
  // The next request has a CHAP response, which is a guess at the secret until it is checked.
  bool expects_response() const noexcept { return chap_ != nullptr && chap_->challenged(); }
  const std::string& chap_user() const noexcept { return chap_user_; }  // Empty without CHAP.
  // StatSN of the next response on the connection.
  std::uint32_t next_stat_sn() const noexcept { return next_stat_sn_; }
  // Why it failed, for the log; one sentence.
  const std::string& diagnosis() const noexcept { return diagnosis_; }

 private:
  enum class Step : std::uint8_t { kGathering, kSending, kPlacing, kEnded };
  using Refusal = std::optional<LoginStatus>;  // Nothing: go on.

  Refusal check_first_header(const LoginRequest& request);
  Refusal check_header(const LoginRequest& request);
  Refusal take_text();
  Refusal read_identity(std::span<const KeyValue> pairs);
  Refusal ask_policy();
  Refusal run_security(const std::vector<KeyValue>& keys, std::vector<KeyValue>& answers);
  Refusal choose_method(std::string_view offered, std::vector<KeyValue>& answers);
  Refusal run_chap(std::span<const KeyValue> keys, std::vector<KeyValue>& answers);
  Refusal wrong(LoginStatus status, std::string diagnosis);
  void begin_response();
  LoginOutcome respond();
  LoginOutcome conclude_stage();
  LoginOutcome end_with(LoginStatus status);
  void add_first_declarations(std::vector<KeyValue>& answers);
  void add_operational_declarations(std::vector<KeyValue>& answers);
  bool authenticated() const noexcept;

  LoginPolicy& policy_;
  ChallengeRegistry& challenges_;
  RandomSource random_;
  Limits limits_;
  Negotiator negotiator_;
  TextAssembler assembler_;
  TextSplitter to_send_;
  LoginIdentity identity_;
  Admission admission_;
  LoginRequest first_;
  LoginRequest request_;  // The one being answered.
  LoginResponse response_;
  std::string response_text_;
  std::string diagnosis_;
  std::string chap_user_;
  std::unique_ptr<ChapTarget> chap_;
  std::uint32_t next_stat_sn_;
  unsigned requests_ = 0;
  Step step_ = Step::kGathering;
  LoginStage stage_ = LoginStage::kSecurity;
  bool admitted_ = false;
  bool method_chosen_ = false;
  bool method_proposed_ = false;  // By us: the initiator has not offered any.
  bool declared_operational_ = false;
};

}  // namespace sandbay::iscsi
