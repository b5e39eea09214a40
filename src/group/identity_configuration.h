// IdentityConfiguration: as whose array the group presents itself. What the section [identity] says
// counts for every volume that does not say otherwise itself; a volume keeps the serial number and
// the NAA identifier that it is made with.
//
// An NAA identifier is written as a pattern: 32 hexadecimal digits, of which those that are "*" are
// taken from the volume's UUID. Names and serial numbers are written as text with these in it:
//   {volume}          the volume's name, as an iSCSI name can have it
//   {naa}             its NAA identifier in hexadecimal digits
//   {swapped}         the same with the eight bytes of each half in reverse order
//   {naa:8+4}         four digits of it from the eighth on, counted from 0; likewise {swapped:…}
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "group/naa.h"
#include "scsi/personality.h"

namespace sandbay::group {

class Mistakes;
class TableReader;
struct Value;
struct VolumeSpecification;

struct IdentityConfiguration {
  std::string vendor = "SANDBAY";
  std::string product = "VOLUME";
  std::string revision = "0001";
  std::string naa;     // A pattern; empty: naa_of().
  std::string serial;  // A text; empty: serial_of().
  std::string target;  // A text; empty: default_target_name().
  // Login keys of all targets; a target's own come before them.
  std::map<std::string, std::string> keys;
  // Vendor pages of all volumes on sets, pools and files, and the array's identifier, which they
  // name.
  const scsi::Personality* personality = nullptr;
  std::array<std::uint8_t, 16> array{};

  // Whether all volumes have one target, as those of arrays with a target for each port.
  bool shares_target() const;
  // Whether a target's name has digits of the NAA identifier.
  bool names_targets_by_naa() const;
  NaaIdentifier naa_for(const Uuid& uuid) const;
  // The target of a volume or snapshot of this name.
  std::string target_for(std::string_view name, const NaaIdentifier& naa) const;
  // The same of what cannot be a further unit of the target that all volumes have.
  std::string own_target_for(std::string_view name, const NaaIdentifier& naa) const;
  // The identifiers and the target that the specification leaves open.
  void settle(VolumeSpecification& specification, const Uuid& uuid) const;
  // The identifiers that it leaves open are those that the volume has, whatever the section says.
  void keep_drawn(const VolumeSpecification& old, VolumeSpecification& specification) const;
};

// Reads the section [identity] but for its keys; every mistake is noted.
IdentityConfiguration read_identity_section(TableReader& reader);

// What the text stands for with these in it; the error is half a sentence.
std::expected<std::string, std::string> fill_in(std::string_view text, std::string_view volume,
                                                const NaaIdentifier& naa);

}  // namespace sandbay::group
