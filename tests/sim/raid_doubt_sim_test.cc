// Goal: a set that lost its journal while drives are missing loses nothing that a drive has or that
// was acknowledged since, and never reads anything wrong.
// Method: a parity set is killed under load, its NVRAM is lost, drives are missing at the start,
// and an operator accepts the loss. Then hosts write and read, the set is stopped or killed again,
// drives come back, and others are missing for a while, with or without their caches. In the end
// all are back: everything reads right, also without some drive, and nothing is lost if no drive
// was lost after the start and every row that matches could be remembered. A block that was
// acknowledged after the last loss of a drive can always be read. In rough seeds drives have bad
// places, lack room, fail or are replaced, and the journal is lost again: blocks may be lost, but
// none is wrong.
#include <catch2/catch.hpp>

#include <cstdlib>
#include <set>

#include <fmt/core.h>

#include "block/extent_set.h"
#include "nvram/simulated_board.h"
#include "raid_blocks.h"
#include "seeds.h"
#include "tests/unit/raid/controller_rig.h"

namespace sandbay::raidtest {
namespace {

using namespace std::chrono_literals;
using raid::Level;

constexpr std::uint64_t kBoardBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kDriveBytes = std::uint64_t{1} << 20;  // Data, more or less.
constexpr std::uint64_t kMostBlocks = 40;

struct Shape {
  Level level;
  unsigned drives;
  unsigned groups;
  unsigned redundancy;
};
constexpr Shape kShapes[] = {{Level::kRaid5, 3, 1, 1},
                             {Level::kRaid5, 4, 1, 1},
                             {Level::kRaid6, 4, 1, 2},
                             {Level::kRaid6, 5, 1, 2},
                             {Level::kRaid50, 6, 2, 1}};

class Lab {
 public:
  Lab(Executor& home, std::uint64_t seed)
      : home_(home), random_(seed), rig_(home), shape_(kShapes[random_.below(std::size(kShapes))]) {
    integrity_ = random_.chance(0.3);
    strip_bytes_ = std::uint32_t{4096} << random_.below(3);
    region_stripes_ = std::uint64_t{1} << random_.below(6);
    physical_bytes_ = random_.chance(0.3) ? 4096 : 512;
    rough_ = random_.chance(0.4);
    others_go_ = random_.chance(rough_ ? 0.8 : 0.5);
    little_room_ = random_.chance(0.3);
    if (little_room_) rig_.options.set.most_lost_bytes = 300 + random_.below(1000);
    copies_ = !rough_ && others_go_ && random_.chance(0.5);
    bad_places_ = !rough_ && !others_go_ && !little_room_ && random_.chance(0.7);
    returns_ = seed % 7 == 1;
    close_ = seed % 7 == 4;
    if (returns_ || close_) rough_ = others_go_ = true;
    if (returns_) region_stripes_ = 16;
    if (returns_ || close_) copies_ = bad_places_ = false;
    if (close_ && random_.chance(0.8)) little_room_ = false;
    if (close_ && random_.chance(0.4)) integrity_ = true;
    if (close_ && random_.chance(0.5)) shape_ = kShapes[2 + random_.below(2)];
  }

  Task<void> run() {
    co_await make();
    co_await crash();
    const auto steps = 5 + random_.below(25);
    for (std::uint64_t step = 0; step < steps && wrong_.empty() && !ended_; ++step) {
      co_await take_step();
    }
    if (wrong_.empty() && !ended_) co_await end();
    if (rig_.controller != nullptr) co_await rig_.stop();
    if (memory_ != nullptr) {
      const Error closed = co_await memory_->close();
      if (closed != Error::kNone) note("the NVRAM cannot be closed");
    }
  }

  std::string wrong() const {
    if (wrong_.empty()) return {};
    if (std::getenv("SANDBAY_EVENTS") != nullptr) {
      for (const ControllerEvent& event : rig_.events) fmt::print("  {}\n", event.text);
    }
    return fmt::format("{} of {} drives, strips of {}, regions of {}, physical {}{}{}{}{}{}: {}",
                       raid::describe(shape_.level), shape_.drives, strip_bytes_, region_stripes_,
                       physical_bytes_, integrity_ ? ", integrity" : "",
                       others_go_ ? ", others missing" : "", little_room_ ? ", little room" : "",
                       copies_       ? ", copies"
                       : bad_places_ ? ", bad places"
                                     : "",
                       returns_ ? ", returns"
                       : close_ ? ", close"
                       : rough_ ? ", rough"
                                : "",
                       wrong_);
  }

 private:
  void note(const std::string& wrong) {
    if (wrong_.empty()) wrong_ = wrong;
  }

  TestDrive& add(const std::string& name) {
    TestDrive& drive = rig_.add(name, kDriveBytes + (std::uint64_t{3} << 20));
    drive.mutable_geometry().physical_block_bytes = physical_bytes_;
    drive.before_change = [this](const TestDrive&, const Request&) {
      if (!freezing_ || changes_left_-- > 0) return;
      freezing_ = false;
      killing_ = true;
      for (const auto& each : rig_.drives) each->fail_with(Error::kNotReady);
    };
    return drive;
  }

  Task<void> plug_in() {
    memory_.reset();
    nvram::NvramOptions options;
    options.path = "nvram";
    options.boot_id = "boot";
    options.durability = nvram::Durability::kProcess;
    auto opened = co_await nvram::Nvram::open(home_, board_, options);
    REQUIRE(opened.has_value());
    memory_ = std::move(*opened);
    rig_.options.set.nvram = memory_.get();
    rig_.options.set.nvram_journal_bytes = 4 << 20;
  }

  Task<void> make() {
    co_await plug_in();
    for (unsigned i = 0; i < shape_.drives; ++i) {
      names_.push_back(fmt::format("d{}", i));
      add(names_.back());
    }
    co_await rig_.start();
    const std::string error = co_await rig_.create(shape_.level, names_, [this](NewSet& wanted) {
      wanted.group_count = shape_.groups;
      wanted.region_stripes = region_stripes_;
      wanted.integrity = integrity_;
      wanted.strip_bytes = strip_bytes_;
      wanted.journal_bytes = 0;
    });
    REQUIRE(error == "");
    blocks_ = rig_.set->geometry().block_count;
    layout_ = rig_.set->drives()->layout();
    model_ = std::make_unique<BlockModel>(blocks_, true);
    acknowledged_in_.assign(blocks_, 0);
    for (Lba at = 0; at < blocks_; at += kMostBlocks) {
      co_await write({.first = at, .block_count = std::min(kMostBlocks, blocks_ - at)}, true);
    }
    const bool whole = co_await rig_.wait_for([this] { return rig_.whole(); });
    REQUIRE(whole);
    co_await flush();
  }

  // Killed under load; then its NVRAM is another, and some drives are missing.
  Task<void> crash() {
    set_pace(false);
    const bool power = random_.chance(0.5);
    losing_ = true;
    co_await kill_under_load(!power);
    losing_ = false;
    memory_.reset();
    board_ = nvram::SimulatedBoard(kBoardBytes);
    co_await plug_in();
    if (power) {
      for (const auto& drive : rig_.drives) {
        drive->state() = after_power_cut(drive->state(), random_);
      }
    }
    const auto count = 1 + random_.below(shape_.redundancy);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::string& name = names_[random_.below(names_.size())];
      if (may_go(name)) missing_.insert(name);
    }
    for (const std::string& name : missing_) {  // Its cache is written back meanwhile.
      DriveState& state = rig_.drive(name).state();
      state.durable = state.visible;
      state.unflushed.clear();
    }
    co_await start();
    const Controller::Outcome started = co_await rig_.controller->start_set("set", true);
    if (!rig_.set->running()) note(started.has_value() ? "it does not run" : started.error());
    epoch_ = 1;
  }

  Task<void> start() {
    std::vector<raid::NamedDevice> here = rig_.named();
    std::erase_if(here, [this](const auto& drive) { return missing_.contains(drive.name); });
    co_await rig_.start(here);
  }

  unsigned role_of(const std::string& name) const {
    return static_cast<unsigned>(std::ranges::find(names_, name) - names_.begin());
  }

  // One more drive of its group may be missing.
  bool may_go(const std::string& name) const {
    const unsigned group = layout_->group_of_role(role_of(name));
    const auto missing = std::ranges::count_if(missing_, [&](const std::string& other) {
      return layout_->group_of_role(role_of(other)) == group;
    });
    return !missing_.contains(name) && missing < static_cast<int>(shape_.redundancy);
  }
  bool can_miss(const std::string& name) const {
    return may_go(name) && rig_.set->drives() != nullptr &&
           rig_.set->drives()->survives_without(role_of(name));
  }

  // Background work rests, gets on, or is done at once.
  void set_pace(bool fast, bool rests = true) {
    rig_.options.set.maintenance.rate_under_load = fast ? 0 : rests ? 1 : 256 << 10;
    rig_.options.set.maintenance.host_is_quiet_after = 1000h;
    if (rig_.controller != nullptr) {
      rig_.controller->set_policy("set", rig_.options.set.maintenance);
    }
  }

  // ---- what hosts do ----------------------------------------------------------------------------

  // The place of a block that was being written when the journal was lost: parity may not fit
  // there.
  raid::Layout::Position torn_position() {
    const std::vector<Extent> runs = torn_.runs();
    if (runs.empty()) return layout_->position(random_.below(blocks_));
    const Extent& run = runs[random_.below(runs.size())];
    return layout_->position(run.first + random_.below(run.block_count));
  }

  Extent beside(raid::Layout::Position at) {
    at.chunk = static_cast<unsigned>(random_.below(layout_->data_chunks()));
    const std::uint64_t most = std::min<std::uint64_t>(layout_->strip_blocks() - at.row, 16);
    return {.first = layout_->lba(at), .block_count = 1 + random_.below(most)};
  }

  Extent somewhere() {
    if (aim_.has_value()) {
      const auto row = static_cast<std::uint32_t>(random_.below(layout_->strip_blocks()));
      return beside({.stripe = *aim_, .row = row});
    }
    if (random_.chance(0.4)) return beside(torn_position());
    const std::uint64_t unit = random_.chance(0.5) ? 8 : 1;
    const std::uint64_t most = random_.chance(0.1) ? 4 * kMostBlocks : kMostBlocks;
    const std::uint64_t length = (1 + random_.below(most / unit)) * unit;
    return {.first = random_.below((blocks_ - length) / unit + 1) * unit, .block_count = length};
  }

  Task<void> write(Extent extent, bool counts) {
    const bool zeroes = random_.chance(0.1);
    const std::uint64_t version = model_->begin_write(extent, zeroes);
    const unsigned epoch = epoch_;
    const bool may_refuse = settling_ || !missing_.empty() || rig_.set->drives() == nullptr ||
                            !rig_.set->drives()->optimal();
    Request request{.operation = zeroes ? Operation::kWriteZeroes : Operation::kWrite,
                    .force_unit_access = random_.chance(0.2),
                    .extent = extent};
    if (!zeroes) {
      std::vector<std::byte> bytes(extent.block_count * kModelBlockBytes);
      for (std::uint64_t i = 0; i < extent.block_count; ++i) {
        put_version(std::span(bytes).subspan(i * kModelBlockBytes, kModelBlockBytes),
                    extent.first + i, version);
      }
      request.data = co_await home_.buffers().allocate(bytes.size());
      request.data.copy_from(bytes);
    }
    const Completion done = co_await rig_.set->submit(std::move(request));
    if (done.error == Error::kNone) {
      if (!counts) {
        torn_.add(extent);
        co_return;
      }
      model_->end_write(version, true);
      for (Lba lba = extent.first; lba < extent.end(); ++lba) acknowledged_in_[lba] = epoch;
    } else if (killing_) {
      if (losing_) torn_.add(extent);
    } else if (rough_ || failing_
                   ? !excused(done.error)
                   : done.error != Error::kMediumError || (!may_refuse && epoch == epoch_)) {
      note(fmt::format("a write of block {} ends with: {}", extent.first, describe(done.error)));
    }
  }

  Task<void> read(Extent extent) {
    const std::uint64_t begun = model_->begin_read();
    const unsigned epoch = epoch_;
    Request request{.extent = extent};
    request.data = co_await home_.buffers().allocate(extent.block_count * kModelBlockBytes);
    const Completion done = co_await rig_.set->submit(std::move(request));
    if (done.error == Error::kNone) {
      std::vector<std::byte> bytes(extent.block_count * kModelBlockBytes);
      done.data.copy_to(bytes);
      note(model_->end_read(extent.first, bytes, begun));
      co_return;
    }
    model_->fail_read();
    if (killing_) co_return;
    if (done.error != Error::kMediumError && !((rough_ || failing_) && excused(done.error))) {
      co_return note(
          fmt::format("a read of block {} ends with: {}", extent.first, describe(done.error)));
    }
    if (rough_ || failing_ || damaged(done.first_bad_lba)) co_return;
    if (epoch == epoch_ && acknowledged_in_[done.first_bad_lba] == epoch) {
      note(fmt::format("block {} was acknowledged and cannot be read", done.first_bad_lba));
    }
  }

  // In a rough seed a set may also stop, lack room, or have a drive that fails and cannot be
  // missed.
  static bool excused(Error error) {
    return error == Error::kMediumError || error == Error::kNotReady || error == Error::kNoSpace ||
           error == Error::kHardware;
  }

  Task<void> flush() {
    const Completion done = co_await rig_.set->submit(Request{.operation = Operation::kFlush});
    if (done.error != Error::kNone && !rough_ && !killing_ && !failing_) note("a flush fails");
  }

  Task<void> flush_soon() {
    co_await rig_.sleep(std::chrono::microseconds(random_.below(300)));
    if (rig_.set != nullptr) co_await flush();
  }

  Task<void> beside_others(Task<void> doing, unsigned* running, Condition* ended) {
    co_await std::move(doing);
    if (--*running == 0) ended->notify_all();
  }

  void begin_burst(std::uint64_t count, unsigned* running, Condition* ended, bool counts) {
    const bool flushes = random_.chance(0.4);
    *running = static_cast<unsigned>(count) + (flushes ? 1 : 0);
    for (std::uint64_t i = 0; i < count; ++i) {
      const bool writes = random_.chance(0.7);
      spawn(beside_others(writes ? write(somewhere(), counts) : read(somewhere()), running, ended));
    }
    if (flushes) spawn(beside_others(flush_soon(), running, ended));
  }

  Task<void> burst(std::uint64_t count) {
    unsigned running = 0;
    Condition ended;
    begin_burst(count, &running, &ended, true);
    while (running > 0) co_await ended.wait();
  }

  // At some moment, or at a change of a drive.
  Task<void> kill_under_load(bool counts) {
    unsigned running = 0;
    Condition ended;
    begin_burst(6, &running, &ended, counts);
    freezing_ = random_.chance(0.5);
    changes_left_ = random_.below(30);
    co_await rig_.sleep(std::chrono::microseconds(random_.below(1500)));
    freezing_ = false;
    killing_ = true;
    co_await rig_.kill();
    while (running > 0) co_await ended.wait();
    killing_ = false;
    model_->crash();
  }

  // ---- what happens -----------------------------------------------------------------------------

  Task<void> take_step() {
    learn_roles();
    const auto what = random_.below(rough_ ? 27 : copies_ || bad_places_ || integrity_ ? 23 : 20);
    if (what < 11) {
      co_await burst(1 + random_.below(4));
    } else if (what < 13) {
      co_await flush();
    } else if (what == 13) {
      set_pace(random_.chance(0.3), random_.chance(0.5));
      co_await rig_.sleep(std::chrono::milliseconds(random_.below(2000)));
    } else if (what == 14) {
      const bool stopped = co_await rig_.stop();
      REQUIRE(stopped);
      co_await start();
    } else if (what == 15) {
      co_await kill_and_start();
    } else if (what < 18) {
      if (!missing_.empty()) co_await come_back(*missing_.begin());
    } else if (what < 20) {
      co_await go_missing(names_[random_.below(names_.size())]);
    } else if (returns_) {
      co_await return_to_bad_places();
    } else if (close_) {
      co_await come_close();
    } else if (rough_) {
      co_await get_rough(what - 20);
    } else if (copies_) {
      co_await copy();
    } else if (bad_places_) {
      co_await go_while_settling();
    } else {
      co_await fail_to_read();
    }
    if (rough_) {
      co_await recover_from_roughness();
    } else if (rig_.set == nullptr || !rig_.set->running()) {
      note("it does not run");
    }
  }

  // With the journal that it has; a drive may be missing from then on. A journal makes up for what
  // caches lose.
  Task<void> kill_and_start(std::string certain = {}) {
    const std::string name = certain.empty() ? any_member() : certain;
    const bool fails = others_go_ && !name.empty() && (random_.chance(0.4) || !certain.empty()) &&
                       (rough_ ? may_go(name) : can_miss(name));
    const bool power = random_.chance(0.4);
    co_await kill_under_load(true);
    for (const auto& drive : rig_.drives) {
      const bool here = !missing_.contains(drive->description());
      const bool cut = here && (power || (fails && drive->description() == name));
      if (cut) drive->state() = after_power_cut(drive->state(), random_);
    }
    if (fails) {
      missing_.insert(name);
      ++epoch_;
    }
    co_await plug_in();
    co_await start();
    const bool runs = rough_ || co_await rig_.wait_for([this] { return rig_.set->running(); });
    if (!runs) note("it does not run after a kill");
  }

  // A copy may be whole and have taken the role.
  void learn_roles() {
    if (copy_.empty() || rig_.info(copy_).use != DriveUse::kMember) return;
    missing_.erase(copied_);
    names_[role_of(copied_)] = std::exchange(copy_, {});
  }

  // A drive is copied to another one, and perhaps fails before that ends.
  Task<void> copy() {
    const std::string name = any_member();
    if (!copy_.empty() || name.empty()) co_return;
    const unsigned role = role_of(name);
    copied_ = name;
    copy_ = fmt::format("s{}", ++spares_);
    TestDrive& device = add(copy_);
    (void)co_await rig_.controller->insert_drive(copy_, &device);
    const auto begun = co_await rig_.controller->replace_drive(fmt::format("set:{}", role), copy_);
    if (!begun.has_value()) co_return note(begun.error());
    if (random_.chance(0.8)) co_await go_missing(name);
    co_await burst(2);
    if (random_.chance(0.6)) co_await kill_and_start();
  }

  // While another's bad place is settled a drive fails for a moment, and keeps its content.
  Task<void> go_while_settling() {
    if (!missing_.empty() || !rig_.set->drives()->optimal()) co_return;
    const raid::SetDrives& drives = *rig_.set->drives();
    co_await flush();
    auto at = random_.chance(0.5) ? torn_position() : layout_->position(random_.below(blocks_));
    if (!drives.doubted(at.stripe, at.row, 1) || !all_keep(at.stripe)) co_return;
    const unsigned chunks = layout_->data_chunks();
    at.chunk = static_cast<unsigned>(random_.below(chunks));
    rig_.drive(name_at(at, at.chunk))
        .make_unreadable(drives.data_offset() + layout_->drive_lba(at.stripe) + at.row);
    const std::uint32_t rows = integrity_ ? 8 : physical_bytes_ / kModelBlockBytes;
    auto first = at;
    first.row = at.row / rows * rows;
    damaged_.add({.first = layout_->lba(first), .block_count = rows});
    const auto other = [&] {
      return static_cast<unsigned>((at.chunk + 1 + random_.below(chunks - 1)) % chunks);
    };
    const std::string name = names_[layout_->role(at.stripe, other())];
    at.chunk = other();
    settling_ = true;
    unsigned running = 1;
    Condition ended;
    spawn(beside_others(write({.first = layout_->lba(at), .block_count = 1}, true), &running,
                        &ended));
    co_await rig_.sleep(std::chrono::microseconds(random_.below(800)));
    ++epoch_;
    missing_.insert(name);
    rig_.drive(name).fail_with(Error::kNotReady);
    while (running > 0) co_await ended.wait();
    const auto removed = co_await rig_.controller->remove_drive(name);
    if (!removed.has_value()) note(removed.error());
    rig_.drive(name).fail_with(Error::kNone);
    co_await come_back(name);
    settling_ = false;
  }

  bool all_keep(std::uint64_t stripe) const {
    return std::popcount(rig_.set->drives()->keeping(stripe)) == static_cast<int>(layout_->width());
  }
  bool damaged(Lba lba) const {
    return damaged_.first_in({.first = lba, .block_count = 1}).has_value();
  }

  // A drive that the set cannot miss gives nothing for a moment, entries among it.
  Task<void> fail_to_read() {
    const std::string name = any_member();
    if (name.empty() || can_miss(name)) co_return;
    const bool stopped = co_await rig_.stop();
    REQUIRE(stopped);
    co_await start();
    failing_ = true;
    rig_.drive(name).fail_reads_with(Error::kHardware);
    co_await burst(4);
    if (random_.chance(0.5)) co_await kill_under_load(true);
    rig_.drive(name).fail_reads_with(Error::kNone);
    if (rig_.controller == nullptr) {
      co_await plug_in();
      co_await start();
    }
    const bool runs = co_await rig_.wait_for([this] { return rig_.set->running(); });
    failing_ = false;
    if (!runs) note("it does not run when a drive can be read again");
    rough_ |= runs && !rig_.set->drives()->drive(role_of(name));  // It could be missed by then.
  }

  Task<void> come_back(std::string name) {
    const auto back = co_await rig_.controller->insert_drive(name, &rig_.drive(name));
    if (rough_) {  // Its role may be another's by now.
      missing_.erase(name);
      co_return;
    }
    if (!back.has_value()) note(back.error());
    const bool member = co_await rig_.wait_for([&] {
      learn_roles();
      return !missing_.contains(name) || rig_.info(name).use == DriveUse::kMember;
    });
    if (!member) note(name + " does not come back");
    missing_.erase(name);
  }

  // For a while, perhaps without the content of its cache.
  Task<void> go_missing(std::string name) {
    if (!others_go_ || !may_go(name)) co_return;
    if (!rough_ && !can_miss(name)) co_return;
    if (random_.chance(0.5)) co_await flush();
    unsigned running = 0;
    Condition ended;
    begin_burst(3, &running, &ended, true);
    if (random_.chance(0.7)) co_await rig_.sleep(std::chrono::microseconds(random_.below(500)));
    missing_.insert(name);
    ++epoch_;
    TestDrive& drive = rig_.drive(name);
    drive.fail_with(Error::kNotReady);
    while (running > 0) co_await ended.wait();
    co_await burst(2);
    const auto removed = co_await rig_.controller->remove_drive(name);
    if (!removed.has_value() && !rough_) note(removed.error());
    drive.fail_with(Error::kNone);
    if (random_.chance(0.5)) drive.state() = after_power_cut(drive.state(), random_);
  }

  // A drive that is here; empty: the drawn drive is missing.
  std::string any_member() {
    const std::string& name = names_[random_.below(names_.size())];
    return missing_.contains(name) ? std::string() : name;
  }

  Task<void> get_rough(std::uint64_t what) {
    const std::string name = any_member();
    if (name.empty() || rig_.set == nullptr || !rig_.set->running()) co_return;
    TestDrive& drive = rig_.drive(name);
    const raid::SetDrives& drives = *rig_.set->drives();
    if (what < 2) {
      const Lba end = drive.geometry().block_count;
      for (int i = 0; i < 5; ++i) {
        const auto at = torn_position();
        drive.make_unreadable(drives.data_offset() +
                              (i < 3 ? layout_->drive_lba(at.stripe) + at.row
                                     : random_.below(end - drives.data_offset())));
      }
    } else if (what == 2 || what == 6) {
      co_await lack_room(name);
    } else if (what == 3) {
      co_await lose_journal_again();
    } else {
      const unsigned role = role_of(name);
      const std::string spare = fmt::format("s{}", ++spares_);
      TestDrive& device = add(spare);
      (void)co_await rig_.controller->insert_drive(spare, &device);
      if (what == 4) {
        drive.fail_with(Error::kHardware);
        co_await burst(2);
        drive.fail_with(Error::kNone);
      }
      (void)co_await rig_.controller->replace_drive(fmt::format("set:{}", role), spare);
      co_await burst(2);
    }
  }

  // A drive returns, and places are found bad in the region that is being rebuilt.
  Task<void> return_to_bad_places() {
    if (missing_.empty()) co_await go_missing(names_[random_.below(names_.size())]);
    if (missing_.empty() || rig_.set == nullptr || !rig_.set->running()) co_return;
    const std::string name = *missing_.begin();
    co_await burst(3);
    set_pace(true);
    rig_.drive(name).set_latency(2ms);
    co_await come_back(name);
    unsigned running = 1;
    Condition ended;
    for (int i = 0; i < 60 && rig_.set->running(); ++i) {
      co_await rig_.sleep(std::chrono::microseconds(random_.below(300)));
      const auto region = rig_.set->drives()->first_stale(role_of(name), false);
      if (!region) break;
      raid::Layout::Position at{.stripe = *region * region_stripes_};
      at.stripe += random_.below(std::min(region_stripes_, layout_->stripe_count() - at.stripe));
      at.chunk = static_cast<unsigned>(random_.below(layout_->data_chunks()));
      at.row = static_cast<std::uint32_t>(random_.below(layout_->strip_blocks()));
      const std::string& other = names_[layout_->role(at.stripe, at.chunk)];
      if (other == name || missing_.contains(other)) continue;
      rig_.drive(other).make_unreadable(rig_.set->drives()->data_offset() +
                                        layout_->drive_lba(at.stripe) + at.row);
      ++running;
      spawn(beside_others(read({.first = layout_->lba(at), .block_count = 1}), &running, &ended));
    }
    --running;
    while (running > 0) co_await ended.wait();
    rig_.drive(name).set_latency(100us);
    set_pace(false, random_.chance(0.5));
  }

  // Few things in a row that hardly come so close together by chance.
  Task<void> come_close() {
    if (rig_.set == nullptr || !rig_.set->running()) co_return;
    switch (random_.below(integrity_ ? 5 : 3)) {
      case 0:
        co_return co_await flush_while_writing();
      case 1:
        co_return co_await doubt_what_is_cached();
      case 2:
        co_return co_await doubt_what_was_verified();
      default:
        co_return co_await return_with_older_entries();
    }
  }

  // Only a block's own drive has its last entry, and leaves; one comes back that missed it.
  Task<void> return_with_older_entries() {
    const auto at = find_kept(true);
    if (!at) co_return;
    const std::string name = name_at(*at, at->chunk);
    if (missing_.empty() || name == *missing_.begin()) co_return;
    const Lba bad = rig_.set->drives()->data_offset() + layout_->drive_lba(at->stripe) + at->row;
    rig_.drive(name_at(*at, layout_->width() - 1)).make_unreadable(bad);
    co_await write(block_at(*at, at->chunk), true);
    co_await flush();
    const std::string first = *missing_.begin();
    if (random_.chance(0.5)) co_await come_back(first);
    co_await go_missing(name);
    if (missing_.contains(first)) co_await come_back(first);
    if (random_.chance(0.5)) set_pace(false, false);
    co_await rig_.sleep(std::chrono::milliseconds(random_.below(500)));
    co_await read(block_at(*at, at->chunk));
    co_await come_back(name);
  }

  // A drive is lost with its cache, and comes back.
  Task<void> lose_cache(std::string name) {
    if (name.empty() || !can_miss(name)) co_return;
    TestDrive& drive = rig_.drive(name);
    drive.fail_with(Error::kNotReady);
    missing_.insert(name);
    ++epoch_;
    (void)co_await rig_.controller->remove_drive(name);
    drive.fail_with(Error::kNone);
    drive.state() = after_power_cut(drive.state(), random_);
    co_await come_back(name);
  }

  // A doubted block in a region that keeps, its drive, and whether data of its row is missing.
  std::optional<raid::Layout::Position> find_kept(bool data_missing) {
    for (int i = 0; i < 50 && rig_.set->running(); ++i) {
      raid::Layout::Position at = torn_position();
      at.chunk = static_cast<unsigned>(random_.below(layout_->data_chunks()));
      const raid::SetDrives& drives = *rig_.set->drives();
      if (!drives.doubted(at.stripe, at.row, 1) || !all_keep(at.stripe)) continue;
      const std::uint64_t away = drives.unreadable(at.stripe);
      if ((away << (64 - layout_->data_chunks()) != 0) != data_missing) continue;
      if (can_miss(name_at(at, at.chunk))) return at;
    }
    return std::nullopt;
  }
  std::string name_at(const raid::Layout::Position& at, unsigned member) const {
    return names_[layout_->role(at.stripe, member)];
  }
  Extent block_at(raid::Layout::Position at, unsigned chunk) const {
    at.chunk = chunk;
    return {.first = layout_->lba(at), .block_count = 1};
  }

  // A flush begins between a write and what it does on the drives.
  Task<void> flush_while_writing() {
    const auto at = find_kept(true);
    if (!at) co_return;
    const std::string name = name_at(*at, at->chunk);
    unsigned running = 1;
    Condition ended;
    rig_.drive(name).set_latency(1ms);
    spawn(beside_others(write(block_at(*at, at->chunk), true), &running, &ended));
    co_await rig_.sleep(std::chrono::microseconds(random_.below(1200)));
    co_await flush();
    while (running > 0) co_await ended.wait();
    rig_.drive(name).set_latency(100us);
    co_await lose_cache(name);
  }

  // A row that matches is doubted again before it is flushed.
  Task<void> doubt_what_is_cached() {
    co_await have_all();
    const auto at = find_kept(false);
    if (!at) co_return;
    co_await flush();
    co_await write(block_at(*at, at->chunk), true);
    co_await refuse_parity(*at);
    co_await lose_cache(name_at(*at, at->chunk));
  }

  Task<void> have_all() {
    while (!missing_.empty()) co_await come_back(*missing_.begin());
    (void)co_await rig_.wait_for([this] {
      return rig_.set == nullptr || !rig_.set->running() || rig_.set->drives()->optimal();
    });
  }

  // Another block of the row is written, and the drive of its parity has no room.
  Task<void> refuse_parity(raid::Layout::Position at) {
    TestDrive& drive = rig_.drive(name_at(at, layout_->data_chunks()));
    drive.data_from = rig_.set->drives()->data_offset();
    drive.fill_up(true);
    co_await write(block_at(at, (at.chunk + 1) % layout_->data_chunks()), true);
    drive.fill_up(false);
  }

  // A region is verified while others are suspect, and then parity does not fit there again.
  Task<void> doubt_what_was_verified() {
    co_await have_all();
    const auto at = find_kept(false);
    if (!at) co_return;
    const std::string name = name_at(*at, at->chunk);
    co_await write(block_at(*at, at->chunk), true);
    co_await lose_cache(names_[random_.below(names_.size())]);  // The list is saved with that.
    set_pace(false, false);
    const auto verified = [&] {
      return !rig_.set->running() || rig_.set->drives()->redundancy_valid(at->stripe);
    };
    for (int i = 0; i < 200 && !verified(); ++i) co_await rig_.sleep(20ms);
    set_pace(false);
    if (!rig_.set->running() || !verified() || !missing_.empty()) co_return;
    co_await refuse_parity(*at);
    co_await kill_and_start(name);
  }

  // Writes of one stripe find no room, and a drive fails then or soon after.
  Task<void> lack_room(std::string name) {
    TestDrive& drive = rig_.drive(name);
    aim_ = random_.chance(0.5) ? torn_position().stripe
                               : layout_->position(random_.below(blocks_)).stripe;
    co_await burst(3);
    drive.data_from = rig_.set->drives()->data_offset();
    drive.fill_up(true);
    const std::string other = any_member();
    if (!other.empty() && random_.chance(0.4)) co_await go_missing(other);
    co_await burst(3);
    drive.fill_up(false);
    if (random_.chance(0.3)) {
      co_await kill_and_start();
    } else if (!other.empty() && rig_.set->running()) {
      co_await go_missing(other);
    }
    aim_.reset();
    if (random_.chance(0.5) && missing_.contains(other)) co_await come_back(other);
  }

  Task<void> lose_journal_again() {
    co_await flush();
    losing_ = true;
    co_await kill_under_load(false);
    losing_ = false;
    ++epoch_;
    memory_.reset();
    board_ = nvram::SimulatedBoard(kBoardBytes);
    co_await plug_in();
    co_await start();
  }

  // It runs again, whatever that takes.
  Task<void> recover_from_roughness() {
    const auto running = [this] { return rig_.set != nullptr && rig_.set->running(); };
    const bool itself = co_await rig_.wait_for(running);
    if (itself) co_return;
    (void)co_await rig_.controller->start_set("set", true);
    if (running()) co_return;
    while (!missing_.empty()) co_await come_back(*missing_.begin());
    (void)co_await rig_.controller->start_set("set", true);
    ended_ = !running();  // More is lost than it survives.
  }

  // It was on a bad place, or, with integrity, every cell of it was being written when the journal
  // was lost, and may not be what its entry says.
  bool explained(const Extent& lost) const {
    const std::uint64_t cell = 4096 / kModelBlockBytes;
    for (Lba lba = lost.first; lba < lost.end(); ++lba) {
      const Extent around{.first = lba / cell * cell, .block_count = cell};
      if (!damaged(lba) && !(integrity_ && torn_.first_in(around).has_value())) return false;
    }
    return true;
  }

  Task<void> end() {
    while (!missing_.empty() && wrong_.empty()) co_await come_back(*missing_.begin());
    set_pace(true);
    if (rough_) co_return co_await end_rough();
    const bool whole = co_await rig_.wait_for([this] { return rig_.whole(); });
    if (!whole) co_return note("it does not become whole");
    if (rig_.set->superblock().redundancy_suspect) note("it is still suspect");
    for (const Extent& lost : rig_.set_info().lost) {
      if (others_go_ || little_room_ || explained(lost)) continue;
      note(fmt::format("blocks {} to {} are lost", lost.first, lost.end() - 1));
    }
    for (std::size_t i = 0; i <= shape_.redundancy && wrong_.empty(); ++i) {
      for (Lba at = 0; at < blocks_ && wrong_.empty(); ++at) {
        co_await read({.first = at, .block_count = 1});
      }
      if (i == shape_.redundancy) break;
      rig_.drive(names_[(epoch_ + i) % names_.size()]).fail_with(Error::kHardware);
    }
    for (const auto& drive : rig_.drives) drive->fail_with(Error::kNone);
  }

  // Whatever can be read is right, now and when background work has had its time.
  Task<void> end_rough() {
    for (int round = 0; round < 2; ++round) {
      if (rig_.set == nullptr || !rig_.set->running()) co_return;
      for (Lba at = 0; at < blocks_ && wrong_.empty(); ++at) {
        co_await read({.first = at, .block_count = 1});
      }
      co_await rig_.sleep(60s);
    }
  }

  Executor& home_;
  Random random_;
  ControllerRig rig_;
  nvram::SimulatedBoard board_{kBoardBytes};
  std::unique_ptr<nvram::Nvram> memory_;
  std::unique_ptr<BlockModel> model_;
  Shape shape_;
  bool integrity_ = false;
  bool others_go_ = false;    // Drives are lost after the start, too.
  bool little_room_ = false;  // To remember which rows match.
  bool copies_ = false;       // Drives are copied to others.
  bool bad_places_ = false;
  bool returns_ = false;  // Drives return where places are bad.
  bool close_ = false;    // Things come close together.
  std::uint32_t strip_bytes_ = 0;
  std::uint32_t physical_bytes_ = 0;
  std::uint64_t region_stripes_ = 0;
  std::uint64_t blocks_ = 0;
  std::vector<std::string> names_;
  std::set<std::string> missing_;
  // The epoch grows with every kill and every lost drive; by block: that of the last acknowledged
  // write.
  unsigned epoch_ = 0;
  std::vector<unsigned> acknowledged_in_;
  ExtentSet torn_;     // By writes under way when the journal was lost.
  ExtentSet damaged_;  // Blocks on bad places.
  std::optional<raid::Layout> layout_;
  std::optional<std::uint64_t> aim_;  // The one stripe that hosts are after.
  bool freezing_ = false;             // A kill comes with a change of a drive,
  std::uint64_t changes_left_ = 0;    // after that number of others.
  bool killing_ = false;
  bool losing_ = false;    // The journal, with this kill.
  bool settling_ = false;  // A bad place, while a drive fails.
  bool failing_ = false;   // A drive that cannot be missed fails for a moment.
  bool rough_ = false;
  bool ended_ = false;  // It cannot run any more.
  unsigned spares_ = 0;
  std::string copied_;  // The drive that was copied last,
  std::string copy_;    // and its copy until that has the role.
  std::string wrong_;
};

std::string run_one(std::uint64_t seed) {
  const auto world = sim::World::create({.seed = seed});
  Lab lab(*world->executors()[0], seed);
  const bool ended = world->run([&] { return lab.run(); });
  return ended ? lab.wrong() : "it hangs";
}

TEST_CASE("a set without its journal loses nothing that its drives bring back", "[sim][raid]") {
  CHECK(simtest::run_seeds("raid-doubt", 100, run_one) == 0);
}

}  // namespace
}  // namespace sandbay::raidtest
