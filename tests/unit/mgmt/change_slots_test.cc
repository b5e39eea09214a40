// Threads for readers, however many changes wait.
#include "mgmt/change_slots.h"

#include <catch2/catch.hpp>
#include <vector>

namespace sandbay::mgmt {
namespace {

std::vector<ChangeSlots::Hold> enter_all(ChangeSlots& slots, std::string_view path) {
  std::vector<ChangeSlots::Hold> held;
  while (auto hold = slots.enter(path)) held.push_back(std::move(*hold));
  return held;
}

TEST_CASE("Changes that wait leave threads for readers", "[http][G-L4]") {
  ChangeSlots slots(64);
  const auto changes = enter_all(slots, "/api/v1/volumes");
  CHECK(changes.size() == 32);
  const auto ways_out = enter_all(slots, "/api/v1/faults");
  CHECK(ways_out.size() == 16);
  CHECK_FALSE(slots.enter("/api/v1/sessions/1").has_value());
}

TEST_CASE("A change that has ended lets the next in", "[http][G-L4]") {
  ChangeSlots slots(4);
  {
    const auto changes = enter_all(slots, "/api/v1/volumes");
    CHECK(changes.size() == 2);
    CHECK_FALSE(slots.enter("/api/v1/pools").has_value());
    CHECK(slots.enter("/api/v1/sessions/1").has_value());
  }
  CHECK(slots.enter("/api/v1/pools").has_value());
}

TEST_CASE("With one thread a change and a fault are still let in", "[http][G-L4]") {
  ChangeSlots slots(1);
  const auto change = slots.enter("/api/v1/volumes");
  CHECK(change.has_value());
  CHECK(slots.enter("/api/v1/faults").has_value());
}

}  // namespace
}  // namespace sandbay::mgmt
