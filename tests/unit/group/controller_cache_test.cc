// The controller's cache where things fail: boards that come, go and lose their content, metadata
// that cannot be written, mirrors and NVRAM that fail at run time, drives that hang, and kills at
// any moment of a start.
#include "block/layer.h"
#include "tests/unit/block/on_executor.h"
#include "tests/unit/group/controller_cache_rig.h"

namespace sandbay::group::testing::controller_cache_test {
namespace {

using Catch::Contains;
using nvram::SimulatedBoard;

void run_in_world(const sandbay::testing::Start& start) {
  sandbay::testing::run_in_world(1, start);
}

// Two controllers' worth of boards, and a set whose newest write is in `one` and in `mirror` alone.
struct Bench {
  SimulatedBoard one{24 * kMiB};
  SimulatedBoard two{24 * kMiB};
  SimulatedBoard mirror{24 * kMiB};
  SimulatedBoard other_mirror{24 * kMiB};
};

// Starts ------------------------------------------------------------------------------------------

// Serves what was acknowledged, from the NVRAM or from the mirror.
Task<void> check_served(Executor& home, Books& books, Rack rack, BlockDevice& set) {
  const auto run = co_await begin(home, books, rack);
  CHECK(run->cache->bar(kSetUuid).empty());
  CHECK(run->told("writes lost") == 0);
  BlockDevice& device = run->cache->above(kSetUuid, set);
  const int now = co_await read(device, 0);
  CHECK(now == 7);
  co_await end(*run);
  const int then = co_await read(set, 0);
  CHECK(then == 7);
  CHECK_FALSE(books.entries.contains(dirty_key(kSetUuid)));
  const Error error = co_await write(set, 0, 1);  // As before, for the next.
  REQUIRE(error == Error::kNone);
}

Task<void> check_barred(Executor& home, Books& books, Rack rack) {
  const auto run = co_await begin(home, books, rack);
  CHECK_FALSE(run->cache->bar(kSetUuid).empty());
  CHECK(run->told("set barred") == 1);
  co_await end(*run);
  CHECK(books.entries.contains(dirty_key(kSetUuid)));
}

// What kills leave while a controller starts: at each commit, and at some of the stores into the
// NVRAM.
Task<std::vector<Moment>> moments_of_start(Executor& home, Books& books, Rack rack) {
  std::vector<Moment> moments;
  const auto run = co_await prepare(home, books, rack);
  const auto note = [&] { moments.push_back(moment_of(books, rack)); };
  std::uint64_t stores = 0;
  std::uint64_t next = 1;
  books.observer = note;
  run->nvram->observe_stores([&] {
    if (++stores != next) return;
    next *= 16;
    note();
  });
  const auto started = co_await run->cache->start(run->nvram.get());
  REQUIRE(started.has_value());
  books.observer = nullptr;
  run->nvram->observe_stores(nullptr);
  note();
  co_await end(*run);
  co_return moments;
}

// Whatever the racks are: killed at any moment of the start, the next one ends as this one would
// have; and where the set is barred, the way back stays open.
Task<void> killed_while_it_starts(Executor& home, Books& books, Rack rack, bool served, Rack first,
                                  BlockDevice& set) {
  const Moment before_first = moment_of(books, first);
  const std::vector<Moment> moments = co_await moments_of_start(home, books, rack);
  CHECK(moments.size() > 2);
  for (const Moment& moment : moments) {
    go_back(before_first, books, first);
    go_back(moment, books, rack);
    if (served) {
      co_await check_served(home, books, rack, set);
      continue;
    }
    co_await check_barred(home, books, rack);
    co_await check_served(home, books, first, set);
  }
}

enum class Nvram { kSame, kBlank, kUsed, kInUse };
enum class Mirror { kNone, kGood, kStale, kOther };

// In use: another set's writes are in it. That set is of no interest here.
Task<void> use_other_nvram(Executor& home, Books& books, SimulatedBoard& board, bool in_use) {
  const auto run = co_await begin(home, books, {.nvram = &board});
  const auto set = memory_set(home);
  BlockDevice& device = run->cache->above(Uuid{9}, *set);
  for (int i = 0; i < 2; ++i) {
    const Error error = co_await write(device, 0, 9);
    REQUIRE(error == Error::kNone);
    co_await home.sleep_for(std::chrono::milliseconds(10));
  }
  const Moment killed = moment_of(books, {.nvram = &board});
  co_await end(*run);
  if (in_use) go_back(killed, books, {.nvram = &board});
}

Task<void> starts(Executor& home, Nvram nvram, Mirror mirror, bool served) {
  Bench bench;
  Books books(home);
  const auto set = memory_set(home);
  if (nvram == Nvram::kUsed) co_await use_other_nvram(home, books, bench.two, false);
  Rack first{.nvram = &bench.one};
  if (mirror != Mirror::kNone) first.mirror = &bench.mirror;
  if (mirror == Mirror::kStale) {
    // The first run knows no mirror any more.
    co_await leave_dirty(home, books, first, *set);
    first.mirror = nullptr;
    co_await check_served(home, books, first, *set);
  }
  co_await leave_dirty(home, books, first, *set);
  if (nvram == Nvram::kInUse) co_await use_other_nvram(home, books, bench.two, true);
  Rack rack = first;
  if (nvram != Nvram::kSame) rack.nvram = &bench.two;
  if (mirror != Mirror::kNone) rack.mirror = &bench.mirror;
  if (mirror == Mirror::kOther) rack.mirror = &bench.other_mirror;
  co_await killed_while_it_starts(home, books, rack, served, first, *set);
}

// Stripes of 64 KiB.
class Striped final : public Layer {
 public:
  explicit Striped(BlockDevice& below) : Layer(below), geometry_(below.geometry()) {
    geometry_.optimal_io_blocks = 128;
  }
  const Geometry& geometry() const noexcept override { return geometry_; }

 private:
  Geometry geometry_;
};

// A unit has a quarter of the room for what is dirty at most: 16 stripes of 4 MiB.
Task<void> limit_units(Executor& home) {
  Books books(home);
  const auto run = co_await begin(home, books, {.cache = "dirty_limit = \"4MiB\"\n"});
  const auto memory = memory_set(home);
  Striped set(*memory);
  const std::vector<std::pair<std::uint64_t, std::uint32_t>> cases{{1, 1}, {16, 16}, {17, 16}};
  std::uint8_t number = 1;
  for (const auto& [asked, given] : cases) {
    BlockDevice& device = run->cache->above(Uuid{number++}, set, asked);
    CHECK(device.geometry().unit_blocks == given * 128);
    CHECK(device.geometry().optimal_io_blocks == 128);
  }
  co_await end(*run);
}

TEST_CASE("A unit has the stripes that are asked for, up to a quarter of the room",
          "[cache][group]") {
  run_in_world([](Executor& home) { return limit_units(home); });
}

TEST_CASE("Killed while it starts, a cache goes on as if it had not been", "[cache][group]") {
  struct Case {
    Nvram nvram;
    Mirror mirror;
    bool served;
  };
  const Case one = GENERATE(Case{Nvram::kSame, Mirror::kNone, true},     //
                            Case{Nvram::kSame, Mirror::kGood, true},     //
                            Case{Nvram::kSame, Mirror::kStale, true},    //
                            Case{Nvram::kSame, Mirror::kOther, true},    //
                            Case{Nvram::kBlank, Mirror::kNone, false},   //
                            Case{Nvram::kBlank, Mirror::kGood, true},    //
                            Case{Nvram::kBlank, Mirror::kStale, false},  //
                            Case{Nvram::kBlank, Mirror::kOther, false},  //
                            Case{Nvram::kUsed, Mirror::kGood, true},     //
                            Case{Nvram::kInUse, Mirror::kNone, false},   //
                            Case{Nvram::kInUse, Mirror::kGood, false});
  CAPTURE(static_cast<int>(one.nvram), static_cast<int>(one.mirror));
  run_in_world([&](Executor& home) { return starts(home, one.nvram, one.mirror, one.served); });
}

Task<void> other_mirror_first(Executor& home) {
  Bench bench;
  Books books(home);
  const auto set = memory_set(home);
  const Rack first{.nvram = &bench.one, .mirror = &bench.mirror};
  co_await leave_dirty(home, books, first, *set);
  // The wrong one changes nothing of what the right one is worth.
  co_await check_barred(home, books, {.nvram = &bench.two, .mirror = &bench.other_mirror});
  co_await check_barred(home, books, {.nvram = &bench.two});
  co_await check_served(home, books, {.nvram = &bench.two, .mirror = &bench.mirror}, *set);
}

TEST_CASE("A mirror that comes back stands in for an NVRAM that is gone", "[cache][group]") {
  run_in_world(other_mirror_first);
}

Task<void> before_its_region(Executor& home, bool mirrored) {
  Bench bench;
  Books books(home);
  const auto set = memory_set(home);
  {
    const auto run = co_await begin(home, books, {.nvram = &bench.one, .cache = ""});
    co_await end(*run);
  }
  Rack rack{.nvram = &bench.one};
  const Content old(bench.one);
  if (mirrored) rack.mirror = &bench.mirror;
  co_await leave_dirty(home, books, rack, *set);
  old.put_into(bench.one);
  if (mirrored) {
    co_await check_served(home, books, rack, *set);
    co_return;
  }
  const auto run = co_await begin(home, books, rack);
  CHECK(run->told("writes lost") == 1);
  CHECK(books.entries.contains(lost_key(kSetUuid)));
  co_await end(*run);
}

TEST_CASE("An old image without a region for the cache has lost what was in it", "[cache][group]") {
  const bool mirrored = GENERATE(true, false);
  run_in_world([&](Executor& home) { return before_its_region(home, mirrored); });
}

Task<void> dropped_for_good(Executor& home) {
  SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  Rack rack{.nvram = &board, .durability = nvram::Durability::kHost};
  co_await leave_dirty(home, books, rack, *set);
  books.entries.erase(dirty_key(kSetUuid));  // An operator has given it up.
  std::unique_ptr<SimulatedBoard> crashed;
  Books::Entries kept;
  {
    const auto run = co_await begin(home, books, rack);
    CHECK(run->told("cache stale") == 1);
    BlockDevice& device = run->cache->above(kSetUuid, *set);
    books.observer = [&] {
      if (crashed != nullptr || !books.entries.contains(dirty_key(kSetUuid))) return;
      crashed = std::make_unique<SimulatedBoard>(board);
      kept = books.entries;
    };
    const Error error = co_await write(device, 0, 5);
    CHECK(error == Error::kNone);
    co_await home.sleep_for(std::chrono::milliseconds(10));
    books.observer = nullptr;
    co_await end(*run);
  }
  REQUIRE(crashed != nullptr);
  rack.boot = "two";
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    board = *crashed;
    Random random(seed);
    board.crash_host(random);
    books.entries = kept;
    const auto run = co_await begin(home, books, rack);
    CHECK(run->told("cache recovered") == 0);
    const int now = co_await read(run->cache->above(kSetUuid, *set), 0);
    CHECK(now == 5);
    co_await end(*run);
  }
}

TEST_CASE("What a start has dropped does not come back under a new mark", "[cache][group]") {
  run_in_world(dropped_for_good);
}

Task<void> resized(Executor& home) {
  Bench bench;
  Books books(home);
  const auto set = memory_set(home);
  const Rack small{.nvram = &bench.one, .mirror = &bench.mirror};
  Rack large = small;
  large.cache = "nvram = \"20MiB\"\n";
  co_await leave_dirty(home, books, small, *set);
  {
    const auto run = co_await prepare(home, books, large);
    const auto started = co_await run->cache->start(run->nvram.get());
    REQUIRE_FALSE(started.has_value());
    CHECK(started.error().kind == StartRefusal::Kind::kConfiguration);
    CHECK_THAT(started.error().text, Contains("x.toml:") &&
                                         Contains("cache.nvram: the NVRAM holds") &&
                                         Contains("in 18MiB; write that size again"));
    co_await end(*run);
  }
  co_await check_served(home, books, small, *set);
  co_await leave_dirty(home, books, small, *set);
  co_await check_served(home, books, small, *set);
  {
    const auto run = co_await begin(home, books, large);
    CHECK(run->told("nvram cleared") == 2);
    CHECK(run->cache->show({}).mirror == "good");
    co_await end(*run);
  }
  co_await leave_dirty(home, books, large, *set);
  co_await check_served(home, books, large, *set);
}

TEST_CASE("The cache's part of an NVRAM takes another size when nothing in it is needed",
          "[cache][group]") {
  run_in_world(resized);
}

// What is said ------------------------------------------------------------------------------------

Task<std::string> bar_of(Executor& home, Books& books, Rack rack) {
  const auto run = co_await begin(home, books, rack);
  std::string bar = run->cache->bar(kSetUuid);
  const auto flushed = co_await run->cache->flush(std::nullopt);
  REQUIRE_FALSE(flushed.has_value());
  CHECK_THAT(flushed.error(), Contains(bar));
  const auto of_set = co_await run->cache->flush(kSetUuid);
  CHECK_FALSE(of_set.has_value());
  const auto of_other = co_await run->cache->flush(Uuid{9});
  CHECK(of_other.has_value());
  co_await end(*run);
  co_return bar;
}

Task<void> bars_with_their_cause(Executor& home) {
  Bench bench;
  Books books(home);
  const auto set = memory_set(home);
  co_await leave_dirty(home, books, {.nvram = &bench.one, .mirror = &bench.mirror}, *set);
  std::string bar = co_await bar_of(home, books, {.nvram = &bench.one, .cache = ""});
  CHECK_THAT(bar, Contains("write nvram = \"18MiB\" into the section [cache] again and restart") &&
                      !Contains("bring that NVRAM"));
  bar = co_await bar_of(home, books, {.nvram = nullptr, .cache = ""});
  CHECK_THAT(bar, Contains("write the section [nvram] of that one again"));
  bar = co_await bar_of(home, books, {.nvram = &bench.two});
  CHECK_THAT(bar, Contains("bring that NVRAM back (nothing was at nvram.img, and a new image, ") &&
                      Contains("cache discard r --yes-lose-data; mirror ") &&
                      Catch::EndsWith(" has them, too"));
  bar = co_await bar_of(home, books, {.nvram = &bench.two, .mirror = &bench.other_mirror});
  CHECK_THAT(bar, Contains(" has them, too, and is not used: nothing was at m, and a new image, "));
}

TEST_CASE("A barred set names its cause, and the way back", "[cache][group]") {
  run_in_world(bars_with_their_cause);
}

Task<void> waits_for_its_set(Executor& home) {
  SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  co_await leave_dirty(home, books, {.nvram = &board}, *set);
  const auto run = co_await begin(home, books, {.nvram = &board});
  CHECK_THAT(run->text("cache recovered"), Contains("1 acknowledged write of 4.00 KiB") &&
                                               Contains("checked in ") && Contains(" ms"));
  const auto all = co_await run->cache->flush(std::nullopt);
  REQUIRE_FALSE(all.has_value());
  CHECK(all.error() == "set r: 4.00 KiB of acknowledged writes wait for it to come");
  const auto one = co_await run->cache->flush(kSetUuid);
  CHECK_FALSE(one.has_value());
  (void)run->cache->above(kSetUuid, *set);
  const auto then = co_await run->cache->flush(std::nullopt);
  CHECK(then.has_value());
  const int now = co_await read(*set, 0);
  CHECK(now == 7);
  co_await end(*run);
}

TEST_CASE("A flush says so if something is not on the drives", "[cache][group]") {
  run_in_world(waits_for_its_set);
}

// Failures at run time ----------------------------------------------------------------------------

Task<void> unwritable_books(Executor& home) {
  SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  const auto run = co_await begin(home, books, {.nvram = &board});
  BlockDevice& device = run->cache->above(kSetUuid, *set);
  books.failing = true;
  for (std::uint8_t i = 1; i < 5; ++i) {
    const Error error = co_await write(device, 0, i);
    CHECK(error == Error::kNone);
    co_await home.sleep_for(std::chrono::seconds(2));
  }
  CHECK(run->told("cache metadata") == 1);
  CHECK_THAT(run->text("cache metadata"), Contains("the metadata cannot be written: "));
  const CacheInfo info = run->cache->show({});
  REQUIRE(info.notes.size() == 1);
  CHECK_THAT(info.notes[0], Contains("go through to the drives"));
  books.failing = false;
  Error error = co_await write(device, 0, 6);
  co_await home.sleep_for(std::chrono::seconds(2));
  CHECK(run->told("cache metadata") == 2);
  CHECK(run->cache->show({}).notes.empty());
  error = co_await write(device, 0, 7);
  CHECK(error == Error::kNone);
  // At the end, too: the mark stays, and somebody has to know.
  books.failing = true;
  co_await end(*run);
  CHECK(run->told("cache metadata") == 3);
  CHECK(books.entries.contains(dirty_key(kSetUuid)));
  const int now = co_await read(*set, 0);
  CHECK(now == 7);
}

TEST_CASE("Metadata that cannot be written are told once, and when they can be again",
          "[cache][group]") {
  run_in_world(unwritable_books);
}

Task<void> write_noting(BlockDevice* device, Lba first, std::uint8_t byte,
                        std::optional<Error>* error) {
  const Error ended = co_await write(*device, first, byte);
  *error = ended;
}

// The write that finds the mirror gone is in the NVRAM alone; so it was not acknowledged, should
// everything end before the metadata have it.
Task<void> mirror_fails(Executor& home) {
  Bench bench;
  Books books(home);
  const auto set = memory_set(home);
  const Rack rack{.nvram = &bench.one, .mirror = &bench.mirror};
  const auto stale = [&] { return decode_mirror(books.entries.at("mirror"))->stale; };
  const auto run = co_await begin(home, books, rack);
  BlockDevice& device = run->cache->above(kSetUuid, *set);
  Error error = co_await write(device, 0, 1);
  co_await home.sleep_for(std::chrono::milliseconds(10));
  error = co_await write(device, 0, 2);
  CHECK(error == Error::kNone);
  run->cache->mirror()->cut_power();
  books.failing = true;
  std::optional<Error> first;
  std::optional<Error> second;
  spawn(write_noting(&device, 0, 3, &first));
  co_await home.sleep_for(std::chrono::milliseconds(10));
  spawn(write_noting(&device, 64, 4, &second));
  co_await home.sleep_for(std::chrono::seconds(3));
  CHECK_FALSE(first.has_value());
  CHECK_FALSE(second.has_value());
  CHECK(run->told("cache metadata") == 1);
  const CacheInfo info = run->cache->show({});
  CHECK(info.mirror == "lost");
  REQUIRE(info.notes.size() == 1);
  CHECK_THAT(info.notes[0], Contains("every write waits and then fails"));
  co_await home.sleep_for(std::chrono::seconds(4));
  CHECK(first == Error::kNotReady);
  CHECK(second == Error::kNotReady);
  CHECK_FALSE(stale());
  books.failing = false;
  co_await home.sleep_for(std::chrono::seconds(2));
  CHECK(stale());
  error = co_await write(device, 128, 5);
  CHECK(error == Error::kNone);
  co_await end(*run);
}

TEST_CASE("Nobody is answered by an NVRAM alone before its mirror is called stale",
          "[cache][group]") {
  run_in_world(mirror_fails);
}

Task<void> mirror_fails_at_the_end(Executor& home) {
  Bench bench;
  Books books(home);
  const auto set = memory_set(home);
  const Rack rack{.nvram = &bench.one, .mirror = &bench.mirror};
  const auto run = co_await begin(home, books, rack);
  BlockDevice& device = run->cache->above(kSetUuid, *set);
  const Error error = co_await write(device, 0, 1);
  CHECK(error == Error::kNone);
  co_await home.sleep_for(std::chrono::milliseconds(10));
  run->cache->mirror()->cut_power();
  books.failing = true;
  std::optional<Error> ended;
  spawn(write_noting(&device, 0, 3, &ended));
  co_await home.sleep_for(std::chrono::seconds(7));
  books.failing = false;
  co_await end(*run);
  CHECK(decode_mirror(books.entries.at("mirror"))->stale);
}

TEST_CASE("A stop notes what could not be noted before: the mirror is stale", "[cache][group]") {
  run_in_world(mirror_fails_at_the_end);
}

Task<void> nvram_fails(Executor& home) {
  SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  const Rack rack{.nvram = &board, .durability = nvram::Durability::kHost};
  const auto run = co_await begin(home, books, rack);
  BlockDevice& device = run->cache->above(kSetUuid, *set);
  Error error = co_await write(device, 0, 1);
  CHECK(error == Error::kNone);
  co_await home.sleep_for(std::chrono::milliseconds(10));
  error = co_await write(device, 0, 2);
  CHECK(error == Error::kNone);
  board.sync_error = Error::kHardware;
  // On its way when that is found out, and where nothing else was ever written: it goes through.
  error = co_await write(device, 100, 3);
  CHECK(error == Error::kNone);
  error = co_await write(device, 200, 4);
  CHECK(error == Error::kNone);
  const int through = co_await read(*set, 100);
  CHECK(through == 3);
  for (std::uint8_t i = 5; i < 8; ++i) {
    for (const Lba in_doubt : {Lba{0}, Lba{100}}) {
      error = co_await write(device, in_doubt, i);
      CHECK(error != Error::kNone);  // Something older may come back from there.
    }
    co_await home.sleep_for(std::chrono::seconds(1));
  }
  CHECK(run->told("nvram failed") == 1);
  CHECK_THAT(run->text("nvram failed"), Contains("cannot be written any more: "));
  const CacheInfo info = run->cache->show({});
  CHECK_FALSE(info.non_volatile);
  REQUIRE(info.notes.size() == 1);
  CHECK_THAT(info.notes[0], Contains("the NVRAM: its image cannot be written any more"));
  co_await end(*run);
  CHECK(run->told("nvram failed") == 1);  // Its end is no failure.
}

TEST_CASE("An NVRAM that fails at run time is told, and shown", "[cache][group]") {
  run_in_world(nvram_fails);
}

// A drive that hangs ------------------------------------------------------------------------------

class Hanging final : public Layer {
 public:
  explicit Hanging(BlockDevice& below) : Layer(below) {}
  Task<Completion> submit(Request request) override {
    if (hangs) co_await go_on.wait();
    Completion completion = co_await below().submit(std::move(request));
    co_return completion;
  }
  bool hangs = false;
  Condition go_on;
};

// What is left behind, where a checker of leaks finds it.
std::vector<std::pair<ControllerCache*, nvram::Nvram*>>& left_behind() {
  static auto& all = *new std::vector<std::pair<ControllerCache*, nvram::Nvram*>>;
  return all;
}

Task<void> hangs_at_the_end(Executor& home) {
  SimulatedBoard board(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  Hanging hanging(*set);
  const auto run = co_await begin(home, books, {.nvram = &board});
  BlockDevice& device = run->cache->above(kSetUuid, hanging);
  Error error = co_await write(device, 0, 1);
  co_await home.sleep_for(std::chrono::milliseconds(10));
  error = co_await write(device, 0, 7);
  CHECK(error == Error::kNone);
  hanging.hangs = true;
  co_await run->cache->settle(home.now() + std::chrono::seconds(1));
  const bool ended = co_await run->cache->stop(home.now() + std::chrono::seconds(1));
  CHECK_FALSE(ended);
  CHECK(run->told("writes left") == 1);
  // From here on nobody is there but the cache.
  left_behind().emplace_back(run->cache.release(), run->nvram.release());
  const std::uint64_t told = run->events.total();
  bool committed = false;
  books.observer = [&] { committed = true; };
  hanging.hangs = false;
  hanging.go_on.notify_all();
  co_await home.sleep_for(std::chrono::seconds(60));
  CHECK(run->events.total() == told);
  CHECK_FALSE(committed);
  CHECK(books.entries.contains(dirty_key(kSetUuid)));
}

TEST_CASE("A drive that wakes up after the end of a stop finds everything in its place",
          "[cache][group]") {
  run_in_world(hangs_at_the_end);
}

}  // namespace
}  // namespace sandbay::group::testing::controller_cache_test
