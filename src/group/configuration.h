// Configuration: what a TOML file says about a group, checked, as plain values.
//
// Everything that can be judged from the text alone has been judged once these structs exist:
// names, sizes, addresses, iSCSI keys, references between sections. A file with a mistake gives
// lines of the form `FILE:LINE: KEY: what is wrong; what would be accepted`. man/sandbayd.toml.5
// describes every key.
#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "group/cache_configuration.h"
#include "group/hardware_configuration.h"
#include "group/identity_configuration.h"
#include "group/management_configuration.h"
#include "group/member_configuration.h"
#include "group/naa.h"
#include "group/pool_configuration.h"
#include "group/portal_configuration.h"
#include "group/remote_configuration.h"
#include "group/snapshot_reserve.h"
#include "iscsi/target_server.h"
#include "runtime/io.h"
#include "runtime/reactor.h"

namespace sandbay::group {

inline constexpr std::string_view kTargetNamePrefix = "iqn.2026-11.org.sandbay:";
inline constexpr std::uint64_t kSmallestVolumeBytes = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kLargestVolumeBytes = std::uint64_t{1} << 50;
inline constexpr std::uint32_t kLargestLun = 16383;  // Flat space addressing.
// SBC-3 clause 6.6.3: the range of MEDIUM ROTATION RATE; 0 and 1 are special.
inline constexpr std::uint32_t kLeastRotation = 0x0401;
inline constexpr std::uint32_t kMostRotation = 0xfffe;
inline constexpr std::size_t kLongestName = 63;

enum class Backing : std::uint8_t {
  kState,   // A sparse file that the group keeps in its state directory.
  kFile,    // An image file named by the user, served byte for byte.
  kDevice,  // A block device node.
  kMemory,  // Lost when the daemon ends.
  kRaid,    // A part of a RAID set.
  kPool,    // Pages of a pool.
};
// "state", "file", "device", "memory", "raid", "pool"
std::string_view describe(Backing backing);

// What a volume is, apart from who may use it. Also what a create request at run time says.
struct VolumeSpecification {
  std::string name;
  Backing backing = Backing::kState;
  std::string path;              // kFile, kDevice. A relative path starts at the state directory.
  std::string raid;              // kRaid: the set's name.
  std::string pool;              // kPool: the pool's name.
  std::string on;                // kPool: the set of the pool that it is to lie on; empty: any.
  std::string raid_level;        // kPool: where it would rather lie; empty: anywhere.
  std::uint64_t size_bytes = 0;  // 0: as large as what lies below (kFile, kDevice).
  std::uint32_t block_bytes = 512;
  std::uint32_t physical_block_bytes = 4096;
  bool preallocate = false;
  bool thin =
      true;  // Tells initiators that UNMAP frees space. kPool: takes pages as it is written.
  // kPool, thin: percents of its size in pages. Having taken so much is told, and is the most that
  // it may take.
  std::uint32_t thin_warning = 80;
  std::uint32_t thin_limit = 100;
  // kPool: what its snapshots may take, and what happens when that is full.
  SnapshotReserve snapshot_reserve;
  ReservePolicy reserve_policy = ReservePolicy::kDeleteOldest;
  // kPool: what hosts may do with it in a second; 0: as much as they can.
  std::uint64_t operations_limit = 0;
  std::uint64_t bytes_limit = 0;
  bool read_only = false;
  bool write_cache = true;  // WCE at power on; without it every write is flushed.
  // What the controller's cache does with it; kRaid.
  cache::Mode cache = cache::Mode::kWriteBack;
  std::string serial;                // Empty: from the volume's UUID.
  std::optional<NaaIdentifier> naa;  // None: from the UUID.
  std::optional<Eui64> eui64;        // Unset: no such designator.
  bool removable = false;            // A removable medium: RMB, and LOEJ ejects and loads.
  // MEDIUM ROTATION RATE, revolutions a minute; 1: no rotation; 0: by the device below.
  std::uint32_t rotation = 0;
  // MAXIMUM UNMAP LBA COUNT and MAXIMUM WRITE SAME LENGTH, in bytes; 0: the logical unit's default.
  std::uint64_t unmap_limit_bytes = 0;
  std::uint64_t write_same_limit_bytes = 0;
  std::string vendor;  // Empty, as the next two: what the group's identity says.
  std::string product;
  std::string revision;
  std::string target;                // Full name; empty: by the group's identity.
  std::optional<std::uint32_t> lun;  // None: the lowest that is free on the target.
};

// What a description of a volume does not say, and the group decides.
struct OpenChoices {
  bool backing = false;  // The one pool, if there is one; otherwise a file in the state directory.
  bool thin = false;     // Not on a pool, elsewhere unless preallocated.
  bool block_bytes = false;  // The pool's, or 512.
};

struct AccessConfiguration {
  iscsi::AccessRecord record;
  std::uint32_t line = 0;  // In the configuration file; 0: added at run time.
};

struct TargetConfiguration {
  std::string name;
  iscsi::TargetOptions options;  // Without name, device and access.
  std::vector<AccessConfiguration> access;
  std::uint32_t line = 0;
};

struct VolumeConfiguration {
  VolumeSpecification specification;
  OpenChoices open;
  bool cache_given = false;  // The file says what the cache does with it.
  std::uint32_t line = 0;
};

// Less where a machine or a control group has less than twice as much.
inline constexpr std::uint64_t kDefaultMemoryLimit = std::uint64_t{1} << 30;

struct Configuration {
  std::string file;  // As it was named; for messages.
  std::string group_name;
  std::string uuid;  // Canonical lower-case text; empty: made on the first start.
  std::filesystem::path state;
  std::uint64_t memory_limit_bytes = kDefaultMemoryLimit;
  unsigned reactors = 0;  // 0: one a processor.
  IoMethod io = IoMethod::kAuto;
  ManagementConfiguration management;
  std::vector<PortalConfiguration> portals;  // The group's, and those of its members here.
  iscsi::ServerLimits limits;
  iscsi::DiscoveryOptions discovery;
  IdentityConfiguration identity;
  HardwareConfiguration hardware;
  std::string member = "array1";             // What the hardware at the top of the file is called.
  std::vector<MemberConfiguration> members;  // The others here,
  std::vector<RemoteMemberConfiguration> remotes;  // and elsewhere.
  // This daemon is itself a member, of the group whose lead comes there; it has no volumes.
  std::optional<LeadConfiguration> lead;
  std::vector<PoolConfiguration> pools;
  std::vector<VolumeConfiguration> volumes;
  bool holds_secret = false;  // The file itself, not only a file that it names.
  nvram::ImageOpener open_image = nvram::open_mapped;  // A simulation has boards.
  // Every target that a section [[target]] or an access record of a volume describes; access
  // records given with a volume have been moved to its target.
  std::vector<TargetConfiguration> targets;
};

// The error holds every mistake, a line each, in the order of the file; never empty.
using ConfigurationResult = std::expected<Configuration, std::vector<std::string>>;

// Why the file must be less accessible: it holds a CHAP secret that other users can read. Blocks.
std::optional<std::string> exposed_secret(const Configuration& configuration);

ConfigurationResult load_configuration(const std::filesystem::path& file);
// The same from text; `file` stands in messages and is where relative secret files start.
ConfigurationResult parse_configuration(std::string_view text, const std::filesystem::path& file);
// The same from its values, in their full form (document_forms.h).
ConfigurationResult read_configuration(const Value& document, Mistakes& mistakes,
                                       const std::filesystem::path& file);

// The rules for single values that REST shares with the file; the error is half a sentence.
std::optional<std::string> check_volume_name(std::string_view name);
std::optional<std::string> check_target_name(std::string_view name);
std::optional<std::string> check_initiator_pattern(std::string_view pattern);
std::optional<std::string> check_address_pattern(std::string_view pattern);
std::optional<std::string> check_access(const iscsi::AccessRecord& record);
std::optional<std::string> check_chap(const iscsi::ChapCredential& credential);
std::optional<std::string> check_chap_digest(std::string_view name);
std::optional<std::string> check_redirect(std::string_view address);
// A login key that a target sets, and its value.
std::optional<std::string> check_key(std::string_view key, std::string_view value);
// Sizes, block sizes and identities against one another.
std::optional<std::string> check_specification(const VolumeSpecification& specification);
// Rotation rate and limits alone, which a block size found later may make invalid.
std::optional<std::string> check_presentation(const VolumeSpecification& specification);
// Of a new one; those that are there may have such limits, which count for nothing.
std::optional<std::string> check_thin_choices(const VolumeSpecification& specification);
// A portal and the management interface cannot listen at one address.
std::optional<std::string> check_apart(const Endpoint& management, const Endpoint& portal);
bool is_loopback(const Endpoint& endpoint);
// Where management may make files and open devices for volumes.
std::vector<std::filesystem::path> allowed_volume_paths(const Configuration& configuration);

std::string default_target_name(std::string_view volume);
// The name in lower case, and without what an iSCSI name cannot have.
std::string name_for_iscsi(std::string_view name);

}  // namespace sandbay::group
