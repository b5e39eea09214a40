// Which Host headers and content types pass.
#include <catch2/catch.hpp>

#include "mgmt/server.h"

namespace sandbay::mgmt {
namespace {

TEST_CASE("Hosts are IP addresses or localhost", "[guard]") {
  for (const char* host : {"127.0.0.1", "127.0.0.1:8260", "192.0.2.1:1", "localhost",
                           "LocalHost:8260", "[::1]", "[::1]:8260", "[2001:db8::1]:80"}) {
    CAPTURE(host);
    CHECK(is_literal_host(host));
  }
  for (const char* host :
       {"", "sandbay", "localhost.attacker.example", "127.0.0.1.nip.io", "127.1", "0x7f000001",
        "::1", "[::1", "[::1]x", "[localhost]", "attacker.example:8260"}) {
    CAPTURE(host);
    CHECK_FALSE(is_literal_host(host));
  }
}

TEST_CASE("Bodies are declared as JSON", "[guard]") {
  CHECK(is_json_type("application/json"));
  CHECK(is_json_type("application/json; charset=utf-8"));
  CHECK(is_json_type("application/json ;charset=utf-8"));
  for (const char* type : {"", "text/plain", "application/jsonp", "text/plain; application/json",
                           "multipart/form-data", "application/x-www-form-urlencoded"}) {
    CAPTURE(type);
    CHECK_FALSE(is_json_type(type));
  }
}

}  // namespace
}  // namespace sandbay::mgmt
