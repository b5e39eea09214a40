// The rule engine: rules in, and what is listed of them. When they fire: engine_firing.cc.
#include "fault/engine.h"

#include <algorithm>
#include <cassert>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "fault/active_rule.h"
#include "fault/fault_layer.h"
#include "fault/rule_values.h"
#include "fault/site.h"

namespace sandbay::fault {

namespace {

constexpr std::uint64_t kMostWatchedBytes = std::uint64_t{16} << 20;
// A request that adds them all again has room for it.
constexpr std::size_t kMostReplayBytes = std::size_t{512} << 10;

// Whether the rule sets the memory back to what it holds when both are known.
bool goes_back(const Rule& rule, std::string_view nvram) {
  return rule.fault == Fault::kNvramStale && (rule.at.name.empty() || rule.at.name == nvram);
}

// The first few names, for messages.
std::string few(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kMost) text += fmt::format(" and {} more", names.size() - kMost);
  return text.empty() ? "none" : text;
}

}  // namespace

FaultEngine::FaultEngine(Executor& home, FaultEngineOptions options)
    : home_(home),
      options_(std::move(options)),
      started_(home.now()),
      journal_(options_.journal_entries),
      published_(std::make_shared<const PathRules>()) {
  for (Executor* const executor : home.peers()) {
    posts_.push_back(std::make_shared<Post>(*executor, home_, *this, published_));
  }
}

FaultEngine::~FaultEngine() {
  assert(layers_.empty());
  drop_all();
  for (const auto& post : posts_) post->leave_engine();
}

// Rules in and out. ------------------------------------------------------------------------------

std::expected<std::string, std::string> FaultEngine::add(std::string_view text) {
  auto rule = parse_rule(text);
  if (!rule.has_value()) return std::unexpected(std::move(rule.error()));
  return add(std::move(*rule));
}

std::expected<std::string, std::string> FaultEngine::add(Rule rule) {
  auto ids = add_all(std::vector{std::move(rule)});
  if (!ids.has_value()) return std::unexpected(std::move(ids.error().text));
  return std::move(ids->front());
}

std::expected<void, std::string> FaultEngine::add_all(std::span<const std::string> texts) {
  const auto wrong = [](const WrongRule& rule) {
    return std::unexpected(fmt::format("rule {}: {}", rule.index + 1, rule.text));
  };
  std::vector<Rule> rules;
  for (const std::string& text : texts) {
    auto rule = parse_rule(text);
    if (!rule.has_value()) return wrong({rules.size(), rule.error()});
    rules.push_back(std::move(*rule));
  }
  const auto ids = add_all(std::move(rules));
  if (!ids.has_value()) return wrong(ids.error());
  return {};
}

std::expected<std::vector<std::string>, WrongRule> FaultEngine::add_all(std::vector<Rule> rules) {
  const std::size_t room = kMostRules - rules_.size();
  if (rules.size() > room) {
    return std::unexpected(WrongRule{
        room, fmt::format("up to {} rules are possible; clear others first", kMostRules)});
  }
  std::set<std::string> reserved;  // Not for rules without an id.
  for (const auto& [order, pinned] : cleared_) reserved.insert(pinned.rule.id);
  for (const Rule& rule : rules) reserved.insert(rule.id);
  std::vector<std::string> ids;
  std::vector<RulePointer> added;
  std::size_t number = free_from_;
  for (Rule& rule : rules) {
    std::string wrong = refusal(rule);
    if (!wrong.empty()) {
      for (const RulePointer& active : added) rules_.remove(*active);
      return std::unexpected(WrongRule{ids.size(), std::move(wrong)});
    }
    if (rule.id.empty()) rule.id = free_id(reserved, &number);
    added.push_back(insert(std::move(rule)));
    ids.push_back(added.back()->rule.id);
  }
  free_from_ = number;
  const auto at_path = [](const RulePointer& active) { return active->path != nullptr; };
  if (!std::ranges::all_of(added, at_path)) relink();
  for (const RulePointer& active : added) {
    for (const auto& [name, target] : nvrams_) {
      if (goes_back(active->rule, name)) target->remember_content();
    }
  }
  for (const RulePointer& active : added) start(active);
  if (std::ranges::any_of(added, at_path)) publish();
  return ids;
}

FaultEngine::RulePointer FaultEngine::insert(Rule rule) {
  const Random stream(options_.seed ^ hash_of(rule.id));
  auto active = std::make_shared<ActiveRule>(*this, std::move(rule), stream);
  // Before the first operation a rule counts from the start, whatever the time is by now.
  const bool late =
      std::ranges::any_of(layers_, [](const FaultLayer* layer) { return layer->operations() > 0; });
  const bool counts_late = late || (of_path(active->rule.at) && home_.now() > started_);
  active->added = counts_late ? home_.now() : started_;
  active->number = ++added_;
  active->timer.owner = active.get();
  active->timer.fire = &FaultEngine::timer_fired;
  if (of_path(active->rule.at)) {
    Rule at_sites = active->rule;
    at_sites.from = std::max(at_sites.from, active->added - started_);
    active->path = std::make_shared<PathRule>(std::move(at_sites), active->number,
                                              options_.seed ^ hash_of(active->rule.id), started_);
  }
  rules_.add(active);
  return active;
}

bool FaultEngine::clear(std::string_view id) {
  const RulePointer active = find(id);
  if (active == nullptr) return false;
  keep_for_replay(*active);
  drop(active);
  if (active->path != nullptr) {
    publish();
  } else {
    relink();
  }
  return true;
}

void FaultEngine::drop(const RulePointer& active) {
  end(*active);
  active->ended = true;
  free_from_ = 0;
  rules_.remove(*active);
  if (active->path != nullptr) {
    tell_sites(*active);
    active->path->gone.store(true, std::memory_order_relaxed);
    return;
  }
  for (FaultLayer* layer : layers_) layer->finish(*active, true);
}

void FaultEngine::drop_all() {
  while (!rules_.empty()) {
    const RulePointer last = rules_.all().rbegin()->second;
    keep_for_replay(*last);
    drop(last);
  }
  relink();
}

void FaultEngine::clear_all() {
  if (rules_.empty()) return;
  drop_all();
  publish();
}

bool FaultEngine::enable(std::string_view id, bool enabled) {
  const RulePointer active = find(id);
  if (active == nullptr) return false;
  if (active->rule.enabled == enabled) return true;
  if (!enabled) {
    keep_for_replay(*active);
    end(*active);
  } else if (active->seen > 0 || active->fired_times > 0 ||
             (active->path != nullptr && active->path->matched > 0)) {
    kept_all_ = false;
  } else {
    active->added = home_.now();
  }
  active->rule.enabled = enabled;
  if (active->path == nullptr) relink();
  if (enabled) start(active);
  if (active->path != nullptr) tell_sites(*active);
  return true;
}

std::ptrdiff_t FaultEngine::release(std::string_view id) {
  const RulePointer active = find(id);
  if (active == nullptr) return -1;
  std::size_t released = 0;
  for (FaultLayer* layer : layers_) released += layer->release_held(*active);
  if (released > 0) kept_all_ = false;
  return static_cast<std::ptrdiff_t>(released);
}

RuleView FaultEngine::view_of(const ActiveRule& active) const {
  RuleView view{.id = active.rule.id,
                .text = print_rule(active.rule),
                .enabled = active.rule.enabled,
                .counters = active.counters};
  if (active.path != nullptr) {
    view.counters.matched = active.path->matched.load(std::memory_order_relaxed);
    view.counters.fired = active.path->fired.load(std::memory_order_relaxed);
    view.counters.struck = active.path->struck.load(std::memory_order_relaxed);
    view.counters.spared = active.path->spared.load(std::memory_order_relaxed);
  } else {
    for (const FaultLayer* layer : layers_) view.held += layer->held_by(active);
  }
  view.active = view.held > 0 || active.active_until > home_.now() || active.enclosure_lasts ||
                active.member_lasts || !active.lasting_at.empty() || !active.low_batteries.empty();
  return view;
}

std::vector<RuleView> FaultEngine::list() const {
  std::uint64_t after = 0;
  return list(&after, rules_.size());
}

std::vector<RuleView> FaultEngine::list(std::uint64_t* after, std::size_t most) const {
  std::vector<RuleView> views;
  for (auto each = rules_.all().upper_bound(*after); each != rules_.all().end(); ++each) {
    if (views.size() == most) break;
    views.push_back(view_of(*each->second));
    *after = each->first;
  }
  return views;
}

std::optional<RuleView> FaultEngine::view(std::string_view id) const {
  const RulePointer active = find(id);
  return active == nullptr ? std::nullopt : std::optional(view_of(*active));
}

// The rule as it would fire again: from when it was added, and by number where chance decided.
FaultEngine::Pinned FaultEngine::pinned(const ActiveRule& active) const {
  Rule rule = active.rule;
  rule.from = std::max(rule.from, active.added - started_);
  if (rule.probability < 1) {
    rule.matches = active.drawn;
    rule.matches.resize(std::min(rule.matches.size(), kMostReplayed));
    rule.after = 0;
    rule.every = 1;
    rule.probability = 1;
    if (!active.drawn_at.empty()) rule.at.name = active.drawn_place;
  }
  // A time without a word about operations would fire by itself.
  if (active.operational && !looks_at_operations(rule)) rule.operations = active.operations;
  return {.rule = std::move(rule), .follows = active.follows};
}

// Whether pinned() says all of it.
bool FaultEngine::can_be_pinned(const ActiveRule& active) const {
  const Rule& rule = active.rule;
  const bool late = active.added > started_;
  // Added at the start, it would remember other data.
  const bool remembers = rule.fault == Fault::kStale || rule.fault == Fault::kNvramStale ||
                         rule.fault == Fault::kMemberReturnStale;
  // An event before it was added would arm it.
  const bool arms = active.operational && !rule.event.empty();
  // Connections get other numbers.
  const bool there_once = !active.drawn.empty() && rule.at.kind == Place::Kind::kConnection;
  return active.drawn.size() <= kMostReplayed && !there_once && !(late && (remembers || arms));
}

// It is cleared, or disabled.
void FaultEngine::keep_for_replay(const ActiveRule& active) {
  if (active.fired_times == 0 || !active.rule.enabled) return;
  Pinned kept = pinned(active);
  Rule& rule = kept.rule;
  const Duration until = std::max(home_.now() - started_, rule.from + Duration{1});
  rule.until = std::min(rule.until.value_or(until), until);
  // An end by until= starts the follow-up; clearing does not.
  const bool lasts = rule.duration > Duration::zero() && active.active_until > home_.now();
  const bool followed = lasts && !rule.then.empty() && active.fired_times > 1;
  if (lasts) rule.then.clear();
  if (!can_be_pinned(active) || followed || cleared_.size() == kMostReplayed) kept_all_ = false;
  if (cleared_.size() < kMostReplayed) cleared_.emplace(active.number, std::move(kept));
}

Replay FaultEngine::replay() const {
  Replay replay{.seed = options_.seed, .rules = {}, .complete = kept_all_};
  std::map<std::uint64_t, Pinned> all = cleared_;
  for (const auto& [number, active] : rules_.all()) {
    if (active->fired_times == 0 || !active->rule.enabled) continue;
    replay.complete = replay.complete && can_be_pinned(*active);
    all.emplace(active->number, pinned(*active));
  }
  std::size_t bytes = 0;
  std::set<std::string> ids;
  for (const auto& [number, pinned] : all) {
    const Rule& rule = pinned.rule;
    std::string text = print_rule(rule);
    bytes += text.size();
    const bool follows = std::ranges::any_of(
        all, [&](const auto& other) { return other.second.rule.then == rule.id; });
    // A second rule with an id would draw from another stream.
    const bool fits = ids.insert(rule.id).second && bytes <= kMostReplayBytes;
    replay.complete = replay.complete && fits && follows == pinned.follows;
    if (fits) replay.rules.push_back(std::move(text));
  }
  return replay;
}

std::optional<std::string> FaultEngine::heal(std::string_view drive) {
  FaultLayer* const layer = find_layer(drive);
  if (layer == nullptr) return std::nullopt;
  if (journal_.total() > 0) kept_all_ = false;
  layer->heal();
  return layer->name();
}

// What a rule needs to be taken in. --------------------------------------------------------------

std::string FaultEngine::refusal(const Rule& rule) const {
  if (!rule.id.empty() && find(rule.id) != nullptr) {
    return fmt::format("id={}: there is such a rule; clear it first or choose another id", rule.id);
  }
  const bool of_drives =
      rule.at.kind == Place::Kind::kDrive || rule.at.kind == Place::Kind::kEnclosure;
  if (!of_drives) return refusal_of_place(rule);
  const std::vector<FaultLayer*> layers = layers_at(rule.at);
  if (layers.empty()) {
    const std::string_view kind = rule.at.kind == Place::Kind::kDrive ? "drive" : "enclosure";
    std::vector<std::string> names;
    for (const std::string& place : places()) {
      const Halves halved = halves(place, ":");
      if (halved.first == kind) names.emplace_back(halved.second.value_or(""));
    }
    return fmt::format("at={}:{}: unknown {}; {}s are: {}", kind, shown(rule.at.name), kind, kind,
                       few(names));
  }
  for (const FaultLayer* layer : layers) {
    std::string wrong = refusal_at(rule, *layer);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string FaultEngine::refusal_of_place(const Rule& rule) const {
  if (rule.at.kind == Place::Kind::kMember) {
    if (!member_at(rule.at).empty()) {
      if (rule.fault != Fault::kMemberReturnStale || !layers_of(rule).empty()) return {};
      return fmt::format("at=member:{}: do=member.return.stale is of its drives, and none are here",
                         rule.at.name);
    }
    return fmt::format("at=member:{}: unknown member; members are: {}", rule.at.name,
                       few(members_));
  }
  if (of_path(rule.at)) return {};  // LUNs come and go.
  if (rule.at.kind == Place::Kind::kMeta) {
    const bool can = rule.fault != Fault::kRebalanceKill || options_.on_kill;
    return can ? "" : "do=rebalance.kill: there is nothing here that could be killed";
  }
  std::vector<std::string> names;
  for (const auto& [name, target] : nvrams_) names.push_back(name);
  const bool there = rule.at.name.empty() ? !names.empty() : nvrams_.contains(rule.at.name);
  return there ? "" : fmt::format("at=nvram: unknown NVRAM; NVRAMs are: {}", few(names));
}

std::string FaultEngine::refusal_at(const Rule& rule, const FaultLayer& layer) const {
  const Geometry& geometry = layer.geometry();
  if (rule.lba.has_value() && has_area(rule) && rule.lba->end() > geometry.block_count) {
    return fmt::format("lba={}: drive {} has {} blocks", extent_text(*rule.lba), layer.name(),
                       geometry.block_count);
  }
  const Extent region = rule.lba.value_or(Extent{});
  if (rule.fault == Fault::kStale && region.byte_count(geometry.block_bytes) > kMostWatchedBytes) {
    return fmt::format("lba={}: up to {} bytes are possible with do=stale", extent_text(region),
                       kMostWatchedBytes);
  }
  const bool of_power = rule.fault == Fault::kPowerCut || rule.fault == Fault::kPowerCutAgain ||
                        rule.fault == Fault::kReorder;
  if (of_power && layer.options_.power == nullptr) {
    return fmt::format("do={}: drive {} has no volatile cache that could lose anything",
                       fault_name(rule.fault), layer.name());
  }
  if (rule.fault == Fault::kInsert && rule.other_content && !options_.other_content) {
    return "content=other: there is no other drive to insert; content=same is possible";
  }
  if (!rule.to_drive.empty()) {
    const FaultLayer* const other = find_layer(rule.to_drive);
    if (other == nullptr) return fmt::format("to=drive:{}: unknown drive", rule.to_drive);
    if (other->geometry().block_bytes != geometry.block_bytes) {
      return fmt::format("to=drive:{}: its blocks have another size", rule.to_drive);
    }
  }
  return {};
}

// The next behind "r<number>" that is free.
std::string FaultEngine::free_id(const std::set<std::string>& reserved, std::size_t* number) const {
  std::string id;
  do {
    id = fmt::format("r{}", ++*number);
  } while (reserved.contains(id) || find(id) != nullptr);
  return id;
}

// Drives and other targets. ----------------------------------------------------------------------

void FaultEngine::attach(FaultLayer& layer) {
  assert(&layer.home() == &home_);
  assert(std::ranges::none_of(layers_, [&](const FaultLayer* other) {
    return other->name() == layer.name() && other->member() == layer.member();
  }));
  if (!layer.options_.number.has_value() && layer.member().empty()) {
    const std::vector<FaultLayer*> drives = layers_at({});
    std::uint64_t free = 0;
    while (std::ranges::any_of(drives,
                               [&](const FaultLayer* other) { return other->number() == free; })) {
      ++free;
    }
    layer.options_.number = free;
  }
  layers_.push_back(&layer);
  relink();
  if (layer.member().empty()) return;
  for (const auto& [number, active] : rules_.all()) {
    const Rule& rule = active->rule;
    if (!active->member_lasts || member_at(rule.at) != layer.member()) continue;
    if (rule.fault == Fault::kMemberReturnStale) continue;  // Of its drives.
    active->lasting_at.push_back(&layer);
    layer.begin(active);
  }
}

void FaultEngine::detach(FaultLayer& layer) {
  std::erase(layers_, &layer);
  for (const auto& [number, active] : rules_.all()) std::erase(active->lasting_at, &layer);
}

void FaultEngine::add_nvram(std::string name, NvramFaultTarget& target) {
  const bool remembered = std::ranges::any_of(
      rules_.all(), [&](const auto& each) { return goes_back(each.second->rule, name); });
  if (remembered) target.remember_content();
  const bool added = nvrams_.emplace(std::move(name), &target).second;
  assert(added);
}

void FaultEngine::remove_nvram(std::string_view name) {
  const auto found = nvrams_.find(name);
  if (found == nvrams_.end()) return;
  for (const auto& [number, active] : rules_.all()) {
    std::erase(active->low_batteries, found->second);
  }
  nvrams_.erase(found);
}

void FaultEngine::add_member(std::string name) { members_.push_back(std::move(name)); }

std::string FaultEngine::member_at(const Place& place) const {
  if (place.kind != Place::Kind::kMember) return {};
  if (std::ranges::find(members_, place.name) != members_.end()) return place.name;
  const auto number = to_number(place.name);
  return number.has_value() && *number < members_.size() ? members_[*number] : std::string();
}

bool FaultEngine::enclosure_has(Fault fault, std::string_view enclosure) const {
  return std::ranges::any_of(rules_.all(), [&](const auto& each) {
    const ActiveRule* const active = each.second.get();
    const Rule& rule = active->rule;
    return rule.fault == fault && active->enclosure_lasts &&
           (rule.at.name.empty() || enclosure.empty() || rule.at.name == enclosure);
  });
}

std::vector<std::string> FaultEngine::places() const {
  std::vector<Place> places;
  for (const FaultLayer* layer : layers_at({})) {
    places.push_back({.kind = Place::Kind::kDrive, .name = layer->name()});
  }
  for (const FaultLayer* layer : layers_at({})) {
    const Place shelf{.kind = Place::Kind::kEnclosure, .name = layer->enclosure()};
    const bool known = std::ranges::find(places, shelf) != places.end();
    if (!known && !shelf.name.empty()) places.push_back(shelf);
  }
  for (const auto& [name, target] : nvrams_) {
    places.push_back({.kind = Place::Kind::kNvram, .name = name});
  }
  for (const std::string& name : members_) {
    places.push_back({.kind = Place::Kind::kMember, .name = name});
  }
  places.push_back({.kind = Place::Kind::kMeta, .name = {}});
  std::vector<std::string> texts;
  for (const Place& place : places) texts.push_back(place_text(place));
  return texts;
}

FaultLayer* FaultEngine::find_layer(std::string_view name) const {
  const std::vector<FaultLayer*> drives = layers_at({});
  const auto found =
      std::ranges::find_if(drives, [&](const FaultLayer* layer) { return layer->name() == name; });
  if (found != drives.end()) return *found;
  const auto number = to_number(name);
  if (!number.has_value()) return nullptr;
  for (FaultLayer* layer : drives) {
    if (layer->number() == *number) return layer;
  }
  return nullptr;
}

std::vector<FaultLayer*> FaultEngine::layers_at(const Place& place) const {
  const bool no_layers = place.kind == Place::Kind::kNvram || place.kind == Place::Kind::kMeta;
  if (no_layers || of_path(place)) return {};
  if (place.kind == Place::Kind::kDrive && !place.name.empty()) {
    FaultLayer* const layer = find_layer(place.name);
    return layer == nullptr ? std::vector<FaultLayer*>{} : std::vector{layer};
  }
  const std::string member = member_at(place);
  if (place.kind == Place::Kind::kMember && member.empty()) return {};
  std::vector<FaultLayer*> layers;
  for (FaultLayer* layer : layers_) {
    const bool of_enclosure = place.kind == Place::Kind::kEnclosure && !place.name.empty();
    if (layer->member() != member) continue;  // Drives have none.
    if (!of_enclosure || layer->enclosure() == place.name) layers.push_back(layer);
  }
  return layers;
}

std::vector<FaultLayer*> FaultEngine::layers_of(const Rule& rule) const {
  if (rule.fault != Fault::kMemberReturnStale) return layers_at(rule.at);
  const std::string member = member_at(rule.at);
  std::vector<FaultLayer*> drives;
  for (FaultLayer* layer : layers_) {
    if (layer->member().empty() && layer->owner() == member) drives.push_back(layer);
  }
  return drives;
}

void FaultEngine::relink() {
  std::vector<std::vector<RulePointer>> linked(layers_.size());
  std::vector<std::vector<RulePointer>> watching(layers_.size());
  for (const auto& [number, active] : rules_.all()) {
    if (inert(active->rule) || active->path != nullptr) continue;
    for (FaultLayer* layer : layers_of(active->rule)) {
      const auto index =
          static_cast<std::size_t>(std::ranges::find(layers_, layer) - layers_.begin());
      if (active->operational) linked[index].push_back(active);
      const Fault fault = active->rule.fault;
      const bool returns = fault == Fault::kStale || fault == Fault::kMemberReturnStale;
      if (returns) watching[index].push_back(active);
    }
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i]->set_rules(std::move(linked[i]), watching[i]);
  }
}

}  // namespace sandbay::fault
