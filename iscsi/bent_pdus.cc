// Small pieces, and wrong bits.
#include "iscsi/bent_pdus.h"

#include <algorithm>
#include <array>

#include "runtime/executor.h"

namespace sandbay::iscsi {

Task<Error> send_in_pieces(Stream& stream, std::span<const IoSlice> slices,
                           std::uint16_t piece_bytes, TimePoint& started) {
  constexpr unsigned kMostPieces = 4096;
  constexpr unsigned kPiecesPerTurn = 64;
  Executor& executor = stream.home();
  unsigned pieces = 0;
  for (IoSlice slice : slices) {
    while (slice.byte_count > 0) {
      const bool small = ++pieces <= kMostPieces;
      const std::size_t length =
          small ? std::min<std::size_t>(piece_bytes, slice.byte_count) : slice.byte_count;
      const IoSlice piece{.data = slice.data, .byte_count = length};
      started = executor.now();
      const Error error = co_await stream.send(std::span(&piece, 1));
      if (error != Error::kNone) co_return error;
      slice = {.data = slice.data + length, .byte_count = slice.byte_count - length};
      if (pieces % kPiecesPerTurn == 0) co_await executor.yield();
    }
  }
  co_return Error::kNone;
}

void invert_bit(BufferList& data, std::size_t at) {
  std::array<std::byte, 1> byte{};
  data.copy_to(byte, at);
  byte[0] ^= std::byte{1};
  data.copy_from(byte, at);
}

}  // namespace sandbay::iscsi
