// What management shows of the reservations of a volume.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sandbay::group {

struct RegistrationInfo {
  std::string initiator_port;  // With its ISID.
  std::uint16_t target_port = 0;
  std::uint64_t key = 0;
  bool holder = false;
};

struct ReservationsInfo {
  std::string volume;
  std::string snapshot;  // Empty: they are the volume's own.
  std::string type;      // "none", or as SPC-4 names it: "write exclusive, registrants only".
  std::uint32_t generation = 0;
  bool kept = false;        // They outlive the daemon (APTPL).
  bool lost = false;        // Nobody knows what they were.
  std::string reserved_by;  // With RESERVE, of SPC-2: the initiator port; empty: nobody.
  std::vector<RegistrationInfo> registrations;
};

}  // namespace sandbay::group
