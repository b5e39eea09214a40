// SANITIZE: what it does to the blocks, to other commands, and that it ends whatever happens.
#include <catch2/catch.hpp>

#include "block/layer.h"
#include "fake_transport.h"
#include "scsi/sanitize.h"

namespace sandbay::testing::sanitize_test {
namespace {

using scsi::Additional;
using scsi::SenseKey;
using scsi::Status;
using Method = scsi::SanitizeOperation::Method;

constexpr unsigned kImmed = 0x80;
constexpr unsigned kAuse = 0x20;
constexpr unsigned kOverwrite = 1;
constexpr unsigned kBlockErase = 2;
constexpr unsigned kExit = 0x1F;
constexpr std::uint64_t kPiece = 2048;  // Blocks that one request overwrites.

std::array<std::byte, 16> sanitize(unsigned flags_and_action, std::size_t list_bytes = 0) {
  auto cdb = cdb_of({0x48, flags_and_action});
  put_big_endian(std::span<std::byte>(cdb), 7, static_cast<std::uint16_t>(list_bytes));
  return cdb;
}

Bytes overwrite_list(const Bytes& pattern, unsigned passes = 1, bool invert = false) {
  Bytes list(4);
  list[0] = static_cast<std::byte>(passes | (invert ? 0x80U : 0U));
  put_big_endian(std::span(list), 2, static_cast<std::uint16_t>(pattern.size()));
  list.insert(list.end(), pattern.begin(), pattern.end());
  return list;
}

Task<Reply> overwrite(Bench& bench, unsigned flags, Bytes list) {
  const auto cdb = sanitize(flags | kOverwrite, list.size());
  co_return co_await bench.send_to_unit(cdb, {.out = std::move(list)});
}

bool in_progress(const Reply& reply) {
  return reply.failed_with(SenseKey::kNotReady, Additional::kSanitizeInProgress);
}
bool has_failed(const Reply& reply) {
  return reply.failed_with(SenseKey::kMediumError, Additional::kSanitizeCommandFailed);
}

Task<void> wait_for_end(Bench& bench) {
  Reply reply;
  do {
    co_await bench.unit.home().sleep_for(std::chrono::milliseconds(10));
    reply = co_await bench.send_to_unit(kTestUnitReady);
  } while (in_progress(reply));
  CHECK(reply.good());
}

Task<void> overwriting(Bench& bench) {
  co_await bench.send_to_unit(cdb_10(0x2A, 0, 8), {.out = filled(4096, 'a')});
  Bytes pattern(300);
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<std::byte>(i);
  Reply reply = co_await overwrite(bench, 0, overwrite_list(pattern));
  CHECK(reply.good());
  Bytes block = pattern;
  block.insert(block.end(), pattern.begin(), pattern.begin() + 212);
  for (const unsigned lba : {0U, 1U, 2047U, 2048U, static_cast<unsigned>(kBenchBlocks) - 1}) {
    reply = co_await bench.send_to_unit(cdb_10(0x28, lba, 1));
    CHECK(reply.data == block);
  }
  CHECK(bench.device.seen().back().operation == Operation::kRead);
  CHECK(bench.device.count(Operation::kFlush) == 1);

  // The last pass of any number writes the pattern itself.
  for (const unsigned passes : {2U, 3U}) {
    bench.device.clear();
    reply = co_await overwrite(bench, kImmed,
                               overwrite_list(Bytes{std::byte{0x5A}}, passes, /*invert=*/true));
    CHECK(reply.good());
    co_await wait_for_end(bench);
    CHECK(bench.device.count(Operation::kWrite) == passes * kBenchBlocks / kPiece);
    reply = co_await bench.send_to_unit(cdb_10(0x28, 77, 1));
    CHECK(reply.data == filled(512, 0x5A));
  }
}

Task<void> erasing(Bench& bench) {
  co_await bench.send_to_unit(cdb_10(0x2A, 5, 8), {.out = filled(4096, 'a')});
  Reply reply = co_await bench.send_to_unit(sanitize(kBlockErase));
  CHECK(reply.good());
  reply = co_await bench.send_to_unit(cdb_16(0x9E, 0, 4096, 0x12));
  REQUIRE(reply.data.size() == 24);
  CHECK(reply.in(20) == 1);
  reply = co_await bench.send_to_unit(cdb_10(0x28, 5, 1));
  CHECK(reply.data == filled(512, 0));
  reply = co_await bench.send_to_unit(cdb_of({0x12, 1, 0xB1, 0, 64}));
  CHECK(reply.in(7) == 0x40);  // WABEREQ
}

Task<void> no_erasing(Bench& bench) {
  const Reply reply = co_await bench.send_to_unit(sanitize(kBlockErase));
  CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  const Reply page = co_await bench.send_to_unit(cdb_of({0x12, 1, 0xB1, 0, 64}));
  CHECK(page.in(7) == 0);
}

Task<void> refusals(Bench& bench) {
  for (const unsigned action : {0U, 3U, 0x1EU, 0x40U | kOverwrite}) {
    const Reply reply = co_await bench.send_to_unit(sanitize(action));
    CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  }
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{4}, std::size_t{517}}) {
    const Reply reply =
        co_await bench.send_to_unit(sanitize(kOverwrite, bytes), {.out = filled(bytes, 1)});
    CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  }
  for (const unsigned action : {kBlockErase, kExit}) {
    const Reply reply = co_await bench.send_to_unit(sanitize(action, 5), {.out = filled(5, 1)});
    CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  }
  Bytes reserved = overwrite_list(filled(4, 1));
  reserved[1] = std::byte{1};
  Bytes tests = overwrite_list(filled(4, 1));
  tests[0] |= std::byte{0x20};
  Bytes longer = overwrite_list(filled(4, 1));
  longer[3] = std::byte{5};
  for (const Bytes& list : {overwrite_list(filled(4, 1), 0), reserved, tests, longer, Bytes(8)}) {
    const Reply reply = co_await overwrite(bench, 0, list);
    CHECK(reply.illegal(Additional::kInvalidFieldInParameterList));
  }
  const Reply cut = co_await bench.send_to_unit(sanitize(kOverwrite, 8), {.out = filled(6, 1)});
  CHECK(cut.illegal(Additional::kInvalidFieldInInformationUnit));
  const Reply exit = co_await bench.send_to_unit(sanitize(kExit));
  CHECK(exit.good());
  CHECK(bench.device.seen().empty());
}

// Commands that have begun end at once; those that come are refused, and resets change nothing.
Task<void> alone(Bench& bench) {
  bench.hung.hang_only(Operation::kRead);
  const auto read = make_command(*bench.nexus, cdb_10(0x28, 0, 8), {.tag = 1});
  bench.router.execute(*read);
  bench.hung.hang_only(Operation::kWrite);
  const Bytes list = overwrite_list(Bytes{std::byte{3}});
  const auto command =
      make_command(*bench.nexus, sanitize(kOverwrite, list.size()), {.out = list, .tag = 2});
  bench.router.execute(*command);
  co_await read->gone();
  CHECK(read->reply.failed_with(SenseKey::kAbortedCommand,
                                Additional::kCommandsClearedByDeviceServer));
  const std::array<std::array<std::byte, 16>, 6> refused{
      kTestUnitReady,     cdb_10(0x28, 0, 1),   cdb_10(0x35, 0, 0), cdb_of({0x1B, 0, 0, 0, 1}),
      cdb_10(0x25, 0, 0), sanitize(kBlockErase)};
  for (const auto& cdb : refused) {
    const Reply reply = co_await bench.send_to_unit(cdb);
    CHECK(in_progress(reply));
  }
  const Reply write = co_await bench.send_to_unit(cdb_10(0x2A, 0, 1), {.out = filled(512, 1)});
  CHECK(in_progress(write));
  const Reply inquiry = co_await bench.send_to_unit(cdb_of({0x12, 0, 0, 0, 96}));
  CHECK(inquiry.good());
  const Reply luns = co_await bench.send_to_unit(cdb_of({0xA0, 0, 0, 0, 0, 0, 0, 0, 1, 0}));
  CHECK(luns.good());
  const Reply sense = co_await bench.send_to_unit(cdb_of({0x03, 0, 0, 0, 18}));
  CHECK(sense.in(2) == static_cast<unsigned>(SenseKey::kNotReady));
  CHECK(big_endian<std::uint16_t>(sense.data, 12) == 0x041B);
  CHECK(sense.in(15) == 0x80);

  while (bench.hung.held() == 0) co_await bench.unit.home().yield();
  using scsi::TaskManagementFunction;
  const auto aborted = co_await bench.manage(TaskManagementFunction::kAbortTask, 2);
  CHECK(aborted == scsi::TaskManagementResponse::kComplete);
  CHECK(command->answered);
  const auto reset = co_await bench.manage(TaskManagementFunction::kLogicalUnitReset);
  CHECK(reset == scsi::TaskManagementResponse::kComplete);
  Reply reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.attention(Additional::kBusDeviceReset));
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(in_progress(reply));
  bench.hung.release();
  co_await wait_for_end(bench);
  reply = co_await bench.send_to_unit(cdb_10(0x28, kBenchBlocks - 1, 1));
  CHECK(reply.data == filled(512, 3));
}

// A device that holds a write back may still do it.
Task<void> not_over_a_write(Bench& bench) {
  bench.hung.hang_only(Operation::kWrite);
  bench.hung.obey_cancellation(false);
  const auto write =
      make_command(*bench.nexus, cdb_10(0x2A, 0, 8), {.out = filled(4096, 7), .tag = 1});
  bench.router.execute(*write);
  Reply reply = co_await bench.send_to_unit(sanitize(kBlockErase));
  CHECK(reply.status == Status::kBusy);
  bench.hung.release();
  co_await write->gone();
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.good());
  reply = co_await bench.send_to_unit(sanitize(kBlockErase));
  CHECK(reply.good());
}

Task<void> failing(Bench& bench) {
  const Bytes list = overwrite_list(Bytes{std::byte{3}});
  for (const unsigned ause : {0U, kAuse}) {
    bench.faulty.fail({.operation = Operation::kWrite, .error = Error::kMediumError, .skip = 1});
    Reply reply = co_await overwrite(bench, ause, list);
    CHECK(has_failed(reply));
    bench.faulty.clear();
    for (const auto& cdb : {kTestUnitReady, cdb_10(0x28, 0, 1), cdb_of({0x1B, 0, 0, 0, 1})}) {
      reply = co_await bench.send_to_unit(cdb);
      CHECK(has_failed(reply));
    }
    reply = co_await bench.send_to_unit(cdb_of({0x03, 0, 0, 0, 18}));
    CHECK(reply.in(2) == static_cast<unsigned>(SenseKey::kMediumError));
    if (ause == 0) {
      reply = co_await bench.send_to_unit(sanitize(kExit));
      CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
      reply = co_await overwrite(bench, kAuse, list);
      CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
      reply = co_await bench.send_to_unit(kTestUnitReady);
      CHECK(has_failed(reply));
      reply = co_await overwrite(bench, 0, list);
      CHECK(reply.good());
    } else {
      reply = co_await bench.send_to_unit(sanitize(kExit));
      CHECK(reply.good());
    }
    reply = co_await bench.send_to_unit(kTestUnitReady);
    CHECK(reply.good());
  }
}

// A device that is not ready is waited for.
Task<void> waiting(Bench& bench) {
  bench.faulty.fail({.operation = Operation::kWrite, .error = Error::kReadOnly, .times = 5});
  const TimePoint begun = bench.unit.home().now();
  const Reply reply = co_await overwrite(bench, 0, overwrite_list(Bytes{std::byte{3}}));
  CHECK(reply.good());
  CHECK(bench.unit.home().now() - begun >= std::chrono::seconds(5));
}

Task<void> store_fails(Bench& bench) {
  Shelf& shelf = bench.shelf;
  bench.unit.restore(shelf, {});
  shelf.fails = Error::kNoSpace;
  Reply reply = co_await bench.send_to_unit(sanitize(kBlockErase));
  CHECK(reply.failed_with(SenseKey::kHardwareError, Additional::kInternalTargetFailure));
  CHECK(bench.device.seen().empty());
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.good());

  // Nobody hears of an end that a later start would not know.
  shelf.fails.reset();
  bench.hung.hang_only(Operation::kUnmap);
  reply = co_await bench.send_to_unit(sanitize(kImmed | kBlockErase));
  CHECK(reply.good());
  CHECK(shelf.kept.sanitize.has_value());
  shelf.fails = Error::kNoSpace;
  bench.hung.release();
  co_await bench.unit.home().sleep_for(std::chrono::seconds(20));
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(in_progress(reply));
  shelf.fails.reset();
  co_await bench.unit.home().sleep_for(std::chrono::seconds(2));
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.good());
  CHECK_FALSE(shelf.kept.sanitize.has_value());
}

// Nobody knows whether the store has it: nobody may write before it certainly has not.
Task<void> in_doubt(Bench& bench) {
  Shelf& shelf = bench.shelf;
  bench.unit.restore(shelf, {});
  shelf.fails = Error::kTimedOut;
  const auto command = make_command(*bench.nexus, sanitize(kBlockErase), {.tag = 1});
  bench.router.execute(*command);
  co_await bench.unit.home().sleep_for(std::chrono::seconds(10));
  CHECK_FALSE(command->answered);
  Reply reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(in_progress(reply));
  shelf.fails.reset();
  co_await command->gone();
  CHECK(command->reply.failed_with(SenseKey::kHardwareError, Additional::kInternalTargetFailure));
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.good());
  CHECK(bench.device.seen().empty());
}

// Whatever the attribute of a command that waits, others are answered.
Task<void> ordered(Bench& bench) {
  bench.hung.hang_only(Operation::kWrite);
  for (const auto attribute : {scsi::TaskAttribute::kOrdered, scsi::TaskAttribute::kHeadOfQueue}) {
    const Bytes list = overwrite_list(Bytes{std::byte{3}});
    const auto command = make_command(*bench.nexus, sanitize(kOverwrite, list.size()),
                                      {.out = list, .tag = 2, .attribute = attribute});
    bench.router.execute(*command);
    while (bench.hung.held() == 0) co_await bench.unit.home().yield();
    const Reply reply = co_await bench.send_to_unit(kTestUnitReady);
    CHECK(in_progress(reply));
    bench.hung.release();
    co_await command->gone();
    CHECK(command->reply.good());
    bench.hung.hang_only(Operation::kWrite);
  }
}

// The device gets other content in the middle: all of that is overwritten as well.
Task<void> other_content(Bench& bench) {
  bench.hung.hang_only(Operation::kWrite);
  Reply reply = co_await overwrite(bench, kImmed, overwrite_list(Bytes{std::byte{3}}));
  CHECK(reply.good());
  while (bench.hung.held() == 0) co_await bench.unit.home().yield();
  bench.hung.release_held();
  while (bench.device.count(Operation::kWrite) < 3) {
    bench.hung.release_held();
    co_await bench.unit.home().yield();
  }
  bench.device.clear();
  bench.unit.content_replaced();
  bench.hung.release();
  co_await wait_for_end(bench);
  CHECK(bench.device.count(Operation::kWrite) >= kBenchBlocks / kPiece);
  reply = co_await bench.send_to_unit(cdb_10(0x28, 0, 1));
  CHECK(reply.data == filled(512, 3));
}

// On a unit that is not ready, or offline, nothing begins that would go on when it is.
Task<void> not_ready(Bench& bench) {
  bench.device.go_away(true);
  Reply reply = co_await bench.send_to_unit(sanitize(kImmed | kBlockErase));
  CHECK(reply.key() == SenseKey::kNotReady);
  bench.device.go_away(false);
  CHECK(bench.unit.sanitizer().idle());
  reply = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reply.good());
}

class SlowDevice final : public Layer {
 public:
  using Layer::Layer;
  Task<Completion> submit(Request request) override {
    if (request.operation == Operation::kWrite) co_await home().sleep_for(std::chrono::seconds(4));
    co_return co_await Layer::submit(std::move(request));
  }
};

// The next start goes on from what was kept ten seconds ago.
Task<void> restart(Executor* home) {
  const auto memory = *MemoryDevice::create(*home, {.byte_count = kBenchBlocks * 512});
  RecordingDevice recording(*memory);
  SlowDevice slow(recording);
  Shelf shelf;
  {
    ServedUnit unit(slow);
    unit.unit.restore(shelf, {});
    co_await unit.start();
    const Bytes list = overwrite_list(Bytes{std::byte{9}});
    Reply reply =
        co_await unit.send_to_unit(sanitize(kImmed | kOverwrite, list.size()), {.out = list});
    CHECK(reply.good());
    co_await home->sleep_for(std::chrono::seconds(14));  // Three pieces of four.
    reply = co_await unit.send_to_unit(kTestUnitReady);
    CHECK(in_progress(reply));
    CHECK(reply.byte(15) == 0x80);
    CHECK(big_endian<std::uint16_t>(reply.sense, 16) == 65536 / 4 * 3);
    co_await unit.stop();
  }
  REQUIRE(shelf.kept.sanitize.has_value());
  CHECK(shelf.kept.sanitize->at.pass == 0);
  CHECK(shelf.kept.sanitize->at.next == 3 * kPiece);
  recording.clear();
  ServedUnit unit(slow);
  unit.unit.restore(shelf, shelf.kept);
  co_await unit.start();
  const Reply begun = co_await unit.send_to_unit(kTestUnitReady);
  CHECK(in_progress(begun));
  co_await home->sleep_for(std::chrono::seconds(60));
  const Reply ended = co_await unit.send_to_unit(kTestUnitReady);
  CHECK(ended.good());
  CHECK_FALSE(shelf.kept.sanitize.has_value());
  CHECK(recording.count(Operation::kWrite) == 1);
  CHECK(recording.seen().front().operation == Operation::kWrite);
  CHECK(recording.seen().front().extent.first == 3 * kPiece);
  co_await unit.stop();
}

TEST_CASE("SANITIZE overwrites every block", "[scsi][sanitize]") { on_bench(overwriting); }
TEST_CASE("SANITIZE erases a thin unit", "[scsi][sanitize]") { on_bench(erasing); }
TEST_CASE("SANITIZE: a full unit has no block erase", "[scsi][sanitize]") {
  on_bench(no_erasing, {.thin = false});
}
TEST_CASE("SANITIZE: refusals change nothing", "[scsi][sanitize]") { on_bench(refusals); }
TEST_CASE("SANITIZE is alone, and resets do not end it", "[scsi][sanitize]") { on_bench(alone); }
TEST_CASE("SANITIZE does not begin over a write that hangs", "[scsi][sanitize]") {
  on_bench(not_over_a_write);
}
TEST_CASE("SANITIZE: failures and the way out", "[scsi][sanitize]") { on_bench(failing); }
TEST_CASE("SANITIZE waits for a device that is not ready", "[scsi][sanitize]") {
  on_bench(waiting);
}
TEST_CASE("SANITIZE and a store that fails", "[scsi][sanitize]") { on_bench(store_fails); }
TEST_CASE("SANITIZE needs a unit that is ready", "[scsi][sanitize]") { on_bench(not_ready); }
TEST_CASE("SANITIZE and a store of which nobody knows", "[scsi][sanitize]") { on_bench(in_doubt); }
TEST_CASE("SANITIZE that is ordered holds up nobody", "[scsi][sanitize]") { on_bench(ordered); }
TEST_CASE("SANITIZE begins again over other content", "[scsi][sanitize]") {
  on_bench(other_content);
}
TEST_CASE("SANITIZE goes on over a restart", "[scsi][sanitize]") {
  run_in_world(1, [](Executor& home) { return restart(&home); });
}

}  // namespace
}  // namespace sandbay::testing::sanitize_test
