// Addresses: what is accepted, and how they are written (RFC 5952 for IPv6).
#include <array>
#include <catch2/catch.hpp>
#include <string>

#include "runtime/io.h"

namespace sandbay {
namespace {

TEST_CASE("Addresses are read and written", "[endpoint]") {
  const struct {
    std::string text;
    std::uint16_t default_port;
    std::string expected;  // Empty: refused.
  } rows[] = {
      {"127.0.0.1:3260", 0, "127.0.0.1:3260"},
      {"127.0.0.1:0", 0, "127.0.0.1:0"},
      {"0.0.0.0:65535", 0, "0.0.0.0:65535"},
      {"127.0.0.1", 3260, "127.0.0.1:3260"},
      {"127.0.0.1:1", 3260, "127.0.0.1:1"},
      {"[::1]:3260", 0, "[::1]:3260"},
      {"[::1]", 3260, "[::1]:3260"},
      {"[::]:80", 0, "[::]:80"},
      {"::1", 3260, "[::1]:3260"},
      {"[2001:0DB8:0:0:1:0:0:1]:7", 0, "[2001:db8::1:0:0:1]:7"},
      {"127.0.0.1", 0, ""},
      {"", 3260, ""},
      {":3260", 0, ""},
      {"127.0.0.1:", 3260, ""},
      {"127.0.0.1:65536", 0, ""},
      {"127.0.0.1:-1", 0, ""},
      {"127.0.0.1:32x", 0, ""},
      {"127.0.0.1: 80", 0, ""},
      {"127.0.0.256:80", 0, ""},
      {"127.0.1:80", 0, ""},
      {"localhost:80", 0, ""},
      {"[127.0.0.1]:80", 0, ""},
      {"[::1:80", 0, ""},
      {"[::1]80", 0, ""},
      {"[::1]:", 0, ""},
      {"[]:80", 0, ""},
      {"[::g]:80", 0, ""},
      {"::1:", 3260, ""},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text, row.default_port);
    const auto endpoint = Endpoint::parse(row.text, row.default_port);
    if (row.expected.empty()) {
      REQUIRE_FALSE(endpoint.has_value());
      REQUIRE(endpoint.error() == Error::kInvalid);
    } else {
      REQUIRE(endpoint.has_value());
      REQUIRE(endpoint->to_string() == row.expected);
      REQUIRE(Endpoint::parse(endpoint->to_string()) == endpoint);
    }
  }
}

TEST_CASE("Addresses compare with and without their port", "[endpoint]") {
  const Endpoint one = Endpoint::ipv4(0x7F000001, 80);
  Endpoint other = *Endpoint::parse("127.0.0.1:81");
  REQUIRE(one.same_address(other));
  REQUIRE_FALSE(one == other);
  other.set_port(80);
  REQUIRE(one == other);
  REQUIRE(one.port() == 80);
  REQUIRE(one.address() == "127.0.0.1");
  REQUIRE_FALSE(one.is_any());
  REQUIRE_FALSE(one.is_ipv6());
  REQUIRE(Endpoint::ipv4(0, 80).is_any());

  std::array<std::uint8_t, 16> bytes{};
  REQUIRE(Endpoint::ipv6(bytes, 80).is_any());
  REQUIRE_FALSE(Endpoint::ipv6(bytes, 80).same_address(Endpoint::ipv4(0, 80)));
  bytes[15] = 1;
  REQUIRE(Endpoint::ipv6(bytes, 80) == *Endpoint::parse("[::1]:80"));
  REQUIRE(Endpoint::ipv6(bytes, 80).is_ipv6());
}

}  // namespace
}  // namespace sandbay
