// ChunkMap: two rows of bits. Stored as the words of the first row and then of the second,
// little-endian.
#include "pool/chunk_map.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

namespace sandbay::pool {

static_assert(std::endian::native == std::endian::little);

ChunkMap::ChunkMap(std::uint32_t chunk_count, ChunkState state)
    : own_(chunk_count), data_(chunk_count) {
  assert(chunk_count > 0 && chunk_count <= kMostPageChunks);
  if (state != ChunkState::kThrough) set(0, chunk_count, state);
}

void ChunkMap::set(ChunkIndex first, std::uint32_t count, ChunkState state) noexcept {
  own_.assign(first, count, state != ChunkState::kThrough);
  data_.assign(first, count, state == ChunkState::kData);
}

ChunkIndex ChunkMap::end_of_run(ChunkIndex first, ChunkIndex limit) const noexcept {
  const ChunkState wanted = state(first);
  const ChunkIndex own_end = own_.find(first, wanted == ChunkState::kThrough);
  const ChunkIndex data_end = data_.find(first, wanted != ChunkState::kData);
  return std::min({own_end, data_end, limit});
}

std::optional<ChunkState> ChunkMap::uniform() const noexcept {
  if (end_of_run(0, chunk_count()) < chunk_count()) return std::nullopt;
  return state(0);
}

std::string ChunkMap::pack() const {
  const std::size_t row = own_.words().size() * sizeof(std::uint64_t);
  std::string text(2 * row, '\0');
  std::memcpy(text.data(), own_.words().data(), row);
  std::memcpy(text.data() + row, data_.words().data(), row);
  return text;
}

Result<ChunkMap, std::string_view> ChunkMap::unpack(std::string_view text,
                                                    std::uint32_t chunk_count) {
  ChunkMap map(chunk_count);
  const std::size_t row = map.own_.words().size() * sizeof(std::uint64_t);
  if (text.size() != 2 * row) return std::unexpected("a map of chunks of another size");
  std::memcpy(map.own_.words().data(), text.data(), row);
  std::memcpy(map.data_.words().data(), text.data() + row, row);
  if (!map.own_.proper() || !map.data_.proper()) {
    return std::unexpected("a map of chunks with chunks behind the page's end");
  }
  for (std::size_t i = 0; i < map.own_.words().size(); ++i) {
    if ((map.data_.words()[i] & ~map.own_.words()[i]) != 0) {
      return std::unexpected("a map of chunks with data of nobody");
    }
  }
  return map;
}

}  // namespace sandbay::pool
