// The portals of the group and of its members: who listens where, which members take logins, and
// how initiators leave the portals of a member that goes.
#include <fmt/core.h>

#include <algorithm>

#include "group/listening.h"
#include "group/log.h"
#include "group/running_group.h"
#include "model/paced_stream.h"

namespace sandbay::group {

std::function<std::unique_ptr<Stream>(std::unique_ptr<Stream>)> RunningGroup::through(
    const PortalConfiguration& portal) const {
  if (!portal.port) return {};
  const model::ModelClock clock(configuration_.hardware.time_scale, Executor::current().now());
  const auto port = std::make_shared<model::SharedPort>(*portal.port, clock);
  return [port](std::unique_ptr<Stream> stream) -> std::unique_ptr<Stream> {
    return std::make_unique<model::PacedStream>(std::move(stream), port);
  };
}

RunningGroup::Outcome RunningGroup::open_portals() {
  for (const PortalConfiguration& portal : configuration_.portals) {
    iscsi::PortalOptions options{.listen = portal.listen,
                                 .advertised = portal.advertised,
                                 .as_reached = portal.as_reached,
                                 .group_tag = portal.group_tag,
                                 .member = portal.member,
                                 .balances = balances(portal, configuration_),
                                 .takes_logins = {},
                                 .through = through(portal)};
    if (!portal.member.empty()) {
      options.takes_logins = [this, &member = portal.member] { return takes_logins(member); };
    }
    const auto endpoint = server_->add_portal(std::move(options));
    if (!endpoint) {
      return std::unexpected(
          cannot_listen("portal", portal.listen, endpoint.error(), "listen or --portal"));
    }
    portals_.push_back({.listen = endpoint->to_string(),
                        .advertised = describe(Advertised{portal.advertised, portal.as_reached}),
                        .group_tag = portal.group_tag,
                        .member = portal.member,
                        .rate = portal.port ? std::optional(portal.port->rate) : std::nullopt});
  }
  return {};
}

std::vector<PortalInfo> RunningGroup::portals() const {
  std::vector<PortalInfo> list = portals_;
  const std::vector<iscsi::PortalStatus> now = server_->portals();
  for (std::size_t i = 0; i < list.size(); ++i) {
    list[i].connections = now[i].connections;
    list[i].recent_bytes = now[i].recent_bytes;
    list[i].takes_logins = now[i].takes_logins;
    list[i].access_state = scsi::describe(access_states_.at(list[i].group_tag));
  }
  return list;
}

Task<Answer<std::vector<PortalInfo>>> RunningGroup::set_access_state_now(std::uint16_t group_tag,
                                                                         std::string state) {
  const auto wanted = scsi::access_state_of(state);
  if (!wanted) {
    co_return refuse(Refusal::Code::kInvalid,
                     fmt::format("access state \"{}\": active/optimized, active/non-optimized, "
                                 "standby, unavailable and transitioning are possible",
                                 state));
  }
  const auto found = access_states_.find(group_tag);
  if (found == access_states_.end()) {
    co_return refuse(Refusal::Code::kNotFound,
                     fmt::format("no portal has the group_tag {}; see the portal list", group_tag));
  }
  found->second = *wanted;
  std::vector<std::shared_ptr<Volume>> units;
  for (const auto& [name, volume] : volumes_) units.push_back(volume);
  for (const auto& [uuid, snapshot] : snapshots_) {
    if (snapshot.volume != nullptr) units.push_back(snapshot.volume);
  }
  for (const auto& volume : units) co_await volume->set_access_state(group_tag, *wanted);
  log(Severity::kInformation, fmt::format("portal group {}: {}", group_tag, state));
  std::vector<PortalInfo> list = portals();
  std::erase_if(list, [&](const PortalInfo& portal) { return portal.group_tag != group_tag; });
  co_return list;
}

Task<Answer<std::vector<PortalInfo>>> RunningGroup::set_access_state(std::uint16_t group_tag,
                                                                     std::string state) {
  return alone(set_access_state_now(group_tag, std::move(state)));
}

// Until the daemon ends: ports of a container, say, are known after its start and new after each.
Task<Answer<PortalInfo>> RunningGroup::advertise(std::string listen, std::string advertised) {
  const auto parsed = parse_advertised(advertised);
  if (!parsed) {
    co_return std::unexpected(
        Refusal{.code = Refusal::Code::kInvalid, .message = "advertised: " + parsed.error()});
  }
  const auto found = std::ranges::find(portals_, listen, &PortalInfo::listen);
  if (found == portals_.end()) {
    std::string known;
    for (const PortalInfo& portal : portals_) {
      known += (known.empty() ? "" : ", ") + portal.listen;
    }
    co_return std::unexpected(
        Refusal{.code = Refusal::Code::kNotFound,
                .message = fmt::format("there is no portal {}; there are {}", listen, known)});
  }
  // A login that goes on to a member's portal must not arrive where it came from.
  const std::string address = parsed->as_reached ? "" : describe(*parsed);
  const auto same = [&](const PortalInfo& other) {
    const std::string& known =
        other.advertised.empty() || other.advertised == "auto" ? other.listen : other.advertised;
    return other.member.empty() != found->member.empty() && known == address;
  };
  const auto other = std::ranges::find_if(portals_, same);
  if (other != portals_.end()) {
    co_return std::unexpected(Refusal{
        .code = Refusal::Code::kConflict,
        .message = fmt::format("portal {} is known as {} already; a member's portal and the "
                               "group's need addresses of their own",
                               other->listen, address)});
  }
  const auto index = static_cast<std::size_t>(found - portals_.begin());
  server_->advertise(index, parsed->address, parsed->as_reached);
  found->advertised = describe(*parsed);
  co_return portals()[index];
}

std::vector<PortalInfo> RunningGroup::portals_of(const std::string& member) const {
  std::vector<PortalInfo> list = portals();
  std::erase_if(list, [&](const PortalInfo& portal) { return portal.member != member; });
  return list;
}

// Where there are pools, those take part that are in one, and stay; and nobody is sent to an array
// of which nothing serves.
bool RunningGroup::takes_logins(const std::string& name) const {
  const Member* const member = members_->find(name);
  if (member == nullptr || health_of(*member) == "missing") return false;
  if (pools_->all().empty()) return true;
  const ServedPool* const pool = pools_->pool_of_member(name);
  return pool != nullptr && !Pools::is_leaving(*pool, name);
}

// Its initiators find the other portals by themselves: they are asked to log out, and who logs in
// again is sent there. Beside all else, for an initiator may take its time.
void RunningGroup::send_away_from(const std::string& member) {
  if (!dropping_.enter()) return;
  spawn(see_portals_left(member));
}

Task<void> RunningGroup::see_portals_left(std::string member) {
  const GateHold hold(dropping_);
  const iscsi::MovedConnections moved = co_await server_->move_connections(member);
  if (moved.asked == 0) co_return;
  events_.add(
      {.kind = "member",
       .text = fmt::format("member {}: {} connection{} asked to leave its portals, of which "
                           "{} had to be dropped",
                           member, moved.asked, moved.asked == 1 ? "" : "s", moved.dropped)});
}

}  // namespace sandbay::group
