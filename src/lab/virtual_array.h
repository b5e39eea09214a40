// VirtualArray: a system, in virtual time or live. The RAID sets and the controller's cache are the
// real ones, over modelled drives without data; ports, sessions and hosts are models in front of
// them.
//
// For each worker on its volumes there is a host, or a part of one, and one session.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "block/slice.h"
#include "cache/cache.h"
#include "cache/cached_device.h"
#include "cache/read_ahead.h"
#include "lab/array_profile.h"
#include "lab/experiment.h"
#include "model/drive_type.h"
#include "model/model_clock.h"
#include "model/modelled_drive.h"
#include "raid/raid_set.h"
#include "raid/set_drives.h"

namespace sandbay::lab {

// One host with its adapters.
struct VirtualHost {
  std::unique_ptr<model::Host> host;
  std::vector<std::unique_ptr<model::Port>> adapters;
};

// A session's connection, from an adapter to a port of the array.
struct VirtualConnection {
  model::Port* adapter = nullptr;
  model::Port* port = nullptr;
  model::Exchange exchange;  // Between the two, where sessions are models.
  // When each of the writes that may be in transfer at a time has been received.
  std::vector<TimePoint> receiving;
  unsigned in_flight = 0;
};

// A volume as one of its workers has it: his part, his session.
struct VirtualVolume {
  std::size_t group = 0;
  unsigned number = 0;  // Within the group.
  BlockDevice* device = nullptr;
  std::uint64_t first_byte = 0;  // Of his part,
  std::uint64_t bytes = 0;       // and its length.
  model::Controller* controller = nullptr;
  VirtualHost* host = nullptr;
  std::vector<VirtualConnection> connections;
  std::size_t next_connection = 0;

  bool in_turn = false;

  // The one with the least in flight, and of equals in turn; or all in turn.
  VirtualConnection& choose_connection();
};

// Of the array that has all these groups.
unsigned member_count(const std::vector<VolumeGroup>& groups);

class VirtualArray {
 public:
  // Borrows the profile, which is that of each member.
  VirtualArray(Executor& home, const ArrayProfile& profile, unsigned members, std::uint64_t seed,
               double time_scale = 1);
  ~VirtualArray();  // After stop(), if start() has begun.

  // The error is one line.
  Task<std::string> start(std::vector<VolumeGroup> groups);
  Task<void> stop();  // No request is in flight. What is dirty is forgotten.

  Executor& home() const noexcept { return home_; }
  const ArrayProfile& profile() const noexcept { return profile_; }
  const model::ModelClock& clock() const noexcept { return clock_; }
  std::vector<VirtualVolume>& volumes() noexcept { return volumes_; }
  // Without memory behind it, for the hosts' requests.
  BufferPool& payloads() noexcept { return payloads_; }
  // All drives that are in use.
  model::DriveCounters drive_counters() const;
  std::size_t drive_count() const noexcept { return drives_.size(); }

 private:
  struct Drive {
    std::unique_ptr<BlockDevice> medium;
    std::unique_ptr<model::ModelledDrive> timed;
  };
  // A controller and what is its own.
  struct Head {
    std::unique_ptr<model::Controller> controller;
    std::unique_ptr<cache::Cache> cache;  // If it has one.
    cache::StreamBudget streams;
    std::vector<std::unique_ptr<model::Port>> ports;
    std::size_t next_port = 0;
  };
  struct Set {
    Head* head = nullptr;
    std::unique_ptr<raid::SetDrives> drives;
    std::unique_ptr<raid::RaidSet> set;
    BlockDevice* top = nullptr;  // With the cache in front of it.
  };

  BlockDevice& add_drive(const VolumeGroup& group);
  void add_head(unsigned members);
  Head& head_of(const VolumeGroup& group, unsigned set);
  Task<std::string> add_set(const VolumeGroup* group, Head* head);
  void add_volumes(const VolumeGroup& group, std::size_t index, std::size_t first_set);
  BlockDevice& place_volume(const VolumeGroup& group, unsigned number, std::size_t first_set);
  BlockDevice& place_in_pages(const VolumeGroup& group, unsigned in_set, std::size_t first_set,
                              std::uint64_t volume);
  void add_worker(VirtualVolume volume, const VolumeGroup& group, Head& head, std::size_t before);
  VirtualHost* add_host(const VolumeGroup& group);

  Executor& home_;
  const ArrayProfile& profile_;
  Random random_;
  model::ModelClock clock_;
  model::DriveType type_;
  BufferPool payloads_;
  std::vector<Drive> drives_;
  std::vector<Set> sets_;
  std::vector<std::unique_ptr<Head>> heads_;
  std::size_t next_head_ = 0;
  std::vector<std::unique_ptr<BlockDevice>> places_;
  std::vector<std::unique_ptr<cache::ReadAhead>> fronts_;
  std::vector<std::unique_ptr<VirtualHost>> hosts_;
  std::vector<VirtualVolume> volumes_;
};

}  // namespace sandbay::lab
