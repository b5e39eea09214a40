// The additional sense codes of unit attention conditions (SPC-4 annex D).
#include "scsi/unit_attention.h"

namespace sandbay::scsi {

Additional additional_of(UnitAttention condition) noexcept {
  switch (condition) {
    case UnitAttention::kPowerOn:
      // The general code: libiscsi retries after it alone when it counts LUNs.
      return Additional::kPowerOnResetOrBusDeviceReset;
    case UnitAttention::kHardReset:
      return Additional::kBusResetOccurred;
    case UnitAttention::kLogicalUnitReset:
      return Additional::kBusDeviceReset;
    case UnitAttention::kNexusLoss:
      return Additional::kNexusLossOccurred;
    case UnitAttention::kMediumMayHaveChanged:
      return Additional::kMediumMayHaveChanged;
    case UnitAttention::kCapacityChanged:
      return Additional::kCapacityDataHasChanged;
    case UnitAttention::kModeParametersChanged:
      return Additional::kModeParametersChanged;
    case UnitAttention::kAccessStateChanged:
      return Additional::kAccessStateChanged;
    case UnitAttention::kReservationsPreempted:
      return Additional::kReservationsPreempted;
    case UnitAttention::kReservationsReleased:
      return Additional::kReservationsReleased;
    case UnitAttention::kRegistrationsPreempted:
      return Additional::kRegistrationsPreempted;
    case UnitAttention::kCommandsCleared:
      return Additional::kCommandsClearedByAnotherInitiator;
    case UnitAttention::kReportedLunsChanged:
      return Additional::kReportedLunsDataHasChanged;
    case UnitAttention::kThinSoftThreshold:
      return Additional::kThinProvisioningSoftThreshold;
  }
  return Additional::kPowerOnResetOrBusDeviceReset;
}

}  // namespace sandbay::scsi
