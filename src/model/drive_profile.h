// DriveProfile: what a drive is as far as its timing goes, in the words of data sheets. The drives
// that Sandbay knows are data files, conf/drives/*.toml, with the source of every value and how
// sure it is; profile_fields.h has the names that the values have there.
//
// A sector is always one of 512 bytes, whatever blocks the device shows. Rates are bytes a second;
// those of a disk are sustained ones: what a long sequential transfer reaches, head and cylinder
// switches included.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "runtime/clock.h"

namespace sandbay::model {

inline constexpr std::uint32_t kSectorBytes = 512;

enum class QueueOrder : std::uint8_t {
  kArrival,              // First come, first served.
  kShortestPositioning,  // What the heads reach first, within the age bound.
};

// Seek times do not include the command's overhead; those of writes are longer by the settling.
struct SeekTimes {
  Duration track_to_track{};
  Duration average{};  // Over random pairs of sectors.
  Duration full_stroke{};
};

struct DiskProfile {
  std::uint64_t sector_count = 0;
  std::uint64_t rotations_per_minute = 0;
  std::uint64_t heads = 0;
  std::uint64_t zones = 16;  // Of equally many cylinders; the rate falls evenly from zone to zone.
  std::uint64_t outer_rate = 0;
  std::uint64_t inner_rate = 0;
  SeekTimes read_seek;
  SeekTimes write_seek;
  Duration head_switch{};
  // From the arrival of a command until the mechanism can begin with it; hidden while it is busy.
  Duration read_overhead{};
  Duration write_overhead{};
  std::uint64_t interface_rate = 0;
  std::uint64_t cache_bytes = 0;     // Shared by the segments of look-ahead; and for writes.
  std::uint64_t cache_segments = 1;  // Sequential streams that it can tell apart.
  bool look_ahead = true;            // Goes on reading while it has nothing else to do.
  bool write_cache = false;          // Arrays switch it off.
  std::uint64_t queue_depth = 1;     // Commands that it chooses from; the others wait outside.
  QueueOrder order = QueueOrder::kShortestPositioning;
  Duration age_bound = std::chrono::seconds(1);  // A command that is older is the next one.
};

struct FlashProfile {
  std::uint64_t sector_count = 0;
  Duration read_latency{};   // 4 KiB, nothing else to do.
  Duration write_latency{};  // Into the buffer.
  std::uint64_t units = 1;   // Reads of 4 KiB that go on at the same time.
  // What sustained random transfers of 4 KiB reach, after the drive was filled.
  std::uint64_t random_reads_per_second = 0;
  std::uint64_t random_writes_per_second = 0;
  std::uint64_t read_rate = 0;  // Sequential.
  std::uint64_t write_rate = 0;
  std::uint64_t buffer_bytes = 0;  // Of writes that were acknowledged and not yet programmed.
  std::uint64_t interface_rate = 0;
  bool power_protected = false;  // A flush has nothing to do.
};

struct DriveProfile {
  std::string name;  // "Seagate Cheetah 15K.5 ST3146855"
  std::variant<DiskProfile, FlashProfile> timing;
};

// Why there can be no such drive, in half a sentence that begins with the field, or an empty text.
std::string profile_error(const DriveProfile& profile);

std::uint64_t sector_count(const DriveProfile& profile) noexcept;

}  // namespace sandbay::model
