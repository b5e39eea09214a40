// Writes that have failed before their data have come: when they are answered, what may end them
// meanwhile, and what their data take. RFC 7143 sections 7.8, 11.4.2, 11.4.7.2 and 11.17.1.
#include <catch2/catch.hpp>

#include "target_bench.h"

namespace sandbay::iscsi::test::target_unfinished_test {
namespace {

constexpr const char* kUnsolicited = "InitialR2T=No;FirstBurstLength=4096;MaxBurstLength=8192";

struct Broken {
  std::uint32_t tag = 0;
  std::uint32_t cmd_sn = 0;
  ReadyToTransfer r2t;
};

// A write of 16 blocks of whose data a piece with a wrong DataSN has come, and no F bit.
Task<Broken> broken_write(RawInitiator& peer) {
  Broken write{.cmd_sn = peer.cmd_sn};
  write.tag = co_await send_command(peer, writing(0, 16));
  const RawPdu asked = co_await peer.next_of(write.tag);
  CHECK(asked.is(Opcode::kReadyToTransfer));
  write.r2t = asked.r2t();
  co_await send_data_out(peer,
                         {.final = false,
                          .initiator_task_tag = write.tag,
                          .target_transfer_tag = write.r2t.target_transfer_tag,
                          .data_sn = 7},
                         pattern_of(4096));
  co_return write;
}

Task<void> send_rest(RawInitiator& peer, Broken write) {
  co_await send_data_out(peer,
                         {.final = true,
                          .initiator_task_tag = write.tag,
                          .target_transfer_tag = write.r2t.target_transfer_tag,
                          .data_sn = 8,
                          .buffer_offset = 4096},
                         pattern_of(4096));
}

Task<void> after_the_last(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes"});
  const Broken write = co_await broken_write(peer);
  const RawPdu early = co_await peer.next_of(write.tag, std::chrono::seconds(5));
  CHECK(early.silent);
  co_await send_rest(peer, write);
  const RawPdu end = co_await peer.next_of(write.tag, std::chrono::seconds(1));
  CHECK(end.sense() == 0x0B4705U);
  // What comes for it after all that is dropped without a word.
  co_await send_rest(peer, write);
  const RawPdu nothing = co_await peer.next(std::chrono::seconds(2));
  CHECK(nothing.silent);
  const RawPdu next = co_await answer_to(peer, {});
  CHECK(next.status() == 0);
}

Task<void> never(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes"});
  const Broken write = co_await broken_write(peer);
  const RawPdu end = co_await peer.next_of(write.tag, std::chrono::seconds(15));
  CHECK(end.sense() == 0x0B4705U);
}

Task<void> aborted(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes"});
  for (const bool whole_set : {false, true}) {
    const Broken write = co_await broken_write(peer);
    const std::uint32_t management = co_await send_management(
        peer, {.function = whole_set ? TaskManagementFunction::kAbortTaskSet
                                     : TaskManagementFunction::kAbortTask,
               .referenced_task_tag = whole_set ? kReservedTag : write.tag,
               .ref_cmd_sn = write.cmd_sn});
    const RawPdu answer = co_await peer.next_of(management, std::chrono::seconds(1));
    CHECK(answer.managed() == static_cast<int>(TaskManagementResult::kFunctionComplete));
    co_await send_rest(peer, write);
    const RawPdu nothing = co_await peer.next_of(write.tag, std::chrono::seconds(15));
    CHECK(nothing.silent);
  }
}

Task<void> logged_out(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes"});
  co_await broken_write(peer);
  const std::uint32_t tag = co_await send_logout(peer, LogoutReason::kCloseSession);
  const RawPdu answer = co_await peer.next_of(tag, std::chrono::seconds(1));
  CHECK(answer.logged_out() == static_cast<int>(LogoutResult::kClosed));
}

Task<void> shut_down(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes"});
  co_await broken_write(peer);
  const TimePoint before = bench.now();
  co_await bench.end_server();
  CHECK(bench.now() - before < std::chrono::seconds(1));
}

// An error of the device's: the unsolicited data are still on their way.
Task<void> device_error(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = kUnsolicited});
  RawCommand write = writing(500'000, 8);  // Behind the last block.
  write.final = false;
  const std::uint32_t tag = co_await send_command(peer, std::move(write));
  const RawPdu early = co_await peer.next_of(tag, std::chrono::seconds(5));
  CHECK(early.silent);
  co_await send_data_out(peer, {.initiator_task_tag = tag}, pattern_of(4096));
  const RawPdu end = co_await peer.next_of(tag, std::chrono::seconds(1));
  CHECK(end.status() == 2);
  CHECK(end.sense() >> 16U == 0x05U);
}

Task<void> less_than_first_burst(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = kUnsolicited});
  RawCommand write = writing(0, 16);
  write.final = false;
  const std::uint32_t tag = co_await send_command(peer, std::move(write));
  co_await send_data_out(peer, {.initiator_task_tag = tag}, pattern_of(2048));
  const RawPdu end = co_await peer.next_of(tag);
  CHECK(end.sense() == 0x0B0C0DU);
  const Bytes back = co_await read_back(peer, reading(0, 16));
  CHECK(back == Bytes(8192));
}

std::size_t memory_in_use(Bench& bench) {
  std::size_t total = 0;
  for (Executor* const executor : bench.world().executors()) {
    total += executor->buffers().used_bytes();
  }
  return total;
}

// A byte a PDU: each arrives in a block of its own and must not stay there.
Task<void> single_bytes(Bench& bench) {
  RawInitiator& peer = *co_await bench.session({.keys = "InitialR2T=Yes"});
  const Bytes whole = pattern_of(8192);
  const std::uint32_t tag = co_await send_command(peer, writing(0, 16));
  const RawPdu asked = co_await peer.next_of(tag);
  const std::size_t before = memory_in_use(bench);
  for (std::uint32_t i = 0; i < 8192; ++i) {
    if (i == 8191) co_await bench.sleep(std::chrono::milliseconds(100));
    if (i == 8191) CHECK(memory_in_use(bench) < before + 65536);
    co_await send_data_out(peer,
                           {.final = i == 8191,
                            .initiator_task_tag = tag,
                            .target_transfer_tag = asked.r2t().target_transfer_tag,
                            .data_sn = i,
                            .buffer_offset = i},
                           Bytes{whole[i]});
  }
  const RawPdu end = co_await peer.next_of(tag);
  CHECK(end.status() == 0);
  const Bytes back = co_await read_back(peer, reading(0, 16));
  CHECK(back == whole);
}

}  // namespace

TEST_CASE("7.8 11.17.1 a failed write is answered after the last of its data") {
  on_bench({}, after_the_last);
}
TEST_CASE("11.17.1 a failed write whose data never come is answered all the same") {
  on_bench({}, never);
}
TEST_CASE("7.8 task management ends a failed write whose data are awaited") {
  on_bench({}, aborted);
}
TEST_CASE("11.14 a logout does not wait for the data of a failed write") {
  on_bench({}, logged_out);
}
TEST_CASE("shutdown() does not wait for the data of a failed write") { on_bench({}, shut_down); }
TEST_CASE("11.4.2 a device's error is told after the last unsolicited data") {
  on_bench({.keys = {{"InitialR2T", "No"}}}, device_error);
}
TEST_CASE("11.4.7.2 unsolicited data of less than FirstBurstLength are an incorrect amount") {
  on_bench({.keys = {{"InitialR2T", "No"}}}, less_than_first_burst);
}
TEST_CASE("Data that come byte by byte take no more memory than they need") {
  on_bench({}, single_bytes);
}

}  // namespace sandbay::iscsi::test::target_unfinished_test
