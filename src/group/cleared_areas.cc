// Areas are few: one of the volume's first place, and one for each time it grew meanwhile.
#include "group/cleared_areas.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <charconv>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>

#include "group/record_json.h"

namespace sandbay::group {

namespace {

using nlohmann::json;

constexpr int kFormat = 2;
constexpr int kOldFormat = 1;  // One key, with chunks that grew with the volume.
constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostParts = std::uint64_t{1} << 20;
constexpr std::uint64_t kChunksOfDigit = 4;
constexpr std::string_view kDigits = "0123456789abcdef";

std::uint64_t count_of(std::uint64_t all, std::uint64_t of_one) { return (all - 1) / of_one + 1; }

std::string area_key(Lba first) { return fmt::format("/{:016x}/", first); }
std::string part_key(Lba first, std::uint64_t part) {
  return fmt::format("/{:016x}/{:08x}", first, part);
}

template <class Bits>
bool has(const Bits& bits, std::uint64_t index) {
  return (bits[index / 64] >> index % 64 & 1) != 0;
}
template <class Bits>
void set(Bits& bits, std::uint64_t index) {
  bits[index / 64] |= std::uint64_t{1} << index % 64;
}
template <class Bits>
bool full(const Bits& bits, std::uint64_t count) {
  for (std::uint64_t at = 0; at < count; at += 64) {
    const std::uint64_t rest = std::min<std::uint64_t>(64, count - at);
    if (static_cast<std::uint64_t>(std::countr_one(bits[at / 64])) < rest) return false;
  }
  return true;
}
template <class Bits>
bool none(const Bits& bits) {
  return std::ranges::all_of(bits, [](std::uint64_t word) { return word == 0; });
}

// The lowest bit of each hexadecimal digit is the first chunk's.
template <class Bits>
std::string digits_of(const Bits& bits, std::uint64_t count) {
  std::string digits(count_of(count, kChunksOfDigit), '0');
  for (std::size_t i = 0; i < digits.size(); ++i) {
    digits[i] = kDigits[bits[i / 16] >> i % 16 * kChunksOfDigit & 15];
  }
  return digits;
}

}  // namespace

// ---- one area -----------------------------------------------------------------------------------

Extent ClearedAreas::Area::chunk(std::uint64_t index) const {
  const Lba first = extent.first + index * chunk_blocks;
  return {.first = first, .block_count = std::min(chunk_blocks, extent.end() - first)};
}

std::uint64_t ClearedAreas::Area::chunks_in(std::uint64_t part) const {
  return std::min(kChunksOfPart, chunk_count - part * kChunksOfPart);
}

bool ClearedAreas::Area::kept(std::uint64_t index) const {
  const Part* const part = parts[index / kChunksOfPart].get();
  if (part == nullptr) return index / kChunksOfPart < cleared_parts;
  return has(part->kept, index % kChunksOfPart);
}

std::uint64_t ClearedAreas::Area::next_with(Bits Part::* bits, bool set, std::uint64_t index,
                                            std::uint64_t limit) const {
  while (index < limit) {
    const std::uint64_t number = index / kChunksOfPart;
    const std::uint64_t end = std::min(limit, (number + 1) * kChunksOfPart);
    const Part* const part = parts[number].get();
    if (part == nullptr) {
      if ((number < cleared_parts) == set) return index;
      index = end;
      continue;
    }
    while (index < end) {
      std::uint64_t word = (part->*bits)[index % kChunksOfPart / kBitsOfWord];
      if (!set) word = ~word;
      word >>= index % kBitsOfWord;
      if (word != 0) {
        index += static_cast<std::uint64_t>(std::countr_zero(word));
        break;
      }
      index += kBitsOfWord - index % kBitsOfWord;
    }
    if (index < end) return index;
    index = end;
  }
  return limit;
}

// Parts in front that are kept as a whole need no memory.
void ClearedAreas::Area::advance() {
  while (cleared_parts < parts.size()) {
    const Part* const part = parts[cleared_parts].get();
    if (part == nullptr || !full(part->kept, chunks_in(cleared_parts))) return;
    parts[cleared_parts++].reset();
  }
}

std::expected<ClearedAreas::Area, std::string> ClearedAreas::make_area(Extent extent,
                                                                       std::uint64_t chunk_blocks) {
  if (extent.block_count == 0 || chunk_blocks == 0 || extent.end() < extent.first) {
    return std::unexpected("has an area that cannot be");
  }
  Area area;
  area.extent = extent;
  area.chunk_blocks = chunk_blocks;
  area.chunk_count = count_of(extent.block_count, chunk_blocks);
  const std::uint64_t parts = count_of(area.chunk_count, kChunksOfPart);
  if (parts > kMostParts) return std::unexpected("has an area that cannot be");
  area.parts.resize(parts);
  return area;
}

// ---- all ----------------------------------------------------------------------------------------

std::optional<ClearedAreas::Area> ClearedAreas::new_area(Extent extent, std::uint32_t block_bytes) {
  if (extent.block_count == 0) return std::nullopt;
  std::uint64_t chunk_blocks = std::max<std::uint64_t>(1, kChunkBytes / block_bytes);
  // Beyond 8 PiB.
  while (count_of(extent.block_count, chunk_blocks) > kMostParts * kChunksOfPart) chunk_blocks *= 2;
  auto area = make_area(extent, chunk_blocks);
  assert(area.has_value());
  return std::move(*area);
}

void ClearedAreas::add(Extent extent, std::uint32_t block_bytes) {
  auto area = new_area(extent, block_bytes);
  if (!area) return;
  areas_.push_back(std::move(*area));
  unkept_blocks_ += extent.block_count;
}

const ClearedAreas::Area* ClearedAreas::area_of(Lba lba) const {
  for (const Area& area : areas_) {
    if (area.extent.first <= lba && lba < area.extent.end()) return &area;
  }
  return nullptr;
}

ClearedAreas::Area* ClearedAreas::area_of(Lba lba) {
  return const_cast<Area*>(std::as_const(*this).area_of(lba));
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
  const std::uint64_t index = area->index_of(first);
  const std::uint64_t last = area->index_of(std::min(limit, area->extent.end()) - 1);
  const bool kept = area->kept(index);
  const std::uint64_t until = area->next_with(&Part::kept, !kept, index, last + 1);
  const Lba end = until > last ? std::min(limit, area->extent.end()) : area->chunk(until).first;
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
    const std::uint64_t limit = area.index_of(end - 1) + 1;
    const std::uint64_t from = std::max(area.index_of(first), area.next_old);
    const std::uint64_t index = area.next_with(&Part::claimed, false, from, limit);
    if (index < limit) return area.chunk(index);
  }
  return std::nullopt;
}

std::optional<Extent> ClearedAreas::first_old() const {
  for (const Area& area : areas_) {
    if (const auto chunk = first_old(area.extent)) return chunk;
  }
  return std::nullopt;
}

void ClearedAreas::claim(Extent chunk) {
  Area* const area = area_of(chunk.first);
  assert(area != nullptr);
  const std::uint64_t index = area->index_of(chunk.first);
  auto& part = area->parts[index / kChunksOfPart];
  if (part == nullptr) part = std::make_unique<Part>();
  assert(!has(part->claimed, index % kChunksOfPart));
  set(part->claimed, index % kChunksOfPart);
  if (area->next_old != index) return;
  area->next_old = area->next_with(&Part::claimed, false, index + 1, area->chunk_count);
}

void ClearedAreas::give_back(Extent chunk) {
  Area* const area = area_of(chunk.first);
  assert(area != nullptr);
  const std::uint64_t index = area->index_of(chunk.first);
  assert(!area->kept(index));
  Bits& claimed = area->parts[index / kChunksOfPart]->claimed;
  const std::uint64_t bit = index % kChunksOfPart;
  assert(has(claimed, bit));
  claimed[bit / kBitsOfWord] &= ~(std::uint64_t{1} << bit % kBitsOfWord);
  area->next_old = std::min(area->next_old, index);
}

void ClearedAreas::keep(std::span<const Extent> zeroed) {
  for (const Extent& chunk : zeroed) {
    Area* const area = area_of(chunk.first);
    assert(area != nullptr);
    const std::uint64_t index = area->index_of(chunk.first);
    assert(!area->kept(index));
    set(area->parts[index / kChunksOfPart]->kept, index % kChunksOfPart);
    unkept_blocks_ -= chunk.block_count;
  }
  old_format_ = false;
  forget_cleared();
}

void ClearedAreas::forget_cleared() {
  for (Area& area : areas_) area.advance();
  std::erase_if(areas_, [](const Area& area) { return area.cleared_parts == area.parts.size(); });
}

// ---- the record ---------------------------------------------------------------------------------

// Areas, and how many parts of each are cleared.
void ClearedAreas::put_header(Record& record,
                              std::span<const std::pair<const Area*, std::uint64_t>> areas) {
  json list = json::array();
  for (const auto& [area, cleared_parts] : areas) {
    if (cleared_parts == area->parts.size()) continue;
    list.push_back({{"first_block", area->extent.first},
                    {"blocks", area->extent.block_count},
                    {"chunk_blocks", area->chunk_blocks},
                    {"cleared_parts", cleared_parts}});
  }
  record.changes.emplace_back(std::string(),
                              to_text({{"format", kFormat}, {"areas", std::move(list)}}));
}

ClearedAreas::Record ClearedAreas::record_with(std::span<const Extent> zeroed) const {
  // What each part that changes is then; of the old format all change.
  std::map<std::pair<std::size_t, std::uint64_t>, Bits> then;
  for (std::size_t i = 0; i < areas_.size() && old_format_; ++i) {
    for (std::uint64_t p = areas_[i].cleared_parts; p < areas_[i].parts.size(); ++p) {
      const Part* const part = areas_[i].parts[p].get();
      if (part != nullptr && !none(part->kept)) then.emplace(std::pair(i, p), part->kept);
    }
  }
  for (const Extent& chunk : zeroed) {
    const Area* const area = area_of(chunk.first);
    assert(area != nullptr);
    const std::uint64_t index = area->index_of(chunk.first);
    const auto number = static_cast<std::size_t>(area - areas_.data());
    const std::uint64_t part = index / kChunksOfPart;
    const auto [bits, fresh] = then.try_emplace({number, part});
    if (fresh) bits->second = area->parts[part]->kept;
    set(bits->second, index % kChunksOfPart);
  }
  Record record;
  std::vector<std::pair<const Area*, std::uint64_t>> areas;
  bool header_changes = old_format_;
  record.ended = true;
  for (std::size_t i = 0; i < areas_.size(); ++i) {
    const Area& area = areas_[i];
    std::uint64_t cleared = area.cleared_parts;
    for (; cleared < area.parts.size(); ++cleared) {
      const auto changed = then.find({i, cleared});
      const Part* const part = area.parts[cleared].get();
      if (changed == then.end() && part == nullptr) break;
      const Bits& bits = changed != then.end() ? changed->second : part->kept;
      if (!full(bits, area.chunks_in(cleared))) break;
      record.changes.emplace_back(part_key(area.extent.first, cleared), std::nullopt);
    }
    areas.emplace_back(&area, cleared);
    header_changes = header_changes || cleared != area.cleared_parts;
    record.ended = record.ended && cleared == area.parts.size();
  }
  if (record.ended) {
    record.changes.clear();
    return record;
  }
  if (header_changes) put_header(record, areas);
  for (const auto& [at, bits] : then) {
    const auto& [number, part] = at;
    if (part < areas[number].second) continue;
    const Area& area = areas_[number];
    record.changes.emplace_back(part_key(area.extent.first, part),
                                digits_of(bits, area.chunks_in(part)));
  }
  return record;
}

ClearedAreas::Record ClearedAreas::whole_record() const {
  Record record;
  record.ended = areas_.empty();
  std::vector<std::pair<const Area*, std::uint64_t>> areas;
  for (const Area& area : areas_) {
    areas.emplace_back(&area, area.cleared_parts);
    for (std::uint64_t p = area.cleared_parts; p < area.parts.size(); ++p) {
      const Part* const part = area.parts[p].get();
      if (part == nullptr || none(part->kept)) continue;
      record.changes.emplace_back(part_key(area.extent.first, p),
                                  digits_of(part->kept, area.chunks_in(p)));
    }
  }
  if (!record.ended) put_header(record, areas);
  return record;
}

ClearedAreas::Record ClearedAreas::record_grown(Extent added, std::uint32_t block_bytes) const {
  Record record = old_format_ ? whole_record() : Record{};
  const auto area = new_area(added, block_bytes);
  std::vector<std::pair<const Area*, std::uint64_t>> areas;
  for (const Area& old : areas_) areas.emplace_back(&old, old.cleared_parts);
  if (area) areas.emplace_back(&*area, 0);
  record.ended = areas.empty();
  if (!record.ended) put_header(record, areas);
  return record;
}

// ---- reading it ---------------------------------------------------------------------------------

// Marks what a digit says cleared, `repeat` chunks for each of its bits: those of the old format
// were larger.
std::expected<void, std::string> ClearedAreas::read_digits(Area& area, std::uint64_t from,
                                                           std::string_view digits,
                                                           std::uint64_t repeat) {
  for (std::uint64_t i = 0; i < digits.size(); ++i) {
    const std::size_t digit = kDigits.find(digits[i]);
    if (digit == std::string_view::npos) return std::unexpected("has an invalid digit");
    for (std::uint64_t bit = 0; bit < kChunksOfDigit; ++bit) {
      if ((digit >> bit & 1) == 0) continue;
      const std::uint64_t first = from + (i * kChunksOfDigit + bit) * repeat;
      for (std::uint64_t at = first; at < std::min(first + repeat, area.chunk_count); ++at) {
        auto& part = area.parts[at / kChunksOfPart];
        if (part == nullptr) part = std::make_unique<Part>();
        set(part->claimed, at % kChunksOfPart);
        set(part->kept, at % kChunksOfPart);
      }
    }
  }
  return {};
}

std::expected<void, std::string> ClearedAreas::read_areas(std::string_view text,
                                                          std::uint32_t block_bytes) {
  const json value = parse_json(text);
  const int format = value.at("format").get<int>();
  if (format != kFormat && format != kOldFormat) return std::unexpected("is of another version");
  old_format_ = format == kOldFormat;
  for (const json& one : value.at("areas")) {
    const Extent extent{.first = number_from<std::uint64_t>(one.at("first_block")),
                        .block_count = number_from<std::uint64_t>(one.at("blocks"))};
    auto chunk_blocks = number_from<std::uint64_t>(one.at("chunk_blocks"));
    std::uint64_t repeat = 1;
    if (old_format_) {
      const std::uint64_t now = std::max<std::uint64_t>(1, kChunkBytes / block_bytes);
      if (chunk_blocks % now == 0 && chunk_blocks != 0) repeat = chunk_blocks / now;
      chunk_blocks /= repeat;
    }
    auto area = make_area(extent, chunk_blocks);
    if (!area) return std::unexpected(area.error());
    const auto clashes = [&](const Area& other) { return other.extent.overlaps(extent); };
    if (std::ranges::any_of(areas_, clashes)) return std::unexpected("has areas that overlap");
    if (old_format_) {
      const auto digits = one.at("cleared").get<std::string>();
      const std::uint64_t chunks = count_of(extent.block_count, chunk_blocks * repeat);
      if (digits.size() != count_of(chunks, kChunksOfDigit)) {
        return std::unexpected("has an area that cannot be");
      }
      if (auto read = read_digits(*area, 0, digits, repeat); !read) return read;
    } else {
      area->cleared_parts = number_from<std::uint64_t>(one.at("cleared_parts"));
      if (area->cleared_parts >= area->parts.size()) {
        return std::unexpected("has an area that cannot be");
      }
      area->next_old = area->cleared_parts * kChunksOfPart;
    }
    areas_.push_back(std::move(*area));
  }
  return {};
}

std::expected<void, std::string> ClearedAreas::read_part(std::string_view key,
                                                         std::string_view digits) {
  for (Area& area : areas_) {
    const std::string prefix = area_key(area.extent.first);
    if (!key.starts_with(prefix)) continue;
    std::uint64_t part = 0;
    const auto [end, error] =
        std::from_chars(key.data() + prefix.size(), key.data() + key.size(), part, 16);
    if (error != std::errc{} || end != key.data() + key.size() || part >= area.parts.size() ||
        part < area.cleared_parts ||
        digits.size() != count_of(area.chunks_in(part), kChunksOfDigit)) {
      return std::unexpected("has a part that cannot be");
    }
    return read_digits(area, part * kChunksOfPart, digits, 1);
  }
  return std::unexpected("has a part of no area");
}

std::expected<ClearedAreas, std::string> ClearedAreas::decode(
    std::span<const std::pair<std::string, std::string>> entries, std::uint32_t block_bytes) {
  ClearedAreas decoded;
  if (entries.empty()) return decoded;
  try {
    if (!entries.front().first.empty()) return std::unexpected("has parts alone");
    auto read = decoded.read_areas(entries.front().second, block_bytes);
    if (!read) return std::unexpected(read.error());
    for (const auto& [key, digits] : entries.subspan(1)) {
      read = decoded.read_part(key, digits);
      if (!read) return std::unexpected(read.error());
    }
  } catch (const std::exception& error) {
    return std::unexpected(error.what());
  }
  decoded.forget_cleared();
  for (const Area& area : decoded.areas_) {
    for (std::uint64_t at = 0; at < area.chunk_count;) {
      const std::uint64_t end = area.next_with(&Part::kept, true, at, area.chunk_count);
      if (end > at) decoded.unkept_blocks_ += area.chunk(end - 1).end() - area.chunk(at).first;
      at = area.next_with(&Part::kept, false, end, area.chunk_count);
    }
  }
  return decoded;
}

}  // namespace sandbay::group
