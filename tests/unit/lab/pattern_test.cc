// The verify pattern finds every kind of wrong block, and the map knows what may be there.
#include <catch2/catch.hpp>

#include <vector>

#include "lab/pattern.h"
#include "runtime/simulation.h"

namespace sandbay::lab {
namespace {

constexpr std::uint32_t kBlock = 512;

std::vector<std::byte> block_of(const PatternIdentity& identity, std::size_t bytes = kBlock) {
  std::vector<std::byte> block(bytes);
  fill_pattern(block, identity);
  return block;
}

void in_world(void (*body)()) {
  auto world = sim::World::create({});
  struct Main {
    static Task<void> run(void (*what)()) {
      what();
      co_return;
    }
  };
  REQUIRE(world->run([body] { return Main::run(body); }));
}

BufferList unit_of_four() { return Executor::current().buffers().try_allocate(4 * kBlock); }

void expect(const BufferList& data, const UnitMap& map, const std::string& part) {
  const std::string wrong = check_unit(data, kBlock, 42, 100, map, 0);
  INFO(wrong);
  if (part.empty()) {
    CHECK(wrong.empty());
  } else {
    CHECK(wrong.find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("A block tells where it belongs", "[lab][pattern]") {
  for (const std::size_t bytes : {512, 4096}) {
    const PatternIdentity identity{.seed = 42, .lba = 0x123456789AB, .generation = 7};
    const PatternCheck check = check_pattern(block_of(identity, bytes));
    CHECK(check.intact);
    CHECK(check.identity.seed == identity.seed);
    CHECK(check.identity.lba == identity.lba);
    CHECK(check.identity.generation == identity.generation);
  }
}

TEST_CASE("A changed bit anywhere is found", "[lab][pattern]") {
  const std::vector<std::byte> block = block_of({.seed = 1, .lba = 2, .generation = 3});
  for (std::size_t at = 0; at < block.size(); ++at) {
    std::vector<std::byte> changed = block;
    changed[at] ^= std::byte{0x10};
    REQUIRE_FALSE(check_pattern(changed).intact);
  }
}

TEST_CASE("Different identities give different content", "[lab][pattern]") {
  const auto base = block_of({.seed = 1, .lba = 2, .generation = 3});
  const auto tail = [](const std::vector<std::byte>& block) {
    return std::vector<std::byte>(block.begin() + 64, block.end());
  };
  CHECK(tail(base) != tail(block_of({.seed = 2, .lba = 2, .generation = 3})));
  CHECK(tail(base) != tail(block_of({.seed = 1, .lba = 3, .generation = 3})));
  CHECK(tail(base) != tail(block_of({.seed = 1, .lba = 2, .generation = 4})));
}

TEST_CASE("The map allows what may be there, and nothing else", "[lab][pattern]") {
  UnitMap map(4);
  CHECK_FALSE(map.written(0));
  CHECK(map.begin_write(0) == 1);
  CHECK(map.busy(0));
  CHECK_FALSE(map.content_known(0));
  map.end_write(0, true);
  CHECK_FALSE(map.busy(0));
  CHECK(map.allows(0, 1));
  CHECK_FALSE(map.allows(0, 0));
  CHECK_FALSE(map.allows(0, 2));
  // Two that were not acknowledged: old or either of the new ones.
  map.begin_write(0);
  map.end_write(0, false);
  map.begin_write(0);
  map.end_write(0, false);
  for (const std::uint32_t generation : {1U, 2U, 3U}) CHECK(map.allows(0, generation));
  CHECK_FALSE(map.allows(0, 4));
  map.begin_write(0);
  map.end_write(0, true);
  CHECK(map.allows(0, 4));
  CHECK_FALSE(map.allows(0, 3));
  CHECK_FALSE(map.written(1));
}

TEST_CASE("A unit's blocks are checked one by one", "[lab][pattern]") {
  in_world([] {
    UnitMap map(1);
    BufferList data = unit_of_four();
    data.fill_zero();
    expect(data, map, "");  // Nothing was written: anything may be there.
    const std::uint32_t generation = map.begin_write(0);
    fill_unit(data, kBlock, {.seed = 42, .lba = 100, .generation = generation});
    map.end_write(0, true);
    expect(data, map, "");

    std::vector<std::byte> block(kBlock);
    const auto put = [&](const PatternIdentity& identity) {
      fill_pattern(block, identity);
      data.copy_from(block, 2 * kBlock);
    };
    put({.seed = 42, .lba = 101, .generation = generation});
    expect(data, map, "LBA 102: holds what belongs to 101");
    put({.seed = 43, .lba = 102, .generation = generation});
    expect(data, map, "LBA 102: written with seed 43, not 42");
    put({.seed = 42, .lba = 102, .generation = generation + 1});
    expect(data, map, "LBA 102: generation 2, expected 1 to 1");
    std::ranges::fill(block, std::byte{0});
    data.copy_from(block, 2 * kBlock);
    expect(data, map, "LBA 102: content is not what was written");
  });
}

}  // namespace sandbay::lab
