// Rig: a whole system in one simulated world: a memory-backed logical unit that takes its time, the
// target server, and clients that read, write, flush and check through our initiator against the
// reference model.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../unit/block/test_devices.h"
#include "block/layer.h"
#include "block/memory_device.h"
#include "clients.h"
#include "fault/engine.h"
#include "group/connection_faults.h"
#include "group/unit_faults.h"
#include "iscsi/initiator.h"
#include "iscsi/target_server.h"
#include "iscsi/transfer_pace.h"
#include "runtime/simulation.h"
#include "runtime/sync.h"
#include "scsi/logical_unit.h"
#include "scsi/task_router.h"

namespace sandbay::simtest {

inline constexpr std::uint16_t kPort = 3260;
inline constexpr const char* kTargetName = "iqn.2026-11.org.sandbay:sim";

// Delays every request by a random time.
class SlowDevice final : public Layer {
 public:
  SlowDevice(BlockDevice& below, Duration most) : Layer(below), most_(most) {}

 protected:
  Task<Completion> read(Request request) override { return later(std::move(request)); }
  Task<Completion> write(Request request) override { return later(std::move(request)); }
  Task<Completion> flush(Request request) override { return later(std::move(request)); }

 private:
  Task<Completion> later(Request request);
  Duration most_;
};

struct RigOptions {
  std::uint64_t seed = 1;
  unsigned executors = 1;
  std::uint32_t block_bytes = 512;
  std::uint64_t block_count = 256;
  Duration device_delay = std::chrono::milliseconds(1);
  std::map<std::string, std::string> target_keys;
  std::uint32_t target_queue_depth = 64;
  iscsi::TransferPace pace;
  std::size_t memory_limit_bytes = std::size_t{256} << 20;  // For each executor.
  bool more_units = false;  // LUN 1 with memory that nobody checks, LUN 2 that never answers.
  bool breakable = false;   // An engine of faults: LUN 0 is "v", hosts and portals are as they are.
};

class Rig {
 public:
  explicit Rig(RigOptions options);
  ~Rig();

  sim::World& world() { return *world_; }
  Clients& clients() { return clients_; }
  Random& random() { return clients_.random(); }
  iscsi::TargetServer& server() { return *server_; }
  Executor& executor(unsigned index) { return *world_->executors()[index]; }
  unsigned executor_count() const { return options_.executors; }
  Endpoint endpoint() const { return endpoint_; }
  fault::FaultEngine& faults() { return *faults_; }  // Where it is breakable; on executor 0.

  // Runs `body` between set-up and tear-down, all in virtual time. What went wrong; empty: nothing.
  std::string run(std::function<Task<void>()> body, Duration limit = std::chrono::hours(2));

 private:
  Task<void> set_up();
  Task<void> tear_down();
  Task<void> whole(std::function<Task<void>()> body);
  Task<void> make_breakable();
  Task<void> add_units();
  Task<void> remove_units();
  RigOptions options_;
  std::unique_ptr<sim::World> world_;
  Clients clients_;
  std::unique_ptr<MemoryDevice> memory_;
  std::unique_ptr<SlowDevice> device_;
  std::unique_ptr<scsi::LogicalUnit> unit_;
  std::unique_ptr<MemoryDevice> scratch_memory_;
  std::unique_ptr<testing::HungDevice> hung_device_;
  std::unique_ptr<scsi::LogicalUnit> scratch_unit_;
  std::unique_ptr<scsi::LogicalUnit> hung_unit_;
  std::unique_ptr<fault::FaultEngine> faults_;
  std::unique_ptr<group::ConnectionFaults> connection_faults_;
  std::unique_ptr<group::UnitFaults> unit_faults_;
  std::unique_ptr<scsi::TaskRouter> router_;
  std::unique_ptr<iscsi::TargetServer> server_;
  Endpoint endpoint_;
};

}  // namespace sandbay::simtest
