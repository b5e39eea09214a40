// The rules of text negotiation that hold for every key: who may send it, when and how often, and
// what makes an answer to an offer of ours acceptable (RFC 7143 sections 6.2, 6.3, 6.4 and 13).
#include "iscsi/negotiation.h"

#include <fmt/core.h>

#include <algorithm>

#include "iscsi/access.h"
#include "runtime/utf8.h"

namespace sandbay::iscsi {
namespace {

std::unexpected<NegotiationFailure> failure(NegotiationError error, std::string_view key,
                                            std::string_view value) {
  return std::unexpected(
      NegotiationFailure{.error = error, .key = std::string(key), .value = std::string(value)});
}

std::string_view describe(NegotiationError error) {
  switch (error) {
    case NegotiationError::kBadValue:
      return "the value is not one that the key can have";
    case NegotiationError::kRepeated:
      return "the key came a second time";
    case NegotiationError::kWrongPhase:
      return "the key is not allowed in this stage";
    case NegotiationError::kWrongSender:
      return "only the other side may send the key";
    case NegotiationError::kReservedValue:
      return "a reserved value was offered";
    case NegotiationError::kBadAnswer:
      return "the answer is none that the offer permits";
    case NegotiationError::kRefused:
      return "the outcome is one that is not allowed here";
    case NegotiationError::kNoAnswer:
      return "the offer was not answered";
    case NegotiationError::kIntegrity:
      return "the value contradicts other negotiated values";
  }
  return "negotiation failed";
}

bool is_negotiated(const KeyRow& row) {
  return row.type == KeyType::kList || row.type == KeyType::kAnd || row.type == KeyType::kOr ||
         row.type == KeyType::kMinimum || row.type == KeyType::kMaximum ||
         row.type == KeyType::kObsolete;
}

// Its answer depends on keys that may come later in the same text, so it is given last.
bool depends_on_others(KeyId id) {
  return id == KeyId::kFirstBurstLength || id == KeyId::kMaxOutstandingR2t;
}

std::string yes_or_no(bool value) { return value ? "Yes" : "No"; }

std::string_view name_of(TaskReporting value) {
  switch (value) {
    case TaskReporting::kRfc3720:
      return "RFC3720";
    case TaskReporting::kResponseFence:
      return "ResponseFence";
    case TaskReporting::kFastAbort:
      return "FastAbort";
  }
  return "RFC3720";
}

}  // namespace

std::map<std::string, std::string> NegotiatedParameters::to_map() const {
  std::map<std::string, std::string> map{
      {"SessionType", session.discovery ? "Discovery" : "Normal"},
      {"HeaderDigest", connection.header_digest ? "CRC32C" : "None"},
      {"DataDigest", connection.data_digest ? "CRC32C" : "None"},
      {"MaxRecvDataSegmentLength", std::to_string(connection.target_max_recv_data_segment_length)},
      {"MaxRecvDataSegmentLength (initiator)",
       std::to_string(connection.initiator_max_recv_data_segment_length)},
      {"DefaultTime2Wait", std::to_string(session.default_time2wait)},
      {"DefaultTime2Retain", std::to_string(session.default_time2retain)},
      {"ErrorRecoveryLevel", std::to_string(session.error_recovery_level)},
  };
  if (session.discovery) return map;
  map["MaxConnections"] = std::to_string(session.max_connections);
  map["InitialR2T"] = yes_or_no(session.initial_r2t);
  map["ImmediateData"] = yes_or_no(session.immediate_data);
  map["MaxBurstLength"] = std::to_string(session.max_burst_length);
  map["FirstBurstLength"] = std::to_string(session.first_burst_length);
  map["MaxOutstandingR2T"] = std::to_string(session.max_outstanding_r2t);
  map["DataPDUInOrder"] = yes_or_no(session.data_pdu_in_order);
  map["DataSequenceInOrder"] = yes_or_no(session.data_sequence_in_order);
  map["TaskReporting"] = name_of(session.task_reporting);
  map["iSCSIProtocolLevel"] = std::to_string(session.protocol_level);
  return map;
}

std::string NegotiationFailure::to_string() const {
  constexpr std::size_t kShown = 80;
  return fmt::format("{}={}: {}", key, value.substr(0, kShown), describe(error));
}

Negotiator::Negotiator(Role role, KeyPreferences preferences, NegotiatedParameters current)
    : role_(role), preferences_(std::move(preferences)), result_(current) {}

void Negotiator::offer(KeyId id, std::vector<KeyValue>& out) {
  const std::string& wish = preferences_.text(id);
  if (wish.empty() || preferences_.fixed_answer(id)) return;
  offer_text(row_of(id).name, wish, out);
}

void Negotiator::offer_text(std::string_view key, std::string_view value,
                            std::vector<KeyValue>& out) {
  out.push_back({.key = std::string(key), .value = std::string(value)});
  const KeyRow* const row = find_key(key);
  if (row == nullptr) {
    unknown_offered_.emplace(key);
    return;
  }
  offered_[index_of(row->id)] = value;
  if (is_negotiated(*row)) {
    pending_[index_of(row->id)] = true;
  } else if (row->type == KeyType::kDeclaredNumber) {
    const auto number = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(parse_number(value).value_or(row->minimum), row->maximum));
    auto& connection = result_.connection;
    (role_ == Role::kInitiator ? connection.initiator_max_recv_data_segment_length
                               : connection.target_max_recv_data_segment_length) = number;
  }
}

void Negotiator::offer_operational(std::vector<KeyValue>& out) {
  for (const KeyRow& row : key_table()) {
    if (row.stage != KeyStage::kOperational) continue;
    if (row.use == KeyUse::kLeadingOnly && !leading_) continue;
    if (row.irrelevant_in_discovery && result_.session.discovery) continue;
    if (pending_[index_of(row.id)] || seen_[index_of(row.id)]) continue;
    offer(row.id, out);
  }
  if (result_.session.discovery) return;  // Section 13.22: only in normal sessions.
  for (const auto& [key, value] : preferences_.private_keys()) {
    if (!value.empty()) offer_text(key, value, out);
  }
}

bool Negotiator::default_is_allowed(const KeyRow& row) const {
  const std::string& wish = preferences_.text(row.id);
  if (wish.empty() || preferences_.fixed_answer(row.id) || row.may_be_not_understood) return true;
  switch (row.type) {
    case KeyType::kList:
      return preferences_.allows(row.id, row.default_value);
    case KeyType::kAnd:
      return row.default_value == "No" || preferences_.boolean(row.id);
    case KeyType::kOr:
      return row.default_value == "Yes" || !preferences_.boolean(row.id);
    case KeyType::kMinimum:
      return parse_number(row.default_value).value_or(0) <= preferences_.number(row.id);
    case KeyType::kMaximum:
      return parse_number(row.default_value).value_or(0) >= preferences_.number(row.id);
    default:
      return true;
  }
}

bool Negotiator::defaults_are_forbidden() const {
  return std::ranges::any_of(key_table(), [this](const KeyRow& row) {
    if (!is_negotiated(row) || seen_[index_of(row.id)] || pending_[index_of(row.id)]) return false;
    if (row.use == KeyUse::kLeadingOnly && !leading_) return false;
    return !is_irrelevant(row) && !default_is_allowed(row);
  });
}

void Negotiator::offer_what_defaults_forbid(std::vector<KeyValue>& out) {
  for (const KeyRow& row : key_table()) {
    if (!is_negotiated(row) || seen_[index_of(row.id)] || pending_[index_of(row.id)]) continue;
    if (row.use == KeyUse::kLeadingOnly && !leading_) continue;
    if (!is_irrelevant(row) && !default_is_allowed(row)) offer(row.id, out);
  }
}

bool Negotiator::is_irrelevant(const KeyRow& row) const {
  const SessionParameters& session = result_.session;
  if (session.discovery && row.irrelevant_in_discovery) return true;
  // Section 13.14: without unsolicited data there is no first burst.
  return row.id == KeyId::kFirstBurstLength && session.initial_r2t && !session.immediate_data;
}

Negotiator::Checked Negotiator::check_allowed(const KeyRow& row, const KeyValue& pair) const {
  const KeySender ours = role_ == Role::kTarget ? KeySender::kTarget : KeySender::kInitiator;
  if (row.sender == ours) return failure(NegotiationError::kWrongSender, pair.key, pair.value);
  bool allowed = false;
  switch (phase_) {
    case NegotiationPhase::kSecurity:
      allowed = row.stage != KeyStage::kOperational && row.use != KeyUse::kFullFeatureOnly;
      break;
    case NegotiationPhase::kOperational:
      allowed = row.stage != KeyStage::kSecurity && row.use != KeyUse::kFullFeatureOnly;
      break;
    case NegotiationPhase::kFullFeature:
      allowed = row.use == KeyUse::kAll || row.use == KeyUse::kFullFeatureOnly;
      break;
  }
  if (!allowed) return failure(NegotiationError::kWrongPhase, pair.key, pair.value);
  return {};
}

Negotiator::Checked Negotiator::check_repeat(const KeyRow& row, const KeyValue& pair) const {
  if (!seen_[index_of(row.id)] || row.repeat == KeyRepeat::kAllowed) return {};
  if (row.repeat == KeyRepeat::kSameValue && declared_[index_of(row.id)] == pair.value) return {};
  return failure(NegotiationError::kRepeated, pair.key, pair.value);
}

std::expected<Negotiator::Reply, NegotiationFailure> Negotiator::receive(
    std::span<const KeyValue> pairs) {
  Reply reply;
  struct Late {
    const KeyRow* row;
    const KeyValue* pair;
    std::size_t answer;
  };
  std::vector<Late> late;
  for (const KeyValue& pair : pairs) {
    const KeyRow* const row = find_key(pair.key);
    if (row != nullptr && depends_on_others(row->id) && !pending_[index_of(row->id)]) {
      if (const Checked checked = check_allowed(*row, pair); !checked) {
        return Failure(checked.error());
      }
      if (const Checked checked = check_repeat(*row, pair); !checked) {
        return Failure(checked.error());
      }
      seen_[index_of(row->id)] = true;
      late.push_back({.row = row, .pair = &pair, .answer = reply.answers.size()});
      reply.answers.push_back({.key = pair.key, .value = {}});
      continue;
    }
    const Checked checked =
        row == nullptr ? receive_unknown(pair, reply) : receive_known(*row, pair, reply);
    if (!checked) return Failure(checked.error());
  }
  for (const Late& one : late) {
    auto answer = respond(*one.row, *one.pair);
    if (!answer) return Failure(answer.error());
    reply.answers[one.answer].value = std::move(*answer);
  }
  return reply;
}

Negotiator::Checked Negotiator::receive_known(const KeyRow& row, const KeyValue& pair,
                                              Reply& reply) {
  if (pending_[index_of(row.id)]) return evaluate_answer(row, pair);
  // What we declared may be waved away; that changes nothing.
  if (!is_negotiated(row) && !offered_[index_of(row.id)].empty() &&
      is_reserved_answer(pair.value) && row.type == KeyType::kDeclaredText) {
    return {};
  }
  if (const Checked checked = check_allowed(row, pair); !checked) return checked;
  if (const Checked checked = check_repeat(row, pair); !checked) return checked;
  if (row.type == KeyType::kExchange) {
    seen_[index_of(row.id)] = true;
    reply.handed_over.push_back(pair);
    return {};
  }
  if (!is_negotiated(row)) return declare(row, pair);
  seen_[index_of(row.id)] = true;
  auto answer = respond(row, pair);
  if (!answer) return Failure(answer.error());
  reply.answers.push_back({.key = pair.key, .value = std::move(*answer)});
  return {};
}

Negotiator::Checked Negotiator::receive_unknown(const KeyValue& pair, Reply& reply) {
  if (unknown_offered_.erase(pair.key) != 0) {
    unknown_seen_.insert(pair.key);
    if (!is_reserved_answer(pair.value)) result_.private_keys[pair.key] = pair.value;
    return {};
  }
  if (!unknown_seen_.insert(pair.key).second) {
    return failure(NegotiationError::kRepeated, pair.key, pair.value);
  }
  if (is_reserved_answer(pair.value)) {
    return failure(NegotiationError::kReservedValue, pair.key, pair.value);
  }
  const auto& own = preferences_.private_keys();
  const auto found = own.find(pair.key);
  const bool answers = role_ == Role::kTarget && found != own.end();
  if (answers) result_.private_keys[pair.key] = pair.value;
  reply.answers.push_back(
      {.key = pair.key, .value = answers ? found->second : std::string(kNotUnderstood)});
  return {};
}

Negotiator::Checked Negotiator::declare(const KeyRow& row, const KeyValue& pair) {
  const auto bad = [&] { return failure(NegotiationError::kBadValue, pair.key, pair.value); };
  if (row.type == KeyType::kDeclaredNumber) {
    const auto number = parse_number(pair.value);
    // Too large a promise can be kept by sending less; too small a one cannot.
    if (!number.has_value() || *number < row.minimum) return bad();
    const auto value = static_cast<std::uint32_t>(std::min<std::uint64_t>(*number, row.maximum));
    auto& connection = result_.connection;
    (role_ == Role::kTarget ? connection.initiator_max_recv_data_segment_length
                            : connection.target_max_recv_data_segment_length) = value;
  } else if (pair.value.size() > kMaximumSimpleValueBytes || !is_utf8(pair.value)) {
    return bad();
  }
  if (row.id == KeyId::kInitiatorName || row.id == KeyId::kTargetName) {
    if (!is_acceptable_name(pair.value)) return bad();
  }
  if (row.id == KeyId::kSessionType) {
    if (pair.value != "Discovery" && pair.value != "Normal") return bad();
    // Known from the start (section 13.21): told later it can only confirm.
    if ((pair.value == "Discovery") != result_.session.discovery) {
      return failure(NegotiationError::kWrongPhase, pair.key, pair.value);
    }
  }
  seen_[index_of(row.id)] = true;
  declared_[index_of(row.id)] = pair.value;
  return {};
}

bool Negotiator::is_possible_answer(const KeyRow& row, std::string_view value) const {
  const std::string& offered = offered_[index_of(row.id)];
  if (row.type == KeyType::kList) {
    const auto values = split_list(offered);
    return std::ranges::find(values, value) != values.end();
  }
  if (row.type == KeyType::kAnd || row.type == KeyType::kOr) {
    const auto answer = parse_boolean(value);
    // "No" settles AND, "Yes" settles OR.
    const bool settled = offered == (row.type == KeyType::kAnd ? "No" : "Yes");
    return answer.has_value() && (!settled || value == offered);
  }
  if (row.type == KeyType::kObsolete) return value == "No";
  const auto answer = parse_number(value);
  if (!answer.has_value() || *answer < row.minimum || *answer > row.maximum) return false;
  const auto offer = parse_number(offered);
  if (!offer.has_value()) return true;  // A test has offered nonsense.
  return row.type == KeyType::kMinimum ? *answer <= *offer : *answer >= *offer;
}

Negotiator::Checked Negotiator::evaluate_answer(const KeyRow& row, const KeyValue& pair) {
  pending_[index_of(row.id)] = false;
  seen_[index_of(row.id)] = true;
  if (pair.value == kRejectValue || pair.value == kIrrelevant) return {};
  if (pair.value == kNotUnderstood && row.may_be_not_understood) return {};
  if (!is_possible_answer(row, pair.value)) {
    return failure(NegotiationError::kBadAnswer, pair.key, pair.value);
  }
  settle(row.id, pair.value);
  return {};
}

// Section 6.2.2: the two cases in which an answer is optional.
bool Negotiator::needs_answer(const KeyRow& row) const {
  const std::string& offered = offered_[index_of(row.id)];
  return !(row.type == KeyType::kAnd && offered == "No") &&
         !(row.type == KeyType::kOr && offered == "Yes");
}

bool Negotiator::answers_outstanding() const {
  return std::ranges::any_of(key_table(), [this](const KeyRow& row) {
    return pending_[index_of(row.id)] && needs_answer(row);
  });
}

Negotiator::Checked Negotiator::check_answered() {
  for (const KeyRow& row : key_table()) {
    if (!pending_[index_of(row.id)]) continue;
    const std::string& offered = offered_[index_of(row.id)];
    if (needs_answer(row)) return failure(NegotiationError::kNoAnswer, row.name, offered);
    pending_[index_of(row.id)] = false;
    settle(row.id, offered);
  }
  return {};
}

Negotiator::Checked Negotiator::check_integrity() {
  SessionParameters& session = result_.session;
  if (session.first_burst_length > session.max_burst_length) {
    const bool explicit_values = settled_[index_of(KeyId::kFirstBurstLength)] &&
                                 settled_[index_of(KeyId::kMaxBurstLength)] &&
                                 !is_irrelevant(row_of(KeyId::kFirstBurstLength));
    if (explicit_values && role_ == Role::kTarget) {
      return failure(NegotiationError::kIntegrity, "FirstBurstLength",
                     std::to_string(session.first_burst_length));
    }
    // The default gives way; an initiator may always send less.
    session.first_burst_length = session.max_burst_length;
  }
  // Section 13.19.
  if (session.error_recovery_level != 0 && session.data_sequence_in_order &&
      session.max_outstanding_r2t > 1) {
    return failure(NegotiationError::kIntegrity, "MaxOutstandingR2T",
                   std::to_string(session.max_outstanding_r2t));
  }
  return {};
}

Negotiator::Checked Negotiator::conclude() {
  if (const Checked checked = check_answered(); !checked) return checked;
  if (phase_ == NegotiationPhase::kFullFeature) return {};
  for (const KeyRow& row : key_table()) {
    if (!is_negotiated(row) || settled_[index_of(row.id)] || default_is_allowed(row)) continue;
    if (row.use == KeyUse::kLeadingOnly && !leading_) continue;
    // An initiator can keep to smaller numbers by itself, but not do without a digest.
    if (role_ == Role::kInitiator && row.type != KeyType::kList) continue;
    if (is_irrelevant(row)) continue;
    return failure(NegotiationError::kRefused, row.name, row.default_value);
  }
  return check_integrity();
}

const std::string& Negotiator::declared(KeyId id) const { return declared_[index_of(id)]; }

}  // namespace sandbay::iscsi
