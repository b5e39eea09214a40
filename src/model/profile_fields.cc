// The two tables, one row a value.
#include "model/profile_fields.h"

#include <cassert>

namespace sandbay::model {

namespace {

using Disk = DiskProfile;
using Flash = FlashProfile;
using enum FieldKind;

constexpr auto kReadSeek = &Disk::read_seek;
constexpr auto kWriteSeek = &Disk::write_seek;

constexpr ProfileField<Disk> seek_field(std::string_view name, SeekTimes Disk::* seek,
                                        Duration SeekTimes::* time) {
  return {.name = name, .kind = kTime, .member = {}, .seek = seek, .seek_time = time};
}

constexpr std::array kDiskFields = {
    ProfileField<Disk>{"sectors", kCount, &Disk::sector_count},
    ProfileField<Disk>{"rpm", kCount, &Disk::rotations_per_minute},
    ProfileField<Disk>{"heads", kCount, &Disk::heads},
    ProfileField<Disk>{"zones", kCount, &Disk::zones},
    ProfileField<Disk>{"outer_rate", kRate, &Disk::outer_rate},
    ProfileField<Disk>{"inner_rate", kRate, &Disk::inner_rate},
    seek_field("track_to_track_read", kReadSeek, &SeekTimes::track_to_track),
    seek_field("average_seek_read", kReadSeek, &SeekTimes::average),
    seek_field("full_stroke_read", kReadSeek, &SeekTimes::full_stroke),
    seek_field("track_to_track_write", kWriteSeek, &SeekTimes::track_to_track),
    seek_field("average_seek_write", kWriteSeek, &SeekTimes::average),
    seek_field("full_stroke_write", kWriteSeek, &SeekTimes::full_stroke),
    ProfileField<Disk>{"head_switch", kTime, &Disk::head_switch},
    ProfileField<Disk>{"read_overhead", kTime, &Disk::read_overhead},
    ProfileField<Disk>{"write_overhead", kTime, &Disk::write_overhead},
    ProfileField<Disk>{"interface_rate", kRate, &Disk::interface_rate},
    ProfileField<Disk>{"cache", kSize, &Disk::cache_bytes},
    ProfileField<Disk>{"cache_segments", kCount, &Disk::cache_segments},
    ProfileField<Disk>{"look_ahead", kSwitch, &Disk::look_ahead},
    ProfileField<Disk>{"write_cache", kSwitch, &Disk::write_cache},
    ProfileField<Disk>{"queue_depth", kCount, &Disk::queue_depth},
    ProfileField<Disk>{"order", kOrder, &Disk::order},
    ProfileField<Disk>{"age_bound", kTime, &Disk::age_bound},
};

constexpr std::array kFlashFields = {
    ProfileField<Flash>{"sectors", kCount, &Flash::sector_count},
    ProfileField<Flash>{"read_latency", kTime, &Flash::read_latency},
    ProfileField<Flash>{"write_latency", kTime, &Flash::write_latency},
    ProfileField<Flash>{"units", kCount, &Flash::units},
    ProfileField<Flash>{"random_reads", kCount, &Flash::random_reads_per_second},
    ProfileField<Flash>{"random_writes", kCount, &Flash::random_writes_per_second},
    ProfileField<Flash>{"read_rate", kRate, &Flash::read_rate},
    ProfileField<Flash>{"write_rate", kRate, &Flash::write_rate},
    ProfileField<Flash>{"buffer", kSize, &Flash::buffer_bytes},
    ProfileField<Flash>{"interface_rate", kRate, &Flash::interface_rate},
    ProfileField<Flash>{"power_protected", kSwitch, &Flash::power_protected},
};

}  // namespace

template <class Profile>
void ProfileField<Profile>::set_time(Profile& profile, Duration value) const {
  assert(kind == FieldKind::kTime);
  if (seek != nullptr) {
    profile.*seek.*seek_time = value;
  } else {
    profile.*std::get<Duration Profile::*>(member) = value;
  }
}

template <class Profile>
void ProfileField<Profile>::set_number(Profile& profile, std::uint64_t value) const {
  profile.*std::get<std::uint64_t Profile::*>(member) = value;
}

template <class Profile>
void ProfileField<Profile>::set_switch(Profile& profile, bool value) const {
  profile.*std::get<bool Profile::*>(member) = value;
}

template <class Profile>
bool ProfileField<Profile>::set_order(Profile& profile, std::string_view word) const {
  QueueOrder& order = profile.*std::get<QueueOrder Profile::*>(member);
  if (word == "arrival") {
    order = QueueOrder::kArrival;
  } else if (word == "shortest-positioning") {
    order = QueueOrder::kShortestPositioning;
  } else {
    return false;
  }
  return true;
}

template struct ProfileField<DiskProfile>;
template struct ProfileField<FlashProfile>;

std::span<const ProfileField<DiskProfile>> disk_fields() { return kDiskFields; }
std::span<const ProfileField<FlashProfile>> flash_fields() { return kFlashFields; }

}  // namespace sandbay::model
