// ActiveRule: a rule that an engine has taken in, with its stream, its counters and what of it
// lasts. Shared by the engine and by the operations that it strikes: one that is held when the rule
// is cleared still finds it, marked as ended.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fault/engine.h"
#include "fault/path_rules.h"
#include "fault/traits.h"
#include "runtime/random.h"
#include "runtime/timer.h"

namespace sandbay::fault {

struct ActiveRule {
  ActiveRule(FaultEngine& owner, Rule taken, Random stream)
      : engine(owner), rule(std::move(taken)), random(stream.fork()), decisions(stream.fork()) {
    refresh();
  }

  void refresh() {
    operations = struck_operations(rule);
    operational = looks_at_operations(rule);
    limit = firing_limit(rule);
  }

  FaultEngine& engine;
  Rule rule;
  std::shared_ptr<PathRule> path;  // Null: of_path() is not true of it.
  Random random;                   // For the effects,
  Random decisions;                // and for p=, which therefore does not shift the effects.
  Counters counters;

  // Of the rule, for every operation.
  std::uint8_t operations = 0;
  bool operational = false;
  std::uint64_t limit = 0;

  std::uint64_t seen = 0;            // Matches towards after= and every=.
  std::uint64_t fired_times = 0;     // Towards count=.
  std::vector<std::uint64_t> drawn;  // Matches that p= let fire; see FaultEngine::replay().
  std::string drawn_at;              // The site that these are of,
  std::string drawn_place;           // and its name as the rule's place.
  TimePoint added{};                 // The engine's start, if nothing had come before it.
  std::uint64_t number = 0;          // In the order of adding.
  bool follows = false;              // Started to wait for the `then` of another rule.
  bool recorded = false;             // In the journal, since it was reset.
  bool armed = false;                // Its event has come; without one from the start.
  bool ended = false;                // Cleared.
  bool state_held = false;           // Its state tests held when last looked at.
  bool opening = false;              // The timer waits for from=, otherwise for the end.
  TimePoint active_until{};          // The end of for= or until=; kNever: no end is set.
  Timer timer;
  std::vector<FaultLayer*> lasting_at;
  std::vector<NvramFaultTarget*> low_batteries;
  bool enclosure_lasts = false;  // A status of an enclosure, or the loss of a shelf.
  bool member_lasts = false;     // What strikes a member strikes sets of it that come later, too.
};

}  // namespace sandbay::fault
