// Books: a metadata store in a map, for what keeps its books there. Commits can be made to fail and
// be watched, and what was committed can be looked at and put back.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "metadata/store.h"

namespace sandbay::group::testing {

// Entries in memory. Commits fail while it is told so.
class Books final : public metadata::Store {
 public:
  using Entries = std::map<std::string, std::string>;

  explicit Books(Executor& home) : home_(home) {}
  Executor& home() const noexcept override { return home_; }
  Task<Result<std::optional<std::string>>> get(std::string key) override {
    const auto found = entries.find(key);
    if (found == entries.end()) co_return std::nullopt;
    co_return found->second;
  }
  Task<Result<std::vector<metadata::Entry>>> list(std::string prefix, std::string after,
                                                  std::size_t) override {
    std::vector<metadata::Entry> list;
    for (const auto& [key, value] : entries) {
      if (key.starts_with(prefix) && key > after) list.emplace_back(key, value);
    }
    co_return list;
  }
  Task<Error> commit(metadata::Batch batch) override {
    if (failing) co_return Error::kHardware;
    if (observer) observer();
    for (const metadata::Batch::Change& change : batch.changes()) {
      if (change.kind == metadata::Batch::Kind::kPut) entries[change.key] = change.value;
      if (change.kind == metadata::Batch::Kind::kErase) entries.erase(change.key);
    }
    if (observer) observer();
    co_return Error::kNone;
  }
  bool in_doubt() const noexcept override { return false; }
  Task<void> close() override { co_return; }

  bool failing = false;
  std::function<void()> observer;  // Before and after each commit.
  Entries entries;

 private:
  Executor& home_;
};

}  // namespace sandbay::group::testing
