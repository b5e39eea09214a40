// Store: where everything that was provisioned is kept (volumes, access records, reservations, page
// maps, group state). Keys are byte strings in byte order; changes are made in batches.
//
// A batch is atomic, and durable when its commit has ended with kNone. Batches take effect in the
// order in which they were committed, and a read sees every batch whose commit was asked for
// before it. After a crash exactly the batches whose commit had ended with kNone are there, and
// perhaps, in order and each whole or not at all, some of those that were in flight.
//
// A commit that ended with an error has not happened, and is undone durably before any other is
// accepted. Only while that cannot be done is the store in doubt: then a crash may bring the batch
// back, every call tries to undo it first, and fails where that fails.
//
// A store has a home executor; all calls are made there and end there.
#pragma once

#include <cassert>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/error.h"
#include "runtime/executor.h"
#include "runtime/task.h"

namespace sandbay::metadata {

inline constexpr std::size_t kLongestKey = 1024;                    // Bytes; the shortest has 1.
inline constexpr std::size_t kLongestValue = std::size_t{4} << 20;  // Bytes; may be empty.

using Entry = std::pair<std::string, std::string>;  // Key and value.

// Changes in the order in which they take effect.
class Batch {
 public:
  enum class Kind : unsigned char { kPut = 1, kErase = 2, kErasePrefix = 3 };
  struct Change {
    Kind kind = Kind::kPut;
    std::string key;  // Or the prefix.
    std::string value;
  };

  void put(std::string key, std::string value) {
    assert(!key.empty() && key.size() <= kLongestKey);
    assert(value.size() <= kLongestValue);
    changes_.push_back({Kind::kPut, std::move(key), std::move(value)});
  }
  // Nothing happens if the key is not there.
  void erase(std::string key) {
    assert(!key.empty() && key.size() <= kLongestKey);
    changes_.push_back({Kind::kErase, std::move(key), {}});
  }
  // Erases every key that begins with `prefix`; all keys if it is empty.
  void erase_prefix(std::string prefix) {
    assert(prefix.size() <= kLongestKey);
    changes_.push_back({Kind::kErasePrefix, std::move(prefix), {}});
  }

  bool empty() const noexcept { return changes_.empty(); }
  const std::vector<Change>& changes() const noexcept { return changes_; }

 private:
  std::vector<Change> changes_;
};

class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;  // Closed, or at least nothing is in flight.

  virtual Executor& home() const noexcept = 0;

  // The value, or nothing if the key is not there.
  virtual Task<Result<std::optional<std::string>>> get(std::string key) = 0;
  // The first `limit` (positive) entries in key order whose key begins with `prefix` and is greater
  // than `after`; an empty `after` begins at the first. Pass the last key to go on.
  virtual Task<Result<std::vector<Entry>>> list(std::string prefix, std::string after,
                                                std::size_t limit) = 0;
  virtual Task<Error> commit(Batch batch) = 0;
  // Whether a commit failed of which a crash now might leave the batch; see above.
  virtual bool in_doubt() const noexcept = 0;
  // Waits for what was asked for before, and closes. Every later call fails with kClosed.
  virtual Task<void> close() = 0;
};

// Every entry whose key begins with `prefix`; the store is asked for some at a time.
Task<Result<std::vector<Entry>>> list_all(Store& store, std::string prefix);

// The least byte string of at most kLongestKey + 1 bytes that is greater than every permitted key
// that begins with `prefix`.
std::string end_of_prefix(std::string_view prefix);

}  // namespace sandbay::metadata
