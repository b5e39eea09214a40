// The hosts and the administrator.
#include "group_load.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "tests/unit/block/payload.h"

namespace sandbay::simtest {

namespace {

using Membership = GroupModel::Membership;

constexpr std::uint64_t kPageCells = (1U << 20) / kModelCellBytes;
constexpr std::uint64_t kBlocksOfCell = kModelCellBytes / 512;
constexpr std::size_t kMostVolumes = 3;
constexpr Duration kNotice = std::chrono::milliseconds(200);
constexpr std::size_t kMostSnapshots = 4;
constexpr std::size_t kMostSnapshotsOfRow = 13;  // They keep a row longer than eight parents.

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

std::string GroupModel::target(const std::string& volume) const {
  const auto found = targets.find(volume);
  return found == targets.end() ? target_of(volume) : found->second;
}

void GroupModel::rename() {
  const std::string before = *std::exchange(renamed, std::nullopt);
  const std::string after = *std::exchange(name, std::nullopt);
  const auto called = [&](const std::string& key) {
    return key == before                   ? after
           : key.starts_with(before + "/") ? after + key.substr(before.size())
                                           : key;
  };
  // Entries stay where they are: hosts have some in hand.
  const auto move_all = [&](auto& all) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : all) {
      if (called(key) != key) keys.push_back(key);
    }
    for (const std::string& key : keys) {
      auto node = all.extract(key);
      node.key() = called(key);
      all.insert(std::move(node));
    }
  };
  targets[before] = target(before);
  move_all(targets);
  move_all(volumes);
  move_all(snapshots);
  move_all(set);
  move_all(online);
  move_all(schedules);
  for (auto& [key, snapshot] : snapshots) snapshot.volume = called(snapshot.volume);
}

bool GroupLoad::accept(const char* what, Error error) {
  if (error == Error::kNone) return true;
  if (error != Error::kNoSpace) fail(fmt::format("{}: {}", what, describe(error)));
  return false;
}

bool GroupLoad::may_be_away(const Name& volume) const {
  const std::string& set = model_.set.at(volume);
  return set.empty() ? !lost_.empty() : set == "a" && lost_.contains("array1");
}

// Requests that waited for the image when it failed are refused; the map then does without it.
bool GroupLoad::is_image_failing() {
  if (!weak_ || lab_.shape().weak != GroupShape::Weak::kImage) return false;
  const TimePoint now = lab_.home().now();
  if (!image_noticed_) image_noticed_ = now;
  return now < *image_noticed_ + kNotice;
}

bool GroupLoad::accept(const char* what, const Name& volume, Error error) {
  if (error == Error::kNotReady && may_be_away(volume)) return false;
  if (error == Error::kHardware && is_image_failing()) return false;
  return accept(what, error);
}

template <class T>
bool GroupLoad::accept(const char* what, const group::Answer<T>& answer) {
  if (answer.has_value()) return true;
  const bool hardware = answer.error().message.contains(describe(Error::kHardware));
  if (hardware && is_image_failing()) return false;
  if (answer.error().code != group::Refusal::Code::kConflict) {
    fail(fmt::format("{}: {}", what, answer.error().message));
  }
  return false;
}

template <class T>
bool GroupLoad::accept(const char* what, const std::vector<Name>& volumes,
                       const group::Answer<T>& answer) {
  const bool refused = !answer.has_value() && answer.error().message.contains("a part of it is");
  if (refused &&
      std::ranges::any_of(volumes, [this](const Name& volume) { return may_be_away(volume); })) {
    return false;
  }
  return accept(what, answer);
}

Task<std::string> GroupLoad::go() {
  for (const char* const member : {"array1", "array2"}) {
    model_.members[member] = Membership::kInside;
  }
  for (const char* const member : {"array3", "array4"}) {
    model_.members[member] = Membership::kOutside;
  }
  co_await create();
  co_await create();
  for (unsigned i = 0; i < options_.hosts; ++i) {
    ++hosts_running_;
    spawn(run_host());
  }
  for (steps_ = 1; steps_ <= options_.administrator_steps && wrong_.empty(); ++steps_) {
    co_await lab_.home().sleep_for(std::chrono::microseconds(random_.below(4000)));
    co_await administrator_step();
    doing_ = "nothing";
  }
  administered_ = false;
  while (hosts_running_ > 0) co_await lab_.home().sleep_for(std::chrono::milliseconds(1));
  for (const auto& [name, disk] : disks_) co_await disk->disconnect();
  disks_.clear();
  co_return wrong_;
}

// Hosts -------------------------------------------------------------------------------------------

Task<void> GroupLoad::run_host() {
  for (unsigned i = 0; administered_ && wrong_.empty(); ++i) {
    const std::uint64_t most = i < options_.host_steps ? 3'000 : 300'000;
    co_await lab_.home().sleep_for(std::chrono::microseconds(random_.below(most)));
    co_await host_step();
  }
  --hosts_running_;
}

GroupLoad::Range GroupLoad::pick_range(const ModelVolume& volume) {
  Range range{.first = random_.below(volume.cells.size()), .count = 1};
  const std::uint64_t left = volume.cells.size() - range.first;
  range.count = random_.between(1, std::min<std::uint64_t>(left, random_.chance(0.2) ? 80 : 12));
  return range;
}

bool GroupLoad::is_free(const ModelVolume& volume, Range range) {
  for (std::uint64_t i = range.first; i < range.first + range.count; ++i) {
    if (volume.cells[i].busy) return false;
  }
  return true;
}

Task<void> GroupLoad::host_step() {
  const Name name = pick_volume(false);
  if (name.empty() || model_.volumes.at(name).paused || !wrong_.empty()) co_return;
  const ModelVolume& volume = model_.volumes.at(name);
  const std::uint64_t drawn = random_.below(100);
  Range range = pick_range(volume);
  const bool unmaps = drawn >= 62 && drawn < 76;
  if (unmaps && random_.chance(0.6)) {
    range.first = range.first / kPageCells * kPageCells;
    range.count = std::min<std::uint64_t>(volume.cells.size() - range.first, kPageCells);
  }
  if (!is_free(volume, range)) co_return;
  if (drawn < 62) {
    co_await write(name, range, random_.chance(0.4));
  } else if (unmaps) {
    co_await unmap(name, range);
  } else if (drawn < 86) {
    co_await flush(name);
  } else {
    co_await read(name, range);
  }
}

Task<void> GroupLoad::write(Name name, Range range, bool forced) {
  const std::shared_ptr<Disk> disk = disks_.at(name);
  const std::uint32_t number = ++model_.last_number;
  const bool weak = weak_;
  model_.begin(name, range.first, range.count, number);
  const Completion written = co_await testing::write_blocks(
      disk->unit(), range.first * kBlocksOfCell, content(range.first, range.count, number),
      testing::Cut::kAligned, random_, forced);
  const bool done = accept("write", name, written.error);
  model_.end(name, range.first, range.count, done, forced);
  if (done && forced && weak) promised(name);
}

Task<void> GroupLoad::unmap(Name name, Range range) {
  const std::shared_ptr<Disk> disk = disks_.at(name);
  model_.begin(name, range.first, range.count, 0);
  const bool zeroes = !disk->unit().geometry().unmap_zeroes || random_.chance(0.5);
  const Completion completion = co_await testing::do_without_data(
      disk->unit(), zeroes ? Operation::kWriteZeroes : Operation::kUnmap,
      blocks_of(range.first, range.count));
  const bool done = accept("unmap", name, completion.error);
  model_.end(name, range.first, range.count, done, false);
}

Task<void> GroupLoad::flush(Name name) {
  const std::shared_ptr<Disk> disk = disks_.at(name);
  ++model_.volumes.at(name).in_flight;
  const bool weak = weak_;
  const std::vector<std::uint64_t> begun = model_.begin_flush(name);
  const Completion flushed = co_await testing::do_without_data(disk->unit(), Operation::kFlush, {});
  const bool done = accept("flush", name, flushed.error);
  if (done) model_.end_flush(name, begun);
  --model_.volumes.at(name).in_flight;
  if (done && weak) promised(name);
}

// Nobody writes there meanwhile: it is what it must be.
Task<void> GroupLoad::read(Name name, Range range) {
  const std::shared_ptr<Disk> disk = disks_.at(name);
  ModelVolume& model = model_.volumes.at(name);
  ++model.in_flight;
  for (std::uint64_t i = 0; i < range.count; ++i) model.cells[range.first + i].busy = true;
  const Completion done = co_await testing::read_blocks(
      disk->unit(), blocks_of(range.first, range.count), testing::Cut::kAligned, random_);
  --model.in_flight;
  for (std::uint64_t i = 0; i < range.count; ++i) model.cells[range.first + i].busy = false;
  if (!accept("read", name, done.error)) co_return;
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

Task<void> GroupLoad::administrator_step() {
  static constexpr auto kChoices = std::to_array<Choice>({
      {9, "create", &GroupLoad::create},
      {7, "expand", &GroupLoad::expand},
      {7, "shrink", &GroupLoad::shrink},
      {8, "remove volume", &GroupLoad::remove_volume},
      {14, "snapshot", &GroupLoad::snapshot},
      {7, "clone", &GroupLoad::clone},
      {9, "restore", &GroupLoad::restore},
      {6, "remove snapshot", &GroupLoad::remove_snapshot},
      {8, "add member", &GroupLoad::add_member},
      {7, "remove member", &GroupLoad::remove_member},
      {3, "offline", &GroupLoad::take_offline},
      {2, "schedule", &GroupLoad::schedule},
      {2, "rename", &GroupLoad::rename},
      {4, "write snapshot", &GroupLoad::write_snapshot},
      {2, "make pool", &GroupLoad::make_pool},
      {5, "lose member", &GroupLoad::lose_member},
  });
  static constexpr auto kRowChoices = std::to_array<Choice>({
      {58, "restore again", &GroupLoad::restore_again},
      {6, "expand", &GroupLoad::expand},
      {6, "shrink", &GroupLoad::shrink},
      {4, "snapshot", &GroupLoad::snapshot},
      {6, "restore", &GroupLoad::restore},
      {9, "remove snapshot", &GroupLoad::remove_snapshot},
      {3, "clone", &GroupLoad::clone},
      {3, "remove volume", &GroupLoad::remove_volume},
      {5, "add member", &GroupLoad::add_member},
  });
  constexpr auto kSum = [](const auto& choices) {
    unsigned sum = 0;
    for (const Choice& choice : choices) sum += choice.weight;
    return sum;
  };
  static_assert(kSum(kChoices) == 100 && kSum(kRowChoices) == 100);
  if (lab_.shape().weak != GroupShape::Weak::kNothing && random_.chance(0.15)) {
    co_return co_await weaken_nvram();
  }
  std::uint64_t drawn = random_.below(100);
  const std::span<const Choice> choices =
      lab_.shape().rows ? std::span<const Choice>(kRowChoices) : kChoices;
  for (const Choice& choice : choices) {
    if (drawn >= choice.weight) {
      drawn -= choice.weight;
      continue;
    }
    doing_ = choice.name;
    co_await (this->*choice.step)();
    co_return;
  }
}

GroupLoad::Name GroupLoad::pick_volume(bool of_pool) {
  std::vector<Name> names;
  for (const auto& [name, disk] : disks_) {
    if (!of_pool || model_.set.at(name) != "solo") names.push_back(name);
  }
  return names.empty() ? Name() : names[random_.below(names.size())];
}

// `seen`: whose contents are known exactly.
GroupLoad::Name GroupLoad::pick_snapshot(bool seen) {
  std::vector<Name> names;
  for (const auto& [name, snapshot] : model_.snapshots) {
    if (!seen || snapshot.seen.has_value()) names.push_back(name);
  }
  return names.empty() ? Name() : names[random_.below(names.size())];
}

group::SnapshotName GroupLoad::named(const Name& snapshot) const {
  const std::size_t slash = snapshot.find('/');
  return {.volume = snapshot.substr(0, slash), .snapshot = snapshot.substr(slash + 1)};
}

// Hosts use it from now on. Its size may be another than they knew: they log in anew.
Task<void> GroupLoad::adopt(Name name) {
  ModelVolume& model = model_.volumes.at(name);
  model.presence = Presence::kThere;
  model_.online[name] = true;
  if (disks_.contains(name)) co_await disks_.at(name)->disconnect();
  auto disk = std::make_shared<Disk>(model_.target(name));
  const std::string wrong = co_await disk->connect(model.cells.size() * kModelCellBytes);
  disks_[name] = disk;
  if (!wrong.empty()) co_return fail(wrong);
  model.paused = false;
}

Task<void> GroupLoad::create() {
  if (disks_.size() >= kMostVolumes) co_return;
  const Name name = fmt::format("v{}", ++names_);
  const bool on_pool = random_.chance(0.85);
  const bool fixed =
      on_pool && random_.chance(0.25) && model_.members.at("array1") == Membership::kInside;
  const std::uint64_t cells =
      on_pool ? random_.between(kPageCells, 2 * kPageCells) : kPageCells * random_.between(1, 2);
  group::CreateVolumeRequest request;
  group::VolumeSpecification& s = request.specification;
  s.name = name;
  s.size_bytes = cells * kModelCellBytes;
  s.backing = on_pool ? group::Backing::kPool : group::Backing::kRaid;
  (on_pool ? s.pool : s.raid) = on_pool ? "p" : "solo";
  if (fixed) s.on = "a";
  s.thin = !on_pool || random_.chance(0.8);
  request.access.emplace_back();
  model_.volumes[name].cells.resize(cells);
  model_.set[name] = s.raid + s.on;
  const auto made = co_await lab_.group().create_volume(std::move(request));
  if (accept("create", made)) {
    co_await adopt(name);
  } else {
    model_.volumes.erase(name);
  }
}

Task<void> GroupLoad::expand() {
  const Name name = pick_volume(false);
  if (!name.empty()) co_await expand_one(name);
}

Task<void> GroupLoad::expand_one(Name name) {
  ModelVolume& volume = model_.volumes.at(name);
  const std::uint64_t more =
      model_.set.at(name) == "solo" ? kPageCells : random_.between(1, kPageCells);
  const std::uint64_t cells = volume.cells.size() + more;
  volume.grown_cells = cells;
  const auto grown =
      co_await lab_.group().change_volume(name, {.size_bytes = cells * kModelCellBytes});
  if (accept("expand", grown)) {
    co_await pause(name);
    volume.cells.resize(cells);
    co_await adopt(name);
  }
  volume.grown_cells = 0;
}

// Nothing of the volume is in flight afterwards, and nothing begins.
Task<void> GroupLoad::pause(Name name) {
  model_.volumes.at(name).paused = true;
  while (model_.volumes.at(name).in_flight > 0) {
    co_await lab_.home().sleep_for(std::chrono::microseconds(100));
  }
}

Task<void> GroupLoad::shrink() {
  const Name name = pick_volume(true);
  if (!name.empty()) co_await shrink_one(name);
}

Task<void> GroupLoad::shrink_one(Name name) {
  if (model_.volumes.at(name).cells.size() <= kPageCells) co_return;
  co_await pause(name);
  ModelVolume& volume = model_.volumes.at(name);
  const std::uint64_t cells = random_.between(kPageCells, volume.cells.size() - 1);
  model_.shrinking[name] = cells;
  const auto shrunk = co_await lab_.group().change_volume(
      name, {.size_bytes = cells * kModelCellBytes, .force = true});
  if (accept("shrink", {name}, shrunk)) {
    volume.cells.resize(cells);
    model_.shrinking.erase(name);
    if (on_answer) on_answer();
  } else if (shrunk.error().code == group::Refusal::Code::kFailed) {
    // What lies behind the smaller size may be lost.
    const std::uint64_t now = model_.tick();
    for (std::uint64_t i = cells; i < volume.cells.size(); ++i) {
      volume.cells[i].versions.push_back({.number = 0, .begun = now, .ended = 0});
    }
  }
  model_.shrinking.erase(name);
  co_await adopt(name);
}

Task<void> GroupLoad::remove_volume() {
  if (disks_.size() < 2) co_return;
  const Name name = pick_volume(false);
  co_await pause(name);
  co_await disks_.at(name)->disconnect();
  disks_.erase(name);
  model_.volumes.at(name).presence = Presence::kRemoving;
  std::vector<Name> gone;
  for (auto& [snapshot, model] : model_.snapshots) {
    if (model.volume != name) continue;
    model.presence = Presence::kRemoving;
    gone.push_back(snapshot);
  }
  const auto removed = co_await lab_.group().delete_volume(name, true);
  if (!removed.has_value()) co_return fail(removed.error().message);
  model_.volumes.erase(name);
  for (const Name& snapshot : gone) {
    model_.snapshots.erase(snapshot);
    model_.volumes.erase(snapshot);
  }
}

Task<void> GroupLoad::snapshot() {
  if (model_.snapshots.size() >= kMostSnapshots) co_return co_await remove_snapshot();
  std::vector<Name> volumes;
  for (const auto& [volume, disk] : disks_) {
    if (model_.set.at(volume) == "solo" || (!volumes.empty() && random_.chance(0.5))) continue;
    volumes.push_back(volume);
  }
  if (!volumes.empty()) co_await take_snapshots(volumes, fmt::format("s{}", ++names_));
}

Task<void> GroupLoad::take_snapshots(std::vector<Name> volumes, Name called) {
  group::CreateSnapshotsRequest request{.volumes = volumes, .name = called};
  std::vector<Name> names;
  const std::uint64_t group = ++groups_;
  for (const Name& volume : volumes) {
    names.push_back(volume + "/" + called);
    model_.begin_snapshot(names.back(), volume, group);
  }
  const auto taken = co_await lab_.group().create_snapshots(std::move(request));
  if (!accept("snapshot", volumes, taken)) {
    for (const Name& name : names) model_.snapshots.erase(name);
    model_.snapshots_under_way -= static_cast<unsigned>(names.size());
    co_return;
  }
  for (const Name& name : names) model_.end_snapshot(name);
  if (random_.chance(0.4)) co_return;
  for (const Name& name : names) co_await look_at(name);
}

Task<void> GroupLoad::look_at(Name name) {
  const auto online = co_await lab_.group().online_snapshot(named(name), false);
  if (!online.has_value()) co_return fail(online.error().message);
  Disk disk(online->target);
  const std::uint64_t bytes = model_.snapshots.at(name).cells.size() * kModelCellBytes;
  const std::string there = co_await disk.connect(bytes);
  if (there.empty()) {
    const Completion done = co_await testing::read_blocks(
        disk.unit(), {.first = 0, .block_count = bytes / 512}, testing::Cut::kAligned, random_);
    // What is kept for it lies anywhere.
    const bool away = done.error == Error::kNotReady && !lost_.empty();
    if (!away && accept("reading a snapshot", done.error)) {
      const auto found = numbers_of_cells(testing::content_of(done.data), 0);
      const std::string wrong = model_.check_snapshot(name, found, moments_);
      if (!wrong.empty()) fail(wrong);
    }
  } else {
    fail(there);
  }
  co_await disk.disconnect();
  const auto offline = co_await lab_.group().offline_snapshot(named(name), true);
  if (!offline.has_value()) fail(offline.error().message);
}

Task<void> GroupLoad::clone() {
  const Name of = pick_snapshot(true);
  if (of.empty() || disks_.size() >= kMostVolumes) co_return;
  const Name name = fmt::format("v{}", ++names_);
  ModelVolume& volume = model_.volumes[name];
  model_.set[name];
  for (const std::uint32_t number : known(model_.snapshots.at(of).seen)) {
    volume.cells.emplace_back().become(number, model_.clock);
  }
  const auto made = co_await lab_.group().clone_snapshot(named(of), name, random_.chance(0.3));
  if (!accept("clone", made)) {
    model_.volumes.erase(name);
    co_return;
  }
  volume.presence = Presence::kThere;
  const auto opened = co_await lab_.group().add_access(name, {});
  if (!opened.has_value()) fail(opened.error().message);
  co_await adopt(name);
}

Task<void> GroupLoad::restore() {
  const Name of = pick_snapshot(false);
  if (of.empty()) co_return;
  if (named(of).volume == row_) row_length_ = 0;
  (void)co_await restore_to(of);
}

// True: the volume is restored.
Task<bool> GroupLoad::restore_to(Name of) {
  const Name name = named(of).volume;
  co_await look_at(of);
  if (!wrong_.empty() || !model_.snapshots.at(of).seen.has_value()) co_return false;
  co_await pause(name);
  model_.set.at(name).clear();
  ModelVolume& volume = model_.volumes.at(name);
  volume.restored = model_.snapshots.at(of).seen;
  const auto restored = co_await lab_.group().restore_snapshot(named(of), true);
  const bool done = accept("restore", restored);
  if (done) {
    const std::vector<std::uint32_t> numbers = known(volume.restored);
    volume.cells.assign(numbers.size(), {});
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      volume.cells[i].become(numbers[i], model_.tick());
    }
  }
  volume.restored.reset();
  co_await adopt(name);
  co_return done;
}

// The restored volume reads through its newest snapshot, so every restore makes the row of parents
// longer. The sizes differ along the row.
Task<void> GroupLoad::restore_again() {
  if (!disks_.contains(row_)) {
    row_ = pick_volume(true);
    row_length_ = 0;
  }
  if (row_.empty()) co_return;
  if (model_.snapshots.size() >= kMostSnapshotsOfRow) co_await remove_snapshot();
  co_await resize(row_);
  const Name newest = fmt::format("{}/s{}", row_, ++names_);
  const std::vector<Name> volumes(1, row_);
  co_await take_snapshots(volumes, named(newest).snapshot);
  if (!model_.snapshots.contains(newest) || !wrong_.empty()) co_return;
  co_await resize(row_);
  if (!wrong_.empty()) co_return;
  doing_ = "restore again";
  const bool restored = co_await restore_to(newest);
  if (restored) longest_row_ = std::max(longest_row_, ++row_length_);
}

Task<void> GroupLoad::resize(Name volume) {
  const std::uint64_t drawn = random_.below(10);
  if (drawn < 2) {
    doing_ = "shrink";
    co_await shrink_one(volume);
  } else if (drawn < 4 && model_.volumes.at(volume).cells.size() < 3 * kPageCells) {
    doing_ = "expand";
    co_await expand_one(volume);
  }
}

Task<void> GroupLoad::remove_snapshot() {
  const Name name = pick_snapshot(false);
  if (name.empty()) co_return;
  model_.snapshots.at(name).presence = Presence::kRemoving;
  const auto removed = co_await lab_.group().delete_snapshot(named(name), false);
  if (!removed.has_value()) co_return fail(removed.error().message);
  model_.snapshots.erase(name);
  model_.volumes.erase(name);
}

// Nobody else has it meanwhile.
Task<void> GroupLoad::write_snapshot() {
  const Name name = pick_snapshot(true);
  if (name.empty()) co_return;
  ModelVolume& volume = model_.volumes[name];
  volume.paused = true;
  if (volume.cells.empty()) {
    for (const std::uint32_t number : known(model_.snapshots.at(name).seen)) {
      volume.cells.emplace_back().become(number, model_.clock);
    }
    model_.set[name];
  }
  const auto online = co_await lab_.group().online_snapshot(named(name), true);
  if (!online.has_value()) co_return fail(online.error().message);
  auto disk = std::make_shared<Disk>(online->target);
  const std::string wrong = co_await disk->connect(volume.cells.size() * kModelCellBytes);
  if (!wrong.empty()) fail(wrong);
  disks_[name] = disk;
  volume.paused = !wrong.empty();
  co_await lab_.home().sleep_for(std::chrono::milliseconds(random_.between(1, 20)));
  co_await pause(name);
  disks_.erase(name);
  co_await disk->disconnect();
  const auto offline = co_await lab_.group().offline_snapshot(named(name), true);
  if (!offline.has_value()) fail(offline.error().message);
}

Task<void> GroupLoad::rename() {
  const Name before = pick_volume(false);
  if (before.empty()) co_return;
  const Name after = fmt::format("v{}", ++names_);
  co_await pause(before);
  model_.renamed = before;
  model_.name = after;
  const auto renamed = co_await lab_.group().change_volume(before, {.name = after});
  if (!accept("rename", renamed)) co_return;
  model_.rename();
  const auto disk = disks_.extract(before);
  disks_[after] = disk.mapped();
  model_.volumes.at(after).paused = false;
}

// Of a member that is in none, and away again.
Task<void> GroupLoad::make_pool() {
  // Nothing says when its map needs no NVRAM: hosts do not use it.
  if (lab_.shape().weak == GroupShape::Weak::kBattery) co_return;
  const auto free = std::ranges::find(model_.members, Membership::kOutside,
                                      [](const auto& member) { return member.second; });
  if (free == model_.members.end()) co_return;
  free->second = Membership::kComing;
  model_.second_pool = Presence::kMaking;
  const auto made = co_await lab_.group().create_pool(
      {.name = "q", .members = {free->first}, .page_bytes = std::uint64_t{1} << 20});
  if (!accept("make pool", made)) co_return;
  model_.second_pool = Presence::kThere;
  co_await lab_.home().sleep_for(std::chrono::milliseconds(random_.below(1500)));
  model_.second_pool = Presence::kRemoving;
  const auto removed = co_await lab_.group().delete_pool("q");
  if (!removed.has_value()) co_return fail(removed.error().message);
  model_.second_pool.reset();
  free->second = Membership::kOutside;
}

Task<void> GroupLoad::add_member() {
  for (auto& [member, state] : model_.members) {
    if (state != Membership::kOutside) continue;
    state = Membership::kComing;
    const auto added = co_await lab_.group().add_member(member, "p");
    state = accept("add member", added) ? Membership::kInside : Membership::kOutside;
    co_return;
  }
}

// It is seen off, or stays after all.
Task<void> GroupLoad::remove_member() {
  std::vector<std::string> inside;
  for (const auto& [member, state] : model_.members) {
    if (state == Membership::kInside) inside.push_back(member);
  }
  if (inside.size() < 2) co_return;
  const std::string member = inside[random_.below(inside.size())];
  Membership& state = model_.members.at(member);
  state = Membership::kAsked;
  // Also volumes that are fixed to it move elsewhere.
  for (auto& [volume, set] : model_.set) {
    if (set == "a" && member == "array1") set.clear();
  }
  const auto asked = co_await lab_.group().remove_member(member);
  state = accept("remove member", asked) ? Membership::kLeaving : Membership::kInside;
  if (state == Membership::kInside) co_return;
  const bool gives_up = random_.chance(0.2);
  if (!gives_up) {
    const bool left = co_await lab_.left(member);
    if (left) state = Membership::kOutside;
    if (left) co_return;
  }
  state = Membership::kComing;
  const auto stays = co_await lab_.group().add_member(member, "p");
  state = Membership::kInside;
  accept("keep member", stays);
}

Task<void> GroupLoad::take_offline() {
  const Name name = pick_volume(false);
  if (name.empty()) co_return;
  co_await pause(name);
  for (const bool online : {false, true}) {
    model_.online.at(name).reset();
    const auto changed = co_await lab_.group().change_volume(name, {.online = online});
    if (!accept("online", changed)) co_return;
    model_.online.at(name) = online;
    const Completion done = co_await testing::read_blocks(disks_.at(name)->unit(), blocks_of(0, 1),
                                                          testing::Cut::kAligned, random_);
    if (!online && done.error != Error::kNotReady) {
      fail(fmt::format("offline, it reads with {}", describe(done.error)));
    }
  }
  // A host that has asked meanwhile whether it is ready finds out at its next look.
  co_await wait_for_volumes();
  co_await lab_.home().sleep_for(std::chrono::milliseconds(100));
  co_await wait_for_volumes();
  model_.volumes.at(name).paused = false;
}

// All its drives are away at once, and come back. A set that nobody used meanwhile finds out when
// it is used; until then it may do that at any time.
Task<void> GroupLoad::lose_member() {
  if (!lab_.faults()) co_return;
  std::vector<Name> inside;
  for (const auto& [member, state] : model_.members) {
    if (state == Membership::kInside) inside.push_back(member);
  }
  const Name member = inside[random_.below(inside.size())];
  const Name set(1, static_cast<char>('a' + (member.back() - '1')));
  const std::size_t before = co_await times_offline(set);
  lost_.insert(member);
  const auto away = std::chrono::milliseconds(random_.between(5, 3000));
  const auto added = co_await lab_.group().add_faults(
      {fmt::format("at=enclosure:{} do=shelf.loss for={}ms", member, away.count())});
  if (!added.has_value()) co_return fail(added.error().message);
  co_await lab_.home().sleep_for(away);
  co_await wait_for_member(member);
  co_await wait_for_volumes();
  co_await lab_.home().sleep_for(std::chrono::seconds(1));  // For what had failed before.
  co_await wait_for_member(member);
  const std::size_t now = co_await times_offline(set);
  if (now > before) lost_.erase(member);
  const auto cleared = co_await lab_.group().clear_fault("");
  if (!cleared.has_value()) fail(cleared.error().message);
}

Task<void> GroupLoad::wait_for_member(Name member) {
  for (int i = 0; i < 300; ++i) {
    const auto shown = co_await lab_.group().show_member(member);
    if (!shown.has_value()) co_return fail(shown.error().message);
    if (shown->health != "missing") co_return;
    co_await lab_.home().sleep_for(std::chrono::milliseconds(100));
  }
  fail(fmt::format("{} does not come back", member));
}

Task<std::size_t> GroupLoad::times_offline(Name set) {
  const auto events = co_await lab_.group().list_events(0);
  co_return static_cast<std::size_t>(std::ranges::count_if(
      events, [&](const auto& event) { return event.kind == "set offline" && event.set == set; }));
}

// They come back by themselves.
Task<void> GroupLoad::wait_for_volumes() {
  for (const auto& [name, disk] : std::map(disks_)) {
    Error error = Error::kNotReady;
    for (int i = 0; i < 300 && error == Error::kNotReady; ++i) {
      const Completion done = co_await testing::read_blocks(
          disk->unit(), {.first = 0, .block_count = disk->unit().geometry().block_count},
          testing::Cut::kAligned, random_);
      error = done.error;
      if (error != Error::kNone) co_await lab_.home().sleep_for(std::chrono::milliseconds(100));
    }
    if (error != Error::kNone)
      fail(fmt::format("{} does not come back: {}", name, describe(error)));
  }
}

// Snapshots that a schedule takes are not held against the model, and are taken away again.
Task<void> GroupLoad::schedule() {
  const Name name = pick_volume(true);
  if (name.empty()) co_return;
  model_.schedules[name] = Presence::kMaking;
  const auto made = co_await lab_.group().create_schedule(
      {.name = "often", .volume = name, .every = std::chrono::seconds(2), .keep = 2});
  if (!made.has_value()) co_return fail(made.error().message);
  model_.schedules[name] = Presence::kThere;
  co_await lab_.home().sleep_for(std::chrono::seconds(random_.between(1, 8)));
  model_.schedules[name] = Presence::kRemoving;
  const auto removed = co_await lab_.group().delete_schedule(name, "often");
  if (!removed.has_value()) co_return fail(removed.error().message);
  model_.schedules.erase(name);
  co_await remove_scheduled(name);
}

Task<void> GroupLoad::remove_scheduled(Name volume) {
  const auto snapshots = co_await lab_.group().list_snapshots(volume);
  if (!snapshots.has_value()) co_return fail(snapshots.error().message);
  for (const group::SnapshotInfo& snapshot : *snapshots) {
    if (snapshot.schedule.empty()) continue;
    const auto removed =
        co_await lab_.group().delete_snapshot({.volume = volume, .snapshot = snapshot.name}, true);
    if (!removed.has_value()) fail(removed.error().message);
  }
}

// The NVRAM ---------------------------------------------------------------------------------------

// A flush or a forced write that is answered later must not depend on the part that failed.
Task<void> GroupLoad::weaken_nvram() {
  using Weak = GroupShape::Weak;
  const Weak weak = lab_.shape().weak;
  doing_ = "weaken NVRAM";
  if (weak == Weak::kBattery) {
    co_return co_await change_battery();
  }
  if (!weak_ && weak == Weak::kImage) lab_.fail_image();
  if (!weak_ && weak == Weak::kMirror) {
    model_.mirror_failed = true;
    lab_.fail_mirror();
  }
  weak_ = true;
}

// The battery gets low, or good again. If it is low, a cache writes everything to the drives.
Task<void> GroupLoad::change_battery() {
  if (weak_) {
    weak_ = false;
    model_.nvram_needless = false;
    lab_.set_battery(nvram::BatteryState::kGood);
    co_return;
  }
  weak_ = true;
  nvram_empty_ = !lab_.shape().cached;
  lab_.set_battery(nvram::BatteryState::kLow);
  for (int i = 0; i < 1000 && !nvram_empty_; ++i) {
    co_await lab_.home().sleep_for(std::chrono::milliseconds(10));
    const auto cache = co_await lab_.group().show_cache();
    nvram_empty_ = cache.writes == 0;
  }
  if (!nvram_empty_) fail("the NVRAM still holds writes");
  // Hosts flush only by chance.
  for (const auto& [name, disk] : std::map(disks_)) co_await flush(name);
}

// The request began while the part had failed. The map of the pool is no matter of other volumes.
void GroupLoad::promised(const Name& volume) {
  if (!weak_ || model_.set.at(volume) == "solo") return;
  const bool battery = lab_.shape().weak == GroupShape::Weak::kBattery;
  model_.nvram_needless = model_.nvram_needless || (battery && nvram_empty_);
  if (on_answer) on_answer();
}

}  // namespace sandbay::simtest
