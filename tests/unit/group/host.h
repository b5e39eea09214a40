// A host of a running group: our own initiator, logged in over loopback, that writes and reads runs
// of 64 KiB.
#pragma once

#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "iscsi/initiator.h"
#include "runtime/buffer.h"

namespace sandbay::group::testing {

constexpr std::uint64_t kRunBytes = 65536;
constexpr std::uint32_t kRunBlocks = kRunBytes / 512;

using HostSession = std::unique_ptr<iscsi::InitiatorSession>;
using HostReply = iscsi::InitiatorSession::Reply;

// Null: it is not let in.
inline Task<HostSession> log_in(std::string portal, std::string target) {
  iscsi::InitiatorOptions options;
  options.endpoint = Endpoint::parse(portal).value();
  options.initiator_name = "iqn.2026-11.org.sandbay:tester";
  options.target_name = std::move(target);
  options.reconnect = false;
  auto session = co_await iscsi::InitiatorSession::login(std::move(options));
  if (!session) co_return nullptr;
  co_return std::move(*session);
}

inline std::array<std::byte, 16> transfer(std::uint8_t operation, std::uint32_t run) {
  const std::uint32_t lba = run * kRunBlocks;
  std::array<std::byte, 16> cdb{};
  cdb[0] = std::byte{operation};
  for (unsigned i = 0; i < 4; ++i) cdb[2 + i] = static_cast<std::byte>(lba >> (24 - 8 * i));
  cdb[7] = std::byte{kRunBlocks >> 8};
  cdb[8] = std::byte{kRunBlocks & 0xFF};
  return cdb;
}

inline Task<HostReply> write_run(iscsi::InitiatorSession* session, std::uint32_t run,
                                 std::uint8_t byte) {
  iscsi::ScsiRequest request{.cdb = transfer(0x2A, run)};
  request.data_out = co_await Executor::current().buffers().allocate(kRunBytes);
  const std::vector<std::byte> content(kRunBytes, std::byte{byte});
  request.data_out.copy_from(content);
  auto reply = co_await session->execute(std::move(request));
  co_return reply;
}

inline Task<HostReply> read_run(iscsi::InitiatorSession* session, std::uint32_t run) {
  iscsi::ScsiRequest request{.cdb = transfer(0x28, run)};
  request.data_in = co_await Executor::current().buffers().allocate(kRunBytes);
  auto reply = co_await session->execute(std::move(request));
  co_return reply;
}

// Past the unit attentions of a new nexus.
inline Task<void> settle(iscsi::InitiatorSession* session) {
  bool good = false;
  for (int tries = 0; tries < 8 && !good; ++tries) {
    const HostReply reply = co_await read_run(session, 0);
    good = reply.result.good();
  }
  REQUIRE(good);
}

inline Task<void> write_runs(iscsi::InitiatorSession* session, std::uint32_t count,
                             std::uint8_t byte) {
  for (std::uint32_t run = 0; run < count; ++run) {
    const HostReply reply = co_await write_run(session, run, byte);
    REQUIRE(reply.result.good());
  }
}

// The runs from the first on are full of this byte.
inline Task<void> check_runs(iscsi::InitiatorSession* session, std::uint32_t count,
                             std::uint8_t byte) {
  for (std::uint32_t run = 0; run < count; ++run) {
    CAPTURE(run);
    const HostReply reply = co_await read_run(session, run);
    REQUIRE(reply.result.good());
    std::vector<std::byte> content(reply.data_in.byte_count());
    reply.data_in.copy_to(content);
    CHECK(content == std::vector<std::byte>(kRunBytes, std::byte{byte}));
  }
}

}  // namespace sandbay::group::testing
