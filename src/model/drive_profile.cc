// What a profile must be for the models to work with it: bounds on every value, and a seek curve.
#include "model/drive_profile.h"

#include <fmt/core.h>

#include <string_view>

#include "model/disk_layout.h"
#include "model/seek_curve.h"

namespace sandbay::model {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// The first mistake that was found.
class Findings {
 public:
  void count(std::string_view field, std::uint64_t value, std::uint64_t least, std::uint64_t most) {
    if (value >= least && value <= most) return;
    add(fmt::format("{} is {}; it must be {} to {}", field, value, least, most));
  }
  void time(std::string_view field, Duration value, Duration least, Duration most) {
    if (value >= least && value <= most) return;
    add(fmt::format("{} is {} us; it must be {} to {} us", field, in_us(value), in_us(least),
                    in_us(most)));
  }
  void require(bool holds, std::string_view text) {
    if (!holds) add(std::string(text));
  }
  bool empty() const { return text_.empty(); }
  std::string take() { return std::move(text_); }

 private:
  static double in_us(Duration value) { return static_cast<double>(value.count()) / 1000; }
  void add(std::string text) {
    if (text_.empty()) text_ = std::move(text);
  }
  std::string text_;
};

constexpr std::uint64_t kLeastRate = 100'000;
constexpr std::uint64_t kMostRate = 100'000'000'000;
constexpr std::uint64_t kMostCylinders = 10'000'000;
constexpr std::uint64_t kMostSectors = std::uint64_t{1} << 38U;  // 128 TiB.

void check_seek(Findings& findings, std::string_view what, const SeekTimes& times) {
  const auto name = [&](std::string_view which) { return fmt::format("{}_{}", which, what); };
  findings.time(name("track_to_track"), times.track_to_track, microseconds(1), milliseconds(20));
  findings.time(name("average_seek"), times.average, times.track_to_track, milliseconds(100));
  findings.time(name("full_stroke"), times.full_stroke, times.average, milliseconds(200));
}

std::string disk_error(const DiskProfile& disk) {
  Findings findings;
  findings.count("sectors", disk.sector_count, 1U << 16U, kMostSectors);
  findings.count("rpm", disk.rotations_per_minute, 1000, 60'000);
  findings.count("heads", disk.heads, 1, 64);
  findings.count("zones", disk.zones, 1, 64);
  findings.count("inner_rate", disk.inner_rate, kLeastRate, kMostRate);
  findings.count("outer_rate", disk.outer_rate, disk.inner_rate, kMostRate);
  findings.require(disk.zones > 1 || disk.outer_rate == disk.inner_rate,
                   "zones is 1; then outer_rate and inner_rate must be equal");
  check_seek(findings, "read", disk.read_seek);
  check_seek(findings, "write", disk.write_seek);
  findings.time("head_switch", disk.head_switch, Duration(0), milliseconds(20));
  findings.time("read_overhead", disk.read_overhead, Duration(0), milliseconds(100));
  findings.time("write_overhead", disk.write_overhead, Duration(0), milliseconds(100));
  findings.count("interface_rate", disk.interface_rate, kLeastRate, kMostRate);
  findings.count("cache_segments", disk.cache_segments, 1, 256);
  findings.count("cache", disk.cache_bytes, 0, std::uint64_t{1} << 34U);
  const bool caches = disk.cache_segments > 0 && (disk.look_ahead || disk.write_cache);
  findings.require(
      !caches || disk.cache_bytes / disk.cache_segments >= kSectorBytes,
      "cache must have a sector for every segment where look_ahead or write_cache is on");
  findings.count("queue_depth", disk.queue_depth, 1, 1024);
  findings.time("age_bound", disk.age_bound, milliseconds(1), seconds(3600));
  if (!findings.empty()) return findings.take();
  const std::uint64_t least_track = disk.inner_rate * 60 / disk.rotations_per_minute / kSectorBytes;
  if (least_track < 8 || disk.sector_count / (least_track * disk.heads) > kMostCylinders) {
    return fmt::format(
        "sectors, heads, rpm and inner_rate make tracks of {} sectors in too many cylinders; a "
        "track "
        "has at least 8, a disk at most {} cylinders",
        least_track, kMostCylinders);
  }

  const DiskLayout layout(disk);
  if (layout.cylinder_count() < 16)
    return "sectors are so few that the disk has under 16 cylinders";
  for (const auto& [what, times] :
       {std::pair{"read", disk.read_seek}, {"write", disk.write_seek}}) {
    if (!SeekCurve::fit(times, layout)) {
      return fmt::format(
          "track_to_track_{0}, average_seek_{0} and full_stroke_{0} do not make a curve that rises "
          "with the distance; the average is usually near 45 % of the full stroke",
          what);
    }
  }
  return {};
}

std::string flash_error(const FlashProfile& flash) {
  Findings findings;
  findings.count("sectors", flash.sector_count, 1U << 16U, kMostSectors);
  findings.time("read_latency", flash.read_latency, microseconds(1), milliseconds(100));
  findings.time("write_latency", flash.write_latency, microseconds(1), milliseconds(100));
  findings.count("units", flash.units, 1, 1024);
  findings.count("random_reads", flash.random_reads_per_second, 1, 100'000'000);
  findings.count("random_writes", flash.random_writes_per_second, 1, 100'000'000);
  findings.count("read_rate", flash.read_rate, kLeastRate, kMostRate);
  findings.count("write_rate", flash.write_rate, kLeastRate, kMostRate);
  findings.count("buffer", flash.buffer_bytes, 0, std::uint64_t{1} << 40U);
  findings.count("interface_rate", flash.interface_rate, kLeastRate, kMostRate);
  return findings.take();
}

}  // namespace

std::string profile_error(const DriveProfile& profile) {
  if (profile.name.empty()) return "name is empty; it must say which drive this is";
  if (const auto* disk = std::get_if<DiskProfile>(&profile.timing)) return disk_error(*disk);
  return flash_error(std::get<FlashProfile>(profile.timing));
}

std::uint64_t sector_count(const DriveProfile& profile) noexcept {
  return std::visit([](const auto& timing) { return timing.sector_count; }, profile.timing);
}

}  // namespace sandbay::model
