// SnapshotTable: the snapshots of all volumes, by UUID, and which are whose: what concerns one
// volume does not go over those of all. Executor 0.
#pragma once

#include <cassert>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "group/pool_records.h"
#include "group/volume.h"

namespace sandbay::group {

struct Snapshot {
  SnapshotRecord record;           // Its volume stays the same.
  std::shared_ptr<Volume> volume;  // While it is online.
  std::size_t position = 0;        // In the table's list of its volume.
};

class SnapshotTable {
 public:
  using Map = std::map<Uuid, Snapshot>;

  // As of a map.
  Map::iterator begin() noexcept { return all_.begin(); }
  Map::iterator end() noexcept { return all_.end(); }
  Map::const_iterator begin() const noexcept { return all_.begin(); }
  Map::const_iterator end() const noexcept { return all_.end(); }
  bool empty() const noexcept { return all_.empty(); }
  Map::iterator find(const Uuid& uuid) { return all_.find(uuid); }
  Map::const_iterator find(const Uuid& uuid) const { return all_.find(uuid); }
  Snapshot& at(const Uuid& uuid) { return all_.at(uuid); }
  const Snapshot& at(const Uuid& uuid) const { return all_.at(uuid); }

  std::pair<Map::iterator, bool> emplace(const Uuid& uuid, Snapshot snapshot) {
    const auto made = all_.emplace(uuid, std::move(snapshot));
    if (!made.second) return made;
    Snapshot& added = made.first->second;
    std::vector<Snapshot*>& list = of_[added.record.volume];
    added.position = list.size();
    list.push_back(&added);
    return made;
  }
  void erase(const Uuid& uuid) {
    const auto found = all_.find(uuid);
    if (found == all_.end()) return;
    const auto of = of_.find(found->second.record.volume);
    assert(of != of_.end());
    std::vector<Snapshot*>& list = of->second;
    const std::size_t position = found->second.position;
    assert(list[position] == &found->second);
    list[position] = list.back();
    list[position]->position = position;
    list.pop_back();
    if (list.empty()) of_.erase(of);
    all_.erase(found);
  }

  // Those of a volume, in no order.
  const std::vector<Snapshot*>& of(const Uuid& volume) const {
    static const std::vector<Snapshot*> kNone;
    const auto found = of_.find(volume);
    return found == of_.end() ? kNone : found->second;
  }

 private:
  Map all_;
  std::map<Uuid, std::vector<Snapshot*>> of_;
};

}  // namespace sandbay::group
