// A set with integrity over drives that lie: what they were asked to hold stands in a shadow, what
// they do hold may differ. So a test knows at any time what is corrupt, and after a repair whether
// it was the right one.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "raid/assembly.h"
#include "raid/drive_journal.h"
#include "raid/integrity_format.h"
#include "raid/maintenance.h"
#include "raid/raid_set.h"
#include "runtime/simulation.h"
#include "test_drive.h"

namespace sandbay::raidtest {

enum class Lie : std::uint8_t {
  kNone,
  kFlippedWrite,  // On the way to the medium.
  kLost,
  kTorn,
  kMisdirected,
  kFlippedRead,  // On the way from it, once.
};

class LyingDrive final : public BlockDevice {
 public:
  LyingDrive(Executor& home, std::string name, std::uint64_t byte_count)
      : drive(home, std::move(name), byte_count), random_(home.random().fork()) {
    shadow.resize(byte_count);
  }

  Executor& home() const noexcept override { return drive.home(); }
  const Geometry& geometry() const noexcept override { return drive.geometry(); }
  Health health() const noexcept override { return drive.health(); }
  std::string description() const override { return drive.description(); }
  Task<Result<ProvisioningRun>> provisioning(Lba first, Lba limit) override {
    return drive.provisioning(first, limit);
  }

  Task<Completion> submit(Request request) override {
    const bool write = request.operation == Operation::kWrite;
    const bool zero =
        request.operation == Operation::kWriteZeroes || request.operation == Operation::kUnmap;
    const std::uint64_t offset = request.extent.first * 512;
    if (write) {
      std::vector<std::byte> bytes(request.data.byte_count());
      request.data.copy_to(bytes);
      shadow.write(offset, bytes);
    } else if (zero) {
      shadow.punch(offset, request.extent.block_count * 512);
    }
    const bool counts = request.extent.first >= lies_from && request.extent.end() <= lies_to;
    if (counts && lie != Lie::kNone) {
      if (write && lie != Lie::kFlippedRead) return lie_about_write(std::move(request));
      if (request.operation == Operation::kRead && lie == Lie::kFlippedRead) {
        return lie_about_read(std::move(request));
      }
    }
    return drive.submit(std::move(request));
  }

  // Changes what is on the medium, un-flushed or not.
  void write_medium(std::uint64_t offset, std::span<const std::byte> bytes) {
    drive.state().visible.write(offset, bytes);
    drive.state().durable.write(offset, bytes);
  }
  std::vector<std::byte> medium(std::uint64_t offset, std::size_t byte_count) const {
    std::vector<std::byte> bytes(byte_count);
    drive.state().visible.read(offset, bytes);
    return bytes;
  }
  std::vector<std::byte> should(std::uint64_t offset, std::size_t byte_count) const {
    std::vector<std::byte> bytes(byte_count);
    shadow.read(offset, bytes);
    return bytes;
  }
  bool right(std::uint64_t offset, std::size_t byte_count) const {
    return medium(offset, byte_count) == should(offset, byte_count);
  }
  void flip_medium(std::uint64_t offset, std::size_t byte_count, unsigned bits) {
    std::vector<std::byte> bytes = medium(offset, byte_count);
    for (unsigned i = 0; i < bits; ++i) {
      bytes[random_.below(byte_count)] ^= static_cast<std::byte>(1U << random_.below(8));
    }
    if (bytes == medium(offset, byte_count)) bytes[0] ^= std::byte{1};
    write_medium(offset, bytes);
  }

  TestDrive drive;
  sim::SparseImage shadow;
  Lie lie = Lie::kNone;  // The next access between these blocks, once.
  Lba lies_from = 0;
  Lba lies_to = ~Lba{0};
  std::uint64_t lies = 0;  // Told so far.

 private:
  Task<Completion> lie_about_write(Request request) {
    const Lie now = std::exchange(lie, Lie::kNone);
    ++lies;
    BufferList mine = request.data.share();
    Request changed = request_like_of(request);
    std::vector<std::byte> bytes(mine.byte_count());
    mine.copy_to(bytes);
    if (now == Lie::kLost) co_return Completion{.data = std::move(mine)};
    if (now == Lie::kFlippedWrite) {
      bytes[random_.below(bytes.size())] ^= static_cast<std::byte>(1U << random_.below(8));
    } else if (now == Lie::kTorn) {
      // Some sectors stay as they are; the first is among them.
      for (std::size_t at = 0; at < bytes.size(); at += 512) {
        if (at > 0 && random_.chance(0.5)) continue;
        drive.state().visible.read(request.extent.first * 512 + at,
                                   std::span(bytes).subspan(at, 512));
      }
    } else if (now == Lie::kMisdirected) {
      const std::uint64_t blocks = request.extent.block_count;
      changed.extent.first = lies_from + random_.below((lies_to - lies_from - blocks) / 8 + 1) * 8;
      if (changed.extent.overlaps(request.extent)) co_return Completion{.data = std::move(mine)};
    }
    BufferList copy = co_await drive.home().buffers().allocate(bytes.size());
    copy.copy_from(bytes);
    changed.data = std::move(copy);
    if (now == Lie::kMisdirected) misdirected_to = changed.extent;
    Completion done = co_await drive.submit(std::move(changed));
    done.data = std::move(mine);
    co_return done;
  }

  Task<Completion> lie_about_read(Request request) {
    lie = Lie::kNone;
    ++lies;
    Completion done = co_await drive.submit(std::move(request));
    std::vector<std::byte> bytes(done.data.byte_count());
    done.data.copy_to(bytes);
    bytes[random_.below(bytes.size())] ^= static_cast<std::byte>(1U << random_.below(8));
    done.data.copy_from(bytes);
    co_return done;
  }

  static Request request_like_of(const Request& request) {
    Request like;
    like.operation = request.operation;
    like.force_unit_access = request.force_unit_access;
    like.origin = request.origin;
    like.extent = request.extent;
    return like;
  }

 public:
  std::optional<Extent> misdirected_to;

 private:
  Random random_;
};

struct RigShape {
  raid::Level level = raid::Level::kRaid5;
  unsigned drives = 3;
  unsigned groups = 0;
  std::uint32_t strip_bytes = 8192;
  std::uint64_t drive_bytes = std::uint64_t{4} << 20;
  std::size_t cache_bytes = std::size_t{16} << 20;
  Duration latency = std::chrono::microseconds(50);
};

// One set and what it should hold.
class IntegrityRig {
 public:
  IntegrityRig(Executor& home, RigShape shape) : home_(home), shape_(shape) {}

  Task<bool> create() {
    for (unsigned i = 0; i < shape_.drives; ++i) {
      devices.push_back(
          std::make_unique<LyingDrive>(home_, "d" + std::to_string(i), shape_.drive_bytes));
      devices.back()->drive.set_latency(shape_.latency);
    }
    std::vector<raid::NamedDevice> named;
    for (const auto& device : devices) named.push_back({device->description(), device.get()});
    const std::vector<raid::Candidate> candidates = co_await raid::gather_candidates(named);
    raid::NewSet wanted;
    wanted.name = "set";
    wanted.level = shape_.level;
    wanted.group_count = shape_.groups;
    wanted.strip_bytes = shape_.strip_bytes;
    wanted.integrity = true;
    wanted.journal_bytes = std::uint64_t{1} << 20;
    auto planned = raid::plan_new_set(wanted, candidates, home_.random());
    if (!planned) co_return false;
    newest = planned->superblocks[0];
    regions = planned->regions;
    const bool opened = co_await open();
    expected.resize(set->geometry().block_count * 512);
    co_return opened;
  }

  // The set as a start finds it: superblock and map as remembered, everything else on the drives.
  Task<bool> open() {
    const auto layout = newest.layout();
    drives = std::make_unique<raid::SetDrives>(
        home_, *layout, newest, *regions,
        raid::LostSectors(newest.set_uuid, layout->block_count()));
    for (unsigned role = 0; role < shape_.drives; ++role) {
      const raid::RoleEntry& entry = newest.roles[role];
      if (entry.state != raid::RoleState::kActive) continue;
      devices[role]->lies_from = newest.data_offset_blocks;
      devices[role]->lies_to = newest.data_offset_blocks + layout->drive_blocks(role);
      if (entry.data_blocks == 0) co_return false;
      drives->set_drive(role, *devices[role], devices[role]->description(), {});
    }
    drives->on_event([this](const raid::SetEvent& event) { events.push_back(event.text); });
    const Error settled = co_await drives->save_clean(false);
    if (settled != Error::kNone) co_return false;
    const raid::JournalRing ring{
        .set = newest.set_uuid,
        .first_block = newest.journal_offset_bytes / 512,
        .block_count = newest.journal_bytes / 512,
        .copies = layout->redundancy() + 1,
        .role_count = layout->drive_count(),
    };
    journal = std::make_unique<raid::DriveJournal>(*drives, ring, home_);
    raid::RaidSetOptions options{.name = "set"};
    options.integrity.cache_bytes = shape_.cache_bytes;
    set = std::make_unique<raid::RaidSet>(home_, *drives, journal.get(), options);
    const Error replayed = co_await set->replay_journal();
    co_return replayed == Error::kNone;
  }

  Task<void> settle() {  // Everything verified, entries for every cell.
    raid::Maintenance maintenance(*set, {.rate_under_load = 0});
    maintenance.start();
    co_await maintenance.wait_idle();
    maintenance.request_verify();
    co_await maintenance.wait_idle();
    co_await maintenance.stop();
  }

  Task<Error> write(Lba first, std::uint64_t blocks, std::uint64_t seed) {
    Random random(seed);
    std::vector<std::byte> bytes(blocks * 512);
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
      const std::uint64_t value = random.next();
      std::memcpy(bytes.data() + at, &value, 8);
    }
    std::memcpy(expected.data() + first * 512, bytes.data(), bytes.size());
    Request request;
    request.operation = Operation::kWrite;
    request.extent = {.first = first, .block_count = blocks};
    request.data = co_await home_.buffers().allocate(bytes.size());
    request.data.copy_from(bytes);
    const Completion completion = co_await set->submit(std::move(request));
    co_return completion.error;
  }

  Task<Error> zero(Lba first, std::uint64_t blocks) {
    std::memset(expected.data() + first * 512, 0, blocks * 512);
    Request request;
    request.operation = Operation::kWriteZeroes;
    request.extent = {.first = first, .block_count = blocks};
    const Completion completion = co_await set->submit(std::move(request));
    co_return completion.error;
  }

  struct Read {
    Error error = Error::kNone;
    Lba bad = 0;
    bool right = false;
  };
  Task<Read> read(Lba first, std::uint64_t blocks) {
    Request request;
    request.extent = {.first = first, .block_count = blocks};
    request.data = co_await home_.buffers().allocate(blocks * 512);
    Completion completion = co_await set->submit(std::move(request));
    Read result{.error = completion.error, .bad = completion.first_bad_lba};
    std::vector<std::byte> bytes(blocks * 512);
    completion.data.copy_to(bytes);
    result.right = std::memcmp(bytes.data(), expected.data() + first * 512, bytes.size()) == 0;
    co_return result;
  }

  // Where a block of the set, or a member's row, lies on a drive, in bytes.
  std::uint64_t offset(std::uint64_t stripe, std::uint32_t row) const {
    return (newest.data_offset_blocks + set->layout().drive_lba(stripe) + row) * 512;
  }
  LyingDrive& device_of(std::uint64_t stripe, unsigned member) {
    return *devices[set->layout().role(stripe, member)];
  }

  // Cells of all data areas that are not what they should be.
  std::uint64_t corrupt_cells() const {
    std::uint64_t count = 0;
    for (const auto& device : devices) {
      for (std::uint64_t at = device->lies_from * 512; at < device->lies_to * 512; at += 4096) {
        count += !device->right(at, 4096);
      }
    }
    return count;
  }
  bool integrity_areas_right() const {
    for (unsigned role = 0; role < shape_.drives; ++role) {
      const raid::RoleEntry& entry = newest.roles[role];
      if (!devices[role]->right(entry.integrity_offset_bytes, entry.integrity_bytes)) return false;
    }
    return true;
  }

  // Everything as expected; empty if so.
  Task<std::string> check_everything() {
    const std::uint64_t blocks = set->geometry().block_count;
    for (Lba first = 0; first < blocks; first += 500) {
      const Read got = co_await read(first, std::min<std::uint64_t>(500, blocks - first));
      if (got.error != Error::kNone) {
        co_return "read at " + std::to_string(first) + ": " + std::string(describe(got.error)) +
            " at " + std::to_string(got.bad);
      }
      if (!got.right) co_return "wrong bytes from " + std::to_string(first);
    }
    co_return "";
  }

  Task<void> close() {
    co_await set->close(kNever);
    co_await let_go();
  }
  // Without an end: as a crash leaves it, but for memory.
  Task<void> let_go() {
    co_await set->close(kNever);
    set.reset();
    co_await drives->wait_idle_until(kNever);
    for (unsigned turn = 0; turn < 16; ++turn) co_await home_.yield();
    journal.reset();
    drives.reset();
  }

  // Stops and starts: nothing of integrity is in memory any more.
  Task<bool> reopen() {
    raid::Superblock now = drives->superblock();
    co_await close();
    newest = std::move(now);
    regions->set_all_dirty(false);
    co_return co_await open();
  }

  const RigShape& shape() const { return shape_; }
  Executor& home() const { return home_; }

  std::vector<std::unique_ptr<LyingDrive>> devices;
  raid::Superblock newest;
  std::optional<raid::RegionMap> regions;
  std::unique_ptr<raid::SetDrives> drives;
  std::unique_ptr<raid::Journal> journal;
  std::unique_ptr<raid::RaidSet> set;
  std::vector<std::byte> expected;
  std::vector<std::string> events;

 private:
  Executor& home_;
  RigShape shape_;
};

// One corruption, its detection and its repair.
// -----------------------------------------------------

enum class Corruption : std::uint8_t {
  kFlip,
  kStale,
  kFlippedWrite,
  kLost,
  kTorn,
  kMisdirected,
  kFlippedRead,
};
inline constexpr unsigned kCorruptions = 7;

struct Tally {
  std::uint64_t injected = 0;  // Cells that were not what they should be, or reads that were not.
  std::uint64_t detected = 0;
  std::uint64_t repaired = 0;
  std::uint64_t honest_errors = 0;
};

// Writes somewhere, corrupts some of it, and finds that by a read or only by verify. The text is
// empty if all was as it should be.
class CorruptionRound {
 public:
  CorruptionRound(IntegrityRig& rig, Random& random, Tally& tally)
      : rig_(rig), random_(random), tally_(tally) {}

  Task<std::string> run(Corruption kind, bool by_read) {
    const raid::Layout& layout = rig_.set->layout();
    const std::uint64_t all = rig_.set->geometry().block_count;
    blocks_ = 1 + random_.below(24);
    lba_ = random_.below(all - blocks_);
    if (random_.chance(0.7)) {  // Whole cells.
      lba_ -= lba_ % 8;
      blocks_ = std::min<std::uint64_t>((blocks_ + 7) / 8 * 8, all - lba_);
    }
    const raid::Layout::Position at = layout.position(lba_);
    const auto member = static_cast<unsigned>(
        random_.chance(0.6) && !layout.mirrored() ? at.chunk : random_.below(layout.width()));
    LyingDrive& device = rig_.device_of(at.stripe, member);
    const std::uint64_t cell = rig_.offset(at.stripe, at.row / 8 * 8);
    const std::vector<std::byte> before = device.medium(cell, 4096);
    device.misdirected_to.reset();
    if (const Lie lie = lie_of(kind); lie != Lie::kNone && lie != Lie::kFlippedRead) {
      device.lie = lie;
    }
    const Error written = co_await rig_.write(lba_, blocks_, random_.next());
    device.lie = Lie::kNone;
    if (written != Error::kNone) co_return "a write failed: " + std::string(describe(written));
    if (kind == Corruption::kFlip) {
      device.flip_medium(cell, 4096, 1 + static_cast<unsigned>(random_.below(64)));
    } else if (kind == Corruption::kStale) {
      device.write_medium(cell, before);
    }
    find_wrong(device);
    tally_.injected += wrong_.size();
    const std::uint64_t corruptions = rig_.set->counters().corruptions;
    if (kind == Corruption::kFlippedRead) {
      const std::uint64_t lies = device.lies;
      device.lie = Lie::kFlippedRead;
      std::string text = co_await check_read(lba_, blocks_);
      if (!text.empty()) co_return text;
      device.lie = Lie::kNone;
      tally_.injected += device.lies - lies;
      tally_.detected += device.lies - lies;
      tally_.repaired += device.lies - lies;
    }
    if (by_read) {
      std::string text = co_await check_read(lba_, blocks_);
      if (text.empty() && device.misdirected_to) text = co_await read_victims(device);
      if (!text.empty()) co_return text;
    }
    co_return co_await verify(corruptions);
  }

 private:
  struct Wrong {
    LyingDrive* device;
    unsigned role;
    std::uint64_t offset;
  };

  static Lie lie_of(Corruption kind) {
    switch (kind) {
      case Corruption::kFlippedWrite:
        return Lie::kFlippedWrite;
      case Corruption::kLost:
        return Lie::kLost;
      case Corruption::kTorn:
        return Lie::kTorn;
      case Corruption::kMisdirected:
        return Lie::kMisdirected;
      case Corruption::kFlippedRead:
        return Lie::kFlippedRead;
      default:
        return Lie::kNone;
    }
  }

  unsigned role_of(const LyingDrive& device) const {
    unsigned role = 0;
    while (rig_.devices[role].get() != &device) ++role;
    return role;
  }

  void look(LyingDrive& device, std::uint64_t offset) {
    if (device.right(offset, 4096)) return;
    for (const Wrong& one : wrong_) {
      if (one.device == &device && one.offset == offset) return;
    }
    wrong_.push_back({&device, role_of(device), offset});
  }

  void find_wrong(LyingDrive& device) {
    const raid::Layout& layout = rig_.set->layout();
    std::uint64_t first = layout.position(lba_).stripe;
    const std::uint64_t last = layout.position(lba_ + blocks_ - 1).stripe;
    for (; first <= last; ++first) {
      stripes_.push_back(first);
      for (unsigned member = 0; member < layout.width(); ++member) {
        for (std::uint32_t row = 0; row < layout.strip_blocks(); row += 8) {
          look(rig_.device_of(first, member), rig_.offset(first, row));
        }
      }
    }
    if (!device.misdirected_to) return;
    for (Lba at = device.misdirected_to->first; at < device.misdirected_to->end(); at += 8) {
      look(device, at * 512);
      const Lba in_data = at - rig_.newest.data_offset_blocks;
      stripes_.push_back(layout.on_drive(role_of(device), in_data).stripe);
    }
  }

  // Never wrong bytes; with redundancy no error either, without an error where something is wrong.
  Task<std::string> check_read(Lba lba, std::uint64_t blocks) {
    const IntegrityRig::Read got = co_await rig_.read(lba, blocks);
    if (got.error == Error::kNone) {
      if (got.right) co_return "";
      co_return "wrong bytes at " + std::to_string(lba) + " for " + std::to_string(blocks);
    }
    const bool honest = rig_.set->layout().redundancy() == 0 && got.error == Error::kMediumError &&
                        is_wrong(got.bad);
    tally_.honest_errors += honest;
    co_return honest
        ? ""
        : "a read failed: " + std::string(describe(got.error)) + " at " + std::to_string(got.bad);
  }

  bool is_wrong(Lba lba) const {
    const raid::Layout::Position at = rig_.set->layout().position(lba);
    for (const Wrong& one : wrong_) {
      if (one.device == &rig_.device_of(at.stripe, at.chunk) &&
          one.offset == rig_.offset(at.stripe, at.row / 8 * 8)) {
        return true;
      }
    }
    return false;
  }

  Task<std::string> read_victims(LyingDrive& device) {
    const raid::Layout& layout = rig_.set->layout();
    for (Lba at = device.misdirected_to->first; at < device.misdirected_to->end(); at += 8) {
      const raid::Layout::OnDrive here =
          layout.on_drive(role_of(device), at - rig_.newest.data_offset_blocks);
      if (!layout.mirrored() && here.member >= layout.data_chunks()) continue;
      const unsigned chunk = layout.mirrored() ? 0 : here.member;
      const Lba lba = layout.lba({.stripe = here.stripe, .chunk = chunk, .row = here.row});
      std::string text = co_await check_read(lba, 8);
      if (!text.empty()) co_return text;
    }
    co_return "";
  }

  Task<std::string> verify(std::uint64_t corruptions) {
    const bool redundant = rig_.set->layout().redundancy() > 0;
    bool told = false;
    for (const std::uint64_t stripe : stripes_) {
      const raid::RaidSet::Verified verified = co_await rig_.set->verify_stripe(stripe);
      if (verified.error != Error::kNone) co_return "verify failed";
      told |= verified.mismatch;
    }
    if (!redundant) {
      if (!wrong_.empty() && !told) co_return "verify found nothing";
      tally_.detected += wrong_.size();
      co_return co_await cure();
    }
    const std::uint64_t found = rig_.set->counters().corruptions - corruptions;
    tally_.detected += found;
    if (found != wrong_.size()) {
      co_return std::to_string(wrong_.size()) + " cells were corrupt, " + std::to_string(found) +
          " were found";
    }
    for (const Wrong& one : wrong_) {
      if (!one.device->right(one.offset, 4096)) co_return "a cell was not repaired";
      ++tally_.repaired;
    }
    co_return "";
  }

  // Rewriting what is corrupt makes it whole again.
  Task<std::string> cure() {
    const raid::Layout& layout = rig_.set->layout();
    for (const Wrong& one : wrong_) {
      const raid::Layout::OnDrive here =
          layout.on_drive(one.role, one.offset / 512 - rig_.newest.data_offset_blocks);
      const Lba lba = layout.lba({.stripe = here.stripe, .chunk = 0, .row = here.row});
      const Error error = co_await rig_.write(lba, 8, random_.next());
      const IntegrityRig::Read got = co_await rig_.read(lba, 8);
      if (error != Error::kNone || got.error != Error::kNone || !got.right) {
        co_return "a cell that was rewritten cannot be read";
      }
    }
    co_return "";
  }

  IntegrityRig& rig_;
  Random& random_;
  Tally& tally_;
  Lba lba_ = 0;
  std::uint64_t blocks_ = 0;
  std::vector<Wrong> wrong_;
  std::vector<std::uint64_t> stripes_;
};

}  // namespace sandbay::raidtest
