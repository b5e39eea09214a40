// KeptChunks: versions of chunks by generation, and as they are stored.
//
// A stored leaf, little-endian, a version after the other by ascending chunk: chunk (2), state (1),
// and for data store (2), page (4) and chunk (2) of the slot.
#include "pool/kept_chunks.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "runtime/byte_order.h"

namespace sandbay::pool {

namespace {

constexpr std::size_t kHeadBytes = 3;
constexpr std::size_t kSlotBytes = 8;

}  // namespace

const Kept* KeptLeaf::find(ChunkIndex chunk) const noexcept {
  const auto at = std::ranges::lower_bound(kept_, chunk, {}, &Kept::chunk);
  return at != kept_.end() && at->chunk == chunk ? &*at : nullptr;
}

void KeptLeaf::insert(const Kept& kept) {
  const auto at = std::ranges::lower_bound(kept_, kept.chunk, {}, &Kept::chunk);
  assert(at == kept_.end() || at->chunk != kept.chunk);
  kept_.insert(at, kept);
}

void KeptLeaf::erase(ChunkIndex chunk) {
  const auto at = std::ranges::lower_bound(kept_, chunk, {}, &Kept::chunk);
  assert(at != kept_.end() && at->chunk == chunk);
  kept_.erase(at);
}

std::string KeptLeaf::pack() const {
  std::string text;
  text.reserve(kept_.size() * (kHeadBytes + kSlotBytes));
  for (const Kept& kept : kept_) {
    std::array<std::byte, kHeadBytes + kSlotBytes> bytes{};
    put_little_endian(std::span(bytes), 0, kept.chunk);
    bytes[2] = static_cast<std::byte>(kept.state);
    put_little_endian(std::span(bytes), 3, kept.slot.place.store);
    put_little_endian(std::span(bytes), 5, kept.slot.place.page);
    put_little_endian(std::span(bytes), 9, kept.slot.chunk);
    text.append(reinterpret_cast<const char*>(bytes.data()),
                kept.state == ChunkState::kData ? bytes.size() : kHeadBytes);
  }
  return text;
}

Result<KeptLeaf, std::string_view> KeptLeaf::unpack(std::string_view text,
                                                    std::uint32_t chunk_count) {
  KeptLeaf leaf;
  std::span<const std::byte> bytes = std::as_bytes(std::span(text.data(), text.size()));
  while (!bytes.empty()) {
    if (bytes.size() < kHeadBytes) return std::unexpected("kept chunks that end too early");
    Kept kept{.chunk = little_endian<std::uint16_t>(bytes, 0), .slot = {}};
    if (kept.chunk >= chunk_count) return std::unexpected("a kept chunk behind the page's end");
    if (!leaf.kept_.empty() && kept.chunk <= leaf.kept_.back().chunk) {
      return std::unexpected("kept chunks out of order");
    }
    if (bytes[2] > std::byte{2}) return std::unexpected("a kept chunk in an unknown state");
    kept.state = static_cast<ChunkState>(bytes[2]);
    bytes = bytes.subspan(kHeadBytes);
    if (kept.state == ChunkState::kData) {
      if (bytes.size() < kSlotBytes) return std::unexpected("kept chunks that end too early");
      kept.slot = {.place = {.store = little_endian<std::uint16_t>(bytes, 0),
                             .page = little_endian<std::uint32_t>(bytes, 2)},
                   .chunk = little_endian<std::uint16_t>(bytes, 6)};
      if (kept.slot.place.none() || kept.slot.chunk >= chunk_count) {
        return std::unexpected("a kept chunk in no slot");
      }
      bytes = bytes.subspan(kSlotBytes);
    }
    leaf.kept_.push_back(kept);
  }
  if (leaf.kept_.empty()) return std::unexpected("kept chunks without any");
  return leaf;
}

const Kept* KeptChunks::seen_by(Generation generation, ChunkIndex chunk) const noexcept {
  assert(generation >= from_);
  auto at = std::ranges::lower_bound(generations_, generation, {}, &Generations::generation);
  for (; at != generations_.end(); ++at) {
    if (const Kept* kept = at->leaf.find(chunk)) return kept;
  }
  return nullptr;
}

const Kept* KeptChunks::find(Generation generation, ChunkIndex chunk) const noexcept {
  const auto at = std::ranges::lower_bound(generations_, generation, {}, &Generations::generation);
  if (at == generations_.end() || at->generation != generation) return nullptr;
  return at->leaf.find(chunk);
}

KeptChunks::Generations& KeptChunks::at(Generation generation) {
  assert(generation >= from_);
  auto at = std::ranges::lower_bound(generations_, generation, {}, &Generations::generation);
  if (at == generations_.end() || at->generation != generation) {
    at = generations_.insert(at, Generations{.generation = generation, .leaf = {}});
  }
  return *at;
}

void KeptChunks::keep(Generation generation, const Kept& kept, std::uint64_t sequence) {
  Generations& entry = at(generation);
  entry.leaf.insert(kept);
  entry.changed = sequence;
}

Kept KeptChunks::forget(Generation generation, ChunkIndex chunk, std::uint64_t sequence) {
  Generations& entry = at(generation);
  const Kept* const found = entry.leaf.find(chunk);
  assert(found != nullptr);
  const Kept kept = *found;
  entry.leaf.erase(chunk);
  entry.changed = sequence;
  return kept;
}

void KeptChunks::extend(Generation from, std::vector<std::pair<Generation, KeptLeaf>> leaves) {
  assert(from <= from_);
  for (auto& [generation, leaf] : leaves) {
    assert(generation >= from && generation < from_);
    generations_.push_back({.generation = generation, .leaf = std::move(leaf)});
  }
  from_ = from;
  std::ranges::sort(generations_, {}, &Generations::generation);
}

std::vector<KeptChunks::Useless> KeptChunks::useless(std::span<const Generation> living) const {
  assert(from_ == 0);
  std::vector<Useless> found;
  // By chunk, the generation of the last version so far.
  std::vector<Generation> previous(kMostPageChunks, 0);
  for (const Generations& entry : generations_) {
    // The latest snapshot that could see a version of this generation.
    const auto above = std::ranges::upper_bound(living, entry.generation);
    const Generation latest = above == living.begin() ? 0 : *(above - 1);
    for (const Kept& kept : entry.leaf.all()) {
      if (latest <= previous[kept.chunk]) {
        found.push_back({.generation = entry.generation, .kept = kept});
      }
      previous[kept.chunk] = entry.generation;
    }
  }
  return found;
}

void KeptChunks::stored(std::uint64_t sequence) {
  for (Generations& entry : generations_) {
    if (entry.changed <= sequence) entry.changed = 0;
  }
  std::erase_if(generations_,
                [](const Generations& entry) { return entry.leaf.empty() && entry.changed == 0; });
}

std::size_t KeptChunks::byte_count() const noexcept {
  std::size_t bytes = sizeof *this;
  for (const Generations& entry : generations_) {
    bytes += sizeof entry + entry.leaf.all().size() * sizeof(Kept);
  }
  return bytes;
}

}  // namespace sandbay::pool
