// Snapshots of a volume that a host uses: who may use them, and that nobody deletes what was
// written to one.
#include <algorithm>
#include <catch2/catch.hpp>

#include "group/records.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/host.h"
#include "tests/unit/group/running.h"

namespace sandbay::group::snapshot_access_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
const std::string kRack =
    "[[drive]]\nname = \"d0\"\nfile = \"d0\"\nsize = \"72MiB\"\n"
    "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n"
    "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n";
const std::string kVolume = "iqn.2026-11.org.sandbay:v";
const std::string kSnapshot = "iqn.2026-11.org.sandbay:v-s";

Task<void> make_volume(Group* group, std::string initiator) {
  CreateVolumeRequest request{.open = {.backing = true, .thin = true, .block_bytes = true}};
  request.specification.name = "v";
  request.specification.size_bytes = 16 * kMiB;
  request.access.push_back({.initiator = std::move(initiator)});
  const auto made = co_await group->create_volume(std::move(request));
  INFO((made ? std::string() : made.error().message));
  REQUIRE(made.has_value());
}

// Whether our initiator gets in there.
Task<bool> let_in(Group* group, std::string target) {
  const auto session = co_await testing::log_in(group->portals()[0].listen, std::move(target));
  if (session != nullptr) co_await session->close();
  co_return session != nullptr;
}

Task<void> revoke(Group& group) {
  co_await make_volume(&group, "iqn.2026-11.org.sandbay:*");
  const auto taken = co_await group.create_snapshots({.volumes = {"v"}, .name = "s"});
  REQUIRE(taken.has_value());
  const auto online = co_await group.online_snapshot({"v", "s"}, false);
  REQUIRE(online.has_value());
  REQUIRE(online->target == kSnapshot);
  bool in = co_await let_in(&group, kSnapshot);
  CHECK(in);
  const auto shown = co_await group.show_target(kSnapshot);
  REQUIRE(shown.has_value());
  REQUIRE(shown->access.size() == 1);
  CHECK(shown->access.front().id == "v/1");

  const auto removed = co_await group.remove_access("v", "1");
  REQUIRE(removed.has_value());
  for (const std::string& target : {kVolume, kSnapshot}) {
    CAPTURE(target);
    in = co_await let_in(&group, target);
    CHECK_FALSE(in);
  }
  // An initiator that is let in later is let in to both.
  const auto added = co_await group.add_access("v", {.initiator = "*"});
  REQUIRE(added.has_value());
  CHECK(added->access.id == "2");
  for (const std::string& target : {kVolume, kSnapshot}) {
    CAPTURE(target);
    in = co_await let_in(&group, target);
    CHECK(in);
  }
  const auto again = co_await group.remove_access("v", "2");
  REQUIRE(again.has_value());
}

Task<void> stay_out(Group& group) {
  for (const std::string& target : {kVolume, kSnapshot}) {
    CAPTURE(target);
    const bool in = co_await let_in(&group, target);
    CHECK_FALSE(in);
  }
}

// As earlier daemons did: the snapshot's target has a copy of what the volume's had.
Task<void> put_copy(std::string metadata) {
  auto store = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata});
  REQUIRE(store.has_value());
  TargetRecord record{.name = kSnapshot};
  record.access.push_back({.id = record.next_id++, .record = {.initiator = "*"}});
  metadata::Batch batch;
  batch.put(target_key(kSnapshot), encode(record));
  const Error error = co_await (*store)->commit(std::move(batch));
  CHECK(error == Error::kNone);
  co_await (*store)->close();
}

void run(const std::filesystem::path& state, const GroupTest& test) {
  const std::string error = run_group(state, kRack, 1, test);
  if (!error.empty()) FAIL(error);
}

}  // namespace

TEST_CASE("Access to a snapshot ends with access to its volume", "[group][snapshot][G-C4]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::filesystem::path state = scratch.file("state");
  run(state, revoke);
  run(state, stay_out);
  {
    const auto directory = StateDirectory::open(state);
    REQUIRE(directory.has_value());
    auto reactors = ReactorGroup::create({.count = 1, .memory_limit_bytes = 64 * kMiB});
    REQUIRE(reactors.has_value());
    (*reactors)->run([&] { return put_copy(directory->metadata().string()); });
  }
  run(state, stay_out);
}

}  // namespace sandbay::group::snapshot_access_test
