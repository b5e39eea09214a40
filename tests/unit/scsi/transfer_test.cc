// READ and WRITE in all lengths: data, ranges, flags, residuals, streaming and errors (SBC-3 5.13
// ff., RFC 7143 11.4.5 for what residuals follow from).
#include "fake_transport.h"

namespace sandbay::testing::transfer_test {
namespace {

using scsi::Additional;
using scsi::SenseKey;
using scsi::Status;

struct Form {
  unsigned read;
  unsigned write;
  std::array<std::byte, 16> (*cdb)(unsigned opcode, std::uint64_t lba, unsigned length);
};

const Form kForms[] = {
    {0x08, 0x0A,
     [](unsigned opcode, std::uint64_t lba, unsigned length) {
       return cdb_of({opcode, static_cast<unsigned>(lba >> 16U) & 0x1FU,
                      static_cast<unsigned>(lba >> 8U) & 0xFFU, static_cast<unsigned>(lba) & 0xFFU,
                      length & 0xFFU});
     }},
    {0x28, 0x2A,
     [](unsigned opcode, std::uint64_t lba, unsigned length) {
       return cdb_10(opcode, static_cast<std::uint32_t>(lba), length);
     }},
    {0xA8, 0xAA,
     [](unsigned opcode, std::uint64_t lba, unsigned length) {
       return cdb_12(opcode, static_cast<std::uint32_t>(lba), length);
     }},
    {0x88, 0x8A,
     [](unsigned opcode, std::uint64_t lba, unsigned length) {
       return cdb_16(opcode, lba, length);
     }},
};

Bytes pattern(std::size_t byte_count, unsigned seed) {
  Bytes bytes(byte_count);
  for (std::size_t i = 0; i < byte_count; ++i) {
    bytes[i] = static_cast<std::byte>((i * 7 + i / 512 + seed) & 0xFFU);
  }
  return bytes;
}

Task<void> round_trip(Bench& bench) {
  unsigned seed = 1;
  for (const Form& form : kForms) {
    for (const unsigned blocks : {1U, 2U, 7U, 128U, 255U}) {
      for (const std::uint64_t lba : {std::uint64_t{0}, kBenchBlocks - blocks}) {
        const Bytes content = pattern(blocks * 512, ++seed);
        const Reply written =
            co_await bench.send_to_unit(form.cdb(form.write, lba, blocks), {.out = content});
        CHECK(written.good());
        CHECK(written.data_out_bytes == content.size());
        const Reply read = co_await bench.send_to_unit(form.cdb(form.read, lba, blocks));
        CHECK(read.good());
        CHECK(read.data_in_bytes == content.size());
        CHECK(read.data == content);
      }
    }
  }
}

Task<void> six_byte_zero_length(Bench& bench) {
  const Reply read = co_await bench.send_to_unit(cdb_of({0x08}));
  CHECK(read.data.size() == std::size_t{256} * 512);
}

Task<void> streamed(Bench& bench) {
  const Bytes content = pattern(std::size_t{6000} * 512, 3);
  const Reply written = co_await bench.send_to_unit(cdb_16(0x8A, 100, 6000), {.out = content});
  CHECK(written.good());
  for (const SeenRequest& seen : bench.device.seen()) {
    CHECK(seen.extent.byte_count(512) <= scsi::kTransferPieceBytes);
  }
  CHECK(bench.device.count(Operation::kWrite) == 3);
  const Reply read = co_await bench.send_to_unit(cdb_10(0x28, 100, 6000));
  CHECK(read.good());
  CHECK((read.data == content));
  CHECK(bench.device.count(Operation::kRead) == 3);
}

Task<void> beyond_end(Bench& bench) {
  for (const Form& form : kForms) {
    for (const unsigned blocks : {1U, 2U, 255U}) {
      const Bytes out = filled(blocks * 512, 1);
      for (const std::uint64_t lba : {kBenchBlocks + 1 - blocks, kBenchBlocks, kBenchBlocks * 16}) {
        const Reply read = co_await bench.send_to_unit(form.cdb(form.read, lba, blocks));
        CHECK(read.illegal(Additional::kLbaOutOfRange));
        CHECK(read.data.empty());
        const Reply write =
            co_await bench.send_to_unit(form.cdb(form.write, lba, blocks), {.out = out});
        CHECK(write.illegal(Additional::kLbaOutOfRange));
      }
    }
  }
  const Reply last = co_await bench.send_to_unit(cdb_16(0x88, ~std::uint64_t{0}, 1));
  CHECK(last.illegal(Additional::kLbaOutOfRange));
  CHECK(bench.device.seen().empty());
}

Task<void> zero_blocks(Bench& bench) {
  for (const Form& form : std::span(kForms).subspan(1)) {
    for (const unsigned opcode : {form.read, form.write}) {
      const Reply here = co_await bench.send_to_unit(form.cdb(opcode, 0, 0));
      CHECK(here.good());
      const Reply beyond = co_await bench.send_to_unit(form.cdb(opcode, kBenchBlocks + 1, 0));
      CHECK(beyond.illegal(Additional::kLbaOutOfRange));
    }
  }
  CHECK(bench.device.seen().empty());
}

Task<void> protection_bits(Bench& bench) {
  for (unsigned protect = 1; protect < 8; ++protect) {
    const Reply ten = co_await bench.send_to_unit(cdb_10(0x28, 0, 1, protect << 5U));
    CHECK(ten.illegal(Additional::kInvalidFieldInCdb));
    CHECK(ten.field_byte() == 1);
    const Reply sixteen =
        co_await bench.send_to_unit(cdb_16(0x8A, 0, 1, protect << 5U), {.out = filled(512, 0)});
    CHECK(sixteen.illegal(Additional::kInvalidFieldInCdb));
  }
}

Task<void> dpo_and_fua(Bench& bench) {
  struct Case {
    unsigned flags;
    bool dpo;
    bool fua;
  };
  for (const Case& each :
       {Case{0x00, false, false}, Case{0x10, true, false}, Case{0x08, false, true},
        Case{0x18, true, true}, Case{0x02, false, true}}) {
    bench.device.clear();
    const Reply read = co_await bench.send_to_unit(cdb_10(0x28, 0, 1, each.flags));
    CHECK(read.good());
    const Reply write =
        co_await bench.send_to_unit(cdb_10(0x2A, 0, 1, each.flags), {.out = filled(512, 0)});
    CHECK(write.good());
    REQUIRE(bench.device.seen().size() == 2);
    for (const SeenRequest& seen : bench.device.seen()) {
      CHECK(seen.disable_page_out == each.dpo);
      CHECK(seen.force_unit_access == each.fua);
    }
  }
}

Task<void> too_long(Bench& bench) {
  const Reply fits = co_await bench.send_to_unit(cdb_16(0x88, 0, 16));
  CHECK(fits.good());
  const Reply reply = co_await bench.send_to_unit(cdb_16(0x88, 0, 17));
  CHECK(reply.illegal(Additional::kInvalidFieldInCdb));
  CHECK(reply.field_byte() == 10);
}

// The transport takes what the initiator expects; the outcome says what the CDB called for.
Task<void> read_residuals(Bench& bench) {
  struct Case {
    unsigned blocks;
    std::uint32_t expected;
    std::size_t sent;
  };
  for (const Case& each : {Case{1, 0, 0}, Case{1, 10000, 512}, Case{1, 200, 200}, Case{2, 512, 512},
                           Case{4096, 1048576 + 700, 1048576 + 700}}) {
    const Reply reply =
        co_await bench.send_to_unit(cdb_10(0x28, 0, each.blocks), {.in_length = each.expected});
    CHECK(reply.good());
    CHECK(reply.data.size() == each.sent);
    CHECK(reply.data_in_bytes == each.blocks * 512);
  }
  const Reply as_write = co_await bench.send_to_unit(cdb_10(0x28, 0, 1), {.out = filled(512, 1)});
  CHECK(as_write.good());
  CHECK(as_write.data.empty());
}

Task<void> write_residuals(Bench& bench) {
  struct Case {
    unsigned blocks;
    std::uint32_t sent;
    std::size_t written;
    bool refused;
  };
  for (const Case& each :
       {Case{1, 0, 0, false}, Case{1, 1024, 512, false}, Case{2, 512, 512, false},
        Case{1, 10000, 512, false}, Case{1, 200, 0, true},
        Case{3000, 2000 * 512, 2000 * 512, false}, Case{3, 600, 0, true}}) {
    for (const unsigned opcode : {0x2AU, 0x2EU}) {
      const Bytes before = filled(std::size_t{3000} * 512, 'a');
      co_await bench.send_to_unit(cdb_10(0x2A, 0, 3000), {.out = before});
      const Reply reply = co_await bench.send_to_unit(cdb_10(opcode, 0, each.blocks),
                                                      {.out = filled(each.sent, 'b')});
      CHECK(reply.data_out_bytes == each.blocks * 512);
      CHECK(reply.good() == !each.refused);
      if (each.refused) CHECK(reply.illegal(Additional::kInvalidFieldInInformationUnit));
      const Reply after = co_await bench.send_to_unit(cdb_10(0x28, 0, 3000));
      Bytes expected = before;
      std::fill_n(expected.begin(), each.written, std::byte{'b'});
      CHECK((after.data == expected));
    }
  }
}

Task<void> medium_error(Bench& bench) {
  const Bytes content = pattern(16 * 512, 9);
  co_await bench.send_to_unit(cdb_10(0x2A, 0, 16), {.out = content});
  bench.faulty.fail(
      {.operation = Operation::kRead, .extent = {5, 2}, .error = Error::kMediumError});
  const Reply reply = co_await bench.send_to_unit(cdb_10(0x28, 0, 16));
  CHECK(reply.failed_with(SenseKey::kMediumError, Additional::kUnrecoveredReadError));
  CHECK(reply.information() == 5U);
  CHECK(reply.data == Bytes(content.begin(), content.begin() + 5 * 512));
  CHECK(reply.data_in_bytes == 5 * 512);
  const Reply beside = co_await bench.send_to_unit(cdb_10(0x28, 7, 9));
  CHECK(beside.good());
  const Reply piece = co_await bench.send_to_unit(cdb_10(0x28, 6, 1));
  CHECK(piece.data.empty());
  CHECK(piece.information() == 6U);
}

Task<void> medium_error_in_later_piece(Bench& bench) {
  bench.faulty.fail(
      {.operation = Operation::kRead, .extent = {3000, 1}, .error = Error::kMediumError});
  const Reply reply = co_await bench.send_to_unit(cdb_10(0x28, 0, 4096));
  CHECK(reply.failed_with(SenseKey::kMediumError, Additional::kUnrecoveredReadError));
  CHECK(reply.information() == 3000U);
  CHECK(reply.data.size() == std::size_t{3000} * 512);
}

void fail_reads(Bench& bench, Lba block, Error error) {
  bench.faulty.fail({.operation = Operation::kRead, .extent = {block, 1}, .error = error});
}

// The first rule that matches decides, so the device does not name its first bad block.
Task<void> medium_error_before_the_named_block(Bench& bench) {
  const Bytes content = pattern(16 * 512, 9);
  co_await bench.send_to_unit(cdb_10(0x2A, 0, 16), {.out = content});
  for (const Lba block : {9, 5}) fail_reads(bench, block, Error::kMediumError);
  const Reply reply = co_await bench.send_to_unit(cdb_10(0x28, 0, 16));
  CHECK(reply.failed_with(SenseKey::kMediumError, Additional::kUnrecoveredReadError));
  CHECK(reply.information() == 5U);
  CHECK(reply.data == Bytes(content.begin(), content.begin() + 5 * 512));
}

Task<void> medium_error_ever_earlier(Bench& bench) {
  for (const Lba block : {14, 12, 10, 8, 6}) fail_reads(bench, block, Error::kMediumError);
  const Reply reply = co_await bench.send_to_unit(cdb_10(0x28, 0, 16));
  CHECK(reply.failed_with(SenseKey::kMediumError, Additional::kUnrecoveredReadError));
  CHECK(!reply.information());
  CHECK(reply.data.empty());
}

Task<void> other_error_before_the_named_block(Bench& bench) {
  fail_reads(bench, 9, Error::kMediumError);
  fail_reads(bench, 0, Error::kNotReady);
  const Reply reply = co_await bench.send_to_unit(cdb_10(0x28, 0, 16));
  CHECK(reply.failed_with(SenseKey::kNotReady, Additional::kNotReadyCauseNotReportable));
  CHECK(!reply.information());
  CHECK(reply.data.empty());
}

Task<void> every_error(Bench& bench) {
  struct Case {
    Error error;
    SenseKey key;
    Additional additional;
  };
  const Case cases[] = {
      {Error::kMediumError, SenseKey::kMediumError, Additional::kWriteError},
      {Error::kDataCorrupt, SenseKey::kMediumError, Additional::kWriteError},
      {Error::kNoSpace, SenseKey::kDataProtect, Additional::kSpaceAllocationFailed},
      {Error::kReadOnly, SenseKey::kDataProtect, Additional::kWriteProtected},
      {Error::kPermission, SenseKey::kDataProtect, Additional::kWriteProtected},
      {Error::kNotReady, SenseKey::kNotReady, Additional::kNotReadyCauseNotReportable},
      {Error::kClosed, SenseKey::kNotReady, Additional::kNotReadyCauseNotReportable},
      {Error::kReset, SenseKey::kNotReady, Additional::kNotReadyCauseNotReportable},
      {Error::kHardware, SenseKey::kHardwareError, Additional::kInternalTargetFailure},
      {Error::kInvalid, SenseKey::kHardwareError, Additional::kInternalTargetFailure},
      {Error::kTimedOut, SenseKey::kAbortedCommand, Additional::kLogicalUnitCommunicationTimeout},
      {Error::kCancelled, SenseKey::kAbortedCommand, Additional::kNone},
      {Error::kOutOfRange, SenseKey::kIllegalRequest, Additional::kLbaOutOfRange},
      {Error::kMiscompare, SenseKey::kMiscompare, Additional::kMiscompareDuringVerify},
  };
  for (const Case& each : cases) {
    for (const unsigned blocks : {1U, 3000U}) {
      bench.faulty.clear();
      bench.faulty.fail({.operation = Operation::kWrite, .error = each.error, .times = 1});
      const Reply reply =
          co_await bench.send_to_unit(cdb_10(0x2A, 0, blocks), {.out = filled(blocks * 512, 1)});
      CAPTURE(describe(each.error));
      CHECK(reply.failed_with(each.key, each.additional));
      // It would say that all blocks before it are written.
      CHECK(reply.information().has_value() == (each.error == Error::kMiscompare));
    }
  }
  bench.faulty.fail({.operation = Operation::kWrite, .error = Error::kNoMemory, .times = 1});
  const Reply busy = co_await bench.send_to_unit(cdb_10(0x2A, 0, 1), {.out = filled(512, 1)});
  CHECK(busy.status == Status::kBusy);
}

Task<void> refused_by_protection(Bench& bench) {
  for (const auto& cdb : {cdb_10(0x2A, 0, 1), cdb_12(0xAA, 0, 1), cdb_16(0x8A, 0, 1),
                          cdb_10(0x2E, 0, 1), cdb_10(0x41, 0, 1), cdb_16(0x93, 0, 1),
                          cdb_of({0x42, 0, 0, 0, 0, 0, 0, 2, 0}), cdb_of({0x0A, 0, 0, 0, 1})}) {
    const Reply reply = co_await bench.send_to_unit(cdb, {.out = filled(512, 0)});
    CHECK(reply.failed_with(SenseKey::kDataProtect, Additional::kWriteProtected));
  }
  const Reply read = co_await bench.send_to_unit(cdb_10(0x28, 0, 1));
  CHECK(read.good());
  const Reply modes = co_await bench.send_to_unit(cdb_of({0x1A, 0, 0x3F, 0, 255}));
  CHECK((modes.in(2) & 0x80U) != 0);
}

}  // namespace

TEST_CASE("READ and WRITE: what was written is read, in every form", "[scsi]") {
  on_bench(round_trip);
}
TEST_CASE("READ(6): transfer length 0 means 256 blocks", "[scsi]") {
  on_bench(six_byte_zero_length);
}
TEST_CASE("READ and WRITE: large transfers go in pieces of at most 1 MiB", "[scsi]") {
  on_bench(streamed);
}
TEST_CASE("READ and WRITE: BeyondEol is LBA OUT OF RANGE", "[scsi]") { on_bench(beyond_end); }
TEST_CASE("READ and WRITE: ZeroBlocks", "[scsi]") { on_bench(zero_blocks); }
TEST_CASE("READ and WRITE: RDPROTECT and WRPROTECT are invalid fields", "[scsi]") {
  on_bench(protection_bits);
}
TEST_CASE("READ and WRITE: DPO and FUA reach the device", "[scsi]") { on_bench(dpo_and_fua); }
TEST_CASE("READ: more than the maximum transfer length is an invalid field", "[scsi]") {
  on_bench(too_long, {.maximum_transfer_bytes = 8192});
}
TEST_CASE("READ: residuals", "[scsi]") { on_bench(read_residuals); }
TEST_CASE("WRITE and WRITE AND VERIFY: residuals", "[scsi]") { on_bench(write_residuals); }
TEST_CASE("READ: a medium error names its block, and the data before it arrive", "[scsi]") {
  on_bench(medium_error);
}
TEST_CASE("READ: a medium error in a later piece", "[scsi]") {
  on_bench(medium_error_in_later_piece);
}
TEST_CASE("READ: a bad block before the one that the device names is named", "[scsi][N10]") {
  on_bench(medium_error_before_the_named_block);
}
TEST_CASE("READ: no block is named when the blocks before it cannot be read", "[scsi][N10]") {
  on_bench(medium_error_ever_earlier);
  on_bench(other_error_before_the_named_block);
}
TEST_CASE("WRITE: every error of a device has its sense data", "[scsi][N13]") {
  on_bench(every_error);
}
TEST_CASE("WRITE: a read-only unit is write protected", "[scsi]") {
  on_bench(refused_by_protection, {.read_only = true});
}
TEST_CASE("READ and WRITE: 4096-byte blocks", "[scsi]") {
  on_bench(
      [](Bench& bench) -> Task<void> {
        const Bytes content = pattern(std::size_t{300} * 4096, 5);
        const Reply written = co_await bench.send_to_unit(cdb_10(0x2A, 1, 300), {.out = content});
        CHECK(written.good());
        const Reply read = co_await bench.send_to_unit(cdb_10(0x28, 1, 300));
        CHECK((read.data == content));
        const Reply capacity = co_await bench.send_to_unit(cdb_of({0x25}));
        CHECK(big_endian<std::uint32_t>(capacity.data, 4) == 4096);
      },
      {}, {.byte_count = 1024 * 4096, .block_bytes = 4096});
}

}  // namespace sandbay::testing::transfer_test
