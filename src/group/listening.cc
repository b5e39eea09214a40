// Each cause has its own cure: an address of another machine, a port that this user may not have,
// one that is taken, a limit of the process.
#include "group/listening.h"

#include <fmt/format.h>

namespace sandbay::group {

namespace {

constexpr std::uint16_t kFirstPortForAll = 1024;

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

}  // namespace

std::string cannot_listen(std::string_view what, const Endpoint& where, Error error,
                          std::string_view options) {
  return fmt::format("{} {}: {}", what, where.to_string(), cure(where.port(), error, options));
}

}  // namespace sandbay::group
