// PoolConfiguration: the sections [[pool]] of a configuration file, checked, as plain values: pools
// that are made if they are not there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sandbay::group {

class Mistakes;
class TableReader;
struct Value;

inline constexpr std::size_t kMostPools = 64;
inline constexpr std::uint64_t kDefaultPageBytes = std::uint64_t{15} << 20;

struct PoolConfiguration {
  std::string name;
  std::vector<std::string> members;  // Empty: the one that is described at the top of the file.
  std::uint64_t page_bytes = kDefaultPageBytes;
  bool page_given = false;
  std::uint32_t line = 0;
};

// Why a pool cannot have such pages; half a sentence.
std::optional<std::string> check_page_bytes(std::uint64_t page_bytes);

// The first name that stands there a second time.
std::optional<std::string> named_twice(const std::vector<std::string>& names);

// Reads one section; every mistake is noted. `members` are those of the file.
PoolConfiguration read_pool(const Value& section, const std::string& path,
                            const std::vector<std::string>& members, Mistakes& mistakes);

}  // namespace sandbay::group
