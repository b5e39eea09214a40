// Unit attention conditions (SAM-5 clause 5.14) of one I_T nexus on one logical unit: a set,
// ordered by precedence, each condition reported once. A reset of the unit supersedes every lesser
// condition, as SAM-5 5.14.2 allows.
#pragma once

#include <bit>
#include <cassert>
#include <cstdint>

#include "scsi/sense.h"

namespace sandbay::scsi {

// In the order in which they are reported.
enum class UnitAttention : std::uint8_t {
  kPowerOn,
  kHardReset,  // TARGET WARM RESET.
  kLogicalUnitReset,
  kNexusLoss,
  kMediumMayHaveChanged,
  kCapacityChanged,
  kModeParametersChanged,
  kAccessStateChanged,
  kReservationsPreempted,
  kReservationsReleased,
  kRegistrationsPreempted,
  kCommandsCleared,
  kReportedLunsChanged,
  kThinSoftThreshold,
};

Additional additional_of(UnitAttention condition) noexcept;

class UnitAttentions {
 public:
  bool any() const noexcept { return pending_ != 0; }
  bool pending(UnitAttention condition) const noexcept { return (pending_ & bit(condition)) != 0; }

  void establish(UnitAttention condition) noexcept {
    if (condition <= UnitAttention::kLogicalUnitReset) {
      // What a reset undoes need not be told any more; the list of LUNs, access states and
      // persistent reservations are not undone by it.
      pending_ &= bit(UnitAttention::kReportedLunsChanged) | bit(UnitAttention::kPowerOn) |
                  bit(UnitAttention::kHardReset) | bit(UnitAttention::kAccessStateChanged) |
                  bit(UnitAttention::kReservationsPreempted) |
                  bit(UnitAttention::kReservationsReleased) |
                  bit(UnitAttention::kRegistrationsPreempted);
    }
    pending_ |= bit(condition);
  }
  void clear(UnitAttention condition) noexcept {
    pending_ &= static_cast<std::uint16_t>(~bit(condition));
  }
  UnitAttention first() const noexcept {
    assert(any());
    return static_cast<UnitAttention>(std::countr_zero(pending_));
  }
  // Reports the first condition, which is thereby cleared.
  UnitAttention take() noexcept {
    const UnitAttention condition = first();
    clear(condition);
    return condition;
  }

 private:
  static constexpr std::uint16_t bit(UnitAttention condition) noexcept {
    return static_cast<std::uint16_t>(1U << static_cast<unsigned>(condition));
  }
  std::uint16_t pending_ = 0;
};

}  // namespace sandbay::scsi
