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

class Interference final : public iscsi::PduInterference {
 public:
  Interference(std::shared_ptr<fault::Site> site, std::string initiator)
      : PduInterference(site->quiet()), site_(std::move(site)), initiator_(std::move(initiator)) {}

  Verdict judge(iscsi::BhsView bhs, Digests digests) override {
    const iscsi::Opcode opcode = iscsi::opcode_of(bhs);
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
    fault::FaultSet faults{Fault::kNothing, Fault::kPduDrop, Fault::kPduDelay, Fault::kDrop};
    if (digests.header) faults = faults | fault::FaultSet{Fault::kDigestHeader};
    if (digests.data) faults = faults | fault::FaultSet{Fault::kDigestData};
    const fault::Rule* const rule = site_->judge(occasion, fault::Stage::kArrival, faults);
    return rule == nullptr ? Verdict{} : verdict_of(*rule);
  }

 private:
  Verdict verdict_of(const fault::Rule& rule) {
    switch (rule.fault) {
      case Fault::kPduDrop:
        return {.fate = Fate::kLose};
      case Fault::kPduDelay:
        return {.delay = site_->draw(rule.latency)};
      case Fault::kDigestHeader:
        return {.fate = Fate::kHeaderDigest};
      case Fault::kDigestData:
        return {.fate = Fate::kDataDigest};
      default:
        return {.fate = rule.closes ? Fate::kClose : Fate::kReset};
    }
  }

  std::shared_ptr<fault::Site> site_;
  std::string initiator_;
};

class SessionFaults final : public iscsi::SessionInterference {
 public:
  SessionFaults(std::shared_ptr<fault::Site> site, std::string initiator)
      : SessionInterference(site->quiet()),
        site_(std::move(site)),
        initiator_(std::move(initiator)) {}

  Response judge_response(const scsi::Command& command) override {
    fault::Occasion occasion = of(iscsi::Opcode::kScsiCommand, command.lun);
    occasion.opcode = std::to_integer<std::uint8_t>(command.cdb[0]);
    const scsi::CommandRow* const row = scsi::find_command(command.cdb);
    if (row != nullptr) occasion.name = row->name;
    const fault::Rule* const rule =
        judge(occasion, fault::FaultSet{Fault::kResponseDelay, Fault::kResponseDrop});
    if (rule == nullptr) return {};
    if (rule->fault == Fault::kResponseDrop) return {.lose = true};
    return {.delay = site_->draw(rule->latency)};
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

ConnectionFaults::Login ConnectionFaults::judge_login(const iscsi::LoginFacts& facts) {
  std::shared_ptr<fault::Site>& site = portals_[facts.portal];
  if (site == nullptr) {
    site = engine_.post(Executor::current())
               ->make_site({{.kind = Place::Kind::kLink, .name = facts.portal}});
  }
  constexpr auto kLogin = static_cast<std::uint8_t>(iscsi::Opcode::kLoginRequest);
  if (!site->looks_at(fault::Stage::kLogin, kLogin)) return {};
  const fault::Rule* const rule = site->judge(
      {.pdu = kLogin, .initiator = facts.initiator_name, .name = fault::pdu_name(kLogin)},
      fault::Stage::kLogin, fault::kEveryFault);
  if (rule == nullptr) return {};
  if (rule->fault == Fault::kLoginSlow) return {.delay = site->draw(rule->latency)};
  if (rule->fault == Fault::kLoginReject) {
    return {.status = static_cast<iscsi::LoginStatus>(rule->status)};
  }
  return {.status = rule->permanent ? iscsi::LoginStatus::kMovedPermanently
                                    : iscsi::LoginStatus::kMovedTemporarily,
          .address = rule->address};
}

std::unique_ptr<iscsi::PduInterference> ConnectionFaults::of_connection(
    const iscsi::ConnectionFacts& facts) {
  const std::shared_ptr<fault::Post> post = engine_.post(Executor::current());
  return std::make_unique<Interference>(
      post->make_site(
          {{.kind = Place::Kind::kConnection, .name = fmt::format("{}.{}", facts.tsih, facts.cid)},
           {.kind = Place::Kind::kSession, .name = facts.initiator_name},
           {.kind = Place::Kind::kLink, .name = facts.portal}}),
      facts.initiator_name);
}

}  // namespace sandbay::group
