// What the functions of a KeptLog do: for the one file that instantiates it for its entries.
#pragma once

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "group/kept_log.h"

namespace sandbay::group {

template <class Entry>
Task<Error> KeptLog<Entry>::open(metadata::Store& store) {
  assert(store_ == nullptr && total_ == 0);
  std::string after;
  for (;;) {
    const auto part = co_await store.list(std::string(records_.prefix), after, kEntriesAtOnce);
    if (!part) co_return part.error();
    for (const auto& [key, value] : *part) {
      auto entry = records_.decode(value);
      if (!entry || records_.key(entry->number) != key) {
        spdlog::warn("metadata {} {}: left out", key, entry ? "has another number" : entry.error());
        continue;
      }
      if (entries_.empty()) oldest_kept_ = entry->number;
      total_ = entry->number;
      entries_.push_back(std::move(*entry));
      if (entries_.size() > most_entries_) entries_.pop_front();
    }
    if (part->size() < kEntriesAtOnce) break;
    after = part->back().first;
  }
  if (entries_.empty()) oldest_kept_ = total_ + 1;
  kept_ = total_;
  store_ = &store;
  co_return Error::kNone;
}

template <class Entry>
Task<void> KeptLog<Entry>::close() {
  closing_.set();
  co_await gate_.close();
  if (store_ == nullptr) co_return;
  while (kept_ < total_) {
    std::uint64_t last = 0;
    std::uint64_t oldest = 0;
    const Error error = co_await store_->commit(next_batch(&last, &oldest));
    if (error != Error::kNone) break;
    kept_ = last;
    oldest_kept_ = oldest;
  }
  store_ = nullptr;
}

template <class Entry>
void KeptLog<Entry>::add(Entry entry) {
  entry.number = ++total_;
  entries_.push_back(std::move(entry));
  if (entries_.size() > most_entries_) entries_.pop_front();
  if (store_ == nullptr || writing_ || !gate_.enter()) return;
  writing_ = true;
  spawn(write_out());
}

// The oldest that are not kept yet, and the end of as many in the store as have become too old.
template <class Entry>
metadata::Batch KeptLog<Entry>::next_batch(std::uint64_t* last, std::uint64_t* oldest) const {
  metadata::Batch batch;
  const auto first = std::ranges::upper_bound(entries_, kept_, {}, &Entry::number);
  *last = total_;
  std::size_t count = 0;
  for (auto entry = first; entry != entries_.end() && count < kEntriesAtOnce; ++entry, ++count) {
    batch.put(records_.key(entry->number), records_.encode(*entry));
    *last = entry->number;
  }
  const std::uint64_t begin = entries_.empty() ? total_ + 1 : entries_.front().number;
  *oldest = std::max(begin, oldest_kept_);
  for (std::uint64_t number = oldest_kept_; number < std::min(begin, kept_ + 1); ++number) {
    batch.erase(records_.key(number));
  }
  return batch;
}

template <class Entry>
Task<void> KeptLog<Entry>::write_out() {
  Executor& home = Executor::current();
  Duration pause = kGather;
  while (kept_ < total_ && !closing_.is_set()) {
    co_await closing_.wait_until(home.now() + pause);
    if (closing_.is_set()) break;
    std::uint64_t last = 0;
    std::uint64_t oldest = 0;
    const Error error = co_await store_->commit(next_batch(&last, &oldest));
    pause = error == Error::kNone ? kGather : kTryAgainAfter;
    if (error != Error::kNone && !failing_) {
      spdlog::error("{} are not kept over a restart: the metadata cannot be written: {}",
                    records_.name, describe(error));
    }
    failing_ = error != Error::kNone;
    if (failing_) continue;
    kept_ = last;
    oldest_kept_ = oldest;
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
