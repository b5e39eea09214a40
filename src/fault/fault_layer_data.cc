// What faults do to data: on the medium, and on the way to it and back.
//
// With an overlay the device below always gets what was meant, and the overlay holds in what the
// drive differs from it. Without, the device gets what the drive would have stored.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "fault/fault_layer.h"
#include "fault/fault_layer_state.h"
#include "fault/owned_copy.h"

namespace sandbay::fault {

namespace {

constexpr std::uint64_t kChunkBytes = 64 * 1024;

bool alters_writes(const Rule& rule) {
  return rule.fault == Fault::kLost || rule.fault == Fault::kTorn ||
         rule.fault == Fault::kMisdirectWrite ||
         (rule.fault == Fault::kFlip && rule.where == FlipPlace::kWrite);
}

bool keeps(const Keep& keep, std::uint64_t block, std::uint64_t block_count, Random& random) {
  switch (keep.kind) {
    case Keep::Kind::kRandom:
      return random.below(2) == 0;
    case Keep::Kind::kFirst:
      return block < keep.count;
    case Keep::Kind::kLast:
      return block_count - block <= keep.count;
    case Keep::Kind::kList:
      return std::ranges::find(keep.blocks, block) != keep.blocks.end();
  }
  return false;
}

// So many different bits of an extent.
std::set<std::uint64_t> draw_bits(Random& random, std::uint64_t count, std::uint64_t of) {
  std::set<std::uint64_t> bits;
  while (bits.size() < std::min(count, of)) bits.insert(random.below(of));
  return bits;
}

std::string bits_text(const std::set<std::uint64_t>& bits, Lba first, std::uint64_t block_bits) {
  const std::uint64_t bit = *bits.begin();
  std::string text = fmt::format("block {} bit {}", first + bit / block_bits, bit % block_bits);
  if (bits.size() > 1) text += fmt::format(" and {} more", bits.size() - 1);
  return text;
}

}  // namespace

void FaultLayer::record(const RulePointer& rule, std::uint64_t operation, const Extent& extent,
                        std::string effect) {
  engine_.record(*rule, target_name(), operation, extent, std::move(effect));
}

Extent FaultLayer::area(const Rule& rule, const Extent& otherwise) const {
  const std::uint64_t blocks = target_->geometry().block_count;
  Extent extent = rule.lba.value_or(otherwise);
  if (extent.block_count == 0) extent = {.first = 0, .block_count = blocks};
  // Another drive may be in the slot now.
  if (extent.first >= blocks) extent = {.first = 0, .block_count = blocks};
  extent.block_count = std::min(extent.block_count, blocks - extent.first);
  return extent;
}

// Reading. ---------------------------------------------------------------------------------------

Task<Completion> FaultLayer::struck_read(Request request, Strikes strikes,
                                         std::uint64_t operation) {
  const Extent extent = request.extent;
  strike_at_rest(strikes, extent, operation);
  const std::optional<Lba> bad = damage_.first_unreadable(extent);
  if (bad.has_value()) {
    co_return Completion{
        .error = Error::kMediumError, .first_bad_lba = *bad, .data = std::move(request.data)};
  }
  RulePointer misdirecting;
  for (const RulePointer& rule : strikes) {
    if (rule->rule.fault == Fault::kMisdirectRead) misdirecting = rule;
  }
  if (misdirecting != nullptr) {
    co_return co_await misdirected_read(std::move(request), misdirecting, operation);
  }
  Completion completion = co_await target_->submit(std::move(request));
  if (completion.error != Error::kNone) co_return completion;
  const bool flips = std::ranges::any_of(strikes, [](const RulePointer& rule) {
    return rule->rule.fault == Fault::kFlip && rule->rule.where == FlipPlace::kRead;
  });
  if (flips || damage_.alters(extent)) {
    completion.data = co_await owned_copy(home(), std::move(completion.data));
    damage_.apply(extent, completion.data);
    flip_read(strikes, extent, completion.data, operation);
  }
  for (const RulePointer& rule : strikes) {
    if (rule->rule.fault != Fault::kRecovered) continue;
    ++recovered_;
    record(rule, operation, extent, {});
  }
  co_return completion;
}

// Sticky ones become a defect of the medium: later reads find them in the damage.
void FaultLayer::flip_read(const Strikes& strikes, const Extent& extent, BufferList& data,
                           std::uint64_t operation) {
  const std::uint32_t block_bits = target_->geometry().block_bytes * 8;
  for (const RulePointer& rule : strikes) {
    if (rule->rule.fault != Fault::kFlip || rule->rule.where != FlipPlace::kRead) continue;
    if (data.empty()) continue;
    const auto bits = draw_bits(rule->random, rule->rule.bits, data.byte_count() * 8);
    for (const std::uint64_t bit_number : bits) {
      if (rule->rule.sticky) {
        damage_.flip(extent.first + bit_number / block_bits,
                     static_cast<std::uint32_t>(bit_number % block_bits), true);
      }
      std::byte byte{};
      data.copy_to({&byte, 1}, bit_number / 8);
      byte ^= std::byte{1} << (bit_number % 8);
      data.copy_from({&byte, 1}, bit_number / 8);
    }
    record(rule, operation, extent, bits_text(bits, extent.first, block_bits));
  }
  update();
}

Task<Completion> FaultLayer::misdirected_read(Request request, RulePointer rule,
                                              std::uint64_t operation) {
  FaultLayer* source = this;
  if (!rule->rule.to_drive.empty()) source = engine_.find_layer(rule->rule.to_drive);
  const std::uint64_t length = request.extent.block_count;
  const Geometry& there = source == nullptr ? target_->geometry() : source->target_->geometry();
  const bool same_blocks = there.block_bytes == target_->geometry().block_bytes;
  if (source == nullptr || !same_blocks || length > there.block_count) {
    ++rule->counters.spared;
    co_return co_await target_->submit(std::move(request));
  }
  const Lba last = there.block_count - length;
  const Lba drawn = rule->random.below(last + 1);
  const Extent meant = request.extent;
  request.extent.first = std::min(rule->rule.to.value_or(drawn), last);
  const Extent from = request.extent;
  record(rule, operation, meant,
         fmt::format("read from {} of drive {}", from.first, source->name()));
  Completion completion = co_await source->target_->submit(std::move(request));
  if (completion.error == Error::kNone && source->damage_.alters(from)) {
    completion.data = co_await owned_copy(home(), std::move(completion.data));
    source->damage_.apply(from, completion.data);
  }
  co_return completion;
}

// Writing. ---------------------------------------------------------------------------------------

std::optional<Lba> FaultLayer::write_error(const Strikes& strikes, std::uint64_t operation,
                                           Extent extent) {
  for (const RulePointer& rule : strikes) {
    if (rule->rule.fault != Fault::kWriteError) continue;
    record(rule, operation, extent, {});
    return std::max(rule->rule.lba.value_or(extent).first, extent.first);
  }
  return std::nullopt;
}

Task<Completion> FaultLayer::struck_write(Request request, Strikes strikes,
                                          std::uint64_t operation) {
  const Extent extent = request.extent;
  if (const std::optional<Lba> bad = write_error(strikes, operation, extent)) {
    co_return Completion{
        .error = Error::kMediumError, .first_bad_lba = *bad, .data = std::move(request.data)};
  }
  co_await save_for_stale(extent);
  if (lasts(Fault::kNoFlush) && std::exchange(request.force_unit_access, false)) {
    count_struck(Fault::kNoFlush);
  }
  const bool damaged = std::ranges::any_of(
      strikes, [](const RulePointer& rule) { return alters_writes(rule->rule); });
  Completion completion;
  if (damaged) {
    completion = co_await damaged_write(std::move(request), strikes, operation);
  } else {
    completion = co_await target_->submit(std::move(request));
    if (completion.error == Error::kNone) damage_.overwritten(extent);
  }
  if (completion.error != Error::kNone) co_return completion;
  strike_at_rest(strikes, extent, operation);
  for (const RulePointer& rule : strikes) {
    if (rule->rule.fault != Fault::kRecovered) continue;
    ++recovered_;
    record(rule, operation, extent, {});
  }
  update();
  co_return completion;
}

Task<FaultLayer::Outcome> FaultLayer::draw_outcome(Request& request, Strikes strikes,
                                                   std::uint64_t operation) {
  Outcome outcome;
  const Extent extent = request.extent;
  const std::uint64_t block_bytes = target_->geometry().block_bytes;
  outcome.intended.resize(request.data.byte_count());
  request.data.copy_to(outcome.intended);
  outcome.stored = outcome.intended;
  const Result<Bytes> old = co_await read_as_stored(extent);
  for (const RulePointer& rule : strikes) {
    const Rule& what = rule->rule;
    if (!alters_writes(what)) continue;
    const bool room = !what.overlay || damage_.room_for(extent.block_count);
    if (!room || !old.has_value()) {
      ++rule->counters.spared;
      continue;
    }
    std::string effect;
    if (what.fault == Fault::kFlip) {
      const auto bits = draw_bits(rule->random, what.bits, outcome.stored.size() * 8);
      for (const std::uint64_t bit_number : bits) {
        outcome.stored[bit_number / 8] ^= std::byte{1} << (bit_number % 8);
      }
      effect = bits_text(bits, extent.first, block_bytes * 8);
    } else if (what.fault == Fault::kTorn) {
      std::uint64_t kept = 0;
      for (std::uint64_t block = 0; block < extent.block_count; ++block) {
        if (keeps(what.keep, block, extent.block_count, rule->random)) {
          ++kept;
          continue;
        }
        std::memcpy(outcome.stored.data() + block * block_bytes, old->data() + block * block_bytes,
                    block_bytes);
      }
      effect = fmt::format("{} of {} blocks kept", kept, extent.block_count);
    } else {
      outcome.stored = *old;
    }
    if (what.fault == Fault::kMisdirectWrite) {
      effect = draw_landing(rule, extent, outcome);
    }
    outcome.altered = true;
    outcome.through |= !what.overlay;
    record(rule, operation, extent, std::move(effect));
  }
  co_return outcome;
}

std::string FaultLayer::draw_landing(const RulePointer& rule, const Extent& extent,
                                     Outcome& outcome) {
  FaultLayer* drive = this;
  if (!rule->rule.to_drive.empty()) drive = engine_.find_layer(rule->rule.to_drive);
  if (drive == nullptr) return "nowhere";
  const Geometry& there = drive->target_->geometry();
  if (there.block_bytes != target_->geometry().block_bytes ||
      there.block_count < extent.block_count) {
    return "nowhere";
  }
  const Lba last = there.block_count - extent.block_count;
  const Lba drawn = rule->random.below(last + 1);
  const Lba first = std::min(rule->rule.to.value_or(drawn), last);
  outcome.landings.push_back({.rule = rule,
                              .drive = drive,
                              .extent = {.first = first, .block_count = extent.block_count}});
  return fmt::format("written to {} of drive {}", first, drive->name());
}

Task<Completion> FaultLayer::damaged_write(Request request, Strikes strikes,
                                           std::uint64_t operation) {
  const Extent extent = request.extent;
  const std::uint64_t block_bytes = target_->geometry().block_bytes;
  Outcome outcome = co_await draw_outcome(request, strikes, operation);
  Completion completion;
  if (outcome.through) {
    // The caller's own bytes stay what they are.
    completion.error = co_await write_below(extent, outcome.stored);
    completion.data = std::move(request.data);
  } else {
    completion = co_await target_->submit(std::move(request));
  }
  if (completion.error != Error::kNone) co_return completion;
  damage_.overwritten(extent);
  if (outcome.altered && !outcome.through) {
    for (std::uint64_t block = 0; block < extent.block_count; ++block) {
      const std::span<const std::byte> stored(outcome.stored.data() + block * block_bytes,
                                              block_bytes);
      const bool differs =
          std::memcmp(stored.data(), outcome.intended.data() + block * block_bytes, block_bytes);
      if (differs && damage_.room_for(1)) damage_.replace(extent.first + block, stored);
    }
  }
  co_await land_elsewhere(outcome);
  update();
  co_return completion;
}

Task<void> FaultLayer::land_elsewhere(Outcome& outcome) {
  for (const Outcome::Landing& landing : outcome.landings) {
    FaultLayer& drive = *landing.drive;
    const std::uint64_t block_bytes = drive.target_->geometry().block_bytes;
    co_await drive.save_for_stale(landing.extent);
    if (!landing.rule->rule.overlay) {
      const Error error = co_await drive.write_below(landing.extent, outcome.intended);
      if (error == Error::kNone) drive.damage_.overwritten(landing.extent);
    } else if (drive.damage_.room_for(landing.extent.block_count)) {
      drive.damage_.overwritten(landing.extent);
      for (std::uint64_t block = 0; block < landing.extent.block_count; ++block) {
        drive.damage_.replace(landing.extent.first + block,
                              {outcome.intended.data() + block * block_bytes, block_bytes});
      }
    }
    drive.update();
  }
}

Task<Completion> FaultLayer::struck_zero(Request request, Strikes strikes,
                                         std::uint64_t operation) {
  const Extent extent = request.extent;
  if (const std::optional<Lba> bad = write_error(strikes, operation, extent)) {
    co_return Completion{
        .error = Error::kMediumError, .first_bad_lba = *bad, .data = std::move(request.data)};
  }
  co_await save_for_stale(extent);
  Completion completion = co_await target_->submit(std::move(request));
  if (completion.error == Error::kNone) {
    damage_.overwritten(extent);
    strike_at_rest(strikes, extent, operation);
    update();
  }
  co_return completion;
}

// At rest. ---------------------------------------------------------------------------------------

void FaultLayer::damage_now(const RulePointer& rule) { damage_extent(rule, {}, 0); }

void FaultLayer::strike_at_rest(const Strikes& strikes, const Extent& extent,
                                std::uint64_t operation) {
  for (const RulePointer& rule : strikes) damage_extent(rule, extent, operation);
}

void FaultLayer::damage_extent(const RulePointer& rule, const Extent& extent,
                               std::uint64_t operation) {
  const Rule& what = rule->rule;
  if (what.fault == Fault::kLse) {
    Extent unreadable = area(what, extent);
    if (damage_.mark_unreadable(unreadable)) {
      record(rule, operation, unreadable, {});
    } else {
      ++rule->counters.spared;
    }
  } else if (what.fault == Fault::kFlip && what.where == FlipPlace::kRest) {
    flip_at_rest(rule, extent, operation);
  } else if (what.fault == Fault::kStale) {
    return_to_earlier(rule, operation);
  }
  update();
}

void FaultLayer::flip_at_rest(const RulePointer& rule, const Extent& extent,
                              std::uint64_t operation) {
  const Rule& what = rule->rule;
  const Extent region = area(what, extent);
  const std::uint32_t block_bits = target_->geometry().block_bytes * 8;
  const auto bits = draw_bits(rule->random, what.bits, region.block_count * block_bits);
  std::map<Lba, std::vector<std::uint32_t>> by_block;
  for (const std::uint64_t bit_number : bits) {
    by_block[region.first + bit_number / block_bits].push_back(
        static_cast<std::uint32_t>(bit_number % block_bits));
  }
  for (auto& [lba, block] : by_block) {
    if (!what.overlay && !what.sticky) {
      spawn(flip_below(lba, std::move(block)));
      continue;
    }
    for (const std::uint32_t bit_number : block) damage_.flip(lba, bit_number, what.sticky);
  }
  record(rule, operation, region, bits_text(bits, region.first, block_bits));
}

void FaultLayer::return_to_earlier(const RulePointer& rule, std::uint64_t operation) {
  const auto found =
      std::ranges::find_if(watches_, [&](const auto& watch) { return watch->rule == rule; });
  if (found == watches_.end()) return;
  Watch& watch = **found;
  if (watch.overflown) {
    ++rule->counters.spared;
    return;
  }
  std::map<Lba, Bytes> saved = std::exchange(watch.saved, {});
  if (!rule->rule.overlay) {
    std::vector<std::pair<Lba, Bytes>> pieces(saved.begin(), saved.end());
    record(rule, operation, watch.region, fmt::format("{} blocks", pieces.size()));
    spawn(write_pieces_below(std::move(pieces)));
    return;
  }
  if (!damage_.room_for(saved.size())) {
    ++rule->counters.spared;
    watch.saved = std::move(saved);
    return;
  }
  for (const auto& [lba, content] : saved) {
    damage_.overwritten({.first = lba, .block_count = 1});
    damage_.replace(lba, content);
  }
  record(rule, operation, watch.region, fmt::format("{} blocks", saved.size()));
}

Task<void> FaultLayer::save_for_stale(Extent extent) {
  for (std::size_t i = 0; i < watches_.size(); ++i) {
    const Extent region = watches_[i]->region;
    if (!region.overlaps(extent) || watches_[i]->overflown) continue;
    const RulePointer rule = watches_[i]->rule;
    const Lba first = std::max(region.first, extent.first);
    const Lba end = std::min({region.end(), extent.end(), target_->geometry().block_count});
    if (first >= end) continue;
    const Result<Bytes> content =
        co_await read_as_stored({.first = first, .block_count = end - first});
    // The rules may be others by now.
    const auto found =
        std::ranges::find_if(watches_, [&](const auto& watch) { return watch->rule == rule; });
    if (found == watches_.end() || !content.has_value()) continue;
    const std::uint64_t block_bytes = target_->geometry().block_bytes;
    for (Lba lba = first; lba < end; ++lba) {
      const std::byte* const at = content->data() + (lba - first) * block_bytes;
      (*found)->saved.try_emplace(lba, at, at + block_bytes);
    }
    if ((*found)->saved.size() * block_bytes <= Damage::kMostOverlayBytes) continue;
    (*found)->overflown = true;
    (*found)->saved.clear();
  }
}

Task<void> FaultLayer::flip_below(Lba lba, std::vector<std::uint32_t> bits) {
  if (!gate_.enter()) co_return;
  const GateHold hold(gate_);
  const Extent block{.first = lba, .block_count = 1};
  Result<Bytes> content = co_await read_as_stored(block);
  if (!content.has_value()) co_return;
  for (const std::uint32_t bit_number : bits) {
    (*content)[bit_number / 8] ^= std::byte{1} << (bit_number % 8);
  }
  co_await write_below(block, *content);
}

Task<void> FaultLayer::write_pieces_below(std::vector<std::pair<Lba, Bytes>> pieces) {
  if (!gate_.enter()) co_return;
  const GateHold hold(gate_);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Extent block{.first = pieces[i].first, .block_count = 1};
    const Error error = co_await write_below(block, pieces[i].second);
    if (error == Error::kNone) damage_.overwritten(block);
  }
  update();
}

// Plain work. ------------------------------------------------------------------------------------

Task<Result<Bytes>> FaultLayer::read_as_stored(Extent extent) {
  const std::uint32_t block_bytes = target_->geometry().block_bytes;
  Bytes content(extent.byte_count(block_bytes));
  for (std::uint64_t done = 0; done < content.size();) {
    const std::uint64_t length = std::min<std::uint64_t>(kChunkBytes, content.size() - done);
    BufferList room = co_await home().buffers().allocate(length);
    Request request{.operation = Operation::kRead,
                    .extent = {extent.first + done / block_bytes, length / block_bytes},
                    .data = std::move(room)};
    Completion completion = co_await target_->submit(std::move(request));
    if (completion.error != Error::kNone) co_return std::unexpected(completion.error);
    completion.data.copy_to({content.data() + done, length});
    done += length;
  }
  damage_.apply_stored(extent, content);
  co_return content;
}

Task<Error> FaultLayer::write_below(Extent extent, Bytes& content) {
  const std::uint64_t block_bytes = target_->geometry().block_bytes;
  for (std::uint64_t done = 0; done < content.size();) {
    const std::uint64_t length = std::min<std::uint64_t>(kChunkBytes, content.size() - done);
    BufferList data = co_await home().buffers().allocate(length);
    data.copy_from({content.data() + done, length});
    Request request{.operation = Operation::kWrite,
                    .extent = {extent.first + done / block_bytes, length / block_bytes},
                    .data = std::move(data)};
    const Completion completion = co_await target_->submit(std::move(request));
    if (completion.error != Error::kNone) co_return completion.error;
    done += length;
  }
  co_return Error::kNone;
}

}  // namespace sandbay::fault
