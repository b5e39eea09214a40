// Whose an image is: what another owner, an older version, an older copy or a wrong name may do.
#include <cstring>

#include "log_model.h"
#include "nvram/damage.h"
#include "nvram/image_layout.h"
#include "runtime/uuid.h"

namespace sandbay::nvram {
namespace {

using Catch::Contains;

constexpr ImageId kOurs{std::byte{1}};
constexpr ImageId kTheirs{std::byte{2}};

NvramOptions owned_by(const ImageId& owner, std::string name) {
  NvramOptions options = options_for(Durability::kProcess);
  options.owner = owner;
  options.owner_name = std::move(name);
  return options;
}

// A log with a live record, unless it is to be released again.
Task<ImageId> leave_record(Executor& home, SimulatedBoard& board, NvramOptions options, bool live) {
  Bench bench = co_await start_bench(home, board, std::move(options));
  const Result<RecordId> id = co_await append(*bench.log, 1);
  REQUIRE(id.has_value());
  if (!live) bench.log->release(*id);
  co_return bench.nvram->uuid();
}

// As the version before wrote it.
void take_owner_away(SimulatedBoard& board) {
  for (const std::size_t offset : {std::size_t{0}, std::size_t{kPageBytes}}) {
    ImageHeader header{};
    std::memcpy(&header, board.memory().data() + offset, sizeof header);
    header.version = kOwnerlessVersion;
    header.owner = {};
    std::ranges::fill(header.owner_name, '\0');
    seal(header);
    std::memcpy(board.memory().data() + offset, &header, sizeof header);
  }
}

Task<std::string> refusal_of(Executor& home, SimulatedBoard& board, NvramOptions options) {
  const Bytes before(board.memory().begin(), board.memory().end());
  const auto opened = co_await Nvram::open(home, board, std::move(options));
  REQUIRE_FALSE(opened.has_value());
  CHECK(same(before, board.memory()));  // It is left as it was.
  co_return opened.error();
}

Task<void> of_another(Executor& home, bool live) {
  SimulatedBoard board(kImageBytes);
  co_await leave_record(home, board, owned_by(kTheirs, "theirs"), live);
  const std::string why = co_await refusal_of(home, board, owned_by(kOurs, "ours"));
  CHECK(why ==
        "nvram image controller-0: belongs to another group, \"theirs\" "
        "(02000000-0000-0000-0000-000000000000); an image of this group, or a path where nothing "
        "is yet, is accepted");
  const Bench bench = co_await open_bench(home, board, owned_by(kTheirs, "theirs"));
  CHECK(bench.recovery.records.size() == (live ? 1 : 0));
}

TEST_CASE("An image of another owner is refused and left as it was", "[nvram]") {
  for (const bool live : {true, false}) {
    run_in_world(1, [&](Executor& home) { return of_another(home, live); });
  }
}

Task<void> without_owner(Executor& home, bool live, bool known) {
  SimulatedBoard board(kImageBytes);
  const ImageId uuid = co_await leave_record(home, board, owned_by(kOurs, "ours"), live);
  take_owner_away(board);
  NvramOptions options = owned_by(kOurs, "ours");
  if (known) options.least_open_counts[uuid] = 1;
  if (live && !known) {
    const std::string why = co_await refusal_of(home, board, options);
    CHECK_THAT(why, Contains("of a group that is not this one, with writes in it; an image of"));
    co_return;
  }
  {
    const Bench bench = co_await open_bench(home, board, options);
    CHECK(bench.recovery.records.size() == (live ? 1 : 0));
    CHECK(bench.nvram->uuid() == uuid);
  }
  const std::string why = co_await refusal_of(home, board, owned_by(kTheirs, "theirs"));
  CHECK_THAT(why, Contains("belongs to another group, \"ours\""));
}

TEST_CASE("An image without an owner becomes that of whoever knows it, or if it is empty",
          "[nvram]") {
  for (const bool live : {true, false}) {
    for (const bool known : {true, false}) {
      run_in_world(1, [&](Executor& home) { return without_owner(home, live, known); });
    }
  }
}

Task<void> named_wrongly(Executor& home) {
  SimulatedBoard board(kImageBytes);
  NvramOptions options = owned_by(kOurs, "ours");
  const ImageId uuid = co_await leave_record(home, board, options, true);
  options.refused[uuid] = "is something else; another one is accepted";
  const std::string why = co_await refusal_of(home, board, options);
  CHECK(why == "nvram image controller-0: is something else; another one is accepted");
}

TEST_CASE("An image that its owner has named otherwise is refused and left as it was", "[nvram]") {
  run_in_world(1, [](Executor& home) { return named_wrongly(home); });
}

Task<std::uint64_t> open_once(Executor& home, SimulatedBoard& board, const NvramOptions& options) {
  const auto nvram = co_await Nvram::open(home, board, options);
  REQUIRE(nvram.has_value());
  co_return (*nvram)->open_count();
}

// The owner remembers the counts of every opening.
Task<void> older_copy(Executor& home) {
  SimulatedBoard board(kImageBytes);
  NvramOptions options = owned_by(kOurs, "ours");
  const ImageId uuid = co_await leave_record(home, board, options, true);
  SimulatedBoard old = board;
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t count = co_await open_once(home, board, options);
    options.least_open_counts[uuid] = count;
  }
  for (int i = 0; i < 2; ++i) {
    const Bench bench = co_await open_bench(home, old, options);
    CHECK(bench.region->loss() == Loss::kStale);
    CHECK(bench.nvram->uuid() != uuid);
    CHECK(bench.nvram->open_count() > options.least_open_counts[uuid]);
    CHECK(bench.nvram->older_copy_of() == (i == 0 ? std::optional(uuid) : std::nullopt));
    options.least_open_counts[bench.nvram->uuid()] = bench.nvram->open_count();
  }
  const Bench bench = co_await open_bench(home, board, options);
  CHECK(bench.nvram->uuid() == uuid);
  CHECK(bench.region->loss() == Loss::kNone);
  CHECK(bench.recovery.records.size() == 1);
}

TEST_CASE("An older copy becomes an image of its own, and the right one is known again",
          "[nvram]") {
  run_in_world(1, [](Executor& home) { return older_copy(home); });
}

Task<void> cut_with(Executor& home, bool live) {
  SimulatedBoard board(kImageBytes);
  co_await leave_record(home, board, options_for(Durability::kProcess), live);
  board.cut_power(BatteryState::kDead);
  const Bench bench = co_await open_bench(home, board, options_for(Durability::kProcess));
  CHECK(bench.region->loss() == (live ? Loss::kPowerCut : Loss::kNone));
  CHECK(bench.recovery.lost.size() == (live ? 1 : 0));
}

TEST_CASE("A power cut without a battery takes nothing from a log that has nothing", "[nvram]") {
  for (const bool live : {true, false}) {
    run_in_world(1, [&](Executor& home) { return cut_with(home, live); });
  }
}

}  // namespace
}  // namespace sandbay::nvram
