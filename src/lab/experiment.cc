// Reads experiment files.
#include "lab/experiment.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <set>

#include "group/document.h"
#include "group/drive_file.h"
#include "iscsi/initiator.h"
#include "lab/iometer_file.h"

namespace sandbay::lab {
namespace {

using group::Mistakes;
using group::TableReader;
using group::Value;

constexpr std::array<std::pair<Metric, std::string_view>, 6> kMetrics = {
    {{Metric::kMebibytes, "MiB/s"},
     {Metric::kMegabytes, "MB/s"},
     {Metric::kIops, "IOPS"},
     {Metric::kMilliseconds, "ms"},
     {Metric::kVariation, "variation"},
     {Metric::kTrend, "trend"}}};
constexpr std::uint64_t kMostOfAnything = 65536;
constexpr std::uint64_t kLeastRoom = 4096;     // Of a request under way.
constexpr std::uint64_t kMostWorkers = 32768;  // In a row; each takes some 50 KB.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 60;
constexpr std::size_t kMostRows = 10000;

// What an [[experiment]] says that is the same in all its rows.
struct Frame {
  std::string name;
  std::vector<std::pair<std::string, std::vector<std::uint64_t>>> varied;
};

class ExperimentReader {
 public:
  ExperimentReader(const std::string& path, const Scales& scales)
      : path_(path), scales_(scales), mistakes_(path) {}

  std::expected<Plan, std::string> read() {
    const auto text = group::read_text_file(path_);
    if (!text) return std::unexpected(text.error());
    const auto root = group::read_toml(*text, path_);
    if (!root) return std::unexpected(root.error());
    TableReader reader(*root, "", mistakes_);
    plan_.name = reader.string("name").value_or("");
    plan_.title = reader.string("title").value_or("");
    plan_.seed = reader.integer("seed", 0, std::numeric_limits<std::int64_t>::max()).value_or(1);
    read_time_scale(reader);
    const std::string bed = reader.string("bed").value_or("");
    const std::string figures = reader.string("figures").value_or("");
    reader.require("name", "a name for the experiments, such as their document's");
    if (bed.empty()) reader.require("array", "a file of conf/arrays, or bed, an experiments' file");
    reader.require("figures", "a file of conf/lab/figures");
    if (!mistakes_.empty()) return std::unexpected(mistakes_.sorted().front());
    for (const auto& [key, file] : {std::pair{"bed", bed}, {"figures", figures}}) {
      if (file.empty()) continue;
      const auto there = group::read_text_file(beside(file));
      if (!there) reader.mistake(key, there.error());
    }
    if (!mistakes_.empty()) return std::unexpected(mistakes_.sorted().front());
    const std::string wrong = read_others(bed.empty() ? path_ : beside(bed), figures);
    if (!wrong.empty()) return std::unexpected(wrong);
    for (const Value* table : reader.tables("experiment")) experiment(*table);
    if (bed.empty()) {
      for (const std::string_view key : kBedKeys) (void)reader.any(key);
    }
    reader.finish();
    if (mistakes_.empty() && other_.empty() && plan_.rows.empty()) {
      mistakes_.add_absence(1, "experiment", "is missing; there must be an [[experiment]]");
    }
    if (!other_.empty()) return std::unexpected(other_);
    if (!mistakes_.empty()) return std::unexpected(mistakes_.sorted().front());
    return std::move(plan_);
  }

 private:
  std::string beside(const std::string& file) const {
    return (std::filesystem::path(path_).parent_path() / file).lexically_normal().string();
  }

  void read_time_scale(TableReader& reader) {
    const Value* value = reader.any("time_scale");
    if (value == nullptr) return;
    plan_.time_scale =
        value->kind == Value::Kind::kInteger ? static_cast<double>(value->integer) : value->number;
    if (plan_.time_scale >= 1 && plan_.time_scale <= kLargestTimeScale) return;
    reader.mistake("time_scale", fmt::format("is no number from 1 to {}", kLargestTimeScale));
  }

  std::string read_others(const std::string& bed, const std::string& figures) {
    auto profile = read_test_bed(bed, scales_);
    if (!profile) return profile.error();
    plan_.system = std::move(*profile);
    auto book = read_figures(beside(figures));
    if (!book) return book.error();
    plan_.figures = std::move(*book);
    return {};
  }

  void experiment(const Value& table) {
    TableReader reader(table, "experiment", mistakes_);
    Frame frame{.name = reader.string("name").value_or(""), .varied = {}};
    reader.require("name", "a name of its own, such as \"streams\"");
    if (!names_.insert(frame.name).second) reader.mistake("name", "is another experiment's");
    const std::string system = reader.string("system").value_or("");
    system_ = find_system(reader, system);
    if (const Value* vary = reader.table("vary")) read_vary(*vary, frame);
    constexpr Duration kLongest = std::chrono::hours(24);
    const Duration ramp_up = reader.duration("ramp_up", {}, kLongest).value_or(Duration{});
    const Duration run_time =
        reader.duration("run_time", std::chrono::milliseconds(1), kLongest).value_or(Duration{});
    reader.require("run_time", "how long is measured, such as \"20s\"");
    const bool real_sessions = read_sessions(reader);
    const std::vector<std::uint64_t> sweep = read_sweep(reader);
    const auto figures = reader.tables("figure");
    const auto groups = reader.tables("group");
    reader.require("group", "at least one [[experiment.group]] of volumes");
    reader.finish();
    if (!mistakes_.empty()) return;
    if (plan_.rows.size() + row_count(frame) > kMostRows) {
      return mistakes_.add(table.line, reader.has("vary") ? "experiment.vary" : "experiment",
                           fmt::format("makes more than {} rows in all", kMostRows));
    }
    for (const Variation& variation : combinations(frame)) {
      Row row{.experiment = frame.name,
              .variation = variation,
              .wanted = {},
              .sweep = sweep,
              .system = system,
              .groups = {},
              .ramp_up = ramp_up,
              .run_time = run_time,
              .real_sessions = real_sessions,
              .number = plan_.rows.size()};
      for (const Value* group : groups) row.groups.push_back(read_group(*group, row));
      for (const Value* figure : figures) {
        if (auto wanted = read_wanted(*figure, row)) row.wanted.push_back(std::move(*wanted));
      }
      if (mistakes_.empty() && other_.empty()) check_geometry(row, table.line);
      if (mistakes_.empty() && other_.empty()) check_requests(row, table.line);
      if (real_sessions && mistakes_.empty() && other_.empty()) check_sessions(row, groups);
      if (!mistakes_.empty() || !other_.empty()) return;
      plan_.rows.push_back(std::move(row));
    }
  }

  const ArrayProfile* find_system(TableReader& reader, const std::string& name) {
    if (name.empty()) return &plan_.system;
    const auto found = std::ranges::find(plan_.system.beside, name, &ArrayProfile::name);
    if (found != plan_.system.beside.end()) return &*found;
    std::string names;
    for (const ArrayProfile& each : plan_.system.beside) names += fmt::format(" \"{}\"", each.name);
    reader.mistake("system", fmt::format("is \"{}\"; beside {} there is{}", name, plan_.system.name,
                                         names.empty() ? " none" : names));
    return &plan_.system;
  }

  // Whether they are real.
  bool read_sessions(TableReader& reader) {
    const std::string word = reader.string("sessions").value_or("modelled");
    if (word != "real" && word != "modelled") {
      reader.mistake("sessions",
                     fmt::format("is \"{}\"; \"modelled\" and \"real\" are accepted", word));
    }
    if (word != "real") return false;
    if (system_->front_end != kIscsiFrontEnd) {
      reader.mistake("sessions",
                     fmt::format("is \"real\", but the system's front end is {}, which is in a "
                                 "model alone; \"modelled\" is accepted",
                                 system_->front_end));
    }
    return true;
  }

  void read_vary(const Value& table, Frame& frame) {
    TableReader reader(table, "experiment.vary", mistakes_);
    for (const Value::Member& member : table.members) {
      auto values = reader.integers(member.key, 1, kMostOfAnything);
      if (!values) continue;
      if (values->empty()) reader.mistake(member.key, "is empty; at least one value is needed");
      auto sorted = *values;
      std::ranges::sort(sorted);
      const auto twice = std::ranges::adjacent_find(sorted);
      if (twice != sorted.end()) reader.mistake(member.key, fmt::format("has {} twice", *twice));
      frame.varied.emplace_back(member.key, std::move(*values));
    }
    reader.finish();
  }

  std::vector<std::uint64_t> read_sweep(TableReader& reader) {
    std::vector<std::uint64_t> sizes;
    for (const std::string& text : reader.strings("sweep").value_or(std::vector<std::string>{})) {
      const auto size = group::parse_size(text);
      const std::string wrong =
          size ? access_error(AccessLine{.bytes = *size}) : "a size: " + size.error();
      if (!wrong.empty()) reader.mistake("sweep", "has " + wrong);
      if (size && std::ranges::find(sizes, *size) != sizes.end()) {
        reader.mistake("sweep", fmt::format("has {} twice", text));
      }
      if (size) sizes.push_back(*size);
    }
    return sizes;
  }

  // More than kMostRows are not counted to their end.
  static std::size_t row_count(const Frame& frame) {
    std::size_t count = 1;
    for (const auto& [name, values] : frame.varied) {
      if (count <= kMostRows) count *= values.size();
    }
    return count;
  }

  static std::vector<Variation> combinations(const Frame& frame) {
    std::vector<Variation> all = {{}};
    for (const auto& [name, values] : frame.varied) {
      std::vector<Variation> longer;
      for (const Variation& begun : all) {
        for (const std::uint64_t value : values) {
          longer.push_back(begun);
          longer.back().emplace_back(name, value);
        }
      }
      all = std::move(longer);
    }
    return all;
  }

  // A number, or the name of something that is varied.
  unsigned number(TableReader& reader, std::string_view key, const Row& row, unsigned otherwise) {
    const Value* value = reader.any(key);
    if (value == nullptr) return otherwise;
    if (value->kind == Value::Kind::kInteger && value->integer >= 1 &&
        std::cmp_less_equal(value->integer, kMostOfAnything)) {
      return static_cast<unsigned>(value->integer);
    }
    for (const auto& [name, varied] : row.variation) {
      if (value->kind == Value::Kind::kString && value->text == name) {
        return static_cast<unsigned>(varied);
      }
    }
    std::string names;
    for (const auto& [name, varied] : row.variation) names += fmt::format(" or \"{}\"", name);
    std::string given(group::describe(value->kind));
    if (value->kind == Value::Kind::kString) given = fmt::format("\"{}\"", value->text);
    if (value->kind == Value::Kind::kInteger) given = std::to_string(value->integer);
    reader.mistake(key, fmt::format("is {}; a whole number from 1 to {}{} is accepted", given,
                                    kMostOfAnything, names));
    return otherwise;
  }

  std::string some_host() const {
    const auto& hosts = system_->hosts;
    return hosts.empty() ? std::string("host") : hosts.front().name;
  }

  VolumeGroup read_group(const Value& table, const Row& row) {
    TableReader reader(table, "experiment.group", mistakes_);
    VolumeGroup group;
    const std::string level = reader.string("level").value_or("");
    group.drives = number(reader, "drives", row, 1);
    group.members = number(reader, "members", row, 0);
    if (reader.has("members") && reader.has("sets")) {
      reader.mistake("sets", "contradicts members, of which each has one set");
    }
    group.sets = number(reader, "sets", row, 1);
    read_spread(reader, group, row);
    group.volumes = number(reader, "volumes", row, 1);
    group.workers = number(reader, "workers", row, 1);
    group.volume_bytes = reader.size("volume_size", kMostAccessBytes, kMostBytes).value_or(0);
    read_offset(reader, group);
    group.background = number(reader, "background", row, 0);
    group.used = number(reader, "used", row, 0);
    if (group.used > group.volumes) {
      reader.mistake("used",
                     fmt::format("is {}, but a set has {} volumes", group.used, group.volumes));
    }
    group.host = reader.string("host").value_or("");
    group.hosts = number(reader, "hosts", row, 0);
    group.adapters = number(reader, "adapters", row, 1);
    if (group.adapters > kMostAdapters) {
      reader.mistake("adapters",
                     fmt::format("is {}; a host has {} at most", group.adapters, kMostAdapters));
    }
    group.connections = number(reader, "connections", row, 1);
    read_path(reader, group);
    group.per_connection = reader.has("outstanding_per_connection");
    group.outstanding = number(reader, "outstanding", row, 1);
    if (group.per_connection) {
      if (reader.has("outstanding")) {
        reader.mistake("outstanding_per_connection",
                       "stands beside outstanding; one of them is accepted");
      }
      group.outstanding = number(reader, "outstanding_per_connection", row, 1);
    } else {
      reader.any("outstanding_per_connection");  // A key that is known.
    }
    read_access(reader, group, row);
    reader.require("level", "the RAID level of a set, such as \"raid5\"");
    reader.require("drives", "how many drives a set has");
    reader.require("host", "the type of the hosts, such as \"" + some_host() + "\"");
    reader.finish();
    const auto known = raid::parse_level(level);
    if (known) group.level = *known;
    if (!known && reader.has("level")) {
      reader.mistake("level", fmt::format("is \"{}\"; jbod, concat, raid0, raid1, raid5, raid6, "
                                          "raid10, raid50 and raid60 are accepted",
                                          level));
    }
    if (reader.has("host") && system_->find_host(group.host) == nullptr) {
      std::string hosts;
      for (const HostType& host : system_->hosts) hosts += " " + host.name;
      reader.mistake("host",
                     fmt::format("is \"{}\"; hosts of this system are{}", group.host, hosts));
    }
    return group;
  }

  static void read_path(TableReader& reader, VolumeGroup& group) {
    const std::string word = reader.string("path").value_or("least-queue-depth");
    group.in_turn = word == "round-robin";
    if (group.in_turn || word == "least-queue-depth") return;
    reader.mistake(
        "path",
        fmt::format("is \"{}\"; \"least-queue-depth\" and \"round-robin\" are accepted", word));
  }

  // Over which controllers and sets volumes are.
  void read_spread(TableReader& reader, VolumeGroup& group, const Row& row) {
    group.controllers = number(reader, "controllers", row, 0);
    if (group.controllers > system_->controller_count) {
      reader.mistake("controllers", fmt::format("is {}, but the system has {}", group.controllers,
                                                system_->controller_count));
    }
    group.spread = number(reader, "spread", row, 1);
    if (group.sets % group.spread != 0) {
      reader.mistake("spread", fmt::format("is {}, of which {} sets are no multiple", group.spread,
                                           group.sets));
    }
    if (group.members == 0) return;
    for (const char* key : {"controllers", "spread"}) {
      if (reader.has(key)) reader.mistake(key, "contradicts members; one of them is accepted");
    }
    if (group.members > system_->member_count) {
      reader.mistake("members", system_->member_count == 0
                                    ? fmt::format("is {}, but {} is no group of arrays",
                                                  group.members, system_->name)
                                    : fmt::format("is {}, but {} has {} at most", group.members,
                                                  system_->name, system_->member_count));
    }
  }

  void read_offset(TableReader& reader, VolumeGroup& group) {
    group.offset_bytes = reader.size("offset", 0, kMostBytes).value_or(0);
    if (group.offset_bytes == 0) return;
    reader.require("volume_size", "how large a volume is, as there is an offset");
    if (group.in_pages() && reader.has("volume_size") && group.offset_bytes >= group.volume_bytes) {
      reader.mistake("offset", "is not within the volume");
    }
    if (group.offset_bytes % kAccessSectorBytes != 0) {
      reader.mistake("offset", "is no multiple of 512 bytes");
    }
  }

  // From the keys read, random, size …, or from an IOMeter file.
  void read_access(TableReader& reader, VolumeGroup& group, const Row& row) {
    if (const auto file = reader.string("iometer")) {
      const std::string name = reader.string("specification").value_or("");
      reader.require("specification", "the name of an access specification of the file");
      if (!row.sweep.empty()) {
        reader.mistake("iometer", "contradicts sweep; one of them is accepted");
      }
      if (reader.has("specification")) take_from_iometer(reader, *file, name, group);
      return;
    }
    AccessLine line;
    auto size = reader.size("size", kAccessSectorBytes, kMostAccessBytes);
    if (reader.has("size_kib")) {
      if (size) reader.mistake("size_kib", "stands beside size; one of them is accepted");
      size = std::uint64_t{number(reader, "size_kib", row, 1)} << 10;
    }
    line.bytes = size.value_or(row.sweep.empty() ? 0 : row.sweep.front());
    if (!size && row.sweep.empty())
      reader.require("size", "the requests' size, such as \"64KiB\", or a sweep");
    if (size && !row.sweep.empty()) {
      reader.mistake("size", "contradicts sweep; one of them is accepted");
    }
    line.read_percent =
        static_cast<std::uint32_t>(reader.integer("read_percent", 0, 100).value_or(100));
    line.random_percent =
        static_cast<std::uint32_t>(reader.integer("random_percent", 0, 100).value_or(0));
    line.align_bytes = reader.size("align", 0, kMostAccessBytes).value_or(0);
    line.burst = static_cast<std::uint32_t>(reader.integer("burst", 1, 65536).value_or(1));
    line.delay = reader.duration("delay", {}, std::chrono::hours(1)).value_or(Duration{});
    if (line.align_bytes % kAccessSectorBytes != 0) {
      reader.mistake("align", "is no multiple of 512 bytes");
    } else if (const std::string wrong = access_error(line); !wrong.empty() && line.bytes != 0) {
      reader.mistake(reader.has("size_kib") ? "size_kib" : "size", "is " + wrong);
    }
    group.access = {.name = {}, .lines = {line}};
  }

  void take_from_iometer(TableReader& reader, const std::string& file, const std::string& name,
                         VolumeGroup& group) {
    const std::string path = beside(file);
    const auto text = group::read_text_file(path);
    if (!text) return reader.mistake("iometer", text.error());
    const auto read = read_iometer_file(*text, path);
    if (!read) {
      other_ = read.error();
      return;
    }
    const AccessSpecification* found = read->find(name);
    if (found == nullptr) {
      return reader.mistake("specification",
                            fmt::format("\"{}\" is no access specification of {}", name, path));
    }
    group.access = *found;
    take_from_workers(reader, *read, path, group);
  }

  // What the experiment does not say itself, as all workers for disks have it.
  void take_from_workers(TableReader& reader, const IometerFile& file, const std::string& path,
                         VolumeGroup& group) {
    std::vector<const IometerWorker*> disks;
    for (const IometerWorker& worker : file.workers) {
      if (worker.type == "DISK") disks.push_back(&worker);
    }
    const auto in_part = [](const IometerWorker* worker) {
      return worker->maximum_sectors != 0 || worker->starting_sector != 0;
    };
    if (!reader.has("volume_size") && std::ranges::any_of(disks, in_part)) {
      reader.mistake("iometer", path +
                                    " has workers in a part of their disks; say volume_size and, "
                                    "if it is not the first, offset");
    }
    if (reader.has("outstanding") || group.per_connection) return;
    if (disks.empty()) {
      return reader.mistake("iometer", path + " has no worker of type DISK; say outstanding");
    }
    const auto depths = file.outstanding_of(*disks.front());
    for (const IometerWorker* worker : disks) {
      if (file.outstanding_of(*worker) == depths) continue;
      return reader.mistake("iometer", path +
                                           " has workers with different numbers of outstanding "
                                           "I/Os; say outstanding");
    }
    group.outstanding = depths.front();
    if (depths.size() == 1) return;
    reader.mistake("iometer",
                   fmt::format("{} cycles through {} queue depths; say outstanding, which may be "
                               "varied",
                               path, depths.size()));
  }

  // Whether a figure is one of this row's: `when` has values of what is varied.
  bool is_of_row(TableReader& reader, const Row& row) {
    const Value* when = reader.table("when");
    if (when == nullptr) return true;
    TableReader conditions(*when, reader.path_of("when"), mistakes_);
    bool good = true;
    for (const Value::Member& member : when->members) {
      const auto values = conditions.integers(member.key, 1, kMostOfAnything);
      const auto varied = std::ranges::find(row.variation, member.key,
                                            &std::pair<std::string, std::uint64_t>::first);
      if (varied == row.variation.end()) {
        conditions.mistake(member.key, "is not varied");
      } else {
        good = good && values && std::ranges::find(*values, varied->second) != values->end();
      }
    }
    conditions.finish();
    return good;
  }

  std::optional<Wanted> read_wanted(const Value& table, const Row& row) {
    TableReader reader(table, "experiment.figure", mistakes_);
    Wanted wanted;
    const bool of_row = is_of_row(reader, row);
    wanted.figure = reader.string("id").value_or("");
    const std::string metric = reader.string("metric").value_or("");
    if (const auto group = reader.integer("group", 1, row.groups.size())) wanted.group = *group - 1;
    read_volume(reader, row, wanted);
    wanted.least = reader.boolean("least").value_or(false);
    if (const Value* value = reader.any("divide_by")) {
      wanted.divide_by = value->kind == Value::Kind::kInteger ? static_cast<double>(value->integer)
                                                              : value->number;
      if (!(wanted.divide_by > 0)) reader.mistake("divide_by", "is no number above 0");
    }
    reader.require("id", "the figure's id");
    reader.require("metric", "MiB/s, MB/s, IOPS, ms, variation or trend");
    reader.finish();
    if (!of_row) return std::nullopt;
    for (const auto& [name, value] : row.variation) {
      const std::string word = "{" + name + "}";
      for (auto at = wanted.figure.find(word); at != std::string::npos;
           at = wanted.figure.find(word)) {
        wanted.figure.replace(at, word.size(), std::to_string(value));
      }
    }
    const auto known =
        std::ranges::find(kMetrics, metric, &std::pair<Metric, std::string_view>::second);
    if (known != kMetrics.end()) wanted.metric = known->first;
    if (known == kMetrics.end() && reader.has("metric")) {
      reader.mistake(
          "metric",
          fmt::format("is \"{}\"; MiB/s, MB/s, IOPS, ms, variation and trend are accepted",
                      metric));
    }
    if (reader.has("id")) check_figure(reader, row, wanted);
    return wanted;
  }

  void read_volume(TableReader& reader, const Row& row, Wanted& wanted) {
    const auto volume = reader.integer("volume", 1, kMostOfAnything);
    if (!volume) return;
    wanted.volume = static_cast<unsigned>(*volume - 1);
    unsigned most = 0;
    for (std::size_t i = 0; i < row.groups.size(); ++i) {
      if (!wanted.group || *wanted.group == i) most = std::max(most, row.groups[i].volume_count());
    }
    if (*volume <= most) return;
    reader.mistake("volume", fmt::format("is {}, but {} has {}", *volume, row.name(), most));
  }

  // It is there, has a unit that the metric can be in, and is measured once.
  void check_figure(TableReader& reader, const Row& row, const Wanted& wanted) {
    const Figure* const figure = plan_.figures.find(wanted.figure);
    if (figure == nullptr) {
      return reader.mistake(
          "id", fmt::format("\"{}\" is no figure of {}", wanted.figure, plan_.figures.document));
    }
    if (is_computed(*figure)) {
      reader.mistake("id", fmt::format("\"{}\" is computed from others", wanted.figure));
    }
    // Whatever has so much of the metric may be counted.
    if (!reader.has("divide_by") && !fits(wanted.metric, figure->unit)) {
      reader.mistake("metric", fmt::format("does not give \"{}\", the unit of \"{}\"; say "
                                           "divide_by if it is counted in that",
                                           figure->unit, figure->id));
    }
    const auto [first, is_new] = measured_by_.emplace(wanted.figure, row.name());
    if (is_new) return;
    reader.mistake("id", fmt::format("\"{}\" is measured in \"{}\" already; a figure is one "
                                     "row's, which `when` may say",
                                     wanted.figure, first->second));
  }

  // Megabytes of both kinds are taken for one another, as documents do.
  static bool fits(Metric metric, std::string_view unit) {
    switch (metric) {
      case Metric::kMebibytes:
      case Metric::kMegabytes:
        return unit == "MB/s" || unit == "MiB/s";
      case Metric::kVariation:
      case Metric::kTrend:
        return unit == "%";
      case Metric::kIops:
      case Metric::kMilliseconds:
        break;
    }
    return unit == describe(metric);
  }

  // What most probably makes a worker's part too small.
  static std::string_view too_little_key(const VolumeGroup& group) {
    if (group.workers > 1) return "workers";
    if (group.in_pages() && group.offset_bytes > 0) return "offset";
    return group.volume_bytes > 0 ? "volume_size" : "volumes";
  }

  void check_geometry(const Row& row, std::uint32_t line) {
    std::uint64_t drives = 0;
    const std::uint64_t blocks = system_->sectors_of_drive() - 8192;
    for (const VolumeGroup& group : row.groups) {
      drives += std::uint64_t{group.set_count()} * group.drives;
      raid::Shape shape{.level = group.level, .drive_count = group.drives};
      shape.strip_blocks = static_cast<std::uint32_t>(system_->strip_bytes / 512);
      shape.drive_blocks.assign(group.drives, blocks);
      const auto layout = raid::Layout::make(shape);
      if (!layout) {
        return mistakes_.add(line, "experiment.group",
                             fmt::format("{}: {}", row.name(), layout.error()));
      }
      const std::uint64_t blocks_of_all = layout->block_count() * group.spread_sets();
      const std::uint64_t before = group.in_pages() ? 0 : group.offset_bytes;
      const std::uint64_t left = blocks_of_all - std::min(blocks_of_all, before / 512);
      if (group.volume_bytes / 512 > left / group.volumes) {
        return mistakes_.add(
            line, "experiment.group.volume_size",
            fmt::format("{}: {} such volumes are larger than their set, which has {}", row.name(),
                        group.volumes, group::format_size_rounded(blocks_of_all * 512)));
      }
      std::uint64_t volume =
          group.volume_bytes == 0 ? blocks_of_all * 512 / group.volumes : group.volume_bytes;
      if (group.in_pages()) {
        volume -= volume % (system_->page_bytes * group.spread_sets());
        volume -= std::min(volume, group.offset_bytes);
      }
      if (group.part_bytes(volume) < kMostAccessBytes) {
        return mistakes_.add(
            line, fmt::format("experiment.group.{}", too_little_key(group)),
            fmt::format("{}: {} are left of each of {} volumes, and each of its {} workers needs "
                        "{}",
                        row.name(), group::format_size_rounded(volume), group.volumes,
                        group.workers, group::format_size_rounded(kMostAccessBytes)));
      }
      if (group.connections > system_->port_count) {
        return mistakes_.add(line, "experiment.group.connections",
                             fmt::format("{}: {} connections, but the system has {} ports",
                                         row.name(), group.connections, system_->port_count));
      }
    }
    if (drives <= system_->drive_count) return;
    mistakes_.add(line, "experiment.group",
                  fmt::format("{}: {} drives are needed, but the system has {}", row.name(), drives,
                              system_->drive_count));
  }

  // What may be under way at a time must have room.
  void check_requests(const Row& row, std::uint32_t line) {
    double bytes = 0;
    std::uint64_t workers = 0;
    for (const VolumeGroup& group : row.groups) {
      const std::uint64_t largest =
          row.sweep.empty() ? group.access.largest() : std::ranges::max(row.sweep);
      const std::uint64_t here = std::uint64_t{group.volume_count()} * group.workers;
      workers += here;
      bytes += static_cast<double>(std::max(largest, kLeastRoom)) * group.requests() *
               static_cast<double>(here);
    }
    if (workers > kMostWorkers) {
      mistakes_.add(line, "experiment.group",
                    fmt::format("{}: has {} workers in all; at most {} are accepted", row.name(),
                                workers, kMostWorkers));
    } else if (bytes > static_cast<double>(kMostBytesUnderWay)) {
      mistakes_.add(line, "experiment.group",
                    fmt::format("{}: has more than {} of requests outstanding, which is the most "
                                "that is accepted",
                                row.name(), group::format_size(kMostBytesUnderWay)));
    }
  }

  void check_sessions(const Row& row, const std::vector<const Value*>& tables) {
    for (std::size_t i = 0; i < tables.size(); ++i) {
      const SessionError wrong = session_error(row.groups[i]);
      if (wrong.what.empty()) continue;
      TableReader reader(*tables[i], "experiment.group", mistakes_);
      // Nobody but an IOMeter file says how many are outstanding where no key does.
      const std::string_view key = reader.has(wrong.key) ? wrong.key : "iometer";
      return reader.mistake(key, fmt::format("{}: {}", row.name(), wrong.what));
    }
  }

  const std::string& path_;
  const Scales& scales_;
  Mistakes mistakes_;
  std::string other_;                               // A whole line about another file.
  std::set<std::string> names_;                     // Of the experiments.
  const ArrayProfile* system_ = nullptr;            // Of the experiment that is read.
  std::map<std::string, std::string> measured_by_;  // Figures, and the rows that they are of.
  Plan plan_;
};

}  // namespace

std::string_view describe(Metric metric) {
  return std::ranges::find(kMetrics, metric, &std::pair<Metric, std::string_view>::first)->second;
}

const ArrayProfile& Plan::system_of(const Row& row) const {
  const auto found = std::ranges::find(system.beside, row.system, &ArrayProfile::name);
  return found == system.beside.end() ? system : *found;
}

SessionError session_error(const VolumeGroup& group) {
  if (group.connections > iscsi::kMaximumInitiatorConnections) {
    return {
        .key = "connections",
        .what = fmt::format("has sessions of {} connections; one that is no model has at most {}",
                            group.connections, iscsi::kMaximumInitiatorConnections)};
  }
  if (group.requests() > iscsi::kMaximumInitiatorQueueDepth) {
    return {.key = group.per_connection ? "outstanding_per_connection" : "outstanding",
            .what = fmt::format(
                "has {} requests outstanding in a session; one that is no model has at most {}",
                group.requests(), iscsi::kMaximumInitiatorQueueDepth)};
  }
  return {};
}

std::string Row::name() const {
  std::string text = experiment;
  for (const auto& [key, value] : variation) text += fmt::format(", {} {}", key, value);
  return text;
}

std::vector<VolumeGroup> Row::groups_with(std::uint64_t transfer) const {
  std::vector<VolumeGroup> changed = groups;
  for (VolumeGroup& group : changed) {
    for (AccessLine& line : group.access.lines) line.bytes = transfer;
  }
  return changed;
}

std::expected<Plan, std::string> read_experiments(const std::string& path, const Scales& scales) {
  return ExperimentReader(path, scales).read();
}

}  // namespace sandbay::lab
