// Block commands that move no user data (SBC-3 clause 5): capacity, start and stop, caches, and the
// provisioning of blocks.
#include <algorithm>
#include <array>
#include <vector>

#include "runtime/byte_order.h"
#include "scsi/command_table.h"
#include "scsi/logical_unit.h"

namespace sandbay::scsi {
namespace {

constexpr std::size_t kMostStatusDescriptors = 64;
constexpr std::size_t kMostStatusLooks = 1024;
// Of what PRE-FETCH names, the rest is forgone: before it had come, a cache would have thrown out
// what came first.
constexpr std::uint64_t kMostPrefetchBytes = std::uint64_t{64} << 20;

}  // namespace

// LBA OUT OF RANGE unless all of the blocks are there; none at all may also stand at the end.
std::optional<Outcome> LogicalUnit::check_range(Lba first, std::uint64_t block_count) const {
  const std::uint64_t blocks = geometry().block_count;
  if (first <= blocks && block_count <= blocks - first) return std::nullopt;
  return illegal(Additional::kLbaOutOfRange);
}

Job LogicalUnit::read_capacity_10(Command& command) {
  const auto lba = big_endian<std::uint32_t>(command.cdb, 2);
  const bool partial = (std::to_integer<unsigned>(command.cdb[8]) & 0x01U) != 0;  // PMI
  if (!partial && lba != 0) co_return invalid_cdb(2);
  const std::uint64_t last = geometry().block_count - 1;
  std::array<std::byte, 8> data{};
  const std::span<std::byte> target(data);
  put_big_endian(target, 0, static_cast<std::uint32_t>(std::min<std::uint64_t>(last, ~0U)));
  put_big_endian(target, 4, geometry().block_bytes);
  co_return co_await return_parameters(command, data, data.size());
}

Job LogicalUnit::read_capacity_16(Command& command) {
  const auto lba = big_endian<std::uint64_t>(command.cdb, 2);
  const bool partial = (std::to_integer<unsigned>(command.cdb[14]) & 0x01U) != 0;  // PMI
  if (!partial && lba != 0) co_return invalid_cdb(2);
  const auto allocation_length = big_endian<std::uint32_t>(command.cdb, 10);
  std::array<std::byte, 32> data{};
  const std::span<std::byte> target(data);
  put_big_endian(target, 0, geometry().block_count - 1);
  put_big_endian(target, 8, geometry().block_bytes);
  data[13] = static_cast<std::byte>(std::bit_width(blocks_per_physical()) - 1);
  if (thin()) {
    data[14] |= std::byte{0x80};                               // LBPME
    if (geometry().unmap_zeroes) data[14] |= std::byte{0x40};  // LBPRZ
  }
  co_return co_await return_parameters(command, data, allocation_length);
}

// SBC-3 5.25. A removable unit starts by itself whenever it has a medium, so stopping it only
// flushes; ejecting is what makes it not ready. Power conditions have no effect here: the unit
// stays active.
Job LogicalUnit::start_stop_unit(Command& command) {
  const auto flags = std::to_integer<unsigned>(command.cdb[4]);
  const bool start = (flags & 0x01U) != 0;
  const bool load_or_eject = (flags & 0x02U) != 0;
  const bool no_flush = (flags & 0x04U) != 0;
  if ((flags >> 4U) != 0) co_return Outcome{};
  if (load_or_eject) {
    if (!options_.removable) co_return invalid_cdb(4, std::uint8_t{1});
    for (const auto& [id, nexus] : nexuses_) {
      if (nexus.prevents_removal) co_return illegal(Additional::kMediumRemovalPrevented);
    }
  }
  if (!start && !no_flush && power_ == PowerState::kActive) {
    const Completion flushed = co_await flush(command, {0, geometry().block_count});
    if (flushed.error != Error::kNone) co_return device_failure(flushed, Operation::kFlush);
    if (command.aborted) co_return Outcome{};
  }
  if (options_.removable) {
    if (!load_or_eject) co_return Outcome{};
    if (start && power_ == PowerState::kEjected) {
      establish(UnitAttention::kMediumMayHaveChanged, command.nexus_id);
    }
    power_ = start ? PowerState::kActive : PowerState::kEjected;
  } else {
    power_ = start ? PowerState::kActive : PowerState::kStopped;
  }
  co_return Outcome{};
}

Job LogicalUnit::synchronize_cache(Command& command) {
  const auto transfer = decode_transfer(command, false);
  if (!transfer) co_return transfer.error();
  Extent extent = transfer->extent;
  if (extent.block_count == 0) extent.block_count = geometry().block_count - extent.first;
  const bool immediate = (std::to_integer<unsigned>(command.cdb[1]) & 0x02U) != 0;
  if (immediate) {
    flush_in_background(extent);
    co_return Outcome{};
  }
  const Completion completion = co_await flush(command, extent);
  if (completion.error != Error::kNone) co_return device_failure(completion, Operation::kFlush);
  co_return Outcome{};
}

// SBC-3 5.11. No layer promises to keep what it reads ahead, so the status is GOOD and never
// CONDITION MET, which would say that all of it is in the cache.
Job LogicalUnit::prefetch(Command& command) {
  const auto transfer = decode_transfer(command, false);
  if (!transfer) co_return transfer.error();
  Extent extent = transfer->extent;
  if (extent.block_count == 0) extent.block_count = geometry().block_count - extent.first;
  const bool immediate = (std::to_integer<unsigned>(command.cdb[1]) & 0x02U) != 0;
  if (extent.block_count == 0) co_return Outcome{};
  if (immediate) {
    spawn(advise_in_background(extent));
    co_return Outcome{};
  }
  co_await advise(&command.cancellation, extent);
  co_return Outcome{};
}

// In pieces, with other work in between.
Task<void> LogicalUnit::advise(Cancellation* cancellation, Extent extent) {
  const std::uint64_t most = kMostPrefetchBytes / geometry().block_bytes;
  const Lba end = extent.first + std::min(extent.block_count, most);
  Lba at = extent.first;
  while (at < end && !cancellation->cancelled()) {
    const Extent piece{at, std::min(end - at, piece_blocks_)};
    const Completion completion = co_await device_.submit(
        {.operation = Operation::kAdvise, .extent = piece, .cancellation = cancellation});
    static_cast<void>(completion);
    at = piece.end();
    if (at < end) co_await home_.yield();
  }
}

// SBC-3 5.17 and 5.18. No block of a unit is a defect: the drives below have put others in their
// places. So the list is empty in any format.
Job LogicalUnit::read_defect_data(Command& command) {
  const bool twelve = command.row->cdb_bytes == 12;
  const std::byte asked = command.cdb[twelve ? 1 : 2];  // REQ_PLIST, REQ_GLIST, the format.
  constexpr unsigned kLastFormat = 5;
  if ((std::to_integer<unsigned>(asked) & 0x07U) > kLastFormat) {
    co_return invalid_cdb(twelve ? 1 : 2, std::uint8_t{2});
  }
  const std::uint64_t allocation_length = twelve ? big_endian<std::uint32_t>(command.cdb, 6)
                                                 : big_endian<std::uint16_t>(command.cdb, 7);
  const std::array<std::byte, 8> header{std::byte{0}, asked};
  co_return co_await return_parameters(command, std::span(header).first(twelve ? 8 : 4),
                                       allocation_length);
}

// SBC-3 5.4. Runs of one state are one descriptor, however the device cuts them; the answer may end
// before the medium does.
Job LogicalUnit::get_lba_status(Command& command) {
  const auto first = big_endian<std::uint64_t>(command.cdb, 2);
  const auto allocation_length = big_endian<std::uint32_t>(command.cdb, 10);
  const std::uint64_t blocks = geometry().block_count;
  if (first >= blocks) co_return illegal(Additional::kLbaOutOfRange);
  const std::size_t room = allocation_length < 24 ? 1 : (allocation_length - 8) / 16;
  const std::size_t most = std::min(room, kMostStatusDescriptors);
  std::vector<ProvisioningRun> runs;
  Lba at = first;
  for (std::size_t looks = 0; looks < kMostStatusLooks && at < blocks; ++looks) {
    if (looks % 64 == 63) co_await home_.yield();
    const Result<ProvisioningRun> run = co_await device_.provisioning(at, blocks);
    if (!run) co_return device_failure(run.error(), Operation::kRead);
    if (command.aborted) co_return Outcome{};
    const std::uint64_t count = std::min(run->block_count, blocks - at);
    const bool mapped = run->mapped || !thin();
    const bool goes_on = !runs.empty() && runs.back().mapped == mapped &&
                         runs.back().block_count + count <= 0xFFFF'FFFFU;
    if (count == 0 || (!goes_on && runs.size() == most)) break;
    if (goes_on) {
      runs.back().block_count += count;
    } else {
      runs.push_back(
          {.block_count = std::min<std::uint64_t>(count, 0xFFFF'FFFFU), .mapped = mapped});
    }
    at = goes_on ? at + count : at + runs.back().block_count;
  }
  std::vector<std::byte> data(8 + runs.size() * 16);
  put_big_endian(std::span(data), 0, static_cast<std::uint32_t>(data.size() - 4));
  at = first;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto descriptor = std::span(data).subspan(8 + i * 16, 16);
    put_big_endian(descriptor, 0, at);
    put_big_endian(descriptor, 8, static_cast<std::uint32_t>(runs[i].block_count));
    descriptor[12] = runs[i].mapped ? std::byte{0x00} : std::byte{0x01};  // Deallocated
    at += runs[i].block_count;
  }
  co_return co_await return_parameters(command, data, allocation_length);
}

}  // namespace sandbay::scsi
