// The superblock's bytes; docs/formats/raid.md has the table. Decoding reads the fields, then one
// function judges them, which encode() asserts too: nothing is written that would not be read.
#include "raid/superblock.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <set>

#include <fmt/core.h>

#include "raid/integrity_format.h"
#include "raid/metadata_image.h"
#include "raid/region_map.h"

namespace sandbay::raid {
namespace {

constexpr std::string_view kSuperblockMagic = "SBRAIDSB";

// Offsets. The frame comes first; its UUID is the drive's, its sequence that of the copy.
constexpr std::size_t kSetAt = 48;
constexpr std::size_t kGroupAt = 64;
constexpr std::size_t kEventAt = 80;
constexpr std::size_t kPlaceAt = 88;
constexpr std::size_t kLevelAt = 89;
constexpr std::size_t kFlagsAt = 90;
constexpr std::size_t kRoleAt = 92;
constexpr std::size_t kDriveCountAt = 94;
constexpr std::size_t kGroupCountAt = 96;
constexpr std::size_t kHistoryCountAt = 98;
constexpr std::size_t kBlockBytesAt = 100;
constexpr std::size_t kStripBlocksAt = 104;
constexpr std::size_t kDataOffsetAt = 112;
constexpr std::size_t kJournalOffsetAt = 120;
constexpr std::size_t kJournalBytesAt = 128;
constexpr std::size_t kRegionStripesAt = 136;
constexpr std::size_t kNameBytesAt = 144;
constexpr std::size_t kNameAt = 145;
constexpr std::size_t kJournalKeyAt = 208;
constexpr std::size_t kNextJournalKeyAt = 216;
constexpr std::size_t kPhysicalBlockBytesAt = 224;
constexpr std::size_t kHistoryAt = 256;
constexpr std::size_t kRolesAt = kHistoryAt + kMostHistory * sizeof(Event);
constexpr std::size_t kRoleBytes = 80;
static_assert(kNameAt + kMostSetNameBytes <= kJournalKeyAt);
static_assert(kRolesAt + kMostDrives * kRoleBytes <= kSuperblockBytes);

// Within a role.
constexpr std::size_t kReplacementAt = 16;
constexpr std::size_t kDataBlocksAt = 32;
constexpr std::size_t kIntegrityOffsetAt = 40;
constexpr std::size_t kIntegrityBytesAt = 48;
constexpr std::size_t kKnownEventAt = 56;
constexpr std::size_t kReplacementKnownEventAt = 64;
constexpr std::size_t kStateAt = 72;

constexpr std::uint8_t kCleanFlag = 1;
constexpr std::uint8_t kIntegrityFlag = 2;
constexpr std::uint8_t kSuspectFlag = 4;
constexpr std::uint8_t kBlankFlag = 8;

constexpr std::uint64_t kMostBytes = kMostDriveBytes;

void put_role(std::span<std::byte> bytes, const RoleEntry& role) {
  put_uuid(bytes, 0, role.drive);
  put_uuid(bytes, kReplacementAt, role.replacement);
  put_little_endian(bytes, kDataBlocksAt, role.data_blocks);
  put_little_endian(bytes, kIntegrityOffsetAt, role.integrity_offset_bytes);
  put_little_endian(bytes, kIntegrityBytesAt, role.integrity_bytes);
  put_little_endian(bytes, kKnownEventAt, role.known_event);
  put_little_endian(bytes, kReplacementKnownEventAt, role.replacement_known_event);
  put_little_endian(bytes, kStateAt, static_cast<std::uint8_t>(role.state));
}

RoleEntry get_role(std::span<const std::byte> bytes) {
  return {.drive = get_uuid(bytes, 0),
          .replacement = get_uuid(bytes, kReplacementAt),
          .state = static_cast<RoleState>(bytes[kStateAt]),
          .data_blocks = little_endian<std::uint64_t>(bytes, kDataBlocksAt),
          .integrity_offset_bytes = little_endian<std::uint64_t>(bytes, kIntegrityOffsetAt),
          .integrity_bytes = little_endian<std::uint64_t>(bytes, kIntegrityBytesAt),
          .known_event = little_endian<std::uint64_t>(bytes, kKnownEventAt),
          .replacement_known_event = little_endian<std::uint64_t>(bytes, kReplacementKnownEventAt)};
}

void put_fields(std::span<std::byte> bytes, const Superblock& superblock) {
  put_uuid(bytes, kSetAt, superblock.set_uuid);
  put_uuid(bytes, kGroupAt, superblock.group_uuid);
  put_little_endian(bytes, kEventAt, superblock.event);
  put_little_endian(bytes, kPlaceAt, static_cast<std::uint8_t>(superblock.place));
  put_little_endian(bytes, kLevelAt, static_cast<std::uint8_t>(superblock.level));
  const unsigned flags =
      (superblock.clean ? kCleanFlag : 0U) | (superblock.integrity ? kIntegrityFlag : 0U) |
      (superblock.redundancy_suspect ? kSuspectFlag : 0U) | (superblock.blank ? kBlankFlag : 0U);
  put_little_endian(bytes, kFlagsAt, static_cast<std::uint8_t>(flags));
  put_little_endian(bytes, kRoleAt, static_cast<std::uint16_t>(superblock.role));
  put_little_endian(bytes, kDriveCountAt, static_cast<std::uint16_t>(superblock.drive_count()));
  put_little_endian(bytes, kGroupCountAt, static_cast<std::uint16_t>(superblock.group_count));
  put_little_endian(bytes, kHistoryCountAt, static_cast<std::uint16_t>(superblock.history.size()));
  put_little_endian(bytes, kBlockBytesAt, superblock.block_bytes);
  put_little_endian(bytes, kStripBlocksAt, superblock.strip_blocks);
  put_little_endian(bytes, kDataOffsetAt, superblock.data_offset_blocks);
  put_little_endian(bytes, kJournalOffsetAt, superblock.journal_offset_bytes);
  put_little_endian(bytes, kJournalBytesAt, superblock.journal_bytes);
  put_little_endian(bytes, kRegionStripesAt, superblock.region_stripes);
  put_little_endian(bytes, kJournalKeyAt, superblock.journal_key);
  put_little_endian(bytes, kNextJournalKeyAt, superblock.next_journal_key);
  put_little_endian(bytes, kPhysicalBlockBytesAt, superblock.physical_block_bytes);
  put_little_endian(bytes, kNameBytesAt, static_cast<std::uint8_t>(superblock.set_name.size()));
  std::ranges::copy(std::as_bytes(std::span(superblock.set_name)), bytes.begin() + kNameAt);
}

// The counts have been checked.
Superblock get_fields(std::span<const std::byte> bytes) {
  Superblock superblock;
  superblock.set_uuid = get_uuid(bytes, kSetAt);
  superblock.group_uuid = get_uuid(bytes, kGroupAt);
  superblock.event = little_endian<std::uint64_t>(bytes, kEventAt);
  superblock.place = static_cast<Place>(bytes[kPlaceAt]);
  superblock.level = static_cast<Level>(bytes[kLevelAt]);
  const auto flags = std::to_integer<unsigned>(bytes[kFlagsAt]);
  superblock.clean = (flags & kCleanFlag) != 0;
  superblock.integrity = (flags & kIntegrityFlag) != 0;
  superblock.redundancy_suspect = (flags & kSuspectFlag) != 0;
  superblock.blank = (flags & kBlankFlag) != 0;
  superblock.role = little_endian<std::uint16_t>(bytes, kRoleAt);
  superblock.group_count = little_endian<std::uint16_t>(bytes, kGroupCountAt);
  superblock.block_bytes = little_endian<std::uint32_t>(bytes, kBlockBytesAt);
  superblock.strip_blocks = little_endian<std::uint32_t>(bytes, kStripBlocksAt);
  superblock.data_offset_blocks = little_endian<std::uint64_t>(bytes, kDataOffsetAt);
  superblock.journal_offset_bytes = little_endian<std::uint64_t>(bytes, kJournalOffsetAt);
  superblock.journal_bytes = little_endian<std::uint64_t>(bytes, kJournalBytesAt);
  superblock.region_stripes = little_endian<std::uint64_t>(bytes, kRegionStripesAt);
  superblock.journal_key = little_endian<std::uint64_t>(bytes, kJournalKeyAt);
  superblock.next_journal_key = little_endian<std::uint64_t>(bytes, kNextJournalKeyAt);
  superblock.physical_block_bytes = little_endian<std::uint32_t>(bytes, kPhysicalBlockBytesAt);
  const auto name_bytes = std::to_integer<std::size_t>(bytes[kNameBytesAt]);
  for (std::size_t at = 0; at < name_bytes; ++at) {
    superblock.set_name.push_back(static_cast<char>(bytes[kNameAt + at]));
  }
  return superblock;
}

bool multiple_of(std::uint64_t value, std::uint64_t of) { return value % of == 0; }

std::string name_error(const std::string& name) {
  if (name.size() > kMostSetNameBytes) {
    return fmt::format("the set's name has {} bytes; {} at most", name.size(), kMostSetNameBytes);
  }
  const bool printable = std::ranges::all_of(name, [](char letter) {
    return static_cast<unsigned char>(letter) >= 0x20 && letter != 0x7f;
  });
  return printable ? std::string() : "the set's name has control characters";
}

std::string spare_error(const Superblock& superblock) {
  Superblock plain = make_spare(superblock.drive_uuid, superblock.group_uuid,
                                superblock.block_bytes, superblock.set_uuid, superblock.set_name);
  if (plain != superblock) return "it is of a spare, and yet has fields of a set";
  return {};
}

std::string history_error(const Superblock& superblock) {
  if (superblock.event == 0) return "its event is 0";
  if (superblock.history.size() > kMostHistory) return "its history is too long";
  std::uint32_t newer = event_number(superblock.event);
  for (const Event event : superblock.history) {
    if (event_number(event) >= newer) return "its history is not in order";
    newer = event_number(event);
  }
  return {};
}

std::string role_error(const Superblock& superblock, unsigned role) {
  const RoleEntry& entry = superblock.roles[role];
  if (entry.state < RoleState::kActive || entry.state > RoleState::kFailed) {
    return fmt::format("role {} has the unknown state {}", role,
                       static_cast<unsigned>(entry.state));
  }
  if (entry.data_blocks > kMostBytes / superblock.block_bytes || entry.data_blocks == 0) {
    return fmt::format("role {} has an impossible data area of {} blocks", role, entry.data_blocks);
  }
  if (!multiple_of(entry.data_blocks, superblock.strip_blocks)) {
    return fmt::format("the data area of role {} is not a multiple of the strip", role);
  }
  const std::uint64_t data_end =
      (superblock.data_offset_blocks + entry.data_blocks) * superblock.block_bytes;
  if (!superblock.integrity) {
    if (entry.integrity_offset_bytes != 0 || entry.integrity_bytes != 0) {
      return fmt::format("role {} has an integrity area and the set no integrity", role);
    }
  } else if (entry.integrity_bytes > kMostBytes ||
             entry.integrity_bytes <
                 integrity_area_bytes(entry.data_blocks * superblock.block_bytes) ||
             entry.integrity_offset_bytes > kMostBytes || entry.integrity_offset_bytes < data_end ||
             !multiple_of(entry.integrity_bytes, superblock.block_bytes) ||
             !multiple_of(entry.integrity_offset_bytes, superblock.block_bytes)) {
    return fmt::format("the integrity area of role {} is impossible", role);
  }
  const std::uint32_t newest = event_number(superblock.event);
  if (event_number(entry.known_event) > newest ||
      event_number(entry.replacement_known_event) > newest) {
    return fmt::format("role {} knows of an event that has not been", role);
  }
  if (is_zero(entry.replacement) && entry.replacement_known_event != 0) {
    return fmt::format("role {} knows an event of no replacement", role);
  }
  return {};
}

std::string table_error(const Superblock& superblock) {
  std::set<Uuid> seen;
  for (unsigned role = 0; role < superblock.drive_count(); ++role) {
    const RoleEntry& entry = superblock.roles[role];
    if (is_zero(entry.drive)) return fmt::format("role {} names no drive", role);
    if (std::string error = role_error(superblock, role); !error.empty()) return error;
    const bool replacing = !is_zero(entry.replacement);
    if (!seen.insert(entry.drive).second || (replacing && !seen.insert(entry.replacement).second)) {
      return fmt::format("the drive of role {} is named twice", role);
    }
    if (superblock.level != Level::kConcatenation &&
        entry.data_blocks != superblock.roles[0].data_blocks) {
      return fmt::format("the data area of role {} differs from that of role 0", role);
    }
  }
  if (superblock.role >= superblock.drive_count()) {
    return fmt::format("its own role {} is none of {}", superblock.role, superblock.drive_count());
  }
  const RoleEntry& own = superblock.roles[superblock.role];
  if ((superblock.place == Place::kRole ? own.drive : own.replacement) != superblock.drive_uuid) {
    return fmt::format("role {} names another drive than itself", superblock.role);
  }
  return {};
}

std::string areas_error(const Superblock& superblock) {
  const std::uint32_t block_bytes = superblock.block_bytes;
  if (superblock.strip_blocks == 0) return "its strip has no blocks";
  const std::uint32_t physical = superblock.physical_block_bytes;
  if (physical != 0 && (!std::has_single_bit(physical) || physical < block_bytes ||
                        physical > kMostPhysicalBlockBytes)) {
    return fmt::format("physical blocks of {} bytes are impossible", physical);
  }
  if (superblock.journal_bytes > kMostBytes) return "its journal is impossibly large";
  if (superblock.journal_offset_bytes != (superblock.journal_bytes == 0 ? 0 : kJournalOffset)) {
    return "its journal is not where journals are";
  }
  if (!multiple_of(superblock.journal_bytes, 4096)) {
    return "its journal is not a multiple of 4096 bytes";
  }
  if (superblock.data_offset_blocks > kMostBytes / block_bytes) {
    return "its data area begins impossibly late";
  }
  const std::uint64_t data_offset = superblock.data_offset_blocks * block_bytes;
  if (data_offset < kJournalOffset + superblock.journal_bytes) {
    return "its data area begins before what precedes it ends";
  }
  if (!multiple_of(data_offset, kAreaAlignment)) return "its data area is not aligned to 1 MiB";
  return {};
}

std::string set_error(const Superblock& superblock) {
  if (superblock.roles.empty() || superblock.roles.size() > kMostDrives) {
    return fmt::format("{} drives are impossible", superblock.roles.size());
  }
  for (std::string error : {history_error(superblock), areas_error(superblock)}) {
    if (!error.empty()) return error;
  }
  if (std::string error = table_error(superblock); !error.empty()) return error;
  const auto layout = superblock.layout();
  if (!layout.has_value()) return layout.error();
  if (layout->group_count() != superblock.group_count) {
    return fmt::format("{} groups where its layout has {}", superblock.group_count,
                       layout->group_count());
  }
  const std::uint64_t stripes = layout->stripe_count();
  if (superblock.region_stripes == 0 || superblock.region_stripes > std::uint64_t{1} << 62 ||
      superblock.region_count(*layout) > most_regions(superblock.drive_count())) {
    return fmt::format("regions of {} stripes do not suit {} stripes", superblock.region_stripes,
                       stripes);
  }
  return {};
}

// What the fields after the frame say that no Superblock can say.
std::string raw_error(std::span<const std::byte> bytes, std::uint32_t version) {
  const auto drive_count = little_endian<std::uint16_t>(bytes, kDriveCountAt);
  if (drive_count > kMostDrives) return fmt::format("{} drives are impossible", drive_count);
  const auto history_count = little_endian<std::uint16_t>(bytes, kHistoryCountAt);
  if (history_count > kMostHistory) return "its history is too long";
  if (std::to_integer<std::size_t>(bytes[kNameBytesAt]) > kMostSetNameBytes) {
    return "the set's name is too long";
  }
  const unsigned known =
      kCleanFlag | kIntegrityFlag | kSuspectFlag | (version >= 3 ? kBlankFlag : 0U);
  if ((std::to_integer<unsigned>(bytes[kFlagsAt]) & ~known) != 0) return "it has unknown flags";
  return {};
}

}  // namespace

std::string_view describe(RoleState state) {
  switch (state) {
    case RoleState::kActive:
      return "active";
    case RoleState::kMissing:
      return "missing";
    case RoleState::kFailed:
      return "failed";
  }
  return "unknown";
}

std::expected<Layout, std::string> Superblock::layout() const {
  Shape shape{.level = level,
              .drive_count = drive_count(),
              .group_count = group_count,
              .block_bytes = block_bytes,
              .strip_blocks = strip_blocks,
              .drive_blocks = {}};
  for (const RoleEntry& entry : roles) shape.drive_blocks.push_back(entry.data_blocks);
  return Layout::make(shape);
}

std::uint64_t Superblock::needed_bytes(unsigned its_role) const {
  const RoleEntry& entry = roles.at(its_role);
  const std::uint64_t data_end = (data_offset_blocks + entry.data_blocks) * block_bytes;
  return std::max(data_end, entry.integrity_offset_bytes + entry.integrity_bytes);
}

void Superblock::advance(Random& random) {
  assert(!is_spare());
  if (event != 0) history.insert(history.begin(), event);
  if (history.size() > kMostHistory) history.resize(kMostHistory);
  const std::uint64_t number = std::uint64_t{event_number(event)} + 1;
  assert(number <= ~std::uint32_t{0});
  event = number << 32U | (random.next() & ~std::uint32_t{0});
}

void Superblock::mark_complete() {
  for (RoleEntry& entry : roles) {
    if (entry.state == RoleState::kActive) entry.known_event = event;
    if (!is_zero(entry.replacement)) entry.replacement_known_event = event;
  }
}

Superblock Superblock::for_role(unsigned its_role) const {
  Superblock own = *this;
  own.place = Place::kRole;
  own.role = its_role;
  own.drive_uuid = roles.at(its_role).drive;
  return own;
}

Superblock Superblock::for_replacement(unsigned its_role) const {
  Superblock own = *this;
  own.place = Place::kReplacement;
  own.role = its_role;
  own.drive_uuid = roles.at(its_role).replacement;
  return own;
}

bool Superblock::same_version(const Superblock& other) const {
  Superblock mine = *this;
  mine.drive_uuid = other.drive_uuid;
  mine.place = other.place;
  mine.role = other.role;
  return mine == other;
}

bool Superblock::follows(Event other) const {
  return event == other || std::ranges::find(history, other) != history.end();
}

Superblock make_spare(const Uuid& drive_uuid, const Uuid& group_uuid, std::uint32_t block_bytes,
                      const Uuid& set_uuid, std::string set_name) {
  Superblock spare;
  spare.drive_uuid = drive_uuid;
  spare.place = Place::kSpare;
  spare.group_uuid = group_uuid;
  spare.block_bytes = block_bytes;
  spare.set_uuid = set_uuid;
  spare.set_name = std::move(set_name);
  return spare;
}

std::string superblock_error(const Superblock& superblock) {
  if (is_zero(superblock.drive_uuid)) return "its drive has no UUID";
  if (superblock.block_bytes != 512 && superblock.block_bytes != 4096) {
    return fmt::format("blocks of {} bytes are impossible; 512 or 4096", superblock.block_bytes);
  }
  if (std::string error = name_error(superblock.set_name); !error.empty()) return error;
  if (superblock.is_spare()) return spare_error(superblock);
  if (superblock.place != Place::kRole && superblock.place != Place::kReplacement) {
    return fmt::format("its place {} is unknown", static_cast<unsigned>(superblock.place));
  }
  if (is_zero(superblock.set_uuid)) return "its set has no UUID";
  if (superblock.set_name.empty()) return "its set has no name";
  return set_error(superblock);
}

namespace {

std::vector<std::byte> encode_version(const Superblock& superblock, std::uint64_t copy_sequence,
                                      std::uint32_t version) {
  assert(superblock_error(superblock).empty());
  std::vector<std::byte> image(kSuperblockBytes);
  put_fields(image, superblock);
  for (std::size_t at = 0; at < superblock.history.size(); ++at) {
    put_little_endian(std::span(image), kHistoryAt + at * sizeof(Event), superblock.history[at]);
  }
  for (std::size_t role = 0; role < superblock.roles.size(); ++role) {
    put_role(std::span(image).subspan(kRolesAt + role * kRoleBytes, kRoleBytes),
             superblock.roles[role]);
  }
  seal_image(image, {.magic = kSuperblockMagic,
                     .version = version,
                     .sequence = copy_sequence,
                     .uuid = superblock.drive_uuid});
  return image;
}

}  // namespace

std::vector<std::byte> encode(const Superblock& superblock, std::uint64_t copy_sequence) {
  return encode_version(superblock, copy_sequence, kSuperblockVersion);
}

std::expected<DecodedSuperblock, std::string> decode_superblock(std::span<const std::byte> bytes) {
  const auto opened = open_image(bytes, kSuperblockMagic, kSuperblockVersion);
  if (!opened.has_value()) return std::unexpected(opened.error());
  const std::span<const std::byte> image = opened->bytes;
  if (image.size() != kSuperblockBytes) {
    return std::unexpected(
        fmt::format("its length is {} bytes and not {}", image.size(), kSuperblockBytes));
  }
  if (std::string error = raw_error(image, opened->version); !error.empty())
    return std::unexpected(error);
  Superblock superblock = get_fields(image);
  superblock.drive_uuid = opened->uuid;
  const auto history_count = little_endian<std::uint16_t>(image, kHistoryCountAt);
  for (std::size_t at = 0; at < history_count; ++at) {
    superblock.history.push_back(
        little_endian<std::uint64_t>(image, kHistoryAt + at * sizeof(Event)));
  }
  const auto drive_count = little_endian<std::uint16_t>(image, kDriveCountAt);
  for (std::size_t role = 0; role < drive_count; ++role) {
    superblock.roles.push_back(get_role(image.subspan(kRolesAt + role * kRoleBytes, kRoleBytes)));
  }
  if (std::string error = superblock_error(superblock); !error.empty()) {
    return std::unexpected(error);
  }
  // Nothing may stand where nothing belongs: what a later version puts there has a meaning.
  const bool has_keys = (superblock.journal_key | superblock.next_journal_key) != 0;
  const bool too_new = (opened->version == 1 && has_keys) ||
                       (opened->version < 4 && superblock.physical_block_bytes != 0);
  if (too_new ||
      !std::ranges::equal(encode_version(superblock, opened->sequence, opened->version), image)) {
    return std::unexpected("its reserved fields are not zero");
  }
  return DecodedSuperblock{.superblock = std::move(superblock), .copy_sequence = opened->sequence};
}

bool looks_like_superblock(std::span<const std::byte> bytes) {
  return has_magic(bytes, kSuperblockMagic);
}

}  // namespace sandbay::raid
