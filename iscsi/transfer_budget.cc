// Grants pieces, at once or in the order of the claims that wait.
#include "iscsi/transfer_budget.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sandbay::iscsi {
namespace {

constexpr std::size_t kLeastShare = std::size_t{1} << 20;
constexpr std::size_t kMostShare = std::size_t{32} << 20;

}  // namespace

TransferBudget::TransferBudget(const BufferPool& pool) noexcept
    : pool_(pool), share_(std::clamp(pool.limit_bytes() / 16, kLeastShare, kMostShare)) {}

TransferBudget::~TransferBudget() { assert(held_ == 0 && waiting_ == 0); }

void TransferBudget::remove(Part& part) {
  assert(part.held == 0 && part.waiting.empty());
  std::erase(parts_, &part);
}

// The share shrinks with what is left of the three quarters of the pool that transfers may fill:
// however many peers hold on to theirs, something is left for the next one.
bool TransferBudget::fits(const Part& part, std::size_t byte_count) const noexcept {
  if (part.held == 0) return true;
  std::size_t share = share_;
  if (part.in_pool) {
    const std::size_t most = pool_.limit_bytes() / 4 * 3;
    const std::size_t left = most - std::min(most, pool_.used_bytes() + pool_.reserved_bytes());
    share = std::min(share, left / 8);
  }
  return part.held + byte_count <= share && held_ + byte_count <= 2 * share_;
}

bool TransferBudget::take(Part& part, Claim& claim, std::size_t byte_count) {
  assert(!claim.waiting && byte_count > 0);
  if (part.waiting.empty() && fits(part, byte_count)) {
    part.held += byte_count;
    held_ += byte_count;
    return true;
  }
  claim.byte_count = byte_count;
  claim.waiting = true;
  claim.urgent = false;
  part.waiting.push_back(&claim);
  ++waiting_;
  return false;
}

void TransferBudget::give(Part& part, Claim& claim, std::size_t byte_count) {
  if (byte_count == 0) return;
  assert(byte_count <= part.held && part.held <= held_);
  part.held -= byte_count;
  held_ -= byte_count;
  if (std::exchange(claim.beyond_share, false)) part.exception = false;
  if (waiting_ > 0) serve();
}

void TransferBudget::withdraw(Part& part, Claim& claim) {
  if (!std::exchange(claim.waiting, false)) return;
  std::erase(part.waiting, &claim);
  --waiting_;
  if (waiting_ > 0) serve();  // The next one may need less.
}

void TransferBudget::make_urgent(Part& part, Claim& claim) {
  if (!claim.waiting || claim.urgent) return;
  claim.urgent = true;
  if (!part.exception) serve();
}

bool TransferBudget::serve_one(Part& part) {
  if (part.waiting.empty()) return false;
  auto place = part.waiting.begin();
  bool beyond_share = false;
  if (!fits(part, (*place)->byte_count)) {
    if (part.exception) return false;
    place = std::ranges::find_if(part.waiting, &Claim::urgent);
    if (place == part.waiting.end()) return false;
    beyond_share = true;
  }
  Claim& claim = **place;
  part.waiting.erase(place);
  --waiting_;
  part.held += claim.byte_count;
  held_ += claim.byte_count;
  claim.waiting = false;
  if (beyond_share) claim.beyond_share = part.exception = true;
  claim.granted(claim);  // May take, give and withdraw.
  return true;
}

void TransferBudget::serve() {
  if (std::exchange(serving_, true)) return;  // The outermost call looks again.
  bool served = true;
  while (served && waiting_ > 0) {
    served = false;
    ++next_part_;
    for (std::size_t index = 0; index < parts_.size(); ++index) {
      if (serve_one(*parts_[(next_part_ + index) % parts_.size()])) served = true;
    }
  }
  serving_ = false;
}

}  // namespace sandbay::iscsi
