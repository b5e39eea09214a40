// How the target cuts its stream into PDUs, and into what it receives.
#include <catch2/catch.hpp>

#include <cstring>

#include "../block/on_executor.h"
#include "iscsi/target_framing.h"

namespace sandbay::iscsi::test {
namespace {

class NoMemory final : public PayloadSource {
 public:
  BufferList payload_for(const IncomingPdu& /*pdu*/, std::size_t /*byte_count*/) override {
    return {};
  }
};

// Feeds a PDU with 256 KiB of data for which there is no memory; how many receives that takes.
Task<void> discard(Executor& home, std::size_t& receives) {
  NoMemory none;
  PduFramer framer(home.buffers(), none);
  framer.set_limit(262144);
  Bhs bhs;
  write_data_out({.data_segment_length = 262144, .initiator_task_tag = 1}, bhs);
  std::vector<std::byte> bytes(bhs.begin(), bhs.end());
  bytes.resize(bytes.size() + 262144);
  IncomingPdu pdu;
  std::size_t sent = 0;
  while (framer.next(pdu) == PduFramer::Step::kMore) {
    std::size_t taken = 0;
    for (const IoSlice& target : framer.targets()) {
      const std::size_t piece = std::min(target.byte_count, bytes.size() - sent - taken);
      std::memcpy(target.data, bytes.data() + sent + taken, piece);
      taken += piece;
    }
    framer.received(taken);
    sent += taken;
    ++receives;
    if (taken == 0) break;
  }
  CHECK(sent == bytes.size());
  CHECK(pdu.data_dropped);
  co_return;
}

}  // namespace

TEST_CASE("Data for which there is no memory are received in large pieces", "[framing][I-11a]") {
  std::size_t receives = 0;
  testing::run_in_world(1, [&](Executor& home) { return discard(home, receives); });
  CHECK(receives < 30);
}

}  // namespace sandbay::iscsi::test
