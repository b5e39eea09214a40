// Sets are checked by planning them on blank drives of the sizes that the file gives, with the same
// code that will make them.
#include "group/hardware_configuration.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "fault/rule.h"
#include "group/configuration.h"
#include "group/document.h"
#include "group/drive_file.h"
#include "group/unit_faults.h"
#include "group/units.h"
#include "runtime/known.h"

namespace sandbay::group {

namespace {

constexpr std::size_t kLongestSerial = 32;
constexpr std::string_view kNamePlace = "{}";  // Where in a text a drive's name goes.
constexpr std::uint64_t kLargestNvramBytes = std::uint64_t{1} << 40;
constexpr std::uint64_t kLargestJournalBytes = std::uint64_t{16} << 30;
// With every time_scale and number of connections that is seconds, for which hosts still wait.
constexpr Duration kLongestTurnaround = std::chrono::milliseconds(10);
constexpr Duration kLongestPerConnection = std::chrono::milliseconds(1);
constexpr std::uint64_t kMostWritesInTransfer = 256;
constexpr std::uint64_t kMostSeed = std::uint64_t{1} << 62;
constexpr std::string_view kLevels =
    "jbod, concat, raid0, raid1, raid5, raid6, raid10, raid50 or raid60";

void check_name(TableReader& reader, const std::string& name) {
  if (const auto error = check_volume_name(name)) reader.mistake("name", *error);
}

// Sets what the drive is made of.
void read_medium(TableReader& reader, DriveConfiguration& drive) {
  const auto file = reader.string("file");
  const auto device = reader.string("device");
  const bool memory = reader.boolean("memory").value_or(false);
  const int given = int{file.has_value()} + int{device.has_value()} + int{memory};
  if (given > 1) {
    reader.mistake(file ? "file" : "device",
                   "a drive is one thing; write one of file, device and memory = true");
  } else if (given == 0 && !reader.has("file") && !reader.has("device")) {
    reader.mistake("file",
                   "is missing; write file = \"drives/NAME.img\", device = \"/dev/…\" or "
                   "memory = true");
  }
  if (file) {
    drive.path = *file;
    if (file->empty()) reader.mistake("file", "is empty; write the path of an image file");
  } else if (device) {
    drive.medium = Medium::kDevice;
    drive.path = *device;
    if (!device->starts_with('/')) {
      reader.mistake("device", fmt::format("\"{}\" is not an absolute path; write one such as "
                                           "/dev/sdb",
                                           *device));
    }
  } else if (memory) {
    drive.medium = Medium::kMemory;
  }
}

std::string with_name(std::string text, std::string_view name) {
  for (std::size_t at = 0; (at = text.find(kNamePlace, at)) != std::string::npos;) {
    text.replace(at, kNamePlace.size(), name);
    at += name.size();
  }
  return text;
}

// As if its manufacturer had numbered it: of the same length at most, and its own.
std::string serial_of_profile(const DriveConfiguration& drive) {
  std::string serial =
      fmt::format("{}-{}", std::filesystem::path(drive.profile).stem().string(), drive.name);
  if (serial.size() > kLongestSerial) serial.erase(0, serial.size() - kLongestSerial);
  return serial;
}

// One drive, or `count` of them, whose names are numbered from 0.
void add_drives(TableReader& reader, DriveConfiguration drive, HardwareConfiguration& hardware) {
  const bool numbered = reader.has("count");
  const std::uint64_t count = reader.integer("count", 1, kMostMemberDrives).value_or(1);
  const char* const place = drive.medium == Medium::kDevice ? "device" : "file";
  for (const auto& [key, text] :
       {std::pair(place, &drive.path), std::pair("serial", &drive.serial)}) {
    if (count == 1 || text->empty() || text->find(kNamePlace) != std::string::npos) continue;
    reader.mistake(
        key, fmt::format("is the same for {} drives; write {} in place of the drive's name", count,
                         kNamePlace));
    text->clear();  // Otherwise what they share would be told first.
  }
  std::string other;  // Whose name is taken.
  for (std::uint64_t i = 0; i < count; ++i) {
    DriveConfiguration one = drive;
    if (numbered) one.name += fmt::format("{}", i);
    if (other.empty() && hardware.drive(one.name) != nullptr) other = one.name;
    one.path = with_name(std::move(one.path), one.name);
    one.serial = one.type != nullptr && one.serial.empty()
                     ? serial_of_profile(one)
                     : with_name(std::move(one.serial), one.name);
    hardware.drives.push_back(std::move(one));
  }
  const DriveConfiguration& last = hardware.drives.back();  // The one with the longest texts.
  if (last.serial.size() > kLongestSerial) {
    reader.mistake("serial", fmt::format("has {} characters; write at most {}", last.serial.size(),
                                         kLongestSerial));
  }
  if (drive.name.empty()) return;
  check_name(reader, last.name);
  if (other.empty()) return;
  reader.mistake("name", fmt::format("{} is another drive's; choose a new one", other));
}

// "d0..d13" as d0, d1 and so on, where no drive is called so itself.
std::vector<std::string> expand_drives(const std::vector<std::string>& names,
                                       const HardwareConfiguration& hardware) {
  constexpr std::string_view kDigits = "0123456789";
  const auto number = [](std::string_view digits) -> std::optional<std::uint64_t> {
    std::uint64_t value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value);
    if (digits.empty() || error != std::errc{} || stop != end) return std::nullopt;
    return value;
  };
  std::vector<std::string> all;
  for (const std::string& name : names) {
    const auto dots = name.find("..");
    const auto first = std::string_view(name).substr(0, dots);
    const auto last = dots == std::string::npos ? "" : std::string_view(name).substr(dots + 2);
    const std::size_t prefix = first.find_last_not_of(kDigits) + 1;
    const auto from = number(first.substr(prefix));
    // "d00..d13" are d00, d01 and so on: all as wide as the first.
    const std::size_t width = first.substr(prefix).starts_with('0') ? first.size() - prefix : 0;
    const auto to =
        last.starts_with(first.substr(0, prefix)) ? number(last.substr(prefix)) : std::nullopt;
    if (hardware.drive(name) != nullptr || !from || !to || *from > *to ||
        (width > 1 && last.size() != first.size()) || *to - *from >= kMostMemberDrives) {
      all.push_back(name);
      continue;
    }
    for (std::uint64_t i = *from; i <= *to; ++i) {
      all.push_back(fmt::format("{}{:0{}}", first.substr(0, prefix), i, width));
    }
  }
  return all;
}

// Some values of a profile that this drive has otherwise.
void change_profile(TableReader& reader, const Value& change, Mistakes& mistakes,
                    DriveConfiguration& drive) {
  model::DriveProfile profile = drive.type->profile();
  for (const Value::Member& member : change.members) {
    const auto set = set_drive_value(profile, member.key, member.value);
    if (set) continue;
    mistakes.add(member.value.line, fmt::format("{}.{}", reader.path_of("change"), member.key),
                 set.error());
  }
  if (const std::string wrong = model::profile_error(profile); !wrong.empty()) {
    return reader.mistake("change", wrong);
  }
  drive.changed = true;
  drive.type = std::make_shared<const model::DriveType>(std::move(profile));
}

// Sets as what the drive is timed, and what follows from that.
void read_profile(TableReader& reader, const std::filesystem::path& folder, Mistakes& mistakes,
                  const HardwareConfiguration& hardware, DriveConfiguration& drive) {
  const auto profile = reader.string("profile");
  drive.begin_bytes = reader.size("begin", 0, kLargestDriveBytes).value_or(0);
  if (!reader.has("profile")) {
    for (const char* const key : {"begin", "change"}) {
      if (reader.any(key) == nullptr) continue;
      reader.mistake(key, "means nothing without profile; write both or none");
    }
    return;
  }
  if (!profile) return;
  if (profile->empty()) {
    reader.mistake("profile", "is empty; write the name of a drive, or leave it out");
    return;
  }
  drive.profile = *profile;
  const Value* const change = reader.table("change");
  const auto same = std::ranges::find_if(hardware.drives, [&](const DriveConfiguration& other) {
    return other.profile == *profile && !other.changed;
  });
  if (same != hardware.drives.end()) {
    drive.type = same->type;
  } else if (auto found = find_drive_type(*profile, folder)) {
    drive.type = std::move(*found);
  } else {
    reader.mistake("profile", found.error());
  }
  if (drive.type == nullptr) return;
  if (change != nullptr) change_profile(reader, *change, mistakes, drive);
  drive.rotational = std::holds_alternative<model::DiskProfile>(drive.type->profile().timing);
  const std::uint64_t whole = model::sector_count(drive.type->profile()) * model::kSectorBytes /
                              drive.block_bytes * drive.block_bytes;
  if (drive.begin_bytes % drive.block_bytes != 0 || drive.begin_bytes >= whole) {
    reader.mistake("begin", fmt::format("{} is not on the drive; write a multiple of {} bytes "
                                        "below {}",
                                        format_size(drive.begin_bytes), drive.block_bytes,
                                        format_size(whole)));
    return;
  }
  const std::uint64_t room = whole - drive.begin_bytes;
  if (room < kSmallestDriveBytes) {
    reader.mistake("begin", fmt::format("leaves {}; a drive has at least {}", format_size(room),
                                        format_size(kSmallestDriveBytes)));
  }
  drive.whole = !reader.has("size") && drive.medium != Medium::kDevice;
  if (drive.whole) drive.size_bytes = room;
  if (drive.size_bytes > room) {
    reader.mistake("size", fmt::format("{} is more than the {} that {} has{}; write less",
                                       format_size(drive.size_bytes), format_size(room),
                                       drive.type->profile().name,
                                       drive.begin_bytes == 0 ? "" : " from there on"));
  }
}

void read_drive(const Value& section, std::string path, const std::filesystem::path& folder,
                Mistakes& mistakes, HardwareConfiguration& hardware) {
  TableReader reader(section, std::move(path), mistakes);
  DriveConfiguration drive{.line = section.line};
  reader.require("name", "the drive's name in quotes");
  if (const auto name = reader.string("name")) {
    drive.name = *name;
    if (name->empty()) check_name(reader, *name);
  }
  read_medium(reader, drive);
  drive.size_bytes = reader.size("size", kSmallestDriveBytes, kLargestDriveBytes).value_or(0);
  if (!reader.has("size") && !reader.has("profile") && drive.medium == Medium::kMemory) {
    reader.mistake("size", "is missing; write a size such as \"1GiB\"");
  }
  if (const auto block = reader.integer("block_size", 1, std::uint64_t{1} << 30)) {
    drive.block_bytes = static_cast<std::uint32_t>(*block);
    if (*block != 512 && *block != 4096) {
      reader.mistake("block_size", fmt::format("{} is not offered; write 512 or 4096", *block));
    } else if (drive.size_bytes % *block != 0) {
      reader.mistake("size", fmt::format("{} is not a whole number of {}-byte blocks",
                                         format_size(drive.size_bytes), *block));
    }
  } else if (drive.size_bytes % drive.block_bytes != 0) {
    reader.mistake("size", fmt::format("{} is not a whole number of {}-byte blocks",
                                       format_size(drive.size_bytes), drive.block_bytes));
  }
  read_profile(reader, folder, mistakes, hardware, drive);
  drive.rotational = reader.boolean("rotational").value_or(drive.rotational);
  drive.spare = reader.boolean("spare").value_or(false);
  if (const auto enclosure = reader.string("enclosure")) {
    if (const auto error = check_volume_name(*enclosure)) reader.mistake("enclosure", *error);
    drive.enclosure = *enclosure;
  }
  drive.serial = reader.string("serial").value_or("");
  add_drives(reader, std::move(drive), hardware);
  reader.finish();
}

void read_journal(TableReader& reader, SetConfiguration& set) {
  const auto journal = reader.string("journal");
  if (!journal || *journal == "drives") return;
  if (*journal == "nvram") {
    set.journal = JournalPlace::kNvram;
    return;
  }
  const auto bytes = parse_size(*journal);
  if (!bytes) {
    reader.mistake("journal", fmt::format("unknown place \"{}\" of a journal; write \"drives\", "
                                          "\"nvram\", or its size on each drive such as \"16MiB\"",
                                          *journal));
  } else if (*bytes < (1U << 20) || *bytes > kLargestJournalBytes || *bytes % 4096 != 0) {
    reader.mistake("journal",
                   fmt::format("{} does not fit; write a multiple of 4KiB from 1MiB to {}",
                               *journal, format_size(kLargestJournalBytes)));
  } else {
    set.journal_bytes = *bytes;
  }
}

void read_set(const Value& section, std::string path, Mistakes& mistakes,
              HardwareConfiguration& hardware) {
  TableReader reader(section, std::move(path), mistakes);
  SetConfiguration set{.line = section.line};
  const auto line_of = [&](const char* key) {
    return reader.has(key) ? reader.line_of(key) : section.line;
  };
  set.level_line = line_of("level");
  set.groups_line = line_of("groups");
  set.drives_line = line_of("drives");
  set.spares_line = line_of("spares");
  set.journal_line = line_of("journal");
  reader.require("name", "the set's name in quotes");
  if (const auto name = reader.string("name")) {
    check_name(reader, *name);
    if (hardware.set(*name) != nullptr) {
      reader.mistake("name", fmt::format("{} is another set's; choose a new one", *name));
    }
    set.name = *name;
    set.name_good = !check_volume_name(*name).has_value();
  }
  reader.require("level", fmt::format("{}", kLevels));
  if (const auto text = reader.string("level")) {
    const auto level = raid::parse_level(*text);
    if (!level) {
      reader.mistake("level", fmt::format("\"{}\" is not a level; write {}", *text, kLevels));
    }
    set.level = level.value_or(set.level);
    set.level_known = level.has_value();
  }
  reader.require("drives", "the names of its drives, such as [\"d0\", \"d1\", \"d2\"]");
  set.drives =
      expand_drives(reader.strings("drives").value_or(std::vector<std::string>{}), hardware);
  set.spares =
      expand_drives(reader.strings("spares").value_or(std::vector<std::string>{}), hardware);
  if (const auto groups = reader.integer("groups", 1, raid::kMostDrives)) {
    set.group_count = static_cast<unsigned>(*groups);
  }
  if (const auto strip = reader.size("strip", raid::kLeastStripBytes, raid::kMostStripBytes)) {
    set.strip_bytes = static_cast<std::uint32_t>(*strip);
    if ((*strip & (*strip - 1)) != 0) {
      reader.mistake("strip", fmt::format("{} is not a power of two; write one from 4KiB to 1MiB",
                                          format_size(*strip)));
      set.strip_bytes = 64U << 10;
    }
  }
  set.integrity = reader.boolean("integrity").value_or(false);
  const auto verify =
      reader.duration("verify_every", std::chrono::seconds(1), std::chrono::hours(24 * 366));
  set.verify_every = verify.value_or(Duration::zero());
  set.rebuild_bytes = reader.rate("rebuild_rate");
  read_journal(reader, set);
  reader.finish();
  hardware.sets.push_back(std::move(set));
}

void read_nvram(const Value& section, Mistakes& mistakes, HardwareConfiguration& hardware) {
  TableReader reader(section, "nvram", mistakes);
  NvramConfiguration nvram{.line = section.line};
  nvram.size_line = reader.has("size") ? reader.line_of("size") : section.line;
  nvram.mirror_line = reader.has("mirror") ? reader.line_of("mirror") : section.line;
  nvram.path = reader.string("file").value_or(nvram.path);
  if (nvram.path.empty()) reader.mistake("file", "is empty; write the path of an image file");
  if (const auto size = reader.size("size", std::uint64_t{1} << 20, kLargestNvramBytes)) {
    nvram.size_bytes = *size;
    if (*size % nvram::kPageBytes != 0) {
      reader.mistake("size", fmt::format("{} is not a multiple of 4KiB", format_size(*size)));
    }
  }
  if (const auto word = reader.string("durability")) {
    if (*word == "host") nvram.durability = nvram::Durability::kHost;
    if (*word != "host" && *word != "process") {
      reader.mistake("durability", fmt::format("\"{}\" is not offered; write \"process\" or "
                                               "\"host\"",
                                               *word));
    }
  }
  if (const auto word = reader.string("battery")) {
    if (*word == "low") nvram.battery = nvram::BatteryState::kLow;
    if (*word == "dead") nvram.battery = nvram::BatteryState::kDead;
    if (*word != "good" && *word != "low" && *word != "dead") {
      reader.mistake(
          "battery",
          fmt::format("unknown battery state \"{}\"; use \"good\", \"low\" or \"dead\"", *word));
    }
  }
  const auto mirror = reader.string("mirror");
  nvram.mirror_path = mirror.value_or("");
  if (mirror && mirror->empty()) {
    reader.mistake("mirror", "is empty; write the path of the partner controller's image file");
  }
  nvram.mirror_required = reader.boolean("mirror_required").value_or(false);
  if (nvram.mirror_required && !reader.has("mirror")) {
    reader.mistake("mirror_required", "means nothing without mirror; write both or none");
  }
  nvram.power_loss_only_emulated =
      reader.boolean("power_loss_only_emulated").value_or(nvram.power_loss_only_emulated);
  reader.finish();
  hardware.nvram = std::move(nvram);
}

// As what the member's controller is timed.
void read_controller(const Value& section, Mistakes& mistakes, HardwareConfiguration& hardware) {
  TableReader reader(section, "controller", mistakes);
  model::ControllerProfile controller;
  const auto time = [&](std::string_view key, Duration& target) {
    target = reader.duration(key, Duration{}, model::kLongestCost).value_or(target);
  };
  const auto rate = [&](std::string_view key, std::uint64_t& target) {
    target = reader.rate(key).value_or(target);
  };
  controller.processors =
      reader.integer("processors", 1, model::kMostProcessors).value_or(controller.processors);
  time("read_request", controller.read_request);
  time("write_request", controller.write_request);
  time("read_mib", controller.read_mib);
  time("write_mib", controller.write_mib);
  rate("read_rate", controller.read_rate);
  rate("write_rate", controller.write_rate);
  rate("total_rate", controller.total_rate);
  time("mirror_latency", controller.mirror_latency);
  rate("mirror_rate", controller.mirror_rate);
  if (const std::string wrong = model::profile_error(controller); !wrong.empty()) {
    // It begins with the key that it is about.
    const std::size_t space = wrong.find(' ');
    reader.mistake(wrong.substr(0, space), wrong.substr(space + 1));
  }
  const auto turn = [&](std::string_view key, Duration most) {
    return reader.duration(key, Duration{}, most).value_or(Duration{});
  };
  if (const auto writes = reader.integer("writes_in_transfer", 1, kMostWritesInTransfer)) {
    hardware.pace.at_once = static_cast<unsigned>(*writes);
  }
  hardware.pace.turnaround = turn("r2t_time", kLongestTurnaround);
  hardware.pace.per_connection = turn("r2t_time_per_connection", kLongestPerConnection);
  if (hardware.pace.waits() && !mistakes.prefix().empty()) {
    mistakes.add(section.line, "controller",
                 "has a pace for writes, and that of the section at the top of the file is for all "
                 "targets; write it there");
  }
  reader.finish();
  hardware.controller = controller;
}

void read_rules(const Value& section, Mistakes& mistakes, FaultsConfiguration& faults) {
  TableReader reader(section, "faults", mistakes);
  faults.enabled = reader.boolean("enabled").value_or(false);
  faults.seed = reader.integer("seed", 0, kMostSeed).value_or(faults.seed);
  faults.rules = reader.strings("rules").value_or(std::vector<std::string>{});
  faults.line = reader.line_of("rules");
  for (const std::string& rule : faults.rules) {
    if (const auto parsed = fault::parse_rule(rule); !parsed) {
      reader.mistake("rules", parsed.error());
    }
  }
  if (!faults.rules.empty() && !faults.enabled) {
    reader.mistake("rules", "mean nothing without enabled = true; write both or none");
  }
  reader.finish();
}

// Blank drives like those of the file; nothing if a size is not known.
std::optional<std::vector<raid::Candidate>> blank_drives(const HardwareConfiguration& hardware,
                                                         const SetConfiguration& set) {
  std::vector<raid::Candidate> candidates;
  for (const std::string& name : set.drives) {
    const DriveConfiguration* const drive = hardware.drive(name);
    if (drive == nullptr || drive->size_bytes == 0) return std::nullopt;
    raid::Candidate candidate{.name = name,
                              .block_bytes = drive->block_bytes,
                              .block_count = drive->size_bytes / drive->block_bytes,
                              .contents = {}};
    candidate.contents.kind = raid::DriveContents::Kind::kBlank;
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

// The whole of its plan; an empty text: it can be made, or a size is not known.
std::string plan_error(const HardwareConfiguration& hardware, const SetConfiguration& set) {
  const auto candidates = blank_drives(hardware, set);
  if (candidates) {
    Random random(1);
    const auto planned = raid::plan_new_set(new_set_of(set, Uuid{}), *candidates, random);
    return planned ? std::string() : planned.error();
  }
  constexpr std::uint64_t kSomeBlocks = std::uint64_t{1} << 24;
  const auto layout =
      raid::Layout::make({.level = set.level,
                          .drive_count = static_cast<unsigned>(set.drives.size()),
                          .group_count = set.group_count,
                          .block_bytes = 512,
                          .strip_blocks = set.strip_bytes / 512,
                          .drive_blocks = std::vector(set.drives.size(), kSomeBlocks)});
  return layout ? std::string() : layout.error();
}

class Uses {
 public:
  Uses(const HardwareConfiguration& hardware, Mistakes& mistakes)
      : hardware_(hardware), mistakes_(mistakes) {
    for (const DriveConfiguration& drive : hardware.drives) {
      if (drive.spare) uses_.emplace(drive.name, "a spare of all sets");
    }
  }

  // Notes that the drive is used; false, and the mistake, if it is not there or used already.
  bool take(const SetConfiguration& set, std::uint32_t line, const std::string& key,
            const std::string& drive, std::string use) {
    if (hardware_.drive(drive) == nullptr) {
      std::vector<std::string> free;  // No other can be meant.
      for (const DriveConfiguration& other : hardware_.drives) {
        const bool named = std::ranges::find(set.drives, other.name) != set.drives.end() ||
                           std::ranges::find(set.spares, other.name) != set.spares.end();
        if (!named && !uses_.contains(other.name)) free.push_back(other.name);
      }
      const std::string_view near = nearest(drive, free);
      mistakes_.add(line, key,
                    fmt::format("there is no drive \"{}\"; write {}", drive,
                                near.empty() ? "the name of a section [[drive]]"
                                             : fmt::format("\"{}\"", near)));
      return false;
    }
    const auto [other, added] = uses_.emplace(drive, std::move(use));
    if (added) return true;
    mistakes_.add(line, key,
                  fmt::format("drive {} is {}; a drive has one use", drive, other->second));
    return false;
  }

 private:
  const HardwareConfiguration& hardware_;
  Mistakes& mistakes_;
  std::map<std::string, std::string> uses_;
};

// What the engine would refuse a rule for, as far as the file alone says.
std::optional<std::string> place_error(const std::vector<const HardwareConfiguration*>& members,
                                       const std::vector<std::string>& names,
                                       const fault::Rule& rule) {
  using Kind = fault::Place::Kind;
  const std::string& name = rule.at.name;
  const auto is_number = [](const std::string& text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  };
  if (rule.at.kind == Kind::kMember && !is_number(name) &&
      std::ranges::find(names, name) == names.end()) {
    return fmt::format("there is no member \"{}\"; there are {}", name, fmt::join(names, ", "));
  }
  const auto unknown_drive = [&](const std::string& drive) {
    return !drive.empty() && !is_number(drive) &&
           std::ranges::none_of(members, [&](const HardwareConfiguration* hardware) {
             return hardware->drive(drive) != nullptr;
           });
  };
  for (const std::string& drive : {rule.at.kind == Kind::kDrive ? name : "", rule.to_drive}) {
    if (unknown_drive(drive)) {
      return fmt::format("there is no drive \"{}\"; write the name of a section [[drive]]", drive);
    }
  }
  const auto has_enclosure = [&](const HardwareConfiguration* hardware) {
    return std::ranges::find(hardware->drives, name, &DriveConfiguration::enclosure) !=
           hardware->drives.end();
  };
  const bool enclosure_there = name.empty() || std::ranges::any_of(members, has_enclosure);
  if (rule.at.kind == Kind::kEnclosure && !enclosure_there) {
    return fmt::format(
        "no drive is in enclosure \"{}\"; write the enclosure of a section [[drive]]", name);
  }
  const bool nvram_there = std::ranges::any_of(
      members, [](const HardwareConfiguration* hardware) { return hardware->nvram.has_value(); });
  if (rule.at.kind == Kind::kNvram && !nvram_there) {
    return "there is no NVRAM; add a section [nvram]";
  }
  return std::nullopt;
}

// What stands in NVRAM against its size.
void check_nvram_size(const HardwareConfiguration& hardware, std::uint64_t journal_bytes,
                      Mistakes& mistakes) {
  const std::uint64_t cache_bytes = hardware.cache ? hardware.cache->nvram_bytes : 0;
  if (!hardware.nvram) {
    if (cache_bytes == 0) return;
    mistakes.add(known(hardware.cache).nvram_line, "cache.nvram",
                 "there is no NVRAM; add a section [nvram], or leave it out");
    return;
  }
  // The image's own bookkeeping needs a little.
  constexpr std::uint64_t kOwn = std::uint64_t{1} << 20;
  if (!hardware.nvram->mirror_path.empty() && cache_bytes == 0) {
    const std::uint64_t taken = journal_bytes + kOwn;
    const std::uint64_t size = hardware.nvram->size_bytes;
    mistakes.add(hardware.nvram->mirror_line, "nvram.mirror",
                 fmt::format("mirrors the writes of the cache, and there are none; write nvram = "
                             "\"{}\" in a section [cache], or leave it out",
                             format_size(size > taken ? size - taken : kOwn)));
  }
  const std::uint64_t needed = journal_bytes + cache_bytes + kOwn;
  if (needed == kOwn || hardware.nvram->size_bytes >= needed) return;
  mistakes.add(hardware.nvram->size_line, "nvram.size",
               fmt::format("{} is too little for {}; write at least {}",
                           format_size(hardware.nvram->size_bytes),
                           cache_bytes == 0     ? "the journals of its sets"
                           : journal_bytes == 0 ? "the cache"
                                                : "the journals of its sets and the cache",
                           format_size(needed)));
}

// Drives against sets, and sets against what they stand on.
void check_hardware(const HardwareConfiguration& hardware, Mistakes& mistakes) {
  Uses uses(hardware, mistakes);
  std::uint64_t nvram_bytes = 0;
  std::size_t index = 0;
  for (const SetConfiguration& set : hardware.sets) {
    const std::string at = fmt::format("raid[{}]", ++index);
    bool whole = !set.drives.empty() && set.level_known && set.name_good;
    for (const std::string& drive : set.drives) {
      whole &= uses.take(set, set.drives_line, at + ".drives", drive,
                         fmt::format("in set \"{}\"", set.name));
    }
    for (const std::string& drive : set.spares) {
      uses.take(set, set.spares_line, at + ".spares", drive,
                fmt::format("a spare of set \"{}\"", set.name));
    }
    if (set.drives.empty()) {
      mistakes.add(set.drives_line, at + ".drives", "a set needs at least one drive; name some");
    }
    if (whole) {
      const std::string error = plan_error(hardware, set);
      // What it is about: how the drives are divided, the journal, or they and the level.
      const std::size_t prefix = error.starts_with("set '") ? set.name.size() : 0;
      const bool of_groups = error.find("groups", prefix) != std::string::npos;
      const bool of_journal = error.find("journal:", prefix) != std::string::npos;
      const std::uint32_t line =
          of_groups ? set.groups_line : (of_journal ? set.journal_line : set.level_line);
      if (!error.empty()) mistakes.add(line, at, error);
    }
    if (set.journal != JournalPlace::kNvram) continue;
    nvram_bytes += kNvramJournalBytes;
    if (!hardware.nvram) {
      mistakes.add(set.journal_line, at + ".journal",
                   "there is no NVRAM; add a section [nvram], or write \"drives\"");
    }
  }
  check_nvram_size(hardware, nvram_bytes, mistakes);
}

}  // namespace

std::string_view describe(Medium medium) {
  switch (medium) {
    case Medium::kFile:
      return "file";
    case Medium::kDevice:
      return "device";
    case Medium::kMemory:
      return "memory";
  }
  return "unknown";
}

const DriveConfiguration* HardwareConfiguration::drive(std::string_view name) const {
  const auto found = std::ranges::find(drives, name, &DriveConfiguration::name);
  return found == drives.end() ? nullptr : &*found;
}

const SetConfiguration* HardwareConfiguration::set(std::string_view name) const {
  const auto found = std::ranges::find(sets, name, &SetConfiguration::name);
  return found == sets.end() ? nullptr : &*found;
}

raid::NewSet new_set_of(const SetConfiguration& set, const Uuid& group_uuid) {
  raid::NewSet wanted{.name = set.name, .group_uuid = group_uuid};
  wanted.level = set.level;
  wanted.group_count = set.group_count;
  wanted.strip_bytes = set.strip_bytes;
  wanted.integrity = set.integrity;
  wanted.journal_bytes = set.journal_bytes;
  // Said in any case: left open, it would be in NVRAM wherever there is some.
  wanted.journal_bytes =
      set.journal == JournalPlace::kNvram ? 0 : raid::journal_bytes_on_drives(wanted);
  return wanted;
}

std::optional<std::uint64_t> planned_bytes(const HardwareConfiguration& hardware,
                                           const SetConfiguration& set) {
  const auto candidates = blank_drives(hardware, set);
  if (!candidates) return std::nullopt;
  Random random(1);
  const auto planned = raid::plan_new_set(new_set_of(set, Uuid{}), *candidates, random);
  if (!planned) return std::nullopt;
  const auto layout = planned->superblocks.front().layout();
  if (!layout) return std::nullopt;
  return layout->block_count() * layout->block_bytes();
}

void read_hardware(TableReader& root, const std::filesystem::path& folder, Mistakes& mistakes,
                   HardwareConfiguration& hardware) {
  std::size_t index = 0;
  for (const Value* section : root.tables("drive")) {
    read_drive(*section, fmt::format("drive[{}]", ++index), folder, mistakes, hardware);
  }
  if (hardware.drives.size() > kMostMemberDrives) {
    mistakes.add(hardware.drives.back().line, "drive",
                 fmt::format("{} drives are too many; write at most {}", hardware.drives.size(),
                             kMostMemberDrives));
  }
  index = 0;
  for (const Value* section : root.tables("raid")) {
    read_set(*section, fmt::format("raid[{}]", ++index), mistakes, hardware);
  }
  if (index > kMostSetSections) {
    mistakes.add(hardware.sets.back().line, "raid",
                 fmt::format("{} sets are too many; write at most {}", index, kMostSetSections));
  }
  if (const Value* section = root.table("nvram")) read_nvram(*section, mistakes, hardware);
  hardware.cache = read_cache(root, mistakes);
  if (const Value* section = root.table("controller")) {
    read_controller(*section, mistakes, hardware);
  }
  check_hardware(hardware, mistakes);
}

void read_faults(TableReader& root, Mistakes& mistakes, HardwareConfiguration& hardware,
                 const std::vector<const HardwareConfiguration*>& others,
                 const std::vector<std::string>& names) {
  const Value* const section = root.table("faults");
  if (section == nullptr) return;
  read_rules(*section, mistakes, hardware.faults);
  std::vector<const HardwareConfiguration*> members{&hardware};
  members.insert(members.end(), others.begin(), others.end());
  for (const std::string& text : hardware.faults.rules) {
    const auto rule = fault::parse_rule(text);
    if (!rule) continue;  // Said already.
    auto error = place_error(members, names, *rule);
    if (!error) error = event_error(*rule);
    if (!error) error = answer_error(*rule);
    if (error) {
      mistakes.add(hardware.faults.line, "faults.rules", fmt::format("\"{}\": {}", text, *error));
    }
  }
}

}  // namespace sandbay::group
