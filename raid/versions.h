// Versions: the different superblocks of one set that its drives hold, and which of them counts.
// The rule and why it is right are in assembly.h and docs/design/raid-events.md. Pure.
#pragma once

#include <cstddef>
#include <expected>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "raid/superblock.h"

namespace sandbay::raid {

// What one drive that is there says of the set. A spare says nothing, but a version that names it
// as active was not written on it.
struct Witness {
  std::string name;  // For messages.
  const Superblock* superblock = nullptr;
};

class Versions {
 public:
  // Keeps pointers to the superblocks.
  explicit Versions(std::span<const Witness> witnesses);

  // The version that counts, none of whose ancestors is `minimum` being refused; or a sentence
  // that says why there is none, to follow the set's name.
  std::expected<const Superblock*, std::string> choose(Event minimum);
  // After choose(): the minimum is so old that no history goes back to it.
  bool minimum_was_too_old() const noexcept { return minimum_was_too_old_; }
  // The newest there is, whether it counts or not.
  const Superblock& newest() const noexcept;

  // Of a drive that the version that counts names: what of it is known to have been written there.
  struct Standing {
    bool apart = false;  // It went on without the others, or cannot be placed.
    bool aside = false;  // It holds an event that came to nothing; so may its region map.
    Event base = 0;      // The newest event of the set's own past that it holds; 0: none.
  };
  Standing standing(const Superblock& counts, const Superblock& drive, Event known_event) const;

 private:
  struct Version {
    const Superblock* superblock = nullptr;
    std::vector<std::size_t> holders;  // Witnesses.
    bool refuted = false;
    bool contradicted = false;  // By a drive that went another way, so that it cannot be taken up.
  };

  using Line = std::vector<const Version*>;

  std::string contradiction() const;  // Between superblocks; empty if there is none.
  void judge(Version& version) const;
  bool leads_to_any(const Version& version, const Line& others) const;
  const Version* common_ancestor(const Line& among, const Line& of) const;
  const Version* taken_up(const Version* counts, const Line& among) const;
  bool has_maps(const Version& version) const;
  const Version* best_attended(const Line& among) const;
  std::string apart(const Version& one, const Version& two) const;
  const std::string& holder(const Version& version) const {
    return witnesses_[version.holders.front()].name;
  }

  std::vector<Witness> witnesses_;
  std::map<Uuid, std::size_t> witness_of_drive_;
  std::map<Event, Version> versions_;
  Event minimum_ = 0;
  bool remembers_ = false;  // The minimum is in the history of what counts, or was seen there.
  bool minimum_was_too_old_ = false;
};

}  // namespace sandbay::raid
