// Planning a new set: everything is checked before anything is written, and every refusal names the
// drive or the key that is to blame.
#include <algorithm>
#include <map>

#include <fmt/core.h>

#include "raid/assembly.h"
#include "raid/integrity_format.h"
#include "raid/metadata_image.h"

namespace sandbay::raid {
namespace {

std::uint64_t align_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

std::string name_error(const NewSet& wanted) {
  if (wanted.name.empty()) return "a set must have a name";
  if (wanted.name.size() > kMostSetNameBytes) {
    return fmt::format("name: '{}' has {} bytes; {} at most", wanted.name, wanted.name.size(),
                       kMostSetNameBytes);
  }
  const bool printable = std::ranges::all_of(wanted.name, [](char letter) {
    return static_cast<unsigned char>(letter) >= 0x20 && letter != 0x7f;
  });
  return printable ? std::string() : "name: it has control characters";
}

std::string contents_error(const Candidate& drive, bool overwrite) {
  const DriveContents& contents = drive.contents;
  if (contents.kind == DriveContents::Kind::kUnreadable) {
    return fmt::format("drive {}: {}", drive.name, contents.why);
  }
  if (overwrite || contents.kind == DriveContents::Kind::kBlank) return {};
  if (!contents.superblock.has_value()) {
    return fmt::format("drive {}: {}; it is taken with 'overwrite' only", drive.name, contents.why);
  }
  const Superblock& superblock = *contents.superblock;
  if (superblock.is_spare()) {
    return fmt::format("drive {}: it is a spare; it is taken with 'overwrite' only", drive.name);
  }
  return fmt::format("drive {}: it is in role {} of set '{}'; it is taken with 'overwrite' only",
                     drive.name, superblock.role, superblock.set_name);
}

std::string drives_error(const NewSet& wanted, std::span<const Candidate> drives) {
  if (drives.empty()) return "drives: a set needs at least one";
  if (!wanted.drive_uuids.empty() && wanted.drive_uuids.size() != drives.size()) {
    return fmt::format("drive_uuids: {} for {} drives; one for each, or none",
                       wanted.drive_uuids.size(), drives.size());
  }
  if (drives.size() > kMostDrives) {
    return fmt::format("drives: {} are too many; {} at most", drives.size(), kMostDrives);
  }
  std::map<std::string, std::size_t> names;
  std::map<Uuid, std::string> uuids;
  for (std::size_t at = 0; at < drives.size(); ++at) {
    const Candidate& drive = drives[at];
    if (!names.emplace(drive.name, at).second) {
      return fmt::format("drives: drive {} is named twice", drive.name);
    }
    if (drive.block_bytes != drives[0].block_bytes) {
      return fmt::format("drive {}: its blocks have {} bytes and those of drive {} have {}",
                         drive.name, drive.block_bytes, drives[0].name, drives[0].block_bytes);
    }
    if (std::string error = contents_error(drive, wanted.overwrite); !error.empty()) return error;
    if (!drive.contents.superblock.has_value()) continue;
    const auto [other, fresh] = uuids.emplace(drive.contents.superblock->drive_uuid, drive.name);
    if (!fresh) {
      return fmt::format("drive {}: it and drive {} are copies of one drive, or the same one",
                         drive.name, other->second);
    }
  }
  return {};
}

std::string areas_error(const NewSet& wanted, std::uint32_t block_bytes) {
  if (wanted.strip_bytes < kLeastStripBytes || wanted.strip_bytes > kMostStripBytes ||
      wanted.strip_bytes % block_bytes != 0) {
    return fmt::format("strip: {} bytes; {} to {}, in whole blocks", wanted.strip_bytes,
                       kLeastStripBytes, kMostStripBytes);
  }
  if (const auto journal = wanted.journal_bytes;
      journal.has_value() && (*journal % 4096 != 0 || *journal > kMostDriveBytes)) {
    return fmt::format("journal: {} bytes; a multiple of 4096", *journal);
  }
  return {};
}

// Integrity data for so many bytes of data.
std::uint64_t integrity_bytes(const NewSet& wanted, std::uint64_t data_bytes) {
  return wanted.integrity ? integrity_area_bytes(data_bytes) : 0;
}

// The largest data area, in whole strips, that leaves room for its integrity area.
std::uint64_t data_bytes_within(const NewSet& wanted, std::uint64_t bytes) {
  std::uint64_t strips = bytes / wanted.strip_bytes;
  const auto end = [&] {
    const std::uint64_t data = strips * wanted.strip_bytes;
    return data + integrity_bytes(wanted, data);
  };
  if (wanted.integrity) {
    strips = strips * kCellsPerBlock / (kCellsPerBlock + 1) + 1;
  }
  while (strips > 0 && end() > bytes) --strips;
  return strips * wanted.strip_bytes;
}

std::expected<Shape, std::string> shape_of(const NewSet& wanted, std::span<const Candidate> drives,
                                           std::uint64_t data_offset) {
  const std::uint32_t block_bytes = drives[0].block_bytes;
  Shape shape{.level = wanted.level,
              .drive_count = static_cast<unsigned>(drives.size()),
              .group_count = wanted.group_count,
              .block_bytes = block_bytes,
              .strip_blocks = wanted.strip_bytes / block_bytes,
              .drive_blocks = {}};
  for (const Candidate& drive : drives) {
    const std::uint64_t bytes =
        std::min(drive.block_count, kMostDriveBytes / block_bytes) * block_bytes;
    const std::uint64_t data =
        bytes <= data_offset ? 0 : data_bytes_within(wanted, bytes - data_offset);
    if (data == 0) {
      return std::unexpected(fmt::format(
          "drive {}: {} bytes are too few; a strip takes {}", drive.name, bytes,
          data_offset + wanted.strip_bytes + integrity_bytes(wanted, wanted.strip_bytes)));
    }
    shape.drive_blocks.push_back(data / block_bytes);
  }
  if (wanted.level != Level::kConcatenation) {
    std::ranges::fill(shape.drive_blocks, std::ranges::min(shape.drive_blocks));
  }
  return shape;
}

Superblock superblock_of(const NewSet& wanted, const Shape& shape, const Layout& layout,
                         std::uint64_t data_offset, std::uint32_t physical_block_bytes,
                         Random& random) {
  Superblock set;
  set.set_uuid = is_zero(wanted.set_uuid) ? make_uuid(random) : wanted.set_uuid;
  set.group_uuid = wanted.group_uuid;
  set.set_name = wanted.name;
  set.level = wanted.level;
  set.group_count = layout.group_count();
  set.block_bytes = shape.block_bytes;
  set.strip_blocks = shape.strip_blocks;
  set.data_offset_blocks = data_offset / shape.block_bytes;
  set.journal_bytes = journal_bytes_on_drives(wanted);
  set.journal_offset_bytes = set.journal_bytes == 0 ? 0 : kJournalOffset;
  set.integrity = wanted.integrity;
  set.physical_block_bytes = physical_block_bytes;
  set.region_stripes =
      wanted.region_stripes != 0
          ? wanted.region_stripes
          : choose_region_stripes(layout.stripe_count(),
                                  std::uint64_t{layout.stripe_blocks()} * shape.block_bytes,
                                  shape.drive_count);
  for (const std::uint64_t blocks : shape.drive_blocks) {
    const std::uint64_t data = blocks * shape.block_bytes;
    const std::size_t role = set.roles.size();
    set.roles.push_back(
        {.drive = wanted.drive_uuids.empty() ? make_uuid(random) : wanted.drive_uuids[role],
         .data_blocks = blocks,
         .integrity_offset_bytes = wanted.integrity ? data_offset + data : 0,
         .integrity_bytes = integrity_bytes(wanted, data)});
  }
  set.advance(random);
  return set;
}

}  // namespace

std::uint64_t journal_bytes_on_drives(const NewSet& wanted) {
  const bool parity = wanted.level == Level::kRaid5 || wanted.level == Level::kRaid6 ||
                      wanted.level == Level::kRaid50 || wanted.level == Level::kRaid60;
  return wanted.journal_bytes.value_or(parity || wanted.integrity ? kDefaultJournalBytes : 0);
}

std::expected<PlannedSet, std::string> plan_new_set(const NewSet& wanted,
                                                    std::span<const Candidate> drives,
                                                    Random& random) {
  const auto refuse = [&](std::string_view why) {
    return std::unexpected(fmt::format("set '{}': {}", wanted.name, why));
  };
  if (const std::string error = name_error(wanted); !error.empty()) return refuse(error);
  if (const std::string error = drives_error(wanted, drives); !error.empty()) return refuse(error);
  if (const std::string error = areas_error(wanted, drives[0].block_bytes); !error.empty()) {
    return refuse(error);
  }
  const std::uint64_t data_offset =
      align_up(kJournalOffset + journal_bytes_on_drives(wanted), kAreaAlignment);
  const auto shape = shape_of(wanted, drives, data_offset);
  if (!shape.has_value()) return refuse(shape.error());
  const auto layout = Layout::make(*shape);
  if (!layout.has_value()) return refuse(layout.error());
  std::uint32_t physical = shape->block_bytes;
  for (const Candidate& drive : drives) physical = std::max(physical, drive.physical_block_bytes);
  const Superblock set = superblock_of(wanted, *shape, *layout, data_offset, physical, random);
  if (const std::string error = superblock_error(set.for_role(0)); !error.empty()) {
    return refuse(error);
  }
  PlannedSet planned{
      .superblocks = {},
      .regions = RegionMap(set.set_uuid, set.region_count(*layout), shape->drive_count),
      .lost = LostSectors(set.set_uuid, layout->block_count())};
  for (unsigned role = 0; role < shape->drive_count; ++role) {
    planned.superblocks.push_back(set.for_role(role));
  }
  planned.regions.set_all_dirty(layout->redundancy() > 0);
  return planned;
}

}  // namespace sandbay::raid
