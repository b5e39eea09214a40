// DiskLayout: where a disk's sectors are, and when they pass under the heads.
//
// One function carries it: the sweep of a sector is the time from sector 0 until its beginning
// passes the head, if the disk is read from there in order, with every head and cylinder switch.
// The skew of tracks is such that a switch costs what it takes and no revolution more. So
//   - the difference of two sweeps is the time of a sequential transfer, and
//   - the sweep modulo one revolution is the sector's angle.
// Cylinders are numbered from the outermost, sectors run through the tracks of a cylinder, then
// through the cylinders. All arithmetic is in whole nanoseconds and exact in both directions.
#pragma once

#include <cstdint>
#include <vector>

#include "model/drive_profile.h"

namespace sandbay::model {

using Nanoseconds = std::int64_t;

class DiskLayout {
 public:
  struct Zone {
    std::uint64_t first_sector = 0;
    std::uint64_t sectors_per_cylinder = 0;
    std::uint32_t sectors_per_track = 0;
    std::uint32_t first_cylinder = 0;
    Nanoseconds first_sweep = 0;
  };
  struct Place {
    std::uint32_t cylinder = 0;
    std::uint32_t head = 0;
    Nanoseconds sweep = 0;        // Of the beginning of the sector,
    Nanoseconds sector_time = 0;  // and how long it takes to pass.
  };

  explicit DiskLayout(const DiskProfile& profile);  // A valid one.

  Place place(std::uint64_t sector) const noexcept;
  // The first sector whose beginning has not passed before `sweep`; the end of the disk at most.
  std::uint64_t sector_at(Nanoseconds sweep) const noexcept;

  Nanoseconds revolution() const noexcept { return revolution_; }
  Nanoseconds head_skew() const noexcept { return head_skew_; }
  Nanoseconds cylinder_skew() const noexcept { return cylinder_skew_; }
  std::uint64_t sector_count() const noexcept { return sector_count_; }
  std::uint32_t cylinder_count() const noexcept { return cylinder_count_; }
  const std::vector<Zone>& zones() const noexcept { return zones_; }

 private:
  const Zone& zone_of(std::uint64_t sector) const noexcept;

  std::uint64_t sector_count_;
  std::uint32_t heads_;
  Nanoseconds revolution_;
  Nanoseconds head_skew_;
  Nanoseconds cylinder_skew_;
  Nanoseconds track_period_;     // A revolution and the switch to the next head.
  Nanoseconds cylinder_period_;  // From a cylinder's first sector to the next one's.
  std::uint32_t cylinders_per_zone_ = 0;
  std::uint32_t cylinder_count_ = 0;
  std::vector<Zone> zones_;
};

}  // namespace sandbay::model
