// A parity set whose journal is in an NVRAM that gets lost, and what a host sees of its blocks.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "controller_rig.h"
#include "nvram/simulated_board.h"

namespace sandbay::raidtest {

using namespace std::chrono_literals;
using raid::Level;

inline constexpr std::uint64_t kBoardBytes = std::uint64_t{16} << 20;

inline Task<void> expect_good(Task<std::string> doing) {
  const std::string wrong = co_await std::move(doing);
  CHECK(wrong == "");
}

inline Task<void> expect_whole(ControllerRig* rig) {
  const bool whole = co_await rig->wait_for([rig] { return rig->whole(); });
  REQUIRE(whole);
}

inline Task<void> expect_stopped(ControllerRig* rig) {
  const bool stopped = co_await rig->stop();
  REQUIRE(stopped);
}

// What the blocks of a set are to a host.
struct Seen {
  std::uint64_t right = 0;
  std::uint64_t medium = 0;
  std::uint64_t other = 0;  // Other errors.
  std::uint64_t wrong = 0;  // Bytes that were not written.
};

inline Task<void> look_at(ControllerRig* rig, Lba lba, std::uint64_t blocks, Seen* seen) {
  Request request{.operation = Operation::kRead, .extent = {.first = lba, .block_count = blocks}};
  request.data = co_await rig->set->home().buffers().allocate(blocks * 512);
  const Completion done = co_await rig->set->submit(std::move(request));
  if (done.error == Error::kMediumError) {
    seen->medium += blocks;
  } else if (done.error != Error::kNone) {
    seen->other += blocks;
  } else {
    std::vector<std::byte> bytes(blocks * 512);
    done.data.copy_to(bytes);
    const auto* expected = rig->expected.data() + lba * 512;
    (std::equal(bytes.begin(), bytes.end(), expected) ? seen->right : seen->wrong) += blocks;
  }
}

// Cell by cell.
inline Task<Seen> look_everywhere(ControllerRig* rig, Lba first = 0) {
  Seen seen;
  for (Lba lba = first; lba < rig->set->geometry().block_count; lba += 8) {
    co_await look_at(rig, lba, 8, &seen);
  }
  co_return seen;
}

// A set with its journal in NVRAM, written full; then its NVRAM is gone, and parity of every stripe
// but the even ones is what a crash in the middle of a write has left.
struct Bench {
  ControllerRig rig;
  nvram::SimulatedBoard board{kBoardBytes};
  std::unique_ptr<nvram::Nvram> memory;
  bool integrity = false;
  bool small_strips = false;  // A strip is one physical block of 4096 bytes.

  explicit Bench(Executor& home) : rig(home) {}
};

inline Task<void> plug_in(Bench* bench, Executor* home, nvram::Durability durability,
                          std::string boot = "boot") {
  nvram::NvramOptions options;
  options.path = "nvram";
  options.boot_id = boot;
  options.durability = durability;
  auto opened = co_await nvram::Nvram::open(*home, bench->board, options);
  REQUIRE(opened.has_value());
  bench->memory = std::move(*opened);
  bench->rig.options.set.nvram = bench->memory.get();
  bench->rig.options.set.nvram_journal_bytes = 4 << 20;
}

inline Task<void> make(Bench* bench, Level level, unsigned count, bool integrity) {
  bench->integrity = integrity;
  std::vector<std::string> names;
  for (unsigned i = 0; i < count; ++i) {
    names.push_back("d" + std::to_string(i));
    TestDrive& drive = bench->rig.add(names.back(), std::uint64_t{4} << 20);
    if (bench->small_strips) drive.mutable_geometry().physical_block_bytes = 4096;
  }
  co_await bench->rig.start();
  const std::string error = co_await bench->rig.create(level, names, [&](NewSet& wanted) {
    wanted.region_stripes = 16;
    wanted.integrity = integrity;
    if (bench->small_strips) wanted.strip_bytes = 4096;
    if (bench->memory != nullptr) wanted.journal_bytes = 0;
  });
  REQUIRE(error == "");
  co_await expect_good(bench->rig.fill());
  co_await expect_whole(&bench->rig);
}

inline void spoil_parity(ControllerRig* rig) {
  const raid::SetDrives& drives = *rig->set->drives();
  const raid::Layout& layout = drives.layout();
  for (std::uint64_t stripe = 1; stripe < layout.stripe_count(); stripe += 2) {
    for (unsigned member = layout.data_chunks(); member < layout.width(); ++member) {
      TestDrive& drive = *rig->drives[layout.role(stripe, member)];
      const std::uint64_t at = (drives.data_offset() + layout.drive_lba(stripe)) * 512;
      const std::vector<std::byte> bytes(std::size_t{layout.strip_blocks()} * 512, std::byte{0xa5});
      drive.state().visible.write(at, bytes);
      drive.state().durable.write(at, bytes);
    }
  }
}

// The daemon is killed and comes back with another NVRAM; nothing is verified until verify().
inline Task<void> lose_journal(Bench* bench, Executor* home) {
  spoil_parity(&bench->rig);
  co_await bench->rig.kill();
  bench->memory.reset();
  bench->board = nvram::SimulatedBoard(kBoardBytes);
  co_await plug_in(bench, home, nvram::Durability::kProcess);
  bench->rig.options.set.maintenance.rate_under_load = 1;
  bench->rig.options.set.maintenance.host_is_quiet_after = 1000h;
}

inline void verify(ControllerRig* rig) {
  raid::MaintenancePolicy policy = rig->options.set.maintenance;
  policy.rate_under_load = 0;
  rig->controller->set_policy("set", policy);
}

inline Task<void> unplug(Bench* bench) {
  const Error closed = co_await bench->memory->close();
  CHECK(closed == Error::kNone);
}

inline Task<void> start_without(Bench* bench, const std::string& name) {
  std::vector<raid::NamedDevice> left = bench->rig.named();
  std::erase_if(left, [&](const auto& drive) { return drive.name == name; });
  co_await bench->rig.start(left);
  if (bench->rig.set->running()) co_return;
  const auto started = co_await bench->rig.controller->start_set("set", true);
  REQUIRE(started.has_value());
}

inline Task<Error> flush(ControllerRig* rig) {
  const Completion done = co_await rig->set->submit(Request{.operation = Operation::kFlush});
  co_return done.error;
}

inline Task<void> come_back(ControllerRig* rig, const std::string& name) {
  const auto back = co_await rig->controller->insert_drive(name, &rig->drive(name));
  REQUIRE(back.has_value());
}

inline constexpr Level kParityLevels[] = {Level::kRaid5, Level::kRaid6};

}  // namespace sandbay::raidtest
