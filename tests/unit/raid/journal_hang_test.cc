// Goal: a disk of the NVRAM's image that hangs holds no stripe of a set for long, and nothing that
// was refused meanwhile replaces anything newer.
// Method: a board whose syncs take ten minutes, below a journal and below a degraded set.
#include <algorithm>

#include "controller_rig.h"
#include "journal_model.h"
#include "nvram/simulated_board.h"
#include "raid/nvram_journal.h"

namespace sandbay::raidtest::journal_hang_test {
namespace {

using namespace std::chrono_literals;
using raid::Level;
using raid::NvramJournal;

constexpr std::uint64_t kBoardBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kSmallBoardBytes = 128 * 1024;  // Copied for every crash.
constexpr Uuid kSet = {7, 7, 7};
constexpr Duration kBound = 2 * NvramJournal::kSyncPatience + 100ms;

nvram::NvramOptions memory_options(std::string boot) {
  return {.path = "nvram", .durability = nvram::Durability::kHost, .boot_id = std::move(boot)};
}

// ---- the journal -------------------------------------------------------------------------------

struct Opened {
  std::unique_ptr<nvram::Nvram> memory;
  std::unique_ptr<nvram::Region> region;
  std::unique_ptr<NvramJournal> journal;
};

Task<Opened> open(Executor* home, nvram::SimulatedBoard* board, std::string boot) {
  Opened opened;
  auto memory = co_await nvram::Nvram::open(*home, *board, memory_options(std::move(boot)));
  REQUIRE(memory.has_value());
  opened.memory = std::move(*memory);
  auto region = co_await opened.memory->claim("raid", 64 * 1024);
  REQUIRE(region.has_value());
  opened.region = std::move(*region);
  opened.journal = std::make_unique<NvramJournal>(*opened.region, kSet, 512);
  co_return opened;
}

struct Answer {
  bool ended = false;
  Error error = Error::kNone;
  Duration took{};
};

Task<void> append(Executor* home, NvramJournal* journal, Extent extent, std::uint8_t content,
                  Answer* answer) {
  const raid::JournalWrite write{.role = 1, .extent = extent};
  const std::vector<std::byte> bytes(extent.block_count * 512, std::byte{content});
  const TimePoint began = home->now();
  {
    const BufferList payload = raid::testing::pool_payload(*home, bytes);
    const auto ticket = co_await journal->append(
        {.stripe = extent.first / 8, .writes = {&write, 1}, .payload = &payload});
    if (!ticket) answer->error = ticket.error();
  }
  answer->took = home->now() - began;
  answer->ended = true;
}

// Replays the journal after a crash of the host at this moment. The contents of stripe 2 by block.
Task<std::vector<int>> crash_here(Executor* home, const nvram::SimulatedBoard* board,
                                  std::uint64_t seed) {
  nvram::SimulatedBoard left = *board;
  left.sync_time = 100us;
  Random random(seed);
  left.crash_host(random);
  Opened opened = co_await open(home, &left, "two");
  const auto found = co_await opened.journal->recover();
  REQUIRE(found.has_value());
  CHECK_FALSE(found->all_lost);
  std::vector<int> contents(8, -1);
  for (const raid::RecoveredUpdate& update : found->updates) {
    for (const raid::JournalWrite& write : update.writes) {
      for (Lba lba = write.extent.first; lba < write.extent.end(); ++lba) {
        if (lba < 16 || lba >= 24) continue;
        contents[lba - 16] = std::to_integer<int>(update.payload[(lba - write.extent.first) * 512]);
      }
    }
  }
  co_return contents;
}

Task<void> leaves_appends_behind(Executor* home) {
  nvram::SimulatedBoard board(kSmallBoardBytes);
  Opened opened = co_await open(home, &board, "one");
  NvramJournal* const journal = opened.journal.get();
  const auto found = co_await journal->recover();
  REQUIRE(found.has_value());
  const Error reset = co_await journal->reset();
  REQUIRE(reset == Error::kNone);
  Answer first;
  co_await append(home, journal, {8, 8}, 1, &first);
  REQUIRE(first.error == Error::kNone);

  const Duration usual = board.sync_time;
  board.sync_time = 10min;
  std::array<Answer, 2> hung;
  spawn(append(home, journal, {16, 8}, 2, &hung[0]));
  co_await home->sleep_for(3s);
  spawn(append(home, journal, {24, 8}, 3, &hung[1]));  // For the next sync.
  co_await home->sleep_for(kBound);
  for (const Answer& answer : hung) {
    REQUIRE(answer.ended);
    CHECK(answer.error == Error::kTimedOut);
    CHECK(answer.took <= kBound);
  }
  Answer next;
  co_await append(home, journal, {16, 4}, 4, &next);
  CHECK(next.error == Error::kTimedOut);
  CHECK(next.took < 1ms);
  const Error renewed = co_await journal->renew();
  CHECK(renewed == Error::kTimedOut);
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    for (const int content : co_await crash_here(home, &board, seed)) {
      CHECK((content == -1 || content == 2));
    }
  }

  board.sync_time = usual;
  co_await home->sleep_for(25min);
  // The append that was left behind does not come back under it, nor beside it.
  co_await append(home, journal, {16, 4}, 5, &next);
  for (std::uint64_t seed = 1; seed <= 32; ++seed) {
    const std::vector<int> contents = co_await crash_here(home, &board, seed);
    CHECK(contents == std::vector<int>{5, 5, 5, 5, -1, -1, -1, -1});
  }
  const bool closed = co_await journal->close_until(home->now() + 1s);
  CHECK(closed);
}

// ---- a set -------------------------------------------------------------------------------------

struct Bench {
  explicit Bench(Executor& home) : rig(home) {}
  ControllerRig rig;
  nvram::SimulatedBoard board{kBoardBytes};
  std::unique_ptr<nvram::Nvram> memory;
};

Task<void> make(Bench* bench, Executor* home, Level level, bool integrity) {
  auto opened = co_await nvram::Nvram::open(*home, bench->board, memory_options("one"));
  REQUIRE(opened.has_value());
  bench->memory = std::move(*opened);
  ControllerRig& rig = bench->rig;
  rig.options.set.nvram = bench->memory.get();
  rig.options.set.nvram_journal_bytes = 4 << 20;
  std::vector<std::string> names;
  for (unsigned i = 0; i < 5; ++i) {
    names.push_back("d" + std::to_string(i));
    rig.add(names.back(), std::uint64_t{4} << 20);
  }
  co_await rig.start();
  std::string wrong = co_await rig.create(level, names, [&](NewSet& wanted) {
    wanted.region_stripes = 16;
    wanted.integrity = integrity;
    wanted.journal_bytes = 0;
  });
  REQUIRE(wrong == "");
  wrong = co_await rig.fill();
  REQUIRE(wrong == "");
  const bool whole = co_await rig.wait_for([&rig] { return rig.whole(); });
  REQUIRE(whole);
}

Task<void> submit(Executor* home, ControllerRig* rig, Operation operation, Lba lba,
                  Answer* answer) {
  Request request{.operation = operation, .extent = {.first = lba, .block_count = 8}};
  request.data = co_await home->buffers().allocate(8 * 512);
  const std::vector<std::byte> before(
      rig->expected.begin() + static_cast<std::ptrdiff_t>(lba * 512),
      rig->expected.begin() + static_cast<std::ptrdiff_t>((lba + 8) * 512));
  if (operation == Operation::kWrite) {
    request.data.copy_from(std::vector<std::byte>(8 * 512, std::byte{0x77}));
  }
  const TimePoint began = home->now();
  const Completion done = co_await rig->set->submit(std::move(request));
  answer->took = home->now() - began;
  answer->error = done.error;
  answer->ended = true;
  if (operation != Operation::kRead || done.error != Error::kNone) co_return;
  std::vector<std::byte> bytes(8 * 512);
  done.data.copy_to(bytes);
  CHECK(bytes == before);  // A write that was refused has changed nothing.
}

Task<void> lets_stripes_go(Executor* home, Level level, bool integrity) {
  Bench bench(*home);
  ControllerRig& rig = bench.rig;
  co_await make(&bench, home, level, integrity);
  rig.drive("d1").fail_with(Error::kNotReady);
  std::string wrong = co_await rig.write_some(20);
  REQUIRE(wrong == "");

  const Duration usual = bench.board.sync_time;
  bench.board.sync_time = 10min;
  std::array<Answer, 4> writes;
  std::array<Answer, 4> reads;
  for (std::size_t i = 0; i < writes.size(); ++i) {  // In one stripe, one for each strip.
    spawn(submit(home, &rig, Operation::kWrite, 32 * i, &writes[i]));
  }
  co_await home->sleep_for(1s);
  for (std::size_t i = 0; i < reads.size(); ++i) {
    spawn(submit(home, &rig, Operation::kRead, 32 * i + 16, &reads[i]));
  }
  co_await home->sleep_for(2 * kBound);
  for (std::size_t i = 0; i < writes.size(); ++i) {
    REQUIRE(writes[i].ended);
    CHECK(writes[i].error == Error::kTimedOut);
    CHECK(writes[i].took <= kBound);
    REQUIRE(reads[i].ended);
    CHECK(reads[i].error == Error::kNone);
  }
  CHECK(rig.set->running());
  Answer next;
  co_await submit(home, &rig, Operation::kWrite, 0, &next);
  CHECK(next.error == Error::kTimedOut);
  CHECK(next.took < 100ms);
  co_await submit(home, &rig, Operation::kRead, 0, &next);
  CHECK(next.error == Error::kNone);

  bench.board.sync_time = usual;
  co_await home->sleep_for(25min);
  wrong = co_await rig.write_some(20);
  REQUIRE(wrong == "");
  wrong = co_await rig.check();
  REQUIRE(wrong == "");
  rig.drive("d1").fail_with(Error::kNone);
  const bool whole = co_await rig.wait_for([&rig] { return rig.whole(); });
  REQUIRE(whole);
  wrong = co_await rig.check();
  REQUIRE(wrong == "");
  const bool stopped = co_await rig.stop();
  REQUIRE(stopped);
  const Error closed = co_await bench.memory->close();
  CHECK(closed == Error::kNone);
}

}  // namespace

TEST_CASE("An append to a journal whose image hangs ends, and does not come back later",
          "[raid][journal][R-B3]") {
  for_worlds(4, [](Executor* home) { return leaves_appends_behind(home); });
}

TEST_CASE("A hung image of the NVRAM holds no stripe of a degraded set for long",
          "[raid][journal][R-B3]") {
  for (const Level level : {Level::kRaid5, Level::kRaid6}) {
    for (const bool integrity : {false, true}) {
      CAPTURE(raid::describe(level), integrity);
      for_worlds(2, &lets_stripes_go, level, integrity);
    }
  }
}

}  // namespace sandbay::raidtest::journal_hang_test
