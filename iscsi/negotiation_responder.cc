// How a responder answers an offer, by the type of its key (RFC 7143 sections 6.2.1, 6.2.2 and 13),
// and where negotiated values are kept.
#include <algorithm>

#include "iscsi/negotiation.h"

namespace sandbay::iscsi {
namespace {

TaskReporting task_reporting_from(std::string_view value) {
  if (value == "FastAbort") return TaskReporting::kFastAbort;
  if (value == "ResponseFence") return TaskReporting::kResponseFence;
  return TaskReporting::kRfc3720;
}

}  // namespace

std::expected<std::string, NegotiationFailure> Negotiator::respond(const KeyRow& row,
                                                                   const KeyValue& pair) {
  if (is_reserved_answer(pair.value)) {
    return Failure(NegotiationFailure{
        .error = NegotiationError::kReservedValue, .key = pair.key, .value = pair.value});
  }
  if (preferences_.fixed_answer(row.id)) return preferences_.text(row.id);
  if (row.type == KeyType::kObsolete) return std::string(kRejectValue);
  // The session has its values; the connection that joins it cannot change them.
  if (row.use == KeyUse::kLeadingOnly && !leading_) return std::string(kRejectValue);
  if (is_irrelevant(row)) return std::string(kIrrelevant);
  std::string answer;
  if (row.type == KeyType::kList) {
    answer = respond_list(row, pair.value);
  } else if (row.type == KeyType::kAnd || row.type == KeyType::kOr) {
    answer = respond_boolean(row, pair.value);
  } else {
    answer = respond_number(row, pair.value);
  }
  if (answer != kRejectValue) settle(row.id, answer);
  return answer;
}

std::string Negotiator::respond_list(const KeyRow& row, std::string_view offer) const {
  for (const std::string_view value : split_list(offer)) {
    const bool allowed = preferences_.text(row.id).empty() ? value == row.default_value
                                                           : preferences_.allows(row.id, value);
    if (allowed) return std::string(value);
  }
  return std::string(kRejectValue);
}

std::string Negotiator::respond_boolean(const KeyRow& row, std::string_view offer) const {
  const auto offered = parse_boolean(offer);
  if (!offered.has_value()) return std::string(kRejectValue);
  const bool own = preferences_.boolean(row.id);
  const bool result = row.type == KeyType::kAnd ? *offered && own : *offered || own;
  return result ? "Yes" : "No";
}

std::string Negotiator::respond_number(const KeyRow& row, std::string_view offer) const {
  const auto offered = parse_number(offer);
  if (!offered.has_value() || *offered < row.minimum) return std::string(kRejectValue);
  // Section 6.2.2 lets us select an admissible value instead of rejecting: for Minimum there is
  // one below every offer that is too large, and initiators do offer 16777216.
  if (row.type == KeyType::kMaximum && *offered > row.maximum) return std::string(kRejectValue);
  const std::uint32_t own = preferences_.number(row.id);
  const auto bounded = static_cast<std::uint32_t>(std::min<std::uint64_t>(*offered, row.maximum));
  const std::uint32_t result =
      row.type == KeyType::kMinimum ? std::min(bounded, own) : std::max(bounded, own);
  return std::to_string(limit_by_others(row.id, result));
}

std::uint32_t Negotiator::limit_by_others(KeyId id, std::uint32_t value) const {
  const SessionParameters& session = result_.session;
  // Section 13.14.
  if (id == KeyId::kFirstBurstLength) return std::min(value, session.max_burst_length);
  // Section 13.19.
  if (id == KeyId::kMaxOutstandingR2t && session.error_recovery_level != 0 &&
      session.data_sequence_in_order) {
    return 1;
  }
  // Section 13.21.
  if (id == KeyId::kErrorRecoveryLevel && session.discovery) return 0;
  return value;
}

void Negotiator::settle(KeyId id, std::string_view value) {
  settled_[index_of(id)] = true;
  SessionParameters& session = result_.session;
  const bool yes = value == "Yes";
  const auto number = static_cast<std::uint32_t>(parse_number(value).value_or(0));
  switch (id) {
    case KeyId::kHeaderDigest:
      result_.connection.header_digest = value == "CRC32C";
      break;
    case KeyId::kDataDigest:
      result_.connection.data_digest = value == "CRC32C";
      break;
    case KeyId::kMaxConnections:
      session.max_connections = number;
      break;
    case KeyId::kInitialR2t:
      session.initial_r2t = yes;
      break;
    case KeyId::kImmediateData:
      session.immediate_data = yes;
      break;
    case KeyId::kMaxBurstLength:
      session.max_burst_length = number;
      break;
    case KeyId::kFirstBurstLength:
      session.first_burst_length = number;
      break;
    case KeyId::kDefaultTime2Wait:
      session.default_time2wait = number;
      break;
    case KeyId::kDefaultTime2Retain:
      session.default_time2retain = number;
      break;
    case KeyId::kMaxOutstandingR2t:
      session.max_outstanding_r2t = number;
      break;
    case KeyId::kDataPduInOrder:
      session.data_pdu_in_order = yes;
      break;
    case KeyId::kDataSequenceInOrder:
      session.data_sequence_in_order = yes;
      break;
    case KeyId::kErrorRecoveryLevel:
      session.error_recovery_level = number;
      break;
    case KeyId::kTaskReporting:
      session.task_reporting = task_reporting_from(value);
      break;
    case KeyId::kProtocolLevel:
      session.protocol_level = number;
      break;
    default:
      break;  // Keys that leave no parameter behind.
  }
}

}  // namespace sandbay::iscsi
