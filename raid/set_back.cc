// Reads the rings once more than the journal itself, before anything is written.
#include "raid/set_back.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "raid/drive_journal.h"

namespace sandbay::raid {
namespace {

// Rings of drives that no set runs on yet.
class IdleRings final : public JournalDrives {
 public:
  explicit IdleRings(std::vector<BlockDevice*> drives) : drives_(std::move(drives)) {}

  std::uint64_t live_roles() const noexcept override {
    std::uint64_t roles = 0;
    for (std::size_t role = 0; role < drives_.size(); ++role) {
      if (drives_[role] != nullptr) roles |= std::uint64_t{1} << role;
    }
    return roles;
  }
  Task<Completion> journal_io(unsigned role, Request request) override {
    assert(request.operation == Operation::kRead);
    return drives_[role]->submit(std::move(request));
  }

 private:
  std::vector<BlockDevice*> drives_;
};

}  // namespace

std::uint32_t live_mark(const Superblock& superblock, std::uint64_t roles) {
  Crc32c crc;
  for (unsigned role = 0; role < superblock.drive_count(); ++role) {
    if ((roles >> role & 1U) == 0) continue;
    crc.update(std::as_bytes(std::span(&role, 1)));
    crc.update(std::as_bytes(std::span(superblock.roles[role].drive)));
  }
  return std::max(crc.value(), 1U);
}

JournalRing ring_of(const Superblock& superblock, const Layout& layout,
                    std::uint32_t physical_block_bytes_here) {
  const std::uint32_t block_bytes = superblock.block_bytes;
  const std::uint32_t recorded = superblock.physical_block_bytes;
  const std::uint32_t unit_bytes = std::max(
      {std::uint32_t{4096}, block_bytes, recorded != 0 ? recorded : physical_block_bytes_here});
  return {.set = superblock.set_uuid,
          .first_block = superblock.journal_offset_bytes / block_bytes,
          .block_count = superblock.journal_bytes / unit_bytes * (unit_bytes / block_bytes),
          .block_bytes = block_bytes,
          .unit_bytes = unit_bytes,
          .copies = layout.redundancy() + 1,
          .role_count = layout.drive_count(),
          .group_count = layout.group_count()};
}

Task<std::uint64_t> find_set_back(Executor& home, Superblock superblock,
                                  std::vector<BlockDevice*> drives) {
  const auto layout = superblock.layout();
  if (superblock.clean || superblock.journal_bytes == 0 || !layout.has_value()) co_return 0;
  std::uint32_t physical = 0;
  std::uint64_t active = 0;
  for (unsigned role = 0; role < superblock.drive_count(); ++role) {
    if (superblock.roles[role].state == RoleState::kActive) active |= std::uint64_t{1} << role;
    if (drives[role] == nullptr) continue;
    physical = std::max(physical, drives[role]->geometry().physical_block_bytes);
  }
  const JournalRing ring = ring_of(superblock, *layout, physical);
  if (ring.unit_count() < DriveJournal::kLeastUnits) co_return 0;
  IdleRings rings(std::move(drives));
  JournalScan scan(rings, ring,
                   {.last = superblock.journal_key, .next = superblock.next_journal_key}, home);
  const Error error = co_await scan.run();
  if (error != Error::kNone) co_return 0;
  co_return scan.set_back_roles(live_mark(superblock, active));
}

}  // namespace sandbay::raid
