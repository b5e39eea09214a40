// The encodings: what was packed comes back, and what was cut, prolonged or is no record is refused
// with a reason.
#include <string>
#include <vector>

#include <rapidcheck.h>
#include <catch2/catch.hpp>

#include "pool/map_records.h"

namespace sandbay::pool::map_records_test {
namespace {

template <class Integer>
Integer any() {
  return *rc::gen::arbitrary<Integer>();
}
std::uint32_t below(std::uint32_t end) { return *rc::gen::inRange<std::uint32_t>(0, end); }

std::string any_label() {
  return std::string(below(kLongestLabel + 1), static_cast<char>(below(256)));
}

Slot any_slot() {
  return {.place = {.store = static_cast<StoreIndex>(below(100)), .page = any<std::uint32_t>()},
          .chunk = static_cast<std::uint16_t>(below(900))};
}

KeptCounts any_counts() {
  KeptCounts counts;
  for (std::uint32_t i = below(4); i > 0; --i) {
    counts.add(static_cast<StoreIndex>(below(20)), 1 + below(1000));
  }
  return counts;
}

MapRecord any_record() {
  const auto first = static_cast<std::uint16_t>(below(900));
  const auto count = static_cast<std::uint16_t>(1 + below(100));
  const auto state = static_cast<ChunkState>(below(3));
  switch (below(10)) {
    case 0:
      return PlacePages{.branch = any<std::uint64_t>(),
                        .page = below(1000),
                        .count = 1 + below(1000),
                        .place = {.store = any<std::uint16_t>(), .page = below(1000)}};
    case 1:
      return SetChunks{.branch = any<std::uint64_t>(),
                       .page = any<std::uint32_t>(),
                       .first = first,
                       .count = count,
                       .state = state};
    case 2:
      return KeepChunks{.branch = any<std::uint64_t>(),
                        .page = any<std::uint32_t>(),
                        .generation = 1 + below(1000),
                        .first = first,
                        .count = count,
                        .state = state,
                        .slot = any_slot()};
    case 3:
      return ForgetChunk{.branch = any<std::uint64_t>(),
                         .page = any<std::uint32_t>(),
                         .generation = any<std::uint32_t>(),
                         .chunk = first};
    case 4:
      return BranchRecord{.id = 1000 + below(1000),
                          .byte_count = below(1000),
                          .parent = 1 + below(900),
                          .parent_generation = 1 + below(900),
                          .through_pages = below(1000),
                          .last_generation = below(1000),
                          .thick = any<bool>(),
                          .dead = any<bool>(),
                          .sweeping = any<bool>(),
                          .placement = any<std::uint8_t>(),
                          .fixed_store = any<std::uint16_t>(),
                          .page_limit = any<std::uint64_t>(),
                          .page_warning = any<std::uint64_t>(),
                          .kept = any_counts(),
                          .label = any_label()};
    case 5:
      return EraseBranch{.branch = any<std::uint64_t>()};
    case 6:
      return SnapshotRecord{.branch = any<std::uint64_t>(),
                            .generation = 1 + below(1000),
                            .byte_count = below(1000),
                            .label = any_label()};
    case 7:
      return EraseSnapshot{.branch = any<std::uint64_t>(), .generation = any<std::uint32_t>()};
    case 8:
      return StoreRecord{.index = static_cast<StoreIndex>(below(1000)),
                         .uuid = {any<std::uint8_t>()},
                         .page_count = any<std::uint32_t>(),
                         .member = any<std::uint32_t>(),
                         .placement = any<std::uint8_t>(),
                         .state = static_cast<StoreState>(below(2))};
    default:
      return EraseStore{.index = any<std::uint16_t>()};
  }
}

}  // namespace

TEST_CASE("records come back as they were, and none that is cut or longer", "[pool]") {
  REQUIRE(rc::check([] {
    RecordGroup group{.sequence = any<std::uint64_t>(), .records = {}};
    const auto count = below(8);
    for (std::uint32_t i = 0; i < count; ++i) group.records.push_back(any_record());
    const std::string text = pack(group);
    const auto again = unpack_group(text);
    RC_ASSERT(again.has_value());
    RC_ASSERT(*again == group);
    const MapRecord record = any_record();
    const std::string one = pack(record);
    const auto whole = unpack_record(one);
    RC_ASSERT(whole.has_value());
    RC_ASSERT((*whole == record));
    for (std::size_t length = 0; length < one.size(); ++length) {
      const auto cut = unpack_record(std::string_view(one).substr(0, length));
      RC_ASSERT(!cut.has_value());
      RC_ASSERT(!cut.error().empty());
    }
    RC_ASSERT(!unpack_record(one + '\0').has_value());
  }));
}

TEST_CASE("A branch record of version 2 comes back without the end of what it reads through",
          "[pool][P-2]") {
  const bool has_parent = GENERATE(false, true);
  BranchRecord branch{.id = 2, .label = "old"};
  if (has_parent) {
    branch.parent = 1;
    branch.parent_generation = 3;
    branch.through_pages = 9;
  }
  std::string text = pack(MapRecord(branch));
  text[0] = 5;
  text.resize(text.size() - sizeof branch.through_pages);
  const auto again = unpack_record(text);
  REQUIRE(again.has_value());
  if (has_parent) branch.through_pages = kNoPage;
  CHECK(*again == MapRecord(branch));
}

TEST_CASE("slots by generation come back as they were, and none that are counted wrong", "[pool]") {
  REQUIRE(rc::check([] {
    GenerationCounts counts;
    for (std::uint32_t i = below(5); i > 0; --i) counts.add(1 + below(50), 1 + below(1000));
    const std::string text = pack(counts);
    const auto again = unpack_generations(text);
    RC_ASSERT(again.has_value());
    RC_ASSERT(*again == counts);
    RC_ASSERT(counts.between(1, kLive) == counts.total());
    for (std::size_t length = 1; length < text.size(); ++length) {
      const auto cut = unpack_generations(std::string_view(text).substr(0, length));
      RC_ASSERT(cut.has_value() == (length % 12 == 0));
    }
  }));
  GenerationCounts two;
  two.add(1, 5);
  two.add(3, 7);
  const std::string text = pack(two);
  constexpr std::string_view kWrong = "slots by generation that are counted wrong";
  CHECK(unpack_generations(text.substr(12) + text.substr(0, 12)).error() == kWrong);
  CHECK(unpack_generations(text + text).error() == kWrong);
  CHECK(unpack_generations(std::string(12, '\0')).error() == kWrong);
}

TEST_CASE("a checkpoint comes back, and an impossible one is refused", "[pool]") {
  const CheckpointRecord record{
      .page_chunks = 16, .sequence = 77, .last_branch = 5, .log = {1, 2, 3}};
  REQUIRE(unpack_checkpoint(pack(record)) == record);
  CheckpointRecord other = record;
  other.version = record.version + 1;
  CHECK(unpack_checkpoint(pack(other)).error() == "a map of another version");
  other = record;
  other.page_chunks = kMostPageChunks + 1;
  CHECK(unpack_checkpoint(pack(other)).error() == "a map with pages of an impossible size");
  CHECK_FALSE(unpack_checkpoint(pack(record).substr(1)).has_value());
  CHECK_FALSE(unpack_checkpoint(pack(record) + "x").has_value());
}

TEST_CASE("records that cannot be meant are refused", "[pool]") {
  const auto refused = [](const MapRecord& record) {
    const auto unpacked = unpack_record(pack(record));
    return unpacked.has_value() ? std::string("taken") : std::string(unpacked.error());
  };
  CHECK(refused(PlacePages{.branch = 1, .count = 0}) == "a record about no page");
  CHECK(refused(PlacePages{.branch = 1, .page = ~0U, .count = 2}) ==
        "a record about pages behind the last");
  CHECK(refused(PlacePages{.branch = 1, .count = 2, .place = {.store = 1, .page = ~0U}}) ==
        "a record about places behind the last");
  CHECK(refused(SetChunks{.branch = 1, .first = 0, .count = 0}) == "a record about no chunk");
  CHECK(refused(SetChunks{.branch = 1, .first = 1000, .count = 25}) ==
        "a record about chunks behind a page's end");
  CHECK(refused(KeepChunks{.branch = 1, .generation = 0, .count = 1}) ==
        "a record about no snapshot");
  CHECK(refused(KeepChunks{.branch = 1, .generation = 1, .count = 1, .state = ChunkState::kData}) ==
        "a kept chunk in no slot");
  CHECK(refused(BranchRecord{}) == "a branch without a number");
  CHECK(refused(BranchRecord{.id = 1, .parent = 1, .parent_generation = 1}) ==
        "a branch that is its own parent");
  CHECK(refused(BranchRecord{.id = 2, .parent = 1}) == "a branch with half a parent");
  CHECK(refused(BranchRecord{.id = 2, .through_pages = 1}) ==
        "a branch that reads through no parent, or too far");
  CHECK(unpack_record(std::string_view("\0", 1)).error() == "a record of unknown kind");
  CHECK(unpack_record("\x7f").error() == "a record of unknown kind");
}

}  // namespace sandbay::pool::map_records_test
