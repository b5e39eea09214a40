// Member: an array of the group, with RAID sets that pools take their pages from.
//
// A local member is hardware of this daemon's; a remote one is a daemon elsewhere, of which there
// are its sets alone. What stands above knows neither: it asks for sets, and for a device for each
// that serves now.
//
// Executor 0. A device that was given stays valid until the member is gone, also when its set goes:
// then it answers kNotReady.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "block/block_device.h"
#include "metadata/store.h"
#include "raid/layout.h"
#include "runtime/uuid.h"

namespace sandbay::group {

class Hardware;

// A RAID set as its member shows it.
struct MemberSet {
  Uuid uuid{};  // Zeros: it was never made.
  std::string name;
  raid::Level level = raid::Level::kRaid5;
  std::uint64_t byte_count = 0;
  Health health = Health::kGood;
  std::string reason;  // Why it does not serve; empty if it does.
};

class Member {
 public:
  explicit Member(std::string name) : name_(std::move(name)) {}
  virtual ~Member() = default;
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  const std::string& name() const noexcept { return name_; }
  // Null: it is remote.
  virtual Hardware* hardware() const noexcept { return nullptr; }
  // "local", or where it is.
  virtual std::string place() const = 0;
  // Why all of it is away; empty: it is there, as far as that can be said without its sets.
  virtual std::string absence() const { return {}; }

  // All that are known, also those that do not serve.
  virtual std::vector<MemberSet> sets() const = 0;
  // What a pool puts its pages on; null: the set does not serve now.
  virtual BlockDevice* serving(const Uuid& set) const = 0;
  // Why it does not serve; empty if it does.
  virtual std::string refusal(const Uuid& set) const = 0;
  virtual std::string name_of(const Uuid& set) const = 0;  // Empty: the member does not know it.
  virtual std::optional<Uuid> find_set(const std::string& name) const = 0;
  // What has to be in the commit in which a pool takes the set.
  virtual void note_use(const Uuid& set, metadata::Batch& batch) = 0;
  // Called inline whenever a set may have come or gone; it only takes notice.
  virtual void on_sets_changed(std::function<void()> callback) = 0;

 private:
  std::string name_;
};

}  // namespace sandbay::group
