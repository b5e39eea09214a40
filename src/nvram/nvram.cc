// Nvram and Region at work: the region table, and the shared syncs. How an image is opened:
// nvram_open.cc.
//
// A round is one sync of the image for all who asked before it began. Every log writes its control
// block as a round begins and takes note as it ends. The header is written into both copies, the
// second after the first is durable.
#include "nvram/nvram.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <utility>

#include "nvram/damage.h"
#include "nvram/image.h"
#include "nvram/image_layout.h"
#include "nvram/record_log.h"
#include "runtime/in_time.h"

namespace sandbay::nvram {

std::string_view describe(Loss loss) {
  switch (loss) {
    case Loss::kNone:
      return "none";
    case Loss::kHostCrash:
      return "host crash";
    case Loss::kPowerCut:
      return "power cut";
    case Loss::kStale:
      return "stale image";
  }
  return "unknown";
}

// Into both copies, so that damage to one costs nothing; the second one only when the first is
// durable. The header lock is held, or nobody else is there.
Task<Error> Nvram::save_header() {
  for (int copy = 0; copy < 2; ++copy) {
    if (failure_ != Error::kNone) co_return failure_;
    ++header_->generation;
    seal(*header_);
    store(image().data() + header_offset(header_->generation), header_.get(), sizeof *header_);
    const Error synced = co_await join_round();
    if (synced != Error::kNone) co_return synced;
  }
  co_return Error::kNone;
}

// Regions ---------------------------------------------------------------------------------------

const Region* Nvram::owned_region(std::string_view name) const {
  const auto found = std::ranges::find(claimed_, name, &Region::name);
  return found == claimed_.end() ? nullptr : *found;
}

std::optional<std::size_t> Nvram::index_of(std::string_view name) const {
  for (std::size_t index = 0; index < header_->region_count; ++index) {
    if (header_->regions[index].name_view() == name) return index;
  }
  return std::nullopt;
}

Nvram::Gap Nvram::free_gap(std::uint64_t wanted) const {
  std::vector<const RegionEntry*> by_offset;
  for (const RegionEntry& entry : std::span(header_->regions).first(header_->region_count)) {
    if (!entry.is_free()) by_offset.push_back(&entry);
  }
  std::ranges::sort(by_offset, {}, [](const RegionEntry* entry) { return entry->offset; });
  Gap longest{.offset = kHeaderBytes};
  std::uint64_t at = kHeaderBytes;
  for (std::size_t index = 0; index <= by_offset.size(); ++index) {
    const bool last = index == by_offset.size();
    const std::uint64_t end = last ? options_.byte_count : by_offset[index]->offset;
    const Gap gap{.offset = at, .byte_count = end - at};
    if (wanted != 0 && gap.byte_count >= wanted) return gap;
    if (gap.byte_count > longest.byte_count) longest = gap;
    if (!last) at = by_offset[index]->offset + by_offset[index]->byte_count;
  }
  return longest;
}

std::string Nvram::why_not(const std::string& name, std::uint64_t byte_count) const {
  const auto prefix = [&] { return fmt::format("nvram image {}: region {}", options_.path, name); };
  if (name.empty() || name.size() > kMostRegionNameBytes || name.contains('\0')) {
    return fmt::format("{}: names of 1 to {} bytes are accepted", prefix(), kMostRegionNameBytes);
  }
  if (byte_count == 0 || byte_count % kPageBytes != 0) {
    return fmt::format("{}: cannot have {} bytes; a positive multiple of {} is accepted", prefix(),
                       byte_count, kPageBytes);
  }
  if (owned_region(name) != nullptr) {
    return fmt::format("{}: has an owner already; one is accepted", prefix());
  }
  if (const auto index = index_of(name); index.has_value()) {
    const RegionEntry& entry = header_->regions[*index];
    if (entry.byte_count == byte_count) return {};
    return fmt::format("{}: has {} bytes; the configured {} are accepted", prefix(),
                       entry.byte_count, byte_count);
  }
  if (regions().size() == kMostRegions) {
    return fmt::format("{}: {} regions are there; no more are accepted", prefix(), kMostRegions);
  }
  const std::uint64_t free = free_gap(byte_count).byte_count;
  if (byte_count > free) {
    return fmt::format("{}: needs {} bytes; at most {} are free", prefix(), byte_count, free);
  }
  return {};
}

// What is free is zeros.
std::size_t Nvram::add_region(const std::string& name, std::uint64_t byte_count) {
  RegionEntry entry{};
  std::ranges::copy(name, entry.name);
  entry.offset = free_gap(byte_count).offset;
  entry.byte_count = byte_count;
  entry.flags = kRegionNew;
  std::size_t index = 0;
  while (index < header_->region_count && !header_->regions[index].is_free()) ++index;
  header_->regions[index] = entry;
  if (index == header_->region_count) ++header_->region_count;
  return index;
}

Task<Result<std::unique_ptr<Region>, std::string>> Nvram::claim(std::string name,
                                                                std::uint64_t byte_count) {
  co_await header_lock_.lock();
  std::string refused = why_not(name, byte_count);
  if (!refused.empty()) {
    header_lock_.unlock();
    co_return std::unexpected(std::move(refused));
  }
  const auto there = index_of(name);
  const std::size_t index = there.has_value() ? *there : add_region(name, byte_count);
  Error saved = failure_;
  if (!there.has_value()) saved = co_await save_header();
  header_lock_.unlock();
  if (saved != Error::kNone) {
    co_return std::unexpected(fmt::format("nvram image {}: region {}: cannot be written: {}",
                                          options_.path, name, sandbay::describe(saved)));
  }
  const RegionEntry& entry = header_->regions[index];
  std::unique_ptr<Region> region(
      new Region(*this, std::move(name), image().subspan(entry.offset, entry.byte_count), index));
  region->loss_ = static_cast<Loss>(entry.loss);
  region->after_host_crash_ = (entry.flags & kRegionAfterHostCrash) != 0;
  region->settled_ = (entry.flags & kRegionSettled) != 0;
  region->new_ = (entry.flags & kRegionNew) != 0;
  co_return region;
}

std::vector<RegionState> Nvram::regions() const {
  std::vector<RegionState> states;
  for (const RegionEntry& entry : std::span(header_->regions).first(header_->region_count)) {
    if (entry.is_free()) continue;
    const std::string name(entry.name_view());
    const bool claimed = owned_region(name) != nullptr;
    states.push_back({.name = name,
                      .byte_count = entry.byte_count,
                      .loss = static_cast<Loss>(entry.loss),
                      .claimed = claimed,
                      .is_new = (entry.flags & kRegionNew) != 0});
  }
  return states;
}

// The content first: what is free is zeros, wherever this is interrupted.
Task<Result<void, std::string>> Nvram::release(std::string name) {
  co_await header_lock_.lock();
  const auto index = index_of(name);
  const bool owned = owned_region(name) != nullptr;
  Error error = failure_;
  if (index.has_value() && !owned && error == Error::kNone) {
    static constexpr std::array<std::byte, kPageBytes> kZeros{};
    RegionEntry& entry = header_->regions[*index];
    for (std::uint64_t done = 0; done < entry.byte_count; done += kPageBytes) {
      store(image().data() + entry.offset + done, kZeros.data(), kPageBytes);
    }
    error = co_await join_round();
    if (error == Error::kNone) {
      entry = {};
      error = co_await save_header();
    }
  }
  header_lock_.unlock();
  if (owned) {
    co_return std::unexpected(fmt::format(
        "nvram image {}: region {}: has an owner; one without is accepted", options_.path, name));
  }
  if (error != Error::kNone) {
    co_return std::unexpected(fmt::format("nvram image {}: region {}: cannot be released: {}",
                                          options_.path, name, sandbay::describe(error)));
  }
  co_return Result<void, std::string>{};
}

Region::Region(Nvram& nvram, std::string name, std::span<std::byte> bytes, std::size_t index)
    : nvram_(nvram), name_(std::move(name)), bytes_(bytes), index_(index) {
  nvram_.claimed_.push_back(this);
}

Region::~Region() { std::erase(nvram_.claimed_, this); }

Task<Error> Region::settle() { co_return co_await nvram_.settle(*this); }

Task<Error> Nvram::settle(Region& region) {
  if (region.settled_) co_return failure_;
  co_await header_lock_.lock();
  RegionEntry& entry = header_->regions[region.index_];
  entry.loss = static_cast<std::uint32_t>(Loss::kNone);
  entry.flags = kRegionSettled;
  const Error saved = co_await save_header();
  header_lock_.unlock();
  if (saved != Error::kNone) co_return saved;
  region.loss_ = Loss::kNone;
  region.after_host_crash_ = false;
  region.new_ = false;
  region.settled_ = true;
  co_return Error::kNone;
}

// Durability ------------------------------------------------------------------------------------

Task<Error> Nvram::commit() {
  fail_if_broken();
  if (failure_ != Error::kNone || options_.durability == Durability::kProcess) co_return failure_;
  co_return co_await join_round();
}

// Ends with a round that began after the call. Whoever finds none running runs one for all who
// come until it begins, at the end of the turn.
Task<Error> Nvram::join_round() {
  const std::uint64_t wanted = rounds_begun_ + 1;
  while (rounds_ended_ < wanted && failure_ == Error::kNone) {
    if (round_running_) {
      co_await round_ended_.wait();
      continue;
    }
    round_running_ = true;
    co_await home_.turn_end();
    ++rounds_begun_;
    for (RecordLog* log : logs_) log->begin_round();
    const Error error = co_await image_->sync();
    round_running_ = false;
    rounds_ended_ = rounds_begun_;
    if (error != Error::kNone && failure_ == Error::kNone) {
      fail(error);
      if (on_failure) on_failure(error);
    }
    fail_if_broken();
    if (failure_ == Error::kNone) {
      for (RecordLog* log : logs_) log->end_round();
    }
    round_ended_.notify_all();
  }
  co_return failure_;
}

void Nvram::fail(Error error) {
  if (failure_ != Error::kNone) return;
  failure_ = error;
  for (RecordLog* log : logs_) log->wake_all();
  round_ended_.notify_all();
}

void Nvram::fail_if_broken() {
  if (!image_->broken() || failure_ != Error::kNone) [[likely]]
    return;
  fail(Error::kHardware);
  if (on_failure) on_failure(Error::kHardware);
}

Task<void> Nvram::check() {
  if (failure_ != Error::kNone) co_return;
  co_await image_->check();
  fail_if_broken();
}

Task<Error> Nvram::close() {
  co_await header_lock_.lock();
  header_->clean = 1;
  // Twice: what the image holds must be durable before it is called clean.
  Error error = failure_;
  if (error == Error::kNone) error = co_await join_round();
  if (error == Error::kNone) error = co_await save_header();
  header_lock_.unlock();
  fail(Error::kClosed);
  co_return error;
}

Task<Error> Nvram::close(TimePoint deadline) { co_return co_await in_time(close(), deadline); }

void Nvram::cut_power() {
  emulate_power_cut(image(), battery_.state());
  power_cut_ = true;
  fail(Error::kHardware);
}

bool Nvram::non_volatile() const noexcept {
  const bool survives =
      options_.durability == Durability::kHost || options_.power_loss_only_emulated;
  return battery_.good() && survives && failure_ == Error::kNone;
}

bool Nvram::content_gone() const noexcept { return image_->broken(); }

bool Nvram::cut_short() const noexcept { return image_->cut_short(); }

const ImageId& Nvram::owner() const noexcept { return header_->owner; }

std::span<std::byte> Nvram::image() noexcept { return image_->memory(); }

void Nvram::store(std::byte* target, const void* source, std::size_t byte_count) {
  if (power_cut_) return;
  if (!observer_) [[likely]] {
    std::memcpy(target, source, byte_count);
    return;
  }
  // Any piece size is a possible order of stores; small ones for what has a structure.
  const std::size_t piece = byte_count <= 256 ? 16 : 512;
  const auto* from = static_cast<const std::byte*>(source);
  for (std::size_t at = 0; at < byte_count; at += piece) {
    std::memcpy(target + at, from + at, std::min(piece, byte_count - at));
    observer_();
  }
}

void Nvram::store_word(std::byte* target, std::uint64_t value) {
  if (power_cut_) return;
  // A killed process has executed its stores in program order, so the compiler's order decides.
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(target))
      .store(value, std::memory_order_release);
  if (observer_) observer_();
}

}  // namespace sandbay::nvram
