// Negotiator: one side's text negotiation (RFC 7143 sections 6.2 and 6.4), for target and
// initiator alike, in login and in full feature phase. It answers what the peer offers, evaluates
// what the peer answers to our offers, and keeps the rules on phases, senders, repetition and
// reserved values. What comes out is NegotiatedParameters.
//
// One Negotiator lives for one login of a connection, or for one text negotiation in full feature
// phase. It is pure: no I/O, no time. Nothing takes effect until conclude() has succeeded: then
// the caller takes result(). After a failure the object is of no more use.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <expected>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "iscsi/keys.h"
#include "iscsi/text.h"

namespace sandbay::iscsi {

// Section 13.23.
enum class TaskReporting : std::uint8_t { kRfc3720, kResponseFence, kFastAbort };

// Session-wide; the defaults are those of section 13.
struct SessionParameters {
  bool discovery = false;
  std::uint32_t max_connections = 1;
  bool initial_r2t = true;
  bool immediate_data = true;
  std::uint32_t max_burst_length = 262144;
  std::uint32_t first_burst_length = 65536;  // Never above max_burst_length once concluded.
  std::uint32_t default_time2wait = 2;
  std::uint32_t default_time2retain = 20;
  std::uint32_t max_outstanding_r2t = 1;
  bool data_pdu_in_order = true;
  bool data_sequence_in_order = true;
  std::uint32_t error_recovery_level = 0;
  TaskReporting task_reporting = TaskReporting::kRfc3720;
  std::uint32_t protocol_level = 1;
  bool operator==(const SessionParameters&) const = default;
};

struct ConnectionParameters {
  bool header_digest = false;
  bool data_digest = false;
  // What each side has declared that it can receive in one PDU.
  std::uint32_t initiator_max_recv_data_segment_length = 8192;
  std::uint32_t target_max_recv_data_segment_length = 8192;
  bool operator==(const ConnectionParameters&) const = default;
};

struct NegotiatedParameters {
  SessionParameters session;
  ConnectionParameters connection;
  // Keys that are in no row and that both sides know: what the peer has said. Not for display.
  std::map<std::string, std::string> private_keys;
  bool operator==(const NegotiatedParameters&) const = default;
  // By key, for display. MaxRecvDataSegmentLength is the target's, with the initiator's as
  // "MaxRecvDataSegmentLength (initiator)".
  std::map<std::string, std::string> to_map() const;
};

enum class Role : std::uint8_t { kInitiator, kTarget };
enum class NegotiationPhase : std::uint8_t { kSecurity, kOperational, kFullFeature };

enum class NegotiationError : std::uint8_t {
  kBadValue,       // Not of the key's type, or a declaration out of range.
  kRepeated,       // Negotiated or declared before.
  kWrongPhase,     // Not allowed in this stage, or not on this connection.
  kWrongSender,    // Only the other side may send it.
  kReservedValue,  // Reject, Irrelevant or NotUnderstood where nothing was offered.
  kBadAnswer,      // An answer that the offer does not permit.
  kRefused,        // Answered Reject where we cannot live with the default.
  kNoAnswer,       // The negotiation ends and an offer of ours was not answered.
  kIntegrity,      // Values that contradict each other (FirstBurstLength > MaxBurstLength).
};

struct NegotiationFailure {
  NegotiationError error = NegotiationError::kBadValue;
  std::string key;
  std::string value;
  std::string to_string() const;  // One sentence for logs.
};

class Negotiator {
 public:
  // What one logical text data segment led to, in the order of its keys.
  struct Reply {
    std::vector<KeyValue> answers;      // To send.
    std::vector<KeyValue> handed_over;  // Keys of type kExchange, for whoever runs the exchange.
  };

  Negotiator(Role role, KeyPreferences preferences, NegotiatedParameters current = {});

  // What the preferences are is often known only after the first keys: a target's come with the
  // target's name. Before anything was negotiated.
  void set_preferences(KeyPreferences preferences) { preferences_ = std::move(preferences); }
  // What holds before (of a session that a connection is added to). Before anything was
  // negotiated.
  void set_current(const NegotiatedParameters& current) { result_ = current; }
  // Not the login of a session's first connection: leading-only keys are then answered Reject.
  void set_leading(bool leading) { leading_ = leading; }
  void set_discovery(bool discovery) { result_.session.discovery = discovery; }
  void enter(NegotiationPhase phase) { phase_ = phase; }
  NegotiationPhase phase() const noexcept { return phase_; }

  // Offers (or declares) what the preferences say, if anything; the pair is appended to `out`.
  void offer(KeyId id, std::vector<KeyValue>& out);
  // Offers exactly this, as a test or a private key needs.
  void offer_text(std::string_view key, std::string_view value, std::vector<KeyValue>& out);
  // Initiator: every operational key that belongs in a login of this kind.
  void offer_operational(std::vector<KeyValue>& out);
  // Target, when the initiator wants to end the operational stage: offers of keys whose default
  // the preferences do not allow and which the initiator has not offered. Mostly none.
  void offer_what_defaults_forbid(std::vector<KeyValue>& out);
  // Would it offer something?
  bool defaults_are_forbidden() const;

  std::expected<Reply, NegotiationFailure> receive(std::span<const KeyValue> pairs);

  // Offers that the peer still has to answer; ImmediateData=No, say, needs none.
  bool answers_outstanding() const;
  // The login or text negotiation ends: checks that every offer was answered, that we can live
  // with the outcome, and what values must hold together.
  std::expected<void, NegotiationFailure> conclude();

  const NegotiatedParameters& result() const noexcept { return result_; }
  // What the peer declared (names, aliases, SessionType, …); empty if it did not.
  const std::string& declared(KeyId id) const;

 private:
  using Failure = std::unexpected<NegotiationFailure>;
  using Checked = std::expected<void, NegotiationFailure>;

  Checked check_allowed(const KeyRow& row, const KeyValue& pair) const;
  Checked check_repeat(const KeyRow& row, const KeyValue& pair) const;
  Checked receive_known(const KeyRow& row, const KeyValue& pair, Reply& reply);
  Checked receive_unknown(const KeyValue& pair, Reply& reply);
  Checked declare(const KeyRow& row, const KeyValue& pair);
  Checked evaluate_answer(const KeyRow& row, const KeyValue& pair);
  bool is_possible_answer(const KeyRow& row, std::string_view value) const;
  std::expected<std::string, NegotiationFailure> respond(const KeyRow& row, const KeyValue& pair);
  std::string respond_boolean(const KeyRow& row, std::string_view offer) const;
  std::string respond_number(const KeyRow& row, std::string_view offer) const;
  std::string respond_list(const KeyRow& row, std::string_view offer) const;
  Checked check_answered();
  Checked check_integrity();
  std::uint32_t limit_by_others(KeyId id, std::uint32_t value) const;
  bool is_irrelevant(const KeyRow& row) const;
  bool needs_answer(const KeyRow& row) const;
  bool default_is_allowed(const KeyRow& row) const;
  void settle(KeyId id, std::string_view value);

  Role role_;
  KeyPreferences preferences_;
  NegotiatedParameters result_;
  NegotiationPhase phase_ = NegotiationPhase::kSecurity;
  bool leading_ = true;
  std::bitset<kKeyCount> seen_;     // Negotiated, or declared by the peer.
  std::bitset<kKeyCount> pending_;  // Offered by us, not answered yet.
  std::bitset<kKeyCount> settled_;  // Has a negotiated value.
  std::array<std::string, kKeyCount> offered_;
  std::array<std::string, kKeyCount> declared_;
  std::set<std::string> unknown_seen_;
  std::set<std::string> unknown_offered_;
};

}  // namespace sandbay::iscsi
