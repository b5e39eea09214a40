// Which portal a login goes on to: the rules stand at the head of target_portals.h.
#include "iscsi/target_portals.h"

#include <algorithm>
#include <tuple>

namespace sandbay::iscsi {

Portal& Portals::add(PortalOptions options, std::unique_ptr<Listener> listener) {
  auto portal = std::make_unique<Portal>();
  portal->options = std::move(options);
  portal->listener = std::move(listener);
  portal->local = portal->listener->local();
  portal->index = static_cast<std::uint32_t>(portals_.size());
  portals_.push_back(std::move(portal));
  return *portals_.back();
}

bool Portals::any_balances() const {
  return std::ranges::any_of(portals_, [](const auto& each) { return each->options.balances; });
}

bool Portals::takes_logins(const Portal& portal) {
  const auto& asked = portal.options.takes_logins;
  return !asked || asked();
}

bool Portals::sends_on(const Portal& portal) {
  return portal.options.member.empty() ? portal.options.balances : !takes_logins(portal);
}

std::optional<Endpoint> Portals::address_of(const Portal& portal, const Endpoint& local) {
  if (portal.options.advertised) return portal.options.advertised;
  if (!portal.local.is_any()) return portal.local;
  // Whoever asks has reached us there; an address of the other family would be a guess.
  if (portal.local.is_ipv6() != local.is_ipv6()) return std::nullopt;
  Endpoint address = local;
  address.set_port(portal.local.port());
  return address;
}

const Portal* Portals::reached_at(const Endpoint& local) const {
  const Portal* everywhere = nullptr;
  for (const auto& each : portals_) {
    if (each->local == local) return each.get();
    const bool any = each->local.is_any() && each->local.port() == local.port();
    if (any && each->local.is_ipv6() == local.is_ipv6()) everywhere = each.get();
  }
  return everywhere;
}

bool Portals::stands_behind_another(const Portal& portal) const {
  if (portal.options.member.empty()) return false;
  return std::ranges::any_of(portals_, [&](const auto& each) {
    return each->options.balances && each->options.group_tag == portal.options.group_tag &&
           each->local.is_ipv6() == portal.local.is_ipv6();
  });
}

Portal* Portals::destination(const Portal& from, const Endpoint& local, TimePoint now) {
  if (!sends_on(from)) return nullptr;
  const auto least = [&](bool of_members) {
    Portal* best = nullptr;
    const auto load = [](const Portal& portal) {
      return std::tuple(portal.connections + portal.expected.size(), portal.recent_bytes);
    };
    for (const auto& each : portals_) {
      Portal& portal = *each;
      if (&portal == &from || portal.options.member.empty() == of_members) continue;
      if (portal.options.as_reached) continue;  // Nobody knows where that is.
      if (portal.options.group_tag != from.options.group_tag) continue;
      const std::optional<Endpoint> address = address_of(portal, local);
      if (!address || address->is_ipv6() != local.is_ipv6()) continue;
      if (of_members && !takes_logins(portal)) continue;
      std::erase_if(portal.expected, [now](const auto& late) { return late.until <= now; });
      if (best == nullptr || load(portal) < load(*best)) best = &portal;
    }
    return best;
  };
  Portal* const best = least(true);
  if (best != nullptr || from.options.member.empty()) return best;
  return least(false);
}

void Portals::expect(Portal& portal, std::string login, TimePoint now) {
  arrived(portal, login);
  if (portal.expected.size() >= kMostExpected) portal.expected.pop_front();
  portal.expected.push_back({.login = std::move(login), .until = now + kExpectation});
}

void Portals::arrived(Portal& portal, const std::string& login) {
  const auto found = std::ranges::find(portal.expected, login, &Portal::Expected::login);
  if (found != portal.expected.end()) portal.expected.erase(found);
}

void Portals::note_traffic(const std::vector<std::uint64_t>& bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) portals_[i]->recent_bytes = bytes[i];
}

std::vector<PortalStatus> Portals::show() const {
  std::vector<PortalStatus> list;
  for (const auto& portal : portals_) {
    list.push_back({.listen = portal->local,
                    .connections = portal->connections,
                    .recent_bytes = portal->recent_bytes,
                    .takes_logins = !sends_on(*portal)});
  }
  return list;
}

}  // namespace sandbay::iscsi
