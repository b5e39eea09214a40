// The frame of the target's login: headers, stages, the C bit both ways and the responses
// (RFC 7143 sections 6.3, 11.12 and 11.13). What the stages say to each other is in
// login_security.cc and in the negotiation engine.
#include "iscsi/login.h"

#include <fmt/core.h>

#include <cassert>
#include <utility>

#include "iscsi/access.h"

namespace sandbay::iscsi {
namespace {

// Both sides use the default MaxRecvDataSegmentLength during login (section 6.3).

constexpr std::uint8_t code(LoginStage stage) { return static_cast<std::uint8_t>(stage); }

NegotiationPhase phase_of(LoginStage stage) {
  return stage == LoginStage::kSecurity ? NegotiationPhase::kSecurity
                                        : NegotiationPhase::kOperational;
}

// The first pair of that key; the negotiation engine judges repetitions.
const std::string* find(std::span<const KeyValue> pairs, KeyId id) {
  for (const KeyValue& pair : pairs) {
    if (pair.key == row_of(id).name) return &pair.value;
  }
  return nullptr;
}

}  // namespace

TargetLogin::TargetLogin(LoginPolicy& policy, ChallengeRegistry& challenges, RandomSource random,
                         std::uint32_t initial_stat_sn, Limits limits)
    : policy_(policy),
      challenges_(challenges),
      random_(std::move(random)),
      limits_(limits),
      negotiator_(Role::kTarget, KeyPreferences::for_target()),
      assembler_(limits.maximum_text_bytes),
      next_stat_sn_(initial_stat_sn) {}

TargetLogin::~TargetLogin() = default;

TargetLogin::Refusal TargetLogin::wrong(LoginStatus status, std::string diagnosis) {
  diagnosis_ = std::move(diagnosis);
  return status;
}

LoginOutcome TargetLogin::receive(const LoginRequest& request, std::span<const std::byte> data) {
  request_ = request;
  if (step_ == Step::kPlacing || step_ == Step::kEnded) {
    diagnosis_ = "a Login Request came while the login was being concluded";
    return end_with(LoginStatus::kInitiatorError);
  }
  ++requests_;
  if (requests_ > limits_.maximum_requests) {
    diagnosis_ = fmt::format("the login takes more than {} requests", limits_.maximum_requests);
    return end_with(LoginStatus::kInitiatorError);
  }
  const Refusal bad_header = requests_ == 1 ? check_first_header(request) : check_header(request);
  if (bad_header.has_value()) return end_with(*bad_header);

  if (step_ == Step::kSending) {
    // Section 6.2: a response with the C bit is answered by an empty request.
    if (!data.empty() || request.continues) {
      diagnosis_ = "text came while the target's own text was not finished";
      return end_with(LoginStatus::kInitiatorError);
    }
    return respond();
  }
  if (!assembler_.append(data)) {
    diagnosis_ = fmt::format("more than {} bytes of text", limits_.maximum_text_bytes);
    return end_with(LoginStatus::kInitiatorError);
  }
  if (request.continues) {
    begin_response();
    return LoginOutcome::kRespond;
  }
  const Refusal refusal = take_text();
  if (refusal.has_value()) return end_with(*refusal);
  return respond();
}

TargetLogin::Refusal TargetLogin::check_first_header(const LoginRequest& request) {
  first_ = request;
  identity_.isid = request.isid;
  identity_.tsih = request.tsih;
  identity_.cid = request.cid;
  identity_.cmd_sn = request.cmd_sn;
  identity_.exp_stat_sn = request.exp_stat_sn;
  // Section 11.12.4: the only version is 0.
  if (request.version_minimum != 0) {
    return wrong(LoginStatus::kUnsupportedVersion,
                 fmt::format("the initiator needs protocol version {}", request.version_minimum));
  }
  if (request.current_stage != code(LoginStage::kSecurity) &&
      request.current_stage != code(LoginStage::kOperational)) {
    return wrong(LoginStatus::kInitiatorError,
                 fmt::format("a login cannot start in stage {}", request.current_stage));
  }
  stage_ = static_cast<LoginStage>(request.current_stage);
  negotiator_.enter(phase_of(stage_));
  negotiator_.set_leading(request.tsih == 0);
  return check_header(request);
}

TargetLogin::Refusal TargetLogin::check_header(const LoginRequest& request) {
  // Sections 6.3, 11.12.5, 11.12.6 and 11.12.7.
  if (request.isid != first_.isid || request.tsih != first_.tsih || request.cid != first_.cid ||
      request.initiator_task_tag != first_.initiator_task_tag) {
    return wrong(LoginStatus::kInitiatorError,
                 "ISID, TSIH, CID or Initiator Task Tag changed during the login");
  }
  if (request.current_stage != code(stage_)) {
    return wrong(LoginStatus::kInitiatorError, fmt::format("stage {} in a request of stage {}",
                                                           request.current_stage, code(stage_)));
  }
  if (!request.transit) return std::nullopt;
  if (request.continues) {
    return wrong(LoginStatus::kInitiatorError, "the T and the C bit in one request");
  }
  const bool forward =
      request.next_stage == code(LoginStage::kFullFeature) ||
      (request.next_stage == code(LoginStage::kOperational) && stage_ == LoginStage::kSecurity);
  if (!forward) {
    return wrong(LoginStatus::kInitiatorError,
                 fmt::format("no way from stage {} to {}", code(stage_), request.next_stage));
  }
  return std::nullopt;
}

// A logical text data segment is complete: what it asks for, and our answers to it.
TargetLogin::Refusal TargetLogin::take_text() {
  const auto pairs = parse_text(assembler_.take());
  if (!pairs.has_value()) {
    return wrong(LoginStatus::kInitiatorError, std::string(describe(pairs.error())));
  }
  const bool first = !admitted_;
  if (first) {
    Refusal refusal = read_identity(*pairs);
    if (!refusal.has_value()) refusal = ask_policy();
    if (refusal.has_value()) return refusal;
    admitted_ = true;
  }
  auto reply = negotiator_.receive(*pairs);
  if (!reply.has_value()) {
    return wrong(LoginStatus::kInitiatorError, reply.error().to_string());
  }
  identity_.initiator_alias = negotiator_.declared(KeyId::kInitiatorAlias);
  std::vector<KeyValue> answers;
  if (first) add_first_declarations(answers);
  if (stage_ == LoginStage::kSecurity) {
    const Refusal refusal = run_security(reply->handed_over, answers);
    if (refusal.has_value()) return refusal;
  }
  answers.insert(answers.end(), reply->answers.begin(), reply->answers.end());
  if (stage_ == LoginStage::kOperational) {
    add_operational_declarations(answers);
    // Only now may we make offers: the initiator has made all of its own.
    if (request_.transit) negotiator_.offer_what_defaults_forbid(answers);
  }
  to_send_ = TextSplitter(format_text(answers));
  return std::nullopt;
}

TargetLogin::Refusal TargetLogin::read_identity(std::span<const KeyValue> pairs) {
  const std::string* const initiator = find(pairs, KeyId::kInitiatorName);
  const std::string* const target = find(pairs, KeyId::kTargetName);
  const std::string* const type = find(pairs, KeyId::kSessionType);
  const std::string* const alias = find(pairs, KeyId::kInitiatorAlias);
  if (initiator == nullptr || initiator->empty()) {
    return wrong(LoginStatus::kMissingParameter, "InitiatorName is missing");
  }
  if (!is_acceptable_name(*initiator)) {
    return wrong(LoginStatus::kInitiatorError, "InitiatorName is not an iSCSI name");
  }
  if (type != nullptr && *type != "Normal" && *type != "Discovery") {
    return wrong(LoginStatus::kSessionTypeNotSupported,
                 fmt::format("SessionType={} is unknown", type->substr(0, 80)));
  }
  identity_.discovery = type != nullptr && *type == "Discovery";
  if (!identity_.discovery && (target == nullptr || target->empty())) {
    return wrong(LoginStatus::kMissingParameter, "TargetName is missing");
  }
  // A discovery session has one connection (section 13.21).
  if (identity_.discovery && identity_.tsih != 0) {
    return wrong(LoginStatus::kTooManyConnections, "a discovery session has one connection");
  }
  if (target != nullptr && !target->empty()) {
    if (!is_acceptable_name(*target)) {
      return wrong(LoginStatus::kTargetNotFound, "TargetName is not an iSCSI name");
    }
    identity_.target_name = *target;
  }
  identity_.initiator_name = *initiator;
  if (alias != nullptr) identity_.initiator_alias = *alias;
  negotiator_.set_discovery(identity_.discovery);
  return std::nullopt;
}

TargetLogin::Refusal TargetLogin::ask_policy() {
  admission_ = policy_.admit(identity_);
  if (admission_.status != LoginStatus::kSuccess) {
    return wrong(admission_.status,
                 fmt::format("{} to {}: {}", identity_.initiator_name,
                             identity_.target_name.empty() ? "discovery" : identity_.target_name,
                             name_of(admission_.status)));
  }
  // Responses that only asked for more text have used the login's own.
  if (requests_ == 1) next_stat_sn_ = admission_.first_stat_sn.value_or(next_stat_sn_);
  if (admission_.preferences.has_value()) negotiator_.set_preferences(*admission_.preferences);
  if (admission_.session.has_value()) {
    negotiator_.set_current({.session = *admission_.session, .connection = {}});
  }
  // Section 6.3.1: who wants to skip the security stage can be made to fail.
  if (admission_.chap_required && stage_ != LoginStage::kSecurity) {
    return wrong(LoginStatus::kAuthenticationFailure,
                 fmt::format("{} has to prove itself with CHAP and skips the security stage",
                             identity_.initiator_name));
  }
  return std::nullopt;
}

// Sections 6.3.1 and 13.9: the tag comes with the first response that may carry it.
void TargetLogin::add_first_declarations(std::vector<KeyValue>& answers) {
  if (!identity_.discovery && !admission_.target_alias.empty()) {
    negotiator_.offer_text("TargetAlias", admission_.target_alias, answers);
  }
  negotiator_.offer_text("TargetPortalGroupTag", std::to_string(admission_.portal_group_tag),
                         answers);
}

void TargetLogin::add_operational_declarations(std::vector<KeyValue>& answers) {
  if (declared_operational_) return;
  declared_operational_ = true;
  negotiator_.offer(KeyId::kMaxRecvDataSegmentLength, answers);
}

void TargetLogin::begin_response() {
  response_ = LoginResponse{
      .current_stage = code(stage_),
      .isid = first_.isid,
      .tsih = first_.tsih,
      .initiator_task_tag = request_.initiator_task_tag,
      .numbers = {.stat_sn = next_stat_sn_++,
                  .exp_cmd_sn = first_.cmd_sn,
                  .max_cmd_sn = first_.cmd_sn},
  };
  response_text_.clear();
}

LoginOutcome TargetLogin::respond() {
  begin_response();
  response_text_ = to_send_.take(admission_.segment_bytes);
  response_.data_segment_length = static_cast<std::uint32_t>(response_text_.size());
  if (!to_send_.empty()) {
    response_.continues = true;
    step_ = Step::kSending;
    return LoginOutcome::kRespond;
  }
  step_ = Step::kGathering;
  if (!request_.transit) return LoginOutcome::kRespond;
  return conclude_stage();
}

// The initiator wants to go on, and everything we had to say is said.
LoginOutcome TargetLogin::conclude_stage() {
  if (negotiator_.answers_outstanding()) return LoginOutcome::kRespond;
  auto next = static_cast<LoginStage>(request_.next_stage);
  if (stage_ == LoginStage::kSecurity) {
    if (!authenticated()) return LoginOutcome::kRespond;
    // Defaults that the target cannot live with have to be talked about first.
    if (negotiator_.defaults_are_forbidden()) next = LoginStage::kOperational;
  }
  response_.transit = true;
  response_.next_stage = code(next);
  if (next == LoginStage::kOperational) {
    stage_ = next;
    negotiator_.enter(phase_of(stage_));
    return LoginOutcome::kRespond;
  }
  const auto concluded = negotiator_.conclude();
  if (!concluded.has_value()) {
    diagnosis_ = concluded.error().to_string();
    --next_stat_sn_;  // The response that was begun is not the one that is sent.
    return end_with(LoginStatus::kInitiatorError);
  }
  step_ = Step::kPlacing;
  return LoginOutcome::kPlace;
}

void TargetLogin::accept(std::uint16_t tsih) {
  assert(step_ == Step::kPlacing && tsih != 0);
  response_.tsih = tsih;
  step_ = Step::kEnded;
}

void TargetLogin::refuse(LoginStatus status, std::string_view diagnosis) {
  assert(step_ == Step::kPlacing && status != LoginStatus::kSuccess);
  diagnosis_ = diagnosis;
  --next_stat_sn_;
  end_with(status);
}

LoginOutcome TargetLogin::fail(LoginStatus status, std::uint32_t initiator_task_tag,
                               std::string_view diagnosis) {
  request_.initiator_task_tag = initiator_task_tag;
  diagnosis_ = diagnosis;
  return end_with(status);
}

LoginOutcome TargetLogin::end_with(LoginStatus status) {
  begin_response();
  response_.status = status;
  if (requests_ <= 1) {
    // The first header may not have been taken over.
    response_.isid = request_.isid;
    response_.tsih = request_.tsih;
  }
  if (status_class(status) == 1) {
    append_pair(response_text_, "TargetAddress", admission_.redirect_address);
    response_.data_segment_length = static_cast<std::uint32_t>(response_text_.size());
  }
  step_ = Step::kEnded;
  return LoginOutcome::kFail;
}

}  // namespace sandbay::iscsi
