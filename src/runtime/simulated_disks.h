// The files of a simulated world, with the crash semantics of a disk behind a volatile cache.
//
// A file has two images: what readers see, and what is on the platters. A change becomes visible
// when its operation completes and durable when a sync that was submitted afterwards completes (or
// when so much is un-synced that the oldest is written back, as a kernel would). Cutting the power
// keeps, drops or tears each un-synced change by itself, and those still in flight too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cancellation.h"
#include "runtime/executor.h"
#include "runtime/random.h"
#include "runtime/simulation.h"
#include "runtime/sparse_image.h"

namespace sandbay::sim {

class Scheduler;

// A change of a file, kept until it is durable.
struct FileChange {
  enum class Kind : std::uint8_t { kWrite, kZero, kResize, kGrow };
  Kind kind = Kind::kWrite;
  std::uint64_t offset = 0;  // kResize, kGrow: the new size.
  std::uint64_t byte_count = 0;
  std::vector<std::byte> data;  // kWrite
  std::uint64_t sequence = 0;   // In the order in which the file's changes became visible.
};

struct FileState {
  SparseImage visible;
  SparseImage durable;
  std::deque<std::shared_ptr<const FileChange>> unsynced;
  // Changes that were in flight when a snapshot was taken. Only a power cut looks at them, and only
  // before anything else is done: a process that was killed has none that come later.
  std::vector<std::shared_ptr<const FileChange>> in_flight_at_snapshot;
  std::size_t unsynced_bytes = 0;
  std::uint64_t sequence = 0;
};

struct FilesSnapshot {
  std::map<std::string, FileState> files;
};

class Disks {
 public:
  Disks(Scheduler& scheduler, Random random, FileLatency latency, const FilesSnapshot* snapshot);
  Disks(const Disks&) = delete;
  Disks& operator=(const Disks&) = delete;

  Task<Result<std::unique_ptr<File>>> open(Executor& home, std::string path, FileOptions options);
  // Gone for good when it ends; who has it open keeps it.
  Task<Error> remove(Executor& home, std::string path);

  void cut_power();
  std::shared_ptr<const FilesSnapshot> snapshot() const;
  void observe_writes(std::function<void(const std::string& path)> observer) {
    observer_ = std::move(observer);
  }
  bool exists(const std::string& path) const { return files_.contains(path); }
  std::vector<std::byte> content(const std::string& path) const;
  void set_content(const std::string& path, std::vector<std::byte> content);

 private:
  friend class SimulatedFile;
  friend class FileOperation;

  void start(class FileOperation& operation);
  void finish(FileOperation& operation);
  void cancel(FileOperation& operation);
  void take_effect(FileOperation& operation);
  void apply_visible(FileOperation& operation);
  void tell_observer(const std::string& path);
  bool is_change_of(const FileOperation& operation, const FileState& file) const;
  void complete(FileOperation& operation);
  void write_back(FileState& file, std::uint64_t up_to_sequence, std::size_t most_bytes);
  void keep_some(FileState& file, const FileChange& change);
  Duration draw_latency();

  Scheduler& scheduler_;
  Random random_;
  FileLatency latency_;
  std::uint64_t power_cycle_ = 0;  // Files opened in an earlier one answer kHardware.
  bool observing_ = false;
  std::function<void(const std::string& path)> observer_;
  using Files = std::map<std::string, FileState>;
  Files files_;            // Nodes stay where they are.
  bool untouched_ = true;  // As in the snapshot.
  std::vector<Files::node_type> removed_;
  std::vector<FileOperation*> in_flight_;
};

}  // namespace sandbay::sim
