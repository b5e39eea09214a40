// iSCSI names (RFC 7143 section 4.2.7), patterns, addresses and what access records decide.
#include "iscsi/access.h"

#include <rapidcheck.h>

#include <catch2/catch.hpp>

namespace sandbay::iscsi {
namespace {

Endpoint at(const char* address) { return Endpoint::parse(address, 3260).value(); }

bool matches(const char* pattern, const char* address) {
  return AddressPattern::parse(pattern).value().matches(at(address));
}

}  // namespace

TEST_CASE("Names have one of the three forms", "[iscsi][access]") {
  for (const char* good :
       {"iqn.2001-04.com.example:storage:diskarrays-sn-a8675309", "iqn.2001-04.com.example",
        "iqn.2026-11.org.sandbay:quickstart", "eui.02004567A425678D", "eui.02004567a425678d",
        "naa.52004567BA64678D", "naa.62004567BA64678D0123456789ABCDEF"}) {
    CAPTURE(good);
    CHECK(name_problem(good).empty());
  }
  for (const char* bad :
       {"", "iqn", "iqn.", "iqn.2001-04", "iqn.2001-04.", "iqn.2001-13.com.example",
        "iqn.01-04.com.example", "iqn.2001-04.com.Example", "iqn.2001-04.com.example:a b",
        "iqn.2001-04.:x", "eui.02004567A425678", "eui.02004567A425678DX", "naa.5200", "disk1",
        "IQN.2001-04.com.example", "iqn.2001-04.com.example:\xff"}) {
    CAPTURE(bad);
    CHECK_FALSE(name_problem(bad).empty());
  }
  const std::string longest = "iqn.2001-04.com.example:" + std::string(199, 'x');
  CHECK(longest.size() == 223);
  CHECK(name_problem(longest).empty());
  CHECK(name_problem(longest + "x") == "it has 224 bytes, 223 are allowed");
}

TEST_CASE("What initiators call themselves is taken within reason", "[iscsi][access]") {
  CHECK(is_acceptable_name("iqn.1991-05.com.microsoft:WIN-Server"));
  CHECK(is_acceptable_name("my-host"));
  CHECK_FALSE(is_acceptable_name(""));
  CHECK_FALSE(is_acceptable_name("two words"));
  CHECK_FALSE(is_acceptable_name("tab\there"));
  CHECK_FALSE(is_acceptable_name(std::string(224, 'x')));
  CHECK(same_name("IQN.2001-04.com.Example", "iqn.2001-04.com.example"));
}

TEST_CASE("Patterns match with * and ?", "[iscsi][access]") {
  CHECK(matches_pattern("*", ""));
  CHECK(matches_pattern("*", "anything"));
  CHECK(matches_pattern("iqn.*:host?", "iqn.2001-04.com.example:host7"));
  CHECK(matches_pattern("IQN.*", "iqn.2001-04.com.example"));
  CHECK(matches_pattern("a*b*c", "aXXbYYbZc"));
  CHECK(matches_pattern("**a", "aaa"));
  CHECK_FALSE(matches_pattern("a?", "a"));
  CHECK_FALSE(matches_pattern("a*b", "acd"));
  CHECK_FALSE(matches_pattern("", "a"));
  CHECK_FALSE(matches_pattern("iqn.2001-04.com.example", "iqn.2001-04.com.example:more"));
}

TEST_CASE("A pattern agrees with the recursive definition", "[iscsi][access]") {
  struct Reference {
    static bool match(std::string_view pattern, std::string_view name) {
      if (pattern.empty()) return name.empty();
      if (pattern[0] == '*') {
        return match(pattern.substr(1), name) || (!name.empty() && match(pattern, name.substr(1)));
      }
      return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
             match(pattern.substr(1), name.substr(1));
    }
  };
  REQUIRE(rc::check([] {
    const auto pattern = *rc::gen::container<std::string>(*rc::gen::inRange<std::size_t>(0, 10),
                                                          rc::gen::element('a', 'b', '*', '?'));
    const auto name = *rc::gen::container<std::string>(*rc::gen::inRange<std::size_t>(0, 14),
                                                       rc::gen::element('a', 'b'));
    RC_ASSERT(matches_pattern(pattern, name) == Reference::match(pattern, name));
  }));
}

TEST_CASE("Addresses and networks", "[iscsi][access]") {
  CHECK(matches("", "192.0.2.7"));
  CHECK(matches("", "[2001:db8::1]"));
  CHECK(matches("192.0.2.7", "192.0.2.7"));
  CHECK_FALSE(matches("192.0.2.7", "192.0.2.8"));
  CHECK(matches("192.0.2.0/24", "192.0.2.255"));
  CHECK_FALSE(matches("192.0.2.0/24", "192.0.3.0"));
  CHECK(matches("192.0.2.0/23", "192.0.3.255"));
  CHECK(matches("192.0.2.128/25", "192.0.2.129"));
  CHECK_FALSE(matches("192.0.2.128/25", "192.0.2.127"));
  CHECK(matches("0.0.0.0/0", "203.0.113.1"));
  CHECK_FALSE(matches("0.0.0.0/0", "[2001:db8::1]"));
  CHECK(matches("2001:db8::/32", "[2001:db8:ffff::1]"));
  CHECK_FALSE(matches("2001:db8::/32", "[2001:db9::1]"));
  CHECK(matches("::/0", "[2001:db8::1]"));
  CHECK(matches("192.0.2.7", "[::ffff:192.0.2.7]"));
  for (const char* bad : {"192.0.2", "192.0.2.0/33", "192.0.2.0/", "192.0.2.0/x", "2001:db8::/129",
                          "host", "192.0.2.7:3260", "192.0.2.0/-1"}) {
    CAPTURE(bad);
    CHECK_FALSE(AddressPattern::parse(bad).has_value());
  }
}

TEST_CASE("Records that cannot be used are named", "[iscsi][access]") {
  CHECK(record_problem({}).empty());
  CHECK(record_problem({.address = "10.0.0.0/8"}).empty());
  CHECK(record_problem({.initiator = ""}) == "the initiator is empty (\"*\" stands for any)");
  CHECK(record_problem({.address = "10.0.0.0/64"}) ==
        "\"10.0.0.0/64\" is not an address or a network such as 192.0.2.0/24");
  CHECK_FALSE(record_problem({.chap = ChapCredential{.user = "", .secret = "x"}}).empty());
  CHECK_FALSE(record_problem({.chap = ChapCredential{.user = "u", .secret = ""}}).empty());
}

TEST_CASE("An initiator needs one record that matches in every part", "[iscsi][access]") {
  const std::vector<AccessRecord> records = {
      {.initiator = "iqn.*:alpha", .address = "192.0.2.0/24"},
      {.initiator = "iqn.*:beta", .chap = ChapCredential{.user = "beta", .secret = "b"}},
      {.initiator = "iqn.*:beta*",
       .address = "198.51.100.1",
       .chap = ChapCredential{.user = "second", .secret = "s"}}};
  const auto decide = [&](const char* name, const char* address) {
    return decide_access(records, name, at(address));
  };
  CHECK(decide("iqn.2001-04.com.example:alpha", "192.0.2.9").allowed);
  CHECK_FALSE(decide("iqn.2001-04.com.example:alpha", "192.0.2.9").chap_required);
  CHECK_FALSE(decide("iqn.2001-04.com.example:alpha", "192.0.3.9").allowed);
  CHECK_FALSE(decide("iqn.2001-04.com.example:gamma", "192.0.2.9").allowed);
  const AccessDecision beta = decide("iqn.2001-04.com.example:BETA", "198.51.100.1");
  CHECK(beta.allowed);
  CHECK(beta.chap_required);
  CHECK(beta.credentials.size() == 2);
  CHECK(decide("iqn.2001-04.com.example:beta", "192.0.2.9").credentials.size() == 1);
  CHECK_FALSE(decide_access({}, "iqn.x", at("192.0.2.9")).allowed);
}

TEST_CASE("A record without CHAP opens what one with CHAP guards", "[iscsi][access]") {
  const std::vector<AccessRecord> records = {{.chap = ChapCredential{.user = "u", .secret = "s"}},
                                             {.address = "127.0.0.1"}};
  CHECK_FALSE(decide_access(records, "iqn.x", at("127.0.0.1")).chap_required);
  CHECK(decide_access(records, "iqn.x", at("127.0.0.2")).chap_required);
}

}  // namespace sandbay::iscsi
