// The image of a simulated file against a plain byte vector and a vector of block flags.
#include "runtime/sparse_image.h"

#include <rapidcheck.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "runtime/random.h"
#include "tests/unit/random_fill.h"

namespace sandbay::sim {
namespace {

constexpr std::size_t kBlock = SparseImage::kBlockBytes;

struct Reference {
  std::vector<std::byte> bytes;
  std::vector<bool> written;  // By block.

  void resize(std::size_t size) {
    if (size < bytes.size()) punch(size, bytes.size() - size);
    // What lies beyond the end of the last block is no hole any more once it has gone.
    bytes.resize(size);
    written.resize((size + kBlock - 1) / kBlock);
  }
  void write(std::size_t offset, const std::vector<std::byte>& data) {
    if (data.empty()) return;
    if (offset + data.size() > bytes.size()) resize(offset + data.size());
    std::ranges::copy(data, bytes.begin() + static_cast<std::ptrdiff_t>(offset));
    for (std::size_t block = offset / kBlock; block <= (offset + data.size() - 1) / kBlock;
         ++block) {
      written[block] = true;
    }
  }
  void punch(std::size_t offset, std::size_t count) {
    const std::size_t end = std::min(offset + count, bytes.size());
    for (std::size_t i = offset; i < end; ++i) bytes[i] = std::byte{0};
    for (std::size_t block = (offset + kBlock - 1) / kBlock; (block + 1) * kBlock <= offset + count;
         ++block) {
      if (block < written.size()) written[block] = false;
    }
  }
  File::Run run_at(std::size_t offset) const {
    const bool data = written[offset / kBlock];
    std::size_t block = offset / kBlock;
    while (block < written.size() && written[block] == data) ++block;
    return {.byte_count = std::min(block * kBlock, bytes.size()) - offset, .hole = !data};
  }
};

std::vector<std::byte> random_bytes(Random& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  testing::fill_random(bytes, random);
  return bytes;
}

void step(Random& random, SparseImage& image, Reference& reference) {
  constexpr std::size_t kSpan = 400'000;
  const std::size_t offset = random.below(kSpan);
  const std::size_t count = random.chance(0.5) ? random.below(9000) : random.below(200'000);
  switch (random.below(4)) {
    case 0:
    case 1: {
      const auto data = random_bytes(random, count / 8);
      image.write(offset, data);
      reference.write(offset, data);
      break;
    }
    case 2:
      image.punch(offset, count);
      reference.punch(offset, count);
      break;
    default:
      if (random.chance(0.7)) break;
      image.resize(offset);
      reference.resize(offset);
  }
}

TEST_CASE("A sparse image reads as a byte vector and knows its holes", "[sim][property]") {
  const bool held = rc::check([](std::uint64_t seed) {
    Random random(seed);
    SparseImage image;
    Reference reference;
    std::vector<std::pair<SparseImage, std::vector<std::byte>>> forks;
    for (int i = 0; i < 60; ++i) {
      step(random, image, reference);
      RC_ASSERT(image.size() == reference.bytes.size());
      std::vector<std::byte> content(reference.bytes.size());
      image.read(0, content);
      RC_ASSERT(content == reference.bytes);
      if (!content.empty()) {
        const std::size_t at = random.below(content.size());
        const File::Run run = image.run_at(at);
        RC_ASSERT(run.hole == reference.run_at(at).hole);
        RC_ASSERT(run.byte_count == reference.run_at(at).byte_count);
      }
      if (random.chance(0.05)) forks.emplace_back(image, reference.bytes);
    }
    // Copies do not change with the original.
    for (const auto& [fork, expected] : forks) {
      std::vector<std::byte> content(expected.size());
      fork.read(0, content);
      RC_ASSERT(content == expected);
    }
  });
  REQUIRE(held);
}

TEST_CASE("A file of many GiB with a few bytes in it is cheap", "[sim]") {
  SparseImage image;
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  image.resize(1000 * kGiB);
  const std::vector<std::byte> data(10, std::byte{9});
  image.write(500 * kGiB + 5, data);
  REQUIRE(image.run_at(0).hole);
  REQUIRE(image.run_at(0).byte_count == 500 * kGiB);
  REQUIRE_FALSE(image.run_at(500 * kGiB).hole);
  REQUIRE(image.run_at(500 * kGiB).byte_count == kBlock);
  REQUIRE(image.run_at(500 * kGiB + kBlock).byte_count == 500 * kGiB - kBlock);
  image.punch(0, 1000 * kGiB);
  REQUIRE(image.run_at(0).byte_count == 1000 * kGiB);
  std::vector<std::byte> read(20, std::byte{1});
  image.read(500 * kGiB, read);
  REQUIRE(std::ranges::all_of(read, [](std::byte byte) { return byte == std::byte{0}; }));
}

}  // namespace
}  // namespace sandbay::sim
