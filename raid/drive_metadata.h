// DriveMetadata: reads and writes what a set keeps at the head of a drive, in pairs of copies of
// which one is always whole, whatever happens.
//
// A superblock is written over the older or broken copy, and when that is durable over the other:
// it changes as one. Of region maps and lost sectors each write goes to the slot that does not hold
// the newest, and is durable when it ends. An error means that it is not known what is on the
// drive now: the old or the new. The next write goes to the same place again, never to the copy
// that is known to be whole.
//
// One operation of a kind at a time; the object knows what it wrote and so outlives none of it. It
// bounds no operation in time: a raid::Drive does, and its bookkeeping is then counted apart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "block/block_device.h"
#include "raid/lost_sectors.h"
#include "raid/region_map.h"
#include "raid/superblock.h"

namespace sandbay::raid {

class Drive;

// What stands where a superblock should.
struct DriveContents {
  enum class Kind : std::uint8_t {
    kSuperblock,  // `superblock` is there.
    kBlank,       // Zeros wherever metadata of any kind would be; see read_contents().
    kForeign,     // Something that is not ours.
    kDamaged,     // A superblock of ours of which no copy is whole.
    kUnreadable,  // The drive does not answer; `error` says how.
  };
  Kind kind = Kind::kUnreadable;
  std::optional<Superblock> superblock;
  Error error = Error::kNone;
  // A half-sentence: why there is none, or (kSuperblock) what is wrong with the other copy; may be
  // empty.
  std::string why;
};

class DriveMetadata {
 public:
  using Image = std::shared_ptr<const std::vector<std::byte>>;

  // Borrows the device or the drive.
  explicit DriveMetadata(BlockDevice& device);
  explicit DriveMetadata(Drive& drive);

  // Reads both superblocks and, if there is none, enough of the drive to tell whether anything is
  // on it: its first 2 MiB, the first MiB where a data area begins by default, and the last 64 KiB.
  Task<DriveContents> read_contents();
  Task<Error> write_superblock(Superblock superblock);
  // Both copies become zeros, durably: the drive belongs to nothing any more.
  Task<Error> erase_superblock();
  // Then whatever else read_contents() would find, so that the drive is blank, durably.
  Task<Error> erase_all();

  // The newer whole copy of that set; the error says why there is none.
  Task<std::expected<RegionMap, std::string>> read_region_map(Uuid set_uuid);
  Task<std::expected<LostSectors, std::string>> read_lost_sectors(Uuid set_uuid);
  // Of encode_next(); the same image may be on its way to several drives. Images are of one set.
  Task<Error> write_region_map(Image image);
  Task<Error> write_lost_sectors(Image image);

 private:
  // Two slots of which one holds the newest whole image.
  struct Area {
    std::array<std::uint64_t, 2> offset;
    std::size_t slot_bytes;
    std::string_view magic;
    std::uint32_t newest_version;
  };
  static constexpr Area kRegionMapArea{kRegionMapOffset, kRegionMapBytes, kRegionMapMagic, 1};
  static constexpr Area kLostSectorsArea{kLostSectorsOffset, kLostSectorsBytes, kLostSectorsMagic,
                                         kLostSectorsVersion};
  struct Pair {
    const Area* area;
    bool known = false;                 // The rest has been read.
    std::optional<std::size_t> newest;  // Nothing: no slot is whole.
    std::uint64_t sequence = 0;
  };
  struct Copy {
    std::vector<std::byte> bytes;
    Error error = Error::kNone;
  };
  // A superblock as it stands on the drive; empty if that is not known.
  struct SuperblockCopy {
    std::optional<DecodedSuperblock> decoded;
    bool looks_ours = false;
    Error error = Error::kNone;
    std::string why;
  };

  Task<Completion> submit(Request request);
  Task<Copy> read(std::uint64_t offset, std::size_t byte_count);
  Task<Error> write(std::uint64_t offset, Image image);
  Task<void> find_superblocks();
  std::optional<std::size_t> newest_superblock() const;
  Task<DriveContents> look_for_data();
  Task<std::expected<std::vector<std::byte>, std::string>> read_newest(Pair* pair, Uuid set_uuid);
  Task<Error> write_other(Pair* pair, Image image);

  BlockDevice* device_;
  Drive* drive_ = nullptr;
  std::optional<std::array<SuperblockCopy, 2>> superblocks_;  // Read when first needed.
  Pair region_map_{.area = &kRegionMapArea};
  Pair lost_sectors_{.area = &kLostSectorsArea};
};

}  // namespace sandbay::raid
