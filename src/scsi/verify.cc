// VERIFY (SBC-3 5.31 to 5.33) and WRITE AND VERIFY (SBC-3 5.44 to 5.46).
//
// BYTCHK 00b reads the medium; 01b compares it with as much Data-Out; 11b compares every block with
// the one block that is sent. Whatever is compared is read from the medium, not from a cache.
#include <algorithm>
#include <cstring>

#include "runtime/buffer.h"
#include "scsi/command_table.h"
#include "scsi/logical_unit.h"

namespace sandbay::scsi {
namespace {

constexpr unsigned kMediumOnly = 0;
constexpr unsigned kCompareAll = 1;
constexpr unsigned kReserved = 2;
constexpr unsigned kCompareOneBlock = 3;

unsigned byte_check(const Command& command) {
  return std::to_integer<unsigned>(command.cdb[1]) >> 1U & 0x03U;
}

// Whether every block of `data` equals the first of `block`.
bool repeats(const BufferList& data, const BufferList& block) {
  const std::size_t block_bytes = block.byte_count();
  for (std::size_t at = 0; at < data.byte_count(); at += block_bytes) {
    if (!data.share(at, block_bytes).equals(block)) return false;
  }
  return true;
}

}  // namespace

// Reads one piece; with `expected` not empty, compares it.
Task<Outcome> LogicalUnit::verify_piece(Command& command, Extent extent, BufferList expected,
                                        bool repeated) {
  const std::uint32_t block_bytes = geometry().block_bytes;
  BufferList data = co_await home_.buffers().allocate(extent.byte_count(block_bytes));
  if (command.aborted) co_return Outcome{};
  const Completion completion =
      co_await submit(command, Operation::kRead, extent, true, true, std::move(data));
  if (completion.error != Error::kNone) co_return device_failure(completion, Operation::kRead);
  if (expected.empty()) co_return Outcome{};
  const bool same =
      repeated ? repeats(completion.data, expected) : completion.data.equals(expected);
  if (!same) co_return refuse(SenseKey::kMiscompare, Additional::kMiscompareDuringVerify);
  co_return Outcome{};
}

Task<Outcome> LogicalUnit::verify_pieces(Command& command, Transfer transfer, unsigned check) {
  const std::uint32_t block_bytes = geometry().block_bytes;
  std::uint64_t received = 0;
  BufferList block;
  if (check == kCompareOneBlock) {
    Result<BufferList> data = co_await command.receive_data_out(block_bytes);
    if (!data) co_return transport_failure(data.error());
    block = std::move(*data);
    received = block_bytes;
  }
  std::uint64_t done = 0;
  while (done < transfer.extent.block_count) {
    const Extent extent{transfer.extent.first + done,
                        std::min(transfer.extent.block_count - done, piece_blocks_)};
    BufferList expected;
    if (check == kCompareAll) {
      Result<BufferList> data = co_await command.receive_data_out(extent.byte_count(block_bytes));
      if (!data) co_return transport_failure(data.error());
      expected = std::move(*data);
      received += expected.byte_count();
    } else if (check == kCompareOneBlock) {
      expected = block.share();
    }
    Outcome outcome =
        co_await verify_piece(command, extent, std::move(expected), check == kCompareOneBlock);
    outcome.data_out_bytes = received;
    command.moved = received;
    if (outcome.status != Status::kGood || command.aborted) co_return outcome;
    done += extent.block_count;
    // A device in memory would keep the executor for the whole extent.
    if (done < transfer.extent.block_count) co_await home_.yield();
  }
  co_return Outcome{.data_out_bytes = received};
}

Job LogicalUnit::verify(Command& command) {
  const unsigned check = byte_check(command);
  if (check == kReserved) co_return invalid_cdb(1, std::uint8_t{2});
  const auto transfer = decode_transfer(command, check == kCompareAll);
  if (!transfer) co_return transfer.error();
  const std::uint32_t block_bytes = geometry().block_bytes;
  std::uint64_t needed = 0;
  if (check == kCompareAll) needed = transfer->extent.byte_count(block_bytes);
  if (check == kCompareOneBlock && transfer->length != 0) needed = block_bytes;
  if (transfer->length == 0) co_return Outcome{};
  if (command.data_out_length < needed) co_return incomplete_data_out(needed);
  co_return co_await verify_pieces(command, *transfer, check);
}

Task<Outcome> LogicalUnit::write_and_verify_pieces(Command& command, Transfer transfer,
                                                   std::uint64_t usable, bool compare) {
  const std::uint32_t block_bytes = geometry().block_bytes;
  std::uint64_t received = 0;
  Lba at = transfer.extent.first;
  while (received < usable) {
    const Extent extent{at, std::min((usable - received) / block_bytes, piece_blocks_)};
    Result<BufferList> data = co_await command.receive_data_out(extent.byte_count(block_bytes));
    if (!data) co_return transport_failure(data.error());
    if (command.aborted) co_return Outcome{};
    BufferList expected;
    if (compare) expected = data->share();
    received += data->byte_count();
    const Completion written = co_await submit(command, Operation::kWrite, extent, true,
                                               transfer.disable_page_out, std::move(*data));
    command.moved = received;
    Outcome outcome;
    if (written.error != Error::kNone) {
      outcome = device_failure(written, Operation::kWrite);
    } else {
      outcome = co_await verify_piece(command, extent, std::move(expected), false);
    }
    outcome.data_out_bytes = received;
    if (outcome.status != Status::kGood || command.aborted) co_return outcome;
    at += extent.block_count;
    if (received < usable) co_await home_.yield();
  }
  co_return Outcome{.data_out_bytes = received};
}

Job LogicalUnit::write_and_verify(Command& command) {
  const unsigned check = byte_check(command);
  if (check != kMediumOnly && check != kCompareAll) co_return invalid_cdb(1, std::uint8_t{2});
  const auto transfer = decode_transfer(command, true);
  if (!transfer) co_return transfer.error();
  const std::uint64_t called_for = transfer->extent.byte_count(geometry().block_bytes);
  const auto usable = usable_data_out(command, called_for);
  if (!usable) co_return usable.error();
  Outcome outcome =
      co_await write_and_verify_pieces(command, *transfer, *usable, check == kCompareAll);
  if (outcome.status == Status::kGood) outcome.data_out_bytes = called_for;
  co_return outcome;
}

}  // namespace sandbay::scsi
