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
    {Fault::kNothing, "nothing", Manner::kInstant, kAnywhere, kEveryOperation,
     "Only counts, sets and is followed, as a step between other rules."},
    {Fault::kHold, "hold", Manner::kStrike, kDrives | kMembers, kEveryOperation,
     "A breakpoint: operations wait until the rule is cleared, its for= is over, or 'sandbay "
     "fault release' lets them go on."},
    {Fault::kFail, "fail", Manner::kLasting, kDrives, kEveryOperation,
     "Every command fails with a hardware error, and the drive says that it has failed."},
    {Fault::kFailTransient, "fail.transient", Manner::kLasting, kDrives, kEveryOperation,
     "As fail, and the drive recovers; it needs for= or until=."},
    {Fault::kPull, "pull", Manner::kLasting, kDrives, kEveryOperation,
     "The drive is offline, and returns when the fault ends."},
    {Fault::kInsert, "insert", Manner::kInstant, kDrives, kEveryOperation,
     "A drive that was pulled returns with content=same or content=other. Its first command "
     "fails with \"not ready\", as the unit attention of a drive that was powered on does. "
     "Writes to another content stay in memory only."},
    {Fault::kLse, "lse", Manner::kInstant, kDrives, kTransfers,
     "The blocks of lba=, or those that the operation touched, cannot be read (medium error) "
     "until they are written again."},
    {Fault::kLseGrowing, "lse.growing", Manner::kLasting, kDrives, kEveryOperation,
     "Each second, rate= blocks within lba= become unreadable, in clusters of cluster=. From "
     "threshold= on the drive predicts its failure."},
    {Fault::kWriteError, "write.error", Manner::kStrike, kDrives, kChanges,
     "The write fails, and the drive stores nothing."},
    {Fault::kRecovered, "recovered", Manner::kStrike, kDrives, kTransfers,
     "The transfer succeeds, and the drive counts it as recovered."},
    {Fault::kSlow, "slow", Manner::kStrike, kDrives | kLuns, kEveryOperation,
     "The operation takes longer by latency=5ms, latency=5ms..20ms (uniform) or "
     "latency=exp:5ms (exponential with that mean). A drive may also have a number of "
     "lanes=, each for one operation at a time, and a bandwidth=. A LUN has neither: it "
     "handles the command later, and within a second when no rule concerns it any more."},
    {Fault::kStall, "stall", Manner::kLasting, kDrives, kEveryOperation,
     "Nothing completes while it lasts, and then everything at once, in any order."},
    {Fault::kHang, "hang", Manner::kStrike, kDrives, kEveryOperation,
     "The command does not complete: it ends with an error when its initiator gives it up, "
     "the rule is cleared, disabled or released, or the drive leaves."},
    {Fault::kFlip, "flip", Manner::kInstant, kDrives, kTransfers,
     "Inverts bits= bits silently: with where=rest those on the drive, with where=read those "
     "that are read, with where=write those that are stored. Damage at rest ends when its "
     "block is written, unless the rule says sticky=yes."},
    {Fault::kMisdirectWrite, "misdirect.write", Manner::kStrike, kDrives, kWrites,
     "The data go to other blocks: to=LBA, to=drive:NAME or to=drive:NAME@LBA; without to= the "
     "rule draws them."},
    {Fault::kMisdirectRead, "misdirect.read", Manner::kStrike, kDrives, kReads,
     "The data come from other blocks, with the same to= as misdirect.write."},
    {Fault::kLost, "lost", Manner::kStrike, kDrives | kLuns, kWrites,
     "The write is acknowledged and not stored. At a LUN these are a host's WRITE, WRITE "
     "SAME and UNMAP; what is out of range, too long or write protected is refused all "
     "the same."},
    {Fault::kTorn, "torn", Manner::kStrike, kDrives, kWrites,
     "The write is acknowledged and stored in part: keep=first:N, keep=last:N, keep=0,2,5 (by "
     "block) or keep=random."},
    {Fault::kStale, "stale", Manner::kInstant, kDrives, kEveryOperation,
     "The blocks of lba= (up to 16 MiB) return to what they were when the rule was added."},
    {Fault::kNoFlush, "noflush", Manner::kLasting, kDrives, kEveryOperation,
     "The drive acknowledges a flush and FUA, and does neither."},
    {Fault::kReorder, "reorder", Manner::kLasting, kDrives, kEveryOperation,
     "A power cut keeps writes that were not flushed in any order, whatever the cut says."},
    {Fault::kSmart, "smart", Manner::kLasting, kDrives, kEveryOperation,
     "The drive predicts its failure, and shows wear= (percent) and temperature= (degrees)."},
    {Fault::kFull, "full", Manner::kLasting, kDrives, kEveryOperation, "Writes find no space."},
    {Fault::kReadOnly, "readonly", Manner::kLasting, kDrives, kEveryOperation,
     "The drive refuses writes, and says that it is read-only."},
    {Fault::kWrongId, "wrong.id", Manner::kLasting, kDrives, kEveryOperation,
     "The drive's serial=, blocks= or block= (512 or 4096) differ from what they were. The "
     "drive says once that it is not ready, as after an absence, when that begins and when it "
     "ends: so its set calls it missing and looks at it anew."},
    {Fault::kShelfLoss, "shelf.loss", Manner::kLasting, kShelf, kEveryOperation,
     "All drives of the enclosure are missing at the same instant."},
    {Fault::kPsu, "psu", Manner::kLasting, kShelf, kEveryOperation,
     "A power supply of the enclosure has failed; status alone."},
    {Fault::kFan, "fan", Manner::kLasting, kShelf, kEveryOperation,
     "A fan of the enclosure has failed; status alone."},
    {Fault::kTemp, "temp", Manner::kLasting, kShelf, kEveryOperation,
     "The enclosure is too hot; status alone."},
    {Fault::kPowerCut, "power.cut", Manner::kInstant, kDrives, kEveryOperation,
     "The whole array loses its power, and the daemon ends as if it was killed. On the drive "
     "that the rule strikes, each write that was not flushed is kept, dropped or torn by "
     "itself with loss=any; loss=order keeps the oldest up to some point, loss=all keeps "
     "nothing, and loss=none everything. Other drives keep nothing that was not flushed."},
    {Fault::kPowerCutAgain, "power.cut.again", Manner::kInstant, kDrives, kEveryOperation,
     "As power.cut, but it only counts operations after an earlier cut. A daemon ends with "
     "its first cut, so this is for simulations."},
    {Fault::kBatteryLow, "battery.low", Manner::kLasting, kNvrams, 0,
     "The battery of the NVRAM is low while it lasts."},
    {Fault::kNvramLoss, "nvram.loss", Manner::kInstant, kNvrams, 0,
     "The NVRAM loses all its content."},
    {Fault::kNvramPage, "nvram.page", Manner::kInstant, kNvrams, 0,
     "One page of the NVRAM is garbage."},
    {Fault::kNvramStale, "nvram.stale", Manner::kInstant, kNvrams, 0,
     "The NVRAM's content is that of when the rule was added."},
    {Fault::kNvramBitrot, "nvram.bitrot", Manner::kInstant, kNvrams, 0,
     "One bit of the NVRAM is inverted."},
    {Fault::kMemberLoss, "member.loss", Manner::kLasting, kMembers, kEveryOperation,
     "The member is away at one instant, with all its sets, even those that somebody adds "
     "meanwhile. Exactly the volumes with pages on it are not ready, and they return with it."},
    {Fault::kMemberPartition, "member.partition", Manner::kLasting, kMembers, kEveryOperation,
     "The member is silent. Requests of hosts wait, and go on if the partition ends within "
     "patience= (by default 5s); then the member is away like a lost one."},
    {Fault::kMemberSlow, "member.slow", Manner::kStrike, kMembers, kEveryOperation,
     "Each set of the member is slow, with the words of slow."},
    {Fault::kMemberReturnStale, "member.return.stale", Manner::kLasting, kMembers, 0,
     "All drives of the member are away for as long as for= says, and return with what was on "
     "them when the rule was added (a rule of the file: before the start). The sets see it by "
     "what they noted since, at each start and whenever a drive has left or returned; then "
     "they do not serve, and the volumes with pages there are not ready. Only a member that "
     "this daemon runs itself can do this, and no drive returns to what it was once more than "
     "64 MiB of it have changed."},
    {Fault::kRebalanceKill, "rebalance.kill", Manner::kInstant, kMetas, 0,
     "The daemon is killed (SIGKILL) at a step of a move of a page: at any step, or at that of "
     "event=, which is rebalance.claimed (the new place is chosen), rebalance.copied (it has "
     "some of the page), rebalance.ready (the whole page is), rebalance.moved (the map says "
     "so) or rebalance.kept (what snapshots keep of a page is elsewhere)."},
    {Fault::kMapCorrupt, "map.corrupt", Manner::kStrike, kMetas, kTransfers,
     "A bit of a value of some pool's map is inverted when it is read (op=read) or, for good, "
     "when it is written (op=write). Its checksum does not fit any more: at a start the pool "
     "is not opened, and the daemon tries again every ten seconds; later whatever needs the "
     "value fails, and that is an event."},
    {Fault::kCheck, "check", Manner::kStrike, kLuns, kEveryOperation,
     "The command ends with CHECK CONDITION and the sense data of key= (0 to 0xf) and code= "
     "(ASC/ASCQ in hexadecimal digits, as 11/00). With lba= their INFORMATION is the first of "
     "these blocks that the command names. A write that is struck changes nothing. The LUN "
     "reports a pending unit attention, a reservation and an invalid field first."},
    {Fault::kBusy, "busy", Manner::kStrike, kLuns, kEveryOperation,
     "The command ends with BUSY before it is in the task set."},
    {Fault::kTaskSetFull, "taskfull", Manner::kStrike, kLuns, kEveryOperation,
     "The command ends with TASK SET FULL before it is in the task set; depth= says how full "
     "that must be."},
    {Fault::kReservationConflict, "reservation.conflict", Manner::kStrike, kLuns, kEveryOperation,
     "The command ends with RESERVATION CONFLICT before it is in the task set."},
    {Fault::kUnitAttention, "ua", Manner::kStrike, kLuns, kEveryOperation,
     "A unit attention for the command's initiator port, by default code=29/00; 28/00, 2a/01, "
     "2a/09, 38/07 and 3f/0e are possible. It is reported as any other: by this command, or by "
     "the next where this one does not report any."},
    {Fault::kUnitNotReady, "notready", Manner::kStrike, kLuns, kEveryOperation,
     "The command ends with NOT READY, by default code=04/01 (becoming ready)."},
    {Fault::kAborted, "aborted", Manner::kStrike, kLuns, kEveryOperation,
     "The command ends with ABORTED COMMAND, by default code=00/00."},
    {Fault::kLunVanish, "lun.vanish", Manner::kStrike, kLuns, kEveryOperation,
     "Commands get LOGICAL UNIT NOT SUPPORTED, and INQUIRY answers that no unit can be here. "
     "Say how long, once, with for=30s count=1: otherwise the next command begins anew. REPORT "
     "LUNS lists the LUN all the same, and no unit attention tells of it; a rule with do=ua "
     "code=3f/0e does."},
    {Fault::kAluaState, "alua.state", Manner::kStrike, kLuns, kEveryOperation,
     "The command ends with NOT READY, as in an asymmetric access state: how=transition, "
     "how=standby or how=unavailable. The LUN serves INQUIRY, REPORT LUNS and the like as in "
     "that state."},
    {Fault::kPduDrop, "pdu.drop", Manner::kStrike, kConnections, 0,
     "The PDU is lost, as if it had been sent or had not come. A lost status has a StatSN, and "
     "a lost command a CmdSN, which initiators notice."},
    {Fault::kPduDelay, "pdu.delay", Manner::kStrike, kConnections, 0,
     "The PDU waits for latency= (5ms, 5ms..20ms or exp:5ms), and so does everything behind it "
     "on its connection."},
    {Fault::kDigestHeader, "digest.header", Manner::kStrike, kConnections, 0,
     "The header digest that is sent is wrong, or the one that came counts as wrong; where the "
     "connection has header digests."},
    {Fault::kDigestData, "digest.data", Manner::kStrike, kConnections, 0,
     "As digest.header, with the data digest."},
    {Fault::kDrop, "drop", Manner::kStrike, kConnections, 0,
     "The connection is reset at the PDU, or with how=close ends, or with how=silence stays, "
     "and nothing comes through it any more: the initiator has to notice."},
    {Fault::kPduDup, "pdu.dup", Manner::kStrike, kConnections, 0,
     "The PDU is sent, or comes, twice."},
    {Fault::kPduTruncate, "pdu.truncate", Manner::kStrike, kConnections, 0,
     "Half of the PDU is sent and the connection ends, or as if it had come so."},
    {Fault::kStatSnGap, "statsn.gap", Manner::kStrike, kConnections, 0,
     "A PDU that has a StatSN is lost with it."},
    {Fault::kDataSnGap, "datasn.gap", Manner::kStrike, kConnections, 0,
     "A Data-In without status is lost with its number."},
    {Fault::kR2tSnGap, "r2tsn.gap", Manner::kStrike, kConnections, 0,
     "An R2T is lost with its number, so that its write waits until the initiator gives it "
     "up, or after two minutes the target does."},
    {Fault::kFlap, "flap", Manner::kStrike, kLinks, 0,
     "The link is up for up= and down for down=, from when the rule is added or from= on: "
     "then connections are reset at their next PDU, and so are those that come."},
    {Fault::kRate, "rate", Manner::kStrike, kConnections, 0,
     "Each direction of each connection gets bandwidth=."},
    {Fault::kHalfOpen, "half-open", Manner::kStrike, kConnections, 0,
     "Nothing comes from the initiator any more, or with how=out nothing gets to it."},
    {Fault::kStallWindow, "stall-window", Manner::kStrike, kConnections, 0,
     "The target reads nothing from the connection for latency=, so that TCP's window closes."},
    {Fault::kFragment, "fragment", Manner::kStrike, kConnections, 0,
     "The target sends the PDU in pieces of bytes= (by default one), the first 4096 of them "
     "so; TCP may join some."},
    {Fault::kCorrupt, "corrupt", Manner::kStrike, kConnections, 0,
     "A bit of the PDU's data is inverted behind the digest, so that this is wrong, or with "
     "how=above before it, so that only the host's own checks can tell. Without digests "
     "nothing tells in either case."},
    {Fault::kReorderConnections, "reorder.connections", Manner::kStrike, kConnections, 0,
     "The PDUs of each connection are late by latency= (by default 0s to 2ms), so that those "
     "of a session with several connections come in another order. A link with a delay is "
     "do=pdu.delay latency=5ms..20ms."},
    {Fault::kBlackhole, "blackhole", Manner::kStrike, kLinks, 0,
     "A connection that comes to the link is reset, and for the time of for=, while the rule "
     "exists, attempts to connect get no answer."},
    {Fault::kResponseDelay, "response.delay", Manner::kStrike, kSessions, 0,
     "The status of a command is sent late by latency=, and other commands pass it. The "
     "command has ended as that status says. An abort takes the status out of the way, and "
     "then nobody sends it."},
    {Fault::kResponseDrop, "response.drop", Manner::kStrike, kSessions, 0,
     "The status of a command and the last of its data are never sent, and the initiator "
     "waits until it gives the command up. The command has ended."},
    {Fault::kTmfReject, "tmf.reject", Manner::kStrike, kSessions, 0,
     "A task management function is answered with result= (0 to 255, by default 255, function "
     "rejected) and not carried out."},
    {Fault::kTmfSlow, "tmf.slow", Manner::kStrike, kSessions, 0,
     "A task management function is answered late by latency=."},
    {Fault::kTmfLie, "tmf.lie", Manner::kStrike, kSessions, 0,
     "A task management function is answered with \"function complete\" before it is carried "
     "out, so that what it should have ended may still take effect."},
    {Fault::kNopIgnore, "nop.ignore", Manner::kStrike, kSessions, 0,
     "A ping of the initiator is not answered."},
    {Fault::kResidual, "residual", Manner::kStrike, kSessions, 0,
     "A status tells of bytes= (by default 512) too few, which a read then lacks at its end "
     "and a write has stored all the same, or with how=over too many. An initiator that does "
     "not look at residuals, such as that of QEMU, takes a read for whole."},
    {Fault::kAsync, "async", Manner::kStrike, kSessions, 0,
     "Before a command is answered, an asynchronous message announces an event, which then "
     "comes: how=logout (the target asks the initiator to log out within wait=, by default 3s, "
     "and drops it then), how=connection and how=session (it drops the one or all connections; "
     "wait= is Time2Wait) and how=negotiation (the target asks for it within wait=)."},
    {Fault::kWindowClose, "window.close", Manner::kStrike, kSessions, 0,
     "When a command has ended, the command window does not open further for latency=; the "
     "target serves commands that are in it already."},
    {Fault::kR2tWithhold, "r2t.withhold", Manner::kStrike, kSessions, 0,
     "The target asks for data of a write late, by latency=."},
    {Fault::kR2tSmall, "r2t.small", Manner::kStrike, kSessions, 0,
     "The target asks for at most bytes= (by default 512) of a write at once."},
    {Fault::kR2tDisorder, "r2t.disorder", Manner::kStrike, kSessions, 0,
     "The target asks for the second half of a piece before the first, which "
     "DataSequenceInOrder=Yes does not allow."},
    {Fault::kLoginReject, "login.reject", Manner::kStrike, kLinks, 0,
     "A login is refused with status=, class and detail in one number (by default 0x0301, "
     "service unavailable)."},
    {Fault::kLoginSlow, "login.slow", Manner::kStrike, kLinks, 0,
     "The first request of a login is answered late by latency=; a login that then takes "
     "longer than it may (by default 15 seconds) is dropped."},
    {Fault::kLoginStall, "login.stall", Manner::kStrike, kLinks, 0,
     "A login is not answered before the target drops it."},
    {Fault::kRedirect, "redirect", Manner::kStrike, kLinks, 0,
     "A login is sent on to address=, with permanent=yes for good."},
    {Fault::kNegoOdd, "nego.odd", Manner::kStrike, kLinks, 0,
     "A login to a target gets the smallest values that are allowed (512 bytes for PDUs and "
     "bursts, no data unasked), in pieces of text of 60 bytes, which may end in the middle of "
     "a key. libiscsi does not know such text."},
    {Fault::kCounterNearWrap, "counter.near.wrap", Manner::kStrike, kLinks, 0,
     "StatSN and the target transfer tags of a session begin sixteen below the end of their "
     "range."},
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
  if (rule.fault == Fault::kLost && of_path(rule.at)) mask = kChanges | bit(Operation::kUnmap);
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
