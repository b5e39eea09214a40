// The rules for a pool's pages are those of the map (pool/place.h): whole chunks, at least 16 and
// at most 1024 of them.
#include "group/pool_configuration.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "group/configuration.h"
#include "group/document.h"
#include "group/units.h"
#include "pool/place.h"

namespace sandbay::group {

namespace {

constexpr std::uint64_t kLeastPageBytes = pool::kLeastPageChunks * pool::kChunkBytes;
constexpr std::uint64_t kMostPageBytes = pool::kMostPageChunks * pool::kChunkBytes;

}  // namespace

std::optional<std::string> check_page_bytes(std::uint64_t page_bytes) {
  if (page_bytes % pool::kChunkBytes == 0 && page_bytes >= kLeastPageBytes &&
      page_bytes <= kMostPageBytes) {
    return std::nullopt;
  }
  return fmt::format("invalid page size {}; write a multiple of {} from {} to {}",
                     format_size(page_bytes), format_size(pool::kChunkBytes),
                     format_size(kLeastPageBytes), format_size(kMostPageBytes));
}

std::optional<std::string> named_twice(const std::vector<std::string>& names) {
  std::set<std::string_view> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) return name;
  }
  return std::nullopt;
}

PoolConfiguration read_pool(const Value& section, const std::string& path,
                            const std::vector<std::string>& members, Mistakes& mistakes) {
  TableReader reader(section, path, mistakes);
  PoolConfiguration pool{.line = section.line};
  reader.require("name", "the pool's name in quotes");
  if (const auto name = reader.string("name")) {
    if (const auto error = check_volume_name(*name)) reader.mistake("name", *error);
    pool.name = *name;
  }
  pool.members = reader.strings("members").value_or(std::vector<std::string>{});
  for (const std::string& member : pool.members) {
    if (std::ranges::find(members, member) != members.end()) continue;
    const std::string_view near = nearest(member, members);
    reader.mistake("members", fmt::format("there is no member \"{}\"; write \"{}\"", member,
                                          near.empty() ? std::string_view(members.front()) : near));
  }
  if (reader.has("members") && pool.members.empty()) {
    reader.mistake("members",
                   fmt::format("is empty; write some, such as [\"{}\"]", members.front()));
  }
  if (const auto twice = named_twice(pool.members)) {
    reader.mistake("members", fmt::format("\"{}\" occurs twice; write it once", *twice));
  }
  if (pool.members.empty()) pool.members.push_back(members.front());
  if (const auto page = reader.size("page", 1, kMostPageBytes * 1024)) {
    pool.page_given = true;
    pool.page_bytes = *page;
    if (const auto error = check_page_bytes(*page)) reader.mistake("page", *error);
  }
  reader.finish();
  return pool;
}

}  // namespace sandbay::group
