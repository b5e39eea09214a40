// Pool: unmapping free pages below, so that thin members and flash have their room back.
//
// A page is unmapped while it is claimed, so nobody gets it meanwhile, and a host that needs just
// that one waits (placement.cc); it was freed by a change
// that is durable, so no crash brings back what was in it. That a page has yet to be unmapped is
// not stored: what is left when the daemon ends has its room below until it is used and freed
// again. To unmap all that is free at every start instead would take as long as the pool is large.
#include <utility>

#include "pool/pool.h"

namespace sandbay::pool {

namespace {

bool can_unmap(const BlockDevice* device) {
  return device->geometry().unmap && !device->geometry().read_only;
}

}  // namespace

// Nothing begins on a store that is to go.
bool Pool::may_trim(StoreIndex store) const noexcept {
  return may_allocate_on(store) && can_unmap(device(store));
}

bool Pool::needs_trim() const noexcept {
  for (const auto& [index, store] : map_.stores()) {
    if (store.pages.stale_count() > 0 && may_trim(index)) return true;
  }
  return false;
}

Task<bool> Pool::trim(std::uint32_t pages) {
  if (!background_.try_enter()) co_await background_.enter();
  const DoorHold inside(background_);
  std::vector<StoreIndex> stores;
  for (const auto& [index, store] : map_.stores()) stores.push_back(index);
  for (const StoreIndex index : stores) {
    while (pages > 0) {
      if (!brief_claims_.try_enter()) co_await brief_claims_.enter();
      const DoorHold claiming(brief_claims_);
      if (!may_trim(index)) break;
      BlockDevice* const unit = device(index);
      const std::optional<Place> place = map_.claim_stale(index);
      if (!place.has_value()) break;
      --pages;
      const std::uint64_t blocks = map_.page_bytes() / unit->geometry().block_bytes;
      Request unmap{.operation = Operation::kUnmap,
                    .origin = Origin::kCopy,
                    .extent = {.first = place->page * blocks, .block_count = blocks}};
      const Completion done = co_await unit->submit(std::move(unmap));
      // It is a courtesy: what was refused is not asked for again.
      map_.unclaim_clean(*place);
      ++(done.error == Error::kNone ? counters_.pages_trimmed : counters_.trims_failed);
    }
  }
  co_return needs_trim();
}

}  // namespace sandbay::pool
