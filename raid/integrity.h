// Integrity: checksums and generations of a set's cells, kept on its drives (integrity_format.h has
// the bytes), and whether what a drive gives is what was written last.
//
// What always holds:
//   - Of a cell's two entries the newer counts, and only those on drives that can be believed for
//     the cell's stripe: an absent or stale member's drive has nothing to say, but for its own
//     cells in rows where it keeps its content. A drive forgets others' entries that it may have
//     missed.
//   - Entries change in the same journal record as the cells, under a lock of each block that holds
//     some, which is kept until the record is durable. So no record has an entry whose cell is only
//     in a later one, and none loses another's.
//   - A record that has a cell has both its entries, but for a drive that is durably known to be
//     away: a drive that is only believed to be gone may be back, and whole, after a crash.
//   - A block is written in place with its newest durable content, one write at a time; an update
//     is in place when a write has ended that began with it.
//   - Blocks in memory are never changed, only replaced, so whoever has one may go on reading it.
//
// A reader that holds no lock may see a cell and an entry of different updates. It takes the stripe
// and looks again before it believes that anything is wrong.
//
// Used on the set's home executor only. Spans and pointers stay until the task ends.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "raid/byte_budget.h"
#include "raid/integrity_format.h"
#include "raid/journal.h"
#include "raid/set_drives.h"
#include "runtime/buffer.h"
#include "runtime/frame_vector.h"
#include "runtime/sync.h"

namespace sandbay::raid {

struct IntegrityOptions {
  std::size_t cache_bytes = std::size_t{16} << 20;   // Blocks kept in memory.
  std::size_t update_bytes = std::size_t{32} << 20;  // New blocks on their way.
};

struct IntegrityCounters {
  std::uint64_t cells_checked = 0;
  std::uint64_t cells_unknown = 0;  // Of those: nothing was known of them.
  std::uint64_t block_reads = 0;
  std::uint64_t block_writes = 0;
  std::uint64_t blocks_restored = 0;  // Damaged; their entries were taken from the other copies.
};

class Integrity {
 public:
  // What a drive's error means for the drive; false if the set does not survive it.
  using Judge = std::function<bool(unsigned role, Drive* drive, Error error)>;

  Integrity(Executor& home, SetDrives& drives, Judge judge, IntegrityOptions options = {});
  ~Integrity();  // After every update.
  Integrity(const Integrity&) = delete;
  Integrity& operator=(const Integrity&) = delete;

  const IntegrityCounters& counters() const noexcept { return counters_; }
  std::uint32_t cell_rows() const noexcept { return cell_rows_; }
  // The number of blocks of one role that so many neighbouring cells have their own entries in.
  static constexpr std::uint64_t most_blocks(std::uint64_t cells) {
    return (cells + kCellsPerBlock - 2) / kCellsPerBlock + 1;
  }

  // Rows of a member, whole cells, with the bytes that its drive gave or that were computed.
  struct Checked {
    std::uint32_t first_bad = 0;  // The first row of the first cell that is not what it should be.
    std::uint32_t end = 0;
    bool known = true;  // Something is known of every cell.
    bool good() const noexcept { return first_bad == end; }
    bool proven() const noexcept { return good() && known; }
  };
  Task<Checked> check(std::uint64_t stripe, unsigned member, std::uint32_t row,
                      std::uint32_t row_count, const BufferList* data);
  // Of rows that a drive has nothing in: how many from the first on are alike, not mapped if their
  // entries say zeros, or nothing.
  Task<ProvisioningRun> zeros(std::uint64_t stripe, unsigned member, std::uint32_t row,
                              std::uint32_t row_count);
  // Both entries of these cells are there and the same, as far as both can be believed.
  Task<bool> entries_agree(std::uint64_t stripe, unsigned member, std::uint32_t row,
                           std::uint32_t row_count);
  // The blocks of the role whose first cell is one of these are on its drive what they should be.
  Task<bool> blocks_whole(unsigned role, std::uint64_t first_cell, std::uint64_t cell_count);

  // Changes. -----------------------------------------------------------------------------------
  struct Change {
    enum class Kind : std::uint8_t {
      kWritten,  // The cells now have the bytes of `data`.
      kZeroes,   // ... or zeros.
      kKept,     // Their entries are written again as they are.
    };
    unsigned role = 0;
    std::uint64_t first_cell = 0;
    std::uint64_t cell_count = 0;
    Kind kind = Kind::kWritten;
    const BufferList* data = nullptr;
  };
  Change change_of(std::uint64_t stripe, unsigned member, std::uint32_t row,
                   std::uint32_t row_count, const BufferList* data) const;
  unsigned partner(unsigned role) const;  // Whose drive has this role's second entries.
  unsigned before(unsigned role) const;   // Whose second entries this role's drive has.

  class Update;
  // Takes the blocks that hold the entries and makes their new content.
  Task<Error> begin(FrameVector<Change> changes, Update* update);
  // The record that has the new content is durable. Before the cells are written in place.
  void publish(Update* update);
  // Writes in place; ends when all of it is.
  Task<Error> write_out(Update* update);

 private:
  struct Block;
  struct Key {
    unsigned role;
    std::uint64_t index;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept {
      return (key.index * 64 + key.role) * 0x9e3779b97f4a7c15U;
    }
  };
  struct Entries;  // The blocks that two neighbouring entries of a run of cells stand in.
  struct Writing;

  // The drive whose content stands for the role: its own, or the replacement that is left alone.
  Drive* holder(unsigned role) const {
    const SetDrives::RoleDrive& here = drives_.role(role);
    return here.drive != nullptr ? here.drive : here.replacement;
  }
  std::uint64_t cell_of(std::uint64_t stripe, std::uint32_t row) const {
    return (drives_.layout().drive_lba(stripe) + row) / cell_rows_;
  }
  // Whether what a role's drive says about a cell counts.
  bool believed(unsigned role, std::uint64_t stripe) const;
  Block* find(unsigned role, std::uint64_t index);  // Made if need be; null without a drive.
  void touch(Block& block);
  void evict();
  Task<Buffer> image(unsigned role, std::uint64_t index);
  Task<void> load(Block* block);
  Task<void> add_newer(const Block* block, Buffer* bytes);
  Task<Error> read_block(const Block* block, Buffer* into);
  Task<Error> read_from(const Block* block, Drive* drive, Buffer* into);
  Task<void> restore(Block* block);
  Task<Entries> entries_of(std::uint64_t stripe, unsigned role, std::uint64_t index);
  IntegrityEntry newest(const Entries& entries, std::uint64_t stripe, std::uint64_t cell) const;
  using BlockName = std::pair<unsigned, std::uint64_t>;  // Role and index.
  Task<void> take_blocks(std::span<const BlockName> wanted, Update* update);
  Task<void> apply(const Change* change, Update* update);
  void start_writing(Block* block, FrameVector<Writing>* started);
  Extent extent_of(const Block& block) const;
  Task<Buffer> allocate_block();
  static void unpin(Block& block);

  SetDrives& drives_;
  Judge judge_;
  IntegrityOptions options_;
  IntegrityCounters counters_;
  std::uint32_t cell_rows_ = 1;
  BufferPool pool_;
  ByteBudget budget_;
  std::unordered_map<Key, std::unique_ptr<Block>, KeyHash> blocks_;
  std::list<Block*> by_use_;                // The one used last is the last.
  std::vector<const Drive*> replacements_;  // By role: the last that was seen.
};

// The blocks of one update, from begin() to the end of their writes.
class Integrity::Update {
 public:
  Update() = default;
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;
  ~Update();

  bool empty() const noexcept { return items_.empty(); }
  // What the journal's record has to have besides the cells.
  void add_to(FrameVector<JournalWrite>* writes, BufferList* payload) const;

 private:
  friend class Integrity;
  struct Item {
    Block* block = nullptr;
    Buffer fresh{};
    std::uint64_t version = 0;
    bool locked = true;
  };
  Item* item(unsigned role, std::uint64_t index);
  void let_go();

  Integrity* owner_ = nullptr;
  std::optional<ByteBudget::Share> share_;
  FrameVector<Item> items_;
};

}  // namespace sandbay::raid
