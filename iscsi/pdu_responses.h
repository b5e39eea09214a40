// The PDUs a target sends (RFC 7143 sections 11.4, 11.6, 11.7, 11.8, 11.9, 11.11, 11.13, 11.15,
// 11.17 and 11.19), as structures with their parsers and writers. Include iscsi/pdu.h, which has
// the rules that hold for all of them. Those of the data path are inline.
#pragma once

#include "iscsi/pdu.h"

namespace sandbay::iscsi {

// The residual flags of one direction (section 11.4.1): at most one of them is set.
enum class Residual : std::uint8_t { kNone, kUnderflow, kOverflow };

// Section 11.4.
struct ScsiResponse {
  ServiceResponse response = ServiceResponse::kCompletedAtTarget;
  std::uint8_t status = 0;
  Residual residual = Residual::kNone;
  Residual bidirectional_read_residual = Residual::kNone;
  std::uint16_t status_qualifier = 0;  // RFC 7144 section 5.2.1.
  std::uint32_t data_segment_length = 0;
  std::uint32_t initiator_task_tag = kReservedTag;
  std::uint32_t snack_tag = 0;
  StatusNumbers numbers;
  std::uint32_t exp_data_sn = 0;
  std::uint32_t bidirectional_read_residual_count = 0;
  std::uint32_t residual_count = 0;
  bool operator==(const ScsiResponse&) const = default;
};
Result<ScsiResponse, RejectReason> parse_scsi_response(BhsView bhs);
inline void write_scsi_response(const ScsiResponse& response, Bhs& bhs) {
  bhs.fill(std::byte{0});
  std::uint8_t flags = 0x80;
  if (response.bidirectional_read_residual == Residual::kOverflow) flags |= 0x10U;
  if (response.bidirectional_read_residual == Residual::kUnderflow) flags |= 0x08U;
  if (response.residual == Residual::kOverflow) flags |= 0x04U;
  if (response.residual == Residual::kUnderflow) flags |= 0x02U;
  bhs[0] = static_cast<std::byte>(Opcode::kScsiResponse);
  bhs[1] = static_cast<std::byte>(flags);
  bhs[2] = static_cast<std::byte>(response.response);
  bhs[3] = static_cast<std::byte>(response.status);
  put_big_endian_24(bhs, 5, response.data_segment_length);
  put_big_endian<std::uint16_t>(bhs, 8, response.status_qualifier);
  put_big_endian<std::uint32_t>(bhs, 16, response.initiator_task_tag);
  put_big_endian<std::uint32_t>(bhs, 20, response.snack_tag);
  write_status_numbers(response.numbers, bhs);
  put_big_endian<std::uint32_t>(bhs, 36, response.exp_data_sn);
  put_big_endian<std::uint32_t>(bhs, 40, response.bidirectional_read_residual_count);
  put_big_endian<std::uint32_t>(bhs, 44, response.residual_count);
}

// Section 11.6.
struct TaskManagementResponse {
  TaskManagementResult result = TaskManagementResult::kFunctionComplete;
  std::uint32_t additional_information = 0;  // Three bytes; RFC 7144 section 6.2.2.
  std::uint32_t initiator_task_tag = kReservedTag;
  StatusNumbers numbers;
  bool operator==(const TaskManagementResponse&) const = default;
};
Result<TaskManagementResponse, RejectReason> parse_task_management_response(BhsView bhs);
void write_task_management_response(const TaskManagementResponse& response, Bhs& bhs);

// Section 11.7. status, residual and numbers.stat_sn are meaningful only with has_status.
struct DataIn {
  bool final = false;
  bool acknowledge = false;  // The A bit.
  bool has_status = false;   // The S bit; implies `final`.
  Residual residual = Residual::kNone;
  std::uint8_t status = 0;
  std::uint32_t data_segment_length = 0;
  std::uint64_t lun = 0;
  std::uint32_t initiator_task_tag = kReservedTag;
  std::uint32_t target_transfer_tag = kReservedTag;
  StatusNumbers numbers;
  std::uint32_t data_sn = 0;
  std::uint32_t buffer_offset = 0;
  std::uint32_t residual_count = 0;
  bool operator==(const DataIn&) const = default;
};
inline Result<DataIn, RejectReason> parse_data_in(BhsView bhs) {
  const std::uint8_t flags = byte_of(bhs, 1);
  DataIn data{
      .final = (flags & 0x80U) != 0,
      .acknowledge = (flags & 0x40U) != 0,
      .has_status = (flags & 0x01U) != 0,
      .data_segment_length = data_segment_length(bhs),
      .lun = big_endian<std::uint64_t>(bhs, 8),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .target_transfer_tag = big_endian<std::uint32_t>(bhs, 20),
      .numbers = parse_status_numbers(bhs),
      .data_sn = big_endian<std::uint32_t>(bhs, 36),
      .buffer_offset = big_endian<std::uint32_t>(bhs, 40),
  };
  if (!data.has_status) return data;
  if (!data.final || (flags & 0x06U) == 0x06U) return std::unexpected(RejectReason::kProtocolError);
  if ((flags & 0x04U) != 0) data.residual = Residual::kOverflow;
  if ((flags & 0x02U) != 0) data.residual = Residual::kUnderflow;
  data.status = byte_of(bhs, 3);
  data.residual_count = big_endian<std::uint32_t>(bhs, 44);
  return data;
}
inline void write_data_in(const DataIn& data, Bhs& bhs) {
  bhs.fill(std::byte{0});
  std::uint8_t flags = 0;
  if (data.final) flags |= 0x80U;
  if (data.acknowledge) flags |= 0x40U;
  if (data.has_status) {
    flags |= 0x01U;
    if (data.residual == Residual::kOverflow) flags |= 0x04U;
    if (data.residual == Residual::kUnderflow) flags |= 0x02U;
    bhs[3] = static_cast<std::byte>(data.status);
    put_big_endian<std::uint32_t>(bhs, 44, data.residual_count);
  }
  bhs[0] = static_cast<std::byte>(Opcode::kDataIn);
  bhs[1] = static_cast<std::byte>(flags);
  put_big_endian_24(bhs, 5, data.data_segment_length);
  put_big_endian<std::uint64_t>(bhs, 8, data.lun);
  put_big_endian<std::uint32_t>(bhs, 16, data.initiator_task_tag);
  put_big_endian<std::uint32_t>(bhs, 20, data.target_transfer_tag);
  write_status_numbers(data.numbers, bhs);
  put_big_endian<std::uint32_t>(bhs, 36, data.data_sn);
  put_big_endian<std::uint32_t>(bhs, 40, data.buffer_offset);
}

// Section 11.8.
struct ReadyToTransfer {
  std::uint64_t lun = 0;
  std::uint32_t initiator_task_tag = kReservedTag;
  std::uint32_t target_transfer_tag = 0;
  StatusNumbers numbers;
  std::uint32_t r2t_sn = 0;
  std::uint32_t buffer_offset = 0;
  std::uint32_t desired_data_transfer_length = 0;
  bool operator==(const ReadyToTransfer&) const = default;
};
inline Result<ReadyToTransfer, RejectReason> parse_ready_to_transfer(BhsView bhs) {
  ReadyToTransfer r2t{
      .lun = big_endian<std::uint64_t>(bhs, 8),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .target_transfer_tag = big_endian<std::uint32_t>(bhs, 20),
      .numbers = parse_status_numbers(bhs),
      .r2t_sn = big_endian<std::uint32_t>(bhs, 36),
      .buffer_offset = big_endian<std::uint32_t>(bhs, 40),
      .desired_data_transfer_length = big_endian<std::uint32_t>(bhs, 44),
  };
  if (r2t.target_transfer_tag == kReservedTag || r2t.desired_data_transfer_length == 0) {
    return std::unexpected(RejectReason::kProtocolError);
  }
  return r2t;
}
inline void write_ready_to_transfer(const ReadyToTransfer& r2t, Bhs& bhs) {
  bhs.fill(std::byte{0});
  bhs[0] = static_cast<std::byte>(Opcode::kReadyToTransfer);
  bhs[1] = std::byte{0x80};
  put_big_endian<std::uint64_t>(bhs, 8, r2t.lun);
  put_big_endian<std::uint32_t>(bhs, 16, r2t.initiator_task_tag);
  put_big_endian<std::uint32_t>(bhs, 20, r2t.target_transfer_tag);
  write_status_numbers(r2t.numbers, bhs);
  put_big_endian<std::uint32_t>(bhs, 36, r2t.r2t_sn);
  put_big_endian<std::uint32_t>(bhs, 40, r2t.buffer_offset);
  put_big_endian<std::uint32_t>(bhs, 44, r2t.desired_data_transfer_length);
}

// Section 11.9. The data segment is SenseLength (two bytes), sense data, event data.
struct AsyncMessage {
  std::uint32_t data_segment_length = 0;
  std::uint64_t lun = 0;
  StatusNumbers numbers;
  AsyncEventCode event = AsyncEventCode::kScsiEvent;
  std::uint8_t vendor_code = 0;
  std::uint16_t parameter1 = 0;
  std::uint16_t parameter2 = 0;
  std::uint16_t parameter3 = 0;
  bool operator==(const AsyncMessage&) const = default;
};
// Unassigned events parse: a receiver may ignore them.
Result<AsyncMessage, RejectReason> parse_async_message(BhsView bhs);
void write_async_message(const AsyncMessage& message, Bhs& bhs);

// Section 11.11.
struct TextResponse {
  bool final = true;
  bool continues = false;
  std::uint32_t data_segment_length = 0;
  std::uint64_t lun = 0;
  std::uint32_t initiator_task_tag = kReservedTag;
  std::uint32_t target_transfer_tag = kReservedTag;
  StatusNumbers numbers;
  bool operator==(const TextResponse&) const = default;
};
Result<TextResponse, RejectReason> parse_text_response(BhsView bhs);
void write_text_response(const TextResponse& response, Bhs& bhs);

// Section 11.13.
struct LoginResponse {
  bool transit = false;
  bool continues = false;
  std::uint8_t current_stage = 0;
  std::uint8_t next_stage = 0;
  std::uint8_t version_maximum = 0;
  std::uint8_t version_active = 0;
  std::uint32_t data_segment_length = 0;
  Isid isid;
  std::uint16_t tsih = 0;
  std::uint32_t initiator_task_tag = 0;
  StatusNumbers numbers;
  LoginStatus status = LoginStatus::kSuccess;
  bool operator==(const LoginResponse&) const = default;
};
Result<LoginResponse, RejectReason> parse_login_response(BhsView bhs);
void write_login_response(const LoginResponse& response, Bhs& bhs);

// Section 11.15.
struct LogoutResponse {
  LogoutResult result = LogoutResult::kClosed;
  std::uint32_t initiator_task_tag = kReservedTag;
  StatusNumbers numbers;
  std::uint16_t time2wait = 0;
  std::uint16_t time2retain = 0;
  bool operator==(const LogoutResponse&) const = default;
};
Result<LogoutResponse, RejectReason> parse_logout_response(BhsView bhs);
void write_logout_response(const LogoutResponse& response, Bhs& bhs);

// Section 11.17. The data segment is the complete header (BHS and AHS) of the bad PDU.
struct Reject {
  RejectReason reason = RejectReason::kProtocolError;
  std::uint32_t data_segment_length = 0;
  StatusNumbers numbers;
  std::uint32_t data_sn = 0;  // DataSN or R2TSN; only with a rejected Data/R2T SNACK.
  bool operator==(const Reject&) const = default;
};
Result<Reject, RejectReason> parse_reject(BhsView bhs);
void write_reject(const Reject& reject, Bhs& bhs);

// Section 11.19.
struct NopIn {
  std::uint32_t data_segment_length = 0;
  std::uint64_t lun = 0;
  std::uint32_t initiator_task_tag = kReservedTag;
  std::uint32_t target_transfer_tag = kReservedTag;
  StatusNumbers numbers;
  bool operator==(const NopIn&) const = default;
};
Result<NopIn, RejectReason> parse_nop_in(BhsView bhs);
void write_nop_in(const NopIn& nop, Bhs& bhs);

}  // namespace sandbay::iscsi
