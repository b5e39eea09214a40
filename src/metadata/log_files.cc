// A log is a row of blocks of 32 KiB. A record is one fragment, or a first one, middle ones and a
// last one; none crosses a block's end, and less than a header's room there is zeros. A fragment,
// in little-endian fields: masked CRC32C of what follows the length 4 | length 2 | type 1 | bytes.
#include "metadata/log_files.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/byte_order.h"
#include "runtime/crc32c.h"

namespace sandbay::metadata {

namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

constexpr std::string_view kLogSuffix = ".log";
constexpr std::string_view kNoteSuffix = ".synced";
constexpr std::size_t kBlockBytes = 32768;
constexpr std::size_t kHeaderBytes = 7;
constexpr std::size_t kLengthAt = 4;
constexpr std::size_t kTypeAt = 6;

bool is_log(std::string_view name) {
  const std::string file = std::filesystem::path(name).filename();
  return file.size() > kLogSuffix.size() && file.ends_with(kLogSuffix) &&
         file.find_first_not_of("0123456789") == file.size() - kLogSuffix.size();
}

std::string note_of(const std::string& log) { return log + std::string(kNoteSuffix); }

// ---- records ------------------------------------------------------------------------------------

enum class FragmentType : std::uint8_t { kWhole = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

struct Fragment {
  FragmentType type;
  std::size_t byte_count;  // With its header.
};

std::uint32_t masked_checksum(std::span<const std::byte> bytes) {
  const std::uint32_t checksum = crc32c(bytes);
  return ((checksum >> 15U) | (checksum << 17U)) + 0xa282ead8U;
}

// One that begins where `block`, the rest of a block, does.
std::optional<Fragment> fragment_at(std::span<const std::byte> block) {
  if (block.size() < kHeaderBytes) return std::nullopt;
  const auto type = static_cast<std::uint8_t>(block[kTypeAt]);
  if (type < 1 || type > 4) return std::nullopt;
  const std::size_t byte_count = kHeaderBytes + little_endian<std::uint16_t>(block, kLengthAt);
  if (byte_count > block.size()) return std::nullopt;
  const std::uint32_t checksum = masked_checksum(block.first(byte_count).subspan(kTypeAt));
  if (checksum != little_endian<std::uint32_t>(block, 0)) return std::nullopt;
  return Fragment{.type = static_cast<FragmentType>(type), .byte_count = byte_count};
}

class LogScan {
 public:
  void take(std::span<const std::byte> log) {
    for (; !log.empty(); log = log.subspan(std::min(kBlockBytes, log.size()))) {
      take_block(log.first(std::min(kBlockBytes, log.size())), log.size() > kBlockBytes);
    }
  }
  bool begins_whole() const { return begins_whole_; }
  // Where what is not whole begins, if a whole record follows it.
  std::optional<std::uint64_t> damage() const { return resumed_ ? torn_ : std::nullopt; }

 private:
  void take_block(std::span<const std::byte> block, bool more) {
    offset_ += block.size();
    while (!block.empty()) {
      if (more && block.size() < kHeaderBytes) return;
      const std::optional<Fragment> fragment = fragment_at(block);
      if (fragment) {
        take_fragment(fragment->type);
      } else {
        if (!torn_) torn_ = offset_ - block.size();
        in_record_ = false;
      }
      block = block.subspan(fragment ? fragment->byte_count : 1);
    }
  }
  void take_fragment(FragmentType type) {
    const bool ends = type == FragmentType::kWhole || (type == FragmentType::kLast && in_record_);
    if (ends && torn_) resumed_ = true;
    if (ends && !torn_) begins_whole_ = true;
    in_record_ = type == FragmentType::kFirst || (type == FragmentType::kMiddle && in_record_);
  }

  std::uint64_t offset_ = 0;
  bool in_record_ = false;
  bool begins_whole_ = false;
  bool resumed_ = false;
  std::optional<std::uint64_t> torn_;
};

std::string damage_of(rocksdb::FileSystem& files, const std::string& directory,
                      const std::string& log, bool noted) {
  std::string bytes;
  const bool is_there = rocksdb::ReadFileToString(&files, directory + "/" + log, &bytes).ok();
  if (!is_there) return noted ? fmt::format("its log {} is missing", log) : "";
  LogScan scan;
  scan.take(std::as_bytes(std::span(bytes)));
  if (const auto damage = scan.damage()) {
    return fmt::format("its log {} is damaged at byte {}, and whole records follow", log, *damage);
  }
  if (noted && !scan.begins_whole()) return fmt::format("its log {} has no whole record", log);
  return {};
}

// ---- notes --------------------------------------------------------------------------------------

IOStatus sync_directory(rocksdb::FileSystem& files, const std::string& name,
                        IODebugContext* debug) {
  std::unique_ptr<rocksdb::FSDirectory> directory;
  const std::string parent = std::filesystem::path(name).parent_path();
  IOStatus status = files.NewDirectory(parent, IOOptions(), &directory, debug);
  if (status.ok()) status = directory->Fsync(IOOptions(), debug);
  return status;
}

class NotedLog final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  NotedLog(std::unique_ptr<rocksdb::FSWritableFile> log, rocksdb::FileSystem* files,
           std::string name)
      : FSWritableFileOwnerWrapper(std::move(log)), files_(files), name_(std::move(name)) {}

  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    const IOStatus status = FSWritableFileOwnerWrapper::Sync(options, debug);
    return status.ok() ? note(options, debug) : status;
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    const IOStatus status = FSWritableFileOwnerWrapper::Fsync(options, debug);
    return status.ok() ? note(options, debug) : status;
  }

 private:
  // Once; RocksDB syncs a log when it has appended a record.
  IOStatus note(const IOOptions& options, IODebugContext* debug) {
    if (noted_ || GetFileSize(options, debug) == 0) return IOStatus::OK();
    std::unique_ptr<rocksdb::FSWritableFile> file;
    IOStatus status = files_->NewWritableFile(note_of(name_), FileOptions(), &file, debug);
    if (status.ok()) status = file->Sync(options, debug);
    if (status.ok()) status = sync_directory(*files_, name_, debug);
    noted_ = status.ok();
    return status;
  }

  rocksdb::FileSystem* files_;
  std::string name_;
  bool noted_ = false;
};

class NotedLogs final : public rocksdb::FileSystemWrapper {
 public:
  using FileSystemWrapper::FileSystemWrapper;
  const char* Name() const override { return "NotedLogs"; }

  IOStatus NewWritableFile(const std::string& name, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* file,
                           IODebugContext* debug) override {
    IOStatus status = target()->NewWritableFile(name, options, file, debug);
    if (status.ok() && is_log(name)) {
      *file = std::make_unique<NotedLog>(std::move(*file), target(), name);
    }
    return status;
  }

  IOStatus DeleteFile(const std::string& name, const IOOptions& options,
                      IODebugContext* debug) override {
    if (is_log(name) && target()->FileExists(note_of(name), options, debug).ok()) {
      IOStatus status = target()->DeleteFile(note_of(name), options, debug);
      if (status.ok()) status = sync_directory(*target(), name, debug);
      if (!status.ok()) return status;
    }
    return target()->DeleteFile(name, options, debug);
  }
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> with_noted_logs(std::shared_ptr<rocksdb::FileSystem> files) {
  return std::make_shared<NotedLogs>(std::move(files));
}

std::string damage_of_logs(rocksdb::FileSystem& files, const std::string& directory) {
  std::vector<std::string> names;
  if (!files.GetChildren(directory, {}, &names, nullptr).ok()) return {};
  std::ranges::sort(names);
  for (const std::string& name : names) {
    const bool is_note = name.ends_with(kNoteSuffix);
    const std::string log = is_note ? name.substr(0, name.size() - kNoteSuffix.size()) : name;
    if (!is_log(log)) continue;
    std::string damage = damage_of(files, directory, log, is_note);
    if (!damage.empty()) return damage;
  }
  return {};
}

}  // namespace sandbay::metadata
