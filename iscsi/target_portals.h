// Portals: where a server listens, and which of these sends a login on to which other.
//
// Portals with one tag are a portal group (RFC 7143 section 4.4.2): sessions span them, an
// initiator's session is one and the same through each of them, and so a login may go on from one
// to another as it is (status 0101, section 11.13.5). Two kinds send on: a portal of the group's
// that balances, and a member's that takes no logins now. Where they send to is a member's portal
// that takes logins, or, with none left, one of the group's, which then serves by itself. So nobody
// is sent to a portal that would send on, and nobody in a circle.
//
// Home: executor 0. Decides; it neither listens nor sends.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "iscsi/target_server.h"
#include "runtime/clock.h"
#include "runtime/io.h"

namespace sandbay::iscsi {

struct Portal {
  PortalOptions options;
  std::unique_ptr<Listener> listener;
  Endpoint local;
  std::uint32_t index = 0;        // Among all portals.
  std::uint32_t connections = 0;  // Of sessions other than for discovery.
  std::uint32_t logins = 0;       // That are served there and have not ended.
  std::uint64_t recent_bytes = 0;
  bool deaf = false;  // By a rule, until then:
  TimePoint deaf_until{};
  std::function<bool()> stays_deaf;
  // Logins that were sent here and have not come yet: a hundred at once would otherwise all find
  // the same portal idle. Oldest first.
  struct Expected {
    std::string login;
    TimePoint until;
  };
  std::deque<Expected> expected;
};

class Portals {
 public:
  // How long a login that was sent somewhere counts there before it comes.
  static constexpr Duration kExpectation = std::chrono::seconds(10);
  static constexpr std::size_t kMostExpected = 4096;

  Portal& add(PortalOptions options, std::unique_ptr<Listener> listener);
  const std::vector<std::unique_ptr<Portal>>& all() const noexcept { return portals_; }
  bool any_balances() const;

  // What an initiator that has reached us at `local` is told of a portal. Nothing: it listens on
  // every address, of the other family.
  static std::optional<Endpoint> address_of(const Portal& portal, const Endpoint& local);
  // Where a connection to `local` came in; null: nothing listens there.
  const Portal* reached_at(const Endpoint& local) const;
  // Whether SendTargets leaves the portal out, because one of the group's stands for it.
  bool stands_behind_another(const Portal& portal) const;
  // Where a login that comes to `from`, reached at `local`, goes on; null: it is served there.
  Portal* destination(const Portal& from, const Endpoint& local, TimePoint now);
  // `login` says whose it is, the same in both.
  void expect(Portal& portal, std::string login, TimePoint now);
  void arrived(Portal& portal, const std::string& login);
  // Bytes that each portal, by its index, has moved in the last while.
  void note_traffic(const std::vector<std::uint64_t>& bytes);
  std::vector<PortalStatus> show() const;

 private:
  static bool sends_on(const Portal& portal);
  static bool takes_logins(const Portal& portal);

  std::vector<std::unique_ptr<Portal>> portals_;
};

}  // namespace sandbay::iscsi
