// ExtentSet: a set of blocks as runs that do not touch, and its bytes.
//
// Packed, each run is two numbers of variable length: the blocks since the run before ended, or
// since block 0, and the blocks in it. A number is 7 bits a byte, the lowest first; all bytes but
// its last have their highest bit set, and no byte more than needed is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "block/block_device.h"

namespace sandbay {

class ExtentSet {
 public:
  // Both tell whether anything changed.
  bool add(const Extent& extent);
  bool remove(const Extent& extent);
  void clear();

  bool empty() const noexcept { return runs_.empty(); }
  std::uint64_t block_count() const noexcept { return block_count_; }
  std::size_t run_count() const noexcept { return runs_.size(); }
  std::vector<Extent> runs() const;  // In order.
  // The first block of the extent that is in the set.
  std::optional<Lba> first_in(const Extent& extent) const;
  bool covers(const Extent& extent) const;
  // How many blocks from the first of the extent on are in the set, or out of it, as that one is.
  std::uint64_t alike(const Extent& extent) const;
  // The smallest of the gaps between runs, but for those that overlap `keep`.
  std::optional<Extent> smallest_gap(const Extent& keep) const;

  std::size_t packed_bytes() const noexcept { return packed_bytes_; }
  void pack(std::vector<std::byte>* bytes) const;  // At their end.
  // Takes that number of runs from the front of the bytes; nothing if they are not there, are
  // packed otherwise than pack() does it, or end behind `block_count`.
  static std::optional<ExtentSet> unpack(std::span<const std::byte>* bytes, std::size_t run_count,
                                         std::uint64_t block_count);

  bool operator==(const ExtentSet& other) const noexcept { return runs_ == other.runs_; }

 private:
  using Runs = std::map<Lba, Lba>;  // First and end.

  void insert(Lba first, Lba end);
  Runs::iterator erase(Runs::iterator run);
  std::size_t packed_with(Lba before, Runs::const_iterator run) const;

  Runs runs_;
  std::uint64_t block_count_ = 0;
  std::size_t packed_bytes_ = 0;
};

}  // namespace sandbay
