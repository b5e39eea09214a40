// ApplyPlan: what lies between a document and what the daemon has, as requests in the order in
// which they can be made. Pure: it is given what is there.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tools/apply_document.h"

namespace sandbay::cli {

// What the daemon answers to lists.
struct PresentGroup {
  std::vector<nlohmann::json> pools;
  std::vector<nlohmann::json> volumes;
  std::set<std::string> targets;                                 // Their names.
  std::map<std::string, std::vector<nlohmann::json>> access;     // By target.
  std::map<std::string, std::vector<nlohmann::json>> schedules;  // By volume.
};

struct ApplyStep {
  char sign = '+';   // '+' comes, '~' changes, '-' goes.
  std::string text;  // "volume db1: size 50.00 GiB -> 100.00 GiB"
  std::string method;
  std::string path;
  nlohmann::json body;  // Null: none.
};

// The target of a volume in the document: what it says, or what it has, or is going to have.
std::string target_of(const WantedVolume& volume, const std::vector<nlohmann::json>& present);

// Throws Failure for what no request can bring about. With `prune`, what the document does not name
// goes; what the daemon's own configuration declares stays.
std::vector<ApplyStep> plan_apply(const ApplyDocument& wanted, const PresentGroup& present,
                                  bool prune);

// One line: what step `done` was refused for, with how many were made before it.
std::string stopped_words(const std::vector<ApplyStep>& steps, std::size_t done,
                          const std::string& why);

}  // namespace sandbay::cli
