// The key table (RFC 7143 sections 12 and 13; RFC 7144 section 7.1.1) and what we wish for.
#include "iscsi/keys.h"

#include <fmt/core.h>

#include <algorithm>

#include "iscsi/text.h"

namespace sandbay::iscsi {
namespace {

using enum KeyType;
using enum KeyUse;

constexpr auto kInitiatorSends = KeySender::kInitiator;
constexpr auto kTargetSends = KeySender::kTarget;
constexpr auto kConnection = KeyScope::kConnection;
constexpr auto kSecurityStage = KeyStage::kSecurity;
constexpr auto kAnyStage = KeyStage::kAny;
constexpr auto kSameValue = KeyRepeat::kSameValue;
constexpr auto kRepeats = KeyRepeat::kAllowed;

constexpr std::uint32_t kMaximumLength = (1U << 24U) - 1;

// What a row does not say has the value that KeyRow gives it.
constexpr std::array<KeyRow, kKeyCount> kTable{{
    // Section 12.
    {.id = KeyId::kAuthMethod,
     .name = "AuthMethod",
     .type = kExchange,
     .use = kInitializeOnly,
     .stage = kSecurityStage,
     .scope = kConnection,
     .default_value = "None",
     .choices = "CHAP,None"},
    {.id = KeyId::kChapA,
     .name = "CHAP_A",
     .type = kExchange,
     .use = kInitializeOnly,
     .stage = kSecurityStage,
     .scope = kConnection},
    {.id = KeyId::kChapI,
     .name = "CHAP_I",
     .type = kExchange,
     .use = kInitializeOnly,
     .stage = kSecurityStage,
     .scope = kConnection},
    {.id = KeyId::kChapC,
     .name = "CHAP_C",
     .type = kExchange,
     .use = kInitializeOnly,
     .stage = kSecurityStage,
     .scope = kConnection},
    {.id = KeyId::kChapN,
     .name = "CHAP_N",
     .type = kExchange,
     .use = kInitializeOnly,
     .stage = kSecurityStage,
     .scope = kConnection},
    {.id = KeyId::kChapR,
     .name = "CHAP_R",
     .type = kExchange,
     .use = kInitializeOnly,
     .stage = kSecurityStage,
     .scope = kConnection},
    // Section 13.1 to 13.9.
    {.id = KeyId::kHeaderDigest,
     .name = "HeaderDigest",
     .type = kList,
     .use = kInitializeOnly,
     .scope = kConnection,
     .default_value = "None",
     .choices = "None,CRC32C"},
    {.id = KeyId::kDataDigest,
     .name = "DataDigest",
     .type = kList,
     .use = kInitializeOnly,
     .scope = kConnection,
     .default_value = "None",
     .choices = "None,CRC32C"},
    {.id = KeyId::kMaxConnections,
     .name = "MaxConnections",
     .type = kMinimum,
     .use = kLeadingOnly,
     .irrelevant_in_discovery = true,
     .default_value = "1",
     .minimum = 1,
     .maximum = 65535},
    {.id = KeyId::kSendTargets,
     .name = "SendTargets",
     .type = kExchange,
     .use = kFullFeatureOnly,
     .stage = kAnyStage,
     .sender = kInitiatorSends},
    {.id = KeyId::kTargetName,
     .name = "TargetName",
     .type = kDeclaredText,
     .use = kInitializeOnly,
     .stage = kAnyStage,
     .sender = kInitiatorSends,
     .repeat = kSameValue},
    {.id = KeyId::kInitiatorName,
     .name = "InitiatorName",
     .type = kDeclaredText,
     .use = kInitializeOnly,
     .stage = kAnyStage,
     .sender = kInitiatorSends,
     .repeat = kSameValue},
    {.id = KeyId::kTargetAlias,
     .name = "TargetAlias",
     .type = kDeclaredText,
     .use = kAll,
     .stage = kAnyStage,
     .sender = kTargetSends,
     .repeat = kSameValue},
    {.id = KeyId::kInitiatorAlias,
     .name = "InitiatorAlias",
     .type = kDeclaredText,
     .use = kAll,
     .stage = kAnyStage,
     .sender = kInitiatorSends,
     .repeat = kSameValue},
    {.id = KeyId::kTargetAddress,
     .name = "TargetAddress",
     .type = kDeclaredText,
     .use = kAll,
     .stage = kAnyStage,
     .sender = kTargetSends,
     .repeat = kRepeats},
    {.id = KeyId::kTargetPortalGroupTag,
     .name = "TargetPortalGroupTag",
     .type = kDeclaredText,
     .use = kInitializeOnly,
     .stage = kAnyStage,
     .sender = kTargetSends,
     .repeat = kSameValue},
    // Section 13.10 to 13.20.
    {.id = KeyId::kInitialR2t,
     .name = "InitialR2T",
     .type = kOr,
     .use = kLeadingOnly,
     .irrelevant_in_discovery = true,
     .default_value = "Yes",
     .maximum = 1},
    {.id = KeyId::kImmediateData,
     .name = "ImmediateData",
     .type = kAnd,
     .use = kLeadingOnly,
     .irrelevant_in_discovery = true,
     .default_value = "Yes",
     .maximum = 1},
    {.id = KeyId::kMaxRecvDataSegmentLength,
     .name = "MaxRecvDataSegmentLength",
     .type = kDeclaredNumber,
     .use = kAll,
     .scope = kConnection,
     .repeat = kRepeats,
     .default_value = "8192",
     .minimum = 512,
     .maximum = kMaximumLength},
    {.id = KeyId::kMaxBurstLength,
     .name = "MaxBurstLength",
     .type = kMinimum,
     .use = kLeadingOnly,
     .irrelevant_in_discovery = true,
     .default_value = "262144",
     .minimum = 512,
     .maximum = kMaximumLength},
    {.id = KeyId::kFirstBurstLength,
     .name = "FirstBurstLength",
     .type = kMinimum,
     .use = kLeadingOnly,
     .irrelevant_in_discovery = true,
     .default_value = "65536",
     .minimum = 512,
     .maximum = kMaximumLength},
    {.id = KeyId::kDefaultTime2Wait,
     .name = "DefaultTime2Wait",
     .type = kMaximum,
     .use = kLeadingOnly,
     .default_value = "2",
     .maximum = 3600},
    {.id = KeyId::kDefaultTime2Retain,
     .name = "DefaultTime2Retain",
     .type = kMinimum,
     .use = kLeadingOnly,
     .default_value = "20",
     .maximum = 3600},
    {.id = KeyId::kMaxOutstandingR2t,
     .name = "MaxOutstandingR2T",
     .type = kMinimum,
     .use = kLeadingOnly,
     .irrelevant_in_discovery = true,
     .default_value = "1",
     .minimum = 1,
     .maximum = 65535},
    {.id = KeyId::kDataPduInOrder,
     .name = "DataPDUInOrder",
     .type = kOr,
     .use = kLeadingOnly,
     .irrelevant_in_discovery = true,
     .default_value = "Yes",
     .maximum = 1},
    {.id = KeyId::kDataSequenceInOrder,
     .name = "DataSequenceInOrder",
     .type = kOr,
     .use = kLeadingOnly,
     .irrelevant_in_discovery = true,
     .default_value = "Yes",
     .maximum = 1},
    {.id = KeyId::kErrorRecoveryLevel,
     .name = "ErrorRecoveryLevel",
     .type = kMinimum,
     .use = kLeadingOnly,
     .default_value = "0",
     .maximum = 2},
    // Section 13.21 to 13.26, RFC 7144.
    {.id = KeyId::kSessionType,
     .name = "SessionType",
     .type = kDeclaredText,
     .use = kLeadingOnly,
     .stage = kAnyStage,
     .sender = kInitiatorSends,
     .repeat = kSameValue,
     .default_value = "Normal",
     .choices = "Discovery,Normal"},
    {.id = KeyId::kTaskReporting,
     .name = "TaskReporting",
     .type = kList,
     .use = kLeadingOnly,
     .irrelevant_in_discovery = true,
     .may_be_not_understood = true,
     .default_value = "RFC3720",
     .choices = "RFC3720,ResponseFence,FastAbort"},
    {.id = KeyId::kProtocolLevel,
     .name = "iSCSIProtocolLevel",
     .type = kMinimum,
     .use = kLeadingOnly,
     .irrelevant_in_discovery = true,
     .may_be_not_understood = true,
     .default_value = "1",
     .maximum = 31},
    {.id = KeyId::kNodeArchitecture,
     .name = "X#NodeArchitecture",
     .type = kDeclaredText,
     .use = kLeadingOnly,
     .stage = kAnyStage,
     .may_be_not_understood = true,
     .default_value = "None"},
    {.id = KeyId::kIfMarker,
     .name = "IFMarker",
     .type = kObsolete,
     .use = kInitializeOnly,
     .scope = kConnection,
     .may_be_not_understood = true,
     .default_value = "No"},
    {.id = KeyId::kOfMarker,
     .name = "OFMarker",
     .type = kObsolete,
     .use = kInitializeOnly,
     .scope = kConnection,
     .may_be_not_understood = true,
     .default_value = "No"},
    {.id = KeyId::kIfMarkInt,
     .name = "IFMarkInt",
     .type = kObsolete,
     .use = kInitializeOnly,
     .scope = kConnection,
     .may_be_not_understood = true,
     .default_value = "2048"},
    {.id = KeyId::kOfMarkInt,
     .name = "OFMarkInt",
     .type = kObsolete,
     .use = kInitializeOnly,
     .scope = kConnection,
     .may_be_not_understood = true,
     .default_value = "2048"},
}};

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
      const bool marker = row.id == KeyId::kIfMarker || row.id == KeyId::kOfMarker;
      return fmt::format("{} is obsolete: only {}{} can be given", row.name,
                         target_ ? "\"Reject\", \"Irrelevant\", \"NotUnderstood\"" : "\"Reject\"",
                         marker ? " and \"No\"" : "");
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
