// How a reserve and what is done when it is full are written.
#include "group/snapshot_reserve.h"

#include <charconv>

#include <fmt/core.h>

namespace sandbay::group {

std::uint64_t SnapshotReserve::bytes_of(std::uint64_t volume_bytes) const noexcept {
  // In two parts: a percent of the largest volume times the most percents would not fit.
  return percent == 0 ? byte_count
                      : volume_bytes / 100 * percent + volume_bytes % 100 * percent / 100;
}

Parsed<SnapshotReserve> parse_reserve(std::string_view text) {
  if (text == "none") return SnapshotReserve{};
  if (!text.ends_with('%')) {
    const auto bytes = parse_size(text);
    if (bytes && *bytes > 0) return SnapshotReserve{.byte_count = *bytes};
  } else {
    std::uint32_t percent = 0;
    const char* const last = text.data() + text.size() - 1;
    const auto [end, error] = std::from_chars(text.data(), last, percent);
    const bool right = error == std::errc{} && end == last && percent > 0;
    if (right && percent <= kMostReservePercent) return SnapshotReserve{.percent = percent};
  }
  return std::unexpected(
      fmt::format("invalid reserve \"{}\"; write a size such as \"10GiB\", 1% to {}% of the "
                  "volume, or \"none\"",
                  text, kMostReservePercent));
}

std::string format_reserve(const SnapshotReserve& reserve) {
  if (reserve.none()) return "none";
  return reserve.percent != 0 ? fmt::format("{}%", reserve.percent)
                              : format_size(reserve.byte_count);
}

std::string_view describe(ReservePolicy policy) {
  return policy == ReservePolicy::kOffline ? "offline" : "delete-oldest";
}

std::optional<ReservePolicy> parse_reserve_policy(std::string_view word) {
  for (const ReservePolicy policy : {ReservePolicy::kDeleteOldest, ReservePolicy::kOffline}) {
    if (word == describe(policy)) return policy;
  }
  return std::nullopt;
}

}  // namespace sandbay::group
