// VolumeTable: the volumes of a group, by name and by UUID. Executor 0.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "group/volume.h"

namespace sandbay::group {

class VolumeTable {
 public:
  using Map = std::map<std::string, std::shared_ptr<Volume>>;

  // As of a map by name.
  Map::const_iterator begin() const noexcept { return by_name_.begin(); }
  Map::const_iterator end() const noexcept { return by_name_.end(); }
  Map::const_iterator find(const std::string& name) const { return by_name_.find(name); }
  bool contains(const std::string& name) const { return by_name_.contains(name); }
  bool empty() const noexcept { return by_name_.empty(); }
  std::size_t size() const noexcept { return by_name_.size(); }

  // Null: there is no such volume.
  std::shared_ptr<Volume> find(const Uuid& uuid) const {
    const auto found = by_uuid_.find(uuid);
    return found == by_uuid_.end() ? nullptr : found->second;
  }

  // Replaces a volume of that name.
  void put(const std::string& name, std::shared_ptr<Volume> volume) {
    erase(name);
    by_uuid_[volume->uuid()] = volume;
    by_name_[name] = std::move(volume);
  }
  void erase(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return;
    by_uuid_.erase(found->second->uuid());
    by_name_.erase(found);
  }
  void clear() {
    by_name_.clear();
    by_uuid_.clear();
  }

 private:
  Map by_name_;
  std::map<Uuid, std::shared_ptr<Volume>> by_uuid_;
};

}  // namespace sandbay::group
