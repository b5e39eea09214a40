// Opening an image: whose it is, whether it may be opened at all, and what the last run left in it.
//
// Nothing is stored in an image before it is accepted. An older copy becomes an image of its own:
// what is kept elsewhere about the image that it was a copy of goes on to mean that one.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <fstream>
#include <utility>

#include "nvram/image.h"
#include "nvram/image_layout.h"
#include "nvram/nvram.h"
#include "nvram/simulated_board.h"
#include "runtime/uuid.h"

namespace sandbay::nvram {
namespace {

using Opened = std::expected<std::unique_ptr<Nvram>, std::string>;

constexpr ImageId kNobody{};

std::unexpected<std::string> refusal(const NvramOptions& options, std::string_view why) {
  return std::unexpected(fmt::format("nvram image {}: {}", options.path, why));
}

std::string wrong_option(const NvramOptions& options) {
  if (options.byte_count < kLeastImageBytes || options.byte_count % kPageBytes != 0) {
    return fmt::format("cannot have {} bytes; a multiple of {}, at least {}, is accepted",
                       options.byte_count, kPageBytes, kLeastImageBytes);
  }
  if (options.boot_id.size() >= kBootIdBytes) {
    return fmt::format("boot id of {} bytes; at most {} are accepted", options.boot_id.size(),
                       kBootIdBytes - 1);
  }
  return {};
}

ImageId draw_uuid(Executor& home) { return std::bit_cast<ImageId>(make_uuid(home.random())); }

std::string format_id(const ImageId& id) { return format_uuid(std::bit_cast<Uuid>(id)); }

void set_owner(ImageHeader& header, const NvramOptions& options) {
  if (options.owner == kNobody) return;
  header.owner = options.owner;
  std::ranges::fill(header.owner_name, '\0');
  const std::string_view name = options.owner_name;
  std::ranges::copy(name.substr(0, kMostOwnerNameBytes), header.owner_name);
}

// Both copies of the header of an image that was never opened.
std::vector<std::byte> new_header(Executor& home, const NvramOptions& options) {
  ImageHeader header{};
  header.magic = kImageMagic;
  header.version = kImageVersion;
  header.uuid = draw_uuid(home);
  header.byte_count = options.byte_count;
  std::ranges::copy(options.boot_id, header.boot_id);
  header.durability = static_cast<std::uint8_t>(options.durability);
  header.clean = 1;
  set_owner(header, options);
  std::vector<std::byte> bytes(kHeaderBytes);
  for (header.generation = 0; header.generation < 2; ++header.generation) {
    seal(header);
    std::memcpy(bytes.data() + header_offset(header.generation), &header, sizeof header);
  }
  return bytes;
}

// Why this owner cannot have it; empty: it can.
std::string why_not_owned(const NvramOptions& options, const ImageHeader& header,
                          std::span<const std::byte> image) {
  if (options.owner == kNobody || header.owner == options.owner) return {};
  constexpr std::string_view kAccepted =
      "an image of this group, or a path where nothing is yet, is accepted";
  if (header.owner != kNobody) {
    return fmt::format("belongs to another group, \"{}\" ({}); {}", header.owner_name_view(),
                       format_id(header.owner), kAccepted);
  }
  if (options.least_open_counts.contains(header.uuid)) return {};
  for (std::size_t region = 0; region < header.region_count; ++region) {
    if (!holds_content(image, header, region)) continue;
    return fmt::format("is NVRAM {} of a group that is not this one, with writes in it; {}",
                       format_id(header.uuid), kAccepted);
  }
  return {};
}

std::string why_refused(const NvramOptions& options, const ImageHeader& header,
                        std::span<const std::byte> image) {
  std::string why = why_not_owned(options, header, image);
  if (!why.empty()) return why;
  const auto found = options.refused.find(header.uuid);
  return found == options.refused.end() ? std::string() : found->second;
}

}  // namespace

std::string host_boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

Task<Opened> Nvram::open(Executor& home, NvramOptions options) {
  if (const std::string why = wrong_option(options); !why.empty()) co_return refusal(options, why);
  const std::vector<std::byte> first_bytes = new_header(home, options);
  Error* const cause = std::exchange(options.cause, nullptr);  // Its owner may go before the NVRAM.
  auto image = co_await map_image(home, options.path, options.byte_count, first_bytes, cause);
  if (!image.has_value()) co_return refusal(options, image.error());
  co_return co_await start(home, std::move(options), std::move(*image));
}

Task<Opened> open_mapped(Executor& home, NvramOptions options) {
  return Nvram::open(home, std::move(options));
}

Task<Opened> Nvram::open(Executor& home, SimulatedBoard& board, NvramOptions options) {
  if (options.byte_count == 0) options.byte_count = board.byte_count();
  if (const std::string why = wrong_option(options); !why.empty()) co_return refusal(options, why);
  if (options.byte_count != board.byte_count()) {
    co_return refusal(options, fmt::format("has {} bytes; the configured {} are accepted",
                                           board.byte_count(), options.byte_count));
  }
  const std::vector<std::byte> first_bytes = new_header(home, options);
  co_return co_await start(home, std::move(options), board_image(home, board, first_bytes));
}

Task<Opened> Nvram::start(Executor& home, NvramOptions options, std::unique_ptr<Image> image) {
  const auto header = read_header(image->memory());
  if (!header.has_value()) co_return refusal(options, header.error());
  const std::string why = why_refused(options, *header, image->memory());
  if (!why.empty()) co_return refusal(options, why);
  std::unique_ptr<Nvram> self(new Nvram(home, std::move(options), std::move(image), *header));
  self->judge_content();
  // First what is there, since the header may promise more durability than the last one did. Then
  // the header, before anything else is stored: a host that goes down from here on finds the image
  // marked as in use.
  Error saved = co_await self->join_round();
  if (saved == Error::kNone) saved = co_await self->save_header();
  if (saved != Error::kNone) {
    co_return refusal(self->options_, fmt::format("cannot be written: {}", describe(saved)));
  }
  co_return self;
}

Nvram::Nvram(Executor& home, NvramOptions options, std::unique_ptr<Image> image,
             const ImageHeader& header)
    : home_(home),
      options_(std::move(options)),
      image_(std::move(image)),
      header_(std::make_unique<ImageHeader>(header)),
      battery_(options_.battery),
      uuid_(header.uuid),
      open_count_(header.open_count + 1),
      found_(image_->found()) {}

Nvram::~Nvram() {
  assert(!round_running_);
  assert(claimed_.empty() && logs_.empty());
}

// If two images had one UUID, an owner could not say which one it means.
void Nvram::become_another() {
  older_copy_of_ = uuid_;
  uuid_ = draw_uuid(home_);
  header_->uuid = uuid_;
}

// Judges the content by the marks of the last run and by this host's boot id.
void Nvram::judge_content() {
  ImageHeader& header = *header_;
  const auto least = options_.least_open_counts.find(header.uuid);
  const bool stale = least != options_.least_open_counts.end() && header.open_count < least->second;
  const bool crashed = header.clean == 0 && header.boot_id_view() != options_.boot_id;
  const bool survives = header.durability == static_cast<std::uint8_t>(Durability::kHost);
  for (RegionEntry& entry : std::span(header.regions).first(header.region_count)) {
    if (entry.is_free() || (entry.flags & kRegionNew) != 0) continue;
    if (crashed && survives) {
      entry.flags |= kRegionAfterHostCrash;
      entry.flags &= ~kRegionSettled;
    }
    const Loss loss = stale ? Loss::kStale : crashed && !survives ? Loss::kHostCrash : Loss::kNone;
    if (loss == Loss::kNone) continue;
    // After a power cut the content is still what it was, and tells what was lost. Not so now.
    if (entry.loss == 0 || entry.loss == static_cast<std::uint32_t>(Loss::kPowerCut)) {
      entry.loss = static_cast<std::uint32_t>(loss);
    }
    entry.flags &= ~kRegionSettled;
  }
  if (stale) {
    open_count_ = least->second + 1;
    become_another();
  }
  header.version = kImageVersion;
  header.open_count = open_count_;
  header.clean = 0;
  header.durability = static_cast<std::uint8_t>(options_.durability);
  std::ranges::fill(header.boot_id, '\0');
  std::ranges::copy(options_.boot_id, header.boot_id);
  set_owner(header, options_);
}

}  // namespace sandbay::nvram
