// iSCSI URLs as libiscsi has them: iscsi://[user%password@]host[:port][,host[:port]…]/iqn/lun
//
// Several portals are ours alone: a session's connections take them in turn.
// host is an IPv4 address or an IPv6 address in brackets; "localhost" is 127.0.0.1. The port is
// 3260 if it is left out. A URL for discovery ends after the host or a slash. Other characters of
// user and password stand for themselves; %XX with two hexadecimal digits stands for one byte in
// them, except that the first '%' not followed by two such digits separates the two.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "iscsi/initiator.h"
#include "runtime/io.h"

namespace sandbay::iscsi {

inline constexpr std::uint16_t kDefaultPort = 3260;

struct InitiatorUrl {
  Endpoint endpoint;
  std::vector<Endpoint> more_endpoints;  // After the first.
  std::string target_name;               // Empty: the URL names no target.
  std::uint64_t lun = 0;                 // Encoded as in a PDU (SAM-5 clause 4.7).
  std::uint32_t lun_number = 0;
  std::optional<ChapIdentity> chap;
};

// The string is one line that names the part that is wrong and what would be accepted.
std::expected<InitiatorUrl, std::string> parse_url(std::string_view url);

// For InitiatorOptions::connection_options of a session. Empty: the URL
// has one portal.
std::vector<InitiatorConnectionOptions> paths_of(const InitiatorUrl& url,
                                                 std::uint32_t connections);

// SAM-5 clause 4.7.7: peripheral device addressing up to 255, flat space addressing up to 16383.
// `number` is at most kLargestLun.
inline constexpr std::uint32_t kLargestLun = 16383;
std::uint64_t encode_lun(std::uint32_t number);

}  // namespace sandbay::iscsi
