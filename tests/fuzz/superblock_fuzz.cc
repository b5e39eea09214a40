// Fuzzes what a set reads from its drives: superblocks, region maps and lists of lost sectors. The
// first byte chooses which, and whether the input is sealed first: a checksum that matches is easy
// to come by, and what stands behind it is then judged by itself.
//
// Nothing that is read may reach an assertion, and what is accepted is the same when it is written
// and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "raid/assembly.h"
#include "raid/metadata_image.h"

namespace sandbay::raid {
namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void read_superblock(std::span<const std::byte> bytes) {
  const auto read = decode_superblock(bytes);
  if (!read.has_value()) {
    check(!read.error().empty());
    return;
  }
  // What was of an older version is written in the newest.
  const auto again = decode_superblock(encode(read->superblock, read->copy_sequence));
  check(again.has_value() && again->superblock == read->superblock &&
        again->copy_sequence == read->copy_sequence);
  // It may be the only one of its set, and its set's drive may be of any size.
  for (const std::uint64_t blocks : {std::uint64_t{2048}, std::uint64_t{1} << 50}) {
    Candidate drive{.name = "drive",
                    .block_bytes = read->superblock.block_bytes,
                    .block_count = blocks,
                    .contents = {.kind = DriveContents::Kind::kSuperblock,
                                 .superblock = read->superblock,
                                 .error = Error::kNone,
                                 .why = {}}};
    const Assembly found = assemble(std::span(&drive, 1), {});
    check(found.sets.size() + found.spares.size() + found.strangers.size() >= 1);
  }
}

void read_region_map(std::span<const std::byte> bytes) {
  auto read = RegionMap::decode(bytes);
  if (!read.has_value()) return;
  const std::vector<std::byte> image = read->encode_next();
  check(image.size() <= kRegionMapBytes);
  const auto again = RegionMap::decode(image);
  check(again.has_value() && again->same_content(*read));
}

void read_lost_sectors(std::span<const std::byte> bytes) {
  auto read = LostSectors::decode(bytes);
  if (!read.has_value()) return;
  const std::vector<std::byte> image = read->encode_next();
  check(image.size() <= kLostSectorsBytes);
  const auto again = LostSectors::decode(image);
  check(again.has_value() && again->extents() == read->extents());
}

void run(std::span<const std::uint8_t> input) {
  if (input.empty()) return;
  const unsigned what = input[0] % 3;
  const bool sealed = (input[0] & 0x80U) != 0;
  const auto given = std::as_bytes(input.subspan(1));
  std::vector<std::byte> bytes(given.begin(), given.end());
  if (what == 0 && sealed) bytes.resize(kSuperblockBytes);
  const std::string_view magics[] = {"SBRAIDSB", kRegionMapMagic, kLostSectorsMagic};
  if (sealed && bytes.size() >= kImageFrameBytes) {
    const Uuid uuid = get_uuid(bytes, kImageFrameBytes - sizeof(Uuid));
    const std::uint32_t version = what == 1 ? 1 : 1 + (input[0] >> 6U & 1U);
    seal_image(bytes, {.magic = magics[what], .version = version, .sequence = 1, .uuid = uuid});
  }
  if (what == 0) read_superblock(bytes);
  if (what == 1) read_region_map(bytes);
  if (what == 2) read_lost_sectors(bytes);
}

}  // namespace
}  // namespace sandbay::raid

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sandbay::raid::run({data, size});
  return 0;
}
