// As whose array a group presents itself: patterns and texts, what a file can say wrong, and what
// volumes, clones and snapshots of a running group are called.
#include "group/identity_configuration.h"

#include <fmt/core.h>

#include <catch2/catch.hpp>

#include "group/configuration.h"
#include "runtime/known.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::identity_test {
namespace {

constexpr std::string_view kSmallest = R"toml([group]
name = "g"
state = "var/g"
[[portal]]
listen = "127.0.0.1:3260"
)toml";

constexpr std::string_view kEqualLogic = R"toml([identity]
vendor = "EQLOGIC"
product = "100E-00"
revision = "3.0"
naa = "6090a0*8************************"
serial = "{naa}"
target = "iqn.2001-05.com.equallogic:0-8a0906-{swapped:0+9}-{swapped:16+16}-{volume}"
)toml";

ConfigurationResult parse(std::string_view more) {
  return parse_configuration(fmt::format("{}{}", kSmallest, more), "x.toml");
}

void check_mistake(std::string_view more, std::string_view line) {
  const auto result = parse(more);
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().front() == line);
}

Uuid some_uuid() {
  return {0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0x4C, 0xDE,
          0x8F, 0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC};
}

// The pair of name and identifier that BOSH's tests of SoftLayer volumes have.
TEST_CASE("An EqualLogic target's name has the digits of its identifier", "[identity]") {
  const auto result = parse(kEqualLogic);
  REQUIRE(result.has_value());
  const NaaIdentifier naa = known(parse_naa("6090a0c8600058baa8283574c302c0fc"));
  CHECK(result->identity.target_for("My_Vol", naa) ==
        "iqn.2001-05.com.equallogic:0-8a0906-ba580060c-fcc002c3743528a8-my-vol");
}

TEST_CASE("Texts are filled in", "[identity]") {
  const NaaIdentifier naa = known(parse_naa("60060e800571c900000071c9000005f7"));
  CHECK(fill_in("", "v", naa).value() == "");
  CHECK(fill_in("a{volume}b", "v", naa).value() == "avb");
  CHECK(fill_in("{naa}", "v", naa).value() == "60060e800571c900000071c9000005f7");
  CHECK(fill_in("{naa:28+4}-{naa:0+1}", "v", naa).value() == "05f7-6");
  CHECK(fill_in("{swapped}", "v", naa).value() == "00c97105800e0660f7050000c9710000");
  for (const std::string_view wrong :
       {"{", "}", "a}b{", "{}", "{name}", "{naa:}", "{naa:0}", "{naa:0+0}", "{naa:0+33}",
        "{naa:32+1}", "{naa:-1+2}", "{naa:1+2x}", "{volume:0+1}", "{naa:99999999999999999999+1}"}) {
    CAPTURE(wrong);
    CHECK_FALSE(fill_in(wrong, "v", naa).has_value());
  }
  CHECK(fill_in("x{nam}y", "v", naa).error() ==
        "\"{nam}\" stands for nothing; write {volume}, {naa}, {swapped} or digits of one such as "
        "{naa:8+4}");
}

TEST_CASE("Digits that are drawn come from the volume's UUID", "[identity]") {
  IdentityConfiguration identity;
  CHECK(identity.naa_for(some_uuid()) == naa_of(some_uuid()));
  identity.naa = "60060e800571c900000071c9********";
  CHECK(format_naa(identity.naa_for(some_uuid())) == "naa.60060e800571c900000071c9cdab8967");
  identity.naa = "6" + std::string(31, '*');
  CHECK(format_naa(identity.naa_for(some_uuid())).substr(4) == "6cdab8967452301f8edc4ba987654321");
}

TEST_CASE("Without a section all is as it was", "[identity]") {
  const auto result = parse("[[volume]]\nname = \"a\"\nsize = \"1GiB\"\n");
  REQUIRE(result.has_value());
  const VolumeSpecification& s = result->volumes.at(0).specification;
  CHECK(s.vendor.empty());
  CHECK(result->identity.vendor == "SANDBAY");
  CHECK(result->identity.product == "VOLUME");
  CHECK(result->identity.revision == "0001");
  CHECK(s.target == "iqn.2026-11.org.sandbay:a");
  CHECK_FALSE(s.naa.has_value());
  CHECK(result->identity.keys.empty());
  CHECK(result->identity.personality == nullptr);
}

TEST_CASE("A declared volume has the group's identity where it has none", "[identity]") {
  const auto result = parse(fmt::format("{}{}", kEqualLogic, R"toml([identity.keys]
InitialR2T = true
MaxBurstLength = 65536
[[volume]]
name = "a"
size = "1GiB"
naa = "6090a0c8600058baa8283574c302c0fc"
product = "OTHER"
[[volume]]
name = "b"
size = "1GiB"
target = "iqn.2026-11.org.sandbay:b"
)toml"));
  INFO((result ? std::string() : result.error().front()));
  REQUIRE(result.has_value());
  const VolumeSpecification& a = result->volumes.at(0).specification;
  CHECK(a.vendor.empty());  // As are those of volumes that are made: the group's counts.
  CHECK(a.product == "OTHER");
  CHECK(a.revision.empty());
  CHECK(a.target == "iqn.2001-05.com.equallogic:0-8a0906-ba580060c-fcc002c3743528a8-a");
  CHECK(result->volumes.at(1).specification.target == "iqn.2026-11.org.sandbay:b");
  CHECK(result->identity.keys ==
        std::map<std::string, std::string>{{"InitialR2T", "Yes"}, {"MaxBurstLength", "65536"}});
}

TEST_CASE("An identity's mistakes are told", "[identity]") {
  const std::string section = "[identity]\n";
  check_mistake(section + "vendor = \"TOO LONG A NAME\"\n",
                "x.toml:7: identity.vendor: vendor \"TOO LONG A NAME\" does not fit; write at most "
                "8 printable ASCII characters");
  check_mistake(section + "product = \"\"\n",
                "x.toml:7: identity.product: is empty; write something, or leave it out");
  check_mistake(section + "naa = \"6090A0\"\n",
                "x.toml:7: identity.naa: \"6090A0\" is not a pattern of NAA identifiers; write 32 "
                "hexadecimal digits in lower case, the first of them 6, and * for those that are "
                "drawn for each volume");
  check_mistake(section + "naa = \"60060e800571c900000071c90000****\"\n",
                "x.toml:7: identity.naa: \"60060e800571c900000071c90000****\" has 4 digits that "
                "are drawn, and two volumes might be taken for one; write at least 8 times *");
  check_mistake(section + "serial = \"{volume\"\n",
                "x.toml:7: identity.serial: \"{volume\" stands for nothing; write {volume}, {naa}, "
                "{swapped} or digits of one such as {naa:8+4}");
  check_mistake(section + "serial = \"X{naa}\"\n",
                "x.toml:7: identity.serial: has 33 characters; write 1 to 32");
  check_mistake(section + "serial = \"X1\"\n",
                "x.toml:7: identity.serial: would be the same for every volume; write digits of "
                "the NAA identifier into it, such as {naa}");
  check_mistake(section + "serial = \"{volume}\"\n",
                "x.toml:7: identity.serial: would be the same for every volume; write digits of "
                "the NAA identifier into it, such as {naa}");
  check_mistake(section + "naa = \"6000d310000c1000****************\"\nserial = \"{naa:0+16}\"\n",
                "x.toml:8: identity.serial: would be the same for every volume; write digits of "
                "the NAA identifier into it, such as {naa}");
  check_mistake(section + "naa = \"6000d310000c1000****************\"\nserial = \"{naa:9+14}\"\n",
                "x.toml:8: identity.serial: has 7 digits that are drawn, and two volumes might be "
                "taken for one; write at least 8 of those that are * in naa, or {naa}");
  check_mistake(section + "target = \"disk-{volume}\"\n",
                "x.toml:7: identity.target: \"disk-a\" is not an iSCSI name; write one such as "
                "iqn.2026-11.org.sandbay:disk1, or eui. or naa. and hexadecimal digits");
  check_mistake(
      section + "target = \"iqn.2026-11.o:{x}\"\n" + "[[volume]]\nname = \"a\"\nsize = \"1GiB\"\n",
      "x.toml:7: identity.target: \"{x}\" stands for nothing; write {volume}, {naa}, "
      "{swapped} or digits of one such as {naa:8+4}");
  check_mistake(section + "pages = \"alua\"\narray = \"6" + std::string(31, '0') + "\"\n",
                "x.toml:7: identity.pages: \"alua\" is none; write \"rdac\", or leave it out");
  check_mistake(section + "pages = \"rdac\"\n",
                "x.toml:6: identity.array: is missing; write the array's own NAA identifier, 32 "
                "hexadecimal digits");
  check_mistake(section + "array = \"6" + std::string(31, '0') + "\"\n",
                "x.toml:7: identity.array: means nothing without pages; write both or none");
  check_mistake(
      section + "[identity.keys]\nInitialR2t = true\n",
      "x.toml:8: identity.keys.InitialR2t: is not a key of RFC 7143; write InitialR2T, or "
      "a private one that begins with X-");
  check_mistake(section + "vender = \"A\"\n",
                "x.toml:7: identity.vender: is not a key here; did you mean vendor?");
  check_mistake(fmt::format("{}[[volume]]\nname = \"a\"\nsize = \"1GiB\"\n", kEqualLogic),
                "x.toml:13: volume[1].naa: is missing; identity.target has digits of it, so write "
                "32 hexadecimal digits, or a target");
}

TEST_CASE("Login keys beyond what the target does are refused", "[identity]") {
  const std::string section = "[identity.keys]\n";
  check_mistake(section + "ErrorRecoveryLevel = 2\n",
                "x.toml:7: identity.keys.ErrorRecoveryLevel: \"2\" is more than this target does; "
                "write 0, or leave it out");
  check_mistake(section + "iSCSIProtocolLevel = 2\n",
                "x.toml:7: identity.keys.iSCSIProtocolLevel: \"2\" is more than this target does; "
                "write 1, or leave it out");
  check_mistake(section + "TaskReporting = \"FastAbort,RFC3720\"\n",
                "x.toml:7: identity.keys.TaskReporting: \"FastAbort,RFC3720\" is more than this "
                "target does; write RFC3720, or leave it out");
  check_mistake("[[target]]\nname = \"iqn.2026-11.o:t\"\n[target.keys]\nErrorRecoveryLevel = 1\n",
                "x.toml:9: target[1].keys.ErrorRecoveryLevel: \"1\" is more than this target does; "
                "write 0, or leave it out");
  check_mistake(
      section + "FirstBurstLength = 1048576\nMaxBurstLength = 8192\n",
      "x.toml:6: identity.keys.FirstBurstLength: 1048576 is more than MaxBurstLength has; "
      "write at most 8192");
  for (const std::string_view right :
       {"ErrorRecoveryLevel = 0", "ErrorRecoveryLevel = \"Reject\"", "iSCSIProtocolLevel = 0",
        "iSCSIProtocolLevel = 1", "TaskReporting = \"RFC3720\"",
        "TaskReporting = \"NotUnderstood\"", "FirstBurstLength = 8192\nMaxBurstLength = 8192",
        "FirstBurstLength = \"Irrelevant\"\nMaxBurstLength = 512", "MaxBurstLength = 512"}) {
    CAPTURE(right);
    CHECK(parse(fmt::format("{}{}\n", section, right)).has_value());
  }
}

std::string volume_section(std::string_view name, std::string_view more) {
  return fmt::format("[[volume]]\nname = \"{}\"\nsize = \"4MiB\"\n{}\n", name, more);
}

TEST_CASE("Two volumes of a file may not be taken for one", "[identity]") {
  const std::string naa = "naa = \"6090a018000000000000000000000001\"";
  check_mistake(volume_section("v", naa) + volume_section("w", naa),
                "x.toml:10: volume \"w\": naa 6090a018000000000000000000000001 is that of volume "
                "\"v\" too, and hosts would take both for one disk; give each its own");
  const std::string own = "serial = \"S 1\"";
  const std::string one_disk =
      "x.toml:10: volume \"w\": serial \"S 1\" is that of volume \"v\" too, and hosts would "
      "take both for one disk; give each its own";
  check_mistake(volume_section("v", own) + volume_section("w", own), one_disk);
  check_mistake(volume_section("v", "serial = \"S 1 \"") +
                    volume_section("w", own + "\nproduct = \"VOLUME  \""),
                one_disk);
  const std::string next = "naa = \"6090a018000000000000000000000002\"";
  // Of another product the same number says nothing.
  CHECK(parse(volume_section("v", own + "\n" + naa) +
              volume_section("w", own + "\nproduct = \"OTHER\"\n" + next))
            .has_value());
  const std::string drawn =
      "[identity]\nnaa = \"6090a018************************\"\nserial = \"{naa:8+8}\"\n";
  check_mistake(drawn + volume_section("v", naa) + volume_section("w", next),
                "x.toml:13: volume \"w\": serial \"00000000\" is that of volume \"v\" too, and "
                "hosts would take both for one disk; give each its own");
}

const std::string kPool = R"toml([nvram]
size = "24MiB"
[[drive]]
name = "d"
count = 2
memory = true
size = "64MiB"
[[raid]]
name = "r"
level = "raid1"
drives = ["d0..d1"]
[[pool]]
name = "p"
page = "1MiB"
)toml";

CreateVolumeRequest request_for(std::string name) {
  CreateVolumeRequest request;
  request.specification.name = std::move(name);
  request.specification.size_bytes = std::uint64_t{4} << 20;
  request.open.backing = true;
  request.open.thin = true;
  return request;
}

void run(const std::filesystem::path& state, const std::string& sections, const GroupTest& test) {
  const std::string error = run_group(state, sections, 1, test);
  if (!error.empty()) FAIL(error);
}

std::string digits(const VolumeInfo& volume) {
  return volume.specification.naa ? format_naa(*volume.specification.naa).substr(4) : "";
}

Task<void> make_and_clone(Group& group) {
  const auto made = co_await group.create_volume(request_for("a"));
  REQUIRE(made.has_value());
  const VolumeSpecification& s = made->volume.specification;
  const std::string naa = digits(made->volume);
  CHECK(s.vendor == "EQLOGIC");
  CHECK(naa.starts_with("6090a0"));
  CHECK(naa[7] == '8');
  CHECK(s.serial == naa);
  CHECK(s.target.starts_with("iqn.2001-05.com.equallogic:0-8a0906-"));
  CHECK(s.target.substr(36 + 9 + 1 + 12, 2) == naa.substr(18, 2));
  CHECK(s.target.ends_with("-a"));
  // Who asks again does not know what was drawn.
  const auto again = co_await group.create_volume(request_for("a"));
  REQUIRE(again.has_value());
  CHECK_FALSE(again->created);
  auto other_vendor = request_for("a");
  other_vendor.specification.vendor = "ACME";
  const auto conflict = co_await group.create_volume(other_vendor);
  REQUIRE_FALSE(conflict.has_value());
  CHECK_THAT(conflict.error().message, Catch::Contains("with vendor EQLOGIC, not ACME"));
  const auto taken = co_await group.create_snapshots({.volumes = {"a"}, .name = "s"});
  REQUIRE(taken.has_value());
  const auto online = co_await group.online_snapshot({"a", "s"}, false);
  REQUIRE(online.has_value());
  CHECK(online->target.starts_with("iqn.2001-05.com.equallogic:0-8a0906-"));
  CHECK(online->target.ends_with("-a-s"));
  const auto clone = co_await group.clone_snapshot({"a", "s"}, "b", false);
  REQUIRE(clone.has_value());
  CHECK(clone->volume.specification.vendor == "EQLOGIC");
  CHECK(digits(clone->volume).starts_with("6090a0"));
  CHECK(digits(clone->volume) != naa);
  CHECK(clone->volume.specification.serial == digits(clone->volume));
  CHECK(clone->volume.specification.target.ends_with("-b"));
  const auto targets_now = co_await group.list_targets();
  const auto& targets = *targets_now;
  for (const TargetInfo& target : targets) {
    CHECK(target.keys == std::map<std::string, std::string>{{"ImmediateData", "No"}});
  }
  CHECK(targets.size() == 3);
}

Task<void> clone_presented(Group& group) {
  auto request = request_for("a");
  VolumeSpecification& s = request.specification;
  s.eui64 = parse_eui64("eui.0025ba0000000001");
  s.removable = true;
  s.rotation = 7200;
  s.unmap_limit_bytes = 1 << 20;
  s.write_same_limit_bytes = 2 << 20;
  const auto made = co_await group.create_volume(request);
  REQUIRE(made.has_value());
  const auto again = co_await group.create_volume(request);
  REQUIRE(again.has_value());
  CHECK_FALSE(again->created);
  request.specification.rotation = 1;
  const auto other = co_await group.create_volume(request);
  REQUIRE_FALSE(other.has_value());
  CHECK_THAT(other.error().message, Catch::Contains("with rotation 7200, not 1"));
  const auto taken = co_await group.create_snapshots({.volumes = {"a"}, .name = "s"});
  REQUIRE(taken.has_value());
  for (const char* source : {"", "s"}) {
    const std::string name = std::string("clone") + source;
    const auto clone = co_await group.clone_snapshot({"a", source}, name, false);
    REQUIRE(clone.has_value());
    const VolumeSpecification& shown = clone->volume.specification;
    CHECK_FALSE(shown.eui64.has_value());
    CHECK(shown.removable);
    CHECK(shown.rotation == 7200);
    CHECK(shown.unmap_limit_bytes == 1 << 20);
    CHECK(shown.write_same_limit_bytes == 2 << 20);
  }
}

TEST_CASE("A clone presents itself as its volume does, without its EUI-64 designator",
          "[group][identity]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch.file("state"), kPool, clone_presented);
}

// The daemon knows the pool's block size only once the pool is open. A record with such a limit
// could not be read at the next start.
TEST_CASE("A limit that does not fit the blocks of its pool is refused at the start",
          "[group][identity]") {
  const sandbay::testing::ScratchDirectory scratch;
  std::string pool = kPool;
  const std::string memory = "memory = true";
  pool.replace(pool.find(memory), memory.size(), "file = \"{}.img\"\nblock_size = 4096");
  const auto error_with = [&](const std::string& limit, const GroupTest& test) {
    const std::string volume = "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\nthin = true\n";
    return run_group(scratch.file("state"), pool + volume + limit, 1, test);
  };
  const GroupTest is_absent = [](Group& group) -> Task<void> {
    const auto shown = co_await group.show_volume("v");
    CHECK((!shown.has_value() || !shown->reason.empty()));
  };
  const GroupTest is_served = [](Group& group) -> Task<void> {
    const auto shown = co_await group.show_volume("v");
    REQUIRE(shown.has_value());
    CHECK(shown->reason.empty());
    CHECK(shown->specification.block_bytes == 4096);
    CHECK(shown->specification.unmap_limit_bytes == 8192);
  };
  CHECK(error_with("unmap_limit = \"512B\"\n", is_absent).empty());
  CHECK(error_with("unmap_limit = \"8KiB\"\n", is_served).empty());
  CHECK_THAT(error_with("unmap_limit = \"512B\"\n", is_served),
             Catch::Contains("unmap_limit 512B does not fit; write a multiple of 4096 bytes"));
  CHECK(error_with("unmap_limit = \"8KiB\"\n", is_served).empty());
}

TEST_CASE("Volumes, clones and snapshots that are made have the group's identity",
          "[group][identity]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch.file("state"),
      fmt::format("{}{}{}", kEqualLogic, "[identity.keys]\nImmediateData = false\n", kPool),
      make_and_clone);
}

// With whose vendor name it is shown, its identifier and its serial number.
std::string shown_of(const VolumeInfo& volume) {
  return fmt::format("{} {} {}", volume.specification.vendor, digits(volume),
                     volume.specification.serial);
}

TEST_CASE("Volumes keep their identifiers when the section goes, and not the vendor's name",
          "[group][identity]") {
  const sandbay::testing::ScratchDirectory scratch;
  static std::string first;
  static std::string second;
  const std::string volume = "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n";
  const std::string own = volume + "naa = \"6" + std::string(31, '7') + "\"\nserial = \"OWN\"\n";
  const std::string section =
      "[identity]\nvendor = \"ACME\"\nserial = \"S{naa:24+8}\"\nnaa = \"6000d310000c1000" +
      std::string(16, '*') + "\"\n";
  run(scratch.file("state"), section + volume, [](Group& group) -> Task<void> {
    auto request = request_for("w");
    request.specification.product = "OTHER";
    const auto made = co_await group.create_volume(request);
    REQUIRE(made.has_value());
    second = shown_of(made->volume).substr(5);
    const auto shown = co_await group.show_volume("v");
    REQUIRE(shown.has_value());
    first = shown_of(*shown).substr(5);
    CHECK(shown_of(*shown) ==
          fmt::format("ACME {} S{}", digits(*shown), digits(*shown).substr(24)));
    CHECK(first.starts_with("6000d310000c1000"));
  });
  run(scratch.file("state"), volume, [](Group& group) -> Task<void> {
    const auto shown = co_await group.show_volume("v");
    REQUIRE(shown.has_value());
    CHECK(shown_of(*shown) == "SANDBAY " + first);
    const auto made = co_await group.show_volume("w");
    REQUIRE(made.has_value());
    CHECK(shown_of(*made) == "SANDBAY " + second);
    CHECK(made->specification.product == "OTHER");
    auto request = request_for("w");
    for (const std::string_view vendor : {"", "SANDBAY"}) {
      request.specification.vendor = vendor;
      const auto again = co_await group.create_volume(request);
      REQUIRE(again.has_value());
      CHECK_FALSE(again->created);
    }
  });
  run(scratch.file("state"), own, [](Group& group) -> Task<void> {
    const auto shown = co_await group.show_volume("v");
    REQUIRE(shown.has_value());
    CHECK(shown_of(*shown) == "SANDBAY 6" + std::string(31, '7') + " OWN");
  });
}

const std::string kLeastDrawn = "[identity]\nnaa = \"60060e800571c900000071c9********\"\n";

TEST_CASE("An identifier that a volume has is not drawn again", "[group][identity]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch.file("state"), kLeastDrawn, [](Group& group) -> Task<void> {
    IdentityConfiguration identity;
    identity.naa = "60060e800571c900000071c9********";
    Random ahead(2);
    auto request = request_for("a");
    request.specification.naa = identity.naa_for(make_uuid(ahead));
    const auto first = co_await group.create_volume(request);
    REQUIRE(first.has_value());
    Executor::current().random() = Random(2);
    const auto second = co_await group.create_volume(request_for("b"));
    REQUIRE(second.has_value());
    CHECK(second->volume.specification.naa == identity.naa_for(make_uuid(ahead)));
  });
}

// The refusal to make a volume with what "v", or its snapshot, has.
Task<std::string> refusal_of(Group& group, CreateVolumeRequest request) {
  const auto made = co_await group.create_volume(std::move(request));
  if (made.has_value()) co_return "made";
  CHECK(made.error().code == Refusal::Code::kConflict);
  co_return made.error().message;
}

Task<void> make_alike(Group& group) {
  auto request = request_for("v");
  request.specification.eui64 = parse_eui64("0025ba0000000001");
  const auto first = co_await group.create_volume(request);
  REQUIRE(first.has_value());
  auto alike = request_for("w");
  alike.specification.naa = first->volume.specification.naa;
  const std::string same_naa = co_await refusal_of(group, alike);
  CHECK(same_naa ==
        fmt::format("volume \"w\": naa {} is that of volume \"v\" too, and hosts would take both "
                    "for one disk; give each its own",
                    digits(first->volume)));
  const auto taken = co_await group.create_snapshots({.volumes = {"v"}, .name = "s"});
  REQUIRE(taken.has_value());
  alike.specification.naa = naa_of(known(parse_uuid(taken->snapshots.front().uuid)));
  const std::string as_snapshot = co_await refusal_of(group, alike);
  CHECK_THAT(as_snapshot, Catch::Contains("is that of snapshot \"v-s\" too"));
  alike.specification.naa.reset();
  alike.specification.eui64 = first->volume.specification.eui64;
  const std::string same_eui64 = co_await refusal_of(group, alike);
  CHECK_THAT(same_eui64, Catch::Contains("eui64 0025ba0000000001 is that of volume \"v\" too"));
  alike.specification.eui64.reset();
  alike.specification.serial = first->volume.specification.serial;
  const std::string same_serial = co_await refusal_of(group, alike);
  CHECK(same_serial ==
        fmt::format("volume \"w\": serial \"{}\" is that of volume \"v\" too, and hosts would "
                    "take both for one disk; give each its own",
                    alike.specification.serial));
  alike.specification.product = "OTHER";
  const std::string other_product = co_await refusal_of(group, alike);
  CHECK(other_product == "made");
}

TEST_CASE("A volume is not made with another's identifiers", "[group][identity]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch.file("state"), kPool, make_alike);
}

TEST_CASE("A group does not start with a volume that has another's identifiers",
          "[group][identity]") {
  const sandbay::testing::ScratchDirectory scratch;
  static std::string drawn;
  run(scratch.file("state"), "", [](Group& group) -> Task<void> {
    for (const std::string_view name : {"u", "v"}) {
      const auto made = co_await group.create_volume(request_for(std::string(name)));
      REQUIRE(made.has_value());
      drawn = digits(made->volume);
    }
  });
  const auto error_of = [&](std::string_view name) {
    return run_group(scratch.file("state"),
                     volume_section(name, fmt::format("naa = \"{}\"", drawn)), 1,
                     [](Group&) -> Task<void> { co_return; });
  };
  const std::string why = fmt::format(
      "naa {} is that of volume \"v\" too, and hosts would take both for one disk; give each its "
      "own",
      drawn);
  CHECK_THAT(error_of("u"), Catch::Contains("volume \"u\": " + why));
  CHECK_THAT(error_of("w"), Catch::Contains("volume \"w\": " + why));
  CHECK(error_of("v").empty());
}

Task<void> keep_naa(Group& group, std::string* naa) {
  const auto shown = co_await group.show_volume("v");
  REQUIRE(shown.has_value());
  *naa = digits(*shown);
}

// What identifier "v" has in a new group. What is drawn is the same each time.
std::string first_naa(const std::string& more) {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = StateDirectory::open(scratch.file("state"));
  REQUIRE(state.has_value());
  const std::string text = fmt::format(
      "[group]\nname = \"test\"\nstate = \"{}\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n{}"
      "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n{}",
      scratch.file("state"), kLeastDrawn, more);
  const auto configuration = parse_configuration(text, "test.toml");
  REQUIRE(configuration.has_value());
  const auto reactors =
      ReactorGroup::create({.memory_limit_bytes = std::size_t{64} << 20, .seed = 7});
  REQUIRE(reactors.has_value());
  std::string naa;
  std::string error;
  const GroupTest look = [&naa](Group& group) { return keep_naa(group, &naa); };
  (*reactors)->run(
      [&] { return serve_once(*configuration, state->metadata().string(), look, &error); });
  CHECK(error.empty());
  return naa;
}

TEST_CASE("An identifier that the file names is not drawn for another volume",
          "[group][identity]") {
  const std::string naa = first_naa("");
  REQUIRE(naa.starts_with("60060e800571c900000071c9"));
  REQUIRE(first_naa("[[volume]]\nname = \"u\"\nsize = \"4MiB\"\n") == naa);
  CHECK(first_naa("[[volume]]\nname = \"u\"\nsize = \"4MiB\"\nnaa = \"" + naa + "\"\n") != naa);
}

TEST_CASE("A volume keeps the identifier that it was made with", "[group][identity]") {
  const sandbay::testing::ScratchDirectory scratch;
  static std::string first;
  const std::string volume = "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n";
  const std::string drawn = "[identity]\nserial = \"S{naa:24+8}\"\nnaa = \"6000d310000c1000";
  run(scratch.file("state"), drawn + std::string(16, '*') + "\"\n" + volume,
      [](Group& group) -> Task<void> {
        const auto shown = co_await group.show_volume("v");
        REQUIRE(shown.has_value());
        first = digits(*shown);
        CHECK(first.starts_with("6000d310000c1000"));
        CHECK(shown->specification.serial == "S" + first.substr(24));
      });
  run(scratch.file("state"), drawn + std::string(16, '*') + "\"\nvendor = \"NEW\"\n" + volume,
      [](Group& group) -> Task<void> {
        const auto shown = co_await group.show_volume("v");
        REQUIRE(shown.has_value());
        CHECK(digits(*shown) == first);
        CHECK(shown->specification.serial == "S" + first.substr(24));
        CHECK(shown->specification.vendor == "NEW");
      });
}

const std::string kShared =
    "[identity]\ntarget = \"iqn.2002-03.com.compellent:5000d310000c1001\"\n"
    "[[target]]\nname = \"iqn.2002-03.com.compellent:5000d310000c1001\"\n"
    "[[target.access]]\ninitiator = \"*\"\n";

Task<void> share_a_target(Group& group) {
  for (const std::uint32_t lun : {0U, 1U, 2U}) {
    const auto made = co_await group.create_volume(request_for(fmt::format("v{}", lun)));
    REQUIRE(made.has_value());
    CHECK(made->volume.specification.target == "iqn.2002-03.com.compellent:5000d310000c1001");
    CHECK(made->volume.specification.lun == lun);
  }
  const auto taken = co_await group.create_snapshots({.volumes = {"v1"}, .name = "s"});
  REQUIRE(taken.has_value());
  const auto online = co_await group.online_snapshot({"v1", "s"}, false);
  REQUIRE(online.has_value());
  CHECK(online->target == "iqn.2002-03.com.compellent:5000d310000c1001.v1-s");
}

TEST_CASE("Volumes share a target whose name says nothing of them", "[group][identity]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch.file("state"), kShared + kPool, share_a_target);
}

}  // namespace
}  // namespace sandbay::group::identity_test
