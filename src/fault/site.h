// Site: a LUN or a connection that rules can strike, on its executor. Post: the sites of one
// executor; it takes over new rules and sends firings home.
//
// A site counts for itself: after=, every= and p= of a rule that concerns several sites hold at
// each of them, and each draws from a stream of its own. So the strikes at one do not depend on
// which executors the others are on. count= alone is for all of them together.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fault/firing.h"
#include "fault/path_rules.h"
#include "fault/rule_words.h"
#include "runtime/executor.h"
#include "runtime/random.h"
#include "runtime/task.h"

namespace sandbay::fault {

class FaultEngine;
class Post;

// A firing on its way home from a site.
struct Fired {
  Firing firing;
  std::uint64_t number = 0;  // The rule's.
  std::uint64_t match = 0;   // Its number among the rule's at this site.
  std::uint32_t ended = 0;   // See PathRule, when it fired.
  bool begins = false;       // Not a further strike while it lasts.
  std::string site;          // Which one: its first place, as a rule writes it.
  std::string place;         // The name of the place that the rule names by its kind.
};

// A command or a PDU at its site, while it asks. Views are valid during the call only.
struct Occasion {
  std::optional<std::uint8_t> pdu;  // Its opcode (RFC 7143, section 11.2.1.2), without the I bit.
  std::optional<std::uint8_t> opcode;  // A SCSI command has one.
  std::optional<std::uint64_t> lun;    // Some PDUs have one.
  std::uint8_t operation = 0;          // The bit of what it does with blocks; 0: nothing.
  Extent extent;
  bool force_unit_access = false;
  std::string_view initiator;  // Its name.
  std::uint64_t depth = 0;     // Commands in the task set, this one included.
  std::string_view name;       // For the journal: "READ(10)".
  // Units serve it in any state, as INQUIRY: rules that do not name its code pass it.
  bool always_served = false;
};

class Site {
 public:
  // On the post's executor. A connection has several places; the first names the site.
  Site(std::shared_ptr<Post> post, std::vector<Place> places);
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  // No rule concerns it. Stays where it is while the site lives.
  const bool& quiet() const noexcept { return quiet_; }
  // From now on it is asked whatever the rules are: what one has done to it stays.
  void never_quiet() noexcept {
    engaged_ = true;
    quiet_ = false;
  }
  // A command or a PDU is at this stage: whether rules look at such, so that judge() is to be
  // asked. `code`: its opcode.
  bool looks_at(Stage stage, std::uint8_t code, std::uint8_t operation = 0) noexcept {
    if (stage != Stage::kAttention && stage != Stage::kStart) ++operations_;
    return looked_at_.test(key_of_code(stage, code)) ||
           looked_at_.test(key_of_operation(stage, operation));
  }
  // The first rule whose fault is one of these and strikes. Every other that fits counts and draws
  // all the same, lest one more rule shift the others. Null: none strikes. Valid until the rules
  // change.
  const Rule* judge(const Occasion& occasion, Stage stage, const FaultSet& faults);
  // A time for what judge() has just returned.
  Duration draw(const Latency& latency) { return fault::draw(latency, struck_->effects); }
  // Whether what judge() has just returned still lasts; to be asked at any time, on any executor.
  std::function<bool()> lasting() const;
  void rename(std::string name);

 private:
  friend class Post;
  // Kept for a rule that has fitted here.
  struct State {
    std::shared_ptr<PathRule> shared;
    Random effects;
    Random decisions;
    std::uint64_t seen = 0;  // Matches towards after= and every=.
    TimePoint active_until{};
    std::uint32_t ended = 0;  // The rule's number of ends when that was set.
  };
  // Rules that may concern it, and which do.
  struct Source {
    const RuleList* list = nullptr;
    std::vector<bool> concern;  // Empty: all.
  };

  void link(std::shared_ptr<const PathRules> rules);
  void add_patterns(const Place& place);
  State& state_of(const std::shared_ptr<PathRule>& rule);
  std::string target() const;
  static bool decides(State& state);
  bool strikes(State& state, const Occasion& occasion, bool spare);

  std::shared_ptr<Post> post_;
  std::vector<Place> places_;
  bool quiet_ = true;
  bool engaged_ = false;
  std::uint64_t operations_ = 0;  // Arrivals while rules concerned it.
  std::shared_ptr<const PathRules> rules_;
  std::vector<Source> sources_;
  std::bitset<kKeys> looked_at_;
  std::unordered_map<std::uint64_t, State> states_;  // By the rules' numbers.
  State* struck_ = nullptr;                          // The one that judge() returned.
};

class Post : public std::enable_shared_from_this<Post> {
 public:
  Post(Executor& here, Executor& home, FaultEngine& engine, std::shared_ptr<const PathRules> rules);

  Executor& here() const noexcept { return here_; }
  // On its executor. The caller owns the site, and may let it go on any executor.
  std::shared_ptr<Site> make_site(std::vector<Place> places);
  // On its executor: all sites obey these rules when it ends.
  Task<void> adopt(std::shared_ptr<const PathRules> rules);
  // On its executor: ends when no site obeys older rules than these.
  Task<void> settle();
  // The engine has gone; at home.
  void leave_engine() noexcept { engine_ = nullptr; }

 private:
  friend class Site;
  struct Batch;
  static constexpr std::size_t kMostWaiting = 256;

  void report(Fired fired);
  void send_home();
  void forget_sites();

  Executor& here_;
  Executor& home_;
  FaultEngine* engine_;  // Used at home alone.
  std::shared_ptr<const PathRules> rules_;
  std::vector<std::weak_ptr<Site>> sites_;
  std::vector<std::weak_ptr<Site>> outdated_;  // Obey older rules still.
  std::size_t forget_at_ = 64;
  // Firings that are to be sent home; one batch at a time is under way. One of each rule has
  // room in any case: states, followers and events depend on it.
  std::vector<Fired> waiting_;
  std::set<std::uint64_t> waiting_rules_;
  std::uint64_t unrecorded_ = 0;  // Had no room.
  bool under_way_ = false;
};

}  // namespace sandbay::fault
