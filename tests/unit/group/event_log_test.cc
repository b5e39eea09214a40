// The log of events over restarts: what is kept, how much, and what a store that fails costs.
#include "group/event_log.h"

#include <fmt/core.h>

#include <catch2/catch.hpp>

#include "group/records.h"
#include "metadata/simulated_store.h"
#include "runtime/simulation.h"
#include "tests/unit/metadata/forwarding_store.h"

namespace sandbay::group {
namespace {

using std::chrono::seconds;

// Commits fail, or never end, while they are told to.
class FlakyStore final : public sandbay::testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  Task<Error> commit(metadata::Batch batch) override { return do_commit(this, std::move(batch)); }

  bool fails = false;
  unsigned commits = 0;

 private:
  static Task<Error> do_commit(FlakyStore* self, metadata::Batch batch) {
    ++self->commits;
    if (self->fails) {
      co_await self->home().yield();
      co_return Error::kHardware;
    }
    co_return co_await self->below_.commit(std::move(batch));
  }
};

void add(EventLog* log, int count, const std::string& kind = "test") {
  for (int i = 0; i < count; ++i) {
    log->add({.severity = Severity::kWarning,
              .kind = kind,
              .set = "r",
              .drive = "d0",
              .text = fmt::format("event {}", log->total() + 1)});
  }
}

Task<std::size_t> stored(metadata::Store* store) {
  const auto all = co_await store->list(std::string(kEventPrefix), "", 100'000);
  co_return all ? all->size() : 0;
}

Task<void> in_store(Executor* home, Task<void> (*test)(Executor*, FlakyStore*)) {
  auto store = co_await metadata::open_simulated_store(*home, "metadata");
  REQUIRE(store.has_value());
  FlakyStore flaky(**store);
  co_await test(home, &flaky);
  co_await (*store)->close();
}

void run(Task<void> (*test)(Executor*, FlakyStore*)) {
  auto world = sim::World::create({.seed = 1});
  Executor* const home = world->executors()[0];
  const bool ended = world->run([home, test] { return in_store(home, test); });
  CHECK(ended);
}

TEST_CASE("Events are there after a restart, and their numbers go on", "[group][events]") {
  run([](Executor* home, FlakyStore* store) -> Task<void> {
    EventLog first;
    Error error = co_await first.open(*store);
    CHECK(error == Error::kNone);
    add(&first, 300);
    CHECK(store->commits == 0);  // Nobody waits for the store.
    const bool kept = co_await first.kept(home->now() + seconds(10));
    CHECK(kept);
    CHECK(store->commits == 2);  // Many at once.
    co_await first.close();

    EventLog second;
    error = co_await second.open(*store);
    CHECK(error == Error::kNone);
    CHECK(second.total() == 300);
    add(&second, 1, "later");
    const auto events = second.since(298);
    REQUIRE(events.size() == 3);
    CHECK(events[0].number == 299);
    CHECK(events[0].text == "event 299");
    CHECK(events[0].severity == Severity::kWarning);
    CHECK(events[0].set == "r");
    CHECK(events[0].drive == "d0");
    CHECK(events[0].time == first.since(298)[0].time);
    CHECK(events[2].number == 301);
    CHECK(events[2].kind == "later");
    co_await second.close();  // Keeps what is not kept yet.

    EventLog third;
    error = co_await third.open(*store);
    CHECK(third.total() == 301);
    co_await third.close();
  });
}

TEST_CASE("The store keeps no more events than the log", "[group][events]") {
  run([](Executor* home, FlakyStore* store) -> Task<void> {
    for (int restart = 0; restart < 3; ++restart) {
      EventLog log(100);
      const Error error = co_await log.open(*store);
      CHECK(error == Error::kNone);
      for (int burst = 0; burst < 20; ++burst) {
        add(&log, burst * 37);  // Also more at once than it holds.
        const bool kept = co_await log.kept(home->now() + seconds(10));
        CHECK(kept);
      }
      add(&log, 1);
      co_await log.close();
      CHECK(log.since(0).size() == 100);
      const std::size_t entries = co_await stored(store);
      CHECK(entries == 100);
    }
  });
}

TEST_CASE("A store that fails stops nothing, and gets the events when it works again",
          "[group][events]") {
  run([](Executor* home, FlakyStore* store) -> Task<void> {
    EventLog log;
    Error error = co_await log.open(*store);
    store->fails = true;
    for (int i = 0; i < 100; ++i) {
      add(&log, 1);
      co_await home->sleep_for(std::chrono::milliseconds(100));
    }
    CHECK(log.total() == 100);
    CHECK(log.since(0).size() == 100);
    CHECK(store->commits <= 3);  // It is not hammered.
    bool kept = co_await log.kept(home->now() + seconds(1));
    CHECK_FALSE(kept);
    store->fails = false;
    kept = co_await log.kept(home->now() + seconds(30));
    CHECK(kept);
    store->fails = true;
    add(&log, 5);
    co_await log.close();  // Ends all the same.

    store->fails = false;
    EventLog next;
    error = co_await next.open(*store);
    CHECK(error == Error::kNone);
    CHECK(next.total() == 100);
    co_await next.close();
  });
}

TEST_CASE("A damaged event is left out", "[group][events]") {
  run([](Executor* /*home*/, FlakyStore* store) -> Task<void> {
    EventLog first;
    Error error = co_await first.open(*store);
    add(&first, 3);
    co_await first.close();
    metadata::Batch batch;
    batch.put(event_key(2), "{\"format\":1,\"number\":2}");
    error = co_await store->commit(std::move(batch));
    CHECK(error == Error::kNone);
    EventLog second;
    error = co_await second.open(*store);
    CHECK(error == Error::kNone);
    CHECK(second.since(0).size() == 2);
    CHECK(second.total() == 3);
    co_await second.close();
  });
}

}  // namespace
}  // namespace sandbay::group
