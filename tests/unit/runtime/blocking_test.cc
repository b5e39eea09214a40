// Calls that block, on threads: a call that hangs holds up neither its reactor nor calls with other
// keys, those with its key wait behind it, a folder whose calls hang leaves threads for others, and
// neither an exception nor a system without threads ends the process.
#include "runtime/blocking.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/reactor.h"
#include "runtime/simulation.h"
#include "runtime/sync.h"

namespace sandbay {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<ReactorGroup> make_group() {
  auto group = ReactorGroup::create({.memory_limit_bytes = 64U << 20U, .seed = 1});
  if (!group.has_value()) FAIL(group.error().text);
  return std::move(*group);
}

// Storage that does not answer until it is let go.
class Hang {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.wait(lock, [this] { return released_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  int waiting() {
    const std::lock_guard lock(mutex_);
    return waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool released_ = false;
};

// The error that a call ended with.
Task<void> call_and_keep(Executor* home, std::string key, std::function<void()> work, Error* error,
                         Gate* gate) {
  const GateHold hold(*gate);
  *error = co_await run_blocking(*home, std::move(key), std::move(work));
}

Task<void> hang_one(Executor* home, std::shared_ptr<Hang> hang) {
  Gate gate;
  std::vector<Error> errors(3, Error::kInvalid);
  for (Error& error : errors) {
    CHECK(gate.enter());
    spawn(call_and_keep(home, "/hung", [hang] { hang->wait(); }, &error, &gate));
  }
  // Others go on meanwhile, one after another and more than there are processors.
  for (int i = 0; i < 50; ++i) {
    const auto done = std::make_shared<bool>(false);
    const Error error =
        co_await run_blocking(*home, "/other" + std::to_string(i), [done] { *done = true; });
    CHECK(error == Error::kNone);
    CHECK(*done);
  }
  while (hang->waiting() == 0) co_await home->sleep_for(1ms);
  CHECK(hang->waiting() == 1);  // The others with its key wait without a thread.
  hang->release();
  co_await gate.close();
  CHECK(errors == std::vector<Error>(3, Error::kNone));
  CHECK(hang->waiting() == 3);
}

TEST_CASE("A call that hangs holds up neither the reactor nor calls for other paths",
          "[reactor][blocking][G-S3][I-5]") {
  auto group = make_group();
  Executor* const home = group->executors()[0];
  const auto hang = std::make_shared<Hang>();
  group->run([&] { return hang_one(home, hang); });
}

Task<void> give_up(Executor* home, std::shared_ptr<Hang> hang) {
  const Error error = co_await run_blocking(*home, "/hung", [hang] { hang->wait(); }, 20ms);
  CHECK(error == Error::kTimedOut);
}

TEST_CASE("A call that hangs is given up, and the group ends without it",
          "[reactor][blocking][G-S3][I-5]") {
  const auto hang = std::make_shared<Hang>();
  {
    auto group = make_group();
    Executor* const home = group->executors()[0];
    group->run([&] { return give_up(home, hang); });
  }
  CHECK(hang->waiting() == 1);
  hang->release();  // Its end is heard by nobody.
  while (hang.use_count() > 1) std::this_thread::sleep_for(1ms);
}

Task<void> wait_for(Executor* home, std::shared_ptr<Hang> hang, int waiting) {
  for (int i = 0; i < 2000 && hang->waiting() < waiting; ++i) co_await home->sleep_for(1ms);
  co_await home->sleep_for(100ms);  // More would begin.
  CHECK(hang->waiting() == waiting);
}

// `folders` folders with 300 paths each hang one after another, and hold `threads` threads.
Task<void> hang_folders(Executor* home, std::shared_ptr<Hang> hang, int folders, int threads) {
  constexpr std::size_t kPaths = 300;
  Gate gate;
  std::vector<Error> errors(kPaths * static_cast<std::size_t>(folders), Error::kInvalid);
  for (std::size_t i = 0; i < errors.size(); ++i) {
    CHECK(gate.enter());
    std::string path = "/dead" + std::to_string(i / kPaths) + "/" + std::to_string(i);
    spawn(call_and_keep(home, std::move(path), [hang] { hang->wait(); }, &errors[i], &gate));
  }
  co_await wait_for(home, hang, threads);
  for (int i = 0; i < 50; ++i) {
    const Error error = co_await run_blocking(*home, "/other/" + std::to_string(i), [] {}, 5s);
    CHECK(error == Error::kNone);
    if (error != Error::kNone) break;
  }
  hang->release();
  co_await gate.close();
  CHECK(errors == std::vector<Error>(errors.size(), Error::kNone));
}

TEST_CASE("Folders whose calls hang leave threads for calls in other folders",
          "[reactor][blocking][N7]") {
  auto group = make_group();
  Executor* const home = group->executors()[0];
  const auto hang = std::make_shared<Hang>();
  SECTION("one folder") {
    group->run([&] { return hang_folders(home, hang, 1, 64); });
  }
  SECTION("eight folders") {
    // 64 + 48 + 36 + 27 + 21 + 15 + 12 + 9: a third of the threads that are left, rounded up.
    group->run([&] { return hang_folders(home, hang, 8, 232); });
  }
}

// Stands for an open file: its end may hang.
struct Closes {
  std::thread::id home;
  std::atomic<int>* at_home = nullptr;
  ~Closes() {
    if (std::this_thread::get_id() == home) ++*at_home;
  }
};

Task<void> leave_calls(Executor* home, std::shared_ptr<Hang> hang, std::atomic<int>* at_home) {
  for (int i = 0; i < 100; ++i) {
    const auto closes = std::make_shared<Closes>(std::this_thread::get_id(), at_home);
    start_blocking(*home, "/dead/" + std::to_string(i), [hang, closes] { hang->wait(); });
  }
  co_await wait_for(home, hang, 64);
}

TEST_CASE("Calls that have not begun when the group ends are destroyed on another thread",
          "[reactor][blocking][N7]") {
  const auto hang = std::make_shared<Hang>();
  std::atomic<int> at_home = 0;
  {
    auto group = make_group();
    Executor* const home = group->executors()[0];
    group->run([&] { return leave_calls(home, hang, &at_home); });
  }
  CHECK(hang.use_count() > 1);
  hang->release();
  while (hang.use_count() > 1) std::this_thread::sleep_for(1ms);
  CHECK(at_home == 0);
  CHECK(hang->waiting() == 64);
}

Task<void> throw_in_calls(Executor* home) {
  const Error memory = co_await run_blocking(*home, "a", [] { throw std::bad_alloc(); });
  CHECK(memory == Error::kNoMemory);
  const Error other = co_await run_blocking(*home, "a", [] { throw std::runtime_error("why"); });
  CHECK(other == Error::kHardware);
  const Error none = co_await run_blocking(*home, "a", [] {});
  CHECK(none == Error::kNone);
}

TEST_CASE("An exception of a blocking call is an error", "[reactor][blocking][G-L5]") {
  auto group = make_group();
  Executor* const home = group->executors()[0];
  group->run([&] { return throw_in_calls(home); });
}

Task<void> call_often(Executor* home, std::atomic<int>* done) {
  Gate gate;
  std::vector<Error> errors(20, Error::kInvalid);
  for (Error& error : errors) {
    if (!gate.enter()) co_return;
    spawn(call_and_keep(home, {}, [done] { ++*done; }, &error, &gate));
  }
  co_await gate.close();
}

// In a process of its own, as a user who may not start another thread.
int call_without_threads() {
  auto group = ReactorGroup::create({.memory_limit_bytes = 64U << 20U, .seed = 1});
  if (!group.has_value()) return 2;
  constexpr rlimit kNone{.rlim_cur = 0, .rlim_max = 0};
  if (::setrlimit(RLIMIT_NPROC, &kNone) != 0) return 3;
  constexpr uid_t kNobody = 65534;
  if (::getuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) return 4;
  try {
    std::thread([] {}).join();
    return 5;  // It may.
  } catch (const std::system_error&) {
  }
  std::atomic<int> done = 0;
  Executor* const home = (*group)->executors()[0];
  (*group)->run([&] { return call_often(home, &done); });
  return done == 20 ? 0 : 6;
}

TEST_CASE("Blocking calls are made where the system has no more threads",
          "[reactor][blocking][G-L5]") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(call_without_threads());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

Task<void> call_in_world(Executor* home, bool* done) {
  const Error error = co_await run_blocking(*home, "/path", [done] { *done = true; });
  CHECK(error == Error::kNone);
}

TEST_CASE("A simulated world makes blocking calls at once", "[simulation][blocking]") {
  const auto world = sim::World::create({});
  bool done = false;
  REQUIRE(world->run([&] { return call_in_world(world->executors()[0], &done); }));
  CHECK(done);
}

}  // namespace
}  // namespace sandbay
