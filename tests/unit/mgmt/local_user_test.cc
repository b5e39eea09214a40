// [G-S6] Who is at the other end of a loopback connection, and who may manage without a token.
#include "mgmt/local_user.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "mgmt/authority.h"
#include "tests/unit/block/scratch_directory.h"
#include "tests/unit/mgmt/running_server.h"

namespace sandbay::mgmt::local_user_test {
namespace {

using nlohmann::json;

constexpr uid_t kStranger = 12345;

TcpEnd end_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  REQUIRE(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size());
    return {.address = text.data(), .port = ntohs(six.sin6_port)};
  }
  const auto& four = reinterpret_cast<const sockaddr_in&>(address);
  ::inet_ntop(AF_INET, &four.sin_addr, text.data(), text.size());
  return {.address = text.data(), .port = ntohs(four.sin_port)};
}

// A connection over loopback, with both of its ends in this process.
class Connection {
 public:
  explicit Connection(int family)
      : listener_(::socket(family, SOCK_STREAM, 0)), client_(::socket(family, SOCK_STREAM, 0)) {
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_addr = in6addr_loopback;
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_storage at{};
    socklen_t size = sizeof at;
    const auto* const any =
        family == AF_INET6 ? reinterpret_cast<sockaddr*>(&six) : reinterpret_cast<sockaddr*>(&four);
    REQUIRE(::bind(listener_, any, family == AF_INET6 ? sizeof six : sizeof four) == 0);
    REQUIRE(::listen(listener_, 1) == 0);
    REQUIRE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size) == 0);
    REQUIRE(::connect(client_, reinterpret_cast<sockaddr*>(&at), size) == 0);
    accepted_ = ::accept(listener_, nullptr, nullptr);
    REQUIRE(accepted_ >= 0);
    client = end_of(client_);
    server = end_of(accepted_);
  }
  ~Connection() {
    ::close(accepted_);
    close_client();
    ::close(listener_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void close_client() {
    if (client_ >= 0) ::close(client_);
    client_ = -1;
  }
  void half_close_client() const { REQUIRE(::shutdown(client_, SHUT_WR) == 0); }

  TcpEnd client;
  TcpEnd server;

 private:
  int listener_;
  int client_;
  int accepted_ = -1;
};

TEST_CASE("The kernel names the user who made the client's socket", "[G-S6][local_user]") {
  const int family = GENERATE(AF_INET, AF_INET6);
  const Connection connection(family);
  CHECK(user_of(connection.client, connection.server) == ::geteuid());
  CHECK(user_by_table(connection.client, connection.server) == ::geteuid());
  connection.half_close_client();
  CHECK(user_of(connection.client, connection.server) == ::geteuid());
  CHECK(user_by_table(connection.client, connection.server) == ::geteuid());
}

TEST_CASE("A socket that its owner has closed is nobody's", "[G-S6][local_user]") {
  Connection connection(AF_INET);
  connection.close_client();  // The kernel shows root from now on.
  CHECK(user_of(connection.client, connection.server) == std::nullopt);
  CHECK(user_by_table(connection.client, connection.server) == std::nullopt);
}

TEST_CASE("A listener is not taken for a connection", "[G-S6][local_user]") {
  const Connection connection(AF_INET);
  const TcpEnd elsewhere{.address = "127.0.0.1", .port = 1};
  CHECK(user_of(connection.server, elsewhere) == std::nullopt);
  CHECK(user_by_table(connection.server, elsewhere) == std::nullopt);
  CHECK(user_of(elsewhere, connection.server) == std::nullopt);
  CHECK(user_of({.address = "localhost", .port = 1}, connection.server) == std::nullopt);
  CHECK(user_of({.address = "127.0.0.1", .port = 0}, connection.server) == std::nullopt);
}

TEST_CASE("The kernel names the user who listens", "[G-C13][local_user]") {
  const int family = GENERATE(AF_INET, AF_INET6);
  const Connection connection(family);
  CHECK(owner_of_listener(connection.server) == ::geteuid());
  CHECK(owner_of_listener(connection.client) == std::nullopt);
  CHECK(owner_of_listener({.address = "127.0.0.1", .port = 1}) == std::nullopt);
}

TEST_CASE("Root and the daemon's own user are trusted, and nobody else", "[G-S6][local_user]") {
  CHECK(is_trusted(0, 0));
  CHECK(is_trusted(0, 1000));
  CHECK(is_trusted(1000, 1000));
  CHECK_FALSE(is_trusted(1000, 0));
  CHECK_FALSE(is_trusted(1001, 1000));
  CHECK_FALSE(is_trusted(65534, 1000));  // Every user of another namespace.
}

struct Told {
  int status = 0;
  std::string text;
};

// Asks as another user: this thread's alone, as the system call knows no process.
Told ask_as_stranger(int port, const std::string& method, const std::string& path,
                     const httplib::Headers& headers) {
  Told told;
  std::thread([&] {
    if (::syscall(SYS_setresuid, -1, kStranger, -1) != 0) return;
    httplib::Client client("127.0.0.1", port);
    httplib::Request request;
    request.method = method;
    request.path = path;
    request.headers = headers;
    if (method == "POST") {
      request.set_header("Content-Type", "application/json");
      request.body = R"({"name": "v", "size": "1MiB", "memory": true})";
    }
    const auto result = client.send(request);
    if (result) told = {.status = result->status, .text = result->body};
  }).join();
  return told;
}

TEST_CASE("Another user on loopback may do nothing without a token", "[G-S6][rest]") {
  if (::geteuid() != 0) {
    WARN("only root can become another user");
    return;
  }
  with_server("", [](int port) {
    for (const char* path : {"/", "/metrics", "/api/v1/group", "/api/v1/openapi.json", "/x"}) {
      CAPTURE(path);
      const Told told = ask_as_stranger(port, "GET", path, {});
      CHECK(told.status == 403);
      CHECK(told.text.find("uid 12345 may not manage this daemon without a token") !=
            std::string::npos);
    }
    CHECK(ask_as_stranger(port, "OPTIONS", "/api/v1/volumes", {}).status == 403);
    CHECK(ask_as_stranger(port, "POST", "/api/v1/volumes", {}).status == 403);
    httplib::Client own("127.0.0.1", port);
    const auto volumes = own.Get("/api/v1/volumes");
    REQUIRE(volumes);
    CHECK(volumes->status == 200);
    CHECK(json::parse(volumes->body).at("volumes").empty());
  });
}

TEST_CASE("A token serves another user on loopback", "[G-S6][rest]") {
  if (::geteuid() != 0) {
    WARN("only root can become another user");
    return;
  }
  ServerOptions options;
  options.tokens = {{.name = "monitor",
                     .role = group::Role::kRead,
                     .digest = group::digest_of("reader-0123456789")}};
  with_server(
      "",
      [](int port) {
        const httplib::Headers token{{"Authorization", "Bearer reader-0123456789"}};
        CHECK(ask_as_stranger(port, "GET", "/api/v1/group", token).status == 200);
        CHECK(ask_as_stranger(port, "GET", "/api/v1/group", {}).status == 401);
      },
      options);
}

TEST_CASE("REST makes files and opens devices only where the configuration says", "[G-S6][rest]") {
  const testing::ScratchDirectory scratch;
  std::filesystem::create_directory(scratch.file("images"));
  ServerOptions options;
  options.volume_paths = {scratch.file("images")};
  with_server(
      "",
      [&](int port) {
        httplib::Client client("127.0.0.1", port);
        const auto create = [&](const std::string& key, const std::string& path) {
          const json body{{"name", "v"}, {"size", "1MiB"}, {key, path}};
          const auto result = client.Post("/api/v1/volumes", body.dump(), "application/json");
          REQUIRE(result);
          return Told{.status = result->status, .text = result->body};
        };
        const std::string outside = scratch.file("cron.d-evil");
        for (const auto& [key, path] : {std::pair{"file", outside}, std::pair{"device", outside},
                                        std::pair{"device", std::string("/dev/null")}}) {
          const Told told = create(key, path);
          CAPTURE(told.text);
          CHECK(told.status == 403);
          CHECK(told.text.find("management.volume_paths") != std::string::npos);
        }
        CHECK_FALSE(std::filesystem::exists(outside));
        CHECK(create("file", scratch.file("images/v.img")).status == 201);
      },
      options);
}

}  // namespace
}  // namespace sandbay::mgmt::local_user_test
