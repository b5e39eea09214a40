// RaidLab: one RAID set on drives that fork, in a simulated world, with a model of what a host may
// expect of it. A LabState is what is left when the world goes: drives, NVRAM, and what the owner
// remembers; another world begins with it.
//
// Where blocks and parity lie, what parity is and what a level survives is worked out here again,
// from the words of the layout's description, and shares no code with the product.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nvram/simulated_board.h"
#include "raid/managed_set.h"
#include "raid_blocks.h"
#include "tests/unit/raid/test_drive.h"

namespace sandbay::raidtest {

struct LabShape {
  raid::Level level = raid::Level::kRaid5;
  unsigned drives = 4;
  unsigned groups = 0;  // As in raid::NewSet.
  std::uint32_t strip_bytes = 4096;
  unsigned strips = 12;  // On a drive.
  bool nvram = false;    // Where the journal is, if it has one.
  bool host_durable_nvram = false;
  bool unverified = false;  // Begins with nothing verified.
  bool integrity = false;
  std::uint64_t journal_bytes = std::uint64_t{256} << 10;

  unsigned group_count() const;
  unsigned width() const { return drives / group_count(); }
  unsigned redundancy() const;  // Drives that a group survives losing.
  bool mirrored() const;
  bool parity() const { return redundancy() > 0 && !mirrored(); }
  bool journaled() const { return parity() || (integrity && redundancy() > 0); }
  unsigned data_chunks() const { return width() - redundancy(); }
  std::uint64_t strip_blocks() const { return strip_bytes / kModelBlockBytes; }
  std::uint64_t block_count() const;
  std::uint64_t drive_bytes() const;
  bool survives(std::uint64_t missing_roles) const;
  std::string name() const;
  // Which role holds a member of a stripe: data first, then P, then Q.
  unsigned role(std::uint64_t stripe, unsigned member) const;
  std::uint64_t stripe_count() const { return std::uint64_t{strips} * group_count(); }
  std::uint64_t data_offset_bytes() const;
};

struct LabDrive {
  DriveState state;
  std::string name;
  int role = -1;  // -1: it had none when this was noted.
  bool present = true;
};

struct LabState {
  std::vector<LabDrive> drives;
  raid::Event minimum_event = 0;
  Uuid set{};
  std::optional<nvram::SimulatedBoard> board;
  unsigned host_boots = 0;
};

class RaidLab {
 public:
  RaidLab(Executor& home, LabShape shape, LabState state, BlockModel model);
  ~RaidLab();

  // Plans the set and writes its metadata on drives that are there and blank.
  Task<std::string> format();
  // Looks at the drives, assembles, starts. An error is a sentence.
  Task<std::string> boot();
  Task<void> stop();

  // Each is in the model; what the set answers wrongly is added to `wrong`, errors are returned.
  Task<Error> write(Extent extent, bool force_unit_access);
  Task<Error> zero(Extent extent, bool unmap);
  Task<Error> flush();
  Task<Error> read(Extent extent);
  // One operation of a random kind at a random place.
  Task<void> something();
  // So many in all, so many at once. Errors are wrong.
  Task<void> load(unsigned operations, unsigned depth);

  // Everything, as bytes.
  Task<Error> read_all(std::vector<std::byte>* bytes);
  // Whether every member of every stripe that the set would read fits `bytes`; what is wrong.
  std::string check_members(const std::vector<std::byte>& bytes) const;
  Task<void> wait_idle();

  // A new blank drive; its number.
  unsigned add_drive(std::string name);
  raid::SetDrives& set_drives() { return *set->drives(); }
  // As the controller does it.
  Task<void> take_spare(unsigned role, unsigned drive);
  Task<void> return_drive(unsigned role, unsigned drive);
  Task<void> begin_copy(unsigned role, unsigned drive);

  LabState fork() const;
  // Roles that cannot be counted on now: without a drive, or not said to be whole.
  std::uint64_t doubtful_roles() const;
  void observe(std::function<void()> before_change);

  Executor& home;
  const LabShape shape;
  BlockModel model;
  std::vector<std::unique_ptr<TestDrive>> devices;
  std::vector<int> role_of;  // By device.
  std::unique_ptr<raid::ManagedSet> set;
  std::vector<std::string> wrong;
  std::vector<std::string> events;
  raid::Event minimum_event = 0;
  raid::MaintenancePolicy maintenance{.rate_under_load = 0};
  raid::DrivePolicy drive_policy;
  // Where the host's requests go, if something stands above the set.
  BlockDevice* door = nullptr;
  // It may change a request before that; whether its end says that drives hold what it is about.
  std::function<bool(Request&)> prepare;
  // Asked when a change ends, likewise. And called when only this says so.
  std::function<bool(bool force_unit_access)> reached_drives;
  std::function<void()> acknowledged;
  std::uint64_t last_version = 0;  // The version of the latest write.
  // Whether an operation may end with this error that began then and ends now.
  std::function<bool(Extent extent, Error error, TimePoint began)> excuses;
  // Borrowed; the journal is in it, and not on a board of the set's own.
  nvram::Nvram* shared_nvram = nullptr;
  // With `prepare`: what is there even if everything above the drives is lost. Versions as in
  // `model`.
  std::optional<BlockModel> on_drives;
  bool errors_expected = false;
  std::uint64_t region_stripes = 4;

 private:
  Task<std::string> open_nvram();
  Task<Error> remember(raid::Event event);
  void note(raid::SetEvent event);
  Task<void> one_of(unsigned* left, unsigned* running, Condition* ended);
  std::vector<raid::NamedDevice> present() const;
  BlockDevice& host_side() const { return door != nullptr ? *door : *set; }
  Task<Error> change(Request request, std::uint64_t version);
  std::string check_stripe(std::uint64_t stripe, const std::vector<std::byte>& bytes) const;

  Uuid set_uuid_{};
  unsigned host_boots_ = 0;
  std::uint64_t mending_ = 0;  // Roles from the beginning of a rebuild, or a promotion, to its end.
  std::vector<bool> present_;
  std::unique_ptr<nvram::SimulatedBoard> board_;
  std::unique_ptr<nvram::Nvram> nvram_;
  std::function<void()> before_change_;
};

// A model of the set as it is when new.
BlockModel new_model(const LabShape& shape);
// Blank drives, for a world's first set.
LabState blank_state(const LabShape& shape);

}  // namespace sandbay::raidtest
