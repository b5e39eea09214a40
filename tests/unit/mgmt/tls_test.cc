// TLS below HTTP: what is served, which files are refused, and that nobody who dawdles with it
// holds a thread.
#include "mgmt/tls.h"

#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/mgmt/certificate.h"
#include "tests/unit/mgmt/running_server.h"

namespace sandbay::mgmt {
namespace {

struct Files {
  Files() { make_certificate(certificate, key); }
  std::shared_ptr<const TlsContext> load() const {
    auto loaded = TlsContext::load(certificate, key);
    REQUIRE(loaded.has_value());
    return std::move(*loaded);
  }
  testing::ScratchDirectory scratch;
  std::string certificate = scratch.file("certificate.pem");
  std::string key = scratch.file("key.pem");
};

ServerOptions with_tls(const Files& files) {
  ServerOptions options;
  options.tls = files.load();
  return options;
}

TEST_CASE("Requests over TLS get their answers, small and large", "[tls]") {
  const Files files;
  with_server(
      "[[volume]]\nname = \"v\"\nsize = \"4MiB\"\n",
      [&](int port) {
        httplib::SSLClient client("127.0.0.1", port);
        client.set_ca_cert_path(files.certificate);
        client.set_keep_alive(true);
        for (int i = 0; i < 3; ++i) {
          const auto group = client.Get("/api/v1/group");
          REQUIRE(group);
          CHECK(group->status == 200);
        }
        const auto document = client.Get("/api/v1/openapi.json");
        REQUIRE(document);
        CHECK(nlohmann::json::parse(document->body).at("openapi") == "3.0.3");
        const std::string body = R"({"name": "w", "size": "1MiB", "memory": true, "serial": ")" +
                                 std::string(100'000, 'x') + "\"}";
        const auto refused = client.Post("/api/v1/volumes", body, "application/json");
        REQUIRE(refused);
        CHECK(refused->status == 400);
      },
      with_tls(files));
}

TEST_CASE("Who does not trust the certificate, or speaks plain text, gets nothing", "[tls]") {
  const Files files;
  const Files others;
  with_server(
      "",
      [&](int port) {
        httplib::SSLClient stranger("127.0.0.1", port);
        stranger.set_ca_cert_path(others.certificate);
        CHECK_FALSE(stranger.Get("/api/v1/group"));
        httplib::Client plain("127.0.0.1", port);
        CHECK_FALSE(plain.Get("/api/v1/group"));
        httplib::SSLClient client("127.0.0.1", port);
        client.set_ca_cert_path(files.certificate);
        CHECK(client.Get("/api/v1/group"));
      },
      with_tls(files));
}

class Silent {
 public:
  explicit Silent(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Silent() { ::close(socket_); }
  Silent(const Silent&) = delete;
  Silent& operator=(const Silent&) = delete;
  bool is_closed_by_server() const {
    pollfd end{.fd = socket_, .events = POLLIN, .revents = 0};
    char byte = 0;
    return connected_ && ::poll(&end, 1, 120'000) == 1 && ::recv(socket_, &byte, 1, 0) <= 0;
  }

 private:
  int socket_;
  bool connected_ = false;
};

TEST_CASE("Who never begins TLS is given up, and keeps nobody from stopping", "[tls]") {
  const Files files;
  ServerOptions options = with_tls(files);
  options.threads = 1;
  options.client_silence = std::chrono::milliseconds(50);
  options.client_request = std::chrono::milliseconds(200);
  std::unique_ptr<Silent> left;
  with_server(
      "",
      [&](int port) {
        const Silent silent(port);
        CHECK(silent.is_closed_by_server());
        left = std::make_unique<Silent>(port);
      },
      options);
  CHECK(left->is_closed_by_server());
}

std::string refusal_of(const std::string& certificate, const std::string& key) {
  const auto loaded = TlsContext::load(certificate, key);
  return loaded ? "" : loaded.error();
}

TEST_CASE("Files that cannot serve are refused by name", "[tls]") {
  const Files files;
  const Files others;
  CHECK(refusal_of(files.certificate, files.key).empty());
  CHECK_THAT(refusal_of(files.scratch.file("absent"), files.key),
             Catch::Contains("management.certificate: ") && Catch::Contains("absent"));
  CHECK_THAT(refusal_of(files.key, files.key), Catch::Contains("management.certificate: "));
  CHECK_THAT(refusal_of(files.certificate, others.key),
             Catch::Contains("management.key: ") && Catch::Contains("of that certificate"));
  CHECK_THAT(refusal_of(files.certificate, files.scratch.file("absent")),
             Catch::Contains("management.key: "));
  ::chmod(files.key.c_str(), S_IRUSR | S_IROTH);
  CHECK_THAT(refusal_of(files.certificate, files.key), Catch::Contains("chmod 600"));
}

}  // namespace
}  // namespace sandbay::mgmt
