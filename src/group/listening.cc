// Each cause has its own cure: an address of another machine, a port that this user may not have,
// one that is taken, a limit of the process.
#include "group/listening.h"

#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

namespace sandbay::group {

namespace {

constexpr std::uint16_t kFirstPortForAll = 1024;

// The kernel takes a killed process's rings apart after the process is gone, and an accept that
// waits in one keeps its port until then. So a daemon started at once after a kill waits.
constexpr std::chrono::milliseconds kLooksAgain{20};

std::string cure(std::uint16_t port, Error error, std::string_view options) {
  switch (error) {
    case Error::kUnreachable:
      return fmt::format("no interface here has this address; name one of this host's with {}",
                         options);
    case Error::kPermission:
      if (port < kFirstPortForAll) {
        return fmt::format("such a port is for root alone; name one from {} on with {}",
                           kFirstPortForAll, options);
      }
      return fmt::format(
          "the system does not let this user listen there; name another port with {}", options);
    case Error::kAddressInUse:
      return fmt::format(
          "cannot listen there: address in use; end what uses it, or name another address with {}",
          options);
    case Error::kNoMemory:
      return fmt::format("cannot listen there: {}; raise this process's limits (ulimit -n)",
                         describe(error));
    default:
      return fmt::format("cannot listen there: {}; name another address with {}", describe(error),
                         options);
  }
}

Error bind_to(int socket, const Endpoint& where) {
  const auto from = where.bytes();
  if (where.is_ipv6()) {
    const int yes = 1;
    ::setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(where.port());
    std::ranges::copy(from, address.sin6_addr.s6_addr);
    const auto* const any = reinterpret_cast<const sockaddr*>(&address);
    return ::bind(socket, any, sizeof address) == 0 ? Error::kNone : error_from_errno(errno);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(where.port());
  std::ranges::copy(from.first<4>(), reinterpret_cast<std::uint8_t*>(&address.sin_addr.s_addr));
  const auto* const any = reinterpret_cast<const sockaddr*>(&address);
  return ::bind(socket, any, sizeof address) == 0 ? Error::kNone : error_from_errno(errno);
}

// Listens for an instant, as an executor would.
Error listen_once(const Endpoint& where) {
  const int socket = ::socket(where.is_ipv6() ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return error_from_errno(errno);
  const int yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  Error error = bind_to(socket, where);
  if (error == Error::kNone && ::listen(socket, 1) != 0) error = error_from_errno(errno);
  ::close(socket);
  return error;
}

Error try_to_listen(const Endpoint& where, std::chrono::steady_clock::time_point give_up) {
  Error error = listen_once(where);
  while (error == Error::kAddressInUse && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(kLooksAgain);
    error = listen_once(where);
  }
  return error;
}

}  // namespace

std::string cannot_listen(std::string_view what, const Endpoint& where, Error error,
                          std::string_view options) {
  return fmt::format("{} {}: {}", what, where.to_string(), cure(where.port(), error, options));
}

Started can_listen(const Configuration& configuration, std::chrono::milliseconds patience) {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  for (const PortalConfiguration& portal : configuration.portals) {
    const Error error = try_to_listen(portal.listen, give_up);
    if (error == Error::kNone) continue;
    return std::unexpected(cannot_listen("portal", portal.listen, error, "listen or --portal"));
  }
  const Endpoint& management = configuration.management.listen;
  const Error error = try_to_listen(management, give_up);
  if (error == Error::kNone) return {};
  return std::unexpected(
      cannot_listen("management", management, error, "management.listen or --management"));
}

}  // namespace sandbay::group
