// LossyFileSystem: wrappers that keep account, and the losses. See the header for the model.
// Nothing is really synced, since the kernel does not go down in these tests; what would have been
// is noted by file name and, for directories, by the changes that a sync covers.
#include "lossy_file_system.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

namespace sandbay::metadata::testing {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

constexpr std::size_t kSectorBytes = 512;

std::string parent_of(const std::string& name) {
  return std::filesystem::path(name).parent_path().lexically_normal().string();
}

std::optional<std::string> content_of(const std::string& name) {
  std::ifstream stream(name, std::ios::binary);
  if (!stream) return std::nullopt;
  std::string content(std::filesystem::file_size(name), '\0');
  stream.read(content.data(), static_cast<std::streamsize>(content.size()));
  return content;
}

void replace_content(const std::string& name, const std::string& content) {
  std::ofstream stream(name, std::ios::binary | std::ios::trunc);
  stream.write(content.data(), static_cast<std::streamsize>(content.size()));
}

}  // namespace

class LossyWritableFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  LossyWritableFile(std::unique_ptr<rocksdb::FSWritableFile> file, LossyFileSystem& owner,
                    std::string name)
      : FSWritableFileOwnerWrapper(std::move(file)), owner_(owner), name_(std::move(name)) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    IOStatus status = owner_.check_append();
    if (!status.ok()) return status;
    return FSWritableFileOwnerWrapper::Append(data, options, debug);
  }
  IOStatus Append(const Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo& information,
                  IODebugContext* debug) override {
    IOStatus status = owner_.check_append();
    if (!status.ok()) return status;
    return FSWritableFileOwnerWrapper::Append(data, options, information, debug);
  }
  IOStatus Truncate(std::uint64_t size, const IOOptions& options, IODebugContext* debug) override {
    IOStatus status = owner_.check_power();
    if (!status.ok()) return status;
    return FSWritableFileOwnerWrapper::Truncate(size, options, debug);
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    return note_sync(options, debug);
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return note_sync(options, debug);
  }
  // Files grow by appending alone, so that their length says what was written.
  IOStatus Allocate(std::uint64_t, std::uint64_t, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }

 private:
  // A real sync would only be slow: the kernel does not go down in this test.
  IOStatus note_sync(const IOOptions& options, IODebugContext* debug) {
    IOStatus status = owner_.check_sync(name_);
    if (!status.ok()) return status;
    status = FSWritableFileOwnerWrapper::Flush(options, debug);
    if (status.ok()) owner_.synced(name_, GetFileSize(options, debug));
    return status;
  }

  LossyFileSystem& owner_;
  std::string name_;
};

class LossyDirectory final : public rocksdb::FSDirectoryWrapper {
 public:
  LossyDirectory(std::unique_ptr<rocksdb::FSDirectory> directory, LossyFileSystem& owner,
                 std::string name)
      : FSDirectoryWrapper(std::move(directory)), owner_(owner), name_(std::move(name)) {}

  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    IOStatus status = owner_.check_sync(name_);
    if (status.ok()) owner_.directory_synced(name_);
    return status;
  }
  IOStatus FsyncWithDirOptions(const IOOptions& options, IODebugContext* debug,
                               const rocksdb::DirFsyncOptions&) override {
    return Fsync(options, debug);
  }

 private:
  LossyFileSystem& owner_;
  std::string name_;
};

LossyFileSystem::LossyFileSystem(std::uint64_t seed)
    : FileSystemWrapper(rocksdb::FileSystem::Default()), random_(seed) {}

void LossyFileSystem::cut_power(std::string name_part) {
  const std::lock_guard lock(mutex_);
  cut_at_ = std::move(name_part);
  power_ = Power::kFailing;
}

void LossyFileSystem::set_full(bool full) {
  const std::lock_guard lock(mutex_);
  full_ = full;
}

void LossyFileSystem::fail_syncs(std::string name_part, unsigned count) {
  const std::lock_guard lock(mutex_);
  failing_ = std::move(name_part);
  syncs_to_fail_ = count;
}

IOStatus LossyFileSystem::GetFreeSpace(const std::string& path, const IOOptions& options,
                                       std::uint64_t* free_bytes, IODebugContext* debug) {
  IOStatus status = FileSystemWrapper::GetFreeSpace(path, options, free_bytes, debug);
  const std::lock_guard lock(mutex_);
  if (full_) *free_bytes = 0;
  return status;
}

IOStatus LossyFileSystem::check_power() {
  const std::lock_guard lock(mutex_);
  return power_ == Power::kOff ? IOStatus::IOError("the power is cut") : IOStatus::OK();
}

IOStatus LossyFileSystem::check_append() {
  const std::lock_guard lock(mutex_);
  if (power_ == Power::kOff) return IOStatus::IOError("the power is cut");
  return full_ ? IOStatus::NoSpace("the disk is full") : IOStatus::OK();
}

IOStatus LossyFileSystem::check_sync(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (syncs_to_fail_ > 0 && name.find(failing_) != std::string::npos) {
    --syncs_to_fail_;
    return IOStatus::IOError("the sync failed");
  }
  if (power_ == Power::kFailing && name.find(cut_at_) != std::string::npos) power_ = Power::kOff;
  return power_ == Power::kOff ? IOStatus::IOError("the power is cut") : IOStatus::OK();
}

void LossyFileSystem::synced(const std::string& name, std::uint64_t byte_count) {
  const std::lock_guard lock(mutex_);
  synced_bytes_[name] = byte_count;
}

std::uint64_t LossyFileSystem::synced_bytes(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return synced_bytes_.at(name);
}

void LossyFileSystem::directory_synced(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const std::string directory = std::filesystem::path(name).lexically_normal().string();
  std::erase_if(entries_, [&](const Entry& entry) { return entry.directory == directory; });
}

IOStatus LossyFileSystem::NewWritableFile(const std::string& name,
                                          const rocksdb::FileOptions& options,
                                          std::unique_ptr<rocksdb::FSWritableFile>* file,
                                          IODebugContext* debug) {
  IOStatus status = check_power();
  if (!status.ok()) return status;
  std::unique_ptr<rocksdb::FSWritableFile> real;
  status = FileSystemWrapper::NewWritableFile(name, options, &real, debug);
  if (!status.ok()) return status;
  *file = std::make_unique<LossyWritableFile>(std::move(real), *this, name);
  const std::lock_guard lock(mutex_);
  synced_bytes_[name] = 0;
  entries_.push_back({.directory = parent_of(name), .name = name});
  return status;
}

IOStatus LossyFileSystem::NewDirectory(const std::string& name, const IOOptions& options,
                                       std::unique_ptr<rocksdb::FSDirectory>* directory,
                                       IODebugContext* debug) {
  std::unique_ptr<rocksdb::FSDirectory> real;
  IOStatus status = FileSystemWrapper::NewDirectory(name, options, &real, debug);
  if (!status.ok()) return status;
  *directory = std::make_unique<LossyDirectory>(std::move(real), *this, name);
  return status;
}

IOStatus LossyFileSystem::RenameFile(const std::string& from, const std::string& to,
                                     const IOOptions& options, IODebugContext* debug) {
  IOStatus status = check_power();
  if (!status.ok()) return status;
  std::optional<std::string> replaced = content_of(to);
  status = FileSystemWrapper::RenameFile(from, to, options, debug);
  if (!status.ok()) return status;
  const std::lock_guard lock(mutex_);
  const auto account = synced_bytes_.extract(from);
  synced_bytes_.erase(to);
  if (!account.empty()) synced_bytes_[to] = account.mapped();
  entries_.push_back({.directory = parent_of(to),
                      .name = to,
                      .renamed_from = from,
                      .replaced = std::move(replaced)});
  return status;
}

IOStatus LossyFileSystem::DeleteFile(const std::string& name, const IOOptions& options,
                                     IODebugContext* debug) {
  IOStatus status = check_power();
  if (!status.ok()) return status;
  status = FileSystemWrapper::DeleteFile(name, options, debug);
  const std::lock_guard lock(mutex_);
  if (!status.ok()) return status;
  synced_bytes_.erase(name);
  std::erase_if(entries_, [&](const Entry& entry) { return entry.name == name; });
  return status;
}

void LossyFileSystem::apply_losses() {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, synced_bytes] : synced_bytes_) lose_tail(name, synced_bytes);
  // The newest change first, so that a name that changed twice goes back step by step.
  bool undoing = random_.chance(0.5);
  while (!entries_.empty() && undoing) {
    undo(entries_.back());
    entries_.pop_back();
    undoing = random_.chance(0.7);
  }
}

void LossyFileSystem::lose_tail(const std::string& name, std::uint64_t synced_bytes) {
  std::optional<std::string> content = content_of(name);
  if (!content.has_value() || content->size() <= synced_bytes) return;
  const std::uint64_t kept = random_.between(synced_bytes, content->size());
  bytes_lost_ += content->size() - kept;
  content->resize(kept);
  bool torn = false;
  if (random_.chance(0.5)) {
    for (std::uint64_t at = synced_bytes; at < kept;) {
      const std::uint64_t end =
          std::min<std::uint64_t>(kept, at / kSectorBytes * kSectorBytes + kSectorBytes);
      if (random_.chance(0.5)) {
        overwrite(std::span(*content).subspan(at, end - at));
        torn = true;
      }
      at = end;
    }
  }
  if (torn && name.find("MANIFEST-") != std::string::npos) ++manifests_torn_;
  replace_content(name, *content);
}

// What a sector holds that did not reach the disk.
void LossyFileSystem::overwrite(std::span<char> sector) {
  const bool rubbish = random_.chance(0.5);
  for (char& byte : sector) byte = rubbish ? static_cast<char>(random_.next()) : '\0';
  bytes_lost_ += sector.size();
}

void LossyFileSystem::undo(const Entry& entry) {
  ++entries_undone_;
  std::error_code ignored;
  if (entry.renamed_from.empty()) {
    std::filesystem::remove(entry.name, ignored);
    return;
  }
  std::filesystem::rename(entry.name, entry.renamed_from, ignored);
  if (entry.replaced.has_value()) replace_content(entry.name, *entry.replaced);
}

}  // namespace sandbay::metadata::testing
