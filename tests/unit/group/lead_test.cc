// Goal: a lead and its member agree on who leads, whatever moment either is killed at, and nobody
// with an older state gets in. Method: ledger and fence, each on a simulated store of its own, with
// the other's answer lost at will.
#include <fmt/core.h>

#include <array>
#include <catch2/catch.hpp>
#include <set>

#include "group/import_file.h"
#include "group/lead_fence.h"
#include "group/lead_ledger.h"
#include "group/set_exports.h"
#include "metadata/simulated_store.h"
#include "runtime/known.h"
#include "runtime/simulation.h"
#include "tests/unit/group/books.h"
#include "tests/unit/metadata/forwarding_store.h"

namespace sandbay::group {
namespace {

using iscsi::LoginStatus;

Uuid filled(std::uint8_t value) {
  Uuid uuid{};
  uuid.fill(value);
  return uuid;
}

const std::string kTarget = "iqn.2026-11.org.sandbay:m";

ClaimedMember member(std::string name, std::string target = kTarget) {
  std::set<std::string> claimed{LeadLedger::key_of(target, name)};
  return {.name = std::move(name), .target = std::move(target), .claimed = std::move(claimed)};
}

struct Lab {
  std::unique_ptr<metadata::Store> lead;
  std::unique_ptr<metadata::Store> copy;  // Of the lead's, as it was at some time.
  std::unique_ptr<metadata::Store> member;
  EventLog events;
};

Task<void> open(Lab& lab) {
  auto lead = co_await metadata::open_simulated_store(Executor::current(), "lead");
  auto member = co_await metadata::open_simulated_store(Executor::current(), "member");
  auto copy = co_await metadata::open_simulated_store(Executor::current(), "copy");
  CHECK((lead.has_value() && member.has_value() && copy.has_value()));
  lab.lead = std::move(*lead);
  lab.member = std::move(*member);
  lab.copy = std::move(*copy);
}

Task<void> close(Lab& lab) {
  co_await lab.lead->close();
  co_await lab.member->close();
  co_await lab.copy->close();
}

Task<void> back_up(Lab& lab) {
  const std::string key = LeadLedger::key_of(kTarget, "m");
  const auto stored = co_await lab.lead->get(key);
  REQUIRE(stored->has_value());
  metadata::Batch batch;
  batch.put(key, **stored);
  const Error error = co_await lab.copy->commit(std::move(batch));
  CHECK(error == Error::kNone);
}

// A login: what the member says to it.
Task<LoginStatus> log_in(LeadFence& fence, LeadLedger& ledger, bool answered = true) {
  const auto claim = co_await ledger.propose();
  CHECK(claim.has_value());
  if (!claim.has_value()) co_return LoginStatus::kTargetError;
  const auto verdict = co_await fence.take(*claim);
  if (verdict.status == LoginStatus::kSuccess && answered) (void)ledger.accepted();
  co_return verdict.status;
}

Task<void> lead_crashes(Lab& lab) {
  co_await open(lab);
  LeadFence fence(*lab.member, lab.events);
  const auto loaded = co_await fence.load(false);
  CHECK(loaded.has_value());
  std::uint64_t epoch = 0;
  // Killed before the proposal is sent, before its answer comes, and after it.
  for (int run = 0; run < 12; ++run) {
    LeadLedger ledger(*lab.lead, member("m"), filled(1),
                      filled(static_cast<std::uint8_t>(run + 10)));
    if (run % 3 == 0) {
      const auto claim = co_await ledger.propose();
      CHECK(claim.has_value());
      continue;
    }
    LoginStatus status = co_await log_in(fence, ledger, run % 3 == 2);
    CHECK(status == LoginStatus::kSuccess);
    if (run % 3 == 2) continue;
    // Its own claim, with an epoch, comes after the one that an earlier run has left.
    CHECK(ledger.unfinished());
    for (int count = 0; count < 2; ++count) {
      status = co_await log_in(fence, ledger);
      CHECK(status == LoginStatus::kSuccess);
    }
    CHECK_FALSE(ledger.unfinished());
    CHECK(ledger.epoch() > epoch);
    epoch = ledger.epoch();
    status = co_await log_in(fence, ledger);
    CHECK(status == LoginStatus::kSuccess);
    CHECK(ledger.epoch() == epoch);
  }
  co_await close(lab);
}

Task<void> member_restarts(Lab& lab) {
  co_await open(lab);
  LeadLedger ledger(*lab.lead, member("m"), filled(1), filled(2));
  for (int run = 0; run < 4; ++run) {
    LeadFence fence(*lab.member, lab.events);
    const auto loaded = co_await fence.load(false);
    CHECK(loaded.has_value());
    if (run > 0) CHECK(known(fence.kept()).group == filled(1));
    const LoginStatus status = co_await log_in(fence, ledger);
    CHECK(status == LoginStatus::kSuccess);
  }
  co_await close(lab);
}

Task<void> backup_is_refused(Lab& lab) {
  co_await open(lab);
  LeadFence fence(*lab.member, lab.events);
  auto loaded = co_await fence.load(false);
  LeadLedger ledger(*lab.lead, member("m"), filled(1), filled(2));
  LoginStatus status = co_await log_in(fence, ledger);
  CHECK(status == LoginStatus::kSuccess);
  auto provisioned = co_await provisioned_in(*lab.member);
  CHECK(provisioned == "records of a lead");
  co_await back_up(lab);
  status = co_await log_in(fence, ledger);  // A new token.
  CHECK(status == LoginStatus::kSuccess);
  {
    LeadLedger restored(*lab.copy, member("m"), filled(1), filled(3));
    status = co_await log_in(fence, restored);
    CHECK(status == LoginStatus::kAuthorizationFailure);
  }
  // The original goes on, and another group does not get in.
  status = co_await log_in(fence, ledger);
  CHECK(status == LoginStatus::kSuccess);
  LeadLedger other(*lab.lead, member("other"), filled(7), filled(4));
  status = co_await log_in(fence, other);
  CHECK(status == LoginStatus::kAuthorizationFailure);
  const auto nothing = fence.judge("");
  CHECK(nothing.status == LoginStatus::kAuthorizationFailure);
  // Until the administrator says so.
  LeadFence told(*lab.member, lab.events);
  loaded = co_await told.load(true);
  CHECK(loaded.has_value());
  provisioned = co_await provisioned_in(*lab.member);
  CHECK(provisioned == "");
  LeadFence again(*lab.member, lab.events);
  loaded = co_await again.load(false);
  LeadLedger restored(*lab.copy, member("m"), filled(1), filled(5));
  status = co_await log_in(again, restored);
  CHECK(status == LoginStatus::kSuccess);
  status = co_await log_in(again, ledger);
  CHECK(status == LoginStatus::kAuthorizationFailure);
  co_await close(lab);
}

// The file calls it otherwise, or two have changed names: each proves what its member keeps.
Task<void> members_are_renamed(Lab& lab) {
  co_await open(lab);
  LeadFence first(*lab.member, lab.events);
  LeadFence second(*lab.copy, lab.events);
  const std::string other = "iqn.2026-11.org.sandbay:n";
  auto loaded = co_await first.load(false);
  loaded = co_await second.load(false);
  const std::array<std::array<std::string, 2>, 4> names = {
      {{"a", "b"}, {"distant", "b"}, {"b", "distant"}, {"b", "distant"}}};
  for (const auto& [one, two] : names) {
    CAPTURE(one, two);
    const std::set<std::string> claimed{LeadLedger::key_of(kTarget, one),
                                        LeadLedger::key_of(other, two)};
    ClaimedMember to_first = member(one);
    ClaimedMember to_second = member(two, other);
    to_first.claimed = claimed;
    to_second.claimed = claimed;
    LeadLedger ledger(*lab.lead, std::move(to_first), filled(1), filled(2));
    LeadLedger other_ledger(*lab.lead, std::move(to_second), filled(1), filled(2));
    for (int count = 0; count < 2; ++count) {
      LoginStatus status = co_await log_in(first, ledger);
      CHECK(status == LoginStatus::kSuccess);
      status = co_await log_in(second, other_ledger);
      CHECK(status == LoginStatus::kSuccess);
    }
  }
  // Nothing is left under names that are gone.
  const auto left = co_await lab.lead->list("lead/", "", 10);
  REQUIRE(left.has_value());
  CHECK(left->size() == 2);
  co_await close(lab);
}

// A claim of before there was a target in its key.
Task<void> old_claims_count(Lab& lab) {
  co_await open(lab);
  LeadFence fence(*lab.member, lab.events);
  auto loaded = co_await fence.load(false);
  std::string claim;
  {
    LeadLedger ledger(*lab.lead, member("m"), filled(1), filled(2));
    const LoginStatus status = co_await log_in(fence, ledger);
    CHECK(status == LoginStatus::kSuccess);
    const auto stored = co_await lab.lead->get(LeadLedger::key_of(kTarget, "m"));
    metadata::Batch batch;
    batch.put("lead/m", **stored);
    batch.erase(LeadLedger::key_of(kTarget, "m"));
    const Error error = co_await lab.lead->commit(std::move(batch));
    CHECK(error == Error::kNone);
  }
  LeadLedger ledger(*lab.lead, member("m"), filled(1), filled(3));
  for (int count = 0; count < 2; ++count) {
    const LoginStatus status = co_await log_in(fence, ledger);
    CHECK(status == LoginStatus::kSuccess);
  }
  const auto old = co_await lab.lead->get("lead/m");
  CHECK_FALSE(old->has_value());
  co_await close(lab);
}

// The metadata of the lead are full: a member whose link was cut comes back all the same.
Task<void> full_metadata(Lab& lab) {
  co_await open(lab);
  LeadFence fence(*lab.member, lab.events);
  auto loaded = co_await fence.load(false);
  testing::Books books(Executor::current());
  std::uint64_t commits = 0;
  books.observer = [&commits] { ++commits; };
  {
    LeadLedger ledger(books, member("m"), filled(1), filled(2));
    LoginStatus status = co_await log_in(fence, ledger);
    CHECK(status == LoginStatus::kSuccess);
    books.failing = true;
    for (int count = 0; count < 3; ++count) {
      status = co_await log_in(fence, ledger);
      CHECK(status == LoginStatus::kSuccess);
    }
    CHECK_FALSE(ledger.unfinished());
    books.failing = false;
    // The member is not there: the claim is stored once, however often it is tried.
    commits = 0;
    for (int count = 0; count < 5; ++count) {
      const auto claim = co_await ledger.propose();
      CHECK(claim.has_value());
    }
    CHECK(commits == 2);  // Before and after one.
    status = co_await log_in(fence, ledger);
    CHECK(status == LoginStatus::kSuccess);
  }
  // The next run says what is stored, and cannot claim the member anew.
  LeadLedger next(books, member("m"), filled(1), filled(3));
  books.failing = true;
  const LoginStatus again = co_await log_in(fence, next);
  CHECK(again == LoginStatus::kSuccess);
  CHECK(next.unfinished());
  const auto claim = co_await next.propose();
  CHECK_FALSE(claim.has_value());
  co_await close(lab);
}

// A store that keeps a commit waiting.
class SlowStore final : public sandbay::testing::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Task<Error> commit(metadata::Batch batch) override {
    return commit_later(this, std::move(batch));
  }
  Event answers;

 private:
  static Task<Error> commit_later(SlowStore* self, metadata::Batch batch) {
    co_await self->answers.wait();
    const Error error = co_await self->below_.commit(std::move(batch));
    co_return error;
  }
};

// Nobody waits for long, and later logins not at all; what was proposed counts when it is stored.
Task<void> hung_metadata(Lab& lab) {
  co_await open(lab);
  SlowStore slow(*lab.member);
  LeadFence fence(slow, lab.events);
  const auto loaded = co_await fence.load(false);
  CHECK(loaded.has_value());
  LeadLedger ledger(*lab.lead, member("m"), filled(1), filled(2));
  const TimePoint begun = Executor::current().now();
  LoginStatus status = co_await log_in(fence, ledger, false);
  CHECK(status == LoginStatus::kServiceUnavailable);
  const TimePoint late = begun + LeadFence::kStorePatience + std::chrono::seconds(1);
  CHECK(Executor::current().now() < late);
  for (int count = 0; count < 3; ++count) {
    status = co_await log_in(fence, ledger, false);
    CHECK(status == LoginStatus::kServiceUnavailable);
  }
  CHECK(Executor::current().now() < late);
  slow.answers.set();
  co_await Executor::current().sleep_for(std::chrono::seconds(1));
  CHECK(known(fence.kept()).group == filled(1));
  status = co_await log_in(fence, ledger);
  CHECK(status == LoginStatus::kSuccess);
  co_await close(lab);
}

Task<void> refusals_flood_nobody(Lab& lab) {
  co_await open(lab);
  LeadFence fence(*lab.member, lab.events);
  const auto count = [&lab] { return lab.events.since(0).size(); };
  for (int i = 0; i < 1000; ++i) fence.refused(fmt::format("iqn.{}:x", i % 3), "it is strange");
  CHECK(count() == 3);
  for (int i = 0; i < 1000; ++i) fence.refused(fmt::format("iqn.{}:x", i), "it is strange");
  CHECK(count() == 8);
  co_await Executor::current().sleep_for(std::chrono::minutes(2));
  fence.refused("iqn.0:x", "it is strange");
  const auto events = lab.events.since(0);
  REQUIRE(events.size() == 9);
  CHECK(events.back().text ==
        "iqn.0 is refused as lead: it is strange (992 more were refused since the last report)");
  co_await close(lab);
}

void run(Task<void> (*script)(Lab& lab)) {
  const auto world = sim::World::create({.seed = 5});
  Lab lab;
  const bool ended = world->run([&] { return script(lab); });
  REQUIRE(ended);
}

}  // namespace

TEST_CASE("A lead that is killed at any moment gets in again", "[lead]") { run(lead_crashes); }
TEST_CASE("A member that was restarted knows its lead", "[lead]") { run(member_restarts); }
TEST_CASE("A backup of a lead's state is refused", "[lead]") { run(backup_is_refused); }

TEST_CASE("A member that is called otherwise keeps its lead", "[lead][G-C5]") {
  run(members_are_renamed);
}
TEST_CASE("A claim of an earlier daemon counts", "[lead][G-C5]") { run(old_claims_count); }
TEST_CASE("A lead whose metadata are full gets in again", "[lead][G-C6]") { run(full_metadata); }
TEST_CASE("A member whose metadata hang sends leads away in time", "[lead][I-8]") {
  run(hung_metadata);
}

TEST_CASE("Leads that are refused again and again flood no log", "[lead]") {
  run(refusals_flood_nobody);
}

TEST_CASE("A record of a lead is read as it was written", "[lead]") {
  const iscsi::LeadRecord record{.group = filled(1), .step = {.epoch = 7, .token = filled(2)}};
  CHECK(parse_lead_record(format_lead_record(record)) == record);
  CHECK(parse_lead_record(format_lead_record({.open = true})) == iscsi::LeadRecord{.open = true});
  CHECK_FALSE(parse_lead_record("").has_value());
  CHECK_FALSE(parse_lead_record("something").has_value());
}

TEST_CASE("A level passes through four characters", "[lead]") {
  for (const raid::Level level :
       {raid::Level::kJbod, raid::Level::kConcatenation, raid::Level::kRaid0, raid::Level::kRaid1,
        raid::Level::kRaid5, raid::Level::kRaid6, raid::Level::kRaid10, raid::Level::kRaid50}) {
    CHECK(revision_of(level).size() <= 4);
    CHECK(level_in(revision_of(level)) == level);
  }
}

}  // namespace sandbay::group
