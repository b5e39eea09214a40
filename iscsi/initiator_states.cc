// State changes of an initiator's connections and sessions: RFC 7143 sections 8.1 and 8.3.
#include "iscsi/initiator_states.h"

#include <cassert>

namespace sandbay::iscsi {

void transition(InitiatorConnectionState& state, InitiatorConnectionState to) {
  assert(transition_number(state, to) != 0);
  state = to;
}

void transition(InitiatorSessionState& state, InitiatorSessionState to) {
  assert(transition_number(state, to) != 0);
  state = to;
}

std::string_view name_of(InitiatorConnectionState state) {
  switch (state) {
    case InitiatorConnectionState::kFree:
      return "S1:FREE";
    case InitiatorConnectionState::kTransportWait:
      return "S2:XPT_WAIT";
    case InitiatorConnectionState::kInLogin:
      return "S4:IN_LOGIN";
    case InitiatorConnectionState::kLoggedIn:
      return "S5:LOGGED_IN";
    case InitiatorConnectionState::kInLogout:
      return "S6:IN_LOGOUT";
    case InitiatorConnectionState::kLogoutRequested:
      return "S7:LOGOUT_REQUESTED";
    case InitiatorConnectionState::kCleanupWait:
      return "S8:CLEANUP_WAIT";
  }
  return "?";
}

std::string_view name_of(InitiatorSessionState state) {
  switch (state) {
    case InitiatorSessionState::kFree:
      return "Q1:FREE";
    case InitiatorSessionState::kLoggedIn:
      return "Q3:LOGGED_IN";
    case InitiatorSessionState::kFailed:
      return "Q4:FAILED";
  }
  return "?";
}

}  // namespace sandbay::iscsi
