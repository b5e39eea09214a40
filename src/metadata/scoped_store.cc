// Keys get the prefix on their way down, and lose it on their way up.
#include "metadata/scoped_store.h"

namespace sandbay::metadata {

Task<Result<std::optional<std::string>>> ScopedStore::get(std::string key) {
  co_return co_await store_.get(prefix_ + key);
}

Task<Result<std::vector<Entry>>> ScopedStore::list(std::string prefix, std::string after,
                                                   std::size_t limit) {
  if (!after.empty()) after = prefix_ + after;
  auto entries = co_await store_.list(prefix_ + prefix, std::move(after), limit);
  if (!entries) co_return entries;
  for (Entry& entry : *entries) entry.first.erase(0, prefix_.size());
  co_return entries;
}

Task<Error> ScopedStore::commit(Batch batch) {
  Batch scoped;
  for (const Batch::Change& change : batch.changes()) {
    switch (change.kind) {
      case Batch::Kind::kPut:
        scoped.put(prefix_ + change.key, change.value);
        break;
      case Batch::Kind::kErase:
        scoped.erase(prefix_ + change.key);
        break;
      case Batch::Kind::kErasePrefix:
        scoped.erase_prefix(prefix_ + change.key);
        break;
    }
  }
  co_return co_await store_.commit(std::move(scoped));
}

Task<void> ScopedStore::close() { co_return; }

}  // namespace sandbay::metadata
