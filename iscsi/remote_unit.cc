// Requests as SCSI commands: SBC-3 clause 5, and what their ends mean.
#include "iscsi/remote_unit.h"

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <optional>

#include "iscsi/initiator_await.h"
#include "iscsi/initiator_url.h"
#include "iscsi/remote_target.h"
#include "runtime/byte_order.h"

namespace sandbay::iscsi {
namespace {

// A unit that has something to say first is asked so often at most, and one that is busy for the
// patience that its target has.
constexpr unsigned kMostAttentions = 64;
constexpr Duration kBusyPause = std::chrono::milliseconds(20);
constexpr std::size_t kStatusBytes = 24;  // GET LBA STATUS with one descriptor.

// Aborts a command when its deadline passes or nobody waits for it any more.
class CommandWatch {
 public:
  CommandWatch(InitiatorSession& session, InitiatorCommand& command, const Request& request)
      : session_(session),
        command_(command),
        hook_(request.cancellation, &CommandWatch::cancelled) {
    hook_.watch = this;
    if (request.deadline == kNever) return;
    timer_.deadline = request.deadline;
    timer_.owner = this;
    timer_.fire = [](Timer& timer) {
      auto& self = *static_cast<CommandWatch*>(timer.owner);
      self.late_ = true;
      self.abort();
    };
    session.home().arm(timer_);
  }
  ~CommandWatch() { session_.home().disarm(timer_); }
  CommandWatch(const CommandWatch&) = delete;
  CommandWatch& operator=(const CommandWatch&) = delete;

  bool late() const noexcept { return late_; }
  // The command has ended; an abort that refers to it ends first.
  Task<void> settle() {
    session_.home().disarm(timer_);
    ended_ = true;
    if (aborting_) co_await aborted_.wait();
  }

 private:
  struct Hook : Cancellation::Hook {
    using Cancellation::Hook::Hook;
    CommandWatch* watch = nullptr;
  };
  static void cancelled(Cancellation::Hook& hook) { static_cast<Hook&>(hook).watch->abort(); }
  void abort() {
    if (aborting_ || ended_) return;
    aborting_ = true;
    spawn(abort_it(this));
  }
  static Task<void> abort_it(CommandWatch* self) {
    co_await self->session_.abort(self->command_);
    self->aborted_.set();
  }

  InitiatorSession& session_;
  InitiatorCommand& command_;
  Hook hook_;
  Timer timer_;
  Event aborted_;
  bool late_ = false;
  bool ended_ = false;
  bool aborting_ = false;
};

using Cdb = std::array<std::byte, 16>;

// Commands of sixteen bytes: an operation code, flags, a block and a number of blocks.
Cdb cdb_16(std::uint8_t operation_code, std::uint8_t flags, const Extent& extent) {
  Cdb cdb{};
  cdb[0] = static_cast<std::byte>(operation_code);
  cdb[1] = static_cast<std::byte>(flags);
  put_big_endian(std::span<std::byte>(cdb), 2, extent.first);
  put_big_endian(std::span<std::byte>(cdb), 10, static_cast<std::uint32_t>(extent.block_count));
  return cdb;
}

std::uint8_t transfer_flags(const Request& request) {
  return static_cast<std::uint8_t>((request.force_unit_access ? 0x08U : 0U) |
                                   (request.disable_page_out ? 0x10U : 0U));
}

Error error_of_sense(const ScsiResult& result) {
  using scsi::SenseKey;
  switch (result.sense_key()) {
    case SenseKey::kNoSense:
    case SenseKey::kRecoveredError:
      return Error::kNone;
    case SenseKey::kNotReady:
      return Error::kNotReady;
    case SenseKey::kMediumError:
      return Error::kMediumError;
    case SenseKey::kIllegalRequest:
      // The unit is not there any more, or does not know what it said that it knows.
      return result.additional() == scsi::Additional::kLogicalUnitNotSupported
                 ? Error::kNotReady
                 : Error::kUnsupported;
    case SenseKey::kDataProtect:
      return result.additional() == scsi::Additional::kSpaceAllocationFailed ? Error::kNoSpace
                                                                             : Error::kReadOnly;
    case SenseKey::kMiscompare:
      return Error::kMiscompare;
    default:
      return Error::kHardware;
  }
}

// INFORMATION of either format: SPC-4 clauses 4.5.2.2 and 4.5.3.
std::optional<std::uint64_t> information_of(std::span<const std::byte> sense) {
  if (sense.size() < 8) return std::nullopt;
  const auto code = std::to_integer<unsigned>(sense[0]);
  if ((code & 0x7FU) < 0x72) {
    if ((code & 0x80U) == 0) return std::nullopt;
    return big_endian<std::uint32_t>(sense, 3);
  }
  for (std::size_t at = 8; at + 12 <= sense.size();
       at += 2 + std::to_integer<std::size_t>(sense[at + 1])) {
    if (sense[at] == std::byte{0x00}) return big_endian<std::uint64_t>(sense, at + 4);
  }
  return std::nullopt;
}

}  // namespace

Completion completion_of(const ScsiResult& result) {
  Completion completion;
  switch (result.error) {
    case Error::kNone:
      break;
    case Error::kReset:
    case Error::kClosed:
      completion.error = Error::kNotReady;
      return completion;
    case Error::kCancelled:
    case Error::kTimedOut:
    case Error::kDataCorrupt:
    case Error::kNoMemory:
      completion.error = result.error;
      return completion;
    default:
      completion.error = Error::kHardware;
      return completion;
  }
  if (result.whole()) return completion;
  if (result.status == scsi::Status::kGood) {
    completion.error = Error::kDataCorrupt;  // Fewer bytes were moved than the command names.
    return completion;
  }
  completion.error =
      result.status == scsi::Status::kCheckCondition ? error_of_sense(result) : Error::kNotReady;
  const bool names_block =
      completion.error == Error::kMediumError || completion.error == Error::kMiscompare;
  if (names_block) completion.first_bad_lba = information_of(result.sense_data()).value_or(0);
  return completion;
}

struct RemoteUnit::Exchange {
  Cdb cdb{};
  BufferList data_out;
  BufferList data_in;
  Completion completion;  // Without its data.
  bool failed = false;    // The unit has answered that its drives failed.
};

RemoteUnit::RemoteUnit(RemoteTarget& target, RemoteUnitFacts facts)
    : target_(target), facts_(std::move(facts)) {}

RemoteUnit::~RemoteUnit() = default;

Executor& RemoteUnit::home() const noexcept { return target_.home(); }

std::string RemoteUnit::description() const {
  return fmt::format("LUN {} of {} at {}", facts_.lun_number, target_.name(),
                     target_.endpoint().to_string());
}

void RemoteUnit::learn(const RemoteUnitFacts& facts) {
  // What stands on it counts on the size that it had.
  const std::uint64_t block_count = facts_.geometry.block_count;
  facts_ = facts;
  facts_.geometry.block_count = block_count;
}

Task<void> RemoteUnit::perform(Exchange* exchange, const Request* request) {
  const TimePoint patient_until = home().now() + target_.patience();
  for (unsigned attentions = 0;;) {
    const std::shared_ptr<RemoteLink> link = target_.link();
    exchange->completion = {};
    if (request->cancellation != nullptr && request->cancellation->cancelled()) {
      exchange->completion.error = Error::kCancelled;
      co_return;
    }
    if (!ready_ || link == nullptr || !link->users.enter()) {
      exchange->completion.error = Error::kNotReady;
      co_return;
    }
    const GateHold hold(link->users);
    InitiatorCommand command;
    command.lun = encode_lun(facts_.lun_number);
    command.cdb = exchange->cdb;
    command.data_out = std::move(exchange->data_out);
    command.data_in = std::move(exchange->data_in);
    CommandWatch watch(*link->session, command, *request);
    co_await AwaitCommand{*link->session, command};
    co_await watch.settle();
    exchange->data_out = std::move(command.data_out);
    exchange->data_in = std::move(command.data_in);
    const ScsiResult& result = command.result;
    exchange->completion = completion_of(result);
    if (watch.late() && result.error == Error::kCancelled) {
      exchange->completion.error = Error::kTimedOut;
    }
    const bool answered = result.error == Error::kNone;
    const Error error = exchange->completion.error;
    exchange->failed = answered && (error == Error::kHardware || error == Error::kMediumError);
    const bool attention = answered && result.status == scsi::Status::kCheckCondition &&
                           (result.sense_key() == scsi::SenseKey::kUnitAttention ||
                            result.sense_key() == scsi::SenseKey::kAbortedCommand);
    const bool busy = answered && (result.status == scsi::Status::kBusy ||
                                   result.status == scsi::Status::kTaskSetFull);
    if (attention && attentions++ < kMostAttentions) {
      target_.notice_attention();
    } else if (busy && home().now() < patient_until) {
      co_await home().sleep_for(kBusyPause);
    } else {
      co_return;
    }
  }
}

Task<Completion> RemoteUnit::submit(Request request) {
  assert(fits(geometry(), request));
  switch (request.operation) {
    case Operation::kRead:
    case Operation::kWrite:
      if (request.extent.block_count > facts_.most_transfer_blocks) {
        return transfer_in_pieces(std::move(request));
      }
      return transfer(std::move(request));
    case Operation::kFlush:
      return flush(std::move(request));
    case Operation::kUnmap:
    case Operation::kWriteZeroes:
      return clear(std::move(request));
    case Operation::kAdvise:
      return advise(std::move(request));
  }
  return advise(std::move(request));
}

Task<Completion> RemoteUnit::transfer(Request request) {
  if (request.extent.block_count == 0) {
    co_return Completion{.data = std::move(request.data)};
  }
  const bool reads = request.operation == Operation::kRead;
  Exchange exchange{.cdb = cdb_16(reads ? 0x88 : 0x8A, transfer_flags(request), request.extent)};
  (reads ? exchange.data_in : exchange.data_out) = std::move(request.data);
  co_await perform(&exchange, &request);
  exchange.completion.data = std::move(reads ? exchange.data_in : exchange.data_out);
  const bool stored = !reads && exchange.completion.error == Error::kNone;
  if (stored) note_change(request.volume, request.force_unit_access);
  co_return std::move(exchange.completion);
}

// One after the other: what is longer than a command may be is long enough for that.
Task<Completion> RemoteUnit::transfer_in_pieces(Request request) {
  Completion whole;
  BufferList rest = std::move(request.data);
  const std::uint64_t most = facts_.most_transfer_blocks;
  Extent left = request.extent;
  while (left.block_count > 0) {
    const Extent piece{left.first, std::min(most, left.block_count)};
    BufferList data = rest.take_front(piece.byte_count(geometry().block_bytes));
    if (whole.error == Error::kNone) {
      Request part{.operation = request.operation,
                   .force_unit_access = request.force_unit_access,
                   .disable_page_out = request.disable_page_out,
                   .origin = request.origin,
                   .extent = piece,
                   .data = std::move(data),
                   .volume = request.volume,
                   .deadline = request.deadline,
                   .cancellation = request.cancellation};
      Completion one = co_await transfer(std::move(part));
      whole.error = one.error;
      whole.first_bad_lba = one.first_bad_lba;
      data = std::move(one.data);
    }
    whole.data.append(std::move(data));
    left = {piece.end(), left.block_count - piece.block_count};
  }
  co_return whole;
}

void RemoteUnit::note_change(std::uint64_t volume, bool forced) {
  if (forced || !is_volatile()) return;
  const std::uint64_t run = target_.run();
  const auto note = [run](Unflushed& one) {
    if (one.changes == one.flushed) one.run_of_oldest = run;
    ++one.changes;
  };
  note(unflushed_[volume]);
  if (volume != 0) note(unflushed_[0]);
}

bool RemoteUnit::settle_changes(std::uint64_t volume, const AllUnflushed& before,
                                std::uint64_t run_before) {
  bool lost = false;
  for (const auto& [each, begun] : before) {
    Unflushed& now = unflushed_[each];
    const bool restarted = now.run_of_oldest != target_.run();
    const bool own = each == volume;
    if (begun.changes == begun.flushed) continue;
    // One that ended meanwhile may have had to say the same of the same changes.
    if (own && now.losses != begun.losses) lost = true;
    if (begun.changes <= now.flushed || (restarted && !own)) continue;
    now.flushed = begun.changes;
    now.run_of_oldest = run_before;  // Of what came meanwhile, at the earliest.
    if (!restarted) continue;
    ++now.losses;
    lost = true;
  }
  return !lost;
}

void RemoteUnit::doubt_changes(std::uint64_t volume, const AllUnflushed& before) {
  for (auto& [each, now] : unflushed_) {
    const auto begun = each == volume ? before.find(each) : before.end();
    if (begun != before.end() && begun->second.changes > now.flushed) {
      now.flushed = begun->second.changes;
      ++now.losses;
    }
    if (now.changes > now.flushed) now.run_of_oldest = kDoubtful;
  }
}

Task<Completion> RemoteUnit::flush(Request request) {
  const AllUnflushed before = unflushed_;
  const std::uint64_t run_before = target_.run();
  Exchange exchange{.cdb = cdb_16(0x91, 0, {})};
  co_await perform(&exchange, &request);
  Completion& completion = exchange.completion;
  if (exchange.failed) doubt_changes(request.volume, before);
  if (completion.error == Error::kNone && !settle_changes(request.volume, before, run_before)) {
    target_.tell(true, fmt::format("{} was started anew, or has failed a flush, before what its "
                                   "volatile cache held was flushed; it may have lost writes to "
                                   "LUN {}",
                                   target_.name(), facts_.lun_number));
    completion.error = Error::kHardware;
  }
  completion.data = std::move(request.data);
  co_return std::move(completion);
}

// UNMAP with one descriptor, or WRITE SAME (16) of no data at all (NDOB).
Task<Error> RemoteUnit::clear_piece(Request* request, Extent piece) {
  Exchange exchange;
  if (request->operation == Operation::kUnmap) {
    constexpr std::size_t kListBytes = 24;
    std::array<std::byte, kListBytes> list{};
    put_big_endian(std::span<std::byte>(list), 0, std::uint16_t{kListBytes - 2});
    put_big_endian(std::span<std::byte>(list), 2, std::uint16_t{16});
    put_big_endian(std::span<std::byte>(list), 8, piece.first);
    put_big_endian(std::span<std::byte>(list), 16, static_cast<std::uint32_t>(piece.block_count));
    exchange.cdb[0] = std::byte{0x42};
    put_big_endian(std::span<std::byte>(exchange.cdb), 7, std::uint16_t{kListBytes});
    exchange.data_out = co_await home().buffers().allocate(kListBytes);
    exchange.data_out.copy_from(list);
  } else {
    exchange.cdb = cdb_16(0x93, 0x01, piece);
  }
  co_await perform(&exchange, request);
  if (exchange.completion.error == Error::kNone) note_change(request->volume, false);
  co_return exchange.completion.error;
}

Task<Completion> RemoteUnit::clear(Request request) {
  Completion whole;
  const bool unmaps = request.operation == Operation::kUnmap;
  // To do nothing is a way to unmap, as long as nobody counts on zeros.
  const bool nothing = unmaps && !facts_.geometry.unmap;
  const std::uint64_t most = unmaps ? facts_.most_unmap_blocks : facts_.most_write_same_blocks;
  Extent left = request.extent;
  while (!nothing && left.block_count > 0 && whole.error == Error::kNone) {
    const Extent piece{left.first, std::min(most, left.block_count)};
    whole.error = co_await clear_piece(&request, piece);
    left = {piece.end(), left.block_count - piece.block_count};
  }
  whole.data = std::move(request.data);
  co_return whole;
}

// PRE-FETCH (16) with IMMED; nobody waits for what becomes of it.
Task<Completion> RemoteUnit::advise(Request request) {
  Exchange exchange{.cdb = cdb_16(0x90, 0x02, request.extent)};
  const bool fits_command = request.extent.block_count <= facts_.most_transfer_blocks;
  if (fits_command && request.extent.block_count > 0) co_await perform(&exchange, &request);
  co_return Completion{.data = std::move(request.data)};
}

Task<Result<ProvisioningRun>> RemoteUnit::provisioning(Lba first, Lba limit) {
  if (!facts_.geometry.unmap) co_return ProvisioningRun{.block_count = limit - first};
  Exchange exchange;
  exchange.cdb[0] = std::byte{0x9E};
  exchange.cdb[1] = std::byte{0x12};
  put_big_endian(std::span<std::byte>(exchange.cdb), 2, first);
  put_big_endian(std::span<std::byte>(exchange.cdb), 10, std::uint32_t{kStatusBytes});
  exchange.data_in = co_await home().buffers().allocate(kStatusBytes);
  const Request request;
  co_await perform(&exchange, &request);
  if (exchange.completion.error != Error::kNone) {
    co_return std::unexpected(exchange.completion.error);
  }
  std::array<std::byte, kStatusBytes> data{};
  exchange.data_in.copy_to(data);
  const auto at = big_endian<std::uint64_t>(data, 8);
  const std::uint64_t length = big_endian<std::uint32_t>(data, 16);
  if (at > first || at + length <= first) co_return std::unexpected(Error::kHardware);
  co_return ProvisioningRun{.block_count = std::min(at + length, limit) - first,
                            .mapped = (data[20] & std::byte{0x0F}) == std::byte{0}};
}

}  // namespace sandbay::iscsi
