// iSCSI URLs as libiscsi has them.
#include <catch2/catch.hpp>

#include "iscsi/initiator_url.h"

namespace sandbay::iscsi {

TEST_CASE("A URL names portal, target and LUN", "[initiator][url]") {
  const auto url = parse_url("iscsi://192.0.2.7:3261/iqn.2026-11.org.sandbay:disk/5");
  REQUIRE(url.has_value());
  CHECK(url->endpoint.to_string() == "192.0.2.7:3261");
  CHECK(url->target_name == "iqn.2026-11.org.sandbay:disk");
  CHECK(url->lun_number == 5);
  CHECK(url->lun == 0x0005'0000'0000'0000U);
  CHECK_FALSE(url->chap.has_value());
}

TEST_CASE("Port 3260, IPv6 and localhost", "[initiator][url]") {
  CHECK(parse_url("iscsi://127.0.0.1/iqn.a:b/0")->endpoint.port() == 3260);
  CHECK(parse_url("iscsi://[2001:db8::8]:99/iqn.a:b/0")->endpoint.to_string() ==
        "[2001:db8::8]:99");
  CHECK(parse_url("iscsi://[::1]/iqn.a:b/0")->endpoint.to_string() == "[::1]:3260");
  CHECK(parse_url("iscsi://localhost:77/iqn.a:b/0")->endpoint.to_string() == "127.0.0.1:77");
}

TEST_CASE("User and password, plain and escaped", "[initiator][url]") {
  const auto plain = parse_url("iscsi://anna%secret-word@127.0.0.1/iqn.a:b/0");
  REQUIRE(plain.has_value());
  CHECK(plain->chap->user == "anna");
  CHECK(plain->chap->secret == "secret-word");
  // "%ab" could be an escape; there is no other separator.
  const auto hexadecimal = parse_url("iscsi://anna%abcdefgh@127.0.0.1/iqn.a:b/0");
  REQUIRE(hexadecimal.has_value());
  CHECK(hexadecimal->chap->user == "anna");
  CHECK(hexadecimal->chap->secret == "abcdefgh");
  const auto escaped = parse_url("iscsi://an%40na%se%2Fcret%xyz@127.0.0.1/iqn.a:b/0");
  REQUIRE(escaped.has_value());
  CHECK(escaped->chap->user == "an@na");
  CHECK(escaped->chap->secret == "se/cret%xyz");
}

TEST_CASE("A discovery URL has no target", "[initiator][url]") {
  CHECK(parse_url("iscsi://127.0.0.1")->target_name.empty());
  CHECK(parse_url("iscsi://127.0.0.1:3260/")->target_name.empty());
}

TEST_CASE("LUNs above 255 use flat space addressing", "[initiator][url]") {
  CHECK(parse_url("iscsi://127.0.0.1/iqn.a:b/255")->lun == 0x00FF'0000'0000'0000U);
  CHECK(parse_url("iscsi://127.0.0.1/iqn.a:b/256")->lun == 0x4100'0000'0000'0000U);
  CHECK(parse_url("iscsi://127.0.0.1/iqn.a:b/16383")->lun == 0x7FFF'0000'0000'0000U);
}

TEST_CASE("A session's connections take the portals of its URL in turn", "[initiator][url]") {
  const auto url = parse_url("iscsi://an%na@127.0.0.1:1,localhost:2,[::1]/iqn.a:b/0");
  REQUIRE(url.has_value());
  CHECK(url->endpoint.port() == 1);
  std::string portals;
  for (const auto& path : paths_of(*url, 4)) portals += path.endpoint->to_string() + " ";
  CHECK(paths_of(*parse_url("iscsi://127.0.0.1/iqn.a:b/0"), 2).empty());
  CHECK(portals == "127.0.0.1:1 127.0.0.1:2 [::1]:3260 127.0.0.1:1 ");
}

TEST_CASE("A wrong URL is refused with what is wrong in it", "[initiator][url]") {
  const auto [url, reason] = GENERATE(table<std::string, std::string>({
      {"http://127.0.0.1/iqn.a:b/0", "does not begin with iscsi://"},
      {"iscsi:///iqn.a:b/0", "the host is missing"},
      {"iscsi://example/iqn.a:b/0", "\"example\" is not an IP address"},
      {"iscsi://127.0.0.1,/iqn.a:b/0", "\"127.0.0.1,\" is not an IP address"},
      {"iscsi://127.0.0.1:99999/iqn.a:b/0", "is not an IP address with an optional port"},
      {"iscsi://127.0.0.1/disk/0", "\"disk\" is not a target name"},
      {"iscsi://127.0.0.1/iqn.a:b", "the LUN is missing"},
      {"iscsi://127.0.0.1/iqn.a:b/", "\"\" is not a LUN"},
      {"iscsi://127.0.0.1/iqn.a:b/x", "\"x\" is not a LUN"},
      {"iscsi://127.0.0.1/iqn.a:b/1/2", "\"1/2\" is not a LUN"},
      {"iscsi://127.0.0.1/iqn.a:b/16384", "is not a LUN from 0 to 16383"},
      {"iscsi://127.0.0.1/iqn.a:b/-1", "is not a LUN"},
      {"iscsi://anna@127.0.0.1/iqn.a:b/0", "not user%password"},
      {"iscsi://anna%@127.0.0.1/iqn.a:b/0", "the password is empty"},
  }));
  const auto parsed = parse_url(url);
  REQUIRE_FALSE(parsed.has_value());
  CHECK(parsed.error().find(reason) != std::string::npos);
  CHECK(parsed.error().find(url) != std::string::npos);
}

}  // namespace sandbay::iscsi
