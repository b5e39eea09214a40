// Experiments: a file has a test bed (array_profile.h) or names the file whose it shares, `bed`;
// what is done with it, what is varied, and the figures with which the results are compared
// (conf/lab/*.toml). plan() makes a list of cases of it, each of which is one run from a cold
// start.
//
// [[experiment]] varies any number of things, `vary = { volumes = [1, 2, 4] }`; each combination is
// a row. In a group of volumes a number may be the name of something that is varied, and in the
// name of a figure {volumes} stands for its value. A figure with `when = { volumes = [1, 4] }` is
// one of the rows with these values. `sweep` lists transfer sizes: a row is run with each, and a
// figure is the largest of them, as a document's peak is. `system = "NAME"` in an experiment is one
// that stands beside the file's. `time_scale = 4` is how far time is stretched where the
// experiments are live. `sessions = "real"` in an experiment: in virtual time its sessions are our
// initiator's with our target, on simulated links, and no models. `path = "round-robin"` in a
// group: requests take a session's connections in turn.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/access.h"
#include "lab/array_profile.h"
#include "lab/figures.h"
#include "raid/layout.h"

namespace sandbay::lab {

// Volumes that are alike. Each has workers, and each worker a session of its own that it keeps
// busy.
struct VolumeGroup {
  raid::Level level = raid::Level::kJbod;
  // The group is there so many times, once behind each of the first of the system's controllers:
  // sets, volumes and hosts are those of one. 0: once, and its sets go round all controllers.
  unsigned controllers = 0;
  // Of an array of arrays: each has such a set, and every volume's pages go round all of them. The
  // members' caches, processors and ports count together. 0: no pages, each set by itself.
  unsigned members = 0;
  unsigned drives = 1;  // Of each RAID set.
  unsigned sets = 1;
  unsigned spread = 1;             // Sets over whose pages each volume goes round.
  unsigned volumes = 1;            // On each set (so many as are spread), one behind the other.
  std::uint64_t volume_bytes = 0;  // Of each, from the beginning of the drives on; 0: equal parts.
  // Before the first volume on a set; in pages, of each: where its workers' parts begin.
  std::uint64_t offset_bytes = 0;
  unsigned used = 0;            // Of those, from the first on, that have a worker; 0: all.
  unsigned workers = 1;         // Of each volume, each in an equal part of it.
  std::string host;             // The type of its hosts.
  unsigned hosts = 0;           // Over which the workers are spread; 0: one for each volume.
  unsigned adapters = 1;        // Of each host.
  unsigned connections = 1;     // Of each session.
  bool in_turn = false;         // Requests take them in turn, not the one with the least in flight.
  unsigned outstanding = 1;     // Requests of each worker.
  bool per_connection = false;  // ... times its connections.
  // Random commands a second that others give each drive meanwhile, of the system's [background].
  unsigned background = 0;
  AccessSpecification access;

  unsigned used_on_set() const { return used == 0 ? volumes : used; }
  unsigned copies() const { return controllers == 0 ? 1 : controllers; }
  unsigned set_count() const { return members == 0 ? sets * copies() : members; }
  unsigned spread_sets() const { return members == 0 ? spread : members; }
  bool in_pages() const { return members > 0 || spread > 1; }
  unsigned volume_count() const { return set_count() / spread_sets() * used_on_set(); }
  // A worker's part of a volume of this size.
  std::uint64_t part_bytes(std::uint64_t volume) const {
    return workers == 1 ? volume : volume / workers >> 20 << 20;
  }
  unsigned requests() const { return per_connection ? outstanding * connections : outstanding; }
};

// Why there can be no session of our initiator for such a worker, and the key of the group that
// asks for it; empty if there can.
struct SessionError {
  std::string_view key;
  std::string what;
};
SessionError session_error(const VolumeGroup& group);

// Of all requests of a row at a time.
inline constexpr std::uint64_t kMostBytesUnderWay = std::uint64_t{4} << 30;

enum class Metric : std::uint8_t {
  kMebibytes,
  kMegabytes,
  kIops,
  kMilliseconds,
  // Of requests in each ten seconds, in per cent of their mean: the standard deviation, and what
  // the straight line through them gains from the first to the last.
  kVariation,
  kTrend,
};
std::string_view describe(Metric metric);  // "MiB/s", "MB/s", "IOPS", "ms", "variation", "trend"

struct Wanted {
  std::string figure;  // Its id.
  Metric metric = Metric::kMebibytes;
  // Of which volumes, by group and number in it; all if there is none.
  std::optional<std::size_t> group;
  std::optional<unsigned> volume;
  bool least = false;    // The least of them, not all together.
  double divide_by = 1;  // What the document counts has so much of the metric.
};

using Variation = std::vector<std::pair<std::string, std::uint64_t>>;

// One row: the cases of its sweep follow one another.
struct Row {
  std::string experiment;
  Variation variation;
  std::vector<Wanted> wanted;
  std::vector<std::uint64_t> sweep;  // Transfer sizes; empty: as the access specifications say.
  std::string system;                // One beside the plan's; empty: the plan's.
  std::vector<VolumeGroup> groups;
  Duration ramp_up{};
  Duration run_time{};
  // Not 0: it may end once half of the 95 per cent interval of each figure is so much of it.
  double steady_percent = 0;
  bool real_sessions = false;  // In virtual time, not by models.
  std::uint64_t number = 0;    // Of the file's rows, from 0 on; draws its seeds.

  std::string name() const;  // "r5x4-write, volumes 2"
  // The groups with this size in place of the specifications' own.
  std::vector<VolumeGroup> groups_with(std::uint64_t transfer) const;
};

inline constexpr double kLargestTimeScale = 1000;

struct Plan {
  std::string name;
  std::string title;
  std::uint64_t seed = 1;
  double time_scale = 1;  // Of runs that are live: real seconds in one of the models'.
  ArrayProfile system;
  FigureBook figures;
  std::vector<Row> rows;

  const ArrayProfile& system_of(const Row& row) const;
};

// The error is one line with file and line, or file and key. Figures, systems and IOMeter files are
// looked for relative to the file's own folder.
std::expected<Plan, std::string> read_experiments(const std::string& path,
                                                  const Scales& scales = {});

}  // namespace sandbay::lab
