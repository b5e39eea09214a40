// Identifiers: by what hosts tell volumes apart. The NAA designator does for most of them; the
// serial number, with vendor and product, for those that read no other page. Two volumes with one
// of these alike are two paths to one disk for a host with multipathing, which then writes the
// one's data to the other.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "group/configuration.h"
#include "group/records.h"

namespace sandbay::group {

class Identifiers {
 public:
  // Kept by reference.
  explicit Identifiers(const IdentityConfiguration& identity) : identity_(identity) {}

  // Those of a "volume" or "snapshot". One that is another's already stays that one's, and the
  // answer, half a sentence, says whose. What the specification leaves open is not looked at.
  std::optional<std::string> claim(const VolumeSpecification& specification, std::string_view kind);
  // The same with those that follow from its UUID, where it has no others.
  std::optional<std::string> claim(const VolumeRecord& record, std::string_view kind);
  const std::set<NaaIdentifier>& designators() const { return designators_; }

 private:
  const IdentityConfiguration& identity_;
  std::set<NaaIdentifier> designators_;
  std::map<std::string, std::string> owners_;
};

}  // namespace sandbay::group
