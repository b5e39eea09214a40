// Drives, sets, NVRAM and faults in the configuration file: what they mean, and for every kind of
// mistake the line that tells it.
#include <fmt/core.h>

#include <catch2/catch.hpp>

#include "group/configuration.h"
#include "model/drive_type.h"

namespace sandbay::group::hardware_configuration_test {
namespace {

constexpr std::string_view kSmallest = R"toml([group]
name = "g"
state = "var/g"
[[portal]]
listen = "127.0.0.1:3260"
)toml";

std::string drives(int count, std::string_view size = "64MiB") {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += fmt::format("[[drive]]\nname = \"d{}\"\nmemory = true\nsize = \"{}\"\n", i, size);
  }
  return text;
}

std::string mistake_in(std::string_view more) {
  const auto result = parse_configuration(fmt::format("{}{}", kSmallest, more), "x.toml");
  if (result) return "no mistake";
  return result.error().front();
}

void check_mistake(const std::string& more, std::string_view part) {
  const std::string mistake = mistake_in(more);
  CAPTURE(mistake, part);
  CHECK(mistake.starts_with("x.toml:"));
  CHECK(mistake.find(part) != std::string::npos);
}

std::string profiled(std::string_view profile, std::string_view more) {
  return fmt::format("[[drive]]\nname = \"d\"\nmemory = true\nprofile = \"{}\"\n{}", profile, more);
}

TEST_CASE("A drive follows its profile", "[configuration][hardware]") {
  const std::string file = "conf/drives/seagate-cheetah-15k5-146.toml";
  const auto read = [&](std::string_view profile, std::string_view more) {
    auto result =
        parse_configuration(fmt::format("{}{}", kSmallest, profiled(profile, more)), "x.toml");
    if (!result) FAIL(result.error().front());
    return result->hardware.drives;
  };
  const auto plain = read(file, "");
  REQUIRE(plain.front().type != nullptr);
  CHECK(plain.front().size_bytes == 286'749'488ULL * 512);
  CHECK(plain.front().rotational);
  CHECK(plain.front().serial == "seagate-cheetah-15k5-146-d");
  const auto many =
      read(file, "count = 3\nbegin = \"1GiB\"\nrotational = false\nblock_size = 4096\n");
  REQUIRE(many.size() == 3);
  CHECK(many[2].type == many[0].type);
  CHECK(many[2].begin_bytes == std::uint64_t{1} << 30);
  CHECK(many[2].size_bytes == 286'749'488ULL * 512 - (std::uint64_t{1} << 30));
  CHECK_FALSE(many[2].rotational);
  CHECK(many[1].serial == "seagate-cheetah-15k5-146-d1");
  const auto named = read(file, "size = \"64MiB\"\nserial = \"S1\"\n");
  CHECK(named.front().size_bytes == std::uint64_t{64} << 20);
  CHECK(named.front().serial == "S1");
  // Some values are others, in this section alone.
  const auto changed = parse_configuration(
      fmt::format("{}{}{}", kSmallest,
                  profiled(file, "change = { outer_rate = \"90MB/s\", write_cache = true }\n"),
                  "[[drive]]\nname = \"e\"\nmemory = true\nprofile = \"" + file + "\"\n"),
      "x.toml");
  if (!changed) FAIL(changed.error().front());
  const auto disk = [&](std::size_t i) {
    return std::get<model::DiskProfile>(changed->hardware.drives[i].type->profile().timing);
  };
  CHECK(disk(0).outer_rate == 90'000'000);
  CHECK(disk(0).write_cache);
  CHECK(disk(1).outer_rate == 125'000'000);
  CHECK_FALSE(disk(1).write_cache);
  // By its name, from a file in conf/arrays.
  const std::string text =
      fmt::format("{}{}", kSmallest, profiled("intel-p3700-800", "serial = \"{}\"\n"));
  const auto flash = parse_configuration(text, "conf/arrays/x.toml");
  REQUIRE(flash.has_value());
  CHECK_FALSE(flash->hardware.drives.front().rotational);
  CHECK(flash->hardware.drives.front().serial == "d");
}

TEST_CASE("A wrong profile or scale is one line", "[configuration][hardware]") {
  const std::string file = "conf/drives/seagate-cheetah-15k5-146.toml";
  check_mistake(profiled("drives/nothing.toml", ""),
                "drive[1].profile: drives/nothing.toml cannot be opened");
  check_mistake(profiled(file, "size = \"137GiB\"\n"),
                "drive[1].size: 137GiB is more than the 143374744KiB that Seagate Cheetah 15K.5");
  check_mistake(profiled(file, "begin = \"100GiB\"\nsize = \"40GiB\"\n"), "from there on");
  check_mistake(profiled(file, "begin = \"200GiB\"\n"), "200GiB is not on the drive");
  check_mistake(profiled(file, "begin = \"511B\"\n"), "write a multiple of 512 bytes");
  check_mistake(drives(1) + profiled("", ""), "drive[2].profile: is empty");
  check_mistake(profiled(file, "begin = \"146815733760B\"\n"),
                "leaves 4KiB; a drive has at least 4MiB");
  check_mistake(profiled(file, "change = { outer_rat = \"1MB/s\" }\n"),
                "drive[1].change.outer_rat: no field of this kind of drive has that name");
  check_mistake(profiled(file, "change = { outer_rate = 5 }\n"),
                "drive[1].change.outer_rate: a string with its unit is accepted");
  check_mistake(profiled(file, "change = { rpm = 1 }\n"), "drive[1].change: rpm");
  check_mistake(drives(1) + "change = { rpm = 1 }\n", "change: means nothing without profile");
  check_mistake(drives(1) + "begin = \"1GiB\"\n", "begin: means nothing without profile");
  const auto mistake = [](std::string_view profile) {
    const auto result = parse_configuration(fmt::format("{}{}", kSmallest, profiled(profile, "")),
                                            "conf/arrays/x.toml");
    return result ? "no mistake" : result.error().front();
  };
  CHECK_THAT(mistake("seagate-cheetah-15k5-147"),
             Catch::Contains("did you mean \"seagate-cheetah-15k5-146\"?"));
  CHECK_THAT(mistake("floppy"), Catch::Contains("write intel-p3700-800, "));
  for (const std::string scale : {"0", "-1", "0.001", "101", "\"1\"", "nan"}) {
    const auto result = parse_configuration(
        fmt::format("[group]\nname = \"g\"\nstate = \"s\"\ntime_scale = {}\n[[portal]]\n"
                    "listen = \"127.0.0.1:3260\"\n",
                    scale),
        "x.toml");
    INFO(scale);
    REQUIRE_FALSE(result.has_value());
    CHECK_THAT(result.error().front(), Catch::StartsWith("x.toml:4: group.time_scale: ") &&
                                           Catch::Contains("write a number from 0.01 to 100"));
  }
}

TEST_CASE("A controller's time is read, and what cannot be is refused",
          "[configuration][hardware]") {
  const auto result = parse_configuration(
      fmt::format("{}{}", kSmallest,
                  "[controller]\nprocessors = 2\nread_request = \"5us\"\nwrite_mib = \"1ms\"\n"
                  "total_rate = \"400MB/s\"\nmirror_latency = \"50us\"\n"
                  "writes_in_transfer = 1\nr2t_time = \"5us\"\n"
                  "r2t_time_per_connection = \"66us\"\n[cache]\ndrive_write = \"1MiB\"\n"),
      "x.toml");
  REQUIRE(result.has_value());
  REQUIRE(result->hardware.controller.has_value());
  const model::ControllerProfile& controller = *result->hardware.controller;
  CHECK(controller.processors == 2);
  CHECK(controller.read_request == std::chrono::microseconds(5));
  CHECK(controller.write_request == Duration{});
  CHECK(controller.write_mib == std::chrono::milliseconds(1));
  CHECK(controller.total_rate == 400'000'000);
  CHECK(controller.mirror_latency == std::chrono::microseconds(50));
  CHECK(result->hardware.pace.at_once == 1);
  CHECK(result->hardware.pace.turnaround_with(2) == std::chrono::microseconds(137));
  CHECK(result->hardware.cache->drive_write_bytes == 1 << 20);
  check_mistake("[controller]\nwrites_in_transfer = 0\n", "writes_in_transfer: 0 is out of range");
  check_mistake("[controller]\nr2t_time = \"1s\"\n", "write a time from 0s to 10ms");
  check_mistake("[[member]]\nname = \"two\"\n[member.controller]\nr2t_time = \"5us\"\n",
                "member[1].controller: has a pace for writes");
  check_mistake("[cache]\ndrive_write = \"1KiB\"\n", "cache.drive_write");
  check_mistake("[controller]\nprocessors = 0\n", "controller.processors: 0 is out of range");
  check_mistake("[controller]\nread_request = \"11s\"\n", "write a time from 0s to 10s");
  check_mistake("[controller]\nread_rate = \"0MB/s\"\n", "controller.read_rate: is 0");
  check_mistake("[controller]\nread_rate = \"1kB/s\"\n",
                "controller.read_rate: is 1000 B/s; it must be 1MB/s");
  check_mistake("[controller]\ncount = 2\n", "controller.count");
  CHECK_FALSE(
      parse_configuration(std::string(kSmallest), "x.toml")->hardware.controller.has_value());
}

TEST_CASE("A port's rate is read, and what cannot be is refused", "[configuration][hardware]") {
  const auto result =
      parse_configuration(fmt::format("{}rate = \"1Gbit/s\"\nlatency = \"30us\"\nmtu = \"9000B\"\n"
                                      "packet_headers = \"52B\"\n",
                                      kSmallest),
                          "x.toml");
  REQUIRE(result.has_value());
  REQUIRE(result->portals.front().port.has_value());
  const model::PortProfile& port = *result->portals.front().port;
  CHECK(port.rate == 125'000'000);
  CHECK(port.latency == std::chrono::microseconds(30));
  CHECK(port.mtu == 9000);
  CHECK(port.frame_overhead == 38);
  CHECK(port.packet_headers == 52);
  CHECK(port.pdu_header == 0);
  check_mistake("rate = \"0MB/s\"\n", "portal[1].rate: is 0");
  check_mistake("rate = \"1kB/s\"\n", "portal[1].rate: is 1000 B/s; it must be 1MB/s");
  check_mistake("latency = \"30us\"\n", "portal[1].latency: means nothing without rate");
  check_mistake("rate = \"1GB/s\"\nmtu = \"100B\"\n", "portal[1].mtu: 100B is out of range");
  check_mistake("rate = \"1GB/s\"\nlatency = \"2s\"\n", "write a time from 0s to 1s");
  const auto scaled = parse_configuration(
      "[group]\nname = \"g\"\nstate = \"s\"\ntime_scale = 100\n[[portal]]\n"
      "listen = \"127.0.0.1:3260\"\nrate = \"10MB/s\"\nlatency = \"20ms\"\n",
      "x.toml");
  REQUIRE_FALSE(scaled.has_value());
  REQUIRE(scaled.error().size() == 2);
  CHECK_THAT(scaled.error()[0],
             Catch::Contains("more than a second with time_scale 100; write at most 10ms"));
  CHECK_THAT(scaled.error()[1],
             Catch::Contains("less than 1MB/s with time_scale 100; write at least"));
}

TEST_CASE("Drives, sets, NVRAM and faults are read", "[configuration][hardware]") {
  const auto result = parse_configuration(fmt::format("{}{}{}", kSmallest, drives(6),
                                                      R"toml([[drive]]
name = "s"
file = "drives/s.img"
size = "64MiB"
block_size = 512
rotational = true
spare = true
enclosure = "shelf"
[[raid]]
name = "r"
level = "raid6"
drives = ["d0", "d1", "d2", "d3"]
spares = ["d4"]
strip = "16KiB"
integrity = true
verify_every = "24h"
rebuild_rate = "10MB/s"
journal = "nvram"
[nvram]
size = "32MiB"
durability = "host"
battery = "low"
power_loss_only_emulated = true
[faults]
enabled = true
seed = 7
rules = ["at=drive:d1 do=fail after=5 op=read"]
[[volume]]
name = "v"
raid = "r"
size = "32MiB"
)toml"),
                                          "x.toml");
  INFO((result ? std::string() : result.error().front()));
  REQUIRE(result.has_value());
  const HardwareConfiguration& hardware = result->hardware;
  REQUIRE(hardware.drives.size() == 7);
  CHECK(hardware.drives[6].spare);
  CHECK(hardware.drives[6].rotational);
  CHECK(hardware.drives[6].path == "drives/s.img");
  REQUIRE(hardware.sets.size() == 1);
  const SetConfiguration& set = hardware.sets[0];
  CHECK(set.level == raid::Level::kRaid6);
  CHECK(set.strip_bytes == 16U << 10);
  CHECK(set.integrity);
  CHECK(set.verify_every == std::chrono::hours(24));
  CHECK(set.rebuild_bytes == 10'000'000U);
  CHECK(set.journal == JournalPlace::kNvram);
  CHECK(new_set_of(set, Uuid{}).journal_bytes == 0U);
  REQUIRE(hardware.nvram.has_value());
  CHECK(hardware.nvram->durability == nvram::Durability::kHost);
  CHECK(hardware.nvram->battery == nvram::BatteryState::kLow);
  CHECK(hardware.nvram->power_loss_only_emulated);
  CHECK(hardware.faults.seed == 7);
  CHECK(result->volumes[0].specification.backing == Backing::kRaid);
  CHECK(result->volumes[0].specification.raid == "r");
}

TEST_CASE("Drives of one kind are described together, and named in a row",
          "[configuration]"
          "[hardware]") {
  const auto result = parse_configuration(fmt::format("{}{}", kSmallest, R"toml([[drive]]
name = "d"
count = 12
file = "drives/{}/{}.img"
size = "64MiB"
serial = "{}-{}"
[[drive]]
name = "x1..x2"
memory = true
size = "64MiB"
[[raid]]
name = "r"
level = "raid5"
drives = ["d0..d8", "x1..x2"]
spares = ["d9..d10", "d11"]
)toml"),
                                          "x.toml");
  INFO((result ? std::string() : result.error().front()));
  REQUIRE(result.has_value());
  const HardwareConfiguration& hardware = result->hardware;
  REQUIRE(hardware.drives.size() == 13);
  CHECK(hardware.drives[11].name == "d11");
  CHECK(hardware.drives[11].path == "drives/d11/d11.img");
  CHECK(hardware.drives[11].serial == "d11-d11");
  CHECK(hardware.drives[11].line == 6);
  const SetConfiguration& set = hardware.sets.at(0);
  REQUIRE(set.drives.size() == 10);
  CHECK(set.drives[0] == "d0");
  CHECK(set.drives[8] == "d8");
  CHECK(set.drives[9] == "x1..x2");  // One that is called so.
  CHECK(set.spares == std::vector<std::string>{"d9", "d10", "d11"});
}

TEST_CASE("Mistakes in rows of drives are told", "[configuration][hardware]") {
  const std::string row = "[[drive]]\nname = \"d\"\nsize = \"64MiB\"\n";
  check_mistake(row + "count = 0\nfile = \"{}\"\n", "drive[1].count: 0 is out of range");
  check_mistake(row + "count = 300\nfile = \"{}\"\n", "from 1 to 256");
  check_mistake(row + "count = 2\nfile = \"d.img\"\n",
                "drive[1].file: is the same for 2 drives; write {} in place of the drive's name");
  check_mistake(row + "count = 2\ndevice = \"/dev/sdb\"\n", "drive[1].device: is the same for 2");
  check_mistake(row + "count = 2\nmemory = true\nserial = \"S\"\n", "drive[1].serial: is the same");
  check_mistake(row + "count = 11\nmemory = true\nserial = \"" + std::string(30, 'S') + "{}\"\n",
                "drive[1].serial: has 33 characters; write at most 32");
  check_mistake(row + "count = 2\nmemory = true\n" + drives(1), "d0 is another drive's");
  const std::string four = row + "count = 4\nmemory = true\n";
  const std::string set = "[[raid]]\nname = \"r\"\nlevel = \"raid0\"\ndrives = ";
  check_mistake(four + set + "[\"d0..d4\"]\n", "there is no drive \"d4\"");
  check_mistake(four + set + "[\"d2..d1\"]\n", "there is no drive \"d2..d1\"");
  check_mistake(four + set + "[\"d00..d03\"]\n", "there is no drive \"d00\"");
  check_mistake(four + set + "[\"d0..e3\"]\n", "there is no drive \"d0..e3\"");
  check_mistake(four + set + "[\"d0..d2\", \"d1\"]\n", "drive d1 is in set \"r\"");
}

TEST_CASE("A drive's mistakes are told", "[configuration][hardware]") {
  check_mistake("[[drive]]\nmemory = true\nsize = \"8MiB\"\n", "drive[1].name");
  check_mistake("[[drive]]\nname = \"a\"\n", "file");
  check_mistake("[[drive]]\nname = \"a\"\nmemory = true\n", "size");
  check_mistake("[[drive]]\nname = \"a\"\nmemory = true\nfile = \"x\"\nsize = \"8MiB\"\n",
                "a drive is one thing");
  check_mistake("[[drive]]\nname = \"a\"\ndevice = \"sdb\"\n", "not an absolute path");
  check_mistake("[[drive]]\nname = \"a\"\nmemory = true\nsize = \"8MiB\"\nblock_size = 520\n",
                "520 is not offered");
  check_mistake(drives(1) + drives(1), "d0 is another drive's");
  check_mistake(
      "[[drive]]\nname = \"a\"\nfile = \"x\"\nsize = \"8MiB\"\n"
      "[[drive]]\nname = \"b\"\nfile = \"./x\"\nsize = \"8MiB\"\n",
      "belongs to drive \"a\"");
  check_mistake("[[drive]]\nname = \"a\"\nfile = \"metadata/x\"\nsize = \"8MiB\"\n",
                "the group's own");
  check_mistake(
      "[[drive]]\nname = \"a\"\nfile = \"x\"\nsize = \"8MiB\"\n"
      "[[volume]]\nname = \"v\"\nfile = \"x\"\n",
      "belongs to drive \"a\"");
}

TEST_CASE("A set's mistakes are told", "[configuration][hardware]") {
  const auto set = [](std::string_view rest, int count = 4, std::string_view size = "64MiB") {
    return drives(count, size) + "[[raid]]\nname = \"r\"\n" + std::string(rest);
  };
  check_mistake(set("drives = [\"d0\"]\n"), "level");
  check_mistake(set("level = \"raid7\"\ndrives = [\"d0\"]\n"), "\"raid7\" is not a level");
  check_mistake(set("level = \"raid5\"\ndrives = [\"d0\", \"d1\", \"d8\"]\n"),
                "there is no drive \"d8\"");
  check_mistake(set("level = \"raid5\"\ndrives = [\"d0\", \"d1\", \"d1\"]\n"),
                "drive d1 is in set \"r\"");
  check_mistake(set("level = \"raid1\"\ndrives = [\"d0\", \"d1\"]\nspares = [\"d0\"]\n"),
                "drive d0 is in set \"r\"");
  check_mistake(set("level = \"raid5\"\ndrives = [\"d0\", \"d1\"]\n"), "raid[1]");
  check_mistake(set("level = \"raid50\"\ndrives = [\"d0\", \"d1\", \"d2\", \"d3\"]\n"), "raid[1]");
  check_mistake(set("level = \"raid5\"\ndrives = [\"d0\", \"d1\", \"d2\"]\n", 3, "8MiB"),
                "drive d0");
  check_mistake(set("level = \"raid5\"\ndrives = [\"d0\", \"d1\", \"d2\"]\nstrip = \"48KiB\"\n"),
                "not a power of two");
  check_mistake(set("level = \"raid5\"\ndrives = [\"d0\", \"d1\", \"d2\"]\njournal = \"nvram\"\n"),
                "there is no NVRAM");
  check_mistake(set("level = \"raid5\"\ndrives = [\"d0\", \"d1\", \"d2\"]\njournal = \"disk\"\n"),
                "of a journal");
  check_mistake(set("level = \"raid5\"\ndrives = [\"d0\", \"d1\", \"d2\"]\nspare = [\"d3\"]\n"),
                "spares");
  check_mistake(set("level = \"raid0\"\ndrives = []\n"), "at least one drive");
  // At the line of the key; and what is suggested is free.
  const auto before = std::ranges::count(std::string_view(kSmallest), '\n');
  check_mistake(
      "[[raid]]\nname = \"r\"\nlevel = \"raid5\"\ngroups = 2\n"
      "drives = [\"d0\", \"d1\", \"d2\"]\n" +
          drives(3),
      fmt::format("x.toml:{}: raid[1]", before + 4));
  check_mistake(
      "[[raid]]\nname = \"r\"\nlevel = \"raid5\"\n"
      "drives = [\"d0\", \"d1\", \"d3\"]\n" +
          drives(3),
      fmt::format("x.toml:{}: raid[1].drives: there is no drive \"d3\"; write \"d2\"", before + 4));
}

TEST_CASE("Mistakes of NVRAM, faults and volumes on sets are told", "[configuration][hardware]") {
  const std::string mirror =
      drives(2) + "[[raid]]\nname = \"r\"\nlevel = \"raid1\"\ndrives = [\"d0\", \"d1\"]\n";
  check_mistake("[nvram]\ndurability = \"always\"\n", "\"always\" is not offered");
  check_mistake("[nvram]\nbattery = \"empty\"\n", "unknown battery state");
  check_mistake("[faults]\nrules = [\"at=drive:d0 do=fail\"]\n", "enabled = true");
  check_mistake("[faults]\nenabled = true\nrules = [\"at=drive:d0 do=explode\"]\n", "explode");
  check_mistake("[faults]\nenabled = true\nrules = [\"at=drive:d9x do=fail\"]\n",
                "there is no drive \"d9x\"");
  check_mistake(
      "[faults]\nenabled = true\nrules = [\"at=meta event=rebalance.move do=rebalance.kill\"]\n",
      "event=rebalance.move: there is no such event; did you mean rebalance.moved?");
  check_mistake("[faults]\nenabled = true\nrules = [\"at=enclosure:e9 do=shelf.loss\"]\n",
                "no drive is in enclosure \"e9\"");
  check_mistake(mirror + "[[volume]]\nname = \"v\"\nraid = \"q\"\nsize = \"8MiB\"\n",
                "there is no set \"q\"");
  check_mistake(mirror + "[[volume]]\nname = \"v\"\nraid = \"r\"\n", "size");
  check_mistake(mirror + "[[volume]]\nname = \"v\"\nraid = \"r\"\nsize = \"1GiB\"\n",
                "does not fit");
  check_mistake(mirror +
                    "[[volume]]\nname = \"v\"\nraid = \"r\"\nsize = \"8MiB\"\nblock_size = "
                    "4096\n",
                "is not that of set");
  check_mistake(mirror + "[[volume]]\nname = \"v\"\nraid = \"r\"\nmemory = true\nsize = \"8MiB\"\n",
                "has one place");
}

}  // namespace
}  // namespace sandbay::group::hardware_configuration_test
