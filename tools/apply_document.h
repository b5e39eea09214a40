// ApplyDocument: what `sandbay apply` reads: pools, volumes, who may use them, and when snapshots
// are taken, in TOML or JSON with the keys that the configuration file and REST have.
//
// It is read as strictly as those: unknown keys, wrong types and references that lead nowhere are
// refused by file, line and key. Values are kept as REST takes them (sizes in bytes), and only
// those that the file gives: what it leaves out is nobody's business.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sandbay::cli {

struct WantedVolume {
  std::string name;
  nlohmann::json keys = nlohmann::json::object();
  std::vector<nlohmann::json> access;
  std::vector<nlohmann::json> schedules;
};

struct ApplyDocument {
  std::vector<nlohmann::json> pools;
  std::vector<WantedVolume> volumes;
};

// What a key of a volume may do once the volume is there.
struct VolumeKey {
  enum class Type { kText, kSize, kRate, kNumber, kFlag, kPath, kReserve };
  std::string_view name;
  Type type = Type::kText;
  bool changeable = false;
  bool when_made = true;  // REST takes it when the volume is made.
};
const std::vector<VolumeKey>& volume_keys();

// Throws Failure, with the first mistake.
ApplyDocument read_apply_document(const std::string& path);

}  // namespace sandbay::cli
