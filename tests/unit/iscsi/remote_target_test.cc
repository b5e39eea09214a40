// Goal: a unit of a target elsewhere is a block device like any other; what was acknowledged is
// kept, what is in doubt is sent again only when nothing of it can land late, whatever happens to
// the link and to the member. And a member follows one lead. Method: both sides in one simulated
// world, with partitions, resets and restarts; each writer owns a block and counts.
#include <algorithm>
#include <array>
#include <map>

#include "far_side.h"
#include "runtime/byte_order.h"
#include "runtime/known.h"

namespace sandbay::iscsi::test {
namespace {

constexpr std::uint32_t kBlock = 512;

Task<Completion> write_number(BlockDevice& device, Lba lba, std::uint64_t blocks,
                              std::uint64_t number, std::uint64_t volume = 0) {
  BufferList data = co_await Executor::current().buffers().allocate(blocks * kBlock);
  std::vector<std::byte> content(blocks * kBlock);
  for (std::size_t at = 0; at < content.size(); at += 8) {
    put_big_endian(std::span<std::byte>(content), at, number);
  }
  data.copy_from(content);
  Request request{.operation = Operation::kWrite,
                  .extent = {lba, blocks},
                  .data = std::move(data),
                  .volume = volume};
  Completion completion = co_await device.submit(std::move(request));
  co_return completion;
}

// The number that the blocks hold; kDataCorrupt if it is not one and the same.
Task<Result<std::uint64_t>> read_number(BlockDevice& device, Lba lba, std::uint64_t blocks) {
  Request request{.extent = {lba, blocks}};
  request.data = co_await Executor::current().buffers().allocate(blocks * kBlock);
  const Completion completion = co_await device.submit(std::move(request));
  if (completion.error != Error::kNone) co_return std::unexpected(completion.error);
  std::vector<std::byte> content(blocks * kBlock);
  completion.data.copy_to(content);
  const auto number = big_endian<std::uint64_t>(content, 0);
  for (std::size_t at = 0; at < content.size(); at += 8) {
    if (big_endian<std::uint64_t>(content, at) != number) {
      co_return std::unexpected(Error::kDataCorrupt);
    }
  }
  co_return number;
}

Task<Error> simple(BlockDevice& device, Operation operation, Extent extent) {
  Request request{.operation = operation, .extent = extent};
  const Completion completion = co_await device.submit(std::move(request));
  co_return completion.error;
}

struct Load {
  Gate gate;
  bool stop = false;
  std::uint64_t failed = 0;
  std::uint64_t done = 0;
  std::uint64_t wrong = 0;
};

// Counts up in its own blocks. What failed is in doubt until the next that ends well.
Task<void> count_up(Load& load, RemoteUnit& unit, Lba lba) {
  std::uint64_t kept = 0;
  std::uint64_t tried = 0;
  while (!load.stop) {
    const Completion completion = co_await write_number(unit, lba, 2, ++tried);
    if (completion.error == Error::kNone) {
      kept = tried;
      ++load.done;
    } else {
      ++load.failed;
      if (completion.error != Error::kNotReady) ++load.wrong;
      co_await Executor::current().sleep_for(std::chrono::milliseconds(50));
    }
    const auto read = co_await read_number(unit, lba, 2);
    // What is in doubt may be torn between its two blocks; nothing else may.
    if (read && (*read < kept || *read > tried)) ++load.wrong;
    if (kept == tried && read == std::unexpected(Error::kDataCorrupt)) ++load.wrong;
  }
  RemoteUnit* back = &unit;
  for (int i = 0; i < 600 && back->health() != Health::kGood; ++i) {
    co_await Executor::current().sleep_for(std::chrono::milliseconds(100));
  }
  const auto last = co_await read_number(unit, lba, 2);
  if (kept == tried && last != kept) ++load.wrong;
  load.gate.leave();
}

void begin(Load& load, RemoteUnit& unit) {
  for (Lba lba = 0; lba < 16; lba += 2) {
    if (load.gate.enter()) spawn(count_up(load, unit, lba));
  }
}

Task<void> pause(Duration duration) { co_await Executor::current().sleep_for(duration); }

Task<void> use_it(FarSide& far, RemoteTarget& near) {
  RemoteUnit* const unit = co_await serving_unit(near);
  CHECK(unit != nullptr);
  if (unit == nullptr) co_return;
  CHECK(near.connections_up() == 2);
  CHECK(unit->facts().lun_number == 3);
  CHECK(unit->facts().product == "data");
  CHECK(unit->facts().serial == std::string("5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"));
  CHECK(unit->geometry().block_count == far.device().geometry().block_count);
  CHECK(unit->geometry().unmap == far.device().geometry().unmap);
  Completion written = co_await write_number(*unit, 8, 16, 77);
  CHECK(written.error == Error::kNone);
  CHECK(written.data.byte_count() == 16 * kBlock);
  auto number = co_await read_number(*unit, 8, 16);
  CHECK(number.value_or(1) == 77);
  Error error = co_await simple(*unit, Operation::kFlush, {});
  CHECK(error == Error::kNone);
  error = co_await simple(*unit, Operation::kWriteZeroes, {8, 8});
  CHECK(error == Error::kNone);
  number = co_await read_number(*unit, 8, 8);
  CHECK(number.value_or(1) == 0);
  number = co_await read_number(*unit, 16, 8);
  CHECK(number.value_or(1) == 77);
  error = co_await simple(*unit, Operation::kUnmap, {16, 8});
  CHECK(error == Error::kNone);
  const auto run = co_await unit->provisioning(16, 24);
  CHECK(run.has_value());
  if (run.has_value()) {
    CHECK_FALSE(run->mapped);
    CHECK(run->block_count == 8);
  }
  error = co_await simple(*unit, Operation::kAdvise, {0, 8});
  CHECK(error == Error::kNone);
}

Task<void> cut_shortly(FarSide& far, RemoteTarget& near) {
  RemoteUnit* const unit = co_await serving_unit(near);
  Load load;
  begin(load, *unit);
  for (int i = 0; i < 5; ++i) {
    co_await pause(std::chrono::milliseconds(far.world().random().between(5, 400)));
    if (i % 2 == 0) {
      far.world().set_partitioned(true);
      co_await pause(std::chrono::milliseconds(far.world().random().between(100, 3000)));
      far.world().set_partitioned(false);
    } else {
      far.world().reset_streams(kFarPort);
    }
  }
  co_await pause(std::chrono::seconds(2));
  load.stop = true;
  co_await load.gate.close();
  CHECK(load.wrong == 0);
  CHECK(load.failed == 0);
  CHECK(load.done > 100);
}

Task<void> cut_for_long(FarSide& far, RemoteTarget& near) {
  unsigned changes = 0;
  near.on_change([&changes] { ++changes; });
  RemoteUnit* const unit = co_await serving_unit(near);
  Load load;
  begin(load, *unit);
  co_await pause(std::chrono::milliseconds(300));
  const unsigned before = changes;
  far.world().set_partitioned(true);
  co_await pause(std::chrono::seconds(20));
  CHECK(unit->health() == Health::kMissing);
  CHECK_FALSE(near.reason().empty());
  CHECK(changes > before);
  CHECK(load.failed > 0);
  far.world().set_partitioned(false);
  RemoteUnit* const back = co_await serving_unit(near);
  CHECK(back == unit);
  co_await pause(std::chrono::seconds(2));
  load.stop = true;
  co_await load.gate.close();
  CHECK(load.wrong == 0);
  near.on_change({});  // It outlives what is counted here.
}

// A link that is away for longer than a question waits for its answer, and no longer than patience.
Task<void> cut_for_less_than_patience(FarSide& far, RemoteTarget& near) {
  RemoteUnit* const unit = co_await serving_unit(near);
  Load load;
  begin(load, *unit);
  for (const int away : {12, 25}) {
    co_await pause(std::chrono::milliseconds(far.world().random().between(5, 1500)));
    far.world().set_partitioned(true);
    for (int i = 0; i < away; ++i) {
      co_await pause(std::chrono::seconds(1));
      CHECK(unit->health() == Health::kGood);
    }
    far.world().set_partitioned(false);
    co_await pause(std::chrono::seconds(5));
    CHECK(unit->health() == Health::kGood);
  }
  load.stop = true;
  co_await load.gate.close();
  CHECK(load.wrong == 0);
  CHECK(load.failed == 0);
  CHECK(near.logins() == 1);
}

Task<void> kill_member(FarSide& far, RemoteTarget& near) {
  RemoteUnit* const unit = co_await serving_unit(near);
  Load load;
  begin(load, *unit);
  for (const int down : {500, 12000, 2000}) {
    co_await pause(std::chrono::milliseconds(far.world().random().between(5, 400)));
    co_await far.kill();
    co_await pause(std::chrono::milliseconds(down));
    co_await far.start();
    RemoteUnit* const back = co_await serving_unit(near);
    CHECK(back == unit);
  }
  co_await pause(std::chrono::seconds(1));
  load.stop = true;
  co_await load.gate.close();
  CHECK(load.wrong == 0);
  CHECK(load.done > 100);
}

Task<void> volatile_restart(FarSide& far, RemoteTarget& near) {
  far.device().change().volatile_cache = true;
  far.device().change().non_volatile_cache = false;
  RemoteUnit* const unit = co_await serving_unit(near);
  co_await pause(std::chrono::seconds(3));
  CHECK(unit->geometry().volatile_cache);
  Completion written = co_await write_number(*unit, 0, 1, 1);
  CHECK(written.error == Error::kNone);
  co_await far.kill();
  co_await far.start();
  Error error = co_await simple(*unit, Operation::kFlush, {});
  CHECK(error == Error::kHardware);
  error = co_await simple(*unit, Operation::kFlush, {});
  CHECK(error == Error::kNone);
  // What was flushed in time is none of that.
  written = co_await write_number(*unit, 0, 1, 2);
  error = co_await simple(*unit, Operation::kFlush, {});
  CHECK(error == Error::kNone);
  co_await far.kill();
  co_await far.start();
  error = co_await simple(*unit, Operation::kFlush, {});
  CHECK(error == Error::kNone);
  // Nor is what non-volatile memory has.
  far.device().change().non_volatile_cache = true;
  co_await pause(std::chrono::seconds(3));
  CHECK(unit->geometry().non_volatile_cache);
  written = co_await write_number(*unit, 0, 1, 3);
  co_await far.kill();
  co_await far.start();
  error = co_await simple(*unit, Operation::kFlush, {});
  CHECK(error == Error::kNone);
}

Task<Error> flush_of(RemoteUnit& unit, std::uint64_t volume) {
  Request request{.operation = Operation::kFlush, .volume = volume};
  const Completion completion = co_await unit.submit(std::move(request));
  co_return completion.error;
}

Task<void> flush_into(RemoteUnit* unit, std::uint64_t volume, Error* error, Gate* gate) {
  *error = co_await flush_of(*unit, volume);
  gate->leave();
}

// Each volume learns what it may have lost, whoever was the first to ask; none what it has not.
Task<void> volatile_volumes(FarSide& far, RemoteTarget& near) {
  far.device().change().volatile_cache = true;
  far.device().change().non_volatile_cache = false;
  RemoteUnit* const unit = co_await serving_unit(near);
  co_await pause(std::chrono::seconds(3));
  for (const std::uint64_t volume : {1U, 2U, 3U, 4U}) {
    const Completion written = co_await write_number(*unit, volume, 1, 1, volume);
    CHECK(written.error == Error::kNone);
    // This one's flush is the unit's, and covers all before.
    if (volume != 1) continue;
    const Error flushed = co_await flush_of(*unit, 7);
    CHECK(flushed == Error::kNone);
  }
  co_await far.kill();
  co_await far.start();
  (void)co_await serving_unit(near);
  for (const std::uint64_t volume : {0U, 2U, 3U}) {
    CAPTURE(volume);
    Error error = co_await flush_of(*unit, volume);
    CHECK(error == Error::kHardware);
    error = co_await flush_of(*unit, volume);
    CHECK(error == Error::kNone);
  }
  const Error untouched = co_await flush_of(*unit, 1);
  CHECK(untouched == Error::kNone);
  // At once: all of them began before anybody was told.
  std::array<Error, 3> errors{};
  Gate gate;
  for (Error& error : errors) {
    if (gate.enter()) spawn(flush_into(unit, 4, &error, &gate));
  }
  co_await gate.close();
  for (const Error error : errors) CHECK(error == Error::kHardware);
  const Error after = co_await flush_of(*unit, 4);
  CHECK(after == Error::kNone);
}

// The far side tells a loss to the flush that comes first, and knows none of our volumes.
Task<void> failed_flush(FarSide& far, RemoteTarget& near) {
  far.device().change().volatile_cache = true;
  far.device().change().non_volatile_cache = false;
  RemoteUnit* const unit = co_await serving_unit(near);
  co_await pause(std::chrono::seconds(3));
  for (const std::uint64_t volume : {1U, 2U, 3U, 4U}) {
    const Completion written = co_await write_number(*unit, volume, 1, 1, volume);
    CHECK(written.error == Error::kNone);
    if (volume != 1) continue;
    const Error flushed = co_await flush_of(*unit, 1);
    CHECK(flushed == Error::kNone);
  }
  // An end that says nothing of what was written is nobody else's.
  far.device().fail_next_flush(Error::kNotReady);
  Error error = co_await flush_of(*unit, 2);
  CHECK(error == Error::kNotReady);
  far.device().fail_next_flush(Error::kHardware);
  for (const std::uint64_t volume : {2U, 3U, 0U, 4U}) {
    CAPTURE(volume);
    error = co_await flush_of(*unit, volume);
    CHECK(error == Error::kHardware);
    error = co_await flush_of(*unit, volume);
    CHECK(error == Error::kNone);
  }
  error = co_await flush_of(*unit, 1);
  CHECK(error == Error::kNone);
}

Task<void> give_up_waiting(FarSide& far, RemoteTarget& near) {
  RemoteUnit* const unit = co_await serving_unit(near);
  far.world().set_partitioned(true);
  const TimePoint begun = far.world().now();
  Request request{.extent = {0, 1}, .deadline = begun + std::chrono::milliseconds(100)};
  request.data = co_await Executor::current().buffers().allocate(kBlock);
  Completion completion = co_await unit->submit(std::move(request));
  CHECK(completion.error == Error::kTimedOut);
  CHECK(completion.data.byte_count() == kBlock);
  CHECK(far.world().now() - begun < std::chrono::seconds(4));
  far.world().set_partitioned(false);
  Cancellation cancellation;
  cancellation.cancel();
  Request cancelled{.extent = {0, 1}, .cancellation = &cancellation};
  cancelled.data = co_await Executor::current().buffers().allocate(kBlock);
  completion = co_await unit->submit(std::move(cancelled));
  CHECK(completion.error == Error::kCancelled);
}

// A write that was given up and is still held below keeps those that follow waiting, and is not
// what stays.
Task<void> wait_for_held_write(FarSide& far, RemoteTarget& near) {
  RemoteUnit* const unit = co_await serving_unit(near);
  far.device().hold_next_write(std::chrono::seconds(4));
  Request request{.operation = Operation::kWrite,
                  .extent = {0, 2},
                  .deadline = far.world().now() + std::chrono::milliseconds(100)};
  request.data = co_await Executor::current().buffers().allocate(2 * kBlock);
  const Completion given_up = co_await unit->submit(std::move(request));
  CHECK(given_up.error == Error::kTimedOut);
  const Completion written = co_await write_number(*unit, 0, 2, 8);
  CHECK(written.error == Error::kNone);
  co_await pause(std::chrono::seconds(5));
  const auto number = co_await read_number(*unit, 0, 2);
  CHECK(number.value_or(0) == 8);
}

// A copy of the lead's state, in another daemon, while the first is there and afterwards.
Task<void> second_lead(FarSide& far, RemoteTarget& near) {
  RemoteUnit* const unit = co_await serving_unit(near);
  TestClaim copied(far.claim(), 9);
  Error error = co_await near.renew_claim();
  CHECK(error == Error::kNone);
  RemoteTarget second(far.options(&copied));
  second.start();
  co_await pause(std::chrono::seconds(5));
  CHECK(second.units().empty());
  CHECK_FALSE(second.reason().empty());
  CHECK_FALSE(far.fence().told.empty());
  // The first is not disturbed, although both have one name and one ISID.
  CHECK(near.logins() == 1);
  const Completion written = co_await write_number(*unit, 0, 1, 5);
  CHECK(written.error == Error::kNone);
  co_await near.stop();
  co_await pause(std::chrono::seconds(10));
  CHECK(second.units().empty());
  CHECK(second.reason().find("newer") != std::string::npos);
  co_await second.stop();
}

// Whoever proves what is kept, but is another run, waits until the first has gone.
Task<void> successor(FarSide& far, RemoteTarget& near) {
  RemoteUnit* const unit = co_await serving_unit(near);
  CHECK(unit != nullptr);
  TestClaim next(far.claim(), 9);
  RemoteTarget second(far.options(&next));
  second.start();
  co_await pause(std::chrono::seconds(5));
  CHECK(second.reason().find("has a lead") != std::string::npos);
  const std::uint64_t writes = far.device().writes();
  co_await near.stop();
  RemoteUnit* const now = co_await serving_unit(second);
  CHECK(now != nullptr);
  CHECK(known(far.fence().kept).step.epoch == 2);
  CHECK(far.device().writes() == writes);
  co_await second.stop();
}

// A member that cannot write is not one that another lead has taken over.
Task<void> renew(FarSide& far, RemoteTarget& near) {
  RemoteUnit* const unit = co_await serving_unit(near);
  CHECK(unit != nullptr);
  far.fence().full = true;
  Error error = co_await near.renew_claim();
  CHECK(error == Error::kNotReady);
  far.fence().full = false;
  error = co_await near.renew_claim();
  CHECK(error == Error::kNone);
  known(far.fence().kept).step.token.fill(0xEE);
  error = co_await near.renew_claim();
  CHECK(error == Error::kPermission);
}

void each_seed(Task<void> (*script)(FarSide& far, RemoteTarget& near)) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    FarSide far(seed);
    far.run(script);
  }
}

}  // namespace

TEST_CASE("A status that tells of missing bytes is an error of a remote unit", "[remote]") {
  ScsiResult result;
  CHECK(completion_of(result).error == Error::kNone);
  result.underflow = true;
  result.residual = kBlock;
  CHECK(completion_of(result).error == Error::kDataCorrupt);
}

TEST_CASE("A remote unit is a block device", "[remote]") {
  FarSide far(1);
  far.run(use_it);
}
TEST_CASE("Requests wait while the link is away for a short time", "[remote]") {
  each_seed(cut_shortly);
}
TEST_CASE("Requests wait as long as they were said to", "[remote]") {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    CAPTURE(seed);
    FarSide far(seed);
    far.set_patience(std::chrono::seconds(60));
    far.run(cut_for_less_than_patience);
  }
}
TEST_CASE("A unit behind a link that is away is missing, and comes back", "[remote]") {
  each_seed(cut_for_long);
}
TEST_CASE("A member that is killed under load loses nothing", "[remote]") {
  each_seed(kill_member);
}
TEST_CASE("What a volatile cache may have lost fails a flush", "[remote]") {
  FarSide far(2);
  far.run(volatile_restart);
}
TEST_CASE("Each volume learns what a volatile cache may have lost of it", "[remote]") {
  FarSide far(2);
  far.run(volatile_volumes);
}
TEST_CASE("A flush that a remote member fails tells each volume with unflushed writes",
          "[remote][P-3]") {
  FarSide far(2);
  far.run(failed_flush);
}
TEST_CASE("A remote request has a deadline, and can be cancelled", "[remote]") {
  FarSide far(3);
  far.run(give_up_waiting);
}
TEST_CASE("A remote unit that is busy is waited for", "[remote]") {
  FarSide far(3);
  far.run(wait_for_held_write);
}
TEST_CASE("A second lead on a copy of the state is refused", "[remote]") { each_seed(second_lead); }
TEST_CASE("A claim is made anew, refused or not kept", "[remote]") {
  FarSide far(4);
  far.run(renew);
}
TEST_CASE("A new lead waits until the old one has gone", "[remote]") { each_seed(successor); }

}  // namespace sandbay::iscsi::test
