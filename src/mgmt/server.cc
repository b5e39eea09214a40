// Requests pass one guard, then the table of routes; whatever the library itself refuses gets the
// same error format.
#include "mgmt/server.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include "group/listening.h"
#include "group/log.h"
#include "mgmt/audit.h"
#include "mgmt/authority.h"
#include "mgmt/backend.h"
#include "mgmt/bounded_server.h"
#include "mgmt/change_slots.h"
#include "mgmt/local_user.h"
#include "mgmt/refusal_budget.h"
#include "mgmt/route.h"
#include "runtime/blocking.h"

namespace sandbay::mgmt {

namespace {

constexpr auto kBindAgain = std::chrono::milliseconds(100);
// How long a request that was begun may wait for its answer when the daemon is to end.
constexpr auto kAnswerPatience = std::chrono::seconds(15);

void put(const Reply& reply, httplib::Response& response) {
  response.status = reply.status;
  if (!reply.location.empty()) response.set_header("Location", reply.location);
  if (reply.status != 204) response.set_content(reply.body, std::string(reply.content_type));
}

// What is refused before any route is looked for. No page of somebody else's has a token to show,
// so where one is demanded the daemon may have a name.
std::optional<Reply> refused_by_guard(const httplib::Request& request, bool token_demanded) {
  if (request.get_header_value_count("Host") != 1 ||
      (!token_demanded && !is_literal_host(request.get_header_value("Host")))) {
    return error_reply(403,
                       "the Host header names neither an IP address nor localhost; use the "
                       "daemon's address in the URL");
  }
  // Every page in a browser of this machine can send requests to loopback.
  const bool changes = request.method != "GET" && request.method != "HEAD";
  if (!token_demanded && changes && request.get_header_value("Sec-Fetch-Site") == "cross-site") {
    return error_reply(403,
                       "the request comes from a web page of another site; use sandbay, or type "
                       "the address into the browser");
  }
  // The library takes a body of any length unless it is told before how long that is.
  if (request.has_header("Transfer-Encoding")) {
    return error_reply(413, "the length of the body is not declared; send Content-Length");
  }
  const bool writes = request.method == "POST" || request.method == "PATCH";
  if (writes && !is_json_type(request.get_header_value("Content-Type"))) {
    return error_reply(415,
                       "the body is not declared as JSON; send Content-Type: application/json");
  }
  return std::nullopt;
}

std::string_view raw_path(const httplib::Request& request) {
  const std::string_view target = request.target;
  return target.substr(0, target.find_first_of("?#"));
}

std::optional<uid_t> user_of(const httplib::Request& request) {
  return user_of(TcpEnd{.address = request.remote_addr, .port = request.remote_port},
                 TcpEnd{.address = request.local_addr, .port = request.local_port});
}

// The user whose request this thread serves, while no token is demanded. A client that hangs up
// before its request is handled no longer has a user, so the first answer is kept for the audit.
thread_local std::optional<uid_t> asking_user;

// For the audit. No token is called so: names have no spaces.
std::string local_name() {
  return asking_user ? fmt::format("uid {}", *asking_user) : std::string();
}

// OPTIONS, and methods that nothing here has: answered before any body is read.
bool answered_by_method(const httplib::Request& request, httplib::Response& response) {
  for (const std::string_view method : {"GET", "HEAD", "POST", "PATCH", "DELETE"}) {
    if (request.method == method) return false;
  }
  const std::string allowed = allowed_methods(raw_path(request));
  if (allowed.empty()) {
    put(error_reply(404, "there is nothing at this path; see /api/v1/openapi.json"), response);
    return true;
  }
  response.set_header("Allow", allowed);
  if (request.method == "OPTIONS") {
    response.status = 204;
    return true;
  }
  put(error_reply(405, fmt::format("{} is not offered for {}; see /api/v1/openapi.json",
                                   request.method, raw_path(request))),
      response);
  return true;
}

Reply reply_to_exception(const httplib::Request& request, const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const GivenUp&) {
    return error_reply(503,
                       "the daemon ends, and does not wait for this any longer; whether it is done "
                       "shows after the next start");
  } catch (...) {
    group::log_error("{} {}: an exception reached the HTTP layer", request.method, request.path);
    return error_reply(500, "the daemon failed to serve the request; see its log");
  }
}

class HttpServer final : public Server {
 public:
  HttpServer(group::Service& service, Executor& home, ServerOptions options)
      : backend_(service, home, options.volume_paths),
        home_(home),
        options_(std::move(options)),
        endpoint_(options_.listen),
        authority_(std::make_shared<const Authority>(options_.tokens)),
        changes_(options_.threads),
        http_(options_.threads, options_.waiting_connections,
              {.silence = options_.client_silence,
               .request = options_.client_request,
               .answer = options_.client_answer},
              options_.tls) {}
  ~HttpServer() override { assert(!listener_.joinable()); }

  std::expected<void, std::string> listen();
  const Endpoint& endpoint() const noexcept override { return endpoint_; }
  void renew(std::vector<group::ManagementToken> tokens,
             std::shared_ptr<const TlsContext> tls) override {
    authority_ = std::make_shared<const Authority>(std::move(tokens));
    if (tls != nullptr) http_.renew_tls(std::move(tls));
  }
  Task<void> stop() override;

 private:
  std::string cannot_listen(Error error) const {
    return group::cannot_listen("management", options_.listen, error,
                                "management.listen or --management");
  }
  void configure();
  void keep_listening();  // Until stop().
  // Whether the request is answered already: refused, or by its method alone.
  bool turn_away(const httplib::Request& request, httplib::Response& response);
  // Where no token is demanded on loopback.
  std::optional<Reply> refused_by_user();
  std::optional<Reply> refused_by_token(const Authority& authority, const httplib::Request& request,
                                        httplib::Response& response);
  // The audit's name for the one who asks; none for a stranger.
  std::optional<std::string> known_caller(const Authority& authority,
                                          const httplib::Request& request) const;
  // A refusal that no route has given.
  void note_refusal(const httplib::Request& request, const httplib::Response& response);
  void audit_within_budget(const std::string& caller, group::AuditEntry entry);
  void handle_error(const httplib::Request& request, httplib::Response& response);
  void handle(const httplib::Request& request, httplib::Response& response);

  Backend backend_;
  Executor& home_;
  ServerOptions options_;
  Endpoint endpoint_;
  std::atomic<std::shared_ptr<const Authority>> authority_;
  RefusalBudget refusals_;
  ChangeSlots changes_;
  BoundedServer http_;
  std::thread listener_;
  std::atomic<bool> listener_ended_ = false;
  std::atomic<bool> stopping_ = false;
};

void HttpServer::configure() {
  // Its own default would let two daemons share the port.
  http_.set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  http_.set_payload_max_length(options_.largest_body_bytes);
  http_.set_tcp_nodelay(true);
  // Before any body is read.
  http_.set_pre_routing_handler(
      [this](const httplib::Request& request, httplib::Response& response) {
        return turn_away(request, response) ? httplib::Server::HandlerResponse::Handled
                                            : httplib::Server::HandlerResponse::Unhandled;
      });
  http_.set_error_handler([this](const httplib::Request& request, httplib::Response& response) {
    handle_error(request, response);
  });
  http_.set_exception_handler(
      [](const httplib::Request& request, httplib::Response& response, std::exception_ptr thrown) {
        put(reply_to_exception(request, thrown), response);
      });
  const auto handler = [this](const httplib::Request& request, httplib::Response& response) {
    handle(request, response);
  };
  http_.Get(".*", handler);
  http_.Post(".*", handler);
  http_.Patch(".*", handler);
  http_.Delete(".*", handler);
}

// Refusals of the library. A head that was not read to its end shows nobody's token.
void HttpServer::handle_error(const httplib::Request& request, httplib::Response& response) {
  if (!response.body.empty()) return;
  const BoundedServer::Head& head = BoundedServer::head();
  std::string text = "the request is not valid HTTP, or this daemon cannot serve it";
  if (response.status == 413) {
    text = fmt::format("the body is too large; at most {} bytes are taken",
                       options_.largest_body_bytes);
  } else if (!head.refusal.empty()) {
    text = head.refusal;
  }
  put(error_reply(response.status, text), response);
  if (head.whole) {
    note_refusal(request, response);
  } else {
    ++backend_.turned_away().unknown;
  }
}

bool HttpServer::turn_away(const httplib::Request& request, httplib::Response& response) {
  const std::shared_ptr<const Authority> authority = authority_;
  asking_user = authority->demanded() ? std::nullopt : user_of(request);
  if (const auto refused = refused_by_guard(request, authority->demanded())) {
    put(*refused, response);
    note_refusal(request, response);
    return true;
  }
  const auto refused =
      authority->demanded() ? refused_by_token(*authority, request, response) : refused_by_user();
  if (refused) {
    put(*refused, response);
    return true;
  }
  const bool answered = answered_by_method(request, response);
  if (answered && response.status == 405) note_refusal(request, response);
  return answered;
}

std::optional<std::string> HttpServer::known_caller(const Authority& authority,
                                                    const httplib::Request& request) const {
  if (authority.demanded()) {
    const bool one = request.get_header_value_count("Authorization") == 1;
    const auto* const token =
        one ? authority.bearer(request.get_header_value("Authorization")) : nullptr;
    if (token == nullptr) return std::nullopt;
    return token->name;
  }
  const bool trusted = asking_user && is_trusted(*asking_user, ::geteuid());
  if (group::is_loopback(endpoint_) && !trusted) return std::nullopt;
  return local_name();
}

void HttpServer::note_refusal(const httplib::Request& request, const httplib::Response& response) {
  const std::shared_ptr<const Authority> authority = authority_;
  const auto caller = known_caller(*authority, request);
  if (!caller) {
    ++backend_.turned_away().unknown;
    return;
  }
  for (const std::string_view looks : {"GET", "HEAD", "OPTIONS"}) {
    if (request.method == looks) return;
  }
  Call call{.caller = {.name = *caller, .address = request.remote_addr}};
  for (const auto& [name, value] : request.params) call.query.emplace(name, value);
  bool path_known = false;
  const Route* const route =
      find_route(request.method, raw_path(request), &call.parameters, &path_known);
  const Reply reply{.status = response.status, .body = response.body};
  audit_within_budget(*caller,
                      audit_refusal(route, request.method, raw_path(request), call, reply));
}

void HttpServer::audit_within_budget(const std::string& caller, group::AuditEntry entry) {
  const auto left_out = refusals_.take(caller, std::chrono::steady_clock::now());
  if (!left_out) return;
  if (*left_out > 0) entry.refusal += fmt::format(" ({} more were not kept)", *left_out);
  backend_.run(backend_.service().note_change(std::move(entry)));
}

// Every user of this machine can connect to loopback, so it proves nothing. Elsewhere
// the configuration says that management is everybody's (allow_remote).
std::optional<Reply> HttpServer::refused_by_user() {
  if (!group::is_loopback(endpoint_)) return std::nullopt;
  const uid_t daemon = ::geteuid();
  const std::optional<uid_t> user = asking_user;
  if (user && is_trusted(*user, daemon)) return std::nullopt;
  ++backend_.turned_away().unknown;
  return error_reply(
      403,
      fmt::format("{} may not manage this daemon without a token: only root and its own user "
                  "(uid {}) may; use one of these accounts, or add [[management.token]] to "
                  "the daemon's file",
                  user ? fmt::format("uid {}", *user) : std::string("an unknown user"), daemon));
}

// RFC 6750, section 3. Strangers are only counted: anybody who can connect could fill a log.
std::optional<Reply> HttpServer::refused_by_token(const Authority& authority,
                                                  const httplib::Request& request,
                                                  httplib::Response& response) {
  const bool one = request.get_header_value_count("Authorization") == 1;
  const auto* const token =
      one ? authority.bearer(request.get_header_value("Authorization")) : nullptr;
  if (token == nullptr) {
    ++backend_.turned_away().unknown;
    const bool given = request.has_header("Authorization");
    response.set_header(
        "WWW-Authenticate",
        given ? "Bearer realm=\"sandbay\", error=\"invalid_token\"" : "Bearer realm=\"sandbay\"");
    return error_reply(401, given ? "this daemon does not know the token"
                                  : "a token is demanded; send Authorization: Bearer TOKEN, or "
                                    "give sandbay one with --token-file or SANDBAY_TOKEN");
  }
  Call call{.caller = {.name = token->name, .address = request.remote_addr}};
  bool path_known = false;
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  const Route* const route = find_route(method, raw_path(request), &call.parameters, &path_known);
  if (route == nullptr || token->role >= needed_role(*route)) return std::nullopt;
  ++backend_.turned_away().forbidden;
  response.set_header("WWW-Authenticate", "Bearer realm=\"sandbay\", error=\"insufficient_scope\"");
  Reply reply = error_reply(403, not_permitted(*token, *route));
  if (!is_audited(*route)) return reply;
  for (const auto& [name, value] : request.params) call.query.emplace(name, value);
  audit_within_budget(token->name, audit_entry(*route, raw_path(request), call, reply));
  return reply;
}

void HttpServer::handle(const httplib::Request& request, httplib::Response& response) {
  Call call;
  for (const auto& [name, value] : request.params) call.query.emplace(name, value);
  call.body = request.body;
  const std::shared_ptr<const Authority> authority = authority_;
  const auto* const token = authority->bearer(request.get_header_value("Authorization"));
  call.caller = {.name = token != nullptr ? token->name : local_name(),
                 .address = request.remote_addr};
  // The library leaves the body out of an answer to HEAD. Names may hold an encoded slash.
  const std::string_view method =
      request.method == "HEAD" ? std::string_view("GET") : std::string_view(request.method);
  const bool changes = method != "GET";
  const auto slot = changes ? changes_.enter(raw_path(request)) : std::nullopt;
  if (changes && !slot) {
    response.set_header("Retry-After", "5");
    put(error_reply(503, "too many changes wait already; try again when some have ended"),
        response);
    return;
  }
  const Reply reply = answer(backend_, method, raw_path(request), std::move(call));
  put(reply, response);
  if (reply.status != 405) return;
  response.set_header("Allow", allowed_methods(raw_path(request)));
  note_refusal(request, response);
}

std::expected<void, std::string> HttpServer::listen() {
  if (!http_.is_valid()) return std::unexpected(cannot_listen(Error::kNoMemory));
  configure();
  errno = 0;
  const std::string address = options_.listen.address();
  bool bound = false;
  if (options_.listen.port() == 0) {
    const int port = http_.bind_to_any_port(address);
    bound = port > 0;
    if (bound) endpoint_.set_port(static_cast<std::uint16_t>(port));
  } else {
    bound = http_.bind_to_port(address, options_.listen.port());
  }
  if (!bound) {
    const Error error = errno == 0 ? Error::kUnreachable : error_from_errno(errno);
    return std::unexpected(cannot_listen(error));
  }
  try {
    listener_ = std::thread([this] {
      keep_listening();
      listener_ended_ = true;
    });
  } catch (const std::system_error&) {
    return std::unexpected(
        "management: cannot start a thread; raise the limit on processes (ulimit -u, or TasksMax "
        "in systemd)");
  }
  return {};
}

// The library gives up, and closes its socket, at the first accept() that fails in a way it does
// not know, such as for want of memory.
void HttpServer::keep_listening() {
  while (!http_.listen_after_bind() && !stopping_) {
    group::log_error("management: accepting has failed; it listens anew");
    while (!http_.bind_to_port(options_.listen.address(), endpoint_.port())) {
      if (stopping_) return;
      std::this_thread::sleep_for(kBindAgain);
    }
    if (stopping_) return;
  }
}

Task<void> HttpServer::stop() {
  stopping_ = true;
  const Error ended = co_await run_blocking(home_, {}, [this] {
    // stop() does nothing before the listener's loop has begun.
    while (!http_.is_running() && !listener_ended_) std::this_thread::yield();
    http_.stop_at_once();
    const auto patience = std::chrono::steady_clock::now() + kAnswerPatience;
    while (backend_.somebody_waits() && std::chrono::steady_clock::now() < patience) {
      std::this_thread::sleep_for(kBindAgain);
    }
    backend_.give_up();
    listener_.join();
  });
  assert(ended == Error::kNone);
}

}  // namespace

bool is_literal_host(std::string_view host) {
  std::string name(host);
  if (name.starts_with('[')) {
    const auto end = name.find(']');
    if (end == std::string::npos) return false;
    const std::string port = name.substr(end + 1);
    name = name.substr(1, end - 1);
    in6_addr bytes{};
    const bool good_port = port.empty() || (port.starts_with(':') && port.size() <= 6);
    return good_port && ::inet_pton(AF_INET6, name.c_str(), &bytes) == 1;
  }
  name = name.substr(0, name.find(':'));
  std::ranges::transform(name, name.begin(), [](unsigned char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : static_cast<char>(c);
  });
  in_addr bytes{};
  return name == "localhost" || ::inet_pton(AF_INET, name.c_str(), &bytes) == 1;
}

bool is_json_type(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (type.ends_with(' ')) type.remove_suffix(1);
  return type == "application/json";
}

std::expected<std::unique_ptr<Server>, std::string> Server::start(group::Service& service,
                                                                  Executor& home,
                                                                  ServerOptions options) {
  auto server = std::make_unique<HttpServer>(service, home, std::move(options));
  const auto listening = server->listen();
  if (!listening) return std::unexpected(listening.error());
  return server;
}

}  // namespace sandbay::mgmt
