// Stripes: which stripes of a device have dirty blocks, how many, and for how long.
//
// A stripe is a multiple of the optimal transfer of the device below; without one, of a fixed size.
// What is in order of address serves the elevator, what is in order of time the age limit. Nothing
// is allocated from the heap in the steady state.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <set>

#include "block/block_device.h"
#include "runtime/clock.h"

namespace sandbay::cache {

struct Stripe {
  std::uint64_t number = 0;
  std::uint64_t dirty_blocks = 0;
  TimePoint since{};           // Its oldest dirty block is no older.
  std::uint64_t born = 0;      // How many blocks had become dirty by then.
  bool in_flight = false;      // Being destaged: from the write until a flush has covered it.
  std::uint64_t flight = 0;    // Which flight; they are numbered over all stripes.
  Error error = Error::kNone;  // How the last one ended.
  Stripe* older = nullptr;
  Stripe* newer = nullptr;
};

class Stripes {
 public:
  Stripes(std::uint64_t stripe_blocks, std::uint64_t block_count);

  void add(Extent dirty, TimePoint now);
  void remove(Extent clean);

  // The first with dirty blocks from stripe `number` on; null if there is none.
  Stripe* next(std::uint64_t number);
  // The first that is full of dirty blocks and not in flight.
  Stripe* next_full(std::uint64_t number);
  bool any_full() const noexcept { return !full_.empty(); }
  Stripe* next_in_flight(std::uint64_t number);
  std::uint64_t flights() const noexcept { return flights_; }  // Begun so far.
  Stripe* oldest() noexcept { return oldest_; }                // Not in flight.
  Stripe* find(std::uint64_t number);

  // A stripe stays here while it is in flight, dirty or not.
  void begin(Stripe& stripe);
  void end(Stripe& stripe, TimePoint now, Error error = Error::kNone);
  // Dirty stripes whose last flight has failed.
  std::uint64_t failed() const noexcept { return failed_; }

  bool full(const Stripe& stripe) const noexcept {
    return stripe.dirty_blocks == extent_of(stripe.number).block_count;
  }
  Extent extent_of(std::uint64_t number) const noexcept;
  std::uint64_t stripe_of(Lba lba) const noexcept { return lba / stripe_blocks_; }
  std::uint64_t stripe_blocks() const noexcept { return stripe_blocks_; }
  // How many blocks have become dirty since its oldest.
  std::uint64_t youth(const Stripe& stripe) const noexcept { return added_blocks_ - stripe.born; }
  std::uint64_t dirty_blocks() const noexcept { return dirty_blocks_; }

 private:
  void set_error(Stripe& stripe, Error error) noexcept;
  void link(Stripe& stripe);
  void unlink(Stripe& stripe);

  std::uint64_t stripe_blocks_;
  std::uint64_t block_count_;
  std::uint64_t dirty_blocks_ = 0;
  std::uint64_t added_blocks_ = 0;  // Ever.
  std::uint64_t flights_ = 0;
  std::uint64_t failed_ = 0;
  std::pmr::unsynchronized_pool_resource memory_;
  std::pmr::map<std::uint64_t, Stripe> stripes_{&memory_};
  std::pmr::set<std::uint64_t> full_{&memory_};
  Stripe* oldest_ = nullptr;
  Stripe* newest_ = nullptr;
};

}  // namespace sandbay::cache
