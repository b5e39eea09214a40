// Which login in progress makes room for a newcomer.
//
// A flood takes places in one of two ways: with silent connections, which cost their sender
// nothing, or with logins that begin and stop. The login to drop is one of the kind that fills the
// places, of the network with most of them, so a peer that does its login in time keeps its place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/io.h"

namespace sandbay::iscsi {

struct LoginInProgress {
  Endpoint peer;
  bool begun = false;   // A request has come.
  bool proven = false;  // CHAP has succeeded.
  bool waits = false;   // Its CHAP response waits for its turn, which is not its choice.
};

// Both forms of an IPv4 address count as one: this is its IPv4-mapped form (RFC 4291, 2.5.5.2).
using PeerAddress = std::array<std::uint8_t, 16>;
PeerAddress address_of(const Endpoint& peer);
bool is_ipv4(const PeerAddress& address);
// The address, with all bits after the prefix zero.
PeerAddress prefix_of(PeerAddress address, std::size_t prefix_bytes);

// The address, or the /64 of IPv6, of which one host has 2^64 addresses.
bool same_network(const Endpoint& one, const Endpoint& other);

// The index of the login to drop; `logins` are oldest first. Nothing if there are none.
std::optional<std::size_t> login_to_drop(std::span<const LoginInProgress> logins);

}  // namespace sandbay::iscsi
