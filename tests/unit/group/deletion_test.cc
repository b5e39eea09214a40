// A volume with more snapshots than one commit deletes: nothing of it is deleted as long as a host
// may still use it, and it is served again, with what is left of it, if it stays.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "group/pool_records.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/host.h"
#include "tests/unit/group/running.h"
#include "tests/unit/metadata/forwarding_store.h"

namespace sandbay::group {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::size_t kTaken = 513;

const std::string kRack =
    "[[drive]]\nname = \"d0\"\nfile = \"../d0\"\nsize = \"72MiB\"\n"
    "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d0\"]\njournal = \"1MiB\"\n"
    "[[pool]]\nname = \"p\"\npage = \"1MiB\"\n";

// Holds the first commit that deletes snapshots, once armed, and fails some of them.
class HoldingStore final : public sandbay::testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Task<Error> commit(metadata::Batch batch) override { return do_commit(this, std::move(batch)); }

  bool armed = false;
  Event held;
  Event release;
  std::size_t good_deletions = 100;  // Then they fail.

 private:
  static Task<Error> do_commit(HoldingStore* self, metadata::Batch batch) {
    const bool deletes = std::ranges::any_of(batch.changes(), [](const auto& change) {
      return change.kind == metadata::Batch::Kind::kErase &&
             change.key.starts_with(kSnapshotPrefix);
    });
    if (!deletes) co_return co_await self->below_.commit(std::move(batch));
    if (std::exchange(self->armed, false)) {
      self->held.set();
      co_await self->release.wait();
    }
    if (self->good_deletions == 0) co_return Error::kHardware;
    --self->good_deletions;
    co_return co_await self->below_.commit(std::move(batch));
  }
};

// The oldest one and the newest one are online.
Task<std::string> provision(Group& group) {
  CreateVolumeRequest request{.open = {.backing = true, .thin = true, .block_bytes = true}};
  request.specification.name = "v";
  request.specification.size_bytes = 4 * kMiB;
  request.access.push_back({.initiator = "iqn.2026-11.org.sandbay:*"});
  const auto made = co_await group.create_volume(request);
  REQUIRE(made.has_value());
  for (std::size_t i = 0; i < kTaken; ++i) {
    const auto taken =
        co_await group.create_snapshots({.volumes = {"v"}, .name = "s" + std::to_string(i)});
    REQUIRE(taken.has_value());
  }
  for (const std::size_t i : {std::size_t{0}, kTaken - 1}) {
    const auto online = co_await group.online_snapshot({"v", "s" + std::to_string(i)}, true);
    REQUIRE(online.has_value());
  }
  co_return made->volume.specification.target;
}

// The volume's snapshots. Each online snapshot has a target, and so has the volume.
Task<std::size_t> count_snapshots(Group& group) {
  const auto list = co_await group.list_snapshots("v");
  REQUIRE(list.has_value());
  const auto online = std::ranges::count_if(
      *list, [](const SnapshotInfo& one) { return one.online && one.reason.empty(); });
  const auto targets = co_await group.list_targets();
  CHECK(std::ssize(*targets) == online + 1);
  co_return list->size();
}

Task<void> delete_beside(Group* group, Answer<void>* deleted, Event* ended) {
  *deleted = co_await group->delete_volume("v", true);
  ended->set();
}

Task<void> delete_in_steps(Group& group, HoldingStore& store) {
  const std::string target = co_await provision(group);
  const std::string portal = group.portals()[0].listen;
  testing::HostSession host = co_await testing::log_in(portal, target);
  REQUIRE(host != nullptr);
  co_await testing::settle(host.get());

  store.armed = true;
  store.good_deletions = 0;
  Answer<void> deleted;
  Event ended;
  spawn(delete_beside(&group, &deleted, &ended));
  co_await store.held.wait();
  const testing::HostReply reply = co_await testing::read_run(host.get(), 0);
  CHECK_FALSE(reply.result.good());
  store.release.set();
  co_await ended.wait();
  REQUIRE_FALSE(deleted.has_value());
  CHECK_THAT(deleted.error().message, Catch::StartsWith("volume \"v\" stays: "));
  std::size_t left = co_await count_snapshots(group);
  CHECK(left == kTaken);
  co_await testing::settle(host.get());

  // The metadata fail in between: what is deleted is not said to be there.
  store.good_deletions = 1;
  deleted = co_await group.delete_volume("v", true);
  REQUIRE_FALSE(deleted.has_value());
  CHECK_THAT(deleted.error().message,
             Catch::StartsWith("volume \"v\" stays, without its oldest snapshot: "));
  left = co_await count_snapshots(group);
  CHECK(left == kTaken - 1);
  co_await testing::settle(host.get());
  co_await host->close();

  store.good_deletions = 100;
  deleted = co_await group.delete_volume("v", true);
  CHECK(deleted.has_value());
  const auto targets = co_await group.list_targets();
  CHECK(targets->empty());
}

Task<void> serve(Configuration configuration, std::string metadata) {
  auto opened = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata});
  if (!opened) FAIL(opened.error());
  HoldingStore store(**opened);
  auto group = co_await Group::start(std::move(configuration), store);
  if (!group) FAIL(group.error().text);
  co_await delete_in_steps(**group, store);
  co_await (*group)->shutdown();
  co_await store.close();
}

TEST_CASE("No snapshot of a volume is deleted before its hosts are gone",
          "[group][snapshot][P-7]") {
  const sandbay::testing::ScratchDirectory scratch;
  const std::string path = scratch.file("state");
  auto configuration = parse_configuration("[group]\nname = \"test\"\nstate = \"" + path +
                                               "\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n" + kRack,
                                           "test.toml");
  REQUIRE(configuration);
  const auto state = StateDirectory::open(path);
  REQUIRE(state);
  auto reactors = ReactorGroup::create({.count = 1, .memory_limit_bytes = 64 * kMiB});
  REQUIRE(reactors);
  (*reactors)->run([&] { return serve(*configuration, state->metadata().string()); });
}

}  // namespace
}  // namespace sandbay::group
