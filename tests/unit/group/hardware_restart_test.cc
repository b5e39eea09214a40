// What the hardware remembers over restarts, and how it keeps floods of events out of the log.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "group/hardware.h"
#include "group/hardware_repeats.h"
#include "group/nvram_faults.h"
#include "nvram/image_layout.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::hardware_restart_test {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

std::string raid5(std::string_view more) {
  std::string text;
  for (int i = 0; i < 3; ++i) {
    text += fmt::format(
        "[[drive]]\nname = \"d{0}\"\nfile = \"drives/d{0}.img\"\nsize = \"32MiB\"\n"
        "rotational = true\n",
        i);
  }
  return text + fmt::format(
                    "[[raid]]\nname = \"r\"\nlevel = \"raid5\"\n"
                    "drives = [\"d0\", \"d1\", \"d2\"]\n{}",
                    more);
}

// The geometry of the door of set r.
Task<void> see_door(const Configuration* configuration, std::string metadata, Geometry* seen) {
  auto store = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata});
  REQUIRE(store.has_value());
  EventLog events;
  {
    Hardware hardware(Executor::current(), *configuration, **store, events, Uuid{7});
    const auto started = co_await hardware.start();
    CHECK(started.has_value());
    const auto set = hardware.find_set("r");
    REQUIRE(set.has_value());
    *seen = hardware.door(*set)->geometry();
    co_await hardware.stop(Executor::current().now() + std::chrono::seconds(10));
  }
  co_await (*store)->close();
}

Geometry door_of(const std::filesystem::path& path) {
  const auto configuration = parse_configuration(
      fmt::format("[group]\nname = \"test\"\nstate = \"{}\"\n[[portal]]\nlisten = "
                  "\"127.0.0.1:0\"\n{}",
                  path.string(), raid5("")),
      "test.toml");
  REQUIRE(configuration.has_value());
  const auto state = StateDirectory::open(path);
  REQUIRE(state.has_value());
  auto group = ReactorGroup::create({.count = 1, .memory_limit_bytes = 64 * kMiB});
  REQUIRE(group.has_value());
  Geometry seen;
  (*group)->run([&] { return see_door(&*configuration, state->metadata().string(), &seen); });
  return seen;
}

void check_same(const Geometry& one, const Geometry& other) {
  CHECK(one.physical_block_bytes == other.physical_block_bytes);
  CHECK(one.block_count == other.block_count);
  CHECK(one.optimal_io_blocks == other.optimal_io_blocks);
  CHECK(one.unmap == other.unmap);
  CHECK(one.unmap_zeroes == other.unmap_zeroes);
  CHECK(one.unmap_granularity_blocks == other.unmap_granularity_blocks);
  CHECK(one.volatile_cache == other.volatile_cache);
  CHECK(one.rotational == other.rotational);
}

TEST_CASE("A set looks the same after a restart, also while its drives are away",
          "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  const Geometry first = door_of(state);
  CHECK(first.unmap);
  CHECK(first.rotational);
  CHECK(first.optimal_io_blocks > 0);
  check_same(door_of(state), first);
  std::filesystem::remove(state / "drives/d1.img");
  std::filesystem::remove(state / "drives/d2.img");
  check_same(door_of(state), first);  // It is known by one drive, and does not run.
  std::filesystem::remove_all(state / "drives");
  check_same(door_of(state), first);
}

Task<void> stale_is_told(Group* group, bool expected) {
  const auto events = co_await group->list_events(0);
  CHECK((std::ranges::count(events, "nvram lost", &EventInfo::kind) > 0) == expected);
}

TEST_CASE("An old copy of the NVRAM's image is told to be stale", "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  const std::string sections = raid5("journal = \"nvram\"\n[nvram]\nsize = \"40MiB\"\n");
  const auto run = [&](bool stale) {
    return run_group(state, sections, 1,
                     [stale](Group& group) { return stale_is_told(&group, stale); });
  };
  CHECK(run(false) == "");
  std::filesystem::copy_file(state / "nvram.img", state / "old.img");
  CHECK(run(false) == "");
  std::filesystem::rename(state / "old.img", state / "nvram.img");
  CHECK(run(true) == "");
}

TEST_CASE("An NVRAM that was away for some starts is believed when it comes back",
          "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  const std::string sections =
      raid5("[nvram]\nsize = \"24MiB\"\n[cache]\nmemory = \"16MiB\"\nnvram = \"18MiB\"\n");
  const auto run = [&](bool stale) {
    return run_group(state, sections, 1,
                     [stale](Group& group) { return stale_is_told(&group, stale); });
  };
  CHECK(run(false) == "");
  const auto old = state / "old.img";
  std::filesystem::copy_file(state / "nvram.img", old);
  CHECK(run(false) == "");
  std::filesystem::rename(state / "nvram.img", state / "away.img");
  for (int i = 0; i < 4; ++i) CHECK(run(false) == "");  // With another.
  std::filesystem::rename(state / "away.img", state / "nvram.img");
  CHECK(run(false) == "");
  std::filesystem::rename(old, state / "nvram.img");
  CHECK(run(true) == "");
}

Task<void> return_to_earlier(std::string path) {
  auto opened = co_await nvram::Nvram::open(Executor::current(),
                                            {.path = path, .byte_count = kMiB, .boot_id = "boot"});
  REQUIRE(opened.has_value());
  nvram::Nvram& nvram = **opened;
  NvramFaults faults(nvram);
  const auto image = nvram.image();
  CHECK(faults.byte_count() == kMiB);
  image[nvram::kHeaderBytes] = std::byte{1};
  faults.remember_content();
  auto region = co_await nvram.claim("late", 64 * 1024);  // Changes the header.
  REQUIRE(region.has_value());
  const std::vector<std::byte> header(image.begin(), image.begin() + nvram::kHeaderBytes);
  image[nvram::kHeaderBytes] = std::byte{2};
  faults.return_to_earlier_content();
  CHECK(std::ranges::equal(header, image.first(nvram::kHeaderBytes)));
  CHECK(image[nvram::kHeaderBytes] == std::byte{1});
  region->reset();
  const Error closed = co_await nvram.close();
  CHECK(closed == Error::kNone);
}

TEST_CASE("NVRAM of an earlier time keeps its header, both copies", "[group][nvram_faults]") {
  const sandbay::testing::ScratchDirectory scratch;
  auto group = ReactorGroup::create({.count = 1, .memory_limit_bytes = 64 * kMiB});
  REQUIRE(group.has_value());
  (*group)->run([&] { return return_to_earlier(scratch.file("nvram.img")); });
}

constexpr std::string_view kGone = "raid-01020304-0506-4708-890a-0b0c0d0e0f10";

// The image has a region of a set that nobody knows, and the one of set r.
Task<void> add_region(std::string path) {
  auto opened = co_await nvram::Nvram::open(
      Executor::current(), {.path = path, .byte_count = 40 * kMiB, .boot_id = "boot"});
  REQUIRE(opened.has_value());
  auto region = co_await (*opened)->claim(std::string(kGone), 4 * kMiB);
  REQUIRE(region.has_value());
  const Error settled = co_await (*region)->settle();
  CHECK(settled == Error::kNone);
  region->reset();
  const Error closed = co_await (*opened)->close();
  CHECK(closed == Error::kNone);
}

Task<void> see_released(Group* group, std::size_t* told) {
  const auto events = co_await group->list_events(0);
  for (const EventInfo& event : events) {
    if (event.kind != "nvram released") continue;
    ++*told;
    CHECK(event.text.contains(kGone));
  }
}

TEST_CASE("The NVRAM of a set that is gone is free, unless a drive is away", "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  const std::string sections = raid5("journal = \"nvram\"\n[nvram]\nsize = \"40MiB\"\n");
  const auto run = [&](std::size_t expected) {
    std::size_t told = 0;
    const std::string refused = run_group(
        state, sections, 1, [&told](Group& group) { return see_released(&group, &told); });
    CHECK(refused == "");
    CHECK(told == expected);
  };
  run(0);
  auto group = ReactorGroup::create({.count = 1, .memory_limit_bytes = 64 * kMiB});
  REQUIRE(group.has_value());
  (*group)->run([&] { return add_region((state / "nvram.img").string()); });
  group->reset();
  std::filesystem::rename(state / "drives" / "d0.img", state / "away.img");
  run(0);
  std::filesystem::rename(state / "away.img", state / "drives" / "d0.img");
  // One whose superblock cannot be read may be of that set.
  const auto spoil = [&] {
    std::fstream drive(state / "drives" / "d0.img",
                       std::ios::binary | std::ios::in | std::ios::out);
    for (std::uint64_t at = 0; at < 32 * kMiB; at += 4096) {
      drive.seekp(static_cast<std::streamoff>(at));
      drive.put('x');
    }
    REQUIRE(drive.good());
  };
  std::filesystem::copy_file(state / "drives" / "d0.img", state / "good.img");
  spoil();
  run(0);
  std::filesystem::rename(state / "good.img", state / "drives" / "d0.img");
  run(1);
  run(1);  // Events are kept: it was not told again.
}

// As where the metadata are new, and the drives, and only the NVRAM is what it was.
TEST_CASE("The NVRAM of sets is kept where no set is known", "[group][hardware]") {
  const sandbay::testing::ScratchDirectory scratch;
  const auto state = std::filesystem::path(scratch.file("state"));
  std::size_t told = 0;
  const auto run = [&] {
    const std::string refused =
        run_group(state,
                  "[[drive]]\nname = \"d0\"\nfile = \"drives/d0.img\"\nsize = \"32MiB\"\n"
                  "[nvram]\nsize = \"40MiB\"\n",
                  1, [&told](Group& group) { return see_released(&group, &told); });
    CHECK(refused == "");
  };
  run();
  auto group = ReactorGroup::create({.count = 1, .memory_limit_bytes = 64 * kMiB});
  REQUIRE(group.has_value());
  (*group)->run([&] { return add_region((state / "nvram.img").string()); });
  group->reset();
  run();
  CHECK(told == 0);
}

TEST_CASE("A flood of one kind of event is told in few lines, and counted", "[group][events]") {
  EventLog log;
  RepeatedEvents repeated(log);
  const TimePoint start{};
  const EventInfo corrupt{.kind = "corruption", .set = "r", .drive = "d0", .text = "bad"};
  EventInfo other = corrupt;
  other.drive = "d1";
  for (int i = 0; i < 1000; ++i) repeated.add(corrupt, start);
  repeated.add(other, start);
  CHECK(log.total() == 2);
  repeated.tell(start + std::chrono::milliseconds(900));
  CHECK(log.total() == 2);
  repeated.tell(start + std::chrono::seconds(1));
  CHECK(log.total() == 3);
  CHECK(log.since(2).at(0).text == "bad; and 998 more like this one");
  for (int second = 1; second < 600; ++second) {
    for (int i = 0; i < 700; ++i) repeated.add(corrupt, start + std::chrono::seconds(second));
    repeated.tell(start + std::chrono::seconds(second));
  }
  CHECK(log.total() < 25);
  repeated.tell_all();
  const auto before = log.total();
  repeated.tell_all();
  CHECK(log.total() == before);
  repeated.add(corrupt, start);  // A new one is told at once.
  CHECK(log.total() == before + 1);
}

}  // namespace
}  // namespace sandbay::group::hardware_restart_test
