// Records: how the group's provisioning stands in the metadata store. Values are JSON objects.
//
//   group              {"format":1,"uuid":…,"name":…}
//   volume/UUID        what a volume is: name, backing, size, target, LUN …; the smaller size that
//                      it is about to have
//   target/NAME        what was added to a target at run time: access records, with their secrets
//   raid/UUID          what a RAID set is, and its newest event; see raid/assembly.h
//   used/UUID          the block of that set behind which it is known to read as zeros, since no
//                      volume has ever been there and its drives were proven blank; without one
//                      nothing is known of any block
//   making/NAME        a set that is about to be made: its drives, its UUID and theirs. Whoever
//                      finds one at start erases what was made of it, by the UUIDs
//   nvram/UUID         how often that image had been opened when it was used last, as the NVRAM or
//                      as its mirror: one that was opened fewer times is an old copy
//   mirror             the image of the partner controller that is used with the NVRAM, and whether
//                      it still has what that has
//   dirty/UUID         the NVRAM in which there may be writes that are not on that set yet. Without
//                      one there are none, whatever some NVRAM says. Format 2 if nobody has
//                      confirmed them since an import: older daemons do not start with that
//   lost/UUID          acknowledged writes to that set that the NVRAM has lost, until somebody has
//                      taken notice
//   clearing/UUID      what of that volume's place on its set still holds what was there before it
//                      (cleared_areas.h). Without one, nothing
//   clearing/UUID/...  the parts of that, of places that are cleared here and there
//   reservation/UUID, sanitize/UUID, atomic/UUID/LBA   of units: see unit_book.h
//   event/NUMBER       what happened, sixteen hexadecimal digits, the newest last; see event_log.h
//   audit/NUMBER       who asked for which change; see audit_log.h
//   audit-begun/NUMBER the same, of a change whose outcome is not known yet
//   intent/UUID        a file of a volume that is about to be made or removed: its file name in
//                      STATE/volumes. Whoever finds one at start removes the file, unless the
//                      volume has its record: then its deletion was only begun, and it stays.
//
//   pool/UUID, snapshot/UUID, map/UUID/…   see pool_records.h
//
// A record that does not decode is damage and stops the start; it is never passed over, unless it
// is an event.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "block/block_device.h"
#include "group/configuration.h"
#include "group/event_log.h"
#include "group/naa.h"
#include "raid/superblock.h"

namespace sandbay::group {

inline constexpr std::string_view kGroupKey = "group";
inline constexpr std::string_view kVolumePrefix = "volume/";
inline constexpr std::string_view kTargetPrefix = "target/";
inline constexpr std::string_view kIntentPrefix = "intent/";
inline constexpr std::string_view kSetPrefix = "raid/";
inline constexpr std::string_view kUsedPrefix = "used/";
inline constexpr std::string_view kMakingPrefix = "making/";
inline constexpr std::string_view kNvramPrefix = "nvram/";
inline constexpr std::string_view kMirrorKey = "mirror";
// Since an import: the NVRAM may have writes of sets that the metadata do not know of, unless it
// was made since.
inline constexpr std::string_view kUncheckedKey = "nvram-unchecked";
inline constexpr std::string_view kDirtyPrefix = "dirty/";
inline constexpr std::string_view kLostPrefix = "lost/";
inline constexpr std::string_view kClearingPrefix = "clearing/";
inline constexpr std::string_view kEventPrefix = "event/";

struct GroupRecord {
  std::string uuid;
  std::string name;
};

// The part of a set that a volume is.
struct Placement {
  Uuid set{};
  Extent extent;
  bool operator==(const Placement&) const = default;
};

// What a clone begins as: a branch of its pool's map as one of its generations was.
struct CloneSource {
  std::uint64_t branch = 0;
  std::uint32_t generation = 0;
};

struct VolumeRecord {
  Uuid uuid{};
  VolumeSpecification specification;   // Size, target and LUN are always set.
  std::optional<Placement> placement;  // With Backing::kRaid.
  std::optional<Uuid> pool;            // With Backing::kPool.
  bool online = true;
  std::string origin;      // Of a clone: the UUID of what it began as, a snapshot or a volume.
  bool full_copy = false;  // Of a clone on a pool: everything is copied, until it needs no parent.
  // On a pool: bytes that it will have, 0: as many as it has. Whoever finds that at a start ends
  // it: what lies behind may be lost already.
  std::uint64_t shrink_to = 0;
  // Not kept; of one that is about to be made.
  bool open_block_bytes = false;  // The pool's blocks count, whatever stands above.
  std::optional<CloneSource> source;
};

struct SetRecord {
  Uuid uuid{};
  std::string name;  // Empty, and no blocks: the set has not been seen yet.
  raid::Event event = 0;
  bool imported = false;  // The event is that of an export: the set has perhaps gone on since.
  Geometry geometry;      // As hosts were shown it last.
};

// Drives and UUIDs are in the order of roles.
struct MakingRecord {
  Uuid set{};
  std::vector<std::string> drives;
  std::vector<Uuid> drive_uuids;
};

// Of images of NVRAM.
using ImageUuid = std::array<std::byte, 16>;

// In which NVRAM a set's newest writes are.
struct DirtyRecord {
  ImageUuid nvram{};
  bool unconfirmed = false;  // Found there after an import: nobody has said that they count.
  ImageUuid exported{};      // Then: the import names this other one; or zeros.
};

struct MirrorRecord {
  ImageUuid image{};
  ImageUuid nvram{};  // Whose mirror it is.
  bool stale = false;
  bool operator==(const MirrorRecord&) const = default;
};

struct LostRange {
  std::uint64_t volume = 0;  // Its number.
  Extent extent;             // Of the set; no blocks: nobody knows which.
  std::string why;           // "host crash", "damaged" …
  bool operator==(const LostRange&) const = default;
};

struct AddedAccess {
  std::uint64_t id = 0;
  iscsi::AccessRecord record;
};

struct TargetRecord {
  std::string name;
  std::vector<AddedAccess> access;
  std::uint64_t next_id = 1;  // Numbers are never used again.
};

std::string volume_key(const Uuid& uuid);
std::string target_key(std::string_view name);
std::string intent_key(const Uuid& uuid);
std::string volume_file_name(const Uuid& uuid);  // "UUID.img"
std::string set_key(const Uuid& uuid);
std::string used_key(const Uuid& uuid);
std::string making_key(std::string_view name);
std::string dirty_key(const Uuid& uuid);
std::string lost_key(const Uuid& uuid);
std::string nvram_key(const ImageUuid& image);
std::string clearing_key(const Uuid& volume);
std::string event_key(std::uint64_t number);

std::string encode(const GroupRecord& record);
std::string encode(const VolumeRecord& record);
std::string encode(const TargetRecord& record);
std::string encode(const SetRecord& record);
std::string encode(const MakingRecord& record);
std::string encode(const EventInfo& event);
std::string encode(const MirrorRecord& record);
std::string encode(const DirtyRecord& record);
std::string encode(const std::vector<LostRange>& ranges);
std::string encode_used(std::uint64_t end_block);
std::string encode_nvram(std::uint64_t open_count);
std::string encode_unchecked(const std::vector<ImageUuid>& made_since);

// The error is half a sentence.
std::expected<GroupRecord, std::string> decode_group(std::string_view text);
std::expected<VolumeRecord, std::string> decode_volume(std::string_view text);
std::expected<TargetRecord, std::string> decode_target(std::string_view text);
std::expected<SetRecord, std::string> decode_set(std::string_view text);
std::expected<EventInfo, std::string> decode_event(std::string_view text);
std::expected<std::uint64_t, std::string> decode_used(std::string_view text);
std::expected<std::uint64_t, std::string> decode_nvram(std::string_view text);
// The NVRAMs that were made since.
std::expected<std::vector<ImageUuid>, std::string> decode_unchecked(std::string_view text);
std::expected<MakingRecord, std::string> decode_making(std::string_view text);
std::expected<MirrorRecord, std::string> decode_mirror(std::string_view text);
std::expected<DirtyRecord, std::string> decode_dirty(std::string_view text);
std::expected<std::vector<LostRange>, std::string> decode_lost(std::string_view text);

}  // namespace sandbay::group
