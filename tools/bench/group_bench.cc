// group_bench: what lists cost a group with 1,000 volumes and 10,000 snapshots on one pool:
// processor time of an entry of the list of volumes, which every scrape of the metrics asks for,
// and of one of a volume's snapshots. Beside the first stands the same list without any snapshot.
// Then the cost of a new volume with and without the snapshots; and the longest turn, in processor
// time, while 64 clients ask for lists and metrics, and while a volume with 10,000 snapshots is
// deleted.
//
//   group_bench [DIRECTORY]
#include <ctime>

#include <algorithm>
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
    const auto list_now = co_await group->list_volumes();
    const auto& list = *list_now;
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

Task<void> make_volume(Group* group, std::string name) {
  CreateVolumeRequest wanted;
  wanted.specification.name = std::move(name);
  wanted.specification.size_bytes = std::uint64_t{1} << 30;
  wanted.specification.backing = Backing::kPool;
  wanted.specification.pool = "p";
  wanted.specification.thin = true;
  const auto made = co_await group->create_volume(std::move(wanted));
  if (!made.has_value()) give_up(made.error().message);
}

// Microseconds a volume.
Task<double> make_more(Group* group, std::string prefix) {
  constexpr int kMore = 50;
  const double begun = processor_seconds();
  for (int i = 0; i < kMore; ++i) co_await make_volume(group, prefix + std::to_string(i));
  const double spent = processor_seconds() - begun;
  for (int i = 0; i < kMore; ++i) {
    const auto deleted = co_await group->delete_volume(prefix + std::to_string(i), true);
    if (!deleted.has_value()) give_up(deleted.error().message);
  }
  co_return spent * 1e6 / kMore;
}

// Turns -------------------------------------------------------------------------------------------

struct Turns {
  bool stopping = false;
  double longest = 0;
  Event ended;
};

Task<void> watch_turns(Turns* turns) {
  timespec time{};
  double before = 0;
  while (!turns->stopping) {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    const double now = static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
    if (before > 0) turns->longest = std::max(turns->longest, now - before);
    before = now;
    co_await Executor::current().turn_end();
  }
  turns->ended.set();
}

// Milliseconds.
Task<double> longest_of(Task<void> work) {
  Turns turns;
  spawn(watch_turns(&turns));
  co_await std::move(work);
  turns.stopping = true;
  co_await turns.ended.wait();
  co_return turns.longest * 1e3;
}

struct Asked {
  std::size_t left = 0;
  Event ended;
};

Task<void> ask(Group* group, bool metrics, Asked* asked) {
  if (metrics) {
    const auto all = co_await group->measure();
    if (all->volumes.size() != kVolumes) give_up("not all volumes are measured");
  } else {
    const auto list = co_await group->list_volumes();
    if (list->size() != kVolumes) give_up("not all volumes are listed");
  }
  if (--asked->left == 0) asked->ended.set();
}

Task<void> ask_at_once(Group* group) {
  Asked asked{.left = 64, .ended = {}};
  for (int i = 0; i < 64; ++i) spawn(ask(group, i % 2 == 0, &asked));
  co_await asked.ended.wait();
}

Task<void> delete_one(Group* group) {
  const auto deleted = co_await group->delete_volume("many", true);
  if (!deleted.has_value()) give_up(deleted.error().message);
}

Task<void> measure_turns(Group* group) {
  const double lists = co_await longest_of(ask_at_once(group));
  std::printf("64 clients ask for lists and metrics: longest turn %.2f ms (limit 10 ms)\n", lists);
  co_await make_volume(group, "many");
  for (int i = 0; i < kVolumes * kSnapshotsOfEach; ++i) {
    const auto taken =
        co_await group->create_snapshots({.volumes = {"many"}, .name = "t" + std::to_string(i)});
    if (!taken.has_value()) give_up(taken.error().message);
  }
  const TimePoint begun = Executor::current().now();
  const double deletion = co_await longest_of(delete_one(group));
  const std::chrono::duration<double> spent = Executor::current().now() - begun;
  std::printf("volume with %d snapshots deleted: %.2f s, longest turn %.2f ms (limit 10 ms)\n",
              kVolumes * kSnapshotsOfEach, spent.count(), deletion);
}

Task<void> measure(Group* group) {
  CreateSnapshotsRequest request;
  for (int volume = 0; volume < kVolumes; ++volume) {
    co_await make_volume(group, name_of(volume));
    request.volumes.push_back(name_of(volume));
  }
  const double alone = co_await make_more(group, "a");
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
  const double beside = co_await make_more(group, "b");
  std::printf("a new volume: %.0f us beside the snapshots, %.0f us without\n", beside, alone);
  std::fflush(stdout);
  co_await measure_turns(group);
}

Task<void> run(Configuration configuration, std::string metadata) {
  auto store = co_await metadata::open_rocksdb_store(Executor::current(), {.path = metadata});
  if (!store) give_up(store.error());
  auto group = co_await Group::start(std::move(configuration), **store);
  if (!group) give_up(group.error().text);
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
    if (!state) group::give_up(state.error().text);
    auto reactors =
        ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{256} << 20});
    if (!reactors) group::give_up(reactors.error().text);
    (*reactors)->run([&] { return group::run(*configuration, state->metadata().string()); });
  }
  std::filesystem::remove_all(directory);
  return 0;
}
