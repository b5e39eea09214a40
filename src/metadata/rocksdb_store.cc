// RocksDbStore: calls cross to a thread, RocksDB answers there, messages bring the answers back.
//
// After a failed write RocksDB accepts no other, and has perhaps appended the batch to its log,
// where the next opening finds it. So the database is closed, opened again, which makes durable
// what the log holds, and a batch is written that puts back what the failed one would have changed.
//
// The distribution's RocksDB asserts on some errors of files, on a full disk above all: nothing is
// opened or written where there is little room, and nothing opened before a file of our own could
// be written in its directory.
//
// A call stands in the frame of the coroutine that waits for it. The thread takes all calls that
// are queued and serves them in order; neighbouring commits become one synced write. After the
// thread has sent a call home it does not touch it any more.
#include "metadata/rocksdb_store.h"

#include <pthread.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <condition_variable>
#include <coroutine>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/core.h>

#include "metadata/log_files.h"
#include "metadata/manifest_files.h"
#include "runtime/message.h"
#include "runtime/sync.h"

namespace sandbay::metadata {

namespace {

// Metadata is small and memory is for data: these keep RocksDB below some 30 MiB.
constexpr std::size_t kBlockCacheBytes = std::size_t{8} << 20;
constexpr std::size_t kMemtableBytes = std::size_t{4} << 20;
constexpr std::size_t kLargestWalBytes = std::size_t{16} << 20;
constexpr std::size_t kLargestManifestBytes = std::size_t{1} << 20;
constexpr std::size_t kLogFileBytes = std::size_t{1} << 20;
constexpr int kOpenFiles = 64;
constexpr int kBackgroundJobs = 2;
// What one synced write takes at most, beside the batch that passes it.
constexpr std::size_t kGroupBytes = std::size_t{4} << 20;
// What must be free for a commit beside three times its batch: room for a memtable that becomes a
// file, for a new log and for a compaction.
constexpr std::uint64_t kReservedBytes = std::uint64_t{16} << 20;
constexpr std::size_t kProbeBytes = 4096;

// Null: the system's.
std::unique_ptr<rocksdb::Env> env_on(rocksdb::Env* env) {
  if (env == nullptr) env = rocksdb::Env::Default();
  return rocksdb::NewCompositeEnv(with_noted_logs(with_whole_manifests(env->GetFileSystem())));
}

rocksdb::Options database_options(rocksdb::Env& env) {
  rocksdb::Options database;
  database.env = &env;
  database.create_if_missing = true;
  database.paranoid_checks = true;
  // Replays what a crash left up to the first record that is not whole. Every commit that ended
  // was synced, so what comes after belongs to commits that were in flight; or damage_of_logs()
  // has found it before.
  database.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  database.track_and_verify_wals_in_manifest = true;
  database.write_buffer_size = kMemtableBytes;
  database.max_write_buffer_number = 2;
  database.max_total_wal_size = kLargestWalBytes;
  database.max_background_jobs = kBackgroundJobs;
  database.max_open_files = kOpenFiles;
  database.max_manifest_file_size = kLargestManifestBytes;
  database.compression = rocksdb::kNoCompression;
  database.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  database.max_log_file_size = kLogFileBytes;
  database.keep_log_file_num = 2;
  database.stats_dump_period_sec = 0;  // An idle store does nothing.
  database.stats_persist_period_sec = 0;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(kBlockCacheBytes);
  database.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return database;
}

Error to_error(const rocksdb::Status& status) {
  if (status.ok()) return Error::kNone;
  if (status.IsNoSpace()) return Error::kNoSpace;
  if (status.IsCorruption()) return Error::kDataCorrupt;
  if (status.IsMemoryLimit()) return Error::kNoMemory;
  return Error::kHardware;
}

constexpr std::string_view kCorruption = "Corruption: ";

std::string open_error(const rocksdb::Status& status) {
  const bool bare = status.IsCorruption() && status.getState() != nullptr;
  std::string text = bare ? status.getState() : status.ToString();
  std::ranges::replace(text, '\n', ' ');
  if (text.find("lock hold by current process") != std::string::npos) {
    return "open already in this process";
  }
  if (text.find("While lock file") != std::string::npos) return "in use by another process";
  if (status.IsCorruption()) {
    // "Corruption: Corruption: IO error: No such file or directory: …"
    while (text.starts_with(kCorruption)) text.erase(0, kCorruption.size());
    return fmt::format(
        "is damaged: {}; set it aside and take in an export in its place: sandbayd "
        "--config FILE --import EXPORT",
        text);
  }
  if (status.IsNoSpace() && status.getState() != nullptr) {
    return fmt::format("no space: {}", status.getState());
  }
  return "cannot be opened: " + text;
}

// What would make RocksDB's own message obscure; an empty text if nothing is wrong.
std::string path_error(const std::string& path) {
  std::error_code ignored;
  std::filesystem::path directory = std::filesystem::absolute(path, ignored);
  if (!directory.has_filename()) directory = directory.parent_path();  // "state/"
  const std::filesystem::file_status found = std::filesystem::status(directory, ignored);
  if (std::filesystem::is_directory(found)) return {};
  if (std::filesystem::exists(found)) return "is not a directory";
  const std::filesystem::path parent = directory.parent_path();
  if (!std::filesystem::is_directory(parent, ignored)) {
    return fmt::format("cannot be made: {} is not a directory", parent.string());
  }
  return {};
}

void append(rocksdb::WriteBatch& to, const Batch::Change& change) {
  switch (change.kind) {
    case Batch::Kind::kPut:
      to.Put(change.key, change.value);
      return;
    case Batch::Kind::kErase:
      to.Delete(change.key);
      return;
    case Batch::Kind::kErasePrefix:
      to.DeleteRange(change.key, end_of_prefix(change.key));
      return;
  }
}

}  // namespace

class RocksDbStore final : public Store {
 public:
  RocksDbStore(Executor& home, RocksDbOptions options)
      : home_(home), options_(std::move(options)), env_(env_on(options_.env)) {}
  ~RocksDbStore() override;

  Task<std::string> open();  // What is wrong, or an empty text.

  Executor& home() const noexcept override { return home_; }
  Task<Result<std::optional<std::string>>> get(std::string key) override;
  Task<Result<std::vector<Entry>>> list(std::string prefix, std::string after,
                                        std::size_t limit) override;
  Task<Error> commit(Batch batch) override;
  bool in_doubt() const noexcept override { return in_doubt_; }
  Task<void> close() override;

 private:
  enum class Kind : unsigned char { kOpen, kGet, kList, kCommit, kClose };

  struct Call : Message {
    explicit Call(Kind what) : kind(what) {}
    Kind kind;
    std::coroutine_handle<> waiting;
    Call* next_call = nullptr;
    // What it asks for.
    std::string key;  // Or the prefix.
    std::string after;
    std::size_t limit = 0;
    Batch batch;
    // What it answers.
    Error error = Error::kNone;
    bool in_doubt = false;
    std::string text;
    std::optional<std::string> value;
    std::vector<Entry> entries;
  };

  // Awaiting it hands the call to the thread and resumes when the answer has come home.
  struct Crossing {
    RocksDbStore& store;
    Call& call;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) const {
      call.waiting = handle;
      call.run = [](Message& message) { static_cast<Call&>(message).waiting.resume(); };
      store.queue(call);
    }
    void await_resume() const noexcept {}
  };

  void queue(Call& call);
  void queue_stop();

  // On the thread.
  void run_thread();
  void serve(Call* first);
  Call* serve_commits(Call* first);
  void serve_open(Call& call);
  void serve_get(Call& call);
  void serve_list(Call& call);
  Error write(rocksdb::WriteBatch& batch, const Call* first, const Call* end);
  void take_out_of_doubt();
  rocksdb::Status reopen();
  rocksdb::Status check_files();
  std::uint64_t free_bytes();
  bool add_old_values(const Call& call, rocksdb::WriteBatch& undo);
  bool add_old_value(const std::string& key, rocksdb::WriteBatch& undo);
  void answer(Call& call) { home_.send(call); }

  Executor& home_;
  RocksDbOptions options_;
  std::unique_ptr<rocksdb::Env> env_;  // Outlives the database.
  Gate gate_;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable not_empty_;
  Call* first_ = nullptr;  // Guarded by mutex_, as are the next two.
  Call* last_ = nullptr;
  bool stop_ = false;
  bool in_doubt_ = false;  // At home.

  // Only on the thread.
  std::unique_ptr<rocksdb::DB> database_;  // Null while it is closed after a failed write.
  // Set from a failed write until what it might have changed is as before: what made it fail, and
  // what puts that back; null if that could not be read, and then only a new opening helps.
  std::optional<Error> failed_;
  std::unique_ptr<rocksdb::WriteBatch> undo_;
};

RocksDbStore::~RocksDbStore() {
  assert(gate_.count() == 0);
  if (!thread_.joinable()) return;
  queue_stop();
  thread_.join();
}

Task<std::string> RocksDbStore::open() {
  thread_ = std::thread([this] { run_thread(); });
  Call call(Kind::kOpen);
  co_await Crossing{*this, call};
  co_return std::move(call.text);
}

Task<Result<std::optional<std::string>>> RocksDbStore::get(std::string key) {
  if (!gate_.enter()) co_return std::unexpected(Error::kClosed);
  const GateHold hold(gate_);
  Call call(Kind::kGet);
  call.key = std::move(key);
  co_await Crossing{*this, call};
  if (call.error != Error::kNone) co_return std::unexpected(call.error);
  co_return std::move(call.value);
}

Task<Result<std::vector<Entry>>> RocksDbStore::list(std::string prefix, std::string after,
                                                    std::size_t limit) {
  assert(limit > 0);
  if (!gate_.enter()) co_return std::unexpected(Error::kClosed);
  const GateHold hold(gate_);
  Call call(Kind::kList);
  call.key = std::move(prefix);
  call.after = std::move(after);
  call.limit = limit;
  co_await Crossing{*this, call};
  if (call.error != Error::kNone) co_return std::unexpected(call.error);
  co_return std::move(call.entries);
}

Task<Error> RocksDbStore::commit(Batch batch) {
  if (!gate_.enter()) co_return Error::kClosed;
  const GateHold hold(gate_);
  if (batch.empty()) co_return Error::kNone;
  Call call(Kind::kCommit);
  call.batch = std::move(batch);
  co_await Crossing{*this, call};
  in_doubt_ = call.in_doubt;
  co_return call.error;
}

Task<void> RocksDbStore::close() {
  const bool first = !gate_.closed();
  co_await gate_.close();
  if (!first) co_return;
  Call call(Kind::kClose);
  co_await Crossing{*this, call};
  queue_stop();
  thread_.join();  // It has nothing left to do but end.
}

void RocksDbStore::queue(Call& call) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    wake = first_ == nullptr;
    if (wake) {
      first_ = &call;
    } else {
      last_->next_call = &call;
    }
    last_ = &call;
  }
  if (wake) not_empty_.notify_one();
}

void RocksDbStore::queue_stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  not_empty_.notify_one();
}

void RocksDbStore::run_thread() {
  pthread_setname_np(pthread_self(), "metadata");
  while (true) {
    Call* calls = nullptr;
    {
      std::unique_lock lock(mutex_);
      not_empty_.wait(lock, [this] { return first_ != nullptr || stop_; });
      calls = std::exchange(first_, nullptr);
      last_ = nullptr;
    }
    if (calls == nullptr) break;  // Stopped, and everything that was asked for is answered.
    serve(calls);
  }
  database_.reset();
}

void RocksDbStore::serve(Call* first) {
  while (first != nullptr) {
    if (first->kind == Kind::kCommit) {
      first = serve_commits(first);
      continue;
    }
    Call& call = *first;
    first = call.next_call;
    switch (call.kind) {
      case Kind::kOpen:
        serve_open(call);
        break;
      case Kind::kGet:
        serve_get(call);
        break;
      case Kind::kList:
        take_out_of_doubt();
        if (failed_) {
          call.error = *failed_;
        } else {
          serve_list(call);
        }
        break;
      case Kind::kClose:
        take_out_of_doubt();
        database_.reset();
        break;
      case Kind::kCommit:
        break;
    }
    answer(call);
  }
}

// Writes the commits at the front together and returns what comes after them.
RocksDbStore::Call* RocksDbStore::serve_commits(Call* first) {
  rocksdb::WriteBatch together;
  Call* end = first;
  while (end != nullptr && end->kind == Kind::kCommit && together.GetDataSize() < kGroupBytes) {
    for (const Batch::Change& change : end->batch.changes()) append(together, change);
    end = end->next_call;
  }
  const Error error = write(together, first, end);
  while (first != end) {
    Call& call = *first;
    first = call.next_call;
    call.error = error;
    call.in_doubt = failed_.has_value();
    answer(call);
  }
  return end;
}

// The batch is that of the commits from `first` up to `end`.
Error RocksDbStore::write(rocksdb::WriteBatch& batch, const Call* first, const Call* end) {
  take_out_of_doubt();
  if (failed_) return *failed_;
  if (free_bytes() < kReservedBytes + 3 * batch.GetDataSize()) return Error::kNoSpace;
  rocksdb::WriteOptions options;
  options.sync = true;
  const rocksdb::Status status = database_->Write(options, &batch);
  if (status.ok()) return Error::kNone;
  failed_ = to_error(status);
  undo_ = std::make_unique<rocksdb::WriteBatch>();
  // What failed is not to be seen yet.
  for (; first != end && undo_ != nullptr; first = first->next_call) {
    if (!add_old_values(*first, *undo_)) undo_.reset();
  }
  const Error error = *failed_;
  database_.reset();
  take_out_of_doubt();
  return error;
}

// Changes nothing but failed_ if it cannot be done now.
void RocksDbStore::take_out_of_doubt() {
  if (!failed_ || undo_ == nullptr) return;
  rocksdb::Status status = reopen();
  if (status.ok() && undo_->Count() > 0) {
    rocksdb::WriteOptions options;
    options.sync = true;
    status = database_->Write(options, undo_.get());
  }
  if (status.ok()) {
    failed_.reset();
    undo_.reset();
    return;
  }
  failed_ = to_error(status);
  database_.reset();
}

rocksdb::Status RocksDbStore::reopen() {
  const rocksdb::Status ready = check_files();
  if (!ready.ok()) return ready;
  rocksdb::DB* database = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::Open(database_options(*env_), options_.path, &database);
  database_.reset(database);
  return status;
}

// What RocksDB would not survive, or would name obscurely.
rocksdb::Status RocksDbStore::check_files() {
  if (free_bytes() < kReservedBytes) {
    return rocksdb::Status::NoSpace(
        fmt::format("{} KiB are free where it stands; make room for {} MiB", free_bytes() >> 10,
                    kReservedBytes >> 20));
  }
  rocksdb::FileSystem& files = *env_->GetFileSystem();
  if (!files.FileExists(options_.path, {}, nullptr).ok()) return rocksdb::Status::OK();
  const std::string name = options_.path + "/probe";
  rocksdb::Status status =
      rocksdb::WriteStringToFile(env_.get(), std::string(kProbeBytes, '\0'), name, true);
  if (status.ok()) status = files.DeleteFile(name, {}, nullptr);
  if (!status.ok()) return status;
  rocksdb::FileLock* lock = nullptr;  // Nobody appends while they are looked at.
  status = files.LockFile(options_.path + "/LOCK", {}, &lock, nullptr);
  if (!status.ok()) return status;
  const std::string damage = damage_of_logs(files, options_.path);
  status = files.UnlockFile(lock, {}, nullptr);
  return damage.empty() ? status : rocksdb::Status::Corruption(damage);
}

// Without an answer, and where the filesystem has no size (ramfs), as much as there may be.
std::uint64_t RocksDbStore::free_bytes() {
  std::error_code ignored;
  std::filesystem::path path = options_.path;
  if (!std::filesystem::exists(path, ignored)) {
    path = std::filesystem::absolute(path, ignored).parent_path();
  }
  std::uint64_t bytes = 0;
  const rocksdb::IOStatus status =
      env_->GetFileSystem()->GetFreeSpace(path.string(), {}, &bytes, nullptr);
  const bool unlimited = bytes == 0 && std::filesystem::space(path, ignored).capacity == 0;
  return status.ok() && !unlimited ? bytes : std::numeric_limits<std::uint64_t>::max();
}

// False if they cannot be read.
bool RocksDbStore::add_old_values(const Call& call, rocksdb::WriteBatch& undo) {
  for (const Batch::Change& change : call.batch.changes()) {
    if (change.kind != Batch::Kind::kErasePrefix) {
      if (!add_old_value(change.key, undo)) return false;
      continue;
    }
    Call all(Kind::kList);
    all.key = change.key;
    all.limit = std::numeric_limits<std::size_t>::max();
    serve_list(all);
    if (all.error != Error::kNone) return false;
    for (const auto& [key, value] : all.entries) undo.Put(key, value);
  }
  return true;
}

bool RocksDbStore::add_old_value(const std::string& key, rocksdb::WriteBatch& undo) {
  std::string value;
  const rocksdb::Status status = database_->Get(rocksdb::ReadOptions(), key, &value);
  if (status.ok()) undo.Put(key, value);
  if (status.IsNotFound()) undo.Delete(key);
  return status.ok() || status.IsNotFound();
}

void RocksDbStore::serve_open(Call& call) {
  call.text = path_error(options_.path);
  if (call.text.empty()) {
    const rocksdb::Status status = reopen();
    if (!status.ok()) call.text = open_error(status);
  }
  if (!call.text.empty()) call.text = fmt::format("metadata {}: {}", options_.path, call.text);
}

void RocksDbStore::serve_get(Call& call) {
  take_out_of_doubt();
  if (failed_) {
    call.error = *failed_;
    return;
  }
  std::string value;
  const rocksdb::Status status = database_->Get(rocksdb::ReadOptions(), call.key, &value);
  if (status.ok()) call.value = std::move(value);
  if (!status.IsNotFound()) call.error = to_error(status);
}

void RocksDbStore::serve_list(Call& call) {
  const std::string end = end_of_prefix(call.key);
  const rocksdb::Slice upper_bound(end);
  rocksdb::ReadOptions options;
  options.iterate_upper_bound = &upper_bound;
  const std::unique_ptr<rocksdb::Iterator> entry(database_->NewIterator(options));
  if (call.after < call.key) {
    entry->Seek(call.key);
  } else {
    // The least key after `after`; with an empty prefix and an empty `after`, the first of all.
    if (!call.after.empty()) call.after.push_back('\0');
    entry->Seek(call.after);
  }
  while (entry->Valid() && call.entries.size() < call.limit) {
    call.entries.emplace_back(entry->key().ToString(), entry->value().ToString());
    entry->Next();
  }
  call.error = to_error(entry->status());
}

Task<std::expected<std::unique_ptr<Store>, std::string>> open_rocksdb_store(
    Executor& home, RocksDbOptions options) {
  assert(Executor::current_or_null() == &home);
  auto store = std::make_unique<RocksDbStore>(home, std::move(options));
  std::string wrong = co_await store->open();
  if (!wrong.empty()) co_return std::unexpected(std::move(wrong));
  co_return store;
}

}  // namespace sandbay::metadata
