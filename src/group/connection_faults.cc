// From PDUs to occasions, and from rules to fates.
#include "group/connection_faults.h"

#include <fmt/format.h>

#include <utility>

#include "fault/site.h"
#include "fault/traits.h"
#include "runtime/byte_order.h"
#include "runtime/executor.h"

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

}  // namespace

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
