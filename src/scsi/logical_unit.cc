// The life of a logical unit, and the outcomes that its handlers share: sense for refusals and for
// every Error, parameter data out and in.
#include "scsi/logical_unit.h"

#include <algorithm>
#include <bit>

#include "runtime/buffer.h"
#include "scsi/command_table.h"
#include "scsi/unit_store.h"

namespace sandbay::scsi {
namespace {

std::uint64_t blocks_per_piece(const Geometry& geometry) {
  std::uint64_t blocks = kTransferPieceBytes / geometry.block_bytes;
  if (geometry.maximum_io_blocks != 0) {
    blocks = std::min<std::uint64_t>(blocks, geometry.maximum_io_blocks);
  }
  assert(blocks > 0);
  return blocks;
}

}  // namespace

LogicalUnit::LogicalUnit(BlockDevice& device, LogicalUnitOptions options)
    : device_(device),
      home_(device.home()),
      options_(std::move(options)),
      piece_blocks_(blocks_per_piece(device.geometry())),
      port_groups_(options_.target_ports),
      atomic_writes_(device),
      sanitizer_(device) {
  default_modes_.write_cache_enabled = options_.write_cache_enabled;
  default_modes_.task_aborted_status = options_.task_aborted_status;
  modes_ = default_modes_;
}

LogicalUnit::~LogicalUnit() = default;

void LogicalUnit::restore(UnitStore& store, KeptOfUnit kept) {
  persistent_.store = &store;
  persistent_.kept = !kept.reservations.keys.empty() || kept.reservations.lost;
  persistent_.now = std::move(kept.reservations);
  atomic_writes_.restore(store, std::move(kept.blocks));
  if (atomic_writes_.starts()) spawn(invoke_on(home_, atomic_writes_.resume()));
  sanitizer_.restore(store, std::move(kept.sanitize));
  if (!sanitizer_.works()) return;
  atomic_writes_.content_replaced();  // Nothing from before comes back.
  spawn(invoke_on(home_, sanitizer_.resume()));
}

void LogicalUnit::capacity_changed() {
  atomic_writes_.capacity_changed();
  establish(UnitAttention::kCapacityChanged);
}

LogicalUnitCounters LogicalUnit::counters() const {
  LogicalUnitCounters result = counters_;
  result.in_flight = waiting_.count() + running_.count();
  result.held = held_.count();
  result.nexuses = static_cast<std::uint32_t>(nexuses_.size());
  result.registrations = static_cast<std::uint32_t>(persistent_.now.keys.size());
  result.reserved = reservation_.has_value() || persistent_.now.reserved();
  return result;
}

std::uint32_t LogicalUnit::blocks_per_physical() const noexcept {
  if (options_.physical_block_exponent) return 1U << (*options_.physical_block_exponent & 0x0FU);
  return std::max(1U, geometry().physical_block_bytes / geometry().block_bytes);
}

Outcome LogicalUnit::check_condition(const Sense& sense) const noexcept {
  return Outcome{.status = Status::kCheckCondition,
                 .sense = SenseData::encode(sense, modes_.descriptor_sense)};
}

Outcome LogicalUnit::refuse(SenseKey key, Additional additional) const noexcept {
  return check_condition({.key = key, .additional = additional});
}

Outcome LogicalUnit::invalid_cdb(std::uint16_t byte, std::optional<std::uint8_t> bit) const {
  return check_condition({.key = SenseKey::kIllegalRequest,
                          .additional = Additional::kInvalidFieldInCdb,
                          .field = Sense::FieldPointer{.in_cdb = true, .byte = byte, .bit = bit}});
}

Outcome LogicalUnit::invalid_parameter(std::uint16_t byte) const {
  return check_condition({.key = SenseKey::kIllegalRequest,
                          .additional = Additional::kInvalidFieldInParameterList,
                          .field = Sense::FieldPointer{.in_cdb = false, .byte = byte}});
}

// What stands on storage that is away comes back by itself: 04h/00h. 04h/0Ch (target port in
// unavailable state) would send a host to another port, in vain. A unit that was taken offline
// needs somebody, 04h/03h, which hosts do not wait for: Linux polls one that says 04h/00h or
// 04h/12h for 100 seconds when it finds it.
Additional LogicalUnit::not_ready() const noexcept {
  return offline_ ? Additional::kManualInterventionRequired
                  : Additional::kNotReadyCauseNotReportable;
}

// The one place where an error of a device becomes sense data.
Outcome LogicalUnit::device_failure(Error error, Operation operation,
                                    std::optional<Lba> bad_lba) const {
  const bool reading = operation == Operation::kRead;
  Sense sense{.key = SenseKey::kHardwareError, .additional = Additional::kInternalTargetFailure};
  switch (error) {
    case Error::kNoMemory:
      return Outcome{.status = Status::kBusy};
    case Error::kMediumError:
    case Error::kDataCorrupt:
      sense.key = SenseKey::kMediumError;
      sense.additional = reading ? Additional::kUnrecoveredReadError : Additional::kWriteError;
      sense.information = bad_lba;
      break;
    case Error::kMiscompare:
      sense.key = SenseKey::kMiscompare;
      sense.additional = Additional::kMiscompareDuringVerify;
      sense.information = bad_lba;
      break;
    case Error::kNoSpace:
      sense.key = SenseKey::kDataProtect;
      sense.additional = Additional::kSpaceAllocationFailed;
      break;
    case Error::kReadOnly:
    case Error::kPermission:
      sense.key = SenseKey::kDataProtect;
      sense.additional = Additional::kWriteProtected;
      break;
    case Error::kCancelled:
      sense.key = SenseKey::kAbortedCommand;
      sense.additional = Additional::kNone;
      break;
    case Error::kTimedOut:
      sense.key = SenseKey::kAbortedCommand;
      sense.additional = Additional::kLogicalUnitCommunicationTimeout;
      break;
    case Error::kOutOfRange:
      sense.key = SenseKey::kIllegalRequest;
      sense.additional = Additional::kLbaOutOfRange;
      break;
    default:
      if (!is_away(error)) break;
      sense.key = SenseKey::kNotReady;
      sense.additional = not_ready();
  }
  return check_condition(sense);
}

// A write that failed names no block: the device may not have written those before it.
Outcome LogicalUnit::device_failure(const Completion& completion, Operation operation) const {
  const bool reading = operation == Operation::kRead;
  const bool names_block = completion.error == Error::kMiscompare ||
                           (reading && completion.error == Error::kMediumError);
  return device_failure(completion.error, operation,
                        names_block ? std::optional(completion.first_bad_lba) : std::nullopt);
}

// The Data-Out did not come. Where the initiator is gone or the command aborted nobody reads this.
Outcome LogicalUnit::transport_failure(Error error) const {
  const Additional additional =
      error == Error::kDataCorrupt ? Additional::kDataPhaseCrcError : Additional::kDataPhaseError;
  return refuse(SenseKey::kAbortedCommand, additional);
}

Task<Outcome> LogicalUnit::return_parameters(Command& command, std::span<const std::byte> bytes,
                                             std::uint64_t allocation_length) {
  const std::uint64_t available = std::min<std::uint64_t>(bytes.size(), allocation_length);
  const auto wanted =
      static_cast<std::size_t>(std::min<std::uint64_t>(available, command.data_in_length));
  if (wanted != 0) {
    BufferList data = co_await home_.buffers().allocate(wanted);
    data.copy_from(bytes.first(wanted));
    const Error error = co_await command.send_data_in(std::move(data));
    if (error != Error::kNone) co_return transport_failure(error);
    command.moved += wanted;
  }
  co_return Outcome{.data_in_bytes = available};
}

Outcome LogicalUnit::incomplete_data_out(std::uint64_t needed) const {
  Outcome outcome = illegal(Additional::kInvalidFieldInInformationUnit);
  outcome.data_out_bytes = needed;
  return outcome;
}

Task<std::expected<std::size_t, Outcome>> LogicalUnit::receive_parameters(
    Command& command, std::span<std::byte> target, std::size_t byte_count) {
  assert(byte_count <= target.size());
  if (command.data_out_length < byte_count)
    co_return std::unexpected(incomplete_data_out(byte_count));
  const Result<BufferList> data = co_await command.receive_data_out(byte_count);
  if (!data) co_return std::unexpected(transport_failure(data.error()));
  assert(data->byte_count() == byte_count);
  data->copy_to(target.first(byte_count));
  command.moved += byte_count;
  co_return byte_count;
}

// A request on behalf of a command. What may still change blocks is noted for the fence, which may
// have come to stand here since the command began. Whether a change has to reach stable storage is
// decided now, for MODE SELECT may have taken the write cache away meanwhile.
Task<Completion> LogicalUnit::submit(Command& command, Operation operation, Extent extent,
                                     bool stable, bool disable_page_out, BufferList data) {
  const bool changes = operation == Operation::kWrite || operation == Operation::kUnmap ||
                       operation == Operation::kWriteZeroes;
  std::optional<Turn> turn;
  if (changes && command.aborted) co_return Completion{.error = Error::kCancelled};
  const bool reads = operation == Operation::kRead;
  const bool takes_turn = !turns_.empty() && ((changes && needs_turn(command, extent)) ||
                                              (reads && is_hidden(command, extent)));
  if (takes_turn) {
    turn.emplace(*this, command, extent);
    const bool come = co_await turn->come();
    if (!come) co_return Completion{.error = Error::kCancelled};
  }
  if ((changes || reads) && !is_open()) [[unlikely]] {
    const Error error = blocked(extent);
    if (error != Error::kNone) co_return Completion{.error = error, .first_bad_lba = extent.first};
  }
  if (changes) {
    command.writing = extent;
    stable = stable || stable_writes();
    if (!stable) ++cached_changes_;
  }
  const bool cached = changes && !stable;
  Request request{.operation = operation,
                  .force_unit_access = stable,
                  .disable_page_out = disable_page_out,
                  .extent = extent,
                  .data = std::move(data),
                  .cancellation = &command.cancellation};
  command.lent = request.data.byte_count();
  Completion completion = co_await device_.submit(std::move(request));
  if (changes) {
    command.lent = 0;
    change_ended(command);
  } else {
    read_ended(command, extent);
  }
  if (cached) cached_change_ended(command, completion.error);
  co_return completion;
}

// An aborted command promises nothing, and its nexus may be gone.
void LogicalUnit::cached_change_ended(const Command& command, Error error) {
  if (!command.aborted && error == Error::kNone) writers_.note_change(*state_of(command).writer);
  if (--cached_changes_ == 0 && stable_demands_ != 0) command_ended_.notify_all();
}

Task<Completion> LogicalUnit::flush(Command& command, Extent extent) {
  const std::shared_ptr<Writers::Writer> writer = state_of(command).writer;
  if (std::exchange(writer->lost, false)) co_return Completion{.error = Error::kHardware};
  const Writers::Flush begun = begin_flush(extent);
  Completion completion = co_await submit(command, Operation::kFlush, extent, false, false, {});
  // Nobody hears how an aborted command ends.
  writers_.flush_ended(completion.error, begun, command.aborted ? nullptr : writer.get());
  if (command.aborted) co_return completion;
  // A flush of another host may have failed meanwhile, for this one's writes, too.
  const bool lost = std::exchange(writer->lost, false);
  if (lost && completion.error == Error::kNone) completion.error = Error::kHardware;
  co_return completion;
}

Writers::Flush LogicalUnit::begin_flush(const Extent& extent) const noexcept {
  return writers_.begin_flush(extent.first == 0 && extent.block_count >= geometry().block_count);
}

// What IMMED commands leave to be done after their status. However many there are, one flush runs
// and one waits behind it for all of them; reading ahead that finds too much under way is forgone.

void LogicalUnit::flush_in_background(Extent extent) {
  if (flushing_) {
    const Lba first = std::min(next_flush_ ? next_flush_->first : extent.first, extent.first);
    const Lba end = std::max(next_flush_ ? next_flush_->end() : extent.end(), extent.end());
    next_flush_ = Extent{.first = first, .block_count = end - first};
    return;
  }
  if (!background_.enter()) return;
  flushing_ = true;
  spawn(run_background_flushes(extent));
}

Task<void> LogicalUnit::run_background_flushes(Extent extent) {
  const GateHold hold(background_);
  for (;;) {
    const Error error = co_await flush_behind_status(extent);
    if (error != Error::kNone) {
      // Whose writes it was that are not safe now, nobody knows.
      for (auto& [id, nexus] : nexuses_) nexus.deferred_error = error;
    }
    const std::optional<Extent> next = std::exchange(next_flush_, std::nullopt);
    if (!next) break;
    extent = *next;
  }
  flushing_ = false;
}

Task<void> LogicalUnit::advise_in_background(Extent extent) {
  if (background_.count() > kMostInBackground || !background_.enter()) co_return;
  const GateHold hold(background_);
  Cancellation cancellation;
  in_background_.push_back(&cancellation);
  co_await advise(&cancellation, extent);
  std::erase(in_background_, &cancellation);
}

// Ends with kNone, too, when a reset or the end has cancelled it: that is told otherwise.
Task<Error> LogicalUnit::flush_behind_status(Extent extent) {
  Cancellation cancellation;
  in_background_.push_back(&cancellation);
  const Writers::Flush begun = begin_flush(extent);
  const Completion completion = co_await device_.submit(
      {.operation = Operation::kFlush, .extent = extent, .cancellation = &cancellation});
  std::erase(in_background_, &cancellation);
  writers_.flush_ended(completion.error, begun, nullptr);
  co_return cancellation.cancelled() ? Error::kNone : completion.error;
}

void LogicalUnit::cancel_background() {
  next_flush_.reset();
  const std::vector<Cancellation*> running = in_background_;
  for (Cancellation* const each : running) each->cancel();
}

}  // namespace sandbay::scsi
