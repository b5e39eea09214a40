// Login and placement.

#include "iscsi/target_logins.h"

#include <fmt/core.h>

#include <algorithm>

#include "iscsi/access.h"
#include "iscsi/login_room.h"
#include "runtime/known.h"

namespace sandbay::iscsi {
namespace {

// Session reinstatement (section 6.3.5): the same initiator port and target port. A discovery
// session that names no target has no portal group either: there it is the address that counts
// (section 7.4.2.1), and one that names a target is as any other session (section 7.4.2.2).
bool is_same_nexus(const Session& session, const LoginIdentity& identity,
                   std::uint16_t portal_group_tag, const std::string& portal) {
  const SessionOptions& options = session.options();
  const bool same_place = identity.target_name.empty()
                              ? options.portal == portal
                              : options.portal_group_tag == portal_group_tag;
  return options.isid == identity.isid && same_place &&
         same_name(options.initiator_name, identity.initiator_name) &&
         same_name(options.named_target, identity.target_name);
}

// A name and an ISID are claims: a session that was proven belongs to its CHAP user. A session
// without proof belongs to everybody whom the access records admit.
bool is_foreign(const Session& session, const std::string& chap_user) {
  const std::string& owner = session.options().chap_user;
  return !owner.empty() && owner != chap_user;
}

constexpr const char* kForeignSession =
    "the session of that initiator name and ISID belongs to another CHAP user";

std::string who_and_where(const SessionOptions& options, const Endpoint& peer) {
  return fmt::format("{} at {} to {}", options.initiator_name, peer.to_string(),
                     options.target_name.empty() ? "discovery" : options.target_name);
}

}  // namespace

RegisteredTarget* Registry::find(const std::string& name) {
  const auto found = targets.find(lower_case(name));
  return found == targets.end() ? nullptr : found->second.get();
}

// What the target says to a login, from the registry.
class LoginService::Policy final : public LoginPolicy {
 public:
  Policy(Registry& registry, Portal& place, Endpoint local, Endpoint peer)
      : registry_(registry),
        place_(place),
        local_(std::move(local)),
        portal_(local_.to_string()),
        peer_(std::move(peer)),
        portal_group_tag_(place.options.group_tag) {}

  Admission admit(const LoginIdentity& identity) override {
    Admission admission;
    admission.portal_group_tag = portal_group_tag_;
    if (is_refused_by_rule(identity, admission)) return admission;
    if (registry_.shutting_down) {
      admission.status = LoginStatus::kServiceUnavailable;
    } else if (identity.discovery) {
      admit_discovery(identity, admission);
    } else {
      admit_to_target(identity, admission);
    }
    // Discovery does not show these targets, and neither may a login.
    if (admission.status == LoginStatus::kTargetNotFound && hides_targets(identity)) {
      admission.status = LoginStatus::kAuthorizationFailure;
    }
    if (admission.status == LoginStatus::kSuccess && identity.tsih != 0) {
      admit_to_session(identity, admission);
    }
    if (admission.status == LoginStatus::kSuccess && !identity.discovery) {
      send_on(identity, admission);
    }
    bend_by_rule(admission);
    chap_required_ = admission.chap_required;
    credentials_ = admission.credentials;
    mutual_chap_ = admission.mutual_chap;
    return admission;
  }

  // The peer decides how long its login takes, and the rules may have changed since it was
  // admitted. It has proved itself by the old ones; where these demanded less, or something else,
  // that is worth nothing.
  Refused judge_again(const LoginIdentity& identity) {
    Admission now;
    if (identity.discovery) {
      admit_discovery(identity, now);
    } else {
      admit_to_target(identity, now);
    }
    if (now.status == LoginStatus::kTargetNotFound) now.status = LoginStatus::kTargetRemoved;
    if (!now.redirect_address.empty()) now.status = LoginStatus::kServiceUnavailable;
    const bool proved = !now.chap_required || (chap_required_ && now.credentials == credentials_ &&
                                               now.mutual_chap == mutual_chap_);
    if (now.status == LoginStatus::kSuccess && !proved) {
      now.status = LoginStatus::kAuthenticationFailure;
    }
    return {now.status, "access to the target changed during the login; log in again"};
  }

  const std::string& target_name() const noexcept { return target_name_; }
  // A rule has its answer wait so long.
  Duration delay() noexcept { return std::exchange(delay_, Duration{}); }
  // The login has ended, well or not; its connection counts from now on.
  void end() noexcept {
    if (std::exchange(counted_, false)) --place_.logins;
  }
  const std::string& portal() const noexcept { return portal_; }
  const Endpoint& peer() const noexcept { return peer_; }
  std::uint16_t portal_group_tag() const noexcept { return portal_group_tag_; }
  const KeyPreferences& preferences() const noexcept { return preferences_; }
  std::uint32_t first_transfer_tag() const noexcept { return near_wrap_ ? 0xffff'fff0 : 1; }

 private:
  bool is_refused_by_rule(const LoginIdentity& identity, Admission& admission) {
    if (registry_.interferences == nullptr) return false;
    Interferences::Login rule = registry_.interferences->judge_login(
        {.initiator_name = identity.initiator_name, .portal = place_.local.to_string()});
    delay_ = rule.delay;
    odd_ = rule.odd;
    near_wrap_ = rule.near_wrap;
    admission.status = rule.status;
    admission.redirect_address = std::move(rule.address);
    return admission.status != LoginStatus::kSuccess;
  }

  void bend_by_rule(Admission& admission) {
    constexpr std::uint32_t kNearWrap = 0xffff'fff0;
    constexpr std::size_t kSmallSegment = 60;
    if (near_wrap_) admission.first_stat_sn = kNearWrap;
    if (!odd_) return;
    preferences_ = preferences_
                       .with({{"MaxRecvDataSegmentLength", "512"},
                              {"MaxBurstLength", "512"},
                              {"FirstBurstLength", "512"},
                              {"InitialR2T", "Yes"},
                              {"ImmediateData", "No"},
                              {"MaxOutstandingR2T", "1"}})
                       .value_or(preferences_);
    admission.preferences = preferences_;
    admission.segment_bytes = kSmallSegment;
  }

  // What the answer lists depends on who asks, too. One that names a target has to be let in there;
  // proof that serves for the target serves for what is asked about it.
  void admit_discovery(const LoginIdentity& identity, Admission& admission) {
    if (!identity.target_name.empty()) admit_to_target(identity, admission);
    const DiscoveryOptions& options = registry_.discovery.options;
    const bool settled = admission.status != LoginStatus::kSuccess || admission.chap_required;
    if (settled || options.access.empty()) return;
    AccessDecision access = decide_access(options.access, identity.initiator_name, peer_);
    if (!access.allowed) {
      admission.status = LoginStatus::kAuthorizationFailure;
      return;
    }
    admission.chap_required = access.chap_required;
    admission.credentials = std::move(access.credentials);
    admission.mutual_chap = options.mutual_chap;
    admission.chap_algorithms = registry_.discovery.chap_algorithms;
  }

  void admit_to_target(const LoginIdentity& identity, Admission& admission) {
    const RegisteredTarget* const target = registry_.find(identity.target_name);
    if (target == nullptr) {
      admission.status = LoginStatus::kTargetNotFound;
      return;
    }
    const TargetOptions& options = target->options;
    target_name_ = options.name;
    preferences_ = target->preferences;
    const auto& groups = options.portal_groups;
    const bool here =
        groups.empty() || std::ranges::find(groups, portal_group_tag_) != groups.end();
    const AccessDecision access = decide_access(options.access, identity.initiator_name, peer_);
    if (target->removing) {
      admission.status = LoginStatus::kTargetRemoved;
    } else if (!here) {
      admission.status = LoginStatus::kTargetNotFound;
    } else if (!access.allowed) {
      admission.status = LoginStatus::kAuthorizationFailure;
    } else if (options.redirect) {
      admission.status = options.redirect->permanent ? LoginStatus::kMovedPermanently
                                                     : LoginStatus::kMovedTemporarily;
      const std::string& address = options.redirect->address;
      admission.redirect_address = address.substr(0, address.find(','));  // Section 13.8.
    }
    admission.target_alias = options.alias;
    admission.chap_required = access.chap_required;
    admission.credentials = access.credentials;
    admission.mutual_chap = options.mutual_chap;
    admission.chap_algorithms = target->chap_algorithms;
    admission.preferences = target->preferences;
  }

  bool hides_targets(const LoginIdentity& identity) const {
    return std::ranges::any_of(registry_.targets, [&](const auto& each) {
      const TargetOptions& options = each.second->options;
      return !decide_access(options.access, identity.initiator_name, peer_).allowed;
    });
  }

  // Section 6.3.1: a connection for a session that exists.
  void admit_to_session(const LoginIdentity& identity, Admission& admission) {
    const auto found = registry_.sessions.find(identity.tsih);
    if (found == registry_.sessions.end() || found->second->is_discovery() != identity.discovery ||
        !is_same_nexus(*found->second, identity, portal_group_tag_, portal_)) {
      // Only after its proof does an initiator hear which sessions exist: placing it fails then.
      if (!admission.chap_required) admission.status = LoginStatus::kSessionDoesNotExist;
      return;
    }
    admission.session = found->second->options().parameters;
  }

  // Further connections of a session as well: it spans the portals of a group.
  void send_on(const LoginIdentity& identity, Admission& admission) {
    std::string login = fmt::format("{} {} {} {}", identity.initiator_name, target_name_,
                                    identity.isid.to_string(), identity.cid);
    const TimePoint now = Executor::current().now();
    Portal* const there = registry_.portals.destination(place_, local_, now);
    if (there == nullptr) {
      registry_.portals.arrived(place_, login);
      ++place_.logins;
      counted_ = true;
      return;
    }
    admission.status = LoginStatus::kMovedTemporarily;
    admission.redirect_address = known(Portals::address_of(*there, local_)).to_string();
    registry_.portals.expect(*there, std::move(login), now);
  }

  Registry& registry_;
  Portal& place_;
  Endpoint local_;
  std::string portal_;
  bool counted_ = false;  // Among the logins there.
  Duration delay_{};
  bool odd_ = false;
  bool near_wrap_ = false;
  Endpoint peer_;
  std::uint16_t portal_group_tag_;
  std::string target_name_;
  bool chap_required_ = false;
  std::vector<ChapCredential> credentials_;
  std::optional<ChapCredential> mutual_chap_;
  KeyPreferences preferences_ = KeyPreferences::for_target();
};

// A connection's life ------------------------------------------------------------------------

Task<void> LoginService::serve(std::unique_ptr<Stream> stream, Portal* portal) {
  Executor& server_home = Executor::current();
  Connection connection(std::move(stream), registry_.limits);
  connection.states().transition(ConnectionState::kS3XptUp);  // T3
  const Endpoint listening = portal->local;
  Placement placement = co_await log_in(connection, portal);
  if (placement.link != nullptr) {
    Session& session = *placement.session;
    if (session.is_discovery()) {
      assert(&connection.home() == &server_home);
      make_room_for_discovery(connection.peer());
      discoveries_.push_back(&connection);
    }
    if (registry_.interferences != nullptr) {
      connection.set_interference(registry_.interferences->of_connection(
          {.tsih = session.options().tsih,
           .cid = placement.link->cid,
           .initiator_name = session.options().initiator_name,
           .portal = listening.to_string()}));
    }
    co_await connection.serve(session, *placement.link);
    if (session.is_discovery()) std::erase(discoveries_, &connection);
    connection.end_states();
    connection.shutdown();
    co_await invoke_on(session.home(),
                       session.remove_connection(placement.link, connection.given_up() != nullptr));
  }
  co_await connection.close(server_home);
  co_await SwitchTo(server_home);
  if (placement.executor != nullptr) --registry_.connections_on[placement.executor->index()];
  if (placement.portal != nullptr) --placement.portal->connections;
  tell_end(connection, placement);
  if (placement.session != nullptr && !placement.session->options().chap_user.empty()) {
    brake_.note_proof(connection.peer(), server_home.now());
  }
  registry_.counters.add(connection.traffic());
  // Section 7.1: at ErrorRecoveryLevel 0 the last connection takes the session with it.
  if (placement.session == nullptr) co_return;
  const bool empty =
      co_await invoke_on(placement.session->home(), placement.session->is_abandoned());
  if (empty) co_await end_session(std::move(placement.session), false);
}

Task<void> LoginService::end_session(std::shared_ptr<Session> session, bool announce) {
  co_await invoke_on(session->home(), session->end(announce));
  const auto found = registry_.sessions.find(session->options().tsih);
  if (found == registry_.sessions.end() || found->second != session) co_return;
  registry_.counters.commands += session->command_count();
  registry_.counters.task_management += session->task_management_count();
  registry_.counters.rejects += session->reject_count();
  registry_.sessions.erase(found);
  const SessionOptions& options = session->options();
  tell_of_session(
      options, fmt::format("session {} of {} to {} has ended", options.tsih, options.initiator_name,
                           options.target_name.empty() ? "discovery" : options.target_name));
}

void LoginService::tell_of_session(const SessionOptions& options, std::string text) {
  if (!options.chap_user.empty()) return registry_.events.info_of_proven(std::move(text));
  const Result<Endpoint> peer = Endpoint::parse(options.peer, 0);
  registry_.events.info(peer ? *peer : Endpoint(), std::move(text));
}

void LoginService::make_room_for_login() {
  std::size_t idle = 0;
  std::vector<Attempt*> open;
  std::vector<LoginInProgress> logins;
  for (Attempt* const attempt : attempts_) {
    idle += attempt->placing ? 0 : 1;
    if (attempt->placing || attempt->connection->closing()) continue;
    open.push_back(attempt);
    logins.push_back({.peer = attempt->connection->peer(),
                      .begun = attempt->begun,
                      .proven = attempt->proven,
                      .waits = attempt->waits});
  }
  if (idle < registry_.limits.maximum_logins_in_progress) return;
  const auto victim = login_to_drop(logins);
  if (!victim) return;
  open[*victim]->ended = "too many logins are in progress, and it held others up most";
  open[*victim]->connection->shutdown();
  brake_.changed().notify_all();
}

// Nobody has to prove anything for a discovery session, which therefore makes room for others.
void LoginService::make_room_for_discovery(const Endpoint& peer) {
  const std::size_t most = std::max<std::size_t>(
      registry_.limits.maximum_connections / kDiscoveryShare, kDiscoveryShare);
  std::size_t open = 0;
  std::size_t alike = 0;
  Connection* oldest_alike = nullptr;
  for (Connection* const each : discoveries_) {
    if (each->closing()) continue;
    ++open;
    if (!same_network(each->peer(), peer)) continue;
    if (alike++ == 0) oldest_alike = each;
  }
  if (alike >= kMostDiscoveriesOfAddress) return oldest_alike->shutdown();
  if (open < most) return;
  const bool ended = end_oldest_discovery();
  assert(ended);
}

bool LoginService::end_oldest_discovery() {
  const auto oldest =
      std::ranges::find_if(discoveries_, [](const Connection* each) { return !each->closing(); });
  if (oldest == discoveries_.end()) return false;
  (*oldest)->shutdown();
  return true;
}

void LoginService::interrupt() {
  for (Attempt* attempt : attempts_) {
    attempt->ended = "the server shuts down";
    attempt->connection->shutdown();
  }
  brake_.changed().notify_all();
}

// A login whose response waits is in progress: it has one of their places, and its time runs.
Task<std::optional<LoginOutcome>> LoginService::check_response(Connection& connection,
                                                               TargetLogin& login,
                                                               IncomingPdu pdu) {
  Executor& home = Executor::current();
  LoginBrake::Turn turn(brake_, connection.peer(), home.now());
  if (turn.refused()) {
    co_return login.fail(LoginStatus::kServiceUnavailable, initiator_task_tag(pdu.bhs),
                         "too many CHAP responses of its address or network wait for their turn");
  }
  for (;;) {
    if (connection.closing()) co_return std::nullopt;
    const TimePoint due = turn.due(home.now());
    if (due <= home.now()) break;
    const bool notified = co_await brake_.changed().wait_until(due);
    static_cast<void>(notified);
  }
  const LoginOutcome outcome = take_request(login, pdu);
  if (!login.chap_user().empty()) turn.proved(home.now());
  if (outcome == LoginOutcome::kFail && login.chap_failed()) turn.failed(home.now());
  co_return outcome;
}

// Section 6.3. The link is null if the login failed; what there was to say has then been sent.
Task<LoginService::Placement> LoginService::log_in(Connection& connection, Portal* portal) {
  make_room_for_login();
  Executor& home = connection.home();
  Attempt attempt{.connection = &connection};
  attempts_.push_back(&attempt);
  attempt.timer.owner = &attempt;
  attempt.timer.deadline = home.now() + registry_.limits.login_timeout;
  attempt.timer.fire = [](Timer& timer) {
    auto& late = *static_cast<Attempt*>(timer.owner);
    late.ended = "the login took too long";
    late.connection->shutdown();
  };
  home.arm(attempt.timer);

  Policy policy(registry_, *portal, connection.local(), connection.peer());
  const auto first_stat_sn = static_cast<std::uint32_t>(home.random().next());
  TargetLogin login(policy, target_challenges(), openssl_random(), first_stat_sn);
  Placement placement;
  Error error = Error::kNone;
  for (;;) {
    IncomingPdu pdu;
    error = co_await connection.receive(pdu);
    if (error != Error::kNone) break;
    attempt.begun = true;
    if (connection.states().state() == ConnectionState::kS3XptUp) {
      connection.states().transition(ConnectionState::kS4InLogin);  // T4
    }
    std::optional<LoginOutcome> outcome;
    if (login.expects_response()) {
      attempt.waits = true;
      outcome = co_await check_response(connection, login, std::move(pdu));
      attempt.waits = false;
    } else {
      outcome = take_request(login, pdu);
    }
    co_await connection.wait_by_rule(policy.delay());
    if (!outcome || connection.closing()) {
      error = Error::kClosed;
      break;
    }
    attempt.proven = !login.chap_user().empty();
    if (outcome == LoginOutcome::kPlace) {
      attempt.placing = true;
      home.disarm(attempt.timer);
      placement = co_await place(connection, login, policy);
      break;
    }
    send_response(connection, login);
    if (outcome == LoginOutcome::kFail) break;
    // One request, one answer: who sends more and reads nothing does not fill memory.
    co_await connection.drain();
  }
  co_await connection.drain();
  home.disarm(attempt.timer);
  std::erase(attempts_, &attempt);
  policy.end();
  const bool entered = placement.session != nullptr && placement.status == LoginStatus::kSuccess;
  if (entered) {
    if (!placement.session->is_discovery()) placement.portal = portal;
    const bool in = co_await enter(connection, login, placement);
    static_cast<void>(in);
    co_return placement;
  }
  const bool redirected = status_class(login.response().status) == 1;
  ++(redirected ? registry_.counters.logins_redirected : registry_.counters.logins_failed);
  tell_failure(attempt, login, error);
  connection.states().transition(ConnectionState::kS1Free);  // T6, T7
  co_return placement;
}

void LoginService::tell_failure(const Attempt& attempt, TargetLogin& login, Error error) {
  const Endpoint from = attempt.connection->peer();
  const std::string peer = from.to_string();
  const LoginIdentity& identity = login.identity();
  const std::string who =
      identity.initiator_name.empty()
          ? peer
          : fmt::format("{} at {} to {}", identity.initiator_name, peer,
                        identity.target_name.empty() ? "discovery" : identity.target_name);
  if (attempt.ended != nullptr) {
    return registry_.events.warn(from, fmt::format("login of {} dropped: {}", who, attempt.ended));
  }
  if (error != Error::kNone) {
    // Who connects and goes without a word looks whether somebody listens.
    if (!attempt.begun && error == Error::kClosed) return;
    return registry_.events.warn(from,
                                 fmt::format("login of {} broke off: {}", who, describe(error)));
  }
  const LoginStatus status = login.response().status;
  if (status_class(status) == 1) {
    const std::string_view text = login.response_text().c_str();
    return registry_.events.info(
        from, fmt::format("login of {} redirected to {}", who, text.substr(text.find('=') + 1)));
  }
  const std::string_view reason = name_of(status);
  // The initiator does not hear it.
  const bool unknown = status == LoginStatus::kAuthorizationFailure &&
                       !identity.target_name.empty() &&
                       registry_.find(identity.target_name) == nullptr;
  const std::string more = unknown ? "there is no such target" : login.diagnosis();
  const bool adds = !more.empty() && more.find(reason) == std::string::npos;
  registry_.events.warn(from, fmt::format("login of {} refused: {}{}{}", who, reason,
                                          adds ? ": " : "", adds ? more : std::string()));
}

// After a login that had a place: how it ended, where that is not the initiator's own doing.
void LoginService::tell_end(const Connection& connection, const Placement& placement) {
  if (placement.session == nullptr) return;
  const std::string who = who_and_where(placement.session->options(), connection.peer());
  if (placement.link == nullptr) {
    if (placement.status != LoginStatus::kSuccess) return;  // Told as a failed login.
    return registry_.events.warn(
        connection.peer(), fmt::format("login of {} did not come to its end: {}", who,
                                       placement.diagnosis.empty() ? "no memory for the connection"
                                                                   : placement.diagnosis));
  }
  if (connection.given_up() != nullptr) {
    registry_.events.warn(connection.peer(),
                          fmt::format("connection of {} dropped: {}", who, connection.given_up()));
  }
}

LoginOutcome LoginService::take_request(TargetLogin& login, const IncomingPdu& pdu) {
  if (pdu.opcode() != Opcode::kLoginRequest) {
    return login.fail(LoginStatus::kInvalidDuringLogin, initiator_task_tag(pdu.bhs),
                      "a PDU other than a Login Request came before the login was complete");
  }
  if (pdu.data_dropped) {
    return login.fail(LoginStatus::kOutOfResources, initiator_task_tag(pdu.bhs),
                      "no memory for the request's text");
  }
  std::vector<std::byte> data(pdu.data.byte_count());
  pdu.data.copy_to(data);
  return login.receive(parse_login_request(pdu.bhs), data);
}

void LoginService::send_response(Connection& connection, TargetLogin& login) {
  Bhs bhs;
  LoginResponse& response = login.response();
  connection.set_next_stat_sn(response.numbers.stat_sn);
  write_login_response(response, bhs);
  connection.send_bytes(bhs, std::as_bytes(std::span(login.response_text())), StatSnUse::kConsume);
}

// Placement ----------------------------------------------------------------------------------

Task<LoginService::Placement> LoginService::place(Connection& connection, TargetLogin& login,
                                                  Policy& policy) {
  Placement placement;
  const LoginIdentity& identity = login.identity();
  const Refused stale = policy.judge_again(identity);
  if (stale.status != LoginStatus::kSuccess) {
    placement.status = stale.status;
    placement.diagnosis = stale.why;
  } else if (identity.tsih == 0) {
    placement = co_await place_new(login, policy);
  } else {
    const auto found = registry_.sessions.find(identity.tsih);
    // Since it was admitted, the session may have ended, and another one have its TSIH.
    const bool same =
        found != registry_.sessions.end() && found->second->is_discovery() == identity.discovery &&
        is_same_nexus(*found->second, identity, policy.portal_group_tag(), policy.portal());
    if (!same) {
      placement.status = LoginStatus::kSessionDoesNotExist;
      placement.diagnosis = "the session has ended";
    } else if (is_foreign(*found->second, login.chap_user())) {
      placement.status = LoginStatus::kAuthorizationFailure;
      placement.diagnosis = kForeignSession;
    } else {
      placement = co_await place_in(found->second, identity.cid);
    }
  }
  if (placement.status != LoginStatus::kSuccess) {
    login.refuse(placement.status, placement.diagnosis);
    send_response(connection, login);
  }
  co_return placement;
}

Task<LoginService::Placement> LoginService::place_new(TargetLogin& login, Policy& policy) {
  const LoginIdentity& identity = login.identity();
  RegisteredTarget* const target =
      identity.discovery ? nullptr : registry_.find(identity.target_name);
  TargetFence* const fence = target != nullptr ? target->options.fence : nullptr;
  if (fence == nullptr) co_return co_await begin_session(login, policy, {});
  // A newcomer that is refused anyhow does not wait for those before it.
  TargetFence::Verdict verdict = fence->judge(claim_of(login));
  if (verdict.status != LoginStatus::kSuccess) {
    co_return turned_away(fence, login, policy, {verdict.status, std::move(verdict.why)});
  }
  co_await fencing_.lock();
  Placement placement = co_await place_behind(fence, login, policy);
  fencing_.unlock();
  co_return placement;
}

std::string LoginService::claim_of(const TargetLogin& login) {
  const auto& said = login.parameters().private_keys;
  const auto claim = said.find(std::string(kLeadKey));
  return claim == said.end() ? std::string() : claim->second;
}

LoginService::Placement LoginService::turned_away(TargetFence* fence, const TargetLogin& login,
                                                  const Policy& policy, Refused refused) {
  fence->refused(
      fmt::format("{} at {}", login.identity().initiator_name, policy.peer().to_string()),
      refused.why);
  Placement placement;
  placement.status = refused.status;
  placement.diagnosis = std::move(refused.why);
  return placement;
}

Task<LoginService::Placement> LoginService::place_behind(TargetFence* fence, TargetLogin& login,
                                                         Policy& policy) {
  std::string owner;
  Refused refused = co_await pass(fence, claim_of(login), login.identity().target_name, &owner);
  if (refused.status != LoginStatus::kSuccess) {
    co_return turned_away(fence, login, policy, std::move(refused));
  }
  co_return co_await begin_session(login, policy, std::move(owner));
}

// The order counts: who is refused has changed nothing; and what an older session had in flight is
// over before the newcomer is believed.
Task<LoginService::Refused> LoginService::pass(TargetFence* fence, std::string claim,
                                               std::string target, std::string* owner) {
  TargetFence::Verdict verdict = fence->judge(claim);
  if (verdict.status != LoginStatus::kSuccess) co_return Refused{verdict.status, verdict.why};
  for (;;) {
    const auto there = std::ranges::find_if(registry_.sessions, [&](const auto& each) {
      return same_name(each.second->options().target_name, target);
    });
    if (there == registry_.sessions.end()) break;
    const std::shared_ptr<Session> session = there->second;
    const SessionOptions& options = session->options();
    if (options.owner != verdict.owner) {
      co_return Refused{LoginStatus::kServiceUnavailable,
                        fmt::format("the group has a lead already: {} at {}",
                                    options.initiator_name, options.peer)};
    }
    ++registry_.counters.sessions_reinstated;
    co_await end_session(session, false);
  }
  verdict = co_await fence->take(std::move(claim));
  *owner = verdict.owner;
  co_return Refused{verdict.status, verdict.why};
}

Task<LoginService::Placement> LoginService::begin_session(TargetLogin& login, Policy& policy,
                                                          std::string owner) {
  Placement placement;
  const LoginIdentity& identity = login.identity();
  // Session reinstatement (section 6.3.5): the old session's commands are over before the new one
  // runs its first.
  for (;;) {
    const auto same = std::ranges::find_if(registry_.sessions, [&](const auto& each) {
      return is_same_nexus(*each.second, identity, policy.portal_group_tag(), policy.portal());
    });
    if (same == registry_.sessions.end()) break;
    const std::shared_ptr<Session> old = same->second;
    if (is_foreign(*old, login.chap_user())) {
      placement.status = LoginStatus::kAuthorizationFailure;
      placement.diagnosis = kForeignSession;
      co_return placement;
    }
    ++registry_.counters.sessions_reinstated;
    co_await end_session(old, false);
  }
  RegisteredTarget* const target =
      identity.target_name.empty() ? nullptr : registry_.find(identity.target_name);
  Refused refused = check_new(login, target);
  // Again: what it stands for may have been waited for.
  if (refused.status == LoginStatus::kSuccess) refused = policy.judge_again(identity);
  if (refused.status != LoginStatus::kSuccess) {
    placement.status = refused.status;
    placement.diagnosis = refused.why;
    co_return placement;
  }
  SessionOptions options{.tsih = allot_tsih(),
                         .isid = identity.isid,
                         .initiator_name = identity.initiator_name,
                         .initiator_alias = identity.initiator_alias,
                         .chap_user = login.chap_user(),
                         .target_name = identity.discovery ? "" : policy.target_name(),
                         .named_target = identity.target_name,
                         .portal = policy.portal(),
                         .peer = policy.peer().to_string(),
                         .owner = std::move(owner),
                         .portal_group_tag = policy.portal_group_tag(),
                         .parameters = login.parameters().session,
                         .preferences = policy.preferences(),
                         .first_cmd_sn = identity.cmd_sn,
                         .first_transfer_tag = policy.first_transfer_tag()};
  options.interferences = registry_.interferences;
  Executor* home = &Executor::current();
  if (!identity.discovery) {
    options.device = target->options.device;
    options.queue_depth = target->options.queue_depth;
    options.fence = target->options.fence;
    options.fence_home = &Executor::current();
    options.pace = target->options.pace;
    home = &options.device->preferred_home();
  }
  placement.session = std::make_shared<Session>(host_, *home, std::move(options));
  registry_.sessions.emplace(placement.session->options().tsih, placement.session);
  co_await invoke_on(*home, Session::start(placement.session));
  co_return placement;
}

LoginService::Refused LoginService::check_new(const TargetLogin& login,
                                              const RegisteredTarget* target) const {
  const LoginIdentity& identity = login.identity();
  if (registry_.shutting_down) return {LoginStatus::kServiceUnavailable, "shutting down"};
  if (registry_.sessions.size() >= kMostSessions) {
    return {LoginStatus::kOutOfResources, "too many sessions"};
  }
  if (identity.discovery) return {};
  if (target == nullptr || target->removing) {
    return {LoginStatus::kTargetRemoved, "the target has been removed"};
  }
  std::uint32_t sessions = 0;
  for (const auto& [tsih, session] : registry_.sessions) {
    const SessionOptions& options = session->options();
    if (!same_name(options.target_name, identity.target_name)) continue;
    ++sessions;
    const bool other = !same_name(options.initiator_name, identity.initiator_name) ||
                       is_foreign(*session, login.chap_user());
    if (target->options.exclusive && other) {
      return {LoginStatus::kServiceUnavailable, "another initiator has the target for itself"};
    }
  }
  if (sessions >= target->options.maximum_sessions) {
    return {LoginStatus::kOutOfResources, "the target has as many sessions as it may have"};
  }
  return {};
}

// Section 7.1.4.3: a connection of the same CID is closed first, its tasks are over.
Task<LoginService::Placement> LoginService::place_in(std::shared_ptr<Session> session,
                                                     std::uint16_t cid) {
  Placement placement;
  const bool open = co_await invoke_on(session->home(), session->make_place_for(cid));
  if (!open) {
    placement.status = LoginStatus::kTooManyConnections;
    placement.diagnosis = "the session has as many connections as it may have";
    co_return placement;
  }
  placement.session = std::move(session);
  co_return placement;
}

// Where its session lives, so that nothing has to cross, unless another executor has fewer
// connections to serve: many sessions with one volume use all of them, and so does one session of
// many connections.
Executor& LoginService::executor_for(const Session& session) const {
  const std::vector<std::uint32_t>& counts = registry_.connections_on;
  Executor& home = session.home();
  if (session.is_discovery()) return home;
  const auto least = std::ranges::min_element(counts);
  if (counts[home.index()] == *least) return home;
  return *home.peers()[static_cast<std::size_t>(least - counts.begin())];
}

// Takes the connection to its home, answers, and makes it part of the session.
Task<bool> LoginService::enter(Connection& connection, TargetLogin& login, Placement& placement) {
  Session& session = *placement.session;
  const bool leading = login.identity().tsih == 0;
  placement.executor = &executor_for(session);
  ++registry_.connections_on[placement.executor->index()];
  if (placement.portal != nullptr) ++placement.portal->connections;
  tell_of_session(session.options(),
                  fmt::format("session {}: {}, {}", session.options().tsih,
                              who_and_where(session.options(), connection.peer()),
                              leading ? "begins" : "one more connection"));
  ++registry_.counters.logins_succeeded;  // While still at home; a late refusal is counted too.
  const bool moved = co_await connection.move_to(*placement.executor);
  if (!moved) {
    if (!leading) co_await invoke_on(session.home(), session.expected_did_not_come());
    connection.states().transition(ConnectionState::kS1Free);  // T7
    co_return false;
  }
  const std::uint32_t portal = placement.portal != nullptr ? placement.portal->index : 0;
  const JoinedConnection placed = co_await invoke_on(
      session.home(), session.join(connection, portal, login.identity().cid, login.parameters()));
  if (placed.link == nullptr) {
    placement.diagnosis = "the session has ended or is full";
    login.refuse(LoginStatus::kTooManyConnections, placement.diagnosis);
    send_response(connection, login);
    co_await connection.drain();
    connection.states().transition(ConnectionState::kS1Free);  // T7
    co_return false;
  }
  login.accept(session.options().tsih);
  login.response().numbers.exp_cmd_sn = placed.numbers.exp_cmd_sn;
  login.response().numbers.max_cmd_sn = placed.numbers.max_cmd_sn;
  send_response(connection, login);
  connection.set_parameters(login.parameters());
  connection.states().transition(ConnectionState::kS5LoggedIn);  // T5
  placement.link = placed.link;
  co_return true;
}

std::uint16_t LoginService::allot_tsih() {
  for (;;) {
    const std::uint16_t tsih = registry_.next_tsih++;
    if (tsih != 0 && !registry_.sessions.contains(tsih)) return tsih;
  }
}

}  // namespace sandbay::iscsi
