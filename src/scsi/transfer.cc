// READ and WRITE (SBC-3 clauses 5.13 to 5.16 and 5.38 to 5.41).
//
// A transfer of at most one piece takes the straight path: one buffer, one request, one hand-over,
// in the frame of the handler. Longer ones go piece by piece, each allocated when its turn comes,
// so that a slow peer or a full pool holds up its own command and nobody else's.
//
// Where the initiator expects less than the CDB calls for, a read sends what is expected, and a
// write writes the whole blocks that come; if they end within a block, nothing is written at all.
#include <algorithm>

#include "runtime/buffer.h"
#include "runtime/byte_order.h"
#include "scsi/command_table.h"
#include "scsi/logical_unit.h"

namespace sandbay::scsi {
namespace {

// Reads of so many bytes do not ask the transport for room first, unless memory is scarce: a
// nexus's window of them is small. While it is scarce no piece of a read is larger.
constexpr std::uint64_t kSmallReadBytes = std::uint64_t{64} << 10;

// A device that names an earlier bad block each time it is asked is not asked more often.
constexpr unsigned kPrefixReads = 4;

struct Fields {
  Lba lba = 0;
  std::uint32_t length = 0;
  std::uint16_t length_byte = 0;  // Where TRANSFER LENGTH stands, for the field pointer.
};

Fields decode_fields(const Command& command) {
  const std::span<const std::byte, 16> cdb(command.cdb);
  switch (command.row->cdb_bytes) {
    case 6: {
      const auto length = std::to_integer<std::uint32_t>(cdb[4]);
      return {big_endian_24(cdb, 1) & 0x1F'FFFFU, length == 0 ? 256 : length, 4};
    }
    case 10:
      return {big_endian<std::uint32_t>(cdb, 2), big_endian<std::uint16_t>(cdb, 7), 7};
    case 12:
      return {big_endian<std::uint32_t>(cdb, 2), big_endian<std::uint32_t>(cdb, 6), 6};
    default:
      return {big_endian<std::uint64_t>(cdb, 2), big_endian<std::uint32_t>(cdb, 10), 10};
  }
}

std::uint64_t blocks_for(std::uint64_t byte_count, std::uint32_t block_bytes) {
  return (byte_count + block_bytes - 1) / block_bytes;
}

}  // namespace

Extent blocks_named_by(const Command& command) {
  const CommandKind kind = command.row->kind;
  if (kind == CommandKind::kOther || kind == CommandKind::kUnmap) return {};
  const Fields fields = decode_fields(command);
  return {.first = fields.lba, .block_count = fields.length};
}

std::expected<LogicalUnit::Transfer, Outcome> LogicalUnit::decode_transfer(
    const Command& command, bool limit_length) const {
  const Fields fields = decode_fields(command);
  if (const auto refused = check_range(fields.lba, fields.length)) {
    return std::unexpected(*refused);
  }
  const Transfer transfer{
      .extent = {.first = fields.lba, .block_count = fields.length},
      .length = fields.length,
      .force_unit_access = (command.cdb[1] & std::byte{0x0A}) != std::byte{0},
      .disable_page_out = (command.cdb[1] & std::byte{0x10}) != std::byte{0},
  };
  if (limit_length &&
      transfer.extent.byte_count(geometry().block_bytes) > options_.maximum_transfer_bytes) {
    return std::unexpected(invalid_cdb(fields.length_byte));
  }
  if (!is_open()) [[unlikely]] {
    const CommandKind kind = command.row->kind;
    const bool touches = kind != CommandKind::kFlush && kind != CommandKind::kOther;
    const bool writes = command.row->is(CommandFlags::kWrites);
    const Operation operation = writes ? Operation::kWrite : Operation::kRead;
    const auto refused = touches ? refuse_blocked(transfer.extent, operation) : std::nullopt;
    if (refused) return std::unexpected(*refused);
    if (!held_.empty() && (fenced(transfer.extent) || holds_its_share())) {
      return std::unexpected(Outcome{.status = Status::kBusy});
    }
  }
  return transfer;
}

Job LogicalUnit::read(Command& command) {
  auto decoded = decode_transfer(command, true);
  if (!decoded) co_return decoded.error();
  Transfer& transfer = *decoded;
  if (command.row->cdb_bytes == 6) transfer.force_unit_access = transfer.disable_page_out = false;
  if (modes_.read_cache_disabled) transfer.force_unit_access = true;
  const std::uint32_t block_bytes = geometry().block_bytes;
  const std::uint64_t called_for = transfer.extent.byte_count(block_bytes);
  const std::uint64_t wanted = std::min<std::uint64_t>(called_for, command.data_in_length);
  if (wanted == 0) co_return Outcome{.data_in_bytes = called_for};
  const std::uint64_t blocks = blocks_for(wanted, block_bytes);
  const bool small = blocks * block_bytes <= kSmallReadBytes;
  bool straight = blocks <= piece_blocks_ && !home_.buffers().under_pressure();
  if (straight && !small) {
    const Error room = co_await command.prepare_data_in(blocks * block_bytes, false);
    if (room != Error::kNone) co_return transport_failure(room);
    straight = !home_.buffers().under_pressure();
  }
  if (!straight) {
    Outcome outcome = co_await read_pieces(command, transfer, wanted);
    if (outcome.status == Status::kGood) outcome.data_in_bytes = called_for;
    co_return outcome;
  }

  BufferList data;
  if (small) data = home_.buffers().try_allocate(blocks * block_bytes);
  if (data.empty()) data = co_await home_.buffers().allocate(blocks * block_bytes);
  if (command.aborted) co_return Outcome{};
  const Extent named{transfer.extent.first, blocks};
  // By pieces it takes a turn, or is refused.
  const bool waits = (!turns_.empty() && is_hidden(command, named)) ||
                     (!is_open() && blocked(named) != Error::kNone);
  if (waits) [[unlikely]] {
    data = {};
    Outcome outcome = co_await read_pieces(command, transfer, wanted);
    if (outcome.status == Status::kGood) outcome.data_in_bytes = called_for;
    co_return outcome;
  }
  command.lent = blocks * block_bytes;
  Completion completion = co_await device_.submit({.operation = Operation::kRead,
                                                   .force_unit_access = transfer.force_unit_access,
                                                   .disable_page_out = transfer.disable_page_out,
                                                   .extent = named,
                                                   .data = std::move(data),
                                                   .cancellation = &command.cancellation});
  read_ended(command, named);
  if (completion.error != Error::kNone) {
    transfer.extent.block_count = blocks;
    co_return co_await read_failed(command, std::move(completion), transfer, 0);
  }
  if (completion.data.byte_count() > wanted) completion.data = completion.data.take_front(wanted);
  const Error error = co_await command.send_data_in(std::move(completion.data));
  if (error != Error::kNone) co_return transport_failure(error);
  command.moved = wanted;
  co_return Outcome{.data_in_bytes = called_for};
}

Task<Outcome> LogicalUnit::read_pieces(Command& command, Transfer transfer, std::uint64_t wanted) {
  const std::uint32_t block_bytes = geometry().block_bytes;
  std::uint64_t sent = 0;
  Lba at = transfer.extent.first;
  while (sent < wanted) {
    const bool scarce = home_.buffers().under_pressure();
    const std::uint64_t most =
        scarce ? std::min(piece_blocks_, kSmallReadBytes / block_bytes) : piece_blocks_;
    const std::uint64_t blocks = std::min(blocks_for(wanted - sent, block_bytes), most);
    const Error room = co_await command.prepare_data_in(blocks * block_bytes, scarce);
    if (room != Error::kNone) co_return transport_failure(room);
    // It may have become scarce meanwhile; what has been granted stays so.
    if (!scarce && home_.buffers().under_pressure()) continue;
    BufferList data = co_await home_.buffers().allocate(blocks * block_bytes);
    if (command.aborted) co_return Outcome{};
    Completion completion =
        co_await submit(command, Operation::kRead, {at, blocks}, transfer.force_unit_access,
                        transfer.disable_page_out, std::move(data));
    if (completion.error != Error::kNone) {
      transfer.extent = {at, blocks};
      co_return co_await read_failed(command, std::move(completion), transfer, sent);
    }
    if (completion.data.byte_count() > wanted - sent) {
      completion.data = completion.data.take_front(wanted - sent);
    }
    const std::uint64_t byte_count = completion.data.byte_count();
    const Error error = co_await command.send_data_in(std::move(completion.data));
    if (error != Error::kNone) co_return transport_failure(error);
    sent += byte_count;
    command.moved = sent;
    at += blocks;
  }
  co_return Outcome{.data_in_bytes = sent};
}

// An initiator takes the blocks before INFORMATION for read (Linux: sd_completed_bytes()). A device
// that failed may have left anything in their buffer, so they are read again by a request of their
// own. INFORMATION names a block only if all blocks before it were sent. `sent` went before this
// piece, which is the transfer's extent.
Task<Outcome> LogicalUnit::read_failed(Command& command, Completion completion, Transfer piece,
                                       std::uint64_t sent) {
  Outcome outcome;
  Extent before = piece.extent;
  for (unsigned reads = 0; reads < kPrefixReads; ++reads) {
    const Lba bad = completion.first_bad_lba;
    if (completion.error != Error::kMediumError || bad < before.first || bad >= before.end()) break;
    outcome = device_failure(completion, Operation::kRead);
    outcome.data_in_bytes = sent;
    before.block_count = bad - before.first;
    if (before.block_count == 0) co_return outcome;
    const std::uint64_t byte_count = before.byte_count(geometry().block_bytes);
    assert(sent + byte_count <= command.data_in_length);
    completion.data = {};
    BufferList data = co_await home_.buffers().allocate(byte_count);
    if (command.aborted) co_return Outcome{};
    completion = co_await submit(command, Operation::kRead, before, piece.force_unit_access,
                                 piece.disable_page_out, std::move(data));
    if (completion.error != Error::kNone) continue;
    const Error error = co_await command.send_data_in(std::move(completion.data));
    if (error != Error::kNone) co_return transport_failure(error);
    command.moved = sent + byte_count;
    outcome.data_in_bytes = command.moved;
    co_return outcome;
  }
  outcome = device_failure(completion.error, Operation::kRead, std::nullopt);
  outcome.data_in_bytes = sent;
  co_return outcome;
}

std::expected<std::uint64_t, Outcome> LogicalUnit::usable_data_out(const Command& command,
                                                                   std::uint64_t needed) const {
  if (command.data_out_length >= needed) return needed;
  if (command.data_out_length % geometry().block_bytes == 0) return command.data_out_length;
  return std::unexpected(incomplete_data_out(needed));
}

Job LogicalUnit::write(Command& command) {
  auto decoded = decode_transfer(command, true);
  if (!decoded) co_return decoded.error();
  Transfer& transfer = *decoded;
  if (command.row->cdb_bytes == 6) transfer.force_unit_access = transfer.disable_page_out = false;
  const std::uint32_t block_bytes = geometry().block_bytes;
  const std::uint64_t called_for = transfer.extent.byte_count(block_bytes);
  const auto usable = usable_data_out(command, called_for);
  if (!usable) co_return usable.error();
  if (*usable == 0) co_return Outcome{.data_out_bytes = called_for};
  const std::uint64_t blocks = *usable / block_bytes;
  if (blocks > piece_blocks_) {
    Outcome outcome = co_await write_pieces(command, transfer, *usable);
    if (outcome.status == Status::kGood) outcome.data_out_bytes = called_for;
    co_return outcome;
  }

  Result<BufferList> data = co_await command.receive_data_out(*usable);
  if (!data) co_return transport_failure(data.error());
  if (command.aborted) co_return Outcome{};
  assert(data->byte_count() == *usable);
  std::optional<Turn> turn;
  const Extent changed{transfer.extent.first, blocks};
  if (!turns_.empty() && needs_turn(command, changed)) [[unlikely]] {
    turn.emplace(*this, command, changed);
    const bool come = co_await turn->come();
    if (!come) co_return Outcome{};
  }
  // As in submit(): while the data were on their way, things may have changed.
  if (!is_open()) [[unlikely]] {
    if (const auto refused = refuse_blocked(changed, Operation::kWrite)) co_return *refused;
  }
  const bool stable = transfer.force_unit_access || stable_writes();
  if (!stable) ++cached_changes_;
  command.writing = {transfer.extent.first, blocks};
  command.lent = *usable;
  const Completion completion =
      co_await device_.submit({.operation = Operation::kWrite,
                               .force_unit_access = stable,
                               .disable_page_out = transfer.disable_page_out,
                               .extent = {transfer.extent.first, blocks},
                               .data = std::move(*data),
                               .cancellation = &command.cancellation});
  change_ended(command);
  command.lent = 0;
  if (!stable) cached_change_ended(command, completion.error);
  command.moved = *usable;
  Outcome outcome{.data_out_bytes = called_for};
  if (completion.error != Error::kNone) {
    outcome = device_failure(completion, Operation::kWrite);
    outcome.data_out_bytes = *usable;
  }
  co_return outcome;
}

Task<Outcome> LogicalUnit::write_pieces(Command& command, Transfer transfer, std::uint64_t usable) {
  const std::uint32_t block_bytes = geometry().block_bytes;
  std::uint64_t received = 0;
  Lba at = transfer.extent.first;
  while (received < usable) {
    const std::uint64_t blocks = std::min((usable - received) / block_bytes, piece_blocks_);
    Result<BufferList> data = co_await command.receive_data_out(blocks * block_bytes);
    if (!data) co_return transport_failure(data.error());
    if (command.aborted) co_return Outcome{};
    received += blocks * block_bytes;
    const Completion completion =
        co_await submit(command, Operation::kWrite, {at, blocks}, transfer.force_unit_access,
                        transfer.disable_page_out, std::move(*data));
    command.moved = received;
    if (completion.error != Error::kNone) {
      Outcome failed = device_failure(completion, Operation::kWrite);
      failed.data_out_bytes = received;
      co_return failed;
    }
    at += blocks;
  }
  co_return Outcome{.data_out_bytes = received};
}

}  // namespace sandbay::scsi
