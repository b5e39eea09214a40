// Which login in progress makes room: a flood of one kind drops itself, not the others.
#include "iscsi/login_room.h"

#include <array>
#include <catch2/catch.hpp>
#include <vector>

namespace sandbay::iscsi {
namespace {

Endpoint host(std::uint32_t number) { return Endpoint::ipv4(0x0A000000U + number, 3260); }

Endpoint six(std::uint8_t network, std::uint8_t number) {
  std::array<std::uint8_t, 16> bytes{0x20, 0x01, 0x0D, 0xB8};
  bytes[7] = network;
  bytes[15] = number;
  return Endpoint::ipv6(bytes, 3260);
}

}  // namespace

TEST_CASE("Silent logins from many addresses make room before a begun login", "[X3]") {
  std::vector<LoginInProgress> logins{{.peer = host(1), .begun = true}};
  for (std::uint32_t i = 2; i < 10; ++i) logins.push_back({.peer = host(i)});
  CHECK(login_to_drop(logins) == 1);
  logins.push_back({.peer = host(9)});
  CHECK(login_to_drop(logins) == 8);  // The oldest of the address with most of them.
}

TEST_CASE("Logins that stop after their first request do not drop a silent newcomer", "[X3]") {
  std::vector<LoginInProgress> logins{{.peer = host(1)}};
  for (std::uint32_t i = 2; i < 10; ++i) logins.push_back({.peer = host(i), .begun = true});
  logins.push_back({.peer = host(10), .begun = true});
  CHECK(login_to_drop(logins) == 1);
}

TEST_CASE("A proven login makes room last", "[X3]") {
  std::vector<LoginInProgress> logins{{.peer = host(1), .begun = true, .proven = true},
                                      {.peer = host(1), .begun = true, .proven = true},
                                      {.peer = host(2), .begun = true}};
  CHECK(login_to_drop(logins) == 2);
  logins.pop_back();
  CHECK(login_to_drop(logins) == 0);
  CHECK_FALSE(login_to_drop({}).has_value());
}

TEST_CASE("A login whose response waits keeps its place beside a flood of its network", "[X6]") {
  std::vector<LoginInProgress> logins{{.peer = six(1, 1), .begun = true, .waits = true}};
  for (std::uint8_t i = 2; i < 10; ++i) logins.push_back({.peer = six(1, i), .begun = true});
  CHECK(login_to_drop(logins) == 1);
  for (LoginInProgress& each : logins) each.waits = true;
  CHECK(login_to_drop(logins) == 0);
}

TEST_CASE("The addresses of one /64 count as one host", "[X3]") {
  const std::vector<LoginInProgress> logins{
      {.peer = six(1, 1)}, {.peer = six(2, 1)}, {.peer = six(2, 2)}};
  CHECK(login_to_drop(logins) == 1);
  CHECK_FALSE(same_network(host(1), six(0, 1)));
}

TEST_CASE("IPv4-mapped IPv6 addresses count as the IPv4 addresses that they are", "[X6]") {
  const Endpoint mapped = Endpoint::parse("[::ffff:10.0.0.1]:1").value();
  CHECK(same_network(mapped, host(1)));
  CHECK_FALSE(same_network(mapped, Endpoint::parse("[::ffff:10.0.0.2]:1").value()));
  CHECK_FALSE(same_network(mapped, Endpoint::parse("[::1]:1").value()));
}

}  // namespace sandbay::iscsi
