// The model's rules, as the header states them.
#include "pool_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <cstring>

namespace sandbay::simtest {

std::size_t ModelCell::acknowledged() const {
  std::size_t last = versions.size() - 1;
  while (last > 0 && versions[last].ended == 0) --last;
  return last;
}

void ModelCell::become(std::uint32_t number, std::uint64_t now) {
  versions.assign(1, {.number = number, .begun = now, .ended = now});
  forced = 0;
}

// What no crash brings back and no snapshot under way may show.
void PoolModel::forget_old(ModelCell& cell) const {
  if (snapshots_under_way > 0 || cell.forced == 0) return;
  cell.versions.erase(cell.versions.begin(),
                      cell.versions.begin() + static_cast<std::ptrdiff_t>(cell.forced));
  cell.forced = 0;
}

void PoolModel::begin(const std::string& name, std::uint64_t first, std::uint64_t count,
                      std::uint32_t number) {
  ModelVolume& volume = volumes.at(name);
  ++volume.in_flight;
  const std::uint64_t now = tick();
  for (std::uint64_t i = first; i < first + count; ++i) {
    assert(!volume.cells[i].busy);
    volume.cells[i].busy = true;
    volume.cells[i].versions.push_back({.number = number, .begun = now, .ended = 0});
  }
}

void PoolModel::end(const std::string& name, std::uint64_t first, std::uint64_t count, bool done,
                    bool forced) {
  ModelVolume& volume = volumes.at(name);
  --volume.in_flight;
  const std::uint64_t now = tick();
  for (std::uint64_t i = first; i < first + count; ++i) {
    ModelCell& cell = volume.cells[i];
    cell.busy = false;
    if (!done) continue;
    cell.versions.back().ended = now;
    if (forced) cell.forced = cell.versions.size() - 1;
    forget_old(cell);
  }
}

std::vector<std::uint64_t> PoolModel::begin_flush(const std::string& name) const {
  std::vector<std::uint64_t> begun;
  for (const ModelCell& cell : volumes.at(name).cells) {
    begun.push_back(cell.versions[cell.acknowledged()].begun);
  }
  return begun;
}

void PoolModel::end_flush(const std::string& name, const std::vector<std::uint64_t>& begun) {
  ModelVolume& volume = volumes.at(name);
  for (std::size_t i = 0; i < begun.size(); ++i) {
    ModelCell& cell = volume.cells[i];
    for (std::size_t at = cell.forced; at < cell.versions.size(); ++at) {
      if (cell.versions[at].begun == begun[i]) cell.forced = at;
    }
    forget_old(cell);
  }
}

void PoolModel::begin_snapshot(const std::string& name, const std::string& of,
                               std::uint64_t group) {
  ++snapshots_under_way;
  ModelSnapshot& snapshot = snapshots[name];
  snapshot.volume = of;
  snapshot.group = group;
  for (const ModelCell& cell : volumes.at(of).cells) {
    const auto from = static_cast<std::ptrdiff_t>(cell.acknowledged());
    snapshot.cells.emplace_back(cell.versions.begin() + from, cell.versions.end());
  }
}

void PoolModel::end_snapshot(const std::string& name) {
  settle_snapshot(name);
  --snapshots_under_way;
  snapshots.at(name).presence = Presence::kThere;
}

// Versions that were begun meanwhile may be in it, and when others ended is known better now.
void PoolModel::settle_snapshot(const std::string& name) {
  ModelSnapshot& snapshot = snapshots.at(name);
  const ModelVolume& volume = volumes.at(snapshot.volume);
  for (std::size_t i = 0; i < snapshot.cells.size(); ++i) {
    const std::uint64_t from = snapshot.cells[i].front().begun;
    snapshot.cells[i].clear();
    for (const Version& version : volume.cells[i].versions) {
      if (version.begun >= from) snapshot.cells[i].push_back(version);
    }
  }
}

std::string PoolModel::check_snapshot(const std::string& name,
                                      const std::vector<std::uint32_t>& found,
                                      std::map<std::uint64_t, Moment>& moments) {
  ModelSnapshot& snapshot = snapshots.at(name);
  if (found.size() != snapshot.cells.size()) {
    return fmt::format("snapshot {} has {} cells, should have {}", name, found.size(),
                       snapshot.cells.size());
  }
  if (snapshot.seen.has_value()) {
    const auto [now, before] = std::ranges::mismatch(found, *snapshot.seen);
    if (now == found.end()) return {};
    return fmt::format("snapshot {}, cell {}: {}, and was {} when it was read first", name,
                       now - found.begin(), *now, *before);
  }
  Moment& moment = moments[snapshot.group];
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::vector<Version>& versions = snapshot.cells[i];
    const auto matches = std::ranges::count(versions, found[i], &Version::number);
    if (matches == 0) {
      return fmt::format("snapshot {}, cell {}: {}, should be {} or one of {} later", name, i,
                         found[i], versions.front().number, versions.size() - 1);
    }
    // Of equal contents nobody knows which one it is.
    if (matches > 1) continue;
    const auto at = std::ranges::find(versions, found[i], &Version::number);
    moment.low = std::max(moment.low, at->begun);
    const auto next = at + 1;
    if (next != versions.end() && next->ended != 0) {
      moment.high = std::min(moment.high, next->ended);
    }
  }
  if (moment.low >= moment.high) return fmt::format("snapshot {} is of no single moment", name);
  snapshot.seen = found;
  return {};
}

// Bytes -------------------------------------------------------------------------------------------

void fill_model_cell(std::byte* cell, std::uint64_t index, std::uint32_t number) {
  const std::uint32_t words[2] = {number, number == 0 ? 0 : static_cast<std::uint32_t>(index)};
  for (std::size_t at = 0; at < kModelCellBytes; at += sizeof words) {
    std::memcpy(cell + at, words, sizeof words);
  }
}

std::uint32_t number_of_sector(const std::byte* sector, std::uint64_t cell) {
  std::uint32_t words[2];
  std::memcpy(words, sector, sizeof words);
  if (words[1] != (words[0] == 0 ? 0 : static_cast<std::uint32_t>(cell))) return kTorn;
  const bool even =
      std::memcmp(sector, sector + sizeof words, kModelSectorBytes - sizeof words) == 0;
  return even ? words[0] : kTorn;
}

std::vector<std::uint32_t> numbers_of_cells(const std::vector<std::byte>& bytes,
                                            std::uint64_t first) {
  std::vector<std::uint32_t> numbers(bytes.size() / kModelCellBytes);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::byte* const cell = bytes.data() + i * kModelCellBytes;
    numbers[i] = number_of_sector(cell, first + i);
    for (std::size_t at = 0; at < kModelCellBytes; at += kModelSectorBytes) {
      if (number_of_sector(cell + at, first + i) != numbers[i]) numbers[i] = kTorn;
    }
  }
  return numbers;
}

namespace {

std::string check_cell(const ModelCell& cell, const std::byte* bytes, std::uint64_t index,
                       bool power_cut) {
  const std::size_t from = power_cut ? cell.forced : cell.acknowledged();
  for (std::size_t at = 0; at < kModelCellBytes; at += kModelSectorBytes) {
    const std::uint32_t number = number_of_sector(bytes + at, index);
    bool right = false;
    for (std::size_t i = from; i < cell.versions.size(); ++i) {
      right = right || cell.versions[i].number == number;
    }
    if (right) continue;
    return fmt::format("cell {}, sector {}: {}, should be {} or one of {} later", index,
                       at / kModelSectorBytes, number, cell.versions[from].number,
                       cell.versions.size() - 1 - from);
  }
  return {};
}

std::string check_restored(const std::vector<std::uint32_t>& numbers,
                           const std::vector<std::byte>& bytes) {
  return numbers_of_cells(bytes, 0) == numbers ? "" : "nor what it was restored to";
}

}  // namespace

std::string check_volume(const ModelVolume& volume, const std::vector<std::byte>& bytes,
                         bool power_cut) {
  const std::size_t cells = bytes.size() / kModelCellBytes;
  static const ModelCell kNew;
  std::string wrong;
  if (cells != volume.cells.size() && cells != volume.grown_cells) {
    wrong = fmt::format("{} cells, should be {}", cells, volume.cells.size());
  }
  for (std::size_t i = 0; i < cells && wrong.empty(); ++i) {
    const ModelCell& cell = i < volume.cells.size() ? volume.cells[i] : kNew;
    wrong = check_cell(cell, bytes.data() + i * kModelCellBytes, i, power_cut);
  }
  if (wrong.empty() || !volume.restored.has_value()) return wrong;
  const std::string other = check_restored(*volume.restored, bytes);
  return other.empty() ? other : wrong + "; " + other;
}

}  // namespace sandbay::simtest
