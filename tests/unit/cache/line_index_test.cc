// The index of lines against a map, over several slabs.
#include "cache/line_index.h"

#include <catch2/catch.hpp>
#include <map>

#include "cache/cached_device.h"

namespace sandbay::testing {
namespace {

using cache::CachedDevice;
using cache::Line;
using cache::LineIndex;

// Lines name their device; nobody here looks at it.
CachedDevice& no_device() {
  alignas(CachedDevice) static std::byte place[sizeof(CachedDevice)];
  return reinterpret_cast<CachedDevice&>(place);
}

// Adds, finds and removes up to so many lines at a time.
void use(LineIndex& index, std::uint64_t lines) {
  std::map<std::uint64_t, Line*> known;
  const auto add = [&](std::uint64_t number) {
    const std::uint64_t key = LineIndex::key_of(3, number);
    Line& line = index.add(no_device(), key, number);
    CHECK(line.number == number);
    CHECK(line.segments.empty());
    // Nothing of its predecessor.
    CHECK(line.hits == 0);
    CHECK_FALSE(line.main);
    line.hits = 2;
    line.main = true;
    known.emplace(key, &line);
  };
  for (std::uint64_t number = 0; number < lines; ++number) add(number * 16);
  for (int round = 0; round < 3; ++round) {
    std::uint64_t count = 0;
    std::erase_if(known, [&](const auto& each) {
      if (++count % 3 != 0) return false;
      index.remove(*each.second);
      return true;
    });
    for (std::uint64_t i = 0; i < count / 3; ++i) {
      add(1'000'000 + static_cast<std::uint64_t>(round) * lines + i);
    }
  }
  CHECK(index.size() == known.size());
  for (const auto& [key, line] : known) {
    if (index.find(key) != line) FAIL("line " << key << " is not where it was");
  }
  CHECK(index.find(LineIndex::key_of(4, 0)) == nullptr);
  std::size_t seen = 0;
  index.for_each([&](Line& line) {
    ++seen;
    index.remove(line);
  });
  CHECK(seen == known.size());
  CHECK(index.size() == 0);
}

}  // namespace

TEST_CASE("Lines stay where they are while others come and go", "[cache][line_index]") {
  LineIndex index(20'000);
  use(index, 20'000);
  use(index, 5'000);
}

TEST_CASE("An index may have more lines than it was made for", "[cache][line_index]") {
  LineIndex index(1);
  use(index, 100);
}

}  // namespace sandbay::testing
