// Silent logins are dropped first if they fill half of the places or more; otherwise logins that
// have begun: those whose response waits for its turn late, proven ones last. So neither kind of
// flood reaches the few logins of the other kind.
#include "iscsi/login_room.h"

#include <algorithm>

namespace sandbay::iscsi {

namespace {

constexpr std::array<std::uint8_t, 12> kMappedPrefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};

}  // namespace

PeerAddress address_of(const Endpoint& peer) {
  PeerAddress address{};
  if (peer.is_ipv6()) {
    std::ranges::copy(peer.bytes(), address.begin());
  } else {
    std::ranges::copy(kMappedPrefix, address.begin());
    std::ranges::copy(peer.bytes().first<4>(), address.begin() + kMappedPrefix.size());
  }
  return address;
}

bool is_ipv4(const PeerAddress& address) {
  return std::ranges::equal(std::span(address).first<kMappedPrefix.size()>(), kMappedPrefix);
}

PeerAddress prefix_of(PeerAddress address, std::size_t prefix_bytes) {
  std::ranges::fill(std::span(address).subspan(prefix_bytes), std::uint8_t{0});
  return address;
}

bool same_network(const Endpoint& one, const Endpoint& other) {
  constexpr std::size_t kNetworkBytes = 8;
  const PeerAddress first = address_of(one);
  const PeerAddress second = address_of(other);
  if (is_ipv4(first) || is_ipv4(second)) return first == second;
  return prefix_of(first, kNetworkBytes) == prefix_of(second, kNetworkBytes);
}

std::optional<std::size_t> login_to_drop(std::span<const LoginInProgress> logins) {
  const auto silent = std::ranges::count(logins, false, &LoginInProgress::begun);
  const bool from_silent = silent > 0 && 2 * static_cast<std::size_t>(silent) >= logins.size();
  const bool all_proven = std::ranges::all_of(
      logins, [](const LoginInProgress& each) { return !each.begun || each.proven; });
  const auto is_weakest = [&](const LoginInProgress& each) {
    return from_silent ? !each.begun : each.begun && (all_proven || !each.proven);
  };
  const bool all_wait = std::ranges::all_of(
      logins, [&](const LoginInProgress& each) { return !is_weakest(each) || each.waits; });
  const auto counts = [&](const LoginInProgress& each) {
    return is_weakest(each) && (all_wait || !each.waits);
  };
  std::optional<std::size_t> victim;
  std::ptrdiff_t most = 0;
  for (std::size_t i = 0; i < logins.size(); ++i) {
    if (!counts(logins[i])) continue;
    const auto alike = std::ranges::count_if(logins, [&](const LoginInProgress& each) {
      return counts(each) && same_network(each.peer, logins[i].peer);
    });
    if (alike <= most) continue;
    most = alike;
    victim = i;
  }
  return victim;
}

}  // namespace sandbay::iscsi
