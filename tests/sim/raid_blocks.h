// BlockModel: what a host may expect of every block of a RAID set, knowing nothing of RAID.
//
// Every write is a version of its blocks, and a block's bytes say which version of which block they
// are, to the last byte: a mix of two, or the block of another place, is told from a whole one. A
// block may hold any version that is not older than a durable one: x is older than y if x had ended
// before y began. Copies are independent: a copy is what was known at that moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "block/block_device.h"

namespace sandbay::raidtest {

inline constexpr std::size_t kModelBlockBytes = 512;

// The bytes of a version of a block; version 0 is zeros.
void put_version(std::span<std::byte> block, Lba lba, std::uint64_t version);

class BlockModel {
 public:
  // Whether a write is durable as soon as it is acknowledged, or only after a flush.
  BlockModel(std::uint64_t block_count, bool acknowledged_is_durable);

  std::uint64_t block_count() const noexcept { return blocks_.size(); }
  bool acknowledged_is_durable() const noexcept { return acknowledged_is_durable_; }

  // A write begins: its version. Zeros are a write, too.
  std::uint64_t begin_write(Extent extent, bool zeroes);
  // It was acknowledged. One that failed is never ended, and may be there or not.
  void end_write(std::uint64_t version, bool durable);
  std::uint64_t begin_flush() { return ++tick_; }
  void end_flush(std::uint64_t begun);  // All that was acknowledged before it began is durable.
  std::uint64_t begin_read();

  // What is wrong with bytes read from `first` on, or an empty text. A read that began at a moment
  // sees nothing older than what was acknowledged by then. Ends the read.
  std::string end_read(Lba first, std::span<const std::byte> bytes, std::uint64_t begun);
  void fail_read() { --reads_; }

  // Everything that was under way has ended; any of it may be there.
  void crash();
  // After a crash: nothing older than what was durable.
  std::string check_after_crash(Lba first, std::span<const std::byte> bytes) const;
  // After a crash: of these blocks no more may be expected than `other` says, a model of the same
  // writes of which less was durable.
  void weaken(Extent extent, const BlockModel& other);
  // This is what there is, and it is durable.
  void settle(std::span<const std::byte> bytes);

 private:
  struct Entry {
    std::uint64_t version = 0;
    std::uint64_t began = 0;
    std::uint64_t ended = 0;  // 0: not, or it failed.
    bool zeroes = false;
    std::uint64_t replaced = 0;  // When something newer became durable; reads may still see it.
  };
  struct Write {
    Extent extent;
    std::uint64_t began = 0;
    std::uint64_t ended = 0;
  };
  void become_durable(const Write& write);
  std::string check(Lba first, std::span<const std::byte> bytes, std::uint64_t begun) const;

  std::vector<std::vector<Entry>> blocks_;
  std::unordered_map<std::uint64_t, Write> writes_;  // That are not durable yet.
  std::uint64_t reads_ = 0;
  std::uint64_t tick_ = 1;
  std::uint64_t next_version_ = 1;
  bool acknowledged_is_durable_;
};

}  // namespace sandbay::raidtest
