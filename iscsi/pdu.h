// The PDUs of iSCSI as plain structures, and their 48-byte Basic Header Segment (RFC 7143
// section 11; RFC 7144 section 5 for the fields it adds).
//
// For every PDU X there is `parse_x(BhsView) -> Result<X, RejectReason>` and
// `write_x(const X&, Bhs&)`. Parsing copies fields and refuses only what no state could make
// right; what depends on the session (sequence numbers, tags, limits) is the caller's to check.
// Writing sets every byte of the header, reserved ones to zero, and neither allocates nor fails.
// The caller dispatches on opcode_of() first: parsers do not look at the opcode again.
//
// A LUN is its eight bytes read as one big-endian number. Data segments are not touched here; the
// structures carry only their length.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/byte_order.h"
#include "runtime/error.h"

namespace sandbay::iscsi {

inline constexpr std::size_t kBhsBytes = 48;
inline constexpr std::size_t kDigestBytes = 4;
inline constexpr std::size_t kMaximumAhsBytes = 255 * 4;
inline constexpr std::uint32_t kReservedTag = 0xffffffffU;  // No task, no transfer.

using Bhs = std::array<std::byte, kBhsBytes>;
using BhsView = std::span<const std::byte, kBhsBytes>;

// Section 11.2.1.2.
enum class Opcode : std::uint8_t {
  kNopOut = 0x00,
  kScsiCommand = 0x01,
  kTaskManagementRequest = 0x02,
  kLoginRequest = 0x03,
  kTextRequest = 0x04,
  kDataOut = 0x05,
  kLogoutRequest = 0x06,
  kSnackRequest = 0x10,
  kNopIn = 0x20,
  kScsiResponse = 0x21,
  kTaskManagementResponse = 0x22,
  kLoginResponse = 0x23,
  kTextResponse = 0x24,
  kDataIn = 0x25,
  kLogoutResponse = 0x26,
  kReadyToTransfer = 0x31,
  kAsyncMessage = 0x32,
  kReject = 0x3f,
};

// Section 11.17.1.
enum class RejectReason : std::uint8_t {
  kDataDigestError = 0x02,
  kSnackReject = 0x03,
  kProtocolError = 0x04,
  kCommandNotSupported = 0x05,
  kTooManyImmediateCommands = 0x06,
  kTaskInProgress = 0x07,
  kInvalidDataAck = 0x08,
  kInvalidPduField = 0x09,
  kLongOperationReject = 0x0a,
  kNegotiationReset = 0x0b,  // Deprecated: received, it ends login and connection; never sent.
  kWaitingForLogout = 0x0c,
};

// Section 11.5.1; 9 to 12 are RFC 7144's (iSCSIProtocolLevel 2).
enum class TaskManagementFunction : std::uint8_t {
  kAbortTask = 1,
  kAbortTaskSet = 2,
  kClearAca = 3,
  kClearTaskSet = 4,
  kLogicalUnitReset = 5,
  kTargetWarmReset = 6,
  kTargetColdReset = 7,
  kTaskReassign = 8,
  kQueryTask = 9,
  kQueryTaskSet = 10,
  kNexusReset = 11,
  kQueryAsynchronousEvent = 12,
};

// Section 11.6.1; 7 is RFC 7144's.
enum class TaskManagementResult : std::uint8_t {
  kFunctionComplete = 0,
  kTaskDoesNotExist = 1,
  kLunDoesNotExist = 2,
  kTaskStillAllegiant = 3,
  kReassignmentNotSupported = 4,
  kFunctionNotSupported = 5,
  kAuthorizationFailed = 6,
  kFunctionSucceeded = 7,
  kFunctionRejected = 255,
};

// Section 11.4.3.
enum class ServiceResponse : std::uint8_t { kCompletedAtTarget = 0, kTargetFailure = 1 };

// Section 11.9.1.
enum class AsyncEventCode : std::uint8_t {
  kScsiEvent = 0,
  kLogoutRequest = 1,
  kConnectionDrop = 2,
  kSessionDrop = 3,
  kNegotiationRequest = 4,
  kTaskTermination = 5,
};

// Section 11.14.1.
enum class LogoutReason : std::uint8_t {
  kCloseSession = 0,
  kCloseConnection = 1,
  kRemoveForRecovery = 2,
};

// Section 11.15.1.
enum class LogoutResult : std::uint8_t {
  kClosed = 0,
  kCidNotFound = 1,
  kRecoveryNotSupported = 2,
  kCleanupFailed = 3,
};

// Section 11.12.3. 2 is reserved.
enum class LoginStage : std::uint8_t { kSecurity = 0, kOperational = 1, kFullFeature = 3 };

// Status-Class and Status-Detail together (section 11.13.5).
enum class LoginStatus : std::uint16_t {
  kSuccess = 0x0000,
  kMovedTemporarily = 0x0101,
  kMovedPermanently = 0x0102,
  kInitiatorError = 0x0200,
  kAuthenticationFailure = 0x0201,
  kAuthorizationFailure = 0x0202,
  kTargetNotFound = 0x0203,
  kTargetRemoved = 0x0204,
  kUnsupportedVersion = 0x0205,
  kTooManyConnections = 0x0206,
  kMissingParameter = 0x0207,
  kCannotIncludeInSession = 0x0208,
  kSessionTypeNotSupported = 0x0209,
  kSessionDoesNotExist = 0x020a,
  kInvalidDuringLogin = 0x020b,
  kTargetError = 0x0300,
  kServiceUnavailable = 0x0301,
  kOutOfResources = 0x0302,
};

constexpr std::uint8_t status_class(LoginStatus status) noexcept {
  return static_cast<std::uint8_t>(static_cast<std::uint16_t>(status) >> 8U);
}
constexpr std::uint8_t status_detail(LoginStatus status) noexcept {
  return static_cast<std::uint8_t>(static_cast<std::uint16_t>(status) & 0xffU);
}

// For logs: "Initiator error", …; "unassigned status" for other values.
std::string_view name_of(LoginStatus status);

// Section 11.12.5: the initiator port's part of a session's identity. Six bytes as they stand.
struct Isid {
  std::array<std::byte, 6> bytes{};

  bool operator==(const Isid&) const = default;
  auto operator<=>(const Isid&) const = default;
  std::string to_string() const;  // Twelve hexadecimal digits.
};

// Serial number arithmetic modulo 2^32 (RFC 1982, as section 4.2.2 asks): is `a` before `b`?
constexpr bool serial_less(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<std::int32_t>(a - b) < 0;
}
constexpr bool serial_less_equal(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<std::int32_t>(a - b) <= 0;
}

// Bytes that bring a segment to a multiple of four.
constexpr std::uint32_t padding_of(std::uint32_t byte_count) noexcept {
  return (0U - byte_count) & 3U;
}
constexpr std::uint32_t padded(std::uint32_t byte_count) noexcept {
  return byte_count + padding_of(byte_count);
}

// Fields that every PDU has (section 11.2.1).
inline std::uint8_t byte_of(BhsView bhs, std::size_t offset) {
  return std::to_integer<std::uint8_t>(bhs[offset]);
}
inline Opcode opcode_of(BhsView bhs) { return static_cast<Opcode>(byte_of(bhs, 0) & 0x3fU); }
inline bool is_immediate(BhsView bhs) { return (byte_of(bhs, 0) & 0x40U) != 0; }
inline bool is_final(BhsView bhs) { return (byte_of(bhs, 1) & 0x80U) != 0; }
inline std::uint32_t ahs_byte_count(BhsView bhs) { return byte_of(bhs, 4) * 4U; }
inline std::uint32_t data_segment_length(BhsView bhs) { return big_endian_24(bhs, 5); }
inline std::uint32_t initiator_task_tag(BhsView bhs) { return big_endian<std::uint32_t>(bhs, 16); }
// Of requests that have them: section 4.2.2.1.
inline std::uint32_t cmd_sn_of(BhsView bhs) { return big_endian<std::uint32_t>(bhs, 24); }
inline std::uint32_t exp_stat_sn_of(BhsView bhs) { return big_endian<std::uint32_t>(bhs, 28); }

// Of Data-In and Data-Out.
inline std::uint32_t buffer_offset_of(BhsView bhs) { return big_endian<std::uint32_t>(bhs, 40); }
// Fills in what a request that was made beforehand gets only when it is sent.
inline void write_request_numbers(std::uint32_t task_tag, std::uint32_t cmd_sn,
                                  std::uint32_t exp_stat_sn, Bhs& bhs) {
  put_big_endian<std::uint32_t>(bhs, 16, task_tag);
  put_big_endian<std::uint32_t>(bhs, 24, cmd_sn);
  put_big_endian<std::uint32_t>(bhs, 28, exp_stat_sn);
}

// What follows a BHS: AHS, header digest, padded data, data digest.
inline std::uint32_t bytes_after_bhs(BhsView bhs, bool header_digest, bool data_digest) {
  const std::uint32_t data = data_segment_length(bhs);
  const std::uint32_t digests = (header_digest ? 4U : 0U) + (data_digest && data != 0 ? 4U : 0U);
  return ahs_byte_count(bhs) + padded(data) + digests;
}

// Responses carry these three in one place, bytes 24 to 35. Written last, they can also be
// refreshed in a header that is already made.
struct StatusNumbers {
  std::uint32_t stat_sn = 0;
  std::uint32_t exp_cmd_sn = 0;
  std::uint32_t max_cmd_sn = 0;
  bool operator==(const StatusNumbers&) const = default;
};
inline void write_status_numbers(const StatusNumbers& numbers, Bhs& bhs) {
  put_big_endian<std::uint32_t>(bhs, 24, numbers.stat_sn);
  put_big_endian<std::uint32_t>(bhs, 28, numbers.exp_cmd_sn);
  put_big_endian<std::uint32_t>(bhs, 32, numbers.max_cmd_sn);
}
inline StatusNumbers parse_status_numbers(BhsView bhs) {
  return {.stat_sn = big_endian<std::uint32_t>(bhs, 24),
          .exp_cmd_sn = big_endian<std::uint32_t>(bhs, 28),
          .max_cmd_sn = big_endian<std::uint32_t>(bhs, 32)};
}

}  // namespace sandbay::iscsi

#include "iscsi/pdu_requests.h"   // IWYU pragma: export
#include "iscsi/pdu_responses.h"  // IWYU pragma: export
