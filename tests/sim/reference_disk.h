// ReferenceDisk: what a disk may contain, kept by a test that writes to it. Shares no code with the
// product.
//
// Every write gives its blocks one value; a block's bytes follow from value and address alone. The
// model keeps for each block the writes that may have been the last to take effect: an acknowledged
// write can be seen until another acknowledged write began after it ended; a write in flight may
// be seen or not; one that failed or was aborted may have taken effect, but only before it ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

namespace sandbay::simtest {

class ReferenceDisk {
 public:
  ReferenceDisk(std::uint64_t block_count, std::size_t block_bytes);

  std::uint64_t block_count() const { return blocks_.size(); }
  std::size_t block_bytes() const { return block_bytes_; }

  struct Operation {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
    std::uint64_t value = 0;  // Writes only.
    std::uint64_t began = 0;
  };
  Operation begin_write(std::uint64_t first, std::uint64_t count);
  // Acknowledged, or ended in any other way.
  void end_write(const Operation& write, bool acknowledged);
  Operation begin_read(std::uint64_t first, std::uint64_t count);
  // Empty: the bytes are what a read in this time may have found. Otherwise what is wrong.
  std::string end_read(const Operation& read, std::span<const std::byte> bytes);
  void forget_read(const Operation& read);  // It found nothing.

  static void fill(std::span<std::byte> block, std::uint64_t lba, std::uint64_t value);
  // The value that fills the block; ~0 if none does.
  static std::uint64_t value_of(std::span<const std::byte> block, std::uint64_t lba);

 private:
  static constexpr std::uint64_t kStill = ~std::uint64_t{0};  // In flight.
  struct Write {
    std::uint64_t value = 0;
    std::uint64_t began = 0;
    std::uint64_t ended = 0;
    bool acknowledged = true;
  };
  void prune(std::vector<Write>& writes) const;
  bool possible(const std::vector<Write>& writes, std::uint64_t value, std::uint64_t since) const;

  std::size_t block_bytes_;
  std::uint64_t clock_ = 1;
  std::uint64_t next_value_ = 1;
  std::deque<std::uint64_t> open_reads_;  // When the reads in flight began, oldest first.
  std::vector<std::vector<Write>> blocks_;
};

}  // namespace sandbay::simtest
