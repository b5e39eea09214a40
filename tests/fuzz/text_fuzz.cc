// Fuzzes the text format and the negotiation engine: the first byte chooses role, phase and kind of
// session, the rest is a logical text data segment. Every value is also read as a number, range,
// list, binary value, name, address and claim of a lead, whatever its key.
#include <cstdlib>

#include "iscsi/access.h"
#include "iscsi/lead_claim.h"
#include "iscsi/negotiation.h"
#include "iscsi/text.h"

namespace sandbay::iscsi {
namespace {

void require(bool held) {
  if (!held) std::abort();
}

void read_value(std::string_view value) {
  require(!split_list(value).empty());
  const auto binary = parse_binary(value, 1024);
  if (binary.has_value()) {
    require(binary->size() <= 1024);
    require(parse_binary(format_hexadecimal(*binary), 1024) == binary);
  }
  if (name_problem(value).empty()) require(is_acceptable_name(value));
  require(matches_pattern("*", value));
  matches_pattern(value.substr(0, 32), "iqn.2001-04.com.example:host");
  AddressPattern::parse(value);
  const auto claim = parse_lead_claim(value);
  require(!claim.has_value() || parse_lead_claim(format_lead_claim(*claim)) == claim);
  KeyPreferences::for_target().with({{"MaxBurstLength", std::string(value)}});
}

void negotiate(unsigned choice, std::span<const KeyValue> pairs) {
  const bool target = (choice & 1U) != 0;
  Negotiator negotiator(target ? Role::kTarget : Role::kInitiator,
                        target ? KeyPreferences::for_target() : KeyPreferences::for_initiator());
  negotiator.enter(static_cast<NegotiationPhase>((choice >> 1U) % 3));
  negotiator.set_leading((choice & 0x10U) == 0);
  negotiator.set_discovery((choice & 0x20U) != 0);
  if (!target) {
    std::vector<KeyValue> offers;
    negotiator.offer_operational(offers);
  }
  const auto reply = negotiator.receive(pairs);
  if (!reply.has_value()) {
    require(!reply.error().to_string().empty());
    return;
  }
  require(reply->answers.size() + reply->handed_over.size() <= pairs.size());
  require(parse_text(format_text(reply->answers)).has_value());
  if (!negotiator.conclude().has_value()) return;
  const SessionParameters& session = negotiator.result().session;
  require(session.max_burst_length >= 512 && session.max_burst_length < 1U << 24U);
  require(session.first_burst_length <= session.max_burst_length);
  require(session.max_connections >= 1 && session.max_outstanding_r2t >= 1);
  require(session.error_recovery_level <= 2 && session.default_time2retain <= 3600);
  const ConnectionParameters& connection = negotiator.result().connection;
  require(connection.initiator_max_recv_data_segment_length >= 512);
  require(connection.target_max_recv_data_segment_length >= 512);
}

void run(std::string_view input) {
  if (input.empty()) return;
  const auto choice = static_cast<unsigned char>(input[0]);
  const auto pairs = parse_text(input.substr(1));
  if (!pairs.has_value()) {
    require(!describe(pairs.error()).empty());
    return;
  }
  require(parse_text(format_text(*pairs)) == pairs);
  for (const KeyValue& pair : *pairs) read_value(pair.value);
  negotiate(choice, *pairs);
}

}  // namespace
}  // namespace sandbay::iscsi

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sandbay::iscsi::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
