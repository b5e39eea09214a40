// Place: what a volume on a set stands on: a door of its own to the set's, with what clears its
// blocks in between (clearing.h). Owned by the group, for as long as the volume's device is there.
#pragma once

#include <memory>

#include "group/clearing.h"
#include "group/running_group.h"
#include "group/set_door.h"

namespace sandbay::group {

struct RunningGroup::Place {
  Clearing clearing;
  SetDoor door;

  Place(SetDoor& set, std::string name, ClearedAreas areas, Clearing::Keep keep)
      : clearing(set, std::move(areas), std::move(keep)),
        door(set.home(), std::move(name), set.geometry(), nullptr) {
    door.lead_to(clearing);
    door.share(set.cache(), set.streams());
  }
};

}  // namespace sandbay::group
