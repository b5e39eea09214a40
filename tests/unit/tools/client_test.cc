// What the command line sends whom, and what it puts on a terminal.
#include "tools/client.h"

#include <fmt/core.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "tools/table.h"

namespace sandbay::cli {
namespace {

std::string said_by(const Management& management) {
  ::setenv("SANDBAY_TOKEN", "token-0123456789", 1);
  const Client client(management);
  ::unsetenv("SANDBAY_TOKEN");
  const auto answer = client.get("/api/v1/group");
  return answer ? std::string("(an answer)") : answer.error().message;
}

TEST_CASE("A token crosses no network in plain text unless that is said", "[client]") {
  // Addresses of nobody: RFC 5737 and RFC 6666.
  CHECK_THAT(said_by({.url = "192.0.2.1:8260"}), Catch::Contains("is not secured"));
  CHECK_THAT(said_by({.url = "http://[100::1]:8260/"}), Catch::Contains("is not secured"));
  // Nothing listens at port 1 of this machine.
  for (const char* url : {"127.0.0.1:1", "http://[::1]:1", "https://127.0.0.1:1"}) {
    CAPTURE(url);
    CHECK_THAT(said_by({.url = url}), !Catch::Contains("is not secured"));
  }
}

// Takes one connection, sends `answer` and then `again` until the client closes, and closes.
// Without an answer it ends the connection at the first byte, as a program that waits for TLS does.
class Curt {
 public:
  explicit Curt(std::string answer = {}, std::string again = {})
      : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(socket_, plain, sizeof address) == 0);
    REQUIRE(::listen(socket_, 1) == 0);
    socklen_t length = sizeof address;
    REQUIRE(::getsockname(socket_, plain, &length) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer = std::move(answer), again = std::move(again)] {
      const int connection = ::accept(socket_, nullptr, nullptr);
      char first = 0;
      (void)::recv(connection, &first, 1, 0);
      (void)::send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
      while (!again.empty() && ::send(connection, again.data(), again.size(), MSG_NOSIGNAL) > 0) {
        continue;
      }
      if (!answer.empty()) ::shutdown(connection, SHUT_WR);
      while (!answer.empty() && ::recv(connection, &first, 1, 0) > 0) continue;
      ::close(connection);
    });
  }
  ~Curt() {
    thread_.join();
    ::close(socket_);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  int socket_;
  unsigned port_ = 0;
  std::thread thread_;
};

// Listens at a loopback address as another user, and accepts no connection.
class Listener {
 public:
  Listener(uid_t user, bool six, unsigned port = 0) {
    sockaddr_storage address{};
    socklen_t length = six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    plain->sa_family = six ? AF_INET6 : AF_INET;
    auto* const four = reinterpret_cast<sockaddr_in*>(&address);
    four->sin_port = htons(static_cast<std::uint16_t>(port));  // At the same place for IPv6.
    if (six) reinterpret_cast<sockaddr_in6*>(&address)->sin6_addr = in6addr_loopback;
    if (!six) four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::setfsuid(user);  // A socket belongs to the user who makes it.
    socket_ = ::socket(plain->sa_family, SOCK_STREAM, 0);
    ::setfsuid(::geteuid());
    REQUIRE(::bind(socket_, plain, length) == 0);
    REQUIRE(::listen(socket_, 1) == 0);
    REQUIRE(::getsockname(socket_, plain, &length) == 0);
    port_ = ntohs(four->sin_port);
  }
  ~Listener() { ::close(socket_); }
  unsigned port() const { return port_; }
  // Whether the client has connected.
  bool met() const {
    pollfd waiting{.fd = socket_, .events = POLLIN, .revents = 0};
    return ::poll(&waiting, 1, 0) == 1;
  }

 private:
  int socket_ = -1;
  unsigned port_ = 0;
};

TEST_CASE("A token goes to no listener that may be another person's", "[X2][client]") {
  if (::geteuid() != 0) {
    WARN("only root can listen as another user");
    return;
  }
  for (const uid_t user : {1000U, 59999U, 60000U, 61183U, 65520U, 65534U, 200000U}) {
    CAPTURE(user);
    const Listener thief(user, false);
    const std::string said = said_by({.url = fmt::format("127.0.0.1:{}", thief.port())});
    CHECK_THAT(said, Catch::Contains(fmt::format("program of uid {}", user)));
    CHECK_FALSE(thief.met());
  }
}

TEST_CASE("A token goes to no other person's listener under any name of loopback", "[X2][client]") {
  if (::geteuid() != 0) {
    WARN("only root can listen as another user");
    return;
  }
  const Listener thief(1000, false);
  const Listener other(1000, true, thief.port());  // Some machines call both addresses localhost.
  for (const char* host : {"localhost", "127.1", "0x7f.1", "2130706433"}) {
    CAPTURE(host);
    const std::string said = said_by({.url = fmt::format("{}:{}", host, thief.port())});
    CHECK_THAT(said, Catch::Contains("program of uid 1000"));
    CHECK_FALSE(thief.met());
    CHECK_FALSE(other.met());
  }
}

TEST_CASE("Who asks a daemon that speaks TLS without it is told how", "[client]") {
  const Curt daemon;
  CHECK_THAT(said_by({.url = daemon.url()}),
             Catch::Contains("broke before there was an answer; write https:// if it speaks TLS"));
}

TEST_CASE("An answer without an end is given up", "[X8][client]") {
  const Curt daemon("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", std::string(1U << 20U, 'x'));
  CHECK_THAT(said_by({.url = daemon.url()}), Catch::Contains("(more than 268435456 bytes)"));
}

TEST_CASE("A deeply nested answer is refused", "[X8][client]") {
  constexpr std::size_t kLevels = 300'000;
  std::string objects;
  for (std::size_t i = 0; i < kLevels; ++i) objects += "{\"a\":";
  for (const std::string& body :
       {objects + "1" + std::string(kLevels, '}'), std::string(kLevels, '[')}) {
    const Curt daemon(
        fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
    CHECK_THAT(said_by({.url = daemon.url()}),
               Catch::Contains("does not answer as a Sandbay daemon does"));
  }
}

TEST_CASE("What others have written does not command the terminal", "[client]") {
  Table table({{"WHAT"}});
  table.add({"GET /\x1b[2J\r\nx\x7f\xc2\x9b"});
  table.add({"Größe"});
  CHECK(table.text() == "WHAT\nGET /\\x1b[2J\\x0d\\x0ax\\x7f\\x9b\nGröße\n");
}

TEST_CASE("The exit code says what kind of failure it was", "[G-C13][client]") {
  CHECK(exit_of_status(400) == Exit::kInvalid);
  CHECK(exit_of_status(401) == Exit::kForbidden);
  CHECK(exit_of_status(403) == Exit::kForbidden);
  CHECK(exit_of_status(404) == Exit::kNotFound);
  CHECK(exit_of_status(409) == Exit::kConflict);
  CHECK(exit_of_status(500) == Exit::kFailed);
  CHECK(exit_of_status(503) == Exit::kUnavailable);
  CHECK(word_of(Exit::kNotFound) == "not_found");
  const auto absent = Client({.url = "http://127.0.0.1:1"}).get("/api/v1/group");
  REQUIRE_FALSE(absent.has_value());
  CHECK(absent.error().exit == Exit::kUnreachable);
}

}  // namespace
}  // namespace sandbay::cli
