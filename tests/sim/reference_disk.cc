// The reference model of a disk under concurrent writes.
#include "reference_disk.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace sandbay::simtest {
namespace {

std::uint64_t word_of(std::uint64_t lba, std::uint64_t value, std::uint64_t index) {
  std::uint64_t word = lba * 0x9E3779B97F4A7C15U + value * 0xD1B54A32D192ED03U + index;
  word ^= word >> 29U;
  word *= 0xBF58476D1CE4E5B9U;
  return word ^ (word >> 32U);
}

}  // namespace

ReferenceDisk::ReferenceDisk(std::uint64_t block_count, std::size_t block_bytes)
    : block_bytes_(block_bytes), blocks_(block_count, std::vector<Write>{Write{}}) {}

// Value 0 is a block that was never written: zeros. The first word holds the value itself.
void ReferenceDisk::fill(std::span<std::byte> block, std::uint64_t lba, std::uint64_t value) {
  assert(block.size() % 8 == 0);
  for (std::size_t at = 0; at < block.size(); at += 8) {
    std::uint64_t word = at == 0 ? value : word_of(lba, value, at);
    if (value == 0) word = 0;
    std::memcpy(block.data() + at, &word, sizeof word);
  }
}

std::uint64_t ReferenceDisk::value_of(std::span<const std::byte> block, std::uint64_t lba) {
  std::uint64_t value = 0;
  std::memcpy(&value, block.data(), sizeof value);
  std::vector<std::byte> expected(block.size());
  fill(expected, lba, value);
  return std::ranges::equal(block, expected) ? value : ~std::uint64_t{0};
}

ReferenceDisk::Operation ReferenceDisk::begin_write(std::uint64_t first, std::uint64_t count) {
  const Operation write{.first = first, .count = count, .value = next_value_++, .began = clock_++};
  for (std::uint64_t lba = first; lba < first + count; ++lba) {
    blocks_[lba].push_back({.value = write.value, .began = write.began, .ended = kStill});
  }
  return write;
}

void ReferenceDisk::end_write(const Operation& write, bool acknowledged) {
  const std::uint64_t now = clock_++;
  for (std::uint64_t lba = write.first; lba < write.first + write.count; ++lba) {
    auto& writes = blocks_[lba];
    const auto found = std::ranges::find(writes, write.value, &Write::value);
    assert(found != writes.end());
    found->ended = now;
    found->acknowledged = acknowledged;
    prune(writes);
  }
}

ReferenceDisk::Operation ReferenceDisk::begin_read(std::uint64_t first, std::uint64_t count) {
  const Operation read{.first = first, .count = count, .began = clock_++};
  open_reads_.push_back(read.began);
  return read;
}

// A write is out of sight of everything that begins at or after `since` if an acknowledged one
// began after it had ended, and had ended itself by then.
bool ReferenceDisk::possible(const std::vector<Write>& writes, std::uint64_t value,
                             std::uint64_t since) const {
  const auto seen = std::ranges::find(writes, value, &Write::value);
  if (seen == writes.end()) return false;
  return std::ranges::none_of(writes, [&](const Write& other) {
    return other.acknowledged && other.ended != kStill && other.began > seen->ended &&
           other.ended < since;
  });
}

void ReferenceDisk::prune(std::vector<Write>& writes) const {
  const std::uint64_t oldest = open_reads_.empty() ? clock_ : open_reads_.front();
  std::vector<Write> kept;
  for (const Write& write : writes) {
    if (write.ended == kStill || possible(writes, write.value, oldest)) kept.push_back(write);
  }
  writes = std::move(kept);
}

std::string ReferenceDisk::end_read(const Operation& read, std::span<const std::byte> bytes) {
  std::string wrong;
  assert(bytes.size() == read.count * block_bytes_);
  for (std::uint64_t index = 0; index < read.count && wrong.empty(); ++index) {
    const std::uint64_t lba = read.first + index;
    const std::uint64_t value = value_of(bytes.subspan(index * block_bytes_, block_bytes_), lba);
    if (possible(blocks_[lba], value, read.began)) continue;
    wrong = "block " + std::to_string(lba) + ": " +
            (value == ~std::uint64_t{0} ? std::string("no write's content")
                                        : "the content of write " + std::to_string(value));
    wrong += ", possible:";
    for (const Write& write : blocks_[lba]) wrong += " " + std::to_string(write.value);
  }
  forget_read(read);
  return wrong;
}

void ReferenceDisk::forget_read(const Operation& read) {
  open_reads_.erase(std::ranges::find(open_reads_, read.began));
}

}  // namespace sandbay::simtest
