// Goal: a set that lost its journal while drives are missing loses nothing that a drive has or that
// was acknowledged since, and never reads anything wrong.
// Method: a controller with a parity set. It is killed under load, its NVRAM is lost, drives are
// missing at the start, and an operator accepts the loss. Then hosts write and read, the set is
// stopped or killed again, drives come back, and others are missing for a while, with or without
// the content of their caches. In the end all are back. Then everything reads right, also without
// some drive; and if no drive was lost after the start, and there was room to remember which rows
// match, nothing is lost. A block that was acknowledged after the last loss of a drive can
// always be read. In rough seeds drives have bad places, lack room, fail for good or are replaced,
// and the journal is lost again: then blocks may be lost, but nothing reads wrong.
#include <catch2/catch.hpp>

#include <cstdlib>
#include <set>

#include <fmt/format.h>

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
    others_go_ = random_.chance(0.5);
    rough_ = random_.chance(0.4);
    little_room_ = random_.chance(0.3);
    if (little_room_) rig_.options.set.most_lost_bytes = 300 + random_.below(1000);
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
    return fmt::format("{} of {} drives, strips of {}, regions of {}, physical {}{}{}{}{}: {}",
                       raid::describe(shape_.level), shape_.drives, strip_bytes_, region_stripes_,
                       physical_bytes_, integrity_ ? ", integrity" : "",
                       others_go_ ? ", others missing" : "", little_room_ ? ", little room" : "",
                       rough_ ? ", rough" : "", wrong_);
  }

 private:
  void note(const std::string& wrong) {
    if (wrong_.empty()) wrong_ = wrong;
  }

  Task<void> plug_in() {
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
      TestDrive& drive = rig_.add(names_.back(), kDriveBytes + (std::uint64_t{3} << 20));
      drive.mutable_geometry().physical_block_bytes = physical_bytes_;
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
    co_await kill_under_load(!power);
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

  // One more drive may be missing, of whatever group.
  bool may_go(const std::string& name) const {
    return !missing_.contains(name) && missing_.size() < shape_.redundancy;
  }

  void set_pace(bool fast) {
    rig_.options.set.maintenance.rate_under_load = fast ? 0 : 1;
    rig_.options.set.maintenance.host_is_quiet_after = 1000h;
    if (rig_.controller != nullptr) {
      rig_.controller->set_policy("set", rig_.options.set.maintenance);
    }
  }

  // ---- what hosts do ----------------------------------------------------------------------------

  Extent somewhere() {
    const std::uint64_t unit = random_.chance(0.5) ? 8 : 1;
    const std::uint64_t most = random_.chance(0.1) ? 4 * kMostBlocks : kMostBlocks;
    const std::uint64_t length = (1 + random_.below(most / unit)) * unit;
    return {.first = random_.below((blocks_ - length) / unit + 1) * unit, .block_count = length};
  }

  Task<void> write(Extent extent, bool counts) {
    const bool zeroes = random_.chance(0.1);
    const std::uint64_t version = model_->begin_write(extent, zeroes);
    const unsigned epoch = epoch_;
    const bool whole = rig_.set->drives() != nullptr && rig_.set->drives()->optimal();
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
      if (epoch_ == 0) torn_.add(extent);
    } else if (rough_ ? !excused(done.error) : done.error != Error::kMediumError || whole) {
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
    if (done.error != Error::kMediumError && !(rough_ && excused(done.error))) {
      co_return note(
          fmt::format("a read of block {} ends with: {}", extent.first, describe(done.error)));
    }
    if (!rough_ && epoch == epoch_ && acknowledged_in_[done.first_bad_lba] == epoch) {
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
    if (done.error != Error::kNone && !rough_) note("a flush fails");
  }

  Task<void> one(unsigned* running, Condition* ended, bool counts) {
    if (random_.chance(0.7)) {
      co_await write(somewhere(), counts);
    } else {
      co_await read(somewhere());
    }
    if (--*running == 0) ended->notify_all();
  }

  Task<void> burst(std::uint64_t count) {
    auto running = static_cast<unsigned>(count);
    Condition ended;
    for (std::uint64_t i = 0; i < count; ++i) spawn(one(&running, &ended, true));
    while (running > 0) co_await ended.wait();
  }

  Task<void> kill_under_load(bool counts) {
    unsigned running = 6;
    Condition ended;
    for (unsigned i = 0; i < 6; ++i) spawn(one(&running, &ended, counts));
    co_await rig_.sleep(std::chrono::microseconds(random_.below(1500)));
    killing_ = true;
    co_await rig_.kill();
    while (running > 0) co_await ended.wait();
    killing_ = false;
    model_->crash();
    ++epoch_;
  }

  // ---- what happens -----------------------------------------------------------------------------

  Task<void> take_step() {
    const auto what = random_.below(rough_ ? 26 : 20);
    if (what < 11) {
      co_await burst(1 + random_.below(4));
    } else if (what < 13) {
      co_await flush();
    } else if (what == 13) {
      set_pace(random_.chance(0.3));
      co_await rig_.sleep(std::chrono::milliseconds(random_.below(2000)));
    } else if (what == 14) {
      const bool stopped = co_await rig_.stop();
      REQUIRE(stopped);
      co_await start();
    } else if (what == 15) {
      co_await kill_under_load(true);
      memory_.reset();
      co_await plug_in();
      co_await start();
    } else if (what < 18) {
      if (!missing_.empty()) co_await come_back(*missing_.begin());
    } else if (what < 20) {
      co_await go_missing(names_[random_.below(names_.size())]);
    } else {
      co_await get_rough(what - 20);
    }
    if (rough_) {
      co_await recover_from_roughness();
    } else if (rig_.set == nullptr || !rig_.set->running()) {
      note("it does not run");
    }
  }

  Task<void> come_back(std::string name) {
    const auto back = co_await rig_.controller->insert_drive(name, &rig_.drive(name));
    if (rough_) {  // Its role may be another's by now.
      missing_.erase(name);
      co_return;
    }
    if (!back.has_value()) note(back.error());
    const bool member =
        co_await rig_.wait_for([&] { return rig_.info(name).use == DriveUse::kMember; });
    if (!member) note(name + " does not come back");
    missing_.erase(name);
  }

  // For a while, perhaps without the content of its cache.
  Task<void> go_missing(std::string name) {
    if (!others_go_ || !may_go(name)) co_return;
    if (!rough_ && !rig_.set->drives()->optimal()) co_return;
    if (random_.chance(0.5)) co_await flush();
    missing_.insert(name);
    ++epoch_;
    TestDrive& drive = rig_.drive(name);
    drive.fail_with(Error::kNotReady);
    co_await burst(3);
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
        drive.make_unreadable(drives.data_offset() + random_.below(end - drives.data_offset()));
      }
    } else if (what == 2) {
      drive.data_from = drives.data_offset();
      drive.fill_up(true);
      co_await burst(3);
      drive.fill_up(false);
    } else if (what == 3) {
      co_await lose_journal_again();
    } else {
      const auto role = static_cast<unsigned>(std::ranges::find(names_, name) - names_.begin());
      const std::string spare = fmt::format("s{}", ++spares_);
      TestDrive& device = rig_.add(spare, kDriveBytes + (std::uint64_t{3} << 20));
      device.mutable_geometry().physical_block_bytes = physical_bytes_;
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

  Task<void> lose_journal_again() {
    co_await flush();
    co_await kill_under_load(false);
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

  // With integrity, every cell of it was being written when the journal was lost, and may not be
  // what its entry says.
  bool torn(const Extent& lost) const {
    const std::uint64_t cell = 4096 / kModelBlockBytes;
    for (Lba lba = lost.first; lba < lost.end(); ++lba) {
      const Extent around{.first = lba / cell * cell, .block_count = cell};
      if (!integrity_ || !torn_.first_in(around).has_value()) return false;
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
      if (others_go_ || little_room_ || torn(lost)) continue;
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
  ExtentSet torn_;  // By writes under way when the journal was lost.
  bool killing_ = false;
  bool rough_ = false;
  bool ended_ = false;  // It cannot run any more.
  unsigned spares_ = 0;
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
