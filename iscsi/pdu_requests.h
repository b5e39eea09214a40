// The PDUs an initiator sends (RFC 7143 sections 11.3, 11.5, 11.7, 11.10, 11.12, 11.14 and
// 11.18), as structures with their parsers and writers. Include iscsi/pdu.h, which has the rules
// that hold for all of them.
#pragma once

#include "iscsi/pdu.h"

namespace sandbay::iscsi {

// Section 11.3.1; the numbers are the PDU's.
enum class AttributeCode : std::uint8_t {
  kUntagged = 0,
  kSimple = 1,
  kOrdered = 2,
  kHeadOfQueue = 3,
  kAca = 4,
};

// Section 11.3. The extended CDB and the bidirectional read length travel in AHSs.
struct ScsiCommand {
  bool immediate = false;
  bool final = true;
  bool read = false;
  bool write = false;
  AttributeCode attribute = AttributeCode::kSimple;
  std::uint8_t priority = 0;  // 0 to 15; RFC 7144 section 5.1.1.
  std::uint32_t data_segment_length = 0;
  std::uint64_t lun = 0;
  std::uint32_t initiator_task_tag = kReservedTag;
  std::uint32_t expected_data_transfer_length = 0;
  std::uint32_t cmd_sn = 0;
  std::uint32_t exp_stat_sn = 0;
  std::array<std::byte, 16> cdb{};
  std::span<const std::byte> extended_cdb;      // Bytes 16 and up; borrows from the AHS.
  std::uint32_t bidirectional_read_length = 0;  // Meaningful with read and write.
};
// `ahs` is the ahs_byte_count(bhs) bytes after the BHS.
Result<ScsiCommand, RejectReason> parse_scsi_command(BhsView bhs,
                                                     std::span<const std::byte> ahs = {});
// Bytes of AHS the command needs: a multiple of 4, at most kMaximumAhsBytes.
std::uint32_t ahs_byte_count(const ScsiCommand& command);
// Fills exactly ahs_byte_count(command) bytes.
void write_ahs(const ScsiCommand& command, std::span<std::byte> ahs);
void write_scsi_command(const ScsiCommand& command, Bhs& bhs);

// Section 11.5.
struct TaskManagementRequest {
  bool immediate = true;
  TaskManagementFunction function = TaskManagementFunction::kAbortTask;
  std::uint64_t lun = 0;
  std::uint32_t initiator_task_tag = kReservedTag;
  std::uint32_t referenced_task_tag = kReservedTag;
  std::uint32_t cmd_sn = 0;
  std::uint32_t exp_stat_sn = 0;
  std::uint32_t ref_cmd_sn = 0;
  std::uint32_t exp_data_sn = 0;
  bool operator==(const TaskManagementRequest&) const = default;
};
// Unknown functions parse: they are answered "function not supported", not rejected.
Result<TaskManagementRequest, RejectReason> parse_task_management_request(BhsView bhs);
void write_task_management_request(const TaskManagementRequest& request, Bhs& bhs);

// Section 11.7.
struct DataOut {
  bool final = true;
  std::uint32_t data_segment_length = 0;
  std::uint64_t lun = 0;
  std::uint32_t initiator_task_tag = kReservedTag;
  std::uint32_t target_transfer_tag = kReservedTag;  // Reserved: unsolicited data.
  std::uint32_t exp_stat_sn = 0;
  std::uint32_t data_sn = 0;
  std::uint32_t buffer_offset = 0;
  bool operator==(const DataOut&) const = default;
};
inline Result<DataOut, RejectReason> parse_data_out(BhsView bhs) {
  return DataOut{
      .final = is_final(bhs),
      .data_segment_length = data_segment_length(bhs),
      .lun = big_endian<std::uint64_t>(bhs, 8),
      .initiator_task_tag = big_endian<std::uint32_t>(bhs, 16),
      .target_transfer_tag = big_endian<std::uint32_t>(bhs, 20),
      .exp_stat_sn = big_endian<std::uint32_t>(bhs, 28),
      .data_sn = big_endian<std::uint32_t>(bhs, 36),
      .buffer_offset = big_endian<std::uint32_t>(bhs, 40),
  };
}
inline void write_data_out(const DataOut& data, Bhs& bhs) {
  bhs.fill(std::byte{0});
  bhs[0] = static_cast<std::byte>(Opcode::kDataOut);
  bhs[1] = data.final ? std::byte{0x80} : std::byte{0};
  put_big_endian_24(bhs, 5, data.data_segment_length);
  put_big_endian<std::uint64_t>(bhs, 8, data.lun);
  put_big_endian<std::uint32_t>(bhs, 16, data.initiator_task_tag);
  put_big_endian<std::uint32_t>(bhs, 20, data.target_transfer_tag);
  put_big_endian<std::uint32_t>(bhs, 28, data.exp_stat_sn);
  put_big_endian<std::uint32_t>(bhs, 36, data.data_sn);
  put_big_endian<std::uint32_t>(bhs, 40, data.buffer_offset);
}

// Section 11.10.
struct TextRequest {
  bool immediate = false;
  bool final = true;
  bool continues = false;  // The C bit: the text goes on in the next PDU.
  std::uint32_t data_segment_length = 0;
  std::uint64_t lun = 0;
  std::uint32_t initiator_task_tag = kReservedTag;
  std::uint32_t target_transfer_tag = kReservedTag;
  std::uint32_t cmd_sn = 0;
  std::uint32_t exp_stat_sn = 0;
  bool operator==(const TextRequest&) const = default;
};
Result<TextRequest, RejectReason> parse_text_request(BhsView bhs);
void write_text_request(const TextRequest& request, Bhs& bhs);

// Section 11.12. Always immediate.
struct LoginRequest {
  bool transit = false;
  bool continues = false;
  std::uint8_t current_stage = 0;  // LoginStage as received; 2 is reserved.
  std::uint8_t next_stage = 0;     // Meaningful with `transit`.
  std::uint8_t version_maximum = 0;
  std::uint8_t version_minimum = 0;
  std::uint32_t data_segment_length = 0;
  Isid isid;
  std::uint16_t tsih = 0;
  std::uint32_t initiator_task_tag = 0;
  std::uint16_t cid = 0;
  std::uint32_t cmd_sn = 0;
  std::uint32_t exp_stat_sn = 0;
  bool operator==(const LoginRequest&) const = default;
};
// Never fails: what is wrong in a Login Request is answered by a Login Response (login.h).
LoginRequest parse_login_request(BhsView bhs);
void write_login_request(const LoginRequest& request, Bhs& bhs);

// Section 11.14.
struct LogoutRequest {
  bool immediate = false;
  LogoutReason reason = LogoutReason::kCloseSession;
  std::uint32_t initiator_task_tag = kReservedTag;
  std::uint16_t cid = 0;  // Not meaningful with kCloseSession.
  std::uint32_t cmd_sn = 0;
  std::uint32_t exp_stat_sn = 0;
  bool operator==(const LogoutRequest&) const = default;
};
Result<LogoutRequest, RejectReason> parse_logout_request(BhsView bhs);
void write_logout_request(const LogoutRequest& request, Bhs& bhs);

// Section 11.18.
struct NopOut {
  bool immediate = true;
  std::uint32_t data_segment_length = 0;
  std::uint64_t lun = 0;
  std::uint32_t initiator_task_tag = kReservedTag;   // Valid: a NOP-In is asked for.
  std::uint32_t target_transfer_tag = kReservedTag;  // Valid: the answer to a NOP-In.
  std::uint32_t cmd_sn = 0;
  std::uint32_t exp_stat_sn = 0;
  bool operator==(const NopOut&) const = default;
};
Result<NopOut, RejectReason> parse_nop_out(BhsView bhs);
void write_nop_out(const NopOut& nop, Bhs& bhs);

}  // namespace sandbay::iscsi
