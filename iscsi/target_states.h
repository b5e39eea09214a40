// The state machines of RFC 7143 section 8, seen from the target: of a connection (section 8.1.3,
// numbers of its transitions in target_states.cc) and of a session (section 8.3).
//
// Each has one transition(). It is called by our own code after what the peer sent has been
// checked against the state; a move that the diagrams do not have is a bug and is asserted.
#pragma once

#include <cstdint>
#include <string_view>

namespace sandbay::iscsi {

enum class ConnectionState : std::uint8_t {
  kS1Free,
  kS3XptUp,
  kS4InLogin,
  kS5LoggedIn,
  kS6InLogout,
  kS7LogoutRequested,
  kS8CleanupWait,
};
std::string_view name_of(ConnectionState state);  // "S5:LOGGED_IN"

class ConnectionStates {
 public:
  ConnectionState state() const noexcept { return state_; }
  void transition(ConnectionState next);

 private:
  ConnectionState state_ = ConnectionState::kS1Free;
};

enum class SessionState : std::uint8_t { kQ1Free, kQ2Active, kQ3LoggedIn, kQ4Failed, kQ5Continue };
std::string_view name_of(SessionState state);  // "Q3:LOGGED_IN"

class SessionStates {
 public:
  SessionState state() const noexcept { return state_; }
  void transition(SessionState next);

 private:
  SessionState state_ = SessionState::kQ1Free;
};

}  // namespace sandbay::iscsi
