// SparseImage: the content of a simulated file. Only what was written takes memory, in chunks of
// 64 KiB that copies of an image share until one of them changes, so that forking a file is
// cheap. Holes have the granularity of a filesystem block, 4 KiB, as on ext4. Images that share
// chunks stay on one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "runtime/io.h"

namespace sandbay::sim {

class SparseImage {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
  static constexpr std::size_t kBlockBytes = std::size_t{4} << 10;

  std::uint64_t size() const noexcept { return size_; }

  // Beyond the end everything reads as zeros.
  void read(std::uint64_t offset, std::span<std::byte> target) const;
  // Grows the image if it must.
  void write(std::uint64_t offset, std::span<const std::byte> source);
  // Whole blocks become holes, the edges are filled with zeros. The size stays.
  void punch(std::uint64_t offset, std::uint64_t byte_count);
  void resize(std::uint64_t byte_count);
  void grow_to(std::uint64_t byte_count) {
    if (byte_count > size_) size_ = byte_count;
  }
  // The run of data or hole at offset, which lies before the end.
  File::Run run_at(std::uint64_t offset) const;

 private:
  struct Chunk {
    std::array<std::byte, kChunkBytes> bytes{};
    std::uint16_t written = 0;  // One bit a block; bytes of the others are zero.
  };
  static_assert(kChunkBytes / kBlockBytes == 16);

  Chunk& own(std::shared_ptr<Chunk>& chunk);
  void clear(std::uint64_t offset, std::uint64_t byte_count);
  bool written(std::uint64_t block) const;

  std::map<std::uint64_t, std::shared_ptr<Chunk>> chunks_;
  std::uint64_t size_ = 0;
};

}  // namespace sandbay::sim
