// pool_bench: what a pool's map costs.
//
// First the opening of a group of 100 TiB: a map of seven million pages in RocksDB is read, and its
// seconds and bytes a page stand beside the limits, and beside the reading of the same values and
// nothing else. Then processor time of writes of 4 KiB in place, straight to memory, through a
// volume, and through a volume with 100 snapshots whose chunks are kept already; of reads; of first
// overwrites, each of which keeps a chunk, under 1 and under 100 snapshots. A pool of 1,000 volumes
// and 10,000 snapshots. Last, the reactor's longest turn while a thick volume claims 100 TiB, and
// while such a map is verified.
//
//   pool_bench [DIRECTORY]
#include <ctime>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "block/memory_device.h"
#include "metadata/rocksdb_store.h"
#include "pool/pool.h"
#include "pool/pool_volume.h"
#include "pool/sealed.h"
#include "runtime/reactor.h"

namespace sandbay::pool {
namespace {

constexpr std::uint32_t kPages = 7'000'000;
constexpr int kWrites = 200'000;

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

double wall_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

void give_up(const std::string& why) {
  std::fprintf(stderr, "pool_bench: %s\n", why.c_str());
  std::exit(1);
}

Task<std::unique_ptr<metadata::Store>> open_store(Executor& home, std::string path) {
  auto opened = co_await metadata::open_rocksdb_store(home, {.path = path});
  if (!opened.has_value()) give_up(opened.error());
  co_return std::move(*opened);
}

// Opening -----------------------------------------------------------------------------------------

void put(metadata::Batch& batch, const std::string& key, std::string value) {
  batch.put(key, sealed(key, std::move(value)));
}

// A checkpoint as 100 volumes of 70,000 pages leave it, pages striped over four stores.
Task<void> write_map(metadata::Store* store) {
  PoolMap keys(*store, {});
  metadata::Batch head;
  constexpr std::uint32_t kBranches = 100;
  constexpr std::uint32_t kBranchPages = kPages / kBranches;
  put(head, keys.key('c'), pack(CheckpointRecord{.sequence = 1, .last_branch = kBranches}));
  for (StoreIndex i = 0; i < 4; ++i) {
    put(head, keys.key_of('d', i), pack(MapRecord(StoreRecord{.index = i, .page_count = kPages})));
  }
  Error error = co_await store->commit(std::move(head));
  for (BranchId id = 1; id <= kBranches && error == Error::kNone; ++id) {
    metadata::Batch batch;
    const std::uint64_t bytes = kBranchPages * keys.page_bytes();
    put(batch, keys.key_of('b', id), pack(MapRecord(BranchRecord{.id = id, .byte_count = bytes})));
    PageMap pages;
    for (PageNumber page = 0; page < kBranchPages; ++page) {
      const auto number = static_cast<std::uint32_t>(id - 1) * kBranchPages + page;
      PageEntry entry{.state = PageState::kData};
      entry.set_place({.store = static_cast<StoreIndex>(number % 4), .page = number / 4});
      pages.set(page, entry);
    }
    for (std::uint32_t leaf = 0; leaf < pages.leaf_end(); ++leaf) {
      put(batch, keys.key_of('m', id, leaf), pages.pack_leaf(leaf));
    }
    error = co_await store->commit(std::move(batch));
  }
  if (error != Error::kNone) give_up(std::string(describe(error)));
}

Task<void> measure_opening(Executor& home, std::string path) {
  {
    auto store = co_await open_store(home, path);
    co_await write_map(store.get());
    co_await store->close();
  }
  const double begun = wall_seconds();
  auto store = co_await open_store(home, path);
  const double opened = wall_seconds();
  PoolMap map(*store, {});
  const std::string wrong = co_await map.load();
  if (!wrong.empty()) give_up(wrong);
  const double loaded = wall_seconds();
  std::string after;
  std::uint64_t bytes = 0;
  while (true) {
    const auto entries = co_await store->list(map.key('m'), after, 512);
    if (!entries.has_value() || entries->empty()) break;
    for (const auto& [key, value] : *entries) bytes += value.size();
    after = entries->back().first;
  }
  const double read = wall_seconds();
  std::printf(
      "map of %u pages: RocksDB %.2f s, map %.2f s (limit 3 s); reading its %.0f MB alone %.2f s; "
      "%.2f bytes a page (limit 16)\n",
      kPages, opened - begun, loaded - opened, static_cast<double>(bytes) / 1e6, read - loaded,
      static_cast<double>(map.byte_count()) / kPages);
  std::fflush(stdout);
  co_await store->close();
}

// Writing -----------------------------------------------------------------------------------------

struct Rig {
  std::unique_ptr<metadata::Store> store;
  std::unique_ptr<MemoryDevice> device;
  std::unique_ptr<Pool> pool;
};

constexpr std::uint64_t kVolumeBytes = std::uint64_t{150} << 20;

Task<void> open_pool(Executor& home, std::string path, Rig* rig) {
  rig->store = co_await open_store(home, path);
  rig->device = std::move(*MemoryDevice::create(home, {.byte_count = std::uint64_t{900} << 20}));
  std::vector<StoreConfig> stores(1);
  stores[0] = {.record = {.index = 0, .page_count = 60}, .device = rig->device.get()};
  auto opened = co_await Pool::open(home, *rig->store, nullptr, {}, std::move(stores));
  if (!opened.has_value()) give_up(opened.error());
  rig->pool = std::move(*opened);
}

Task<void> write_once(BlockDevice* device, Lba first, std::uint64_t byte_count) {
  Request request{.operation = Operation::kWrite,
                  .extent = {.first = first, .block_count = byte_count / 512},
                  .data = device->home().buffers().try_allocate(byte_count)};
  const Completion completion = co_await device->submit(std::move(request));
  if (completion.error != Error::kNone) give_up(std::string(describe(completion.error)));
}

// Microseconds of processor time for a write at random.
Task<double> measure_writes(BlockDevice* device) {
  Random random(1);
  const double begun = processor_seconds();
  for (int i = 0; i < kWrites; ++i) {
    co_await write_once(device, random.below(kVolumeBytes / 4096) * 8, 4096);
  }
  co_return (processor_seconds() - begun) * 1e6 / kWrites;
}

// The same for reads.
Task<double> measure_reads(BlockDevice* device) {
  Random random(1);
  const double begun = processor_seconds();
  for (int i = 0; i < kWrites; ++i) {
    Request request{.operation = Operation::kRead,
                    .extent = {.first = random.below(kVolumeBytes / 4096) * 8, .block_count = 8},
                    .data = device->home().buffers().try_allocate(4096)};
    const Completion completion = co_await device->submit(std::move(request));
    if (completion.error != Error::kNone) give_up(std::string(describe(completion.error)));
  }
  co_return (processor_seconds() - begun) * 1e6 / kWrites;
}

// The same for a write into each chunk, of which none is kept yet for the youngest snapshot.
Task<double> measure_first_overwrites(BlockDevice* device) {
  const double begun = processor_seconds();
  for (std::uint64_t at = 0; at < kVolumeBytes; at += kChunkBytes) {
    co_await write_once(device, at / 512, 4096);
  }
  co_return (processor_seconds() - begun) * 1e6 / (kVolumeBytes / kChunkBytes);
}

Task<void> take_snapshots(Pool* pool, BranchId id, int count) {
  for (int i = 0; i < count; ++i) {
    const auto taken = co_await pool->snapshot({{.branch = id, .label = {}}}, {});
    if (!taken.has_value()) give_up("no snapshot");
  }
}

Task<void> measure_writing(Executor& home, std::string path) {
  Rig rig;
  co_await open_pool(home, path, &rig);
  const auto id = co_await rig.pool->create({.byte_count = kVolumeBytes}, {});
  if (!id.has_value()) give_up("no volume");
  auto volume = rig.pool->attach(*id);
  for (std::uint64_t at = 0; at < kVolumeBytes; at += std::uint64_t{1} << 20) {
    co_await write_once(volume.get(), at / 512, std::uint64_t{1} << 20);
  }
  const double direct = co_await measure_writes(rig.device.get());
  const double plain = co_await measure_writes(volume.get());
  const double read_direct = co_await measure_reads(rig.device.get());
  const double read_plain = co_await measure_reads(volume.get());
  co_await take_snapshots(rig.pool.get(), *id, 1);
  const double first_1 = co_await measure_first_overwrites(volume.get());
  co_await take_snapshots(rig.pool.get(), *id, 99);
  const double first_100 = co_await measure_first_overwrites(volume.get());
  const double kept = co_await measure_writes(volume.get());
  const auto copy = co_await rig.pool->clone({.branch = *id, .generation = kLive}, {}, {});
  if (!copy.has_value()) give_up("no clone");
  auto clone = rig.pool->attach(*copy);
  const double read_clone = co_await measure_reads(clone.get());
  clone.reset();
  std::printf(
      "write of 4 KiB: memory %.2f us, volume %.2f us, with 100 snapshots %.2f us: %.2f "
      "times (limit 2)\n",
      direct, plain, kept, kept / plain);
  std::printf(
      "read of 4 KiB: memory %.2f us, volume %.2f us: %.2f times; clone, through its parent, %.2f "
      "us\n",
      read_direct, read_plain, read_plain / read_direct, read_clone);
  std::printf(
      "first overwrite of a chunk, without NVRAM: 1 snapshot %.1f us, 100 snapshots %.1f "
      "us: %.2f times (limit 2)\n",
      first_1, first_100, first_100 / first_1);
  volume.reset();
  const Error closed = co_await rig.pool->close();
  if (closed != Error::kNone) give_up(std::string(describe(closed)));
  rig.pool.reset();
  co_await rig.store->close();
}

// Many volumes and snapshots ---------------------------------------------------------------------

double microseconds_since(double begun, int count) {
  return (processor_seconds() - begun) * 1e6 / count;
}

// 1,000 volumes of 64 TiB and 10,000 snapshots in one pool: what each costs to make, to list and to
// delete, what they take of memory, and how long the pool takes to open with them.
Task<void> measure_many(Executor& home, std::string path) {
  constexpr int kVolumes = 1000;
  constexpr int kSnapshots = 10'000;
  constexpr std::uint64_t kLarge = std::uint64_t{64} << 40;
  Rig rig;
  co_await open_pool(home, path, &rig);
  const std::size_t bare = rig.pool->map().byte_count();
  std::vector<BranchId> ids;
  double begun = processor_seconds();
  for (int i = 0; i < kVolumes; ++i) {
    const auto id = co_await rig.pool->create({.byte_count = kLarge, .label = "volume"}, {});
    if (!id.has_value()) give_up("no volume");
    ids.push_back(*id);
  }
  const double created = microseconds_since(begun, kVolumes);
  const auto before = rig.pool->log().counters().store_groups;
  begun = processor_seconds();
  std::vector<SnapshotKey> keys;
  for (int i = 0; i < kSnapshots; ++i) {
    const BranchId id = ids[static_cast<std::size_t>(i % kVolumes)];
    const auto taken = co_await rig.pool->snapshot({{.branch = id, .label = "snapshot"}}, {});
    if (!taken.has_value()) give_up("no snapshot");
    keys.push_back({.branch = id, .generation = (*taken)[0]});
  }
  const double taken = microseconds_since(begun, kSnapshots);
  const auto commits = rig.pool->log().counters().store_groups - before;
  begun = processor_seconds();
  std::uint64_t bytes = 0;
  for (const auto& [id, branch] : rig.pool->map().branches()) {
    for (const auto& [generation, snapshot] : branch->snapshots) bytes += snapshot.byte_count;
  }
  const double listed = microseconds_since(begun, kSnapshots);
  const double memory = static_cast<double>(rig.pool->map().byte_count() - bare);
  const Error closed = co_await rig.pool->close();
  if (closed != Error::kNone || bytes == 0) give_up("not closed");
  rig.pool.reset();
  const double opening = wall_seconds();
  StoreConfig store{.record = {.index = 0, .page_count = 60}, .device = rig.device.get()};
  auto opened = co_await Pool::open(home, *rig.store, nullptr, {}, {store});
  if (!opened.has_value()) give_up(opened.error());
  rig.pool = std::move(*opened);
  const double open_seconds = wall_seconds() - opening;
  begun = processor_seconds();
  for (int i = 0; i < kSnapshots; i += 10) {
    const Error error = co_await rig.pool->remove_snapshot(keys[static_cast<std::size_t>(i)], {});
    if (error != Error::kNone) give_up("a snapshot stays");
  }
  const double removed = microseconds_since(begun, kSnapshots / 10);
  std::printf(
      "1,000 volumes of 64 TiB, 10,000 snapshots: create %.0f us, snapshot %.0f us and %.2f synced "
      "commits, delete a snapshot %.0f us (limit 1,000 us, 1 commit); list %.3f us an entry; %.0f "
      "bytes a volume; opens in %.2f s\n",
      created, taken, static_cast<double>(commits) / kSnapshots, removed, listed, memory / kVolumes,
      open_seconds);
  co_await rig.pool->stop();
  rig.pool.reset();
  co_await rig.store->close();
}

// Turns -------------------------------------------------------------------------------------------

// Answers at once, and keeps nothing.
class EmptyDevice final : public BlockDevice {
 public:
  EmptyDevice(Executor& home, std::uint64_t byte_count) : home_(home) {
    geometry_.block_count = byte_count / geometry_.block_bytes;
  }
  Executor& home() const noexcept override { return home_; }
  const Geometry& geometry() const noexcept override { return geometry_; }
  Health health() const noexcept override { return Health::kGood; }
  std::string description() const override { return "nothing"; }
  Task<Completion> submit(Request request) override {
    co_return Completion{.data = std::move(request.data)};
  }
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    co_return ProvisioningRun{.block_count = limit - first, .mapped = true};
  }

 private:
  Executor& home_;
  Geometry geometry_;
};

struct Turns {
  bool stopping = false;
  double longest = 0;
  Event ended;
};

// Processor time of the thread from turn to turn.
Task<void> watch_turns(Executor* home, Turns* turns) {
  timespec time{};
  double before = 0;
  while (!turns->stopping) {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    const double now = static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
    if (before > 0) turns->longest = std::max(turns->longest, now - before);
    before = now;
    co_await home->turn_end();
  }
  turns->ended.set();
}

Task<void> measure_turns(Executor& home, std::string path) {
  auto store = co_await open_store(home, path);
  constexpr std::uint32_t kStorePages = kPages / 2;
  EmptyDevice first(home, kStorePages * kDefaultPageChunks * kChunkBytes);
  EmptyDevice second(home, kStorePages * kDefaultPageChunks * kChunkBytes);
  std::vector<StoreConfig> stores(2);
  stores[0] = {.record = {.index = 0, .page_count = kStorePages}, .device = &first};
  stores[1] = {.record = {.index = 1, .page_count = kStorePages}, .device = &second};
  stores[1].record.uuid[0] = 1;
  auto pool = co_await Pool::open(home, *store, nullptr, {}, std::move(stores));
  if (!pool.has_value()) give_up(pool.error());
  const std::uint64_t bytes = kPages * (*pool)->map().page_bytes();
  Turns making;
  double begun = wall_seconds();
  spawn(watch_turns(&home, &making));
  const auto made = co_await (*pool)->create({.byte_count = bytes, .thick = true, .label = {}}, {});
  making.stopping = true;
  co_await making.ended.wait();
  if (!made.has_value()) give_up(std::string(describe(made.error())));
  std::printf(
      "thick volume of %u pages on two stores: %.2f s, longest turn %.2f ms (limit 10 ms)\n",
      kPages, wall_seconds() - begun, making.longest * 1e3);
  Turns checking;
  begun = wall_seconds();
  spawn(watch_turns(&home, &checking));
  const CheckReport report = co_await (*pool)->check();
  checking.stopping = true;
  co_await checking.ended.wait();
  if (!report.wrong.empty()) give_up(report.wrong.front());
  std::printf("check of %llu pages: %.2f s, longest turn %.2f ms (limit 10 ms)\n",
              static_cast<unsigned long long>(report.pages), wall_seconds() - begun,
              checking.longest * 1e3);
  std::fflush(stdout);
  co_await (*pool)->close();
  pool->reset();
  co_await store->close();
}

Task<void> run(Executor& home, std::string directory) {
  co_await measure_opening(home, directory + "/opening");
  co_await measure_writing(home, directory + "/writing");
  co_await measure_many(home, directory + "/many");
  co_await measure_turns(home, directory + "/turns");
}

}  // namespace
}  // namespace sandbay::pool

int main(int argc, char** argv) {
  using namespace sandbay;
  const std::string directory =
      std::string(argc > 1 ? argv[1] : "/tmp") + "/pool-bench-" + std::to_string(std::rand());
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  auto group = ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{256} << 20});
  if (!group) pool::give_up(group.error().text);
  Executor& home = *(*group)->executors()[0];
  (*group)->run([&] { return pool::run(home, directory); });
  std::filesystem::remove_all(directory);
  return 0;
}
