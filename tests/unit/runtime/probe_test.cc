// Probes: idle ones ask nobody; installed deciders answer for their own executor only.
#include "runtime/probe.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "runtime/executor.h"
#include "runtime/simulation.h"

namespace sandbay {
namespace {

class Recorder final : public ProbeDecider {
 public:
  ProbeVerdict decide(const ProbePoint& point) override {
    seen.emplace_back(point.name);
    return verdict;
  }
  std::vector<std::string> seen;
  ProbeVerdict verdict;
};

Task<void> ask_on(Executor& executor, ProbeVerdict& verdict) {
  co_await SwitchTo(executor);
  verdict = Probe::ask({.name = "meta.commit", .byte_count = 7});
}

Task<void> asks(sim::World& world) {
  Executor& home = *world.executors()[0];
  Executor& other = *world.executors()[1];
  CHECK_FALSE(Probe::armed());
  CHECK(Probe::ask({.name = "nobody.asks"}).proceeds());
  Recorder outer;
  outer.verdict.error = Error::kNoSpace;
  {
    const Probe::Installation installation(home, outer);
    CHECK(Probe::armed());
    CHECK(Probe::ask({.name = "meta.commit"}).error == Error::kNoSpace);
    ProbeVerdict verdict;
    co_await ask_on(other, verdict);
    CHECK(verdict.proceeds());
    co_await SwitchTo(home);

    Recorder inner;
    inner.verdict.action = 3;
    {
      const Probe::Installation newer(home, inner);
      CHECK(Probe::ask({.name = "link.send"}).action == 3);
      CHECK_FALSE(Probe::ask({.name = "link.send"}).proceeds());
    }
    CHECK(inner.seen == std::vector<std::string>{"link.send", "link.send"});
    CHECK(Probe::ask({.name = "meta.get"}).error == Error::kNoSpace);
  }
  CHECK(outer.seen == std::vector<std::string>{"meta.commit", "meta.get"});
  CHECK_FALSE(Probe::armed());
}

}  // namespace

TEST_CASE("Probes ask the decider of their executor", "[runtime]") {
  const auto world = sim::World::create({.seed = 1, .executors = 2});
  const bool ended = world->run([&] { return asks(*world); });
  REQUIRE(ended);
  Recorder recorder;
  const Probe::Installation installation(*world->executors()[0], recorder);
  CHECK(Probe::armed());
  CHECK(Probe::ask({.name = "on.no.turn"}).proceeds());
  CHECK(recorder.seen.empty());
}

}  // namespace sandbay
