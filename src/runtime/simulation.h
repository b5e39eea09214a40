// Simulation: a world in one process and one thread. Its executors share a virtual clock and a
// ready queue whose order is drawn from a seed; its files lose, tear or reorder un-synced writes
// when the power is cut; its network has delay, bandwidth, resets and partitions. The same code
// that runs on reactors runs here, and a seed repeats a run bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/clock.h"
#include "runtime/error.h"
#include "runtime/executor.h"

namespace sandbay::sim {

struct FileLatency {
  Duration least = std::chrono::microseconds(50);
  Duration most = std::chrono::microseconds(500);
};

// Of each connection; two directions do not slow each other.
struct LinkOptions {
  Duration delay_least = std::chrono::microseconds(20);
  Duration delay_most = std::chrono::microseconds(200);
  std::uint64_t bytes_per_second = 0;     // 0: unlimited
  std::size_t buffer_bytes = 256 * 1024;  // A sender waits when so much is unread.
  // Receives may return any part of what is there, down to one byte.
  bool fragment = true;
};

// What carries the bytes of a connection one way: a model of links that others may use as well.
class Wire {
 public:
  // When the last of so many bytes has arrived if they are sent now, which is when it is called. 0:
  // the connection's end, or a reset.
  virtual TimePoint carry(TimePoint now, std::size_t byte_count) = 0;

 protected:
  ~Wire() = default;
};

// Both ways of a connection; borrowed for as long as it is there.
struct Wires {
  Wire* to_server = nullptr;
  Wire* to_client = nullptr;
};

// All files of a world at one moment: what is durable, what is visible, what is on its way.
struct FilesSnapshot;

struct WorldOptions {
  std::uint64_t seed = 1;
  unsigned executors = 1;
  std::size_t memory_limit_bytes = std::size_t{256} << 20;  // Of each executor.
  FileLatency file_latency;
  LinkOptions link;
  std::shared_ptr<const FilesSnapshot> files;  // Starts with these files, if any.
};

class World {
 public:
  virtual ~World() = default;
  static std::unique_ptr<World> create(WorldOptions options);

  virtual std::span<Executor* const> executors() const noexcept = 0;
  virtual Random& random() noexcept = 0;
  virtual TimePoint now() const noexcept = 0;

  // Runs until `main` (started on executor 0) has ended. A world in which nothing is ready, no
  // timer is armed and main has not ended is deadlocked: that, passing `limit` of virtual time, and
  // ten million steps without any time passing return false. `main` is kept until the world
  // goes if it has not ended.
  [[nodiscard]] virtual bool run(std::function<Task<void>()> main,
                                 Duration limit = std::chrono::hours(1)) = 0;
  // Runs until nothing is ready and no timer is due within `duration`, which then has passed.
  virtual void run_for(Duration duration) = 0;
  virtual std::uint64_t steps() const noexcept = 0;       // Ready items and timers run so far.
  virtual std::uint64_t trace_hash() const noexcept = 0;  // Of every scheduling decision.

  // Files, by path. --------------------------------------------------------------------------
  // Cuts the power: every byte written but not synced is kept, lost or torn at 512-byte borders,
  // as the seed has it, in any order; operations in flight fail with kHardware. Files stay and can
  // be opened again at once; File objects of before the cut answer kHardware for ever.
  virtual void cut_power() = 0;
  virtual bool file_exists(const std::string& path) const = 0;
  virtual std::vector<std::byte> file_content(const std::string& path) const = 0;
  virtual void set_file_content(const std::string& path, std::vector<std::byte> content) = 0;
  // Forks the files: a world that starts from the snapshot and cuts its power first sees one of
  // the crashes that were possible at this moment; other seeds, other crashes. Cheap: content is
  // shared until it changes. Snapshots and their worlds stay on one thread.
  virtual std::shared_ptr<const FilesSnapshot> snapshot_files() const = 0;
  // Called just before a change of a file becomes visible (a write boundary), where a snapshot can
  // be taken; it must not change the world. Null switches it off.
  virtual void observe_writes(std::function<void(const std::string& path)> observer) = 0;

  // The network. ------------------------------------------------------------------------------
  // Connections to this endpoint, from now on, have these wires in place of LinkOptions' delay and
  // bandwidth, once they are made. What is sent at once is on the wire in pieces of some 64 KiB.
  virtual void set_wires(const Endpoint& server, Wires wires) = 0;
  // Every established stream whose local or peer port is `port` is reset.
  virtual void reset_streams(std::uint16_t port) = 0;
  virtual std::size_t stream_count() const noexcept = 0;  // Established pairs.
  // Resets the index-th established pair, 0 … stream_count() - 1, in order of establishment.
  virtual void reset_stream(std::size_t index) = 0;
  // Nothing arrives while it lasts; nothing is lost either.
  virtual void set_partitioned(bool partitioned) = 0;
};

}  // namespace sandbay::sim
