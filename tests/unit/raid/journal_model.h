// JournalModel: what a journal was told, and what recovery may therefore return.
//
// Every update of a test is numbered; the number stands in each of its blocks, so that what comes
// back names the update it is from. A naive twin of the journal's promise: replaying what recovery
// returns leaves no block older than the newest update of that block whose append had ended.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "raid/journal.h"
#include "runtime/executor.h"
#include "runtime/random.h"

namespace sandbay::raid::testing {

enum class UpdateState : std::uint8_t { kBegun, kAcknowledged, kReleased };

class JournalModel {
 public:
  static constexpr std::uint64_t kBlockBytes = 512;
  static constexpr std::uint64_t kBlocksPerStripe = 4;
  static constexpr unsigned kStripeBits = 8;

  struct Update {
    std::uint64_t stripe = 0;
    std::vector<JournalWrite> writes;
    std::vector<std::byte> payload;
  };
  using States = std::vector<UpdateState>;  // By number; numbers of earlier lives come first.

  // A random update of the stripe, with its number.
  std::size_t begin(std::uint64_t stripe, unsigned role_count, Random& random) {
    const std::size_t number = updates_.size();
    // What the journal is told is the stripe names the update as well.
    Update update{.stripe = number << kStripeBits | stripe, .writes = {}, .payload = {}};
    for (unsigned role = 0; role < role_count; ++role) {
      if (random.chance(0.4)) continue;
      const std::uint64_t row = random.below(kBlocksPerStripe);
      const std::uint64_t count = random.between(1, kBlocksPerStripe - row);
      const Extent extent{.first = stripe * kBlocksPerStripe + row, .block_count = count};
      add(update,
          {.role = static_cast<std::uint16_t>(role),
           .zeroes = random.chance(0.15),
           .extent = extent},
          number);
    }
    if (update.writes.empty()) {
      add(update, {.role = 0, .extent = {.first = stripe * kBlocksPerStripe, .block_count = 1}},
          number);
    }
    updates_.push_back(std::move(update));
    states_.push_back(UpdateState::kBegun);
    return number;
  }

  const Update& update(std::size_t number) const { return updates_[number]; }
  void set(std::size_t number, UpdateState state) { states_[number] = state; }
  const States& states() const { return states_; }
  std::size_t count() const { return updates_.size(); }

  // Empty if the promise is kept, otherwise what is wrong. Updates before `first` are of an earlier
  // life, after which the journal was reset.
  std::string judge(const JournalRecovery& found, const States& states, std::size_t first) const {
    std::uint64_t sequence = 0;
    for (const RecoveredUpdate& update : found.updates) {
      if (update.sequence <= sequence) return "sequences do not grow";
      sequence = update.sequence;
      const std::uint64_t number = update.stripe >> kStripeBits;
      if (number < first || number >= states.size() || !is_part(update, updates_[number])) {
        return "an update that nobody appended came back";
      }
    }
    const Blocks replayed = replay(found);
    for (std::size_t number = first; number < states.size(); ++number) {
      if (states[number] == UpdateState::kBegun) continue;
      for (const JournalWrite& write : updates_[number].writes) {
        for (Lba lba = write.extent.first; lba < write.extent.end(); ++lba) {
          const auto block = replayed.find({write.role, lba});
          if (block == replayed.end()) {
            if (states[number] == UpdateState::kAcknowledged) return "an update is missing";
          } else if (block->second < number) {
            return "a block goes back to an older update";
          }
        }
      }
    }
    return {};
  }

  // The earlier recovery may have been replayed in part before the later one.
  std::string judge_again(const JournalRecovery& later, const JournalRecovery& earlier,
                          const States& states) const {
    const Blocks now = replay(later);
    for (const auto& [place, number] : replay(earlier)) {
      if (states[number] == UpdateState::kReleased) continue;  // It is in place anyhow.
      const auto block = now.find(place);
      if (block == now.end() || block->second < number) return "a block does not come back";
    }
    return {};
  }

 private:
  static void add(Update& update, JournalWrite write, std::size_t number) {
    update.writes.push_back(write);
    if (write.zeroes) return;
    for (Lba lba = write.extent.first; lba < write.extent.end(); ++lba) {
      const std::array<std::uint64_t, 3> stamp = {number, write.role, lba};
      std::vector<std::byte> block(kBlockBytes, static_cast<std::byte>(number * 7 + lba));
      std::memcpy(block.data(), stamp.data(), sizeof stamp);
      update.payload.insert(update.payload.end(), block.begin(), block.end());
    }
  }

  using Blocks = std::map<std::pair<unsigned, Lba>, std::size_t>;

  // Which update each block is from afterwards.
  static Blocks replay(const JournalRecovery& found) {
    Blocks blocks;
    for (const RecoveredUpdate& update : found.updates) {
      for (const JournalWrite& write : update.writes) {
        for (Lba lba = write.extent.first; lba < write.extent.end(); ++lba) {
          blocks[{write.role, lba}] = update.stripe >> kStripeBits;
        }
      }
    }
    return blocks;
  }

  // Block by block and to the bit what was appended, or some of it.
  static bool is_part(const RecoveredUpdate& found, const Update& update) {
    std::map<std::pair<unsigned, Lba>, std::span<const std::byte>> blocks;
    std::size_t offset = 0;
    for (const JournalWrite& write : update.writes) {
      for (Lba lba = write.extent.first; lba < write.extent.end(); ++lba) {
        auto& bytes = blocks[{write.role, lba}];
        if (write.zeroes) continue;
        bytes = std::span(update.payload).subspan(offset, kBlockBytes);
        offset += kBlockBytes;
      }
    }
    offset = 0;
    for (const JournalWrite& write : found.writes) {
      for (Lba lba = write.extent.first; lba < write.extent.end(); ++lba) {
        const auto block = blocks.find({write.role, lba});
        if (block == blocks.end() || block->second.empty() != write.zeroes) return false;
        if (write.zeroes) continue;
        if (found.payload.size() < offset + kBlockBytes) return false;
        const auto bytes = std::span(found.payload).subspan(offset, kBlockBytes);
        if (!std::ranges::equal(bytes, block->second)) return false;
        offset += kBlockBytes;
      }
    }
    return found.stripe == update.stripe && offset == found.payload.size();
  }

  std::vector<Update> updates_;
  States states_;
};

// An update's payload in the pool's memory, in pieces as they come from several buffers.
inline BufferList pool_payload(Executor& home, std::span<const std::byte> bytes) {
  BufferList list;
  for (std::size_t done = 0; done < bytes.size();) {
    const std::size_t piece = std::min<std::size_t>(bytes.size() - done, 1536);
    BufferList part = home.buffers().try_allocate(piece);
    part.copy_from(bytes.subspan(done, piece));
    list.append(std::move(part));
    done += piece;
  }
  return list;
}

}  // namespace sandbay::raid::testing
