// The initiator's connection and session states as RFC 7143 numbers and names them (sections 8.1
// and 8.3.1). Every change goes through transition(), which asserts that the table has it.
#pragma once

#include <cstdint>
#include <string_view>

namespace sandbay::iscsi {

// Section 8.1.1; S3 is illegal for an initiator.
enum class InitiatorConnectionState : std::uint8_t {
  kFree = 1,
  kTransportWait = 2,
  kInLogin = 4,
  kLoggedIn = 5,
  kInLogout = 6,
  kLogoutRequested = 7,
  kCleanupWait = 8,
};

// Section 8.3.3.
enum class InitiatorSessionState : std::uint8_t { kFree = 1, kLoggedIn = 3, kFailed = 4 };

// The number N of the transition T-N (section 8.1.2), or M-N + 100 for the cleanup machine of
// section 8.2, or 0 if there is none between the two.
constexpr int transition_number(InitiatorConnectionState from, InitiatorConnectionState to) {
  using enum InitiatorConnectionState;
  switch (from) {
    case kFree:
      return to == kTransportWait ? 1 : 0;
    case kTransportWait:
      return to == kFree ? 2 : to == kInLogin ? 4 : 0;
    case kInLogin:
      return to == kLoggedIn ? 5 : to == kFree ? 7 : 0;
    case kLoggedIn:
      return to == kFree              ? 8
             : to == kInLogout        ? 9
             : to == kLogoutRequested ? 11
             : to == kCleanupWait     ? 15
                                      : 0;
    case kLogoutRequested:
      return to == kInLogout          ? 10
             : to == kLogoutRequested ? 14
             : to == kCleanupWait     ? 16
             : to == kFree            ? 18
                                      : 0;
    case kInLogout:
      return to == kFree ? 13 : to == kCleanupWait ? 17 : 0;
    case kCleanupWait:
      return to == kFree ? 101 : 0;
  }
  return 0;
}

// The same for sessions: N-N of section 8.3.4.
constexpr int transition_number(InitiatorSessionState from, InitiatorSessionState to) {
  using enum InitiatorSessionState;
  switch (from) {
    case kFree:
      return to == kLoggedIn ? 1 : 0;
    case kLoggedIn:
      return to == kFree ? 3 : to == kFailed ? 5 : 0;
    case kFailed:
      return to == kLoggedIn ? 4 : to == kFree ? 6 : 0;
  }
  return 0;
}

void transition(InitiatorConnectionState& state, InitiatorConnectionState to);
void transition(InitiatorSessionState& state, InitiatorSessionState to);

std::string_view name_of(InitiatorConnectionState state);  // "S5:LOGGED_IN"
std::string_view name_of(InitiatorSessionState state);     // "Q3:LOGGED_IN"

}  // namespace sandbay::iscsi
