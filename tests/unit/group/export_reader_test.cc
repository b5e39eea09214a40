// Reading an export piece by piece: what memory that takes depends neither on its length nor on
// what is in it.
#include "group/export_reader.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "group/export_document.h"

namespace sandbay::group {
namespace {

// `head`, and then `again` for ever; `drawn` counts what was read of it.
ExportReader::Source endless(std::string head, std::string again, std::uint64_t* drawn) {
  return [rest = std::move(head), again = std::move(again), drawn](std::span<char> room) mutable {
    while (rest.size() < room.size()) rest += again;
    rest.copy(room.data(), room.size());
    rest.erase(0, room.size());
    *drawn += room.size();
    return room.size();
  };
}

const std::string kHead = "{\"sandbay_export\": 1, \"records\": [";

}  // namespace

TEST_CASE("A text other than an export is refused before it fills memory", "[import][G-C11]") {
  constexpr std::uint64_t kMost = std::uint64_t{12} << 20;
  const std::vector<std::pair<std::string, std::string>> texts = {
      {"", "[],"},
      {"", "[["},
      {"{\"a\": \"", "x"},
      {kHead, "[],"},
      {kHead, "["},
      {kHead + "{\"key\": \"k\", \"value\": [", "[],"},
      {kHead + "{\"key\": \"k\", \"value_hex\": \"", "00"},
      {kHead + "]", " "}};
  for (const auto& [head, again] : texts) {
    CAPTURE(head, again);
    std::uint64_t drawn = 0;
    ExportReader reader(endless(head, again, &drawn));
    const auto first = reader.next();
    CHECK_FALSE(first.has_value());
    CHECK(drawn <= kMost);
  }
}

TEST_CASE("An export is read record by record", "[import][G-C11]") {
  std::string head = kHead;
  std::uint64_t drawn = 0;
  const std::string record =
      "{\"key\": \"k\", \"value_hex\": \"" + std::string(std::size_t{64} << 10, '0') + "\"}, ";
  ExportReader reader(endless(head, record, &drawn));
  for (std::uint64_t i = 1; i <= 100; ++i) {
    const auto entry = reader.next();
    REQUIRE(entry.has_value());
    REQUIRE(entry->has_value());
    REQUIRE((*entry)->second.size() == std::size_t{32} << 10);
    REQUIRE(drawn <= i * record.size() + 2 * 65536);
  }
}

// Goal: nothing that recurses ever sees a deep value.
// Method: 200,000 levels at every place of a text; as a value they overflow the stack.
TEST_CASE("A nested export is refused before it becomes values", "[import][X1]") {
  constexpr std::size_t kLevels = 200'000;
  std::string objects;
  for (std::size_t i = 0; i < kLevels; ++i) objects += "{\"a\":";
  const std::string deep = objects + "1" + std::string(kLevels, '}');
  const std::string record = "{\"key\": \"k\", \"value\": ";
  const std::vector<std::string> texts = {std::string(kLevels, '['), kHead + deep,
                                          kHead + record + deep + "}]}",
                                          kHead + "], \"more\": " + deep + "}"};
  for (const std::string& text : texts) {
    std::uint64_t drawn = 0;
    ExportReader reader(endless(text, " ", &drawn));
    const auto first = reader.next();
    REQUIRE_FALSE(first.has_value());
    CHECK_THAT(first.error(), Catch::Contains("it is nested too deeply"));
  }
}

TEST_CASE("An export shows a nested value in hexadecimal", "[import][X1]") {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  const std::string text = export_text({.entries = {{"k", deep}}});
  CHECK(text.find("{\"key\": \"k\", \"value_hex\": \"5b5b") != std::string::npos);
}

}  // namespace sandbay::group
