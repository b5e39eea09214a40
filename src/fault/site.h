// Site: a place between hosts and volumes that rules can strike, such as a LUN, on its executor.
// Post: the sites of one executor; it takes over new rules and sends home what has fired.
//
// A site counts for itself: after=, every=, count= and p= of a rule that concerns several sites
// hold at each of them, and each draws from a stream of its own. So what happens at one does not
// depend on which executors the others are on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
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
  bool begins = false;       // Not a further strike while it lasts.
  std::string site;          // The name of the place.
};

// A command at its site, while it asks. Views are valid during the call only.
struct Occasion {
  std::uint8_t opcode = 0;
  std::uint8_t operation = 0;  // The bit of what it does with blocks; 0: nothing.
  Extent extent;
  bool force_unit_access = false;
  std::string_view initiator;  // Its name.
  std::uint64_t depth = 0;     // Commands in the task set, this one included.
  std::string_view name;       // For the journal: "READ(10)".
  bool arrives = true;         // It has not asked before.
  // Units serve it in any state, as INQUIRY: rules that do not name its code pass it.
  bool always_served = false;
};

class Site {
 public:
  Site(std::shared_ptr<Post> post, Place place);  // On the post's executor.
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  // No rule concerns it.
  bool quiet() const noexcept { return entries_.empty(); }
  // The first rule whose fault is one of these and strikes; rules that do nothing are passed on the
  // way. Null: none strikes. Valid until the rules change.
  const Rule* judge(const Occasion& occasion, const FaultSet& faults);
  void rename(std::string name);

 private:
  friend class Post;
  struct Entry {
    std::shared_ptr<PathRule> shared;
    Random decisions;
    std::uint64_t seen = 0;   // Matches towards after= and every=.
    std::uint64_t fired = 0;  // Towards count=.
    TimePoint active_until{};
    std::uint32_t ended = 0;  // The rule's number of ends when that was set.
  };

  void link(const PathRules& rules);
  std::span<const std::uint32_t> listed(std::size_t key) const;
  bool decides(Entry& entry) const;
  bool strikes(Entry& entry, const Occasion& occasion);

  std::shared_ptr<Post> post_;
  Place place_;
  std::uint64_t operations_ = 0;  // While rules concerned it.
  std::vector<Entry> entries_;    // In the order of the rules' numbers.
  // The entries that look at each key, an operation code or what a command does with blocks: from
  // first_[key] to first_[key + 1] of listed_.
  std::vector<std::uint32_t> first_;
  std::vector<std::uint32_t> listed_;
};

class Post : public std::enable_shared_from_this<Post> {
 public:
  Post(Executor& here, Executor& home, FaultEngine& engine, std::shared_ptr<const PathRules> rules);

  Executor& here() const noexcept { return here_; }
  // On its executor. The caller owns the site, and may let it go on any executor.
  std::shared_ptr<Site> make_site(Place place);
  // On its executor: all sites obey these rules when it ends.
  Task<void> adopt(std::shared_ptr<const PathRules> rules);
  // On its executor: ends when no site obeys older rules than these.
  Task<void> settle();
  // The engine has gone; at home.
  void leave_engine() noexcept { engine_ = nullptr; }

 private:
  friend class Site;
  struct Batch;
  static constexpr std::size_t kMostWaiting = 1024;

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
  // Firings that are to be sent home; one batch at a time is under way.
  std::vector<Fired> waiting_;
  std::uint64_t unrecorded_ = 0;  // Had no room.
  bool under_way_ = false;
};

}  // namespace sandbay::fault
