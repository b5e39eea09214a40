// Goal: a lead bears that a member is away for long, and knows its sets by name whatever they are
// called there. Method: RemoteMember against a member's target in one simulated world.
#include <algorithm>
#include <set>

#include "group/remote_member.h"
#include "metadata/simulated_store.h"
#include "runtime/known.h"
#include "tests/unit/iscsi/far_side.h"

namespace sandbay::group::remote_outage_test {
namespace {

using iscsi::test::FarSide;
using std::chrono::seconds;

Uuid filled(std::uint8_t value) {
  Uuid uuid{};
  uuid.fill(value);
  return uuid;
}

RemoteMemberConfiguration far_member() {
  return {.name = "m",
          .endpoint = Endpoint::ipv4(0x7F000001, iscsi::test::kFarPort),
          .target = iscsi::test::kFarTarget,
          .connections = 2,
          .patience = seconds(2)};
}

Task<bool> serves(RemoteMember* member, Uuid set, bool wanted) {
  for (int i = 0; i < 300; ++i) {
    if ((member->serving(set) != nullptr) == wanted) co_return true;
    co_await Executor::current().sleep_for(std::chrono::milliseconds(100));
  }
  co_return false;
}

Task<void> long_outage(FarSide* far) {
  co_await far->start();
  auto store = co_await metadata::open_simulated_store(Executor::current(), "lead");
  REQUIRE(store.has_value());
  EventLog events;
  {
    RemoteMember member(Executor::current(), far_member(), **store, events, filled(1), filled(2),
                        {});
    const std::string wrong = co_await member.start();
    CHECK(wrong == "");
    const Uuid set = filled(0x5A);
    bool there = co_await serves(&member, set, true);
    CHECK(there);
    far->world().set_partitioned(true);
    co_await Executor::current().sleep_for(seconds(40));
    CHECK(member.serving(set) == nullptr);
    far->world().set_partitioned(false);
    there = co_await serves(&member, set, true);
    CHECK(there);
    // And its claim is made anew again and again, as if nothing had been.
    const auto token = known(far->fence().kept).step.token;
    co_await Executor::current().sleep_for(seconds(11));
    CHECK(known(far->fence().kept).step.token != token);
    co_await member.stop();
  }
  co_await (*store)->close();
  co_await far->stop();
}

Task<void> broken_by_rule(FarSide* far) {
  co_await far->start();
  auto store = co_await metadata::open_simulated_store(Executor::current(), "lead");
  REQUIRE(store.has_value());
  EventLog events;
  {
    fault::FaultEngine engine(Executor::current(), {});
    engine.add_member("m");
    RemoteMember member(Executor::current(), far_member(), **store, events, filled(1), filled(2),
                        {});
    // Before any set of it is known.
    auto id = engine.add("id=gone at=member:m do=member.loss");
    REQUIRE(id.has_value());
    const std::string wrong = co_await member.start(&engine);
    CHECK(wrong == "");
    co_await Executor::current().sleep_for(seconds(5));
    const Uuid set = filled(0x5A);
    CHECK(member.target().up());
    CHECK(member.serving(set) == nullptr);
    CHECK(member.refusal(set) == "a fault rule keeps it away");
    engine.clear("gone");
    BlockDevice* const device = member.serving(set);
    REQUIRE(device != nullptr);
    CHECK(member.absence() == "");
    Completion flushed = co_await device->submit(Request{.operation = Operation::kFlush});
    CHECK(flushed.error == Error::kNone);
    id = engine.add("at=member:m do=member.partition patience=1s for=3s");
    REQUIRE(id.has_value());
    CHECK(member.serving(set) == device);
    const TimePoint begun = Executor::current().now();
    flushed = co_await device->submit(Request{.operation = Operation::kFlush});
    CHECK(flushed.error == Error::kNotReady);
    CHECK(Executor::current().now() - begun == seconds(1));
    CHECK(member.serving(set) == nullptr);
    co_await Executor::current().sleep_for(seconds(3));
    CHECK(member.serving(set) == device);
    co_await member.stop();
  }
  co_await (*store)->close();
  co_await far->stop();
}

Task<void> twins(FarSide* far) {
  co_await far->start();
  auto store = co_await metadata::open_simulated_store(Executor::current(), "lead");
  REQUIRE(store.has_value());
  EventLog events;
  std::set<std::string> before;
  for (int run = 0; run < 2; ++run) {
    const auto lead = static_cast<std::uint8_t>(2 + run);
    RemoteMember member(Executor::current(), far_member(), **store, events, filled(1), filled(lead),
                        {});
    const std::string wrong = co_await member.start();
    CHECK(wrong == "");
    for (const std::uint8_t each : {std::uint8_t{0x5A}, std::uint8_t{0x5B}}) {
      const Uuid set = filled(each);
      const bool there = co_await serves(&member, set, true);
      CHECK(there);
      CHECK(member.find_set(member.name_of(set)) == std::optional(set));
    }
    std::set<std::string> names;
    for (const MemberSet& set : member.sets()) names.insert(set.name);
    CHECK(names.size() == 2);
    CHECK(names.contains("m/data"));
    if (run > 0) CHECK(names == before);
    before = names;
    // Whose a set is stands in the very commit in which a pool takes it.
    metadata::Batch batch;
    member.note_use(filled(0x5B), batch);
    auto other =
        co_await metadata::open_simulated_store(Executor::current(), "other" + std::to_string(run));
    REQUIRE(other.has_value());
    const Error error = co_await (*other)->commit(std::move(batch));
    CHECK(error == Error::kNone);
    const auto kept = co_await (*other)->get("remote/m/" + format_uuid(filled(0x5B)));
    CHECK((kept.has_value() && kept->has_value()));
    co_await (*other)->close();
    co_await member.stop();
  }
  co_await (*store)->close();
  co_await far->stop();
}

}  // namespace

TEST_CASE("A member that is away for long costs its lead nothing", "[remote]") {
  FarSide far(1);
  const bool ended = far.world().run([&far] { return long_outage(&far); });
  REQUIRE(ended);
}

TEST_CASE("A rule keeps a member elsewhere away, and gives it back", "[remote]") {
  FarSide far(1);
  const bool ended = far.world().run([&far] { return broken_by_rule(&far); });
  REQUIRE(ended);
}

TEST_CASE("Sets of a member that have one name have two here", "[remote]") {
  FarSide far(1);
  far.add_twin();
  const bool ended = far.world().run([&far] { return twins(&far); });
  REQUIRE(ended);
}

}  // namespace sandbay::group::remote_outage_test
