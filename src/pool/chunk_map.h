// ChunkMap: what each chunk of a branch's page is.
//
//   kThrough   nothing of the branch's own: what its parent has there, zeros without a parent
//   kZero      zeros of the branch's own
//   kData      in the page's place
//
// A page that has just been allocated has no data chunk, so nothing of a former tenant shows and
// nothing needs to be zeroed. Most pages are uniform: their map follows from the page entry's state
// and exists in no memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "pool/bit_set.h"
#include "pool/place.h"
#include "runtime/error.h"

namespace sandbay::pool {

enum class ChunkState : std::uint8_t { kThrough = 0, kZero = 1, kData = 2 };

class ChunkMap {
 public:
  explicit ChunkMap(std::uint32_t chunk_count, ChunkState state = ChunkState::kThrough);

  std::uint32_t chunk_count() const noexcept { return own_.size(); }
  ChunkState state(ChunkIndex chunk) const noexcept {
    if (!own_.test(chunk)) return ChunkState::kThrough;
    return data_.test(chunk) ? ChunkState::kData : ChunkState::kZero;
  }
  void set(ChunkIndex first, std::uint32_t count, ChunkState state) noexcept;
  // The first chunk at or behind `first` that differs from it, or `limit`.
  ChunkIndex end_of_run(ChunkIndex first, ChunkIndex limit) const noexcept;
  // The state of all chunks, if it is one.
  std::optional<ChunkState> uniform() const noexcept;
  std::uint32_t data_count() const noexcept { return data_.count(); }
  bool operator==(const ChunkMap&) const = default;
  std::size_t byte_count() const noexcept { return sizeof *this + 16 * own_.words().size(); }

  // As it is stored. The error is half a sentence.
  std::string pack() const;
  static Result<ChunkMap, std::string_view> unpack(std::string_view text,
                                                   std::uint32_t chunk_count);

 private:
  BitSet own_;
  BitSet data_;  // Of those.
};

}  // namespace sandbay::pool
