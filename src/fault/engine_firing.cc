// When rules fire, what begins then, and when it ends.
//
// A rule that looks at operations is asked with each of them (judge); every other waits for its
// event, time, state or predecessor, each of which counts as one match (consider).
#include <algorithm>
#include <cassert>
#include <utility>

#include <fmt/core.h>

#include "fault/active_rule.h"
#include "fault/engine.h"
#include "fault/fault_layer.h"
#include "fault/site.h"

namespace sandbay::fault {

namespace {

// Rules that start one another in a circle stop after so many.
constexpr unsigned kDeepestChain = 16;
constexpr std::uint64_t kNvramPageBytes = 4096;
// As pool/sealed.h names it.
constexpr std::uint32_t kFlipBitOfValue = 1;

Task<void> hand_over(std::shared_ptr<Post> post, std::shared_ptr<const PathRules> rules) {
  co_await invoke_on(post->here(), post->adopt(std::move(rules)));
}

bool has_operation_fit(const ActiveRule& active, const Request& request, std::uint64_t depth) {
  const Rule& rule = active.rule;
  if ((active.operations & bit(request.operation)) == 0) return false;
  if (rule.lba.has_value()) {
    // A flush has no blocks.
    if (request.operation == Operation::kFlush) return false;
    if (!rule.lba->overlaps(request.extent)) return false;
  }
  if (!rule.length.contains(request.extent.block_count)) return false;
  if (rule.fua.has_value() && *rule.fua != request.force_unit_access) return false;
  if (rule.origins != 0 && (rule.origins & bit(request.origin)) == 0) return false;
  return rule.depth.contains(depth);
}

// Without event= there is something that it waits for all the same; see notify().
bool waits_for_own_event(Fault fault) {
  return fault == Fault::kPowerCutAgain || fault == Fault::kRebalanceKill;
}

std::string enclosure_text(const Rule& rule) {
  return rule.at.name.empty() ? "enclosure" : "enclosure " + rule.at.name;
}

}  // namespace

// Operations. ------------------------------------------------------------------------------------

std::vector<FaultEngine::RulePointer> FaultEngine::judge(FaultLayer& layer, const Request& request,
                                                         std::uint64_t operation) {
  std::vector<RulePointer> strikes;
  for (std::size_t i = 0; i < layer.rules_.size(); ++i) {
    const RulePointer active = layer.rules_[i];
    if (!has_operation_fit(*active, request, layer.depth_)) continue;
    if (!active->armed || !condition_holds(*active)) continue;
    ++active->counters.matched;
    const bool lasting = manner(active->rule) == Manner::kLasting;
    const bool within = strikes_one(active->rule) && active->active_until > home_.now();
    if (!within) {
      const bool already =
          lasting && std::ranges::find(active->lasting_at, &layer) != active->lasting_at.end();
      if (already || !decides_to_fire(*active)) continue;
      if (!may_fail(*active, layer)) {
        ++active->counters.spared;
        continue;
      }
      ++active->fired_times;
      ++active->counters.fired;
    }
    if (strikes_one(active->rule)) {
      ++active->counters.struck;
      strikes.push_back(active);
      if (!within) after_firing(active);
    } else {
      fire(active, &layer, operation, request.extent);
    }
  }
  return strikes;
}

bool FaultEngine::strikes_one(const Rule& rule) {
  if (manner(rule) == Manner::kStrike) return true;
  return rule.fault == Fault::kLse || rule.fault == Fault::kFlip || rule.fault == Fault::kStale;
}

bool FaultEngine::condition_holds(const ActiveRule& active) const {
  const Rule& rule = active.rule;
  const Duration elapsed = home_.now() - started_;
  if (elapsed < rule.from) return false;
  if (rule.until.has_value() && elapsed >= *rule.until) return false;
  return states_hold(rule);
}

bool FaultEngine::states_hold(const Rule& rule) const {
  return std::ranges::all_of(rule.state, [&](const StateTest& test) {
    const std::int64_t value = state(test.name);
    const bool holds = test.value.has_value() ? value == *test.value : value != 0;
    return holds != test.negated;
  });
}

bool FaultEngine::decides_to_fire(ActiveRule& active) {
  const Rule& rule = active.rule;
  ++active.seen;
  if (active.limit > 0 && active.fired_times >= active.limit) return false;
  if (!rule.matches.empty()) return std::ranges::binary_search(rule.matches, active.seen);
  if (active.seen <= rule.after) return false;
  if ((active.seen - rule.after - 1) % rule.every != 0) return false;
  if (rule.probability >= 1) return true;
  if (!active.decisions.chance(rule.probability)) return false;
  if (active.drawn.size() <= kMostReplayed) active.drawn.push_back(active.seen);
  return true;
}

bool FaultEngine::may_fail(const ActiveRule& active, const FaultLayer& layer) const {
  if (!active.rule.within_tolerance) return true;
  if (!layer.member().empty()) return false;  // No layout survives it.
  return options_.may_fail && options_.may_fail(active.rule, layer.name());
}

// Sites. -----------------------------------------------------------------------------------------

std::shared_ptr<Post> FaultEngine::post(const Executor& executor) const {
  return posts_[executor.index()];
}

void FaultEngine::tell_sites(const ActiveRule& active) const {
  if (active.path == nullptr) return;
  const bool acts =
      !active.ended && !inert(active.rule) && active.armed && states_hold(active.rule);
  active.path->acts.store(acts, std::memory_order_relaxed);
}

void FaultEngine::publish() {
  auto rules = std::make_shared<PathRules>();
  for (const auto& [number, active] : rules_.all()) {
    if (active->path != nullptr) rules->add(active->path);
  }
  published_ = std::move(rules);
  for (const auto& post : posts_) spawn(hand_over(post, published_));
}

Task<void> FaultEngine::settle() {
  const std::vector<std::shared_ptr<Post>> posts = posts_;
  for (const auto& post : posts) co_await invoke_on(post->here(), post->settle());
}

// Everything else. -------------------------------------------------------------------------------

void FaultEngine::start(const RulePointer& active) {
  const Rule& rule = active->rule;
  if (inert(rule)) return;
  active->follows = rules_.is_follow_up(rule.id);
  active->armed = rule.event.empty() && !active->follows && !waits_for_own_event(rule.fault);
  tell_sites(*active);
  if (active->operational || !active->armed) return;
  const TimePoint opening = started_ + rule.from;
  if (opening > home_.now()) {
    active->opening = true;
    active->timer.deadline = opening;
    home_.arm(active->timer);
    return;
  }
  active->state_held = condition_holds(*active);
  if (active->state_held) consider(active);
}

void FaultEngine::trigger(const RulePointer& active) {
  if (inert(active->rule) || active->ended) return;
  active->armed = true;
  tell_sites(*active);
  if (!active->operational && condition_holds(*active)) consider(active);
}

void FaultEngine::consider(const RulePointer& active) {
  if (nesting_ >= kDeepestChain) return;
  ++active->counters.matched;
  if (!decides_to_fire(*active)) return;
  ++nesting_;
  fire(active, nullptr, 0, {});
  --nesting_;
}

void FaultEngine::notify(std::string_view event) {
  for (const RulePointer& active : rules_.waiting_for(event)) trigger(active);
}

ProbeVerdict FaultEngine::decide(const ProbePoint& point) {
  notify(point.name);
  return judge_value(point);
}

ProbeVerdict FaultEngine::judge_value(const ProbePoint& point) {
  const bool writes = point.name == "map.write";
  if (!writes && point.name != "map.read") return {};
  const std::uint8_t operation = bit(writes ? Operation::kWrite : Operation::kRead);
  for (const RulePointer& active : rules_.of_values()) {
    if (active->ended || inert(active->rule) || (active->operations & operation) == 0) {
      continue;
    }
    if (!active->armed || !condition_holds(*active)) continue;
    ++active->counters.matched;
    if (active->active_until <= home_.now()) {
      if (!decides_to_fire(*active)) continue;
      if (active->rule.within_tolerance) {
        ++active->counters.spared;
        continue;
      }
      ++active->fired_times;
      ++active->counters.fired;
      after_firing(active);
    }
    ++active->counters.struck;
    const std::uint64_t flipped =
        active->random.next() % std::max<std::uint64_t>(1, 8 * point.byte_count);
    record(*active, "meta", 0, {},
           fmt::format("bit {} of the {} bytes that are {}", flipped, point.byte_count,
                       writes ? "written" : "read"));
    return {.action = kFlipBitOfValue, .argument = flipped};
  }
  return {};
}

void FaultEngine::set_state(std::string_view name, std::int64_t value) {
  if (state(name) == value) return;
  states_.insert_or_assign(std::string(name), value);
  for (const RulePointer& active : rules_.with_states()) {
    const Rule& rule = active->rule;
    tell_sites(*active);
    if (inert(rule) || active->ended || active->operational) continue;
    if (!rule.event.empty() || !active->armed) continue;
    const bool held = std::exchange(active->state_held, condition_holds(*active));
    if (!held && active->state_held) consider(active);
  }
}

std::int64_t FaultEngine::state(std::string_view name) const {
  const auto found = states_.find(name);
  return found == states_.end() ? 0 : found->second;
}

// Firing. ----------------------------------------------------------------------------------------

// From an operation the firing has been counted; otherwise it is here, once something can begin.
void FaultEngine::fire(const RulePointer& active, FaultLayer* layer, std::uint64_t operation,
                       Extent extent) {
  const Rule& rule = active->rule;
  if (rule.at.kind == Place::Kind::kMember) return fire_member(active, layer != nullptr);
  if (rule.at.kind == Place::Kind::kMeta) return fire_kill(active);
  std::vector<FaultLayer*> layers = layers_at(rule.at);
  const bool whole_shelf = rule.fault == Fault::kShelfLoss || rule.fault == Fault::kPowerCut ||
                           rule.fault == Fault::kPowerCutAgain;
  if (layer != nullptr && !(rule.at.kind == Place::Kind::kEnclosure && whole_shelf)) {
    layers = {layer};
  } else if (layer == nullptr && rule.at.kind == Place::Kind::kDrive && layers.size() > 1) {
    layers = {layers[active->random.below(layers.size())]};
  }
  std::erase_if(layers, [&](FaultLayer* each) {
    if (std::ranges::find(active->lasting_at, each) != active->lasting_at.end()) return true;
    if (layer != nullptr && each == layer) return false;  // Has been asked.
    return !may_fail(*active, *each);
  });
  if (layers.empty() && rule.at.kind != Place::Kind::kNvram) {
    ++active->counters.spared;
    return;
  }
  if (layer == nullptr) {
    ++active->fired_times;
    ++active->counters.fired;
  }
  if (rule.at.kind == Place::Kind::kNvram) {
    fire_nvram(*active);
  } else {
    fire_at(active, layers, operation, extent);
  }
  after_firing(active);
}

void FaultEngine::fire_at(const RulePointer& active, std::span<FaultLayer* const> layers,
                          std::uint64_t operation, Extent extent) {
  switch (active->rule.fault) {
    case Fault::kNothing:
      record(*active, "rule " + active->rule.id, operation, extent, {});
      return;
    case Fault::kPowerCut:
    case Fault::kPowerCutAgain:
      fire_power(*active, layers);
      return;
    case Fault::kPsu:
    case Fault::kFan:
    case Fault::kTemp:
      active->enclosure_lasts = true;
      record(*active, enclosure_text(active->rule), operation, extent, {});
      return;
    default:
      break;
  }
  for (FaultLayer* layer : layers) fire_drive(active, *layer, operation, extent);
}

void FaultEngine::fire_drive(const RulePointer& active, FaultLayer& layer, std::uint64_t operation,
                             Extent extent) {
  const Rule& rule = active->rule;
  if (rule.fault == Fault::kInsert) {
    BlockDevice* const content =
        rule.other_content ? options_.other_content(layer.name()) : nullptr;
    if (rule.other_content && content == nullptr) {
      ++active->counters.spared;
      return;
    }
    record(*active, layer.target_name(), operation, extent,
           rule.other_content ? "other content" : "same content");
    for (const auto& [number, other] : rules_.all()) {
      const bool away = other->rule.fault == Fault::kPull || other->rule.fault == Fault::kShelfLoss;
      if (!away || std::erase(other->lasting_at, &layer) == 0) continue;
      layer.finish(*other, false);
    }
    layer.insert_drive(content);
  } else if (manner(rule) == Manner::kLasting) {
    record(*active, layer.target_name(), operation, extent, {});
    active->lasting_at.push_back(&layer);
    layer.begin(active);
  } else {
    layer.damage_now(active);
  }
}

// Also where none of its sets is there now: what comes is struck, too.
void FaultEngine::fire_member(const RulePointer& active, bool counted) {
  const Rule& rule = active->rule;
  if (active->member_lasts || rule.within_tolerance) {
    ++active->counters.spared;
    return;
  }
  if (!counted) {
    ++active->fired_times;
    ++active->counters.fired;
  }
  record(*active, "member " + member_at(rule.at), 0, {}, {});
  if (manner(rule) == Manner::kLasting) {
    active->member_lasts = true;
    for (FaultLayer* layer : layers_of(rule)) {
      active->lasting_at.push_back(layer);
      layer->begin(active);
    }
  }
  after_firing(active);
}

void FaultEngine::fire_kill(const RulePointer& active) {
  ++active->fired_times;
  ++active->counters.fired;
  record(*active, "meta", 0, {}, {});
  after_firing(active);
  options_.on_kill(active->rule);
}

void FaultEngine::fire_nvram(ActiveRule& active) {
  for (const auto& [name, target] : nvrams_) {
    if (!active.rule.at.name.empty() && active.rule.at.name != name) continue;
    const std::uint64_t bytes = target->byte_count();
    std::string effect;
    switch (active.rule.fault) {
      case Fault::kNvramLoss:
        target->lose_content();
        break;
      case Fault::kNvramPage: {
        if (bytes == 0) continue;
        const std::uint64_t pages = (bytes + kNvramPageBytes - 1) / kNvramPageBytes;
        const std::uint64_t offset = active.random.below(pages) * kNvramPageBytes;
        const std::uint64_t length = std::min(kNvramPageBytes, bytes - offset);
        effect = fmt::format("bytes {}+{}", offset, length);
        target->damage_page(offset, length, active.random.next());
        break;
      }
      case Fault::kNvramStale:
        target->return_to_earlier_content();
        break;
      case Fault::kNvramBitrot: {
        if (bytes == 0) continue;
        const std::uint64_t byte = active.random.below(bytes);
        const auto bit_number = static_cast<unsigned>(active.random.below(8));
        effect = fmt::format("byte {} bit {}", byte, bit_number);
        target->flip_bit(byte, bit_number);
        break;
      }
      case Fault::kBatteryLow:
        target->set_battery_low(true);
        active.low_batteries.push_back(target);
        break;
      default:
        break;  // kNothing.
    }
    record(active, "nvram " + name, 0, {}, std::move(effect));
  }
}

void FaultEngine::fire_power(ActiveRule& active, std::span<FaultLayer* const> layers) {
  // First all of them lose it, then anybody hears of it.
  for (FaultLayer* layer : layers) {
    layer->power_lost();
    if (layer->options_.power != nullptr) {
      layer->options_.power->cut_power(active.rule.loss, active.random.next());
    }
  }
  for (FaultLayer* layer : layers) record(active, layer->target_name(), 0, {}, {});
  if (options_.on_power_cut) options_.on_power_cut(active.rule);
  if (nesting_ < kDeepestChain) {
    ++nesting_;
    notify("power.cut");
    --nesting_;
  }
}

// Afterwards. ------------------------------------------------------------------------------------

void FaultEngine::after_firing(const RulePointer& active) {
  begin_duration(*active);
  tell_of_firing(active);
}

void FaultEngine::tell_of_firing(const RulePointer& active) {
  const Rule& rule = active->rule;
  const std::vector<StateChange> changes = rule.set;
  for (const StateChange& change : changes) set_state(change.name, change.value);
  if (nesting_ >= kDeepestChain) return;
  ++nesting_;
  notify("rule:" + rule.id);
  if (rule.duration == Duration::zero()) follow_up(*active);
  --nesting_;
}

void FaultEngine::begin_duration(ActiveRule& active) {
  const Rule& rule = active.rule;
  TimePoint until = kNever;
  if (rule.duration > Duration::zero()) until = home_.now() + rule.duration;
  if (rule.until.has_value()) {
    // What lasts ends with its window; strikes end there by themselves.
    const bool ends = rule.duration > Duration::zero() || manner(rule) == Manner::kLasting;
    if (ends) until = std::min(until, started_ + *rule.until);
  }
  if (until == kNever) return;
  active.active_until = until;
  active.opening = false;
  home_.disarm(active.timer);
  active.timer.deadline = until;
  home_.arm(active.timer);
}

void FaultEngine::timer_fired(Timer& timer) {
  auto& fired = *static_cast<ActiveRule*>(timer.owner);
  FaultEngine& engine = fired.engine;
  const RulePointer active = engine.find(fired.rule.id);
  assert(active.get() == &fired);
  if (std::exchange(active->opening, false)) {
    active->state_held = engine.condition_holds(*active);
    if (active->state_held) engine.consider(active);
    return;
  }
  if (active->path == nullptr) engine.end(*active);  // Sites see to the end of theirs.
  if (active->rule.duration > Duration::zero()) engine.follow_up(*active);
}

// Sites have struck; journal, events, states and followers are the engine's.
void FaultEngine::fired_at_sites(std::span<const Fired> all, std::uint64_t unrecorded) {
  if (unrecorded > 0) kept_all_ = false;
  for (const Fired& fired : all) {
    const auto found = rules_.all().find(fired.number);
    const RulePointer active = found == rules_.all().end() ? nullptr : found->second;
    if (active == nullptr || fired.ended != active->path->ended.load(std::memory_order_relaxed)) {
      kept_all_ = false;  // It has been cleared or disabled meanwhile.
      Firing late = fired.firing;
      late.repeated = true;
      append(std::move(late));
      continue;
    }
    record(*active, fired.firing);
    if (!fired.begins) continue;
    ++active->fired_times;
    if (active->rule.probability < 1) note_drawn(*active, fired);
    begin_at_site(active, fired.firing.time);
    tell_of_firing(active);
  }
}

// The follow-up comes at the end of the first of several that last at once.
void FaultEngine::begin_at_site(const RulePointer& active, TimePoint time) {
  const Duration duration = active->rule.duration;
  const bool waits = active->active_until > home_.now();
  if (duration == Duration::zero() || waits) return;
  active->active_until = std::min(time + duration, active->path->until);
  if (active->active_until <= home_.now()) return follow_up(*active);
  home_.disarm(active->timer);
  active->timer.deadline = active->active_until;
  home_.arm(active->timer);
}

void FaultEngine::note_drawn(ActiveRule& active, const Fired& fired) {
  if (active.drawn_at.empty()) {
    active.drawn_at = fired.site;
    active.drawn_place = fired.place;
  }
  const bool again = !active.drawn.empty() && fired.match <= active.drawn.back();
  if (active.drawn_at != fired.site || again) {
    kept_all_ = false;  // A rule has one list of matches, for all sites of its time.
  } else if (active.drawn.size() <= kMostReplayed) {
    active.drawn.push_back(fired.match);
  }
}

void FaultEngine::follow_up(ActiveRule& active) {
  if (active.rule.then.empty()) return;
  const RulePointer next = find(active.rule.then);
  if (next != nullptr) trigger(next);
}

void FaultEngine::end(ActiveRule& active) {
  home_.disarm(active.timer);
  if (active.path != nullptr) active.path->ended.fetch_add(1, std::memory_order_relaxed);
  active.opening = false;
  active.active_until = {};
  active.enclosure_lasts = false;
  active.member_lasts = false;
  const std::vector<FaultLayer*> layers = std::exchange(active.lasting_at, {});
  for (FaultLayer* layer : layers_) {
    const bool lasted = std::ranges::find(layers, layer) != layers.end();
    if (lasted) layer->finish(active, false);
    layer->release_held(active);
  }
  for (NvramFaultTarget* target : std::exchange(active.low_batteries, {})) {
    target->set_battery_low(false);
  }
}

void FaultEngine::record(ActiveRule& active, std::string target, std::uint64_t operation,
                         Extent extent, std::string effect) {
  record(active, Firing{.rule = active.rule.id,
                        .fault = active.rule.fault,
                        .time = home_.now(),
                        .target = std::move(target),
                        .operation = operation,
                        .extent = extent,
                        .effect = std::move(effect)});
}

void FaultEngine::record(ActiveRule& active, Firing firing) {
  firing.repeated = std::exchange(active.recorded, true);
  append(std::move(firing));
}

void FaultEngine::append(Firing firing) {
  journal_.append(firing);
  firing.number = journal_.total();
  if (options_.on_firing) options_.on_firing(firing);
}

}  // namespace sandbay::fault
