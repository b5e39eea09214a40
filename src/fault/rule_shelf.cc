// Rules in and out of the maps of a shelf.
#include "fault/rule_shelf.h"

#include <utility>

#include "fault/active_rule.h"

namespace sandbay::fault {

namespace {

// Events that a fault waits for without event=: any that begins so.
std::string_view own_event(const Rule& rule) {
  if (!rule.event.empty()) return rule.event;
  if (rule.fault == Fault::kPowerCutAgain) return "power.cut";
  return rule.fault == Fault::kRebalanceKill ? "rebalance." : std::string_view();
}

}  // namespace

void RuleShelf::add(Pointer added) {
  const Rule& rule = added->rule;
  const std::uint64_t number = added->number;
  by_id_.emplace(rule.id, added);
  if (!own_event(rule).empty()) by_event_[std::string(own_event(rule))].emplace(number, added);
  if (!rule.then.empty()) ++followers_[rule.then];
  if (!rule.state.empty()) with_states_.emplace(number, added);
  if (rule.at.kind == Place::Kind::kMeta && added->operational) of_values_.emplace(number, added);
  rules_.emplace(number, std::move(added));
}

void RuleShelf::remove(const ActiveRule& removed) {
  const Rule& rule = removed.rule;
  const auto event = by_event_.find(own_event(rule));
  if (event != by_event_.end()) {
    event->second.erase(removed.number);
    if (event->second.empty()) by_event_.erase(event);
  }
  const auto follower = followers_.find(rule.then);
  if (follower != followers_.end() && --follower->second == 0) followers_.erase(follower);
  with_states_.erase(removed.number);
  of_values_.erase(removed.number);
  by_id_.erase(rule.id);
  rules_.erase(removed.number);  // Perhaps the last that has it.
}

RuleShelf::Pointer RuleShelf::find(std::string_view id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

std::vector<RuleShelf::Pointer> RuleShelf::waiting_for(std::string_view event) const {
  Numbered waiting;
  const auto add = [&](std::string_view name) {
    const auto found = by_event_.find(name);
    if (found != by_event_.end()) waiting.insert(found->second.begin(), found->second.end());
  };
  add(event);
  if (event.starts_with("rebalance.")) add("rebalance.");
  return in_order(waiting);
}

std::vector<RuleShelf::Pointer> RuleShelf::in_order(const Numbered& rules) {
  std::vector<Pointer> list;
  list.reserve(rules.size());
  for (const auto& [number, rule] : rules) list.push_back(rule);
  return list;
}

}  // namespace sandbay::fault
