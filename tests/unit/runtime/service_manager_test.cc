// Messages to a service manager, on a socket of the test's own.
#include "runtime/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <string>

namespace sandbay {
namespace {

using namespace std::chrono_literals;

// Listens at an abstract name that is this process's.
class NotifySocket {
 public:
  NotifySocket() : name_("@sandbay-service-test-" + std::to_string(::getpid())) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name_.data(), name_.size());
    address.sun_path[0] = '\0';
    socket_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    REQUIRE(socket_ >= 0);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_.size());
    REQUIRE(::bind(socket_, reinterpret_cast<const sockaddr*>(&address), size) == 0);
  }
  NotifySocket(const NotifySocket&) = delete;
  NotifySocket& operator=(const NotifySocket&) = delete;
  ~NotifySocket() { ::close(socket_); }

  const std::string& name() const { return name_; }
  std::string heard() const {
    std::array<char, 256> text{};
    const ssize_t count = ::recv(socket_, text.data(), text.size(), 0);
    return count < 0 ? std::string() : std::string(text.data(), static_cast<std::size_t>(count));
  }

 private:
  std::string name_;
  int socket_ = -1;
};

TEST_CASE("A service manager hears each message as a datagram", "[service][G-C9]") {
  const NotifySocket listener;
  const ServiceManager manager(listener.name());
  REQUIRE(manager.present());
  CHECK(manager.tell("READY=1\nSTATUS=Serving"));
  CHECK(listener.heard() == "READY=1\nSTATUS=Serving");
  CHECK(manager.extend(20s));
  CHECK(listener.heard() == "EXTEND_TIMEOUT_USEC=20000000");
}

TEST_CASE("A service manager whose queue is full is not waited for", "[service][G-C9]") {
  const NotifySocket listener;
  const ServiceManager manager(listener.name());
  bool taken = true;
  for (int i = 0; i < 10'000 && taken; ++i) taken = manager.tell("STATUS=Again");
  CHECK_FALSE(taken);
}

TEST_CASE("Without NOTIFY_SOCKET nothing is sent", "[service][G-C9]") {
  ::unsetenv("NOTIFY_SOCKET");
  const ServiceManager nobody = ServiceManager::from_environment();
  CHECK_FALSE(nobody.present());
  CHECK(nobody.tell("READY=1"));
  const NotifySocket listener;
  ::setenv("NOTIFY_SOCKET", listener.name().c_str(), 1);
  const ServiceManager manager = ServiceManager::from_environment();
  CHECK(manager.present());
  CHECK(std::getenv("NOTIFY_SOCKET") == nullptr);
}

}  // namespace
}  // namespace sandbay
