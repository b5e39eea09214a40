// Logging in for ever, and looking after what is there.
#include "iscsi/remote_target.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "iscsi/lead_claim.h"
#include "iscsi/remote_questions.h"
#include "iscsi/text.h"

namespace sandbay::iscsi {
namespace {

// A connection that is silent for so long is asked whether it is there, and has so long to answer.
constexpr Duration kPingInterval = std::chrono::seconds(1);
constexpr Duration kPingTimeout = std::chrono::seconds(2);
constexpr Duration kLoginTimeout = std::chrono::seconds(4);
constexpr Duration kFirstPause = std::chrono::milliseconds(100);
constexpr Duration kLongestPause = std::chrono::seconds(2);

// Half a sentence.
std::string words_of(const LoginFailure& failure) {
  const int status = failure.status_class << 8 | failure.status_detail;
  if (status == static_cast<int>(LoginStatus::kAuthorizationFailure)) {
    return "it refuses this lead: either it does not let this initiator in, or it has seen a newer "
           "state of this group than this one";
  }
  if (status == static_cast<int>(LoginStatus::kServiceUnavailable)) {
    return "it has a lead that is connected to it, or it is about to end";
  }
  return failure.message.empty() ? std::string(describe(failure.error)) : failure.message;
}

// What is asked while the connection goes may find no answer, and that says nothing of who was
// asked. Until `patience` is over the session may come back as if nothing had been.
bool was_cut(const InitiatorSession& session, std::uint64_t losses_before) {
  return !session.up() || session.counters().connections_lost != losses_before;
}

}  // namespace

RemoteTarget::RemoteTarget(RemoteTargetOptions options)
    : home_(Executor::current()), options_(std::move(options)) {}

RemoteTarget::~RemoteTarget() { assert(link_ == nullptr && gate_.count() == 0); }

void RemoteTarget::start() {
  const bool entered = gate_.enter();
  assert(entered);
  spawn(work());
}

Task<void> RemoteTarget::stop() {
  stopping_ = true;
  wake_.notify_all();
  const std::shared_ptr<RemoteLink> link = link_;
  if (link != nullptr) co_await link->session->close();
  co_await gate_.close();
  co_await drop("it is not used any more");
}

Task<void> RemoteTarget::work() {
  const GateHold hold(gate_);
  while (!stopping_) {
    if (link_ == nullptr) {
      co_await connect();
    } else {
      co_await look();
    }
    if (stopping_) break;
    const Duration pause = link_ == nullptr ? pause_ : options_.look_interval;
    if (!relearn_ || !up()) co_await wake_.wait_until(home_.now() + pause);
  }
}

void RemoteTarget::tell(bool warning, std::string text) {
  if (on_event_) on_event_(warning, std::move(text));
}

void RemoteTarget::changed() {
  if (on_change_) on_change_();
}

std::uint64_t RemoteTarget::run() {
  if (link_ == nullptr) return run_;
  std::string text = link_->session->private_answer(std::string(kLeadKey));
  // One that does not say may have been started anew whenever it was logged in to.
  if (text.empty()) {
    text = fmt::format("{} {}", logins_, link_->session->counters().sessions_recovered);
  }
  if (text != run_text_) {
    run_text_ = std::move(text);
    ++run_;
  }
  return run_;
}

// The session -------------------------------------------------------------------------------------

InitiatorOptions RemoteTarget::session_options() const {
  InitiatorOptions options = options_.session;
  options.login_timeout = kLoginTimeout;
  options.nop_out_interval = kPingInterval;
  options.nop_out_timeout = kPingTimeout;
  options.recovery_timeout = options_.patience;
  return options;
}

Task<void> RemoteTarget::connect() {
  pause_ = std::clamp(pause_ * 2, kFirstPause, kLongestPause);
  InitiatorOptions options = session_options();
  if (options_.claim != nullptr) {
    co_await claiming_.lock();
    const auto claim = co_await options_.claim->propose();
    claiming_.unlock();
    if (!claim.has_value()) {
      reason_ = claim.error();
      co_return;
    }
    options.keys[std::string(kLeadKey)] = *claim;
  }
  auto login = co_await InitiatorSession::login(std::move(options));
  std::string wrong = login.has_value() ? std::string() : words_of(login.error());
  std::shared_ptr<RemoteLink> link;
  if (login.has_value()) link = std::make_shared<RemoteLink>(std::move(*login));
  if (link != nullptr && options_.claim != nullptr) wrong = co_await settle_claim(link);
  if (wrong.empty()) wrong = co_await learn_units(link);
  if (!wrong.empty()) {
    if (link != nullptr) co_await link->session->close();
    reason_ = std::move(wrong);
    if (reason_ != told_) tell(true, fmt::format("{}: {}", name(), reason_));
    told_ = reason_;
    co_return;
  }
  ++logins_;
  pause_ = Duration{};
  link_ = std::move(link);
  reason_.clear();
  told_.clear();
  tell(false, fmt::format("{}: connected to {} at {}", name(), options_.session.target_name,
                          endpoint().to_string()));
  (void)run();
  changed();
}

// Of a session that has just begun; half a sentence if it is of no use.
Task<std::string> RemoteTarget::settle_claim(std::shared_ptr<RemoteLink> link) {
  const std::string key(kLeadKey);
  if (link->session->private_answer(key).empty()) {
    co_return "it is no member's target: it does not know what a lead is";
  }
  link->session->set_key(key, options_.claim->accepted());
  if (!options_.claim->unfinished()) co_return std::string();
  const Error error = co_await renew_on(link);
  if (error == Error::kNone) co_return std::string();
  co_return fmt::format("it was claimed, but not anew: {}", describe(error));
}

// Ends when nobody uses the session any more.
Task<void> RemoteTarget::drop(std::string reason) {
  reason_ = std::move(reason);
  const std::shared_ptr<RemoteLink> link = std::exchange(link_, nullptr);
  for (const auto& unit : units_) unit->set_ready(reason_);
  changed();
  if (link == nullptr) co_return;
  co_await link->session->close();
  co_await link->users.close();
}

// The claim is the session's from before it is sent: should the connection break, the next login
// says the same.
Task<Error> RemoteTarget::renew_claim() {
  const std::shared_ptr<RemoteLink> link = link_;
  if (link == nullptr || options_.claim == nullptr || !link->users.enter()) {
    co_return Error::kNotReady;
  }
  const GateHold hold(link->users);
  co_return co_await renew_on(link);
}

Task<Error> RemoteTarget::renew_on(std::shared_ptr<RemoteLink> link) {
  co_await claiming_.lock();
  const std::string key(kLeadKey);
  const auto claim = co_await options_.claim->propose();
  Error error = Error::kNotReady;
  if (claim.has_value()) {
    link->session->set_key(key, *claim);
    std::string request;
    append_pair(request, key, *claim);
    const Result<std::string> answer = co_await link->session->text(std::move(request));
    const auto pairs = parse_text(answer.value_or(std::string()));
    if (answer.has_value() && pairs.has_value()) {
      const auto said = std::ranges::find(*pairs, key, &KeyValue::key);
      if (said != pairs->end()) {
        error = is_reserved_answer(said->value) ? Error::kPermission : Error::kNone;
      }
    }
  }
  if (error == Error::kNone) link->session->set_key(key, options_.claim->accepted());
  claiming_.unlock();
  co_return error;
}

// The units ---------------------------------------------------------------------------------------

RemoteUnit* RemoteTarget::find(const RemoteUnitFacts& facts) const {
  const auto same = std::ranges::find_if(units_, [&](const auto& unit) {
    return unit->facts().naa == facts.naa && unit->facts().serial == facts.serial;
  });
  return same == units_.end() ? nullptr : same->get();
}

// Half a sentence if the session is of no use, or was not there to the end. Those that do not
// answer are away.
Task<std::string> RemoteTarget::learn_units(std::shared_ptr<RemoteLink> link) {
  relearn_ = false;
  InitiatorSession* const session = link->session.get();
  const auto luns = co_await ask_luns(session);
  if (!luns.has_value()) {
    co_return fmt::format("its logical units are not known: {}", describe(luns.error()));
  }
  std::vector<RemoteUnit*> seen;
  const std::uint64_t losses = session->counters().connections_lost;
  for (const std::uint32_t lun : *luns) {
    const auto facts = co_await ask_facts(session, lun);
    if (was_cut(*session, losses)) co_return "the connection was lost";
    if (!facts.has_value()) continue;
    RemoteUnit* unit = find(*facts);
    if (unit == nullptr) {
      unit = units_.emplace_back(std::make_unique<RemoteUnit>(*this, *facts)).get();
    } else if (facts->geometry.block_bytes != unit->geometry().block_bytes ||
               facts->geometry.block_count < unit->geometry().block_count) {
      unit->set_ready("it is smaller than it was");
      continue;
    }
    unit->learn(*facts);
    const Error error = co_await ask_ready(session, lun, nullptr);
    if (was_cut(*session, losses)) co_return "the connection was lost";
    unit->set_ready(error == Error::kNone ? std::string() : std::string(describe(error)));
    seen.push_back(unit);
  }
  for (const auto& unit : units_) {
    const bool there = std::ranges::find(seen, unit.get()) != seen.end();
    if (!there && unit->reason().empty()) unit->set_ready("the member does not show it");
  }
  co_return std::string();
}

// Whether each unit is there, and what it says of its caches. The answer is why the session is of
// no use any more, if it is not.
Task<std::string> RemoteTarget::look_at_units(std::shared_ptr<RemoteLink> link) {
  InitiatorSession* const session = link->session.get();
  if (session->dead()) co_return "the connection was lost";
  if (!session->up()) co_return std::string();
  const std::uint64_t losses = session->counters().connections_lost;
  bool attention = std::exchange(relearn_, false);
  for (std::size_t i = 0; i < units_.size() && !attention; ++i) {
    RemoteUnit& unit = *units_[i];
    // What was away is asked who it is first.
    if (!unit.reason().empty()) attention = true;
    const std::uint32_t lun = unit.facts().lun_number;
    Error error = co_await ask_ready(session, lun, &attention);
    RemoteUnitFacts facts = unit.facts();
    if (error == Error::kNone) error = co_await ask_caches(session, lun, &facts.geometry);
    if (was_cut(*session, losses)) break;
    if (error == Error::kNone) unit.learn(facts);
    const bool was_ready = unit.reason().empty();
    if (was_ready && error != Error::kNone) {
      unit.set_ready(std::string(describe(error)));
      changed();
    }
  }
  std::string wrong;
  const bool learns = attention && !was_cut(*session, losses);
  if (learns) wrong = co_await learn_units(link);
  if (learns) changed();
  if (session->dead()) co_return "the connection was lost";
  if (!was_cut(*session, losses)) co_return wrong;
  relearn_ = relearn_ || attention;
  co_return std::string();
}

Task<void> RemoteTarget::look() {
  const std::shared_ptr<RemoteLink> link = link_;
  const std::string wrong = co_await look_at_units(link);
  if (wrong.empty() && !link->session->dead()) co_return;
  tell(true, fmt::format("{}: lost: {}", name(), wrong.empty() ? "its session has ended" : wrong));
  co_await drop(wrong.empty() ? "its session has ended" : wrong);
}

}  // namespace sandbay::iscsi
