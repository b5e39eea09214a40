// Names of the codes in PDU headers, as RFC 7143 section 11 spells them, for logs and messages.
#include "iscsi/pdu.h"

#include <fmt/core.h>

namespace sandbay::iscsi {

std::string_view name_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::kNopOut:
      return "NOP-Out";
    case Opcode::kScsiCommand:
      return "SCSI Command";
    case Opcode::kTaskManagementRequest:
      return "Task Management Function Request";
    case Opcode::kLoginRequest:
      return "Login Request";
    case Opcode::kTextRequest:
      return "Text Request";
    case Opcode::kDataOut:
      return "SCSI Data-Out";
    case Opcode::kLogoutRequest:
      return "Logout Request";
    case Opcode::kSnackRequest:
      return "SNACK Request";
    case Opcode::kNopIn:
      return "NOP-In";
    case Opcode::kScsiResponse:
      return "SCSI Response";
    case Opcode::kTaskManagementResponse:
      return "Task Management Function Response";
    case Opcode::kLoginResponse:
      return "Login Response";
    case Opcode::kTextResponse:
      return "Text Response";
    case Opcode::kDataIn:
      return "SCSI Data-In";
    case Opcode::kLogoutResponse:
      return "Logout Response";
    case Opcode::kReadyToTransfer:
      return "Ready To Transfer";
    case Opcode::kAsyncMessage:
      return "Asynchronous Message";
    case Opcode::kReject:
      return "Reject";
  }
  return "unassigned opcode";
}

std::string_view name_of(RejectReason reason) {
  switch (reason) {
    case RejectReason::kDataDigestError:
      return "Data digest error";
    case RejectReason::kSnackReject:
      return "SNACK Reject";
    case RejectReason::kProtocolError:
      return "Protocol Error";
    case RejectReason::kCommandNotSupported:
      return "Command not supported";
    case RejectReason::kTooManyImmediateCommands:
      return "Too many immediate commands";
    case RejectReason::kTaskInProgress:
      return "Task in progress";
    case RejectReason::kInvalidDataAck:
      return "Invalid data ack";
    case RejectReason::kInvalidPduField:
      return "Invalid PDU field";
    case RejectReason::kLongOperationReject:
      return "Long op reject";
    case RejectReason::kNegotiationReset:
      return "Negotiation Reset";
    case RejectReason::kWaitingForLogout:
      return "Waiting for Logout";
  }
  return "unassigned reason";
}

std::string_view name_of(TaskManagementFunction function) {
  switch (function) {
    case TaskManagementFunction::kAbortTask:
      return "ABORT TASK";
    case TaskManagementFunction::kAbortTaskSet:
      return "ABORT TASK SET";
    case TaskManagementFunction::kClearAca:
      return "CLEAR ACA";
    case TaskManagementFunction::kClearTaskSet:
      return "CLEAR TASK SET";
    case TaskManagementFunction::kLogicalUnitReset:
      return "LOGICAL UNIT RESET";
    case TaskManagementFunction::kTargetWarmReset:
      return "TARGET WARM RESET";
    case TaskManagementFunction::kTargetColdReset:
      return "TARGET COLD RESET";
    case TaskManagementFunction::kTaskReassign:
      return "TASK REASSIGN";
    case TaskManagementFunction::kQueryTask:
      return "QUERY TASK";
    case TaskManagementFunction::kQueryTaskSet:
      return "QUERY TASK SET";
    case TaskManagementFunction::kNexusReset:
      return "I_T NEXUS RESET";
    case TaskManagementFunction::kQueryAsynchronousEvent:
      return "QUERY ASYNCHRONOUS EVENT";
  }
  return "unassigned function";
}

std::string_view name_of(TaskManagementResult result) {
  switch (result) {
    case TaskManagementResult::kFunctionComplete:
      return "Function complete";
    case TaskManagementResult::kTaskDoesNotExist:
      return "Task does not exist";
    case TaskManagementResult::kLunDoesNotExist:
      return "LUN does not exist";
    case TaskManagementResult::kTaskStillAllegiant:
      return "Task still allegiant";
    case TaskManagementResult::kReassignmentNotSupported:
      return "Reassignment not supported";
    case TaskManagementResult::kFunctionNotSupported:
      return "Function not supported";
    case TaskManagementResult::kAuthorizationFailed:
      return "Function authorization failed";
    case TaskManagementResult::kFunctionSucceeded:
      return "Function succeeded";
    case TaskManagementResult::kFunctionRejected:
      return "Function rejected";
  }
  return "unassigned response";
}

std::string_view name_of(AsyncEventCode event) {
  switch (event) {
    case AsyncEventCode::kScsiEvent:
      return "SCSI Async Event";
    case AsyncEventCode::kLogoutRequest:
      return "Logout Request";
    case AsyncEventCode::kConnectionDrop:
      return "Connection Drop Notification";
    case AsyncEventCode::kSessionDrop:
      return "Session Drop Notification";
    case AsyncEventCode::kNegotiationRequest:
      return "Negotiation Request";
    case AsyncEventCode::kTaskTermination:
      return "Task Termination";
  }
  return static_cast<unsigned>(event) >= 248 ? "Vendor-unique event" : "unassigned event";
}

std::string_view name_of(LogoutReason reason) {
  switch (reason) {
    case LogoutReason::kCloseSession:
      return "close the session";
    case LogoutReason::kCloseConnection:
      return "close the connection";
    case LogoutReason::kRemoveForRecovery:
      return "remove the connection for recovery";
  }
  return "reserved reason";
}

std::string_view name_of(LogoutResult result) {
  switch (result) {
    case LogoutResult::kClosed:
      return "closed";
    case LogoutResult::kCidNotFound:
      return "CID not found";
    case LogoutResult::kRecoveryNotSupported:
      return "connection recovery is not supported";
    case LogoutResult::kCleanupFailed:
      return "cleanup failed";
  }
  return "reserved response";
}

std::string_view name_of(LoginStage stage) {
  switch (stage) {
    case LoginStage::kSecurity:
      return "SecurityNegotiation";
    case LoginStage::kOperational:
      return "LoginOperationalNegotiation";
    case LoginStage::kFullFeature:
      return "FullFeaturePhase";
  }
  return "reserved stage";
}

std::string_view name_of(LoginStatus status) {
  switch (status) {
    case LoginStatus::kSuccess:
      return "Success";
    case LoginStatus::kMovedTemporarily:
      return "Target moved temporarily";
    case LoginStatus::kMovedPermanently:
      return "Target moved permanently";
    case LoginStatus::kInitiatorError:
      return "Initiator error";
    case LoginStatus::kAuthenticationFailure:
      return "Authentication failure";
    case LoginStatus::kAuthorizationFailure:
      return "Authorization failure";
    case LoginStatus::kTargetNotFound:
      return "Not found";
    case LoginStatus::kTargetRemoved:
      return "Target removed";
    case LoginStatus::kUnsupportedVersion:
      return "Unsupported version";
    case LoginStatus::kTooManyConnections:
      return "Too many connections";
    case LoginStatus::kMissingParameter:
      return "Missing parameter";
    case LoginStatus::kCannotIncludeInSession:
      return "Can't include in session";
    case LoginStatus::kSessionTypeNotSupported:
      return "Session type not supported";
    case LoginStatus::kSessionDoesNotExist:
      return "Session does not exist";
    case LoginStatus::kInvalidDuringLogin:
      return "Invalid during login";
    case LoginStatus::kTargetError:
      return "Target error";
    case LoginStatus::kServiceUnavailable:
      return "Service unavailable";
    case LoginStatus::kOutOfResources:
      return "Out of resources";
  }
  return "unassigned status";
}

std::string Isid::to_string() const {
  std::string text;
  for (const std::byte byte : bytes) {
    text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  }
  return text;
}

}  // namespace sandbay::iscsi
