// CrashDrives: drives in memory for journal tests. What was written and is not durable yet is kept
// sector by sector, so that a copy taken at any moment can be cut: each such sector of 512 bytes
// then persists or not.
//
// Drives fail for good, their sectors rot or cannot be read. `observe` is called at every boundary:
// when a write has reached a drive, and when it is durable there but nobody has been told.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "raid/journal.h"
#include "runtime/executor.h"
#include "runtime/random.h"

namespace sandbay::raid::testing {

inline constexpr std::size_t kSectorBytes = 512;
using Sector = std::array<std::byte, kSectorBytes>;

class CrashDrives final : public JournalDrives {
 public:
  struct PendingSector {
    std::uint64_t operation = 0;
    bool completed = false;
    std::uint64_t sector = 0;
    Sector bytes;
  };
  struct Drive {
    std::vector<std::byte> durable;
    std::vector<PendingSector> pending;  // In the order of writing.
    std::set<std::uint64_t> unreadable;  // Sectors.
  };
  // Everything that outlasts the power.
  struct Image {
    std::vector<Drive> drives;
    std::uint64_t live = 0;
  };

  CrashDrives(Executor& home, unsigned count, std::size_t drive_bytes)
      : CrashDrives(home, {.drives = std::vector<Drive>(
                               count, {.durable = std::vector<std::byte>(drive_bytes)}),
                           .live = (std::uint64_t{1} << count) - 1}) {}
  CrashDrives(Executor& home, Image image) : home_(home), image_(std::move(image)) {}

  std::function<void()> observe;
  std::uint64_t writes = 0;
  double failure_chance = 0;  // Of each write: the drive fails during it.
  unsigned failures_left = 0;
  Duration longest = std::chrono::microseconds(50);

  const Image& image() const { return image_; }
  Image& image() { return image_; }
  std::uint64_t live_roles() const noexcept override { return image_.live; }
  void set_live(unsigned role, bool live) {
    const std::uint64_t bit = std::uint64_t{1} << role;
    image_.live = live ? image_.live | bit : image_.live & ~bit;
  }

  Task<Completion> journal_io(unsigned role, Request request) override {
    Drive& drive = image_.drives[role];
    if (!is_live(role)) co_return Completion{.error = Error::kNotReady};
    if (request.operation == Operation::kRead) {
      co_await pause();
      const Error error = read(drive, request);
      co_return Completion{.error = error, .data = std::move(request.data)};
    }
    if (request.operation == Operation::kFlush) {
      co_await pause();
      if (!is_live(role)) co_return Completion{.error = Error::kHardware};
      settle(drive, [](const PendingSector& pending) { return pending.completed; });
      co_return Completion{};
    }
    assert(request.operation == Operation::kWrite);
    const std::uint64_t operation = ++operations_;
    ++writes;
    take(drive, operation, request);
    if (observe) observe();
    co_await pause();
    if (!is_live(role)) co_return Completion{.error = Error::kHardware};
    if (failures_left > 0 && home_.random().chance(failure_chance)) {
      --failures_left;
      set_live(role, false);
      co_return Completion{.error = Error::kHardware, .data = std::move(request.data)};
    }
    for (PendingSector& pending : drive.pending) {
      if (pending.operation == operation) pending.completed = true;
    }
    if (request.force_unit_access) {
      settle(drive, [=](const PendingSector& pending) { return pending.operation == operation; });
    }
    if (observe) observe();
    co_return Completion{.data = std::move(request.data)};
  }

 private:
  bool is_live(unsigned role) const { return (image_.live >> role & 1U) != 0; }

  Task<void> pause() {
    const auto most = static_cast<std::uint64_t>(longest.count());
    co_await home_.sleep_for(Duration(static_cast<std::int64_t>(home_.random().below(most + 1))));
  }

  static Error read(const Drive& drive, const Request& request) {
    const std::uint64_t first = request.extent.first;  // Blocks are sectors here.
    const auto bad = drive.unreadable.lower_bound(first);
    if (bad != drive.unreadable.end() && *bad < request.extent.end()) return Error::kMediumError;
    std::vector<std::byte> bytes(request.data.byte_count());
    std::memcpy(bytes.data(), drive.durable.data() + first * kSectorBytes, bytes.size());
    for (const PendingSector& pending : drive.pending) {
      if (pending.sector < first || pending.sector >= request.extent.end()) continue;
      std::memcpy(bytes.data() + (pending.sector - first) * kSectorBytes, pending.bytes.data(),
                  kSectorBytes);
    }
    BufferList target = request.data.share();
    target.copy_from(bytes);
    return Error::kNone;
  }

  static void take(Drive& drive, std::uint64_t operation, const Request& request) {
    assert(request.extent.end() * kSectorBytes <= drive.durable.size());
    assert(request.extent.block_count * kSectorBytes == request.data.byte_count());
    for (std::uint64_t i = 0; i < request.extent.block_count; ++i) {
      PendingSector pending{.operation = operation, .sector = request.extent.first + i};
      request.data.copy_to(pending.bytes, i * kSectorBytes);
      drive.pending.push_back(pending);
      drive.unreadable.erase(pending.sector);
    }
  }

  template <class Which>
  static void settle(Drive& drive, Which which) {
    for (const PendingSector& pending : drive.pending) {
      if (!which(pending)) continue;
      std::memcpy(drive.durable.data() + pending.sector * kSectorBytes, pending.bytes.data(),
                  kSectorBytes);
    }
    std::erase_if(drive.pending, which);
  }

  Executor& home_;
  Image image_;
  std::uint64_t operations_ = 0;
};

// One of the states in which a power cut can leave the drives.
inline CrashDrives::Image cut(CrashDrives::Image image, Random& random) {
  for (CrashDrives::Drive& drive : image.drives) {
    const std::uint64_t mode = random.below(4);  // Nothing, everything, or sector by sector.
    std::vector<CrashDrives::PendingSector> pending = std::exchange(drive.pending, {});
    for (std::size_t i = pending.size(); i > 1; --i) {
      std::swap(pending[i - 1], pending[random.below(i)]);
    }
    for (const CrashDrives::PendingSector& sector : pending) {
      if (mode == 0 || (mode > 1 && random.chance(0.5))) continue;
      std::memcpy(drive.durable.data() + sector.sector * kSectorBytes, sector.bytes.data(),
                  kSectorBytes);
    }
  }
  return image;
}

}  // namespace sandbay::raid::testing
