// RunSession: what `sandbay run` does once it knows what is wanted: it starts a daemon, makes what
// the command needs, runs the command, and ends the daemon.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/commands.h"
#include "tools/fault_rules.h"
#include "tools/keeper.h"

namespace sandbay::cli {

struct NewVolume {
  std::string name;
  std::uint64_t bytes = 0;
};

struct RunPlan {
  std::string daemon;                // Its program, found as a shell would.
  std::string config;                // The daemon's configuration file,
  std::string own_config;            // which is made with this text, if there is one.
  std::filesystem::path folder;      // For all that the daemon keeps,
  int lock = -1;                     // and its lock, which the daemon holds too.
  std::vector<std::string> portals;  // Empty: free ports.
  std::vector<NewVolume> volumes;    // Besides those of the file.
  bool faults = false;               // Whether faults can be added, whatever the file says.
  bool rules_given = false;          // With --faults, though there may be none in the file.
  std::vector<FaultRule> rules;
  std::vector<std::string> command;
};

// Returns what `sandbay run` is to end with; one line on standard error says what failed.
// `settings` say how to reach the daemon but for its address and token.
int run_session(Worker& worker, const Management& settings, const RunPlan& plan);

// The variable that has a volume's URL: SANDBAY_URL_ and its name.
std::string variable_of(std::string name);
// One line on standard error, even if nobody reads it any more.
void say_error(const std::string& line);

}  // namespace sandbay::cli
