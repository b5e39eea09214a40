// Authority: who asks, and whether that role may do what is asked for.
//
// Without tokens everybody may do everything, which the configuration allows on loopback, or where
// it says so. With tokens every request needs one (RFC 6750, section 2.1), these pages included.
// Only digests are known here, and all of them are compared, each in constant time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "group/management_configuration.h"
#include "mgmt/route.h"

namespace sandbay::mgmt {

class Authority {
 public:
  explicit Authority(std::vector<group::ManagementToken> tokens) : tokens_(std::move(tokens)) {}

  bool demanded() const noexcept { return !tokens_.empty(); }
  // Whose token a header field "Authorization" holds; null: nobody's.
  const group::ManagementToken* bearer(std::string_view authorization) const;

 private:
  std::vector<group::ManagementToken> tokens_;
};

// The least role that may do it.
group::Role needed_role(const Route& route);
// What a bearer is told who may not.
std::string not_permitted(const group::ManagementToken& token, const Route& route);

}  // namespace sandbay::mgmt
