// Fault rules as management sees them. They wait for no other change: one that hangs may do so for
// a rule, until that is cleared.
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "fault/path_rules.h"
#include "group/document.h"
#include "group/running_group.h"
#include "group/unit_faults.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

// What is done with one takes up to 10 us.
constexpr std::size_t kRulesPerTurn = 256;

Refusal no_such_fault(const std::string& id) {
  return {.code = Refusal::Code::kNotFound,
          .message = fmt::format("there is no fault rule \"{}\"; see the list of faults", id)};
}

std::unexpected<Refusal> refuse_rule(Refusal::Code code, std::size_t index,
                                     const std::string& wrong) {
  return refuse(code, fmt::format("rule {}: {}", index + 1, wrong));
}

}  // namespace

Answer<fault::FaultEngine*> RunningGroup::engine() const {
  fault::FaultEngine* const engine = members_->first().faults();
  if (engine != nullptr) return engine;
  return refuse(Refusal::Code::kConflict,
                fmt::format("faults are not enabled; write enabled = true in a section [faults] of "
                            "{} and restart the daemon",
                            configuration_.file));
}

// The places between hosts and volumes as they are now.
Task<std::set<std::string>> RunningGroup::path_places() {
  using Kind = fault::Place::Kind;
  std::set<std::string> places;
  const auto add = [&places](Kind kind, std::string name) {
    places.insert(fault::place_text({.kind = kind, .name = std::move(name)}));
  };
  for (const auto& [name, volume] : volumes_) add(Kind::kLun, name);
  for (const auto& [uuid, snapshot] : snapshots_) {
    if (snapshot.volume != nullptr) add(Kind::kLun, snapshot.volume->name());
  }
  for (const PortalInfo& portal : portals_) add(Kind::kLink, portal.listen);
  for (const RemoteMember* const member : members_->remote()) {
    add(Kind::kLink, member->target().endpoint().to_string());
  }
  for (const iscsi::SessionInfo& session : co_await server_->sessions()) {
    add(Kind::kSession, session.initiator_name);
    for (const iscsi::ConnectionInfo& connection : session.connections) {
      add(Kind::kConnection, fmt::format("{}.{}", session.tsih, connection.cid));
    }
  }
  co_return places;
}

// Initiators may be named before they log in.
std::optional<std::string> RunningGroup::place_error(const fault::Rule& rule,
                                                     const std::set<std::string>& places) {
  using Kind = fault::Place::Kind;
  const std::string at = place_text(rule.at);
  if (rule.at.name.empty() || rule.at.kind == Kind::kSession || places.contains(at)) {
    return std::nullopt;
  }
  // Names of one kind are together.
  const std::string kind = fault::place_text({.kind = rule.at.kind, .name = {}}) + ":";
  const auto first = places.lower_bound(kind);
  const auto last = std::find_if(
      first, places.end(), [&](const std::string& place) { return !place.starts_with(kind); });
  const bool is_pattern = rule.at.name.find_first_of("*?") != std::string::npos;
  const auto fitting = [&](const std::string& place) { return fault::fits(at, place); };
  if (is_pattern && std::any_of(first, last, fitting)) return std::nullopt;
  const std::string_view near = nearest(at, {first, last});
  const std::string_view what = rule.at.kind == Kind::kLun          ? "volume"
                                : rule.at.kind == Kind::kConnection ? "connection"
                                                                    : "portal";
  return fmt::format("at={}: unknown {}; {}", at, what,
                     near.empty() ? "sandbay fault places lists what is here"
                                  : fmt::format("did you mean at={}?", near));
}

Task<FaultsInfo> RunningGroup::faults_now() {
  const auto engine = this->engine();
  if (!engine) co_return FaultsInfo{};
  FaultsInfo info{.enabled = true, .seed = (*engine)->seed(), .rules = {}};
  std::uint64_t after = 0;
  while (true) {
    std::vector<fault::RuleView> views = (*engine)->list(&after, kRulesPerTurn);
    std::ranges::move(views, std::back_inserter(info.rules));
    if (views.size() < kRulesPerTurn) break;
    co_await Executor::current().yield();
  }
  info.firings = (*engine)->journal().total();
  co_return info;
}

Task<FaultsInfo> RunningGroup::list_faults() { return looking(faults_now(), {}); }

Task<Answer<std::vector<AddedFault>>> RunningGroup::add_faults_now(std::vector<std::string> texts) {
  const auto engine = this->engine();
  if (!engine) co_return std::unexpected(engine.error());
  std::vector<AddedFault> all(texts.size());
  std::map<std::string, std::size_t> first;  // The first wanted rule of each id.
  std::vector<fault::Rule> wanted;
  std::vector<std::size_t> indices;  // Positions of the wanted rules in the set.
  std::optional<std::set<std::string>> places;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::size_t turn = places && places->size() > kRulesPerTurn ? 8 : kRulesPerTurn;
    if (i % turn == turn - 1) co_await Executor::current().yield();
    auto rule = fault::parse_rule(texts[i]);
    if (!rule) co_return refuse_rule(Refusal::Code::kInvalid, i, rule.error());
    auto error = event_error(*rule);
    if (!error) error = answer_error(*rule);
    if (!error && fault::of_path(rule->at)) {
      if (!places) places = co_await path_places();
      error = place_error(*rule, *places);
    }
    if (error) co_return refuse_rule(Refusal::Code::kInvalid, i, *error);
    auto there = rule->id.empty() ? std::nullopt : (*engine)->view(rule->id);
    if (!there && !rule->id.empty()) {
      const auto [at, is_new] = first.emplace(rule->id, wanted.size());
      if (!is_new) {
        there = fault::RuleView{.id = rule->id, .text = print_rule(wanted[at->second])};
      }
    }
    if (!there) {
      wanted.push_back(std::move(*rule));
      indices.push_back(i);
      continue;
    }
    const std::string text = fault::print_rule(*rule);
    if (there->text != text) {
      co_return refuse_rule(Refusal::Code::kConflict, i,
                            fmt::format("fault rule \"{}\" exists as \"{}\", not as \"{}\"; clear "
                                        "it first, or choose another id",
                                        there->id, there->text, text));
    }
    all[i] = {.rule = std::move(*there), .created = false};
  }
  const auto ids = (*engine)->add_all(std::move(wanted));
  if (!ids) {
    co_return refuse_rule(Refusal::Code::kInvalid, indices[ids.error().index], ids.error().text);
  }
  for (std::size_t i = 0; i < indices.size(); ++i) all[indices[i]].rule.id = (*ids)[i];
  co_await (*engine)->settle();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i % kRulesPerTurn == kRulesPerTurn - 1) co_await Executor::current().yield();
    auto view = (*engine)->view(all[i].rule.id);
    if (!view) {
      co_return refuse_rule(
          Refusal::Code::kConflict, i,
          fmt::format("fault rule \"{}\" was cleared by somebody else meanwhile", all[i].rule.id));
    }
    all[i].rule = std::move(*view);
  }
  co_return all;
}

Task<Answer<std::vector<AddedFault>>> RunningGroup::add_faults(std::vector<std::string> rules) {
  return looking(add_faults_now(std::move(rules)));
}

Task<Answer<fault::RuleView>> RunningGroup::fault_now(std::string id) {
  const auto engine = this->engine();
  if (!engine) co_return std::unexpected(engine.error());
  auto view = (*engine)->view(id);
  if (!view) co_return std::unexpected(no_such_fault(id));
  co_return std::move(*view);
}

Task<Answer<fault::RuleView>> RunningGroup::show_fault(std::string id) {
  return looking(fault_now(std::move(id)));
}

Task<Answer<fault::RuleView>> RunningGroup::enable_fault_now(std::string id, bool enabled) {
  if (const auto engine = this->engine(); engine) {
    (void)(*engine)->enable(id, enabled);
    co_await (*engine)->settle();
  }
  co_return co_await fault_now(std::move(id));
}

Task<Answer<fault::RuleView>> RunningGroup::enable_fault(std::string id, bool enabled) {
  return looking(enable_fault_now(std::move(id), enabled));
}

Task<Answer<ReleasedFault>> RunningGroup::release_fault_now(std::string id) {
  const auto engine = this->engine();
  if (!engine) co_return std::unexpected(engine.error());
  const auto view = (*engine)->view(id);
  if (!view) co_return std::unexpected(no_such_fault(id));
  const auto rule = fault::parse_rule(view->text);
  if (!rule || rule->fault != fault::Fault::kHold) {
    co_return refuse(Refusal::Code::kConflict,
                     fmt::format("fault rule \"{}\" has not do=hold, so nothing can be released; "
                                 "clear or disable it to end what it does",
                                 id));
  }
  const std::ptrdiff_t released = (*engine)->release(id);
  co_return ReleasedFault{.rule = known((*engine)->view(id)),
                          .operations = static_cast<std::uint64_t>(released)};
}

Task<Answer<ReleasedFault>> RunningGroup::release_fault(std::string id) {
  return looking(release_fault_now(std::move(id)));
}

Task<Answer<DriveInfo>> RunningGroup::heal_drive_now(std::string drive) {
  const auto engine = this->engine();
  if (!engine) co_return std::unexpected(engine.error());
  auto healed = (*engine)->heal(drive);
  if (!healed) co_return std::unexpected(no_such_drive(drive));
  co_return co_await drive_now(std::move(*healed));
}

Task<Answer<DriveInfo>> RunningGroup::heal_drive(std::string drive) {
  return looking(heal_drive_now(std::move(drive)));
}

Task<Answer<void>> RunningGroup::clear_fault_now(std::string id) {
  const auto engine = this->engine();
  if (!engine) co_return std::unexpected(engine.error());
  if (id.empty()) {
    (*engine)->clear_all();
  } else if (!(*engine)->clear(id)) {
    co_return std::unexpected(no_such_fault(id));
  }
  co_await (*engine)->settle();
  co_return Answer<void>{};
}

Task<Answer<void>> RunningGroup::clear_fault(std::string id) {
  return looking(clear_fault_now(std::move(id)));
}

Task<Answer<std::vector<FiringInfo>>> RunningGroup::firings_now(std::uint64_t since) {
  const auto engine = this->engine();
  if (!engine) co_return std::unexpected(engine.error());
  const Executor& home = Executor::current();
  std::vector<FiringInfo> list;
  for (const fault::Firing& firing : (*engine)->journal().entries()) {
    if (firing.number <= since) continue;
    const auto age = std::chrono::duration_cast<WallTime::duration>(home.now() - firing.time);
    list.push_back({.firing = firing, .time = home.wall_time() - age});
  }
  co_return list;
}

Task<Answer<std::vector<FiringInfo>>> RunningGroup::list_firings(std::uint64_t since) {
  return looking(firings_now(since));
}

Task<Answer<fault::Replay>> RunningGroup::replay_now() {
  const auto engine = this->engine();
  if (!engine) co_return std::unexpected(engine.error());
  co_return (*engine)->replay();
}

Task<Answer<fault::Replay>> RunningGroup::replay_faults() { return looking(replay_now()); }

Task<Answer<std::vector<std::string>>> RunningGroup::fault_places_now() {
  const auto engine = this->engine();
  if (!engine) co_return std::unexpected(engine.error());
  std::vector<std::string> texts = (*engine)->places();
  for (const std::string& place : co_await path_places()) texts.push_back(place);
  co_return texts;
}

Task<Answer<std::vector<std::string>>> RunningGroup::list_fault_places() {
  return looking(fault_places_now());
}

}  // namespace sandbay::group
