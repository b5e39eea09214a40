// Slots: which chunks of the reserve pages keep something for snapshots.
//
// A reserve page is an owned page with slots in use; how many is always in memory (two bytes a page
// of a store that has any), which ones is a BitSet that its owner keeps in a bounded cache. Slots
// are claimed from one open page after the other, in runs, so that what is preserved together lies
// together. A claim is nobody's after a crash; it becomes use when it is in the map.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "pool/bit_set.h"
#include "pool/place.h"

namespace sandbay::pool {

class Slots {
 public:
  explicit Slots(std::uint32_t page_chunks) : page_chunks_(page_chunks), claimed_(page_chunks) {}

  struct Run {
    Slot first;
    std::uint32_t count = 0;
  };
  // Free slots of the open page, side by side, at most `most`; nothing if there are none: open()
  // another page then.
  std::optional<Run> claim(std::uint32_t most);
  // A reserve page with free slots that is not the open one.
  std::optional<Place> candidate();
  // Claims come from this page now; `used` are its slots in use.
  void open(Place place, const BitSet& used);
  // Claims come from another page, to be opened.
  void close_page() {
    if (has_open_) leave_open();
  }
  void add_candidate(Place place) { candidates_.insert(place); }
  bool is_open(Place place) const noexcept { return has_open_ && open_ == place; }

  // A claim that came to nothing. True: its page has neither uses nor claims any more, and is no
  // reserve page now.
  bool unclaim(Slot slot);
  // A slot is in the map now, claimed before or not; its page becomes a reserve page if it was
  // none.
  void use(Slot slot);
  // It is not any more. True as for unclaim().
  bool give_back(Slot slot);
  // From the checkpoint: a reserve page with so many in use.
  void add_page(Place place, std::uint32_t used);

  bool is_reserve(Place place) const noexcept { return used(place) > 0; }
  std::uint32_t used(Place place) const noexcept;
  std::uint64_t used_count() const noexcept { return used_count_; }
  std::uint64_t page_count() const noexcept { return page_count_; }

 private:
  std::uint16_t& count_of(Place place);
  bool has_room(Place place) const;
  void leave_open();
  bool settle(Place place);

  std::uint32_t page_chunks_;
  std::vector<std::vector<std::uint16_t>> used_;  // By store and page.
  std::uint64_t used_count_ = 0;
  std::uint64_t page_count_ = 0;
  std::set<Place> candidates_;  // Not the open one. May hold pages that are full or gone by now.
  bool has_open_ = false;
  Place open_;
  BitSet claimed_;  // Of the open page: in use or claimed since it was opened.
  // Claims in flight, by page.
  std::map<Place, std::vector<std::uint16_t>> in_flight_;
};

}  // namespace sandbay::pool
