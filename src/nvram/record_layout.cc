// Reading records and control blocks: nothing in the image is believed before it is checked.
#include "nvram/record_layout.h"

#include "nvram/nvram.h"

namespace sandbay::nvram {
namespace {

// The seal has room for 48 bits; no log gets so far.
constexpr std::uint64_t kLargestCounter = std::uint64_t{1} << 47U;

bool is_right(const ControlBlock& block, std::uint64_t capacity) {
  const std::uint64_t most_records = capacity / kRecordAlignment;
  return block.magic == kControlMagic && block.checksum == checksum_of(block) &&
         block.capacity == capacity && block.tail_sequence <= block.head_sequence &&
         block.head_sequence - block.tail_sequence <= most_records &&
         block.tail_position <= block.head_position &&
         block.head_position - block.tail_position <= capacity &&
         block.tail_position % kRecordAlignment == 0 &&
         block.head_position % kRecordAlignment == 0 && block.durable_head <= block.head_sequence &&
         block.forgiven_first <= block.forgiven_end &&
         block.head_position < std::uint64_t{1} << 62U && block.head_sequence < kLargestCounter &&
         block.epoch < std::uint64_t{1} << 62U && block.generation < kLargestCounter &&
         block.durable_epoch <= block.epoch;
}

}  // namespace

std::optional<RecordHeader> read_record(std::span<const std::byte> ring, std::uint64_t offset) {
  const std::uint64_t room = ring.size() - offset;
  RecordHeader header{};
  std::memcpy(&header, ring.data() + offset, sizeof header);
  if (header.magic != kRecordMagic) return std::nullopt;
  if (record_bytes(header.descriptor_bytes, header.payload_bytes) > room) return std::nullopt;
  if (header.position % ring.size() != offset) return std::nullopt;
  const auto descriptor = ring.subspan(offset + sizeof header, header.descriptor_bytes);
  if (header.checksum != checksum_of(header, descriptor)) return std::nullopt;
  return header;
}

std::optional<FoundControl> read_control(std::span<const std::byte> controls,
                                         std::uint64_t capacity) {
  std::optional<FoundControl> best;
  for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
    ControlBlock block{};
    std::memcpy(&block, controls.data() + slot * kPageBytes, sizeof block);
    if (!is_right(block, capacity)) continue;
    if (!best.has_value() || block.generation > best->block.generation) best = {block, slot};
  }
  return best;
}

}  // namespace sandbay::nvram
