// KeptLog: the newest entries of a log, in memory and in the metadata, numbered for as long as
// there is the group. EventLog and AuditLog are such logs.
//
// Bounded: the oldest go. Numbers begin at 1 and go up by one, also over restarts, so that a reader
// that says which was its last misses none unnoticed. Once it is open, entries are kept soon after
// they were added and many at once; nobody waits for that, unless by kept(), and a metadata disk
// that fails costs the next start what was not kept, and nothing else. Executor 0.
#pragma once

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <deque>
#include <expected>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "metadata/store.h"
#include "runtime/clock.h"
#include "runtime/executor.h"
#include "runtime/sync.h"

namespace sandbay::group {

// How entries stand in the metadata.
template <class Entry>
struct LogRecords {
  std::string_view prefix;
  std::string_view name;  // For messages: "events".
  std::string (*key)(std::uint64_t number) = nullptr;
  std::string (*encode)(const Entry& entry) = nullptr;
  std::expected<Entry, std::string> (*decode)(std::string_view text) = nullptr;
};

// An Entry has a `number`.
template <class Entry>
class KeptLog {
 public:
  KeptLog(LogRecords<Entry> records, std::size_t most_entries)
      : records_(records), most_entries_(most_entries) {}
  ~KeptLog() { assert(store_ == nullptr); }  // After close(), if it was opened.
  KeptLog(const KeptLog&) = delete;
  KeptLog& operator=(const KeptLog&) = delete;

  // Goes on where the store's entries end, before the first add(). What does not decode there is
  // left out and told: no start fails for a log. The store outlives close().
  Task<Error> open(metadata::Store& store);
  // Tries once more to keep what is not kept yet.
  Task<void> close();

  void add(Entry entry);  // Its number is set here.
  // Those with a greater number, oldest first.
  std::vector<Entry> since(std::uint64_t number) const {
    const auto first = std::ranges::upper_bound(entries_, number, {}, &Entry::number);
    return {first, entries_.end()};
  }
  std::uint64_t total() const noexcept { return total_; }
  // Everything that was added is kept; false: not before the deadline.
  Task<bool> kept(TimePoint deadline);

 private:
  static constexpr std::size_t kEntriesAtOnce = 256;
  // What happens within this time is written together.
  static constexpr Duration kGather = std::chrono::milliseconds(50);
  static constexpr Duration kTryAgainAfter = std::chrono::seconds(10);

  Task<void> write_out();
  metadata::Batch next_batch(std::uint64_t* last, std::uint64_t* oldest) const;

  const LogRecords<Entry> records_;
  const std::size_t most_entries_;
  std::deque<Entry> entries_;
  std::uint64_t total_ = 0;
  metadata::Store* store_ = nullptr;
  std::uint64_t oldest_kept_ = 1;  // Below this number the store has none.
  std::uint64_t kept_ = 0;         // Up to this number all are in the store or too old for it.
  bool writing_ = false;
  bool failing_ = false;
  Event closing_;
  Condition moved_;
  Gate gate_;
};

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
