// Our initiator doing wrong on purpose to our target: each kind of Misbehaviour in turn, and what
// RFC 7143 has the target do then. Always the same epilogue: the command that was hit ends, the
// medium holds what the outcome says, and somebody else is served as if nothing had been.
//
// Sections 4.2.2.1, 4.2.5, 7.3, 7.7, 7.8, 7.9, 7.14, 11.2.1.2, 11.4.7.2, 11.5, 11.7, 11.17, 13.18.
#include <catch2/catch.hpp>

#include "iscsi/initiator.h"
#include "scripted_target.h"
#include "target_bench.h"

namespace sandbay::iscsi::test {
namespace {

using Kind = Misbehaviour::Kind;

constexpr std::uint32_t kWriteBlocks = 16;

ScsiRequest transfer_of(std::uint8_t operation, std::uint32_t lba, std::uint32_t blocks) {
  ScsiRequest request;
  request.cdb[0] = std::byte{operation};
  put_big_endian<std::uint32_t>(request.cdb, 2, lba);
  put_big_endian<std::uint16_t>(request.cdb, 7, static_cast<std::uint16_t>(blocks));
  return request;
}

ScsiRequest write_of(const Bytes& data, std::uint32_t lba = 0) {
  ScsiRequest request = transfer_of(0x2A, lba, static_cast<std::uint32_t>(data.size() / kBlock));
  request.data_out = buffer_of(data.size());
  request.data_out.copy_from(data);
  return request;
}

ScsiRequest read_of(std::uint32_t blocks, std::uint32_t lba = 0) {
  ScsiRequest request = transfer_of(0x28, lba, blocks);
  request.data_in = buffer_of(std::size_t{blocks} * kBlock);
  request.data_in.fill_zero();
  return request;
}

Bytes bytes_in(const BufferList& list) {
  Bytes bytes(list.byte_count());
  list.copy_to(bytes);
  return bytes;
}

constexpr const char* kOurName = "iqn.2026-11.org.sandbay:misbehaving";

// The target takes 2048 bytes a PDU, so a write of 8192 is two bursts of two Data-Outs.
BenchOptions small_pdus() { return {.keys = {{"MaxRecvDataSegmentLength", "2048"}}}; }

InitiatorOptions options_to(Bench& bench) {
  InitiatorOptions options{.endpoint = bench.endpoint(),
                           .initiator_name = kOurName,
                           .target_name = kBenchTarget,
                           .keys = {{"InitialR2T", "Yes"},
                                    {"ImmediateData", "No"},
                                    {"FirstBurstLength", "4096"},
                                    {"MaxBurstLength", "4096"}},
                           .nop_out_interval = Duration{0},
                           .reconnect = false};
  options.connection_options.resize(1);
  return options;
}

using Session = std::unique_ptr<InitiatorSession>;

Task<Session> log_in(InitiatorOptions options) {
  LoginResult result = co_await InitiatorSession::login(std::move(options));
  if (!result.has_value()) FAIL_CHECK(result.error().message);
  co_return result.has_value() ? std::move(*result) : nullptr;
}

// Somebody else's session reads what the medium holds, and so shows that it is served.
Task<Bytes> medium(Bench& bench) {
  RawLogin other;
  other.isid = 77;
  RawInitiator& peer = *co_await bench.session(std::move(other));
  Bytes bytes = co_await read_back(peer, reading(0, kWriteBlocks));
  CHECK(bytes.size() == kWriteBlocks * kBlock);
  co_return bytes;
}

// PDUs before those of the test: TEST UNIT READY twice.
constexpr std::uint64_t kPreparation = 2;
constexpr std::uint64_t kCommand = 1;    // The write itself …
constexpr std::uint64_t kFirstData = 2;  // … and its Data-Outs: 2 to 5.

// Logs in with that one thing wrong, counted from the test's own first PDU.
Task<Session> log_in_with(InitiatorOptions options, Misbehaviour wrong) {
  wrong.at_pdu += kPreparation;
  options.connection_options[0].misbehaviour = {wrong};
  Session session = co_await log_in(std::move(options));
  const InitiatorSession::Reply attention = co_await session->execute(ScsiRequest{});
  CHECK(attention.result.sense_key() == scsi::SenseKey::kUnitAttention);
  const InitiatorSession::Reply ready = co_await session->execute(ScsiRequest{});
  CHECK(ready.result.good());
  co_return session;
}

struct Told {
  ScsiResult result;
  InitiatorCounters counters;
  bool up = false;
  Duration took{};
};

// One write of 16 blocks, and what came of it. If the session is still there it must be of use.
Task<Told> write_badly(Bench& bench, InitiatorOptions options, Misbehaviour wrong) {
  const Session session = co_await log_in_with(std::move(options), wrong);
  const TimePoint start = bench.now();
  ScsiRequest request = write_of(pattern_of(kWriteBlocks * kBlock));
  request.timeout = std::chrono::seconds(30);
  const InitiatorSession::Reply reply = co_await session->execute(std::move(request));
  Told told{.result = reply.result,
            .counters = session->counters(),
            .up = session->up(),
            .took = bench.now() - start};
  if (told.up) {
    const InitiatorSession::Reply next = co_await session->execute(ScsiRequest{});
    CHECK(next.result.good());
  }
  co_await session->close();
  co_return told;
}

Task<Told> write_badly(Bench& bench, Misbehaviour wrong) {
  Told told = co_await write_badly(bench, options_to(bench), wrong);
  co_return told;
}

const Bytes kUntouched(kWriteBlocks* kBlock);
Bytes written() { return pattern_of(kWriteBlocks * kBlock); }

// The command ended with CHECK CONDITION, ABORTED COMMAND; nothing else did.
void check_aborted(const Told& told, scsi::Additional additional) {
  CHECK(told.result.error == Error::kNone);
  CHECK(told.result.status == scsi::Status::kCheckCondition);
  CHECK(told.result.sense_key() == scsi::SenseKey::kAbortedCommand);
  CHECK(told.result.additional() == additional);
  CHECK(told.up);
  CHECK(told.took < std::chrono::seconds(5));
}

Task<void> check_medium(Bench& bench, Bytes expected) {
  const Bytes bytes = co_await medium(bench);
  CHECK(bytes == expected);
}

// The target has let go of the session and of everything that belonged to it.
Task<void> check_gone(Bench& bench) {
  co_await bench.sleep(std::chrono::seconds(30));  // DefaultTime2Wait and Time2Retain together.
  const std::vector<SessionInfo> sessions = co_await bench.server().sessions();
  for (const SessionInfo& session : sessions) CHECK(session.initiator_name != kOurName);
}

// Section 7.8: the header cannot be trusted, nor where the next PDU begins; at ErrorRecoveryLevel 0
// the target closes the connection.
Task<void> header_digest(Bench& bench) {
  InitiatorOptions options = options_to(bench);
  options.connection_options[0].keys = {{"HeaderDigest", "CRC32C"}};
  const Told told = co_await write_badly(bench, std::move(options),
                                         {.kind = Kind::kCorruptHeaderDigest, .at_pdu = kCommand});
  CHECK(told.result.error == Error::kReset);
  CHECK_FALSE(told.up);
  const ServerCounters counters = co_await bench.server().counters();
  CHECK(counters.header_digest_errors == 1);
  co_await check_medium(bench, kUntouched);
  co_await check_gone(bench);
}

// Section 7.8: a Data-Out is rejected and dropped, and its command ends with "protocol service CRC
// error" once its other data have come.
Task<void> data_digest(Bench& bench) {
  InitiatorOptions options = options_to(bench);
  options.connection_options[0].keys = {{"DataDigest", "CRC32C"}};
  const Told told = co_await write_badly(bench, std::move(options),
                                         {.kind = Kind::kCorruptDataDigest, .at_pdu = kFirstData});
  check_aborted(told, scsi::Additional::kDataPhaseCrcError);
  CHECK(told.counters.rejects == 1);
  const ServerCounters counters = co_await bench.server().counters();
  CHECK(counters.data_digest_errors == 1);
  CHECK(counters.rejects == 1);
  co_await check_medium(bench, kUntouched);
}

// The same section for a ping: rejected. Nothing more is demanded, and either side may go on to
// session recovery; the target does, since many initiators never repair the CmdSN that is lost.
Task<void> data_digest_of_a_ping(Bench& bench) {
  InitiatorOptions options = options_to(bench);
  options.connection_options[0].keys = {{"DataDigest", "CRC32C"}};
  const Session session = co_await log_in_with(
      std::move(options), {.kind = Kind::kCorruptDataDigest, .at_pdu = kCommand});
  const auto echo = co_await session->ping(pattern_of(100));
  CHECK_FALSE(echo.has_value());
  co_await bench.sleep(std::chrono::seconds(1));
  CHECK_FALSE(session->up());
  co_await session->close();
  const ServerCounters counters = co_await bench.server().counters();
  CHECK(counters.rejects == 1);
  CHECK(counters.data_digest_errors == 1);
  co_await check_gone(bench);
  // That the Reject arrives before the connection ends is seen byte by byte.
  RawInitiator& peer = *co_await bench.connect();
  co_await peer.log_in({.keys = "DataDigest=CRC32C"});
  peer.data_digest_on = peer.spoil_data_digest = true;
  co_await send_ping(peer, pattern_of(100));
  const RawPdu rejected = co_await peer.next();
  CHECK(rejected.rejected_for() == static_cast<int>(RejectReason::kDataDigestError));
  const RawPdu end = co_await peer.next();
  CHECK(end.closed);
}

// Section 7.9: a DataSN that is not the next one means that data were lost.
Task<void> data_sn(Bench& bench) {
  for (const std::uint32_t value : {0U, 1U, 7U, 0xFFFFFFFFU}) {
    const Told told = co_await write_badly(
        bench, {.kind = Kind::kWrongDataSn, .at_pdu = kFirstData, .value = value});
    check_aborted(told, scsi::Additional::kDataPhaseCrcError);
  }
  co_await check_medium(bench, kUntouched);
}

// Sections 11.7.4 and 11.4.7.2: data that are not those of the R2T are an incorrect amount.
Task<void> buffer_offset(Bench& bench) {
  for (const std::uint32_t value : {0U, 2048U, 4096U, 0x7FFFFFFFU, 0xFFFFF000U}) {
    const Told told = co_await write_badly(
        bench, {.kind = Kind::kWrongBufferOffset, .at_pdu = kFirstData, .value = value});
    check_aborted(told, scsi::Additional::kNotEnoughUnsolicitedData);
  }
  co_await check_medium(bench, kUntouched);
}

// Section 11.7.3: data under a tag that no R2T had belong to nobody; the transfer that they were
// meant for misses them, as if they had been lost on the way (section 7.9).
Task<void> transfer_tag(Bench& bench) {
  const Told told =
      co_await write_badly(bench, {.kind = Kind::kWrongTransferTag, .at_pdu = kFirstData});
  check_aborted(told, scsi::Additional::kDataPhaseCrcError);
  co_await check_medium(bench, kUntouched);
}

// All of them: the command waits for its data until the initiator aborts it (section 11.5).
Task<void> every_transfer_tag(Bench& bench) {
  const Told told = co_await write_badly(
      bench, {.kind = Kind::kWrongTransferTag, .at_pdu = kFirstData, .count = 100});
  CHECK(told.result.error == Error::kTimedOut);
  CHECK(told.up);
  co_await check_medium(bench, kUntouched);
}

// Section 4.2.2.1: a CmdSN that has been received is silently ignored.
Task<void> command_twice(Bench& bench) {
  const Told told = co_await write_badly(bench, {.kind = Kind::kDuplicate, .at_pdu = kCommand});
  CHECK(told.result.good());
  CHECK(told.up);
  CHECK(told.counters.rejects == 0);
  const std::vector<SessionInfo> sessions = co_await bench.server().sessions();
  CHECK(sessions.empty());
  co_await check_medium(bench, written());
}

// Section 7.9: the DataSN of the second is not the next one.
Task<void> data_twice(Bench& bench) {
  const Told told = co_await write_badly(bench, {.kind = Kind::kDuplicate, .at_pdu = kFirstData});
  check_aborted(told, scsi::Additional::kDataPhaseCrcError);
  co_await check_medium(bench, kUntouched);
}

// Section 4.2.2.1: nothing passes a gap in CmdSN. Section 11.5.1: ABORT TASK of a command that has
// not come, with its RefCmdSN in the window, closes the gap and is complete.
Task<void> missing_cmd_sn(Bench& bench) {
  const Session session =
      co_await log_in_with(options_to(bench), {.kind = Kind::kSkipCmdSn, .at_pdu = kCommand});
  ScsiRequest lost = write_of(pattern_of(kWriteBlocks * kBlock));
  lost.timeout = std::chrono::seconds(5);
  const TimePoint start = bench.now();
  const auto first = PendingCommand::start(*session, std::move(lost));
  const auto second = PendingCommand::start(*session, read_of(kWriteBlocks));
  co_await bench.sleep(std::chrono::seconds(4));
  CHECK_FALSE(second->done.is_set());
  co_await second->done.wait();
  CHECK(bench.now() - start >= std::chrono::seconds(5));
  CHECK(bench.now() - start < std::chrono::seconds(6));
  CHECK(second->reply.result.good());
  CHECK(bytes_in(second->reply.data_in) == kUntouched);
  co_await first->done.wait();
  CHECK(first->reply.result.error == Error::kTimedOut);
  CHECK(session->up());
  co_await session->close();
}

// Section 7.9 again: one Data-Out that never comes is a hole before the next one …
Task<void> one_data_out_missing(Bench& bench) {
  const Told told =
      co_await write_badly(bench, {.kind = Kind::kWithholdDataOut, .at_pdu = kFirstData});
  check_aborted(told, scsi::Additional::kDataPhaseCrcError);
  co_await check_medium(bench, kUntouched);
}

// … and if none comes the command waits until it is aborted, and ABORT TASK waits for no data.
Task<void> no_data_out(Bench& bench) {
  const Told told = co_await write_badly(
      bench, {.kind = Kind::kWithholdDataOut, .at_pdu = kFirstData, .count = 100});
  CHECK(told.result.error == Error::kTimedOut);
  CHECK(told.took >= std::chrono::seconds(30));
  CHECK(told.took < std::chrono::seconds(32));
  CHECK(told.up);
  co_await check_medium(bench, kUntouched);
}

// Sections 11.2.1.2 and 11.17.1: rejected as not supported. Its CmdSN has not been received
// (section 7.3), so the initiator fills the gap and the session goes on.
Task<void> unknown_opcode(Bench& bench) {
  const Told told = co_await write_badly(bench, {.kind = Kind::kBadOpcode, .at_pdu = kCommand});
  CHECK(told.result.error == Error::kInvalid);
  CHECK(told.counters.rejects == 1);
  CHECK(told.up);
  co_await check_medium(bench, kUntouched);
}

// Section 7.8: noise in place of a header has no right digest.
Task<void> noise_with_digests(Bench& bench) {
  for (const std::uint32_t byte_count : {0U, 1U, 51U, 52U, 53U, 4096U}) {
    InitiatorOptions options = options_to(bench);
    options.connection_options[0].keys = {{"HeaderDigest", "CRC32C"}};
    const Told told =
        co_await write_badly(bench, std::move(options),
                             {.kind = Kind::kGarbage, .at_pdu = kCommand, .value = byte_count});
    CHECK_FALSE(told.up);
    CHECK(told.result.error != Error::kNone);
  }
  co_await check_medium(bench, kUntouched);
  co_await check_gone(bench);
}

// Without digests noise may look like anything, mostly a format error (section 7.7). Whatever it
// looks like, the command ends in time, is not told to be done unless it is, and nobody else
// suffers.
Task<void> noise(Bench& bench) {
  for (std::uint32_t byte_count = 1; byte_count <= 240; byte_count += 12) {
    const Told told = co_await write_badly(
        bench, {.kind = Kind::kGarbage, .at_pdu = kCommand, .value = byte_count});
    CHECK(told.took < std::chrono::minutes(2));
    const Bytes bytes = co_await medium(bench);
    CHECK((bytes == kUntouched || bytes == written()));
    if (told.result.good()) CHECK(bytes == written());
  }
  co_await check_gone(bench);
}

// Section 7.14: a connection that ends in the middle of a header or of a write takes its
// commands with it; what had not come as a whole does not reach the medium.
Task<void> connection_ends(Bench& bench) {
  for (const Kind kind : {Kind::kTruncate, Kind::kDrop}) {
    for (const std::uint64_t at : {kCommand, kFirstData, kFirstData + 1, kFirstData + 3}) {
      const Told told = co_await write_badly(bench, {.kind = kind, .at_pdu = at});
      CHECK(told.result.error == Error::kReset);
      CHECK_FALSE(told.up);
      CHECK(told.took < std::chrono::seconds(5));
    }
  }
  co_await check_medium(bench, kUntouched);
  co_await check_gone(bench);
}

// Nothing in section 4.2.5 says how soon data have to come: the command waits, others do not.
Task<void> late_data(Bench& bench) {
  const Session session = co_await log_in_with(
      options_to(bench),
      {.kind = Kind::kDelay, .at_pdu = kFirstData, .delay = std::chrono::seconds(25)});
  const TimePoint start = bench.now();
  const auto write = PendingCommand::start(*session, write_of(written()));
  co_await bench.sleep(std::chrono::seconds(1));
  co_await check_medium(bench, kUntouched);
  CHECK(bench.now() - start < std::chrono::seconds(5));
  CHECK_FALSE(write->done.is_set());
  co_await write->done.wait();
  CHECK(write->reply.result.good());
  CHECK(bench.now() - start >= std::chrono::seconds(25));
  co_await session->close();
  co_await check_medium(bench, written());
}

// Section 4.2.2.1: commands run in the order of CmdSN, however they come.
Task<void> commands_swapped(Bench& bench) {
  const Session session =
      co_await log_in_with(options_to(bench), {.kind = Kind::kHoldBack, .at_pdu = kCommand});
  const auto first = PendingCommand::start(*session, write_of(pattern_of(kBlock, 1)));
  const auto second = PendingCommand::start(*session, read_of(1));
  co_await first->done.wait();
  co_await second->done.wait();
  CHECK(first->reply.result.good());
  CHECK(second->reply.result.good());
  CHECK(session->counters().rejects == 0);
  // Both were SIMPLE, so only their start is in order; the write waits for its data.
  const InitiatorSession::Reply after = co_await session->execute(read_of(1));
  CHECK(bytes_in(after.data_in) == pattern_of(kBlock, 1));
  co_await session->close();
}

// Section 13.18: with DataPDUInOrder=Yes the order is DataSN's; one that overtakes is a hole.
Task<void> data_swapped(Bench& bench) {
  const Told told = co_await write_badly(bench, {.kind = Kind::kHoldBack, .at_pdu = kFirstData});
  check_aborted(told, scsi::Additional::kDataPhaseCrcError);
  co_await check_medium(bench, kUntouched);
}

std::size_t memory_in_use(Bench& bench) {
  std::size_t total = 0;
  for (Executor* const executor : bench.world().executors()) {
    total += executor->buffers().used_bytes();
  }
  return total;
}

// Nobody has to be waited for without end: who takes no answers is given up, and what stood ready
// for it is memory for others again.
Task<void> reads_nothing(Bench& bench) {
  Session session =
      co_await log_in_with(options_to(bench), {.kind = Kind::kStopReading, .at_pdu = kCommand});
  std::vector<std::shared_ptr<PendingCommand>> reads;
  for (int count = 0; count < 24; ++count) {
    ScsiRequest request = read_of(1024);
    request.timeout = std::chrono::seconds(20);
    reads.push_back(PendingCommand::start(*session, std::move(request)));
  }
  co_await bench.sleep(std::chrono::seconds(1));
  co_await check_medium(bench, kUntouched);  // Somebody else is served meanwhile.
  for (const auto& read : reads) {
    co_await read->done.wait();
    CHECK(read->reply.result.error != Error::kNone);
  }
  reads.clear();
  co_await session->close();
  session.reset();
  co_await bench.sleep(std::chrono::minutes(2));
  co_await check_gone(bench);
  CHECK(memory_in_use(bench) < std::size_t{2} << 20);
}

BenchOptions little_patience() {
  BenchOptions options = small_pdus();
  options.limits.send_stall_timeout = std::chrono::seconds(10);
  return options;
}

}  // namespace

TEST_CASE("7.8 kCorruptHeaderDigest: the connection ends") {
  on_bench(small_pdus(), header_digest);
}
TEST_CASE("7.8 kCorruptDataDigest: a Data-Out is rejected and its command ends") {
  on_bench(small_pdus(), data_digest);
}
TEST_CASE("7.8 kCorruptDataDigest: a request is rejected and its connection ends") {
  on_bench(small_pdus(), data_digest_of_a_ping);
}
TEST_CASE("7.9 kWrongDataSn: the command ends") { on_bench(small_pdus(), data_sn); }
TEST_CASE("11.7.4 kWrongBufferOffset: the command ends") { on_bench(small_pdus(), buffer_offset); }
TEST_CASE("11.7.3 kWrongTransferTag: the data count as lost") {
  on_bench(small_pdus(), transfer_tag);
}
TEST_CASE("11.7.3 kWrongTransferTag on all data: the command can be aborted") {
  on_bench(small_pdus(), every_transfer_tag);
}
TEST_CASE("4.2.2.1 kDuplicate: a command is executed once") {
  on_bench(small_pdus(), command_twice);
}
TEST_CASE("7.9 kDuplicate: a Data-Out that comes twice ends the command") {
  on_bench(small_pdus(), data_twice);
}
TEST_CASE("4.2.2.1 kSkipCmdSn: nothing passes the gap until ABORT TASK closes it") {
  on_bench(small_pdus(), missing_cmd_sn);
}
TEST_CASE("7.9 kWithholdDataOut: one that is missing ends the command") {
  on_bench(small_pdus(), one_data_out_missing);
}
TEST_CASE("11.5 kWithholdDataOut: a command without data can be aborted") {
  on_bench(small_pdus(), no_data_out);
}
TEST_CASE("11.17.1 kBadOpcode: rejected, and the session goes on") {
  on_bench(small_pdus(), unknown_opcode);
}
TEST_CASE("7.8 kGarbage: with header digests the connection ends") {
  on_bench(small_pdus(), noise_with_digests);
}
TEST_CASE("7.7 kGarbage: without digests nothing is told that is not so") {
  on_bench(small_pdus(), noise);
}
TEST_CASE("7.14 kTruncate, kDrop: the connection's commands end with it") {
  on_bench(small_pdus(), connection_ends);
}
TEST_CASE("4.2.5 kDelay: late data are waited for, by their command alone") {
  on_bench(small_pdus(), late_data);
}
TEST_CASE("4.2.2.1 kHoldBack: commands run in the order of CmdSN") {
  on_bench(small_pdus(), commands_swapped);
}
TEST_CASE("13.18 kHoldBack: a Data-Out that comes too late ends its command") {
  on_bench(small_pdus(), data_swapped);
}
TEST_CASE("kStopReading: who takes no answers is given up") {
  on_bench(little_patience(), reads_nothing);
}

}  // namespace sandbay::iscsi::test
