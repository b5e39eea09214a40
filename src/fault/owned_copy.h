// Bytes that a layer may change. A device may answer a read with slices that it or others still
// use, so whoever alters what was read makes sure that they are its own.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/executor.h"

namespace sandbay::fault {

// `data` itself if nobody shares it, otherwise a copy in memory of the pool.
inline Task<BufferList> owned_copy(Executor& home, BufferList data) {
  constexpr std::size_t kPieceBytes = std::size_t{64} << 10;
  if (data.unique()) co_return data;
  BufferList copy;
  std::vector<std::byte> chunk;
  for (std::size_t done = 0; done < data.byte_count();) {
    const std::size_t length = std::min(kPieceBytes, data.byte_count() - done);
    BufferList piece = co_await home.buffers().allocate(length);
    chunk.resize(length);
    data.copy_to(chunk, done);
    piece.copy_from(chunk);
    copy.append(std::move(piece));
    done += length;
  }
  co_return copy;
}

}  // namespace sandbay::fault
