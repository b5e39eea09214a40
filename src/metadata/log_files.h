// What RocksDB's write-ahead logs must hold after any crash, and whether they do.
//
// RocksDB replays a log up to the first record that is not whole and drops the rest: a power cut
// leaves such a tail. It takes damage further ahead for such a tail as well, and a log that is gone
// for one that was never there; acknowledged commits would be gone without a word. But every commit
// is one record, written when the one before it was synced. So nothing whole can follow what a
// crash has torn, and a log that was ever synced begins with a whole record: beside it there is
// NUMBER.log.synced, made durable by its first sync and removed, durably, before the log is.
#pragma once

#include <rocksdb/file_system.h>

#include <memory>
#include <string>

namespace sandbay::metadata {

// Files on which logs are noted.
std::shared_ptr<rocksdb::FileSystem> with_noted_logs(std::shared_ptr<rocksdb::FileSystem> files);

// Which log is damaged, and how; empty if every one is as a crash may leave it. Of a directory
// that no database has open. What cannot be read is left for RocksDB to complain about.
std::string damage_of_logs(rocksdb::FileSystem& files, const std::string& directory);

}  // namespace sandbay::metadata
