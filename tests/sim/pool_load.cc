// The hosts, the administrator, the background.
#include "pool_load.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tests/unit/block/payload.h"

namespace sandbay::simtest {

using pool::BranchId;
using pool::PageNumber;
using pool::PoolVolume;
using pool::StoreIndex;
using pool::StoreState;

namespace {

constexpr std::uint64_t kPageCells = kLabPageBytes / kModelCellBytes;
constexpr std::uint64_t kBlocksOfCell = kModelCellBytes / 512;
constexpr std::size_t kMostVolumes = 4;
constexpr std::size_t kMostSnapshots = 9;
constexpr std::size_t kLeastMembers = 2;

testing::Bytes content(std::uint64_t first, std::uint64_t count, std::uint32_t number) {
  testing::Bytes bytes(count * kModelCellBytes);
  for (std::uint64_t i = 0; i < count; ++i) {
    fill_model_cell(bytes.data() + i * kModelCellBytes, first + i, number);
  }
  return bytes;
}

Extent blocks_of(std::uint64_t first, std::uint64_t count) {
  return {.first = first * kBlocksOfCell, .block_count = count * kBlocksOfCell};
}

}  // namespace

bool PoolLoad::accept(const char* what, Error error) {
  if (error == Error::kNone) return true;
  ++refusals_;
  if (error != Error::kNoSpace) fail(fmt::format("{}: {}", what, describe(error)));
  return false;
}

Task<std::string> PoolLoad::go() {
  co_await create();
  co_await create();
  running_ = options_.hosts + 1;
  background_runs_ = true;
  lab_.set_faults(options_.faults);
  for (unsigned i = 0; i < options_.hosts; ++i) spawn(run_host());
  spawn(options_.keeps_house ? keep_house() : run_background());
  co_await run_administrator();
  while (running_ > 0 || background_runs_) {
    co_await lab_.home().sleep_for(std::chrono::milliseconds(1));
  }
  lab_.set_faults({});
  volumes_.clear();
  co_return wrong_;
}

// Hosts -------------------------------------------------------------------------------------------

Task<void> PoolLoad::run_host() {
  for (unsigned i = 0; i < options_.host_steps && wrong_.empty(); ++i) co_await host_step();
  --running_;
}

PoolLoad::Range PoolLoad::pick_range(const ModelVolume& volume) {
  Range range{.first = random_.below(volume.cells.size()), .count = 1};
  const std::uint64_t left = volume.cells.size() - range.first;
  range.count = random_.between(1, std::min<std::uint64_t>(left, random_.chance(0.2) ? 160 : 20));
  return range;
}

bool PoolLoad::is_free(const ModelVolume& volume, Range range) {
  for (std::uint64_t i = range.first; i < range.first + range.count; ++i) {
    if (volume.cells[i].busy) return false;
  }
  return true;
}

Task<void> PoolLoad::host_step() {
  if (random_.chance(0.2)) {
    co_await lab_.home().sleep_for(std::chrono::microseconds(random_.below(3000)));
  }
  const Name name = pick_volume();
  if (name.empty() || model_.volumes.at(name).paused) {
    co_await lab_.home().sleep_for(std::chrono::milliseconds(1));
    co_return;
  }
  const ModelVolume& volume = model_.volumes.at(name);
  const std::uint64_t drawn = random_.below(100);
  Range range = pick_range(volume);
  const bool unmaps = drawn >= 62 && drawn < 76;
  if (unmaps && random_.chance(0.6)) {
    range.first = range.first / kPageCells * kPageCells;
    range.count = std::min<std::uint64_t>(volume.cells.size() - range.first, kPageCells);
  }
  if (!is_free(volume, range)) co_return;
  const auto deed = under_way_.insert(
      under_way_.end(), {.what = fmt::format("{} of {}, cells {} to {}",
                                             drawn < 62   ? "write"
                                             : unmaps     ? "unmap"
                                             : drawn < 86 ? "flush"
                                                          : "read",
                                             name, range.first, range.first + range.count - 1),
                         .begun = lab_.home().now()});
  co_await change_or_read(name, range, drawn);
  under_way_.erase(deed);
}

Task<void> PoolLoad::change_or_read(Name name, Range range, std::uint64_t drawn) {
  if (drawn < 62) {
    co_await write(name, range, random_.chance(0.4));
  } else if (drawn < 76) {
    co_await unmap(name, range);
  } else if (drawn < 86) {
    co_await flush(name);
  } else {
    co_await read(name, range);
  }
}

Task<void> PoolLoad::write(Name name, Range range, bool forced) {
  const std::shared_ptr<PoolVolume> volume = volumes_.at(name);
  const std::uint32_t number = ++model_.last_number;
  model_.begin(name, range.first, range.count, number);
  const Completion written = co_await testing::write_blocks(
      *volume, range.first * kBlocksOfCell, content(range.first, range.count, number),
      testing::Cut::kAligned, random_, forced);
  const bool done = accept("write", written.error);
  model_.end(name, range.first, range.count, done, forced);
}

Task<void> PoolLoad::unmap(Name name, Range range) {
  const std::shared_ptr<PoolVolume> volume = volumes_.at(name);
  model_.begin(name, range.first, range.count, 0);
  const Operation how = random_.chance(0.5) ? Operation::kUnmap : Operation::kWriteZeroes;
  const Completion completion =
      co_await testing::do_without_data(*volume, how, blocks_of(range.first, range.count));
  const bool done = accept("unmap", completion.error);
  model_.end(name, range.first, range.count, done, false);
}

Task<void> PoolLoad::flush(Name name) {
  const std::shared_ptr<PoolVolume> volume = volumes_.at(name);
  ++model_.volumes.at(name).in_flight;
  const std::vector<std::uint64_t> begun = model_.begin_flush(name);
  const Completion flushed = co_await testing::do_without_data(*volume, Operation::kFlush, {});
  if (accept("flush", flushed.error)) model_.end_flush(name, begun);
  --model_.volumes.at(name).in_flight;
}

// Nobody writes there meanwhile: it is what it must be.
Task<void> PoolLoad::read(Name name, Range range) {
  const std::shared_ptr<PoolVolume> volume = volumes_.at(name);
  ModelVolume& model = model_.volumes.at(name);
  ++model.in_flight;
  for (std::uint64_t i = 0; i < range.count; ++i) model.cells[range.first + i].busy = true;
  const Completion done = co_await testing::read_blocks(
      *volume, blocks_of(range.first, range.count), testing::Cut::kAligned, random_);
  --model.in_flight;
  for (std::uint64_t i = 0; i < range.count; ++i) model.cells[range.first + i].busy = false;
  if (!accept("read", done.error)) co_return;
  const auto found = numbers_of_cells(testing::content_of(done.data), range.first);
  for (std::uint64_t i = 0; i < range.count; ++i) {
    const ModelCell& cell = model.cells[range.first + i];
    bool right = false;
    for (std::size_t at = cell.acknowledged(); at < cell.versions.size(); ++at) {
      right = right || cell.versions[at].number == found[i];
    }
    if (!right) {
      fail(fmt::format("{}, cell {} reads as {}, should be {}", name, range.first + i, found[i],
                       cell.versions[cell.acknowledged()].number));
    }
  }
}

// The administrator -------------------------------------------------------------------------------

Task<void> PoolLoad::run_administrator() {
  for (unsigned i = 0; i < options_.administrator_steps && wrong_.empty(); ++i) {
    co_await lab_.home().sleep_for(std::chrono::microseconds(random_.below(4000)));
    co_await administrator_step();
    doing_ = "nothing";
  }
  --running_;
}

Task<void> PoolLoad::administrator_step() {
  using Step = Task<void> (PoolLoad::*)();
  struct Choice {
    unsigned weight;
    const char* name;
    Step step;
  };
  static const std::array<Choice, 10> kChoices{{{8, "create", &PoolLoad::create},
                                                {6, "expand", &PoolLoad::expand},
                                                {8, "shrink", &PoolLoad::shrink},
                                                {5, "remove volume", &PoolLoad::remove_volume},
                                                {30, "snapshot", &PoolLoad::snapshot},
                                                {8, "clone", &PoolLoad::clone},
                                                {12, "restore", &PoolLoad::restore},
                                                {15, "remove snapshot", &PoolLoad::remove_snapshot},
                                                {8, "add member", &PoolLoad::add_member},
                                                {8, "remove member", &PoolLoad::remove_member}}};
  std::uint64_t drawn = random_.below(108);
  for (const Choice& choice : kChoices) {
    if (drawn >= choice.weight) {
      drawn -= choice.weight;
      continue;
    }
    doing_ = choice.name;
    co_await (this->*choice.step)();
    co_return;
  }
}

PoolLoad::Name PoolLoad::pick_volume() {
  if (volumes_.empty()) return {};
  return std::next(volumes_.begin(), static_cast<long>(random_.below(volumes_.size())))->first;
}

// `seen`: whose contents are known exactly.
PoolLoad::Name PoolLoad::pick_snapshot(bool seen) {
  std::vector<Name> names;
  for (const auto& [name, key] : keys_) {
    if (!seen || model_.snapshots.at(name).seen.has_value()) names.push_back(name);
  }
  return names.empty() ? Name() : names[random_.below(names.size())];
}

void PoolLoad::adopt(const Name& name, BranchId branch) {
  volumes_[name] = lab_.pool().attach(branch);
  model_.volumes.at(name).presence = Presence::kThere;
}

Task<void> PoolLoad::create() {
  if (volumes_.size() >= kMostVolumes) co_return;
  const Name name = fmt::format("v{}", ++names_);
  const std::uint64_t cells = random_.between(1, 3 * kPageCells);
  model_.volumes[name].cells.resize(cells);
  const auto made = co_await lab_.pool().create(
      {.byte_count = cells * kModelCellBytes, .thick = random_.chance(0.2), .label = name}, {});
  if (accept("create", made.has_value() ? Error::kNone : made.error())) {
    adopt(name, *made);
  } else {
    model_.volumes.erase(name);
  }
}

Task<void> PoolLoad::expand() {
  const Name name = pick_volume();
  if (name.empty()) co_return;
  ModelVolume& volume = model_.volumes.at(name);
  const std::uint64_t cells = volume.cells.size() + random_.between(1, kPageCells);
  volume.grown_cells = cells;
  const Error error =
      co_await lab_.pool().expand(volumes_.at(name)->branch().id(), cells * kModelCellBytes, {});
  if (accept("expand", error)) volume.cells.resize(cells);
}

// Cells behind the new end become zeros first, one by one. After a crash the volume has the old
// size or the new one.
Task<void> PoolLoad::shrink() {
  const Name name = pick_volume();
  if (name.empty() || model_.volumes.at(name).cells.size() < 2) co_return;
  co_await pause(name);
  ModelVolume& volume = model_.volumes.at(name);
  const std::uint64_t cells = random_.between(1, volume.cells.size() - 1);
  const std::uint64_t behind = volume.cells.size() - cells;
  volume.grown_cells = cells;
  model_.begin(name, cells, behind, 0);
  const Error error =
      co_await lab_.pool().shrink(volumes_.at(name)->branch().id(), cells * kModelCellBytes, {});
  const bool done = accept("shrink", error);
  model_.end(name, cells, behind, done, done);
  if (done) volume.cells.resize(cells);
  volume.paused = false;
}

// Nothing of the volume is in flight afterwards, and nothing begins.
Task<void> PoolLoad::pause(Name name) {
  model_.volumes.at(name).paused = true;
  while (model_.volumes.at(name).in_flight > 0) {
    co_await lab_.home().sleep_for(std::chrono::microseconds(100));
  }
}

Task<void> PoolLoad::remove_volume() {
  if (volumes_.size() < 3) co_return;
  const Name name = pick_volume();
  co_await pause(name);
  const BranchId branch = volumes_.at(name)->branch().id();
  volumes_.erase(name);
  model_.volumes.at(name).presence = Presence::kRemoving;
  std::vector<Name> gone;
  for (const auto& [snapshot, key] : keys_) {
    if (key.branch == branch) gone.push_back(snapshot);
  }
  for (const Name& snapshot : gone) {
    model_.snapshots.at(snapshot).presence = Presence::kRemoving;
    keys_.erase(snapshot);
  }
  const Error error = co_await lab_.pool().remove(branch, {});
  if (error != Error::kNone) co_return fail(fmt::format("remove: {}", describe(error)));
  model_.volumes.erase(name);
  for (const Name& snapshot : gone) model_.snapshots.erase(snapshot);
}

Task<void> PoolLoad::snapshot() {
  if (keys_.size() >= kMostSnapshots) co_return co_await remove_snapshot();
  std::vector<pool::Pool::SnapshotOrder> orders;
  std::vector<Name> names;
  std::vector<pool::SnapshotKey> keys;
  const std::uint64_t group = ++groups_;
  for (const auto& [name, volume] : volumes_) {
    if (!orders.empty() && random_.chance(0.5)) continue;
    names.push_back(fmt::format("s{}", ++names_));
    orders.push_back({.branch = volume->branch().id(), .label = names.back()});
    keys.push_back({.branch = volume->branch().id(), .generation = 0});
    model_.begin_snapshot(names.back(), name, group);
  }
  const auto taken = co_await lab_.pool().snapshot(std::move(orders), {});
  if (!taken.has_value()) co_return fail(fmt::format("{}", describe(taken.error())));
  for (std::size_t i = 0; i < names.size(); ++i) {
    model_.end_snapshot(names[i]);
    keys[i].generation = (*taken)[i];
    keys_[names[i]] = keys[i];
  }
  if (random_.chance(0.3)) co_return;
  for (const Name& name : names) co_await look_at(name);
}

Task<void> PoolLoad::look_at(Name name) {
  const pool::SnapshotKey key = keys_.at(name);
  const auto shown = lab_.pool().attach(key.branch, key.generation);
  if (shown == nullptr) co_return fail(name + " is not there");
  const Completion done = co_await testing::read_blocks(
      *shown, {.first = 0, .block_count = shown->geometry().block_count}, testing::Cut::kAligned,
      random_);
  if (!accept("reading a snapshot", done.error)) co_return;
  const auto found = numbers_of_cells(testing::content_of(done.data), 0);
  const std::string wrong = model_.check_snapshot(name, found, moments_);
  if (!wrong.empty()) fail(wrong);
}

Task<void> PoolLoad::clone() {
  const Name of = pick_snapshot(true);
  if (of.empty() || volumes_.size() >= kMostVolumes) co_return;
  const Name name = fmt::format("v{}", ++names_);
  ModelVolume& volume = model_.volumes[name];
  for (const std::uint32_t number : known(model_.snapshots.at(of).seen)) {
    volume.cells.emplace_back().become(number, model_.clock);
  }
  const auto made = co_await lab_.pool().clone(keys_.at(of), {.label = name}, {});
  if (accept("clone", made.has_value() ? Error::kNone : made.error())) {
    adopt(name, *made);
  } else {
    model_.volumes.erase(name);
  }
}

Task<void> PoolLoad::restore() {
  const Name of = pick_snapshot(true);
  const Name name = pick_volume();
  if (of.empty() || name.empty()) co_return;
  co_await look_at(of);
  co_await pause(name);
  ModelVolume& volume = model_.volumes.at(name);
  volume.restored = model_.snapshots.at(of).seen;
  const auto restored = co_await lab_.pool().restore(*volumes_.at(name), keys_.at(of), {});
  if (accept("restore", restored.has_value() ? Error::kNone : restored.error())) {
    const std::vector<std::uint32_t> numbers = known(volume.restored);
    volume.cells.assign(numbers.size(), {});
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      volume.cells[i].become(numbers[i], model_.tick());
    }
  }
  volume.restored.reset();
  volume.paused = false;
}

Task<void> PoolLoad::remove_snapshot() {
  const Name name = pick_snapshot(false);
  if (name.empty()) co_return;
  const pool::SnapshotKey key = keys_.at(name);
  keys_.erase(name);
  model_.snapshots.at(name).presence = Presence::kRemoving;
  const Error error = co_await lab_.pool().remove_snapshot(key, {});
  if (error != Error::kNone) co_return fail(fmt::format("{}", describe(error)));
  model_.snapshots.erase(name);
}

Task<void> PoolLoad::add_member() {
  for (StoreIndex member = 0; member < kLabMembers; ++member) {
    if (members_.contains(member)) continue;
    const std::string wrong = co_await lab_.open_unit(member);
    if (!wrong.empty()) co_return fail(wrong);
    members_.insert(member);
    const Error error =
        co_await lab_.pool().put_store(lab_.config_of(member, StoreState::kActive), {});
    if (error != Error::kNone) fail(fmt::format("{}", describe(error)));
    co_return;
  }
}

Task<void> PoolLoad::remove_member() {
  if (members_.size() <= kLeastMembers) co_return;
  const StoreIndex member =
      *std::next(members_.begin(), static_cast<long>(random_.below(members_.size())));
  const Error begun =
      co_await lab_.pool().put_store(lab_.config_of(member, StoreState::kVacating), {});
  if (begun != Error::kNone) co_return fail(fmt::format("{}", describe(begun)));
  Task<bool> emptying = options_.keeps_house ? wait_for_empty_member(member) : empty_member(member);
  const bool gone = co_await std::move(emptying);
  if (gone) co_return;
  const Error ended =
      co_await lab_.pool().put_store(lab_.config_of(member, StoreState::kActive), {});
  if (ended != Error::kNone) fail(fmt::format("{}", describe(ended)));
}

// Given up when the others are full, or sometimes half-way.
Task<bool> PoolLoad::empty_member(StoreIndex member) {
  const bool gives_up = random_.chance(0.2);
  for (int turn = 0; turn < 400 && wrong_.empty(); ++turn) {
    const auto more = co_await lab_.pool().vacate(member, 4);
    if (gives_up && turn == 2) co_return false;
    if (!more.has_value() && more.error() == Error::kNoSpace) co_return false;
    // Another mover is at work on a branch.
    const bool busy = !more.has_value() && more.error() == Error::kNotReady;
    if (!more.has_value() && !busy) {
      fail(fmt::format("{}", describe(more.error())));
      co_return false;
    }
    if (busy) co_await lab_.home().sleep_for(std::chrono::milliseconds(1));
    if (busy || *more) continue;
    const bool gone = co_await take_member(member);
    if (gone) co_return true;
    co_await lab_.home().sleep_for(std::chrono::milliseconds(1));
  }
  co_return false;
}

// Given up after some time, whatever the housekeeper does then.
Task<bool> PoolLoad::wait_for_empty_member(StoreIndex member) {
  const TimePoint end = lab_.home().now() + std::chrono::microseconds(random_.below(60'000));
  while (lab_.home().now() < end && wrong_.empty()) {
    const bool gone = co_await take_member(member);
    if (gone) co_return true;
    co_await lab_.home().sleep_for(std::chrono::microseconds(random_.below(3000)));
  }
  co_return false;
}

Task<bool> PoolLoad::take_member(StoreIndex member) {
  const Error removed = co_await lab_.pool().remove_store(member, {});
  if (removed == Error::kNone) members_.erase(member);
  // The member still has pages or requests in flight.
  const bool stays = removed == Error::kNotReady;
  if (removed != Error::kNone && !stays) fail(fmt::format("{}", describe(removed)));
  co_return !stays;
}

// The background ----------------------------------------------------------------------------------

Task<void> PoolLoad::run_background() {
  while (running_ > 0 && wrong_.empty()) {
    co_await lab_.home().sleep_for(std::chrono::microseconds(random_.below(3000)));
    co_await background_step();
  }
  background_runs_ = false;
}

// Clones and restored volumes are made whole now and then, and the map is verified.
Task<void> PoolLoad::keep_house() {
  pool::Housekeeper housekeeper(
      lab_.pool(),
      {.busy_bytes_per_second = 0, .most_parents = 2, .pause = std::chrono::milliseconds(1)});
  housekeeper_ = &housekeeper;
  housekeeper.start();
  while (running_ > 0 && wrong_.empty()) {
    co_await lab_.home().sleep_for(std::chrono::microseconds(random_.below(20'000)));
    const Name name = pick_volume();
    if (!name.empty() && random_.chance(0.2)) {
      (void)housekeeper.fill(volumes_.at(name)->branch().id());
    } else if (random_.chance(0.2)) {
      const pool::CheckReport report = co_await lab_.pool().check();
      if (!report.wrong.empty() && wrong_.empty()) wrong_ = "check: " + report.wrong.front();
    }
  }
  (void)co_await housekeeper.stop(kNever);
  housekeeper_ = nullptr;
  background_runs_ = false;
}

std::string PoolLoad::standing(Duration age) const {
  std::string text = "the administrator: " + doing_;
  for (const Deed& deed : under_way_) {
    if (lab_.home().now() - deed.begun >= age) text += "\n  " + deed.what;
  }
  if (housekeeper_ == nullptr) return text;
  for (const pool::HousekeepingView& view : housekeeper_->views()) {
    text += fmt::format("\n  housekeeping {}: store {}, branch {}, {} pages left, {}",
                        static_cast<int>(view.kind), view.store, view.branch, view.left_pages,
                        describe(view.stuck));
  }
  return text;
}

Task<void> PoolLoad::background_step() {
  const std::uint64_t drawn = random_.below(13);
  const Name name = pick_volume();
  if (name.empty() || model_.volumes.at(name).paused) co_return;
  const BranchId branch = volumes_.at(name)->branch().id();
  Error error = Error::kNone;
  if (drawn < 5) {
    const auto more = co_await lab_.pool().sweep(6);
    if (!more.has_value()) error = more.error();
  } else if (drawn < 6) {
    const auto more = co_await lab_.pool().flatten(1, 3);
    if (!more.has_value()) error = more.error();
  } else if (drawn < 8) {
    co_await lab_.pool().trim(8);
  } else if (drawn < 9) {
    const pool::CheckReport report = co_await lab_.pool().check();
    if (!report.wrong.empty()) fail("check: " + report.wrong.front());
  } else if (drawn < 10) {
    PageNumber next = 0;
    const auto more = co_await lab_.pool().make_independent(branch, &next, 4);
    if (!more.has_value()) error = more.error();
  } else {
    const auto page = static_cast<PageNumber>(random_.below(4));
    const StoreIndex target =
        *std::next(members_.begin(), static_cast<long>(random_.below(members_.size())));
    error = co_await lab_.pool().move_page(branch, page, target);
  }
  const bool passes = error == Error::kNotFound || error == Error::kNotReady;
  if (!passes) accept("background", error);
}

}  // namespace sandbay::simtest
