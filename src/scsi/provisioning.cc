// UNMAP (SBC-3 5.28) and WRITE SAME (SBC-3 5.42, 5.43).
//
// WRITE SAME with UNMAP frees the blocks where they then read as zeros, whatever block is sent
// along: initiators send zeros or, some of them, whatever was in the buffer, and want the blocks
// freed (libiscsi's conformance tests demand it). With ANCHOR blocks keep their room, which here
// means that they are written: with the block that was sent, or zeros. Long extents go down in
// slices, with other work in between.
#include <algorithm>
#include <array>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/byte_order.h"
#include "scsi/command_table.h"
#include "scsi/logical_unit.h"

namespace sandbay::scsi {
namespace {

constexpr std::size_t kListHeader = 8;
constexpr std::size_t kDescriptor = 16;
constexpr std::uint64_t kSliceBytes = std::uint64_t{64} << 20;

Extent descriptor_at(const BufferList& list, std::size_t index) {
  std::array<std::byte, kDescriptor> bytes{};
  list.copy_to(bytes, kListHeader + index * kDescriptor);
  return {.first = big_endian<std::uint64_t>(bytes, 0),
          .block_count = big_endian<std::uint32_t>(bytes, 8)};
}

}  // namespace

// kUnmap or kWriteZeroes over an extent of any length.
Task<Outcome> LogicalUnit::clear(Command& command, Extent extent, Operation operation) {
  const Geometry& blocks = geometry();
  std::uint64_t slice = kSliceBytes / blocks.block_bytes;
  if (blocks.maximum_io_blocks != 0) {
    slice = std::min<std::uint64_t>(slice, blocks.maximum_io_blocks);
  }
  Lba at = extent.first;
  while (at < extent.end()) {
    const Extent part{at, std::min(slice, extent.end() - at)};
    if (at != extent.first) co_await home_.yield();
    if (command.aborted) co_return Outcome{};
    const Completion completion =
        co_await submit(command, operation, part, stable_writes(), false, {});
    if (completion.error != Error::kNone) co_return device_failure(completion, operation);
    at = part.end();
  }
  co_return Outcome{};
}

std::optional<Outcome> LogicalUnit::check_unmap_list(const BufferList& list,
                                                     std::size_t descriptor_count) const {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < descriptor_count; ++i) {
    const Extent extent = descriptor_at(list, i);
    if (const auto refused = check_range(extent.first, extent.block_count)) return refused;
    total += extent.block_count;
    if (total > options_.maximum_unmap_blocks) {
      return invalid_parameter(static_cast<std::uint16_t>(kListHeader + i * kDescriptor + 8));
    }
    if (const auto refused = refuse_blocked(extent, Operation::kUnmap)) return refused;
  }
  return std::nullopt;
}

Task<Outcome> LogicalUnit::unmap_listed(Command& command, BufferList list,
                                        std::size_t descriptor_count) {
  const bool is_anchor = (command.cdb[1] & std::byte{0x01}) != std::byte{0};
  for (std::size_t i = 0; i < descriptor_count; ++i) {
    const Extent extent = descriptor_at(list, i);
    if (extent.block_count == 0) continue;
    Outcome outcome;
    if (is_anchor) {
      outcome = co_await fill(command, extent, std::vector<std::byte>(geometry().block_bytes));
    } else {
      outcome = co_await clear(command, extent, Operation::kUnmap);
    }
    if (outcome.status != Status::kGood || command.aborted) co_return outcome;
  }
  co_return Outcome{};
}

Job LogicalUnit::unmap(Command& command) {
  const std::size_t byte_count = big_endian<std::uint16_t>(command.cdb, 7);
  if (byte_count == 0) co_return Outcome{};
  if (byte_count < kListHeader) co_return illegal(Additional::kParameterListLengthError);
  if (command.data_out_length < byte_count) co_return incomplete_data_out(byte_count);
  Result<BufferList> received = co_await command.receive_data_out(byte_count);
  if (!received) co_return transport_failure(received.error());
  if (command.aborted) co_return Outcome{};
  BufferList list = std::move(*received);
  command.moved = byte_count;
  std::array<std::byte, kListHeader> header{};
  list.copy_to(header);
  const std::size_t descriptor_bytes = big_endian<std::uint16_t>(header, 2);
  std::optional<Outcome> refused;
  if (descriptor_bytes > byte_count - kListHeader) {
    refused = illegal(Additional::kParameterListLengthError);
  } else if (descriptor_bytes / kDescriptor > options_.maximum_unmap_descriptors) {
    refused = invalid_parameter(2);
  } else {
    refused = check_unmap_list(list, descriptor_bytes / kDescriptor);
  }
  Outcome outcome;
  if (refused) {
    outcome = *refused;
  } else {
    outcome = co_await unmap_listed(command, std::move(list), descriptor_bytes / kDescriptor);
  }
  outcome.data_out_bytes = byte_count;
  co_return outcome;
}

// Writes the block over the whole extent, from one buffer that holds it many times.
Task<Outcome> LogicalUnit::fill(Command& command, Extent whole, std::vector<std::byte> block) {
  const std::size_t block_bytes = block.size();
  const std::uint64_t most = std::min(piece_blocks_, whole.block_count);
  BufferList pattern = co_await home_.buffers().allocate(most * block_bytes);
  for (std::uint64_t i = 0; i < most; ++i) pattern.copy_from(block, i * block_bytes);
  std::uint64_t done = 0;
  while (done < whole.block_count) {
    const Extent extent{whole.first + done, std::min(most, whole.block_count - done)};
    if (command.aborted) co_return Outcome{};
    BufferList data = pattern.share(0, extent.block_count * block_bytes);
    const Completion completion = co_await submit(command, Operation::kWrite, extent,
                                                  stable_writes(), false, std::move(data));
    if (completion.error != Error::kNone) co_return device_failure(completion, Operation::kWrite);
    done += extent.block_count;
    if (done < whole.block_count) co_await home_.yield();
  }
  co_return Outcome{};
}

Job LogicalUnit::write_same(Command& command) {
  auto transfer = decode_transfer(command, false);
  if (!transfer) co_return transfer.error();
  Extent& extent = transfer->extent;
  if (transfer->length == 0) extent.block_count = geometry().block_count - extent.first;
  const bool sixteen = command.row->cdb_bytes == 16;
  if (extent.block_count > options_.maximum_write_same_blocks) {
    co_return invalid_cdb(sixteen ? 10 : 7);
  }
  if (const auto refused = refuse_blocked(extent, Operation::kWrite)) co_return *refused;
  const auto flags = std::to_integer<unsigned>(command.cdb[1]);
  const bool unmapping = (flags & 0x08U) != 0;
  const bool anchoring = (flags & 0x10U) != 0;
  if (anchoring && !unmapping) co_return invalid_cdb(1, std::uint8_t{4});
  const bool no_data = sixteen && (flags & 0x01U) != 0;  // NDOB
  const std::uint32_t block_bytes = geometry().block_bytes;
  std::vector<std::byte> block(block_bytes);
  if (!no_data) {
    // Neither more nor less than one block makes sense.
    if (command.data_out_length != block_bytes) co_return incomplete_data_out(block_bytes);
    Result<BufferList> received = co_await command.receive_data_out(block_bytes);
    if (!received) co_return transport_failure(received.error());
    if (command.aborted) co_return Outcome{};
    received->copy_to(block);
  }
  const std::uint64_t data_out_bytes = no_data ? 0 : block_bytes;
  command.moved = data_out_bytes;
  Outcome outcome;
  if (extent.block_count == 0) {
    co_return Outcome{.data_out_bytes = data_out_bytes};
  }
  const bool frees = unmapping && !anchoring && geometry().unmap_zeroes;
  const auto is_zero = [](std::byte each) { return each == std::byte{0}; };
  if (frees) {
    outcome = co_await clear(command, extent, Operation::kUnmap);
  } else if (!anchoring && std::ranges::all_of(block, is_zero)) {
    outcome = co_await clear(command, extent, Operation::kWriteZeroes);
  } else {
    outcome = co_await fill(command, extent, std::move(block));
  }
  outcome.data_out_bytes = data_out_bytes;
  co_return outcome;
}

}  // namespace sandbay::scsi
