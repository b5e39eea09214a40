// The controller's cache where a wrong image is put in the place of its NVRAM or of its mirror:
// another group's, another controller's, an older copy, or none. Nothing that was acknowledged is
// lost silently, and the way back stays open.
#include "runtime/uuid.h"
#include "tests/unit/block/on_executor.h"
#include "tests/unit/group/controller_cache_rig.h"

namespace sandbay::group::testing {
namespace {

using Catch::Contains;
using nvram::SimulatedBoard;

constexpr ImageUuid kOurs{std::byte{1}};
constexpr ImageUuid kTheirs{std::byte{2}};

// Boards of the group `owner`.
struct Shelf {
  ImageUuid owner = kOurs;
  SimulatedBoard* nvram = nullptr;
  SimulatedBoard* mirror = nullptr;
};

// As Hardware does it; `why` is what kept it from starting.
Task<std::unique_ptr<Run>> power_on(Executor& home, Books& books, Shelf shelf, std::string* why) {
  Rack rack{.nvram = shelf.nvram, .mirror = shelf.mirror};
  auto run = std::make_unique<Run>(configuration_of(rack));
  run->cache = std::make_unique<ControllerCache>(home, run->configuration, books, run->events,
                                                 [](const Uuid&) { return std::string("r"); });
  const auto loaded = co_await run->cache->load();
  REQUIRE(loaded.has_value());
  nvram::NvramOptions options = run->cache->nvram_options();
  options.boot_id = "one";
  options.owner = shelf.owner;
  auto opened = co_await nvram::Nvram::open(home, *shelf.nvram, std::move(options));
  if (!opened) {
    *why = opened.error();
    co_await run->cache->finish();
    co_return nullptr;
  }
  run->nvram = std::move(*opened);
  metadata::Batch batch;
  batch.put(nvram_key(run->nvram->uuid()), encode_nvram(run->nvram->open_count()));
  (void)co_await books.commit(std::move(batch));
  run->configuration.open_image = [shelf](Executor& executor, nvram::NvramOptions mirror) {
    mirror.boot_id = "one";
    return nvram::Nvram::open(executor, *shelf.mirror, std::move(mirror));
  };
  const auto started = co_await run->cache->start(run->nvram.get());
  REQUIRE(started.has_value());
  co_return run;
}

Task<std::unique_ptr<Run>> power_on(Executor& home, Books& books, Shelf shelf) {
  std::string why;
  auto run = co_await power_on(home, books, shelf, &why);
  INFO(why);
  REQUIRE(run != nullptr);
  co_return run;
}

// What a kill leaves of a group that has written `byte` over what is on the drives.
Task<void> leave_written(Executor& home, Books& books, Shelf shelf, BlockDevice& set,
                         std::uint8_t byte) {
  auto run = co_await power_on(home, books, shelf);
  BlockDevice& device = run->cache->above(kSetUuid, set);
  for (int i = 0; i < 2; ++i) {
    const Error error = co_await write(device, 0, byte);
    REQUIRE(error == Error::kNone);
    co_await home.sleep_for(std::chrono::milliseconds(10));  // Until it is marked.
  }
  const Rack rack{.nvram = shelf.nvram, .mirror = shelf.mirror};
  const Moment killed = moment_of(books, rack);
  co_await end(*run);
  go_back(killed, books, rack);
  const Error error = co_await write(set, 0, 1);
  REQUIRE(error == Error::kNone);
}

Task<void> serves(Executor& home, Books& books, Shelf shelf, BlockDevice& set, int byte) {
  const auto run = co_await power_on(home, books, shelf);
  CHECK(run->cache->bar(kSetUuid).empty());
  CHECK(run->told("writes lost") == 0);
  const int now = co_await read(run->cache->above(kSetUuid, set), 0);
  CHECK(now == byte);
  co_await end(*run);
}

struct Boards {
  SimulatedBoard one{24 * kMiB};
  SimulatedBoard two{24 * kMiB};
  SimulatedBoard three{24 * kMiB};
};

// Wrong names -------------------------------------------------------------------------------------

Task<void> nvram_as_mirror(Executor& home) {
  Boards boards;
  Books books(home);
  const auto set = memory_set(home);
  co_await leave_written(home, books, {.nvram = &boards.one}, *set, 7);
  for (int i = 0; i < 2; ++i) {
    const auto run = co_await power_on(home, books, {.nvram = &boards.two, .mirror = &boards.one});
    CHECK_FALSE(run->cache->bar(kSetUuid).empty());
    CHECK_THAT(run->text("mirror lost"),
               Contains("the mirror is not used: nvram image s/m: is NVRAM ") &&
                   Contains(", with writes of set r that may not be on the drives; write it as "
                            "file, and as mirror its mirror or a new path"));
    const CacheInfo info = run->cache->show({});
    CHECK(info.mirror == "lost");
    REQUIRE_FALSE(info.notes.empty());
    CHECK_THAT(info.notes[0], Contains("the mirror is not used: "));
    if (i == 0) CHECK(run->told("nvram replaced") == 1);
    co_await end(*run);
  }
  co_await serves(home, books, {.nvram = &boards.one}, *set, 7);
}

TEST_CASE("An NVRAM that a set waits for is not made a mirror", "[cache][group]") {
  sandbay::testing::run_in_world(1, [](Executor& home) { return nvram_as_mirror(home); });
}

Task<void> mirror_as_nvram(Executor& home) {
  Boards boards;
  Books books(home);
  const auto set = memory_set(home);
  const Shelf shelf{.nvram = &boards.one, .mirror = &boards.two};
  co_await leave_written(home, books, shelf, *set, 7);
  std::string why;
  const auto run = co_await power_on(home, books, {.nvram = &boards.two}, &why);
  CHECK(run == nullptr);
  CHECK_THAT(why, Contains("is the mirror of NVRAM ") &&
                      Contains(", with writes of set r that may not be on the drives; write it as "
                               "mirror, and as file that NVRAM or a new path"));
  // What it says helps.
  co_await serves(home, books, {.nvram = &boards.three, .mirror = &boards.two}, *set, 7);
}

TEST_CASE("A mirror that has what sets wait for is not made an NVRAM", "[cache][group]") {
  sandbay::testing::run_in_world(1, [](Executor& home) { return mirror_as_nvram(home); });
}

Task<void> copy_as_mirror(Executor& home) {
  Boards boards;
  Books books(home);
  const auto set = memory_set(home);
  co_await leave_written(home, books, {.nvram = &boards.one}, *set, 7);
  boards.two = boards.one;
  const auto run = co_await power_on(home, books, {.nvram = &boards.one, .mirror = &boards.two});
  CHECK_THAT(run->text("mirror lost"), Contains("is a copy of the NVRAM itself"));
  co_await end(*run);
}

TEST_CASE("A copy of the NVRAM is no mirror of it", "[cache][group]") {
  sandbay::testing::run_in_world(1, [](Executor& home) { return copy_as_mirror(home); });
}

// Other groups ------------------------------------------------------------------------------------

Task<void> of_another_group(Executor& home) {
  Boards boards;
  Books ours(home);
  Books theirs(home);
  const auto our_set = memory_set(home);
  const auto their_set = memory_set(home);
  const Shelf them{.owner = kTheirs, .nvram = &boards.two};
  co_await leave_written(home, ours, {.nvram = &boards.one}, *our_set, 7);
  co_await leave_written(home, theirs, them, *their_set, 9);
  std::string why;
  const auto refused = co_await power_on(home, ours, {.nvram = &boards.two}, &why);
  CHECK(refused == nullptr);
  CHECK_THAT(why, Contains("belongs to another group, \"t\" (02000000-"));
  {
    const auto run = co_await power_on(home, ours, {.nvram = &boards.one, .mirror = &boards.two});
    CHECK_THAT(run->text("mirror lost"), Contains("belongs to another group, \"t\" (02000000-"));
    co_await end(*run);
  }
  co_await serves(home, theirs, them, *their_set, 9);
  co_await serves(home, ours, {.nvram = &boards.one}, *our_set, 7);
}

TEST_CASE("Another group's NVRAM is neither NVRAM nor mirror here, and keeps what it has",
          "[cache][group]") {
  sandbay::testing::run_in_world(1, [](Executor& home) { return of_another_group(home); });
}

// Older copies ------------------------------------------------------------------------------------

Task<void> older_copy(Executor& home, bool discarded) {
  Boards boards;
  Books books(home);
  const auto set = memory_set(home);
  co_await leave_written(home, books, {.nvram = &boards.one}, *set, 7);
  boards.two = boards.one;
  co_await leave_written(home, books, {.nvram = &boards.one}, *set, 8);
  {
    const auto run = co_await power_on(home, books, {.nvram = &boards.two});
    CHECK(run->told("nvram replaced") == 1);
    CHECK(run->told("cache recovered") == 0);
    CHECK_THAT(run->cache->bar(kSetUuid),
               Contains("bring that NVRAM back (nvram.img is an older copy of ") &&
                   Contains(", and counts as another image now, ") && Contains("discard r"));
    // Others are served, and what they write is not taken for what this one waits for.
    const auto other = memory_set(home);
    BlockDevice& device = run->cache->above(Uuid{9}, *other);
    for (int i = 0; i < 2; ++i) {
      const Error error = co_await write(device, 0, 5);
      CHECK(error == Error::kNone);
      co_await home.sleep_for(std::chrono::milliseconds(10));
    }
    if (discarded) {
      const auto given_up = co_await run->cache->discard(kSetUuid);
      REQUIRE(given_up.has_value());
    }
    co_await end(*run);
  }
  if (!discarded) {
    co_await serves(home, books, {.nvram = &boards.one}, *set, 8);
    co_return;
  }
  // The newest one is as good as blank now: it is never laid over what was written since.
  Error error = co_await write(*set, 0, 3);
  REQUIRE(error == Error::kNone);
  const auto run = co_await power_on(home, books, {.nvram = &boards.one});
  const int now = co_await read(run->cache->above(kSetUuid, *set), 0);
  CHECK(now == 3);
  co_await end(*run);
}

TEST_CASE("An older copy of the NVRAM bars its sets until the right one is back",
          "[cache][group]") {
  for (const bool discarded : {false, true}) {
    sandbay::testing::run_in_world(1, [&](Executor& home) { return older_copy(home, discarded); });
  }
}

Task<void> mirror_gone_with_nvram(Executor& home) {
  Boards boards;
  SimulatedBoard other_mirror(24 * kMiB);
  Books books(home);
  const auto set = memory_set(home);
  const Shelf shelf{.nvram = &boards.one, .mirror = &boards.two};
  co_await leave_written(home, books, shelf, *set, 7);
  const auto run =
      co_await power_on(home, books, {.nvram = &boards.three, .mirror = &other_mirror});
  CHECK_THAT(run->cache->bar(kSetUuid),
             Contains("bring that NVRAM back (nothing was at nvram.img, and a new image, ") &&
                 Contains(" has them, too, and is not used: nothing was at m, and a new image, ") &&
                 Contains(" must come back to its place"));
  co_await end(*run);
  co_await serves(home, books, {.nvram = &boards.three, .mirror = &boards.two}, *set, 7);
  // The mirror alone: told, and filled again.
  const auto alone =
      co_await power_on(home, books, {.nvram = &boards.three, .mirror = &boards.one});
  co_await end(*alone);
  SimulatedBoard blank(24 * kMiB);
  const auto refilled = co_await power_on(home, books, {.nvram = &boards.three, .mirror = &blank});
  CHECK_THAT(refilled->text("mirror replaced"),
             Contains("nothing was at m, and a new image, ") && Contains("it gets what the NVRAM"));
  CHECK(refilled->cache->show({}).mirror == "good");
  co_await end(*refilled);
}

TEST_CASE("What was found in place of an NVRAM and its mirror is told", "[cache][group]") {
  sandbay::testing::run_in_world(1, [](Executor& home) { return mirror_gone_with_nvram(home); });
}

// Power cuts --------------------------------------------------------------------------------------

Task<void> cut_at_work(Executor& home) {
  Boards boards;
  Books books(home);
  const auto set = memory_set(home);
  const Rack rack{.nvram = &boards.one, .mirror = &boards.two};
  const auto run = co_await power_on(home, books, {.nvram = &boards.one, .mirror = &boards.two});
  BlockDevice& device = run->cache->above(kSetUuid, *set);
  for (const std::uint8_t byte : {1, 7}) {
    const Error error = co_await write(device, 0, byte);
    REQUIRE(error == Error::kNone);
    co_await home.sleep_for(std::chrono::milliseconds(10));
  }
  run->nvram->cut_power();  // As Hardware does it, at one instant.
  run->cache->mirror()->cut_power();
  (void)co_await write(device, 64, 3);  // Nobody is answered any more.
  (void)co_await run->cache->flush(std::nullopt);
  co_await run->cache->check_images();
  co_await home.sleep_for(std::chrono::seconds(2));
  CHECK(run->told("mirror lost") == 0);
  CHECK_FALSE(decode_mirror(books.entries.at("mirror"))->stale);
  const Moment cut = moment_of(books, rack);
  co_await end(*run);
  go_back(cut, books, rack);
  const Error old = co_await write(*set, 0, 1);
  REQUIRE(old == Error::kNone);
  // So the mirror stands in for an NVRAM that does not come back.
  co_await serves(home, books, {.nvram = &boards.three, .mirror = &boards.two}, *set, 7);
}

TEST_CASE("A power cut makes no failed mirror of a good one", "[cache][group]") {
  sandbay::testing::run_in_world(1, [](Executor& home) { return cut_at_work(home); });
}

// Memory that goes ------------------------------------------------------------------------------

Task<Error> submit(BlockDevice& device, Request request) {
  const Completion ended = co_await device.submit(std::move(request));
  co_return ended.error;
}

Task<void> cut_short(Executor& home) {
  Boards boards;
  Books books(home);
  const auto set = memory_set(home);
  const auto run = co_await power_on(home, books, {.nvram = &boards.one, .mirror = &boards.two});
  BlockDevice& device = run->cache->above(kSetUuid, *set);
  for (const std::uint8_t byte : {1, 7}) {
    const Error error = co_await write(device, 0, byte);
    REQUIRE(error == Error::kNone);
    co_await home.sleep_for(std::chrono::milliseconds(10));
  }
  // On its way when the memory goes: what was received there is zeros now.
  Request on_its_way{.operation = Operation::kWrite, .extent = {.first = 64, .block_count = 8}};
  on_its_way.data = device.write_buffers(4096);
  REQUIRE(on_its_way.data.byte_count() == 4096);
  on_its_way.data.copy_from(std::vector<std::byte>(4096, std::byte{9}));

  boards.one.cut_short(0);
  co_await run->cache->check_images();
  CHECK(run->told("nvram failed") == 1);
  CHECK_FALSE(run->cache->show({}).non_volatile);
  const Error ended = co_await submit(device, std::move(on_its_way));
  CHECK(ended == Error::kNotReady);
  const int now = co_await read(device, 0);
  CHECK(now == 7);
  co_await home.sleep_for(std::chrono::seconds(5));
  const int below = co_await read(*set, 0);
  CHECK(below == 7);
  for (const Lba first : {Lba{0}, Lba{128}}) {
    const Error error = co_await write(device, first, 5);
    CHECK(error == Error::kNone);
    const int through = co_await read(*set, first);
    CHECK(through == 5);
  }
  CHECK(run->told("nvram failed") == 1);
  CHECK(run->told("writes lost") == 0);
  co_await end(*run);
}

TEST_CASE("An NVRAM that is cut short loses nothing that its mirror has", "[cache][group]") {
  sandbay::testing::run_in_world(1, [](Executor& home) { return cut_short(home); });
}

Task<void> mirror_cut_short(Executor& home) {
  Boards boards;
  Books books(home);
  const auto set = memory_set(home);
  const auto run = co_await power_on(home, books, {.nvram = &boards.one, .mirror = &boards.two});
  BlockDevice& device = run->cache->above(kSetUuid, *set);
  boards.two.cut_short(0);
  CHECK(run->told("mirror lost") == 0);
  co_await run->cache->check_images();
  co_await run->cache->check_images();
  co_await home.sleep_for(std::chrono::milliseconds(10));
  CHECK(run->told("mirror lost") == 1);
  CHECK(run->told("nvram failed") == 0);
  CHECK(decode_mirror(books.entries.at("mirror"))->stale);
  const Error error = co_await write(device, 0, 5);
  CHECK(error == Error::kNone);
  co_await end(*run);
}

TEST_CASE("A mirror that is cut short has failed, also if nobody writes", "[cache][group]") {
  sandbay::testing::run_in_world(1, [](Executor& home) { return mirror_cut_short(home); });
}

}  // namespace
}  // namespace sandbay::group::testing
