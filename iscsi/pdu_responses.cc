// Parsers and writers of the target's PDUs that are not on the data path; those that are stand in
// the header. An initiator takes a refusal as the target's protocol error and drops the
// connection; the reasons are RFC 7143 section 11.17.1's all the same.
#include "iscsi/pdu_responses.h"

#include <algorithm>

namespace sandbay::iscsi {
namespace {

void start(Bhs& bhs, Opcode opcode, unsigned flags = 0x80U) {
  bhs.fill(std::byte{0});
  bhs[0] = static_cast<std::byte>(opcode);
  bhs[1] = static_cast<std::byte>(flags);
}

}  // namespace

Result<ScsiResponse, RejectReason> parse_scsi_response(BhsView bhs) {
  const std::uint8_t flags = byte_of(bhs, 1);
  ScsiResponse response{
      .response = static_cast<ServiceResponse>(byte_of(bhs, 2)),
      .status = byte_of(bhs, 3),
      .status_qualifier = big_endian<std::uint16_t>(bhs, 8),
      .data_segment_length = data_segment_length(bhs),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .snack_tag = big_endian<std::uint32_t>(bhs, 20),
      .numbers = parse_status_numbers(bhs),
      .exp_data_sn = big_endian<std::uint32_t>(bhs, 36),
      .bidirectional_read_residual_count = big_endian<std::uint32_t>(bhs, 40),
      .residual_count = big_endian<std::uint32_t>(bhs, 44),
  };
  // Section 11.4.3: with any other response the status and flags are undefined.
  if (response.response != ServiceResponse::kCompletedAtTarget) return response;
  // Section 11.4.1: O and U, and o and u, exclude each other.
  if ((flags & 0x18U) == 0x18U || (flags & 0x06U) == 0x06U) {
    return std::unexpected(RejectReason::kProtocolError);
  }
  if ((flags & 0x10U) != 0) response.bidirectional_read_residual = Residual::kOverflow;
  if ((flags & 0x08U) != 0) response.bidirectional_read_residual = Residual::kUnderflow;
  if ((flags & 0x04U) != 0) response.residual = Residual::kOverflow;
  if ((flags & 0x02U) != 0) response.residual = Residual::kUnderflow;
  return response;
}

Result<TaskManagementResponse, RejectReason> parse_task_management_response(BhsView bhs) {
  return TaskManagementResponse{
      .result = static_cast<TaskManagementResult>(byte_of(bhs, 2)),
      .additional_information = big_endian_24(bhs, 8),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .numbers = parse_status_numbers(bhs),
  };
}

void write_task_management_response(const TaskManagementResponse& response, Bhs& bhs) {
  start(bhs, Opcode::kTaskManagementResponse);
  bhs[2] = static_cast<std::byte>(response.result);
  put_big_endian_24(bhs, 8, response.additional_information);
  put_big_endian<std::uint32_t>(bhs, 16, response.initiator_task_tag);
  write_status_numbers(response.numbers, bhs);
}

Result<AsyncMessage, RejectReason> parse_async_message(BhsView bhs) {
  return AsyncMessage{
      .data_segment_length = data_segment_length(bhs),
      .lun = big_endian<std::uint64_t>(bhs, 8),
      .numbers = parse_status_numbers(bhs),
      .event = static_cast<AsyncEventCode>(byte_of(bhs, 36)),
      .vendor_code = byte_of(bhs, 37),
      .parameter1 = big_endian<std::uint16_t>(bhs, 38),
      .parameter2 = big_endian<std::uint16_t>(bhs, 40),
      .parameter3 = big_endian<std::uint16_t>(bhs, 42),
  };
}

void write_async_message(const AsyncMessage& message, Bhs& bhs) {
  start(bhs, Opcode::kAsyncMessage);
  put_big_endian_24(bhs, 5, message.data_segment_length);
  put_big_endian<std::uint64_t>(bhs, 8, message.lun);
  put_big_endian<std::uint32_t>(bhs, 16, kReservedTag);
  write_status_numbers(message.numbers, bhs);
  bhs[36] = static_cast<std::byte>(message.event);
  bhs[37] = static_cast<std::byte>(message.vendor_code);
  put_big_endian<std::uint16_t>(bhs, 38, message.parameter1);
  put_big_endian<std::uint16_t>(bhs, 40, message.parameter2);
  put_big_endian<std::uint16_t>(bhs, 42, message.parameter3);
}

Result<TextResponse, RejectReason> parse_text_response(BhsView bhs) {
  const std::uint8_t flags = byte_of(bhs, 1);
  const TextResponse response{
      .final = (flags & 0x80U) != 0,
      .continues = (flags & 0x40U) != 0,
      .data_segment_length = data_segment_length(bhs),
      .lun = big_endian<std::uint64_t>(bhs, 8),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .target_transfer_tag = big_endian<std::uint32_t>(bhs, 20),
      .numbers = parse_status_numbers(bhs),
  };
  // Section 11.11.2 and, for the tag, 6.4: a response that is not final can be gone on from.
  if (response.final && response.continues) return std::unexpected(RejectReason::kProtocolError);
  return response;
}

void write_text_response(const TextResponse& response, Bhs& bhs) {
  start(bhs, Opcode::kTextResponse,
        (response.final ? 0x80U : 0U) | (response.continues ? 0x40U : 0U));
  put_big_endian_24(bhs, 5, response.data_segment_length);
  put_big_endian<std::uint64_t>(bhs, 8, response.lun);
  put_big_endian<std::uint32_t>(bhs, 16, response.initiator_task_tag);
  put_big_endian<std::uint32_t>(bhs, 20, response.target_transfer_tag);
  write_status_numbers(response.numbers, bhs);
}

Result<LoginResponse, RejectReason> parse_login_response(BhsView bhs) {
  const std::uint8_t flags = byte_of(bhs, 1);
  LoginResponse response{
      .transit = (flags & 0x80U) != 0,
      .continues = (flags & 0x40U) != 0,
      .current_stage = static_cast<std::uint8_t>((flags >> 2U) & 0x03U),
      .next_stage = static_cast<std::uint8_t>(flags & 0x03U),
      .version_maximum = byte_of(bhs, 2),
      .version_active = byte_of(bhs, 3),
      .data_segment_length = data_segment_length(bhs),
      .tsih = big_endian<std::uint16_t>(bhs, 14),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .numbers = parse_status_numbers(bhs),
      .status = static_cast<LoginStatus>(big_endian<std::uint16_t>(bhs, 36)),
  };
  std::copy_n(bhs.begin() + 8, response.isid.bytes.size(), response.isid.bytes.begin());
  // Section 11.13.7; in a rejection the bits are reserved.
  if (response.status == LoginStatus::kSuccess && response.transit && response.continues) {
    return std::unexpected(RejectReason::kProtocolError);
  }
  return response;
}

void write_login_response(const LoginResponse& response, Bhs& bhs) {
  start(bhs, Opcode::kLoginResponse,
        (response.transit ? 0x80U : 0U) | (response.continues ? 0x40U : 0U) |
            (response.current_stage & 0x03U) << 2U | (response.next_stage & 0x03U));
  bhs[2] = static_cast<std::byte>(response.version_maximum);
  bhs[3] = static_cast<std::byte>(response.version_active);
  put_big_endian_24(bhs, 5, response.data_segment_length);
  std::ranges::copy(response.isid.bytes, bhs.begin() + 8);
  put_big_endian<std::uint16_t>(bhs, 14, response.tsih);
  put_big_endian<std::uint32_t>(bhs, 16, response.initiator_task_tag);
  write_status_numbers(response.numbers, bhs);
  put_big_endian<std::uint16_t>(bhs, 36, static_cast<std::uint16_t>(response.status));
}

Result<LogoutResponse, RejectReason> parse_logout_response(BhsView bhs) {
  return LogoutResponse{
      .result = static_cast<LogoutResult>(byte_of(bhs, 2)),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .numbers = parse_status_numbers(bhs),
      .time2wait = big_endian<std::uint16_t>(bhs, 40),
      .time2retain = big_endian<std::uint16_t>(bhs, 42),
  };
}

void write_logout_response(const LogoutResponse& response, Bhs& bhs) {
  start(bhs, Opcode::kLogoutResponse);
  bhs[2] = static_cast<std::byte>(response.result);
  put_big_endian<std::uint32_t>(bhs, 16, response.initiator_task_tag);
  write_status_numbers(response.numbers, bhs);
  put_big_endian<std::uint16_t>(bhs, 40, response.time2wait);
  put_big_endian<std::uint16_t>(bhs, 42, response.time2retain);
}

Result<Reject, RejectReason> parse_reject(BhsView bhs) {
  return Reject{
      .reason = static_cast<RejectReason>(byte_of(bhs, 2)),
      .data_segment_length = data_segment_length(bhs),
      .numbers = parse_status_numbers(bhs),
      .data_sn = big_endian<std::uint32_t>(bhs, 36),
  };
}

void write_reject(const Reject& reject, Bhs& bhs) {
  start(bhs, Opcode::kReject);
  bhs[2] = static_cast<std::byte>(reject.reason);
  put_big_endian_24(bhs, 5, reject.data_segment_length);
  put_big_endian<std::uint32_t>(bhs, 16, kReservedTag);
  write_status_numbers(reject.numbers, bhs);
  put_big_endian<std::uint32_t>(bhs, 36, reject.data_sn);
}

Result<NopIn, RejectReason> parse_nop_in(BhsView bhs) {
  return NopIn{
      .data_segment_length = data_segment_length(bhs),
      .lun = big_endian<std::uint64_t>(bhs, 8),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .target_transfer_tag = big_endian<std::uint32_t>(bhs, 20),
      .numbers = parse_status_numbers(bhs),
  };
}

void write_nop_in(const NopIn& nop, Bhs& bhs) {
  start(bhs, Opcode::kNopIn);
  put_big_endian_24(bhs, 5, nop.data_segment_length);
  put_big_endian<std::uint64_t>(bhs, 8, nop.lun);
  put_big_endian<std::uint32_t>(bhs, 16, nop.initiator_task_tag);
  put_big_endian<std::uint32_t>(bhs, 20, nop.target_transfer_tag);
  write_status_numbers(nop.numbers, bhs);
}

}  // namespace sandbay::iscsi
