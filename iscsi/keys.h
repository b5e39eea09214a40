// The table of every text key of RFC 7143 sections 12 and 13 and of RFC 7144 section 7: one row
// per key with its type, range, default, scope and where it may be used. negotiation.h works from
// this table alone; no key has a code path of its own except where a row says so.
//
// KeyPreferences holds one side's wishes: the values it offers, insists on or is limited to, by
// key. What a configured value means depends on the row's type:
//   kMinimum, kMaximum  a number: what we offer, and what the result is bounded by
//   kAnd, kOr           Yes or No: what we offer, and what the Boolean function takes for us
//   kList               what we allow, in our order of preference ("None,CRC32C"); an initiator
//                       offers it in that order, a target picks the first offered one in it
//   kDeclaredNumber     what we declare
// In place of a value, a target may be given "Reject", "Irrelevant" or "NotUnderstood": every
// offer of that key is then answered so and the key keeps its default. A key that is in no row
// (X-com.example.key) is answered with, or offered as, the text as it stands.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace sandbay::iscsi {

enum class KeyId : std::uint8_t {
  kAuthMethod,
  kChapA,
  kChapI,
  kChapC,
  kChapN,
  kChapR,
  kHeaderDigest,
  kDataDigest,
  kMaxConnections,
  kSendTargets,
  kTargetName,
  kInitiatorName,
  kTargetAlias,
  kInitiatorAlias,
  kTargetAddress,
  kTargetPortalGroupTag,
  kInitialR2t,
  kImmediateData,
  kMaxRecvDataSegmentLength,
  kMaxBurstLength,
  kFirstBurstLength,
  kDefaultTime2Wait,
  kDefaultTime2Retain,
  kMaxOutstandingR2t,
  kDataPduInOrder,
  kDataSequenceInOrder,
  kErrorRecoveryLevel,
  kSessionType,
  kTaskReporting,
  kProtocolLevel,
  kNodeArchitecture,
  kIfMarker,
  kOfMarker,
  kIfMarkInt,
  kOfMarkInt,
};
constexpr std::size_t index_of(KeyId id) { return static_cast<std::size_t>(id); }
inline constexpr std::size_t kKeyCount = static_cast<std::size_t>(KeyId::kOfMarkInt) + 1;

enum class KeyType : std::uint8_t {
  kList,            // Negotiated: the first value of the offer that the responder allows.
  kAnd,             // Negotiated Boolean.
  kOr,              // Negotiated Boolean.
  kMinimum,         // Negotiated number: the result is at most the offer.
  kMaximum,         // Negotiated number: the result is at least the offer.
  kDeclaredNumber,  // Declared by each side for itself.
  kDeclaredText,    // Declared; kept as it stands.
  kExchange,        // Not negotiated here: handed to whoever runs the exchange (CHAP, SendTargets).
  kObsolete,        // Answered Reject whatever is offered (section 13.25).
};

// "Use" of section 13.
enum class KeyUse : std::uint8_t {
  kLeadingOnly,      // LO: the login of a session's first connection.
  kInitializeOnly,   // IO: any login.
  kAll,              // ALL: login and full feature phase.
  kFullFeatureOnly,  // FFPO.
};

enum class KeyStage : std::uint8_t { kSecurity, kOperational, kAny };
enum class KeySender : std::uint8_t { kInitiator, kTarget, kBoth };
enum class KeyScope : std::uint8_t { kConnection, kSession };

// May it come twice in one login or text negotiation?
enum class KeyRepeat : std::uint8_t {
  kNever,
  kSameValue,  // Some initiators repeat names in every stage: harmless if nothing changes.
  kAllowed,
};

struct KeyRow {
  KeyId id;
  std::string_view name;
  KeyType type;
  KeyUse use;
  KeyStage stage = KeyStage::kOperational;
  KeySender sender = KeySender::kBoth;
  KeyScope scope = KeyScope::kSession;
  KeyRepeat repeat = KeyRepeat::kNever;
  bool irrelevant_in_discovery = false;
  bool may_be_not_understood = false;  // A peer older than RFC 7143 need not know it.
  std::string_view default_value = "";
  std::uint32_t minimum = 0;  // Of numbers.
  std::uint32_t maximum = 0;
  std::string_view choices = "";  // Of lists: every value this implementation can carry out.
};

// In the order of KeyId.
std::span<const KeyRow, kKeyCount> key_table();
const KeyRow& row_of(KeyId id);
const KeyRow* find_key(std::string_view name);  // Null: unknown.

class KeyPreferences {
 public:
  // Section 13's keys with values chosen for speed; see key_defaults in keys.cc.
  static KeyPreferences for_target();
  static KeyPreferences for_initiator();

  // These with `overrides` applied, by key, or one sentence that names the key, what is wrong and
  // what would be accepted. An empty value: an initiator leaves the key out, a target has no
  // wish of its own (the RFC's default).
  std::expected<KeyPreferences, std::string> with(
      const std::map<std::string, std::string>& overrides) const;

  // The wish as text; empty if there is none.
  const std::string& text(KeyId id) const { return values_[static_cast<std::size_t>(id)].text; }
  std::uint32_t number(KeyId id) const { return values_[static_cast<std::size_t>(id)].number; }
  bool boolean(KeyId id) const { return values_[static_cast<std::size_t>(id)].number != 0; }
  // Every offer is answered with text(id).
  bool fixed_answer(KeyId id) const { return values_[static_cast<std::size_t>(id)].fixed_answer; }
  bool allows(KeyId id, std::string_view value) const;  // Of lists.
  // Keys that are in no row.
  const std::map<std::string, std::string>& private_keys() const { return private_keys_; }

 private:
  struct Value {
    std::string text;
    std::uint32_t number = 0;
    bool fixed_answer = false;
  };
  explicit KeyPreferences(bool target) : target_(target) {}
  std::string set(const KeyRow& row, std::string_view text);

  bool target_;
  std::array<Value, kKeyCount> values_;
  std::map<std::string, std::string> private_keys_;
};

}  // namespace sandbay::iscsi
