// Block commands beside READ and WRITE: VERIFY, WRITE AND VERIFY, WRITE SAME, UNMAP, GET LBA
// STATUS, caches, start and stop (SBC-3 clause 5).
#include "fake_transport.h"

namespace sandbay::testing {
namespace {

using scsi::Additional;
using scsi::SenseKey;
using scsi::Status;

Bytes pattern(std::size_t byte_count, unsigned seed) {
  Bytes bytes(byte_count);
  for (std::size_t i = 0; i < byte_count; ++i) {
    bytes[i] = static_cast<std::byte>((i * 5 + i / 512 + seed) & 0xFFU);
  }
  return bytes;
}

std::array<std::byte, 16> sized_cdb(unsigned opcode, std::uint64_t lba, unsigned length,
                                    unsigned flags) {
  if (opcode >= 0xA0) return cdb_12(opcode, static_cast<std::uint32_t>(lba), length, flags);
  if (opcode >= 0x80) return cdb_16(opcode, lba, length, flags);
  return cdb_10(opcode, static_cast<std::uint32_t>(lba), length, flags);
}

constexpr unsigned kVerifies[] = {0x2F, 0xAF, 0x8F};
constexpr unsigned kWriteVerifies[] = {0x2E, 0xAE, 0x8E};

Task<void> verify(Bench& bench) {
  const Bytes content = pattern(std::size_t{3000} * 512, 1);
  co_await bench.send_to_unit(cdb_10(0x2A, 0, 3000), {.out = content});
  for (const unsigned opcode : kVerifies) {
    for (const unsigned blocks : {1U, 255U, 3000U}) {
      Bytes out(content.begin(), content.begin() + blocks * 512);
      const Reply same =
          co_await bench.send_to_unit(sized_cdb(opcode, 0, blocks, 0x02), {.out = out});
      CHECK(same.good());
      CHECK(same.data_out_bytes == out.size());
      out[out.size() - 3] ^= std::byte{1};
      const Reply differs =
          co_await bench.send_to_unit(sized_cdb(opcode, 0, blocks, 0x02), {.out = out});
      CHECK(differs.failed_with(SenseKey::kMiscompare, Additional::kMiscompareDuringVerify));
      const Reply medium = co_await bench.send_to_unit(sized_cdb(opcode, 0, blocks, 0x00));
      CHECK(medium.good());
    }
    const Reply reserved = co_await bench.send_to_unit(sized_cdb(opcode, 0, 1, 0x04));
    CHECK(reserved.illegal(Additional::kInvalidFieldInCdb));
    const Reply protect = co_await bench.send_to_unit(sized_cdb(opcode, 0, 1, 0x22));
    CHECK(protect.illegal(Additional::kInvalidFieldInCdb));
    const Reply beyond = co_await bench.send_to_unit(sized_cdb(opcode, kBenchBlocks + 1, 0, 0x02));
    CHECK(beyond.illegal(Additional::kLbaOutOfRange));
    const Reply nothing = co_await bench.send_to_unit(sized_cdb(opcode, 0, 0, 0x02));
    CHECK(nothing.good());
    const Reply shorter =
        co_await bench.send_to_unit(sized_cdb(opcode, 0, 2, 0x02), {.out = filled(512, 0)});
    CHECK(shorter.illegal(Additional::kInvalidFieldInInformationUnit));
  }
  for (const SeenRequest& seen : bench.device.seen()) {
    if (seen.operation == Operation::kRead) CHECK(seen.force_unit_access);
  }
}

Task<void> verify_one_block(Bench& bench) {
  const Bytes block = pattern(512, 4);
  co_await bench.send_to_unit(cdb_16(0x93, 0, 2500), {.out = block});
  for (const unsigned opcode : kVerifies) {
    const Reply same =
        co_await bench.send_to_unit(sized_cdb(opcode, 0, 2500, 0x06), {.out = block});
    CHECK(same.good());
    CHECK(same.data_out_bytes == 512);
    const Reply differs =
        co_await bench.send_to_unit(sized_cdb(opcode, 0, 2501, 0x06), {.out = block});
    CHECK(differs.failed_with(SenseKey::kMiscompare, Additional::kMiscompareDuringVerify));
  }
}

Task<void> verify_medium_error(Bench& bench) {
  bench.faulty.fail(
      {.operation = Operation::kRead, .extent = {9, 1}, .error = Error::kMediumError});
  const Reply reply = co_await bench.send_to_unit(cdb_10(0x2F, 0, 16));
  CHECK(reply.failed_with(SenseKey::kMediumError, Additional::kUnrecoveredReadError));
  CHECK(reply.information() == 9U);
}

Task<void> write_and_verify(Bench& bench) {
  for (const unsigned opcode : kWriteVerifies) {
    for (const unsigned flags : {0x00U, 0x02U, 0x10U}) {
      for (const unsigned blocks : {1U, 2100U}) {
        const Bytes content = pattern(blocks * 512, opcode + flags);
        const Reply written =
            co_await bench.send_to_unit(sized_cdb(opcode, 5, blocks, flags), {.out = content});
        CHECK(written.good());
        CHECK(written.data_out_bytes == content.size());
        const Reply read = co_await bench.send_to_unit(cdb_10(0x28, 5, blocks));
        CHECK((read.data == content));
      }
    }
    for (const unsigned flags : {0x04U, 0x06U}) {
      const Reply reserved =
          co_await bench.send_to_unit(sized_cdb(opcode, 0, 1, flags), {.out = filled(512, 0)});
      CHECK(reserved.illegal(Additional::kInvalidFieldInCdb));
    }
    const Reply beyond =
        co_await bench.send_to_unit(sized_cdb(opcode, kBenchBlocks, 1, 0), {.out = filled(512, 0)});
    CHECK(beyond.illegal(Additional::kLbaOutOfRange));
  }
  for (const SeenRequest& seen : bench.device.seen()) {
    if (seen.operation == Operation::kWrite) CHECK(seen.force_unit_access);
  }
}

Task<void> write_same(Bench& bench) {
  unsigned seed = 0;
  for (const unsigned opcode : {0x41U, 0x93U}) {
    for (const unsigned blocks : {1U, 7U, 256U, 5000U}) {
      const Bytes before = pattern(std::size_t{5002} * 512, ++seed);
      co_await bench.send_to_unit(cdb_16(0x8A, 0, 5002), {.out = before});
      const Bytes block = blocks == 7 ? filled(512, 0) : pattern(512, ++seed);
      const Reply reply =
          co_await bench.send_to_unit(sized_cdb(opcode, 1, blocks, 0), {.out = block});
      CHECK(reply.good());
      CHECK(reply.data_out_bytes == 512);
      Bytes expected = before;
      for (unsigned i = 0; i < blocks; ++i) {
        std::ranges::copy(block, expected.begin() + (1 + i) * 512);
      }
      const Reply after = co_await bench.send_to_unit(cdb_16(0x88, 0, 5002));
      CHECK((after.data == expected));
    }
  }
  const Reply no_data = co_await bench.send_to_unit(cdb_16(0x93, 10, 100, 0x01));
  CHECK(no_data.good());
  CHECK(no_data.data_out_bytes == 0);
  const Reply zeros = co_await bench.send_to_unit(cdb_10(0x28, 10, 100));
  CHECK((zeros.data == filled(std::size_t{100} * 512, 0)));
}

Task<void> write_same_to_the_end(Bench& bench) {
  for (const unsigned opcode : {0x41U, 0x93U}) {
    for (const unsigned flags : {0x00U, 0x08U}) {
      const Bytes content = filled(std::size_t{64} * 512, 0xFF);
      co_await bench.send_to_unit(cdb_10(0x2A, kBenchBlocks - 64, 64), {.out = content});
      const Reply reply = co_await bench.send_to_unit(
          sized_cdb(opcode, kBenchBlocks - 63, 0, flags), {.out = filled(512, flags)});
      CHECK(reply.good());
      const Reply read = co_await bench.send_to_unit(cdb_10(0x28, kBenchBlocks - 64, 64));
      Bytes expected = content;
      std::fill(expected.begin() + 512, expected.end(), std::byte{0});
      CHECK((read.data == expected));
    }
  }
}

Task<void> write_same_refusals(Bench& bench) {
  for (const unsigned opcode : {0x41U, 0x93U}) {
    for (const std::size_t sent : {std::size_t{0}, std::size_t{256}, std::size_t{1024}}) {
      const Reply reply =
          co_await bench.send_to_unit(sized_cdb(opcode, 0, 1, 0x08), {.out = filled(sent, 0)});
      CHECK(reply.status == Status::kCheckCondition);
      CHECK(reply.key() == SenseKey::kIllegalRequest);
    }
    for (const unsigned flags : {0x10U, 0x20U}) {  // ANCHOR alone, WRPROTECT
      const Reply reply =
          co_await bench.send_to_unit(sized_cdb(opcode, 0, 1, flags), {.out = filled(512, 0)});
      CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
    }
    const Reply too_many =
        co_await bench.send_to_unit(sized_cdb(opcode, 0, 101, 0), {.out = filled(512, 0)});
    CHECK(too_many.illegal(Additional::kInvalidFieldInCdb));
    const Reply whole =
        co_await bench.send_to_unit(sized_cdb(opcode, 0, 0, 0), {.out = filled(512, 0)});
    CHECK(whole.illegal(Additional::kInvalidFieldInCdb));
    const Reply beyond = co_await bench.send_to_unit(sized_cdb(opcode, kBenchBlocks + 1, 0, 0),
                                                     {.out = filled(512, 0)});
    CHECK(beyond.illegal(Additional::kLbaOutOfRange));
  }
  CHECK(bench.device.seen().empty());
}

struct Run {
  std::uint64_t lba;
  std::uint32_t blocks;
};

Bytes unmap_list(const std::vector<Run>& runs) {
  Bytes list = filled(8 + runs.size() * 16, 0);
  const std::span<std::byte> target(list);
  put_big_endian(target, 0, static_cast<std::uint16_t>(list.size() - 2));
  put_big_endian(target, 2, static_cast<std::uint16_t>(runs.size() * 16));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    put_big_endian(target, 8 + i * 16, runs[i].lba);
    put_big_endian(target, 16 + i * 16, runs[i].blocks);
  }
  return list;
}

Task<Reply> unmap(Bench& bench, std::vector<Run> runs) {
  const Bytes list = unmap_list(runs);
  return bench.send_to_unit(cdb_10(0x42, 0, static_cast<unsigned>(list.size())), {.out = list});
}

Task<void> unmapping(Bench& bench) {
  const Bytes content = filled(std::size_t{256} * 512, 'a');
  co_await bench.send_to_unit(cdb_10(0x2A, 0, 256), {.out = content});
  const Reply reply = co_await unmap(bench, {{0, 8}, {16, 1}, {100, 50}, {30, 0}});
  CHECK(reply.good());
  CHECK(reply.data_out_bytes == 8 + 4 * 16);
  const Reply read = co_await bench.send_to_unit(cdb_10(0x28, 0, 256));
  Bytes expected = content;
  std::fill_n(expected.begin(), 8 * 512, std::byte{0});
  std::fill_n(expected.begin() + 16 * 512, 512, std::byte{0});
  std::fill_n(expected.begin() + 100 * 512, 50 * 512, std::byte{0});
  CHECK((read.data == expected));
  for (const Run& harmless : {Run{kBenchBlocks, 0}, Run{0, 0}, Run{5, 0}}) {
    const Reply nothing = co_await unmap(bench, {harmless});
    CHECK(nothing.good());
  }
  const Reply empty_list = co_await unmap(bench, {});
  CHECK(empty_list.good());
  const Reply no_list = co_await bench.send_to_unit(cdb_10(0x42, 0, 0));
  CHECK(no_list.good());
}

Task<void> unmap_refusals(Bench& bench) {
  const Reply beyond = co_await unmap(bench, {{0, 8}, {kBenchBlocks - 1, 2}});
  CHECK(beyond.illegal(Additional::kLbaOutOfRange));
  const Reply far = co_await unmap(bench, {{~std::uint64_t{0}, 2}});
  CHECK(far.illegal(Additional::kLbaOutOfRange));
  const Reply too_many_blocks = co_await unmap(bench, {{0, 60}, {100, 41}});
  CHECK(too_many_blocks.illegal(Additional::kInvalidFieldInParameterList));
  const Reply too_many_runs = co_await unmap(bench, std::vector<Run>(5, Run{0, 1}));
  CHECK(too_many_runs.illegal(Additional::kInvalidFieldInParameterList));
  const Reply shorter = co_await bench.send_to_unit(cdb_10(0x42, 0, 7), {.out = filled(7, 0)});
  CHECK(shorter.illegal(Additional::kParameterListLengthError));
  Bytes cut = unmap_list({{0, 1}, {1, 1}});
  cut.resize(30);
  const Reply torn = co_await bench.send_to_unit(cdb_10(0x42, 0, 30), {.out = cut});
  CHECK(torn.illegal(Additional::kParameterListLengthError));
  CHECK(bench.device.seen().empty());
}

Task<void> lba_status(Bench& bench) {
  co_await bench.send_to_unit(cdb_10(0x2A, 0, 64), {.out = filled(64 * 512, 'a')});
  co_await unmap(bench, {{16, 8}});
  const Reply reply = co_await bench.send_to_unit(cdb_16(0x9E, 3, 4096, 0x12));
  CHECK(reply.good());
  CHECK(big_endian<std::uint32_t>(reply.data, 0) + 4 == reply.data.size());
  REQUIRE(reply.data.size() == 8 + 4 * 16);
  const std::vector<std::array<std::uint64_t, 3>> expected = {
      {3, 13, 0}, {16, 8, 1}, {24, 40, 0}, {64, kBenchBlocks - 64, 1}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(big_endian<std::uint64_t>(reply.data, 8 + i * 16) == expected[i][0]);
    CHECK(big_endian<std::uint32_t>(reply.data, 16 + i * 16) == expected[i][1]);
    CHECK(reply.in(20 + i * 16) == expected[i][2]);
  }
  const Reply one = co_await bench.send_to_unit(cdb_16(0x9E, 16, 24, 0x12));
  CHECK(one.data.size() == 24);
  CHECK(one.in(20) == 1);
  for (const std::uint64_t lba : {kBenchBlocks, kBenchBlocks + 1, ~std::uint64_t{0}}) {
    const Reply beyond = co_await bench.send_to_unit(cdb_16(0x9E, lba, 24, 0x12));
    CHECK(beyond.illegal(Additional::kLbaOutOfRange));
  }
}

// Anchored blocks read as they should and are mapped.
Task<void> anchoring(Bench& bench) {
  const auto lacks_room = [](const Reply& status) { return status.in(20) != 0; };
  for (const unsigned opcode : {0x41U, 0x93U}) {
    co_await unmap(bench, {{0, 100}});
    Reply reply =
        co_await bench.send_to_unit(sized_cdb(opcode, 8, 16, 0x18), {.out = filled(512, 0)});
    CHECK(reply.good());
    CHECK(bench.device.seen().back().operation == Operation::kWrite);
    reply = co_await bench.send_to_unit(cdb_16(0x9E, 8, 24, 0x12));
    CHECK_FALSE(lacks_room(reply));
    CHECK(big_endian<std::uint32_t>(reply.data, 16) == 16);
    reply = co_await bench.send_to_unit(sized_cdb(opcode, 8, 2, 0x18), {.out = filled(512, 7)});
    CHECK(reply.good());
    reply = co_await bench.send_to_unit(cdb_10(0x28, 8, 2));
    CHECK(reply.data == filled(1024, 7));
  }
  Reply reply = co_await bench.send_to_unit(sized_cdb(0x93, 8, 16, 0x19));  // NDOB
  CHECK(reply.good());
  reply = co_await bench.send_to_unit(cdb_10(0x28, 8, 2));
  CHECK(reply.data == filled(1024, 0));
  const Bytes list = unmap_list({{4, 2}, {50, 1}});
  reply = co_await bench.send_to_unit(cdb_10(0x42, 0, static_cast<unsigned>(list.size()), 0x01),
                                      {.out = list});
  CHECK(reply.good());
  for (const unsigned lba : {4U, 50U}) {
    reply = co_await bench.send_to_unit(cdb_16(0x9E, lba, 24, 0x12));
    CHECK_FALSE(lacks_room(reply));
    reply = co_await bench.send_to_unit(cdb_10(0x28, lba, 1));
    CHECK(reply.data == filled(512, 0));
  }
}

Task<void> no_anchors(Bench& bench) {
  const Reply reply =
      co_await bench.send_to_unit(sized_cdb(0x93, 0, 1, 0x18), {.out = filled(512, 0)});
  CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
}

Task<void> defects(Bench& bench) {
  Reply reply = co_await bench.send_to_unit(cdb_of({0x37, 0, 0x1D, 0, 0, 0, 0, 0, 255}));
  CHECK(reply.good());
  CHECK(reply.data == Bytes{std::byte{0}, std::byte{0x1D}, std::byte{0}, std::byte{0}});
  reply = co_await bench.send_to_unit(cdb_of({0xB7, 0x0B, 0, 0, 0, 9, 0, 0, 1, 0}));
  CHECK(reply.good());
  REQUIRE(reply.data.size() == 8);
  CHECK(reply.in(1) == 0x0B);
  CHECK(big_endian<std::uint32_t>(reply.data, 4) == 0);
  reply = co_await bench.send_to_unit(cdb_of({0x37, 0, 0x10, 0, 0, 0, 0, 0, 2}));
  CHECK(reply.data.size() == 2);
  for (const unsigned format : {6U, 7U}) {
    reply = co_await bench.send_to_unit(cdb_of({0x37, 0, format, 0, 0, 0, 0, 0, 4}));
    CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
    reply = co_await bench.send_to_unit(cdb_of({0xB7, format, 0, 0, 0, 0, 0, 0, 0, 8}));
    CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  }
}

Task<void> synchronize(Bench& bench) {
  for (const auto& cdb : {cdb_10(0x35, 0, 0), cdb_10(0x35, 5, 10), cdb_16(0x91, 0, 0),
                          cdb_16(0x91, 5, 10), cdb_10(0x35, 0, 0, 0x06)}) {
    const Reply reply = co_await bench.send_to_unit(cdb);
    CHECK(reply.good());
  }
  CHECK(bench.device.count(Operation::kFlush) == 5);
  const Reply beyond = co_await bench.send_to_unit(cdb_10(0x35, kBenchBlocks, 1));
  CHECK(beyond.illegal(Additional::kLbaOutOfRange));
  bench.faulty.fail({.operation = Operation::kFlush, .error = Error::kHardware, .times = 2});
  const Reply failed = co_await bench.send_to_unit(cdb_10(0x35, 0, 0));
  CHECK(failed.failed_with(SenseKey::kHardwareError, Additional::kInternalTargetFailure));
  // IMMED: the status comes first, the error afterwards, deferred.
  const Reply immediate = co_await bench.send_to_unit(cdb_10(0x35, 0, 0, 0x02));
  CHECK(immediate.good());
  const Reply deferred = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(deferred.status == Status::kCheckCondition);
  CHECK((deferred.byte(0) & 0x7FU) == 0x71);
  const Reply after = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(after.good());
}

Task<void> immediate_flush_does_not_wait(Bench& bench) {
  bench.hung.hang_only(Operation::kFlush);
  const Reply reply = co_await bench.send_to_unit(cdb_10(0x35, 0, 0, 0x02));
  CHECK(reply.good());
  CHECK(bench.hung.held() == 1);
}

// However many there are, one runs and one waits; and a reset does away with them.
Task<void> many_immediate_flushes(Bench& bench) {
  bench.hung.hang_only(Operation::kFlush);
  bench.hung.obey_cancellation(true);
  for (unsigned i = 0; i < 1000; ++i) {
    const Reply reply = co_await bench.send_to_unit(cdb_10(0x35, i, 10, 0x02));
    CHECK(reply.good());
  }
  CHECK(bench.hung.held() == 1);
  CHECK(bench.device.count(Operation::kFlush) == 1);
  bench.hung.release_held();
  co_await bench.unit.home().sleep_for(std::chrono::milliseconds(1));
  CHECK(bench.hung.held() == 1);
  REQUIRE(bench.device.count(Operation::kFlush) == 2);
  const Extent merged = bench.device.seen().back().extent;
  CHECK(merged.first == 1);
  CHECK(merged.end() == 1009);
  co_await bench.send_to_unit(cdb_10(0x35, 0, 0, 0x02));
  const auto done = co_await bench.manage(scsi::TaskManagementFunction::kLogicalUnitReset);
  CHECK(done == scsi::TaskManagementResponse::kComplete);
  co_await bench.unit.home().sleep_for(std::chrono::milliseconds(1));
  CHECK(bench.hung.held() == 0);
  CHECK(bench.device.count(Operation::kFlush) == 2);
  const Reply reset = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(reset.key() == SenseKey::kUnitAttention);
  const Reply after = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(after.good());
}

Task<void> many_prefetches(Bench& bench) {
  bench.hung.hang_only(Operation::kAdvise);
  for (unsigned i = 0; i < 1000; ++i) {
    const Reply reply = co_await bench.send_to_unit(cdb_10(0x34, i, 1, 0x02));
    CHECK(reply.good());
  }
  CHECK(bench.hung.held() > 0);
  CHECK(bench.hung.held() < 16);
}

// Nobody knows whose writes a failed flush was about: every initiator hears of it, once.
Task<void> deferred_error_for_all(Bench& bench) {
  const auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x1");
  bench.faulty.fail({.operation = Operation::kFlush, .error = Error::kHardware, .times = 1});
  const Reply immediate = co_await bench.send_to_unit(cdb_10(0x35, 0, 0, 0x02));
  CHECK(immediate.good());
  for (scsi::Nexus* const nexus : {other.get(), bench.nexus.get()}) {
    const Reply deferred = co_await send(bench.router, *nexus, kTestUnitReady);
    CHECK(deferred.status == Status::kCheckCondition);
    CHECK((deferred.byte(0) & 0x7FU) == 0x71);
    const Reply after = co_await send(bench.router, *nexus, kTestUnitReady);
    CHECK(after.good());
  }
  co_await bench.router.detach(*other);
}

// A device says once that it has lost what was acknowledged; each host that wrote hears it.
Task<void> every_writer_hears_of_a_failed_flush(Bench& bench) {
  const auto sync = cdb_10(0x35, 0, 0);
  const auto flush = [&](scsi::Nexus& nexus) { return send(bench.router, nexus, sync); };
  const auto log_in = [&](std::string port) { return bench.login(std::move(port)); };
  const auto writer = co_await log_in("iqn.2026-11.org.example:two,i,0x1");
  const auto path = co_await log_in("iqn.2026-11.org.example:two,i,0x2");
  const auto reader = co_await log_in("iqn.2026-11.org.example:three,i,0x1");
  auto leaver = co_await log_in("iqn.2026-11.org.example:four,i,0x1");
  const auto settled = co_await log_in("iqn.2026-11.org.example:five,i,0x1");
  const std::vector<std::byte> block(512, std::byte{7});
  const auto write = [&](scsi::Nexus& nexus) {
    return send(bench.router, nexus, cdb_10(0x2A, 0, 1), {.out = block});
  };
  for (scsi::Nexus* const each : {settled.get(), writer.get(), leaver.get()}) {
    const Reply written = co_await write(*each);
    CHECK(written.good());
    if (each != settled.get()) continue;
    const Reply flushed = co_await flush(*each);
    CHECK(flushed.good());
  }
  co_await bench.router.detach(*leaver);
  leaver = co_await log_in("iqn.2026-11.org.example:four,i,0x3");

  bench.faulty.fail({.operation = Operation::kFlush, .error = Error::kHardware, .times = 1});
  const Reply first = co_await flush(*bench.nexus);
  CHECK(first.failed_with(SenseKey::kHardwareError, Additional::kInternalTargetFailure));
  for (scsi::Nexus* const each : {path.get(), leaver.get()}) {
    const Reply told = co_await flush(*each);
    CHECK(told.failed_with(SenseKey::kHardwareError, Additional::kInternalTargetFailure));
  }
  // Once a host, not once a path; who wrote nothing since the last flush lost nothing.
  for (scsi::Nexus* const each :
       {writer.get(), path.get(), leaver.get(), reader.get(), settled.get(), bench.nexus.get()}) {
    const Reply later = co_await flush(*each);
    CHECK(later.good());
  }
  for (scsi::Nexus* const each :
       {writer.get(), path.get(), reader.get(), leaver.get(), settled.get()}) {
    co_await bench.router.detach(*each);
  }
}

Task<void> flush_beside(Bench* bench, scsi::Nexus* nexus, std::vector<Reply>* replies) {
  const Reply reply = co_await send(bench->router, *nexus, cdb_10(0x35, 0, 0));
  replies->push_back(reply);
}

// The device answers one of two flushes that it has of two hosts.
Task<void> both_hear_of_a_failed_flush(Bench& bench) {
  const auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x1");
  const std::vector<std::byte> block(512, std::byte{7});
  for (scsi::Nexus* const each : {other.get(), bench.nexus.get()}) {
    const Reply written = co_await send(bench.router, *each, cdb_10(0x2A, 0, 1), {.out = block});
    CHECK(written.good());
  }
  bench.hung.hang_only(Operation::kFlush);
  bench.faulty.fail({.operation = Operation::kFlush, .error = Error::kHardware, .times = 1});
  std::vector<Reply> replies;
  spawn(flush_beside(&bench, other.get(), &replies));
  spawn(flush_beside(&bench, bench.nexus.get(), &replies));
  co_await bench.unit.home().sleep_for(std::chrono::milliseconds(1));
  CHECK(bench.hung.held() == 2);
  bench.hung.release();
  co_await bench.unit.home().sleep_for(std::chrono::milliseconds(1));
  REQUIRE(replies.size() == 2);
  for (const Reply& reply : replies) {
    CHECK(reply.failed_with(SenseKey::kHardwareError, Additional::kInternalTargetFailure));
  }
  co_await bench.router.detach(*other);
}

Task<void> prefetch(Bench& bench) {
  for (const auto& cdb : {cdb_10(0x34, 0, 0), cdb_10(0x34, 0, 256), cdb_16(0x90, 5, 10),
                          cdb_10(0x34, 0, 1, 0x02), cdb_16(0x90, 0, 0, 0x02)}) {
    const Reply reply = co_await bench.send_to_unit(cdb);
    CHECK(reply.good());
  }
  auto grouped = cdb_10(0x34, 0, 1);
  grouped[6] = std::byte{3};
  const Reply group = co_await bench.send_to_unit(grouped);
  CHECK(group.good());
  // Two are for all 4 MiB there are.
  co_await bench.unit.home().sleep_for(std::chrono::seconds(1));
  CHECK(bench.device.count(Operation::kAdvise) == 12);
  for (const SeenRequest& seen : bench.device.seen()) {
    if (seen.operation == Operation::kAdvise) CHECK(seen.extent.block_count <= 2048);
  }
  const Reply beyond = co_await bench.send_to_unit(cdb_10(0x34, kBenchBlocks + 1, 0));
  CHECK(beyond.illegal(Additional::kLbaOutOfRange));
}

// However much is named, a device sees it in pieces, no more than so many, and none after an abort.
Task<void> endless_prefetch(Bench& bench) {
  const Reply all = co_await bench.send_to_unit(cdb_16(0x90, 1000, 0));
  CHECK(all.good());
  CHECK(bench.device.count(Operation::kAdvise) == 64);
  CHECK(bench.device.seen().front().extent.first == 1000);
  bench.device.clear();

  bench.hung.hang_only(Operation::kAdvise);
  const auto command = make_command(*bench.nexus, cdb_16(0x90, 0, 0), {.tag = 5});
  bench.router.execute(*command);
  const Reply immediate = co_await bench.send_to_unit(cdb_16(0x90, 0, 0, 0x02));
  CHECK(immediate.good());
  CHECK(bench.device.count(Operation::kAdvise) == 2);
  const auto reset = co_await bench.manage(scsi::TaskManagementFunction::kLogicalUnitReset);
  CHECK(reset == scsi::TaskManagementResponse::kComplete);
  bench.hung.release();
  co_await command->gone();
  co_await bench.unit.home().sleep_for(std::chrono::seconds(1));
  CHECK(bench.device.count(Operation::kAdvise) == 2);
}

// A VERIFY of the whole medium reads it piece by piece, each as its turn comes, and ends when it is
// aborted.
Task<void> endless_verify(Bench& bench) {
  const std::uint64_t blocks = bench.memory->geometry().block_count;
  for (const bool reset : {false, true}) {
    bench.device.clear();
    const auto length = static_cast<std::uint32_t>(blocks);
    const auto command = make_command(*bench.nexus, cdb_16(0x8F, 0, length), {.tag = 7});
    const std::size_t before = bench.unit.home().buffers().used_bytes();
    bench.router.execute(*command);
    while (bench.device.seen().size() < 20) co_await bench.unit.home().yield();
    CHECK_FALSE(command->answered);
    CHECK(bench.unit.home().buffers().used_bytes() <= before + scsi::kTransferPieceBytes);
    const auto done = co_await bench.manage(reset ? scsi::TaskManagementFunction::kLogicalUnitReset
                                                  : scsi::TaskManagementFunction::kAbortTask,
                                            7);
    CHECK(done == scsi::TaskManagementResponse::kComplete);
    co_await command->gone();
    CHECK(command->reply.silent);
    CHECK(bench.device.seen().size() < 30);
    for (const SeenRequest& seen : bench.device.seen()) CHECK(seen.extent.block_count <= 2048);
  }
}

// The data of a comparing VERIFY and of WRITE AND VERIFY are bounded like those of a write.
Task<void> long_comparison(Bench& bench) {
  for (const unsigned opcode : {0x8FU, 0x8EU}) {
    const Reply over =
        co_await bench.send_to_unit(cdb_16(opcode, 0, 65537, 0x02), {.out_length = 65537U * 512});
    CHECK(over.illegal(Additional::kInvalidFieldInCdb));
    const std::size_t before = bench.unit.home().buffers().used_bytes();
    const auto command = make_command(*bench.nexus, cdb_16(opcode, 0, 65536, 0x02),
                                      {.out_length = 65536U * 512, .tag = 9});
    bench.router.execute(*command);
    while (bench.device.seen().size() < 9) co_await bench.unit.home().yield();
    CHECK(bench.unit.home().buffers().used_bytes() <= before + 3 * scsi::kTransferPieceBytes);
    const auto done = co_await bench.manage(scsi::TaskManagementFunction::kAbortTask, 9);
    CHECK(done == scsi::TaskManagementResponse::kComplete);
    co_await command->gone();
    CHECK(bench.device.seen().size() < 16);
    bench.device.clear();
  }
}

std::array<std::byte, 16> start_stop(unsigned flags) { return cdb_of({0x1B, 0, 0, 0, flags}); }

Task<void> stop_and_start(Bench& bench) {
  const Reply stopped = co_await bench.send_to_unit(start_stop(0));
  CHECK(stopped.good());
  CHECK(bench.device.count(Operation::kFlush) == 1);
  for (const auto& cdb : {kTestUnitReady, cdb_10(0x28, 0, 1), cdb_10(0x35, 0, 0)}) {
    const Reply reply = co_await bench.send_to_unit(cdb);
    CHECK(reply.failed_with(SenseKey::kNotReady, Additional::kInitializingCommandRequired));
  }
  const Reply described = co_await bench.send_to_unit(inquiry(96));
  CHECK(described.good());
  const Reply sense = co_await bench.send_to_unit(cdb_of({0x03, 0, 0, 0, 18}));
  CHECK(big_endian<std::uint16_t>(sense.data, 12) == 0x0402);
  const Reply started = co_await bench.send_to_unit(start_stop(1));
  CHECK(started.good());
  const Reply ready = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(ready.good());
  const Reply eject = co_await bench.send_to_unit(start_stop(2));
  CHECK(eject.illegal(Additional::kInvalidFieldInCdb));
  const Reply prevent = co_await bench.send_to_unit(cdb_of({0x1E, 0, 0, 0, 1}));
  CHECK(prevent.good());
  for (unsigned condition = 1; condition < 16; ++condition) {
    const Reply power = co_await bench.send_to_unit(start_stop(condition << 4U));
    CHECK(power.good());
  }
  const Reply still = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(still.good());
}

Task<void> removable(Bench& bench) {
  const auto other = co_await bench.login("iqn.2026-11.org.example:two,i,0x1");
  const Reply described = co_await bench.send_to_unit(inquiry(96));
  CHECK((described.in(1) & 0x80U) != 0);
  co_await bench.send_to_unit(cdb_of({0x1E, 0, 0, 0, 1}));
  for (scsi::Nexus* nexus : {bench.nexus.get(), other.get()}) {
    const Reply prevented = co_await send(bench.router, *nexus, start_stop(2));
    CHECK(prevented.illegal(Additional::kMediumRemovalPrevented));
  }
  co_await bench.send_to_unit(cdb_of({0x1E, 0, 0, 0, 0}));
  const Reply ejected = co_await bench.send_to_unit(start_stop(2));
  CHECK(ejected.good());
  for (const auto& cdb : {kTestUnitReady, cdb_10(0x28, 0, 1), cdb_of({0x25}), cdb_10(0x35, 0, 1),
                          cdb_16(0x9E, 0, 24, 0x12), cdb_10(0x34, 0, 1)}) {
    const Reply reply = co_await bench.send_to_unit(cdb);
    CHECK(reply.failed_with(SenseKey::kNotReady, Additional::kMediumNotPresent));
  }
  const Reply loaded = co_await bench.send_to_unit(start_stop(3));
  CHECK(loaded.good());
  const Reply own = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(own.good());
  const Reply told = co_await send(bench.router, *other, kTestUnitReady);
  CHECK(told.attention(Additional::kMediumMayHaveChanged));
  co_await bench.send_to_unit(cdb_of({0x1E, 0, 0, 0, 1}));
  co_await bench.manage(scsi::TaskManagementFunction::kLogicalUnitReset);
  co_await bench.send_to_unit(kTestUnitReady);
  const Reply free = co_await bench.send_to_unit(start_stop(2));
  CHECK(free.good());
  co_await bench.router.detach(*other);
}

Task<void> unaligned_unmap(Bench& bench) {
  co_await bench.send_to_unit(cdb_10(0x2A, 0, 64), {.out = filled(64 * 512, 'v')});
  for (const Run& run : {Run{1, 1}, Run{3, 9}, Run{15, 2}, Run{33, 7}}) {
    const Reply reply = co_await unmap(bench, {run});
    CHECK(reply.good());
    const Reply read =
        co_await bench.send_to_unit(cdb_10(0x28, static_cast<std::uint32_t>(run.lba), run.blocks));
    CHECK(read.data == filled(run.blocks * 512, 0));
    const Reply before =
        co_await bench.send_to_unit(cdb_10(0x28, static_cast<std::uint32_t>(run.lba) - 1, 1));
    CHECK(before.data == filled(512, 'v'));
  }
}

Task<void> resize(Bench& bench) {
  const Error grown = bench.memory->grow(2 * kBenchBlocks * 512);
  CHECK(grown == Error::kNone);
  bench.unit.capacity_changed();
  const Reply told = co_await bench.send_to_unit(kTestUnitReady);
  CHECK(told.attention(Additional::kCapacityDataHasChanged));
  const Reply capacity = co_await bench.send_to_unit(cdb_16(0x9E, 0, 32, 0x10));
  CHECK(big_endian<std::uint64_t>(capacity.data, 0) == 2 * kBenchBlocks - 1);
  const Reply written =
      co_await bench.send_to_unit(cdb_10(0x2A, 2 * kBenchBlocks - 1, 1), {.out = filled(512, 1)});
  CHECK(written.good());
}

// A device that takes only short requests.
class ShortRequests final : public Layer {
 public:
  explicit ShortRequests(BlockDevice& below) : Layer(below), geometry_(below.geometry()) {
    geometry_.maximum_io_blocks = 100;
  }
  const Geometry& geometry() const noexcept override { return geometry_; }
  Task<Completion> submit(Request request) override {
    CHECK((request.operation == Operation::kFlush || request.operation == Operation::kAdvise ||
           request.extent.block_count <= 100));
    return Layer::submit(std::move(request));
  }

 private:
  Geometry geometry_;
};

Task<void> short_requests(Bench& bench) {
  ShortRequests narrow(bench.device);
  scsi::LogicalUnit unit(narrow, {});
  co_await bench.router.add(1, &unit);
  const std::uint64_t lun = scsi::encode_lun(1);
  co_await bench.send_to_unit(kTestUnitReady, {.lun = lun});
  const Bytes content = pattern(std::size_t{950} * 512, 3);
  const Reply written =
      co_await bench.send_to_unit(cdb_10(0x2A, 7, 950), {.out = content, .lun = lun});
  CHECK(written.good());
  const Reply read = co_await bench.send_to_unit(cdb_10(0x28, 7, 950), {.lun = lun});
  CHECK((read.data == content));
  const Reply same =
      co_await bench.send_to_unit(cdb_16(0x93, 7, 950, 0x08), {.out = filled(512, 0), .lun = lun});
  CHECK(same.good());
  const Reply verified =
      co_await bench.send_to_unit(cdb_10(0x2F, 7, 950, 0x06), {.out = filled(512, 0), .lun = lun});
  CHECK(verified.good());
  co_await bench.router.remove(1);
  const bool closed = co_await unit.close(unit.home().now());
  CHECK(closed);
}

Task<void> counting(Bench& bench) {
  co_await bench.send_to_unit(cdb_10(0x28, 0, 8));
  co_await bench.send_to_unit(cdb_10(0x2A, 0, 8), {.out = filled(4096, 1)});
  co_await bench.send_to_unit(cdb_10(0x28, kBenchBlocks, 1));
  const scsi::LogicalUnitCounters counters = bench.unit.counters();
  const scsi::CommandCounters& reads = counters.of(scsi::CommandKind::kRead);
  CHECK(reads.commands == 2);
  CHECK(reads.errors == 1);
  CHECK(reads.bytes == 4096);
  CHECK(counters.of(scsi::CommandKind::kWrite).bytes == 4096);
  std::uint64_t measured = 0;
  for (const std::uint64_t count : reads.latency.count) measured += count;
  CHECK(measured == 2);
  CHECK(counters.in_flight == 0);
}

}  // namespace

TEST_CASE("VERIFY: BYTCHK 0 and 1", "[scsi]") { on_bench(verify); }
TEST_CASE("Windows: VERIFY(10) while formatting", "[scsi]") { on_bench(verify); }
TEST_CASE("VERIFY: BYTCHK 3 compares one block with all", "[scsi]") { on_bench(verify_one_block); }
TEST_CASE("VERIFY: a medium error names its block", "[scsi]") { on_bench(verify_medium_error); }
TEST_CASE("WRITE AND VERIFY", "[scsi]") { on_bench(write_and_verify); }
TEST_CASE("WRITE SAME: data and NDOB", "[scsi]") { on_bench(write_same); }
TEST_CASE("WRITE SAME: no blocks means up to the end", "[scsi]") {
  on_bench(write_same_to_the_end);
}
TEST_CASE("WRITE SAME: refusals", "[scsi]") {
  on_bench(write_same_refusals, {.maximum_write_same_blocks = 100});
}
TEST_CASE("UNMAP: the blocks read as zeros", "[scsi]") { on_bench(unmapping); }
TEST_CASE("VMware VMFS5: UNMAP without regard to alignment", "[scsi]") {
  on_bench(unaligned_unmap);
}
TEST_CASE("Resize an exported LUN online", "[scsi]") { on_bench(resize); }
TEST_CASE("Requests keep to what the device takes at once", "[scsi]") { on_bench(short_requests); }
TEST_CASE("UNMAP: refusals change nothing", "[scsi]") {
  on_bench(unmap_refusals, {.maximum_unmap_blocks = 100, .maximum_unmap_descriptors = 4});
}
TEST_CASE("GET LBA STATUS: runs of mapped and deallocated blocks", "[scsi]") {
  on_bench(lba_status);
}
TEST_CASE("WRITE SAME and UNMAP: ANCHOR keeps the room", "[scsi]") { on_bench(anchoring); }
TEST_CASE("WRITE SAME: a full unit has no ANCHOR", "[scsi]") {
  on_bench(no_anchors, {.thin = false});
}
TEST_CASE("READ DEFECT DATA: empty lists", "[scsi]") { on_bench(defects); }
TEST_CASE("SYNCHRONIZE CACHE: flushes; IMMED defers errors", "[scsi]") { on_bench(synchronize); }
TEST_CASE("SYNCHRONIZE CACHE: IMMED does not wait", "[scsi]") {
  on_bench(immediate_flush_does_not_wait);
}
TEST_CASE("SYNCHRONIZE CACHE: any number with IMMED is one flush and another", "[scsi]") {
  on_bench(many_immediate_flushes);
}
TEST_CASE("PRE-FETCH: with IMMED, what is too much is forgone", "[scsi]") {
  on_bench(many_prefetches);
}
TEST_CASE("Deferred errors: every nexus hears of a failed flush", "[scsi]") {
  on_bench(deferred_error_for_all);
}
TEST_CASE("Every host that wrote hears of a failed flush", "[scsi][N7]") {
  on_bench(every_writer_hears_of_a_failed_flush);
}
TEST_CASE("Flushes of two hosts at a time both fail", "[scsi][N7]") {
  on_bench(both_hear_of_a_failed_flush);
}
TEST_CASE("A flush that fails late concerns what was written before it", "[scsi][N7]") {
  scsi::Writers writers;
  const auto host = writers.host_of("iqn.2026-11.org.example:one,i,0x1");
  writers.note_change(*host);
  const auto slow = writers.begin_flush(true);
  writers.flush_ended(Error::kNone, writers.begin_flush(true), nullptr);
  writers.flush_ended(Error::kHardware, slow, nullptr);
  CHECK(host->lost);
}
TEST_CASE("A host that has gone is remembered for a while", "[scsi][N7]") {
  scsi::Writers writers;
  constexpr unsigned kHosts = 1000;
  for (unsigned i = 0; i < kHosts; ++i) {
    writers.note_change(
        *writers.host_of("iqn.2026-11.org.example:" + std::to_string(i) + ",i,0x1"));
  }
  writers.flush_ended(Error::kHardware, writers.begin_flush(true), nullptr);
  unsigned lost = 0;
  for (unsigned i = 0; i < kHosts; ++i) {
    lost += writers.host_of("iqn.2026-11.org.example:" + std::to_string(i))->lost ? 1 : 0;
  }
  CHECK(lost <= scsi::Writers::kMostDeparted);
  CHECK(writers.host_of("iqn.2026-11.org.example:999")->lost);
}
TEST_CASE("PRE-FETCH", "[scsi]") { on_bench(prefetch); }
TEST_CASE("PRE-FETCH of everything is cut into pieces, bounded, and ends with an abort", "[scsi]") {
  on_bench(endless_prefetch, {}, {.byte_count = std::uint64_t{1} << 40});
}
TEST_CASE("VERIFY of everything goes piece by piece and ends with an abort", "[scsi]") {
  on_bench(endless_verify, {}, {.byte_count = std::uint64_t{1} << 40});
}
TEST_CASE("VERIFY and WRITE AND VERIFY with data take no more than a write", "[scsi]") {
  on_bench(long_comparison, {}, {.byte_count = std::uint64_t{64} << 20});
}
TEST_CASE("START STOP UNIT: a fixed disk", "[scsi]") { on_bench(stop_and_start); }
TEST_CASE("START STOP UNIT: a removable medium, and PREVENT ALLOW MEDIUM REMOVAL", "[scsi]") {
  on_bench(removable, {.removable = true});
}
TEST_CASE("Counters: commands, bytes, errors, latencies", "[scsi]") { on_bench(counting); }

}  // namespace sandbay::testing
