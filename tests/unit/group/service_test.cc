// The management service on a real group: every operation, every refusal, and what a restart
// finds. Everything runs with one reactor and with two.
#include "group/service.h"

#include <fmt/core.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <set>

#include "group/listening.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::service_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

using Code = Refusal::Code;

CreateVolumeRequest request_for(std::string name, std::uint64_t bytes = 4 * kMiB) {
  CreateVolumeRequest request;
  request.specification.name = std::move(name);
  request.specification.size_bytes = bytes;
  return request;
}

std::set<std::string> files_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

void run(const std::filesystem::path& state, unsigned reactors, const GroupTest& test,
         const std::string& sections = "") {
  const std::string error = run_group(state, sections, reactors, test);
  if (!error.empty()) FAIL(error);
}

// What a start that must fail says.
std::string refused_start(const std::filesystem::path& state, const std::string& sections) {
  return run_group(state, sections, 1, [](Group&) -> Task<void> { co_return; });
}

TEST_CASE("A declared volume is made once and stays itself", "[group]") {
  const unsigned reactors = GENERATE(1U, 2U);
  const sandbay::testing::ScratchDirectory scratch;
  const std::string sections =
      "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n[[volume.access]]\ninitiator = \"*\"\n";
  static VolumeInfo first;
  run(
      scratch.file("state"), reactors,
      [](Group& group) -> Task<void> {
        auto volume = co_await group.show_volume("v");
        REQUIRE(volume.has_value());
        first = *volume;
        CHECK(first.declared);
        CHECK(first.specification.size_bytes == 4 * kMiB);
        CHECK(first.specification.target == "iqn.2026-11.org.sandbay:v");
        CHECK(first.specification.lun == 0);
        CHECK(first.health == "good");
        const auto access = co_await group.list_access("v");
        REQUIRE(access->size() == 1);
        CHECK(access->at(0).declared);
      },
      sections);
  CHECK(std::filesystem::file_size(first.path) == 4 * kMiB);
  run(
      scratch.file("state"), reactors,
      [](Group& group) -> Task<void> {
        const auto volume = co_await group.show_volume("v");
        REQUIRE(volume.has_value());
        CHECK(volume->uuid == first.uuid);
        CHECK(volume->path == first.path);
        CHECK(volume->specification.serial == first.specification.serial);
        CHECK(volume->specification.naa == first.specification.naa);
      },
      sections);
}

Task<void> make_expand_rename(Group& group) {
  const auto made = co_await group.create_volume(request_for("a"));
  REQUIRE(made.has_value());
  CHECK(made->created);
  CHECK_FALSE(made->volume.declared);
  CHECK(std::filesystem::file_size(made->volume.path) == 4 * kMiB);

  const auto again = co_await group.create_volume(request_for("a"));
  REQUIRE(again.has_value());
  CHECK_FALSE(again->created);
  CHECK(again->volume.uuid == made->volume.uuid);
  CreateVolumeRequest different = request_for("a");
  different.specification.read_only = true;
  const auto read_only = co_await group.create_volume(different);
  REQUIRE_FALSE(read_only.has_value());
  CHECK(read_only.error().code == Code::kConflict);
  CHECK(read_only.error().message ==
        "volume \"a\" exists already, with read_only false, not true; choose another name, or "
        "ask for it as it is");
  different = request_for("a");
  different.specification.block_bytes = 4096;
  const auto blocks = co_await group.create_volume(different);
  CHECK_FALSE(blocks.has_value());
  different = request_for("a");
  different.specification.target = "iqn.2026-11.org.sandbay:other";
  const auto target = co_await group.create_volume(different);
  CHECK_FALSE(target.has_value());
  different = request_for("a");
  different.specification.lun = 3;
  const auto lun = co_await group.create_volume(different);
  CHECK_FALSE(lun.has_value());
  different = request_for("a");
  different.access.push_back({.initiator = "iqn.2026-11.org.example:*"});
  const auto access = co_await group.create_volume(different);
  REQUIRE_FALSE(access.has_value());
  CHECK_THAT(access.error().message, Catch::Contains("with other access"));
  const auto other = co_await group.create_volume(request_for("a", 8 * kMiB));
  REQUIRE_FALSE(other.has_value());
  CHECK(other.error().code == Code::kConflict);
  CHECK(other.error().message ==
        "volume \"a\" exists already, with 4MiB on state; choose another name, or expand it");

  ChangeVolumeRequest larger{.size_bytes = 8 * kMiB, .name = std::nullopt};
  const auto expanded = co_await group.change_volume("a", larger);
  REQUIRE(expanded.has_value());
  CHECK(expanded->specification.size_bytes == 8 * kMiB);
  CHECK(std::filesystem::file_size(made->volume.path) == 8 * kMiB);
  ChangeVolumeRequest smaller{.size_bytes = 4 * kMiB, .name = std::nullopt};
  const auto shrunk = co_await group.change_volume("a", smaller);
  REQUIRE_FALSE(shrunk.has_value());
  CHECK(shrunk.error().code == Code::kInvalid);
  CHECK(shrunk.error().message == "volume \"a\" has 8MiB and cannot shrink; give a larger size");

  ChangeVolumeRequest renaming{.size_bytes = std::nullopt, .name = "b"};
  const auto renamed = co_await group.change_volume("a", renaming);
  REQUIRE(renamed.has_value());
  CHECK(renamed->name == "b");
  CHECK(renamed->uuid == made->volume.uuid);
  CHECK(renamed->specification.target == "iqn.2026-11.org.sandbay:a");
  const auto gone = co_await group.show_volume("a");
  REQUIRE_FALSE(gone.has_value());
  CHECK(gone.error().code == Code::kNotFound);
  CHECK(gone.error().message == "there is no volume \"a\"; see the volume list");
}

TEST_CASE("A volume made at run time outlives restarts until it is deleted", "[group]") {
  const unsigned reactors = GENERATE(1U, 2U);
  const sandbay::testing::ScratchDirectory scratch;
  const std::filesystem::path state = scratch.file("state");
  run(state, reactors, make_expand_rename);
  run(state, reactors, [](Group& group) -> Task<void> {
    const auto volume = co_await group.show_volume("b");
    REQUIRE(volume.has_value());
    CHECK(volume->specification.size_bytes == 8 * kMiB);
    const auto deleted = co_await group.delete_volume("b", false);
    CHECK(deleted.has_value());
    const auto targets_now = co_await group.list_targets();
    const auto& targets = *targets_now;
    CHECK(targets.empty());
  });
  CHECK(files_in(state / "volumes").empty());
  run(state, reactors, [](Group& group) -> Task<void> {
    const auto volumes_now = co_await group.list_volumes();
    const auto& volumes = *volumes_now;
    CHECK(volumes.empty());
  });
}

TEST_CASE("Volumes stand on memory and on images too", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string image = scratch.file("image");
  static std::string image_path;
  image_path = image;
  std::ofstream(image) << std::string(kMiB, 'x');
  run(scratch.file("state"), 2, [](Group& group) -> Task<void> {
    CreateVolumeRequest memory = request_for("m");
    memory.specification.backing = Backing::kMemory;
    const auto in_memory = co_await group.create_volume(memory);
    REQUIRE(in_memory.has_value());
    CHECK(in_memory->volume.path.empty());

    CreateVolumeRequest file = request_for("f", 0);
    file.specification.backing = Backing::kFile;
    file.specification.path = image_path;
    const auto on_file = co_await group.create_volume(file);
    REQUIRE(on_file.has_value());
    CHECK(on_file->volume.specification.size_bytes == kMiB);
    CHECK(on_file->volume.path == image_path);
    CHECK(in_memory->volume.executor != on_file->volume.executor);
    const auto deleted = co_await group.delete_volume("f", false);
    CHECK(deleted.has_value());
  });
  // What the user named stays the user's, byte for byte.
  std::ifstream content(image);
  const std::string bytes((std::istreambuf_iterator<char>(content)), {});
  CHECK(bytes == std::string(kMiB, 'x'));
}

Task<void> share_a_target(Group& group) {
  const auto a = co_await group.create_volume(request_for("a"));
  REQUIRE(a.has_value());
  CreateVolumeRequest second = request_for("b");
  second.specification.target = a->volume.specification.target;
  const auto b = co_await group.create_volume(second);
  REQUIRE(b.has_value());
  CHECK(b->volume.specification.lun == 1);
  CreateVolumeRequest third = request_for("c");
  third.specification.target = a->volume.specification.target;
  third.specification.lun = 1;
  const auto refused = co_await group.create_volume(third);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message ==
        "volume \"c\": LUN 1 of iqn.2026-11.org.sandbay:a is volume \"b\"; choose another lun, or "
        "leave it out");
  third.specification.lun = 7;
  const auto c = co_await group.create_volume(third);
  REQUIRE(c.has_value());
  const auto deleted = co_await group.delete_volume("a", false);
  CHECK(deleted.has_value());
  const auto target = co_await group.show_target("iqn.2026-11.org.sandbay:a");
  REQUIRE(target.has_value());
  REQUIRE(target->units.size() == 2);
  CHECK(target->units[0].lun == 1);
  CHECK(target->units[0].volume == "b");
  CHECK(target->units[1].lun == 7);
}

TEST_CASE("Several volumes are LUNs of one target", "[group]") {
  const unsigned reactors = GENERATE(1U, 2U);
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch.file("state"), reactors, share_a_target);
  run(scratch.file("state"), reactors, [](Group& group) -> Task<void> {
    const auto target = co_await group.show_target("iqn.2026-11.org.sandbay:a");
    REQUIRE(target.has_value());
    CHECK(target->units.size() == 2);
  });
}

TEST_CASE("A new volume has at most as many access records as one may get later", "[X9][group]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string error = run_group(scratch.file("state"), "", 1, [](Group& group) -> Task<void> {
    CreateVolumeRequest request = request_for("many");
    request.access.resize(4097, {.initiator = "iqn.2026-11.org.example:host"});
    const auto refused = co_await group.create_volume(request);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Refusal::Code::kInvalid);
    CHECK_THAT(refused.error().message, Catch::Contains("more than 4096 records"));
    request.access.pop_back();
    const auto made = co_await group.create_volume(request);
    CHECK(made.has_value());
  });
  CHECK(error.empty());
}

Task<void> change_access(Group& group) {
  const auto none = co_await group.add_access("nothing", {});
  CHECK(none.error().code == Code::kNotFound);
  const auto bad = co_await group.add_access("v", {.initiator = "host"});
  REQUIRE_FALSE(bad.has_value());
  CHECK(bad.error().code == Code::kInvalid);
  const auto one = co_await group.add_access(
      "v", {.initiator = "iqn.1993-08.org.debian:*",
            .address = "192.0.2.0/24",
            .chap = iscsi::ChapCredential{.user = "host", .secret = "secretsecret"}});
  REQUIRE(one.has_value());
  CHECK(one->created);
  CHECK(one->access.id == "1");
  CHECK(one->access.chap_user == "host");
  const auto two = co_await group.add_access("v", {.initiator = "*"});
  REQUIRE(two.has_value());
  CHECK(two->created);
  CHECK(two->access.id == "2");
  // What is there already is answered with, whoever put it there; another secret is another record.
  const auto repeated = co_await group.add_access("v", {.initiator = "*"});
  REQUIRE(repeated.has_value());
  CHECK_FALSE(repeated->created);
  CHECK(repeated->access.id == "2");
  const auto known = co_await group.add_access("v", {.initiator = "iqn.2026-11.org.sandbay:*"});
  REQUIRE(known.has_value());
  CHECK_FALSE(known->created);
  CHECK(known->access.id == "file-1");
  CHECK(known->access.declared);
  const auto before = co_await group.list_access("v");
  CHECK(before->size() == 3);
  const auto declared = co_await group.remove_access("v", "file-1");
  REQUIRE_FALSE(declared.has_value());
  CHECK(declared.error().message ==
        "access record file-1 of volume \"v\" is declared in test.toml; remove it there");
  const auto removed = co_await group.remove_access("v", "2");
  CHECK(removed.has_value());
  const auto again = co_await group.remove_access("v", "2");
  REQUIRE_FALSE(again.has_value());
  CHECK(again.error().message == "volume \"v\" has no access record 2; see its access list");
}

TEST_CASE("Access records that are too long together to be kept are refused", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch.file("state"), 1, [](Group& group) -> Task<void> {
    CreateVolumeRequest request;
    request.specification.name = "v";
    request.specification.size_bytes = std::uint64_t{4} << 20;
    for (int i = 0; i < 3000; ++i) {
      request.access.push_back({.initiator = "*",
                                .chap = iscsi::ChapCredential{.user = fmt::format("host{}", i),
                                                              .secret = std::string(255, '\x01')}});
    }
    const auto made = co_await group.create_volume(request);
    REQUIRE_FALSE(made.has_value());
    CHECK_THAT(made.error().message, Catch::Contains("3000 access records with such secrets"));
    request.access.resize(100);
    const auto fewer = co_await group.create_volume(request);
    CHECK(fewer.has_value());
  });
}

TEST_CASE("Access records are added and removed, and outlive restarts", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string sections =
      "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n[[volume.access]]\ninitiator = "
      "\"iqn.2026-11.org.sandbay:*\"\n";
  run(scratch.file("state"), 1, change_access, sections);
  run(
      scratch.file("state"), 1,
      [](Group& group) -> Task<void> {
        const auto access = co_await group.list_access("v");
        REQUIRE(access->size() == 2);
        CHECK(access->at(0).id == "file-1");
        CHECK(access->at(1).id == "1");
        CHECK(access->at(1).address == "192.0.2.0/24");
        const auto next = co_await group.add_access("v", {.initiator = "*"});
        CHECK(next->created);
        CHECK(next->access.id == "3");  // A number is never used again.
      },
      sections);
}

TEST_CASE("What cannot be is refused in one sentence", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(
      scratch.file("state"), 1,
      [](Group& group) -> Task<void> {
        const auto name = co_await group.create_volume(request_for("a/b"));
        CHECK(name.error().code == Code::kInvalid);
        const auto no_size = co_await group.create_volume(request_for("a", 0));
        CHECK(no_size.error().message ==
              "volume \"a\": size is missing; write a size such as \"100GiB\"");
        CreateVolumeRequest absent = request_for("a", 0);
        absent.specification.backing = Backing::kFile;
        absent.specification.path = "/nowhere/image";
        const auto no_file = co_await group.create_volume(absent);
        REQUIRE_FALSE(no_file.has_value());
        CHECK(no_file.error().code == Code::kFailed);
        CHECK_THAT(no_file.error().message, Catch::StartsWith("volume \"a\" cannot be made: ") &&
                                                Catch::Contains("/nowhere/image"));
        CreateVolumeRequest taken = request_for("a");
        taken.access.push_back({.initiator = "*"});
        taken.specification.target = "iqn.2026-11.org.sandbay:v";
        const auto access = co_await group.create_volume(taken);
        CHECK(access.error().code == Code::kConflict);
        const auto nothing = co_await group.change_volume("v", {});
        CHECK(nothing.error().message ==
              "volume \"v\": nothing to change; give a size, a name, a cache mode, online, "
              "read_only or limits");
        const auto declared = co_await group.delete_volume("v", true);
        CHECK(declared.error().message ==
              "volume \"v\" is declared in test.toml, which would make it again; take it out there "
              "and restart first");
        ChangeVolumeRequest renaming{.size_bytes = std::nullopt, .name = "w"};
        const auto renamed = co_await group.change_volume("v", renaming);
        CHECK(renamed.error().message ==
              "volume \"v\" is declared in test.toml; its name changes only there");
        const auto session = co_await group.drop_session(9);
        CHECK(session.error().message == "there is no session 9; see the session list");
        const auto target = co_await group.show_target("iqn.x");
        CHECK(target.error().message == "there is no target \"iqn.x\"; see the target list");
        const auto volumes_now = co_await group.list_volumes();
        const auto& volumes = *volumes_now;
        CHECK(volumes.size() == 1);
      },
      "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n");
  CHECK(files_in(scratch.file("state/volumes")).size() == 1);
}

TEST_CASE("A start that would lose or mistake data is refused", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::filesystem::path state = scratch.file("state");
  const std::string sections = "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n";
  static std::string path;
  run(
      state, 1,
      [](Group& group) -> Task<void> {
        const auto volume = co_await group.show_volume("v");
        path = volume->path;
      },
      sections);

  SECTION("the image is missing") {
    std::filesystem::remove(path);
    run(
        state, 1,
        [](Group& group) -> Task<void> {
          const auto volume = co_await group.show_volume("v");
          CHECK(volume->health == "missing");
          CHECK_THAT(volume->reason, Catch::Contains(path + ": cannot be opened: not found"));
        },
        sections);
    CHECK_FALSE(std::filesystem::exists(path));
  }
  SECTION("the image is too short") {
    std::filesystem::resize_file(path, 2 * kMiB);
    run(
        state, 1,
        [](Group& group) -> Task<void> {
          const auto volume = co_await group.show_volume("v");
          CHECK(volume->health == "failed");
          CHECK(volume->specification.size_bytes == 4 * kMiB);
          CHECK(volume->reason ==
                path + " has 2MiB but the volume has 4MiB; bring the whole image back");
        },
        sections);
  }
  SECTION("the file says that it stands on something else") {
    CHECK(refused_start(state, "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\nmemory = true\n") ==
          "test.toml:6: volume \"v\": was made on state with 512-byte blocks, not on memory with "
          "512-byte blocks; write that, or give the new volume another name");
  }
  SECTION("two volumes want one LUN") {
    const std::string other =
        "[[volume]]\nname = \"w\"\nsize = \"4MiB\"\ntarget = \"iqn.2026-11.org.sandbay:v\"\n"
        "lun = 0\n";
    CHECK_THAT(refused_start(state, sections + other), Catch::Contains("LUN 0"));
  }
  SECTION("the state directory is held") {
    const auto held = StateDirectory::open(state);
    REQUIRE(held.has_value());
    CHECK_THAT(refused_start(state, sections), Catch::Contains("is in use by process"));
  }
  SECTION("the image has grown: that is taken as it is") {
    std::filesystem::resize_file(path, 6 * kMiB);
    run(
        state, 1,
        [](Group& group) -> Task<void> {
          const auto volume = co_await group.show_volume("v");
          CHECK(volume->specification.size_bytes == 6 * kMiB);
        },
        sections);
  }
}

TEST_CASE("A group keeps its UUID and refuses another's", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string text =
      "[group]\nname = \"test\"\nstate = \"{}\"\n{}[[portal]]\nlisten = \"127.0.0.1:0\"\n";
  static std::string uuid;
  run(scratch.file("state"), 1, [](Group& group) -> Task<void> {
    const GroupInfo info = co_await group.show_group();
    uuid = info.uuid;
    CHECK(info.name == "test");
    REQUIRE(info.portals.size() == 1);
    CHECK_THAT(info.portals[0].listen, !Catch::EndsWith(":0"));
  });
  run(scratch.file("state"), 1, [](Group& group) -> Task<void> {
    const GroupInfo info = co_await group.show_group();
    CHECK(info.uuid == uuid);
  });
  auto other = parse_configuration(fmt::format(fmt::runtime(text), scratch.file("state"),
                                               "uuid = \"00000000-0000-4000-8000-000000000000\"\n"),
                                   "test.toml");
  REQUIRE(other.has_value());
  const std::string error = run_configured(*other, 1, [](Group&) -> Task<void> { co_return; });
  CHECK(error == fmt::format("test.toml: group.uuid: is 00000000-0000-4000-8000-000000000000, but "
                             "{} holds group {}; name that group's state directory, or leave uuid "
                             "out",
                             scratch.file("state"), uuid));
}

TEST_CASE("A portal that is taken is named", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  static std::string second_error;
  static std::string second_state;
  second_state = scratch.file("second");
  run(scratch.file("first"), 1, [](Group& group) -> Task<void> {
    const std::string listen = group.portals()[0].listen;
    const std::string text =
        fmt::format("[group]\nname = \"two\"\nstate = \"{}\"\n[[portal]]\nlisten = \"{}\"\n",
                    second_state, listen);
    second_error = fmt::format("portal {}: cannot listen there: address in use; ", listen);
    auto configuration = parse_configuration(text, "two.toml");
    REQUIRE(configuration.has_value());
    // The second group shares this reactor.
    const auto state = StateDirectory::open(second_state);
    auto store = co_await metadata::open_rocksdb_store(Executor::current(),
                                                       {.path = state->metadata().string()});
    auto second = co_await Group::start(*configuration, **store);
    REQUIRE_FALSE(second.has_value());
    CHECK(second.error().kind == StartRefusal::Kind::kNotNow);
    CHECK_THAT(second.error().text, Catch::StartsWith(second_error));
    co_await (*store)->close();
  });
}

// Only the configuration is needed, before anything is made.
TEST_CASE("An address that is taken is named before anything is made", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(scratch.file("first"), 1, [](Group& group) -> Task<void> {
    const std::string listen = group.portals()[0].listen;
    const auto taken_as = [&](std::string_view portal, std::string_view management) {
      const auto configuration = parse_configuration(
          fmt::format("[group]\nname = \"two\"\nstate = \"x\"\n[management]\nlisten = "
                      "\"{}\"\n[[portal]]\nlisten = \"{}\"\n",
                      management, portal),
          "two.toml");
      REQUIRE(configuration.has_value());
      const Started can = can_listen(*configuration, std::chrono::milliseconds(100));
      return can ? std::string("free") : can.error().text;
    };
    constexpr std::string_view kFree = "127.0.0.1:0";
    CHECK(taken_as(kFree, kFree) == "free");
    CHECK(taken_as("[::1]:0", "[::1]:0") == "free");
    CHECK_THAT(
        taken_as(listen, kFree),
        Catch::StartsWith(fmt::format("portal {}: cannot listen there: address in use; ", listen)));
    CHECK_THAT(taken_as(kFree, listen),
               Catch::StartsWith(
                   fmt::format("management {}: cannot listen there: address in use; ", listen)));
    co_return;
  });
}

TEST_CASE("Space that is not there is not reserved", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  static std::filesystem::path state;
  state = scratch.file("state");
  run(state, 1, [](Group& group) -> Task<void> {
    const std::uint64_t free_bytes = std::filesystem::space(state).available;
    const std::uint64_t too_much = (free_bytes / kMiB + 1) * kMiB;
    CreateVolumeRequest request = request_for("large", too_much);
    request.specification.preallocate = true;
    request.specification.thin = false;
    const auto large = co_await group.create_volume(request);
    REQUIRE_FALSE(large.has_value());
    CHECK_THAT(large.error().message, Catch::Contains(" are to be reserved, and "));
    CHECK(files_in(state / "volumes").empty());
    request.specification.name = "small";
    request.specification.size_bytes = 4 * kMiB;
    const auto small = co_await group.create_volume(request);
    INFO((small.has_value() ? "" : small.error().message));
    REQUIRE(small.has_value());
    const auto grown = co_await group.change_volume("small", {.size_bytes = too_much});
    REQUIRE_FALSE(grown.has_value());
    CHECK_THAT(grown.error().message, Catch::Contains(" are to be reserved, and "));
  });
}

TEST_CASE("Why nothing can listen has a cure of its own for each cause", "[group]") {
  const auto line = [](std::uint16_t port, Error error) {
    return cannot_listen("portal", Endpoint::ipv4(0x7f000001, port), error, "--portal");
  };
  CHECK(line(860, Error::kPermission) ==
        "portal 127.0.0.1:860: such a port is for root alone; name one from 1024 on with --portal");
  CHECK(line(3260, Error::kPermission) ==
        "portal 127.0.0.1:3260: the system does not let this user listen there; name another port "
        "with --portal");
  CHECK(line(3260, Error::kUnreachable) ==
        "portal 127.0.0.1:3260: no interface here has this address; name one of this host's with "
        "--portal");
  CHECK(line(3260, Error::kAddressInUse) ==
        "portal 127.0.0.1:3260: cannot listen there: address in use; end what uses it, or name "
        "another address with --portal");
  CHECK(line(3260, Error::kNoMemory) ==
        "portal 127.0.0.1:3260: cannot listen there: out of memory or descriptors; raise this "
        "process's limits (ulimit -n)");
  CHECK(line(3260, Error::kInvalid) ==
        "portal 127.0.0.1:3260: cannot listen there: " + std::string(describe(Error::kInvalid)) +
            "; name another address with --portal");
}

// The portal's own way to these lines.
TEST_CASE("A portal at an address of another machine is refused as that", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  CHECK(refused_start(scratch.file("state"), "[[portal]]\nlisten = \"192.0.2.1:21099\"\n") ==
        "portal 192.0.2.1:21099: no interface here has this address; name one of this host's with "
        "listen or --portal");
}

TEST_CASE("Only files that an intent names are cleaned up", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::filesystem::path state = scratch.file("state");
  run(state, 1, [](Group&) -> Task<void> { co_return; });
  std::ofstream(state / "volumes" / "named.img") << "x";
  std::ofstream(state / "volumes" / "stranger.img") << "x";
  static std::string metadata;
  metadata = (state / "metadata").string();
  auto reactors = ReactorGroup::create({});
  REQUIRE(reactors.has_value());
  (*reactors)->run([]() -> Task<void> {
    auto store = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata});
    metadata::Batch batch;
    batch.put("intent/named", "named.img");
    batch.put("intent/absent", "absent.img");
    const Error error = co_await (*store)->commit(std::move(batch));
    CHECK(error == Error::kNone);
    co_await (*store)->close();
  });
  run(state, 1, [](Group&) -> Task<void> { co_return; });
  CHECK(files_in(state / "volumes") == std::set<std::string>{"stranger.img"});
}

TEST_CASE("What is measured covers every volume and every reactor", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  run(
      scratch.file("state"), 2,
      [](Group& group) -> Task<void> {
        const auto all_now = co_await group.measure();
        const auto& all = *all_now;
        CHECK(all.volumes.size() == 2);
        CHECK(all.targets.size() == 2);
        CHECK(all.sessions.empty());
        REQUIRE(all.executors.size() == 2);
        CHECK(all.executors[1].buffer_limit_bytes > 0);
        CHECK(all.group.provisioned_bytes == 8 * kMiB);
        CHECK(all.volumes[0].executor != all.volumes[1].executor);
      },
      "[[volume]]\nname = \"a\"\nsize = \"4MiB\"\n[[volume]]\nname = \"b\"\nsize = \"4MiB\"\n");
}

}  // namespace
}  // namespace sandbay::group::service_test
