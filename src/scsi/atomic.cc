// Commands that change blocks in one step: COMPARE AND WRITE (SBC-3 5.2), ORWRITE (SBC-3 5.9) and
// WRITE ATOMIC (SBC-4 5.48).
//
// A turn is a command's claim on blocks that it is about to change: of turns that overlap, the
// oldest is first, and it waits until the device has ended every change there. Commands that only
// write need no turn while nobody has one. Data are received before a turn is asked for, so a peer
// that is slow holds up nobody.
#include <algorithm>
#include <span>

#include "scsi/command_table.h"
#include "scsi/logical_unit.h"
#include "scsi/waking.h"

namespace sandbay::scsi {

namespace {

// Where two lists of the same length differ first.
std::optional<std::uint64_t> first_difference(const BufferList& left, const BufferList& right) {
  if (left.equals(right)) return std::nullopt;
  std::vector<std::byte> a(left.byte_count());
  std::vector<std::byte> b(right.byte_count());
  left.copy_to(a);
  right.copy_to(b);
  return static_cast<std::uint64_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

void merge(const BufferList& data, std::span<std::byte> into) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < data.slice_count(); ++i) {
    for (const std::byte each : data[i].bytes()) into[at++] |= each;
  }
}

}  // namespace

LogicalUnit::Turn::Turn(LogicalUnit& unit, Command& command, const Extent& extent)
    : unit_(unit), command_(command), extent_(extent) {
  unit_.turns_.push_back(this);
}

LogicalUnit::Turn::~Turn() {
  std::erase(unit_.turns_, this);
  unit_.turn_ended_.notify_all();
}

bool LogicalUnit::Turn::has_come() const noexcept {
  for (const Turn* each : unit_.turns_) {
    if (each == this) break;
    if (each->extent_.overlaps(extent_)) return false;
  }
  for (const Command* each = unit_.running_.first(); each != nullptr; each = each->next_in_set) {
    if (each == &command_) continue;
    if (each->writing.overlaps(extent_)) return false;
    // The device has a read's buffer while it reads.
    const bool reads = hides_ && each->lent != 0 && each->writing.block_count == 0;
    if (reads && blocks_named_by(*each).overlaps(extent_)) return false;
  }
  return true;
}

Task<bool> LogicalUnit::Turn::come() {
  const Waking waking(&command_.cancellation, unit_.turn_ended_);
  while (!command_.aborted && !has_come()) co_await unit_.turn_ended_.wait();
  co_return !command_.aborted;
}

// A read of these blocks needs a turn as well, unless the command has one.
bool LogicalUnit::is_hidden(const Command& command, const Extent& extent) const noexcept {
  const auto is_own = [&](const Turn* each) { return each->is_of(command); };
  const auto hides = [&](const Turn* each) { return each->hides(extent); };
  return std::ranges::any_of(turns_, hides) && std::ranges::none_of(turns_, is_own);
}

Task<bool> LogicalUnit::Turn::hide() {
  hides_ = true;
  co_return co_await come();
}

void LogicalUnit::Turn::show() {
  hides_ = false;
  unit_.turn_ended_.notify_all();
}

// Where the command has a turn of its own, its changes need no other.
bool LogicalUnit::needs_turn(const Command& command, const Extent& extent) const noexcept {
  const auto is_own = [&](const Turn* each) { return each->is_of(command); };
  const auto overlaps = [&](const Turn* each) { return each->overlaps(extent); };
  return std::ranges::any_of(turns_, overlaps) && std::ranges::none_of(turns_, is_own);
}

void LogicalUnit::tell_turns(const Extent& changed) noexcept {
  const auto overlaps = [&](const Turn* each) { return each->overlaps(changed); };
  if (std::ranges::any_of(turns_, overlaps)) turn_ended_.notify_all();
}

// It has been given up, and what it may still change is fenced.
void LogicalUnit::drop_turns(const Command& command) noexcept {
  std::erase_if(turns_, [&](const Turn* each) { return each->is_of(command); });
  // Others may wait for a change of a command that has none.
  turn_ended_.notify_all();
}

std::uint64_t LogicalUnit::most_compared_blocks() const noexcept {
  return std::min<std::uint64_t>(255, piece_blocks_);
}

// The blocks before, which only this command may change.
Task<Completion> LogicalUnit::read_before(Command& command, Extent extent) {
  BufferList room = co_await home_.buffers().allocate(extent.byte_count(geometry().block_bytes));
  if (command.aborted) co_return Completion{.error = Error::kCancelled};
  co_return co_await submit(command, Operation::kRead, extent, false, false, std::move(room));
}

Task<Outcome> LogicalUnit::compare_then_write(Command& command, Transfer transfer,
                                              BufferList expected, BufferList data) {
  Turn turn(*this, command, transfer.extent);
  const bool come = co_await turn.come();
  if (!come) co_return Outcome{};
  const Completion before = co_await read_before(command, transfer.extent);
  if (command.aborted) co_return Outcome{};
  if (before.error != Error::kNone) co_return device_failure(before, Operation::kRead);
  if (const auto offset = first_difference(expected, before.data)) {
    co_return check_condition({.key = SenseKey::kMiscompare,
                               .additional = Additional::kMiscompareDuringVerify,
                               .information = *offset});
  }
  const Completion written =
      co_await submit(command, Operation::kWrite, transfer.extent, transfer.force_unit_access,
                      transfer.disable_page_out, std::move(data));
  if (written.error != Error::kNone) co_return device_failure(written, Operation::kWrite);
  co_return Outcome{};
}

Job LogicalUnit::compare_and_write(Command& command) {
  const auto transfer = decode_transfer(command, true);
  if (!transfer) co_return transfer.error();
  const std::uint64_t byte_count = transfer->extent.byte_count(geometry().block_bytes);
  if (command.data_out_length < 2 * byte_count) co_return incomplete_data_out(2 * byte_count);
  // Where more data come, the halves are others than the initiator means.
  const bool matches = command.data_out_length == 2 * byte_count;
  if (!matches || transfer->length > most_compared_blocks()) co_return invalid_cdb(13);
  if (transfer->length == 0) co_return Outcome{};
  Result<BufferList> expected = co_await command.receive_data_out(byte_count);
  if (!expected) co_return transport_failure(expected.error());
  Result<BufferList> data = co_await command.receive_data_out(byte_count);
  if (!data) co_return transport_failure(data.error());
  command.moved = 2 * byte_count;
  Outcome outcome =
      co_await compare_then_write(command, *transfer, std::move(*expected), std::move(*data));
  outcome.data_out_bytes = 2 * byte_count;
  co_return outcome;
}

std::uint64_t LogicalUnit::most_atomic_blocks() const noexcept {
  return std::min<std::uint64_t>(AtomicWrites::kMostBytes / geometry().block_bytes, piece_blocks_);
}

// From when the blocks before are kept until they are dropped, others that write there wait, or
// meet the fence if the command is given up.
Task<Outcome> LogicalUnit::write_whole(Command& command, Transfer transfer, BufferList data) {
  const Extent& extent = transfer.extent;
  AtomicWrites::Place place(atomic_writes_);
  const bool has_place = co_await place.come(command.cancellation);
  if (!has_place) co_return Outcome{.status = Status::kBusy};
  Turn turn(*this, command, extent);
  bool come = co_await turn.come();
  if (!come) co_return Outcome{};
  Completion read = co_await read_before(command, extent);
  if (command.aborted) co_return Outcome{};
  if (read.error != Error::kNone) co_return device_failure(read, Operation::kRead);
  BlocksBefore before{.first = extent.first, .data = std::vector<std::byte>(data.byte_count())};
  read.data.copy_to(before.data);
  read.data = {};
  command.writing = extent;
  const Error kept = co_await atomic_writes_.keep(before);
  // kNoMemory: others keep too much now, and this one comes again.
  Completion written{.error = kept == Error::kNoMemory ? kept : Error::kHardware};
  if (kept == Error::kNone) come = co_await turn.hide();
  if (kept == Error::kNone && come) {
    command.lent = data.byte_count();
    written = co_await atomic_writes_.write(extent, std::move(data), std::move(before));
    command.lent = 0;
  }
  turn.show();
  const bool may_be_kept = kept == Error::kNone || kept == Error::kTimedOut;
  bool dropped = true;
  if (may_be_kept && !atomic_writes_.is_torn(extent)) {
    dropped = co_await atomic_writes_.drop(extent.first);
  }
  change_ended(command);
  if (!dropped) co_return Outcome{.status = Status::kBusy};
  if (written.error != Error::kNone) co_return device_failure(written, Operation::kWrite);
  co_return Outcome{};
}

Job LogicalUnit::write_atomic(Command& command) {
  const auto transfer = decode_transfer(command, true);
  if (!transfer) co_return transfer.error();
  if (transfer->length > most_atomic_blocks()) co_return invalid_cdb(12);
  const std::uint64_t byte_count = transfer->extent.byte_count(geometry().block_bytes);
  if (command.data_out_length < byte_count) co_return incomplete_data_out(byte_count);
  if (byte_count == 0) co_return Outcome{};
  Result<BufferList> data = co_await command.receive_data_out(byte_count);
  if (!data) co_return transport_failure(data.error());
  command.moved = byte_count;
  Outcome outcome = co_await write_whole(command, *transfer, std::move(*data));
  outcome.data_out_bytes = byte_count;
  co_return outcome;
}

// One piece of ORWRITE.
Task<Outcome> LogicalUnit::merge_piece(Command& command, Transfer transfer, Extent extent,
                                       BufferList data) {
  Turn turn(*this, command, extent);
  const bool come = co_await turn.come();
  if (!come) co_return Outcome{};
  Completion before = co_await read_before(command, extent);
  if (command.aborted) co_return Outcome{};
  if (before.error != Error::kNone) co_return device_failure(before, Operation::kRead);
  std::vector<std::byte> merged(before.data.byte_count());
  before.data.copy_to(merged);
  merge(data, merged);
  // Nothing is kept while more is waited for.
  before.data = {};
  data = {};
  BufferList result = co_await home_.buffers().allocate(merged.size());
  result.copy_from(merged);
  const Completion written =
      co_await submit(command, Operation::kWrite, extent, transfer.force_unit_access,
                      transfer.disable_page_out, std::move(result));
  if (written.error != Error::kNone) co_return device_failure(written, Operation::kWrite);
  co_return Outcome{};
}

Job LogicalUnit::or_write(Command& command) {
  const auto transfer = decode_transfer(command, true);
  if (!transfer) co_return transfer.error();
  const std::uint32_t block_bytes = geometry().block_bytes;
  const std::uint64_t called_for = transfer->extent.byte_count(block_bytes);
  const auto usable = usable_data_out(command, called_for);
  if (!usable) co_return usable.error();
  Extent extent{transfer->extent.first, 0};
  for (std::uint64_t left = *usable / block_bytes; left != 0; left -= extent.block_count) {
    extent = {extent.end(), std::min(left, piece_blocks_)};
    Result<BufferList> data = co_await command.receive_data_out(extent.byte_count(block_bytes));
    if (!data) co_return transport_failure(data.error());
    command.moved += data->byte_count();
    Outcome outcome = co_await merge_piece(command, *transfer, extent, std::move(*data));
    outcome.data_out_bytes = command.moved;
    if (outcome.status != Status::kGood || command.aborted) co_return outcome;
  }
  co_return Outcome{.data_out_bytes = called_for};
}

}  // namespace sandbay::scsi
