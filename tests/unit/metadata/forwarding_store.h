// ForwardingStore: a metadata store for tests that passes everything on to another one. Tests
// override commit() to hold it, fail it or count it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "metadata/store.h"

namespace sandbay::testing {

class ForwardingStore : public metadata::Store {
 public:
  explicit ForwardingStore(metadata::Store& below) : below_(below) {}
  Executor& home() const noexcept override { return below_.home(); }
  Task<Result<std::optional<std::string>>> get(std::string key) override {
    return below_.get(std::move(key));
  }
  Task<Result<std::vector<metadata::Entry>>> list(std::string prefix, std::string after,
                                                  std::size_t limit) override {
    return below_.list(std::move(prefix), std::move(after), limit);
  }
  bool in_doubt() const noexcept override { return below_.in_doubt(); }
  Task<void> close() override { return below_.close(); }

 protected:
  metadata::Store& below_;
};

}  // namespace sandbay::testing
