// Both kinds of pair end every write with FUA: what is written here must be durable, the rest of
// the drive need not be.
#include "raid/drive_metadata.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include <fmt/core.h>

#include "raid/drive.h"
#include "raid/metadata_image.h"
#include "runtime/known.h"

namespace sandbay::raid {
namespace {

// So much in one request, and no more than the device takes.
constexpr std::size_t kMostIoBytes = 128u << 10;
// Images are written in whole pieces of so much: no drive has larger physical blocks.
constexpr std::size_t kImagePadding = 4096;

std::size_t io_bytes(const Geometry& geometry) {
  const std::size_t most = geometry.maximum_io_blocks == 0
                               ? kMostIoBytes
                               : std::size_t{geometry.maximum_io_blocks} * geometry.block_bytes;
  return std::min(most, kMostIoBytes);
}

std::uint64_t device_bytes(const Geometry& geometry) {
  return geometry.block_count * geometry.block_bytes;
}

// Where something stands on a drive that is not blank: first byte and end of each place.
std::array<std::pair<std::uint64_t, std::uint64_t>, 3> told_places(std::uint64_t end) {
  constexpr std::uint64_t kMiB = 1u << 20;
  constexpr std::uint64_t kTail = 64u << 10;  // A second partition table, for one.
  return {{{0, std::min(2 * kMiB, end)},
           {kDefaultDataOffset, std::min(kDefaultDataOffset + kMiB, end)},
           {(end - kTail) / kImagePadding * kImagePadding, end}}};
}

}  // namespace

DriveMetadata::DriveMetadata(BlockDevice& device) : device_(&device) {}
DriveMetadata::DriveMetadata(Drive& drive) : device_(&drive.device()), drive_(&drive) {}

// ---- bytes --------------------------------------------------------------------------------------

Task<Completion> DriveMetadata::submit(Request request) {
  if (drive_ != nullptr) return drive_->submit_metadata(std::move(request));
  return device_->submit(std::move(request));
}

Task<DriveMetadata::Copy> DriveMetadata::read(std::uint64_t offset, std::size_t byte_count) {
  const Geometry& geometry = device_->geometry();
  Copy copy;
  copy.bytes.resize(byte_count);
  for (std::size_t at = 0; at < byte_count;) {
    const std::size_t piece = std::min(byte_count - at, io_bytes(geometry));
    Request request{.operation = Operation::kRead,
                    .extent = {.first = (offset + at) / geometry.block_bytes,
                               .block_count = piece / geometry.block_bytes}};
    request.data = co_await device_->home().buffers().allocate(piece);
    const Completion done = co_await submit(std::move(request));
    copy.error = done.error;
    if (copy.error != Error::kNone) break;
    done.data.copy_to(std::span(copy.bytes).subspan(at, piece));
    at += piece;
  }
  co_return copy;
}

Task<Error> DriveMetadata::write(std::uint64_t offset, Image image) {
  const Geometry& geometry = device_->geometry();
  const std::size_t padded = (image->size() + kImagePadding - 1) / kImagePadding * kImagePadding;
  for (std::size_t at = 0; at < padded;) {
    const std::size_t piece = std::min(padded - at, io_bytes(geometry));
    Request request{.operation = Operation::kWrite,
                    .force_unit_access = true,
                    .extent = {.first = (offset + at) / geometry.block_bytes,
                               .block_count = piece / geometry.block_bytes}};
    request.data = co_await device_->home().buffers().allocate(piece);
    const std::size_t there = at < image->size() ? std::min(piece, image->size() - at) : 0;
    if (there < piece) request.data.fill_zero();
    if (there > 0) request.data.copy_from(std::span(*image).subspan(at, there));
    const Completion done = co_await submit(std::move(request));
    if (done.error != Error::kNone) co_return done.error;
    at += piece;
  }
  co_return Error::kNone;
}

// ---- superblocks --------------------------------------------------------------------------------

Task<void> DriveMetadata::find_superblocks() {
  std::array<SuperblockCopy, 2> found;
  for (std::size_t at = 0; at < found.size(); ++at) {
    SuperblockCopy& copy = found[at];
    const Copy read_copy = co_await read(kSuperblockOffset[at], kSuperblockBytes);
    copy.error = read_copy.error;
    if (copy.error != Error::kNone) {
      copy.why = fmt::format("it cannot be read: {}", describe(copy.error));
      continue;
    }
    auto decoded = decode_superblock(read_copy.bytes);
    copy.looks_ours = looks_like_superblock(read_copy.bytes);
    if (decoded.has_value()) {
      copy.decoded = std::move(*decoded);
    } else {
      copy.why = std::move(decoded.error());
    }
  }
  superblocks_ = std::move(found);
}

std::optional<std::size_t> DriveMetadata::newest_superblock() const {
  assert(superblocks_.has_value());
  std::optional<std::size_t> newest;
  for (std::size_t at = 0; at < superblocks_->size(); ++at) {
    const auto& decoded = (*superblocks_)[at].decoded;
    if (!decoded.has_value()) continue;
    if (!newest.has_value() ||
        decoded->copy_sequence > known((*superblocks_)[*newest].decoded).copy_sequence) {
      newest = at;
    }
  }
  return newest;
}

Task<DriveContents> DriveMetadata::read_contents() {
  DriveContents contents;
  if (device_bytes(device_->geometry()) < kJournalOffset) {
    contents.kind = DriveContents::Kind::kForeign;
    contents.why = fmt::format("at {} bytes it is too small for a superblock",
                               device_bytes(device_->geometry()));
    co_return contents;
  }
  co_await find_superblocks();
  const std::array<SuperblockCopy, 2>& copies = known(superblocks_);
  if (const auto newest = newest_superblock()) {
    contents.kind = DriveContents::Kind::kSuperblock;
    contents.superblock = known(copies[*newest].decoded).superblock;
    const SuperblockCopy& other = copies[1 - *newest];
    if (!other.decoded.has_value()) {
      contents.why = fmt::format("of its two superblocks the one at byte {} is not whole: {}",
                                 kSuperblockOffset[1 - *newest], other.why);
    }
    co_return contents;
  }
  for (std::size_t at = 0; at < copies.size(); ++at) {
    if (!copies[at].looks_ours) continue;
    contents.kind = DriveContents::Kind::kDamaged;
    contents.why = fmt::format("its superblock at byte {} is damaged: {}", kSuperblockOffset[at],
                               copies[at].why);
    co_return contents;
  }
  for (std::size_t at = 0; at < copies.size(); ++at) {
    if (copies[at].error == Error::kNone) continue;
    contents.kind = DriveContents::Kind::kUnreadable;
    contents.error = copies[at].error;
    contents.why = fmt::format("its superblock at byte {} cannot be read: {}",
                               kSuperblockOffset[at], describe(copies[at].error));
    co_return contents;
  }
  co_return co_await look_for_data();
}

Task<DriveContents> DriveMetadata::look_for_data() {
  DriveContents contents;
  for (const auto& [first, last] : told_places(device_bytes(device_->geometry()))) {
    for (std::uint64_t at = first; at < last;) {
      const auto piece = static_cast<std::size_t>(std::min<std::uint64_t>(kMostIoBytes, last - at));
      const Copy copy = co_await read(at, piece);
      if (copy.error != Error::kNone) {
        contents.kind = DriveContents::Kind::kUnreadable;
        contents.error = copy.error;
        contents.why =
            fmt::format("its bytes from {} on cannot be read: {}", at, describe(copy.error));
        co_return contents;
      }
      if (!all_zeros(copy.bytes)) {
        contents.kind = DriveContents::Kind::kForeign;
        contents.why = fmt::format("it has no superblock, and other data near byte {}", at);
        co_return contents;
      }
      at += piece;
    }
  }
  contents.kind = DriveContents::Kind::kBlank;
  contents.why = "it is blank";
  co_return contents;
}

Task<Error> DriveMetadata::write_superblock(Superblock superblock) {
  if (device_bytes(device_->geometry()) < kJournalOffset) co_return Error::kNoSpace;
  if (!superblocks_.has_value()) co_await find_superblocks();
  std::uint64_t sequence = 0;
  for (const SuperblockCopy& copy : known(superblocks_)) {
    // What cannot be read may be mended by writing; a drive that does not answer is left alone.
    if (copy.error != Error::kNone && copy.error != Error::kMediumError) {
      const Error error = copy.error;
      superblocks_.reset();
      co_return error;
    }
    if (copy.decoded.has_value()) sequence = std::max(sequence, copy.decoded->copy_sequence);
  }
  ++sequence;
  const auto image = std::make_shared<const std::vector<std::byte>>(encode(superblock, sequence));
  const std::size_t newest = newest_superblock().value_or(1);
  for (const std::size_t at : {1 - newest, newest}) {
    SuperblockCopy& copy = known(superblocks_)[at];
    copy = {};
    const Error error = co_await write(kSuperblockOffset[at], image);
    if (error != Error::kNone) co_return error;
    copy.decoded = DecodedSuperblock{.superblock = superblock, .copy_sequence = sequence};
  }
  co_return Error::kNone;
}

Task<Error> DriveMetadata::erase_superblock() {
  const auto zeros = std::make_shared<const std::vector<std::byte>>(kSuperblockBytes);
  if (!superblocks_.has_value()) co_await find_superblocks();
  // The older first, else the one before the last would count for a moment.
  const std::size_t newest = newest_superblock().value_or(1);
  for (const std::size_t at : {1 - newest, newest}) {
    known(superblocks_)[at] = {};
    const Error error = co_await write(kSuperblockOffset[at], zeros);
    if (error != Error::kNone) co_return error;
  }
  co_return Error::kNone;
}

// The superblocks first: cut short, this leaves a drive that is not ours, never half of a set.
Task<Error> DriveMetadata::erase_all() {
  const std::uint64_t end = device_bytes(device_->geometry());
  if (end < kJournalOffset) co_return Error::kNoSpace;
  const Error erased = co_await erase_superblock();
  if (erased != Error::kNone) co_return erased;
  const Geometry& geometry = device_->geometry();
  for (const auto& [first, last] : told_places(end)) {
    for (std::uint64_t at = first; at < last;) {
      const std::uint64_t piece = std::min<std::uint64_t>(io_bytes(geometry), last - at);
      Request request{.operation = Operation::kWriteZeroes,
                      .force_unit_access = true,
                      .extent = {.first = at / geometry.block_bytes,
                                 .block_count = piece / geometry.block_bytes}};
      const Completion done = co_await submit(std::move(request));
      if (done.error != Error::kNone) co_return done.error;
      at += piece;
    }
  }
  region_map_.known = lost_sectors_.known = false;
  co_return Error::kNone;
}

// ---- region maps and lost sectors ---------------------------------------------------------------

Task<std::expected<std::vector<std::byte>, std::string>> DriveMetadata::read_newest(Pair* pair,
                                                                                    Uuid set_uuid) {
  std::vector<std::byte> newest;
  std::string why;
  *pair = Pair{.area = pair->area};
  pair->known = true;
  for (std::size_t at = 0; at < pair->area->offset.size(); ++at) {
    Copy copy = co_await read(pair->area->offset[at], pair->area->slot_bytes);
    if (copy.error != Error::kNone) {
      why += fmt::format("{}at byte {}: {}", why.empty() ? "" : "; ", pair->area->offset[at],
                         describe(copy.error));
      continue;
    }
    const auto opened = open_image(copy.bytes, pair->area->magic, pair->area->newest_version);
    if (!opened.has_value() || opened->uuid != set_uuid) {
      why += fmt::format("{}at byte {}: {}", why.empty() ? "" : "; ", pair->area->offset[at],
                         opened.has_value() ? "it is of another set" : opened.error());
      continue;
    }
    if (pair->newest.has_value() && opened->sequence <= pair->sequence) continue;
    pair->newest = at;
    pair->sequence = opened->sequence;
    newest = std::move(copy.bytes);
  }
  if (!pair->newest.has_value()) co_return std::unexpected(std::move(why));
  co_return newest;
}

Task<Error> DriveMetadata::write_other(Pair* pair, Image image) {
  assert(image->size() <= pair->area->slot_bytes);
  const auto opened = open_image(*image, pair->area->magic, pair->area->newest_version);
  assert(opened.has_value());
  if (!pair->known) co_await read_newest(pair, opened->uuid);
  // What stands here may be newer by its sequence, and yet of a past that the set has left behind:
  // then it must not survive.
  const bool both = pair->newest.has_value() && pair->sequence >= opened->sequence;
  const std::size_t target = pair->newest.has_value() ? 1 - *pair->newest : 0;
  const Error error = co_await write(pair->area->offset[target], image);
  if (error != Error::kNone) co_return error;
  if (both) {
    const Error other = co_await write(pair->area->offset[1 - target], image);
    if (other != Error::kNone) co_return other;
  }
  pair->newest = target;
  pair->sequence = opened->sequence;
  co_return Error::kNone;
}

Task<std::expected<RegionMap, std::string>> DriveMetadata::read_region_map(Uuid set_uuid) {
  const auto bytes = co_await read_newest(&region_map_, set_uuid);
  if (!bytes.has_value()) co_return std::unexpected(bytes.error());
  co_return RegionMap::decode(*bytes);
}

Task<std::expected<LostSectors, std::string>> DriveMetadata::read_lost_sectors(Uuid set_uuid) {
  const auto bytes = co_await read_newest(&lost_sectors_, set_uuid);
  if (!bytes.has_value()) co_return std::unexpected(bytes.error());
  co_return LostSectors::decode(*bytes);
}

Task<Error> DriveMetadata::write_region_map(Image image) {
  return write_other(&region_map_, std::move(image));
}

Task<Error> DriveMetadata::write_lost_sectors(Image image) {
  return write_other(&lost_sectors_, std::move(image));
}

}  // namespace sandbay::raid
