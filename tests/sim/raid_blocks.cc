// Times are ticks of a counter that every beginning and every end moves on.
#include "raid_blocks.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include <fmt/core.h>

namespace sandbay::raidtest {

namespace {

constexpr std::size_t kWords = kModelBlockBytes / sizeof(std::uint64_t);
using Words = std::array<std::uint64_t, kWords>;

Words words_of(Lba lba, std::uint64_t version) {
  Words words{};
  if (version == 0) return words;
  const std::uint64_t mixed =
      (version * 0x9e3779b97f4a7c15U ^ (lba + 1) * 0xc2b2ae3d27d4eb4fU) | 1U;
  for (std::size_t i = 2; i < kWords; ++i) words[i] = mixed * (2 * i + 1) ^ mixed >> 29U;
  words[0] = version;
  words[1] = lba;
  return words;
}

}  // namespace

void put_version(std::span<std::byte> block, Lba lba, std::uint64_t version) {
  assert(block.size() == kModelBlockBytes);
  const Words words = words_of(lba, version);
  std::memcpy(block.data(), words.data(), block.size());
}

BlockModel::BlockModel(std::uint64_t block_count, bool acknowledged_is_durable)
    : blocks_(block_count), acknowledged_is_durable_(acknowledged_is_durable) {
  for (auto& entries : blocks_) entries = {{.began = 1, .ended = 1, .zeroes = true}};
}

std::uint64_t BlockModel::begin_write(Extent extent, bool zeroes) {
  const std::uint64_t version = next_version_++;
  const std::uint64_t now = ++tick_;
  writes_[version] = {.extent = extent, .began = now};
  for (Lba lba = extent.first; lba < extent.end(); ++lba) {
    blocks_[lba].push_back({.version = version, .began = now, .zeroes = zeroes});
  }
  return version;
}

void BlockModel::end_write(std::uint64_t version, bool durable) {
  const auto found = writes_.find(version);
  assert(found != writes_.end());
  Write& write = found->second;
  write.ended = ++tick_;
  for (Lba lba = write.extent.first; lba < write.extent.end(); ++lba) {
    for (Entry& entry : blocks_[lba]) {
      if (entry.version == version) entry.ended = write.ended;
    }
  }
  if (!durable && !acknowledged_is_durable_) return;
  become_durable(write);
  writes_.erase(found);
}

void BlockModel::end_flush(std::uint64_t begun) {
  std::erase_if(writes_, [&](const auto& item) {
    const Write& write = item.second;
    if (write.ended == 0 || write.ended > begun) return false;
    become_durable(write);
    return true;
  });
}

void BlockModel::become_durable(const Write& write) {
  const std::uint64_t now = ++tick_;
  for (Lba lba = write.extent.first; lba < write.extent.end(); ++lba) {
    for (Entry& entry : blocks_[lba]) {
      const bool older = entry.ended != 0 && entry.ended < write.began;
      if (older && entry.replaced == 0) entry.replaced = now;
    }
    if (reads_ > 0) continue;
    std::erase_if(blocks_[lba], [](const Entry& entry) { return entry.replaced != 0; });
  }
}

std::uint64_t BlockModel::begin_read() {
  ++reads_;
  return ++tick_;
}

std::string BlockModel::end_read(Lba first, std::span<const std::byte> bytes, std::uint64_t begun) {
  --reads_;
  return check(first, bytes, begun);
}

void BlockModel::crash() {
  writes_.clear();
  reads_ = 0;
  ++tick_;
  for (auto& entries : blocks_) {
    std::erase_if(entries, [](const Entry& entry) { return entry.replaced != 0; });
    for (Entry& entry : entries) entry.ended = tick_;
  }
}

std::string BlockModel::check_after_crash(Lba first, std::span<const std::byte> bytes) const {
  return check(first, bytes, 0);
}

// After a crash (`begun` is 0) what durable writes made too old is gone from the entries.
std::string BlockModel::check(Lba first, std::span<const std::byte> bytes,
                              std::uint64_t begun) const {
  assert(first + bytes.size() / kModelBlockBytes <= blocks_.size());
  for (Lba lba = first; !bytes.empty(); ++lba, bytes = bytes.subspan(kModelBlockBytes)) {
    const std::vector<Entry>& entries = blocks_[lba];
    std::uint64_t newest_began = 0;  // Whatever ended before is too old.
    for (const Entry& entry : entries) {
      if (entry.ended != 0 && entry.ended < begun)
        newest_began = std::max(newest_began, entry.began);
    }
    Words words;
    std::memcpy(words.data(), bytes.data(), kModelBlockBytes);
    if (words != words_of(lba, words[0])) {
      return fmt::format("block {} is no version of itself: it says version {} of block {}", lba,
                         words[0], words[1]);
    }
    const bool good = std::ranges::any_of(entries, [&](const Entry& entry) {
      const bool same = entry.zeroes ? words[0] == 0 : words[0] == entry.version;
      const bool too_old = entry.ended != 0 && entry.ended < newest_began;
      return same && !too_old && (entry.replaced == 0 || entry.replaced > begun);
    });
    if (good) continue;
    std::string expected;
    for (const Entry& entry : entries) {
      expected += fmt::format(" {}{}{}", entry.version, entry.zeroes ? "z" : "",
                              entry.ended == 0 ? "?" : "");
    }
    return fmt::format("block {} holds version {}; expected one of{}", lba, words[0], expected);
  }
  return {};
}

void BlockModel::weaken(Extent extent, const BlockModel& other) {
  for (Lba lba = extent.first; lba < extent.end(); ++lba) {
    blocks_[lba] = other.blocks_[lba];
    for (Entry& entry : blocks_[lba]) {
      entry.began = tick_;
      entry.ended = tick_;
      entry.replaced = 0;
    }
  }
}

void BlockModel::settle(std::span<const std::byte> bytes) {
  assert(bytes.size() == blocks_.size() * kModelBlockBytes);
  writes_.clear();
  for (Lba lba = 0; lba < blocks_.size(); ++lba) {
    std::uint64_t version = 0;
    std::memcpy(&version, bytes.data() + lba * kModelBlockBytes, sizeof version);
    blocks_[lba] = {{.version = version, .began = tick_, .ended = tick_, .zeroes = version == 0}};
  }
  ++tick_;
}

}  // namespace sandbay::raidtest
