// with_whole_manifests: files for RocksDB on which its MANIFEST is read no further than it was
// synced.
//
// RocksDB appends to its MANIFEST and then syncs it. A power cut in between may leave any of these
// bytes on the disk, and RocksDB takes a torn record there for damage: it would refuse to open, or,
// if whole sectors are zeros, skip a record and apply the next. Both are wrong, for RocksDB acts on
// a record (removes the log that it replaces) only once the sync has ended.
//
// So beside MANIFEST-n there is MANIFEST-n.synced, to which every sync appends the length that it
// made durable, and ends only when that is durable, too. What lies behind the newest such length
// was never acted on; a reader is not shown it. A MANIFEST without such a file is read as it is.
#pragma once

#include <rocksdb/file_system.h>

#include <memory>

namespace sandbay::metadata {

std::shared_ptr<rocksdb::FileSystem> with_whole_manifests(
    std::shared_ptr<rocksdb::FileSystem> files);

}  // namespace sandbay::metadata
