// TargetServer: the iSCSI side of a group. Listens on portals, logs initiators in, keeps sessions
// and hands their commands to SCSI target devices (RFC 7143).
//
// Home: executor 0 of the group; every public call is made there. Connections and sessions live
// on executors of their own choosing (see session.h). Values returned describe one moment.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "iscsi/transfer_pace.h"
#include "runtime/clock.h"
#include "runtime/error.h"
#include "runtime/executor.h"
#include "runtime/io.h"
#include "runtime/task.h"

namespace sandbay::scsi {
class TargetDevice;
}

namespace sandbay::iscsi {

class TargetFence;

// A network portal (RFC 7143 section 2.2). Portals with one tag form a portal group.
struct PortalOptions {
  Endpoint listen;
  std::optional<Endpoint> advertised;  // What SendTargets names; the local address otherwise.
  // To those who ask there SendTargets names no address: the initiator takes the one that it has
  // reached, however addresses are translated in between (appendix C).
  bool as_reached = false;
  std::uint16_t group_tag = 1;
  std::string member;     // Whose it is; empty: the group's.
  bool balances = false;  // Of the group's: logins go on to members' portals of the same tag.
  // Of a member's: whether it takes logins now; otherwise they go on to another. Empty: always.
  // Called on executor 0, often.
  std::function<bool()> takes_logins;
  // A connection that was accepted becomes this, as where the port has a rate. Empty: stays as it
  // is. On executor 0.
  std::function<std::unique_ptr<Stream>(std::unique_ptr<Stream>)> through;
};

struct PortalStatus {
  Endpoint listen;
  std::uint32_t connections = 0;   // Of sessions other than for discovery.
  std::uint64_t recent_bytes = 0;  // In the last five seconds; counted where some portal balances.
  bool takes_logins = false;       // As far as others do, they go on to another.
};

struct ChapCredential {
  std::string user;
  std::string secret;
  bool operator==(const ChapCredential&) const = default;
};

// Who may use a target. Every part that is given must match; an initiator needs one record that
// matches. A record with a credential demands CHAP with it.
struct AccessRecord {
  std::string initiator = "*";  // Initiator name; `*` and `?` are wildcards.
  std::string address;          // "192.0.2.7", "192.0.2.0/24", "2001:db8::/32"; empty: any.
  std::optional<ChapCredential> chap;
};

// Who may begin discovery sessions (RFC 7143 section 4.3).
struct DiscoveryOptions {
  std::vector<AccessRecord> access;  // As of a target; none: everybody, without proof.
  std::optional<ChapCredential> mutual_chap;
  std::vector<std::string> chap_digests;
};

// Login redirection (RFC 7143 section 11.13.5, status class 1).
struct Redirect {
  std::string address;  // As in TargetAddress: "192.0.2.8:3260" or "[2001:db8::8]:3260,1".
  bool permanent = false;
};

struct TargetOptions {
  std::string name;  // iqn., eui. or naa. (RFC 7143 section 4.2.7)
  std::string alias;
  scsi::TargetDevice* device = nullptr;  // Outlives the target's registration.
  std::vector<AccessRecord> access;
  std::optional<ChapCredential>
      mutual_chap;  // What this target answers when it is asked to prove itself.
  std::vector<std::string> chap_digests;     // Allowed CHAP_A by name, strongest first; empty: all.
  std::vector<std::uint16_t> portal_groups;  // Where it can be reached; empty: everywhere.
  std::optional<Redirect> redirect;
  // Values and answers for login keys other than the defaults, by key: {"InitialR2T", "Yes"}. What
  // a value means stands with the negotiation table (keys.h): a limit for numbers, an insistence or
  // offer for booleans, a preference list for digests.
  std::map<std::string, std::string> keys;
  std::uint32_t queue_depth = 128;  // The command window of a session.
  std::uint32_t maximum_sessions = 1024;
  bool exclusive = false;        // One initiator name at a time.
  TargetFence* fence = nullptr;  // Who may begin a session now; null: whoever may log in.
  TransferPace pace;             // When data of writes are asked for.
};

// Limits against peers that do not behave.
struct ServerLimits {
  std::uint32_t maximum_connections = 4096;
  std::uint32_t maximum_logins_in_progress = 128;  // Half-open logins; the oldest makes room.
  Duration login_timeout = std::chrono::seconds(15);
  Duration nop_in_interval = std::chrono::seconds(15);  // 0: none. Sent when a connection is idle.
  Duration nop_in_timeout = std::chrono::seconds(15);
  Duration send_stall_timeout = std::chrono::seconds(60);  // A peer that reads nothing.
  // Whole seconds, at most kLongestLogoutTime: what initiators have to leave a portal in when its
  // member goes.
  Duration logout_time = std::chrono::seconds(15);
};

struct ConnectionInfo {
  std::uint16_t cid = 0;
  std::string initiator_address;
  std::string target_address;
  std::uint32_t portal = 0;  // Where it came to, in the order in which portals were added.
  std::string member;        // Whose portal that is; empty: the group's.
  unsigned executor = 0;
  std::string state;  // RFC 7143 section 8.1: "S7:LOGGED_IN" …
  bool header_digest = false;
  bool data_digest = false;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
};

struct SessionInfo {
  std::uint16_t tsih = 0;
  std::string isid;  // Twelve hexadecimal digits.
  std::string initiator_name;
  std::string initiator_alias;
  std::string target_name;  // Empty: a discovery session.
  std::string state;        // RFC 7143 section 8.3: "Q3:LOGGED_IN" …
  unsigned executor = 0;
  std::map<std::string, std::string> parameters;  // Negotiated keys.
  std::vector<ConnectionInfo> connections;
  std::uint64_t commands = 0;
  std::uint32_t commands_in_flight = 0;
};

struct ConnectionTraffic {
  std::uint64_t pdus_in = 0;
  std::uint64_t pdus_out = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  std::uint64_t header_digest_errors = 0;
  std::uint64_t data_digest_errors = 0;

  void add(const ConnectionTraffic& other) noexcept {
    pdus_in += other.pdus_in;
    pdus_out += other.pdus_out;
    bytes_in += other.bytes_in;
    bytes_out += other.bytes_out;
    header_digest_errors += other.header_digest_errors;
    data_digest_errors += other.data_digest_errors;
  }
};

struct ServerCounters : ConnectionTraffic {
  std::uint64_t connections_accepted = 0;
  std::uint64_t logins_succeeded = 0;
  std::uint64_t logins_failed = 0;
  std::uint64_t logins_redirected = 0;
  std::uint64_t commands = 0;
  std::uint64_t rejects = 0;
  std::uint64_t task_management = 0;
  std::uint64_t sessions_reinstated = 0;
};

// How a session, or one connection of it, is ended by the target (RFC 7143 section 11.9.1).
struct SessionDrop {
  std::optional<std::uint16_t> cid;  // This connection alone.
  // Whole seconds. The initiator is asked to log out and has so long to do it, before it is
  // announced that the connection or session is dropped. 0: it is not asked.
  Duration logout_time{0};
};
inline constexpr Duration kLongestLogoutTime = std::chrono::minutes(5);

struct MovedConnections {
  std::uint32_t asked = 0;
  std::uint32_t dropped = 0;  // Of these: had not left in time.
};

enum class EventSeverity : std::uint8_t { kInfo, kWarning };

// Something worth a line in a log: a login that failed, a session that begins or ends, a connection
// that was given up. One sentence; it names the peer and never holds a secret.
struct ServerEvent {
  EventSeverity severity = EventSeverity::kInfo;
  std::string text;
};
// Called on executor 0, at most some lines a second; must not call the server.
using EventSink = std::function<void(const ServerEvent&)>;

class Interferences;

class TargetServer {
 public:
  virtual ~TargetServer() = default;  // After shutdown().

  // Starts listening; the endpoint with the port in use.
  virtual Result<Endpoint> add_portal(PortalOptions options) = 0;
  // kExists: a target of that name is there. kInvalid: `message` says which option and why.
  virtual Task<Error> add_target(TargetOptions options, std::string* message) = 0;
  // Access, CHAP, redirection and keys for logins to come; sessions stay.
  virtual Task<Error> update_target(TargetOptions options, std::string* message) = 0;
  // Ends its sessions first: their commands are finished or aborted when this ends.
  virtual Task<Error> remove_target(std::string name) = 0;

  // For discovery sessions to come; before, anybody may begin one. kInvalid as above.
  virtual Error set_discovery(DiscoveryOptions options, std::string* message) = 0;

  // In the order in which they were added.
  virtual std::vector<PortalStatus> portals() const = 0;
  // Changes what a portal, by its place in that order, advertises from now on.
  virtual void advertise(std::size_t portal, std::optional<Endpoint> address, bool as_reached) = 0;
  // Asks for the logout of what stands on a member's portals, as far as logins there go on to
  // others, and drops what has not left within the limits' logout_time. Whoever logs in again is
  // sent to another portal.
  virtual Task<MovedConnections> move_connections(std::string member) = 0;

  virtual Task<std::vector<SessionInfo>> sessions() = 0;
  // kNotFound: there is no such session, or no such connection in it.
  virtual Task<Error> drop_session(std::uint16_t tsih, SessionDrop drop = {}) = 0;
  // Asks the initiator for a text negotiation within so many whole seconds. Nothing happens if it
  // does not begin one.
  virtual Task<Error> request_negotiation(std::uint16_t tsih, Duration within) = 0;
  virtual Task<ServerCounters> counters() = 0;

  // Stops listening, ends every session within a bounded time and waits for their commands.
  virtual Task<void> shutdown() = 0;

  // Made on executor 0; places sessions and connections on its peers.
  // `interferences` outlives it; null: nobody interferes with connections.
  static std::unique_ptr<TargetServer> create(ServerLimits limits, EventSink events = {},
                                              Interferences* interferences = nullptr);
};

}  // namespace sandbay::iscsi
