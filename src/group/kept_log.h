// KeptLog: the newest entries of a log, in memory and in the metadata, numbered for as long as
// there is the group. EventLog and AuditLog are such logs.
//
// Bounded: when it is full, the oldest entry of the sharer with the most entries is dropped, so
// that nobody who adds much pushes out what others have added. Numbers begin at 1 and go up by one,
// also over restarts, so that a reader that says which was its last misses none unnoticed. Once it
// is open, entries are kept soon after they were added and many at once; nobody waits for that,
// unless by kept(), and a metadata disk that fails costs the next start what was not kept, and
// nothing else. Executor 0.
//
// What its functions do stands in kept_log_functions.h, which only the files include that
// instantiate a log: half of this folder sees these declarations.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <deque>
#include <expected>
#include <map>
#include <string>
#include <string_view>
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
  // Whose share an entry counts for; null: all entries share one.
  std::string (*sharer)(const Entry& entry) = nullptr;
  // The key of a record that an entry takes the place of; empty: of none. It is erased in the batch
  // that stores the entry.
  std::string (*replaced)(const Entry& entry) = nullptr;
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

  // One commit.
  struct Part {
    metadata::Batch batch;
    std::uint64_t last = 0;  // Up to this number all are kept, or were dropped.
    std::size_t erased = 0;  // Of gone_, from its front.
  };

  void push(Entry entry);
  void drop_one();
  std::string sharer_of(const Entry& entry) const {
    return records_.sharer == nullptr ? std::string() : records_.sharer(entry);
  }
  bool has_work() const noexcept { return kept_ < total_ || !gone_.empty(); }
  Task<void> write_out();
  Part next_part();
  void take_over(const Part& part);

  const LogRecords<Entry> records_;
  const std::size_t most_entries_;
  std::deque<Entry> entries_;
  std::uint64_t total_ = 0;
  metadata::Store* store_ = nullptr;
  std::uint64_t kept_ = 0;   // Up to this number all are in the store, or were dropped.
  std::uint64_t begun_ = 0;  // Up to this number they may be in the store.
  std::map<std::string, std::size_t> shares_;  // How many entries each sharer has.
  std::deque<std::string> gone_;               // Keys that the store shall not have any more.
  bool writing_ = false;
  bool failing_ = false;
  Event closing_;
  Condition moved_;
  Gate gate_;
};

}  // namespace sandbay::group
