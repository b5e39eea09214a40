// SimulatedStore: entries in memory, a log of checksummed records in a file.
//
// A record holds all batches that were committed together. Fields are big-endian:
//   0  magic  4 | payload bytes  8 | sequence  16 | CRC32C of bytes 4 to 15 and payload  20 |
//   payload
// and the payload is a row of changes: kind 1, key bytes 4, value bytes 4, key, value.
//
// At most one record is un-synced at any time, always the last: so a power cut can only leave a
// record that is not whole at the end. Opening cuts it off before anything is written after it,
// lest bytes of it be taken for a record later.
#include "metadata/simulated_store.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include <fmt/core.h>

#include "runtime/byte_order.h"
#include "runtime/crc32c.h"
#include "runtime/io.h"
#include "runtime/sync.h"

namespace sandbay::metadata {

namespace {

constexpr std::uint32_t kMagic = 0x73624d4c;  // "sbML"
constexpr std::size_t kRecordLengthAt = 4;
constexpr std::size_t kSequenceAt = 8;
constexpr std::size_t kRecordChecksumAt = 16;
constexpr std::size_t kRecordHeaderBytes = 20;
constexpr std::size_t kChangeHeaderBytes = 9;
constexpr std::size_t kReadBytes = std::size_t{1} << 20;

using Bytes = std::vector<std::byte>;
using Entries = std::map<std::string, std::string>;

std::uint32_t checksum(std::span<const std::byte> header, std::span<const std::byte> payload) {
  Crc32c crc;
  crc.update(header.subspan(kRecordLengthAt, kRecordChecksumAt - kRecordLengthAt));
  crc.update(payload);
  return ~crc.value();
}

void apply(Entries& entries, const Batch::Change& change) {
  switch (change.kind) {
    case Batch::Kind::kPut:
      entries[change.key] = change.value;
      return;
    case Batch::Kind::kErase:
      entries.erase(change.key);
      return;
    case Batch::Kind::kErasePrefix:
      entries.erase(entries.lower_bound(change.key),
                    entries.lower_bound(end_of_prefix(change.key)));
      return;
  }
}

void append_change(Bytes& record, const Batch::Change& change) {
  const std::size_t at = record.size();
  record.resize(at + kChangeHeaderBytes + change.key.size() + change.value.size());
  record[at] = static_cast<std::byte>(change.kind);
  put_big_endian(std::span(record), at + 1, static_cast<std::uint32_t>(change.key.size()));
  put_big_endian(std::span(record), at + 5, static_cast<std::uint32_t>(change.value.size()));
  std::byte* text = record.data() + at + kChangeHeaderBytes;
  std::memcpy(text, change.key.data(), change.key.size());
  std::memcpy(text + change.key.size(), change.value.data(), change.value.size());
}

void finish_record(Bytes& record, std::uint64_t sequence) {
  const std::span<std::byte> bytes(record);
  put_big_endian(bytes, 0, kMagic);
  put_big_endian(bytes, kRecordLengthAt,
                 static_cast<std::uint32_t>(record.size() - kRecordHeaderBytes));
  put_big_endian(bytes, kSequenceAt, sequence);
  put_big_endian(bytes, kRecordChecksumAt,
                 checksum(bytes.first(kRecordHeaderBytes), bytes.subspan(kRecordHeaderBytes)));
}

// The record at the front of `log` if there is a whole one with that sequence, else nothing.
std::optional<std::span<const std::byte>> whole_record(std::span<const std::byte> log,
                                                       std::uint64_t sequence) {
  if (log.size() < kRecordHeaderBytes) return std::nullopt;
  if (big_endian<std::uint32_t>(log, 0) != kMagic) return std::nullopt;
  const std::size_t length = big_endian<std::uint32_t>(log, kRecordLengthAt);
  if (length > log.size() - kRecordHeaderBytes) return std::nullopt;
  if (big_endian<std::uint64_t>(log, kSequenceAt) != sequence) return std::nullopt;
  const std::span<const std::byte> payload = log.subspan(kRecordHeaderBytes, length);
  const std::uint32_t expected = big_endian<std::uint32_t>(log, kRecordChecksumAt);
  if (checksum(log.first(kRecordHeaderBytes), payload) != expected) return std::nullopt;
  return payload;
}

// False if the payload is not a row of changes.
bool replay(Entries& entries, std::span<const std::byte> payload) {
  while (!payload.empty()) {
    if (payload.size() < kChangeHeaderBytes) return false;
    const auto kind = static_cast<Batch::Kind>(payload[0]);
    if (kind < Batch::Kind::kPut || kind > Batch::Kind::kErasePrefix) return false;
    const std::size_t key_bytes = big_endian<std::uint32_t>(payload, 1);
    const std::size_t value_bytes = big_endian<std::uint32_t>(payload, 5);
    payload = payload.subspan(kChangeHeaderBytes);
    if (key_bytes > payload.size() || value_bytes > payload.size() - key_bytes) return false;
    const char* text = reinterpret_cast<const char*>(payload.data());
    apply(entries,
          {kind, std::string(text, key_bytes), std::string(text + key_bytes, value_bytes)});
    payload = payload.subspan(key_bytes + value_bytes);
  }
  return true;
}

}  // namespace

class SimulatedStore final : public Store {
 public:
  SimulatedStore(Executor& home, std::unique_ptr<File> file)
      : home_(home), file_(std::move(file)) {}

  // Reads the log; the text says what is wrong with it, or is empty.
  Task<std::string> load();

  Executor& home() const noexcept override { return home_; }
  Task<Result<std::optional<std::string>>> get(std::string key) override;
  Task<Result<std::vector<Entry>>> list(std::string prefix, std::string after,
                                        std::size_t limit) override;
  Task<Error> commit(Batch batch) override;
  bool in_doubt() const noexcept override { return failed_ != Error::kNone; }
  Task<void> close() override;

 private:
  // A commit that waits; stands in its coroutine's frame.
  struct Pending {
    Batch batch;
    bool ended = false;
    Error error = Error::kNone;
  };

  Task<Error> write_record(Bytes record);
  Task<void> settle();
  Task<void> write_group();
  Task<void> wait_for_earlier_commits();

  Executor& home_;
  std::unique_ptr<File> file_;
  Entries entries_;
  std::uint64_t log_end_ = 0;
  std::uint64_t next_sequence_ = 1;
  std::vector<Pending*> waiting_;
  bool writing_ = false;
  // What made a write fail, until the log has been cut back to where that record began.
  Error failed_ = Error::kNone;
  std::uint64_t commits_asked_ = 0;
  std::uint64_t commits_ended_ = 0;
  Condition changed_;
  Gate gate_;
};

Task<std::string> SimulatedStore::load() {
  const Result<std::uint64_t> size = co_await file_->size();
  if (!size.has_value()) co_return fmt::format("its size is unknown: {}", describe(size.error()));
  Bytes log(*size);
  for (std::size_t offset = 0; offset < log.size();) {
    const IoSlice part{.data = log.data() + offset,
                       .byte_count = std::min(kReadBytes, log.size() - offset)};
    const Error error = co_await file_->read(offset, {&part, 1}, nullptr);
    if (error != Error::kNone) co_return fmt::format("cannot be read: {}", describe(error));
    offset += part.byte_count;
  }
  while (log_end_ < log.size()) {
    const auto payload = whole_record(std::span(log).subspan(log_end_), next_sequence_);
    if (!payload.has_value()) break;
    if (!replay(entries_, *payload)) co_return fmt::format("is damaged at byte {}", log_end_);
    log_end_ += kRecordHeaderBytes + payload->size();
    ++next_sequence_;
  }
  if (log_end_ < log.size()) {
    const Error error = co_await file_->resize(log_end_);
    if (error != Error::kNone) co_return fmt::format("cannot be cut: {}", describe(error));
  }
  const Error error = co_await file_->sync(nullptr);
  if (error != Error::kNone) co_return fmt::format("cannot be synced: {}", describe(error));
  co_return std::string();
}

Task<Result<std::optional<std::string>>> SimulatedStore::get(std::string key) {
  if (!gate_.enter()) co_return std::unexpected(Error::kClosed);
  const GateHold hold(gate_);
  co_await wait_for_earlier_commits();
  const auto found = entries_.find(key);
  if (found == entries_.end()) co_return std::optional<std::string>();
  co_return std::optional<std::string>(found->second);
}

Task<Result<std::vector<Entry>>> SimulatedStore::list(std::string prefix, std::string after,
                                                      std::size_t limit) {
  assert(limit > 0);
  if (!gate_.enter()) co_return std::unexpected(Error::kClosed);
  const GateHold hold(gate_);
  co_await wait_for_earlier_commits();
  std::vector<Entry> found;
  auto entry = after < prefix ? entries_.lower_bound(prefix) : entries_.upper_bound(after);
  while (entry != entries_.end() && entry->first.starts_with(prefix) && found.size() < limit) {
    found.emplace_back(*entry);
    ++entry;
  }
  co_return found;
}

Task<void> SimulatedStore::wait_for_earlier_commits() {
  const std::uint64_t earlier = commits_asked_;
  while (commits_ended_ < earlier) co_await changed_.wait();
}

Task<Error> SimulatedStore::commit(Batch batch) {
  if (!gate_.enter()) co_return Error::kClosed;
  const GateHold hold(gate_);
  if (batch.empty()) co_return Error::kNone;
  Pending self{.batch = std::move(batch)};
  ++commits_asked_;
  waiting_.push_back(&self);
  while (!self.ended) {
    // Whoever finds nobody writing writes for all who wait.
    if (writing_) {
      co_await changed_.wait();
    } else {
      co_await write_group();
    }
  }
  co_return self.error;
}

Task<void> SimulatedStore::write_group() {
  assert(!writing_ && !waiting_.empty());
  writing_ = true;
  const std::vector<Pending*> group = std::exchange(waiting_, {});
  if (failed_ != Error::kNone) co_await settle();
  Error error = failed_;
  if (error == Error::kNone) {
    Bytes record(kRecordHeaderBytes);
    for (const Pending* pending : group) {
      for (const Batch::Change& change : pending->batch.changes()) append_change(record, change);
    }
    error = co_await write_record(std::move(record));
  }
  for (Pending* pending : group) {
    if (error == Error::kNone) {
      for (const Batch::Change& change : pending->batch.changes()) apply(entries_, change);
    }
    pending->error = error;
    pending->ended = true;
  }
  commits_ended_ += group.size();
  writing_ = false;
  changed_.notify_all();
}

Task<Error> SimulatedStore::write_record(Bytes record) {
  finish_record(record, next_sequence_);
  const IoSlice slice{.data = record.data(), .byte_count = record.size()};
  Error error = co_await file_->write(log_end_, {&slice, 1}, nullptr);
  if (error == Error::kNone) error = co_await file_->sync(nullptr);
  if (error != Error::kNone) {
    failed_ = error;
    co_await settle();
    co_return error;
  }
  log_end_ += record.size();
  ++next_sequence_;
  co_return Error::kNone;
}

// What a record that failed has left in the file is not known, and the next is written only after
// it is known to be gone.
Task<void> SimulatedStore::settle() {
  Error error = co_await file_->resize(log_end_);
  if (error == Error::kNone) error = co_await file_->sync(nullptr);
  if (error == Error::kNone) failed_ = Error::kNone;
}

Task<void> SimulatedStore::close() {
  co_await gate_.close();
  file_.reset();
}

Task<std::expected<std::unique_ptr<Store>, std::string>> open_simulated_store(Executor& home,
                                                                              std::string path) {
  assert(Executor::current_or_null() == &home);
  const sandbay::FileOptions options{.writable = true, .create = true};
  Result<std::unique_ptr<File>> file = co_await home.open_file(path, options);
  if (!file.has_value()) {
    co_return std::unexpected(
        fmt::format("metadata {}: cannot be opened: {}", path, describe(file.error())));
  }
  co_return co_await open_simulated_store(home, std::move(*file), std::move(path));
}

Task<std::expected<std::unique_ptr<Store>, std::string>> open_simulated_store(
    Executor& home, std::unique_ptr<File> file, std::string path) {
  auto store = std::make_unique<SimulatedStore>(home, std::move(file));
  const std::string wrong = co_await store->load();
  if (!wrong.empty()) co_return std::unexpected(fmt::format("metadata {}: {}", path, wrong));
  co_return store;
}

}  // namespace sandbay::metadata
