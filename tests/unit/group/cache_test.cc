// The section [cache], and the cache's books in the metadata: nothing stays in an NVRAM of which
// they do not say so, whatever fails.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "block/memory_device.h"
#include "group/controller_cache.h"
#include "nvram/simulated_board.h"
#include "runtime/known.h"
#include "runtime/reactor.h"
#include "tests/unit/block/on_executor.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/group/books.h"

namespace sandbay::group {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
const std::string kHead =
    "[group]\nname = \"t\"\nstate = \"s\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n";
const std::string kSet =
    "[[drive]]\nname = \"d\"\nfile = \"d\"\nsize = \"64MiB\"\n"
    "[[raid]]\nname = \"r\"\nlevel = \"jbod\"\ndrives = [\"d\"]\n";
const std::string kCache =
    "[nvram]\nsize = \"24MiB\"\npower_loss_only_emulated = true\n"
    "[cache]\nmemory = \"16MiB\"\nnvram = \"18MiB\"\nidle_flush = \"1h\"\nage_limit = \"1h\"\n";

Configuration configured(const std::string& text) {
  auto result = parse_configuration(kHead + text, "x.toml");
  INFO((result ? std::string() : result.error().front()));
  REQUIRE(result.has_value());
  return std::move(*result);
}

void check_mistake(const std::string& text, const std::string& expected) {
  const auto result = parse_configuration(kHead + text, "x.toml");
  REQUIRE_FALSE(result.has_value());
  CAPTURE(result.error().front());
  CHECK_THAT(result.error().front(), Catch::Contains(expected));
}

TEST_CASE("A section [cache] is read", "[configuration][cache]") {
  const Configuration c = configured(
      "[nvram]\nsize = \"64MiB\"\nmirror = \"m.img\"\nmirror_required = true\n"
      "[cache]\nmemory = \"128MiB\"\nnvram = \"32MiB\"\nlow_watermark = 40\nhigh_watermark = 90\n"
      "age_limit = \"3s\"\nidle_flush = \"500ms\"\ndestage = \"512KiB\"\nread_ahead = false\n"
      "read_ahead_limit = \"8MiB\"\n" +
      kSet + "[[volume]]\nname = \"v\"\nraid = \"r\"\nsize = \"8MiB\"\ncache = \"none\"\n");
  const CacheConfiguration& cache = known(c.hardware.cache);
  CHECK(cache.options.memory_bytes == 128 * kMiB);
  CHECK(cache.options.low_watermark == Approx(0.4));
  CHECK(cache.options.high_watermark == Approx(0.9));
  CHECK(cache.options.age_limit == std::chrono::seconds(3));
  CHECK(cache.options.idle_flush == std::chrono::milliseconds(500));
  CHECK(cache.options.destage_bytes == 512U << 10);
  CHECK(cache.options.read_ahead_limit_bytes == 8 * kMiB);
  CHECK_FALSE(cache.read_ahead);
  CHECK(known(c.hardware.nvram).mirror_path == "m.img");
  CHECK(known(c.hardware.nvram).mirror_required);
  CHECK(c.volumes[0].specification.cache == cache::Mode::kNone);
  const NvramShares shares = shares_of(cache.nvram_bytes);
  CHECK(shares.data_bytes == 30 * kMiB);
  CHECK(shares.data_bytes + shares.log_bytes == 32 * kMiB);
  CHECK(shares.log_bytes >= cache::default_log_bytes(shares.data_bytes));
}

TEST_CASE("A journal is on the drives unless the file says otherwise, also with NVRAM",
          "[configuration][cache]") {
  const std::string drives =
      "[[drive]]\nname = \"a\"\nmemory = true\nsize = \"64MiB\"\n"
      "[[drive]]\nname = \"b\"\nmemory = true\nsize = \"64MiB\"\n"
      "[[drive]]\nname = \"c\"\nmemory = true\nsize = \"64MiB\"\n";
  const std::string set =
      "[[raid]]\nname = \"r\"\nlevel = \"raid5\"\ndrives = [\"a\", \"b\", \"c\"]\n";
  const auto bytes_of = [&](const std::string& rest) {
    const Configuration c = configured("[nvram]\n" + drives + set + rest);
    return new_set_of(c.hardware.sets[0], Uuid{}).journal_bytes;
  };
  CHECK(bytes_of("") == 16 * kMiB);
  CHECK(bytes_of("journal = \"4MiB\"\n") == 4 * kMiB);
  CHECK(bytes_of("journal = \"nvram\"\n") == 0U);
}

TEST_CASE("A volume that is on several members is counted once", "[cache][group]") {
  CachedVolumeInfo v{.name = "v"};
  v.counters.hits = 3;
  v.counters.flushes = 1;
  v.counters.write_latency.add(std::chrono::seconds(1));
  CacheInfo sum;
  add("one", {.configured = true, .volumes = {v}}, sum);
  add("two", {.configured = true, .volumes = {{.name = "w"}, v}}, sum);
  REQUIRE(sum.volumes.size() == 2);
  CHECK(sum.volumes[0].name == "v");
  CHECK(sum.volumes[0].counters.hits == 6);
  CHECK(sum.volumes[0].counters.flushes == 2);
  CHECK(sum.volumes[0].counters.write_latency.total_nanoseconds == 2'000'000'000);
}

TEST_CASE("Mistakes of a cache are told", "[configuration][cache]") {
  check_mistake("[cache]\nnvram = \"32MiB\"\n", "there is no NVRAM; add a section [nvram]");
  check_mistake("[nvram]\nsize = \"32MiB\"\n[cache]\nnvram = \"32MiB\"\n",
                "32MiB is too little for the cache; write at least 33MiB");
  check_mistake(
      "[nvram]\nsize = \"40MiB\"\n[cache]\nnvram = \"32MiB\"\n"
      "[[drive]]\nname = \"d\"\nfile = \"d\"\nsize = \"64MiB\"\n[[drive]]\nname = \"e\"\n"
      "file = \"e\"\nsize = \"64MiB\"\n[[raid]]\nname = \"r\"\nlevel = \"raid1\"\n"
      "drives = [\"d\", \"e\"]\njournal = \"nvram\"\n",
      "the journals of its sets and the cache; write at least 49MiB");
  check_mistake("[cache]\nmemory = \"1MiB\"\n", "cache.memory");
  check_mistake("[cache]\ndirty_limit = \"60MiB\"\n", "write at most 48MiB");
  check_mistake("[cache]\nlow_watermark = 80\n", "high_watermark is 75; write 1 to 75");
  check_mistake("[cache]\nhigh_watermark = 40\n", "low_watermark is 50; write 50 to 100");
  check_mistake("[cache]\nmemory = \"32MiB\"\nread_ahead_limit = \"17MiB\"\n",
                "write at most 16MiB");
  check_mistake("[cache]\nmemory = \"32MiB\"\ndestage = \"64MiB\"\n",
                "a quarter of the room for what is dirty; write at most 2MiB");
  check_mistake("[nvram]\n\n[cache]\n\nnvram = \"20MiB\"\ndestage = \"6MiB\"\n",
                "a quarter of nvram; write at most 5MiB");
  check_mistake("[cache]\nhigh_watermark = 101\n", "cache.high_watermark");
  check_mistake("[cache]\ndestage = \"100KiB\"\n", "not a multiple of 64KiB");
  check_mistake("[cache]\nreadahead = true\n", "did you mean read_ahead?");
  check_mistake("[nvram]\nsize = \"24MiB\"\n[cache]\nnvram = \"18MiB\"\ndirty_limit = \"4MiB\"\n",
                "write one of both");
  check_mistake("[nvram]\nmirror = \"m.img\"\n", "mirrors the writes of the cache");
  check_mistake("[nvram]\nmirror_required = true\n", "means nothing without mirror");
  check_mistake("[nvram]\nsize = \"24MiB\"\nmirror = \"nvram.img\"\n[cache]\nnvram = \"18MiB\"\n",
                "belongs to the NVRAM");
  const std::string volume = "[[volume]]\nname = \"v\"\nsize = \"8MiB\"\ncache = ";
  check_mistake("[cache]\n" + volume + "\"none\"\n", "is of volumes on RAID sets");
  check_mistake(kSet + volume + "\"none\"\nraid = \"r\"\n", "without a section [cache]");
  check_mistake("[cache]\n" + kSet + volume + "\"back\"\nraid = \"r\"\n", "unknown mode \"back\"");
}

using testing::Books;

constexpr Uuid kUuid = {1, 2, 3};

// One run of a controller with one set, from its start to its end.
struct Run {
  Configuration configuration = configured(kSet + kCache);
  EventLog events;
  std::unique_ptr<nvram::Nvram> nvram;
  std::unique_ptr<ControllerCache> cache;
};

// What kept it from starting stands in `refusal`, which may be null if nothing does.
Task<std::unique_ptr<Run>> begin(Executor& home, Books& books, nvram::SimulatedBoard& board,
                                 std::string mirror = "", std::uint64_t nvram_bytes = 18 * kMiB,
                                 std::string* refusal = nullptr) {
  auto run = std::make_unique<Run>();
  known(run->configuration.hardware.nvram).mirror_path = std::move(mirror);
  known(run->configuration.hardware.cache).nvram_bytes = nvram_bytes;
  auto opened = co_await nvram::Nvram::open(
      home, board, {.path = "board", .boot_id = "one", .power_loss_only_emulated = true});
  REQUIRE(opened.has_value());
  run->nvram = std::move(*opened);
  run->cache = std::make_unique<ControllerCache>(home, run->configuration, books, run->events,
                                                 [](const Uuid&) { return std::string("r"); });
  const auto started = co_await run->cache->start(run->nvram.get());
  if (refusal != nullptr && !started) *refusal = started.error().text;
  REQUIRE((started.has_value() || refusal != nullptr));
  co_return run;
}

Task<void> end(Run& run) {
  const bool ended = co_await run.cache->stop(kNever);
  REQUIRE(ended);
  co_await run.cache->finish();
  (void)co_await run.nvram->close();
}

Task<void> write(BlockDevice& device, Lba first, std::uint8_t byte) {
  Request request{.operation = Operation::kWrite, .extent = {.first = first, .block_count = 8}};
  request.data = co_await device.home().buffers().allocate(4096);
  const std::vector<std::byte> content(4096, std::byte{byte});
  request.data.copy_from(content);
  const Completion done = co_await device.submit(std::move(request));
  REQUIRE(done.error == Error::kNone);
}

std::unique_ptr<MemoryDevice> memory_set(Executor& home) {
  auto made = MemoryDevice::create(home, {.byte_count = 8 * kMiB, .block_bytes = 512});
  REQUIRE(made.has_value());
  return std::move(*made);
}

Task<void> marks(Executor& home) {
  nvram::SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  {
    const auto run = co_await begin(home, books, board);
    BlockDevice& device = run->cache->above(kUuid, *set);
    const auto dirty = [&] { return run->cache->show({}).sets.at(0).dirty_bytes; };
    books.failing = true;
    co_await write(device, 0, 1);
    co_await home.sleep_for(std::chrono::seconds(2));
    co_await write(device, 8, 2);
    CHECK(dirty() == 0);  // Both went through.
    CHECK(books.entries.empty());
    books.failing = false;
    co_await home.sleep_for(std::chrono::seconds(2));
    co_await write(device, 16, 3);  // These books have it noted at once.
    co_await write(device, 24, 4);
    CHECK(dirty() == 8192);
    CHECK(books.entries.contains(dirty_key(kUuid)));
    co_await end(*run);
    CHECK_FALSE(books.entries.contains(dirty_key(kUuid)));
  }
  const auto run = co_await begin(home, books, board);
  CHECK(run->cache->bar(kUuid).empty());
  co_await end(*run);
}

TEST_CASE("Nothing stays in the NVRAM before the metadata say so", "[cache][group]") {
  sandbay::testing::run_in_world(1, [](Executor& home) { return marks(home); });
}

// Leaves a dirty write in the NVRAM, as a kill does.
Task<void> leave_dirty(Executor& home, Books& books, nvram::SimulatedBoard& board,
                       BlockDevice& set) {
  nvram::SimulatedBoard killed(board.byte_count());
  const auto run = co_await begin(home, books, board);
  BlockDevice& device = run->cache->above(kUuid, set);
  co_await write(device, 0, 1);
  co_await home.sleep_for(std::chrono::milliseconds(10));
  co_await write(device, 0, 7);
  killed = board;
  const auto kept = books.entries;
  co_await end(*run);
  books.entries = kept;
  board = killed;
}

Task<void> bars(Executor& home) {
  nvram::SimulatedBoard board(24 * kMiB);
  nvram::SimulatedBoard blank(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  co_await leave_dirty(home, books, board, *set);
  {
    const auto run = co_await begin(home, books, blank);
    CHECK_FALSE(run->cache->bar(kUuid).empty());
    co_await end(*run);
    CHECK(books.entries.contains(dirty_key(kUuid)));  // An orderly end changes nothing of that.
  }
  {
    const auto run = co_await begin(home, books, blank);
    books.failing = true;
    const auto refused = co_await run->cache->discard(kUuid);
    CHECK_FALSE(refused.has_value());
    CHECK_FALSE(run->cache->bar(kUuid).empty());
    books.failing = false;
    const auto discarded = co_await run->cache->discard(kUuid);
    CHECK(discarded.has_value());
    CHECK(run->cache->bar(kUuid).empty());
    co_await end(*run);
  }
  // What was given up does not come back with its NVRAM.
  const auto run = co_await begin(home, books, board);
  (void)run->cache->above(kUuid, *set);
  CHECK(run->cache->show({}).sets.at(0).dirty_bytes == 0);
  CHECK(run->cache->show({}).writes == 0);
  const auto told = run->events.since(0);
  CHECK(std::ranges::find(told, "cache stale", &EventInfo::kind) != told.end());
  co_await end(*run);
}

TEST_CASE("A set is barred while the NVRAM with its writes is away", "[cache][group]") {
  sandbay::testing::run_in_world(1, [](Executor& home) { return bars(home); });
}

Task<void> resizes(Executor& home) {
  nvram::SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  co_await leave_dirty(home, books, board, *set);
  {
    std::string refusal;
    const auto run = co_await begin(home, books, board, "", 20 * kMiB, &refusal);
    CHECK_THAT(refusal, Catch::Contains("in 18MiB; write that"));
    co_await end(*run);
  }
  {
    const auto run = co_await begin(home, books, board);
    (void)run->cache->above(kUuid, *set);
    CHECK(run->cache->show({}).sets.at(0).dirty_bytes == 4096);
    co_await end(*run);
  }
  const auto run = co_await begin(home, books, board, "", 20 * kMiB);
  CHECK(run->cache->show({}).nvram_bytes == 18 * kMiB);
  co_await end(*run);
}

TEST_CASE("The cache's share of the NVRAM is changed when nothing in it counts", "[cache][group]") {
  sandbay::testing::run_in_world(1, [](Executor& home) { return resizes(home); });
}

Task<void> tells(Executor& home) {
  nvram::SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  co_await leave_dirty(home, books, board, *set);
  board.cut_power(nvram::BatteryState::kDead);
  const nvram::SimulatedBoard lost = board;
  {
    // Killed before the metadata could take it: told again.
    const auto run = co_await begin(home, books, board);
    co_await end(*run);
  }
  CHECK(books.entries.contains(lost_key(kUuid)));
  board = lost;
  const auto run = co_await begin(home, books, board);
  const CacheInfo info = run->cache->show({});
  REQUIRE(info.sets.size() == 1);
  REQUIRE(info.sets[0].lost.size() == 1);  // Once, not twice.
  CHECK(info.sets[0].lost[0].first_block == 0);
  CHECK(info.sets[0].lost[0].block_count == 8);
  CHECK(info.sets[0].lost[0].why == "power cut");
  const auto acknowledged = co_await run->cache->acknowledge(kUuid);
  CHECK(acknowledged.has_value());
  CHECK_FALSE(books.entries.contains(lost_key(kUuid)));
  co_await end(*run);
}

TEST_CASE("What the NVRAM has lost is kept until somebody has taken notice", "[cache][group]") {
  sandbay::testing::run_in_world(1, [](Executor& home) { return tells(home); });
}

Task<void> write_and_tell(BlockDevice* device, bool* written) {
  co_await write(*device, 64, 9);
  *written = true;
}

// On a real reactor: the mirror is a file.
Task<void> loses_its_mirror(std::string mirror) {
  Executor& home = Executor::current();
  nvram::SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  const auto stale = [&] { return decode_mirror(books.entries.at("mirror")).value().stale; };
  {
    const auto run = co_await begin(home, books, board, mirror);
    CHECK_FALSE(stale());
    BlockDevice& device = run->cache->above(kUuid, *set);
    co_await write(device, 0, 1);
    co_await home.sleep_for(std::chrono::milliseconds(10));
    co_await write(device, 8, 2);
    CHECK(run->cache->show({}).mirror == "good");
    run->cache->mirror()->cut_power();
    books.failing = true;
    bool written = false;
    spawn(write_and_tell(&device, &written));
    co_await home.sleep_for(std::chrono::milliseconds(50));
    CHECK(run->cache->show({}).mirror == "lost");
    CHECK_FALSE(written);  // Nobody is told of it before the metadata say that the mirror is stale.
    books.failing = false;
    while (!written) co_await home.sleep_for(std::chrono::milliseconds(10));
    CHECK(stale());
    co_await end(*run);
  }
  // A start makes it whole again.
  const auto run = co_await begin(home, books, board, mirror);
  CHECK(run->cache->show({}).mirror == "good");
  CHECK_FALSE(stale());
  co_await end(*run);
}

TEST_CASE("A mirror that fails is stale before anybody relies on the NVRAM alone",
          "[cache][group]") {
  const sandbay::testing::ScratchDirectory scratch;
  auto reactors = ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{64} << 20});
  REQUIRE(reactors.has_value());
  (*reactors)->run([&] { return loses_its_mirror(scratch.file("mirror.img")); });
}

}  // namespace
}  // namespace sandbay::group
