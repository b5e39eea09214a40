// The public entry points of an initiator's session that change which connections it has: login,
// logout, reinstatement, close. RFC 7143 sections 6.3.4 to 6.3.6 and 11.14.
#include "iscsi/initiator.h"

#include <cassert>

#include "iscsi/initiator_crossing.h"
#include "iscsi/initiator_session.h"
#include "runtime/byte_order.h"

namespace sandbay::iscsi {

// --- Results -----------------------------------------------------------------------------------

// SPC-4 clause 4.5: response codes 72h and 73h are descriptor format, 70h and 71h fixed.
scsi::SenseKey ScsiResult::sense_key() const noexcept {
  if (sense_bytes < 3) return scsi::SenseKey::kNoSense;
  const bool descriptor = (std::to_integer<unsigned>(sense[0]) & 0x7FU) >= 0x72;
  return static_cast<scsi::SenseKey>(std::to_integer<unsigned>(sense[descriptor ? 1 : 2]) & 0xFU);
}

scsi::Additional ScsiResult::additional() const noexcept {
  if (sense_bytes < 4) return scsi::Additional::kNone;
  const bool descriptor = (std::to_integer<unsigned>(sense[0]) & 0x7FU) >= 0x72;
  const std::size_t offset = descriptor ? 2 : 12;
  if (sense_bytes < offset + 2) return scsi::Additional::kNone;
  return static_cast<scsi::Additional>(big_endian<std::uint16_t>(sense_data(), offset));
}

// --- Beginning and end -------------------------------------------------------------------------

Task<std::expected<std::unique_ptr<InitiatorSession>, LoginFailure>> InitiatorSession::login(
    InitiatorOptions options) {
  auto session = std::make_unique<InitiatorSessionImpl>(std::move(options));
  const std::expected<void, LoginFailure> begun = co_await session->begin();
  if (!begun.has_value()) {
    co_await session->close();
    co_return std::unexpected(begun.error());
  }
  co_return std::unique_ptr<InitiatorSession>(std::move(session));
}

Task<std::expected<void, LoginFailure>> InitiatorSessionImpl::begin() {
  repairing_ = true;
  LoginFailure failure = co_await log_in_path(*paths_.front(), true);
  if (failure.error != Error::kNone) {
    repairing_ = false;
    co_return std::unexpected(std::move(failure));
  }
  bool missing = false;
  for (const auto& path : paths_) {
    if (path->index == 0) continue;
    if (usable_.size() >= parameters_.session.max_connections) {
      path->wanted = false;  // The target grants no more.
      continue;
    }
    failure = co_await log_in_path(*path, false);
    if (failure.error == Error::kNone) continue;
    if (!options_.reconnect) {
      repairing_ = false;
      co_return std::unexpected(std::move(failure));
    }
    path->down_since = home_.now();
    missing = true;
  }
  repairing_ = false;
  if (missing || usable_.empty()) wake_repair();
  if (options_.nop_out_interval.count() > 0 && gate_.enter()) spawn(keep_alive());
  co_return std::expected<void, LoginFailure>();
}

Task<void> InitiatorSessionImpl::close() {
  using enum InitiatorConnectionState;
  if (closing_) {
    co_await gate_.close();
    co_return;
  }
  closing_ = true;
  closing_event_.set();
  moved_.notify_all();
  fail_all(Error::kClosed);
  if (!usable_.empty()) {
    Path& over = *usable_.front();
    set_state(over, kInLogout);
    co_await log_out(over, LogoutReason::kCloseSession, 0);
  }
  co_await take_down(false, "closed");
  fail_all(Error::kClosed);
  // Whatever was under way has seen closing_; a connection that it still made goes as well.
  co_await gate_.close();
  co_await take_down(false, "closed");
  fail_all(Error::kClosed);
  // The last `done` calls are on their way as messages, which arrive in order.
  Event arrived;
  call_on(home_, [&arrived] { arrived.set(); });
  co_await arrived.wait();
  if (state_ != InitiatorSessionState::kFree) transition(state_, InitiatorSessionState::kFree);
}

// --- Single connections --------------------------------------------------------------------------

Task<void> InitiatorSessionImpl::break_connection(std::size_t index) {
  if (index >= paths_.size()) co_return;
  co_await shut_path(*paths_[index], true, "broken on request");
}

Task<Error> InitiatorSessionImpl::logout_connection(std::size_t index) {
  using enum InitiatorConnectionState;
  if (index >= paths_.size()) co_return Error::kNotFound;
  Path& path = *paths_[index];
  if (!gate_.enter()) co_return Error::kClosed;
  const GateHold hold(gate_);
  co_await exclude_repair();
  Error error = Error::kNotReady;
  if (path.state == kLoggedIn && usable_.size() > 1 && !closing_) {
    path.wanted = false;
    set_state(path, kInLogout);
    const Result<LogoutResult> answer =
        co_await log_out(path, LogoutReason::kCloseConnection, path.cid);
    const bool clean = answer.has_value() && *answer == LogoutResult::kClosed;
    co_await shut_path(path, false, "logged out");
    co_await wait_until_gone(path);
    if (clean && !closing_) {
      set_state(path, kFree);
      plug_holes(path);
      if (!usable_.empty()) settle_lost();
    } else if (path.state == kInLogout) {  // The session's end may have taken it down.
      set_state(path, kCleanupWait);
    }
    error = answer.has_value() ? (clean ? Error::kNone : Error::kInvalid) : answer.error();
  }
  repairing_ = false;
  wake_repair();
  co_return error;
}

Task<Error> InitiatorSessionImpl::reinstate_connection(std::size_t index) {
  using enum InitiatorConnectionState;
  if (index >= paths_.size()) co_return Error::kNotFound;
  Path& path = *paths_[index];
  if (!gate_.enter()) co_return Error::kClosed;
  const GateHold hold(gate_);
  co_await exclude_repair();
  path.wanted = true;
  path.down_since = home_.now();
  Error error = Error::kNotReady;
  if (path.state == kFree && !usable_.empty() && !closing_) {
    const LoginFailure failure = co_await log_in_path(path, false);
    error = failure.error;
  } else if (path.state == kLoggedIn && !closing_) {
    // Section 6.3.4: the login on the new stream logs the old one out. Nothing new is sent on it.
    set_state(path, kInLogout);
    ++holds_;
    path.exp_stat_sn = path.connection->exp_stat_sn();
    auto result = co_await log_in(path, false);
    const bool made = result.has_value();
    error = made ? Error::kNone : result.error().error;
    co_await shut_path(path, true, "reinstated");
    co_await wait_until_gone(path);
    if (!made) {
      if (path.state == kInLogout) set_state(path, kCleanupWait);
    } else {
      if (path.state != kFree) set_state(path, kFree);
      set_state(path, kTransportWait);
      set_state(path, kInLogin);
      error = co_await adopt(path, std::move(*result));
      set_state(path, error == Error::kNone ? kLoggedIn : kFree);
      if (error == Error::kNone && path.connection->gone) path_lost(path);
      plug_holes(path);
    }
    --holds_;
    if (made && !usable_.empty() && !closing_) settle_lost();
  }
  repairing_ = false;
  wake_repair();
  drain();
  co_return error;
}

// --- The whole session ---------------------------------------------------------------------------

Task<Error> InitiatorSessionImpl::reinstate_session() {
  using enum InitiatorConnectionState;
  if (!gate_.enter()) co_return Error::kClosed;
  const GateHold hold(gate_);
  co_await exclude_repair();
  ++holds_;
  Path& leading = *paths_.front();
  Error error = Error::kNone;
  // Section 6.3.5. The old connections are still there, with everything that is in flight on them.
  auto result = co_await log_in(leading, true);
  if (!result.has_value()) error = result.error().error;
  if (error == Error::kNone && !closing_) {
    co_await take_down(true, "session reinstated");
    if (state_ == InitiatorSessionState::kLoggedIn) {
      transition(state_, InitiatorSessionState::kFailed);
    }
    begin_session(*result);
    set_state(leading, kTransportWait);
    set_state(leading, kInLogin);
    error = co_await adopt(leading, std::move(*result));
    set_state(leading, error == Error::kNone ? kLoggedIn : kFree);
    for (const auto& path : paths_) path->down_since = home_.now();
    if (error == Error::kNone && leading.connection->gone) path_lost(leading);
  }
  --holds_;
  if (error == Error::kNone && !usable_.empty() && !closing_) settle_lost();
  repairing_ = false;
  wake_repair();
  drain();
  co_return error;
}

}  // namespace sandbay::iscsi
