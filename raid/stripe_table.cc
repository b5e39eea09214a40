// A hash table of the stripes in use; waiters stand in one queue for both kinds of lock.
#include "raid/stripe_table.h"

#include <cassert>
#include <coroutine>

#include "runtime/executor.h"

namespace sandbay::raid {

struct StripeEntry::Waiter {
  StripeEntry& entry;
  bool shared;
  std::coroutine_handle<> handle{};
  Executor* executor = nullptr;
  Waiter* next = nullptr;

  bool free_now() const noexcept {
    if (entry.exclusive || entry.first_waiter != nullptr) return false;
    return shared || entry.readers == 0;
  }
  void take() const noexcept {
    if (shared) {
      ++entry.readers;
    } else {
      entry.exclusive = true;
    }
  }
  bool await_ready() const noexcept {
    if (!free_now()) return false;
    take();
    return true;
  }
  void await_suspend(std::coroutine_handle<> waiting) noexcept {
    handle = waiting;
    executor = &Executor::current();
    (entry.last_waiter != nullptr ? entry.last_waiter->next : entry.first_waiter) = this;
    entry.last_waiter = this;
  }
  void await_resume() const noexcept {}
};

StripeTable::StripeTable() : buckets_(std::make_unique<StripeEntry*[]>(kBuckets)) {}

StripeTable::~StripeTable() { assert(count_ == 0); }

StripeEntry* StripeTable::find(std::uint64_t stripe) const noexcept {
  StripeEntry* entry = buckets_[bucket(stripe)];
  while (entry != nullptr && entry->stripe != stripe) entry = entry->next;
  return entry;
}

StripeEntry& StripeTable::enter(std::uint64_t stripe) {
  StripeEntry* entry = find(stripe);
  if (entry == nullptr) {
    entry = new StripeEntry;
    entry->stripe = stripe;
    entry->next = buckets_[bucket(stripe)];
    buckets_[bucket(stripe)] = entry;
    ++count_;
  }
  ++entry->users;
  return *entry;
}

void StripeTable::leave(StripeEntry& entry) {
  assert(entry.users > 0);
  if (--entry.users > 0) return;
  assert(entry.readers == 0 && !entry.exclusive && entry.first_piece == nullptr);
  StripeEntry** link = &buckets_[bucket(entry.stripe)];
  while (*link != &entry) link = &(*link)->next;
  *link = entry.next;
  --count_;
  delete &entry;
}

Task<void> StripeTable::lock(StripeEntry& entry) {
  co_await StripeEntry::Waiter{.entry = entry, .shared = false};
}

Task<void> StripeTable::lock_shared(StripeEntry& entry) {
  co_await StripeEntry::Waiter{.entry = entry, .shared = true};
}

void StripeTable::unlock(StripeEntry& entry) {
  assert(entry.exclusive);
  entry.exclusive = false;
  admit(entry);
}

void StripeTable::unlock_shared(StripeEntry& entry) {
  assert(entry.readers > 0);
  --entry.readers;
  admit(entry);
}

// Gives the stripe to whoever is next: one writer, or all readers up to the next writer.
void StripeTable::admit(StripeEntry& entry) {
  while (entry.first_waiter != nullptr && !entry.exclusive) {
    StripeEntry::Waiter* waiter = entry.first_waiter;
    if (!waiter->shared && entry.readers > 0) return;
    entry.first_waiter = waiter->next;
    if (entry.first_waiter == nullptr) entry.last_waiter = nullptr;
    waiter->take();
    waiter->executor->post(waiter->handle);
  }
}

}  // namespace sandbay::raid
