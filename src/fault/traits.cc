// The table of faults, and what follows from it for a rule.
#include "fault/traits.h"

#include <algorithm>
#include <array>
#include <cassert>

namespace sandbay::fault {

namespace {

constexpr std::uint16_t kDrives = bit(Place::Kind::kDrive) | bit(Place::Kind::kEnclosure);
constexpr std::uint16_t kShelf = bit(Place::Kind::kEnclosure);
constexpr std::uint16_t kNvrams = bit(Place::Kind::kNvram);
constexpr std::uint16_t kMembers = bit(Place::Kind::kMember);
constexpr std::uint16_t kMetas = bit(Place::Kind::kMeta);
constexpr std::uint16_t kLuns = bit(Place::Kind::kLun);
constexpr std::uint16_t kSessions = bit(Place::Kind::kSession);
constexpr std::uint16_t kLinks = bit(Place::Kind::kLink);
constexpr std::uint16_t kConnections = kSessions | bit(Place::Kind::kConnection) | kLinks;
constexpr std::uint16_t kAnywhere = kDrives | kNvrams | kMembers | kLuns | kConnections;
constexpr std::uint8_t kReads = bit(Operation::kRead);
constexpr std::uint8_t kWrites = bit(Operation::kWrite);
constexpr std::uint8_t kChanges = kWrites | bit(Operation::kWriteZeroes);
constexpr std::uint8_t kTransfers = kReads | kWrites;

constexpr std::array<Traits, kFaultCount> kTraits = {{
    {Fault::kNothing, "nothing", Manner::kInstant, kAnywhere, kEveryOperation},
    {Fault::kHold, "hold", Manner::kStrike, kDrives | kMembers, kEveryOperation},
    {Fault::kFail, "fail", Manner::kLasting, kDrives, kEveryOperation},
    {Fault::kFailTransient, "fail.transient", Manner::kLasting, kDrives, kEveryOperation},
    {Fault::kPull, "pull", Manner::kLasting, kDrives, kEveryOperation},
    {Fault::kInsert, "insert", Manner::kInstant, kDrives, kEveryOperation},
    {Fault::kLse, "lse", Manner::kInstant, kDrives, kTransfers},
    {Fault::kLseGrowing, "lse.growing", Manner::kLasting, kDrives, kEveryOperation},
    {Fault::kWriteError, "write.error", Manner::kStrike, kDrives, kChanges},
    {Fault::kRecovered, "recovered", Manner::kStrike, kDrives, kTransfers},
    {Fault::kSlow, "slow", Manner::kStrike, kDrives | kLuns, kEveryOperation},
    {Fault::kStall, "stall", Manner::kLasting, kDrives, kEveryOperation},
    {Fault::kHang, "hang", Manner::kStrike, kDrives, kEveryOperation},
    {Fault::kFlip, "flip", Manner::kInstant, kDrives, kTransfers},
    {Fault::kMisdirectWrite, "misdirect.write", Manner::kStrike, kDrives, kWrites},
    {Fault::kMisdirectRead, "misdirect.read", Manner::kStrike, kDrives, kReads},
    {Fault::kLost, "lost", Manner::kStrike, kDrives | kLuns, kWrites},
    {Fault::kTorn, "torn", Manner::kStrike, kDrives, kWrites},
    {Fault::kStale, "stale", Manner::kInstant, kDrives, kEveryOperation},
    {Fault::kNoFlush, "noflush", Manner::kLasting, kDrives, kEveryOperation},
    {Fault::kReorder, "reorder", Manner::kLasting, kDrives, kEveryOperation},
    {Fault::kSmart, "smart", Manner::kLasting, kDrives, kEveryOperation},
    {Fault::kFull, "full", Manner::kLasting, kDrives, kEveryOperation},
    {Fault::kReadOnly, "readonly", Manner::kLasting, kDrives, kEveryOperation},
    {Fault::kWrongId, "wrong.id", Manner::kLasting, kDrives, kEveryOperation},
    {Fault::kShelfLoss, "shelf.loss", Manner::kLasting, kShelf, kEveryOperation},
    {Fault::kPsu, "psu", Manner::kLasting, kShelf, kEveryOperation},
    {Fault::kFan, "fan", Manner::kLasting, kShelf, kEveryOperation},
    {Fault::kTemp, "temp", Manner::kLasting, kShelf, kEveryOperation},
    {Fault::kPowerCut, "power.cut", Manner::kInstant, kDrives, kEveryOperation},
    {Fault::kPowerCutAgain, "power.cut.again", Manner::kInstant, kDrives, kEveryOperation},
    {Fault::kBatteryLow, "battery.low", Manner::kLasting, kNvrams, 0},
    {Fault::kNvramLoss, "nvram.loss", Manner::kInstant, kNvrams, 0},
    {Fault::kNvramPage, "nvram.page", Manner::kInstant, kNvrams, 0},
    {Fault::kNvramStale, "nvram.stale", Manner::kInstant, kNvrams, 0},
    {Fault::kNvramBitrot, "nvram.bitrot", Manner::kInstant, kNvrams, 0},
    {Fault::kMemberLoss, "member.loss", Manner::kLasting, kMembers, kEveryOperation},
    {Fault::kMemberPartition, "member.partition", Manner::kLasting, kMembers, kEveryOperation},
    {Fault::kMemberSlow, "member.slow", Manner::kStrike, kMembers, kEveryOperation},
    {Fault::kMemberReturnStale, "member.return.stale", Manner::kLasting, kMembers, 0},
    {Fault::kRebalanceKill, "rebalance.kill", Manner::kInstant, kMetas, 0},
    {Fault::kMapCorrupt, "map.corrupt", Manner::kStrike, kMetas, kTransfers},
    {Fault::kCheck, "check", Manner::kStrike, kLuns, kEveryOperation},
    {Fault::kBusy, "busy", Manner::kStrike, kLuns, kEveryOperation},
    {Fault::kTaskSetFull, "taskfull", Manner::kStrike, kLuns, kEveryOperation},
    {Fault::kReservationConflict, "reservation.conflict", Manner::kStrike, kLuns, kEveryOperation},
    {Fault::kUnitAttention, "ua", Manner::kStrike, kLuns, kEveryOperation},
    {Fault::kUnitNotReady, "notready", Manner::kStrike, kLuns, kEveryOperation},
    {Fault::kAborted, "aborted", Manner::kStrike, kLuns, kEveryOperation},
    {Fault::kLunVanish, "lun.vanish", Manner::kStrike, kLuns, kEveryOperation},
    {Fault::kAluaState, "alua.state", Manner::kStrike, kLuns, kEveryOperation},
    {Fault::kPduDrop, "pdu.drop", Manner::kStrike, kConnections, 0},
    {Fault::kPduDelay, "pdu.delay", Manner::kStrike, kConnections, 0},
    {Fault::kDigestHeader, "digest.header", Manner::kStrike, kConnections, 0},
    {Fault::kDigestData, "digest.data", Manner::kStrike, kConnections, 0},
    {Fault::kDrop, "drop", Manner::kStrike, kConnections, 0},
    {Fault::kPduDup, "pdu.dup", Manner::kStrike, kConnections, 0},
    {Fault::kPduTruncate, "pdu.truncate", Manner::kStrike, kConnections, 0},
    {Fault::kStatSnGap, "statsn.gap", Manner::kStrike, kConnections, 0},
    {Fault::kDataSnGap, "datasn.gap", Manner::kStrike, kConnections, 0},
    {Fault::kR2tSnGap, "r2tsn.gap", Manner::kStrike, kConnections, 0},
    {Fault::kFlap, "flap", Manner::kStrike, kLinks, 0},
    {Fault::kRate, "rate", Manner::kStrike, kConnections, 0},
    {Fault::kHalfOpen, "half-open", Manner::kStrike, kConnections, 0},
    {Fault::kStallWindow, "stall-window", Manner::kStrike, kConnections, 0},
    {Fault::kFragment, "fragment", Manner::kStrike, kConnections, 0},
    {Fault::kCorrupt, "corrupt", Manner::kStrike, kConnections, 0},
    {Fault::kReorderConnections, "reorder.connections", Manner::kStrike, kConnections, 0},
    {Fault::kBlackhole, "blackhole", Manner::kStrike, kLinks, 0},
    {Fault::kResponseDelay, "response.delay", Manner::kStrike, kSessions, 0},
    {Fault::kResponseDrop, "response.drop", Manner::kStrike, kSessions, 0},
    {Fault::kTmfReject, "tmf.reject", Manner::kStrike, kSessions, 0},
    {Fault::kTmfSlow, "tmf.slow", Manner::kStrike, kSessions, 0},
    {Fault::kTmfLie, "tmf.lie", Manner::kStrike, kSessions, 0},
    {Fault::kNopIgnore, "nop.ignore", Manner::kStrike, kSessions, 0},
    {Fault::kResidual, "residual", Manner::kStrike, kSessions, 0},
    {Fault::kAsync, "async", Manner::kStrike, kSessions, 0},
    {Fault::kWindowClose, "window.close", Manner::kStrike, kSessions, 0},
    {Fault::kR2tWithhold, "r2t.withhold", Manner::kStrike, kSessions, 0},
    {Fault::kR2tSmall, "r2t.small", Manner::kStrike, kSessions, 0},
    {Fault::kR2tDisorder, "r2t.disorder", Manner::kStrike, kSessions, 0},
    {Fault::kLoginReject, "login.reject", Manner::kStrike, kLinks, 0},
    {Fault::kLoginSlow, "login.slow", Manner::kStrike, kLinks, 0},
    {Fault::kLoginStall, "login.stall", Manner::kStrike, kLinks, 0},
    {Fault::kRedirect, "redirect", Manner::kStrike, kLinks, 0},
    {Fault::kNegoOdd, "nego.odd", Manner::kStrike, kLinks, 0},
    {Fault::kCounterNearWrap, "counter.near.wrap", Manner::kStrike, kLinks, 0},
}};

constexpr std::array kWays = {WayRow{"reset", Way::kReset, Fault::kDrop},
                              WayRow{"close", Way::kClose, Fault::kDrop},
                              WayRow{"silence", Way::kSilence, Fault::kDrop},
                              WayRow{"in", Way::kIn, Fault::kHalfOpen},
                              WayRow{"out", Way::kOut, Fault::kHalfOpen},
                              WayRow{"below", Way::kBelow, Fault::kCorrupt},
                              WayRow{"above", Way::kAbove, Fault::kCorrupt},
                              WayRow{"under", Way::kUnder, Fault::kResidual},
                              WayRow{"over", Way::kOver, Fault::kResidual},
                              WayRow{"transition", Way::kTransition, Fault::kAluaState},
                              WayRow{"standby", Way::kStandby, Fault::kAluaState},
                              WayRow{"unavailable", Way::kUnavailable, Fault::kAluaState},
                              WayRow{"logout", Way::kLogout, Fault::kAsync},
                              WayRow{"connection", Way::kConnection, Fault::kAsync},
                              WayRow{"session", Way::kSession, Fault::kAsync},
                              WayRow{"negotiation", Way::kNegotiation, Fault::kAsync}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kTraits.size(); ++i) {
    if (static_cast<std::size_t>(kTraits[i].fault) != i) return false;
  }
  return true;
}
static_assert(in_order());

bool names_an_operation(const Rule& rule) {
  return rule.operations != 0 || rule.length != Bounds{} || rule.fua.has_value() ||
         rule.origins != 0 || rule.depth != Bounds{} || (rule.lba.has_value() && !has_area(rule));
}

}  // namespace

std::string_view describe(Manner manner) {
  constexpr std::array<std::string_view, 3> kNames = {"strike", "lasting", "instant"};
  return kNames[static_cast<std::size_t>(manner)];
}

std::span<const Traits> all_traits() { return kTraits; }

const Traits& traits(Fault fault) {
  const auto index = static_cast<std::size_t>(fault);
  assert(index < kTraits.size());
  return kTraits[index];
}

std::span<const WayRow> all_ways() { return kWays; }

Way way_of(const Rule& rule) {
  if (rule.way != Way::kFirst) return rule.way;
  const auto first = std::ranges::find(kWays, rule.fault, &WayRow::fault);
  return first == kWays.end() ? Way::kFirst : first->way;
}

std::uint64_t bytes_of(const Rule& rule) {
  if (rule.bytes > 0) return rule.bytes;
  return rule.fault == Fault::kFragment ? 1 : 512;
}

std::string_view fault_name(Fault fault) { return traits(fault).name; }

Manner manner(const Rule& rule) {
  if (rule.fault == Fault::kFlip && rule.where != FlipPlace::kRest) return Manner::kStrike;
  return traits(rule.fault).manner;
}

std::uint8_t struck_operations(const Rule& rule) {
  std::uint8_t mask = traits(rule.fault).operations;
  if (rule.fault == Fault::kFlip) {
    if (rule.where == FlipPlace::kRead) mask = kReads;
    if (rule.where == FlipPlace::kWrite) mask = kWrites;
  }
  return rule.operations == 0 ? mask : static_cast<std::uint8_t>(mask & rule.operations);
}

std::uint64_t pdus_of(const Rule& rule) {
  // NOP, SCSI Command and Response, Text, Data, Asynchronous Message and Reject.
  constexpr std::uint64_t kWithData = 0x8004003300000033;
  constexpr std::uint64_t kFromTarget = ~std::uint64_t{0} << 32U;
  std::uint64_t pdus = rule.pdus == 0 ? ~std::uint64_t{0} : rule.pdus;
  if (rule.outgoing.has_value()) pdus &= *rule.outgoing ? kFromTarget : ~kFromTarget;
  if (!rule.opcodes.empty()) pdus &= 2;  // SCSI Command.
  if (rule.fault == Fault::kCorrupt || rule.fault == Fault::kDigestData) pdus &= kWithData;
  return pdus;
}

bool has_area(const Rule& rule) {
  switch (rule.fault) {
    case Fault::kLse:
    case Fault::kLseGrowing:
    case Fault::kStale:
      return true;
    case Fault::kFlip:
      return rule.where == FlipPlace::kRest;
    default:
      return false;
  }
}

bool looks_at_operations(const Rule& rule) {
  if (rule.at.kind == Place::Kind::kNvram || rule.fault == Fault::kRebalanceKill ||
      rule.fault == Fault::kMemberReturnStale) {
    return false;
  }
  if (of_path(rule.at)) return true;
  if (manner(rule) == Manner::kStrike || names_an_operation(rule)) return true;
  if (rule.fault == Fault::kPowerCutAgain) return true;
  if (rule.fault == Fault::kLse && !rule.lba.has_value()) return true;
  // after=100 alone counts operations; behind an event it counts events.
  const bool waits = !rule.event.empty() || !rule.state.empty() || rule.from > Duration::zero();
  const bool counts =
      rule.after > 0 || rule.every > 1 || rule.probability < 1 || !rule.matches.empty();
  return !waits && counts;
}

std::uint64_t firing_limit(const Rule& rule) {
  if (rule.count > 0 || of_path(rule.at)) return rule.count;
  // A drive fails once when its hundredth operation comes, not again with each one after.
  const bool repeats = rule.every > 1 || rule.probability < 1 || !rule.matches.empty();
  const bool once = manner(rule) == Manner::kLasting || rule.fault == Fault::kPowerCut ||
                    rule.fault == Fault::kPowerCutAgain || rule.fault == Fault::kInsert ||
                    rule.fault == Fault::kStale || rule.lba.has_value();
  if (!looks_at_operations(rule) || repeats || manner(rule) == Manner::kStrike) return 0;
  return once ? 1 : 0;
}

}  // namespace sandbay::fault
