// Layout's arithmetic. What always holds: lba(position(x)) == x, and on_drive() undoes role() and
// drive_lba(); every block of the set and every strip of a used data area is met exactly once.
#include "raid/layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cctype>
#include <iterator>

namespace sandbay::raid {
namespace {

// What each level is made of.
struct LevelRules {
  Level level;
  std::string_view name;
  unsigned least_drives;
  unsigned most_drives;
  unsigned parity;          // Parity chunks of a stripe.
  bool grouped;             // Drives are divided into groups that the configuration counts.
  unsigned least_in_group;  // Where grouped.
};

constexpr std::array<LevelRules, 9> kRules{{
    {Level::kJbod, "jbod", 1, 1, 0, false, 0},
    {Level::kConcatenation, "concat", 1, kMostDrives, 0, false, 0},
    {Level::kRaid0, "raid0", 1, kMostDrives, 0, false, 0},
    {Level::kRaid1, "raid1", 2, kMostDrives, 0, false, 0},
    {Level::kRaid5, "raid5", 3, kMostDrives, 1, false, 0},
    {Level::kRaid6, "raid6", 4, kMostDrives, 2, false, 0},
    {Level::kRaid10, "raid10", 4, kMostDrives, 0, true, 2},
    {Level::kRaid50, "raid50", 6, kMostDrives, 1, true, 3},
    {Level::kRaid60, "raid60", 8, kMostDrives, 2, true, 4},
}};

const LevelRules* rules_of(Level level) {
  const auto found = std::ranges::find(kRules, level, &LevelRules::level);
  return found == kRules.end() ? nullptr : &*found;
}

// Nothing, or what is wrong with the number of drives and groups.
std::string check_drives(const LevelRules& rules, const Shape& shape) {
  if (shape.drive_count < rules.least_drives || shape.drive_count > rules.most_drives) {
    const std::string accepted =
        rules.least_drives == rules.most_drives
            ? fmt::format("exactly {} drive", rules.least_drives)
            : fmt::format("{} to {} drives", rules.least_drives, rules.most_drives);
    return fmt::format("{} takes {}, not {}", rules.name, accepted, shape.drive_count);
  }
  if (shape.drive_blocks.size() != shape.drive_count) {
    return fmt::format("the sizes of {} drives are given for {}", shape.drive_blocks.size(),
                       shape.drive_count);
  }
  return {};
}

// Whether levels that are not divided by the configuration get the group count they have anyway.
bool implied_group_count(const Shape& shape) {
  if (shape.group_count <= 1) return true;
  const bool each_alone = shape.level == Level::kRaid0 || shape.level == Level::kConcatenation;
  return each_alone && shape.group_count == shape.drive_count;
}

unsigned default_groups(const Shape& shape) {
  return shape.level == Level::kRaid10 ? shape.drive_count / 2 : 2;
}

std::string check_groups(const LevelRules& rules, const Shape& shape) {
  if (!rules.grouped) {
    if (implied_group_count(shape)) return {};
    return fmt::format("{} is not divided into groups; leave their number out, and not {}",
                       rules.name, shape.group_count);
  }
  const unsigned groups = shape.group_count == 0 ? default_groups(shape) : shape.group_count;
  const unsigned most = shape.drive_count / rules.least_in_group;
  if (groups < 2 || groups > most) {
    const std::string accepted = most == 2 ? std::string("2") : fmt::format("2 to {}", most);
    return fmt::format("{} of {} drives takes {} groups of at least {} drives, not {}", rules.name,
                       shape.drive_count, accepted, rules.least_in_group, groups);
  }
  if (shape.drive_count % groups != 0) {
    return fmt::format(
        "{} drives cannot be divided into {} groups of {}: a multiple of {} is "
        "accepted",
        shape.drive_count, groups, rules.name, groups);
  }
  return {};
}

std::string check_sizes(const Shape& shape) {
  if (shape.block_bytes != 512 && shape.block_bytes != 4096) {
    return fmt::format("blocks have 512 or 4096 bytes, not {}", shape.block_bytes);
  }
  const std::uint64_t strip_bytes = std::uint64_t{shape.strip_blocks} * shape.block_bytes;
  if (strip_bytes < kLeastStripBytes || strip_bytes > kMostStripBytes ||
      !std::has_single_bit(strip_bytes)) {
    return fmt::format("a strip is a power of two from 4 KiB to 1 MiB, not {} bytes", strip_bytes);
  }
  for (std::size_t role = 0; role < shape.drive_blocks.size(); ++role) {
    const std::uint64_t blocks = shape.drive_blocks[role];
    if (blocks < shape.strip_blocks) {
      return fmt::format("drive {} offers {} blocks for data: a strip of {} is the least", role,
                         blocks, shape.strip_blocks);
    }
    if (blocks > kMostDriveBytes / shape.block_bytes) {
      return fmt::format("drive {} offers {} blocks for data: 64 PiB are the most", role, blocks);
    }
  }
  return {};
}

bool equal_but_for_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

}  // namespace

std::string_view describe(Level level) {
  const LevelRules* rules = rules_of(level);
  return rules == nullptr ? std::string_view{"unknown"} : rules->name;
}

std::optional<Level> parse_level(std::string_view text) {
  constexpr std::string_view kPrefix = "raid";
  for (const LevelRules& rules : kRules) {
    if (equal_but_for_case(text, rules.name)) return rules.level;
  }
  if (equal_but_for_case(text, "concatenation")) return Level::kConcatenation;

  if (equal_but_for_case(text.substr(0, kPrefix.size()), kPrefix)) {
    text.remove_prefix(kPrefix.size());
    if (text.starts_with('-') || text.starts_with(' ')) text.remove_prefix(1);
  }
  for (const LevelRules& rules : kRules) {
    if (rules.name.starts_with(kPrefix) && text == rules.name.substr(kPrefix.size())) {
      return rules.level;
    }
  }
  return std::nullopt;
}

std::expected<Layout, std::string> Layout::make(const Shape& shape) {
  const LevelRules* rules = rules_of(shape.level);
  if (rules == nullptr) {
    return std::unexpected(fmt::format("there is no level {}: 1 (jbod) to 9 (raid60) are accepted",
                                       static_cast<unsigned>(shape.level)));
  }
  for (std::string wrong :
       {check_drives(*rules, shape), check_groups(*rules, shape), check_sizes(shape)}) {
    if (!wrong.empty()) return std::unexpected(std::move(wrong));
  }

  Layout layout;
  layout.level_ = shape.level;
  layout.block_bytes_ = shape.block_bytes;
  layout.strip_shift_ = static_cast<unsigned>(std::countr_zero(shape.strip_blocks));
  if (rules->grouped) {
    layout.groups_ = shape.group_count == 0 ? default_groups(shape) : shape.group_count;
  } else if (shape.level == Level::kRaid0 || shape.level == Level::kConcatenation) {
    layout.groups_ = shape.drive_count;
  }
  layout.width_ = shape.drive_count / layout.groups_;
  layout.data_chunks_ = layout.mirrored() ? 1 : layout.width_ - rules->parity;

  if (shape.level == Level::kConcatenation) {
    layout.first_of_role_.push_back(0);
    for (const std::uint64_t blocks : shape.drive_blocks) {
      layout.stripe_count_ += blocks >> layout.strip_shift_;
      layout.first_of_role_.push_back(layout.stripe_count_);
    }
  } else {
    const std::uint64_t smallest = std::ranges::min(shape.drive_blocks);
    layout.stripe_count_ = (smallest >> layout.strip_shift_) * layout.groups_;
  }
  return layout;
}

std::uint64_t Layout::drive_blocks(unsigned role) const {
  return stripes_on_role(role) << strip_shift_;
}

Layout::Position Layout::position(Lba lba) const {
  assert(lba < block_count());
  const std::uint64_t chunk = lba >> strip_shift_;
  return {.stripe = chunk / data_chunks_,
          .chunk = static_cast<std::uint32_t>(chunk % data_chunks_),
          .row = static_cast<std::uint32_t>(lba & (strip_blocks() - 1))};
}

Lba Layout::lba(Position position) const {
  assert(position.stripe < stripe_count_);
  assert(position.chunk < data_chunks_);
  assert(position.row < strip_blocks());
  return ((position.stripe * data_chunks_ + position.chunk) << strip_shift_) + position.row;
}

unsigned Layout::role_of_stripe(std::uint64_t stripe) const {
  const auto behind = std::ranges::upper_bound(first_of_role_, stripe);
  return static_cast<unsigned>(behind - first_of_role_.begin()) - 1;
}

// Which drive of the group holds data chunk 0 of the group's stripe `number`: the one behind P, or
// behind Q where there is one.
unsigned Layout::first_data_drive(std::uint64_t number) const {
  const unsigned p = width_ - 1 - static_cast<unsigned>(number % width_);
  return p + parity_chunks();
}

unsigned Layout::role(std::uint64_t stripe, unsigned member) const {
  assert(stripe < stripe_count_);
  assert(member < width_);
  if (concatenated()) return role_of_stripe(stripe);
  const unsigned first = static_cast<unsigned>(stripe % groups_) * width_;
  if (parity_chunks() == 0) return first + member;
  return first + (first_data_drive(stripe / groups_) + member) % width_;
}

std::optional<unsigned> Layout::member(std::uint64_t stripe, unsigned role) const {
  assert(role < drive_count());
  if (group(stripe) != group_of_role(role)) return std::nullopt;
  const unsigned drive = role % width_;
  if (parity_chunks() == 0) return drive;
  const unsigned start = first_data_drive(stripe / groups_) % width_;
  return (drive + width_ - start) % width_;
}

Lba Layout::drive_lba(std::uint64_t stripe) const {
  assert(stripe < stripe_count_);
  if (concatenated()) return (stripe - first_of_role_[role_of_stripe(stripe)]) << strip_shift_;
  return stripe / groups_ << strip_shift_;
}

Layout::OnDrive Layout::on_drive(unsigned role, Lba drive_lba) const {
  assert(role < drive_count());
  assert(drive_lba < drive_blocks(role));
  const std::uint64_t number = drive_lba >> strip_shift_;
  const std::uint64_t stripe =
      concatenated() ? first_of_role_[role] + number : number * groups_ + group_of_role(role);
  const std::optional<unsigned> found = member(stripe, role);
  assert(found.has_value());
  return {.stripe = stripe,
          .member = found.value_or(0),
          .row = static_cast<std::uint32_t>(drive_lba & (strip_blocks() - 1))};
}

unsigned Layout::group(std::uint64_t stripe) const {
  assert(stripe < stripe_count_);
  if (concatenated()) return role_of_stripe(stripe);
  return static_cast<unsigned>(stripe % groups_);
}

unsigned Layout::group_of_role(unsigned role) const {
  assert(role < drive_count());
  return role / width_;
}

std::optional<std::uint64_t> Layout::first_stripe(unsigned role, std::uint64_t from) const {
  assert(role < drive_count());
  std::uint64_t stripe = 0;
  std::uint64_t end = stripe_count_;
  if (concatenated()) {
    stripe = std::max(from, first_of_role_[role]);
    end = first_of_role_[role + 1];
  } else {
    const unsigned wanted = group_of_role(role);
    const auto at = static_cast<unsigned>(from % groups_);
    stripe = from + (wanted + groups_ - at) % groups_;
  }
  if (stripe >= end) return std::nullopt;
  return stripe;
}

std::uint64_t Layout::stripes_on_role(unsigned role) const {
  assert(role < drive_count());
  if (concatenated()) return first_of_role_[role + 1] - first_of_role_[role];
  return stripe_count_ / groups_;
}

bool Layout::survives(std::uint64_t missing_roles) const {
  for (unsigned group = 0; group < groups_; ++group) {
    const std::uint64_t all = width_ == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width_) - 1;
    const std::uint64_t missing = (missing_roles >> (group * width_)) & all;
    if (static_cast<unsigned>(std::popcount(missing)) > redundancy()) return false;
  }
  return true;
}

}  // namespace sandbay::raid
