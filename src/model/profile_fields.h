// ProfileFields: the values of a profile by the names that they have in a profile's file, for
// whoever reads such files. A file has a name, a kind ("disk" or "flash") and one table for every
// value:
//   average_seek_read = { value = "3.5ms", sure = "memory", source = "data sheet, rev. B" }
// `sure` is one of kSureWords. Every field stands in the file; there are no defaults.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "model/drive_profile.h"

namespace sandbay::model {

enum class FieldKind : std::uint8_t {
  kTime,    // "3.5ms"
  kRate,    // "125MB/s"
  kSize,    // "16MiB"
  kCount,   // 15000
  kSwitch,  // true
  kOrder,   // "arrival" or "shortest-positioning"
};

// "read": in the named source; "derived": computed from such values; "memory": recalled from data
// sheets and practice, to be confirmed; "assumed": a usual value of such drives.
inline constexpr std::array<std::string_view, 4> kSureWords = {"read", "derived", "memory",
                                                               "assumed"};

template <class Profile>
struct ProfileField {
  using Member = std::variant<Duration Profile::*, std::uint64_t Profile::*, bool Profile::*,
                              QueueOrder Profile::*>;
  std::string_view name;
  FieldKind kind = FieldKind::kCount;
  Member member;
  // Of times that stand in a SeekTimes of the profile; `member` is not used then.
  SeekTimes Profile::* seek = nullptr;
  Duration SeekTimes::* seek_time = nullptr;

  void set_time(Profile& profile, Duration value) const;
  void set_number(Profile& profile, std::uint64_t value) const;  // kRate, kSize, kCount
  void set_switch(Profile& profile, bool value) const;
  bool set_order(Profile& profile, std::string_view word) const;  // False: no such word.
};

std::span<const ProfileField<DiskProfile>> disk_fields();
std::span<const ProfileField<FlashProfile>> flash_fields();

extern template struct ProfileField<DiskProfile>;
extern template struct ProfileField<FlashProfile>;

}  // namespace sandbay::model
