// SharedSync: what a flush covers, how many syncs it costs, and cancellation, under shuffled
// schedules. The file only counts: what was written when a sync began is durable when it ends, and
// a flush that returns before its own write is durable fails the test.
#include "block/shared_sync.h"

#include <catch2/catch.hpp>

#include "on_executor.h"

namespace sandbay::testing {
namespace {

// A file that only counts: a sync makes durable what was written before it began, and takes time.
class CountingFile final : public File {
 public:
  explicit CountingFile(Executor& home, Random& random) : home_(home), random_(random) {}

  Executor& home() const noexcept override { return home_; }
  bool direct() const noexcept override { return false; }
  std::size_t alignment() const noexcept override { return 1; }
  bool is_block_device() const noexcept override { return false; }

  Task<Error> sync(Cancellation* cancellation) override {
    CHECK(running_ == 0);  // Never two at once.
    ++running_;
    const std::uint64_t covered = written;
    for (std::uint64_t tick = random_.between(1, 5); tick > 0; --tick) {
      co_await home_.sleep_for(std::chrono::microseconds(50));
      if (cancellation == nullptr || !cancellation->cancelled()) continue;
      --running_;
      co_return Error::kCancelled;
    }
    --running_;
    if (fail_next > 0) {
      --fail_next;
      co_return Error::kHardware;
    }
    durable = std::max(durable, covered);
    co_return Error::kNone;
  }

  Task<Error> read(std::uint64_t, std::span<const IoSlice>, Cancellation*) override {
    co_return Error::kUnsupported;
  }
  Task<Error> write(std::uint64_t, std::span<const IoSlice>, Cancellation*) override {
    co_return Error::kUnsupported;
  }
  Task<Result<std::uint64_t>> size() override { co_return std::uint64_t{0}; }
  Task<Error> resize(std::uint64_t) override { co_return Error::kUnsupported; }
  Task<Error> allocate(std::uint64_t, std::uint64_t) override { co_return Error::kUnsupported; }
  Task<Error> punch_hole(std::uint64_t, std::uint64_t) override { co_return Error::kUnsupported; }
  Task<Error> write_zeroes(std::uint64_t, std::uint64_t) override { co_return Error::kUnsupported; }
  Task<Result<Run>> run_at(std::uint64_t) override { co_return Run{}; }

  std::uint64_t written = 0;
  std::uint64_t durable = 0;
  std::uint64_t fail_next = 0;

 private:
  Executor& home_;
  Random& random_;
  int running_ = 0;
};

struct Counts {
  std::uint64_t succeeded = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t failed = 0;
};

Task<void> flusher(Executor& home, CountingFile& file, SharedSync& shared, Random random,
                   Counts& counts, Gate& gate) {
  const GateHold hold(gate);
  for (int round = 0; round < 10; ++round) {
    co_await home.sleep_for(std::chrono::microseconds(random.below(200)));
    const std::uint64_t mine = ++file.written;
    const Error error = co_await shared.sync(nullptr);
    if (error == Error::kNone) {
      CHECK(file.durable >= mine);
      ++counts.succeeded;
    } else {
      CHECK(error == Error::kHardware);
      ++counts.failed;
    }
  }
}

Task<void> cancel_later(Executor& home, Cancellation& cancellation, Duration delay, Gate& gate) {
  const GateHold hold(gate);
  co_await home.sleep_for(delay);
  cancellation.cancel();
}

Task<void> impatient(Executor& home, CountingFile& file, SharedSync& shared, Random random,
                     Counts& counts, Gate& gate) {
  const GateHold hold(gate);
  for (int round = 0; round < 10; ++round) {
    co_await home.sleep_for(std::chrono::microseconds(random.below(200)));
    Cancellation cancellation;
    Gate canceller;
    REQUIRE(canceller.enter());
    const Duration patience = std::chrono::microseconds(random.below(250));
    spawn(cancel_later(home, cancellation, patience, canceller));
    const std::uint64_t mine = ++file.written;
    const Error error = co_await shared.sync(&cancellation);
    if (error == Error::kNone) CHECK(file.durable >= mine);
    if (error == Error::kCancelled) ++counts.cancelled;
    co_await canceller.close();
  }
}

Task<void> flush_in_crowds(Executor& home, std::uint64_t seed, std::uint64_t failures) {
  Random random(seed);
  CountingFile file(home, random);
  file.fail_next = failures;
  SharedSync shared(file);
  Counts counts;
  Gate gate;
  for (int i = 0; i < 8; ++i) {
    REQUIRE(gate.enter());
    spawn(flusher(home, file, shared, random.fork(), counts, gate));
    REQUIRE(gate.enter());
    spawn(impatient(home, file, shared, random.fork(), counts, gate));
  }
  co_await gate.close();
  CHECK(counts.succeeded + counts.failed == 80);
  CHECK((failures > 0) == (counts.failed > 0));
  CHECK(counts.cancelled > 0);
  CHECK(shared.sync_count() < 160);  // Shared, or it would be one for each.
}

Task<void> sync_once(SharedSync& shared, std::vector<Error>& results) {
  const Error error = co_await shared.sync(nullptr);
  results.push_back(error);
}

Task<void> two_syncs_for_many(Executor& home) {
  Random random(1);
  CountingFile file(home, random);
  SharedSync shared(file);
  std::vector<Error> results;
  spawn(sync_once(shared, results));
  for (int i = 0; i < 50; ++i) spawn(sync_once(shared, results));
  co_await home.sleep_for(std::chrono::seconds(1));
  CHECK(results == std::vector<Error>(51, Error::kNone));
  CHECK(shared.sync_count() == 2);
}

Task<void> already_cancelled(Executor& home) {
  Random random(1);
  CountingFile file(home, random);
  SharedSync shared(file);
  Cancellation cancellation;
  cancellation.cancel();
  const Error error = co_await shared.sync(&cancellation);
  CHECK(error == Error::kCancelled);
  CHECK(shared.sync_count() == 0);
}

}  // namespace

TEST_CASE("A shared sync covers every write made before the call", "[block][sim]") {
  const auto seed = GENERATE(range<std::uint64_t>(1, 65));
  const auto failures = GENERATE(std::uint64_t{0}, std::uint64_t{3});
  CAPTURE(seed, failures);
  run_in_world(seed, [&](Executor& home) { return flush_in_crowds(home, seed, failures); });
}

TEST_CASE("Fifty flushes behind a running sync cost one more", "[block]") {
  run_in_world(1, [](Executor& home) { return two_syncs_for_many(home); });
}

TEST_CASE("A cancelled flush does not begin a sync", "[block]") {
  run_in_world(1, [](Executor& home) { return already_cancelled(home); });
}

}  // namespace sandbay::testing
