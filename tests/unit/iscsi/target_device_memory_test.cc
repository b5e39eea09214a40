// Payloads of writes that are received straight in memory of the device: which of them are, and
// that whoever stops in the middle of writes takes none of it from others for good.
#include <catch2/catch.hpp>

#include "target_bench.h"

namespace sandbay::iscsi::test {
namespace {

constexpr std::size_t kDeviceMemory = std::size_t{64} << 20;
constexpr const char* kAllKinds =
    "InitialR2T=No;ImmediateData=Yes;FirstBurstLength=65536;MaxBurstLength=262144";

sim::LinkOptions whole_receives() { return {.fragment = false}; }

Task<void> open_memory(testing::ReceivingDevice* device) {
  device->open(kDeviceMemory);
  co_return;
}

Task<std::size_t> memory_in_use(testing::ReceivingDevice* device) {
  co_return device->pool().used_bytes();
}

Task<std::size_t> in_use(Bench& bench) {
  testing::ReceivingDevice& device = bench.receiving(0);
  const std::size_t byte_count = co_await invoke_on(device.home(), memory_in_use(&device));
  co_return byte_count;
}

// Whether the session's one connection is where the unit is, so that nothing has to cross.
Task<bool> is_at_home(Bench& bench, const RawInitiator& peer) {
  const std::vector<SessionInfo> sessions = co_await bench.server().sessions();
  for (const SessionInfo& session : sessions) {
    if (session.tsih != peer.tsih) continue;
    co_return session.connections.at(0).executor == bench.receiving(0).home().index();
  }
  co_return false;
}

// Immediate, unsolicited and solicited data make up one write.
Task<void> write_all_kinds(RawInitiator& peer, std::uint32_t lba, const Bytes& whole) {
  const auto blocks = static_cast<std::uint32_t>(whole.size() / kBlock);
  RawCommand write = writing(lba, blocks, Bytes(whole.begin(), whole.begin() + 32768));
  write.final = false;
  const std::uint32_t tag = co_await send_command(peer, std::move(write));
  // Some initiators set no LUN here, or a wrong one.
  co_await send_data_out(peer,
                         {.lun = kSecondUnit, .initiator_task_tag = tag, .buffer_offset = 32768},
                         Bytes(whole.begin() + 32768, whole.begin() + 65536));
  const RawPdu end = co_await finish_write(peer, tag, whole, 65536);
  CHECK(end.status() == 0);
}

Task<void> received_in_place(Bench& bench) {
  testing::ReceivingDevice& device = bench.receiving(0);
  co_await invoke_on(device.home(), open_memory(&device));
  bool at_home = true;
  // The first connection takes the units' executor, and the next one goes to the other.
  for (const std::uint8_t isid : {std::uint8_t{1}, std::uint8_t{2}}) {
    RawInitiator& peer = *co_await bench.session({.keys = kAllKinds, .isid = isid});
    const bool home = co_await is_at_home(bench, peer);
    at_home = at_home && home;
    const std::uint64_t before = device.here_bytes();
    const Bytes whole = pattern_of(4000 * kBlock, isid);
    co_await write_all_kinds(peer, 8, whole);
    CHECK(device.here_bytes() - before == (home ? whole.size() : 0));
    const Bytes back = co_await read_back(peer, reading(8, 4000));
    CHECK(back == whole);
    // Another unit, and little: as ever.
    const RawPdu other = co_await answer_to(peer, writing(0, 8, pattern_of(4096), kSecondUnit));
    CHECK(other.status() == 0);
    const RawPdu little = co_await answer_to(peer, writing(0, 1, pattern_of(kBlock)));
    CHECK(little.status() == 0);
    CHECK(device.here_bytes() - before == (home ? whole.size() : 0));
  }
  CHECK(at_home == (bench.world().executors().size() == 1));
  CHECK(device.here_bytes() > 0);
  CHECK(device.here_bytes() + device.elsewhere_bytes() == 2 * 4000 * kBlock + 2 * kBlock);
  const std::size_t left = co_await in_use(bench);
  CHECK(left == 0);
}

// Data that have come, and R2Ts that are never answered.
Task<void> stopped_writers(Bench& bench) {
  testing::ReceivingDevice& device = bench.receiving(0);
  co_await invoke_on(device.home(), open_memory(&device));
  std::vector<RawInitiator*> crowd;
  for (std::uint8_t isid = 1; isid <= 16; ++isid) {
    RawInitiator* const peer = co_await bench.session(
        {.keys = "InitialR2T=Yes;ImmediateData=Yes;FirstBurstLength=262144", .isid = isid});
    crowd.push_back(peer);
    for (int i = 0; i < 20; ++i) {
      co_await send_command(*peer, writing(0, 1024, pattern_of(262144)));
    }
  }
  co_await bench.sleep(std::chrono::seconds(1));
  const std::size_t held = co_await in_use(bench);
  CHECK(held <= kDeviceMemory / 2);
  CHECK(held > kDeviceMemory / 2 - 262144);
  RawInitiator& other = *co_await bench.session({.isid = 99});
  const Bytes data = pattern_of(65536, 3);
  const std::uint32_t tag = co_await send_command(other, writing(4096, 128));
  const RawPdu end = co_await finish_write(other, tag, data);
  CHECK(end.status() == 0);
  const Bytes back = co_await read_back(other, reading(4096, 128));
  CHECK(back == data);
  for (RawInitiator* const peer : crowd) peer->reset();
  co_await bench.sleep(std::chrono::seconds(5));
  const std::size_t left = co_await in_use(bench);
  CHECK(left == 0);
}

}  // namespace

TEST_CASE("A large write is received in the memory of its device") {
  on_bench({.keys = {{"InitialR2T", "No"}}}, received_in_place);
}
TEST_CASE("Writes that stop in the middle give a device's memory back") {
  on_bench({.memory_limit_bytes = std::size_t{256} << 20, .link = whole_receives()},
           stopped_writers);
}

}  // namespace sandbay::iscsi::test
