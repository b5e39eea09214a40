// RFC 7143 section 8: what may follow what. The comments carry the RFC's transition numbers.

#include "iscsi/target_states.h"

#include <cassert>

namespace sandbay::iscsi {
namespace {

bool may_follow(ConnectionState from, ConnectionState to) {
  using enum ConnectionState;
  switch (from) {
    case kS1Free:
      return to == kS3XptUp;  // T3
    case kS3XptUp:
      return to == kS4InLogin ||  // T4
             to == kS1Free;       // T6
    case kS4InLogin:
      return to == kS5LoggedIn ||  // T5
             to == kS1Free;        // T7
    case kS5LoggedIn:
      return to == kS6InLogout ||         // T9
             to == kS7LogoutRequested ||  // T11
             to == kS8CleanupWait ||      // T15
             to == kS1Free;               // T8
    case kS6InLogout:
      return to == kS1Free ||       // T13
             to == kS8CleanupWait;  // T17
    case kS7LogoutRequested:
      return to == kS6InLogout ||     // T10
             to == kS8CleanupWait ||  // T16
             to == kS1Free;           // T18
    case kS8CleanupWait:
      return to == kS1Free;  // M1, M2 of section 8.2.2
  }
  return false;
}

bool may_follow(SessionState from, SessionState to) {
  using enum SessionState;
  switch (from) {
    case kQ1Free:
      return to == kQ2Active;  // N1
    case kQ2Active:
      return to == kQ3LoggedIn ||  // N2
             to == kQ1Free;        // N9
    case kQ3LoggedIn:
      return to == kQ1Free ||  // N3
             to == kQ4Failed;  // N5
    case kQ4Failed:
      return to == kQ1Free ||    // N6
             to == kQ5Continue;  // N7
    case kQ5Continue:
      return to == kQ4Failed ||    // N8
             to == kQ3LoggedIn ||  // N10
             to == kQ1Free;        // N11
  }
  return false;
}

}  // namespace

std::string_view name_of(ConnectionState state) {
  switch (state) {
    case ConnectionState::kS1Free:
      return "S1:FREE";
    case ConnectionState::kS3XptUp:
      return "S3:XPT_UP";
    case ConnectionState::kS4InLogin:
      return "S4:IN_LOGIN";
    case ConnectionState::kS5LoggedIn:
      return "S5:LOGGED_IN";
    case ConnectionState::kS6InLogout:
      return "S6:IN_LOGOUT";
    case ConnectionState::kS7LogoutRequested:
      return "S7:LOGOUT_REQUESTED";
    case ConnectionState::kS8CleanupWait:
      return "S8:CLEANUP_WAIT";
  }
  return "unknown";
}

void ConnectionStates::transition(ConnectionState next) {
  assert(may_follow(state_, next));
  state_ = next;
}

std::string_view name_of(SessionState state) {
  switch (state) {
    case SessionState::kQ1Free:
      return "Q1:FREE";
    case SessionState::kQ2Active:
      return "Q2:ACTIVE";
    case SessionState::kQ3LoggedIn:
      return "Q3:LOGGED_IN";
    case SessionState::kQ4Failed:
      return "Q4:FAILED";
    case SessionState::kQ5Continue:
      return "Q5:IN_CONTINUE";
  }
  return "unknown";
}

void SessionStates::transition(SessionState next) {
  assert(may_follow(state_, next));
  state_ = next;
}

}  // namespace sandbay::iscsi
