// Fault rules that do to a volume what the device-mapper targets flakey, dust, delay and error do
// to a block device, with their words and units.
#pragma once

#include <string>
#include <vector>

namespace sandbay::cli {

// As rules write times: "10s". Empty: not given.
struct FlakyPreset {
  std::string up = "10s";
  std::string down = "2s";
  bool drop_writes = false;   // While it is down writes are lost, and reads are served.
  bool error_writes = false;  // While it is down writes fail, and reads are served.
};

struct DelayPreset {
  std::string read;
  std::string write;
  std::string flush;
};

// Rules for a volume, whose ids begin with the preset's name and the volume's. They throw CLI11's
// errors for values that make no sense.
std::vector<std::string> flaky_rules(const std::string& volume, const FlakyPreset& preset);
// Reads of these blocks fail until they have been written. `blocks`: "4096-4100,5000"; `run` tells
// presets apart that one volume gets one after another.
std::vector<std::string> dust_rules(const std::string& volume, const std::string& blocks,
                                    const std::string& run);
std::vector<std::string> delay_rules(const std::string& volume, const DelayPreset& preset);
std::vector<std::string> error_rules(const std::string& volume);

}  // namespace sandbay::cli
