// LossyFileSystem: how RocksDB's files look after a power cut.
//
// Files are real ones; this keeps account of what was synced. After cut_power() the next sync (of a
// file of some name, if one is given) fails, and every change after it, so that what stood before
// that sync was written but never synced. After the database is gone, apply_losses() makes the
// files what a disk might hold: each is cut back to some length not below what was synced, each
// sector of the part after that may be zeros or rubbish instead, and files and renames whose
// directory was not synced may be undone.
#pragma once

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/random.h"

namespace sandbay::metadata::testing {

class LossyFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit LossyFileSystem(std::uint64_t seed);
  const char* Name() const override { return "LossyFileSystem"; }

  // At the next sync of a file whose name contains `name_part`.
  void cut_power(std::string name_part = {});
  void apply_losses();
  // Nothing is free, and appends fail, while it is set.
  void set_full(bool full);
  // The next `count` syncs of files whose name contains `name_part` fail after what was appended
  // has reached the file.
  void fail_syncs(std::string name_part, unsigned count);
  std::uint64_t synced_bytes(const std::string& name);
  // What the losses were, so that a test can see that there were any.
  std::uint64_t bytes_lost() const { return bytes_lost_; }
  std::uint64_t entries_undone() const { return entries_undone_; }
  std::uint64_t manifests_torn() const { return manifests_torn_; }

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewDirectory(const std::string& name, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* directory,
                                 rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetFreeSpace(const std::string& path, const rocksdb::IOOptions& options,
                                 std::uint64_t* free_bytes,
                                 rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;

 private:
  friend class LossyWritableFile;
  friend class LossyDirectory;
  // A change of a directory that was not synced yet.
  struct Entry {
    std::string directory;
    std::string name;
    std::string renamed_from;             // Empty: the file was made.
    std::optional<std::string> replaced;  // What the name held before a rename.
  };

  // On, until the next sync of cut_at_, off.
  enum class Power : std::uint8_t { kOn, kFailing, kOff };

  rocksdb::IOStatus check_power();
  rocksdb::IOStatus check_append();
  rocksdb::IOStatus check_sync(const std::string& name);
  void synced(const std::string& name, std::uint64_t byte_count);
  void directory_synced(const std::string& name);
  void lose_tail(const std::string& name, std::uint64_t synced_bytes);
  void overwrite(std::span<char> sector);
  void undo(const Entry& entry);

  std::mutex mutex_;  // RocksDB calls from several threads.
  Random random_;
  Power power_ = Power::kOn;
  std::string cut_at_;
  bool full_ = false;
  std::string failing_;         // Part of the names of files whose syncs fail,
  unsigned syncs_to_fail_ = 0;  // as many times.
  std::map<std::string, std::uint64_t> synced_bytes_;
  std::vector<Entry> entries_;
  std::uint64_t bytes_lost_ = 0;
  std::uint64_t entries_undone_ = 0;
  std::uint64_t manifests_torn_ = 0;
};

}  // namespace sandbay::metadata::testing
