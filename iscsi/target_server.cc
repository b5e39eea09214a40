// The server: portals, the registry of targets, and what management asks.

#include "iscsi/target_server.h"

#include <fmt/core.h>

#include <algorithm>

#include "iscsi/access.h"
#include "iscsi/chap.h"
#include "iscsi/keys.h"
#include "iscsi/target_logins.h"
#include "iscsi/target_session.h"
#include "iscsi/text.h"
#include "runtime/sync.h"

namespace sandbay::iscsi {
namespace {

constexpr Duration kAcceptPause = std::chrono::milliseconds(50);  // After a failed accept.
constexpr std::uint32_t kLargestQueueDepth = 4096;
constexpr Duration kTrafficPeriod = std::chrono::seconds(5);
constexpr Duration kLoginPause = std::chrono::milliseconds(100);

class Server final : public TargetServer, public SessionHost {
 public:
  Server(ServerLimits limits, EventSink events, Interferences* interferences)
      : home_(Executor::current()),
        registry_(home_, limits, std::move(events), interferences),
        logins_(registry_, *this) {}
  ~Server() override { assert(registry_.sessions.empty()); }

  Result<Endpoint> add_portal(PortalOptions options) override;
  Task<Error> add_target(TargetOptions options, std::string* message) override;
  Task<Error> update_target(TargetOptions options, std::string* message) override;
  Task<Error> remove_target(std::string name) override;
  Error set_discovery(DiscoveryOptions options, std::string* message) override;
  std::vector<PortalStatus> portals() const override { return registry_.portals.show(); }
  void advertise(std::size_t portal, std::optional<Endpoint> address, bool as_reached) override;
  Task<MovedConnections> move_connections(std::string member) override;
  Task<std::vector<SessionInfo>> sessions() override;
  Task<Error> drop_session(std::uint16_t tsih, SessionDrop drop) override;
  Task<Error> request_negotiation(std::uint16_t tsih, Duration within) override;
  Task<ServerCounters> counters() override;
  Task<void> shutdown() override;

  // SessionHost
  Task<std::string> send_targets(std::string which, std::string initiator_name, Endpoint local,
                                 Endpoint peer, std::string session_target) override;
  void end_sessions_of(std::string target_name) override;

 private:
  struct Reset : Message {
    Server* server = nullptr;
    std::string target_name;
  };

  static std::string access_problem(std::span<const AccessRecord> access);
  Task<void> accept_from(Portal* portal);
  bool is_kept_out(Stream& stream, Portal* portal);
  Task<void> be_deaf(Portal* portal);
  Task<void> serve(std::unique_ptr<Stream> stream, Portal* portal);
  Task<void> watch_traffic();
  bool leaves(const Portal& portal);
  Task<void> move_from(Gate* leaving, const Portal* portal, MovedConnections* moved);
  Task<void> move_session(Gate* moving, std::shared_ptr<Session> session, const Portal* portal,
                          MovedConnections* moved);
  std::expected<std::unique_ptr<RegisteredTarget>, std::string> check(TargetOptions options) const;
  Task<std::string> list_targets(std::string which, std::string initiator_name, Endpoint local,
                                 Endpoint peer, std::string session_target);
  void describe_target(const RegisteredTarget& target, const Endpoint& local,
                       std::string& text) const;
  Task<void> end_sessions_here(std::string target_name);
  std::vector<std::shared_ptr<Session>> sessions_of(const std::string& target_name) const;
  static Task<SessionInfo> inspect(std::shared_ptr<Session> session);
  Task<void> end_one(Gate* ending, std::shared_ptr<Session> session);

  Executor& home_;
  Registry registry_;
  LoginService logins_;
  Gate accepting_;
  Gate watching_;
  Event stopping_;
  Gate resets_;
  Gate management_;  // Drops, which may wait for the initiator.
};

// Portals ------------------------------------------------------------------------------------

Result<Endpoint> Server::add_portal(PortalOptions options) {
  if (registry_.shutting_down) return std::unexpected(Error::kClosed);
  Result<std::unique_ptr<Listener>> listener = home_.listen(options.listen);
  if (!listener) return std::unexpected(listener.error());
  const bool watched = registry_.portals.any_balances();
  Portal& portal = registry_.portals.add(std::move(options), std::move(*listener));
  if (!watched && portal.options.balances && watching_.enter()) spawn(watch_traffic());
  const bool entered = accepting_.enter();
  assert(entered);
  spawn(accept_from(&portal));
  return portal.local;
}

void Server::advertise(std::size_t portal, std::optional<Endpoint> address, bool as_reached) {
  PortalOptions& options = registry_.portals.all().at(portal)->options;
  options.advertised = address;
  options.as_reached = as_reached;
}

// Where logins are balanced: what moves where counts when nothing else tells portals apart.
Task<void> Server::watch_traffic() {
  const GateHold hold(watching_);
  for (;;) {
    const bool stopping = co_await stopping_.wait_until(home_.now() + kTrafficPeriod);
    if (stopping) co_return;
    std::vector<std::shared_ptr<Session>> all;
    for (const auto& [tsih, session] : registry_.sessions) all.push_back(session);
    std::vector<std::uint64_t> bytes(registry_.portals.all().size());
    for (const auto& session : all) {
      if (session->is_discovery()) continue;
      const auto moved = co_await invoke_on(session->home(), session->new_traffic());
      for (const Session::PortalTraffic& each : moved) bytes[each.portal] += each.bytes;
    }
    registry_.portals.note_traffic(bytes);
  }
}

// By a rule. An attempt that comes before the listener is deaf is reset: its initiator tries again.
bool Server::is_kept_out(Stream& stream, Portal* portal) {
  if (registry_.interferences == nullptr) return false;
  const Interferences::Attempt rule = registry_.interferences->judge_attempt(
      {.peer = stream.peer().address(), .portal = portal->local.to_string()});
  if (rule.ignored > Duration::zero()) {
    portal->deaf_until = home_.now() + rule.ignored;
    portal->stays_deaf = rule.holds;
    if (!std::exchange(portal->deaf, true)) {
      const bool entered = accepting_.enter();
      assert(entered);
      spawn(be_deaf(portal));
    }
  }
  const bool kept_out = rule.reset || rule.ignored > Duration::zero();
  if (kept_out) stream.reset();
  return kept_out;
}

Task<void> Server::be_deaf(Portal* portal) {
  const GateHold hold(accepting_);
  portal->listener->set_deaf(true);
  const auto stays = [&] { return !portal->stays_deaf || portal->stays_deaf(); };
  while (!registry_.shutting_down && home_.now() < portal->deaf_until && stays()) {
    const TimePoint look = std::min(portal->deaf_until, home_.now() + kLookAtRules);
    const bool stopping = co_await stopping_.wait_until(look);
    if (stopping) break;
  }
  portal->stays_deaf = {};
  portal->listener->set_deaf(false);
  portal->deaf = false;
}

Task<void> Server::accept_from(Portal* portal) {
  const GateHold hold(accepting_);
  for (;;) {
    Result<std::unique_ptr<Stream>> stream = co_await portal->listener->accept();
    if (registry_.shutting_down) co_return;
    if (!stream) {
      if (stream.error() == Error::kClosed) co_return;
      co_await home_.sleep_for(kAcceptPause);  // Out of descriptors, say: others still work.
      continue;
    }
    ++registry_.counters.connections_accepted;
    const bool kept_out = is_kept_out(**stream, portal);
    if (kept_out) continue;
    const bool full = registry_.connections >= registry_.limits.maximum_connections;
    if (full && !logins_.end_oldest_discovery()) {
      registry_.events.warn((*stream)->peer(),
                            fmt::format("connection from {} dropped: there are {} connections",
                                        (*stream)->peer().to_string(), registry_.connections));
      (*stream)->reset();
      continue;
    }
    const bool entered = registry_.serving.enter();
    assert(entered);
    const auto& through = portal->options.through;
    spawn(serve(through ? through(std::move(*stream)) : std::move(*stream), portal));
  }
}

Task<void> Server::serve(std::unique_ptr<Stream> stream, Portal* portal) {
  const GateHold hold(registry_.serving);
  ++registry_.connections;
  co_await logins_.serve(std::move(stream), portal);
  --registry_.connections;
}

// Targets ------------------------------------------------------------------------------------

std::string Server::access_problem(std::span<const AccessRecord> access) {
  for (const AccessRecord& record : access) {
    std::string problem = record_problem(record);
    if (!problem.empty()) return "access: " + problem;
  }
  return {};
}

std::expected<std::unique_ptr<RegisteredTarget>, std::string> Server::check(
    TargetOptions options) const {
  std::string problem = name_problem(options.name);
  if (!problem.empty()) return std::unexpected("target name: " + problem);
  if (options.queue_depth == 0 || options.queue_depth > kLargestQueueDepth) {
    return std::unexpected("queue depth: 1 to 4096 commands are possible");
  }
  problem = access_problem(options.access);
  if (!problem.empty()) return std::unexpected(problem);
  // A session that reports tasks in another way also holds answers back behind a response fence
  // and announces terminated tasks, neither of which this target does.
  const auto reporting = options.keys.find("TaskReporting");
  if (reporting != options.keys.end() && reporting->second != "RFC3720") {
    return std::unexpected("TaskReporting: only RFC3720 is possible");
  }
  auto preferences = KeyPreferences::for_target().with(options.keys);
  if (!preferences) return std::unexpected(preferences.error());
  auto algorithms = chap_algorithms_from(options.chap_digests);
  if (!algorithms) return std::unexpected(algorithms.error());
  return std::make_unique<RegisteredTarget>(
      RegisteredTarget{.options = std::move(options),
                       .preferences = std::move(*preferences),
                       .chap_algorithms = std::move(*algorithms)});
}

Task<Error> Server::add_target(TargetOptions options, std::string* message) {
  assert(options.device != nullptr);
  auto target = check(std::move(options));
  if (!target) {
    if (message != nullptr) *message = target.error();
    co_return Error::kInvalid;
  }
  const std::string name = lower_case((*target)->options.name);
  const bool added = registry_.targets.emplace(name, std::move(*target)).second;
  co_return added ? Error::kNone : Error::kExists;
}

Task<Error> Server::update_target(TargetOptions options, std::string* message) {
  RegisteredTarget* const old = registry_.find(options.name);
  if (old == nullptr || old->removing) co_return Error::kNotFound;
  options.device = old->options.device;
  auto target = check(std::move(options));
  if (!target) {
    if (message != nullptr) *message = target.error();
    co_return Error::kInvalid;
  }
  *old = std::move(**target);
  co_return Error::kNone;
}

Task<Error> Server::remove_target(std::string name) {
  RegisteredTarget* const target = registry_.find(name);
  if (target == nullptr || target->removing) co_return Error::kNotFound;
  target->removing = true;
  for (;;) {
    const auto sessions = sessions_of(name);
    if (sessions.empty()) break;
    for (const auto& session : sessions) co_await logins_.end_session(session, true);
  }
  registry_.targets.erase(lower_case(name));
  co_return Error::kNone;
}

std::vector<std::shared_ptr<Session>> Server::sessions_of(const std::string& target_name) const {
  std::vector<std::shared_ptr<Session>> found;
  for (const auto& [tsih, session] : registry_.sessions) {
    if (same_name(session->options().target_name, target_name)) found.push_back(session);
  }
  return found;
}

void Server::end_sessions_of(std::string target_name) {
  auto* const reset = new Reset;
  reset->server = this;
  reset->target_name = std::move(target_name);
  reset->run = [](Message& message) {
    const std::unique_ptr<Reset> arrived(static_cast<Reset*>(&message));
    if (!arrived->server->resets_.enter()) return;
    spawn(arrived->server->end_sessions_here(arrived->target_name));
  };
  home_.send(*reset);
}

Task<void> Server::end_sessions_here(std::string target_name) {
  const GateHold hold(resets_);
  const auto sessions = sessions_of(target_name);
  for (const auto& session : sessions) co_await logins_.end_session(session, false);
}

// Discovery ----------------------------------------------------------------------------------

Error Server::set_discovery(DiscoveryOptions options, std::string* message) {
  std::string problem = access_problem(options.access);
  auto algorithms = chap_algorithms_from(options.chap_digests);
  if (problem.empty() && !algorithms) problem = algorithms.error();
  if (!problem.empty()) {
    if (message != nullptr) *message = problem;
    return Error::kInvalid;
  }
  registry_.discovery = {.options = std::move(options), .chap_algorithms = std::move(*algorithms)};
  return Error::kNone;
}

Task<std::string> Server::send_targets(std::string which, std::string initiator_name,
                                       Endpoint local, Endpoint peer, std::string session_target) {
  co_return co_await invoke_on(home_, list_targets(std::move(which), std::move(initiator_name),
                                                   local, peer, std::move(session_target)));
}

// Section 4.3 and appendix C: "All" (discovery sessions only), one target, or, empty, the
// session's own. Only what the initiator may use.
Task<std::string> Server::list_targets(std::string which, std::string initiator_name,
                                       Endpoint local, Endpoint peer, std::string session_target) {
  std::string text;
  const bool all = which == "All";
  if (all && !session_target.empty()) co_return text;
  const std::string wanted = which.empty() ? session_target : which;
  for (const auto& [name, target] : registry_.targets) {
    if (!all && !same_name(name, wanted)) continue;
    if (target->removing) continue;
    const AccessDecision access = decide_access(target->options.access, initiator_name, peer);
    if (access.allowed) describe_target(*target, local, text);
  }
  co_return text;
}

// Appendix C: a record without an address is at the address of the connection that asks.
//
// It would have all portals of a group named together. Members' portals that one of the
// group's stands for are not: they come and go with their members, and who was told of them would
// log in there past all balancing. A session finds them through the group's, one connection after
// the other.
void Server::describe_target(const RegisteredTarget& target, const Endpoint& local,
                             std::string& text) const {
  append_pair(text, "TargetName", target.options.name);
  const auto& groups = target.options.portal_groups;
  const auto serves = [&](const Portal& portal) {
    return groups.empty() || std::ranges::find(groups, portal.options.group_tag) != groups.end();
  };
  const Portal* const here = registry_.portals.reached_at(local);
  if (here != nullptr && here->options.as_reached && serves(*here) &&
      !registry_.portals.stands_behind_another(*here)) {
    return;
  }
  for (const auto& portal : registry_.portals.all()) {
    const std::uint16_t tag = portal->options.group_tag;
    if (!serves(*portal)) continue;
    if (registry_.portals.stands_behind_another(*portal)) continue;
    const std::optional<Endpoint> address = Portals::address_of(*portal, local);
    if (!address) continue;
    append_pair(text, "TargetAddress", address->to_string() + "," + std::to_string(tag));
  }
}

// Management ---------------------------------------------------------------------------------

Task<SessionInfo> Server::inspect(std::shared_ptr<Session> session) {
  SessionInfo info = session->info();
  for (std::size_t i = 0; i < info.connections.size(); ++i) {
    ConnectionInfo& about = info.connections[i];
    const auto traffic = co_await session->traffic_of(about.cid);
    about.state = traffic.state;
    about.bytes_in = traffic.traffic.bytes_in;
    about.bytes_out = traffic.traffic.bytes_out;
  }
  co_return info;
}

bool Server::leaves(const Portal& portal) {
  return registry_.portals.destination(portal, portal.local, home_.now()) != nullptr;
}

Task<void> Server::move_session(Gate* moving, std::shared_ptr<Session> session,
                                const Portal* portal, MovedConnections* moved) {
  const GateHold hold(*moving);
  const std::uint32_t asked = co_await invoke_on(
      session->home(), session->ask_to_leave(portal->index, registry_.limits.logout_time));
  moved->asked += asked;
  if (asked == 0 || !leaves(*portal)) co_return;
  const std::uint32_t dropped =
      co_await invoke_on(session->home(), session->drop_portal(portal->index));
  moved->dropped += dropped;
}

// Until nobody is left: a login that was let in before the member went may be in only later.
Task<void> Server::move_from(Gate* leaving, const Portal* portal, MovedConnections* moved) {
  const GateHold hold(*leaving);
  const ServerLimits& limits = registry_.limits;
  const TimePoint deadline = home_.now() + limits.logout_time + limits.login_timeout;
  while (leaves(*portal) && !registry_.shutting_down && home_.now() < deadline) {
    if (portal->connections == 0 && portal->logins == 0) co_return;
    std::vector<std::shared_ptr<Session>> all;
    for (const auto& [tsih, session] : registry_.sessions) all.push_back(session);
    MovedConnections here;
    Gate moving;
    for (const auto& session : all) {
      const bool entered = moving.enter();
      assert(entered);
      spawn(move_session(&moving, session, portal, &here));
    }
    all.clear();
    co_await moving.close();
    moved->asked += here.asked;
    moved->dropped += here.dropped;
    if (here.asked == 0) co_await stopping_.wait_until(home_.now() + kLoginPause);
  }
}

Task<MovedConnections> Server::move_connections(std::string member) {
  MovedConnections moved;
  if (!management_.enter()) co_return moved;
  const GateHold hold(management_);
  Gate leaving;
  for (const auto& portal : registry_.portals.all()) {
    if (portal->options.member != member || member.empty()) continue;
    const bool entered = leaving.enter();
    assert(entered);
    spawn(move_from(&leaving, portal.get(), &moved));
  }
  co_await leaving.close();
  co_return moved;
}

Task<std::vector<SessionInfo>> Server::sessions() {
  std::vector<std::shared_ptr<Session>> all;
  for (const auto& [tsih, session] : registry_.sessions) all.push_back(session);
  std::vector<SessionInfo> infos;
  for (const auto& session : all) {
    SessionInfo info = co_await invoke_on(session->home(), inspect(session));
    for (ConnectionInfo& each : info.connections) {
      each.member = registry_.portals.all()[each.portal]->options.member;
    }
    infos.push_back(std::move(info));
  }
  co_return infos;
}

Task<Error> Server::drop_session(std::uint16_t tsih, SessionDrop drop) {
  const auto found = registry_.sessions.find(tsih);
  if (found == registry_.sessions.end()) co_return Error::kNotFound;
  const std::shared_ptr<Session> session = found->second;
  if (!management_.enter()) co_return Error::kClosed;
  const GateHold hold(management_);
  if (drop.logout_time > Duration{0}) {
    const Duration time = std::min(drop.logout_time, kLongestLogoutTime);
    const bool there = co_await invoke_on(session->home(), session->ask_to_log_out(drop.cid, time));
    if (!there) co_return Error::kNotFound;
  }
  if (!drop.cid) {
    co_await logins_.end_session(session, true);
    co_return Error::kNone;
  }
  const bool there = co_await invoke_on(session->home(), session->drop_connection(*drop.cid));
  // One that was asked may be gone by now, which is what was wanted.
  co_return there || drop.logout_time > Duration{0} ? Error::kNone : Error::kNotFound;
}

Task<Error> Server::request_negotiation(std::uint16_t tsih, Duration within) {
  const auto found = registry_.sessions.find(tsih);
  if (found == registry_.sessions.end()) co_return Error::kNotFound;
  const std::shared_ptr<Session> session = found->second;
  if (!management_.enter()) co_return Error::kClosed;
  const GateHold hold(management_);
  co_await invoke_on(session->home(),
                     session->request_negotiation(std::min(within, kLongestLogoutTime)));
  co_return Error::kNone;
}

Task<ServerCounters> Server::counters() {
  ServerCounters total = registry_.counters;
  std::vector<std::shared_ptr<Session>> all;
  for (const auto& [tsih, session] : registry_.sessions) all.push_back(session);
  for (const auto& session : all) {
    const ServerCounters one = co_await invoke_on(session->home(), session->live_counters());
    total.add(one);
    total.commands += one.commands;
    total.rejects += one.rejects;
    total.task_management += one.task_management;
  }
  co_return total;
}

Task<void> Server::end_one(Gate* ending, std::shared_ptr<Session> session) {
  const GateHold hold(*ending);
  co_await logins_.end_session(std::move(session), true);
}

Task<void> Server::shutdown() {
  registry_.shutting_down = true;
  stopping_.set();
  for (const auto& portal : registry_.portals.all()) portal->listener->shutdown();
  co_await accepting_.close();
  logins_.interrupt();
  co_await resets_.close();
  // Side by side: each may wait for a device that does not answer.
  Gate ending;
  while (!registry_.sessions.empty()) {
    std::vector<std::shared_ptr<Session>> all;
    for (const auto& [tsih, session] : registry_.sessions) all.push_back(session);
    for (const auto& session : all) {
      const bool entered = ending.enter();
      assert(entered);
      spawn(end_one(&ending, session));
    }
    co_await ending.drain();
  }
  co_await ending.close();
  co_await management_.close();
  co_await watching_.close();
  co_await registry_.serving.close();
  registry_.targets.clear();
}

}  // namespace

std::unique_ptr<TargetServer> TargetServer::create(ServerLimits limits, EventSink events,
                                                   Interferences* interferences) {
  return std::make_unique<Server>(limits, std::move(events), interferences);
}

}  // namespace sandbay::iscsi
