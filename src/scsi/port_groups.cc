// The parameter data of REPORT and SET TARGET PORT GROUPS (SPC-4 6.37 and 6.45).
#include "scsi/port_groups.h"

#include <algorithm>
#include <array>

#include "runtime/byte_order.h"

namespace sandbay::scsi {

namespace {

constexpr std::size_t kGroupsHead = 4;
constexpr std::size_t kGroupBytes = 8;
constexpr std::size_t kPortBytes = 4;
constexpr std::size_t kWishBytes = 4;
constexpr std::byte kExtendedFormat{0x10};
// T_SUP, U_SUP, S_SUP, AN_SUP, AO_SUP.
constexpr std::byte kSupportedStates{0x8F};

struct StateName {
  AccessState state;
  std::string_view text;
};
constexpr std::array<StateName, 5> kStateNames = {
    {{AccessState::kActiveOptimized, "active/optimized"},
     {AccessState::kActiveNonOptimized, "active/non-optimized"},
     {AccessState::kStandby, "standby"},
     {AccessState::kUnavailable, "unavailable"},
     {AccessState::kTransitioning, "transitioning"}}};

}  // namespace

std::optional<Additional> refusal_in(AccessState state) {
  switch (state) {
    case AccessState::kStandby:
      return Additional::kPortStandby;
    case AccessState::kUnavailable:
      return Additional::kPortUnavailable;
    case AccessState::kTransitioning:
      return Additional::kAccessStateTransition;
    case AccessState::kActiveOptimized:
    case AccessState::kActiveNonOptimized:
      return std::nullopt;
  }
  return std::nullopt;
}

std::string_view describe(AccessState state) {
  const auto* const found = std::ranges::find(kStateNames, state, &StateName::state);
  return found == kStateNames.end() ? std::string_view() : found->text;
}

std::optional<AccessState> access_state_of(std::string_view text) {
  const auto* const found = std::ranges::find(kStateNames, text, &StateName::text);
  if (found == kStateNames.end()) return std::nullopt;
  return found->state;
}

PortGroups::PortGroups(std::span<const std::uint16_t> numbers) {
  for (const std::uint16_t number : numbers) groups_.push_back({.number = number});
}

AccessState PortGroups::state_of(std::uint16_t number) const noexcept {
  const auto found = std::ranges::find(groups_, number, &Group::number);
  return found == groups_.end() ? AccessState::kActiveOptimized : found->state;
}

bool PortGroups::set(std::uint16_t number, AccessState state, StatusCode by) noexcept {
  const auto found = std::ranges::find(groups_, number, &Group::number);
  if (found == groups_.end() || found->state == state) return false;
  *found = {.number = number, .state = state, .status = by};
  return true;
}

std::vector<std::byte> PortGroups::report(bool extended_header) const {
  std::vector<std::byte> data(extended_header ? 2 * kGroupsHead : kGroupsHead);
  if (extended_header) data[kGroupsHead] = kExtendedFormat;
  for (const Group& group : groups_) {
    const std::size_t at = data.size();
    data.resize(at + kGroupBytes + kPortBytes);
    const auto descriptor = std::span(data).subspan(at);
    descriptor[0] = static_cast<std::byte>(group.state);
    descriptor[1] = kSupportedStates;
    put_big_endian(descriptor, 2, group.number);
    descriptor[5] = static_cast<std::byte>(group.status);
    descriptor[7] = std::byte{1};
    put_big_endian(descriptor, kGroupBytes + 2, group.number);
  }
  put_big_endian(std::span(data), 0, static_cast<std::uint32_t>(data.size() - kGroupsHead));
  return data;
}

std::expected<std::vector<PortGroups::Wish>, ListError> PortGroups::decode(
    std::span<const std::byte> list) const {
  const auto wrong = [](std::size_t byte) {
    return std::unexpected(ListError{.byte = static_cast<std::uint16_t>(byte)});
  };
  if (list.size() < kGroupsHead || list.size() % kWishBytes != 0) {
    return std::unexpected(ListError{.wrong_length = true});
  }
  std::vector<Wish> wishes;
  for (std::size_t at = kGroupsHead; at < list.size(); at += kWishBytes) {
    const auto state = static_cast<AccessState>(std::to_integer<unsigned>(list[at]) & 0x0FU);
    const auto number = big_endian<std::uint16_t>(list, at + 2);
    if (state > AccessState::kUnavailable) return wrong(at);
    if (std::ranges::find(groups_, number, &Group::number) == groups_.end()) return wrong(at + 2);
    wishes.emplace_back(number, state);
  }
  return wishes;
}

}  // namespace sandbay::scsi
