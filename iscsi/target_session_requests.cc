// NOP, logout and text of a session. RFC 7143 sections 4.3, 11.10, 11.11, 11.14, 11.15, 11.18 and
// 11.19.

#include <algorithm>
#include <string>

#include "iscsi/lead_claim.h"
#include "iscsi/negotiation.h"
#include "iscsi/target_fence.h"
#include "iscsi/target_session.h"
#include "iscsi/text.h"

namespace sandbay::iscsi {

void Session::process_nop_out(ConnectionLink& link, IncomingPdu& pdu) {
  const Result<NopOut, RejectReason> nop = parse_nop_out(pdu.bhs);
  if (!nop) return;  // Rejected before; so below.
  if (is_interfered_with() && interference_->ignores_ping()) return;
  // Section 11.19.3: as much of the ping data as the initiator takes in one PDU.
  const std::size_t most = link.parameters.initiator_max_recv_data_segment_length;
  BufferList echo = std::move(pdu.data);
  if (echo.byte_count() > most) echo = echo.take_front(most);
  Bhs bhs;
  write_nop_in({.data_segment_length = static_cast<std::uint32_t>(echo.byte_count()),
                .lun = nop->lun,
                .initiator_task_tag = nop->initiator_task_tag,
                .numbers = numbers(link)},
               bhs);
  send(link, bhs, std::move(echo), StatSnUse::kConsume);
}

// Logout -------------------------------------------------------------------------------------

void Session::process_logout(ConnectionLink& link, const IncomingPdu& pdu) {
  const Result<LogoutRequest, RejectReason> request = parse_logout_request(pdu.bhs);
  if (!request || !background_.enter()) return;
  spawn(log_out(&link, *request));
}

Task<void> Session::log_out(ConnectionLink* link, LogoutRequest request) {
  const std::shared_ptr<Session> keep = shared_from_this();
  const GateHold hold(background_);
  ++link->pins;
  LogoutResult result = LogoutResult::kClosed;
  const auto named = std::ranges::find_if(
      links_, [&request](const auto& each) { return each->cid == request.cid; });
  const bool whole = request.reason == LogoutReason::kCloseSession;
  if (request.reason == LogoutReason::kRemoveForRecovery) {
    result = LogoutResult::kRecoveryNotSupported;  // ErrorRecoveryLevel 0 and 1.
  } else if (!whole && named == links_.end()) {
    result = LogoutResult::kCidNotFound;
  }
  const bool closes = result == LogoutResult::kClosed;
  const bool this_one = whole || request.cid == link->cid;
  if (closes && this_one) link->leaving = true;
  if (whole) {
    for (const auto& each : links_) each->leaving = true;
  }
  if (closes && !whole && !this_one) {
    break_off(**named);
    // Two connections may log each other out: neither holds on to the other's end.
    const auto is_there = [this, &request] {
      return std::ranges::any_of(links_,
                                 [&request](const auto& each) { return each->cid == request.cid; });
    };
    while (!link->ended && is_there()) co_await changed_.wait();
  }
  // Section 11.14: the answer says that the commands are over, the connection's or the session's;
  // the initiator may send them again at once, and an old write must not come after.
  if (closes && this_one) {
    drop_undelivered(whole ? nullptr : link);
    co_await abort_tasks_of(whole ? nullptr : link);
    // So are the nexus's reservations: whoever is told of the end may use the unit at once.
    if (whole && nexus_ != nullptr) co_await options_.device->detach(*nexus_);
  }
  if (!link->ended) {
    Bhs bhs;
    write_logout_response({.result = result,
                           .initiator_task_tag = request.initiator_task_tag,
                           .numbers = numbers(*link),
                           .time2wait = 0,
                           .time2retain = 0},
                          bhs);
    send(*link, bhs, {}, StatSnUse::kConsume);
    if (closes && this_one) co_await invoke_on(*link->home, link->connection->drain_for_logout());
  }
  unpin(*link);
  if (!closes || !this_one) co_return;
  break_off(*link);
  if (whole) {
    for (const auto& each : links_) break_off(*each);
  }
}

// Text ---------------------------------------------------------------------------------------

void Session::process_text(ConnectionLink& link, IncomingPdu& pdu) {
  const Result<TextRequest, RejectReason> request = parse_text_request(pdu.bhs);
  if (!request) return;
  const bool first = request->target_transfer_tag == kReservedTag;
  if (first) {
    // A new exchange resets one that was not finished (section 11.10.3).
    link.text_in.clear();
    link.text_out = TextSplitter();
    link.text_task_tag = request->initiator_task_tag;
    link.text_transfer_tag = kReservedTag;
  }
  std::vector<std::byte> segment(pdu.data.byte_count());
  pdu.data.copy_to(segment);
  if (!link.text_in.append(segment)) {
    link.text_task_tag = kReservedTag;
    reject(link, RejectReason::kProtocolError, pdu);
    return;
  }
  if (request->continues || (!first && !link.text_out.empty())) {
    answer_text(link, *request);  // An empty answer asks for more; or more of a long answer.
    return;
  }
  if (!background_.enter()) return;
  link.text_busy = true;
  spawn(negotiate_text(&link, *request, pdu.bhs, link.text_in.take()));
}

Task<void> Session::negotiate_text(ConnectionLink* link, TextRequest request, Bhs header,
                                   std::string text) {
  const std::shared_ptr<Session> keep = shared_from_this();
  const GateHold hold(background_);
  ++link->pins;
  const std::optional<std::string> reply = co_await text_reply(*link, std::move(text));
  link->text_busy = false;
  unpin(*link);
  if (link->ended) co_return;
  if (!reply) {
    IncomingPdu bad;
    bad.bhs = header;
    reject(*link, RejectReason::kProtocolError, bad);
    co_return;
  }
  link->text_out = TextSplitter(*reply);
  answer_text(*link, request);
}

// The next piece of the answer, or an empty one while the request goes on.
void Session::answer_text(ConnectionLink& link, const TextRequest& request) {
  const std::string piece =
      link.text_out.take(link.parameters.initiator_max_recv_data_segment_length);
  const bool more = !link.text_out.empty();
  const bool done = !more && !request.continues && request.final;
  link.text_transfer_tag = done ? kReservedTag : next_transfer_tag();
  Bhs bhs;
  write_text_response({.final = done,
                       .continues = more,
                       .data_segment_length = static_cast<std::uint32_t>(piece.size()),
                       .lun = request.lun,
                       .initiator_task_tag = request.initiator_task_tag,
                       .target_transfer_tag = link.text_transfer_tag,
                       .numbers = numbers(link)},
                      bhs);
  send_bytes(link, bhs, std::as_bytes(std::span(piece)), StatSnUse::kConsume);
}

namespace {

// Of a lead that is logged in: what it claims from now on.
Task<LoginStatus> renew_claim(TargetFence* fence, std::string owner, std::string claim) {
  TargetFence::Verdict verdict = fence->judge(claim);
  if (verdict.status != LoginStatus::kSuccess) co_return verdict.status;
  if (verdict.owner != owner) co_return LoginStatus::kAuthorizationFailure;
  verdict = co_await fence->take(std::move(claim));
  co_return verdict.status;
}

}  // namespace

// Nothing: the text breaks the rules.
Task<std::optional<std::string>> Session::text_reply(ConnectionLink& link, std::string text) {
  const auto pairs = parse_text(text);
  if (!pairs) co_return std::nullopt;
  const bool asks =
      std::ranges::any_of(*pairs, [](const KeyValue& pair) { return pair.key == "SendTargets"; });
  if (is_discovery() && !asks) co_return std::nullopt;  // Section 4.3.
  NegotiatedParameters current{.session = options_.parameters, .connection = link.parameters};
  Negotiator negotiator(Role::kTarget, options_.preferences, current);
  negotiator.enter(NegotiationPhase::kFullFeature);
  const auto reply = negotiator.receive(*pairs);
  if (!reply) co_return std::nullopt;
  const auto concluded = negotiator.conclude();
  if (!concluded) co_return std::nullopt;
  link.parameters.initiator_max_recv_data_segment_length =
      negotiator.result().connection.initiator_max_recv_data_segment_length;
  std::string answer;
  for (const KeyValue& pair : reply->handed_over) {
    if (pair.key != "SendTargets") continue;
    const auto local = Endpoint::parse(link.target_address);
    const auto peer = Endpoint::parse(link.initiator_address);
    if (!local || !peer) continue;
    const std::string targets = co_await host_.send_targets(pair.value, options_.initiator_name,
                                                            *local, *peer, options_.target_name);
    answer += targets;
  }
  std::vector<KeyValue> answers = reply->answers;
  const auto& said = negotiator.result().private_keys;
  const auto claim = said.find(std::string(kLeadKey));
  if (options_.fence != nullptr && claim != said.end()) {
    const LoginStatus status = co_await invoke_on(
        *options_.fence_home, renew_claim(options_.fence, options_.owner, claim->second));
    const bool refused = status == LoginStatus::kAuthorizationFailure;
    for (KeyValue& pair : answers) {
      if (pair.key == kLeadKey && refused) pair.value = kRejectValue;
    }
    // Not now: the answer says nothing of it.
    const bool keeps = refused || status == LoginStatus::kSuccess;
    if (!keeps) std::erase_if(answers, [](const KeyValue& pair) { return pair.key == kLeadKey; });
  }
  answer += format_text(answers);
  co_return answer;
}

}  // namespace sandbay::iscsi
