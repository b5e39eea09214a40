// What the functions of a KeptLog do: for the one file that instantiates it for its entries.
#pragma once

#include <algorithm>
#include <cassert>
#include <utility>

#include "group/kept_log.h"
#include "group/log.h"

namespace sandbay::group {

template <class Entry>
Task<Error> KeptLog<Entry>::open(metadata::Store& store) {
  assert(store_ == nullptr && total_ == 0);
  const auto all = co_await metadata::list_all(store, std::string(records_.prefix));
  if (!all) co_return all.error();
  for (const auto& [key, value] : *all) {
    auto entry = records_.decode(value);
    if (!entry || records_.key(entry->number) != key) {
      log_warning("metadata {} {}: left out", key, entry ? "has another number" : entry.error());
      continue;
    }
    total_ = entry->number;
    begun_ = total_;
    push(std::move(*entry));
  }
  kept_ = total_;
  store_ = &store;
  co_return Error::kNone;
}

template <class Entry>
Task<void> KeptLog<Entry>::close() {
  closing_.set();
  co_await gate_.close();
  if (store_ == nullptr) co_return;
  while (has_work()) {
    Part part = next_part();
    const Error error = co_await store_->commit(std::move(part.batch));
    if (error != Error::kNone) break;
    take_over(part);
  }
  store_ = nullptr;
}

template <class Entry>
void KeptLog<Entry>::add(Entry entry) {
  entry.number = ++total_;
  push(std::move(entry));
  if (store_ == nullptr || writing_ || !gate_.enter()) return;
  writing_ = true;
  spawn(write_out());
}

template <class Entry>
void KeptLog<Entry>::push(Entry entry) {
  ++shares_[sharer_of(entry)];
  entries_.push_back(std::move(entry));
  if (entries_.size() > most_entries_) drop_one();
}

// The oldest of those that have the largest share.
template <class Entry>
void KeptLog<Entry>::drop_one() {
  const std::size_t most =
      std::ranges::max_element(shares_, {}, [](const auto& share) { return share.second; })->second;
  auto victim = entries_.begin();
  auto share = shares_.find(sharer_of(*victim));
  while (share->second != most) share = shares_.find(sharer_of(*++victim));
  if (victim->number <= begun_) gone_.push_back(records_.key(victim->number));
  if (records_.replaced != nullptr && victim->number > kept_) {
    if (auto key = records_.replaced(*victim); !key.empty()) gone_.push_back(std::move(key));
  }
  if (--share->second == 0) shares_.erase(share);
  entries_.erase(victim);
}

// The oldest that are not kept yet, and the end of those that were dropped.
template <class Entry>
KeptLog<Entry>::Part KeptLog<Entry>::next_part() {
  Part part{.last = total_};
  // First: what takes the place of a record may have been dropped before it was stored.
  part.erased = std::min(gone_.size(), kEntriesAtOnce);
  for (std::size_t i = 0; i < part.erased; ++i) part.batch.erase(gone_[i]);
  const auto first = std::ranges::upper_bound(entries_, kept_, {}, &Entry::number);
  std::size_t count = 0;
  for (auto entry = first; entry != entries_.end(); ++entry) {
    if (count++ == kEntriesAtOnce) {
      part.last = entry->number - 1;
      break;
    }
    part.batch.put(records_.key(entry->number), records_.encode(*entry));
    const std::string replaced =
        records_.replaced == nullptr ? std::string() : records_.replaced(*entry);
    if (!replaced.empty()) part.batch.erase(replaced);
  }
  begun_ = std::max(begun_, part.last);
  return part;
}

template <class Entry>
void KeptLog<Entry>::take_over(const Part& part) {
  kept_ = part.last;
  gone_.erase(gone_.begin(), gone_.begin() + static_cast<std::ptrdiff_t>(part.erased));
}

template <class Entry>
Task<void> KeptLog<Entry>::write_out() {
  Executor& home = Executor::current();
  Duration pause = kGather;
  while (has_work() && !closing_.is_set()) {
    co_await closing_.wait_until(home.now() + pause);
    if (closing_.is_set()) break;
    Part part = next_part();
    const Error error = co_await store_->commit(std::move(part.batch));
    pause = error == Error::kNone ? kGather : kTryAgainAfter;
    if (error != Error::kNone && !failing_) {
      log_error("{} are not kept over a restart: the metadata cannot be written: {}", records_.name,
                describe(error));
    }
    failing_ = error != Error::kNone;
    if (failing_) continue;
    take_over(part);
    moved_.notify_all();
  }
  writing_ = false;
  gate_.leave();
}

template <class Entry>
Task<bool> KeptLog<Entry>::kept(TimePoint deadline) {
  while (kept_ < total_) {
    if (store_ == nullptr) co_return false;
    const bool in_time = co_await moved_.wait_until(deadline);
    if (!in_time) co_return kept_ >= total_;
  }
  co_return true;
}

}  // namespace sandbay::group
