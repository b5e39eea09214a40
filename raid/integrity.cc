// The blocks of integrity areas in memory, what they say of cells, and their changes.
#include "raid/integrity.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include <fmt/core.h>

#include "raid/metadata_image.h"

namespace sandbay::raid {

namespace {

// Nothing is known of what stood here.
void forget_all(std::span<std::byte> block) {
  for (std::uint32_t slot = 0; slot < kCellsPerBlock; ++slot) {
    put_entry(block, EntryCopy::kOwn, slot, kForgottenEntry);
    put_entry(block, EntryCopy::kPartner, slot, kForgottenEntry);
  }
}

constexpr std::size_t kPoolSlack = std::size_t{32} << 20;  // For those who only look.

}  // namespace

struct Integrity::Block {
  const Drive* from = nullptr;  // Whose it is; it is written wherever the role is.
  unsigned role = 0;
  std::uint64_t index = 0;
  Buffer image;  // Nothing until it has been read.
  bool damaged = false;
  bool loading = false;
  bool writing = false;
  unsigned users = 0;
  std::uint64_t version = 0;
  std::uint64_t written = 0;
  Mutex lock;
  Condition changed;
  std::list<Block*>::iterator place;
};

// Of cells of one block: their own and their partner's copy; empty where it does not count.
struct Integrity::Entries {
  Buffer own;
  Buffer partner;
  bool kept = false;  // Their drive keeps its content: their own copy counts in doubted rows alone.
};

struct Integrity::Writing {
  Block* block;
  std::uint64_t version;
  FrameVector<std::pair<Drive*, DriveIo>> writes;
};

Integrity::Integrity(Executor& home, SetDrives& drives, Judge judge, IntegrityOptions options)
    : drives_(drives),
      judge_(std::move(judge)),
      options_(options),
      cell_rows_(static_cast<std::uint32_t>(kCellBytes / drives.layout().block_bytes())),
      pool_(home, options.cache_bytes + options.update_bytes + kPoolSlack),
      budget_(options.update_bytes),
      replacements_(drives.layout().drive_count()) {}

Integrity::~Integrity() = default;

unsigned Integrity::partner(unsigned role) const {
  const unsigned width = drives_.layout().width();
  const unsigned first = role / width * width;
  return first + (role - first + 1) % width;
}

unsigned Integrity::before(unsigned role) const {
  const unsigned width = drives_.layout().width();
  const unsigned first = role / width * width;
  return first + (role - first + width - 1) % width;
}

bool Integrity::believed(unsigned role, std::uint64_t stripe) const {
  const auto member = drives_.layout().member(stripe, role);
  return member.has_value() && (drives_.unreadable(stripe) >> *member & 1) == 0;
}

Extent Integrity::extent_of(const Block& block) const {
  const std::uint32_t block_bytes = drives_.layout().block_bytes();
  const RoleEntry& entry = drives_.superblock().roles[block.role];
  const std::uint64_t at = entry.integrity_offset_bytes + block.index * kIntegrityBlockBytes;
  return {.first = at / block_bytes, .block_count = kIntegrityBlockBytes / block_bytes};
}

// ---- blocks in memory ---------------------------------------------------------------------------

Integrity::Block* Integrity::find(unsigned role, std::uint64_t index) {
  const Drive* from = holder(role);
  if (drives_.replacement(role) != nullptr) replacements_[role] = drives_.replacement(role);
  if (from == nullptr) return nullptr;
  std::unique_ptr<Block>& block = blocks_[{role, index}];
  if (block == nullptr) {
    block = std::make_unique<Block>();
    block->from = from;
    block->role = role;
    block->index = index;
    block->place = by_use_.insert(by_use_.end(), block.get());
    ++block->users;
    Block* made = block.get();
    evict();
    --made->users;
    return made;
  }
  if (block->from != from) {
    // A replacement had everything that its role had, and what is on its way here is newer than
    // what is on it. Of any other drive it has to be seen what is on it, unless it is about to get
    // what is here: an update of before it came waits for its turn to write.
    const bool same = from == replacements_[role] || block->version != block->written;
    block->from = from;
    if (!same) block->image = Buffer();
    if (!same) block->damaged = false;
  }
  touch(*block);
  return block.get();
}

void Integrity::touch(Block& block) { by_use_.splice(by_use_.end(), by_use_, block.place); }

// Those in use stay; there are never more of them than operations under way.
void Integrity::evict() {
  const std::size_t most = std::max<std::size_t>(options_.cache_bytes / kIntegrityBlockBytes, 8);
  auto next = by_use_.begin();
  while (by_use_.size() > most && next != by_use_.end()) {
    Block* block = *next;
    if (block->users > 0) {
      ++next;
      continue;
    }
    next = by_use_.erase(next);
    blocks_.erase(Key{block->role, block->index});
  }
}

void Integrity::unpin(Block& block) {
  assert(block.users > 0);
  --block.users;
}

Task<Buffer> Integrity::allocate_block() {
  BufferList list = co_await pool_.allocate(kIntegrityBlockBytes);
  assert(list.slice_count() == 1);
  co_return list[0];
}

Task<Error> Integrity::read_block(const Block* block, Buffer* into) {
  Drive* const drive = holder(block->role);
  if (drive == nullptr || drive != block->from) co_return Error::kNotReady;
  co_return co_await read_from(block, drive, into);
}

// kMediumError: it cannot be read, which is as good as damaged.
Task<Error> Integrity::read_from(const Block* block, Drive* drive, Buffer* into) {
  *into = co_await allocate_block();
  Request request;
  request.extent = extent_of(*block);
  request.data.append(*into);
  ++counters_.block_reads;
  const Completion done = co_await drive->submit_metadata(std::move(request));
  if (done.error == Error::kNone) co_return Error::kNone;
  if (done.error == Error::kMediumError) co_return done.error;
  judge_(block->role, drive, done.error);
  co_return done.error;
}

// The block is pinned. Its image stays empty if the drive cannot be asked.
Task<void> Integrity::load(Block* block) {
  while (block->loading) co_await block->changed.wait();
  if (!block->image.empty()) co_return;
  block->loading = true;
  Buffer bytes;
  const Drive* from = block->from;
  Error error = co_await read_block(block, &bytes);
  while (block->from != from) {  // Another drive holds the role now, and what was read is not its.
    from = block->from;
    error = co_await read_block(block, &bytes);
  }
  if (error == Error::kNone || error == Error::kMediumError) {
    const IntegrityBlockState state =
        error == Error::kNone
            ? examine_integrity_block(bytes.bytes(), {.set = drives_.superblock().set_uuid,
                                                      .role = block->role,
                                                      .index = block->index})
            : IntegrityBlockState::kDamaged;
    if (state != IntegrityBlockState::kWhole) {  // Then it says nothing.
      bytes = co_await allocate_block();
      std::memset(bytes.data(), 0, bytes.byte_count());
      if (state == IntegrityBlockState::kDamaged) forget_all(bytes.bytes());
    }
    co_await add_newer(block, &bytes);
    // Otherwise an update has published a newer one meanwhile, or the role has another holder.
    if (block->image.empty() && block->from == from) {
      block->damaged = state == IntegrityBlockState::kDamaged;
      block->image = std::move(bytes);
    }
  }
  block->loading = false;
  block->changed.notify_all();
}

// A drive that is back has missed entries that its replacement has, and both get the next image.
Task<void> Integrity::add_newer(const Block* block, Buffer* bytes) {
  Drive* const other = drives_.replacement(block->role);
  if (other == nullptr || other == block->from || !drives_.stale(block->role, false)) co_return;
  Buffer there;
  const Error error = co_await read_from(block, other, &there);
  if (error != Error::kNone) co_return;
  const IntegrityBlockName name{
      .set = drives_.superblock().set_uuid, .role = block->role, .index = block->index};
  if (examine_integrity_block(there.bytes(), name) != IntegrityBlockState::kWhole) co_return;
  for (const EntryCopy copy : {EntryCopy::kOwn, EntryCopy::kPartner}) {
    for (std::uint32_t slot = 0; slot < kCellsPerBlock; ++slot) {
      const IntegrityEntry entry = get_entry(there.bytes(), copy, slot);
      if (entry.newer_than(get_entry(bytes->bytes(), copy, slot))) {
        put_entry(bytes->bytes(), copy, slot, entry);
      }
    }
  }
}

Task<Buffer> Integrity::image(unsigned role, std::uint64_t index) {
  Block* block = find(role, index);
  if (block == nullptr) co_return Buffer();
  if (!block->image.empty()) co_return block->image;
  ++block->users;
  co_await load(block);
  Buffer found = block->image;
  unpin(*block);
  co_return found;
}

// ---- what they say ------------------------------------------------------------------------------

Task<Integrity::Entries> Integrity::entries_of(std::uint64_t stripe, unsigned role,
                                               std::uint64_t index) {
  Entries entries;
  const bool own = believed(role, stripe);
  entries.kept = !own && drives_.keeps(stripe, role) && drives_.drive(role) != nullptr;
  if (own || entries.kept) {
    const Block* block = find(role, index);
    if (block != nullptr) entries.own = block->image;
    if (entries.own.empty()) entries.own = co_await image(role, index);
  }
  const unsigned other = partner(role);
  if (other != role && believed(other, stripe)) {
    const Block* block = find(other, index);
    if (block != nullptr) entries.partner = block->image;
    if (entries.partner.empty()) entries.partner = co_await image(other, index);
  }
  co_return entries;
}

// The partner's drive may have been away when a cell was written whose drive keeps its content.
IntegrityEntry Integrity::newest(const Entries& entries, std::uint64_t stripe,
                                 std::uint64_t cell) const {
  const auto slot = static_cast<std::uint32_t>(cell % kCellsPerBlock);
  const auto doubted = [&] {
    const Lba row = cell * cell_rows_ - drives_.layout().drive_lba(stripe);
    return drives_.doubted(stripe, static_cast<std::uint32_t>(row), cell_rows_);
  };
  IntegrityEntry own = kForgottenEntry;
  IntegrityEntry other = kForgottenEntry;
  if (!entries.own.empty() && (!entries.kept || doubted())) {
    own = get_entry(entries.own.bytes(), EntryCopy::kOwn, slot);
  }
  if (!entries.partner.empty()) {
    other = get_entry(entries.partner.bytes(), EntryCopy::kPartner, slot);
  }
  if (!own.known() && !other.known()) return other.never_written() ? other : own;
  return other.newer_than(own) ? other : own;
}

Task<Integrity::Checked> Integrity::check(std::uint64_t stripe, unsigned member, std::uint32_t row,
                                          std::uint32_t row_count, const BufferList* data) {
  assert(row % cell_rows_ == 0 && row_count % cell_rows_ == 0);
  const unsigned role = drives_.layout().role(stripe, member);
  const std::uint64_t first = cell_of(stripe, row);
  const std::uint64_t end = first + row_count / cell_rows_;
  Checked checked{.first_bad = row + row_count, .end = row + row_count};
  Entries entries;
  for (std::uint64_t cell = first; cell < end; ++cell) {
    if (cell == first || cell % kCellsPerBlock == 0) {
      entries = co_await entries_of(stripe, role, cell / kCellsPerBlock);
    }
    const IntegrityEntry entry = newest(entries, stripe, cell);
    ++counters_.cells_checked;
    const Uuid& set = drives_.superblock().set_uuid;
    if (!entry.known()) {
      ++counters_.cells_unknown;
      checked.known = false;
      if (!drives_.superblock().blank || !entry.never_written()) continue;
    }
    const std::uint32_t crc = cell_crc(set, role, cell, *data, (cell - first) * kCellBytes);
    if (crc == (entry.known() ? entry.crc : zero_cell_crc(set, role, cell))) continue;
    checked.first_bad = row + static_cast<std::uint32_t>(cell - first) * cell_rows_;
    break;
  }
  co_return checked;
}

Task<ProvisioningRun> Integrity::zeros(std::uint64_t stripe, unsigned member, std::uint32_t row,
                                       std::uint32_t row_count) {
  const unsigned role = drives_.layout().role(stripe, member);
  const Uuid set = drives_.superblock().set_uuid;
  ProvisioningRun run;
  Entries entries;
  for (std::uint32_t at = row; at < row + row_count;) {
    const std::uint64_t cell = cell_of(stripe, at);
    if (at == row || cell % kCellsPerBlock == 0) {
      entries = co_await entries_of(stripe, role, cell / kCellsPerBlock);
    }
    const IntegrityEntry entry = newest(entries, stripe, cell);
    const bool mapped = entry.known() && entry.crc != zero_cell_crc(set, role, cell);
    if (at != row && mapped != run.mapped) break;
    const std::uint32_t rows = std::min(cell_rows_ - at % cell_rows_, row + row_count - at);
    run.mapped = mapped;
    run.block_count += rows;
    at += rows;
  }
  co_return run;
}

Task<bool> Integrity::entries_agree(std::uint64_t stripe, unsigned member, std::uint32_t row,
                                    std::uint32_t row_count) {
  const unsigned role = drives_.layout().role(stripe, member);
  const std::uint64_t first = cell_of(stripe, row);
  const std::uint64_t end = first + row_count / cell_rows_;
  Entries entries;
  for (std::uint64_t cell = first; cell < end; ++cell) {
    if (cell == first || cell % kCellsPerBlock == 0) {
      entries = co_await entries_of(stripe, role, cell / kCellsPerBlock);
    }
    const auto slot = static_cast<std::uint32_t>(cell % kCellsPerBlock);
    const IntegrityEntry entry = newest(entries, stripe, cell);
    if (!entry.known()) co_return false;
    if (!entries.own.empty() && get_entry(entries.own.bytes(), EntryCopy::kOwn, slot) != entry) {
      co_return false;
    }
    if (!entries.partner.empty() &&
        get_entry(entries.partner.bytes(), EntryCopy::kPartner, slot) != entry) {
      co_return false;
    }
  }
  co_return true;
}

Task<bool> Integrity::blocks_whole(unsigned role, std::uint64_t first_cell,
                                   std::uint64_t cell_count) {
  bool whole = true;
  std::uint64_t index = (first_cell + kCellsPerBlock - 1) / kCellsPerBlock;
  for (; index * kCellsPerBlock < first_cell + cell_count; ++index) {
    Block* block = find(role, index);
    if (block == nullptr) continue;
    ++block->users;
    co_await block->lock.lock();
    co_await load(block);
    const bool still = block->version == block->written && !block->image.empty();
    if (block->damaged) {
      whole = false;
    } else if (still) {
      Buffer bytes;
      Error error = co_await read_block(block, &bytes);
      if (block->image.empty()) error = Error::kNotReady;  // The role has another holder.
      const IntegrityBlockName name{
          .set = drives_.superblock().set_uuid, .role = role, .index = index};
      // What was never written may have anything in it that is not ours.
      const bool blank =
          error == Error::kNone && all_zeros(block->image.bytes()) &&
          examine_integrity_block(bytes.bytes(), name) == IntegrityBlockState::kNeverWritten;
      const bool same = error == Error::kNone &&
                        std::memcmp(bytes.data(), block->image.data(), kIntegrityBlockBytes) == 0;
      if (error == Error::kMediumError || (error == Error::kNone && !same && !blank)) whole = false;
    }
    block->lock.unlock();
    unpin(*block);
  }
  co_return whole;
}

// ---- changes ------------------------------------------------------------------------------------

Integrity::Change Integrity::change_of(std::uint64_t stripe, unsigned member, std::uint32_t row,
                                       std::uint32_t row_count, const BufferList* data) const {
  assert(row % cell_rows_ == 0 && row_count % cell_rows_ == 0);
  return {.role = drives_.layout().role(stripe, member),
          .first_cell = cell_of(stripe, row),
          .cell_count = row_count / cell_rows_,
          .data = data};
}

Integrity::Update::Item* Integrity::Update::item(unsigned role, std::uint64_t index) {
  const auto found = std::ranges::lower_bound(
      items_, std::pair(role, index), {},
      [](const Item& one) { return std::pair(one.block->role, one.block->index); });
  const bool here =
      found != items_.end() && found->block->role == role && found->block->index == index;
  return here ? &*found : nullptr;
}

Integrity::Update::~Update() { let_go(); }

void Integrity::Update::let_go() {
  for (Item& item : items_) {
    if (item.locked) item.block->lock.unlock();
    unpin(*item.block);
  }
  items_.clear();
}

void Integrity::Update::add_to(FrameVector<JournalWrite>* writes, BufferList* payload) const {
  for (const Item& item : items_) {
    writes->push_back({.role = static_cast<std::uint16_t>(item.block->role),
                       .extent = owner_->extent_of(*item.block)});
    payload->append(item.fresh);
  }
}

// In one order by everybody, after stripes, so nobody waits in a circle. Those without a drive are
// left out.
Task<void> Integrity::take_blocks(std::span<const BlockName> wanted, Update* update) {
  update->items_.reserve(wanted.size());
  for (const auto& [role, index] : wanted) {
    Block* block = find(role, index);
    if (block == nullptr) continue;
    ++block->users;
    co_await block->lock.lock();
    co_await load(block);
    if (block->image.empty()) {  // Its drive has gone.
      block->lock.unlock();
      unpin(*block);
      continue;
    }
    update->items_.push_back({.block = block});
  }
}

Task<Error> Integrity::begin(FrameVector<Change> changes, Update* update) {
  FrameVector<BlockName> wanted;
  for (const Change& change : changes) {
    const std::uint64_t last = (change.first_cell + change.cell_count - 1) / kCellsPerBlock;
    for (std::uint64_t i = change.first_cell / kCellsPerBlock; i <= last; ++i) {
      wanted.emplace_back(change.role, i);
      if (partner(change.role) != change.role) wanted.emplace_back(partner(change.role), i);
    }
  }
  std::ranges::sort(wanted);
  const auto same = std::ranges::unique(wanted);
  wanted.erase(same.begin(), same.end());
  const std::size_t taken = co_await budget_.take(wanted.size() * kIntegrityBlockBytes);
  update->share_.emplace(budget_, taken);
  update->owner_ = this;
  // A drive that has just gone is still active by the superblocks. Found like that after a crash it
  // is given the cells of the update, so the update must have its entries, too, or wait until
  // the drive is known to be gone.
  for (unsigned attempt = 0;; ++attempt) {
    co_await take_blocks(wanted, update);
    const bool settled = drives_.settled_now();
    const bool complete = std::ranges::all_of(wanted, [&](const BlockName& name) {
      return update->item(name.first, name.second) != nullptr || holder(name.first) == nullptr;
    });
    if (settled && complete) break;
    update->let_go();
    // The set cannot miss a drive that keeps its role and gives no entries: it stops, and a replay
    // must not find cells of the update without them.
    if (settled && attempt > 0) co_return Error::kNotReady;
    const Error error = co_await drives_.settled();
    if (error != Error::kNone) co_return error;
  }
  for (Update::Item& item : update->items_) {
    if (item.block->damaged) co_await restore(item.block);
    item.fresh = co_await allocate_block();
    std::memcpy(item.fresh.data(), item.block->image.data(), kIntegrityBlockBytes);
  }
  for (const Change& change : changes) co_await apply(&change, update);
  for (Update::Item& item : update->items_) {
    seal_integrity_block(item.fresh.bytes(), {.set = drives_.superblock().set_uuid,
                                              .role = item.block->role,
                                              .index = item.block->index});
  }
  co_return Error::kNone;
}

// With its blocks' lock held, nobody changes the other copies of its entries either.
Task<void> Integrity::restore(Block* block) {
  Buffer fresh = co_await allocate_block();
  std::memset(fresh.data(), 0, fresh.byte_count());
  forget_all(fresh.bytes());
  const unsigned next = partner(block->role);
  const unsigned previous = before(block->role);
  if (next == block->role) co_return;
  const Buffer own = co_await image(next, block->index);
  const Buffer other = co_await image(previous, block->index);
  const Layout& layout = drives_.layout();
  std::uint64_t restored = 0;
  for (std::uint32_t slot = 0; slot < kCellsPerBlock; ++slot) {
    const Lba at = (block->index * kCellsPerBlock + slot) * cell_rows_;
    if (at >= layout.drive_blocks(block->role)) break;
    const std::uint64_t stripe = layout.on_drive(block->role, at).stripe;
    if (!own.empty() && believed(next, stripe)) {
      const IntegrityEntry entry = get_entry(own.bytes(), EntryCopy::kPartner, slot);
      put_entry(fresh.bytes(), EntryCopy::kOwn, slot, entry);
      restored += entry.known();
    }
    if (!other.empty() && believed(previous, stripe)) {
      const IntegrityEntry entry = get_entry(other.bytes(), EntryCopy::kOwn, slot);
      put_entry(fresh.bytes(), EntryCopy::kPartner, slot, entry);
      restored += entry.known();
    }
  }
  block->image = std::move(fresh);
  // A drive that had something else on it before; or it was away when a crash that tore the block
  // was cured by the journal.
  if (restored == 0 || drives_.stale(block->role, false)) co_return;
  ++counters_.blocks_restored;
  drives_.tell({SetEvent::Kind::kCorruption, block->role,
                fmt::format("block {} of the integrity area was damaged; {} entries have been "
                            "taken from their other copies",
                            block->index, restored)});
}

Task<void> Integrity::apply(const Change* change, Update* update) {
  const Uuid& set = drives_.superblock().set_uuid;
  const unsigned role = change->role;
  const std::uint64_t end = change->first_cell + change->cell_count;
  Update::Item* own = nullptr;
  Update::Item* other = nullptr;
  Entries believed_entries;
  for (std::uint64_t cell = change->first_cell; cell < end; ++cell) {
    const std::uint64_t index = cell / kCellsPerBlock;
    const auto slot = static_cast<std::uint32_t>(cell % kCellsPerBlock);
    if (cell == change->first_cell || slot == 0) {
      own = update->item(role, index);
      other = partner(role) != role ? update->item(partner(role), index) : nullptr;
    }
    IntegrityEntry entry;
    if (change->kind == Change::Kind::kKept) {
      const Lba at = cell * cell_rows_;
      const std::uint64_t stripe = drives_.layout().on_drive(role, at).stripe;
      believed_entries = co_await entries_of(stripe, role, index);
      entry = newest(believed_entries, stripe, cell);
    } else {
      // Newer than what any drive says, be it believed or not.
      IntegrityEntry old;
      if (own != nullptr) old = get_entry(own->fresh.bytes(), EntryCopy::kOwn, slot);
      if (other != nullptr) {
        const IntegrityEntry there = get_entry(other->fresh.bytes(), EntryCopy::kPartner, slot);
        if (there.newer_than(old)) old = there;
      }
      entry.generation = generation_after(old.generation);
      entry.crc =
          change->kind == Change::Kind::kZeroes
              ? zero_cell_crc(set, role, cell)
              : cell_crc(set, role, cell, *change->data, (cell - change->first_cell) * kCellBytes);
    }
    if (own != nullptr) put_entry(own->fresh.bytes(), EntryCopy::kOwn, slot, entry);
    if (other != nullptr) put_entry(other->fresh.bytes(), EntryCopy::kPartner, slot, entry);
  }
}

void Integrity::publish(Update* update) {
  for (Update::Item& item : update->items_) {
    Block& block = *item.block;
    block.image = std::move(item.fresh);
    block.damaged = false;
    item.version = ++block.version;
    item.locked = false;
    block.lock.unlock();
  }
}

void Integrity::start_writing(Block* block, FrameVector<Writing>* started) {
  block->writing = true;
  Writing writing{.block = block, .version = block->version, .writes = {}};
  const SetDrives::RoleDrive& here = drives_.role(block->role);
  for (Drive* drive : {here.drive, here.replacement}) {
    if (drive == nullptr) continue;
    Request request;
    request.operation = Operation::kWrite;
    request.extent = extent_of(*block);
    request.data.append(block->image);
    ++counters_.block_writes;
    writing.writes.emplace_back(drive, drive->start_metadata(std::move(request)));
  }
  started->push_back(std::move(writing));
}

Task<Error> Integrity::write_out(Update* update) {
  Error result = Error::kNone;
  for (;;) {
    FrameVector<Writing> started;
    Block* behind = nullptr;
    for (const Update::Item& item : update->items_) {
      if (item.block->written >= item.version) continue;
      if (item.block->writing) {
        behind = item.block;
      } else {
        start_writing(item.block, &started);
      }
    }
    for (Writing& writing : started) {
      for (auto& [drive, io] : writing.writes) {
        co_await io.wait();
        const Error error = io.take().error;
        if (error != Error::kNone && !judge_(writing.block->role, drive, error)) result = error;
      }
      writing.block->writing = false;
      writing.block->written = writing.version;
      writing.block->changed.notify_all();
    }
    if (started.empty() && behind == nullptr) co_return result;
    if (started.empty()) co_await behind->changed.wait();
  }
}

}  // namespace sandbay::raid
