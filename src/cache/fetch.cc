// A fetch's memory: one block with its parts.
#include "cache/fetch.h"

#include <new>

#include "runtime/frame_pool.h"

namespace sandbay::cache {
namespace {

std::size_t fetch_bytes(unsigned part_count) {
  return sizeof(Fetch) + part_count * sizeof(FetchPart);
}

}  // namespace

Fetch* Fetch::make(unsigned part_count) {
  static_assert(alignof(FetchPart) <= alignof(Fetch));
  auto* const fetch = new (allocate_frame(fetch_bytes(part_count))) Fetch;
  fetch->part_count = part_count;
  for (unsigned i = 0; i < part_count; ++i) {
    auto* const part = new (fetch->parts() + i) FetchPart;
    part->fetch = fetch;
  }
  return fetch;
}

void Fetch::leave(Fetch* fetch) noexcept {
  assert(fetch->users > 0);
  if (--fetch->users > 0) return;
  const unsigned part_count = fetch->part_count;
  fetch->~Fetch();
  free_frame(fetch, fetch_bytes(part_count));
}

void outdate_fetches(Line& line, Range range) noexcept {
  for (FetchPart* part = line.fetches; part != nullptr; part = part->next) {
    if (part->range.overlaps(range)) part->fetch->outdated = true;
  }
}

}  // namespace sandbay::cache
