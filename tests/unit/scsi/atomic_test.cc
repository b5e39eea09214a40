// COMPARE AND WRITE and ORWRITE: what they do, and that nothing comes between.
#include <random>

#include <fmt/core.h>
#include <catch2/catch.hpp>

#include "block/layer.h"
#include "fake_transport.h"

namespace sandbay::testing::atomic_test {
namespace {

using scsi::Additional;
using scsi::SenseKey;
using scsi::Status;

std::array<std::byte, 16> compare_and_write(std::uint64_t lba, unsigned blocks,
                                            unsigned flags = 0) {
  return cdb_16(0x89, lba, blocks, flags);
}

Bytes joined(Bytes first, const Bytes& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Task<void> compare_then_write(Bench& bench) {
  Reply reply = co_await bench.send_to_unit(compare_and_write(7, 2),
                                            {.out = joined(filled(1024, 0), filled(1024, 5))});
  CHECK(reply.good());
  CHECK(reply.data_out_bytes == 2048);
  reply = co_await bench.send_to_unit(cdb_10(0x28, 7, 2));
  CHECK(reply.data == filled(1024, 5));

  Bytes other = filled(1024, 5);
  other[700] = std::byte{6};
  bench.device.clear();
  reply =
      co_await bench.send_to_unit(compare_and_write(7, 2), {.out = joined(other, filled(1024, 9))});
  CHECK(reply.failed_with(SenseKey::kMiscompare, Additional::kMiscompareDuringVerify));
  CHECK(reply.information() == 700U);
  CHECK(bench.device.count(Operation::kWrite) == 0);
  reply = co_await bench.send_to_unit(cdb_10(0x28, 7, 2));
  CHECK(reply.data == filled(1024, 5));

  reply = co_await bench.send_to_unit(compare_and_write(7, 0));
  CHECK(reply.good());
  reply = co_await bench.send_to_unit(compare_and_write(1000, 255),
                                      {.out = Bytes(std::size_t{2} * 255 * 512)});
  CHECK(reply.good());
  reply = co_await bench.send_to_unit(compare_and_write(0, 256), {.out = Bytes(1024)});
  CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  reply = co_await bench.send_to_unit(compare_and_write(kBenchBlocks, 1), {.out = Bytes(1024)});
  CHECK(reply.illegal(Additional::kLbaOutOfRange));
  reply = co_await bench.send_to_unit(compare_and_write(0, 1), {.out = Bytes(512)});
  CHECK(reply.illegal(Additional::kInvalidFieldInInformationUnit));
  reply = co_await bench.send_to_unit(compare_and_write(0, 1), {.out = Bytes(2048)});
  CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  reply = co_await bench.send_to_unit(compare_and_write(0, 0), {.out = Bytes(1024)});
  CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  bench.device.clear();
  reply = co_await bench.send_to_unit(compare_and_write(20, 1, 0x08), {.out = Bytes(1024)});
  CHECK(reply.good());
  REQUIRE(bench.device.count(Operation::kWrite) == 1);
  CHECK(bench.device.seen().back().force_unit_access);
  reply = co_await bench.send_to_unit(cdb_of({0x12, 1, 0xB0, 0, 64}));
  CHECK(reply.in(5) == 255);
}

Task<void> merge(Bench& bench) {
  Reply reply = co_await bench.send_to_unit(cdb_10(0x2A, 3, 2), {.out = filled(1024, 0x51)});
  reply = co_await bench.send_to_unit(cdb_16(0x8B, 3, 2), {.out = filled(1024, 0x0F)});
  CHECK(reply.good());
  reply = co_await bench.send_to_unit(cdb_10(0x28, 2, 4));
  CHECK(reply.data == joined(joined(filled(512, 0), filled(1024, 0x5F)), filled(512, 0)));
  // More than one piece.
  constexpr std::uint32_t kBlocks = 3000;
  reply = co_await bench.send_to_unit(cdb_16(0x8B, 0, kBlocks),
                                      {.out = filled(std::size_t{kBlocks} * 512, 0x80)});
  CHECK(reply.good());
  CHECK(reply.data_out_bytes == std::uint64_t{kBlocks} * 512);
  reply = co_await bench.send_to_unit(cdb_10(0x28, 3, 1));
  CHECK(reply.data == filled(512, 0xDF));
  reply = co_await bench.send_to_unit(cdb_10(0x28, kBlocks, 1));
  CHECK(reply.data == filled(512, 0));
  // Whole blocks of what comes.
  reply = co_await bench.send_to_unit(cdb_16(0x8B, 10, 4), {.out = filled(512, 0x01)});
  CHECK(reply.good());
  reply = co_await bench.send_to_unit(cdb_10(0x28, 10, 2));
  CHECK(reply.data == joined(filled(512, 0x81), filled(512, 0x80)));
}

// A device that needs some time for everything.
class LateDevice final : public Layer {
 public:
  using Layer::Layer;
  Task<Completion> submit(Request request) override {
    co_await home().sleep_for(std::chrono::microseconds(random_() % 90));
    co_return co_await Layer::submit(std::move(request));
  }

 private:
  std::minstd_rand random_{1};
};

struct Count {
  unsigned long successes = 0;
  unsigned long miscompares = 0;
  unsigned running = 0;
  Event ended;
};

Bytes number(std::uint64_t value) {
  Bytes block(512);
  put_big_endian(std::span(block), 8, value);
  return block;
}

// Counts block 5 up until it has succeeded so often.
Task<void> count_up(ServedUnit* unit, std::string name, unsigned wanted, Count* count) {
  const auto nexus = co_await unit->login(std::move(name));
  std::uint64_t value = 0;
  for (unsigned done = 0; done < wanted;) {
    const Bytes data = joined(number(value), number(value + 1));
    const Reply reply = co_await send(unit->router, *nexus, compare_and_write(5, 1), {.out = data});
    if (reply.good()) {
      ++done;
      ++count->successes;
    } else {
      ++count->miscompares;
      if (reply.key() != SenseKey::kMiscompare) FAIL("it neither wrote nor compared");
    }
    const Reply read = co_await send(unit->router, *nexus, cdb_10(0x28, 5, 1));
    value = big_endian<std::uint64_t>(read.data, 8);
  }
  co_await unit->router.detach(*nexus);
  if (--count->running == 0) count->ended.set();
}

// Beside them others write the blocks around.
Task<void> write_around(ServedUnit* unit, std::string name, Count* count) {
  const auto nexus = co_await unit->login(std::move(name));
  for (unsigned i = 0; i < 300; ++i) {
    const Reply reply =
        co_await send(unit->router, *nexus, cdb_10(0x2A, 6, 4), {.out = filled(2048, i % 256)});
    if (!reply.good()) FAIL("a write beside it failed");
  }
  co_await unit->router.detach(*nexus);
  if (--count->running == 0) count->ended.set();
}

// One sets the bits of a byte of block 5, one after the other, that nobody else changes.
Task<void> set_bits(ServedUnit* unit, std::string name, std::size_t byte, Count* count) {
  const auto nexus = co_await unit->login(std::move(name));
  for (unsigned i = 0; i < 8 * 20; ++i) {
    Bytes mask(512);
    mask[byte] = static_cast<std::byte>(1U << i % 8);
    const Reply reply = co_await send(unit->router, *nexus, cdb_16(0x8B, 5, 1), {.out = mask});
    if (!reply.good()) FAIL("an ORWRITE failed");
  }
  co_await unit->router.detach(*nexus);
  if (--count->running == 0) count->ended.set();
}

// Counts with what is in the block, whose other bytes change meanwhile.
Task<void> count_whole_blocks(ServedUnit* unit, std::string name, Count* count) {
  const auto nexus = co_await unit->login(std::move(name));
  for (unsigned done = 0; done < 200;) {
    const Reply read = co_await send(unit->router, *nexus, cdb_10(0x28, 5, 1));
    Bytes next = read.data;
    put_big_endian(std::span(next), 8, big_endian<std::uint64_t>(read.data, 8) + 1);
    const Reply reply = co_await send(unit->router, *nexus, compare_and_write(5, 1),
                                      {.out = joined(read.data, next)});
    if (!reply.good()) continue;
    ++done;
    ++count->successes;
  }
  co_await unit->router.detach(*nexus);
  if (--count->running == 0) count->ended.set();
}

Task<void> count_and_merge(Executor* home) {
  const auto memory = *MemoryDevice::create(*home, {.byte_count = kBenchBlocks * 512});
  LateDevice late(*memory);
  ServedUnit unit(late);
  co_await unit.start();
  Count count{.running = 6};
  for (unsigned i = 0; i < 3; ++i) {
    spawn(count_whole_blocks(&unit, fmt::format("iqn.2026-11.org.example:c{},i,0x1", i), &count));
    spawn(set_bits(&unit, fmt::format("iqn.2026-11.org.example:o{},i,0x1", i), 100 + i, &count));
  }
  co_await count.ended.wait();
  const Reply read = co_await unit.send_to_unit(cdb_10(0x28, 5, 1));
  CHECK(big_endian<std::uint64_t>(read.data, 8) == count.successes);
  for (std::size_t i = 100; i < 103; ++i) CHECK(read.data[i] == std::byte{0xFF});
  co_await unit.stop();
}

Task<void> count_together(Executor* home) {
  const auto memory = *MemoryDevice::create(*home, {.byte_count = kBenchBlocks * 512});
  LateDevice late(*memory);
  ServedUnit unit(late);
  co_await unit.start();
  Count count{.running = 10};
  for (unsigned i = 0; i < 8; ++i) {
    spawn(count_up(&unit, fmt::format("iqn.2026-11.org.example:{},i,0x1", i), 250, &count));
  }
  for (unsigned i = 8; i < 10; ++i) {
    spawn(write_around(&unit, fmt::format("iqn.2026-11.org.example:{},i,0x1", i), &count));
  }
  co_await count.ended.wait();
  const Reply read = co_await unit.send_to_unit(cdb_10(0x28, 5, 1));
  CHECK(big_endian<std::uint64_t>(read.data, 8) == count.successes);
  CHECK(count.successes == 2000);
  CHECK(count.miscompares > 100);
  co_await unit.stop();
}

// Plain writes of the same block get their turn while others never stop.
Task<void> write_between(Executor* home) {
  const auto memory = *MemoryDevice::create(*home, {.byte_count = kBenchBlocks * 512});
  LateDevice late(*memory);
  ServedUnit unit(late);
  co_await unit.start();
  Count count{.running = 4};
  for (unsigned i = 0; i < 4; ++i) {
    spawn(count_up(&unit, fmt::format("iqn.2026-11.org.example:{},i,0x1", i), 100, &count));
  }
  for (unsigned i = 0; i < 20; ++i) {
    const TimePoint begun = home->now();
    const Reply write = co_await unit.send_to_unit(cdb_10(0x2A, 5, 1), {.out = number(i * 1000)});
    CHECK(write.good());
    CHECK(home->now() - begun < std::chrono::milliseconds(2));
  }
  co_await count.ended.wait();
  co_await unit.stop();
}

// One that hangs in the device holds up what overlaps until it is aborted, and then fences it.
Task<void> hang(Bench& bench) {
  bench.hung.hang_only(Operation::kWrite);
  const auto first = make_command(*bench.nexus, compare_and_write(5, 1),
                                  {.out = joined(number(0), number(1)), .tag = 1});
  bench.router.execute(*first);
  const auto second = make_command(*bench.nexus, compare_and_write(5, 1),
                                   {.out = joined(number(0), number(2)), .tag = 2});
  bench.router.execute(*second);
  const auto third =
      make_command(*bench.nexus, cdb_10(0x2A, 4, 3), {.out = filled(1536, 3), .tag = 3});
  bench.router.execute(*third);
  co_await bench.unit.home().sleep_for(std::chrono::seconds(5));
  CHECK_FALSE(first->answered);
  CHECK_FALSE(second->answered);
  CHECK_FALSE(third->answered);
  const auto aborted = co_await bench.manage(scsi::TaskManagementFunction::kAbortTask, 2);
  CHECK(aborted == scsi::TaskManagementResponse::kComplete);
  CHECK(second->answered);
  CHECK(second->released);
  bench.hung.obey_cancellation(false);
  const auto given_up = co_await bench.manage(scsi::TaskManagementFunction::kAbortTask, 1);
  CHECK(given_up == scsi::TaskManagementResponse::kComplete);
  CHECK(first->answered);
  co_await third->gone();
  CHECK(third->reply.status == Status::kBusy);
  bench.hung.release();
  co_await first->gone();
  const Reply again = co_await bench.send_to_unit(cdb_10(0x2A, 4, 3), {.out = filled(1536, 4)});
  CHECK(again.good());
}

// It waits for a plain write that hangs, and hears it when that is given up.
Task<void> wait_for_a_plain_write(Bench& bench) {
  bench.hung.hang_only(Operation::kWrite);
  bench.hung.obey_cancellation(false);
  const auto plain = make_command(*bench.nexus, cdb_10(0x2A, 5, 1), {.out = number(7), .tag = 1});
  bench.router.execute(*plain);
  const auto waiting = make_command(*bench.nexus, compare_and_write(5, 1),
                                    {.out = joined(number(0), number(1)), .tag = 2});
  bench.router.execute(*waiting);
  const auto done = co_await bench.manage(scsi::TaskManagementFunction::kAbortTask, 1);
  CHECK(done == scsi::TaskManagementResponse::kComplete);
  co_await waiting->gone();
  CHECK(waiting->reply.status == Status::kBusy);
  bench.hung.release();
  co_await plain->gone();
}

std::array<std::byte, 16> write_atomic(std::uint64_t lba, unsigned blocks, unsigned flags = 0) {
  return cdb_16(0x9C, lba, blocks, flags);
}

Task<void> write_whole(Bench& bench) {
  Reply reply = co_await bench.send_to_unit(write_atomic(0, 1), {.out = filled(512, 1)});
  CHECK(reply.illegal(Additional::kInvalidOperationCode));
  Shelf& shelf = bench.shelf;
  bench.unit.restore(shelf, {});
  reply = co_await bench.send_to_unit(cdb_of({0x12, 1, 0xB0, 0, 64}));
  CHECK(big_endian<std::uint32_t>(reply.data, 44) == 2048);
  for (const std::size_t rule : {48U, 52U, 56U, 60U}) {
    CHECK(big_endian<std::uint32_t>(reply.data, rule) == 0);
  }
  reply = co_await bench.send_to_unit(write_atomic(7, 256), {.out = filled(256 * 512, 5)});
  CHECK(reply.good());
  CHECK(reply.data_out_bytes == 256 * 512);
  CHECK(shelf.most_blocks == 1);
  CHECK(shelf.kept.blocks.empty());
  REQUIRE(bench.device.count(Operation::kWrite) == 1);
  CHECK(bench.device.seen().back().force_unit_access);
  reply = co_await bench.send_to_unit(cdb_10(0x28, 6, 258));
  CHECK(reply.data == joined(joined(filled(512, 0), filled(256 * 512, 5)), filled(512, 0)));
  reply = co_await bench.send_to_unit(write_atomic(0, 0));
  CHECK(reply.good());

  bench.device.clear();
  reply = co_await bench.send_to_unit(write_atomic(0, 2049), {.out = filled(2049 * 512, 5)});
  CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  reply = co_await bench.send_to_unit(write_atomic(0, 0x1'0001), {.out = filled(512, 5)});
  CHECK(reply.illegal(Additional::kInvalidFieldInCdb));  // A boundary.
  reply = co_await bench.send_to_unit(write_atomic(0, 1, 0x20), {.out = filled(512, 5)});
  CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  reply = co_await bench.send_to_unit(write_atomic(kBenchBlocks, 1), {.out = filled(512, 5)});
  CHECK(reply.illegal(Additional::kLbaOutOfRange));
  reply = co_await bench.send_to_unit(write_atomic(0, 2), {.out = filled(512, 5)});
  CHECK(reply.illegal(Additional::kInvalidFieldInInformationUnit));
  shelf.fails = Error::kNoSpace;
  reply = co_await bench.send_to_unit(write_atomic(0, 2), {.out = filled(1024, 5)});
  CHECK(reply.failed_with(SenseKey::kHardwareError, Additional::kInternalTargetFailure));
  CHECK(bench.device.count(Operation::kWrite) == 0);
}

// The daemon has ended in the middle of some: their blocks are as before when anything is served.
Task<void> put_back(Bench& bench) {
  Shelf& shelf = bench.shelf;
  co_await bench.send_to_unit(cdb_10(0x2A, 0, 16), {.out = filled(8192, 9)});
  shelf.kept.blocks = {{.first = 3, .data = filled(2048, 4)}, {.first = 9, .data = filled(512, 6)}};
  bench.hung.hang_only(Operation::kRead);
  bench.unit.restore(shelf, shelf.kept);
  Reply reply = co_await bench.send_to_unit(cdb_10(0x28, 3, 1));
  CHECK(reply.failed_with(SenseKey::kNotReady, Additional::kNotReadyCauseNotReportable));
  reply = co_await bench.send_to_unit(cdb_of({0x03, 0, 0, 0, 18}));
  CHECK(reply.in(2) == static_cast<unsigned>(SenseKey::kNotReady));
  bench.hung.release();
  co_await bench.unit.home().sleep_for(std::chrono::seconds(1));
  CHECK(shelf.kept.blocks.empty());
  reply = co_await bench.send_to_unit(cdb_10(0x28, 3, 7));
  CHECK(reply.data == joined(joined(filled(2048, 4), filled(1024, 9)), filled(512, 6)));
}

// Blocks behind the end of a unit that was made smaller are forgotten.
Task<void> put_back_at_the_end(Bench& bench) {
  Shelf& shelf = bench.shelf;
  shelf.kept.blocks = {{.first = kBenchBlocks - 1, .data = filled(1024, 4)},
                       {.first = kBenchBlocks + 7, .data = filled(512, 6)}};
  bench.unit.restore(shelf, shelf.kept);
  co_await bench.unit.home().sleep_for(std::chrono::seconds(1));
  CHECK(shelf.kept.blocks.empty());
  const Reply reply = co_await bench.send_to_unit(cdb_10(0x28, kBenchBlocks - 1, 1));
  CHECK(reply.data == filled(512, 4));
}

// Blocks that a device has not changed need no room of it to be as before.
Task<void> no_room(Bench& bench) {
  bench.unit.restore(bench.shelf, {});
  bench.faulty.fail({.operation = Operation::kWrite, .error = Error::kNoSpace});
  Reply reply = co_await bench.send_to_unit(write_atomic(2, 4), {.out = filled(2048, 5)});
  CHECK(reply.failed_with(SenseKey::kDataProtect, Additional::kSpaceAllocationFailed));
  CHECK(bench.shelf.torn == 0);
  CHECK(bench.shelf.kept.blocks.empty());
  reply = co_await bench.send_to_unit(cdb_10(0x28, 2, 4));
  CHECK(reply.data == filled(2048, 0));
  reply = co_await bench.send_to_unit(cdb_10(0x42, 0, 0));
  CHECK(reply.good());
}

// A device that fails in the middle, and for a while: nobody sees a part, others go on.
Task<void> failing_device(Bench& bench) {
  Shelf& shelf = bench.shelf;
  bench.unit.restore(shelf, {});
  co_await bench.send_to_unit(cdb_10(0x2A, 0, 16), {.out = filled(8192, 9)});
  for (const Error error : {Error::kMediumError, Error::kHardware, Error::kNotReady}) {
    bench.faulty.fail(
        {.operation = Operation::kWrite, .error = error, .times = 1, .after_effect = true});
    bench.faulty.fail({.operation = Operation::kWrite, .error = error, .times = 4});
    Reply reply = co_await bench.send_to_unit(write_atomic(2, 4), {.out = filled(2048, 5)});
    CHECK(reply.status == Status::kCheckCondition);
    CHECK(shelf.kept.blocks.size() == 1);
    reply = co_await bench.send_to_unit(cdb_10(0x28, 0, 16));
    CHECK(reply.failed_with(SenseKey::kMediumError, Additional::kUnrecoveredReadError));
    reply = co_await bench.send_to_unit(cdb_10(0x2A, 5, 1), {.out = filled(512, 1)});
    CHECK(reply.failed_with(SenseKey::kMediumError, Additional::kWriteError));
    reply = co_await bench.send_to_unit(cdb_10(0x28, 0, 2));
    CHECK(reply.data == filled(1024, 9));
    reply = co_await bench.send_to_unit(cdb_10(0x35, 0, 0));
    CHECK(reply.good());
    reply = co_await bench.send_to_unit(cdb_10(0x41, 3, 1), {.out = filled(512, 0)});
    CHECK(reply.key() == SenseKey::kMediumError);
    reply = co_await bench.send_to_unit(kTestUnitReady);
    CHECK(reply.good());
    co_await bench.unit.home().sleep_for(std::chrono::seconds(6));
    reply = co_await bench.send_to_unit(cdb_10(0x28, 0, 16));
    CHECK(reply.data == filled(8192, 9));
    CHECK(shelf.kept.blocks.empty());
    bench.faulty.clear();
  }
  CHECK(shelf.torn == 3);
}

// A read and a write that wait for one that fails do not see or touch its blocks.
Task<void> failing_before_others(Bench& bench) {
  bench.unit.restore(bench.shelf, {});
  bench.hung.hang_only(Operation::kWrite);
  bench.faulty.fail({.operation = Operation::kWrite,
                     .error = Error::kHardware,
                     .times = 1,
                     .after_effect = true});
  bench.faulty.fail({.operation = Operation::kWrite, .error = Error::kHardware});
  const auto atomic = make_command(*bench.nexus, write_atomic(2, 4), {.out = filled(2048, 5)});
  bench.router.execute(*atomic);
  while (bench.hung.held() == 0) co_await bench.unit.home().sleep_for(std::chrono::milliseconds(1));
  const auto read = make_command(*bench.nexus, cdb_10(0x28, 3, 1), {.tag = 1});
  bench.router.execute(*read);
  const auto write =
      make_command(*bench.nexus, cdb_10(0x2A, 3, 1), {.out = filled(512, 1), .tag = 2});
  bench.router.execute(*write);
  bench.hung.release();
  for (const auto* each : {read.get(), write.get()}) {
    while (!each->released) co_await bench.unit.home().sleep_for(std::chrono::milliseconds(1));
    CHECK(each->reply.key() == SenseKey::kMediumError);
  }
  co_await atomic->gone();
  bench.faulty.clear();
  co_await bench.unit.home().sleep_for(std::chrono::seconds(2));
  const Reply reply = co_await bench.send_to_unit(cdb_10(0x28, 2, 4));
  CHECK(reply.data == filled(2048, 0));
}

// SANITIZE takes the place of what is to be put back.
Task<void> sanitize_torn_blocks(Bench& bench) {
  bench.unit.restore(bench.shelf, {});
  bench.faulty.fail({.operation = Operation::kWrite,
                     .error = Error::kHardware,
                     .times = 1,
                     .after_effect = true});
  bench.faulty.fail({.operation = Operation::kWrite, .error = Error::kHardware});
  Reply reply = co_await bench.send_to_unit(write_atomic(2, 4), {.out = filled(2048, 5)});
  CHECK(bench.shelf.kept.blocks.size() == 1);
  bench.faulty.clear();
  const Bytes list = bytes_of({1, 0, 0, 1, 7});
  auto cdb = cdb_of({0x48, 1});
  cdb[8] = static_cast<std::byte>(list.size());
  reply = co_await bench.send_to_unit(cdb, {.out = list});
  CHECK(reply.good());
  co_await bench.unit.home().sleep_for(std::chrono::seconds(2));
  CHECK(bench.shelf.kept.blocks.empty());
  reply = co_await bench.send_to_unit(cdb_10(0x28, 2, 4));
  CHECK(reply.data == filled(2048, 7));
}

// Other content comes while the device has the write: it is neither done nor undone.
Task<void> new_content(Bench& bench) {
  Shelf& shelf = bench.shelf;
  bench.hung.obey_cancellation(true);
  bench.unit.restore(shelf, {});
  bench.hung.hang_only(Operation::kWrite);
  const auto command = make_command(*bench.nexus, write_atomic(2, 4), {.out = filled(2048, 5)});
  bench.router.execute(*command);
  while (bench.hung.held() == 0) co_await bench.unit.home().sleep_for(std::chrono::milliseconds(1));
  bench.unit.content_replaced();
  bench.hung.release();
  co_await command->gone();
  CHECK(command->reply.failed_with(SenseKey::kAbortedCommand,
                                   Additional::kCommandsClearedByDeviceServer));
  CHECK(bench.device.count(Operation::kWrite) == 1);
  CHECK(shelf.kept.blocks.empty());
  const Reply reply = co_await bench.send_to_unit(cdb_10(0x28, 2, 4));
  CHECK(reply.data == filled(2048, 0));
}

// Writes a half of its blocks at a time.
class TearingDevice final : public Layer {
 public:
  using Layer::Layer;
  Task<Completion> submit(Request request) override {
    const Extent extent = request.extent;
    if (request.operation != Operation::kWrite || extent.block_count < 2) {
      co_return co_await Layer::submit(std::move(request));
    }
    const std::uint64_t half = extent.block_count / 2;
    const std::uint32_t block_bytes = geometry().block_bytes;
    BufferList front = request.data.share(0, half * block_bytes);
    const Completion first = co_await Layer::submit(
        {.operation = Operation::kWrite, .extent = {extent.first, half}, .data = std::move(front)});
    assert(first.error == Error::kNone);
    co_await home().sleep_for(std::chrono::microseconds(50));
    BufferList back =
        request.data.share(half * block_bytes, (extent.block_count - half) * block_bytes);
    co_return co_await Layer::submit({.operation = Operation::kWrite,
                                      .extent = {extent.first + half, extent.block_count - half},
                                      .data = std::move(back)});
  }
};

Task<void> write_whole_again_and_again(ServedUnit* unit, unsigned number, Count* count) {
  const auto nexus = co_await unit->login(fmt::format("iqn.2026-11.org.example:w{},i,0x1", number));
  for (unsigned i = 0; i < 50; ++i) {
    const Reply reply = co_await send(unit->router, *nexus, write_atomic(8, 16),
                                      {.out = filled(16 * 512, number * 50 + i)});
    if (!reply.good()) FAIL("an atomic write failed");
    ++count->successes;
  }
  co_await unit->router.detach(*nexus);
  if (--count->running == 0) count->ended.set();
}

// Readers see all of a write or nothing of it; without turns they see halves.
Task<void> read_whole(Executor* home) {
  const auto memory = *MemoryDevice::create(*home, {.byte_count = kBenchBlocks * 512});
  TearingDevice tearing(*memory);
  Shelf shelf;
  ServedUnit unit(tearing);
  unit.unit.restore(shelf, {});
  co_await unit.start();
  Count count{.running = 5};
  for (unsigned i = 0; i < 5; ++i) spawn(write_whole_again_and_again(&unit, i, &count));
  unsigned torn = 0;
  unsigned reads = 0;
  while (count.running != 0) {
    const Reply reply = co_await unit.send_to_unit(cdb_10(0x28, 8, 16));
    torn += reply.data == filled(16 * 512, reply.in(0)) ? 0 : 1;
    ++reads;
    co_await home->sleep_for(std::chrono::microseconds(17));
  }
  CHECK(torn == 0);
  CHECK(reads >= 40);
  CHECK(count.successes == 250);
  CHECK(shelf.kept.blocks.empty());
  co_await unit.stop();
}

// Others elsewhere wait for room in the store.
Task<void> few_at_once(Executor* home) {
  const auto memory = *MemoryDevice::create(*home, {.byte_count = kBenchBlocks * 512});
  LateDevice late(*memory);
  Shelf shelf;
  ServedUnit unit(late);
  unit.unit.restore(shelf, {});
  co_await unit.start();
  std::vector<std::unique_ptr<FakeCommand>> commands;
  for (unsigned i = 0; i < 20; ++i) {
    commands.push_back(
        make_command(*unit.nexus, write_atomic(i * 8, 8), {.out = filled(4096, i), .tag = i + 1}));
    unit.router.execute(*commands.back());
  }
  for (const auto& each : commands) {
    co_await each->gone();
    CHECK(each->reply.good());
  }
  CHECK(shelf.most_blocks == scsi::AtomicWrites::kMostAtOnce);
  co_await unit.stop();
}

// Until the store has nothing of it, nobody writes there.
Task<void> keep_others_out(Bench& bench) {
  Shelf& shelf = bench.shelf;
  bench.unit.restore(shelf, {});
  bench.hung.hang_only(Operation::kWrite);
  const auto atomic = make_command(*bench.nexus, write_atomic(5, 2), {.out = filled(1024, 1)});
  bench.router.execute(*atomic);
  co_await bench.unit.home().sleep_for(std::chrono::milliseconds(5));
  CHECK(shelf.kept.blocks.size() == 1);
  shelf.fails = Error::kNoSpace;
  bench.hung.release();
  const auto plain =
      make_command(*bench.nexus, cdb_10(0x2A, 6, 1), {.out = filled(512, 2), .tag = 2});
  bench.router.execute(*plain);
  co_await bench.unit.home().sleep_for(std::chrono::seconds(10));
  CHECK_FALSE(atomic->answered);
  CHECK_FALSE(plain->answered);
  shelf.fails.reset();
  co_await atomic->gone();
  co_await plain->gone();
  CHECK(atomic->reply.good());
  CHECK(plain->reply.good());
  const Reply reply = co_await bench.send_to_unit(cdb_10(0x28, 5, 2));
  CHECK(reply.data == joined(filled(512, 1), filled(512, 2)));
}

TEST_CASE("WRITE ATOMIC writes at once", "[scsi][atomic]") { on_bench(write_whole); }
TEST_CASE("WRITE ATOMIC is undone at the next start", "[scsi][atomic]") { on_bench(put_back); }
TEST_CASE("WRITE ATOMIC before a unit is made smaller", "[scsi][atomic]") {
  on_bench(put_back_at_the_end);
}
TEST_CASE("WRITE ATOMIC on a device that fails", "[scsi][atomic]") { on_bench(failing_device); }
TEST_CASE("WRITE ATOMIC on a device without room", "[scsi][atomic]") { on_bench(no_room); }
TEST_CASE("WRITE ATOMIC that fails before others", "[scsi][atomic]") {
  on_bench(failing_before_others);
}
TEST_CASE("SANITIZE over torn blocks", "[scsi][atomic]") { on_bench(sanitize_torn_blocks); }
TEST_CASE("WRITE ATOMIC while the content is replaced", "[scsi][atomic]") { on_bench(new_content); }
TEST_CASE("Reads see all of a WRITE ATOMIC or nothing", "[scsi][atomic]") {
  run_in_world(1, [](Executor& home) { return read_whole(&home); });
}
TEST_CASE("A unit keeps few atomic writes at a time", "[scsi][atomic]") {
  run_in_world(1, [](Executor& home) { return few_at_once(&home); });
}
TEST_CASE("A WRITE ATOMIC keeps others out until it is forgotten", "[scsi][atomic]") {
  on_bench(keep_others_out);
}

TEST_CASE("COMPARE AND WRITE and ORWRITE of one block lose nothing", "[scsi][atomic]") {
  run_in_world(1, [](Executor& home) { return count_and_merge(&home); });
}

TEST_CASE("COMPARE AND WRITE behind a write that is given up is busy", "[scsi][atomic]") {
  on_bench(wait_for_a_plain_write);
}

TEST_CASE("COMPARE AND WRITE writes what compares", "[scsi][atomic]") {
  on_bench(compare_then_write);
}

TEST_CASE("ORWRITE merges", "[scsi][atomic]") { on_bench(merge); }

TEST_CASE("Eight initiators count one block up", "[scsi][atomic]") {
  run_in_world(1, [](Executor& home) { return count_together(&home); });
}

TEST_CASE("Plain writes get their turn", "[scsi][atomic]") {
  run_in_world(1, [](Executor& home) { return write_between(&home); });
}

TEST_CASE("A turn that hangs is over when it is aborted", "[scsi][atomic]") { on_bench(hang); }

}  // namespace
}  // namespace sandbay::testing::atomic_test
