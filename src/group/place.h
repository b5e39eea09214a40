// Place: what a volume on a set stands on: a door of its own to the set's, with what clears its
// blocks in between (clearing.h). Owned by the group, for as long as the volume's device is there.
#pragma once

#include <memory>
#include <string>

#include "group/clearing.h"
#include "group/door.h"
#include "group/running_group.h"

namespace sandbay::group {

struct RunningGroup::Place {
  Clearing clearing;
  Door door;

  Place(Door& set, std::string name, ClearedAreas areas, Clearing::Keep keep,
        std::shared_ptr<ClearingLane> lane)
      : clearing(set, std::move(areas), std::move(keep), std::move(lane)),
        door(set.home(), std::move(name), set.geometry(), nullptr) {
    door.lead_to(clearing);
    door.share(set.cache(), set.streams());
  }
};

// A volume that is gone while something below still holds requests of it. They may change what lies
// in its place at any time, and no single request can be called back, so the place stays taken.
struct RunningGroup::Leaving {
  std::string name;
  Placement placement;
  std::shared_ptr<Volume> volume;  // Null: it has been closed.
  std::unique_ptr<Place> place;
};

}  // namespace sandbay::group
