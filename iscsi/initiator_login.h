// The Login Phase of one connection, initiator side: RFC 7143 sections 6.3, 11.12 and 11.13, with
// CHAP (section 12.1.3).
//
// Connects, goes through the security and operational stages, follows redirections, and hands the
// stream back in full feature phase. Bounded in time and in the number of exchanges.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "iscsi/initiator.h"
#include "iscsi/negotiation.h"
#include "iscsi/pdu.h"
#include "runtime/io.h"
#include "runtime/task.h"

namespace sandbay::iscsi {

struct InitiatorLoginRequest {
  Endpoint endpoint;
  std::string initiator_name;
  std::string initiator_alias;
  std::string target_name;  // Empty: discovery.
  std::optional<ChapIdentity> chap;
  std::optional<ChapIdentity> mutual_chap;
  std::vector<std::string> chap_digests;
  Isid isid;
  std::uint16_t tsih = 0;  // Not 0: adds a connection to this session, or reinstates one.
  std::uint16_t cid = 0;
  std::uint32_t cmd_sn = 1;
  std::uint32_t exp_stat_sn = 0;
  std::map<std::string, std::string> keys;
  NegotiatedParameters current;  // With a TSIH: the session's.
  Duration timeout{};
};

struct InitiatorLoginResult {
  std::unique_ptr<Stream> stream;
  Endpoint endpoint;  // Where it ended up.
  NegotiatedParameters parameters;
  std::uint16_t tsih = 0;
  StatusNumbers numbers;        // Of the last response.
  std::vector<std::byte> rest;  // Received behind it.
};

// On the executor where the connection is to live.
Task<std::expected<InitiatorLoginResult, LoginFailure>> initiator_login(
    InitiatorLoginRequest request);

}  // namespace sandbay::iscsi
