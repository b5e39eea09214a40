// How a site judges a command or a PDU, and how firings come home.
#include "fault/site.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/core.h>

#include "fault/engine.h"
#include "fault/traits.h"
#include "runtime/message.h"

namespace sandbay::fault {

namespace {

// Units serve it although the fault holds. Asymmetric access states: SPC-4 5.11.2.
bool is_served(const Rule& rule, const Occasion& occasion) {
  constexpr std::array<std::uint8_t, 4> kUnavailable = {0x3B, 0x3C, 0xA3, 0xA4};
  constexpr std::array<std::uint8_t, 10> kStandby = {0x15, 0x1A, 0x1C, 0x1D, 0x4C,
                                                     0x4D, 0x55, 0x5A, 0x5E, 0x5F};
  const std::uint8_t opcode = occasion.opcode.value_or(0);
  if (rule.fault == Fault::kLunVanish) return opcode == 0xA0;  // REPORT LUNS, of the target.
  if (rule.fault != Fault::kAluaState) return occasion.always_served && rule.opcodes.empty();
  return occasion.always_served || std::ranges::find(kUnavailable, opcode) != kUnavailable.end() ||
         (way_of(rule) == Way::kStandby && std::ranges::binary_search(kStandby, opcode));
}

// COMPARE AND WRITE and ORWRITE read the blocks first: a host would take a lock that another has.
bool may_be_lost(const Rule& rule, const Occasion& occasion) {
  constexpr std::uint8_t kCompareAndWrite = 0x89;
  constexpr std::uint8_t kOrWrite = 0x8B;
  const bool looks = occasion.opcode == kCompareAndWrite || occasion.opcode == kOrWrite;
  return !looks && (struck_operations(rule) & occasion.operation) != 0;
}

bool has_fit(const Rule& rule, const Occasion& occasion) {
  if (is_served(rule, occasion)) return false;
  if (!rule.opcodes.empty() &&
      !(occasion.opcode && std::ranges::binary_search(rule.opcodes, *occasion.opcode))) {
    return false;
  }
  if (rule.lun.has_value() && rule.lun != occasion.lun) return false;
  if (occasion.pdu && (pdus_of(rule) >> (*occasion.pdu & 63U) & 1U) == 0) return false;
  if (rule.operations != 0 && (rule.operations & occasion.operation) == 0) return false;
  if (rule.fault == Fault::kLost && !may_be_lost(rule, occasion)) return false;
  if (rule.lba.has_value() && !rule.lba->overlaps(occasion.extent)) return false;
  if (rule.fua.has_value() && *rule.fua != occasion.force_unit_access) return false;
  return rule.length.contains(occasion.extent.block_count) && rule.depth.contains(occasion.depth) &&
         (rule.initiator.empty() || fits(rule.initiator, occasion.initiator));
}

void count(std::atomic<std::uint64_t>& counter) { counter.fetch_add(1, std::memory_order_relaxed); }

// False: it has fired as often as it may, here and at other sites.
bool count_firing(PathRule& rule) {
  std::uint64_t fired = rule.fired.load(std::memory_order_relaxed);
  do {
    if (rule.limit > 0 && fired >= rule.limit) return false;
  } while (!rule.fired.compare_exchange_weak(fired, fired + 1, std::memory_order_relaxed));
  return true;
}

std::string effect_of(const Occasion& occasion) {
  const bool outgoing = occasion.pdu && (*occasion.pdu & 0x20U) != 0;
  return fmt::format("{} {} {}", occasion.name, outgoing ? "to" : "from", occasion.initiator);
}

// Several lists of one place after another, as one list in the order of adding.
class Merged {
 public:
  void add(const RuleList& list, const std::vector<bool>& concern,
           std::span<const std::uint32_t> indices) {
    if (!indices.empty()) parts_.at(count_++) = {&list, &concern, indices};
  }
  // Null: that was all.
  const std::shared_ptr<PathRule>* next() {
    while (true) {
      Part* least = nullptr;
      for (Part& part : std::span(parts_).first(count_)) {
        if (part.indices.empty()) continue;
        if (least == nullptr || part.front()->number < least->front()->number) least = &part;
      }
      if (least == nullptr) return nullptr;
      const std::uint32_t index = least->indices.front();
      least->indices = least->indices.subspan(1);
      if (least->concern->empty() || (*least->concern)[index]) return &least->list->all()[index];
    }
  }

 private:
  struct Part {
    const RuleList* list = nullptr;
    const std::vector<bool>* concern = nullptr;
    std::span<const std::uint32_t> indices;
    const std::shared_ptr<PathRule>& front() const { return list->all()[indices.front()]; }
  };
  // Three places, exactly or by pattern, by code or by operation.
  std::array<Part, 12> parts_;
  std::size_t count_ = 0;
};

}  // namespace

// Sites. -----------------------------------------------------------------------------------------

Site::Site(std::shared_ptr<Post> post, std::vector<Place> places)
    : post_(std::move(post)), places_(std::move(places)) {
  link(post_->rules_);
}

void Site::rename(std::string name) {
  places_.front().name = std::move(name);
  link(post_->rules_);
}

void Site::link(std::shared_ptr<const PathRules> rules) {
  rules_ = std::move(rules);
  sources_.clear();
  for (const Place& place : places_) {
    const RuleList* const exact = rules_->exact(place);
    if (exact != nullptr) sources_.push_back({.list = exact, .concern = {}});
    add_patterns(place);
  }
  quiet_ = sources_.empty() && !engaged_;
  looked_at_.reset();
  for (const Source& source : sources_) looked_at_ |= source.list->keys();
  std::erase_if(states_, [](const auto& each) {
    return each.second.shared->gone.load(std::memory_order_relaxed);
  });
}

void Site::add_patterns(const Place& place) {
  const RuleList& patterns = rules_->patterns(place.kind);
  Source source{.list = &patterns, .concern = {}};
  std::size_t number = 0;
  for (const RuleList::Pointer& rule : patterns.all()) {
    const std::string& name = rule->rule.at.name;
    const bool concerns = name.empty() || fits(name, place.name);
    source.concern.push_back(concerns);
    if (concerns) ++number;
  }
  if (number == patterns.all().size()) source.concern.clear();
  if (number > 0) sources_.push_back(std::move(source));
}

Site::State& Site::state_of(const std::shared_ptr<PathRule>& rule) {
  const auto found = states_.find(rule->number);
  if (found != states_.end()) return found->second;
  Random stream(rule->seed ^ hash_of(place_text(places_.front())));
  const Random effects = stream.fork();
  const State state{.shared = rule, .effects = effects, .decisions = stream.fork()};
  return states_.emplace(rule->number, state).first->second;
}

const Rule* Site::judge(const Occasion& occasion, Stage stage, const FaultSet& faults) {
  Merged rules;
  const std::size_t named =
      key_of_code(stage, occasion.pdu ? *occasion.pdu : occasion.opcode.value_or(0));
  for (const Source& source : sources_) {
    rules.add(*source.list, source.concern, source.list->at(named));
    rules.add(*source.list, source.concern,
              source.list->at(key_of_operation(stage, occasion.operation)));
  }
  const TimePoint now = post_->here().now();
  const Rule* first = nullptr;
  while (const std::shared_ptr<PathRule>* const next = rules.next()) {
    const PathRule& shared = **next;
    const Rule& rule = shared.rule;
    if (!faults.has(rule.fault) || !shared.acts.load(std::memory_order_relaxed)) continue;
    if (now < shared.from || now >= shared.until || !has_fit(rule, occasion)) continue;
    if (rule.down > Duration::zero() && (now - shared.from) % (rule.up + rule.down) < rule.up) {
      continue;
    }
    State& state = state_of(*next);
    const bool answers = rule.fault != Fault::kNothing;
    if (!strikes(state, occasion, answers && first != nullptr) || !answers) continue;
    first = &rule;
    struck_ = &state;
  }
  return first;
}

std::function<bool()> Site::lasting() const {
  return [shared = struck_->shared, ended = struck_->ended] {
    return !shared->gone.load(std::memory_order_relaxed) &&
           shared->acts.load(std::memory_order_relaxed) &&
           shared->ended.load(std::memory_order_relaxed) == ended;
  };
}

bool Site::decides(State& state) {
  const Rule& rule = state.shared->rule;
  ++state.seen;
  if (!rule.matches.empty()) return std::ranges::binary_search(rule.matches, state.seen);
  if (state.seen <= rule.after || (state.seen - rule.after - 1) % rule.every != 0) return false;
  return rule.probability >= 1 || state.decisions.chance(rule.probability);
}

// As the journal names it: "lun db1", "conn 3.0".
std::string Site::target() const {
  const Place& place = places_.front();
  return place_text({.kind = place.kind, .name = {}}) + " " + place.name;
}

// `spare`: another rule strikes already.
bool Site::strikes(State& state, const Occasion& occasion, bool spare) {
  PathRule& shared = *state.shared;
  const TimePoint now = post_->here().now();
  count(shared.matched);
  const std::uint32_t ended = shared.ended.load(std::memory_order_relaxed);
  const bool lasts = state.active_until > now && state.ended == ended;
  if (!lasts && !decides(state)) return false;
  if (spare) {
    count(shared.spared);
    return false;
  }
  if (!lasts) {
    if (!count_firing(shared)) return false;
    state.active_until = now + shared.rule.duration;
    state.ended = ended;
  }
  count(shared.struck);
  const auto place = std::ranges::find(places_, shared.rule.at.kind, &Place::kind);
  post_->report({.firing = {.rule = shared.rule.id,
                            .fault = shared.rule.fault,
                            .time = now,
                            .target = target(),
                            .operation = operations_,
                            .extent = occasion.extent,
                            .effect = effect_of(occasion)},
                 .number = shared.number,
                 .match = state.seen,
                 .ended = ended,
                 .begins = !lasts,
                 .site = place_text(places_.front()),
                 .place = place->name});
  return true;
}

// Posts. -----------------------------------------------------------------------------------------

struct Post::Batch : Message {
  std::shared_ptr<Post> post;
  std::vector<Fired> fired;
  std::uint64_t unrecorded = 0;
};

Post::Post(Executor& here, Executor& home, FaultEngine& engine,
           std::shared_ptr<const PathRules> rules)
    : here_(here), home_(home), engine_(&engine), rules_(std::move(rules)) {}

std::shared_ptr<Site> Post::make_site(std::vector<Place> places) {
  auto site = std::make_shared<Site>(shared_from_this(), std::move(places));
  if (sites_.size() >= forget_at_) {
    forget_sites();
    forget_at_ = std::max<std::size_t>(64, 2 * sites_.size());
  }
  sites_.push_back(site);
  return site;
}

void Post::forget_sites() {
  std::erase_if(sites_, [](const std::weak_ptr<Site>& site) { return site.expired(); });
}

Task<void> Post::adopt(std::shared_ptr<const PathRules> rules) {
  constexpr std::size_t kComparisonsPerTurn = 20'000;
  const std::shared_ptr<Post> keep = shared_from_this();
  rules_ = std::move(rules);
  forget_sites();
  outdated_ = sites_;
  std::size_t compared = 0;
  while (!outdated_.empty()) {
    const std::shared_ptr<Site> site = outdated_.back().lock();
    outdated_.pop_back();
    if (site == nullptr) continue;
    site->link(rules_);
    compared += 1 + site->states_.size();
    for (const Place& place : site->places_) compared += rules_->patterns(place.kind).all().size();
    if (compared < kComparisonsPerTurn) continue;
    compared = 0;
    co_await here_.yield();
  }
}

Task<void> Post::settle() {
  const std::shared_ptr<Post> keep = shared_from_this();
  while (!outdated_.empty()) co_await here_.yield();
}

void Post::report(Fired fired) {
  const bool first = waiting_rules_.insert(fired.number).second;
  if (waiting_.size() >= kMostWaiting && !first) {
    ++unrecorded_;
    return;
  }
  waiting_.push_back(std::move(fired));
  if (!under_way_) send_home();
}

// The batch comes back to be freed here, and for what has fired meanwhile.
void Post::send_home() {
  under_way_ = true;
  auto* const batch = new Batch;
  batch->post = shared_from_this();
  batch->fired = std::exchange(waiting_, {});
  batch->unrecorded = std::exchange(unrecorded_, 0);
  waiting_rules_.clear();
  batch->run = [](Message& message) {
    auto& arrived = static_cast<Batch&>(message);
    Post& post = *arrived.post;
    if (post.engine_ != nullptr) post.engine_->fired_at_sites(arrived.fired, arrived.unrecorded);
    arrived.run = [](Message& returned) {
      const std::unique_ptr<Batch> own(static_cast<Batch*>(&returned));
      Post& sender = *own->post;
      sender.under_way_ = false;
      if (!sender.waiting_.empty()) sender.send_home();
    };
    post.here_.send(arrived);
  };
  home_.send(*batch);
}

}  // namespace sandbay::fault
