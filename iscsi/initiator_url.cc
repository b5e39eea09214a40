// iSCSI URLs: see the header for the form. Parsing never guesses: what is not understood is named.
#include "iscsi/initiator_url.h"

#include <fmt/core.h>

#include <cassert>
#include <charconv>
#include <ranges>

namespace sandbay::iscsi {
namespace {

constexpr std::string_view kScheme = "iscsi://";

using Failure = std::unexpected<std::string>;

Failure complain(std::string_view url, std::string_view what) {
  return Failure(
      fmt::format("{}: {}; expected "
                  "iscsi://[user%password@]host[:port][,host[:port]...]/target-name/lun",
                  url, what));
}

int hexadecimal(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

bool escape_at(std::string_view text, std::size_t at) {
  return at + 2 < text.size() && text[at] == '%' && hexadecimal(text[at + 1]) >= 0 &&
         hexadecimal(text[at + 2]) >= 0;
}

std::string unescape(std::string_view text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (escape_at(text, at)) {
      plain += static_cast<char>(hexadecimal(text[at + 1]) * 16 + hexadecimal(text[at + 2]));
      at += 2;
    } else {
      plain += text[at];
    }
  }
  return plain;
}

// The separator between user and password: the first '%' that is not an escape; if all are, the
// first one, so that "user%12345678" still means what it seems to mean.
std::size_t find_separator(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '%' && !escape_at(text, at)) return at;
  }
  return text.find('%');
}

bool valid_name(std::string_view name) {
  if (name.size() < 5 || name.size() > 223) return false;
  return name.starts_with("iqn.") || name.starts_with("eui.") || name.starts_with("naa.");
}

}  // namespace

std::uint64_t encode_lun(std::uint32_t number) {
  assert(number <= kLargestLun);
  const std::uint64_t first_two = number <= 255 ? number : 0x4000U | number;
  return first_two << 48U;
}

std::vector<InitiatorConnectionOptions> paths_of(const InitiatorUrl& url,
                                                 std::uint32_t connections) {
  if (url.more_endpoints.empty()) return {};  // All go where the first is sent on to.
  std::vector<Endpoint> portals{url.endpoint};
  portals.insert(portals.end(), url.more_endpoints.begin(), url.more_endpoints.end());
  std::vector<InitiatorConnectionOptions> paths(connections);
  for (std::size_t i = 0; i < paths.size(); ++i) paths[i].endpoint = portals[i % portals.size()];
  return paths;
}

std::expected<InitiatorUrl, std::string> parse_url(std::string_view url) {
  if (!url.starts_with(kScheme)) return complain(url, "does not begin with iscsi://");
  std::string_view rest = url.substr(kScheme.size());
  InitiatorUrl parsed;

  const auto slash = rest.find('/');
  std::string_view authority = rest.substr(0, slash);
  std::string_view path = slash == std::string_view::npos ? "" : rest.substr(slash + 1);

  if (const auto at = authority.rfind('@'); at != std::string_view::npos) {
    const std::string_view user = authority.substr(0, at);
    const auto separator = find_separator(user);
    if (separator == std::string_view::npos || separator == 0) {
      return complain(url, "the part before @ is not user%password");
    }
    parsed.chap = ChapIdentity{.user = unescape(user.substr(0, separator)),
                               .secret = unescape(user.substr(separator + 1))};
    if (parsed.chap->secret.empty()) return complain(url, "the password is empty");
    authority = authority.substr(at + 1);
  }

  if (authority.empty()) return complain(url, "the host is missing");
  for (const auto part : std::views::split(authority, ',')) {
    std::string host(part.begin(), part.end());
    if (host == "localhost" || host.starts_with("localhost:")) host.replace(0, 9, "127.0.0.1");
    const Result<Endpoint> endpoint = Endpoint::parse(host, kDefaultPort);
    if (!endpoint.has_value()) {
      return complain(url,
                      fmt::format("\"{}\" is not an IP address with an optional port", authority));
    }
    parsed.more_endpoints.push_back(*endpoint);
  }
  parsed.endpoint = parsed.more_endpoints.front();
  parsed.more_endpoints.erase(parsed.more_endpoints.begin());

  if (path.empty()) return parsed;
  const auto end = path.find('/');
  parsed.target_name = std::string(path.substr(0, end));
  if (!valid_name(parsed.target_name)) {
    return complain(
        url, fmt::format("\"{}\" is not a target name (iqn., eui. or naa.)", parsed.target_name));
  }
  if (end == std::string_view::npos) return complain(url, "the LUN is missing");
  const std::string_view lun = path.substr(end + 1);
  const auto [stop, error] =
      std::from_chars(lun.data(), lun.data() + lun.size(), parsed.lun_number);
  if (error != std::errc{} || stop != lun.data() + lun.size() || parsed.lun_number > kLargestLun) {
    return complain(url, fmt::format("\"{}\" is not a LUN from 0 to {}", lun, kLargestLun));
  }
  parsed.lun = encode_lun(parsed.lun_number);
  return parsed;
}

}  // namespace sandbay::iscsi
