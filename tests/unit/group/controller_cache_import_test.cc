// The controller's cache after an import that names another NVRAM than the present one, while both
// have writes of a set: the set waits for an operator, and what either of them has is kept.
#include "tests/unit/block/on_executor.h"
#include "tests/unit/group/controller_cache_rig.h"

namespace sandbay::group::testing {
namespace {

using Catch::Contains;
using Catch::StartsWith;
using nvram::SimulatedBoard;

constexpr std::uint8_t kInPresent = 7;
constexpr std::uint8_t kInNamed = 9;  // The drives have 1.

// The metadata are as the import leaves them; nobody has started with them.
struct Imported {
  explicit Imported(Executor& home) : books(home), set(memory_set(home)) {}
  Books books;
  std::unique_ptr<MemoryDevice> set;
  SimulatedBoard present{24 * kMiB};
  SimulatedBoard named{24 * kMiB};
  SimulatedBoard blank{24 * kMiB};
  ImageUuid present_uuid{};
  ImageUuid named_uuid{};

  DirtyRecord record() const {
    const auto found = books.entries.find(dirty_key(kSetUuid));
    REQUIRE(found != books.entries.end());
    const auto decoded = decode_dirty(found->second);
    REQUIRE(decoded.has_value());
    return *decoded;
  }
};

Task<void> import_another(Executor* home, Imported* imported) {
  co_await leave_dirty(*home, imported->books, {.nvram = &imported->present}, *imported->set,
                       kInPresent);
  imported->present_uuid = imported->record().nvram;
  imported->books.entries.clear();
  co_await leave_dirty(*home, imported->books, {.nvram = &imported->named}, *imported->set,
                       kInNamed);
  imported->named_uuid = imported->record().nvram;
  imported->books.entries[std::string(kUncheckedKey)] = "{}";
}

// The first start, with the present NVRAM: nobody says anything.
Task<void> start_with_present(Executor* home, Imported* imported) {
  const auto run = co_await begin(*home, imported->books, {.nvram = &imported->present});
  CHECK(run->cache->may_adopt(kSetUuid));
  co_await end(*run);
  const DirtyRecord record = imported->record();
  REQUIRE(record.nvram == imported->present_uuid);
  REQUIRE(record.exported == imported->named_uuid);
}

Task<void> serves(Executor* home, Imported* imported, Rack rack, int byte) {
  const auto run = co_await begin(*home, imported->books, rack);
  const std::string bar = run->cache->bar(kSetUuid);
  CHECK(bar.empty());
  CHECK(run->told("writes lost") == 0);
  if (bar.empty()) {
    const int now = co_await read(run->cache->above(kSetUuid, *imported->set), 0);
    CHECK(now == byte);
  }
  co_await end(*run);
}

// Put back ----------------------------------------------------------------------------------------

Task<void> put_back_with_another_size(Executor& home) {
  Imported imported(home);
  co_await import_another(&home, &imported);
  co_await start_with_present(&home, &imported);
  {
    const auto run = co_await prepare(home, imported.books,
                                      {.nvram = &imported.named, .cache = "nvram = \"19MiB\"\n"});
    const auto started = co_await run->cache->start(run->nvram.get());
    CHECK_FALSE(started.has_value());
    if (started) (void)co_await run->cache->stop(kNever);
    if (!started) CHECK_THAT(started.error().text, Contains("in 18MiB; write that size again"));
    CHECK(run->told("nvram cleared") == 0);
    co_await run->cache->finish();
    (void)co_await run->nvram->close();
  }
  co_await serves(&home, &imported, {.nvram = &imported.named}, kInNamed);
}

TEST_CASE("A start keeps an NVRAM that an import names when the cache's size has changed",
          "[cache][group][N7]") {
  sandbay::testing::run_in_world(1, put_back_with_another_size);
}

Task<void> put_back_as_mirror(Executor& home) {
  Imported imported(home);
  co_await import_another(&home, &imported);
  co_await start_with_present(&home, &imported);
  {
    const auto run = co_await begin(home, imported.books,
                                    {.nvram = &imported.present, .mirror = &imported.named});
    CHECK_THAT(run->text("mirror lost"),
               Contains("is NVRAM ") && Contains(", with writes of set r that may not be on the "
                                                 "drives; write it as file"));
    co_await end(*run);
  }
  co_await serves(&home, &imported, {.nvram = &imported.named}, kInNamed);
}

TEST_CASE("An NVRAM that an import names is not made a mirror", "[cache][group][N7]") {
  sandbay::testing::run_in_world(1, put_back_as_mirror);
}

Task<void> put_back_beside_mirror(Executor& home) {
  Imported imported(home);
  co_await import_another(&home, &imported);
  co_await start_with_present(&home, &imported);
  {
    const auto run = co_await begin(home, imported.books,
                                    {.nvram = &imported.present, .mirror = &imported.blank});
    CHECK(run->cache->show({}).mirror == "good");
    co_await end(*run);
  }
  const Rack rack{.nvram = &imported.named, .mirror = &imported.blank};
  const Moment before = moment_of(imported.books, rack);
  {
    const auto run = co_await begin(home, imported.books, rack);
    CHECK_THAT(run->text("mirror lost"), Contains("and so does this NVRAM"));
    CHECK(run->told("nvram cleared") == 0);
    co_await end(*run);
  }
  go_back(before, imported.books, rack);
  co_await serves(&home, &imported, rack, kInNamed);
}

TEST_CASE("The mirror of another NVRAM does not replace one that an import names",
          "[cache][group][N7]") {
  sandbay::testing::run_in_world(1, put_back_beside_mirror);
}

// Given up ----------------------------------------------------------------------------------------

Task<void> discard_twice(Executor& home) {
  Imported imported(home);
  co_await import_another(&home, &imported);
  {
    const auto run = co_await begin(home, imported.books, {.nvram = &imported.present});
    imported.books.failing = true;
    const auto failed = co_await run->cache->discard(kSetUuid);
    CHECK_FALSE(failed.has_value());
    CHECK_THAT(run->cache->bar(kSetUuid), Contains("sandbay cache adopt r"));
    imported.books.failing = false;
    const auto given = co_await run->cache->discard(kSetUuid);
    CHECK(given.has_value());
    CHECK_THAT(run->cache->bar(kSetUuid), StartsWith("its newest writes are in NVRAM "));
    co_await end(*run);
  }
  CHECK(imported.record().nvram == imported.named_uuid);
  co_await serves(&home, &imported, {.nvram = &imported.named}, kInNamed);
}

TEST_CASE(
    "A discard that is repeated after a failed commit has the set wait for the import's NVRAM",
    "[cache][group][N7]") {
  sandbay::testing::run_in_world(1, discard_twice);
}

Task<void> discard_elsewhere(Executor& home) {
  Imported imported(home);
  co_await import_another(&home, &imported);
  co_await start_with_present(&home, &imported);
  const std::string named = format_uuid(std::bit_cast<Uuid>(imported.named_uuid));
  const std::string present = format_uuid(std::bit_cast<Uuid>(imported.present_uuid));
  {
    const auto run = co_await begin(home, imported.books, {.nvram = &imported.blank});
    CHECK_THAT(run->cache->bar(kSetUuid),
               StartsWith("its newest writes are in NVRAM " + present) &&
                   Contains("the imported metadata say that they are in NVRAM " + named));
    const auto given = co_await run->cache->discard(kSetUuid);
    REQUIRE(given.has_value());
    CHECK(given->nvram == present);
    CHECK_THAT(run->cache->bar(kSetUuid), StartsWith("its newest writes are in NVRAM " + named));
    co_await end(*run);
  }
  const DirtyRecord record = imported.record();
  CHECK(record.nvram == imported.named_uuid);
  CHECK_FALSE(record.unconfirmed);
  CHECK(record.exported == ImageUuid{});
  // Writes that were given up do not come back; those in the NVRAM that the import names do.
  {
    const auto run = co_await begin(home, imported.books, {.nvram = &imported.present});
    CHECK_THAT(run->cache->bar(kSetUuid), StartsWith("its newest writes are in NVRAM " + named));
    co_await end(*run);
  }
  co_await serves(&home, &imported, {.nvram = &imported.named}, kInNamed);
}

TEST_CASE("A discard while neither NVRAM is present has the set wait for the import's",
          "[cache][group][N7]") {
  sandbay::testing::run_in_world(1, discard_elsewhere);
}

// Unconfirmed -------------------------------------------------------------------------------------

Task<void> first_start_fails(Executor& home) {
  Imported imported(home);
  co_await import_another(&home, &imported);
  const Books::Entries before = imported.books.entries;
  const auto run = co_await prepare(home, imported.books, {.nvram = &imported.present});
  imported.books.failing = true;
  const auto started = co_await run->cache->start(run->nvram.get());
  CHECK_FALSE(started.has_value());
  CHECK_FALSE(run->cache->may_adopt(kSetUuid));
  CHECK(imported.books.entries == before);
  imported.books.failing = false;
  co_await run->cache->finish();
  (void)co_await run->nvram->close();
  co_await start_with_present(&home, &imported);
}

TEST_CASE("A first start after an import that cannot write the metadata finds nothing to adopt",
          "[cache][group][N7]") {
  sandbay::testing::run_in_world(1, first_start_fails);
}

Task<void> mirror_fills_another(Executor& home) {
  Imported imported(home);
  co_await import_another(&home, &imported);
  SimulatedBoard mirror(24 * kMiB);
  {
    const auto run =
        co_await begin(home, imported.books, {.nvram = &imported.present, .mirror = &mirror});
    co_await end(*run);
  }
  // The mirror gives everything to a new NVRAM, which has it at each start from then on.
  const Rack rack{.nvram = &imported.blank, .mirror = &mirror};
  for (int start = 0; start < 2; ++start) {
    const auto run = co_await begin(home, imported.books, rack);
    CHECK(run->told("cache stale") == 0);
    CHECK(run->cache->may_adopt(kSetUuid));
    CHECK(imported.record().unconfirmed);
    CHECK(imported.record().exported == imported.named_uuid);
    co_await end(*run);
  }
  {
    const auto run = co_await begin(home, imported.books, rack);
    REQUIRE(run->cache->may_adopt(kSetUuid));
    const auto adopted = co_await run->cache->adopt(kSetUuid);
    REQUIRE(adopted.has_value());
    const int now = co_await read(run->cache->above(kSetUuid, *imported.set), 0);
    CHECK(now == kInPresent);
    co_await end(*run);
  }
  const int on_drives = co_await read(*imported.set, 0);
  CHECK(on_drives == kInPresent);
}

TEST_CASE("Unconfirmed writes are kept when a mirror gives them to a new NVRAM",
          "[cache][group][N7]") {
  sandbay::testing::run_in_world(1, mirror_fills_another);
}

// Made since --------------------------------------------------------------------------------------

// Before an import that knows of no writes, the NVRAM and its mirror have some.
Task<void> import_nothing(Executor* home, Imported* imported, SimulatedBoard* mirror) {
  co_await leave_dirty(*home, imported->books, {.nvram = &imported->present, .mirror = mirror},
                       *imported->set, kInPresent);
  imported->books.entries.clear();
  imported->books.entries[std::string(kUncheckedKey)] = "{}";
}

// The NVRAM or its mirror, put in place, offers its writes.
Task<void> adopts(Executor* home, Imported* imported, SimulatedBoard* board) {
  const auto run = co_await begin(*home, imported->books, {.nvram = board});
  CHECK(run->told("cache stale") == 0);
  REQUIRE(run->cache->may_adopt(kSetUuid));
  CHECK_THAT(run->cache->bar(kSetUuid),
             Contains("if nothing has been written to the set since without this NVRAM"));
  const auto adopted = co_await run->cache->adopt(kSetUuid);
  REQUIRE(adopted.has_value());
  const int now = co_await read(run->cache->above(kSetUuid, *imported->set), 0);
  CHECK(now == kInPresent);
  co_await end(*run);
}

// The NVRAM from before the import is not there at the first start, and comes back.
Task<void> old_one_comes_later(Executor& home) {
  Imported imported(home);
  co_await import_nothing(&home, &imported, nullptr);
  for (SimulatedBoard* const made : {&imported.blank, &imported.named, &imported.blank}) {
    co_await serves(&home, &imported, {.nvram = made}, 1);
  }
  co_await adopts(&home, &imported, &imported.present);
}

TEST_CASE("An NVRAM from before an import is asked about whenever it comes back",
          "[cache][group][N7]") {
  sandbay::testing::run_in_world(1, old_one_comes_later);
}

// A new NVRAM has newer writes than the one that comes back.
Task<void> new_one_has_newer(Executor& home) {
  Imported imported(home);
  co_await import_nothing(&home, &imported, nullptr);
  co_await leave_dirty(home, imported.books, {.nvram = &imported.blank}, *imported.set, kInNamed);
  for (int start = 0; start < 2; ++start) {
    const auto run = co_await begin(home, imported.books, {.nvram = &imported.present});
    CHECK_THAT(run->cache->bar(kSetUuid), Contains("has been used since, has newer ones; bring"));
    co_await end(*run);
  }
  co_await serves(&home, &imported, {.nvram = &imported.blank}, kInNamed);
}

TEST_CASE("What was written since an import is not called older", "[cache][group][N7]") {
  sandbay::testing::run_in_world(1, new_one_has_newer);
}

// A mirror that was made since the import, too, and was not used for a while.
Task<void> new_mirror_returns(Executor& home) {
  Imported imported(home);
  imported.books.entries[std::string(kUncheckedKey)] = "{}";
  const Rack both{.nvram = &imported.blank, .mirror = &imported.named};
  co_await leave_dirty(home, imported.books, both, *imported.set, kInNamed);
  {
    const auto run = co_await begin(home, imported.books, {.nvram = &imported.blank});
    co_await end(*run);
  }
  const auto run = co_await begin(home, imported.books, both);
  CHECK(run->told("mirror lost") == 0);
  CHECK(run->cache->show({}).mirror == "good");
  co_await end(*run);
}

TEST_CASE("A mirror that was made since an import returns", "[cache][group][N7]") {
  sandbay::testing::run_in_world(1, new_mirror_returns);
}

// The NVRAM is gone for good; its mirror still has everything.
Task<void> mirror_survives(Executor& home) {
  Imported imported(home);
  SimulatedBoard mirror(24 * kMiB);
  co_await import_nothing(&home, &imported, &mirror);
  for (int start = 0; start < 2; ++start) {
    const auto run =
        co_await begin(home, imported.books, {.nvram = &imported.blank, .mirror = &mirror});
    CHECK_THAT(run->text("mirror lost"),
               Contains("may have writes from before it") && Contains("write it as file"));
    co_await end(*run);
  }
  co_await adopts(&home, &imported, &mirror);
}

TEST_CASE("A mirror from before an import is not overwritten by an NVRAM that was made since",
          "[cache][group][N7]") {
  sandbay::testing::run_in_world(1, mirror_survives);
}

// Records -----------------------------------------------------------------------------------------

TEST_CASE("Older daemons refuse the record of writes that nobody has confirmed",
          "[cache][group][N7]") {
  const ImageUuid one{std::byte{1}};
  const ImageUuid other{std::byte{2}};
  CHECK_THAT(encode(DirtyRecord{.nvram = one}), Contains("\"format\":1"));
  const std::string text =
      encode(DirtyRecord{.nvram = one, .unconfirmed = true, .exported = other});
  CHECK_THAT(text, Contains("\"format\":2"));
  std::string older = text;
  older.replace(older.find("\"format\":2"), 10, "\"format\":1");
  std::string newer = text;
  newer.replace(newer.find("\"format\":2"), 10, "\"format\":3");
  for (const std::string& each : {text, older}) {
    const auto decoded = decode_dirty(each);
    REQUIRE(decoded.has_value());
    CHECK(decoded->nvram == one);
    CHECK(decoded->unconfirmed);
    CHECK(decoded->exported == other);
  }
  const auto refused = decode_dirty(newer);
  REQUIRE_FALSE(refused.has_value());
  CHECK_THAT(refused.error(), Contains("has format 3; this version reads formats 1 to 2"));
  // Other records of the second format are unknown.
  CHECK_FALSE(decode_used("{\"end_block\":16,\"format\":2}").has_value());
}

}  // namespace
}  // namespace sandbay::group::testing
