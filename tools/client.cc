// The only file of the command line that sees the HTTP library.
//
// On loopback every user can listen. Before the client sends the token there without TLS, it asks
// the kernel who listens at each address of the host, and connects to an address that it trusts,
// never to the name: a second look-up could find another listener.
#include "tools/client.h"

#include <fmt/core.h>
#include <httplib.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "group/json_text.h"
#include "group/management_configuration.h"
#include "mgmt/local_user.h"

namespace sandbay::cli {

namespace {

using nlohmann::json;

constexpr int kConnectSeconds = 5;
// A volume that is preallocated, or deleted while its device is slow, takes its time.
constexpr int kAnswerSeconds = 600;
constexpr int kReadAnswerSeconds = 15;  // Of what only asks.

// Far above every answer of a daemon, and far below memory. Answers are some ten levels deep, and
// the destruction of a value recurses as deep as it is.
constexpr std::size_t kLargestAnswer = std::size_t{256} << 20;
constexpr int kDeepestAnswer = 64;

// Accounts of the system (Debian Policy 9.2.2), and the users that systemd allots to services.
// Every other account may be a person's: directories and user namespaces hand out high numbers too.
constexpr uid_t kLastSystemAccount = 999;
constexpr uid_t kFirstDynamicUser = 61184;
constexpr uid_t kLastDynamicUser = 65519;

constexpr std::string_view kPlain = "http://";
constexpr std::string_view kSecure = "https://";

std::string with_scheme(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url.find("://") == std::string::npos ? "http://" + url : url;
}

std::string explain(httplib::Error error, const std::string& url) {
  switch (error) {
    case httplib::Error::Connection:
    case httplib::Error::ConnectionTimeout:
      return fmt::format(
          "no daemon answers at {}; start one with sandbayd --config FILE, or name "
          "its address with --management",
          url);
    case httplib::Error::SSLConnection:
      return fmt::format("{} does not speak TLS as this program does; does it want http:// ?", url);
    case httplib::Error::SSLLoadingCerts:
      return fmt::format("{} cannot be verified: the certificates of --ca-file cannot be read",
                         url);
    case httplib::Error::SSLServerVerification:
      return fmt::format(
          "{} shows a certificate that is not trusted, or of another name; name who vouches for "
          "it with --ca-file, and the daemon as its certificate does",
          url);
    case httplib::Error::Canceled:
      return fmt::format("{} does not answer as a Sandbay daemon does (more than {} bytes)", url,
                         kLargestAnswer);
    case httplib::Error::Read:
    case httplib::Error::Write:
      return fmt::format(
          "the connection to {} broke before there was an answer; {}look at the daemon's log", url,
          url.starts_with(kPlain) ? "write https:// if it speaks TLS, otherwise " : "");
    default:
      return fmt::format("{} cannot be asked: {}", url, httplib::to_string(error));
  }
}

struct Place {
  std::string host;
  std::string port;
};

Place place_of(const std::string& url) {
  const bool secure = url.starts_with(kSecure);
  Place place{.host = url.substr(secure ? kSecure.size() : kPlain.size()),
              .port = secure ? "443" : "80"};
  const auto bracket = place.host.rfind(']');
  const auto colon = place.host.rfind(':');
  if (colon != std::string::npos && (bracket == std::string::npos || colon > bracket)) {
    place.port = place.host.substr(colon + 1);
    place.host.resize(colon);
  }
  if (place.host.starts_with('[') && place.host.ends_with(']')) {
    place.host = place.host.substr(1, place.host.size() - 2);
  }
  return place;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* const four = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(four->sin_addr.s_addr) >> 24U == 127;
  }
  if (address->sa_family != AF_INET6) return false;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr) != 0;
}

struct Resolved {
  std::vector<std::string> addresses;  // In digits, as connections try them.
  bool here = true;                    // All are on loopback.
};

// The addresses of a URL's host, or the problem with its host or port.
std::expected<Resolved, std::string> resolve(const std::string& url) {
  const auto [host, port] = place_of(url);
  unsigned number = 0;
  const char* const end = port.data() + port.size();
  const auto [stop, error] = std::from_chars(port.data(), end, number);
  if (error != std::errc{} || stop != end || number == 0 || number > 65535) {
    return std::unexpected(
        fmt::format("--management {}: invalid port \"{}\"; write 1 to 65535", url, port));
  }
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (host.empty() || ::getaddrinfo(host.c_str(), nullptr, &wanted, &found) != 0) {
    return std::unexpected(fmt::format("--management {}: there is no host \"{}\"", url, host));
  }
  Resolved resolved;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    resolved.here = resolved.here && is_loopback(one->ai_addr);
    std::array<char, NI_MAXHOST> digits{};
    if (::getnameinfo(one->ai_addr, one->ai_addrlen, digits.data(), digits.size(), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      resolved.addresses.emplace_back(digits.data());
    }
  }
  ::freeaddrinfo(found);
  return resolved;
}

// Discarded if it is not JSON, or nested too deeply.
json answer_from(const std::string& body) {
  if (body.empty()) return {};
  bool deep = false;
  const auto watch = [&deep](int depth, json::parse_event_t, json&) {
    deep = deep || depth > kDeepestAnswer;
    return !deep;
  };
  json answer = json::parse(body, watch, /*allow_exceptions=*/false);
  return deep ? json(json::value_t::discarded) : answer;
}

// The daemon's sentence about a refusal.
std::optional<std::string> message_in(const json& answer) {
  const auto error = answer.is_object() ? answer.find("error") : answer.end();
  if (!answer.is_object() || error == answer.end() || !error->is_object()) return std::nullopt;
  const auto message = error->find("message");
  if (message == error->end() || !message->is_string()) return std::nullopt;
  return message->get<std::string>();
}

bool may_learn_token(uid_t owner) {
  return owner == ::geteuid() || owner <= kLastSystemAccount ||
         (owner >= kFirstDynamicUser && owner <= kLastDynamicUser);
}

// The URL of the first of a host's loopback addresses where somebody listens, if the listener may
// learn the token.
std::expected<std::string, Refused> trusted_url(const std::string& url, const Resolved& host) {
  const std::string port = place_of(url).port;
  for (const std::string& address : host.addresses) {
    const auto owner = mgmt::owner_of_listener({.address = address, .port = std::stoi(port)});
    if (!owner) continue;
    const bool six = address.find(':') != std::string::npos;
    const std::string place =
        fmt::format("{}{}:{}", kPlain, six ? "[" + address + "]" : address, port);
    if (may_learn_token(*owner)) return place;
    return std::unexpected(Refused{
        .message = fmt::format("{} belongs to a program of uid {}, which would learn your token; "
                               "stop that program, or run the daemon as a system account or as "
                               "your own user",
                               place, *owner),
        .exit = Exit::kForbidden});
  }
  return std::unexpected(Refused{
      .message = fmt::format("no daemon answers at {}, or the kernel does not show whose it is; "
                             "start one with sandbayd --config FILE, or name its address with "
                             "--management",
                             url),
      .exit = Exit::kUnreachable});
}

}  // namespace

std::string_view word_of(Exit exit) {
  switch (exit) {
    case Exit::kDone:
      return "done";
    case Exit::kFailed:
      return "failed";
    case Exit::kUsage:
      return "usage";
    case Exit::kUnreachable:
      return "unreachable";
    case Exit::kNotFound:
      return "not_found";
    case Exit::kConflict:
      return "conflict";
    case Exit::kForbidden:
      return "forbidden";
    case Exit::kInvalid:
      return "invalid";
    case Exit::kUnavailable:
      return "unavailable";
    case Exit::kNotRun:
      return "not_run";
  }
  return "failed";
}

Exit exit_of_status(int status) {
  switch (status) {
    case 400:
    case 413:
    case 415:
      return Exit::kInvalid;
    case 401:
    case 403:
      return Exit::kForbidden;
    case 404:
      return Exit::kNotFound;
    case 409:
      return Exit::kConflict;
    case 503:
      return Exit::kUnavailable;
    default:
      return Exit::kFailed;
  }
}

Client::Client(const Management& management)
    : url_(with_scheme(management.url)), ca_file_(management.ca_file), plain_(management.plain) {
  if (!management.token_file.empty()) {
    auto token = group::read_token_file(management.token_file);
    if (!token) throw Failure("--token-file: " + token.error());
    token_ = std::move(*token);
  } else if (const char* const token = std::getenv("SANDBAY_TOKEN")) {
    token_ = token;
  }
  if (token_.find_first_of("\r\n") != std::string::npos) {
    throw Failure("SANDBAY_TOKEN: is more than one line; set it to the token alone");
  }
}

std::string Client::escape(const std::string& name) {
  if (name.empty()) throw Failure("the name is empty; write the name of an existing object");
  std::string escaped;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == ':';
    if (plain) {
      escaped += c;
    } else {
      escaped += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

Client::Answer Client::get(const std::string& path) const { return send("GET", path, nullptr, {}); }

Client::Answer Client::post(const std::string& path, const json& body, bool* created) const {
  const std::string text = group::to_text(body);
  return send("POST", path, &text, {.created = created});
}

std::expected<std::string, Refused> Client::post_for_text(const std::string& path,
                                                          const json& body) const {
  const std::string sent = body.dump();
  std::string text;
  const Answer answer = send("POST", path, &sent, {.text = &text});
  if (!answer) return std::unexpected(answer.error());
  return text;
}

Client::Answer Client::patch(const std::string& path, const json& body) const {
  const std::string text = group::to_text(body);
  return send("PATCH", path, &text, {});
}

Client::Answer Client::remove(const std::string& path) const {
  return send("DELETE", path, nullptr, {});
}

Client::Answer Client::send(const char* method, const std::string& path, const std::string* body,
                            Extra extra) const {
  const auto wrong = [](std::string message, Exit exit) {
    return std::unexpected(Refused{.message = std::move(message), .exit = exit});
  };
  const bool known = url_.starts_with(kPlain) || url_.starts_with(kSecure);
  if (!known || url_ == kPlain || url_ == kSecure) {
    return wrong(
        fmt::format("{} is not a management URL; write one such as {}", url_, kDefaultManagement),
        Exit::kUsage);
  }
  const auto host = resolve(url_);
  if (!host) return wrong(host.error(), Exit::kUnreachable);
  const bool plain = url_.starts_with(kPlain);
  const bool guarded = !token_.empty() || !ca_file_.empty();
  if (guarded && !host->here && !plain_ && plain) {
    return wrong(
        fmt::format("{} is not secured: everybody on the way could read the token; write https://, "
                    "or add --plain if the network may see it",
                    url_),
        Exit::kUsage);
  }
  std::expected<std::string, Refused> place = url_;
  if (!token_.empty() && host->here && plain) place = trusted_url(url_, *host);
  if (!place) return std::unexpected(place.error());
  // Something else that listens there must not hold a change up for as long as one may take.
  if (std::string_view(method) != "GET") {
    Answer daemon = send("GET", "/api/v1/group", nullptr, {});
    if (!daemon) return daemon;
  }
  httplib::Client http(*place);
  http.set_connection_timeout(kConnectSeconds);
  http.set_read_timeout(body == nullptr && std::string_view(method) == "GET" ? kReadAnswerSeconds
                                                                             : kAnswerSeconds);
  if (!ca_file_.empty()) http.set_ca_cert_path(ca_file_);
  httplib::Request request;
  if (!token_.empty()) request.set_header("Authorization", "Bearer " + token_);
  request.method = method;
  request.path = path;
  if (body != nullptr) {
    request.body = *body;
    request.set_header("Content-Type", "application/json");
  }
  std::string received;
  request.content_receiver = [&received](const char* data, std::size_t count, std::uint64_t,
                                         std::uint64_t) {
    if (count > kLargestAnswer - received.size()) return false;
    received.append(data, count);
    return true;
  };
  // A daemon that refuses a request by its head closes while the body is sent. Over TLS that would
  // be a signal; a closed pipe on standard output still is.
  auto* const before = std::signal(SIGPIPE, SIG_IGN);
  httplib::Result result = http.send(request);
  std::signal(SIGPIPE, before);
  if (!result) return wrong(explain(result.error(), url_), Exit::kUnreachable);
  if (extra.created != nullptr) *extra.created = result->status == 201;
  if (extra.text != nullptr && result->status == 200) {
    *extra.text = std::move(received);
    return json();
  }
  const json answer = answer_from(received);
  if (result->status >= 200 && result->status < 300 && !answer.is_discarded()) return answer;
  if (const auto message = message_in(answer)) {
    return wrong(*message, exit_of_status(result->status));
  }
  return wrong(fmt::format("{} does not answer as a Sandbay daemon does (HTTP status {})", url_,
                           result->status),
               Exit::kUnreachable);
}

std::string member_path(const std::string& name) {
  return fmt::format("{}/{}", kMembers, Client::escape(name));
}

std::string pool_path(const std::string& name) {
  return fmt::format("{}/{}", kPools, Client::escape(name));
}

std::string volume_path(const std::string& name) {
  return fmt::format("{}/{}", kVolumes, Client::escape(name));
}

}  // namespace sandbay::cli
