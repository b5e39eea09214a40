// The configuration file: what a whole one means, and, for every kind of mistake, the exact line
// that tells it.
#include "group/configuration.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/unit/block/scratch_directory.h"

namespace sandbay::group {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::string_view kSmallest = R"toml(
[group]
name = "g"
state = "var/g"
[[portal]]
listen = "127.0.0.1:3260"
)toml";

// The first mistake of kSmallest with `more` behind it (which begins in line 7).
std::string mistake_in(std::string_view more) {
  const auto result = parse_configuration(fmt::format("{}{}", kSmallest, more), "x.toml");
  if (result) return "no mistake";
  return result.error().front();
}

TEST_CASE("The smallest configuration has sensible defaults", "[configuration]") {
  const auto result = parse_configuration(kSmallest, "x.toml");
  REQUIRE(result.has_value());
  CHECK(result->group_name == "g");
  CHECK(result->state == "var/g");
  CHECK(result->uuid.empty());
  CHECK(result->reactors == 0);
  CHECK(result->memory_limit_bytes == std::uint64_t{1} << 30);
  CHECK(result->management.listen.to_string() == "127.0.0.1:8260");
  REQUIRE(result->portals.size() == 1);
  CHECK(result->portals[0].listen.to_string() == "127.0.0.1:3260");
  CHECK(result->portals[0].group_tag == 1);
  CHECK(result->volumes.empty());
  CHECK(result->targets.empty());
}

constexpr std::string_view kWhole = R"toml(
[group]
name = "lab"
state = "/srv/lab"
uuid = "0B4F8A50-5C0E-4C5E-9D0A-3C1B7F1F2A11"
memory_limit = "2GiB"
reactors = 2

[management]
listen = "[::1]:9000"

[limits]
maximum_connections = 100
maximum_logins_in_progress = 10
login_timeout = "2s"
nop_in_interval = "0s"
nop_in_timeout = "1s"
send_stall_timeout = "30s"

[discovery]
chap_digests = ["SHA-256"]
mutual_chap_user = "array"
mutual_chap_secret = "secretsecret3"
[[discovery.access]]
initiator = "iqn.1993-08.org.debian:*"
chap_user = "finder"
chap_secret = "secretsecret4"
[[discovery.access]]
initiator = "*"
address = "127.0.0.0/8"

[[portal]]
listen = "0.0.0.0"
advertised = "192.0.2.1"
group_tag = 2

[[portal]]
listen = "[::]:3261"

[[target]]
name = "iqn.2026-11.org.sandbay:shared"
alias = "two disks"
queue_depth = 64
maximum_sessions = 8
exclusive = true
portal_groups = [2]
chap_digests = ["SHA3-256", "MD5"]
mutual_chap_user = "array"
mutual_chap_secret = "secretsecret2"
redirect = "192.0.2.9:3260,1"
redirect_permanent = true
[target.keys]
InitialR2T = true
MaxBurstLength = 65536
HeaderDigest = "CRC32C,None"
[[target.access]]
initiator = "iqn.1993-08.org.debian:*"
address = "192.0.2.0/24"
chap_user = "host"
chap_secret = "secretsecret1"

[[volume]]
name = "a"
size = "1GiB"
target = "iqn.2026-11.org.sandbay:shared"
lun = 3
block_size = 4096
write_cache = false
serial = "SN1"
naa = "naa.6025ba70000000000000000000000001"
eui64 = "eui.0025BA0000000001"
removable = true
rotation = 7200
unmap_limit = "512MiB"
write_same_limit = "4KiB"
vendor = "ACME"
product = "DISK"
revision = "1.0"

[[volume]]
name = "b"
file = "/images/b.img"
read_only = true
thin = false

[[volume]]
name = "c"
size = "64MiB"
preallocate = true

[[volume]]
name = "d"
memory = true
size = "16MiB"
[[volume.access]]
initiator = "*"
)toml";

TEST_CASE("A whole configuration is read into its parts", "[configuration]") {
  const auto result = parse_configuration(kWhole, "x.toml");
  if (!result) FAIL(result.error().front());
  CHECK(result->uuid == "0b4f8a50-5c0e-4c5e-9d0a-3c1b7f1f2a11");
  CHECK(result->reactors == 2);
  CHECK(result->memory_limit_bytes == std::uint64_t{2} << 30);
  CHECK(result->management.listen.to_string() == "[::1]:9000");
  CHECK(result->limits.maximum_connections == 100);
  CHECK(result->limits.login_timeout == seconds(2));
  CHECK(result->limits.nop_in_interval == seconds(0));
  const iscsi::DiscoveryOptions& discovery = result->discovery;
  CHECK(discovery.chap_digests == std::vector<std::string>{"SHA-256"});
  CHECK(discovery.mutual_chap->secret == "secretsecret3");
  REQUIRE(discovery.access.size() == 2);
  CHECK(discovery.access[0].initiator == "iqn.1993-08.org.debian:*");
  CHECK(discovery.access[0].chap->user == "finder");
  CHECK(discovery.access[1].address == "127.0.0.0/8");
  CHECK_FALSE(discovery.access[1].chap.has_value());
  REQUIRE(result->portals.size() == 2);
  CHECK(result->portals[0].listen.to_string() == "0.0.0.0:3260");
  CHECK(result->portals[0].advertised->to_string() == "192.0.2.1:3260");
  CHECK(result->portals[0].group_tag == 2);
  CHECK(result->portals[1].listen.to_string() == "[::]:3261");

  REQUIRE(result->targets.size() == 2);
  const TargetConfiguration& shared = result->targets[0];
  CHECK(shared.name == "iqn.2026-11.org.sandbay:shared");
  CHECK(shared.options.alias == "two disks");
  CHECK(shared.options.queue_depth == 64);
  CHECK(shared.options.maximum_sessions == 8);
  CHECK(shared.options.exclusive);
  CHECK(shared.options.portal_groups == std::vector<std::uint16_t>{2});
  CHECK(shared.options.mutual_chap->user == "array");
  CHECK(shared.options.redirect->address == "192.0.2.9:3260,1");
  CHECK(shared.options.redirect->permanent);
  CHECK(shared.options.keys.at("InitialR2T") == "Yes");
  CHECK(shared.options.keys.at("MaxBurstLength") == "65536");
  REQUIRE(shared.access.size() == 1);
  CHECK(shared.access[0].record.address == "192.0.2.0/24");
  CHECK(shared.access[0].record.chap->secret == "secretsecret1");
  CHECK(result->targets[1].name == "iqn.2026-11.org.sandbay:d");
  CHECK(result->targets[1].access[0].record.initiator == "*");

  REQUIRE(result->volumes.size() == 4);
  const VolumeSpecification& a = result->volumes[0].specification;
  CHECK(a.backing == Backing::kState);
  CHECK(a.lun == 3);
  CHECK(a.block_bytes == 4096);
  CHECK_FALSE(a.write_cache);
  CHECK(a.thin);
  CHECK(format_naa(*a.naa) == "naa.6025ba70000000000000000000000001");
  CHECK(a.vendor == "ACME");
  const VolumeSpecification& b = result->volumes[1].specification;
  CHECK(b.backing == Backing::kFile);
  CHECK(b.size_bytes == 0);
  CHECK(b.read_only);
  CHECK_FALSE(b.thin);
  CHECK(b.target == "iqn.2026-11.org.sandbay:b");
  const VolumeSpecification& c = result->volumes[2].specification;
  CHECK(c.preallocate);
  CHECK_FALSE(c.thin);
  CHECK(result->volumes[3].specification.backing == Backing::kMemory);
}

TEST_CASE("A volume says how its LUN presents itself, or has the defaults", "[configuration]") {
  const auto result = parse_configuration(kWhole, "x.toml");
  if (!result) FAIL(result.error().front());
  const VolumeSpecification& a = result->volumes.at(0).specification;
  REQUIRE(a.eui64.has_value());
  CHECK(format_eui64(*a.eui64) == "eui.0025ba0000000001");
  CHECK(a.removable);
  CHECK(a.rotation == 7200);
  CHECK(a.unmap_limit_bytes == 512 << 20);
  CHECK(a.write_same_limit_bytes == 4096);
  const VolumeSpecification& b = result->volumes.at(1).specification;
  CHECK_FALSE(b.eui64.has_value());
  CHECK_FALSE(b.removable);
  CHECK(b.rotation == 0);
  CHECK(b.unmap_limit_bytes == 0);
  CHECK(b.write_same_limit_bytes == 0);
}

struct Mistake {
  const char* more;
  const char* line;
};
constexpr Mistake kMistakes[] = {
    // The file as such.
    {"x = ", "x.toml:7: not TOML: "},
    {"[group]\nname = \"h\"", "x.toml:7: not TOML: "},
    {"[grup]\n", "x.toml:7: grup: is not a key here; did you mean group?"},
    {"[zzz]\n",
     "x.toml:7: zzz: is not a key here; keys here are group, management, runtime, "
     "limits, discovery, portal, drive, raid, nvram, cache, controller, member, faults, lead, "
     "identity, pool, "
     "target, volume"},
    {"[runtime]\nio = \"aio\"",
     "x.toml:8: runtime.io: is \"aio\"; accepted are auto, io_uring and epoll"},
    {"[limits]\nnop_in_interval = \"1us\"",
     "x.toml:8: limits.nop_in_interval: would keep every session busy with it; write at least "
     "\"100ms\", or \"0s\" for never"},
    {"management = 3", "x.toml:7: portal[1].management: is not a key here; "},
    // Types.
    {"[management]\nlisten = 8260",
     "x.toml:8: management.listen: is a whole number; write a string in quotes"},
    {"[management]\nallow_remote = \"yes\"",
     "x.toml:8: management.allow_remote: is a string; write true or false"},
    {"[limits]\nmaximum_connections = \"many\"",
     "x.toml:8: limits.maximum_connections: is a string; write a whole number from 1 to 1000000"},
    {"[limits]\nlogin_timeout = 15",
     "x.toml:8: limits.login_timeout: is a whole number; write a time in quotes, such as \"5ms\" "
     "or \"2s\""},
    {"[[volume]]\nname = \"v\"\nsize = 1073741824",
     "x.toml:9: volume[1].size: is a whole number; write a size in quotes, such as \"512MiB\" or "
     "\"100GiB\""},
    {"[volume]\nname = \"v\"", "x.toml:7: volume: is a section; write sections [[volume]]"},
    {"[[target]]\nname = \"iqn.2026-11.org.sandbay:t\"\nportal_groups = 1",
     "x.toml:9: target[1].portal_groups: is a whole number; write a list of whole numbers from 1 "
     "to 65535"},
    {"[[target]]\nname = \"iqn.2026-11.org.sandbay:t\"\nchap_digests = [5]",
     "x.toml:9: target[1].chap_digests: holds a whole number; write a list of strings, such as "
     "[\"a\", \"b\"]"},
    {"[[volume]]\nname = 2026-11-20", "x.toml:8: volume[1].name: is a date or time; "},
    // Values.
    {"[management]\nlisten = \"localhost:8260\"",
     "x.toml:8: management.listen: \"localhost:8260\" is not an address; write one such as "
     "127.0.0.1:8260 or [::1]:8260"},
    {"[management]\nlisten = \"0.0.0.0:8260\"",
     "x.toml:8: management.listen: 0.0.0.0:8260 can be reached from other machines, and "
     "management asks for no password; write a loopback address such as 127.0.0.1:8260, or "
     "protect management with certificate, key and [[management.token]], or do without and say "
     "allow_remote = true"},
    {"[limits]\nmaximum_connections = 0",
     "x.toml:8: limits.maximum_connections: 0 is out of range; write a whole number from 1 to "
     "1000000"},
    {"[limits]\nlogin_timeout = \"15\"",
     "x.toml:8: limits.login_timeout: \"15\" is not a time; write a number and a unit (ns, us, "
     "ms, s, min, h or d), such as 5ms or 2s"},
    {"[limits]\nlogin_timeout = \"1ms\"",
     "x.toml:8: limits.login_timeout: 1ms is out of range; write a time from 100ms to 1d"},
    {"[[portal]]\ngroup_tag = 2",
     "x.toml:7: portal[2].listen: is missing; write an address such as \"127.0.0.1:3260\""},
    {"[[portal]]\nlisten = \"127.0.0.1\"",
     "x.toml:8: portal[2].listen: 127.0.0.1:3260 is the address of another portal; give each its "
     "own"},
    {"[[portal]]\nlisten = \"127.0.0.1:3261\"\nadvertised = \"0.0.0.0\"",
     "x.toml:9: portal[2].advertised: is not an address that an initiator can reach; write "
     "the portal's own address"},
    {"[[portal]]\nlisten = \"127.0.0.1:3261\"\ngroup_tag = 70000",
     "x.toml:9: portal[2].group_tag: 70000 is out of range; write a whole number from 1 to "
     "65535"},
    // Targets.
    {"[[target]]\nalias = \"x\"",
     "x.toml:7: target[1].name: is missing; write an iSCSI name such as "
     "\"iqn.2026-11.org.sandbay:disk1\""},
    {"[[target]]\nname = \"disk1\"",
     "x.toml:8: target[1].name: \"disk1\" is not an iSCSI name; write one such as "
     "iqn.2026-11.org.sandbay:disk1, or eui. or naa. and hexadecimal digits"},
    {"[[target]]\nname = \"iqn.2026-11.org.sandbay:Disk1\"",
     "x.toml:8: target[1].name: \"iqn.2026-11.org.sandbay:Disk1\" has capital letters; write "
     "iSCSI names in lower case"},
    {"[[target]]\nname = \"iqn.2026-13.org.sandbay:d\"",
     "x.toml:8: target[1].name: \"iqn.2026-13.org.sandbay:d\" is not an iSCSI name; "},
    {"[[target]]\nname = \"eui.0123456789abcdeg\"",
     "x.toml:8: target[1].name: \"eui.0123456789abcdeg\" is not an iSCSI name; "},
    {"[[target]]\nname = \"iqn.2026-11.o:t\"\n[[target]]\nname = \"iqn.2026-11.o:t\"",
     "x.toml:10: target[2].name: iqn.2026-11.o:t has a section already; write one for each "
     "target"},
    {"[[target]]\nname = \"iqn.2026-11.o:t\"\nportal_groups = [7]",
     "x.toml:9: target[1].portal_groups: no portal has the group_tag 7; write tags of portals"},
    {"[[target]]\nname = \"iqn.2026-11.o:t\"\nredirect = \"elsewhere\"",
     "x.toml:9: target[1].redirect: \"elsewhere\" is not an address to redirect to; write one "
     "such as 192.0.2.8:3260 or [2001:db8::8]:3260,1"},
    {"[[target]]\nname = \"iqn.2026-11.o:t\"\nredirect_permanent = true",
     "x.toml:9: target[1].redirect_permanent: means nothing without redirect; write both or "
     "none"},
    {"[[target]]\nname = \"iqn.2026-11.o:t\"\nchap_digests = [\"MD4\"]",
     "x.toml:9: target[1].chap_digests: "},
    {"[[target]]\nname = \"iqn.2026-11.o:t\"\n[target.keys]\nInitialR2T = 1.5",
     "x.toml:10: target[1].keys.InitialR2T: is a fraction; write a string, a number, true or "
     "false"},
    {"[[target]]\nname = \"iqn.2026-11.o:t\"\n[target.keys]\nMaxBurstLength = 3",
     "x.toml:10: target[1].keys.MaxBurstLength: \"3\" is not a number from 512 to 16777215"},
    {"[[target]]\nname = \"iqn.2026-11.o:t\"\n[target.keys]\nInitalR2T = true",
     "x.toml:10: target[1].keys.InitalR2T: is not a key of RFC 7143; write InitialR2T, or a "
     "private one that begins with X-"},
    {"[[target]]\nname = \"iqn.2026-11.o:t\"\nchap_digests = []",
     "x.toml:9: target[1].chap_digests: is empty; write at least one digest, or leave it out for "
     "all"},
    {"[management]\nlisten = \"127.0.0.1:3260\"",
     "x.toml:5: portal[1].listen: 127.0.0.1:3260 is taken by the management interface at "
     "127.0.0.1:3260; "
     "give each its own port"},
    {"[[volume]]\nname = \"a\"\nfile = \"metadata/CURRENT\"", "x.toml:7: volume \"a\": "},
    {"[[target]]\nname = \"iqn.2026-11.o:t\"\nmutual_chap_secret = \"secretsecret\"",
     "x.toml:7: target[1].mutual_chap_user: is missing; a CHAP secret belongs to a user"},
    {"[discovery]\nmutual_chap_user = \"a\"\nmutual_chap_secret = \"secretsecret\"",
     "x.toml:8: discovery.mutual_chap_user: means nothing without CHAP; write a "
     "[[discovery.access]] with chap_user"},
    {"[[discovery.access]]\ninitiator = \"*\"\nchap_user = \"a\"\nchap_secret = \"short\"",
     "x.toml:10: discovery.access[1].chap_secret: the CHAP secret has 5 bytes; use 12 to 255 "
     "(Windows takes 12 to 16)"},
    // Volumes.
    {"[[volume]]\nsize = \"1GiB\"",
     "x.toml:7: volume[1].name: is missing; write the volume's name in quotes"},
    {"[[volume]]\nname = \"a b\"\nsize = \"1GiB\"",
     "x.toml:8: volume[1].name: \"a b\" is not a name; write 1 to 63 letters, digits, dots, "
     "dashes and underscores, a letter or digit first"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\n[[volume]]\nname = \"a\"\nsize = \"1GiB\"",
     "x.toml:11: volume[2].name: a is another volume's; choose a new one"},
    {"[[volume]]\nname = \"a\"",
     "x.toml:7: volume[1].size: is missing; write a size such as \"100GiB\""},
    {"[[volume]]\nname = \"a\"\nsize = \"1G\"",
     "x.toml:9: volume[1].size: \"1G\" has the unknown unit \"G\"; units are B, KiB MiB GiB TiB "
     "PiB (of 1024) and kB MB GB TB PB (of 1000)"},
    {"[[volume]]\nname = \"a\"\nsize = \"512B\"",
     "x.toml:9: volume[1].size: 512B is out of range; write a size from 1MiB to 1PiB"},
    {"[[volume]]\nname = \"a\"\nsize = \"1048577B\"",
     "x.toml:9: volume[1].size: size 1048577B is not a whole number of 512-byte blocks"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\nblock_size = 520",
     "x.toml:10: volume[1].block_size: block_size 520 is not offered; write 512 or 4096"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\nphysical_block_size = 3000",
     "x.toml:10: volume[1].physical_block_size: physical_block_size 3000 does not fit; write a "
     "power of two from 512 to 1048576"},
    {"[[volume]]\nname = \"a\"\nmemory = true\nfile = \"/x\"\nsize = \"1GiB\"",
     "x.toml:10: volume[1].file: a volume has one place; write one of pool, raid, file, "
     "device and memory = true"},
    {"[[volume]]\nname = \"a\"\ndevice = \"sdb\"",
     "x.toml:9: volume[1].device: \"sdb\" is not an absolute path; write one such as /dev/sdb"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\nthin = true\npreallocate = true",
     "x.toml:10: volume[1].thin: thin and preallocate exclude one another; leave one of them "
     "out"},
    {"[[volume]]\nname = \"a\"\nmemory = true\nsize = \"1GiB\"\npreallocate = true",
     "x.toml:11: volume[1].preallocate: preallocate means nothing for a volume on memory; leave "
     "it out"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\nvendor = \"TOO LONG A NAME\"",
     "x.toml:10: volume[1].vendor: vendor \"TOO LONG A NAME\" does not fit; write at most 8 "
     "printable ASCII characters"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\nnaa = \"naa.5000\"",
     "x.toml:10: volume[1].naa: \"naa.5000\" is not an NAA identifier; write 32 hexadecimal "
     "digits, the first of them 6"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\neui64 = \"0025ba000000001\"",
     "x.toml:10: volume[1].eui64: \"0025ba000000001\" is not an EUI-64 identifier; write 16 "
     "hexadecimal digits, not all of them 0"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\neui64 = \"naa.0025ba0000000001\"",
     "x.toml:10: volume[1].eui64: \"naa.0025ba0000000001\" is not an EUI-64 identifier; write 16 "
     "hexadecimal digits, not all of them 0"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\neui64 = \"eui.0000000000000000\"",
     "x.toml:10: volume[1].eui64: \"eui.0000000000000000\" is not an EUI-64 identifier; write 16 "
     "hexadecimal digits, not all of them 0"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\neui64 = \"0025ba0000000001\"\n"
     "[[volume]]\nname = \"b\"\nsize = \"1GiB\"\neui64 = \"eui.0025BA0000000001\"",
     "x.toml:11: volume \"b\": eui64 0025ba0000000001 is that of volume \"a\" too, and hosts would "
     "take both for one disk; give each its own"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\nremovable = 1",
     "x.toml:10: volume[1].removable: is a whole number; write true or false"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\nrotation = 1024",
     "x.toml:10: volume[1].rotation: rotation 1024 is not a rate; write 1025 to 65534 revolutions "
     "a minute, 1 or 0"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\nrotation = 65535",
     "x.toml:10: volume[1].rotation: 65535 is out of range; write a whole number from 0 to 65534"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\nunmap_limit = \"1025B\"",
     "x.toml:10: volume[1].unmap_limit: unmap_limit 1025B does not fit; write a multiple of 512 "
     "bytes, at most 4294967295 blocks"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\nblock_size = 4096\nwrite_same_limit = \"512B\"",
     "x.toml:11: volume[1].write_same_limit: write_same_limit 512B does not fit; write a multiple "
     "of 4096 bytes, at most 4294967295 blocks"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\nwrite_same_limit = \"2TiB\"",
     "x.toml:10: volume[1].write_same_limit: write_same_limit 2TiB does not fit; write a multiple "
     "of 512 bytes, at most 4294967295 blocks"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\nunmap_limit = 512",
     "x.toml:10: volume[1].unmap_limit: is a whole number; write a size in quotes, such as "
     "\"512MiB\" or \"100GiB\""},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\nlun = 16384",
     "x.toml:10: volume[1].lun: 16384 is out of range; write a whole number from 0 to 16383"},
    {"[[volume]]\nname = \"a\"\nsizee = \"1GiB\"",
     "x.toml:9: volume[1].sizee: is not a key here; did you mean size?"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\ntarget = \"iqn.2026-11.o:t\"\nlun = 1\n"
     "[[volume]]\nname = \"b\"\nsize = \"1GiB\"\ntarget = \"iqn.2026-11.o:t\"\nlun = 1",
     "x.toml:12: volume \"b\": LUN 1 of iqn.2026-11.o:t is another volume's; give each its own "
     "lun"},
    {"[[volume]]\nname = \"a\"\nfile = \"/x/y\"\n[[volume]]\nname = \"b\"\nfile = \"/x/./y\"",
     "x.toml:10: volume \"b\": /x/./y belongs to volume \"a\"; a file or device serves one "
     "volume"},
    // Access.
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\n[[volume.access]]\naddress = \"192.0.2.1\"",
     "x.toml:10: volume[1].access[1].initiator: is missing; write an initiator's name, or \"*\" "
     "for every one"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\n[[volume.access]]\ninitiator = \"host\"",
     "x.toml:11: volume[1].access[1].initiator: \"host\" is not an initiator; write an iSCSI "
     "name "
     "such as iqn.1993-08.org.debian:host, with * and ? as wildcards, or * for every one"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\n[[volume.access]]\ninitiator = \"*\"\n"
     "address = \"192.0.2\"",
     "x.toml:12: volume[1].access[1].address: \"192.0.2\" is not an IP address; write an address "
     "such as 192.0.2.7 or 2001:db8::7, or a network such as 192.0.2.0/24"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\n[[volume.access]]\ninitiator = \"*\"\n"
     "address = \"192.0.2.0/33\"",
     "x.toml:12: volume[1].access[1].address: \"192.0.2.0/33\" has no prefix length from 0 to "
     "32; "
     "write an address such as 192.0.2.7 or 2001:db8::7, or a network such as 192.0.2.0/24"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\n[[volume.access]]\ninitiator = \"*\"\n"
     "chap_user = \"u\"",
     "x.toml:12: volume[1].access[1].chap_user: needs its secret; write either chap_secret or "
     "chap_secret_file"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\n[[volume.access]]\ninitiator = \"*\"\n"
     "chap_user = \"u\"\nchap_secret = \"short\"",
     "x.toml:13: volume[1].access[1].chap_secret: the CHAP secret has 5 bytes; use 12 to 255 "
     "(Windows takes 12 to 16)"},
    {"[[volume]]\nname = \"a\"\nsize = \"1GiB\"\n[[volume.access]]\ninitiator = \"*\"\n"
     "chap_user = \"u\"\nchap_secret_file = \"/nowhere/secret\"",
     "x.toml:13: volume[1].access[1].chap_secret_file: /nowhere/secret cannot be read; write a "
     "file whose first line is the secret"},
};

TEST_CASE("Each kind of mistake gives its one line", "[configuration]") {
  for (const Mistake& c : kMistakes) {
    CAPTURE(c.more);
    const std::string line = mistake_in(c.more);
    const std::string expected = c.line;
    // A line that ends in a space here goes on with words of another module.
    if (expected.ends_with(' ')) {
      CHECK_THAT(line, Catch::StartsWith(expected) && !Catch::EndsWith(": "));
    } else {
      CHECK(line == expected);
    }
    CHECK(line.find('\n') == std::string::npos);
  }
}

TEST_CASE("What every group needs is asked for", "[configuration]") {
  const auto empty = parse_configuration("", "x.toml");
  REQUIRE_FALSE(empty.has_value());
  CHECK(empty.error() ==
        std::vector<std::string>{
            "x.toml:1: group: is missing; write a section [group] with name and state",
            "x.toml:1: portal: is missing; write at least one section [[portal]] with listen"});
  const auto bare = parse_configuration("[group]\n[[portal]]\nlisten = \"127.0.0.1\"", "x.toml");
  REQUIRE_FALSE(bare.has_value());
  CHECK(bare.error() ==
        std::vector<std::string>{
            "x.toml:1: group.name: is missing; write the group's name in quotes",
            "x.toml:1: group.state: is missing; write the directory in which the group keeps its "
            "state"});
}

TEST_CASE("All mistakes are told, in the order of the file", "[configuration]") {
  const auto result = parse_configuration(R"toml([group]
name = "a b"
state = ""
memory_limit = "1MiB"
reactors = 1000
uuid = "none"
[[portal]]
listen = "nowhere"
)toml",
                                          "x.toml");
  REQUIRE_FALSE(result.has_value());
  REQUIRE(result.error().size() == 6);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK_THAT(result.error()[i], Catch::StartsWith(fmt::format("x.toml:{}: group.", i + 2)));
  }
  CHECK_THAT(result.error()[5], Catch::StartsWith("x.toml:8: portal[1].listen: "));
}

TEST_CASE("A secret may stand in a file beside the configuration", "[configuration]") {
  const sandbay::testing::ScratchDirectory scratch;
  std::ofstream(scratch.file("secret")) << "from-the-file-1\r\nand more\n";
  std::ofstream(scratch.file("x.toml")) << kSmallest << R"toml(
[[volume]]
name = "a"
size = "1GiB"
[[volume.access]]
initiator = "*"
chap_user = "u"
chap_secret_file = "secret"
)toml";
  const auto result = load_configuration(scratch.file("x.toml"));
  if (!result) FAIL(result.error().front());
  CHECK(result->targets.at(0).access.at(0).record.chap->secret == "from-the-file-1");
}

TEST_CASE("A directory is neither a configuration nor a secret", "[configuration]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto folder = load_configuration(scratch.file(""));
  REQUIRE_FALSE(folder.has_value());
  CHECK_THAT(folder.error().front(),
             Catch::EndsWith(": is a directory; name a configuration file"));
  std::filesystem::create_directory(scratch.file("secret"));
  std::ofstream(scratch.file("x.toml"))
      << kSmallest
      << "[[volume]]\nname = \"a\"\nsize = \"1GiB\"\n[[volume.access]]\ninitiator = \"*\"\n"
         "chap_user = \"u\"\nchap_secret_file = \"secret\"\n";
  const auto secret = load_configuration(scratch.file("x.toml"));
  REQUIRE_FALSE(secret.has_value());
  CHECK_THAT(secret.error().front(), Catch::Contains("/secret is a directory; "));
}

// A device without an end, and a pipe that nobody writes to.
TEST_CASE("A secret is read from a regular file, and only its beginning", "[configuration]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto refusal_of = [&](const std::string& file) {
    std::ofstream(scratch.file("x.toml"))
        << kSmallest
        << "[[volume]]\nname = \"a\"\nsize = \"1GiB\"\n[[volume.access]]\ninitiator = \"*\"\n"
           "chap_user = \"u\"\nchap_secret_file = \""
        << file << "\"\n";
    const auto result = load_configuration(scratch.file("x.toml"));
    return result.has_value() ? std::string("taken") : result.error().front();
  };
  CHECK_THAT(refusal_of("/dev/zero"), Catch::Contains("/dev/zero is no regular file; "));
  REQUIRE(::mkfifo(scratch.file("pipe").c_str(), 0600) == 0);
  CHECK_THAT(refusal_of("pipe"), Catch::Contains("/pipe is no regular file; "));
  std::filesystem::resize_file((std::ofstream(scratch.file("sparse")), scratch.file("sparse")),
                               std::uintmax_t{1} << 40);
  CHECK_THAT(refusal_of("sparse"), Catch::Contains("/sparse is not a file with a secret in it; "));
  std::ofstream(scratch.file("plain")) << "a-secret-of-18-byt\r\nand more\n";
  CHECK(refusal_of("plain") == "taken");
}

TEST_CASE("A file that is not there is named", "[configuration]") {
  const auto result = load_configuration("/nowhere/x.toml");
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().front() == "/nowhere/x.toml: cannot be read; name a configuration file");
}

TEST_CASE("Secrets never stand in a mistake", "[configuration]") {
  const std::string line = mistake_in(
      "[[volume]]\nname = \"a\"\nsize = \"1GiB\"\n[[volume.access]]\ninitiator = \"*\"\n"
      "chap_user = \"u\"\nchap_secret = \"hunter2\"");
  CHECK(line.find("hunter2") == std::string::npos);
}

TEST_CASE("A readable configuration file with a secret draws a warning", "[X9][configuration]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::filesystem::path file = scratch.file("x.toml");
  std::ofstream(scratch.file("secret")) << "abcdefghijkl\n";
  const std::string access =
      "[[volume]]\nname = \"v\"\nsize = \"1MiB\"\n[[volume.access]]\n"
      "initiator = \"*\"\nchap_user = \"u\"\n";
  const auto warning = [&](const std::string& secret, mode_t mode) {
    std::ofstream(file) << kSmallest << access << secret;
    REQUIRE(::chmod(file.c_str(), mode) == 0);
    const auto result = load_configuration(file);
    REQUIRE(result.has_value());
    return exposed_secret(*result).value_or("");
  };
  const std::string inside = "chap_secret = \"abcdefghijkl\"\n";
  CHECK_THAT(warning(inside, 0644), Catch::Contains("every user can read the CHAP secret"));
  CHECK(warning(inside, 0640).empty());
  CHECK(warning("chap_secret_file = \"secret\"\n", 0644).empty());
}

TEST_CASE("The nearest known word is found", "[configuration]") {
  // Through the public door: a misspelt key.
  CHECK_THAT(mistake_in("[managment]"), Catch::EndsWith("did you mean management?"));
  CHECK_THAT(mistake_in("[limits]\nlogin_timout = \"2s\""),
             Catch::EndsWith("did you mean login_timeout?"));
}

TEST_CASE("Default target names are iSCSI names", "[configuration]") {
  CHECK(default_target_name("quickstart") == "iqn.2026-11.org.sandbay:quickstart");
  CHECK(default_target_name("Vol_1.A") == "iqn.2026-11.org.sandbay:vol-1.a");
  CHECK_FALSE(check_target_name(default_target_name("Vol_1.A")).has_value());
}

}  // namespace
}  // namespace sandbay::group
