// Presets become rules that the parser takes.
#include "tools/fault_presets.h"

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>

#include "fault/rule.h"

namespace sandbay::cli {
namespace {

using Rules = std::vector<std::string>;

void check_rules(const Rules& rules, const Rules& expected) {
  CHECK(rules == expected);
  for (const std::string& each : rules) {
    INFO(each);
    CHECK(fault::parse_rule(each).has_value());
  }
}

TEST_CASE("Presets of faults are rules", "[tools]") {
  const std::string everything = "op=read,write,flush,unmap,write_zeroes";
  const std::string fails = " do=check key=4 code=44/00";
  check_rules(flaky_rules("v", {}),
              {"id=flaky.v at=lun:v " + everything + " up=10s down=2s" + fails});
  check_rules(flaky_rules("v", {.up = "3s", .down = "1s", .drop_writes = true}),
              {"id=flaky.v at=lun:v op=write,unmap,write_zeroes up=3s down=1s do=lost"});
  check_rules(flaky_rules("v", {.error_writes = true}),
              {"id=flaky.v at=lun:v op=write,flush,unmap,write_zeroes up=10s down=2s" + fails});
  check_rules(delay_rules("v", {.read = "100ms", .flush = "1s"}),
              {"id=delay.v.read at=lun:v op=read do=slow latency=100ms",
               "id=delay.v.flush at=lun:v op=flush do=slow latency=1s"});
  check_rules(error_rules("v"), {"id=error.v at=lun:v " + everything + fails});
  check_rules(dust_rules("v", "7", "a1"),
              {"id=dust.v.7 at=lun:v op=read lba=7+1 state=!dust.a1.7 do=check key=3 code=11/00",
               "id=dust.v.7.written at=lun:v op=write,write_zeroes,unmap lba=7+1 state=!dust.a1.7 "
               "do=nothing set=dust.a1.7"});
  CHECK(dust_rules("v", "4096-4100,5000", "a1").size() == 12);
  CHECK(dust_rules("v", "5,4-6,5", "a1") == dust_rules("v", "4-6", "a1"));
  // Ids have at most 64 letters.
  const std::string longest(63, 'v');
  check_rules(dust_rules(longest, "9999999999999999999", "0123456789abcdef"),
              dust_rules(longest, "9999999999999999999", "0123456789abcdef"));
  CHECK(error_rules(longest) != error_rules(longest.substr(1) + "w"));
}

TEST_CASE("Presets that make no sense are refused", "[tools]") {
  CHECK_THROWS_AS(delay_rules("v", {}), CLI::RequiredError);
  for (const char* const blocks : {"", "x", "5-4", "1-", "-1", "1,,2", "1-99999999999999999999",
                                   "0-1024", "18446744073709551615-18446744073709551616"}) {
    INFO(blocks);
    CHECK_THROWS_AS(dust_rules("v", blocks, "a1"), CLI::ValidationError);
  }
  CHECK(dust_rules("v", "0-1023", "a1").size() == 2048);
  CHECK(dust_rules("v", "18446744073709551615", "a1").size() == 2);
}

}  // namespace
}  // namespace sandbay::cli
