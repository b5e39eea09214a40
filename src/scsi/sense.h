// Status codes (SAM-5 clause 5.3.1) and sense data (SPC-4 clause 4.5) in descriptor and fixed
// format.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/error.h"

namespace sandbay::scsi {

enum class Status : std::uint8_t {
  kGood = 0x00,
  kCheckCondition = 0x02,
  kConditionMet = 0x04,
  kBusy = 0x08,
  kReservationConflict = 0x18,
  kTaskSetFull = 0x28,
  kAcaActive = 0x30,
  kTaskAborted = 0x40,
};

enum class SenseKey : std::uint8_t {
  kNoSense = 0x0,
  kRecoveredError = 0x1,
  kNotReady = 0x2,
  kMediumError = 0x3,
  kHardwareError = 0x4,
  kIllegalRequest = 0x5,
  kUnitAttention = 0x6,
  kDataProtect = 0x7,
  kBlankCheck = 0x8,
  kVendorSpecific = 0x9,
  kCopyAborted = 0xA,
  kAbortedCommand = 0xB,
  kVolumeOverflow = 0xD,
  kMiscompare = 0xE,
  kCompleted = 0xF,
};

// Additional sense code and qualifier as one number, 0xAAQQ. Names as in SPC-4 annex D.
enum class Additional : std::uint16_t {
  kNone = 0x0000,
  kNotReadyCauseNotReportable = 0x0400,
  kBecomingReady = 0x0401,
  kInitializingCommandRequired = 0x0402,
  kManualInterventionRequired = 0x0403,
  kAccessStateTransition = 0x040A,
  kPortStandby = 0x040B,
  kPortUnavailable = 0x040C,
  kOffline = 0x0412,
  kSanitizeInProgress = 0x041B,
  kLogicalUnitCommunicationFailure = 0x0800,
  kLogicalUnitCommunicationTimeout = 0x0801,
  kWriteError = 0x0C00,
  kUnexpectedUnsolicitedData = 0x0C0C,
  kNotEnoughUnsolicitedData = 0x0C0D,
  kInvalidFieldInInformationUnit = 0x0E03,
  kUnrecoveredReadError = 0x1100,
  kParameterListLengthError = 0x1A00,
  kMiscompareDuringVerify = 0x1D00,
  kInvalidOperationCode = 0x2000,
  kLbaOutOfRange = 0x2100,
  kInvalidFieldInCdb = 0x2400,
  kLogicalUnitNotSupported = 0x2500,
  kInvalidFieldInParameterList = 0x2600,
  kInvalidReleaseOfPersistentReservation = 0x2604,
  kWriteProtected = 0x2700,
  kSoftwareWriteProtected = 0x2702,
  kSpaceAllocationFailed = 0x2707,
  kMediumMayHaveChanged = 0x2800,
  kPowerOnResetOrBusDeviceReset = 0x2900,
  kBusResetOccurred = 0x2902,
  kBusDeviceReset = 0x2903,
  kNexusLossOccurred = 0x2907,
  kModeParametersChanged = 0x2A01,
  kReservationsPreempted = 0x2A03,
  kReservationsReleased = 0x2A04,
  kRegistrationsPreempted = 0x2A05,
  kAccessStateChanged = 0x2A06,
  kCapacityDataHasChanged = 0x2A09,
  kCommandsClearedByAnotherInitiator = 0x2F00,
  kCommandsClearedByDeviceServer = 0x2F02,
  kThinProvisioningSoftThreshold = 0x3807,
  kSanitizeCommandFailed = 0x3103,
  kSavingParametersNotSupported = 0x3900,
  kMediumNotPresent = 0x3A00,
  kInvalidMessageError = 0x4900,
  kReportedLunsDataHasChanged = 0x3F0E,
  kInternalTargetFailure = 0x4400,
  kPersistentReservationInformationLost = 0x4401,
  kDataPhaseError = 0x4B00,
  kDataPhaseCrcError = 0x4705,
  kOverlappedCommandsAttempted = 0x4E00,
  kMediumRemovalPrevented = 0x5302,
  kInsufficientResources = 0x5503,
  kInsufficientRegistrationResources = 0x5504,
};

// Sense data as a value; encoded when it is sent.
struct Sense {
  SenseKey key = SenseKey::kNoSense;
  Additional additional = Additional::kNone;
  bool deferred = false;
  std::optional<std::uint64_t> information;  // VALID bit: an LBA or a length difference.
  // SENSE KEY SPECIFIC for ILLEGAL REQUEST: the field pointer.
  struct FieldPointer {
    bool in_cdb = true;
    std::uint16_t byte = 0;
    std::optional<std::uint8_t> bit;
  };
  std::optional<FieldPointer> field;
  std::optional<std::uint16_t> progress;  // NOT READY: of 65536.
};

// Whether this says that a device is not there, or cannot serve now: NOT READY.
bool is_away(Error error);
// Whether a device that has failed so may serve the same request later, by itself or when an
// operator lets it.
bool comes_back(Error error);

// A parameter list that a device server refuses.
struct ListError {
  bool wrong_length = false;  // PARAMETER LIST LENGTH ERROR;
  std::uint16_t byte = 0;     // else INVALID FIELD IN PARAMETER LIST, here.
};

// Encoded sense data, at most 252 bytes by SPC-4; ours never need more than 64.
class SenseData {
 public:
  SenseData() = default;
  // D_SENSE of the control mode page chooses the format.
  static SenseData encode(const Sense& sense, bool descriptor_format);

  bool empty() const noexcept { return byte_count_ == 0; }
  std::span<const std::byte> bytes() const noexcept { return {bytes_.data(), byte_count_}; }

 private:
  std::array<std::byte, 64> bytes_{};
  std::uint8_t byte_count_ = 0;
};

}  // namespace sandbay::scsi
