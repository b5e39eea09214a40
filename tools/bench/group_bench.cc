// group_bench: what lists cost a group with 1,000 volumes and 10,000 snapshots on one pool:
// processor time of an entry of the list of volumes, which every scrape of the metrics asks for,
// and of one of a volume's snapshots. Beside the first stands the same list without any snapshot.
//
//   group_bench [DIRECTORY]
#include <ctime>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "group/group.h"
#include "group/state_directory.h"
#include "metadata/rocksdb_store.h"
#include "runtime/reactor.h"

namespace sandbay::group {
namespace {

constexpr int kVolumes = 1000;
constexpr int kSnapshotsOfEach = 10;
constexpr int kRounds = 10;

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

void give_up(const std::string& why) {
  std::fprintf(stderr, "group_bench: %s\n", why.c_str());
  std::exit(1);
}

std::string name_of(int volume) { return "v" + std::to_string(volume); }

// Microseconds an entry.
Task<double> list_volumes(Group* group) {
  const double begun = processor_seconds();
  for (int round = 0; round < kRounds; ++round) {
    const auto list = co_await group->list_volumes();
    if (list.size() != kVolumes) give_up("not all volumes are listed");
  }
  co_return (processor_seconds() - begun) * 1e6 / (kRounds * kVolumes);
}

Task<double> list_snapshots(Group* group) {
  const double begun = processor_seconds();
  for (int volume = 0; volume < kVolumes; ++volume) {
    const auto list = co_await group->list_snapshots(name_of(volume));
    if (!list.has_value() || list->size() != kSnapshotsOfEach) give_up("snapshots are missing");
  }
  co_return (processor_seconds() - begun) * 1e6 / (kVolumes * kSnapshotsOfEach);
}

Task<void> measure(Group* group) {
  CreateSnapshotsRequest request;
  for (int volume = 0; volume < kVolumes; ++volume) {
    CreateVolumeRequest wanted;
    wanted.specification.name = name_of(volume);
    wanted.specification.size_bytes = std::uint64_t{1} << 30;
    wanted.specification.backing = Backing::kPool;
    wanted.specification.pool = "p";
    wanted.specification.thin = true;
    const auto made = co_await group->create_volume(std::move(wanted));
    if (!made.has_value()) give_up(made.error().message);
    request.volumes.push_back(name_of(volume));
  }
  const double without = co_await list_volumes(group);
  for (int i = 0; i < kSnapshotsOfEach; ++i) {
    request.name = "s" + std::to_string(i);
    const auto taken = co_await group->create_snapshots(request);
    if (!taken.has_value()) give_up(taken.error().message);
  }
  const double with = co_await list_volumes(group);
  const double snapshots = co_await list_snapshots(group);
  std::printf(
      "%d volumes, %d snapshots: list of volumes %.2f us an entry (without snapshots %.2f us, "
      "ratio %.1f), of snapshots %.2f us an entry\n",
      kVolumes, kVolumes * kSnapshotsOfEach, with, without, with / without, snapshots);
}

Task<void> run(Configuration configuration, std::string metadata) {
  auto store = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata});
  if (!store) give_up(store.error());
  auto group = co_await Group::start(std::move(configuration), **store);
  if (!group) give_up(group.error());
  co_await measure(group->get());
  co_await (*group)->shutdown();
  group->reset();
  co_await (*store)->close();
}

}  // namespace
}  // namespace sandbay::group

int main(int argc, char** argv) {
  using namespace sandbay;
  const std::string directory =
      std::string(argc > 1 ? argv[1] : "/tmp") + "/group-bench-" + std::to_string(std::rand());
  std::filesystem::remove_all(directory);
  const auto configuration = group::parse_configuration(
      "[group]\nname = \"bench\"\nstate = \"" + directory +
          "\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n"
          "[[drive]]\nname = \"d\"\nfile = \"d\"\nsize = \"1GiB\"\n"
          "[[raid]]\nname = \"a\"\nlevel = \"jbod\"\ndrives = [\"d\"]\njournal = \"1MiB\"\n"
          "[[pool]]\nname = \"p\"\n",
      "bench.toml");
  if (!configuration) group::give_up(configuration.error().front());
  {
    const auto state = group::StateDirectory::open(directory);
    if (!state) group::give_up(state.error());
    auto reactors =
        ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{256} << 20});
    if (!reactors) group::give_up(reactors.error());
    (*reactors)->run([&] { return group::run(*configuration, state->metadata().string()); });
  }
  std::filesystem::remove_all(directory);
  return 0;
}
