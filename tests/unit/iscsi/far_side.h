// FarSide: a member's target in a simulated world, behind a fence, with memory behind its unit that
// outlives its restarts; and a lead's RemoteTarget to it.
#pragma once

#include <catch2/catch.hpp>

#include <fmt/core.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../block/test_devices.h"
#include "block/layer.h"
#include "block/memory_device.h"
#include "iscsi/lead_claim.h"
#include "iscsi/remote_target.h"
#include "iscsi/target_fence.h"
#include "iscsi/target_server.h"
#include "runtime/simulation.h"
#include "runtime/sync.h"
#include "scsi/logical_unit.h"
#include "scsi/task_router.h"

namespace sandbay::iscsi::test {

inline constexpr const char* kFarTarget = "iqn.2026-11.org.sandbay:array2";
inline constexpr std::uint16_t kFarPort = 3260;

// Takes its time, and says what the test wants of its caches.
class FarDevice final : public Layer {
 public:
  FarDevice(BlockDevice& below, Duration most) : Layer(below), most_(most) {
    geometry_ = below.geometry();
  }
  const Geometry& geometry() const noexcept override { return geometry_; }
  Geometry& change() noexcept { return geometry_; }
  // The next write takes so long, whoever gives it up.
  void hold_next_write(Duration duration) { held_ = duration; }
  std::uint64_t writes() const noexcept { return writes_; }
  // As a set does that has lost what was not flushed.
  void fail_next_flush(Error error) { flush_error_ = error; }

 protected:
  Task<Completion> read(Request request) override { return later(std::move(request)); }
  Task<Completion> write(Request request) override {
    ++writes_;
    if (held_ > Duration{}) return much_later(std::move(request), std::exchange(held_, {}));
    return later(std::move(request));
  }
  Task<Completion> flush(Request request) override {
    const Error error = std::exchange(flush_error_, Error::kNone);
    if (error == Error::kNone) return Layer::flush(std::move(request));
    return end_with(error, std::move(request));
  }

 private:
  static Task<Completion> end_with(Error error, Request request) {
    co_return Completion{.error = error, .data = std::move(request.data)};
  }
  Task<Completion> later(Request request) {
    const auto most = static_cast<std::uint64_t>(most_.count());
    co_await home().sleep_for(Duration(static_cast<std::int64_t>(home().random().below(most + 1))));
    Completion completion = co_await below().submit(std::move(request));
    co_return completion;
  }
  Task<Completion> much_later(Request request, Duration pause) {
    co_await home().sleep_for(pause);
    request.cancellation = nullptr;
    Completion completion = co_await below().submit(std::move(request));
    co_return completion;
  }
  Duration most_;
  Duration held_{};
  Error flush_error_ = Error::kNone;
  Geometry geometry_;
  std::uint64_t writes_ = 0;
};

class KeptFence final : public TargetFence {
 public:
  Verdict judge(std::string claim) const override {
    const auto parsed = parse_lead_claim(claim);
    if (!parsed) return {.status = LoginStatus::kAuthorizationFailure, .why = "no claim"};
    const LeadVerdict verdict = judge_lead(kept, *parsed);
    return {.status = verdict == LeadVerdict::kAccepted ? LoginStatus::kSuccess
                                                        : LoginStatus::kAuthorizationFailure,
            .why = std::string(describe(verdict)),
            .owner = format_hex(parsed->lead)};
  }
  Task<Verdict> take(std::string claim) override {
    Verdict verdict = judge(claim);
    const auto parsed = parse_lead_claim(claim);
    co_await Executor::current().sleep_for(std::chrono::milliseconds(3));
    if (full) verdict.status = LoginStatus::kServiceUnavailable;
    if (parsed && !full) kept = LeadRecord{.group = parsed->group, .step = parsed->proposed};
    co_return verdict;
  }
  void refused(std::string who, std::string why) override { told.push_back(who + ": " + why); }

  std::optional<LeadRecord> kept;
  bool full = false;  // Can keep nothing new.
  std::vector<std::string> told;
};

// A lead's side of the claim, without a store.
class TestClaim final : public RemoteClaim {
 public:
  explicit TestClaim(std::uint8_t lead) { claim_.lead.fill(lead); }
  // As a copy of the state directory has it, in another run.
  TestClaim(const TestClaim& other, std::uint8_t lead) : claim_(other.claim_) {
    claim_.lead.fill(lead);
    ++claim_.proposed.epoch;
    claim_.proposed.token.fill(lead);
  }
  Task<std::expected<std::string, std::string>> propose() override {
    if (claim_.proposed == claim_.proven || claim_.proposed.epoch == 0) {
      claim_.proposed.epoch = std::max<std::uint64_t>(claim_.proven.epoch, 1);
      claim_.proposed.token.fill(++tokens_);
    }
    co_return format_lead_claim(claim_);
  }
  std::string accepted() override {
    claim_.proven = claim_.proposed;
    return format_lead_claim(claim_);
  }

 private:
  LeadClaim claim_;
  std::uint8_t tokens_ = 0;
};

class FarSide {
 public:
  explicit FarSide(std::uint64_t seed, Duration device_delay = std::chrono::milliseconds(1))
      : world_(sim::World::create({.seed = seed})), device_delay_(device_delay) {}

  sim::World& world() { return *world_; }
  KeptFence& fence() { return fence_; }
  FarDevice& device() { return *device_; }
  testing::FaultyDevice& faults() { return *faulty_; }  // Below it.
  TargetServer& server() { return *server_; }
  TestClaim& claim() { return *claim_; }  // Of the lead that is there.
  // Before start(): LUN 4 has the same name as LUN 3.
  void add_twin() { has_twin_ = true; }
  void set_patience(Duration patience) { patience_ = patience; }

  Task<void> start() {
    if (memory_ == nullptr) {
      auto memory = MemoryDevice::create(Executor::current(), {.byte_count = 1 << 20});
      memory_ = std::move(*memory);
      faulty_ = std::make_unique<testing::FaultyDevice>(*memory_);
      device_ = std::make_unique<FarDevice>(*faulty_, device_delay_);
    }
    scsi::LogicalUnitOptions options;
    options.uuid.fill(0x5A);
    options.product = "data";
    unit_ = std::make_unique<scsi::LogicalUnit>(*device_, options);
    router_ = std::make_unique<scsi::TaskRouter>(world_->executors());
    Error added = co_await router_->add(3, unit_.get());
    CHECK(added == Error::kNone);
    options.uuid.fill(0x5B);
    if (has_twin_) {
      twin_ = std::make_unique<scsi::LogicalUnit>(*device_, options);
      added = co_await router_->add(4, twin_.get());
      CHECK(added == Error::kNone);
    }
    ServerLimits limits;
    limits.nop_in_interval = std::chrono::seconds(1);
    limits.nop_in_timeout = std::chrono::seconds(2);
    server_ = TargetServer::create(limits);
    TargetOptions target{.name = kFarTarget,
                         .device = router_.get(),
                         .access = {AccessRecord{}},
                         .keys = {{std::string(kLeadKey), fmt::format("run {}", ++runs_)}},
                         .fence = &fence_};
    std::string message;
    const Error made = co_await server_->add_target(std::move(target), &message);
    CHECK(made == Error::kNone);
    const auto portal = server_->add_portal({.listen = Endpoint::ipv4(0x7F000001, kFarPort)});
    CHECK(portal.has_value());
  }

  // What a kill leaves: connections that are reset, and whatever the device has been given.
  Task<void> kill() {
    world_->reset_streams(kFarPort);
    co_await stop();
  }
  Task<void> stop() {
    co_await server_->shutdown();
    server_.reset();
    co_await router_->remove(3);
    if (has_twin_) co_await router_->remove(4);
    co_await router_->close();
    router_.reset();
    bool closed = co_await unit_->close(world_->now() + std::chrono::minutes(5));
    CHECK(closed);
    unit_.reset();
    if (has_twin_) closed = co_await twin_->close(world_->now() + std::chrono::minutes(5));
    CHECK(closed);
    twin_.reset();
  }

  RemoteTargetOptions options(RemoteClaim* claim) const {
    RemoteTargetOptions options{.name = "array2", .claim = claim, .patience = patience_};
    options.session.endpoint = Endpoint::ipv4(0x7F000001, kFarPort);
    options.session.target_name = kFarTarget;
    options.session.connections = 2;
    options.session.isid.bytes[0] = std::byte{0x80};
    options.session.isid.bytes[5] = std::byte{0x07};
    return options;
  }

  // Runs `script` with a member that is there, and a lead that has begun to log in.
  void run(Task<void> (*script)(FarSide& far, RemoteTarget& near)) {
    const bool ended = world_->run([&] { return whole(script); });
    REQUIRE(ended);
  }

 private:
  Task<void> whole(Task<void> (*script)(FarSide& far, RemoteTarget& near)) {
    co_await start();
    TestClaim claim(1);
    RemoteTarget near(options(&claim));
    claim_ = &claim;
    near.start();
    co_await script(*this, near);
    co_await near.stop();
    co_await stop();
  }

  TestClaim* claim_ = nullptr;
  std::unique_ptr<sim::World> world_;
  Duration device_delay_;
  Duration patience_ = std::chrono::seconds(5);
  KeptFence fence_;
  unsigned runs_ = 0;
  std::unique_ptr<MemoryDevice> memory_;
  std::unique_ptr<testing::FaultyDevice> faulty_;
  std::unique_ptr<FarDevice> device_;
  std::unique_ptr<scsi::LogicalUnit> unit_;
  std::unique_ptr<scsi::LogicalUnit> twin_;
  bool has_twin_ = false;
  std::unique_ptr<scsi::TaskRouter> router_;
  std::unique_ptr<TargetServer> server_;
};

// The unit, once it serves; null after a minute.
inline Task<RemoteUnit*> serving_unit(RemoteTarget& target) {
  const TimePoint limit = Executor::current().now() + std::chrono::minutes(1);
  while (Executor::current().now() < limit) {
    const bool there = !target.units().empty() && target.units().front()->health() == Health::kGood;
    if (there && target.up()) co_return target.units().front().get();
    co_await Executor::current().sleep_for(std::chrono::milliseconds(20));
  }
  co_return nullptr;
}

}  // namespace sandbay::iscsi::test
