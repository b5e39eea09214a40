// Commits whose sync fails after their bytes have reached the file, on both stores: such a batch is
// in the log, and must nevertheless not be there after the next opening, since whoever asked for it
// was told that it failed.
#include <catch2/catch.hpp>
#include <limits>

#include "lossy_file_system.h"
#include "metadata/rocksdb_store.h"
#include "metadata/simulated_store.h"
#include "runtime/io.h"
#include "tests/unit/block/on_executor.h"
#include "tests/unit/block/scratch_directory.h"

namespace sandbay::metadata::testing {
namespace {

using sandbay::testing::run_in_world;
using sandbay::testing::run_on_reactor;
using sandbay::testing::ScratchDirectory;

constexpr unsigned kAlways = std::numeric_limits<unsigned>::max();

// A file whose next syncs fail, as many as `failures` says.
class FlakyFile final : public File {
 public:
  FlakyFile(std::unique_ptr<File> file, unsigned* failures)
      : file_(std::move(file)), failures_(failures) {}
  Executor& home() const noexcept override { return file_->home(); }
  bool direct() const noexcept override { return file_->direct(); }
  std::size_t alignment() const noexcept override { return file_->alignment(); }
  bool is_block_device() const noexcept override { return file_->is_block_device(); }
  Task<Error> read(std::uint64_t offset, std::span<const IoSlice> target,
                   Cancellation* cancellation) override {
    return file_->read(offset, target, cancellation);
  }
  Task<Error> write(std::uint64_t offset, std::span<const IoSlice> source,
                    Cancellation* cancellation) override {
    return file_->write(offset, source, cancellation);
  }
  Task<Error> sync(Cancellation* cancellation) override {
    const Error error = co_await file_->sync(cancellation);
    if (*failures_ == 0) co_return error;
    --*failures_;
    co_return Error::kHardware;
  }
  Task<Result<std::uint64_t>> size() override { return file_->size(); }
  Task<Error> resize(std::uint64_t byte_count) override { return file_->resize(byte_count); }
  Task<Error> allocate(std::uint64_t offset, std::uint64_t byte_count) override {
    return file_->allocate(offset, byte_count);
  }
  Task<Error> punch_hole(std::uint64_t offset, std::uint64_t byte_count) override {
    return file_->punch_hole(offset, byte_count);
  }
  Task<Error> write_zeroes(std::uint64_t offset, std::uint64_t byte_count) override {
    return file_->write_zeroes(offset, byte_count);
  }
  Task<Result<Run>> run_at(std::uint64_t offset) override { return file_->run_at(offset); }

 private:
  std::unique_ptr<File> file_;
  unsigned* failures_;
};

// The store under test, and how its syncs are made to fail.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual Task<std::unique_ptr<Store>> open(Executor& home) = 0;
  virtual void fail_syncs(unsigned count) = 0;

 protected:
  static std::unique_ptr<Store> checked(std::expected<std::unique_ptr<Store>, std::string> opened) {
    if (!opened.has_value()) FAIL(opened.error());
    return std::move(*opened);
  }
};

class RocksDbSubject final : public Subject {
 public:
  explicit RocksDbSubject(std::string failing) : failing_(std::move(failing)) {}
  Task<std::unique_ptr<Store>> open(Executor& home) override {
    auto opened =
        co_await open_rocksdb_store(home, {.path = scratch_.file("db"), .env = env_.get()});
    co_return checked(std::move(opened));
  }
  void fail_syncs(unsigned count) override { files_->fail_syncs(failing_, count); }

 private:
  ScratchDirectory scratch_;
  std::string failing_;
  std::shared_ptr<LossyFileSystem> files_ = std::make_shared<LossyFileSystem>(1);
  std::unique_ptr<rocksdb::Env> env_ = rocksdb::NewCompositeEnv(files_);
};

class SimulatedSubject final : public Subject {
 public:
  Task<std::unique_ptr<Store>> open(Executor& home) override {
    auto file = co_await home.open_file("metadata.log", {.create = true});
    if (!file.has_value()) FAIL("the file cannot be opened");
    auto opened = co_await open_simulated_store(
        home, std::make_unique<FlakyFile>(std::move(*file), &failures_), "metadata.log");
    co_return checked(std::move(opened));
  }
  void fail_syncs(unsigned count) override { failures_ = count; }

 private:
  unsigned failures_ = 0;
};

Task<void> put(Store& store, std::string key, Error expected) {
  Batch batch;
  batch.put(std::move(key), "put");
  const Error error = co_await store.commit(std::move(batch));
  CHECK(error == expected);
}

Task<void> commit_everything_else(Store& store) {
  Batch batch;
  batch.put("a", "new");
  batch.put("never", "there");
  batch.erase("gone");
  batch.erase("was not there");
  batch.erase_prefix("p/");
  batch.put("p/1", "new");
  batch.put("p/3", "new");
  const Error error = co_await store.commit(std::move(batch));
  CHECK(error == Error::kHardware);
}

Task<void> check(Store& store, std::vector<Entry> expected) {
  const auto listed = co_await store.list("", "", 100);
  CHECK(listed.has_value());
  if (listed.has_value()) CHECK(*listed == expected);
}

const std::vector<Entry> kBefore = {{"a", "1"}, {"gone", "2"}, {"p/1", "3"}, {"p/2", "4"}};

std::vector<Entry> before_and(std::string key) {
  std::vector<Entry> entries = kBefore;
  entries.emplace_back(std::move(key), "put");
  return entries;
}

Task<void> commits_fail(Executor& home, Subject& subject, unsigned failures) {
  auto store = co_await subject.open(home);
  Batch first;
  for (const auto& [key, value] : kBefore) first.put(key, value);
  const Error error = co_await store->commit(std::move(first));
  CHECK(error == Error::kNone);
  subject.fail_syncs(failures);
  co_await commit_everything_else(*store);
  CHECK(store->in_doubt() == (failures == kAlways));
  if (failures == kAlways) {
    co_await put(*store, "refused", Error::kHardware);
    CHECK(store->in_doubt());
  }
  subject.fail_syncs(0);
  co_await check(*store, kBefore);
  co_await put(*store, "z", Error::kNone);
  CHECK_FALSE(store->in_doubt());
  co_await check(*store, before_and("z"));
  co_await store->close();
  store = co_await subject.open(home);
  co_await check(*store, before_and("z"));
  co_await store->close();
}

// Nothing follows the failed commit but the end.
Task<void> fails_last(Executor& home, Subject& subject, unsigned failures) {
  auto store = co_await subject.open(home);
  Batch first;
  for (const auto& [key, value] : kBefore) first.put(key, value);
  const Error error = co_await store->commit(std::move(first));
  CHECK(error == Error::kNone);
  subject.fail_syncs(failures);
  co_await commit_everything_else(*store);
  subject.fail_syncs(0);
  co_await store->close();
  store = co_await subject.open(home);
  co_await check(*store, kBefore);
  co_await store->close();
}

}  // namespace

TEST_CASE("A commit that failed has not happened on RocksDB", "[metadata]") {
  const auto* const failing = GENERATE(".log", "/");  // The log alone, or everything.
  const auto failures = GENERATE(1U, kAlways);
  CAPTURE(failing, failures);
  const auto body = GENERATE(commits_fail, fails_last);
  RocksDbSubject subject(failing);
  run_on_reactor([&](Executor& home) { return body(home, subject, failures); });
}

TEST_CASE("A commit that failed has not happened on the simulated store", "[metadata][sim]") {
  const auto failures = GENERATE(1U, kAlways);
  CAPTURE(failures);
  const auto body = GENERATE(commits_fail, fails_last);
  SimulatedSubject subject;
  run_in_world(1, [&](Executor& home) { return body(home, subject, failures); });
}

}  // namespace sandbay::metadata::testing
