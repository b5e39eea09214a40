// What both stores share: long lists, and the arithmetic of prefixes. Both erase and list by the
// half-open range from a prefix to its end, in which every key that begins with the prefix lies,
// and no other; keys have a greatest length, so that even a prefix of nothing but 0xff has an end.
#include "metadata/store.h"

#include <algorithm>
#include <iterator>

namespace sandbay::metadata {

Task<Result<std::vector<Entry>>> list_all(Store& store, std::string prefix) {
  constexpr std::size_t kAtOnce = 256;
  std::vector<Entry> all;
  for (bool last = false; !last;) {
    const std::string after = all.empty() ? std::string() : all.back().first;
    auto part = co_await store.list(prefix, after, kAtOnce);
    if (!part) co_return std::unexpected(part.error());
    last = part->size() < kAtOnce;
    std::ranges::move(*part, std::back_inserter(all));
  }
  co_return all;
}

std::string end_of_prefix(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && end.back() == '\xff') end.pop_back();
  // Without a byte that can be raised, every longer run of 0xff begins with the prefix; only one
  // that no key can reach is beyond them.
  if (end.empty()) return std::string(kLongestKey + 1, '\xff');
  end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1U);
  return end;
}

}  // namespace sandbay::metadata
