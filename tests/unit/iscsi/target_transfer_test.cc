// Data transfer of the target, PDU by PDU: immediate, unsolicited and solicited data, Data-In and
// where the status comes, residuals, and data that breaks the rules. RFC 7143 sections 4.2.5, 7.8,
// 11.4, 11.7, 11.8 and 13.
#include <catch2/catch.hpp>

#include "iscsi/transfer_pace.h"
#include "runtime/sync.h"
#include "target_bench.h"

namespace sandbay::iscsi::test::target_transfer_test {
namespace {

constexpr const char* kUnsolicited =
    "InitialR2T=No;ImmediateData=Yes;FirstBurstLength=4096;MaxBurstLength=8192;MaxOutstandingR2T=1";

Task<void> three_kinds_of_data(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = kUnsolicited});
  const Bytes whole = pattern_of(40 * kBlock);
  RawCommand write = writing(3, 40, Bytes(whole.begin(), whole.begin() + 1024));
  write.final = false;
  const std::uint32_t tag = co_await send_command(peer, std::move(write));
  for (const std::uint32_t data_sn : {0U, 1U, 2U}) {
    const auto begin = whole.begin() + 1024 * (data_sn + 1);
    co_await send_data_out(peer,
                           {.final = data_sn == 2,
                            .initiator_task_tag = tag,
                            .data_sn = data_sn,
                            .buffer_offset = 1024 * (data_sn + 1)},
                           Bytes(begin, begin + 1024));
  }
  std::uint32_t covered = 4096;
  std::uint32_t r2t_sn = 0;
  for (;;) {
    const RawPdu pdu = co_await peer.next_of(tag);
    if (!pdu.is(Opcode::kReadyToTransfer)) {
      CHECK(pdu.status() == 0);
      CHECK(pdu.response().residual == Residual::kNone);
      break;
    }
    const ReadyToTransfer r2t = pdu.r2t();
    CHECK(r2t.r2t_sn == r2t_sn++);
    CHECK(r2t.buffer_offset == covered);
    CHECK(r2t.desired_data_transfer_length <= 8192);
    covered += r2t.desired_data_transfer_length;
    co_await answer_r2t(peer, r2t, whole, 2048);
  }
  CHECK(covered == whole.size());
  const Bytes back = co_await read_back(peer, reading(3, 40));
  CHECK(back == whole);
}

Task<void> solicited_only(Bench& bench) {
  RawInitiator& peer = *co_await bench.session(
      {.keys = "InitialR2T=Yes;ImmediateData=No;MaxBurstLength=8192;FirstBurstLength=4096"});
  const Bytes whole = pattern_of(32 * kBlock, 9);
  const std::uint32_t tag = co_await send_command(peer, writing(0, 32));
  const RawPdu first = co_await peer.next_of(tag);
  CHECK(first.r2t().buffer_offset == 0);
  co_await answer_r2t(peer, first.r2t(), whole, 8192);
  const RawPdu end = co_await finish_write(peer, tag, whole);
  CHECK(end.status() == 0);
  const Bytes back = co_await read_back(peer, reading(0, 32));
  CHECK(back == whole);
}

// Nothing that was not agreed is taken, and nothing of it reaches the medium.
Task<void> unwanted_data(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes;ImmediateData=No"});
  const RawPdu immediate = co_await answer_to(peer, writing(0, 1, pattern_of(kBlock)));
  CHECK(immediate.status() == 2);
  CHECK(immediate.sense() == 0x0B0C0CU);  // Unexpected unsolicited data.
  RawCommand open = writing(0, 16);
  open.final = false;
  const std::uint32_t tag = co_await send_command(peer, std::move(open));
  co_await send_data_out(peer, {.initiator_task_tag = tag}, pattern_of(8192));
  const RawPdu unsolicited = co_await peer.next_of(tag);
  CHECK(unsolicited.sense() == 0x0B0C0CU);
  const Bytes back = co_await read_back(peer, reading(0, 1));
  CHECK(back == Bytes(kBlock));
}

enum class Wrong { kDataSn, kOffset, kTooMuch, kEarlyFinal, kOverlap };

Task<void> wrong_data(Bench& bench, Wrong wrong) {
  const bool any_order = wrong == Wrong::kOverlap;
  RawInitiator& peer = *co_await bench.session(
      {.keys = any_order ? "InitialR2T=Yes;DataPDUInOrder=No" : "InitialR2T=Yes"});
  const std::uint32_t tag = co_await send_command(peer, writing(0, 16));
  const RawPdu asked = co_await peer.next_of(tag);
  DataOut pdu{.final = true,
              .initiator_task_tag = tag,
              .target_transfer_tag = asked.r2t().target_transfer_tag};
  std::size_t byte_count = 8192;
  if (wrong == Wrong::kDataSn) pdu.data_sn = 1;
  if (wrong == Wrong::kOffset) pdu.buffer_offset = 512;
  if (wrong == Wrong::kTooMuch) byte_count = 8704;
  if (wrong == Wrong::kEarlyFinal) byte_count = 4096;
  if (any_order) {
    // The second half twice, and the first never.
    for (const std::uint32_t data_sn : {0U, 1U}) {
      pdu.data_sn = data_sn;
      pdu.final = data_sn == 1;
      pdu.buffer_offset = 4096;
      co_await send_data_out(peer, pdu, pattern_of(4096));
    }
  } else {
    co_await send_data_out(peer, pdu, pattern_of(byte_count));
  }
  const RawPdu end = co_await peer.next_of(tag);
  CHECK(end.status() == 2);
  // Section 11.4.7.2: a hole in the DataSNs is lost data, the rest an incorrect amount.
  CHECK(end.sense() == (wrong == Wrong::kDataSn ? 0x0B4705U : 0x0B0C0DU));
  const Bytes back = co_await read_back(peer, reading(0, 16));
  CHECK(back == Bytes(8192));
  const RawPdu next = co_await answer_to(peer, {});
  CHECK(next.status() == 0);
}

Task<void> wrong_data_sn(Bench& bench) { co_await wrong_data(bench, Wrong::kDataSn); }
Task<void> wrong_offset(Bench& bench) { co_await wrong_data(bench, Wrong::kOffset); }
Task<void> too_much_data(Bench& bench) { co_await wrong_data(bench, Wrong::kTooMuch); }
Task<void> final_too_early(Bench& bench) { co_await wrong_data(bench, Wrong::kEarlyFinal); }
Task<void> data_twice(Bench& bench) { co_await wrong_data(bench, Wrong::kOverlap); }

Task<void> wrong_lun_in_data_out(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes"});
  const Bytes whole = pattern_of(16 * kBlock);
  const std::uint32_t tag = co_await send_command(peer, writing(0, 16, {}, kSecondUnit));
  const RawPdu asked = co_await peer.next_of(tag);
  co_await answer_r2t(peer, asked.r2t(), whole, 4096, 0x0077'0000'0000'0000);
  const RawPdu end = co_await peer.next_of(tag);
  CHECK(end.status() == 0);
  const Bytes back = co_await read_back(peer, reading(0, 16, kSecondUnit));
  CHECK(back == whole);
}

Task<void> data_in_any_order(Bench& bench) {
  RawInitiator& peer =
      *co_await bench.session({.keys = "InitialR2T=Yes;DataPDUInOrder=No;MaxBurstLength=8192"});
  const Bytes whole = pattern_of(16 * kBlock, 4);
  const std::uint32_t tag = co_await send_command(peer, writing(7, 16));
  const RawPdu asked = co_await peer.next_of(tag);
  std::uint32_t data_sn = 0;
  for (const std::uint32_t piece : {3U, 1U, 0U, 2U}) {
    const auto begin = whole.begin() + piece * 2048;
    co_await send_data_out(peer,
                           {.final = data_sn == 3,
                            .initiator_task_tag = tag,
                            .target_transfer_tag = asked.r2t().target_transfer_tag,
                            .data_sn = data_sn,
                            .buffer_offset = piece * 2048},
                           Bytes(begin, begin + 2048));
    ++data_sn;
  }
  const RawPdu end = co_await peer.next_of(tag);
  CHECK(end.status() == 0);
  const Bytes back = co_await read_back(peer, reading(7, 16));
  CHECK(back == whole);
}

Task<void> split_data_in(Bench& bench) {
  RawInitiator& peer = *co_await bench.session(
      {.keys = "MaxRecvDataSegmentLength=1536;MaxBurstLength=4096;FirstBurstLength=4096"});
  const Bytes whole = pattern_of(20 * kBlock);
  const std::uint32_t write = co_await send_command(peer, writing(0, 20));
  const RawPdu written = co_await finish_write(peer, write, whole, 4096);
  CHECK(written.status() == 0);
  const std::uint32_t tag = co_await send_command(peer, reading(0, 20));
  std::uint32_t offset = 0;
  std::uint32_t in_sequence = 0;
  for (std::uint32_t data_sn = 0; offset < whole.size(); ++data_sn) {
    const RawPdu pdu = co_await peer.next_of(tag);
    CHECK(pdu.is(Opcode::kDataIn));
    if (!pdu.is(Opcode::kDataIn)) co_return;
    const DataIn data = pdu.data_in();
    CHECK(data.data_sn == data_sn);
    CHECK(data.buffer_offset == offset);  // Windows: also in the one that carries the status.
    CHECK(pdu.data.size() <= 1536);
    CHECK(std::equal(pdu.data.begin(), pdu.data.end(), whole.begin() + offset));
    offset += static_cast<std::uint32_t>(pdu.data.size());
    in_sequence += static_cast<std::uint32_t>(pdu.data.size());
    CHECK(in_sequence <= 4096);
    CHECK(data.final == (in_sequence == 4096 || offset == whole.size()));
    CHECK(data.has_status == (offset == whole.size()));
    if (data.final) in_sequence = 0;
  }
  const RawPdu nothing = co_await peer.next(std::chrono::seconds(2));
  CHECK(nothing.silent);
}

Task<void> residuals(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  RawCommand more = reading(0, 2);
  more.expected = 1536;
  const RawPdu under = co_await answer_to(peer, more);
  CHECK(under.status() == 0);
  CHECK(under.data.size() == 1024);
  CHECK(under.data_in().residual == Residual::kUnderflow);
  CHECK(under.data_in().residual_count == 512);
  RawCommand less = reading(0, 2);
  less.expected = 512;
  const RawPdu over = co_await answer_to(peer, less);
  CHECK(over.status() == 0);
  CHECK(over.data.size() == 512);
  CHECK(over.data_in().residual == Residual::kOverflow);
  CHECK(over.data_in().residual_count == 512);
  // ESXi checks residuals: an exact transfer has none.
  const RawPdu exact = co_await answer_to(peer, reading(0, 2));
  CHECK(exact.data_in().residual == Residual::kNone);
  CHECK(exact.data_in().residual_count == 0);
  RawCommand failing = reading(200'000, 2);
  const RawPdu failed = co_await answer_to(peer, failing);
  CHECK(failed.status() == 2);
  CHECK(failed.response().residual == Residual::kUnderflow);
  CHECK(failed.response().residual_count == 1024);
  RawCommand longer = writing(0, 1, pattern_of(1024));
  longer.expected = 1024;
  const RawPdu write = co_await answer_to(peer, std::move(longer));
  CHECK(write.status() == 0);
  CHECK(write.response().residual == Residual::kUnderflow);
  CHECK(write.response().residual_count == 512);
}

Task<void> wrong_header_digest(Bench& bench) {
  RawInitiator& peer = *co_await bench.connect();
  const RawPdu answer = co_await peer.log_in({.keys = "HeaderDigest=CRC32C;DataDigest=CRC32C"});
  CHECK(answer.has("HeaderDigest=CRC32C"));
  peer.header_digest_on = peer.data_digest_on = true;
  co_await bench.take_attentions(peer);
  const RawPdu good = co_await answer_to(peer, writing(0, 1, pattern_of(kBlock)));
  CHECK(good.status() == 0);
  peer.spoil_header_digest = true;
  co_await send_command(peer, {});
  const RawPdu end = co_await peer.next();
  CHECK(end.closed);
  co_await bench.sleep(std::chrono::seconds(1));
  const ServerCounters counters = co_await bench.server().counters();
  CHECK(counters.header_digest_errors == 1);
}

Task<void> wrong_data_digest(Bench& bench) {
  RawInitiator& peer = *co_await bench.connect();
  co_await peer.log_in({.keys = "DataDigest=CRC32C;InitialR2T=Yes"});
  peer.data_digest_on = true;
  co_await bench.take_attentions(peer);
  const Bytes whole = pattern_of(16 * kBlock);
  const std::uint32_t other = co_await send_command(peer, writing(100, 16));
  const RawPdu other_r2t = co_await peer.next_of(other);
  const std::uint32_t tag = co_await send_command(peer, writing(0, 16));
  const RawPdu asked = co_await peer.next_of(tag);
  peer.spoil_data_digest = true;
  co_await answer_r2t(peer, asked.r2t(), whole, 8192);
  const RawPdu rejected = co_await peer.next_of(kReservedTag);
  CHECK(rejected.rejected_for() == static_cast<int>(RejectReason::kDataDigestError));
  const RawPdu end = co_await peer.next_of(tag);
  CHECK(end.status() == 2);
  CHECK(end.sense() == 0x0B4705U);
  co_await answer_r2t(peer, other_r2t.r2t(), whole, 8192);
  const RawPdu others = co_await peer.next_of(other);
  CHECK(others.status() == 0);
}

Task<void> reject_with_additional_header(Bench& bench) {
  RawInitiator& peer = *co_await bench.session();
  Bytes whole(kBhsBytes + 8);
  whole[0] = static_cast<std::byte>(Opcode::kSnackRequest);
  whole[1] = std::byte{0x80};
  whole[4] = std::byte{2};  // TotalAHSLength, in words.
  for (std::size_t at = kBhsBytes; at < whole.size(); ++at) whole[at] = static_cast<std::byte>(at);
  co_await peer.send_bytes(whole);
  const RawPdu answer = co_await peer.next();
  CHECK(answer.is(Opcode::kReject));
  CHECK(answer.data == whole);
}

// MODE SELECT (6) of the Control page with D_SENSE, then a write whose data are spoiled.
Task<void> descriptor_sense_of_session(Bench& bench) {
  RawInitiator& peer = *co_await bench.connect();
  co_await peer.log_in({.keys = "DataDigest=CRC32C;InitialR2T=Yes"});
  peer.data_digest_on = true;
  co_await bench.take_attentions(peer);
  Bytes list(16);
  const unsigned page[] = {0x0A, 0x0A, 0x06, 0x10};
  for (std::size_t at = 0; at < std::size(page); ++at) list[4 + at] = std::byte(page[at]);
  ScsiCommand select{.write = true,
                     .initiator_task_tag = peer.next_tag++,
                     .expected_data_transfer_length = 16,
                     .cmd_sn = peer.cmd_sn++,
                     .exp_stat_sn = peer.exp_stat_sn};
  const unsigned cdb[] = {0x15, 0x10, 0, 0, 16};
  for (std::size_t at = 0; at < std::size(cdb); ++at) select.cdb[at] = std::byte(cdb[at]);
  Bhs bhs;
  write_scsi_command(select, bhs);
  co_await peer.send(bhs, list);
  const RawPdu selected = co_await peer.next_of(select.initiator_task_tag);
  CHECK(selected.status() == 0);
  const std::uint32_t tag = co_await send_command(peer, writing(0, 1));
  const RawPdu r2t = co_await peer.next_of(tag);
  peer.spoil_data_digest = true;
  co_await answer_r2t(peer, r2t.r2t(), pattern_of(kBlock), kBlock);
  const RawPdu answer = co_await peer.next_of(tag);
  CHECK(answer.status() == 2);
  // Descriptor format, ABORTED COMMAND, PROTOCOL SERVICE CRC ERROR.
  Bytes sense = answer.data;
  sense.resize(6);
  CHECK(sense == Bytes{std::byte{0}, std::byte{8}, std::byte{0x72}, std::byte{0x0B},
                       std::byte{0x47}, std::byte{0x05}});
}

}  // namespace

TEST_CASE("A Reject brings the whole header of what was wrong", "[rfc7143-11.17][I-11b]") {
  on_bench({}, reject_with_additional_header);
}
TEST_CASE("Sense that the session makes has the format that D_SENSE asks for", "[I-11c]") {
  on_bench({}, descriptor_sense_of_session);
}

Task<bool> is_alone(testing::SharingDevice& device) { co_return device.alone(); }
Task<void> forget(testing::SharingDevice& device) {
  device.forget();
  co_return;
}

// While the answer is on a slow wire, the device, which has kept what it answered, must be the only
// one that counts it, unless all are on one executor: then nothing is copied.
Task<void> shared_answers(Bench& bench) {
  // The first connection takes the units' executor, and the next one goes to the other.
  co_await bench.session({.isid = 9});
  RawInitiator& peer = *co_await bench.session();
  testing::SharingDevice& device = bench.sharing(0);
  const bool crossing = bench.world().executors().size() > 1;
  Executor& home = *bench.world().executors().back();
  device.share();
  const std::uint32_t tag = co_await send_command(peer, reading(0, 256));
  while (!device.has_answered()) co_await bench.sleep(std::chrono::milliseconds(1));
  co_await bench.sleep(std::chrono::milliseconds(5));
  const bool alone = co_await invoke_on(home, is_alone(device));
  CHECK(alone == crossing);
  RawPdu pdu = co_await peer.next_of(tag);
  while (pdu.is(Opcode::kDataIn) && !pdu.data_in().has_status) pdu = co_await peer.next_of(tag);
  CHECK(pdu.status() == 0);
  co_await invoke_on(home, forget(device));
}

constexpr Duration kTurnaround = std::chrono::milliseconds(10);

Task<void> aborted_in_line(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes;ImmediateData=No"});
  const Bytes whole = pattern_of(16 * kBlock);
  const std::uint32_t first = co_await send_command(peer, writing(0, 16));
  const RawPdu asked = co_await peer.next_of(first);
  const std::uint32_t cmd_sn = peer.cmd_sn;
  const std::uint32_t second = co_await send_command(peer, writing(16, 16));
  const std::uint32_t third = co_await send_command(peer, writing(32, 16));
  const std::uint32_t abort =
      co_await send_management(peer, {.referenced_task_tag = second, .ref_cmd_sn = cmd_sn});
  const RawPdu aborted = co_await peer.next_of(abort);
  CHECK(aborted.managed() == static_cast<int>(TaskManagementResult::kFunctionComplete));
  co_await answer_r2t(peer, asked.r2t(), whole, 8192);
  const TimePoint given = bench.now();
  const RawPdu one = co_await peer.next_of(first);
  CHECK(one.status() == 0);
  // The one that was aborted had its turn, and gave it on at once.
  const RawPdu next = co_await peer.next_of(third);
  const Duration waited = bench.now() - given;
  CHECK(waited >= kTurnaround);
  CHECK(waited < 2 * kTurnaround);
  co_await answer_r2t(peer, next.r2t(), whole, 8192);
  const RawPdu other = co_await peer.next_of(third);
  CHECK(other.status() == 0);
}

Task<void> turns_by_connection(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes;ImmediateData=No"});
  const Bytes whole = pattern_of(16 * kBlock);
  const TimePoint began = bench.now();
  std::vector<std::uint32_t> tags;
  for (std::uint64_t i = 0; i < 3; ++i) {
    tags.push_back(co_await send_command(peer, writing(16 * i, 16)));
  }
  // Two have their turn together, the third when the data of one of them have come.
  const RawPdu one = co_await peer.next_of(tags[0]);
  const RawPdu two = co_await peer.next_of(tags[1]);
  const Duration first_turns = bench.now() - began;
  CHECK(first_turns >= kTurnaround);
  CHECK(first_turns < 2 * kTurnaround);
  const RawPdu early = co_await peer.next(5 * kTurnaround);
  CHECK(early.silent);
  co_await answer_r2t(peer, two.r2t(), whole, 8192);
  const RawPdu three = co_await peer.next_of(tags[2]);
  co_await answer_r2t(peer, three.r2t(), whole, 8192);
  co_await answer_r2t(peer, one.r2t(), whole, 8192);
  for (const std::uint32_t tag : tags) {
    const RawPdu answer = co_await peer.next_of(tag);
    CHECK(answer.status() == 0);
  }
}

TEST_CASE("A write that is aborted while it waits for its turn has nothing prepared for it") {
  on_bench({.pace = {.at_once = 1, .turnaround = kTurnaround}}, aborted_in_line);
}
TEST_CASE("A pace limits the R2Ts of a connection, and delays each") {
  on_bench(
      {.pace = {.at_once = 2, .turnaround = kTurnaround / 2, .per_connection = kTurnaround / 2}},
      turns_by_connection);
}

TEST_CASE("4.2.5 immediate, unsolicited and solicited data make up one write") {
  on_bench({.keys = {{"InitialR2T", "No"}}}, three_kinds_of_data);
}
TEST_CASE("13.10 13.11 InitialR2T=Yes, ImmediateData=No: every byte is solicited") {
  on_bench({}, solicited_only);
}
TEST_CASE("13.10 13.11 data that was not agreed on ends the command") {
  on_bench({}, unwanted_data);
}
TEST_CASE("11.7.5 a wrong DataSN ends the command") { on_bench({}, wrong_data_sn); }
TEST_CASE("11.7.4 a wrong buffer offset ends the command") { on_bench({}, wrong_offset); }
TEST_CASE("11.8 more data than was asked for ends the command") { on_bench({}, too_much_data); }
TEST_CASE("11.7.1 an F bit before all data has come ends the command") {
  on_bench({}, final_too_early);
}
TEST_CASE("13.18 DataPDUInOrder=No: data that comes twice ends the command") {
  on_bench({}, data_twice);
}
TEST_CASE("Windows: Data-Out with a wrong LUN is found by its tags") {
  on_bench({}, wrong_lun_in_data_out);
}
TEST_CASE("13.18 DataPDUInOrder=No: data comes in any order") {
  on_bench({.keys = {{"DataPDUInOrder", "No"}}}, data_in_any_order);
}
TEST_CASE("11.7 Data-In is cut at MaxRecvDataSegmentLength and MaxBurstLength") {
  on_bench({}, split_data_in);
}
TEST_CASE("What a device shares with others is copied before it crosses to another executor") {
  on_bench({.link = {.bytes_per_second = 1 << 20, .buffer_bytes = 16 * 1024}}, shared_answers);
}
TEST_CASE("11.4.5 residuals") { on_bench({}, residuals); }
TEST_CASE("7.8 a wrong header digest ends the connection") { on_bench({}, wrong_header_digest); }
TEST_CASE("7.8 a wrong data digest fails its task alone") { on_bench({}, wrong_data_digest); }

}  // namespace sandbay::iscsi::test::target_transfer_test
