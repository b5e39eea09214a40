// Simulated files: what they do in peace, and what a power cut may leave.
//
// The crash property is checked against a reference that knows only this: after a cut, each sector
// holds some value that was written to it not before the value that the last sync covered.
#include <rapidcheck.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <set>
#include <vector>

#include "runtime/cancellation.h"
#include "runtime/simulation.h"
#include "runtime/sync.h"

namespace sandbay::sim {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kSector = 512;
using Bytes = std::vector<std::byte>;

Task<Error> write_bytes(File& file, std::uint64_t offset, Bytes bytes,
                        Cancellation* cancellation = nullptr) {
  const IoSlice slice{bytes.data(), bytes.size()};
  const Error error = co_await file.write(offset, {&slice, 1}, cancellation);
  co_return error;
}

Task<Result<Bytes>> read_bytes(File& file, std::uint64_t offset, std::size_t count) {
  Bytes bytes(count);
  const IoSlice slice{bytes.data(), bytes.size()};
  const Error error = co_await file.read(offset, {&slice, 1}, nullptr);
  if (error != Error::kNone) co_return std::unexpected(error);
  co_return bytes;
}

Bytes filled(std::size_t count, int value) { return Bytes(count, static_cast<std::byte>(value)); }

// Runs one coroutine in a world with the given seed.
void run(World& world, std::function<Task<void>()> main) {
  const bool ended = world.run(std::move(main));
  REQUIRE(ended);
}

Task<void> open_modes(Executor& executor) {
  auto missing = co_await executor.open_file("a", {});
  CHECK(missing.error() == Error::kNotFound);
  auto made = co_await executor.open_file("a", {.create = true, .exclusive = true});
  CHECK(made.has_value());
  auto again = co_await executor.open_file("a", {.create = true, .exclusive = true});
  CHECK(again.error() == Error::kExists);
  auto read_only = co_await executor.open_file("a", {.writable = false});
  CHECK(read_only.has_value());
  Error error = co_await write_bytes(**read_only, 0, filled(10, 1));
  CHECK(error == Error::kReadOnly);
  error = co_await write_bytes(**made, 0, filled(10, 1));
  CHECK(error == Error::kNone);
  const auto seen = co_await read_bytes(**read_only, 0, 10);
  CHECK(seen == filled(10, 1));
  CHECK(&(*made)->home() == &executor);
  CHECK_FALSE((*made)->is_block_device());
}

TEST_CASE("Files are opened as the options say", "[sim][file]") {
  auto world = World::create({.seed = 1});
  run(*world, [&] { return open_modes(*world->executors()[0]); });
  REQUIRE(world->file_exists("a"));
  REQUIRE_FALSE(world->file_exists("b"));
  REQUIRE(world->file_content("a") == filled(10, 1));
}

Task<void> remove_one(Executor& executor) {
  const Error nothing = co_await executor.remove_file("a");
  CHECK(nothing == Error::kNotFound);
  auto first = co_await executor.open_file("a", {.create = true});
  Error error = co_await write_bytes(**first, 0, filled(10, 1));
  CHECK(error == Error::kNone);
  error = co_await executor.remove_file("a");
  CHECK(error == Error::kNone);
  const auto missing = co_await executor.open_file("a", {});
  CHECK(missing.error() == Error::kNotFound);
  auto second = co_await executor.open_file("a", {.create = true});
  const auto size = co_await (*second)->size();
  CHECK(size == 0);
  error = co_await write_bytes(**first, 0, filled(10, 2));
  CHECK(error == Error::kNone);
  const auto seen = co_await read_bytes(**first, 0, 10);
  CHECK(seen == filled(10, 2));
}

TEST_CASE("A removed file is gone, and stays for those who have it open", "[sim][file]") {
  auto world = World::create({.seed = 1});
  int changes = 0;
  world->observe_writes([&](const std::string&) {
    CHECK(world->file_exists("a"));
    if (++changes < 3) return;
    // What is on its way to the old file does not reach the new one.
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      const auto forked = World::create({.seed = seed, .files = world->snapshot_files()});
      forked->cut_power();
      CHECK(forked->file_content("a").empty());
    }
  });
  run(*world, [&] { return remove_one(*world->executors()[0]); });
  world->observe_writes({});
  CHECK(changes == 3);
  CHECK(world->file_content("a").empty());
}

Task<void> write_sector(Executor& executor, std::uint64_t sector, int value, bool sync) {
  auto opened = co_await executor.open_file("a", {.create = true});
  Error error = co_await write_bytes(**opened, sector * kSector, filled(kSector, value));
  CHECK(error == Error::kNone);
  if (sync) error = co_await (*opened)->sync(nullptr);
  CHECK(error == Error::kNone);
}

Task<void> write_two_sectors(Executor& executor) {
  spawn(write_sector(executor, 0, 1, false));
  spawn(write_sector(executor, 1, 1, false));
  co_await executor.sleep_for(10ms);
}

TEST_CASE("What a killed process had in flight does not come after what others write",
          "[sim][file]") {
  auto world = World::create({.seed = 1});
  Executor& executor = *world->executors()[0];
  std::shared_ptr<const FilesSnapshot> killed;
  world->observe_writes([&](const std::string&) {
    if (killed == nullptr) killed = world->snapshot_files();
  });
  run(*world, [&] { return write_two_sectors(executor); });
  REQUIRE(killed != nullptr);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto next = World::create({.seed = seed, .files = killed});
    for (const std::uint64_t sector : {0U, 1U}) {
      run(*next, [&] { return write_sector(*next->executors()[0], sector, 2, true); });
    }
    next->cut_power();
    CHECK(next->file_content("a") == filled(2 * kSector, 2));
  }
}

TEST_CASE("A world has a clock on the wall that goes with its time", "[sim]") {
  auto world = World::create({.seed = 1});
  const WallTime begin = world->executors()[0]->wall_time();
  world->run_for(90s);
  CHECK(world->executors()[0]->wall_time() - begin == 90s);
}

Task<void> sizes_and_holes(Executor& executor) {
  auto opened = co_await executor.open_file("a", {.create = true});
  File& file = **opened;
  Error error = co_await file.resize(1 << 20);
  CHECK(error == Error::kNone);
  auto size = co_await file.size();
  CHECK(size == 1 << 20);
  auto run = co_await file.run_at(0);
  CHECK(run->hole);
  CHECK(run->byte_count == 1 << 20);
  error = co_await write_bytes(file, 8192, filled(4096, 5));
  CHECK(error == Error::kNone);
  run = co_await file.run_at(100);
  CHECK(run->hole);
  CHECK(run->byte_count == 8092);
  run = co_await file.run_at(8192);
  CHECK_FALSE(run->hole);
  CHECK(run->byte_count == 4096);
  error = co_await file.punch_hole(8192, 4096);
  CHECK(error == Error::kNone);
  run = co_await file.run_at(0);
  CHECK(run->byte_count == 1 << 20);
  error = co_await write_bytes(file, 0, filled(10'000, 6));
  CHECK(error == Error::kNone);
  error = co_await file.write_zeroes(10, 9000);
  CHECK(error == Error::kNone);
  const auto bytes = co_await read_bytes(file, 0, 10'000);
  CHECK(std::ranges::count(*bytes, std::byte{0}) == 9000);
  error = co_await file.allocate(1 << 20, 4096);
  CHECK(error == Error::kNone);
  size = co_await file.size();
  CHECK(size == (1 << 20) + 4096);
  run = co_await file.run_at((1 << 20) + 4096);
  CHECK(run.error() == Error::kOutOfRange);
  const auto past = co_await read_bytes(file, (1 << 20) + 4000, 100);
  CHECK(past.error() == Error::kOutOfRange);
  error = co_await file.punch_hole(0, 0);
  CHECK(error == Error::kInvalid);
  error = co_await file.resize(0);
  CHECK(error == Error::kNone);
  size = co_await file.size();
  CHECK(size == 0);
}

TEST_CASE("Sizes and holes are as on ext4", "[sim][file]") {
  auto world = World::create({.seed = 2});
  run(*world, [&] { return sizes_and_holes(*world->executors()[0]); });
}

Task<void> direct_alignment(Executor& executor) {
  auto opened = co_await executor.open_file("a", {.create = true, .direct = true});
  File& file = **opened;
  CHECK(file.direct());
  CHECK(file.alignment() == kSector);
  // Not in the frame: coroutine frames do not honour large alignments.
  const Buffer buffer = executor.buffers().try_allocate_contiguous(4096);
  std::byte* const memory = buffer.data();
  std::memset(memory, 0, buffer.byte_count());
  IoSlice slice{memory, 1024};
  Error error = co_await file.write(512, {&slice, 1}, nullptr);
  CHECK(error == Error::kNone);
  error = co_await file.write(100, {&slice, 1}, nullptr);
  CHECK(error == Error::kInvalid);
  slice = {memory + 8, 1024};
  error = co_await file.read(0, {&slice, 1}, nullptr);
  CHECK(error == Error::kInvalid);
  slice = {memory, 100};
  error = co_await file.read(0, {&slice, 1}, nullptr);
  CHECK(error == Error::kInvalid);
}

TEST_CASE("Direct I/O must be aligned", "[sim][file]") {
  auto world = World::create({.seed = 3});
  run(*world, [&] { return direct_alignment(*world->executors()[0]); });
}

// Cancellation -----------------------------------------------------------------------------------

struct CancelOutcome {
  Error error = Error::kNone;
  bool effect = false;
};

Task<void> write_cancelled(File& file, Cancellation& cancellation, Error& error, Event& ended) {
  error = co_await write_bytes(file, 0, filled(4096, 9), &cancellation);
  ended.set();
}

Task<void> cancel_a_write(Executor& executor, CancelOutcome& outcome) {
  auto opened = co_await executor.open_file("a", {.create = true});
  Cancellation cancellation;
  Event ended;
  const TimePoint start = executor.now();
  spawn(write_cancelled(**opened, cancellation, outcome.error, ended));
  cancellation.cancel();
  CHECK_FALSE(ended.is_set());
  co_await ended.wait();
  CHECK(executor.now() - start < 20us);  // Sooner than the disk would have been.
  const auto size = co_await (*opened)->size();
  outcome.effect = *size == 4096;
  const Error late = co_await write_bytes(**opened, 0, filled(1, 1), &cancellation);
  CHECK(late == Error::kCancelled);
}

TEST_CASE("A cancelled write ends soon, with or without its effect", "[sim][file]") {
  int effects = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    auto world = World::create({.seed = seed});
    CancelOutcome outcome;
    run(*world, [&] { return cancel_a_write(*world->executors()[0], outcome); });
    REQUIRE(outcome.error == Error::kCancelled);
    if (outcome.effect) ++effects;
  }
  REQUIRE(effects > 5);
  REQUIRE(effects < 35);
}

// The crash property -----------------------------------------------------------------------------

// Per sector, the values written to it in order; any from `floor` on may be there after a cut.
struct SectorModel {
  std::vector<std::uint64_t> history{0};
  std::size_t completed = 0;  // Index of the last value whose write has ended.
  std::size_t floor = 0;
};
using Model = std::vector<SectorModel>;

constexpr std::size_t kWorkers = 4;
constexpr std::size_t kSectorsOfWorker = 24;
constexpr std::size_t kSectors = kWorkers * kSectorsOfWorker;

std::uint64_t value_of(const Bytes& content, std::size_t sector) {
  std::uint64_t value = 0;
  if (content.size() < (sector + 1) * kSector) return value;
  std::memcpy(&value, content.data() + sector * kSector, sizeof value);
  for (std::size_t at = 0; at < kSector; at += sizeof value) {
    // No sector is ever torn within itself.
    if (std::memcmp(&value, content.data() + sector * kSector + at, sizeof value) != 0) {
      return ~std::uint64_t{0};
    }
  }
  return value;
}

bool possible(const Model& model, const Bytes& content) {
  for (std::size_t sector = 0; sector < kSectors; ++sector) {
    const SectorModel& each = model[sector];
    const auto first = each.history.begin() + static_cast<std::ptrdiff_t>(each.floor);
    const std::uint64_t value = value_of(content, sector);
    if (std::find(first, each.history.end(), value) == each.history.end()) return false;
  }
  return true;
}

// What the cut left is what there is from now on.
void restart(Model& model, const Bytes& content) {
  for (std::size_t sector = 0; sector < kSectors; ++sector) {
    model[sector] = SectorModel{.history = {value_of(content, sector)}};
  }
}

struct CrashRun {
  Model model{kSectors};
  std::uint64_t next_value = 1;
  std::size_t ended = 0;
};

Task<Error> model_write(CrashRun& state, File& file, std::size_t first, std::size_t count) {
  Bytes bytes(count * kSector);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t value = state.next_value++;
    for (std::size_t at = 0; at < kSector; at += sizeof value) {
      std::memcpy(bytes.data() + i * kSector + at, &value, sizeof value);
    }
    state.model[first + i].history.push_back(value);
  }
  const Error error = co_await write_bytes(file, first * kSector, std::move(bytes));
  if (error != Error::kNone) co_return error;
  for (std::size_t i = 0; i < count; ++i) {
    SectorModel& sector = state.model[first + i];
    sector.completed = sector.history.size() - 1;
  }
  co_return error;
}

Task<Error> model_sync(CrashRun& state, File& file) {
  std::vector<std::size_t> completed;
  for (const SectorModel& sector : state.model) completed.push_back(sector.completed);
  const Error error = co_await file.sync(nullptr);
  if (error != Error::kNone) co_return error;
  for (std::size_t i = 0; i < kSectors; ++i) {
    state.model[i].floor = std::max(state.model[i].floor, completed[i]);
  }
  co_return error;
}

// Writes, reads and syncs sectors of its own until the power goes.
Task<void> crash_worker(Executor& executor, CrashRun& state, File& file, std::size_t worker) {
  Random& random = executor.random();
  const std::size_t begin = worker * kSectorsOfWorker;
  Error error = Error::kNone;
  while (error == Error::kNone) {
    const std::size_t first = random.below(kSectorsOfWorker);
    const std::size_t count = random.between(1, kSectorsOfWorker - first);
    const std::uint64_t draw = random.below(10);
    if (draw < 7) {
      error = co_await model_write(state, file, begin + first, count);
    } else if (draw == 7) {
      error = co_await model_sync(state, file);
    } else {
      const auto bytes = co_await read_bytes(file, (begin + first) * kSector, kSector);
      error = bytes.has_value() ? Error::kNone : bytes.error();
      const SectorModel& sector = state.model[begin + first];
      const std::uint64_t expected = sector.history[sector.completed];
      const std::uint64_t found = bytes.has_value() ? value_of(*bytes, 0) : expected;
      CHECK(found == expected);
    }
  }
  CHECK(error == Error::kHardware);
  ++state.ended;
}

Task<void> start_workers(Executor& executor, CrashRun& state, std::unique_ptr<File>& file) {
  auto opened = co_await executor.open_file("disk", {});
  CHECK(opened.has_value());
  file = std::move(*opened);
  state.ended = 0;
  for (std::size_t i = 0; i < kWorkers; ++i) spawn(crash_worker(executor, state, *file, i));
}

TEST_CASE("A power cut leaves what the reference allows", "[sim][file][property]") {
  std::size_t lost = 0;
  std::size_t kept = 0;
  const bool held = rc::check([&](std::uint64_t seed) {
    auto world = World::create({.seed = seed});
    world->set_file_content("disk", Bytes(kSectors * kSector));
    CrashRun state;
    for (int cycle = 0; cycle < 4; ++cycle) {
      std::unique_ptr<File> file;
      RC_ASSERT(world->run([&] { return start_workers(*world->executors()[0], state, file); }));
      world->run_for(Duration(world->random().below(20'000'000)));
      world->cut_power();
      world->run_for(1ms);
      RC_ASSERT(state.ended == kWorkers);
      const Bytes content = world->file_content("disk");
      RC_ASSERT(possible(state.model, content));
      for (std::size_t i = 0; i < kSectors; ++i) {
        const SectorModel& sector = state.model[i];
        if (sector.floor == sector.history.size() - 1) continue;
        ++(value_of(content, i) == sector.history.back() ? kept : lost);
      }
      restart(state.model, content);
    }
  });
  REQUIRE(held);
  REQUIRE(lost > 100);
  REQUIRE(kept > 100);
}

TEST_CASE("One run yields many cuts: a fork at every write boundary", "[sim][file]") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    auto world = World::create({.seed = seed});
    world->set_file_content("disk", Bytes(kSectors * kSector));
    CrashRun state;
    struct Boundary {
      std::shared_ptr<const FilesSnapshot> files;
      Model model;
      Bytes visible;
    };
    std::vector<Boundary> boundaries;
    world->observe_writes([&](const std::string& path) {
      CHECK(path == "disk");
      boundaries.push_back({world->snapshot_files(), state.model, world->file_content("disk")});
    });
    std::unique_ptr<File> file;
    run(*world, [&] { return start_workers(*world->executors()[0], state, file); });
    world->run_for(10ms);
    world->observe_writes(nullptr);
    world->cut_power();
    world->run_for(1ms);
    REQUIRE(boundaries.size() > 20);
    std::set<Bytes> outcomes;
    for (const Boundary& boundary : boundaries) {
      for (std::uint64_t fork = 1; fork <= 3; ++fork) {
        auto forked = World::create({.seed = fork, .files = boundary.files});
        REQUIRE(forked->file_content("disk") == boundary.visible);
        forked->cut_power();
        REQUIRE(possible(boundary.model, forked->file_content("disk")));
        outcomes.insert(forked->file_content("disk"));
      }
    }
    REQUIRE(outcomes.size() > boundaries.size());
  }
}

Task<void> write_two_then_stop(Executor& executor) {
  auto opened = co_await executor.open_file("disk", {});
  const Error first = co_await write_bytes(**opened, 0, filled(4 * kSector, 1));
  const Error second = co_await write_bytes(**opened, 4 * kSector, filled(4 * kSector, 2));
  CHECK(first == Error::kNone);
  CHECK(second == Error::kNone);
}

TEST_CASE("Un-synced writes are kept, lost and torn, in any order", "[sim][file]") {
  int later_without_earlier = 0;
  int torn = 0;
  int all = 0;
  int none = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    auto world = World::create({.seed = seed});
    world->set_file_content("disk", Bytes(8 * kSector));
    run(*world, [&] { return write_two_then_stop(*world->executors()[0]); });
    world->cut_power();
    const Bytes content = world->file_content("disk");
    const auto ones = std::ranges::count(content, std::byte{1});
    const auto twos = std::ranges::count(content, std::byte{2});
    if (ones == 0 && twos > 0) ++later_without_earlier;
    if (ones % (4 * kSector) != 0) ++torn;
    if (ones == 4 * kSector && twos == 4 * kSector) ++all;
    if (ones == 0 && twos == 0) ++none;
    REQUIRE(ones % kSector == 0);
  }
  REQUIRE(later_without_earlier > 10);
  REQUIRE(torn > 20);
  REQUIRE(all > 5);
  REQUIRE(none > 5);
}

Task<void> use_after_cut(Executor& executor, World& world) {
  auto opened = co_await executor.open_file("disk", {.create = true});
  Error error = co_await write_bytes(**opened, 0, filled(4096, 3));
  CHECK(error == Error::kNone);
  error = co_await (*opened)->sync(nullptr);
  CHECK(error == Error::kNone);
  world.cut_power();
  error = co_await write_bytes(**opened, 0, filled(4096, 4));
  CHECK(error == Error::kHardware);
  error = co_await (*opened)->sync(nullptr);
  CHECK(error == Error::kHardware);
  const auto size = co_await (*opened)->size();
  CHECK(size.error() == Error::kHardware);
  auto again = co_await executor.open_file("disk", {});
  CHECK(again.has_value());
  const auto bytes = co_await read_bytes(**again, 0, 4096);
  CHECK(bytes == filled(4096, 3));
}

TEST_CASE("After a cut old files answer with an error and can be opened again", "[sim][file]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto world = World::create({.seed = seed});
    run(*world, [&] { return use_after_cut(*world->executors()[0], *world); });
  }
}

Task<void> sync_does_not_cover(Executor& executor, World& world, bool& lost) {
  auto opened = co_await executor.open_file("disk", {.create = true});
  File& file = **opened;
  struct Late {
    static Task<void> sync(File& synced, Event& done) {
      static_cast<void>(co_await synced.sync(nullptr));
      done.set();
    }
  };
  // A sync that is under way when a write ends says nothing about that write.
  Event done;
  spawn(Late::sync(file, done));
  const Error error = co_await write_bytes(file, 0, filled(kSector, 1));
  CHECK(error == Error::kNone);
  co_await done.wait();
  world.cut_power();
  lost = world.file_content("disk").empty();
}

TEST_CASE("A sync covers only what had ended before it was submitted", "[sim][file]") {
  int losses = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    auto world = World::create({.seed = seed});
    bool lost = false;
    run(*world, [&] { return sync_does_not_cover(*world->executors()[0], *world, lost); });
    if (lost) ++losses;
  }
  REQUIRE(losses > 5);
}

Task<void> write_much(Executor& executor) {
  auto opened = co_await executor.open_file("big", {.create = true});
  const Bytes bytes = filled(std::size_t{1} << 20, 8);
  const IoSlice slice{const_cast<std::byte*>(bytes.data()), bytes.size()};
  for (std::uint64_t i = 0; i < 80; ++i) {
    const Error error = co_await (*opened)->write(i << 20U, {&slice, 1}, nullptr);
    CHECK(error == Error::kNone);
  }
}

TEST_CASE("The oldest of many un-synced writes are written back", "[sim][file]") {
  auto world = World::create({.seed = 1});
  run(*world, [&] { return write_much(*world->executors()[0]); });
  world->cut_power();
  const Bytes content = world->file_content("big");
  const auto first = std::ranges::count(std::span(content).first(8 << 20), std::byte{8});
  REQUIRE(first == 8 << 20);
  REQUIRE(std::ranges::count(content, std::byte{8}) < 80 << 20);
}

}  // namespace
}  // namespace sandbay::sim
