// A whole group in a simulated world: members with small RAID sets, the first with an NVRAM, some
// with caches in it, metadata in a simulated store, portals on the simulated network. It ends and
// begins again in another world. Coroutines take pointers; their callers await them at once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "group/group.h"
#include "iscsi/remote_target.h"
#include "metadata/store.h"
#include "nvram/simulated_board.h"

namespace sandbay::simtest {

// The images of all NVRAMs, by path. A copy is a fork.
using Boards = std::map<std::string, nvram::SimulatedBoard>;

// What is bolted in. Of the members array1 to array4 the pool "p" begins with the first two; the
// set "solo" of member rack is no pool's.
struct GroupShape {
  unsigned executors = 1;
  // NVRAM that keeps its content only while the host runs, or has power in an emulation, and a
  // cache in it for two members; without, one NVRAM that survives the host, and no cache.
  bool cached = false;
  // Members can be lost. Then drives have caches in the process: killing it is a power cut to them.
  bool faults = false;
  // The part of the first NVRAM that fails while the group runs. A mirror needs a cache, and only
  // an image that survives the host is synced, so only that one can fail.
  enum class Weak : std::uint8_t { kNothing, kBattery, kImage, kMirror };
  Weak weak = Weak::kNothing;
  // The administrator restores one volume again and again.
  bool rows = false;

  group::Configuration configuration() const;
};

class GroupLab {
 public:
  // The images of the first NVRAM and of its mirror in Boards.
  static constexpr std::string_view kImage = "/simulated/nvram.img";
  static constexpr std::string_view kMirror = "/simulated/mirror.img";

  GroupLab(Executor& home, const GroupShape& shape, Boards& boards, std::string boot_id)
      : home_(home),
        shape_(shape),
        configuration_(shape.configuration()),
        boards_(boards),
        boot_id_(boot_id) {}

  // At every store to an NVRAM; to be set before start().
  std::function<void()> on_store;

  // The fault, or an empty text.
  Task<std::string> start();
  Task<void> stop();

  // The maps of all pools are right.
  Task<std::string> check();
  // Nothing of a volume, snapshot or schedule is left anywhere, and every page of the pool is free,
  // after some time at most.
  Task<std::string> check_empty();
  // Whether the member has left its pool, within some time.
  Task<bool> left(std::string member);

  // Changes the batteries of all NVRAMs.
  void set_battery(nvram::BatteryState state);
  // For good: syncs of the first NVRAM's image end with an error.
  void fail_image();
  void fail_mirror();

  group::Group& group() noexcept { return *group_; }
  const GroupShape& shape() const noexcept { return shape_; }
  bool running() const noexcept { return group_ != nullptr; }
  bool faults() const noexcept { return configuration_.hardware.faults.enabled; }
  Executor& home() noexcept { return home_; }

 private:
  Task<Result<std::unique_ptr<nvram::Nvram>, std::string>> open_board(Executor* home,
                                                                      nvram::NvramOptions options);
  Task<std::string> find_leftovers();

  Executor& home_;
  GroupShape shape_;
  group::Configuration configuration_;
  Boards& boards_;
  std::string boot_id_;
  std::map<std::string, nvram::Nvram*> memories_;  // By path; the group's.
  std::unique_ptr<metadata::Store> store_;
  std::unique_ptr<group::Group> group_;
};

// What a host has of one target: a session with it, and LUN 0 as a block device.
class Disk {
 public:
  explicit Disk(std::string target);

  // Until it is there with this size; what is wrong, or an empty text.
  Task<std::string> connect(std::uint64_t byte_count);
  // Until the host knows that it has this size.
  Task<std::string> wait_for_size(std::uint64_t byte_count);
  Task<void> disconnect();
  BlockDevice& unit() { return *target_.units().front(); }

 private:
  std::uint64_t byte_count() const;
  iscsi::RemoteTarget target_;
};

std::string target_of(const std::string& volume);

}  // namespace sandbay::simtest
