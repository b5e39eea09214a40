// [G-C8] The audit: whose entries stay when it is full, and what a kill leaves of a change.
#include "group/audit_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "metadata/simulated_store.h"
#include "runtime/simulation.h"
#include "tests/unit/metadata/forwarding_store.h"

namespace sandbay::group {
namespace {

AuditEntry entry_of(std::string caller, std::string target = "DELETE /api/v1/volumes/v") {
  return {.caller = std::move(caller),
          .address = "10.0.0.1",
          .operation = "deleteVolume",
          .target = std::move(target),
          .status = 204};
}

// A store that does not end its commits while it hangs.
class StallingStore final : public sandbay::testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  Task<Error> commit(metadata::Batch batch) override { return do_commit(this, std::move(batch)); }

  bool hangs = false;
  bool fails = false;

 private:
  static Task<Error> do_commit(StallingStore* self, metadata::Batch batch) {
    while (self->hangs) co_await self->home().sleep_for(std::chrono::milliseconds(10));
    if (self->fails) co_return Error::kNoSpace;
    co_return co_await self->below_.commit(std::move(batch));
  }
};

Task<std::size_t> count_of(metadata::Store* store, std::string prefix) {
  const auto all = co_await store->list(std::move(prefix), "", 100'000);
  co_return all ? all->size() : 0;
}

std::size_t entries_of(const AuditLog& log, const std::string& caller) {
  return static_cast<std::size_t>(std::ranges::count(log.since(0), caller, &AuditEntry::caller));
}

Task<void> in_stalling_store(Executor* home, Task<void> (*test)(Executor*, StallingStore*)) {
  auto store = co_await metadata::open_simulated_store(*home, "metadata");
  REQUIRE(store.has_value());
  StallingStore stalling(**store);
  co_await test(home, &stalling);
  co_await (*store)->close();
}

void run(Task<void> (*test)(Executor*, StallingStore*)) {
  auto world = sim::World::create({.seed = 1});
  Executor* const home = world->executors()[0];
  const bool ended = world->run([home, test] { return in_stalling_store(home, test); });
  CHECK(ended);
}

TEST_CASE("A caller who asks for much drops entries of its own", "[G-C8][audit]") {
  run([](Executor*, StallingStore* store) -> Task<void> {
    AuditLog log;
    Error error = co_await log.open(*store);
    REQUIRE(error == Error::kNone);
    log.add(entry_of("alice"));
    for (int i = 0; i < 5000; ++i) log.add(entry_of("mallory"));
    CHECK(entries_of(log, "alice") == 1);
    CHECK(entries_of(log, "mallory") == AuditLog::kMostEntries - 1);
    co_await log.close();
    std::size_t stored = co_await count_of(store, std::string(kAuditPrefix));
    CHECK(stored == AuditLog::kMostEntries);

    AuditLog again;
    error = co_await again.open(*store);
    REQUIRE(error == Error::kNone);
    CHECK(again.total() == 5001);
    CHECK(entries_of(again, "alice") == 1);
    for (int i = 0; i < 300; ++i) again.add(entry_of("mallory"));
    CHECK(again.since(0).front().caller == "alice");
    co_await again.close();
    stored = co_await count_of(store, std::string(kAuditPrefix));
    CHECK(stored == AuditLog::kMostEntries);
  });
}

TEST_CASE("Callers with much to say share the audit's room", "[G-C8][audit]") {
  run([](Executor*, StallingStore* store) -> Task<void> {
    AuditLog log(100);
    const Error error = co_await log.open(*store);
    REQUIRE(error == Error::kNone);
    for (int i = 0; i < 100; ++i) log.add(entry_of("alice"));
    for (int i = 0; i < 100; ++i) log.add(entry_of("bob"));
    CHECK(entries_of(log, "alice") == 50);
    CHECK(entries_of(log, "bob") == 50);
    CHECK(log.since(0).front().number == 51);
    CHECK(std::ranges::is_sorted(log.since(0), {}, &AuditEntry::number));
    co_await log.close();
    const std::size_t stored = co_await count_of(store, std::string(kAuditPrefix));
    CHECK(stored == 100);
  });
}

TEST_CASE("A change that a kill cut short is listed with an unknown outcome", "[G-C8][audit]") {
  run([](Executor*, StallingStore* store) -> Task<void> {
    AuditLog first;
    Error error = co_await first.open(*store);
    REQUIRE(error == Error::kNone);
    AuditEntry done = entry_of("alice", "DELETE /api/v1/volumes/done");
    done.begun = co_await first.begin(done);
    const std::string cut = co_await first.begin(entry_of("alice", "DELETE /api/v1/volumes/cut"));
    CHECK(cut != done.begun);
    std::size_t begun = co_await count_of(store, std::string(kBegunPrefix));
    CHECK(begun == 2);  // In the store before the change is made.
    CHECK(first.since(0).empty());
    first.add(std::move(done));
    co_await first.close();

    for (int restart = 0; restart < 2; ++restart) {
      AuditLog next;
      error = co_await next.open(*store);
      REQUIRE(error == Error::kNone);
      const auto entries = next.since(0);
      REQUIRE(entries.size() == 2);
      CHECK(entries[0].status == 204);
      CHECK(entries[1].target == "DELETE /api/v1/volumes/cut");
      CHECK(entries[1].caller == "alice");
      CHECK_THAT(entries[1].refusal, Catch::Contains("is unknown"));
      co_await next.close();
      begun = co_await count_of(store, std::string(kBegunPrefix));
      CHECK(begun == 0);
    }
  });
}

TEST_CASE("A store that hangs or fails stops no change", "[G-C8][audit]") {
  run([](Executor* home, StallingStore* store) -> Task<void> {
    AuditLog log;
    const Error error = co_await log.open(*store);
    REQUIRE(error == Error::kNone);
    store->fails = true;
    std::string begun = co_await log.begin(entry_of("alice"));
    CHECK(begun.empty());
    store->fails = false;
    store->hangs = true;
    const TimePoint before = home->now();
    AuditEntry late = entry_of("alice");
    late.begun = co_await log.begin(late);
    CHECK(home->now() - before <= std::chrono::seconds(1));
    log.add(std::move(late));
    store->hangs = false;
    co_await log.close();
    const std::size_t left = co_await count_of(store, std::string(kBegunPrefix));
    CHECK(left == 0);
  });
}

TEST_CASE("An entry is one line of the log, whatever is in it", "[G-C8][audit]") {
  AuditEntry entry = entry_of("alice", "DELETE /api/v1/volumes/v?force=a\nb");
  entry.request = "{}";
  CHECK(audit_line(entry) ==
        "alice at 10.0.0.1 ended with 204 deleteVolume: DELETE /api/v1/volumes/v?force=a\\x0ab {}");
  entry.target =
      "DELETE /api/v1/volumes/\xc2\x9b"
      "2J";
  CHECK_THAT(audit_line(entry), Catch::Contains("/\\x9b2J {}"));  // [X9]
  entry.status = 0;
  entry.caller.clear();
  CHECK_THAT(audit_line(entry), Catch::StartsWith("unknown at 10.0.0.1 begins deleteVolume: "));
}

}  // namespace
}  // namespace sandbay::group
