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
