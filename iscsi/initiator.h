// InitiatorSession: the initiator side of one iSCSI session (RFC 7143) with 1 to 32 connections.
//
// Home: the executor on which login() was awaited. Every public call is made there, and every
// callback runs there; connections may live on other executors of the group.
//
// Beneath the coroutines lies the direct path: an InitiatorCommand that the caller owns, handed to
// submit(), comes back through its `done` function. Nothing is allocated for it: what the window
// cannot take waits in an intrusive queue, what is sent in one turn leaves in one send.
//
// Connection loss at ErrorRecoveryLevel 0: see initiator_recovery.cc for the rule of what is sent
// again.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "iscsi/initiator_misbehaviour.h"
#include "iscsi/interference.h"
#include "iscsi/pdu.h"
#include "runtime/buffer.h"
#include "runtime/clock.h"
#include "runtime/error.h"
#include "runtime/executor.h"
#include "runtime/frame_pool.h"
#include "runtime/io.h"
#include "runtime/message.h"
#include "runtime/task.h"
#include "scsi/command.h"
#include "scsi/sense.h"
#include "scsi/target_device.h"

namespace sandbay::iscsi {

inline constexpr std::uint32_t kMaximumInitiatorConnections = 32;
inline constexpr std::uint32_t kMaximumInitiatorQueueDepth = 4096;
inline constexpr unsigned kMaximumRedirections = 4;

enum class PathPolicy : std::uint8_t { kRoundRobin, kLeastQueueDepth };

struct ChapIdentity {
  std::string user;
  std::string secret;
};

// What stands out for one connection; the session's options hold for the rest.
struct InitiatorConnectionOptions {
  std::optional<Endpoint> endpoint;         // The session's first endpoint otherwise.
  Executor* executor = nullptr;             // The session's home otherwise.
  std::map<std::string, std::string> keys;  // Over the session's, e.g. {"HeaderDigest", "CRC32C"}.
  std::vector<Misbehaviour> misbehaviour;
};

// RFC 7143 section 11.9.
struct AsyncNotice {
  AsyncEventCode event = AsyncEventCode::kScsiEvent;  // As received, unassigned ones too.
  std::uint16_t cid = 0;                              // Of the connection on which it came.
  std::uint64_t lun = 0;
  std::array<std::uint16_t, 3> parameters{};
  std::vector<std::byte> data;  // kScsi: sense length, sense data and event data.
};

struct InitiatorOptions {
  Endpoint endpoint;  // Where to log in first.
  std::string initiator_name = "iqn.2026-11.org.sandbay:initiator";
  std::string initiator_alias;
  std::string target_name;                  // Empty: a discovery session.
  std::optional<ChapIdentity> chap;         // What we prove ourselves with.
  std::optional<ChapIdentity> mutual_chap;  // What the target has to prove.
  std::vector<std::string> chap_digests;  // CHAP_A offered, in order; empty: all, strongest first.
  Isid isid;                      // All zero: random, of the type "random" (section 11.12.5).
  std::uint32_t connections = 1;  // 1 … 32; the target may grant fewer.
  std::vector<InitiatorConnectionOptions> connection_options;  // By index; may be shorter.
  PathPolicy path_policy = PathPolicy::kRoundRobin;
  // Offers other than the defaults, by key. An empty value leaves the key out. Keys that are not in
  // the RFC are offered as they stand.
  std::map<std::string, std::string> keys;
  std::uint32_t first_cmd_sn = 1;
  std::uint32_t queue_depth = 128;                // Commands in flight, of this session.
  std::size_t receive_buffer_bytes = 256 * 1024;  // Of each connection.

  Duration login_timeout = std::chrono::seconds(15);
  Duration nop_out_interval = std::chrono::seconds(5);  // Of an idle connection; 0: none.
  Duration nop_out_timeout =
      std::chrono::seconds(10);  // A connection that does not answer is lost.
  // Lost connections are made again (same CID), and a session that lost its last one logs in
  // again, for as long as recovery_timeout; commands wait for it and then fail with kReset.
  bool reconnect = true;
  Duration reconnect_delay = std::chrono::milliseconds(100);
  Duration recovery_timeout = std::chrono::seconds(30);

  std::function<void(const AsyncNotice& notice)> on_async;
  Interferences* interferences = nullptr;  // Outlives the session; null: nobody interferes.
};

// Why a login failed. status_class and status_detail are those of RFC 7143 section 11.13.5, zero
// if it was not the target that refused.
struct LoginFailure {
  Error error = Error::kNone;
  std::uint8_t status_class = 0;
  std::uint8_t status_detail = 0;
  std::string message;
};

// What a SCSI command came to.
struct ScsiResult {
  // kNone: the target answered, `status` holds. kReset: the connection was lost and the command may
  // or may not have been executed. kCancelled: aborted. kTimedOut. kInvalid: the target rejected
  // the PDU. kHardware: the target answered "target failure". kDataCorrupt: less data came than
  // the answer says.
  Error error = Error::kNone;
  scsi::Status status = scsi::Status::kGood;
  bool overflow = false;  // Residual counts, section 11.4.5.
  bool underflow = false;
  std::uint32_t residual = 0;
  std::uint32_t data_in_bytes = 0;  // Received.
  std::uint8_t sense_bytes = 0;
  std::array<std::byte, 252> sense;  // Only the first sense_bytes are defined.

  ScsiResult() noexcept {}  // Leaves the sense bytes alone: they are large and seldom used.
  bool good() const noexcept { return error == Error::kNone && status == scsi::Status::kGood; }
  // And all bytes that the initiator was ready for were moved: for commands that name how many.
  bool whole() const noexcept { return good() && !underflow; }
  std::span<const std::byte> sense_data() const noexcept { return {sense.data(), sense_bytes}; }
  // SENSE KEY and ADDITIONAL SENSE CODE with QUALIFIER of either format; kNoSense, kNone without.
  scsi::SenseKey sense_key() const noexcept;
  scsi::Additional additional() const noexcept;
};

class InitiatorConnection;

// What every task (SCSI command or other request that is answered) has in common. Used by the
// session and its connections only.
struct InitiatorTask {
  enum class Kind : std::uint8_t { kScsi, kControl };
  struct Crossing : Message {
    InitiatorTask* task = nullptr;
  };
  Crossing crossing;
  InitiatorTask* next = nullptr;  // In one of the session's queues.
  InitiatorTask* previous = nullptr;
  InitiatorConnection* connection = nullptr;  // May be gone once the task is lost.
  std::uint32_t path = 0;                     // The session's number for it.
  std::uint32_t itt = 0;
  std::uint32_t cmd_sn = 0;
  // The window that came with the answer.
  std::uint32_t seen_exp_cmd_sn = 0;
  std::uint32_t seen_max_cmd_sn = 0;
  std::uint32_t sends_in_flight = 0;  // Batches that still name this task's memory.
  Kind kind = Kind::kScsi;
  bool immediate = false;
  bool answered = false;
  bool lost = false;      // The connection ended before the answer.
  bool aborting = false;  // Its outcome is decided; late PDUs for it are dropped.
  bool rejected = false;  // The target refused the PDU.
  bool queued = false;
  bool keep_tag = false;  // A text negotiation goes on under the same tag.
};

// One SCSI command of the direct path. The caller owns it, keeps it where it is from submit()
// until `done` runs, and may submit it again from there.
class InitiatorCommand : public InitiatorTask {
 public:
  // The request.
  std::uint64_t lun = 0;  // As in the PDU.
  std::array<std::byte, 16> cdb{};
  scsi::TaskAttribute attribute = scsi::TaskAttribute::kSimple;
  BufferList data_out;  // What the command sends; only one of the two is not empty.
  BufferList data_in;   // Where what it reads goes; its length is the expected length.
  bool retry = true;    // False: never sent a second time after a connection loss.

  void (*done)(InitiatorCommand& command) = nullptr;
  void* owner = nullptr;

  ScsiResult result;

  // The connection's, while the command is in flight.
  std::uint32_t expected_data_sn = 0;
  std::uint32_t in_order_end = 0;  // Of the data that have come; and behind a gap, where they …
  std::map<std::uint32_t, std::uint32_t>
      came_early;  // … begin and end. Only where that was agreed.
  std::uint32_t expected_r2t_sn = 0;
  std::uint8_t retries = 0;
  bool wants_abort = false;
};

struct ScsiRequest {
  std::uint64_t lun = 0;
  std::array<std::byte, 16> cdb{};
  scsi::TaskAttribute attribute = scsi::TaskAttribute::kSimple;
  BufferList data_out;
  BufferList data_in;
  bool retry = true;
  Duration timeout{};  // 0: none. Then the command is aborted, and ends with kTimedOut.
};

struct DiscoveredTarget {
  std::string name;
  std::vector<std::string> addresses;  // As received: "192.0.2.1:3260,1"
};

struct InitiatorCounters {
  std::uint64_t commands = 0;
  std::uint64_t commands_retried = 0;  // Sent again after a connection loss.
  std::uint64_t connections_lost = 0;
  std::uint64_t sessions_recovered = 0;
  std::uint64_t header_digest_errors = 0;
  std::uint64_t data_digest_errors = 0;
  std::uint64_t protocol_errors = 0;  // PDUs that broke the RFC; each ends its connection.
  std::uint64_t rejects = 0;
  std::uint64_t async_messages = 0;
  std::uint64_t nop_ins = 0;
};

class InitiatorSession {
 public:
  virtual ~InitiatorSession() = default;  // After close().

  // Logs the leading connection in, then the others. Further connections that fail do not fail
  // the session as long as reconnect is set; otherwise they do.
  static Task<std::expected<std::unique_ptr<InitiatorSession>, LoginFailure>> login(
      InitiatorOptions options);

  virtual Executor& home() const noexcept = 0;
  virtual bool up() const noexcept = 0;  // At least one connection is in full feature phase.

  // The direct path. The command comes back through `done`, never inside submit().
  virtual void submit(InitiatorCommand& command) = 0;
  // The coroutine path. The result's data stands in the request's buffers, given back here.
  struct Reply {
    ScsiResult result;
    BufferList data_in;
    BufferList data_out;
  };
  virtual Task<Reply> execute(ScsiRequest request) = 0;

  // Sends ABORT TASK for a command in flight, or takes a waiting one out of the queue. The command
  // ends with kCancelled unless its answer was faster. The command stays where it is until this
  // ends. One whose connection was lost ends when the target has ended it (see
  // initiator_recovery.cc), at once if it only reads.
  virtual Task<Result<TaskManagementResult>> abort(InitiatorCommand& command) = 0;
  // The others. Commands that the function covers end with kCancelled before this ends.
  // kAbortTask needs an explicit tag here and touches no command of ours.
  virtual Task<Result<TaskManagementResult>> manage(scsi::TaskManagementRequest request) = 0;

  // NOP-Out with a payload on one connection; the payload that came back.
  virtual Task<Result<std::vector<std::byte>>> ping(std::vector<std::byte> payload,
                                                    std::size_t connection = 0) = 0;
  // A text negotiation in full feature phase: `request` is key=value pairs separated by NULs.
  virtual Task<Result<std::string>> text(std::string request) = 0;
  virtual Task<Result<std::vector<DiscoveredTarget>>> send_targets(std::string which = "All") = 0;

  // Section 11.14: takes one connection out; its commands move as if it had been lost.
  virtual Task<Error> logout_connection(std::size_t index) = 0;
  // Makes a connection that is down again, or one that is up anew (connection reinstatement).
  virtual Task<Error> reinstate_connection(std::size_t index) = 0;
  // Breaks a connection as the network would: no logout, the peer sees a reset.
  virtual Task<void> break_connection(std::size_t index) = 0;
  // Logs in again with the same ISID and TSIH 0 (session reinstatement) while the old session is
  // still there, under load too.
  virtual Task<Error> reinstate_session() = 0;

  // Logs out and ends every command that is still there with kClosed. Bounded by login_timeout.
  virtual Task<void> close() = 0;

  virtual std::uint16_t tsih() const noexcept = 0;
  virtual Isid isid() const noexcept = 0;
  virtual std::size_t connection_count() const noexcept = 0;  // Made or to be made.
  virtual std::size_t connections_up() const noexcept = 0;
  virtual std::string connection_state(std::size_t index) const = 0;  // "S5:LOGGED_IN"
  virtual std::string session_state() const = 0;                      // "Q3:LOGGED_IN"
  // What was negotiated: the session's keys and those of the connection.
  virtual std::map<std::string, std::string> parameters(std::size_t connection = 0) const = 0;
  // What is offered under a key in logins to come.
  virtual void set_key(std::string key, std::string value) = 0;
  // What the target answered to a key of ours that is not in the RFC when the session was last
  // logged in; empty: it does not know it.
  virtual std::string private_answer(const std::string& key) const = 0;
  // It has given up for good: everything that is submitted ends with kClosed.
  virtual bool dead() const noexcept = 0;
  virtual std::uint32_t commands_in_flight() const noexcept = 0;
  virtual InitiatorCounters counters() const noexcept = 0;
};

}  // namespace sandbay::iscsi
