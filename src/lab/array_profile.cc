// Reads a system, section by section.
#include "lab/array_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "group/document.h"
#include "group/drive_file.h"

namespace sandbay::lab {
namespace {

using group::Mistakes;
using group::TableReader;
using group::Value;

constexpr std::uint64_t kMostControllers = 64;
constexpr std::uint64_t kMostMembers = 16;
constexpr std::uint64_t kMostBackgroundBytes = std::uint64_t{1} << 20;
// No system has more, and what is scaled and multiplied stays within 64 bits, a run in memory.
constexpr std::uint64_t kMostCount = 65536;
constexpr std::uint64_t kMostPorts = 256;
constexpr std::uint64_t kMostMemory = std::uint64_t{64} << 30;
constexpr std::uint64_t kMostDriveBytes = std::uint64_t{1} << 60;
// Of a drive, behind where it begins to be used.
constexpr std::uint64_t kLeastDriveBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kLeastStripBytes = 4096;
constexpr std::uint64_t kMostStripBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostPageBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kMostRate = 1'000'000'000'000;
constexpr Duration kLongestTime = std::chrono::hours(1);

// The values of one section.
class Section {
 public:
  Section(TableReader reader, std::string prefix, Mistakes& mistakes, const Scales& scales,
          std::vector<Parameter>& parameters)
      : reader_(std::move(reader)),
        prefix_(std::move(prefix)),
        mistakes_(mistakes),
        scales_(scales),
        parameters_(parameters) {}

  TableReader& reader() { return reader_; }

  void count(std::string_view key, std::uint64_t& out, std::uint64_t most = kMostCount) {
    const auto found = take(key, Value::Kind::kInteger, "a whole number");
    if (!found) return;
    if (found->value.integer < 0 || std::cmp_greater(found->value.integer, most)) {
      return refuse(*found, fmt::format("is {}; 0 to {} is accepted", found->value.integer, most));
    }
    out = scaled(found->value.integer, key);
    if (scale(key) != 1 && std::cmp_equal(out, found->value.integer)) {
      refuse(*found, "is no other number when it is scaled and rounded");
    }
  }
  void flag(std::string_view key, bool& out) {
    const auto found = take(key, Value::Kind::kBoolean, "true or false");
    // Of a flag more and less are the other of two.
    if (found) out = found->value.boolean == (scale(key) == 1);
  }
  void size(std::string_view key, std::uint64_t& out, std::uint64_t most = kMostMemory) {
    number(key, out, group::parse_size, group::format_size, most);
  }
  void rate(std::string_view key, std::uint64_t& out) {
    number(key, out, group::parse_rate, group::format_rate, kMostRate);
  }
  void time(std::string_view key, Duration& out) {
    const auto found = take(key, Value::Kind::kString, "a time such as \"5us\"");
    if (!found) return;
    const auto parsed = group::parse_duration(found->value.text);
    if (!parsed) return refuse(*found, parsed.error());
    if (*parsed > kLongestTime) {
      return refuse(*found, fmt::format("is {}; at most 1h is accepted", found->value.text));
    }
    out = Duration(std::llround(static_cast<double>(parsed->count()) * scale(key)));
  }
  // One value of the drive's profile.
  void change(const std::string& key, model::DriveProfile& drive) {
    const auto found = take(key, std::nullopt, "");
    if (!found) return;
    Value value = found->value;
    if (scale(key) != 1 && value.kind == Value::Kind::kString) {
      const auto rate = group::parse_rate(value.text);
      const auto duration = group::parse_duration(value.text);
      if (rate) value.text = group::format_rate(scaled(*rate, key));
      if (duration) value.text = fmt::format("{}ns", scaled(duration->count(), key));
    }
    const auto set = group::set_drive_value(drive, key, value);
    if (!set) refuse(*found, set.error());
  }

 private:
  struct Found {
    std::string path;
    std::uint32_t line;
    Value value;
  };

  template <class Parse, class Format>
  void number(std::string_view key, std::uint64_t& out, Parse parse, Format format,
              std::uint64_t most) {
    const auto found = take(key, Value::Kind::kString, "a string with its unit");
    if (!found) return;
    const auto parsed = parse(found->value.text);
    if (!parsed) return refuse(*found, parsed.error());
    if (*parsed > most) {
      return refuse(*found,
                    fmt::format("is {}; at most {} is accepted", found->value.text, format(most)));
    }
    out = scaled(*parsed, key);
  }

  template <class Number>
  std::uint64_t scaled(Number number, std::string_view key) const {
    return static_cast<std::uint64_t>(std::llround(static_cast<double>(number) * scale(key)));
  }
  double scale(std::string_view key) const {
    const auto found = scales_.find(prefix_ + std::string(key));
    return found == scales_.end() ? 1 : found->second;
  }
  void refuse(const Found& found, std::string_view what) {
    mistakes_.add(found.line, found.path, what);
  }

  std::optional<Found> take(std::string_view key, std::optional<Value::Kind> kind,
                            std::string_view accepted) {
    const Value* table = reader_.table(key);
    if (table == nullptr) return std::nullopt;
    TableReader inner(*table, reader_.path_of(key), mistakes_);
    const Value* value = inner.any("value");
    Parameter parameter{.name = prefix_ + std::string(key), .value = {}};
    parameter.origin = inner.string("from").value_or("");
    parameter.source = inner.string("source").value_or("");
    inner.require("value", "what it is");
    inner.require("from", fmt::format("where it comes from: {}", fmt::join(kOrigins, ", ")));
    inner.require("source", "the source, in words");
    inner.finish();
    if (inner.has("from") && std::ranges::find(kOrigins, parameter.origin) == kOrigins.end()) {
      inner.mistake("from", fmt::format("is \"{}\"; accepted are {}", parameter.origin,
                                        fmt::join(kOrigins, ", ")));
    }
    if (value == nullptr) return std::nullopt;
    if (kind && value->kind != *kind) {
      inner.mistake("value",
                    fmt::format("is {}; {} is accepted", group::describe(value->kind), accepted));
      return std::nullopt;
    }
    parameter.value = text_of(*value);
    parameter.line = value->line;
    parameters_.push_back(parameter);
    return Found{.path = inner.path_of("value"), .line = value->line, .value = *value};
  }

  static std::string text_of(const Value& value) {
    switch (value.kind) {
      case Value::Kind::kInteger:
        return std::to_string(value.integer);
      case Value::Kind::kBoolean:
        return value.boolean ? "true" : "false";
      default:
        return value.text;
    }
  }

  TableReader reader_;
  std::string prefix_;
  Mistakes& mistakes_;
  const Scales& scales_;
  std::vector<Parameter>& parameters_;
};

class ProfileReader {
 public:
  // `is_beside`: another system, which this one is beside.
  ProfileReader(const std::string& path, const Scales& scales, bool is_beside = false)
      : path_(path), scales_(scales), is_beside_(is_beside), mistakes_(path) {}

  std::expected<ArrayProfile, std::string> read(const std::string& text) {
    const auto root = group::read_toml(text, path_);
    if (!root) return std::unexpected(root.error());
    TableReader reader(*root, "", mistakes_);
    profile_.name = reader.string("name").value_or("");
    if (is_beside_) scales_ = scales_of(profile_.name);
    profile_.member_count = reader.integer("members", 1, kMostMembers).value_or(0);
    front_end(reader);
    reader.require("name", "the system's name");
    reader.require("drives", "a section [drives]");
    if (const Value* table = reader.table("drives")) {
      const std::string wrong = drives(*table);
      if (!wrong.empty()) return std::unexpected(wrong);
    }
    if (const Value* table = reader.table("raid")) raid(*table);
    if (const Value* table = reader.table("cache")) cache(*table);
    if (const Value* table = reader.table("controller")) controller(*table);
    if (const Value* table = reader.table("port")) port(*table);
    if (const Value* table = reader.table("session")) session(*table);
    if (const Value* table = reader.table("background")) background(*table);
    for (const Value* table : reader.tables("host")) host(*table);
    for (const std::string& file : reader.strings("beside").value_or(std::vector<std::string>{})) {
      const std::string wrong = beside(reader, file);
      if (!wrong.empty()) return std::unexpected(wrong);
    }
    reader.finish();
    check_scales();
    if (mistakes_.empty()) check();
    if (!mistakes_.empty()) return std::unexpected(mistakes_.sorted().front());
    return std::move(profile_);
  }

 private:
  Section section(const Value& table, const std::string& name) {
    section_lines_.emplace(name, table.line);
    return Section(TableReader(table, name, mistakes_), name + ".", mistakes_, scales_,
                   profile_.parameters);
  }

  // Those of the system beside that is called so, by its own names.
  Scales scales_of(const std::string& system) const {
    const std::string prefix = system + ".";
    Scales found;
    for (const auto& [name, factor] : scales_) {
      if (name.starts_with(prefix)) found.emplace(name.substr(prefix.size()), factor);
    }
    return found;
  }

  std::string in_folder(const std::string& file) const {
    return (std::filesystem::path(path_).parent_path() / file).lexically_normal().string();
  }

  // The error is a whole line, of that file or of this one.
  std::string beside(TableReader& reader, const std::string& file) {
    if (is_beside_) {
      reader.mistake("beside", "is for systems that are not beside another themselves");
      return {};
    }
    const std::string path = in_folder(file);
    const auto text = group::read_text_file(path);
    if (!text)
      return fmt::format("{}:{}: beside: {}", path_, reader.line_of("beside"), text.error());
    auto other = ProfileReader(path, scales_, true).read(*text);
    if (!other) return other.error();
    if (other->name == profile_.name) {
      reader.mistake("beside",
                     fmt::format("has a system \"{}\", as this one is called", other->name));
    }
    if (std::ranges::find(profile_.beside, other->name, &ArrayProfile::name) !=
        profile_.beside.end()) {
      reader.mistake("beside", fmt::format("has two systems \"{}\"", other->name));
    }
    for (Parameter& parameter : other->parameters) {
      parameter.name = other->name + "." + parameter.name;
      profile_.parameters.push_back(parameter);
    }
    profile_.beside.push_back(std::move(*other));
    return {};
  }

  void front_end(TableReader& reader) {
    const auto word = reader.string("front_end");
    if (!word) return;
    profile_.front_end = *word;
    if (std::ranges::find(kFrontEnds, *word) != kFrontEnds.end()) return;
    reader.mistake("front_end",
                   fmt::format("is \"{}\"; accepted are {}", *word, fmt::join(kFrontEnds, ", ")));
  }

  std::string drives(const Value& table) {
    Section values = section(table, "drives");
    TableReader& reader = values.reader();
    const std::string file = reader.string("profile").value_or("");
    profile_.drive_count = reader.integer("count", 1, 4096).value_or(0);
    values.size("begin", profile_.first_byte, kMostDriveBytes);
    const Value* changes = reader.table("change");
    reader.require("profile", "a file of conf/drives");
    reader.require("count", "how many there are");
    reader.finish();
    if (file.empty()) return {};
    const std::string path = in_folder(file);
    const auto text = group::read_text_file(path);
    if (!text) {
      return fmt::format("{}:{}: drives.profile: {}", path_, reader.line_of("profile"),
                         text.error());
    }
    auto drive = group::read_drive_file(*text, path);
    if (!drive) return drive.error();
    profile_.drive = std::move(*drive);
    if (changes == nullptr) return {};
    Section changed = section(*changes, "drives.change");
    for (const Value::Member& member : changes->members) {
      changed.change(member.key, profile_.drive);
    }
    return {};
  }

  void raid(const Value& table) {
    Section values = section(table, "raid");
    values.size("strip", profile_.strip_bytes, kMostStripBytes);
    values.size("page", profile_.page_bytes, kMostPageBytes);
    values.flag("scattered_pages", profile_.scattered_pages);
    values.flag("nearest_mirror", profile_.nearest_mirror);
    values.reader().finish();
  }

  void cache(const Value& table) {
    Section values = section(table, "cache");
    values.size("memory", profile_.cache_bytes);
    values.size("dirty", profile_.dirty_bytes);
    values.count("flush_mark", profile_.flush_mark_percent);
    values.size("read_ahead", profile_.read_ahead_bytes);
    values.size("read_ahead_window", profile_.read_ahead_window_bytes);
    values.size("drive_write", profile_.drive_write_bytes);
    values.count("destages_in_flight", profile_.destages_in_flight);
    values.flag("write_back", profile_.write_back);
    values.reader().finish();
  }

  void background(const Value& table) {
    Section values = section(table, "background");
    std::uint64_t read_percent = 50;
    values.count("read_percent", read_percent);
    values.size("size", profile_.background_bytes);
    values.reader().finish();
    profile_.background_read_share = static_cast<double>(read_percent) / 100;
  }

  void controller(const Value& table) {
    Section values = section(table, "controller");
    model::ControllerProfile& to = profile_.controller;
    values.count("count", profile_.controller_count);
    values.count("processors", to.processors);
    values.time("read_request", to.read_request);
    values.time("write_request", to.write_request);
    values.time("read_mib", to.read_mib);
    values.time("write_mib", to.write_mib);
    values.rate("read_rate", to.read_rate);
    values.rate("write_rate", to.write_rate);
    values.rate("total_rate", to.total_rate);
    values.time("mirror_latency", to.mirror_latency);
    values.rate("mirror_rate", to.mirror_rate);
    values.reader().finish();
  }

  void port(const Value& table) {
    Section values = section(table, "port");
    model::PortProfile& to = profile_.port;
    values.count("count", profile_.port_count, kMostPorts);
    values.rate("rate", to.rate);
    values.size("mtu", to.mtu);
    values.size("packet_headers", to.packet_headers);
    values.time("latency", to.latency);
    values.reader().finish();
  }

  void session(const Value& table) {
    Section values = section(table, "session");
    model::ExchangeParameters& to = profile_.exchange;
    values.flag("initial_r2t", to.initial_r2t);
    values.flag("immediate_data", to.immediate_data);
    values.size("first_burst", to.first_burst);
    values.size("max_burst", to.max_burst);
    values.count("outstanding_r2ts", to.outstanding_r2ts);
    values.size("target_segment", to.target_segment);
    values.size("initiator_segment", to.initiator_segment);
    values.count("writes_in_transfer", profile_.writes_in_transfer);
    values.time("r2t_time", profile_.r2t_time);
    values.time("r2t_time_per_connection", profile_.r2t_time_per_connection);
    values.time("host_turnaround", to.host_turnaround);
    values.reader().finish();
  }

  void host(const Value& table) {
    HostType type;
    type.name = TableReader(table, "host", mistakes_).string("name").value_or("");
    Section values = section(table, "host." + type.name);
    values.reader().string("name");
    values.reader().require("name", "a name of its own");
    Duration request_time{};
    values.time("request_time", request_time);
    Duration more{};  // For each adapter but the first.
    values.time("request_time_per_adapter", more);
    values.count("processors", type.profile.processors);
    values.time("latency", type.profile.latency);
    values.rate("read_rate", type.profile.read_rate);
    values.rate("write_rate", type.profile.write_rate);
    values.rate("total_rate", type.profile.total_rate);
    values.reader().finish();
    for (unsigned i = 0; i < kMostAdapters; ++i) {
      type.profile.request_times.push_back(request_time + static_cast<Duration::rep>(i) * more);
    }
    if (profile_.find_host(type.name) != nullptr) {
      mistakes_.add(table.line, "host.name", fmt::format("\"{}\" is there already", type.name));
    }
    profile_.hosts.push_back(std::move(type));
  }

  void check_scales() {
    for (const auto& [name, factor] : scales_) {
      if (std::ranges::find(profile_.parameters, name, &Parameter::name) !=
          profile_.parameters.end()) {
        continue;
      }
      mistakes_.add(1, name, "is no parameter of this system");
    }
  }

  // Where the value stands. What is wrong with a section begins with the key that it is about.
  void note_mistake(std::string_view key, std::string_view wrong) {
    const std::string_view first = wrong.substr(0, wrong.find_first_of(" ,"));
    for (const Parameter& parameter : profile_.parameters) {
      if (parameter.name == key) return mistakes_.add(parameter.line, key, wrong);
      if (parameter.name != fmt::format("{}.{}", key, first)) continue;
      return mistakes_.add(parameter.line, parameter.name, wrong.substr(first.size() + 1));
    }
    const std::string section(key.substr(0, key.find('.')));
    const auto line = section_lines_.find(section_lines_.contains(key) ? key : section);
    mistakes_.add(line == section_lines_.end() ? 1 : line->second, key, wrong);
  }

  void check() {
    const auto note = [this](std::string_view key, const std::string& wrong) {
      if (!wrong.empty()) note_mistake(key, wrong);
    };
    note("drives.change", model::profile_error(profile_.drive));
    const std::uint64_t capacity = model::sector_count(profile_.drive) * 512;
    if (profile_.first_byte > 0 && profile_.first_byte + kLeastDriveBytes > capacity) {
      note("drives.begin", fmt::format("leaves less than {} of the drive's {}",
                                       group::format_size_rounded(kLeastDriveBytes),
                                       group::format_size_rounded(capacity)));
    }
    note("controller", model::profile_error(profile_.controller));
    note("port", model::profile_error(profile_.port));
    note("session", model::profile_error(profile_.exchange));
    if (profile_.page_bytes == 0 || profile_.page_bytes % 4096 != 0) {
      note("raid.page", "is no multiple of 4096 bytes");
    }
    if (profile_.background_read_share > 1) {
      note("background.read_percent", "is more than 100");
    }
    if (profile_.background_bytes == 0 || profile_.background_bytes % 512 != 0 ||
        profile_.background_bytes > kMostBackgroundBytes) {
      note("background.size", "must be a multiple of 512 bytes, 1 MiB at most");
    }
    if (profile_.port_count == 0) note("port.count", "is 0; at least 1 is accepted");
    if (!std::has_single_bit(profile_.strip_bytes) || profile_.strip_bytes < kLeastStripBytes) {
      note("raid.strip", "is no power of two from 4KiB to 1MiB");
    }
    if (profile_.destages_in_flight == 0) {
      note("cache.destages_in_flight", "is 0; at least 1 is accepted");
    }
    const bool cached = profile_.cache_bytes > 0;
    if (cached && profile_.dirty_bytes >= profile_.cache_bytes) {
      note("cache.dirty", "is not less than cache.memory");
    }
    if (profile_.flush_mark_percent == 0 || profile_.flush_mark_percent >= 100) {
      note("cache.flush_mark", "is no share in per cent; 1 to 99 is accepted");
    }
    if (profile_.controller_count == 0 || profile_.controller_count > kMostControllers) {
      note("controller.count", fmt::format("is not from 1 to {}", kMostControllers));
    }
    if (profile_.member_count > 0 && profile_.controller_count > 1) {
      note("controller.count", "is more than 1, but members have one controller each");
    }
    if (cached && profile_.read_ahead_bytes > profile_.cache_bytes) {
      note("cache.read_ahead", "is more than cache.memory");
    }
    for (const HostType& host : profile_.hosts) {
      note("host." + host.name, model::profile_error(host.profile));
    }
  }

  const std::string& path_;
  Scales scales_;
  const bool is_beside_;
  Mistakes mistakes_;
  std::map<std::string, std::uint32_t, std::less<>> section_lines_;
  ArrayProfile profile_;
};

}  // namespace

const HostType* ArrayProfile::find_host(std::string_view name_wanted) const {
  const auto found = std::ranges::find(hosts, name_wanted, &HostType::name);
  return found == hosts.end() ? nullptr : &*found;
}

std::uint64_t ArrayProfile::sectors_of_drive() const {
  return model::sector_count(drive) - first_byte / 512;
}

std::expected<ArrayProfile, std::string> read_array_profile(const std::string& path,
                                                            const Scales& scales) {
  const auto text = group::read_text_file(path);
  if (!text) return std::unexpected(text.error());
  return ProfileReader(path, scales).read(*text);
}

}  // namespace sandbay::lab
