// All digests are compared whatever the first ones say, so that time tells nothing of any.
#include "mgmt/authority.h"

#include <fmt/core.h>
#include <openssl/crypto.h>

#include <algorithm>

namespace sandbay::mgmt {

namespace {

// The token behind the scheme's name, which counts in any case of letters; empty: another scheme.
std::string_view token_of(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return {};
  const bool ours = std::ranges::equal(
      authorization.substr(0, kScheme.size()), kScheme,
      [](char given, char lower) { return (given | 0x20) == lower || given == lower; });
  if (!ours) return {};
  authorization.remove_prefix(kScheme.size());
  while (authorization.starts_with(' ')) authorization.remove_prefix(1);
  return authorization;
}

}  // namespace

const group::ManagementToken* Authority::bearer(std::string_view authorization) const {
  const std::string_view text = token_of(authorization);
  if (text.empty()) return nullptr;
  const group::TokenDigest digest = group::digest_of(text);
  const group::ManagementToken* found = nullptr;
  for (const group::ManagementToken& token : tokens_) {
    if (::CRYPTO_memcmp(token.digest.data(), digest.data(), digest.size()) == 0) found = &token;
  }
  return found;
}

group::Role needed_role(const Route& route) {
  if (route.role) return *route.role;
  return route.method == "GET" ? group::Role::kRead : group::Role::kOperate;
}

std::string not_permitted(const group::ManagementToken& token, const Route& route) {
  return fmt::format("the token \"{}\" has the role {}; {} {} needs {}", token.name,
                     describe(token.role), route.method, route.path, describe(needed_role(route)));
}

}  // namespace sandbay::mgmt
