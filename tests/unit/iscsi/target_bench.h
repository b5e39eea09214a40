// A target server over two logical units that can be hung, and raw initiators against it, all in
// one simulated world. Every test runs with one executor and with two: then the units live on
// another executor than the server and the peers.
#pragma once

#include <catch2/catch.hpp>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../block/test_devices.h"
#include "block/memory_device.h"
#include "iscsi/target_server.h"
#include "raw_initiator.h"
#include "runtime/simulation.h"
#include "scsi/logical_unit.h"
#include "scsi/task_router.h"

namespace sandbay::iscsi::test {

inline constexpr std::uint32_t kBlock = 512;
inline constexpr std::uint64_t kSecondUnit = 0x0001'0000'0000'0000;
inline constexpr const char* kBenchTarget = "iqn.2026-11.org.sandbay:target";

inline ServerLimits quiet_limits() {
  ServerLimits limits;
  limits.nop_in_interval = Duration{0};  // No pings of the target's between the lines of a test.
  return limits;
}

struct BenchOptions {
  unsigned executors = 1;
  std::map<std::string, std::string> keys;
  ServerLimits limits = quiet_limits();
  std::uint32_t queue_depth = 32;
  std::size_t memory_limit_bytes = std::size_t{64} << 20;
  sim::LinkOptions link;
  TransferPace pace;
  Interferences* interferences = nullptr;
};

class Bench {
 public:
  explicit Bench(BenchOptions options)
      : options_(std::move(options)),
        world_(sim::World::create({.seed = 11 + options_.executors,
                                   .executors = options_.executors,
                                   .memory_limit_bytes = options_.memory_limit_bytes,
                                   .link = options_.link})) {}

  sim::World& world() { return *world_; }
  TargetServer& server() { return *server_; }
  std::vector<ServerEvent>& events() { return events_; }
  testing::HungDevice& device(std::size_t lun) { return *units_[lun].hung; }
  testing::SharingDevice& sharing(std::size_t lun) { return *units_[lun].sharing; }
  testing::ReceivingDevice& receiving(std::size_t lun) { return *units_[lun].receiving; }
  scsi::TaskRouter& router() { return *router_; }
  Endpoint endpoint() const { return endpoint_; }
  TimePoint now() const { return world_->now(); }
  Task<void> sleep(Duration duration) { co_await Executor::current().sleep_for(duration); }

  Task<RawInitiator*> connect() {
    RawInitiator* const peer = co_await connect_to(endpoint_);
    co_return peer;
  }
  Task<RawInitiator*> connect_to(Endpoint endpoint) {
    auto stream = co_await Executor::current().connect(endpoint);
    if (!stream.has_value()) FAIL_CHECK("no connection");
    if (!stream.has_value()) co_return nullptr;
    peers_.push_back(std::make_unique<RawInitiator>(std::move(*stream)));
    co_return peers_.back().get();
  }
  // Connected and logged in, with the unit attentions of both units taken.
  Task<RawInitiator*> session(RawLogin login = {});
  Task<void> take_attentions(RawInitiator& peer);

  Task<void> whole(Task<void> (*script)(Bench&)) {
    co_await set_up();
    co_await script(*this);
    co_await tear_down();
  }
  static Task<void> release(testing::HungDevice& device) {  // On its executor.
    device.release();
    co_return;
  }
  Task<void> end_server() {
    co_await server_->shutdown();
    server_.reset();
  }

 private:
  struct Unit {
    std::unique_ptr<MemoryDevice> memory;
    std::unique_ptr<testing::SharingDevice> sharing;
    std::unique_ptr<testing::ReceivingDevice> receiving;
    std::unique_ptr<testing::HungDevice> hung;
    std::unique_ptr<scsi::LogicalUnit> unit;
  };

  Task<void> set_up() {
    Executor& home = *world_->executors().back();
    router_ = std::make_unique<scsi::TaskRouter>(world_->executors());
    for (std::uint32_t lun = 0; lun < units_.size(); ++lun) {
      Unit& unit = units_[lun];
      auto memory = MemoryDevice::create(
          home, {.byte_count = std::uint64_t{64} << 20, .block_bytes = kBlock});
      assert(memory.has_value());
      unit.memory = std::move(*memory);
      unit.sharing = std::make_unique<testing::SharingDevice>(*unit.memory);
      unit.receiving = std::make_unique<testing::ReceivingDevice>(*unit.sharing);
      unit.hung = std::make_unique<testing::HungDevice>(*unit.receiving);
      unit.unit = std::make_unique<scsi::LogicalUnit>(*unit.hung, scsi::LogicalUnitOptions{});
      const Error added = co_await router_->add(lun, unit.unit.get());
      assert(added == Error::kNone);
    }
    server_ = TargetServer::create(
        options_.limits, [this](const ServerEvent& event) { events_.push_back(event); },
        options_.interferences);
    std::string message;
    const Error made = co_await server_->add_target({.name = kBenchTarget,
                                                     .device = router_.get(),
                                                     .access = {AccessRecord{}},
                                                     .keys = options_.keys,
                                                     .queue_depth = options_.queue_depth,
                                                     .pace = options_.pace},
                                                    &message);
    if (made != Error::kNone) FAIL_CHECK(message);
    const auto portal = server_->add_portal({.listen = Endpoint::ipv4(0x7F000001, 3260)});
    endpoint_ = portal.value_or(Endpoint());
  }

  Task<void> tear_down() {
    if (server_ != nullptr) co_await end_server();
    for (auto& peer : peers_) co_await peer->close();
    peers_.clear();
    for (std::uint32_t lun = 0; lun < units_.size(); ++lun) {
      Unit& unit = units_[lun];
      co_await invoke_on(unit.unit->home(), release(*unit.hung));
      co_await router_->remove(lun);
      const bool closed = co_await invoke_on(
          unit.unit->home(), unit.unit->close(world_->now() + std::chrono::minutes(1)));
      if (!closed) FAIL_CHECK("a logical unit still holds commands");
      unit.unit.reset();
      co_await invoke_on(unit.receiving->home(), close(*unit.receiving));
    }
    co_await router_->close();
    router_.reset();
  }
  static Task<void> close(testing::ReceivingDevice& device) {
    device.close();
    co_return;
  }

  BenchOptions options_;
  std::unique_ptr<sim::World> world_;
  std::array<Unit, 2> units_;
  std::unique_ptr<scsi::TaskRouter> router_;
  std::vector<ServerEvent> events_;
  std::unique_ptr<TargetServer> server_;
  std::vector<std::unique_ptr<RawInitiator>> peers_;
  Endpoint endpoint_;
};

// Runs a test's coroutine with one executor and with two.
inline void on_bench(BenchOptions options, Task<void> (*script)(Bench&),
                     Duration limit = std::chrono::hours(1)) {
  for (const unsigned executors : {1U, 2U}) {
    INFO("executors: " << executors);
    options.executors = executors;
    auto bench = std::make_unique<Bench>(options);
    const bool ended = bench->world().run([&] { return bench->whole(script); }, limit);
    // Its coroutines are suspended for good: nothing of it may be destroyed any more.
    if (!ended) static_cast<void>(bench.release());
    REQUIRE(ended);
  }
}

// SCSI commands --------------------------------------------------------------------------------

struct RawCommand {
  std::uint8_t operation = 0;  // READ (10) or WRITE (10) below; 0: TEST UNIT READY.
  std::uint32_t lba = 0;
  std::uint32_t blocks = 0;
  std::uint64_t lun = 0;
  std::uint32_t expected = ~0U;  // The Expected Data Transfer Length if not that of the blocks.
  bool final = true;
  bool immediate = false;
  AttributeCode attribute = AttributeCode::kSimple;
  Bytes data;  // Immediate data.
  std::uint32_t cmd_sn = 0;
  bool own_cmd_sn = false;
  std::uint32_t tag = 0;  // 0: the next one.
};

// Sends a command; its task tag.
inline Task<std::uint32_t> send_command(RawInitiator& peer, RawCommand command) {
  const std::uint32_t tag = command.tag != 0 ? command.tag : peer.next_tag++;
  ScsiCommand pdu{.immediate = command.immediate,
                  .final = command.final,
                  .read = command.operation == 0x28,
                  .write = command.operation == 0x2A,
                  .attribute = command.attribute,
                  .lun = command.lun,
                  .initiator_task_tag = tag,
                  .cmd_sn = command.own_cmd_sn ? command.cmd_sn : peer.cmd_sn,
                  .exp_stat_sn = peer.exp_stat_sn};
  if (!command.own_cmd_sn && !command.immediate) ++peer.cmd_sn;
  pdu.expected_data_transfer_length =
      command.expected != ~0U ? command.expected : command.blocks * kBlock;
  pdu.cdb[0] = std::byte{command.operation};
  if (command.operation != 0) {
    put_big_endian<std::uint32_t>(pdu.cdb, 2, command.lba);
    put_big_endian<std::uint16_t>(pdu.cdb, 7, static_cast<std::uint16_t>(command.blocks));
  }
  Bhs bhs;
  write_scsi_command(pdu, bhs);
  co_await peer.send(bhs, std::move(command.data));
  co_return tag;
}

inline RawCommand reading(std::uint32_t lba, std::uint32_t blocks, std::uint64_t lun = 0) {
  return {.operation = 0x28, .lba = lba, .blocks = blocks, .lun = lun};
}
inline RawCommand writing(std::uint32_t lba, std::uint32_t blocks, Bytes data = {},
                          std::uint64_t lun = 0) {
  return {.operation = 0x2A, .lba = lba, .blocks = blocks, .lun = lun, .data = std::move(data)};
}

// Sends and waits for what comes back first.
inline Task<RawPdu> answer_to(RawInitiator& peer, RawCommand command) {
  const std::uint32_t tag = co_await send_command(peer, std::move(command));
  RawPdu pdu = co_await peer.next_of(tag);
  co_return pdu;
}

inline Task<void> send_data_out(RawInitiator& peer, DataOut pdu, Bytes data) {
  pdu.exp_stat_sn = peer.exp_stat_sn;
  Bhs bhs;
  write_data_out(pdu, bhs);
  co_await peer.send(bhs, std::move(data));
}

// Answers one R2T with PDUs of at most `most` bytes out of `whole`, the command's data.
inline Task<void> answer_r2t(RawInitiator& peer, ReadyToTransfer r2t, const Bytes& whole,
                             std::uint32_t most, std::uint64_t lun = 0) {
  std::uint32_t done = 0;
  std::uint32_t data_sn = 0;
  while (done < r2t.desired_data_transfer_length) {
    const std::uint32_t byte_count = std::min(most, r2t.desired_data_transfer_length - done);
    const auto begin = whole.begin() + r2t.buffer_offset + done;
    done += byte_count;
    co_await send_data_out(peer,
                           {.final = done == r2t.desired_data_transfer_length,
                            .lun = lun,
                            .initiator_task_tag = r2t.initiator_task_tag,
                            .target_transfer_tag = r2t.target_transfer_tag,
                            .data_sn = data_sn++,
                            .buffer_offset = r2t.buffer_offset + done - byte_count},
                           Bytes(begin, begin + byte_count));
  }
}

// Answers R2Ts until the command's status comes.
inline Task<RawPdu> finish_write(RawInitiator& peer, std::uint32_t tag, const Bytes& whole,
                                 std::uint32_t most = 8192) {
  for (;;) {
    RawPdu pdu = co_await peer.next_of(tag, std::chrono::minutes(10));
    if (!pdu.is(Opcode::kReadyToTransfer)) co_return pdu;
    co_await answer_r2t(peer, pdu.r2t(), whole, most);
  }
}

// The data of a read, put together from its Data-Ins; empty unless its status is GOOD.
inline Task<Bytes> read_back(RawInitiator& peer, RawCommand command) {
  Bytes whole(command.blocks * kBlock);
  const std::uint32_t tag = co_await send_command(peer, std::move(command));
  for (;;) {
    const RawPdu pdu = co_await peer.next_of(tag);
    if (!pdu.is(Opcode::kDataIn)) co_return pdu.status() == 0 ? whole : Bytes{};
    const DataIn data = pdu.data_in();
    if (data.buffer_offset + pdu.data.size() > whole.size()) co_return Bytes{};
    std::ranges::copy(pdu.data, whole.begin() + data.buffer_offset);
    if (data.has_status) co_return data.status == 0 ? whole : Bytes{};
  }
}

inline Task<std::uint32_t> send_management(RawInitiator& peer, TaskManagementRequest request) {
  request.initiator_task_tag = peer.next_tag++;
  if (request.cmd_sn == 0) request.cmd_sn = peer.cmd_sn;
  request.exp_stat_sn = peer.exp_stat_sn;
  Bhs bhs;
  write_task_management_request(request, bhs);
  co_await peer.send(bhs);
  co_return request.initiator_task_tag;
}

inline constexpr int kComplete = static_cast<int>(TaskManagementResult::kFunctionComplete);

// Sends and waits for the answer.
inline Task<RawPdu> managed(RawInitiator& peer, TaskManagementRequest request) {
  const std::uint32_t tag = co_await send_management(peer, request);
  RawPdu pdu = co_await peer.next_of(tag);
  co_return pdu;
}

inline Task<std::uint32_t> send_ping(RawInitiator& peer, Bytes data = {}, bool immediate = true) {
  const NopOut nop{.immediate = immediate,
                   .initiator_task_tag = peer.next_tag++,
                   .cmd_sn = peer.cmd_sn,
                   .exp_stat_sn = peer.exp_stat_sn};
  if (!immediate) ++peer.cmd_sn;
  Bhs bhs;
  write_nop_out(nop, bhs);
  co_await peer.send(bhs, std::move(data));
  co_return nop.initiator_task_tag;
}

inline Task<std::uint32_t> send_logout(RawInitiator& peer, LogoutReason reason,
                                       std::uint16_t cid = 0) {
  const LogoutRequest request{.immediate = true,
                              .reason = reason,
                              .initiator_task_tag = peer.next_tag++,
                              .cid = cid,
                              .cmd_sn = peer.cmd_sn,
                              .exp_stat_sn = peer.exp_stat_sn};
  Bhs bhs;
  write_logout_request(request, bhs);
  co_await peer.send(bhs);
  co_return request.initiator_task_tag;
}

inline Task<RawPdu> ask_text(RawInitiator& peer, std::string pairs) {
  const TextRequest request{.immediate = true,
                            .initiator_task_tag = peer.next_tag++,
                            .cmd_sn = peer.cmd_sn,
                            .exp_stat_sn = peer.exp_stat_sn};
  Bhs bhs;
  write_text_request(request, bhs);
  co_await peer.send(bhs, bytes_of(text_of(pairs)));
  RawPdu pdu = co_await peer.next();
  co_return pdu;
}

inline Task<void> Bench::take_attentions(RawInitiator& peer) {
  for (const std::uint64_t lun : {std::uint64_t{0}, kSecondUnit}) {
    for (int attempt = 0; attempt < 4; ++attempt) {
      const RawPdu pdu = co_await answer_to(peer, {.lun = lun});
      if (pdu.status() == 0 || pdu.none()) break;
    }
  }
}

inline Task<RawInitiator*> Bench::session(RawLogin login) {
  RawInitiator* const peer = co_await connect();
  if (peer == nullptr) co_return nullptr;
  const bool header = login.keys.find("HeaderDigest=CRC32C") != std::string::npos;
  const bool data = login.keys.find("DataDigest=CRC32C") != std::string::npos;
  const RawPdu answer = co_await peer->log_in(std::move(login));
  peer->header_digest_on = header;
  peer->data_digest_on = data;
  CHECK(answer.is(Opcode::kLoginResponse));
  CHECK(answer.login().status == LoginStatus::kSuccess);
  CHECK(answer.login().transit);
  co_await take_attentions(*peer);
  co_return peer;
}

}  // namespace sandbay::iscsi::test
