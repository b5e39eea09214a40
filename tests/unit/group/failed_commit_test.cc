// Management on metadata whose commits fail, and what the next start makes of it. The worst store
// is one in doubt whose failed batch is there after all: nobody who was told that a volume stays,
// or that nothing was changed for good, may find its data gone then.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/doubtful_store.h"
#include "tests/unit/group/running.h"

namespace sandbay::group {
namespace {

Task<void> make_volume(Group& group) {
  CreateVolumeRequest request;
  request.specification.name = "v";
  request.specification.size_bytes = std::uint64_t{1} << 20;
  const auto made = co_await group.create_volume(request);
  CHECK(made.has_value());
}

Task<std::string> refusal_to_delete(Group& group) {
  const auto deleted = co_await group.delete_volume("v", false);
  co_return deleted ? "deleted" : deleted.error().message;
}

// Why it is not served; empty if it is.
Task<std::string> reason_of_volume(Group& group) {
  const auto volume = co_await group.show_volume("v");
  co_return volume ? volume->reason : volume.error().message;
}

std::size_t files_in(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator files(folder);
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

constexpr const char* kCannotBegin =
    "volume \"v\" stays: the metadata cannot be written: input/output error";

Task<void> cannot_begin(Group& group, DoubtfulStore& store, bool there_after_all) {
  co_await make_volume(group);
  store.arm(0, there_after_all);
  const std::string refusal = co_await refusal_to_delete(group);
  CHECK(refusal == kCannotBegin);
  const std::string reason = co_await reason_of_volume(group);
  CHECK(reason.empty());
}

Task<void> cannot_finish(Group& group, DoubtfulStore& store, bool there_after_all) {
  co_await make_volume(group);
  store.arm(1, there_after_all);
  const std::string refusal = co_await refusal_to_delete(group);
  CHECK(refusal.starts_with("volume \"v\" is not served any more: whether it is deleted shows"));
  const std::string reason = co_await reason_of_volume(group);
  CHECK(reason.starts_with("is not served any more"));
}

Task<void> finishes_later(Group& group, DoubtfulStore& store, bool there_after_all) {
  co_await cannot_finish(group, store, there_after_all);
  const std::string refusal = co_await refusal_to_delete(group);
  CHECK(refusal.starts_with("volume \"v\" is as it was: "));  // Which is not known.
  store.disarm();
  const std::string deleted = co_await refusal_to_delete(group);
  CHECK(deleted == "deleted");
}

Task<void> cannot_be_made(Group& group, DoubtfulStore& store, bool there_after_all) {
  CreateVolumeRequest request;
  request.specification.name = "v";
  request.specification.size_bytes = std::uint64_t{1} << 20;
  store.arm(1, there_after_all);
  const auto made = co_await group.create_volume(request);
  CHECK_FALSE(made.has_value());
  if (!made)
    CHECK(made.error().message.find("until they can nothing changes") != std::string::npos);
}

// After a restart: whether there is a volume, served, and how many files there are.
struct After {
  bool served = false;
  std::size_t files = 0;
};

After restart(const std::filesystem::path& state) {
  static std::string reason;
  const std::string error = run_group(
      state, "", 1, [](Group& group) -> Task<void> { reason = co_await reason_of_volume(group); });
  REQUIRE(error.empty());
  return {.served = reason.empty(), .files = files_in(state / "volumes")};
}

// Each start gets one commit further, until the daemon serves.
Task<void> start_beside_failures(Configuration configuration, std::string metadata,
                                 unsigned* refusals) {
  auto opened = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata});
  if (!opened) FAIL(opened.error());
  DoubtfulStore store(**opened);
  for (bool serves = false; !serves && *refusals < 100;) {
    store.disarm();
    store.arm(*refusals, false);
    auto group = co_await Group::start(configuration, store);
    serves = group.has_value();
    if (serves) {
      co_await (*group)->shutdown();
    } else {
      CAPTURE(group.error().text);
      CHECK(group.error().kind == StartRefusal::Kind::kNotNow);
      ++*refusals;
    }
  }
  co_await store.close();
}

TEST_CASE("A start that cannot write what the file has anew may be tried again", "[group]") {
  const std::string section =
      GENERATE("[[volume]]\nname = \"v\"\nsize = \"1MiB\"\n", "[[pool]]\nname = \"p\"\n");
  const sandbay::testing::ScratchDirectory scratch;
  const auto configuration =
      parse_configuration(fmt::format("[group]\nname = \"test\"\nstate = \"{}\"\n[[portal]]\n"
                                      "listen = \"127.0.0.1:0\"\n{}",
                                      scratch.file("state"), section),
                          "test.toml");
  REQUIRE(configuration);
  const auto state = StateDirectory::open(scratch.file("state"));
  REQUIRE(state);
  auto reactors = ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{64} << 20});
  REQUIRE(reactors);
  unsigned refusals = 0;
  (*reactors)->run(
      [&] { return start_beside_failures(*configuration, state->metadata().string(), &refusals); });
  CHECK(refusals < 100);
  CHECK(refusals >= 2);  // The group's own record, and the section's.
}

TEST_CASE("A volume that stays is there after a restart, whatever the disk has", "[group]") {
  const bool there_after_all = GENERATE(false, true);
  const sandbay::testing::ScratchDirectory scratch;
  run_doubtfully(scratch.file("state"), "", cannot_begin, there_after_all);
  const After after = restart(scratch.file("state"));
  CHECK(after.served);
  CHECK(after.files == 1);
}

TEST_CASE("A volume of which it is not known whether it is deleted takes no writes", "[group]") {
  const bool there_after_all = GENERATE(false, true);
  const sandbay::testing::ScratchDirectory scratch;
  run_doubtfully(scratch.file("state"), "", cannot_finish, there_after_all);
  const After after = restart(scratch.file("state"));
  CHECK(after.served == !there_after_all);
  CHECK(after.files == (there_after_all ? 0 : 1));
}

TEST_CASE("A deletion that was in doubt can be asked for again", "[group]") {
  const sandbay::testing::ScratchDirectory scratch;
  run_doubtfully(scratch.file("state"), "", finishes_later, false);
  const After after = restart(scratch.file("state"));
  CHECK_FALSE(after.served);
  CHECK(after.files == 0);
}

TEST_CASE("A volume that may have been made is whole after a restart, or not there", "[group]") {
  const bool there_after_all = GENERATE(false, true);
  const sandbay::testing::ScratchDirectory scratch;
  run_doubtfully(scratch.file("state"), "", cannot_be_made, there_after_all);
  const After after = restart(scratch.file("state"));
  CHECK(after.served == there_after_all);
  CHECK(after.files == (there_after_all ? 1 : 0));
}

}  // namespace
}  // namespace sandbay::group
