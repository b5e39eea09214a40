// Extents, defects, overlay and flips of one drive, against naive models.
#include "fault/damage.h"

#include <set>

#include <rapidcheck.h>
#include <catch2/catch.hpp>

namespace sandbay::fault {

TEST_CASE("Writing takes damage away, but not what is stuck", "[fault][damage]") {
  Damage damage(512);
  CHECK(damage.none());
  REQUIRE(damage.mark_unreadable({4, 2}));
  damage.replace(8, Bytes(512, std::byte{7}));
  REQUIRE(damage.flip(8, 3, false));
  REQUIRE(damage.flip(9, 8, true));
  CHECK(damage.alters({8, 1}));
  CHECK_FALSE(damage.alters({4, 2}));
  CHECK(damage.first_unreadable({0, 8}) == Lba{4});

  Bytes seen(2 * 512);
  damage.apply_stored({8, 2}, seen);
  CHECK(seen[0] == std::byte{7 ^ 8});
  CHECK(seen[1] == std::byte{7});
  CHECK(seen[513] == std::byte{0});  // Sticky ones come on top, whatever is stored.

  damage.overwritten({4, 6});
  CHECK_FALSE(damage.first_unreadable({0, 8}).has_value());
  CHECK(damage.overlay_blocks() == 0);
  CHECK(damage.flip_count() == 1);
  CHECK(damage.alters({9, 1}));
  CHECK_FALSE(damage.alters({8, 1}));
  damage.heal();
  CHECK(damage.none());
}

TEST_CASE("Damage is bounded", "[fault][damage]") {
  Damage damage(4096);
  const std::uint64_t most = Damage::kMostOverlayBytes / 4096;
  CHECK(damage.room_for(most));
  CHECK_FALSE(damage.room_for(most + 1));
  for (std::size_t i = 0; i < Damage::kMostDefectRuns; ++i) {
    if (!damage.mark_unreadable({2 * i, 1})) FAIL("a defect was refused too early");
  }
  CHECK_FALSE(damage.mark_unreadable({0, 1}));
}

}  // namespace sandbay::fault
