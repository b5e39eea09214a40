// Ways to bend PDUs that the target's connections and our initiator's have in common; see
// interference.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/buffer.h"
#include "runtime/clock.h"
#include "runtime/error.h"
#include "runtime/io.h"
#include "runtime/task.h"

namespace sandbay::iscsi {

// In pieces of that many bytes; behind the first 4096 of them, the rest of each slice at once. The
// slices stay valid until the task ends. `started` is set as each piece begins to be sent.
Task<Error> send_in_pieces(Stream& stream, std::span<const IoSlice> slices,
                           std::uint16_t piece_bytes, TimePoint& started);

// In place: the bytes are the caller's alone.
void invert_bit(BufferList& data, std::size_t at);

}  // namespace sandbay::iscsi
