// Endpoint: text forms of IP addresses with ports (RFC 5952 for IPv6).

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "runtime/io.h"

namespace sandbay {
namespace {

Result<std::uint16_t> parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, port);
  if (text.empty() || error != std::errc{} || end != last) return std::unexpected(Error::kInvalid);
  return port;
}

}  // namespace

Endpoint Endpoint::ipv4(std::uint32_t address, std::uint16_t port) {
  Endpoint endpoint;
  endpoint.bytes_[0] = static_cast<std::uint8_t>(address >> 24U);
  endpoint.bytes_[1] = static_cast<std::uint8_t>(address >> 16U);
  endpoint.bytes_[2] = static_cast<std::uint8_t>(address >> 8U);
  endpoint.bytes_[3] = static_cast<std::uint8_t>(address);
  endpoint.port_ = port;
  return endpoint;
}

Endpoint Endpoint::ipv6(std::span<const std::uint8_t, 16> address, std::uint16_t port) {
  Endpoint endpoint;
  std::ranges::copy(address, endpoint.bytes_);
  endpoint.port_ = port;
  endpoint.ipv6_ = true;
  return endpoint;
}

Result<Endpoint> Endpoint::parse(std::string_view text, std::uint16_t default_port) {
  std::string host;
  std::string_view port_text;
  bool has_port = false;
  const bool bracketed = text.starts_with('[');
  if (bracketed) {
    const auto close = text.find(']');
    if (close == std::string_view::npos) return std::unexpected(Error::kInvalid);
    host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (!rest.empty() && !rest.starts_with(':')) return std::unexpected(Error::kInvalid);
    has_port = !rest.empty();
    if (has_port) port_text = rest.substr(1);
  } else {
    const auto colon = text.rfind(':');
    has_port = colon != std::string_view::npos && text.find(':') == colon;
    host = text.substr(0, has_port ? colon : text.size());
    if (has_port) port_text = text.substr(colon + 1);
  }

  Endpoint endpoint;
  endpoint.port_ = default_port;
  if (has_port) {
    const auto port = parse_port(port_text);
    if (!port) return std::unexpected(port.error());
    endpoint.port_ = *port;
  } else if (default_port == 0) {
    return std::unexpected(Error::kInvalid);
  }
  in_addr four{};
  in6_addr six{};
  if (!bracketed && inet_pton(AF_INET, host.c_str(), &four) == 1) {
    std::memcpy(endpoint.bytes_, &four, sizeof four);
    return endpoint;
  }
  if (inet_pton(AF_INET6, host.c_str(), &six) != 1) return std::unexpected(Error::kInvalid);
  std::memcpy(endpoint.bytes_, &six, sizeof six);
  endpoint.ipv6_ = true;
  return endpoint;
}

bool Endpoint::is_any() const noexcept {
  return std::ranges::all_of(bytes_, [](std::uint8_t byte) { return byte == 0; });
}

std::string Endpoint::address() const {
  char text[INET6_ADDRSTRLEN] = {};
  const char* const done = inet_ntop(ipv6_ ? AF_INET6 : AF_INET, bytes_, text, sizeof text);
  assert(done != nullptr);
  return done;
}

std::string Endpoint::to_string() const {
  const std::string port = std::to_string(port_);
  return ipv6_ ? "[" + address() + "]:" + port : address() + ":" + port;
}

bool Endpoint::same_address(const Endpoint& other) const noexcept {
  return ipv6_ == other.ipv6_ && std::ranges::equal(bytes_, other.bytes_);
}

}  // namespace sandbay
