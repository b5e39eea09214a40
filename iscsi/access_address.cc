// Addresses and networks in access records. Everything is compared as IPv6: an IPv4 address is
// the one that maps it (::ffff:0:0/96, RFC 4291 section 2.5.5.2), so that a dual-stack listener
// makes no difference.
#include <algorithm>
#include <array>
#include <charconv>

#include "iscsi/access.h"

namespace sandbay::iscsi {
namespace {

constexpr unsigned kMappedPrefixBits = 96;

std::array<std::uint8_t, 16> as_ipv6(const Endpoint& address) {
  std::array<std::uint8_t, 16> bytes{};
  const auto source = address.bytes();
  if (address.is_ipv6()) {
    std::ranges::copy(source, bytes.begin());
  } else {
    bytes[10] = 0xff;
    bytes[11] = 0xff;
    std::copy_n(source.begin(), 4, bytes.begin() + 12);
  }
  return bytes;
}

std::optional<unsigned> parse_prefix(std::string_view text, unsigned maximum) {
  unsigned bits = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, bits);
  if (error != std::errc{} || stopped != end || bits > maximum) return std::nullopt;
  return bits;
}

}  // namespace

std::optional<AddressPattern> AddressPattern::parse(std::string_view text) {
  AddressPattern pattern;
  if (text.empty()) return pattern;
  const std::size_t slash = text.find('/');
  std::string host(text.substr(0, slash));
  const bool ipv6 = host.contains(':') && !host.starts_with('[');
  // The port that Endpoint wants is of no interest; "192.0.2.7:3260" would be a mistake.
  if (!ipv6 && host.contains(':')) return std::nullopt;
  if (ipv6) host = "[" + host + "]";
  const auto address = Endpoint::parse(host, 1);
  if (!address.has_value()) return std::nullopt;
  pattern.bytes_ = as_ipv6(*address);
  pattern.prefix_bits_ = 128;
  if (slash == std::string_view::npos) return pattern;
  const auto bits = parse_prefix(text.substr(slash + 1), address->is_ipv6() ? 128 : 32);
  if (!bits.has_value()) return std::nullopt;
  pattern.prefix_bits_ = *bits + (address->is_ipv6() ? 0 : kMappedPrefixBits);
  return pattern;
}

bool AddressPattern::matches(const Endpoint& address) const {
  const auto bytes = as_ipv6(address);
  const std::size_t whole = prefix_bits_ / 8;
  if (!std::equal(bytes_.begin(), bytes_.begin() + whole, bytes.begin())) return false;
  const unsigned rest = prefix_bits_ % 8;
  return rest == 0 || (bytes_[whole] ^ bytes[whole]) >> (8 - rest) == 0;
}

}  // namespace sandbay::iscsi
