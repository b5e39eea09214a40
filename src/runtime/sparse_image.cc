// Reads and writes walk the chunks of the range; holes are chunks that are missing or blocks whose
// bit is clear.
#include "runtime/sparse_image.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace sandbay::sim {

namespace {

constexpr std::uint64_t kChunk = SparseImage::kChunkBytes;
constexpr std::uint64_t kBlock = SparseImage::kBlockBytes;
constexpr std::uint64_t kBlocksPerChunk = kChunk / kBlock;

std::uint16_t block_bit(std::uint64_t block) {
  return static_cast<std::uint16_t>(1U << (block % kBlocksPerChunk));
}

}  // namespace

void SparseImage::read(std::uint64_t offset, std::span<std::byte> target) const {
  while (!target.empty()) {
    const std::uint64_t within = offset % kChunk;
    const std::size_t count = std::min<std::size_t>(target.size(), kChunk - within);
    const auto found = chunks_.find(offset / kChunk);
    if (found == chunks_.end()) {
      std::memset(target.data(), 0, count);
    } else {
      std::memcpy(target.data(), found->second->bytes.data() + within, count);
    }
    offset += count;
    target = target.subspan(count);
  }
}

void SparseImage::write(std::uint64_t offset, std::span<const std::byte> source) {
  if (source.empty()) return;
  grow_to(offset + source.size());
  while (!source.empty()) {
    const std::uint64_t within = offset % kChunk;
    const std::size_t count = std::min<std::size_t>(source.size(), kChunk - within);
    Chunk& chunk = own(chunks_[offset / kChunk]);
    std::memcpy(chunk.bytes.data() + within, source.data(), count);
    for (std::uint64_t block = offset / kBlock; block <= (offset + count - 1) / kBlock; ++block) {
      chunk.written |= block_bit(block);
    }
    offset += count;
    source = source.subspan(count);
  }
}

SparseImage::Chunk& SparseImage::own(std::shared_ptr<Chunk>& chunk) {
  if (chunk == nullptr) {
    chunk = std::make_shared<Chunk>();
  } else if (chunk.use_count() > 1) {
    chunk = std::make_shared<Chunk>(*chunk);
  }
  return *chunk;
}

// Zeros within one chunk; whole blocks become holes.
void SparseImage::clear(std::uint64_t offset, std::uint64_t byte_count) {
  const auto found = chunks_.find(offset / kChunk);
  if (found == chunks_.end()) return;
  if (byte_count == kChunk) {
    chunks_.erase(found);
    return;
  }
  Chunk& chunk = own(found->second);
  std::memset(chunk.bytes.data() + offset % kChunk, 0, byte_count);
  const std::uint64_t first_whole = (offset + kBlock - 1) / kBlock;
  const std::uint64_t end_whole = (offset + byte_count) / kBlock;
  for (std::uint64_t block = first_whole; block < end_whole; ++block) {
    chunk.written &= static_cast<std::uint16_t>(~block_bit(block));
  }
  if (chunk.written == 0) chunks_.erase(found);
}

void SparseImage::punch(std::uint64_t offset, std::uint64_t byte_count) {
  if (byte_count == 0) return;
  const std::uint64_t end = offset + byte_count;
  if (offset % kChunk != 0) {
    const std::uint64_t count = std::min(byte_count, kChunk - offset % kChunk);
    clear(offset, count);
    offset += count;
  }
  if (end <= offset) return;
  // Chunks that are wholly inside go at once, however large the range is.
  const std::uint64_t whole_end = end - end % kChunk;
  chunks_.erase(chunks_.lower_bound(offset / kChunk), chunks_.lower_bound(whole_end / kChunk));
  if (end > whole_end) clear(whole_end, end - whole_end);
}

void SparseImage::resize(std::uint64_t byte_count) {
  if (byte_count < size_) {
    const std::uint64_t end = (size_ + kChunk - 1) / kChunk * kChunk;
    punch(byte_count, end - byte_count);
  }
  size_ = byte_count;
}

bool SparseImage::written(std::uint64_t block) const {
  const auto found = chunks_.find(block / kBlocksPerChunk);
  return found != chunks_.end() && (found->second->written & block_bit(block)) != 0;
}

File::Run SparseImage::run_at(std::uint64_t offset) const {
  assert(offset < size_);
  const std::uint64_t end_block = (size_ + kBlock - 1) / kBlock;
  std::uint64_t block = offset / kBlock;
  const bool hole = !written(block);
  while (block < end_block && written(block) == !hole) {
    ++block;
    if (!hole || block % kBlocksPerChunk != 0) continue;
    // A hole may be as large as the file: jump to the next chunk that exists.
    const auto next = chunks_.lower_bound(block / kBlocksPerChunk);
    block = next == chunks_.end() ? end_block : std::max(block, next->first * kBlocksPerChunk);
  }
  const std::uint64_t end = std::min(block * kBlock, size_);
  return File::Run{.byte_count = end - offset, .hole = hole};
}

}  // namespace sandbay::sim
