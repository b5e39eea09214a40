// Set-up, clients and tear-down of a simulated system.
#include "rig.h"

#include <algorithm>
#include <cassert>

namespace sandbay::simtest {
Task<Completion> SlowDevice::later(Request request) {
  Random& random = home().random();
  const auto most = static_cast<std::uint64_t>(most_.count());
  co_await home().sleep_for(Duration(static_cast<std::int64_t>(random.below(most + 1))));
  Completion completion = co_await below().submit(std::move(request));
  co_return completion;
}

Rig::Rig(RigOptions options)
    : options_(std::move(options)),
      world_(sim::World::create({.seed = options_.seed,
                                 .executors = options_.executors,
                                 .memory_limit_bytes = options_.memory_limit_bytes})),
      clients_(options_.seed, options_.block_count, options_.block_bytes) {}

Rig::~Rig() = default;

Task<void> Rig::set_up() {
  // The unit lives on the last executor, sessions and connections anywhere.
  Executor& home = executor(options_.executors - 1);
  auto memory =
      MemoryDevice::create(home, {.byte_count = options_.block_count * options_.block_bytes,
                                  .block_bytes = options_.block_bytes});
  assert(memory.has_value());
  memory_ = std::move(*memory);
  device_ = std::make_unique<SlowDevice>(*memory_, options_.device_delay);
  unit_ = std::make_unique<scsi::LogicalUnit>(*device_, scsi::LogicalUnitOptions{});
  router_ = std::make_unique<scsi::TaskRouter>(world_->executors());
  const Error added = co_await router_->add(0, unit_.get());
  assert(added == Error::kNone);
  if (options_.more_units) co_await add_units();
  if (options_.breakable) co_await make_breakable();
  server_ = iscsi::TargetServer::create({}, {}, connection_faults_.get());
  iscsi::TargetOptions target{
      .name = kTargetName,
      .device = router_.get(),
      .access = {iscsi::AccessRecord{}},
      .keys = options_.target_keys,
      .queue_depth = options_.target_queue_depth,
      .pace = options_.pace,
  };
  std::string message;
  const Error made = co_await server_->add_target(std::move(target), &message);
  if (made != Error::kNone) clients_.complain("add_target: " + message);
  const Result<Endpoint> portal =
      server_->add_portal({.listen = Endpoint::ipv4(0x7F000001, kPort)});
  if (!portal.has_value()) clients_.complain("add_portal failed");
  endpoint_ = portal.value_or(Endpoint());
}

Task<void> Rig::make_breakable() {
  faults_ = std::make_unique<fault::FaultEngine>(executor(0),
                                                 fault::FaultEngineOptions{.seed = options_.seed});
  connection_faults_ = std::make_unique<group::ConnectionFaults>(*faults_);
  co_await SwitchTo(unit_->home());
  unit_faults_ = std::make_unique<group::UnitFaults>(*faults_->post(unit_->home()), "v");
  unit_->set_interference(unit_faults_.get());
  co_await SwitchTo(executor(0));
}

Task<void> Rig::add_units() {
  Executor& home = unit_->home();
  auto memory = MemoryDevice::create(home, {.byte_count = std::uint64_t{16} << 20});
  assert(memory.has_value());
  scratch_memory_ = std::move(*memory);
  hung_device_ = std::make_unique<testing::HungDevice>(*scratch_memory_);
  hung_device_->hang();
  scratch_unit_ = std::make_unique<scsi::LogicalUnit>(*scratch_memory_, scsi::LogicalUnitOptions{});
  hung_unit_ = std::make_unique<scsi::LogicalUnit>(*hung_device_, scsi::LogicalUnitOptions{});
  const Error scratch = co_await router_->add(1, scratch_unit_.get());
  const Error hung = co_await router_->add(2, hung_unit_.get());
  assert(scratch == Error::kNone && hung == Error::kNone);
}

Task<void> Rig::remove_units() {
  co_await invoke_on(unit_->home(), [](testing::HungDevice& device) -> Task<void> {
    device.release();
    co_return;
  }(*hung_device_));
  for (const auto* unit : {&scratch_unit_, &hung_unit_}) {
    co_await router_->remove(unit == &scratch_unit_ ? 1 : 2);
    const bool closed =
        co_await invoke_on(unit_->home(), (*unit)->close(world_->now() + std::chrono::minutes(5)));
    if (!closed) clients_.complain("another logical unit still holds commands");
  }
}

Task<void> Rig::tear_down() {
  co_await server_->shutdown();
  server_.reset();
  if (options_.more_units) co_await remove_units();
  co_await router_->remove(0);
  co_await router_->close();
  router_.reset();
  Executor& home = unit_->home();
  const bool closed =
      co_await invoke_on(home, unit_->close(world_->now() + std::chrono::minutes(5)));
  if (!closed) clients_.complain("the logical unit still holds commands");
  unit_.reset();
  scratch_unit_.reset();
  hung_unit_.reset();
  unit_faults_.reset();
  connection_faults_.reset();
  faults_.reset();
}

Task<void> Rig::whole(std::function<Task<void>()> body) {
  co_await set_up();
  if (!clients_.failed()) co_await body();
  co_await tear_down();
}

std::string Rig::run(std::function<Task<void>()> body, Duration limit) {
  const bool ended = world_->run([&] { return whole(body); }, limit);
  if (!ended) {
    // Its coroutines are still suspended: nothing of it may be destroyed any more.
    std::string wrong = clients_.failed() ? clients_.wrong() : "the world came to a standstill";
    (void)world_.release();
    (void)server_.release();
    (void)router_.release();
    (void)unit_.release();
    (void)scratch_unit_.release();
    (void)hung_unit_.release();
    (void)unit_faults_.release();
    (void)connection_faults_.release();
    (void)faults_.release();
    (void)hung_device_.release();
    (void)scratch_memory_.release();
    (void)device_.release();
    (void)memory_.release();
    return wrong;
  }
  return clients_.wrong();
}

}  // namespace sandbay::simtest
