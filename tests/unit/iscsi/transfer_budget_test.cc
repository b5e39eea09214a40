// Limits of connections and sessions, by the budget alone.
#include <catch2/catch.hpp>

#include <vector>

#include "../block/on_executor.h"
#include "iscsi/transfer_budget.h"

namespace sandbay::iscsi::test {
namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20;
using Budget = TransferBudget;

// Notes the order in which waiting claims are granted.
struct Taker {
  Budget::Claim claim;
  std::vector<Taker*>* granted = nullptr;
};

Budget::Claim& prepared(Taker& taker, std::vector<Taker*>& granted) {
  taker.granted = &granted;
  taker.claim.owner = &taker;
  taker.claim.granted = [](Budget::Claim& claim) {
    Taker& self = *static_cast<Taker*>(claim.owner);
    self.granted->push_back(&self);
  };
  return taker.claim;
}

Task<void> run_check(Executor* home, void (*check)(BufferPool& pool)) {
  BufferPool pool(*home, 64 * kMebibyte);
  check(pool);
  co_return;
}

// A pool of 64 MiB: a share is 4 MiB.
void with_pool(void (*check)(BufferPool& pool)) {
  testing::run_in_world(1, [check](Executor& home) { return run_check(&home, check); });
}

void shares(BufferPool& pool) {
  Budget budget(pool);
  Budget::Part one, other, third;
  budget.add(one);
  budget.add(other);
  budget.add(third);
  std::vector<Taker*> granted;
  Taker holder, waiter, second_holder, third_holder;
  for (int i = 0; i < 4; ++i) CHECK(budget.take(one, prepared(holder, granted), kMebibyte));
  CHECK_FALSE(budget.take(one, prepared(waiter, granted), kMebibyte));
  // A sibling has a share of its own, and the next one of both what is left of the session's: one
  // piece, as anybody who has nothing.
  for (int i = 0; i < 4; ++i)
    CHECK(budget.take(other, prepared(second_holder, granted), kMebibyte));
  CHECK(budget.take(third, prepared(third_holder, granted), kMebibyte));
  CHECK_FALSE(budget.take(third, prepared(third_holder, granted), kMebibyte));
  budget.withdraw(third, third_holder.claim);
  budget.give(third, third_holder.claim, kMebibyte);
  CHECK(granted.empty());
  budget.give(one, holder.claim, kMebibyte);
  CHECK(granted == std::vector<Taker*>{&waiter});
  budget.give(one, holder.claim, 3 * kMebibyte);
  budget.give(one, waiter.claim, kMebibyte);
  budget.give(other, second_holder.claim, 4 * kMebibyte);
  CHECK(budget.held() == 0);
  for (Budget::Part* part : {&one, &other, &third}) budget.remove(*part);
}

// Promises to others make shares smaller, so that something is always left.
void less_for_each(BufferPool& pool) {
  CHECK(pool.try_reserve(40 * kMebibyte));  // 8 MiB are left for transfers: 1 MiB for each.
  Budget budget(pool);
  Budget::Part part;
  budget.add(part);
  std::vector<Taker*> granted;
  Taker first, second;
  CHECK(budget.take(part, prepared(first, granted), kMebibyte));
  CHECK_FALSE(budget.take(part, prepared(second, granted), kMebibyte));
  budget.give(part, first.claim, kMebibyte);
  CHECK(granted == std::vector<Taker*>{&second});
  budget.give(part, second.claim, kMebibyte);
  budget.remove(part);
  pool.unreserve(40 * kMebibyte);
}

void urgent_ones(BufferPool& pool) {
  Budget budget(pool);
  Budget::Part part;
  budget.add(part);
  std::vector<Taker*> granted;
  Taker holder, patient, urgent, next;
  CHECK(budget.take(part, prepared(holder, granted), 4 * kMebibyte));
  CHECK_FALSE(budget.take(part, prepared(patient, granted), kMebibyte));
  CHECK_FALSE(budget.take(part, prepared(urgent, granted), kMebibyte));
  CHECK_FALSE(budget.take(part, prepared(next, granted), kMebibyte));
  budget.make_urgent(part, urgent.claim);
  CHECK(granted == std::vector<Taker*>{&urgent});
  budget.make_urgent(part, next.claim);  // One at a time.
  CHECK(granted.size() == 1);
  budget.give(part, urgent.claim, kMebibyte);
  CHECK(granted == std::vector<Taker*>{&urgent, &next});
  budget.give(part, holder.claim, kMebibyte);
  CHECK(granted.size() == 2);  // 4 MiB are held still.
  budget.give(part, next.claim, kMebibyte);
  CHECK(granted == std::vector<Taker*>{&urgent, &next, &patient});
  budget.give(part, holder.claim, 3 * kMebibyte);
  budget.give(part, patient.claim, kMebibyte);
  budget.remove(part);
}

}  // namespace

TEST_CASE("A connection holds its share and a session twice that", "[budget][I-2][I-3]") {
  with_pool(shares);
}
TEST_CASE("Shares shrink with what is left of the pool", "[budget][I-2]") {
  with_pool(less_for_each);
}
TEST_CASE("One urgent claim at a time is served beyond the share", "[budget][I-2]") {
  with_pool(urgent_ones);
}

}  // namespace sandbay::iscsi::test
