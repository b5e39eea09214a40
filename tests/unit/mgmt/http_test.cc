// HTTP below the routes: methods, and clients that take their time. What is sent and received here
// is bytes, since a well-behaved library would not send most of it.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "mgmt/bounded_server.h"
#include "tests/unit/mgmt/running_server.h"

// In the place of the C library's.
static std::atomic<int> trims = 0;
extern "C" int malloc_trim(size_t) noexcept {
  ++trims;
  return 0;
}

namespace sandbay::mgmt::http_test {
namespace {

using nlohmann::json;

// A test hangs no longer than this, and never asserts how long something took.
constexpr int kGuardSeconds = 120;

class Connection {
 public:
  explicit Connection(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval guard{.tv_sec = kGuardSeconds, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &guard, sizeof guard);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Connection() { ::close(socket_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool connected() const { return connected_; }
  void send(const std::string& text) const {
    ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
  }
  // Everything until the server closes; "(hangs)" if it does not.
  std::string rest() const {
    std::string text;
    char buffer[4096];
    for (;;) {
      const ssize_t count = ::recv(socket_, buffer, sizeof buffer, 0);
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return "(hangs)";
      if (count <= 0) return text;
      text.append(buffer, static_cast<std::size_t>(count));
    }
  }
  // How many bytes come until the server closes, to somebody who pauses after so many.
  std::size_t count_rest(std::size_t portion, std::chrono::milliseconds pause) const {
    std::vector<char> buffer(portion);
    std::size_t total = 0;
    for (;;) {
      const ssize_t count = ::recv(socket_, buffer.data(), buffer.size(), MSG_WAITALL);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return total;
      total += static_cast<std::size_t>(count);
      std::this_thread::sleep_for(pause);
    }
  }
  // Whether the server closes within that time; what it sends is dropped.
  bool closed_within(std::chrono::milliseconds time) const {
    for (;;) {
      pollfd end{.fd = socket_, .events = POLLIN, .revents = 0};
      if (::poll(&end, 1, static_cast<int>(time.count())) <= 0) return false;
      char buffer[4096];
      if (::recv(socket_, buffer, sizeof buffer, MSG_DONTWAIT) <= 0) return true;
    }
  }
  bool has_input() const {
    pollfd end{.fd = socket_, .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, 0) > 0;
  }
  // Whether the server gives it up although it takes nothing.
  bool reset_within(std::chrono::milliseconds time) const {
    pollfd end{.fd = socket_, .events = 0, .revents = 0};
    return ::poll(&end, 1, static_cast<int>(time.count())) > 0;
  }

 private:
  int socket_;
  bool connected_ = false;
};

struct Response {
  std::string head;  // Status line and header fields.
  std::string body;

  bool is(int status) const { return head.starts_with("HTTP/1.1 " + std::to_string(status) + " "); }
  bool has(const std::string& field) const { return head.find(field + "\r\n") != head.npos; }
  std::string code() const {
    const json parsed = json::parse(body, nullptr, false);
    return parsed.is_object() ? parsed.at("error").at("code").get<std::string>() : "(not JSON)";
  }
};

Response ask(int port, const std::string& method, const std::string& path,
             const std::string& fields = "", const std::string& body = "") {
  const Connection connection(port);
  connection.send(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
                  fields + "\r\n" + body);
  const std::string text = connection.rest();
  const auto end = text.find("\r\n\r\n");
  INFO(text);
  REQUIRE(end != std::string::npos);
  return {.head = text.substr(0, end + 2), .body = text.substr(end + 4)};
}

TEST_CASE("HEAD is GET without the body", "[http]") {
  with_server("", [](int port) {
    const Response get = ask(port, "GET", "/api/v1/openapi.json");
    CHECK(get.is(200));
    const Response head = ask(port, "HEAD", "/api/v1/openapi.json");
    CHECK(head.is(200));
    CHECK(head.body.empty());
    CHECK(head.has("Content-Type: application/json"));
    CHECK(head.has("Content-Length: " + std::to_string(get.body.size())));
    const Response missing = ask(port, "HEAD", "/api/v1/volumes/none");
    CHECK(missing.is(404));
    CHECK(missing.body.empty());
    const Response not_read = ask(port, "HEAD", "/api/v1/sessions/7/negotiation-request");
    CHECK(not_read.is(405));
    CHECK(not_read.has("Allow: POST, OPTIONS"));
  });
}

TEST_CASE("OPTIONS tells what a path offers", "[http]") {
  with_server("", [](int port) {
    const Response volumes = ask(port, "OPTIONS", "/api/v1/volumes");
    CHECK(volumes.is(204));
    CHECK(volumes.body.empty());
    CHECK(volumes.has("Allow: GET, HEAD, POST, OPTIONS"));
    CHECK(ask(port, "OPTIONS", "/api/v1/volumes/any")
              .has("Allow: GET, HEAD, PATCH, DELETE, "
                   "OPTIONS"));
    CHECK(ask(port, "OPTIONS", "/metrics").has("Allow: GET, HEAD, OPTIONS"));
    // No page of another origin is told that it may do anything.
    const Response preflight =
        ask(port, "OPTIONS", "/api/v1/volumes",
            "Origin: http://attacker.example\r\nAccess-Control-Request-Method: POST\r\n");
    CHECK(preflight.head.find("Access-Control-") == std::string::npos);
    const Response nothing = ask(port, "OPTIONS", "/api/v1/nothing");
    CHECK(nothing.is(404));
    CHECK(nothing.code() == "not_found");
  });
}

TEST_CASE("Methods that are not offered are refused with those that are", "[http]") {
  with_server("", [](int port) {
    for (const char* method : {"PUT", "DELETE", "TRACE", "CONNECT"}) {
      CAPTURE(method);
      const Response refused = ask(port, method, "/api/v1/group");
      CHECK(refused.is(405));
      CHECK(refused.has("Allow: GET, HEAD, OPTIONS"));
      CHECK(refused.code() == "method_not_allowed");
    }
    // Refused before its body has come.
    const Response early = ask(port, "PUT", "/api/v1/group", "Content-Length: 1000000\r\n");
    CHECK(early.is(405));
    for (const char* method : {"BREW", "get", ""}) {
      CAPTURE(method);
      const Response unknown = ask(port, method, "/api/v1/group");
      CHECK(unknown.is(400));
      CHECK(unknown.code() == "invalid");
    }
  });
}

// How many answers there are in what a connection received.
std::size_t count_answers(const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = text.find("HTTP/1.1 "); at != text.npos; at = text.find("HTTP/1.1 ", at)) {
    ++count;
    ++at;
  }
  return count;
}

TEST_CASE("Requests that come together are all answered", "[http]") {
  with_server("", [](int port) {
    const std::string request = "GET /api/v1/group HTTP/1.1\r\nHost: localhost\r\n";
    const Connection connection(port);
    connection.send(request + "\r\n" + request + "\r\n" + request + "Connection: close\r\n\r\n");
    CHECK(count_answers(connection.rest()) == 3);
  });
}

TEST_CASE("A request without a body is not waited for, and no body is taken for a request",
          "[http]") {
  with_server("", [](int port) {
    const Response posted = ask(port, "POST", "/api/v1/sessions/7/negotiation-request",
                                "Content-Type: application/json\r\n");
    CHECK(posted.is(404));
    const std::string hidden = "DELETE /api/v1/volumes/v HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (const std::string method : {"GET", "PUT", "OPTIONS", "BREW"}) {
      CAPTURE(method);
      const Connection connection(port);
      connection.send(method + " /api/v1/group HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                      std::to_string(hidden.size()) + "\r\n\r\n" + hidden);
      CHECK(count_answers(connection.rest()) == 1);
    }
  });
}

TEST_CASE("A malformed Content-Length is refused and hides no request", "[X9][http]") {
  with_server("", [](int port) {
    const std::string hidden = "DELETE /api/v1/volumes/v HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (const std::string length :
         {"0\r\nContent-Length: 51", "51\r\nContent-Length: 51", "", "+2", "-1", "0x2", "2 2",
          "0, 51", "0\r\nContent-Length : 51"}) {
      CAPTURE(length);
      const Connection connection(port);
      connection.send(
          "DELETE /api/v1/volumes/absent HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length +
          "\r\n\r\n" + hidden);
      const std::string answers = connection.rest();
      CHECK(count_answers(answers) == 1);
      CHECK(answers.find(" 400 ") != std::string::npos);
    }
  });
}

TEST_CASE("A head that a proxy may read in another way is refused and hides no request",
          "[X9][http]") {
  with_server("", [](int port) {
    const std::string begin = "DELETE /api/v1/volumes/absent HTTP/1.1\r\nHost: localhost\r\n";
    const std::string hidden = "DELETE /api/v1/volumes/v HTTP/1.1\r\nHost: localhost\r\n\r\n";
    struct Case {
      std::string head;
      std::string refusal;
    };
    const std::string ends = "ends in LF alone";
    const std::string name = "has no proper name";
    const std::string folded = "is folded";
    const std::string holds = "holds CR or NUL";
    for (const Case& each : {
             Case{begin + "Content-Length: 51\n\r\n", ends},
             Case{begin + "X: y\nContent-Length: 51\r\n\r\n", ends},
             Case{begin + "Content-Length: 51\r\n\n", ends},
             Case{"DELETE /x HTTP/1.1\nHost: localhost\r\n\r\n", ends},
             Case{begin + "Transfer-Encoding : chunked\r\n\r\n", name},
             Case{begin + "Transfer-Encoding\t: chunked\r\n\r\n", name},
             Case{begin + "X Transfer-Encoding: chunked\r\n\r\n", name},
             Case{begin + "Transfer-encoding: \t\r\n\r\n", "Transfer-Encoding is empty"},
             Case{begin + "Content-Length : 51\r\n\r\n", name},
             Case{begin + "Content-Length\r\n\r\n", name},
             Case{begin + ": 51\r\n\r\n", name},
             Case{begin + " Content-Length: 51\r\n\r\n", folded},
             Case{begin + "X: y\r\n\tTransfer-Encoding: chunked\r\n\r\n", folded},
             Case{begin + "X: y\rContent-Length: 51\r\n\r\n", holds},
             Case{begin + "X: y" + std::string(1, '\0') + "\r\n\r\n", holds},
         }) {
      CAPTURE(each.head);
      const Connection connection(port);
      connection.send(each.head + hidden);
      const std::string answers = connection.rest();
      CHECK(count_answers(answers) == 1);
      CHECK(answers.find(" 400 ") != std::string::npos);
      CHECK(answers.find(each.refusal) != std::string::npos);
    }
    CHECK(ask(port, "GET", "/api/v1/group", "X-Of.Others_1:\tany value: of \"it\" \r\nX:\r\n")
              .is(200));
  });
}

TEST_CASE("A request with Content-Length 0 leaves the connection open", "[X9][http]") {
  with_server("", [](int port) {
    const std::string request =
        "GET /api/v1/group HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
        "Content-Length-Of-Others: x\r\n";
    const Connection connection(port);
    connection.send(request + "\r\n" + request + "Connection: close\r\n\r\n");
    CHECK(count_answers(connection.rest()) == 2);
  });
}

// Sends a change and hangs up before it is handled; the callers that the audit has.
std::vector<std::string> callers_after_hanging_up(int port, std::chrono::milliseconds patience) {
  {
    const std::string body = R"({"name": "gone", "memory": true, "size": "1MiB"})";
    const Connection connection(port);
    connection.send(
        "POST /api/v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body.substr(0, 10));
    std::this_thread::sleep_for(patience);  // The server judges the head.
    connection.send(body.substr(10));
  }
  std::this_thread::sleep_for(patience);
  std::vector<std::string> callers;
  for (const json& change : json::parse(ask(port, "GET", "/api/v1/audit").body).at("changes")) {
    callers.push_back(change.at("caller").get<std::string>());
  }
  return callers;
}

TEST_CASE("The audit names the caller of a change whose client hangs up", "[X9][http]") {
  with_server("", [](int port) {
    std::vector<std::string> callers;
    for (int tries = 1; callers.empty() && tries < 20; ++tries) {
      callers = callers_after_hanging_up(port, std::chrono::milliseconds(100) * tries);
    }
    REQUIRE_FALSE(callers.empty());
    CHECK(callers.front() == "uid " + std::to_string(::geteuid()));
  });
}

// Clients may be silent for as long as a test lasts, and more.
ServerOptions patient() {
  return {.listen = {},
          .client_silence = std::chrono::minutes(10),
          .client_request = std::chrono::minutes(10),
          .client_answer = std::chrono::minutes(10)};
}

// The server gives silent clients up soon, so that tests do not wait long for that.
ServerOptions hurried() {
  ServerOptions options = patient();
  options.client_silence = std::chrono::milliseconds(200);
  return options;
}

// Beginnings that are never finished.
const std::vector<std::string>& beginnings() {
  static const std::vector<std::string> kBeginnings = {
      "",
      "GET /api/v1/gro",
      "GET /api/v1/group HTTP/1.1\r\nHost: loc",
      "POST /api/v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 100\r\n\r\n{\"name\": \"half\", \"size\": \"1MiB\"}",
      "POST /api/v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n40\r\n{\"name\": \"half\", \"size\": \"1MiB\"}",
  };
  return kBeginnings;
}

// Some 20 MB of answers.
std::string many_requests() {
  std::string requests;
  for (int i = 0; i < 900; ++i) {
    requests += "GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
  }
  return requests;
}

TEST_CASE("Clients that never finish a request are given up, and nothing is done", "[http]") {
  with_server(
      "",
      [](int port) {
        for (const std::string& beginning : beginnings()) {
          CAPTURE(beginning);
          const Connection connection(port);
          connection.send(beginning);
          const std::string answer = connection.rest();
          CHECK(answer != "(hangs)");
          CHECK(answer.find(" 200 ") == std::string::npos);
          CHECK(answer.find(" 201 ") == std::string::npos);
        }
        CHECK(json::parse(ask(port, "GET", "/api/v1/volumes").body).at("volumes").empty());
      },
      hurried());
}

TEST_CASE("A body whose length is not declared is refused before it is read", "[http]") {
  with_server("", [](int port) {
    const Connection connection(port);
    connection.send(
        "POST /api/v1/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n20\r\n{\"name\": \"v\", \"size\": \"1MiB\"   }\r\n"
        "0\r\n\r\n");
    const std::string answer = connection.rest();
    CHECK(answer.find(" 413 ") != std::string::npos);
    CHECK(answer.find("send Content-Length") != std::string::npos);
    CHECK(json::parse(ask(port, "GET", "/api/v1/volumes").body).at("volumes").empty());
  });
}

TEST_CASE("More clients that dawdle than there are threads only delay others", "[http]") {
  ServerOptions options = hurried();
  options.threads = 8;  // Each beginning takes one, and three take another.
  with_server(
      "",
      [&options](int port) {
        std::vector<std::unique_ptr<Connection>> dawdling;
        for (unsigned i = 0; i < 2 * options.threads; ++i) {
          dawdling.push_back(std::make_unique<Connection>(port));
          REQUIRE(dawdling.back()->connected());
          dawdling.back()->send(beginnings()[i % beginnings().size()]);
        }
        CHECK(ask(port, "GET", "/api/v1/group").is(200));
      },
      options);
}

TEST_CASE("A client that takes no answer is given up, and others are served", "[http]") {
  with_server("", [](int port) {
    std::vector<std::unique_ptr<Connection>> deaf;
    for (int i = 0; i < 4; ++i) {
      deaf.push_back(std::make_unique<Connection>(port));
      deaf.back()->send(many_requests());
    }
    CHECK(ask(port, "GET", "/api/v1/group").is(200));
  });
}

// Sends `beginning`, and then a byte now and then. False if the server goes on waiting.
bool given_up_while_dripping(int port, const std::string& beginning) {
  const Connection connection(port);
  connection.send(beginning);
  for (int i = 0; i < 1000; ++i) {
    connection.send("x");
    if (connection.closed_within(std::chrono::milliseconds(20))) return true;
  }
  return false;
}

TEST_CASE("A client that is never silent is given up when its request takes too long", "[http]") {
  ServerOptions options = patient();
  options.client_request = std::chrono::milliseconds(200);
  with_server(
      "",
      [](int port) {
        CHECK(given_up_while_dripping(port, "GET /"));
        CHECK(given_up_while_dripping(port, "GET / HTTP/1.1\r\nHost: "));
        CHECK(given_up_while_dripping(
            port,
            "POST /api/v1/volumes HTTP/1.1\r\nHost: localhost\r\n"
            "Content-Type: application/json\r\nContent-Length: 2000\r\n\r\n"));
      },
      options);
}

TEST_CASE("A client that takes too long over an answer is given up", "[http]") {
  ServerOptions options = patient();
  options.client_answer = std::chrono::milliseconds(200);
  with_server(
      "",
      [](int port) {
        const Connection deaf(port);
        deaf.send(many_requests());
        CHECK(deaf.reset_within(std::chrono::seconds(kGuardSeconds)));
      },
      options);
}

TEST_CASE("A long answer has the time that it needs at a good pace", "[http]") {
  constexpr std::size_t kAnswerBytes = std::size_t{20} << 20;  // Far more than sockets hold.
  BoundedServer server(1, 1, {.answer = std::chrono::milliseconds(200)});
  server.Get("/", [](const httplib::Request&, httplib::Response& response) {
    response.set_content(std::string(kAnswerBytes, 'x'), "text/plain");
  });
  const int port = server.bind_to_any_port("127.0.0.1");
  REQUIRE(port > 0);
  std::thread listener([&] { server.listen_after_bind(); });
  std::size_t received = 0;
  {
    const Connection connection(port);
    connection.send("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    received = connection.count_rest(std::size_t{1} << 20, std::chrono::milliseconds(60));
  }
  server.stop_at_once();
  listener.join();
  CHECK(received > kAnswerBytes);
}

TEST_CASE("Stopping waits for no client", "[http]") {
  std::vector<std::unique_ptr<Connection>> dawdling;
  const auto dawdle = [&dawdling](int port, const std::string& text) {
    dawdling.push_back(std::make_unique<Connection>(port));
    dawdling.back()->send(text);
  };
  with_server(
      "",
      [&dawdle](int port) {
        for (const std::string& beginning : beginnings()) dawdle(port, beginning);
        dawdle(port, "GET /api/v1/group HTTP/1.1\r\nHost: localhost\r\n\r\n");
        dawdle(port, many_requests());
        CHECK(ask(port, "GET", "/api/v1/group").is(200));
      },
      patient());
  // Here it has stopped, though each of them might have stayed for ten minutes.
  for (const auto& connection : dawdling) CHECK(connection->rest() != "(hangs)");
}

TEST_CASE("Who has shown nothing yet gives way to one that waits", "[http]") {
  constexpr auto kLong = std::chrono::minutes(10);
  BoundedServer server(1, 256,
                       {.silence = kLong,
                        .request = kLong,
                        .answer = kLong,
                        .crowded = std::chrono::milliseconds(100)});
  server.Get("/", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("served", "text/plain");
  });
  const int port = server.bind_to_any_port("127.0.0.1");
  REQUIRE(port > 0);
  std::thread listener([&] { server.listen_after_bind(); });
  std::string answer;
  {
    // Silent, in the middle of a head, and one that sends a byte now and then.
    std::vector<std::unique_ptr<Connection>> dawdling;
    for (const char* beginning : {"", "GET / HTTP/1.1\r\nHost: loc", "GET /"}) {
      dawdling.push_back(std::make_unique<Connection>(port));
      dawdling.back()->send(beginning);
    }
    const Connection waiting(port);
    waiting.send("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    for (int i = 0; i < 1000 && !waiting.has_input(); ++i) {
      dawdling.back()->send("x");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    answer = waiting.rest();
  }
  server.stop_at_once();
  listener.join();
  CHECK(answer.starts_with("HTTP/1.1 200 "));
}

TEST_CASE("A client with request after request gives way to one that waits", "[http]") {
  ServerOptions options = patient();
  options.threads = 1;
  with_server(
      "",
      [](int port) {
        const std::string request = "GET /api/v1/group HTTP/1.1\r\nHost: localhost\r\n";
        const Connection first(port);
        first.send(request + "\r\n");
        REQUIRE_FALSE(first.closed_within(std::chrono::milliseconds(20)));
        const Connection second(port);
        second.send(request + "Connection: close\r\n\r\n");
        bool gave_way = false;
        for (int i = 0; i < 500 && !gave_way; ++i) {
          first.send(request + "\r\n");
          gave_way = first.closed_within(std::chrono::milliseconds(20));
        }
        REQUIRE(gave_way);
        CHECK(second.rest().starts_with("HTTP/1.1 200 "));
      },
      options);
}

TEST_CASE("A head without end is refused, be it many lines or one", "[http]") {
  with_server(
      "",
      [](int port) {
        std::string lines;
        for (int i = 0; i < 1000; ++i) lines += "a:b\r\n";
        const std::string begin = "GET /api/v1/group HTTP/1.1\r\nHost: localhost\r\n";
        for (const std::string& head : {begin + lines, begin + "X: " + std::string(60'000, 'x'),
                                        "GET /" + std::string(60'000, 'x')}) {
          const Connection connection(port);
          connection.send(head);
          CHECK(connection.closed_within(std::chrono::seconds(20)));
        }
        // What browsers and proxies send is taken.
        std::string usual;
        for (int i = 0; i < 60; ++i) usual += "X-Name: " + std::string(200, 'x') + "\r\n";
        CHECK(ask(port, "GET", "/api/v1/group", usual).is(200));
        CHECK(ask(port, "GET", "/api/v1/group", lines).is(400));
      },
      patient());
}

TEST_CASE("An answer is whole, whatever parts of it are asked for", "[http]") {
  with_server("", [](int port) {
    const Response whole = ask(port, "GET", "/api/v1/openapi.json");
    std::string many = "bytes=-";
    for (int i = 0; i < 3000; ++i) many += ",-";
    const std::vector<std::string> fields = {"Range: bytes=0-9", "rAnGe: bytes=5-",
                                             "Range: bytes=9-0", "Range: nonsense",
                                             "RANGE: " + many};
    for (const std::string& field : fields) {
      const Response answer = ask(port, "GET", "/api/v1/openapi.json", field + "\r\n");
      CAPTURE(field.substr(0, 40), answer.head);
      CHECK(answer.is(200));
      CHECK(answer.body.size() == whole.body.size());
    }
    // A field is left out; what stands behind it is read, and so is the next request.
    const Connection connection(port);
    const std::string request = "GET /api/v1/group HTTP/1.1\r\nRange: bytes=0-1\r\nHost: localhost";
    connection.send(request + "\r\n\r\n" + request + "\r\nConnection: close\r\n\r\n");
    CHECK(count_answers(connection.rest()) == 2);
  });
}

TEST_CASE("Memory is given back for a body that was read, and not for one that was promised",
          "[http]") {
  with_server("", [](int port) {
    const std::string fields = "Content-Type: application/json\r\nContent-Length: 200000\r\n";
    trims = 0;
    // Turned away before its body is read, as one without a token is.
    CHECK(ask(port, "PUT", "/api/v1/volumes", fields).is(405));
    CHECK(trims == 0);
    CHECK(ask(port, "POST", "/api/v1/volumes", fields, std::string(200'000, ' ')).is(400));
    CHECK(trims == 1);
  });
}

// The socket of this process that listens there.
int listening_at(int port) {
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    int listens = 0;
    socklen_t length = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0)
      continue;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.sin_family == AF_INET && ntohs(address.sin_port) == port) return fd;
  }
  return -1;
}

TEST_CASE("After accepting has failed it listens anew", "[http]") {
  with_server("", [](int port) {
    for (int round = 0; round < 2; ++round) {
      const int listener = listening_at(port);
      REQUIRE(listener >= 0);
      ::shutdown(listener, SHUT_RDWR);  // accept() fails with EINVAL.
      bool there = false;
      for (int i = 0; i < 500 && !there; ++i) {
        ::usleep(20'000);
        there = Connection(port).connected();
      }
      REQUIRE(there);
      CHECK(ask(port, "GET", "/api/v1/group").is(200));
    }
  });
}

}  // namespace
}  // namespace sandbay::mgmt::http_test
