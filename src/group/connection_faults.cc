// From PDUs to occasions, and from rules to fates.
#include "group/connection_faults.h"

#include <fmt/format.h>

#include <utility>

#include "fault/traits.h"
#include "runtime/byte_order.h"
#include "runtime/executor.h"
#include "scsi/command_table.h"

namespace sandbay::group {

namespace {

using fault::Fault;
using fault::Place;
using fault::Way;
using Fate = iscsi::PduInterference::Fate;

// PDUs whose bytes 8 to 15 are a LUN (RFC 7143, section 11).
bool has_lun(iscsi::Opcode opcode) {
  switch (opcode) {
    case iscsi::Opcode::kScsiCommand:
    case iscsi::Opcode::kTaskManagementRequest:
    case iscsi::Opcode::kDataOut:
    case iscsi::Opcode::kReadyToTransfer:
      return true;
    default:
      return false;
  }
}

// Numbers that a PDU takes with it when it is lost.
constexpr fault::FaultSet kStatusGap{Fault::kStatSnGap};
constexpr fault::FaultSet kDataGap{Fault::kDataSnGap};
constexpr fault::FaultSet kR2tGap{Fault::kR2tSnGap};

bool has_status(iscsi::BhsView bhs) { return (bhs[1] & std::byte{1}) != std::byte{0}; }

// Of a PDU that is sent; see section 4.2.2.2 for StatSN.
fault::FaultSet gaps_of(iscsi::Opcode opcode, iscsi::BhsView bhs) {
  switch (opcode) {
    case iscsi::Opcode::kReadyToTransfer:
      return kR2tGap;
    case iscsi::Opcode::kDataIn:
      return has_status(bhs) ? kStatusGap : kDataGap;
    case iscsi::Opcode::kNopIn:
      return iscsi::initiator_task_tag(bhs) == iscsi::kReservedTag ? fault::FaultSet{} : kStatusGap;
    default:
      return kStatusGap;
  }
}

constexpr fault::FaultSet kOfEveryPdu{Fault::kNothing, Fault::kPduDrop, Fault::kPduDelay,
                                      Fault::kDrop,    Fault::kPduDup,  Fault::kPduTruncate,
                                      Fault::kFlap,    Fault::kRate,    Fault::kReorderConnections};
constexpr fault::FaultSet kMuting{Fault::kHalfOpen};
constexpr fault::FaultSet kOfSent{Fault::kFragment};
constexpr fault::FaultSet kOfReceived{Fault::kStallWindow};
constexpr fault::FaultSet kOfData{Fault::kCorrupt};

class Interference final : public iscsi::PduInterference {
 public:
  Interference(std::shared_ptr<fault::Site> site, const iscsi::ConnectionFacts& facts)
      : PduInterference(site->quiet()),
        site_(std::move(site)),
        initiator_(facts.initiator_name),
        at_initiator_(facts.at_initiator) {}

  Verdict judge(iscsi::BhsView bhs, Passing passing) override {
    const iscsi::Opcode opcode = iscsi::opcode_of(bhs);
    const bool outgoing = passing.sent != at_initiator_;  // Of the target.
    if (outgoing ? mute_out_ : mute_in_) return lost();
    const bool concerned =
        site_->looks_at(fault::Stage::kArrival, static_cast<std::uint8_t>(opcode));
    if (!concerned) return {};
    fault::Occasion occasion{.pdu = static_cast<std::uint8_t>(opcode),
                             .initiator = initiator_,
                             .name = fault::pdu_name(static_cast<std::uint8_t>(opcode))};
    if (opcode == iscsi::Opcode::kScsiCommand) {
      occasion.opcode = std::to_integer<std::uint8_t>(bhs[32]);
    }
    // Peripheral addressing, or flat space (SAM-5 clause 4.7).
    if (has_lun(opcode)) occasion.lun = big_endian<std::uint16_t>(bhs, 8) & 0x3FFFU;
    const std::size_t data_bytes = iscsi::data_segment_length(bhs);
    fault::FaultSet faults = kOfEveryPdu | (passing.sent ? kOfSent : kOfReceived);
    if (passing.data) faults = faults | kOfData;
    if (!mute_in_ && !mute_out_) faults = faults | kMuting;
    if (outgoing) faults = faults | gaps_of(opcode, bhs);
    if (passing.header_digest) faults = faults | fault::FaultSet{Fault::kDigestHeader};
    if (passing.data_digest) faults = faults | fault::FaultSet{Fault::kDigestData};
    const fault::Rule* const rule = site_->judge(occasion, fault::Stage::kArrival, faults);
    return rule == nullptr ? Verdict{} : verdict_of(*rule, outgoing, iscsi::kBhsBytes + data_bytes);
  }

 private:
  Verdict verdict_of(const fault::Rule& rule, bool outgoing, std::size_t byte_count) {
    switch (rule.fault) {
      case Fault::kPduDrop:
      case Fault::kStatSnGap:
      case Fault::kDataSnGap:
      case Fault::kR2tSnGap:
        return {.fate = Fate::kLose};
      case Fault::kPduDup:
        return {.fate = Fate::kTwice};
      case Fault::kPduTruncate:
        return {.fate = Fate::kCut};
      case Fault::kPduDelay:
        return {.delay = site_->draw(rule.latency)};
      case Fault::kDigestHeader:
        return {.fate = Fate::kHeaderDigest};
      case Fault::kDigestData:
        return {.fate = Fate::kDataDigest};
      case Fault::kRate:
        return {.delay = time_on_link(outgoing, byte_count, rule.bandwidth)};
      case Fault::kReorderConnections:
        return {.delay = site_->draw(rule.latency == fault::Latency{} ? kJitter : rule.latency)};
      case Fault::kStallWindow:
        return {.delay = site_->draw(rule.latency)};
      case Fault::kFragment:
        return {.piece_bytes = static_cast<std::uint16_t>(std::min<std::uint64_t>(
                    fault::bytes_of(rule), std::numeric_limits<std::uint16_t>::max()))};
      case Fault::kCorrupt:
        return {.fate = way_of(rule) == Way::kAbove ? Fate::kAltered : Fate::kDamaged};
      case Fault::kHalfOpen:
        return mute(way_of(rule) == Way::kIn, way_of(rule) == Way::kOut, outgoing);
      case Fault::kDrop:
        if (way_of(rule) == Way::kSilence) return mute(true, true, outgoing);
        return {.fate = way_of(rule) == Way::kClose ? Fate::kClose : Fate::kReset};
      default:  // A link that is down.
        return {.fate = Fate::kReset};
    }
  }

  // Nothing comes through any more, that way; whatever becomes of the rules.
  Verdict mute(bool in, bool out, bool outgoing) {
    mute_in_ = mute_in_ || in;
    mute_out_ = mute_out_ || out;
    site_->never_quiet();
    return (outgoing ? mute_out_ : mute_in_) ? lost() : Verdict{};
  }
  Verdict lost() const { return {.fate = Fate::kLose, .silent = mute_in_ && mute_out_}; }

  // Until the PDU has passed a link of this rate, behind those before it.
  Duration time_on_link(bool outgoing, std::size_t byte_count, std::uint64_t rate) {
    const TimePoint now = Executor::current().now();
    TimePoint& free = outgoing ? link_free_out_ : link_free_in_;
    free = std::max(free, now) + Duration(std::chrono::seconds(1)) * byte_count / rate;
    return free - now;
  }

  static constexpr fault::Latency kJitter{.most = std::chrono::milliseconds(2)};

  std::shared_ptr<fault::Site> site_;
  std::string initiator_;
  bool at_initiator_;
  bool mute_in_ = false;
  bool mute_out_ = false;
  TimePoint link_free_in_{};
  TimePoint link_free_out_{};
};

class SessionFaults final : public iscsi::SessionInterference {
 public:
  SessionFaults(std::shared_ptr<fault::Site> site, std::string initiator)
      : SessionInterference(site->quiet()),
        site_(std::move(site)),
        initiator_(std::move(initiator)) {}

  Response judge_response(const scsi::Command& command, Ending ending) override {
    fault::FaultSet faults{Fault::kResponseDelay, Fault::kResponseDrop, Fault::kWindowClose};
    if (!ending.announces) faults = faults | fault::FaultSet{Fault::kAsync};
    if (ending.moved_data) faults = faults | fault::FaultSet{Fault::kResidual};
    const fault::Rule* const rule = judge(of(command), faults);
    if (rule == nullptr) return {};
    switch (rule->fault) {
      case Fault::kResponseDrop:
        return {.lose = true};
      case Fault::kResidual:
        return {.residual = way_of(*rule) == Way::kOver ? iscsi::Residual::kOverflow
                                                        : iscsi::Residual::kUnderflow,
                .residual_bytes = static_cast<std::uint32_t>(fault::bytes_of(*rule))};
      case Fault::kAsync:
        return {.event = event_of(*rule), .event_time = rule->time_to_wait};
      case Fault::kWindowClose:
        return {.window_closes = site_->draw(rule->latency)};
      default:
        return {.delay = site_->draw(rule->latency)};
    }
  }

  Transfer judge_transfer(const scsi::Command& command) override {
    const fault::Rule* const rule = judge(
        of(command), fault::FaultSet{Fault::kR2tWithhold, Fault::kR2tSmall, Fault::kR2tDisorder});
    if (rule == nullptr) return {};
    if (rule->fault == Fault::kR2tWithhold) return {.delay = site_->draw(rule->latency)};
    if (rule->fault == Fault::kR2tDisorder) return {.disorder = true};
    return {.most = static_cast<std::uint32_t>(fault::bytes_of(*rule))};
  }

  Management judge_management(const iscsi::TaskManagementRequest& request) override {
    const fault::Rule* const rule =
        judge(of(iscsi::Opcode::kTaskManagementRequest, request.lun),
              fault::FaultSet{Fault::kTmfReject, Fault::kTmfSlow, Fault::kTmfLie});
    if (rule == nullptr) return {};
    if (rule->fault == Fault::kTmfSlow) return {.delay = site_->draw(rule->latency)};
    if (rule->fault == Fault::kTmfLie) return {.lie = true};
    return {.refuse = static_cast<iscsi::TaskManagementResult>(rule->result)};
  }

  bool ignores_ping() override {
    fault::Occasion occasion = of(iscsi::Opcode::kNopOut, 0);
    occasion.lun.reset();
    return judge(occasion, fault::FaultSet{Fault::kNopIgnore}) != nullptr;
  }

 private:
  static iscsi::AsyncEventCode event_of(const fault::Rule& rule) {
    switch (way_of(rule)) {
      case Way::kConnection:
        return iscsi::AsyncEventCode::kConnectionDrop;
      case Way::kSession:
        return iscsi::AsyncEventCode::kSessionDrop;
      case Way::kNegotiation:
        return iscsi::AsyncEventCode::kNegotiationRequest;
      default:
        return iscsi::AsyncEventCode::kLogoutRequest;
    }
  }
  fault::Occasion of(const scsi::Command& command) const {
    fault::Occasion occasion = of(iscsi::Opcode::kScsiCommand, command.lun);
    occasion.opcode = std::to_integer<std::uint8_t>(command.cdb[0]);
    const scsi::CommandRow* const row = scsi::find_command(command.cdb);
    if (row != nullptr) occasion.name = row->name;
    return occasion;
  }
  fault::Occasion of(iscsi::Opcode opcode, std::uint64_t lun) const {
    const auto code = static_cast<std::uint8_t>(opcode);
    return {.pdu = code,
            .lun = lun >> 48U & 0x3FFFU,
            .initiator = initiator_,
            .name = fault::pdu_name(code)};
  }
  const fault::Rule* judge(const fault::Occasion& occasion, const fault::FaultSet& faults) {
    constexpr auto kStage = fault::Stage::kAnswer;
    if (!site_->looks_at(kStage, occasion.pdu.value_or(0))) return nullptr;
    return site_->judge(occasion, kStage, faults);
  }

  std::shared_ptr<fault::Site> site_;
  std::string initiator_;
};

}  // namespace

std::unique_ptr<iscsi::SessionInterference> ConnectionFaults::of_session(
    const std::string& initiator_name) {
  const std::shared_ptr<fault::Post> post = engine_.post(Executor::current());
  return std::make_unique<SessionFaults>(
      post->make_site({{.kind = Place::Kind::kSession, .name = initiator_name}}), initiator_name);
}

fault::Site& ConnectionFaults::site_of(const std::string& portal) {
  std::shared_ptr<fault::Site>& site = portals_[portal];
  if (site == nullptr) {
    site = engine_.post(Executor::current())
               ->make_site({{.kind = Place::Kind::kLink, .name = portal}});
  }
  return *site;
}

ConnectionFaults::Attempt ConnectionFaults::judge_attempt(const iscsi::AttemptFacts& facts) {
  fault::Site& site = site_of(facts.portal);
  if (!site.looks_at(fault::Stage::kConnect, 0)) return {};
  const fault::Rule* const rule = site.judge({.initiator = facts.peer, .name = "connection"},
                                             fault::Stage::kConnect, fault::kEveryFault);
  if (rule == nullptr) return {};
  if (rule->fault == Fault::kFlap) return {.reset = true};
  return {.ignored = rule->duration, .holds = site.lasting()};
}

ConnectionFaults::Login ConnectionFaults::judge_login(const iscsi::LoginFacts& facts) {
  fault::Site& site = site_of(facts.portal);
  constexpr auto kLogin = static_cast<std::uint8_t>(iscsi::Opcode::kLoginRequest);
  if (!site.looks_at(fault::Stage::kLogin, kLogin)) return {};
  const fault::Rule* const rule = site.judge(
      {.pdu = kLogin, .initiator = facts.initiator_name, .name = fault::pdu_name(kLogin)},
      fault::Stage::kLogin, fault::kEveryFault);
  if (rule == nullptr) return {};
  constexpr Duration kEver = std::chrono::hours(24);  // The time of a login ends it.
  switch (rule->fault) {
    case Fault::kLoginSlow:
      return {.delay = site.draw(rule->latency)};
    case Fault::kLoginStall:
      return {.delay = kEver};
    case Fault::kLoginReject:
      return {.status = static_cast<iscsi::LoginStatus>(rule->status)};
    case Fault::kNegoOdd:
      return {.odd = true};
    case Fault::kCounterNearWrap:
      return {.near_wrap = true};
    default:
      return {.status = rule->permanent ? iscsi::LoginStatus::kMovedPermanently
                                        : iscsi::LoginStatus::kMovedTemporarily,
              .address = rule->address};
  }
}

// Our initiator's connections have the far portal's name: numbers of connections are the target's.
std::unique_ptr<iscsi::PduInterference> ConnectionFaults::of_connection(
    const iscsi::ConnectionFacts& facts) {
  const std::shared_ptr<fault::Post> post = engine_.post(Executor::current());
  std::vector<Place> places;
  if (!facts.at_initiator) {
    places = {
        {.kind = Place::Kind::kConnection, .name = fmt::format("{}.{}", facts.tsih, facts.cid)},
        {.kind = Place::Kind::kSession, .name = facts.initiator_name}};
  }
  places.push_back({.kind = Place::Kind::kLink, .name = facts.portal});
  return std::make_unique<Interference>(post->make_site(std::move(places)), facts);
}

}  // namespace sandbay::group
