// Persistent reservations of one logical unit (SPC-4 clause 5.12) as a value, and the rules by
// which PERSISTENT RESERVE OUT changes it. Pure: the caller makes a change durable, then installs
// it, and carries out what it causes.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scsi/unit_attention.h"

namespace sandbay::scsi {

// Registrations that a unit keeps, and those of one initiator node among them.
inline constexpr std::size_t kMostRegistrations = 1024;
inline constexpr std::size_t kMostRegistrationsOfNode = 128;

// An I_T nexus over its sessions: the names of its ports, as in NexusIdentity.
struct NexusPorts {
  std::string initiator_port;
  std::uint16_t target_port = 1;  // Relative target port identifier.
  auto operator<=>(const NexusPorts&) const = default;
};

// SPC-4 table 64.
enum class ReservationType : std::uint8_t {
  kNone = 0,
  kWriteExclusive = 1,
  kExclusiveAccess = 3,
  kWriteExclusiveRegistrantsOnly = 5,
  kExclusiveAccessRegistrantsOnly = 6,
  kWriteExclusiveAllRegistrants = 7,
  kExclusiveAccessAllRegistrants = 8,
};
bool is_reservation_type(std::uint8_t value) noexcept;  // Other than kNone.
bool is_all_registrants(ReservationType type) noexcept;
std::string_view describe(ReservationType type);  // "write exclusive, registrants only"; "none"

struct PersistentReservations {
  std::map<NexusPorts, std::uint64_t> keys;  // By registered nexus.
  ReservationType type = ReservationType::kNone;
  std::optional<NexusPorts> holder;  // With a type that has one; all registrants hold the others.
  bool through_power_loss = false;   // APTPL: kept over a restart,
  std::uint32_t generation = 0;      // which this is not.
  // Nobody knows any more what was kept: the unit serves little until REPLACE LOST RESERVATION.
  bool lost = false;

  bool reserved() const noexcept { return type != ReservationType::kNone; }
  bool holds(const NexusPorts& nexus) const;
  bool operator==(const PersistentReservations&) const = default;
};

// A nexus may do this, by the tables of SPC-4 5.12.1 and SBC-3 4.15.
struct ReservedRights {
  bool reads = true;
  bool changes = true;
};
ReservedRights rights_of(const PersistentReservations& reservations, const NexusPorts& nexus);

// The service actions of PERSISTENT RESERVE OUT.
enum class ReserveAction : std::uint8_t {
  kRegister = 0,
  kReserve = 1,
  kRelease = 2,
  kClear = 3,
  kPreempt = 4,
  kPreemptAndAbort = 5,
  kRegisterAndIgnoreExistingKey = 6,
  kRegisterAndMove = 7,
  kReplaceLostReservation = 8,
};

struct ReserveRequest {
  ReserveAction action = ReserveAction::kRegister;
  std::uint8_t scope = 0;
  std::uint8_t type = 0;
  std::uint64_t key = 0;
  std::uint64_t action_key = 0;         // SERVICE ACTION RESERVATION KEY.
  bool specifies_initiators = false;    // SPEC_I_PT.
  std::vector<std::string> initiators;  // Ports; one with kRegisterAndMove.
  bool all_target_ports = false;        // ALL_TG_PT.
  bool through_power_loss = false;      // APTPL.
  bool unregister = false;              // UNREG.
  std::uint16_t target_port = 0;        // With kRegisterAndMove.
};

struct ReserveChange {
  PersistentReservations next;
  std::vector<std::pair<NexusPorts, UnitAttention>> attentions;
  std::vector<NexusPorts> aborted;  // Their commands are aborted (PREEMPT AND ABORT).
};

struct ReserveRefusal {
  enum class Kind : std::uint8_t {
    kConflict,        // RESERVATION CONFLICT.
    kCdb,             // INVALID FIELD IN CDB, at `byte`.
    kList,            // INVALID FIELD IN PARAMETER LIST, at `byte`.
    kRelease,         // INVALID RELEASE OF PERSISTENT RESERVATION.
    kNoRegistration,  // INSUFFICIENT REGISTRATION RESOURCES.
  };
  Kind kind = Kind::kConflict;
  std::uint16_t byte = 0;
};

// `target_ports`: relative identifiers of all ports through which the unit is served.
std::expected<ReserveChange, ReserveRefusal> change_reservations(
    const PersistentReservations& now, const ReserveRequest& request, const NexusPorts& caller,
    std::span<const std::uint16_t> target_ports);
// An operator's CLEAR: nobody is spared.
ReserveChange clear_reservations(const PersistentReservations& now);
// Something was kept, and is lost (SPC-4 5.13.5.3).
PersistentReservations lost_reservations();

}  // namespace sandbay::scsi
