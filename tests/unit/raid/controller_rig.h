// ControllerRig: a controller over drives of a simulated world, restarted at will, and an array of
// bytes that says what one of its sets should hold.
#pragma once

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "raid/controller.h"
#include "runtime/simulation.h"
#include "test_drive.h"

namespace sandbay::raidtest {

using raid::Controller;
using raid::ControllerEvent;
using raid::ControllerOptions;
using raid::DriveInfo;
using raid::DriveUse;
using raid::ManagedSet;
using raid::NewSet;
using raid::SetEvent;
using raid::SetInfo;

class ControllerRig {
 public:
  static constexpr std::uint64_t kDriveBytes = std::uint64_t{12} << 20;
  static constexpr std::uint64_t kJournalBytes = std::uint64_t{1} << 20;

  explicit ControllerRig(Executor& home) : home_(home) {
    options.group_uuid = {1, 2, 3};
    options.set.drive_policy.timeout = std::chrono::seconds(2);
    options.set.maintenance.rate_under_load = 0;
    options.absence_patience = std::chrono::seconds(60);
    options.look_every = std::chrono::seconds(2);
  }
  ~ControllerRig();

  TestDrive& add(std::string name, std::uint64_t byte_count = kDriveBytes,
                 std::uint32_t its_block_bytes = 512);
  TestDrive& drive(const std::string& name);
  std::vector<raid::NamedDevice> named() const;

  // A new controller over these drives, or over all.
  Task<void> start(std::vector<raid::NamedDevice> drives = {});
  Task<bool> stop(Duration within = std::chrono::seconds(60));
  // As a kill: the controller is stopped while no drive takes anything any more.
  Task<void> kill();
  Task<std::string> create(raid::Level level, std::vector<std::string> names,
                           std::function<void(NewSet&)> change = {});

  // Of the set `set`. Empty, or what is wrong.
  Task<std::string> write(Lba first, std::uint64_t blocks, std::uint64_t seed);
  Task<std::string> read(Lba first, std::uint64_t blocks);
  Task<std::string> fill();  // All of it is written.
  Task<std::string> write_some(unsigned count);
  Task<std::string> check();  // All of it is read.
  Task<void> sleep(Duration duration);
  // Until it holds, for two minutes at most.
  Task<bool> wait_for(std::function<bool()> holds);
  bool whole() const;  // Nothing is stale, away or unverified.

  DriveInfo info(const std::string& name) const;
  SetInfo set_info() const;
  DriveUse use(const std::string& name) const { return info(name).use; }
  unsigned told(SetEvent::Kind kind) const;
  bool said(const std::string& part) const;  // In an event or a line.

  ControllerOptions options;
  raid::Remembered remembered;
  std::unique_ptr<Controller> controller;
  ManagedSet* set = nullptr;
  std::uint32_t block_bytes = 512;  // Of the set.
  std::vector<std::unique_ptr<TestDrive>> drives;
  std::vector<std::string> lines;
  std::vector<ControllerEvent> events;
  std::vector<std::byte> expected;

 private:
  Executor& home_;
};

// Runs the body in worlds of several seeds; of a third as many under a sanitizer.
template <class Body, class... Arguments>
void for_worlds(std::uint64_t seeds, Body body, Arguments... arguments) {
  if (kSanitized) seeds = (seeds + 2) / 3;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    const auto world = sim::World::create({.seed = seed});
    Executor& home = *world->executors()[0];
    const bool ended = world->run([&] { return body(&home, arguments...); });
    REQUIRE(ended);
  }
}

}  // namespace sandbay::raidtest
