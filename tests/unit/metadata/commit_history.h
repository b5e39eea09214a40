// Commits whose traces in a store show which of them are there: batch n puts its number under
// "last", and a record of its own under two keys, so that a batch that is there by half shows.
// Every tenth batch erases an older one's records, so that erasing is on trial as well.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

#include <fmt/core.h>

#include "metadata/store.h"

namespace sandbay::metadata::testing {

inline std::string history_key(char half, std::uint64_t number) {
  return fmt::format("{}/{:08}", half, number);
}

inline Batch history_batch(std::uint64_t number, std::size_t value_bytes) {
  Batch batch;
  batch.put("last", std::to_string(number));
  batch.put(history_key('a', number),
            std::string(value_bytes, static_cast<char>('a' + number % 26)));
  batch.put(history_key('b', number), std::to_string(number));
  // Every tenth takes an older one away, whose number then stands in neither half.
  if (number % 10 == 0) {
    batch.erase(history_key('a', number - 5));
    batch.erase_prefix(history_key('b', number - 5));
  }
  return batch;
}

// Whether batch `number` left its records if the last one there is `last`.
inline bool should_be_there(std::uint64_t number, std::uint64_t last) {
  const bool erased = number % 10 == 5 && last >= number + 5;
  return number <= last && !erased;
}

// Asserts that exactly batches 1 … n are there, whole, and returns n. A failure names `life`.
inline Task<std::uint64_t> check_history(Store& store, std::uint64_t most, std::string life = {}) {
  const auto last = co_await store.get("last");
  if (!last.has_value()) FAIL(life << " cannot be read: " << describe(last.error()));
  std::uint64_t count = 0;
  if (last->has_value()) count = std::stoull(**last);
  bool whole = true;
  for (std::uint64_t number = 1; number <= most; ++number) {
    const auto first = co_await store.get(history_key('a', number));
    const auto second = co_await store.get(history_key('b', number));
    const bool expected = should_be_there(number, count);
    whole = whole && first.has_value() && second.has_value();
    whole = whole && first->has_value() == expected && second->has_value() == expected;
    if (expected && whole) whole = **second == std::to_string(number);
  }
  INFO(life);
  CHECK(count <= most);
  CHECK(whole);
  co_return count;
}

}  // namespace sandbay::metadata::testing
