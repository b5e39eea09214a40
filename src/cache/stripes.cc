// Counting dirty blocks by stripe.
#include "cache/stripes.h"

#include <algorithm>
#include <cassert>

namespace sandbay::cache {

Stripes::Stripes(std::uint64_t stripe_blocks, std::uint64_t block_count)
    : stripe_blocks_(stripe_blocks), block_count_(block_count) {
  assert(stripe_blocks > 0);
}

Extent Stripes::extent_of(std::uint64_t number) const noexcept {
  const Lba first = number * stripe_blocks_;
  assert(first < block_count_);
  return {.first = first, .block_count = std::min(stripe_blocks_, block_count_ - first)};
}

void Stripes::add(Extent dirty, TimePoint now) {
  dirty_blocks_ += dirty.block_count;
  added_blocks_ += dirty.block_count;
  while (dirty.block_count > 0) {
    const std::uint64_t number = stripe_of(dirty.first);
    const std::uint64_t count = std::min(extent_of(number).end(), dirty.end()) - dirty.first;
    const auto [at, is_new] = stripes_.try_emplace(number);
    Stripe& stripe = at->second;
    if (is_new) {
      stripe.number = number;
      stripe.since = now;
      stripe.born = added_blocks_;
      link(stripe);
    }
    stripe.dirty_blocks += count;
    assert(stripe.dirty_blocks <= stripe_blocks_);
    if (full(stripe) && !stripe.in_flight) full_.insert(number);
    dirty.first += count;
    dirty.block_count -= count;
  }
}

void Stripes::remove(Extent clean) {
  assert(dirty_blocks_ >= clean.block_count);
  dirty_blocks_ -= clean.block_count;
  while (clean.block_count > 0) {
    const std::uint64_t number = stripe_of(clean.first);
    const std::uint64_t count = std::min(extent_of(number).end(), clean.end()) - clean.first;
    const auto at = stripes_.find(number);
    assert(at != stripes_.end() && at->second.dirty_blocks >= count);
    Stripe& stripe = at->second;
    if (full(stripe)) full_.erase(number);
    stripe.dirty_blocks -= count;
    if (stripe.dirty_blocks == 0 && !stripe.in_flight) {
      set_error(stripe, Error::kNone);
      unlink(stripe);
      stripes_.erase(at);
    }
    clean.first += count;
    clean.block_count -= count;
  }
}

Stripe* Stripes::next(std::uint64_t number) {
  auto at = stripes_.lower_bound(number);
  while (at != stripes_.end() && at->second.dirty_blocks == 0) ++at;
  return at == stripes_.end() ? nullptr : &at->second;
}

Stripe* Stripes::next_full(std::uint64_t number) {
  const auto at = full_.lower_bound(number);
  return at == full_.end() ? nullptr : find(*at);
}

Stripe* Stripes::next_in_flight(std::uint64_t number) {
  auto at = stripes_.lower_bound(number);
  while (at != stripes_.end() && !at->second.in_flight) ++at;
  return at == stripes_.end() ? nullptr : &at->second;
}

Stripe* Stripes::find(std::uint64_t number) {
  const auto at = stripes_.find(number);
  return at == stripes_.end() ? nullptr : &at->second;
}

void Stripes::begin(Stripe& stripe) {
  assert(!stripe.in_flight);
  unlink(stripe);
  full_.erase(stripe.number);
  stripe.in_flight = true;
  stripe.flight = ++flights_;
}

void Stripes::end(Stripe& stripe, TimePoint now, Error error) {
  assert(stripe.in_flight);
  stripe.in_flight = false;
  set_error(stripe, stripe.dirty_blocks > 0 ? error : Error::kNone);
  if (stripe.dirty_blocks == 0) {
    stripes_.erase(stripe.number);
    return;
  }
  stripe.since = now;
  stripe.born = added_blocks_;
  link(stripe);
  if (full(stripe)) full_.insert(stripe.number);
}

void Stripes::set_error(Stripe& stripe, Error error) noexcept {
  failed_ += error != Error::kNone ? 1 : 0;
  failed_ -= stripe.error != Error::kNone ? 1 : 0;
  stripe.error = error;
}

void Stripes::link(Stripe& stripe) {
  stripe.newer = nullptr;
  stripe.older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = &stripe;
  newest_ = &stripe;
}

void Stripes::unlink(Stripe& stripe) {
  (stripe.older != nullptr ? stripe.older->newer : oldest_) = stripe.newer;
  (stripe.newer != nullptr ? stripe.newer->older : newest_) = stripe.older;
  stripe.older = nullptr;
  stripe.newer = nullptr;
}

}  // namespace sandbay::cache
