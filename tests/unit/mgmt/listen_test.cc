// Where the management listener cannot listen: each refusal is one line that names the address and
// says what to do.
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <functional>

#include "tests/unit/mgmt/running_server.h"

namespace sandbay::mgmt {
namespace {

Task<void> start_at(group::Group* group, const std::function<Endpoint()>* where,
                    std::string* refusal) {
  auto server = Server::start(*group, Executor::current(), {.listen = (*where)()});
  if (server.has_value()) {
    *refusal = "listens";
    co_await (*server)->stop();
  } else {
    *refusal = server.error();
  }
}

std::string refusal_at(const std::function<Endpoint()>& where) {
  const testing::ScratchDirectory scratch;
  std::string refusal;
  const std::string error =
      group::run_group(scratch.file("state"), "", 1,
                       [&](group::Group& group) { return start_at(&group, &where, &refusal); });
  if (!error.empty()) FAIL(error);
  return refusal;
}

TEST_CASE("An address of another machine is refused as that", "[listen]") {
  for (const std::uint16_t port : {std::uint16_t{0}, std::uint16_t{8260}}) {
    const auto elsewhere = [port] { return Endpoint::ipv4(0xC0000201, port); };
    CHECK(refusal_at(elsewhere) ==
          "management 192.0.2.1:" + std::to_string(port) +
              ": no interface here has this address; name one of this host's with "
              "management.listen or --management");
  }
}

TEST_CASE("A port that is taken is refused as that", "[listen]") {
  with_server("", [](int port) {
    const auto taken = [port] {
      return Endpoint::ipv4(0x7F000001, static_cast<std::uint16_t>(port));
    };
    CHECK(refusal_at(taken) ==
          "management 127.0.0.1:" + std::to_string(port) +
              ": cannot listen there: address in use; end what uses it, or name another address "
              "with management.listen or --management");
  });
}

// This thread's right to listen below the first port that is for everybody; root has it.
class WithoutBindRight {
 public:
  WithoutBindRight() {
    syscall(SYS_capget, &header_, before_);
    __user_cap_data_struct without[2] = {before_[0], before_[1]};
    without[0].effective &= ~(1U << CAP_NET_BIND_SERVICE);
    syscall(SYS_capset, &header_, without);
  }
  ~WithoutBindRight() { syscall(SYS_capset, &header_, before_); }
  WithoutBindRight(const WithoutBindRight&) = delete;
  WithoutBindRight& operator=(const WithoutBindRight&) = delete;

 private:
  __user_cap_header_struct header_{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct before_[2] = {};
};

TEST_CASE("A port for root alone is refused as that", "[listen]") {
  const std::string refusal =
      "management 127.0.0.1:1: such a port is for root alone; name one from 1024 on with "
      "management.listen or --management";
  int first_free = 1024;
  std::ifstream("/proc/sys/net/ipv4/ip_unprivileged_port_start") >> first_free;
  if (first_free <= 1) return;     // Here no port is for root alone.
  const WithoutBindRight without;  // The first reactor runs on this thread.
  CHECK(refusal_at([] { return Endpoint::ipv4(0x7F000001, 1); }) == refusal);
}

}  // namespace
}  // namespace sandbay::mgmt
