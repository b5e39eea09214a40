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
using scsi::Status;
using scsi::UnitAttention;

// Before a command is in the task set, and when its turn has come.
constexpr fault::FaultSet kOnArrival{Fault::kNothing, Fault::kBusy, Fault::kTaskSetFull,
                                     Fault::kReservationConflict};
constexpr fault::FaultSet kOnStart{Fault::kCheck, Fault::kUnitAttention, Fault::kUnitNotReady,
                                   Fault::kAborted};

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

std::uint8_t operation_of(const scsi::CommandRow& row) {
  switch (row.kind) {
    case CommandKind::kRead:
    case CommandKind::kVerify:
      return fault::bit(Operation::kRead);
    case CommandKind::kWrite:
      return fault::bit((row.flags & CommandFlags::kUnmapBit) != 0 ? Operation::kWriteZeroes
                                                                   : Operation::kWrite);
    case CommandKind::kFlush:
      return fault::bit(Operation::kFlush);
    case CommandKind::kUnmap:
      return fault::bit(Operation::kUnmap);
    case CommandKind::kOther:
      return 0;
  }
  return 0;
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
  occasion.operation = operation_of(row);
  occasion.extent = blocks_named_by(command);
  occasion.force_unit_access = row.cdb_bytes > 6 && occasion.operation != 0 &&
                               (command.cdb[1] & std::byte{0x08}) != std::byte{0} &&
                               row.kind != CommandKind::kFlush;
  occasion.always_served = row.is(CommandFlags::kServesDespiteAttention);
  return occasion;
}

}  // namespace

UnitFaults::UnitFaults(fault::Post& post, const std::string& volume)
    : site_(post.make_site({.kind = fault::Place::Kind::kLun, .name = volume})) {}

void UnitFaults::rename(const std::string& volume) { site_->rename(volume); }

std::optional<Status> UnitFaults::on_arrival(const scsi::Command& command, std::uint32_t in_set) {
  if (site_->quiet()) return std::nullopt;
  fault::Occasion occasion = occasion_of(command);
  occasion.depth = in_set + 1;
  const fault::Rule* const rule = site_->judge(occasion, kOnArrival);
  if (rule == nullptr) return std::nullopt;
  if (rule->fault == Fault::kBusy) return Status::kBusy;
  return rule->fault == Fault::kTaskSetFull ? Status::kTaskSetFull : Status::kReservationConflict;
}

std::optional<scsi::Interference::Answer> UnitFaults::on_start(const scsi::Command& command) {
  if (site_->quiet()) return std::nullopt;
  fault::Occasion occasion = occasion_of(command);
  occasion.arrives = false;
  const fault::Rule* const rule = site_->judge(occasion, kOnStart);
  if (rule == nullptr) return std::nullopt;
  Answer answer;
  const auto code = [&](Additional otherwise) {
    return rule->sense_code ? static_cast<Additional>(*rule->sense_code) : otherwise;
  };
  switch (rule->fault) {
    case Fault::kUnitAttention:
      answer.attention = attention_of(*rule);
      break;
    case Fault::kUnitNotReady:
      answer.sense = {.key = SenseKey::kNotReady, .additional = code(Additional::kBecomingReady)};
      break;
    case Fault::kAborted:
      answer.sense = {.key = SenseKey::kAbortedCommand, .additional = code(Additional::kNone)};
      break;
    default:
      answer.sense = {.key = static_cast<SenseKey>(rule->sense_key.value_or(0)),
                      .additional = code(Additional::kNone)};
      break;
  }
  // The first of the blocks that are bad, as a medium error tells it.
  if (rule->lba && !answer.attention) {
    answer.sense.information = std::max(rule->lba->first, occasion.extent.first);
  }
  return answer;
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
