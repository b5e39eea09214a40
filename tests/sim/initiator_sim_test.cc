// Goal: the initiator loses nothing, repeats nothing that could do harm, and comes to an end,
// whatever happens to its connections. Method: the initiator alone in a simulated world against the
// model target, which lets tasks of lost connections go on until they are logged out. The seed
// chooses everything.
#include <catch2/catch.hpp>

#include <fmt/core.h>

#include "clients.h"
#include "model_target.h"
#include "runtime/simulation.h"
#include "seeds.h"

namespace sandbay::simtest {
namespace {

using iscsi::InitiatorSession;

struct Stage {
  explicit Stage(std::uint64_t seed)
      : draw(seed),
        world(sim::World::create(
            {.seed = seed, .executors = static_cast<unsigned>(draw.between(1, 2))})),
        clients(seed, draw.between(16, 200), 512),
        window(static_cast<std::uint32_t>(draw.between(1, 40))),
        target(seed, clients.model().block_count(), 512, window) {}

  Random draw;
  std::unique_ptr<sim::World> world;
  Clients clients;
  std::uint32_t window;
  ModelTarget target;
};

using Trouble = Task<void> (*)(Stage& stage, InitiatorSession& session);

iscsi::InitiatorOptions options_for(Stage& stage, Endpoint endpoint, std::uint32_t connections) {
  Random& draw = stage.draw;
  const char* const bursts[] = {"512", "4096", "65536"};
  iscsi::InitiatorOptions options{
      .endpoint = endpoint,
      .target_name = "iqn.2026-11.org.sandbay:model",
      .connections = connections,
      .path_policy =
          draw.chance(0.5) ? iscsi::PathPolicy::kRoundRobin : iscsi::PathPolicy::kLeastQueueDepth,
      .keys = {{"InitialR2T", draw.chance(0.5) ? "Yes" : "No"},
               {"ImmediateData", draw.chance(0.5) ? "Yes" : "No"},
               {"FirstBurstLength", bursts[draw.below(3)]},
               {"HeaderDigest", "None"},
               {"DataDigest", "None"}},
      .first_cmd_sn = draw.chance(0.5) ? 1 : 0xFFFFFFF0U,
      .queue_depth = static_cast<std::uint32_t>(draw.between(1, 40)),
      .receive_buffer_bytes = draw.chance(0.5) ? 8192U : 65536U,
  };
  for (std::uint32_t index = 0; index < connections; ++index) {
    const auto executors = stage.world->executors();
    options.connection_options.push_back({.executor = executors[draw.below(executors.size())]});
  }
  return options;
}

Task<void> trouble_then_leave(Trouble trouble, Stage& stage, InitiatorSession& session,
                              Gate& gate) {
  co_await trouble(stage, session);
  gate.leave();
}

Task<void> play(Stage& stage, std::uint32_t connections, bool aborts, Trouble trouble) {
  const Endpoint endpoint = stage.target.start();
  auto login = co_await InitiatorSession::login(options_for(stage, endpoint, connections));
  if (!login.has_value()) {
    stage.clients.complain("login: " + login.error().message);
    co_await stage.target.stop();
    co_return;
  }
  const std::unique_ptr<InitiatorSession> session = std::move(*login);
  Gate gate;
  if (trouble != nullptr && gate.enter()) {
    spawn(trouble_then_leave(trouble, stage, *session, gate));
  }
  for (int count = 0; count < 6 && gate.enter(); ++count) {
    spawn(stage.clients.client(*session, 30, aborts, gate));
  }
  co_await gate.close();
  if (!stage.clients.failed()) co_await stage.clients.read_everything(*session);
  if (session->counters().protocol_errors != 0) {
    stage.clients.complain("the initiator found fault with the model target");
  }
  co_await session->close();
  co_await stage.target.stop();
}

std::string run_once(std::uint64_t seed, std::uint32_t connections, bool aborts, Trouble trouble) {
  auto stage = std::make_unique<Stage>(seed);
  const bool ended = stage->world->run([&] { return play(*stage, connections, aborts, trouble); });
  if (ended) return stage->clients.wrong();
  // Coroutines are still suspended: nothing of it may be destroyed any more.
  const std::string wrong =
      stage->clients.failed() ? stage->clients.wrong() : "the world came to a standstill";
  (void)stage.release();
  return wrong;
}

std::uint32_t connections_of(std::uint64_t seed) { return 1U << (seed % 4); }

Task<void> pause(Stage& stage, std::uint64_t most_us) {
  const auto time = static_cast<std::int64_t>(stage.draw.below(most_us + 1));
  co_await Executor::current().sleep_for(std::chrono::microseconds(time));
}

Task<void> kill_connections(Stage& stage, InitiatorSession& session) {
  (void)session;
  for (int count = 0; count < 6; ++count) {
    co_await pause(stage, 15'000);
    stage.target.reset_one();
  }
}

Task<void> break_connections(Stage& stage, InitiatorSession& session) {
  for (int count = 0; count < 6; ++count) {
    co_await pause(stage, 15'000);
    co_await session.break_connection(stage.draw.below(session.connection_count()));
  }
}

Task<void> reinstate_connections(Stage& stage, InitiatorSession& session) {
  for (int count = 0; count < 4; ++count) {
    co_await pause(stage, 10'000);
    const Error error =
        co_await session.reinstate_connection(stage.draw.below(session.connection_count()));
    if (error != Error::kNone) {
      stage.clients.complain(fmt::format("connection reinstatement: {}", describe(error)));
    }
  }
}

Task<void> reinstate_session(Stage& stage, InitiatorSession& session) {
  for (int count = 0; count < 3; ++count) {
    co_await pause(stage, 15'000);
    const Error error = co_await session.reinstate_session();
    if (error != Error::kNone) {
      stage.clients.complain(fmt::format("session reinstatement: {}", describe(error)));
    }
  }
}

Task<void> log_one_out(Stage& stage, InitiatorSession& session) {
  co_await pause(stage, 15'000);
  const Error error =
      co_await session.logout_connection(stage.draw.below(session.connection_count()));
  if (error != Error::kNone) {
    stage.clients.complain(fmt::format("connection logout: {}", describe(error)));
  }
}

Task<void> manage_tasks(Stage& stage, InitiatorSession& session) {
  for (int count = 0; count < 8; ++count) {
    co_await pause(stage, 8'000);
    using Function = scsi::TaskManagementFunction;
    const Function functions[] = {Function::kAbortTaskSet, Function::kLogicalUnitReset,
                                  Function::kTargetWarmReset};
    const scsi::TaskManagementRequest request{.function = functions[stage.draw.below(3)]};
    const auto answer = co_await session.manage(request);
    if (!answer.has_value()) stage.clients.complain("task management was not answered");
  }
}

Task<void> ping(Stage& stage, InitiatorSession& session) {
  for (int count = 0; count < 10; ++count) {
    co_await pause(stage, 5'000);
    std::vector<std::byte> payload(stage.draw.below(200), std::byte{0x3C});
    const auto answer =
        co_await session.ping(payload, stage.draw.below(session.connection_count()));
    if (!answer.has_value() || *answer != payload) stage.clients.complain("ping went wrong");
  }
}

void run_all(const char* name, bool aborts, Trouble trouble,
             std::uint32_t (*connections)(std::uint64_t seed) = connections_of) {
  REQUIRE(run_seeds(name, 100, [&](std::uint64_t seed) {
            return run_once(seed, connections(seed), aborts, trouble);
          }) == 0);
}

}  // namespace

TEST_CASE("The initiator's data are right over 1 to 8 connections", "[sim][initiator]") {
  run_all("initiator: plain", false, ping);
}
TEST_CASE("The initiator survives connections that the target resets", "[sim][initiator]") {
  run_all("initiator: target resets", false, kill_connections);
}
TEST_CASE("The initiator survives connections that the network breaks", "[sim][initiator]") {
  run_all("initiator: network breaks", false, break_connections);
}
TEST_CASE("The initiator reinstates connections under load", "[sim][initiator]") {
  run_all("initiator: connection reinstatement", false, reinstate_connections);
}
TEST_CASE("The initiator reinstates its session under load", "[sim][initiator]") {
  run_all("initiator: session reinstatement", false, reinstate_session);
}
TEST_CASE("The initiator logs one connection out under load", "[sim][initiator]") {
  run_all("initiator: connection logout", false, log_one_out,
          [](std::uint64_t seed) { return 2U << (seed % 3); });
}
TEST_CASE("The initiator manages tasks under load", "[sim][initiator]") {
  run_all("initiator: task management", true, manage_tasks);
}

}  // namespace sandbay::simtest
