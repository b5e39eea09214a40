// ScopedStore: the part of a store whose keys begin with a prefix, as a store of its own: whoever
// has it sees and changes nothing else. Several may share one store, and commits of all of them are
// in one order.
#pragma once

#include <string>

#include "metadata/store.h"

namespace sandbay::metadata {

class ScopedStore final : public Store {
 public:
  // Borrows the store. `prefix` may be empty: then it is all of it.
  ScopedStore(Store& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}

  const std::string& prefix() const noexcept { return prefix_; }

  Executor& home() const noexcept override { return store_.home(); }
  Task<Result<std::optional<std::string>>> get(std::string key) override;
  Task<Result<std::vector<Entry>>> list(std::string prefix, std::string after,
                                        std::size_t limit) override;
  Task<Error> commit(Batch batch) override;
  bool in_doubt() const noexcept override { return store_.in_doubt(); }
  Task<void> close() override;  // The whole store is closed by whoever owns it.

 private:
  Store& store_;
  std::string prefix_;
};

}  // namespace sandbay::metadata
