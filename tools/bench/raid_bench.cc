// raid_bench: what a RAID set costs, on drives in memory and one reactor.
//
// For each level: whole stripes written and read one after another, against what the same core does
// in the same run with the parity functions and one memory copy of every byte that reaches a drive;
// then random reads of 4 KiB through the set and straight from a drive, the difference being the
// set's own cost, and random writes of 4 KiB with all the drives' operations. Then the same writes
// with a journal, in NVRAM and on the drives.
//
//   raid_bench [SECONDS-A-CASE] [DIRECTORY-FOR-THE-NVRAM-IMAGE]
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "block/memory_device.h"
#include "nvram/nvram.h"
#include "raid/assembly.h"
#include "raid/drive_journal.h"
#include "raid/nvram_journal.h"
#include "raid/parity.h"
#include "raid/raid_set.h"
#include "runtime/reactor.h"

namespace sandbay::raid {
namespace {

// The processor time of this process: whoever else uses the core changes little.
struct Clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock>;
  static time_point now() noexcept {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time_point(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
  }
};

constexpr std::uint64_t kDriveBytes = std::uint64_t{64} << 20;
constexpr std::uint32_t kStripBytes = 64u << 10;
constexpr std::size_t kRequestStripes = 2;
constexpr unsigned kDepth = 4;

struct Case {
  const char* name;
  Level level;
  unsigned drives;
  unsigned groups;
};
constexpr Case kCases[] = {
    {"RAID 0, 8 drives", Level::kRaid0, 8, 0},     {"RAID 5, 8+1", Level::kRaid5, 9, 0},
    {"RAID 6, 8+2", Level::kRaid6, 10, 0},         {"RAID 10, 8 drives", Level::kRaid10, 8, 0},
    {"RAID 50, 2 x (4+1)", Level::kRaid50, 10, 2},
};

enum class JournalKind : std::uint8_t { kNone, kNvram, kDrives };

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "raid_bench: %s\n", why.c_str());
  std::exit(1);
}

struct Bench {
  Executor* home = nullptr;
  double seconds = 1;
  std::string directory;
};

// A set on fresh memory drives.
struct Rig {
  std::vector<std::unique_ptr<MemoryDevice>> devices;
  std::unique_ptr<SetDrives> drives;
  std::unique_ptr<nvram::Nvram> memory;
  std::unique_ptr<nvram::Region> region;
  std::unique_ptr<Journal> journal;
  std::unique_ptr<RaidSet> set;

  Task<void> make(const Bench* bench, const Case* which, JournalKind kind, bool integrity = false) {
    Executor& home = *bench->home;
    std::vector<NamedDevice> named;
    for (unsigned i = 0; i < which->drives; ++i) {
      auto device = MemoryDevice::create(home, {.byte_count = kDriveBytes});
      if (!device) fail(device.error());
      devices.push_back(std::move(*device));
      named.push_back({"d" + std::to_string(i), devices.back().get()});
    }
    const std::vector<Candidate> candidates = co_await gather_candidates(named);
    NewSet wanted;
    wanted.name = "bench";
    wanted.level = which->level;
    wanted.group_count = which->groups;
    wanted.strip_bytes = kStripBytes;
    wanted.integrity = integrity;
    if (kind != JournalKind::kDrives) wanted.journal_bytes = 0;
    const auto planned = plan_new_set(wanted, candidates, home.random());
    if (!planned) fail(planned.error());
    const Superblock& superblock = planned->superblocks[0];
    RegionMap regions = planned->regions;
    regions.set_all_dirty(false);  // Drives of zeros match.
    drives =
        std::make_unique<SetDrives>(home, *superblock.layout(), superblock, regions, planned->lost);
    for (unsigned role = 0; role < which->drives; ++role) {
      drives->set_drive(role, *devices[role], named[role].name, {});
    }
    const Error settled = co_await drives->save_clean(false);
    if (settled != Error::kNone) fail("the superblocks cannot be written");
    if (kind == JournalKind::kNvram) {
      co_await open_nvram(bench, superblock.set_uuid);
    } else if (superblock.journal_bytes > 0) {
      const JournalRing ring{
          .set = superblock.set_uuid,
          .first_block = superblock.journal_offset_bytes / superblock.block_bytes,
          .block_count = superblock.journal_bytes / superblock.block_bytes,
          .copies = drives->layout().redundancy() + 1,
          .role_count = which->drives,
      };
      journal = std::make_unique<DriveJournal>(*drives, ring, home);
    }
    set = std::make_unique<RaidSet>(home, *drives, journal.get(), RaidSetOptions{.name = "bench"});
    const Error replayed = co_await set->replay_journal();
    if (replayed != Error::kNone) fail("the journal cannot be opened");
  }

  Task<void> open_nvram(const Bench* bench, Uuid set_uuid) {
    constexpr std::uint64_t kBytes = std::uint64_t{64} << 20;
    path = bench->directory + "/raid-bench.nvram";
    std::remove(path.c_str());
    auto opened = co_await nvram::Nvram::open(*bench->home, {.path = path,
                                                             .byte_count = kBytes + (4 << 20),
                                                             .boot_id = nvram::host_boot_id(),
                                                             .power_loss_only_emulated = true});
    if (!opened) fail(opened.error());
    memory = std::move(*opened);
    auto claimed = co_await memory->claim("journal", kBytes);
    if (!claimed) fail(claimed.error());
    region = std::move(*claimed);
    journal = std::make_unique<NvramJournal>(*region, set_uuid, 512);
  }

  Task<void> end() {
    const Error error = co_await set->close(kNever);
    if (error != Error::kNone) fail("the set cannot be closed");
    set.reset();
    journal.reset();
    region.reset();
    if (memory != nullptr) std::remove(path.c_str());
    memory.reset();
    drives.reset();
  }
  std::string path;  // Of the NVRAM's image.
};

struct Stream {
  RaidSet* set;
  Operation operation;
  std::uint64_t next = 0;
  std::uint64_t least = 0;  // Requests, whatever time they take.
  std::uint64_t bytes = 0;
  Clock::time_point end;
  unsigned running = 0;
  Condition ended;
};

Task<void> stream_one(Stream* stream) {
  const Geometry& geometry = stream->set->geometry();
  const std::uint64_t blocks = geometry.optimal_io_blocks * kRequestStripes;
  const std::uint64_t requests = geometry.block_count / blocks;
  BufferList data = co_await stream->set->home().buffers().allocate(blocks * geometry.block_bytes);
  data.fill_zero();
  while (stream->next < stream->least || Clock::now() < stream->end) {
    Request request;
    request.operation = stream->operation;
    request.extent = {.first = stream->next++ % requests * blocks, .block_count = blocks};
    request.data = std::move(data);
    Completion completion = co_await stream->set->submit(std::move(request));
    if (completion.error != Error::kNone) fail("a request failed");
    data = std::move(completion.data);
    stream->bytes += blocks * geometry.block_bytes;
    co_await stream->set->home().yield();
  }
  if (--stream->running == 0) stream->ended.notify_all();
}

// Bytes of the host a second, in whole stripes one after another.
Task<double> stream(const Bench* bench, RaidSet* set, Operation operation) {
  const std::uint64_t blocks = set->geometry().optimal_io_blocks * kRequestStripes;
  Stream shared{.set = set, .operation = operation, .least = set->geometry().block_count / blocks};
  const Clock::time_point start = Clock::now();
  shared.end = start + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(bench->seconds));
  for (unsigned i = 0; i < kDepth; ++i) {
    ++shared.running;
    spawn(stream_one(&shared));
  }
  while (shared.running > 0) co_await shared.ended.wait();
  co_return static_cast<double>(shared.bytes) / seconds_since(start);
}

// Memory in huge pages, as the drives have it, touched.
std::byte* huge_memory(std::size_t byte_count) {
  void* memory =
      mmap(nullptr, byte_count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory");
  madvise(memory, byte_count, MADV_HUGEPAGE);
  std::memset(memory, 1, byte_count);
  return static_cast<std::byte*>(memory);
}

// The same bytes with the parity functions and memcpy alone, to and from memory of the same size.
double limit(const Bench& bench, const Layout& layout, bool write) {
  const std::size_t chunks = layout.data_chunks();
  const std::size_t copies = layout.mirrored() ? layout.width() : chunks + layout.parity_chunks();
  const std::size_t span = std::size_t{512} << 20;
  static std::byte* const kDrives = huge_memory(span);
  std::vector<std::byte> host((chunks + 2) * kStripBytes * kRequestStripes + 64, std::byte{2});
  std::byte* base = host.data() + (64 - reinterpret_cast<std::uintptr_t>(host.data()) % 64);
  std::vector<const std::byte*> data(chunks);
  for (std::size_t i = 0; i < chunks; ++i) data[i] = base + i * kStripBytes;
  std::byte* p = base + chunks * kStripBytes;
  std::byte* q = p + kStripBytes;
  std::size_t at = 0;
  std::uint64_t bytes = 0;
  const Clock::time_point start = Clock::now();
  while (seconds_since(start) < bench.seconds) {
    const std::size_t strips = write ? copies : chunks;
    if (write && layout.parity_chunks() == 1) generate_p(data, p, kStripBytes);
    if (write && layout.parity_chunks() == 2) generate_pq(data, p, q, kStripBytes);
    for (std::size_t i = 0; i < strips; ++i) {
      std::byte* there = kDrives + at;
      std::byte* here = base + (layout.mirrored() ? 0 : i) * kStripBytes;
      std::memcpy(write ? there : here, write ? here : there, kStripBytes);
      at = (at + kStripBytes) % span;
    }
    bytes += chunks * kStripBytes;
  }
  return static_cast<double>(bytes) / seconds_since(start);
}

// Seconds of this core that one random read or write of 4 KiB takes, one at a time.
Task<double> random_io(const Bench* bench, BlockDevice* device, Operation operation) {
  constexpr std::uint64_t kBlocks = 8;
  Random random(1);
  BufferList data = co_await device->home().buffers().allocate(kBlocks * 512);
  const std::uint64_t places = device->geometry().block_count / kBlocks;
  const Clock::time_point start = Clock::now();
  std::uint64_t count = 0;
  while (seconds_since(start) < bench->seconds) {
    for (unsigned i = 0; i < 256; ++i, ++count) {
      Request request;
      request.operation = operation;
      request.extent = {.first = random.below(places) * kBlocks, .block_count = kBlocks};
      request.data = std::move(data);
      Completion completion = co_await device->submit(std::move(request));
      if (completion.error != Error::kNone) fail("a read or write failed");
      data = std::move(completion.data);
    }
    co_await device->home().yield();
  }
  co_return seconds_since(start) / static_cast<double>(count);
}

// The cost of checksums, both with a journal on the drives where there is one.
Task<void> run_integrity(const Bench* bench, const Case* which) {
  double read[2] = {};
  double write[2] = {};
  double written[2] = {};
  for (const bool integrity : {false, true}) {
    Rig rig;
    co_await rig.make(bench, which, JournalKind::kDrives, integrity);
    co_await stream(bench, rig.set.get(), Operation::kWrite);
    written[integrity] = co_await stream(bench, rig.set.get(), Operation::kWrite);
    read[integrity] = co_await random_io(bench, rig.set.get(), Operation::kRead);
    write[integrity] = co_await random_io(bench, rig.set.get(), Operation::kWrite);
    co_await rig.end();
  }
  std::printf(
      "%-20s  write %6.0f MB/s %4.0f %% of that without, 4 KiB read %.2f us (%.2f without),"
      " write %.2f us (%.2f without)\n",
      "  integrity", written[1] / 1e6, 100 * written[1] / written[0], read[1] * 1e6, read[0] * 1e6,
      write[1] * 1e6, write[0] * 1e6);
  std::fflush(stdout);
}

Task<void> run_level(const Bench* bench, const Case* which) {
  Rig rig;
  co_await rig.make(bench, which, JournalKind::kNone);
  co_await stream(bench, rig.set.get(), Operation::kWrite);  // Touches all memory once.
  const double write_limit = limit(*bench, rig.set->layout(), true);
  const double write = co_await stream(bench, rig.set.get(), Operation::kWrite);
  const double read_limit = limit(*bench, rig.set->layout(), false);
  const double read = co_await stream(bench, rig.set.get(), Operation::kRead);
  const double direct = co_await random_io(bench, rig.devices[0].get(), Operation::kRead);
  const double through = co_await random_io(bench, rig.set.get(), Operation::kRead);
  const double small = co_await random_io(bench, rig.set.get(), Operation::kWrite);
  std::printf(
      "%-20s  write %6.0f MB/s %4.0f %%   read %6.0f MB/s %4.0f %%   4 KiB read +%.2f us, "
      "write %.2f us\n",
      which->name, write / 1e6, 100 * write / write_limit, read / 1e6, 100 * read / read_limit,
      (through - direct) * 1e6, small * 1e6);
  std::fflush(stdout);
  co_await rig.end();
  co_await run_integrity(bench, which);
  if (which->level == Level::kRaid0 || which->level == Level::kRaid10) co_return;
  for (const JournalKind kind : {JournalKind::kNvram, JournalKind::kDrives}) {
    Rig journaled;
    co_await journaled.make(bench, which, kind);
    co_await stream(bench, journaled.set.get(), Operation::kWrite);
    const double with = co_await stream(bench, journaled.set.get(), Operation::kWrite);
    const double small_with = co_await random_io(bench, journaled.set.get(), Operation::kWrite);
    std::printf("%-20s  write %6.0f MB/s %4.0f %% of that without, 4 KiB write %.2f us\n",
                kind == JournalKind::kNvram ? "  journal in NVRAM" : "  journal on drives",
                with / 1e6, 100 * with / write, small_with * 1e6);
    std::fflush(stdout);
    co_await journaled.end();
  }
}

Task<void> run(const Bench* bench) {
  std::printf(
      "%% of parity functions and one memory copy of every byte stored, same core, same "
      "run\n");
  for (const Case& which : kCases) co_await run_level(bench, &which);
}

}  // namespace
}  // namespace sandbay::raid

int main(int argc, char** argv) {
  using namespace sandbay;
  auto group = ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{1} << 30});
  if (!group) {
    std::fprintf(stderr, "raid_bench: %s\n", group.error().text.c_str());
    return 1;
  }
  raid::Bench bench;
  bench.home = (*group)->executors()[0];
  if (argc > 1) bench.seconds = std::atof(argv[1]);
  bench.directory = argc > 2 ? argv[2] : "/tmp";
  (*group)->run([&bench] { return raid::run(&bench); });
  return 0;
}
