// RocksDbStore where RocksDB itself is on trial: a process killed while it commits, files that lose
// what was not synced, a full disk, and directories that cannot be opened. What a store holds is
// judged by commit_history.h: every acknowledged batch is there, and all that are there are whole.
#include "metadata/rocksdb_store.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>

#include "commit_history.h"
#include "lossy_file_system.h"
#include "runtime/sync.h"
#include "tests/unit/block/on_executor.h"
#include "tests/unit/block/scratch_directory.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace sandbay::metadata::testing {
namespace {

using sandbay::testing::run_on_reactor;
using sandbay::testing::ScratchDirectory;

Task<std::unique_ptr<Store>> open(Executor& home, RocksDbOptions options) {
  auto opened = co_await open_rocksdb_store(home, std::move(options));
  if (!opened.has_value()) FAIL(opened.error());
  co_return std::move(*opened);
}

// A commit-loop process and the pipe through which it tells what was acknowledged.
class CommitLoop {
 public:
  CommitLoop(const std::string& path, std::uint64_t first, unsigned committers) {
    int ends[2] = {-1, -1};
    REQUIRE(pipe(ends) == 0);
    output_ = ends[0];
    const std::string program =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "unit/metadata/commit-loop";
    std::string arguments[] = {program, path, std::to_string(first), std::to_string(committers)};
    char* vector[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                      arguments[3].data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    REQUIRE(posix_spawn(&process_, program.c_str(), &actions, nullptr, vector, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
  }
  ~CommitLoop() {
    kill_now();
    close(output_);
  }
  CommitLoop(const CommitLoop&) = delete;
  CommitLoop& operator=(const CommitLoop&) = delete;

  // Waits for the next acknowledged number; false if there will be none.
  bool next(std::uint64_t& number) {
    return read(output_, &number, sizeof number) == sizeof number;
  }

  void kill_now() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
  }

 private:
  pid_t process_ = -1;
  int output_ = -1;
};

Task<void> check_store(Executor& home, std::string path, std::uint64_t acknowledged,
                       std::uint64_t& there) {
  auto store = co_await open(home, {.path = std::move(path)});
  there = co_await check_history(*store, acknowledged + 100);
  CHECK(there >= acknowledged);
  co_await store->close();
}

Task<void> try_to_open(Executor& home, std::string path, std::string& result) {
  auto opened = co_await open_rocksdb_store(home, {.path = std::move(path)});
  result = opened.has_value() ? "opened" : opened.error();
  if (opened.has_value()) co_await (*opened)->close();
}

std::string opening(const std::string& path) {
  std::string result;
  run_on_reactor([&](Executor& home) { return try_to_open(home, path, result); });
  return result;
}

struct Progress {
  std::uint64_t asked = 0;
  std::uint64_t acknowledged = 0;
};

Task<void> commit_until_error(Store& store, Progress& progress, std::size_t value_bytes,
                              Gate& gate) {
  const GateHold hold(gate);
  while (true) {
    const std::uint64_t number = ++progress.asked;
    const Error error = co_await store.commit(history_batch(number, value_bytes));
    if (error != Error::kNone) break;
    progress.acknowledged = std::max(progress.acknowledged, number);
  }
}

// A store on lossy files that is opened, written until the power is cut, and opened again, life by
// life. Seeds live at the same time, since RocksDB sleeps for a second after each failed flush.
struct Existence {
  std::uint64_t seed = 0;
  ScratchDirectory scratch = {};
  Progress progress = {};
  std::uint64_t bytes_lost = 0;
  std::uint64_t entries_undone = 0;
  std::uint64_t manifests_torn = 0;
};

// Opens the store and checks it. A failure names `life`.
Task<std::unique_ptr<Store>> open_again(Executor& home, RocksDbOptions options, Progress& progress,
                                        std::string life) {
  auto opened = co_await open_rocksdb_store(home, std::move(options));
  if (!opened.has_value()) {
    FAIL_CHECK(life << " is not opened: " << opened.error());
    co_return nullptr;
  }
  const std::uint64_t there = co_await check_history(**opened, progress.asked, life);
  INFO(life);
  CHECK(there >= progress.acknowledged);
  progress = {.asked = there, .acknowledged = there};
  co_return std::move(*opened);
}

// Commits, and cuts the power at some moment.
Task<void> commit_until_cut(Executor& home, Store& store, LossyFileSystem& files,
                            Progress& progress, Random& random) {
  Gate gate;
  const std::size_t value_bytes = random.chance(0.7) ? 100 : 50'000;  // With and without flushes.
  const std::uint64_t committers = random.between(1, 8);
  for (std::uint64_t i = 0; i < committers; ++i) {
    CHECK(gate.enter());
    spawn(commit_until_error(store, progress, value_bytes, gate));
  }
  co_await home.sleep_for(std::chrono::microseconds(random.between(0, 15'000)));
  files.cut_power();
  co_await gate.close();
}

// The same, and the power goes at the next sync of a file of that name: when a memtable is flushed.
Task<void> commit_until_flush(Store& store, LossyFileSystem& files, Progress& progress,
                              std::string cut_at) {
  files.cut_power(std::move(cut_at));
  Gate gate;
  for (int i = 0; i < 4; ++i) {
    CHECK(gate.enter());
    spawn(commit_until_error(store, progress, 50'000, gate));
  }
  co_await gate.close();
}

Task<void> die_at_flush(Executor& home, RocksDbOptions options, LossyFileSystem& files,
                        Progress& progress) {
  auto store = co_await open(home, std::move(options));
  co_await commit_until_flush(*store, files, progress, "MANIFEST-");
  co_await store->close();
}

enum class Cut { kAnywhere, kAtFlush };

Task<void> live(Executor& home, Existence& existence, Cut cut, Gate& gate) {
  const GateHold hold(gate);
  Random random(existence.seed);
  for (int life = 0; life < 4; ++life) {
    const std::string cut_at = random.chance(0.7) ? "MANIFEST-" : ".synced";
    const auto files = std::make_shared<LossyFileSystem>(random.next());
    const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(files);
    auto store = co_await open_again(
        home, {.path = existence.scratch.file("db"), .env = env.get()}, existence.progress,
        fmt::format("life {} of seed {}, cut at {}", life, existence.seed, cut_at));
    if (store == nullptr) co_return;
    if (cut == Cut::kAnywhere) {
      co_await commit_until_cut(home, *store, *files, existence.progress, random);
    } else {
      co_await commit_until_flush(*store, *files, existence.progress, cut_at);
    }
    co_await store->close();
    store.reset();
    files->apply_losses();
    existence.bytes_lost += files->bytes_lost();
    existence.entries_undone += files->entries_undone();
    existence.manifests_torn += files->manifests_torn();
  }
}

Task<void> live_together(Executor& home, std::deque<Existence>& existences, Cut cut) {
  Gate gate;
  for (Existence& existence : existences) {
    REQUIRE(gate.enter());
    spawn(live(home, existence, cut, gate));
  }
  co_await gate.close();
}

// All databases of a process flush on the same threads, and a database that asks for more leaves
// them behind. (Env::SetBackgroundThreads() ends in a jump out of RocksDB, which TSan misreads.)
void have_flushing_threads(std::uint64_t count) {
  const ScratchDirectory scratch;
  rocksdb::Options options;
  options.create_if_missing = true;
  options.max_background_jobs = static_cast<int>(4 * count);  // A quarter of them flush.
  rocksdb::DB* database = nullptr;
  REQUIRE(rocksdb::DB::Open(options, scratch.file("db"), &database).ok());
  delete database;
}

std::deque<Existence> live_with_seeds(std::uint64_t count, Cut cut) {
  have_flushing_threads(count);
  std::deque<Existence> existences;
  for (std::uint64_t seed = 1; seed <= count; ++seed) existences.emplace_back(seed);
  run_on_reactor([&](Executor& home) { return live_together(home, existences, cut); });
  return existences;
}

Task<void> commit_some(Executor& home, RocksDbOptions options, std::uint64_t count) {
  auto store = co_await open(home, std::move(options));
  for (std::uint64_t number = 1; number <= count; ++number) {
    const Error error =
        co_await store->commit(history_batch(number, number % 50 == 0 ? 40'000 : 100));
    REQUIRE(error == Error::kNone);
  }
  co_await store->close();
}

std::string only_log(const std::string& directory) {
  std::string found;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != ".log") continue;
    REQUIRE(found.empty());
    found = entry.path();
  }
  REQUIRE(!found.empty());
  return found;
}

void flip(const std::string& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const auto byte = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 0x55));
}

void write_zeros(const std::string& path, std::uint64_t offset, std::uint64_t byte_count) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file << std::string(byte_count, '\0');
}

Task<void> disk_fills(Executor& home, RocksDbOptions options, LossyFileSystem& files) {
  auto store = co_await open(home, options);
  Error error = co_await store->commit(history_batch(1, 100));
  CHECK(error == Error::kNone);
  files.set_full(true);
  for (int attempt = 0; attempt < 2; ++attempt) {
    Batch batch;
    batch.put("not", "there");
    error = co_await store->commit(std::move(batch));
    CHECK(error == Error::kNoSpace);
    CHECK_FALSE(store->in_doubt());  // Nothing was begun.
    const auto missing = co_await store->get("not");
    CHECK((missing.has_value() && !missing->has_value()));
  }
  const auto second =
      co_await open_rocksdb_store(home, {.path = options.path + "2", .env = options.env});
  CHECK_FALSE(second.has_value());
  if (!second.has_value()) {
    CHECK(second.error() ==
          "metadata " + options.path +
              "2: no space: 0 KiB are free where it stands; make room for 16 MiB");
  }
  files.set_full(false);
  error = co_await store->commit(history_batch(2, 100));
  CHECK(error == Error::kNone);
  co_await store->close();
  store = co_await open(home, options);
  const std::uint64_t there = co_await check_history(*store, 10);
  CHECK(there == 2);
  co_await store->close();
}

}  // namespace

// Goal: every batch that a killed process had acknowledged is there afterwards, and what was in
// flight is whole.
TEST_CASE("RocksDB keeps acknowledged batches when the process is killed", "[metadata]") {
  const auto committers = GENERATE(1U, 8U);
  CAPTURE(committers);
  const ScratchDirectory scratch;
  Random random(committers);
  std::uint64_t there = 0;
  for (int life = 0; life < 5; ++life) {
    CAPTURE(life);
    std::uint64_t acknowledged = there;
    CommitLoop loop(scratch.file("db"), there + 1, committers);
    for (std::uint64_t wanted = random.between(1, 100); wanted > 0; --wanted) {
      std::uint64_t number = 0;
      REQUIRE(loop.next(number));
      acknowledged = std::max(acknowledged, number);
    }
    loop.kill_now();
    for (std::uint64_t number = 0; loop.next(number);) {
      acknowledged = std::max(acknowledged, number);
    }
    run_on_reactor(
        [&](Executor& home) { return check_store(home, scratch.file("db"), acknowledged, there); });
  }
}

// Goal: the same when the machine goes down with the process and files lose what was not synced.
TEST_CASE("RocksDB keeps acknowledged batches when un-synced writes are lost", "[metadata]") {
  std::uint64_t bytes_lost = 0;
  std::uint64_t entries_undone = 0;
  for (const Existence& existence : live_with_seeds(8, Cut::kAnywhere)) {
    bytes_lost += existence.bytes_lost;
    entries_undone += existence.entries_undone;
  }
  CHECK(bytes_lost + entries_undone > 0);  // Or nothing was on trial.
}

// Goal: the same when the power goes while RocksDB writes down which of its files count.
TEST_CASE("RocksDB opens after a power cut that tears its MANIFEST", "[metadata]") {
  std::uint64_t manifests_torn = 0;
  for (const Existence& existence : live_with_seeds(4, Cut::kAtFlush)) {
    manifests_torn += existence.manifests_torn;
  }
  CHECK(manifests_torn > 0);  // Or nothing was on trial.
}

// Goal: what with_whole_manifests is for. A record was appended to the MANIFEST, the power went
// before the sync, and the disk has all of its bytes but one.
TEST_CASE("RocksDB alone would refuse a MANIFEST with a torn record", "[metadata]") {
  const ScratchDirectory scratch;
  const auto files = std::make_shared<LossyFileSystem>(1);
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(files);
  Progress progress;
  run_on_reactor([&](Executor& home) {
    const RocksDbOptions options{.path = scratch.file("db"), .env = env.get()};
    return die_at_flush(home, options, *files, progress);
  });
  std::string manifest;
  std::getline(std::ifstream(scratch.file("db/CURRENT")), manifest);
  const std::string path = scratch.file("db/" + manifest);
  const std::uint64_t synced = files->synced_bytes(path);
  const std::uint64_t there = std::filesystem::file_size(path);
  REQUIRE(there > synced + 1);  // Or nothing is on trial.
  std::fstream damaged(path, std::ios::in | std::ios::out | std::ios::binary);
  damaged.seekg(static_cast<std::streamoff>(there - 1));
  const auto last = static_cast<char>(damaged.get());
  damaged.seekp(static_cast<std::streamoff>(there - 1));
  damaged.put(static_cast<char>(last ^ 0x55));
  damaged.close();

  std::filesystem::copy(scratch.file("db"), scratch.file("copy"),
                        std::filesystem::copy_options::recursive);
  rocksdb::DB* alone = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open({}, scratch.file("copy"), &alone);
  const std::unique_ptr<rocksdb::DB> owner(alone);
  CHECK(status.IsCorruption());
  std::uint64_t count = 0;
  run_on_reactor([&](Executor& home) {
    return check_store(home, scratch.file("db"), progress.acknowledged, count);
  });
}

TEST_CASE("A MANIFEST that lost what was synced is refused by name", "[metadata]") {
  const ScratchDirectory scratch;
  REQUIRE(opening(scratch.file("db")) == "opened");
  std::string manifest;
  std::getline(std::ifstream(scratch.file("db/CURRENT")), manifest);
  const std::string path = scratch.file("db/" + manifest);
  REQUIRE(std::filesystem::exists(path + ".synced"));
  const std::uint64_t synced = std::filesystem::file_size(path);
  SECTION("a byte less") {
    std::filesystem::resize_file(path, synced - 1);
    const std::string damaged = opening(scratch.file("db"));
    CHECK(damaged.starts_with("metadata " + scratch.file("db") + ": is damaged: "));
    CHECK(damaged.find(manifest) != std::string::npos);
  }
  SECTION("a byte more is none that counts") {
    std::ofstream(path, std::ios::app) << std::string(600, 'x');
    CHECK(opening(scratch.file("db")) == "opened");
    CHECK_FALSE(std::filesystem::exists(path + ".synced"));  // It went with its MANIFEST.
  }
}

// Goal: acknowledged commits do not go without a word when a log is damaged, and what a crash
// leaves of one is no damage.
TEST_CASE("A log that lost what was synced is refused by name", "[metadata]") {
  const ScratchDirectory scratch;
  // Without waiting for the disk at each commit.
  const std::unique_ptr<rocksdb::Env> env =
      rocksdb::NewCompositeEnv(std::make_shared<LossyFileSystem>(1));
  run_on_reactor([&](Executor& home) {
    return commit_some(home, {.path = scratch.file("db"), .env = env.get()}, 340);
  });
  const std::string path = only_log(scratch.file("db"));
  const std::uint64_t byte_count = std::filesystem::file_size(path);
  REQUIRE(byte_count > 3 * 32768);
  const std::string damaged = "metadata " + scratch.file("db") + ": is damaged: its log " +
                              std::filesystem::path(path).filename().string();
  SECTION("a byte near its begin") {
    flip(path, 100);
    CHECK(opening(scratch.file("db")).starts_with(damaged + " is damaged at byte 0, "));
  }
  SECTION("a byte of each part") {
    const auto part = GENERATE(range(1, 8));
    flip(path, byte_count / 8 * static_cast<unsigned>(part) + 3);
    CHECK(opening(scratch.file("db")).starts_with(damaged + " is damaged at byte "));
  }
  SECTION("zeros instead of its middle") {
    write_zeros(path, byte_count / 3, byte_count / 3);
    CHECK(opening(scratch.file("db")).starts_with(damaged + " is damaged at byte "));
  }
  SECTION("zeros alone") {
    write_zeros(path, 0, byte_count);
    CHECK(opening(scratch.file("db")).starts_with(damaged + " has no whole record; "));
  }
  SECTION("nothing") {
    std::filesystem::resize_file(path, 0);
    CHECK(opening(scratch.file("db")).starts_with(damaged + " has no whole record; "));
  }
  SECTION("it is gone") {
    std::filesystem::remove(path);
    CHECK(opening(scratch.file("db")).starts_with(damaged + " is missing; "));
  }
  SECTION("its last record is torn, as by a crash") {
    flip(path, byte_count - 1);
    CHECK(opening(scratch.file("db")) == "opened");
  }
  SECTION("rubbish behind it, as by a crash") {
    std::ofstream(path, std::ios::app) << std::string(5000, 'x') << std::string(9000, '\1');
    CHECK(opening(scratch.file("db")) == "opened");
  }
}

TEST_CASE("A full disk refuses commits and goes on when there is room", "[metadata]") {
  const ScratchDirectory scratch;
  const auto files = std::make_shared<LossyFileSystem>(1);
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(files);
  const RocksDbOptions options{.path = scratch.file("db"), .env = env.get()};
  run_on_reactor([&](Executor& home) { return disk_fills(home, options, *files); });
}

TEST_CASE("A store in use by another process is refused by name", "[metadata]") {
  const ScratchDirectory scratch;
  const std::string path = scratch.file("db");
  CommitLoop holder(path, 1, 0);
  std::uint64_t ready = 1;
  REQUIRE(holder.next(ready));
  CHECK(opening(path) == "metadata " + path + ": in use by another process");
  holder.kill_now();
  CHECK(opening(path) == "opened");
}

TEST_CASE("Directories that cannot hold a store are refused by name", "[metadata]") {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("file");
  std::ofstream(file) << "text";
  CHECK(opening(file) == "metadata " + file + ": is not a directory");
  const std::string orphan = scratch.file("missing/db");
  CHECK(opening(orphan) == "metadata " + orphan + ": cannot be made: " + scratch.file("missing") +
                               " is not a directory");
  CHECK(opening(scratch.file("new/")) == "opened");
  std::ofstream(scratch.file("new/CURRENT"), std::ios::trunc) << "rubbish\n";
  const std::string damaged = opening(scratch.file("new"));
  CHECK(damaged.starts_with("metadata " + scratch.file("new") + ": is damaged: "));
  CHECK(damaged.find('\n') == std::string::npos);
  CHECK(damaged.find("Corruption: ") == std::string::npos);
  CHECK(
      damaged.ends_with("take in an export in its place: sandbayd --config FILE --import EXPORT"));
}

}  // namespace sandbay::metadata::testing
