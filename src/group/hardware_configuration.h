// HardwareConfiguration: the drives, RAID sets, NVRAM, cache and faults that a configuration file
// describes, checked, as plain values.
//
// What can be judged from the text alone has been judged: every drive has one use, every set can be
// made of its drives as far as their sizes are known, every rule can be read. What is on the drives
// is another matter: their superblocks say which set they belong to, not the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "group/cache_configuration.h"
#include "iscsi/transfer_pace.h"
#include "model/controller.h"
#include "nvram/nvram.h"
#include "raid/assembly.h"
#include "runtime/clock.h"

namespace sandbay::fault {
struct Rule;
}

namespace sandbay::model {
class DriveType;
}

namespace sandbay::group {

class Mistakes;
class TableReader;

inline constexpr std::size_t kMostMemberDrives = 256;
inline constexpr std::size_t kMostSetSections = 64;
inline constexpr std::uint64_t kSmallestDriveBytes = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kLargestDriveBytes = std::uint64_t{1} << 50;
// What the journal of one set takes in NVRAM.
inline constexpr std::uint64_t kNvramJournalBytes = std::uint64_t{16} << 20;

enum class Medium : std::uint8_t { kFile, kDevice, kMemory };
std::string_view describe(Medium medium);  // "file", "device", "memory"

struct DriveConfiguration {
  std::string name;
  Medium medium = Medium::kFile;
  std::string path;              // kFile, kDevice. A relative path starts at the state directory.
  std::uint64_t size_bytes = 0;  // 0: as large as what is there.
  std::uint32_t block_bytes = 512;
  bool rotational = false;
  bool spare = false;  // Of all sets.
  // As what it is timed, and where on that it begins; null: as fast as the host allows.
  std::shared_ptr<const model::DriveType> type;
  std::string profile;   // As the file calls it.
  bool changed = false;  // The type has other values than that.
  std::uint64_t begin_bytes = 0;
  bool whole = false;  // The size is what the profile's drive has, and nobody wrote it.
  std::string enclosure;
  std::string serial;
  std::uint32_t line = 0;
};

enum class JournalPlace : std::uint8_t { kDrives, kNvram };

struct SetConfiguration {
  std::string name;
  raid::Level level = raid::Level::kRaid5;
  unsigned group_count = 0;  // 0: the level's default.
  std::vector<std::string> drives;
  std::vector<std::string> spares;
  std::uint32_t strip_bytes = 64U << 10;
  bool integrity = false;
  Duration verify_every{};                     // Zero: on request only.
  std::optional<std::uint64_t> rebuild_bytes;  // A second, under load; none: the default.
  JournalPlace journal = JournalPlace::kDrives;
  std::optional<std::uint64_t> journal_bytes;  // On each drive; none: as much as is good.
  bool level_known = false;                    // False: a mistake, noted.
  bool name_good = false;                      // Likewise.
  // Of the section and of its keys; the section's where a key is not there.
  std::uint32_t line = 0;
  std::uint32_t level_line = 0;
  std::uint32_t groups_line = 0;
  std::uint32_t drives_line = 0;
  std::uint32_t spares_line = 0;
  std::uint32_t journal_line = 0;
};

struct NvramConfiguration {
  std::string path = "nvram.img";  // A relative path starts at the state directory.
  std::uint64_t size_bytes = std::uint64_t{64} << 20;
  nvram::Durability durability = nvram::Durability::kProcess;
  nvram::BatteryState battery = nvram::BatteryState::kGood;
  bool power_loss_only_emulated = false;
  // The image of the partner controller, which holds the same writes; empty: none. A relative path
  // starts at the state directory.
  std::string mirror_path;
  bool mirror_required = false;  // Without it nothing counts as non-volatile.
  // Of the section and of its keys; the section's where a key is not there.
  std::uint32_t line = 0;
  std::uint32_t size_line = 0;
  std::uint32_t mirror_line = 0;
};

struct FaultsConfiguration {
  bool enabled = false;
  std::uint64_t seed = 1;
  std::vector<std::string> rules;
  std::uint32_t line = 0;  // Of the rules.
};

struct HardwareConfiguration {
  std::vector<DriveConfiguration> drives;
  std::vector<SetConfiguration> sets;
  std::optional<NvramConfiguration> nvram;
  std::optional<CacheConfiguration> cache;
  // As what the controller is timed; none: as fast as the host allows.
  std::optional<model::ControllerProfile> controller;
  iscsi::TransferPace pace;  // With which it asks hosts for data of writes, before time_scale.
  FaultsConfiguration faults;
  double time_scale = 1;  // Real seconds in one of modelled hardware; see model/model_clock.h.

  const DriveConfiguration* drive(std::string_view name) const;
  const SetConfiguration* set(std::string_view name) const;
};

// Reads the sections [[drive]], [[raid]], [nvram], [cache] and [controller]; mistakes are noted.
// The file is in `folder`, from which profiles of drives are looked for.
void read_hardware(TableReader& root, const std::filesystem::path& folder, Mistakes& mistakes,
                   HardwareConfiguration& hardware);
// Reads the section [faults], whose rules strike what all members have, `hardware` and `others`,
// and the members of these names.
void read_faults(TableReader& root, Mistakes& mistakes, HardwareConfiguration& hardware,
                 const std::vector<const HardwareConfiguration*>& others,
                 const std::vector<std::string>& names);
// Why a rule waits for an event that never comes; nothing: it does not.
std::optional<std::string> event_error(const fault::Rule& rule);

// What raid::Controller is asked for to make this set.
raid::NewSet new_set_of(const SetConfiguration& set, const Uuid& group_uuid);
// How many bytes the set will have; nothing if some drive's size is not known from the file.
std::optional<std::uint64_t> planned_bytes(const HardwareConfiguration& hardware,
                                           const SetConfiguration& set);

}  // namespace sandbay::group
