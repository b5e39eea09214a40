// Reads portals apart; what concerns several of them is checked when all have been read.
#include "group/portal_configuration.h"

#include <fmt/core.h>

#include <algorithm>

#include "group/configuration.h"
#include "group/document.h"
#include "group/units.h"

namespace sandbay::group {

namespace {

constexpr Duration kLongestLatency = std::chrono::seconds(1);
constexpr std::uint64_t kLeastMtu = 576;
constexpr std::uint64_t kMostMtu = 65536;
constexpr std::uint64_t kMostFrameOverhead = 1024;
constexpr std::uint64_t kMostPacketHeaders = 256;

std::expected<Endpoint, std::string> parse_endpoint(std::string_view text) {
  const auto parsed = Endpoint::parse(text, kDefaultPortalPort);
  if (parsed) return *parsed;
  return std::unexpected(
      fmt::format("\"{}\" is not an address; write one such as 127.0.0.1:{} or [::1]:{}", text,
                  kDefaultPortalPort, kDefaultPortalPort));
}

// As what the port is timed.
void read_port(TableReader& reader, PortalConfiguration& portal) {
  model::PortProfile port{.pdu_header = 0};
  const auto rate = reader.rate("rate");
  if (rate) port.rate = *rate;
  port.latency = reader.duration("latency", Duration{}, kLongestLatency).value_or(port.latency);
  port.mtu = reader.size("mtu", kLeastMtu, kMostMtu).value_or(port.mtu);
  port.frame_overhead =
      reader.size("frame_overhead", 0, kMostFrameOverhead).value_or(port.frame_overhead);
  port.packet_headers =
      reader.size("packet_headers", 0, kMostPacketHeaders).value_or(port.packet_headers);
  for (const char* const key : {"latency", "mtu", "frame_overhead", "packet_headers"}) {
    if (reader.has("rate") || !reader.has(key)) continue;
    reader.mistake(key, "means nothing without rate; write one such as \"1Gbit/s\"");
  }
  if (!rate) return;
  if (const std::string wrong = model::profile_error(port); !wrong.empty()) {
    // It begins with the key that it is about.
    const std::size_t space = wrong.find(' ');
    reader.mistake(wrong.substr(0, space), wrong.substr(space + 1));
  }
  portal.port = port;
}

// Timers of the protocol do not follow the scale, and must not run out for it.
void check_pace(const PortalConfiguration& portal, double scale, Mistakes& mistakes) {
  if (!portal.port || scale <= 1) return;
  const Duration most = std::chrono::duration_cast<Duration>(kLongestLatency / scale);
  if (portal.port->latency > most) {
    mistakes.add(portal.line, portal.section + ".latency",
                 fmt::format("{} is more than a second with time_scale {}; write at most {}",
                             format_duration(portal.port->latency), scale, format_duration(most)));
  }
  const auto least = static_cast<std::uint64_t>(static_cast<double>(model::kLeastRate) * scale);
  if (portal.port->rate < least) {
    mistakes.add(portal.line, portal.section + ".rate",
                 fmt::format("{} is less than 1MB/s with time_scale {}; write at least {}",
                             format_rate(portal.port->rate), scale, format_rate(least)));
  }
}

void read_portal(TableReader& reader, PortalConfiguration& portal,
                 const Configuration& configuration) {
  reader.require("listen", "an address such as \"127.0.0.1:3260\"");
  const auto text = reader.string("listen");
  const auto listen = parse_endpoint(text.value_or(""));
  if (text && !listen) reader.mistake("listen", listen.error());
  if (listen) {
    portal.listen = *listen;
    const auto same = [&](const PortalConfiguration& other) { return other.listen == *listen; };
    if (listen->port() != 0 && std::ranges::any_of(configuration.portals, same)) {
      reader.mistake("listen", fmt::format("{} is the address of another portal; give each its own",
                                           listen->to_string()));
    }
  }
  if (const auto words = reader.string("advertised")) {
    const auto advertised = parse_advertised(*words);
    if (!advertised) reader.mistake("advertised", advertised.error());
    portal.advertised = advertised.value_or(Advertised{}).address;
    portal.as_reached = advertised.value_or(Advertised{}).as_reached;
  }
  if (const auto tag = reader.integer("group_tag", 1, 65535)) {
    portal.group_tag = static_cast<std::uint16_t>(*tag);
  }
  read_port(reader, portal);
}

// What an initiator is told of it, as far as the file says.
const Endpoint& told(const PortalConfiguration& portal) {
  return portal.advertised ? *portal.advertised : portal.listen;
}

bool has_members_portal(const Configuration& configuration, std::uint16_t group_tag) {
  return std::ranges::any_of(configuration.portals, [&](const PortalConfiguration& portal) {
    return !portal.member.empty() && portal.group_tag == group_tag;
  });
}

}  // namespace

std::expected<Advertised, std::string> parse_advertised(std::string_view text) {
  if (text == "auto") return Advertised{.as_reached = true};
  if (text == "none") return Advertised{};
  const auto address = parse_endpoint(text);
  if (!address) return std::unexpected(address.error() + ", \"auto\" or \"none\"");
  if (address->is_any() || address->port() == 0) {
    return std::unexpected(
        "is not an address that an initiator can reach; write the portal's own address");
  }
  return Advertised{.address = *address};
}

std::string describe(const Advertised& advertised) {
  if (advertised.as_reached) return "auto";
  return advertised.address ? advertised.address->to_string() : "";
}

void read_portals(TableReader& owner, const std::string& member, Mistakes& mistakes,
                  Configuration& configuration) {
  std::size_t index = 0;
  for (const Value* section : owner.tables("portal")) {
    const std::string path = fmt::format("portal[{}]", ++index);
    PortalConfiguration portal{
        .member = member, .section = mistakes.prefix() + path, .line = section->line};
    TableReader reader(*section, path, mistakes);
    read_portal(reader, portal, configuration);
    if (member.empty()) {
      portal.member = reader.string("member").value_or("");
      portal.balance = reader.boolean("balance");
      if (!portal.member.empty() && portal.member != configuration.member) {
        reader.mistake("member",
                       fmt::format("\"{}\" is not the member at the top of this file; write "
                                   "\"{}\", or the portal in the other's section [[member]]",
                                   portal.member, configuration.member));
      }
      if (!portal.member.empty() && portal.balance) {
        reader.mistake("balance", "is of the group's portals; leave it out, or member");
        portal.balance.reset();
      }
    }
    reader.finish();
    configuration.portals.push_back(std::move(portal));
  }
}

bool balances(const PortalConfiguration& portal, const Configuration& configuration) {
  if (!portal.member.empty()) return false;
  return portal.balance.value_or(true) && has_members_portal(configuration, portal.group_tag);
}

void check_portals(const Configuration& configuration, Mistakes& mistakes) {
  for (const PortalConfiguration& portal : configuration.portals) {
    if (const auto clash = check_apart(configuration.management.listen, portal.listen)) {
      mistakes.add(portal.line, portal.section + ".listen", *clash);
    }
    check_pace(portal, configuration.hardware.time_scale, mistakes);
    if (portal.balance.value_or(false) && !balances(portal, configuration)) {
      mistakes.add(portal.line, portal.section + ".balance",
                   fmt::format("there is nothing to balance over; write a section "
                               "[[member.portal]] with group_tag {}, or leave it out",
                               portal.group_tag));
    }
    if (portal.member.empty()) continue;
    // Who goes on to a member's portal must not arrive where it came from.
    const auto same = [&](const PortalConfiguration& other) {
      return other.member.empty() && portal.advertised && told(other) == told(portal);
    };
    if (std::ranges::any_of(configuration.portals, same)) {
      mistakes.add(portal.line, portal.section + ".advertised",
                   fmt::format("{} is what the group's portal is known as; a member's needs an "
                               "address of its own",
                               told(portal).to_string()));
    }
  }
}

}  // namespace sandbay::group
