// Wrappers around RocksDB's file system, and of files only where the file is a MANIFEST.
//
// A record of MANIFEST-n.synced, in big-endian fields: length 8 | CRC32C of these 8 bytes 4. Each
// is synced before the next is appended, so a power cut tears the last one at most.
#include "metadata/manifest_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "runtime/byte_order.h"
#include "runtime/crc32c.h"

namespace sandbay::metadata {

namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

constexpr std::size_t kChecksumAt = 8;
constexpr std::size_t kNoteBytes = 12;

bool is_manifest(const std::string& name) {
  const std::string file = std::filesystem::path(name).filename();
  constexpr std::string_view kPrefix = "MANIFEST-";
  return file.starts_with(kPrefix) && file.size() > kPrefix.size() &&
         file.find_first_not_of("0123456789", kPrefix.size()) == std::string::npos;
}

std::string notes_of(const std::string& manifest) { return manifest + ".synced"; }

std::uint32_t checksum(std::span<const std::byte> note) { return ~crc32c(note.first(kChecksumAt)); }

// Nothing if no note is whole.
std::optional<std::uint64_t> newest_length(const std::string& notes) {
  std::optional<std::uint64_t> newest;
  std::span<const std::byte> rest = std::as_bytes(std::span(notes));
  for (; rest.size() >= kNoteBytes; rest = rest.subspan(kNoteBytes)) {
    if (big_endian<std::uint32_t>(rest, kChecksumAt) != checksum(rest)) continue;
    newest = std::max(newest.value_or(0), big_endian<std::uint64_t>(rest, 0));
  }
  return newest;
}

class NotedFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  NotedFile(std::unique_ptr<rocksdb::FSWritableFile> manifest,
            std::unique_ptr<rocksdb::FSWritableFile> notes)
      : FSWritableFileOwnerWrapper(std::move(manifest)), notes_(std::move(notes)) {}

  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    const IOStatus status = FSWritableFileOwnerWrapper::Sync(options, debug);
    return status.ok() ? note(options, debug) : status;
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    const IOStatus status = FSWritableFileOwnerWrapper::Fsync(options, debug);
    return status.ok() ? note(options, debug) : status;
  }

 private:
  IOStatus note(const IOOptions& options, IODebugContext* debug) {
    std::array<std::byte, kNoteBytes> bytes{};
    put_big_endian(std::span(bytes), 0, GetFileSize(options, debug));
    put_big_endian(std::span(bytes), kChecksumAt, checksum(bytes));
    const Slice slice(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    IOStatus status = notes_->Append(slice, options, debug);
    if (status.ok()) status = notes_->Sync(options, debug);
    return status;
  }

  std::unique_ptr<rocksdb::FSWritableFile> notes_;
};

// Ends after `byte_count` bytes.
class ShortenedFile final : public rocksdb::FSSequentialFileOwnerWrapper {
 public:
  ShortenedFile(std::unique_ptr<rocksdb::FSSequentialFile> file, std::uint64_t byte_count)
      : FSSequentialFileOwnerWrapper(std::move(file)), byte_count_(byte_count) {}

  IOStatus Read(std::size_t most, const IOOptions& options, Slice* result, char* scratch,
                IODebugContext* debug) override {
    most = std::min<std::uint64_t>(most, byte_count_ - offset_);
    IOStatus status = FSSequentialFileOwnerWrapper::Read(most, options, result, scratch, debug);
    if (status.ok()) offset_ += result->size();
    return status;
  }
  IOStatus Skip(std::uint64_t count) override {
    count = std::min(count, byte_count_ - offset_);
    IOStatus status = FSSequentialFileOwnerWrapper::Skip(count);
    if (status.ok()) offset_ += count;
    return status;
  }
  IOStatus PositionedRead(std::uint64_t offset, std::size_t most, const IOOptions& options,
                          Slice* result, char* scratch, IODebugContext* debug) override {
    most = std::min<std::uint64_t>(most, byte_count_ - std::min(byte_count_, offset));
    return FSSequentialFileOwnerWrapper::PositionedRead(offset, most, options, result, scratch,
                                                        debug);
  }

 private:
  std::uint64_t byte_count_;
  std::uint64_t offset_ = 0;
};

class WholeManifests final : public rocksdb::FileSystemWrapper {
 public:
  using FileSystemWrapper::FileSystemWrapper;
  const char* Name() const override { return "WholeManifests"; }

  IOStatus NewWritableFile(const std::string& name, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* file,
                           IODebugContext* debug) override {
    if (!is_manifest(name)) return target()->NewWritableFile(name, options, file, debug);
    std::unique_ptr<rocksdb::FSWritableFile> notes;
    IOStatus status = target()->NewWritableFile(notes_of(name), FileOptions(), &notes, debug);
    if (!status.ok()) return status;
    std::unique_ptr<rocksdb::FSWritableFile> manifest;
    status = target()->NewWritableFile(name, options, &manifest, debug);
    if (!status.ok()) return status;
    *file = std::make_unique<NotedFile>(std::move(manifest), std::move(notes));
    return status;
  }

  IOStatus NewSequentialFile(const std::string& name, const FileOptions& options,
                             std::unique_ptr<rocksdb::FSSequentialFile>* file,
                             IODebugContext* debug) override {
    IOStatus status = target()->NewSequentialFile(name, options, file, debug);
    if (!status.ok() || !is_manifest(name)) return status;
    std::string notes;
    if (!rocksdb::ReadFileToString(target(), notes_of(name), &notes).ok()) return status;
    const std::optional<std::uint64_t> synced = newest_length(notes);
    if (!synced.has_value()) return status;
    std::uint64_t there = 0;
    status = target()->GetFileSize(name, options.io_options, &there, debug);
    if (!status.ok()) return status;
    if (there < *synced) return IOStatus::Corruption(name, "is shorter than what was synced");
    *file = std::make_unique<ShortenedFile>(std::move(*file), *synced);
    return status;
  }

  IOStatus DeleteFile(const std::string& name, const IOOptions& options,
                      IODebugContext* debug) override {
    IOStatus status = target()->DeleteFile(name, options, debug);
    // Should these notes survive, the next MANIFEST of that name begins them anew.
    if (status.ok() && is_manifest(name)) {
      target()->DeleteFile(notes_of(name), options, debug).PermitUncheckedError();
    }
    return status;
  }
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> with_whole_manifests(
    std::shared_ptr<rocksdb::FileSystem> files) {
  return std::make_shared<WholeManifests>(std::move(files));
}

}  // namespace sandbay::metadata
