// Payloads for block tests: from plain bytes to buffers and back, in aligned pieces or cut at any
// byte, as a network cuts them; and requests that carry them. The coroutines take references: their
// callers await them at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "block/block_device.h"
#include "runtime/random.h"
#include "tests/unit/random_fill.h"

namespace sandbay::testing {

using Bytes = std::vector<std::byte>;

enum class Cut { kAligned, kAnywhere };

// Room for byte_count bytes. Cut anywhere: slices of odd lengths at odd addresses.
inline BufferList make_room(Executor& home, std::size_t byte_count, Cut cut, Random& random) {
  BufferList room;
  while (room.byte_count() < byte_count) {
    const std::size_t left = byte_count - room.byte_count();
    const std::size_t most = std::min<std::size_t>(left, 128 * 1024);
    if (cut == Cut::kAligned) {
      Buffer piece = home.buffers().try_allocate_contiguous(std::max<std::size_t>(most, 4096));
      assert(!piece.empty());
      piece.truncate(most);
      room.append(std::move(piece));
      continue;
    }
    const std::size_t length = random.between(1, most);
    const std::size_t skip = random.below(64);
    const Buffer piece = home.buffers().try_allocate_contiguous(length + skip);
    assert(!piece.empty());
    room.append(piece.slice(skip, length));
  }
  return room;
}

inline BufferList make_payload(Executor& home, const Bytes& content, Cut cut, Random& random) {
  BufferList payload = make_room(home, content.size(), cut, random);
  payload.copy_from(content);
  return payload;
}

inline Bytes content_of(const BufferList& payload) {
  Bytes content(payload.byte_count());
  payload.copy_to(content);
  return content;
}

inline Bytes random_bytes(std::size_t byte_count, Random& random) {
  Bytes bytes(byte_count);
  fill_random(bytes, random);
  return bytes;
}

// One request, awaited by the caller at once.
inline Task<Completion> write_blocks(BlockDevice& device, Lba first, Bytes content, Cut cut,
                                     Random& random, bool force_unit_access = false) {
  Request request{.operation = Operation::kWrite,
                  .force_unit_access = force_unit_access,
                  .extent = {first, content.size() / device.geometry().block_bytes},
                  .data = make_payload(device.home(), content, cut, random)};
  co_return co_await device.submit(std::move(request));
}

inline Task<Completion> read_blocks(BlockDevice& device, Extent extent, Cut cut, Random& random,
                                    bool force_unit_access = false) {
  const std::size_t byte_count = extent.byte_count(device.geometry().block_bytes);
  Request request{.operation = Operation::kRead,
                  .force_unit_access = force_unit_access,
                  .extent = extent,
                  .data = make_room(device.home(), byte_count, cut, random)};
  co_return co_await device.submit(std::move(request));
}

inline Task<Completion> do_without_data(BlockDevice& device, Operation operation, Extent extent,
                                        Cancellation* cancellation = nullptr) {
  Request request{.operation = operation, .extent = extent, .cancellation = cancellation};
  co_return co_await device.submit(std::move(request));
}

}  // namespace sandbay::testing
