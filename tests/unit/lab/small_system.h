// A system of the lab's tests.
#pragma once

#include <chrono>

#include "lab/array_profile.h"

namespace sandbay::lab {

// Eight disks of 100 MB/s everywhere that turn once in 10 ms.
inline ArrayProfile small_system() {
  ArrayProfile profile;
  profile.name = "a test's";
  profile.drive_count = 8;
  profile.drive.name = "a test's";
  profile.drive.timing = model::DiskProfile{
      .sector_count = 100'000'000,
      .rotations_per_minute = 6000,
      .heads = 4,
      .zones = 1,
      .outer_rate = 100'000'000,
      .inner_rate = 100'000'000,
      .read_seek = {std::chrono::microseconds(500), std::chrono::milliseconds(6),
                    std::chrono::milliseconds(12)},
      .write_seek = {std::chrono::microseconds(700), std::chrono::milliseconds(7),
                     std::chrono::milliseconds(13)},
      .head_switch = std::chrono::microseconds(500),
      .read_overhead = std::chrono::microseconds(100),
      .write_overhead = std::chrono::microseconds(100),
      .interface_rate = 300'000'000,
      .cache_bytes = 8 << 20,
      .cache_segments = 8,
      .queue_depth = 16};
  profile.strip_bytes = 1 << 20;
  profile.drive_write_bytes = 1 << 20;
  profile.cache_bytes = 256 << 20;
  profile.dirty_bytes = 64 << 20;
  profile.destages_in_flight = 1;
  profile.port_count = 4;
  profile.port.latency = std::chrono::microseconds(5);
  profile.hosts = {{.name = "host", .profile = {.request_times = {std::chrono::microseconds(5)}}}};
  return profile;
}

}  // namespace sandbay::lab
