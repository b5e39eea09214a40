// The zones from the rates, and the sweep of a sector in both directions.
#include "model/disk_layout.h"

#include <algorithm>
#include <cassert>

namespace sandbay::model {

namespace {

// The sectors of a track that give the sustained `rate` with all switches.
std::uint32_t sectors_for(std::uint64_t rate, Nanoseconds cylinder_period, std::uint32_t heads) {
  const double bytes = static_cast<double>(rate) * static_cast<double>(cylinder_period) / 1e9;
  const double sectors = bytes / kSectorBytes / heads;
  return std::max(std::uint32_t{1}, static_cast<std::uint32_t>(sectors + 0.5));
}

}  // namespace

DiskLayout::DiskLayout(const DiskProfile& profile)
    : sector_count_(profile.sector_count),
      heads_(static_cast<std::uint32_t>(profile.heads)),
      revolution_(60'000'000'000 / static_cast<Nanoseconds>(profile.rotations_per_minute)),
      head_skew_(profile.head_switch.count()),
      cylinder_skew_(std::max(profile.read_seek.track_to_track.count(),
                              profile.write_seek.track_to_track.count())),
      track_period_(revolution_ + head_skew_),
      cylinder_period_(heads_ * revolution_ + (heads_ - 1) * head_skew_ + cylinder_skew_) {
  assert(sector_count_ > 0 && heads_ > 0 && profile.zones > 0);
  const std::uint32_t outer = sectors_for(profile.outer_rate, cylinder_period_, heads_);
  const std::uint32_t inner = sectors_for(profile.inner_rate, cylinder_period_, heads_);
  assert(outer >= inner);
  const std::uint64_t steps = std::max<std::uint64_t>(profile.zones - 1, 1);
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < profile.zones; ++i) {
    const auto less = static_cast<std::uint32_t>((outer - inner) * i / steps);
    zones_.push_back({.sectors_per_track = outer - less});
    sum += outer - less;
  }
  cylinders_per_zone_ = static_cast<std::uint32_t>((sector_count_ - 1) / (sum * heads_) + 1);

  std::uint64_t sector = 0;
  for (std::size_t i = 0; i < zones_.size(); ++i) {
    Zone& zone = zones_[i];
    zone.first_sector = sector;
    zone.first_cylinder = static_cast<std::uint32_t>(i) * cylinders_per_zone_;
    zone.first_sweep = static_cast<Nanoseconds>(zone.first_cylinder) * cylinder_period_;
    zone.sectors_per_cylinder = std::uint64_t{zone.sectors_per_track} * heads_;
    sector += zone.sectors_per_cylinder * cylinders_per_zone_;
  }
  assert(sector >= sector_count_);
  // The last cylinders may be more than the drive shows.
  while (zones_.back().first_sector >= sector_count_) zones_.pop_back();
  cylinder_count_ = place(sector_count_ - 1).cylinder + 1;
}

const DiskLayout::Zone& DiskLayout::zone_of(std::uint64_t sector) const noexcept {
  std::size_t low = 0;
  for (std::size_t count = zones_.size(); count > 1;) {
    const std::size_t half = count / 2;
    if (zones_[low + half].first_sector <= sector) low += half;
    count -= half;
  }
  return zones_[low];
}

DiskLayout::Place DiskLayout::place(std::uint64_t sector) const noexcept {
  assert(sector < sector_count_);
  const Zone& zone = zone_of(sector);
  const std::uint64_t offset = sector - zone.first_sector;
  const std::uint64_t cylinder = offset / zone.sectors_per_cylinder;
  const auto within = static_cast<std::uint32_t>(offset - cylinder * zone.sectors_per_cylinder);
  const std::uint32_t head = within / zone.sectors_per_track;
  const std::int64_t on_track = within - head * zone.sectors_per_track;
  const Nanoseconds begin = on_track * revolution_ / zone.sectors_per_track;
  const Nanoseconds end = (on_track + 1) * revolution_ / zone.sectors_per_track;
  return {.cylinder = zone.first_cylinder + static_cast<std::uint32_t>(cylinder),
          .head = head,
          .sweep = zone.first_sweep + static_cast<Nanoseconds>(cylinder) * cylinder_period_ +
                   head * track_period_ + begin,
          .sector_time = end - begin};
}

std::uint64_t DiskLayout::sector_at(Nanoseconds sweep) const noexcept {
  if (sweep <= 0) return 0;
  const Nanoseconds cylinder = sweep / cylinder_period_;
  const auto index = static_cast<std::size_t>(cylinder / cylinders_per_zone_);
  if (index >= zones_.size()) return sector_count_;
  const Zone& zone = zones_[index];
  const Nanoseconds within = sweep - cylinder * cylinder_period_;
  const Nanoseconds head = std::min<Nanoseconds>(within / track_period_, heads_ - 1);
  const Nanoseconds on_track = std::min(within - head * track_period_, revolution_);
  // The least sector s with s * revolution / sectors_per_track >= on_track, rounded down as there.
  const std::int64_t per_track = zone.sectors_per_track;
  const std::int64_t sector = (on_track * per_track + revolution_ - 1) / revolution_;
  const auto full_cylinders = static_cast<std::uint64_t>(cylinder) - zone.first_cylinder;
  const std::uint64_t found = zone.first_sector + full_cylinders * zone.sectors_per_cylinder +
                              static_cast<std::uint64_t>(head * per_track + sector);
  return std::min(found, sector_count_);
}

}  // namespace sandbay::model
