// PortGroups: the asymmetric access states of one logical unit (SPC-4 clause 5.15), by target port
// group. On the unit's home. Here each group has one port, and both have the same number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "scsi/sense.h"

namespace sandbay::scsi {

// SPC-4 table 306. The values are those of the parameter data.
enum class AccessState : std::uint8_t {
  kActiveOptimized = 0x0,
  kActiveNonOptimized = 0x1,
  kStandby = 0x2,
  kUnavailable = 0x3,
  kTransitioning = 0xF,
};
// NOT READY with this, for what a state does not serve; nothing: it serves all.
std::optional<Additional> refusal_in(AccessState state);
std::string_view describe(AccessState state);  // "active/optimized"
std::optional<AccessState> access_state_of(std::string_view text);

// The origin of a group's state.
enum class StatusCode : std::uint8_t { kNone = 0, kBySetTargetPortGroups = 1, kByTarget = 2 };

class PortGroups {
 public:
  struct Group {
    std::uint16_t number = 1;
    AccessState state = AccessState::kActiveOptimized;
    StatusCode status = StatusCode::kNone;
  };

  explicit PortGroups(std::span<const std::uint16_t> numbers);
  std::span<const Group> all() const noexcept { return groups_; }
  // A group that is not listed is active and optimized.
  AccessState state_of(std::uint16_t number) const noexcept;
  // Whether that changed anything; false also for a number that is not there.
  bool set(std::uint16_t number, AccessState state, StatusCode by) noexcept;
  // REPORT TARGET PORT GROUPS.
  std::vector<std::byte> report(bool extended_header) const;
  // SET TARGET PORT GROUPS: the states that a parameter list asks for.
  using Wish = std::pair<std::uint16_t, AccessState>;
  std::expected<std::vector<Wish>, ListError> decode(std::span<const std::byte> list) const;

 private:
  std::vector<Group> groups_;
};

}  // namespace sandbay::scsi
