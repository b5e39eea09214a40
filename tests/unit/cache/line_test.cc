// Segments of a line against an array of blocks; stripes against plain counting.
#include "cache/line.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "cache/stripes.h"
#include "tests/unit/block/on_executor.h"

namespace sandbay::cache::line_test {
namespace {

constexpr std::uint32_t kBlockBytes = 512;

// Content of a block: one number. 0: not there.
using Blocks = std::array<std::uint32_t, kMostLineBlocks>;

Buffer make_buffer(Executor& home, unsigned count, std::uint32_t number) {
  Buffer buffer = home.buffers().try_allocate_contiguous(std::size_t{count} * kBlockBytes);
  for (unsigned i = 0; i < count; ++i) {
    std::memcpy(buffer.data() + std::size_t{i} * kBlockBytes, &number, sizeof number);
  }
  return buffer;
}

void check_line(const Line& line, const Blocks& blocks) {
  Blocks found{};
  unsigned end = 0;
  for (const Segment& segment : line.segments) {
    REQUIRE(segment.first >= end);
    REQUIRE(segment.count > 0);
    REQUIRE(segment.data.byte_count() == segment.count * kBlockBytes);
    end = segment.end();
    for (unsigned i = 0; i < segment.count; ++i) {
      std::memcpy(&found[segment.first + i], segment.data.data() + std::size_t{i} * kBlockBytes,
                  sizeof(std::uint32_t));
    }
  }
  REQUIRE(end <= kMostLineBlocks);
  REQUIRE(found == blocks);
}

void check_range(const Line& line, const Blocks& blocks, Range range) {
  unsigned gap = range.first;
  while (gap < range.end() && blocks[gap] != 0) ++gap;
  unsigned gap_end = gap;
  while (gap_end < range.end() && blocks[gap_end] == 0) ++gap_end;
  const Range found = first_gap(line, range);
  REQUIRE(found.count == gap_end - gap);
  if (found.count > 0) REQUIRE(found.first == gap);
  BufferList out;
  const bool whole = collect(line, range, kBlockBytes, out);
  REQUIRE(whole == (gap == range.end()));
  REQUIRE(out.byte_count() == (whole ? range.count * kBlockBytes : 0));
  for (unsigned i = 0; whole && i < range.count; ++i) {
    std::uint32_t number = 0;
    std::array<std::byte, sizeof number> bytes{};
    out.copy_to(bytes, std::size_t{i} * kBlockBytes);
    std::memcpy(&number, bytes.data(), sizeof number);
    REQUIRE(number == blocks[range.first + i]);
  }
}

Task<void> segments(Executor& home) {
  Random random(9);
  for (int run_number = 0; run_number < 20; ++run_number) {
    Line line;
    Blocks blocks{};
    for (std::uint32_t number = 1; number <= 200; ++number) {
      const auto first = static_cast<unsigned>(random.below(kMostLineBlocks));
      const auto count = static_cast<unsigned>(
          random.between(1, random.chance(0.5) ? 1 : kMostLineBlocks - first));
      const Range range{.first = first, .count = count};
      const std::uint64_t what = random.below(4);
      if (what == 0) {
        cut(line, range, kBlockBytes, [](const Segment&) {});
        std::fill_n(blocks.begin() + first, count, 0);
      } else if (what == 1) {
        fill_gaps(line, range, kBlockBytes, BufferList(make_buffer(home, count, number)));
        for (unsigned i = first; i < range.end(); ++i)
          blocks[i] = blocks[i] == 0 ? number : blocks[i];
      } else {
        cut(line, range, kBlockBytes, [](const Segment&) {});
        put(line, {.first = static_cast<std::uint16_t>(first),
                   .count = static_cast<std::uint16_t>(count),
                   .data = make_buffer(home, count, number)});
        std::fill_n(blocks.begin() + first, count, number);
      }
      check_line(line, blocks);
      const auto from = static_cast<unsigned>(random.below(kMostLineBlocks));
      check_range(line, blocks,
                  {.first = from,
                   .count = static_cast<unsigned>(random.between(1, kMostLineBlocks - from))});
    }
  }
  co_return;
}

TEST_CASE("Segments say what was put last", "[cache][line]") {
  testing::run_in_world(1, [](Executor& home) { return segments(home); });
}

TEST_CASE("Stripes count what is dirty, in order of address and age", "[cache][stripes]") {
  constexpr std::uint64_t kBlocks = 1000;
  constexpr std::uint64_t kStripe = 48;
  Random random(4);
  Stripes stripes(kStripe, kBlocks);
  std::vector<bool> dirty(kBlocks);
  std::map<std::uint64_t, bool> flying;
  TimePoint now{};
  for (int step = 0; step < 5000; ++step) {
    now += std::chrono::seconds(1);
    const Lba first = random.below(kBlocks);
    const Lba end = random.between(first + 1, std::min(kBlocks, first + 100));
    const bool to = random.chance(0.6);
    for (Lba lba = first; lba < end; ++lba) {
      if (dirty[lba] == to) continue;
      dirty[lba] = to;
      if (to) {
        stripes.add({lba, 1}, now);
      } else {
        stripes.remove({lba, 1});
      }
    }
    if (Stripe* const oldest = stripes.oldest(); oldest != nullptr && random.chance(0.2)) {
      REQUIRE_FALSE(oldest->in_flight);
      for (std::uint64_t number = 0; number * kStripe < kBlocks; ++number) {
        const Stripe* const other = stripes.find(number);
        if (other != nullptr && !other->in_flight) REQUIRE(other->since >= oldest->since);
      }
      flying[oldest->number] = true;
      stripes.begin(*oldest);
    }
    if (!flying.empty() && random.chance(0.2)) {
      stripes.end(*stripes.find(flying.begin()->first), now);
      flying.erase(flying.begin());
    }
    const std::uint64_t from = random.below(kBlocks / kStripe + 1);
    std::uint64_t next = from;
    const auto count = [&](std::uint64_t number) {
      const Extent extent = stripes.extent_of(number);
      return static_cast<std::uint64_t>(
          std::count(dirty.begin() + static_cast<std::ptrdiff_t>(extent.first),
                     dirty.begin() + static_cast<std::ptrdiff_t>(extent.end()), true));
    };
    while (next * kStripe < kBlocks && count(next) == 0) ++next;
    const Stripe* const found = stripes.next(from);
    REQUIRE((found == nullptr) == (next * kStripe >= kBlocks));
    if (found != nullptr) {
      REQUIRE(found->number == next);
      REQUIRE(found->dirty_blocks == count(next));
    }
    next = from;
    while (next * kStripe < kBlocks &&
           (count(next) != stripes.extent_of(next).block_count || flying.contains(next))) {
      ++next;
    }
    const Stripe* const full = stripes.next_full(from);
    REQUIRE((full == nullptr) == (next * kStripe >= kBlocks));
    if (full != nullptr) REQUIRE(full->number == next);
    REQUIRE(stripes.dirty_blocks() ==
            static_cast<std::uint64_t>(std::count(dirty.begin(), dirty.end(), true)));
  }
}

}  // namespace
}  // namespace sandbay::cache::line_test
