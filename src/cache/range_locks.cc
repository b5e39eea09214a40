// The tree of holds: a treap whose nodes summarize their subtrees.
#include "cache/range_locks.h"

#include <algorithm>

namespace sandbay::cache {

// Heap order: the sequence, mixed.
std::uint64_t RangeLocks::weight(const Hold& hold) noexcept {
  std::uint64_t mixed = hold.sequence_ * 0x9e3779b97f4a7c15U;
  mixed ^= mixed >> 32;
  return mixed * 0xd6e8feb86659fd93U;
}

bool RangeLocks::before(const Hold& one, const Hold& other) noexcept {
  if (one.extent_.first != other.extent_.first) return one.extent_.first < other.extent_.first;
  return one.sequence_ < other.sequence_;
}

void RangeLocks::update(Hold& hold) noexcept {
  hold.subtree_end_ = hold.extent_.end();
  for (const Kind kind : {Kind::kRead, Kind::kRecord, Kind::kChange}) {
    Hold::Sequences own;
    if (excludes(hold.kind_, kind)) own = {.oldest = hold.sequence_, .newest = hold.sequence_};
    hold.excluding_[std::to_underlying(kind)] = own;
  }
  for (const Hold* const child : {hold.left_, hold.right_}) {
    if (child == nullptr) continue;
    hold.subtree_end_ = std::max(hold.subtree_end_, child->subtree_end_);
    for (std::size_t i = 0; i < hold.excluding_.size(); ++i) {
      Hold::Sequences& all = hold.excluding_[i];
      all.oldest = std::min(all.oldest, child->excluding_[i].oldest);
      all.newest = std::max(all.newest, child->excluding_[i].newest);
    }
  }
}

void RangeLocks::insert_into(Hold*& tree, Hold& hold) noexcept {
  if (tree == nullptr || weight(hold) > weight(*tree)) {
    split(tree, hold, hold.left_, hold.right_);
    tree = &hold;
  } else {
    insert_into(before(hold, *tree) ? tree->left_ : tree->right_, hold);
  }
  update(*tree);
}

void RangeLocks::remove_from(Hold*& tree, Hold& hold) noexcept {
  assert(tree != nullptr);
  if (tree == &hold) {
    tree = merge(hold.left_, hold.right_);
    return;
  }
  remove_from(before(hold, *tree) ? tree->left_ : tree->right_, hold);
  update(*tree);
}

// Splits the tree into the holds before `border` and the rest.
void RangeLocks::split(Hold* tree, const Hold& border, Hold*& less, Hold*& more) noexcept {
  if (tree == nullptr) {
    less = more = nullptr;
    return;
  }
  if (before(*tree, border)) {
    less = tree;
    split(tree->right_, border, tree->right_, more);
  } else {
    more = tree;
    split(tree->left_, border, less, tree->left_);
  }
  update(*tree);
}

RangeLocks::Hold* RangeLocks::merge(Hold* less, Hold* more) noexcept {
  if (less == nullptr || more == nullptr) return less != nullptr ? less : more;
  Hold* top = less;
  if (weight(*less) > weight(*more)) {
    less->right_ = merge(less->right_, more);
  } else {
    more->left_ = merge(less, more->left_);
    top = more;
  }
  update(*top);
  return top;
}

void RangeLocks::search(Hold* tree, Kind kind, const Extent& extent, std::uint64_t sequence,
                        Hold*& found) noexcept {
  if (tree == nullptr || tree->subtree_end_ <= extent.first) return;
  const Hold::Sequences& there = tree->excluding_[std::to_underlying(kind)];
  if (there.oldest >= sequence || (found != nullptr && there.newest < found->sequence_)) return;
  if (tree->extent_.first < extent.end()) {
    const bool newer = found == nullptr || tree->sequence_ > found->sequence_;
    if (newer && tree->sequence_ < sequence && excludes(tree->kind_, kind) &&
        tree->extent_.overlaps(extent)) {
      found = tree;
    }
    search(tree->right_, kind, extent, sequence, found);
  }
  search(tree->left_, kind, extent, sequence, found);
}

}  // namespace sandbay::cache
