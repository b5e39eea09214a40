// LoginService: takes an accepted connection through login and into its session, and serves it to
// its end. RFC 7143 sections 6.3, 7.1.5 and 11.12 to 11.13.
//
// Home: executor 0, with the registry of targets and sessions. A login that has to wait (for the
// commands of a session that it replaces) waits there and disturbs nobody.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "iscsi/event_log.h"
#include "iscsi/lead_claim.h"
#include "iscsi/login.h"
#include "iscsi/login_brake.h"
#include "iscsi/target_connection.h"
#include "iscsi/target_fence.h"
#include "iscsi/target_portals.h"
#include "iscsi/target_server.h"
#include "iscsi/target_session.h"

namespace sandbay::iscsi {

struct RegisteredTarget {
  TargetOptions options;
  KeyPreferences preferences;
  std::vector<ChapAlgorithm> chap_algorithms;
  bool removing = false;
};

struct RegisteredDiscovery {
  DiscoveryOptions options;
  std::vector<ChapAlgorithm> chap_algorithms;
};

// What is registered, shared by the server's parts.
struct Registry {
  Registry(Executor& home, ServerLimits wanted, EventSink sink, Interferences* source)
      : limits(wanted),
        interferences(source),
        connections_on(home.peers().size()),
        events(home, std::move(sink)) {}

  std::map<std::string, std::unique_ptr<RegisteredTarget>> targets;  // By lower-case name.
  RegisteredDiscovery discovery;
  std::map<std::uint16_t, std::shared_ptr<Session>> sessions;  // By TSIH.
  Portals portals;
  ServerLimits limits;
  Interferences* const interferences;  // Null: nobody interferes.
  ServerCounters counters;             // Of what has ended.
  std::uint32_t connections = 0;
  std::uint16_t next_tsih = 1;
  std::vector<std::uint32_t> connections_on;  // By executor; of sessions.
  bool shutting_down = false;
  EventLog events;
  Gate serving;  // Connections.

  RegisteredTarget* find(const std::string& name);
};

class LoginService {
 public:
  LoginService(Registry& registry, SessionHost& host) : registry_(registry), host_(host) {}

  // Serves one connection that `portal` has accepted from its first byte to its last.
  Task<void> serve(std::unique_ptr<Stream> stream, Portal* portal);
  // Shuts every login in progress down.
  void interrupt();
  // Ends the discovery session that has been there for longest. False: there is none.
  bool end_oldest_discovery();
  // Ends a session and takes it out of the registry; bounded. `announce`: see Session::end().
  Task<void> end_session(std::shared_ptr<Session> session, bool announce);

 private:
  // A login in progress, oldest first.
  struct Attempt {
    Connection* connection = nullptr;
    Timer timer;
    bool placing = false;
    bool begun = false;           // A request has come.
    bool proven = false;          // CHAP has succeeded.
    bool waits = false;           // Its CHAP response waits for its turn.
    const char* ended = nullptr;  // Why we gave it up.
  };
  class Policy;
  struct Placement {
    std::shared_ptr<Session> session;
    ConnectionLink* link = nullptr;
    Executor* executor = nullptr;  // Where the connection counts,
    Portal* portal = nullptr;      // and there, too; null: for discovery.
    LoginStatus status = LoginStatus::kSuccess;
    std::string diagnosis;
  };

  struct Refused {
    LoginStatus status = LoginStatus::kSuccess;
    std::string why;
  };
  static constexpr std::size_t kMostSessions = 16384;
  static constexpr std::size_t kDiscoveryShare = 16;  // One of so many connections.
  static constexpr std::size_t kMostDiscoveriesOfAddress = 64;

  Task<Placement> log_in(Connection& connection, Portal* portal);
  // Nothing: the connection was shut down while the response waited for its turn.
  Task<std::optional<LoginOutcome>> check_response(Connection& connection, TargetLogin& login,
                                                   IncomingPdu pdu);
  static LoginOutcome take_request(TargetLogin& login, const IncomingPdu& pdu);
  void tell_of_session(const SessionOptions& options, std::string text);
  void tell_failure(const Attempt& attempt, TargetLogin& login, Error error);
  void tell_end(const Connection& connection, const Placement& placement);
  static void send_response(Connection& connection, TargetLogin& login);
  Task<Placement> place(Connection& connection, TargetLogin& login, Policy& policy);
  Task<Placement> place_new(TargetLogin& login, Policy& policy);
  static std::string claim_of(const TargetLogin& login);
  static Placement turned_away(TargetFence* fence, const TargetLogin& login, const Policy& policy,
                               Refused refused);
  // Past the fence of a target that has one: nobody else is there, and `owner` is believed.
  Task<Placement> place_behind(TargetFence* fence, TargetLogin& login, Policy& policy);
  Task<Refused> pass(TargetFence* fence, std::string claim, std::string target, std::string* owner);
  Task<Placement> begin_session(TargetLogin& login, Policy& policy, std::string owner);
  Task<Placement> place_in(std::shared_ptr<Session> session, std::uint16_t cid);
  Refused check_new(const TargetLogin& login, const RegisteredTarget* target) const;
  Executor& executor_for(const Session& session) const;
  Task<bool> enter(Connection& connection, TargetLogin& login, Placement& placement);
  std::uint16_t allot_tsih();
  void make_room_for_login();
  void make_room_for_discovery(const Endpoint& peer);

  Registry& registry_;
  SessionHost& host_;
  std::list<Attempt*> attempts_;
  LoginBrake brake_;
  Mutex fencing_;                       // One newcomer at a time is looked at.
  std::list<Connection*> discoveries_;  // Of discovery sessions, here; oldest first.
};

}  // namespace sandbay::iscsi
