// The end of a cache that only memory holds: it waits as long as data go to the drives, however
// slowly, gives up what nothing takes, and says so.
#include "runtime/simulation.h"
#include "tests/unit/group/controller_cache_rig.h"

namespace sandbay::group::testing {
namespace {

using std::chrono_literals::operator""s;

constexpr unsigned kWrites = 60;

// One write at a time, and each takes long; or nothing is done at all.
class Slow final : public Layer {
 public:
  using Layer::Layer;
  Task<Completion> submit(Request request) override {
    while (hangs) co_await go_on.wait();
    if (request.operation != Operation::kWrite) {
      Completion done = co_await below().submit(std::move(request));
      co_return done;
    }
    co_await arm.lock();
    if (takes > Duration::zero()) co_await home().sleep_for(takes);
    Completion done = co_await below().submit(std::move(request));
    arm.unlock();
    co_return done;
  }
  Duration takes{};
  bool hangs = false;
  Condition go_on;
  Mutex arm;
};

Task<void> write_all(BlockDevice* device) {
  for (unsigned i = 0; i < kWrites; ++i) {
    const Error error = co_await write(*device, i * 128, 7);
    REQUIRE(error == Error::kNone);
  }
}

Task<void> slow_at_the_end(Executor* home, bool settles) {
  Books books(*home);
  const auto set = memory_set(*home);
  Slow slow(*set);
  const auto run = co_await begin(*home, books, {.cache = "dirty_limit = \"8MiB\"\n"});
  co_await write_all(&run->cache->above(kSetUuid, slow));
  REQUIRE(run->cache->cache()->counters().dirty_bytes > 0);
  slow.takes = 2s;
  const TimePoint began = home->now();
  if (settles) {
    co_await run->cache->settle(began + 15s);
    CHECK(run->cache->cache()->counters().dirty_bytes == 0);
  }
  const bool ended = co_await run->cache->stop(home->now() + 15s);
  REQUIRE(ended);
  CHECK(home->now() - began > 60s);
  CHECK_FALSE(run->cache->lost_at_end());
  CHECK(run->told("writes lost") == 0);
  co_await run->cache->finish();
  for (unsigned i = 0; i < kWrites; ++i) {
    const int byte = co_await read(*set, i * 128);
    CHECK(byte == 7);
  }
}

// Where a checker of leaks finds what is left behind.
std::vector<ControllerCache*>& left_behind() {
  static auto& all = *new std::vector<ControllerCache*>;
  return all;
}

Task<void> hangs_at_the_end(Executor* home) {
  Books books(*home);
  const auto set = memory_set(*home);
  Slow slow(*set);
  const auto run = co_await begin(*home, books, {.cache = "dirty_limit = \"8MiB\"\n"});
  co_await write_all(&run->cache->above(kSetUuid, slow));
  slow.hangs = true;
  const TimePoint began = home->now();
  const bool ended = co_await run->cache->stop(began + 15s);
  CHECK_FALSE(ended);
  CHECK(home->now() - began == 15s);
  CHECK(run->cache->lost_at_end());
  CHECK(run->told("writes lost") == 1);
  left_behind().push_back(run->cache.release());
  slow.hangs = false;
  slow.go_on.notify_all();
  co_await home->sleep_for(60s);
}

void in_world(const std::function<Task<void>(Executor*)>& body) {
  const auto world = sim::World::create({.seed = 1});
  Executor& home = *world->executors()[0];
  const bool ended = world->run([&] { return body(&home); });
  REQUIRE(ended);
}

}  // namespace

TEST_CASE("The end waits as long as cached writes go to the drives", "[cache][group]") {
  const bool settles = GENERATE(false, true);
  in_world([settles](Executor* home) { return slow_at_the_end(home, settles); });
}

TEST_CASE("What no drive takes at the end is lost, and that is told", "[cache][group]") {
  in_world(hangs_at_the_end);
}

}  // namespace sandbay::group::testing
