// Names of the codes in PDU headers, as RFC 7143 section 11 spells them, for logs and messages.
#include "iscsi/pdu.h"

#include <fmt/core.h>

namespace sandbay::iscsi {

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
