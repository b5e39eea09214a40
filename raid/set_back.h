// Drives that were set back: a drive's file that is an older copy of itself, or a drive that has
// forgotten what it said was durable.
//
// An event tells of one that is older than an event (assembly.h). Of one that is younger the
// journal on the drives tells: its records go round the drives and are written with FUA, so of as
// many batches as one round takes, each drive that is live all the while has one, also after a loss
// of power. A drive that has none of the last two rounds, by what is on the others, was set back.
// Every record has a mark of the drives that were live, so a drive that has only just come is not
// blamed.
#pragma once

#include <cstdint>
#include <vector>

#include "block/block_device.h"
#include "raid/journal_scan.h"
#include "raid/superblock.h"

namespace sandbay::raid {

// Of the drives in these roles; never 0.
std::uint32_t live_mark(const Superblock& superblock, std::uint64_t roles);

// Where a set's journal is on its drives. Units are the largest physical block of the drives that
// the superblock speaks of; where it does not say that, of the drives that are here.
JournalRing ring_of(const Superblock& superblock, const Layout& layout,
                    std::uint32_t physical_block_bytes_here);

// The roles of a set that was not stopped in order whose drives were set back, by its journal. By
// role the drives that count as current, null where there is none; only read. 0 if that cannot be
// told, or if the journal is not on the drives.
Task<std::uint64_t> find_set_back(Executor& home, Superblock superblock,
                                  std::vector<BlockDevice*> drives);

}  // namespace sandbay::raid
