// A whole group under the load of hosts and of an administrator, cut at any write of a drive or of
// the metadata and at any store to an NVRAM.
//
// There everything is copied: files with what is not synced, NVRAMs, the model. Each copy meets its
// end: a kill; a power cut of the arrays, whose NVRAM has a battery; or a crash of the host. When
// the configuration promises that nothing needs the NVRAM or its mirror, that may be lost as well.
// The copy is started in another world, sometimes cut again while it starts. Then what was
// acknowledged is there, every operation that was under way is done or undone, the maps are right
// to the last page, every block is what the model allows, every snapshot is one moment of its
// volumes; and when all is removed nothing is left of it.
//
// SANDBAY_SEEDS=first:count chooses the runs, each of which makes about 16 cuts.
#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "group_load.h"
#include "runtime/simulation.h"
#include "seeds.h"
#include "tests/unit/block/payload.h"

namespace sandbay::simtest {
namespace {

using Membership = GroupModel::Membership;

constexpr unsigned kMostForksOfStep = 2;
constexpr unsigned kMostPromisesOfStep = 3;
constexpr std::uint64_t kMoreCells = 150;  // Added by an expansion.
constexpr Duration kSlice = std::chrono::milliseconds(2);
constexpr Duration kLimit = std::chrono::hours(1);

struct Fork {
  std::shared_ptr<const sim::FilesSnapshot> files;
  Boards boards;
  GroupModel model;
  GroupShape shape;
  std::string doing;
};

struct Tally {
  std::uint64_t cuts = 0;
  std::uint64_t cuts_again = 0;  // While a group started.
  std::uint64_t longest_row = 0;
  std::map<std::string, std::uint64_t> doing;
  std::map<std::string, std::uint64_t> ends;
};

GroupShape shape_of(std::uint64_t seed) {
  Random random(seed);
  GroupShape shape{.executors = random.chance(0.3) ? 2U : 1U,
                   .cached = random.chance(0.2),
                   .faults = random.chance(0.25)};
  using Weak = GroupShape::Weak;
  shape.weak = std::array{Weak::kNothing, Weak::kNothing, Weak::kBattery,
                          Weak::kBattery, Weak::kImage,   Weak::kMirror}[random.below(6)];
  shape.rows = random.chance(0.4);
  if (shape.weak == Weak::kImage) shape.cached = false;
  if (shape.weak == Weak::kMirror) shape.cached = true;
  if (shape.weak != Weak::kNothing) shape.faults = false;
  return shape;
}

// Takes a part of the NVRAM away that no promise needs. Returns a name for that, or an empty text.
std::string lose_nvram(Fork& fork, bool power_cut, Random& random) {
  using Weak = GroupShape::Weak;
  const Weak weak = fork.shape.weak;
  if (weak == Weak::kBattery && fork.model.nvram_needless && power_cut) {
    for (auto& [path, board] : fork.boards) board.cut_power(nvram::BatteryState::kLow);
    return "low battery";
  }
  if (weak != Weak::kMirror || random.chance(0.5)) return {};
  const bool failed = fork.model.mirror_failed;
  fork.boards.erase(std::string(failed ? GroupLab::kMirror : GroupLab::kImage));
  return failed ? "no mirror" : "no NVRAM";
}

// The group after its end, in another world.
class Survivor {
 public:
  Survivor(Executor& home, Fork& fork, bool host_crash, bool power_cut, std::uint64_t seed)
      : model_(fork.model),
        was_shrunk_(fork.doing == "shrink"),
        power_cut_(power_cut),
        random_(seed),
        lab_(home, fork.shape, fork.boards, host_crash ? "boot-2" : "boot-1") {}

  Task<std::string> go() {
    std::string wrong = co_await lab_.start();
    started_ = true;
    if (wrong.empty()) wrong = co_await lab_.check();
    if (wrong.empty()) wrong = co_await find_volumes();
    if (wrong.empty()) wrong = co_await find_snapshots();
    if (wrong.empty()) wrong = co_await find_members();
    if (wrong.empty()) wrong = co_await find_pools();
    if (wrong.empty()) wrong = co_await verify();
    if (wrong.empty() && random_.chance(0.3)) wrong = co_await go_on();
    const bool expands = random_.chance(was_shrunk_ ? 0.8 : 0.3);
    if (wrong.empty() && expands) wrong = co_await expand_all();
    if (wrong.empty() && random_.chance(0.4)) wrong = co_await remove_all();
    co_await lab_.stop();
    co_return wrong;
  }
  bool started() const noexcept { return started_; }
  GroupLab& lab() noexcept { return lab_; }

 private:
  struct Found {
    std::string name;
    std::uint64_t bytes = 0;
    bool online = true;
  };

  Task<std::string> find_volumes() {
    const auto list_now = co_await lab_.group().list_volumes();
    const auto& list = *list_now;
    const bool renamed =
        model_.name.has_value() &&
        std::ranges::find(list, *model_.name, &group::VolumeInfo::name) != list.end();
    if (renamed) model_.rename();
    for (const group::VolumeInfo& volume : list) {
      if (!model_.volumes.contains(volume.name)) co_return volume.name + " has come back";
      if (!volume.reason.empty()) co_return volume.name + ": " + volume.reason;
      const auto online = model_.online.find(volume.name);
      if (online != model_.online.end() &&
          online->second.value_or(volume.online) != volume.online) {
        co_return volume.name + (volume.online ? " is online" : " is offline");
      }
      volumes_.push_back({volume.name, volume.specification.size_bytes, volume.online});
    }
    for (const auto& [name, volume] : model_.volumes) {
      if (volume.presence == Presence::kThere && !has_volume(name)) co_return name + " is gone";
    }
    for (const Found& volume : volumes_) {
      const auto schedules = co_await lab_.group().list_schedules(volume.name);
      const bool there = schedules.has_value() && !schedules->empty();
      const auto wanted = model_.schedules.find(volume.name);
      if (there && wanted == model_.schedules.end()) co_return "a schedule has come back";
      if (wanted != model_.schedules.end() && wanted->second == Presence::kThere && !there) {
        co_return "a schedule is gone";
      }
    }
    co_return std::string();
  }

  bool has_volume(const std::string& name) const {
    return std::ranges::find(volumes_, name, &Found::name) != volumes_.end();
  }

  Task<std::string> find_snapshots() {
    for (const Found& volume : volumes_) {
      if (model_.set.at(volume.name) == "solo") continue;
      const auto list = co_await lab_.group().list_snapshots(volume.name);
      if (!list.has_value()) co_return list.error().message;
      for (const group::SnapshotInfo& snapshot : *list) {
        const std::string name = volume.name + "/" + snapshot.name;
        if (!snapshot.schedule.empty()) continue;
        if (!model_.snapshots.contains(name)) co_return name + " has come back";
        snapshots_.push_back(name);
      }
    }
    std::map<std::uint64_t, unsigned> missing;  // Of groups that were being taken.
    std::map<std::uint64_t, unsigned> there;
    for (const auto& [name, snapshot] : model_.snapshots) {
      const bool found = std::ranges::find(snapshots_, name) != snapshots_.end();
      if (snapshot.presence == Presence::kThere && !found) co_return name + " is gone";
      // A volume is deleted with all of its snapshots, or is there with all.
      const auto volume = model_.volumes.find(snapshot.volume);
      if (volume != model_.volumes.end() && volume->second.presence == Presence::kRemoving &&
          found != has_volume(snapshot.volume)) {
        co_return name + (found ? " is there without its volume" : " is gone without its volume");
      }
      if (snapshot.presence == Presence::kMaking) ++(found ? there : missing)[snapshot.group];
    }
    for (const auto& [group, count] : there) {
      if (missing.contains(group)) co_return "some snapshots of one moment are there, some not";
    }
    co_return std::string();
  }

  Task<std::string> find_members() {
    for (const auto& [name, membership] : model_.members) {
      const auto shown = co_await lab_.group().show_member(name);
      if (!shown.has_value()) co_return shown.error().message;
      const std::string& state = shown->state;
      const bool inside = state == "member";
      const bool outside = state == "present";
      const bool right = membership == Membership::kOutside   ? outside
                         : membership == Membership::kInside  ? inside
                         : membership == Membership::kLeaving ? !inside
                                                              : true;
      if (!right) co_return fmt::format("member {} is \"{}\"", name, state);
      if (shown->health == "missing") co_return fmt::format("member {} is missing", name);
      if (state == "leaving") leaving_.push_back(name);
    }
    co_return std::string();
  }

  Task<std::string> find_pools() {
    const auto list = co_await lab_.group().list_pools();
    for (const group::PoolInfo& pool : list) {
      if (!pool.reason.empty()) co_return fmt::format("pool {}: {}", pool.name, pool.reason);
      second_pool_ = second_pool_ || pool.name == "q";
    }
    if (second_pool_ && !model_.second_pool.has_value()) co_return "pool q has come back";
    if (!second_pool_ && model_.second_pool == Presence::kThere) co_return "pool q is gone";
    co_return std::string();
  }

  // Everything that is to be read of a target, or only the bytes from `from` on.
  Task<std::expected<testing::Bytes, std::string>> read_all(std::string target, std::uint64_t bytes,
                                                            std::uint64_t from = 0) {
    Disk disk(std::move(target));
    std::string wrong = co_await disk.connect(bytes);
    testing::Bytes content;
    if (wrong.empty()) {
      const Completion read = co_await testing::read_blocks(
          disk.unit(), {.first = from / 512, .block_count = (bytes - from) / 512},
          testing::Cut::kAligned, random_);
      if (read.error != Error::kNone) wrong = describe(read.error);
      if (read.error == Error::kNone) content = testing::content_of(read.data);
    }
    co_await disk.disconnect();
    if (!wrong.empty()) co_return std::unexpected(wrong);
    co_return content;
  }

  Task<std::string> verify() {
    for (Found& volume : volumes_) {
      if (!volume.online) {
        const auto online = co_await lab_.group().change_volume(volume.name, {.online = true});
        if (!online.has_value()) co_return online.error().message;
        volume.online = true;
      }
      // The access of a clone is given to it by another request.
      const auto open = co_await lab_.group().add_access(volume.name, {});
      if (!open.has_value()) co_return open.error().message;
      if (open->created && !may_lack_access(volume.name)) {
        co_return volume.name + " has lost an access record";
      }
      const auto bytes = co_await read_all(model_.target(volume.name), volume.bytes);
      if (!bytes.has_value()) co_return fmt::format("{}: {}", volume.name, bytes.error());
      ModelVolume model = model_.volumes.at(volume.name);
      const auto shrinking = model_.shrinking.find(volume.name);
      if (shrinking != model_.shrinking.end() &&
          bytes->size() == shrinking->second * kModelCellBytes) {
        model.cells.resize(shrinking->second);
      }
      const std::string wrong = check_volume(model, *bytes, power_cut_);
      if (!wrong.empty()) {
        co_return fmt::format("{} of \"{}\", {}", volume.name, model_.set.at(volume.name), wrong);
      }
    }
    for (const std::string& name : snapshots_) {
      const std::string wrong = co_await verify_snapshot(name);
      if (!wrong.empty()) co_return wrong;
    }
    co_return std::string();
  }

  bool may_lack_access(const std::string& volume) const {
    return !model_.online.contains(volume);  // Nobody has used it yet.
  }

  Task<std::string> verify_snapshot(std::string name) {
    const std::size_t slash = name.find('/');
    const group::SnapshotName named{.volume = name.substr(0, slash),
                                    .snapshot = name.substr(slash + 1)};
    std::string written = co_await verify_written(name, named);
    if (!written.empty()) co_return written;
    const auto online = co_await lab_.group().online_snapshot(named, false);
    if (!online.has_value()) co_return online.error().message;
    const auto bytes =
        co_await read_all(online->target, model_.snapshots.at(name).cells.size() * kModelCellBytes);
    if (!bytes.has_value()) co_return fmt::format("{}: {}", name, bytes.error());
    if (model_.snapshots.at(name).presence == Presence::kMaking) model_.settle_snapshot(name);
    const std::string wrong = model_.check_snapshot(name, numbers_of_cells(*bytes, 0), moments_);
    if (!wrong.empty()) co_return wrong;
    const auto offline = co_await lab_.group().offline_snapshot(named, true);
    co_return offline.has_value() ? "" : offline.error().message;
  }

  // What was written to it, if anything was.
  Task<std::string> verify_written(std::string name, group::SnapshotName named) {
    const auto model = model_.volumes.find(name);
    if (model == model_.volumes.end()) co_return std::string();
    // Somebody may have been looking at it.
    const auto before = co_await lab_.group().offline_snapshot(named, true);
    if (!before.has_value()) co_return before.error().message;
    const auto online = co_await lab_.group().online_snapshot(named, true);
    if (!online.has_value()) co_return online.error().message;
    const auto bytes =
        co_await read_all(online->target, model->second.cells.size() * kModelCellBytes);
    if (!bytes.has_value()) co_return fmt::format("{}, written to: {}", name, bytes.error());
    const std::string wrong = check_volume(model->second, *bytes, power_cut_);
    if (!wrong.empty()) co_return fmt::format("{}, written to, {}", name, wrong);
    const auto offline = co_await lab_.group().offline_snapshot(named, true);
    co_return offline.has_value() ? "" : offline.error().message;
  }

  // What was under way in the background ends, and nothing becomes another by it.
  Task<std::string> go_on() {
    for (const std::string& member : leaving_) {
      const bool left = co_await lab_.left(member);
      // There may be no room; then it stays as it is.
      (void)left;
    }
    co_await lab_.home().sleep_for(std::chrono::seconds(3));
    std::string wrong = co_await lab_.check();
    if (wrong.empty()) wrong = co_await verify();
    co_return wrong;
  }

  // A volume that was shrunk before shows zeros where its data was.
  Task<std::string> expand_all() {
    for (const Found& volume : volumes_) {
      if (model_.set.at(volume.name) == "solo") continue;
      const std::uint64_t bytes = volume.bytes + kMoreCells * kModelCellBytes;
      const auto grown = co_await lab_.group().change_volume(volume.name, {.size_bytes = bytes});
      if (!grown.has_value()) {
        if (grown.error().code == group::Refusal::Code::kConflict) continue;  // There is no room.
        co_return grown.error().message;
      }
      const auto read = co_await read_all(model_.target(volume.name), bytes, volume.bytes);
      if (!read.has_value()) co_return fmt::format("{}, expanded: {}", volume.name, read.error());
      if (std::ranges::any_of(*read, [](std::byte byte) { return byte != std::byte{0}; })) {
        co_return volume.name + ", expanded, shows data in its new space";
      }
    }
    co_return std::string();
  }

  Task<std::string> remove_all() {
    for (const Found& volume : volumes_) {
      const auto removed = co_await lab_.group().delete_volume(volume.name, true);
      if (!removed.has_value()) co_return removed.error().message;
    }
    if (second_pool_) {
      const auto removed = co_await lab_.group().delete_pool("q");
      if (!removed.has_value()) co_return removed.error().message;
    }
    std::string wrong = co_await lab_.check_empty();
    if (wrong.empty()) wrong = co_await lab_.check();
    co_return wrong;
  }

  GroupModel model_;
  bool was_shrunk_;
  bool power_cut_;
  Random random_;
  GroupLab lab_;
  bool started_ = false;
  std::vector<Found> volumes_;
  std::vector<std::string> snapshots_;
  std::vector<std::string> leaving_;
  bool second_pool_ = false;
  std::map<std::uint64_t, Moment> moments_;
};

struct Ending {
  Fork* fork;
  std::uint64_t seed;
  Tally* tally;
  bool again;       // It was cut before while it started.
  bool power_cut;   // It was cut by power then,
  bool host_crash;  // or the host went down.
};

Task<void> survive(Survivor* survivor, std::string* wrong) { *wrong = co_await survivor->go(); }

std::string end_fork(const Ending& ending) {
  Fork& fork = *ending.fork;
  ++ending.tally->cuts;
  const auto world = sim::World::create(
      {.seed = ending.seed, .executors = fork.shape.executors, .files = fork.files});
  Random random(ending.seed);
  const std::uint64_t drawn = random.below(3);
  const bool host_crash = drawn == 2 && !fork.shape.cached;
  const bool power_cut = drawn > 0;
  if (power_cut) world->cut_power();
  if (host_crash) {
    for (auto& [path, board] : fork.boards) board.crash_host(random);
  }
  for (auto& [path, board] : fork.boards) board.sync_error = Error::kNone;
  const std::string lost = ending.again ? "" : lose_nvram(fork, power_cut, random);
  const char* const end = host_crash ? "host crash" : power_cut ? "power cut" : "kill";
  const std::string how = lost.empty() ? end : fmt::format("{} with {}", end, lost);
  ++ending.tally->ends[how];
  Survivor survivor(*world->executors()[0], fork, host_crash || ending.host_crash,
                    power_cut || ending.power_cut || fork.shape.faults, ending.seed);
  std::unique_ptr<Fork> second;
  const auto cut_again = [&] {
    if (second != nullptr || survivor.started() || !random.chance(0.02)) return;
    second = std::make_unique<Fork>(Fork{.files = world->snapshot_files(),
                                         .boards = fork.boards,
                                         .model = fork.model,
                                         .shape = fork.shape,
                                         .doing = fork.doing});
  };
  if (!ending.again && random.chance(0.2)) {
    survivor.lab().on_store = cut_again;
    world->observe_writes([&](const std::string&) { cut_again(); });
  }
  std::string wrong;
  const bool ended = world->run([&] { return survive(&survivor, &wrong); });
  world->observe_writes({});
  if (!ended) {
    fmt::print(stderr, "group power: a group does not end after \"{}\"\n", fork.doing);
    std::abort();
  }
  if (wrong.empty() && second != nullptr) {
    ++ending.tally->cuts_again;
    return end_fork({.fork = second.get(),
                     .seed = ending.seed + 7919,
                     .tally = ending.tally,
                     .again = true,
                     .power_cut = power_cut,
                     .host_crash = host_crash});
  }
  if (wrong.empty()) return wrong;
  return fmt::format("{} {} while \"{}\"{}: {}", how, ending.seed, fork.doing,
                     ending.again ? ", again" : "", wrong);
}

// A row of more than eight parents needs more steps.
GroupLoadOptions options_of(const GroupShape& shape) {
  GroupLoadOptions options;
  if (shape.rows) options.administrator_steps = 28;
  return options;
}

// A run, and its copies at moments that are drawn.
class Run {
 public:
  Run(std::uint64_t seed, Tally* tally)
      : seed_(seed),
        tally_(tally),
        shape_(shape_of(seed)),
        world_(sim::World::create({.seed = seed, .executors = shape_.executors})),
        chances_(seed),
        lab_(*world_->executors()[0], shape_, boards_, "boot-1"),
        load_(lab_, seed, options_of(shape_)) {}

  std::string go() {
    lab_.on_store = [this] { consider_fork(0.1, kMostForksOfStep); };
    load_.on_answer = [this] { consider_fork(3, kMostForksOfStep + kMostPromisesOfStep); };
    world_->observe_writes([this](const std::string&) { consider_fork(1, kMostForksOfStep); });
    const TimePoint limit = world_->now() + kLimit;
    (void)world_->run([this] { return run_load(); }, kSlice);
    while (!ended_ && world_->now() < limit) {
      end_forks();
      world_->run_for(kSlice);
    }
    world_->observe_writes({});
    tally_->longest_row = std::max<std::uint64_t>(tally_->longest_row, load_.longest_row());
    if (!ended_) {
      fmt::print(stderr, "group power: seed {} does not end: {}\n", seed_, load_.doing());
      std::abort();  // The world keeps what has not ended, and it must go before the group.
    }
    end_forks();
    return wrong_;
  }

 private:
  Task<void> run_load() {
    std::string wrong = co_await lab_.start();
    if (wrong.empty()) wrong = co_await load_.go();
    if (wrong.empty()) wrong = co_await lab_.check();
    co_await lab_.stop();
    if (wrong_.empty()) wrong_ = wrong;
    ended_ = true;
  }

  // Some steps are cut near their beginning, some anywhere.
  void consider_fork(double weight, unsigned most) {
    if (!wrong_.empty() || !lab_.running() || load_.steps() == 0) return;
    if (load_.steps() != step_) {
      step_ = load_.steps();
      forks_of_step_ = 0;
      chance_ = std::array{0.3, 0.06, 0.015}[chances_.below(3)];
    }
    if (forks_of_step_ >= most || !chances_.chance(chance_ * weight)) return;
    ++forks_of_step_;
    ++tally_->doing[load_.doing()];
    forks_.push_back({.files = world_->snapshot_files(),
                      .boards = boards_,
                      .model = load_.model(),
                      .shape = shape_,
                      .doing = load_.doing()});
  }

  void end_forks() {
    for (Fork& fork : forks_) {
      if (!wrong_.empty()) break;
      wrong_ = end_fork({.fork = &fork,
                         .seed = seed_ * 1000 + ended_forks_++,
                         .tally = tally_,
                         .again = false,
                         .power_cut = false,
                         .host_crash = false});
    }
    forks_.clear();
  }

  std::uint64_t seed_;
  Tally* tally_;
  GroupShape shape_;
  Boards boards_;
  std::unique_ptr<sim::World> world_;
  Random chances_;
  GroupLab lab_;
  GroupLoad load_;
  std::vector<Fork> forks_;
  std::uint64_t ended_forks_ = 0;
  unsigned step_ = 0;
  unsigned forks_of_step_ = 0;
  double chance_ = 0;
  bool ended_ = false;
  std::string wrong_;
};

}  // namespace

TEST_CASE("a group keeps what it acknowledged, whenever it is cut", "[group][sim]") {
  spdlog::set_level(spdlog::level::off);
  Tally tally;
  const std::uint64_t failures =
      run_seeds("group power", 8, [&](std::uint64_t seed) { return Run(seed, &tally).go(); });
  fmt::print("group power: {} cuts, {} of them while the group started; a row of {} parents\n",
             tally.cuts, tally.cuts_again, tally.longest_row);
  for (const auto& [how, count] : tally.ends) fmt::print("  {}: {}\n", how, count);
  for (const auto& [doing, count] : tally.doing) fmt::print("  {}: {}\n", doing, count);
  std::fflush(stdout);
  CHECK(failures == 0);
  CHECK(tally.cuts > 0);
}

}  // namespace sandbay::simtest
