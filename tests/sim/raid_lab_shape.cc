// What the layout says, worked out anew.
#include <bit>
#include <cassert>

#include <fmt/core.h>

#include "raid_lab.h"

namespace sandbay::raidtest {

using raid::Level;

unsigned LabShape::group_count() const {
  switch (level) {
    case Level::kRaid10:
      return groups != 0 ? groups : drives / 2;
    case Level::kRaid50:
    case Level::kRaid60:
      return groups != 0 ? groups : 2;
    case Level::kRaid0:
    case Level::kConcatenation:
      return drives;
    default:
      return 1;
  }
}

bool LabShape::mirrored() const { return level == Level::kRaid1 || level == Level::kRaid10; }

unsigned LabShape::redundancy() const {
  switch (level) {
    case Level::kRaid1:
    case Level::kRaid10:
      return width() - 1;
    case Level::kRaid5:
    case Level::kRaid50:
      return 1;
    case Level::kRaid6:
    case Level::kRaid60:
      return 2;
    default:
      return 0;
  }
}

std::uint64_t LabShape::block_count() const {
  return stripe_count() * data_chunks() * strip_blocks();
}

std::uint64_t LabShape::data_offset_bytes() const {
  constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
  const std::uint64_t journal = journaled() && !nvram ? journal_bytes : 0;
  return kMebibyte + (journal + kMebibyte - 1) / kMebibyte * kMebibyte;
}

std::uint64_t LabShape::drive_bytes() const {
  const std::uint64_t data = std::uint64_t{strips} * strip_bytes;
  if (!integrity) return data_offset_bytes() + data;
  // A block of 4 KiB for 240 cells of 4 KiB.
  constexpr std::uint64_t kBlock = 4096;
  const std::uint64_t cells = (data + kBlock - 1) / kBlock;
  return data_offset_bytes() + data + (cells + 239) / 240 * kBlock;
}

bool LabShape::survives(std::uint64_t missing_roles) const {
  for (unsigned group = 0; group < group_count(); ++group) {
    unsigned missing = 0;
    for (unsigned member = 0; member < width(); ++member) {
      missing += (missing_roles >> (group * width() + member) & 1) != 0;
    }
    if (missing > redundancy()) return false;
  }
  return true;
}

std::string LabShape::name() const {
  return fmt::format("{} of {} drives in {} groups, strip {}, {}{}", raid::describe(level), drives,
                     group_count(), strip_bytes,
                     !journaled() ? "no journal"
                     : !nvram     ? "journal on drives"
                                  : "journal in NVRAM",
                     integrity ? ", integrity" : "");
}

// Left-symmetric: P moves one drive to the left with every stripe, the rest follows it.
unsigned LabShape::role(std::uint64_t stripe, unsigned member) const {
  assert(level != Level::kConcatenation);
  const unsigned w = width();
  const auto first = static_cast<unsigned>(stripe % group_count()) * w;
  if (!parity()) return first + member;
  const auto number = static_cast<unsigned>(stripe / group_count() % w);
  const unsigned p = w - 1 - number;
  const unsigned k = data_chunks();
  if (member == k) return first + p;
  if (redundancy() == 1) return first + (p + 1 + member) % w;
  if (member == k + 1) return first + (p + 1) % w;
  return first + (p + 2 + member) % w;
}

BlockModel new_model(const LabShape& shape) {
  return BlockModel(shape.block_count(), shape.journaled());
}

LabState blank_state(const LabShape& shape) {
  LabState state;
  for (unsigned i = 0; i < shape.drives; ++i) {
    LabDrive drive{.state = {}, .name = fmt::format("d{}", i), .role = static_cast<int>(i)};
    drive.state.visible.resize(shape.drive_bytes());
    drive.state.durable.resize(shape.drive_bytes());
    state.drives.push_back(std::move(drive));
  }
  if (shape.nvram) state.board.emplace(std::uint64_t{320} << 10);
  return state;
}

}  // namespace sandbay::raidtest
