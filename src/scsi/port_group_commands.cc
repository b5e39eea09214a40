// REPORT and SET TARGET PORT GROUPS (SPC-4 6.37 and 6.45), and which commands each asymmetric
// access state lets through (SPC-4 5.15.2).
#include "runtime/byte_order.h"
#include "scsi/command_table.h"
#include "scsi/logical_unit.h"

namespace sandbay::scsi {

namespace {

constexpr std::size_t kLongestGroupList = 4096;

}  // namespace

std::optional<Outcome> LogicalUnit::check_access(const CommandRow& row, AccessState state) const {
  const auto refusal = refusal_in(state);
  const bool in_standby = state == AccessState::kStandby && row.is(CommandFlags::kInStandby);
  // While states change, no host can change them.
  const bool in_any = row.is(CommandFlags::kInUnavailable) &&
                      (state != AccessState::kTransitioning || !row.is(CommandFlags::kAlters));
  if (!refusal || in_standby || in_any) return std::nullopt;
  return refuse(SenseKey::kNotReady, *refusal);
}

void LogicalUnit::access_changed(std::optional<std::uint64_t> caller) {
  for (auto& [id, nexus] : nexuses_) nexus.access = port_groups_.state_of(nexus.ports.target_port);
  establish(UnitAttention::kAccessStateChanged, caller);
}

// Vendors' arrays have their own way to tell of paths.
void LogicalUnit::set_access_state(std::uint16_t port_group, AccessState state) {
  if (options_.personality != nullptr) return;
  if (port_groups_.set(port_group, state, StatusCode::kByTarget)) access_changed(std::nullopt);
}

Job LogicalUnit::report_target_port_groups(Command& command) {
  if (options_.personality != nullptr) co_return illegal(Additional::kInvalidOperationCode);
  const unsigned format = std::to_integer<unsigned>(command.cdb[1]) >> 5U;
  if (format > 1) co_return invalid_cdb(1, std::uint8_t{7});
  const std::vector<std::byte> data = port_groups_.report(format == 1);
  const auto allocation_length = big_endian<std::uint32_t>(command.cdb, 6);
  co_return co_await return_parameters(command, data, allocation_length);
}

Job LogicalUnit::set_target_port_groups(Command& command) {
  if (options_.personality != nullptr) co_return illegal(Additional::kInvalidOperationCode);
  const std::size_t length = big_endian<std::uint32_t>(command.cdb, 6);
  if (length == 0) co_return Outcome{};
  if (length > kLongestGroupList) co_return illegal(Additional::kParameterListLengthError);
  std::vector<std::byte> list(length);
  const auto received = co_await receive_parameters(command, list, length);
  if (!received) co_return received.error();
  const auto wishes = port_groups_.decode(list);
  Outcome outcome;
  if (command.aborted) co_return outcome;
  if (!wishes) {
    outcome = refuse(wishes.error());
  } else {
    bool changed = false;
    for (const auto& [group, state] : *wishes) {
      changed = port_groups_.set(group, state, StatusCode::kBySetTargetPortGroups) || changed;
    }
    if (changed) access_changed(command.nexus_id);
  }
  outcome.data_out_bytes = length;
  co_return outcome;
}

}  // namespace sandbay::scsi
