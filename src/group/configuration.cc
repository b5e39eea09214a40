// Reads a configuration file section by section. Each function below takes one kind of section
// apart and notes every mistake; what concerns several sections is checked at the end.
#include "group/configuration.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "group/chap_configuration.h"
#include "group/claims.h"
#include "group/document_forms.h"
#include "group/identifiers.h"
#include "group/naa.h"
#include "group/units.h"
#include "iscsi/text.h"
#include "runtime/machine_memory.h"

namespace sandbay::group {

namespace {

constexpr std::uint64_t kLeastMemory = std::uint64_t{64} << 20;
constexpr std::uint64_t kMostMemory = std::uint64_t{1} << 42;
constexpr unsigned kMostReactors = 64;
constexpr double kLeastTimeScale = 0.01;
constexpr double kMostTimeScale = 100;

template <class Range, class Value, class Projection>
bool contains(const Range& range, const Value& value, Projection projection) {
  return std::ranges::find(range, value, projection) != std::ranges::end(range);
}

struct Reading {
  Configuration& result;
  Mistakes& mistakes;
  std::filesystem::path folder;  // Where relative secret files start.
};

void note(TableReader& reader, std::string_view key, const std::optional<std::string>& error) {
  if (error) reader.mistake(key, *error);
}

void read_group(const Value* section, Reading& reading) {
  TableReader reader(*section, "group", reading.mistakes);
  Configuration& result = reading.result;
  reader.require("name", "the group's name in quotes");
  if (const auto name = reader.string("name")) {
    note(reader, "name", check_volume_name(*name));
    result.group_name = *name;
  }
  reader.require("state", "the directory in which the group keeps its state");
  if (const auto state = reader.string("state")) {
    if (state->empty()) reader.mistake("state", "is empty; write a directory such as var/sandbay");
    result.state = *state;
  }
  if (const auto member = reader.string("member")) {
    note(reader, "member", check_volume_name(*member));
    result.member = *member;
  }
  read_role(reader, result);
  if (const auto uuid = reader.string("uuid")) {
    const auto parsed = parse_uuid(*uuid);
    if (!parsed) {
      reader.mistake("uuid", fmt::format("\"{}\" is not a UUID; write one such as "
                                         "0b4f8a50-5c0e-4c5e-9d0a-3c1b7f1f2a11, or leave it out",
                                         *uuid));
    } else {
      result.uuid = format_uuid(*parsed);
    }
  }
  if (const auto limit = reader.size("memory_limit", kLeastMemory, kMostMemory)) {
    result.memory_limit_bytes = *limit;
  } else {
    result.memory_limit_bytes = std::min(kDefaultMemoryLimit, memory_allowed() / 2);
  }
  if (const auto reactors = reader.integer("reactors", 1, kMostReactors)) {
    result.reactors = static_cast<unsigned>(*reactors);
  }
  if (const auto scale = reader.number("time_scale", kLeastTimeScale, kMostTimeScale)) {
    result.hardware.time_scale = *scale;
  }
  reader.finish();
}

void read_runtime(const Value& section, Reading& reading) {
  TableReader reader(section, "runtime", reading.mistakes);
  if (const auto word = reader.string("io")) {
    const auto method = parse_io_method(*word);
    if (!method) {
      reader.mistake("io", fmt::format("is \"{}\"; accepted are {}", *word, kIoMethods));
    }
    reading.result.io = method.value_or(IoMethod::kAuto);
  }
  reader.finish();
}

void read_limits(const Value* section, Reading& reading) {
  using std::chrono::hours;
  using std::chrono::seconds;
  TableReader reader(*section, "limits", reading.mistakes);
  iscsi::ServerLimits& limits = reading.result.limits;
  const auto number = [&](std::string_view key, std::uint32_t& target) {
    const auto value = reader.integer(key, 1, 1'000'000);
    if (value) target = static_cast<std::uint32_t>(*value);
  };
  const auto time = [&](std::string_view key, Duration least, Duration& target) {
    const auto value = reader.duration(key, least, hours(24));
    if (value) target = *value;
  };
  number("maximum_connections", limits.maximum_connections);
  number("maximum_logins_in_progress", limits.maximum_logins_in_progress);
  time("login_timeout", std::chrono::milliseconds(100), limits.login_timeout);
  time("nop_in_interval", seconds(0), limits.nop_in_interval);
  if (limits.nop_in_interval > Duration::zero() &&
      limits.nop_in_interval < std::chrono::milliseconds(100)) {
    reader.mistake("nop_in_interval",
                   "would keep every session busy with it; write at least \"100ms\", or \"0s\" for "
                   "never");
  }
  time("nop_in_timeout", seconds(1), limits.nop_in_timeout);
  time("send_stall_timeout", seconds(1), limits.send_stall_timeout);
  if (const auto value = reader.duration("logout_time", seconds(1), iscsi::kLongestLogoutTime)) {
    limits.logout_time = *value;
    if (*value % seconds(1) != Duration::zero()) {
      reader.mistake("logout_time", "is not a whole number of seconds; write one such as \"15s\"");
    }
  }
  reader.finish();
}

std::vector<AccessConfiguration> read_access(TableReader& owner, Reading& reading) {
  std::vector<AccessConfiguration> list;
  for (const Value* section : owner.tables("access")) {
    TableReader reader(*section, fmt::format("{}[{}]", owner.path_of("access"), list.size() + 1),
                       reading.mistakes);
    AccessConfiguration access{.line = section->line};
    reader.require("initiator", "an initiator's name, or \"*\" for every one");
    if (const auto initiator = reader.string("initiator")) {
      note(reader, "initiator", check_initiator_pattern(*initiator));
      access.record.initiator = *initiator;
    }
    if (const auto address = reader.string("address")) {
      note(reader, "address", check_address_pattern(*address));
      access.record.address = *address;
    }
    access.record.chap = read_chap(reader, "chap_", reading.folder);
    reader.finish();
    list.push_back(std::move(access));
  }
  return list;
}

std::vector<std::string> read_chap_digests(TableReader& reader) {
  auto digests = reader.strings("chap_digests");
  if (!digests) return {};
  if (digests->empty()) {
    reader.mistake("chap_digests", "is empty; write at least one digest, or leave it out for all");
  }
  for (const auto& digest : *digests) note(reader, "chap_digests", check_chap_digest(digest));
  return std::move(*digests);
}

void read_discovery(const Value* section, Reading& reading) {
  TableReader reader(*section, "discovery", reading.mistakes);
  iscsi::DiscoveryOptions& options = reading.result.discovery;
  options.mutual_chap = read_chap(reader, "mutual_chap_", reading.folder);
  options.chap_digests = read_chap_digests(reader);
  for (AccessConfiguration& access : read_access(reader, reading)) {
    options.access.push_back(std::move(access.record));
  }
  const bool chap = std::ranges::any_of(options.access,
                                        [](const auto& record) { return record.chap.has_value(); });
  if (options.mutual_chap && !chap) {
    reader.mistake("mutual_chap_user",
                   "means nothing without CHAP; write a [[discovery.access]] with chap_user");
  }
  reader.finish();
}

// Section 13.14; each is right by itself.
std::optional<std::string> check_bursts(const std::map<std::string, std::string>& keys) {
  const auto number = [&](const char* key) -> std::optional<std::uint64_t> {
    const auto found = keys.find(key);
    if (found == keys.end() || check_key(key, found->second)) return std::nullopt;
    return iscsi::parse_number(found->second);
  };
  const auto first = number("FirstBurstLength");
  const auto most = number("MaxBurstLength");
  if (!first || !most || *first <= *most) return std::nullopt;
  return fmt::format("{} is more than MaxBurstLength has; write at most {}", *first, *most);
}

void read_keys(const Value& section, const std::string& path, Reading& reading,
               std::map<std::string, std::string>& keys) {
  for (const auto& [key, value] : section.members) {
    const std::string where = fmt::format("{}.{}", path, key);
    switch (value.kind) {
      case Value::Kind::kString:
        keys[key] = value.text;
        break;
      case Value::Kind::kInteger:
        keys[key] = fmt::format("{}", value.integer);
        break;
      case Value::Kind::kBoolean:
        keys[key] = value.boolean ? "Yes" : "No";
        break;
      default:
        reading.mistakes.add(
            value.line, where,
            fmt::format("is {}; write a string, a number, true or false", describe(value.kind)));
        continue;
    }
    const auto error = check_key(key, keys[key]);
    if (!error) continue;
    // Its sentence may begin with the key, which stands in the line already.
    const std::string again = key + ": ";
    reading.mistakes.add(value.line, where,
                         error->starts_with(again) ? error->substr(again.size()) : *error);
  }
  if (const auto error = check_bursts(keys)) {
    reading.mistakes.add(section.line, fmt::format("{}.FirstBurstLength", path), *error);
  }
}

void read_group_identity(const Value& section, Reading& reading) {
  TableReader reader(section, "identity", reading.mistakes);
  IdentityConfiguration& identity = reading.result.identity;
  identity = read_identity_section(reader);
  if (const Value* keys = reader.table("keys")) {
    read_keys(*keys, reader.path_of("keys"), reading, identity.keys);
  }
  reader.finish();
}

void read_target(const Value& section, const std::string& path, Reading& reading) {
  TableReader reader(section, path, reading.mistakes);
  TargetConfiguration target{.line = section.line};
  iscsi::TargetOptions& options = target.options;
  reader.require("name", fmt::format("an iSCSI name such as \"{}disk1\"", kTargetNamePrefix));
  if (const auto name = reader.string("name")) {
    note(reader, "name", check_target_name(*name));
    target.name = *name;
    if (contains(reading.result.targets, *name, &TargetConfiguration::name)) {
      reader.mistake("name",
                     fmt::format("{} has a section already; write one for each target", *name));
    }
  }
  options.alias = reader.string("alias").value_or("");
  options.exclusive = reader.boolean("exclusive").value_or(false);
  if (const auto depth = reader.integer("queue_depth", 1, 4096)) {
    options.queue_depth = static_cast<std::uint32_t>(*depth);
  }
  if (const auto sessions = reader.integer("maximum_sessions", 1, 65535)) {
    options.maximum_sessions = static_cast<std::uint32_t>(*sessions);
  }
  for (const auto tag :
       reader.integers("portal_groups", 1, 65535).value_or(std::vector<std::uint64_t>{})) {
    options.portal_groups.push_back(static_cast<std::uint16_t>(tag));
    if (!contains(reading.result.portals, tag, &PortalConfiguration::group_tag)) {
      reader.mistake("portal_groups",
                     fmt::format("no portal has the group_tag {}; write tags of portals", tag));
    }
  }
  options.mutual_chap = read_chap(reader, "mutual_chap_", reading.folder);
  options.chap_digests = read_chap_digests(reader);
  const bool permanent = reader.boolean("redirect_permanent").value_or(false);
  if (const auto redirect = reader.string("redirect")) {
    note(reader, "redirect", check_redirect(*redirect));
    options.redirect = iscsi::Redirect{.address = *redirect, .permanent = permanent};
  } else if (reader.has("redirect_permanent")) {
    reader.mistake("redirect_permanent", "means nothing without redirect; write both or none");
  }
  if (const Value* keys = reader.table("keys")) {
    read_keys(*keys, reader.path_of("keys"), reading, options.keys);
  }
  target.access = read_access(reader, reading);
  reader.finish();
  reading.result.targets.push_back(std::move(target));
}

// Sets where the volume's blocks are; true: the section does not say.
bool read_backing(TableReader& reader, VolumeSpecification& volume) {
  const auto file = reader.string("file");
  const auto device = reader.string("device");
  const auto memory = reader.boolean("memory");
  const auto raid = reader.string("raid");
  const auto pool = reader.string("pool");
  const int given = int{file.has_value()} + int{device.has_value()} + int{raid.has_value()} +
                    int{pool.has_value()} + int{memory.value_or(false)};
  if (given > 1) {
    reader.mistake(
        file ? "file" : (device ? "device" : (raid ? "raid" : "pool")),
        "a volume has one place; write one of pool, raid, file, device and memory = true");
  }
  if (file) {
    volume.backing = Backing::kFile;
    volume.path = *file;
    if (file->empty()) reader.mistake("file", "is empty; write the path of an image file");
  } else if (device) {
    volume.backing = Backing::kDevice;
    volume.path = *device;
    if (!device->starts_with('/')) {
      reader.mistake("device", fmt::format("\"{}\" is not an absolute path; write one such as "
                                           "/dev/sdb",
                                           *device));
    }
  } else if (memory.value_or(false)) {
    volume.backing = Backing::kMemory;
  } else if (raid) {
    volume.backing = Backing::kRaid;
    volume.raid = *raid;
  } else if (pool) {
    volume.backing = Backing::kPool;
    volume.pool = *pool;
  }
  return given == 0;
}

// A pool may also have been made at run time; then there is nothing to check here.
void read_pool_choices(TableReader& reader, VolumeConfiguration& configured, bool open_backing,
                       const std::vector<PoolConfiguration>& pools) {
  VolumeSpecification& volume = configured.specification;
  if (open_backing && pools.size() == 1) {
    volume.backing = Backing::kPool;
    volume.pool = pools.front().name;
  } else if (open_backing && pools.size() > 1) {
    reader.mistake("pool", fmt::format("is missing; there are several, write one such as \"{}\"",
                                       pools.front().name));
  }
  volume.on = reader.string("on").value_or("");
  volume.raid_level = reader.string("raid_level").value_or("");
  const auto percent = [&](std::string_view key, std::uint64_t least, std::uint32_t& target) {
    if (const auto value = reader.integer(key, least, 100)) {
      target = static_cast<std::uint32_t>(*value);
    }
  };
  percent("thin_warning", 0, volume.thin_warning);
  percent("thin_limit", 1, volume.thin_limit);
  if (const auto text = reader.string("snapshot_reserve")) {
    const auto reserve = parse_reserve(*text);
    if (!reserve) reader.mistake("snapshot_reserve", reserve.error());
    volume.snapshot_reserve = reserve.value_or(SnapshotReserve{});
  }
  if (const auto word = reader.string("reserve_policy")) {
    const auto policy = parse_reserve_policy(*word);
    volume.reserve_policy = policy.value_or(volume.reserve_policy);
    if (!policy) {
      reader.mistake("reserve_policy",
                     fmt::format("\"{}\" is none; write {}", *word, kReservePolicies));
    }
  }
}

// A volume on a set has the blocks of its drives.
void check_set(TableReader& reader, VolumeSpecification& volume,
               const Configuration& configuration) {
  const auto [hardware, set] = find_set(configuration, volume.raid);
  if (set == nullptr) {
    const std::vector<std::string> known = set_names(configuration);
    const std::string_view near = nearest(volume.raid, known);
    reader.mistake("raid", fmt::format("there is no set \"{}\"; write {}", volume.raid,
                                       near.empty() ? "the name of a section [[raid]]"
                                                    : fmt::format("\"{}\"", near)));
    return;
  }
  const DriveConfiguration* const drive =
      set->drives.empty() ? nullptr : hardware->drive(set->drives.front());
  if (drive == nullptr) return;
  if (!reader.has("block_size")) volume.block_bytes = drive->block_bytes;
  if (volume.block_bytes == drive->block_bytes) return;
  reader.mistake("block_size",
                 fmt::format("{} is not that of set \"{}\", whose drives have blocks of {} bytes; "
                             "write that, or leave it out",
                             volume.block_bytes, volume.raid, drive->block_bytes));
}

void read_identity(TableReader& reader, VolumeSpecification& volume) {
  volume.serial = reader.string("serial").value_or(volume.serial);
  volume.vendor = reader.string("vendor").value_or(volume.vendor);
  volume.product = reader.string("product").value_or(volume.product);
  volume.revision = reader.string("revision").value_or(volume.revision);
  if (const auto naa = reader.string("naa")) {
    volume.naa = parse_naa(*naa);
    if (!volume.naa) {
      reader.mistake("naa", fmt::format("\"{}\" is not an NAA identifier; write 32 "
                                        "hexadecimal digits, the first of them 6",
                                        *naa));
    }
  }
}

void read_presentation(TableReader& reader, VolumeSpecification& volume) {
  volume.removable = reader.boolean("removable").value_or(false);
  if (const auto rotation = reader.integer("rotation", 0, kMostRotation)) {
    volume.rotation = static_cast<std::uint32_t>(*rotation);
  }
  for (const auto& [key, limit] : {std::pair("unmap_limit", &volume.unmap_limit_bytes),
                                   std::pair("write_same_limit", &volume.write_same_limit_bytes)}) {
    *limit = reader.size(key, 0, kLargestVolumeBytes).value_or(0);
  }
  if (const auto eui64 = reader.string("eui64")) {
    volume.eui64 = parse_eui64(*eui64);
    if (!volume.eui64) {
      reader.mistake("eui64",
                     fmt::format("\"{}\" is not an EUI-64 identifier; write 16 hexadecimal "
                                 "digits, not all of them 0",
                                 *eui64));
    }
  }
}

void read_target_name(TableReader& reader, VolumeSpecification& volume,
                      const IdentityConfiguration& group) {
  if (const auto target = reader.string("target")) {
    note(reader, "target", check_target_name(*target));
    volume.target = *target;
    return;
  }
  // Records of access name the target, long before the volume is made and has an identifier drawn.
  if (!volume.naa && !reader.has("naa") && group.names_targets_by_naa()) {
    reader.mistake("naa",
                   "is missing; identity.target has digits of it, so write 32 hexadecimal "
                   "digits, or a target");
  }
  volume.target = group.target_for(volume.name, volume.naa.value_or(NaaIdentifier{}));
}

// Which of a section's keys a sentence from check_specification() is about: its first word, if
// that is a key that was given.
std::string_view key_of(const TableReader& reader, std::string_view sentence) {
  const std::string_view word = sentence.substr(0, sentence.find(' '));
  return reader.has(word) ? word : std::string_view("name");
}

void read_cache_mode(TableReader& reader, VolumeConfiguration& configured, bool has_cache) {
  const auto word = reader.string("cache");
  if (!word) return;
  const auto mode = parse_cache_mode(*word);
  configured.cache_given = true;
  configured.specification.cache = mode.value_or(cache::Mode::kWriteBack);
  if (!mode) {
    reader.mistake("cache", fmt::format("unknown mode \"{}\"; use {}", *word, kCacheModes));
  } else if (configured.specification.backing != Backing::kRaid &&
             configured.specification.backing != Backing::kPool) {
    reader.mistake("cache",
                   "is of volumes on RAID sets; write raid = \"SET\" or pool = \"POOL\", or leave "
                   "it out");
  } else if (!has_cache) {
    reader.mistake("cache", "means nothing without a section [cache]; write both or none");
  }
}

void read_volume(const Value& section, const std::string& path, Reading& reading) {
  TableReader reader(section, path, reading.mistakes);
  VolumeConfiguration configured{.line = section.line};
  VolumeSpecification& volume = configured.specification;
  reader.require("name", "the volume's name in quotes");
  if (const auto name = reader.string("name")) {
    note(reader, "name", check_volume_name(*name));
    volume.name = *name;
    const bool taken = std::ranges::any_of(reading.result.volumes, [&](const auto& other) {
      return other.specification.name == *name;
    });
    if (taken)
      reader.mistake("name", fmt::format("{} is another volume's; choose a new one", *name));
  }
  const bool open_backing = read_backing(reader, volume);
  read_pool_choices(reader, configured, open_backing, reading.result.pools);
  volume.size_bytes = reader.size("size", kSmallestVolumeBytes, kLargestVolumeBytes).value_or(0);
  const auto number = [&](std::string_view key, std::uint32_t& target) {
    const auto value = reader.integer(key, 1, std::uint64_t{1} << 30);
    if (value) target = static_cast<std::uint32_t>(*value);
  };
  number("block_size", volume.block_bytes);
  number("physical_block_size", volume.physical_block_bytes);
  if (volume.backing == Backing::kRaid) check_set(reader, volume, reading.result);
  volume.preallocate = reader.boolean("preallocate").value_or(false);
  const bool on_pool = volume.backing == Backing::kPool;
  configured.open.block_bytes = on_pool && !reader.has("block_size");
  volume.thin = reader.boolean("thin").value_or(!on_pool && !volume.preallocate);
  volume.read_only = reader.boolean("read_only").value_or(false);
  volume.write_cache = reader.boolean("write_cache").value_or(true);
  read_cache_mode(reader, configured, has_cache(reading.result));
  read_identity(reader, volume);
  read_presentation(reader, volume);
  read_target_name(reader, volume, reading.result.identity);
  if (const auto lun = reader.integer("lun", 0, kLargestLun)) {
    volume.lun = static_cast<std::uint32_t>(*lun);
  }
  if (!reader.has("size") || volume.size_bytes != 0) {
    auto error = check_specification(volume);
    if (!error) error = check_thin_choices(volume);
    if (error) {
      const auto key = key_of(reader, *error);
      const bool absent = error->starts_with("size is missing");
      reader.mistake(absent ? "size" : key, absent ? error->substr(5) : *error);
    }
  }
  auto access = read_access(reader, reading);
  reader.finish();
  if (!access.empty()) {
    reading.result.targets.push_back(
        {.name = volume.target, .options = {}, .access = std::move(access), .line = section.line});
  }
  reading.result.volumes.push_back(std::move(configured));
}

// One target may be described by its own section and by the access records of its volume.
void merge_targets(Reading& reading) {
  std::vector<TargetConfiguration> merged;
  for (TargetConfiguration& target : reading.result.targets) {
    const auto same = std::ranges::find(merged, target.name, &TargetConfiguration::name);
    if (same == merged.end()) {
      merged.push_back(std::move(target));
      continue;
    }
    for (AccessConfiguration& access : target.access) same->access.push_back(std::move(access));
  }
  reading.result.targets = std::move(merged);
}

void read_pools(TableReader& root, Reading& reading) {
  std::size_t index = 0;
  for (const Value* section : root.tables("pool")) {
    PoolConfiguration pool = read_pool(*section, fmt::format("pool[{}]", ++index),
                                       member_names(reading.result), reading.mistakes);
    if (contains(reading.result.pools, pool.name, &PoolConfiguration::name)) {
      reading.mistakes.add(section->line, fmt::format("pool[{}].name", index),
                           fmt::format("{} is another pool's; choose a new one", pool.name));
    }
    for (const PoolConfiguration& other : reading.result.pools) {
      for (const std::string& member : pool.members) {
        if (!contains(other.members, member, std::identity{})) continue;
        reading.mistakes.add(
            section->line, fmt::format("pool[{}].members", index),
            fmt::format("\"{}\" is of pool \"{}\" already; a member belongs to one "
                        "pool",
                        member, other.name));
      }
    }
    reading.result.pools.push_back(std::move(pool));
  }
  if (index > kMostPools) {
    reading.mistakes.add(reading.result.pools.back().line, "pool",
                         fmt::format("{} pools are too many; write at most {}", index, kMostPools));
  }
}

// Volumes on sets against the space of those.
void check_space(Reading& reading) {
  std::map<std::string, std::uint64_t> taken;
  for (const VolumeConfiguration& volume : reading.result.volumes) {
    const VolumeSpecification& s = volume.specification;
    const auto [hardware, set] = find_set(reading.result, s.raid);
    if (s.backing != Backing::kRaid || set == nullptr) continue;
    const auto there = planned_bytes(*hardware, *set);
    const std::uint64_t before = taken[s.raid];
    taken[s.raid] += s.size_bytes;
    if (!there || before + s.size_bytes <= *there) continue;
    reading.mistakes.add(
        volume.line, fmt::format("volume \"{}\"", s.name),
        fmt::format("size {} does not fit: set \"{}\" has {}, of which {} are left; write less, or "
                    "make its drives larger",
                    format_size(s.size_bytes), s.raid, format_size(*there),
                    format_size(before < *there ? *there - before : 0)));
  }
}

// As far as the file has them: what is drawn is looked at when the group starts.
void check_identifiers(Reading& reading) {
  Identifiers identifiers(reading.result.identity);
  for (const VolumeConfiguration& volume : reading.result.volumes) {
    VolumeSpecification s = volume.specification;
    if (s.naa) reading.result.identity.settle(s, Uuid{});
    const auto taken = identifiers.claim(s, "volume");
    if (taken) reading.mistakes.add(volume.line, fmt::format("volume \"{}\"", s.name), *taken);
  }
}

// Volumes against one another: LUNs of one target, files, and whose access records are whose.
void check_volumes(Reading& reading) {
  std::set<std::pair<std::string, std::uint32_t>> luns;
  check_caches(reading.result, reading.mistakes);
  std::map<std::string, std::string> owners = check_drives(reading.result, reading.mistakes);
  std::map<std::string, std::size_t> volumes_of_target;
  for (const VolumeConfiguration& volume : reading.result.volumes) {
    const VolumeSpecification& s = volume.specification;
    const std::string at = fmt::format("volume \"{}\"", s.name);
    if (s.lun && !luns.emplace(s.target, *s.lun).second) {
      reading.mistakes.add(
          volume.line, at,
          fmt::format("LUN {} of {} is another volume's; give each its own lun", *s.lun, s.target));
    }
    if (!s.path.empty()) {
      const auto path = reading.result.state / s.path;
      if (const auto claim = claim_of_group(path, reading.result.state)) {
        reading.mistakes.add(volume.line, at, *claim);
      }
      const auto [other, added] = owners.emplace(identity_of(path), at);
      if (!added) {
        reading.mistakes.add(volume.line, at,
                             fmt::format("{} belongs to {}; a file or device serves one volume",
                                         s.path, other->second));
      }
    }
    if (++volumes_of_target[s.target] > kLargestLun + 1) {
      reading.mistakes.add(volume.line, at,
                           fmt::format("{} has no LUN left; use another target", s.target));
    }
  }
}

void read_document(const Value& document, Reading& reading) {
  TableReader reader(document, "", reading.mistakes);
  reading.result.management.listen = Endpoint::ipv4(0x7f000001, kDefaultManagementPort);
  reader.require("group", "a section [group] with name and state");
  if (const Value* section = reader.table("group")) read_group(section, reading);
  if (const Value* section = reader.table("management")) {
    reading.result.management = read_management(*section, reading.folder, reading.mistakes);
  }
  if (const Value* section = reader.table("runtime")) read_runtime(*section, reading);
  if (const Value* section = reader.table("limits")) read_limits(section, reading);
  if (const Value* section = reader.table("discovery")) read_discovery(section, reading);
  reader.require("portal", "at least one section [[portal]] with listen");
  read_portals(reader, "", reading.mistakes, reading.result);
  read_hardware(reader, reading.folder, reading.mistakes, reading.result.hardware);
  read_members(reader, reading.mistakes, reading.result);
  read_lead(reader, reading.folder, reading.mistakes, reading.result);
  if (const Value* section = reader.table("identity")) read_group_identity(*section, reading);
  read_pools(reader, reading);
  std::size_t index = 0;
  for (const Value* section : reader.tables("target")) {
    read_target(*section, fmt::format("target[{}]", ++index), reading);
  }
  index = 0;
  for (const Value* section : reader.tables("volume")) {
    read_volume(*section, fmt::format("volume[{}]", ++index), reading);
  }
  reader.finish();
  check_portals(reading.result, reading.mistakes);
  merge_targets(reading);
  check_volumes(reading);
  check_identifiers(reading);
  check_space(reading);
}

}  // namespace

namespace {

bool has_secret(const Value& value) {
  const auto is_secret = [](const Value::Member& member) {
    return member.key.ends_with("chap_secret") || has_secret(member.value);
  };
  return std::ranges::any_of(value.elements, has_secret) ||
         std::ranges::any_of(value.members, is_secret);
}

}  // namespace

std::optional<std::string> exposed_secret(const Configuration& configuration) {
  using std::filesystem::perms;
  std::error_code error;
  const perms given = std::filesystem::status(configuration.file, error).permissions();
  const bool readable = !error && (given & perms::others_read) != perms::none;
  if (!configuration.holds_secret || !readable) return std::nullopt;
  return fmt::format(
      "{}: every user can read the CHAP secret in it; chmod 600 it, or write chap_secret_file",
      configuration.file);
}

ConfigurationResult parse_configuration(std::string_view text, const std::filesystem::path& file) {
  auto document = read_toml(text, file.string());
  if (!document) return std::unexpected(std::vector{document.error()});
  Mistakes mistakes(file.string());
  unwrap_values(*document, mistakes);
  expand_counts(*document, mistakes);
  if (!mistakes.empty()) return std::unexpected(mistakes.sorted());
  return read_configuration(*document, mistakes, file);
}

ConfigurationResult read_configuration(const Value& document, Mistakes& mistakes,
                                       const std::filesystem::path& file) {
  Configuration result;
  result.file = file.string();
  result.holds_secret = has_secret(document);
  Reading reading{.result = result, .mistakes = mistakes, .folder = file.parent_path()};
  read_document(document, reading);
  if (!mistakes.empty()) return std::unexpected(mistakes.sorted());
  return result;
}

ConfigurationResult load_configuration(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::stringstream text;
  if (std::error_code error; std::filesystem::is_directory(file, error)) {
    return std::unexpected(
        std::vector{fmt::format("{}: is a directory; name a configuration file", file.string())});
  }
  if (stream) text << stream.rdbuf();
  if (!stream) {
    return std::unexpected(
        std::vector{fmt::format("{}: cannot be read; name a configuration file", file.string())});
  }
  if (text.view().size() > kMostTextBytes) {
    return std::unexpected(std::vector{
        fmt::format("{}: has more than {}", file.string(), format_size(kMostTextBytes))});
  }
  return parse_configuration(text.str(), file);
}

}  // namespace sandbay::group
