// The key table (RFC 7143 sections 12 and 13; RFC 7144 section 7.1.1) and what we wish for.
#include "iscsi/keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "iscsi/text.h"

namespace sandbay::iscsi {
namespace {

using enum KeyType;
using enum KeyUse;

constexpr auto kInitiatorSends = KeySender::kInitiator;
constexpr auto kTargetSends = KeySender::kTarget;
constexpr auto kBothSend = KeySender::kBoth;
constexpr auto kConnection = KeyScope::kConnection;
constexpr auto kSession = KeyScope::kSession;
constexpr auto kSecurityStage = KeyStage::kSecurity;
constexpr auto kOperationalStage = KeyStage::kOperational;
constexpr auto kAnyStage = KeyStage::kAny;
constexpr auto kNever = KeyRepeat::kNever;
constexpr auto kSameValue = KeyRepeat::kSameValue;
constexpr auto kRepeats = KeyRepeat::kAllowed;

constexpr std::uint32_t kMaximumLength = (1U << 24U) - 1;

constexpr bool kIdle = true;  // Irrelevant when SessionType=Discovery.
constexpr bool kLate = true;  // A peer may answer NotUnderstood.

// clang-format off
constexpr std::array<KeyRow, kKeyCount> kTable{{
  // Section 12.
  {KeyId::kAuthMethod, "AuthMethod", kExchange, kInitializeOnly, kSecurityStage, kBothSend, kConnection, kNever, false, false, "None", 0, 0, "CHAP,None"},
  {KeyId::kChapA, "CHAP_A", kExchange, kInitializeOnly, kSecurityStage, kBothSend, kConnection, kNever, false, false, "", 0, 0, ""},
  {KeyId::kChapI, "CHAP_I", kExchange, kInitializeOnly, kSecurityStage, kBothSend, kConnection, kNever, false, false, "", 0, 0, ""},
  {KeyId::kChapC, "CHAP_C", kExchange, kInitializeOnly, kSecurityStage, kBothSend, kConnection, kNever, false, false, "", 0, 0, ""},
  {KeyId::kChapN, "CHAP_N", kExchange, kInitializeOnly, kSecurityStage, kBothSend, kConnection, kNever, false, false, "", 0, 0, ""},
  {KeyId::kChapR, "CHAP_R", kExchange, kInitializeOnly, kSecurityStage, kBothSend, kConnection, kNever, false, false, "", 0, 0, ""},
  // Section 13.1 to 13.9.
  {KeyId::kHeaderDigest, "HeaderDigest", kList, kInitializeOnly, kOperationalStage, kBothSend, kConnection, kNever, false, false, "None", 0, 0, "None,CRC32C"},
  {KeyId::kDataDigest, "DataDigest", kList, kInitializeOnly, kOperationalStage, kBothSend, kConnection, kNever, false, false, "None", 0, 0, "None,CRC32C"},
  {KeyId::kMaxConnections, "MaxConnections", kMinimum, kLeadingOnly, kOperationalStage, kBothSend, kSession, kNever, kIdle, false, "1", 1, 65535, ""},
  {KeyId::kSendTargets, "SendTargets", kExchange, kFullFeatureOnly, kAnyStage, kInitiatorSends, kSession, kNever, false, false, "", 0, 0, ""},
  {KeyId::kTargetName, "TargetName", kDeclaredText, kInitializeOnly, kAnyStage, kInitiatorSends, kSession, kSameValue, false, false, "", 0, 0, ""},
  {KeyId::kInitiatorName, "InitiatorName", kDeclaredText, kInitializeOnly, kAnyStage, kInitiatorSends, kSession, kSameValue, false, false, "", 0, 0, ""},
  {KeyId::kTargetAlias, "TargetAlias", kDeclaredText, kAll, kAnyStage, kTargetSends, kSession, kSameValue, false, false, "", 0, 0, ""},
  {KeyId::kInitiatorAlias, "InitiatorAlias", kDeclaredText, kAll, kAnyStage, kInitiatorSends, kSession, kSameValue, false, false, "", 0, 0, ""},
  {KeyId::kTargetAddress, "TargetAddress", kDeclaredText, kAll, kAnyStage, kTargetSends, kSession, kRepeats, false, false, "", 0, 0, ""},
  {KeyId::kTargetPortalGroupTag, "TargetPortalGroupTag", kDeclaredText, kInitializeOnly, kAnyStage, kTargetSends, kSession, kSameValue, false, false, "", 0, 0, ""},
  // Section 13.10 to 13.20.
  {KeyId::kInitialR2t, "InitialR2T", kOr, kLeadingOnly, kOperationalStage, kBothSend, kSession, kNever, kIdle, false, "Yes", 0, 1, ""},
  {KeyId::kImmediateData, "ImmediateData", kAnd, kLeadingOnly, kOperationalStage, kBothSend, kSession, kNever, kIdle, false, "Yes", 0, 1, ""},
  {KeyId::kMaxRecvDataSegmentLength, "MaxRecvDataSegmentLength", kDeclaredNumber, kAll, kOperationalStage, kBothSend, kConnection, kRepeats, false, false, "8192", 512, kMaximumLength, ""},
  {KeyId::kMaxBurstLength, "MaxBurstLength", kMinimum, kLeadingOnly, kOperationalStage, kBothSend, kSession, kNever, kIdle, false, "262144", 512, kMaximumLength, ""},
  {KeyId::kFirstBurstLength, "FirstBurstLength", kMinimum, kLeadingOnly, kOperationalStage, kBothSend, kSession, kNever, kIdle, false, "65536", 512, kMaximumLength, ""},
  {KeyId::kDefaultTime2Wait, "DefaultTime2Wait", kMaximum, kLeadingOnly, kOperationalStage, kBothSend, kSession, kNever, false, false, "2", 0, 3600, ""},
  {KeyId::kDefaultTime2Retain, "DefaultTime2Retain", kMinimum, kLeadingOnly, kOperationalStage, kBothSend, kSession, kNever, false, false, "20", 0, 3600, ""},
  {KeyId::kMaxOutstandingR2t, "MaxOutstandingR2T", kMinimum, kLeadingOnly, kOperationalStage, kBothSend, kSession, kNever, kIdle, false, "1", 1, 65535, ""},
  {KeyId::kDataPduInOrder, "DataPDUInOrder", kOr, kLeadingOnly, kOperationalStage, kBothSend, kSession, kNever, kIdle, false, "Yes", 0, 1, ""},
  {KeyId::kDataSequenceInOrder, "DataSequenceInOrder", kOr, kLeadingOnly, kOperationalStage, kBothSend, kSession, kNever, kIdle, false, "Yes", 0, 1, ""},
  {KeyId::kErrorRecoveryLevel, "ErrorRecoveryLevel", kMinimum, kLeadingOnly, kOperationalStage, kBothSend, kSession, kNever, false, false, "0", 0, 2, ""},
  // Section 13.21 to 13.26, RFC 7144.
  {KeyId::kSessionType, "SessionType", kDeclaredText, kLeadingOnly, kAnyStage, kInitiatorSends, kSession, kSameValue, false, false, "Normal", 0, 0, "Discovery,Normal"},
  {KeyId::kTaskReporting, "TaskReporting", kList, kLeadingOnly, kOperationalStage, kBothSend, kSession, kNever, kIdle, kLate, "RFC3720", 0, 0, "RFC3720,ResponseFence,FastAbort"},
  {KeyId::kProtocolLevel, "iSCSIProtocolLevel", kMinimum, kLeadingOnly, kOperationalStage, kBothSend, kSession, kNever, kIdle, kLate, "1", 0, 31, ""},
  {KeyId::kNodeArchitecture, "X#NodeArchitecture", kDeclaredText, kLeadingOnly, kAnyStage, kBothSend, kSession, kNever, false, kLate, "None", 0, 0, ""},
  {KeyId::kIfMarker, "IFMarker", kObsolete, kInitializeOnly, kOperationalStage, kBothSend, kConnection, kNever, false, kLate, "No", 0, 0, ""},
  {KeyId::kOfMarker, "OFMarker", kObsolete, kInitializeOnly, kOperationalStage, kBothSend, kConnection, kNever, false, kLate, "No", 0, 0, ""},
  {KeyId::kIfMarkInt, "IFMarkInt", kObsolete, kInitializeOnly, kOperationalStage, kBothSend, kConnection, kNever, false, kLate, "2048", 0, 0, ""},
  {KeyId::kOfMarkInt, "OFMarkInt", kObsolete, kInitializeOnly, kOperationalStage, kBothSend, kConnection, kNever, false, kLate, "2048", 0, 0, ""},
}};
// clang-format on

static_assert([] {
  for (std::size_t index = 0; index < kTable.size(); ++index) {
    if (static_cast<std::size_t>(kTable[index].id) != index) return false;
  }
  return true;
}());

// What we wish for where it is not the RFC's default, and why:
//   long bursts and segments save PDUs per byte; unsolicited data saves a round trip per write;
//   a second R2T in flight hides the round trip of a long write;
//   No for both ordering keys is no demand: the initiator gets what it asks for.
struct Wish {
  KeyId id;
  std::string_view target;
  std::string_view initiator;
};
constexpr Wish kWishes[] = {
    {KeyId::kHeaderDigest, "None,CRC32C", "None,CRC32C"},
    {KeyId::kDataDigest, "None,CRC32C", "None,CRC32C"},
    {KeyId::kMaxConnections, "32", "1"},
    {KeyId::kInitialR2t, "No", "No"},
    {KeyId::kImmediateData, "Yes", "Yes"},
    {KeyId::kMaxRecvDataSegmentLength, "262144", "262144"},
    {KeyId::kMaxBurstLength, "16777215", "16776192"},
    {KeyId::kFirstBurstLength, "262144", "262144"},
    {KeyId::kDefaultTime2Wait, "2", "2"},
    {KeyId::kDefaultTime2Retain, "20", "20"},
    {KeyId::kMaxOutstandingR2t, "8", "8"},
    {KeyId::kDataPduInOrder, "No", "Yes"},
    {KeyId::kDataSequenceInOrder, "No", "Yes"},
    {KeyId::kErrorRecoveryLevel, "0", "0"},
    // Offered only on request: the defaults are what we do, and old targets know neither.
    {KeyId::kTaskReporting, "RFC3720", ""},
    {KeyId::kProtocolLevel, "1", ""},
};

std::string list_problem(const KeyRow& row, std::string_view text) {
  const auto known = split_list(row.choices);
  for (const std::string_view part : split_list(text)) {
    if (std::ranges::find(known, part) != known.end()) continue;
    return fmt::format("{}: \"{}\" is none of {}", row.name, part, row.choices);
  }
  return {};
}

}  // namespace

std::span<const KeyRow, kKeyCount> key_table() { return kTable; }

const KeyRow& row_of(KeyId id) { return kTable[static_cast<std::size_t>(id)]; }

const KeyRow* find_key(std::string_view name) {
  const auto row = std::ranges::find(kTable, name, &KeyRow::name);
  return row == kTable.end() ? nullptr : row;
}

KeyPreferences KeyPreferences::for_target() {
  KeyPreferences preferences(true);
  for (const Wish& wish : kWishes) preferences.set(row_of(wish.id), wish.target);
  return preferences;
}

KeyPreferences KeyPreferences::for_initiator() {
  KeyPreferences preferences(false);
  for (const Wish& wish : kWishes) preferences.set(row_of(wish.id), wish.initiator);
  return preferences;
}

std::expected<KeyPreferences, std::string> KeyPreferences::with(
    const std::map<std::string, std::string>& overrides) const {
  KeyPreferences changed = *this;
  for (const auto& [key, value] : overrides) {
    const KeyRow* const row = find_key(key);
    if (row != nullptr) {
      std::string problem = changed.set(*row, value);
      if (!problem.empty()) return std::unexpected(std::move(problem));
      continue;
    }
    if (!is_key_name(key)) {
      return std::unexpected(
          fmt::format("\"{}\" is not a key: a capital letter and up to 62 more "
                      "letters, digits or .-+@_ make one",
                      key));
    }
    if (value.size() > kMaximumSimpleValueBytes || value.find('\0') != std::string::npos) {
      return std::unexpected(
          fmt::format("{}: a value has at most 255 bytes, none of them null", key));
    }
    changed.private_keys_[key] = value;
  }
  return changed;
}

bool KeyPreferences::allows(KeyId id, std::string_view value) const {
  const std::vector<std::string_view> allowed = split_list(text(id));
  return std::ranges::find(allowed, value) != allowed.end();
}

std::string KeyPreferences::set(const KeyRow& row, std::string_view text) {
  // A target always has an answer: without a wish it does what the RFC does by default.
  if (target_ && text.empty()) text = row.default_value;
  Value value{.text = std::string(text)};
  if (row.type == kExchange || row.type == kDeclaredText) {
    return fmt::format("{} follows from the configuration of the target and cannot be given here",
                       row.name);
  }
  if (target_ && is_reserved_answer(text)) {
    if (row.type == kDeclaredNumber) {
      return fmt::format("{} is declared, not negotiated: it has no answer", row.name);
    }
    value.fixed_answer = true;
  } else if (row.type == kObsolete) {
    // Section 13.25: No is the other answer that a marker key may have.
    if (text != "No" || (row.id != KeyId::kIfMarker && row.id != KeyId::kOfMarker)) {
      return fmt::format(
          "{} is obsolete: only \"Reject\"{} can be given", row.name,
          row.id == KeyId::kIfMarker || row.id == KeyId::kOfMarker ? " or \"No\"" : "");
    }
    value.fixed_answer = true;
  } else if (text.empty()) {
    // Not offered. Asked for it, we do what the RFC does by default.
    value.number = static_cast<std::uint32_t>(
        parse_number(row.default_value).value_or(row.default_value == "Yes" ? 1 : 0));
  } else if (row.type == kList) {
    std::string problem = list_problem(row, text);
    if (!problem.empty()) return problem;
  } else if (row.type == kAnd || row.type == kOr) {
    const auto boolean = parse_boolean(text);
    if (!boolean.has_value()) return fmt::format("{}: \"{}\" is not Yes or No", row.name, text);
    value.number = *boolean ? 1 : 0;
  } else {
    const auto number = parse_number(text);
    if (!number.has_value() || *number < row.minimum || *number > row.maximum) {
      return fmt::format("{}: \"{}\" is not a number from {} to {}", row.name, text, row.minimum,
                         row.maximum);
    }
    value.number = static_cast<std::uint32_t>(*number);
  }
  values_[static_cast<std::size_t>(row.id)] = std::move(value);
  return {};
}

}  // namespace sandbay::iscsi
