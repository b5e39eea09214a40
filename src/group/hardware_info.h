// What management is told of drives, sets and faults: what RAID says of them, and what the
// configuration adds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fault/engine.h"
#include "raid/controller.h"
#include "runtime/clock.h"

namespace sandbay::group {

std::string_view describe(Health health);  // "good", "degraded", "predicted failure" …

struct DriveInfo {
  raid::DriveInfo raid;   // An absent one: use and why say so.
  std::string medium;     // "file", "device", "memory"
  std::string path;       // Empty for memory.
  std::string enclosure;  // Empty: none.
  std::string serial;
  bool rotational = false;
  std::string member;
  // As what it is timed; empty: as fast as the host allows. How long its mechanism, or its units on
  // average, have been at work, and the commands that it has now.
  std::string profile;
  Duration modelled_busy{};
  std::uint64_t modelled_queue = 0;
  // Told by drives that can break; zeros otherwise.
  std::uint64_t unreadable_blocks = 0;
  std::uint64_t recovered_errors = 0;
  std::uint64_t wear_percent = 0;
  std::uint64_t temperature_celsius = 0;
};

struct SetInfo {
  raid::SetInfo raid;
  std::string member;
  bool declared = false;  // Stands in the configuration file.
  // In what drives and file disagree, and what the cache has to say; sentences.
  std::vector<std::string> notes;
  std::uint64_t free_bytes = 0;
  std::vector<std::string> volumes;
  Duration progress_age{};  // Of what goes on in the background.
};

struct FiringInfo {
  fault::Firing firing;
  WallTime time{};
};

struct FaultsInfo {
  bool enabled = false;
  std::uint64_t seed = 0;
  std::vector<fault::RuleView> rules;
  std::uint64_t firings = 0;
};

}  // namespace sandbay::group
