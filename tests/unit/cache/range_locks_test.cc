// Range locks against a naive twin: a list in order of arrival that is looked through each time.
// After each step exactly those go on that the twin says may; and many waiters of one place cost
// little each.
#include "cache/range_locks.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <list>
#include <memory>
#include <vector>

#include "../block/on_executor.h"
#include "runtime/random.h"

namespace sandbay::cache {
namespace {

using Kind = RangeLocks::Kind;

struct Client {
  Kind kind = Kind::kRead;
  Extent extent;
  bool in = false;
  bool gone = false;
  Error end = Error::kNone;
  Cancellation cancellation;
  Event done;
};

bool excludes(Kind one, Kind other) {
  static constexpr bool kTable[3][3] = {
      {false, false, true}, {false, true, true}, {true, true, true}};
  return kTable[std::to_underlying(one)][std::to_underlying(other)];
}

// The twin.
class Arrivals {
 public:
  void arrive(Client* client) { clients_.push_back(client); }
  void leave(Client* client) { clients_.remove(client); }
  bool blocked(Kind kind, const Extent& extent, const Client* before = nullptr) const {
    for (const Client* other : clients_) {
      if (other == before) return false;
      if (excludes(other->kind, kind) && other->extent.overlaps(extent)) return true;
    }
    return false;
  }
  const std::list<Client*>& clients() const { return clients_; }

 private:
  std::list<Client*> clients_;
};

Task<void> work(RangeLocks* locks, Arrivals* arrivals, Client* client) {
  {
    RangeLocks::Hold hold(*locks, client->kind, client->extent);
    arrivals->arrive(client);
    Request request;
    request.cancellation = &client->cancellation;
    client->end = co_await locks->wait(hold, Patience(request));
    client->in = client->end == Error::kNone;
    if (client->in) {
      CHECK_FALSE(arrivals->blocked(client->kind, client->extent, client));
      co_await client->done.wait();
    }
    arrivals->leave(client);
  }
  client->gone = true;
}

// One of them ends, or is aborted while it waits.
void end_one(const Arrivals& arrivals, Random& random) {
  auto at = arrivals.clients().begin();
  std::advance(at, static_cast<std::ptrdiff_t>(random.below(arrivals.clients().size())));
  Client& client = **at;
  if (client.in) {
    client.done.set();
  } else {
    client.cancellation.cancel();
  }
}

Task<void> check_all(Executor& home, const RangeLocks* locks, const Arrivals* arrivals,
                     Random* random) {
  co_await home.sleep_for(std::chrono::microseconds(1));  // When nothing is left to do.
  for (const Client* client : arrivals->clients()) {
    const bool blocked = arrivals->blocked(client->kind, client->extent, client);
    REQUIRE(client->in == !blocked);
  }
  for (const Kind kind : {Kind::kRead, Kind::kRecord, Kind::kChange}) {
    const Extent extent{random->below(64), 1 + random->below(16)};
    REQUIRE(locks->blocked(kind, extent) == arrivals->blocked(kind, extent));
  }
}

Task<void> agrees_with_twin(Executor& home, std::uint64_t seed) {
  Random random(seed);
  RangeLocks locks;
  Arrivals arrivals;
  std::vector<std::unique_ptr<Client>> clients;
  const std::uint64_t span = 1 + random.below(64);
  const std::uint64_t most = 1 + random.below(40);
  for (int step = 0; step < 400; ++step) {
    const std::size_t there = arrivals.clients().size();
    if (there < most && (there == 0 || random.chance(0.55))) {
      auto client = std::make_unique<Client>();
      client->kind = static_cast<Kind>(random.below(3));
      client->extent = {random.below(span), 1 + random.below(16)};
      spawn(work(&locks, &arrivals, client.get()));
      clients.push_back(std::move(client));
    } else {
      end_one(arrivals, random);
    }
    co_await check_all(home, &locks, &arrivals, &random);
  }
  while (!arrivals.clients().empty()) {
    end_one(arrivals, random);
    co_await check_all(home, &locks, &arrivals, &random);
  }
  REQUIRE(std::ranges::all_of(clients, [](const auto& client) { return client->gone; }));
}

struct Crowd {
  RangeLocks locks;
  std::size_t in = 0;
  std::size_t most_in = 0;
  Gate gate;
};

Task<void> change(Executor& home, Crowd* crowd, Extent extent) {
  {
    RangeLocks::Hold hold(crowd->locks, Kind::kChange, extent);
    const Error error = co_await crowd->locks.wait(hold);
    REQUIRE(error == Error::kNone);
    crowd->most_in = std::max(crowd->most_in, ++crowd->in);
    co_await home.sleep_for(std::chrono::microseconds(10));
    --crowd->in;
  }
  crowd->gate.leave();
}

Task<void> serves_a_crowd(Executor& home, bool one_place) {
  constexpr std::size_t kClients = 20'000;
  Crowd crowd;
  for (std::size_t i = 0; i < kClients; ++i) {
    const bool entered = crowd.gate.enter();
    REQUIRE(entered);
    spawn(change(home, &crowd, {one_place ? 0 : 8 * i, 8}));
  }
  co_await crowd.gate.close();
  REQUIRE(crowd.in == 0);
  REQUIRE(crowd.most_in == (one_place ? 1 : kClients));
}

}  // namespace

TEST_CASE("Range locks admit the same holds as a list in order of arrival", "[cache][R-D7]") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    testing::run_in_world(seed, [seed](Executor& home) { return agrees_with_twin(home, seed); });
  }
}

// A quadratic algorithm would take minutes.
TEST_CASE("Range locks serve 20,000 changes of one place, or of as many", "[cache][R-D7]") {
  const bool one_place = GENERATE(true, false);
  CAPTURE(one_place);
  testing::run_in_world(1, [one_place](Executor& home) { return serves_a_crowd(home, one_place); });
}

}  // namespace sandbay::cache
