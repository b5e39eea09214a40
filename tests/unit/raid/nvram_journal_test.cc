// The journal in NVRAM: killed at stores, and with damaged or lost memory, against the model.

#include "raid/nvram_journal.h"

#include <array>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "journal_model.h"
#include "nvram/damage.h"
#include "nvram/simulated_board.h"
#include "runtime/simulation.h"

namespace sandbay::raid::testing::nvram_journal_test {
namespace {

constexpr Uuid kSet = {7, 7, 7};
constexpr std::uint64_t kBoardBytes = 128 * 1024;
constexpr std::uint64_t kRegionBytes = 64 * 1024;

struct Killed {
  nvram::SimulatedBoard board;
  JournalModel::States states;
};

struct Run {
  Executor& home;
  Random random;
  JournalModel model = {};
  std::vector<Killed> killed = {};
  std::string failure = {};
};

nvram::NvramOptions options(nvram::Durability durability) {
  return {.path = "board", .byte_count = kBoardBytes, .durability = durability, .boot_id = "one"};
}

// Opens the board and its journal; the members die in reverse order.
struct Opened {
  std::unique_ptr<nvram::Nvram> memory;
  std::unique_ptr<nvram::Region> region;
  std::unique_ptr<NvramJournal> journal;
};

Task<Opened> open(Executor* home, nvram::SimulatedBoard* board, nvram::NvramOptions how,
                  Uuid set = kSet) {
  Opened opened;
  auto memory = co_await nvram::Nvram::open(*home, *board, how);
  if (!memory.has_value()) co_return opened;
  opened.memory = std::move(*memory);
  auto region = co_await opened.memory->claim("raid", kRegionBytes);
  if (!region.has_value()) co_return opened;
  opened.region = std::move(*region);
  opened.journal = std::make_unique<NvramJournal>(*opened.region, set, 512);
  co_return opened;
}

struct Owner {
  Run& run;
  NvramJournal& journal;
  std::vector<std::pair<std::uint64_t, std::size_t>> written = {};
  bool stripe_busy[12] = {};
  Gate busy = {};

  void release_all() {
    for (const auto& [ticket, number] : std::exchange(written, {})) {
      run.model.set(number, UpdateState::kReleased);
      journal.release(ticket);
    }
  }

  Task<void> work(int updates) {
    for (int i = 0; i < updates; ++i) {
      std::uint64_t stripe = run.random.below(12);
      while (stripe_busy[stripe]) stripe = (stripe + 1) % 12;
      stripe_busy[stripe] = true;
      const std::size_t number = run.model.begin(stripe, 5, run.random);
      const JournalModel::Update update = run.model.update(number);
      const BufferList payload = pool_payload(run.home, update.payload);
      const auto ticket = co_await journal.append(
          {.stripe = update.stripe, .writes = update.writes, .payload = &payload});
      if (!ticket.has_value()) {
        run.failure = "an append fails";
        break;
      }
      run.model.set(number, UpdateState::kAcknowledged);
      co_await run.home.sleep_for(Duration(static_cast<std::int64_t>(run.random.below(5000))));
      stripe_busy[stripe] = false;
      written.emplace_back(*ticket, number);
      if (journal.under_pressure() || run.random.chance(0.2)) release_all();
    }
    busy.leave();
  }
};

Task<void> work(Run* run) {
  nvram::SimulatedBoard board(kBoardBytes);
  Opened opened = co_await open(&run->home, &board, options(nvram::Durability::kProcess));
  const auto found = co_await opened.journal->recover();
  const Error reset = co_await opened.journal->reset();
  if (!found.has_value() || found->all_lost || reset != Error::kNone) run->failure = "no start";
  Owner owner{.run = *run, .journal = *opened.journal};
  opened.journal->on_pressure = [&] { owner.release_all(); };
  opened.memory->observe_stores([&] {
    if (run->random.chance(0.1)) run->killed.push_back({board, run->model.states()});
  });
  for (int i = 0; i < 4; ++i) {
    const bool entered = owner.busy.enter();
    assert(entered);
    spawn(owner.work(15));
  }
  co_await owner.busy.drain();
  opened.memory->observe_stores({});
}

Task<void> check(Run* run) {
  for (Killed& killed : run->killed) {
    Opened opened = co_await open(&run->home, &killed.board, options(nvram::Durability::kProcess));
    const auto found = co_await opened.journal->recover();
    if (!found.has_value() || found->all_lost || !found->lost.empty()) {
      run->failure = "something is said to be lost";
    } else {
      const std::string wrong = run->model.judge(*found, killed.states, 0);
      if (!wrong.empty()) run->failure = wrong;
    }
    const Error reset = co_await opened.journal->reset();
    if (reset != Error::kNone || opened.journal->used_bytes() != 0) run->failure = "no reset";
  }
}

Task<void> work_and_check(Run* run) {
  co_await work(run);
  co_await check(run);
}

TEST_CASE("A journal in NVRAM keeps its promise wherever the process is killed", "[raid][sim]") {
  std::size_t kills = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    const auto world = sim::World::create({.seed = seed});
    Run run{.home = *world->executors()[0], .random = Random(seed)};
    const bool ended = world->run([&] { return work_and_check(&run); });
    REQUIRE(run.failure == "");
    REQUIRE(ended);
    kills += run.killed.size();
  }
  WARN(kills << " kills");
  CHECK(kills > 500);
}

// ---- damage ------------------------------------------------------------------------------------

struct Loss {
  std::string what;
  JournalRecovery found = {};
  Error reset = Error::kNone;
  JournalRecovery after = {};
};

Task<void> append_three(Executor* home, NvramJournal* journal) {
  for (std::uint64_t stripe = 1; stripe <= 3; ++stripe) {
    const JournalWrite write{.role = 1, .extent = {.first = stripe * 8, .block_count = 8}};
    const std::vector<std::byte> bytes(8 * 512, static_cast<std::byte>(0xa0 + stripe));
    const BufferList payload = pool_payload(*home, bytes);
    const auto ticket =
        co_await journal->append({.stripe = stripe, .writes = {&write, 1}, .payload = &payload});
    assert(ticket.has_value());
  }
}

// Changes a byte of the payload of stripe 2.
void damage_payload(std::span<std::byte> memory) {
  const std::vector<std::byte> pattern(1024, std::byte{0xa2});
  const auto at = std::ranges::search(memory, pattern);
  assert(!at.empty());
  at.front() ^= std::byte{1};
}

// Changes a byte of the record's descriptor, which stands before the payload.
void damage_descriptor(std::span<std::byte> memory, std::byte fill) {
  const std::vector<std::byte> pattern(1024, fill);
  const auto at = std::ranges::search(memory, pattern);
  assert(!at.empty());
  *(at.begin() - 20) ^= std::byte{1};
}

Task<void> lose(Executor* home, Loss* loss) {
  nvram::SimulatedBoard board(kBoardBytes);
  nvram::NvramOptions how = options(nvram::Durability::kProcess);
  {
    Opened opened = co_await open(home, &board, how);
    const auto found = co_await opened.journal->recover();
    assert(found.has_value());
    const Error reset = co_await opened.journal->reset();
    assert(reset == Error::kNone);
    co_await append_three(home, opened.journal.get());
  }
  if (loss->what == "payload") damage_payload(board.memory());
  if (loss->what == "second") damage_descriptor(board.memory(), std::byte{0xa2});
  if (loss->what == "newest") damage_descriptor(board.memory(), std::byte{0xa3});
  if (loss->what == "contents") nvram::lose_contents(board.memory());
  if (loss->what == "power") board.cut_power(nvram::BatteryState::kDead);
  if (loss->what == "host") how.boot_id = "two";
  const Uuid set = loss->what == "other set" ? Uuid{8} : kSet;
  {
    Opened opened = co_await open(home, &board, how, set);
    const auto found = co_await opened.journal->recover();
    if (found.has_value()) loss->found = *found;
    loss->reset = co_await opened.journal->reset();
    co_await append_three(home, opened.journal.get());
  }
  Opened opened = co_await open(home, &board, how, set);
  const auto found = co_await opened.journal->recover();
  if (found.has_value()) loss->after = *found;
}

// Two lives; then the memory is what it was at the end of the first one.
Task<void> earlier_life(Executor* home, Loss* loss, Journal::Keys keys) {
  nvram::SimulatedBoard board(kBoardBytes);
  nvram::SimulatedBoard earlier = board;
  const nvram::NvramOptions how = options(nvram::Durability::kProcess);
  for (const std::uint64_t life : {11, 12}) {
    Opened opened = co_await open(home, &board, how);
    opened.journal->set_keys({.last = life - 1, .next = life});
    const auto found = co_await opened.journal->recover();
    assert(found.has_value() && !found->all_lost);
    const Error reset = co_await opened.journal->reset();
    assert(reset == Error::kNone);
    co_await append_three(home, opened.journal.get());
    if (life == 11) earlier = board;
  }
  if (loss->what == "earlier") board = earlier;
  Opened opened = co_await open(home, &board, how);
  opened.journal->set_keys(keys);
  const auto found = co_await opened.journal->recover();
  if (found.has_value()) loss->found = *found;
  loss->reset = co_await opened.journal->reset();
}

TEST_CASE("Records of another life of the journal are not replayed", "[raid]") {
  struct Case {
    std::string what;
    Journal::Keys keys;
    std::size_t updates;
  };
  const Case expected =
      GENERATE(Case{"now", {12, 0}, 3}, Case{"now", {12, 13}, 3}, Case{"now", {11, 12}, 3},
               Case{"now", {13, 14}, 0}, Case{"earlier", {12, 0}, 0}, Case{"earlier", {12, 13}, 0},
               Case{"earlier", {0, 13}, 3});
  CAPTURE(expected.what, expected.keys.last, expected.keys.next);
  const auto world = sim::World::create({.seed = 3});
  Loss loss{.what = expected.what};
  const bool ended =
      world->run([&] { return earlier_life(world->executors()[0], &loss, expected.keys); });
  REQUIRE(ended);
  CHECK(loss.found.updates.size() == expected.updates);
  CHECK(loss.found.all_lost == (expected.updates == 0));
  CHECK(loss.reset == Error::kNone);
}

// Appends until one fails; they are told apart by what is seen while one waits.
Task<void> append_until_refused(Executor* home, NvramJournal* journal, unsigned* appended,
                                Error* refusal) {
  const JournalWrite write{.role = 1, .extent = {.first = 8, .block_count = 8}};
  const std::vector<std::byte> bytes(std::size_t{8} * 512, std::byte{0xa5});
  const BufferList payload = pool_payload(*home, bytes);
  while (*refusal == Error::kNone) {
    const auto ticket =
        co_await journal->append({.stripe = 1, .writes = {&write, 1}, .payload = &payload});
    if (ticket.has_value()) {
      ++*appended;
    } else {
      *refusal = ticket.error();
    }
  }
}

Task<void> refuse_waiting(Executor* home, nvram::Durability durability) {
  nvram::SimulatedBoard board(kBoardBytes);
  Opened opened = co_await open(home, &board, options(durability));
  const auto found = co_await opened.journal->recover();
  CHECK(found.has_value());
  const Error reset = co_await opened.journal->reset();
  CHECK(reset == Error::kNone);
  unsigned appended = 0;
  std::array<Error, 2> refusals = {Error::kNone, Error::kNone};
  for (Error& refusal : refusals) {  // One waits for room, and another for its turn.
    spawn(append_until_refused(home, opened.journal.get(), &appended, &refusal));
  }
  co_await home->sleep_for(std::chrono::seconds(5));
  CHECK(appended > 3);
  const unsigned before = appended;
  CHECK(refusals == std::array{Error::kNone, Error::kNone});  // They wait.
  opened.journal->refuse_waiting(Error::kNotReady);
  co_await home->sleep_for(std::chrono::seconds(1));
  CHECK(refusals == std::array{Error::kNotReady, Error::kNotReady});
  Error later = Error::kNone;
  co_await append_until_refused(home, opened.journal.get(), &appended, &later);
  CHECK(later == Error::kNotReady);
  CHECK(appended == before);
}

TEST_CASE("Who waits for room in a journal that is refused does not wait on", "[raid]") {
  const auto durability = GENERATE(nvram::Durability::kProcess, nvram::Durability::kHost);
  const auto world = sim::World::create({.seed = 4});
  const bool ended = world->run([&] { return refuse_waiting(world->executors()[0], durability); });
  REQUIRE(ended);
}

TEST_CASE("What the memory lost is said, and the journal goes on", "[raid]") {
  struct Case {
    std::string what;
    std::size_t updates;
    bool all_lost;
    std::vector<std::uint64_t> lost_stripes;
  };
  const Case expected = GENERATE(Case{"nothing", 3, false, {}}, Case{"second", 1, true, {1}},
                                 Case{"newest", 0, true, {1, 2}}, Case{"payload", 2, false, {2}},
                                 Case{"contents", 0, true, {}}, Case{"power", 0, false, {1, 2, 3}},
                                 Case{"host", 0, true, {1, 2, 3}}, Case{"other set", 0, false, {}});
  CAPTURE(expected.what);
  const auto world = sim::World::create({.seed = 3});
  Loss loss{.what = expected.what};
  const bool ended = world->run([&] { return lose(world->executors()[0], &loss); });
  REQUIRE(ended);
  CHECK(loss.found.updates.size() == expected.updates);
  CHECK(loss.found.all_lost == expected.all_lost);
  std::vector<std::uint64_t> lost_stripes;
  for (const LostUpdate& lost : loss.found.lost) {
    lost_stripes.push_back(lost.stripe);
    CHECK_FALSE(lost.writes.empty());
  }
  CHECK(lost_stripes == expected.lost_stripes);
  CHECK(loss.reset == Error::kNone);
  CHECK(loss.after.updates.size() == 3);
  CHECK_FALSE(loss.after.all_lost);
  CHECK(loss.after.lost.empty());
}

}  // namespace
}  // namespace sandbay::raid::testing::nvram_journal_test
