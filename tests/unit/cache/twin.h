// Twin: what a device may answer, kept as naively as possible.
//
// Every block has a number for content, 0 for zeros. A write adds its number when it begins; when
// it has succeeded, every number that was there before it began and whose write had ended is gone.
// So while writes overlap several numbers are right, as they are after one that failed. A reader
// notes what is right when it begins, and may also see whatever was written since.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "block/block_device.h"
#include "tests/unit/block/payload.h"

namespace sandbay::cache {

class Twin {
 public:
  Twin(std::uint64_t block_count, std::uint32_t block_bytes)
      : block_bytes_(block_bytes), blocks_(block_count, Block{{Candidate{}}, {}}) {}

  // What a write of one number for all blocks of an extent carries.
  testing::Bytes content(const Extent& extent, std::uint64_t number) const {
    testing::Bytes bytes(extent.byte_count(block_bytes_));
    for (std::uint64_t i = 0; i < extent.block_count; ++i) {
      fill(bytes.data() + i * block_bytes_, extent.first + i, number);
    }
    return bytes;
  }

  struct Change {
    Extent extent;
    std::uint64_t number = 0;
    std::uint64_t begun = 0;
  };
  Change begin(const Extent& extent, std::uint64_t number) {
    const Change change{extent, number, ++time_};
    for (Lba lba = extent.first; lba < extent.end(); ++lba) {
      blocks_[lba].candidates.push_back({number, change.begun, kRunning});
      blocks_[lba].history.push_back({change.begun, number});
    }
    return change;
  }
  void end(const Change& change, bool good) {
    ++time_;
    for (Lba lba = change.extent.first; lba < change.extent.end(); ++lba) {
      auto& candidates = blocks_[lba].candidates;
      if (good) {
        std::erase_if(candidates,
                      [&](const Candidate& other) { return other.ended < change.begun; });
      }
      for (Candidate& candidate : candidates) {
        if (candidate.begun == change.begun) candidate.ended = time_;
      }
    }
  }

  struct View {
    Extent extent;
    std::uint64_t begun = 0;
    std::vector<std::vector<std::uint64_t>> right;
    std::vector<std::vector<std::uint64_t>> running;  // Of these, what is still being written.
  };
  View look(const Extent& extent) {
    View view{.extent = extent, .begun = ++time_, .right = {}, .running = {}};
    for (Lba lba = extent.first; lba < extent.end(); ++lba) {
      std::vector<std::uint64_t>& numbers = view.right.emplace_back();
      std::vector<std::uint64_t>& running = view.running.emplace_back();
      for (const Candidate& candidate : blocks_[lba].candidates) {
        numbers.push_back(candidate.number);
        if (candidate.ended == kRunning) running.push_back(candidate.number);
      }
    }
    return view;
  }
  // The first block of the view that holds what it may not, or the extent's end.
  Lba first_wrong(const View& view, const testing::Bytes& bytes) const {
    testing::Bytes expected(block_bytes_);
    for (std::uint64_t i = 0; i < view.extent.block_count; ++i) {
      const Lba lba = view.extent.first + i;
      std::vector<std::uint64_t> numbers = view.right[i];
      for (const auto& [begun, number] : blocks_[lba].history) {
        if (begun > view.begun) numbers.push_back(number);
      }
      const bool right = std::ranges::any_of(numbers, [&](std::uint64_t number) {
        fill(expected.data(), lba, number);
        return std::memcmp(expected.data(), bytes.data() + i * block_bytes_, block_bytes_) == 0;
      });
      if (!right) return lba;
    }
    return view.extent.end();
  }

 private:
  static constexpr std::uint64_t kRunning = ~std::uint64_t{0};
  struct Candidate {
    std::uint64_t number = 0;
    std::uint64_t begun = 0;
    std::uint64_t ended = 0;
  };
  struct Block {
    std::vector<Candidate> candidates;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> history;
  };

  void fill(std::byte* block, Lba lba, std::uint64_t number) const {
    for (std::size_t i = 0; i < block_bytes_; i += 16) {
      const std::uint64_t words[2] = {number, number == 0 ? 0 : lba};
      std::memcpy(block + i, words, sizeof words);
    }
  }

  std::uint32_t block_bytes_;
  std::uint64_t time_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace sandbay::cache
