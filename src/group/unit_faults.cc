// From commands to occasions, and from rules to statuses and sense data.
#include "group/unit_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "block/block_device.h"
#include "fault/traits.h"
#include "runtime/known.h"
#include "scsi/command.h"
#include "scsi/command_table.h"
#include "scsi/target_device.h"

namespace sandbay::group {

namespace {

using fault::Fault;
using scsi::Additional;
using scsi::CommandFlags;
using scsi::CommandKind;
using scsi::SenseKey;
using scsi::UnitAttention;

constexpr std::array kAttentions{UnitAttention::kPowerOn,
                                 UnitAttention::kMediumMayHaveChanged,
                                 UnitAttention::kCapacityChanged,
                                 UnitAttention::kModeParametersChanged,
                                 UnitAttention::kReportedLunsChanged,
                                 UnitAttention::kThinSoftThreshold};

std::optional<UnitAttention> attention_of(const fault::Rule& rule) {
  if (!rule.sense_code) return UnitAttention::kPowerOn;
  const auto found = std::ranges::find_if(kAttentions, [&](UnitAttention each) {
    return static_cast<std::uint16_t>(additional_of(each)) == *rule.sense_code;
  });
  return found == kAttentions.end() ? std::nullopt : std::optional(*found);
}

std::uint8_t operation_of(const scsi::CommandRow& row, const scsi::Command& command) {
  constexpr std::byte kUnmap{0x08};  // Of WRITE SAME.
  switch (row.kind) {
    case CommandKind::kRead:
    case CommandKind::kVerify:
      return fault::bit(Operation::kRead);
    case CommandKind::kWrite:
      if (!row.is(CommandFlags::kUnmapBits)) return fault::bit(Operation::kWrite);
      return fault::bit((command.cdb[1] & kUnmap) != std::byte{0} ? Operation::kUnmap
                                                                  : Operation::kWriteZeroes);
    case CommandKind::kFlush:
      return fault::bit(Operation::kFlush);
    case CommandKind::kUnmap:
      return fault::bit(Operation::kUnmap);
    case CommandKind::kOther:
      return row.opcode == 0x34 || row.opcode == 0x90 ? fault::bit(Operation::kAdvise) : 0;
  }
  return 0;
}

// FUA, and FUA_NV, which units serve as that; of reads and writes alone.
bool forces_unit_access(const scsi::CommandRow& row, const scsi::Command& command) {
  constexpr std::uint8_t kForces = 0x0A;
  const bool transfers = row.kind == CommandKind::kRead || row.kind == CommandKind::kWrite;
  const bool has_bits = row.cdb_bytes > 6 && (row.usage[0] & kForces) == kForces;
  return transfers && has_bits && !row.is(CommandFlags::kUnmapBits) &&
         (command.cdb[1] & std::byte{kForces}) != std::byte{0};
}

// Of an initiator port's name, which is the initiator's and its ISID (RFC 7143, section 4.2.7.1).
std::string_view initiator_of(const scsi::Command& command) {
  const std::string_view port = command.nexus->identity().initiator_port;
  return port.substr(0, port.find(",i,"));
}

fault::Occasion occasion_of(const scsi::Command& command) {
  fault::Occasion occasion{.opcode = std::to_integer<std::uint8_t>(command.cdb[0]),
                           .initiator = initiator_of(command),
                           .name = "unknown command"};
  if (command.row == nullptr) return occasion;
  const scsi::CommandRow& row = *command.row;
  occasion.name = row.name;
  occasion.operation = operation_of(row, command);
  // A flush has none, as at a drive.
  if (row.kind != CommandKind::kFlush) occasion.extent = blocks_named_by(command);
  occasion.force_unit_access = forces_unit_access(row, command);
  occasion.always_served = row.is(CommandFlags::kServesDespiteAttention);
  return occasion;
}

// Asymmetric access states (SPC-4 5.11.2).
Additional access_state_of(const fault::Rule& rule) {
  switch (way_of(rule)) {
    case fault::Way::kStandby:
      return Additional::kPortStandby;
    case fault::Way::kUnavailable:
      return Additional::kPortUnavailable;
    default:
      return Additional::kAccessStateTransition;
  }
}

}  // namespace

UnitFaults::UnitFaults(fault::Post& post, const std::string& volume)
    : UnitFaults(post.make_site({{.kind = fault::Place::Kind::kLun, .name = volume}})) {}

void UnitFaults::rename(const std::string& volume) { site_->rename(volume); }

const fault::Rule* UnitFaults::judge(const scsi::Command& command, fault::Stage stage,
                                     std::uint32_t depth, Extent* extent) {
  const std::uint8_t operation = command.row == nullptr ? 0 : operation_of(*command.row, command);
  const auto opcode = std::to_integer<std::uint8_t>(command.cdb[0]);
  if (!site_->looks_at(stage, opcode, operation)) return nullptr;
  fault::Occasion occasion = occasion_of(command);
  occasion.depth = depth;
  if (extent != nullptr) *extent = occasion.extent;
  return site_->judge(occasion, stage, fault::kEveryFault);
}

UnitFaults::Arrival UnitFaults::on_arrival(const scsi::Command& command, std::uint32_t in_set) {
  const fault::Rule* const rule = judge(command, fault::Stage::kArrival, in_set + 1);
  if (rule == nullptr) return Arrival::kPass;
  switch (rule->fault) {
    case Fault::kBusy:
      return Arrival::kBusy;
    case Fault::kTaskSetFull:
      return Arrival::kTaskSetFull;
    case Fault::kLunVanish:
      return Arrival::kVanished;
    default:
      return Arrival::kReservationConflict;
  }
}

std::optional<UnitAttention> UnitFaults::attention_for(const scsi::Command& command,
                                                       std::uint32_t in_set) {
  const fault::Rule* const rule = judge(command, fault::Stage::kAttention, in_set);
  return rule == nullptr ? std::nullopt : attention_of(*rule);
}

UnitFaults::Answer UnitFaults::answer_for(const scsi::Command& command, std::uint32_t in_set) {
  Extent extent;
  const fault::Rule* const rule = judge(command, fault::Stage::kStart, in_set, &extent);
  if (rule == nullptr) return {};
  if (rule->fault == Fault::kSlow) return {.delay = site_->draw(rule->latency)};
  if (rule->fault == Fault::kLost) return {.done = true};
  scsi::Sense sense;
  const auto code = [&](Additional otherwise) {
    return rule->sense_code ? static_cast<Additional>(*rule->sense_code) : otherwise;
  };
  switch (rule->fault) {
    case Fault::kUnitNotReady:
      sense = {.key = SenseKey::kNotReady, .additional = code(Additional::kBecomingReady)};
      break;
    case Fault::kAluaState:
      sense = {.key = SenseKey::kNotReady, .additional = access_state_of(*rule)};
      break;
    case Fault::kAborted:
      sense = {.key = SenseKey::kAbortedCommand, .additional = code(Additional::kNone)};
      break;
    default:
      sense = {.key = static_cast<SenseKey>(rule->sense_key.value_or(0)),
               .additional = code(Additional::kNone)};
      break;
  }
  // The first of the blocks that are bad, as a medium error tells it.
  if (rule->lba) sense.information = std::max(rule->lba->first, extent.first);
  return {.sense = sense};
}

std::optional<std::string> answer_error(const fault::Rule& rule) {
  if (rule.fault != Fault::kUnitAttention || attention_of(rule)) return std::nullopt;
  const auto text = [](unsigned code) {
    return fmt::format("{:02x}/{:02x}", code >> 8U, code & 0xffU);
  };
  std::vector<std::string> codes;
  for (const UnitAttention each : kAttentions) {
    codes.push_back(text(static_cast<unsigned>(additional_of(each))));
  }
  return fmt::format("code={}: units establish {}; do=check key=6 reports any other",
                     text(rule.sense_code.value_or(0)), fmt::join(codes, ", "));
}

}  // namespace sandbay::group
