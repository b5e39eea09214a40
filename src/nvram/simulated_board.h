// SimulatedBoard: the hardware under an Nvram in a simulation: memory without a file.
//
// It outlives the Nvram opened over it, as memory outlives a process: destroying the Nvram without
// close() is a kill. A copy of a board is a fork: what the memory held at that moment, to be opened
// in another world. So a test may copy it at every device write, or at every store, and let each
// copy meet another end: nothing more (a kill), cut_power() or crash_host().
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

#include "nvram/battery.h"
#include "runtime/clock.h"
#include "runtime/error.h"
#include "runtime/random.h"

namespace sandbay::nvram {

class SimulatedBoard {
 public:
  // A multiple of kPageBytes, at least kLeastImageBytes.
  explicit SimulatedBoard(std::uint64_t byte_count);

  std::span<std::byte> memory() noexcept { return memory_; }
  std::span<const std::byte> memory() const noexcept { return memory_; }
  std::uint64_t byte_count() const noexcept { return memory_.size(); }
  // Nothing was ever made durable on it: it has no image yet.
  bool blank() const noexcept { return blank_; }

  // The power was cut while nothing could be stored any more: as Nvram::cut_power().
  void cut_power(BatteryState battery);
  // The host went down: of what was stored since the last sync, each sector of 512 bytes is kept or
  // lost as `random` has it. Open it with another boot id afterwards.
  void crash_host(Random& random);
  // As a file that is cut short while it is used: what lies behind is gone, for good.
  void cut_short(std::uint64_t byte_count);
  // Some sectors become durable before their time, as a kernel writes back when it likes.
  void write_back(Random& random);

  // How long a sync takes: what was in memory when it began is durable when it ends.
  Duration sync_time = std::chrono::microseconds(100);
  // What syncs end with from now on; after an error nothing more is durable.
  Error sync_error = Error::kNone;

 private:
  friend class SimulatedImage;
  // As a mapped file: buffers in it are as aligned as any.
  template <class T>
  struct PageAligned {
    using value_type = T;
    T* allocate(std::size_t count) {
      return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{4096}));
    }
    void deallocate(T* memory, std::size_t) noexcept {
      ::operator delete(memory, std::align_val_t{4096});
    }
    bool operator==(const PageAligned&) const = default;
  };
  using Bytes = std::vector<std::byte, PageAligned<std::byte>>;

  Bytes memory_;
  Bytes durable_;
  bool blank_ = true;
  bool cut_short_ = false;
};

}  // namespace sandbay::nvram
