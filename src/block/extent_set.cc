// Runs in a map by first block. Every change goes through insert() and erase(), which keep the
// counts.
#include "block/extent_set.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>

namespace sandbay {

namespace {

constexpr unsigned kNumberBits = 7;
constexpr std::uint8_t kMore = 1U << kNumberBits;

std::size_t bytes_of(std::uint64_t number) {
  return (static_cast<std::size_t>(std::bit_width(number | 1U)) + kNumberBits - 1) / kNumberBits;
}

void put_number(std::vector<std::byte>* bytes, std::uint64_t number) {
  for (; number >= kMore; number >>= kNumberBits) {
    bytes->push_back(static_cast<std::byte>(number | kMore));
  }
  bytes->push_back(static_cast<std::byte>(number));
}

std::optional<std::uint64_t> take_number(std::span<const std::byte>* bytes) {
  std::uint64_t number = 0;
  for (std::size_t at = 0; at < bytes->size(); ++at) {
    const auto byte = std::to_integer<std::uint64_t>((*bytes)[at]);
    const std::size_t shift = at * kNumberBits;
    const std::uint64_t bits = byte & (kMore - 1U);
    if (shift >= 64 || bits << shift >> shift != bits) return std::nullopt;
    number |= bits << shift;
    if ((byte & kMore) != 0) continue;
    if (at + 1 != bytes_of(number)) return std::nullopt;
    *bytes = bytes->subspan(at + 1);
    return number;
  }
  return std::nullopt;
}

}  // namespace

// The bytes of a run and of what follows it, if `before` is where the run before it ends.
std::size_t ExtentSet::packed_with(Lba before, Runs::const_iterator run) const {
  std::size_t bytes = bytes_of(run->first - before) + bytes_of(run->second - run->first);
  const auto after = std::next(run);
  if (after != runs_.end()) bytes += bytes_of(after->first - run->second);
  return bytes;
}

// It touches no other run.
void ExtentSet::insert(Lba first, Lba end) {
  const auto run = runs_.emplace(first, end).first;
  const auto after = std::next(run);
  const Lba before = run == runs_.begin() ? 0 : std::prev(run)->second;
  packed_bytes_ += packed_with(before, run);
  if (after != runs_.end()) packed_bytes_ -= bytes_of(after->first - before);
  block_count_ += end - first;
}

ExtentSet::Runs::iterator ExtentSet::erase(Runs::iterator run) {
  const auto after = std::next(run);
  const Lba before = run == runs_.begin() ? 0 : std::prev(run)->second;
  packed_bytes_ -= packed_with(before, run);
  if (after != runs_.end()) packed_bytes_ += bytes_of(after->first - before);
  block_count_ -= run->second - run->first;
  return runs_.erase(run);
}

bool ExtentSet::add(const Extent& extent) {
  if (extent.block_count == 0) return false;
  Lba first = extent.first;
  Lba end = extent.end();
  // Takes in every run that overlaps or touches.
  auto run = runs_.upper_bound(end);
  while (run != runs_.begin()) {
    const auto previous = std::prev(run);
    if (previous->second < first) break;
    if (previous->first <= extent.first && previous->second >= extent.end()) return false;
    first = std::min(first, previous->first);
    end = std::max(end, previous->second);
    run = erase(previous);
  }
  insert(first, end);
  return true;
}

bool ExtentSet::remove(const Extent& extent) {
  if (extent.block_count == 0) return false;
  bool removed = false;
  auto run = runs_.upper_bound(extent.first);
  if (run != runs_.begin()) --run;
  while (run != runs_.end() && run->first < extent.end()) {
    const auto [first, end] = *run;
    if (end <= extent.first) {
      ++run;
      continue;
    }
    run = erase(run);
    removed = true;
    // The parts on either side stay.
    if (first < extent.first) insert(first, extent.first);
    if (end > extent.end()) insert(extent.end(), end);
  }
  return removed;
}

void ExtentSet::clear() {
  runs_.clear();
  block_count_ = 0;
  packed_bytes_ = 0;
}

std::vector<Extent> ExtentSet::runs() const {
  std::vector<Extent> result;
  result.reserve(runs_.size());
  for (const auto& [first, end] : runs_) {
    result.push_back({.first = first, .block_count = end - first});
  }
  return result;
}

std::optional<Lba> ExtentSet::first_in(const Extent& extent) const {
  if (extent.block_count == 0) return std::nullopt;
  const auto run = runs_.upper_bound(extent.first);
  if (run != runs_.begin() && std::prev(run)->second > extent.first) return extent.first;
  if (run == runs_.end() || run->first >= extent.end()) return std::nullopt;
  return run->first;
}

bool ExtentSet::covers(const Extent& extent) const {
  if (extent.block_count == 0) return true;
  const auto run = runs_.upper_bound(extent.first);
  return run != runs_.begin() && std::prev(run)->second >= extent.end();
}

std::uint64_t ExtentSet::alike(const Extent& extent) const {
  const auto run = runs_.upper_bound(extent.first);
  Lba end = run == runs_.end() ? extent.end() : run->first;
  if (run != runs_.begin() && std::prev(run)->second > extent.first) end = std::prev(run)->second;
  return std::min(end, extent.end()) - extent.first;
}

std::optional<Extent> ExtentSet::smallest_gap(const Extent& keep) const {
  std::optional<Extent> smallest;
  for (auto run = runs_.begin(); run != runs_.end() && std::next(run) != runs_.end(); ++run) {
    const Extent gap{.first = run->second, .block_count = std::next(run)->first - run->second};
    if (gap.overlaps(keep)) continue;
    if (!smallest.has_value() || gap.block_count < smallest->block_count) smallest = gap;
  }
  return smallest;
}

void ExtentSet::pack(std::vector<std::byte>* bytes) const {
  Lba before = 0;
  for (const auto& [first, end] : runs_) {
    put_number(bytes, first - before);
    put_number(bytes, end - first);
    before = end;
  }
}

std::optional<ExtentSet> ExtentSet::unpack(std::span<const std::byte>* bytes, std::size_t run_count,
                                           std::uint64_t block_count) {
  ExtentSet set;
  Lba before = 0;
  for (std::size_t run = 0; run < run_count; ++run) {
    const auto gap = take_number(bytes);
    const auto length = take_number(bytes);
    if (!gap.has_value() || !length.has_value() || *length == 0) return std::nullopt;
    if (*gap > block_count - before || *length > block_count - before - *gap) return std::nullopt;
    if (run > 0 && *gap == 0) return std::nullopt;
    set.insert(before + *gap, before + *gap + *length);
    before += *gap + *length;
  }
  return set;
}

}  // namespace sandbay
