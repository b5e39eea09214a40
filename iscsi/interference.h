// PduInterference: somebody who loses, delays or damages PDUs of a connection, at the target or at
// our initiator, so that both meet what networks and other implementations do.
//
// It belongs to one connection in full feature phase, is asked on its home for each PDU, received
// or to be sent, and must not suspend.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "iscsi/pdu.h"
#include "iscsi/pdu_requests.h"
#include "runtime/clock.h"
#include "scsi/command.h"

namespace sandbay::iscsi {

// How the connection could be told from others.
struct ConnectionFacts {
  std::uint16_t tsih = 0;
  std::uint16_t cid = 0;
  std::string initiator_name;
  std::string portal;  // Where it came to, as the server listens there; or where it goes.
  bool at_initiator = false;
};

// A wait by a rule ends within this time when the rule has gone.
inline constexpr Duration kLookAtRules = std::chrono::seconds(1);

class PduInterference {
 public:
  enum class Fate : std::uint8_t {
    kPass,
    kLose,          // As if it had been sent, or had not come.
    kHeaderDigest,  // Its header digest is wrong,
    kDataDigest,    // or that of its data.
    kTwice,         // As if it had been sent, or had come, twice.
    kCut,           // Half of it is sent and the connection ends; or as if it had come so.
    kDamaged,       // A bit of its data is inverted behind the digest, which then is wrong,
    kAltered,       // or before it.
    kClose,         // The connection ends before it,
    kReset,         // or is reset.
  };
  struct Verdict {
    Fate fate = Fate::kPass;
    Duration delay{};  // Before that; what is behind it on the connection waits as well.
    std::uint16_t piece_bytes = 0;  // It is sent in pieces of this size; 0: in one.
    bool silent = false;            // Nothing comes or is sent any more, and nobody notices.
  };
  // It is sent, or it has come; whether data are at hand, and which digests it has.
  struct Passing {
    bool sent = false;
    bool data = false;
    bool header_digest = false;
    bool data_digest = false;
  };

  // `quiet` is watched, and outlives this.
  explicit PduInterference(const bool& quiet) : quiet_(quiet) {}
  PduInterference(const PduInterference&) = delete;
  PduInterference& operator=(const PduInterference&) = delete;
  virtual ~PduInterference() = default;  // On any executor.

  // Whether it would change nothing now: then it need not be asked.
  bool quiet() const noexcept { return quiet_; }
  virtual Verdict judge(BhsView bhs, Passing passing) = 0;

 private:
  const bool& quiet_;
};

// What becomes of the answers of a session. On the session's home.
class SessionInterference {
 public:
  struct Response {
    bool lose = false;  // No status is sent; the initiator waits until it gives the command up.
    Duration delay{};
    // The status tells of so many bytes too few, or too many. Too few of a read are not sent; a
    // write is done whole all the same.
    Residual residual = Residual::kNone;
    std::uint32_t residual_bytes = 0;
    Duration window_closes{};  // The command window does not open further for so long.
    // Sent before it; what it announces then happens. `event_time` is in whole seconds.
    std::optional<AsyncEventCode> event;
    Duration event_time{};
  };
  // An R2T is due.
  struct Transfer {
    Duration delay{};        // Its time, from now.
    std::uint32_t most = 0;  // Bytes that it asks for at most; 0: as many as usual.
    bool disorder = false;   // The second half is asked for first, and then the first.
  };
  struct Management {
    std::optional<TaskManagementResult> refuse;  // Nothing is done.
    bool lie = false;                            // "Complete" is sent before anything is done.
    Duration delay{};                            // From the end of it until it is answered.
  };

  // `quiet` is watched, and outlives this.
  explicit SessionInterference(const bool& quiet) : quiet_(quiet) {}
  SessionInterference(const SessionInterference&) = delete;
  SessionInterference& operator=(const SessionInterference&) = delete;
  virtual ~SessionInterference() = default;  // On any executor.

  // Whether it would change nothing now: then it need not be asked.
  bool quiet() const noexcept { return quiet_; }
  struct Ending {
    bool moved_data = false;  // There are bytes that a residual could miss.
    bool announces = false;   // An event is under way: another cannot be sent.
  };
  // A command has ended, and its status is to be sent.
  virtual Response judge_response(const scsi::Command& command, Ending ending) = 0;
  virtual Transfer judge_transfer(const scsi::Command& command) = 0;
  virtual Management judge_management(const TaskManagementRequest& request) = 0;
  virtual bool ignores_ping() = 0;

 private:
  const bool& quiet_;
};

struct LoginFacts {
  std::string_view initiator_name;
  std::string portal;  // Where it came to, as the server listens there.
};

struct AttemptFacts {
  std::string peer;
  std::string portal;  // Where it came to, as the server listens there.
};

class Interferences {
 public:
  struct Attempt {
    bool reset = false;  // It is reset.
    // Or it and all that come after it get no answer, for this time, while the function says so.
    Duration ignored{};
    std::function<bool()> holds = {};
  };
  struct Login {
    LoginStatus status = LoginStatus::kSuccess;  // Or it is refused, or sent on
    std::string address;                         // to this: TargetAddress without group tag.
    Duration delay{};                            // Before it is answered.
    bool odd = false;                            // The smallest values, in small pieces of text.
    bool near_wrap = false;                      // StatSN and transfer tags begin below 2^32.
  };

  // On the connection's home.
  virtual std::unique_ptr<PduInterference> of_connection(const ConnectionFacts& facts) = 0;
  // On the session's home.
  virtual std::unique_ptr<SessionInterference> of_session(const std::string& initiator_name) = 0;
  // A connection has come. On the server's home.
  virtual Attempt judge_attempt(const AttemptFacts& facts) = 0;
  // The first request of a login has come. On the server's home.
  virtual Login judge_login(const LoginFacts& facts) = 0;

 protected:
  ~Interferences() = default;
};

}  // namespace sandbay::iscsi
