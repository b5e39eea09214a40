// Who may stand on which file: two volumes never on one, by whatever name; none on what the group
// keeps; two daemons never on one image. And what cannot be opened, while all else is served.
#include "group/claims.h"

#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::claims_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

void make_image(const std::filesystem::path& path) {
  std::ofstream(path).put('x');
  std::filesystem::resize_file(path, kMiB);
}

CreateVolumeRequest on_file(std::string name, std::string path) {
  CreateVolumeRequest request;
  request.specification.name = std::move(name);
  request.specification.backing = Backing::kFile;
  request.specification.path = std::move(path);
  return request;
}

unsigned mode_of(const std::filesystem::path& path) {
  struct stat status{};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 0777;
}

std::filesystem::path root;  // Of the test that runs.

Task<void> claim_by_other_names(Group& group) {
  const auto first = co_await group.create_volume(on_file("a", root / "image"));
  REQUIRE(first.has_value());
  CreateVolumeRequest own;
  own.specification.name = "own";
  own.specification.size_bytes = kMiB;
  const auto private_file = co_await group.create_volume(own);
  REQUIRE(private_file.has_value());
  std::filesystem::create_hard_link(private_file->volume.path, root / "own-link");
  std::filesystem::create_hard_link(root / "state/metadata/CURRENT", root / "current-link");
  for (const std::filesystem::path& path :
       {root / "image", root / "symbolic", root / "hard", root / "state/../image",
        root / "own-link", root / "current-link", root / "state/lock",
        root / "state/metadata/CURRENT", root / "state/metadata/new",
        root / "state/volumes/new.img", root / "state/import", root / "state/before-import",
        std::filesystem::path(private_file->volume.path)}) {
    CAPTURE(path.string());
    auto request = on_file("b", path);
    if (!std::filesystem::exists(path)) request.specification.size_bytes = kMiB;
    const bool there = std::filesystem::exists(path);
    const auto second = co_await group.create_volume(request);
    REQUIRE_FALSE(second.has_value());
    CHECK(second.error().code == Refusal::Code::kConflict);
    CHECK_THAT(second.error().message,
               Catch::Contains(" belongs to volume \"") || Catch::Contains("is the group's own"));
    CHECK(std::filesystem::exists(path) == there);
  }
}

TEST_CASE("A file serves one volume by whatever name, and nothing of the group's",
          "[group][G-I6]") {
  const sandbay::testing::ScratchDirectory scratch;
  root = scratch.file("");
  make_image(root / "image");
  std::filesystem::create_symlink(root / "image", root / "symbolic");
  std::filesystem::create_hard_link(root / "image", root / "hard");
  const std::string error = run_group(root / "state", "", 2, claim_by_other_names);
  CHECK(error.empty());

  const std::string sections = fmt::format(
      "[[volume]]\nname = \"x\"\nfile = \"{}\"\n[[volume]]\nname = \"y\"\nfile = \"{}\"\n",
      (root / "image").string(), (root / "hard").string());
  CHECK_THAT(
      run_group(root / "other", sections, 1, [](Group&) -> Task<void> { co_return; }),
      Catch::Contains("test.toml:9: volume \"y\": ") && Catch::Contains("belongs to volume \"x\""));
}

TEST_CASE("A loop device is the file that it shows as a whole", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::filesystem::path system = scratch.file("sys");
  const auto loop = system / "dev/block/7:1/loop";
  std::filesystem::create_directories(loop);
  std::filesystem::create_directories(system / "dev/block/8:1");
  const auto say = [&](const char* name, std::string_view text) {
    std::ofstream(loop / name) << text << '\n';
  };
  CHECK_FALSE(file_behind(7, 1, system).has_value());
  say("backing_file", "/data/l1.img");
  say("offset", "0");
  say("sizelimit", "0");
  CHECK(file_behind(7, 1, system) == std::filesystem::path("/data/l1.img"));
  CHECK_FALSE(file_behind(8, 1, system).has_value());
  say("offset", "1048576");
  CHECK_FALSE(file_behind(7, 1, system).has_value());
}

TEST_CASE("An image that another process serves keeps the group from starting", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  root = scratch.file("");
  make_image(root / "image");
  const int other = ::open((root / "image").c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(::flock(other, LOCK_EX | LOCK_NB) == 0);
  const std::string sections =
      fmt::format("[[volume]]\nname = \"v\"\nfile = \"{}\"\n", (root / "image").string());
  const GroupTest nothing = [](Group&) -> Task<void> { co_return; };
  CHECK(run_group(root / "state", sections, 1, nothing) ==
        fmt::format("test.toml:6: volume \"v\": file {}: is in use by another process",
                    (root / "image").string()));
  const std::string error = run_group(root / "state", "", 1, [](Group& group) -> Task<void> {
    const auto made = co_await group.create_volume(on_file("r", root / "image"));
    REQUIRE_FALSE(made.has_value());
    CHECK_THAT(made.error().message, Catch::Contains("is in use by another process"));
  });
  CHECK(error.empty());
  ::close(other);
  CHECK(run_group(root / "state", sections, 1, nothing).empty());
}

Task<void> look_at_missing(Group& group) {
  const auto gone = co_await group.show_volume("gone");
  REQUIRE(gone.has_value());
  CHECK(gone->health == "missing");
  CHECK_THAT(gone->reason, Catch::Contains("not found"));
  const auto declared = co_await group.show_volume("declared");
  CHECK(declared->health == "missing");
  const auto good = co_await group.show_volume("good");
  CHECK(good->health == "good");
  CHECK(good->reason.empty());
  const auto grown =
      co_await group.change_volume("gone", {.size_bytes = 2 * kMiB, .name = std::nullopt});
  REQUIRE_FALSE(grown.has_value());
  CHECK_THAT(grown.error().message, Catch::Contains("is not served"));
  const auto all_now = co_await group.measure();
  const auto& all = *all_now;
  CHECK(all.volumes.size() == 3);
  const auto deleted = co_await group.delete_volume("gone", false);
  CHECK(deleted.has_value());
}

TEST_CASE("A missing image is shown and deleted while all else is served", "[group]") {
  const unsigned reactors = GENERATE(1U, 2U);
  const sandbay::testing::ScratchDirectory scratch;
  root = scratch.file("");
  make_image(root / "image");
  std::string error = run_group(root / "state", "", reactors, [](Group& group) -> Task<void> {
    const auto made = co_await group.create_volume(on_file("gone", root / "image"));
    CHECK(made.has_value());
    CreateVolumeRequest good;
    good.specification.name = "good";
    good.specification.size_bytes = kMiB;
    const auto other = co_await group.create_volume(good);
    CHECK(other.has_value());
  });
  CHECK(error.empty());
  std::filesystem::remove(root / "image");
  const std::string sections = "[[volume]]\nname = \"declared\"\nfile = \"/nowhere/image\"\n";
  error = run_group(root / "state", sections, reactors, look_at_missing);
  CHECK(error.empty());
  error = run_group(root / "state", "", reactors, [](Group& group) -> Task<void> {
    const auto volumes_now = co_await group.list_volumes();
    const auto& volumes = *volumes_now;
    REQUIRE(volumes.size() == 1);
    CHECK(volumes[0].name == "good");
  });
  CHECK(error.empty());
}

TEST_CASE("What the group keeps is closed to other users, also if it was open", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  root = scratch.file("");
  const GroupTest nothing = [](Group&) -> Task<void> { co_return; };
  REQUIRE(run_group(root / "state", "", 1, nothing).empty());
  const auto metadata = root / "state/metadata";
  ::chmod(metadata.c_str(), 0755);
  ::chmod((metadata / "CURRENT").c_str(), 0644);
  const auto state = StateDirectory::open(root / "state");
  REQUIRE(state.has_value());
  CHECK(mode_of(metadata) == 0700);
  CHECK(mode_of(metadata / "CURRENT") == 0600);
  CHECK(mode_of(root / "state/volumes") == 0700);
}

TEST_CASE("A path counts where its links lead", "[G-S6][group]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::filesystem::path top = scratch.file("");
  const std::vector<std::filesystem::path> folders{top / "in", top / "one"};
  std::filesystem::create_directories(top / "in/deep");
  std::filesystem::create_directory(top / "out");
  make_image(top / "one");
  make_image(top / "out/image");
  std::filesystem::create_symlink(top / "out/image", top / "in/to-image");
  std::filesystem::create_symlink(top / "out", top / "in/to-folder");
  std::filesystem::create_symlink(top / "out/new", top / "in/to-nothing");
  std::filesystem::create_symlink(top / "in/loop", top / "in/loop");
  std::filesystem::create_symlink(top / "in", top / "also-in");
  for (const char* path : {"in/new", "in/deep/new", "one", "out/../in/new", "also-in/new"}) {
    CAPTURE(path);
    CHECK_FALSE(outside_of(top / path, folders).has_value());
  }
  for (const char* path : {"out/image", "out/new", "in/../out/new", "in/to-image", "in/to-nothing",
                           "in/to-folder/new", "in/loop", "in-not/new", "one-not", "absent/new"}) {
    CAPTURE(path);
    CHECK(outside_of(top / path, folders).has_value());
  }
  CHECK(outside_of("/etc/new", {}).value_or("") ==
        "/etc/new is outside of what management may use (nothing); add its folder to "
        "management.volume_paths in the daemon's file and restart the daemon");
}

}  // namespace
}  // namespace sandbay::group::claims_test
