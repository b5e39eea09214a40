// Files on a reactor, in a temporary directory: transfers, direct I/O, holes, cancellation. Files
// on filesystems that hang: they leave threads of the kernel to the others.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/cancellation.h"
#include "runtime/reactor.h"
#include "runtime/sync.h"
#include "tests/unit/random_fill.h"
#include "tests/unit/runtime/silent_filesystem.h"

namespace sandbay {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "runtime-test-XXXXXX").string();
    const char* const made = ::mkdtemp(name.data());
    REQUIRE(made != nullptr);
    path_ = made;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

void run(Task<void> (*body)(Executor&, std::string)) {
  const TemporaryDirectory directory;
  auto group =
      ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{64} << 20, .seed = 1});
  if (!group.has_value()) FAIL(group.error().text);
  Executor& executor = *(*group)->executors()[0];
  (*group)->run([&] { return body(executor, directory.file("file")); });
}

Bytes numbered(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  Bytes bytes(count);
  testing::fill_random(bytes, random);
  return bytes;
}

Task<Error> write_bytes(File& file, std::uint64_t offset, Bytes bytes) {
  const IoSlice slice{bytes.data(), bytes.size()};
  const Error error = co_await file.write(offset, {&slice, 1}, nullptr);
  co_return error;
}

Task<Result<Bytes>> read_bytes(File& file, std::uint64_t offset, std::size_t count) {
  Bytes bytes(count);
  const IoSlice slice{bytes.data(), bytes.size()};
  const Error error = co_await file.read(offset, {&slice, 1}, nullptr);
  if (error != Error::kNone) co_return std::unexpected(error);
  co_return bytes;
}

TEST_CASE("Reactor files are opened as the options say", "[reactor][file]") {
  run([](Executor& executor, std::string path) -> Task<void> {
    auto missing = co_await executor.open_file(path, {});
    CHECK(missing.error() == Error::kNotFound);
    auto made = co_await executor.open_file(path, {.create = true, .exclusive = true});
    CHECK(made.has_value());
    struct stat status{};
    CHECK(::stat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    auto again = co_await executor.open_file(path, {.create = true, .exclusive = true});
    CHECK(again.error() == Error::kExists);
    auto read_only = co_await executor.open_file(path, {.writable = false});
    CHECK(read_only.has_value());
    const Error error = co_await write_bytes(**read_only, 0, numbered(10, 1));
    CHECK(error != Error::kNone);
    CHECK_FALSE((*made)->is_block_device());
    CHECK_FALSE((*made)->direct());
    CHECK((*made)->alignment() == 1);
    CHECK(&(*made)->home() == &executor);
    auto folder = co_await executor.open_file(std::filesystem::path(path).parent_path(), {});
    CHECK_FALSE(folder.has_value());
  });
}

// A second descriptor of the open file at `path`, as a request that is not yet put away holds one.
int another_of(const std::string& path) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone) != path) continue;
    return ::dup(std::stoi(entry.path().filename().string()));
  }
  return -1;
}

TEST_CASE("The lock of a reactor file ends with it, whoever else still holds the file",
          "[reactor][file]") {
  run([](Executor& executor, std::string path) -> Task<void> {
    constexpr FileOptions kLocked{.create = true, .lock = true};
    auto first = co_await executor.open_file(path, kLocked);
    REQUIRE(first.has_value());
    const int held = another_of(path);
    REQUIRE(held >= 0);
    const auto refused = co_await executor.open_file(path, kLocked);
    CHECK(refused.error() == Error::kNotReady);
    first->reset();
    auto second = co_await executor.open_file(path, kLocked);
    CHECK(second.has_value());
    ::close(held);
  });
}

TEST_CASE("A reactor file whose lock is about to go is waited for", "[reactor][file]") {
  run([](Executor& executor, std::string path) -> Task<void> {
    const int held = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(::flock(held, LOCK_EX | LOCK_NB) == 0);
    std::thread letting_go([held] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ::close(held);
    });
    auto opened = co_await executor.open_file(path, {.lock = true});
    CHECK(opened.has_value());
    letting_go.join();
  });
}

TEST_CASE("Reactor transfers move every byte of many slices", "[reactor][file]") {
  run([](Executor& executor, std::string path) -> Task<void> {
    auto opened = co_await executor.open_file(path, {.create = true});
    File& file = **opened;
    // More slices than the kernel takes in one call.
    Bytes bytes = numbered(3000 * 100, 2);
    std::vector<IoSlice> slices;
    for (std::size_t i = 0; i < 3000; ++i) slices.push_back({bytes.data() + i * 100, 100});
    Error error = co_await file.write(5, slices, nullptr);
    CHECK(error == Error::kNone);
    auto size = co_await file.size();
    CHECK(size == 5 + bytes.size());
    Bytes read(bytes.size());
    for (std::size_t i = 0; i < 3000; ++i) slices[i].data = read.data() + i * 100;
    error = co_await file.read(5, slices, nullptr);
    CHECK(error == Error::kNone);
    CHECK(read == bytes);
    const auto past = co_await read_bytes(file, bytes.size(), 100);
    CHECK(past.error() == Error::kOutOfRange);
    error = co_await file.sync(nullptr);
    CHECK(error == Error::kNone);
    error = co_await file.resize(100);
    CHECK(error == Error::kNone);
    size = co_await file.size();
    CHECK(size == 100);
  });
}

Task<void> write_block(File& file, std::uint64_t index, Gate& gate) {
  const GateHold hold(gate);
  const Error error = co_await write_bytes(file, index * 4096, numbered(4096, index));
  CHECK(error == Error::kNone);
}

TEST_CASE("Many reactor transfers run at once", "[reactor][file]") {
  run([](Executor& executor, std::string path) -> Task<void> {
    auto opened = co_await executor.open_file(path, {.create = true});
    Gate gate;
    for (std::uint64_t i = 0; i < 3000; ++i) {
      CHECK(gate.enter());
      spawn(write_block(**opened, i, gate));
    }
    co_await gate.close();
    for (std::uint64_t i = 0; i < 3000; i += 17) {
      const auto bytes = co_await read_bytes(**opened, i * 4096, 4096);
      CHECK(bytes == numbered(4096, i));
    }
  });
}

TEST_CASE("Direct I/O where the filesystem can", "[reactor][file]") {
  run([](Executor& executor, std::string path) -> Task<void> {
    auto opened = co_await executor.open_file(path, {.create = true, .direct = true});
    CHECK(opened.has_value());
    File& file = **opened;
    CHECK(file.alignment() >= 1);
    CHECK(file.direct() == (file.alignment() > 1));
    const Buffer buffer = executor.buffers().try_allocate_contiguous(8192);
    const Bytes bytes = numbered(8192, 3);
    std::memcpy(buffer.data(), bytes.data(), bytes.size());
    IoSlice slice{buffer.data(), 8192};
    Error error = co_await file.write(4096, {&slice, 1}, nullptr);
    CHECK(error == Error::kNone);
    std::memset(buffer.data(), 0, 8192);
    error = co_await file.read(4096, {&slice, 1}, nullptr);
    CHECK(error == Error::kNone);
    CHECK(std::memcmp(buffer.data(), bytes.data(), 8192) == 0);
  });
}

TEST_CASE("Holes are punched and found", "[reactor][file]") {
  run([](Executor& executor, std::string path) -> Task<void> {
    auto opened = co_await executor.open_file(path, {.create = true});
    File& file = **opened;
    constexpr std::uint64_t kMiB = 1U << 20U;
    Error error = co_await file.resize(4 * kMiB);
    CHECK(error == Error::kNone);
    auto found = co_await file.run_at(0);
    CHECK(found->hole);
    CHECK(found->byte_count == 4 * kMiB);
    error = co_await write_bytes(file, kMiB, numbered(2 * kMiB, 4));
    CHECK(error == Error::kNone);
    found = co_await file.run_at(0);
    CHECK(found->hole);
    CHECK(found->byte_count == kMiB);
    found = co_await file.run_at(kMiB);
    CHECK_FALSE(found->hole);
    CHECK(found->byte_count == 2 * kMiB);
    error = co_await file.punch_hole(kMiB, kMiB);
    CHECK((error == Error::kNone || error == Error::kUnsupported));
    if (error == Error::kNone) {
      found = co_await file.run_at(0);
      CHECK(found->hole);
      CHECK(found->byte_count == 2 * kMiB);
      const auto bytes = co_await read_bytes(file, kMiB, kMiB);
      CHECK(bytes == Bytes(kMiB));
    }
    error = co_await file.write_zeroes(2 * kMiB, 4096);
    CHECK((error == Error::kNone || error == Error::kUnsupported));
    if (error == Error::kNone) {
      const auto bytes = co_await read_bytes(file, 2 * kMiB, 8192);
      Bytes expected = numbered(2 * kMiB, 4);
      expected.erase(expected.begin(), expected.begin() + kMiB);
      expected.resize(8192);
      std::fill_n(expected.begin(), 4096, std::byte{0});
      CHECK(bytes == expected);
    }
    error = co_await file.allocate(4 * kMiB, kMiB);
    CHECK((error == Error::kNone || error == Error::kUnsupported));
    const auto size = co_await file.size();
    CHECK(size == (error == Error::kNone ? 5 * kMiB : 4 * kMiB));
    found = co_await file.run_at(*size);
    CHECK(found.error() == Error::kOutOfRange);
  });
}

// Cancellation -----------------------------------------------------------------------------------

Task<void> read_cancellable(File& file, Bytes& memory, Cancellation& cancellation, Error& error,
                            Gate& gate) {
  const GateHold hold(gate);
  const IoSlice slice{memory.data(), memory.size()};
  error = co_await file.read(0, {&slice, 1}, &cancellation);
}

TEST_CASE("Cancelled reactor reads end, with their result or as cancelled", "[reactor][file]") {
  run([](Executor& executor, std::string path) -> Task<void> {
    auto opened = co_await executor.open_file(path, {.create = true});
    File& file = **opened;
    const Bytes bytes = numbered(1U << 20U, 5);
    Error error = co_await write_bytes(file, 0, bytes);
    CHECK(error == Error::kNone);
    std::vector<Bytes> memory(8, Bytes(bytes.size()));
    for (int round = 0; round < 50; ++round) {
      Cancellation cancellation;
      Gate gate;
      for (Bytes& each : memory) std::memset(each.data(), 0, each.size());
      std::vector<Error> errors(8, Error::kInvalid);
      for (std::size_t i = 0; i < 8; ++i) {
        CHECK(gate.enter());
        spawn(read_cancellable(file, memory[i], cancellation, errors[i], gate));
      }
      if (round % 2 == 0) co_await executor.yield();
      cancellation.cancel();
      co_await gate.close();
      for (std::size_t i = 0; i < 8; ++i) {
        CHECK((errors[i] == Error::kNone || errors[i] == Error::kCancelled));
        if (errors[i] != Error::kNone) continue;
        const int difference = std::memcmp(memory[i].data(), bytes.data(), bytes.size());
        CHECK(difference == 0);
      }
      const IoSlice slice{memory[0].data(), 1};
      error = co_await file.read(0, {&slice, 1}, &cancellation);
      CHECK(error == Error::kCancelled);
      error = co_await file.sync(&cancellation);
      CHECK(error == Error::kCancelled);
    }
  });
}

// Filesystems that hang --------------------------------------------------------------------------

using testing::SilentFilesystem;
using Call = Task<Error> (*)(File* file, Cancellation* cancellation);

Task<Error> read_a_byte(File* file, Cancellation* cancellation) {
  std::byte byte{};
  const IoSlice slice{&byte, 1};
  const Error error = co_await file->read(0, {&slice, 1}, cancellation);
  co_return error;
}

Task<Error> sync_file(File* file, Cancellation* cancellation) { return file->sync(cancellation); }

Task<Error> allocate_a_block(File* file, Cancellation* /*cancellation*/) {
  return file->allocate(0, 4096);
}

// Calls to `files` files on each of `filesystems` dead filesystems.
struct Load {
  unsigned filesystems = 1;
  unsigned files = 1;
  unsigned calls = 1;  // Per file.
  Call call = nullptr;
  std::size_t unanswered = 0;  // Requests that arrive at the servers.
};

class DeadStorage {
 public:
  // False if filesystems cannot be mounted here.
  bool mount(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      filesystems_.push_back(SilentFilesystem::mount());
      if (filesystems_.back() == nullptr) return false;
    }
    return true;
  }
  Task<void> start(Executor* executor, Load load, Cancellation* cancellation) {
    for (const auto& filesystem : filesystems_) {
      for (unsigned i = 0; i < load.files; ++i) {
        auto opened = co_await executor->open_file(filesystem->file(i), {});
        CHECK(opened.has_value());
        if (opened.has_value()) files_.push_back(std::move(*opened));
      }
    }
    for (const auto& file : files_) {
      for (unsigned i = 0; i < load.calls; ++i) {
        CHECK(gate_.enter());
        spawn(keep_result(load.call, file.get(), cancellation));
      }
    }
    for (int i = 0; i < 10'000 && unanswered() < load.unanswered; ++i) {
      co_await executor->sleep_for(1ms);
    }
    co_await executor->sleep_for(100ms);  // More would arrive.
    CHECK(unanswered() == load.unanswered);
  }
  Task<void> end() {
    for (const auto& filesystem : filesystems_) filesystem->answer();
    co_await gate_.close();
    files_.clear();
  }
  std::size_t ended_with(Error error) const {
    return static_cast<std::size_t>(std::ranges::count(results_, error));
  }
  std::size_t ended() const { return results_.size(); }

 private:
  Task<void> keep_result(Call call, File* file, Cancellation* cancellation) {
    const GateHold hold(gate_);
    const Error error = co_await call(file, cancellation);
    results_.push_back(error);
  }
  std::size_t unanswered() const {
    std::size_t count = 0;
    for (const auto& filesystem : filesystems_) count += filesystem->unanswered();
    return count;
  }

  std::vector<std::unique_ptr<SilentFilesystem>> filesystems_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<Error> results_;
  Gate gate_;
};

Task<void> sync_and_note(File* file, bool* synced, Gate* gate) {
  const GateHold hold(*gate);
  const Error error = co_await file->sync(nullptr);
  *synced = error == Error::kNone;
}

// An ordinary file at `path` is synced while the load hangs.
Task<void> sync_beside(Executor* executor, std::string path, DeadStorage* dead, Load load) {
  auto opened = co_await executor->open_file(path, {.create = true});
  REQUIRE(opened.has_value());
  co_await dead->start(executor, load, nullptr);
  bool synced = false;
  Gate gate;
  CHECK(gate.enter());
  spawn(sync_and_note(opened->get(), &synced, &gate));
  for (int i = 0; i < 2000 && !synced; ++i) co_await executor->sleep_for(1ms);
  CHECK(synced);
  CHECK(dead->ended() == 0);
  co_await dead->end();
  CHECK(dead->ended_with(Error::kNone) == dead->ended());
  CHECK(dead->ended() == load.filesystems * load.files * load.calls);
  co_await gate.close();
}

void sync_an_ordinary_file_beside(Load load) {
  DeadStorage dead;
  if (!dead.mount(load.filesystems)) return;
  const TemporaryDirectory directory;
  auto group =
      ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{64} << 20, .seed = 1});
  if (!group.has_value()) FAIL(group.error().text);
  Executor* const executor = (*group)->executors()[0];
  (*group)->run([&] { return sync_beside(executor, directory.file("file"), &dead, load); });
}

TEST_CASE("A dead filesystem has 51 reads in the kernel, however many files are on it",
          "[reactor][file][N7]") {
  sync_an_ordinary_file_beside({.files = 40, .calls = 10, .call = read_a_byte, .unanswered = 51});
}

// The kernel lets one sync or allocation of a file in at a time, and seven wait for it on threads.
TEST_CASE("Syncs of files on a dead filesystem hold up no sync of another file",
          "[reactor][file][N7]") {
  sync_an_ordinary_file_beside({.files = 40, .calls = 10, .call = sync_file, .unanswered = 7});
}

TEST_CASE("Syncs of files on many dead filesystems hold up no sync of another file",
          "[reactor][file][N7]") {
  sync_an_ordinary_file_beside(
      {.filesystems = 5, .files = 10, .calls = 10, .call = sync_file, .unanswered = 26});
}

TEST_CASE("Allocations in files on a dead filesystem hold up no sync of another file",
          "[reactor][file][N7]") {
  sync_an_ordinary_file_beside(
      {.files = 40, .calls = 10, .call = allocate_a_block, .unanswered = 7});
}

Task<void> cancel_waiting(Executor* executor, DeadStorage* dead, Load load) {
  Cancellation cancellation;
  co_await dead->start(executor, load, &cancellation);
  cancellation.cancel();
  const std::size_t waiting = std::size_t{load.files} * load.calls - load.unanswered;
  for (int i = 0; i < 2000 && dead->ended() < waiting; ++i) co_await executor->sleep_for(1ms);
  CHECK(dead->ended_with(Error::kCancelled) == waiting);
  co_await dead->end();
  CHECK(dead->ended() == std::size_t{load.files} * load.calls);
}

TEST_CASE("Cancelled reads that wait for a dead filesystem end before it answers",
          "[reactor][file][N7]") {
  const Load load{.files = 40, .calls = 10, .call = read_a_byte, .unanswered = 51};
  DeadStorage dead;
  if (!dead.mount(load.filesystems)) return;
  auto group =
      ReactorGroup::create({.count = 1, .memory_limit_bytes = std::size_t{64} << 20, .seed = 1});
  if (!group.has_value()) FAIL(group.error().text);
  Executor* const executor = (*group)->executors()[0];
  (*group)->run([&] { return cancel_waiting(executor, &dead, load); });
}

}  // namespace
}  // namespace sandbay
