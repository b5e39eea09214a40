// Records whose content follows from a number, which stands at the front of the descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "nvram/record_log.h"
#include "runtime/random.h"

namespace sandbay::nvram {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(std::uint64_t seed, std::size_t byte_count) {
  Random random(seed);
  Bytes bytes(byte_count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  return bytes;
}

struct Content {
  Bytes descriptor;
  Bytes payload;
};

inline Content content_of(std::uint64_t number, std::size_t most_payload = 1500) {
  Random random(number * 77 + 1);
  Content content{bytes_of(number, 8 + random.below(60)),
                  bytes_of(number + 1'000'000, random.below(most_payload + 1))};
  std::memcpy(content.descriptor.data(), &number, sizeof number);
  return content;
}

inline Task<Result<RecordId>> append(RecordLog& log, std::uint64_t number,
                                     std::size_t most_payload = 1500) {
  Content content = content_of(number, most_payload);
  // In two slices, cut anywhere.
  const std::size_t cut = content.payload.size() / 3;
  const IoSlice slices[] = {{content.payload.data(), cut},
                            {content.payload.data() + cut, content.payload.size() - cut}};
  const Result<RecordId> id = co_await log.append(content.descriptor, slices);
  co_return id;
}

}  // namespace sandbay::nvram
