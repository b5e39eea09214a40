// What all block devices check about their shape: logical blocks of 512 or 4096 bytes, and physical
// blocks that READ CAPACITY (16) can describe. Callers put the text after the name of the device,
// so that a wrong configuration gives one line that says what is possible.
#include "block/block_device.h"

#include <bit>

#include <fmt/core.h>

namespace sandbay {

std::string block_size_error(std::uint32_t block_bytes, std::uint32_t physical_block_bytes) {
  if (block_bytes != 512 && block_bytes != 4096) {
    return fmt::format("{}-byte logical blocks; 512 or 4096 are possible", block_bytes);
  }
  // READ CAPACITY (16) has four bits for the exponent (SBC-3, 5.16.2).
  constexpr std::uint32_t kLargestRatio = 1U << 15U;
  const bool whole = physical_block_bytes % block_bytes == 0;
  const std::uint32_t ratio = physical_block_bytes / block_bytes;
  if (!whole || !std::has_single_bit(ratio) || ratio > kLargestRatio) {
    return fmt::format("{}-byte physical blocks; {} times a power of two up to {} is possible",
                       physical_block_bytes, block_bytes, kLargestRatio);
  }
  return {};
}

}  // namespace sandbay
