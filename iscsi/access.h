// Who may use a target: matching of access records, and the rules for iSCSI names (RFC 7143
// section 4.2.7) and for the addresses that records name.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "iscsi/target_server.h"
#include "runtime/io.h"

namespace sandbay::iscsi {

inline constexpr std::size_t kMaximumNameBytes = 223;

// A name to give to something of ours: iqn., eui. or naa. in its exact form. Empty if it is good,
// otherwise what is wrong.
std::string name_problem(std::string_view name);
// A name that a peer presents: initiators in the field are given odd names by hand, so any 1 to
// 223 bytes of UTF-8 without white space and control characters will do.
bool is_acceptable_name(std::string_view name);
// Names compare without regard to the case of ASCII letters (stringprep folds it).
bool same_name(std::string_view a, std::string_view b);
std::string lower_case(std::string_view text);
// `*` any run of characters, `?` any one; case as above.
bool matches_pattern(std::string_view pattern, std::string_view name);

// "192.0.2.7", "192.0.2.0/24", "2001:db8::/32"; empty matches everything. An IPv4 address and the
// IPv6 address that maps it are the same.
class AddressPattern {
 public:
  static std::optional<AddressPattern> parse(std::string_view text);
  bool matches(const Endpoint& address) const;

 private:
  std::array<std::uint8_t, 16> bytes_{};
  unsigned prefix_bits_ = 0;  // Of the 128.
};

// Empty if the record can be used, otherwise what is wrong with it.
std::string record_problem(const AccessRecord& record);

// What the records say about an initiator.
struct AccessDecision {
  bool allowed = false;                     // Some record matches.
  bool chap_required = false;               // Every record that matches demands CHAP.
  std::vector<ChapCredential> credentials;  // Of the records that match.
};
AccessDecision decide_access(std::span<const AccessRecord> records, std::string_view initiator_name,
                             const Endpoint& address);

}  // namespace sandbay::iscsi
