// keep_newest: leaves of recovered updates only what the newest update of each block says.
//
// A recovery can see a tail that another one, interrupted before it, did not see. Records between
// the two tails are released: their blocks are in place. Replayed in part, an old one among them
// could take a block back, and the next recovery would not know of it. Where every block is
// written once, with its newest bytes, such a replay changes nothing at any moment.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "raid/journal.h"

namespace sandbay::raid {

// Both are in order of sequence. Writes are trimmed or split; updates of which nothing is left are
// removed. What a lost update wrote is newer than all before it, too.
void keep_newest(std::vector<RecoveredUpdate>& updates, std::span<const LostUpdate> lost,
                 std::uint32_t block_bytes);

// Updates before `sequence`, of one of which nothing is known, are lost, too: it may have written
// the same places, and what is there is then newer.
void give_up_before(std::uint64_t sequence, JournalRecovery& recovery);

}  // namespace sandbay::raid
