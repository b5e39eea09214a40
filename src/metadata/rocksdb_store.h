// RocksDbStore: the store of a running daemon. RocksDB blocks, so it lives on a thread of its own;
// requests cross to it through a queue and their answers come back as messages.
//
// All commits that stand in the queue together become one synced write, in order.
#pragma once

#include <expected>
#include <memory>
#include <string>

#include "metadata/store.h"

namespace rocksdb {
class Env;
}

namespace sandbay::metadata {

struct RocksDbOptions {
  std::string path;             // A directory; made if it is not there, its parent is.
  rocksdb::Env* env = nullptr;  // For tests: how RocksDB sees files; null: the system's.
};

// Called on `home`. Fails with one line that names the directory and what is wrong with it: in use
// by another process, not a directory, damaged.
Task<std::expected<std::unique_ptr<Store>, std::string>> open_rocksdb_store(Executor& home,
                                                                            RocksDbOptions options);

}  // namespace sandbay::metadata
