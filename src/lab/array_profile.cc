// Reads a test bed: the array from its own file, then what the bed has otherwise, or besides.
#include "lab/array_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "group/configuration.h"
#include "group/document_forms.h"
#include "group/drive_file.h"
#include "model/drive_type.h"

namespace sandbay::lab {
namespace {

using group::Mistakes;
using group::Provenance;
using group::TableReader;
using group::Value;

constexpr std::uint64_t kMostControllers = 64;
constexpr std::uint64_t kMostBackgroundBytes = std::uint64_t{1} << 20;
// No system has more, and what is scaled and multiplied stays within 64 bits, a run in memory.
constexpr std::uint64_t kMostCount = 65536;
constexpr std::uint64_t kMostMemory = std::uint64_t{64} << 30;
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kMostPageBytes = std::uint64_t{1} << 30;
constexpr Duration kLongestTime = std::chrono::hours(1);
// What an experiments' file has beside its test bed.
constexpr std::array kOtherKeys = {"name",       "title", "seed",   "figures",
                                   "time_scale", "bed",   "system", "experiment"};

// Sees every value that says where it comes from: notes it, and changes it by its factor.
class Scaling {
 public:
  Scaling(const Scales& scales, Mistakes& mistakes, std::vector<Parameter>& parameters)
      : scales_(scales), mistakes_(mistakes), parameters_(parameters) {}

  void take(const Provenance& found, Value& value) {
    Parameter parameter = found;
    parameter.name = group::without_numbers(found.name);
    const auto scale = scales_.find(parameter.name);
    if (scale != scales_.end()) change(found, value, scale->second);
    // The members of a group are alike; and a bed has values in the places of the array's.
    if (parameter.name.starts_with("member.")) return;
    std::erase_if(parameters_, [&](const Parameter& each) { return each.name == parameter.name; });
    parameters_.push_back(std::move(parameter));
  }

 private:
  void change(const Provenance& found, Value& value, double scale) {
    const auto scaled = [scale](auto number) {
      return static_cast<std::uint64_t>(std::llround(static_cast<double>(number) * scale));
    };
    switch (value.kind) {
      case Value::Kind::kBoolean:
        // Scaled either way, a flag is the other one.
        value.boolean = value.boolean == (scale == 1);
        return;
      case Value::Kind::kInteger: {
        const auto number = static_cast<std::int64_t>(scaled(value.integer));
        if (scale != 1 && number == value.integer) {
          mistakes_.add(found.line, found.name, "is no other number when it is scaled and rounded");
        }
        value.integer = number;
        return;
      }
      case Value::Kind::kFloat:
        value.number *= scale;
        return;
      default:
        if (const auto rate = group::parse_rate(value.text)) {
          value.text = group::format_rate(scaled(*rate));
        } else if (const auto time = group::parse_duration(value.text)) {
          value.text = fmt::format("{}ns", scaled(time->count()));
        } else if (const auto size = group::parse_size(value.text)) {
          // What was whole sectors or pages stays so.
          const std::uint64_t page = *size % kPage == 0 ? kPage : 1;
          value.text = fmt::format("{}B", scaled(*size) / page * page);
        } else {
          mistakes_.add(found.line, found.name, "cannot be scaled");
        }
    }
  }

  const Scales& scales_;
  Mistakes& mistakes_;
  std::vector<Parameter>& parameters_;
};

// The array -------------------------------------------------------------------------------------

bool yes(const std::map<std::string, std::string>& keys, const std::string& key, bool otherwise) {
  const auto found = keys.find(key);
  return found == keys.end() ? otherwise : found->second == "Yes";
}

std::uint64_t number(const std::map<std::string, std::string>& keys, const std::string& key,
                     std::uint64_t otherwise) {
  const auto found = keys.find(key);
  return found == keys.end() ? otherwise : std::strtoull(found->second.c_str(), nullptr, 10);
}

void take_session(const std::map<std::string, std::string>& keys,
                  model::ExchangeParameters& exchange) {
  exchange.initial_r2t = yes(keys, "InitialR2T", exchange.initial_r2t);
  exchange.immediate_data = yes(keys, "ImmediateData", exchange.immediate_data);
  exchange.first_burst = number(keys, "FirstBurstLength", exchange.first_burst);
  exchange.max_burst = number(keys, "MaxBurstLength", exchange.max_burst);
  exchange.outstanding_r2ts = number(keys, "MaxOutstandingR2T", exchange.outstanding_r2ts);
  exchange.target_segment = number(keys, "MaxRecvDataSegmentLength", exchange.target_segment);
}

void take_cache(const group::HardwareConfiguration& hardware, ArrayProfile& profile) {
  profile.cache_bytes = 0;
  if (!hardware.cache) return;
  const cache::CacheOptions& options = hardware.cache->options;
  const std::uint64_t nvram = hardware.cache->nvram_bytes;
  profile.cache_bytes = options.memory_bytes;
  profile.dirty_bytes = nvram == 0 ? options.dirty_limit_bytes : group::shares_of(nvram).data_bytes;
  profile.flush_mark_percent = static_cast<std::uint64_t>(std::lround(100 * options.low_watermark));
  profile.read_ahead_bytes = options.read_ahead_limit_bytes;
  profile.read_ahead_window_bytes = hardware.cache->window_bytes;
  profile.destages_in_flight = options.destages_in_flight;
  profile.drive_write_bytes = hardware.cache->drive_write_bytes;
}

// Every drive is as the first one, and every member.
void take_array(const group::Configuration& array, Mistakes& mistakes, ArrayProfile& profile) {
  const group::HardwareConfiguration& hardware = array.hardware;
  const std::uint64_t members = array.members.size() + 1;
  std::vector<const group::DriveConfiguration*> drives;
  for (const auto& drive : hardware.drives) drives.push_back(&drive);
  for (const auto& member : array.members) {
    for (const auto& drive : member.hardware.drives) drives.push_back(&drive);
  }
  for (const group::DriveConfiguration* drive : drives) {
    const group::DriveConfiguration& first = *drives.front();
    const bool alike = drive->profile == first.profile && drive->begin_bytes == first.begin_bytes &&
                       drive->changed == first.changed;
    if (drive->type != nullptr && alike) continue;
    return mistakes.add(drive->line, "drive.profile",
                        drive->type == nullptr
                            ? "is missing; the lab runs arrays whose drives have one"
                            : "is not that of the first drive; the lab runs drives that are alike");
  }
  std::erase_if(drives, [](const group::DriveConfiguration* drive) { return drive->spare; });
  if (drives.empty()) return mistakes.add_absence(1, "drive", "is missing; the lab needs drives");
  profile.drive_count = drives.size();
  profile.drive = drives.front()->type->profile();
  profile.first_byte = drives.front()->begin_bytes;
  if (!hardware.sets.empty()) profile.strip_bytes = hardware.sets.front().strip_bytes;
  if (!array.pools.empty()) profile.page_bytes = array.pools.front().page_bytes;
  // Members that share a pool are one array to their volumes; else each stands for itself.
  profile.member_count = array.pools.empty() || members == 1 ? 0 : members;
  profile.controller_count = array.pools.empty() ? members : 1;
  take_cache(hardware, profile);
  if (hardware.controller) profile.controller = *hardware.controller;
  profile.pace = hardware.pace;
  take_session(array.identity.keys, profile.exchange);
  std::uint64_t ports = 0;
  for (const group::PortalConfiguration& portal : array.portals) {
    if (!portal.port) continue;
    if (++ports == 1) profile.port = *portal.port;
  }
  profile.port.pdu_header = model::PortProfile{}.pdu_header;  // Where sessions are a model.
  profile.port_count = std::max<std::uint64_t>(ports / members, 1);
}

// The test bed ----------------------------------------------------------------------------------

// The values of one section.
class Section {
 public:
  Section(const Value& table, std::string name, Mistakes& mistakes)
      : reader_(table, std::move(name), mistakes) {}
  ~Section() { reader_.finish(); }
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

  TableReader& reader() { return reader_; }
  void flag(std::string_view key, bool& out) { out = reader_.boolean(key).value_or(out); }
  void count(std::string_view key, std::uint64_t& out, std::uint64_t least = 0,
             std::uint64_t most = kMostCount) {
    out = reader_.integer(key, least, most).value_or(out);
  }
  void size(std::string_view key, std::uint64_t& out, std::uint64_t least = 0,
            std::uint64_t most = kMostMemory) {
    out = reader_.size(key, least, most).value_or(out);
  }
  void rate(std::string_view key, std::uint64_t& out) { out = reader_.rate(key).value_or(out); }
  void time(std::string_view key, Duration& out) {
    out = reader_.duration(key, Duration{}, kLongestTime).value_or(out);
  }
  // What the model says of the section begins with the key that it is about.
  void check(const std::string& wrong) {
    if (wrong.empty()) return;
    const std::size_t end = wrong.find_first_of(" ,");
    reader_.mistake(wrong.substr(0, end), wrong.substr(std::min(end + 1, wrong.size())));
  }

 private:
  TableReader reader_;
};

class BedReader {
 public:
  // `scales` by this array's own names.
  BedReader(const std::string& path, Scales scales)
      : path_(path), scales_(std::move(scales)), mistakes_(path) {}

  // The error is one whole line, of this file or of the array's.
  std::expected<ArrayProfile, std::string> read(const Value& bed, bool is_beside) {
    TableReader reader(bed, is_beside ? "beside" : "", mistakes_);
    const std::string file = reader.string("array").value_or("");
    if (!reader.has("array") && reader.has("bed")) {
      reader.mistake("bed", "is another file's bed once more; name the file that has the array");
    }
    reader.require("array", "a file of conf/arrays");
    if (!mistakes_.empty()) return std::unexpected(mistakes_.sorted().front());
    std::string wrong = read_array(reader, file);
    if (!wrong.empty()) return std::unexpected(wrong);
    read_sections(reader);
    if (!is_beside) {
      for (const Value* table : reader.tables("beside")) {
        wrong = read_beside(*table);
        if (!wrong.empty()) return std::unexpected(wrong);
      }
      for (const char* key : kOtherKeys) (void)reader.any(key);
    }
    reader.finish();
    for (const auto& [name, factor] : scales_) {
      if (std::ranges::find(profile_.parameters, name, &Parameter::name) ==
          profile_.parameters.end()) {
        mistakes_.add(1, name, "is no parameter of this system");
      }
    }
    if (!mistakes_.empty()) return std::unexpected(mistakes_.sorted().front());
    return std::move(profile_);
  }

 private:
  // Values of that table, by their full form.
  Value plain(const Value& table, const std::string& name) {
    Value copy = table;
    Scaling scaling(scales_, mistakes_, profile_.parameters);
    group::unwrap_values(
        copy, mistakes_, [&](const Provenance& each, Value& value) { scaling.take(each, value); },
        name);
    return copy;
  }

  std::string read_array(TableReader& reader, const std::string& file) {
    const std::string path =
        (std::filesystem::path(path_).parent_path() / file).lexically_normal().string();
    profile_.name = std::filesystem::path(file).stem().string();
    const auto text = group::read_text_file(path);
    if (!text) {
      return fmt::format("{}:{}: {}: {}", path_, reader.line_of("array"), reader.path_of("array"),
                         text.error());
    }
    auto document = group::read_toml(*text, path);
    if (!document) return document.error();
    Mistakes mistakes(path);
    Scaling scaling(scales_, mistakes, profile_.parameters);
    group::unwrap_values(*document, mistakes,
                         [&](const Provenance& each, Value& value) { scaling.take(each, value); });
    group::expand_counts(*document, mistakes);
    if (!mistakes.empty()) return mistakes.sorted().front();
    const auto array = group::read_configuration(*document, mistakes, path);
    if (!array) return array.error().front();
    take_array(*array, mistakes, profile_);
    return mistakes.empty() ? std::string() : mistakes.sorted().front();
  }

  // Another array, with a bed of its own.
  std::string read_beside(const Value& table) {
    const Value* const file = table.find("array");
    const std::string name =
        file == nullptr ? std::string() : std::filesystem::path(file->text).stem().string();
    const std::string prefix = name + ".";
    Scales own;
    for (auto at = scales_.begin(); at != scales_.end();) {
      const bool is_own = at->first.starts_with(prefix);
      if (is_own) own.emplace(at->first.substr(prefix.size()), at->second);
      at = is_own ? scales_.erase(at) : std::next(at);
    }
    auto other = BedReader(path_, std::move(own)).read(table, true);
    if (!other) return other.error();
    if (other->name == profile_.name ||
        std::ranges::find(profile_.beside, other->name, &ArrayProfile::name) !=
            profile_.beside.end()) {
      mistakes_.add(
          file->line, "beside.array",
          fmt::format("is \"{}\", and an array of that name stands before it", other->name));
    }
    for (Parameter& parameter : other->parameters) {
      parameter.name = prefix + parameter.name;
      profile_.parameters.push_back(parameter);
    }
    profile_.beside.push_back(std::move(*other));
    return {};
  }

  void read_sections(TableReader& reader) {
    if (const auto word = reader.string("front_end")) {
      profile_.front_end = *word;
      if (std::ranges::find(kFrontEnds, *word) == kFrontEnds.end()) {
        reader.mistake("front_end", fmt::format("is \"{}\"; accepted are {}", *word,
                                                fmt::join(kFrontEnds, ", ")));
      }
    }
    if (const Value* table = reader.table("cache")) cache(plain(*table, "cache"));
    if (const Value* table = reader.table("layout")) layout(plain(*table, "layout"));
    if (const Value* table = reader.table("session")) {
      session(plain(*table, "session"));
    } else if (const std::string wrong = model::profile_error(profile_.exchange); !wrong.empty()) {
      reader.mistake("session", wrong + "; write a section with other values");
    }
    if (const Value* table = reader.table("background")) background(plain(*table, "background"));
    for (const Value* table : reader.tables("host")) host(*table);
  }

  void cache(const Value& table) {
    Section values(table, "cache", mistakes_);
    values.size("memory", profile_.cache_bytes);
    values.size("dirty", profile_.dirty_bytes);
    values.count("flush_mark", profile_.flush_mark_percent, 1, 99);
    values.size("read_ahead", profile_.read_ahead_bytes);
    values.flag("write_back", profile_.write_back);
    if (profile_.cache_bytes == 0) return;
    if (profile_.dirty_bytes >= profile_.cache_bytes) {
      values.reader().mistake(values.reader().has("dirty") ? "dirty" : "memory",
                              "leaves dirty data all of the cache's memory, or more");
    }
    if (profile_.read_ahead_bytes > profile_.cache_bytes) {
      values.reader().mistake(values.reader().has("read_ahead") ? "read_ahead" : "memory",
                              "is less than what is read ahead");
    }
  }

  void layout(const Value& table) {
    Section values(table, "layout", mistakes_);
    values.size("page", profile_.page_bytes, kPage, kMostPageBytes);
    if (profile_.page_bytes % kPage != 0) {
      values.reader().mistake("page", "is no multiple of 4096 bytes");
    }
    values.flag("scattered_pages", profile_.scattered_pages);
    values.flag("nearest_mirror", profile_.nearest_mirror);
    values.count("drives", profile_.drive_count, 1);
    values.count("controllers", profile_.controller_count, 1, kMostControllers);
    if (profile_.member_count > 0 && profile_.controller_count > 1) {
      values.reader().mistake("controllers",
                              "is more than 1, but members have one controller each");
    }
  }

  void session(const Value& table) {
    Section values(table, "session", mistakes_);
    model::ExchangeParameters& to = profile_.exchange;
    values.flag("initial_r2t", to.initial_r2t);
    values.flag("immediate_data", to.immediate_data);
    values.size("first_burst", to.first_burst);
    values.size("max_burst", to.max_burst);
    values.count("outstanding_r2ts", to.outstanding_r2ts);
    values.size("target_segment", to.target_segment);
    values.size("initiator_segment", to.initiator_segment);
    values.time("host_turnaround", to.host_turnaround);
    values.check(model::profile_error(to));
  }

  void background(const Value& table) {
    Section values(table, "background", mistakes_);
    std::uint64_t read_percent = 50;
    values.count("read_percent", read_percent, 0, 100);
    values.size("size", profile_.background_bytes, 512, kMostBackgroundBytes);
    if (profile_.background_bytes % 512 != 0) {
      values.reader().mistake("size", "is no multiple of 512 bytes");
    }
    profile_.background_read_share = static_cast<double>(read_percent) / 100;
  }

  void host(const Value& table) {
    HostType type;
    const Value* const name = table.find("name");
    if (name != nullptr) type.name = name->text;
    const std::string path = "host." + type.name;
    const Value full = plain(table, path);
    Section values(full, path, mistakes_);
    (void)values.reader().string("name");
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
    for (unsigned i = 0; i < kMostAdapters; ++i) {
      type.profile.request_times.push_back(request_time + static_cast<Duration::rep>(i) * more);
    }
    values.check(model::profile_error(type.profile));
    if (profile_.find_host(type.name) != nullptr) {
      values.reader().mistake("name", fmt::format("another host is called \"{}\"", type.name));
    }
    profile_.hosts.push_back(std::move(type));
  }

  const std::string& path_;
  Scales scales_;
  Mistakes mistakes_;
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

std::expected<ArrayProfile, std::string> read_test_bed(const std::string& path,
                                                       const Scales& scales) {
  const auto text = group::read_text_file(path);
  if (!text) return std::unexpected(text.error());
  const auto root = group::read_toml(*text, path);
  if (!root) return std::unexpected(root.error());
  return BedReader(path, scales).read(*root, false);
}

}  // namespace sandbay::lab
