// Sizes, rates and times: every unit, every kind of mistake, and that what is written reads back.
#include "group/units.h"

#include <rapidcheck.h>

#include <catch2/catch.hpp>
#include <limits>

namespace sandbay::group {
namespace {

using std::chrono::nanoseconds;

TEST_CASE("Sizes are read exactly", "[units]") {
  struct Case {
    const char* text;
    std::uint64_t bytes;
  };
  const Case cases[] = {
      {"0B", 0},
      {"1B", 1},
      {"512MiB", 536'870'912},
      {"100GiB", 107'374'182'400},
      {"1TB", 1'000'000'000'000},
      {"1kB", 1000},
      {"2MB", 2'000'000},
      {"3GB", 3'000'000'000},
      {"4PB", 4'000'000'000'000'000},
      {"1KiB", 1024},
      {"1TiB", 1'099'511'627'776},
      {"1PiB", 1'125'899'906'842'624},
      {"1.5GiB", 1'610'612'736},
      {"0.5KiB", 512},
      {"1.000000001GB", 1'000'000'001},
      {"18446744073709551615B", std::numeric_limits<std::uint64_t>::max()},
  };
  for (const Case& c : cases) {
    CAPTURE(c.text);
    const auto bytes = parse_size(c.text);
    REQUIRE(bytes.has_value());
    CHECK(*bytes == c.bytes);
  }
}

TEST_CASE("What is no size is refused with what would be accepted", "[units]") {
  struct Case {
    const char* text;
    const char* part;  // Of the message.
  };
  const Case cases[] = {
      {"", "is not a size"},
      {"GiB", "is not a size"},
      {"-1GiB", "is not a size"},
      {".5GiB", "is not a size"},
      {"1.GiB", "is not a size"},
      {"100", "has no unit; write 100B for bytes"},
      {"100G", "unknown unit \"G\""},
      {"100 GiB", "unknown unit \" GiB\""},
      {"100gib", "unknown unit \"gib\""},
      {"1.5B", "is not a whole number of bytes"},
      {"1.0001KiB", "is not a whole number of bytes"},
      {"16384PiB", "is not a whole number of bytes below 16EiB"},
      {"99999999999999999999B", "is not a size"},
      {"1.0000000001GB", "is not a size"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.text);
    const auto bytes = parse_size(c.text);
    REQUIRE_FALSE(bytes.has_value());
    CHECK_THAT(bytes.error(), Catch::Contains(c.part));
  }
}

TEST_CASE("Sizes are written short and exactly", "[units]") {
  CHECK(format_size(0) == "0B");
  CHECK(format_size(1) == "1B");
  CHECK(format_size(1024) == "1KiB");
  CHECK(format_size(1025) == "1025B");
  CHECK(format_size(1'000'000'000'000) == "1TB");
  CHECK(format_size(std::uint64_t{1} << 30) == "1GiB");
  CHECK(format_size((std::uint64_t{1} << 30) + 512) == "1073742336B");
}

TEST_CASE("Every size that is written reads back", "[units]") {
  REQUIRE(rc::check("format_size and parse_size agree", [](std::uint64_t seed, std::uint8_t shift) {
    const std::uint64_t bytes = seed << (shift % 64);
    const auto back = parse_size(format_size(bytes));
    RC_ASSERT(back.has_value());
    RC_ASSERT(*back == bytes);
  }));
}

TEST_CASE("Sizes for people are rounded to three digits", "[units]") {
  CHECK(format_size_rounded(0) == "0 B");
  CHECK(format_size_rounded(1023) == "1023 B");
  CHECK(format_size_rounded(1024) == "1.00 KiB");
  CHECK(format_size_rounded(std::uint64_t{1} << 30) == "1.00 GiB");
  CHECK(format_size_rounded(1'000'000) == "977 KiB");
  CHECK(format_size_rounded(std::uint64_t{12'884'901'888}) == "12.0 GiB");
}

TEST_CASE("Rates are bits or bytes a second", "[units]") {
  CHECK(parse_rate("1Gbit/s").value() == 125'000'000);
  CHECK(parse_rate("40MB/s").value() == 40'000'000);
  CHECK(parse_rate("100MiB/s").value() == 104'857'600);
  CHECK(parse_rate("8bit/s").value() == 1);
  CHECK(parse_rate("1.5Mbit/s").value() == 187'500);
  for (const char* text : {"", "1Gbit", "1GB", "1bit/s", "1.5B/s", "100"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_rate(text).has_value());
  }
  CHECK(format_rate(125'000'000) == "125MB/s");
  CHECK(format_rate(40'000'000) == "40MB/s");
  CHECK(format_rate(125) == "125B/s");
  REQUIRE(rc::check("format_rate and parse_rate agree", [](std::uint32_t rate, std::uint8_t shift) {
    const std::uint64_t bytes = std::uint64_t{rate} << (shift % 29);
    RC_ASSERT(parse_rate(format_rate(bytes)).value() == bytes);
  }));
}

TEST_CASE("Times have a unit", "[units]") {
  CHECK(parse_duration("5ms").value() == std::chrono::milliseconds(5));
  CHECK(parse_duration("2s").value() == std::chrono::seconds(2));
  CHECK(parse_duration("1.5us").value() == nanoseconds(1500));
  CHECK(parse_duration("90min").value() == std::chrono::minutes(90));
  CHECK(parse_duration("1d").value() == std::chrono::hours(24));
  CHECK(parse_duration("0s").value() == nanoseconds(0));
  for (const char* text : {"", "5", "5 ms", "-5ms", "1.5ns", "300000d", "5sec"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_duration(text).has_value());
  }
  CHECK(format_duration(std::chrono::seconds(15)) == "15s");
  CHECK(format_duration(std::chrono::milliseconds(1500)) == "1500ms");
  CHECK(format_duration(nanoseconds(0)) == "0s");
  REQUIRE(rc::check("format_duration and parse_duration agree", [](std::uint32_t count) {
    const nanoseconds time(std::int64_t{count} * 1'000'003);
    RC_ASSERT(parse_duration(format_duration(time)).value() == time);
  }));
}

}  // namespace
}  // namespace sandbay::group
