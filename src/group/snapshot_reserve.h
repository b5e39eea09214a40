// SnapshotReserve: how much a volume's snapshots may take of its pool, and what is done when they
// take more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "group/units.h"

namespace sandbay::group {

// One of the two, or neither: snapshots may take what there is.
struct SnapshotReserve {
  std::uint64_t byte_count = 0;
  std::uint32_t percent = 0;  // Of the volume's size.

  bool none() const noexcept { return byte_count == 0 && percent == 0; }
  std::uint64_t bytes_of(std::uint64_t volume_bytes) const noexcept;
  bool operator==(const SnapshotReserve&) const = default;
};

inline constexpr std::uint32_t kMostReservePercent = 10000;

// "20%", "10GiB", "none"
Parsed<SnapshotReserve> parse_reserve(std::string_view text);
std::string format_reserve(const SnapshotReserve& reserve);

enum class ReservePolicy : std::uint8_t {
  kDeleteOldest,  // Of those that no session uses.
  kOffline,       // Snapshots are offline, and none is taken, until there is room; none is lost.
};
inline constexpr std::string_view kReservePolicies = "\"delete-oldest\" or \"offline\"";

// "delete-oldest", "offline"
std::string_view describe(ReservePolicy policy);
std::optional<ReservePolicy> parse_reserve_policy(std::string_view word);

}  // namespace sandbay::group
