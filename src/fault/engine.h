// FaultEngine: decides which rule strikes which operation, and when faults begin and end.
//
// One engine serves the drives of one home executor and is used there only. Commands are struck on
// the executors of their LUNs, by sites that take their rules from the engine (site.h). Everything
// that is decided follows from its seed, its rules and what happens: every rule draws from a stream
// of its own, made from the seed and the rule's id, so that another rule more or less does not
// shift it. Rules that are disabled or have p=0 are as if they were not there.
//
// The engine outlives the FaultLayers that stand with it. It knows nothing of RAID or volumes: who
// builds the stack tells it of events ("rebuild.start") and states ("rebuilding"), and passes
// callbacks for what it cannot do itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fault/firing.h"
#include "fault/rule.h"
#include "fault/rule_shelf.h"
#include "fault/targets.h"
#include "runtime/executor.h"
#include "runtime/probe.h"
#include "runtime/random.h"

namespace sandbay::fault {

class FaultLayer;
class PathRules;
class Post;
struct ActiveRule;
struct Fired;

inline constexpr std::size_t kMostRules = 10'000;
// Firings of a rule, and rules that were cleared, which replay() has.
inline constexpr std::size_t kMostReplayed = 300;

struct Counters {
  std::uint64_t matched = 0;  // Operations, events or times that fitted.
  std::uint64_t fired = 0;    // Of these, how often the fault began or struck.
  std::uint64_t struck = 0;   // Operations that the fault concerned.
  std::uint64_t spared = 0;   // Firings given up: tolerance, or no room for the damage.
  bool operator==(const Counters&) const = default;
};

// All that has fired, as rules: with the same seed, and the same operations at the same times, they
// do the same again, whatever chance there was.
struct Replay {
  std::uint64_t seed = 0;
  std::vector<std::string> rules;
  bool complete = true;  // False: some of it is missing, or cannot be said by rules.
};

// One rule in a set, and what is wrong with it.
struct WrongRule {
  std::size_t index = 0;
  std::string text;
};

struct RuleView {
  std::string id;
  std::string text;  // parse_rule() makes the same rule of it.
  bool enabled = true;
  bool active = false;   // A fault of it lasts now.
  std::size_t held = 0;  // Operations that it holds now.
  Counters counters;
};

// All of them are called on the home executor, in the middle of an operation: they must not call
// the engine, except for `on_firing` and `on_health`, which may notify().
struct FaultEngineOptions {
  std::uint64_t seed = 1;
  std::size_t journal_entries = 4096;
  std::function<void(const Firing& firing)> on_firing = {};
  std::function<void(const std::string& drive, Health health)> on_health = {};
  // within=tolerance: may this drive have this fault now? Without it: never.
  std::function<bool(const Rule& rule, const std::string& drive)> may_fail = {};
  // do=insert content=other: the device that is inserted, which lives as long as the layer; null:
  // there is none. Without it the rule is refused.
  std::function<BlockDevice*(const std::string& drive)> other_content = {};
  // do=rebalance.kill: the process ends here and now. Without it the rule is refused.
  std::function<void(const Rule& rule)> on_kill = {};
  // After every power target of a cut has been cut, in the same instant.
  std::function<void(const Rule& rule)> on_power_cut = {};
};

class FaultEngine final : public ProbeDecider {
 public:
  FaultEngine(Executor& home, FaultEngineOptions options);
  ~FaultEngine();  // Its layers have gone.
  FaultEngine(const FaultEngine&) = delete;
  FaultEngine& operator=(const FaultEngine&) = delete;

  Executor& home() const noexcept { return home_; }
  std::uint64_t seed() const noexcept { return options_.seed; }

  // Rules. --------------------------------------------------------------------------------------
  // The rule's id, or one line that names what is wrong and what would be accepted. A rule that
  // waits for nothing fires at once.
  std::expected<std::string, std::string> add(std::string_view text);
  std::expected<std::string, std::string> add(Rule rule);
  // Adds all rules or none, in any order, and returns their ids.
  std::expected<std::vector<std::string>, WrongRule> add_all(std::vector<Rule> rules);
  std::expected<void, std::string> add_all(std::span<const std::string> texts);
  // Ends what the rule does: drives return, held operations end. Damage to data stays until it is
  // overwritten or healed. False if there is no such rule.
  bool clear(std::string_view id);
  void clear_all();
  bool enable(std::string_view id, bool enabled);  // Disabling ends what the rule does.
  // Lets the operations go on that the rule holds; their number, or -1 without such a rule.
  std::ptrdiff_t release(std::string_view id);
  std::vector<RuleView> list() const;  // In the order of adding.
  // Up to `most` of those whose number is higher than `after`, which becomes the last one's.
  std::vector<RuleView> list(std::uint64_t* after, std::size_t most) const;
  std::optional<RuleView> view(std::string_view id) const;
  const Journal& journal() const noexcept { return journal_; }
  Replay replay() const;
  // Takes the damage (defects, overlay) of a drive away; its name, or nothing without such a drive.
  std::optional<std::string> heal(std::string_view drive);

  // What happens around. ------------------------------------------------------------------------
  void notify(std::string_view event);
  void set_state(std::string_view name, std::int64_t value);
  std::int64_t state(std::string_view name) const;
  // Every probe that is passed is an event of its name; rules can wait for it. What values of maps
  // pass ("map.read", "map.write"; pool/sealed.h) may be damaged there.
  ProbeVerdict decide(const ProbePoint& point) override;

  // What can be broken. -------------------------------------------------------------------------
  // The post of an executor, on which sites are made.
  std::shared_ptr<Post> post(const Executor& executor) const;
  // Ends when all sites obey the rules as they are now.
  Task<void> settle();
  void fired_at_sites(std::span<const Fired> all, std::uint64_t unrecorded);
  // Layers do this themselves.
  void attach(FaultLayer& layer);
  void detach(FaultLayer& layer);
  // By controller name: "A". The target outlives the engine or is removed first.
  void add_nvram(std::string name, NvramFaultTarget& target);
  void remove_nvram(std::string_view name);
  // By name, before rules that name it; layers of its sets may come and go (FaultLayerOptions).
  void add_member(std::string name);
  bool has_layers() const noexcept { return !layers_.empty(); }
  // What a rule may name after at=, as it writes it.
  std::vector<std::string> places() const;
  // Enclosure status: whether a psu, fan or temp fault lasts.
  bool enclosure_has(Fault fault, std::string_view enclosure = {}) const;

 private:
  friend class FaultLayer;
  using RulePointer = std::shared_ptr<ActiveRule>;

  // The rules that strike this operation, in the order of adding.
  std::vector<RulePointer> judge(FaultLayer& layer, const Request& request,
                                 std::uint64_t operation);
  bool condition_holds(const ActiveRule& active) const;
  bool states_hold(const Rule& rule) const;
  bool decides_to_fire(ActiveRule& active);
  // Its event has come, or another rule hands over to it.
  void trigger(const RulePointer& active);
  // Whether sites may strike by it, as of now.
  void tell_sites(const ActiveRule& active) const;
  void publish();  // Hands the rules to all posts.
  // A match that is no operation: an event, a time, a state, another rule.
  void consider(const RulePointer& active);
  void fire(const RulePointer& active, FaultLayer* layer, std::uint64_t operation, Extent extent);
  void fire_at(const RulePointer& active, std::span<FaultLayer* const> layers,
               std::uint64_t operation, Extent extent);
  void fire_drive(const RulePointer& active, FaultLayer& layer, std::uint64_t operation,
                  Extent extent);
  void fire_nvram(ActiveRule& active);
  void fire_member(const RulePointer& active, bool counted);
  void fire_kill(const RulePointer& active);
  // What strikes a value of a map.
  ProbeVerdict judge_value(const ProbePoint& point);
  void fire_power(ActiveRule& active, std::span<FaultLayer* const> layers);
  void begin_duration(ActiveRule& active);
  void after_firing(const RulePointer& active);
  void follow_up(ActiveRule& active);
  void end(ActiveRule& active);  // What lasts, ends.
  static void timer_fired(Timer& timer);
  void start(const RulePointer& active);
  void record(ActiveRule& active, std::string target, std::uint64_t operation, Extent extent,
              std::string effect);
  void record(ActiveRule& active, Firing firing);
  void append(Firing firing);  // To the journal.
  void begin_at_site(const RulePointer& active, TimePoint time);
  void tell_of_firing(const RulePointer& active);
  void note_drawn(ActiveRule& active, const Fired& fired);

  std::string refusal(const Rule& rule) const;  // Empty: acceptable.
  std::string refusal_of_place(const Rule& rule) const;
  // The name of the member that at=member:NAME or at=member:NUMBER means; empty: none.
  std::string member_at(const Place& place) const;
  std::string refusal_at(const Rule& rule, const FaultLayer& layer) const;
  static bool strikes_one(const Rule& rule);  // Its fault happens to the operation that matched.
  std::string free_id(const std::set<std::string>& reserved, std::size_t* number) const;
  RulePointer insert(Rule rule);
  // Without a word to layers or posts about the rules that are left.
  void drop(const RulePointer& active);
  void drop_all();
  RulePointer find(std::string_view id) const { return rules_.find(id); }
  RuleView view_of(const ActiveRule& active) const;
  struct Pinned {
    Rule rule;
    bool follows = false;  // See ActiveRule.
  };
  Pinned pinned(const ActiveRule& active) const;
  bool can_be_pinned(const ActiveRule& active) const;
  void keep_for_replay(const ActiveRule& active);
  std::vector<FaultLayer*> layers_at(const Place& place) const;
  // The same of a rule, which may be of a member's drives instead of its sets.
  std::vector<FaultLayer*> layers_of(const Rule& rule) const;
  FaultLayer* find_layer(std::string_view name) const;
  void relink();  // Tells every layer which rules concern it.
  bool may_fail(const ActiveRule& active, const FaultLayer& layer) const;

  Executor& home_;
  FaultEngineOptions options_;
  TimePoint started_;
  Journal journal_;
  RuleShelf rules_;
  std::vector<std::shared_ptr<Post>> posts_;  // By the executors' indices.
  std::shared_ptr<const PathRules> published_;
  std::size_t free_from_ = 0;                // Ids up to r<this> are not free.
  std::uint64_t added_ = 0;                  // Rules, ever.
  std::map<std::uint64_t, Pinned> cleared_;  // By the rules' numbers, if they fired.
  bool kept_all_ = true;                     // Nothing that fired is missing in a replay.
  std::vector<FaultLayer*> layers_;
  std::map<std::string, NvramFaultTarget*, std::less<>> nvrams_;
  std::vector<std::string> members_;
  std::map<std::string, std::int64_t, std::less<>> states_;
  unsigned nesting_ = 0;  // Of rules that start one another.
};

}  // namespace sandbay::fault
