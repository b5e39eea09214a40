// Areas are few: one of the volume's first place, and one for each time it grew meanwhile.
#include "group/cleared_areas.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <exception>
#include <nlohmann/json.hpp>

namespace sandbay::group {

namespace {

using nlohmann::json;

constexpr int kFormat = 1;
// So small that nobody waits long for one; and so few that a record of all of them is small.
constexpr std::uint64_t kLeastChunkBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kMostChunks = 65536;
constexpr std::uint64_t kChunksOfDigit = 4;

std::uint64_t chunks_of(const Extent& extent, std::uint64_t chunk_blocks) {
  return (extent.block_count - 1) / chunk_blocks + 1;
}

}  // namespace

Extent ClearedAreas::Area::chunk(std::uint64_t index) const {
  const Lba first = extent.first + index * chunk_blocks;
  return {.first = first, .block_count = std::min(chunk_blocks, extent.end() - first)};
}

void ClearedAreas::add(Extent extent, std::uint32_t block_bytes) {
  if (extent.block_count == 0) return;
  const std::uint64_t least = std::max<std::uint64_t>(1, kLeastChunkBytes / block_bytes);
  Area area;
  area.extent = extent;
  area.chunk_blocks = std::max(least, std::bit_ceil(chunks_of(extent, kMostChunks)));
  area.chunks.resize(chunks_of(extent, area.chunk_blocks), State::kOld);
  areas_.push_back(std::move(area));
}

const ClearedAreas::Area* ClearedAreas::area_of(Lba lba) const {
  for (const Area& area : areas_) {
    if (area.extent.first <= lba && lba < area.extent.end()) return &area;
  }
  return nullptr;
}

ClearedAreas::Run ClearedAreas::run_at(Lba first, Lba limit) const {
  assert(first < limit);
  const Area* const area = area_of(first);
  if (area == nullptr) {
    Lba end = limit;
    for (const Area& other : areas_) {
      if (other.extent.first > first) end = std::min(end, other.extent.first);
    }
    return {.block_count = end - first, .kept = true};
  }
  std::uint64_t index = (first - area->extent.first) / area->chunk_blocks;
  const bool kept = area->chunks[index] == State::kKept;
  Lba end = first;
  while (end < limit && index < area->chunks.size() &&
         (area->chunks[index] == State::kKept) == kept) {
    end = std::min(limit, area->chunk(index++).end());
  }
  return {.block_count = end - first, .kept = kept};
}

bool ClearedAreas::kept(Extent extent) const {
  for (Lba lba = extent.first; lba < extent.end() && !areas_.empty();) {
    const Run run = run_at(lba, extent.end());
    if (!run.kept) return false;
    lba += run.block_count;
  }
  return true;
}

std::optional<Extent> ClearedAreas::first_old(Extent within) const {
  for (const Area& area : areas_) {
    const Lba first = std::max(within.first, area.extent.first);
    const Lba end = std::min(within.end(), area.extent.end());
    if (first >= end) continue;
    std::uint64_t index = (first - area.extent.first) / area.chunk_blocks;
    for (index = std::max(index, area.next_old); index < area.chunks.size(); ++index) {
      if (area.chunk(index).first >= end) break;
      if (area.chunks[index] == State::kOld) return area.chunk(index);
    }
  }
  return std::nullopt;
}

std::optional<Extent> ClearedAreas::first_old() const {
  for (const Area& area : areas_) {
    if (area.next_old < area.chunks.size()) return first_old(area.extent);
  }
  return std::nullopt;
}

void ClearedAreas::mark_zeroed(Extent chunk) {
  for (Area& area : areas_) {
    if (chunk.first < area.extent.first || chunk.first >= area.extent.end()) continue;
    State& state = area.chunks[(chunk.first - area.extent.first) / area.chunk_blocks];
    assert(state == State::kOld);
    state = State::kZeroed;
    ++zeroed_;
    while (area.next_old < area.chunks.size() && area.chunks[area.next_old] != State::kOld) {
      ++area.next_old;
    }
  }
}

void ClearedAreas::keep_zeroed() {
  for (Area& area : areas_) std::ranges::replace(area.chunks, State::kZeroed, State::kKept);
  std::erase_if(areas_, [](const Area& area) { return area.next_old == area.chunks.size(); });
  zeroed_ = 0;
}

std::uint64_t ClearedAreas::unkept_blocks() const noexcept {
  std::uint64_t blocks = 0;
  for (const Area& area : areas_) {
    for (std::uint64_t index = 0; index < area.chunks.size(); ++index) {
      if (area.chunks[index] != State::kKept) blocks += area.chunk(index).block_count;
    }
  }
  return blocks;
}

// A bit for each chunk, set if it is cleared: the lowest of each hexadecimal digit is the first.
std::string ClearedAreas::encode() const {
  json areas = json::array();
  for (const Area& area : areas_) {
    std::string digits;
    for (std::size_t at = 0; at < area.chunks.size(); at += kChunksOfDigit) {
      unsigned digit = 0;
      for (std::size_t i = at; i < std::min(at + kChunksOfDigit, area.chunks.size()); ++i) {
        if (area.chunks[i] != State::kOld) digit |= 1U << (i - at);
      }
      digits.push_back("0123456789abcdef"[digit]);
    }
    areas.push_back({{"first_block", area.extent.first},
                     {"blocks", area.extent.block_count},
                     {"chunk_blocks", area.chunk_blocks},
                     {"cleared", std::move(digits)}});
  }
  return json{{"format", kFormat}, {"areas", std::move(areas)}}.dump();
}

std::expected<ClearedAreas, std::string> ClearedAreas::decode(std::string_view text) {
  ClearedAreas decoded;
  try {
    const json value = json::parse(text);
    if (value.at("format").get<int>() != kFormat) return std::unexpected("is of another version");
    for (const json& one : value.at("areas")) {
      Area area;
      area.extent = {.first = one.at("first_block").get<std::uint64_t>(),
                     .block_count = one.at("blocks").get<std::uint64_t>()};
      area.chunk_blocks = one.at("chunk_blocks").get<std::uint64_t>();
      const auto digits = one.at("cleared").get<std::string>();
      if (area.extent.block_count == 0 || area.chunk_blocks == 0 ||
          area.extent.end() < area.extent.first ||
          (chunks_of(area.extent, area.chunk_blocks) - 1) / kChunksOfDigit + 1 != digits.size()) {
        return std::unexpected("has an area that cannot be");
      }
      area.chunks.resize(chunks_of(area.extent, area.chunk_blocks), State::kOld);
      for (std::size_t i = 0; i < area.chunks.size(); ++i) {
        const std::size_t digit =
            std::string_view("0123456789abcdef").find(digits[i / kChunksOfDigit]);
        if (digit == std::string_view::npos) return std::unexpected("has a digit that is none");
        if ((digit >> i % kChunksOfDigit & 1) != 0) area.chunks[i] = State::kKept;
      }
      const auto old = std::ranges::find(area.chunks, State::kOld);
      area.next_old = static_cast<std::uint64_t>(old - area.chunks.begin());
      if (old != area.chunks.end()) decoded.areas_.push_back(std::move(area));
    }
  } catch (const std::exception& error) {
    return std::unexpected(error.what());
  }
  return decoded;
}

}  // namespace sandbay::group
