// Parsers and writers of the initiator's PDUs. What makes a header wrong by itself, in any state,
// is refused here with the reason that RFC 7143 section 11.17.1 has for it; fields that the
// receiver is to ignore are ignored.
#include "iscsi/pdu_requests.h"

#include <algorithm>
#include <cassert>

namespace sandbay::iscsi {
namespace {

// Section 11.2.2.1; the AHS code stands in the low six bits of the type byte.
constexpr std::uint8_t kExtendedCdbAhs = 0x01;
constexpr std::uint8_t kBidirectionalReadAhs = 0x02;
constexpr std::size_t kAhsHeaderBytes = 3;  // AHSLength and AHSType; not counted in AHSLength.
constexpr std::uint16_t kBidirectionalReadAhsLength = 5;

void put_byte(Bhs& bhs, std::size_t offset, std::uint8_t value) {
  bhs[offset] = static_cast<std::byte>(value);
}

void start(Bhs& bhs, Opcode opcode, bool immediate, std::uint8_t flags) {
  bhs.fill(std::byte{0});
  put_byte(bhs, 0,
           static_cast<std::uint8_t>(static_cast<std::uint8_t>(opcode) | (immediate ? 0x40U : 0U)));
  put_byte(bhs, 1, flags);
}

void put_sequence_numbers(Bhs& bhs, std::uint32_t cmd_sn, std::uint32_t exp_stat_sn) {
  put_big_endian<std::uint32_t>(bhs, 24, cmd_sn);
  put_big_endian<std::uint32_t>(bhs, 28, exp_stat_sn);
}

// One AHS at the front of `ahs`; false: malformed, or of a reserved type.
bool take_ahs(std::span<const std::byte>& ahs, ScsiCommand& command, bool& has_read_length) {
  if (ahs.size() < 4) return false;
  const std::size_t length = big_endian<std::uint16_t>(ahs, 0);
  const auto type = std::to_integer<std::uint8_t>(ahs[2]) & 0x3fU;
  const std::size_t whole = (kAhsHeaderBytes + length + 3) / 4 * 4;
  if (whole > ahs.size()) return false;
  if (type == kExtendedCdbAhs) {
    // AHSLength counts the reserved byte 3, so a spillover of at least one byte makes it 2.
    if (length < 2 || !command.extended_cdb.empty()) return false;
    command.extended_cdb = ahs.subspan(4, length - 1);
  } else if (type == kBidirectionalReadAhs) {
    if (length != kBidirectionalReadAhsLength || has_read_length) return false;
    command.bidirectional_read_length = big_endian<std::uint32_t>(ahs, 4);
    has_read_length = true;
  } else {
    return false;
  }
  ahs = ahs.subspan(whole);
  return true;
}

}  // namespace

Result<ScsiCommand, RejectReason> parse_scsi_command(BhsView bhs, std::span<const std::byte> ahs) {
  const std::uint8_t flags = byte_of(bhs, 1);
  ScsiCommand command{
      .immediate = is_immediate(bhs),
      .final = (flags & 0x80U) != 0,
      .read = (flags & 0x40U) != 0,
      .write = (flags & 0x20U) != 0,
      .attribute = static_cast<AttributeCode>(flags & 0x07U),
      .priority = static_cast<std::uint8_t>(byte_of(bhs, 2) >> 4U),
      .data_segment_length = data_segment_length(bhs),
      .lun = big_endian<std::uint64_t>(bhs, 8),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .expected_data_transfer_length = big_endian<std::uint32_t>(bhs, 20),
      .cmd_sn = big_endian<std::uint32_t>(bhs, 24),
      .exp_stat_sn = big_endian<std::uint32_t>(bhs, 28),
  };
  std::copy_n(bhs.begin() + 32, command.cdb.size(), command.cdb.begin());

  bool has_read_length = false;
  while (!ahs.empty()) {
    if (!take_ahs(ahs, command, has_read_length)) {
      return std::unexpected(RejectReason::kInvalidPduField);
    }
  }
  // A reserved code value is a protocol error (section 11).
  if (command.attribute > AttributeCode::kAca) return std::unexpected(RejectReason::kProtocolError);
  if (command.initiator_task_tag == kReservedTag) {
    return std::unexpected(RejectReason::kInvalidPduField);
  }
  // Without W there can be no unsolicited data, so F must be set (section 11.3.1) …
  if (!command.final && !command.write) return std::unexpected(RejectReason::kInvalidPduField);
  // … and no data can come or go without a direction.
  if (!command.read && !command.write && command.expected_data_transfer_length != 0) {
    return std::unexpected(RejectReason::kInvalidPduField);
  }
  // Section 11.3.4: both directions need the second length.
  if (command.read && command.write && !has_read_length) {
    return std::unexpected(RejectReason::kInvalidPduField);
  }
  return command;
}

std::uint32_t ahs_byte_count(const ScsiCommand& command) {
  std::uint32_t count = 0;
  if (!command.extended_cdb.empty()) {
    count += 4 + padded(static_cast<std::uint32_t>(command.extended_cdb.size()));
  }
  if (command.read && command.write) count += 8;
  return count;
}

void write_ahs(const ScsiCommand& command, std::span<std::byte> ahs) {
  assert(ahs.size() == ahs_byte_count(command));
  std::ranges::fill(ahs, std::byte{0});
  if (!command.extended_cdb.empty()) {
    const auto spill = command.extended_cdb.size();
    put_big_endian<std::uint16_t>(ahs, 0, static_cast<std::uint16_t>(spill + 1));
    ahs[2] = std::byte{kExtendedCdbAhs};
    std::ranges::copy(command.extended_cdb, ahs.begin() + 4);
    ahs = ahs.subspan(4 + padded(static_cast<std::uint32_t>(spill)));
  }
  if (command.read && command.write) {
    put_big_endian<std::uint16_t>(ahs, 0, kBidirectionalReadAhsLength);
    ahs[2] = std::byte{kBidirectionalReadAhs};
    put_big_endian<std::uint32_t>(ahs, 4, command.bidirectional_read_length);
  }
}

void write_scsi_command(const ScsiCommand& command, Bhs& bhs) {
  const std::uint32_t ahs = ahs_byte_count(command);
  assert(ahs <= kMaximumAhsBytes && command.priority < 16);
  const unsigned flags = (command.final ? 0x80U : 0U) | (command.read ? 0x40U : 0U) |
                         (command.write ? 0x20U : 0U) | static_cast<unsigned>(command.attribute);
  start(bhs, Opcode::kScsiCommand, command.immediate, static_cast<std::uint8_t>(flags));
  put_byte(bhs, 2, static_cast<std::uint8_t>(command.priority << 4U));
  put_byte(bhs, 4, static_cast<std::uint8_t>(ahs / 4));
  put_big_endian_24(bhs, 5, command.data_segment_length);
  put_big_endian<std::uint64_t>(bhs, 8, command.lun);
  put_big_endian<std::uint32_t>(bhs, 16, command.initiator_task_tag);
  put_big_endian<std::uint32_t>(bhs, 20, command.expected_data_transfer_length);
  put_sequence_numbers(bhs, command.cmd_sn, command.exp_stat_sn);
  std::ranges::copy(command.cdb, bhs.begin() + 32);
}

Result<TaskManagementRequest, RejectReason> parse_task_management_request(BhsView bhs) {
  const TaskManagementRequest request{
      .immediate = is_immediate(bhs),
      .function = static_cast<TaskManagementFunction>(byte_of(bhs, 1) & 0x7fU),
      .lun = big_endian<std::uint64_t>(bhs, 8),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .referenced_task_tag = big_endian<std::uint32_t>(bhs, 20),
      .cmd_sn = big_endian<std::uint32_t>(bhs, 24),
      .exp_stat_sn = big_endian<std::uint32_t>(bhs, 28),
      .ref_cmd_sn = big_endian<std::uint32_t>(bhs, 32),
      .exp_data_sn = big_endian<std::uint32_t>(bhs, 36),
  };
  if (request.initiator_task_tag == kReservedTag) {
    return std::unexpected(RejectReason::kInvalidPduField);
  }
  return request;
}

void write_task_management_request(const TaskManagementRequest& request, Bhs& bhs) {
  start(bhs, Opcode::kTaskManagementRequest, request.immediate,
        static_cast<std::uint8_t>(0x80U | static_cast<std::uint8_t>(request.function)));
  put_big_endian<std::uint64_t>(bhs, 8, request.lun);
  put_big_endian<std::uint32_t>(bhs, 16, request.initiator_task_tag);
  put_big_endian<std::uint32_t>(bhs, 20, request.referenced_task_tag);
  put_sequence_numbers(bhs, request.cmd_sn, request.exp_stat_sn);
  put_big_endian<std::uint32_t>(bhs, 32, request.ref_cmd_sn);
  put_big_endian<std::uint32_t>(bhs, 36, request.exp_data_sn);
}

Result<TextRequest, RejectReason> parse_text_request(BhsView bhs) {
  const std::uint8_t flags = byte_of(bhs, 1);
  const TextRequest request{
      .immediate = is_immediate(bhs),
      .final = (flags & 0x80U) != 0,
      .continues = (flags & 0x40U) != 0,
      .data_segment_length = data_segment_length(bhs),
      .lun = big_endian<std::uint64_t>(bhs, 8),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .target_transfer_tag = big_endian<std::uint32_t>(bhs, 20),
      .cmd_sn = big_endian<std::uint32_t>(bhs, 24),
      .exp_stat_sn = big_endian<std::uint32_t>(bhs, 28),
  };
  // Section 11.10.2.
  if (request.final && request.continues) return std::unexpected(RejectReason::kProtocolError);
  if (request.initiator_task_tag == kReservedTag) {
    return std::unexpected(RejectReason::kInvalidPduField);
  }
  return request;
}

void write_text_request(const TextRequest& request, Bhs& bhs) {
  const unsigned flags = (request.final ? 0x80U : 0U) | (request.continues ? 0x40U : 0U);
  start(bhs, Opcode::kTextRequest, request.immediate, static_cast<std::uint8_t>(flags));
  put_big_endian_24(bhs, 5, request.data_segment_length);
  put_big_endian<std::uint64_t>(bhs, 8, request.lun);
  put_big_endian<std::uint32_t>(bhs, 16, request.initiator_task_tag);
  put_big_endian<std::uint32_t>(bhs, 20, request.target_transfer_tag);
  put_sequence_numbers(bhs, request.cmd_sn, request.exp_stat_sn);
}

LoginRequest parse_login_request(BhsView bhs) {
  const std::uint8_t flags = byte_of(bhs, 1);
  LoginRequest request{
      .transit = (flags & 0x80U) != 0,
      .continues = (flags & 0x40U) != 0,
      .current_stage = static_cast<std::uint8_t>((flags >> 2U) & 0x03U),
      .next_stage = static_cast<std::uint8_t>(flags & 0x03U),
      .version_maximum = byte_of(bhs, 2),
      .version_minimum = byte_of(bhs, 3),
      .data_segment_length = data_segment_length(bhs),
      .tsih = big_endian<std::uint16_t>(bhs, 14),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .cid = big_endian<std::uint16_t>(bhs, 20),
      .cmd_sn = big_endian<std::uint32_t>(bhs, 24),
      .exp_stat_sn = big_endian<std::uint32_t>(bhs, 28),
  };
  std::copy_n(bhs.begin() + 8, request.isid.bytes.size(), request.isid.bytes.begin());
  return request;
}

void write_login_request(const LoginRequest& request, Bhs& bhs) {
  const unsigned flags = (request.transit ? 0x80U : 0U) | (request.continues ? 0x40U : 0U) |
                         (request.current_stage & 0x03U) << 2U | (request.next_stage & 0x03U);
  start(bhs, Opcode::kLoginRequest, true, static_cast<std::uint8_t>(flags));
  put_byte(bhs, 2, request.version_maximum);
  put_byte(bhs, 3, request.version_minimum);
  put_big_endian_24(bhs, 5, request.data_segment_length);
  std::ranges::copy(request.isid.bytes, bhs.begin() + 8);
  put_big_endian<std::uint16_t>(bhs, 14, request.tsih);
  put_big_endian<std::uint32_t>(bhs, 16, request.initiator_task_tag);
  put_big_endian<std::uint16_t>(bhs, 20, request.cid);
  put_sequence_numbers(bhs, request.cmd_sn, request.exp_stat_sn);
}

Result<LogoutRequest, RejectReason> parse_logout_request(BhsView bhs) {
  const LogoutRequest request{
      .immediate = is_immediate(bhs),
      .reason = static_cast<LogoutReason>(byte_of(bhs, 1) & 0x7fU),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .cid = big_endian<std::uint16_t>(bhs, 20),
      .cmd_sn = big_endian<std::uint32_t>(bhs, 24),
      .exp_stat_sn = big_endian<std::uint32_t>(bhs, 28),
  };
  if (request.reason > LogoutReason::kRemoveForRecovery) {
    return std::unexpected(RejectReason::kProtocolError);
  }
  if (request.initiator_task_tag == kReservedTag) {
    return std::unexpected(RejectReason::kInvalidPduField);
  }
  return request;
}

void write_logout_request(const LogoutRequest& request, Bhs& bhs) {
  start(bhs, Opcode::kLogoutRequest, request.immediate,
        static_cast<std::uint8_t>(0x80U | static_cast<std::uint8_t>(request.reason)));
  put_big_endian<std::uint32_t>(bhs, 16, request.initiator_task_tag);
  put_big_endian<std::uint16_t>(bhs, 20, request.cid);
  put_sequence_numbers(bhs, request.cmd_sn, request.exp_stat_sn);
}

Result<NopOut, RejectReason> parse_nop_out(BhsView bhs) {
  const NopOut nop{
      .immediate = is_immediate(bhs),
      .data_segment_length = data_segment_length(bhs),
      .lun = big_endian<std::uint64_t>(bhs, 8),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .target_transfer_tag = big_endian<std::uint32_t>(bhs, 20),
      .cmd_sn = big_endian<std::uint32_t>(bhs, 24),
      .exp_stat_sn = big_endian<std::uint32_t>(bhs, 28),
  };
  // Section 11.18.1: no task, hence no CmdSN to take.
  if (nop.initiator_task_tag == kReservedTag && !nop.immediate) {
    return std::unexpected(RejectReason::kInvalidPduField);
  }
  return nop;
}

void write_nop_out(const NopOut& nop, Bhs& bhs) {
  start(bhs, Opcode::kNopOut, nop.immediate, 0x80);
  put_big_endian_24(bhs, 5, nop.data_segment_length);
  put_big_endian<std::uint64_t>(bhs, 8, nop.lun);
  put_big_endian<std::uint32_t>(bhs, 16, nop.initiator_task_tag);
  put_big_endian<std::uint32_t>(bhs, 20, nop.target_transfer_tag);
  put_sequence_numbers(bhs, nop.cmd_sn, nop.exp_stat_sn);
}

}  // namespace sandbay::iscsi
