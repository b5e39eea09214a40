// Identifiers: by what hosts tell volumes apart. The NAA designator does for most of them, and the
// EUI-64 designator for some if a volume has one; the serial number, with vendor and product, for
// those that read no other page. Two volumes with one of these alike are two paths to one disk for
// a host with multipathing, which then writes the one's data to the other.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

  // For the whole life of a volume or snapshot. Two of them may share an identifier. A question
  // costs the same, however many volumes and snapshots have taken theirs.
  void take(const VolumeRecord& record);
  void release(const Uuid& uuid);
  bool has(const NaaIdentifier& designator) const;
  // The same words as claim() finds, but claims nothing. `words_of` names the volume or snapshot
  // that has taken an identifier.
  std::optional<std::string> clash(
      const VolumeSpecification& specification,
      const std::function<std::string(const Uuid& uuid)>& words_of) const;

 private:
  struct Identifier {
    std::string key;  // Unlike any of another kind.
    std::string_view what;
    std::string value;
  };
  std::vector<Identifier> identifiers_of(const VolumeSpecification& specification) const;
  static VolumeSpecification settled(const VolumeRecord& record);

  const IdentityConfiguration& identity_;
  std::map<std::string, std::string> owners_;             // By identifier: those that claimed them.
  std::map<std::string, std::vector<Uuid>> takers_;       // By identifier.
  std::map<Uuid, std::vector<std::string>> identifiers_;  // By taker.
};

}  // namespace sandbay::group
