// The pure parts of the map against naive twins: bits, chunk maps, page maps, free pages, slots,
// kept chunks; and the bounded cache.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include <rapidcheck.h>
#include <catch2/catch.hpp>

#include "pool/bounded_cache.h"
#include "pool/chunk_map.h"
#include "pool/free_pages.h"
#include "pool/kept_chunks.h"
#include "pool/page_map.h"
#include "pool/slots.h"
#include "tests/unit/block/on_executor.h"

namespace sandbay::pool::parts_test {
namespace {

template <class Integer = std::uint32_t>
Integer draw(std::uint32_t first, std::uint32_t end) {
  return static_cast<Integer>(*rc::gen::inRange<std::uint32_t>(first, end));
}

}  // namespace

TEST_CASE("a bit set is a row of booleans", "[pool]") {
  REQUIRE(rc::check([] {
    const auto size = draw(1, 300);
    BitSet bits(size);
    std::vector<bool> twin(size);
    for (int i = 0; i < 30; ++i) {
      const auto first = draw(0, size);
      const auto count = draw(0, size - first + 1);
      const bool value = *rc::gen::arbitrary<bool>();
      bits.assign(first, count, value);
      std::fill_n(twin.begin() + first, count, value);
      const auto from = draw(0, size + 1);
      const bool wanted = *rc::gen::arbitrary<bool>();
      const auto found = std::find(twin.begin() + from, twin.end(), wanted) - twin.begin();
      RC_ASSERT(bits.find(from, wanted) == static_cast<std::uint32_t>(found));
      RC_ASSERT(bits.count() == static_cast<std::uint32_t>(std::ranges::count(twin, true)));
      RC_ASSERT(bits.proper());
    }
  }));
}

TEST_CASE("a chunk map is a row of states, in memory and stored", "[pool]") {
  REQUIRE(rc::check([] {
    const auto size = draw(kLeastPageChunks, 300);
    ChunkMap map(size);
    std::vector<ChunkState> twin(size, ChunkState::kThrough);
    for (int i = 0; i < 20; ++i) {
      const auto first = draw(0, size);
      const auto count = draw(1, size - first + 1);
      const auto state = static_cast<ChunkState>(draw(0, 3));
      map.set(first, count, state);
      std::fill_n(twin.begin() + first, count, state);
      const auto at = draw(0, size);
      const auto limit = draw(at + 1, size + 1);
      auto end = at;
      while (end < limit && twin[end] == twin[at]) ++end;
      RC_ASSERT(map.state(at) == twin[at]);
      RC_ASSERT(map.end_of_run(at, limit) == end);
      RC_ASSERT(map.data_count() ==
                static_cast<std::uint32_t>(std::ranges::count(twin, ChunkState::kData)));
      const bool uniform = std::ranges::count(twin, twin[0]) == size;
      RC_ASSERT(map.uniform() == (uniform ? std::optional(twin[0]) : std::nullopt));
    }
    const auto again = ChunkMap::unpack(map.pack(), size);
    RC_ASSERT(again.has_value());
    RC_ASSERT(*again == map);
  }));
}

TEST_CASE("a page map is a map of entries, in memory and stored", "[pool]") {
  REQUIRE(rc::check([] {
    PageMap map;
    std::map<PageNumber, PageEntry> twin;
    for (int i = 0; i < 60; ++i) {
      const auto page = draw(0, 2000);
      PageEntry entry;
      entry.state = static_cast<PageState>(draw(0, 4));
      const auto store = draw<StoreIndex>(0, 4);
      if (store < 3 || entry.state == PageState::kData) {
        entry.set_place({.store = store, .page = draw(0, 1000)});
      }
      map.set(page, entry);
      twin[page] = entry;
    }
    std::uint64_t placed = 0;
    std::vector<std::uint32_t> on(4);
    for (const auto& [page, entry] : twin) {
      const PageEntry found = map.at(page);
      RC_ASSERT(found.place() == entry.place());
      RC_ASSERT(found.state == entry.state);
      if (entry.place().none()) continue;
      ++placed;
      ++on[entry.place_store];
    }
    RC_ASSERT(map.placed_count() == placed);
    for (StoreIndex store = 0; store < 4; ++store) RC_ASSERT(map.count_on(store) == on[store]);
    std::erase_if(twin, [](const auto& one) { return one.second.empty(); });
    PageNumber at = map.next(0, kNoPage);
    for (const auto& [page, entry] : twin) {
      RC_ASSERT(at == page);
      at = map.next(page + 1, kNoPage);
    }
    RC_ASSERT(at == kNoPage);
    PageMap again;
    for (std::uint32_t leaf = 0; leaf < map.leaf_end(); ++leaf) {
      const std::string text = map.pack_leaf(leaf);
      RC_ASSERT(text.empty() == !map.any_in_leaf(leaf));
      if (!text.empty()) RC_ASSERT(again.unpack_leaf(leaf, text).has_value());
    }
    for (PageNumber page = 0; page < 2000; ++page) {
      RC_ASSERT(again.at(page).place() == map.at(page).place());
      RC_ASSERT(again.at(page).state == map.at(page).state);
    }
    RC_ASSERT(again.placed_count() == placed);
  }));
}

TEST_CASE("free pages are given lowest first, in runs, and come back", "[pool]") {
  REQUIRE(rc::check([] {
    auto size = draw(1, 200);
    FreePages pages(size);
    std::set<PageNumber> free;
    std::set<PageNumber> stale;
    for (PageNumber page = 0; page < size; ++page) free.insert(page);
    for (int i = 0; i < 100; ++i) {
      const auto what = draw(0, 12);
      std::erase_if(stale, [&](PageNumber page) { return !free.contains(page); });
      RC_ASSERT(pages.stale_count() == stale.size());
      if (what >= 10) {
        const auto page = pages.take_stale();
        RC_ASSERT(page.has_value() == !stale.empty());
        if (!page.has_value()) continue;
        RC_ASSERT(*page == *stale.begin());
        RC_ASSERT(pages.owned(*page));
        pages.give_back(*page, false);
        stale.erase(*page);
        continue;
      }
      if (what < 5) {
        const auto most = draw(1, 20);
        const auto run = pages.take(most);
        RC_ASSERT(run.has_value() == !free.empty());
        if (!run.has_value()) continue;
        RC_ASSERT(run->first == *free.begin());
        std::uint32_t count = 0;
        while (count < most && free.contains(run->first + count)) free.erase(run->first + count++);
        RC_ASSERT(run->count == count);
      } else if (what < 9) {
        const auto page = draw(0, size);
        if (pages.owned(page)) {
          pages.give_back(page);
          free.insert(page);
          stale.insert(page);
        } else if (what == 8) {
          RC_ASSERT(pages.own(page));
          free.erase(page);
          RC_ASSERT(!pages.own(page));
        }
      } else {
        const auto grown = size + draw(0, 70);
        for (PageNumber page = size; page < grown; ++page) free.insert(page);
        size = grown;
        pages.grow(size);
      }
      RC_ASSERT(pages.free_count() == free.size());
    }
  }));
}

TEST_CASE("slots are used once, and pages without use or claim go", "[pool]") {
  REQUIRE(rc::check([] {
    Slots slots(kLeastPageChunks);
    std::set<Slot> used;
    std::set<Slot> claimed;
    std::set<Place> pages;
    PageNumber next = 0;
    const auto used_in = [&used](Place place) {
      BitSet bits(kLeastPageChunks);
      for (const Slot& slot : used) {
        if (slot.place == place) bits.set(slot.chunk);
      }
      return bits;
    };
    const auto idle = [&](Place place) {
      const auto in = [place](const Slot& slot) { return slot.place == place; };
      return std::ranges::none_of(used, in) && std::ranges::none_of(claimed, in);
    };
    for (int i = 0; i < 200; ++i) {
      const auto what = draw(0, 4);
      if (what == 0) {
        const auto run = slots.claim(draw(1, 8));
        if (!run.has_value()) {
          std::optional<Place> place = slots.candidate();
          // Nothing that is free is out of sight.
          for (const Place one : pages) {
            const auto taken = std::ranges::count_if(
                claimed, [one](const Slot& slot) { return slot.place == one; });
            const bool room = used_in(one).count() + taken < kLeastPageChunks;
            if (!place.has_value()) RC_ASSERT(!room || used_in(one).count() == 0);
          }
          if (!place.has_value()) place = Place{.store = 0, .page = next++};
          slots.open(*place, used_in(*place));
          pages.insert(*place);
          continue;
        }
        for (std::uint32_t j = 0; j < run->count; ++j) {
          Slot slot = run->first;
          slot.chunk = static_cast<std::uint16_t>(slot.chunk + j);
          RC_ASSERT(!used.contains(slot));
          RC_ASSERT(claimed.insert(slot).second);
        }
      } else if (what == 1 && !claimed.empty()) {
        const Slot slot =
            *std::next(claimed.begin(), draw(0, static_cast<unsigned>(claimed.size())));
        claimed.erase(slot);
        used.insert(slot);
        slots.use(slot);
      } else if (what == 2 && !claimed.empty()) {
        const Slot slot =
            *std::next(claimed.begin(), draw(0, static_cast<unsigned>(claimed.size())));
        claimed.erase(slot);
        const bool gone = slots.unclaim(slot);
        RC_ASSERT(gone == idle(slot.place));
        if (gone) pages.erase(slot.place);
      } else if (what == 3 && !used.empty()) {
        const Slot slot = *std::next(used.begin(), draw(0, static_cast<unsigned>(used.size())));
        used.erase(slot);
        const bool gone = slots.give_back(slot);
        RC_ASSERT(gone == idle(slot.place));
        if (gone) pages.erase(slot.place);
      }
      RC_ASSERT(slots.used_count() == used.size());
      for (const Place place : pages) RC_ASSERT(slots.used(place) == used_in(place).count());
    }
  }));
}

TEST_CASE("every living snapshot sees what was kept for it, and only that is kept", "[pool]") {
  REQUIRE(rc::check([] {
    constexpr std::uint32_t kChunks = 20;
    KeptChunks kept(0);
    std::map<std::pair<Generation, std::uint32_t>, Kept> twin;
    std::set<Generation> living;
    Generation last = 0;
    for (int i = 0; i < 80; ++i) {
      const auto what = draw(0, 5);
      if (what == 0) {
        living.insert(++last);
      } else if (what == 1 && !living.empty()) {
        living.erase(std::next(living.begin(), draw(0, static_cast<unsigned>(living.size()))));
        const std::vector<Generation> now(living.begin(), living.end());
        for (const auto& useless : kept.useless(now)) {
          const Kept gone = kept.forget(useless.generation, useless.kept.chunk, 1);
          RC_ASSERT(gone == useless.kept);
          twin.erase({useless.generation, useless.kept.chunk});
        }
        // The twin's way: a version is needed if some living one sees it.
        std::set<std::pair<Generation, std::uint32_t>> seen;
        for (const Generation e : now) {
          for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
            for (Generation g = e; g <= last; ++g) {
              if (!twin.contains({g, chunk})) continue;
              seen.insert({g, chunk});
              break;
            }
          }
        }
        RC_ASSERT(seen.size() == twin.size());
      } else if (!living.empty()) {
        const auto chunk = draw<std::uint16_t>(0, kChunks);
        const Generation newest = *living.rbegin();
        if (kept.seen_by(newest, chunk) != nullptr) continue;
        Kept version{.chunk = chunk, .state = static_cast<ChunkState>(draw(0, 3)), .slot = {}};
        if (version.state == ChunkState::kData) {
          version.slot = {.place = {.store = 1, .page = draw(0, 1000)}, .chunk = chunk};
        }
        kept.keep(newest, version, 1);
        twin[{newest, chunk}] = version;
      }
      for (const Generation e : living) {
        for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
          const Kept* expected = nullptr;
          for (Generation g = e; g <= last && expected == nullptr; ++g) {
            const auto at = twin.find({g, chunk});
            if (at != twin.end()) expected = &at->second;
          }
          const Kept* const found = kept.seen_by(e, chunk);
          RC_ASSERT((found == nullptr) == (expected == nullptr));
          if (found != nullptr) RC_ASSERT(*found == *expected);
        }
      }
    }
    for (const auto& entry : kept.generations()) {
      if (entry.leaf.empty()) continue;
      const auto again = KeptLeaf::unpack(entry.leaf.pack(), kChunks);
      RC_ASSERT(again.has_value());
      RC_ASSERT(*again == entry.leaf);
    }
  }));
}

namespace {

struct Sized {
  std::size_t bytes = 0;
  std::size_t byte_count() const { return bytes; }
};

struct Owner {
  Executor& home;
  int loads = 0;
  bool fails = false;
  Task<Result<Sized>> load(PageKey key) {
    ++loads;
    co_await home.sleep_for(std::chrono::milliseconds(1));
    if (fails) co_return std::unexpected(Error::kMediumError);
    co_return Sized{.bytes = key.page};
  }
};

using Cache = BoundedCache<PageKey, Sized, PageKeyHash>;

Task<void> get_one(Cache* cache, Owner* owner, PageKey key, int* good) {
  const auto pin = co_await cache->get(owner, key, &Owner::load);
  if (pin.has_value() && (*pin)->bytes == key.page) ++*good;
}

Task<void> use_cache(Executor& home) {
  Cache cache(100'000);
  Owner owner{.home = home};
  int good = 0;
  // Many want the same: it is loaded once.
  for (int i = 0; i < 5; ++i) spawn(get_one(&cache, &owner, {.branch = 1, .page = 1000}, &good));
  co_await home.sleep_for(std::chrono::milliseconds(5));
  CHECK(good == 5);
  CHECK(owner.loads == 1);
  // What is changed or pinned stays, the rest goes, oldest first.
  auto pinned = co_await cache.get(&owner, PageKey{.branch = 1, .page = 20'000}, &Owner::load);
  CHECK(pinned.has_value());
  for (PageNumber page = 30'000; page < 30'010; ++page) {
    auto pin = co_await cache.get(&owner, PageKey{.branch = 1, .page = page}, &Owner::load);
    CHECK(pin.has_value());
    if (page < 30'002) cache.change({.branch = 1, .page = page}, page);
  }
  CHECK(cache.changed_count() == 2);
  CHECK(cache.bytes() <= 100'000);
  CHECK(cache.find({.branch = 1, .page = 20'000}));
  CHECK(cache.find({.branch = 1, .page = 30'000}));
  CHECK(cache.find({.branch = 1, .page = 30'001}));
  CHECK_FALSE(cache.find({.branch = 1, .page = 30'002}));
  cache.stored(30'000);
  CHECK(cache.changed_count() == 1);
  // An error is everybody's who waited, and nobody's who comes later.
  owner.fails = true;
  const auto failed = co_await cache.get(&owner, PageKey{.branch = 2, .page = 5}, &Owner::load);
  CHECK(failed.error() == Error::kMediumError);
  owner.fails = false;
  const auto later = co_await cache.get(&owner, PageKey{.branch = 2, .page = 5}, &Owner::load);
  CHECK(later.has_value());
}

}  // namespace

TEST_CASE("a bounded cache keeps what it must and forgets what it may", "[pool]") {
  testing::run_in_world(1, [](Executor& home) { return use_cache(home); });
}

}  // namespace sandbay::pool::parts_test
